"""Training on a million tokens with TRL: what it takes, and what is written for it."""

from __future__ import annotations

from pathlib import Path

import pytest

import trainwright as tw
from trainwright.errors import InvalidInput
from trainwright.frameworks.jobs.hugging_face import read_trl

# huggingface/trl, pull request 6845: one node of 8 H100, 1,048,576 tokens, context parallel 8,
# checkpoints and, from 30 B on, weights and optimizer on the host, for 32 B the feed-forward part
# in tiles of 16,384 tokens: seconds of a step, bytes.
MILLION = {
    "qwen3-0.6b": (137.0, None),
    "qwen3-8b": (364.0, 56.2e9),
    "qwen3-30b-a3b": (483.0, 46.0e9),
    "qwen3-32b": (1295.0, 60.8e9),
}
ON_HOST = {"activations": 1.0}
ALL_ON_HOST = {"activations": 1.0, "optimizer": 1.0, "gradients": 1.0}


@pytest.mark.parametrize("name", MILLION)
def test_a_million_tokens_take_the_published_time_and_memory(name: str) -> None:
    report = tw.estimate(
        name,
        cluster="dgx-h100",
        nodes=1,
        global_batch=1,
        sequence=2**20,
        cp=8,
        zero=3,
        recompute="full",
        loss_chunk=256,
        mlp_tile=16384 if name == "qwen3-32b" else None,
        offload=ON_HOST if name in ("qwen3-0.6b", "qwen3-8b") else ALL_ON_HOST,
        software="trl",
    )
    measured_s, peak_bytes = MILLION[name]
    assert report.document.fits
    if peak_bytes is not None:
        assert report.document.allocated_bytes == pytest.approx(peak_bytes, rel=0.10)
    assert report.document.step_time_s == pytest.approx(measured_s, rel=0.10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("qwen3-8b", "qwen3-30b-a3b"),
        pytest.param("qwen3-32b", marks=pytest.mark.slow),
    ],
)
def test_a_plan_for_a_million_tokens_fits_and_is_as_quick_as_the_published_run(name: str) -> None:
    made = tw.plan(
        name, cluster="dgx-h100", nodes=1, global_batch=1, sequence=2**20, framework="trl"
    )
    document = made.document
    assert document.status == "optimal"
    assert document.step_time_s <= 1.1 * MILLION[name][0]
    assert document.request.recipe is not None
    assert document.request.recipe.offload is not None
    moved = f"nothing fits without {document.request.recipe.offload.in_words} on the host"
    assert any(moved in each for each in document.warnings)


def test_what_is_planned_for_trl_is_written_for_it(tmp_path: Path) -> None:
    made = tw.plan(
        "qwen3-8b", cluster="dgx-h100", nodes=1, global_batch=1, sequence=2**20, framework="trl"
    )
    tw.export(made, "trl", output=tmp_path / "files")
    trainer = (tmp_path / "files" / "sft.yaml").read_text()
    assert "loss_type: chunked_nll" in trainer
    assert "offload: true" in trainer
    started = (tmp_path / "files" / "accelerate.yaml").read_text()
    assert "parallelism_config_cp_size: 8" in started
    again = read_trl(trainer)
    assert (again.loss_chunk, again.on_host) == (256, ON_HOST)


@pytest.mark.parametrize("name", ["adamw_8bit", "adafactor", "lion_8bit", "adam"])
def test_the_optimizer_of_a_plan_is_written_and_read_again(name: str, tmp_path: Path) -> None:
    made = tw.plan(
        "llama3-8b",
        cluster="dgx-h100",
        devices=8,
        global_batch=8,
        sequence=2048,
        framework="trl",
        optimizer=name,
        top=0,
    )
    tw.export(made, "trl", output=tmp_path)
    again = read_trl((tmp_path / "sft.yaml").read_text())
    recipe = made.document.request.recipe
    assert (again.optimizer or "adam") == str(recipe.optimizer)
    assert (again.moment_dtypes or ("fp32",)) == recipe.moment_dtypes


def test_what_a_recipe_of_trl_leaves_out_is_on_as_in_trl() -> None:
    name = "model_name_or_path: Qwen/Qwen2.5-0.5B\n"
    run = read_trl(name)
    assert (run.recompute, run.precision, run.zero) == ("full", "bf16", 0)
    assert sum("as TRL has it" in note for note in run.notes) == 2
    said = read_trl(name + "gradient_checkpointing: false\nfp16: true\naccelerate_config: zero2\n")
    assert (said.recompute, said.precision, said.zero) == ("none", "fp16", 2)
    assert not any("as TRL has it" in note for note in said.notes)


def test_float32_weights_under_autocast_are_written_and_read_again(tmp_path: Path) -> None:
    run = {"cluster": "dgx-h100", "devices": 1, "global_batch": 1, "sequence": 2048, "top": 0}
    made = tw.plan("qwen3-0.6b", **run, framework="trl", precision="bf16_autocast", zero=0)
    tw.export(made, "trl", output=tmp_path)
    text = (tmp_path / "sft.yaml").read_text()
    assert "bf16: true" in text
    assert read_trl(text).precision == "bf16_autocast"
    assert read_trl(text.replace("float32", "bfloat16")).precision == "bf16"


@pytest.mark.slow
def test_autocast_is_refused_where_weights_are_gathered_in_16_bit() -> None:
    asked = {"cluster": "dgx-h100", "devices": 8, "global_batch": 8, "sequence": 2048, "dp": 8}
    held = [
        tw.estimate("qwen3-0.6b", **asked, zero=1, software="trl", precision=precision)
        for precision in ("bf16", "bf16_autocast")
    ]
    assert held[1].document.allocated_bytes > held[0].document.allocated_bytes
    with pytest.raises(InvalidInput, match="must be bf16 where gradients or weights are sharded"):
        tw.estimate("qwen3-0.6b", **asked, zero=3, precision="bf16_autocast")
    del asked["dp"]
    found = tw.plan("qwen3-0.6b", **asked, precision="bf16_autocast", framework="any", top=0)
    assert found.document.parallelism is not None
    assert found.document.parallelism.zero_stage <= 1
    with pytest.raises(InvalidInput, match="must be 0 or 1 beside bf16_autocast, got 3"):
        tw.plan("qwen3-0.6b", **asked, precision="bf16_autocast", zero=3)


@pytest.mark.parametrize(
    ("words", "zero"),
    [
        ('"full_shard auto_wrap"', 3),
        ("full_shard", 3),
        ('"shard_grad_op auto_wrap"', 2),
        ("hybrid_shard_zero2", 2),
        ("no_shard", 0),
        ("False", 0),
    ],
)
def test_a_script_says_by_words_what_fsdp_shards(words: str, zero: int) -> None:
    start = "torchrun --nproc_per_node=8 train.py --model_name_or_path meta-llama/Meta-Llama-3-8B"
    run = read_trl(f"{start} --per_device_train_batch_size 4 --bf16 True --fsdp {words}\n")
    assert (run.zero, run.unknown) == (zero, ())


def test_fsdp_of_a_script_may_move_states_to_the_host() -> None:
    start = "torchrun --nproc_per_node=8 train.py --model_name_or_path gpt2"
    run = read_trl(f'{start} --per_device_train_batch_size 4 --fsdp "full_shard offload"\n')
    assert run.on_host == {"optimizer": 1.0, "gradients": 1.0}


PROGRAM = """
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, TrainingArguments, Trainer
from peft import LoraConfig
NAME, BATCH = pick(), 2
name = "Qwen/Qwen3-8B"
bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained(name, quantization_config=bits)
adapters = LoraConfig(r=8, target_modules=["q_proj", "v_proj"])
size = 4
args = TrainingArguments(
    "out", per_device_train_batch_size=size, gradient_accumulation_steps=steps(), bf16=True
)
Trainer(model=model, args=args, train_dataset=load()).train()
"""


def test_a_program_states_its_run_where_its_arguments_stand_as_they_are() -> None:
    run = read_trl(PROGRAM)
    assert (run.model_name, run.micro_batch, run.precision) == ("Qwen/Qwen3-8B", 4, "bf16")
    assert (run.lora_rank, run.weight_bits, run.recompute) == (8, 4, "none")
    assert run.lora_targets == ("query", "value")
    (lost,) = (note for note in run.notes if "not written out" in note)
    assert lost.startswith("gradient_accumulation_steps")


def test_a_program_of_trl_has_its_defaults() -> None:
    text = 'from trl import SFTConfig\nSFTTrainer("gpt2", SFTConfig(max_length=512))\n'
    run = read_trl(text)
    assert (run.model_name, run.sequence, run.recompute) == ("gpt2", 512, "full")


def test_a_program_that_does_not_parse_is_refused_by_its_line() -> None:
    with pytest.raises(InvalidInput, match="line 2"):
        read_trl("from trl import SFTConfig\nSFTConfig(max_length=\n")


@pytest.mark.parametrize("zero", [0, 3])
def test_files_that_load_and_train_in_bf16_say_what_gradients_and_moments_are(
    zero: int, tmp_path: Path
) -> None:
    """Without autocast nothing is cast: gradients and moments are made like the weights."""
    run = {"cluster": "dgx-h100", "devices": 8, "global_batch": 8, "sequence": 2048, "top": 0}
    pure = {"main_weight_dtype": "none", "gradient_dtype": "bf16", "moment_dtype": "bf16"}
    made = tw.plan("qwen3-0.6b", **run, framework="trl", precision="bf16", zero=zero, **pure)
    found = tw.export(made, "trl", output=tmp_path).document
    assert not [each for each in found.not_represented if "dtype" in each]
    trainer = (tmp_path / "sft.yaml").read_text()
    assert "dtype: bfloat16" in trainer
    assert "bf16: false" in trainer
    assert 'mixed_precision: "no"' in (tmp_path / "accelerate.yaml").read_text()
    again = read_trl(trainer)
    assert (again.main_weight_dtype, again.gradient_dtype) == ("none", "bf16")
    assert again.moment_dtypes == ("bf16",)
    mixed = read_trl(trainer.replace("bf16: false", "bf16: true"))
    assert (mixed.main_weight_dtype, mixed.gradient_dtype) == (None, None)


def test_gradients_in_bf16_beside_mixed_precision_are_not_in_the_files(tmp_path: Path) -> None:
    """FSDP's shards are float32 beside it, and so are their gradients."""
    run = {"cluster": "dgx-h100", "devices": 8, "global_batch": 8, "sequence": 2048, "top": 0}
    made = tw.plan("qwen3-0.6b", **run, framework="trl", zero=3, gradient_dtype="bf16")
    found = tw.export(made, "trl", output=tmp_path).document
    assert "gradient dtype: bf16" in found.not_represented


@pytest.mark.parametrize(("zero", "dtype"), [(0, "float32"), (3, "bfloat16")])
def test_weights_that_are_updated_in_float32_are_loaded_so_unless_fsdp_makes_them(
    zero: int, dtype: str, tmp_path: Path
) -> None:
    run = {"cluster": "dgx-h100", "devices": 8, "global_batch": 8, "sequence": 2048, "top": 0}
    made = tw.plan("qwen3-0.6b", **run, framework="trl", precision="bf16", zero=zero)
    tw.export(made, "trl", output=tmp_path)
    trainer = (tmp_path / "sft.yaml").read_text()
    assert f"\ndtype: {dtype}\n" in trainer
    assert "bf16: true" in trainer
