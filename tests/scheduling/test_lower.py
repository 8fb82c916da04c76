"""Lowering: laws over random schedules, and what is written for small ones."""

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies_schedule import placements, schedules, schedules_with_costs, split_backward
from trainwright.errors import InvalidInput
from trainwright.plans.lowered import LoweredAction, LoweredKind, LoweredSchedule
from trainwright.plans.schedule import Action, ActionKind, Placement, Schedule, ScheduleCosts
from trainwright.scheduling.families import FamilyRequest, generate
from trainwright.scheduling.lower import lower, validate_lowered

SENDS = (LoweredKind.SEND_F, LoweredKind.SEND_B)
RECEIVES = (LoweredKind.RECV_F, LoweredKind.RECV_B)


def written(*orders: str, pairs: tuple[int, ...] = ()) -> Schedule:
    rows = [[Action.parse(text) for text in order.split()] for order in orders]
    return Schedule.from_orders(rows, pairs=pairs)


def lines(lowered: LoweredSchedule) -> list[str]:
    return [" ".join(map(str, lowered.order(rank))) for rank in range(lowered.num_ranks)]


def one_f_one_b(num_ranks: int, num_microbatches: int) -> Schedule:
    request = FamilyRequest(num_ranks=num_ranks, num_microbatches=num_microbatches)
    return generate("1f1b", request)


@given(schedules_with_costs(), st.sampled_from([None, 0, 1, 3]), st.integers(1, 3), st.data())
def test_lowered_orders_keep_all_laws(drawn, window, active, data):
    schedule, costs = drawn
    sharded = data.draw(st.sets(st.integers(0, schedule.placement.num_stages - 1)))
    lowered = lower(
        schedule, costs=costs, receive_window=window, sharded_stages=sharded, active_stages=active
    )
    validate_lowered(lowered)
    assert lowered.compute_only() == schedule


@given(schedules(), st.data())
def test_pairs_stay_together_or_are_refused(schedule, data):
    kinds, ranks = schedule.actions[:, 0], schedule.rank_of_row
    may_pair = (kinds[:-1] == ActionKind.F) & np.isin(kinds[1:], [ActionKind.I, ActionKind.B])
    rows = np.flatnonzero(may_pair & (ranks[1:] == ranks[:-1])).tolist()
    chosen = data.draw(st.sets(st.sampled_from(rows))) if rows else set()
    paired = replace(schedule, pairs=np.array(sorted(chosen), np.int64))
    try:
        lowered = lower(paired, sharded_stages=range(schedule.placement.num_stages))
    except InvalidInput as refused:
        assert "deadlock" in str(refused)
        assert chosen
        return
    validate_lowered(lowered, rendezvous=True)
    assert lowered.compute_only() == paired


@given(schedules_with_costs())
def test_sends_that_wait_for_their_receiver_do_not_lock_up(drawn):
    schedule, costs = drawn
    validate_lowered(lower(schedule, costs=costs), rendezvous=True)


@given(schedules_with_costs(), st.sampled_from([None, 0, 2]))
def test_two_ranks_see_their_transfers_in_one_order(drawn, window):
    schedule, costs = drawn
    lowered = lower(schedule, costs=costs, receive_window=window)
    seen: dict[tuple[int, int], list[tuple[LoweredKind, int, int]]] = {}
    for rank in range(lowered.num_ranks):
        for step in lowered.order(rank):
            if step.kind in SENDS + RECEIVES:
                seen.setdefault((rank, peer_of(lowered, step)), []).append(message(step))
    for (rank, peer), messages in seen.items():
        assert messages == seen[peer, rank]


def peer_of(lowered: LoweredSchedule, step: LoweredAction) -> int:
    towards = 1 if step.kind in (LoweredKind.SEND_F, LoweredKind.RECV_B) else -1
    return lowered.placement.rank_of_stage[step.stage + towards]


def message(step: LoweredAction) -> tuple[LoweredKind, int, int]:
    """A transfer as its sender names it."""
    if step.kind is LoweredKind.RECV_F:
        return (LoweredKind.SEND_F, step.stage - 1, step.microbatch)
    if step.kind is LoweredKind.RECV_B:
        return (LoweredKind.SEND_B, step.stage + 1, step.microbatch)
    return step


@given(schedules_with_costs())
def test_a_send_directly_follows_its_producer(drawn):
    lowered = lower(drawn[0], costs=drawn[1])
    for rank in range(lowered.num_ranks):
        for before, step in pairwise(lowered.order(rank)):
            if step.kind in SENDS:
                produced = {LoweredKind.SEND_F: "F", LoweredKind.SEND_B: "IB"}[step.kind]
                assert before.kind.name in produced
                assert before[1:] == step[1:]


def test_one_f_one_b_on_two_ranks():
    assert lines(lower(one_f_one_b(2, 2))) == [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD",
        "1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1 1REDUCE_GRAD",
    ]


def test_a_receive_window_posts_receives_later():
    """Not past a send to the same rank: both must see one order of transfers."""
    assert lines(lower(one_f_one_b(2, 2), receive_window=0))[1] == (
        "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1 1REDUCE_GRAD"
    )


def test_neighbours_on_one_rank_need_no_transfer():
    lowered = lower(written("0F0 1F0 1I0 0I0 1W0 0W0"))
    assert lines(lowered) == ["0F0 1F0 1I0 0I0 1W0 1REDUCE_GRAD 0W0 0REDUCE_GRAD"]


def test_receives_follow_the_times_at_which_their_tensors_are_made():
    """In the middle of three: the third forward arrives first, unless the first rank is slow."""
    schedule = one_f_one_b(3, 3)
    even = lines(lower(schedule))[1].split()
    slow = ScheduleCosts.of(schedule.placement, forward_s=[10.0, 1.0, 1.0])
    uneven = lines(lower(schedule, costs=slow))[1].split()
    assert even.index("1RECV_F2") < even.index("1RECV_B0")
    assert uneven.index("1RECV_B0") < uneven.index("1RECV_F2")


def test_both_inputs_of_a_pair_are_received_before_it_and_its_outputs_sent_after_it():
    orders = ("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1", "2F0 2B0 2F1 2B1")
    schedule = written(*orders, pairs=(5,))
    assert lines(lower(schedule, receive_window=0))[1] == (
        "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1RECV_B0 1F1 1B0 1SEND_F1 1SEND_B0 "
        "1RECV_B1 1B1 1SEND_B1 1REDUCE_GRAD"
    )
    validate_lowered(lower(schedule), rendezvous=True)


def test_a_pair_whose_backward_needs_its_forward_is_refused():
    schedule = written("0F0 0F1 0B0 0B1", "1F0 1F1 1B1 1B0", pairs=(5,))
    with pytest.raises(InvalidInput, match="deadlock: 1B1 on rank 1 waits for 1F1"):
        lower(schedule)


def test_parameters_of_sharded_stages_come_before_use_and_leave_room():
    request = FamilyRequest(num_ranks=1, num_microbatches=1, virtual_stages=3)
    lowered = lower(generate("interleaved", request), sharded_stages=(0, 1, 2), active_stages=2)
    assert lines(lowered) == [
        "0UNSHARD 1UNSHARD 0F0 0RESHARD 2UNSHARD 1F0 2F0 2B0 2REDUCE_GRAD 2RESHARD 0UNSHARD "
        "1B0 1REDUCE_GRAD 1RESHARD 0B0 0REDUCE_GRAD 0RESHARD"
    ]


def test_stages_that_are_not_sharded_have_no_parameter_steps():
    kinds = lower(one_f_one_b(2, 2), sharded_stages=(1,)).actions
    gathered = kinds[np.isin(kinds[:, 0], [LoweredKind.UNSHARD, LoweredKind.RESHARD])]
    assert set(gathered[:, 1].tolist()) == {1}


def test_cyclic_orders_are_refused_with_their_cycle():
    with pytest.raises(InvalidInput, match="deadlock: 0B0 on rank 0 waits for 1B0"):
        lower(written("0F0 0B0 0F1 0B1", "1F1 1F0 1B0 1B1"))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"receive_window": -1}, "receive_window: must be >= 0, got -1"),
        ({"active_stages": 0}, "active_stages: must be >= 1, got 0"),
        ({"sharded_stages": (0, 7)}, "sharded_stages: must be from 0 to 1, got 7"),
    ],
)
def test_options_out_of_range_are_refused(options, problem):
    with pytest.raises(InvalidInput) as refused:
        lower(one_f_one_b(2, 2), **options)
    assert str(refused.value) == problem


@pytest.mark.slow
def test_sixty_four_ranks_and_256_microbatches_take_a_fifth_of_a_second():
    """CPU seconds of 98,304 actions: two chunks, split backward; PyTorch's own is quadratic."""
    request = FamilyRequest(num_ranks=64, num_microbatches=256, virtual_stages=2)
    fused = generate("interleaved", request)
    orders = [split_backward(fused.actions[fused.rows_of(rank)]) for rank in range(64)]
    schedule = Schedule.of_ranks(orders, placement=fused.placement, num_microbatches=256)
    assert schedule.num_actions == 98_304
    fastest_s = min(cpu_s(lambda: lower(schedule, sharded_stages=range(128))) for _ in range(3))
    assert fastest_s <= 0.2
    validate_lowered(lower(schedule, sharded_stages=range(128)), rendezvous=True)


def cpu_s(work) -> float:
    start_s = time.process_time()
    work()
    return time.process_time() - start_s


@given(placements(max_ranks=3, max_stages=5), st.data())
def test_removing_any_transfer_or_reduction_breaks_a_law(placement, data):
    schedule = data.draw(schedules(placement=placement, max_microbatches=2))
    lowered = lower(schedule)
    extra = np.flatnonzero(lowered.actions[:, 0] > LoweredKind.R)
    row = data.draw(st.sampled_from(extra.tolist()))
    with pytest.raises(InvalidInput, match=r"must (appear|come)"):
        validate_lowered(lowered.without(row))


def swapped(lowered: LoweredSchedule, row: int) -> LoweredSchedule:
    actions = lowered.actions.copy()
    actions[[row, row + 1]] = actions[[row + 1, row]]
    return LoweredSchedule(
        placement=lowered.placement,
        num_microbatches=lowered.num_microbatches,
        actions=actions,
        rank_offsets=lowered.rank_offsets,
    )


def test_receives_out_of_the_order_of_sending_are_refused():
    lowered = lower(one_f_one_b(2, 2))
    first = int(lowered.rank_offsets[1])
    with pytest.raises(InvalidInput, match="1RECV_F1 gets what rank 0 sent as 0SEND_F0; receive"):
        validate_lowered(swapped(lowered, first))


def test_sends_that_wait_can_lock_up_where_buffered_ones_do_not():
    """Both ranks send before they receive: fine with buffers, a cycle without."""
    steps = [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD",
        "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1REDUCE_GRAD",
    ]
    lowered = read(steps)
    validate_lowered(lowered)
    with pytest.raises(InvalidInput) as refused:
        validate_lowered(lowered, rendezvous=True)
    assert str(refused.value) == (
        "orders: deadlock: 0SEND_F1 on rank 0 waits for 1RECV_F1, which rank 1 runs only after "
        "1SEND_B0; 1SEND_B0 on rank 1 waits for 0RECV_B0, which rank 0 runs only after 0SEND_F1"
    )


def test_receives_that_block_can_lock_up():
    lowered = read(
        [
            "0F0 0RECV_B0 0SEND_F0 0B0 0REDUCE_GRAD",
            "1RECV_F0 1F0 1B0 1SEND_B0 1REDUCE_GRAD",
        ]
    )
    with pytest.raises(InvalidInput, match="deadlock: 0RECV_B0 on rank 0 waits for 1SEND_B0"):
        validate_lowered(lowered)


def read(orders: list[str]) -> LoweredSchedule:
    steps = [[LoweredAction.parse(text) for text in order.split()] for order in orders]
    flat = [step for order in steps for step in order]
    return LoweredSchedule(
        placement=Placement.loop(len(orders)),
        num_microbatches=1 + max(step.microbatch for step in flat),
        actions=np.array(flat, np.int32),
        rank_offsets=np.cumsum([0, *map(len, steps)]),
    )


def test_a_pytorch_schedule_has_no_recompute_but_lowering_keeps_it():
    schedule = written("0F0 0R0 0B0")
    assert (lower(schedule).actions[:, 0] == ActionKind.R).any()
