"""Style sheet, textures and legend of the SVG picture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.plan.schedule import ActionKind
from trainwright.reporting.gantt_palette import DARK, LIGHT, TEXTURES, Theme, label_ink
from trainwright.reporting.gantt_panel import KIND_NAMES

if TYPE_CHECKING:
    from trainwright.reporting.gantt_panel import GanttPanel

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
