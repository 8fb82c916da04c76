"""A run beside the best plan, and the changes on the way there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.reporting.improvement_words import (
    added_kernels,
    bounded_plans,
    changes_title,
    choice_gain,
    choice_title,
    needed_bytes,
    needed_line,
    no_choice,
    speed,
    verdict,
)
from trainwright.reporting.layout import layout_line
from trainwright.reporting.model_estimate_table import NONE_ENOUGH, enough_table
from trainwright.reporting.text import add_row, table
from trainwright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from trainwright.plan.results.improvement import ImprovementResult


def improvement_report(found: ImprovementResult) -> RenderableType:
    """What the run takes, what the best plan takes, then the changes by size."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(line, overflow="fold") for line in _lines(found)]
    if found.changes:
        parts.append(_changes(found))
    if found.best_known_s is None:
        parts.append(enough_table(found.enough) if found.enough else Text(NONE_ENOUGH))
    if found.assumptions:
        parts.append(Text("taken for granted:"))
    parts += [Text(f"  {name}: {text}") for name, text in found.assumptions.items()]
    parts += [Text(f"warning: {line}", overflow="fold") for line in found.warnings]
    return Group(*parts)


def _lines(found: ImprovementResult) -> Iterator[str]:
    run, chosen = found.run, found.recommended
    yield (
        f"your run: {format_seconds(run.step_time_s)} per step, {verdict(found)}: "
        f"{needed_line(found, run.peak_memory_bytes)}"
    )
    yield from _best_lines(found)
    if chosen is None:
        yield no_choice(found)
    else:
        step = format_seconds(chosen.step_time_s)
        yield f"{choice_title(found)}: {chosen.options}: {step}, {choice_gain(found, chosen)}"


def _best_lines(found: ImprovementResult) -> Iterator[str]:
    plan, where = found.best_plan, f" for {found.framework}" if found.framework else ""
    if plan is not None:
        yield (
            f"best plan{where}: {format_seconds(plan.step_time_s)}, {speed(found, plan.speedup)}, "
            f"needs {format_bytes(needed_bytes(found, plan.peak_memory_bytes))}: "
            f"{layout_line(plan.parallelism)}{added_kernels(plan)}, microbatch {plan.micro_batch}, "
            f"schedule {plan.schedule}, {plan.num_recomputed} layers recomputed"
        )
    elif found.best_known_s is None:
        yield f"best plan{where}: none was found that fits"
    else:
        known = "your run" if not found.changes else "the first change below"
        yield f"best known{where}: {format_seconds(found.best_known_s)}, {known}"
    if found.lower_bound_s is not None:
        bound = format_seconds(found.lower_bound_s)
        yield f"{bounded_plans(found)} takes less than {bound} (proved)"


def _changes(found: ImprovementResult) -> RenderableType:
    shares = found.run_fits
    columns = (
        ("change", "left"),
        ("step", "right"),
        ("speed", "right"),
        *((("of the gain", "right"),) if shares else ()),
        ("memory needed", "right"),
    )
    made = table(f"{changes_title(found)}, fastest first", columns)
    for each in found.changes:
        add_row(
            made,
            each.options,
            format_seconds(each.step_time_s),
            f"{each.speedup - 1:+.1%}",
            *((f"{each.gain_share or 0.0:.0%}",) if shares else ()),
            format_bytes(needed_bytes(found, each.peak_memory_bytes)),
        )
    return made
