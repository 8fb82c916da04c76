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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

from trainwright.errors import InvalidInput
from trainwright.model import NO_OFFLOAD, CudaGraph, LayerKind, Optimizer, layer_graph
from trainwright.model.config import TRAIN_ALL, LowRank, Norm, Tuning
from trainwright.model.feed_forward import FeedForward
from trainwright.model.operator import NORM
from trainwright.model.recipe import is_recorded
from trainwright.model.run_shape import AUTOCAST
from trainwright.plans.configuration import even_blocks, run_shape
from trainwright.profile import Recompute
from trainwright.profile.measured_model import MeasuredModel
from trainwright.step.fsdp2 import accounts_for, fsdp2_peaks
from trainwright.step.pipeline import placement_of
from trainwright.step.predict import price_configuration, shape_of
from trainwright.step.zero import gathered_layers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trainwright.cluster import Accelerator, Cluster
    from trainwright.cluster.framework_memory import Figure, FrameworkMemory, Share
    from trainwright.model import LayerClass, LayerGraph, Recipe, TransformerConfig
    from trainwright.plans.configuration import Configuration
    from trainwright.plans.plan import Parallelism
    from trainwright.plans.prediction import StageMemory, StepPrediction
    from trainwright.profile.measured_model import Trained

    Attempts = Iterable[tuple[str, str, Configuration]]

_NORMAL: Final = NormalDist()
_Z90: Final = _NORMAL.inv_cdf(0.95)
_PUT_BACK: Final = 3  # copies of routed tokens, where they are put back by index
_GATHERED: Final = 2  # inputs of a block that its tensor group gathers
_SHARDS_STATES: Final = 1  # the ZeRO stage from which on the optimizer's states are sharded
_SHARDS_WEIGHTS: Final = 3
_SCATTERS_AS_MADE: Final = 2  # the ZeRO stage from which on gradients are reduced during backward
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
    less = account is not None and account.reuses_buffers and model is not None
    if account is None or not chance or (over_bytes > 0 and not less):
        return over_bytes
    limit_bytes = device.memory_bytes - kept.reserve_bytes
    if model is None or not keeps_beside(account, run.recipe):
        groups = num_groups(run.parallelism)
        most_bytes = most_allocated_bytes(account, groups, limit_bytes, chance)
        return max(over_bytes, peak_bytes - most_bytes)
    shown = fullest_figures(model, run, step, device, account)
    if less:
        over_bytes = kept.over_bytes(shown.allocated.typical_bytes, device.usable_bytes)
    taken = shown.needed.typical_bytes / shown.allocated.typical_bytes
    return max(over_bytes, (shown.needed_bytes(chance) - limit_bytes) / taken)


def keeps_beside(account: FrameworkMemory, recipe: Recipe) -> bool:
    """Whether a device holds more, or less, than the tensors of the model's own account."""
    casts = recipe.precision in {each.name for each in AUTOCAST}
    return not account.keeps_nothing_beside or casts or recipe.cuda_graph is not CudaGraph.NONE


def fullest_figures(
    model: TransformerConfig | None,
    run: Configuration,
    step: StepPrediction,
    device: Accelerator,
    account: FrameworkMemory,
) -> MemoryFigures:
    """The figures of the fullest rank; without a `model` nothing is known beside its tensors."""
    if model is None or not keeps_beside(account, run.recipe):
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
    placement = placement_of(shape_of(run))
    numbers = run.recipe.numbers(precision)
    found = []
    for rank, stage in enumerate(step.stages):
        own = set(placement.stages_of_rank[rank])
        ends = _Ends(first=0 in own, last=run.num_stages - 1 in own)
        held = stage.memory
        beside = _beside_bytes(graph, model, run, held, account, ends)
        gradients = held.gradient_bytes / numbers.gradient_bytes
        kept = account.kept_gradient_bytes * gradients * (numbers.gradient_bytes > 2)
        update = _update_bytes(run, held, account, precision)
        pool = _graph_pool(graph, model, run, held, ends)
        during = held.static_bytes + held.workspace_bytes + pool.kept_bytes + update
        start = start_bytes(run, held, device, account)
        peak = max(held.total_bytes + beside + pool.beside_bytes, start - kept)
        found.append(
            figures_of(
                kept + max(peak, during),
                account,
                run.parallelism,
                update_bytes=max(0.0, peak + update - max(peak, during)),
            )
        )
    return tuple(found)


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
    `TECudaGraphHelper` and `FullCudaGraphWrapper` of Megatron-Core.
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
    if account.copies_weights and degrees.zero_stage == _SHARDS_STATES:
        trained = held.gradient_bytes / numbers.gradient_bytes
        copied = trained * numbers.weight_bytes / degrees.virtual_stages
        return held.weight_bytes + held.gradient_bytes + copied
    if account.builds_whole and degrees.zero_stage == _SHARDS_WEIGHTS:
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
    saves = account.saves_bytes if run.parallelism.zero_stage == _SHARDS_WEIGHTS else 0.0
    if not start and not saves:
        return ()
    alone = replace(account, copies_weights=False, builds_whole=False)
    during = fullest_figures(model, run, step, device, alone).allocated.typical_bytes
    between = max(stage.memory.static_bytes for stage in step.stages)
    precision = run.recipe.precision or device.default_precision
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
    if degrees.data * degrees.context == 1 or degrees.zero_stage >= _SCATTERS_AS_MADE:
        bucket = 0.0
    update = account.update_bytes if degrees.zero_stage else account.plain_update_bytes
    return bucket + update * own * (numbers.gradient_bytes <= 2)


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
    own = [
        (p.count_per_device, sum(layer == at for layer in graph.layers))
        for at, c in enumerate(graph.classes)
        if ends.hold(c.kind)
        for p in c.parameters
        if p.trainable
    ]
    if account.accumulates_apart:
        added += element * max((count for count, _ in own), default=0.0)
    if run.parallelism.zero_stage >= _SCATTERS_AS_MADE:
        trained = sum(count * layers for count, layers in own)
        widths = _BUCKETS * element
        if shape.precision.reduced_bytes not in (None, element):  # cast before it is summed
            widths += shape.precision.sync_bytes
        added += widths * min(account.bucket_parameters, trained)
    if account.keeps_stage_output and run.parallelism.pipeline > 1:
        added += hidden * held.microbatches_in_flight
    if account.keeps_gathered_inputs and shape.sequence_shards > 1:
        most = _most_blocks(run, model)
        blocks = held.microbatches_in_flight * most
        if run.recompute is Recompute.FULL:
            blocks = 1
        added += _GATHERED * hidden * (shape.sequence_shards - 1) * blocks
    if ends.last and not run.fused_cross_entropy:
        logits = shape.loss_tokens * shape.padded(model.vocabulary_size) / shape.tensor_parallel
        added += account.loss_bytes * logits
    if account.puts_back_by_index and model.experts is not None:
        added += _put_back_bytes(graph, model, run, held)
    added += _eager_bytes(graph, model, run, held, account, ends)
    if run.recompute is Recompute.SELECTIVE and not account.keeps_attended:
        most = _most_blocks(run, model)
        blocks = min(run.recompute_blocks or most, most)
        attended = _of_a_block(graph).get("attention_output.input", 0.0)
        added -= attended * max(0, held.microbatches_in_flight * blocks - 1)
    gathered = _gathered_bytes(graph, run, ends) if account.may_hold_less else 0.0
    if account.reuses_buffers:
        added -= _reused_bytes(graph, held, ends, gathered)
    return added if account.gathers_ahead else added - gathered / 2


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
    """
    casts = graph.run.precision.casts
    if not (account.norm_bytes or account.keeps_activated or account.keeps_tiles or casts):
        return 0.0
    added = 0.0
    most = _most_blocks(run, model)
    blocks = held.microbatches_in_flight * most
    if run.recompute is not Recompute.NONE:
        again = min(most, run.recompute_blocks or most)
        blocks += 1 - held.microbatches_in_flight * again
    kept = [
        _eager_layer_bytes(layer, graph, model, account)
        for layer in graph.classes
        if layer.kind is LayerKind.BLOCK
    ]
    kept_tiles = _tile_bytes(graph, model, account) if account.keeps_tiles else 0.0
    added += blocks * (max(kept, default=0.0) + kept_tiles)
    if not casts:
        return added
    ended = [c for c in graph.classes if ends.last and c.kind is LayerKind.LM_HEAD]
    added += sum(_HALF * _multiplied(layer) for layer in ended)
    if run.recompute is not Recompute.NONE:  # a cache keeps all copies until the loss is known
        cached = [_HALF * _multiplied(c) for c in graph.classes if c.kind is LayerKind.BLOCK]
        logits = graph.run.loss_tokens * graph.run.padded(model.vocabulary_size)
        made = _MADE_BACKWARD * logits / graph.run.tensor_parallel * ends.last
        added += max(0.0, most * max(cached, default=0.0) - made)
    return added


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


_HALF: Final = 2.0  # bytes of a 16-bit number
_WORKED: Final = 4.0  # of one in which a norm works
_OF_SEVERAL: Final = {"query_key_value.input": 3, "mlp_norm.output": 2}  # products that read them


def _eager_layer_bytes(
    layer: LayerClass, graph: LayerGraph, model: TransformerConfig, account: FrameworkMemory
) -> float:
    shape, added = graph.run, 0.0
    casts, products = shape.precision.casts, (FeedForward.MLP, FeedForward.SHARED_EXPERT)
    stream = _WORKED if casts else shape.precision.activation_bytes  # of a hidden state
    gated = {f"{part.last}.input" for part in products if model.gated and account.keeps_activated}
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
            added += size * (tensor.name in gated)
    if casts:
        read = {tensor.name: tensor.bytes_per_device(shape) for tensor in layer.saved}
        added += sum((n - 1) * read.get(name, 0.0) for name, n in _OF_SEVERAL.items())
        added += _HALF * _multiplied(layer)
    return added


def _multiplied(layer: LayerClass) -> float:
    """Weights of products on a device."""
    return sum(
        parameter.count_per_device
        for operator in layer.operators
        if operator.matrix is not None
        for parameter in operator.parameters
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
    return float(gathered_layers(degrees.zero_stage, ranks)) * max(weights)


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


# ----------------------------------------------------------------------------------------------
# What would make a run fit that does not: single changes of it, each priced, cheapest first.
#
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
                step = price_configuration(trained, _grown(cluster, changed), changed)
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


def _grown(cluster: Cluster, run: Configuration) -> Cluster:
    """The cluster with as many nodes as the run needs."""
    needed, pool = run.parallelism.num_devices, cluster.pool_of()
    if needed <= pool.num_devices:
        return cluster
    return cluster.with_nodes(-(-needed // pool.devices_per_node))


def _families(run: Configuration, cluster: Cluster, model: Trained) -> Iterator[Attempts]:
    smaller, more = _smaller_microbatches(run), _more_recompute(run, model.num_layers)
    steps, sharded = len(list(_leanest_steps(run))), list(_leanest(run))
    if steps == 1:  # the other is there already: only where this one alone is too little
        yield chain(smaller, more, sharded[1:])
    elif steps:
        yield from (smaller, more, sharded)
    yield _more_sharding(run)
    yield _more_of("tensor", "tp", run, cluster)
    yield _more_of("pipeline", "pp", run, cluster)
    yield _more_of("context", "cp", run, cluster)
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


_RANK: Final = 16  # of adapters, beside the products that `--lora-targets` means if absent


def _adapters(
    model: Trained, run: Configuration
) -> Iterator[tuple[str, str, Configuration, Trained]]:
    """Adapters beside frozen weights, those in 4 bits at last; with the leanest steps, and sharded.

    It is another training than was asked for, of a model that trains in full.
    """
    if isinstance(model, MeasuredModel) or model.tuning != TRAIN_ALL:
        return
    for bits, own, name in ((None, "", "LoRA"), (4, " --weight-bits 4", "QLoRA")):
        low_rank = LowRank(rank=_RANK, targets=("query", "value"), bits=bits)
        adapted = replace(model, tuning=Tuning(low_rank=low_rank))
        trains = f"{name}, another training: adapters of rank {_RANK} alone"
        for flags, words, changed in (("", "", run), *_leanest(run)):
            options = f"--lora-rank {_RANK}{own} {flags}".rstrip()
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
        nodes = -(-devices // cluster.pool_of().devices_per_node)
        yield (
            f"--dp {data} --zero 3 --nodes {nodes}",
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
        nodes = -(-devices // cluster.pool_of().devices_per_node)
        options = f"--pp {count} --dp {degrees.data} --nodes {nodes}"
        yield options, f"{count} pipeline ranks, {devices} devices", changed
        factor *= 2


_LOSS_CHUNK: Final = 1024  # tokens: enough for a product to fill a device
_MLP_TILE: Final = 8192


def _in_pieces(run: Configuration) -> Iterator[tuple[str, str, Configuration]]:
    """Loss and feed-forward parts over some of the tokens at a time."""
    if run.recipe.loss_chunk is None:
        run = replace(run, recipe=replace(run.recipe, loss_chunk=_LOSS_CHUNK))
        yield f"--loss-chunk {_LOSS_CHUNK}", "logits of some tokens at a time", run
    if run.recipe.mlp_tile is None:
        tiled = replace(run, recipe=replace(run.recipe, mlp_tile=_MLP_TILE))
        more = f"--loss-chunk {_LOSS_CHUNK} --mlp-tile {_MLP_TILE}"
        yield more, "logits and feed-forward parts of some tokens at a time", tiled


def _narrower_states(run: Configuration) -> Iterator[tuple[str, str, Configuration]]:
    """Moments of Adam in 8 bit, then gradients in 16 bit besides."""
    recipe, flags, words = run.recipe, list[str](), list[str]()
    for own, flag, word, narrow in (
        (recipe.moment_dtypes, "--moment-dtype int8", "moments", {"moment_dtypes": ("int8",)}),
        (recipe.gradient_dtype, "--gradient-dtype bf16", "gradients", {"gradient_dtype": "bf16"}),
    ):
        if recipe.optimizer is not Optimizer.ADAM or own not in (None, ("fp32",)):
            continue
        recipe = replace(recipe, **narrow)
        flags, words = [*flags, flag], [*words, word]
        said = f"{' and '.join(words)} in fewer bits, which changes what is computed"
        yield " ".join(flags), said, replace(run, recipe=recipe)


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
