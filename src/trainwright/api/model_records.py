"""The priced plan of a model, as a document carries it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.api.plan_profile import count_recomputed
from trainwright.plan.results.model_plan import ModelPlanResult, ModelStageRecord
from trainwright.plan.status import relative_gap

if TYPE_CHECKING:
    from trainwright.plan import Plan, StepPrediction
    from trainwright.profile import Profile


def with_plan(
    document: ModelPlanResult, plan: Plan, profile: Profile, step: StepPrediction
) -> ModelPlanResult:
    """The document with the plan's decisions and prices; its gap is to the document's bound."""
    return replace(
        document,
        step_time_s=step.step_time_s,
        gap=relative_gap(step.step_time_s, document.lower_bound_s or 0.0),
        time_per_sample_s=step.pipeline_s / plan.num_microbatches,
        tokens_per_s=step.tokens_per_s,
        mfu=step.mfu,
        bubble_of_makespan=max(0.0, step.bubble_of_makespan),
        exposed_gradient_sync_s=step.exposed_gradient_sync_s,
        optimizer_s=step.optimizer_s,
        parallelism=plan.parallelism,
        schedule=plan.schedule,
        micro_batch=plan.microbatch_size,
        devices_used=plan.devices_used,
        num_stages=len(plan.stages),
        stages=_stage_records(plan, profile, step),
        peak_memory_bytes_per_rank=tuple(s.memory.total_bytes for s in step.stages),
        assumptions=_assumptions(profile),
    )


def _stage_records(
    plan: Plan, profile: Profile, step: StepPrediction
) -> tuple[ModelStageRecord, ...]:
    return tuple(
        ModelStageRecord(
            layers=stage.layers,
            data_parallel=stage.data_parallel,
            tensor_parallel=stage.tensor_parallel,
            options={str(layer): option for layer, option in stage.option_of.items()},
            num_recomputed=count_recomputed(stage, profile),
            time_per_sample_s=(found.forward_s + found.backward_s) / stage.data_parallel,
            memory_bytes=found.memory.total_bytes,
            prediction=found,
        )
        for stage, found in zip(plan.stages, step.stages, strict=True)
    )


def _assumptions(profile: Profile) -> dict[str, str]:
    point, provenance = profile.point, profile.costs.provenance
    return {
        "times": f"{provenance.origin}: {provenance.source}",
        "precision": str(point.precision),
        "kernels": ", ".join(point.kernels),
        "optimizer": "Adam, states and master weights in 32 bit",
        "schedule": "1f1b, simulated",
    }
