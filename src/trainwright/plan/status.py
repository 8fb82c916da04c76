"""How much a result claims; one enumeration for every command."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final

OPTIMAL_TOLERANCE: Final = 1e-9


class Status(StrEnum):
    """`optimal` is proved; `gap` is a plan with a proved bound; `infeasible` is proved."""

    OPTIMAL = "optimal"
    GAP = "gap"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"

    @property
    def exit_code(self) -> int:
        """The process exit code of a command that ends with this status."""
        return {Status.INFEASIBLE: 3, Status.UNKNOWN: 5}.get(self, 0)


class BoundKind(StrEnum):
    """Whether a bound is proved here or taken from a publication unproved."""

    PROVED = "proved"
    PUBLISHED = "published"


def relative_gap(value: float, lower_bound: float) -> float:
    """(value − bound) / value, 0 where the value is 0; both finite and >= 0."""
    if value <= 0 or not math.isfinite(value):
        return 0.0
    return max(0.0, (value - lower_bound) / value)
