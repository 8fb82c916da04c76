"""A timeline packed for a page: integer columns, compressed, as base64.

Starts are written as the gap after the action before on the same rank, mostly 0, and lengths of
equal actions are equal, so 100,000 actions take about 0.2 MB. Memory curves are not written: the
page adds them up from the deltas. The reader is `gantt_data.js`.
"""

from __future__ import annotations

import base64
import math
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plan.per_stage import Floats
    from trainwright.reporting.gantt_panel import GanttPanel

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
