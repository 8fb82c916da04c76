"""Dense decoders with RMS norms and rotary positions: Llama, Mistral, Qwen2, Qwen3, Phi-3, Granite.

Defaults are those of the public configuration classes (transformers 4.x).
"""

from __future__ import annotations

from trainwright.formats.hf_keys import KeyReader
from trainwright.formats.hf_parts import Fields, rotary_decoder, upper_windows, windows


def read_llama(keys: KeyReader) -> Fields:
    """Fields of a `llama` config."""
    bias = keys.flag("attention_bias", False)
    decoder = rotary_decoder(
        keys, layers=32, hidden=4096, ffn=11008, heads=32, kv_heads=None, vocabulary=32000
    )
    return {
        **decoder,
        "query_key_value_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": keys.flag("mlp_bias", False),
    }


def read_mistral(keys: KeyReader) -> Fields:
    """Fields of a `mistral` config."""
    decoder = rotary_decoder(
        keys, layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocabulary=32000
    )
    return windows(keys, decoder, window=keys.optional_count("sliding_window"))


def read_qwen2(keys: KeyReader) -> Fields:
    """Fields of a `qwen2` config."""
    decoder = rotary_decoder(
        keys, layers=32, hidden=4096, ffn=22016, heads=32, kv_heads=32, vocabulary=151936
    )
    return {**upper_windows(keys, decoder), "query_key_value_bias": True}


def read_qwen3(keys: KeyReader) -> Fields:
    """Fields of a `qwen3` config."""
    bias = keys.flag("attention_bias", False)
    decoder = rotary_decoder(
        keys, layers=32, hidden=4096, ffn=22016, heads=32, kv_heads=32, vocabulary=151936
    )
    return {
        **upper_windows(keys, decoder),
        "head_size": keys.count("head_size", 128),
        "query_key_norm": True,
        "query_key_value_bias": bias,
        "attention_output_bias": bias,
    }


def read_phi3(keys: KeyReader) -> Fields:
    """Fields of a `phi3` config (Phi-3 and Phi-4): products fused, a window where one is given."""
    keys.pass_over("original_max_position_embeddings", "embedding_dropout")
    decoder = rotary_decoder(
        keys, layers=32, hidden=3072, ffn=8192, heads=32, kv_heads=None, vocabulary=32064
    )
    fields = windows(keys, decoder, window=keys.optional_count("sliding_window"))
    return {**fields, "hidden_dropout": keys.fraction("hidden_dropout", 0.0)}


def read_granite(keys: KeyReader) -> Fields:
    """Fields of a `granite` config: Llama with four constant factors, which cost nothing."""
    keys.pass_over("embedding_multiplier", "attention_multiplier")
    keys.pass_over("residual_multiplier", "logits_scaling")
    return read_llama(keys)
