"""Families of an encoder and a decoder that attends to it: T5, BART and Whisper with their lines.

The decoder is the model; the encoder is its tower, over as many words as the text has (or over the
sound of a Whisper window), and both read one embedding. Defaults are those of the public
configuration classes of transformers 5, and so are ties: its T5 has no head of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from trainwright.errors import UnsupportedFeature
from trainwright.formats.hf_keys import (
    MAX_LAYERS,
    Fields,
    KeyReader,
    activation,
    stack,
    with_biases,
)
from trainwright.model import BlockChoice, Norm, Projection, Tower, TransformerConfig

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
    keys.pass_over("dense_act_fn", "is_gated_act", "tied_embeddings", "dropout_rate")
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
        "gated": act.startswith("gated-"),
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
