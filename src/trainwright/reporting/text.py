"""Small pieces every table shares: plain tables, ranges of ids, rendering to text."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType
    from rich.table import Table

TEXT_WIDTH = 120


def table(title: str | None, columns: Sequence[tuple[str, str]]) -> Table:
    """An empty table; `columns` are (header, "left" or "right")."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(title=title, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for header, justify in columns:
        left = justify == "left"
        made.add_column(
            header, justify="left" if left else "right", no_wrap=not left, overflow="fold"
        )
    return made


def add_row(made: Table, *cells: str) -> None:
    """Add cells as they are: brackets in the name of a file are no markup."""
    from rich.text import Text

    made.add_row(*map(Text, cells))


def to_text(renderable: RenderableType, *, width: int = TEXT_WIDTH) -> str:
    """Render without colour; trailing blanks are cut."""
    from rich.console import Console

    out = StringIO()
    Console(file=out, width=width, color_system=None, highlight=False).print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n") + "\n"


def counted(count: int, noun: str) -> str:
    """A count with its noun: 1 stage, 2 stages."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def ranges(ids: Iterable[int]) -> str:
    """Ids as ranges: 0-3, 7, 9-11. Runs of two stay two numbers."""
    runs: list[list[int]] = []
    for value in sorted(ids):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(
        str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in runs
    )
