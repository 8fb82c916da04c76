"""The page of a model's plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.plan.searched_order import SEARCHED
from trainwright.plan.status import Status
from trainwright.provenance import Origin
from trainwright.reporting.page.alternatives import alternative_blocks
from trainwright.reporting.page.blocks import Card, Facts, Notes, Section
from trainwright.reporting.page.planned import (
    closing_sections,
    cost_cards,
    gap_card,
    plan_content,
    searched_row,
    throughput_cards,
    waiting_card,
)
from trainwright.reporting.page.step_sections import step_sections
from trainwright.reporting.page.why_blocks import step_bar, term_table
from trainwright.reporting.proved_space import proved_space
from trainwright.units import format_bytes, format_percent_up, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.plan.results.model_plan import ModelPlanResult
    from trainwright.reporting.page.subject import Content, PricedStep, Subject

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
    space, _ = proved_space(document)
    yield gap_card(document, bound_s=_bound_s(document), gap=_gap(document), space=space)
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


def _bound_s(document: ModelPlanResult) -> float | None:
    """That of all plans where it is known, or of the uniform ones."""
    return document.lower_bound_all_s or document.lower_bound_s


def _gap(document: ModelPlanResult) -> float:
    return max(document.gap or 0.0, document.gap_all or 0.0)


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
        left = f"at most {format_percent_up(_gap(document))} can be won in this space"
        if document.status is Status.OPTIMAL:
            left = "no {} is faster{}".format(*proved_space(document))
        kind = document.bound_kind or "unproved"
        bound_s = _bound_s(document) or 0.0
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
