"""What sections of the page are made of: cards, tables, bars, a scatter, facts, text.

Values only, no markup: `report_page.html.j2` has one macro per `template` name and escapes every
value. Lengths are percentages of the box they are drawn in, so that text keeps its size at any
width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final

from trainwright.documents.view import nice_step
from trainwright.plans.status import Status
from trainwright.units import GIB, format_bytes, format_percent_up

if TYPE_CHECKING:
    Box = tuple[float, float, float, float]  # x, y, width, height, of a unit square


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One figure of the summary; `tone` is plain, good, warn or bad."""

    label: str
    value: str
    note: str = ""
    tone: str = "plain"


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


_LABELLED_SHARE, _WIDE_SHARE = 0.125, 0.4  # 74 and 72 px where bars are shortest


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
    """Areas as rectangles of a square, in proportion; see `lay_out_areas`."""

    template: ClassVar[str] = "floor"
    title: str
    blocks: tuple[Block, ...]
    note: str = ""


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
class Verdict:
    """The answer in a sentence: `state` in a word or two, then what is said of it.

    `tone` as of a card; `evidence` are the sentences that it rests on.
    """

    template: ClassVar[str] = "verdict"
    state: str
    said: str
    tone: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    """A change with its price as shown, and the whole command that asks for it."""

    what: str
    step: str
    against: str
    tone: str
    memory: str
    options: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeList:
    """What is worth changing, best first; `against` names what their ratios are of.

    The first `shown` rows are there at once.
    """

    template: ClassVar[str] = "changes"
    rows: tuple[ChangeRow, ...]
    title: str
    against: str = "vs plan"
    note: str = ""
    shown: int = 3

    @property
    def has_steps(self) -> bool:
        """Whether the step of a row is known."""
        return any(row.step for row in self.rows)

    @property
    def has_ratios(self) -> bool:
        """Whether a row compares with what there is."""
        return any(row.against for row in self.rows)

    @property
    def has_memory(self) -> bool:
        """Whether a row knows its memory."""
        return any(row.memory for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Blocks beside each other where there is room."""

    template: ClassVar[str] = "beside"
    left: tuple[Any, ...]
    right: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A titled part of the page; `name` is its anchor, `label` what links to it say.

    What is `folded` shows its title, and the rest to whoever opens it.
    """

    name: str
    label: str
    title: str
    blocks: tuple[Any, ...] = ()
    cards: tuple[Card, ...] = field(default=())
    folded: bool = False


def folded(found: Section) -> Section:
    """The section, shown to whoever opens it."""
    return replace(found, folded=True)


def card(label: str, value: str, note: str = "", tone: str = "plain") -> Card:
    """A card, its parts in their order."""
    return Card(label=label, value=value, note=note, tone=tone)


def section(
    name: str, title: str, *blocks: Any, label: str | None = None, cards: Iterable[Card] = ()
) -> Section:
    """A section of these blocks; links to it say its name where no `label` does."""
    label = label or name.capitalize()
    return Section(name=name, label=label, title=title, blocks=blocks, cards=tuple(cards))


def reason_title(status: Status) -> str:
    """What the reason why there is no plan is called: a search that was ended excludes none."""
    return "Why nothing fits" if status is Status.INFEASIBLE else "Why there is no plan yet"


def proved_state(status: Status, gap: float | None, other: str) -> tuple[str, str]:
    """What a verdict begins with, and its tone, by what is proved; `other` where nothing is."""
    if status is Status.OPTIMAL:
        return "Optimal", "good"
    if status is Status.GAP:
        return f"At most {format_percent_up(gap or 0.0)} from the best", "plain"
    return other, "plain"


def gap_card(
    status: Status, *, bound_text: str, gap: float, what: str, verb: str = "takes less than"
) -> Card:
    """How far `what` may be from the best, of which none is beyond the bound."""
    if not bound_text:
        return card("optimality", "open", "the search ended before a bound")
    note = f"no {what} {verb} {bound_text}"
    if status is Status.OPTIMAL:
        return card("optimality", "proved", note, "good")
    return card("optimality gap", f"≤ {format_percent_up(gap)}", note)


def plain_bars(
    title: str, label: str, rows: Iterable[tuple[str, float, str, str]], *, what: str = "step"
) -> BarChart:
    """A bar of one part, called `what`, for each (label, amount, its text, text at the end)."""
    bars = tuple(
        Bar(label=name, parts=(Part(kind="plain", label=what, amount=n, text=text),), total=total)
        for name, n, text, total in rows
    )
    return BarChart(title=title, bars=bars, label=label)


def percent(share: float) -> str:
    """A share as a length in SVG."""
    return f"{100 * share:.4g}%"


# Runner-up plans as points: where they lie, and which of them none beats
# -----------------------------------------------------------------------

_MARGIN: Final = 0.08  # of the range, around the outermost points
_MOST_TICKS: Final = 5


def time_against_memory(
    points: Sequence[Point], *, limit_bytes: float | None, winner_text: str = "the plan"
) -> Scatter:
    """Step time (x, seconds) against peak memory (y, bytes); the winner comes first in `points`."""
    made = lay_out(
        points,
        y_unit=GIB,
        y_limit=limit_bytes,
        title="Step time against peak memory",
        x_title="step time, s",
        y_title="peak memory of the fullest device, GiB",
    )
    made = replace(made, winner_text=winner_text)
    if limit_bytes is None:
        return made
    return replace(made, limit_text=f"usable {format_bytes(limit_bytes)}")


def lay_out(
    points: Sequence[Point],
    *,
    y_unit: float,
    y_limit: float | None = None,
    title: str,
    x_title: str,
    y_title: str,
) -> Scatter:
    """Where points, front, ticks in multiples of the units and a near limit are drawn.

    What is above the limit is not on the front: it cannot be had.
    """
    x_low, x_high = _range([point.x for point in points])
    y_low, y_high = _range([point.y for point in points])
    if y_limit is not None and y_low < y_limit < y_high + 0.5 * (y_high - y_low):
        y_high = max(y_high, y_limit + _MARGIN * (y_high - y_low))

    def x_at(value: float) -> str:
        return percent((value - x_low) / (x_high - x_low))

    def y_at(value: float) -> str:
        return percent((y_high - value) / (y_high - y_low))

    best = front([point for point in points if y_limit is None or point.y <= y_limit])
    is_near = y_limit is not None and y_low < y_limit <= y_high
    return Scatter(
        title=title,
        x_title=x_title,
        y_title=y_title,
        marks=tuple(
            Mark(point=point, x=x_at(point.x), y=y_at(point.y), on_front=point in best)
            for point in points
        ),
        front=_steps(best, x_at, y_at),
        x_ticks=tuple(_ticks(x_low, x_high, 1.0, x_at)),
        y_ticks=tuple(_ticks(y_low, y_high, y_unit, y_at)),
        limit_at=y_at(y_limit) if is_near and y_limit is not None else None,
    )


def lay_out_agreement(points: Sequence[Point]) -> Scatter:
    """Predicted against measured steps, both above 0, on logarithmic axes with their diagonal."""
    values = [each for point in points for each in (point.x, point.y)]
    low, high = _round_up_to_a_tick(min(values), -1), _round_up_to_a_tick(max(values), 1)
    low, high = math.log10(low), math.log10(high)

    def share(value: float) -> float:
        return (math.log10(value) - low) / (high - low)

    steps = [s * 10.0**p for p in range(math.floor(low), math.ceil(high) + 1) for s in (1, 2, 5)]
    shown = [value for value in steps if low - 1e-9 <= math.log10(value) <= high + 1e-9]
    shown = shown if len(shown) <= 2 * _MOST_TICKS else [v for v in shown if f"{v:e}"[0] == "1"]
    return Scatter(
        title="Predicted against measured step times",
        x_title="measured, s",
        y_title="predicted, s",
        marks=tuple(
            Mark(
                point=point,
                x=percent(share(point.x)),
                y=percent(1 - share(point.y)),
                on_front=False,
            )
            for point in points
        ),
        front=(Line(x1="0%", y1="100%", x2="100%", y2="0%"),),
        x_ticks=tuple(Tick(at=percent(share(value)), text=f"{value:.6g}") for value in shown),
        y_ticks=tuple(Tick(at=percent(1 - share(value)), text=f"{value:.6g}") for value in shown),
        winner_text="",
        front_text="line: as predicted",
        beaten_text="a run",
    )


def _round_up_to_a_tick(value: float, sign: int) -> float:
    """The next of 1, 2, 5 times a power of ten above the value, or below it."""
    power = 10.0 ** math.floor(math.log10(value))
    steps = [step * power for step in (0.5, 1, 2, 5, 10, 20)]
    return min((s for s in steps if sign * (s - value) > 0), key=lambda step: sign * step)


def upside_down(made: Scatter) -> Scatter:
    """The same with y going up, for points whose y is minus what is better the more there is."""

    def turned(at: str) -> str:
        return percent(1 - float(at[:-1]) / 100)

    return replace(
        made,
        marks=tuple(replace(mark, y=turned(mark.y)) for mark in made.marks),
        front=tuple(replace(line, y1=turned(line.y1), y2=turned(line.y2)) for line in made.front),
        y_ticks=tuple(
            Tick(at=turned(tick.at), text=tick.text.removeprefix("-")) for tick in made.y_ticks
        ),
    )


def front(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points that no other equals or beats in both amounts, fastest first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.x, p.y)):
        if not kept or point.y < kept[-1].y:
            kept.append(point)
    return tuple(kept)


def _steps(
    best: Sequence[Point], x_at: Callable[[float], str], y_at: Callable[[float], str]
) -> tuple[Line, ...]:
    """The front as a staircase: along one point's memory until the next one's time."""
    lines = []
    for one, other in pairwise(best):
        corner = x_at(other.x), y_at(one.y)
        lines.append(Line(x1=x_at(one.x), y1=y_at(one.y), x2=corner[0], y2=corner[1]))
        lines.append(Line(x1=corner[0], y1=corner[1], x2=x_at(other.x), y2=y_at(other.y)))
    return tuple(lines)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = _MARGIN * (high - low) or _MARGIN * abs(high) or 1.0
    lowest, highest = low - margin, high + margin
    return max(lowest, 0.0) if low >= 0 else lowest, min(highest, 0.0) if high <= 0 else highest


def _ticks(low: float, high: float, unit: float, at: Callable[[float], str]) -> list[Tick]:
    """At most a few multiples of 1, 2 or 5 times a power of ten, in `unit`."""
    step = nice_step((high - low) / unit / _MOST_TICKS)
    first, last = math.ceil(low / unit / step), math.floor(high / unit / step)
    return [
        Tick(at=at(count * step * unit), text=f"{count * step:.6g}")
        for count in range(first, last + 1)
    ]


# Areas as a floor plan: rectangles that fill a square in proportion, each as square as it gets
# ---------------------------------------------------------------------------------------------
# Squarified treemaps (Bruls, Huizing, van Wijk, 2000): areas from large to small are laid in rows
# along the shorter side of what is left, and a row is closed when one more would make it worse.

_LABELLED: Final = (0.3, 0.16)  # width and height that leave room for two lines of text


def lay_out_areas(parts: Sequence[Part], *, title: str, note: str = "") -> FloorPlan:
    """The parts with an area, the largest first."""
    kept = sorted((p for p in parts if p.amount > 0), key=lambda part: -part.amount)
    boxes = squarify([part.amount for part in kept])
    blocks = tuple(
        Block(
            part=part,
            x=percent(x),
            y=percent(y),
            width=percent(width),
            height=percent(height),
            is_labelled=width >= _LABELLED[0] and height >= _LABELLED[1],
        )
        for part, (x, y, width, height) in zip(kept, boxes, strict=True)
    )
    return FloorPlan(title=title, blocks=blocks, note=note)


def squarify(areas: Sequence[float]) -> list[Box]:
    """One box per area, which are positive and sorted from large to small."""
    total = sum(areas)
    left: Box = (0.0, 0.0, 1.0, 1.0)
    boxes: list[Box] = []
    row: list[float] = []
    for area in (amount / total for amount in areas):
        side = min(left[2], left[3])
        if row and _worst([*row, area], side) > _worst(row, side):
            laid, left = _lay_row(row, left)
            boxes += laid
            row = []
        row.append(area)
    if row:
        boxes += _lay_row(row, left)[0]
    return boxes


def _worst(row: Sequence[float], side: float) -> float:
    """The largest ratio of sides in a row along `side`."""
    thickness = sum(row) / side
    return max(max(thickness**2 / area, area / thickness**2) for area in row)


def _lay_row(row: Sequence[float], left: Box) -> tuple[list[Box], Box]:
    x, y, width, height = left
    boxes: list[Box] = []
    if width >= height:  # a column at the left
        thickness = sum(row) / height
        for area in row:
            boxes.append((x, y, thickness, area / thickness))
            y += area / thickness
        return boxes, (x + thickness, left[1], width - thickness, height)
    thickness = sum(row) / width
    for area in row:
        boxes.append((x, y, area / thickness, thickness))
        x += area / thickness
    return boxes, (left[0], left[1] + thickness, width, height - thickness)
