"""A timeline as a certificate: the simulator's hold, and every law finds what breaks it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from strategies_schedule import schedules_with_costs
from trainwright.plans.lowered import Timeline
from trainwright.plans.schedule import ScheduleCosts
from trainwright.scheduling.families import FAMILIES, FamilyRequest, generate
from trainwright.scheduling.simulate import simulate, timeline_faults


@given(schedules_with_costs())
def test_what_is_simulated_holds_under_every_transfer_model(drawn):
    assert timeline_faults(simulate(*drawn)) == ()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_holds_and_overlapped_pairs_too(family):
    schedule = generate(family, FamilyRequest(num_ranks=4, num_microbatches=8))
    costs = ScheduleCosts.of(schedule.placement, transfer_s=0.25, pair_s=2.5)
    assert timeline_faults(simulate(schedule, costs)) == ()


@given(schedules_with_costs(), st.data())
def test_an_action_that_takes_less_time_is_found(drawn, data):
    timeline = simulate(*drawn)
    assume(timeline.makespan_s > 0)
    row = data.draw(st.integers(0, timeline.schedule.num_actions - 1))
    end_s = timeline.end_s.copy()
    end_s[row] += 0.5 * timeline.makespan_s
    faults = timeline_faults(replace(timeline, end_s=end_s))
    assert any(str(timeline.schedule.action(row)) in fault.problem for fault in faults)


def small() -> Timeline:
    schedule = generate("1f1b", FamilyRequest(num_ranks=2, num_microbatches=2))
    return simulate(schedule, ScheduleCosts.of(schedule.placement, transfer_s=0.5))


def test_what_starts_before_its_input_is_there_is_found():
    timeline = small()
    row = timeline.schedule.rows_of(1).start
    earlier = [array.copy() for array in (timeline.start_s, timeline.end_s)]
    for array in earlier:
        array[row] -= 0.25
    (fault,) = timeline_faults(replace(timeline, start_s=earlier[0], end_s=earlier[1]))
    assert str(fault) == ("orders[1][0]: 1F0 starts at 1.25 s, its input arrives at 1.5 s")


def test_two_actions_at_once_are_found():
    timeline = small()
    start_s, end_s = timeline.start_s.copy(), timeline.end_s.copy()
    start_s[1] -= 0.5
    end_s[1] -= 0.5
    faults = timeline_faults(replace(timeline, start_s=start_s, end_s=end_s))
    assert "0F1 starts at 0.5 s, before 0F0 ends at 1 s" in faults[0].problem


def test_a_message_that_travels_in_no_time_is_found():
    timeline = small()
    arrival_s = timeline.forward_arrival_s - 0.5
    (first, *_) = timeline_faults(replace(timeline, forward_arrival_s=arrival_s))
    assert str(first) == "orders[0][0]: what 0F0 makes arrives sooner than it can be sent"


def test_a_peak_that_is_too_low_or_above_the_limit_is_found():
    timeline = small()
    lower = replace(timeline, peak_bytes=np.array([1.0, 1.0]))
    assert [fault.path for fault in timeline_faults(lower)] == ["peak_bytes[0]"]
    memory = replace(timeline.costs.memory, limit_bytes=np.array([2.0, 0.5]))
    limited = replace(timeline, costs=replace(timeline.costs, memory=memory))
    (fault,) = timeline_faults(limited)
    assert str(fault) == "peak_bytes[1]: 1.0 is above the limit of 0.5"
