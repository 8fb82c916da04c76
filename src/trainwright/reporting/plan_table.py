"""A plan as a table a tired engineer understands: what runs where, and what binds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.plan.results.explanation import explain_stages
from trainwright.plan.status import Status
from trainwright.reporting.text import add_row, counted, ranges, table
from trainwright.units import format_bytes, format_percent_up, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from trainwright.plan.results.estimate import EstimateResult
    from trainwright.plan.results.explanation import Explanation
    from trainwright.plan.results.plan import Baseline, PlanResult, StageRecord
    from trainwright.plan.results.request import PlanRequest

_COLUMNS = (
    ("stage", "right"),
    ("layers", "left"),
    ("d", "right"),
    ("t", "right"),
    ("recomp", "right"),
    ("time", "right"),
    ("compute", "right"),
    ("traffic", "right"),
    ("sync", "right"),
    ("memory", "right"),
    ("of limit", "right"),
    ("held", "right"),
    ("", "left"),
)


def plan_report(document: PlanResult) -> RenderableType:
    """Headline, stages, what binds or what would make it fit, and the baselines."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(line) for line in _headline(document)]
    parts.extend(_stage_parts(document.stages, document.request))
    parts.extend(Text(line) for line in _reasons(document))
    if document.baselines:
        parts.append(_baseline_table(document.baselines))
    parts.extend(Text(f"warning: {warning}") for warning in document.warnings)
    return Group(*parts)


def estimate_report(document: EstimateResult) -> RenderableType:
    """The price of a given plan, and which stages overflow."""
    from rich.console import Group
    from rich.text import Text

    verdict = "fits" if document.fits else "does NOT fit"
    headline = (
        f"{document.request.model.name}: {format_seconds(document.time_per_sample_s)} per "
        f"microbatch on {counted(document.devices_used, 'device')}, "
        f"{counted(document.num_stages, 'stage')}: {verdict}"
    )
    parts: list[RenderableType] = [Text(headline)]
    parts.extend(_stage_parts(document.stages, document.request))
    parts.extend(
        Text(f"stage {over.stage} overflows by {format_bytes(over.missing_bytes)}")
        for over in document.overflows
    )
    parts.extend(Text(f"warning: {warning}") for warning in document.warnings)
    return Group(*parts)


def _stage_parts(stages: tuple[StageRecord, ...], request: PlanRequest) -> Iterator[RenderableType]:
    from rich.text import Text

    if not stages:
        return
    limit_bytes = request.setting.memory_bytes if request.setting else None
    yield _stage_table(stages, limit_bytes)
    for line in _what_binds(explain_stages(stages, limit_bytes), limit_bytes):
        yield Text(line)


def _headline(document: PlanResult) -> Iterator[str]:
    name = document.request.model.name
    if document.time_per_sample_s is None:
        yield f"{name}: {_verdict(document)}"
        return
    yield (
        f"{name}: {format_seconds(document.time_per_sample_s)} per microbatch on "
        f"{_used(document)}, {counted(len(document.stages), 'stage')}: {_verdict(document)}"
    )


def _used(document: PlanResult) -> str:
    setting = document.request.setting
    if setting is None or setting.num_devices == document.devices_used:
        return counted(document.devices_used or 0, "device")
    return f"{document.devices_used} of {setting.num_devices} devices"


def _verdict(document: PlanResult) -> str:
    if document.request.space.planner == "equal":
        return "the best equal split" if document.stages else "no equal split fits; others may"
    if document.status is Status.OPTIMAL:
        return "optimal, proved"
    if document.status is Status.GAP:
        return f"gap <= {format_percent_up(document.gap or 0.0)}"
    if document.status is Status.INFEASIBLE:
        return "infeasible, proved: no plan fits"
    return "unknown: the limit was reached before a plan or a proof was found"


def _stage_table(stages: tuple[StageRecord, ...], limit_bytes: float | None) -> RenderableType:
    made = table(None, _COLUMNS)
    slowest_s = max(stage.time_per_sample_s for stage in stages)
    for index, stage in enumerate(stages):
        add_row(made, *_stage_row(index, stage, slowest_s, limit_bytes))
    return made


def _stage_row(
    index: int, stage: StageRecord, slowest_s: float, limit_bytes: float | None
) -> tuple[str, ...]:
    parts = stage.breakdown
    marks = ["slowest"] if stage.time_per_sample_s == slowest_s else []
    if limit_bytes is not None and stage.memory_bytes > limit_bytes * (1 + 1e-12):
        marks.append("over")
    return (
        str(index),
        ranges(stage.layers),
        str(stage.data_parallel),
        str(stage.tensor_parallel),
        f"{stage.num_recomputed}/{len(stage.layers)}",
        format_seconds(stage.time_per_sample_s),
        format_seconds(parts.compute_s),
        format_seconds(parts.edge_traffic_s),
        format_seconds(parts.gradient_sync_s),
        format_bytes(stage.memory_bytes),
        f"{stage.memory_bytes / limit_bytes:.1%}" if limit_bytes else "",
        str(stage.microbatches_in_flight),
        ", ".join(marks),
    )


def _reasons(document: PlanResult) -> Iterator[str]:
    if document.binding is not None:
        yield f"why: {document.binding.description}"
    if document.relaxations:
        yield "any one of these is enough:"
        yield from (f"  {fix.change}: {fix.description}" for fix in document.relaxations)
    if document.interrupted:
        yield "interrupted: this is the best plan found so far"


def _what_binds(found: Explanation, limit_bytes: float | None) -> Iterator[str]:
    share = found.time_share[found.time_kind]
    yield (
        f"time binds in stage {found.slowest_stage}, {share:.0%} of it {found.time_kind}; "
        f"devices wait {found.idle_fraction:.1%} of the time for it"
    )
    if limit_bytes is not None and found.free_bytes is not None:
        free = found.free_bytes
        state = f"{format_bytes(free)} free" if free >= 0 else f"{format_bytes(-free)} missing"
        yield f"memory is fullest in stage {found.fullest_stage}: {state} of " + format_bytes(
            limit_bytes
        )


def _baseline_table(baselines: tuple[Baseline, ...]) -> RenderableType:
    made = table(
        "compared with",
        (("plan", "left"), ("time", "right"), ("slowdown", "right"), ("stages", "right")),
    )
    for baseline in baselines:
        time_s, slowdown = baseline.time_per_sample_s, baseline.slowdown
        add_row(
            made,
            baseline.name,
            format_seconds(time_s) if time_s is not None else str(baseline.status),
            f"{slowdown:.3f}x" if slowdown is not None else "",
            str(baseline.num_stages or ""),
        )
    return made
