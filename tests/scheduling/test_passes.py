"""Laws of the passes: each keeps a schedule legal, within its memory, and no longer."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from strategies_schedule import costs, schedules
from trainwright.errors import InvalidInput
from trainwright.plans.schedule import (
    Action,
    ActionKind,
    Placement,
    Schedule,
    ScheduleCosts,
    ScheduleMemory,
    TransferModel,
)
from trainwright.plans.status import Objective
from trainwright.scheduling.families import family_named
from trainwright.scheduling.families.family import FamilyRequest
from trainwright.scheduling.orders import (
    Window,
    drop_weight_grads,
    fill_weight_grads,
    improve_weight_grads,
    justify,
    lengthen,
    reorder,
    trim,
)
from trainwright.scheduling.simulate import simulate, validate

F, I, W, B, R, *_ = ActionKind  # noqa: E741


def written(*orders: str) -> Schedule:
    return Schedule.from_orders([[Action.parse(text) for text in o.split()] for o in orders])


def without_weight_grads(schedule: Schedule) -> list[list[Action]]:
    return [
        [action for action in schedule.order(rank) if action.kind is not W]
        for rank in range(schedule.num_ranks)
    ]


def limited(schedule: Schedule, limit: float) -> ScheduleCosts:
    memory = ScheduleMemory.of(schedule.placement, limit_bytes=limit)
    return ScheduleCosts.of(schedule.placement, memory=memory)


@st.composite
def limited_costs(draw: st.DrawFn, placement: Placement) -> ScheduleCosts:
    """Free transfers, and on some ranks a limit that the schedule may or may not respect."""
    cost = draw(costs(placement))
    limits = st.sampled_from([0.0, 5.0, 12.0, math.inf])
    limit_bytes = draw(st.lists(limits, min_size=placement.num_ranks, max_size=placement.num_ranks))
    memory = replace(cost.memory, limit_bytes=np.array(limit_bytes))
    return replace(cost, memory=memory, transfer_model=TransferModel.FREE)


@given(schedules(), st.data())
def test_filling_places_each_weight_gradient_once_and_moves_nothing_else(schedule, data):
    cost = data.draw(costs(schedule.placement))
    tolerated_idle_s = data.draw(st.sampled_from([0.0, 1.0, math.inf]))
    filled = fill_weight_grads(schedule, cost, tolerated_idle_s=tolerated_idle_s)
    assert filled is not None
    validate(filled)
    assert without_weight_grads(filled) == without_weight_grads(schedule)
    assert fill_weight_grads(drop_weight_grads(schedule), cost) == fill_weight_grads(schedule, cost)


@given(schedules(may_recompute=False), st.integers(1, 8))
def test_filling_respects_a_limit_or_says_that_it_cannot(schedule, limit):
    filled = fill_weight_grads(schedule, limited(schedule, limit))
    early = fill_weight_grads(schedule, limited(schedule, math.inf), tolerated_idle_s=0.0)
    if filled is None:
        # Even with every W right after its I there is too much.
        at_once = [
            [
                part
                for action in order
                for part in ((action, action._replace(kind=W)) if action.kind is I else (action,))
            ]
            for order in without_weight_grads(schedule)
        ]
        assert max(Schedule.from_orders(at_once).peak_activations) > limit
        return
    validate(filled)
    assert max(filled.peak_activations) <= limit
    assert early is not None


def test_a_weight_gradient_fills_the_wait_it_fits():
    schedule = written("0F0 0F1 0I0 0I1 0W0 0W1", "1F0 1I0 1F1 1I1 1W0 1W1")
    filled = fill_weight_grads(schedule, limited(schedule, math.inf))
    assert filled is not None
    # Rank 1 never waits for rank 0; rank 0 waits for 1I1 from 3 to 5 and has 0W0 by then.
    assert " ".join(map(str, filled.order(0))) == "0F0 0F1 0I0 0W0 0I1 0W1"
    assert " ".join(map(str, filled.order(1))) == "1F0 1I0 1F1 1I1 1W0 1W1"


@cases(60)
@given(schedules(), st.data())
def test_reordering_keeps_the_schedule_legal_the_peak_and_the_makespan(schedule, data):
    cost = data.draw(limited_costs(schedule.placement))
    before = simulate(schedule, cost)
    low, high = sorted(data.draw(st.lists(st.floats(0, 40), min_size=2, max_size=2)))
    window = data.draw(st.sampled_from([Window(), Window(from_s=low, until_s=high)]))
    moved = reorder(schedule, cost, window=window)
    validate(moved)
    after = simulate(moved, cost)
    limits = cost.memory.limit_bytes
    allowed = np.where(
        np.isfinite(limits), np.maximum(limits, before.peak_bytes), before.peak_bytes
    )
    assert (after.peak_bytes <= allowed * (1 + 1e-9) + 1e-9).all()
    assert after.makespan_s <= before.makespan_s * (1 + 1e-9)
    assert after.span_s <= before.span_s * (1 + 1e-9)


def test_reordering_closes_a_gap():
    schedule = written("0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1")
    cost = ScheduleCosts.of(
        schedule.placement, memory=ScheduleMemory.of(schedule.placement, limit_bytes=2)
    )
    moved = reorder(schedule, cost)
    assert " ".join(map(str, moved.order(0))) == "0F0 0F1 0B0 0B1"
    assert simulate(moved, cost).makespan_s == 9.0
    assert simulate(schedule, cost).makespan_s == 12.0
    alone = ScheduleCosts.of(schedule.placement)
    assert reorder(schedule, alone) == schedule  # its peak is 1, and may not rise


@cases(60)
@given(schedules(), st.data())
def test_justifying_keeps_the_schedule_legal_and_within_memory_and_ends_no_later(schedule, data):
    cost = data.draw(limited_costs(schedule.placement))
    before = simulate(schedule, cost)
    moved = justify(schedule, cost)
    validate(moved)
    after = simulate(moved, cost)
    limits = cost.memory.limit_bytes
    allowed = np.where(
        np.isfinite(limits), np.maximum(limits, before.peak_bytes), before.peak_bytes
    )
    assert (after.peak_bytes <= allowed * (1 + 1e-9) + 1e-9).all()
    assert after.end_s.max() <= before.end_s.max() * (1 + 1e-9)
    for rank in range(schedule.num_ranks):
        assert _streams(moved.order(rank)) == _streams(schedule.order(rank))


def _streams(order: Sequence[Action]) -> dict[tuple[ActionKind, int], list[int]]:
    found: dict[tuple[ActionKind, int], list[int]] = {}
    for action in order:
        found.setdefault((action.kind, action.stage), []).append(action.microbatch)
    return found


def test_justifying_puts_off_what_keeps_another_rank_waiting():
    # 1W0 holds up 1I1, which rank 0 has to wait for; no gap of rank 1 is long enough for either.
    schedule = written("0F0 0F1 0I0 0I1 0W0 0W1", "1F0 1F1 1I0 1W0 1I1 1W1")
    cost = ScheduleCosts.of(schedule.placement, weight_grad_s=[3.0, 2.0])
    assert simulate(schedule, cost).makespan_s == 14.0
    assert reorder(schedule, cost) == schedule
    moved = justify(schedule, cost)
    assert " ".join(map(str, moved.order(1))) == "1F0 1F1 1I0 1I1 1W0 1W1"
    assert simulate(moved, cost).makespan_s == 12.0


def test_orders_whose_transfers_contend_are_not_justified():
    schedule = written("0F0 0F1 0I0 0W0 0I1 0W1", "1F0 1F1 1I0 1W0 1I1 1W1")
    cost = ScheduleCosts.of(schedule.placement, transfer_s=1.0, transfer_model=TransferModel.LINK)
    assert justify(schedule, cost) == schedule


@pytest.mark.parametrize("family", ["zb-v", "v-half", "v-min", "1f1b", "zb-h1"])
def test_a_lengthened_order_repeats_its_middle(family):
    few, many, p = 24, 100, 4
    order = family_named(family).generate(FamilyRequest(num_ranks=p, num_microbatches=few))
    placement = order.placement
    cost = ScheduleCosts.of(placement, forward_s=0.9, weight_grad_s=0.7, transfer_s=0.05)
    longer = lengthen(order, cost, num_microbatches=many)
    validate(longer)
    short, long = simulate(order, cost), simulate(longer, cost)
    assert longer.num_microbatches == many
    assert (long.peak_bytes == short.peak_bytes).all()
    again = simulate(lengthen(order, cost, num_microbatches=2 * many), cost)
    period_s = (again.makespan_s - long.makespan_s) / many
    assert long.makespan_s == pytest.approx(short.makespan_s + (many - few) * period_s)


def test_an_order_that_does_not_repeat_is_not_lengthened():
    order = family_named("gpipe").generate(FamilyRequest(num_ranks=3, num_microbatches=8))
    assert lengthen(order, ScheduleCosts.of(order.placement), num_microbatches=20) is None


@cases(60)
@given(schedules(may_recompute=False), st.sampled_from(Objective), st.data())
def test_improving_weight_gradients_never_makes_the_schedule_longer(schedule, objective, data):
    cost = data.draw(limited_costs(schedule.placement))
    before = simulate(schedule, cost)
    improved = improve_weight_grads(schedule, cost, objective=objective, budget=20_000)
    validate(improved)
    after = simulate(improved, cost)
    name = "span_s" if objective is Objective.SPAN else "makespan_s"
    assert getattr(after, name) <= getattr(before, name) * (1 + 1e-9)
    assert without_weight_grads(improved) == without_weight_grads(schedule)
    allowed = np.maximum(cost.memory.limit_bytes, before.peak_bytes)
    assert (after.peak_bytes <= allowed * (1 + 1e-9) + 1e-9).all()


def test_improving_moves_a_weight_gradient_out_of_the_critical_path():
    schedule = written("0F0 0F1 0I0 0I1 0W0 0W1", "1F0 1I0 1W0 1F1 1I1 1W1")
    cost = ScheduleCosts.of(schedule.placement)
    assert simulate(schedule, cost).makespan_s == 9.0
    improved = improve_weight_grads(schedule, cost, objective=Objective.MAKESPAN, budget=1000)
    assert simulate(improved, cost).makespan_s == 7.0


@given(schedules(), st.data())
def test_trimming_keeps_the_order_of_what_is_left(schedule, data):
    fewer = data.draw(st.integers(1, schedule.num_microbatches))
    trimmed = trim(schedule, num_microbatches=fewer)
    validate(trimmed)
    assert trimmed.num_microbatches == fewer
    for rank in range(schedule.num_ranks):
        kept = [action for action in schedule.order(rank) if action.microbatch < fewer]
        assert list(trimmed.order(rank)) == kept
    limits = zip(trimmed.peak_activations, schedule.peak_activations, strict=True)
    assert all(peak <= before for peak, before in limits)


def test_trimming_keeps_whole_pairs():
    schedule = replace(written("0F0 0F1 0B0 0B1"), pairs=np.array([1]))
    assert trim(schedule, num_microbatches=2).pairs.tolist() == [1]
    assert trim(schedule, num_microbatches=1).pairs.tolist() == []


def test_trimming_to_more_than_there_is_is_refused():
    with pytest.raises(InvalidInput, match="must be <= 1, the schedule's, got 2"):
        trim(written("0F0 0B0"), num_microbatches=2)
