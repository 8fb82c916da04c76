"""Thousands of configurations of one model on one cluster: the same figures, shared work.

Every configuration is first told apart by small numbers: of how its layers are priced, how its
blocks are cut, how it is replicated, and of its schedule. Layers are priced once per way to cut
them, stages once per interval of blocks, schedules once per shape and times. The rest are arrays
over configurations and ranks. Illegal configurations are marked, not raised. The figures are those
of `price_configuration`; a test holds both against each other.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainwright.cluster import Hop
from trainwright.costing.communication import (
    all_reduce_lines,
    fastest_s,
    memory_time_s,
    point_to_point_time_s,
)
from trainwright.errors import Fault, InvalidInput, UnsupportedFeature
from trainwright.model import model_flops_per_sequence, precision_named
from trainwright.plans.configuration import broken_rules, even_blocks
from trainwright.profile import Recompute, StaticKind
from trainwright.step.memory import PeakRows, StageActivations, peak_rows
from trainwright.step.pipeline import (
    PipelineShape,
    PipelineTimes,
    SteadyState,
    peak_shape,
    placement_of,
    schedule_of,
    shorter_shape,
    simulated_ends_s,
    steady_state,
)
from trainwright.step.places import RankSpacing, group_axis_hops, group_replicas
from trainwright.step.predict import estimator_of, point_of, schedule_faults, shape_of
from trainwright.step.stages import BlockSums, Interval, Ragged, WorkRows

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from numpy.typing import NDArray

    from trainwright.arrays import Floats, Ints
    from trainwright.cluster import Accelerator, Cluster, NetworkLevel
    from trainwright.costing.communication import Lines
    from trainwright.model import TransformerConfig
    from trainwright.plans.configuration import Configuration, Overlap
    from trainwright.step.stages import WorkTable
    from trainwright.step.zero import Replicas

    Timings = tuple["_Timing", ...]


# How a configuration's blocks are dealt out to virtual stages, shared by many configurations
# -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """What lies between stages: `levels` that differ, by neighbours `between`.

    `stages_of` ranks, of which each has so many `crossings` to other ranks; `ends` are the ways to
    all-reduce between the ranks of the first and of the last stage, the `outer_ranks`.
    """

    stages_of: tuple[tuple[int, ...], ...]
    levels: tuple[NetworkLevel | None, ...]
    between: tuple[int, ...]
    crossings: tuple[int, ...]
    outer_ranks: tuple[int, int]
    ends: Lines


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cut:
    """All virtual stages as `works`, rows of the table of works [S]; the rest by rank [p].

    `tied_s` is what reducing the gradients of tied embeddings takes, where a rank holds them.
    """

    works: tuple[int, ...]
    stages_of: tuple[tuple[int, ...], ...]
    transfer_s: Floats
    buffer_bytes: Floats
    tied_s: Floats
    overlap: Overlap


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cuts:
    """Many cuts, one after another: `works` by stage, what is theirs by rank.

    `by_rank` lists the stages rank after rank, as places among those of their cut, and `held` says
    how many each rank has.
    """

    stages: Ragged
    works: Ints
    by_rank: Ints
    ranks: Ragged
    held: Ints
    buffer_bytes: Floats
    tied_s: Floats

    @classmethod
    def of(cls, cuts: Sequence[Cut]) -> Cuts:
        """Lay them out."""
        owned = [own for cut in cuts for own in cut.stages_of]
        return cls(
            stages=Ragged.of([len(cut.works) for cut in cuts]),
            works=np.array([work for cut in cuts for work in cut.works], dtype=np.int64),
            by_rank=np.array(list(chain.from_iterable(owned)), dtype=np.int64),
            ranks=Ragged.of([len(cut.stages_of) for cut in cuts]),
            held=np.array(list(map(len, owned)), dtype=np.int64),
            buffer_bytes=np.concatenate([cut.buffer_bytes for cut in cuts]),
            tied_s=np.concatenate([cut.tied_s for cut in cuts]),
        )


def boundaries_of(
    shape: PipelineShape, spacing: RankSpacing, levels: tuple[NetworkLevel, ...]
) -> Boundaries:
    """What ranks that lie so have to cross."""
    owner = placement_of(shape).rank_of_stage
    between = [spacing.level_between(levels, a, b) for a, b in pairwise(owner)]
    distinct = tuple(dict.fromkeys(between))
    stages_of: list[list[int]] = [[] for _ in range(max(owner) + 1)]
    crossings = [0] * len(stages_of)
    for stage, rank in enumerate(owner):
        stages_of[rank].append(stage)
        neighbours = (*owner[max(0, stage - 1) : stage], *owner[stage + 1 : stage + 2])
        crossings[rank] += sum(other != rank for other in neighbours)
    ends = spacing.level_between(levels, owner[0], owner[-1])
    return Boundaries(
        stages_of=tuple(map(tuple, stages_of)),
        levels=distinct,
        between=tuple(distinct.index(level) for level in between),
        crossings=tuple(crossings),
        outer_ranks=(owner[0], owner[-1]),
        ends=() if ends is None else all_reduce_lines((Hop(level=ends, ranks=2),)),
    )


def cut_of(run: Configuration, boundaries: Boundaries, sums: BlockSums) -> Cut:
    """Deal the blocks out and price what passes between ranks."""
    works, size = _works(run, sums), sums.boundary_bytes
    times_s = [point_to_point_time_s(size, level) for level in boundaries.levels]
    boundary_bytes = 2 * size * np.array(boundaries.crossings, dtype=np.float64)
    return Cut(
        works=works,
        stages_of=boundaries.stages_of,
        transfer_s=np.array([times_s[level] for level in boundaries.between], dtype=np.float64),
        buffer_bytes=boundary_bytes + _gathered_input_bytes(run, size),
        tied_s=_tied_s(works, boundaries, sums),
        overlap=run.overlap,
    )


def _works(run: Configuration, sums: BlockSums) -> tuple[int, ...]:
    counts = run.blocks_per_stage or even_blocks(sums.num_blocks, run.num_stages)
    limit = sums.num_blocks if run.recompute_blocks is None else run.recompute_blocks
    last = len(counts) - 1
    every = run.recompute_blocks is None

    def work(first: int, count: int, *, has_front: bool, has_back: bool) -> int:
        return sums.work(
            Interval(
                first=first,
                last=first + count,
                num_recomputed=min(count, limit),
                mode=run.recompute,
                mtp_mode=run.recompute if every else Recompute.NONE,
                has_front=has_front,
                has_back=has_back,
            )
        )

    if not sums.is_uniform:
        firsts = accumulate(counts, initial=0)
        return tuple(
            work(first, count, has_front=stage == 0, has_back=stage == last)
            for stage, (first, count) in enumerate(zip(firsts, counts, strict=False))
        )
    if last == 0:
        return (work(0, counts[0], has_front=True, has_back=True),)
    inner = counts[1:-1]
    middle = {count: work(0, count, has_front=False, has_back=False) for count in set(inner)}
    return (
        work(0, counts[0], has_front=True, has_back=False),
        *[middle[count] for count in inner],
        work(0, counts[last], has_front=False, has_back=True),
    )


def _tied_s(works: Sequence[int], boundaries: Boundaries, sums: BlockSums) -> Floats:
    """The first and the last stage hold tied embeddings both, where the model has any."""
    times_s = np.zeros(len(boundaries.stages_of))
    if sums.is_tied:
        for work, rank in zip((works[0], works[-1]), boundaries.outer_ranks, strict=True):
            shared_bytes = sums.rows.value(work, "shared_gradient_bytes")
            times_s[rank] += fastest_s(boundaries.ends, shared_bytes)
    return times_s


def _gathered_input_bytes(run: Configuration, boundary_bytes: float) -> float:
    degrees = run.parallelism
    gathers = degrees.sequence_parallel and degrees.tensor > 1
    return boundary_bytes * degrees.tensor if gathers else 0.0


# What data parallelism adds to the stages and ranks of many configurations, as arrays
# ------------------------------------------------------------------------------------
# The rules are those of `sharding`, one array operation in place of one call per stage.

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


# When the ranks of many configurations end, and what they hold at their fullest
# ------------------------------------------------------------------------------
# Configurations of equal times share what is simulated, and steps of one pipeline and different
# lengths share a steady state. Memory in flight depends on counts alone, unless the family looks at
# times, so it is one product for all cuts of a shape.


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: what several figures need is kept
class Pipelines:
    """Runs [n] as numbers of cuts, shapes and pairs of cut and replicas.

    Figures come by run and rank, one rank after another.
    """

    table: WorkTable
    cuts: Sequence[Cut]
    laid: Cuts
    shapes: Sequence[PipelineShape]
    costs: RankCosts
    cut: Ints
    shape: Ints
    pair: Ints

    def ends_s(self) -> Floats:
        """When each rank ends its last action."""
        timings, timing = self._timings
        first, which = distinct(timing, self.shape)
        shorter = [shorter_shape(shape) for shape in self.shapes]
        found = []
        for number, shape in zip(timing[first].tolist(), self.shape[first].tolist(), strict=True):
            found.append(timings[number].ends_s(self.shapes[shape], shorter[shape]))
        return _spread(found, which)

    def held_bytes(self) -> Floats:
        """What the schedule holds beside static memory."""
        timings, timing = self._timings
        enough = [peak_shape(s) if s.is_timeless else s for s in self.shapes]
        timeless = np.array([shape.is_timeless for shape in self.shapes])[self.shape]
        number = {shape: i for i, shape in enumerate(dict.fromkeys(enough))}
        of_shape = np.array([number[shape] for shape in enough])[self.shape]
        first, which = distinct(self.cut, np.where(timeless, -1, timing), of_shape)
        by_shape: dict[int, list[int]] = defaultdict(list)
        for place, shape in enumerate(of_shape[first].tolist()):
            by_shape[shape].append(place)
        found: list[Floats] = [np.zeros(0)] * len(first)
        for shape, of_number in number.items():
            places = by_shape[of_number]
            if shape.is_timeless:
                peaks = _timeless_rows(shape).peaks(self._activations(self.cut[first[places]]))
                for place, own in zip(places, peaks, strict=True):
                    found[place] = own
                continue
            for place in places:
                schedule = schedule_of(shape, timings[int(timing[first[place]])].times)
                alone = self._activations(self.cut[first[place : place + 1]])
                found[place] = peak_rows(schedule).peaks(alone)[0]
        return _spread(found, which)

    def _activations(self, cuts: Ints) -> StageActivations:
        """Of cuts [n] with equally many stages [n, S]."""
        works = self.laid.works[self.laid.stages.places(cuts)].reshape(len(cuts), -1)
        return StageActivations(
            until_input_grad=self.table["until_input_grad_bytes"][works],
            until_weight_grad=self.table["until_weight_grad_bytes"][works],
            transient=self.table["transient_bytes"][works],
            logits=self.table["logits_bytes"][works],
        )

    @cached_property
    def _timings(self) -> tuple[Timings, Ints]:
        """Cuts at all times that differ, and which of these a run has."""
        pair = np.where(self.costs.adds[self.pair], self.pair, -1)
        first, which = distinct(self.cut, pair)
        cut, pair = self.cut[first], pair[first]
        stages = self.laid.stages.chosen(cut)
        works = self.laid.works[self.laid.stages.places(cut)]
        added = np.zeros((2, len(works)))
        adds = np.repeat(pair >= 0, stages.lengths)
        places = self.costs.stages.places(pair[pair >= 0])
        added[0, adds] = self.costs.added_forward_s[places]
        added[1, adds] = self.costs.added_backward_s[places]
        forward_s = self.table["forward_s"][works] + added[0]
        input_grad_s = self.table["input_grad_s"][works] + added[1]
        weight_grad_s = self.table["weight_grad_s"][works]
        timings = []
        for number, start, length in zip(
            cut.tolist(), stages.starts.tolist(), stages.lengths.tolist(), strict=True
        ):
            own, of = slice(start, start + length), self.cuts[number]
            timings.append(
                _Timing(
                    times=PipelineTimes(
                        forward_s=forward_s[own],
                        input_grad_s=input_grad_s[own],
                        weight_grad_s=weight_grad_s[own],
                        transfer_s=of.transfer_s,
                        blocking=1 - of.overlap.pipeline,
                    )
                )
            )
        return tuple(timings), which


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Timing:
    """Times of a pipeline, and the steady states that its steps of several lengths share."""

    times: PipelineTimes
    states: dict[PipelineShape, SteadyState | None] = field(default_factory=dict)

    def ends_s(self, shape: PipelineShape, shorter: PipelineShape | None) -> Floats:
        if shorter is not None:
            if shorter not in self.states:
                self.states[shorter] = steady_state(shorter, self.times)
            state = self.states[shorter]
            if state is not None:
                return state.ends_s(shape.num_microbatches)
        return simulated_ends_s(shape, self.times)


def distinct(*columns: Ints) -> tuple[Ints, Ints]:
    """The first row of each distinct one, and which of these every row is; numbers from -1 on."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        key = key * (int(column.max(initial=0)) + 2) + column + 1
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return first, which


def _spread(found: Sequence[Floats], which: Ints) -> Floats:
    ranks = Ragged.of([len(own) for own in found])
    values: Floats = np.concatenate(found)[ranks.places(which)]
    return values


@lru_cache(maxsize=1024)
def _timeless_rows(shape: PipelineShape) -> PeakRows:
    zeros = np.zeros(0)
    times = PipelineTimes(
        forward_s=zeros, input_grad_s=zeros, weight_grad_s=zeros, transfer_s=zeros
    )
    return peak_rows(schedule_of(shape, times))


# Thousands of configurations of one model on one cluster: the same figures, shared work
# --------------------------------------------------------------------------------------

_AT_ONCE: Final = 20_000  # configurations whose ranks are laid out side by side


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchPrices:
    """One entry per configuration; NaN where it is illegal, and then `faults` says why."""

    step_time_s: Floats
    peak_memory_bytes: Floats
    mfu: Floats
    faults: tuple[tuple[Fault, ...], ...]


def price_batch(
    model: TransformerConfig, cluster: Cluster, configurations: Sequence[Configuration]
) -> BatchPrices:
    """Time, peak memory and MFU of every configuration."""
    prices = np.full((len(configurations), 3), np.nan)
    faults: list[tuple[Fault, ...]] = []
    for first in range(0, len(configurations), _AT_ONCE):
        numbered = _Numbered(model=model, cluster=cluster)
        some = configurations[first : first + _AT_ONCE]
        found = [numbered.faults_of(run) for run in some]
        legal = [index for index, own in enumerate(found) if not own]
        if legal:
            prices[[first + index for index in legal]] = numbered.prices()
        faults += found
    return BatchPrices(
        step_time_s=prices[:, 0],
        peak_memory_bytes=prices[:, 1],
        mfu=prices[:, 2],
        faults=tuple(faults),
    )


@dataclass(slots=True)
class _Numbered:
    """Legal configurations, told apart by numbers, and all that these numbers stand for."""

    model: TransformerConfig
    cluster: Cluster
    _num_devices: int = field(init=False)
    _made: dict[Hashable, Any] = field(default_factory=dict)
    _numbers: dict[str, dict[Any, int]] = field(default_factory=dict)
    _rows: WorkRows = field(default_factory=WorkRows)
    _cuts: list[Cut] = field(default_factory=list)
    _replicas: list[Replicas] = field(default_factory=list)
    # Of every legal configuration: cut, shape, replicas; devices' seconds per peak, overheads.
    _runs: list[tuple[int, int, int]] = field(default_factory=list)
    _peak_s: list[float] = field(default_factory=list)
    _overheads: list[tuple[float, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._num_devices = self.cluster.pool_of().num_devices

    def faults_of(self, run: Configuration) -> tuple[Fault, ...]:
        """Take a configuration in, unless it breaks a rule: then these."""
        try:
            self._take(run)
        except InvalidInput as error:
            return error.faults
        except UnsupportedFeature as error:
            return (Fault("configuration", str(error)),)
        return ()

    def prices(self) -> Floats:
        """Step time, peak memory and MFU of what was taken in, shape [n, 3]."""
        cut, shape, replicated = np.array(self._runs, dtype=np.int64).T
        first, pair = distinct(cut, replicated)
        pairs = Pairs(
            cut=cut[first],
            replicas=replicated[first],
            overlap=tuple(self._cuts[number].overlap for number in cut[first].tolist()),
        )
        device, table, laid = self.cluster.accelerator, self._rows.table(), Cuts.of(self._cuts)
        costs = rank_costs(table, laid, pairs, self._replicas, device)
        pipelines = Pipelines(
            table=table,
            cuts=self._cuts,
            laid=laid,
            shapes=self._shapes(),
            costs=costs,
            cut=cut,
            shape=shape,
            pair=pair,
        )
        ranks, of_pair = laid.ranks.chosen(cut), costs.ranks.places(pair)
        workspace_bytes, buffers = np.array(self._overheads).T
        buffer_bytes = laid.buffer_bytes[laid.ranks.places(cut)] * np.repeat(buffers, ranks.lengths)
        held_bytes = pipelines.held_bytes() + costs.static_bytes[of_pair] + buffer_bytes
        ends_s = pipelines.ends_s() + costs.exposed_sync_s[of_pair]
        step_s = np.maximum.reduceat(ends_s, ranks.starts) + costs.optimizer_s[pair]
        step_s += device.step_overhead_s
        peak_bytes = np.maximum.reduceat(held_bytes, ranks.starts) + workspace_bytes
        return np.column_stack([step_s, peak_bytes, np.array(self._peak_s) / step_s])

    def _take(self, run: Configuration) -> None:
        degrees = run.parallelism
        t, c, d = degrees.tensor, degrees.context, degrees.data
        pipeline = (run.schedule, degrees.pipeline, degrees.virtual_stages)
        spread = (t, c, degrees.expert, degrees.expert_tensor)
        sizes = (degrees.sequence_parallel, run.microbatch_size, run.sequence_length)
        kernels = (run.fused_attention, run.fused_cross_entropy, run.vocabulary_multiple)
        recipe = (self._same(run.recipe), self._same(run.overlap), run.recompute_modules)
        layers = self._number("layers", (*spread, *sizes, *kernels, *recipe))
        m, rest = divmod(run.global_batch, run.microbatch_size * d)
        self._require_legal(run, layers, m, is_whole=rest == 0)
        spacing = RankSpacing.of(degrees)
        boundaries, crossed = self._kept(
            ("boundaries", *pipeline, spacing.size, spacing.repeats),
            lambda: self._boundaries(run, spacing),
        )
        stages = (layers, run.recompute, run.recompute_blocks, run.blocks_per_stage)
        cut = self._kept(
            ("cut", *stages, *pipeline, crossed), lambda: self._cut(run, boundaries, layers)
        )
        apart = spacing.num_ranks if spacing.repeats > 1 else 1  # replicas, in pipelines
        replicated = self._kept(
            ("replicas", *spread, d, degrees.zero_stage, degrees.state_copies, apart),
            lambda: self._replicated(run),
        )
        self._runs.append((cut, self._number("shape", (*pipeline, m)), replicated))
        sequence_s = self._kept(
            ("ideal", run.sequence_length, run.recipe.precision), lambda: self._ideal_s(run)
        )
        self._peak_s.append(run.global_batch * sequence_s / degrees.num_devices)
        self._overheads.append((run.overheads.workspace_bytes, run.overheads.buffers))

    def _require_legal(
        self, run: Configuration, layers: int, microbatches: int, *, is_whole: bool
    ) -> None:
        """Rules are asked once for all runs that differ in nothing they look at."""
        degrees, pool = run.parallelism, self.cluster.pool_of()
        pipeline = (degrees.pipeline, degrees.virtual_stages)
        stages = (run.recompute_blocks, run.blocks_per_stage)
        spanned = degrees.expert * degrees.expert_shards
        copies = degrees.state_copies
        fits = (
            degrees.devices_per_rank % spanned,
            degrees.adjacent_devices % spanned,
            degrees.num_devices <= self._num_devices,
            copies == 1
            or (
                degrees.zero_stage,
                degrees.data % copies,
                degrees.data == copies,
                degrees.expert_data % copies,
            ),
        )
        broken: tuple[Fault, ...] = self._kept(
            ("legal", layers, *pipeline, *stages, *fits, is_whole),
            lambda: broken_rules(run, self.model, pool),
        )
        schedule: tuple[Fault, ...] = self._kept(
            ("schedule", run.schedule, *pipeline, microbatches),
            lambda: tuple(schedule_faults(run)),
        )
        if broken or schedule:
            raise InvalidInput((*broken_rules(run, self.model, pool), *schedule))

    def _boundaries(self, run: Configuration, spacing: RankSpacing) -> tuple[Boundaries, int]:
        """What ranks that lie so cross, and a number for it: many cross the same."""
        made = boundaries_of(shape_of(run), spacing, self.cluster.levels)
        return made, self._number("crossed", made)

    def _cut(self, run: Configuration, boundaries: Boundaries, layers: int) -> int:
        sums: BlockSums = self._kept(("sums", layers), lambda: self._sums(run))
        self._cuts.append(cut_of(run, boundaries, sums))
        return len(self._cuts) - 1

    def _sums(self, run: Configuration) -> BlockSums:
        point = replace(point_of(run), recompute=tuple(map(str, Recompute)))
        return BlockSums(
            profile=estimator_of(self.model, self.cluster, run).profile(point),
            tensor=run.parallelism.tensor,
            hops=group_axis_hops(self.cluster.pool_of(), run.parallelism),
            rows=self._rows,
        )

    def _replicated(self, run: Configuration) -> int:
        self._replicas.append(group_replicas(self.cluster.pool_of(), run.parallelism))
        return len(self._replicas) - 1

    def _ideal_s(self, run: Configuration) -> float:
        """Of a sequence on one device at its peak."""
        device = self.cluster.accelerator
        numbers = precision_named(run.recipe.precision or device.default_precision)
        flops = model_flops_per_sequence(self.model, run.sequence_length)
        return flops / device.peak(numbers.matmul_dtype)

    def _shapes(self) -> list[PipelineShape]:
        return [
            PipelineShape(family=family, num_ranks=p, virtual_stages=v, num_microbatches=m)
            for family, p, v, m in self._numbers["shape"]
        ]

    def _same(self, value: Hashable) -> int:
        """A number for equal values; a value is hashed only when it is first seen."""
        known = self._made.get(id(value))
        if known is None:
            known = self._made[id(value)] = (value, self._number("value", value))
        number: int = known[1]
        return number

    def _number(self, kind: str, key: Any) -> int:
        """A small number for a key, which is quicker to look up than the key."""
        numbers = self._numbers.setdefault(kind, {})
        return numbers.setdefault(key, len(numbers))

    def _kept(self, key: Hashable, make: Callable[[], Any]) -> Any:
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = make()
        return found
