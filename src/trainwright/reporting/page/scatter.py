"""Runner-up plans as points: where they lie, and which of them none beats."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from trainwright.reporting.page.blocks import Line, Mark, Scatter, Tick, percent
from trainwright.units import GIB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainwright.reporting.page.blocks import Point

_MARGIN: Final = 0.08  # of the range, around the outermost points
_MOST_TICKS: Final = 5


def time_against_memory(
    points: Sequence[Point], *, limit_bytes: float | None, winner_text: str = "the plan"
) -> Scatter:
    """Step time (x, seconds) against peak memory (y, bytes); the winner comes first in `points`."""
    made = lay_out(
        points,
        x_unit=1.0,
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
    x_unit: float,
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
        x_ticks=tuple(_ticks(x_low, x_high, x_unit, x_at)),
        y_ticks=tuple(_ticks(y_low, y_high, y_unit, y_at)),
        limit_at=y_at(y_limit) if is_near and y_limit is not None else None,
    )


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
    least = (high - low) / unit / _MOST_TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= least * (1 - 1e-9))
    first, last = math.ceil(low / unit / step), math.floor(high / unit / step)
    return [
        Tick(at=at(count * step * unit), text=f"{count * step:.6g}")
        for count in range(first, last + 1)
    ]
