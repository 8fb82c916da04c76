"""What `diff` compares of a model's plan or estimate: both are one run on a cluster."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from trainwright.api.diff import changes, same_content
from trainwright.api.diff_clusters import cluster_facts
from trainwright.errors import InvalidInput
from trainwright.model import DEFAULT_RECIPE
from trainwright.plan.overlap import DEFAULT_OVERLAP, NO_OVERHEADS
from trainwright.plan.results.difference import Change, Difference
from trainwright.plan.results.model_estimate import ModelEstimateResult
from trainwright.plan.results.model_plan import ModelPlanResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trainwright.model import Recipe
    from trainwright.plan.overlap import MemoryOverheads, Overlap
    from trainwright.plan.parallelism import Parallelism

Run: TypeAlias = ModelPlanResult | ModelEstimateResult


def run_difference(before: object, after: object) -> Difference:
    """Two runs of models, at least one of them an estimate.

    Raises `InvalidInput` where one of the documents is of another kind.
    """
    if not (is_run(before) and is_run(after)):
        kinds = " and ".join(str(getattr(each, "kind", each)) for each in (before, after))
        raise InvalidInput.of("documents", f"must be of one kind: {kinds} have nothing in common")
    old_s, new_s = before.step_time_s, after.step_time_s
    return Difference(
        same_model=same_content(before.request.model, after.request.model),
        time_ratio=new_s / old_s if old_s and new_s is not None else None,
        request_changes=tuple(_shared_changes(asked_facts(before), asked_facts(after)))
        + tuple(changes(*cluster_facts(before.request.cluster, after.request.cluster))),
        result_changes=tuple(_shared_changes(run_facts(before), run_facts(after))),
    )


def _shared_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    """Differences in what both documents state: a plan states no kernels, an estimate no search."""
    shared = before.keys() & after.keys()
    return changes(
        {key: value for key, value in before.items() if key in shared},
        {key: value for key, value in after.items() if key in shared},
    )


def is_run(document: object) -> TypeGuard[Run]:
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
        asked = document.request
        return facts | _facts_of(
            asked.recipe or DEFAULT_RECIPE,
            asked.overlap or DEFAULT_OVERLAP,
            asked.overheads or NO_OVERHEADS,
        )
    run = document.request.configuration
    facts["global_batch"] = run.global_batch
    facts["sequence_length"] = run.sequence_length
    for name in ("fused_attention", "fused_cross_entropy", "vocabulary_multiple"):
        facts[name] = getattr(run, name)
    return facts | _facts_of(run.recipe, run.overlap, run.overheads)


def _facts_of(*parts: Recipe | Overlap | MemoryOverheads) -> dict[str, Any]:
    return {key: _plain(value) for part in parts for key, value in asdict(part).items()}


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
