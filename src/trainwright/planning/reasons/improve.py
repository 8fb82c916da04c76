"""The smallest change of a run that gets most of what could be gained, or that makes it fit.

All runs that differ in one dimension are priced, whether they fit or not; then pairs of the fastest
few and the leanest of every two dimensions, because a change of a degree often pays only together
with another that makes it fit. Of a run that does not fit itself, only changes that need less
memory are worth a pair. Cost: one price per run, about a hundred.

Where that finds nothing, and where the run itself is not wanted, so that some change is needed
whatever it costs, all pairs are priced that are wanted: `every_improvement`, some hundreds.

What would make a run fit has a section of its own: single changes, each priced, cheapest first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trainwright.cluster import Cluster, Pool
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.model import NO_OFFLOAD, ContextExchange, CudaGraph, Optimizer, Recipe
from trainwright.model.config import TRAIN_ALL, LowRank, Tuning
from trainwright.model.transformer import usual_targets
from trainwright.plans import StepPrediction
from trainwright.plans.capability_table import LOSS_CHUNKS, USUAL_LOSS_CHUNK
from trainwright.plans.configuration import Configuration, even_blocks
from trainwright.plans.plan import AXIS_ORDERS, DEFAULT_SCHEDULE, Parallelism, mapping_name
from trainwright.plans.status import ADAPTER_RANK
from trainwright.profile import USUAL_MODES, Recompute
from trainwright.profile.measured_model import MeasuredModel
from trainwright.scheduling.families import FAMILIES
from trainwright.step.predict import price_configuration

if TYPE_CHECKING:
    from trainwright.execution import Budget
    from trainwright.model import TransformerConfig
    from trainwright.planning.reasons.why import PoolsChange
    from trainwright.profile.measured_model import Trained

    Attempts = Iterable[tuple[str, str, Configuration]]

AnyChange = TypeVar("AnyChange", bound="Improvement | PoolsChange")


# Runs that differ from one run in a single decision, as a person would try them
# ------------------------------------------------------------------------------
# A decision is a dimension: the degree of an axis (in exchange for replicas), the microbatch, ZeRO,
# recomputation, the schedule, a kernel. Changing two dimensions is changing one after the other.
# What follows from a decision is said with it: other replicas, another split, the chunks of a
# schedule.

_CHUNKS: Final = (2, 3, 4, 5)
_FIRST_BLOCKS: Final = (1, 2, 4, 8, 16)
_DEGREES: Final = {"tensor": "tp", "pipeline": "pp", "context": "cp", "data": "dp", "expert": "ep"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One decision changed: its dimension, what was chosen there, and the run.

    `model` is what then trains, where that is not the model of the run.
    """

    dimension: str
    choice: str
    run: Configuration
    model: TransformerConfig | None = None


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
    if not isinstance(model, MeasuredModel):
        yield from _room(run, pool)


def trainings(run: Configuration, model: Trained) -> Iterator[Move]:
    """Every run that trains the model in another way: adapters, formats of states, optimizers."""
    if isinstance(model, MeasuredModel):
        return
    recipe = run.recipe
    moments = set(recipe.moment_dtypes)
    if recipe.optimizer is Optimizer.ADAM and moments in ({"fp32"}, {"bf16"}):
        for dtype in ("int8", "bf16") if moments == {"fp32"} else ("int8",):
            new = replace(run, recipe=replace(recipe, moment_dtypes=(dtype,)))
            yield Move(dimension="moments", choice=dtype, run=new)
        kept = recipe.moment_dtypes[:1]  # of the little that is left of them
        factored = replace(recipe, optimizer=Optimizer.ADAFACTOR, moment_dtypes=kept)
        new = replace(run, recipe=factored)
        yield Move(dimension="optimizer", choice="adafactor", run=new)
    if recipe.gradient_dtype in (None, "fp32"):
        narrow = replace(recipe, gradient_dtype="bf16")
        yield Move(dimension="gradients", choice="bf16", run=replace(run, recipe=narrow))
        if recipe.reduce_dtype in (None, "fp32") and run.parallelism.data > 1:
            narrow = replace(recipe, reduce_dtype="bf16")
            yield Move(dimension="reduction", choice="bf16", run=replace(run, recipe=narrow))
    halved = replace(recipe, precision=(recipe.precision or "").removesuffix("_autocast") or None)
    for name, adapted in adapted_models(model):
        new = replace(run, recipe=halved)  # frozen weights have no use for float32
        yield Move(dimension="adapters", choice=name, run=new, model=adapted)


# Dimensions of what trains in another way: nothing of them is a gain of the training asked for.
_OTHER_TRAININGS: Final = frozenset({"moments", "optimizer", "gradients", "reduction", "adapters"})


def is_another_training(dimensions: Iterable[str]) -> bool:
    """Whether a change in these dimensions changes what is trained or computed, too."""
    return not _OTHER_TRAININGS.isdisjoint(dimensions)


def options_between(run: Configuration, other: Configuration) -> str:
    """What makes `other` of `run` where it is added to the options of `estimate`."""
    return " ".join(_changed_options(run, other))


def settings_between(run: Configuration, other: Configuration) -> str:
    """The options of kernels and of the recipe alone, which a plan takes as they are."""
    return " ".join(_changed_settings(run, other))


def with_settings(run: Configuration, options: str, pool: Pool) -> Configuration | None:
    """The run with the settings that `settings_between` names; None where no two moves do that."""
    reached = [run]
    for _ in range(2):
        for each in reached:
            if settings_between(run, each) == options:
                return each
        reached = [move.run for each in reached for move in (*_kernels(each), *_room(each, pool))]
    return next((each for each in reached if settings_between(run, each) == options), None)


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
    yield from _changed_settings(run, other)


def _changed_settings(run: Configuration, other: Configuration) -> Iterator[str]:
    if other.fused_attention != run.fused_attention:
        yield "--flash-attention"
    if other.fused_cross_entropy != run.fused_cross_entropy:
        yield "--fused-cross-entropy"
    if other.recipe.fused_update != run.recipe.fused_update:
        yield "--fused-update" if other.recipe.fused_update else "--no-fused-update"
    before, after = run.recipe, other.recipe
    changed = [name for name in _OF_RECIPE if getattr(after, name) != getattr(before, name)]
    for name, value in ((name, getattr(after, name)) for name in changed):
        if isinstance(value, bool):
            yield f"--{'' if value else 'no-'}{flag_of(name)}"
        elif value not in (None, ()):
            values = value if isinstance(value, tuple) else (value,)
            yield f"--{flag_of(name)} " + ",".join(map(str, values))
    if (held := after.offload or NO_OFFLOAD) != (before.offload or NO_OFFLOAD):
        for each in fields(held):
            if (share := getattr(held, each.name)) != getattr(
                before.offload or NO_OFFLOAD, each.name
            ):
                yield f"--offload {each.name}={share:g}"


# Fields of the recipe in the order in which a change of several is said; shares on the host and
# the kernel of the update are said in words of their own, the balance follows from the exchange.
_SAID_FIRST: Final = ("loss_chunk", "mlp_tile", "context_exchange", "cuda_graph", "optimizer")
_SAID_APART: Final = ("offload", "fused_update", "context_balanced")
_OF_RECIPE: Final = tuple(
    name
    for name in dict.fromkeys(
        (*_SAID_FIRST, "moment_dtypes", *(each.name for each in fields(Recipe)))
    )
    if name not in _SAID_APART
)


def flag_of(field: str) -> str:
    """The option of a field of the recipe, by the rule that the table of options keeps."""
    return field.replace("_dtypes", "_dtype").replace("_", "-")


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
        mode.value: replace(run, recompute=mode, recompute_blocks=None) for mode in USUAL_MODES
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
    own = {each.name: each.num_chunks for each in FAMILIES.values() if each.tried}
    offered = [(name, only) for name, only in own.items() if only is not None]
    offered += [(name, n) for name, only in own.items() if only is None for n in _CHUNKS]
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
    if run.recipe.update_copy_bytes:
        new = replace(run, recipe=replace(run.recipe, fused_update=True))
        yield Move(dimension="update", choice="fused", run=new)


_MLP_TILE: Final = 8192  # tokens at once
_WITH_WEIGHTS: Final = (
    ("optimizer", "gradients", "weights"),
    ("activations", "optimizer", "gradients", "weights"),
)


def _room(run: Configuration, pool: Pool) -> Iterator[Move]:
    """What makes room and leaves the training as it is: pieces, the host, no graphs, exchanges."""
    recipe = run.recipe
    for chunk in (
        dict.fromkeys((*LOSS_CHUNKS.values(), USUAL_LOSS_CHUNK))
        if recipe.loss_chunk is None
        else ()
    ):
        new = replace(run, recipe=replace(recipe, loss_chunk=chunk))
        yield Move(dimension="loss", choice=f"{chunk} tokens at a time", run=new)
    if recipe.mlp_tile is None:
        new = replace(run, recipe=replace(recipe, mlp_tile=_MLP_TILE))
        yield Move(dimension="feed-forward", choice=f"{_MLP_TILE} tokens at a time", run=new)
    if pool.accelerator.host is not None:
        now = recipe.offload or NO_OFFLOAD
        for names in (
            ("activations",),
            ("optimizer",),
            ("optimizer", "gradients"),
            ("activations", "optimizer", "gradients"),
            *(_WITH_WEIGHTS if run.parallelism.zero_stage == 3 else ()),
        ):
            there = replace(now, **dict.fromkeys(names, 1.0))
            if there != now:
                new = replace(run, recipe=replace(recipe, offload=there))
                yield Move(dimension="host", choice=" ".join(names), run=new)
    if run.parallelism.context > 1:
        for kind in (ContextExchange.RING, ContextExchange.ALL_TO_ALL):
            if kind is not recipe.context_exchange and recipe.ulysses is None:
                new = replace(run, recipe=replace(recipe, context_exchange=kind))
                yield Move(dimension="exchange", choice=str(kind), run=new)
    if recipe.cuda_graph is not CudaGraph.NONE:
        plain = replace(recipe, cuda_graph=CudaGraph.NONE, cuda_graph_modules=())
        yield Move(dimension="graphs", choice="none", run=replace(run, recipe=plain))


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
    `model` is what then trains, where that is not the model of the run.
    """

    dimensions: tuple[str, ...]
    options: str
    settings: tuple[str, ...] = ()
    run: Configuration
    model: TransformerConfig | None = None
    step: StepPrediction

    @property
    def is_another_training(self) -> bool:
        """Whether what is trained or computed changes, too."""
        return is_another_training(self.dimensions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """What one run may become: which runs are wanted, and which fit."""

    model: Trained
    cluster: Cluster
    wanted: Callable[[Trained, Configuration], bool]
    fits: Callable[[Trained, Configuration, StepPrediction], bool]

    def price(self, run: Configuration, trained: Trained | None = None) -> StepPrediction | None:
        """The step; None where a rule forbids the run or it is not wanted."""
        model = trained or self.model
        try:
            return (
                price_configuration(model, self.cluster, run) if self.wanted(model, run) else None
            )
        except (InvalidInput, UnsupportedFeature):
            return None

    def most_bytes(self, run: Configuration) -> float:
        """What a change worth a pair needs less than: the run's own peak where that is too much."""
        step = price_configuration(self.model, self.cluster, run)
        return math.inf if self.fits(self.model, run, step) else step.peak_memory_bytes

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
    return _best_of_each([e for e in found if around.fits(around.model, e.run, e.step)])


def other_trainings(
    run: Configuration, around: Neighbourhood, budget: Budget, *, with_others: bool
) -> tuple[Improvement, ...]:
    """The best run of each other training alone; `with_others`, with what makes room besides."""
    found = []
    moves_of = [m for m in around.moves(run) if with_others and m.dimension in _MAKE_ROOM]
    for training in trainings(run, around.model):
        paths: list[tuple[Move, ...]] = [(training,)]
        for move in moves_of:
            recipe = replace(
                move.run.recipe,
                **{name: getattr(training.run.recipe, name) for name in _OF_STATES},
            )
            both = replace(move, run=replace(move.run, recipe=recipe), model=training.model)
            paths.append((training, both))
        for path in paths:
            if budget.stopped:
                break
            changed, trained = path[-1].run, training.model or around.model
            step = around.price(changed, training.model)
            if step is not None and around.fits(trained, changed, step):
                found.append(_improvement(run, path, step))
    return _best_of_each(found)


_MAKE_ROOM: Final = frozenset({"recompute", "microbatch", "zero", "loss", "feed-forward", "host"})
_OF_STATES: Final = ("optimizer", "moment_dtypes", "gradient_dtype", "reduce_dtype")


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
        if step is not None and around.fits(around.model, changed, step):
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
    changed, model = path[-1].run, path[-1].model
    return Improvement(
        dimensions=tuple(move.dimension for move in path),
        options=_with_adapters(model, options_between(run, changed)),
        run=changed,
        model=model,
        step=step,
    )


def _with_adapters(model: TransformerConfig | None, options: str) -> str:
    """The options with those of the adapters that train in another model than the run's."""
    low_rank = None if model is None else model.tuning.low_rank
    if low_rank is None:
        return options
    bits = "" if low_rank.bits is None else f"--weight-bits {low_rank.bits}"
    return " ".join(filter(None, (f"--lora-rank {low_rank.rank}", bits, options)))


def _best_of_each(found: list[Improvement]) -> tuple[Improvement, ...]:
    """The fastest of each set of dimensions, fastest first."""
    best: dict[frozenset[str], Improvement] = {}
    for each in sorted(found, key=_order):
        best.setdefault(frozenset(each.dimensions), each)
    return tuple(best.values())


def _order(each: Improvement | PoolsChange) -> tuple[float, int, str]:
    """Fastest first; of those that agree in twelve digits the one that is quickest said."""
    return float(f"{each.step.step_time_s:.11e}"), each.options.count("--"), each.options


def reachable(
    run: Configuration,
    model: Trained,
    pool: Pool,
    *,
    dimensions: Iterable[str],
    options: str,
) -> tuple[Configuration, Trained] | None:
    """What a change of the run in these dimensions makes of it, if these are its options."""
    reached: list[tuple[Configuration, TransformerConfig | None]] = [(run, None)]
    for dimension in dimensions:
        reached = [
            (move.run, move.model or adapted)
            for each, adapted in reached
            for move in (*moves(each, model, pool), *trainings(each, model))
            if move.dimension == dimension
        ]
    return next(
        (
            (each, adapted or model)
            for each, adapted in reached
            if _with_adapters(adapted, options_between(run, each)) == options
        ),
        None,
    )


def worth_listing(found: Iterable[AnyChange]) -> tuple[AnyChange, ...]:
    """A few, fastest first: half of them of one decision, the others pairs that beat all those."""
    fastest = sorted(found, key=_order)
    singles = [each for each in fastest if len(each.dimensions) == 1]
    least_s = singles[0].step.step_time_s if singles else math.inf
    pairs = [e for e in fastest if len(e.dimensions) > 1 and e.step.step_time_s < least_s]
    half = MOST_LISTED // 2
    return tuple(sorted((*pairs[:half], *singles[:half]), key=_order))


def recommended(
    found: Iterable[AnyChange], *, base_s: float | None, best_s: float
) -> AnyChange | None:
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


# What would make a run fit that does not: single changes of it, each priced, cheapest first
# ------------------------------------------------------------------------------------------
# Model and batch stay; devices are added as a last resort. A family of changes (ever smaller
# microbatches, ever more blocks recomputed) stops at the first that is enough.

_MOST_DEVICES: Final = 64  # times those of the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Options as on the command line, what they mean, and the run with them, priced.

    `model` is what then trains: that of the run, or adapters beside it.
    """

    options: str
    description: str
    configuration: Configuration
    model: Trained
    step: StepPrediction

    @property
    def device_s(self) -> float:
        """What a step costs: seconds times devices."""
        return self.step.step_time_s * self.configuration.parallelism.num_devices


def changes_that_fit(
    model: Trained,
    cluster: Cluster,
    configuration: Configuration,
    fits: Callable[[Trained, Configuration, StepPrediction], bool],
    *,
    wanted: Callable[[Trained, Configuration], bool] = lambda *_: True,
) -> tuple[Change, ...]:
    """Each wanted change that alone is enough, by device time of a step; empty where none is.

    What trains another model than the run does comes last. What two families come to alike is named
    once, and nothing that adds to a change that is enough.
    """
    found: list[Change] = []
    same = (
        ((*attempt, model) for attempt in family)
        for family in _families(configuration, cluster, model)
    )
    for attempts in (*same, _adapters(model, configuration)):
        for options, description, changed, trained in attempts:
            try:
                step = price_configuration(trained, grown(cluster, changed), changed)
            except InvalidInput:  # the model, the schedule or the network does not allow it
                continue
            if fits(trained, changed, step) and wanted(trained, changed):
                if not any((trained, changed) == (c.model, c.configuration) for c in found):
                    change = Change(
                        options=options,
                        description=description,
                        configuration=changed,
                        model=trained,
                        step=step,
                    )
                    found.append(change)
                break
    parts = [{*f" {change.options}".split(" --")} for change in found]
    least = [own for own in parts if not any(other < own for other in parts)]
    return tuple(
        sorted(
            (change for change, own in zip(found, parts, strict=True) if own in least),
            key=lambda change: (change.model is not model, change.device_s),
        )
    )


def grown(cluster: Cluster, run: Configuration) -> Cluster:
    """The cluster with as many nodes as the run needs."""
    needed, pool = run.parallelism.num_devices, cluster.pool_of()
    if needed <= pool.num_devices:
        return cluster
    return cluster.with_nodes(pool.nodes_for(needed))


def _families(run: Configuration, cluster: Cluster, model: Trained) -> Iterator[Attempts]:
    smaller, more = _smaller_microbatches(run), _more_recompute(run, model.num_layers)
    steps, sharded = len(list(_leanest_steps(run))), list(_leanest(run))
    if steps == 1:  # the other is there already: only where this one alone is too little
        yield chain(smaller, more, sharded[1:])
    elif steps:
        yield from (smaller, more, sharded)
    yield _more_sharding(run)
    yield from (_more_of(*axis, run, cluster) for axis in _AXES)
    if steps:
        yield from (_lean_and_more_of(*axis, run, cluster) for axis in _AXES)
    yield _leaner_kernels(run)
    yield _without_graphs(run)
    yield _in_pieces(run)
    yield _narrower_states(run)
    if cluster.accelerator.host is not None:
        yield _to_the_host(run)
    if model.experts is not None:
        yield _more_expert_parallel(run, model.experts.num_experts)
    yield _more_devices(run, cluster)
    yield _more_replicas(run, cluster)


def _leanest_steps(run: Configuration) -> Iterator[tuple[str, str]]:
    """Options and words of what the run lacks to hold the fewest activations."""
    if run.microbatch_size > 1:
        yield "--micro-batch 1", "microbatches of 1"
    if run.recompute is not Recompute.FULL or run.recompute_blocks is not None:
        yield "--recompute full", "recompute every block"


def _leanest(run: Configuration) -> Attempts:
    """All of these steps together, then with more sharding too."""
    steps = list(_leanest_steps(run))
    lean = replace(run, microbatch_size=1, recompute=Recompute.FULL, recompute_blocks=None)
    for flag, word, changed in (("", "", lean), *_more_sharding(lean)):
        flags, words = zip(*steps, (flag, word), strict=True)
        yield " ".join(filter(None, flags)), ", ".join(filter(None, (word, *words[:-1]))), changed


_AXES: Final = (("tensor", "tp"), ("pipeline", "pp"), ("context", "cp"))


def _lean_and_more_of(axis: str, flag: str, run: Configuration, cluster: Cluster) -> Attempts:
    """The leanest steps with more of an axis, where neither is enough alone."""
    flags, words = zip(*_leanest_steps(run), strict=True)
    lean = replace(run, microbatch_size=1, recompute=Recompute.FULL, recompute_blocks=None)
    for options, description, changed in _more_of(axis, flag, lean, cluster):
        yield " ".join((*flags, options)), ", ".join((description, *words)), changed


def adapted_models(model: Trained) -> Iterator[tuple[str, TransformerConfig]]:
    """A model that trains in full with adapters beside its frozen weights, those in 4 bits at last.

    It is another training than was asked for; none of a model that does not train in full.
    """
    if not isinstance(model, MeasuredModel) and model.tuning == TRAIN_ALL:
        for bits, name in ((None, "LoRA"), (4, "QLoRA")):
            low_rank = LowRank(rank=ADAPTER_RANK, targets=usual_targets(model), bits=bits)
            yield name, replace(model, tuning=Tuning(low_rank=low_rank))


def _adapters(
    model: Trained, run: Configuration
) -> Iterator[tuple[str, str, Configuration, Trained]]:
    """Adapters alone, with the leanest steps, and with more sharding too."""
    for name, adapted in adapted_models(model):
        own = " --weight-bits 4" if name == "QLoRA" else ""
        trains = f"{name}, another training: adapters of rank {ADAPTER_RANK} alone"
        for flags, words, changed in (("", "", run), *_leanest(run)):
            options = f"--lora-rank {ADAPTER_RANK}{own} {flags}".rstrip()
            yield options, f"{trains}, {words}" if words else trains, changed, adapted


def _smaller_microbatches(run: Configuration) -> Iterator[tuple[str, str, Configuration]]:
    size = run.microbatch_size
    while size > 1:
        size = next(s for s in range(size - 1, 0, -1) if run.microbatch_size % s == 0)
        changed = replace(run, microbatch_size=size)
        yield f"--micro-batch {size}", f"{size} sequences per microbatch", changed


def _more_recompute(
    run: Configuration, num_blocks: int
) -> Iterator[tuple[str, str, Configuration]]:
    if run.recompute is Recompute.NONE:
        changed = replace(run, recompute=Recompute.SELECTIVE, recompute_blocks=None)
        yield "--recompute selective", "recompute cheap operators", changed
    full = replace(run, recompute=Recompute.FULL, recompute_blocks=None)
    whole = run.recompute is Recompute.FULL and run.recompute_blocks is None
    largest = max(run.blocks_per_stage or even_blocks(num_blocks, run.num_stages))
    for blocks in () if whole else (1, 2, 4, 8, 16, 32, 64):
        if blocks >= largest:
            break
        changed = replace(full, recompute_blocks=blocks)
        yield f"--recompute full:{blocks}", f"recompute {blocks} blocks of each stage", changed
    if not whole:
        yield "--recompute full", "recompute every block", full


def _more_sharding(run: Configuration) -> Iterator[tuple[str, str, Configuration]]:
    degrees = run.parallelism
    for stage in range(degrees.zero_stage + 1, 4):
        changed = replace(run, parallelism=replace(degrees, zero_stage=stage))
        yield f"--zero {stage}", f"ZeRO stage {stage}", changed
    if degrees.state_copies > 1:
        changed = replace(run, parallelism=replace(degrees, state_copies=1))
        yield "--state-copies 1", "one copy of sharded state", changed


def _more_of(
    axis: str, flag: str, run: Configuration, cluster: Cluster
) -> Iterator[tuple[str, str, Configuration]]:
    """Twice as much of an axis, four times, …, in exchange for replicas."""
    degrees, factor = run.parallelism, 2
    node = cluster.pool_of().devices_per_node
    while degrees.data % factor == 0 and run.blocks_per_stage is None:
        count = getattr(degrees, axis) * factor
        if axis == "tensor" and count > node:
            return
        data = degrees.data // factor
        more = {axis: count, "data": data}
        if axis == "tensor":
            more["sequence_parallel"] = True
        changed = replace(run, parallelism=replace(degrees, **more))
        yield f"--{flag} {count} --dp {data}", f"{axis} {count}, data {data}", changed
        factor *= 2


def _more_expert_parallel(
    run: Configuration, num_experts: int
) -> Iterator[tuple[str, str, Configuration]]:
    """Experts over twice as many devices, four times, …, of those that share a rank's data."""
    degrees, count = run.parallelism, 2 * run.parallelism.expert
    while count <= num_experts:
        changed = replace(run, parallelism=replace(degrees, expert=count))
        yield f"--ep {count}", f"expert parallel {count}", changed
        count *= 2


def _more_replicas(
    run: Configuration, cluster: Cluster
) -> Iterator[tuple[str, str, Configuration]]:
    """Twice as many replicas that share all state, four times, …, where there is no pipeline."""
    degrees, factor = run.parallelism, 2
    while factor <= _MOST_DEVICES and degrees.pipeline == 1:
        data = degrees.data * factor
        changed = replace(run, parallelism=replace(degrees, data=data, zero_stage=3))
        devices = changed.parallelism.num_devices
        nodes = cluster.pool_of().nodes_for(devices)
        yield (
            f"--dp {data} --zero 3 --nodes {nodes} --devices {devices}",
            f"{data} replicas, {devices} devices",
            changed,
        )
        factor *= 2


def _more_devices(run: Configuration, cluster: Cluster) -> Iterator[tuple[str, str, Configuration]]:
    """Twice as many pipeline ranks, four times, …, on as many more devices; the batch stays."""
    degrees, factor = run.parallelism, 2
    while factor <= _MOST_DEVICES and run.blocks_per_stage is None:
        count = degrees.pipeline * factor
        changed = replace(run, parallelism=replace(degrees, pipeline=count))
        devices = changed.parallelism.num_devices
        nodes = cluster.pool_of().nodes_for(devices)
        options = f"--pp {count} --dp {degrees.data} --nodes {nodes} --devices {devices}"
        yield options, f"{count} pipeline ranks, {devices} devices", changed
        factor *= 2


def _in_pieces(run: Configuration) -> Iterator[tuple[str, str, Configuration]]:
    """Loss and feed-forward parts over some of the tokens at a time."""
    if run.recipe.loss_chunk is None:
        run = replace(run, recipe=replace(run.recipe, loss_chunk=USUAL_LOSS_CHUNK))
        yield f"--loss-chunk {USUAL_LOSS_CHUNK}", "logits of some tokens at a time", run
    if run.recipe.mlp_tile is None:
        tiled = replace(run, recipe=replace(run.recipe, mlp_tile=_MLP_TILE))
        more = f"--loss-chunk {USUAL_LOSS_CHUNK} --mlp-tile {_MLP_TILE}"
        yield more, "logits and feed-forward parts of some tokens at a time", tiled


def _narrower_states(run: Configuration) -> Iterator[tuple[str, str, Configuration]]:
    """Moments of Adam in 8 bit, then gradients in 16 bit besides."""
    recipe, words = run.recipe, list[str]()
    narrow: tuple[tuple[str, Any, str], ...] = (
        ("moment_dtypes", ("int8",), "moments"),
        ("gradient_dtype", "bf16", "gradients"),
    )
    for name, value, word in narrow:
        own = getattr(recipe, name)
        if recipe.optimizer is not Optimizer.ADAM or own not in (None, ("fp32",)):
            continue
        recipe, words = replace(recipe, **{name: value}), [*words, word]
        said = f"{' and '.join(words)} in fewer bits, which changes what is computed"
        changed = replace(run, recipe=recipe)
        yield settings_between(run, changed), said, changed


def _to_the_host(run: Configuration) -> Iterator[tuple[str, str, Configuration]]:
    """The states of the optimizer, what blocks keep, or both in the memory of the host."""
    now = run.recipe.offload or NO_OFFLOAD
    states = replace(now, optimizer=1.0, gradients=1.0)
    flags = "--offload optimizer=1 --offload gradients=1"
    for words, flag, there in (
        ("optimizer states and gradients", flags, states),
        ("activations", "--offload activations=1", replace(now, activations=1.0)),
        ("all of these", f"{flags} --offload activations=1", replace(states, activations=1.0)),
    ):
        if there != now:
            changed = replace(run, recipe=replace(run.recipe, offload=there))
            yield flag, f"{words} on the host", changed
    for flag, words, pieces in _in_pieces(run):
        moved = replace(pieces.recipe, offload=replace(states, activations=1.0))
        more = f"{flags} --offload activations=1 {flag}"
        yield more, f"all of these on the host, {words}", replace(pieces, recipe=moved)
    for flag, words, lean in _leanest(run):
        moved = replace(run.recipe, offload=states)
        said = f"optimizer states and gradients on the host, {words}"
        yield f"{flags} {flag}", said, replace(lean, recipe=moved)
    leaner = (each for each in _leanest(run) if each[2] != run)
    for flag, words, lean in (("", "", run), *leaner):
        if lean.parallelism.zero_stage == 3 and now.weights != 1:
            moved = replace(run.recipe, offload=replace(states, weights=1.0))
            said = f"weights, optimizer states and gradients on the host{words and f', {words}'}"
            more = f"{flags} --offload weights=1 {flag}".rstrip()
            yield more, said, replace(lean, recipe=moved)


def _without_graphs(run: Configuration) -> Iterator[tuple[str, str, Configuration]]:
    if run.recipe.cuda_graph is not CudaGraph.NONE:
        plain = replace(run.recipe, cuda_graph=CudaGraph.NONE, cuda_graph_modules=())
        changed = replace(run, recipe=plain)
        yield "--cuda-graph none", "no CUDA graphs, whose pool serves nothing else", changed


def _leaner_kernels(run: Configuration) -> Iterator[tuple[str, str, Configuration]]:
    if not run.fused_attention:
        yield "--flash-attention", "fused attention", replace(run, fused_attention=True)
    if not run.fused_cross_entropy:
        changed = replace(run, fused_cross_entropy=True)
        yield "--fused-cross-entropy", "fused cross entropy", changed
    if run.recipe.update_copy_bytes:
        changed = replace(run, recipe=replace(run.recipe, fused_update=True))
        yield "--fused-update", "one kernel for the update", changed
