"""Adapter files of the peft library."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trainwright
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats import catalog
from trainwright.formats.hf_config import read_adapter
from trainwright.model import TRAIN_ALL, LowRank, Offload, RunShape, Tuning, layer_graph

ADAPTER: dict[str, Any] = {
    "peft_type": "LORA",
    "base_model_name_or_path": "meta-llama/Llama-2-7b-hf",
    "r": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.05,
    "bias": "none",
    "target_modules": ["v_proj", "q_proj"],
    "task_type": "CAUSAL_LM",
}


def test_module_names_become_targets_in_a_fixed_order() -> None:
    assert read_adapter(ADAPTER) == LowRank(rank=8, targets=("query", "value"), dropout=0.05)
    latent = read_adapter({"r": 4, "target_modules": ["kv_b_proj", "q_a_proj"]})
    assert latent.targets == ("query_down", "key_value_up")


def test_parameters_of_experts_are_targets_too() -> None:
    stated = {"r": 4, "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
    assert read_adapter(stated).targets == ("expert_gate", "expert_up", "expert_down")
    assert read_adapter(stated | {"target_modules": ["q_proj"]}).targets[0] == "query"
    with pytest.raises(InvalidInput, match="target_parameters: must be a list of gate_up_proj"):
        read_adapter(stated | {"target_parameters": ["mlp.router.weight"]})


def test_the_adapter_trains_what_the_library_prints_for_it() -> None:
    config = catalog.model("llama2-7b").config
    tuning = Tuning(low_rank=read_adapter(ADAPTER))
    run = RunShape(microbatch_size=1, sequence_length=128)
    assert layer_graph(replace(config, tuning=tuning), run).num_trainable_parameters == 4_194_304


def test_all_linear_means_every_product_of_a_block() -> None:
    assert len(read_adapter(ADAPTER | {"target_modules": "all-linear"}).targets) == 7


def test_faults_are_named() -> None:
    with pytest.raises(InvalidInput) as caught:
        read_adapter({"r": 0, "lora_dropout": 2, "target_modules": ["q_proj", "mystery"]})
    faults = [str(fault) for fault in caught.value.faults]
    assert [fault.split(":")[0] for fault in faults] == ["r", "lora_dropout", "target_modules"]
    assert 'got "mystery"' in faults[2]
    for document in ([], {"target_modules": []}, {"target_modules": 3}, {}):
        with pytest.raises(InvalidInput):
            read_adapter(document)


@pytest.mark.parametrize(
    "change", [{"peft_type": "IA3"}, {"use_dora": True}, {"modules_to_save": ["lm_head"]}]
)
def test_what_is_not_a_plain_low_rank_adapter_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFeature, match="not modelled"):
        read_adapter(ADAPTER | change)


def test_the_folder_of_an_adapter_is_its_base_model_with_adapters(tmp_path: Path) -> None:
    folder = tmp_path / "my-adapter"
    folder.mkdir()
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(ADAPTER | {"base_model_name_or_path": "llama2-7b"}))
    found = catalog.open_model(str(folder))
    assert found.name == "my-adapter"
    assert found.config.tuning.low_rank == read_adapter(ADAPTER)
    assert replace(found.config, tuning=TRAIN_ALL) == catalog.model("llama2-7b").config
    job = {"global_batch": 8, "sequence": 512, "schedule": "1f1b"}
    options = {"cluster": "dgx-a100", "devices": 1} | job
    light = trainwright.plan(folder, **options)
    assert light.document.request.model.name == "my-adapter"
    assert light.document.stages
    assert light.document.request.recipe is None  # it fits as asked
    heavy = trainwright.plan("llama2-7b", **options).document
    assert heavy.request.recipe.offload == Offload(optimizer=1.0)


def test_an_adapter_without_its_base_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({"r": 8, "target_modules": ["q_proj"]}))
    with pytest.raises(InvalidInput, match="must name the base model"):
        catalog.open_model(str(tmp_path))
    file.write_text(
        json.dumps(
            {"r": 8, "target_modules": ["q_proj"]} | {"base_model_name_or_path": str(tmp_path)}
        )
    )
    with pytest.raises(InvalidInput, match="cannot be read"):
        catalog.open_model(str(tmp_path))


def test_targets_that_the_base_does_not_have_are_refused(tmp_path: Path) -> None:
    given = {"r": 8, "target_modules": ["kv_b_proj"], "base_model_name_or_path": "llama2-7b"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(given))
    with pytest.raises(InvalidInput, match="must be of attention_output, down, gate, key"):
        catalog.open_model(str(tmp_path))
