"""Why a model's plan is what it is, below its table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.plan.status import Status
from trainwright.reporting.layout import layout_cells, layout_columns, layout_line
from trainwright.reporting.model_plan_table import losses, model_plan_report
from trainwright.reporting.text import add_row, table
from trainwright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from trainwright.plan.results.model_explanation import ModelExplanation, WithoutRecord
    from trainwright.plan.results.model_plan import ModelPlanResult


def model_explanation_report(document: ModelExplanation) -> RenderableType:
    """The plan's table, what binds, what each choice buys, what more of a resource would."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [model_plan_report(document.plan), Text("")]
    parts.extend(Text(line) for line in _what_binds(document))
    if document.without:
        parts.append(_without_table(document))
    if document.gains:
        parts.append(_gain_table(document))
    if document.not_asked:
        parts.append(Text(f"not asked for want of time: {', '.join(document.not_asked)}"))
    parts.extend(Text(line) for line in _runner_up(document))
    return Group(*parts)


def _what_binds(document: ModelExplanation) -> Iterator[str]:
    plan = document.plan
    step_s = plan.step_time_s or 0.0
    largest = max(document.time_by_part_s.items(), key=lambda part: part[1])
    share = largest[1] / step_s if step_s > 0 else 0.0
    yield (
        f"time: rank {document.busiest_rank} works longest; "
        f"{share:.1%} of the step is {largest[0]}"
        + (f"; what would help most is {document.binding}" if document.binding else "")
    )
    limit_bytes = plan.memory_limit_bytes or 0.0
    classes = sorted(document.memory_by_class_bytes.items(), key=lambda part: -part[1])
    named = ", ".join(f"{name} {format_bytes(size)}" for name, size in classes)
    yield (
        f"memory: rank {document.fullest_rank} is fullest, {format_bytes(document.free_bytes)} of "
        f"{format_bytes(limit_bytes)} free{_kept(plan)}: {named}"
    )


def _kept(plan: ModelPlanResult) -> str:
    """What a device keeps that no class of memory counts, where there is any."""
    kept = plan.request.overheads
    if kept is None or not (kept.fragmentation or kept.reserve_bytes):
        return ""
    parts = [f"{kept.fragmentation:.0%} fragmentation"] if kept.fragmentation else []
    parts += [format_bytes(kept.reserve_bytes)] if kept.reserve_bytes else []
    return f" beside {' and '.join(parts)}"


def _without_table(document: ModelExplanation) -> RenderableType:
    plans = [each.parallelism for each in document.without]
    made = table(
        "the best plan without",
        (
            ("", "left"),
            ("step", "right"),
            ("slower", "right"),
            *layout_columns(plans),
            ("mb", "right"),
            ("schedule", "left"),
            ("", "left"),
        ),
    )
    for each in document.without:
        add_row(
            made,
            each.name,
            "" if each.step_time_s is None else format_seconds(each.step_time_s),
            "" if each.slowdown is None else f"{each.slowdown - 1:+.1%}",
            *layout_cells(each.parallelism, plans),
            "" if each.micro_batch is None else str(each.micro_batch),
            each.schedule or "",
            _proved(each),
        )
    return made


def _proved(each: WithoutRecord) -> str:
    return {
        Status.OPTIMAL: "",
        Status.GAP: "(best found)",
        Status.INFEASIBLE: "nothing fits",
        Status.UNKNOWN: "nothing found in time",
    }[each.status]


def _gain_table(document: ModelExplanation) -> RenderableType:
    made = table(
        "with more of",
        (("", "left"), ("", "right"), ("step", "right"), ("saves", "right"), ("", "left")),
    )
    for gain in sorted(document.gains, key=lambda each: -each.saved):
        add_row(
            made,
            gain.resource,
            gain.change,
            format_seconds(gain.step_time_s),
            f"{gain.saved:.2%}",
            "planned again" if gain.replanned else "the same plan",
        )
    return made


def _runner_up(document: ModelExplanation) -> Iterator[str]:
    if not document.plan.alternatives:
        return
    other = document.plan.alternatives[0]
    yield (
        f"next best: {layout_line(other.parallelism)}, microbatch {other.micro_batch}, schedule "
        f"{other.schedule}: {other.slowdown - 1:.1%} slower"
    )
    if lost := losses(other):
        yield f"  it loses {lost}"
