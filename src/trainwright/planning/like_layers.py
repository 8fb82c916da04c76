"""How long the rank with most of n like layers works at least, in the memory of one device.

Some rank holds k = ⌈n / p⌉ of them and none more, or one holds k + 1. A layer's options come in
levels by their transient bytes, of which a device keeps the largest free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from trainwright.planning.point_work import Trade

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


class Rooms(NamedTuple):
    """Bytes of a device and of one layer's state [N]; whose weights are gathered, in layers [N]."""

    usable_bytes: float
    state_bytes: Floats
    gathered: Floats


class LikeLayers(NamedTuple):
    """`num_layers` layers of one class: of each level its bytes, and what one layer can do there."""

    num_layers: int
    weight_bytes: float
    levels: tuple[tuple[float, Trade], ...]

    def busiest_s(
        self,
        rooms: Rooms,
        *,
        pipeline: Ints,
        num_microbatches: Ints,
        in_flight: Callable[[Ints], Ints] | None,
        waits: bool,
    ) -> Floats:
        """Least step of each of N pairs; infinite where no rank can hold its layers.

        `in_flight` gives the microbatches of a rank's warm-up by the ranks from it on. Where no
        rank holds more than k, f = n - p·(k - 1) hold k, and the last of these lies behind all the
        others, for which it `waits` under 1F1B; the first warms up with f - 1 ranks behind it.
        """
        n, p, m = self.num_layers, pipeline, num_microbatches
        most = -(-n // p)
        full = n - p * (most - 1)
        own_s = self._least_s(most, 1, rooms)
        first_s = own_s
        if in_flight is not None:
            first_s = self._least_s(most, np.minimum(in_flight(full), m), rooms)
        ahead = most * (full - 1) if waits else 0
        even_s = np.maximum(m * most * first_s, (m * most + ahead) * own_s)
        more_s = m * (most + 1) * self._least_s(most + 1, 1, rooms)
        least_s: Floats = np.where(most < n, np.minimum(more_s, even_s), even_s)
        return least_s

    def _least_s(self, held: Ints, in_flight: Ints | int, rooms: Rooms) -> Floats:
        """Seconds of one layer and microbatch on a rank that holds so many, [N]."""
        beside_bytes = held * rooms.state_bytes + self.weight_bytes * np.minimum(
            held, rooms.gathered
        )
        best = np.full(len(beside_bytes), np.inf)
        for level_bytes, trade in self.levels:
            room = (rooms.usable_bytes - level_bytes - beside_bytes) / (held * in_flight)
            best = np.minimum(best, trade.least_s(room))
        return best
