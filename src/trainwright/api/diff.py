"""`trainwright diff`: two documents, only what differs."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from trainwright.api.documents import Priced, load_document
from trainwright.api.result import Report
from trainwright.plan.results.difference import Change, Difference
from trainwright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trainwright.plan.results.model_plan import ModelStageRecord
    from trainwright.plan.results.plan import StageRecord

    AnyStage = StageRecord | ModelStageRecord

_RESULT_KEYS = ("status", "fits", "devices_used", "num_stages", "gap")


def diff(first: str | Path, second: str | Path) -> Report[Difference]:
    """Compare two plan or estimate documents by request, result and stage."""
    before, after = load_document(first), load_document(second)
    times_s = _time_s(before), _time_s(after)
    ratio = times_s[1] / times_s[0] if times_s[0] and times_s[1] is not None else None
    return Report(
        Difference(
            same_model=before.request.model.sha256 == after.request.model.sha256,
            time_ratio=ratio,
            request_changes=tuple(_request_changes(before, after)),
            result_changes=tuple(_result_changes(before, after)),
            stage_changes=tuple(_stage_changes(before.stages, after.stages)),
        )
    )


def _time_s(document: Priced) -> float | None:
    """What the document's objective is about: a step, or a microbatch at steady state."""
    step_s: float | None = getattr(document, "step_time_s", None)
    return document.time_per_sample_s if step_s is None else step_s


def _changes(before: dict[str, str], after: dict[str, str]) -> Iterator[Change]:
    for key in dict.fromkeys((*before, *after)):
        if before.get(key) != after.get(key):
            yield Change(key=key, before=before.get(key), after=after.get(key))


def _request_changes(before: Priced, after: Priced) -> Iterator[Change]:
    yield from _changes(_request_facts(before), _request_facts(after))


def _request_facts(document: Priced) -> dict[str, str]:
    request = document.request
    facts = {"model": request.model.name}
    for part in (request.setting, request.workload, request.space):
        if part is not None:
            facts |= {field.name: str(getattr(part, field.name)) for field in fields(part)}
    return facts


def _result_changes(before: Priced, after: Priced) -> Iterator[Change]:
    yield from _changes(_result_facts(before), _result_facts(after))


def _result_facts(document: Priced) -> dict[str, str]:
    facts = {
        key: str(value)
        for key in _RESULT_KEYS
        if (value := getattr(document, key, None)) is not None
    }
    step_s = getattr(document, "step_time_s", None)
    if step_s is not None:
        facts["step time"] = format_seconds(step_s)
    elif document.time_per_sample_s is not None:
        facts["time per microbatch"] = format_seconds(document.time_per_sample_s)
    return facts


def _stage_changes(before: Sequence[AnyStage], after: Sequence[AnyStage]) -> Iterator[Change]:
    for index in range(max(len(before), len(after))):
        old = _stage_text(before[index]) if index < len(before) else None
        new = _stage_text(after[index]) if index < len(after) else None
        if old != new:
            yield Change(key=f"stage {index}", before=old, after=new)


def _stage_text(stage: AnyStage) -> str:
    return (
        f"{len(stage.layers)} layers from {min(stage.layers)}, d={stage.data_parallel}, "
        f"t={stage.tensor_parallel}, recompute {stage.num_recomputed}, "
        f"{format_seconds(stage.time_per_sample_s)}, {format_bytes(stage.memory_bytes)}"
    )
