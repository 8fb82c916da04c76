"""A plan and the best one under changes, side by side."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from trainwright.reporting.difference_table import WORK_KEYS, throughput_words, value_text
from trainwright.reporting.layout import layout_line
from trainwright.reporting.model_plan_table import proof, relaxation_lines
from trainwright.reporting.text import add_row, table
from trainwright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from trainwright.plan.results.model_plan import ModelPlanResult
    from trainwright.plan.results.what_if import WhatIfResult

_COLUMNS: Final = (("", "left"), ("before", "left"), ("after", "left"), ("change", "right"))
_SMALL: Final = 5e-4  # of a step: parts below this in both plans are left out


def what_if_report(document: WhatIfResult) -> RenderableType:
    """What was changed, then both plans."""
    from rich.console import Group
    from rich.text import Text

    before, after = document.before, document.after
    made = table(None, _COLUMNS)
    for change in document.changes:
        values = (value_text(change.key, value) for value in (change.before, change.after))
        add_row(made, _name(change.key), *values, _ratio(change.before, change.after))
    add_row(made, "", "", "", "")
    for row in _rows(before, after):
        add_row(made, *row)
    parts: list[RenderableType] = [Text(f"{before.request.model.name}: what if"), made]
    parts.extend(Text(line) for line in _verdict(document))
    parts.extend(Text(f"warning: {warning}") for warning in after.warnings)
    return Group(*parts)


def _name(key: str) -> str:
    """A key without its unit."""
    return re.sub(r"_bytes(_per_s)?$|_?flops_per_s$", "", key).replace("_", " ").strip()


def _rows(before: ModelPlanResult, after: ModelPlanResult) -> Iterator[tuple[str, ...]]:
    both = (before, after)
    times = [plan.step_time_s for plan in both]
    yield (
        "step",
        *(format_seconds(t) if t else str(p.status) for t, p in zip(times, both, strict=True)),
        _ratio(*times),
    )
    for name, key in (("tokens/s", "tokens_per_s"), ("per device", "tokens_per_s_per_device")):
        values = [getattr(plan, key) for plan in both]
        yield (name, *(f"{v:,.0f}" if v else "" for v in values), _ratio(*values))
    yield ("MFU", *(f"{p.mfu:.1%}" if p.mfu else "" for p in both), "")
    yield ("layout", *(_layout(p) for p in both), "")
    yield ("microbatch", *(str(p.micro_batch or "") for p in both), "")
    yield ("schedule", *(p.schedule or "" for p in both), "")
    recomputed = [sum(stage.num_recomputed for stage in p.stages) for p in both]
    yield (
        "recomputed layers",
        *(str(n) if p.stages else "" for n, p in zip(recomputed, both, strict=True)),
        "",
    )
    memory = [max(p.peak_memory_bytes_per_rank, default=None) for p in both]
    yield ("fullest device", *(format_bytes(m) if m else "" for m in memory), _ratio(*memory))
    yield from _part_rows(before, after)


def _part_rows(before: ModelPlanResult, after: ModelPlanResult) -> Iterator[tuple[str, ...]]:
    """Where the time of either step goes."""
    for name in dict.fromkeys((*before.time_by_part_s, *after.time_by_part_s)):
        pair = [p.time_by_part_s.get(name) for p in (before, after)]
        shares = [
            (spent_s or 0) / (plan.step_time_s or 1)
            for spent_s, plan in zip(pair, (before, after), strict=True)
        ]
        if max(shares) >= _SMALL:
            texts = ("" if spent_s is None else format_seconds(spent_s) for spent_s in pair)
            yield (f"  {name}", *texts, _ratio(*pair))


def _layout(plan: ModelPlanResult) -> str:
    return layout_line(plan.parallelism) if plan.parallelism is not None else ""


def _ratio(before: float | str | None, after: float | str | None) -> str:
    if isinstance(before, str) or isinstance(after, str) or not before or after is None:
        return ""
    change = round(after / before - 1, 3)
    return f"{change:+.1%}" if change else ""


def _verdict(document: WhatIfResult) -> Iterator[str]:
    after = document.after
    if after.step_time_s is None:
        yield f"with these changes: {after.status}"
        if after.binding is not None:
            yield f"why: {after.binding.description}"
        yield from relaxation_lines(after)
        return
    ratio, before = document.time_ratio, document.before
    has_other_work = any(change.key in WORK_KEYS for change in document.changes)
    if has_other_work and ratio and before.tokens_per_s and after.tokens_per_s:
        yield throughput_words(after.tokens_per_s / before.tokens_per_s, ratio)
    elif ratio is not None:
        word = "slower" if ratio > 1 else "faster"
        same = abs(ratio - 1) < 1e-12
        yield "the step takes as long" if same else f"{max(ratio, 1 / ratio):.4g}x {word}"
    yield f"after: {proof(after)}"
