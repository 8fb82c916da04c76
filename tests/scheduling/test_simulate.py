import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles_schedule as oracle
from strategies_schedule import costs as costs_of
from strategies_schedule import schedules, schedules_with_costs
from trainwright._native import _core
from trainwright.errors import InvalidInput
from trainwright.plans.lowered import WaitsFor
from trainwright.plans.schedule import (
    Action,
    ActionKind,
    Placement,
    Schedule,
    ScheduleCosts,
    ScheduleMemory,
    TransferModel,
)
from trainwright.scheduling.families import FamilyRequest, generate
from trainwright.scheduling.simulate import (
    critical_path,
    native_costs,
    native_orders,
    simulate,
    timeline_faults,
)

F, I, W, B, R, *_ = ActionKind  # noqa: E741


@given(schedules_with_costs())
def test_native_times_equal_the_event_simulator(case):
    schedule, costs = case
    timeline = simulate(schedule, costs)
    expected = oracle.run(schedule, costs)
    for row in range(schedule.num_actions):
        action = schedule.action(row)
        assert timeline.start_s[row] == pytest.approx(expected.start_s[action], rel=1e-9)
        assert timeline.end_s[row] == pytest.approx(expected.end_s[action], rel=1e-9)
    assert timeline.makespan_s == pytest.approx(oracle.makespan_s(expected), rel=1e-9)


@given(schedules_with_costs())
def test_arrivals_of_transfers_equal_the_event_simulator(case):
    schedule, costs = case
    transfers = simulate(schedule, costs).transfers()
    expected = oracle.run(schedule, costs)
    arrivals = {
        (action.kind is F, action.stage, action.microbatch): arrival_s
        for action, arrival_s in expected.arrival_s.items()
    }
    for at, end_s in enumerate(transfers.end_s):
        key = bool(transfers.is_forward[at]), transfers.source_stage[at], transfers.microbatch[at]
        assert end_s == pytest.approx(arrivals[key], rel=1e-9)
        assert transfers.start_s[at] <= end_s


@given(schedules_with_costs())
def test_peak_bytes_equal_the_running_sum(case):
    schedule, costs = case
    timeline = simulate(schedule, costs)
    for rank in range(schedule.num_ranks):
        expected = oracle.peak_bytes(schedule, costs, rank)
        assert timeline.peak_bytes[rank] == pytest.approx(expected, rel=1e-9)
        assert timeline.memory_curve(rank).bytes.max() == pytest.approx(expected, rel=1e-9)


@given(schedules_with_costs(), st.sampled_from([2.0, 3.0, 0.125]))
def test_scaling_all_times_scales_the_makespan(case, factor):
    schedule, costs = case
    scaled = replace(
        costs,
        compute_s=costs.compute_s * factor,
        overhead_s=costs.overhead_s * factor,
        forward_transfer_s=costs.forward_transfer_s * factor,
        backward_transfer_s=costs.backward_transfer_s * factor,
    )
    before, after = simulate(schedule, costs), simulate(schedule, scaled)
    assert after.makespan_s == pytest.approx(before.makespan_s * factor, rel=1e-12)
    assert after.span_s == pytest.approx(before.span_s * factor, rel=1e-12)


@given(schedules_with_costs())
def test_times_repeat_exactly(case):
    first, second = simulate(*case), simulate(*case)
    assert np.array_equal(first.start_s, second.start_s)


def slack(timeline):
    """How long each action could be delayed without a later end of all, orders kept."""
    orders, costs = native_orders(timeline.schedule), native_costs(timeline.costs)
    last_end_s = np.full(timeline.schedule.num_ranks, timeline.end_s.max())
    return _core.latest_starts(orders, costs, last_end_s) - timeline.start_s


@given(schedules_with_costs())
def test_actions_of_the_critical_path_have_no_slack(case):
    timeline = simulate(*case)
    slack_s = slack(timeline)
    assert (slack_s >= -1e-9).all()
    for step in critical_path(timeline):
        assert slack_s[step.row] == pytest.approx(0.0, abs=1e-9)


@given(st.data())
def test_an_action_may_grow_by_its_slack_and_no_more(data):
    """With one microbatch every action has a duration of its own, so slack can be tried out."""
    schedule = data.draw(schedules(max_microbatches=1))
    costs = data.draw(costs_of(schedule.placement))
    timeline = simulate(schedule, costs)
    row = data.draw(st.integers(0, schedule.num_actions - 1))
    kind, stage, _ = schedule.action(row)
    slack_s = float(slack(timeline)[row])
    for extra_s, growth_s in ((slack_s, 0.0), (slack_s + 1.0, 1.0)):
        longer = costs.compute_s.copy()
        longer[kind, stage] += extra_s
        delayed = simulate(schedule, replace(costs, compute_s=longer))
        assert delayed.end_s.max() == pytest.approx(timeline.end_s.max() + growth_s, abs=1e-9)


@given(schedules_with_costs())
def test_the_critical_path_is_a_chain_from_time_0_to_the_end(case):
    schedule, costs = case
    timeline = simulate(schedule, costs)
    path = critical_path(timeline)
    ranks = schedule.rank_of_row
    assert path[0].waits_for is WaitsFor.NOTHING
    assert timeline.start_s[path[0].row] == 0.0
    assert timeline.end_s[path[-1].row] == timeline.end_s.max()
    for before, step in pairwise(path):
        same_rank = ranks[before.row] == ranks[step.row]
        gap_s = timeline.start_s[step.row] - timeline.end_s[before.row]
        assert gap_s >= 0
        assert same_rank == (step.waits_for in (WaitsFor.RANK, WaitsFor.INPUT))
        if same_rank and costs.transfer_model is not TransferModel.BLOCKING:
            assert gap_s == 0


@given(st.lists(st.integers(1, 20), min_size=4, max_size=4), st.integers(1, 4))
def test_a_queue_on_a_link_is_traced_in_times_that_round(milliseconds, num_microbatches):
    """(end + transfer) - transfer may exceed end, which is no wait for the link."""
    forward_s, input_grad_s, weight_grad_s, transfer_s = (t / 1000 for t in milliseconds)
    request = FamilyRequest(num_ranks=2, num_microbatches=2 * num_microbatches, virtual_stages=2)
    schedule = generate("interleaved", request)
    costs = ScheduleCosts.of(
        schedule.placement,
        forward_s=forward_s,
        input_grad_s=input_grad_s,
        weight_grad_s=weight_grad_s,
        transfer_s=transfer_s,
        transfer_model=TransferModel.LINK,
    )
    timeline = simulate(schedule, costs)
    path = critical_path(timeline)
    assert path[0].waits_for is WaitsFor.NOTHING
    for before, step in pairwise(path):
        assert timeline.end_s[before.row] <= timeline.start_s[step.row]


@given(schedules_with_costs(), st.randoms(use_true_random=False))
def test_shuffled_orders_run_or_report_a_cycle(case, randomness: random.Random):
    schedule, costs = case
    orders = [list(schedule.order(rank)) for rank in range(schedule.num_ranks)]
    for order in orders:
        randomness.shuffle(order)
    shuffled = Schedule.of_ranks(
        [np.array(order, np.int32).reshape(-1, 3) for order in orders],
        placement=schedule.placement,
        num_microbatches=schedule.num_microbatches,
    )
    if not oracle.run(shuffled, costs).deadlocked:
        simulate(shuffled, costs)
        return
    with pytest.raises(InvalidInput, match="deadlock: ") as refused:
        simulate(shuffled, costs)
    for link in str(refused.value).removeprefix("orders: deadlock: ").split("; "):
        _assert_true(link, shuffled)


def _assert_true(link: str, schedule: Schedule) -> None:
    """`A on rank r waits for N, which rank q runs only after L`: N after L in q's order."""
    waiting, _, _, rank, _, _, needed, _, _, needed_rank, *_, later = link.replace(",", "").split()
    order = list(map(str, schedule.order(int(needed_rank))))
    assert waiting in map(str, schedule.order(int(rank)))
    assert order.index(needed) > order.index(later) or needed == later
    alternatives = oracle.needs(schedule, Action.parse(waiting))
    assert any(Action.parse(needed) in need for need in alternatives)


def test_a_deadlock_is_reported_with_its_cycle():
    schedule = Schedule.from_orders(
        [
            [Action.parse(text) for text in ("0F0", "0B0", "0F1", "0B1")],
            [Action.parse(text) for text in ("1F1", "1F0", "1B0", "1B1")],
        ]
    )
    with pytest.raises(InvalidInput) as refused:
        simulate(schedule, ScheduleCosts.of(schedule.placement))
    assert str(refused.value) == (
        "orders: deadlock: 0B0 on rank 0 waits for 1B0, which rank 1 runs only after 1F1; "
        "1F1 on rank 1 waits for 0F1, which rank 0 runs only after 0B0"
    )


def test_a_missing_action_is_reported_as_missing():
    schedule = Schedule.from_orders(
        [[Action.parse("0F0"), Action.parse("0B0")], [Action.parse("1F0")]]
    )
    with pytest.raises(InvalidInput, match="0B0 on rank 0 waits for 1I0, which no rank runs"):
        simulate(schedule, ScheduleCosts.of(schedule.placement))


def test_costs_of_another_shape_are_refused():
    schedule = generate("1f1b", FamilyRequest(num_ranks=2, num_microbatches=2))
    with pytest.raises(InvalidInput, match="num_stages: must be 2, as in the schedule, got 4"):
        simulate(schedule, ScheduleCosts.of(Placement.v(2)))


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_times_that_are_no_times_are_refused(wrong):
    with pytest.raises(InvalidInput, match="compute_s: must be finite and >= 0"):
        ScheduleCosts.of(Placement.v(2), forward_s=[1.0, 1.0, wrong, 1.0])


def test_transfers_on_one_link_follow_each_other():
    schedule = generate("gpipe", FamilyRequest(num_ranks=2, num_microbatches=3))
    costs = ScheduleCosts.of(schedule.placement, transfer_s=5.0)
    free = simulate(schedule, costs)
    link = simulate(schedule, replace(costs, transfer_model=TransferModel.LINK))
    assert free.transfers().end_s[:3].tolist() == [6.0, 7.0, 8.0]
    assert link.transfers().end_s[:3].tolist() == [6.0, 11.0, 16.0]
    assert WaitsFor.LINK in {step.waits_for for step in critical_path(link)}


def test_blocking_transfers_keep_both_ends_busy():
    schedule = generate("gpipe", FamilyRequest(num_ranks=2, num_microbatches=2))
    costs = ScheduleCosts.of(
        schedule.placement,
        transfer_s=2.0,
        transfer_model=TransferModel.BLOCKING,
        blocking_fraction=0.5,
    )
    timeline = simulate(schedule, costs)
    # Rank 0 sends for 1 s after each forward; rank 1 receives for 1 s before each.
    assert timeline.start_s[schedule.rows_of(0)][:2].tolist() == [0.0, 2.0]
    assert timeline.start_s[schedule.rows_of(1)][:2].tolist() == [3.0, 5.0]


def test_an_overlapped_pair_takes_the_time_of_the_pair():
    order = [
        Action.parse(cell) for cell in ("0F0", "1F0", "0F1", "1B0", "0B0", "1F1", "1B1", "0B1")
    ]
    schedule = Schedule.from_orders([order], pairs=[2])
    costs = ScheduleCosts.of(schedule.placement)
    overlapped = replace(costs, pair_s=np.full(2, 2.5))
    assert simulate(schedule, costs).makespan_s == 12.0
    timeline = simulate(schedule, overlapped)
    assert timeline.makespan_s == 11.5
    assert timeline.work_by_rank_s.tolist() == [11.5]
    assert timeline.start_s[2] == timeline.start_s[3] == 2.0
    assert (slack(timeline) == 0).all()
    assert oracle.makespan_s(oracle.run(schedule, overlapped)) == 11.5


@pytest.mark.parametrize("times", [{"pair_s": 2.5}, {"network_s": {F: 0.5, I: 0.5}}, {}])
def test_transients_of_a_pair_lie_beside_each_other_where_it_runs_as_one(times):
    schedule = Schedule.from_orders(
        [[Action(F, 0, 0), Action(F, 0, 1), Action(B, 0, 0), Action(B, 0, 1)]], pairs=[1]
    )
    memory = ScheduleMemory.of(schedule.placement, transient_bytes={F: 3.0, B: 4.0})
    costs = ScheduleCosts.of(schedule.placement, memory=memory, **times)
    timeline = simulate(schedule, costs)
    assert timeline.peak_bytes.tolist() == [2 + 3 + 4 if times else 2 + 4]
    assert list(timeline_faults(timeline)) == []


def test_memory_counts_transients_and_the_limit():
    schedule = generate("gpipe", FamilyRequest(num_ranks=1, num_microbatches=2))
    memory = ScheduleMemory.of(
        schedule.placement,
        forward_bytes=10.0,
        weight_grad_bytes=-10.0,
        transient_bytes={F: 1.0, I: 4.0},
        static_bytes=100.0,
        limit_bytes=123.0,
    )
    timeline = simulate(schedule, ScheduleCosts.of(schedule.placement, memory=memory))
    assert timeline.peak_bytes.tolist() == [124.0]
    assert not timeline.fits
    curve = timeline.memory_curve(0)
    assert curve.time_s.tolist() == [0, 0, 1, 1, 2, 2, 4, 4, 6]
    assert curve.bytes.tolist() == [100, 111, 110, 121, 120, 124, 110, 114, 100]
