"""Decoders with experts: Mixtral, Qwen2-MoE, Qwen3-MoE, GPT-OSS, Grok-1.

Defaults are those of the public configuration classes (transformers 4.x).
"""

from __future__ import annotations

from trainwright.formats.hf_keys import KeyReader
from trainwright.formats.hf_parts import Fields, rotary_decoder, upper_windows, windows
from trainwright.model import Experts


def read_mixtral(keys: KeyReader) -> Fields:
    """Fields of a `mixtral` config."""
    keys.prefer(num_experts="num_local_experts")
    decoder = rotary_decoder(
        keys, layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocabulary=32000
    )
    experts = Experts(
        num_experts=keys.count("num_experts", 8),
        experts_per_token=keys.count("num_experts_per_tok", 2),
        ffn_size=decoder["ffn_size"],
    )
    fields = windows(keys, decoder, window=keys.optional_count("sliding_window"))
    return {**fields, "experts": experts}


def read_qwen3_moe(keys: KeyReader) -> Fields:
    """Fields of a `qwen3_moe` config."""
    decoder = rotary_decoder(
        keys, layers=24, hidden=2048, ffn=6144, heads=32, kv_heads=4, vocabulary=151936
    )
    experts = Experts(
        num_experts=keys.count("num_experts", 128),
        experts_per_token=keys.count("num_experts_per_tok", 8),
        ffn_size=keys.count("moe_intermediate_size", 768),
        dense_layers=_dense_between(keys, decoder["num_layers"]),
    )
    return {
        **upper_windows(keys, decoder),
        "head_size": keys.count("head_size", 128),
        "query_key_norm": True,
        "query_key_value_bias": keys.flag("attention_bias", False),
        "experts": experts,
    }


def read_qwen2_moe(keys: KeyReader) -> Fields:
    """Fields of a `qwen2_moe` config: biased queries and keys, a gated shared expert."""
    decoder = rotary_decoder(
        keys, layers=24, hidden=2048, ffn=5632, heads=16, kv_heads=16, vocabulary=151936
    )
    experts = Experts(
        num_experts=keys.count("num_experts", 60),
        experts_per_token=keys.count("num_experts_per_tok", 4),
        ffn_size=keys.count("moe_intermediate_size", 1408),
        shared_ffn_size=keys.count("shared_expert_intermediate_size", 5632),
        shared_gate=True,
        dense_layers=_dense_between(keys, decoder["num_layers"]),
    )
    bias = keys.flag("qkv_bias", True)
    return {**upper_windows(keys, decoder), "query_key_value_bias": bias, "experts": experts}


def _dense_between(keys: KeyReader, num_layers: int) -> tuple[int, ...]:
    """Blocks without experts: those listed, and those that the sparse step passes over."""
    step = keys.count("decoder_sparse_step", 1)
    listed = set(keys.counts("mlp_only_layers", ()))
    if listed and max(listed) >= num_layers:
        keys.refuse("mlp_only_layers", f"must be in 0..{num_layers - 1}, got {max(listed)}")
        return ()
    return tuple(i for i in range(num_layers) if i in listed or (i + 1) % step)


def read_gpt_oss(keys: KeyReader) -> Fields:
    """Fields of a `gpt_oss` config: sinks, biases everywhere, a window in every other block."""
    keys.prefer(num_experts="num_local_experts")
    decoder = rotary_decoder(
        keys, layers=36, hidden=2880, ffn=2880, heads=64, kv_heads=8, vocabulary=201088
    )
    num_layers = decoder["num_layers"]
    experts = Experts(
        num_experts=keys.count("num_experts", 128),
        experts_per_token=keys.count("num_experts_per_tok", 4),
        ffn_size=decoder["ffn_size"],
        router_bias=True,
    )
    bias = keys.flag("attention_bias", True)
    fields = windows(keys, decoder, window=keys.count("sliding_window", 128))
    if not fields.get("full_attention_layers") and not keys.states("layer_types"):
        fields["full_attention_layers"] = tuple(range(1, num_layers, 2))
    return {
        **fields,
        "head_size": keys.count("head_size", 64),
        "query_key_value_bias": bias,
        "attention_output_bias": bias,
        "attention_sinks": True,
        "mlp_bias": True,
        "experts": experts,
    }


def read_grok(keys: KeyReader) -> Fields:
    """Fields of a `grok-1` config: every block a mixture, four norms around its halves."""
    decoder = rotary_decoder(
        keys,
        layers=64,
        hidden=6144,
        ffn=32768,
        heads=48,
        kv_heads=8,
        vocabulary=131072,
        tied=True,
        activation_name="gelu",
    )
    experts = Experts(
        num_experts=keys.count("num_experts", 8),
        experts_per_token=keys.count("num_experts_per_tok", 2),
        ffn_size=decoder["ffn_size"],
    )
    return {**decoder, "sandwich_norm": True, "experts": experts}
