"""Splits in V of a ladder of rooms and of whole small spaces, against exhaustion."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise, product
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exhaustive import LLAMA, MODES, asked, holds, on_four_ranks
from family_cases import Case, case, every_cut, is_searched, plan_of, step_of
from random_cases import cases
from trainwright.execution import Budget
from trainwright.planning.bounds.stages import nearly_even
from trainwright.planning.question.question import Span
from trainwright.planning.search.frontier import Shelf
from trainwright.planning.search.plans import asked_of, split_tries
from trainwright.planning.search.search import plan_model
from trainwright.planning.splits import vee_cuts
from trainwright.planning.splits.vee import VProblem, least_pipeline_of_v_s, least_step_of_v_s
from trainwright.planning.splits.vee_cuts import Tried, best_of_space, every_split, num_splits
from trainwright.step.predict import work_of_plan

IN_V = ("zb-v", "v-half", "v-min")


def dealt(asked_of_v: Case, cuts):
    """A row for every layer, all ways that differ in counts: of a class, later rows come first."""
    costs, layers = asked_of_v.profile.costs, asked_of_v.profile.structure.layers
    options = [costs.rows_of(layer.layer_class) for layer in layers]
    for rows in product(*options):
        stages = [list(zip(layers[a:b], rows[a:b], strict=True)) for a, b in pairwise(cuts)]
        if all(_later_first(own) for own in stages):
            yield rows


def _later_first(own) -> bool:
    return all(
        one >= other
        for (layer, one), (after, other) in pairwise(own)
        if layer.layer_class == after.layer_class
    )


def counts_of(asked_of_v: Case, cuts, rows):
    return tuple(
        tuple(np.bincount(rows[a:b], minlength=asked_of_v.profile.costs.num_rows).tolist())
        for a, b in pairwise(cuts)
    )


@cache
def plans_of(question, family: str):
    """Cuts, counts and step of all plans of the certified space that fit."""
    return list(_every_plan(case_of(question)[-1], family))


def _every_plan(asked_of_v: Case, family: str):
    even = nearly_even(asked_of_v.profile, 2 * asked_of_v.degrees.pipeline)
    is_stage = even.stages(asked_of_v.kinds.num_layers)
    for cuts in every_cut(asked_of_v.kinds.num_layers, 2 * asked_of_v.degrees.pipeline):
        if not all(is_stage[a, b] for a, b in pairwise(cuts)):
            continue
        for rows in dealt(asked_of_v, cuts):
            step, fits = step_of(asked_of_v, family, cuts, rows)
            if fits and is_searched(asked_of_v, family, cuts, rows, step):
                yield cuts, counts_of(asked_of_v, cuts, rows), step


def small(seed: int, family: str, sizes=((2, 4),)):
    """A question of a few blocks on few ranks with little memory, drawn at random."""
    draw = Random(seed)
    ranks, blocks = draw.choice(sizes)
    return asked(
        replace(LLAMA, num_layers=blocks),
        memory_gib=draw.uniform(16, 26) * blocks / (2 * ranks),
        devices=ranks,
        batch=draw.randint(2, 4),
        sequence=draw.choice((2048, 4096, 8192)),
        schedules=(family,),
        zero_stages=(1,),
        recompute=MODES,
        tensor=Span.only(1),
        context=Span.only(1),
        microbatch_size=Span.only(1),
        pipeline=Span.only(ranks),
        data=Span.only(1),
    )


@cache
def case_of(question) -> tuple[Shelf, object, Case]:
    roomy = replace(question, cluster=question.cluster.with_memory(2**40))
    candidate = plan_model(roomy, Budget(), num_alternatives=0).priced[0].candidate
    shelf = Shelf.of(question)
    own = Case(
        kinds=shelf.kinds(candidate.point),
        degrees=candidate.degrees,
        cluster=question.cluster,
        num_microbatches=candidate.num_microbatches(question.workload),
    )
    return shelf, candidate, own


def check_against_exhaustion(question, family: str) -> bool:
    """Whether there was a plan at all."""
    outcome = plan_model(question, Budget())
    plans = plans_of(question, family)
    least_s = min((step.step_time_s for *_, step in plans), default=math.inf)
    found_s = outcome.priced[0].step.step_time_s if outcome.priced else math.inf
    assert found_s <= least_s * (1 + 1e-9)
    assert outcome.lower_bound_s <= least_s * (1 + 1e-9)
    assert outcome.exhausted
    return math.isfinite(found_s)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", ["zb-v", pytest.param("v-min", marks=pytest.mark.papers), "v-half"]
)
def test_the_planner_is_as_fast_as_every_plan_of_a_small_space(family):
    assert check_against_exhaustion(small(1, family), family)


@pytest.mark.papers
@pytest.mark.parametrize("family", IN_V)
@pytest.mark.parametrize("seed", range(2, 12))
def test_so_it_is_in_more_spaces(family, seed):
    check_against_exhaustion(small(seed, family, ((2, 4), (2, 5), (2, 6))), family)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["v-half"])
def test_every_split_of_a_space_is_listed_once_with_a_bound(family):
    question = small(1, family)
    shelf, candidate, own = case_of(question)
    problem = VProblem.of(asked_of(shelf, candidate), limit_s=math.inf)
    listed = every_split(problem, most=10_000)
    known = {split: bound_s for bound_s, split in listed}
    assert len(known) == len(listed) <= num_splits(problem)
    assert sorted(listed) == listed
    tries = split_tries(question, candidate, own.profile)
    plans = plans_of(question, family)
    assert plans
    for cuts, counts, step in plans:
        assert known[cuts, counts] <= step.step_time_s * (1 + 1e-9)
        assert tries.floor_s((cuts, counts)) <= step.step_time_s * (1 + 1e-9)
    assert every_split(problem, most=len(listed) - 1) is None


@cases(8)
@given(
    family=st.sampled_from((*IN_V, "adaptive-v")),
    ends=st.lists(st.integers(1, 14), min_size=5, max_size=5, unique=True),
    num_microbatches=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_split_steps_faster_than_its_floor(family, ends, num_microbatches, seed):
    own = case(blocks=11, pipeline=3, virtual_stages=2, num_microbatches=num_microbatches)
    costs, draw = own.profile.costs, Random(seed)
    rows = [
        draw.choice(list(costs.rows_of(layer.layer_class)))
        for layer in own.profile.structure.layers
    ]
    cuts = (0, *sorted(ends), own.kinds.num_layers)
    step, _ = step_of(own, family, cuts, rows)
    work = work_of_plan(plan_of(own, family, cuts, rows), own.profile, own.cluster)
    assert least_step_of_v_s(*work) <= step.step_time_s
    assert least_pipeline_of_v_s(*work) <= step.pipeline_s


def test_what_no_order_brings_below_the_limit_is_not_ordered(monkeypatch):
    question = small(1, "v-half")
    shelf, candidate, own = case_of(question)
    listed = every_split(VProblem.of(asked_of(shelf, candidate), limit_s=math.inf), most=10_000)
    splits = [split for _, split in listed][:: max(1, len(listed) // 12)]
    tries = split_tries(question, candidate, own.profile)
    alone = [tries.fastest([split], math.inf) for split in splits]
    ordered = []

    def simulated(work, layout, each=vee_cuts.simulated_step):
        ordered.append(each(work, layout))
        return ordered[-1]

    monkeypatch.setattr(vee_cuts, "simulated_step", simulated)
    fastest = min(alone, key=lambda one: one.step_s)
    assert fastest.plan is not None
    for longest in (1.3, 1.02, 0.999):
        found = tries.fastest(splits, longest * fastest.step_s)
        if longest > 1:
            assert (found.plan, found.step_s) == (fastest.plan, fastest.step_s)
        else:
            assert found.step_s >= fastest.step_s
    ordered.clear()
    assert tries.fastest(splits, 0.5 * fastest.step_s) == Tried()
    assert not ordered


@pytest.mark.slow
def test_where_no_plan_was_found_a_small_space_is_searched_to_its_end():
    """Of 294 splits of 12 blocks that should fit in 20 GiB the order of one does in V-Half."""
    question = on_four_ranks(12, 20, ("v-half",))
    outcome = plan_model(question, Budget(), num_alternatives=0)
    assert holds(question, outcome.priced[0].step.peak_memory_bytes)
    assert outcome.exhausted


@pytest.mark.slow
def test_nothing_fits_is_said_only_where_all_was_tried():
    question = small(1, "v-half")
    shelf, candidate, own = case_of(question)
    tries = split_tries(question, candidate, own.profile)
    assert best_of_space(asked_of(shelf, candidate), tries).cuts
    nothing = SimpleNamespace(fastest=lambda splits, limit_s: Tried(), floor_s=tries.floor_s)
    found = best_of_space(asked_of(shelf, candidate), nothing)
    assert not found.cuts
    assert math.isinf(found.bound_s)
    many = on_four_ranks(12, 60, ("v-half",))
    shelf, candidate, _ = case_of(many)
    assert best_of_space(asked_of(shelf, candidate), nothing) is None


def _steps(blocks, family, memories_gib):
    for memory_gib in memories_gib:
        outcome = plan_model(on_four_ranks(blocks, memory_gib, (family,)), Budget())
        yield outcome.priced[0].step.step_time_s if outcome.priced else math.inf


def assert_never_slower(blocks, family, memories_gib):
    steps = list(_steps(blocks, family, memories_gib))
    best = list(accumulate(steps, min))
    assert steps == pytest.approx(best, rel=1e-9)
    assert math.isfinite(best[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocks", "family", "memories_gib"),
    [
        (12, "v-min", (22, 24, 26, 44)),  # took 6.2% longer with 26 GiB than with 24
        (15, "v-half", (26, 30, 60)),
    ],
)
def test_more_memory_is_never_slower_in_v(blocks, family, memories_gib):
    assert_never_slower(blocks, family, memories_gib)


@pytest.mark.parametrize(
    ("blocks", "family"),
    [
        pytest.param(12, "v-half", marks=pytest.mark.slow),
        *(
            pytest.param(*one, marks=pytest.mark.papers)
            for one in product((8, 12, 15, 19, 23), IN_V)
            if one != (12, "v-half")
        ),
    ],
)
def test_nor_in_finer_steps(blocks, family):
    assert_never_slower(blocks, family, range(15, 62, 3))
