"""The smallest change that gets most of the gain."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from export_jobs import cluster_of, config_of
from trainwright.execution import Budget
from trainwright.plan.configuration import Configuration
from trainwright.plan.parallelism import Parallelism
from trainwright.planning.improve import (
    MOST_OF_IT,
    Improvement,
    Neighbourhood,
    improvements,
    recommended,
)
from trainwright.planning.neighbours import moves
from trainwright.pricing.configuration import price_configuration
from trainwright.profile import Recompute

WASTEFUL = Configuration(
    parallelism=Parallelism(tensor=4, pipeline=2, data=2, sequence_parallel=True, zero_stage=1),
    microbatch_size=1,
    global_batch=32,
    sequence_length=2048,
    recompute=Recompute.FULL,
)
LLAMA, WHERE = config_of("llama3-8b"), cluster_of(2)


def around(limit_bytes: float = 80e9, schedule: str | None = None) -> Neighbourhood:
    return Neighbourhood(
        model=LLAMA,
        cluster=WHERE,
        wanted=lambda run: schedule is None or run.schedule == schedule,
        fits=lambda step: step.peak_memory_bytes <= limit_bytes,
    )


@cache
def found_around() -> tuple[Improvement, ...]:
    return improvements(WASTEFUL, around(), Budget())


def test_a_move_changes_one_dimension_and_keeps_the_devices() -> None:
    for move in moves(WASTEFUL, LLAMA, WHERE.pool_of()):
        run = move.run
        assert run != WASTEFUL
        assert run.parallelism.num_devices == WASTEFUL.parallelism.num_devices
        assert (run.global_batch, run.sequence_length) == (32, 2048)


@pytest.mark.slow
def test_no_change_that_is_offered_beats_its_own_price() -> None:
    for found in found_around():
        assert found.step == price_configuration(LLAMA, WHERE, found.run)
        assert 1 <= len(found.dimensions) <= 2
        assert found.step.peak_memory_bytes <= 80e9


@pytest.mark.slow
def test_recomputing_for_nothing_is_the_first_thing_to_drop() -> None:
    found = found_around()
    single = next(each for each in found if each.dimensions == ("recompute",))
    assert single.options == "--recompute none"
    base_s = price_configuration(LLAMA, WHERE, WASTEFUL).step_time_s
    assert single.step.step_time_s < base_s
    assert found[0].step.step_time_s <= single.step.step_time_s


@pytest.mark.slow
def test_pairs_reach_what_no_single_change_reaches() -> None:
    """With little memory, fewer tensor ranks fit only together with another change."""
    found = improvements(replace(WASTEFUL, recompute=Recompute.NONE), around(22e9), Budget())
    fastest = found[0]
    singles = [each.step.step_time_s for each in found if len(each.dimensions) == 1]
    assert len(fastest.dimensions) == 2
    assert fastest.step.step_time_s < min(singles)


@pytest.mark.slow
def test_only_wanted_runs_are_offered() -> None:
    found = improvements(WASTEFUL, around(schedule="1f1b"), Budget())
    assert found
    assert all(each.run.schedule == "1f1b" for each in found)


def test_an_ended_budget_keeps_what_was_found() -> None:
    assert improvements(WASTEFUL, around(), Budget(time_limit_s=1e-9)) == ()


@pytest.mark.slow
def test_the_smallest_change_with_most_of_the_gain_is_recommended() -> None:
    found = found_around()
    base_s = price_configuration(LLAMA, WHERE, WASTEFUL).step_time_s
    best_s = found[0].step.step_time_s
    chosen = recommended(found, base_s=base_s, best_s=best_s)
    assert chosen is not None
    gains = {each.options: (base_s - each.step.step_time_s) / (base_s - best_s) for each in found}
    assert gains[chosen.options] >= MOST_OF_IT
    smaller = [each for each in found if len(each.dimensions) < len(chosen.dimensions)]
    assert all(gains[each.options] < MOST_OF_IT for each in smaller)


def test_nothing_is_recommended_where_nothing_is_faster() -> None:
    step = price_configuration(LLAMA, WHERE, WASTEFUL)
    same = Improvement(dimensions=("zero",), options="--zero 1", run=WASTEFUL, step=step)
    assert recommended([same], base_s=step.step_time_s, best_s=step.step_time_s) is None
