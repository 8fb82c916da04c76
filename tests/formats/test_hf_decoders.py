"""Rules of decoder families: what each reads, and the library's own count of the same file."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import trainwright
from random_cases import every_third
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats.document_json import decode, encode
from trainwright.formats.hf_config import read_config
from trainwright.formats.hf_decoder_rules import DECODERS
from trainwright.formats.hf_families import BERTS
from trainwright.formats.hf_hybrids import HYBRIDS
from trainwright.formats.hf_uneven_decoders import OTHER_DECODERS
from trainwright.model import (
    ContextExchange,
    RunShape,
    TransformerConfig,
    count_parameters,
    layer_graph,
)
from trainwright.model.attention import attended_pairs

SMALL: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 192,
    "vocab_size": 300,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


# Where a family's own class has other keys, or cannot take a head size that is not the quotient.
OWN: dict[str, dict[str, Any]] = {
    "gptj": {"n_embd": 128, "n_layer": 8, "n_head": 8, "vocab_size": 300},
    "glm4_moe": SMALL | {"n_routed_experts": 8, "moe_intermediate_size": 64},
    "phimoe": SMALL | {"num_local_experts": 8},
    "llama4_text": SMALL | {"num_local_experts": 8},
    "mimo_v2_flash": SMALL | {"n_routed_experts": 8, "moe_intermediate_size": 64},
    "helium": SMALL | {"head_dim": 16},
    "ministral": SMALL | {"head_dim": 16},
    "hunyuan_v1_moe": SMALL | {"head_dim": 16, "num_experts": 8, "moe_topk": [2] * 8},
    "laguna": SMALL | EXPERTS | {"head_dim": 16, "num_attention_heads_per_layer": [8, 4] * 4},
    "falcon": SMALL | {"num_kv_heads": 2, "new_decoder_architecture": True},
    "gpt_bigcode": {"n_embd": 128, "n_layer": 8, "n_head": 8, "vocab_size": 300},
    "codegen": {"n_embd": 128, "n_layer": 8, "n_head": 8, "vocab_size": 300},
    "glm4_moe_lite": SMALL | {"n_routed_experts": 8, "moe_intermediate_size": 64},
    "mistral4": SMALL | {"n_routed_experts": 8, "moe_intermediate_size": 64},
    "dbrx": {"d_model": 128, "n_layers": 8, "n_heads": 8, "attn_config": {"rope_theta": 1e4}},
    "lfm2_moe": SMALL | EXPERTS | {"layer_types": ["conv", "full_attention"] * 4},
    "solar_open": SMALL | {"n_routed_experts": 8, "moe_intermediate_size": 64},
    "sarvam_moe": SMALL | {"n_routed_experts": 8, "moe_intermediate_size": 64},
    "cohere2_moe": SMALL | EXPERTS | {"first_k_dense_replace": 2, "rms_norm_eps": 1e-6},
}


def parameters(kind: str, **stated: Any) -> int:
    return count_parameters(read_config({"model_type": kind, **SMALL, **stated}, name="x").config)


def test_a_null_is_what_follows_from_other_sizes_and_no_silence() -> None:
    as_many = parameters("smollm3", num_key_value_heads=8)
    assert parameters("smollm3", num_key_value_heads=None) == as_many
    narrow = parameters("ernie4_5", head_dim=16)
    assert parameters("ernie4_5", head_dim=None) == narrow
    assert parameters("ernie4_5") == parameters("ernie4_5", head_dim=128) > narrow


NOT_BUILT: list[dict[str, Any]] = [
    {"model_type": "mpt", "expansion_ratio": 3},
    {"model_type": "mpt", "no_bias": False},
    {"model_type": "mpt", "attn_config": {"alibi": False}},
    {"model_type": "helium", "head_dim": 64},
    {"model_type": "nemotron_h", "attention_bias": True},
    {"model_type": "nemotron_h", "tie_word_embeddings": True},
    {"model_type": "kimi_linear", "tie_word_embeddings": True},
    {"model_type": "deepseek_v4", "n_shared_experts": 2},
    {"model_type": "hy_v3", "num_shared_experts": 0},
]


@pytest.mark.parametrize("document", NOT_BUILT, ids=lambda each: " ".join(map(str, each)))
def test_sizes_that_the_class_does_not_build_are_not_read_as_if_it_did(document) -> None:
    with pytest.raises(UnsupportedFeature, match="is not modelled"):
        read_config(document, name="x")


def test_a_kind_of_layer_of_another_family_is_refused() -> None:
    for kind, other in (("qwen3_next", "conv"), ("minimax", "mamba"), ("lfm2", "mamba")):
        with pytest.raises(InvalidInput, match=f"layer_types: must be .*, got {other}"):
            parameters(kind, layer_types=[other] * 8)


def test_text_behind_images_takes_what_its_own_class_does() -> None:
    def text(kind: str, **stated: Any) -> TransformerConfig:
        document = {"model_type": kind, "text_config": stated, "vision_config": {}}
        return read_config(document, name="x").config

    assert text("qwen2_5_vl").hidden_size == 8192
    assert text("qwen3_vl_moe", num_experts=32).experts.experts_per_token == 4
    sound = {"model_type": "voxtral", "text_config": {"num_hidden_layers": 2}, "audio_config": {}}
    assert read_config(sound, name="x").config.vocabulary_size == 131072
    assert text("glm4v_moe").query_key_value_bias
    assert not text("glm4v_moe", attention_bias=False).query_key_value_bias


@pytest.mark.parametrize("ratio", [2.0, 0, "half"])
def test_patches_are_merged_by_a_share_of_a_side(ratio: object) -> None:
    document = {"model_type": "internvl", "text_config": {}, "downsample_ratio": ratio}
    with pytest.raises(InvalidInput, match=r"downsample_ratio: must be a number in \(0, 1\]"):
        read_config(document, name="x")


def test_an_untied_head_of_bert_has_a_bias_beside_that_of_its_transform() -> None:
    own = parameters("bert", tie_word_embeddings=False) - parameters("bert")
    assert own == 300 * 128 + 300


def test_norms_without_weights_leave_none() -> None:
    assert parameters("olmo2") - parameters("olmo") == 8 * (2 * 128 + 128 + 32) + 128


def test_one_norm_serves_both_halves_of_a_parallel_block() -> None:
    two = parameters("stablelm", use_parallel_residual=False)
    assert two - parameters("stablelm", use_parallel_residual=True) == 8 * 2 * 128


def test_a_gate_on_attention_has_a_column_per_feature() -> None:
    gated = {"head_dim": 16, "layer_types": ["full_attention"] * 8}
    found = parameters("qwen3_5_text", **gated)
    assert found - parameters("qwen3", **gated) == 8 * 128 * 8 * 16


def test_biases_are_those_of_the_products_that_have_some() -> None:
    sizes = {"n_routed_experts": 8, "moe_intermediate_size": 64, "first_k_dense_replace": 1}
    sizes |= {"num_key_value_heads": 8, "n_group": 1, "topk_group": 1}
    plain = parameters("deepseek_v3", **sizes)
    dense, shared = 2 * 192 + 128, 2 * 64 + 128  # none of a routed expert
    biased = parameters("deepseek_v3", mlp_bias=True, **sizes)
    assert biased - plain == dense + 7 * shared
    heads = [
        parameters("ernie4_5_moe", vocab_size=words, use_bias=True)
        - parameters("ernie4_5_moe", vocab_size=words)
        for words in (300, 400)
    ]
    assert heads[1] - heads[0] == 100  # the tied head has one, too
    attention = 128 + 2 * 32 + 128
    assert parameters("exaone", attention_bias=True) - parameters("exaone") == 8 * attention


def test_mamba_2_is_counted_by_hand() -> None:
    sizes = {
        "expand": 2,
        "num_attention_heads": None,
        "num_heads": 4,
        "head_dim": 64,
        "state_size": 16,
        "n_groups": 2,
    }
    inner, channels = 256, 256 + 2 * 2 * 16
    block = 128 * (inner + channels + 4) + channels * 5 + 3 * 4 + inner + inner * 128 + 128
    assert parameters("mamba2", **sizes) == 2 * 300 * 128 + 8 * block + 128


def test_mamba_2_has_as_many_heads_as_its_width_has_of_their_size() -> None:
    sizes = {"expand": 2, "num_attention_heads": None, "head_dim": 64, "state_size": 16}
    assert parameters("mamba2", **sizes) == parameters("mamba2", num_heads=4, **sizes)
    assert parameters("mamba2", **{**sizes, "head_dim": 32}) != parameters("mamba2", **sizes)


FLA = {"model_type": "transformer", "hidden_size": 256, "num_hidden_layers": 3, "num_heads": 4,
       "vocab_size": 300, "hidden_ratio": 4, "intermediate_size": None}  # fmt: skip


@pytest.mark.parametrize(
    ("stated", "more"),
    [
        ({}, 0),
        ({"num_kv_heads": 2}, -3 * 2 * 256 * 128),
        ({"qkv_bias": True}, 3 * 3 * 256),
        ({"qk_norm": True}, 3 * 2 * 64),
        ({"intermediate_size": 512}, -3 * 3 * 256 * 256),
        ({"tie_word_embeddings": True}, -300 * 256),
    ],
)
def test_a_plain_decoder_of_flash_linear_attention_is_counted_by_hand(
    stated: dict[str, object], more: int
) -> None:
    block = 4 * 256 * 256 + 3 * 256 * 768 + 2 * 256  # 256 * 8 / 3 as a multiple of 256
    model = read_config({**FLA, **stated}, name="x").config
    assert count_parameters(model) == 3 * block + 256 + 2 * 300 * 256 + more


def test_a_gated_delta_net_is_counted_by_hand() -> None:
    stated = {**FLA, "model_type": "gated_deltanet", "head_dim": 32, "expand_v": 2}
    keys, values = 4 * 32, 4 * 64
    made = 256 * (2 * keys + 2 * values + 2 * 4) + 4 * (2 * keys + values) + values * 256
    mixer = made + 2 * 4 + 64  # decays, and a norm over the values of a head
    rest = 3 * 256 * 768 + 2 * 256
    whole = read_config(stated, name="x").config
    assert count_parameters(whole) == 3 * (mixer + rest) + 256 + 2 * 300 * 256
    attends = {"layers": [1], "num_heads": 8, "num_kv_heads": 2, "window_size": 64}
    mixed = read_config({**stated, "attn": attends}, name="x").config
    attention = 2 * 256 * 256 + 2 * 256 * 2 * 32
    assert count_parameters(mixed) - count_parameters(whole) == attention - mixer
    assert mixed.sliding_window == 64


@pytest.mark.parametrize(
    "stated", [{"use_gate": False}, {"use_short_conv": False}, {"attnres_block_size": 2}]
)
def test_what_a_gated_delta_net_has_no_rule_for_is_refused(stated: dict[str, object]) -> None:
    with pytest.raises((InvalidInput, UnsupportedFeature)):
        read_config({**FLA, "model_type": "gated_deltanet", "head_dim": 32, **stated}, name="x")


def test_a_pattern_of_letters_is_a_chain_of_single_parts() -> None:
    stated = {**SMALL, **EXPERTS, "hybrid_override_pattern": "M*E-M", "mamba_num_heads": 4}
    stated |= {"mamba_head_dim": 32, "n_groups": 1, "ssm_state_size": 16, "head_dim": 16}
    found = trainwright.describe_model({"model_type": "nemotron_h", **stated}).document
    assert [(row.kind, row.count) for row in found.layers] == [
        ("state space (Mamba-2)", 2),
        ("attention", 1),
        ("experts", 1),
        ("dense", 1),
    ]


def test_layers_without_attention_keep_a_state_and_no_cache() -> None:
    sizes = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "head_dim": 16}
    document = {"model_type": "qwen3_5_text", **SMALL, **sizes}

    def cache(length: int) -> float:
        found = trainwright.describe_model(document, sequence=length).document.cache_bytes
        assert found is not None
        return found

    per_token = 2 * 2 * 2 * 16 * 2  # two layers that attend, keys and values of two heads
    assert cache(2048) - cache(1024) == 1024 * per_token


def test_a_recurrence_is_cut_by_heads_and_not_by_a_ring() -> None:
    sizes = {"linear_num_key_heads": 4, "linear_num_value_heads": 4, "head_dim": 16}
    config = read_config({"model_type": "qwen3_5_text", **SMALL, **sizes}, name="x").config

    def faults(**run: Any) -> list[str]:
        shape = RunShape(microbatch_size=1, sequence_length=64, **run)
        return [fault.path for fault in config.faults_at(shape)]

    assert faults(tensor_parallel=4) == []
    assert faults(tensor_parallel=8) == ["tensor_parallel"] * 2
    assert set(faults(context_parallel=2)) == {"context_parallel"}
    traded = {"context_exchange": ContextExchange.ALL_TO_ALL}
    assert faults(context_parallel=2, **traded) == []


@pytest.mark.parametrize("kind", ["nemotron_h", "jamba", "falcon_h1", "afmoe", "qwen3_5_text"])
def test_tensor_devices_together_do_the_work_of_one(kind: str) -> None:
    stated = {**SMALL, **EXPERTS, "mamba_num_heads": 8, "mamba_head_dim": 32, "n_groups": 2}
    stated |= {"mamba_n_heads": 8, "mamba_d_ssm": 256, "num_key_value_heads": 8}
    config = read_config({"model_type": kind, **stated}, name="x").config
    alone = RunShape(microbatch_size=1, sequence_length=64, vocabulary_multiple=1)
    both = RunShape(
        microbatch_size=1,
        sequence_length=64,
        vocabulary_multiple=1,
        tensor_parallel=2,
        sequence_parallel=True,
    )
    one, two = layer_graph(config, alone), layer_graph(config, both)
    assert two.num_parameters == one.num_parameters
    assert two.model_flops == pytest.approx(one.model_flops)
    assert two.forward_flops == pytest.approx(one.forward_flops, rel=0.02)


def test_a_further_token_of_nemotron_passes_attention_and_experts() -> None:
    stated = {**SMALL, **EXPERTS, "hybrid_override_pattern": "M*E-", "mamba_num_heads": 8}
    stated |= {"mamba_head_dim": 32, "n_groups": 2, "moe_shared_expert_intermediate_size": 64}
    stated |= {"model_type": "nemotron_h", "head_dim": 16, "num_nextn_predict_layers": 1}
    found = trainwright.describe_model(stated).document
    sizes = {row.kind: row.parameters for row in found.layers}
    joined = 2 * 128 * 128 + 3 * 128  # the projection, a norm of each input, one behind
    assert found.parameters_mtp == sizes["attention"] + sizes["experts"] + joined
    assert not found.notes
    other = trainwright.describe_model(stated | {"mtp_hybrid_override_pattern": "M"}).document
    assert other.parameters_mtp == sizes["state space (Mamba-2)"] + joined
    with pytest.raises(trainwright.InvalidInput, match="mtp_hybrid_override_pattern: must be of"):
        trainwright.describe_model(stated | {"mtp_hybrid_override_pattern": "Q"})


def test_the_stated_width_of_nemotrons_shared_experts_is_that_of_all_together() -> None:
    stated = {**SMALL, **EXPERTS, "hybrid_override_pattern": "M*E-", "mamba_num_heads": 8}
    stated |= {"mamba_head_dim": 32, "n_groups": 2, "moe_shared_expert_intermediate_size": 64}
    one, two = (parameters("nemotron_h", **stated, n_shared_experts=n) for n in (1, 2))
    assert one == two


def test_a_stated_gate_of_t5_goes_before_the_name_of_its_activation() -> None:
    named = parameters("t5", d_ff=96, feed_forward_proj="gated-gelu")
    assert parameters("t5", d_ff=96, is_gated_act=True) == named
    without = parameters("t5", d_ff=96, feed_forward_proj="gated-gelu", is_gated_act=False)
    assert named - without == 16 * 128 * 96  # a matrix of each block of both stacks


def test_modules_of_minimax_that_predict_further_tokens_are_counted_apart() -> None:
    stated = {**SMALL, "model_type": "minimax_m2", "num_local_experts": 8, "head_dim": 16}
    alone = trainwright.describe_model(stated).document
    further = {"use_mtp": True, "num_mtp_modules": 3, "mtp_transformer_layers": 1}
    found = trainwright.describe_model(stated | further).document
    (block,) = {row.parameters for row in found.layers}
    assert (found.parameters_total, found.notes) == (alone.parameters_total, ())
    assert found.parameters_mtp == 3 * (block + 2 * 128 * 128 + 3 * 128)


def test_a_list_of_layers_that_is_too_short_is_named() -> None:
    with pytest.raises(trainwright.InvalidInput, match="layer_types: must have one entry per"):
        parameters("qwen3_5_text", layer_types=["linear_attention"])


def test_a_block_of_rwkv_mixes_time_and_channels() -> None:
    """RWKV-4 (Peng et al., 2023), 7B: 7,392,649,216 parameters, published as 7.39 B."""
    found = trainwright.describe_model({"model_type": "rwkv"}, sequence=64).document
    assert found.parameters_total == 7_392_649_216
    h, ffn = 4096, 4 * 4096
    own = 4 * h * h + 2 * h + 3 * h + 2 * h * ffn + h * h + 2 * h + 2 * 2 * h
    assert [(r.count, r.parameters) for r in found.layers] == [(1, own + 2 * h), (31, own)]
    products = 32 * (4 * h * h + 2 * h * ffn + h * h) + h * 50277
    assert found.flops_forward_per_token == 2 * products


# Sizes of public files, and the parameters published with their models.
REMOTE: dict[str, tuple[dict[str, Any], int]] = {
    "internlm2": (
        {
            "vocab_size": 92544,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "bias": False,
        },
        7_737_708_544,
    ),
    "baichuan": ({}, 7_505_973_248),
    "exaone": (
        {"hidden_size": 4096, "intermediate_size": 14336, "num_key_value_heads": 8},
        7_818_448_896,
    ),
    "chatglm": ({"add_qkv_bias": True, "kv_channels": 128}, 6_243_584_000),
    "qwen": ({"kv_channels": 128}, 7_721_324_544),
    "mimo": (
        {
            "num_hidden_layers": 36,
            "intermediate_size": 11008,
            "num_key_value_heads": 8,
            "vocab_size": 151680,
        },
        7_622_619_136,
    ),
    "internlm": ({}, 7_321_948_160),
    "orion": ({}, 14_498_703_360),
    "phi-msft": (
        {"n_embd": 2560, "n_layer": 32, "n_head": 32, "n_inner": None},
        2_779_683_840,
    ),
    "phi3small": ({}, 7_392_272_384),
    "minicpm": ({}, 2_724_880_896),
    "deepseek": (
        {
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
        },
        16_375_728_128,
    ),
    "bailing_moe": (  # Ling-lite
        {
            "hidden_size": 2048,
            "moe_intermediate_size": 1408,
            "num_hidden_layers": 28,
            "num_key_value_heads": 4,
            "num_experts": 64,
            "num_experts_per_tok": 6,
            "num_shared_experts": 2,
            "use_bias": False,
            "vocab_size": 126464,
        },
        16_801_974_272,
    ),
    "bailing_moe_v2": ({}, 16_255_643_392 - 19 * 256),  # Ling-mini-2.0 without routing biases
    "hunyuan": (  # Hunyuan-A13B
        {
            "num_key_value_heads": 8,
            "attention_head_dim": 128,
            "intermediate_size": 3072,
            "moe_intermediate_size": [3072] * 32,
            "num_experts": 64,
            "moe_topk": [8] * 32,
            "num_shared_expert": [1] * 32,
            "use_mixed_mlp_moe": True,
            "use_qk_norm": True,
            "tie_word_embeddings": True,
            "vocab_size": 128167,
        },
        80_393_183_232,
    ),
}


@pytest.mark.parametrize("kind", REMOTE)
def test_families_that_the_library_lacks_have_the_published_parameters(kind: str) -> None:
    stated, published = REMOTE[kind]
    found = read_config({"model_type": kind, **stated}, name="x").config
    assert count_parameters(found) == published


@pytest.mark.parametrize(
    ("stated", "problem"),
    [
        ({"moe_topk": [8] * 31 + [4]}, "the same for every block"),
        ({"use_cla": True}, "use_cla"),
        ({"vit_type": "NaVit"}, "vit_type"),
        ({"moe_layer_num_skipped": 1}, "moe_layer_num_skipped"),
    ],
)
def test_what_hunyuans_blocks_do_not_share_is_refused(stated: dict, problem: str) -> None:
    document = {"model_type": "hunyuan", **REMOTE["hunyuan"][0], **stated}
    with pytest.raises((trainwright.InvalidInput, UnsupportedFeature), match=problem):
        read_config(document, name="x")


def test_blocks_of_phi_3_small_are_dense_and_block_sparse_in_turn() -> None:
    """16 near blocks of 64 tokens, and one of 8 of the 112 before them, at 8,192 positions."""
    found = read_config({"model_type": "phi3small"}, name="x").config
    assert (found.sliding_window, found.full_attention_layers[:2]) == (1024 + 896, (1, 3))
    wider = read_config({"model_type": "phi3small", "blocksparse_vert_stride": 1}, name="x").config
    assert wider.sliding_window == 8192


def test_experts_are_those_that_a_file_counts() -> None:
    dense, mixed = (
        read_config({"model_type": "minicpm", **more}, name="x").config
        for more in ({}, {"num_experts": 8, "num_experts_per_tok": 2})
    )
    assert dense.experts is None
    h, ffn, layers = 2304, 5760, 40
    assert count_parameters(mixed) - count_parameters(dense) == layers * (7 * 3 * h * ffn + 8 * h)


def test_a_gate_without_a_shared_expert_is_left_to_the_library() -> None:
    with pytest.raises(UnsupportedFeature, match="shared_expert_intermediate_size: 0"):
        parameters("qwen2_moe", shared_expert_intermediate_size=0)


K3: dict[str, Any] = {
    "model_type": "kimi_linear",
    "hidden_size": 7168,
    "intermediate_size": 33792,
    "num_hidden_layers": 93,
    "num_attention_heads": 96,
    "num_key_value_heads": 96,
    "q_lora_rank": 1536,
    "hidden_act": "situ",
    "moe_layer_freq": 1,
    "moe_intermediate_size": 3072,
    "num_experts": 896,
    "num_experts_per_token": 16,
    "num_shared_experts": 2,
    "routed_expert_hidden_size": 3584,
    "latent_moe_use_norm": True,
    "mla_use_output_gate": True,
    "attn_res_block_size": 12,
    "linear_attn_config": {
        "num_heads": 96,
        "use_full_rank_gate": True,
        "full_attn_layers": [*range(4, 93, 4), 93],
    },
}


def test_kimi_k3_is_counted_by_the_tensors_of_its_checkpoint() -> None:
    """Text of 2.78 T parameters, published as 2.8 T."""
    h, heads, latent, ffn, experts = 7168, 96 * 128, 3584, 3072, 896
    norms = 2 * h + 4 * h  # of the halves, and those of residuals with their products
    routed = experts * 3 * ffn * latent
    mixture = experts * h + 3 * 2 * ffn * h + 2 * latent * h + latent + routed
    delta = 5 * heads * h + 3 * heads * 4 + 128 * (h + heads) + heads + 96 + 96 * h + 128
    query = 1536 * (h + 1 + 96 * 192)
    attention = query + (512 + 64) * h + 512 + 96 * 256 * 512 + 2 * heads * h
    found = trainwright.describe_model(K3).document
    assert [(row.count, row.parameters) for row in found.layers] == [
        (1, delta + norms + 3 * 33792 * h),
        (68, delta + norms + mixture),
        (24, attention + norms + mixture),
    ]
    rest = 2 * 163840 * h + 3 * h
    layers = sum(row.count * row.parameters for row in found.layers)
    assert found.parameters_total == layers + rest == 2_779_484_393_568
    assert found.notes == ("vocab_size not given, took 163840",)


def test_residuals_of_earlier_blocks_are_handed_on_and_mixed_before_each_half() -> None:
    config = read_config(K3, name="x").config
    plain = replace(config, residual_blocks=0)
    run = RunShape(microbatch_size=1, sequence_length=64)
    ours, theirs = layer_graph(config, run), layer_graph(plain, run)
    assert ours.num_parameters - theirs.num_parameters == (93 * 4 + 2) * 7168
    assert ours.model_flops == theirs.model_flops
    edge = 2 * 64 * 7168  # one hidden state in bf16
    handed = [
        a.bytes / edge - b.bytes / edge for a, b in zip(ours.edges, theirs.edges, strict=True)
    ]
    assert handed[:14] == [0, *[1] * 12, 2]  # the sum before block 0, and that before block 12
    assert handed[93] == 8
    block = ours.classes[ours.layers[2]]
    assert {"sums", "mlp_sums"} <= {operator.name for operator in block.operators}
    with pytest.raises(trainwright.InvalidInput, match="residual_blocks"):
        replace(config, streams=2)


def _searched(**changed: Any) -> dict[str, Any]:
    """A file of Nemotron-NAS of three blocks: whole, without attention, and without anything."""
    whole = {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 1.5}}
    narrow = {"attention": {"no_op": True}, "ffn": {"ffn_mult": 0.5}}
    nothing = {"attention": {"no_op": True}, "ffn": {"no_op": True}}
    sizes = {"hidden_size": 512, "num_attention_heads": 8, "vocab_size": 1000}
    blocks = {"num_hidden_layers": 3, "block_configs": [whole, narrow, nothing]}
    return {"model_type": "nemotron-nas", **sizes, **blocks, **changed}


def test_blocks_that_a_search_changed_are_counted_by_hand() -> None:
    """Widths are two thirds of a multiple of the hidden size, up to a multiple of 256."""
    found = trainwright.describe_model(_searched(), sequence=64).document
    h, key = 512, 2 * 64
    whole = 2 * h * h + 2 * h * key + 3 * h * 512 + 2 * h
    assert [(row.kind, row.count, row.parameters) for row in found.layers] == [
        ("attention + dense", 1, whole),
        ("dense", 1, 3 * h * 256 + h),
    ]
    assert found.parameters_total == whole + 3 * h * 256 + h + 2 * 1000 * h + h


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"block_configs": None}, "block_configs: must have one entry per layer"),
        ({"num_hidden_layers": 4}, "block_configs: must have one entry per layer"),
        (
            {"block_configs": [{"attention": {}, "ffn": {"ffn_mult": "x"}}] * 3},
            "block_configs.0.ffn.ffn_mult: must be a number above 0",
        ),
        (
            {"block_configs": [{"attention": {"replace_with_linear": True}, "ffn": {}}] * 3},
            "block_configs.0.attention.replace_with_linear: true is not modelled",
        ),
    ],
)
def test_what_no_block_of_a_search_can_be_is_named(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(trainwright.TrainwrightError, match=problem):
        read_config(_searched(**changed), name="x")


@pytest.mark.slow
def test_reading_is_quick() -> None:
    start = time.process_time()
    for kind in (*DECODERS, *HYBRIDS):
        trainwright.describe_model({"model_type": kind})
    assert time.process_time() - start < 0.1 * (len(DECODERS) + len(HYBRIDS))


CHECKED = ["gpt_bigcode", *sorted({*BERTS} - {"bert"})]  # the library's BERT has no pooler


# Seconds for each family: a few of different kinds on every change, the rest at length.
ON_EVERY_CHANGE = {"llama", "qwen3_moe", "deepseek_v3", "nemotron_h"}
KINDS = (*DECODERS, *OTHER_DECODERS, *HYBRIDS, *CHECKED)


@pytest.mark.torch
@pytest.mark.parametrize("kind", every_third(KINDS, always=ON_EVERY_CHANGE))
def test_the_library_counts_the_same(kind: str) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from trainwright.lab.torch_library import count_model

    if kind not in CONFIG_MAPPING:
        pytest.skip(f"this version of the library has no {kind}")
    checked = 0
    for stated in ({}, OWN.get(kind, SMALL | EXPERTS) | {"pad_token_id": 0}):
        document = {"model_type": kind, **stated}
        try:
            theirs = count_model(document, tokens=32)
        except trainwright.InvalidInput:  # sizes that its own class refuses
            continue
        checked += 1
        ours = trainwright.describe_model(document, sequence=32).document
        assert ours.parameters_total == theirs.parameters
        assert ours.parameters_active == theirs.active_parameters
        blocks: Counter[int] = Counter()
        for row in ours.layers:
            blocks[row.parameters] += row.count
        for counted in theirs.layers:
            blocks[counted.parameters] -= counted.count
        assert not any(blocks.values())
    assert checked or kind in {"dots1", "hunyuan_v1_dense"}


def _mutations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The file with one key changed: counts doubled, one more, one, none; flags turned; null."""
    for key, value in document.items():
        others: list[Any] = [None]
        if isinstance(value, bool):
            others = [not value]
        elif isinstance(value, int):
            others += [2 * value, value + 1, 1, 0]
        elif value is None:
            others = [1, 64, True]
        elif isinstance(value, list) and value and all(isinstance(each, str) for each in value):
            others = [[each] * len(value) for each in sorted(set(value))]
        elif isinstance(value, str | float | dict):
            continue
        yield from (document | {key: other} for other in others)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in ON_EVERY_CHANGE else pytest.mark.papers)
        for kind in KINDS
    ],
)
def test_no_key_of_a_file_is_misread(kind: str) -> None:
    """Each change is refused, or counted as the library's class counts it, layers included."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from trainwright.lab.torch_library import count_model

    if kind not in CONFIG_MAPPING:
        pytest.skip(f"this version of the library has no {kind}")
    try:
        base = CONFIG_MAPPING[kind](num_hidden_layers=6).to_dict()
        named = count_model(base, tokens=2).class_name
    except Exception as error:  # whatever the library's own checks raise
        pytest.skip(f"the library cannot build its own default: {error}")
    compared = 0
    for stated in _mutations(base):
        document = json.loads(json.dumps(stated)) | {"model_type": kind, "architectures": [named]}
        try:
            config = read_config(document, name="x").config
            theirs = count_model(document, tokens=2)
        except trainwright.TrainwrightError:
            continue
        compared += theirs.class_name == named
        assert theirs.class_name != named or count_parameters(config) == theirs.parameters, stated
    assert compared > 10


def test_a_model_of_several_kinds_of_layers_is_planned_and_read_back(tmp_path) -> None:
    sizes = {"linear_num_key_heads": 8, "linear_num_value_heads": 8, "vocab_size": 32000}
    document = {"model_type": "qwen3_5_text", **SMALL, **sizes, "hidden_size": 1024}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(document))
    asked = {"global_batch": 8, "sequence": 512, "schedule": "1f1b"}
    planned = trainwright.plan(file, cluster="dgx-h100", **asked)
    planned.save(tmp_path / "plan.json")
    assert planned.document.status in {"optimal", "gap"}
    explained = trainwright.explain(tmp_path / "plan.json")  # every figure is computed again
    assert str(explained)
    trainwright.export(tmp_path / "plan.json", to="megatron", output=tmp_path / "out")
    text = (tmp_path / "out" / "megatron_args.sh").read_text()
    assert "--hybrid-layer-pattern G-G-G-*-G-G-G-*-\n" in text.replace("|", "").replace("'", "")
    with pytest.raises(trainwright.Inexpressible, match="blocks that differ in kind"):
        trainwright.export(tmp_path / "plan.json", to="primus")


GEMMA4 = SMALL | {
    "head_dim": 16,
    "global_head_dim": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 4,
    "hidden_size_per_layer_input": 0,
}


def test_blocks_with_keys_of_earlier_ones_have_queries_alone() -> None:
    h = 128
    shared = {"num_kv_shared_layers": 4, "use_double_wide_mlp": True}
    within, full = 2 * (2 * 16 * h) + 16, 2 * (2 * 32 * h) + 32  # two key heads, a norm of keys
    wider = 4 * 3 * 192 * h
    alone = parameters("gemma4_text", **GEMMA4)
    assert alone - parameters("gemma4_text", **GEMMA4, **shared) == 2 * (within + full) - wider


def test_keys_that_are_values_too_are_one_product() -> None:
    alone = parameters("gemma4_text", **GEMMA4)
    both = parameters("gemma4_text", **GEMMA4, attention_k_eq_v=True)
    assert alone - both == 4 * 2 * 32 * 128


def test_inputs_of_each_block_are_a_table_and_products() -> None:
    inputs = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 50}
    found = parameters("gemma4_text", **GEMMA4 | inputs) - parameters("gemma4_text", **GEMMA4)
    assert found == 50 * 8 * 8 + 128 * 8 * 8 + 8 + 8 * (2 * 128 * 8 + 128)


def test_later_blocks_are_handed_their_inputs_and_keys() -> None:
    stated = GEMMA4 | {
        "model_type": "gemma4_text",
        "hidden_size_per_layer_input": 8,
        "num_kv_shared_layers": 4,
    }
    graph = layer_graph(
        read_config(stated, name="x").config, RunShape(microbatch_size=1, sequence_length=64)
    )
    token = [edge.bytes / (2 * 64) - 128 for edge in graph.edges[:9]]
    within, full = 2 * 2 * 16, 2 * 2 * 32  # the last two blocks with keys are 2 and 3
    keys = [0, 0, 0, within, within + full, within + full, within + full, full, 0]
    assert token == [8 * (8 - at) + more for at, more in enumerate(keys)]


def test_experts_that_stand_apart_have_norms_and_scales() -> None:
    mixture = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2}
    found = parameters("gemma4_text", **GEMMA4, **mixture, moe_intermediate_size=64)
    each = 8 * 3 * 128 * 64 + 128 * 8 + 3 * 128 + 128 + 8
    assert found - parameters("gemma4_text", **GEMMA4) == 8 * each


def test_an_index_that_an_earlier_block_made_costs_nothing_again() -> None:
    latent = {"q_lora_rank": 64, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
    index = {"index_n_heads": 4, "index_head_dim": 16, "index_topk": 32, "v_head_dim": 16}
    shared = {"indexer_types": ["full"] * 4 + ["shared"] * 4}
    stated = {**latent, **index, **EXPERTS}
    indexer = 64 * 4 * 16 + 128 * 16 + 2 * 16 + 128 * 4
    alone = parameters("glm_moe_dsa", **stated)
    assert alone - parameters("glm_moe_dsa", **stated, **shared) == 4 * indexer


def test_a_token_attends_to_the_keys_that_an_indexer_chose() -> None:
    def scores(length: int) -> float:
        run = RunShape(microbatch_size=1, sequence_length=length)
        config = read_config({"model_type": "deepseek_v32"}, name="x").config
        block = layer_graph(config, run).classes[1]
        return sum(op.model_flops for op in block.operators if op.name == "attention")

    assert scores(2048) == pytest.approx(4 * scores(1024))
    assert scores(8192) == pytest.approx(2 * scores(4096))


def test_a_chunk_is_a_triangle_of_its_own() -> None:
    def executed(length: int) -> float:
        stated = {**SMALL, **EXPERTS, "attention_chunk_size": 64, "num_hidden_layers": 1}
        config = read_config({"model_type": "llama4_text", **stated}, name="x").config
        graph = layer_graph(config, RunShape(microbatch_size=1, sequence_length=length))
        block = graph.classes[1]
        return sum(op.forward.flops for op in block.operators if op.name == "attention")

    assert executed(256) == pytest.approx(4 * executed(64))


@pytest.mark.parametrize("kind", [*DECODERS, *OTHER_DECODERS, *HYBRIDS])
def test_every_class_of_layers_is_written_and_read_back(kind: str) -> None:
    blocks = _searched() if kind == "nemotron-nas" else {}  # no file of it is without
    config = read_config({"model_type": kind, **blocks}, name="x").config
    assert decode(TransformerConfig, json.loads(json.dumps(encode(config)))) == config


V4: dict[str, Any] = {
    "model_type": "deepseek_v4",
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 300,
    "q_lora_rank": 32,
    "o_groups": 4,
    "o_lora_rank": 8,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 8,
    "sliding_window": 16,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "hc_mult": 4,
    "compress_ratios": [0, 4, 32, 4, 0],
    "compress_rates": {"heavily_compressed_attention": 32},
    "num_nextn_predict_layers": 0,
}


def v4(**stated: Any) -> TransformerConfig:
    ratios = [128 if r == 32 else r for r in V4["compress_ratios"]]
    return read_config({**V4, "compress_ratios": ratios, **stated}, name="x").config


def test_attention_to_compressed_entries_is_counted_by_hand() -> None:
    h, e, rank, width = 128, 16, 32, 8 * 16
    near = h * rank + rank + rank * width + h * e + e + width * 8 + 4 * 8 * h + 8
    compressor = 2 * h * e + e
    indexer = 32 * 2 * 16 + h * 2 + 4 * h * 16 + 4 * 2 * 16 + 16
    streams = 2 * ((2 * 4 + 16) * 4 * h + 24 + 3)
    experts = 8 * 3 * h * 64 + 3 * h * 64 + h * 8
    block = near + streams + experts + 2 * h
    few, many = 2 * compressor - e + 4 * 2 * e + indexer, compressor + 32 * e
    ends = 2 * 300 * h + h + 4 * 4 * h + 4 + 1
    assert count_parameters(v4()) == 4 * block + 2 * few + many + ends


def test_pairs_with_compressed_entries_are_those_that_a_count_finds() -> None:
    for block in v4().kinds_of_blocks:
        own = block.compressed
        assert own is not None
        for length in (1, 7, 31, 64, 200):
            near = sum(min(t, 16) for t in range(1, length + 1))
            most = 0 if own.ratio is None else length // own.ratio
            if own.indexer is not None:
                most = min(most, own.indexer.num_keys)
            far = sum(min(t // own.ratio, most) for t in range(1, length + 1)) if own.ratio else 0
            assert attended_pairs(block, length, skips_masked=True) == near + far


def test_blocks_hand_on_every_stream_and_the_last_one_state() -> None:
    graph = layer_graph(v4(), RunShape(microbatch_size=1, sequence_length=64))
    hidden = 2 * 64 * 128
    assert [edge.bytes for edge in graph.edges[:6]] == [4 * hidden] * 5 + [hidden]


def test_a_recomputed_block_keeps_its_streams_alone() -> None:
    block = layer_graph(v4(), RunShape(microbatch_size=1, sequence_length=64)).classes[1]
    inputs = [tensor for tensor in block.saved if tensor.is_layer_input]
    assert [(tensor.name, tensor.elements) for tensor in inputs] == [
        ("streams.input", 4 * 64 * 128)
    ]


def test_compressed_attention_is_summed_up_priced_and_read_back() -> None:
    document = trainwright.describe_model({**V4, "compress_ratios": [0, 4, 128, 4]}).document
    assert [row.count for row in document.layers] == [1, 2, 1]
    config = v4()
    assert decode(TransformerConfig, json.loads(json.dumps(encode(config)))) == config
    job: dict[str, Any] = {"cluster": "dgx-h100", "devices": 64, "global_batch": 64}
    job |= {"sequence": 4096, "calibration": "none", "ep": 64, "zero": 1}
    short = trainwright.estimate("deepseek-v4-flash", **job).document
    long = trainwright.estimate("deepseek-v4-flash", **job | {"sequence": 8192}).document
    assert short.step_time_s is not None
    assert long.step_time_s is not None
    assert 1.5 < long.step_time_s / short.step_time_s < 2.5  # entries are few: work is linear
