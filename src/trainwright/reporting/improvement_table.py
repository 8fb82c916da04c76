"""A run beside the best plan, and the changes on the way there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.reporting.text import add_row, table
from trainwright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from trainwright.plan.results.improvement import BestPlanRecord, ImprovementResult


def improvement_report(found: ImprovementResult) -> RenderableType:
    """What the run takes, what the best plan takes, then the changes by size."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(line, overflow="fold") for line in _lines(found)]
    if found.changes:
        parts.append(_changes(found))
    parts += [Text(f"warning: {line}", overflow="fold") for line in found.warnings]
    return Group(*parts)


def _lines(found: ImprovementResult) -> Iterator[str]:
    run = found.run
    verdict = "fits" if found.run_fits else "does not fit"
    yield (
        f"your run: {format_seconds(run.step_time_s)} per step, "
        f"{format_bytes(run.peak_memory_bytes)} of {format_bytes(found.memory_limit_bytes)}, "
        f"{verdict}"
    )
    if found.best_plan is not None:
        yield _plan_line(found.best_plan, found.framework)
    else:
        yield "best plan: none was found"
    chosen = found.recommended
    if chosen is None:
        yield "no change of one or two decisions is faster"
    else:
        yield (
            f"smallest change with most of the gain: {chosen.options}: "
            f"{format_seconds(chosen.step_time_s)}, {chosen.speedup - 1:+.1%} speed, "
            f"{chosen.gain_share:.0%} of the gain"
        )


def _plan_line(plan: BestPlanRecord, framework: str | None) -> str:
    where = "" if framework is None else f" for {framework}"
    degrees = plan.parallelism
    layout = "degrees per stage"
    if degrees is not None:
        layout = (
            f"tp {degrees.tensor} pp {degrees.pipeline} dp {degrees.data} cp {degrees.context} "
            f"ep {degrees.expert} zero {degrees.zero_stage}"
        )
    return (
        f"best plan{where}: {format_seconds(plan.step_time_s)} ({plan.speedup - 1:+.1%} speed), "
        f"{format_bytes(plan.peak_memory_bytes)}: {layout}, microbatch {plan.micro_batch}, "
        f"{plan.schedule}, {plan.num_recomputed} layers recomputed"
    )


def _changes(found: ImprovementResult) -> RenderableType:
    columns = (
        ("change", "left"),
        ("step", "right"),
        ("speed", "right"),
        ("of the gain", "right"),
        ("memory", "right"),
    )
    made = table("changes that fit and are faster", columns)
    for each in found.changes:
        add_row(
            made,
            each.options,
            format_seconds(each.step_time_s),
            f"{each.speedup - 1:+.1%}",
            f"{each.gain_share:.0%}",
            format_bytes(each.peak_memory_bytes),
        )
    return made
