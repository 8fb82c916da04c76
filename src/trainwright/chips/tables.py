"""The best design, its plans, what limits it, and the front, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainwright.documents.view import add_row, table
from trainwright.errors import InvalidInput, MissingExtra
from trainwright.plans.plan import DEFAULT_SCHEDULE
from trainwright.plans.status import Status
from trainwright.units import format_bandwidth, format_bytes, format_seconds

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from trainwright.formats.codesign_document import (
        CodesignResult,
        DesignRecord,
        LayerScheduleRecord,
        StageResult,
    )

_SHOWN = 12


def codesign_report(found: CodesignResult) -> RenderableType:
    """Summary, then details as far as they were worked out."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [_summary(found)]
    if found.best is None:
        return Group(*parts)
    parts += [_design(found.best), _plans(found)]
    if found.operators:
        parts.append(_operators(found))
    parts += [Text(_layer(schedule)) for schedule in found.layer_schedules]
    if found.sensitivity:
        parts.append(_sensitivity(found))
    if found.real_chips:
        parts.append(_real(found))
    if found.pareto:
        parts.append(_front(found))
    return Group(*parts)


def stage_report(found: StageResult) -> RenderableType:
    """What one stage wrote."""
    made = table(f"stage {found.stage}", (("", "left"), ("", "left")))
    add_row(made, "file", found.file)
    for name, count in found.counts.items():
        add_row(made, name, f"{count:,}")
    add_row(made, "CPU", f"{found.stage_s:.2f} s")
    return made


def _summary(found: CodesignResult) -> RenderableType:
    made = table("co-design", (("", "left"), ("", "left")))
    add_row(made, "status", str(found.status))
    if found.infeasible_because:
        add_row(made, "because", found.infeasible_because)
    add_row(made, "objective", found.objective)
    counted = f"{found.candidates:,} designs"
    if found.searched != found.candidates:
        counted += f" x {found.searched // found.candidates} variants"
    add_row(made, "candidates", counted)
    share = f"{found.visited:,} placed ({found.visited_share:.2%})"
    levels = ", ".join(f"{count:,} by {name}" for name, count in found.pruned_by.items() if count)
    add_row(made, "visited", f"{share}; pruned {levels or 'none'}")
    spent = f"{found.search_s:.2f} s search"
    if found.front_s is not None:
        spent += f", {found.front_s:.2f} s front"
    add_row(made, "CPU", spent)
    if found.recheck is not None:
        checked = f"{found.recheck.confirmed:,} of {found.recheck.sampled:,} pruned designs"
        add_row(made, "rechecked", checked)
    for warning in found.warnings:
        add_row(made, "warning", warning)
    return made


def _design(best: DesignRecord) -> RenderableType:
    chip = best.architecture
    around = chip.surroundings
    made = table("best design", (("", "left"), ("", "left")))
    add_row(made, "tensor cores", f"{chip.num_tc} x {chip.width} x {chip.depth}")
    add_row(made, "vector cores", f"{chip.num_vc} x {chip.width_vc} lanes")
    add_row(made, "global buffer", format_bytes(chip.glb_bytes))
    add_row(made, "peak", f"{chip.peak_flops_per_s / 1e12:.4g} TFLOP/s")
    memory = format_bytes(around.memory_bytes)
    pace = format_bandwidth(around.memory_bandwidth_bytes_per_s)
    links = format_bandwidth(around.link_bandwidth_bytes_per_s)
    clock = f"{around.clock_hz / 1e9:g} GHz, {best.architecture.precision}"
    add_row(made, "memory", f"{memory} at {pace}, links {links}, {clock}")
    add_row(made, "area", f"{best.area_mm2:.2f} mm2 ({best.area_scope})")
    if best.die_area_mm2 is not None:
        cost = (
            "" if best.cost_per_good_die is None else f", {best.cost_per_good_die:.0f} a good die"
        )
        add_row(made, "die", f"{best.die_area_mm2:.2f} mm2{cost}")
    if best.chip_cost_per_token is not None:
        each = best.chip_cost_per_token * 1e9
        add_row(made, "dies", f"{each:.4g} per 1e9 tokens, over three years of training")
    power = f"{best.power_watts:.0f} W a chip over a step"
    if best.peak_power_watts is not None:
        power += f", {best.peak_power_watts:.0f} W in its hungriest operator"
    add_row(made, "power", power)
    add_row(made, "energy", f"{best.energy_per_token_j:.4g} J a token, all chips")
    add_row(made, "throughput", f"{best.tokens_per_s:,.0f} tokens/s")
    return made


def _plans(found: CodesignResult) -> RenderableType:
    assert found.best is not None
    columns = (
        ("model", "left"),
        ("t", "right"),
        ("d", "right"),
        ("p", "right"),
        ("microbatches", "right"),
        ("schedule", "left"),
        ("recompute", "left"),
        ("step", "right"),
        ("tokens/s", "right"),
        ("MFU", "right"),
    )
    made = table("plans", columns)
    for plan in found.best.plans:
        degrees = (plan.tensor_parallel, plan.data_parallel, plan.pipeline_parallel)
        add_row(
            made,
            plan.model,
            *map(str, degrees),
            str(plan.num_microbatches),
            plan.schedule,
            plan.recompute,
            format_seconds(plan.step_time_s),
            f"{plan.tokens_per_s:,.0f}",
            f"{plan.mfu:.1%}",
        )
    for fixed in found.fixed_strategies:
        add_row(
            made,
            f"{fixed.model}, published",
            str(fixed.tensor_parallel),
            str(fixed.data_parallel),
            str(fixed.pipeline_parallel),
            "",
            DEFAULT_SCHEDULE,
            fixed.recompute or fixed.reason or "",
            "" if fixed.step_time_s is None else format_seconds(fixed.step_time_s),
            "" if fixed.tokens_per_s is None else f"{fixed.tokens_per_s:,.0f}",
            "",
        )
    return made


def _operators(found: CodesignResult) -> RenderableType:
    columns = (
        ("operator", "left"),
        ("phase", "left"),
        ("time", "right"),
        ("share", "right"),
        ("bound by", "left"),
        ("utilisation", "right"),
        ("stationary", "left"),
    )
    made = table("one block of the first model", columns)
    longest = sorted(found.operators, key=lambda use: -use.seconds)[:_SHOWN]
    for use in longest:
        add_row(
            made,
            use.operator,
            use.phase.replace("_", " "),
            format_seconds(use.seconds),
            f"{use.share:.1%}",
            use.bound,
            f"{use.utilisation:.1%}",
            use.dataflow or "",
        )
    return made


def _layer(found: LayerScheduleRecord) -> str:
    saved = 1 - found.seconds / found.sequential_s if found.sequential_s > 0 else 0.0
    saved = round(saved, 3) + 0.0  # no minus before a zero
    proof = "optimal" if found.status is Status.OPTIMAL else f"gap <= {found.gap:.1%}"
    beside = f"{found.num_side_by_side} of {found.num_operators} kernels on a core or the link"
    return (
        f"{found.direction} on the cores: {format_seconds(found.seconds)} with {beside}, "
        f"{saved:.1%} less than one after another ({found.method}, {proof})"
    )


def _sensitivity(found: CodesignResult) -> RenderableType:
    columns = (("more of", "left"), ("factor", "right"), ("throughput", "right"))
    made = table("what more would buy", columns)
    for gain in found.sensitivity:
        add_row(made, gain.resource, f"{gain.factor:g}", f"{gain.throughput_gain:+.2%}")
    return made


def _real(found: CodesignResult) -> RenderableType:
    columns = (
        ("chip", "left"),
        ("peak TFLOP/s", "right"),
        ("t", "right"),
        ("d", "right"),
        ("p", "right"),
        ("tokens/s", "right"),
        ("against best", "right"),
    )
    assert found.best is not None
    made = table("real chips, same network, first model", columns)
    own = found.best.plans[0].tokens_per_s
    for chip in found.real_chips:
        degrees = (chip.tensor_parallel, chip.data_parallel, chip.pipeline_parallel)
        rate = chip.tokens_per_s
        add_row(
            made,
            chip.name,
            f"{chip.peak_flops_per_s / 1e12:.4g}",
            *("" if degree is None else str(degree) for degree in degrees),
            "does not fit" if rate is None else f"{rate:,.0f}",
            "" if rate is None else f"{rate / own:.2f}",
        )
    return made


def _front(found: CodesignResult) -> RenderableType:
    columns = (
        ("design", "left"),
        ("tokens/s", "right"),
        ("mm2", "right"),
        ("W", "right"),
        ("J/token", "right"),
    )
    made = table(f"front, {_SHOWN} of {len(found.pareto)} designs", columns)
    step = max(1, len(found.pareto) // _SHOWN)
    for point in found.pareto[::step][:_SHOWN]:
        add_row(
            made,
            point.architecture,
            f"{point.tokens_per_s:,.0f}",
            f"{point.area_mm2:.1f}",
            f"{point.power_watts:.0f}",
            f"{point.energy_per_token_j:.4g}",
        )
    return made


# The front, the floor area and the operators of the best design as a figure (extra `[plot]`)
# -------------------------------------------------------------------------------------------

_BOUND_COLOURS = {"mac": "C0", "vector": "C1", "hbm": "C2", "glb": "C3", "launch": "C7"}


def plot_codesign(found: CodesignResult, path: Path) -> None:
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


def _draw_front(axes: Any, figure: Any, found: CodesignResult) -> None:
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


def _area(axes: Any, found: CodesignResult) -> None:
    assert found.best is not None
    parts = found.best.area_parts_mm2
    axes.barh(list(parts), list(parts.values()))
    axes.set(title=f"{found.best.area_mm2:.1f} mm2, {found.best.area_scope}", xlabel="mm2")


def _draw_operators(axes: Any, found: CodesignResult) -> None:
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
