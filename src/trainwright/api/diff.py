"""`trainwright diff`: two documents, only what differs."""

from __future__ import annotations

import math
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from trainwright.api.diff_clusters import cluster_facts
from trainwright.api.documents import (
    KINDS,
    OF_SEVERAL_POOLS,
    AnyDocument,
    Priced,
    load_any_document,
)
from trainwright.api.printed import Report
from trainwright.errors import InvalidInput
from trainwright.plan.results.difference import Change, Difference, StageChange, StageFacts
from trainwright.plan.results.model_plan import ModelPlanResult
from trainwright.plan.results.model_sweep import ModelSweepResult
from trainwright.plan.results.placement import PlacedStageRecord, PlacementResult
from trainwright.plan.results.request import SpanRecord
from trainwright.plan.results.schedule import ScheduleResult
from trainwright.plan.results.what_if import WhatIfResult
from trainwright.plan.status import OPTIMAL_TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trainwright.plan.results.model_plan import ModelStageRecord
    from trainwright.plan.results.plan import StageRecord
    from trainwright.plan.results.request import Embedded

    AnyStage: TypeAlias = StageRecord | ModelStageRecord | PlacedStageRecord
    Compared: TypeAlias = Priced | PlacementResult


COMPARED: Final = (
    *KINDS,
    "model-estimate",
    "whatif",
    "model-sweep",
)  # a sweep says why it cannot be


def diff(first: AnyDocument, second: AnyDocument) -> Report[Difference]:
    """Compare two documents (paths or results): plans or estimates, placements, or schedules.

    The estimate of a model is compared with another one or with a model's plan; a what-if stands
    for the plan with its changes. Raises `InvalidInput` with every fault of the first file that
    has one, and for documents of kinds that have nothing in common.
    """
    before, after = _open(first), _open(second)
    if "model-estimate" in (before.kind, after.kind):
        from trainwright.api.diff_runs import run_difference

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
            + tuple(changes(*cluster_facts(before.request.cluster, after.request.cluster))),
            result_changes=tuple(changes(_result_facts(before), _result_facts(after))),
            stage_changes=tuple(_stage_changes(before.stages, after.stages)),
        )
    )


def _open(document: AnyDocument) -> Any:
    """Any document that can be compared; its type is that of its kind."""
    found = document.document if isinstance(document, Report) else document
    if isinstance(found, (str, Path)):
        found = load_any_document(found)
    elif found.kind == "mixed-plan":
        raise InvalidInput.of("kind", OF_SEVERAL_POOLS)
    elif found.kind not in COMPARED:
        wanted = ", ".join(f'"{kind}"' for kind in COMPARED)
        raise InvalidInput.of("kind", f'must be one of {wanted}, got "{found.kind}"')
    if isinstance(found, ModelSweepResult):
        problem = f'cannot be compared: a document of kind "{found.kind}" holds several plans'
        raise InvalidInput.of("documents", problem)
    return found.after if isinstance(found, WhatIfResult) else found


def _schedule_difference(before: ScheduleResult, after: ScheduleResult) -> Difference:
    from trainwright.api.schedule_diff import request_facts, result_facts, time_ratio

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
        if before.get(key) != after.get(key):
            yield Change(key=key, before=before.get(key), after=after.get(key))


def _request_facts(document: Compared) -> dict[str, Any]:
    request = document.request
    facts: dict[str, Any] = {
        "model": request.model.name,
        "cluster": request.cluster.name if request.cluster else None,
        "num_devices": request.num_devices,
        "cost_model": request.cost_model,
        "time_limit_s": request.time_limit_s,
    }
    parts = (request.setting, request.workload, request.overheads, request.space)
    for part in (*parts, request.recipe, request.overlap):
        for field in fields(part) if part is not None else ():
            value = getattr(part, field.name)
            facts[field.name] = _plain(value)
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
        from trainwright.api.diff_runs import run_facts
        from trainwright.api.searched import order_in_words

        facts = {**facts, **run_facts(document), "order": order_in_words(document)}
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
