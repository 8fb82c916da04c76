"""What data parallelism adds to the stages and ranks of many configurations, as arrays.

The rules are those of `sharding`, one array operation in place of one call per stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainwright.costing.compute import memory_time_s
from trainwright.pricing.ragged import Ragged
from trainwright.profile import StaticKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainwright.cluster import Accelerator
    from trainwright.costing.communication import Lines
    from trainwright.plan.overlap import Overlap
    from trainwright.pricing.batch_cuts import Cuts
    from trainwright.pricing.block_sums import WorkTable
    from trainwright.pricing.sharding import Replicas

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_GROUPS = (0, 1)  # dense parameters, those of experts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """Cuts with the replicas they are run by, as numbers of each, and what may overlap."""

    cut: Ints
    replicas: Ints
    overlap: tuple[Overlap, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankCosts:
    """Of pairs, one after another: seconds added to `stages`, the rest of `ranks`.

    `optimizer_s` is that of the slowest rank of each pair.
    """

    stages: Ragged
    added_forward_s: Floats
    added_backward_s: Floats
    ranks: Ragged
    exposed_sync_s: Floats
    static_bytes: Floats
    optimizer_s: Floats

    @property
    def adds(self) -> NDArray[np.bool_]:
        """Which pairs add anything to a microbatch."""
        added = self.added_forward_s + self.added_backward_s
        return np.maximum.reduceat(added, self.stages.starts) > 0


def rank_costs(
    table: WorkTable,
    cuts: Cuts,
    pairs: Pairs,
    replicas: Sequence[Replicas],
    accelerator: Accelerator,
) -> RankCosts:
    """Synchronisation, state and update of every pair."""
    stages, ranks = cuts.stages.chosen(pairs.cut), cuts.ranks.chosen(pairs.cut)
    places = cuts.stages.places(pairs.cut)
    works, owner = cuts.works[places], np.repeat(np.arange(len(pairs.cut)), stages.lengths)
    forward_s, backward_s, exposed_s = _synchronised_s(table, works, owner, pairs, replicas)
    on_rank = cuts.ranks.places(pairs.cut)
    held = Ragged.of(cuts.held[on_rank])
    by_rank = np.repeat(stages.starts, stages.lengths) + cuts.by_rank[places]
    of_ranks = np.add.reduceat(exposed_s[by_rank], held.starts)
    static_bytes, touched_bytes = _state(table, cuts, pairs, replicas)
    return RankCosts(
        stages=stages,
        added_forward_s=forward_s,
        added_backward_s=backward_s,
        ranks=ranks,
        exposed_sync_s=of_ranks + cuts.tied_s[on_rank],
        static_bytes=static_bytes,
        optimizer_s=_update_s(np.maximum.reduceat(touched_bytes, ranks.starts), accelerator),
    )


def _synchronised_s(
    table: WorkTable, works: Ints, owner: Ints, pairs: Pairs, replicas: Sequence[Replicas]
) -> tuple[Floats, Floats, Floats]:
    """Of every stage of every pair: added to forward and to backward, and exposed at the end."""
    of_stage = pairs.replicas[owner]
    zero = np.array([each.zero_stage for each in replicas])[of_stage]
    static, trained = table["static_bytes"], table["trained_weight_bytes"]
    gathered = np.where((zero == 3)[:, None], static[works, :, StaticKind.WEIGHT], trained[works])
    gather_lines = [each.gather for each in replicas]
    sync_lines = [each.gather if each.zero_stage else each.reduce for each in replicas]
    sync_s = _times_s(sync_lines, of_stage, table["sync_bytes"][works])
    between = [each.between for each in replicas]
    all_sync_s = sync_s + _times_s(between, of_stage, table["sync_bytes"][works])
    gather_s = np.where(zero > 0, _times_s(gather_lines, of_stage, gathered), 0.0)
    window = np.array([(each.parameters, each.gradients) for each in pairs.overlap])[owner]
    backward_s = table["input_grad_s"][works] + table["weight_grad_s"][works]
    under_forward_s = window[:, 0] * table["forward_s"][works]
    under_backward_s = window[:, 1] * backward_s
    gather_exposed_s = np.maximum(0.0, gather_s - under_forward_s)
    sync_exposed_s = np.maximum(0.0, sync_s - under_backward_s)
    all_exposed_s = np.maximum(0.0, all_sync_s - under_backward_s)
    # Backward of ZeRO-3 gathers weights and scatters gradients on the same links.
    both_exposed_s = np.maximum(0.0, gather_s + sync_s - under_backward_s)
    return (
        np.where(zero == 3, gather_exposed_s, 0.0),
        np.select([zero == 3, zero == 2], [both_exposed_s, sync_exposed_s], 0.0),
        np.select(
            [zero == 3, zero == 2, zero == 1],
            [
                np.maximum(0.0, gather_s + all_sync_s - under_backward_s) - both_exposed_s,
                gather_exposed_s + (all_exposed_s - sync_exposed_s),
                all_exposed_s + gather_exposed_s,
            ],
            sync_exposed_s,
        ),
    )


def _times_s(lines: Sequence[tuple[Lines, Lines]], which: Ints, sizes: Floats) -> Floats:
    """`sharding._time_s` of sizes [n, 2] over the groups' lines that `which` numbers."""
    total_s = np.zeros(len(sizes))
    for group in _GROUPS:
        size = sizes[:, group]
        if not size.any():
            continue
        start_s, slope = _line_arrays([each[group] for each in lines])
        each_s = start_s[which] + size[:, None] * slope[which]
        total_s += np.where(size > 0, each_s.min(axis=1), 0.0)
    return total_s


def _line_arrays(lines: Sequence[Lines]) -> tuple[Floats, Floats]:
    """Starts and slopes [n, most]; a group of one takes no time, lines that lack all of it."""
    most = max(1, *map(len, lines)) if lines else 1
    start_s, slope = np.full((len(lines), most), np.inf), np.zeros((len(lines), most))
    for row, own in enumerate(lines):
        for column, (start, byte_s) in enumerate(own or ((0.0, 0.0),)):
            start_s[row, column], slope[row, column] = start, byte_s
    return start_s, slope


def _state(
    table: WorkTable, cuts: Cuts, pairs: Pairs, replicas: Sequence[Replicas]
) -> tuple[Floats, Floats]:
    """Bytes on one device and bytes that the update touches, of every rank of every pair."""
    first = np.repeat(cuts.stages.starts, cuts.stages.lengths)
    works, starts = cuts.works[first + cuts.by_rank], Ragged.of(cuts.held).starts
    static = np.add.reduceat(table["static_bytes"][works], starts, axis=0)
    trained = np.add.reduceat(table["trained_weight_bytes"][works], starts, axis=0)
    opaque = np.add.reduceat(table["opaque_bytes"][works], starts)
    largest = np.maximum.reduceat(table["largest_weight_bytes"][works], starts)
    places = cuts.ranks.places(pairs.cut)
    of_rank = np.repeat(pairs.replicas, cuts.ranks.lengths[pairs.cut])
    shards = np.array(
        [
            [[each.shards(group, kind) for kind in StaticKind] for group in _GROUPS]
            for each in replicas
        ]
    )[of_rank]
    kept = static[places]
    static_bytes = (kept / shards).sum(axis=(1, 2)) + opaque[places]
    whole = np.array([each.zero_stage == 3 for each in replicas])[of_rank]
    others = 1 - 1 / np.array([each.sizes[0] for each in replicas])[of_rank]
    weights = kept[:, :, StaticKind.WEIGHT].sum(axis=1)
    static_bytes += np.where(whole, np.minimum(2 * largest[places] * others, weights), 0.0)
    touched = kept[:, :, StaticKind.GRADIENT] + 2 * kept[:, :, StaticKind.OPTIMIZER]
    touched = (touched + trained[places]) / shards[:, :, StaticKind.OPTIMIZER]
    return static_bytes, touched.sum(axis=1)


def _update_s(touched_bytes: Floats, accelerator: Accelerator) -> Floats:
    """Seconds of the update; most pairs touch as many bytes as others do."""
    distinct, which = np.unique(touched_bytes, return_inverse=True)
    times_s = [memory_time_s(size, accelerator) if size else 0.0 for size in distinct.tolist()]
    return np.array(times_s)[which]
