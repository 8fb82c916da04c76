"""Timelines to draw."""

from __future__ import annotations

from functools import cache

from strategies_schedule import split_backward
from trainwright.pages.gantt import GanttPanel
from trainwright.plans.lowered import Timeline
from trainwright.plans.schedule import Action, Schedule, ScheduleCosts, ScheduleMemory
from trainwright.scheduling.families import FamilyRequest, generate
from trainwright.scheduling.simulate import critical_path, simulate
from trainwright.units import GIB


@cache
def timeline(
    *,
    family: str = "depth-first",
    ranks: int = 4,
    microbatches: int = 8,
    limit_gib: float = float("inf"),
) -> Timeline:
    """Split backwards, two chunks where the family has them, milliseconds and GiB."""
    request = FamilyRequest(num_ranks=ranks, num_microbatches=microbatches)
    fused = generate(family, request)
    schedule = Schedule.of_ranks(
        [split_backward(fused.actions[fused.rows_of(rank)]) for rank in range(ranks)],
        placement=fused.placement,
        num_microbatches=microbatches,
    )
    memory = ScheduleMemory.of(
        schedule.placement,
        forward_bytes=3 * GIB,
        input_grad_bytes=-1 * GIB,
        weight_grad_bytes=-2 * GIB,
        static_bytes=10 * GIB,
        limit_bytes=limit_gib * GIB,
    )
    costs = ScheduleCosts.of(
        schedule.placement,
        forward_s=3e-3,
        input_grad_s=4e-3,
        weight_grad_s=2e-3,
        transfer_s=0.4e-3,
        memory=memory,
    )
    return simulate(schedule, costs)


def paired() -> Timeline:
    """One rank on which a forward and a backward run at the same time."""
    order = [Action.parse(text) for text in ("0F0", "0F1", "0B0", "0B1")]
    schedule = Schedule.from_orders([order], pairs=[1])
    return simulate(schedule, ScheduleCosts.of(schedule.placement, pair_s=2.5))


def activations() -> Timeline:
    """Unit costs: memory counts what forwards leave."""
    schedule = generate("1f1b", FamilyRequest(num_ranks=3, num_microbatches=4))
    return simulate(schedule, ScheduleCosts.of(schedule.placement))


def idle_rank() -> Timeline:
    """Two ranks, and nothing to do for the second."""
    schedule = Schedule.from_orders([[Action.parse("0F0"), Action.parse("0B0")], []])
    return simulate(schedule, ScheduleCosts.of(schedule.placement))


def panel(drawn: Timeline, title: str = "Pipeline schedule") -> GanttPanel:
    return GanttPanel(timeline=drawn, title=title, critical=critical_path(drawn))
