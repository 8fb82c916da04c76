"""What follows the way of a microbatch under a family, for many pairs at once; see `chain_ends`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trainwright.planning.family_split import CHAIN, IN_V
from trainwright.planning.schedules import ONE_F_ONE_B

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainwright.plan.overlap import Overlap
    from trainwright.planning.chain_ends import ChainEnds, ExchangeTimes, Slopes
    from trainwright.pricing.sharding import Replicas

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(slots=True, kw_only=True, eq=False)
class AfterWay:
    """Exchanges of the first and of the last stages of a chain, by ZeRO stage and replicas.

    Families share what they add to the way, [4, D].
    """

    ends: ChainEnds
    overlap: Overlap
    first: ExchangeTimes
    last: ExchangeTimes
    _firsts: dict[tuple[bool, int, int | None], Floats] = field(default_factory=dict)
    _lasts: dict[int, Floats] = field(default_factory=dict)

    @classmethod
    def of(
        cls, ends: ChainEnds, groups: Sequence[Replicas], slopes: Slopes, overlap: Overlap
    ) -> AfterWay:
        """Of all kinds of replicas; see `ChainEnd.exchange_times`."""
        first, last = (end.exchange_times(groups, slopes) for end in (ends.first, ends.last))
        return cls(ends=ends, overlap=overlap, first=first, last=last)

    def of_family(
        self, family: str, at: tuple[Ints, Ints], pipeline: Ints, tied_s: Floats
    ) -> Floats:
        """Seconds after the way [N], of pairs of ZeRO stage and kind of replicas `at`.

        The way counts weight gradients under 1F1B alone. `tied_s` takes the exchange of a tied
        tensor where two ranks hold it.
        """
        holder, size = self.ends.last_holder, self.ends.num_layers
        if not holder:
            apart_s = self._first_s(family)[at]
            return apart_s + self._last_s(1)[at] if family in IN_V else apart_s
        # Later layers are too few for the stages that follow the first: it has not the tied one.
        stages = 2 * pipeline if family in IN_V else pipeline
        is_apart = stages > size - holder
        apart_s = self._first_s(family, most=holder)[at]
        together_s = self._first_s(family, least=holder + 1)[at]
        if family in IN_V:
            apart_s = apart_s + np.minimum(tied_s, self._last_s(size - holder)[at])
        elif family in CHAIN:
            apart_s = apart_s + tied_s
        else:
            apart_s = apart_s + np.where(is_apart, tied_s, 0.0)
        either_s = np.where(is_apart, apart_s, np.minimum(apart_s, together_s))
        found: Floats = np.where(pipeline > 1, either_s, together_s)
        return found

    def _first_s(self, family: str, *, least: int = 1, most: int | None = None) -> Floats:
        ends, fused = self.ends, family == ONE_F_ONE_B
        key = (fused, least, most)
        if key not in self._firsts:
            passed_s = ends.whole_s if fused else ends.way_s
            self._firsts[key] = ends.first.after_s(
                self.first, self.overlap, passed_s=passed_s, least=least, most=most
            )
        return self._firsts[key]

    def _last_s(self, least: int) -> Floats:
        ends = self.ends
        if least not in self._lasts:
            self._lasts[least] = ends.last.after_s(
                self.last, self.overlap, passed_s=ends.way_s, least=least
            )
        return self._lasts[least]
