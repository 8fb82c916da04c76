"""What a person sees of a document: lines and tables, for the terminal and for the page alike.

A view is a sequence of lines and tables. A table is written once, with columns that say which
quantity they hold; the terminal prints those that have room there under short titles, the page all
others beside them, where they can be sorted and copied as bare SI numbers.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

from trainwright.units import format_bytes, format_count, format_part, format_seconds

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table as RichTable

    from trainwright.plans.status import Relaxation


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its title, and its name in copied CSV, which carries the unit.

    `short` is the title in a terminal, the same where absent. `on` is "page" or "terminal" for a
    column that only one of them shows.
    """

    title: str
    key: str
    is_number: bool = True
    short: str | None = None
    on: str = "both"


def column(title: str, key: str = "", short: str | None = None, *, on: str = "both") -> Column:
    """A column of numbers; its key is the title where none is given."""
    return Column(title=title, key=key or title, short=short, on=on)


def words(title: str, key: str = "", short: str | None = None, *, on: str = "both") -> Column:
    """A column of words, which stand to the left."""
    return Column(title=title, key=key or title, is_number=False, short=short, on=on)


# What rows mark in words, in the terminal and on the page.
MARKS: Final = words("", "marks")
# What tables of the stages of a profile's plan begin with.
STAGE_COLUMNS: Final = (
    column("stage"),
    words("layers"),
    column("data", "data_parallel", "d"),
    column("tensor", "tensor_parallel", "t"),
    column("recomputed", "num_recomputed", "recomp"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is shown, and what is sorted and copied: the bare number, or the text itself."""

    text: str
    value: float | str = ""

    @property
    def raw(self) -> str:
        """The value as text, numbers to full precision."""
        return repr(float(self.value)) if isinstance(self.value, float) else str(self.value)

    @classmethod
    def of(cls, value: float | str) -> Cell:
        """A cell that shows its value as it is."""
        return cls(text=str(value), value=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells under columns; `marked` rows (indices) stand out on the page.

    The terminal prints `caption` above it, nothing where that is absent, and of many rows those of
    `brief`.
    """

    template: ClassVar[str] = "table"
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    marked: frozenset[int] = frozenset()
    note: str = ""
    caption: str | None = None
    brief: tuple[int, ...] | None = None

    def on(self, medium: str) -> Table:
        """The columns that "page" or "terminal" shows."""
        kept = [at for at, each in enumerate(self.columns) if each.on in ("both", medium)]
        rows = tuple(tuple(row[at] for at in kept) for row in self.rows)
        columns = tuple(self.columns[at] for at in kept)
        return replace(self, columns=columns, rows=rows)

    def without_empty(self, *, same: bool = False) -> Table:
        """The columns in which some row says something, or without `same` ones, another thing."""
        texts = [{row[at].text for row in self.rows} for at in range(len(self.columns))]
        drop_same = same and len(self.rows) > 1
        kept = [at for at, found in enumerate(texts) if found - {""}]
        kept = [at for at in kept if len(texts[at]) > 1 or not drop_same]
        rows = tuple(tuple(row[at] for at in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[at] for at in kept), rows=rows)


def table_of(
    title: str,
    columns: Sequence[Column],
    rows: Iterable[Iterable[Cell | float | str | None]],
    *,
    marked: Iterable[int] = (),
    note: str = "",
    caption: str | None = None,
    brief: Iterable[int] | None = None,
) -> Table:
    """A table of cells or of bare values, which are shown as they are, or not where absent."""
    return Table(
        title=title,
        columns=tuple(columns),
        rows=tuple(tuple(map(_cell, row)) for row in rows),
        marked=frozenset(marked),
        note=note,
        caption=caption,
        brief=None if brief is None else tuple(brief),
    )


def _cell(value: Cell | float | str | None) -> Cell:
    return value if isinstance(value, Cell) else Cell.of("" if value is None else value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Names and what is to be said about them."""

    template: ClassVar[str] = "facts"
    rows: tuple[tuple[str, str], ...]
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """Sentences; `tone` as of a card."""

    template: ClassVar[str] = "notes"
    lines: tuple[str, ...]
    title: str = ""
    tone: str = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """What is shown in full only to whoever asks; `line` stands for it."""

    line: str
    full: tuple[str | Table | Facts, ...]


Line: TypeAlias = "str | Table | Facts | Folded"
View: TypeAlias = "Iterable[Line]"


# Cells of quantities: shown with a unit, sorted and copied as bare SI numbers
# ----------------------------------------------------------------------------


def seconds(value_s: float | None) -> Cell:
    """A duration, sorted and copied in seconds; empty without one."""
    return Cell.of("") if value_s is None else Cell(text=format_seconds(value_s), value=value_s)


def percent(fraction: float | None, *, digits: int = 1, sign: bool = False) -> Cell:
    """A fraction as a percentage, with its sign where that is asked for; empty without one."""
    if fraction is None:
        return Cell.of("")
    plus = "+" if sign else ""
    return Cell(text=f"{fraction:{plus}.{digits}%}", value=fraction)


def number(value: float | None, shown: str = ",.0f") -> Cell:
    """A number in a format of its own; empty without one."""
    return Cell.of("") if value is None else Cell(text=f"{value:{shown}}", value=value)


def recomputed_of(count: int, layers: int) -> Cell:
    """How many of a stage's layers repeat their forward."""
    return Cell(text=f"{count}/{layers}", value=count)


def part_of_step(part_s: float, step_s: float) -> Cell:
    """A part of a step, 0 where only rounding is left of it."""
    return Cell(text=format_part(part_s, step_s), value=part_s)


def size(value_bytes: float | None) -> Cell:
    """A size, sorted and copied in bytes; empty without one."""
    if value_bytes is None:
        return Cell.of("")
    return Cell(text=format_bytes(value_bytes), value=value_bytes)


# In a terminal
# -------------


def printable(text: str) -> str:
    """The text with characters that steer a terminal spelled out: names come from outside."""
    if text.isprintable():
        return text
    steer = {
        each for each in text if unicodedata.category(each) in _STEERING and each not in "\n\t"
    }
    return "".join(ascii(each)[1:-1] if each in steer else each for each in text)


_STEERING: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")


def to_terminal(view: View, *, verbose: bool = False) -> RenderableType:
    """The lines and tables of a view for a rich console; `verbose` shows what is folded."""
    from rich.console import Group

    return Group(
        *(
            _Said(printable(each)) if isinstance(each, str) else _rich(each)
            for each in _unfolded(view, verbose=verbose)
        )
    )


def _unfolded(view: View, *, verbose: bool) -> Iterator[str | Table | Facts]:
    for each in view:
        if not isinstance(each, Folded):
            yield each
        elif verbose:
            yield from each.full
        else:
            yield f"{each.line} (--verbose)"


def taken_for_granted(assumptions: Mapping[str, str]) -> Iterator[Folded]:
    """What the figures rest on: a line of subjects, a table behind it."""
    if assumptions:
        named = ", ".join(assumptions)
        full = Facts(title="taken for granted", rows=tuple(assumptions.items()))
        yield Folded(line=f"taken for granted: {named}", full=(full,))


@dataclass(frozen=True, slots=True)
class _Said:
    """A line of text in a terminal: wrapped between words, never between a number and its unit."""

    text: str

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        from rich.text import Text

        yield Text(_wrapped(self.text, options.max_width), overflow="fold")


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A table in a terminal; where its columns do not fit beside each other, the rows as text.

    Words are wrapped, never cut, and no column is left out.
    """

    shown: Table

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        from rich.padding import Padding
        from rich.text import Text

        table = self.shown
        widths = _widths(table, options.max_width)
        if table.caption:
            yield Text(printable(table.caption), style="table.title")
        if widths is not None:
            yield _grid(table, widths)
            return
        for named, *row in _brief(table):
            titled = zip(table.columns[1:], row, strict=True)
            said = (f"{each.title} {cell.text}".strip() for each, cell in titled if cell.text)
            first = table.columns[0]  # a number alone says nothing
            head = f"{first.title} {named.text}" if first.is_number else named.text
            yield Padding(_Said(printable(head)), (0, 0, 0, 2))
            yield Padding(_Said(printable("; ".join(said))), (0, 0, 0, 6))


_GAP: Final = 3  # what separates two columns


def _widths(table: Table, width: int) -> list[int] | None:
    """How wide each column is in so many columns of text; none where whole words do not fit.

    Numbers are never wrapped, titles and words between words. Where that is asked for, the widest
    columns give way first.
    """
    from rich.cells import cell_len

    least, most = [], []
    for at, each in enumerate(table.columns):
        title = each.title if each.short is None else each.short
        cells = [line for row in _brief(table) for line in printable(row[at].text).splitlines()]
        whole = cells if each.is_number else [part for line in cells for _, part in _whole(line)]
        least.append(max(map(cell_len, (*title.split(), *whole)), default=0))
        most.append(max(map(cell_len, (title, *cells)), default=0))
    room = width - _GAP * len(table.columns) + 1
    if sum(least) > room:
        return None
    level, shared = max(most, default=0), most
    while sum(shared) > room:
        level -= 1
        shared = [max(low, min(high, level)) for low, high in zip(least, most, strict=True)]
    return shared


IN_QUANTITY: Final = re.compile(r"(?<=\d) (?=(?:[KkMGTP]i?)?B(?:/s)?\b|[mµn]?s\b)")  # its blank


_IN_ADDRESS = re.compile(r"(?<=[^:/]/)(?=[^/])")


def _whole(text: str) -> Iterator[tuple[str, str]]:
    """What is not broken, and the blank before it: words, numbers with their units.

    An address may be broken behind a slash.
    """
    for word in IN_QUANTITY.sub("\0", text).split(" "):
        parts = _IN_ADDRESS.split(word) if "://" in word else [word]
        for at, part in enumerate(parts):
            yield "" if at else " ", part.replace("\0", " ")


def _wrapped(text: str, width: int) -> str:
    """Lines of at most so many columns, where what is whole has room in them."""
    from rich.cells import cell_len

    lines: list[str] = []
    for line in text.split("\n"):
        (_, first), *others = _whole(line)
        lines.append(first)
        for blank, part in others:
            if cell_len(longer := f"{lines[-1]}{blank}{part}") <= width:
                lines[-1] = longer
            else:
                lines.append(part)
    return "\n".join(lines)


def _brief(table: Table) -> Iterator[tuple[Cell, ...]]:
    rows = range(len(table.rows)) if table.brief is None else table.brief
    return (table.rows[at] for at in rows)


def _rich(shown: Table | Facts) -> _Fitted:
    if isinstance(shown, Facts):
        columns = (words(""), words(""))
        shown = table_of("", columns, shown.rows, caption=shown.title or None)
    return _Fitted(shown.on("terminal"))


def _grid(shown: Table, widths: Sequence[int]) -> RichTable:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Rich
    from rich.text import Text

    made = Rich(box=SIMPLE_HEAD, pad_edge=False)
    for each, width in zip(shown.columns, widths, strict=True):
        made.add_column(
            Text(each.title if each.short is None else each.short),  # a `str` would be markup
            width=width,
            justify="right" if each.is_number else "left",
            overflow="fold",
        )
    for row in _brief(shown):  # brackets in the name of a file are no markup
        texts = (_wrapped(printable(cell.text), at) for cell, at in zip(row, widths, strict=True))
        made.add_row(*map(Text, texts))
    return made


def warning_lines(warnings: Iterable[str]) -> Iterator[str]:
    """The lines that a table ends with."""
    return (f"warning: {each}" for each in warnings)


def relaxation_lines(relaxations: Iterable[Relaxation]) -> Iterator[str]:
    """What would make a plan fit, where some single change does."""
    fixes = tuple(relaxations)
    if fixes:
        yield "any one of these is enough:"
        yield from (f"  {fix.change}: {fix.description}{_price(fix)}" for fix in fixes)


def _price(fix: Relaxation) -> str:
    """What the best plan under a change takes."""
    if fix.step_time_s is None:
        return ""
    used = format_count(fix.devices_used or 0, "device")
    return f" ({format_seconds(fix.step_time_s)} per step on {used})"


# In a notebook
# -------------


def to_html(view: View) -> str:
    """The lines and tables of a view as HTML; what is folded can be opened. Nothing is a script."""
    return "".join(map(_html, view))


def _html(each: Line) -> str:
    from html import escape

    if isinstance(each, str):
        return f"<p>{escape(each)}</p>"
    if isinstance(each, Folded):
        inside = to_html(each.full)
        return f"<details><summary>{escape(each.line)}</summary>{inside}</details>"
    if isinstance(each, Facts):
        each = table_of("", (words(""), words("")), each.rows, caption=each.title or None)
    shown = each.on("page")
    sides = ["right" if column.is_number else "left" for column in shown.columns]

    def row(tag: str, texts: Iterable[str]) -> str:
        cells = (
            f'<{tag} style="text-align:{side}">{escape(text)}</{tag}>'
            for side, text in zip(sides, texts, strict=True)
        )
        return f"<tr>{''.join(cells)}</tr>"

    head = row("th", (column.title for column in shown.columns))
    body = "".join(row("td", (cell.text for cell in cells)) for cells in shown.rows)
    title = escape(each.caption or each.title)
    return f"<table><caption>{title}</caption><thead>{head}</thead><tbody>{body}</tbody></table>"


def nice_step(at_least: float) -> float:
    """The next of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(at_least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= at_least * (1 - 1e-9))
