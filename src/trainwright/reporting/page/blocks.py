"""What sections of the page are made of: cards, tables, bars, a scatter, facts, text.

Values only, no markup: `report_page.html.j2` has one macro per `template` name and escapes every
value. Lengths are percentages of the box they are drawn in, so that text keeps its size at any
width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One figure of the summary; `tone` is plain, good, warn or bad."""

    label: str
    value: str
    note: str = ""
    tone: str = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its title, and its name in copied CSV, which carries the unit."""

    title: str
    key: str
    is_number: bool = True


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
    """Rows of cells under columns; `marked` rows (indices) stand out."""

    template: ClassVar[str] = "table"
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    marked: frozenset[int] = frozenset()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A segment of a bar; `kind` names its colour, `amount` is what its width stands for."""

    kind: str
    label: str
    amount: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part where it is drawn: start and width in percent of the plot.

    Labelled parts have room for their text on a usual screen, wide ones on a narrow one, too.
    """

    part: Part
    start: str
    width: str
    is_labelled: bool
    is_wide: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar: parts one after the other, and what they come to."""

    label: str
    parts: tuple[Part, ...]
    total: str
    is_over: bool = False

    @property
    def amount(self) -> float:
        """Length of the bar."""
        return sum(part.amount for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """Bars on one scale from 0, with a line at `limit` where there is one."""

    template: ClassVar[str] = "bars"
    title: str
    bars: tuple[Bar, ...]
    label: str = "rank"
    limit: float | None = None
    limit_text: str = ""
    note: str = ""

    @property
    def top(self) -> float:
        """What the right edge stands for."""
        longest = max((bar.amount for bar in self.bars), default=0.0)
        reach = max(longest, self.limit or 0.0)
        return reach * (1.0 if self.limit is None else 1.02) or 1.0

    @property
    def limit_at(self) -> str:
        """Where the limit is drawn."""
        return percent((self.limit or 0.0) / self.top)

    @property
    def kinds(self) -> tuple[tuple[str, str], ...]:
        """The kinds that occur, with their names, in the order of the bars."""
        found: dict[str, str] = {}
        for bar in self.bars:
            found |= {part.kind: part.label for part in bar.parts if part.amount > 0}
        order = [part.kind for bar in self.bars for part in bar.parts]
        return tuple((kind, found[kind]) for kind in dict.fromkeys(order) if kind in found)

    def segments(self, bar: Bar) -> tuple[Segment, ...]:
        """The drawn parts of a bar; what has no length is left out."""
        made, start = [], 0.0
        for part in bar.parts:
            share = part.amount / self.top
            if part.amount > 0:
                made.append(
                    Segment(
                        part=part,
                        start=percent(start),
                        width=percent(share),
                        is_labelled=share >= _LABELLED_SHARE and part.kind != "unused",
                        is_wide=share >= _WIDE_SHARE,
                    )
                )
            start += share
        return tuple(made)


_LABELLED_SHARE, _WIDE_SHARE = 0.1, 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A plan in the scatter: x and y are amounts, `facts` what picking it shows."""

    name: str
    x: float
    y: float
    x_text: str
    y_text: str
    facts: tuple[tuple[str, str], ...]
    is_winner: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A line of the grid and its label."""

    at: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A point where it is drawn; those that none beats in both amounts are on the front."""

    point: Point
    x: str
    y: str
    on_front: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A piece of the front."""

    x1: str
    y1: str
    x2: str
    y2: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """Points with their front, drawn by `scatter.lay_out`; smaller is better on both axes."""

    template: ClassVar[str] = "scatter"
    title: str
    x_title: str
    y_title: str
    marks: tuple[Mark, ...]
    front: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    limit_at: str | None = None
    limit_text: str = ""
    winner_text: str = "the plan"
    front_text: str = "on the front: none is faster and smaller"
    beaten_text: str = "beaten in both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A rectangle of a floor plan: where it is drawn, in percent, and what it stands for."""

    part: Part
    x: str
    y: str
    width: str
    height: str
    is_labelled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorPlan:
    """Areas as rectangles of a square, in proportion; see `floor_plan.lay_out`."""

    template: ClassVar[str] = "floor"
    title: str
    blocks: tuple[Block, ...]
    note: str = ""


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
class Code:
    """Text to be copied as it is."""

    template: ClassVar[str] = "code"
    text: str
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gantt:
    """Where the schedules of the page are drawn; at most one section holds it."""

    template: ClassVar[str] = "gantt"
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A titled part of the page; `name` is its anchor, `label` what links to it say."""

    name: str
    label: str
    title: str
    blocks: tuple[Table | BarChart | Scatter | FloorPlan | Facts | Notes | Code | Gantt, ...] = ()
    cards: tuple[Card, ...] = field(default=())


def percent(share: float) -> str:
    """A share as a length in SVG."""
    return f"{100 * share:.4g}%"
