"""Schedules run by PyTorch itself: the gradients must be those of the model in one piece."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from reference import needs_reference, reference
from strategies_schedule import split_backward
from trainwright.errors import InvalidInput, MissingExtra, UnsupportedFeature
from trainwright.formats.schedule_json import (
    CsvForm,
    format_compute_comms,
    format_compute_only,
    read_compute_only,
)
from trainwright.lab.gloo_check import (
    PipelineRun,
    check_gradients,
    with_swapped_microbatches,
    without_gradient_reduction,
)
from trainwright.plans.schedule import Action, Placement, Schedule
from trainwright.scheduling.families import FAMILIES, FamilyRequest, generate
from trainwright.scheduling.lower import as_pytorch_runs, lower

PATIENCE_S = 300.0  # the machines that run this may be busy


def written(*orders: str) -> Schedule:
    return Schedule.from_orders([[Action.parse(text) for text in o.split()] for o in orders])


def lowered_run(schedule: Schedule) -> PipelineRun:
    schedule = as_pytorch_runs(schedule)
    stages = range(schedule.placement.num_stages)
    return PipelineRun(
        csv=format_compute_comms(lower(schedule, sharded_stages=stages)),
        form=CsvForm.COMPUTE_COMMS,
        placement=schedule.placement,
        num_microbatches=schedule.num_microbatches,
    )


def plain_run(schedule: Schedule) -> PipelineRun:
    """The file that PyTorch lowers itself."""
    schedule = as_pytorch_runs(schedule)
    return PipelineRun(
        csv=format_compute_only(schedule),
        form=CsvForm.COMPUTE_ONLY,
        placement=schedule.placement,
        num_microbatches=schedule.num_microbatches,
    )


def split(schedule: Schedule) -> Schedule:
    orders = [
        split_backward(schedule.actions[schedule.rows_of(r)]) for r in range(schedule.num_ranks)
    ]
    return Schedule.of_ranks(
        orders, placement=schedule.placement, num_microbatches=schedule.num_microbatches
    )


def family(name: str, num_ranks: int, num_microbatches: int) -> Schedule:
    request = FamilyRequest(num_ranks=num_ranks, num_microbatches=num_microbatches)
    return generate(name, request)


UNEQUAL_STAGES = written(
    "0F0 1F0 2F0 0F1 1F1 2F1 2I0 1I0 0B0 2B1 1B1 0B1 2W0 1W0", "3F0 3B0 3F1 3B1"
)
REVERSED = written("1F0 1F1 1B1 1B0", "0F0 0F1 0B1 0B0")
HETEROGENEOUS = written(
    "0F0 0F1 0F2 0I0 0W0 0F3 0I1 0I2 0W1 0I3 0W2 0W3",
    "1F0 3F0 1F1 3I0 1I0 3F1 1F2 3I1 3W0 1I1 1W0 3F2 3B2 1B2 1F3 3F3 3B3 1B3 1W1 3W1",
    "2F0 2B0 2F1 2B1 2F2 2I2 2F3 2I3 2W2 2W3",
)
WAVE = Schedule.from_orders(
    [
        [Action.parse(text) for text in order.split()]
        for order in (
            "0F0 3F0 0F1 3F1 4F0 4F1 7F0 7B0 7F1 7B1 4B0 4B1 3B0 3B1 0B0 0B1",
            "1F0 2F0 1F1 2F1 5F0 6F0 5F1 6F1 6B0 5B0 6B1 5B1 2B0 1B0 2B1 1B1",
        )
    ]
)


@pytest.mark.torch
def test_two_ranks_train_the_same_model():
    """1F1B with 6 microbatches divides by no power of two, so that rounding shows."""
    runs = [
        lowered_run(family("1f1b", 2, 6)),
        plain_run(family("1f1b", 2, 6)),
        lowered_run(split(family("interleaved", 2, 6))),
        lowered_run(UNEQUAL_STAGES),
        plain_run(UNEQUAL_STAGES),
        lowered_run(REVERSED),
        lowered_run(WAVE),
    ]
    results = check_gradients(runs, stall_timeout_s=PATIENCE_S)
    assert [result.problem for result in results] == [None] * len(runs)
    assert all(result.passed for result in results)
    assert 0 < max(result.max_error for result in results) <= 2e-7
    assert max(result.loss_error for result in results) <= 1e-6


@pytest.mark.torch
@pytest.mark.papers
def test_more_ranks_train_the_same_model():
    runs = [
        lowered_run(HETEROGENEOUS),
        plain_run(HETEROGENEOUS),
        lowered_run(family("gpipe", 3, 3)),
        lowered_run(split(family("interleaved", 4, 8))),
        lowered_run(split(family("1f1b", 4, 5))),
    ]
    results = check_gradients(runs, stall_timeout_s=PATIENCE_S)
    assert [result.problem for result in results] == [None] * len(runs)
    assert all(result.passed for result in results)
    assert [result.num_ranks for result in results] == [3, 3, 3, 4, 4]


@pytest.mark.torch
def test_every_family_trains_the_same_model():
    names = [name for name in FAMILIES if FAMILIES[name].is_plain]
    results = check_gradients(
        [lowered_run(family(name, 4, 8)) for name in names], stall_timeout_s=PATIENCE_S
    )
    problems = {n: r.problem or r.max_error for n, r in zip(names, results, strict=True)}
    assert all(result.passed for result in results), problems
    kept = [rank for result in results for rank in result.kept]
    assert len(kept) == 4 * len(names)
    assert max(rank.largest_difference_bytes for rank in kept) == 0
    assert min(rank.peak_bytes for rank in kept) > 0


@pytest.mark.torch
def test_replicas_train_on_their_own_data_and_share_gradients():
    """Two pipelines of two ranks, stages that recompute, and one stage on four processes."""
    stages = (("block:full", "block:offload"), ("block:selective",))
    pipeline = replace(lowered_run(family("1f1b", 2, 6)), stages=stages, num_replicas=2)
    alone = replace(lowered_run(family("1f1b", 1, 3)), num_replicas=4)
    results = check_gradients([pipeline, alone], stall_timeout_s=PATIENCE_S)
    assert [result.problem for result in results] == [None, None]
    assert all(result.passed for result in results)
    assert [result.num_replicas for result in results] == [2, 4]
    full, selective = results[0].kept
    assert full.largest_difference_bytes == selective.largest_difference_bytes == 0


@pytest.mark.torch
@needs_reference
@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.papers)])
def test_published_orders_train_the_same_model(num_ranks):
    """V-Half, V-Min, ZB-V, ZB-1P, 1F1B over V and interleaved, as their authors generate them."""
    files = sorted((reference() / "schedules/csv").glob("*.csv"))
    schedules = [read_compute_only(path) for path in files]
    chosen = [schedule for schedule in schedules if schedule.num_ranks == num_ranks]
    assert len(chosen) == 4
    runs = [run(schedule) for schedule in chosen for run in (lowered_run, plain_run)]
    results = check_gradients(runs, stall_timeout_s=PATIENCE_S)
    assert [result.problem for result in results] == [None] * len(runs)
    assert all(result.passed for result in results)


@pytest.mark.torch
def test_broken_files_fail_and_do_not_harm_the_next_run():
    sound = lowered_run(family("1f1b", 2, 4))

    def broken(csv: str) -> PipelineRun:
        return PipelineRun(csv=csv, form=sound.form, placement=sound.placement, num_microbatches=4)

    all_forward = lowered_run(split(family("gpipe", 2, 4)))
    runs = [
        broken(without_gradient_reduction(sound.csv)),
        broken(with_swapped_microbatches(sound.csv)),
        broken(with_swapped_microbatches(all_forward.csv)),
        broken(sound.csv.replace("0REDUCE_GRAD", "0SEND_F9")),
        sound,
    ]
    undivided, swapped, foreign, unknown, last = check_gradients(runs, stall_timeout_s=PATIENCE_S)
    assert not undivided.passed
    assert undivided.max_error > 0.1
    assert not swapped.passed
    assert "Loss for microbatch 1 is not available" in swapped.problem
    assert not foreign.passed
    assert foreign.problem is None
    assert foreign.max_error > 1e-3, "gradients of other microbatches, without a word"
    assert not unknown.passed
    assert unknown.problem.startswith("rank 0 failed at 0SEND_F9: ")
    assert last.passed


@pytest.mark.torch
@pytest.mark.slow
def test_a_run_that_stands_still_is_ended_and_says_where():
    csv = "0F0,0RECV_B0,0B0,0SEND_F0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD\n"
    run = PipelineRun(
        csv=csv, form=CsvForm.COMPUTE_COMMS, placement=Placement.loop(2), num_microbatches=1
    )
    (result,) = check_gradients([run], stall_timeout_s=10.0)
    assert not result.passed
    assert result.problem == "no rank moved for 10 s: rank 0 at 0B0, rank 1 at 1F0"


def test_without_pytorch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[torch\]'"):
        check_gradients([lowered_run(family("1f1b", 2, 2))])


def test_more_than_four_ranks_are_not_run_for_real():
    with pytest.raises(UnsupportedFeature, match="at most 4 ranks are run for real, got 8; check"):
        check_gradients([lowered_run(family("1f1b", 8, 8))])


def test_at_least_one_step_is_run():
    with pytest.raises(InvalidInput, match="num_steps: must be >= 1, got 0"):
        check_gradients([lowered_run(family("1f1b", 2, 2))], num_steps=0)
