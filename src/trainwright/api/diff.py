"""`trainwright diff`: two documents, only what differs."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING

from trainwright.api.documents import AnyDocument, Priced, open_document
from trainwright.api.result import Report
from trainwright.errors import InvalidInput
from trainwright.plan.results.difference import Change, Difference
from trainwright.plan.results.model_plan import ModelPlanResult
from trainwright.plan.results.schedule import ScheduleResult
from trainwright.plan.status import OPTIMAL_TOLERANCE
from trainwright.units import format_bytes, format_percent_up, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trainwright.plan.results.model_plan import ModelStageRecord
    from trainwright.plan.results.plan import StageRecord

    AnyStage = StageRecord | ModelStageRecord

_RESULT_KEYS = ("status", "fits", "devices_used", "num_stages")


def diff(first: AnyDocument, second: AnyDocument) -> Report[Difference]:
    """Compare two documents (paths or results): plans or estimates, or two schedules.

    Raises `InvalidInput` with every fault of the first file that has one, and for a schedule
    beside a document of another kind.
    """
    before, after = open_document(first), open_document(second)
    if isinstance(before, ScheduleResult) and isinstance(after, ScheduleResult):
        return Report(_schedule_difference(before, after))
    if isinstance(before, ScheduleResult) or isinstance(after, ScheduleResult):
        problem = f"must be of one kind: {before.kind} and {after.kind} have nothing in common"
        raise InvalidInput.of("documents", problem)
    return Report(
        Difference(
            same_model=before.request.model.sha256 == after.request.model.sha256,
            time_ratio=_time_ratio(before, after),
            request_changes=tuple(_changes(_request_facts(before), _request_facts(after))),
            result_changes=tuple(_changes(_result_facts(before), _result_facts(after))),
            stage_changes=tuple(_stage_changes(before.stages, after.stages)),
        )
    )


def _schedule_difference(before: ScheduleResult, after: ScheduleResult) -> Difference:
    from trainwright.api.schedule_diff import rank_facts, request_facts, result_facts

    times_s = before.makespan_s, after.makespan_s
    if before.objective == after.objective == "span":
        times_s = before.span_s, after.span_s
    ratio = times_s[1] / times_s[0] if times_s[0] and times_s[1] is not None else None
    return Difference(
        same_model=before.request.costs.sha256 == after.request.costs.sha256,
        time_ratio=ratio if ratio is not None and math.isfinite(ratio) else None,
        request_changes=tuple(_changes(request_facts(before), request_facts(after))),
        result_changes=tuple(_changes(result_facts(before), result_facts(after))),
        stage_changes=tuple(_changes(rank_facts(before), rank_facts(after))),
    )


def _time_ratio(before: Priced, after: Priced) -> float | None:
    """Time of the second over the first, where both state the same kind of time."""
    name = _objective(before)
    old_s, new_s = getattr(before, name), getattr(after, name, None)
    if name != _objective(after) or not old_s or new_s is None:
        return None
    ratio: float = new_s / old_s
    return ratio if math.isfinite(ratio) else None


def _objective(document: Priced) -> str:
    """What the document's time is about: a step, or a microbatch at steady state."""
    return "step_time_s" if isinstance(document, ModelPlanResult) else "time_per_sample_s"


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for key in dict.fromkeys((*before, *after)):
        if before.get(key) != after.get(key):
            yield Change(key=key, before=before.get(key), after=after.get(key))


def _request_facts(document: Priced) -> dict[str, str]:
    request = document.request
    stated = {
        "model": request.model.name,
        "cluster": request.cluster.name if request.cluster else None,
        "num_devices": request.num_devices,
        "time_limit_s": request.time_limit_s,
    }
    facts = {key: _text(value) for key, value in stated.items() if value is not None}
    for part in (request.setting, request.workload, request.space):
        for field in fields(part) if part is not None else ():
            if (value := getattr(part, field.name)) is not None:
                facts[field.name] = _text(value)
    return facts


def _result_facts(document: Priced) -> dict[str, str]:
    facts = {
        key: _text(value)
        for key in _RESULT_KEYS
        if (value := getattr(document, key, None)) is not None
    }
    gap = getattr(document, "gap", None)
    if gap is not None:
        facts["gap"] = format_percent_up(gap if gap > OPTIMAL_TOLERANCE else 0.0)
    name = _objective(document)
    if (time_s := getattr(document, name)) is not None:
        shown = {"step_time_s": "step time", "time_per_sample_s": "time per microbatch"}
        facts[shown[name]] = format_seconds(time_s)
    return facts


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _stage_changes(before: Sequence[AnyStage], after: Sequence[AnyStage]) -> Iterator[Change]:
    for index in range(max(len(before), len(after))):
        old = _stage_text(before[index]) if index < len(before) else None
        new = _stage_text(after[index]) if index < len(after) else None
        if old != new:
            yield Change(key=f"stage {index}", before=old, after=new)


def _stage_text(stage: AnyStage) -> str:
    from trainwright.reporting.text import ranges

    return (
        f"layers {ranges(stage.layers)}; d={stage.data_parallel}, t={stage.tensor_parallel}, "
        f"recompute {stage.num_recomputed}/{len(stage.layers)}, "
        f"{format_seconds(stage.time_per_sample_s)}, {format_bytes(stage.memory_bytes)}"
    )
