"""Every action of a step with its time and memory: what the price of a plan was computed from.

The price needs ends and peaks only, so long steps are extrapolated there. Here all microbatches are
simulated under the same schedule, stage times and transfers: the last action ends when the priced
pipeline does, and every rank is as full as its price says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainwright.plan.overlap import DEFAULT_OVERLAP, NO_OVERHEADS
from trainwright.plan.schedule import ActionKind
from trainwright.plan.schedule_memory import ScheduleMemory
from trainwright.pricing.assemble import (
    activations_of,
    assemble_step,
    pipeline_times,
    sharing_times,
)
from trainwright.pricing.memory_curve import rank_peaks
from trainwright.pricing.mixed_step import mixed_works
from trainwright.pricing.pipeline_run import schedule_of
from trainwright.pricing.step import work_of_plan
from trainwright.scheduling.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainwright.cluster import Cluster
    from trainwright.plan import Plan, StepPrediction
    from trainwright.plan.overlap import MemoryOverheads, Overlap
    from trainwright.plan.schedule import Schedule
    from trainwright.plan.timeline import Timeline
    from trainwright.pricing.assemble import Layout, StepWork
    from trainwright.profile import Profile


def step_timeline(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    *,
    overlap: Overlap = DEFAULT_OVERLAP,
    overheads: MemoryOverheads = NO_OVERHEADS,
) -> Timeline:
    """The pipeline of one step; memory includes all that a device keeps, its limit is the device's.

    Costs memory and time in proportion to the actions, 2 · stages · microbatches. Raises like
    `predict_step`, and `UnsupportedFeature` for stages that branch or differ in degrees.
    """
    work, layout = work_of_plan(plan, profile, cluster, overlap=overlap, overheads=overheads)
    return timeline_of(work, layout)


def chain_timeline(
    plan: Plan,
    profiles: Mapping[int, Profile],
    cluster: Cluster,
    *,
    chain: int,
    overheads: MemoryOverheads = NO_OVERHEADS,
) -> Timeline:
    """The same for one chain (by number) of a plan on several pools; raises as its price does."""
    _, work, layout = mixed_works(plan, profiles, cluster, overheads=overheads)[chain]
    return timeline_of(work, layout)


def timeline_of(work: StepWork, layout: Layout) -> Timeline:
    """What a step does on its ranks, action by action."""
    times = pipeline_times(work, sharing_times(work, layout), layout.overlap)
    schedule = schedule_of(layout.shape, times)
    costs = times.schedule_costs(
        schedule.placement,
        memory=_memory(work, layout, schedule),
        transfer_model=times.transfer_model,
    )
    return simulate(schedule, costs)


def _memory(work: StepWork, layout: Layout, schedule: Schedule) -> ScheduleMemory:
    """Whatever does not come and go with the actions is static."""
    kept = activations_of(work)
    step: StepPrediction = assemble_step(work, layout)
    peaks = rank_peaks(schedule, kept)
    static = [
        stage.memory.total_bytes - peak.total_bytes
        for stage, peak in zip(step.stages, peaks, strict=True)
    ]
    return ScheduleMemory.of(
        schedule.placement,
        forward_bytes=kept.until_input_grad + kept.until_weight_grad,
        input_grad_bytes=-kept.until_input_grad,
        weight_grad_bytes=-kept.until_weight_grad,
        transient_bytes={ActionKind.I: kept.transient, ActionKind.B: kept.transient},
        static_bytes=np.array(static),
        limit_bytes=np.array([place.accelerator.usable_bytes for place in layout.places]),
    )
