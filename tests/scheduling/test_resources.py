"""Host link, network, slices, several pipelines, cut heads: against the oracle, and by example."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles_schedule as oracle
from random_cases import cases
from strategies_schedule import resource_costs, resource_schedules
from trainwright.errors import InvalidInput
from trainwright.formats.schedule_json import read_orders, write_orders
from trainwright.plans.lowered import WaitsFor
from trainwright.plans.schedule import (
    ON_HOST_LINK,
    Action,
    ActionKind,
    Schedule,
    ScheduleCosts,
    ScheduleMemory,
)
from trainwright.plans.status import Objective
from trainwright.scheduling.bounds import resource_bound
from trainwright.scheduling.simulate import critical_path, simulate, timeline_faults, validate

F, I, W, B, R, O, D, L, V, T = ActionKind  # noqa: E741


@st.composite
def cases_with_costs(draw):
    schedule = draw(resource_schedules())
    return schedule, draw(resource_costs(schedule))


def schedule_of(*rows: str, pairs=(), **traits) -> Schedule:
    orders = [[Action.parse(cell) for cell in row.split()] for row in rows]
    schedule = Schedule.from_orders(orders, pairs=pairs)
    placement = replace(schedule.placement, num_pipelines=traits.pop("num_pipelines", 1))
    return replace(schedule, placement=placement, **traits)


@given(cases_with_costs())
@cases(80)
def test_the_simulator_agrees_with_events_in_time_order(case):
    schedule, costs = case
    validate(schedule)
    timeline = simulate(schedule, costs)
    expected = oracle.run(schedule, costs)
    actions = [schedule.action(row) for row in range(schedule.num_actions)]
    assert timeline.start_s.tolist() == pytest.approx([expected.start_s[a] for a in actions])
    assert timeline.end_s.tolist() == pytest.approx([expected.end_s[a] for a in actions])
    peaks = [oracle.peak_bytes(schedule, costs, rank) for rank in range(schedule.num_ranks)]
    assert timeline.peak_bytes.tolist() == pytest.approx(peaks)


@given(cases_with_costs(), st.data())
@cases(25)
def test_a_simulated_timeline_is_its_own_certificate_and_an_earlier_action_breaks_it(case, data):
    schedule, costs = case
    timeline = simulate(schedule, costs)
    assert timeline_faults(timeline) == ()
    row = data.draw(st.integers(0, schedule.num_actions - 1))
    start_s, end_s = timeline.start_s.copy(), timeline.end_s.copy()
    if start_s[row] == 0:
        return
    start_s[row], end_s[row] = start_s[row] - 1e-3, end_s[row] - 1e-3
    # Blocking transfers keep a rank busy in ways that a certificate need not repeat.
    if costs.blocking_fraction == 0 or costs.transfer_model != "blocking":
        earlier = replace(timeline, start_s=start_s, end_s=end_s)
        assert timeline_faults(earlier)


@given(cases_with_costs())
@cases(25)
def test_no_schedule_beats_the_work_of_its_busiest_resource(case):
    schedule, costs = case
    timeline = simulate(schedule, costs)
    for objective in Objective:
        if objective in (Objective.SPAN, Objective.MAKESPAN):
            bound = resource_bound(schedule, costs, objective=objective)
            assert bound.value_s <= objective.of(timeline) * (1 + 1e-9) + 1e-12


@given(cases_with_costs())
@cases(25)
def test_the_critical_path_is_a_chain_from_time_0_to_the_end(case):
    schedule, costs = case
    timeline = simulate(schedule, costs)
    path = critical_path(timeline)
    assert path[0].waits_for is WaitsFor.NOTHING
    assert timeline.start_s[path[0].row] == 0.0
    assert timeline.end_s[path[-1].row] == timeline.end_s.max()
    for before, step in pairwise(path):
        assert timeline.end_s[before.row] <= timeline.start_s[step.row] + 1e-9


@given(resource_schedules())
@cases(15)
def test_orders_are_read_back_as_they_were_written(schedule):
    assert read_orders(write_orders(schedule)) == schedule


def test_a_copy_runs_beside_the_computation_and_frees_when_it_is_dropped():
    order = "0F0 0O0 0F1 0F2 0D0 0B1 0L0 0B2 0B0"
    schedule = schedule_of(order)
    validate(schedule)
    costs = ScheduleCosts.of(schedule.placement, offload_s=1.5, reload_s=1.5)
    timeline = simulate(schedule, costs)
    by_name = dict(zip(order.split(), timeline.start_s.tolist(), strict=True))
    assert by_name["0O0"] == 1.0  # when F0 has ended
    assert by_name["0D0"] == 3.0  # O0 ended at 2.5, F2 at 3
    assert by_name["0L0"] == 5.0  # issued after B1
    assert timeline.makespan_s == 9.0  # nothing waited
    assert schedule.peak_activations == (3,)
    assert timeline.peak_bytes.tolist() == [3.0]
    slow = simulate(schedule, ScheduleCosts.of(schedule.placement, offload_s=4.0, reload_s=4.0))
    assert slow.makespan_s == 13.0  # D0 waits until 5, L0 ends at 11


def test_a_pair_hides_its_network_behind_the_other_computation():
    order = "0F0 1F0 0F1 1B0 0B0 1F1 1B1 0B1"
    schedule = schedule_of(order, pairs=[2])
    network = {F: 0.25, I: 0.25, W: 0.0}
    costs = ScheduleCosts.of(schedule.placement, network_s=network)
    assert simulate(schedule, ScheduleCosts.of(schedule.placement)).makespan_s == 12.0
    assert simulate(schedule, costs).makespan_s == 11.5  # F1 and B0 share half a slot
    busy = ScheduleCosts.of(schedule.placement, network_s={F: 1.0, I: 1.0, W: 1.0})
    assert simulate(schedule, busy).makespan_s == 12.0  # nothing but communication: one network


def test_later_slices_take_longer():
    schedule = schedule_of("0F0 0F1 0B1 0B0", num_slices=2)
    extra = np.zeros((len(ActionKind), 1, 2))
    extra[F, 0, 1], extra[B, 0, 1] = 0.5, 1.0
    timeline = simulate(schedule, ScheduleCosts.of(schedule.placement, slice_s=extra))
    assert (timeline.end_s - timeline.start_s).tolist() == [1.0, 1.5, 3.0, 2.0]


def test_a_cut_head_waits_for_all_ranks_once_or_twice():
    rows = ("0F0 0V0 0T0 0B0", "1F0 1V0 1T0 1B0")
    for barriers, makespan_s in ((2, 1 + 1 + 1 + 1 + 4), (1, 1 + 1 + 1 + 4 + 1)):
        schedule = schedule_of(*rows, head_barriers=barriers)
        validate(schedule)
        timeline = simulate(schedule, ScheduleCosts.of(schedule.placement, head_s=1.0))
        assert timeline.makespan_s == makespan_s
    delayed = simulate(schedule, ScheduleCosts.of(schedule.placement, head_s=1.0, barrier_s=0.5))
    assert delayed.makespan_s == makespan_s + 2 * 0.5


@pytest.mark.parametrize(
    ("rows", "traits", "rule"),
    [
        (("0F0 0O0 0B0",), {}, "D must run once where O does"),
        (("0F0 0O0 0D0 0B0 0L0",), {}, "0B0 must come after 0L0"),
        (("0F0 0L0 0O0 0D0 0B0",), {}, "0L0 must come after 0D0"),
        (("0F1 0F0 0B1 0B0",), {"num_slices": 2}, "0F1 comes too early: slices run from the first"),
        (("0F0 0F1 0B0 0B1",), {"num_slices": 2}, "0B0 comes too early: slices run from the last"),
        (("0F0 0V0 0B0",), {"head_barriers": 1}, "T must run once on the first stage"),
        (
            ("0F0 0V0 0T0 0B0",),
            {},
            "V must run once on the first stage of every rank of a cut head",
        ),
        (("0F0 0B0 0V0 0T0",), {"head_barriers": 1}, "0B0 on rank 0 waits for 0V0"),
    ],
)
def test_a_law_that_is_broken_is_named(rows, traits, rule):
    with pytest.raises(InvalidInput, match=rule):
        validate(schedule_of(*rows, **traits))


def test_two_pipelines_do_not_hand_on_to_each_other():
    schedule = schedule_of("0F0 3F0 3B0 0B0", "2F0 1F0 1B0 2B0", num_pipelines=2)
    validate(schedule)
    timeline = simulate(schedule, ScheduleCosts.of(schedule.placement))
    assert timeline.makespan_s == 6.0
    assert len(timeline.transfers().source_stage) == 4


def test_work_counts_computation_and_not_copies():
    schedule = schedule_of("0F0 0O0 0D0 0L0 0B0")
    memory = ScheduleMemory.of(schedule.placement, offloaded_bytes=0.5)
    timeline = simulate(
        schedule, ScheduleCosts.of(schedule.placement, offload_s=9.0, memory=memory)
    )
    assert timeline.work_by_rank_s.tolist() == [3.0]
    assert set(schedule.actions[:, 0]) & set(ON_HOST_LINK)
    assert timeline.memory_curve(0).bytes.tolist()[-1] == 0.0
