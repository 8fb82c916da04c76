"""`estimate` of training a part of a model: adapters and frozen layers, by option."""

from __future__ import annotations

import json

import pytest

import trainwright

RUN = (
    *("estimate", "llama3-8b", "--cluster", "dgx-h100", "--nodes", "1", "--tp", "2"),
    *("--global-batch", "32", "--sequence", "4096"),
)
ADAPTERS = {"peft_type": "LORA", "r": 16, "target_modules": ["q_proj", "v_proj"]}


def test_adapters_by_option_are_the_adapters_of_a_folder(run, tmp_path):
    base = {"base_model_name_or_path": "llama3-8b", **ADAPTERS}
    (tmp_path / "adapter_config.json").write_text(json.dumps(base))
    by_folder = run("estimate", str(tmp_path), *RUN[2:], "--json").document
    by_option = run(*RUN, "--lora-rank", "16", "--json").document
    for key in ("step_time_s", "peak_memory_bytes", "memory"):
        assert by_option[key] == by_folder[key]


def test_what_is_frozen_has_neither_gradient_nor_state(run):
    whole, frozen = (
        run(*RUN, *more, "--json").document for more in ((), ("--freeze-blocks", "16"))
    )
    for part in ("gradient_bytes", "optimizer_bytes"):
        ratio = frozen["memory"][0][part] / whole["memory"][0][part]
        assert 0.4 < ratio < 0.65  # half of the blocks and both ends still train
    assert frozen["memory"][0]["weight_bytes"] == whole["memory"][0]["weight_bytes"]
    assert frozen["step_time_s"] < whole["step_time_s"]


def test_a_document_of_a_tuned_model_is_priced_alike_when_it_is_read_again(tmp_path):
    report = trainwright.estimate(
        "llama3-8b",
        cluster="dgx-h100",
        nodes=1,
        global_batch=32,
        sequence=4096,
        lora_rank=8,
        lora_targets=("query", "up"),
    )
    assert report.document.request.model.name == "llama3-8b + LoRA rank 8"
    assert report.document.request.model.content["tuning"]["low_rank"]["rank"] == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--lora-rank", "0"), "lora-rank: must be a whole number >= 1"),
        (("--lora-rank", "4", "--lora-targets", "foo"), "lora-targets: must be of"),
        (("--lora-dropout", "0.1"), "lora-dropout: needs --lora-rank N"),
        (("--lora-rank", "4", "--lora-dropout", "1"), "lora-dropout: must be in [0, 1), got 1.0"),
        (("--freeze-blocks", "99"), "freeze-blocks: must be in 0..32, got 99"),
        (("--freeze", "heads"), "freeze: must be one of patch_embedding, encoder_block"),
    ],
)
def test_what_cannot_be_trained_so_is_refused_by_its_option(run, options, message):
    done = run(*RUN, *options)
    assert done.code == 2
    assert message in done.err
