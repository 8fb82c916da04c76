"""A bound on splits in V from how long activations live, whatever the order.

A rank that holds no more than k chunk activations cannot run m microbatches faster than these leave
it again (Little's law). That of stage s lives from its forward to the end of its weight gradient:
all forwards from s to the loss and all input gradients back, with what they recompute. With n_r
both chunks of rank r,

    T >= ahead_r + (m / k)·sum over s in n_r of (W_s + sum over u >= s of (F_u + I_u)) + ends_r

where the k places fill one forward after the other and are left one weight gradient after the other
(`PeelWeights`). What other ranks recompute counts here, which no bound of a rank by itself sees: of
V-Min with little memory it is most of the step.

These are sums of times of stages, and so is what ranks take by themselves (`v_bound`). The least
over all splits of the largest of them is no less than the least of any mean of them, which the peel
finds (`native/peel.hpp`, `peel_weighted`). The best mean is that of a game between splits and sums
(`matrix_game`), solved for the splits that were met; its mean asks for the next one.

Reference: J. Little. *A Proof for the Queuing Formula L = λW.* Operations Research 9(3), 1961.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from trainwright._native import _core
from trainwright.planning.matrix_game import solved

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_ROUNDS: Final = 30
_NEAR: Final = 1e-4  # of the value of a game, between its bounds
_HAIR: Final = 1e-9


class Sums(NamedTuple):
    """N sums of times: how often each counts, and seconds beside; see `PeelWeights`.

    `forwards`, `input_grads` and `weight_grads` [N, 2p] are by stage, `ranks` and `ends` [N, p].
    """

    forwards: Floats
    input_grads: Floats
    weight_grads: Floats
    ranks: Floats
    ends: Floats
    beside_s: Floats

    def mean(self, weights: Floats) -> Sums:
        """One sum, by weights of these."""
        return Sums(*(weights[np.newaxis] @ part for part in self))

    def of(self, times: Times) -> Floats:
        """Of one split, [N]."""
        parts = (part @ own for part, own in zip(self, times, strict=False))
        total: Floats = sum(parts, start=self.beside_s)
        return total


class Times(NamedTuple):
    """What `Sums` count, of one split."""

    forward_s: Floats
    input_grad_s: Floats
    weight_grad_s: Floats
    rank_s: Floats
    ends_s: Floats


def lifetime_bound_s(problem: Mapping[str, Any], transfer_s: Floats, *, limit_s: float) -> float:
    """No split of the peel's problem has a shorter step in seconds; cut down to the limit.

    `transfer_s` [2p - 1] is between neighbours of the chain, 0 where they share a rank.
    """
    problem = dict(problem) | {"limit_s": limit_s, "floor_s": 0.0}
    p = problem["num_ranks"]
    sums = _sums(problem, transfer_s)
    mean, best_s, values = sums.mean(np.repeat((1 / p, 0.0), p)), 0.0, []
    for _ in range(_ROUNDS):
        least_s, times = _least_split(problem, mean)
        best_s = max(best_s, least_s * (1 - _HAIR))
        if times is None or best_s >= limit_s:
            return limit_s
        values.append(sums.of(times))
        mix = solved(np.array(values))
        if mix.value <= best_s * (1 + _NEAR):
            break
        mean = sums.mean(mix.weights)
    return best_s


def _sums(problem: Mapping[str, Any], transfer_s: Floats) -> Sums:
    """What ranks take by themselves, then what their activations need."""
    p, m = problem["num_ranks"], problem["num_microbatches"]
    places = min(problem["max_activations"], 2 * m)
    ranks, stages = np.arange(p)[:, np.newaxis], np.arange(2 * p)
    far = 2 * p - 1 - ranks
    lives = (stages >= ranks).astype(np.float64) + (stages >= far)
    owned = (stages == ranks) | (stages == far)
    ahead = (stages < ranks).astype(np.float64)
    none, each = np.zeros((p, 2 * p)), np.eye(p)
    across_s = (2 * m / places * lives + ahead)[:, :-1] @ transfer_s
    return Sums(
        forwards=np.concatenate((none, m / places * lives + ahead)),
        input_grads=np.concatenate((none, m / places * lives)),
        weight_grads=np.concatenate((none, m / places * owned)),
        ranks=np.concatenate((each, np.zeros((p, p)))),
        ends=np.concatenate((np.zeros((p, p)), each)),
        beside_s=np.concatenate((np.zeros(p), across_s)),
    )


def _least_split(problem: Mapping[str, Any], mean: Sums) -> tuple[float, Times | None]:
    """The split of the least sum; none where none is within the limit."""
    forwards, input_grads, weight_grads, ranks, ends, beside_s = (part[0] for part in mean)
    least_s, near, far, near_point, far_point, rank_s, ends_s = _core.peel_weighted(
        **problem,
        forwards=forwards,
        input_grads=input_grads,
        weight_grads=weight_grads,
        ranks=ranks,
        ends=ends,
    )
    if math.isinf(least_s):
        return least_s, None
    cuts = np.concatenate(([0], np.cumsum(np.concatenate((near, far[::-1])))))
    kinds = problem["kind_of"][cuts[:-1], cuts[1:]]
    points = np.concatenate((near_point, far_point[::-1]))
    forward_s, weight_grad_s = problem["forward_s"][kinds], problem["weight_grad_s"][kinds]
    input_grad_s = problem["front_time_s"][points] - forward_s - weight_grad_s
    return least_s + float(beside_s), Times(forward_s, input_grad_s, weight_grad_s, rank_s, ends_s)
