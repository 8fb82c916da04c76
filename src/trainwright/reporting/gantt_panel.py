"""One schedule in a picture: its timeline, its name, its critical path, and what a row of it shows.

Pictures in every medium (SVG, page, terminal) start from this, so that they agree on names, lanes
and units.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.plan.schedule import Action, ActionKind
from trainwright.reporting.gantt_scale import UNITS_OF, fitting_unit
from trainwright.units import TimeUnit, format_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plan.per_stage import Floats
    from trainwright.plan.timeline import CriticalStep, MemoryCurve, Timeline

KIND_NAMES: Final = {
    ActionKind.F: "forward",
    ActionKind.I: "input gradient",
    ActionKind.W: "weight gradient",
    ActionKind.B: "backward",
    ActionKind.R: "recompute",
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
        stages = schedule.actions[schedule.pairs, 1]
        overlapped = schedule.pairs[np.isfinite(self.timeline.costs.pair_s[stages])]
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
        last = np.append(times[1:] > times[:-1], True)
        return type(curve)(times[last], curve.bytes[last])

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
