"""The hyper-parameters of a transformer, whatever its family.

A family is a set of choices (norm, activation, positions, biases, tied head), so one record holds
them all and the layer graph never asks for a family's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from trainwright.errors import Fault, InvalidInput
from trainwright.model.run_shape import ContextExchange, RunShape


class Norm(StrEnum):
    """Layer norm has a weight and (but for MPT's) a bias, RMS norm a weight only."""

    LAYER = "layer"
    LAYER_WITHOUT_BIAS = "layer_without_bias"
    RMS = "rms"

    @property
    def has_bias(self) -> bool:
        """Whether a bias of the norm's width is learned beside its weight."""
        return self is Norm.LAYER


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

    The first `num_dense_layers` blocks, and those at the indices `dense_layers`, keep a dense one.
    `shared_ffn_size` is the total width of the experts that every token passes, 0 without any;
    `shared_gate` weighs their output by a learned product with the token (Qwen2-MoE).
    """

    num_experts: int
    experts_per_token: int
    ffn_size: int
    shared_ffn_size: int = 0
    num_dense_layers: int = 0
    dense_layers: tuple[int, ...] = ()
    router_bias: bool = False
    shared_gate: bool = False

    def at(self, layer: int) -> bool:
        """Whether block `layer` (index from 0) routes its tokens."""
        return layer >= self.num_dense_layers and layer not in self.dense_layers

    def faults(self, num_layers: int) -> Iterator[Fault]:
        """What cannot be in a stack of `num_layers` blocks."""
        for name in ("num_experts", "ffn_size"):
            if (value := getattr(self, name)) < 1:
                yield Fault(f"experts.{name}", f"must be >= 1, got {value}")
        if not 1 <= self.experts_per_token <= max(1, self.num_experts):
            problem = f"must be in 1..{self.num_experts}, got {self.experts_per_token}"
            yield Fault("experts.experts_per_token", problem)
        if self.shared_ffn_size < 0:
            yield Fault("experts.shared_ffn_size", f"must be >= 0, got {self.shared_ffn_size}")
        if self.shared_gate and not self.shared_ffn_size:
            yield Fault("experts.shared_gate", "needs a shared expert (shared_ffn_size >= 1)")
        if not 0 <= self.num_dense_layers <= num_layers:
            problem = f"must be in 0..{num_layers}, got {self.num_dense_layers}"
            yield Fault("experts.num_dense_layers", problem)
        if any(not 0 <= layer < num_layers for layer in self.dense_layers):
            yield Fault("experts.dense_layers", f"must be in 0..{num_layers - 1}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Keys and values (and queries, where `query_rank` is given) through a narrow latent.

    Of a head's query and key, `rotary_head_size` features carry the position; that part of the key
    is one for all heads. Source: DeepSeek-V2, 2024, section 2.1.
    """

    key_value_rank: int
    rotary_head_size: int
    plain_head_size: int
    value_head_size: int
    query_rank: int | None = None

    @property
    def head_size(self) -> int:
        """Features of a head's query and key."""
        return self.plain_head_size + self.rotary_head_size

    def faults(self) -> Iterator[Fault]:
        """Sizes that cannot be."""
        for name in ("key_value_rank", "rotary_head_size", "plain_head_size", "value_head_size"):
            if (value := getattr(self, name)) < 1:
                yield Fault(f"latent.{name}", f"must be >= 1, got {value}")
        if self.query_rank is not None and self.query_rank < 1:
            yield Fault("latent.query_rank", f"must be >= 1, got {self.query_rank}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """A decoder or encoder stack with its embedding and head.

    `max_positions` is 0 unless positions are learned. `projection_size` is the width of the word
    embedding where it differs from the hidden size (OPT-350M). `sliding_window` bounds how far a
    token attends, but for the blocks (indices from 0) of `full_attention_layers`.
    `attention_sinks` is one learned logit per head that takes up attention (GPT-OSS);
    `sandwich_norm` a second norm after each half of a block (Grok-1). With `latent` attention
    `head_size` is the width of a query and key. `num_mtp_layers` predict further tokens
    (DeepSeek-V3). `mlm_transform` and `pooler` are BERT's dense layers before its heads.
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
    sandwich_norm: bool = False
    final_norm: bool = True
    embedding_norm: bool = False
    query_key_norm: bool = False
    query_key_value_bias: bool = False
    attention_output_bias: bool = False
    attention_sinks: bool = False
    mlp_bias: bool = False
    tied_embeddings: bool = False
    max_positions: int = 0
    rotary: bool = False
    num_token_types: int = 0
    projection_size: int | None = None
    sliding_window: int | None = None
    full_attention_layers: tuple[int, ...] = ()
    pooler: bool = False
    mlm_transform: bool = False
    head_bias: bool = False
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    experts: Experts | None = None
    latent: LatentAttention | None = None
    num_mtp_layers: int = 0

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
        if any(not 0 <= layer < self.num_layers for layer in self.full_attention_layers):
            yield Fault("full_attention_layers", f"must be in 0..{self.num_layers - 1}")
        if self.num_mtp_layers < 0:
            yield Fault("num_mtp_layers", f"must be >= 0, got {self.num_mtp_layers}")
        if self.experts is not None:
            yield from self.experts.faults(self.num_layers)
        if self.latent is not None:
            yield from self.latent.faults()
            yield from self._latent_faults(self.latent)

    def _latent_faults(self, latent: LatentAttention) -> Iterator[Fault]:
        if self.head_size != latent.head_size:
            problem = f"must be {latent.head_size} (plain + rotary part), got {self.head_size}"
            yield Fault("head_size", problem)
        if self.num_kv_heads != self.num_heads:
            problem = f"must equal num_heads ({self.num_heads}) with latent attention, got "
            yield Fault("num_kv_heads", problem + str(self.num_kv_heads))
        if self.query_key_norm:
            yield Fault("query_key_norm", "must be false: latent attention has norms of its own")

    @property
    def query_size(self) -> int:
        """Width of all query heads, a·e."""
        return self.num_heads * self.head_size

    @property
    def key_value_size(self) -> int:
        """Width of all key heads, k·e; that of the value heads too unless attention is latent."""
        return self.num_kv_heads * self.head_size

    @property
    def value_head_size(self) -> int:
        """Features of a head's value and output."""
        return self.head_size if self.latent is None else self.latent.value_head_size

    @property
    def attention_output_size(self) -> int:
        """Width of all heads' outputs."""
        return self.num_heads * self.value_head_size

    def block(self, layer: int) -> TransformerConfig:
        """The choices of block `layer` (index from 0): with experts or not, windowed or not."""
        experts = self.experts if self.experts is not None and self.experts.at(layer) else None
        window = None if layer in self.full_attention_layers else self.sliding_window
        return replace(self, experts=experts, sliding_window=window, full_attention_layers=())

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
        widths = {"ffn_size": self.ffn_size}
        if self.experts is not None:
            widths |= {"experts.shared_ffn_size": self.experts.shared_ffn_size}
        for name, width in widths.items():
            if width % t:
                yield Fault("tensor_parallel", f"must divide {name} ({width}), got {t}")
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
