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
    from trainwright.planning.ramps import Ramp

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


class LongestPhases(NamedTuple):
    """The most that phases of one layer and microbatch take, with any option."""

    forward_s: float
    backward_s: float
    weight_grad_s: float


class Rooms(NamedTuple):
    """Bytes of a device and of one layer's state [N]; whose weights are gathered, in layers [N]."""

    usable_bytes: float
    state_bytes: Floats
    gathered: Floats


class Tail(NamedTuple):
    """Exchanges after the last microbatch: seconds of one layer [N], and what they hide under.

    Each line is of one collective: its own seconds, and those it hides under. Another layer on the
    rank hides no more than it takes for a microbatch, so there is no need to know which there are.
    """

    lines: tuple[tuple[Floats, float], ...]

    def after(self, held: Ints | int) -> Floats:
        """Exposed seconds of a rank that holds so many layers of the class, [N]."""
        total_s = np.zeros(1)
        for own_s, under_s in self.lines:
            total_s = total_s + held * np.maximum(0.0, own_s - under_s)
        return total_s


class LikeLayers(NamedTuple):
    """`num_layers` layers of one class: each level's bytes, and what one layer can do there.

    `longest` are the most that one layer's forward, backward and weight gradient take, `beside_s`
    how much longer the layers of other classes are than their way there and back. `sync_bytes` and
    `gather_bytes` are of dense parameters and of experts.
    """

    num_layers: int
    weight_bytes: float
    levels: tuple[tuple[float, Trade], ...]
    longest: LongestPhases
    beside_s: float
    sync_bytes: tuple[float, ...]
    gather_bytes: tuple[float, ...]

    @property
    def fastest_s(self) -> float:
        """One layer and microbatch where memory is plenty."""
        return float(self.levels[-1][1].time_s[-1])

    def busiest_s(
        self,
        rooms: Rooms,
        tail: Tail,
        *,
        pipeline: Ints,
        num_microbatches: Ints,
        in_flight: Callable[[Ints], Ints] | None,
        ramp: Ramp,
    ) -> Floats:
        """Least step of each of N pairs; infinite where no rank can hold its layers.

        `in_flight` gives the microbatches of a rank's warm-up by the ranks from it on. Where no
        rank holds more than k, f = n - p·(k - 1) or more hold k: the first of them warms up with
        f - 1 ranks behind it, the last has f - 1 before it. What ranks before it pass back ends at
        one that holds a layer, which still synchronises it; other layers of that one
        lengthen the way by no less than what they hide but for `beside_s`.
        """
        n, p, m = self.num_layers, pipeline, num_microbatches
        if n == 1:
            return m * self._least_s(np.ones_like(p), 1, rooms) + tail.after(1)
        most = -(-n // p)
        full = n - p * (most - 1)
        own_s = self._least_s(most, 1, rooms)
        first_s = own_s
        if in_flight is not None:
            first_s = self._least_s(most, np.minimum(in_flight(full), m), rooms)
        passed_s = np.maximum(0.0, tail.after(1) - self.beside_s)
        last_s = self._last_s(most, full, own_s, p, m, ramp)
        even_s = np.maximum(m * most * first_s + tail.after(most), last_s + passed_s)
        if in_flight is not None:
            around_s = self._around_s(most, full, first_s, p, m, ramp, in_flight)
            even_s = np.maximum(even_s, around_s + passed_s)
        more_s = m * (most + 1) * self._least_s(most + 1, 1, rooms) + tail.after(most + 1)
        least_s: Floats = np.where(most < n, np.minimum(more_s, even_s), even_s)
        return least_s

    def _last_s(
        self, most: Ints, full: Ints, own_s: Floats, p: Ints, m: Ints, ramp: Ramp
    ) -> Floats:
        """By the last rank that holds most; convex in it, with a kink where it leaves all W."""
        kink = np.clip((m - 1) / ramp.step, full - 1, p - 1)
        steps_s = []
        for rank in (full - 1, kink, p - 1):
            before = self.num_layers - most - (p - 1 - rank) * (most - 1)
            left = ramp.left * np.minimum(m, 1 + ramp.step * rank)
            steps_s.append(ramp.before * before * self.fastest_s + (m - left) * most * own_s)
        least_s: Floats = np.min(steps_s, axis=0)
        return least_s

    def _around_s(
        self,
        most: Ints,
        full: Ints,
        first_s: Floats,
        p: Ints,
        m: Ints,
        ramp: Ramp,
        in_flight: Callable[[Ints], Ints],
    ) -> Floats:
        """By the first rank that holds most: all other layers run before it starts or it waits.

        Σ_{i≠r} (F_i + I_i) + m·P_r - k_r·W_r - (w_r - 1)·F_r: of k_r and w_r microbatches it runs
        weight gradients and forwards while it waits.
        """
        spent_s = np.zeros(len(most))
        for rank in (0 * p, p - full):
            left = np.where(np.asarray(ramp.left) > 0, 1 + ramp.step * rank, 0)
            ahead = in_flight(p - rank) - 1
            own_s = left * self.longest.weight_grad_s + ahead * self.longest.forward_s
            spent_s = np.maximum(spent_s, own_s)
        others_s = ramp.before * self.fastest_s * (self.num_layers - most)
        around_s: Floats = others_s + most * (m * first_s - spent_s)
        return around_s

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
