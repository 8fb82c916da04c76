"""Scales of a picture: where ticks go on the time axis, how high a memory curve is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.units import TimeUnit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.reporting.gantt_panel import GanttPanel

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
        return cls(end_s=span_s, step_s=_nice_step(span_s / max_ticks), unit=unit, unit_s=unit_s)

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


def _nice_step(at_least: float) -> float:
    power = 10.0 ** math.floor(math.log10(at_least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= at_least * (1 - 1e-9))
