"""Data parallelism in a step: what a ZeRO exchange leaves exposed, and the state a device holds.

ZeRO (Rajbhandari et al., 2020) shards optimizer state (1), gradients (2) and weights (3) over the
replicas of a stage: d·c of the dense parameters, fewer of those of experts. With g the gradients of
a stage, w its weights and u those of them that train, in bytes per device:

    stage   with every microbatch               once a step besides       cut into parts
            under forward   under backward      under forward   backward
    0       -               -                   -               reduce g  -
    1       -               -                   gather u        scatter g optimizer
    2       -               scatter g           gather u        -         + gradients
    3       gather w        gather w, scatter g -               -         + weights

An all-reduce (`reduce`) of stage 0 is one collective. With several copies of the sharded state
(hybrid shard; Zhao et al., PyTorch FSDP, 2023; MiCS, Zhang et al., 2022) groups of replicas scatter
and gather among themselves, and like shards of all groups are reduced once a step, under the last
backward, too (`between`). Once a step means: gradients with the last backward, parameters with the
first forward of the next step.

A transfer hides under the compute it accompanies, up to a share of that (`plans.configuration`).
With E what every microbatch exchanges in a window, L what the last one does, E and what comes once
together, and U what hides in that window:

    added to every microbatch    max(0, E - U)
    left after the last one      max(0, L - U) - max(0, E - U)

Where a rank has several stages and g microbatches pass each in turn (interleaving), Megatron-LM
gathers the parameters of a stage while the stage before it runs, and reduces its gradients while
that one runs backward (`param_sync_func`, `grad_sync_func` of its `schedules.py`). Under ZeRO-0 and
1, U is then of its own microbatch and of g - 1 of the stage before it on the rank.

State of a stage on one device is its bytes over the parts they are cut into, of the weights under
ZeRO-3 the share e that it holds of its shards. The rest lies on its host: with each gathering every
device fetches (1 - e)·w/d over its own link, before the network passes it on. ZeRO-3 gathers the
weights of a layer in use and of the next one, at most all of the rank: min(2·w·(1 - e/d), all).

All rules are functions of arrays that broadcast, the ZeRO stage among them; one stage is one row.
`exposed` and `state_bytes` are the two that everything priced goes through: whoever adds a term to
what a stage exposes or holds adds it there, and estimates, bounds, planners and chip searches
follow. Bounds from sums over all layers count a stage at most once for what it does not owe to its
layers, so that they hold for any such term that is not negative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import numpy as np

from trainwright.cluster import Accelerator, Cluster, Hop, NetworkLevel
from trainwright.costing.communication import (
    Lines,
    all_gather_lines,
    all_reduce_lines,
    all_reduce_time_s,
    beyond_s,
    fastest_s,
    memory_time_s,
)
from trainwright.plans.configuration import Overlap
from trainwright.profile import StaticKind, Structure

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trainwright.arrays import Floats, Ints
    from trainwright.model import Precision, Recipe
    from trainwright.step.stages import StageWork

    Hops = tuple[Hop, ...]
    Stage = int | Ints  # a ZeRO stage, 0 to 3, or an array of them
    Seconds = Floats  # of one stage plain numbers, too: arrays without axes to all who compute

NUM_STAGES: Final = 4

# The table above, by ZeRO stage, 0 or 1: is it exchanged at all, and if so with every microbatch?
_REDUCES: Final = (1.0, 0.0, 0.0, 0.0)
_SHARDS: Final = (0.0, 1.0, 1.0, 1.0)  # scatters gradients, gathers parameters
_SCATTERS_EVERY: Final = (0.0, 0.0, 1.0, 1.0)
_GATHERS_EVERY: Final = (0.0, 0.0, 0.0, 1.0)

_FIRST_STAGE: Final = np.array([kind.first_cut for kind in StaticKind])
_TOUCHED: Final = np.array([kind.touches for kind in StaticKind])


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The groups over which a stage is replicated, (dense, expert): sizes and collectives.

    `reduce` and `gather` hold start and seconds per byte of each way to all-reduce, and to gather
    or scatter; groups are those that share one copy of the state. `between` are the ways to reduce
    its parts over the copies, per byte of the whole. Of shards of weights a device holds the share
    `held_weights`; `fetch_byte_s` is what the others take from its host, per byte of the whole.
    """

    sizes: tuple[int, int]
    reduce: tuple[Lines, Lines]
    gather: tuple[Lines, Lines]
    zero_stage: int
    between: tuple[Lines, Lines] = ((), ())
    held_weights: float = 1.0
    fetch_byte_s: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def over(
        cls,
        sizes: tuple[int, int],
        hops: tuple[Hops, Hops],
        *,
        zero_stage: int,
        copies: Hops = (),
        hosted: tuple[float, float] = (0.0, 0.0),
    ) -> Replicas:
        """Groups of these sizes that cross the network at `hops`; like parts meet at `copies`.

        `hosted` are the share of weights on the host, and the seconds in which a byte comes.
        """
        dense, expert = hops
        between = all_reduce_lines(copies)
        return cls(
            sizes=sizes,
            reduce=(all_reduce_lines(dense), all_reduce_lines(expert)),
            gather=(all_gather_lines(dense), all_gather_lines(expert)),
            zero_stage=zero_stage,
            between=(_of_parts(between, sizes[0]), _of_parts(between, sizes[1])),
            held_weights=1.0 - hosted[0],
            fetch_byte_s=(hosted[0] * hosted[1] / sizes[0], hosted[0] * hosted[1] / sizes[1]),
        )

    def shards(self, group: int, kind: StaticKind) -> int:
        """Into how many parts the state of a kind is cut."""
        return int(shards(self.zero_stage, self.sizes)[group, kind])

    def state_bytes(self, static_bytes: Floats) -> Floats:
        """`state_bytes` of stages that are replicated so, [..., 3] from [..., 2, 3]."""
        return state_bytes(self.zero_stage, self.sizes, static_bytes, held=self.held_weights)

    @property
    def gathered_layers(self) -> float:
        """How many layers' weights a device gathers at most beside what it holds."""
        held = self.held_weights
        return float(gathered_layers(self.zero_stage, self.sizes[0], held=held))


def _of_parts(lines: Lines, count: int) -> Lines:
    """For all bytes of which each device moves one part."""
    return tuple((start_s, byte_s / count) for start_s, byte_s in lines)


# What an exchange leaves exposed
# -------------------------------


class Traffic(NamedTuple):
    """Seconds of the collectives of stages, each run once and nothing hidden; they broadcast.

    All-reduce of all gradients, their scatter, the gathering of parameters (all weights under
    ZeRO-3, else those that train), and the reduction of shards between copies of the state.
    """

    reduce_s: Seconds
    scatter_s: Seconds
    gather_s: Seconds
    between_s: Seconds

    @classmethod
    def of(cls, replicas: Replicas, sync: Floats, weights: Floats, trained: Floats) -> Traffic:
        """Of stages that are replicated alike.

        Bytes are (dense, expert) on the last axis, [..., 2]: gradients, all weights and those that
        the optimizer changes. The times have the shape [...].
        """
        moved = gathered(replicas.zero_stage, weights, trained)
        return cls(
            reduce_s=lines_s(replicas.reduce, sync),
            scatter_s=lines_s(replicas.gather, sync),
            gather_s=lines_s(replicas.gather, moved) + _fetch_s(replicas, moved),
            between_s=lines_s(replicas.between, sync),
        )

    def once(self, zero_stage: Stage) -> Traffic:
        """The same without what is exchanged with every microbatch."""
        return self._replace(
            scatter_s=self.scatter_s * (1 - _at(_SCATTERS_EVERY, zero_stage)),
            gather_s=self.gather_s * (1 - _at(_GATHERS_EVERY, zero_stage)),
        )


def _fetch_s(replicas: Replicas, weights: Floats) -> Seconds:
    """Seconds in which shards of weights [..., 2] come from the hosts."""
    dense_s, expert_s = replicas.fetch_byte_s
    every = _at(_GATHERS_EVERY, replicas.zero_stage)
    return every * (weights[..., 0] * dense_s + weights[..., 1] * expert_s)


class Windows(NamedTuple):
    """Seconds that are exchanged, or that hide what is, while a microbatch runs."""

    forward_s: Seconds
    backward_s: Seconds


class Exposed(NamedTuple):
    """Seconds that no compute hides: of every microbatch, and what is left after the last one."""

    forward_s: Seconds
    backward_s: Seconds
    last_gradients_s: Seconds
    last_parameters_s: Seconds

    @property
    def every_s(self) -> Seconds:
        """What is added to a microbatch."""
        return self.forward_s + self.backward_s

    @property
    def last_s(self) -> Seconds:
        """What follows the last microbatch; of parameters, what precedes the first one."""
        return self.last_gradients_s + self.last_parameters_s


def _at(table: tuple[float, ...], zero_stage: Stage) -> Seconds:
    """The entry of a stage, or of an array of them. One row is plain numbers: ten times quicker."""
    if isinstance(zero_stage, int):
        return cast("Seconds", table[zero_stage])
    found: Floats = np.array(table)[zero_stage]
    return found


def gathered(zero_stage: Stage, weights: ArrayLike, trained: ArrayLike) -> Floats:
    """What replicas gather: all weights under ZeRO-3, else those that were updated.

    Bytes or anything that grows with them; the arguments broadcast.
    """
    if isinstance(zero_stage, int):
        return np.asarray(weights if _GATHERS_EVERY[zero_stage] else trained)
    return np.where(_at(_GATHERS_EVERY, zero_stage) > 0, weights, trained)


def every_microbatch(zero_stage: Stage, traffic: Traffic) -> Windows:
    """What is exchanged with every microbatch, nothing hidden: E above."""
    gather_s = _at(_GATHERS_EVERY, zero_stage) * traffic.gather_s
    # Backward of ZeRO-3 gathers weights and scatters gradients on the same links.
    return Windows(gather_s, gather_s + _at(_SCATTERS_EVERY, zero_stage) * traffic.scatter_s)


def last_microbatch(zero_stage: Stage, traffic: Traffic) -> Windows:
    """What is exchanged with the last backward and the first forward, nothing hidden: L above."""
    regather_s = _at(_GATHERS_EVERY, zero_stage) * traffic.gather_s
    sharded = _at(_SHARDS, zero_stage)
    return Windows(
        sharded * traffic.gather_s,
        regather_s
        + sharded * traffic.scatter_s
        + sharded * traffic.between_s
        + _at(_REDUCES, zero_stage) * traffic.reduce_s,
    )


def exposed(zero_stage: Stage, traffic: Traffic, under: Windows) -> Exposed:
    """What the exchanges of stages leave exposed.

    `under` are the seconds of a microbatch that exchanges hide under, by stage: the shares of its
    forward and of its backward. Everything broadcasts.
    """
    every, last = every_microbatch(zero_stage, traffic), last_microbatch(zero_stage, traffic)
    forward_s = beyond_s(every.forward_s, under.forward_s)
    backward_s = beyond_s(every.backward_s, under.backward_s)
    return Exposed(
        forward_s=forward_s,
        backward_s=backward_s,
        last_gradients_s=beyond_s(last.backward_s, under.backward_s) - backward_s,
        last_parameters_s=beyond_s(last.forward_s, under.forward_s) - forward_s,
    )


def group_hiding(zero_stage: Stage, group: ArrayLike) -> Seconds:
    """How many microbatches hide what a stage exchanges once, of a `group` that passes it at once.

    All but one of them pass the stage of the same rank before it (in backward, after it).
    """
    once = 1.0 - _at(_SCATTERS_EVERY, zero_stage)
    if isinstance(group, int):
        return 1.0 + (group - 1) * once
    return 1.0 + (np.asarray(group) - 1.0) * once


def least_exposed(zero_stage: Stage, traffic: Traffic, under: Windows) -> tuple[Seconds, Seconds]:
    """What stages expose at least whose exchanges and windows add up to these.

    Of every microbatch, and after the last. How the sums are dealt out to the stages is not known:
    scattering of every microbatch may leave all of what hides to what follows the last.
    """
    once = traffic.once(zero_stage)
    every_s = exposed(zero_stage, traffic, under).every_s
    return every_s, exposed(zero_stage, once, under).last_s


def lines_s(lines: tuple[Lines, Lines], sizes: Floats) -> Floats:
    """Seconds of a collective of the dense and of the expert group, one after the other.

    `sizes` [..., 2] are bytes; nothing to send takes no time, and neither does a group of one.
    """
    total = np.zeros(sizes.shape[:-1])
    for group, ways in enumerate(lines):
        if ways:
            own = sizes[..., group]
            (start_s, byte_s), *others = ways
            each = start_s + own * byte_s
            for start_s, byte_s in others:
                each = np.minimum(each, start_s + own * byte_s)
            total += np.where(own > 0, each, 0.0)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelTimes:
    """Per microbatch what is added to forward and backward; the rest, and all kinds, per step.

    `gradients_s` and `parameters_s` count what hides too; `exposed_parameters_s` is the share of
    the exposed time, added per microbatch or at the end, that gathers parameters.
    """

    added_forward_s: float = 0.0
    added_backward_s: float = 0.0
    exposed_sync_s: float = 0.0
    gradients_s: float = 0.0
    parameters_s: float = 0.0
    exposed_gradients_s: float = 0.0
    exposed_parameters_s: float = 0.0

    @property
    def sync_s(self) -> float:
        """All synchronisation of a step."""
        return self.gradients_s + self.parameters_s


def data_parallel_times(
    works: Sequence[StageWork],
    replicas: Replicas,
    overlap: Overlap,
    *,
    num_microbatches: int,
    group: int = 1,
) -> tuple[DataParallelTimes, ...]:
    """What synchronising each stage of one rank costs; its stages are in the model's order.

    `group` microbatches pass each stage of the rank before any passes the next one.
    """
    hiding = float(group_hiding(replicas.zero_stage, group)) - 1.0
    found, before_s = [], (0.0, 0.0)
    for work in works:
        under_s = work.forward_s + hiding * before_s[0], work.backward_s + hiding * before_s[1]
        found.append(_times(work, replicas, overlap, num_microbatches, under_s))
        before_s = work.forward_s, work.backward_s
    return tuple(found)


def _times(
    work: StageWork,
    replicas: Replicas,
    overlap: Overlap,
    num_microbatches: int,
    compute_s: tuple[float, float],
) -> DataParallelTimes:
    stage, m = replicas.zero_stage, num_microbatches
    traffic = _traffic_of(work, replicas)
    under_s = overlap.parameters * compute_s[0], overlap.gradients * compute_s[1]
    under = Windows(*(cast("Seconds", each) for each in under_s))
    found = exposed(stage, traffic, under)
    reduced_s = _REDUCES[stage] * traffic.reduce_s + _SHARDS[stage] * traffic.between_s
    scatters = m if _SCATTERS_EVERY[stage] else _SHARDS[stage]
    gathers = 2 * m if _GATHERS_EVERY[stage] else _SHARDS[stage]
    # In a backward that gathers, too, gradients count first.
    scattered_s = min(found.backward_s, _SCATTERS_EVERY[stage] * traffic.scatter_s)
    regathered_s = found.backward_s - scattered_s
    return DataParallelTimes(
        added_forward_s=float(found.forward_s),
        added_backward_s=float(found.backward_s),
        exposed_sync_s=float(found.last_s),
        gradients_s=float(scatters * traffic.scatter_s + reduced_s),
        parameters_s=float(gathers * traffic.gather_s),
        exposed_gradients_s=float(m * scattered_s + found.last_gradients_s),
        exposed_parameters_s=float(m * (found.forward_s + regathered_s) + found.last_parameters_s),
    )


def _traffic_of(work: StageWork, replicas: Replicas) -> Traffic:
    """`Traffic.of` one stage; a plan has few, and plain numbers are quicker for so few rows."""
    whole = replicas.zero_stage == NUM_STAGES - 1
    weights = work.static_bytes[:, StaticKind.WEIGHT] if whole else work.trained_weight_bytes
    sync = work.sync_bytes.tolist()
    return Traffic(
        reduce_s=_time_s(replicas.reduce, sync),
        scatter_s=_time_s(replicas.gather, sync),
        gather_s=_time_s(replicas.gather, weights.tolist()) + _fetch_s(replicas, weights),
        between_s=_time_s(replicas.between, sync),
    )


def _time_s(lines: tuple[Lines, Lines], sizes: Sequence[float]) -> Seconds:
    """`lines_s` of one row."""
    dense, expert = sizes
    time_s = fastest_s(lines[0], dense) if dense > 0 else 0.0
    time_s = time_s + fastest_s(lines[1], expert) if expert > 0 else time_s
    return cast("Seconds", time_s)


def holders_of_tied(stages: Iterable[int], rank_of_stage: Callable[[int], int]) -> list[int]:
    """Of the stages that hold a tied tensor the first on each rank, by ranks in order.

    Stages of one rank add their gradients up among themselves; the ranks all-reduce the sums.
    """
    first: dict[int, int] = {}
    for stage in sorted(set(stages)):
        first.setdefault(rank_of_stage(stage), stage)
    return [first[rank] for rank in sorted(first)]


def tied_times_s(
    works: Sequence[StageWork],
    layers: Iterable[Sequence[int]],
    structure: Structure,
    rank_of_stage: Sequence[int],
    level_between: Callable[[int, int], NetworkLevel | None],
) -> tuple[float, ...]:
    """Per stage, the all-reduce of tied parameters' gradients with the other ranks that hold them.

    `layers` are the ids of each stage's; `level_between` two stages is what a message of the rank
    of one to that of the other crosses.
    """
    ids = structure.ids
    stage_of = {layer: number for number, own in enumerate(layers) for layer in own}
    times_s = [0.0] * len(works)
    for group in structure.shared_parameters:
        held_by = (stage_of[ids[layer]] for layer in group.layers)
        holders = holders_of_tied(held_by, rank_of_stage.__getitem__)
        level = level_between(holders[0], holders[-1]) if len(holders) > 1 else None
        if level is None:
            continue
        hops = (Hop(level=level, ranks=len(holders)),)
        for number in holders:
            time_s = all_reduce_time_s(works[number].shared_gradient_bytes, hops)
            times_s[number] = max(times_s[number], time_s)  # of all groups, over the widest one
    return tuple(times_s)


# Which bytes of state a device holds, and which the update touches
# -----------------------------------------------------------------


def shards(zero_stage: Stage, sizes: ArrayLike) -> Floats:
    """Into how many parts state is cut: [..., 2, 3], (dense, expert) by `StaticKind`.

    `zero_stage` has the shape [...], `sizes` of the groups [..., 2].
    """
    if isinstance(zero_stage, int) and isinstance(sizes, tuple):
        return _shards_of(zero_stage, sizes)
    cuts = np.asarray(zero_stage)[..., np.newaxis, np.newaxis] >= _FIRST_STAGE
    return np.where(cuts, np.asarray(sizes, dtype=np.float64)[..., np.newaxis], 1.0)


@lru_cache(maxsize=4096)
def _shards_of(zero_stage: int, sizes: tuple[int, int]) -> Floats:
    found = shards(np.array(zero_stage), sizes)
    found.flags.writeable = False
    return found


def kept_bytes(
    zero_stage: Stage, sizes: ArrayLike, static_bytes: Floats, *, held: float = 1.0
) -> Floats:
    """What one device keeps of stages' `static_bytes` before sharding, both [..., 2, 3].

    Groups have `sizes` [..., 2]; of shards of weights the device has the share `held`.
    """
    kept: Floats = static_bytes / shards(zero_stage, sizes)
    if held != 1:
        own = np.where(_at(_GATHERS_EVERY, zero_stage) > 0, held, 1.0)
        kept[..., StaticKind.WEIGHT] *= own[..., np.newaxis]
    return kept


def state_bytes(
    zero_stage: Stage, sizes: ArrayLike, static_bytes: Floats, *, held: float = 1.0
) -> Floats:
    """Weight, gradient and optimizer bytes of stages on one device, [..., 3]; see `kept_bytes`.

    Weights that ZeRO-3 gathers lie beside (`gathered_bytes`), and so does what has no kind.
    """
    found: Floats = kept_bytes(zero_stage, sizes, static_bytes, held=held).sum(axis=-2)
    return found


def beside_layers_bytes(zero_stage: Stage, sizes: ArrayLike) -> Floats:
    """What a stage holds that grows with none of its layers, for those who add layers up, [...]."""
    found: Floats = state_bytes(zero_stage, sizes, _NO_STATE).sum(axis=-1)
    return found


def gathered_layers(zero_stage: Stage, num_replicas: int | Ints, *, held: float = 1.0) -> Seconds:
    """How many layers' weights a device gathers at most beside its own shards, in layers.

    It has the share `held` of these.
    """
    return _at(_GATHERS_EVERY, zero_stage) * (2 * (1 - held / num_replicas))


def gathered_bytes(layers: ArrayLike, largest: ArrayLike, whole: ArrayLike) -> Floats:
    """Weights that a rank gathers: of so many layers (`gathered_layers`), at most all it has.

    `largest` are the weight bytes of its heaviest layer, `whole` those of all its layers.
    """
    return np.minimum(np.multiply(layers, largest), whole)


def touched_bytes(
    zero_stage: Stage, sizes: ArrayLike, static_bytes: Floats, trained: Floats
) -> Floats:
    """Bytes that the update moves on one device, [...]; trained weights are [..., 2].

    Gradients and states are read, states and weights written.
    """
    parts = shards(zero_stage, sizes)[..., StaticKind.OPTIMIZER]
    found: Floats = ((static_bytes @ _TOUCHED + trained) / parts).sum(axis=-1)
    return found


def touched_per_parameter(numbers: Precision) -> float:
    """Bytes that the update of one parameter moves on a device, which holds all shards of it."""
    kept = zip(StaticKind, numbers.state, strict=True)
    moved = (kind.touches * each * held for kind, (each, held) in kept)
    return sum(moved, start=float(numbers.weight_bytes))


_NO_STATE: Final = np.zeros((2, len(StaticKind)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankState:
    """State of one rank before sharding: by stage, (dense, expert) × `StaticKind` [S, 2, 3]."""

    static_bytes: Floats
    trained_weight_bytes: Floats
    largest_weight_bytes: float

    @classmethod
    def of(cls, works: Sequence[StageWork]) -> RankState:
        """That of the stages of a rank."""
        return cls(
            static_bytes=np.array([work.static_bytes for work in works]),
            trained_weight_bytes=np.array([work.trained_weight_bytes for work in works]),
            largest_weight_bytes=max(work.largest_weight_bytes for work in works),
        )


def optimizer_time_s(state: RankState, replicas: Replicas, accelerator: Accelerator) -> float:
    """Seconds of the update of a rank, which memory limits."""
    touched = touched_bytes(
        replicas.zero_stage, replicas.sizes, state.static_bytes, state.trained_weight_bytes
    )
    return update_time_s(float(touched.sum()), accelerator)


def update_time_s(touched_bytes: float, accelerator: Accelerator) -> float:
    """Seconds of an update that moves so many bytes of a device, and what its host does beside."""
    if not touched_bytes:
        return 0.0
    return (
        memory_time_s(touched_bytes, accelerator)
        + touched_bytes * accelerator.update_delay_s_per_byte
    )


def with_host_updates(accelerator: Accelerator, numbers: Precision) -> Accelerator:
    """The device as an update finds it whose states lie on the host in part.

    The host updates its share of the parameters: their gradients come over the link, their weights
    go back, unless they lie on the host; those that the device updates then go there. With g, o and
    w the bytes of gradient, states and weight of a parameter, of which a device holds the shares e
    of gradients and 1 - s of states, an update touches e·g + 2(1 - s)·o + w on the device: the
    delay of each such byte adds up to what the host takes.
    """
    host, states = accelerator.host, 1 - numbers.held_states
    gradient, weight, held = numbers.gradient_bytes, numbers.weight_bytes, numbers.held_weights
    if host is None or (states <= 0 and held == 1):
        return accelerator
    moved = states * (gradient + held * weight) + (1 - states) * (1 - held) * weight
    spent_s = states / host.updates_per_s + moved / host.link_bytes_per_s
    return replace(
        accelerator,
        update_delay_s_per_byte=spent_s / touched_per_parameter(numbers),
        held_weights=held,
    )


def with_offload(cluster: Cluster, recipe: Recipe, *, precision: str | None = None) -> Cluster:
    """The cluster whose devices update as `recipe` says where their states lie."""
    if recipe.offload is None:
        return cluster
    pools = []
    for pool in cluster.pools:
        named = precision or recipe.precision or pool.accelerator.default_precision
        device = with_host_updates(pool.accelerator, recipe.numbers(named))
        pools.append(replace(pool, accelerator=device))
    return replace(cluster, pools=tuple(pools))


def with_all_weights(cluster: Cluster) -> Cluster:
    """The cluster whose devices hold their shards of weights themselves."""
    pools = (
        replace(pool, accelerator=replace(pool.accelerator, held_weights=1.0))
        for pool in cluster.pools
    )
    return replace(cluster, pools=tuple(pools))


class StaticShards(NamedTuple):
    """Bytes of one device: what it keeps by `StaticKind`, and whole weights of layers in use."""

    kept: tuple[float, ...]
    gathered: float


def static_shards(state: RankState, replicas: Replicas) -> StaticShards:
    """What a device holds of its rank's state."""
    kept = replicas.state_bytes(state.static_bytes).sum(axis=0).tolist()
    layers = replicas.gathered_layers
    whole = state.static_bytes[:, :, StaticKind.WEIGHT].sum()
    gathers = float(gathered_bytes(layers, state.largest_weight_bytes, whole)) if layers else 0.0
    return StaticShards(kept=tuple(kept), gathered=gathers)
