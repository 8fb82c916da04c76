"""Two documents side by side, only what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.reporting.text import add_row, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trainwright.plan.results.difference import Change, Difference


def difference_report(found: Difference) -> RenderableType:
    """What was asked differently, then what came out differently."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    if not found.same_model:
        parts.append(Text("the two documents are about different models"))
    for title, changes in (
        ("request", found.request_changes),
        ("result", found.result_changes),
        ("stages", found.stage_changes),
    ):
        if changes:
            parts.append(_change_table(title, changes))
    if parts and found.time_ratio is not None:
        parts.append(Text(_verdict(found.time_ratio)))
    return Group(*(parts or [Text("no difference")]))


def _verdict(ratio: float) -> str:
    if ratio == 1:
        return "both take the same time"
    if ratio == 0:
        return "the second takes no time at all"
    word = "slower" if ratio > 1 else "faster"
    excess = max(ratio, 1 / ratio) - 1
    size = f"{1 + excess:.4g}x" if excess >= 1e-3 else f"a fraction of {excess:.2g}"
    return f"the second is {size} {word}"


def _change_table(title: str, changes: tuple[Change, ...]) -> RenderableType:
    made = table(title, (("what", "left"), ("first", "left"), ("second", "left")))
    for change in changes:
        add_row(made, change.key, change.before or "", change.after or "")
    return made
