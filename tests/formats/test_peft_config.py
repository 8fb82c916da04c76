"""Adapter files of the peft library."""

from dataclasses import replace
from typing import Any

import pytest

from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats import catalog
from trainwright.formats.peft_config import read_adapter
from trainwright.model import LowRank, RunShape, Tuning, layer_graph

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
