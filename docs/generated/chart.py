"""Charts as small SVG files: points and lines, pairs, stacked bars, bars on rows in time.

Like the pictures of schedules they follow the reader's light or dark setting, say nothing by hue
alone, and are the same bytes for the same figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from trainwright.pages.gantt import DARK, LIGHT
from trainwright.pages.schedule_report import number

HUES = (("#0072b2", "#56a9d6"), ("#e69f00", "#e8a51c"), ("#009e73", "#2fbf93"))
HUES += (("#d55e00", "#dd6a17"), ("#8cc8ea", "#2c6f96"), ("#b5679b", "#c98ab5"))
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 720.0, 92.0, 24.0, 74.0, 46.0
_CHARACTER = 6.2  # mean width of a letter of 11 pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points (x, y) under one name: marks, or where `line` a line."""

    name: str
    points: Sequence[tuple[float, float]]
    line: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row of a chart: parts (name, length) one after the other, and words behind them."""

    name: str
    parts: Sequence[tuple[str, float]]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What a direction measures; `least` and `most` where the figures do not say."""

    label: str
    least: float | None = None
    most: float | None = None

    def span(self, values: Sequence[float]) -> tuple[float, float]:
        least = min(values) if self.least is None else self.least
        most = max(values) if self.most is None else self.most
        margin = 0.06 * (most - least or abs(most) or 1.0)
        return (
            least - margin if self.least is None else least,
            most + margin if self.most is None else most,
        )


def points_chart(title: str, series: Sequence[Series], *, x: Axis, y: Axis) -> str:
    """Points and lines over two axes."""
    height = 300.0
    every = [point for each in series for point in each.points]
    across = _Scale.of(x.span([p[0] for p in every]), LEFT, WIDTH - RIGHT)
    upward = _Scale.of(y.span([p[1] for p in every]), TOP + height, TOP)
    body = [*_grid(across, upward, height), *_labels(x, y, height)]
    for index, each in enumerate(series):
        places = [(across.at(a), upward.at(b)) for a, b in each.points]
        if each.line:
            path = " ".join(f"{number(a)},{number(b)}" for a, b in places)
            body.append(f'<polyline class="curve s{index}" points="{path}"/>')
        else:
            body += [_mark(index, a, b) for a, b in places]
    names = [each.name for each in series]
    lines = [each.line for each in series]
    return _document(title, names, lines, body, TOP + height + BOTTOM)


def pairs_chart(title: str, series: Sequence[Series], *, x: Axis, y: Axis) -> str:
    """Dots on two logarithmic axes of one unit, and the line on which both are the same."""
    height = 340.0
    every = [value for each in series for point in each.points for value in point]
    ends = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    across = _Scale.of(ends, LEFT, WIDTH - RIGHT)
    upward = _Scale.of(ends, TOP + height, TOP)
    body = [*_labels(x, y, height)]
    for power in range(ends[0], ends[1] + 1):
        a, b = number(across.at(power)), number(upward.at(power))
        body.append(f'<path class="grid" d="M{a} {number(TOP)}v{number(height)}"/>')
        body.append(f'<path class="grid" d="M{number(LEFT)} {b}H{number(WIDTH - RIGHT)}"/>')
        words = f"{10.0**power:g}"
        body.append(
            _text(across.at(power), TOP + height + 17, words, anchor="middle", kind="faint")
        )
        body.append(_text(LEFT - 8, upward.at(power) + 4, words, anchor="end", kind="faint"))
    corners = (number(across.at(ends[0])), number(upward.at(ends[0])))
    opposite = (number(across.at(ends[1])), number(upward.at(ends[1])))
    body.append(f'<path class="limit" d="M{" ".join(corners)}L{" ".join(opposite)}"/>')
    for index, each in enumerate(series):
        places = [(across.at(math.log10(a)), upward.at(math.log10(b))) for a, b in each.points]
        dots = "".join(f"M{number(a)} {number(b)}h0" for a, b in places)
        pen = 'fill="none" stroke-width="5" stroke-linecap="round" stroke-opacity=".6"'
        body.append(f'<path class="s{index}" {pen} d="{dots}"/>')
    names = [each.name for each in series]
    return _document(title, names, [False] * len(names), body, TOP + height + BOTTOM)


def bars_chart(title: str, bars: Sequence[Bar], *, x: Axis, limit: float | None = None) -> str:
    """Stacked bars, one under the other; `limit` is a dashed line."""
    row, height = 26.0, 26.0 * len(bars)
    names = list(dict.fromkeys(name for bar in bars for name, _ in bar.parts))
    longest = [sum(length for _, length in bar.parts) for bar in bars]
    left = max(LEFT, 18 + _CHARACTER * max(len(bar.name) for bar in bars))
    right = 16 + _CHARACTER * max(len(bar.note) for bar in bars) + 10
    span = Axis(label=x.label, least=0.0, most=x.most).span([*longest, limit or 0.0])
    across = _Scale.of(span, left, WIDTH - right)
    body = [*_ticks(across, height), *_axis_label(x.label, (left + WIDTH - right) / 2, height)]
    for index, bar in enumerate(bars):
        top, start = TOP + row * index + 4, 0.0
        body.append(_text(left - 8, top + 13, bar.name, anchor="end"))
        for name, length in bar.parts:
            begin, end = across.at(start), across.at(start + length)
            box = f'x="{number(begin)}" y="{number(top)}" width="{number(end - begin)}" height="18"'
            words = f"<title>{escape(bar.name)}: {escape(name)} {length:.4g}</title>"
            body.append(f'<rect class="f{names.index(name)}" {box}>{words}</rect>')
            start += length
        beside = across.at(start) if limit is None else WIDTH - right
        body.append(_text(beside + 7, top + 13, bar.note))
    if limit is not None:
        at = number(across.at(limit))
        body.append(f'<path class="limit" d="M{at} {number(TOP - 4)}V{number(TOP + height)}"/>')
    shown = names if len(names) > 1 else []
    return _document(title, shown, [False] * len(shown), body, TOP + height + BOTTOM)


def rows_chart(
    title: str, rows: Sequence[tuple[str, Sequence[tuple[float, float, str]]]], *, x: Axis
) -> str:
    """Named bars (start, end, words) on rows that share a time axis."""
    row, height = 34.0, 34.0 * len(rows)
    across = _Scale.of((0.0, max(end for _, bars in rows for _, end, _ in bars)), LEFT, WIDTH - 40)
    body = [*_ticks(across, height), *_axis_label(x.label, (LEFT + WIDTH - 40) / 2, height)]
    for index, (name, bars) in enumerate(rows):
        top = TOP + row * index + 4
        body.append(_text(LEFT - 8, top + 17, name, anchor="end"))
        for start, end, words in bars:
            begin, width = across.at(start), across.at(end) - across.at(start)
            box = f'x="{number(begin)}" y="{number(top)}" width="{number(width)}" height="26"'
            body.append(f'<rect class="f{index % len(HUES)} outlined" {box}/>')
            inside = words if _CHARACTER * len(words) < width else ""
            body.append(_text(begin + width / 2, top + 17, inside, anchor="middle", kind="inside"))
    return _document(title, [], [], body, TOP + height + BOTTOM)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    least: float
    most: float
    start: float
    end: float

    @classmethod
    def of(cls, span: tuple[float, float], start: float, end: float) -> _Scale:
        return cls(least=span[0], most=span[1], start=start, end=end)

    def at(self, value: float) -> float:
        share = (value - self.least) / (self.most - self.least)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        rough = (self.most - self.least) / 6
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
        first = math.ceil(self.least / step - 1e-9)
        last = math.floor(self.most / step + 1e-9)
        return [step * index for index in range(first, last + 1)]


def _grid(across: _Scale, upward: _Scale, height: float) -> Iterator[str]:
    yield from _ticks(across, height)
    for value in upward.ticks():
        at = upward.at(value)
        yield f'<path class="grid" d="M{number(LEFT)} {number(at)}H{number(WIDTH - RIGHT)}"/>'
        yield _text(LEFT - 8, at + 4, f"{value:,.6g}", anchor="end", kind="faint")


def _ticks(across: _Scale, height: float) -> Iterator[str]:
    for value in across.ticks():
        at = across.at(value)
        yield f'<path class="grid" d="M{number(at)} {number(TOP)}v{number(height)}"/>'
        yield _text(at, TOP + height + 17, f"{value:,.6g}", anchor="middle", kind="faint")


def _labels(x: Axis, y: Axis, height: float) -> Iterator[str]:
    yield from _axis_label(x.label, (LEFT + WIDTH - RIGHT) / 2, height)
    yield _text(12, TOP - 10, y.label)


def _axis_label(label: str, middle: float, height: float) -> Iterator[str]:
    yield _text(middle, TOP + height + 36, label, anchor="middle")


def _mark(index: int, x: float, y: float) -> str:
    """A dot, a square, a diamond: shapes differ as hues do."""
    a, b = number(x), number(y)
    if index % 3 == 0:
        return f'<circle class="f{index}" cx="{a}" cy="{b}" r="4.5"/>'
    turned = f' transform="rotate(45 {a} {b})"' if index % 3 == 2 else ""
    box = f'x="{number(x - 4.5)}" y="{number(y - 4.5)}" width="9" height="9"'
    return f'<rect class="f{index}" {box}{turned}/>'


def _text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "ink") -> str:
    if not words:
        return ""
    place = f'x="{number(x)}" y="{number(y)}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(words)}</text>'


def _document(
    title: str, names: Sequence[str], lines: Sequence[bool], body: Sequence[str], height: float
) -> str:
    size = f'viewBox="0 0 {number(WIDTH)} {number(height)}" width="{number(WIDTH)}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">']
    parts += [f"<title>{escape(title)}</title>", *_style()]
    parts.append(f'<rect class="page" width="{number(WIDTH)}" height="{number(height)}"/>')
    parts.append(_text(12, 22, title, kind="heading"))
    at = 12.0
    for index, (name, line) in enumerate(zip(names, lines, strict=True)):
        parts.append(
            f'<path class="curve s{index}" d="M{number(at)} 40h14"/>'
            if line
            else _mark(index, at + 7, 40)
            if len(lines) == len(names) and any(lines)
            else f'<rect class="f{index}" x="{number(at)}" y="33" width="14" height="14"/>'
        )
        parts.append(_text(at + 20, 44, name))
        at += 20 + _CHARACTER * len(name) + 24
    return "\n".join([*parts, *filter(None, body), "</svg>", ""])


def _style() -> Iterator[str]:
    yield "<style>text { font: 11px system-ui, sans-serif } .heading { font-size: 14px;"
    yield "font-weight: 700 } .curve { fill: none; stroke-width: 2.2; stroke-linejoin: round }"
    yield ".limit { fill: none; stroke-width: 1.6; stroke-dasharray: 5 3 }"
    yield ".inside { fill: #111418 } .outlined { stroke-width: 1 }"
    yield from _colors(0)
    yield "@media (prefers-color-scheme: dark) {"
    yield from _colors(1)
    yield "}</style>"


def _colors(dark: int) -> Iterator[str]:
    theme = (LIGHT, DARK)[dark]
    yield f".page {{ fill: {theme.page} }} .ink, .heading {{ fill: {theme.ink} }}"
    yield f".faint {{ fill: {theme.faint_ink} }} .grid {{ stroke: {theme.line} }}"
    yield f".limit {{ stroke: {theme.limit} }} .outlined {{ stroke: {theme.page} }}"
    for index, hues in enumerate(HUES):
        yield f".f{index} {{ fill: {hues[dark]} }} .s{index} {{ stroke: {hues[dark]} }}"
