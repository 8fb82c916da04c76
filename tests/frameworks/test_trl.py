"""Training on a million tokens with TRL: what it takes, and what is written for it."""

from __future__ import annotations

from pathlib import Path

import pytest

import trainwright as tw
from trainwright.errors import InvalidInput
from trainwright.frameworks.jobs.hugging_face import read_axolotl, read_llamafactory, read_trl
from trainwright.frameworks.jobs.script import held_below
from trainwright.frameworks.jobs.settings import Beside, StatedRun
from trainwright.frameworks.read_job import StatedJob, stated_options

# huggingface/trl, pull request 6845: one node of 8 H100, 1,048,576 tokens, context parallel 8,
# checkpoints and, from 30 B on, weights and optimizer on the host, for 32 B the feed-forward part
# in tiles of 16,384 tokens: seconds of a step, bytes.
MILLION = {
    "qwen3-0.6b": (137.0, 27.9e9),
    "qwen3-8b": (364.0, 56.2e9),
    "qwen3-30b-a3b": (483.0, 46.0e9),
    "qwen3-32b": (1295.0, 60.8e9),
}
ON_HOST = {"activations": 1.0}
MOVED = {"qwen3-0.6b": None, "qwen3-8b": ON_HOST}  # of the first it is not said
# FSDP that offloads moves its shards, and with them gradients and states.
ALL_ON_HOST = {"activations": 1.0, "optimizer": 1.0, "gradients": 1.0, "weights": 1.0}


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
        offload=MOVED.get(name, ALL_ON_HOST),
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
    assert document.gap is not None
    assert document.gap < 0.01
    assert document.step_time_s <= 1.1 * MILLION[name][0]
    assert document.request.recipe is not None
    assert document.request.recipe.offload is not None
    moved = f"planned with {document.request.recipe.offload.in_words} on the host"
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
    degrees = made.document.parallelism
    assert degrees is not None
    assert degrees.context > 1
    assert f"parallelism_config_cp_size: {degrees.context}" in started
    again = read_trl(trainer)
    assert (again.loss_chunk, again.on_host) == (256, ON_HOST)


def test_pieces_of_a_ring_are_merged_where_pytorch_runs_it_kernel_by_kernel() -> None:
    """Kernels that put a rank's part together take time, gradients of keys travel in float32."""

    def asked(software: str, **options: object) -> tuple[float, float]:
        run = {"cluster": "dgx-h100", "devices": 8, "zero": 3, "cp": 4, "global_batch": 2}
        run |= {"sequence": 65536, "recompute": "full", "software": software, "changes": False}
        found = tw.estimate("llama3-8b", **(run | options)).document
        return found.step_time_s, found.exposed_communication_s["context"]

    merged, exposed_s = asked("transformers")
    fused, hidden_s = asked("llm-foundry")  # of the same class, with context ranks of its own
    assert 1.02 * fused < merged < 1.25 * fused
    assert exposed_s > hidden_s
    gathered, _ = asked("transformers", context_exchange="all_gather")
    assert gathered == pytest.approx(merged, rel=0.01)  # under way while the first piece runs
    traded, _ = asked("transformers", context_exchange="all_to_all")
    alike, _ = asked("llm-foundry", context_exchange="all_to_all")
    assert traded == pytest.approx(alike, rel=0.01)


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
    assert sum("as TRL has it" in note for note in run.notes) == 3
    words = "gradient_checkpointing: false\nfp16: true\nloss_type: nll\naccelerate_config: zero2\n"
    said = read_trl(name + words)
    assert (said.recompute, said.precision, said.zero) == ("none", "fp16", 2)
    assert not any("as TRL has it" in note for note in said.notes)


def test_float32_weights_under_autocast_are_written_and_read_again(tmp_path: Path) -> None:
    run = {"cluster": "dgx-h100", "devices": 1, "global_batch": 1, "sequence": 2048, "top": 0}
    made = tw.plan("qwen3-0.6b", **run, framework="trl", precision="bf16_autocast", zero=0)
    tw.export(made, "trl", output=tmp_path)
    text = (tmp_path / "sft.yaml").read_text()
    assert "bf16: true" in text
    assert numbers_of(read_trl(text)) == CAST


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
    assert run.on_host == {"weights": 1.0, "optimizer": 1.0, "gradients": 1.0}
    part = read_trl(f'{start} --per_device_train_batch_size 4 --fsdp "shard_grad_op offload"\n')
    assert part.on_host == {"optimizer": 1.0, "gradients": 1.0}


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


# What the optimizer updates, and what autocast does
# --------------------------------------------------

PURE = {"precision": "bf16", "main_weight_dtype": "none", "gradient_dtype": "bf16"}
PURE |= {"moment_dtype": ("bf16",)}
MIXED, CAST = {"precision": "bf16"}, {"precision": "bf16_autocast"}
_RECIPE = "model_name_or_path: Qwen/Qwen3-8B\nmax_length: 1024\n"
_NUMBERS = ("precision", "main_weight_dtype", "gradient_dtype", "moment_dtype")


def numbers_of(run: StatedRun, **given: object) -> dict[str, object]:
    job = StatedJob(name="job", framework="trl", run=run, warnings=())
    found = stated_options(job, given)
    return {name: found[name] for name in _NUMBERS if name in found}


@pytest.mark.parametrize(
    ("said", "numbers"),
    [
        ("", CAST),  # trl/trainer/utils: weights are float32 unless told otherwise, and bf16 is on
        ("dtype: float32\n", CAST),
        ("torch_dtype: float32\nbf16: true\n", CAST),
        ("fp16: true\n", {"precision": "fp16_autocast"}),
        ("bf16: false\n", {"precision": "fp32"}),
        ("dtype: bfloat16\n", PURE),  # autocast has nothing to cast: no copy in float32 anywhere
        ("dtype: bfloat16\nbf16: true\n", PURE),
        ("dtype: bfloat16\nbf16: false\n", PURE),
        ("dtype: auto\n", PURE),
        ("dtype: auto\nbf16: false\n", PURE),
        ("model_init_kwargs:\n  dtype: bfloat16\n", PURE),
        ("dtype: bfloat16\nmodel_init_kwargs: {torch_dtype: float32}\n", CAST),
        ("dtype: bfloat16\nfp16: true\n", {"precision": "fp16"}),
        ("dtype: bfloat16\noptim: adamw_bnb_8bit\n", {**PURE, "moment_dtype": ("int8",)}),
        ("dtype: bfloat16\nbf16: false\noptim: adamw_8bit\n", {**PURE, "moment_dtype": ("int8",)}),
    ],
)
def test_weights_that_nothing_shards_are_updated_in_the_format_they_are_loaded_in(
    said: str, numbers: dict[str, object]
) -> None:
    assert numbers_of(read_trl(_RECIPE + said)) == numbers


@pytest.mark.parametrize(
    ("said", "numbers"),
    [
        ("", MIXED),  # accelerate/utils/fsdp_utils: float32 shards beside mixed precision
        ("dtype: float32\n", MIXED),
        ("dtype: bfloat16\n", MIXED),
        ("dtype: bfloat16\nbf16: false\n", PURE),
        ("bf16: false\n", {"precision": "fp32"}),
    ],
)
def test_shards_of_fsdp_are_float32_wherever_precision_is_mixed(
    said: str, numbers: dict[str, object]
) -> None:
    own = read_trl(_RECIPE + said + "accelerate_config: fsdp2\n")
    assert (own.zero, numbers_of(own)) == (3, numbers)
    assert numbers_of(read_trl(_RECIPE + said), zero=3) == numbers


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_deepspeed_keeps_float32_parts_of_weights_however_they_are_loaded(dtype: str) -> None:
    own = read_trl(_RECIPE + f"dtype: {dtype}\naccelerate_config: zero2\n")
    assert numbers_of(own) == {"precision": "bf16", "gradient_dtype": "bf16"}


@pytest.mark.parametrize(
    ("said", "numbers"),
    [
        ("", CAST),  # frozen weights stay in float32, and autocast copies them
        ("dtype: bfloat16\n", MIXED),
        ("load_in_4bit: true\n", MIXED),
        ("dtype: bfloat16\nbf16: false\n", MIXED),
    ],
)
def test_frozen_weights_lie_in_the_format_they_are_loaded_in(
    said: str, numbers: dict[str, object]
) -> None:
    """Adapters are float32 beside 16-bit ones (peft, autocast_adapter_dtype)."""
    assert numbers_of(read_trl(_RECIPE + "use_peft: true\nlora_r: 8\n" + said)) == numbers


@pytest.mark.parametrize(
    ("said", "full", "adapted"),
    [
        ("bf16: true\n", CAST, MIXED),  # llamafactory/model/adapter: what trains becomes float32
        ("fp16: true\n", {"precision": "fp16_autocast"}, {"precision": "fp16"}),
        ("pure_bf16: true\n", PURE, MIXED),
    ],
)
def test_llama_factory_makes_float32_what_trains(
    said: str, full: dict[str, object], adapted: dict[str, object]
) -> None:
    start = "model_name_or_path: Qwen/Qwen3-8B\ncutoff_len: 1024\n" + said
    assert numbers_of(read_llamafactory(start + "finetuning_type: full\n")) == full
    assert numbers_of(read_llamafactory(start + "finetuning_type: lora\n")) == adapted


@pytest.mark.parametrize(
    ("said", "numbers"),
    [("bf16: auto\n", PURE), ("bf16: auto\nadapter: lora\n", MIXED), ("", {"precision": "fp32"})],
)
def test_axolotl_loads_weights_in_the_format_it_trains_in(
    said: str, numbers: dict[str, object]
) -> None:
    run = read_axolotl("base_model: Qwen/Qwen3-8B\nsequence_len: 1024\n" + said)
    assert numbers_of(run) == numbers
    assert any("are float32 there" in note for note in run.notes) is (numbers == PURE)


@pytest.mark.parametrize(
    ("call", "numbers"),
    [
        ('SFTTrainer("gpt2", SFTConfig(max_length=512))', CAST),
        ('SFTTrainer("gpt2", SFTConfig(model_init_kwargs={"dtype": torch.bfloat16}))', PURE),
        ('SFTTrainer("gpt2", SFTConfig(model_init_kwargs=dict(torch_dtype="auto")))', PURE),
        ('SFTTrainer(AutoModelForCausalLM.from_pretrained("gpt2"), SFTConfig())', PURE),
        (
            'SFTTrainer(AutoModelForCausalLM.from_pretrained("gpt2", dtype=torch.float32), '
            "SFTConfig(bf16=True))",
            CAST,
        ),
        (
            'SFTTrainer(AutoModelForCausalLM.from_pretrained("gpt2", dtype="float32"), '
            "SFTConfig(bf16=False))",
            {"precision": "fp32"},
        ),
    ],
)
def test_a_program_says_how_its_model_is_loaded(call: str, numbers: dict[str, object]) -> None:
    run = read_trl(f"import torch\nfrom trl import SFTConfig, SFTTrainer\n{call}.train()\n")
    assert numbers_of(run) == numbers
    assert any("taken as bf16" in note for note in run.notes) is (
        "dtype" not in call and "Model" in call
    )


@pytest.mark.parametrize(
    ("said", "fused"),
    [("", None), ("optim: adamw_torch\n", False), ("optim: adamw_torch_fused\n", None)],
)
def test_an_update_is_fused_unless_the_file_names_the_one_that_is_not(
    said: str, fused: bool | None
) -> None:
    """transformers 5, training_args: adamw_torch_fused is the default."""
    assert read_trl(_RECIPE + said).fused_update is fused
    assert read_llamafactory("model_name_or_path: gpt2\n" + said).fused_update is fused


@pytest.mark.parametrize("target", ["trl", "axolotl", "llamafactory"])
def test_an_update_that_is_not_fused_is_written_and_read_again(target: str, tmp_path: Path) -> None:
    run = {"cluster": "dgx-h100", "devices": 8, "global_batch": 8, "sequence": 2048, "top": 0}
    made = tw.plan("qwen3-0.6b", **run, framework=target, fused_update=False)
    found = tw.export(made, target, output=tmp_path).document
    assert not any("fused" in each for each in found.not_represented)
    said = " ".join(path.read_text() for path in tmp_path.glob("*.yaml"))
    assert "adamw_torch\n" in said


def test_the_command_of_trl_in_a_script_has_its_defaults() -> None:
    run = read_trl("trl sft --model_name_or_path gpt2 --per_device_train_batch_size 2\n")
    assert (run.recompute, numbers_of(run)) == ("full", CAST)
    plain = read_trl("python train.py --model_name_or_path gpt2 --per_device_train_batch_size 2\n")
    assert (plain.recompute, numbers_of(plain)) == ("none", {"precision": "fp32"})


def test_states_that_fsdp_moves_by_one_word_are_not_said_to_be_left_out(tmp_path: Path) -> None:
    made = tw.plan(
        "llama3-8b",
        cluster="dgx-h100",
        nodes=1,
        global_batch=8,
        sequence=2048,
        framework="trl",
        offload={"optimizer": 1.0, "gradients": 1.0},
        zero=3,
        top=0,
    )
    tw.export(made, "trl", output=tmp_path)
    started = (tmp_path / "accelerate.yaml").read_text()
    assert "fsdp_offload_params: true" in started
    assert "on the host" not in started


OF_QWEN = "model_name_or_path: Qwen/Qwen2.5-0.5B\n"
STARTED = " sft --model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 2\n"
MADE = "from trl import SFTConfig, SFTTrainer\nSFTTrainer(model='Qwen/Qwen2.5-0.5B', {})\n"


def _of_loss(run: StatedRun) -> list[str]:
    return [note for note in run.notes if note.startswith("loss_type")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (OF_QWEN, None),
        ("# trl>=1.0\n" + OF_QWEN, None),
        (OF_QWEN + "max_seq_length: 2048\n", "max_seq_length is of TRL before 0.20"),
        ("# trl==1.6.0\n" + OF_QWEN, "trl==1.6.0 keeps TRL below 1.7"),
        ("trl" + STARTED, None),
        ("pip install 'trl[peft]>=0.9,<1'\ntrl" + STARTED, "trl>=0.9,<1 keeps"),
        (MADE.format("args=SFTConfig(bf16=True)"), None),
        (
            MADE.format("args=SFTConfig(bf16=True), tokenizer=words"),
            "tokenizer= is of TRL before 0.16",
        ),
        (OF_QWEN + "use_peft: true\nlora_target_modules: [q_proj, lm_head]\n", "beside lm_head"),
    ],
)
def test_a_loss_that_is_not_said_is_that_of_the_release(text: str, reason: str | None) -> None:
    run = read_trl(text)
    (note,) = _of_loss(run)
    assert run.loss_chunk == (256 if reason is None else None)
    assert ("chunked_nll" if reason is None else reason) in note


@pytest.mark.parametrize(
    "text",
    [
        OF_QWEN + "loss_type: nll\n",
        OF_QWEN + "use_liger_kernel: true\n",
        OF_QWEN + "beta: 0.1\n",
        "trl" + STARTED.replace("sft", "dpo"),
        "import unsloth\n" + MADE.format("args=SFTConfig(bf16=True)"),
        "torchrun train.py" + STARTED.replace(" sft", ""),
    ],
)
def test_a_loss_that_is_said_or_of_another_trainer_stays(text: str) -> None:
    run = read_trl(text)
    assert (run.loss_chunk, _of_loss(run)) == (None, [])


def test_requirements_beside_a_file_of_trl_say_its_release(tmp_path: Path) -> None:
    beside = Beside(folder=tmp_path, name="sft.yaml")
    (tmp_path / "requirements.txt").write_text("torch\ntrl~=1.6.0\n")
    assert read_trl(OF_QWEN, beside).loss_chunk is None
    (tmp_path / "requirements.txt").write_text("torch\ntrl~=1.6\n")  # up to 2
    assert read_trl(OF_QWEN, beside).loss_chunk == 256


@pytest.mark.parametrize(
    ("asked", "is_below"),
    [
        ("trl==0.12.1", True),
        ("trl == 1.7.0", False),
        ("trl==1.10", False),
        ("trl==1.*", False),
        ("trl==1.6.*", True),
        ("trl<=1.6.2", True),
        ("trl<1.7", True),
        ("trl<1.7.1", False),
        ("trl=0.29", True),
        ('trl = "^0.12"', True),
        ('trl = "1.2"', False),
        ('trl = "~1.2"', True),
        ("git+https://github.com/huggingface/trl.git@v0.12.0", True),
        ("mytrl==0.1 trl_extra==0.1 trl", False),
    ],
)
def test_requirements_of_pip_conda_and_poetry(asked: str, *, is_below: bool) -> None:
    assert (held_below(asked, "trl", (1, 7)) is not None) == is_below


# Release notes of TRL 1.15, gemma-3-1b on one device of 79 GiB, 8,192 tokens in bf16, checkpointed:
# peak GiB before, with all logits, and since, with log-probabilities from a fused head.
PEAKS = {"nll": (30.33, 8.87), "dpo": (48.97, 12.00)}


@pytest.mark.parametrize("kind", PEAKS)
def test_log_probabilities_part_by_part_take_the_published_memory(kind: str) -> None:
    size = 2 if kind == "dpo" else 1  # a pair of answers
    asked = {"cluster": "dgx-h100", "devices": 1, "sequence": 8192, "recompute": "full"}
    asked |= {"global_batch": size, "micro_batch": size, "precision": "bf16", "software": "trl"}
    asked |= {"main_weight_dtype": "none", "gradient_dtype": "bf16", "moment_dtype": "bf16"}
    asked |= {"reference": kind == "dpo" or None, "changes": False}
    whole = {"loss_chunk": 0, "fused_cross_entropy": kind == "dpo"}  # by TRL's kernel since 1.14
    for measured_gib, loss in zip(PEAKS[kind], (whole, {"loss_chunk": 256}), strict=True):
        held = tw.estimate("gemma3-1b", **asked, **loss).document.allocated_bytes
        assert held / 2**30 == pytest.approx(measured_gib, rel=0.06)


@pytest.mark.parametrize(
    ("kind", "liger", "required", "in_parts"),
    [
        ("dpo", False, "trl==1.15.0", True),
        ("grpo", False, "trl~=1.16", True),
        ("rloo", False, "trl>=1.15,<2", True),
        ("dpo", False, "trl>=1.14", False),  # which has it with Liger's switch alone
        ("kto", True, "trl>=1.14", True),
        ("rloo", True, "trl==1.14.2", False),
        ("dpo", True, "trl==1.13", False),
        ("dpo", False, "trl<=1.20", False),  # older ones, too
        ("kto", False, "", False),
    ],
)
def test_preferences_have_all_logits_unless_a_release_is_asked_for_that_has_not(
    kind: str, required: str, *, liger: bool, in_parts: bool
) -> None:
    started = f"trl {kind} --model_name_or_path Qwen/Qwen3-0.6B --per_device_train_batch_size 2"
    started += " --max_length 2048" + " --use_liger_kernel True" * liger
    run = read_trl(f"#!/bin/bash\npip install '{required}'\n{started}\n")
    assert run.loss_chunk == (256 if in_parts else None)
    by_kernel = not in_parts and required in ("trl>=1.14", "trl==1.14.2")
    assert run.fused_cross_entropy == (True if by_kernel else None)
    assert not run.unknown
    said = f"as {required} has them" if in_parts else "--loss-chunk 256"
    assert [note for note in run.notes if note.startswith(f"{kind}: ") and said in note]


NAMED = "model_name_or_path: Qwen/Qwen3-8B\nmax_length: 4096\n"


def test_what_is_asked_for_last_is_checked_as_well() -> None:
    for words, where in (
        ("gradient_checkpointing_kwargs:\n  use_reentrant: perhaps\n", "use_reentrant"),
        ("loss_type: [1]\n", "loss_type"),
        ("loss_type: {}\n", "loss_type"),
    ):
        with pytest.raises(InvalidInput, match=rf"{where}: must be "):
            read_trl(NAMED + words)


def test_several_losses_of_a_preference_are_read() -> None:
    several = read_trl(f"{NAMED}loss_type: [sigmoid, bco_pair]\nbeta: 0.1\nrl: dpo\n")
    assert several.model_name == read_trl(NAMED).model_name
