"""One schedule in a picture: its timeline, its name, its critical path, and what a row of it shows.

Pictures in every medium (SVG, page, terminal) start from this, so that they agree on names, lanes
and units.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainwright.documents.view import IN_QUANTITY, nice_step, printable
from trainwright.errors import InvalidInput
from trainwright.plans.schedule import Action, ActionKind
from trainwright.units import TimeUnit, format_bytes

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup
    from numpy.typing import NDArray

    from trainwright.arrays import Floats
    from trainwright.plans.lowered import CriticalStep, MemoryCurve, Timeline


# Colours of the pictures: hue by kind, shade by chunk, for a light and a dark page
# ---------------------------------------------------------------------------------
# Hues are those of Okabe and Ito, "Color Universal Design" (2008), which people with any of the
# common colour deficiencies tell apart; kinds differ in lightness too, and in texture where a bar
# is large enough. The dark page has the same hues, a little lighter.

Rgb = tuple[int, int, int]

# One 8 × 8 tile per kind, drawn faintly over its colour; forwards are plain.
TEXTURES: Final = {
    ActionKind.F: "",
    ActionKind.I: "M-2 10L10 -2M-2 2L2 -2M6 10L10 6",
    ActionKind.W: "M0 2H2M4 6H6",
    ActionKind.B: "M-2 -2L10 10M6 -2L10 2M-2 6L2 10",
    ActionKind.R: "M0 2H8M0 6H8",
    ActionKind.O: "M4 0V8M2 5L4 8L6 5",
    ActionKind.D: "",
    ActionKind.L: "M4 0V8M2 3L4 0L6 3",
    ActionKind.V: "M0 0L4 8L8 0",
    ActionKind.T: "M0 8L4 0L8 8",
}
_SHADE_RANGE: Final = 0.46  # how far the last chunk's colour goes towards white


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Colours of one page as #rrggbb; `kind` has one per `ActionKind`."""

    kind: tuple[str, ...]
    shade_towards: str
    page: str
    row: str
    ink: str
    faint_ink: str
    line: str
    outline: str
    memory: str
    memory_fill: str
    limit: str

    def bar(self, kind: ActionKind, chunk: int, num_chunks: int) -> str:
        """Fill of a bar."""
        share = _SHADE_RANGE * chunk / max(num_chunks - 1, 1)
        return mix(self.kind[kind], self.shade_towards, share)


LIGHT: Final = Theme(
    kind=(
        *("#0072b2", "#e69f00", "#009e73", "#d55e00", "#b5679b"),
        *("#7a8490", "#7a8490", "#9aa4b0", "#56b4e9", "#8c7a00"),
    ),
    shade_towards="#ffffff",
    page="#ffffff",
    row="#eef0f3",
    ink="#1b1f24",
    faint_ink="#565e68",
    line="#d3d8de",
    outline="#111418",
    memory="#4a5562",
    memory_fill="#c9d1da",
    limit="#b3261e",
)
DARK: Final = Theme(
    kind=(
        *("#1681c4", "#e8a51c", "#0fa67c", "#dd6a17", "#c987b4"),
        *("#8b96a3", "#8b96a3", "#a9b4c0", "#6cc0ee", "#a8951a"),
    ),
    shade_towards="#f4f6f8",
    page="#14171c",
    row="#1f242b",
    ink="#e8ebef",
    faint_ink="#a3acb8",
    line="#39414b",
    outline="#ffffff",
    memory="#b3bfcc",
    memory_fill="#3b4754",
    limit="#ff8a80",
)
THEMES: Final = {"light": LIGHT, "dark": DARK}


def rgb(color: str) -> Rgb:
    """Read #rrggbb."""
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def mix(color: str, other: str, share: float) -> str:
    """`color` with a share of `other` in it."""
    mixed = (round(a + (b - a) * share) for a, b in zip(rgb(color), rgb(other), strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def contrast(color: str, other: str) -> float:
    """Contrast ratio from 1 to 21 as WCAG 2 defines it."""
    high, low = sorted((_luminance(color), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def label_ink(fill: str) -> str:
    """Black or white, whichever reads better on `fill`."""
    return max("#000000", "#ffffff", key=lambda ink: contrast(ink, fill))


def _luminance(color: str) -> float:
    red, green, blue = (_linear(channel / 255) for channel in rgb(color))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


# Scales of a picture: where ticks go on the time axis, how high a memory curve is
# --------------------------------------------------------------------------------

UNITS_OF: Final = {
    TimeUnit.SECONDS: (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)),
    TimeUnit.SLOTS: (("slots", 1.0),),
}
_FARTHEST_LIMIT: Final = 1.6  # a limit further above the peak would flatten the curve


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """Ticks from 0 to at most `end_s`, `step_s` apart, printed in `unit`."""

    end_s: float
    step_s: float
    unit: str
    unit_s: float

    @classmethod
    def of(
        cls, end_s: float, *, max_ticks: int, time_unit: TimeUnit = TimeUnit.SECONDS
    ) -> TimeAxis:
        """At most `max_ticks` steps of 1, 2 or 5 times a power of ten."""
        span_s = end_s if end_s > 0 else 1.0
        unit, unit_s = fitting_unit(span_s, time_unit)
        return cls(end_s=span_s, step_s=nice_step(span_s / max_ticks), unit=unit, unit_s=unit_s)

    @property
    def ticks_s(self) -> tuple[float, ...]:
        """Where the ticks are."""
        count = math.floor(self.end_s / self.step_s * (1 + 1e-9))
        return tuple(self.step_s * index for index in range(count + 1))

    def label(self, tick_s: float) -> str:
        """The number at a tick, without its unit."""
        return f"{tick_s / self.unit_s:.10g}"


def fitting_unit(value_s: float, time_unit: TimeUnit) -> tuple[str, float]:
    """The largest unit that is no larger than the value, and what it is in seconds."""
    units = UNITS_OF[time_unit]
    return next((unit for unit in units if abs(value_s) >= unit[1]), units[-1])


def memory_top(panels: Sequence[GanttPanel]) -> float:
    """The amount at the upper edge of every memory row: all peaks fit, and limits close to one."""
    peak = max(float(panel.timeline.peak_bytes.max()) for panel in panels)
    limits = np.concatenate([panel.timeline.costs.memory.limit_bytes for panel in panels])
    near = limits[limits <= _FARTHEST_LIMIT * peak]
    return 1.06 * max(peak, float(near.max(initial=0.0))) or 1.0


# One schedule in a picture: its timeline, its name, its critical path, and what a row of it shows
# ------------------------------------------------------------------------------------------------

KIND_NAMES: Final = {
    ActionKind.F: "forward",
    ActionKind.I: "input gradient",
    ActionKind.W: "weight gradient",
    ActionKind.B: "backward",
    ActionKind.R: "recompute",
    ActionKind.O: "offload",
    ActionKind.D: "drop",
    ActionKind.L: "reload",
    ActionKind.V: "head forward",
    ActionKind.T: "head gradients",
}


class MemoryUnit(StrEnum):
    """What one "byte" of the costs stands for; unit costs count chunk activations."""

    BYTES = "bytes"
    ACTIVATIONS = "activations"

    def describe(self, amount: float) -> str:
        """Print an amount with its unit."""
        if self is MemoryUnit.BYTES:
            return format_bytes(amount)
        return f"{amount:.4g} act."


class Lane(IntEnum):
    """Where in its row a bar lies: two actions that overlap share the height."""

    FULL = 0
    UPPER = 1
    LOWER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GanttPanel:
    """A timeline to draw."""

    timeline: Timeline
    title: str = "Pipeline schedule"
    critical: tuple[CriticalStep, ...] = ()
    memory_unit: MemoryUnit = MemoryUnit.BYTES
    time_unit: TimeUnit = TimeUnit.SECONDS

    @property
    def num_bars(self) -> int:
        """One per action."""
        return self.timeline.schedule.num_actions

    @property
    def num_ranks(self) -> int:
        """One row of bars and one memory curve each."""
        return self.timeline.schedule.num_ranks

    @property
    def origin_s(self) -> float:
        """The first start, drawn at 0."""
        return float(self.timeline.start_s.min())

    @property
    def start_s(self) -> Floats:
        """Starts counted from the first one, shape [n]."""
        return self.timeline.start_s - self.origin_s

    @property
    def end_s(self) -> Floats:
        """Ends counted from the first start, shape [n]."""
        return self.timeline.end_s - self.origin_s

    @property
    def kinds(self) -> tuple[ActionKind, ...]:
        """The kinds that occur, in the order of `ActionKind`."""
        return tuple(map(ActionKind, np.unique(self.timeline.schedule.actions[:, 0]).tolist()))

    @property
    def chunk_of_stage(self) -> tuple[int, ...]:
        """Which of its rank's stages each one is, shape [S]."""
        chunks: dict[int, int] = {}
        for owned in self.timeline.schedule.placement.stages_of_rank:
            chunks.update({stage: chunk for chunk, stage in enumerate(owned)})
        return tuple(chunks[stage] for stage in range(len(chunks)))

    @property
    def num_chunks(self) -> int:
        """Most stages on one rank."""
        return max(self.chunk_of_stage) + 1

    @property
    def lanes(self) -> NDArray[np.uint8]:
        """`Lane` of each action, shape [n]; a pair with a time of its own overlaps."""
        schedule = self.timeline.schedule
        lanes = np.full(schedule.num_actions, Lane.FULL, np.uint8)
        overlapped, _ = self.timeline.costs.overlapped_pairs(schedule)
        lanes[overlapped], lanes[overlapped + 1] = Lane.UPPER, Lane.LOWER
        return lanes

    @property
    def is_critical(self) -> NDArray[np.bool_]:
        """Whether each action is on the critical path, shape [n]."""
        marks = np.zeros(self.num_bars, np.bool_)
        marks[[step.row for step in self.critical]] = True
        return marks

    def memory_curve(self, rank: int) -> MemoryCurve:
        """The curve of a rank with one value per instant, counted from the first start.

        Overlapped actions allocate in the order they are written in, as peaks are counted.
        """
        curve = self.timeline.memory_curve(rank)
        times = np.maximum.accumulate(np.maximum(curve.time_s - self.origin_s, 0.0))
        return curve.by_instant(times)

    def summary(self) -> tuple[str, ...]:
        """What the picture is of, in a few words each."""
        timeline = self.timeline
        return (
            _counted(self.num_ranks, "rank"),
            _counted(timeline.schedule.num_microbatches, "microbatch", "microbatches"),
            _counted(self.num_bars, "action"),
            f"makespan {self.format_time(timeline.makespan_s)}",
            f"bubble {timeline.bubble_of_span:.1%} of span",
            f"peak {self.memory_unit.describe(float(timeline.peak_bytes.max()))}",
        )

    def format_time(self, value_s: float) -> str:
        """Print a time with six digits, enough to tell neighbours in a long picture apart."""
        unit, unit_s = fitting_unit(value_s, self.time_unit) if value_s else ("", 1.0)
        return f"{value_s / unit_s:.6g} {unit or UNITS_OF[self.time_unit][0][0]}"

    def describe(self, row: int) -> str:
        """One action in words."""
        schedule = self.timeline.schedule
        action: Action = schedule.action(row)
        start_s, end_s = float(self.start_s[row]), float(self.end_s[row])
        return (
            f"{action}: {KIND_NAMES[action.kind]}, stage {action.stage}, "
            f"microbatch {action.microbatch}, rank {schedule.placement.rank_of_stage[action.stage]}"
            f", {self.format_time(start_s)} to {self.format_time(end_s)} "
            f"({self.format_time(end_s - start_s)})"
        )


def _counted(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


# A schedule as text for a terminal: a line of actions per rank, then a line of memory per rank
# ---------------------------------------------------------------------------------------------
# Where every action is wide enough it carries its name, as much of it as fits everywhere: `3F0`
# (stage, kind, microbatch), `F0`, or `F`. Where actions are narrower than a character each column
# shows what the rank does for most of it.


MIN_WIDTH: Final = 40
_VALUE_WIDTH = 12
_LABELS: tuple[Callable[[Action], str], ...] = (
    str,
    lambda action: f"{action.kind.name}{action.microbatch}",
    lambda action: action.kind.name,
)


class Charset(Enum):
    """What a terminal can print; values are idle, fill, tick and levels of memory."""

    UNICODE = ("·", "─", "┬", " ▁▂▃▄▅▆▇█")
    ASCII = (".", "-", "+", " .:-=+*#%")

    @property
    def idle(self) -> str:
        """A column without work."""
        return self.value[0]

    @property
    def fill(self) -> str:
        """The rest of a bar, after its name."""
        return self.value[1]

    @property
    def tick(self) -> str:
        """A mark on the time axis."""
        return self.value[2]

    @property
    def levels(self) -> str:
        """Nothing to full, in nine steps."""
        return self.value[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Canvas:
    """The panel, and the columns its time is spread over."""

    panel: GanttPanel
    charset: Charset
    columns: int
    margin: int

    def column(self, times_s: NDArray[np.float64]) -> NDArray[np.int64]:
        """The column edge nearest to each time."""
        span_s = self.panel.timeline.makespan_s or 1.0
        return np.rint(times_s / span_s * self.columns).astype(np.int64)


def gantt_text(
    timeline: Timeline,
    *,
    width: int = 100,
    charset: Charset = Charset.UNICODE,
    memory_unit: MemoryUnit = MemoryUnit.BYTES,
    time_unit: TimeUnit = TimeUnit.SECONDS,
) -> str:
    """Draw in lines of at most `width` characters.

    Raises InvalidInput for a width below 40.
    """
    if width < MIN_WIDTH:
        raise InvalidInput.of("width", f"must be >= {MIN_WIDTH} characters, got {width}")
    panel = GanttPanel(timeline=timeline, memory_unit=memory_unit, time_unit=time_unit)
    margin = len(_rank_name(panel.num_ranks - 1)) + 1
    columns = _whole_slots(panel, width - margin - _VALUE_WIDTH)
    canvas = _Canvas(panel=panel, charset=charset, columns=columns, margin=margin)
    lines = (*_bar_lines(canvas), *_axis_lines(canvas), *_memory_lines(canvas), _legend(canvas))
    text = "\n".join(line.rstrip() for line in lines) + "\n"
    return text if charset is Charset.UNICODE else text.replace("µ", "u")


def _whole_slots(panel: GanttPanel, columns: int) -> int:
    """As many columns as give every slot the same number, where all times are whole slots."""
    slots = panel.timeline.makespan_s
    whole = bool((panel.start_s % 1 == 0).all() and (panel.end_s % 1 == 0).all())
    if panel.time_unit is not TimeUnit.SLOTS or not whole or not 0 < slots <= columns:
        return columns
    return columns - columns % int(slots)


def _rank_name(rank: int) -> str:
    return f"rank {rank}"


def _bar_lines(canvas: _Canvas) -> Iterator[str]:
    label = _widest_label(canvas)
    for rank in range(canvas.panel.num_ranks):
        cells = _named_cells(canvas, rank, label) if label else _shared_cells(canvas, rank)
        yield _rank_name(rank).ljust(canvas.margin) + cells


def _widest_label(canvas: _Canvas) -> Callable[[Action], str] | None:
    """The longest form of names for which every bar has room, if any has."""
    panel, schedule = canvas.panel, canvas.panel.timeline.schedule
    widths = canvas.column(panel.end_s) - canvas.column(panel.start_s)
    drawn = np.flatnonzero(panel.end_s > panel.start_s)
    if len(drawn) > canvas.columns * panel.num_ranks or (panel.lanes > 0).any():
        return None
    forms = _LABELS if panel.num_chunks > 1 else _LABELS[1:]
    for form in forms:
        if all(len(form(schedule.action(row))) <= widths[row] for row in drawn.tolist()):
            return form
    return None


def _named_cells(canvas: _Canvas, rank: int, label: Callable[[Action], str]) -> str:
    panel, schedule = canvas.panel, canvas.panel.timeline.schedule
    rows = schedule.rows_of(rank)
    left, right = canvas.column(panel.start_s[rows]), canvas.column(panel.end_s[rows])
    cells = [canvas.charset.idle] * canvas.columns
    for action, a, b in zip(schedule.order(rank), left.tolist(), right.tolist(), strict=True):
        if b > a:
            cells[a:b] = label(action).ljust(b - a, canvas.charset.fill)
    return "".join(cells)


def _shared_cells(canvas: _Canvas, rank: int) -> str:
    """In each column the letter of the kind that fills most of it, if work fills half."""
    panel, schedule = canvas.panel, canvas.panel.timeline.schedule
    rows = schedule.rows_of(rank)
    scale = canvas.columns / (panel.timeline.makespan_s or 1.0)
    edges = np.arange(canvas.columns + 1, dtype=np.float64)
    covered = np.zeros((len(ActionKind), canvas.columns))
    for kind in panel.kinds:
        of_kind = schedule.actions[rows, 0] == kind
        starts, ends = panel.start_s[rows][of_kind] * scale, panel.end_s[rows][of_kind] * scale
        covered[kind] = np.diff(_busy_before(edges, starts, ends))
    letters = np.array([kind.name for kind in ActionKind])[covered.argmax(axis=0)]
    return "".join(np.where(covered.sum(axis=0) >= 0.5, letters, canvas.charset.idle).tolist())


def _busy_before(
    edges: NDArray[np.float64], starts: NDArray[np.float64], ends: NDArray[np.float64]
) -> NDArray[np.float64]:
    """How much of the bars lies left of each edge; bars are in order and do not overlap."""
    if not len(starts):
        return np.zeros_like(edges)
    done = np.concatenate([[0.0], np.cumsum(ends - starts)])
    index = np.searchsorted(starts, edges)
    last = np.maximum(index - 1, 0)
    rest = np.where(index > 0, np.maximum(ends[last] - edges, 0.0), 0.0)
    return done[index] - rest


def _axis_lines(canvas: _Canvas) -> Iterator[str]:
    panel = canvas.panel
    axis = TimeAxis.of(
        panel.timeline.makespan_s,
        max_ticks=max(canvas.columns // 9, 2),
        time_unit=panel.time_unit,
    )
    marks, labels = [" "] * (canvas.columns + 1), [" "] * (canvas.columns + 8)
    columns = canvas.column(np.array(axis.ticks_s)).tolist()
    for tick_s, column in zip(axis.ticks_s, columns, strict=True):
        marks[column] = canvas.charset.tick
        label = axis.label(tick_s)
        labels[column : column + len(label)] = label
    blank = " " * canvas.margin
    yield blank + "".join(marks)
    yield blank + "".join(labels).rstrip() + f" {axis.unit}"


def _memory_lines(canvas: _Canvas) -> Iterator[str]:
    panel, levels = canvas.panel, canvas.charset.levels
    top = memory_top((panel,)) / 1.06
    memory = panel.timeline.costs.memory
    for rank in range(panel.num_ranks):
        share = np.clip(_peak_by_column(canvas, rank) / top, 0.0, 1.0)
        steps = np.ceil(share * (len(levels) - 1) - 1e-9).astype(np.int64)
        cells = "".join(levels[step] for step in steps.tolist())
        peak = float(panel.timeline.peak_bytes[rank])
        over = "!" if peak > memory.most_bytes[rank] else ""
        value = panel.memory_unit.describe(peak) + over
        yield f"{_rank_name(rank).ljust(canvas.margin)}{cells} {value}"


def _peak_by_column(canvas: _Canvas, rank: int) -> NDArray[np.float64]:
    """The most memory of a rank within each column."""
    curve = canvas.panel.memory_curve(rank)
    edges = np.arange(canvas.columns + 1) / canvas.columns * canvas.panel.timeline.makespan_s
    at = np.maximum(np.searchsorted(curve.time_s, edges[:-1], side="right") - 1, 0)
    until = np.maximum(np.searchsorted(curve.time_s, edges[1:]), at + 1)
    return np.array([curve.bytes[a:b].max() for a, b in zip(at, until, strict=True)])


def _legend(canvas: _Canvas) -> str:
    panel = canvas.panel
    kinds = ", ".join(f"{kind.name} {KIND_NAMES[kind]}" for kind in panel.kinds)
    over = "" if panel.timeline.fits else "; ! over the limit"
    return f"{kinds}, {canvas.charset.idle} idle; below: memory and its peak{over}"


# Schedules of any size as one HTML file that needs nothing else
# --------------------------------------------------------------
# The page is `gantt_page.html.j2` around the figure above.


# Pages that need nothing else: no network, no library, no font, and a policy that enforces it
# --------------------------------------------------------------------------------------------
# Styles and scripts are inlined as they are; a content security policy admits exactly these, by
# their hashes, and nothing from outside. Templates escape every value.


@cache  # a page is compiled once by a process that writes several
def environment() -> Environment:
    """Templates of this package; they escape, and an unknown name is an error.

    Names come from outside: what would steer the terminal that a page is printed in is spelled out.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("trainwright.pages", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["whole"] = _whole
    return made


def _whole(text: str) -> Markup:
    """The text, escaped; no line ends within an option or between a number and its unit."""
    from markupsafe import Markup, escape

    kept = _OPTION.sub(r'<span class="whole">\g<0></span>', str(escape(printable(text))))
    return Markup(IN_QUANTITY.sub("&nbsp;", kept))


_OPTION: Final = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def asset(name: str) -> str:
    """The text of a style or a script of this package."""
    return resources.files("trainwright.pages").joinpath("assets", name).read_text(encoding="utf-8")


def policy(style: str, scripts: Sequence[str]) -> str:
    """Only the style and the scripts of this page, by their hashes."""
    hashes = " ".join(map(_hash, scripts))
    return f"default-src 'none'; style-src {_hash(style)}; script-src {hashes}"


def script_safe(value: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


# A timeline packed for a page: integer columns, compressed, as base64
# --------------------------------------------------------------------
# Starts are written as the gap after the action before on the same rank, mostly 0, and lengths of
# equal actions are equal, so 100,000 actions take about 0.2 MB. Memory curves are not written: the
# page adds them up from the deltas. The reader is `gantt_data.js`.

_TICKS: Final = 2e9  # of the makespan at least a tenth as many: finer than any screen, below 2^31
_LANE_SHIFT, _CRITICAL_SHIFT = 3, 5  # above three bits of kind


def pack_panel(panel: GanttPanel) -> dict[str, Any]:
    """The panel as JSON values; `columns` is described in `pack_columns`."""
    timeline = panel.timeline
    memory = timeline.costs.memory
    limits = [limit if math.isfinite(limit) else None for limit in memory.limit_bytes.tolist()]
    return {
        "title": panel.title,
        "memoryUnit": panel.memory_unit.value,
        "numMicrobatches": timeline.schedule.num_microbatches,
        "makespan": timeline.makespan_s,
        "tick": tick_s(panel),
        "offsets": timeline.schedule.rank_offsets.tolist(),
        "chunkOfStage": panel.chunk_of_stage,
        "rankOfStage": timeline.schedule.placement.rank_of_stage,
        "delta": memory.delta_bytes.tolist(),
        "transient": memory.transient_bytes.tolist(),
        "static": memory.static_bytes.tolist(),
        "limit": limits,
        "peak": timeline.peak_bytes.tolist(),
        "waitsFor": {str(step.row): step.waits_for.value for step in panel.critical},
        "columns": pack_columns(panel),
    }


def tick_s(panel: GanttPanel) -> float:
    """The unit of time in the columns: a power of ten, so that decimal times stay exact."""
    makespan_s = panel.timeline.makespan_s or 1.0
    return 10.0 ** math.ceil(math.log10(makespan_s / _TICKS))


def pack_columns(panel: GanttPanel) -> str:
    """Columns of n entries, one after the other, little-endian, deflated, in base64.

    gap i32 (ticks from the end of the action before on the rank), length u32 (ticks), stage u32,
    microbatch u32, and a byte of kind, lane and critical bit.
    """
    actions = panel.timeline.schedule.actions
    kinds = actions[:, 0].astype(np.uint8) | panel.lanes << _LANE_SHIFT
    marks = kinds | panel.is_critical.astype(np.uint8) << _CRITICAL_SHIFT
    gaps, lengths = _gaps_and_lengths(panel)
    columns = (
        gaps.astype("<i4"),
        lengths.astype("<u4"),
        actions[:, 1].astype("<u4"),
        actions[:, 2].astype("<u4"),
        marks.astype(np.uint8),
    )
    data = b"".join(column.tobytes() for column in columns)
    return base64.b64encode(zlib.compress(data, 6)).decode("ascii")


def _gaps_and_lengths(panel: GanttPanel) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    starts = _ticks(panel.start_s, tick_s(panel))
    lengths = _ticks(panel.end_s - panel.start_s, tick_s(panel))
    before = np.zeros_like(starts)
    before[1:] = (starts + lengths)[:-1]
    offsets = panel.timeline.schedule.rank_offsets
    before[offsets[:-1][np.diff(offsets) > 0]] = 0
    return starts - before, lengths


def _ticks(times_s: Floats, unit_s: float) -> NDArray[np.int64]:
    return np.rint(times_s / unit_s).astype(np.int64)


# What a page needs to show schedules: data and colours for the canvas, words for those who read
# ----------------------------------------------------------------------------------------------
# The canvas is drawn by plain scripts: `gantt_data.js` unpacks, `gantt_draw.js` and
# `gantt_pixels.js` draw with a level of detail that follows the zoom, `gantt_print.js` cuts the
# picture for paper, `gantt_input.js` listens, `gantt_page.js` holds what is in view. Several panels
# share one time scale, which is how two schedules are compared.

SCRIPTS: Final = (
    "gantt_data.js",
    "gantt_pixels.js",
    "gantt_ranks.js",
    "gantt_draw.js",
    "gantt_print.js",
    "gantt_input.js",
    "gantt_page.js",
)
_CSS_NAMES: Final = ("page", "row", "ink", "faint_ink", "line", "limit", "outline")


def figure_data(panels: Sequence[GanttPanel]) -> dict[str, Any]:
    """What the scripts draw, as JSON values."""
    num_chunks = max(panel.num_chunks for panel in panels)
    return {
        "panels": [pack_panel(panel) for panel in panels],
        "numChunks": num_chunks,
        "memoryTops": _memory_tops(panels),
        "timeUnits": UNITS_OF[_time_unit(panels)],
        "kindNames": [KIND_NAMES[kind] for kind in ActionKind],
        "textures": [TEXTURES[kind] for kind in ActionKind],
        "themes": {name: _theme_data(theme, num_chunks) for name, theme in THEMES.items()},
    }


def _memory_tops(panels: Sequence[GanttPanel]) -> dict[str, float]:
    """The scale of memory of each unit: activations are not compared with bytes."""
    units = {panel.memory_unit for panel in panels}
    return {
        unit.value: memory_top([panel for panel in panels if panel.memory_unit is unit])
        for unit in sorted(units, key=lambda unit: unit.value)
    }


def figure_words(panels: Sequence[GanttPanel]) -> dict[str, Any]:
    """What the templates say about the panels: titles, legend, every rank in numbers."""
    return {
        "panels": [_panel_facts(panel) for panel in panels],
        "legend": _key(panels),
        "num_chunks": max(panel.num_chunks for panel in panels),
        "has_ranks": any(panel.num_ranks > 1 for panel in panels),
        "has_critical": any(panel.critical for panel in panels),
    }


def theme_css() -> tuple[str, ...]:
    """The colours as custom properties: by system setting, unless the reader chose."""
    light, dark = (_custom_properties(THEMES[name]) for name in ("light", "dark"))
    return (
        f":root {{ color-scheme: light; {light} }}",
        "@media (prefers-color-scheme: dark) {",
        f"  :root:not([data-theme=light]) {{ color-scheme: dark; {dark} }}",
        "}",
        f":root[data-theme=dark] {{ color-scheme: dark; {dark} }}",
        f"@media print {{ :root:root:root {{ color-scheme: light; {light} }} }}",
    )


def _time_unit(panels: Sequence[GanttPanel]) -> TimeUnit:
    """Of all panels, as they share one axis; slots beside seconds are shown as seconds."""
    slots = all(panel.time_unit is TimeUnit.SLOTS for panel in panels)
    return TimeUnit.SLOTS if slots else TimeUnit.SECONDS


def _theme_data(theme: Theme, num_chunks: int) -> dict[str, Any]:
    """Colours for the canvas; bars and the ink on them by kind and chunk."""
    chunks = range(num_chunks)
    bars = [[theme.bar(kind, chunk, num_chunks) for chunk in chunks] for kind in ActionKind]
    return {
        "page": theme.page,
        "row": theme.row,
        "ink": theme.ink,
        "faintInk": theme.faint_ink,
        "line": theme.line,
        "outline": theme.outline,
        "memory": theme.memory,
        "memoryFill": theme.memory_fill,
        "limit": theme.limit,
        "bars": bars,
        "barInks": [[label_ink(fill) for fill in shades] for shades in bars],
    }


def _custom_properties(theme: Theme) -> str:
    named = [f"--{name.replace('_', '-')}: {getattr(theme, name)};" for name in _CSS_NAMES]
    kinds = [f"--{kind.name}: {theme.kind[kind]};" for kind in ActionKind]
    return " ".join(named + kinds)


def _key(panels: Sequence[GanttPanel]) -> list[dict[str, str]]:
    kinds = sorted({kind for panel in panels for kind in panel.kinds})
    return [{"letter": kind.name, "name": KIND_NAMES[kind]} for kind in kinds]


def _panel_facts(panel: GanttPanel) -> dict[str, Any]:
    """What the page says in words: a summary, and a row per rank."""
    timeline = panel.timeline
    memory = timeline.costs.memory
    ranks = []
    for rank, stages in enumerate(timeline.schedule.placement.stages_of_rank):
        busy_s = float(timeline.work_by_rank_s[rank])
        limit = float(memory.limit_bytes[rank])
        ranks.append(
            {
                "rank": rank,
                "stages": ", ".join(map(str, stages)) or "none",
                "busy": panel.format_time(busy_s),
                "idle": panel.format_time(timeline.makespan_s - busy_s),
                "peak": panel.memory_unit.describe(float(timeline.peak_bytes[rank])),
                "limit": "none" if limit == float("inf") else panel.memory_unit.describe(limit),
            }
        )
    return {"title": panel.title, "summary": panel.summary(), "ranks": ranks}


# Schedules of any size as one HTML file that needs nothing else
# --------------------------------------------------------------


def gantt_html(*panels: GanttPanel, title: str | None = None) -> str:
    """One page with a panel per schedule, all on one time scale.

    Raises InvalidInput without panels. 100,000 actions take about 0.3 MB.
    """
    if not panels:
        raise InvalidInput.of("panels", "must have at least 1 schedule to draw, got none")
    style = "\n".join((*theme_css(), asset("gantt.css"), asset("gantt_page.css")))
    scripts = [asset(name) for name in SCRIPTS]
    return (
        environment()
        .get_template("gantt_page.html.j2")
        .render(
            title=title or " and ".join(panel.title for panel in panels),
            style=style,
            scripts=scripts,
            policy=policy(style, scripts),
            data=script_safe(figure_data(panels)),
            figure=figure_words(panels),
        )
    )
