"""Reading config.json: families, aliases, defaults, and everything that can be wrong with one."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats import catalog
from trainwright.formats.hf_config import load_config, read_config
from trainwright.formats.hf_decoder_rules import DECODERS, REMOTE
from trainwright.formats.hf_decoders import ENCODER_DECODERS
from trainwright.formats.hf_families import BERTS, FAMILIES
from trainwright.formats.hf_hybrids import HYBRIDS
from trainwright.formats.hf_uneven_decoders import OTHER_DECODERS
from trainwright.model import Activation, Norm, count_parameters

LLAMA = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "attention_dropout": 0.0,
}


def read(document: dict[str, Any]) -> Any:
    return read_config(document, name="m")


def faults_of(document: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        read(document)
    return [str(fault) for fault in caught.value.faults]


def test_a_complete_config_uses_no_default_and_ignores_nothing() -> None:
    model = read(LLAMA)
    assert model.defaults == ()
    assert model.ignored == ()
    assert model.config == catalog.model("llama3-8b").config


def test_the_folder_of_a_config_reads_like_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert load_config(folder) == load_config(folder / "config.json")
    assert load_config(folder).name == "my-llama"


def test_aliases_name_the_same_thing() -> None:
    aliased = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer"}
    document = {aliased.get(key, key): value for key, value in LLAMA.items()}
    assert read(document).config == read(LLAMA).config


def test_aliases_that_disagree_are_a_fault() -> None:
    faults = faults_of(LLAMA | {"n_embd": 2048})
    assert faults == ["n_embd: must equal hidden_size (4096), got 2048"]


def test_a_dropout_under_another_familys_name_is_named_and_not_read() -> None:
    stated = {"model_type": "phi", "attention_dropout": 0.0, "attention_probs_dropout_prob": 0.1}
    found = read_config(stated, name="x")
    assert found.config.attention_dropout == 0.0
    assert found.ignored == ("attention_probs_dropout_prob",)


def test_a_part_that_a_family_has_not_is_never_ignored() -> None:
    tower = {"hidden_size": 64, "num_hidden_layers": 2}
    with pytest.raises(UnsupportedFeature, match="vision_config: a part that model_type"):
        read_config({"model_type": "llama", "vision_config": tower}, name="x")
    found = read_config({"model_type": "llama", "some_config": {"factor": 2}}, name="x")
    assert found.ignored == ("some_config",)


def test_a_class_of_the_text_alone_has_no_encoder() -> None:
    stated = {"model_type": "llama4", "text_config": {}, "vision_config": {}}
    assert read_config(stated, name="x").config.towers
    assert not read_config(
        stated | {"architectures": ["Llama4ForCausalLM"]}, name="x"
    ).config.towers


def test_a_file_of_the_type_of_its_text_is_what_its_class_says() -> None:
    text = {"model_type": "ministral3", "hidden_size": 256, "num_hidden_layers": 2}
    stated = {"model_type": "ministral3", "text_config": text, "vision_config": {}}
    classes = {"architectures": ["Mistral3ForConditionalGeneration"]}
    assert read_config(stated | classes, name="x").config.towers


def test_missing_keys_take_the_family_default_and_are_listed() -> None:
    model = read({"model_type": "gpt2"})
    assert count_parameters(model.config) == 124_439_808
    assert dict(model.defaults) == {
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "vocab_size": 50257,
        "activation_function": "gelu_new",
        "n_positions": 1024,
        "tie_word_embeddings": True,
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
    }


def test_unknown_keys_are_reported_and_harmless_ones_are_not() -> None:
    model = read(LLAMA | {"quantum_layers": 3, "torch_dtype": "bfloat16", "bos_token_id": 1})
    assert model.ignored == ("quantum_layers",)


def test_the_architecture_tells_the_family_where_the_type_is_missing() -> None:
    document = {key: value for key, value in LLAMA.items() if key != "model_type"}
    assert read(document | {"architectures": ["LlamaForCausalLM"]}).config == read(LLAMA).config
    moe = read({"architectures": ["Qwen3MoeForCausalLM"]})
    assert moe.config.family == "qwen3_moe"


def test_a_config_of_no_family_at_all_is_refused() -> None:
    assert faults_of({}) == [
        "model_type: required field is missing (or architectures, to tell the family by)"
    ]
    assert faults_of({"model_type": 3}) == ["model_type: must be text, got 3 (number)"]


def test_an_unknown_family_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UnsupportedFeature, match='the nearest is "llama"') as refused:
        read({"model_type": "llama5"})
    assert len(str(refused.value)) < 250


def test_all_faults_are_named_at_once() -> None:
    faults = faults_of(
        LLAMA
        | {
            "hidden_size": "4096",
            "num_hidden_layers": 0,
            "num_attention_heads": 32.5,
            "vocab_size": True,
            "hidden_act": "sine",
            "attention_dropout": 1.5,
            "tie_word_embeddings": 1,
        }
    )
    assert {fault.split(":")[0] for fault in faults} == {
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "hidden_act",
        "attention_dropout",
        "tie_word_embeddings",
    }
    assert 'hidden_size: must be an integer, got "4096" (string)' in faults


@pytest.mark.parametrize("size", [-4096, "4096"])
def test_a_size_that_is_none_is_one_fault(size: object) -> None:
    (fault,) = faults_of(LLAMA | {"hidden_size": size})
    assert "heads" not in fault


def test_sizes_that_cannot_be_are_named_by_the_files_own_keys() -> None:
    assert faults_of(LLAMA | {"hidden_size": 4097}) == [
        "hidden_size: must be a multiple of the 32 heads, got 4097"
    ]
    assert faults_of(LLAMA | {"num_key_value_heads": 5}) == [
        "num_key_value_heads: must divide num_heads (32), got 5"
    ]


def test_a_float_that_is_whole_counts_as_an_integer() -> None:
    assert read(LLAMA | {"hidden_size": 4096.0}).config == read(LLAMA).config


def test_a_head_size_may_differ_from_hidden_over_heads() -> None:
    assert read(LLAMA | {"head_dim": 64, "hidden_size": 4097}).config.head_size == 64


def test_opt_with_a_narrow_embedding_projects_in_and_out() -> None:
    """OPT-350M, 331,196,416 parameters: the only one with a projection and post-norms."""
    document = {
        "model_type": "opt",
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "ffn_dim": 4096,
        "word_embed_proj_dim": 512,
        "do_layer_norm_before": False,
    }
    model = read(document)
    assert model.config.projection_size == 512
    assert count_parameters(model.config) == 331_196_416


def test_the_families_differ_where_they_should() -> None:
    # Those are held against the library itself.
    others = {*DECODERS, *REMOTE, *OTHER_DECODERS, *HYBRIDS, *ENCODER_DECODERS}
    families = [family for family in FAMILIES if family not in others]
    configs = {family: read({"model_type": family}).config for family in families}
    where = {
        "layer norm": lambda c: c.norm is not Norm.RMS,
        "not causal": lambda c: not c.causal,
        "query and key norms": lambda c: c.query_key_norm,
        "latent": lambda c: c.latent is not None,
        "experts": lambda c: c.experts is not None,
        "windows": lambda c: c.sliding_window is not None,
        "further tokens": lambda c: c.num_mtp_layers > 0,
    }
    found = {choice: {f for f, c in configs.items() if has(c)} for choice, has in where.items()}
    assert found == {
        "layer norm": {"gpt2", "gpt_bigcode", "gpt_neo", "opt", "bloom", "mpt", "nemotron", *BERTS},
        "not causal": {*BERTS},
        "query and key norms": {"qwen3", "gemma3_text"},
        "latent": {"deepseek_v2", "deepseek_v3", "kimi_k2"},
        "experts": {"gpt_oss", "grok-1"} | {"deepseek_v2", "deepseek_v3", "deepseek_v4", "kimi_k2"},
        "windows": {"gpt_neo", "gpt_oss", "gemma2", "gemma3_text", "deepseek_v4"},
        "further tokens": {"deepseek_v3", "deepseek_v4", "mimo"},
    }
    assert configs["opt"].activation is Activation.RELU
    assert configs["bloom"].max_positions == 0


GEMMA_2_2B = {"model_type": "gemma2"}  # its defaults are those of the 2B model
GEMMA_3_1B = {
    "model_type": "gemma3_text",
    "hidden_size": 1152,
    "num_hidden_layers": 26,
    "intermediate_size": 6912,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "vocab_size": 262144,
    "sliding_window": 512,
}
GEMMA_2B = {
    "model_type": "gemma",
    "hidden_size": 2048,
    "num_hidden_layers": 18,
    "intermediate_size": 16384,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "hidden_activation": None,
}


@pytest.mark.parametrize(
    ("config", "published"),  # counts of the weights on huggingface.co
    [
        ({"model_type": "gemma"}, 8_537_680_896),
        (GEMMA_2B, 2_506_172_416),
        (GEMMA_2_2B, 2_614_341_888),
        (GEMMA_3_1B, 999_885_952),
        ({"model_type": "phi3"}, 3_821_079_552),
    ],
    ids=["gemma-7b", "gemma-2b", "gemma-2-2b", "gemma-3-1b", "phi-3-mini"],
)
def test_models_of_further_families_have_the_published_parameters(
    config: dict[str, Any], published: int
) -> None:
    assert count_parameters(read(config).config) == published


def test_gemma_misses_the_key_of_its_activation_under_one_name_only() -> None:
    taken = dict(read(GEMMA_3_1B).defaults)
    assert "hidden_activation" in taken
    assert "hidden_act" not in taken
    stated = GEMMA_3_1B | {"hidden_activation": "gelu_pytorch_tanh"}
    assert "hidden_activation" not in dict(read(stated).defaults)


def test_gemma_attends_in_full_where_its_line_does() -> None:
    assert read(GEMMA_2_2B).config.full_attention_layers == tuple(range(1, 26, 2))
    assert read(GEMMA_3_1B).config.full_attention_layers == (5, 11, 17, 23)
    assert read({"model_type": "gemma"}).config.sliding_window is None


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text"])
def test_gemma_without_a_window_attends_in_full(family: str) -> None:
    config = read({"model_type": family, "sliding_window": None}).config
    assert (config.sliding_window, config.full_attention_layers) == (None, ())
    assert read({"model_type": family}).config.sliding_window == 4096


def test_the_pattern_of_windows_has_two_spellings() -> None:
    for key in ("sliding_window_pattern", "_sliding_window_pattern"):
        description = read(GEMMA_3_1B | {key: 4})
        assert description.config.full_attention_layers == tuple(range(3, 26, 4))
        assert key not in dict(description.defaults)


@pytest.mark.parametrize(
    ("architecture", "family"),
    [
        ("Gemma2ForCausalLM", "gemma2"),
        ("Gemma3ForCausalLM", "gemma3_text"),
        ("GPT2LMHeadModel", "gpt2"),
        ("Grok1ModelForCausalLM", "grok-1"),
        ("Qwen3MoeForCausalLM", "qwen3_moe"),
    ],
)
def test_an_architecture_names_its_family(architecture: str, family: str) -> None:
    assert read({"architectures": [architecture]}).config.family == family


@pytest.mark.parametrize("architecture", ["Llama4ForCausalLM", "Qwen2AudioForCausalLM"])
def test_a_later_architecture_of_a_line_is_not_taken_for_an_earlier(architecture: str) -> None:
    with pytest.raises(UnsupportedFeature, match=f'"{architecture}" is not modelled'):
        read({"architectures": [architecture]})


def test_a_class_with_one_of_two_stacks_is_refused() -> None:
    assert read({"architectures": ["T5ForConditionalGeneration"]}).config.crosses
    with pytest.raises(UnsupportedFeature, match='"T5EncoderModel" is not modelled'):
        read({"model_type": "t5", "architectures": ["T5EncoderModel"]})


@pytest.mark.parametrize("line", ["Gemma3", "PaliGemma"])
def test_a_model_that_takes_images_needs_a_section_for_its_text(line: str) -> None:
    with pytest.raises(UnsupportedFeature, match="without text_config"):
        read({"architectures": [f"{line}ForConditionalGeneration"]})


def test_qwen_mixtures_may_have_dense_blocks_between() -> None:
    sizes = {"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    for family in ("qwen2_moe", "qwen3_moe"):
        experts = read({"model_type": family} | sizes).config.experts
        assert [experts.at(layer) for layer in range(6)] == [False, True, False, False, False, True]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[1, 2]", "must be a JSON object"),
        (b'{"model_type": "llama"', "must be a JSON object"),
        (b'{"hidden_size": 1, "hidden_size": 2}', "hidden_size"),
        (b"\xff\xfe", "must be a JSON object"),
    ],
)
def test_files_that_are_not_json_objects_are_refused(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=problem):
        load_config(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_config(tmp_path / "config.json")


_JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**12),
    st.floats(),
    st.text("ab8 ", max_size=5),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text("ab8 ", max_size=3), st.integers(), max_size=2),
    st.just([[["global", "local"], 10**12]]),
    st.lists(st.sampled_from(["full_attention", "sliding_attention", "global"]), max_size=3),
    st.dictionaries(st.sampled_from(["alibi", "qk_ln", "kv_n_heads", "attn_pdrop"]), st.booleans()),
)


@given(
    family=st.sampled_from(sorted(FAMILIES)),
    changes=st.dictionaries(
        st.sampled_from(
            sorted(
                {*LLAMA, "head_dim", "n_embd", "dropout", "sliding_window", "num_experts"}
                | {"num_experts_per_tok", "mlp_only_layers", "word_embed_proj_dim", "n_inner"}
                | {"attn_config", "attention_types", "attention_layers", "layer_types"}
                | {
                    "q_lora_rank",
                    "kv_lora_rank",
                    "v_head_dim",
                    "n_routed_experts",
                    "n_shared_experts",
                }
                | {"first_k_dense_replace", "moe_layer_freq", "num_nextn_predict_layers"}
                | {"use_sliding_window", "max_window_layers", "expansion_ratio", "no_bias"}
            )
        ),
        _JUNK,
        max_size=5,
    ),
)
def test_any_object_is_a_model_or_names_its_faults(family: str, changes: dict[str, Any]) -> None:
    try:
        model = read({"model_type": family} | changes)
    except (InvalidInput, UnsupportedFeature):
        return
    assert count_parameters(model.config) > 0


def refused(**changes: Any) -> str:
    return "; ".join(faults_of(changes))


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"model_type": "mpt", "attn_config": {"qk_ln": True}}, "attn_config.qk_ln: true"),
        (
            {"model_type": "opt", "layer_norm_elementwise_affine": False},
            "layer_norm_elementwise_affine: false",
        ),
    ],
)
def test_what_has_no_formula_is_left_to_the_library(config: dict[str, Any], key: str) -> None:
    with pytest.raises(UnsupportedFeature, match=key):
        read(config)


def test_a_type_that_nobody_knows_is_read_by_its_class_and_says_so() -> None:
    """RWKV-5 names the class of RWKV-4, which it is not."""
    found = read({"model_type": "rwkv5", "architectures": ["RwkvForCausalLM"]})
    assert (found.model_type, found.unknown_type) == ("rwkv", "rwkv5")
    assert found.notes[0].startswith('model_type "rwkv5" is not known: read is rwkv')
    assert read({"model_type": "rwkv"}).notes == ()


def test_what_cannot_be_is_refused_by_the_files_own_keys() -> None:
    assert refused(model_type="deepseek_v3", first_k_dense_replace=62) == (
        "first_k_dense_replace: must be in 0..61, got 62"
    )
    assert refused(model_type="deepseek_v3", num_key_value_heads=8).startswith(
        "num_key_value_heads: must equal num_heads (128) with latent attention"
    )
    assert refused(model_type="deepseek_v3", moe_layer_freq=2).startswith("moe_layer_freq")
    assert refused(model_type="gpt_oss", num_experts_per_tok=129).startswith(
        "num_experts_per_tok: must be in 1..128"
    )
    assert refused(model_type="gpt_oss", layer_types=["full_attention"]).startswith(
        "layer_types: must have one entry per layer (36), got 1"
    )
    assert refused(model_type="mistral", layer_types=["sliding_attention"] * 32).startswith(
        "sliding_window: must be given"
    )
    assert refused(model_type="mpt", attn_config=3).startswith("attn_config: must be an object")
    assert refused(model_type="qwen2_moe", mlp_only_layers=[24]).startswith("mlp_only_layers")
    assert refused(model_type="gpt_neo", attention_types=[[["global"], 10**12]]).startswith(
        "attention_types: must be a list"
    )


def test_a_query_rank_of_null_is_not_the_default() -> None:
    without = read({"model_type": "deepseek_v2", "q_lora_rank": None}).config.latent
    silent = read({"model_type": "deepseek_v2"}).config.latent
    assert (without.query_rank, silent.query_rank) == (None, 1536)


def test_windows_are_where_the_file_puts_them() -> None:
    gpt_oss = read({"model_type": "gpt_oss", "num_hidden_layers": 4}).config
    assert (gpt_oss.sliding_window, gpt_oss.full_attention_layers) == (128, (1, 3))
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    listed = read({"model_type": "gpt_oss", "num_hidden_layers": 3, "layer_types": kinds}).config
    assert listed.full_attention_layers == (0, 2)
    qwen = {"model_type": "qwen2", "sliding_window": 4096, "max_window_layers": 28}
    assert read(qwen).config.sliding_window is None
    used = read(qwen | {"use_sliding_window": True}).config
    assert (used.sliding_window, used.full_attention_layers) == (4096, tuple(range(28)))
    neo = read({"model_type": "gpt_neo", "num_layers": 4}).config
    assert neo.full_attention_layers == (0, 2)


def test_keys_of_sections_are_known_by_their_whole_path() -> None:
    found = read({"model_type": "mpt", "attn_config": {"alibi": True, "odd": 1}})
    assert found.ignored == ("attn_config.odd",)
    assert found.config.max_positions == 0
    assert dict(found.defaults)["attn_config.attn_pdrop"] == 0.0


def test_an_encoder_with_a_decoder_is_refused() -> None:
    with pytest.raises(UnsupportedFeature, match=r"those of t5, mt5, .* are"):
        read({"model_type": "bert", "is_encoder_decoder": True})


@pytest.mark.parametrize(
    ("key", "effect"),
    [
        ("quantization_config", "how weights are stored"),
        ("vision_config", "a second encoder is not priced"),
        ("num_expert_groups_x", "experts: parameters"),
        ("mystery_dropout", "up to a byte per element"),
        ("altup_coef", "its effect is unknown"),
    ],
)
def test_an_ignored_key_says_what_that_may_cost(key: str, effect: str) -> None:
    note, total = read(LLAMA | {key: 1}).notes
    assert note.startswith(f"unknown key ignored: {key} (")
    assert effect in note
    assert "8,030,261,248 parameters" in total


def test_a_misspelt_key_is_told_first_with_the_one_that_was_meant() -> None:
    found = read(LLAMA | {"odd_key": 1, "haed_dim": 64})
    (doubt,) = found.doubts
    assert doubt.startswith("unknown key ignored: haed_dim (a size")
    assert doubt.endswith('; did you mean "head_dim"?')
    assert not any("haed_dim" in note for note in found.notes)
    assert not read(LLAMA | {"head_dims": 64, "head_dim": 128}).doubts


@pytest.mark.parametrize(
    ("size", "misspelt"),
    [
        ("hidden_size", "hiden_size"),
        ("num_hidden_layers", "num_hiden_layers"),
        ("vocab_size", "vocabsize"),
        ("intermediate_size", "intermediat_size"),
    ],
)
def test_a_misspelt_size_that_decides_the_cost_is_refused(size: str, misspelt: str) -> None:
    stated = {misspelt if key == size else key: value for key, value in LLAMA.items()}
    with pytest.raises(InvalidInput) as refused:
        read(stated)
    (fault,) = refused.value.faults
    assert fault.path == misspelt
    assert f'no "{size}" is given' in fault.problem


def test_sizes_left_to_the_family_are_one_doubt_and_no_further_default() -> None:
    few = {key: LLAMA[key] for key in LLAMA if key not in ("hidden_size", "num_attention_heads")}
    found = read(few)
    (doubt,) = found.doubts
    assert doubt == "hidden_size not given, took 4096; num_attention_heads not given, took 32"
    assert not {"hidden_size", "num_attention_heads"} & dict(found.further_defaults).keys()
    assert not read(LLAMA).doubts


def test_groups_of_experts_are_read_and_else_those_of_the_family() -> None:
    def groups(**keys: object) -> tuple[int, int]:
        experts = read({"model_type": "deepseek_v3"} | keys).config.experts
        return experts.num_groups, experts.groups_per_token

    assert groups(n_group=16, topk_group=2) == (16, 2)
    assert groups() == (8, 4)
    assert groups(model_type="deepseek_v2") == (1, 1)
    assert groups(model_type="deepseek_v2", n_group=8, topk_group=2) == (8, 2)
    assert groups(model_type="kimi_k2") == (1, 1)
    assert groups(n_routed_experts=12, num_experts_per_tok=2) == (1, 1)  # a model of one's own
    assert groups(n_group=None, topk_group=None) == (1, 1)
    assert groups(topk_method="greedy") == (1, 1)
    assert groups(topk_method="noaux_tc") == (8, 4)


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"n_group": 3}, "n_group: must divide the 256 experts, got 3"),
        ({"topk_group": 9}, "topk_group: must be in 1..8, got 9"),
        ({"n_group": 64, "topk_group": 1}, "topk_group: must leave a token 8 experts, leaves 4"),
    ],
)
def test_groups_that_cannot_be_are_faults_under_their_own_keys(keys: dict, fault: str) -> None:
    stated = {"model_type": "deepseek_v3", "n_group": 8, "topk_group": 4}
    assert faults_of(stated | keys) == [fault]


def test_a_type_that_nobody_knows_is_that_of_its_class() -> None:
    document = {"model_type": "deepseek_ref", "architectures": ["DeepseekV4ForCausalLM"]}
    assert read_config(document, name="x").model_type == "deepseek_v4"
    with pytest.raises(UnsupportedFeature, match='"deepseek_ref" is not modelled'):
        read_config(document | {"architectures": ["DeepseekReferenceModel"]}, name="x")
