"""What replicas exchange at least in every microbatch and after the last, of many pairs at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainwright.planning.like_layers import Tail

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plan.overlap import Overlap
    from trainwright.planning.like_layers import LikeLayers
    from trainwright.planning.pair_batch import Batch
    from trainwright.planning.shared_times import SharedTimes

    Floats = NDArray[np.float64]


def exchanged_s(
    shared: SharedTimes, batch: Batch, forward_s: float, backward_s: Floats, *, overlap: Overlap
) -> tuple[Floats, Floats]:
    """Of all ranks: what data parallelism adds per microbatch, and after the last one, [N]."""
    zero, group = batch.zero_stage, batch.group
    under_s = overlap.gradients * backward_s
    gather_s = np.where(zero == 3, shared.gather_s[group], shared.update_s[group])
    scatter_s, between_s = shared.scatter_s[group], shared.between_s[group]
    gathered_s = np.maximum(0.0, gather_s - overlap.parameters * forward_s)
    scattered_s = np.maximum(0.0, scatter_s - under_s)
    both_s = gathered_s + np.maximum(0.0, gather_s + scatter_s - under_s)
    reduced_s = np.maximum(0.0, shared.reduce_s[group] - under_s)
    # Scattering of every microbatch may leave all of what hides to what follows the last.
    left_s = np.maximum(0.0, between_s - under_s)
    last_s = np.maximum(0.0, scatter_s + between_s - under_s)
    added_s = np.select([zero == 2, zero == 3], [scattered_s, both_s], 0.0)
    after_s = [reduced_s, last_s + gathered_s, gathered_s + left_s]
    return added_s, np.select([zero == 0, zero == 1, zero == 2], after_s, left_s)


def tail_of(like: LikeLayers, shared: SharedTimes, batch: Batch, overlap: Overlap) -> Tail:
    """What a rank with some of these layers exchanges after the last microbatch, at least."""
    zero, group = batch.zero_stage, batch.group
    sync, gather = np.array(like.sync_bytes), np.array(like.gather_bytes)
    reduced_s, scattered_s, between_s, gathered_s = (
        (byte_s @ own)[group]
        for byte_s, own in (
            (shared.reduce_byte_s, sync),
            (shared.gather_byte_s, sync),
            (shared.between_byte_s, sync),
            (shared.gather_byte_s, gather),
        )
    )
    last_s = scattered_s + between_s
    gradients_s = np.select([zero == 0, zero == 1], [reduced_s, last_s], between_s)
    parameters_s = np.where((zero == 1) | (zero == 2), gathered_s, 0.0)
    return Tail(
        (
            (gradients_s, overlap.gradients * like.longest.backward_s),
            (parameters_s, overlap.parameters * like.longest.forward_s),
        )
    )
