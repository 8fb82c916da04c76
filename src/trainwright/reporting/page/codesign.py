"""The page of a chip designed for models: its floor, its plans, the front, what binds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.plan.status import Status
from trainwright.reporting.page.blocks import Card, Facts, Notes, Part, Section
from trainwright.reporting.page.codesign_blocks import (
    front_scatter,
    operator_bars,
    operator_table,
    plan_table,
    real_chips,
    sensitivity_table,
    visited_bar,
)
from trainwright.reporting.page.floor_plan import lay_out
from trainwright.reporting.page.provenance import provenance_section, reproduce_section
from trainwright.reporting.page.subject import Content, Figure
from trainwright.units import format_bandwidth, format_bytes, format_percent_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.plan.results.codesign import CodesignResult, DesignRecord
    from trainwright.reporting.page.blocks import FloorPlan
    from trainwright.reporting.page.subject import Subject

_FLOOR: Final = {
    "tensor arrays": "arrays",
    "tensor buffers": "array-buffers",
    "vector lanes": "lanes",
    "vector buffers": "lane-buffers",
    "global buffer": "global",
}


def codesign_content(subject: Subject[CodesignResult]) -> Content:
    """Everything the page says about a co-design."""
    document = subject.document
    models = ", ".join(job.model.name for job in document.request.jobs)
    gap = format_percent_up(document.gap or 0.0)
    verdicts = {Status.OPTIMAL: "optimal, proved", Status.GAP: f"at most {gap} from the best"}
    verdict = verdicts.get(document.status, str(document.status))
    return Content(
        title=f"A chip for {models}",
        subtitle=f"Co-design: {verdict} · {document.request.num_devices} devices · "
        f"{document.searched:,} designs searched",
        figures=tuple(_figures(document)),
        sections=tuple(_sections(subject)),
    )


def _figures(document: CodesignResult) -> Iterator[Figure]:
    best = document.best
    if best is None:
        return
    shown = (
        ("tokens_per_s", "tokens/s", best.tokens_per_s, f"{best.tokens_per_s:,.0f}"),
        ("area_mm2", "area", best.area_mm2, f"{best.area_mm2:.2f} mm²"),
        ("power_watts", "power", best.power_watts, f"{best.power_watts:.0f} W"),
    )
    for key, title, value, text in shown:
        yield Figure(key=key, title=title, value=value, text=text)


def _sections(subject: Subject[CodesignResult]) -> Iterator[Section]:
    document, best = subject.document, subject.document.best
    cards = tuple(_cards(document))
    yield Section(name="summary", label="Summary", title="Summary", cards=cards)
    yield _why(document)
    if best is not None:
        blocks = (_floor(best), _architecture(best))
        yield Section(name="chip", label="Chip", title="The chip", blocks=blocks)
        table = (plan_table(document),)
        yield Section(name="plan", label="Plans", title="How it trains", blocks=table)
    if document.operators:
        used = (operator_bars(document), operator_table(document))
        title = "What its units do in one block"
        yield Section(name="utilisation", label="Utilisation", title=title, blocks=used)
    if len(document.pareto) > 1:
        scatter = (front_scatter(document),)
        yield Section(name="front", label="Front", title="The front", blocks=scatter)
    if document.real_chips:
        chips = (real_chips(document),)
        yield Section(name="chips", label="Real chips", title="Beside real chips", blocks=chips)
    yield provenance_section(subject, _assumptions(document))
    jobs = tuple(job.model for job in document.request.jobs)
    yield reproduce_section(subject, jobs)


def _cards(document: CodesignResult) -> Iterator[Card]:
    best = document.best
    if best is None:
        yield Card(label="status", value=str(document.status), tone="bad")
        return
    per_watt = f"{best.tokens_per_s_per_watt:,.4g} per watt"
    yield Card(label="tokens per second", value=f"{best.tokens_per_s:,.0f}", note=per_watt)
    yield Card(label="area", value=f"{best.area_mm2:.2f} mm²", note=best.area_scope)
    peak = best.peak_power_watts
    note = "" if peak is None else f"{peak:.0f} W in its hungriest operator"
    yield Card(label="power of a chip", value=f"{best.power_watts:.0f} W", note=note)
    value = f"{best.energy_per_token_j:.4g} J"
    yield Card(label="energy per token", value=value, note="of all chips")
    flops = f"{best.architecture.peak_flops_per_s / 1e12:.4g} TFLOP/s"
    yield Card(label="peak", value=flops, note="dense products")
    proved = document.status is Status.OPTIMAL
    gap = f"≤ {format_percent_up(document.gap or 0.0)}"
    yield Card(
        label="optimality" if proved else "optimality gap",
        value="proved" if proved else gap,
        note=f"{document.visited:,} of {document.searched:,} designs placed, the rest excluded",
        tone="good" if proved else "plain",
    )


def _why(document: CodesignResult) -> Section:
    blocks: list[object] = [visited_bar(document)]
    if document.infeasible_because:
        blocks.append(Notes(title="Why nothing fits", lines=(document.infeasible_because,)))
    if document.sensitivity:
        blocks.append(sensitivity_table(document))
    title = "Why it is not faster" if document.best else "Why nothing fits"
    return Section(name="why", label="Why", title=title, blocks=tuple(blocks))  # type: ignore[arg-type]


def _floor(best: DesignRecord) -> FloorPlan:
    parts = tuple(
        Part(
            kind=_FLOOR.get(name, "plain"),
            label=name,
            amount=area,
            text=f"{area:.2f} mm² ({area / best.area_mm2:.1%})",
        )
        for name, area in best.area_parts_mm2.items()
    )
    note = f"{best.area_mm2:.2f} mm² of {best.area_scope}, areas in proportion."
    return lay_out(parts, title="Floor area", note=note)


def _architecture(best: DesignRecord) -> Facts:
    chip, around = best.architecture, best.architecture.surroundings
    rows = [
        ("tensor cores", f"{chip.num_tc} of {chip.width} × {chip.depth}"),
        ("vector cores", f"{chip.num_vc} of {chip.width_vc} lanes"),
        ("global buffer", format_bytes(chip.glb_bytes)),
        (
            "memory",
            f"{format_bytes(around.memory_bytes)} at "
            f"{format_bandwidth(around.memory_bandwidth_bytes_per_s)}",
        ),
        ("links", format_bandwidth(around.link_bandwidth_bytes_per_s)),
        ("clock", f"{around.clock_hz / 1e9:g} GHz"),
    ]
    if best.die_area_mm2 is not None:
        rows.append(("die", f"{best.die_area_mm2:.2f} mm²"))
    if best.cost_per_good_die is not None:
        rows.append(("a good die", f"{best.cost_per_good_die:.0f}"))
    return Facts(title="Cores and what surrounds them", rows=tuple(rows))


def _assumptions(document: CodesignResult) -> dict[str, str]:
    rules = document.request.rules
    found = {
        "space": f"sha256 {document.space_sha256}",
        "area at most": f"{rules.largest_um2 / 1e6:.4g} mm²",
        "objective": document.objective,
    }
    energy = document.request.energy
    return found | {name.replace("_", " "): f"{value:.4g}" for name, value in energy.items()}
