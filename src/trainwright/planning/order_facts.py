"""What the orders of a family that ignores times say of every rank, as counts.

Beyond some microbatches more of them change nothing but the steady middle, so a shorter step tells.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.plan.schedule import ActionKind
from trainwright.pricing.peak_rows import peak_rows
from trainwright.pricing.pipeline_run import PipelineShape, peak_shape
from trainwright.scheduling.families import family_named

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plan.schedule import Schedule
    from trainwright.pricing.peak_rows import PeakRows

    Floats = NDArray[np.float64]

_F, _I, _W, _B, _R = ActionKind


class RankOrder(NamedTuple):
    """One rank with one stage: what it runs before, between and after its waits.

    `warm_up` forwards come before the first backward. Between the last forward and the last
    backward that hands on a gradient lie `drained` of these and `drained_weight_grads`; after it
    `left_weight_grads`.
    """

    warm_up: int
    drained: int
    drained_weight_grads: int
    left_weight_grads: int
    splits_backward: bool


@lru_cache(maxsize=256)
def rank_orders(shape: PipelineShape) -> tuple[RankOrder, ...]:
    """Of a family with one stage per rank; the counts hold for the shape's own microbatches."""
    schedule = orders_of(peak_shape(shape))
    return tuple(_rank_order(schedule, rank) for rank in range(shape.num_ranks))


@lru_cache(maxsize=256)
def fullest_rows(shape: PipelineShape) -> PeakRows:
    """What ranks can hold at once; see `pricing.peak_rows`."""
    return peak_rows(orders_of(peak_shape(shape)))


@lru_cache(maxsize=64)
def orders_of(shape: PipelineShape) -> Schedule:
    """The family's orders, which are kept."""
    schedule = family_named(shape.family).generate(shape.request)
    assert schedule is not None, "without limits every family has an order"
    return schedule


def _rank_order(schedule: Schedule, rank: int) -> RankOrder:
    kinds = schedule.actions[schedule.rows_of(rank), 0]
    hands_on = (kinds == _I) | (kinds == _B)
    backwards = np.flatnonzero(hands_on)
    first, last = int(backwards[0]), int(backwards[-1])
    last_forward = int(np.flatnonzero(kinds == _F)[-1])
    between = slice(last_forward + 1, last)
    return RankOrder(
        warm_up=int((kinds[:first] == _F).sum()),
        drained=int(hands_on[between].sum()),
        drained_weight_grads=int((kinds[between] == _W).sum()),
        left_weight_grads=int((kinds[last + 1 :] == _W).sum()),
        splits_backward=bool((kinds == _I).any()),
    )
