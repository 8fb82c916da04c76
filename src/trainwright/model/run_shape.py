"""How one microbatch runs through a model: its size, how it is cut, number formats, kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from trainwright.errors import Fault, InvalidInput
from trainwright.model.precision import BF16, Precision


class ContextExchange(StrEnum):
    """How a context-parallel group lets every query meet every key.

    RING passes keys and values on from rank to rank, each step under one share of the attention
    (Liu et al., 2023); ALL_GATHER collects them first; ALL_TO_ALL trades the sequence for heads,
    so that each rank attends over whole sequences of a few heads (Jacobs et al., 2023).
    """

    RING = "ring"
    ALL_GATHER = "all_gather"
    ALL_TO_ALL = "all_to_all"


class TokenDispatcher(StrEnum):
    """How tokens get to the devices of their experts, and back.

    ALL_TO_ALL sends a copy for each expert, straight to its device (NCCL's all-to-all, which most
    frameworks run). HIERARCHICAL sends a token once to each unit of a network level that has one of
    its experts, where it is passed on, and once to each device (DeepEP, HybridEP).
    """

    ALL_TO_ALL = "all_to_all"
    HIERARCHICAL = "hierarchical"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShape:
    """One microbatch on one device of a `tensor_parallel` × `context_parallel` group.

    `sequence_parallel` shards what tensor parallelism leaves whole (norms, dropout, residuals)
    along the sequence. `fused_attention` is a flash kernel: scores are never stored, and a causal
    kernel skips the upper triangle. `fused_cross_entropy` keeps 16-bit logits only. Vocabularies
    are padded to a multiple of `vocabulary_multiple` × tensor degree, as Megatron-LM does; 1 with
    tensor degree 1 leaves the published size.

    Context parallelism cuts the sequence; `context_balanced` says that each rank holds an early
    and a late part of it (zig-zag), so that a causal mask burdens all alike.

    Experts are dealt out over `expert_parallel` groups of `expert_tensor_parallel` devices each (as
    many as tensor parallelism where absent), which cut every expert. `expert_imbalance` is the load
    of the heaviest such group over the mean; a `capacity_factor` pads (and drops) to that share of
    the mean instead, and is absent where no token is dropped.
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
    context_balanced: bool = True
    expert_parallel: int = 1
    expert_tensor_parallel: int | None = None
    expert_imbalance: float = 1.0
    capacity_factor: float | None = None
    token_dispatcher: TokenDispatcher = TokenDispatcher.ALL_TO_ALL

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

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
            return f"tensor_parallel ({shards}) with sequence_parallel"
        if shards == 1:
            return f"context_parallel ({context})"
        return f"context_parallel x tensor_parallel ({context * shards}) with sequence_parallel"

    @property
    def local_sequence_length(self) -> int:
        """Positions of each sequence that one context rank holds, s/c."""
        return self.sequence_length // self.context_parallel

    @property
    def tokens(self) -> int:
        """Tokens of one microbatch on one context rank, b·s/c."""
        return self.microbatch_size * self.local_sequence_length

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

    def expert_rows(self, experts_per_token: int) -> int:
        """Token copies that the experts of one device see, on the heaviest device."""
        return math.ceil(self.expert_copies(experts_per_token))

    def expert_copies(self, experts_per_token: int) -> float:
        """The same before it is rounded up.

        A tensor group of t devices routes q·b·s/c copies, e·x devices take those of e·x/t groups,
        and each group of x devices (x = expert tensor degree) gets its share of all.
        """
        share = self.expert_imbalance if self.capacity_factor is None else self.capacity_factor
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
        multiple = self.vocabulary_multiple * self.tensor_parallel
        return math.ceil(vocabulary_size / multiple) * multiple


_COUNTS = (
    "microbatch_size",
    "sequence_length",
    "tensor_parallel",
    "vocabulary_multiple",
    "context_parallel",
    "expert_parallel",
)
