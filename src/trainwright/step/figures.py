"""How full a device is, in the three figures that tools show, each with its 90% range.

    allocated = the step's peak (`step.predict`) + what the framework keeps beside it
    reserved  = (allocated at the peak + what an update allocates anew) · share of the allocator
    device    = reserved + context + communicators

An update comes when activations are gone, so tensors peak at the larger of the two. Its flat
buffers find no free segment of their size, though, so the allocator takes both where it can. Where
it gets no more, it gives back every segment that nothing lies in and tries again
(c10/cuda/CUDACachingAllocator: release_cached_blocks), so a device needs room for the larger only:

    needed    = allocated at the peak or the update · share of the allocator + what lies outside

The ranges are those of the account (`cluster.framework_memory`): of the tensors for all, of the
allocator for all but the first. With D the needed figure and H the upper end of its range, a run
fits into M bytes with the probability that a logarithm of the spread ln(H/D) / 1.645 stays below
ln(M/D).

A run fits where it reaches the probability asked for (0.5 unless said) and keeps its margins. What
is needed for a probability grows with the step's peak, so a limit of the one is a limit of the
other (`most_allocated_bytes`): so planner, bounds and estimate share the rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

from trainwright.cluster import Accelerator
from trainwright.cluster.framework_memory import Figure, FrameworkMemory, Share
from trainwright.costing.layer import ring_backward
from trainwright.model import CudaGraph, LayerKind, layer_graph
from trainwright.model.config import WIDE_BITS, Norm
from trainwright.model.feed_forward import FeedForward
from trainwright.model.operator import NORM, QUERY_KEY_NORM
from trainwright.model.recipe import ADAPTER_MARK, is_recorded
from trainwright.model.run_shape import AUTOCAST
from trainwright.plans.configuration import Configuration, even_blocks, run_shape
from trainwright.plans.plan import Parallelism
from trainwright.plans.prediction import StageMemory, StepPrediction
from trainwright.profile import Recompute
from trainwright.step.fsdp2 import fsdp2_peaks
from trainwright.step.memory import SHARDS_STATES, SHARDS_WEIGHTS, accounts_for
from trainwright.step.pipeline import placement_of
from trainwright.step.predict import shape_of
from trainwright.step.zero import gathered_layers

if TYPE_CHECKING:
    from trainwright.model import LayerClass, LayerGraph, Precision, Recipe, TransformerConfig

_NORMAL: Final = NormalDist()
_Z90: Final = _NORMAL.inv_cdf(0.95)
_PUT_BACK: Final = 3  # copies of routed tokens, where they are put back by index
_GATHERED: Final = 2  # inputs of a block that its tensor group gathers
_BUCKETS: Final = 2  # then: one that fills while the other is reduced


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranged:
    """Bytes with the ends of the range that holds nine of ten measured values."""

    low_bytes: float
    typical_bytes: float
    high_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFigures:
    """One device of a pipeline rank: what tensors, the allocator and the device show.

    The run goes on with `needed`, which is less than what the device shows where segments that are
    cached in one phase can serve as others in the next.
    """

    allocated: Ranged
    reserved: Ranged
    device: Ranged
    needed: Ranged

    def of(self, figure: Figure) -> Ranged:
        """One of the three."""
        ranged: Ranged = getattr(self, figure)
        return ranged

    def on_device(self, limit_bytes: float) -> MemoryFigures:
        """The figures on a device of so much memory: the allocator takes no more than there is."""

        def most(shown: Ranged, needed: Ranged) -> Ranged:
            ends = zip(_ends(shown), _ends(needed), strict=True)
            return _ranged(*(min(end, max(least, limit_bytes)) for end, least in ends))

        outside = self.device.typical_bytes - self.reserved.typical_bytes
        device = most(self.device, self.needed)
        reserved = _ranged(*(end - outside for end in _ends(device)))
        return replace(self, reserved=reserved, device=device)

    def fit_probability(self, limit_bytes: float) -> float:
        """How probable it is that what is needed stays within `limit_bytes`."""
        shown = self.needed
        if limit_bytes <= 0:
            return 0.0
        end = shown.high_bytes if limit_bytes > shown.typical_bytes else shown.low_bytes
        spread = abs(math.log(end / shown.typical_bytes)) / _Z90
        if spread == 0:
            return float(limit_bytes >= shown.typical_bytes)
        return _NORMAL.cdf(math.log(limit_bytes / shown.typical_bytes) / spread)

    def needed_bytes(self, probability: float) -> float:
        """What a device must have to hold the run so probably: `fit_probability`, the other way."""
        shown, z = self.needed, _NORMAL.inv_cdf(probability)
        end = shown.high_bytes if z > 0 else shown.low_bytes
        return shown.typical_bytes * math.pow(end / shown.typical_bytes, abs(z) / _Z90)


def num_groups(degrees: Parallelism) -> int:
    """Process groups of a device: one for each degree above 1."""
    replicas = degrees.data * degrees.context
    axes = (degrees.tensor, degrees.pipeline, degrees.context, replicas, degrees.expert)
    return sum(n > 1 for n in axes)


def figures_of(
    allocated_bytes: float,
    account: FrameworkMemory,
    degrees: Parallelism,
    *,
    update_bytes: float = 0.0,
    reserved_bytes: float | None = None,
) -> MemoryFigures:
    """The three figures of a device whose tensors peak at `allocated_bytes`.

    `update_bytes` the allocator takes besides. Where the segments were counted, they are
    `reserved_bytes`, and the allocator adds nothing to the range.
    """
    tensors = _spread(allocated_bytes, account.allocated)
    outside = account.outside_bytes(num_groups(degrees))
    if reserved_bytes is None:
        both = list(zip(_ends(tensors), _shares(account.reserved), strict=True))
        reserved = _ranged(*((end + update_bytes) * share for end, share in both))
        needed = _ranged(*(end * share + outside for end, share in both))
    else:
        reserved = _spread(reserved_bytes, account.allocated)
        needed = _ranged(*(end + outside for end in _ends(reserved)))
    device = _ranged(*(end + outside for end in _ends(reserved)))
    return MemoryFigures(allocated=tensors, reserved=reserved, device=device, needed=needed)


def most_allocated_bytes(
    account: FrameworkMemory, groups: int, limit_bytes: float, probability: float
) -> float:
    """The largest peak of tensors that stays so probably within `limit_bytes` of a device.

    Of a rank beside whose tensors the framework keeps nothing; for others that is an upper bound.
    """
    return _most_bytes(
        account.allocated, account.reserved, account.outside_bytes(groups), limit_bytes, probability
    )


@lru_cache(maxsize=256)
def _most_bytes(
    allocated: Share, reserved: Share, outside: float, limit_bytes: float, probability: float
) -> float:
    low, high = 0.0, max(0.0, limit_bytes)
    while high - low > 1:  # byte
        middle = (low + high) / 2
        if _shown_bytes(allocated, reserved, outside, middle, probability) <= limit_bytes:
            low = middle
        else:
            high = middle
    return low


def least_device_bytes(
    account: FrameworkMemory, groups: int, allocated_bytes: float, probability: float
) -> float:
    """What a device must have for such a peak: `most_allocated_bytes`, the other way."""
    outside = account.outside_bytes(groups)
    shares = account.allocated, account.reserved
    return _shown_bytes(*shares, outside, allocated_bytes, probability)


def _shown_bytes(
    allocated: Share, reserved: Share, outside: float, peak_bytes: float, probability: float
) -> float:
    ends = zip(_shares(allocated), _shares(reserved), strict=True)
    device = _ranged(*(peak_bytes * a * r + outside for a, r in ends))
    found = MemoryFigures(allocated=device, reserved=device, device=device, needed=device)
    return found.needed_bytes(probability)


def missing_bytes(
    model: TransformerConfig | None,
    run: Configuration,
    step: StepPrediction,
    device: Accelerator,
    account: FrameworkMemory | None,
) -> float:
    """What tensors of the fullest rank hold more than a device can; at most 0 where a run fits.

    The rule of all who ask: the margins of `run.overheads` are kept, and under the account, if
    any, the device's figure stays within its memory as probably as they say. `model` is None where
    only the costs of its layers are known.
    """
    kept = run.overheads
    peak_bytes, chance = step.peak_memory_bytes, kept.fit_probability
    if account is not None and chance:
        starts = [start_bytes(run, stage.memory, device, account) for stage in step.stages]
        peak_bytes = max(peak_bytes, *starts)
    over_bytes = kept.over_bytes(peak_bytes, device.usable_bytes)
    less = (
        account is not None
        and model is not None
        and (account.reuses_buffers or makes_gradients_anew(account, run))
    )
    if account is None or not chance or (over_bytes > 0 and not less):
        return over_bytes
    limit_bytes = device.memory_bytes - kept.reserve_bytes
    if model is None or not keeps_beside(account, run.recipe, model):
        groups = num_groups(run.parallelism)
        most_bytes = most_allocated_bytes(account, groups, limit_bytes, chance)
        return max(over_bytes, peak_bytes - most_bytes)
    shown = fullest_figures(model, run, step, device, account)
    if less:
        over_bytes = kept.over_bytes(shown.allocated.typical_bytes, device.usable_bytes)
    taken = shown.needed.typical_bytes / shown.allocated.typical_bytes
    return max(over_bytes, (shown.needed_bytes(chance) - limit_bytes) / taken)


def keeps_beside(account: FrameworkMemory, recipe: Recipe, model: TransformerConfig) -> bool:
    """Whether a device holds more, or less, than the tensors of the model's own account."""
    casts = recipe.precision in {each.name for each in AUTOCAST}
    updates = recipe.update_copy_bytes > 0 or recipe.update_in_backward
    more = casts or updates or recipe.cuda_graph is not CudaGraph.NONE or model.tuning.is_wide
    return more or not account.keeps_nothing_beside


def fullest_figures(
    model: TransformerConfig | None,
    run: Configuration,
    step: StepPrediction,
    device: Accelerator,
    account: FrameworkMemory,
) -> MemoryFigures:
    """The figures of the fullest rank; without a `model` nothing is known beside its tensors."""
    if model is None or not keeps_beside(account, run.recipe, model):
        starts = [start_bytes(run, stage.memory, device, account) for stage in step.stages]
        return figures_of(max(step.peak_memory_bytes, *starts), account, run.parallelism)
    ranks = memory_figures(model, run, step, account, device=device)
    return max(ranks, key=lambda rank: rank.needed.typical_bytes)


def _spread(size_bytes: float, share: Share) -> Ranged:
    return _ranged(*(size_bytes * each for each in _shares(share)))


def _ranged(low: float, typical: float, high: float) -> Ranged:
    return Ranged(low_bytes=low, typical_bytes=typical, high_bytes=high)


def _ends(ranged: Ranged) -> tuple[float, float, float]:
    return ranged.low_bytes, ranged.typical_bytes, ranged.high_bytes


def _shares(share: Share) -> tuple[float, float, float]:
    return share.low, share.typical, share.high


# What the framework keeps beside the model's own tensors
# -------------------------------------------------------


def memory_figures(
    model: TransformerConfig,
    run: Configuration,
    step: StepPrediction,
    account: FrameworkMemory,
    *,
    device: Accelerator,
) -> tuple[MemoryFigures, ...]:
    """The figures of every pipeline rank of a priced step on such a device.

    Where the account is `counted`, and knows every tensor of the run, tensors and segments are
    counted one by one (`step.fsdp2`).
    """
    if account.counted and accounts_for(model, run):
        return tuple(
            figures_of(
                peak.allocated_bytes, account, run.parallelism, reserved_bytes=peak.reserved_bytes
            )
            for peak in fsdp2_peaks(model, run)
        )
    precision = run.recipe.precision or device.default_precision
    graph = layer_graph(model, run_shape(run, precision=precision))
    placement, degrees = placement_of(shape_of(run)), run.parallelism
    numbers = run.recipe.numbers(precision)
    found = []
    for rank, stage in enumerate(step.stages):
        own = set(placement.stages_of_rank[rank])
        ends = _Ends(first=0 in own, last=run.num_stages - 1 in own)
        held = stage.memory
        beside = _beside_bytes(graph, model, run, held, account, ends)
        gradients = held.gradient_bytes / numbers.gradient_bytes
        kept = account.kept_gradient_bytes * gradients * (numbers.gradient_bytes > 2)
        if account.whole_experts:
            kept += whole_expert_bytes(graph, run)
        if model.tuning.is_wide:
            kept += _wide_frozen_bytes(run, held, numbers)
        if account.copies_gradients and degrees.zero_stage == 0:
            kept += held.gradient_bytes * (degrees.data * degrees.context > 1)
        update = _update_bytes(run, held, account, precision)
        pool = _graph_pool(graph, model, run, held, ends)
        cast = _cast_bytes(run, held, account, numbers)
        during = held.static_bytes - cast + held.beside_bytes + pool.kept_bytes + update
        start = start_bytes(run, held, device, account)
        peak = held.total_bytes - cast + beside + pool.beside_bytes
        if makes_gradients_anew(account, run):
            peak -= _unmade_bytes(graph, model, run, held, account)
        if account.keeps_frozen:
            peak = max(peak, _last_block_bytes(graph, model, run, held, account) - cast)
        peak = max(peak, start - kept)
        found.append(
            figures_of(
                kept + max(peak, during),
                account,
                degrees,
                update_bytes=max(0.0, peak + update - max(peak, during)),
            )
        )
    return tuple(found)


def _cast_bytes(
    run: Configuration, held: StageMemory, account: FrameworkMemory, numbers: Precision
) -> float:
    """Shards of weights in 16 bit that the step's account has and the framework has not."""
    is_sharded = run.parallelism.as_launched.zero_stage == SHARDS_WEIGHTS
    has_copy = numbers.weight_bytes < _WORKED and run.recipe.main_weight_dtype in (None, "fp32")
    if not (account.casts_shards and is_sharded and has_copy):
        return 0.0
    own = held.optimizer_bytes / numbers.optimizer_bytes if numbers.optimizer_bytes else 0.0
    return min(numbers.weight_bytes * own, held.weight_bytes)


def _wide_frozen_bytes(run: Configuration, held: StageMemory, numbers: Precision) -> float:
    """What shards of frozen weights in float32 hold beside weights in the format of training.

    FSDP casts a shard as it gathers it, so that nothing else grows. accelerate makes float32 of
    weights that train alone (`fsdp2_prepare_model`): frozen ones stay as they were loaded.
    """
    degrees, wide = run.parallelism.as_launched, WIDE_BITS / 8
    whole = degrees.zero_stage < SHARDS_WEIGHTS  # in a step; between steps all are shards
    ranks = degrees.data * degrees.context // degrees.state_copies if whole else 1
    trained = held.optimizer_bytes / numbers.optimizer_bytes if numbers.optimizer_bytes else 0.0
    own = held.weight_bytes / numbers.weight_bytes / ranks - trained
    return max(0.0, own) * (wide if whole else wide - numbers.weight_bytes)


def whole_expert_bytes(graph: LayerGraph, run: Configuration) -> float:
    """What experts in 16 bit hold beyond those in few bits on a device of all blocks."""
    degrees, precision = run.parallelism, graph.run.precision
    beyond = [
        sum(
            (precision.weight_bytes - each.kept_bytes) * each.count_per_device
            for each in layer.parameters
            if each.expert and each.kept_bytes is not None
        )
        for layer in graph.classes
    ]
    whole = sum(beyond[at] for at in graph.layers) / run.num_stages
    if degrees.zero_stage != SHARDS_WEIGHTS:
        return whole
    ranks = degrees.data * degrees.context // degrees.state_copies
    held = precision.held_weights
    own = whole * held * degrees.expert / ranks
    return own + float(gathered_layers(degrees.zero_stage, ranks, held=held)) * max(beyond)


def _last_block_bytes(
    graph: LayerGraph,
    model: TransformerConfig,
    run: Configuration,
    held: StageMemory,
    account: FrameworkMemory,
) -> float:
    """What tensors hold as the first block runs backward, where `keeps_frozen` of the account."""
    frozen = model.tuning.low_rank is not None and run.recompute is Recompute.FULL
    if not frozen or run.parallelism.zero_stage != SHARDS_WEIGHTS or run.num_stages > 1:
        return 0.0
    ends, blocks = _Ends(first=True, last=True), []
    for layer in (each for each in graph.classes if each.kind is LayerKind.BLOCK):
        own = sum(tensor.bytes_per_device(graph.run) for tensor in layer.saved)
        eager = _eager_layer_bytes(layer, graph, model, account, wide=0.0)
        blocks.append(layer.transient_bytes + own + eager)
    inputs = 2 * held.activation_bytes  # and their gradients
    gathered = _gathered_bytes(graph, run, ends)
    return held.static_bytes + held.beside_bytes + inputs + gathered + max(blocks)


def makes_gradients_anew(account: FrameworkMemory, run: Configuration) -> bool:
    """Whether a step has no gradients at its loss: it is one microbatch, and they were freed."""
    freed = run.parallelism.zero_stage < account.frees_gradients_below
    freed &= not run.recipe.update_in_backward  # which holds none at all
    return freed and run.num_microbatches == 1 and run.num_stages == 1


def _unmade_bytes(
    graph: LayerGraph,
    model: TransformerConfig,
    run: Configuration,
    held: StageMemory,
    account: FrameworkMemory,
) -> float:
    """What the fullest instant of such a step lacks of what one with all gradients would hold.

    Gradients come as activations go. Blocks are alike, so the fullest instant is the loss, without
    gradients, the backward pass of the last block, with those of the head, or that of the first
    one, with all. Nothing is added to a gradient.
    """
    ends, blocks = _Ends(first=True, last=True), _most_blocks(run, model)
    counts = [_trained(layer) for layer in graph.classes]
    per_parameter = held.gradient_bytes / max(1.0, sum(counts[at] for at in graph.layers))
    made = {
        kind: per_parameter
        * max((n for c, n in zip(graph.classes, counts, strict=True) if c.kind is kind), default=0)
        for kind in (LayerKind.BLOCK, LayerKind.LM_HEAD)
    }
    eager = _eager_bytes(graph, model, run, held, account, ends)
    cached = _cached_casts(graph, model, run, ends)
    logits = held.logits_bytes + _loss_bytes(graph, model, run, account) + cached
    gone = held.activation_bytes * (1 - 1 / blocks)
    if run.recompute is Recompute.NONE:
        gone += (eager - cached) * (1 - 1 / blocks)
    whole = held.gradient_bytes
    head = logits + whole - made[LayerKind.LM_HEAD]
    added = _newest_bytes(graph, ends) if account.accumulates_apart else 0.0
    return added + min(whole, head - made[LayerKind.BLOCK], logits + gone)


@dataclass(frozen=True, slots=True, kw_only=True)
class _GraphPool:
    """The pool of a rank's CUDA graphs: what it keeps for good, and what it adds to the peak."""

    kept_bytes: float = 0.0
    beside_bytes: float = 0.0


def _graph_pool(
    graph: LayerGraph,
    model: TransformerConfig,
    run: Configuration,
    held: StageMemory,
    ends: _Ends,
) -> _GraphPool:
    """What graphs keep, recorded in the order of the schedule into one pool (`is_recorded` of it).

    A pool serves its graphs alone. So what lies in it stays while states are updated, and what
    recorded and other operators need for a moment lies side by side. Beside that, each microbatch
    in flight keeps what its stage received, which is copied into the first graph. Transformer
    Engine copies the output of a block into the input of the next one and keeps both until the
    graph of the backward pass is recorded, and one gradient of an output; Megatron's own graphs
    write where the next one reads. A graph of the router gives out what shared experts add.
    Not counted: the nodes of graphs themselves, and versions without reuse of buffers (before
    Transformer Engine 2.7 and Megatron-Core 0.13).

    Sources: `_make_graphed_callables` of Transformer Engine's pytorch/graph.py; `_CudaGraphRunner`,
    `TECudaGraphHelper` and `FullCudaGraphWrapper` of Megatron-Core. No public run states its memory
    with and without graphs. NVIDIA's guide (Megatron-Bridge, skills/perf-techniques/cuda-graphs)
    has a few GB for those by block, as counted here, and a peak 1.5 to 2 times as high for whole
    iterations, which nothing in the source explains: PyTorch gives back what is cached before it
    records (torch/cuda/graphs.py). For these the account may be too low.
    """
    recipe = run.recipe
    kind, modules = recipe.cuda_graph, recipe.cuda_graph_modules
    if kind is CudaGraph.NONE:
        return _GraphPool()
    passing = held.activation_bytes + held.logits_bytes + held.transient_bytes
    if kind is CudaGraph.FULL_ITERATION:
        return _GraphPool(kept_bytes=passing)
    shape = graph.run
    tokens = shape.tokens / shape.sequence_shards
    hidden = shape.precision.activation_bytes * tokens * model.hidden_size
    most = _most_blocks(run, model)
    flying = held.microbatches_in_flight
    blocks = flying * most
    begins_stage = not modules or {"attn", "mamba"} & {*modules}
    receives = run.num_stages > 1 and not (
        ends.first and run.num_stages == run.parallelism.pipeline
    )
    beside = hidden * flying if begins_stage and receives else 0.0
    if kind is CudaGraph.TRANSFORMER_ENGINE:
        beside += hidden + (0.0 if modules else hidden * blocks)
    if "moe_router" in modules and model.experts is not None and model.experts.shared_ffn_size:
        beside += hidden * blocks
    own = [layer for layer in graph.classes if ends.hold(layer.kind)]
    inside = [_recorded(layer, graph, run, hidden) for layer in own]
    share = max(part.kept_share for part in inside)
    recorded = max(part.transient_bytes for part in inside)
    rest = max(part.other_transient_bytes for part in inside)
    beside += max(0.0, recorded + rest - max(held.transient_bytes, recorded, rest))
    kept = share * held.activation_bytes + recorded + beside
    return _GraphPool(kept_bytes=kept, beside_bytes=beside)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """The share of what a layer keeps that lies in graphs, and what is needed for a moment."""

    kept_share: float
    transient_bytes: float
    other_transient_bytes: float


def _recorded(
    layer: LayerClass, graph: LayerGraph, run: Configuration, hidden_bytes: float
) -> _Recorded:
    """A block that is recorded in part needs there the gradients of what one operator keeps."""
    recipe, shape = run.recipe, graph.run
    if layer.kind is not LayerKind.BLOCK:
        return _Recorded(
            kept_share=0.0, transient_bytes=0.0, other_transient_bytes=layer.transient_bytes
        )
    sizes = [
        (
            sum(tensor.bytes_per_device(shape) for tensor in operator.saved),
            is_recorded(operator, recipe.cuda_graph, recipe.cuda_graph_modules),
        )
        for operator in layer.operators
    ]
    inside, whole = sum(size for size, own in sizes if own), sum(size for size, _ in sizes)
    if all(own for _, own in sizes):
        return _Recorded(
            kept_share=1.0, transient_bytes=layer.transient_bytes, other_transient_bytes=0.0
        )
    widest = max((size + hidden_bytes for size, own in sizes if own), default=0.0)
    return _Recorded(
        kept_share=inside / whole if whole else 0.0,
        transient_bytes=min(widest, layer.transient_bytes),
        other_transient_bytes=layer.transient_bytes,
    )


def start_bytes(
    run: Configuration, held: StageMemory, device: Accelerator, account: FrameworkMemory
) -> float:
    """What tensors of a rank hold at most before its first step; 0 where nothing is known of it.

    A model that does not fit whole on the device must have been made in shards.
    """
    degrees = run.parallelism
    numbers = run.recipe.numbers(run.recipe.precision or device.default_precision)
    if account.copies_weights and degrees.zero_stage == SHARDS_STATES:
        trained = held.gradient_bytes / numbers.gradient_bytes
        copied = trained * numbers.weight_bytes / degrees.virtual_stages
        return held.weight_bytes + held.gradient_bytes + copied
    if account.builds_whole and degrees.zero_stage == SHARDS_WEIGHTS:
        ranks = degrees.data * degrees.context // degrees.state_copies
        whole = held.weight_bytes * ranks
        return whole if whole <= device.usable_bytes else 0.0
    return 0.0


STEP: Final = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMemory:
    """What tensors of the fullest device hold in a phase of a job, and its node's first host."""

    phase: str
    device_bytes: float
    host_bytes: float = 0.0


def phase_memories(
    model: TransformerConfig,
    run: Configuration,
    step: StepPrediction,
    device: Accelerator,
    account: FrameworkMemory,
) -> tuple[PhaseMemory, ...]:
    """Before the first step, in a step, and while a checkpoint is saved; empty if none is known.

    Device bytes of the first are those of the rank that then holds most. States are saved shard by
    shard, so that a device holds no more than between steps; rank 0 may gather weights in host
    memory.
    """
    start = max(start_bytes(run, stage.memory, device, account) for stage in step.stages)
    saves = account.saves_bytes if run.parallelism.zero_stage == SHARDS_WEIGHTS else 0.0
    if not start and not saves:
        return ()
    alone = replace(account, copies_weights=False, builds_whole=False)
    during = fullest_figures(model, run, step, device, alone).allocated.typical_bytes
    precision = run.recipe.precision or device.default_precision
    numbers = run.recipe.numbers(precision)
    between = max(
        stage.memory.static_bytes - _cast_bytes(run, stage.memory, account, numbers)
        for stage in step.stages
    )
    graph = layer_graph(model, run_shape(run, precision=precision))
    return (
        *(PhaseMemory(phase="initialisation", device_bytes=start) for _ in range(start > 0)),
        PhaseMemory(phase=STEP, device_bytes=during),
        PhaseMemory(
            phase="checkpoint",
            device_bytes=between,
            host_bytes=saves * graph.num_trainable_parameters,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """Which ends of the model a rank holds."""

    first: bool
    last: bool

    def hold(self, kind: LayerKind) -> bool:
        """Whether layers of a kind are on the rank."""
        if kind is LayerKind.EMBEDDING:
            return self.first
        return self.last or kind is LayerKind.BLOCK


def _update_bytes(
    run: Configuration, held: StageMemory, account: FrameworkMemory, precision: str
) -> float:
    """What reducing and updating allocate, when activations are gone."""
    numbers = run.recipe.numbers(precision)
    own = held.optimizer_bytes / numbers.optimizer_bytes if numbers.optimizer_bytes else 0.0
    whole = held.gradient_bytes / numbers.gradient_bytes
    bucket = min(account.bucket_parameters, whole) * numbers.gradient_bytes
    if numbers.sync_bytes != numbers.gradient_bytes:  # cast before it is summed
        bucket *= 1 + numbers.sync_bytes / numbers.gradient_bytes
    degrees = run.parallelism
    if degrees.data * degrees.context == 1 or degrees.zero_stage >= account.buckets_from:
        bucket = 0.0
    update = account.update_bytes if degrees.zero_stage else account.plain_update_bytes
    if degrees.as_launched.zero_stage == SHARDS_WEIGHTS:
        own = min(own, account.update_parameters or own)
    if run.recipe.update_in_backward:  # tensor by tensor
        own = 0.0
    copied = run.recipe.update_copy_bytes * own
    return bucket + update * own * (numbers.gradient_bytes <= 2) + copied


def _beside_bytes(
    graph: LayerGraph,
    model: TransformerConfig,
    run: Configuration,
    held: StageMemory,
    account: FrameworkMemory,
    ends: _Ends,
) -> float:
    """What lies beside weights, gradients and activations at the peak of a rank."""
    shape, added = graph.run, 0.0
    element = shape.precision.activation_bytes
    hidden = element * shape.tokens * model.hidden_size / shape.sequence_shards
    if account.accumulates_apart or run.recipe.update_in_backward:
        added += _newest_bytes(graph, ends)
    if run.parallelism.zero_stage >= account.buckets_from:
        classes = [graph.classes[at] for at in graph.layers]
        trained = sum(_trained(layer) for layer in classes if ends.hold(layer.kind))
        widths: float = _BUCKETS * element
        if shape.precision.reduced_bytes not in (None, element):  # cast before it is summed
            widths += shape.precision.sync_bytes
        added += widths * min(account.bucket_parameters, trained)
    if account.keeps_stage_output and run.parallelism.pipeline > 1:
        added += hidden * held.microbatches_in_flight
    if account.keeps_gathered_inputs and shape.sequence_shards > 1:
        blocks = held.microbatches_in_flight * _most_blocks(run, model)
        blocks = 1 if run.recompute is Recompute.FULL else blocks
        added += _GATHERED * hidden * (shape.sequence_shards - 1) * blocks
    if ends.last:
        added += _loss_bytes(graph, model, run, account)
    if account.puts_back_by_index and model.experts is not None:
        added += _put_back_bytes(graph, model, run, held)
    added += _eager_bytes(graph, model, run, held, account, ends)
    added += 0.0 if account.keeps_tiles else _beside_tiles_bytes(graph, model)
    added += _softmax_bytes(graph, model, run, held, account, ends)
    if account.merges_rings and model.experts is None:
        added += _ring_bytes(graph, model, account)
    if run.recompute is Recompute.SELECTIVE and not account.keeps_attended:
        most = _most_blocks(run, model)
        blocks = min(run.recompute_blocks or most, most)
        attended = _of_a_block(graph).get("attention_output.input", 0.0)
        added -= attended * max(0, held.microbatches_in_flight * blocks - 1)
    gathered = _gathered_bytes(graph, run, ends) if account.may_hold_less else 0.0
    if account.reuses_buffers:
        added -= _reused_bytes(graph, held, ends, gathered)
    return added if account.gathers_ahead else added - gathered / 2


def _trained(layer: LayerClass) -> float:
    """Parameters of a layer on a device that train."""
    return sum(p.count_per_device for p in layer.parameters if p.trainable)


def _newest_bytes(graph: LayerGraph, ends: _Ends) -> float:
    """The largest gradient of a rank, whole before it is added."""
    own = [layer for layer in graph.classes if ends.hold(layer.kind)]
    counts = (p.count_per_device for layer in own for p in layer.parameters if p.trainable)
    return graph.run.precision.activation_bytes * max(counts, default=0.0)


def _loss_bytes(
    graph: LayerGraph, model: TransformerConfig, run: Configuration, account: FrameworkMemory
) -> float:
    """What the loss makes on top, of all logits where a reference's are there, too."""
    shape, is_fused = graph.run, run.fused_cross_entropy
    each = 0.0 if is_fused else account.loss_bytes
    if model.tuning.reference and shape.loss_chunk is None:
        each = max(each, account.compared_fused_bytes if is_fused else account.compared_bytes)
    logits = shape.loss_tokens * shape.padded(model.vocabulary_size) / shape.tensor_parallel
    return each * logits


def _most_blocks(run: Configuration, model: TransformerConfig) -> int:
    """Blocks of the stage that has most."""
    return max(run.blocks_per_stage or even_blocks(model.num_layers, run.num_stages))


def _eager_bytes(
    graph: LayerGraph,
    model: TransformerConfig,
    run: Configuration,
    held: StageMemory,
    account: FrameworkMemory,
    ends: _Ends,
) -> float:
    """What operators of PyTorch keep where kernels that fuse them keep less (see the account).

    Under autocast they keep 16-bit copies of weights from forward to backward, a norm works on a
    float32 hidden state, and each product copies what it reads, queries, keys and values apart.
    Beside quantized weights (`upcasts_quantized`) embedding and head are float32, and blocks pass
    on float32 hidden states.
    """
    casts, wide = graph.run.precision.casts, _upcast_share(graph, model, run, account)
    if not (account.norm_bytes or account.keeps_activated or account.keeps_tiles or casts):
        return 0.0
    added = 0.0
    most = _most_blocks(run, model)
    blocks = held.microbatches_in_flight * most
    if run.recompute is not Recompute.NONE:
        again = min(most, run.recompute_blocks or most)
        blocks += 1 - held.microbatches_in_flight * again
        hidden = graph.run.tokens * model.hidden_size / graph.run.sequence_shards
        added += wide * _HALF * hidden * held.microbatches_in_flight * again
    own = [layer for layer in graph.classes if layer.kind is LayerKind.BLOCK]
    kept, widened = (
        max((_eager_layer_bytes(c, graph, model, account, wide=share) for c in own), default=0.0)
        for share in (0.0, wide)
    )
    kept_tiles = _tile_bytes(graph, model, account) if account.keeps_tiles else 0.0
    added += blocks * (kept + kept_tiles)
    if run.recompute is not Recompute.NONE:  # one block is there again, when logits are gone
        logits = held.logits_bytes + _loss_bytes(graph, model, run, account) if ends.last else 0.0
        added += max(0.0, widened - kept - logits)
        blocks -= 1
    added += blocks * (widened - kept)
    if wide:
        apart = [c for c in graph.classes if c.kind is not LayerKind.BLOCK and ends.hold(c.kind)]
        weights = {
            each.shared or each: each.count_per_device for c in apart for each in c.parameters
        }
        added += wide * _HALF * sum(weights.values())
        # Autocast copies the head's for as long as there are logits.
        heads = [c for c in apart if c.kind is LayerKind.LM_HEAD]
        added += wide * _HALF * sum(p.count_per_device for c in heads for p in c.parameters)
    if not casts:
        return added
    ended = [c for c in graph.classes if ends.last and c.kind is LayerKind.LM_HEAD]
    added += sum(_HALF * _multiplied(layer) for layer in ended)
    return added + _cached_casts(graph, model, run, ends)


def _upcast_share(
    graph: LayerGraph, model: TransformerConfig, run: Configuration, account: FrameworkMemory
) -> float:
    """By how much of themselves 16-bit numbers grow beside weights that are quantized and whole."""
    low_rank, whole = model.tuning.low_rank, run.parallelism.zero_stage < SHARDS_WEIGHTS
    is_quantized = low_rank is not None and low_rank.few_bits is not None and whole
    is_narrow = graph.run.precision.activation_bytes == _HALF and not graph.run.precision.casts
    return float(account.upcasts_quantized and is_quantized and is_narrow)


def _cached_casts(
    graph: LayerGraph, model: TransformerConfig, run: Configuration, ends: _Ends
) -> float:
    """Copies of weights that train, which a cache of autocast keeps until the loss is known.

    Casts of frozen ones are not cached (aten/src/ATen/autocast_mode.cpp, `cached_cast`), so that a
    recomputed block makes them again.
    """
    if run.recompute is Recompute.NONE or not graph.run.precision.casts:
        return 0.0
    blocks = [c for c in graph.classes if c.kind is LayerKind.BLOCK]
    cached = [_HALF * _multiplied(block, trained=True) for block in blocks]
    logits = graph.run.loss_tokens * graph.run.padded(model.vocabulary_size)
    made = _MADE_BACKWARD * logits / graph.run.tensor_parallel * ends.last
    return max(0.0, _most_blocks(run, model) * max(cached, default=0.0) - made)


_MADE_BACKWARD: Final = 2.0  # bytes of a logit that the loss needs more backward than forward


def _tile_bytes(graph: LayerGraph, model: TransformerConfig, account: FrameworkMemory) -> float:
    """What a dense feed-forward part keeps of the tokens outside of the tile at hand."""
    shape = graph.run
    if shape.mlp_tile is None or model.experts is not None or not model.mlp:
        return 0.0
    inner = shape.precision.activation_bytes * model.ffn_size / shape.tensor_parallel
    written_out = account.keeps_activated and model.gated
    kept = (shape.tokens - shape.mlp_tokens) * (2 + model.gated) + shape.tokens * written_out
    return inner * kept


def _beside_tiles_bytes(graph: LayerGraph, model: TransformerConfig) -> float:
    """What a block holds beyond its price where tiles of a feed-forward part run again backward.

    The gradient of the part's input is whole beside that of its output. Then attention is the
    fullest: the gradients of its output, of queries in 16 bit and, summed, in float32, of keys and
    values, and of these once more for every query head where heads share them. Ranks that trade
    heads keep attention's output before and after, and repeat keys and values that are fewer.
    """
    shape = graph.run
    if shape.mlp_tile is None or model.experts is not None or not model.mlp or not model.attends:
        return 0.0
    if not shape.fused_attention:
        return 0.0
    ranks, heads, shared = shape.trading_heads, model.num_heads, model.num_kv_heads
    element = shape.precision.activation_bytes * shape.tokens
    hidden = element * model.hidden_size / shape.sequence_shards
    queries = element * model.query_size / shape.tensor_parallel
    keys = 2 * element * model.key_value_size / shape.tensor_parallel * max(1.0, ranks / shared)
    kept = keys * (1 - min(1.0, shared / ranks)) + queries * (ranks > 1)
    priced = max(c.transient_bytes for c in graph.classes if c.kind is LayerKind.BLOCK)
    made = (4 + 2 * (heads > max(shared, ranks))) * queries + keys + hidden
    gone = 2 * hidden + queries * (ranks > 1)  # what the feed-forward part and the output read
    return kept + max(hidden, made - gone - priced)


def _ring_bytes(graph: LayerGraph, model: TransformerConfig, account: FrameworkMemory) -> float:
    """What attention's backward in PyTorch's ring holds when what parts behind it kept is gone."""
    tiles, found = account.keeps_tiles * _tile_bytes(graph, model, account), 0.0
    for layer in (c for c in graph.classes if c.kind is LayerKind.BLOCK):
        before, made = ring_backward(layer, graph.run)
        kept, left = (
            sum(tensor.bytes_per_device(graph.run) for tensor in each.saved)
            + _eager_layer_bytes(each, graph, model, account, wide=0.0)
            for each in (layer, before)
        )
        found = max(found, left + made - kept - layer.transient_bytes - tiles)
    return found


def _softmax_bytes(
    graph: LayerGraph,
    model: TransformerConfig,
    run: Configuration,
    held: StageMemory,
    account: FrameworkMemory,
    ends: _Ends,
) -> float:
    """What a softmax in float32 holds beside the one that scores are priced with.

    Backward has its gradient and that of its input in float32, when the narrower one is gone; then
    logits are, too.
    """
    wide, element = account.softmax_bytes, graph.run.precision.activation_bytes
    if wide <= element:
        return 0.0
    scores = _of_a_block(graph).get("softmax.output", 0.0) / element
    again = 0
    if run.recompute is not Recompute.NONE:
        again = min(_most_blocks(run, model), run.recompute_blocks or _most_blocks(run, model))
    kept = held.microbatches_in_flight * (_most_blocks(run, model) - again)
    for_a_moment = max(0.0, 2 * wide - 3 * element) + wide * (again > 0)
    logits = held.logits_bytes + _loss_bytes(graph, model, run, account) if ends.last else 0.0
    return wide * scores * kept + max(0.0, for_a_moment * scores - logits)


_HALF: Final = 2.0  # bytes of a 16-bit number
_WORKED: Final = 4.0  # of one in which a norm works
_OF_SEVERAL: Final = {"query_key_value.input": 3, "mlp_norm.output": 2}  # products that read them


def _eager_layer_bytes(
    layer: LayerClass,
    graph: LayerGraph,
    model: TransformerConfig,
    account: FrameworkMemory,
    *,
    wide: float,
) -> float:
    """Of one block; with `wide` its feed-forward part is float32, and adapters copy inputs."""
    shape, added = graph.run, 0.0
    casts, products = shape.precision.casts, (FeedForward.MLP, FeedForward.SHARED_EXPERT)
    stream = _WORKED if casts else shape.precision.activation_bytes  # of a hidden state
    is_gated = model.gated and account.keeps_activated
    gated = {f"{part}_activation.input" for part in products if is_gated}
    inside = wide * (1.5 if gated else 1.0)  # what an activation reads, and makes
    by_adapters = {tensor.name: 0.0 for tensor in layer.saved}  # the first copy is priced
    for operator in layer.operators:
        trains = any(parameter.trainable for parameter in operator.parameters)
        for tensor in operator.saved:
            size = tensor.bytes_per_device(shape)
            numbers = size / tensor.element_bytes
            if operator.module == NORM and tensor.name == f"{operator.name}.input":
                added += numbers * (stream - tensor.element_bytes) * casts
                if account.norm_bytes and model.norm is Norm.RMS:
                    copied = max(account.norm_bytes - stream, 0.0)
                    added += numbers * (copied + stream * trains)
            if tensor.name == QUERY_KEY_NORM and account.norm_bytes and model.norm is Norm.RMS:
                added += numbers * (account.norm_bytes - _HALF + _HALF * trains)
            # A gate's product reads what was activated, whether weights behind it train or not.
            added += numbers / 2 * shape.precision.activation_bytes * (tensor.name in gated)
            added += inside * size * (tensor.name == f"{FeedForward.MLP}_activation.input")
            if ADAPTER_MARK in operator.name:
                added += by_adapters[tensor.name]
                by_adapters[tensor.name] = wide * size
    if casts:
        read = {tensor.name: tensor.bytes_per_device(shape) for tensor in layer.saved}
        added += sum((n - 1) * read.get(name, 0.0) for name, n in _OF_SEVERAL.items())
        added += _HALF * _multiplied(layer)
    return added


def _multiplied(layer: LayerClass, *, trained: bool = False) -> float:
    """Weights of products on a device, all or those that train."""
    return sum(
        parameter.count_per_device
        for operator in layer.operators
        if operator.matrix is not None
        for parameter in operator.parameters
        if parameter.trainable or not trained
    )


def _put_back_bytes(
    graph: LayerGraph, model: TransformerConfig, run: Configuration, held: StageMemory
) -> float:
    """Beside what a block is priced with: see `puts_back_by_index` of the account."""
    shape, experts, blocks = graph.run, model.experts, 1
    assert experts is not None
    if run.recompute is Recompute.NONE:
        most = _most_blocks(run, model)
        blocks = held.microbatches_in_flight * most
    rows = shape.expert_rows(experts.experts_per_token, experts.num_experts)
    element = shape.precision.activation_bytes
    activated = element * rows * experts.ffn_size / shape.expert_shards
    routed = element * rows * (experts.latent_size or model.hidden_size)
    priced = max(c.transient_bytes for c in graph.classes if c.kind is LayerKind.BLOCK)
    return blocks * activated + max(0.0, _PUT_BACK * routed - priced)


def _gathered_bytes(graph: LayerGraph, run: Configuration, ends: _Ends) -> float:
    """Weights that ZeRO-3 gathers of two layers at once (`step.zero`)."""
    degrees = run.parallelism
    ranks = degrees.data * degrees.context // degrees.state_copies
    weights = [
        sum(p.count_per_device for p in layer.parameters) * graph.run.precision.weight_bytes
        for layer in graph.classes
        if ends.hold(layer.kind)
    ]
    layers = gathered_layers(degrees.zero_stage, ranks, held=graph.run.precision.held_weights)
    return float(layers) * max(weights)


def _of_a_block(graph: LayerGraph) -> dict[str, float]:
    """Bytes of what a block keeps, by name; the last block that has one of a name says."""
    return {
        tensor.name: tensor.bytes_per_device(graph.run)
        for layer in graph.classes
        if layer.kind is LayerKind.BLOCK
        for tensor in layer.saved
    }


def _reused_bytes(graph: LayerGraph, held: StageMemory, ends: _Ends, gathered: float) -> float:
    """What need not lie beside the rest where every tensor is placed by its lifetime.

    The gradient of a gated activation's input takes the place of that input, so that the gradient
    of its output is the widest that is new. Logits of the microbatch at hand are gone before a
    block runs backward: of both, and of what comes with each, the larger counts.
    """
    sizes = _of_a_block(graph)
    inside, given = f"{FeedForward.MLP}_activation.input", f"{FeedForward.MLP.last}.input"
    in_place = max(0.0, sizes.get(inside, 0.0) - sizes.get(given, 0.0))
    if not ends.last:
        return in_place
    at_loss = [c for c in graph.classes if c.kind in (LayerKind.LM_HEAD, LayerKind.LOSS)]
    logits = sum(t.bytes_per_device(graph.run) for c in at_loss for t in c.saved)
    with_loss = logits + max(c.transient_bytes for c in at_loss) + gathered
    both = logits + held.transient_bytes
    return max(0.0, both - max(with_loss, held.transient_bytes - in_place))
