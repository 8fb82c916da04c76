"""The hyper-parameters of a transformer, whatever its family.

A family is a set of choices (norm, activation, positions, biases, tied head), so one record holds
them all and the layer graph never asks for a family's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from trainwright.errors import Fault, InvalidInput
from trainwright.model.run_shape import ContextExchange, RunShape


class Norm(StrEnum):
    """Layer norm has a weight and a bias, RMS norm a weight only."""

    LAYER = "layer"
    RMS = "rms"


class Activation(StrEnum):
    """Of the feed-forward part; whether it is gated is a choice of its own."""

    GELU = "gelu"
    RELU = "relu"
    SILU = "silu"
    SQUARED_RELU = "relu2"

    @property
    def keeps_only_its_output(self) -> bool:
        """Whether backward can be computed from the output, which the next layer keeps anyway."""
        return self is Activation.RELU


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts in place of the feed-forward part of most blocks.

    The first `num_dense_layers` blocks keep a dense one. `shared_ffn_size` is the total width of
    the experts that every token passes, 0 without any.
    """

    num_experts: int
    experts_per_token: int
    ffn_size: int
    shared_ffn_size: int = 0
    num_dense_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """A decoder or encoder stack with its embedding and head.

    `max_positions` is 0 unless positions are learned. `projection_size` is the width of the word
    embedding where it differs from the hidden size (OPT-350M). `sliding_window` bounds how far a
    token attends. `mlm_transform` and `pooler` are BERT's dense layers before its heads.
    """

    family: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    ffn_size: int
    vocabulary_size: int
    norm: Norm
    activation: Activation
    gated: bool = False
    causal: bool = True
    pre_norm: bool = True
    final_norm: bool = True
    embedding_norm: bool = False
    query_key_norm: bool = False
    query_key_value_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    tied_embeddings: bool = False
    max_positions: int = 0
    rotary: bool = False
    num_token_types: int = 0
    projection_size: int | None = None
    sliding_window: int | None = None
    pooler: bool = False
    mlm_transform: bool = False
    head_bias: bool = False
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    experts: Experts | None = None

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        for name in _POSITIVE:
            if (value := getattr(self, name)) < 1:
                yield Fault(name, f"must be >= 1, got {value}")
        if self.num_kv_heads >= 1 and self.num_heads % self.num_kv_heads:
            yield Fault(
                "num_kv_heads", f"must divide num_heads ({self.num_heads}), got {self.num_kv_heads}"
            )
        for name in ("hidden_dropout", "attention_dropout"):
            if not 0 <= (value := getattr(self, name)) < 1:
                yield Fault(name, f"must be in [0, 1), got {value!r}")
        if self.sliding_window is not None and self.sliding_window < 1:
            yield Fault("sliding_window", f"must be >= 1, got {self.sliding_window}")
        if (moe := self.experts) is not None:
            if moe.num_experts < 1 or moe.ffn_size < 1:
                yield Fault("experts", "must have num_experts and ffn_size >= 1")
            if not 1 <= moe.experts_per_token <= max(1, moe.num_experts):
                yield Fault(
                    "experts.experts_per_token",
                    f"must be in 1..{moe.num_experts}, got {moe.experts_per_token}",
                )

    @property
    def query_size(self) -> int:
        """Width of all query heads, a·e."""
        return self.num_heads * self.head_size

    @property
    def key_value_size(self) -> int:
        """Width of all key heads (or value heads), k·e."""
        return self.num_kv_heads * self.head_size

    def tensor_degrees(self, limit: int) -> tuple[int, ...]:
        """The tensor-parallel degrees up to `limit` that the sizes allow, ascending."""
        shapes = (
            RunShape(microbatch_size=1, sequence_length=1, tensor_parallel=t)
            for t in range(1, limit + 1)
        )
        return tuple(run.tensor_parallel for run in shapes if not any(self.faults_at(run)))

    def faults_at(self, run: RunShape) -> Iterator[Fault]:
        """Why this model cannot run at `run`; empty where it can."""
        t = run.tensor_parallel
        yield from self._split_faults(run)
        if self.num_heads % t:
            yield Fault("tensor_parallel", f"must divide the {self.num_heads} heads, got {t}")
        elif self.num_kv_heads % t and t % self.num_kv_heads:
            yield Fault(
                "tensor_parallel",
                f"must divide the {self.num_kv_heads} key-value heads or be a multiple, got {t}",
            )
        if self.ffn_size % t:
            yield Fault("tensor_parallel", f"must divide ffn_size ({self.ffn_size}), got {t}")
        if self.max_positions and run.sequence_length > self.max_positions:
            yield Fault(
                "sequence_length",
                f"must be <= the {self.max_positions} learned positions, got {run.sequence_length}",
            )

    def _split_faults(self, run: RunShape) -> Iterator[Fault]:
        """Degrees of context and experts that the sizes do not allow."""
        t, x, e = run.tensor_parallel, run.expert_shards, run.expert_parallel
        both = t * run.context_parallel
        trades_heads = run.context_exchange is ContextExchange.ALL_TO_ALL
        if run.context_parallel > 1 and trades_heads and self.num_heads % both:
            wanted = f"x tensor_parallel must divide the {self.num_heads} heads for all_to_all"
            yield Fault("context_parallel", f"{wanted}, got {both}")
        if self.experts is None:
            if e > 1:
                yield Fault("expert_parallel", f"must be 1 for a model without experts, got {e}")
            return
        if self.experts.num_experts % e:
            count = self.experts.num_experts
            yield Fault("expert_parallel", f"must divide the {count} experts, got {e}")
        if self.experts.ffn_size % x:
            name = "tensor_parallel" if run.expert_tensor_parallel is None else "expert_tensor"
            width = f"experts.ffn_size ({self.experts.ffn_size})"
            yield Fault(name, f"must divide {width}, got {x}")


_POSITIVE = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_size",
    "ffn_size",
    "vocabulary_size",
)
