"""What `schedule` returns: a document that prints itself, draws itself and runs for real."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

import numpy as np

from trainwright.documents.printing import Report, render
from trainwright.documents.schedule import (
    KINDS,
    Answer,
    FrontPoint,
    ScheduleResult,
    as_limited,
    document_of,
    front_table,
    name_of,
    rank_table,
    request_of,
    value_of,
)
from trainwright.documents.view import Facts, Notes, Table
from trainwright.errors import InvalidInput, UnsupportedFeature, one_of
from trainwright.formats.atomic_file import check_writable, write_text
from trainwright.formats.schedule_json import (
    format_compute_comms,
    format_compute_only,
    write_orders,
)
from trainwright.options.schedule import Method, ScheduleCase, SearchOptions
from trainwright.pages.blocks import (
    Bar,
    BarChart,
    Card,
    Gantt,
    Part,
    Point,
    Scatter,
    Section,
    Verdict,
    card,
    folded,
    gap_card,
    proved_state,
    section,
    time_against_memory,
)
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
    gantt_html,
    gantt_text,
    label_ink,
    memory_top,
)
from trainwright.pages.subject import (
    Content,
    Figure,
    Subject,
    figures,
    provenance_section,
    reproduce_section,
)
from trainwright.plans.lowered import CriticalStep, Timeline
from trainwright.plans.schedule import ActionKind
from trainwright.plans.status import Status
from trainwright.scheduling.simulate import critical_path
from trainwright.units import TimeUnit, format_bytes, format_count, format_percent_up

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trainwright.documents.schedule_methods import GivenOrders
    from trainwright.execution import Budget


# A schedule as one SVG file: a row of bars per rank, and below, on the same axis, its memory
# -------------------------------------------------------------------------------------------
# Nothing is random and no date is written: the same timeline gives the same bytes. Colours follow
# the reader's light or dark setting; kinds differ in texture too. Every bar is a `<rect class="bar
# …">` with a `<title>` that names the action.


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


def style(panel: GanttPanel, *, short: float) -> Iterator[str]:
    """The style element and one pattern per kind and chunk; a short bar has `short` pixels."""
    yield f"<style>\n{_SHAPES}"
    if 0 < short < 6 * _GAP:  # else gaps alone would be seen
        yield f".bar {{ stroke-width: {number(short / 6)} }}"
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
_WINDOW = 1180.0  # as wide as a page of ours
_DIGIT, _LABEL_MARGIN = 6.3, 5.0
_GAP = 0.7  # between bars, as the style says
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


def _short_s(panel: GanttPanel) -> float:
    """What all but the shortest bars last."""
    return float(np.quantile(panel.end_s - panel.start_s, 0.1))


def _width_for_numbers(panel: GanttPanel) -> float:
    """Wide enough for the numbers on all but the shortest bars; else the whole in a window."""
    short_s = _short_s(panel)
    if short_s <= 0:
        return _MIN_WIDTH
    digits = len(str(panel.timeline.schedule.num_microbatches - 1))
    wanted = panel.timeline.makespan_s / short_s * (digits * _DIGIT + 2 * _LABEL_MARGIN)
    if wanted > _MAX_WIDTH:
        return _WINDOW - _LEFT - _RIGHT
    return max(math.ceil(wanted), _MIN_WIDTH)


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
    yield from style(panel, short=drawing.x(_short_s(panel)))
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
    words = unit.describe(peak) + (", over" if over else "")
    yield f'<text class="{kind}" x="{x}" y="15">{words}</text>'
    yield f'<text class="faint" x="{x}" y="30">of {unit.describe(limit)}</text>'


def _steps(points: Sequence[tuple[float, float]], width: float) -> str:
    """A filled step function, closed along the bottom."""
    bottom = number(_MEMORY_ROW)
    path = [f"M{number(points[0][0])} {bottom}V{number(points[0][1])}"]
    path += [f"H{number(x)}V{number(y)}" for x, y in points[1:]]
    return "".join((*path, f"H{number(width)}V{bottom}Z"))


ORDER_FORMS = ("json", "compute_only", "compute_comms")
_FORM_OF_SUFFIX = {".json": "json", ".csv": "compute_only"}
_PICTURES = (".svg", ".html", ".json", ".json.gz")
_WIDTH = 110
_MOST_DRAWN_RANKS = 16
_MOST_DRAWN_ACTIONS = 100  # on one rank


@dataclass(frozen=True, slots=True, repr=False)
class ScheduleReport(Report[ScheduleResult]):
    """The document, and the schedule with its times; None where nothing fits."""

    timeline: Timeline | None = None

    @property
    def status(self) -> Status:
        """How much is proved."""
        return self.document.status

    @property
    def makespan_s(self) -> float | None:
        """Last end minus first start."""
        return self.document.makespan_s

    @property
    def gap(self) -> float | None:
        """How much shorter, relatively, the objective could be at most."""
        return self.document.gap

    def renderable(self, *, verbose: bool = False) -> RenderableType:
        """The tables; small schedules are drawn below them."""
        from rich.console import Group
        from rich.text import Text

        drawing = self._drawing()
        tables = render(self.document, verbose=verbose)
        return Group(tables, Text(drawing, no_wrap=True)) if drawing else tables

    def verified(self) -> ScheduleReport:
        """The same report with what real runs on PyTorch gave (extra [torch]).

        A family on more than 4 ranks is folded: its schedule on 4 ranks is run in its place.
        Raises UnsupportedFeature where that, or PyTorch, cannot do it.
        """
        from trainwright.lab.verify_runs import verify_folded

        found = verify_folded(self.document, self._found())
        return replace(self, document=replace(self.document, verification=found))

    @property
    def verification_passed(self) -> bool:
        """Whether real runs were asked for and gave the right gradients."""
        return self.document.verification is not None and self.document.verification.passed

    def save_orders(self, path: str | Path, *, form: str | None = None) -> None:
        """Write the orders: JSON, or PyTorch's CSV with transfers (`compute_comms`) or without.

        Where `form` is left out, the suffix tells: .json, or .csv for `compute_only`. Raises
        UnsupportedFeature for what PyTorch cannot run, InvalidInput without a schedule.
        """
        write_text(path, self.orders_text(order_form(path, form)))

    def notes_on_orders(self, path: str | Path, *, form: str | None = None) -> tuple[str, ...]:
        """What `save_orders` changes in the orders it writes."""
        from trainwright.scheduling.lower import meets_in_order

        if order_form(path, form) == "json" or meets_in_order(self._found().schedule):
            return ()
        return (
            f"microbatches are renumbered in {path}: PyTorch's last stage must meet 0, 1, 2, …",
        )

    def with_warnings(self, *warnings: str) -> ScheduleReport:
        """The same report with more warnings."""
        every = (*self.document.warnings, *warnings)
        return replace(self, document=replace(self.document, warnings=every))

    def orders_text(self, form: str) -> str:
        """The orders as the text of a file in one of `ORDER_FORMS`."""
        from trainwright.scheduling.lower import as_pytorch_runs, lower

        timeline = self._found()
        if form == "json":
            return json.dumps(write_orders(timeline.schedule)) + "\n"
        runnable = as_pytorch_runs(timeline.schedule)
        if form == "compute_only":
            return format_compute_only(runnable)
        return format_compute_comms(lower(runnable, costs=timeline.costs))

    def save_gantt(self, path: str | Path) -> None:
        """Draw into a .svg (up to 5,000 actions), a .html, or a Chrome trace (.json, .json.gz)."""
        from trainwright.frameworks.chrome_trace import write_chrome_trace

        suffix = picture_form(path)
        if suffix.startswith(".json"):
            write_chrome_trace(path, self._found(), memory_unit=self._memory_unit().value)
            return
        panel = self.panel()
        if suffix == ".svg":
            text = gantt_svg(
                panel.timeline,
                critical=panel.critical,
                title=panel.title,
                memory_unit=panel.memory_unit,
                time_unit=panel.time_unit,
            )
        else:
            text = gantt_html(panel)
        write_text(path, text)

    def panel(self) -> GanttPanel:
        """The schedule as pictures take it, with its critical path and limits.

        Raises InvalidInput where nothing fits.
        """
        timeline = self._with_limit(self._found())
        return GanttPanel(
            timeline=timeline,
            title=self._title(),
            critical=critical_path(timeline),
            memory_unit=self._memory_unit(),
            time_unit=self._time_unit(),
        )

    def _found(self) -> Timeline:
        if self.timeline is None:
            raise InvalidInput.of("schedule", "there is none: nothing fits the limit")
        return self.timeline

    def _with_limit(self, timeline: Timeline) -> Timeline:
        """A limit on activations as that of the memory drawn, where that counts them."""
        limit, memory = self.document.request.max_activations, timeline.costs.memory
        if limit is None or self._memory_unit() == "bytes":
            return timeline
        limit *= self.document.parts_per_stage or 1
        limited = replace(memory, limit_bytes=np.minimum(memory.limit_bytes, limit))
        return replace(timeline, costs=replace(timeline.costs, memory=limited))

    def _title(self) -> str:
        return f"{self.document.family}: {_sizes(self.document)}"

    def _memory_unit(self) -> MemoryUnit:
        in_bytes = self.document.peak_memory_bytes is not None
        return MemoryUnit.BYTES if in_bytes else MemoryUnit.ACTIVATIONS

    def _time_unit(self) -> TimeUnit:
        return self.document.request.time_unit

    def _drawing(self) -> str:
        """The picture for a terminal, empty where it would not be legible."""
        if self.timeline is None:
            return ""
        schedule = self.timeline.schedule
        longest = int(np.diff(schedule.rank_offsets).max())
        if schedule.num_ranks > _MOST_DRAWN_RANKS or longest > _MOST_DRAWN_ACTIONS:
            return ""
        return "\n" + gantt_text(
            self._with_limit(self.timeline),
            width=_WIDTH,
            memory_unit=self._memory_unit(),
            time_unit=self._time_unit(),
        )


def report_on(
    answer: Answer,
    case: ScheduleCase,
    options: SearchOptions,
    *,
    method: Method,
    orders: GivenOrders | None,
    budget: Budget,
) -> ScheduleReport:
    """The report of an answer."""
    request = request_of(
        case,
        answer,
        options,
        method=method,
        orders_name=orders.name if orders else None,
        time_limit_s=budget.time_limit_s,
    )
    return ScheduleReport(document_of(answer, case, request), answer.timeline)


def check_targets(
    *,
    orders: str | Path | None,
    orders_form: str | None,
    gantt: str | Path | None,
    verify: bool,
) -> None:
    """Refuse what cannot be written, not in that form, or not be run, before any work is done."""
    if verify:
        from trainwright.lab.gloo_check import require_pytorch

        require_pytorch()

    if orders is not None:
        order_form(orders, orders_form)
        check_writable(orders)
    if gantt is not None:
        picture_form(gantt)
        check_writable(gantt)


def order_form(path: str | Path, form: str | None) -> str:
    """What to write into `path`; raises InvalidInput where neither form nor suffix tells."""
    if form is None:
        form = _FORM_OF_SUFFIX.get(Path(path).suffix)
        if form is None:
            raise InvalidInput.of("orders", f'must end in .json or .csv, got "{path}"')
    elif form not in ORDER_FORMS:
        raise InvalidInput.of("orders-form", one_of(ORDER_FORMS, form))
    return form


def picture_form(path: str | Path) -> str:
    """The suffix that says what to draw; raises InvalidInput for any other."""
    for suffix in reversed(_PICTURES):
        if str(path).endswith(suffix):
            return suffix
    raise InvalidInput.of("gantt", f'must end in one of {", ".join(_PICTURES)}, got "{path}"')


# The page of a pipeline schedule
# -------------------------------


_COLORS = {"F": "compute", "I": "traffic", "W": "sync", "B": "tensor", "R": "recompute"}
_COLORS |= {"O": "hidden", "D": "unused", "L": "buffers", "V": "expert", "T": "context"}


def _sizes(document: ScheduleResult) -> str:
    batches = format_count(document.microbatches, "microbatch")
    return f"{format_count(document.ranks, 'rank')}, {batches}"


def schedule_content(subject: Subject[ScheduleResult]) -> Content:
    """Everything the page says about a schedule."""
    document = subject.document
    return Content(
        title=f"{name_of(document)}: {_sizes(document)}",
        subtitle=f"Schedule: {_verdict(document)} · objective {document.objective}",
        figures=tuple(_figures(document)),
        sections=tuple(_sections(subject)),
    )


def _verdict(document: ScheduleResult) -> str:
    if document.status is Status.OPTIMAL:
        return "optimal, proved"
    if document.status is Status.GAP:
        return f"at most {format_percent_up(document.gap or 0.0)} from the best"
    return str(document.status)


def _figures(document: ScheduleResult) -> Iterator[Figure]:
    time = document.request.time_unit.describe
    makespan, bubble = document.makespan_s, document.bubble_of_makespan
    peak = document.peak_activations
    yield from figures(
        ("makespan_s", "makespan", makespan, time(makespan or 0.0)),
        ("bubble_of_makespan", "bubble", bubble, f"{bubble or 0.0:.2%}"),
        ("peak_activations", "activations", peak, f"{peak}"),
        ("ranks", "ranks", document.ranks, f"{document.ranks}"),
    )


def _sections(subject: Subject[ScheduleResult]) -> Iterator[Section]:
    document = subject.document
    yield section(
        "summary", "The answer", _answer(document), label="Answer", cards=_cards(document)
    )
    if subject.panel is not None:
        gantt = Gantt(note=f"{subject.panel.num_bars:,} actions.")
        yield section("schedule", "Schedule and memory over time", gantt)
    if len(document.points) > 1:
        yield section("alternatives", "Memory against time", *_front(document))
    yield _why(document) if document.makespan_s is None else folded(_why(document))
    if document.peak_activations_per_rank:
        yield folded(section("plan", "The ranks", rank_table(document)))
    yield provenance_section(subject, {"costs": f"as {document.request.costs.name} states them"})
    yield reproduce_section(subject, (document.request.costs,))


def _answer(document: ScheduleResult) -> Verdict:
    """How long the work of a pipeline takes, and how near the best that is."""
    if document.makespan_s is None:
        why = document.binding.description if document.binding else "no order was found in time"
        none = document.status is Status.INFEASIBLE
        return Verdict(state="Nothing fits" if none else "No schedule yet", said=why, tone="bad")
    takes = document.request.time_unit.describe(document.makespan_s)
    held = format_count(document.peak_activations or 0, "activation")
    said = (
        f"{format_count(document.microbatches, 'microbatch')} on "
        f"{format_count(document.ranks, 'rank')} in {takes}, {document.bubble_of_span or 0:.2%} "
        f"of it bubble. A rank holds at most {held}."
    )
    if document.fits is False:
        return Verdict(state="Does not fit", said=said, tone="bad")
    state, tone = proved_state(document.status, document.gap, "A schedule")
    return Verdict(state=state, said=said, tone=tone)


def _cards(document: ScheduleResult) -> Iterator[Card]:
    time = document.request.time_unit.describe
    if document.makespan_s is None or document.span_s is None:
        yield card("status", str(document.status), tone="bad")
        return
    yield card("makespan", time(document.makespan_s), "of all ranks")
    if document.span_s != document.makespan_s:
        yield card("span", time(document.span_s), "of the rank longest at work")
    yield card("bubble", f"{document.bubble_of_span or 0:.2%}", "of the span")
    at_most = "at most on a rank"
    if document.parts_per_stage is not None:
        at_most = f"{at_most}; {as_limited(document)}"
    yield card("activations held", str(document.peak_activations), at_most)
    if document.peak_memory_bytes is not None:
        note, tone = ("over the limit", "bad") if document.fits is False else ("", "plain")
        yield card("peak memory", format_bytes(document.peak_memory_bytes), note, tone)
    if document.lower_bound_s is not None:
        yield gap_card(
            document.status,
            bound_text=f"{time(document.lower_bound_s)}, by {document.bound}",
            gap=document.gap or 0.0,
            what=document.objective,
            verb="is shorter than",
        )
    if document.verification is not None:
        passed = document.verification.passed
        word, tone = ("passed", "good") if passed else ("failed", "bad")
        yield card("verified", word, "gradients of a real run", tone)


def _why(document: ScheduleResult) -> Section:
    blocks: list[BarChart | Facts | Notes] = []
    path, makespan_s = document.critical_path, document.makespan_s
    if path is not None and makespan_s:
        time = document.request.time_unit.describe
        parts = [
            Part(kind=_COLORS[kind], label=KINDS[kind], amount=spent_s, text=time(spent_s))
            for kind, spent_s in path.by_kind_s.items()
        ]
        if path.transfer_s > 0:
            text = time(path.transfer_s)
            parts.append(
                Part(kind="transfers", label="transfers", amount=path.transfer_s, text=text)
            )
        bar = Bar(label="", parts=tuple(parts), total=time(makespan_s))
        blocks.append(BarChart(title="The critical path", bars=(bar,), label=""))
        waits = ", ".join(f"{reason} {count:,}" for reason, count in path.waits_for.items())
        rows = (
            ("actions on the critical path", f"{path.num_actions:,}"),
            ("what they waited for", waits),
        )
        blocks.append(Facts(rows=rows))
    if document.binding is not None:
        lines = (document.binding.description, *document.binding.fixes)
        blocks.append(Notes(title="What does not fit", lines=lines, tone="bad"))
    title = "Why it is not shorter" if document.makespan_s is not None else "Why nothing fits"
    return section("why", title, *blocks)


def _front(document: ScheduleResult) -> Iterator[Table | Scatter]:
    if all(point.peak_memory_bytes is not None for point in document.points):
        points = [_point(document, point) for point in document.points]
        yield time_against_memory(points, limit_bytes=None)
    yield front_table(document)


def _point(document: ScheduleResult, point: FrontPoint) -> Point:
    value_s, held = value_of(document, point), point.peak_memory_bytes or 0.0
    time = document.request.time_unit.describe(value_s)
    return Point(
        name=point.family,
        x=value_s,
        y=held,
        x_text=time,
        y_text=format_bytes(held),
        facts=(
            (document.objective, time),
            ("peak memory", format_bytes(held)),
            ("activations", str(point.peak_activations)),
            ("bubble of span", f"{point.bubble_of_span:.2%}"),
        ),
    )
