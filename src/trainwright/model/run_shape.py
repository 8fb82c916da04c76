"""How one microbatch runs through a model: its size, how it is cut, number formats, kernels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from math import comb
from typing import Any, Final

from trainwright.errors import Fault, UnsupportedFeature, refuse

# How numbers are kept while training: bytes per element, and the matrix units used
# ---------------------------------------------------------------------------------
# Bytes per parameter follow mixed-precision Adam (Micikevicius et al., 2018, as Megatron-LM runs
# it): a 16-bit weight, a float32 gradient, and in the optimizer a float32 main weight with two
# moments, 2 + 4 + 12 = 18 bytes. Plain float32 needs no main weight: 4 + 4 + 8. With FP8 the linear
# layers of the blocks multiply and keep their inputs in 8 bit; everything else stays as with
# bfloat16 (Micikevicius et al., 2022). "fp8" and "fp4" are recipes whose 2 bytes of a weight are
# its 8-bit form and that form transposed, which Hopper's kernels want (--fp8-param-gather). By the
# names that Transformer Engine gives its recipes the 16-bit weight stays beside them; blocks of 32
# (MXFP8) and 16 numbers (NVFP4) have a scale of a byte each, and are kept along rows and columns.


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """A training recipe's number formats; `matmul_dtype` is the peak of the accelerator it uses.

    `base_dtype` is the format of what is not multiplied in `matmul_dtype`: attention, the head, the
    router, all activations. `linear_input_bytes` is the size in which linear layers keep inputs,
    `weight_copy_bytes` what they keep of a weight from step to step beside `weight_bytes`,
    `dispatch_bytes` that of a number on its way to experts, scaling factors included.
    `end_state_bytes` are what the optimizer keeps of a parameter of embedding or head besides. A
    gradient is summed over replicas in `reduced_bytes`, those in which it is kept where absent. Of
    gradients, states and sharded weights a device holds the shares `held_gradients`, `held_states`
    and `held_weights`, its host the rest. What `casts` keeps float32 weights, whose 16-bit copies
    PyTorch's autocast makes in each forward pass.
    """

    name: str
    matmul_dtype: str
    base_dtype: str
    activation_bytes: int
    linear_input_bytes: float
    dispatch_bytes: float
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    end_state_bytes: int = 0
    weight_copy_bytes: float = 0.0
    reduced_bytes: float | None = None
    held_gradients: float = 1.0
    held_states: float = 1.0
    held_weights: float = 1.0
    casts: bool = False

    @property
    def state(self) -> tuple[tuple[int, float], ...]:
        """Bytes of what one parameter keeps, in order of `profile.StaticKind`, each with the share
        that a device holds; shards of weights are the device's own to hold (`Accelerator`).
        """
        return (
            (self.weight_bytes, 1.0),
            (self.gradient_bytes, self.held_gradients),
            (self.optimizer_bytes, self.held_states),
        )

    @property
    def static_bytes(self) -> int:
        """Bytes that one parameter keeps for the whole step, without sharding."""
        return sum(each for each, _ in self.state)

    @property
    def sync_bytes(self) -> float:
        """Bytes of a gradient on its way to be summed over replicas."""
        return self.gradient_bytes if self.reduced_bytes is None else self.reduced_bytes


def _mixed(dtype: str) -> Precision:
    return Precision(
        name=dtype,
        matmul_dtype=dtype,
        base_dtype=dtype,
        activation_bytes=2,
        linear_input_bytes=2,
        dispatch_bytes=2,
        weight_bytes=2,
        gradient_bytes=4,
        optimizer_bytes=12,
    )


def _halved(dtype: str) -> dict[str, Any]:
    """What runs, and lies between operators, in 16 bit."""
    sizes = ("activation_bytes", "linear_input_bytes", "dispatch_bytes")
    return {"matmul_dtype": dtype, "base_dtype": dtype, **dict.fromkeys(sizes, 2)}


def _single(dtype: str) -> Precision:
    return Precision(
        name=dtype,
        matmul_dtype=dtype,
        base_dtype=dtype,
        activation_bytes=4,
        linear_input_bytes=4,
        dispatch_bytes=4,
        weight_bytes=4,
        gradient_bytes=4,
        optimizer_bytes=8,
    )


BF16: Final = _mixed("bf16")
FP16: Final = _mixed("fp16")
FP32: Final = _single("fp32")
TF32: Final = _single("tf32")
FP8: Final = replace(BF16, name="fp8", matmul_dtype="fp8", linear_input_bytes=1)
FP4: Final = replace(FP8, name="fp4", matmul_dtype="fp4")  # inputs kept for backward in 8 bit
AUTOCAST: Final = tuple(
    replace(_single("fp32"), **_halved(dtype), name=f"{dtype}_autocast", casts=True)
    for dtype in ("bf16", "fp16")
)
_MX, _NV = 1 + 1 / 32, 1 / 2 + 1 / 16  # bytes of a number with its share of a scale
RECIPES: Final = (
    *(
        replace(FP8, name=f"fp8_{scaling}", weight_copy_bytes=2.0)
        for scaling in ("delayed", "tensorwise", "blockwise")
    ),
    replace(FP8, name="mxfp8", linear_input_bytes=_MX, weight_copy_bytes=2 * _MX),
    replace(FP4, name="nvfp4", linear_input_bytes=_NV, weight_copy_bytes=2 * _NV),
)
PRECISIONS: Final = {p.name: p for p in (BF16, FP16, FP32, TF32, FP8, FP4, *RECIPES, *AUTOCAST)}


def precision_named(name: str) -> Precision:
    """Look a precision up; raises `UnsupportedFeature` naming those that exist."""
    try:
        return PRECISIONS[name]
    except KeyError:
        raise UnsupportedFeature(
            f'precision "{name}" is not modelled', alternative=f"use one of {', '.join(PRECISIONS)}"
        ) from None


# How one microbatch runs through a model: its size, how it is cut, number formats, kernels
# -----------------------------------------------------------------------------------------


class ContextExchange(StrEnum):
    """How a context-parallel group lets every query meet every key.

    RING passes keys and values on from rank to rank, each step under one share of the attention
    (Liu et al., 2023); ALL_GATHER collects them first; ALL_TO_ALL trades the sequence for heads,
    so that each rank attends over whole sequences of a few heads (Jacobs et al., 2023).
    ALL_TO_ALL_RING trades heads among neighbours, whose groups form the ring (Fang and Zhao, USP,
    2024; Megatron's a2a+p2p).
    """

    RING = "ring"
    ALL_GATHER = "all_gather"
    ALL_TO_ALL = "all_to_all"
    ALL_TO_ALL_RING = "all_to_all_ring"


class TokenDispatcher(StrEnum):
    """How tokens get to the devices of their experts, and back.

    ALL_TO_ALL sends a copy for each expert, straight to its device (NCCL's all-to-all, which most
    frameworks run). HIERARCHICAL sends a token once to each unit of a network level that has one of
    its experts, where it is passed on, and once to each device (DeepEP, HybridEP).
    """

    ALL_TO_ALL = "all_to_all"
    HIERARCHICAL = "hierarchical"


class CudaGraph(StrEnum):
    """Who records CUDA graphs, and of what (`model.recipe`).

    LOCAL and TRANSFORMER_ENGINE record blocks; FULL_ITERATION all passes of a step, the update
    aside.
    """

    NONE = "none"
    LOCAL = "local"
    TRANSFORMER_ENGINE = "transformer_engine"
    FULL_ITERATION = "full_iteration"

    @property
    def is_per_block(self) -> bool:
        """Whether each block has graphs of its own."""
        return self in (CudaGraph.LOCAL, CudaGraph.TRANSFORMER_ENGINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShape:
    """One microbatch on one device of a `tensor_parallel` × `context_parallel` group.

    `sequence_parallel` shards what tensor parallelism leaves whole (norms, dropout, residuals)
    along the sequence. `fused_attention` is a flash kernel: scores are never stored, and a causal
    kernel skips the upper triangle. `fused_cross_entropy` keeps 16-bit logits only. Vocabularies
    are padded to a multiple of `vocabulary_multiple` × tensor degree, as Megatron-LM does; 1 with
    tensor degree 1 leaves the published size.

    Context parallelism cuts the sequence; under an exchange ALL_TO_ALL_RING `ulysses` neighbours of
    a context group trade heads, and as many groups as that leaves form the ring.
    `context_balanced` says that each rank holds an early and a late part of it (zig-zag), so that a
    causal mask burdens all alike.

    Experts are dealt out over `expert_parallel` groups of `expert_tensor_parallel` devices each (as
    many as tensor parallelism where absent), which cut every expert. `expert_imbalance` is the load
    of the heaviest such group over the mean; where `expert_loads` are given instead it follows from
    those of the experts, or of the heaviest over the mean alone (`heaviest_share`). A
    `capacity_factor` pads (and drops) to that share of the mean instead, and is absent where no
    token is dropped.

    A number of the input of a feed-forward activation is kept in `activation_input_bytes`, that of
    activations where absent. With a `loss_chunk` the head and the loss run over so many tokens at
    a time, and once more in the backward pass, so that logits are never whole; with an `mlp_tile`
    dense feed-forward parts do the same. The share `offloaded_activations` of what blocks keep lies
    on the host, or of what their `offloaded_modules` keep (`model.recipe`). `cuda_graph` records
    blocks, or `cuda_graph_modules` of them alone.
    """

    microbatch_size: int
    sequence_length: int
    tensor_parallel: int = 1
    sequence_parallel: bool = False
    precision: Precision = BF16
    fused_attention: bool = True
    fused_cross_entropy: bool = False
    vocabulary_multiple: int = 128
    context_parallel: int = 1
    context_exchange: ContextExchange = ContextExchange.RING
    ulysses: int | None = None
    context_balanced: bool = True
    expert_parallel: int = 1
    expert_tensor_parallel: int | None = None
    expert_imbalance: float = 1.0
    expert_loads: tuple[float, ...] = ()
    capacity_factor: float | None = None
    token_dispatcher: TokenDispatcher = TokenDispatcher.ALL_TO_ALL
    activation_input_bytes: float | None = None
    loss_chunk: int | None = None
    mlp_tile: int | None = None
    offloaded_activations: float = 0.0
    offloaded_modules: tuple[str, ...] = ()
    cuda_graph: CudaGraph = CudaGraph.NONE
    cuda_graph_modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        counts = [name for name in _COUNTS if getattr(self, name) < 1]
        for name in counts:
            yield Fault(name, f"must be >= 1, got {getattr(self, name)}")
        if self.expert_tensor_parallel is not None and self.expert_tensor_parallel < 1:
            yield Fault("expert_tensor_parallel", "must be >= 1 where given")
        if not self.expert_imbalance >= 1:
            yield Fault("expert_imbalance", f"must be >= 1, got {self.expert_imbalance!r}")
        if self.capacity_factor is not None and not self.capacity_factor > 0:
            yield Fault("capacity_factor", f"must be > 0, got {self.capacity_factor!r}")
        if counts:
            return
        parts = self.context_parallel * self.sequence_shards
        if self.sequence_length % parts:
            yield Fault(
                "sequence_length",
                f"must be a multiple of {self._parts_in_words()}, got {self.sequence_length}",
            )

    def _parts_in_words(self) -> str:
        shards, context = self.sequence_shards, self.context_parallel
        if context == 1:
            return f"tp ({shards}) with sequence parallelism"
        if shards == 1:
            return f"cp ({context})"
        return f"cp x tp ({context * shards}) with sequence parallelism"

    @property
    def trading_heads(self) -> int:
        """Context ranks that trade the sequence for heads."""
        if self.context_exchange is ContextExchange.ALL_TO_ALL_RING and self.context_parallel > 1:
            return self.ulysses or 1
        trades = self.context_exchange is ContextExchange.ALL_TO_ALL
        return self.context_parallel if trades else 1

    @property
    def local_sequence_length(self) -> int:
        """Positions of each sequence that one context rank holds, s/c."""
        return self.sequence_length // self.context_parallel

    @property
    def tokens(self) -> int:
        """Tokens of one microbatch on one context rank, b·s/c."""
        return self.microbatch_size * self.local_sequence_length

    @property
    def channel_bytes(self) -> float:
        """Bytes of one channel of all tokens, cut over the tensor group."""
        return self.precision.activation_bytes * self.tokens / self.tensor_parallel

    @property
    def loss_tokens(self) -> int:
        """Tokens whose logits are there at once."""
        return min(self.tokens, self.loss_chunk or self.tokens)

    @property
    def mlp_tokens(self) -> int:
        """Tokens that a dense feed-forward part works on at once."""
        return min(self.tokens, self.mlp_tile or self.tokens)

    @property
    def sequence_shards(self) -> int:
        """Parts into which sequence-sharded tensors are cut."""
        return self.tensor_parallel if self.sequence_parallel else 1

    @property
    def expert_shards(self) -> int:
        """Devices that share one expert."""
        return self.expert_tensor_parallel or self.tensor_parallel

    @property
    def shares_tokens_to_experts(self) -> bool:
        """Whether tokens travel to other devices than those of their own tensor group."""
        return self.expert_parallel > 1 or self.expert_shards != self.tensor_parallel

    def expert_rows(self, experts_per_token: int, num_experts: int) -> int:
        """Token copies that the experts of one device see, on the heaviest device."""
        return math.ceil(self.expert_copies(experts_per_token, num_experts))

    def expert_copies(self, experts_per_token: int, num_experts: int) -> float:
        """The same before it is rounded up.

        A tensor group of t devices routes q·b·s/c copies, e·x devices take those of e·x/t groups,
        and each group of x devices (x = expert tensor degree) gets its share of all.
        """
        share = self.expert_imbalance
        if self.expert_loads:
            share = heaviest_share(self.expert_loads, num_experts, self.expert_parallel)
        share = share if self.capacity_factor is None else self.capacity_factor
        routed = experts_per_token * self.tokens * self.expert_shards / self.tensor_parallel
        return routed * share

    @property
    def causal_share(self) -> float:
        """Attention of the heaviest context rank over the mean, under a causal mask.

        Unbalanced, the last of c ranks sees all earlier keys: (2c - 1)/c times the mean.
        """
        c = self.context_parallel
        return 1.0 if self.context_balanced else (2 * c - 1) / c

    def padded(self, vocabulary_size: int) -> int:
        """The vocabulary size that is stored and computed."""
        return padded_vocabulary(vocabulary_size, self.vocabulary_multiple, self.tensor_parallel)


def padded_vocabulary(vocabulary_size: int, multiple: int, tensor_degree: int) -> int:
    """The words that a tensor group keeps: each device a whole number of times `multiple`."""
    unit = multiple * tensor_degree
    return -(-vocabulary_size // unit) * unit


def heaviest_share(loads: tuple[float, ...], num_experts: int, groups: int) -> float:
    """Load of the heaviest of `groups` equal groups of experts over the mean.

    `loads` are tokens of each expert, in the order in which groups take them; or one, that of the
    heaviest over the mean, beside which all others are alike:

        heaviest_share((3.0, 1.0, 1.0, 1.0), 4, 2)  # 4/3: two of the four, 4 of 6 tokens
    """
    each = max(1, num_experts // groups)
    if len(loads) == 1:
        heaviest = min(loads[0], float(num_experts))
        others = (num_experts - heaviest) / max(1, num_experts - 1)
        return (heaviest + (each - 1) * others) / each
    sums = [sum(loads[first : first + each]) for first in range(0, num_experts, each)]
    return max(sums) * groups / sum(loads)


_COUNTS = (
    "microbatch_size",
    "sequence_length",
    "tensor_parallel",
    "vocabulary_multiple",
    "context_parallel",
    "expert_parallel",
)

ONE_TOKEN: Final = RunShape(microbatch_size=1, sequence_length=1)


# How far the tokens of a mixture of experts spread over devices
# --------------------------------------------------------------
# A token chooses k of E experts. Routing that keeps loads even makes every choice as likely as any
# other; with groups (DeepSeek-V2, 2024, section 2.1.3) M of G groups are chosen, and then k experts
# of those n = M·E/G. The experts are dealt out in order over ranks. Of a unit of ranks with u_S
# experts in the chosen groups S, a token misses all with probability C(n - u_S, k) / C(n, k), so
#
#     units met  = Σ over units of (1 - mean over S of C(n - u_S, k) / C(n, k))
#
# which is exact; u_S takes few values, whose numbers of S are counted group by group.


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Which experts tokens choose, and over how many ranks these are dealt out in order."""

    num_experts: int
    experts_per_token: int
    num_groups: int = 1
    groups_per_token: int = 1
    ranks: int = 1

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        for name in ("num_experts", "experts_per_token"):
            if (value := getattr(self, name)) < 1:
                yield Fault(name, f"must be >= 1, got {value}")
                return
        if self.ranks < 1 or self.num_experts % self.ranks:
            yield Fault("ranks", f"must divide the {self.num_experts} experts, got {self.ranks}")
        yield from group_faults(
            num_experts=self.num_experts,
            experts_per_token=self.experts_per_token,
            num_groups=self.num_groups,
            groups_per_token=self.groups_per_token,
        )

    def units_met(self, size: int) -> float:
        """How many units of `size` ranks that follow on each other a token reaches on average.

        The last unit may have fewer ranks.
        """
        return _units_met(self, size)


def group_faults(
    *, num_experts: int, experts_per_token: int, num_groups: int, groups_per_token: int
) -> Iterator[Fault]:
    """Groups that cannot be, or that leave a token too few experts."""
    if num_groups < 1 or num_experts % num_groups:
        yield Fault("num_groups", f"must divide the {num_experts} experts, got {num_groups}")
    elif not 1 <= groups_per_token <= num_groups:
        yield Fault("groups_per_token", f"must be in 1..{num_groups}, got {groups_per_token}")
    elif (offered := groups_per_token * num_experts // num_groups) < experts_per_token:
        problem = f"must leave a token {experts_per_token} experts, leaves {offered}"
        yield Fault("groups_per_token", problem)


@lru_cache(maxsize=1024)
def _units_met(routing: Routing, size: int) -> float:
    per_rank = routing.num_experts // routing.ranks
    width = min(size, routing.ranks) * per_rank
    starts = range(0, routing.num_experts, width)
    units = Counter(_overlaps(routing, start, width) for start in starts)
    offered = routing.groups_per_token * (routing.num_experts // routing.num_groups)
    every = comb(routing.num_groups, routing.groups_per_token) * comb(
        offered, routing.experts_per_token
    )
    met = sum(count * (every - _missing(routing, unit)) for unit, count in units.items())
    return met / every  # of whole numbers, so that it is rounded once


def _overlaps(routing: Routing, start: int, width: int) -> tuple[int, ...]:
    """Experts of a unit in each group that it shares some with."""
    group = routing.num_experts // routing.num_groups
    end = min(start + width, routing.num_experts)
    firsts = range(start // group * group, end, group)
    return tuple(sorted(min(end, first + group) - max(start, first) for first in firsts))


def _missing(routing: Routing, unit: tuple[int, ...]) -> int:
    """Choices of groups and experts of which none lie in a unit."""
    chosen, k = routing.groups_per_token, routing.experts_per_token
    offered = chosen * (routing.num_experts // routing.num_groups)
    ways = Counter({(0, 0): 1})  # groups chosen among the unit's, and the experts that they bring
    for overlap in unit:
        with_it = Counter({(n + 1, own + overlap): count for (n, own), count in ways.items()})
        ways += with_it
    others = routing.num_groups - len(unit)
    return sum(
        count * comb(others, chosen - n) * comb(offered - own, k)
        for (n, own), count in ways.items()
        if n <= chosen
    )
