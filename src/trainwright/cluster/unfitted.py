"""What public runs say of estimates whose constants were fitted to no run.

Every run of the public tables that can be modelled, priced with the descriptions of accelerators
alone (`docs/accuracy.md`, "Without fitted constants"). The tiny models of Megatron's tests are left
out: they spend their steps starting kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfittedRuns:
    """Of `num_runs` measured configurations: how many took longer, and how much longer.

    `median_ratio` is measured over predicted time; `beyond_share` took longer than the upper end of
    the range that is printed.
    """

    num_runs: int
    slower_share: float
    median_ratio: float
    beyond_share: float


LEFT_OUT: Final = ("megatron_ci",)
UNFITTED: Final = UnfittedRuns(
    num_runs=398, slower_share=0.9749, median_ratio=1.28, beyond_share=0.221
)
