"""What chunks in a loop recompute so that every rank fits, switched where it frees most per second.

A rank starts with the fastest option of every layer. While its fullest instant does not fit, layers
of one chunk and one option switch to another: those that free most bytes there per second that
they take longer, so that chunks with many microbatches waiting go first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.planning.kind_costs import held_static_bytes
from trainwright.profile import StaticKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainwright.planning.stage_kinds import StageKinds
    from trainwright.pricing.sharding import Replicas

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_HAIR: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoopMemory:
    """Of each rank, at the instants that can be its fullest: microbatches of each chunk, [N, v].

    `held` are kept, and the transients of those `running` lie beside them.
    """

    kinds: StageKinds
    replicas: Replicas
    usable_bytes: float
    held: list[Floats]
    running: list[Floats]
    switches_of_row: dict[int, list[tuple[int, float, float]]] = field(default_factory=dict)

    def recomputed(self, lengths: Ints) -> tuple[tuple[int, ...], ...] | None:
        """Layers by row for every stage, [S, R], so that all ranks fit; None if some cannot."""
        chosen: dict[int, Ints] = {}
        cuts = np.concatenate(([0], np.cumsum(lengths)))
        for rank in range(len(self.held)):
            stages = list(range(rank, len(lengths), len(self.held)))
            own = self._rank_choice(rank, stages, cuts)
            if own is None:
                return None
            chosen.update(zip(stages, own, strict=True))
        return tuple(tuple(chosen[stage].tolist()) for stage in range(len(lengths)))

    def _rank_choice(self, rank: int, stages: list[int], cuts: Ints) -> list[Ints] | None:
        costs = self.kinds.profile.costs
        assert costs.phases is not None, "an estimate has phases"
        kind_of = [int(self.kinds.kind_of[cuts[s], cuts[s + 1]]) for s in stages]
        held, running = self.held[rank], self.running[rank]
        choice = [self._fastest(kind) for kind in kind_of]
        room = self.room_bytes(kind_of)
        while True:
            kept = np.array([own @ costs.saved_bytes for own in choice])
            transient = np.array([costs.transient_bytes[own > 0].max() for own in choice])
            needed = held @ kept + running @ transient
            fullest = int(needed.argmax())
            if needed[fullest] <= room:
                return choice
            if not self._recompute_more(choice, held[fullest], float(needed[fullest]) - room):
                return None

    def room_bytes(self, kind_of: Sequence[int]) -> float:
        """What the state of a rank with chunks of these kinds leaves of a device."""
        own = list(kind_of)
        static = held_static_bytes(self.kinds, self.replicas)[own].sum()
        if self.replicas.zero_stage == 3:
            whole = self.kinds.static_bytes[own][:, :, StaticKind.WEIGHT].sum()
            heaviest = self.kinds.weight_bytes[own].max()
            static += min(2 * heaviest * (1 - 1 / self.replicas.sizes[0]), whole)
        return self.usable_bytes * (1 - _HAIR) - float(static)

    def _fastest(self, kind: int) -> Ints:
        costs = self.kinds.profile.costs
        assert costs.phases is not None, "an estimate has phases"
        own, total_s = np.zeros(costs.num_rows, dtype=np.int64), costs.phases.total_s
        for layer_class, count in enumerate(self.kinds.counts[kind].tolist()):
            rows = list(costs.rows_of(layer_class))
            own[rows[int(np.argmin(total_s[rows]))]] = count
        return own

    def _recompute_more(self, choice: list[Ints], held: Floats, over_bytes: float) -> bool:
        """Switches layers where that frees most bytes of the fullest instant per second.

        As many as that instant asks for, so that few steps suffice.
        """
        best, switch, each = 0.0, None, 0.0
        for chunk, own in enumerate(choice):
            for row in np.flatnonzero(own).tolist():
                for other, freed, longer_s in self._switches(row):
                    rate = float(held[chunk]) * freed / longer_s
                    if rate > best:
                        best, switch, each = rate, (chunk, row, other), float(held[chunk]) * freed
        if switch is None:
            return False
        chunk, row, other = switch
        count = min(int(choice[chunk][row]), max(1, math.ceil(over_bytes / each)))
        choice[chunk] = choice[chunk].copy()
        choice[chunk][row] -= count
        choice[chunk][other] += count
        return True

    def _switches(self, row: int) -> list[tuple[int, float, float]]:
        """Other rows of the same class, with bytes freed and seconds added per microbatch."""
        if row not in self.switches_of_row:
            costs = self.kinds.profile.costs
            total_s, saved = costs.duration_s, costs.saved_bytes
            layer_class = int(np.searchsorted(costs.class_offsets, row, side="right")) - 1
            self.switches_of_row[row] = [
                (
                    other,
                    float(saved[row] - saved[other]),
                    max(float(total_s[other] - total_s[row]), 1e-12),
                )
                for other in costs.rows_of(layer_class)
                if saved[other] < saved[row]
            ]
        return self.switches_of_row[row]
