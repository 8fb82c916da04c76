"""What several model families read alike from their `config.json`.

Every function leaves faults and defaults in the reader and returns fields of `TransformerConfig`.
"""

from __future__ import annotations

from typing import Any, Final

from trainwright.formats.hf_keys import KeyReader
from trainwright.model import Activation, Norm

Fields = dict[str, Any]

MAX_LAYERS: Final = 10_000

_ACTIVATIONS: Final = {
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU,
    "gelu_fast": Activation.GELU,
    "gelu_pytorch_tanh": Activation.GELU,
    "relu": Activation.RELU,
    "quick_gelu": Activation.GELU,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "relu2": Activation.SQUARED_RELU,
}


def activation(keys: KeyReader, field: str, default: str) -> Activation:
    """The activation under `field`."""
    name = keys.text(field, default)
    if name not in _ACTIVATIONS:
        keys.refuse(field, f'must be one of {", ".join(_ACTIVATIONS)}, got "{name}"')
        return Activation.GELU
    return _ACTIVATIONS[name]


def stack(
    keys: KeyReader,
    *,
    layers: int,
    hidden: int,
    heads: int,
    vocabulary: int,
    head_size: int | None = None,
) -> Fields:
    """The sizes that every family has; heads must divide the hidden size unless given a size."""
    before = len(keys.faults)
    hidden_size, num_heads = keys.count("hidden_size", hidden), keys.count("num_heads", heads)
    are_counts = len(keys.faults) == before
    stated = keys.optional_count("head_size")
    head_size = stated if head_size is None else head_size
    if head_size is None and are_counts and hidden_size % num_heads:
        keys.refuse(
            "hidden_size", f"must be a multiple of the {num_heads} heads, got {hidden_size}"
        )
    return {
        "num_layers": keys.count("num_layers", layers, most=MAX_LAYERS),
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "num_kv_heads": num_heads,
        "head_size": head_size or max(1, hidden_size // num_heads),
        "vocabulary_size": keys.count("vocabulary_size", vocabulary),
    }


def with_biases() -> Fields:
    """Layer norms, and a bias on every product, as in GPT-2."""
    return {
        "norm": Norm.LAYER,
        "query_key_value_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
    }


def rotary_decoder(
    keys: KeyReader,
    *,
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    kv_heads: int | None,
    vocabulary: int,
    head_size: int | None = None,
    activation_name: str = "silu",
    tied: bool = False,
) -> Fields:
    """What Llama and its relatives share: RMS norms, rotary positions, a gated feed-forward."""
    sizes = stack(
        keys,
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=vocabulary,
        head_size=head_size,
    )
    default = sizes["num_heads"] if kv_heads is None else kv_heads
    sizes["num_kv_heads"] = keys.count("num_kv_heads", default)
    keys.optional_count("max_positions")
    return {
        **sizes,
        "ffn_size": keys.count("ffn_size", ffn),
        "norm": Norm.RMS,
        "activation": activation(keys, "hidden_act", activation_name),
        "gated": True,
        "rotary": True,
        "tied_embeddings": keys.flag("tied_embeddings", tied),
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
    }


def windows(keys: KeyReader, fields: Fields, *, window: int | None) -> Fields:
    """Which blocks attend within `window`: those of `layer_types`, all where it is silent."""
    kinds = keys.optional_texts("layer_types")
    num_layers = fields["num_layers"]
    if kinds and len(kinds) != num_layers:
        keys.refuse(
            "layer_types", f"must have one entry per layer ({num_layers}), got {len(kinds)}"
        )
        return fields
    if unknown := sorted(set(kinds) - {"full_attention", "sliding_attention"}):
        keys.refuse("layer_types", f"must be full_attention or sliding_attention, got {unknown[0]}")
    if window is None:
        if "sliding_attention" in kinds:
            keys.refuse("sliding_window", "must be given where layer_types has sliding_attention")
        return fields
    full = tuple(i for i, kind in enumerate(kinds) if kind == "full_attention")
    if len(full) == num_layers:
        return fields
    return {**fields, "sliding_window": window, "full_attention_layers": full}


def upper_windows(keys: KeyReader, decoder: Fields) -> Fields:
    """Qwen's window, where it is used: from block `max_window_layers` on, or as listed."""
    if not keys.flag("use_sliding_window", False):
        keys.pass_over("sliding_window", "max_window_layers", "layer_types")
        return decoder
    window = keys.optional_count("sliding_window")
    below = keys.optional_count("max_window_layers") or 0
    fields = windows(keys, decoder, window=window)
    if window is None or keys.states("layer_types"):
        return fields
    return fields | {"full_attention_layers": tuple(range(min(below, decoder["num_layers"])))}
