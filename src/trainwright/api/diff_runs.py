"""What `diff` compares of a model's plan or estimate: both are one run on a cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeGuard

from trainwright.api.diff import changes, same_content
from trainwright.api.diff_clusters import cluster_facts
from trainwright.errors import InvalidInput
from trainwright.model import DEFAULT_RECIPE
from trainwright.plan.overlap import DEFAULT_OVERLAP, NO_OVERHEADS
from trainwright.plan.results.difference import Change, Difference
from trainwright.plan.results.model_estimate import ModelEstimateResult
from trainwright.plan.results.model_plan import ModelPlanResult
from trainwright.profile import Recompute
from trainwright.units import without_noise

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trainwright.model import Recipe
    from trainwright.plan.overlap import MemoryOverheads, Overlap
    from trainwright.plan.parallelism import Parallelism

_KERNELS: Final = (
    "fused_attention",
    "fused_cross_entropy",
    "vocabulary_multiple",
    "recompute_modules",
)
Run: TypeAlias = ModelPlanResult | ModelEstimateResult


def run_difference(before: object, after: object) -> Difference:
    """Two runs of models, at least one of them an estimate.

    Raises `InvalidInput` where one of the documents is of another kind.
    """
    if not (is_run(before) and is_run(after)):
        kinds = " and ".join(str(getattr(each, "kind", each)) for each in (before, after))
        raise InvalidInput.of("documents", f"must be of one kind: {kinds} have nothing in common")
    old_s, new_s = before.step_time_s, after.step_time_s
    old, new = _asked_and_found(before, after), _asked_and_found(after, before)
    return Difference(
        same_model=same_content(before.request.model, after.request.model),
        time_ratio=new_s / old_s if old_s and new_s is not None else None,
        request_changes=tuple(_shared_changes(old[0], new[0]))
        + tuple(changes(*cluster_facts(before.request.cluster, after.request.cluster))),
        result_changes=tuple(_shared_changes(old[1], new[1])),
    )


def _asked_and_found(document: Run, other: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of a plan the layout was found; of estimates it was asked for, as the split was."""
    asked = asked_facts(document)
    if isinstance(document, ModelEstimateResult) and isinstance(other, ModelEstimateResult):
        return asked | _layout_of(document) | _split_of(document), _price_of(document)
    return asked, run_facts(document) | _split_of(document) | _recompute_of(document)


def _shared_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    """Differences in what both documents state: say, only a plan `recomputed_layers`."""
    shared = before.keys() & after.keys()
    return changes(
        {key: value for key, value in before.items() if key in shared},
        {key: value for key, value in after.items() if key in shared},
    )


def is_run(document: object) -> TypeGuard[Run]:
    """Whether a document is about one run of a model."""
    return isinstance(document, (ModelPlanResult, ModelEstimateResult))


def asked_facts(document: Run) -> dict[str, Any]:
    """Where, what and how was to be trained, beside the layout; a plan has the usual kernels."""
    from trainwright.planning.run_settings import RunSettings

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
        asked, kernels = document.request, RunSettings()
        facts |= {name: getattr(kernels, name) for name in _KERNELS}
        return facts | _facts_of(
            asked.recipe or DEFAULT_RECIPE,
            asked.overlap or DEFAULT_OVERLAP,
            asked.overheads or NO_OVERHEADS,
        )
    run = document.request.configuration
    facts["global_batch"] = run.global_batch
    facts["sequence_length"] = run.sequence_length
    facts |= {name: _plain(getattr(run, name)) for name in _KERNELS}
    return facts | _facts_of(run.recipe, run.overlap, run.overheads)


def _facts_of(*parts: Recipe | Overlap | MemoryOverheads) -> dict[str, Any]:
    return {key: _plain(value) for part in parts for key, value in asdict(part).items()}


def run_facts(document: Run) -> dict[str, Any]:
    """The layout and what it costs."""
    return _layout_of(document) | _price_of(document)


def _layout_of(document: Run) -> dict[str, Any]:
    if isinstance(document, ModelPlanResult):
        recomputed = sum(stage.num_recomputed for stage in document.stages)
        return {
            **layout_facts(document.parallelism),
            "micro_batch": document.micro_batch,
            "schedule": document.schedule,
            "recomputed_layers": recomputed if document.stages else None,
        }
    run = document.request.configuration
    return {
        **layout_facts(run.parallelism),
        "micro_batch": run.microbatch_size,
        "schedule": run.schedule,
        "recompute": str(run.recompute),
        "recompute_blocks": run.recompute_blocks,
    }


def _split_of(document: Run) -> dict[str, Any]:
    """Blocks of each virtual stage in pipeline order, where the document has stages."""
    from trainwright.api.jobs import job_of

    if isinstance(document, ModelPlanResult) and not document.stages:
        return {}
    return {"blocks_per_stage": list(job_of(document).blocks_per_stage)}


def _recompute_of(document: Run) -> dict[str, Any]:
    """What the blocks of each virtual stage recompute, however the document says so."""
    from trainwright.api.jobs import job_of

    if isinstance(document, ModelPlanResult) and not document.stages:
        return {}
    stages = job_of(document).stages
    return {"recompute_per_stage": [_recompute_words(stage.block_modes) for stage in stages]}


def _recompute_words(modes: Sequence[Recompute]) -> str:
    """One mode where all blocks agree, else how many are in each: "full 3, none 5"."""
    counts = Counter(modes)
    if len(counts) < 2:
        return str(next(iter(counts), Recompute.NONE))
    return ", ".join(f"{mode} {counts[mode]}" for mode in sorted(counts))


def _price_of(document: Run) -> dict[str, Any]:
    facts: dict[str, Any]
    if isinstance(document, ModelPlanResult):
        facts = {"peak_memory_bytes": max(document.peak_memory_bytes_per_rank, default=None)}
        parts_s = document.time_by_part_s
    else:
        facts = {"fits": document.fits, "peak_memory_bytes": document.peak_memory_bytes}
        parts_s = {**document.exposed_communication_s, "optimizer": document.optimizer_s}
    for name in ("step_time_s", "tokens_per_s", "mfu"):
        facts[name] = getattr(document, name)
    step_s = document.step_time_s or 0.0
    return facts | {f"{kind}_s": without_noise(time_s, step_s) for kind, time_s in parts_s.items()}


def layout_facts(degrees: Parallelism | None) -> dict[str, Any]:
    """The degrees of a layout, those of experts as devices per expert."""
    if degrees is None:
        return {}
    facts = asdict(degrees)
    return facts | {"expert_tensor": degrees.expert_shards if degrees.expert > 1 else None}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
