"""The page of a model's plan, on several pools of devices or, the special case, on one.

The step, why it is not faster, the pools, the ranks of each chain of like replicas with the limit
of their kind of device, the schedule of the chain that ends the step, and the runners-up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from trainwright.documents import plan_view
from trainwright.documents.fit import figure_table
from trainwright.documents.printing import is_noticed, layout_line
from trainwright.documents.reasons import Reasons, explanation_tables
from trainwright.documents.view import Facts, Notes
from trainwright.pages.blocks import (
    Bar,
    BarChart,
    Beside,
    Card,
    Gantt,
    Part,
    Point,
    Scatter,
    Section,
    card,
    folded,
    gap_card,
    plain_bars,
    reason_title,
    section,
    time_against_memory,
)
from trainwright.pages.step import (
    TIME_PARTS,
    bars_of_parts,
    first_blocks,
    first_pictures,
    memory_bars,
    network_blocks,
    plan_changes,
    plan_verdict,
    schedule_section,
    step_figures,
    term_table,
    time_bars,
)
from trainwright.pages.subject import (
    Content,
    PricedStep,
    Subject,
    provenance_section,
    reproduce_section,
)
from trainwright.plans.plan import SEARCHED, Parallelism, mapping_name
from trainwright.plans.status import Status
from trainwright.units import format_bytes, format_count, format_percent_up, format_seconds

if TYPE_CHECKING:
    from trainwright.documents.explanation import ModelExplanation
    from trainwright.documents.model_plan import Alternative, ModelPlanResult

_VERDICTS: Final = {
    Status.OPTIMAL: "optimal, proved",
    Status.GAP: "a plan with a proved bound",
    Status.INFEASIBLE: "infeasible, proved",
    Status.UNKNOWN: "unknown",
}
_ZERO_STAGES: Final = 4


def model_plan_content(subject: Subject[Any]) -> Content:
    """Everything the page says about a plan of a model."""
    document: ModelPlanResult = subject.document
    request = document.request
    cluster = request.cluster.name if request.cluster else "?"
    devices = format_count(document.devices_used or request.num_devices or 0, "device")
    layout = layout_line(document.parallelism) if document.parallelism else str(document.status)
    return Content(
        title=f"{request.model.name} on {devices} of {cluster}",
        subtitle=" · ".join(_subtitle(document)),
        figures=tuple(step_figures(document, peak_bytes=document.peak_memory_bytes, layout=layout)),
        sections=tuple(_sections(subject)),
    )


def _subtitle(document: ModelPlanResult) -> Iterator[str]:
    workload = document.request.workload
    is_open = document.status is Status.GAP and not document.lower_bound_s
    yield f"Plan: {'the best so far' if is_open else _VERDICTS[document.status]}"
    if document.layout is not None:
        yield plan_view.LAYOUTS[document.layout]
    if document.parallelism is not None:
        yield layout_line(document.parallelism)
        yield f"microbatch {document.micro_batch}, schedule {document.schedule}"
    if workload is not None:
        length = workload.sequence_length
        tokens = "" if length is None else f" of {length:,} tokens"
        yield f"{workload.global_batch:,} sequences{tokens} per step"


def _sections(subject: Subject[Any]) -> Iterator[Section]:
    document: ModelPlanResult = subject.document
    pictures = first_pictures(subject.priced, document)
    first: list[object] = [*first_blocks(plan_verdict(document), plan_changes(subject), pictures)]
    if document.groups and document.stages:
        held = [each for _, each in _memory_bars(document, fullest=True)]
        first.append(Beside(left=(_pool_bars(document),), right=tuple(held)))
    yield section("summary", "The answer", *first, label="Answer", cards=_cards(document))
    if subject.panel is not None:
        yield schedule_section(
            subject.panel,
            _chain_gantt(document, subject.panel.num_bars) if document.groups else subject.priced,
        )
    yield from map(folded, _details(subject))


def _details(subject: Subject[Any]) -> Iterator[Section]:
    document: ModelPlanResult = subject.document
    yield _why(document, subject.priced)
    if pools := plan_view.pool_table(document):
        yield section("groups", "The kinds of devices", pools)
    if document.stages:
        shown = filter(None, [figure_table(document)])
        yield section(
            "plan", "The plan", plan_view.rank_table(plan_view.rank_rows(document)), *shown
        )
        yield section("ranks", "Time and memory of the ranks", *_rank_bars(document, subject))
    if subject.priced is not None and subject.priced.network:
        yield section("network", "Network", *network_blocks(subject.priced))
    if document.alternatives:
        blocks = alternative_blocks(document)
        yield section("alternatives", "What else was considered", *blocks)
    yield provenance_section(subject, document.assumptions)
    inputs = (document.request.model, document.request.cluster)
    yield reproduce_section(subject, tuple(filter(None, inputs)))


# The summary
# -----------


def _cards(document: ModelPlanResult) -> Iterator[Card]:
    if document.step_time_s is None:
        return
    if document.tokens_per_s is not None:
        per_device = f"{document.tokens_per_s / (document.devices_used or 1):,.0f} per device"
        yield card("tokens per second", f"{document.tokens_per_s:,.0f}", per_device)
    if document.mfu is not None:
        peak = "peak of all devices used" if document.groups else "devices' dense peak"
        yield card("MFU", f"{document.mfu:.1%}", f"of the {peak}")
    if document.groups:
        yield _memory_card(document)
    yield from cost_cards(document.tokens_per_s, document.devices_used)
    bound_s = document.lower_bound_s
    yield gap_card(
        document.status,
        bound_text=format_seconds(bound_s) if bound_s else "",
        gap=document.gap or 0.0,
        what=plan_view.proved_space(document),
    )


def _memory_card(document: ModelPlanResult) -> Card:
    """The device with the least room: of one kind the fullest, of several in proportion."""
    rows = plan_view.rank_rows(document)
    row = max(rows, key=lambda each: each.found.memory.total_bytes / (each.limit_bytes or 1.0))
    peak, limit = row.found.memory.total_bytes, row.limit_bytes
    label = "fullest device" if document.groups else "peak memory"
    if limit is None:
        return card(label, format_bytes(peak))
    kind = "" if row.device_kind is None else f" on {row.device_kind}"
    note = f"rank {row.rank}{kind}, {format_bytes(limit - peak)} left of {format_bytes(limit)}"
    fits = document.fits is not False and peak <= limit
    return card(label, format_bytes(peak), note, "plain" if fits else "bad")


def cost_cards(tokens_per_s: float | None, devices: int | None) -> Iterator[Card]:
    """Device hours, where there is a plan."""
    if tokens_per_s:
        hours = (devices or 1) * 1e9 / tokens_per_s / 3600
        yield card("cost", f"{hours:,.4g}", "device hours per billion tokens")


def waiting_card(waiting_of_pipeline: float) -> Card:
    """What the busiest rank does not work; tables state its two parts, as shares of the step."""
    note = "of the pipeline, on the busiest rank"
    return card("bubble and transfers", f"{waiting_of_pipeline:.1%}", note)


# Why it is not faster
# --------------------


def _why(document: ModelPlanResult, priced: PricedStep | None) -> Section:
    blocks: list[object] = []
    if priced is not None:
        blocks.append(term_table(priced))
    blocks.append(Facts(title="What blocks a better plan", rows=tuple(_blocks(document))))
    if not document.relaxations and document.status is Status.INFEASIBLE:
        blocks.append(Notes(lines=("No single change of what was asked is enough.",), tone="bad"))
    title = "Why it is not faster" if document.stages else reason_title(document.status)
    return section("why", title, *blocks)


def _blocks(document: ModelPlanResult) -> Iterator[tuple[str, str]]:
    if document.binding is not None:
        what = "what binds" if document.stages else "what cannot fit"
        yield what, document.binding.description
    if document.step_time_s is not None and document.lower_bound_s:
        space = plan_view.proved_space(document)
        left = f"at most {format_percent_up(document.gap or 0.0)} can be won by another {space}"
        if document.status is Status.OPTIMAL:
            left = f"no {space} is faster"
        kind = document.bound_kind or "unproved"
        yield f"bound ({kind})", f"{format_seconds(document.lower_bound_s)}: {left}"
    if document.stages and not document.groups:
        yield from _pace(document)
    if document.groups:
        yield from _after_the_pipeline(document)
    left = f", {document.not_reached:,} not reached" if document.not_reached else ""
    excluded = f"{document.pruned:,} of them excluded by their bounds{left}"
    yield "layouts", f"{document.considered:,} considered, {excluded}"
    if off := tuple(_switched_off(document)):
        yield "not searched", ", ".join(off)
    if document.interrupted:
        yield "interrupted", "this is the best plan found so far"


def _pace(document: ModelPlanResult) -> Iterator[tuple[str, str]]:
    if document.memory_limit_bytes:
        filled = (document.peak_memory_bytes or 0.0) / document.memory_limit_bytes
        yield (
            "memory",
            f"rank {plan_view.fullest_rank(document)} fills {filled:.1%} of what is usable; "
            f"rank {plan_view.busiest_rank(document.ranks)} sets the pace",
        )


def _after_the_pipeline(document: ModelPlanResult) -> Iterator[tuple[str, str]]:
    if document.pipeline_s is not None:
        yield "pipeline", format_seconds(document.pipeline_s)
        yield "gradients exposed", format_seconds(document.exposed_gradient_sync_s or 0.0)
        yield "optimizer", format_seconds(document.optimizer_s or 0.0)


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


# Pools and ranks as bars, and the schedule
# -----------------------------------------


def _pool_bars(document: ModelPlanResult) -> BarChart:
    """How much of the step each kind works."""
    bars = []
    for group in document.groups:
        parts = (
            Part(kind="compute", label="busy", amount=group.busy, text=f"{group.busy:.1%}"),
            Part(kind="unused", label="idle", amount=1 - group.busy, text=f"{1 - group.busy:.1%}"),
        )
        total = f"{group.devices_used} of {group.num_devices} used"
        bars.append(Bar(label=group.device_kind, parts=parts, total=total))
    return BarChart(title="Share of the step that each kind works", bars=tuple(bars), label="kind")


def _rank_bars(document: ModelPlanResult, subject: Subject[Any]) -> Iterator[BarChart]:
    """What every rank does with the step, and what it holds at its fullest."""
    if subject.priced is not None:
        yield time_bars(subject.priced)
    elif subject.parts_of_rank_s:
        labels = [f"{rank.rank}, {rank.device_kind}" for rank in document.ranks]
        step_s = document.step_time_s or 0.0
        yield bars_of_parts(labels, subject.parts_of_rank_s, step_s=step_s)
    for of, held in _memory_bars(document):
        yield replace(held, title=f"Memory of {of} at its fullest, by rank")


def _memory_bars(
    document: ModelPlanResult, *, fullest: bool = False
) -> Iterator[tuple[str, BarChart]]:
    """For each kind of device what its ranks, or the fullest of them, hold."""
    rows = plan_view.rank_rows(document)
    for kind in dict.fromkeys(row.device_kind for row in rows):
        own = [row for row in rows if row.device_kind == kind]
        of = "a device" if kind is None else kind
        if fullest:
            own = [max(own, key=lambda row: row.found.memory.total_bytes)]
        held = ((row.rank, row.found.memory) for row in own)
        title = f"What the fullest {of} holds: rank {own[0].rank}"
        yield of, memory_bars(held, own[0].limit_bytes, title=title)


def _chain_gantt(document: ModelPlanResult, num_bars: int) -> Gantt:
    assert document.ends is not None, "a schedule is drawn of a plan"
    own = [rank for rank in document.ranks if rank.chain == document.ends[0]]
    kinds = " → ".join(dict.fromkeys(rank.device_kind for rank in own))
    layers = sum(len(stage.layers) for stage in document.stages)
    return Gantt(
        note=f"One of {own[0].count} like replicas that end the step: {layers} layers on {kinds}, "
        f"{own[0].num_microbatches} microbatches, {num_bars:,} actions, simulated one by one."
    )


# The runners-up: a picture to pick from, and a table
# ---------------------------------------------------

_MOST_PARTS: Final = 4  # of what a runner-up loses, listed when it is picked


def alternative_blocks(document: ModelPlanResult) -> Iterator[object]:
    """On one pool step time against peak memory; on several, step times by the use of pools."""
    if document.groups:
        others: Sequence[Alternative] = document.alternatives
        steps = [("the plan", document.step_time_s or 0.0, 1.0)]
        steps += [
            (
                f"{number}: {plan_view.LAYOUTS[other.layout or 'alone']}",
                other.step_time_s,
                other.slowdown,
            )
            for number, other in enumerate(others, 1)
        ]
        rows = ((name, s, format_seconds(s), f"{slower:.3g}×") for name, s, slower in steps)
        yield plain_bars("Step time", "way", rows)
    else:
        yield _scatter(document)
    yield plan_view.alternative_table(document)
    if lines := tuple(f"{line}." for line in plan_view.notable_lines(document)):
        yield Notes(lines=lines)


def _scatter(document: ModelPlanResult) -> Scatter:
    points = (_winner(document), *(_point(document, other) for other in document.alternatives))
    return time_against_memory(points, limit_bytes=document.memory_limit_bytes)


def _winner(document: ModelPlanResult) -> Point:
    step_s, peak = document.step_time_s or 0.0, document.peak_memory_bytes or 0.0
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
        y=other.peak_memory_bytes or 0.0,
        x_text=format_seconds(other.step_time_s),
        y_text=format_bytes(other.peak_memory_bytes or 0.0),
        facts=tuple(_differences(document, other)),
    )


def _differences(document: ModelPlanResult, other: Alternative) -> Iterator[tuple[str, str]]:
    """What this one has that the plan has not."""
    later_s = other.step_time_s - (document.step_time_s or 0.0)
    step = format_seconds(other.step_time_s)
    yield "step", f"{step}, {other.slowdown - 1:+.1%} ({format_seconds(later_s)} longer)"
    more = (other.peak_memory_bytes or 0.0) - (document.peak_memory_bytes or 0.0)
    sign = "+" if more >= 0 else "−"
    peak = format_bytes(other.peak_memory_bytes or 0.0)
    yield "peak memory", f"{peak}, {sign}{format_bytes(abs(more))}"
    if document.parallelism is not None:
        yield from _changed(document.parallelism, other.parallelism)
    if other.micro_batch != document.micro_batch:
        yield "microbatch", f"{document.micro_batch} → {other.micro_batch}"
    if other.schedule != document.schedule:
        yield "schedule", f"{document.schedule} → {other.schedule}"
    lost = sorted((other.lost_s or {}).items(), key=lambda item: -abs(item[1]))
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


# The page of an explained plan: the plan's page, with what its choices buy and what would help
# ---------------------------------------------------------------------------------------------


def model_explanation_content(subject: Subject[ModelExplanation]) -> Content:
    """The plan's content, its reasons extended."""
    document = subject.document
    known = Reasons(binding=document.binding, without=document.without, gains=document.gains)
    plan = replace(document.plan, reasons=known)
    found = model_plan_content(replace(subject, document=plan))  # type: ignore[arg-type]
    more: list[Any] = list(explanation_tables(document))
    if document.binding is not None:
        more.append(Facts(rows=(("what would help most", document.binding),)))
    sections = tuple(
        replace(each, blocks=(*each.blocks, *more)) if each.name == "why" else each
        for each in found.sections
    )
    return replace(found, sections=sections)
