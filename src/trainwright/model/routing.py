"""How far the tokens of a mixture of experts spread over devices.

A token chooses k of E experts. Routing that keeps loads even makes every choice as likely as any
other; with groups (DeepSeek-V2, 2024, section 2.1.3) M of G groups are chosen, and then k experts
of those n = M·E/G. The experts are dealt out in order over ranks. Of a unit of ranks with u_S
experts in the chosen groups S, a token misses all with probability C(n - u_S, k) / C(n, k), so

    units met  = Σ over units of (1 - mean over S of C(n - u_S, k) / C(n, k))

which is exact; u_S takes few values, whose numbers of S are counted group by group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import comb

from trainwright.errors import Fault, InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Which experts tokens choose, and over how many ranks these are dealt out in order."""

    num_experts: int
    experts_per_token: int
    num_groups: int = 1
    groups_per_token: int = 1
    ranks: int = 1

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        for name in ("num_experts", "experts_per_token"):
            if (value := getattr(self, name)) < 1:
                yield Fault(name, f"must be >= 1, got {value}")
                return
        if self.ranks < 1 or self.num_experts % self.ranks:
            yield Fault("ranks", f"must divide the {self.num_experts} experts, got {self.ranks}")
        yield from group_faults(
            num_experts=self.num_experts,
            experts_per_token=self.experts_per_token,
            num_groups=self.num_groups,
            groups_per_token=self.groups_per_token,
        )

    def units_met(self, size: int) -> float:
        """How many units of `size` ranks that follow on each other a token reaches on average.

        The last unit may have fewer ranks.
        """
        return _units_met(self, size)


def group_faults(
    *, num_experts: int, experts_per_token: int, num_groups: int, groups_per_token: int
) -> Iterator[Fault]:
    """Groups that cannot be, or that leave a token too few experts."""
    if num_groups < 1 or num_experts % num_groups:
        yield Fault("num_groups", f"must divide the {num_experts} experts, got {num_groups}")
    elif not 1 <= groups_per_token <= num_groups:
        yield Fault("groups_per_token", f"must be in 1..{num_groups}, got {groups_per_token}")
    elif (offered := groups_per_token * num_experts // num_groups) < experts_per_token:
        problem = f"must leave a token {experts_per_token} experts, leaves {offered}"
        yield Fault("groups_per_token", problem)


@lru_cache(maxsize=1024)
def _units_met(routing: Routing, size: int) -> float:
    per_rank = routing.num_experts // routing.ranks
    width = min(size, routing.ranks) * per_rank
    starts = range(0, routing.num_experts, width)
    met = Counter(_overlaps(routing, start, width) for start in starts)
    return float(sum(count * (1 - _missed(routing, unit)) for unit, count in met.items()))


def _overlaps(routing: Routing, start: int, width: int) -> tuple[int, ...]:
    """Experts of a unit in each group that it shares some with."""
    group = routing.num_experts // routing.num_groups
    end = min(start + width, routing.num_experts)
    firsts = range(start // group * group, end, group)
    return tuple(sorted(min(end, first + group) - max(start, first) for first in firsts))


def _missed(routing: Routing, unit: tuple[int, ...]) -> Fraction:
    """The chance that none of a token's experts lie in a unit."""
    chosen, k = routing.groups_per_token, routing.experts_per_token
    offered = chosen * (routing.num_experts // routing.num_groups)
    ways = Counter({(0, 0): 1})  # groups chosen among the unit's, and the experts that they bring
    for overlap in unit:
        with_it = Counter({(n + 1, own + overlap): count for (n, own), count in ways.items()})
        ways += with_it
    others = routing.num_groups - len(unit)
    missed = sum(
        count * comb(others, chosen - n) * comb(offered - own, k)
        for (n, own), count in ways.items()
        if n <= chosen
    )
    return Fraction(missed, comb(routing.num_groups, chosen) * comb(offered, k))
