"""Schedule and costs to timeline, through the native simulator (`native/simulate.hpp`)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from trainwright._native import _core
from trainwright.errors import Fault, InvalidInput
from trainwright.plan.timeline import Timeline
from trainwright.scheduling.deadlock import describe_cycle, find_cycle

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plan.per_stage import Floats
    from trainwright.plan.schedule import Schedule
    from trainwright.plan.schedule_costs import ScheduleCosts
    from trainwright.plan.schedule_memory import ScheduleMemory


def simulate(schedule: Schedule, costs: ScheduleCosts) -> Timeline:
    """Run every action at its earliest time.

    Raises InvalidInput where the costs describe another number of stages or ranks, and where the
    orders deadlock; the message names the cycle.
    """
    _require_same_shape(schedule, costs)
    orders = native_orders(schedule)
    simulation = _core.simulate(orders, native_costs(costs))
    if not simulation.complete:
        problem = describe_cycle(find_cycle(schedule, simulation))
        raise InvalidInput.of("orders", problem)
    shape = (schedule.placement.num_stages, schedule.num_microbatches)
    return Timeline(
        schedule=schedule,
        costs=costs,
        start_s=simulation.start_s,
        end_s=simulation.end_s,
        forward_arrival_s=simulation.forward_arrival_s.reshape(shape),
        backward_arrival_s=simulation.backward_arrival_s.reshape(shape),
        peak_bytes=_core.peak_bytes(orders, native_memory(costs.memory)),
    )


def slack(timeline: Timeline) -> Floats:
    """How long each action could be delayed without a later end of all, shape [n], orders kept."""
    orders, costs = native_orders(timeline.schedule), native_costs(timeline.costs)
    last_end_s = np.full(timeline.schedule.num_ranks, timeline.end_s.max())
    return _core.latest_starts(orders, costs, last_end_s) - timeline.start_s


def native_orders(schedule: Schedule) -> _core.Orders:
    """The orders as the core takes them; no copies of the large arrays."""
    return _core.Orders(
        actions=schedule.actions,
        rank_offsets=schedule.rank_offsets,
        rank_of_stage=_ranks(schedule.placement.rank_of_stage),
        pairs=schedule.pairs,
        num_microbatches=schedule.num_microbatches,
    )


@lru_cache(maxsize=64)
def _ranks(rank_of_stage: tuple[int, ...]) -> NDArray[np.int32]:
    ranks: NDArray[np.int32] = np.array(rank_of_stage, np.int32)
    ranks.flags.writeable = False
    return ranks


@lru_cache(maxsize=4)  # the same costs time many schedules, one after the other
def native_costs(costs: ScheduleCosts) -> _core.ActionCosts:
    """The times as the core takes them."""
    return _core.ActionCosts(
        duration_s=costs.duration_s,
        forward_transfer_s=costs.forward_transfer_s,
        backward_transfer_s=costs.backward_transfer_s,
        pair_s=costs.pair_s,
        model=costs.transfer_model.value,
        blocking_fraction=costs.blocking_fraction,
    )


@lru_cache(maxsize=4)
def native_memory(memory: ScheduleMemory) -> _core.ActionMemory:
    """The memory model as the core takes it."""
    return _core.ActionMemory(
        delta_bytes=memory.delta_bytes,
        transient_bytes=memory.transient_bytes,
        static_bytes=memory.static_bytes,
        limit_bytes=memory.limit_bytes,
    )


def _require_same_shape(schedule: Schedule, costs: ScheduleCosts) -> None:
    placement = schedule.placement
    faults = [
        Fault(f"costs.{name}", f"must be {wanted}, as in the schedule, got {got}")
        for name, wanted, got in (
            ("num_stages", placement.num_stages, costs.num_stages),
            ("num_ranks", placement.num_ranks, costs.memory.num_ranks),
        )
        if wanted != got
    ]
    if faults:
        raise InvalidInput(faults)
