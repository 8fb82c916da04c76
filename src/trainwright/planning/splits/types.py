"""How much is spent on further splits, and how those that were simulated are priced."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from trainwright.cluster import Cluster, NetworkLevel
from trainwright.errors import UnsupportedFeature
from trainwright.model import LayerKind
from trainwright.planning.bounds.stages import (
    StageKinds,
    least_transfers_over,
    least_transfers_s,
)
from trainwright.planning.question.layouts import BOUNDED, CHAIN, IN_V, chunks_per_rank
from trainwright.planning.question.question import Candidate, with_usable
from trainwright.planning.splits.chain import (
    CutsAndRows,
    Site,
    Split,
    best_chain_split,
    transfers_over,
    transfers_s,
)
from trainwright.planning.splits.loop import (
    best_loop_split,
    bound_every_loop_split,
    bound_loop_splits,
    ways_in_loop,
)
from trainwright.planning.splits.vee import (
    best_v_split,
    bound_every_v_split,
    bound_v_splits,
    ways_in_v,
)
from trainwright.plans import Plan, Stage, StepPrediction
from trainwright.plans.plan import Parallelism
from trainwright.profile import Layer, Profile, Recompute
from trainwright.step.stages import CutHead, group_replicas

if TYPE_CHECKING:
    from trainwright.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A candidate with its plan, the profile it was cut from, and its predicted step."""

    candidate: Candidate
    plan: Plan
    profile: Profile
    step: StepPrediction


def options_of(layers: Sequence[Layer], chosen: Sequence[int], profile: Profile) -> tuple[str, ...]:
    """How each layer of a stage runs; of a class, the layers that recompute most come first."""
    costs, left, options = profile.costs, list(chosen), []
    for layer in layers:
        row = max(row for row in costs.rows_of(layer.layer_class) if left[row])
        left[row] -= 1
        options.append(costs.option_ids[row])
    return tuple(options)


def with_whole_head(stages: tuple[Stage, ...], profile: Profile) -> tuple[Stage, ...]:
    """The same, but a head that ends a stage goes to the loss behind it.

    A stage that is left without layers has the last one of the stage before it, if there is one.
    """
    heads = {each.id for each in profile.structure.layers if each.name == LayerKind.LM_HEAD}
    apart = [at for at, own in enumerate(stages[:-1]) if own.layers[-1] in heads]
    if not apart or all(len(own.layers) == 1 for own in stages[: apart[0] + 1]):
        return stages
    held = [[*zip(own.layers, own.options, strict=True)] for own in stages]
    for at in range(apart[0], -1, -1):
        held[at + 1].insert(0, held[at].pop())
        if held[at]:
            break
    return tuple(
        replace(own, layers=tuple(each[0] for each in now), options=tuple(each[1] for each in now))
        for own, now in zip(stages, held, strict=True)
    )


def in_first_blocks(stages: Sequence[Stage], profile: Profile) -> tuple[Stage, ...]:
    """The first blocks of each stage recompute, as many in each as in any, or all layers that can.

    One does at least, and no stage recomputes fewer blocks than before. Where these are alike none
    could.
    """
    first = _FirstBlocks.of(stages, profile)
    if all(
        way[layer] == Recompute.FULL for way in first.ways for layer in way if layer in first.free
    ):
        return tuple(stages)
    repeated = (
        at
        for way, own in zip(first.ways, first.blocks, strict=True)
        for at, layer in enumerate(own, 1)
        if way[layer] == Recompute.FULL
    )
    return first.with_first(max(repeated, default=1))


def with_fewer_first_blocks(
    stages: Sequence[Stage], profile: Profile
) -> Iterator[tuple[Stage, ...]]:
    """What else may be tried of such stages, from one block of each on; nothing if all are alike.

    Blocks that are not differ in what one saves by the other, so fewer may do.
    """
    first = _FirstBlocks.of(stages, profile)
    classes = {each.layer_class for each in profile.structure.layers if each.id in first.free}
    if len(classes) > 1:
        yield from map(first.with_first, range(1, 1 + max(map(len, first.blocks))))


class _FirstBlocks(NamedTuple):
    """Stages whose first blocks may recompute: the layers that can, and those blocks of each."""

    stages: Sequence[Stage]
    free: frozenset[int]
    ways: list[dict[int, str]]
    blocks: list[list[int]]

    @classmethod
    def of(cls, stages: Sequence[Stage], profile: Profile) -> _FirstBlocks:
        costs, layers = profile.costs, profile.structure.layers
        again = {str(Recompute.NONE), str(Recompute.FULL)}
        free = frozenset(
            layer.id
            for layer in layers
            if again <= {costs.option_ids[row] for row in costs.rows_of(layer.layer_class)}
        )
        inner = {layer.id for layer in layers if layer.name == LayerKind.BLOCK} & free
        ways = [dict(zip(stage.layers, stage.options, strict=True)) for stage in stages]
        blocks = [[layer for layer in stage.layers if layer in inner] for stage in stages]
        return cls(stages, free, ways, blocks)

    def with_first(self, count: int) -> tuple[Stage, ...]:
        """The stages where so many blocks of each recompute, and no other layer does."""
        found = []
        for stage, way, own in zip(self.stages, self.ways, self.blocks, strict=True):
            now = way | {layer: str(Recompute.NONE) for layer in way if layer in self.free}
            now |= dict.fromkeys(own[:count], str(Recompute.FULL))
            found.append(replace(stage, options=tuple(now[layer] for layer in stage.layers)))
        return tuple(found)


# What every search for splits is asked: a candidate, and where it runs
# ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitQuestion:
    """How are the layers of `kinds` best cut into p·v stages under a schedule family?

    `num_microbatches` is that of one replica, v = `degrees.virtual_stages`. Under a family that
    cuts the head over all ranks, each has `head` beside its stage, and the kinds are without it.
    Under one that leaves activations on the host, those of `hosted` wait for what its link cannot
    copy while they run. `effort` is how often the usual work may be done where it is limited.

    On several pools `sites` [p] say where each rank runs, and `levels` [p] what lies between it and
    the next, the last of them between the last rank and the first; else ranks are alike.
    """

    kinds: StageKinds
    degrees: Parallelism
    cluster: Cluster
    family: str
    num_microbatches: int
    head: CutHead | None = None
    effort: float = 1.0
    hosted: StageKinds | None = None
    sites: tuple[Site, ...] = ()
    levels: tuple[NetworkLevel | None, ...] = ()

    @property
    def ranks(self) -> tuple[Site, ...]:
        """Where each rank runs; ranks that are alike have one site."""
        if self.sites:
            return self.sites
        replicas = group_replicas(self.cluster.pool_of(), self.degrees)
        site = Site(kinds=self.kinds, cluster=self.cluster, replicas=replicas)
        return (site,) * self.degrees.pipeline

    def least_transfers_s(self, rank_of_stage: Sequence[int]) -> Floats:
        """Least seconds between the ranks of neighbours, wherever the chain is cut, [S - 1]."""
        if not self.levels:
            ranks = tuple(rank_of_stage)
            return least_transfers_s(self.kinds, self.degrees, self.cluster, ranks)
        between = (
            self.levels[min(a, b) if abs(a - b) < 2 else -1] if a != b else None
            for a, b in pairwise(rank_of_stage)
        )
        return least_transfers_over(self.kinds, tuple(between))

    @property
    def transfers_s(self) -> Floats:
        """Seconds from each rank to the next by the layer that the next begins with, [p, L + 1]."""
        if self.levels:
            return transfers_over(self.kinds.profile, self.levels[:-1])
        return transfers_s(self.kinds, self.degrees, self.cluster)

    @property
    def overhead_s(self) -> float:
        """What every step takes once, beside its pipeline."""
        return max(cluster.accelerator.step_overhead_s for cluster in self._clusters)

    @property
    def usable_bytes(self) -> float:
        """Of the largest device."""
        return max(cluster.accelerator.usable_bytes for cluster in self._clusters)

    @property
    def _clusters(self) -> list[Cluster]:
        return [site.cluster for site in self.sites] or [self.cluster]

    def with_usable(self, usable_bytes: float) -> SplitQuestion:
        """With so many bytes of the largest device usable, and as much less or more of others."""
        more_bytes = usable_bytes - self.usable_bytes

        def roomy(cluster: Cluster) -> Cluster:
            return with_usable(cluster, cluster.accelerator.usable_bytes + more_bytes)

        made = {
            id(site): replace(site, cluster=roomy(site.cluster))
            for site in {id(site): site for site in self.sites}.values()
        }
        sites = tuple(made[id(site)] for site in self.sites)
        return replace(self, cluster=roomy(self.cluster), sites=sites)


# How much is spent on further splits, and how those that were simulated are priced
# ---------------------------------------------------------------------------------

_MOST: Final = 5_000_000  # actions simulated, or as much other work
_BEGINNINGS: Final = 2048  # of cuts that are kept at once
_PER_ACTION: Final = 4  # ranks added up while one action is simulated
_RANKS: Final = 400  # beside, for each pair of ranks
_SIMULATION: Final = 2000  # beside its actions
_PLAN: Final = 50_000  # of a plan that is priced in full
HAIR: Final = 1 - 1e-12  # of the best step: what is nearer differs by rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a search goes on, in splits searched.

    From `efforts` splits on it may leave `gaps` as shares of the best step, which grow evenly in
    between; after `most` splits whatever gap is left stays.
    """

    efforts: tuple[int, ...]
    gaps: tuple[float, ...]
    most: int

    def gap(self, searched: int) -> float:
        """The share of the best step that may be left after so many splits."""
        return float(np.interp(searched, self.efforts, self.gaps))

    def times(self, effort: float) -> Patience:
        """So many times as long, for the same gaps."""
        efforts = tuple(int(each * effort) for each in self.efforts)
        return replace(self, efforts=efforts, most=int(self.most * effort))


THOROUGH: Final = Patience(efforts=(600, 1200, 4800), gaps=(0.0, 0.005, 0.01), most=12000)
# For a comparison, not for a choice: of Llama-70B on 64 H100, its plans without ZeRO, recomputation
# and so on come within 1% of those that forty times as long a search finds, in half a second each.
BRIEF: Final = Patience(efforts=(0,), gaps=(0.01,), most=300)


@dataclass(slots=True)
class Effort:
    """What is left of it, in simulated actions, and whether that was once too little to look."""

    left: int = _MOST
    was_short: bool = False

    @classmethod
    def usual(cls, times: float = 1.0) -> Effort:
        """So many times what one search spends."""
        return cls(int(_MOST * times))

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0

    def suffices(self, splits: int, actions: int) -> bool:
        """Whether so many splits of so many actions can be simulated."""
        is_enough = splits * (_SIMULATION + actions) <= self.left
        self.was_short |= not is_enough
        return is_enough

    def beginnings(self, num_ranks: int, longest: int) -> int:
        """How many cuts of a chain may be kept at once, each with so many stages to go on with.

        To enumerate them takes half of the effort at most.
        """
        affordable = _PER_ACTION * max(0, self.left) // (num_ranks**2 * longest)
        self.was_short |= affordable < _BEGINNINGS
        return min(_BEGINNINGS, affordable)

    def spend_on_cuts(self, num_ranks: int, num_bounds: int) -> None:
        """Cuts of a chain enumerated, so many ranks added up."""
        self.left -= _RANKS * num_ranks**2 + num_bounds // _PER_ACTION

    def spend_on_simulation(self, actions: int) -> None:
        """A split simulated."""
        self.left -= _SIMULATION + actions

    def spend_on_plan(self) -> None:
        """A plan priced."""
        self.left -= _PLAN


class HasStep(Protocol):
    """A plan that is priced."""

    @property
    def step(self) -> Timed:
        """What a step of it takes."""


class Timed(Protocol):
    """A predicted step."""

    @property
    def step_time_s(self) -> float:
        """Seconds."""


Found = TypeVar("Found", bound=HasStep)
Price: TypeAlias = "Callable[[CutsAndRows], Found | None]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Generic[Found]):
    """The fastest further plan of a candidate, and what all of its plans take at least."""

    bound_s: float
    found: Found | None = None


def price_below(
    simulated: Iterable[tuple[float, CutsAndRows]],
    price: Price[Found],
    effort: Effort,
    *,
    limit_s: float,
    others_s: float,
) -> Finished[Found]:
    """Price splits below the limit, shortest first, until none can be the shortest.

    `others_s` bounds those that were not simulated. A split whose plan misses the memory keeps the
    bound that it had.
    """
    best: Found | None = None
    for step_s, split in sorted(simulated):
        if step_s >= limit_s * HAIR or effort.is_spent:
            others_s = min(others_s, max(step_s, 0.0))
            break
        effort.spend_on_plan()
        found = price(split)
        if found is None:
            others_s = min(others_s, step_s)
        elif found.step.step_time_s < limit_s:
            best, limit_s = found, found.step.step_time_s
    return Finished(bound_s=min(others_s, limit_s), found=best)


# The best split of a candidate under a schedule family, and a bound on every other
# ---------------------------------------------------------------------------------
# Which search answers depends on how a family lays its stages on the ranks:
#
# - one stage per rank: a chain DP from the last rank on, for every split (`chain`)
# - V, rank r with stages r and 2p-1-r: a DP that peels both ends of the chain (`vee`)
# - v chunks in a loop: the number of blocks per rank is bounded (`loop`); the chunks of a rank are
#   coupled by its work and its memory
#
# With several chunks good splits are nearly even, so those are bounded and looked for first; what
# holds for every split is another, lower bound (`bound_every_split`).


def best_family_split(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """A good split into p·v stages.

    With one stage per rank no split steps faster than `bound_s`; in a loop no nearly even one, and
    in V none of these that fits with what the family's published order holds
    (`question.families`). It is infinite where none of them fits into memory or the family's rules
    forbid the shape; a bound above the limit is cut down to it. The split that comes along is all
    but certain to fit for families that ignore times; those in V may order it in a way that does
    not. Raises `UnsupportedFeature` for a family outside `BOUNDED`, and for virtual stages that it
    has not.
    """
    return _by_placement(question, limit_s, in_v=best_v_split, in_loops=best_loop_split)


def bound_family_splits(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """Like `best_family_split`, but with a split only where that costs nothing: one per rank."""
    return _by_placement(question, limit_s, in_v=bound_v_splits, in_loops=bound_loop_splits)


def bound_every_split(question: SplitQuestion, *, limit_s: float = math.inf) -> Split:
    """No split steps faster than `bound_s`, whatever its lengths; infinite where none can fit."""
    return _by_placement(
        question, limit_s, in_v=bound_every_v_split, in_loops=bound_every_loop_split
    )


def ways_in_chunks(
    question: SplitQuestion, cuts: tuple[int, ...]
) -> tuple[tuple[int, ...], ...] | None:
    """How the stages of several chunks per rank between `cuts` run, if they fit."""
    found = ways_in_v if question.family in IN_V else ways_in_loop
    return found(question, cuts)


def _by_placement(
    question: SplitQuestion,
    limit_s: float,
    *,
    in_v: Callable[..., Split],
    in_loops: Callable[..., Split],
) -> Split:
    """What the search says that suits where the family puts the stages; of a chain there is one."""
    _require_searched(question.family, question.degrees)
    if question.family in CHAIN:
        return best_chain_split(question, limit_s=limit_s)
    return (in_v if question.family in IN_V else in_loops)(question, limit_s=limit_s)


def _require_searched(family: str, degrees: Parallelism) -> None:
    if family not in BOUNDED:
        raise UnsupportedFeature(
            f"splits for the family {family} are not searched",
            alternative=f"use one of {', '.join(BOUNDED)}",
        )
    chunks = chunks_per_rank(family)
    if chunks is not None and degrees.virtual_stages != chunks:
        raise UnsupportedFeature(
            f"{family} does not run {degrees.virtual_stages} virtual stages per rank",
            alternative=f"use {chunks}",
        )
