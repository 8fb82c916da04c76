"""Where the time of a step goes, in parts that add up to it.

The busiest rank works m·(F + B) seconds; what the pipeline takes beyond that is waiting: for
transfers (what the pipeline would gain were they free) and for other ranks, the bubble. After it
come gradients that did not hide, the optimizer, and what every step takes once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainwright.pricing.stage_work import chosen_rows
from trainwright.profile import Recompute, TimeKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainwright.plan import Plan, StepPrediction
    from trainwright.profile import CostTable, Profile


def time_by_part_s(
    plan: Plan, profile: Profile, step: StepPrediction, *, rank_of_stage: Sequence[int]
) -> dict[str, float]:
    """Seconds of the step by part; their sum is the step time.

    `recompute` includes the communication it repeats, which tensor, context and expert then leave
    out; `data` is what data parallelism adds: gradients and parameters that do not hide.
    """
    return _parts_of_rank_s(plan, profile, step, rank_of_stage, _busiest(plan, step))


def ranks_by_part_s(
    plan: Plan, profile: Profile, step: StepPrediction, *, rank_of_stage: Sequence[int]
) -> tuple[dict[str, float], ...]:
    """The same for every pipeline rank: each fills the step, those that work less wait longer.

    Synchronisation inside microbatches (ZeRO 2 and 3) is known of the busiest rank; that of the
    others counts as compute.
    """
    return tuple(
        _parts_of_rank_s(plan, profile, step, rank_of_stage, rank)
        for rank in range(len(step.stages))
    )


def _parts_of_rank_s(
    plan: Plan, profile: Profile, step: StepPrediction, rank_of_stage: Sequence[int], number: int
) -> dict[str, float]:
    rank, m = step.stages[number], _microbatches(plan, step)[number]
    busy_s = m * (rank.forward_s + rank.backward_s)
    own = [stage for stage, owner in enumerate(rank_of_stage) if owner == number]
    repeated_s = _repeated_s(plan, profile, own)
    exposed_s = {part.kind: part.exposed_s for part in step.communication}
    shared_s = exposed_s.get("gradients", 0.0) + exposed_s.get("parameters", 0.0)
    is_busiest = number == _busiest(plan, step)
    inside_s = max(0.0, shared_s - rank.exposed_gradient_sync_s) if is_busiest else 0.0
    waiting_s = max(0.0, step.pipeline_s - busy_s)
    transfers_s = min(waiting_s, exposed_s.get("pipeline", 0.0))
    after_s = step.pipeline_s + step.exposed_gradient_sync_s + step.optimizer_s
    parts_s = {
        "recompute": m * rank.recompute_s,
        "tensor": m * (rank.tensor_parallel_s - repeated_s[TimeKind.TENSOR_PARALLEL]),
        "context": m * (rank.context_parallel_s - repeated_s[TimeKind.CONTEXT_PARALLEL]),
        "expert": m * (rank.expert_parallel_s - repeated_s[TimeKind.EXPERT_PARALLEL]),
        "data": inside_s + step.exposed_gradient_sync_s,
        "transfers": transfers_s,
        "bubble": waiting_s - transfers_s,
        "optimizer": step.optimizer_s,
        "overhead": max(0.0, step.step_time_s - after_s),
    }
    parts_s = {name: max(0.0, spent_s) for name, spent_s in parts_s.items()}
    return {"compute": step.step_time_s - sum(parts_s.values()), **parts_s}


def _busiest(plan: Plan, step: StepPrediction) -> int:
    """The rank that works longest."""
    busy_s = [
        m * (s.forward_s + s.backward_s)
        for m, s in zip(_microbatches(plan, step), step.stages, strict=True)
    ]
    return busy_s.index(max(busy_s))


def _microbatches(plan: Plan, step: StepPrediction) -> list[int]:
    """How many each rank works on."""
    data = plan.parallelism.data if plan.parallelism is not None else None
    return [
        plan.num_microbatches // (data or plan.stages[rank].data_parallel)
        for rank in range(len(step.stages))
    ]


def _repeated_s(plan: Plan, profile: Profile, stages: Sequence[int]) -> NDArray[np.float64]:
    """Seconds by `TimeKind` that recomputation adds to a microbatch in these stages, shape [4]."""
    costs = profile.costs
    added = np.zeros(len(TimeKind))
    if costs.time_by_kind_s is None:
        return added
    rows = chosen_rows(plan, profile)
    for stage in stages:
        for row in rows[stage].tolist():
            if (plain := _without_recompute(costs, row)) is not None:
                added += costs.time_by_kind_s[row] - costs.time_by_kind_s[plain]
    return added


def _without_recompute(costs: CostTable, row: int) -> int | None:
    """The same layer at the same degree, nothing repeated; None where it is the row itself."""
    if costs.recompute[row] is Recompute.NONE:
        return None
    own = costs.rows_of(int(np.searchsorted(costs.class_offsets, row, side="right")) - 1)
    degree = costs.tensor_parallel[row]
    return next(
        (
            r
            for r in own
            if costs.recompute[r] is Recompute.NONE and costs.tensor_parallel[r] == degree
        ),
        None,
    )
