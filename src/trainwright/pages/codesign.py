"""The page of a chip designed for models: its floor, its plans, the front, what binds it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainwright.documents.view import Cell, Column, Facts, Notes, Table, percent, seconds
from trainwright.pages.blocks import (
    Bar,
    BarChart,
    Card,
    Part,
    Point,
    Section,
    lay_out,
    lay_out_areas,
    upside_down,
)
from trainwright.pages.subject import Content, Figure, provenance_section, reproduce_section
from trainwright.plans.status import Status
from trainwright.units import format_bandwidth, format_bytes, format_percent_up, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.formats.codesign_document import (
        ChipPlanRecord,
        CodesignResult,
        DesignRecord,
        FrontPoint,
    )
    from trainwright.pages.blocks import FloorPlan, Scatter
    from trainwright.pages.subject import Subject


# Blocks about a designed chip: what was searched, plans, operators, the front, other chips
# -----------------------------------------------------------------------------------------

_BOUNDS: Final = {
    "mac": "multipliers",
    "vector": "vector lanes",
    "hbm": "memory",
    "glb": "global buffer",
    "launch": "starting it",
}
_RESOURCES: Final = {
    "clock_hz": "clock",
    "memory_bytes": "memory",
    "memory_bandwidth_bytes_per_s": "memory bandwidth",
    "link_bandwidth_bytes_per_s": "link bandwidth",
    "glb_bytes_per_cycle": "bandwidth of the global buffer",
    "num_tc": "tensor cores",
    "num_vc": "vector cores",
    "glb_mib": "global buffer",
    "area": "area",
}


def visited_bar(document: CodesignResult) -> BarChart:
    """How the search dealt with every design."""
    kinds = iter(("gradient", "activations", "recompute", "workspace"))
    parts = [
        Part(kind=next(kinds, "opaque"), label=f"excluded by {name}", amount=n, text=f"{n:,}")
        for name, n in document.pruned_by.items()
    ]
    visited = document.visited
    parts.append(Part(kind="exposed", label="placed", amount=visited, text=f"{visited:,}"))
    bar = Bar(label="", parts=tuple(parts), total=f"{document.searched:,}")
    note = "Every design was excluded by a bound or placed and priced."
    return BarChart(title="Designs", bars=(bar,), label="", note=note)


def sensitivity_table(document: CodesignResult) -> Table:
    """What more of each resource would buy."""
    rows = tuple(
        (
            Cell.of(_RESOURCES.get(one.resource, one.resource.replace("_", " "))),
            Cell(text=f"{one.factor:g} ×", value=one.factor),
            Cell(text=f"{one.throughput_gain:+.2%}", value=one.throughput_gain),
        )
        for one in sorted(document.sensitivity, key=lambda one: -one.throughput_gain)
    )
    return Table(
        title="What more would buy",
        columns=(
            Column(title="more of", key="resource", is_number=False),
            Column(title="factor", key="factor"),
            Column(title="throughput", key="throughput_gain"),
        ),
        rows=rows,
    )


def plan_table(document: CodesignResult) -> Table:
    """The plan of each model, and published strategies on the same design."""
    rows = [tuple(_plan_cells(plan)) for plan in document.best.plans] if document.best else []
    for fixed in document.fixed_strategies:
        found = "" if fixed.step_time_s is None else format_seconds(fixed.step_time_s)
        tokens = fixed.tokens_per_s
        rows.append(
            (
                Cell.of(f"{fixed.model}, published"),
                Cell.of(fixed.tensor_parallel),
                Cell.of(fixed.data_parallel),
                Cell.of(fixed.pipeline_parallel),
                Cell.of(fixed.recompute or fixed.reason or ""),
                Cell(text=found, value=fixed.step_time_s or ""),
                Cell(text="" if tokens is None else f"{tokens:,.0f}", value=tokens or ""),
                Cell.of(""),
            )
        )
    return Table(
        title="Plans",
        columns=(
            Column(title="model", key="model", is_number=False),
            Column(title="tensor", key="tensor_parallel"),
            Column(title="data", key="data_parallel"),
            Column(title="pipeline", key="pipeline_parallel"),
            Column(title="recompute", key="recompute", is_number=False),
            Column(title="step", key="step_time_s"),
            Column(title="tokens/s", key="tokens_per_s"),
            Column(title="MFU", key="mfu"),
        ),
        rows=tuple(rows),
    )


def _plan_cells(plan: ChipPlanRecord) -> Iterator[Cell]:
    yield Cell.of(plan.model)
    for degree in (plan.tensor_parallel, plan.data_parallel, plan.pipeline_parallel):
        yield Cell.of(degree)
    yield Cell.of(plan.recompute)
    yield seconds(plan.step_time_s)
    yield Cell(text=f"{plan.tokens_per_s:,.0f}", value=plan.tokens_per_s)
    yield percent(plan.mfu)


def operator_bars(document: CodesignResult) -> BarChart:
    """The time of a block by what binds it."""
    totals: dict[str, float] = {}
    for one in document.operators:
        totals[one.bound] = totals.get(one.bound, 0.0) + one.seconds
    parts = tuple(
        Part(
            kind=bound if bound in _BOUNDS else "opaque",
            label=f"bound by {_BOUNDS.get(bound, bound)}",
            amount=spent_s,
            text=format_seconds(spent_s),
        )
        for bound, spent_s in sorted(totals.items(), key=lambda item: -item[1])
    )
    bar = Bar(label="", parts=parts, total=format_seconds(sum(totals.values())))
    return BarChart(title="Time of a block by what binds it", bars=(bar,), label="")


def operator_table(document: CodesignResult) -> Table:
    """Every operator with the share of its peak that it reaches."""
    rows = tuple(
        (
            Cell.of(one.operator.replace("_", " ")),
            Cell.of(one.phase),
            seconds(one.seconds),
            percent(one.share),
            Cell.of(_BOUNDS.get(one.bound, one.bound)),
            percent(one.utilisation),
        )
        for one in sorted(document.operators, key=lambda one: -one.seconds)
    )
    return Table(
        title="Operators",
        columns=(
            Column(title="operator", key="operator", is_number=False),
            Column(title="phase", key="phase", is_number=False),
            Column(title="time", key="seconds"),
            Column(title="of the block", key="share"),
            Column(title="bound by", key="bound", is_number=False),
            Column(title="utilisation", key="utilisation"),
        ),
        rows=rows,
    )


def front_scatter(document: CodesignResult) -> Scatter:
    """Throughput against area; the design of the page stands out."""
    best = document.best
    points = [_point(document, point) for point in document.pareto]
    points.sort(key=lambda point: not point.is_winner)
    known = best is not None and any(point.is_winner for point in points)
    made = lay_out(
        points,
        x_unit=1.0,
        y_unit=1e6,
        title="Throughput against area",
        x_title="area, mm²",
        y_title="tokens per second, millions",
    )
    return replace(
        upside_down(made),
        winner_text="the design of this page" if known else "the first of the front",
        front_text="none is smaller and faster",
        beaten_text="on the front for its power or energy",
    )


def _point(document: CodesignResult, point: FrontPoint) -> Point:
    best = document.best
    is_best = best is not None and (point.area_mm2, point.tokens_per_s) == (
        best.area_mm2,
        best.tokens_per_s,
    )
    facts = [
        ("tokens/s", f"{point.tokens_per_s:,.0f}"),
        ("area", f"{point.area_mm2:.2f} mm²"),
        ("power", f"{point.power_watts:.0f} W"),
        ("energy per token", f"{point.energy_per_token_j:.4g} J"),
    ]
    if best is not None and not is_best:
        facts.append(("throughput", f"{point.tokens_per_s / best.tokens_per_s - 1:+.1%}"))
        facts.append(("area beside it", f"{point.area_mm2 / best.area_mm2 - 1:+.1%}"))
    return Point(
        name=point.architecture,
        x=point.area_mm2,
        y=-point.tokens_per_s,
        x_text=f"{point.area_mm2:.2f} mm²",
        y_text=f"{point.tokens_per_s:,.0f} tokens/s",
        facts=tuple(facts),
        is_winner=is_best,
    )


def real_chips(document: CodesignResult) -> Table:
    """Accelerators of the catalog on the same job."""
    best = document.best.tokens_per_s if document.best else 0.0
    rows = tuple(
        (
            Cell.of(chip.name),
            Cell(text=f"{chip.peak_flops_per_s / 1e12:,.4g} TFLOP/s", value=chip.peak_flops_per_s),
            Cell.of("does not fit")
            if chip.tokens_per_s is None
            else Cell(text=f"{chip.tokens_per_s:,.0f}", value=chip.tokens_per_s),
            Cell.of("")
            if chip.tokens_per_s is None or not best
            else Cell(text=f"{chip.tokens_per_s / best:.3g} ×", value=chip.tokens_per_s / best),
            Cell.of(chip.source),
        )
        for chip in document.real_chips
    )
    return Table(
        title="The same models, network and number of devices",
        columns=(
            Column(title="chip", key="name", is_number=False),
            Column(title="peak", key="peak_flops_per_s"),
            Column(title="tokens/s", key="tokens_per_s"),
            Column(title="of this design", key="ratio"),
            Column(title="known from", key="source", is_number=False),
        ),
        rows=rows,
    )


# The page of a chip designed for models: its floor, its plans, the front, what binds it
# --------------------------------------------------------------------------------------

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
    return lay_out_areas(parts, title="Floor area", note=note)


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
