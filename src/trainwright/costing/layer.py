"""The price of one layer on one device: times by phase, bytes, collectives, per recompute mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from trainwright.cluster import Accelerator, Hop
from trainwright.costing.communication import (
    beyond_s,
    exchange_time_s,
    memory_time_s,
    operator_time_s,
)
from trainwright.costing.tiled import TiledTimer, timer_of
from trainwright.model import (
    Exchange,
    LayerClass,
    LayerKind,
    Operator,
    OperatorKind,
    Phase,
    Precision,
    RunShape,
    SavedTensor,
)
from trainwright.model.operator import EXPERT_ACTIVATION, MLP_ACTIVATION, PARTS
from trainwright.model.recipe import moved_tensors, recorded_share
from trainwright.plans.configuration import DEFAULT_OVERLAP, Overlap
from trainwright.profile import Collective, Recompute, TimeKind

# What a layer keeps on one device: static bytes, saved activations, transients
# -----------------------------------------------------------------------------
# Everything is a sum over the layer's parameters and its list of saved tensors. Recomputing drops
# tensors from that list: named modules drop those they can produce again, a full recomputation
# keeps the layer's input alone. What was dropped comes back, for one layer at a time, as a
# transient of backward.


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeRule:
    """Which saved tensors a recompute mode gives up: those of `modules`, or all but the input.

    What is kept stays on the device; if it `uses_host`, as much of it as hides lies on the host.
    """

    modules: frozenset[str] = frozenset()
    whole_layer: bool = False
    uses_host: bool = False

    def keeps(self, tensor: SavedTensor) -> bool:
        """Whether `tensor` stays from forward to backward."""
        if self.whole_layer:
            return tensor.is_layer_input
        return not self._names(tensor.dropped_by) and not self._in_part(tensor.name)

    def repeats(self, operator: Operator) -> bool:
        """Whether backward runs `operator` forward again."""
        again = self.whole_layer or self._names(operator.module)
        return again or self._in_part(operator.name)

    def repeats_exchange(self, exchange: Exchange) -> bool:
        """Whether backward runs a collective of the forward pass again."""
        if exchange.phase is not Phase.FORWARD:
            return False
        return self.whole_layer or ("moe" in self.modules and exchange.axis.startswith("expert"))

    def _names(self, module: str | None) -> bool:
        """Whether a module is one that is named; activations are those of experts, too."""
        of_all = module == EXPERT_ACTIVATION and MLP_ACTIVATION in self.modules
        return of_all or module in self.modules

    def _in_part(self, name: str) -> bool:
        parts = self.modules & PARTS.keys()
        return any(name.startswith(PARTS[part]) for part in parts)


KEEP_ALL = RecomputeRule()
# Layers that recompute, and whose activations can lie on the host; not the ends of the model.
RECOMPUTABLE: Final = frozenset({LayerKind.BLOCK, LayerKind.MTP, LayerKind.ENCODER_BLOCK})


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationBytes:
    """Bytes of one microbatch on one device, by what frees them."""

    until_input_grad: float
    until_weight_grad: float
    transient: float

    @property
    def kept(self) -> float:
        """From forward to backward."""
        return self.until_input_grad + self.until_weight_grad

    def on_host(self, share: float, movable: ActivationBytes | None = None) -> ActivationBytes:
        """With a share on the host of what is kept, or of its `movable` part.

        It comes back for the layer at hand, and for the next one while that one runs.
        """
        part = self if movable is None else movable
        return ActivationBytes(
            until_input_grad=self.until_input_grad - share * part.until_input_grad,
            until_weight_grad=self.until_weight_grad - share * part.until_weight_grad,
            transient=self.transient + 2 * share * part.kept,
        )


def parameters_per_device(layer: LayerClass) -> tuple[float, float]:
    """Dense and expert parameters that one device of the tensor group holds."""
    dense = sum(p.count_per_device for p in layer.parameters if not p.expert)
    return dense, sum(p.count_per_device for p in layer.parameters if p.expert)


def trained_per_device(layer: LayerClass) -> tuple[float, float]:
    """Of these, the parameters that have a gradient."""
    trained = [p for p in layer.parameters if p.trainable]
    dense = sum(p.count_per_device for p in trained if not p.expert)
    return dense, sum(p.count_per_device for p in trained if p.expert)


def static_bytes(layer: LayerClass, precision: Precision) -> tuple[tuple[float, ...], ...]:
    """{dense, expert} × {weight, gradient, optimizer} bytes, before any ZeRO sharding."""
    trained = trained_per_device(layer)
    saved = [0.0, 0.0]
    for parameter in layer.parameters:
        if parameter.kept_bytes is not None:
            less = precision.weight_bytes - parameter.kept_bytes
            saved[parameter.expert] += less * parameter.count_per_device
    if precision.weight_copy_bytes:
        for expert, count in _multiplied(layer, precision):
            saved[expert] -= precision.weight_copy_bytes * count
    if layer.kind in (LayerKind.EMBEDDING, LayerKind.LM_HEAD):
        states = precision.optimizer_bytes + precision.end_state_bytes
        precision = replace(precision, optimizer_bytes=states)
    _, *trained_state = precision.state
    return tuple(
        (
            held * precision.weight_bytes - less,
            *(count * each * share for each, share in trained_state),
        )
        for held, count, less in zip(parameters_per_device(layer), trained, saved, strict=True)
    )


def _multiplied(layer: LayerClass, precision: Precision) -> Iterator[tuple[bool, float]]:
    """Weights of products that run in the narrow format: whether of experts, and how many."""
    for operator in layer.operators:
        if operator.matrix is not None and operator.dtype == precision.matmul_dtype:
            for parameter in operator.parameters:
                if parameter.name.endswith(".weight") and parameter.kept_bytes is None:
                    yield parameter.expert, parameter.count_per_device


def activation_bytes(layer: LayerClass, run: RunShape, rule: RecomputeRule) -> ActivationBytes:
    """What one microbatch keeps under `rule`, and what its backward needs for a moment."""
    return _kept_bytes(_saved(layer, run), layer.transient_bytes, rule)


def _saved(layer: LayerClass, run: RunShape) -> list[tuple[SavedTensor, float]]:
    """What backward needs when nothing is recomputed, with its bytes on one device."""
    return [(tensor, tensor.bytes_per_device(run)) for tensor in layer.saved]


def _kept_bytes(
    saved: Iterable[tuple[SavedTensor, float]], transient_bytes: float, rule: RecomputeRule
) -> ActivationBytes:
    kept = {Phase.INPUT_GRAD: 0.0, Phase.WEIGHT_GRAD: 0.0}
    recomputed = 0.0
    for tensor, size in saved:
        if rule.keeps(tensor):
            kept[tensor.until] += size
        else:
            recomputed += size
    return ActivationBytes(
        until_input_grad=kept[Phase.INPUT_GRAD],
        until_weight_grad=kept[Phase.WEIGHT_GRAD],
        transient=transient_bytes + recomputed,
    )


def _movable(
    layer: LayerClass,
    run: RunShape,
    saved: Sequence[tuple[SavedTensor, float]],
    rule: RecomputeRule,
) -> tuple[ActivationBytes, float]:
    """Of what is kept, what the host can take, and the bytes that are copied there for it."""
    if not run.offloaded_modules:
        every = _kept_bytes(saved, 0.0, rule)
        return every, every.kept
    names, beside = moved_tensors(layer, run.offloaded_modules)
    kept = [(tensor, size) for tensor, size in saved if rule.keeps(tensor)]
    part = _kept_bytes([each for each in kept if each[0].name in names], 0.0, rule)
    return part, part.kept + sum(size for tensor, size in kept if tensor.name in beside)


# The price of one layer on one device: times by phase, bytes, collectives, per recompute mode
# --------------------------------------------------------------------------------------------

_KIND_OF_AXIS: Final = {
    "tensor": TimeKind.TENSOR_PARALLEL,
    "context": TimeKind.CONTEXT_PARALLEL,
    "expert": TimeKind.EXPERT_PARALLEL,
    "expert_tensor": TimeKind.EXPERT_PARALLEL,
}
_PASSES: Final = (
    (Phase.FORWARD,),
    (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD),
    (Phase.RECOMPUTE,),
)
# A block with experts starts about twice as many kernels: router, sorting, dispatch, grouped
# products, return. Fits public tests on A100 and H100 better than 1 or 3 (the accuracy page).
_EXPERT_PASSES: Final = 2.0
# Starting the collectives of a tensor or of a context group, and waiting for them, takes the host
# this share of a pass: what tests of Megatron-LM take longer with a group of 2.
_EXCHANGE_PASSES: Final = 0.15


def kind_of_axis(axis: str) -> TimeKind:
    """What the time of a collective over `axis` counts as; tensor parallel where unknown."""
    return _KIND_OF_AXIS.get(axis, TimeKind.TENSOR_PARALLEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPrice:
    """One row of a cost table: a layer at one tensor degree under one recompute mode.

    `phase_s` holds what each phase takes with its exposed collectives, `kind_s` the same total by
    `TimeKind`.
    """

    tensor_parallel: int
    recompute: Recompute
    phase_s: Mapping[Phase, float]
    kind_s: tuple[float, ...]
    activations: ActivationBytes
    static_bytes: tuple[tuple[float, ...], ...]
    gradient_sync_bytes: tuple[float, float]
    trained_weight_bytes: tuple[float, float]
    collectives: tuple[Collective, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What prices a layer's work: the device, its number format, the hops of each axis' group."""

    accelerator: Accelerator
    dtype: str
    hops: Mapping[str, tuple[Hop, ...]]
    overlap: Overlap = DEFAULT_OVERLAP
    tiled: TiledTimer | None = None  # in place of what the device itself is timed with

    def to_host_s(self, moved_bytes: float, under_s: float) -> float:
        """What moving activations to the host, or back, leaves exposed beside so much compute."""
        if not moved_bytes:
            return 0.0
        assert self.accelerator.host is not None, "a run that offloads names a device with a host"
        moved_s = moved_bytes / self.accelerator.host.link_bytes_per_s
        return beyond_s(moved_s, self.overlap.host * under_s)

    def hidden_share(
        self, kept_bytes: float, operator_s: Mapping[Phase, Mapping[str, float]]
    ) -> float:
        """Of what a layer keeps, the share whose copies there and back hide beside its passes.

        Link time that alike layers lend each other changes no sum: k layers that move all of it
        while as many more move nothing hide as well as all that move half.
        """
        assert self.accelerator.host is not None, "a run that offloads names a device with a host"
        forward_s, backward_s = (
            sum(sum(operator_s[phase].values()) for phase in phases)
            for phases in ((Phase.FORWARD,), (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD))
        )
        hidden_s = self.overlap.host * min(forward_s, backward_s)
        moved_bytes = hidden_s * self.accelerator.host.link_bytes_per_s
        return min(1.0, moved_bytes / kept_bytes) if kept_bytes else 0.0

    def operator_s(self, operator: Operator, phase: Phase, run: RunShape) -> float:
        """Seconds of one phase of an operator on one device."""
        if self.tiled is not None or self.accelerator.cores is not None:
            tiled = self.tiled or timer_of(self.accelerator, run.precision)
            assert tiled is not None, "a device that names its cores has a timer"
            return tiled.operator_s(operator, phase, run)
        dtype = operator.dtype or self.dtype
        if operator.matrix is None and dtype not in self.accelerator.dtypes:
            dtype = self.dtype  # a device without a slower format has nothing to fall back to
        return operator_time_s(operator, phase, accelerator=self.accelerator, dtype=dtype)


def price_layer(
    layer: LayerClass,
    run: RunShape,
    rules: Mapping[Recompute, RecomputeRule],
    platform: Platform,
) -> Iterator[LayerPrice]:
    """One price per recompute mode of `rules`."""
    host_share = run.offloaded_activations if layer.kind in RECOMPUTABLE else 0.0
    operator_s = {
        phase: {op.name: platform.operator_s(op, phase, run) for op in layer.operators}
        for phase in (Phase.FORWARD, Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)
    }
    dense, expert = trained_per_device(layer)
    weight, gradient = run.precision.weight_bytes, run.precision.sync_bytes
    adding_s = _adding_s(dense + expert, run.precision, platform.accelerator)
    has_backward, saved = layer.has_backward, _saved(layer, run)
    static = static_bytes(layer, run.precision)
    exchanges, further = layer.exchanges, 0
    if rings := _merged_rings(layer, run, platform):
        exchanges, further = rings.exchanges, _pieces(run) - 2
        for phase, merging_s in rings.merging_s.items():
            operator_s[phase][rings.core] += merging_s
    host_pass_s = platform.accelerator.host_pass_s * _host_passes(layer, platform, further)
    host_pass_s *= 1 - recorded_share(layer, run.cuda_graph, run.cuda_graph_modules)
    timed = [(x, exchange_time_s(x, platform.hops[x.axis])) for x in exchanges]
    collectives = tuple(map(_collective, exchanges))
    for mode, wanted in rules.items():
        rule = wanted if has_backward else KEEP_ALL  # which nothing asks to run again
        operator_s[Phase.RECOMPUTE] = _recomputed_s(layer, rule, operator_s[Phase.FORWARD])
        repeated = _repeated(timed, rule)
        phase_s = {phase: sum(times.values()) for phase, times in operator_s.items()}
        phase_s[Phase.WEIGHT_GRAD] += adding_s
        kind_s = [0.0] * len(TimeKind)
        kind_s[TimeKind.COMPUTE] = sum(phase_s.values())
        for (phase, kind), exposed_s in _exposed_s(
            [*timed, *repeated], operator_s, platform
        ).items():
            phase_s[phase] += exposed_s
            kind_s[kind] += exposed_s
        if layer.kind is LayerKind.BLOCK:
            share = len(operator_s[Phase.RECOMPUTE]) / max(1, len(layer.operators))
            kind_s[TimeKind.COMPUTE] += _wait_for_host(phase_s, host_pass_s, share)
        activations = _kept_bytes(saved, layer.transient_bytes, rule)
        # What copies to the host and back add counts in the backward, all of it: bounds rest on
        # modes that share their forward.
        if rule.uses_host and activations.kept:
            # Copies take memory bandwidth from the passes.
            hidden = platform.hidden_share(activations.kept, operator_s)
            beside_s = 2 * memory_time_s(hidden * activations.kept, platform.accelerator)
            phase_s[Phase.INPUT_GRAD] += beside_s
            kind_s[TimeKind.COMPUTE] += beside_s
            activations = activations.on_host(hidden)
        elif host_share:
            movable, copied_bytes = _movable(layer, run, saved, rule)
            moved_bytes = host_share * copied_bytes
            backward = (Phase.RECOMPUTE, Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)
            under_s = sum(sum(operator_s[phase].values()) for phase in backward)
            for compute_s in (sum(operator_s[Phase.FORWARD].values()), under_s):
                waits_s = platform.to_host_s(moved_bytes, compute_s)
                phase_s[Phase.INPUT_GRAD] += waits_s
                kind_s[TimeKind.COMPUTE] += waits_s
            activations = activations.on_host(host_share, movable)
        yield LayerPrice(
            tensor_parallel=run.tensor_parallel,
            recompute=mode,
            phase_s=phase_s,
            kind_s=tuple(kind_s),
            activations=activations,
            static_bytes=static,
            gradient_sync_bytes=(dense * gradient, expert * gradient),
            trained_weight_bytes=(dense * weight, expert * weight),
            collectives=(*collectives, *(_collective(exchange) for exchange, _ in repeated)),
        )


def _adding_s(trained: float, precision: Precision, device: Accelerator) -> float:
    """Seconds of the kernels that add a microbatch's gradients, where they are kernels apart.

    They read the new and the old, write the sum and, where it is wider than the new, the cast, too.
    """
    if not device.adds_gradients_apart:
        return 0.0
    new, held = precision.activation_bytes, precision.gradient_bytes
    cast = 2 * held if held > new else 0.0
    return memory_time_s(trained * (new + cast + 2 * held), device)


def _host_passes(layer: LayerClass, platform: Platform, further: int) -> float:
    """Host time of one pass of a block, in those of one without experts or exchanges.

    Each of `further` pieces of a ring is as many kernels as a group's collectives: PyTorch starts
    11 for it, forward, beside the 59 of a block (counted on Qwen3 of transformers 5.24).
    """
    passes = _EXPERT_PASSES if any(op.name == "router" for op in layer.operators) else 1.0
    axes = {x.axis for x in layer.exchanges if platform.hops.get(x.axis)}
    groups = len(axes & {"tensor", "context"})
    return passes + _EXCHANGE_PASSES * (groups + further)


# Ring attention of PyTorch, kernel by kernel
# ------------------------------------------
# `torch/distributed/tensor/experimental/_context_parallel/_attention.py`: with c ranks a kernel
# runs c times, on the own keys and on those of each other rank. What it gives is cast to float32
# and merged by kernels of their own; backward sums gradients in float32, and passes those of keys
# and values on c times, the last of them with nothing left to hide under. An all-gather is under
# way while the first piece is computed. For each number of the queries, of a bytes, with k of keys
# and values together for one of the queries, the last rank moves
#
#     forward     (a + 4)(c + 1) + 32 (c - 1) + 2 a k (c - 1)
#     backward    (a + 8)(c + 1) + k [(2 a + 20 + a/2)(c - 1) + 24 + 2 a]
#
# bytes, as counted on fake tensors for c = 2, 4 and 8 (`tests/lab/test_ring_merging.py`).

_SUMS: Final = 4  # bytes of what is summed in float32
# Kernels that do nothing but move large tensors reach the share that the catalog's devices are
# described with. Pooled shares are lower: they hold what programs move beside our operators.
_STREAMED: Final = 0.85


def ring_merging_bytes(c: int, a: float, k: float) -> tuple[float, float]:
    """What PyTorch's ring attention moves beside its kernels, forward and backward.

    Bytes for each number of a context rank's queries, of `a` bytes each, with `c` ranks and `k`
    numbers of keys and values.
    """
    forward = (a + _SUMS) * (c + 1) + 8 * _SUMS * (c - 1) + 2 * a * k * (c - 1)
    of_keys = (2 * a + 5 * _SUMS + a / 2) * (c - 1) + 6 * _SUMS + 2 * a
    return forward, (a + 2 * _SUMS) * (c + 1) + k * of_keys


def ring_held_bytes(c: int, a: float, k: float) -> float:
    """What PyTorch's ring attention holds backward at its fullest beside queries, keys and values.

    Bytes for each number of a context rank's queries, of `a` bytes each, with `c` ranks and `k`
    numbers of keys and values: all of these of every rank, what attention gave and its gradient,
    and gradients in float32, counted on fake tensors (`tests/lab/test_ring_merging.py`).
    """
    first = 2 * a + 2 * _SUMS + k * (4 * _SUMS + a / 2)
    return max(first, first - a + a * k) + a * k * c


def ring_backward(layer: LayerClass, run: RunShape) -> tuple[LayerClass, float]:
    """A block up to its attention, and what that holds backward in a ring of PyTorch; 0 without."""
    cores = [at for at, op in enumerate(layer.operators) if op.kind is OperatorKind.ATTENTION]
    passed = [x for x in layer.exchanges if x.axis == "context" and x.kind == "ring"]
    if not cores or not passed or not run.fused_attention:
        return layer, 0.0
    core, size = layer.operators[cores[0]], run.precision.activation_bytes
    written, ranks = core.forward.written_bytes, run.context_parallel // run.trading_heads
    of_keys = min(x.bytes for x in passed) / written
    held = ring_held_bytes(ranks, size, of_keys) * written / size
    return replace(layer, operators=layer.operators[: cores[0] + 1]), held


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rings:
    """The kernel that runs on one piece after another, what merging adds, and what is sent."""

    core: str
    merging_s: Mapping[Phase, float]
    exchanges: tuple[Exchange, ...]


def _merged_rings(layer: LayerClass, run: RunShape, platform: Platform) -> _Rings | None:
    """Of a layer whose attention PyTorch runs in pieces; None of any other."""
    device, pieces = platform.accelerator, _pieces(run)
    cores = [op for op in layer.operators if op.kind is OperatorKind.ATTENTION]
    passed = [x for x in layer.exchanges if x.axis == "context" and x.kind in _PASSED]
    if not device.merges_rings or pieces == 1 or not cores or not passed:
        return None
    core, size = cores[0], run.precision.activation_bytes
    block_bytes = min(x.bytes / (1 if x.kind == "ring" else pieces) for x in passed)
    queries = core.forward.written_bytes / size
    moved = ring_merging_bytes(pieces, size, block_bytes / core.forward.written_bytes)
    merging_s = {
        phase: queries * each / (_STREAMED * device.memory_bandwidth_bytes_per_s)
        for phase, each in zip((Phase.FORWARD, Phase.INPUT_GRAD), moved, strict=True)
    }
    sums = Exchange(
        axis="context",
        kind="ring",
        bytes=block_bytes * _SUMS / size,
        phase=Phase.INPUT_GRAD,
        hides_under=core.name,
        hidden_share=(pieces - 1) / pieces,
        apart=passed[0].apart,
    )
    last = replace(sums, kind="point_to_point", hides_under=None, hidden_share=1.0)
    found = [x for x in layer.exchanges if x not in passed]
    for exchange in passed:
        if exchange.kind == "all_gather":
            found.append(replace(exchange, hides_under=core.name, hidden_share=1 / pieces))
        elif exchange.kind == "ring":
            found.append(replace(exchange, bytes=block_bytes))
    return _Rings(core=core.name, merging_s=merging_s, exchanges=(*found, sums, last))


_PASSED: Final = frozenset({"ring", "all_gather", "reduce_scatter"})


def _pieces(run: RunShape) -> int:
    """How many ranks pass keys and values on."""
    return run.context_parallel // run.trading_heads


def _wait_for_host(phase_s: dict[Phase, float], pass_s: float, repeated: float) -> float:
    """Stretch each pass of a block to what the host needs to start it; returns what that adds.

    Input and weight gradient are one pass. A pass without work is none, and recomputing a share
    `repeated` of the operators starts so much of one: named modules cost a few kernels, not a pass.
    """
    added_s = 0.0
    for together in _PASSES:
        kernels_s = sum(phase_s[phase] for phase in together)
        needed_s = pass_s * (repeated if together == (Phase.RECOMPUTE,) else 1.0)
        if 0 < kernels_s < needed_s:
            for phase in together:
                phase_s[phase] *= needed_s / kernels_s
            added_s += needed_s - kernels_s
    return added_s


def _recomputed_s(
    layer: LayerClass, rule: RecomputeRule, forward_s: Mapping[str, float]
) -> dict[str, float]:
    """Forward work that backward repeats: the named modules, or everything."""
    return {op.name: forward_s[op.name] for op in layer.operators if rule.repeats(op)}


def _repeated(
    timed: Sequence[tuple[Exchange, float]], rule: RecomputeRule
) -> list[tuple[Exchange, float]]:
    """Of a layer's collectives and their seconds those that the rule runs again."""
    return [
        (replace(exchange, phase=Phase.RECOMPUTE), time_s)
        for exchange, time_s in timed
        if rule.repeats_exchange(exchange)
    ]


_KIND_OF_OVERLAP: Final = {
    "tensor": TimeKind.TENSOR_PARALLEL,
    "experts": TimeKind.EXPERT_PARALLEL,
}


def _exposed_s(
    timed: Sequence[tuple[Exchange, float]],
    operator_s: Mapping[Phase, Mapping[str, float]],
    platform: Platform,
) -> dict[tuple[Phase, TimeKind], float]:
    """What collectives that take so many seconds add to each phase, by kind.

    One that names an operator hides under it; the others of a kind share what their overlap allows
    of the phase's compute, unless what the device was fitted to hid that kind already.
    """
    exposed_s: dict[tuple[Phase, TimeKind], float] = {}
    apart_s: dict[tuple[Phase, TimeKind], float] = {}
    for exchange, time_s in timed:
        key = (exchange.phase, _KIND_OF_AXIS[exchange.axis])
        if exchange.hides_under is None:
            apart_s[key] = apart_s.get(key, 0.0) + time_s
            continue
        window_s = exchange.hidden_share * operator_s[exchange.phase][exchange.hides_under]
        exposed_s[key] = exposed_s.get(key, 0.0) + beyond_s(time_s, window_s)
    shares = {
        kind: getattr(platform.overlap, name)
        for name, kind in _KIND_OF_OVERLAP.items()
        if name not in platform.accelerator.held_overlap
    }
    for (phase, kind), time_s in apart_s.items():
        window_s = shares.get(kind, 0.0) * sum(operator_s[phase].values())
        added_s = beyond_s(time_s, window_s)
        exposed_s[phase, kind] = exposed_s.get((phase, kind), 0.0) + added_s
    return exposed_s


def _collective(exchange: Exchange) -> Collective:
    return Collective(
        axis=exchange.axis,
        kind=exchange.kind,
        bytes=exchange.bytes,
        phase=str(exchange.phase),
        hides_under=exchange.hides_under,
        routing=exchange.routing,
        nearest=exchange.nearest,
        apart=exchange.apart,
    )


# Prices of layers that do not depend on where experts are, kept for the points that ask again
# --------------------------------------------------------------------------------------------
# A search prices a model with experts at hundreds of points that differ in how these are dealt out.
# What is no expert is the same object at all of them (`model.transformer`), and costs the same.

_KEPT: Final = 2560  # five layers of a model at each of `model.transformer`'s runs


def layer_prices(
    layer: LayerClass,
    run: RunShape,
    rules: Mapping[Recompute, RecomputeRule],
    platform: Platform,
) -> Iterable[LayerPrice]:
    """One price per recompute mode of `rules`, as `price_layer` makes them."""
    if not _is_kept(layer, platform):
        return price_layer(layer, run, rules, platform)
    return _made_prices(
        _Layer(layer, run),
        tuple(rules.items()),
        platform.accelerator,
        platform.dtype,
        tuple((axis, platform.hops[axis]) for axis in ("tensor", "context")),
        platform.overlap,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """A layer where it was made for one run: another object is another layer."""

    layer: LayerClass
    run: RunShape

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Layer) and self.layer is other.layer

    def __hash__(self) -> int:
        return id(self.layer)


def _is_kept(layer: LayerClass, platform: Platform) -> bool:
    """Whether the layer costs the same however experts are dealt out."""
    if platform.tiled is not None or not platform.hops["expert"]:
        return False
    if any(exchange.axis.startswith("expert") for exchange in layer.exchanges):
        return False
    return not any(parameter.expert for parameter in layer.parameters)


@lru_cache(maxsize=_KEPT)
def _made_prices(
    made: _Layer,
    rules: tuple[tuple[Recompute, RecomputeRule], ...],
    device: Accelerator,
    dtype: str,
    hops: tuple[tuple[str, tuple[Hop, ...]], ...],
    overlap: Overlap,
) -> tuple[LayerPrice, ...]:
    platform = Platform(accelerator=device, dtype=dtype, hops=dict(hops), overlap=overlap)
    return tuple(price_layer(made.layer, made.run, dict(rules), platform))
