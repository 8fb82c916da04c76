"""How little a plan leaves free: it may fill what is usable to the last byte."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.plan.overlap import DEFAULT_OVERHEADS
from trainwright.units import GIB

if TYPE_CHECKING:
    from trainwright.cluster import Accelerator
    from trainwright.plan.results.model_plan import ModelPlanResult


def warned_of_tight_memory(document: ModelPlanResult, device: Accelerator) -> ModelPlanResult:
    """The document, with a warning where `estimate` would call its plan tight.

    That is where its peak, with the memory of libraries and what an allocator loses to
    fragmentation (`plan.overlap.DEFAULT_OVERHEADS`), exceeds what is usable of `device`.
    """
    kept, usable_bytes = DEFAULT_OVERHEADS, device.usable_bytes
    peak_bytes = max(document.peak_memory_bytes_per_rank, default=0.0)
    if (peak_bytes + kept.workspace_bytes) * (1 + kept.fragmentation) <= usable_bytes:
        return document
    room_bytes = usable_bytes / (1 + kept.fragmentation) - kept.workspace_bytes
    shown_gib = math.floor(10 * room_bytes / device.usable_fraction / GIB) / 10
    warning = (
        f"memory: {peak_bytes / GIB:.2f} of {usable_bytes / GIB:.2f} usable GiB leave the "
        f"allocator little room; --memory {shown_gib:.1f}GiB plans with "
        f"{kept.fragmentation:.0%} to spare"
    )
    return replace(document, warnings=(*document.warnings, warning))
