"""The priced plan of a model, as a document carries it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from trainwright.api.plan_profile import count_recomputed
from trainwright.model import precision_named
from trainwright.plan.overlap import DEFAULT_OVERLAP
from trainwright.plan.parallelism import Parallelism
from trainwright.plan.results.model_plan import (
    UNEVEN_STAGES,
    Alternative,
    ModelPlanResult,
    ModelStageRecord,
)
from trainwright.plan.status import relative_gap
from trainwright.planning.v_uneven import is_uneven
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trainwright.cluster import Accelerator
    from trainwright.model import Precision, Recipe
    from trainwright.plan import Plan, StepPrediction
    from trainwright.plan.overlap import MemoryOverheads, Overlap
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.planning.split_plan import Priced
    from trainwright.pricing.interval import TimeRange
    from trainwright.profile import Profile

_USUAL_STATE: Final = "Adam, states and master weights in 32 bit"


def with_plan(
    document: ModelPlanResult,
    question: ModelQuestion,
    plan: Plan,
    profile: Profile,
    step: StepPrediction,
) -> ModelPlanResult:
    """The document with the plan's decisions and prices; its gap is to the document's bound."""
    spread = step_range(question, plan)
    tokens_per_s = step.tokens_per_s
    return replace(
        document,
        step_time_s=step.step_time_s,
        step_time_low_s=spread.low_ratio * step.step_time_s,
        step_time_high_s=spread.high_ratio * step.step_time_s,
        gap=relative_gap(step.step_time_s, document.lower_bound_s or 0.0),
        gap_all=None
        if document.lower_bound_all_s is None
        else relative_gap(step.step_time_s, document.lower_bound_all_s),
        time_per_sample_s=step.pipeline_s / plan.num_microbatches,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=tokens_per_s / plan.devices_used if tokens_per_s else None,
        mfu=step.mfu,
        time_by_part_s=parts_of(question, plan, profile, step),
        bubble_of_makespan=max(0.0, step.bubble_of_makespan),
        exposed_gradient_sync_s=step.exposed_gradient_sync_s,
        optimizer_s=step.optimizer_s,
        parallelism=plan.parallelism,
        schedule=plan.schedule,
        order=plan.order,
        named_step_time_s=named_step_s(question, plan, profile),
        micro_batch=plan.microbatch_size,
        devices_used=plan.devices_used,
        num_stages=len(plan.stages),
        stages=_stage_records(plan, profile, step, rank_of_stage(question, plan)),
        ranks=step.stages,
        peak_memory_bytes_per_rank=tuple(s.memory.total_bytes for s in step.stages),
        assumptions=_assumptions(question, profile, plan, spread),
    )


def named_step_s(question: ModelQuestion, plan: Plan, profile: Profile) -> float | None:
    """The step of the stages in the order of the family that a searched order began with."""
    if plan.order is None:
        return None
    from trainwright.api.recompute import inside
    from trainwright.api.recompute_model import predicted
    from trainwright.scheduling.families import family_named

    with inside("order"):
        family = family_named(plan.order.family).name
    named = replace(plan, schedule=family, order=None)
    return predicted(question, named, profile).step_time_s


def alternatives(question: ModelQuestion, priced: Sequence[Priced]) -> Iterator[Alternative]:
    """The runners-up that have one degree for all stages, and what they lose to the first."""
    if not priced:
        return
    best = priced[0]
    best_parts = parts_of(question, best.plan, best.profile, best.step)
    for other in priced[1:]:
        degrees, micro_batch = other.plan.parallelism, other.plan.microbatch_size
        if degrees is None or micro_batch is None:
            continue
        parts = parts_of(question, other.plan, other.profile, other.step)
        yield Alternative(
            parallelism=degrees,
            micro_batch=micro_batch,
            schedule=other.plan.schedule,
            num_recomputed=sum(count_recomputed(s, other.profile) for s in other.plan.stages),
            devices_used=other.plan.devices_used,
            step_time_s=other.step.step_time_s,
            slowdown=other.step.step_time_s / best.step.step_time_s,
            peak_memory_bytes=other.step.peak_memory_bytes,
            lost_s={name: parts[name] - spent_s for name, spent_s in best_parts.items()},
        )


def parts_of(
    question: ModelQuestion, plan: Plan, profile: Profile, step: StepPrediction
) -> dict[str, float]:
    """Where the step's time goes; see `pricing.step_parts`."""
    from trainwright.pricing.step_parts import time_by_part_s

    return time_by_part_s(plan, profile, step, rank_of_stage=rank_of_stage(question, plan))


def rank_of_stage(question: ModelQuestion, plan: Plan) -> Sequence[int]:
    """The pipeline rank of each virtual stage."""
    from trainwright.pricing.placement import Placement

    placement = Placement(plan=plan, pool=question.cluster.pool_of())
    return placement.rank_of_stage if placement.is_uniform else range(len(plan.stages))


def step_range(question: ModelQuestion, plan: Plan) -> TimeRange:
    """The ratios to the predicted step that hold nine of ten measured ones.

    Stages that differ count by their narrowest tensor group, which scatters most.
    """
    from trainwright.plan.configuration import Configuration
    from trainwright.pricing.interval import time_range

    narrowest = Parallelism(
        tensor=min(stage.tensor_parallel for stage in plan.stages),
        pipeline=len(plan.stages),
        data=max(stage.data_parallel for stage in plan.stages),
    )
    run = Configuration(
        parallelism=plan.parallelism or narrowest,
        microbatch_size=plan.microbatch_size or 1,
        global_batch=question.workload.global_batch,
        sequence_length=question.workload.sequence_length,
        schedule=plan.schedule,
    )
    return time_range(question.model, question.cluster, run)


def _stage_records(
    plan: Plan, profile: Profile, step: StepPrediction, ranks: Sequence[int]
) -> tuple[ModelStageRecord, ...]:
    from trainwright.pricing.stage_work import chosen_rows

    own_s = [float(profile.costs.duration_s[rows].sum()) for rows in chosen_rows(plan, profile)]
    of_rank_s = [0.0] * len(step.stages)
    for rank, time_s in zip(ranks, own_s, strict=True):
        of_rank_s[rank] += time_s
    return tuple(
        ModelStageRecord(
            layers=stage.layers,
            data_parallel=stage.data_parallel,
            tensor_parallel=stage.tensor_parallel,
            options={str(layer): option for layer, option in stage.option_of.items()},
            num_recomputed=count_recomputed(stage, profile),
            time_per_sample_s=(
                (step.stages[rank].forward_s + step.stages[rank].backward_s)
                * (time_s / of_rank_s[rank] if of_rank_s[rank] > 0 else 0.0)
                / stage.data_parallel
            ),
            memory_bytes=step.stages[rank].memory.total_bytes,
            rank=rank,
        )
        for stage, rank, time_s in zip(plan.stages, ranks, own_s, strict=True)
    )


def mfu_in_words(devices: Iterable[Accelerator], numbers: Precision) -> str:
    """What MFU and HFU count, and the peak per device that they are shares of."""
    dtype = numbers.matmul_dtype
    peaks = ", ".join(
        f"{device.peak(dtype) / 1e12:,.4g} TFLOP/s of {device.name}"
        for device in dict.fromkeys(devices)
    )
    return (
        "FLOPs of forward and backward, attention in full (a causal mask halves nothing, a sliding "
        "window limits it), without recomputation, which HFU adds; of the dense "
        f"{dtype} peak, {peaks}"
    )


def memory_assumption(device: Accelerator, overheads: MemoryOverheads) -> str:
    """What of a device a run may fill, and what is kept beside it."""
    parts = [
        f"{device.usable_fraction:.0%} of the device usable",
        f"fragmentation {overheads.fragmentation:.0%}",
    ]
    if overheads.reserve_bytes:
        parts.append(f"{format_bytes(overheads.reserve_bytes)} kept free")
    return ", ".join(parts)


def _assumptions(
    question: ModelQuestion, profile: Profile, plan: Plan, spread: TimeRange
) -> dict[str, str]:
    point, provenance = profile.point, profile.costs.provenance
    recipe, overlap = question.settings.recipe, question.settings.overlap
    numbers = recipe.numbers(str(point.precision))
    is_usual = numbers == replace(
        precision_named(numbers.name), dispatch_bytes=numbers.dispatch_bytes
    )
    found = {
        "times": f"{provenance.origin}: {provenance.source}",
        "range": spread.source,
        "mfu": mfu_in_words((question.cluster.accelerator,), numbers),
        "precision": str(point.precision),
        "kernels": ", ".join(point.kernels),
        "optimizer": _USUAL_STATE if is_usual else state_in_words(recipe, numbers),
        "schedule": _schedule_in_words(plan),
        "memory": memory_assumption(question.cluster.accelerator, question.overheads),
    }
    if is_uneven(plan, profile):
        found["schedule"] += f"; {UNEVEN_STAGES}"
    if plan.parallelism is not None and plan.parallelism.expert > 1:
        found["dispatch"] = recipe.dispatch_in_words
    if overlap != DEFAULT_OVERLAP:
        found["overlap"] = overlap_in_words(overlap)
    return found


def _schedule_in_words(plan: Plan) -> str:
    if plan.order is None:
        return f"{plan.schedule}, simulated"
    return (
        f"{plan.schedule}, simulated: an order found from {plan.order.family}, "
        "outside the space that the bound is on"
    )


def state_in_words(recipe: Recipe, numbers: Precision) -> str:
    """The optimizer, and what a parameter keeps."""
    return (
        f"{recipe.optimizer}: {numbers.weight_bytes} + {numbers.gradient_bytes} + "
        f"{numbers.optimizer_bytes} bytes per parameter (weight, gradient, optimizer)"
    )


def overlap_in_words(overlap: Overlap) -> str:
    """The share of every kind."""
    return ", ".join(f"{name} {share:.0%}" for name, share in asdict(overlap).items())
