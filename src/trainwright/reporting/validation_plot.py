"""Predicted against measured, one panel per quantity, one colour per file (extra `[plot]`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from trainwright.plan.results.validation import ValidationResult

_PANELS = (
    ("step time (s)", "step_time_s", "measured_step_time_s"),
    ("peak memory (GB)", "peak_memory_bytes", "measured_peak_memory_bytes"),
)
_SCALES = {"step_time_s": 1.0, "peak_memory_bytes": 1e-9}


def plot_validation(found: ValidationResult, path: Path) -> None:
    """Write the figure in the format of the file's ending.

    Raises `MissingExtra` without matplotlib, `InvalidInput` for an ending it cannot write.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("drawing predictions needs matplotlib", extra="plot") from None
    figure = Figure(figsize=(11, 5.5), layout="constrained")
    for axes, (title, predicted, measured) in zip(figure.subplots(1, 2), _PANELS, strict=True):
        scale, seen = _SCALES[predicted], []
        for index, dataset in enumerate(found.datasets):
            pairs = [
                (getattr(run, measured) * scale, getattr(run, predicted) * scale)
                for run in dataset.runs
                if getattr(run, measured) is not None and getattr(run, predicted) is not None
            ]
            if pairs:
                axes.scatter(
                    *zip(*pairs, strict=True),
                    s=12,
                    alpha=0.6,
                    c=f"C{index % 10}",
                    label=dataset.name,
                )
                seen += [value for pair in pairs for value in pair]
        axes.set(xscale="log", yscale="log", title=title, xlabel="measured", ylabel="predicted")
        if seen:
            ends = (min(seen), max(seen))
            axes.plot(ends, ends, color="0.4", linewidth=0.8)
            axes.legend(fontsize="x-small")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise InvalidInput.of("plot", f"cannot be written: {error}", source=str(path)) from None
