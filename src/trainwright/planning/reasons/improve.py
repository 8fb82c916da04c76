"""The smallest change of a run that gets most of what could be gained, or that makes it fit.

All runs that differ in one dimension are priced, whether they fit or not; then pairs of the fastest
few and the leanest of every two dimensions, because a change of a degree often pays only together
with another that makes it fit. Of a run that does not fit itself, only changes that need less
memory are worth a pair. Cost: one price per run, about a hundred.

Where that finds nothing, and where the run itself is not wanted, so that some change is needed
whatever it costs, all pairs are priced that are wanted: `every_improvement`, some hundreds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.planning.question.layouts import chunks_per_rank
from trainwright.plans.configuration import even_blocks
from trainwright.plans.plan import AXIS_ORDERS, DEFAULT_SCHEDULE, mapping_name
from trainwright.profile import Recompute
from trainwright.step.predict import price_configuration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainwright.cluster import Cluster, Pool
    from trainwright.execution import Budget
    from trainwright.plans import StepPrediction
    from trainwright.plans.configuration import Configuration
    from trainwright.plans.plan import Parallelism
    from trainwright.profile.measured_model import Trained


# Runs that differ from one run in a single decision, as a person would try them
# ------------------------------------------------------------------------------
# A decision is a dimension: the degree of an axis (in exchange for replicas), the microbatch, ZeRO,
# recomputation, the schedule, a kernel. Changing two dimensions is changing one after the other.
# What follows from a decision is said with it: other replicas, another split, the chunks of a
# schedule.

_FAMILIES: Final = (DEFAULT_SCHEDULE, "zb-h1", "zb-v", "v-half", "v-min", "interleaved")
_CHUNKS: Final = (2, 3, 4, 5)
_FIRST_BLOCKS: Final = (1, 2, 4, 8, 16)
_DEGREES: Final = {"tensor": "tp", "pipeline": "pp", "context": "cp", "data": "dp", "expert": "ep"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One decision changed: its dimension, what was chosen there, and the run."""

    dimension: str
    choice: str
    run: Configuration


def moves(run: Configuration, model: Trained, pool: Pool) -> Iterator[Move]:
    """Every run that differs in one dimension; not all of them need be legal."""
    yield from _axes(run, model, pool)
    yield from _sequence(run)
    yield from _microbatches(run)
    yield from _sharding(run)
    yield from _mappings(run)
    yield from _recompute(run)
    yield from _schedules(run, model)
    yield from _kernels(run)


def options_between(run: Configuration, other: Configuration) -> str:
    """What makes `other` of `run` where it is added to the options of `estimate`."""
    return " ".join(_changed_options(run, other))


def _changed_options(run: Configuration, other: Configuration) -> Iterator[str]:
    before, after = run.parallelism, other.parallelism
    for name, flag in _DEGREES.items():
        if (degree := getattr(after, name)) != getattr(before, name):
            yield f"--{flag} {degree}"
    if after.tensor > 1 and after.sequence_parallel != before.sequence_parallel:
        yield "--sequence-parallel" if after.sequence_parallel else "--no-sequence-parallel"
    if other.microbatch_size != run.microbatch_size:
        yield f"--micro-batch {other.microbatch_size}"
    if after.zero_stage != before.zero_stage:
        yield f"--zero {after.zero_stage}"
    if after.state_copies != before.state_copies:
        yield f"--state-copies {after.state_copies}"
    if after.axis_order != before.axis_order:
        yield f"--mapping {mapping_name(after.axis_order)}"
    if (other.recompute, other.recompute_blocks) != (run.recompute, run.recompute_blocks):
        first = other.recompute_blocks
        yield f"--recompute {other.recompute}" + ("" if first is None else f":{first}")
    if other.schedule != run.schedule:
        yield f"--schedule {other.schedule}"
    if after.virtual_stages != before.virtual_stages:
        yield f"--virtual-stages {after.virtual_stages}"
    if other.blocks_per_stage != run.blocks_per_stage and other.blocks_per_stage is not None:
        yield f"--blocks {','.join(map(str, other.blocks_per_stage))}"
    if other.fused_attention != run.fused_attention:
        yield "--flash-attention"
    if other.fused_cross_entropy != run.fused_cross_entropy:
        yield "--fused-cross-entropy"


def _axes(run: Configuration, model: Trained, pool: Pool) -> Iterator[Move]:
    degrees = run.parallelism
    for axis in ("tensor", "pipeline", "context"):
        limit = pool.devices_per_node if axis == "tensor" else model.num_layers
        for count in _doubled_and_halved(getattr(degrees, axis), limit):
            group = degrees.num_devices // degrees.data // getattr(degrees, axis) * count
            if degrees.num_devices % group:
                continue
            data = degrees.num_devices // group
            changed = _with_axis(degrees, axis, count, data)
            split = _split(run, changed, model)
            schedule = DEFAULT_SCHEDULE if changed.pipeline == 1 else run.schedule
            new = replace(run, parallelism=changed, blocks_per_stage=split, schedule=schedule)
            yield Move(dimension=axis, choice=str(count), run=new)
    if model.experts is not None:
        for count in _doubled_and_halved(degrees.expert, model.experts.num_experts):
            changed = replace(degrees, expert=count)
            new = replace(run, parallelism=changed)
            yield Move(dimension="expert", choice=str(count), run=new)


def _split(run: Configuration, degrees: Parallelism, model: Trained) -> tuple[int, ...] | None:
    """The stated split where it still has a part for each virtual stage, else an even one."""
    count = degrees.pipeline * degrees.virtual_stages
    if run.blocks_per_stage is None or len(run.blocks_per_stage) == count:
        return run.blocks_per_stage
    return even_blocks(model.num_layers, count)


def _with_axis(degrees: Parallelism, axis: str, count: int, data: int) -> Parallelism:
    match axis:
        case "tensor":
            sequence = count > 1 and (degrees.sequence_parallel or degrees.tensor == 1)
            return replace(degrees, tensor=count, data=data, sequence_parallel=sequence)
        case "pipeline":
            chunks = degrees.virtual_stages if count > 1 else 1
            return replace(degrees, pipeline=count, data=data, virtual_stages=chunks)
        case _:
            return replace(degrees, context=count, data=data)


def _doubled_and_halved(value: int, limit: int) -> list[int]:
    """Powers of two times the value in both directions, nearest first."""
    up = [value * 2**k for k in range(1, 8) if value * 2**k <= limit]
    down = [value // 2**k for k in range(1, 8) if value % 2**k == 0]
    return sorted({*up, *down})


def _sequence(run: Configuration) -> Iterator[Move]:
    degrees = run.parallelism
    if degrees.tensor > 1 and not degrees.sequence_parallel:
        new = replace(run, parallelism=replace(degrees, sequence_parallel=True))
        yield Move(dimension="sequence", choice="parallel", run=new)


def _microbatches(run: Configuration) -> Iterator[Move]:
    for size in _doubled_and_halved(run.microbatch_size, 32):
        new = replace(run, microbatch_size=size)
        yield Move(dimension="microbatch", choice=str(size), run=new)


def _sharding(run: Configuration) -> Iterator[Move]:
    for stage in range(4):
        if stage != run.parallelism.zero_stage:
            copies = run.parallelism.state_copies if stage else 1
            sharded = replace(run.parallelism, zero_stage=stage, state_copies=copies)
            new = replace(run, parallelism=sharded)
            yield Move(dimension="zero", choice=str(stage), run=new)
    for copies in _doubled_and_halved(run.parallelism.state_copies, run.parallelism.data):
        new = replace(run, parallelism=replace(run.parallelism, state_copies=copies))
        yield Move(dimension="copies", choice=str(copies), run=new)


def _mappings(run: Configuration) -> Iterator[Move]:
    degrees = run.parallelism
    if min(degrees.pipeline, degrees.data) == 1:
        return
    for order in AXIS_ORDERS:
        if order != degrees.axis_order:
            new = replace(run, parallelism=replace(degrees, axis_order=order))
            yield Move(dimension="mapping", choice=mapping_name(order), run=new)


def _recompute(run: Configuration) -> Iterator[Move]:
    found: dict[str, Configuration] = {
        mode.value: replace(run, recompute=mode, recompute_blocks=None) for mode in Recompute
    }
    for count in _FIRST_BLOCKS:
        found[f"full:{count}"] = replace(run, recompute=Recompute.FULL, recompute_blocks=count)
    for text, new in found.items():
        if new != run:
            yield Move(dimension="recompute", choice=text, run=new)


def _schedules(run: Configuration, model: Trained) -> Iterator[Move]:
    degrees = run.parallelism
    if degrees.pipeline == 1:
        return
    own = ((name, chunks_per_rank(name)) for name in _FAMILIES)
    offered = [(name, n) for name, only in own for n in (_CHUNKS if only is None else (only,))]
    for name, chunks in offered:
        if (name, chunks) == (run.schedule, degrees.virtual_stages):
            continue
        chunked = replace(degrees, virtual_stages=chunks)
        split = _split(run, chunked, model)
        new = replace(run, schedule=name, parallelism=chunked, blocks_per_stage=split)
        yield Move(dimension="schedule", choice=f"{name} {chunks}", run=new)


def _kernels(run: Configuration) -> Iterator[Move]:
    if not run.fused_attention:
        new = replace(run, fused_attention=True)
        yield Move(dimension="attention", choice="fused", run=new)
    if not run.fused_cross_entropy:
        new = replace(run, fused_cross_entropy=True)
        yield Move(dimension="cross entropy", choice="fused", run=new)


MOST_OF_IT: Final = 0.8  # of the gain: what a smaller change must reach to be preferred
NEARLY_AS_FAST: Final = 0.95  # of the best speed, where a change makes a run fit: within an error


# The smallest change of a run that gets most of what could be gained, or that makes it fit
# -----------------------------------------------------------------------------------------

_FASTEST: Final = 3  # of a dimension, beside its leanest, are tried together with others
MOST_LISTED: Final = 8  # changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """A run with one or two dimensions changed, priced; it fits.

    `settings` say the change in the words of a file that states the run, where there is one.
    """

    dimensions: tuple[str, ...]
    options: str
    settings: tuple[str, ...] = ()
    run: Configuration
    step: StepPrediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """What one run may become: which runs are wanted, and which fit."""

    model: Trained
    cluster: Cluster
    wanted: Callable[[Configuration], bool]
    fits: Callable[[Configuration, StepPrediction], bool]

    def price(self, run: Configuration) -> StepPrediction | None:
        """The step; None where a rule forbids the run or it is not wanted."""
        try:
            return price_configuration(self.model, self.cluster, run) if self.wanted(run) else None
        except (InvalidInput, UnsupportedFeature):
            return None

    def most_bytes(self, run: Configuration) -> float:
        """What a change worth a pair needs less than: the run's own peak where that is too much."""
        step = price_configuration(self.model, self.cluster, run)
        return math.inf if self.fits(run, step) else step.peak_memory_bytes

    def moves(self, run: Configuration) -> Iterable[Move]:
        """Changes of one dimension, legal or not."""
        return moves(run, self.model, self.cluster.pool_of())


def improvements(
    run: Configuration, around: Neighbourhood, budget: Budget
) -> tuple[Improvement, ...]:
    """The best run for each set of one or two dimensions, fastest first; all fit.

    A budget that ends keeps what was found.
    """
    most_bytes = around.most_bytes(run)
    singles = []
    for move in around.moves(run):
        if budget.stopped:
            break
        step = around.price(move.run)
        if step is not None:
            singles.append((move, step))
    found = [_improvement(run, (move,), step) for move, step in singles]
    promising = list(_promising([each for each in singles if _peak(each) < most_bytes]))
    choices = {(move.dimension, move.choice) for move in promising}
    for first in promising:
        for second in around.moves(first.run):
            if second.dimension <= first.dimension or budget.stopped:
                continue
            if (second.dimension, second.choice) not in choices:
                continue
            step = around.price(second.run)
            if step is not None:
                found.append(_improvement(run, (first, second), step))
    return _best_of_each([each for each in found if around.fits(each.run, each.step)])


def every_improvement(
    run: Configuration, around: Neighbourhood, budget: Budget
) -> tuple[Improvement, ...]:
    """As `improvements`, of all changes of one dimension or two, whatever their parts take alone.

    A part need be neither legal nor wanted, and two are taken in both orders: what the second may
    be can follow from the first.
    """
    reached: dict[Configuration, tuple[Move, ...]] = {}
    singles = tuple(around.moves(run))
    for move in singles:
        reached.setdefault(move.run, (move,))
    for first in singles:
        for second in around.moves(first.run):
            if second.dimension != first.dimension:
                reached.setdefault(second.run, (first, second))
    found = []
    for changed, path in reached.items():
        if budget.stopped:
            break
        step = None if changed == run else around.price(changed)
        if step is not None and around.fits(changed, step):
            found.append(_improvement(run, path, step))
    return _best_of_each(found)


def _peak(priced: tuple[Move, StepPrediction]) -> float:
    return priced[1].peak_memory_bytes


def _promising(singles: list[tuple[Move, StepPrediction]]) -> Iterator[Move]:
    """The fastest moves of every dimension, and the one that needs the least memory."""
    by_dimension: dict[str, list[tuple[Move, StepPrediction]]] = {}
    for move, step in singles:
        by_dimension.setdefault(move.dimension, []).append((move, step))
    for offered in by_dimension.values():
        fastest = sorted(offered, key=lambda each: each[1].step_time_s)[:_FASTEST]
        leanest = min(offered, key=_peak)
        yield from (move for move, _ in fastest)
        if leanest not in fastest:
            yield leanest[0]


def _improvement(run: Configuration, path: tuple[Move, ...], step: StepPrediction) -> Improvement:
    changed = path[-1].run
    return Improvement(
        dimensions=tuple(move.dimension for move in path),
        options=options_between(run, changed),
        run=changed,
        step=step,
    )


def _best_of_each(found: list[Improvement]) -> tuple[Improvement, ...]:
    """The fastest of each set of dimensions, fastest first."""
    best: dict[frozenset[str], Improvement] = {}
    for each in sorted(found, key=_order):
        best.setdefault(frozenset(each.dimensions), each)
    return tuple(best.values())


def _order(each: Improvement) -> tuple[float, int, str]:
    """Fastest first; of those that agree in twelve digits the one that is quickest said."""
    return float(f"{each.step.step_time_s:.11e}"), each.options.count("--"), each.options


def reachable(
    run: Configuration,
    model: Trained,
    pool: Pool,
    *,
    dimensions: Iterable[str],
    options: str,
) -> Configuration | None:
    """What a change of the run in these dimensions makes of it, if these are its options."""
    reached = [run]
    for dimension in dimensions:
        reached = [
            move.run
            for each in reached
            for move in moves(each, model, pool)
            if move.dimension == dimension
        ]
    return next((each for each in reached if options_between(run, each) == options), None)


def worth_listing(found: Iterable[Improvement]) -> tuple[Improvement, ...]:
    """A few, fastest first: half of them of one decision, the others pairs that beat all those."""
    fastest = sorted(found, key=_order)
    singles = [each for each in fastest if len(each.dimensions) == 1]
    least_s = singles[0].step.step_time_s if singles else math.inf
    pairs = [e for e in fastest if len(e.dimensions) > 1 and e.step.step_time_s < least_s]
    half = MOST_LISTED // 2
    return tuple(sorted((*pairs[:half], *singles[:half]), key=_order))


def recommended(
    found: Iterable[Improvement], *, base_s: float | None, best_s: float
) -> Improvement | None:
    """The change of fewest dimensions with most of the gain; the fastest where none has.

    `base_s` is the step of the run, None where it does not fit, and `best_s` the fastest known. A
    run that does not fit has no gain to get: of its changes the one of fewest dimensions counts
    that is nearly as fast as the fastest. None where nothing is faster than the run.
    """
    offered = [each for each in found if base_s is None or each.step.step_time_s < base_s]
    if not offered:
        return None
    if base_s is None:
        enough_s = best_s / NEARLY_AS_FAST
    else:
        enough_s = base_s - MOST_OF_IT * (base_s - best_s)
    enough = [each for each in offered if each.step.step_time_s <= enough_s]
    if not enough:
        return min(offered, key=_order)
    return min(enough, key=lambda each: (len(each.dimensions), _order(each)))
