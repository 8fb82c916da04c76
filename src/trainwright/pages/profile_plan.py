"""The page of a profile's plan, found by `plan` or given to `estimate`, or of a placement.

A profile states one time per microbatch and stage, a placement one per direction: neither says when
forwards and backwards run, so there is no schedule to draw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from trainwright.documents import placement as placements
from trainwright.documents import profile_plan
from trainwright.documents import profile_plan as plans
from trainwright.documents.placement import (
    PlacedStageRecord,
    PlacementResult,
    placement_verdict,
    strategy_line,
)
from trainwright.documents.view import Facts, Notes
from trainwright.pages.blocks import (
    Bar,
    BarChart,
    Beside,
    Card,
    ChangeList,
    Part,
    Section,
    Verdict,
    card,
    folded,
    gap_card,
    proved_state,
    reason_title,
    section,
)
from trainwright.pages.step import fixing_changes
from trainwright.pages.subject import (
    Content,
    Figure,
    Subject,
    figures,
    provenance_section,
    reproduce_section,
)
from trainwright.plans.status import Status
from trainwright.units import format_bandwidth, format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    Planned: TypeAlias = profile_plan.PlanResult | profile_plan.EstimateResult
    Document: TypeAlias = Planned | PlacementResult
    Stages: TypeAlias = Sequence[profile_plan.StageRecord | PlacedStageRecord]


def profile_plan_content(subject: Subject[Any]) -> Content:
    """Everything the page says about a plan of a profile, or a placement."""
    document: Document = subject.document
    where = f" on {document.devices_used} devices" if document.devices_used else ""
    said = (_verdict(document), f"{document.num_stages or 'no'} stages", _setting(document))
    return Content(
        title=f"{document.request.model.name}{where}",
        subtitle=" · ".join(said),
        figures=tuple(_figures(document)),
        sections=tuple(_sections(subject)),
    )


def _verdict(document: Document) -> str:
    if isinstance(document, PlacementResult):
        return f"Placement: {placement_verdict(document)}"
    if isinstance(document, profile_plan.PlanResult):
        return f"Plan: {profile_plan.plan_verdict(document)}"
    return f"Estimate: {'fits' if document.fits else 'does not fit'}"


def _setting(document: Document) -> str:
    setting = document.request.setting
    if setting is None:
        return "no setting"
    return (
        f"{setting.num_devices} devices of {format_bytes(setting.memory_bytes)}, "
        f"{format_bandwidth(setting.bandwidth_bytes_per_s)}, "
        f"{setting.num_microbatches} microbatches"
    )


def _time_s(document: Document) -> float | None:
    if isinstance(document, PlacementResult):
        return document.time_per_batch_s
    return document.time_per_sample_s


def _peak_bytes(document: Document) -> float | None:
    return max((stage.memory_bytes for stage in document.stages), default=None)


def _figures(document: Document) -> Iterator[Figure]:
    is_batch = isinstance(document, PlacementResult)
    key, title = (
        ("time_per_batch_s", "per batch") if is_batch else ("time_per_sample_s", "per microbatch")
    )
    time_s, peak = _time_s(document), _peak_bytes(document)
    yield from figures(
        (key, title, time_s, format_seconds(time_s or 0.0)),
        ("peak_memory_bytes", "peak memory", peak, format_bytes(peak or 0.0)),
        ("devices_used", "devices", document.devices_used, f"{document.devices_used}"),
        ("num_stages", "stages", document.num_stages, f"{document.num_stages}"),
    )


def _sections(subject: Subject[Any]) -> Iterator[Section]:
    document: Document = subject.document
    limit = document.request.setting.memory_bytes if document.request.setting else None
    blocks: list[Verdict | Beside | ChangeList] = [_answer(document, limit)]
    if document.stages:
        bars = (_time_bars(document.stages), _memory_bars(document.stages, limit))
        blocks.append(Beside(left=bars[:1], right=bars[1:]))
    elif changes := fixing_changes(getattr(document, "relaxations", ()), subject.command):
        blocks.append(changes)
    yield section("summary", "The answer", *blocks, label="Answer", cards=_cards(document, limit))
    if not document.stages:
        status = getattr(document, "status", Status.INFEASIBLE)  # an estimate has none
        yield section("why", reason_title(status), *_why(document, limit))
    elif isinstance(document, PlacementResult):
        yield section("plan", "The placement", placements.stage_table(document))
    else:
        yield section("plan", "The plan", plans.stage_table(document.stages, limit))
    if isinstance(document, profile_plan.PlanResult) and document.baselines:
        yield section(
            "alternatives", "Compared with", profile_plan.baseline_table(document.baselines)
        )
    if document.stages:
        yield folded(section("why", "Why it is not faster", *_why(document, limit)))
    what = "file" if isinstance(document, PlacementResult) else "profile"
    yield provenance_section(subject, {"times and sizes": f"as the {what} states them"})
    yield reproduce_section(subject, (document.request.model,))


def _answer(document: Document, limit: float | None) -> Verdict:
    """The time, what sets it, and the fullest device."""
    time_s = _time_s(document)
    if time_s is None or not document.stages:
        binding = getattr(document, "binding", None)
        why = _verdict(document).partition(": ")[2] if binding is None else binding.description
        none = str(getattr(document, "status", "")) == "infeasible"
        return Verdict(state="Nothing fits" if none else "No plan", said=why, tone="bad")
    what = "A batch" if isinstance(document, PlacementResult) else "A microbatch"
    spent = [_spent(stage)[0] for stage in document.stages]
    held = [stage.memory_bytes for stage in document.stages]
    fullest = held.index(max(held))
    room = "" if limit is None else f" of {format_bytes(limit)}"
    said = (
        f"{what} takes {format_seconds(time_s)} on "
        f"{format_count(document.devices_used or 0, 'device')} in "
        f"{format_count(len(held), 'stage')}; stage {spent.index(max(spent))} sets the pace. "
        f"The fullest devices, of stage {fullest}, hold {format_bytes(held[fullest])}{room}."
    )
    if isinstance(document, profile_plan.PlanResult | PlacementResult):
        state, tone = proved_state(document.status, document.gap, "A plan")
        if (
            isinstance(document, profile_plan.PlanResult)
            and document.request.space.planner == "equal"
        ):
            state, tone = "The best equal split", "plain"
        return Verdict(state=state, said=said, tone=tone)
    fits = document.fits
    return Verdict(
        state="Fits" if fits else "Does not fit", said=said, tone="good" if fits else "bad"
    )


def _cards(document: Document, limit: float | None) -> Iterator[Card]:
    time_s = _time_s(document)
    if time_s is None:
        yield card("status", _verdict(document).partition(": ")[2], tone="bad")
        return
    if isinstance(document, PlacementResult):
        yield from _placement_cards(document, limit)
    else:
        yield card("time per microbatch", format_seconds(time_s), "at steady state")
        if document.stages:
            yield from _stage_cards(document, limit)
    if not isinstance(document, profile_plan.PlanResult | PlacementResult):
        return
    if document.lower_bound_s is None:
        yield card("optimality", str(document.status))
        return
    yield gap_card(
        document.status,
        bound_text=format_seconds(document.lower_bound_s),
        gap=document.gap or 0.0,
        what="plan of the space" if isinstance(document, profile_plan.PlanResult) else "placement",
    )


def _placement_cards(document: PlacementResult, limit: float | None) -> Iterator[Card]:
    rounds = f"{document.rounds} rounds of the slowest stage" if document.rounds else ""
    yield card("time per batch", format_seconds(document.time_per_batch_s or 0.0), rounds)
    if document.peak_memory_bytes is not None:
        note = "" if limit is None else f"of {format_bytes(limit)}"
        yield card("peak memory", format_bytes(document.peak_memory_bytes), note)
    if document.gradient_sync_s is not None:
        sync = format_seconds(document.gradient_sync_s)
        yield card("gradient synchronisation", sync, "after the batch")


def _stage_cards(document: Planned, limit: float | None) -> Iterator[Card]:
    found = profile_plan.explain_stages(document.stages, limit)
    fullest = document.stages[found.fullest_stage].memory_bytes
    left = "" if found.free_bytes is None else f", {format_bytes(found.free_bytes)} left"
    tone = "bad" if profile_plan.is_over(fullest, limit) else "plain"
    yield card("peak memory", format_bytes(fullest), f"stage {found.fullest_stage}{left}", tone)
    note = "of device time, waiting for the slowest stage"
    yield card("idle", f"{found.idle_fraction:.1%}", note)


def _why(document: Document, limit: float | None) -> Iterator[Facts | Notes]:
    if rows := tuple(_facts(document, limit)):
        yield Facts(rows=rows)
    if not isinstance(document, profile_plan.PlanResult | PlacementResult):
        if lines := tuple(profile_plan.overflow_lines(document)):
            yield Notes(title="Does not fit", lines=lines, tone="bad")
        return
    if document.binding is not None:
        yield Notes(title="What cannot fit", lines=(document.binding.description,))


def _facts(document: Document, limit: float | None) -> Iterator[tuple[str, str]]:
    if isinstance(document, PlacementResult):
        if document.stages:
            loads = [stage.load_s for stage in document.stages]
            slowest = loads.index(max(loads))
            mean = sum(loads) / len(loads) / max(loads) if max(loads) > 0 else 1.0
            pace = f"{slowest}: {format_seconds(loads[slowest])}; on average {mean:.1%} of it"
            yield "slowest stage", pace
    elif document.stages:
        found = profile_plan.explain_stages(document.stages, limit)
        terms = ", ".join(f"{kind} {part:.1%}" for kind, part in found.time_share.items())
        yield "slowest stage", f"{found.slowest_stage}: {terms}"
    bound_s = getattr(document, "lower_bound_s", None)
    if bound_s is not None and document.stages:
        kind = getattr(document, "bound_kind", None) or "unproved"
        yield f"bound ({kind})", format_seconds(bound_s)
    if isinstance(document, PlacementResult) and document.fixed_strategy is not None:
        yield "the strategy of the file", strategy_line(document.fixed_strategy)


def _time_bars(stages: Stages) -> BarChart:
    bars = []
    for index, stage in enumerate(stages):
        total_s, spent = _spent(stage)
        parts = tuple(
            Part(kind=kind, label=label, amount=part_s, text=format_seconds(part_s))
            for kind, label, part_s in spent
        )
        bars.append(Bar(label=str(index), parts=parts, total=format_seconds(total_s)))
    title = "Time of a microbatch by stage"
    return BarChart(title=title, bars=tuple(bars), label="stage")


def _spent(
    stage: profile_plan.StageRecord | PlacedStageRecord,
) -> tuple[float, tuple[tuple[str, str, float], ...]]:
    """The time of a stage, and by (colour, name) where it goes."""
    if isinstance(stage, placements.PlacedStageRecord):
        both = ("compute", "forward", stage.forward_s), ("tensor", "backward", stage.backward_s)
        return stage.load_s, both
    spent = stage.breakdown
    return stage.time_per_sample_s, (
        ("compute", "compute", spent.compute_s),
        ("traffic", "traffic of edges", spent.edge_traffic_s),
        ("sync", "gradient synchronisation", spent.gradient_sync_s),
    )


def _memory_bars(stages: Stages, limit: float | None) -> BarChart:
    """What a device of every stage holds, with the limit."""
    bars = []
    for index, stage in enumerate(stages):
        text = format_bytes(stage.memory_bytes)
        part = Part(kind="plain", label="memory", amount=stage.memory_bytes, text=text)
        over = profile_plan.is_over(stage.memory_bytes, limit)
        total = f"{text}, over" if over else text
        bars.append(Bar(label=str(index), parts=(part,), total=total, is_over=over))
    return BarChart(
        title="Memory of a device by stage",
        bars=tuple(bars),
        label="stage",
        limit=limit,
        limit_text=f"limit {format_bytes(limit)}" if limit else "",
    )
