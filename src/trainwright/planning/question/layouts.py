"""All pairs of pipeline depth and data degree of a point, as arrays.

There are thousands of pairs per point and most are never looked at alone, so they are bounded all
at once (`bounds.step.Batch`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.cluster import Cluster, NetworkLevel, least_piece
from trainwright.errors import Fault, InvalidInput, UnsupportedFeature
from trainwright.model import LayerKind
from trainwright.planning.question.question import ANY, Allowed, ModelQuestion, Point, Span
from trainwright.plans.capability import Demands, capability_of, gaps_of_degrees
from trainwright.plans.capability_table import Feature
from trainwright.plans.job import training_demands
from trainwright.plans.plan import (
    DATA_INSIDE,
    DEFAULT_SCHEDULE,
    PIPELINE_INSIDE,
    AxisOrder,
    Parallelism,
)
from trainwright.plans.schedule import Placing
from trainwright.profile.measured_model import MeasuredModel
from trainwright.profile.profile import divisors
from trainwright.scheduling.families import ALIASES, FAMILIES, family_named
from trainwright.scheduling.families.family import Searched
from trainwright.step.pipeline import slices_of
from trainwright.step.stages import group_replicas
from trainwright.step.zero import Replicas

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.arrays import Flags, Floats, Ints

# The schedule families that plans are searched under, and what bounds and splits ask of them
# -------------------------------------------------------------------------------------------
# All of it is read off the families themselves (`scheduling.families`): a family that is `planned`
# takes part in the search by how its stages lie on the ranks, and is bounded by what it says of its
# orders.
#
# Families in V order actions by the times of their stages, so what a rank holds is known when a
# split is. But each of them is published as one order for equal times, made for a memory, and
# repeats it in the middle of a step whatever the times are: ZB-V the word F0 I0 W0 F1 I1 W1 after a
# warm-up, V-Half and V-Min a block every six slots. How many microbatches wait for their input
# gradients then depends on the rank alone, and the families promise that they have held as many
# (`least_in_flight`).


_PLANNED = tuple(family for family in FAMILIES.values() if family.planned)

BOUNDED: Final = tuple(family.name for family in _PLANNED)
CHAIN: Final = tuple(family.name for family in _PLANNED if family.placing is Placing.ONE)
LOOPED: Final = tuple(family.name for family in _PLANNED if family.placing is Placing.LOOP)
IN_V: Final = tuple(family.name for family in _PLANNED if family.placing is Placing.V)

SPLIT_BACKWARD: Final = frozenset(family.name for family in _PLANNED if family.splits_backward)
# Of each chunk, in flight on a rank with so many ranks from it on before its first backward, at
# most m: as published. Where nobody knows it is 1.
PUBLISHED_WARM_UP: Final[Mapping[str, Callable[[Ints], Ints]]] = {
    family.name: family.warm_up for family in _PLANNED if family.warm_up is not None
}
# The same where it is sure: orders in V follow from times.
WARM_UP: Final = {name: own for name, own in PUBLISHED_WARM_UP.items() if name in CHAIN}
# Of each chunk at one instant, over all ranks in any order: sure, too.
HELD_AT_ONCE: Final[Mapping[str, Callable[[Ints], Ints]]] = {
    family.name: own
    for family in _PLANNED
    if (own := family.held_at_once or family.warm_up) is not None
    and (family.placing is not Placing.V or family.least_in_flight is not None)
}
# The head is cut over all ranks, in two actions of its own (`planning.bounds.step.head_bounds_s`).
CUTS_HEAD: Final = frozenset(family.name for family in _PLANNED if family.head_barriers)
# Activations wait on the host, so that what a rank holds follows from its order alone.
ON_HOST: Final = frozenset(family.name for family in _PLANNED if family.host_of is not None)
# Orders keep to the bytes of their devices.
KEEPS_TO_ROOM: Final = frozenset(family.name for family in _PLANNED if family.keeps_to_room)
# Families whose bound is one on others, too.
COVERS: Final = {family.name: family.covers for family in _PLANNED if family.covers}
# Pairs of actions hide what each waits for in the network (`planning.bounds.step.Hidden`).
BRAIDED: Final = frozenset(family.name for family in _PLANNED if family.braids)
# Sequences are cut into slices, which bounds and splits take for microbatches (`in_slices`).
SLICED: Final = frozenset(family.name for family in _PLANNED if family.slices is not None)
# One stage per rank and whole backwards, which lead from the last rank to the first.
WHOLE_BACKWARD: Final = frozenset(CHAIN) - SPLIT_BACKWARD
# Every backward waits for the whole one of the stage behind it.
FUSED: Final = frozenset((*CHAIN, *LOOPED)) - SPLIT_BACKWARD
# min(m, 1 + s·r) weight gradients are left after the last input gradient of rank r.
WEIGHT_GRAD_LAG: Final[Mapping[str, int]] = {
    family.name: family.weight_grad_lag for family in _PLANNED if family.weight_grad_lag is not None
}
# Microbatches pass each chunk in groups of p, all of them.
WHOLE_GROUPS: Final = frozenset(family.name for family in _PLANNED if family.whole_groups)
# They may: of the family whose order another one has where p divides them, too.
IN_GROUPS: Final = WHOLE_GROUPS | {
    family.name for family in _PLANNED if family.like in WHOLE_GROUPS
}
# Chunk activations that no rank of a family exceeds, by the number of ranks.
MOST_ACTIVATIONS: Final[Mapping[str, Callable[[int], int]]] = {
    family.name: family.most_activations
    for family in _PLANNED
    if family.most_activations is not None
}


def chunks_per_rank(family: str) -> int | None:
    """Virtual stages per rank; None where any number of them will do."""
    return family_named(family).num_chunks


@lru_cache(maxsize=256)
def published_in_flight(
    family: str, num_ranks: int, num_microbatches: int
) -> tuple[Floats, Floats]:
    """Of stage r and of stage 2p-1-r on every rank, waiting for input gradients: [N, p] each.

    At each of the N instants of a rank that can be its fullest in the family's published order.
    """
    published = family_named(family).published_in_flight
    assert published is not None, "families in V are published with what they hold"
    near, far = published(num_ranks, num_microbatches)
    return near.astype(np.float64), far.astype(np.float64)


@lru_cache(maxsize=256)
def least_in_flight(family: str, num_ranks: int, num_microbatches: int) -> tuple[Floats, Floats]:
    """What every order of a family in V holds, shaped like `published_in_flight`.

    Each rank has both chunks of some microbatch at once, and whatever the family promises.
    """
    one = np.ones((1, num_ranks))
    promised = family_named(family).least_in_flight
    if promised is None:
        return one, one
    near, far = promised(num_ranks, num_microbatches)
    return np.concatenate((one, near)), np.concatenate((one, far))


def most_in_flight(num_ranks: int, most: int) -> tuple[Floats, Floats]:
    """In V, of orders that hold `most` chunk activations on every rank, whatever the times.

    Shaped like `published_in_flight`. At the one instant as many of the far stage as it ever does,
    at the other as few. The far stage waits longer the nearer to the turn it lies.
    """
    share = (most / 2 - 1) * np.arange(num_ranks) / max(1, num_ranks - 1)
    far = np.stack([np.minimum(most / 2, np.ceil(share) + 2), np.floor(share)])
    return most - far, far


# ----------------------------------------------------------------------------------------------


# Groups of replicas of points on a cluster, each looked up once
# --------------------------------------------------------------


@dataclass(slots=True)
class ReplicaGroups:
    """Those of a cluster; points of the same degrees share them."""

    cluster: Cluster
    _made: dict[tuple[int, ...], Replicas] = field(default_factory=dict)

    def of_point(self, point: Point, kinds: NDArray[np.int64]) -> list[Replicas]:
        """One for each kind of groups, `kinds` [D, 4] (see `group_kinds`)."""
        return [self._group(point, *kind) for kind in kinds.tolist()]

    def _group(self, point: Point, data: int, copies: int, pipeline: int, inside: int) -> Replicas:
        held = (point.tensor, point.context, point.expert, point.expert_devices)
        key = (*held, data, copies, pipeline, inside)
        if key not in self._made:
            degrees = Parallelism(
                tensor=point.tensor,
                context=point.context,
                data=data,
                pipeline=pipeline,
                expert=point.expert,
                expert_tensor=point.expert_tensor,
                state_copies=copies,
                axis_order=PIPELINE_INSIDE if inside else DATA_INSIDE,
            )
            self._made[key] = group_replicas(self.cluster.pool_of(), degrees)
        return self._made[key]


# All pairs of pipeline depth and data degree of a point, as arrays
# -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layouts:
    """N pairs: ranks of the pipeline, replicas, microbatches of one replica, chunks per rank.

    `inside` says where the pipeline lies inside the replicas (`plans.plan`), `copies` is how
    many groups of replicas each hold all sharded state, and `like` a depth with which these lie on
    the network as they do with that of the pair.
    """

    pipeline: Ints
    data: Ints
    num_microbatches: Ints
    virtual_stages: Ints
    inside: Flags
    copies: Ints
    like: Ints

    @property
    def size(self) -> int:
        """N."""
        return len(self.pipeline)

    def at(self, kept: Ints | NDArray[np.bool_] | slice) -> Layouts:
        """Some of the pairs."""
        return Layouts(
            pipeline=self.pipeline[kept],
            data=self.data[kept],
            num_microbatches=self.num_microbatches[kept],
            virtual_stages=self.virtual_stages[kept],
            inside=self.inside[kept],
            copies=self.copies[kept],
            like=self.like[kept],
        )


def joined(parts: Sequence[Layouts]) -> Layouts:
    """The pairs of all parts, in their order."""
    return Layouts(
        pipeline=np.concatenate([part.pipeline for part in parts]),
        data=np.concatenate([part.data for part in parts]),
        num_microbatches=np.concatenate([part.num_microbatches for part in parts]),
        virtual_stages=np.concatenate([part.virtual_stages for part in parts]),
        inside=np.concatenate([part.inside for part in parts]),
        copies=np.concatenate([part.copies for part in parts]),
        like=np.concatenate([part.like for part in parts]),
    )


def layouts_of(
    point: Point, allowed: Allowed, *, num_devices: int, num_blocks: int, num_microbatches: int
) -> Layouts:
    """Depths up to one block per stage by data degrees that divide the microbatches.

    `num_microbatches` is that of the whole batch. Experts are dealt out evenly over the devices of
    a rank. By depth, the largest data degree first.
    """
    room = num_devices // point.devices
    depths = [p for p in range(1, min(num_blocks, room) + 1) if p in allowed.pipeline]
    degrees = [
        d
        for d in reversed(divisors(num_microbatches))
        if d <= room and d in allowed.data and point.devices * d % point.expert_devices == 0
    ]
    pipeline = np.repeat(np.array(depths, np.int64), len(degrees))
    data = np.tile(np.array(degrees, np.int64), len(depths))
    fits = pipeline * data <= room
    pipeline, data = pipeline[fits], data[fits]
    return Layouts(
        pipeline=pipeline,
        data=data,
        num_microbatches=num_microbatches // data,
        virtual_stages=np.ones_like(pipeline),
        inside=np.zeros(len(pipeline), np.bool_),
        copies=np.ones_like(pipeline),
        like=pipeline,
    )


# How many copies of sharded state there may be: groups of replicas that fill units of the network
# ------------------------------------------------------------------------------------------------
# A copy on fewer devices gathers and scatters over nearer links, takes more memory, and its
# gradients are reduced over all copies once per step. That pays where microbatches exchange (ZeRO 2
# and 3) and a group just fills a node or a domain, so unless the user narrows the number these are
# searched beside a single copy, without a pipeline. Else every number that divides the replicas,
# beside one too, and under ZeRO 1. There all is exchanged once per step, and copies send more
# between nodes: gradients twice for weights once.

_PER_MICROBATCH = 2  # the first ZeRO stage that exchanges with every microbatch


def with_copies(
    layouts: Layouts, allowed: Span, point: Point, levels: tuple[NetworkLevel, ...]
) -> Layouts:
    """Every pair with each number of copies that is looked at; a single copy comes first."""
    parts = [layouts] if 1 in allowed else []
    if allowed == ANY:
        units = np.cumprod([level.size for level in levels])[:-1]
        for unit in units.tolist():
            copies = point.devices * layouts.data // unit
            fills = (layouts.pipeline == 1) & (point.devices * layouts.data == copies * unit)
            parts.append(_copied(layouts, np.maximum(1, copies), fills, point))
    else:
        for number in divisors(int(np.lcm.reduce(layouts.data))) if layouts.size else ():
            if number > 1 and number in allowed:
                copies = np.full(layouts.size, number)
                parts.append(_copied(layouts, copies, np.ones(layouts.size, np.bool_), point))
    return joined(parts) if parts else layouts.at(slice(0, 0))


def is_worth_copying(layouts: Layouts, zero_stage: int, allowed: Span) -> Flags:
    """Which pairs are looked at under a ZeRO stage; without one there is nothing to copy."""
    if zero_stage >= _PER_MICROBATCH or (zero_stage and allowed != ANY):
        return np.ones(layouts.size, np.bool_)
    found: Flags = layouts.copies == 1
    return found


def _copied(layouts: Layouts, copies: Ints, asked: Flags, point: Point) -> Layouts:
    """The pairs whose replicas, of experts too, make so many equal groups of several devices."""
    data, devices = layouts.data, point.devices
    kept = asked & (copies > 1) & (data % copies == 0)
    kept &= (devices * data) % (point.expert_devices * copies) == 0
    return replace(layouts, copies=copies).at(kept & (data > copies))


# Where the pipeline may lie inside the replicas: which pairs of depth and data degree gain by it
# -----------------------------------------------------------------------------------------------
# With the pipeline inside (`plans.plan`), ranks lie as many devices apart as one of them has
# for one replica, and replicas a whole pipeline apart. Transfers between ranks get no slower for it
# and, where groups of replicas fill units evenly, the exchange of replicas no faster, but for the
# latency of rings of other lengths. So where both orders may be used, the pipeline is put inside
# where its ranks fill the units of a level evenly and more neighbours share one, or where more
# replicas do: 7 of them lie as 7, 1 | 6 side by side on nodes of 8, and 4 | 3 two devices apart.
#
# Experts are dealt out over devices that follow on each other, so they have to fill them, as
# Megatron-LM has it: only then layers cost the same under both orders.


def with_mappings(
    layouts: Layouts,
    orders: tuple[AxisOrder, ...],
    point: Point,
    levels: tuple[NetworkLevel, ...],
) -> Layouts:
    """Every pair under every order that may be used and that is looked at."""
    numbers = np.arange(layouts.size)
    if DATA_INSIDE not in orders:
        kept = numbers[_alike(point, layouts)]
        return replace(layouts.at(kept), inside=np.ones(len(kept), np.bool_))
    if PIPELINE_INSIDE not in orders:
        return layouts
    nearer = numbers[_nearer(point, layouts, levels)]
    both = layouts.at(np.concatenate((numbers, nearer)))
    return replace(both, inside=np.arange(both.size) >= layouts.size)


def _alike(point: Point, layouts: Layouts) -> Flags:
    """Where layers cost the same: experts fill what lies inside, or nothing lies between."""
    if point.expert_devices == point.devices:
        return np.ones(layouts.size, np.bool_)
    single: Flags = (layouts.pipeline == 1) | (layouts.data == 1)
    return single


def _nearer(point: Point, layouts: Layouts, levels: tuple[NetworkLevel, ...]) -> Flags:
    """Where the pipeline inside brings ranks or replicas nearer to each other on some level.

    Ranks where fewer neighbours lie in different units, which pipelines fill evenly.
    """
    p, d, size = layouts.pipeline, layouts.data, point.devices
    gains = np.zeros(layouts.size, dtype=np.bool_)
    if point.expert_devices != size:
        return gains
    for unit in np.cumprod([level.size for level in levels]).tolist():
        if size < unit:
            gains |= _crossings(size, p, d, unit) < _crossings(size * d, p, np.ones_like(d), unit)
        if unit % size == 0:
            beside, apart = _pieces(size * d, unit, p), _pieces(size * d * p, unit, np.ones_like(p))
            gains |= np.maximum(1, beside // size) < np.maximum(1, apart // (size * p))
    return gains & (p > 1) & (d > 1)


def _crossings(size: Ints | int, p: Ints, repeats: Ints, unit: int) -> Ints:
    """How many neighbours among p ranks of so many devices lie in different units.

    All of them where ranks or pipelines do not fill units evenly.
    """
    period = size * p
    is_even = (unit % size == 0) & ((repeats == 1) | (period % unit == 0) | (unit % period == 0))
    found: Ints = np.where(is_even, (period - 1) // unit, p - 1)
    return found


# Which pairs have groups of replicas that lie alike
# --------------------------------------------------
# Groups that fill units evenly, or make them up, lie alike whatever the depth of the pipeline.
# Others are priced as the smallest piece that edges of units cut off any rank's group
# (`nested_hops`): that gets smaller with more ranks, and with the pipeline inside it depends on
# their number in any case.


def group_kinds(layouts: Layouts) -> tuple[NDArray[np.int64], Ints]:
    """The kinds of groups of replicas that pairs have, [D, 4], and which each pair has, [N].

    By data degree, copies of state, depth of the pipeline (see `Layouts`) and whether it lies
    inside.
    """
    inside = layouts.inside & (layouts.pipeline > 1) & (layouts.data > 1)
    columns = (layouts.data, layouts.copies, layouts.like, inside.astype(np.int64))
    bases = [int(column.max(initial=1)) + 1 for column in columns]
    keys, group = np.unique(np.ravel_multi_index(columns, bases), return_inverse=True)
    return np.stack(np.unravel_index(keys, bases), axis=1).astype(np.int64), group


def with_like_groups(layouts: Layouts, point: Point, levels: tuple[NetworkLevel, ...]) -> Layouts:
    """The pairs, each with a depth of them at which groups lie as its own do."""
    units = np.cumprod([level.size for level in levels])[:-1].tolist()
    size = point.devices
    span, inside = size * layouts.data, layouts.inside & (layouts.pipeline > 1) & (layouts.data > 1)
    differs = inside.copy()
    for own in (span, span // layouts.copies):
        for unit in units:
            differs |= (unit % own != 0) & (own % unit != 0)
    like = np.ones_like(layouts.pipeline)
    some = np.flatnonzero(differs)
    p, d, copies = (own[some] for own in (layouts.pipeline, layouts.data, layouts.copies))
    inside = inside[some]
    span = span[some] * np.where(inside, p, 1)
    ranks, step = np.where(inside, 1, p), np.where(inside, size * p, 1)
    columns = [d, copies, inside, (p == 1) & (copies == 1)]
    for unit in units:
        if point.context > 1 and unit % size and size % unit:
            columns.append(np.where(inside, p, 0))  # edges cut what lies inside a replica
        columns.append(np.maximum(1, _pieces(span // copies, unit, ranks * copies) // step))
        shards = np.where(copies > 1, span // copies, span)
        columns.append(np.maximum(1, _pieces(span, unit, ranks) // shards))
    _, first, same = np.unique(
        np.stack(columns, axis=1), axis=0, return_index=True, return_inverse=True
    )
    like[some] = p[first][same.reshape(-1)]
    return replace(layouts, like=like)


def _pieces(spans: Ints, unit: int, tiles: Ints) -> Ints:
    """`least_piece` of so many spans, [N]; those that are even are seen at once."""
    shared = np.gcd(spans, unit)
    found = np.where((shared == spans) | (shared == unit), shared, 0)
    uneven = np.flatnonzero(found == 0)
    asked = zip(
        spans[uneven].tolist(), np.broadcast_to(tiles, spans.shape)[uneven].tolist(), strict=True
    )
    found[uneven] = [least_piece(span, unit, count) for span, count in asked]
    return found


# Which schedule families are searched, with how many chunks per rank, and where they are legal
# ---------------------------------------------------------------------------------------------
# One stage per rank first, then loops and V, those with a cut head last.
SEARCHED_UNLESS_NAMED: Final = tuple(
    family.name
    for family in sorted(
        _PLANNED, key=lambda each: (each.head_barriers > 0, list(Placing).index(each.placing))
    )
    if family.searched is Searched.ALWAYS
)
# No plan is looked for under these unless they are named; what is proved holds for them, too.
ONLY_BOUNDED: Final = tuple(family.name for family in _PLANNED if family.searched is Searched.NAMED)
MOST_CHUNKS: Final = 8  # that are looked for, unless a family or another number is named


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A family, and how many virtual stages a rank may have under it.

    `from_ranks` is the least depth: with one rank every order takes the same time, and 1F1B holds
    the least; with two all families in V may hold as much.
    """

    family: str
    virtual_stages: Span
    from_ranks: int = 1

    def chunks_at(self, layouts: Layouts, num_blocks: int, sequence_length: int) -> Ints:
        """With how many numbers of virtual stages each pair is legal, from the least on, [N].

        Every virtual stage can hold a block, the family has an order, and slices are equal.
        """
        p, least = layouts.pipeline, self.virtual_stages.least
        most = num_blocks // p
        if self.virtual_stages.most is not None:
            most = np.minimum(most, self.virtual_stages.most)
        legal = p >= self.from_ranks
        if self.family in WHOLE_GROUPS:
            legal &= layouts.num_microbatches % p == 0
        if self.family in SLICED:
            legal &= sequence_length % slices_at(self.family, p) == 0
        found: Ints = np.where(legal, np.maximum(0, most - least + 1), 0)
        return found


def slices_at(family: str, ranks: Ints) -> Ints:
    """Into how many slices a family cuts each sequence on so many ranks, [N] each."""
    depths, index = np.unique(ranks, return_inverse=True)
    counts: Ints = np.array([slices_of(family, depth) for depth in depths.tolist()], np.int64)
    return counts[index]


def schedules_of(allowed: Allowed, *, cuts_head: bool = True) -> tuple[Schedule, ...]:
    """The families that may be used, for models whose head can be cut over ranks and for others.

    Raises `UnsupportedFeature` where none of those that are allowed can be searched, and
    `InvalidInput` where none of them can have as many virtual stages as is asked for.
    """
    named = [ALIASES.get(family, family) for family in allowed.schedules or SEARCHED_UNLESS_NAMED]
    offered_families = [family for family in BOUNDED if cuts_head or family not in CUTS_HEAD]
    families = [family for family in dict.fromkeys(named) if family in offered_families]
    if not families:
        raise UnsupportedFeature(
            f"plans under {', '.join(named)} are not searched",
            alternative=f"use one of {', '.join(offered_families)}",
        )
    offered = allowed.virtual_stages
    if not allowed.schedules and offered.most is None:
        offered = replace(offered, most=max(MOST_CHUNKS, offered.least))
    chunks_of = {family: _chunks(family, offered) for family in families}
    whole = [f for f, chunks in chunks_of.items() if chunks is not None and chunks.least == 1]
    alone = DEFAULT_SCHEDULE if DEFAULT_SCHEDULE in whole else next(iter(whole), None)
    found = []
    for family, chunks in chunks_of.items():
        if chunks is not None:
            from_ranks = 1 if family == alone else 2
            if _is_another_on_two_ranks(family, families):
                from_ranks = 3
            found.append(Schedule(family=family, virtual_stages=chunks, from_ranks=from_ranks))
    if not found:
        raise InvalidInput.of(
            "virtual_stages", f"must leave a number that {', '.join(families)} can have"
        )
    return tuple(found)


def schedules_to_bound(allowed: Allowed, *, cuts_head: bool = True) -> tuple[Schedule, ...]:
    """Those that may be used beside those of one chunk per rank that are searched.

    Of some of them no plan is looked for.
    """
    searched = {
        schedule.family: schedule.from_ranks
        for schedule in schedules_of(allowed, cuts_head=cuts_head)
    }
    beside = ONLY_BOUNDED if allowed.schedules is None else allowed.only_bounded
    families = [family for family in searched if family not in CHAIN]
    families += [
        family
        for family in beside
        if family not in searched and (cuts_head or family not in CUTS_HEAD)
    ]
    covered = {name for family in families for name in COVERS.get(family, ())}
    chunks_of = {
        family: _chunks(family, allowed.virtual_stages)
        for family in families
        if family not in covered
    }
    return tuple(
        Schedule(family=family, virtual_stages=chunks, from_ranks=searched.get(family, 2))
        for family, chunks in chunks_of.items()
        if chunks is not None
    )


def _is_another_on_two_ranks(family: str, families: Sequence[str]) -> bool:
    """Whether a family in V made for less memory than 1F1B's has no less of it on two ranks.

    There, the one for all of 1F1B's memory finds the order, if it is one of those searched.
    """
    most = MOST_ACTIVATIONS
    all_of_it = [other for other in families if other in most and most[other](3) == _ON_THREE_RANKS]
    is_for_less = family in most and most[family](3) < _ON_THREE_RANKS
    return is_for_less and any(most[family](2) == most[other](2) for other in all_of_it)


_ON_THREE_RANKS: Final = 6  # chunk activations of 1F1B, two for each rank


def _chunks(family: str, allowed: Span) -> Span | None:
    """What is left of a family's numbers of chunks; a loop of one chunk is no loop."""
    own = chunks_per_rank(family)
    if own is not None:
        return Span.only(own) if own in allowed else None
    least = max(2, allowed.least)
    return (
        None if allowed.most is not None and allowed.most < least else replace(allowed, least=least)
    )


@dataclass(slots=True, eq=False)
class RunnableDegrees:
    """Which degrees a framework runs beside each other; what is `known` of a point is kept.

    `demands` are what the question asks of it whatever the degrees. How tokens travel is no matter
    of degrees: what of that a framework cannot say is said of the plan.
    """

    target: str
    demands: Demands
    known: dict[tuple[object, ...], Flags] = field(default_factory=dict)

    @classmethod
    def of(cls, question: ModelQuestion, target: str | None = None) -> RunnableDegrees | None:
        """Those of a target, or of the framework that is named; None where any plan will do."""
        target, recipe = target or question.allowed.framework, question.settings.recipe
        if target is None or isinstance(question.model, MeasuredModel):
            return None
        demands = training_demands(question.model, recipe, question.precision)
        return _degrees_of(
            target,
            replace(demands, dispatches_once=False, narrow_dispatch=False, context_exchange="ring"),
        )

    def at(self, point: Point, zero_stage: int) -> Flags:
        """[8]: with a pipeline (1), with replicas (2) and with copies of state (4), or without."""
        key = (point.tensor, point.context, point.expert, point.expert_tensor, zero_stage)
        if key not in self.known:
            found = [not self.faults(point, zero_stage, more) for more in range(8)]
            self.known[key] = np.array(found)
        return self.known[key]

    def faults(self, point: Point, zero_stage: int, more: int) -> tuple[Fault, ...]:
        """Why one of those cannot be run; empty where it can."""
        degrees = Parallelism(
            tensor=point.tensor,
            pipeline=2 if more & 1 else 1,
            data=2 * point.expert_devices if more & 2 else 1,  # so that experts have replicas, too
            context=point.context,
            expert=point.expert,
            expert_tensor=point.expert_tensor,
            sequence_parallel=point.tensor > 1,
            zero_stage=zero_stage,
            state_copies=2 if more & 4 else 1,
        )
        demands = replace(self.demands, parallelism=degrees)
        return tuple(gap.fault for gap in gaps_of_degrees(demands, self.target))

    def faults_of(self, allowed: Allowed) -> tuple[Fault, ...]:
        """Why none of the least degrees that are allowed runs; empty where some does."""
        tensor, cuts = allowed.tensor.least, allowed.expert_tensor
        shards = {1, tensor, cuts.least} if self.demands.has_experts else (None,)
        points = [
            Point(
                microbatch_size=1,
                tensor=tensor,
                context=allowed.context.least,
                expert=allowed.expert.least,
                expert_tensor=cut,
            )
            for cut in shards
            if cut is None or cut in cuts
        ]
        spans = enumerate((allowed.pipeline, allowed.data, allowed.state_copies))
        bits = [[0] * (1 in span) + [1 << bit] * (span.most != 1) for bit, span in spans]
        more = [sum(each) for each in product(*bits)]
        tried = [*product(points, allowed.zero_stages, more)]
        if not tried or any(self.at(point, zero)[at] for point, zero, at in tried):
            return ()
        return self.faults(*tried[0])

    def runs(self, point: Point, zero_stage: int, layouts: Layouts) -> Flags:
        """Which pairs can be run, [N]."""
        own = self.at(point, zero_stage)
        if own.all():
            return np.ones(layouts.size, np.bool_)
        piped, replicated, copied = layouts.pipeline > 1, layouts.data > 1, layouts.copies > 1
        found: Flags = own[piped + 2 * replicated + 4 * copied]
        return found


@lru_cache(maxsize=8)
def _degrees_of(target: str, demands: Demands) -> RunnableDegrees:
    """One for all parts of a space: what runs beside what differs in none of them."""
    return RunnableDegrees(target, demands)


def together(allowed: Allowed) -> frozenset[LayerKind]:
    """Kinds of layers behind the blocks that the framework, if one is named, runs in one stage."""
    if allowed.framework is None or (own := capability_of(allowed.framework)).splits_itself:
        return frozenset()
    head = {LayerKind.LM_HEAD, LayerKind.LOSS} if not own.can(Feature.HEAD_APART) else set()
    norm = {LayerKind.FINAL_NORM} if head and not own.can(Feature.NORM_APART) else set()
    return frozenset(head | norm)


def is_replicated(point: Point, layouts: Layouts) -> Flags:
    """At which pairs some state has replicas, so that ZeRO stages differ, [N]."""
    dense = layouts.data * point.context > 1
    found: Flags = dense | (layouts.data * point.devices > point.expert_devices)
    return found
