"""The page of a model's plan."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from trainwright.documents.printing import is_noticed, layout_line, main_losses
from trainwright.documents.view import Cell, Column, Facts, Notes, Table, percent, seconds, size
from trainwright.pages.blocks import Card, Point, Scatter, Section, time_against_memory
from trainwright.pages.step import TIME_PARTS, step_bar, step_figures, step_sections, term_table
from trainwright.pages.subject import Content, provenance_section, reproduce_section
from trainwright.plans.parallelism import mapping_name
from trainwright.plans.plan import SEARCHED
from trainwright.plans.status import Status
from trainwright.provenance import Origin
from trainwright.units import format_bytes, format_count, format_percent_up, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainwright.documents.explanation import GainRecord, ModelExplanation, WithoutRecord
    from trainwright.documents.mixed_plan import MixedPlanResult
    from trainwright.documents.model_plan import Alternative, ModelPlanResult
    from trainwright.pages.subject import PricedStep, Subject
    from trainwright.plans.parallelism import Parallelism

    Planned: TypeAlias = ModelPlanResult | MixedPlanResult


# The runners-up of a model's plan: a scatter to pick from, and a table
# ---------------------------------------------------------------------

_MOST_PARTS = 4  # of what a runner-up loses, listed when it is picked


def alternative_blocks(document: ModelPlanResult) -> tuple[Scatter, Table]:
    """The plan and its runners-up, by step time and peak memory."""
    points = (_winner(document), *(_point(document, other) for other in document.alternatives))
    limit = document.memory_limit_bytes
    return time_against_memory(points, limit_bytes=limit), _table(document)


def _winner(document: ModelPlanResult) -> Point:
    step_s = document.step_time_s or 0.0
    peak = max(document.peak_memory_bytes_per_rank, default=0.0)
    layout = layout_line(document.parallelism) if document.parallelism else "degrees per stage"
    return Point(
        name=f"the plan: {layout}, microbatch {document.micro_batch}",
        x=step_s,
        y=peak,
        x_text=format_seconds(step_s),
        y_text=format_bytes(peak),
        facts=(
            ("step", format_seconds(step_s)),
            ("peak memory", format_bytes(peak)),
            ("chosen", "the fastest plan found"),
        ),
        is_winner=True,
    )


def _point(document: ModelPlanResult, other: Alternative) -> Point:
    return Point(
        name=f"{layout_line(other.parallelism)}, microbatch {other.micro_batch}",
        x=other.step_time_s,
        y=other.peak_memory_bytes,
        x_text=format_seconds(other.step_time_s),
        y_text=format_bytes(other.peak_memory_bytes),
        facts=tuple(_differences(document, other)),
    )


def _differences(document: ModelPlanResult, other: Alternative) -> Iterator[tuple[str, str]]:
    """What this one has that the plan has not."""
    before_s = document.step_time_s or 0.0
    later_s = other.step_time_s - before_s
    step = format_seconds(other.step_time_s)
    yield "step", f"{step}, {other.slowdown - 1:+.1%} ({format_seconds(later_s)} longer)"
    more = other.peak_memory_bytes - max(document.peak_memory_bytes_per_rank, default=0.0)
    sign = "+" if more >= 0 else "−"
    peak = format_bytes(other.peak_memory_bytes)
    yield "peak memory", f"{peak}, {sign}{format_bytes(abs(more))}"
    if document.parallelism is not None:
        yield from _changed(document.parallelism, other.parallelism)
    if other.micro_batch != document.micro_batch:
        yield "microbatch", f"{document.micro_batch} → {other.micro_batch}"
    if other.schedule != document.schedule:
        yield "schedule", f"{document.schedule} → {other.schedule}"
    lost = sorted(other.lost_s.items(), key=lambda item: -abs(item[1]))
    for name, more_s in lost[:_MOST_PARTS]:
        if is_noticed(more_s, other):
            sign = "+" if more_s > 0 else "−"
            yield TIME_PARTS.get(name, name), f"{sign}{format_seconds(abs(more_s))}"


def _changed(one: Parallelism, other: Parallelism) -> Iterator[tuple[str, str]]:
    """Every degree that differs."""
    for field in fields(one):
        before, after = getattr(one, field.name), getattr(other, field.name)
        if before == after:
            continue
        if field.name == "axis_order":
            before, after = mapping_name(before), mapping_name(after)
        yield field.name.replace("_", " "), f"{before} → {after}"


def _table(document: ModelPlanResult) -> Table:
    peak = max(document.peak_memory_bytes_per_rank, default=0.0)
    layout = layout_line(document.parallelism) if document.parallelism else "degrees per stage"
    repeated = sum(stage.num_recomputed for stage in document.stages)
    rows = [
        (
            Cell.of(layout),
            Cell.of(document.micro_batch or 0),
            Cell.of(document.schedule or ""),
            Cell.of(repeated),
            seconds(document.step_time_s or 0.0),
            percent(0.0),
            size(peak),
            Cell.of(""),
        )
    ]
    rows += [
        (
            Cell.of(layout_line(other.parallelism)),
            Cell.of(other.micro_batch),
            Cell.of(other.schedule),
            Cell.of("" if other.num_recomputed is None else other.num_recomputed),
            seconds(other.step_time_s),
            percent(other.slowdown - 1),
            size(other.peak_memory_bytes),
            Cell.of(_loses_most_in(other)),
        )
        for other in document.alternatives
    ]
    return Table(
        title="The plan and its runners-up",
        columns=(
            Column(title="layout", key="layout", is_number=False),
            Column(title="microbatch", key="micro_batch"),
            Column(title="schedule", key="schedule", is_number=False),
            Column(title="recomputed", key="num_recomputed"),
            Column(title="step", key="step_time_s"),
            Column(title="slower", key="slower"),
            Column(title="peak memory", key="peak_memory_bytes"),
            Column(title="loses most in", key="lost", is_number=False),
        ),
        rows=tuple(rows),
        marked=frozenset({0}),
    )


def _loses_most_in(other: Alternative) -> str:
    """The two largest losses against the plan."""
    words = (f"{TIME_PARTS.get(n, n)} +{format_seconds(s)}" for n, s in main_losses(other))
    return ", ".join(words)


# What the pages of models' plans share, on one kind of devices or on several
# ---------------------------------------------------------------------------

_VERDICTS: Final = {
    Status.OPTIMAL: "optimal, proved",
    Status.GAP: "a plan with a proved bound",
    Status.INFEASIBLE: "infeasible, proved",
    Status.UNKNOWN: "unknown",
}


def plan_content(
    document: Planned,
    sections: Iterable[Section],
    *,
    peak_bytes: float | None,
    kind: str | None = None,
) -> Content:
    """The page: `kind` says how devices are used, `peak_bytes` is that of the fullest device."""
    request = document.request
    cluster = request.cluster.name if request.cluster else "?"
    devices = format_count(document.devices_used or request.num_devices or 0, "device")
    layout = layout_line(document.parallelism) if document.parallelism else str(document.status)
    return Content(
        title=f"{request.model.name} on {devices} of {cluster}",
        subtitle=_subtitle(document, kind),
        figures=tuple(step_figures(document, peak_bytes=peak_bytes, layout=layout)),
        sections=tuple(sections),
    )


def _subtitle(document: Planned, kind: str | None) -> str:
    workload = document.request.workload
    parts = [f"Plan: {_VERDICTS[document.status]}"]
    if kind is not None:
        parts.append(kind)
    if document.parallelism is not None:
        parts.append(layout_line(document.parallelism))
        parts.append(f"microbatch {document.micro_batch}, schedule {document.schedule}")
    if workload is not None:
        length = workload.sequence_length
        tokens = "" if length is None else f" of {length:,} tokens"
        parts.append(f"{workload.global_batch:,} sequences{tokens} per step")
    return " · ".join(parts)


def throughput_cards(document: Planned, *, peak: str) -> Iterator[Card]:
    """Tokens per second, and the share of `peak`, in words, that the model's products are.

    Nothing of a measured model that does not say how long its sequences are.
    """
    if document.tokens_per_s is None:
        return
    devices, tokens = document.devices_used or 1, document.tokens_per_s
    per_device = f"{tokens / devices:,.0f} per device"
    yield Card(label="tokens per second", value=f"{tokens:,.0f}", note=per_device)
    if document.mfu is not None:
        yield Card(label="MFU", value=f"{document.mfu:.1%}", note=f"of the {peak}")


def cost_cards(document: Planned) -> Iterator[Card]:
    """Device hours, where there is a plan."""
    if tokens := document.tokens_per_s:
        hours = (document.devices_used or 1) * 1e9 / tokens / 3600
        yield Card(label="cost", value=f"{hours:,.4g}", note="device hours per billion tokens")


def waiting_card(waiting_of_pipeline: float) -> Card:
    """What the busiest rank does not work; tables state its two parts, as shares of the step."""
    return Card(
        label="bubble and transfers",
        value=f"{waiting_of_pipeline:.1%}",
        note="of the pipeline, on the busiest rank",
    )


def gap_card(
    document: Planned, *, bound_s: float | None, gap: float, space: str = "plan of the space"
) -> Card:
    """How far the plan may be from the best."""
    if not bound_s:
        return Card(label="optimality", value="open", note="the search ended before a bound")
    note = f"no {space} takes less than {format_seconds(bound_s)}"
    if document.status is Status.OPTIMAL:
        return Card(label="optimality", value="proved", note=note, tone="good")
    return Card(label="optimality gap", value=f"≤ {format_percent_up(gap)}", note=note)


def searched_row(document: Planned) -> tuple[str, str]:
    """How many layouts the search saw."""
    left = f", {document.not_reached:,} not reached" if document.not_reached else ""
    excluded = f"{document.pruned:,} of them excluded by their bounds{left}"
    return "layouts", f"{document.considered:,} considered, {excluded}"


def closing_sections(
    subject: Subject[ModelPlanResult] | Subject[MixedPlanResult],
) -> Iterator[Section]:
    """Where the numbers come from, and how to make them again."""
    document = subject.document
    yield provenance_section(subject, document.assumptions)
    request = document.request
    yield reproduce_section(subject, tuple(filter(None, (request.model, request.cluster))))


# The page of a model's plan
# --------------------------

_ZERO_STAGES: Final = 4


def model_plan_content(subject: Subject[ModelPlanResult]) -> Content:
    """Everything the page says about a plan of a model."""
    document = subject.document
    peak_bytes = max(document.peak_memory_bytes_per_rank, default=None)
    return plan_content(document, _sections(subject), peak_bytes=peak_bytes)


def _sections(subject: Subject[ModelPlanResult]) -> Iterator[Section]:
    document, priced = subject.document, subject.priced
    yield Section(name="summary", label="Summary", title="Summary", cards=tuple(_cards(document)))
    yield _why(document, priced)
    yield from step_sections(subject, title="The plan")
    if document.alternatives:
        found = alternative_blocks(document)
        yield Section(
            name="alternatives",
            label="Alternatives",
            title="What else was considered",
            blocks=found,
        )
    yield from closing_sections(subject)


def _cards(document: ModelPlanResult) -> Iterator[Card]:
    if document.step_time_s is None:
        yield Card(label="status", value=str(document.status), tone="bad")
        return
    yield Card(
        label="step time",
        value=format_seconds(document.step_time_s),
        note=_interval(document),
    )
    yield from throughput_cards(document, peak="devices' dense peak")
    yield _memory_card(document)
    yield waiting_card(document.bubble_of_makespan or 0.0)
    yield from cost_cards(document)
    yield gap_card(document, bound_s=document.lower_bound_s, gap=document.gap or 0.0)
    yield Card(label="verification", value="not run", note="no real run of this schedule is stated")


def _interval(document: ModelPlanResult) -> str:
    """The range of nine of ten measured steps, and whether it rests on any."""
    low_s, high_s = document.step_time_low_s, document.step_time_high_s
    fitted = document.assumptions.get("times", "").startswith(f"{Origin.FITTED}:")
    known = "fitted" if fitted else "not fitted to measured runs"
    if low_s is None or high_s is None:
        return known
    return f"{format_seconds(low_s)} to {format_seconds(high_s)}, 90 %; {known}"


def _memory_card(document: ModelPlanResult) -> Card:
    peaks, limit = document.peak_memory_bytes_per_rank, document.memory_limit_bytes
    peak = max(peaks)
    if limit is None:
        return Card(label="peak memory", value=format_bytes(peak))
    left = limit - peak
    note = f"rank {peaks.index(peak)}, {format_bytes(left)} left of {format_bytes(limit)}"
    tone = "bad" if left < 0 else "plain"
    return Card(label="peak memory", value=format_bytes(peak), note=note, tone=tone)


def _why(document: ModelPlanResult, priced: PricedStep | None) -> Section:
    blocks: list[object] = []
    if priced is not None:
        blocks += [step_bar(priced), term_table(priced)]
    blocks.append(Facts(title="What blocks a better plan", rows=tuple(_blocks(document, priced))))
    if document.relaxations:
        lines = tuple(f"{fix.change}: {fix.description}" for fix in document.relaxations)
        blocks.append(Notes(title="Any one of these is enough", lines=lines))
    elif document.status is Status.INFEASIBLE:
        blocks.append(Notes(lines=("No single change of what was asked is enough.",), tone="bad"))
    title = "Why it is not faster" if document.stages else "Why nothing fits"
    return Section(name="why", label="Why", title=title, blocks=tuple(blocks))  # type: ignore[arg-type]


def _blocks(document: ModelPlanResult, priced: PricedStep | None) -> Iterator[tuple[str, str]]:
    if document.binding is not None:
        yield "what cannot fit", document.binding.description
    if document.step_time_s is not None and document.lower_bound_s:
        left = f"at most {format_percent_up(document.gap or 0.0)} can be won"
        if document.status is Status.OPTIMAL:
            left = "no plan that the request admits is faster"
        kind = document.bound_kind or "unproved"
        bound_s = document.lower_bound_s or 0.0
        yield f"bound ({kind})", f"{format_seconds(bound_s)}: {left}"
    if priced is not None:
        step, limit = priced.step, document.memory_limit_bytes
        fullest = step.stages[step.fullest_stage].memory.total_bytes
        if limit:
            yield (
                "memory",
                f"rank {step.fullest_stage} fills {fullest / limit:.1%} of what is usable; "
                f"rank {priced.busiest_rank} sets the pace",
            )
    yield searched_row(document)
    off = tuple(_switched_off(document))
    if off:
        yield "not searched", ", ".join(off)
    if document.interrupted:
        yield "interrupted", "this is the best plan found so far"


_SPANS: Final = {
    "tensor": "tensor degrees",
    "pipeline": "pipeline degrees",
    "data": "data degrees",
    "context": "context degrees",
    "expert": "expert degrees",
    "expert_tensor": "expert tensor degrees",
    "virtual_stages": "virtual stages",
    "microbatch_size": "microbatches",
    "state_copies": "copies of sharded state",
}


def _switched_off(document: ModelPlanResult) -> Iterator[str]:
    space = document.request.space
    for name in ("data_parallel", "tensor_parallel", "recompute"):
        if not getattr(space, name):
            yield name.replace("_", " ")
    yield from (f"option {option}" for option in space.excluded_options)
    for field, name in _SPANS.items():
        span = getattr(space, field)
        if span is not None:
            most = "" if span.most is None else f" to {span.most}"
            yield f"{name} other than {span.least}{most if span.most != span.least else ''}"
    if space.zero_stages and len(space.zero_stages) < _ZERO_STAGES:
        yield f"ZeRO stages other than {', '.join(map(str, space.zero_stages))}"
    if len(space.mappings) == 1:
        yield f"mappings other than {space.mappings[0]}"
    if space.schedules is not None:
        named = [family for family in space.schedules if family != SEARCHED]
        if named:
            yield f"schedules other than {', '.join(space.schedules)}"
    if space.framework is not None:
        yield f"what {space.framework} cannot run"
    if not space.per_stage_degrees:
        yield "degrees that differ between stages"


# The page of an explained plan: the plan's page, with what its choices buy and what would help
# ---------------------------------------------------------------------------------------------


def model_explanation_content(subject: Subject[ModelExplanation]) -> Content:
    """The plan's content, its reasons extended."""
    document = subject.document
    found = model_plan_content(replace(subject, document=document.plan))  # type: ignore[arg-type]
    sections = tuple(
        _extended(section, document) if section.name == "why" else section
        for section in found.sections
    )
    return replace(found, sections=sections)


def _extended(section: Section, document: ModelExplanation) -> Section:
    return replace(section, blocks=(*section.blocks, *_more(document)))


def _more(document: ModelExplanation) -> Iterator[Table | Facts]:
    if document.without:
        yield Table(
            title="The best plan without",
            columns=(
                Column(title="without", key="name", is_number=False),
                Column(title="step", key="step_time_s"),
                Column(title="slower", key="slowdown"),
                Column(title="layout", key="layout", is_number=False),
            ),
            rows=tuple(tuple(_without_cells(one)) for one in document.without),
            note="Looked for again with a choice forbidden; the best found where time ran out.",
        )
    if document.gains:
        yield Table(
            title="With more of",
            columns=(
                Column(title="resource", key="resource", is_number=False),
                Column(title="more", key="change", is_number=False),
                Column(title="step", key="step_time_s"),
                Column(title="saves", key="saved"),
                Column(title="plan", key="plan", is_number=False),
            ),
            rows=tuple(tuple(_gain_cells(one)) for one in document.gains),
        )
    if document.binding is not None:
        yield Facts(rows=(("what would help most", document.binding),))


def _without_cells(one: WithoutRecord) -> Iterator[Cell]:
    yield Cell.of(one.name)
    if one.step_time_s is None or one.slowdown is None:
        nothing = "nothing fits" if one.status is Status.INFEASIBLE else "not known"
        yield Cell.of(nothing)
        yield Cell.of("")
    else:
        yield seconds(one.step_time_s)
        yield Cell(text=f"{one.slowdown - 1:+.1%}", value=one.slowdown - 1)
    yield Cell.of(layout_line(one.parallelism) if one.parallelism else "")


def _gain_cells(one: GainRecord) -> Iterator[Cell]:
    yield Cell.of(one.resource)
    yield Cell.of(one.change)
    yield seconds(one.step_time_s)
    yield Cell(text=f"{one.saved:.2%}", value=one.saved)
    yield Cell.of("planned again" if one.replanned else "the same plan")
