"""DeepSeek-V2, DeepSeek-V3 and Kimi-K2: latent attention, shared experts, dense first blocks.

Where a file is silent it takes the sizes of the model that the family is named after; its groups
of experts only where it has as many experts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainwright.formats.hf_keys import KeyReader
from trainwright.formats.hf_parts import Fields, rotary_decoder
from trainwright.model import Experts, LatentAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeepSeekDefaults:
    """What a DeepSeek-like family takes where its file is silent."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    vocabulary: int
    num_experts: int
    experts_per_token: int
    expert_ffn: int
    num_shared: int
    num_dense: int
    num_mtp: int
    num_groups: int
    groups_per_token: int


_V2 = _DeepSeekDefaults(
    layers=60,
    hidden=5120,
    ffn=12288,
    heads=128,
    vocabulary=102400,
    num_experts=160,
    experts_per_token=6,
    expert_ffn=1536,
    num_shared=2,
    num_dense=1,
    num_mtp=0,
    num_groups=8,
    groups_per_token=3,
)
_V3 = _DeepSeekDefaults(
    layers=61,
    hidden=7168,
    ffn=18432,
    heads=128,
    vocabulary=129280,
    num_experts=256,
    experts_per_token=8,
    expert_ffn=2048,
    num_shared=1,
    num_dense=3,
    num_mtp=1,
    num_groups=8,
    groups_per_token=4,
)
_K2 = replace(
    _V3,
    heads=64,
    vocabulary=163840,
    num_experts=384,
    num_dense=1,
    num_mtp=0,
    num_groups=1,
    groups_per_token=1,
)


def read_deepseek_v2(keys: KeyReader) -> Fields:
    """Fields of a `deepseek_v2` config, with the defaults of DeepSeek-V2 itself."""
    return _deepseek(keys, _V2)


def read_deepseek_v3(keys: KeyReader) -> Fields:
    """Fields of a `deepseek_v3` config; its routing biases are buffers, not parameters."""
    return _deepseek(keys, _V3)


def read_kimi_k2(keys: KeyReader) -> Fields:
    """Fields of a `kimi_k2` config: DeepSeek-V3 with other sizes."""
    return _deepseek(keys, _K2)


def _deepseek(keys: KeyReader, defaults: _DeepSeekDefaults) -> Fields:
    """Latent attention, dense first blocks, shared experts, further predicted tokens."""
    keys.prefer(num_experts="n_routed_experts")
    latent = LatentAttention(
        query_rank=keys.nullable_count("q_lora_rank", 1536),
        key_value_rank=keys.count("kv_lora_rank", 512),
        rotary_head_size=keys.count("qk_rope_head_dim", 64),
        plain_head_size=keys.count("qk_nope_head_dim", 128),
        value_head_size=keys.count("v_head_dim", 128),
    )
    decoder = rotary_decoder(
        keys,
        layers=defaults.layers,
        hidden=defaults.hidden,
        ffn=defaults.ffn,
        heads=defaults.heads,
        kv_heads=None,
        vocabulary=defaults.vocabulary,
        head_size=latent.head_size,
    )
    if (freq := keys.count("moe_layer_freq", 1)) != 1:
        keys.refuse("moe_layer_freq", f"must be 1 (every later block a mixture), got {freq}")
    width = keys.count("moe_intermediate_size", defaults.expert_ffn)
    num_experts = keys.count("num_experts", defaults.num_experts)
    groups = _groups(keys, defaults if num_experts == defaults.num_experts else None)
    experts = Experts(
        num_experts=num_experts,
        experts_per_token=keys.count("num_experts_per_tok", defaults.experts_per_token),
        ffn_size=width,
        shared_ffn_size=width * keys.natural("n_shared_experts", defaults.num_shared),
        num_dense_layers=keys.natural("first_k_dense_replace", defaults.num_dense),
        num_groups=groups[0],
        groups_per_token=groups[1],
    )
    bias = keys.flag("attention_bias", False)
    return {
        **decoder,
        "latent": latent,
        "experts": experts,
        "query_key_value_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": keys.states("mlp_bias") and keys.flag("mlp_bias", False),
        "num_mtp_layers": keys.natural("num_nextn_predict_layers", defaults.num_mtp),
    }


def _groups(keys: KeyReader, defaults: _DeepSeekDefaults | None) -> tuple[int, int]:
    """Groups of experts, and how many of them a token uses; one of one without a limit."""
    own = (1, 1) if defaults is None else (defaults.num_groups, defaults.groups_per_token)
    pair = zip(("n_group", "topk_group"), own, strict=True)
    count, used = (keys.nullable_count(name, default) or 1 for name, default in pair)
    if keys.states("topk_method") and keys.text("topk_method", "") == "greedy":
        return 1, 1  # DeepSeek-V2's own word for routing that passes groups over
    return count, used
