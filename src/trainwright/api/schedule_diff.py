"""What differs between two schedule documents: what was asked, and what came out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trainwright.plan.status import OPTIMAL_TOLERANCE
from trainwright.units import TimeUnit

if TYPE_CHECKING:
    from trainwright.plan.results.schedule import ScheduleResult

_ASKED = (
    *("method", "num_ranks", "num_microbatches", "family", "placement", "virtual_stages"),
    *("group", "max_activations", "orders_name", "seed", "evaluations", "time_limit_s"),
)


def request_facts(document: ScheduleResult) -> dict[str, Any]:
    """What was asked, by name."""
    request = document.request
    asked = {name: getattr(request, name) for name in _ASKED}
    return {"costs": request.costs.name, "objective": document.objective, **asked}


def result_facts(document: ScheduleResult) -> dict[str, Any]:
    """What came out, by name; a time's key ends in its unit."""
    unit = "slots" if document.request.time_unit is TimeUnit.SLOTS else "s"
    gap = document.gap
    return {
        "status": str(document.status),
        "family": document.family,
        "chunks_per_rank": document.chunks_per_rank,
        f"makespan_{unit}": document.makespan_s,
        f"span_{unit}": document.span_s,
        "peak_activations_per_rank": list(document.peak_activations_per_rank) or None,
        "peak_memory_bytes": document.peak_memory_bytes,
        "gap": 0.0 if gap is not None and gap <= OPTIMAL_TOLERANCE else gap,
    }


def time_ratio(before: ScheduleResult, after: ScheduleResult) -> float | None:
    """Time of the second over the first, of what both were made short in."""
    spans = before.objective == after.objective == "span"
    old_s, new_s = (x.span_s if spans else x.makespan_s for x in (before, after))
    if not old_s or new_s is None or before.request.time_unit != after.request.time_unit:
        return None
    return new_s / old_s if math.isfinite(new_s / old_s) else None
