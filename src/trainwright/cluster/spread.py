"""How far predictions miss where runs differ in how predictable they are.

Residuals of one software line are not alike: steps whose nodes host several replicas, and steps
that dispatch tokens to experts, scatter several times as much as others. A range per circumstance
keeps nine of ten inside in each of them, where a single range is too wide for most and too narrow
for some (conformal prediction by category: Vovk et al., *Algorithmic Learning in a Random World*,
2005, section 4.5).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from trainwright.errors import Fault, InvalidInput


class Circumstance(StrEnum):
    """What makes the steps of a line scatter.

    SHARED_NODES: more than one node, each with several data-parallel ranks of one group, whose
    gradients and stages share its network. EXPERTS: tokens are dispatched to experts.
    """

    SHARED_NODES = "shared_nodes"
    EXPERTS = "experts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Under `when`, nine of ten steps take `low_ratio` to `high_ratio` times the prediction."""

    when: Circumstance
    low_ratio: float
    high_ratio: float
    rows: int = 0

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        if not 0 < self.low_ratio <= 1 <= self.high_ratio < math.inf:
            given = f"{self.low_ratio!r} and {self.high_ratio!r}"
            yield Fault("low_ratio", f"must be <= 1, and high_ratio >= 1, got {given}")
