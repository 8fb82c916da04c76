"""A measured profile as a table: seconds by phase with their spread, bytes kept and needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.reporting.text import add_row, table
from trainwright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trainwright.plan.results.layer_profile import LayerProfileResult

_COLUMNS = (
    ("layer", "left"),
    ("count", "right"),
    ("t", "right"),
    ("forward", "right"),
    ("input", "right"),
    ("weight", "right"),
    ("total", "right"),
    ("spread", "right"),
    ("runs", "right"),
    ("saved", "right"),
    ("beside", "right"),
)


def layer_profile_report(found: LayerProfileResult) -> RenderableType:
    """One row per layer class and tensor degree t, then its origin and what to know.

    "input" and "weight" are the two gradients, "beside" the peak beyond what is saved.
    """
    from rich.console import Group
    from rich.text import Text

    profile = found.file.profiles[0]
    made = table("one layer, one microbatch", _COLUMNS)
    for row in found.rows:
        phases = (row.forward_s, row.input_grad_s, row.weight_grad_s)
        add_row(
            made,
            row.name,
            str(row.num_layers),
            str(row.tensor_parallel),
            *("" if time_s is None else format_seconds(time_s) for time_s in phases),
            format_seconds(row.duration_s),
            "" if row.spread is None else f"{row.spread:.1%}",
            "" if row.num_repeats is None else str(row.num_repeats),
            format_bytes(row.saved_bytes),
            format_bytes(row.transient_bytes),
        )
    provenance = profile.costs.provenance
    lines = [f"{provenance.origin}: {provenance.source}"]
    lines += [f"warning: {warning}" for warning in found.warnings]
    return Group(made, *map(Text, lines))
