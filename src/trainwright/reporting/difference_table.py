"""Two documents side by side, only what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.reporting.text import table

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
    if found.time_ratio is not None:
        word = "slower" if found.time_ratio > 1 else "faster"
        factor = max(found.time_ratio, 1 / found.time_ratio)
        same = "both take the same time"
        parts.append(Text(same if factor == 1 else f"the second is {factor:.4g}x {word}"))
    return Group(*(parts or [Text("no difference")]))


def _change_table(title: str, changes: tuple[Change, ...]) -> RenderableType:
    made = table(title, (("what", "left"), ("first", "right"), ("second", "right")))
    for change in changes:
        made.add_row(change.key, change.before or "", change.after or "")
    return made
