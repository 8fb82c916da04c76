"""One transformer block as a torch module, cut to the slice that one device of a tensor group runs.

The same operators as in `model.attention` and `model.feed_forward`, from the same hyper-parameters:
heads, inner width and experts' width are divided by the tensor degree, everything else is whole.
Experts get equal shares of the tokens, whatever the router says. Collectives are left out.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainwright.errors import UnsupportedFeature
from trainwright.model import LayerKind, RunShape, TransformerConfig
from trainwright.model.config import TRAIN_ALL, Activation, Experts, Norm
from trainwright.profile.measured_model import LayerTiming


class ExpertLinear(nn.Module):
    """One product per expert: [experts, rows, inputs] × [experts, inputs, outputs]."""

    def __init__(self, experts: int, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, inputs, outputs))
        self.bias = nn.Parameter(torch.empty(experts, 1, outputs)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply the rows of each expert by its weight."""
        product = torch.bmm(x, self.weight)
        return product if self.bias is None else product + self.bias


# Modules whose saved inputs (for an embedding, ids) serve the weight gradient.
PRODUCTS = (nn.Linear, nn.Embedding, ExpertLinear)


def make_norm(kind: Norm, width: int) -> nn.Module:
    """A norm over the last dimension."""
    if kind is Norm.RMS:
        return nn.RMSNorm(width, eps=1e-6)
    return nn.LayerNorm(width, bias=kind.has_bias)


def make_block(config: TransformerConfig, run: RunShape) -> nn.Module:
    """Both halves of a block; `config` holds the choices of this block."""
    middle: nn.Module = FeedForward(config, config.ffn_size // run.tensor_parallel)
    if config.experts is not None:
        middle = Mixture(config, config.experts, run)
    return nn.Sequential(Half(config, Attention(config, run)), Half(config, middle))


class Half(nn.Module):
    """Norm, the part between, dropout and the residual addition."""

    def __init__(self, config: TransformerConfig, middle: nn.Module) -> None:
        super().__init__()
        self.norm, self.middle = make_norm(config.norm, config.hidden_size), middle
        self.output_norm: nn.Module = nn.Identity()
        if config.sandwich_norm:
            self.output_norm = make_norm(config.norm, config.hidden_size)
        self.pre_norm, self.dropout = config.pre_norm, config.hidden_dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] to the same."""
        found = self.output_norm(self.middle(self.norm(x) if self.pre_norm else x))
        x = x + functional.dropout(found, self.dropout)
        return x if self.pre_norm else self.norm(x)


class Attention(nn.Module):
    """Projections, rotation, a fused core, output projection; heads of one device only."""

    def __init__(self, config: TransformerConfig, run: RunShape) -> None:
        super().__init__()
        t, e, h = run.tensor_parallel, config.head_size, config.hidden_size
        self.heads, self.groups = config.num_heads // t, max(config.num_kv_heads, t) // t
        self.head_size, self.causal = e, config.causal
        self.rotary, self.dropout = config.rotary, config.attention_dropout
        width = (self.heads + 2 * self.groups) * e
        self.query_key_value = nn.Linear(h, width, bias=config.query_key_value_bias)
        self.output = nn.Linear(self.heads * e, h, bias=config.attention_output_bias)
        self.query_norm: nn.Module = nn.Identity()
        self.key_norm: nn.Module = nn.Identity()
        if config.query_key_norm:
            self.query_norm, self.key_norm = make_norm(config.norm, e), make_norm(config.norm, e)
        angles = torch.empty(run.sequence_length, e // 2 if config.rotary else 0)
        self.register_buffer("cosine", angles)
        self.register_buffer("sine", angles.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] to the same."""
        batch, sequence, _ = x.shape
        held = self.query_key_value(x).view(batch, sequence, -1, self.head_size).transpose(1, 2)
        query, key, value = held.split((self.heads, self.groups, self.groups), dim=1)
        query, key = self.query_norm(query), self.key_norm(key)
        if self.rotary:
            query, key = self._rotated(query), self._rotated(key)
        found = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=self.dropout,
            is_causal=self.causal,
            enable_gqa=self.heads != self.groups,
        )
        return self.output(found.transpose(1, 2).reshape(batch, sequence, -1))

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        """The halves of each head as the two coordinates of a rotation (Su et al., 2021)."""
        left, right = x[..., : self.head_size // 2], x[..., self.head_size // 2 :]
        return torch.cat(
            (left * self.cosine - right * self.sine, right * self.cosine + left * self.sine), dim=-1
        )


_ACTIVATIONS: dict[Activation, Callable[[Any], Any]] = {
    Activation.GELU: functional.gelu,
    Activation.RELU: functional.relu,
    Activation.SILU: functional.silu,
    Activation.SQUARED_RELU: lambda x: functional.relu(x).square(),
}


def _activated(config: TransformerConfig, x: torch.Tensor) -> torch.Tensor:
    """The activation, of the first half times the second where it is gated."""
    act = _ACTIVATIONS[config.activation]
    if not config.gated:
        return act(x)
    gate, up = x.chunk(2, dim=-1)
    return act(gate) * up


class FeedForward(nn.Module):
    """Two products with the activation between, `width` of the inner features."""

    def __init__(self, config: TransformerConfig, width: int) -> None:
        super().__init__()
        self.config = config
        h, bias = config.hidden_size, config.mlp_bias
        self.into = nn.Linear(h, width * (1 + config.gated), bias=bias)
        self.out = nn.Linear(width, h, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[…, hidden] to the same."""
        return self.out(_activated(self.config, self.into(x)))


class Mixture(nn.Module):
    """Router, experts over equal shares of the token copies, shared expert."""

    def __init__(self, config: TransformerConfig, experts: Experts, run: RunShape) -> None:
        super().__init__()
        self.config, self.chosen = config, experts.experts_per_token
        h, count, t = config.hidden_size, experts.num_experts, run.tensor_parallel
        width = experts.ffn_size // t
        self.rows = math.ceil(self.chosen * run.tokens / count)
        self.router = nn.Linear(h, count, bias=experts.router_bias)
        inner = width * (1 + config.gated)
        self.into = ExpertLinear(count, h, inner, bias=config.mlp_bias)
        self.out = ExpertLinear(count, width, h, bias=config.mlp_bias)
        self.shared: nn.Module | None = None
        self.shared_gate: nn.Module | None = None
        if experts.shared_ffn_size:
            self.shared = FeedForward(config, experts.shared_ffn_size // t)
        if experts.shared_gate:
            self.shared_gate = nn.Linear(h, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] to the same."""
        tokens = x.flatten(0, 1)
        weights, _ = self.router(tokens).softmax(dim=-1).topk(self.chosen, dim=-1)
        copies = torch.arange(self.router.out_features * self.rows, device=x.device)
        copies %= len(tokens) * self.chosen
        index = copies // self.chosen
        permuted = tokens[index].view(self.router.out_features, self.rows, -1)
        found = self.out(_activated(self.config, self.into(permuted))).flatten(0, 1)
        weighed = found * weights.flatten()[copies, None]
        result = torch.zeros_like(tokens).index_add(0, index, weighed).view_as(x)
        if self.shared is not None:
            shared = self.shared(x)
            if self.shared_gate is not None:
                shared = shared * self.shared_gate(x).sigmoid()
            result = result + shared
        return result


# Every kind of layer as a torch module with inputs of its own, ready to run forward and back
# -------------------------------------------------------------------------------------------
# Weights and inputs are random: matrix units draw more power, and run slower, on real digits than
# on zeros. Layers are built without content first, so that nothing is initialised twice.

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunnableLayer:
    """A module and what to call it with; an input that needs no gradient is ids."""

    module: nn.Module
    inputs: torch.Tensor


def refuse_untimed(config: TransformerConfig, run: RunShape) -> None:
    """Raise `UnsupportedFeature` where a model has parts that have no module here."""
    window, length = config.sliding_window, run.sequence_length
    if window is not None and window < length:
        raise UnsupportedFeature(
            f"attention within a window of {window} tokens cannot be timed at {length} tokens",
            alternative=f"use --sequence {window} or less",
        )
    parts = {
        "latent attention": config.latent is not None,
        "attention sinks": config.attention_sinks,
        "layers that predict further tokens": config.num_mtp_layers > 0,
        "an encoder": bool(config.towers),
        "adapters and frozen layers": config.tuning != TRAIN_ALL,
    }
    if named := ", ".join(name for name, there in parts.items() if there):
        raise UnsupportedFeature(
            f"{named} cannot be timed", alternative="trainwright estimate prices such models"
        )


def make_layer(
    kind: LayerKind, config: TransformerConfig, run: RunShape, *, device: str
) -> RunnableLayer:
    """One layer with random weights and inputs; `config` holds the choices of its block."""
    dtype = DTYPES[run.precision.name]
    with torch.device("meta"):
        module = _module(kind, config, run)
    module = module.to(dtype).to_empty(device=device)
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dtype is dtype:
            tensor.detach().normal_(std=0.02)
    return RunnableLayer(module=module, inputs=_inputs(kind, config, run, module, device=device))


def _module(kind: LayerKind, config: TransformerConfig, run: RunShape) -> nn.Module:
    match kind:
        case LayerKind.EMBEDDING:
            return Embedding(config, run)
        case LayerKind.BLOCK:
            return make_block(config, run)
        case LayerKind.FINAL_NORM:
            return make_norm(config.norm, config.hidden_size)
        case LayerKind.HEAD_TRANSFORM:
            return HeadTransform(config)
        case LayerKind.LM_HEAD:
            return Head(config, run)
        case LayerKind.LOSS:
            return Loss(run)
        case other:
            raise UnsupportedFeature(f"layers of kind {other} cannot be timed")


def _inputs(
    kind: LayerKind, config: TransformerConfig, run: RunShape, module: nn.Module, *, device: str
) -> torch.Tensor:
    """Ids for the embedding, logits for the loss, hidden states for all others."""
    shape = (run.microbatch_size, run.sequence_length)
    local = run.padded(config.vocabulary_size) // run.tensor_parallel
    if isinstance(module, Loss):
        module.targets.random_(local)
    if kind is LayerKind.EMBEDDING:
        return torch.randint(local, shape, device=device)
    width = local if kind is LayerKind.LOSS else config.hidden_size
    dtype = DTYPES[run.precision.name]
    return torch.randn(*shape, width, device=device, dtype=dtype, requires_grad=True)


class Embedding(nn.Module):
    """Look-up of words, positions and token types, then norm, projection and dropout if any."""

    def __init__(self, config: TransformerConfig, run: RunShape) -> None:
        super().__init__()
        h = config.hidden_size
        width = config.word_width
        local = run.padded(config.vocabulary_size) // run.tensor_parallel
        self.words = nn.Embedding(local, width)
        self.positions = nn.Embedding(config.max_positions, h) if config.max_positions else None
        self.types = nn.Embedding(config.num_token_types, h) if config.num_token_types else None
        project = config.projection_size is not None
        self.project: nn.Module = nn.Linear(width, h, bias=False) if project else nn.Identity()
        normed = config.embedding_norm
        self.norm: nn.Module = make_norm(Norm.LAYER, h) if normed else nn.Identity()
        self.dropout = config.hidden_dropout

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[batch, sequence] to [batch, sequence, hidden]."""
        x = self.project(self.words(ids))
        if self.positions is not None:
            x = x + self.positions.weight[: ids.shape[1]]
        if self.types is not None:
            x = x + self.types(torch.zeros_like(ids))
        return functional.dropout(self.norm(x), self.dropout)


class HeadTransform(nn.Module):
    """BERT's pooler on the first token, and the dense layer and norm before its head."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        h = config.hidden_size
        self.pooler = nn.Linear(h, h) if config.pooler else None
        self.dense = nn.Linear(h, h) if config.mlm_transform else None
        self.norm = make_norm(config.norm, h) if config.mlm_transform else None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[batch, sequence, hidden] to the same, and to one vector per sequence."""
        found = []
        if self.dense is not None and self.norm is not None:
            found.append(self.norm(functional.gelu(self.dense(x))))
        if self.pooler is not None:
            found.append(self.pooler(x[:, 0]).tanh())
        return tuple(found)


class Head(nn.Module):
    """The product with this device's part of the vocabulary matrix."""

    def __init__(self, config: TransformerConfig, run: RunShape) -> None:
        super().__init__()
        width = config.word_width
        local = run.padded(config.vocabulary_size) // run.tensor_parallel
        self.project: nn.Module = nn.Identity()
        if config.projection_size is not None:
            self.project = nn.Linear(config.hidden_size, width, bias=False)
        self.product = nn.Linear(width, local, bias=config.head_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] to logits."""
        return self.product(self.project(x))


class Loss(nn.Module):
    """Cross entropy in float32 over this device's part of the logits."""

    targets: torch.Tensor

    def __init__(self, run: RunShape) -> None:
        super().__init__()
        self.register_buffer("targets", torch.empty(run.tokens, dtype=torch.long))

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, vocabulary] to a scalar."""
        return functional.cross_entropy(logits.flatten(0, 1).float(), self.targets)


# What one pass over a layer keeps and how much it needs at its peak, counted in tensors
# --------------------------------------------------------------------------------------
# Kept bytes come from `saved_tensors_hooks`, one entry per storage, parameters and buffers apart;
# what a product saved stays until its weight gradient, the rest until the input gradient. The peak
# counts every storage that an operator makes until it is freed, so it works on any device; the
# workspaces of kernels, which no tensor holds, are not in it.


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """Bytes of one pass; the fields are those of `LayerTiming`."""

    input_bytes: float
    saved_until_input_grad_bytes: float
    saved_until_weight_grad_bytes: float
    transient_bytes: float


def count_bytes(layer: RunnableLayer) -> LayerBytes:
    """Run the layer forward and backward once; each weight's gradient is dropped when ready.

    What stays of gradients and weights is static memory and none of this. The output counts as
    kept by the next layer.
    """
    kept = _Kept(layer.module)
    weights = list(layer.module.parameters())
    with ExitStack() as hooks, LiveBytes() as live:
        for weight in weights:
            handle = weight.register_post_accumulate_grad_hook(_drop_gradient)
            hooks.callback(handle.remove)
        outputs = kept.run(layer)
        made = {_key(t) for t in outputs} - kept.keys
        output_bytes = sum(_size(t) for t in outputs if _key(t) in made)
        seeds = [torch.ones_like(t) for t in outputs]
        torch.autograd.backward(outputs, seeds)
    layer.inputs.grad = None
    given = _key(layer.inputs)
    own = kept.total - kept.sizes.get(given, 0)
    return LayerBytes(
        input_bytes=float(_size(layer.inputs)),
        saved_until_input_grad_bytes=float(kept.total - kept.in_products),
        saved_until_weight_grad_bytes=float(kept.in_products),
        transient_bytes=float(max(0, live.peak_bytes - own - output_bytes)),
    )


def outputs_of(layer: RunnableLayer) -> tuple[torch.Tensor, ...]:
    """Run the layer forward."""
    found = layer.module(layer.inputs)
    return found if isinstance(found, tuple) else (found,)


class _Kept:
    """Storages that forward keeps for backward, by whether a product saved them."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.sizes: dict[int, int] = {}
        self.keys: set[int] = set()
        self.product_keys: set[int] = set()
        self._products = 0

    def run(self, layer: RunnableLayer) -> tuple[torch.Tensor, ...]:
        """Forward under watch."""
        fixed = {_key(t) for t in (*self.module.parameters(), *self.module.buffers())}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            key = _key(tensor)
            if key not in fixed:
                self.sizes[key] = _size(tensor)
                self.keys.add(key)
                if self._products:
                    self.product_keys.add(key)
            return tensor

        with ExitStack() as hooks:
            for product in self._watched():
                hooks.callback(product.register_forward_pre_hook(self._enter).remove)
                hooks.callback(product.register_forward_hook(self._leave).remove)
            hooks.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t))
            return outputs_of(layer)

    @property
    def total(self) -> int:
        return sum(self.sizes.values())

    @property
    def in_products(self) -> int:
        return sum(self.sizes[key] for key in self.product_keys)

    def _watched(self) -> Iterator[torch.nn.Module]:
        return (m for m in self.module.modules() if isinstance(m, PRODUCTS))

    def _enter(self, *_: Any) -> None:
        self._products += 1

    def _leave(self, *_: Any) -> None:
        self._products -= 1


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages that operators made and that still exist, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes = 0
        self.peak_bytes = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and note what is new."""
        given = {_key(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        results = func(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, torch.Tensor) and _key(result) not in given | self._known:
                self._note(result)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return results

    def _note(self, tensor: torch.Tensor) -> None:
        storage, key, size = tensor.untyped_storage(), _key(tensor), _size(tensor)
        self._known.add(key)
        self.live_bytes += size

        def freed() -> None:
            self._known.discard(key)
            self.live_bytes -= size

        weakref.finalize(storage, freed)


def _drop_gradient(weight: torch.Tensor) -> None:
    weight.grad = None


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _size(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().nbytes())


# Times one layer at a time on the device at hand: forward, input gradient, weight gradient
# -----------------------------------------------------------------------------------------
# Each pass is forward, the gradient of the inputs alone, then all gradients; the weight gradient is
# what the last needs beyond the second. The device is waited for between them, so a time includes
# what the host needs to start the kernels, as it does where no graph is captured. Warm-up first;
# medians of as many passes as the share of the time allows, three at least. The sum into a gradient
# buffer, the optimizer and all collectives are left out.

CPU: Final = "cpu"
CUDA: Final = "cuda"
_LEAST_PASSES: Final = 3
_MOST_PASSES: Final = 50
_WARM_UP_PASSES: Final = {CPU: 1, CUDA: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Where layers are timed: torch's name for it, its own, and its free memory."""

    kind: str
    name: str
    available_bytes: float

    def wait(self) -> None:
        """Until all work given to it is done."""
        if self.kind == CUDA:
            torch.cuda.synchronize()


def torch_version() -> str:
    """The version of torch that times."""
    return str(torch.__version__)


def find_device(kind: str | None) -> Device:
    """The device asked for, or CUDA where there is one, else the CPU.

    Raises `UnsupportedFeature` where CUDA was asked for and torch finds none.
    """
    there = torch.cuda.is_available()
    if kind == CUDA and not there:
        raise UnsupportedFeature(
            f"torch {torch_version()} finds no CUDA device here", alternative="use --device cpu"
        )
    if kind == CUDA or (kind is None and there):
        free_bytes, _ = torch.cuda.mem_get_info()
        name = torch.cuda.get_device_name()
        return Device(kind=CUDA, name=name, available_bytes=float(free_bytes))
    name = f"CPU {platform.machine()}, {torch.get_num_threads()} threads"
    return Device(kind=CPU, name=name, available_bytes=_available_bytes())


def time_layer(
    kind: LayerKind,
    config: TransformerConfig,
    run: RunShape,
    *,
    device: Device,
    time_limit_s: float,
) -> LayerTiming:
    """Time one layer at `run` for about `time_limit_s`; `config` holds the choices of its block.

    Without any time left one pass is timed. Raises `UnsupportedFeature` where the device's memory
    does not suffice.
    """
    try:
        layer = make_layer(kind, config, run, device=device.kind)
        return _timed(layer, device, time_limit_s)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        raise UnsupportedFeature(
            f"a layer of kind {kind} at tensor degree {run.tensor_parallel} is too large for the "
            f"memory of {device.name}",
            alternative="use a smaller --micro-batch or --sequence, or a larger --tensor",
        ) from None
    finally:
        if device.kind == CUDA:
            torch.cuda.empty_cache()


def _timed(layer: RunnableLayer, device: Device, time_limit_s: float) -> LayerTiming:
    start_s = time.perf_counter()
    held = count_bytes(layer)  # also the first pass of the warm-up
    least = _LEAST_PASSES if time_limit_s > 0 else 1
    for _ in range(_WARM_UP_PASSES[device.kind]):
        if time_limit_s > 0:
            _pass(layer, device)
    passes: list[tuple[float, float, float]] = []
    while len(passes) < least or (
        len(passes) < _MOST_PASSES and time.perf_counter() - start_s < time_limit_s
    ):
        passes.append(_pass(layer, device))
    forward_s, first_s, both_s = (statistics.median(column) for column in zip(*passes, strict=True))
    return LayerTiming(
        forward_s=forward_s,
        input_grad_s=first_s,
        weight_grad_s=max(0.0, both_s - first_s),
        spread=_spread([forward + both for forward, _, both in passes]),
        num_repeats=len(passes),
        input_bytes=held.input_bytes,
        saved_until_input_grad_bytes=held.saved_until_input_grad_bytes,
        saved_until_weight_grad_bytes=held.saved_until_weight_grad_bytes,
        transient_bytes=held.transient_bytes,
    )


def _pass(layer: RunnableLayer, device: Device) -> tuple[float, float, float]:
    """Seconds of forward, of the input gradient, and of all gradients."""
    inputs = [layer.inputs] if layer.inputs.requires_grad else []
    weights = list(layer.module.parameters())
    device.wait()
    begun_s = time.perf_counter()
    outputs = outputs_of(layer)
    device.wait()
    forward_s = time.perf_counter() - begun_s
    seeds = [torch.ones_like(t) for t in outputs]

    def gradients_s(wanted: list[torch.Tensor]) -> float:
        if not wanted:
            return 0.0
        device.wait()
        begun_s = time.perf_counter()
        torch.autograd.grad(outputs, wanted, seeds, retain_graph=True)
        device.wait()
        return time.perf_counter() - begun_s

    first_s = gradients_s(inputs)
    return forward_s, first_s, gradients_s([*inputs, *weights]) if weights else first_s


def _spread(times_s: list[float]) -> float | None:
    """The distance between the quartiles over the median."""
    if len(times_s) < 2:
        return None
    low_s, middle_s, high_s = statistics.quantiles(times_s, n=4, method="inclusive")
    return (high_s - low_s) / middle_s


def _out_of_memory(error: Exception) -> bool:
    """Whether an allocator gave up; torch's for the CPU has no exception of its own."""
    told = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in told


def _available_bytes() -> float:
    """Main memory that can be had without swapping; Linux says so, others are asked for all."""
    readers: tuple[Callable[[], float], ...] = (_linux_available_bytes, _physical_bytes)
    for read in readers:
        try:
            return read()
        except (OSError, ValueError, StopIteration):
            continue
    return float("inf")


def _linux_available_bytes() -> float:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return 1024.0 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])


def _physical_bytes() -> float:
    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
