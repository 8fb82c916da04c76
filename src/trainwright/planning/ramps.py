"""How much work p ranks can do in one step of a zero-bubble order: what the ramps leave of it.

With F, I and W the forward, input gradient and weight gradient of a microbatch on a rank, together
P, a rank starts after the forwards of the ranks before it, their input gradients follow its last
one, and it may leave weight gradients of k_r microbatches until then:

    T ≥ Σ_{i<r} F_i + m·P_r
    T ≥ Σ_{i<r} (F_i + I_i) + m·P_r - k_r·W_r

So in one second rank r does no more work than both leave it, where F, F + I and W are at least φ,
σ and at most 1 - σ of all work: a recurrence over the ranks (Qi et al., ICLR 2024, for k_r).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from trainwright.profile import CostTable

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

# k_r = min(m, 1 + s·r) weight gradients are left after the last input gradient of rank r.
_STEP: Final[Mapping[str, int]] = {"zb-h1": 1, "zb-h2": 2}
_ALIKE: Final = 0.9  # a class with a smaller share of σ counts as no work


class Shares(NamedTuple):
    """Of the layers that do most of the work: the least φ and σ of any option.

    `others_s` is the most that the other layers take.
    """

    forward: float
    handed_on: float
    others_s: float

    @classmethod
    def of(cls, costs: CostTable, num_layers: tuple[int, ...]) -> Shares:
        """From the phases of every option; `num_layers` is by class."""
        phases, starts = costs.phases, costs.class_offsets[:-1]
        assert phases is not None, "an estimate has phases"
        total_s = phases.total_s
        works = np.where(total_s > 0, total_s, 1.0)
        forward = np.minimum.reduceat(phases.forward_s / works, starts)
        handed_on = np.minimum.reduceat(1 - phases.weight_grad_s / works, starts)
        counts = np.array(num_layers)
        main = int((np.minimum.reduceat(total_s, starts) * counts).argmax())
        alike = (handed_on >= _ALIKE * handed_on[main]) & (forward >= _ALIKE * forward[main])
        slowest_s = np.maximum.reduceat(total_s, starts) * counts
        return cls(
            forward=float(forward[alike].min()),
            handed_on=float(handed_on[alike].min()),
            others_s=float(slowest_s[~alike].sum()),
        )


class Ramp(NamedTuple):
    """T ≥ `before` · Σ_{i<r} P_i + (m - `left` · k_r) · P_r with k_r = min(m, 1 + `step` · r).

    One of each, or arrays of them, [N].
    """

    before: float | Floats
    left: float | Floats
    step: float | Floats

    @classmethod
    def of(cls, family: str, shares: Shares) -> Ramp:
        """What a family makes of the work before a rank."""
        if family in _STEP:
            return cls(shares.handed_on, 1 - shares.handed_on, _STEP[family])
        return cls(1.0 if family == "1f1b" else 0.0, 0.0, 1)


def split_backward_s(
    shares: Shares, work_s: Floats, *, family: str, pipeline: Ints, num_microbatches: Ints
) -> Floats:
    """No step of a zero-bubble family is shorter; [N] of pairs whose microbatch works so long.

    A family that is none has no bound here, so 0.
    """
    if family not in _STEP:
        return np.zeros(len(work_s))
    counts, index = np.unique(num_microbatches, return_inverse=True)
    done = _work_per_second(
        family, shares.forward, shares.handed_on, tuple(counts.tolist()), int(pipeline.max())
    )
    bounds_s: Floats = (work_s - shares.others_s) / done[pipeline, index]
    return bounds_s


@lru_cache(maxsize=16)
def _work_per_second(
    family: str, forward: float, handed_on: float, counts: tuple[int, ...], most_ranks: int
) -> Floats:
    """Work of a microbatch that the first p ranks can do in a step of one second, [p + 1, M]."""
    m = np.array(counts, dtype=np.float64)
    done = np.zeros((most_ranks + 1, len(m)))
    for rank in range(most_ranks):
        left = np.minimum(m, 1 + _STEP[family] * rank)
        after = (1 - handed_on * done[rank]) / (m - (1 - handed_on) * left)
        own = np.minimum((1 - forward * done[rank]) / m, after)
        done[rank + 1] = done[rank] + np.maximum(own, 0.0)
    return done
