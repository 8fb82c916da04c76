"""How much is spent on further splits, and how those that were simulated are priced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trainwright.planning.split_bound import CutsAndRows
    from trainwright.planning.split_plan import Priced

_MOST: Final = 5_000_000  # actions simulated, or as much other work
_CUTS: Final = 4000  # actions that can be simulated while one pair of ranks is bounded
_SIMULATION: Final = 2000  # beside its actions
_PLAN: Final = 50_000
HAIR: Final = 1 - 1e-12  # of the best step: what is nearer differs by rounding


@dataclass(slots=True)
class Effort:
    """What is left of it, in simulated actions."""

    left: int = _MOST

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0

    def suffices(self, splits: int, actions: int) -> bool:
        """Whether so many splits of so many actions can be simulated."""
        return splits * (_SIMULATION + actions) <= self.left

    def spend_on_cuts(self, num_ranks: int) -> None:
        """Cuts of a chain enumerated."""
        self.left -= _CUTS * num_ranks * num_ranks

    def spend_on_simulation(self, actions: int) -> None:
        """A split simulated."""
        self.left -= _SIMULATION + actions

    def spend_on_plan(self) -> None:
        """A plan priced."""
        self.left -= _PLAN


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The fastest further plan of a candidate, and what all of its plans take at least."""

    bound_s: float
    found: Priced | None = None


def price_below(
    simulated: Iterable[tuple[float, CutsAndRows]],
    price: Callable[[CutsAndRows], Priced | None],
    effort: Effort,
    *,
    limit_s: float,
    others_s: float,
) -> Finished:
    """Price splits below the limit, shortest first, until none can be the shortest.

    `others_s` bounds those that were not simulated. A split whose plan misses the memory keeps the
    bound that it had.
    """
    best: Priced | None = None
    for step_s, split in sorted(simulated):
        if step_s >= limit_s * HAIR or effort.is_spent:
            others_s = min(others_s, max(step_s, 0.0))
            break
        effort.spend_on_plan()
        found = price(split)
        if found is None:
            others_s = min(others_s, step_s)
        elif found.step.step_time_s < limit_s:
            best, limit_s = found, found.step.step_time_s
    return Finished(bound_s=min(others_s, limit_s), found=best)
