"""The best split of a candidate on several pools, and a bound on every other.

Across, ranks bring the prices and the memory of their own pool to the program of `chain`.
Beside, the pipelines of each pool have a bound of their own for any number of microbatches, and
that grows with it; so the least T at which all pools together run the batch follows from giving
microbatches one by one to the pool that has them done first. Stages are cut alike in all pools:
the cuts that are best for one of them are offered to the others, each of which recomputes what its
own memory asks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.cluster import Hop, NetworkLevel
from trainwright.costing.communication import all_reduce_time_s
from trainwright.planning.bounds.exchanges import ChainEnds
from trainwright.planning.bounds.pools import (
    Across,
    Beside,
    MixedCandidate,
    MixedShelf,
    Part,
    runs_alike,
)
from trainwright.planning.question.layouts import (
    CHAIN,
    CUTS_HEAD,
    IN_GROUPS,
    IN_V,
    LOOPED,
    ON_HOST,
    WHOLE_GROUPS,
)
from trainwright.planning.splits.chain import (
    CutsAndRows,
    Site,
    Split,
    best_copying_split,
    best_split_at,
    best_split_beside_head,
    fastest_ways,
    sites_beside_heads,
    transfers_over,
)
from trainwright.planning.splits.loop import bound_dealt_loops
from trainwright.planning.splits.types import (
    SplitQuestion,
    best_family_split,
    bound_every_split,
    in_first_blocks,
    options_of,
    ways_in_chunks,
)
from trainwright.planning.splits.vee import best_uneven_v_split
from trainwright.plans import Plan, ReplicaGroup, Stage
from trainwright.profile import Profile
from trainwright.step.pipeline import PipelineShape, placement_of
from trainwright.step.stages import CutHead, cut_head, rank_level
from trainwright.step.zero import Replicas

if TYPE_CHECKING:
    from trainwright.arrays import Floats

    Ways = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSplit:
    """No split of the candidate ends before `bound_s`; `plans` are those worth pricing."""

    bound_s: float
    plans: tuple[Plan, ...] = ()


def best_mixed_split(
    shelf: MixedShelf, candidate: MixedCandidate, *, limit_s: float = math.inf
) -> MixedSplit:
    """The split of least bound; a bound above the limit is cut down to it."""
    if isinstance(candidate, Across):
        return _across(shelf, candidate, limit_s)
    return _beside(shelf, candidate, limit_s)


def bound_in_chunks_s(
    shelf: MixedShelf, candidate: MixedCandidate, *, limit_s: float = math.inf
) -> float:
    """What `best_mixed_split` says of several chunks per rank, or less, at a tenth of the work."""
    if isinstance(candidate, Across):
        return bound_every_split(asked_across(shelf, candidate), limit_s=limit_s).bound_s
    pools = _pools(shelf, candidate, limit_s)
    return _bound_beside_s(shelf, candidate, pools, _deal(shelf, candidate, pools), limit_s)


def _across(shelf: MixedShelf, candidate: Across, limit_s: float) -> MixedSplit:
    pools, sites = candidate.pool_of_rank, _sites_across(shelf, candidate)
    profile = shelf.part(pools[0], candidate.point, Part.of(candidate))
    plans, bound_s = list[Plan](), math.inf
    if candidate.schedule not in CHAIN:
        question = asked_across(shelf, candidate)
        bound_s, offered = bound_every_split(question, limit_s=limit_s).bound_s, list[Split]()
        if bound_s < limit_s and candidate.schedule in LOOPED:
            offered.append(bound_dealt_loops(question, limit_s=limit_s))
            bound_s = max(bound_s, offered[0].bound_s)
        if bound_s < limit_s:
            offered.append(best_family_split(question, limit_s=limit_s))
            if candidate.schedule in IN_V and len(set(question.sites)) == 1:  # any lengths, too
                offered.append(best_uneven_v_split(question, limit_s=limit_s))
            cuts = dict.fromkeys(each for split in offered for each in _cuts(split))
            plans += (plan_across(shelf, candidate, *each) for each in cuts)
        return MixedSplit(bound_s=bound_s, plans=tuple(plans))
    levels = list(_levels_across(shelf, candidate))
    shape = PipelineShape(
        family=candidate.schedule,
        num_ranks=len(pools),
        num_microbatches=_passing_across(shelf, candidate),
    )
    for asked in _with_tied(shelf, candidate, profile, sites):
        apart = _Apart.of(shelf, candidate, pools, asked)
        transfers = transfers_over(profile, levels)
        split = apart.best_split(asked, transfers, shape=shape, limit_s=min(limit_s, bound_s))
        bound_s = min(bound_s, split.bound_s)
        plans += (plan_across(shelf, candidate, *each) for each in _cuts(split))
    return MixedSplit(bound_s=bound_s, plans=tuple(plans))


def _sites_across(shelf: MixedShelf, candidate: Across) -> list[Site]:
    """Where each rank runs; those of a pool, or of pools that are alike, are one site."""
    first, site_of = shelf.first, dict[tuple[int, Replicas], Site]()
    found = {}
    for pool, depth in zip(candidate.pools, candidate.depths, strict=True):
        replicas = shelf.replicas(candidate, {pool: candidate.data}, {pool: depth})
        key = first[pool], replicas
        if key not in site_of:
            site_of[key] = Site(
                kinds=shelf.kinds(first[pool], candidate.point, Part.of(candidate)),
                cluster=shelf.room(first[pool], candidate),
                replicas=replicas,
            )
        found[pool] = site_of[key]
    return [found[pool] for pool in candidate.pool_of_rank]


def _passing_across(shelf: MixedShelf, candidate: Across) -> int:
    """What passes a pipeline: microbatches of a replica, or their slices."""
    return Part.of(candidate).slices * (_microbatches(shelf, candidate) // candidate.data)


def asked_across(shelf: MixedShelf, candidate: Across) -> SplitQuestion:
    """What a search for splits of a pipeline from pool to pool is asked."""
    levels, sites = list(_levels_across(shelf, candidate)), _sites_across(shelf, candidate)
    around = levels[0] if len(sites) == 2 else shelf.cluster.joint
    return _asked(candidate, sites, (*levels, around), _passing_across(shelf, candidate))


def _cuts(split: Split) -> Iterator[CutsAndRows]:
    """All cuts that a split offers."""
    yield from (each for each in ((split.cuts, split.chosen), *split.others) if each[0])


def _asked(
    candidate: MixedCandidate,
    sites: Sequence[Site],
    levels: Sequence[NetworkLevel | None],
    num_microbatches: int,
    *,
    count: int | None = None,
) -> SplitQuestion:
    """What a search for splits is asked; in one pool, with `count` replicas, without levels."""
    degrees = candidate.degrees
    return SplitQuestion(
        kinds=sites[0].kinds,
        degrees=degrees if count is None else replace(degrees, data=count),
        cluster=sites[0].cluster,
        family=candidate.schedule,
        num_microbatches=num_microbatches,
        sites=tuple(sites),
        levels=tuple(levels),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Apart:
    """What a schedule takes out of the stages of ranks: copies to hosts, or shares of the head.

    The sites `hosted` have layers that wait for their copies. Most schedules take out nothing.
    """

    hosted: tuple[Site, ...] = ()
    heads: tuple[CutHead, ...] = ()

    @classmethod
    def of(
        cls,
        shelf: MixedShelf,
        candidate: MixedCandidate,
        pools: Sequence[int],
        sites: Sequence[Site],
    ) -> _Apart:
        """Of ranks in `pools`, at their sites."""
        point, pace = candidate.point, candidate.pace
        if candidate.schedule in ON_HOST:
            hosted = {g: shelf.hosted(g, point, pace) for g in set(pools)}
            waiting = zip(pools, sites, strict=True)
            return cls(hosted=tuple(replace(s, kinds=hosted[g]) for g, s in waiting))
        if candidate.schedule in CUTS_HEAD:
            p = len(pools)
            of_pool = {g: cut_head(shelf.paced(g, point, pace), p, (), {}) for g in set(pools)}
            return cls(heads=tuple(of_pool[g] for g in pools))
        return cls()

    def best_split(
        self, sites: Sequence[Site], transfers: Floats, *, shape: PipelineShape, limit_s: float
    ) -> Split:
        """The split of least bound."""
        if self.hosted:
            return best_copying_split(sites, self.hosted, transfers, shape=shape, limit_s=limit_s)
        if self.heads:
            return best_split_beside_head(
                sites, self.heads, transfers, shape=shape, limit_s=limit_s
            )
        return best_split_at(sites, transfers, shape=shape, limit_s=limit_s)

    def roomy(self, sites: Sequence[Site], shape: PipelineShape, *, kept: bool) -> Sequence[Site]:
        """The sites with room for its state, and if `kept` for all of it."""
        return sites_beside_heads(sites, self.heads, shape, kept=kept) if self.heads else sites


def plan_across(shelf: MixedShelf, candidate: Across, cuts: tuple[int, ...], ways: Ways) -> Plan:
    """The plan of stages between `cuts` that run their layers so."""
    every = shelf.profile(candidate.pools[0], candidate.point).structure.layers
    stages = []
    ranks = rank_of_stages(candidate)
    for rank, (first, after), chosen in zip(ranks, pairwise(cuts), ways, strict=True):
        pool, layers = candidate.pool_of_rank[rank], every[first:after]
        own = _group(shelf, candidate, pool, count=candidate.data)
        options = options_of(layers, chosen, shelf.profile(pool, candidate.point))
        ids = tuple(layer.id for layer in layers)
        stages.append(Stage(layers=ids, options=options, replicas=(own,)))
    return _plan(shelf, candidate, stages)


def rank_of_stages(candidate: MixedCandidate) -> tuple[int, ...]:
    """The rank of each stage."""
    return placement_of(
        PipelineShape(
            family=candidate.schedule,
            num_ranks=candidate.degrees.pipeline,
            num_microbatches=candidate.degrees.pipeline,
            virtual_stages=candidate.virtual_stages,
        )
    ).rank_of_stage


def _with_tied(
    shelf: MixedShelf, candidate: Across, profile: Profile, sites: list[Site]
) -> Iterator[list[Site]]:
    """The ranks with what the first exchanges of a tensor that a later one holds, case by case.

    Layers after the last holder are few. It lies in another pool than the first rank, or else
    the other pools have no more than those few: no split is in neither case.
    """
    ends, pools = ChainEnds.of(profile), candidate.pool_of_rank
    if not ends.tied_bytes:
        yield sites
        return
    layers, p, depth = profile.structure.layers, len(pools), candidate.depths[0]
    holder = layers[ends.last_holder].layer_class
    nearest = max(1, int(ends.ranks_to_last_holder(np.array(p))))
    size, joint = candidate.point.devices * candidate.data, shelf.cluster.joint
    after = tuple({layer.layer_class for layer in layers[ends.last_holder + 1 :]})

    def first(levels: Iterable[NetworkLevel | None]) -> Site:
        hops = [(Hop(level=level, ranks=2),) for level in levels if level is not None]
        tied_s = min((all_reduce_time_s(ends.tied_bytes, each) for each in hops), default=0.0)
        return replace(sites[0], tied_s=tied_s, tied_to=holder)

    yield [first((joint,)), *sites[1:]]
    if nearest < depth and after:  # `nearest` is 1 also where the first rank may be the holder
        inside = shelf.cluster.pools[pools[0]].levels
        near = first(rank_level(inside, 0, rank, size) for rank in range(nearest, depth))
        yield [near, *sites[1:depth], *(replace(site, only=after) for site in sites[depth:])]


def _levels_across(shelf: MixedShelf, candidate: Across) -> Iterator[NetworkLevel]:
    """What lies between each rank and the next."""
    size = candidate.point.devices * candidate.data
    for index, (pool, depth) in enumerate(zip(candidate.pools, candidate.depths, strict=True)):
        for rank in range(depth - 1):
            level = rank_level(shelf.cluster.pools[pool].levels, rank, rank + 1, size)
            assert level is not None, "two ranks share no device"
            yield level
        if index + 1 < len(candidate.pools):
            joint = shelf.cluster.joint
            assert joint is not None, "several pools are joined"
            yield joint


_PATHS_WITHIN: Final = 4  # microbatches for each rank, as in the peel


@dataclass(slots=True)
class _Pool:
    """The pipelines of one pool: their best split by the number of microbatches of each."""

    site: Site
    apart: _Apart
    transfers: Floats
    candidate: Beside
    count: int
    limit_s: float
    made: dict[int, Split]
    bounds_s: dict[int, float]

    def split(self, microbatches: int) -> Split:
        """The split of least bound; of several chunks per rank a good one."""
        if microbatches not in self.made:
            if self.candidate.schedule in CHAIN:
                found = self.apart.best_split(
                    self.sites,
                    self.transfers,
                    shape=self.shape(microbatches),
                    limit_s=self.limit_s,
                )
            else:
                found = best_family_split(self.asked(microbatches), limit_s=self.limit_s)
            self.made[microbatches] = found
        return self.made[microbatches]

    def asked(self, microbatches: int) -> SplitQuestion:
        """What a search for splits is asked."""
        m = self.shape(microbatches).num_microbatches
        return _asked(self.candidate, self.sites, (), m, count=self.count)

    def bound_of_chunks_s(self, microbatches: int) -> float:
        """No split into several chunks per rank of so many microbatches or more ends before.

        A bound on fewer is above one on more where p divides the latter alone, so that chunks hide
        more of what they exchange, or where there are few enough to look at paths in V.
        """
        p, found = self.candidate.depth, set[int]()
        if self.candidate.schedule in IN_GROUPS:
            found.add(-(-microbatches // p) * p)
        if microbatches <= _PATHS_WITHIN * p:
            found.add(_PATHS_WITHIN * p + 1)
        if self.candidate.schedule not in WHOLE_GROUPS or microbatches % p == 0:
            found.add(microbatches)
        return min(map(self._bound_s, found))

    def _bound_s(self, microbatches: int) -> float:
        if microbatches not in self.bounds_s:
            found = bound_every_split(self.asked(microbatches), limit_s=self.limit_s)
            self.bounds_s[microbatches] = found.bound_s
        return self.bounds_s[microbatches]

    @property
    def whole_s(self) -> float:
        """Of a microbatch through all layers, at the least."""
        kinds = self.site.kinds
        least_s = float(kinds.least_time_s[kinds.kind_of[0, kinds.num_layers]])
        return least_s * Part.of(self.candidate).slices

    @property
    def sites(self) -> list[Site]:
        """One and the same for every rank."""
        return [self.site] * self.candidate.depth

    def shape(self, microbatches: int) -> PipelineShape:
        """The orders of one of its pipelines."""
        return PipelineShape(
            family=self.candidate.schedule,
            num_ranks=self.candidate.depth,
            num_microbatches=Part.of(self.candidate).slices * microbatches,
            virtual_stages=self.candidate.virtual_stages,
        )


def _beside(shelf: MixedShelf, candidate: Beside, limit_s: float) -> MixedSplit:
    pools = _pools(shelf, candidate, limit_s)
    dealt = _deal(shelf, candidate, pools)
    bound_s = _bound_beside_s(shelf, candidate, pools, dealt, limit_s)
    if not bound_s < limit_s:
        return MixedSplit(bound_s=bound_s)
    splits = [pools[pool].split(m) for pool, m in dealt.items()]
    offered = dict.fromkeys(c for s in splits for c in (s.cuts, *(cuts for cuts, _ in s.others)))
    plans = [
        plan
        for cuts in filter(None, offered)
        for kept in ((True, False) if candidate.schedule in CUTS_HEAD else (True,))
        for plan in _cut(shelf, candidate, pools, dealt, cuts, kept=kept)
    ]
    return MixedSplit(bound_s=bound_s, plans=tuple(dict.fromkeys(plans)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedBeside:
    """What a search for further splits of pipelines beside each other is asked: those of one pool.

    Any plan has such a pipeline, or else takes `others_s` at least: some pool has more microbatches
    then. `plans` are those of a split of it, with the fastest among them; if not `of_all`, others
    may be faster.
    """

    question: SplitQuestion
    plans: Callable[[CutsAndRows], Iterator[Plan]]
    others_s: float
    of_all: bool


def asked_beside(shelf: MixedShelf, candidate: Beside, *, limit_s: float) -> AskedBeside:
    """Of the pool whose pipelines end last by their bounds.

    Where microbatches come out even all replicas of a pool run as many. With one stage per rank
    other pools are then as fast as they can be between the same cuts; of several, if all is alike.
    """
    pools = _pools(shelf, candidate, limit_s)
    dealt, is_chain = _deal(shelf, candidate, pools), candidate.schedule in CHAIN
    alone, unit = runs_alike(shelf.question.allowed, candidate.zero_stage), _unit(candidate)

    def bound_s(pool: int, more: int = 0) -> float:
        own, m = pools[pool], dealt[pool] + more
        return own.split(m).bound_s if is_chain else own.bound_of_chunks_s(m)

    last = max(pools, key=lambda pool: (bound_s(pool), -pool))
    total, are_alike = _microbatches(shelf, candidate), shelf.are_alike(candidate.pools)
    is_even = sum(pools[g].count * m for g, m in dealt.items()) == total
    is_one = are_alike and len(set(candidate.replicas)) == len(set(dealt.values())) == 1
    like_last = [g for g in pools if g == last or (are_alike and (alone or not is_chain))]

    def plans(split: CutsAndRows) -> Iterator[Plan]:
        return _cut(shelf, candidate, pools, dealt, split[0], dict.fromkeys(like_last, split[1]))

    return AskedBeside(
        question=pools[last].asked(dealt[last]),
        plans=plans,
        others_s=math.inf if alone else min(bound_s(pool, unit) for pool in pools),
        of_all=is_even and ((are_alike or not alone) if is_chain else is_one),
    )


def _pools(shelf: MixedShelf, candidate: Beside, limit_s: float) -> dict[int, _Pool]:
    counts = zip(candidate.pools, candidate.replicas, strict=True)
    return {pool: _pool(shelf, candidate, pool, count, limit_s) for pool, count in counts}


def _deal(shelf: MixedShelf, candidate: Beside, pools: Mapping[int, _Pool]) -> dict[int, int]:
    """Microbatches of each pipeline by pool."""
    total = _microbatches(shelf, candidate)
    if runs_alike(shelf.question.allowed, candidate.zero_stage):
        return dict.fromkeys(pools, total // candidate.degrees.data)
    if candidate.schedule in CHAIN:
        return _dealt(pools, total)
    return _dealt_in_groups(pools, total, unit=_unit(candidate))


def _bound_beside_s(
    shelf: MixedShelf,
    candidate: Beside,
    pools: Mapping[int, _Pool],
    dealt: Mapping[int, int],
    limit_s: float,
) -> float:
    """No split ends before, however microbatches are dealt."""
    if candidate.schedule in CHAIN:
        return max(pools[pool].split(m).bound_s for pool, m in dealt.items())
    bound_s = max(pools[pool].bound_of_chunks_s(m) for pool, m in dealt.items())
    if runs_alike(shelf.question.allowed, candidate.zero_stage):
        return bound_s
    unit = _unit(candidate)
    more_s = (pools[pool].bound_of_chunks_s(m + unit) for pool, m in dealt.items())
    return min(bound_s, *more_s, limit_s)


def _pool(shelf: MixedShelf, candidate: Beside, pool: int, count: int, limit_s: float) -> _Pool:
    members = dict(zip(candidate.pools, candidate.replicas, strict=True))
    part, pace = Part.of(candidate), candidate.pace
    site = Site(
        kinds=shelf.kinds(pool, candidate.point, part, pace),
        cluster=shelf.room(pool, candidate),
        replicas=shelf.replicas(candidate, members, dict.fromkeys(members, candidate.depth)),
    )
    profile = shelf.part(pool, candidate.point, part)
    transfers = []
    for own in pace or (pool,):
        levels, size = shelf.cluster.pools[own].levels, candidate.point.devices * members[own]
        between = [rank_level(levels, r, r + 1, size) for r in range(candidate.depth - 1)]
        transfers.append(transfers_over(profile, between))
    return _Pool(
        site=site,
        apart=_Apart.of(shelf, candidate, [pool] * candidate.depth, [site] * candidate.depth),
        transfers=np.max(transfers, axis=0),
        candidate=candidate,
        count=count,
        limit_s=limit_s,
        made={},
        bounds_s={},
    )


def _dealt(pools: Mapping[int, _Pool], total: int) -> dict[int, int]:
    """Microbatches of each pipeline by pool, so that the last of them is done first.

    The bound of a pool is all but linear in them: from two points follows where all pools meet, a
    little below that microbatches are given out one by one. Were a pool done later even so, it
    starts with fewer.
    """
    start = _affine_start(pools, total)
    while True:
        dealt = dict(start)
        last_s = 0.0
        while sum(pools[g].count * m for g, m in dealt.items()) < total:
            ends_s = {g: pools[g].split(m + 1).bound_s for g, m in dealt.items()}
            first = min(ends_s, key=lambda g: (ends_s[g], g))
            dealt[first] += 1
            last_s = max(last_s, ends_s[first])
            if not last_s < pools[first].limit_s:
                break
        early = {g for g, m in start.items() if m > 1 and pools[g].split(m).bound_s > last_s}
        if not early:
            return dealt
        start = {g: max(1, m // 2) if g in early else m for g, m in start.items()}


_MOVES: Final = 8  # of a unit from pool to pool


def _unit(candidate: Beside) -> int:
    """Whole groups of microbatches that a family runs."""
    return candidate.depth if candidate.schedule in WHOLE_GROUPS else 1


def _dealt_in_groups(pools: Mapping[int, _Pool], total: int, *, unit: int) -> dict[int, int]:
    """The same from the work of a microbatch in each pool, then a few moves by their bounds.

    In any other deal some pool has a unit more than here.
    """
    rate = sum(pool.count / pool.whole_s for pool in pools.values())
    each = {g: total / (rate * pool.whole_s) for g, pool in pools.items()}
    dealt = {g: max(unit, int(m / unit) * unit) for g, m in each.items()}

    def given() -> int:
        return sum(pools[g].count * m for g, m in dealt.items())

    def without_spare(order: Iterable[int]) -> None:
        for g in order:
            while dealt[g] > unit and given() - pools[g].count * unit >= total:
                dealt[g] -= unit

    while given() < total:
        dealt[min(pools, key=lambda g: ((dealt[g] + unit) * pools[g].whole_s, g))] += unit
    without_spare(sorted(pools, key=lambda g: -dealt[g] * pools[g].whole_s))
    for _ in range(_MOVES):
        last = max(pools, key=lambda g: (pools[g].bound_of_chunks_s(dealt[g]), g))
        first = min(pools, key=lambda g: (pools[g].bound_of_chunks_s(dealt[g] + unit), g))
        last_s = pools[last].bound_of_chunks_s(dealt[last])
        if first == last or pools[first].bound_of_chunks_s(dealt[first] + unit) >= last_s:
            break
        before = dict(dealt)
        dealt[first] += unit
        without_spare((last, *pools))
        if dealt == before or dealt[last] == before[last]:
            dealt = before
            break
    return dealt


def _affine_start(pools: Mapping[int, _Pool], total: int) -> dict[int, int]:
    few = dict.fromkeys(pools, 1)
    if sum(pool.count for pool in pools.values()) >= total:
        return few
    lines = {}
    for g, pool in pools.items():
        lines[g] = (0.0, pool.whole_s / pool.candidate.depth)
    for _ in range(2):
        # Σ count · (T − a) / b = total
        weight = sum(pools[g].count / b for g, (_, b) in lines.items())
        offset = sum(pools[g].count * a / b for g, (a, b) in lines.items())
        limit_s = (total + offset) / weight
        guess = {g: max(1, int((limit_s - a) / b)) for g, (a, b) in lines.items()}
        for g, m in guess.items():
            less = max(1, m * 3 // 4)
            high_s, low_s = pools[g].split(m).bound_s, pools[g].split(less).bound_s
            if less < m and math.isfinite(high_s) and high_s > low_s:
                slope_s = (high_s - low_s) / (m - less)
                lines[g] = (high_s - m * slope_s, slope_s)
    while sum(pools[g].count * m for g, m in guess.items()) >= total and max(guess.values()) > 1:
        guess = {g: max(1, m - 1) for g, m in guess.items()}
    return guess


def _cut(
    shelf: MixedShelf,
    candidate: Beside,
    pools: Mapping[int, _Pool],
    dealt: Mapping[int, int],
    cuts: tuple[int, ...],
    told: Mapping[int, Ways] | None = None,
    *,
    kept: bool = True,
) -> Iterator[Plan]:
    """The stages between `cuts` in all pools, if each of them fits; ways may be `told`.

    If `kept`, what ranks keep of a cut head has room, too, which some orders do not need. Where
    replicas run alike all recompute as those of one pool, whichever that is.
    """
    ways = dict(told or {})
    found: Ways | None
    for g in pools.keys() - ways.keys():
        if (found := _ways(pools[g], cuts, dealt[g], kept=kept, surely=not told)) is None:
            return
        ways[g] = found
    layers = shelf.profile(candidate.pools[0], candidate.point).structure.layers
    ranks = [layers[first:after] for first, after in pairwise(cuts)]
    options = {
        g: tuple(
            options_of(own, chosen, shelf.profile(g, candidate.point))
            for own, chosen in zip(ranks, way, strict=True)
        )
        for g, way in sorted(ways.items())
    }
    each = [options]
    if runs_alike(shelf.question.allowed, candidate.zero_stage):
        each = [dict.fromkeys(options, own) for own in dict.fromkeys(options.values())]
    for chosen_by in each:
        stages = []
        for rank, own in enumerate(ranks):
            common = chosen_by[candidate.pools[0]][rank]
            groups = [
                replace(group, options=() if found == common else found)
                for group in _shared_out(shelf, candidate, dealt)
                for found in (chosen_by[group.pool][rank],)
            ]
            ids = tuple(layer.id for layer in own)
            stages.append(Stage(layers=ids, options=common, replicas=tuple(groups)))
        yield _plan(shelf, candidate, stages)


def _ways(
    pool: _Pool, cuts: tuple[int, ...], microbatches: int, *, kept: bool, surely: bool
) -> Ways | None:
    """How the stages between `cuts` run in a pool, if they fit, or with one per rank may fit."""
    shape = pool.shape(microbatches)
    if shape.family not in CHAIN:
        return ways_in_chunks(pool.asked(microbatches), cuts)
    sites = pool.apart.roomy(pool.sites, shape, kept=kept)
    return fastest_ways(sites, cuts, shape, surely=surely)


def _shared_out(
    shelf: MixedShelf, candidate: Beside, dealt: Mapping[int, int]
) -> Iterator[ReplicaGroup]:
    """Groups with whole microbatches; where those are too few, some pipelines run one less."""
    total = _microbatches(shelf, candidate)
    counts = dict(zip(candidate.pools, candidate.replicas, strict=True))
    unit = _unit(candidate)
    spare = (sum(counts[g] * m for g, m in dealt.items()) - total) // unit
    for g, count in counts.items():
        m = dealt[g]
        fewer = min(spare, count if m > unit else 0)
        spare -= fewer
        for own, each in ((count - fewer, m), (fewer, m - unit)):
            if own:
                yield _group(shelf, candidate, g, count=own, share=own * each / total)
    assert spare == 0, "no pool got more than it needs"


def _group(
    shelf: MixedShelf, candidate: MixedCandidate, pool: int, *, count: int, share: float = 1.0
) -> ReplicaGroup:
    return ReplicaGroup(
        count=count,
        tensor_parallel=candidate.point.tensor,
        device_kind=shelf.cluster.pools[pool].accelerator.name,
        share=share,
        pool=pool,
    )


def _plan(shelf: MixedShelf, candidate: MixedCandidate, stages: Sequence[Stage]) -> Plan:
    if shelf.question.allowed.recomputes_first:  # a framework's, whose replicas run alike
        stages = in_first_blocks(stages, shelf.profile(candidate.pools[0], candidate.point))
    return Plan(
        stages=tuple(stages),
        num_microbatches=_microbatches(shelf, candidate),
        microbatch_size=candidate.point.microbatch_size,
        schedule=candidate.schedule,
        parallelism=candidate.degrees,
    )


def _microbatches(shelf: MixedShelf, candidate: MixedCandidate) -> int:
    return shelf.question.workload.microbatches(candidate.point.microbatch_size)
