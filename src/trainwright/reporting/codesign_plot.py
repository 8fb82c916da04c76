"""The front, the floor area and the operators of the best design as a figure (extra `[plot]`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainwright.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from pathlib import Path

    from trainwright.plan.results.codesign import CodesignResult

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
    _front(front, figure, found)
    _area(area, found)
    _operators(operators, found)
    try:
        figure.savefig(path)
    except ValueError as error:
        raise InvalidInput.of("figure", f"cannot be written: {error}") from None


def _front(axes: Any, figure: Any, found: CodesignResult) -> None:
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


def _operators(axes: Any, found: CodesignResult) -> None:
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
