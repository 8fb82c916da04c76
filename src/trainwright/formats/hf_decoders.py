"""The language of rules for families of decoders: which keys, which defaults, what lies where.

A `Decoder` says what a family has; one function reads every family by it. Defaults are those of the
public configuration classes of transformers 5. A rule that a file may switch is a pair of its key
and what the family takes where the file is silent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from trainwright.errors import UnsupportedFeature
from trainwright.formats.hf_keys import (
    MAX_LAYERS,
    Fields,
    KeyReader,
    activation,
    rotary_decoder,
    stack,
    upper_windows,
    windows,
    with_biases,
)
from trainwright.model import (
    BlockChoice,
    Experts,
    Indexer,
    LatentAttention,
    Norm,
    Projection,
    Tower,
    TransformerConfig,
)

Switch = bool | tuple[str, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureRule:
    """Defaults of the keys that hold a family's experts, and which blocks have none.

    `width` is that of an expert (that of dense blocks where absent), `shared` the number of shared
    experts (where `shared_needed`, the class takes none for a dense block's), `shared_width` their
    whole width. Of some families each token visits so many experts `visited_anyway`. Dense are the
    first blocks that `first_dense` counts, or those that `dense` finds. Two may have another key.
    """

    num_experts: int
    visited: int = 1
    visited_anyway: int | None = None
    width: int | None = None
    shared: int | None = None
    shared_needed: bool = False
    shared_width: int | tuple[str, int] | None = None
    first_dense: int | tuple[str, int] | None = None
    dense: Callable[[KeyReader, int], tuple[int, ...]] | None = None
    router_bias: bool = False
    shared_gate: bool = False
    grouped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentRule:
    """Defaults of a family with latent attention; `query_rank` 0 where queries have none.

    `indexer` holds its heads, their size and the keys that it chooses.
    """

    query_rank: int
    key_value_rank: int
    rotary: int
    plain: int
    value: int | None = None
    indexer: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A family of decoders with rotary positions; see the fields of `TransformerConfig`.

    `window` is the default of `sliding_window`, 0 where the family has none unless a file says so;
    `full_at` tells of a block's index whether it attends in full where a file does not list it.
    With `plain_heads` a file cannot say how many heads keys have, or how wide a head is. A
    `head_size` of 0 is the hidden size over heads, rounded down; an `ffn` of 0 four times the
    hidden size. Flags that are `unknown` may not be set: what they add has no formula here.
    The output of attention has a bias where queries have one, unless told.
    `constants` are further fields that no key of a file changes; fields that the family calls by
    another key than others do are `spelled`.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    vocabulary: int
    kv_heads: int | None = None
    head_size: int | None = None
    activation: str = "silu"
    activation_key: str = "hidden_act"
    gated: bool = True
    plain_heads: bool = False
    tied: bool = False
    norm: Norm = Norm.RMS
    query_key_value_bias: Switch = False
    attention_output_bias: Switch | None = None
    mlp_bias: Switch = False
    head_bias: Switch = False
    query_key_norm: Switch = False
    parallel: Switch = False
    sandwich_norm: Switch = False
    window: int | None = None
    window_key: str = "sliding_window"
    full_at: Callable[[int], bool] | None = None
    switched_window: bool = False
    mixture: MixtureRule | None = None
    latent: LatentRule | None = None
    gate_attention: bool = False
    further: Switch = False
    ignored: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    spelled: dict[str, str] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)


def read_decoder(rule: Decoder, keys: KeyReader) -> Fields:
    """Fields of a file by the rule of its family; raises `UnsupportedFeature` by its flags."""
    keys.spell(rule.spelled)
    keys.pass_over(*rule.ignored)
    refuse_flags(keys, *rule.unknown)
    latent = None if rule.latent is None else _latent(keys, rule.latent, rule)
    own = rule.head_size if latent is None else latent.head_size
    if rule.activation_key != "hidden_act":
        keys.pass_over("hidden_act")
    fields = rotary_decoder(
        keys,
        layers=rule.layers,
        hidden=rule.hidden,
        ffn=rule.ffn or 4 * keys.count("hidden_size", rule.hidden),
        heads=rule.heads,
        kv_heads=rule.kv_heads,
        vocabulary=rule.vocabulary,
        head_size=own or _quotient(keys, rule),
        activation_name=rule.activation,
        tied=rule.tied,
    )
    if rule.plain_heads:
        fields["num_kv_heads"] = fields["num_heads"]
    if rule.head_size and latent is None:
        stated = keys.nullable_count("head_size", rule.head_size)
        fields["head_size"] = stated or max(1, fields["hidden_size"] // fields["num_heads"])
    if rule.activation_key != "hidden_act":
        keys.defaults.pop("hidden_act", None)
        fields["activation"] = activation(keys, rule.activation_key, rule.activation)
    if latent is not None:
        keys.pass_over("num_kv_heads", "head_size")
        fields |= {"latent": latent, "num_kv_heads": fields["num_heads"]}
    fields |= {"norm": rule.norm, "gated": rule.gated}
    for name in _SWITCHES:
        fields[name] = _switch(keys, getattr(rule, name))
    output = rule.attention_output_bias
    own_bias = rule.query_key_value_bias if output is None else output
    fields["attention_output_bias"] = _switch(keys, own_bias)
    if rule.switched_window:
        fields = upper_windows(keys, fields)
    elif rule.window is not None:
        fields = _windowed(keys, fields, rule)
    if rule.mixture is not None:
        fields["experts"] = _experts(keys, rule.mixture, fields)
    if rule.gate_attention:
        fields["attention_gate"] = fields["num_heads"] * fields["head_size"]
    if rule.further is not False:
        fields["num_mtp_layers"] = keys.natural(
            "num_nextn_predict_layers", int(_truth(rule.further))
        )
    fields |= rule.constants
    if fields.get("shared_norm") and not fields["parallel"]:
        fields["shared_norm"] = False
    return fields


def refuse_flags(keys: KeyReader, *names: str) -> None:
    """Raise `UnsupportedFeature` where a file sets one of them, so that others may count it."""
    for name in names:
        if keys.stated_flag(name):
            raise UnsupportedFeature(
                f"{keys.prefix}{name}: true is not modelled", alternative="files without it are"
            )
    keys.pass_over(*names)


def refuse_others(keys: KeyReader, built: Mapping[str, object], stated: Mapping[str, Any]) -> None:
    """Raise `UnsupportedFeature` where a file states another value than its class has `built` in.

    The classes pass such keys over, so that what they say is no size of theirs.
    """
    for name, value in stated.items():
        if value != built[name]:
            raise UnsupportedFeature(
                f"{keys.prefix}{name}: {str(value).lower()} is not modelled",
                alternative=f"the library's class has {str(built[name]).lower()}",
            )


def _quotient(keys: KeyReader, rule: Decoder) -> int | None:
    """Head size where it is hidden size over heads, rounded down as the library does."""
    if not rule.plain_heads and rule.head_size != 0:
        return None
    if rule.head_size == 0 and (stated := keys.optional_count("head_size")):
        return stated
    return max(1, keys.count("hidden_size", rule.hidden) // keys.count("num_heads", rule.heads))


_SWITCHES: Final = (
    "query_key_value_bias",
    "mlp_bias",
    "head_bias",
    "query_key_norm",
    "parallel",
    "sandwich_norm",
)


def _switch(keys: KeyReader, switch: Switch) -> bool:
    return switch if isinstance(switch, bool) else keys.flag(*switch)


def _truth(switch: Switch) -> bool:
    return switch if isinstance(switch, bool) else switch[1]


def _latent(keys: KeyReader, rule: LatentRule, family: Decoder) -> LatentAttention:
    if rule.query_rank:
        query = keys.nullable_count("q_lora_rank", rule.query_rank)
    else:
        query = keys.optional_count("q_lora_rank")
    keys.pass_over("qk_head_dim")
    hidden, heads = keys.count("hidden_size", family.hidden), keys.count("num_heads", family.heads)
    indexer = None
    if rule.indexer is not None:
        indexer = Indexer(
            num_heads=keys.count("index_n_heads", rule.indexer[0]),
            head_size=keys.count("index_head_dim", rule.indexer[1]),
            num_keys=keys.count("index_topk", rule.indexer[2]),
        )
    return LatentAttention(
        indexer=indexer,
        query_rank=query,
        key_value_rank=keys.count("kv_lora_rank", rule.key_value_rank),
        rotary_head_size=keys.count("qk_rope_head_dim", rule.rotary),
        plain_head_size=keys.count("qk_nope_head_dim", rule.plain),
        value_head_size=keys.count("v_head_dim", rule.value or hidden // heads),
    )


def _windowed(keys: KeyReader, fields: Fields, rule: Decoder) -> Fields:
    """Windows as a file lists them, else at the indices of the family's pattern."""
    if rule.window:
        window = keys.nullable_count(rule.window_key, rule.window)
    else:
        window = keys.optional_count(rule.window_key)
    found = windows(keys, fields, window=window)
    full_at = _pattern(keys) or rule.full_at
    if keys.states("layer_types") or full_at is None or window is None:
        return found
    full = tuple(i for i in range(fields["num_layers"]) if full_at(i))
    return found | {"full_attention_layers": full}


def _pattern(keys: KeyReader) -> Callable[[int], bool] | None:
    """Which blocks attend in full where a file gives a period, or a text with G at those."""
    for key in ("sliding_window_pattern", "global_attn_every_n_layers"):
        stated = keys.value(key, None)
        keys.defaults.pop(keys.prefix + keys.path_of(key), None)
        keys.defaults.pop(keys.path_of(key), None)
        if isinstance(stated, int) and stated > 0:
            return every(stated)
        if isinstance(stated, str) and stated:
            return partial(_is_full, stated)
    return None


def _is_full(letters: str, layer: int) -> bool:
    return letters[layer % len(letters)] == "G"


def every(count: int) -> Callable[[int], bool]:
    """The last of every so many."""
    return lambda layer: (layer + 1) % count == 0


def _named(stated: int | tuple[str, int], usual: str) -> tuple[str, int]:
    """A key and its default: the usual key, unless another is named."""
    return (usual, stated) if isinstance(stated, int) else stated


def _experts(keys: KeyReader, rule: MixtureRule, fields: Fields) -> Experts:
    width = (
        fields["ffn_size"]
        if rule.width is None
        else keys.count("moe_intermediate_size", rule.width)
    )
    shared = 0
    if rule.shared is not None:
        shared = width * keys.natural("num_shared_experts", rule.shared)
        if rule.shared_needed and not shared:
            raise UnsupportedFeature("num_shared_experts: 0 is not modelled")
    elif rule.shared_width is not None:
        name, usual = _named(rule.shared_width, "shared_expert_intermediate_size")
        shared = keys.natural(name, usual)
        if rule.shared_gate and not shared:  # a gate alone, that weighs nothing
            raise UnsupportedFeature(f"{name}: 0 is not modelled")
    first = 0
    if rule.first_dense is not None:
        first = keys.natural(*_named(rule.first_dense, "first_k_dense_replace"))
    dense: tuple[int, ...] = ()
    kinds = keys.optional_texts("mlp_layer_types")
    if keys.states("mlp_layer_types"):
        dense, first = tuple(i for i, kind in enumerate(kinds) if kind == "dense"), 0
    elif rule.dense is not None:
        dense = rule.dense(keys, fields["num_layers"])
    keys.pass_over("mlp_layer_types")
    num_experts = keys.count("num_experts", rule.num_experts)
    groups = (1, 1)
    if rule.grouped:
        groups = (keys.optional_count("n_group") or 1, keys.optional_count("topk_group") or 1)
    return Experts(
        num_experts=num_experts,
        experts_per_token=rule.visited_anyway or keys.count("num_experts_per_tok", rule.visited),
        ffn_size=width,
        shared_ffn_size=shared,
        num_dense_layers=min(first, fields["num_layers"]),
        dense_layers=tuple(i for i in dense if i < fields["num_layers"]),
        router_bias=rule.router_bias,
        shared_gate=rule.shared_gate,
        routed_bias=False,
        num_groups=groups[0],
        groups_per_token=groups[1],
    )


def dense_between(keys: KeyReader, num_layers: int) -> tuple[int, ...]:
    """Blocks without experts: those listed, and those that the sparse step passes over."""
    step = keys.count("decoder_sparse_step", 1)
    listed = set(keys.counts("mlp_only_layers", ()))
    if listed and max(listed) >= num_layers:
        keys.refuse("mlp_only_layers", f"must be in 0..{num_layers - 1}, got {max(listed)}")
        return ()
    return tuple(i for i in range(num_layers) if i in listed or (i + 1) % step)


# Families of an encoder and a decoder that attends to it: T5, BART and Whisper with their lines
# ----------------------------------------------------------------------------------------------
# The decoder is the model; the encoder is its tower, over as many words as the text has (or over
# the sound of a Whisper window), and both read one embedding. Defaults are those of the public
# configuration classes of transformers 5, and so are ties: its T5 has no head of its own.


# Generation and initialisation, which older files of these lines repeat.
_SILENT: Final = (
    *(
        "num_beams",
        "max_length",
        "min_length",
        "early_stopping",
        "length_penalty",
        "num_hidden_layers",
    ),
    *("no_repeat_ngram_size", "decoder_start_token_id", "scale_embedding", "normalize_before"),
    *("normalize_embedding", "add_final_layer_norm", "add_bias_logits", "initializer_factor"),
    *("static_position_embeddings", "extra_pos_embeddings", "encoder_layerdrop", "num_heads"),
    *("decoder_layerdrop", "relative_attention_max_distance", "forced_decoder_ids", "save_step"),
    *(
        "begin_suppress_tokens",
        "suppress_tokens",
        "force_bos_token_to_be_generated",
        "max_positions",
    ),
    *(
        "relative_attention_num_buckets",
        "num_labels",
        "tokenizer_class",
        "do_blenderbot_90_layernorm",
    ),
    *("median_filter_width", "use_weighted_layer_sum", "classifier_proj_size", "layernorm_variant"),
    *("decoder_attention_mask", "bad_words_ids", "extra_layer_norm", "gradient_checkpointing"),
)


def _both(keys: KeyReader, decoder: Fields, encoder: Fields, *, tower: Fields) -> Fields:
    """The decoder's fields, with the encoder as the tower that its blocks attend to."""
    own: dict[str, Any] = {**decoder, **encoder, "causal": False, "tied_embeddings": True}
    words: Fields = {"words": True, "patch_features": 0, "patches": 0, "tokens": 0}
    made = Tower(
        name="encoder", stack=TransformerConfig(family="encoder", **own), **(words | tower)
    )
    keys.pass_over(*_SILENT)
    return {**decoder, "crosses": True, "images": 1, "towers": (made,)}


# T5: scores of distances in the first block of each stack, or in every one (umT5)
# --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Distances:
    """Defaults of T5 and its line."""

    layers: int
    heads: int
    ffn: int
    vocabulary: int
    feed_forward: str
    everywhere: bool = False


def _read_t5(rule: _Distances, keys: KeyReader) -> Fields:
    sizes = stack(
        keys,
        layers=rule.layers,
        hidden=512,
        heads=rule.heads,
        vocabulary=rule.vocabulary,
        head_size=keys.count("d_kv", 64),
    )
    act = keys.text("feed_forward_proj", rule.feed_forward)
    keys.pass_over("dense_act_fn", "tied_embeddings", "dropout_rate")
    gated = act.startswith("gated-")
    if keys.states("is_gated_act"):
        gated = keys.flag("is_gated_act", gated)
    named = KeyReader({"feed_forward_proj": act.removeprefix("gated-")}, prefix=keys.prefix)
    kind = activation(named, "feed_forward_proj", "relu")
    keys.faults += named.faults
    dropout = keys.fraction("dropout_rate", 0.1)
    buckets = keys.count("relative_attention_num_buckets", 32)
    both: Fields = {
        **sizes,
        "ffn_size": keys.count("d_ff", rule.ffn),
        "norm": Norm.RMS,
        "activation": kind,
        "gated": gated,
        "tied_embeddings": True,
        "hidden_dropout": dropout,
        "attention_dropout": dropout,
    }
    further = keys.optional_count("num_decoder_layers") or sizes["num_layers"]

    def scored(layers: int) -> Fields:
        if rule.everywhere:
            return {"num_layers": layers, "relative_buckets": buckets}
        kinds = (BlockChoice(relative_buckets=buckets), BlockChoice())
        order = (0, *(1 for _ in range(layers - 1)))
        return {"num_layers": layers, "choices": kinds, "choice_of_layer": order}

    decoder = both | scored(min(further, MAX_LAYERS))
    return _both(keys, decoder, scored(sizes["num_layers"]), tower={"normed": True})


# BART: layer norms and biases, a table of positions for each stack
# -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Biased:
    """Defaults of BART and its line.

    Norms stand before the halves of a block, and behind the last one, where the line `norms_first`;
    `offset` are rows that a table of positions has more, None where there is no table.
    """

    layers: tuple[int, int] = (12, 12)
    hidden: int = 1024
    heads: int = 16
    ffn: int = 4096
    vocabulary: int = 50265
    positions: int = 1024
    offset: int | None = 0
    activation: str = "gelu"
    norms_first: bool = False
    embedding_norm: bool = False
    dropout: float = 0.1
    attention_dropout: float = 0.0


def _stacks(keys: KeyReader, rule: _Biased) -> tuple[Fields, Fields]:
    """Decoder and encoder, with what they have in common."""
    hidden = keys.count("hidden_size", rule.hidden)
    common: Fields = {
        "hidden_size": hidden,
        "vocabulary_size": keys.count("vocabulary_size", rule.vocabulary),
        **with_biases(),
        "activation": activation(keys, "activation_function", rule.activation),
        "pre_norm": rule.norms_first,
        "final_norm": rule.norms_first,
        "embedding_norm": rule.embedding_norm,
        "hidden_dropout": keys.fraction("hidden_dropout", rule.dropout),
        "attention_dropout": keys.fraction("attention_dropout", rule.attention_dropout),
        "tied_embeddings": keys.flag("tied_embeddings", True),
    }
    found = []
    for name, layers in zip(("encoder", "decoder"), rule.layers, strict=True):
        heads = keys.count(f"{name}_attention_heads", rule.heads)
        if hidden % heads:
            keys.refuse("hidden_size", f"must be a multiple of the {heads} heads, got {hidden}")
        found.append(
            common
            | {
                "num_layers": keys.count(f"{name}_layers", layers, most=MAX_LAYERS),
                "num_heads": heads,
                "num_kv_heads": heads,
                "head_size": max(1, hidden // heads),
                "ffn_size": keys.count(f"{name}_ffn_dim", rule.ffn),
            }
        )
    return found[1], found[0]


def _read_bart(rule: _Biased, keys: KeyReader) -> Fields:
    shared = keys.states("share_encoder_decoder_embeddings")
    if shared and not keys.flag("share_encoder_decoder_embeddings", True):
        raise UnsupportedFeature("share_encoder_decoder_embeddings: false is not modelled")
    decoder, encoder = _stacks(keys, rule)
    if not decoder["tied_embeddings"]:  # both stacks then have words of their own as well
        raise UnsupportedFeature("tie_word_embeddings: false is not modelled of two stacks")
    words = keys.optional_count("decoder_vocab_size") or decoder["vocabulary_size"]
    if words != decoder["vocabulary_size"]:
        raise UnsupportedFeature("a decoder_vocab_size of its own is not modelled")
    if rule.offset is not None:
        rows = keys.count("max_positions", rule.positions) + rule.offset
        decoder, encoder = decoder | {"max_positions": rows}, encoder | {"max_positions": rows}
    return _both(keys, decoder, encoder, tower={"normed": rule.norms_first})


# Whisper: two convolutions over a window of sound, keys without bias
# -------------------------------------------------------------------

_WHISPER: Final = _Biased(
    layers=(4, 4),
    hidden=384,
    heads=6,
    ffn=1536,
    vocabulary=51865,
    norms_first=True,
    dropout=0.0,
)
_TAPS: Final = 3  # of either convolution; the second halves the rows


def sound_front(keys: KeyReader, *, hidden: int, bins: int) -> Fields:
    """Of a tower over a window of sound: what comes before its blocks, and how many rows it has."""
    rows = keys.count("max_source_positions", 1500)
    first = Projection(
        name="convolution",
        inputs=_TAPS * keys.count("num_mel_bins", bins),
        outputs=hidden,
        activation=True,
        repeats=2,
    )
    return {
        "front": (first,),
        "patch_features": _TAPS * hidden,
        "patches": rows,
        "tokens": rows,
        "parameters": rows * hidden,
        "normed": True,
    }


def _read_whisper(keys: KeyReader) -> Fields:
    decoder, encoder = _stacks(keys, _WHISPER)
    hidden = decoder["hidden_size"]
    unread = [key for key in keys.unread if key.startswith(("mask_", "apply_spec"))]
    keys.pass_over(*unread)
    tower = {"words": False, **sound_front(keys, hidden=hidden, bins=80)}
    plain = {"key_bias": False, "max_positions": keys.count("max_target_positions", 448)}
    return _both(keys, decoder | plain, encoder | {"key_bias": False}, tower=tower)


# Which classes of these families have both stacks
# ------------------------------------------------

_WITH_HEAD: Final = ("ForConditionalGeneration", "MTModel", "WithLMHeadModel")


def has_head(architecture: str) -> bool:
    """Whether a class of these families predicts words; raises for one without both stacks."""
    if not architecture or architecture.endswith(_WITH_HEAD):
        return True
    if architecture.endswith("Model") and not architecture.endswith("EncoderModel"):
        return False
    raise UnsupportedFeature(
        f'architectures: "{architecture}" is not modelled',
        alternative="of encoder-decoders only classes that predict words are, and bare models",
    )


_T5: Final = {
    "t5": _Distances(layers=6, heads=8, ffn=2048, vocabulary=32128, feed_forward="relu"),
    "mt5": _Distances(layers=8, heads=6, ffn=1024, vocabulary=250112, feed_forward="gated-gelu"),
    "umt5": _Distances(
        layers=8,
        heads=6,
        ffn=1024,
        vocabulary=250112,
        feed_forward="gated-gelu",
        everywhere=True,
    ),
}
_BART: Final = {
    "bart": _Biased(offset=2, embedding_norm=True),
    "mbart": _Biased(offset=2, embedding_norm=True, norms_first=True),
    "plbart": _Biased(
        layers=(6, 6),
        hidden=768,
        heads=12,
        ffn=3072,
        vocabulary=50005,
        offset=2,
        embedding_norm=True,
        attention_dropout=0.1,
    ),
    "pegasus": _Biased(norms_first=True),
    "marian": _Biased(vocabulary=58101),
    "m2m_100": _Biased(
        vocabulary=128112,
        offset=None,
        activation="relu",
        norms_first=True,
        attention_dropout=0.1,
    ),
    "blenderbot": _Biased(
        layers=(2, 24),
        hidden=2560,
        heads=32,
        ffn=10240,
        vocabulary=8008,
        positions=128,
        norms_first=True,
    ),
    "blenderbot-small": _Biased(
        layers=(8, 8), hidden=512, ffn=2048, positions=512, embedding_norm=True
    ),
}
ENCODER_DECODERS: Final[dict[str, Callable[[KeyReader], Fields]]] = {
    **{name: partial(_read_t5, rule) for name, rule in _T5.items()},
    **{name: partial(_read_bart, rule) for name, rule in _BART.items()},
    "whisper": _read_whisper,
}
