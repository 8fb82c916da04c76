"""What `diff` compares of a model's plan or estimate: both are one run on a cluster."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from trainwright.plan.results.model_estimate import ModelEstimateResult
from trainwright.plan.results.model_plan import ModelPlanResult

if TYPE_CHECKING:
    from trainwright.plan.parallelism import Parallelism

Run: TypeAlias = ModelPlanResult | ModelEstimateResult


def is_run(document: object) -> bool:
    """Whether a document is about one run of a model."""
    return isinstance(document, (ModelPlanResult, ModelEstimateResult))


def asked_facts(document: Run) -> dict[str, Any]:
    """Where and what was to be trained; of an estimate also what it states beside the layout."""
    request = document.request
    facts: dict[str, Any] = {
        "model": request.model.name,
        "cluster": request.cluster.name if request.cluster else None,
    }
    if isinstance(document, ModelPlanResult):
        workload = document.request.workload
        if workload is not None:
            facts["global_batch"] = workload.global_batch
            facts["sequence_length"] = workload.sequence_length
        return facts
    run = document.request.configuration
    facts["global_batch"] = run.global_batch
    facts["sequence_length"] = run.sequence_length
    for name in ("fused_attention", "fused_cross_entropy", "vocabulary_multiple"):
        facts[name] = getattr(run, name)
    for part in (run.recipe, run.overlap, run.overheads):
        facts |= {key: _plain(value) for key, value in asdict(part).items()}
    return facts


def run_facts(document: Run) -> dict[str, Any]:
    """The layout and what it costs."""
    if isinstance(document, ModelPlanResult):
        recomputed = sum(stage.num_recomputed for stage in document.stages)
        facts = {
            **layout_facts(document.parallelism),
            "micro_batch": document.micro_batch,
            "schedule": document.schedule,
            "recomputed_layers": recomputed if document.stages else None,
            "peak_memory_bytes": max(document.peak_memory_bytes_per_rank, default=None),
        }
        exposed_s = document.time_by_part_s
    else:
        run = document.request.configuration
        facts = {
            **layout_facts(run.parallelism),
            "micro_batch": run.microbatch_size,
            "schedule": run.schedule,
            "recompute": str(run.recompute),
            "recompute_blocks": run.recompute_blocks,
            "fits": document.fits,
            "peak_memory_bytes": document.peak_memory_bytes,
        }
        exposed_s = {**document.exposed_communication_s, "optimizer": document.optimizer_s}
    for name in ("step_time_s", "tokens_per_s", "mfu"):
        facts[name] = getattr(document, name)
    return facts | {f"{kind}_s": time_s for kind, time_s in exposed_s.items()}


def layout_facts(degrees: Parallelism | None) -> dict[str, Any]:
    """The degrees of a layout, those of experts as devices per expert."""
    if degrees is None:
        return {}
    facts = asdict(degrees)
    return facts | {"expert_tensor": degrees.expert_shards if degrees.expert > 1 else None}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
