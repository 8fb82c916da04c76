"""The hyper-parameters of a transformer, whatever its family.

A family is a set of choices (norm, activation, positions, biases, tied head), so one record holds
them all and the layer graph never asks for a family's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from trainwright.errors import Fault, InvalidInput
from trainwright.model.layer_kind import LayerKind
from trainwright.model.parts import Experts, LatentAttention
from trainwright.model.run_shape import ContextExchange, RunShape
from trainwright.model.tuning import TRAIN_ALL, Tuning


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
class TransformerConfig:
    """A decoder or encoder stack with its embedding and head.

    `max_positions` is 0 unless positions are learned. `projection_size` is the width of the word
    embedding where it differs from the hidden size (OPT-350M). `sliding_window` bounds how far a
    token attends, but for the blocks (indices from 0) of `full_attention_layers`.
    `attention_sinks` is one learned logit per head that takes up attention (GPT-OSS);
    `sandwich_norm` a second norm after each half of a block (Grok-1). With `latent` attention
    `head_size` is the width of a query and key. `num_mtp_layers` predict further tokens
    (DeepSeek-V3). `mlm_transform` and `pooler` are BERT's dense layers before its heads. `tuning`
    says what trains.
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
    tuning: Tuning = TRAIN_ALL

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
        if not 0 <= self.num_mtp_layers <= max(0, self.num_layers):
            problem = f"must be in 0..{self.num_layers}, got {self.num_mtp_layers}"
            yield Fault("num_mtp_layers", problem)
        yield from self.tuning.faults(self.num_layers)
        ends = {LayerKind.EMBEDDING, LayerKind.LM_HEAD} & set(self.tuning.frozen_kinds)
        if self.tied_embeddings and len(ends) == 1:
            problem = "must have embedding and lm_head together: they are one tied tensor"
            yield Fault("tuning.frozen_kinds", problem)
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
