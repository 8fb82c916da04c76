"""The hyper-parameters of a transformer, whatever its family.

A family is a set of choices (norm, activation, positions, biases, tied head), so one record holds
them all and the layer graph never asks for a family's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from trainwright.errors import Fault, refuse, too_low
from trainwright.model.mixers import Mixer
from trainwright.model.run_shape import RunShape, group_faults
from trainwright.provenance import RARE

# What the layers of a model are; a stage split may fall between any two of them
# ------------------------------------------------------------------------------


class LayerKind(StrEnum):
    """What a layer is."""

    PATCH_EMBEDDING = "patch_embedding"
    ENCODER_BLOCK = "encoder_block"
    PROJECTOR = "projector"
    EMBEDDING = "embedding"
    BLOCK = "block"
    FINAL_NORM = "final_norm"
    HEAD_TRANSFORM = "head_transform"
    LM_HEAD = "lm_head"
    LOSS = "loss"
    MTP = "mtp"


def block_indices(kinds: Sequence[str | None]) -> list[int]:
    """Which layers of a chain are blocks of the model, by their kinds or names."""
    return [at for at, kind in enumerate(kinds) if kind == LayerKind.BLOCK]


# Layers that recompute where all blocks do, and not where some of them do.
BESIDE_BLOCKS: Final = (LayerKind.MTP, LayerKind.ENCODER_BLOCK)


# Parts of a block that some families have: a mixture of experts, latent attention
# --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts in place of the feed-forward part of most blocks.

    The first `num_dense_layers` blocks, and those at the indices `dense_layers`, keep a dense one.
    `shared_ffn_size` is the total width of the experts that every token passes, 0 without any;
    `shared_gate` weighs their output by a learned product with the token (Qwen2-MoE). Where the
    model's products have biases, those of routed experts have them as `routed_bias` says. The
    experts lie in `num_groups` groups of neighbours, of which a token uses `groups_per_token`
    (DeepSeek-V2, 2024, section 2.1.3). With a `latent_size` a product narrows tokens before they
    travel to routed experts of that width, and another widens what comes back (Nemotron-3), behind
    a norm where there is a `latent_norm` (Kimi K3). Where they stand `apart`, a norm precedes the
    routed experts and one follows either part, and the router scales its input and its choices
    (Gemma 4).
    """

    num_experts: int
    experts_per_token: int
    ffn_size: int
    shared_ffn_size: int = 0
    num_dense_layers: int = 0
    dense_layers: tuple[int, ...] = ()
    router_bias: bool = False
    shared_gate: bool = False
    routed_bias: bool = field(default=True, metadata={RARE: True})
    latent_size: int | None = None
    latent_norm: bool = field(default=False, metadata={RARE: True})
    num_groups: int = 1
    groups_per_token: int = 1
    apart: bool = field(default=False, metadata={RARE: True})

    def at(self, layer: int) -> bool:
        """Whether block `layer` (index from 0) routes its tokens."""
        return layer >= self.num_dense_layers and layer not in self.dense_layers

    def faults(self, num_layers: int) -> Iterator[Fault]:
        """What cannot be in a stack of `num_layers` blocks."""
        yield from too_low(self, 1, "num_experts", "ffn_size", under="experts.")
        if not 1 <= self.experts_per_token <= max(1, self.num_experts):
            problem = f"must be in 1..{self.num_experts}, got {self.experts_per_token}"
            yield Fault("experts.experts_per_token", problem)
        else:
            yield from self._group_faults()
        yield from too_low(self, 0, "shared_ffn_size", under="experts.")
        if self.shared_gate and not self.shared_ffn_size:
            yield Fault("experts.shared_gate", "needs a shared expert (shared_ffn_size >= 1)")
        if not 0 <= self.num_dense_layers <= num_layers:
            problem = f"must be in 0..{num_layers}, got {self.num_dense_layers}"
            yield Fault("experts.num_dense_layers", problem)
        if any(not 0 <= layer < num_layers for layer in self.dense_layers):
            yield Fault("experts.dense_layers", f"must be in 0..{num_layers - 1}")

    def _group_faults(self) -> Iterator[Fault]:
        found = group_faults(
            num_experts=self.num_experts,
            experts_per_token=self.experts_per_token,
            num_groups=self.num_groups,
            groups_per_token=self.groups_per_token,
        )
        yield from (Fault(f"experts.{fault.path}", fault.problem) for fault in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """Small heads that choose, for every token, the `num_keys` keys that attention looks at.

    Its queries come of the query latent, its one key of the hidden state; it scores all pairs.
    Source: DeepSeek-V3.2, 2025, section 2.1.
    """

    num_heads: int
    head_size: int
    num_keys: int

    def faults(self) -> Iterator[Fault]:
        """Sizes that cannot be."""
        yield from too_low(self, 1, "num_heads", "head_size", "num_keys", under="latent.indexer.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Keys and values (and queries, where `query_rank` is given) through a narrow latent.

    Of a head's query and key, `rotary_head_size` features carry the position; that part of the key
    is one for all heads. Source: DeepSeek-V2, 2024, section 2.1. With an `indexer` a token attends
    to few keys; a block that `reuses_index` takes those that an earlier block chose.
    """

    key_value_rank: int
    rotary_head_size: int
    plain_head_size: int
    value_head_size: int
    query_rank: int | None = None
    indexer: Indexer | None = None
    reuses_index: bool = field(default=False, metadata={RARE: True})

    @property
    def head_size(self) -> int:
        """Features of a head's query and key."""
        return self.plain_head_size + self.rotary_head_size

    def faults(self) -> Iterator[Fault]:
        """Sizes that cannot be."""
        sizes = ("key_value_rank", "rotary_head_size", "plain_head_size", "value_head_size")
        yield from too_low(self, 1, *sizes, "query_rank", under="latent.")
        if self.indexer is not None:
            yield from self.indexer.faults()
            if self.query_rank is None:
                yield Fault("latent.query_rank", "must be given where an indexer reads the latent")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention:
    """One key for all heads, which is the value too, and far tokens through compressed entries.

    Each token attends to those of a window and to entries that each stand for `ratio` tokens, all
    of them or those that an `indexer` chose; without a ratio to the window alone. Of a few tokens
    an entry takes twice as many, overlapping, where there is an indexer. What the heads give goes
    through a product per group of heads, `output_rank` wide, and another back. Source: DeepSeek-V4,
    2026, section 2.3.
    """

    query_rank: int
    output_groups: int
    output_rank: int
    ratio: int | None = None
    indexer: Indexer | None = None

    @property
    def series(self) -> int:
        """Widths of a key that a token gives to entries: to its own, and to the next."""
        return 0 if self.ratio is None else 1 + (self.indexer is not None)

    def entries(self, length: int) -> int:
        """Entries that the last of so many tokens may attend to."""
        count = 0 if self.ratio is None else length // self.ratio
        return count if self.indexer is None else min(count, self.indexer.num_keys)

    def pairs(self, length: int, *, skips_masked: bool) -> float:
        """Pairs of a token and an entry, of one sequence and head.

        Token t (from 1) sees ⌊t / ratio⌋ entries, at most `entries`.
        """
        if self.ratio is None:
            return 0.0
        most = self.entries(length)
        if not skips_masked:
            return float(length) * most
        rising = self.ratio * most * (most - 1) / 2
        return rising + most * (length - most * self.ratio + 1.0)

    def faults(self, num_heads: int) -> Iterator[Fault]:
        """Sizes that cannot be."""
        counts = ("query_rank", "output_groups", "output_rank")
        yield from too_low(self, 1, *counts, under="compressed.")
        if self.output_groups >= 1 and num_heads % self.output_groups:
            problem = f"must divide the {num_heads} heads, got {self.output_groups}"
            yield Fault("compressed.output_groups", problem)
        yield from too_low(self, 1, "ratio", under="compressed.")
        if self.indexer is not None:
            yield from self.indexer.faults()
            if self.ratio is None:
                yield Fault("compressed.ratio", "must be given with an indexer")


# Training a part of a model: frozen layers, and low-rank adapters beside frozen products
# ---------------------------------------------------------------------------------------
# A frozen product needs no weight gradient, so its input is not kept for one, and its parameters
# have neither gradient nor optimizer state. Where nothing at or before an operator trains, no
# gradient flows back through it at all: it keeps nothing and has no backward. Both rules are
# applied to the finished chain of layers, operator by operator in forward order.
#
# An adapter (Hu et al., 2021) adds (x A) B of rank r to a product x W; A and B train, W does not. A
# part of a fused product (the queries of query-key-value, the gate of gate-up) may have one alone.
# Beside a product whose outputs the tensor group cuts, B is cut alike and A is whole; beside one
# whose inputs it cuts, A is cut and B is whole.


WIDE_BITS: Final = 32  # of frozen weights in float32 shards


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """Adapters of `rank` beside the products named by `targets`; nothing else trains.

    Targets are `query`, `key`, `value`, `attention_output`, `attention_gate`, `gate`, `up`, `down`
    (of dense and shared feed-forward parts; of each routed expert with `expert_` before them), and
    with latent attention `query_down`, `query_up`, `key_value_down`, `key_value_up`; without a
    gate, `up` is the first product. Mixers have `mixer_in` (every product of the hidden state) and
    `mixer_out`, RWKV's feed-forward part `receptance`; those of an encoder that sees images have
    `encoder_` before their names.
    `dropout` on an adapter's input keeps a copy of it and a mask. `bits` are those in which the
    products of blocks keep their frozen weights, 4 or 8, or 32 of all that is frozen where FSDP has
    float32 shards, which it gathers as in training; as in training where absent.
    """

    rank: int
    targets: tuple[str, ...]
    dropout: float = 0.0
    bits: int | None = None

    @property
    def few_bits(self) -> int | None:
        """The bits of quantized weights; None where nothing is quantized."""
        return None if self.is_wide else self.bits

    @property
    def is_wide(self) -> bool:
        """Whether frozen weights are kept in more bits than they train in."""
        return self.bits == WIDE_BITS

    def faults(self) -> Iterator[Fault]:
        """What cannot be, whatever the model."""
        if self.bits not in (None, 4, 8, WIDE_BITS):
            yield Fault("tuning.low_rank.bits", f"must be 4, 8 or {WIDE_BITS}, got {self.bits}")
        yield from too_low(self, 1, "rank", under="tuning.low_rank.")
        if not self.targets:
            yield Fault("tuning.low_rank.targets", "must have at least 1 entry, got 0")
        if not 0 <= self.dropout < 1:
            yield Fault("tuning.low_rank.dropout", f"must be in [0, 1), got {self.dropout!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What of a model trains: everything that nothing here freezes.

    `frozen_kinds` are layers by kind, `num_frozen_blocks` the first blocks, `frozen_operators`
    single operators of any layer by name (as `router`). With a `reference`, the model as it was
    answers each microbatch, too: a frozen copy, or where adapters train, the weights beside them.
    """

    frozen_kinds: tuple[LayerKind, ...] = ()
    num_frozen_blocks: int = 0
    frozen_operators: tuple[str, ...] = ()
    low_rank: LowRank | None = None
    reference: bool = field(default=False, metadata={RARE: True})

    @property
    def is_wide(self) -> bool:
        """Whether all that is frozen lies in float32 shards, which are gathered in 16 bit."""
        return self.low_rank is not None and self.low_rank.is_wide

    def faults(self, num_layers: int) -> Iterator[Fault]:
        """What cannot be in a stack of `num_layers` blocks."""
        if not 0 <= self.num_frozen_blocks <= num_layers:
            problem = f"must be in 0..{num_layers}, got {self.num_frozen_blocks}"
            yield Fault("tuning.num_frozen_blocks", problem)
        if self.low_rank is not None:
            yield from self.low_rank.faults()

    def freezes(self, kind: LayerKind, block: int | None, operator: str) -> bool:
        """Whether an operator of a layer of `kind` (block index where it is one) stays as it is."""
        return (
            self.low_rank is not None
            or kind in self.frozen_kinds
            or (block is not None and block < self.num_frozen_blocks)
            or operator in self.frozen_operators
        )


TRAIN_ALL = Tuning()


# Where blocks differ from each other
# -----------------------------------


class Keys(StrEnum):
    """Where attention has its keys and values: products of both, of keys alone, or from before."""

    OWN = "own"
    ALSO_VALUES = "also_values"  # a product less; Gemma 4 in its full attention
    EARLIER = "earlier"  # those of the last block with products that attends as far (Gemma 3n)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChoice:
    """What a kind of block has in place of the model's own choices; None leaves these as they are.

    `mixer` stands in place of attention, or beside it where the block `attends` too (Falcon-H1). A
    block without `mlp` is a mixer alone, one that neither attends nor has a mixer a feed-forward
    part alone (Nemotron-H). `dense` says that a model with experts has none here.
    """

    mixer: Mixer | None = None
    attends: bool = True
    mlp: bool = True
    dense: bool = False
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_size: int | None = None
    value_size: int | None = None
    ffn_size: int | None = None
    sliding_window: int | None = None
    attention_sinks: bool | None = None
    compressed: CompressedAttention | None = None
    reuses_index: bool = False
    attention_gate: int | None = field(default=None, metadata={RARE: True})
    relative_buckets: int | None = field(default=None, metadata={RARE: True})
    entry_norm: bool | None = field(default=None, metadata={RARE: True})
    keys: Keys | None = field(default=None, metadata={RARE: True})

    @property
    def overrides(self) -> dict[str, Any]:
        """Fields of the model that this kind of block states anew."""
        found = {name: getattr(self, name) for name in _OVERRIDDEN}
        return {name: value for name, value in found.items() if value is not None}


_OVERRIDDEN: Final = (
    "num_heads",
    "num_kv_heads",
    "head_size",
    "value_size",
    "ffn_size",
    "sliding_window",
    "attention_sinks",
    "compressed",
    "attention_gate",
    "relative_buckets",
    "entry_norm",
    "keys",
)


# The hyper-parameters of a transformer, whatever its family
# ----------------------------------------------------------


class Norm(StrEnum):
    """Layer norm has a weight and (but for MPT's) a bias, RMS norm a weight; OLMo's has neither."""

    LAYER = "layer"
    LAYER_WITHOUT_BIAS = "layer_without_bias"
    RMS = "rms"
    WITHOUT_WEIGHT = "without_weight"

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
    XIELU = "xielu"  # with two learned scalars of its own

    @property
    def keeps_only_its_output(self) -> bool:
        """Whether backward can be computed from the output, which the next layer keeps anyway."""
        return self is Activation.RELU


class Head(StrEnum):
    """What stands behind the last block: logits of the vocabulary, of a few classes, or nothing."""

    LANGUAGE = "language"
    CLASSES = "classes"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """A decoder or encoder stack with its embedding and head.

    `max_positions` is 0 unless positions are learned. `projection_size` is the width of the word
    embedding where it differs from the hidden size (OPT-350M). `sliding_window` bounds how far a
    token attends, but for the blocks (indices from 0) of `full_attention_layers`.
    `attention_sinks` is one learned logit per head that takes up attention (GPT-OSS);
    `sandwich_norm` a second norm after each half of a block (Grok-1). With `latent` attention
    `head_size` is the width of a query and key. `num_mtp_layers` predict further tokens
    (DeepSeek-V3). `mlm_transform` and `pooler` are BERT's dense layers before its heads. A `head`
    of classes gives `num_classes` logits (classifiers, reward models); behind a pooler they stand
    beside a language head (next sentences). `tuning` says what trains.

    `norm_after` puts the norm of each half behind it and none before (OLMo 2); in `parallel` blocks
    both halves read one hidden state (GPT-NeoX), through a `shared_norm` where they have but one
    norm (GPT-J). A `chunked` window is a chunk of its own, not the last so many tokens (Llama 4).
    `query_key_norm_whole` norms over all heads at once. An `attention_gate` of so
    many outputs (one per head, or per feature) weighs what attention gives. `value_size` is that of
    a value head where it differs. Where blocks differ, `choices` are their kinds and
    `choice_of_layer` the kind of each; a layer that predicts a further token has blocks of the
    kinds `further_choices`, else one like the last. Each sequence has `images`, which pass the
    `towers`. Blocks pass on `streams` of the hidden size, which each half mixes into its input.
    Where there are `residual_blocks`, each half takes a mixture of what the stack gave before every
    so many blocks and what came since.
    Where a model `crosses`, its blocks attend to what its one tower gives behind their own
    attention (both in `model.transformer`). `relative_buckets` of distances have a learned score
    per head (T5); without a `key_bias` queries and values alone have one. A `receptance` of the
    token weighs what the feed-forward part gives (RWKV); an `entry_norm` stands before all of a
    block.
    Behind its halves a block may add what a word of `layer_input_words` gives it in `layer_inputs`
    features of its own (`model.ends`); `layer_scale` is a learned factor per feature of what either
    half adds.

    What a file says of `rotary_base`, `rotary_scaling` (a name) and `norm_epsilon` changes what is
    learned and no cost: models that differ in these alone are equal.
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
    head: Head = field(default=Head.LANGUAGE, metadata={RARE: True})
    num_classes: int = field(default=0, metadata={RARE: True})
    norm_after: bool = field(default=False, metadata={RARE: True})
    parallel: bool = field(default=False, metadata={RARE: True})
    shared_norm: bool = field(default=False, metadata={RARE: True})
    query_key_norm_whole: bool = field(default=False, metadata={RARE: True})
    chunked: bool = field(default=False, metadata={RARE: True})
    attention_gate: int = field(default=0, metadata={RARE: True})
    attention_gate_bias: bool = field(default=False, metadata={RARE: True})
    value_size: int | None = field(default=None, metadata={RARE: True})
    choices: tuple[BlockChoice, ...] = field(default=(), metadata={RARE: True})
    choice_of_layer: tuple[int, ...] = field(default=(), metadata={RARE: True})
    further_choices: tuple[int, ...] = field(default=(), metadata={RARE: True})
    mixer: Mixer | None = None
    attends: bool = field(default=True, metadata={RARE: True})
    mlp: bool = field(default=True, metadata={RARE: True})
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    experts: Experts | None = None
    latent: LatentAttention | None = None
    num_mtp_layers: int = 0
    compressed: CompressedAttention | None = field(default=None, metadata={RARE: True})
    streams: int = field(default=1, metadata={RARE: True})
    residual_blocks: int = field(default=0, metadata={RARE: True})
    towers: tuple[Tower, ...] = field(default=(), metadata={RARE: True})
    images: int = field(default=0, metadata={RARE: True})
    crosses: bool = field(default=False, metadata={RARE: True})
    relative_buckets: int = field(default=0, metadata={RARE: True})
    key_bias: bool = field(default=True, metadata={RARE: True})
    receptance: bool = field(default=False, metadata={RARE: True})
    entry_norm: bool = field(default=False, metadata={RARE: True})
    keys: Keys = field(default=Keys.OWN, metadata={RARE: True})
    layer_inputs: int = field(default=0, metadata={RARE: True})
    layer_input_words: int = field(default=0, metadata={RARE: True})
    layer_scale: bool = field(default=False, metadata={RARE: True})
    rotary_base: float | None = field(default=None, compare=False, metadata={RARE: True})
    rotary_scaling: str | None = field(default=None, compare=False, metadata={RARE: True})
    norm_epsilon: float | None = field(default=None, compare=False, metadata={RARE: True})
    tuning: Tuning = TRAIN_ALL

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        if self.images < 0:
            yield Fault("images", f"must be >= 0, got {self.images}")
        elif self.images and not self.towers:
            yield Fault("images", f"must be 0: the model takes no images, got {self.images}")
        if self.crosses and (len(self.towers) != 1 or self.images != 1):
            yield Fault("towers", "must be one, with one input per sequence, to attend to")
        yield from too_low(self, 1, *_POSITIVE)
        if self.num_kv_heads >= 1 and self.num_heads % self.num_kv_heads:
            yield Fault(
                "num_kv_heads", f"must divide num_heads ({self.num_heads}), got {self.num_kv_heads}"
            )
        for name in ("hidden_dropout", "attention_dropout"):
            if not 0 <= (value := getattr(self, name)) < 1:
                yield Fault(name, f"must be in [0, 1), got {value!r}")
        yield from too_low(self, 1, "sliding_window")
        if any(not 0 <= layer < self.num_layers for layer in self.full_attention_layers):
            yield Fault("full_attention_layers", f"must be in 0..{self.num_layers - 1}")
        if not 0 <= self.num_mtp_layers <= max(0, self.num_layers):
            problem = f"must be in 0..{self.num_layers}, got {self.num_mtp_layers}"
            yield Fault("num_mtp_layers", problem)
        beside = self.pooler and self.head is Head.LANGUAGE
        if not beside and (self.head is Head.CLASSES) != (self.num_classes > 0):
            yield Fault(
                "num_classes", f"must be >= 1 with a head of classes, got {self.num_classes}"
            )
        if self.head is not Head.LANGUAGE and (self.tied_embeddings or self.num_mtp_layers):
            yield Fault("head", "must be language where it is tied or predicts further tokens")
        yield from self.tuning.faults(self.num_layers)
        ends = {LayerKind.EMBEDDING, LayerKind.LM_HEAD} & set(self.tuning.frozen_kinds)
        if self.tied_embeddings and len(ends) == 1:
            problem = "must have embedding and lm_head together: they are one tied tensor"
            yield Fault("tuning.frozen_kinds", problem)
        if self.choices and len(self.choice_of_layer) != self.num_layers:
            problem = f"must have one entry per layer ({self.num_layers}), got "
            yield Fault("choice_of_layer", problem + str(len(self.choice_of_layer)))
        if any(not 0 <= c < len(self.choices) for c in self.choice_of_layer):
            yield Fault("choice_of_layer", f"must be in 0..{len(self.choices) - 1}")
        if not set(self.further_choices) <= set(self.choice_of_layer):
            yield Fault("further_choices", "must be kinds of blocks that occur")
        if self.shared_norm and not self.parallel:
            yield Fault("shared_norm", "needs parallel halves")
        if self.experts is not None:
            yield from self.experts.faults(self.num_layers)
        yield from too_low(self, 1, "streams")
        if self.residual_blocks < 0 or (self.residual_blocks and self.streams > 1):
            problem = f"must be >= 0, and 0 with streams, got {self.residual_blocks}"
            yield Fault("residual_blocks", problem)
        if self.compressed is not None:
            yield from self.compressed.faults(self.num_heads)
        yield from (fault for tower in self.towers for fault in tower.faults())
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
    def expands_latents(self) -> bool:
        """Whether queries, and maybe keys and values, come of narrow latents."""
        return self.latent is not None or self.compressed is not None

    @property
    def query_size(self) -> int:
        """Width of all query heads, a·e."""
        return self.num_heads * self.head_size

    @property
    def key_value_size(self) -> int:
        """Width of all key heads, k·e; that of the value heads too unless attention is latent."""
        return self.num_kv_heads * self.head_size

    @property
    def projected_sizes(self) -> tuple[int, int]:
        """Widths of the products that keys and values come of; 0 where they have none."""
        values = self.num_kv_heads * self.value_head_size
        return (
            self.key_value_size if self.keys is not Keys.EARLIER else 0,
            values if self.keys is Keys.OWN else 0,
        )

    @property
    def value_head_size(self) -> int:
        """Features of a head's value and output."""
        if self.latent is not None:
            return self.latent.value_head_size
        return self.value_size or self.head_size

    @property
    def attention_output_size(self) -> int:
        """Width of all heads' outputs."""
        return self.num_heads * self.value_head_size

    def block(self, layer: int) -> TransformerConfig:
        """The choices of block `layer` (index from 0): with experts or not, windowed or not."""
        experts = self.experts if self.experts is not None and self.experts.at(layer) else None
        window = None if layer in self.full_attention_layers else self.sliding_window
        own: dict[str, Any] = {
            "experts": experts,
            "sliding_window": window,
            "full_attention_layers": (),
        }
        if self.choices:
            choice = self.choices[self.choice_of_layer[layer]]
            own |= {"choices": (), "choice_of_layer": (), "further_choices": ()}
            own |= choice.overrides
            own |= {"mixer": choice.mixer, "attends": choice.attends, "mlp": choice.mlp}
            if choice.dense:
                own["experts"] = None
            if choice.reuses_index and self.latent is not None:
                own["latent"] = replace(self.latent, reuses_index=True)
        return replace(self, **own)

    @property
    def further_blocks(self) -> tuple[TransformerConfig, ...]:
        """The blocks of a layer that predicts a further token."""
        if not self.further_choices:
            return (self.block(self.num_layers - 1),)
        return tuple(self.block(self.choice_of_layer.index(kind)) for kind in self.further_choices)

    @property
    def kinds_of_blocks(self) -> tuple[TransformerConfig, ...]:
        """One block of each kind that occurs, in the order of the layers."""
        experts, full = self.experts, frozenset(self.full_attention_layers)
        first: dict[tuple[bool, bool, int], int] = {}  # layer by what `block` asks of it
        for layer in range(self.num_layers):
            choice = self.choice_of_layer[layer] if self.choices else 0
            first.setdefault(
                (experts is not None and experts.at(layer), layer in full, choice), layer
            )
        return tuple(dict.fromkeys(map(self.block, first.values())))

    def tensor_degrees(self, wanted: Iterable[int]) -> tuple[int, ...]:
        """The tensor-parallel degrees among `wanted` that the sizes allow, in their order."""
        shapes = (RunShape(microbatch_size=1, sequence_length=1, tensor_parallel=t) for t in wanted)
        return tuple(run.tensor_parallel for run in shapes if not any(self.faults_at(run)))

    @property
    def word_width(self) -> int:
        """The width of the word embeddings, which the head meets too."""
        return self.projection_size or self.hidden_size

    @property
    def attended_keys(self) -> int | None:
        """The most keys that a token attends to, by a window or an indexer; None: all of them."""
        indexer = None if self.latent is None else self.latent.indexer
        limits = [self.sliding_window, None if indexer is None else indexer.num_keys]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def is_recurrent(self) -> bool:
        """Whether some block needs the state of the token before, so that no ring can cut it."""
        mixers = (self.mixer, *(choice.mixer for choice in self.choices))
        return any(mixer is not None for mixer in mixers)

    def context_limits(self) -> Iterator[str]:
        """How context parallelism can be cut."""
        if self.crosses:
            yield f"context parallel: none, {_WHOLE_INPUT}"
            return
        if not self.is_recurrent:
            yield "context parallel: ring or gather by any degree that divides the sequence"
        attends = any(block.attends for block in self.kinds_of_blocks)
        heads = [self.num_heads] if attends else []
        heads += [kind.mixer.heads for kind in self.kinds_of_blocks if kind.mixer is not None]
        counts = ", ".join(map(str, dict.fromkeys(heads)))
        alone = (
            "; a ring cannot: each token needs the state of the last" if self.is_recurrent else ""
        )
        yield f"context parallel: all-to-all by degrees that divide {counts} heads{alone}"

    def faults_at(self, run: RunShape) -> Iterator[Fault]:
        """Why this model cannot run at `run`; empty where it can."""
        yield from self._split_faults(run)
        kinds = self.kinds_of_blocks if self.choices else (self,)
        yield from dict.fromkeys(fault for kind in kinds for fault in kind._block_faults(run))
        for tower in self.towers:
            for fault in tower.stack._block_faults(run):
                yield Fault(fault.path, f"{fault.problem} ({tower.name} encoder)")
            if (most := tower.stack.max_positions) and run.sequence_length > most:
                problem = f"must be <= the encoder's {most} positions, got {run.sequence_length}"
                yield Fault("sequence_length", problem)
        if self.max_positions and run.sequence_length > self.max_positions:
            yield Fault(
                "sequence_length",
                f"must be <= the {self.max_positions} learned positions, got {run.sequence_length}",
            )

    def _block_faults(self, run: RunShape) -> Iterator[Fault]:
        """What a block of this kind cannot be cut into."""
        t = run.tensor_parallel
        if self.compressed is not None and self.compressed.output_groups % t:
            count = self.compressed.output_groups
            yield Fault("tensor_parallel", f"must divide the {count} groups of heads, got {t}")
        if self.mixer is not None:
            yield from self.mixer.faults_at(run)
        if not self.attends:
            pass
        elif self.num_heads % t:
            yield Fault("tensor_parallel", f"must divide the {self.num_heads} heads, got {t}")
        elif self.num_kv_heads % t and t % self.num_kv_heads:
            yield Fault(
                "tensor_parallel",
                f"must divide the {self.num_kv_heads} key-value heads or be a multiple, got {t}",
            )
        widths = {"ffn_size": self.ffn_size} if self.mlp else {}
        if self.experts is not None:
            widths |= {"experts.shared_ffn_size": self.experts.shared_ffn_size}
        for name, width in widths.items():
            if width % t:
                yield Fault("tensor_parallel", f"must divide {name} ({width}), got {t}")

    def _split_faults(self, run: RunShape) -> Iterator[Fault]:
        """Degrees of context and experts that the sizes do not allow."""
        t, x, e = run.tensor_parallel, run.expert_shards, run.expert_parallel
        if self.crosses and run.context_parallel > 1:
            problem = f"must be 1: {_WHOLE_INPUT}, got {run.context_parallel}"
            yield Fault("context_parallel", problem)
        if run.context_parallel % run.trading_heads:
            wanted = f"must be a multiple of ulysses ({run.ulysses})"
            yield Fault("context_parallel", f"{wanted}, got {run.context_parallel}")
        both = t * run.trading_heads
        if run.trading_heads > 1 and self.num_heads % both:
            who = "ulysses " if run.trading_heads < run.context_parallel else ""
            wanted = f"{who}x tp must divide the {self.num_heads} heads"
            yield Fault("context_parallel", f"{wanted} for all_to_all, got {both}")
        if self.experts is None:
            if e > 1:
                yield Fault("expert_parallel", f"must be 1 for a model without experts, got {e}")
            return
        loads, count = len(run.expert_loads), self.experts.num_experts
        if loads > 1 and loads != count:
            yield Fault("expert_loads", f"must be of all {count} experts, or one, got {loads}")
        if self.experts.num_experts % e:
            count = self.experts.num_experts
            yield Fault("expert_parallel", f"must divide the {count} experts, got {e}")
        if self.experts.ffn_size % x:
            name = "tensor_parallel" if run.expert_tensor_parallel is None else "expert_tensor"
            width = f"experts.ffn_size ({self.experts.ffn_size})"
            yield Fault(name, f"must divide {width}, got {x}")


# An encoder of images before the blocks of text
# ----------------------------------------------
# An image is cut into patches, which pass a stack of blocks of their own (each image attends to
# itself alone) and a projector; what comes out takes the place of some of the text's tokens. Of a
# microbatch of b sequences with n images each, the stack sees b·n sequences of as many tokens as an
# image has patches. Context parallelism cuts text, not images: every rank passes all of them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A matrix product of a projector, with the norm before or behind it and an activation.

    It sees the tokens that a tower gives, or its patches where they are not `merged` yet. The norm
    before is over `norm_width` features, which may be joined only behind it. A `gated` product is
    two beside each other. `repeats` are its rows for each of those tokens.
    """

    name: str
    inputs: int
    outputs: int
    bias: bool = True
    merged: bool = True
    norm: Norm | None = None
    norm_width: int | None = None
    norm_after: Norm | None = None
    activation: bool = False
    gated: bool = False
    repeats: int = field(default=1, metadata={RARE: True})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """Patches, the blocks of `stack`, a projector; sizes of one image.

    The first product turns `patch_features` numbers into the hidden size; `parameters` are those of
    the front beside it (a class token, positions, a norm) and behind the stack (a norm, pooling).
    `patches` go through the stack, `tokens` come out of the projector. Where images may have any
    size, `patch_pixels` is the side of a patch and `merge` that of the square of patches that
    become one token. `front` are products before the first one. A stack is `normed` where its own
    last norm is not among the `parameters`. An encoder of `words` has the text's embedding in place
    of patches, and as many tokens as the text.
    """

    name: str
    stack: TransformerConfig
    patch_features: int
    patches: int
    tokens: int
    patch_bias: bool = True
    parameters: int = 0
    projector: tuple[Projection, ...] = ()
    patch_pixels: int | None = None
    merge: int = 1
    front: tuple[Projection, ...] = field(default=(), metadata={RARE: True})
    normed: bool = field(default=False, metadata={RARE: True})
    words: bool = field(default=False, metadata={RARE: True})

    def faults(self) -> Iterator[Fault]:
        """Sizes that cannot be."""
        if not self.words:
            counts = ("patch_features", "patches", "tokens")
            yield from too_low(self, 1, *counts, under=f"{self.name}.")

    def at(self, length: int) -> Tower:
        """The same beside a text of so many tokens."""
        return replace(self, patches=length, tokens=length) if self.words else self

    def resized(self, pixels: int) -> Tower:
        """The same for square images of about `pixels` a side; itself where their size is fixed."""
        if self.patch_pixels is None:
            return self
        side = max(1, round(pixels / (self.patch_pixels * self.merge)))
        return replace(self, patches=(side * self.merge) ** 2, tokens=side**2)


_WHOLE_INPUT: Final = "blocks attend to the encoder's whole output on every device"
_POSITIVE = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_size",
    "ffn_size",
    "vocabulary_size",
)
