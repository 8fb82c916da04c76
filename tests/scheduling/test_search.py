"""Laws of the schedule search; what it reaches on published rows is in test_search_reference."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from strategies_schedule import placements, seconds
from trainwright._native import _core
from trainwright.errors import InvalidInput
from trainwright.execution.budget import Budget, Progress
from trainwright.plans.schedule import (
    ActionKind,
    Placement,
    Schedule,
    ScheduleCosts,
    ScheduleMemory,
    TransferModel,
)
from trainwright.plans.status import Objective
from trainwright.scheduling.bounds import LimitTooSmall
from trainwright.scheduling.candidates import (
    Backward,
    SearchOutcome,
    SearchQuestion,
    candidates,
    in_modes,
    with_copies,
)
from trainwright.scheduling.families import FAMILIES, FamilyRequest, generate
from trainwright.scheduling.orders import cut_stages, one_at_a_time
from trainwright.scheduling.search import lower_bound, search_schedule
from trainwright.scheduling.simulate import (
    native_costs,
    native_orders,
    simulate,
    timeline_faults,
    validate,
)

F, I, W, B, R, *_ = ActionKind  # noqa: E741


def question_of(placement: Placement, **options: object) -> SearchQuestion:
    settled = {
        "costs": ScheduleCosts.of(placement, forward_s=3, input_grad_s=4, weight_grad_s=2),
        "num_microbatches": 6,
        "evaluations": 300,
        **options,
    }
    return SearchQuestion(placement=placement, num_ranks=placement.num_ranks, **settled)


def found(question: SearchQuestion) -> SearchOutcome:
    outcome = search_schedule(question, budget=Budget())
    assert isinstance(outcome, SearchOutcome)
    return outcome


@st.composite
def questions(draw: st.DrawFn) -> SearchQuestion:
    """Any placement, per-stage times, byte limits per rank, counted limits, either objective."""
    placement = draw(placements(max_ranks=3, max_stages=5))
    stages, ranks = placement.num_stages, placement.num_ranks
    times = st.lists(seconds(), min_size=stages, max_size=stages)
    sizes = draw(st.lists(st.sampled_from([1.0, 2.0, 3.5]), min_size=stages, max_size=stages))
    least = [sum(sizes[s] for s in owned) for owned in placement.stages_of_rank]
    slack = st.sampled_from([0.0, 1.0, 4.0, math.inf])
    limits = [need + draw(slack) for need in least]
    freed_by_i = draw(st.sampled_from([0.0, 0.25, 1.0]))
    memory = ScheduleMemory.of(
        placement,
        forward_bytes=sizes,
        input_grad_bytes=[-freed_by_i * size for size in sizes],
        weight_grad_bytes=[(freed_by_i - 1.0) * size for size in sizes],
        limit_bytes=limits,
    )
    most = max(map(len, placement.stages_of_rank))
    split = (draw(times), draw(times))
    costs = ScheduleCosts.of(
        placement,
        forward_s=draw(times),
        input_grad_s=split[0],
        weight_grad_s=split[1],
        backward_s=draw(st.sampled_from([None, np.add(*split) * 0.75])),
        recompute_s=0.5,
        transfer_s=draw(seconds()) if stages > 1 else [],
        offload_s=draw(times),
        reload_s=draw(st.sampled_from([None, 0.5])),
        memory=memory,
        transfer_model=draw(st.sampled_from(TransferModel)),
    )
    return SearchQuestion(
        placement=placement,
        num_ranks=ranks,
        num_microbatches=draw(st.integers(1, 5)),
        costs=costs,
        max_activations=draw(st.sampled_from([None, most, most + 2])),
        objective=draw(st.sampled_from(Objective)),
        backward=draw(st.sampled_from(Backward)),
        recompute_saved_bytes=draw(st.sampled_from([None, 0.5])),
        offload=draw(st.booleans()),
        evaluations=draw(st.sampled_from([1, 40, 200])),
    )


@cases(60)
@given(questions())
def test_every_answer_is_legal_within_limits_and_not_below_its_bound(question):
    outcome = search_schedule(question, budget=Budget())
    if isinstance(outcome, LimitTooSmall):
        assert outcome.needed > outcome.limit
        return
    validate(outcome.schedule)
    assert outcome.timeline.fits
    if question.max_activations is not None:
        assert max(outcome.schedule.peak_activations) <= question.max_activations
    again = simulate(outcome.schedule, outcome.timeline.costs)
    assert question.objective.of(again) == outcome.value_s
    assert outcome.value_s >= outcome.lower_bound_s * (1 - 1e-9)


def searched_by(
    search: Callable[..., _core.FoundOrders],
    question: SearchQuestion,
    work: int,
    starts: Sequence[Schedule] = (),
) -> Schedule | None:
    """What one of the core's searches finds for the question's first candidate."""
    candidate = candidates(question)[0]
    delta, transient, room = candidate.resources
    costs = candidate.costs
    problem = _core.StreamProblem(
        rank_of_stage=np.array(candidate.placement.rank_of_stage, np.int32),
        num_ranks=candidate.placement.num_ranks,
        num_microbatches=question.num_microbatches,
        duration_s=costs.duration_s,
        forward_transfer_s=costs.forward_transfer_s,
        backward_transfer_s=costs.backward_transfer_s,
        fused=candidate.fused,
        recomputed=candidate.recomputed,
        resource_delta=delta,
        resource_transient=transient,
        resource_room=room,
        objective=question.objective.value,
    )
    found = search(
        problem,
        [native_orders(start) for start in starts],
        seed=question.seed,
        work=work,
        stop_at_s=0.0,
        poll=None,
    )
    if not len(found.actions):
        return None
    return Schedule(
        placement=candidate.placement,
        num_microbatches=question.num_microbatches,
        actions=found.actions.reshape(-1, 3),
        rank_offsets=found.rank_offsets,
    )


def test_short_steps_are_searched_for_orders_that_repeat_on_top(monkeypatch):
    placement = Placement.v(4)
    costs = ScheduleCosts.of(placement, forward_s=2, input_grad_s=5, weight_grad_s=4, transfer_s=1)
    question = SearchQuestion(
        placement="v",
        num_ranks=4,
        num_microbatches=8,
        costs=costs,
        max_activations=4,
        evaluations=20_000,
    )
    outcome = found(question)
    monkeypatch.setattr("trainwright.scheduling.search._FEW_ACTIONS", 0)
    without = found(question)
    assert outcome.evaluations >= without.evaluations + 9_900
    assert outcome.value_s <= without.value_s


def check_found(question, candidate, schedule, once):
    """There is an order where one microbatch at a time fits; it is legal and takes no longer."""
    one_fits = candidate.fits(simulate(once, candidate.costs))
    assert (schedule is not None) == one_fits
    if schedule is not None:
        validate(schedule)
        timeline = simulate(schedule, candidate.costs)
        assert candidate.fits(timeline)
        if candidate.costs.transfer_model is TransferModel.FREE:
            alone = simulate(once, candidate.costs)
            assert question.objective.of(timeline) <= question.objective.of(alone) * (1 + 1e-9)


def test_a_weight_gradient_runs_where_there_is_room_for_it():
    placement = Placement.loop(2)
    memory = ScheduleMemory.of(
        placement,
        forward_bytes=[2.0, 4.0],
        input_grad_bytes=[-1.0, 2.0],
        weight_grad_bytes=[-1.0, -6.0],
        transient_bytes={I: [0.0, 2.0], W: [2.0, 0.0]},
        limit_bytes=[3.0, 8.0],
    )
    costs = ScheduleCosts.of(placement, forward_s=[3.0, 1.0], input_grad_s=2.0, memory=memory)
    question = question_of(placement, costs=costs, num_microbatches=4)
    schedule = searched_by(_core.search_schedule, question, 20_000)
    assert schedule is None or simulate(schedule, costs).fits
    outcome = found(question)
    assert outcome.timeline.fits


@cases(40)
@given(questions(), st.integers(3, 9))
def test_orders_that_repeat_are_legal_and_within_limits(question, num_microbatches):
    question = replace(question, num_microbatches=num_microbatches, offload=False)
    candidate = candidates(question)[0]
    schedule = searched_by(_core.search_repeating, question, 20_000)
    once = one_at_a_time(
        candidate.placement,
        num_microbatches,
        fused=candidate.fused,
        recomputed=candidate.recomputed,
    )
    check_found(question, candidate, schedule, once)


@cases(40)
@given(questions(), st.integers(3, 9))
def test_heated_orders_are_legal_within_limits_and_no_longer_than_they_began(question, m):
    question = replace(question, num_microbatches=m, offload=False)
    candidate = candidates(question)[0]
    modes = {"fused": candidate.fused, "recomputed": candidate.recomputed}
    once = one_at_a_time(candidate.placement, m, **modes)
    schedule = searched_by(_core.search_heated, question, 20_000, [once])
    check_found(question, candidate, schedule, once)


def test_small_open_orders_in_other_shapes_are_heated_on_top(monkeypatch):
    placement = Placement.wave(4, virtual_stages=4)
    times = {"forward_s": 33, "input_grad_s": 30, "weight_grad_s": 23, "transfer_s": 1}
    question = SearchQuestion(
        placement=placement,
        num_ranks=4,
        num_microbatches=6,
        costs=ScheduleCosts.of(placement, **times),
        max_activations=9,
        evaluations=20_000,
    )
    heated = found(question)
    monkeypatch.setattr("trainwright.scheduling.search._HEATED_ACTIONS", 0)
    without = found(question)
    assert heated.evaluations >= without.evaluations + 39_000
    assert heated.value_s < without.value_s


def test_long_steps_with_little_memory_repeat_their_middle():
    placement = Placement.v(6)
    times = {"forward_s": 44, "input_grad_s": 53, "weight_grad_s": 46, "transfer_s": 1}
    question = question_of(
        placement,
        costs=ScheduleCosts.of(placement, **times),
        num_microbatches=24,
        max_activations=5,
        evaluations=40_000,
    )
    # Families take 10,036 and 10,275; a search without orders that repeat 9,960 with as much work.
    schedule = searched_by(_core.search_repeating, question, 40_000_000)
    assert schedule is not None
    assert max(schedule.peak_activations) <= 5
    assert simulate(schedule, question.costs).makespan_s < 10_036
    assert found(question).value_s < 9_920


def test_limits_in_bytes_and_in_activations_hold_together():
    placement = Placement.loop(4)
    keeps = [3.0, 1.0, 1.0, 1.0]
    memory = ScheduleMemory.of(
        placement,
        forward_bytes=keeps,
        weight_grad_bytes=[-kept for kept in keeps],
        limit_bytes=6.5,
    )
    costs = ScheduleCosts.of(placement, forward_s=2, input_grad_s=3, weight_grad_s=1, memory=memory)
    options = {"costs": costs, "num_microbatches": 8, "evaluations": 2000}
    both = found(question_of(placement, **options, max_activations=4))
    assert both.timeline.fits
    assert both.value_s == found(question_of(placement, **options)).value_s >= both.lower_bound_s


@pytest.mark.slow
def test_what_does_not_fit_waits_on_the_host_if_the_link_is_quick():
    placement = Placement.loop(8)
    times = {"forward_s": 3, "input_grad_s": 4, "weight_grad_s": 2}
    quick = ScheduleCosts.of(placement, **times, offload_s=1.0)
    options = {"num_microbatches": 32, "max_activations": 4, "evaluations": 50}
    without = found(question_of(placement, costs=quick, **options))
    assert not without.schedule.has_copies
    best = found(question_of(placement, costs=quick, **options, offload=True))
    assert best.schedule.has_copies
    assert timeline_faults(best.timeline) == ()
    assert best.value_s < 0.7 * without.value_s
    assert best.lower_bound_s == 331  # head and work: copies take 64 of it
    assert best.gap < 0.03
    # A link that takes as long as the rank for every activation cannot help with all of them.
    slow = ScheduleCosts.of(placement, **times, offload_s=20.0)
    at_slow = found(question_of(placement, costs=slow, **options, offload=True))
    assert best.value_s < at_slow.value_s <= without.value_s
    assert at_slow.lower_bound_s > best.lower_bound_s


@pytest.mark.slow
def test_orders_with_copies_are_annealed_in_place():
    placement = Placement.v(4)
    times = {"forward_s": 38, "input_grad_s": 42, "weight_grad_s": 41, "offload_s": 43.1}
    options = {"num_microbatches": 8, "max_activations": 3, "offload": True}
    costs = ScheduleCosts.of(placement, **times)
    few, many = (
        found(question_of(placement, costs=costs, **options, evaluations=count))
        for count in (8, 40_000)
    )
    assert many.value_s < 0.97 * few.value_s
    assert many.winner.endswith("moved")
    validate(many.schedule)
    assert timeline_faults(many.timeline) == ()
    assert max(many.schedule.peak_activations) <= 3


@pytest.mark.slow
def test_moves_shorten_long_orders_with_copies_and_both_simulators_agree():
    placement = Placement.wave(8, virtual_stages=4)
    times = {"forward_s": 31, "input_grad_s": 37, "weight_grad_s": 19, "offload_s": 29.9}
    options = {"num_microbatches": 32, "max_activations": 6, "offload": True}
    costs = ScheduleCosts.of(placement, **times)
    few, many = (
        found(question_of(placement, costs=costs, **options, evaluations=count))
        for count in (1, 3000)
    )
    assert many.winner.endswith("moved")
    assert many.value_s < 0.985 * few.value_s
    validate(many.schedule)
    assert timeline_faults(many.timeline) == ()


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("seed", range(6))
def test_moved_orders_take_what_the_simulator_says(objective, seed):
    draw = np.random.default_rng(seed)
    placement = (Placement.v(3), Placement.wave(2, virtual_stages=4), Placement.loop(4))[seed % 3]
    stages = placement.num_stages
    costs = ScheduleCosts.of(
        placement,
        forward_s=draw.uniform(2, 6, stages),
        input_grad_s=draw.uniform(2, 7, stages),
        weight_grad_s=draw.uniform(0, 5, stages),
        transfer_s=float(seed % 2),
        offload_s=draw.uniform(0.2, 6),
    )
    question = question_of(placement, costs=costs, max_activations=4, offload=True)
    candidate = candidates(question)[0]
    whole = np.zeros(stages, np.bool_)
    base = one_at_a_time(placement, question.num_microbatches, fused=whole, recomputed=whole)
    schedule = with_copies(base, candidate, ahead=0)
    before = simulate(schedule, candidate.costs)
    delta, transient, room = candidate.resources
    moved = _core.anneal_moves(
        native_orders(schedule),
        native_costs(candidate.costs),
        resource_delta=delta,
        resource_transient=transient,
        resource_room=room,
        objective=objective.value,
        seed=seed,
        work=100_000,
        stop_at_s=0.0,
        poll=None,
    )
    after = simulate(replace(schedule, actions=moved.actions), candidate.costs)
    assert moved.value_s == pytest.approx(objective.of(after), rel=1e-9)
    assert moved.value_s < 0.9 * objective.of(before)
    assert candidate.fits(after)
    assert timeline_faults(after) == ()


@pytest.mark.parametrize("ahead", [0, 1])
def test_weight_gradients_run_earlier_where_copies_alone_make_no_room(ahead):
    placement = Placement.v(4)
    costs = ScheduleCosts.of(placement, offload_s=0.2)
    request = FamilyRequest(num_ranks=4, num_microbatches=8, virtual_stages=2)
    late = generate("zb-v", request)
    rows = [late.actions[late.rows_of(rank)] for rank in range(4)]
    last = [np.concatenate([own[own[:, 0] != W], own[own[:, 0] == W]]) for own in rows]
    late = Schedule.of_ranks(last, placement=placement, num_microbatches=8)
    question = question_of(
        placement, costs=costs, num_microbatches=8, max_activations=4, offload=True
    )
    candidate = candidates(question)[0]
    assert not candidate.fits(simulate(with_copies(late, candidate, ahead=ahead), costs))
    paged = with_copies(late, candidate, ahead=ahead, early=True)
    validate(paged)
    assert candidate.fits(simulate(paged, costs))
    for rank, own in enumerate(last):  # all else keeps its order, and so do weight gradients
        order = paged.actions[paged.rows_of(rank)]
        for kinds in ((F, I), (W,)):
            kept = order[np.isin(order[:, 0], kinds)]
            assert np.array_equal(kept, own[np.isin(own[:, 0], kinds)])


def test_two_stages_of_a_rank_fit_one_at_a_time_where_the_other_is_on_the_host():
    placement = Placement.loop(3, virtual_stages=2)
    too_little = question_of(placement, max_activations=1)
    assert search_schedule(too_little, budget=Budget()).needed == 2
    costs = ScheduleCosts.of(placement, offload_s=0.5)
    outcome = found(question_of(placement, costs=costs, max_activations=1, offload=True))
    validate(outcome.schedule)
    assert max(outcome.schedule.peak_activations) == 1


@cases(25)
@given(questions())
def test_the_same_question_has_the_same_answer(question):
    first, second = (search_schedule(question, budget=Budget()) for _ in range(2))
    if isinstance(first, LimitTooSmall):
        assert first == second
        return
    assert first.schedule == second.schedule
    assert first.winner == second.winner
    assert first.evaluations == second.evaluations


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize(
    "limit",
    [4, *(pytest.param(limit, marks=pytest.mark.slow) for limit in (6, 8, None))],
)
def test_no_family_within_the_limit_is_shorter(limit, objective):
    for placement in (Placement.v(4), Placement.loop(4), Placement.loop(4, virtual_stages=2)):
        chunks = placement.num_stages // 4
        times = 1.0 + 0.25 * np.arange(placement.num_stages)
        costs = ScheduleCosts.of(placement, forward_s=times, weight_grad_s=times / 2)
        request = FamilyRequest(
            num_ranks=4,
            num_microbatches=8,
            virtual_stages=chunks,
            max_activations=limit,
            costs=costs,
        )
        outcome = found(
            question_of(
                placement,
                costs=costs,
                num_microbatches=8,
                max_activations=limit,
                objective=objective,
                evaluations=20,
            )
        )
        compared = 0
        for family in FAMILIES.values():
            if not family.is_plain or list(family.rules(request)):
                continue
            if family.place(request) != placement:
                continue
            schedule = family.generate(request)
            if schedule is None or (limit is not None and max(schedule.peak_activations) > limit):
                continue
            compared += 1
            assert outcome.value_s <= objective.of(simulate(schedule, costs)) * (1 + 1e-12)
        assert compared or placement.is_v or limit is not None


def test_more_evaluations_never_give_a_longer_schedule():
    placement = Placement.v(4)
    values = [
        found(question_of(placement, max_activations=4, evaluations=n)).value_s for n in (1, 20_000)
    ]
    assert values[1] < values[0]


def test_known_schedules_are_starts():
    placement = Placement.v(4)
    patient = found(question_of(placement, max_activations=4, evaluations=20_000))
    question = question_of(placement, max_activations=4, evaluations=1)
    hasty = search_schedule(question, budget=Budget(), known=[patient.schedule])
    assert isinstance(hasty, SearchOutcome)
    assert hasty.value_s <= patient.value_s < found(question).value_s


def test_uniform_v_schedules_reach_the_closed_form():
    """6m + 6p - 1 - 3k slots at limit k (published for the span; p = 4, m = 8: 59, 53)."""
    for limit in (4, 6):
        placement = Placement.v(4)
        outcome = found(
            question_of(
                placement,
                costs=ScheduleCosts.of(placement),
                num_microbatches=8,
                max_activations=limit,
                objective=Objective.SPAN,
                evaluations=20_000,
            )
        )
        assert outcome.value_s <= 6 * 8 + 6 * 4 - 1 - 3 * limit


def test_unequal_stages_end_at_the_bound_where_memory_allows():
    """At twice the ranks' number of activations, the busiest rank never waits after its head."""
    placement = Placement.loop(4)
    times = np.array([1.15, 1.0, 1.0, 1.4])
    costs = ScheduleCosts.of(
        placement, forward_s=times, input_grad_s=times, weight_grad_s=0.7 * times, transfer_s=0.02
    )
    outcome = found(
        question_of(
            placement, costs=costs, num_microbatches=12, max_activations=8, evaluations=4000
        )
    )
    assert outcome.gap < 1e-9
    assert outcome.value_s == pytest.approx(12 * 2.7 * 1.4 + 1.15 + 1 + 1 + 3 * 0.02)


def test_free_placement_beats_one_chunk_per_rank():
    placement = Placement.loop(4)
    costs = ScheduleCosts.of(placement, forward_s=[1, 1, 1, 2])
    options = {"costs": costs, "max_activations": 4, "evaluations": 2000}
    one_chunk = found(question_of(placement, **options))
    free = found(SearchQuestion(placement="any", num_ranks=4, num_microbatches=6, **options))
    assert free.value_s < one_chunk.value_s
    assert free.tried > 1
    stages_per_original = free.schedule.placement.num_stages // 4
    assert max(free.schedule.peak_activations) <= 4 * stages_per_original


def test_the_bound_on_all_pipelines_holds_for_each_of_them():
    costs = ScheduleCosts.of(Placement.loop(2), forward_s=[1, 2], transfer_s=0.25)
    options = {"num_ranks": 2, "num_microbatches": 3, "evaluations": 500}
    everything = found(SearchQuestion(placement="any", costs=costs, **options))
    for parts in range(1, 5):
        finer = cut_stages(costs, parts)
        for place in (Placement.loop, Placement.wave):
            placement = place(2, virtual_stages=parts)
            one = found(SearchQuestion(placement=placement, costs=finer, **options))
            assert everything.lower_bound_s <= one.lower_bound_s * (1 + 1e-9)


def test_the_bound_with_recompute_holds_whichever_stages_recompute():
    placement = Placement.v(2)
    memory = ScheduleMemory.of(
        placement,
        forward_bytes=4.0,
        input_grad_bytes=-1.0,
        weight_grad_bytes=-3.0,
        limit_bytes=9.0,
    )
    costs = ScheduleCosts.of(placement, recompute_s=1.0, memory=memory)
    options = {"placement": placement, "num_ranks": 2, "num_microbatches": 4, "evaluations": 300}
    question = SearchQuestion(costs=costs, recompute_saved_bytes=3.0, **options)
    outcome = found(question)
    for chosen in itertools.product([0.0, 3.0], repeat=4):
        one = found(SearchQuestion(costs=costs, recompute_saved_bytes=chosen, **options))
        assert outcome.lower_bound_s <= one.value_s * (1 + 1e-9)


def test_the_bound_with_recompute_holds_where_without_it_nothing_fits():
    placement = Placement.loop(1, virtual_stages=2)
    memory = ScheduleMemory.of(
        placement, forward_bytes=4.0, weight_grad_bytes=-4.0, limit_bytes=7.5
    )
    costs = ScheduleCosts.of(placement, recompute_s=3.0, memory=memory)
    options = {"costs": costs, "evaluations": 100}
    assert isinstance(
        search_schedule(question_of(placement, **options), budget=Budget()), LimitTooSmall
    )
    outcome = found(question_of(placement, recompute_saved_bytes=3.0, **options))
    of_one_stage = found(question_of(placement, recompute_saved_bytes=[3.0, 0.0], **options))
    assert outcome.lower_bound_s <= of_one_stage.value_s < outcome.value_s


def test_a_fused_backward_is_chosen_where_splitting_costs_more_than_it_brings():
    placement = Placement.loop(2)
    costs = ScheduleCosts.of(placement, input_grad_s=2, weight_grad_s=2, backward_s=2.5)
    outcome = found(question_of(placement, costs=costs))
    assert (outcome.schedule.actions[:, 0] == B).any()
    split = found(question_of(placement, costs=costs, backward=Backward.SPLIT))
    assert not (split.schedule.actions[:, 0] == B).any()
    assert outcome.value_s < split.value_s


def test_recompute_makes_room_for_a_schedule_that_would_not_fit():
    placement = Placement.loop(2)
    memory = ScheduleMemory.of(placement, forward_bytes=10, weight_grad_bytes=-10, limit_bytes=16)
    costs = ScheduleCosts.of(placement, recompute_s=1.0, memory=memory)
    plain = found(question_of(placement, costs=costs))
    recomputing = found(question_of(placement, costs=costs, recompute_saved_bytes=9.0))
    assert (recomputing.schedule.actions[:, 0] == R).any()
    assert recomputing.value_s < plain.value_s
    assert recomputing.timeline.fits


def test_modes_change_backwards_and_nothing_else():
    schedule = generate("1f1b", FamilyRequest(num_ranks=2, num_microbatches=2))
    split, both = np.zeros(2, np.bool_), np.ones(2, np.bool_)
    as_split = in_modes(schedule, fused=split, recomputed=np.array([False, True]))
    assert list(map(str, as_split.order(0))) == ["0F0", "0F1", "0I0", "0W0", "0I1", "0W1"]
    first, second = ["1F0", "1R0", "1I0", "1W0"], ["1F1", "1R1", "1I1", "1W1"]
    assert list(map(str, as_split.order(1))) == first + second
    assert in_modes(as_split, fused=both, recomputed=split) == schedule


def test_a_limit_below_one_microbatch_names_the_minimum():
    placement = Placement.v(3)
    outcome = search_schedule(question_of(placement, max_activations=1), budget=Budget())
    assert outcome == LimitTooSmall(rank=0, needed=2, limit=1, unit="activations")
    assert outcome.status.exit_code == 3


def test_an_interrupted_search_still_answers():
    budget = Budget()
    budget.interrupt()
    question = question_of(Placement.v(4), max_activations=5, evaluations=1_000_000)
    outcome = search_schedule(question, budget=budget)
    assert isinstance(outcome, SearchOutcome)
    assert outcome.interrupted
    validate(outcome.schedule)


def test_an_interrupted_search_seeks_no_bound_that_takes_long():
    placement = Placement.v(6)
    costs = ScheduleCosts.of(
        placement, forward_s=54, input_grad_s=80, weight_grad_s=51, transfer_s=1
    )
    question = question_of(
        placement, costs=costs, num_microbatches=16, max_activations=5, evaluations=1
    )
    budget, polls = Budget(), itertools.count(1)

    def press(_: Progress) -> None:
        if next(polls) == 2:
            budget.interrupt()

    budget.on_progress = press
    outcome = search_schedule(question, budget=budget)
    assert isinstance(outcome, SearchOutcome)
    assert outcome.interrupted
    assert next(polls) < 20
    assert outcome.bound == lower_bound(question, candidates(question)[0], num_labels=0)
    assert outcome.bound.value_s < found(question).bound.value_s <= outcome.value_s


def test_an_order_that_annealing_found_does_not_bear_the_name_of_a_family():
    # As long as the order that it began with where transfers are free, and shorter where they
    # block: it was named after the first of the families.
    placement = Placement.loop(4, virtual_stages=2)
    costs = ScheduleCosts.of(
        placement,
        forward_s=[4, 4, 1, 6, 1, 4, 3, 4],
        input_grad_s=[3, 5, 1, 4, 2, 5, 1, 1],
        weight_grad_s=[1, 2, 3, 3, 4, 6, 1, 3],
        transfer_s=[0, 0, 2, 0, 1, 1, 0],
        transfer_model=TransferModel.BLOCKING,
        blocking_fraction=1.0,
    )
    question = question_of(placement, costs=costs, num_microbatches=4, evaluations=3, seed=2448)
    outcome = found(question)
    request = FamilyRequest(num_ranks=4, num_microbatches=4, virtual_stages=2, costs=costs)
    families = ("interleaved", "depth-first", "breadth-first", "gis", "gis-h")
    named = [simulate(generate(name, request), costs).makespan_s for name in families]
    assert outcome.value_s < min(named)
    assert outcome.winner == "annealed words"


def test_questions_that_do_not_fit_together_are_refused():
    costs = ScheduleCosts.of(Placement.v(4))
    for placement, fault in (
        (Placement.loop(4), "placement: must have 4 ranks and 8 stages"),
        ("zigzag", 'placement: must be one of v, loop, wave, any, got "zigzag"'),
    ):
        with pytest.raises(InvalidInput, match=fault):
            SearchQuestion(placement=placement, num_ranks=4, num_microbatches=1, costs=costs)
    with pytest.raises(InvalidInput, match="costs: must be of 12 stages for V, got 18"):
        SearchQuestion(
            placement="v",
            num_ranks=6,
            num_microbatches=1,
            costs=ScheduleCosts.of(Placement.loop(6, virtual_stages=3)),
        )
