"""A schedule as text for a terminal: a line of actions per rank, then a line of memory per rank.

Where every action is wide enough it carries its name, as much of it as fits everywhere: `3F0`
(stage, kind, microbatch), `F0`, or `F`. Where actions are narrower than a character each column
shows what the rank does for most of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.errors import InvalidInput
from trainwright.pages.gantt import KIND_NAMES, GanttPanel, MemoryUnit, TimeAxis, memory_top
from trainwright.plans.schedule import Action, ActionKind
from trainwright.units import TimeUnit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plans.timeline import Timeline

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
        over = "!" if peak > memory.limit_bytes[rank] * (1 + 1e-12) else ""
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
    limits = panel.timeline.costs.memory.limit_bytes
    over = "; ! over the limit" if (panel.timeline.peak_bytes > limits * (1 + 1e-12)).any() else ""
    return f"{kinds}, {canvas.charset.idle} idle; below: memory and its peak{over}"
