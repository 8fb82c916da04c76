"""The best design, its plans, what limits it, and the front, as tables."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from trainwright.chips.workload import end_words
from trainwright.documents import view
from trainwright.errors import InvalidInput, MissingExtra
from trainwright.formats import codesign_document
from trainwright.plans.plan import DEFAULT_SCHEDULE
from trainwright.plans.status import Status
from trainwright.units import GIB, format_bandwidth, format_bytes, format_seconds

_SHOWN = 12


def codesign_view(found: codesign_document.CodesignResult) -> Iterator[view.Line]:
    """Summary, then details as far as they were worked out."""
    yield view.Facts(title="co-design", rows=tuple(_summary(found)))
    if found.best is None:
        return
    yield view.Facts(title="best design", rows=tuple(_design(found.best)))
    yield plan_table(found)
    if found.operators:
        yield operator_table(found)
    yield from map(_layer, found.layer_schedules)
    if found.sensitivity:
        yield sensitivity_table(found)
        yield from of_area(found)
    yield from map(end_words, found.at_ends)
    if found.real_chips:
        yield chip_table(found)
    if found.pareto:
        yield _front(found)


def stage_view(found: codesign_document.StageResult) -> Iterator[view.Facts]:
    """What one stage wrote."""
    counts = ((name, f"{count:,}") for name, count in found.counts.items())
    rows = (("file", found.file), *counts, ("CPU", f"{found.stage_s:.2f} s"))
    yield view.Facts(title=f"stage {found.stage}", rows=rows)


def _summary(found: codesign_document.CodesignResult) -> Iterator[tuple[str, str]]:
    yield "status", str(found.status)
    if found.infeasible_because:
        yield "because", found.infeasible_because
    yield "objective", found.objective
    counted = f"{found.candidates:,} designs"
    if found.searched != found.candidates:
        counted += f" x {found.searched // found.candidates} variants"
    yield "candidates", counted
    share = f"{found.visited:,} placed ({found.visited_share:.2%})"
    levels = ", ".join(f"{count:,} by {name}" for name, count in found.pruned_by.items() if count)
    yield "visited", f"{share}; pruned {levels or 'none'}"
    spent = f"{found.search_s:.2f} s search"
    if found.front_s is not None:
        spent += f", {found.front_s:.2f} s front"
    yield "CPU", spent
    if found.recheck is not None:
        checked = f"{found.recheck.confirmed:,} of {found.recheck.sampled:,} pruned designs"
        if found.recheck.figures:
            checked += f", {found.recheck.figures:,} figures of the document are the same"
        yield "rechecked", checked
    yield from process_row(found.request)
    losses = found.request.losses
    if losses is not None:
        arrays, memory = (losses.value(name, 1.0) for name in ("gemm_max", "memory_max"))
        reached = f"arrays reach {arrays:.0%} of their clock, memory {memory:.0%}"
        like = found.request.like
        whose = "a device nobody measured" if like is None else f"a new device like {like}"
        nearer = "" if like else "; --like tpu, ampere or hopper is nearer to measured chips"
        yield "losses", f"as of {whose} under {losses.line} software: {reached}{nearer}"
        slow = f"{losses.low_ratio:.2f} to {losses.high_ratio:.2f}"
        yield "range", f"nine of ten measured steps took {slow} times what this predicts"
    for warning in found.warnings:
        yield "warning", warning


def process_row(request: codesign_document.CodesignRequest) -> Iterator[tuple[str, str]]:
    """What chips are made in, and the voltage of their clocks."""
    made = request.technology
    if made is not None and made.volts is not None:
        yield "process", f"{request.process} at {made.volts:g} V"
    elif made is not None and made.curve is not None:
        usual = f"{made.curve.volts:g} V at {made.curve.clock_hz / 1e9:g} GHz"
        yield "process", f"{request.process}, {usual}, more for faster clocks"


def core_rows(chip: codesign_document.ArchitectureRecord) -> Iterator[tuple[str, str]]:
    """The cores of a chip."""
    yield "tensor cores", f"{chip.num_tc} x {chip.width} x {chip.depth}"
    yield "vector cores", f"{chip.num_vc} x {chip.width_vc} lanes"
    yield "global buffer", format_bytes(chip.glb_bytes)
    yield "peak", f"{chip.peak_flops_per_s / 1e12:.4g} TFLOP/s"


def chip_rows(best: codesign_document.DesignRecord) -> Iterator[tuple[str, str]]:
    """The cores, and what surrounds them."""
    chip, around = best.architecture, best.architecture.surroundings
    yield from core_rows(chip)
    memory = format_bytes(around.memory_bytes)
    pace = format_bandwidth(around.memory_bandwidth_bytes_per_s)
    links = format_bandwidth(around.link_bandwidth_bytes_per_s)
    clock = f"{around.clock_hz / 1e9:g} GHz, {chip.precision}"
    yield "memory", f"{memory} at {pace}, links {links}, {clock}"
    if around.node_devices > 1:
        inside = format_bandwidth(around.node_bandwidth_bytes_per_s)
        yield "node", f"{around.node_devices} chips with {inside} each among them"
    if best.die_area_mm2 is not None:
        each = best.cost_per_good_die
        cost = "" if each is None else f", {each:.0f} dollars a good die"
        yield "die", f"{best.die_area_mm2:.2f} mm²{cost}"
    if best.chip_cost_per_token is not None:
        each = best.chip_cost_per_token * 1e9
        yield "dies", f"{each:.4g} dollars per 1e9 tokens, over their lifetime"


def _design(best: codesign_document.DesignRecord) -> Iterator[tuple[str, str]]:
    yield from chip_rows(best)
    yield "area", f"{best.area_mm2:.2f} mm2 ({best.area_scope})"
    power = f"{best.power_watts:.0f} W a chip over a step"
    if best.peak_power_watts is not None:
        power += f", {best.peak_power_watts:.0f} W in its hungriest operator"
    yield "power", power
    yield "energy", f"{best.energy_per_token_j:.4g} J a token, all chips"
    yield "throughput", f"{best.tokens_per_s:,.0f} tokens/s"


def plan_table(found: codesign_document.CodesignResult) -> view.Table:
    """The plan of each model, and published strategies on the same design."""
    assert found.best is not None
    return view.table_of(
        "Plans",
        (
            view.words("model"),
            view.column("tensor", "tensor_parallel", "t"),
            view.column("data", "data_parallel", "d"),
            view.column("pipeline", "pipeline_parallel", "p"),
            view.column("microbatches", "num_microbatches"),
            view.words("schedule"),
            view.words("recompute"),
            view.column("step", "step_time_s"),
            view.column("tokens/s", "tokens_per_s"),
            view.column("MFU", "mfu"),
        ),
        (
            *(
                (
                    plan.model,
                    *(plan.tensor_parallel, plan.data_parallel, plan.pipeline_parallel),
                    plan.num_microbatches,
                    plan.schedule,
                    plan.recompute,
                    view.seconds(plan.step_time_s),
                    view.number(plan.tokens_per_s),
                    view.percent(plan.mfu),
                )
                for plan in found.best.plans
            ),
            *(
                (
                    f"{fixed.model}, published",
                    *(fixed.tensor_parallel, fixed.data_parallel, fixed.pipeline_parallel),
                    "",
                    DEFAULT_SCHEDULE,
                    fixed.recompute or fixed.reason or "",
                    view.seconds(fixed.step_time_s),
                    view.number(fixed.tokens_per_s),
                    "",
                )
                for fixed in found.fixed_strategies
            ),
        ),
        caption="plans",
    )


def operator_table(found: codesign_document.CodesignResult) -> view.Table:
    """Every operator with the share of its peak that it reaches; a terminal shows the longest."""
    return view.table_of(
        "Operators",
        (
            view.words("operator"),
            view.words("phase"),
            view.column("time", "seconds"),
            view.column("of the block", "share", "share"),
            view.words("bound by", "bound"),
            view.column("utilisation"),
            view.words("stationary", "dataflow"),
        ),
        (
            (
                use.operator.replace("_", " "),
                use.phase.replace("_", " "),
                view.seconds(use.seconds),
                view.percent(use.share),
                BOUNDS.get(use.bound, use.bound),
                view.percent(use.utilisation),
                use.dataflow,
            )
            for use in sorted(found.operators, key=lambda use: -use.seconds)
        ),
        caption="one block of the first model",
        brief=range(min(_SHOWN, len(found.operators))),
    )


BOUNDS: Final = {
    "mac": "multipliers",
    "vector": "vector lanes",
    "hbm": "memory",
    "glb": "global buffer",
    "launch": "starting it",
}


def _layer(found: codesign_document.LayerScheduleRecord) -> str:
    saved = 1 - found.seconds / found.sequential_s if found.sequential_s > 0 else 0.0
    saved = round(saved, 3) + 0.0  # no minus before a zero
    proof = "optimal" if found.status is Status.OPTIMAL else f"gap <= {found.gap:.1%}"
    beside = f"{found.num_side_by_side} of {found.num_operators} kernels on a core or the link"
    return (
        f"{found.direction} on the cores: {format_seconds(found.seconds)} with {beside}, "
        f"{saved:.1%} less than one after another ({found.method}, {proof})"
    )


_SUMMED: Final = (
    "clock_hz",
    "memory_bytes",
    "memory_bandwidth_bytes_per_s",
    "link_bandwidth_bytes_per_s",
    "glb_bytes_per_cycle",
)
_RESOURCES: Final = {
    "clock_hz": "clock",
    "memory_bytes": "memory",
    "memory_bandwidth_bytes_per_s": "memory bandwidth",
    "link_bandwidth_bytes_per_s": "link bandwidth",
    "glb_bytes_per_cycle": "bandwidth of the global buffer",
    "num_tc": "tensor cores",
    "num_tc+port": "tensor cores and that bandwidth",
    "num_vc": "vector cores",
    "glb_mib": "global buffer",
    "area": "area",
    "interplay": "their interplay",
    "surroundings": "all of these at once",
}


def sensitivity_table(found: codesign_document.CodesignResult) -> view.Table:
    """What more of each resource would buy, most first in each of two parts.

    Clock, memory and bandwidths with their interplay add up to all of them at once; below stand
    more cores and buffers, and more area.
    """
    gains = sorted(found.sensitivity, key=lambda one: -one.throughput_gain)
    rows = [one for one in gains if one.resource in _SUMMED]
    for whole in (one for one in gains if one.resource == "surroundings"):
        beyond = whole.throughput_gain - sum(one.throughput_gain for one in rows)
        rows += [replace(whole, resource="interplay", throughput_gain=beyond, fits=True), whole]
    rows += [one for one in gains if one not in rows]
    return view.table_of(
        "What more would buy",
        (
            view.words("more of", "resource"),
            view.column("factor"),
            view.column("throughput", "throughput_gain"),
            view.words("with another design", "design"),
        ),
        (
            (
                _RESOURCES.get(gain.resource, gain.resource.replace("_", " ")),
                view.number(gain.factor, "g"),
                view.percent(gain.throughput_gain, digits=2, sign=True),
                gain.design or ("" if gain.fits else "over --tdp"),
            )
            for gain in rows
        ),
        caption="what more would buy",
    )


def of_area(found: codesign_document.CodesignResult) -> Iterator[str]:
    """Why more area gains more than more cores, where it does."""
    gains = {gain.resource: gain for gain in found.sensitivity}
    area, cores = gains.get("area"), gains.get("num_tc")
    if area is None or cores is None or not area.design:
        return
    if area.throughput_gain > cores.throughput_gain:
        yield (
            "area gains more than cores, for it may choose another design: in this one all cores "
            "share one port of the global buffer, which more of them do not widen"
        )


def _own_chip(found: codesign_document.CodesignResult) -> tuple[object, ...]:
    """The design as the first row beside chips of the catalog."""
    best, request = found.best, found.request
    assert best is not None
    around, plan = best.architecture.surroundings, best.plans[0]
    return (
        "this design",
        view.Cell(text=f"{best.architecture.peak_flops_per_s / 1e12:,.4g}"),
        request.process or "22nm",
        view.number(best.die_area_mm2, ",.0f"),
        view.number(best.peak_power_watts),
        view.number(best.peak_power_watts),
        view.number(around.memory_bytes / GIB),
        format_bandwidth(around.memory_bandwidth_bytes_per_s),
        *(plan.tensor_parallel, plan.data_parallel, plan.pipeline_parallel),
        view.number(plan.tokens_per_s),
        *("1.00",) * 3,
        "its die estimated as those of real chips, watts of its hungriest operator",
    )


def chip_table(found: codesign_document.CodesignResult) -> view.Table:
    """Accelerators of the catalog on the same job, after the design itself."""
    own = found.best.plans[0].tokens_per_s if found.best else math.inf
    return view.table_of(
        "The same models, network and number of devices",
        (
            view.words("chip", "name"),
            view.column("peak TFLOP/s", "peak_flops_per_s", "TFLOP/s"),
            view.words("process"),
            view.column("die mm²", "die_area_mm2", "mm²"),
            view.column("W", "power_watts"),
            view.column("this one there W", "design_watts", "W there"),
            view.column("memory GiB", "memory_bytes", "GiB"),
            view.words("memory bandwidth", on="page"),
            view.column("tensor", "tensor_parallel", on="page"),
            view.column("data", "data_parallel", on="page"),
            view.column("pipeline", "pipeline_parallel", on="page"),
            view.column("tokens/s", "tokens_per_s"),
            view.column("of this design", "ratio", "of this"),
            view.column("at equal area", "ratio_at_equal_area", "by mm²"),
            view.column("and process", "ratio_at_equal_process", "process"),
            view.words("known from", "source", on="page"),
        ),
        (
            *((_own_chip(found),) if found.best else ()),
            *(
                (
                    chip.name,
                    view.Cell(
                        text=f"{chip.peak_flops_per_s / 1e12:,.4g}", value=chip.peak_flops_per_s
                    ),
                    chip.process or "unknown",
                    view.number(chip.die_area_mm2, ",.0f") if chip.die_area_mm2 else "unknown",
                    view.number(chip.power_watts) if chip.power_watts else "unknown",
                    view.number(chip.design_watts) if chip.design_watts else "unknown",
                    view.number((chip.memory_bytes or 0.0) / GIB),
                    format_bandwidth(chip.memory_bandwidth_bytes_per_s or 0.0),
                    *(chip.tensor_parallel, chip.data_parallel, chip.pipeline_parallel),
                    "does not fit" if chip.tokens_per_s is None else view.number(chip.tokens_per_s),
                    view.number(
                        None if chip.tokens_per_s is None else chip.tokens_per_s / own, ".2f"
                    ),
                    view.number(chip.ratio_at_equal_area, ".2f"),
                    view.number(chip.ratio_at_equal_process, ".2f"),
                    "; ".join(filter(None, (chip.source, chip.die_source))),
                )
                for chip in found.real_chips
            ),
        ),
        caption="real chips on the first model, also by area of the die and in one process; W is a "
        "chip's limit and what the design's hungriest operator draws, in that process in the next",
    )


def _front(found: codesign_document.CodesignResult) -> view.Table:
    step = max(1, len(found.pareto) // _SHOWN)
    return view.table_of(
        "The front",
        (
            view.words("design", "architecture"),
            view.column("tokens/s", "tokens_per_s"),
            view.column("mm²", "area_mm2"),
            view.column("W", "power_watts"),
            view.column("J/token", "energy_per_token_j"),
        ),
        (
            (
                point.architecture,
                view.number(point.tokens_per_s),
                view.number(point.area_mm2, ".1f"),
                view.number(point.power_watts),
                view.number(point.energy_per_token_j, ".4g"),
            )
            for point in found.pareto[::step][:_SHOWN]
        ),
        caption=f"front, {_SHOWN} of {len(found.pareto)} designs",
    )


# The front, the floor area and the operators of the best design as a figure (extra `[plot]`)
# -------------------------------------------------------------------------------------------

_BOUND_COLOURS = {"mac": "C0", "vector": "C1", "hbm": "C2", "glb": "C3", "launch": "C7"}


def plot_codesign(found: codesign_document.CodesignResult, path: Path) -> None:
    """Write the figure in the format of the file's ending.

    Raises `MissingExtra` without matplotlib, `InvalidInput` for an ending it cannot write.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("drawing designs needs matplotlib", extra="plot") from None
    figure = Figure(figsize=(14, 4.5), layout="constrained")
    front, area, operators = figure.subplots(1, 3)
    _draw_front(front, figure, found)
    _area(area, found)
    _draw_operators(operators, found)
    try:
        figure.savefig(path)
    except ValueError as error:
        raise InvalidInput.of("figure", f"cannot be written: {error}") from None


def _draw_front(axes: Any, figure: Any, found: codesign_document.CodesignResult) -> None:
    points = found.pareto
    axes.set(title="front", xlabel="area (mm2)", ylabel="tokens/s", yscale="log")
    if points:
        marks = axes.scatter(
            [p.area_mm2 for p in points],
            [p.tokens_per_s for p in points],
            c=[p.power_watts for p in points],
            s=14,
        )
        figure.colorbar(marks, ax=axes, label="W a chip")
    assert found.best is not None
    axes.plot(found.best.area_mm2, found.best.tokens_per_s, "k*", markersize=10)


def _area(axes: Any, found: codesign_document.CodesignResult) -> None:
    assert found.best is not None
    parts = found.best.area_parts_mm2
    axes.barh(list(parts), list(parts.values()))
    axes.set(title=f"{found.best.area_mm2:.1f} mm2, {found.best.area_scope}", xlabel="mm2")


def _draw_operators(axes: Any, found: codesign_document.CodesignResult) -> None:
    longest = sorted(found.operators, key=lambda use: -use.seconds)[:12][::-1]
    labels = [f"{use.operator}, {use.phase.replace('_', ' ')}" for use in longest]
    colours = [_BOUND_COLOURS[use.bound] for use in longest]
    axes.barh(labels, [use.utilisation for use in longest], color=colours)
    axes.set(title="utilisation of one block's operators", xlim=(0, 1))
    for name, colour in _BOUND_COLOURS.items():
        axes.barh([labels[0]] if labels else [""], [0], color=colour, label=name)
    axes.legend(
        title="bound by", fontsize="small", ncols=5, loc="upper center", bbox_to_anchor=(0.3, -0.1)
    )
