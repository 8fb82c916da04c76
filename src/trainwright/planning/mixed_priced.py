"""Priced plans on several pools: what they cost, whether they fit, which of them is best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainwright.model import model_flops_per_sequence
from trainwright.pricing.mixed_step import predict_mixed_step

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainwright.plan import Plan
    from trainwright.plan.mixed_prediction import MixedPrediction
    from trainwright.planning.mixed_space import MixedShelf
    from trainwright.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How pools are used: "alone", "across" by the pipeline, or "beside" each other."""

    name: str
    pools: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPriced:
    """A plan, the profiles of its pools, and its predicted step."""

    shape: Shape
    plan: Plan
    profiles: dict[int, Profile]
    step: MixedPrediction


def priced_mixed(
    shelf: MixedShelf, shape: Shape, plan: Plan, profiles: dict[int, Profile]
) -> MixedPriced:
    """The plan with its price."""
    question = shelf.question
    flops = model_flops_per_sequence(question.model, question.workload.sequence_length)
    step = predict_mixed_step(
        plan,
        profiles,
        shelf.cluster,
        model_flops_per_sequence=flops,
        overheads=question.overheads,
    )
    return MixedPriced(shape=shape, plan=plan, profiles=profiles, step=step)


def fits(shelf: MixedShelf, step: MixedPrediction) -> bool:
    """Whether every rank has room in the devices of its own pool."""
    pools, needed_bytes = shelf.cluster.pools, shelf.question.overheads.needed_bytes
    return all(
        needed_bytes(stage.memory.total_bytes) <= pools[pool].accelerator.usable_bytes
        for chain in step.chains
        for pool, stage in zip(chain.pools, chain.step.stages, strict=True)
    )


def best_of_shapes(priced: Iterable[MixedPriced]) -> tuple[MixedPriced, ...]:
    """The fastest plan of each shape, fastest first; of equally fast ones that on fewest pools."""
    ordered = sorted(
        priced,
        key=lambda found: (
            float(f"{found.step.step_time_s:.11e}"),
            len(found.shape.pools),
            found.plan.devices_used,
            *_plainness(found.plan),
            found.shape.pools,
        ),
    )
    best: dict[Shape, MixedPriced] = {}
    for found in ordered:
        best.setdefault(found.shape, found)
    return tuple(best.values())


def _plainness(plan: Plan) -> tuple[int, ...]:
    """Fewer axes and less sharding come first."""
    degrees = plan.parallelism
    assert degrees is not None, "all stages share their degrees"
    return (
        degrees.context,
        degrees.expert,
        degrees.zero_stage,
        degrees.tensor,
        degrees.pipeline,
        plan.microbatch_size or 1,
    )
