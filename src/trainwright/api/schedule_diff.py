"""What differs between two schedule documents: what was asked, what came out, rank by rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.plan.status import OPTIMAL_TOLERANCE
from trainwright.units import format_bytes, format_percent_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.plan.results.schedule import ScheduleResult

_ASKED = (
    *("method", "num_ranks", "num_microbatches", "family", "placement", "virtual_stages"),
    *("group", "max_activations", "orders_name", "seed", "evaluations", "time_limit_s"),
)


def request_facts(document: ScheduleResult) -> dict[str, str]:
    """What was asked, by name."""
    request = document.request
    asked = {name: getattr(request, name) for name in _ASKED}
    facts = {name: str(value) for name, value in asked.items() if value is not None}
    return {"costs": request.costs.name, "objective": document.objective, **facts}


def result_facts(document: ScheduleResult) -> dict[str, str]:
    """What came out, by name."""
    return dict(_results(document))


def rank_facts(document: ScheduleResult) -> dict[str, str]:
    """What each rank runs and holds."""
    return dict(_ranks(document))


def _results(document: ScheduleResult) -> Iterator[tuple[str, str]]:
    time = document.request.time_unit.describe
    yield "status", str(document.status)
    yield "schedule", document.family
    for name, value_s in (("makespan", document.makespan_s), ("span", document.span_s)):
        if value_s is not None:
            yield name, time(value_s)
    if document.bubble_of_span is not None:
        yield "bubble of span", f"{max(document.bubble_of_span, 0.0):.2%}"
    if document.peak_activations is not None:
        yield "activations", str(document.peak_activations)
    if document.peak_memory_bytes is not None:
        yield "memory", format_bytes(document.peak_memory_bytes)
    if document.gap is not None:
        yield "gap", format_percent_up(document.gap if document.gap > OPTIMAL_TOLERANCE else 0.0)


def _ranks(document: ScheduleResult) -> Iterator[tuple[str, str]]:
    for rank, held in enumerate(document.peak_activations_per_rank):
        own = [stage for stage, owner in enumerate(document.rank_of_stage) if owner == rank]
        said = f"stages {', '.join(map(str, own)) or 'none'}; {held} activations"
        if document.peak_memory_bytes_per_rank:
            said += f", {format_bytes(document.peak_memory_bytes_per_rank[rank])}"
        yield f"rank {rank}", said
