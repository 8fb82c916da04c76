"""A line in the table of an estimate without fitted constants: how such estimates turned out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.cluster.unfitted import UNFITTED
from trainwright.provenance import Origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def unfitted_line(assumptions: Mapping[str, str]) -> Iterator[str]:
    """The line, where times are of an accelerator's description; the runs say nothing of others."""
    if assumptions.get("times", "").startswith(f"{Origin.ASSUMED}: roofline of"):
        yield (
            f"unfitted: {UNFITTED.slower_share:.0%} of {UNFITTED.num_runs} public runs took longer "
            f"than such an estimate, {UNFITTED.median_ratio:.2f}x in the median, "
            f"{UNFITTED.within_share:.0%} within its range; fitted constants for --calibration: "
            "trainwright catalog calibrations"
        )
