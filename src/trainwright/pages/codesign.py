"""The page of a chip designed for models: its floor, its plans, the front, what binds it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from trainwright.chips.room_answer import room_view
from trainwright.chips.tables import (
    BOUNDS,
    chip_rows,
    chip_table,
    of_area,
    operator_table,
    plan_table,
    process_row,
    sensitivity_table,
)
from trainwright.chips.workload import end_words
from trainwright.documents.view import Facts, Notes, Table
from trainwright.formats import codesign_document
from trainwright.pages.blocks import (
    Bar,
    BarChart,
    Card,
    FloorPlan,
    Part,
    Point,
    Scatter,
    Section,
    Verdict,
    card,
    folded,
    lay_out,
    lay_out_areas,
    proved_state,
    section,
    upside_down,
)
from trainwright.pages.subject import (
    Content,
    Figure,
    Subject,
    figures,
    provenance_section,
    reproduce_section,
)
from trainwright.plans.status import Status
from trainwright.units import MIB, format_count, format_percent_up, format_seconds

# Blocks about a designed chip: what was searched, plans, operators, the front, other chips
# -----------------------------------------------------------------------------------------


def visited_bar(document: codesign_document.CodesignResult) -> BarChart:
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


def operator_bars(document: codesign_document.CodesignResult) -> BarChart:
    """The time of a block by what binds it."""
    totals: dict[str, float] = {}
    for one in document.operators:
        totals[one.bound] = totals.get(one.bound, 0.0) + one.seconds
    parts = tuple(
        Part(
            kind=bound if bound in BOUNDS else "opaque",
            label=f"bound by {BOUNDS.get(bound, bound)}",
            amount=spent_s,
            text=format_seconds(spent_s),
        )
        for bound, spent_s in sorted(totals.items(), key=lambda item: -item[1])
    )
    bar = Bar(label="", parts=parts, total=format_seconds(sum(totals.values())))
    return BarChart(title="Time of a block by what binds it", bars=(bar,), label="")


def front_scatter(document: codesign_document.CodesignResult) -> Scatter:
    """Throughput against area; the design of the page stands out."""
    best = document.best
    points = [_point(document, point) for point in document.pareto]
    points.sort(key=lambda point: not point.is_winner)
    known = best is not None and any(point.is_winner for point in points)
    made = lay_out(
        points,
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


def _point(
    document: codesign_document.CodesignResult, point: codesign_document.FrontPoint
) -> Point:
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


# The page of a chip designed for models: its floor, its plans, the front, what binds it
# --------------------------------------------------------------------------------------

_FLOOR: Final = {
    "tensor arrays": "arrays",
    "tensor buffers": "array-buffers",
    "vector lanes": "lanes",
    "vector buffers": "lane-buffers",
    "global buffer": "global",
}


def codesign_content(subject: Subject[codesign_document.CodesignResult]) -> Content:
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


def _figures(document: codesign_document.CodesignResult) -> Iterator[Figure]:
    best = document.best
    if best is not None:
        yield from figures(
            ("tokens_per_s", "tokens/s", best.tokens_per_s, f"{best.tokens_per_s:,.0f}"),
            ("area_mm2", "area", best.area_mm2, f"{best.area_mm2:.2f} mm²"),
            ("power_watts", "power", best.power_watts, f"{best.power_watts:.0f} W"),
        )


def _sections(subject: Subject[codesign_document.CodesignResult]) -> Iterator[Section]:
    document, best = subject.document, subject.document.best
    yield section(
        "summary", "The answer", _answer(document), label="Answer", cards=_cards(document)
    )
    if best is None:
        yield _why(document)
    else:
        around = Facts(title="Cores and what surrounds them", rows=tuple(chip_rows(best)))
        yield section("chip", "The chip", _floor(best), around)
        yield section("plan", "How it trains", plan_table(document), label="Plans")
    if len(document.pareto) > 1:
        yield section("front", "The front", front_scatter(document))
    if best is not None:
        yield _why(document)
    if document.operators:
        used = (operator_bars(document), operator_table(document))
        yield folded(section("utilisation", "What its units do in one block", *used))
    if document.real_chips:
        chips = chip_table(document)
        yield folded(section("chips", "Beside real chips", chips, label="Real chips"))
    yield provenance_section(subject, _assumptions(document))
    yield reproduce_section(subject, tuple(job.model for job in document.request.jobs))


def _answer(document: codesign_document.CodesignResult) -> Verdict:
    """The best design and what it reaches."""
    best = document.best
    if best is None:
        why = document.infeasible_because or "no design was found in time"
        none = document.status is Status.INFEASIBLE
        return Verdict(state="Nothing fits" if none else "No design yet", said=why, tone="bad")
    chip = best.architecture
    state, tone = proved_state(document.status, document.gap, "A design")
    said = (
        f"{chip.num_tc} tensor cores of {chip.width} x {chip.depth} and {chip.num_vc} vector cores "
        f"with {chip.glb_bytes / MIB:g} MiB between them, {best.area_mm2:.2f} mm² of "
        f"{best.area_scope.replace('+', ' and ')}. {document.request.num_devices} of them train "
        f"{best.tokens_per_s:,.0f} tokens per second at {best.power_watts:.0f} W each."
    )
    return Verdict(state=state, said=said, tone=tone)


def _cards(document: codesign_document.CodesignResult) -> Iterator[Card]:
    best = document.best
    if best is None:
        yield card("status", str(document.status), tone="bad")
        return
    per_watt = f"{best.tokens_per_s_per_watt:,.4g} per watt"
    yield card("tokens per second", f"{best.tokens_per_s:,.0f}", per_watt)
    yield card("area", f"{best.area_mm2:.2f} mm²", best.area_scope)
    peak = best.peak_power_watts
    note = "" if peak is None else f"{peak:.0f} W in its hungriest operator"
    yield card("power of a chip", f"{best.power_watts:.0f} W", note)
    yield card("energy per token", f"{best.energy_per_token_j:.4g} J", "of all chips")
    flops = f"{best.architecture.peak_flops_per_s / 1e12:.4g} TFLOP/s"
    yield card("peak", flops, "dense products")
    note = f"{document.visited:,} of {document.searched:,} designs placed, the rest excluded"
    if document.status is Status.OPTIMAL:
        yield card("optimality", "proved", note, "good")
    else:
        yield card("optimality gap", f"≤ {format_percent_up(document.gap or 0.0)}", note)


def _why(document: codesign_document.CodesignResult) -> Section:
    blocks: list[object] = [visited_bar(document)]
    if document.infeasible_because:
        blocks.append(Notes(title="Why nothing fits", lines=(document.infeasible_because,)))
    if document.sensitivity:
        blocks.append(sensitivity_table(document))
        blocks += [Notes(title="Area and cores", lines=(line,)) for line in of_area(document)]
    blocks += _ends(document.at_ends)
    title = "Why it is not faster" if document.best else "Why nothing fits"
    return section("why", title, *blocks)


def _ends(found: tuple[codesign_document.EndRecord, ...]) -> Iterator[Notes]:
    if found:
        lines = tuple(map(end_words, found))
        yield Notes(title="Ends of ranges", lines=lines)


def _floor(best: codesign_document.DesignRecord) -> FloorPlan:
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


def _assumptions(document: codesign_document.CodesignResult) -> dict[str, str]:
    rules = document.request.rules
    found = {
        "space": f"sha256 {document.space_sha256}",
        "area at most": f"{rules.largest_um2 / 1e6:.4g} mm²",
        "objective": document.objective,
        **dict(process_row(document.request)),
        **{name.replace("_", " "): f"{v:.4g}" for name, v in (document.request.die or {}).items()},
    }
    energy = document.request.energy
    return found | {name.replace("_", " "): f"{value:.4g}" for name, value in energy.items()}


# The page of a machine room: whole systems, the best of them with its proof
# --------------------------------------------------------------------------

_NEAR: Final = 4.0  # times the best's time and cost, as far as they are drawn
_AIMS: Final = {
    "seconds_per_token": ("fastest", "seconds"),
    "dollars_per_token": ("cheapest", "dollars"),
    "joules_per_token": ("most frugal", "joules"),
}


# The tables of a room, and the sections that they stand in.
_ROOM_SECTIONS: Final = {
    "Plans": ("plan", "How it trains"),
    "What the next value buys": ("next", "What more would buy"),
    "The front": ("front", "Systems that none beats"),
}


def room_content(subject: Subject[codesign_document.RoomResult]) -> Content:
    """Everything the page says about the best system of a machine room."""
    document, best = subject.document, subject.document.best
    models = ", ".join(job.model.name for job in document.request.chips.jobs)
    shown = () if best is None else _system_figures(best)
    return Content(
        title=f"A machine room for {models}",
        subtitle=f"Aim: {document.request.aim} of a token · {document.systems:,} systems, "
        f"{document.priced:,} of them priced in full",
        figures=tuple(figures(*shown)),
        sections=tuple(_room_sections(subject)),
    )


def _system_figures(
    best: codesign_document.SystemRecord,
) -> tuple[tuple[str, str, float, str], ...]:
    speed, cost = 1 / best.seconds_per_token, best.dollars_per_token * 1e9
    return (
        ("tokens_per_s", "tokens per second", speed, f"{speed:,.0f}"),
        ("dollars_per_token", "dollars per 1e9 tokens", cost / 1e9, f"{cost:,.4g}"),
        ("joules_per_token", "J per token", best.joules_per_token, f"{best.joules_per_token:.4g}"),
        ("dollars", "price, dollars", best.dollars, f"{best.dollars:,.0f}"),
        ("watts", "power, kW", best.watts, f"{best.watts / 1e3:,.4g}"),
        ("silicon_mm2", "dies, mm²", best.silicon_mm2, f"{best.silicon_mm2:,.0f}"),
    )


def _room_sections(subject: Subject[codesign_document.RoomResult]) -> Iterator[Section]:
    document, best = subject.document, subject.document.best
    cards = () if best is None else _system_figures(best)
    yield section(
        "summary",
        "The answer",
        _room_answer(document),
        *((_time_parts(document),) if document.step_parts else ()),
        label="Answer",
        cards=(card(title, text) for _, title, _, text in cards),
    )
    _, *blocks = room_view(document)
    for block in blocks:
        if isinstance(block, Facts):
            yield section("system", "The system", replace(block, title=""))
        elif isinstance(block, Table) and block.title in _ROOM_SECTIONS:
            yield section(*_ROOM_SECTIONS[block.title], block)
    if document.at_ends:
        yield section("ends", "Where ranges end", *_ends(document.at_ends))
    if len([one for one in document.front if best and _is_near(one, best)]) > 1:
        yield section("cost", "Cost against time", _room_scatter(document))
    yield provenance_section(subject, _prices(document))
    yield reproduce_section(subject, tuple(job.model for job in document.request.chips.jobs))


def _room_answer(document: codesign_document.RoomResult) -> Verdict:
    best = document.best
    if best is None:
        none = document.status is Status.INFEASIBLE
        said = f"of {document.systems:,} systems none keeps the budgets and holds the models."
        return Verdict(state="Nothing fits" if none else "No system yet", said=said, tone="bad")
    superlative, unit = _AIMS[document.objective]
    state, tone = proved_state(document.status, document.gap, "A system")
    each = "" if document.value is None else f", {document.value * 1e9:.4g} {unit} per 1e9 tokens"
    chips, stacks = format_count(best.devices, "chip"), format_count(best.stacks, "stack")
    said = (
        f"the {superlative} of {document.systems:,} systems has {chips} with {stacks} of "
        f"{best.stack_gib:g} GiB each, in domains of {best.node_devices}{each}. "
        f"It costs {best.dollars:,.0f} dollars and draws {best.watts / 1e3:,.4g} kW."
    )
    if document.front_epsilon is not None:
        share = format_percent_up(document.front_epsilon)
        said += f" No system beats all {len(document.front)} of the front by more than {share}."
    return Verdict(state=state, said=said, tone=tone)


def _time_parts(document: codesign_document.RoomResult) -> BarChart:
    """Where the first model's step goes, by what binds it."""
    totals: dict[str, float] = {}
    for one in document.step_parts:
        totals[one.bound] = totals.get(one.bound, 0.0) + one.seconds
    kinds = {"tensor links": "tensor", "waiting": "bubble"} | {name: name for name in BOUNDS}
    parts = tuple(
        Part(
            kind=kinds.get(bound, "opaque"),
            label=f"bound by {BOUNDS[bound]}" if bound in BOUNDS else bound,
            amount=spent_s,
            text=format_seconds(spent_s),
        )
        for bound, spent_s in sorted(totals.items(), key=lambda item: -item[1])
    )
    bar = Bar(label="", parts=parts, total=format_seconds(sum(totals.values())))
    return BarChart(title="Where the first model's step goes", bars=(bar,), label="")


def _room_scatter(document: codesign_document.RoomResult) -> Scatter:
    """Dollars against seconds of a token; power is the third axis of the front.

    Its frugal end takes thousands of times as long: what is far away stands in the table alone.
    """
    best = document.best
    near = [one for one in document.front if best is None or _is_near(one, best)]
    points = [
        Point(
            name=f"{format_count(one.devices, 'chip')}, {format_count(one.stacks, 'stack')} each, "
            f"domains of {one.node_devices}",
            x=one.seconds_per_token * 1e6,
            y=one.dollars_per_token * 1e9,
            x_text=f"{1 / one.seconds_per_token:,.0f} tokens/s",
            y_text=f"{one.dollars_per_token * 1e9:,.4g} dollars for 1e9 tokens",
            facts=tuple((title, text) for _, title, _, text in _system_figures(one)),
            is_winner=one == best,
        )
        for one in sorted(near, key=lambda one: one != best)
    ]
    made = lay_out(
        points,
        y_unit=1.0,
        title="Cost against time of a token",
        x_title="time of a token, µs",
        y_title="dollars for 1e9 tokens",
    )
    known = any(point.is_winner for point in points)
    return replace(
        made,
        winner_text="the system of this page" if known else "the first of the front",
        front_text="none is faster and cheaper",
        beaten_text="on the front for its power",
    )


def _is_near(one: codesign_document.SystemRecord, best: codesign_document.SystemRecord) -> bool:
    return (
        one.seconds_per_token <= _NEAR * best.seconds_per_token
        and one.dollars_per_token <= _NEAR * best.dollars_per_token
    )


def _prices(document: codesign_document.RoomResult) -> dict[str, str]:
    room, chips = document.request.room, document.request.chips
    figures = {**room.prices, **room.stack, **(chips.die or {}), **chips.energy}
    told = {name.replace("_", " "): f"{value:.4g}" for name, value in figures.items()}
    return {**dict(process_row(chips)), "memory": room.memory, **told}
