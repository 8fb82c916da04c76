"""What stages take at least, whichever way their backward runs: the numbers bounds are made of.

A stage may run its backward fused or split. I' = min(I, B) and W' = min(I + W, B) - I' are at most
what either way takes, before and after its input gradient is handed on: shortening every action of
a schedule to these, where it stands, leaves a legal schedule that is no longer. Transfers are taken
as free of contention, recomputation as free, an overlapped pair as as short as its members may be;
all of which only weakens a bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainwright.plan.per_stage import freeze_arrays
from trainwright.plan.schedule import ActionKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plan.per_stage import Floats
    from trainwright.plan.placement import Placement
    from trainwright.plan.schedule_costs import ScheduleCosts

_F, _I, _W, _B, _R = ActionKind
_ROUNDING = 1e-9
_STEP = np.array([1.0, 0.0, -1.0, -1.0, 0.0])  # chunk activations by kind of action


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Holding:
    """One limited resource: what an activation holds of it at least, and how much there is.

    `pending` [S] is held from the start of F to the end of I, `released_late` [S] from there to the
    end of W; `room` [p] is infinite where there is no limit.
    """

    pending: Floats
    released_late: Floats
    room: Floats

    def __post_init__(self) -> None:
        freeze_arrays(self)

    @classmethod
    def of(cls, delta: Floats, room: Floats, recomputed: NDArray[np.bool_] | None) -> Holding:
        """From what actions add and release, shape [5, S]; recomputed by some where not told."""
        again = np.minimum(delta[_R], 0.0)
        pending = np.maximum(delta[_F] + again, 0.0)
        if recomputed is not None:
            again = np.where(recomputed, delta[_R], 0.0)
        late = np.maximum(delta[_F] + again + delta[_I], 0.0)
        # The two halves of a fused backward hold what its first does.
        return cls(
            pending=pending,
            released_late=np.minimum(pending, late),
            room=room * (1 + _ROUNDING) + _ROUNDING,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeastCosts:
    """Least times by stage, and limits; `*_transfer_s` [S-1] are 0 within a rank.

    `work_s` [S] is what a rank works for one microbatch of the stage; `overlap_s` [p] what
    overlapped pairs save it at most per microbatch.
    """

    placement: Placement
    forward_s: Floats
    input_grad_s: Floats
    weight_grad_s: Floats
    work_s: Floats
    overlap_s: Floats
    forward_transfer_s: Floats
    backward_transfer_s: Floats
    holdings: tuple[Holding, ...]

    def __post_init__(self) -> None:
        freeze_arrays(self)

    @classmethod
    def of(
        cls,
        placement: Placement,
        costs: ScheduleCosts,
        *,
        max_activations: int | None = None,
        fused: NDArray[np.bool_] | None = None,
        recomputed: NDArray[np.bool_] | None = None,
    ) -> LeastCosts:
        """From the costs of a schedule within its limits and `max_activations` per rank.

        `fused` and `recomputed` [S] hold for the schedules bounded; unless told, either may be.
        """
        duration = costs.duration_s
        first, both = np.minimum(duration[_I], duration[_B]), duration[_I] + duration[_W]
        both = np.minimum(both, duration[_B])
        if fused is not None:
            first = np.where(fused, duration[_B], duration[_I])
            both = np.where(fused, duration[_B], duration[_I] + duration[_W])
        extra = 0.0 if recomputed is None else duration[_R] * recomputed
        ranks = np.array(placement.rank_of_stage)
        in_pair = _least_pair_s(ranks, costs)
        first, shortest = np.minimum(first, in_pair), np.minimum(both, in_pair)
        crossing = ranks[:-1] != ranks[1:]
        return cls(
            placement=placement,
            forward_s=np.minimum(duration[_F], costs.pair_s),
            input_grad_s=first,
            weight_grad_s=shortest - first,
            work_s=duration[_F] + both + extra,
            overlap_s=_overlap_s(placement, costs, both),
            forward_transfer_s=np.where(crossing, costs.forward_transfer_s, 0.0),
            backward_transfer_s=np.where(crossing, costs.backward_transfer_s, 0.0),
            holdings=tuple(_holdings(costs, max_activations, recomputed)),
        )

    @property
    def has_pairs(self) -> bool:
        """Whether a forward and a backward may run as one."""
        return bool((self.overlap_s > 0).any())

    @property
    def reached_s(self) -> Floats:
        """Shortest time from the start of F_0 to the start of F_s, shape [S]."""
        return np.concatenate([[0.0], np.cumsum(self.forward_s[:-1] + self.forward_transfer_s)])

    @property
    def returned_s(self) -> Floats:
        """Shortest time from the start of I_(S-1) to the start of I_s, shape [S]."""
        hops = (self.input_grad_s[1:] + self.backward_transfer_s)[::-1]
        from_loss_s: Floats = np.concatenate([[0.0], np.cumsum(hops)])
        return from_loss_s[::-1]

    @property
    def round_trip_s(self) -> Floats:
        """Shortest time from the end of F_s to the start of I_s, shape [S]."""
        reached_s = self.reached_s
        to_loss_s: Floats = reached_s[-1] + self.forward_s[-1] - reached_s - self.forward_s
        to_loss_s += self.returned_s
        return to_loss_s

    @property
    def way_back_s(self) -> Floats:
        """Shortest time from the end of I_s to the end of W_0 after I_0, shape [S]."""
        returned_s = self.returned_s
        back_s: Floats = returned_s[0] - returned_s + self.input_grad_s[0] - self.input_grad_s
        back_s += self.weight_grad_s[0]
        return back_s


def _least_pair_s(ranks: NDArray[np.int64], costs: ScheduleCosts) -> Floats:
    """How short a backward can be that is paired with a forward of its rank, shape [S]."""
    shortest = np.full(int(ranks.max()) + 1, np.inf)
    np.minimum.at(shortest, ranks, costs.pair_s)
    return shortest[ranks]


def _overlap_s(placement: Placement, costs: ScheduleCosts, both: Floats) -> Floats:
    """Each forward may be paired with the longest backward of its rank, shape [p]."""
    saved = np.zeros(placement.num_ranks)
    for rank, stages in enumerate(map(list, placement.stages_of_rank)):
        alone = costs.duration_s[_F, stages] + both[stages].max(initial=0.0)
        saved[rank] = np.maximum(alone - costs.pair_s[stages], 0.0).sum()
    return saved


def _holdings(
    costs: ScheduleCosts, max_activations: int | None, recomputed: NDArray[np.bool_] | None
) -> Iterator[Holding]:
    memory = costs.memory
    if np.isfinite(memory.limit_bytes).any():
        room = memory.limit_bytes - memory.static_bytes
        yield Holding.of(memory.delta_bytes, room, recomputed)
    if max_activations is not None:
        delta = np.repeat(_STEP[:, None], memory.num_stages, axis=1)
        yield Holding.of(delta, np.full(memory.num_ranks, float(max_activations)), recomputed)
