"""Why a plan is what it is: what each dimension buys, and what more of a resource would.

A dimension buys at most what a plan without it loses: one is looked for with that dimension
forbidden. A resource is worth what the *same* plan gains by 1% more of it, which one pricing
answers; memory makes no plan faster by itself, so there another plan is looked for. So it is with
everything that the question fixed: a plan is looked for with it free. All these searches are brief
(`sketch_runnable`), so what they find is a plan that there is, and perhaps not the best. What
is known already leads them: the prices of layers, and the step of a plan that the space holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from trainwright.cluster import Cluster
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.execution import Budget
from trainwright.planning.bounds.pools import MixedShelf, Shape
from trainwright.planning.question.layouts import (
    BRAIDED,
    CHAIN,
    IN_V,
    LOOPED,
    ON_HOST,
    SEARCHED_UNLESS_NAMED,
    SLICED,
    chunks_per_rank,
)
from trainwright.planning.question.question import ZERO_STAGES, Allowed, ModelQuestion, Span
from trainwright.planning.reasons.infeasible import SHARE_S, eased
from trainwright.planning.search.framework import plan_runnable
from trainwright.planning.search.frontier import Shelves
from trainwright.planning.search.orders import with_searched_orders
from trainwright.planning.search.pools import (
    MixedPriced,
    fits,
    plan_on_pools,
    priced_mixed,
    sketch_on_pools,
)
from trainwright.planning.splits.types import BRIEF, Priced
from trainwright.plans import Plan, ReplicaGroup, Stage
from trainwright.plans.plan import DATA_INSIDE, DEFAULT_SCHEDULE, Parallelism, mapping_name
from trainwright.plans.prediction import MixedPrediction
from trainwright.plans.status import Relaxation, Status
from trainwright.profile import USUAL_MODES, Recompute
from trainwright.profile.measured_model import MeasuredModel
from trainwright.step.pools import chains_of
from trainwright.step.stages import slice_faults
from trainwright.units import GIB, format_bytes

if TYPE_CHECKING:
    Reprice: TypeAlias = Callable[[Cluster], float]

MORE: Final = 1.01  # times what there is: a hundredth shows what binds
MORE_MEMORY_BYTES: Final = 10 * GIB
_ONE: Final = Span.only(1)
_AXES: Final = (
    ("tensor parallelism", "tensor", "--tp 1"),
    ("pipeline parallelism", "pipeline", "--pp 1"),
    ("data parallelism", "data", "--dp 1"),
    ("context parallelism", "context", "--cp 1"),
    ("expert parallelism", "expert", "--ep 1"),
    ("virtual stages", "virtual_stages", "--virtual-stages 1"),
)
# Degrees that a plan keeps under other orders, and their options.
_KEPT: Final = tuple((axis, flag.split()[0]) for _, axis, flag in _AXES if axis != "virtual_stages")
PROOF_S: Final = 5.0  # wall seconds to prove that nothing fits, where nothing was found


@dataclass(frozen=True, slots=True, kw_only=True)
class Without:
    """A plan without one thing that a plan uses; `best` None where none was found.

    `status` is infeasible where it is proved that there is none. `options` forbid it to `plan`.
    """

    name: str
    options: str
    status: Status
    best: Priced | MixedPriced | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What more of a resource does to the step time, of the same plan or of the best one."""

    resource: str
    change: str
    step_time_s: float
    replanned: bool
    options: str = ""


def uses(
    plan: Plan, degrees: Parallelism, allowed: Allowed, *, recomputes: bool
) -> Iterator[tuple[str, str, Allowed]]:
    """Each thing the plan uses and could do without, the options that forbid it, what is left."""
    for name, axis, flag in _AXES:
        if getattr(degrees, axis) > 1:
            lacking: dict[str, Any] = {axis: _ONE}
            if axis != "virtual_stages" or _has_chain(allowed):
                yield name, flag, replace(allowed, **lacking)
    if degrees.zero_stage > 0:
        yield "ZeRO", "--zero 0", replace(allowed, zero_stages=(0,))
    if degrees.zero_stage > 1:
        yield "ZeRO above 1", "--zero 0,1", replace(allowed, zero_stages=(0, 1))
    if degrees.state_copies > 1:
        lacking = {"state_copies": _ONE}
        yield "copies of sharded state", "--state-copies 1", replace(allowed, **lacking)
    if degrees.axis_order != DATA_INSIDE:
        outside = replace(allowed, mappings=(DATA_INSIDE,))
        yield "the pipeline inside replicas", f"--mapping {mapping_name(DATA_INSIDE)}", outside
    if recomputes:
        yield "recomputation", "--recompute none", replace(allowed, recompute=(Recompute.NONE,))
    if plan.schedule != DEFAULT_SCHEDULE and degrees.pipeline > 1:
        only = replace(
            allowed, schedules=(DEFAULT_SCHEDULE,), virtual_stages=_ONE, searches_orders=False
        )
        name = f"schedules beyond {DEFAULT_SCHEDULE}"
        yield name, f"--schedule {DEFAULT_SCHEDULE} --virtual-stages 1", only
    if plan.microbatch_size is not None and plan.microbatch_size > 1:
        yield "microbatches above 1", "--micro-batch 1", replace(allowed, microbatch_size=_ONE)


def _has_chain(allowed: Allowed) -> bool:
    """Whether some family has one stage per rank."""
    families = allowed.schedules
    return families is None or any(chunks_per_rank(family) == 1 for family in families)


def without(
    question: ModelQuestion,
    name: str,
    options: str,
    space: Allowed,
    budget: Budget,
    *,
    shelves: Shelves | None = None,
    known_s: float = math.inf,
) -> Without:
    """A plan of a narrower space; where none is found, whether there is none.

    Where a plan of it is known that steps in `known_s`, only better ones are told.
    """
    narrower = replace(question, allowed=space)
    best = sketched(narrower, budget, to_beat_s=known_s, shelves=shelves)
    status = Status.GAP
    if best is None and math.isinf(known_s):
        outcome = plan_on_pools(narrower, budget.part(PROOF_S))
        best = outcome.priced[0] if outcome.priced else None
        nothing = Status.INFEASIBLE if outcome.exhausted else Status.UNKNOWN
        status = nothing if best is None else Status.GAP
    return Without(name=name, options=options, status=status, best=best)


def sketched(
    question: ModelQuestion,
    budget: Budget,
    *,
    to_beat_s: float = math.inf,
    shelves: Shelves | None = None,
) -> Priced | MixedPriced | None:
    """The best plan that brief searches find; None where it does not beat a step that is known.

    Orders that no family has are looked for behind a whole search alone, so where they are asked
    for that is made.
    """
    found: Priced | MixedPriced | None
    if question.allowed.searches_orders and len(question.cluster.pools) == 1:
        outcome = plan_runnable(question, budget)
        outcome = with_searched_orders(question, outcome, budget, num_alternatives=0)
        found = next(iter(outcome.priced), None)
    else:
        found = sketch_on_pools(question, budget, to_beat_s=to_beat_s, shelves=shelves)
    return found if found is not None and found.step.step_time_s < to_beat_s else None


def _beside(best_s: float) -> float:
    """What to beat, so that a brief search leaves out nothing faster than the best plan."""
    return best_s / (1 - BRIEF.gap(0))


def repriced_gains(question: ModelQuestion, reprice: Reprice) -> Iterator[Gain]:
    """One percent more of each resource that the same plan can use.

    Layers that were measured take what they took, whatever the peaks of a device.
    """
    cluster = question.cluster
    more = _more_of_links(cluster)
    if not isinstance(question.model, MeasuredModel):
        more = chain(_more_of_a_device(cluster), more)
    for resource, changed in more:
        yield Gain(resource=resource, change="+1%", step_time_s=reprice(changed), replanned=False)


def _more_of_a_device(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    for index, of in enumerate(_of_pools(cluster)):
        yield f"peak FLOP/s{of}", cluster.with_peak_scaled(MORE, pool=index)
        rate = cluster.pools[index].accelerator.memory_bandwidth_bytes_per_s * MORE
        yield f"memory bandwidth{of}", cluster.with_memory_bandwidth(rate, pool=index)


def _more_of_links(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    for index, of in enumerate(_of_pools(cluster)):
        for level in cluster.pools[index].levels:
            if level.size > 1:
                rate = level.bandwidth_bytes_per_s * MORE
                changed = cluster.with_bandwidth(level.name, rate, pool=index)
                yield f"{level.name} bandwidth{of}", changed
    if cluster.joint is not None:
        rate = cluster.joint.bandwidth_bytes_per_s * MORE
        yield "bandwidth between pools", cluster.with_bandwidth("joint", rate)


def _of_pools(cluster: Cluster) -> tuple[str, ...]:
    """What is added to a resource of each pool, where there are several."""
    several = len(cluster.pools) > 1
    return tuple(f" of {name}" if several else "" for name in cluster.pool_names())


def memory_gain(
    question: ModelQuestion, best_s: float, budget: Budget, *, shelves: Shelves | None = None
) -> Gain | None:
    """A plan with 10 GiB more on every device; None where time did not suffice.

    The plan at hand fits there too, so it is never slower.
    """
    larger = question.cluster
    for index, pool in enumerate(larger.pools):
        memory_bytes = pool.accelerator.memory_bytes + MORE_MEMORY_BYTES
        larger = larger.with_memory(memory_bytes, pool=index)
    found = sketched(
        replace(question, cluster=larger), budget, to_beat_s=_beside(best_s), shelves=shelves
    )
    if found is None and budget.stopped:
        return None
    found_s = best_s if found is None else min(best_s, found.step.step_time_s)
    options = ""  # the memory of several pools is said in their file
    if len(larger.pools) == 1:
        options = f"--memory {format_bytes(larger.accelerator.memory_bytes).replace(' ', '')}"
    return Gain(
        resource="memory",
        change="+10 GiB",
        step_time_s=found_s,
        replanned=True,
        options=options,
    )


def freed(question: ModelQuestion) -> Iterator[tuple[Relaxation, str, ModelQuestion]]:
    """Each thing that was fixed or forbidden, the option that frees it, and the question then."""
    for fix, allowed in eased(question):
        if option := fix.option:
            yield fix, option, replace(question, allowed=allowed)


def unnamed(question: ModelQuestion, plan: Plan) -> ModelQuestion | None:
    """The degrees of a plan under orders that are searched only where they are named.

    No framework runs them, so they are asked for where none is meant. Braided ones hide what tensor
    parallelism exposes, others cut sequences or leave activations on the host. All need a pipeline;
    None where they cannot help.
    """
    own, degrees = question.allowed, plan.parallelism
    is_named = own.framework is not None or own.schedules is not None
    if is_named or own.searches_orders or degrees is None or degrees.pipeline == 1:
        return None
    if len(question.cluster.pools) > 1 or isinstance(question.model, MeasuredModel):
        return None
    on_host = ON_HOST if question.cluster.accelerator.host else set()
    families = SLICED | on_host | (BRAIDED if degrees.tensor > 1 else set())
    length = question.workload.sequence_length

    def can_run(family: str) -> bool:
        faults = slice_faults(family, question.model, length, num_ranks=degrees.pipeline)
        return _has_chunks(family, own.virtual_stages) and not any(faults)

    named = tuple(filter(can_run, sorted(families)))
    if not named:
        return None
    kept: dict[str, Any] = {axis: Span.only(getattr(degrees, axis)) for axis, _ in _KEPT}
    return replace(question, allowed=replace(own, **kept, schedules=named))


def _has_chunks(family: str, virtual_stages: Span) -> bool:
    """Whether a family can have one of the numbers of chunks per rank that are allowed."""
    own = chunks_per_rank(family)
    if own is not None:
        return own in virtual_stages
    return virtual_stages.most is None or virtual_stages.most > 1


def unnamed_gain(question: ModelQuestion, best_s: float, budget: Budget) -> Gain | None:
    """A faster plan of those that `unnamed` asks for; None where none was found.

    A brief search looks for none in V, so this is a whole one, of a single layout.
    """
    outcome = plan_runnable(question, budget, num_alternatives=0, to_beat=best_s, is_bounded=False)
    found = next(iter(outcome.priced), None)
    if found is None or not found.step.step_time_s < best_s:
        return None
    family, degrees = found.plan.schedule, found.plan.parallelism
    kept = " ".join(f"{flag} {getattr(degrees, axis)}" for axis, flag in _KEPT)
    return Gain(
        resource=f"the order of {family}, which no framework runs",
        change="",
        step_time_s=found.step.step_time_s,
        replanned=True,
        options=f"--schedule {family} {kept}",
    )


def enough_freedom(question: ModelQuestion, budget: Budget) -> Iterator[Relaxation]:
    """What of that which was fixed would be enough, where nothing fits: each with a plan."""
    for fix, allowed in eased(question):
        part = budget.part(SHARE_S, stage=f"nothing fits; trying {fix.change}")
        if found := sketched(replace(question, allowed=allowed), part):
            step_s, devices = found.step.step_time_s, found.plan.devices_used
            yield replace(fix, step_time_s=step_s, devices_used=devices)


def freedom_gain(
    words: str,
    options: str,
    question: ModelQuestion,
    best_s: float,
    budget: Budget,
    *,
    shelves: Shelves | None = None,
) -> Gain | None:
    """A faster plan where something fixed is free; None where none was found."""
    found = sketched(question, budget, to_beat_s=_beside(best_s), shelves=shelves)
    if found is None or not found.step.step_time_s < best_s:
        return None
    return Gain(
        resource=words,
        change="",
        step_time_s=found.step.step_time_s,
        replanned=True,
        options=options,
    )


# Plans on several pools that differ from one in a single decision, priced
# ------------------------------------------------------------------------
# A decision is the size of a microbatch, ZeRO, the schedule, what all devices or those of one pool
# recompute, where two stages are cut, how many microbatches a chain runs in place of another, or
# the tensor degree in exchange for replicas. Layers keep what they recompute where they move.

_MOVED: Final = (1, 2, 4)  # layers across a cut


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsChange:
    """A plan with one decision changed, priced; it fits. `options` say what was changed."""

    dimensions: tuple[str, ...]
    options: str
    found: MixedPriced

    @property
    def step(self) -> MixedPrediction:
        """What it takes."""
        return self.found.step


_WITH: Final = " with "  # between the two changes of a pair
_FASTEST: Final = 3  # changes that others are tried with


def changes_on_pools(shelf: MixedShelf, plan: Plan, budget: Budget) -> tuple[PoolsChange, ...]:
    """Every change of one decision that fits, and the fastest few with every other change.

    A price each, about a hundred; those that the budget ends before are left out.
    """
    singles = tuple(_fitting(shelf, plan, budget))
    pairs: dict[frozenset[str], PoolsChange] = {}
    for first in sorted(singles, key=lambda each: each.step.step_time_s)[:_FASTEST]:
        for second in _fitting(shelf, first.found.plan, budget):
            if second.dimensions != first.dimensions:
                words = f"{first.options}{_WITH}{second.options}"
                both = (*first.dimensions, *second.dimensions)
                pair = PoolsChange(dimensions=both, options=words, found=second.found)
                pairs.setdefault(frozenset((first.options, second.options)), pair)
    return (*singles, *pairs.values())


def _fitting(shelf: MixedShelf, plan: Plan, budget: Budget) -> Iterator[PoolsChange]:
    for dimension, options, changed in moves_on_pools(shelf, plan):
        if budget.stopped:
            return
        try:
            found = priced_on_pools(shelf, changed)
        except (InvalidInput, UnsupportedFeature):
            continue  # a rule forbids it
        if fits(shelf, found):
            yield PoolsChange(dimensions=(dimension,), options=options, found=found)


def changed_on_pools(shelf: MixedShelf, plan: Plan, options: str) -> PoolsChange | None:
    """The change that is called so, whether it fits or not; None where there is none."""
    dimensions: tuple[str, ...] = ()
    for part in options.split(_WITH):
        own = (move for move in moves_on_pools(shelf, plan) if move[1] == part)
        dimension, _, plan = next(own, ("", "", plan))
        dimensions = (*dimensions, dimension)
    if not all(dimensions):
        return None
    found = priced_on_pools(shelf, plan)
    return PoolsChange(dimensions=dimensions, options=options, found=found)


def priced_on_pools(shelf: MixedShelf, plan: Plan) -> MixedPriced:
    """The plan with its price, at the prices of the pools that it uses."""
    profiles = shelf.profiles_of(plan)
    shape = Shape(name="alone", pools=tuple(profiles))  # how pools are used is of no price
    return priced_mixed(shelf, shape, plan, profiles)


def moves_on_pools(shelf: MixedShelf, plan: Plan) -> Iterator[tuple[str, str, Plan]]:
    """The dimension, the change in words and the plan; not all of them need be legal."""
    degrees, size = plan.parallelism, plan.microbatch_size or 1
    assert degrees is not None, "all stages share their degrees"
    for new in (2 * size, size // 2):
        if new and plan.num_microbatches * size % new == 0:
            count = plan.num_microbatches * size // new
            changed = replace(plan, microbatch_size=new, num_microbatches=count)
            yield "microbatch", f"--micro-batch {new}", changed
    for stage in ZERO_STAGES if shelf.question.shards_state else (0,):
        if stage != degrees.zero_stage:
            sharded = replace(plan, parallelism=replace(degrees, zero_stage=stage))
            yield "zero", f"--zero {stage}", sharded
    placed_alike = next((own for own in (CHAIN, IN_V, LOOPED) if plan.schedule in own), ())
    for family in SEARCHED_UNLESS_NAMED if degrees.pipeline > 1 else ():
        if family != plan.schedule and family in placed_alike:
            yield "schedule", f"--schedule {family}", replace(plan, schedule=family)
    yield from _modes(shelf, plan)
    for at in range(len(plan.stages) - 1):
        for count in _MOVED:
            for source, target in ((at, at + 1), (at + 1, at)):
                if len(plan.stages[source].layers) > count:
                    words = f"{count} layer{'s' * (count > 1)} of stage {source} to stage {target}"
                    yield "cut", words, _with_cut(plan, at, count if source == at else -count)
    yield from _shares(shelf, plan)
    for factor, by in ((2, 1), (1, 2)):
        if (split := _with_tensor(plan, degrees, factor, by)) is not None:
            yield "tensor", f"--tp {degrees.tensor * factor // by}", split


def _of_group(stage: Stage, group: ReplicaGroup) -> dict[int, str]:
    """What the replicas of a group do with each layer."""
    return dict(zip(stage.layers, group.options or stage.options, strict=True))


def _modes(shelf: MixedShelf, plan: Plan) -> Iterator[tuple[str, str, Plan]]:
    """Another recomputation of all layers that know it, on all pools or on those of one."""
    pools = sorted({group.pool for stage in plan.stages for group in stage.replicas})
    profile, names = priced_on_pools(shelf, plan).profiles[pools[0]], shelf.cluster.pool_names()
    costs = profile.costs
    known = {
        layer.id: {costs.option_ids[row] for row in costs.rows_of(layer.layer_class)}
        for layer in profile.structure.layers
    }
    chosen = [(pool,) for pool in pools] if len(pools) > 1 else []
    for mode in USUAL_MODES:
        for on in ((*pools,), *chosen):
            where = "" if len(on) == len(pools) else f" on {names[on[0]]}"
            changed = _recomputing(plan, str(mode), known, on)
            if changed != _recomputing(plan, str(mode), known, ()):
                yield "recompute", f"--recompute {mode}{where}", changed


def _recomputing(
    plan: Plan, mode: str, known: Mapping[int, Collection[str]], pools: Collection[int]
) -> Plan:
    """The plan with the mode for every layer on these pools that knows it."""

    def part(stage: Stage) -> Stage:
        groups = tuple(
            replace(
                group,
                options=tuple(
                    mode if group.pool in pools and mode in known[layer] else own
                    for layer, own in _of_group(stage, group).items()
                ),
            )
            for group in stage.replicas
        )
        return replace(stage, options=groups[0].options, replicas=groups)

    return replace(plan, stages=tuple(map(part, plan.stages)))


def _with_cut(plan: Plan, at: int, count: int) -> Plan:
    """So many layers of stage `at` moved to the next one, or back where negative."""
    one, other = plan.stages[at], plan.stages[at + 1]
    layers = (*one.layers, *other.layers)
    after = len(one.layers) - count
    groups = zip(one.replicas, other.replicas, strict=True)  # a group of each for every chain
    told = [_of_group(one, first) | _of_group(other, second) for first, second in groups]

    def part(stage: Stage, own: tuple[int, ...]) -> Stage:
        made = tuple(
            replace(group, options=tuple(options[layer] for layer in own))
            for group, options in zip(stage.replicas, told, strict=True)
        )
        return replace(stage, layers=own, options=made[0].options, replicas=made)

    stages = list(plan.stages)
    stages[at : at + 2] = [part(one, layers[:after]), part(other, layers[after:])]
    return replace(plan, stages=tuple(stages))


def _shares(shelf: MixedShelf, plan: Plan) -> Iterator[tuple[str, str, Plan]]:
    """The fewest microbatches that one chain can take over from another."""
    chains, names = chains_of(plan), shelf.cluster.pool_names()
    for giver in range(len(chains)):
        for taker in range(len(chains)):
            one, other = chains[giver], chains[taker]
            common = math.gcd(one.count, other.count)
            less, more = other.count // common, one.count // common
            if giver == taker or one.num_microbatches <= less:
                continue
            counts = [chain.num_microbatches for chain in chains]
            counts[giver] -= less
            counts[taker] += more
            kind = names[other.groups[0].pool]
            words = f"{other.count * more} microbatches more on {kind} (chain {taker})"
            yield "share", f"{words}, as many less in chain {giver}", _with_counts(plan, counts)


def _with_counts(plan: Plan, counts: list[int]) -> Plan:
    """The plan with so many microbatches for a replica of each chain."""
    stages = tuple(
        replace(
            stage,
            replicas=tuple(
                replace(group, share=group.count * count / plan.num_microbatches)
                for group, count in zip(stage.replicas, counts, strict=True)
            ),
        )
        for stage in plan.stages
    )
    return replace(plan, stages=stages)


def _with_tensor(plan: Plan, degrees: Parallelism, factor: int, by: int) -> Plan | None:
    """The tensor degree times factor/by, with as many replicas less; None where that is no plan."""
    tensor, counts = degrees.tensor * factor, [g.count * by for g in plan.stages[0].replicas]
    if tensor % by or any(count % factor for count in counts):
        return None
    tensor, data = tensor // by, sum(count // factor for count in counts)
    stages = tuple(
        replace(
            stage,
            replicas=tuple(
                replace(group, count=group.count * by // factor, tensor_parallel=tensor)
                for group in stage.replicas
            ),
        )
        for stage in plan.stages
    )
    changed = replace(degrees, tensor=tensor, data=data, sequence_parallel=tensor > 1)
    return replace(plan, stages=stages, parallelism=changed)
