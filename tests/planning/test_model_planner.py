"""Plans of models: legal, within memory, bounded, never slower with more to choose from."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from model_questions import (
    KEEP_ALL,
    ONE,
    SMALL,
    TIGHT,
    best_s,
    cluster_of,
    narrowed,
    planned,
    question,
)
from trainwright.cluster import NetworkLevel
from trainwright.errors import InvalidInput
from trainwright.execution import Budget
from trainwright.planning.question.question import ANY, Allowed, ModelQuestion, Span
from trainwright.planning.reasons.infeasible import diagnose_model
from trainwright.planning.search import search as model_search
from trainwright.planning.search.framework import loosest_of
from trainwright.planning.search.frontier import Shelf
from trainwright.planning.search.orders import plan_per_stage
from trainwright.planning.search.plans import PlanAsk, best_first, least_step_s
from trainwright.planning.search.search import begin_search, plan_model
from trainwright.planning.splits.chain import Split
from trainwright.planning.splits.types import Priced
from trainwright.profile import Recompute


def with_overhead(asked: ModelQuestion, overhead_s: float) -> ModelQuestion:
    (pool,) = asked.cluster.pools
    device = replace(pool.accelerator, step_overhead_s=overhead_s)
    cluster = replace(asked.cluster, pools=(replace(pool, accelerator=device),))
    return replace(asked, cluster=cluster)


TWO_NODES = question(
    "bert-large",
    nodes=2,
    sequence=512,
    schedules=("1f1b", "zb-v"),
    context=ONE,
    pipeline=Span(most=4),
)
CASES = {"small": SMALL, "tight": TIGHT, "two nodes": TWO_NODES}


def planned_case(name: str):
    return planned(CASES[name])


def searched(asked: ModelQuestion, budget: Budget, **options: float) -> model_search.PartSearch:
    """A search that was gone through."""
    begun = begin_search(asked, budget, **options)
    for ask in begun.in_turn():
        begun.search.settle(ask, ask.answer(begun.search.shelf, budget))
    return begun


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_plan_places_every_layer_once_with_one_pair_of_degrees(name):
    asked = CASES[name]
    for found in planned_case(name).priced:
        layers = [layer for stage in found.plan.stages for layer in stage.layers]
        assert layers == [layer.id for layer in found.profile.structure.layers]
        (pair,) = {(s.data_parallel, s.tensor_parallel) for s in found.plan.stages}
        degrees = found.plan.parallelism
        assert pair == (degrees.data, degrees.tensor)
        assert degrees.pipeline * degrees.virtual_stages == len(found.plan.stages)
        assert found.plan.devices_used == degrees.num_devices <= asked.num_devices
        assert found.plan.num_microbatches % degrees.data == 0
        sequences = found.plan.num_microbatches * found.plan.microbatch_size
        assert sequences == asked.workload.global_batch


@pytest.mark.parametrize("name", CASES)
def test_every_plan_fits_into_the_usable_memory(name):
    limit = CASES[name].cluster.accelerator.usable_bytes
    for found in planned_case(name).priced:
        assert found.step.peak_memory_bytes <= limit


@pytest.mark.parametrize("name", CASES)
def test_no_plan_beats_the_bound_of_the_search(name):
    outcome = planned_case(name)
    for found in outcome.priced:
        assert outcome.lower_bound_s <= found.step.step_time_s


@pytest.mark.parametrize("plan", [plan_model, plan_per_stage])
def test_what_every_step_takes_once_is_in_the_bound(plan):
    asked = narrowed(SMALL, schedules=("1f1b",))
    without = plan(asked, Budget())
    found = plan(with_overhead(asked, 5.0), Budget())
    assert found.lower_bound_s == pytest.approx(without.lower_bound_s + 5.0)
    assert found.lower_bound_s <= found.priced[0].step.step_time_s


@pytest.mark.parametrize("name", CASES)
def test_runners_up_are_other_plans_and_no_faster(name):
    priced = planned_case(name).priced
    times = [found.step.step_time_s for found in priced]
    assert times == sorted(times)
    plans = [found.plan for found in priced]
    assert all(plan not in plans[:i] for i, plan in enumerate(plans))


def test_the_same_question_has_the_same_answer():
    again = plan_model(SMALL, Budget())
    assert [p.plan for p in planned(SMALL).priced] == [p.plan for p in again.priced]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("micro_batch", "slow"),
    [
        (None, False),
        (1, False),
        pytest.param(None, True, marks=pytest.mark.papers),
        pytest.param(1, True, marks=pytest.mark.papers),
    ],
)
def test_more_nodes_are_never_slower(slow, micro_batch):
    times = [
        best_s(
            question(
                "bert-large",
                nodes=nodes,
                batch=64,
                sequence=512,
                slow=slow,
                microbatch_size=ANY if micro_batch is None else Span.only(micro_batch),
            )
        )
        for nodes in (1, 2, 3)
    ]
    assert times == sorted(times, reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "families",
    [("1f1b",), pytest.param(None, marks=pytest.mark.papers)],
    ids=["1f1b", "all"],
)
def test_more_memory_is_never_slower(families):
    asked = partial(question, "llama3-8b", batch=16, sequence=4096, schedules=families)
    times = [best_s(asked(memory_gib=size)) for size in (24, 28, 40, 80)]
    # Cuts are chosen for the steady state, so a roomier one may lose a little in the ramps.
    for tighter, roomier in pairwise(times):
        assert roomier <= tighter * 1.02
    assert times[-1] < times[0]


@pytest.mark.parametrize(
    "narrower",
    [
        pytest.param(
            (narrowed(TIGHT, microbatch_size=ONE), narrowed(TIGHT, data=ONE)),
            marks=pytest.mark.slow,
            id="spans",
        ),
        pytest.param(
            (
                narrowed(TIGHT, microbatch_size=Span.only(2)),
                replace(TIGHT, num_devices=7),
                narrowed(TIGHT, recompute=(Recompute.NONE, Recompute.FULL)),
            ),
            marks=pytest.mark.papers,
            id="sizes and modes",
        ),
    ],
)
def test_a_search_that_sees_more_is_never_slower(narrower):
    free = best_s(TIGHT)
    for restricted in narrower:
        assert free <= best_s(restricted) * (1 + 1e-12)


def test_restrictions_hold_in_every_plan():
    small = narrowed(SMALL, schedules=("1f1b",), context=ONE)
    for found in planned(narrowed(small, data=ONE)).priced:
        assert found.plan.parallelism.data == 1
    for found in planned(narrowed(small, tensor=ONE)).priced:
        assert found.plan.parallelism.tensor == 1
    roomy = question("llama3-8b", batch=16, sequence=4096, schedules=("1f1b",), context=ONE)
    for found in planned(narrowed(roomy, recompute=KEEP_ALL)).priced:
        assert {option for s in found.plan.stages for option in s.options} == {"none"}
    for found in planned(narrowed(small, microbatch_size=Span.only(4))).priced:
        assert found.plan.microbatch_size == 4
    for found in planned(replace(small, num_devices=3)).priced:
        assert found.plan.devices_used <= 3


def test_little_memory_makes_layers_recompute():
    options = {option for s in planned(TIGHT).priced[0].plan.stages for option in s.options}
    assert options > {"none"}


def test_a_higher_zero_stage_takes_less_memory():
    asked = question("llama3-8b", batch=32, sequence=1024, num_devices=8, microbatch_size=ONE)
    flat = {"tensor": ONE, "recompute": KEEP_ALL, "schedules": ("1f1b",)}
    peaks = {}
    for stage in range(4):
        outcome = planned(narrowed(asked, zero_stages=(stage,), **flat))
        for found in outcome.priced:
            assert found.plan.parallelism.zero_stage == stage
            degrees = found.plan.parallelism
            key = (degrees.pipeline, degrees.data)
            peaks.setdefault(key, {})[stage] = found.step.peak_memory_bytes
    compared = [by_stage for (_, d), by_stage in peaks.items() if d > 1 and len(by_stage) > 1]
    assert compared
    for by_stage in compared:
        sizes = [by_stage[stage] for stage in sorted(by_stage)]
        assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"num_devices": 0}, "num_devices: must be from 1 to 8, got 0"),
        ({"num_devices": 9}, "num_devices: must be from 1 to 8, got 9"),
        (
            {"allowed": Allowed(microbatch_size=Span.only(5))},
            "microbatch_size: must divide the global batch of 32, got 5",
        ),
    ],
)
def test_a_question_that_breaks_a_rule_is_refused(options, fault):
    with pytest.raises(InvalidInput, match=fault):
        replace(SMALL, **options)


def test_an_interrupted_search_proves_nothing():
    budget = Budget()
    budget.interrupt()
    outcome = plan_model(SMALL, budget)
    assert outcome.priced == ()
    assert outcome.interrupted
    assert not outcome.exhausted
    assert outcome.lower_bound_s <= best_s(SMALL)


def test_a_search_may_stop_after_some_candidates_with_a_valid_bound():
    budget = Budget(on_progress=lambda step: budget.interrupt() if step.best < 1e9 else None)
    outcome = plan_model(TIGHT, budget)
    assert outcome.interrupted
    assert outcome.priced
    assert outcome.lower_bound_s <= best_s(TIGHT) <= outcome.priced[0].step.step_time_s


class TestPerStage:
    """Degrees of their own for every stage."""

    @pytest.mark.slow
    @pytest.mark.parametrize("asked", CASES.values(), ids=CASES)
    def test_the_answer_is_never_slower_than_the_uniform_one(self, asked):
        free = plan_per_stage(asked, Budget())
        assert free.priced[0].step.step_time_s <= best_s(asked)
        assert free.lower_bound_s <= free.priced[0].step.step_time_s
        assert free.priced[0].step.peak_memory_bytes <= asked.cluster.accelerator.usable_bytes

    def test_stages_may_differ(self):
        plans = plan_per_stage(
            question(num_devices=3, batch=8, schedules=("1f1b",)), Budget()
        ).priced
        mixed = [p.plan for p in plans if p.plan.parallelism is None]
        assert any(
            len({(s.data_parallel, s.tensor_parallel) for s in plan.stages}) > 1 for plan in mixed
        )


class TestBudget:
    """A search that has no time left stops, and claims nothing."""

    ASKED = question("llama3-8b", batch=999_983, sequence=2048)
    SMALL = question("llama3-70b", batch=16, sequence=4096, num_devices=4)

    @pytest.mark.parametrize("plan", [plan_model, plan_per_stage])
    @pytest.mark.parametrize("asked", [ASKED, SMALL], ids=["large batch", "too large"])
    def test_without_time_there_is_no_plan_and_no_proof(self, asked, plan):
        found = plan(asked, Budget(time_limit_s=1e-9))
        assert found.priced == ()
        assert not found.exhausted
        assert not found.interrupted
        assert found.considered == found.not_reached
        assert plan is plan_per_stage or found.lower_bound_s == 0

    @pytest.mark.parametrize("polls", [1, 2, 5])
    def test_an_interrupted_search_keeps_what_it_has(self, polls):
        """Interrupted at the n-th sign of life of the planner, so after n − 1 candidates."""
        seen = []

        def listen(progress):
            if progress.stage == "planning":
                seen.append(progress)
                if len(seen) == polls:
                    budget.interrupt()

        budget = Budget(on_progress=listen)
        asked = question(
            "llama3-8b",
            batch=32,
            sequence=8192,
            schedules=("1f1b", "zb-v"),
            context=ONE,
            pipeline=Span(most=4),
        )
        found = plan_model(asked, budget)
        assert found.interrupted
        assert not found.exhausted
        assert len(found.priced) <= polls - 1
        assert found.not_reached > 0
        assert found.considered - found.pruned - found.not_reached <= polls - 1
        full = planned(asked)
        assert 0 < found.lower_bound_s <= full.lower_bound_s
        for one in found.priced:
            assert one.step.step_time_s >= full.priced[0].step.step_time_s

    def test_a_diagnosis_without_time_claims_nothing(self):
        found = diagnose_model(self.SMALL, Budget(time_limit_s=1e-9))
        assert found.binding is None
        assert found.relaxations == ()


def test_equal_times_go_to_less_recomputation_then_devices_then_memory():
    (best, *_) = planned(TIGHT).priced
    (part, *others), (first, *rest) = best.step.stages, best.plan.stages

    def like(number, *, time_s=1.0, recompute_s=0.0, devices=8, memory_bytes=1e12):
        """A plan of its own, told apart by its number of microbatches."""
        memory = replace(part.memory, transient_bytes=memory_bytes)
        changed = replace(part, recompute_s=recompute_s, memory=memory)
        (group,) = first.replicas
        stage = replace(first, replicas=(replace(group, count=devices),))
        plan = replace(best.plan, stages=(stage, *rest), num_microbatches=number, parallelism=None)
        step = replace(best.step, step_time_s=time_s, stages=(changed, *others))
        return replace(best, step=step, plan=plan)

    ranked = (
        like(1),
        like(2, memory_bytes=2e12, time_s=1 - 1e-15),
        like(3, devices=9),
        like(4, recompute_s=1e-3, devices=7),
        like(5, time_s=1 + 1e-9),
    )
    found = best_first(reversed(ranked))
    assert [one.plan.num_microbatches for one in found] == [1, 2, 3, 4, 5]


def test_levels_of_the_network_are_what_the_test_thinks():
    inner, outer = cluster_of(2, slow=True).levels
    assert isinstance(inner, NetworkLevel)
    assert (inner.size, outer.size, outer.bandwidth_bytes_per_s) == (8, 2, 1e9)


@pytest.mark.slow
def test_plans_in_chunks_that_are_left_aside_still_bound_the_search(monkeypatch):
    asked = question(
        "llama3-8b",
        sequence=4096,
        memory_gib=40,
        tensor=ONE,
        context=ONE,
        microbatch_size=ONE,
        pipeline=Span.only(4),
        schedules=("1f1b", "zb-h1", "zb-h2", "interleaved"),
    )
    whole = plan_model(asked, Budget())
    assert whole.priced[0].candidate.virtual_stages > 1
    monkeypatch.setattr(model_search, "_MOST_IN_CHUNKS", 0)
    some = plan_model(asked, Budget())
    best_s = whole.priced[0].step.step_time_s
    assert some.lower_bound_s <= best_s < some.priced[0].step.step_time_s
    assert some.not_reached > 0
    assert some.not_reached + some.pruned + len(some.priced) <= some.considered
    # Of plans with one stage per rank nothing is left out.
    chains = plan_model(narrowed(asked, schedules=("1f1b", "zb-h1", "zb-h2")), Budget())
    assert some.priced[0].step.step_time_s <= chains.priced[0].step.step_time_s * (1 + 1e-9)


def test_a_part_of_a_space_is_proved_no_further_than_the_whole_asks():
    """Its bound holds, and is as high as is of use."""
    whole = plan_model(SMALL, Budget())
    best_s, bound_s = whole.priced[0].step.step_time_s, whole.lower_bound_s
    for share in (0.5, 0.9):
        led = searched(SMALL, Budget()).proved(Budget(), best_s=share * bound_s)
        assert led.lower_bound_s == pytest.approx(share * bound_s)
        enough = searched(SMALL, Budget()).proved(Budget(), enough_s=share * bound_s)
        assert share * bound_s * (1 - 0.01) <= enough.lower_bound_s <= best_s
        assert [one.plan for one in led.priced] == [one.plan for one in whole.priced]
    assert searched(SMALL, Budget()).unproved().lower_bound_s == 0


def test_where_a_figure_is_not_beaten_nobody_says_that_nothing_fits():
    """A plan of another question is to beat; a plan of another part is of the same space."""
    figure_s = 0.5 * plan_model(SMALL, Budget()).lower_bound_s
    led = searched(SMALL, Budget(), to_beat=figure_s)
    assert not led.proved(Budget()).priced
    assert not led.proved(Budget()).exhausted
    assert not led.unproved().exhausted
    assert searched(SMALL, Budget()).proved(Budget(), best_s=figure_s).exhausted


def test_a_part_without_a_plan_bounds_the_whole_unless_nothing_in_it_fits():
    whole = plan_model(SMALL, Budget())
    below_s = 0.9 * whole.lower_bound_s
    bounded = replace(whole, priced=(), exhausted=True, lower_bound_s=below_s)
    nothing = replace(bounded, lower_bound_s=0.0)
    assert loosest_of([whole, bounded]).lower_bound_s == below_s
    assert loosest_of([whole, nothing]) is whole
    assert loosest_of([whole, replace(nothing, exhausted=False)]).lower_bound_s == 0


@pytest.mark.slow
def test_a_plan_in_v_whose_pipeline_is_too_long_is_not_priced():
    asked = narrowed(
        SMALL, schedules=("zb-v",), pipeline=Span.only(2), data=ONE, microbatch_size=Span.only(4)
    )
    (best, *_) = plan_model(asked, Budget()).priced
    stages = best.plan.stages
    again = partial(PlanAsk, best.candidate, _split_of(best))
    pipeline_s, shelf = least_step_s(best.step, asked.cluster.accelerator), Shelf.of(asked)
    assert again(pipeline_s * (1 - 1e-9)).answer(shelf, Budget()) is None
    found = again(pipeline_s * (1 + 1e-9)).answer(shelf, Budget())
    assert found.step == replace(best.step, communication=())  # which is priced where it is told
    assert found.plan.stages == stages


def _split_of(found: Priced) -> Split:
    """The split that a plan runs."""
    costs, cuts, chosen = found.profile.costs, [0], []
    class_of = {layer.id: layer.layer_class for layer in found.profile.structure.layers}
    for stage in found.plan.stages:
        cuts.append(cuts[-1] + len(stage.layers))
        counts = [0] * costs.num_rows
        for layer, option in zip(stage.layers, stage.options, strict=True):
            rows = costs.rows_of(class_of[layer])
            counts[next(row for row in rows if costs.option_ids[row] == option)] += 1
        chosen.append(tuple(counts))
    return Split(bound_s=0.0, cuts=tuple(cuts), chosen=tuple(chosen))
