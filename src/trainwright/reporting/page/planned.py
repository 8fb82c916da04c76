"""What the pages of models' plans share, on one kind of devices or on several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from trainwright.plan.status import Status
from trainwright.reporting.layout import layout_line
from trainwright.reporting.page.blocks import Card, Section
from trainwright.reporting.page.provenance import provenance_section, reproduce_section
from trainwright.reporting.page.step_sections import step_figures
from trainwright.reporting.page.subject import Content
from trainwright.units import format_count, format_percent_up, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainwright.plan.results.mixed_plan import MixedPlanResult
    from trainwright.plan.results.model_plan import ModelPlanResult
    from trainwright.reporting.page.subject import Subject

    Planned: TypeAlias = ModelPlanResult | MixedPlanResult

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
        parts.append(
            f"{workload.global_batch:,} sequences of {workload.sequence_length:,} tokens per step"
        )
    return " · ".join(parts)


def throughput_cards(document: Planned, *, peak: str) -> Iterator[Card]:
    """Tokens per second, and the share of `peak`, in words, that the model's products are."""
    devices, tokens = document.devices_used or 1, document.tokens_per_s or 0.0
    per_device = f"{tokens / devices:,.0f} per device"
    yield Card(label="tokens per second", value=f"{tokens:,.0f}", note=per_device)
    yield Card(label="MFU", value=f"{document.mfu or 0:.1%}", note=f"of the {peak}")


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
