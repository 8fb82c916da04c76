"""A schedule as one SVG file: a row of bars per rank, and below, on the same axis, its memory.

Nothing is random and no date is written: the same timeline gives the same bytes. Colours follow the
reader's light or dark setting; kinds differ in texture too. Every bar is a `<rect class="bar …">`
with a `<title>` that names the action.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

import numpy as np

from trainwright.errors import UnsupportedFeature
from trainwright.pages.gantt import (
    DARK,
    KIND_NAMES,
    LIGHT,
    TEXTURES,
    GanttPanel,
    Lane,
    MemoryUnit,
    Theme,
    TimeAxis,
    label_ink,
    memory_top,
)
from trainwright.plans.schedule import ActionKind
from trainwright.units import TimeUnit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.plans.lowered import CriticalStep, Timeline


# Style sheet, textures and legend of the SVG picture
# ---------------------------------------------------

_SHAPES: Final = """\
text { font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif }
.heading { font-size: 16px; font-weight: 600 }
.section, .faint, .tick, .value { font-size: 11px }
.tick, .on { text-anchor: middle }
.on { font-size: 10.5px; pointer-events: none }
.rank { text-anchor: end }
.bar { stroke-width: .7 }
.critical { fill: none; stroke-width: 1.8; pointer-events: none }
.texture { fill: none; stroke: #000; stroke-opacity: .13; stroke-width: 1.4 }
.curve { stroke-width: 1; stroke-linejoin: round }
.limit { fill: none; stroke-width: 1.3; stroke-dasharray: 5 3 }
.over { font-weight: 700 }"""


def number(value: float) -> str:
    """Print a coordinate to a hundredth of a pixel, without trailing zeros."""
    return f"{value + 0.0:.2f}".rstrip("0").rstrip(".")


def style(panel: GanttPanel) -> Iterator[str]:
    """The style element and one pattern per kind and chunk."""
    yield f"<style>\n{_SHAPES}"
    yield from _colors(panel, LIGHT)
    for name in _bar_names(panel):
        yield f".{name} {{ fill: url(#{name}) }}"
    yield "@media (prefers-color-scheme: dark) {"
    yield from _colors(panel, DARK)
    yield "}\n</style>\n<defs>"
    for name in _bar_names(panel):
        texture = TEXTURES[ActionKind[name[0]]]
        lines = f'<path class="texture" d="{texture}"/>' if texture else ""
        yield (
            f'<pattern id="{name}" width="8" height="8" patternUnits="userSpaceOnUse">'
            f'<rect class="{name}c" width="8" height="8"/>{lines}</pattern>'
        )
    yield "</defs>"


def legend(panel: GanttPanel, *, x: float, y: float) -> Iterator[str]:
    """What colours, shades, outlines and lines mean, in one line."""
    yield f'<g class="legend" transform="translate({number(x)} {number(y)})">'
    at = 0.0
    for kind in panel.kinds:
        words = f"{kind.name} {KIND_NAMES[kind]}"
        chunks = range(panel.num_chunks)
        for chunk in chunks:
            box = f'x="{number(at + 14 * chunk)}" width="14" height="14"'
            yield f'<rect class="bar {kind.name}{chunk}" {box}/>'
        at += 14.0 * len(chunks) + 6
        yield _words(at, words)
        at += 5.7 * len(words) + 22
    if panel.num_chunks > 1:
        words = f"shades: chunks 0 to {panel.num_chunks - 1}"
        yield _words(at, words)
        at += 5.7 * len(words) + 22
    if panel.critical:
        yield f'<rect class="critical" x="{number(at + 1)}" y="1" width="16" height="12"/>'
        yield _words(at + 24, "critical path")
        at += 24 + 5.7 * 13 + 22
    if np.isfinite(panel.timeline.costs.memory.limit_bytes).any():
        yield f'<path class="limit" d="M{number(at)} 7h22"/>'
        yield _words(at + 28, "memory limit")
        at += 28 + 5.7 * 12 + 22
    yield f'<circle class="peak" cx="{number(at + 4)}" cy="7" r="3"/>'
    yield _words(at + 14, "peak")
    yield "</g>"


def _words(x: float, words: str) -> str:
    return f'<text class="faint" x="{number(x)}" y="11">{words}</text>'


def _bar_names(panel: GanttPanel) -> tuple[str, ...]:
    chunks = range(panel.num_chunks)
    return tuple(f"{kind.name}{chunk}" for kind in panel.kinds for chunk in chunks)


def _colors(panel: GanttPanel, theme: Theme) -> Iterator[str]:
    yield f".page, .peak {{ fill: {theme.page} }} .row {{ fill: {theme.row} }}"
    yield f"text {{ fill: {theme.ink} }} .section, .faint, .tick {{ fill: {theme.faint_ink} }}"
    yield f".grid {{ stroke: {theme.line} }} .bar {{ stroke: {theme.page} }}"
    yield f".critical {{ stroke: {theme.outline} }} .limit {{ stroke: {theme.limit} }}"
    yield f".curve {{ fill: {theme.memory_fill}; stroke: {theme.memory} }}"
    yield f".peak {{ stroke: {theme.outline}; stroke-width: 1.5 }} .over {{ fill: {theme.limit} }}"
    for kind in panel.kinds:
        for chunk in range(panel.num_chunks):
            fill = theme.bar(kind, chunk, panel.num_chunks)
            name = f"{kind.name}{chunk}"
            yield f".{name}c {{ fill: {fill} }} .{name}t {{ fill: {label_ink(fill)} }}"


# A schedule as one SVG file: a row of bars per rank, and below, on the same axis, its memory
# -------------------------------------------------------------------------------------------

MAX_BARS: Final = 5_000
_LEFT, _RIGHT, _TOP = 66.0, 118.0, 96.0
_ROW, _ROW_GAP = 26.0, 5.0
_MEMORY_ROW, _MEMORY_GAP = 36.0, 10.0
_AXIS = 46.0
_MIN_WIDTH, _MAX_WIDTH = 640.0, 2400.0
_DIGIT, _LABEL_MARGIN = 6.3, 5.0
_INSET = 0.75  # keeps an outline off its neighbours


def gantt_svg(
    timeline: Timeline,
    *,
    critical: Sequence[CriticalStep] = (),
    title: str = "Pipeline schedule",
    memory_unit: MemoryUnit = MemoryUnit.BYTES,
    time_unit: TimeUnit = TimeUnit.SECONDS,
) -> str:
    """Draw up to 5,000 actions.

    `critical` is outlined, as found by `scheduling.simulate`. Raises UnsupportedFeature for
    more actions.
    """
    panel = GanttPanel(
        timeline=timeline,
        title=title,
        critical=tuple(critical),
        memory_unit=memory_unit,
        time_unit=time_unit,
    )
    if panel.num_bars > MAX_BARS:
        raise UnsupportedFeature(
            f"an SVG of {panel.num_bars:,} actions is more than a viewer can show",
            alternative="write HTML, which has no such limit",
        )
    return "\n".join((*_document(_Drawing.of(panel)), ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawing:
    """The panel and where things go, in pixels."""

    panel: GanttPanel
    axis: TimeAxis
    width: float
    memory_top: float

    @classmethod
    def of(cls, panel: GanttPanel) -> _Drawing:
        width = _width_for_numbers(panel)
        axis = TimeAxis.of(
            panel.timeline.makespan_s, max_ticks=int(width / 64), time_unit=panel.time_unit
        )
        return cls(panel=panel, axis=axis, width=width, memory_top=memory_top((panel,)))

    def x(self, time_s: float) -> float:
        return time_s / self.axis.end_s * self.width

    @property
    def axis_y(self) -> float:
        return _TOP + self.panel.num_ranks * (_ROW + _ROW_GAP)

    @property
    def memory_y(self) -> float:
        return self.axis_y + _AXIS

    @property
    def height(self) -> float:
        return self.memory_y + self.panel.num_ranks * (_MEMORY_ROW + _MEMORY_GAP) + 12

    @property
    def total_width(self) -> float:
        return _LEFT + self.width + _RIGHT


def _width_for_numbers(panel: GanttPanel) -> float:
    """Wide enough for the numbers on all but the shortest bars, within limits."""
    lengths_s = panel.end_s - panel.start_s
    short_s = float(np.quantile(lengths_s, 0.1))
    if short_s <= 0:
        return _MIN_WIDTH
    digits = len(str(panel.timeline.schedule.num_microbatches - 1))
    wanted = panel.timeline.makespan_s / short_s * (digits * _DIGIT + 2 * _LABEL_MARGIN)
    return min(max(math.ceil(wanted), _MIN_WIDTH), _MAX_WIDTH)


def _document(drawing: _Drawing) -> Iterator[str]:
    panel, width, height = drawing.panel, drawing.total_width, drawing.height
    summary = " · ".join(panel.summary())
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {number(width)} {number(height)}" '
        f'width="{number(width)}" height="{number(height)}" role="img" '
        'aria-labelledby="title description">'
    )
    yield f'<title id="title">{escape(panel.title)}</title>'
    yield f'<desc id="description">{escape(_description(panel, summary))}</desc>'
    yield from style(panel)
    yield f'<rect class="page" width="{number(width)}" height="{number(height)}"/>'
    yield f'<text class="heading" x="16" y="28">{escape(panel.title)}</text>'
    yield f'<text class="faint" x="16" y="47">{escape(summary)}</text>'
    yield from legend(panel, x=16, y=62)
    yield from _time_axis(drawing)
    for rank in range(panel.num_ranks):
        yield from _bar_row(drawing, rank)
    yield f'<text class="section" x="16" y="{number(drawing.memory_y - 10)}">memory</text>'
    for rank in range(panel.num_ranks):
        yield from _memory_row(drawing, rank)
    yield "</svg>"


def _description(panel: GanttPanel, summary: str) -> str:
    path = f" The critical path has {len(panel.critical)} actions." if panel.critical else ""
    return (
        f"{summary}. One row of bars per rank, from rank 0 at the top, time from left to right; "
        f"below, the memory of each rank on the same axis.{path}"
    )


def _time_axis(drawing: _Drawing) -> Iterator[str]:
    top, bottom = _TOP - 4, drawing.height - 14
    yield f'<g transform="translate({number(_LEFT)} 0)">'
    for tick_s in drawing.axis.ticks_s:
        x = number(drawing.x(tick_s))
        yield f'<path class="grid" d="M{x} {number(top)}V{number(bottom)}"/>'
        label = drawing.axis.label(tick_s)
        yield f'<text class="tick" x="{x}" y="{number(drawing.axis_y + 14)}">{label}</text>'
    unit = f"time, {drawing.axis.unit}"
    yield (
        f'<text class="faint" x="{number(drawing.width + 12)}" '
        f'y="{number(drawing.axis_y + 14)}">{unit}</text></g>'
    )


def _bar_row(drawing: _Drawing, rank: int) -> Iterator[str]:
    y = _TOP + rank * (_ROW + _ROW_GAP)
    yield f'<g id="rank-{rank}" transform="translate({number(_LEFT)} {number(y)})">'
    yield f'<text class="rank" x="-10" y="{number(_ROW / 2 + 4)}">rank {rank}</text>'
    yield f'<rect class="row" width="{number(drawing.width)}" height="{number(_ROW)}" rx="2"/>'
    yield from _bars(drawing, rank)
    yield "</g>"


def _bars(drawing: _Drawing, rank: int) -> Iterator[str]:
    """Bars of a rank, then outlines of the critical ones, then numbers, so that none is covered."""
    panel = drawing.panel
    schedule, chunk_of_stage = panel.timeline.schedule, panel.chunk_of_stage
    rows = schedule.rows_of(rank)
    starts, ends = panel.start_s[rows].tolist(), panel.end_s[rows].tolist()
    lanes, marks = panel.lanes[rows].tolist(), panel.is_critical[rows].tolist()
    outlines, numbers = [], []
    for at, (kind, stage, microbatch) in enumerate(schedule.actions[rows].tolist()):
        x, right = drawing.x(starts[at]), drawing.x(ends[at])
        y, height = _lane_box(Lane(lanes[at]))
        name = f"{ActionKind(kind).name}{chunk_of_stage[stage]}"
        tip = escape(panel.describe(rows.start + at))
        box = _box(x, y, right - x, height)
        yield f'<rect class="bar {name}" {box}><title>{tip}</title></rect>'
        if marks[at]:
            inside = max(right - x - 2 * _INSET, 0.0)
            inner = _box(x + _INSET, y + _INSET, inside, height - 2 * _INSET)
            outlines.append(f'<rect class="critical" {inner}/>')
        label = str(microbatch)
        if right - x >= len(label) * _DIGIT + _LABEL_MARGIN:
            middle = f'x="{number((x + right) / 2)}" y="{number(y + height / 2 + 3.6)}"'
            numbers.append(f'<text class="on {name}t" {middle}>{label}</text>')
    yield from outlines
    yield from numbers


def _box(x: float, y: float, width: float, height: float) -> str:
    size = f'width="{number(width)}" height="{number(height)}"'
    return f'x="{number(x)}" y="{number(y)}" {size}'


def _lane_box(lane: Lane) -> tuple[float, float]:
    """Upper edge and height within the row."""
    half = _ROW / 2
    return {Lane.FULL: (0.0, _ROW), Lane.UPPER: (0.0, half), Lane.LOWER: (half, half)}[lane]


def _memory_row(drawing: _Drawing, rank: int) -> Iterator[str]:
    panel = drawing.panel
    curve = panel.memory_curve(rank)
    peak = float(panel.timeline.peak_bytes[rank])
    limit = float(panel.timeline.costs.memory.limit_bytes[rank])
    y = drawing.memory_y + rank * (_MEMORY_ROW + _MEMORY_GAP)
    heights = [_MEMORY_ROW * (1 - level / drawing.memory_top) for level in curve.bytes.tolist()]
    points = list(zip(map(drawing.x, curve.time_s.tolist()), heights, strict=True))
    peak_x, peak_y = points[int(np.argmax(curve.bytes))]
    yield f'<g id="memory-{rank}" transform="translate({number(_LEFT)} {number(y)})">'
    yield f'<text class="rank" x="-10" y="{number(_MEMORY_ROW / 2 + 4)}">rank {rank}</text>'
    size = f'width="{number(drawing.width)}" height="{number(_MEMORY_ROW)}"'
    yield f'<rect class="row" {size} rx="2"/>'
    yield f'<path class="curve" d="{_steps(points, drawing.width)}"/>'
    if limit <= drawing.memory_top:
        line_y = number(_MEMORY_ROW * (1 - limit / drawing.memory_top))
        yield f'<path class="limit" d="M0 {line_y}H{number(drawing.width)}"/>'
    yield f'<circle class="peak" cx="{number(peak_x)}" cy="{number(peak_y)}" r="3"/>'
    yield from _memory_words(drawing, peak, limit)
    yield "</g>"


def _memory_words(drawing: _Drawing, peak: float, limit: float) -> Iterator[str]:
    unit, x = drawing.panel.memory_unit, number(drawing.width + 10)
    over = peak > limit * (1 + 1e-12)
    if not np.isfinite(limit):
        y = number(_MEMORY_ROW / 2 + 4)
        yield f'<text class="value" x="{x}" y="{y}">{unit.describe(peak)}</text>'
        return
    kind = "value over" if over else "value"
    words = unit.describe(peak) + (" over" if over else "")
    yield f'<text class="{kind}" x="{x}" y="15">{words}</text>'
    yield f'<text class="faint" x="{x}" y="30">of {unit.describe(limit)}</text>'


def _steps(points: Sequence[tuple[float, float]], width: float) -> str:
    """A filled step function, closed along the bottom."""
    bottom = number(_MEMORY_ROW)
    path = [f"M{number(points[0][0])} {bottom}V{number(points[0][1])}"]
    path += [f"H{number(x)}V{number(y)}" for x, y in points[1:]]
    return "".join((*path, f"H{number(width)}V{bottom}Z"))
