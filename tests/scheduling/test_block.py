"""Building blocks: what the block says holds for the schedule it repeats to."""

from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies_schedule import placements
from trainwright._native import _core
from trainwright.errors import InvalidInput
from trainwright.plans.schedule import (
    Action,
    ActionKind,
    Placement,
    ScheduleCosts,
    ScheduleMemory,
)
from trainwright.plans.status import Objective
from trainwright.scheduling import BuildingBlock, Pace, path_block, repeat
from trainwright.scheduling.block import (
    PERIOD,
    blocks_within,
    in_flight,
    repeated_order,
    rewritten_order,
    timed_block,
    v_min_block,
    whole_order,
)
from trainwright.scheduling.families.family import FamilyRequest
from trainwright.scheduling.families.interleaved import gis_block
from trainwright.scheduling.families.v_shape import one_f_one_b_block as one_f_one_b_v_block
from trainwright.scheduling.families.v_shape import (
    v_half_activations,
    v_min_activations,
    v_min_order,
)
from trainwright.scheduling.simulate import simulate, validate
from trainwright.scheduling.weight_grads import best_of

F, I, W, B, R, *_ = ActionKind  # noqa: E741

paces = st.builds(Pace, st.integers(1, 5), st.integers(1, 3), st.integers(0, 3))
V_MIN_ON_TWO = BuildingBlock.of(
    Placement.v(2),
    period_slots=6,
    forward=[0, 1, 2, 3],
    input_grad=[7, 6, 5, 4],
    weight_grad=[8, 10, 9, 5],
)


def early_starts(block):
    """Actions that start before their input is there (microbatch = place in the group).

    They only wait in the schedule, so periods become longer than the block says; or the orders
    deadlock, which `validate` tells.
    """
    ends = {kind: slots + block.length_slots[kind] for kind, slots in block.start_slots.items()}
    for kind, slots in block.start_slots.items():
        ready = np.full_like(slots, -np.inf)
        if kind is F:
            ready[1:] = ends[F][:-1]
        elif kind is W:
            ready = ends[I]
        else:
            ready[:-1], ready[-1] = ends[kind][1:], ends[F][-1]
        for stage, member in np.argwhere(slots < ready - 1e-9).tolist():
            yield Action(kind, stage, member)


def two_stages(**changes: list[float]) -> dict[str, object]:
    offsets = {"forward": [0, 1], "input_grad": [3, 2], "weight_grad": [4, 3], **changes}
    return {"placement": Placement.loop(2), "period_slots": 3, **offsets}


@given(placements(), paces, st.integers(1, 6))
def test_a_walk_gives_legal_schedules_without_collisions_or_lost_slots(placement, pace, m):
    block = path_block(placement, pace)
    assert not list(block.collisions())
    assert not list(early_starts(block))
    assert block.bubble_slots == 0
    validate(repeat(block, m))


@given(placements(), paces, st.integers(0, 9))
def test_a_long_schedule_holds_what_the_block_says(placement, pace, extra):
    shortest = path_block(placement, pace).period_slots
    block = path_block(placement, pace, period_slots=int(shortest) + extra)
    enough = 2 + int(block.lifespan_slots.max() // block.period_slots)
    peaks = repeat(block, 2 * enough).peak_activations
    assert peaks == block.peak_activations
    assert repeat(block, 1).peak_activations <= peaks


@given(placements(), paces, st.integers(1, 8), st.integers(0, 5))
def test_a_schedule_is_no_longer_than_its_block_says(placement, pace, m, extra):
    shortest = path_block(placement, pace).period_slots
    block = path_block(placement, pace, period_slots=int(shortest) + extra)
    schedule = repeat(block, m)
    one = max(slots.max() + 1 for slots in block.start_slots.values())
    makespan_s = simulate(schedule, ScheduleCosts.of(placement)).makespan_s
    assert makespan_s <= (m - 1) * block.period_slots + one
    assert block.bubble_slots == extra


@pytest.mark.parametrize("num_ranks", range(2, 13))
def test_whole_backwards_in_v_collide_nowhere(num_ranks):
    block = one_f_one_b_v_block(Placement.v(num_ranks))
    assert not list(block.collisions())
    assert max(block.peak_activations) == 2 * (2 * num_ranks // 3) + 2


@given(st.integers(2, 9), st.integers(1, 3), st.data())
def test_groups_fill_every_slot_of_a_period(num_ranks, chunks, data):
    group = data.draw(st.integers(-(-num_ranks // 2), num_ranks))
    placement = Placement.loop(num_ranks, virtual_stages=chunks)
    block = gis_block(placement, group=group, members=group)
    assert block.group == group
    assert block.bubble_slots == 0
    schedule = repeat(block, 3 * group)
    validate(schedule)
    assert max(schedule.peak_activations) == group * (chunks - 1) + num_ranks


def test_collisions_name_the_rank_and_both_actions():
    clash = BuildingBlock.of(**two_stages(period_slots=3, input_grad=[3, 2], weight_grad=[4, 3]))
    assert list(clash.collisions()) == [(0, Action(F, 0, 0), Action(I, 0, 0))]


def test_a_block_of_two_ranks_by_hand():
    assert not list(V_MIN_ON_TWO.collisions())
    assert not list(early_starts(V_MIN_ON_TWO))
    assert V_MIN_ON_TWO.lifespan_slots.ravel().tolist() == [9, 10, 8, 3]
    assert V_MIN_ON_TWO.peak_activations == (2, 4)
    assert V_MIN_ON_TWO.bubble_slots == 0
    first, second = (repeat(V_MIN_ON_TWO, 1).order(rank) for rank in (0, 1))
    assert " ".join(map(str, first)) == "0F0 3F0 3I0 3W0 0I0 0W0"
    assert " ".join(map(str, second)) == "1F0 2F0 2I0 1I0 2W0 1W0"


@pytest.mark.parametrize(
    ("offsets", "early"),
    [
        ({}, []),
        ({"forward": [0, 0.5]}, [(F, 1)]),
        ({"input_grad": [2, 2]}, [(I, 0)]),
        ({"input_grad": [3, 1]}, [(I, 1)]),
        ({"weight_grad": [4, 2]}, [(W, 1)]),
        ({"backward": [3, 2], "input_grad": None, "weight_grad": None}, [(B, 0)]),
    ],
)
def test_actions_before_their_input_are_named(offsets, early):
    block = BuildingBlock.of(**two_stages(**offsets))
    assert list(early_starts(block)) == [Action(kind, stage, 0) for kind, stage in early]


def test_a_longer_period_is_a_bubble_per_microbatch():
    block = BuildingBlock.of(**two_stages(period_slots=5))
    assert block.bubble_slots == 2
    assert block.peak_activations == (1, 1)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"period_slots": 0}, "period_slots: must be > 0, got 0"),
        ({"input_grad": None}, "start_slots: must hold F and B, F and I, or F, I and W, got F, W"),
        ({"backward": [3, 2]}, "start_slots: must hold F and B, F and I, or F, I and W"),
        ({"forward": [0, 1, 2, 3]}, "start_slots: must have one shape for all kinds"),
        ({"forward": [0, np.nan]}, "start_slots: must be finite"),
    ],
)
def test_offsets_that_cannot_be_are_refused(changes, problem):
    with pytest.raises(InvalidInput) as refused:
        BuildingBlock.of(**two_stages(**changes))
    assert str(refused.value).startswith(problem)


# Blocks of the times that stages have
# ------------------------------------

seconds = st.floats(0.1, 3.0)


@st.composite
def v_pipelines(draw: st.DrawFn) -> tuple[ScheduleCosts, np.ndarray]:
    """Times of a V on a few ranks, and how many activations each may hold."""
    p = draw(st.integers(1, 6))
    stages = st.lists(seconds, min_size=2 * p, max_size=2 * p)
    costs = ScheduleCosts.of(
        Placement.v(p),
        forward_s=draw(stages),
        input_grad_s=draw(stages),
        weight_grad_s=draw(stages),
        transfer_s=draw(st.sampled_from([0.0, 0.1])),
    )
    limits = draw(st.lists(st.integers(2, 2 * p + 2), min_size=p, max_size=p))
    return costs, np.array(limits, np.float64)


def cyclic_v(costs, limits, *, exact, longest_period_s=100.0):
    """Period and starts [p, 6] of F0, F1, I1, I0, W1 and W0, activations counted."""
    p = len(limits)
    near, far = np.arange(p), np.arange(2 * p)[: -p - 1 : -1]
    stages = (near, far, far, near, far, near)
    lengths = costs.duration_s
    period_s, starts = _core.cyclic_v(
        duration_s=np.stack(
            [lengths[kind, own] for kind, own in zip((F, F, I, I, W, W), stages, strict=True)], 1
        ),
        forward_transfer_s=costs.forward_transfer_s,
        backward_transfer_s=costs.backward_transfer_s,
        delta_bytes=np.tile([1.0, 1.0, 0.0, 0.0, -1.0, -1.0], (p, 1)),
        transient_bytes=np.zeros((p, 6)),
        room_bytes=limits,
        longest_period_s=longest_period_s,
        width=4,
        rounds=6,
        exact=exact,
    )
    return period_s, starts.reshape(-1, 6)


@given(v_pipelines(), st.booleans())
def test_a_timed_block_is_a_path_that_repeats_within_its_limits(drawn, exact):
    costs, limits = drawn
    p = len(limits)
    near = np.arange(p)
    period_s, at = cyclic_v(costs, limits, exact=exact)
    if not period_s:
        return  # a limit below what one microbatch after the other needs on its way
    start = {
        **{(F, stage): at[stage, 0] for stage in near},
        **{(F, 2 * p - 1 - rank): at[rank, 1] for rank in near},
        **{(I, 2 * p - 1 - rank): at[rank, 2] for rank in near},
        **{(I, stage): at[stage, 3] for stage in near},
        **{(W, 2 * p - 1 - rank): at[rank, 4] for rank in near},
        **{(W, stage): at[stage, 5] for stage in near},
    }
    end = {key: start[key] + costs.duration_s[key] for key in start}
    hair = 1e-6
    for stage in range(2 * p):
        if stage:
            way_s = costs.forward_transfer_s[stage - 1] if stage != p else 0.0
            back_s = costs.backward_transfer_s[stage - 1] if stage != p else 0.0
            assert start[F, stage] >= end[F, stage - 1] + way_s - hair
            assert start[I, stage - 1] >= end[I, stage] + back_s - hair
        assert start[W, stage] >= end[I, stage] - hair
    assert start[I, 2 * p - 1] >= end[F, 2 * p - 1] - hair
    for rank in range(p):
        own = [(kind, stage) for kind in (F, I, W) for stage in (rank, 2 * p - 1 - rank)]
        # Ten periods of the steady state, one action after the other, and what is held in them.
        runs = sorted(
            (start[key] + j * period_s, end[key] + j * period_s, key)
            for key in own
            for j in range(60)
        )
        assert all(one[1] <= other[0] + hair for one, other in pairwise(runs))
        steps = sorted(
            (when, change)
            for _, stage in own[:2]
            for j in range(60)
            for when, change in (
                (start[F, stage] + j * period_s, 1),
                (end[W, stage] + j * period_s - hair, -1),
            )
        )
        assert max(accumulate(change for _, change in steps)) <= limits[rank]


def test_a_timed_block_is_run_in_turn_where_some_actions_take_no_time():
    """Sums round: what takes no time seemed to end after what waits for it had begun."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        p = int(rng.integers(2, 6))
        lengths = rng.uniform(0.1, 3, (3, 2 * p)).round(3)
        lengths[rng.integers(0, 2, 3) == 0, 0] = 0.0
        lengths[:2, rng.integers(2 * p)] *= rng.integers(0, 2)
        placement = Placement.v(p)
        costs = ScheduleCosts.of(
            placement,
            forward_s=lengths[0],
            input_grad_s=lengths[1],
            weight_grad_s=lengths[2],
            transfer_s=float(rng.choice([0, 0.1])),
        )
        held = ScheduleMemory.of(placement, limit_bytes=float(rng.integers(p, 2 * p + 3)))
        costs = replace(costs, memory=held)
        for exact in (False, True):
            block = timed_block(costs, longest_period_s=100.0, exact=exact)
            if block is not None:
                simulate(whole_order(block, 3 * p), costs)  # raises where a rank waits for itself


def test_equal_times_lose_nothing_with_the_activations_of_v_half():
    for p in (4, 6, 8):
        costs = ScheduleCosts.of(Placement.v(p))
        held = ScheduleMemory.of(Placement.v(p), limit_bytes=float(v_half_activations(p)))
        block = timed_block(replace(costs, memory=held), longest_period_s=6.5)
        assert block is not None
        slots = np.stack(block.visits)
        assert np.allclose(slots, slots.round())  # as in a period of six slots


def test_no_path_without_pauses_waits_less_than_the_exact_one():
    """Two ranks that are busy all the time: every order of both, and every shift that may be best.

    With no limit all prices are one, so that the sum of all lives is what is least.
    """
    forward_s, weight_grad_s = np.array([2.0, 1.0, 1.5, 1.0]), np.array([1.0, 1.0, 0.5, 0.5])
    input_grad_s = np.array([2.0, 1.5, 2.5, 1.5])
    costs = ScheduleCosts.of(
        Placement.v(2),
        forward_s=forward_s,
        input_grad_s=input_grad_s,
        weight_grad_s=weight_grad_s,
        transfer_s=0.25,
    )
    stages = np.array([[0, 3, 3, 0, 3, 0], [1, 2, 2, 1, 2, 1]])
    lasts = costs.duration_s[np.array([F, F, I, I, W, W]), stages]
    period = 8.0
    assert np.allclose(lasts.sum(axis=1), period)
    _, found = cyclic_v(costs, np.full(2, np.inf), exact=True, longest_period_s=period + 1)

    def lives(at: np.ndarray) -> float:
        return float((at[:, 5] + lasts[:, 5] - at[:, 0] + at[:, 4] + lasts[:, 4] - at[:, 1]).sum())

    def next_at(phase: float, ready: float) -> float:
        return ready + (phase - ready + 1e-9) % period - 1e-9

    def run(phases: np.ndarray) -> float:
        """The sum of all lives of one microbatch, each action at its phase."""
        at, now = np.zeros((2, 6)), phases[0, 0]
        path = ((0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (1, 2), (1, 3), (0, 3))
        for (rank, letter), (to, _) in zip(path, (*path[1:], (0, 0)), strict=True):
            at[rank, letter] = next_at(phases[rank, letter], now)
            now = at[rank, letter] + lasts[rank, letter] + 0.25 * (rank != to)
        for rank in range(2):
            for input_grad, weight_grad in ((2, 4), (3, 5)):
                ready = at[rank, input_grad] + lasts[rank, input_grad]
                at[rank, weight_grad] = next_at(phases[rank, weight_grad], ready)
        return lives(at)

    def phases_of(rank: int) -> list[np.ndarray]:
        orders = [(0, *rest) for rest in permutations(range(1, 6))]
        ends = [np.concatenate(([0.0], np.cumsum(lasts[rank, list(o)])[:-1])) for o in orders]
        return [own[np.argsort(order)] for order, own in zip(orders, ends, strict=True)]

    least = min(
        run(np.stack((one, other + shift)))
        for one in phases_of(0)[::7]
        for other in phases_of(1)[::3]
        for shift in np.arange(0.0, period, 0.25)
    )
    assert lives(found) <= least + 1e-6


@pytest.mark.parametrize(("spread", "is_found"), [(0.0, True), (1e-3, False)])
def test_the_exact_path_is_left_out_where_too_many_ranks_differ(spread, is_found):
    p = 40
    forward_s = 1 + spread * np.arange(2 * p)
    costs = ScheduleCosts.of(Placement.v(p), forward_s=forward_s)
    period_s, _ = cyclic_v(costs, np.full(p, np.inf), exact=True)
    assert (period_s > 0) == is_found


def test_a_timed_block_is_shorter_where_times_differ():
    """With recomputation an input gradient is longer than a forward: V-Min's slots do not fit."""
    p, m = 8, 48
    costs = ScheduleCosts.of(Placement.v(p), input_grad_s=2.4)
    order = partial(
        best_of,
        placement=Placement.v(p),
        costs=replace(
            costs,
            memory=ScheduleMemory.of(Placement.v(p), limit_bytes=float(v_min_activations(p))),
        ),
        num_microbatches=m,
        objective=Objective.MAKESPAN,
    )
    most = v_min_activations(p)
    in_slots = [
        partial(rewritten_order, v_min_block(p), warm_up=None, cool_down=most),
        partial(repeated_order, v_min_block(p)),
    ]
    slots_s = simulate(order(in_slots), costs).makespan_s
    request = FamilyRequest(
        num_ranks=p, num_microbatches=m, costs=costs, objective=Objective.MAKESPAN
    )
    schedule = v_min_order(request)
    assert schedule is not None
    validate(schedule)
    assert max(schedule.peak_activations) <= most
    assert simulate(schedule, costs).makespan_s < 0.93 * slots_s


@given(num_ranks=st.integers(2, 7), more=st.integers(0, 6), num_microbatches=st.integers(1, 20))
def test_what_is_in_flight_are_counts_that_no_other_instant_exceeds(
    num_ranks, more, num_microbatches
):
    for block in blocks_within(num_ranks, v_min_activations(num_ranks) + more):
        near, far = in_flight(block, num_microbatches)
        begun = block.forward_0, block.forward_1
        freed = block.input_grad_0 + 1, block.input_grad_1 + 1
        for rank in range(num_ranks):

            def held(chunk: int, at: int, rank: int = rank) -> int:
                first, last = int(begun[chunk][rank]), int(freed[chunk][rank])  # noqa: B023
                starts = PERIOD * np.arange(num_microbatches)
                return int(((first + starts <= at) & (last + starts > at)).sum())

            at = {int(own[rank]) + PERIOD * m for own in begun for m in range(num_microbatches)}
            every = {(held(0, instant), held(1, instant)) for instant in at}
            most = {
                own
                for own in every
                if not any(o != own and o[0] >= own[0] and o[1] >= own[1] for o in every)
            }
            assert set(zip(near[:, rank].tolist(), far[:, rank].tolist(), strict=True)) == most
