"""`trainwright model`: figures of a model, by our formulas or by the library's own code."""

from __future__ import annotations

import dataclasses
import json

import pytest

import trainwright
from trainwright.commands import model as command
from trainwright.errors import InvalidInput, UnsupportedFeature

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
}
# Embedding and head, three blocks of attention (query and output, key and value), gated
# feed-forward and two norms, and the last norm.
BLOCK = 256 * 256 * 2 + 2 * 256 * 128 + 3 * 256 * 512 + 2 * 256
TOTAL = 2 * 1000 * 256 + 3 * BLOCK + 256


def test_a_dense_decoder_is_counted_by_hand() -> None:
    found = trainwright.describe_model(LLAMA, sequence=64).document
    assert found.parameters_total == found.parameters_active == TOTAL
    assert [(row.count, row.parameters) for row in found.layers] == [(3, BLOCK)]
    assert sum(part.parameters for part in found.parts) == TOTAL
    products = 2 * (TOTAL - 1000 * 256 - 7 * 256)
    scores = 3 * 2 * 2 * 64 * 256
    assert found.flops_forward_per_token == products + scores
    assert found.flops_backward_per_token == 2 * found.flops_forward_per_token
    assert found.cache_bytes == 3 * 64 * 2 * 128 * 2


def test_experts_that_a_token_does_not_visit_are_not_active() -> None:
    found = trainwright.describe_model("deepseek-v3").document
    assert found.parameters_total == 671_026_404_352
    idle = 58 * (256 - 8) * 3 * 7168 * 2048
    assert found.parameters_active == found.parameters_total - idle


def test_parts_are_the_whole_and_further_predicted_tokens_stand_apart() -> None:
    found = trainwright.describe_model("deepseek-v3").document
    assert sum(part.parameters for part in found.parts) == found.parameters_total
    assert {part.name: part.parameters for part in found.parts}["lm head"] == 129280 * 7168
    assert "mtp" not in {part.name for part in found.parts}
    assert found.parameters_mtp > 0
    without = trainwright.describe_model("deepseek-v3", mtp_layers=0).document
    assert without == dataclasses.replace(found, parameters_mtp=0)
    with pytest.raises(trainwright.InvalidInput, match="mtp-layers: must be at most 1"):
        trainwright.describe_model("deepseek-v3", mtp_layers=2)


def test_kinds_of_layers_have_names_of_their_own() -> None:
    found = trainwright.describe_model({"model_type": "rwkv"}, sequence=64).document
    assert [row.kind for row in found.layers] == [
        "norm + RWKV time mix + dense",
        "RWKV time mix + dense",
    ]


def test_the_words_of_an_encoder_are_no_patches() -> None:
    found = trainwright.describe_model({"model_type": "t5"}, sequence=64)
    assert [part.name for part in found.document.parts][:2] == ["embedding", "encoder block"]


def test_a_degree_that_is_refused_says_why() -> None:
    found = trainwright.describe_model(LLAMA, sequence=64).document
    assert found.limits[0] == (
        "tensor parallel: --tp may be 1, 2, 4; it must divide the 4 heads, "
        "must divide ffn_size (512)"
    )
    narrow = trainwright.describe_model("llama3.2-3b", sequence=64).document.limits[0]
    rules = ("the 24 heads", "the 8 key-value heads or be a multiple", "ffn_size (8192)")
    assert all(f"must divide {rule}" in narrow for rule in rules)  # 3 and 6 break the last alone
    assert "may be 1, 2, 4, 8;" in narrow


def test_a_model_has_the_type_of_its_file_not_that_of_its_text() -> None:
    text = LLAMA | {"model_type": "mistral"}
    wrapped = {"model_type": "llava", "text_config": text, "vision_config": {}}
    assert trainwright.describe_model(wrapped, sequence=64).document.model_type == "llava"


@pytest.mark.parametrize(
    ("architecture", "change"),
    [
        ("LlamaForCausalLM", 0),
        ("LlamaModel", -1000 * 256),
        ("LlamaForSequenceClassification", -1000 * 256 + 256),
        ("LlamaForTokenClassification", -1000 * 256 + 257),
        ("LlamaForQuestionAnswering", -1000 * 256 + 2 * 256 + 2),
    ],
)
def test_the_class_that_a_file_names_decides_about_the_head(architecture, change) -> None:
    stated = LLAMA | {"architectures": [architecture], "id2label": {"0": "reward"}}
    assert trainwright.describe_model(stated).document.parameters_total == TOTAL + change


def test_a_pooler_belongs_to_classes_that_look_at_one_token() -> None:
    bert = {"model_type": "bert", "hidden_size": 64, "num_attention_heads": 4}

    def total(*names: str) -> int:
        stated = bert | {"architectures": list(names)}
        return trainwright.describe_model(stated, sequence=64).document.parameters_total

    pooler = 64 * 64 + 64
    assert total("BertForSequenceClassification") - total("BertModel") == 2 * 64 + 2
    assert total("BertForTokenClassification") - total("BertModel") == 2 * 64 + 2 - pooler
    both = pooler + 2 * 64 + 2  # and whether the second sentence follows the first
    assert total("BertForPreTraining") - total("BertForMaskedLM") == both
    assert total("BertLMHeadModel") == total("BertForMaskedLM")


def test_a_class_with_another_head_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    stated = LLAMA | {"architectures": ["LlamaForMultipleChoice"]}
    with pytest.raises(UnsupportedFeature, match='what "LlamaForMultipleChoice" has behind'):
        trainwright.describe_model(stated)


def test_the_command_prints_one_screen_and_one_document(run, folder) -> None:
    (folder / "config.json").write_text(json.dumps(LLAMA))
    shown = run("model", "config.json", "--sequence", "64")
    assert shown.code == 0
    assert f"{TOTAL:,}" in shown.out
    assert "attention + dense" in shown.out
    assert len(shown.out.splitlines()) < 40
    found = run("model", "config.json", "--json").document
    assert (found["kind"], found["parameters_total"]) == ("model", TOTAL)


def test_an_infinity_in_a_key_that_says_nothing_is_let_pass(run, folder) -> None:
    text = json.dumps(LLAMA | {"rope_scaling": {"limits": [0.0, float("inf")]}})
    (folder / "config.json").write_text(text)
    assert run("model", "config.json", "--json").document["parameters_total"] == TOTAL


def test_without_the_library_an_unknown_type_is_refused_with_the_way_out(monkeypatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedFeature, match=r"\[torch\]"):
        trainwright.describe_model({"model_type": "zamba"})


@pytest.mark.parametrize("sequence", ["0", "-1", "many"])
def test_a_sequence_is_a_whole_number_above_zero(run, sequence: str) -> None:
    refused = run("model", "llama3-8b", "--sequence", sequence)
    assert refused.code == 2
    assert "sequence" in refused.err


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidInput, match="no such file"):
        trainwright.describe_model("nowhere/it/is/config.json")


def test_a_file_of_another_kind_is_not_taken_for_a_model_to_trace(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    asked = {"cluster": "dgx-h100", "devices": 8, "global_batch": 8, "sequence": 64}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"kind": "model-plan", "format_version": 1}))
    with pytest.raises(InvalidInput, match="carries no model"):
        trainwright.plan(file, **asked)
    file.write_text(json.dumps({"model_type": "albert"}))
    with pytest.raises(UnsupportedFeature, match="to have it traced: pip install"):
        trainwright.plan(file, **asked)


def test_the_catalog_lists_the_types_that_are_read_and_says_what_happens_to_others() -> None:
    from trainwright.commands.catalog import catalog
    from trainwright.formats.hf_config import read_config

    *read, others = catalog("types").document.topics["types"]
    names = [item.name for item in read]
    assert names == sorted(set(names))
    assert {"llama", "whisper", "qwen3_5", "nemotron_h"} <= set(names)
    assert "[torch]" in others.summary
    for name in names:
        with pytest.raises(UnsupportedFeature, match="is not modelled"):
            read_config({"model_type": f"{name} of tomorrow"}, name="model")
        try:
            read_config({"model_type": name}, name="model")
        except UnsupportedFeature as error:  # of a part that is missing
            assert f'model_type "{name}" is not modelled' not in str(error)
        except InvalidInput:
            pass


def test_a_document_stands_for_the_model_that_it_describes(tmp_path) -> None:
    found = trainwright.describe_model(LLAMA, sequence=64)
    found.save(tmp_path / "model.json")
    assert (
        trainwright.describe_model(tmp_path / "model.json", sequence=64).document == found.document
    )
    assert trainwright.describe_model("llama3-8b").document.description is None


def test_a_depth_that_a_config_leaves_out_is_said(run, tmp_path):
    config = tmp_path / "config.json"
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 32000}
    config.write_text(json.dumps({"model_type": "mistral", "num_attention_heads": 32, **sizes}))
    assert "num_hidden_layers not given, took 32" in run("model", str(config)).out
    config.write_text(
        json.dumps(
            {"model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 4, **sizes}
        )
    )
    assert "not given, took" not in run("model", str(config)).out
