"""`estimate` of training a part of a model: adapters and frozen layers, by option."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import trainwright
from trainwright.errors import UnsupportedFeature
from trainwright.formats import catalog
from trainwright.model import RunShape, Tuning, layer_graph

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


def test_a_reference_is_held_frozen_and_answers_once(run):
    """As for DPO: a copy without gradients, whose pass is a third of a step's model FLOPs."""
    run_as = (*RUN, "--recompute", "full", "--zero", "3", "--json")
    alone, beside = (run(*run_as, *more).document for more in ((), ("--reference",)))
    before, after = alone["memory"][0], beside["memory"][0]
    assert after["weight_bytes"] == pytest.approx(2 * before["weight_bytes"])
    for part in ("gradient_bytes", "optimizer_bytes", "activation_bytes"):
        assert after[part] == before[part]
    work_s = [each["pipeline_s"] for each in (alone, beside)]
    assert 1.15 < work_s[1] / work_s[0] < 1.35  # a forward pass beside one, its repetition and two
    assert beside["mfu"] * beside["step_time_s"] == pytest.approx(
        4 / 3 * alone["mfu"] * alone["step_time_s"]
    )
    assert beside["request"]["model"]["name"] == "llama3-8b beside a reference"


def test_adapters_need_no_copy_of_the_reference(run):
    adapted = (*RUN, "--lora-rank", "16", "--json")
    alone, beside = (run(*adapted, *more).document for more in ((), ("--reference",)))
    assert beside["memory"][0]["weight_bytes"] == alone["memory"][0]["weight_bytes"]
    assert beside["step_time_s"] > 1.2 * alone["step_time_s"]


def test_a_plan_with_a_reference_costs_what_its_estimate_does_and_says_who_cannot_train_it():
    asked = {"cluster": "dgx-h100", "devices": 8, "global_batch": 16, "sequence": 2048, "top": 0}
    made = trainwright.plan("llama3.2-1b", framework="trl", reference=True, **asked).document
    assert made.stages
    assert made.request.model.content["tuning"]["reference"] is True
    assert any("reference: on: trl trains one model alone" in each for each in made.warnings)
    assert trainwright.verify(made, level=0).passed
    for target in ("trl", "pytorch", "dry-run"):
        with pytest.raises((trainwright.Inexpressible, UnsupportedFeature), match="reference"):
            trainwright.export(made, target)


@pytest.mark.parametrize("name", ["gpt2", "qwen3-0.6b", "deepseek-v2-lite", "qwen2-vl-2b"])
def test_a_reference_doubles_what_is_held_and_leaves_what_trains(name):
    """Weights that two layers share are tied in each of the two models, and not between them."""
    run_as = RunShape(microbatch_size=1, sequence_length=512)
    plain = catalog.model(name).config
    alone = layer_graph(plain, run_as)
    beside = layer_graph(replace(plain, tuning=Tuning(reference=True)), run_as)
    assert beside.num_parameters == 2 * alone.num_parameters
    assert beside.num_trainable_parameters == alone.num_trainable_parameters
    assert beside.model_flops == pytest.approx(2 * alone.model_flops)
    kept = [
        sum(t.bytes_per_device(run_as) for at in graph.layers for t in graph.classes[at].saved)
        for graph in (alone, beside)
    ]
    assert kept[0] == kept[1]
