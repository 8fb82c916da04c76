"""`trainwright diff`: two documents, only what differs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeGuard

from trainwright.cluster import Cluster
from trainwright.commands.output import emit
from trainwright.documents.difference import (
    Change,
    Difference,
    StageChange,
    StageFacts,
    cluster_facts,
)
from trainwright.documents.model_estimate import ModelEstimateResult
from trainwright.documents.model_plan import ModelPlanResult, ModelStageRecord
from trainwright.documents.open import load_any_document, plan_meant, priced_plan
from trainwright.documents.placement import PlacedStageRecord, PlacementResult
from trainwright.documents.plan_view import devices_by_pool, order_in_words
from trainwright.documents.printing import Report
from trainwright.documents.profile_plan import StageRecord
from trainwright.documents.registry import COMPARABLE
from trainwright.documents.runs import stated_length
from trainwright.documents.schedule import ScheduleResult
from trainwright.errors import InvalidInput
from trainwright.formats.document_json import decode
from trainwright.model import DEFAULT_RECIPE
from trainwright.plans import configuration
from trainwright.plans.plan import Embedded, Parallelism, SpanRecord
from trainwright.plans.status import OPTIMAL_TOLERANCE
from trainwright.profile import Recompute
from trainwright.units import TimeUnit, without_noise

if TYPE_CHECKING:
    from trainwright.documents.open import AnyDocument, Priced
    from trainwright.model import Recipe

    AnyStage: TypeAlias = StageRecord | ModelStageRecord | PlacedStageRecord
    Compared: TypeAlias = Priced | PlacementResult


def diff(first: AnyDocument, second: AnyDocument) -> Report[Difference]:
    """Compare two documents (paths or results): plans or estimates, placements, or schedules.

    The estimate of a model is compared with another one or with a model's plan; a what-if stands
    for the plan with its changes, a sweep for that of its best row. Raises `InvalidInput` with
    every fault of the first file that has one, and for documents of kinds that have nothing in
    common.
    """
    before, after = _open(first), _open(second)
    if "model-estimate" in (before.kind, after.kind):
        return Report(run_difference(before, after))
    if isinstance(before, ScheduleResult) and isinstance(after, ScheduleResult):
        return Report(_schedule_difference(before, after))
    apart = isinstance(before, PlacementResult) != isinstance(after, PlacementResult)
    if isinstance(before, ScheduleResult) or isinstance(after, ScheduleResult) or apart:
        problem = f"must be of one kind: {before.kind} and {after.kind} have nothing in common"
        raise InvalidInput.of("documents", problem)
    return Report(
        Difference(
            same_model=same_content(before.request.model, after.request.model),
            time_ratio=_time_ratio(before, after),
            request_changes=tuple(changes(_request_facts(before), _request_facts(after)))
            + tuple(changes(*cluster_facts(_cluster(before), _cluster(after)))),
            result_changes=tuple(changes(_result_facts(before), _result_facts(after))),
            stage_changes=tuple(_stage_changes(before.stages, after.stages)),
        )
    )


def _open(document: AnyDocument) -> Any:
    """Any document that can be compared; its type is that of its kind."""
    found = document.document if isinstance(document, Report) else document
    if isinstance(found, (str, Path)):
        found = load_any_document(found)
    elif found.kind not in COMPARABLE:
        wanted = ", ".join(f'"{kind}"' for kind in COMPARABLE)
        raise InvalidInput.of("kind", f'must be one of {wanted}, got "{found.kind}"')
    return priced_plan(plan_meant(found))


def _schedule_difference(before: ScheduleResult, after: ScheduleResult) -> Difference:
    return Difference(
        same_model=before.request.costs.content == after.request.costs.content,
        time_ratio=time_ratio(before, after),
        request_changes=tuple(changes(request_facts(before), request_facts(after))),
        result_changes=tuple(changes(result_facts(before), result_facts(after))),
    )


def _time_ratio(before: Compared, after: Compared) -> float | None:
    """Time of the second over the first, where both state the same kind of time."""
    name = _objective(before)
    old_s, new_s = getattr(before, name), getattr(after, name, None)
    if name != _objective(after) or not old_s or new_s is None:
        return None
    ratio: float = new_s / old_s
    return ratio if math.isfinite(ratio) else None


def _objective(document: Compared) -> str:
    """What the document's time is about: a step, a batch, or a microbatch at steady state."""
    if isinstance(document, PlacementResult):
        return "time_per_batch_s"
    return "step_time_s" if isinstance(document, ModelPlanResult) else "time_per_sample_s"


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    """The keys whose values differ."""
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        if isinstance(old, float) and isinstance(new, float):
            if math.isclose(old, new, rel_tol=_ROUNDING):
                continue
        elif old == new:
            continue
        yield Change(key=key, before=old, after=new)


_ROUNDING: Final = 1e-12  # sums of the same parts in another order


def _cluster(document: Compared) -> Embedded | None:
    """What a model's plan runs on; a flat question has a setting instead."""
    return (
        document.request.cluster
        if isinstance(document.request, configuration.PlanRequest)
        else None
    )


def _request_facts(document: Compared) -> dict[str, Any]:
    request = document.request
    facts: dict[str, Any] = {
        "model": request.model.name,
        "cluster": None if (cluster := _cluster(document)) is None else cluster.name,
        "num_devices": getattr(request, "num_devices", None),
        "cost_model": request.cost_model,
        "time_limit_s": request.time_limit_s,
    }
    for name in ("setting", "workload", "overheads", "space", "recipe", "overlap"):
        part = getattr(request, name, None)
        for field in fields(part) if part is not None else ():
            value = getattr(part, field.name)
            facts[field.name] = _plain(value)
    if isinstance(request, configuration.PlanRequest):
        facts |= asdict(request.kernels or configuration.USUAL_KERNELS)
    return facts


def _plain(value: Any) -> Any:
    """As a document holds it; a range of degrees as it is written on the command line."""
    if isinstance(value, SpanRecord):
        most = "" if value.most is None else value.most
        return str(value.least) if value.least == value.most else f"{value.least}..{most}"
    return list(value) if isinstance(value, tuple) else value


def _result_facts(document: Compared) -> dict[str, Any]:
    names = ("status", "fits", "devices_used", "num_stages", "gap", _objective(document))
    facts = {name: getattr(document, name, None) for name in names}
    if isinstance(document, ModelPlanResult):
        facts = {**facts, **run_facts(document), "order": order_in_words(document)}
        if document.groups:
            facts |= {"use_of_pools": document.layout, "devices_by_pool": devices_by_pool(document)}
    if (gap := facts["gap"]) is not None and gap <= OPTIMAL_TOLERANCE:
        facts["gap"] = 0.0
    return facts


def _stage_changes(before: Sequence[AnyStage], after: Sequence[AnyStage]) -> Iterator[StageChange]:
    for index, (old, new) in enumerate(zip_longest(map(_facts, before), map(_facts, after))):
        if old != new:
            yield StageChange(stage=index, before=old, after=new)


def _facts(stage: AnyStage) -> StageFacts:
    if isinstance(stage, PlacedStageRecord):
        return StageFacts(
            layers=stage.layers,
            data_parallel=stage.data_parallel,
            tensor_parallel=stage.tensor_parallel,
            num_recomputed=stage.num_recomputed,
            time_per_sample_s=stage.load_s,
            memory_bytes=stage.memory_bytes,
        )
    return StageFacts(**{field.name: getattr(stage, field.name) for field in fields(StageFacts)})


def same_content(before: Embedded, after: Embedded) -> bool:
    """Whether two inputs are one model, whatever their files are called and say of the machine."""
    return before.kind == after.kind and _model_in(before) == _model_in(after)


def _model_in(part: Embedded) -> object:
    points = part.content.get("points") if part.kind == "profile" else None
    if not isinstance(points, list):
        return part.content
    return [{key: point[key] for key in point if key != "provenance"} for point in points]


# What `diff` compares of a model's plan or estimate: both are one run on a cluster
# ---------------------------------------------------------------------------------

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
    for (asked, _), run in ((old, before), (new, after)):
        asked["precision"] = asked.get("precision") or _usual_precision(run)
    return Difference(
        same_model=same_content(before.request.model, after.request.model),
        time_ratio=new_s / old_s if old_s and new_s is not None else None,
        request_changes=tuple(_shared_changes(old[0], new[0]))
        + tuple(changes(*cluster_facts(before.request.cluster, after.request.cluster))),
        result_changes=tuple(_shared_changes(old[1], new[1])),
    )


def _usual_precision(document: Run) -> str | None:
    """The number format of a run that states none: the usual one of the devices of its one pool."""
    where = document.request.cluster
    pools = () if where is None else decode(Cluster, where.content).pools
    return pools[0].accelerator.default_precision if len(pools) == 1 else None


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
        facts |= asdict(asked.kernels or configuration.USUAL_KERNELS)
        facts["recompute_modules"] = _plain_run(asked.space.recompute_modules)
        return facts | _facts_of(
            asked.recipe or DEFAULT_RECIPE,
            asked.overlap or configuration.DEFAULT_OVERLAP,
            asked.overheads or configuration.NO_OVERHEADS,
        )
    run = document.request.configuration
    facts["global_batch"] = run.global_batch
    facts["sequence_length"] = (
        stated_length(run) if request.model.kind == "profile" else run.sequence_length
    )
    facts |= asdict(run.kernels) | {"recompute_modules": _plain_run(run.recompute_modules)}
    return facts | _facts_of(run.recipe, run.overlap, run.overheads)


def _facts_of(
    *parts: Recipe | configuration.Overlap | configuration.MemoryOverheads,
) -> dict[str, Any]:
    return {key: _plain_run(value) for part in parts for key, value in asdict(part).items()}


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
    from trainwright.documents.jobs import block_modes

    if isinstance(document, ModelPlanResult) and not document.stages:
        return {}
    return {"blocks_per_stage": [len(modes) for modes in block_modes(document)]}


def _recompute_of(document: Run) -> dict[str, Any]:
    """What the blocks of each virtual stage recompute, however the document says so."""
    from trainwright.documents.jobs import block_modes

    if isinstance(document, ModelPlanResult) and not document.stages:
        return {}
    return {"recompute_per_stage": [_recompute_words(modes) for modes in block_modes(document)]}


def _recompute_words(modes: Sequence[Recompute]) -> str:
    """One mode where all blocks agree, else how many are in each: "full 3, none 5"."""
    counts = Counter(modes)
    if len(counts) < 2:
        return str(next(iter(counts), Recompute.NONE))
    return ", ".join(f"{mode} {counts[mode]}" for mode in sorted(counts))


def _price_of(document: Run) -> dict[str, Any]:
    facts: dict[str, Any]
    if isinstance(document, ModelPlanResult):
        facts = {"peak_memory_bytes": document.peak_memory_bytes}
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


def _plain_run(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# What differs between two schedule documents: what was asked, and what came out
# ------------------------------------------------------------------------------

_ASKED = (
    *("method", "num_ranks", "num_microbatches", "family", "placement", "virtual_stages"),
    *("group", "max_activations", "orders_name", "seed", "evaluations", "time_limit_s"),
)


def request_facts(document: ScheduleResult) -> dict[str, Any]:
    """What was asked, by name."""
    request = document.request
    asked = {name: getattr(request, name) for name in _ASKED}
    return {"costs": request.costs.name, "objective": document.objective, **asked}


def result_facts(document: ScheduleResult) -> dict[str, Any]:
    """What came out, by name; a time's key ends in its unit."""
    unit = "slots" if document.request.time_unit is TimeUnit.SLOTS else "s"
    gap = document.gap
    return {
        "status": str(document.status),
        "family": document.family,
        "chunks_per_rank": document.chunks_per_rank,
        f"makespan_{unit}": document.makespan_s,
        f"span_{unit}": document.span_s,
        "peak_activations_per_rank": list(document.peak_activations_per_rank) or None,
        "peak_memory_bytes": document.peak_memory_bytes,
        "gap": 0.0 if gap is not None and gap <= OPTIMAL_TOLERANCE else gap,
    }


def time_ratio(before: ScheduleResult, after: ScheduleResult) -> float | None:
    """Time of the second over the first, of what both were made short in."""
    spans = before.objective == after.objective == "span"
    old_s, new_s = (x.span_s if spans else x.makespan_s for x in (before, after))
    if not old_s or new_s is None or before.request.time_unit != after.request.time_unit:
        return None
    return new_s / old_s if math.isfinite(new_s / old_s) else None


# `trainwright diff`
# ------------------


def command(first: str, second: str, *, as_json: bool = False) -> None:
    """Print what differs."""
    emit(diff(first, second), as_json=as_json, output=None)
