"""Which of several priced plans comes first, and which of those that are alike stands for all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.plan.axis_order import AXIS_ORDERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainwright.planning.aims import Aim
    from trainwright.planning.model_space import Candidate
    from trainwright.planning.split_plan import Priced


def best_first(priced: Iterable[Priced], aim: Aim | None = None) -> tuple[Priced, ...]:
    """Fastest first, or best by the aim; of equal plans the one that recomputes least, then uses
    least.

    Equal are figures that agree in twelve digits. Of plans that agree in all of them, as where
    context replaces data parallelism at no cost, the plainest stands for the others.
    """
    seen: set[tuple[object, ...]] = set()
    kept = []
    for found in sorted(priced, key=lambda each: (_key(each, aim), *_rank(each))):
        alike = _figures(found)
        if alike not in seen:
            seen.add(alike)
            kept.append(found)
    return tuple(kept)


def _key(found: Priced, aim: Aim | None) -> float:
    step_s = found.step.step_time_s
    return _rounded(step_s if aim is None else aim.key(step_s, found.plan.devices_used))


def _rank(found: Priced) -> tuple[float, ...]:
    return (
        _rounded(found.step.step_time_s),
        _recomputed_s(found),
        found.plan.devices_used,
        *_plainness(found.candidate),
        found.step.peak_memory_bytes,
        *_order(found.candidate),
    )


def _figures(found: Priced) -> tuple[object, ...]:
    plan = found.plan
    return (
        _rounded(found.step.step_time_s),
        _recomputed_s(found),
        plan.devices_used,
        _rounded(found.step.peak_memory_bytes),
        plan.schedule,
        tuple(stage.layers for stage in plan.stages),
    )


def _recomputed_s(found: Priced) -> float:
    """Seconds of devices that a step spends on recomputation."""
    plan = found.plan
    return _rounded(
        sum(
            part.recompute_s * placed.tensor_parallel * plan.num_microbatches
            for part, placed in zip(
                found.step.stages, plan.stages[: len(found.step.stages)], strict=True
            )
        )
        * found.candidate.context
    )


def _rounded(value: float) -> float:
    return float(f"{value:.11e}")


def _plainness(candidate: Candidate) -> tuple[int, ...]:
    """Fewer axes and less sharding come first."""
    return (
        candidate.context,
        candidate.expert,
        candidate.virtual_stages,
        candidate.zero_stage,
        AXIS_ORDERS.index(candidate.axis_order),
        candidate.state_copies,
        candidate.tensor,
    )


def _order(candidate: Candidate) -> tuple[int, ...]:
    return (
        candidate.pipeline,
        candidate.microbatch_size,
        -candidate.data,
    )
