"""Whether a schedule document still says what its own orders and costs make of it.

Times and memory are simulated again from the orders, and what bound, gap and status claim is held
against them; a file that was edited by hand says something else and is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.api.inputs import content_hash
from trainwright.api.recheck import changes
from trainwright.api.recompute import refuse
from trainwright.api.schedule_document import case_of, figures, timeline_of
from trainwright.errors import Fault, InvalidInput
from trainwright.plan.status import OPTIMAL_TOLERANCE, BoundKind, Status, relative_gap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.plan.results.schedule import ScheduleResult
    from trainwright.plan.timeline import Timeline


def recheck_schedule(document: ScheduleResult, *, source: str | None = None) -> ScheduleResult:
    """The document itself; raises `InvalidInput` with every contradiction."""
    try:
        refuse(_faults(document))
    except InvalidInput as error:
        raise InvalidInput(error.faults, source=source) from None
    return document


def _faults(document: ScheduleResult) -> Iterator[Fault]:
    costs = document.request.costs
    if (found := content_hash(costs.content)) != costs.sha256:
        wanted = f"must be {found}, the hash of the content"
        yield Fault("request.costs.sha256", f'{wanted}, got "{costs.sha256}"; it was edited')
        return
    if document.objective not in ("makespan", "span"):
        yield Fault("objective", f'must be makespan or span, got "{document.objective}"')
        return
    timeline = timeline_of(document)
    if timeline is not None:
        counts_bytes = case_of(document).counts_bytes
        expected = replace(document, **figures(timeline, counts_bytes=counts_bytes))
        yield from changes(expected, document, "")
        yield from _claims(document, timeline)
    elif document.status in (Status.OPTIMAL, Status.GAP):
        yield Fault("status", f'must fit a document without orders, got "{document.status}"')


def _claims(document: ScheduleResult, timeline: Timeline) -> Iterator[Fault]:
    value_s = timeline.span_s if document.objective == "span" else timeline.makespan_s
    bound_s = document.lower_bound_s
    if bound_s is None or not 0 <= bound_s <= value_s * (1 + OPTIMAL_TOLERANCE):
        wanted = f"must be from 0 to the {value_s!r} of the schedule"
        yield Fault("lower_bound_s", f"{wanted}, got {bound_s!r}")
        return
    gap = relative_gap(value_s, bound_s)
    if document.gap is None or abs(document.gap - gap) > OPTIMAL_TOLERANCE:
        yield Fault("gap", f"must be {gap!r}, as bound and schedule give, got {document.gap!r}")
    at_placement = document.bound_at_placement
    if at_placement is not None:
        own_s, own_gap = (
            at_placement.lower_bound_s,
            relative_gap(value_s, at_placement.lower_bound_s),
        )
        if not bound_s * (1 - OPTIMAL_TOLERANCE) <= own_s <= value_s * (1 + OPTIMAL_TOLERANCE):
            wanted = f"must be from lower_bound_s to the {value_s!r} of the schedule"
            yield Fault("bound_at_placement.lower_bound_s", f"{wanted}, got {own_s!r}")
        elif abs(at_placement.gap - own_gap) > OPTIMAL_TOLERANCE:
            problem = f"must be {own_gap!r}, as bound and schedule give, got {at_placement.gap!r}"
            yield Fault("bound_at_placement.gap", problem)
    proved = document.bound_kind is BoundKind.PROVED and gap <= OPTIMAL_TOLERANCE
    if document.status is Status.OPTIMAL and not proved:
        yield Fault("status", 'must be "gap" unless bound and time prove more, got "optimal"')
