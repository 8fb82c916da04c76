"""Settings that move time or memory are read, or named: none is passed over as harmless."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainwright.errors import InvalidInput
from trainwright.frameworks.jobs import Beside, read
from trainwright.frameworks.jobs.detect import format_of
from trainwright.frameworks.jobs.settings import StatedRun
from trainwright.frameworks.read_job import open_stated
from trainwright.model import Norm

GPT = "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 512 --vocab-size 1024"
NEOX = "num_layers: 2\nhidden_size: 256\nnum_attention_heads: 4\npos_emb: rotary\nvocab_size: 1024"
AXOLOTL = "base_model: meta-llama/Llama-3.1-8B\n"


def said(run: StatedRun) -> str:
    return " ".join((*run.unknown, *run.notes))


@pytest.mark.parametrize("key", ["activation_checkpointing", "fsdp_activation_checkpointing"])
def test_blocks_that_fsdp_wraps_are_recomputed_where_its_table_says_so(key: str) -> None:
    assert read("axolotl", f"{AXOLOTL}fsdp_config:\n  {key}: true\n").recompute == "full"
    assert read("axolotl", f"{AXOLOTL}fsdp_config:\n  {key}: false\n").recompute == "none"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("axolotl", AXOLOTL + "rl: ebft"),
        ("llamafactory", "model_name_or_path: gpt2\nstage: other\n"),
        ("trl", "model_name_or_path: gpt2\nbeta: 0.1\n"),
        ("torchtune", "model: {_component_: m}\nloss: {_component_: torchtune.rlhf.loss.DPOLoss}"),
        ("neox", NEOX + "\ntrain_impl: dpo"),
    ],
)
def test_training_on_preferences_is_named(form: str, text: str) -> None:
    assert "priced as supervised training" in said(read(form, text))
    plain = text.replace("dpo", "sft").replace("DPO", "CE").replace("beta", "seed")
    plain = plain.replace("stage: other", "stage: sft").replace("rl: ebft", "")
    plain = plain.replace("train_impl: sft", "")
    assert "priced as supervised training" not in said(read(form, plain))


DPO = "from trl import DPOConfig, DPOTrainer\nDPOConfig(per_device_train_batch_size=3)\n"
PREFERS = AXOLOTL + "micro_batch_size: 3\nrl: "
FACTORY = "per_device_train_batch_size: 3\nstage: "


@pytest.mark.parametrize(
    ("form", "text", "pairs", "missing"),
    [
        ("axolotl", PREFERS + "dpo", 2, "frozen copy"),
        ("axolotl", PREFERS + "dpo\nadapter: lora", 2, None),
        ("axolotl", PREFERS + "orpo", 2, None),
        ("axolotl", PREFERS + "kto", 1, "frozen copy"),
        ("axolotl", PREFERS + "grpo", 1, "generation"),
        ("llamafactory", FACTORY + "rm\nfinetuning_type: full\n", 2, "head of a language"),
        ("llamafactory", FACTORY + "dpo\npref_loss: simpo\n", 2, None),
        ("trl", DPO, 2, "frozen copy"),
        ("trl", DPO.replace("=3", "=3, precompute_ref_log_probs=True"), 2, None),
        ("trl", DPO.replace("DPO", "GRPO"), 1, "generation"),
        ("trl", "python dpo.py --per_device_train_batch_size 3\n", 2, "frozen copy"),
    ],
)
def test_pairs_of_answers_are_priced_and_what_is_not_is_named(
    form: str, text: str, pairs: int, missing: str | None
) -> None:
    run = read(form, text)
    assert (run.micro_batch, run.per_example) == (3 * pairs, pairs)
    assert "supervised" not in said(run)
    assert ("two sequences of one microbatch" in said(run)) == (pairs == 2)
    if missing is None:
        assert "not priced" not in said(run)
    else:
        assert missing in said(run)
    refers = "adapter" in text or missing == "frozen copy"
    assert run.reference == (True if refers else None)


def test_a_program_that_makes_its_trainer_is_told_by_its_content() -> None:
    assert format_of(DPO, "train.py") == format_of(DPO.replace("DPO", "SFT"), "train.py") == "trl"
    assert format_of("import torch\ntorch.compile(model)\n", "train.py") is None


def test_a_script_from_before_fused_attention_keeps_the_scores() -> None:
    old = read("megatron", f"{GPT} --checkpoint-activations --fp16")
    assert old.flash_attention is False
    assert (
        read("megatron", f"{GPT} --checkpoint-activations --use-flash-attn").flash_attention is None
    )
    assert read("megatron", f"{GPT} --transformer-impl local").flash_attention is False
    assert read("megatron", f"{GPT} --attention-backend flash").flash_attention is None
    assert read("neox", NEOX).flash_attention is False
    flash = 'attention_config: [[["flash"], 2]]'
    assert read("neox", f"{NEOX}\n{flash}").flash_attention is None


@pytest.mark.parametrize(
    "flag",
    ["--encoder-tensor-model-parallel-size 2", "--mos", "--random-ltd", "--vision-model-type clip"],
)
def test_flags_of_other_models_and_losses_are_named(flag: str) -> None:
    assert flag.split()[0] in said(read("megatron", f"{GPT} {flag}"))


def test_words_of_primus_are_read_as_it_means_them() -> None:
    run = read(
        "megatron",
        f"""{GPT} --mtp_num_layers None --pipeline_model_parallel_size 2
        --pipeline_model_parallel_layout "'Et|t*3,L'" """,
    )
    assert run.blocks == (1, 3)


def test_a_part_of_the_optimizer_may_lie_on_the_host() -> None:
    text = """{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2,
      "offload_optimizer": {"device": "cpu", "ratio": 0.3}}}"""
    assert read("deepspeed", text).on_host == {"optimizer": 0.3, "gradients": 1.0}


def test_widths_of_neox_are_rounded_up() -> None:
    text = f"{NEOX}\nactivation: swiglu\nmlp_multiple_of: 256"
    model = read("neox", text).model
    assert model is not None
    assert model.ffn_size == 768  # 8 x 256 / 3 = 682


VERL = """python3 -m verl.trainer.main_ppo data.max_prompt_length=1024 \\
 data.max_response_length=1024 \\
 actor_rollout_ref.model.path=$HOME/models/Qwen/Qwen2.5-7B-Instruct trainer.n_gpus_per_node=8 \\
 actor_rollout_ref.actor.use_dynamic_bsz=True \\
 actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 \\
 actor_rollout_ref.actor.fsdp_config.fsdp_size=4
"""


def test_microbatches_that_verl_fills_with_tokens_are_counted_in_sequences() -> None:
    run = read(None, VERL)
    assert (run.model_name, run.micro_batch) == ("Qwen2.5-7B-Instruct", 8)
    assert "fsdp_size 4" in said(run)


SCRIPT = """#!/bin/bash
cat > ds.json <<EOT
{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}
EOT
torchrun --nproc_per_node 4 train.py --model_name_or_path Qwen/Qwen2.5-7B --bf16 True \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --gradient_checkpointing True \\
  --model_max_length 4096 {how}
"""


def test_a_script_with_arguments_of_the_hugging_face_trainer_is_read(tmp_path) -> None:
    text = SCRIPT.replace("{how}", "--deepspeed ds.json")
    assert format_of(text, "finetune.sh") == "trl"
    run = read(None, text, Beside(name="finetune.sh"))
    assert (run.zero, run.micro_batch, run.batch_per_replica, run.sequence) == (3, 2, 16, 4096)
    assert (run.recompute, run.precision, run.num_devices) == ("full", "bf16", 4)
    assert run.on_host == {"optimizer": 1.0, "gradients": 1.0}


def test_the_file_that_accelerate_is_started_with_says_what_is_sharded(tmp_path) -> None:
    torchrun = "torchrun --nproc_per_node 4"
    text = SCRIPT.replace("{how}", "").replace(
        torchrun, "accelerate launch --num_processes 4 --config_file fsdp.yaml"
    )
    beside = Beside(name="finetune.sh", folder=tmp_path)
    guessed = read(None, text, beside)
    assert guessed.zero == 3
    assert "fsdp.yaml is not beside this file" in said(guessed)
    (tmp_path / "fsdp.yaml").write_text(
        "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}\n"
    )
    assert read(None, text, beside).zero == 2


def test_options_of_accelerate_launch_say_what_is_sharded() -> None:
    def started(options: str) -> StatedRun:
        text = SCRIPT.replace("{how}", "").replace(
            "torchrun --nproc_per_node 4", f"accelerate launch --num_processes 4 {options}"
        )
        return read(None, text, Beside(name="finetune.sh"))

    assert started("--multi_gpu").zero == 0
    assert started("--use_fsdp --fsdp_sharding_strategy FULL_SHARD").zero == 3
    assert started("--use_fsdp --fsdp_sharding_strategy 2").zero == 2
    offloaded = started("--use_deepspeed --zero_stage 2 --offload_optimizer_device cpu")
    assert (offloaded.zero, offloaded.on_host) == (2, {"optimizer": 1.0, "gradients": 1.0})


def test_a_test_of_nemo_has_its_settings_in_sections() -> None:
    text = """MODEL_ARGS:
  trainer.num_nodes: 1
  trainer.devices: 8
  trainer.max_steps: 50
  trainer.strategy.tensor_model_parallel_size: 2
  model.config.num_layers: 12
  data.micro_batch_size: 1
  data.global_batch_size: 8
"""
    run = read("megatron", text)
    assert (run.tp, run.micro_batch, run.global_batch, run.num_devices) == (2, 1, 8, 8)
    assert (run.precision, run.zero, run.unknown) == ("bf16", 1, ())
    assert "recipe of NeMo" in said(run)


TABLES = {
    "job": {"print_config": True},
    "model": {"name": "llama3", "flavor": "8B"},
    "training": {"local_batch_size": 2, "seq_len": 4096, "global_batch_size": -1},
    "parallelism": {"tensor_parallel_degree": 2, "data_parallel_shard_degree": -1},
    "activation_checkpoint": {"mode": "full"},
    "comm": {"init_timeout_seconds": 300},
}


@pytest.mark.parametrize("newest", [True, False])
def test_a_log_of_torchtitan_says_what_was_run(newest: bool) -> None:
    shown = f"configs: {json.dumps(TABLES, indent=2)}" if newest else f"args: {TABLES}"
    text = f"""[rank0]:[titan] 2025-11-01 10:00:00,000 - root - INFO - Running with {shown}
[rank0]:[titan] - root - INFO - Building 2-D device mesh with ['dp_shard', 'tp'], [8, 2]
[rank0]:[titan] - root - INFO - step:  1  loss: 12.2  memory: 70.1GiB(88%)  tps: 5,762
[rank0]:torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
    assert format_of(text, "run.log") == "torchtitan"
    for name in (None, "log", "torchtitan"):
        run = read(name, text)
        assert (run.tp, run.micro_batch, run.sequence, run.recompute) == (2, 2, 4096, "full")
        assert (run.model_name, run.num_devices, run.unknown) == ("llama3-8b", 16, ())


def test_a_file_of_nemo_1_means_what_its_own_words_say() -> None:
    """Its switches for 8 bits stand beside one that is off, and its optimizer may not shard."""
    text = (
        "trainer: {devices: 8, num_nodes: 2, precision: bf16}\n"
        "model:\n  mcore_gpt: true\n  megatron_amp_O2: true\n  micro_batch_size: 1\n"
        "  global_batch_size: 32\n  tensor_model_parallel_size: 2\n"
        "  pipeline_model_parallel_size: 2\n  encoder_seq_length: 4096\n  num_layers: 4\n"
        "  hidden_size: 512\n  ffn_hidden_size: ${multiply:4, ${.hidden_size}}\n"
        "  num_attention_heads: 8\n  normalization: rmsnorm\n  bias: false\n"
        "  activation: fast-swiglu\n  share_embeddings_and_output_weights: false\n"
        "  activations_checkpoint_granularity: full\n  activations_checkpoint_method: block\n"
        "  activations_checkpoint_num_layers: 1\n  sequence_parallel: true\n"
        "  fp8: false\n  fp8_hybrid: true\n"
        "  tokenizer: {library: megatron, type: GPT2BPETokenizer}\n"
        "  optim: {name: fused_adam}\n"
    )
    run = read("megatron-bridge", text, Beside(name="llama.yaml"))
    assert (run.precision, run.zero, run.recompute) == ("bf16", 0, "full:1")
    assert run.model is not None
    model = run.model
    assert (model.ffn_size, model.gated, model.tied_embeddings) == (2048, True, False)
    assert (model.norm, model.mlp_bias, model.vocabulary_size) == (Norm.RMS, False, 50257)
    assert run.unknown == ()
    eight = read("megatron-bridge", text.replace("fp8: false", "fp8: true"), Beside(name="a.yaml"))
    assert eight.precision == "fp8"


def test_replicas_of_sharded_state_in_maxtext_are_copies() -> None:
    text = (
        "base_config: base.yml\nmodel_name: llama3-8b\nper_device_batch_size: 0.5\n"
        "dcn_data_parallelism: 2\nici_fsdp_parallelism: -1\nici_tensor_parallelism: 4\n"
    )
    run = read("maxtext", text)
    assert (run.zero, run.state_copies, run.tp, run.micro_batch) == (3, 2, 4, 2)
    assert not any("part of a sequence" in note for note in run.notes)


def test_a_recipe_of_automodel_is_read() -> None:
    text = (
        "step_scheduler: {global_batch_size: 64, local_batch_size: 4}\n"
        "model:\n  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained\n"
        "  pretrained_model_name_or_path: meta-llama/Llama-3.1-8B\n  torch_dtype: bf16\n"
        "distributed:\n  strategy: fsdp2\n  dp_size: none\n  tp_size: 2\n  pp_size: 2\n"
        "  sequence_parallel: true\n  activation_checkpointing: true\n"
        "  pipeline: {pp_schedule: 1f1b, pp_microbatch_size: 2}\n"
        "peft: {dim: 16, match_all_linear: true}\npacked_sequence: {packed_sequence_size: 4096}\n"
    )
    assert format_of(text, "recipe.yaml") == "automodel"
    run = read("automodel", text)
    assert (run.tp, run.pp, run.dp, run.zero, run.sequence_parallel) == (2, 2, None, 2, True)
    assert (run.micro_batch, run.global_batch, run.sequence) == (2, 64, 4096)
    assert (run.recompute, run.lora_rank, run.main_weight_dtype) == ("full", 16, "none")
    assert run.unknown == ()


def test_a_script_of_llamafactory_is_read_in_its_own_words() -> None:
    """Shortened from github.com/hiyouga/LlamaFactory issue 3494."""
    script = """accelerate launch --config_file fsdp_config.yaml src/train_bash.py \\
    --stage sft --do_train --model_name_or_path meta-llama/Llama-2-7b-hf \\
    --finetuning_type lora --lora_target q_proj,v_proj --cutoff_len 32768 \\
    --per_device_train_batch_size 1 --gradient_accumulation_steps 2 --quantization_bit 4 --fp16
"""
    for form in ("trl", "llamafactory"):
        found = read(form, script)
        assert (found.lora_rank, found.weight_bits, found.sequence) == (8, 4, 32768)
        assert (found.recompute, found.lora_targets) == ("full", ("query", "value"))


def test_a_script_of_llamafactory_shards_as_its_deepspeed_file_says(tmp_path: Path) -> None:
    """Shortened from github.com/hiyouga/LlamaFactory issue 747, of 2023."""
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    script = """deepspeed --num_gpus 8 src/train_bash.py --deepspeed ds.json --stage sft \\
    --do_train --model_name_or_path meta-llama/Llama-2-70b-hf --finetuning_type lora \\
    --fp16 --max_source_length 1024 --max_target_length 512 --per_device_train_batch_size 16
"""
    for form in ("trl", "llamafactory"):  # of which the file alone is not the settings
        found = read(form, script, Beside(folder=tmp_path, name="train.sh"))
        assert (found.zero, found.sequence, found.unknown) == (3, 1536, ())


def test_a_recipe_that_follows_the_program_is_read_with_what_shards_it(tmp_path: Path) -> None:
    """As huggingface/alignment-handbook starts its programs."""
    (tmp_path / "zero3.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {zero_stage: 3}\n"
    )
    (tmp_path / "dpo.yaml").write_text(
        "model_name_or_path: mistralai/Mistral-7B-v0.1\nbf16: true\nmax_length: 1024\n"
        "gradient_checkpointing: true\nper_device_train_batch_size: 1\n"
    )
    started = "ACCELERATE_LOG_LEVEL=info accelerate launch --config_file zero3.yaml run_dpo.py"
    for rest in ("dpo.yaml", "--config dpo.yaml"):
        script = f"{started} {rest}\n"
        assert format_of(script, "train.sh", tmp_path) == "trl"
        found = read(None, script, Beside(folder=tmp_path, name="train.sh"))
        assert (found.zero, found.num_devices, found.sequence) == (3, 8, 1024)
        assert (found.micro_batch, found.recompute, found.per_example) == (2, "full", 2)


MAXTEXT = "base_config: base.yml\nmodel_name: mixtral-8x7b\nnum_experts: 8\n"
AUTOMODEL = "step_scheduler: {local_batch_size: 1}\nmodel:\n  _target_: m\n"


@pytest.mark.parametrize(
    ("form", "text", "word"),
    [
        ("megatron", f"{GPT} --no-bias-gelu-fusion", "no-bias-gelu-fusion"),
        ("megatron", f"{GPT} --deterministic-mode", "deterministic-mode"),
        ("megatron", f"{GPT} --defer-embedding-wgrad-compute", "defer-embedding-wgrad-compute"),
        ("neox", f"{NEOX}\ncurriculum_learning: {{enabled: true, min_difficulty: 64}}",
         "curriculum_learning.enabled"),
        ("neox", f"{NEOX}\ncheckpoint_activations: true\nmodel_parallel_size: 2\n"
         "partition_activations: true", "partition_activations"),
        ("maxtext", f"{MAXTEXT}matmul_precision: highest\n", "matmul_precision highest"),
        ("maxtext", f"{MAXTEXT}sparse_matmul: false\n", "every expert computes every token"),
        ("maxtext", f"{MAXTEXT}float32_logits: true\n", "float32_logits"),
        ("automodel", f"{AUTOMODEL}loss_fn: {{_target_: a.FusedLinearCrossEntropy}}",
         "FusedLinearCrossEntropy"),
        ("automodel", f"{AUTOMODEL}optimizer: {{_target_: te.FusedAdam, master_weight_bits: 24}}",
         "optimizer.master_weight_bits"),
        ("deepspeed", '{"zero_optimization": {}, "data_efficiency": {"enabled": true}}',
         "data_efficiency.enabled"),
        ("nanotron", "parallelism: {dp: 1}\ntokens: {batch_size_rampup: [1, 2]}\n",
         "batch_size_rampup"),
    ],
)  # fmt: skip
def test_what_moves_time_or_memory_and_is_not_modelled_is_named(form, text, word) -> None:
    assert word in said(read(form, text))
    for on, off in (("true", "false"), ("highest", "default"), ("INDUCTOR", "NO")):
        if f": {on}" in text and "partition" not in text:
            assert word not in said(read(form, text.replace(f": {on}", f": {off}")))


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("axolotl", f"{AXOLOTL}attn_implementation: eager\n"),
        ("llamafactory", "model_name_or_path: gpt2\nstage: sft\nflash_attn: disabled\n"),
        ("trl", "model_name_or_path: gpt2\nattn_implementation: eager\n"),
    ],
)
def test_attention_that_is_told_to_be_plain_is_not_fused(form: str, text: str) -> None:
    assert read(form, text).flash_attention is False
    other = text.replace("eager", "sdpa").replace("disabled", "fa2")
    assert read(form, other).flash_attention is None


@pytest.mark.parametrize(
    ("kind", "sent"),
    [("deepep", "hierarchical"), ("hybridep", "hierarchical"), ("torch", "all_to_all")],
)
def test_how_automodel_sends_tokens_to_experts_is_read(kind: str, sent: str) -> None:
    run = read("automodel", f"{AUTOMODEL}  backend: {{dispatcher: {kind}}}\n")
    assert run.token_dispatcher == sent


def test_a_key_of_thousands_of_parts_is_refused_at_once() -> None:
    text = "[training]\n" + ".".join(["a"] * 5000) + " = 1\n[model]\n[parallelism]\n"
    assert format_of(text, "x.toml") is None
    with pytest.raises(InvalidInput, match="parts"):
        read("torchtitan", text)


def test_the_length_of_text_beside_images_is_the_decoders() -> None:
    text = f"{GPT} --vision-model-type clip --decoder-seq-length 2048"
    assert read("megatron", text).sequence == 2048
    assert read("megatron", f"{GPT} --decoder-seq-length 2048").sequence == 512


def test_the_arguments_of_a_launcher_alone_are_no_job() -> None:
    with pytest.raises(InvalidInput, match="no argument of Megatron"):
        read("megatron", 'ARGS="--nproc_per_node 8 --nnodes 2 --master_port 6000"\n')


def test_settings_of_deepspeed_that_a_program_writes_are_asked_for() -> None:
    script = (
        "sed s/X/1/ t.json > ds.json\ndeepspeed train.py --model_name_or_path gpt2 "
        "--per_device_train_batch_size 1 --deepspeed ds.json\n"
    )
    with pytest.raises(InvalidInput, match="what it says is not known: give a copy"):
        read("trl", script)


def test_how_far_neox_pads_its_vocabulary_is_read() -> None:
    assert read("neox", f"{NEOX}\nmake_vocab_size_divisible_by: 64").vocabulary_multiple == 64


ON_FSDP = """\
base_model: NousResearch/Llama-2-70b-hf
adapter: qlora
sequence_len: 512
micro_batch_size: 1
gradient_checkpointing: true
gradient_checkpointing_kwargs: {{use_reentrant: {reentrant}}}
fsdp: [full_shard, auto_wrap]
fsdp_config: {{fsdp_offload_params: true, fsdp_version: {version}}}
"""


@pytest.mark.parametrize(
    ("version", "reentrant", "engine"),
    [(1, "true", "fsdp1"), (2, "true", None), (1, "false", None)],
)
def test_the_first_fsdp_is_an_engine_of_its_own_beside_reentrant_checkpoints(
    version: int, reentrant: str, engine: str | None
) -> None:
    run = read("axolotl", ON_FSDP.format(version=version, reentrant=reentrant))
    assert (run.sharded_by, run.zero) == (engine, 3)
    assert run.on_host == {"weights": 1.0, "optimizer": 1.0, "gradients": 1.0}


def test_llamafactory_checkpoints_are_reentrant_under_the_first_fsdp(tmp_path: Path) -> None:
    (tmp_path / "fsdp.yaml").write_text(
        "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n"
        "  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_offload_params: true\n"
    )
    script = tmp_path / "train.sh"
    script.write_text(
        "accelerate launch --config_file fsdp.yaml src/train.py --stage sft --do_train \\\n"
        "  --model_name_or_path meta-llama/Llama-2-70b-hf --finetuning_type lora \\\n"
        "  --quantization_bit 4 --cutoff_len 512 --per_device_train_batch_size 1 --bf16\n"
    )
    job = open_stated(None, script)
    assert (job.software or "").endswith(" with fsdp1")
    assert job.run.on_host["weights"] == 1.0


@pytest.mark.parametrize(("name", "optimizer"), [("lomo", "sgd"), ("adalomo", "adafactor")])
def test_lomo_updates_in_the_backward_pass(name: str, optimizer: str) -> None:
    run = read("axolotl", f"{AXOLOTL}optimizer: {name}\n")
    assert (run.optimizer, run.update_in_backward) == (optimizer, True)
    assert run.main_weight_dtype == "none"


def test_torchtune_may_update_in_the_backward_pass() -> None:
    text = "model:\n  _component_: torchtune.models.llama3_1.llama3_1_8b\nbatch_size: 2\n"
    text += "tokenizer:\n  max_seq_len: 4096\noptimizer:\n  _component_: torch.optim.AdamW\n"
    run = read("torchtune", f"{text}optimizer_in_bwd: true\n")
    assert run.update_in_backward is True
    assert read("torchtune", text).update_in_backward is None


def test_what_verl_moves_between_steps_is_on_the_device_in_one(tmp_path: Path) -> None:
    script = tmp_path / "grpo.sh"
    script.write_text(
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B \\\n"
        "  actor_rollout_ref.actor.fsdp_config.param_offload=True \\\n"
        "  actor_rollout_ref.actor.fsdp_config.optimizer_offload=True trainer.n_gpus_per_node=8\n"
    )
    job = open_stated(None, script)
    assert job.run.offload and not job.run.on_host
    assert "priced on the device, where a step needs it" in " ".join(job.warnings)


TUNED = "base_model: Qwen/Qwen2.5-7B\nsequence_len: 512\nmicro_batch_size: 1\n"
SHARDED = "distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {{{}}}\n"
PARTS = "parallelism: {{dp: 2, tp: 2, pp: 1, tp_mode: {}}}\nmodel: {{dtype: bfloat16}}\n"
OLMO = "global_train_batch_size: 8\nmodel: {{}}\nfsdp: {{}}\ndistributed_strategy: {}\n"


@pytest.mark.parametrize(
    ("form", "text", "word", "known"),
    [
        ("axolotl", TUNED + "adapter: {}\n", "llama-adapter", "qlora"),
        ("axolotl", TUNED + "torch_dtype: {}\n", "float7", "bfloat16"),
        ("accelerate", "distributed_type: {}\nnum_processes: 8\n", "FSDPS", "MULTI_GPU"),
        ("accelerate", "distributed_type: NO\nmixed_precision: {}\n", "bf17", "bf16"),
        ("accelerate", SHARDED, "fsdp_sharding_strategy: FULL", "fsdp_sharding_strategy: 1"),
        ("nanotron", PARTS, "REDUCE", "REDUCE_SCATTER"),
        ("olmo", OLMO, "fdsp", "fsdp"),
    ],
)
def test_a_word_that_nobody_knows_is_named_with_what_is_taken_for_it(
    form: str, text: str, word: str, known: str
) -> None:
    last = word.rpartition(" ")[2]
    assert f"{last}: not known here" in said(read(form, text.format(word)))
    assert "not known here" not in said(read(form, text.format(known)))


@pytest.mark.parametrize(
    ("strategy", "stage"),
    [("1", 3), ("SHARD_GRAD_OP", 2), ("HYBRID_SHARD", 3), ("HYBRID_SHARD_ZERO2", 2), ("5", 2)],
)
def test_each_strategy_of_fsdp_is_its_stage(strategy: str, stage: int) -> None:
    run = read("accelerate", SHARDED.format(f"fsdp_sharding_strategy: {strategy}"))
    assert run.zero == stage
    foundry = "global_train_batch_size: 8\nmax_seq_len: 512\nmodel: {name: mpt_causal_lm}\n"
    foundry += f"fsdp_config: {{sharding_strategy: {strategy}}}\n"
    assert strategy.isdecimal() or read("llm-foundry", foundry).zero == stage


JOBSET = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {{name: a}}
spec:
  replicatedJobs:
  - name: slice
    replicas: 2
    template:
      spec:
        parallelism: 4
        template:
          spec:
            containers:
            - name: jax
              image: b
              command: [bash, -c, "{command}"]
              resources: {{limits: {{google.com/tpu: 4}}}}
"""


def test_the_devices_of_all_pods_are_those_of_a_program_without_a_launcher() -> None:
    words = "model_name=llama3.1-8b per_device_batch_size=2 max_target_length=2048"
    command = f"python3 -m MaxText.train base.yml {words} ici_fsdp_parallelism=-1"
    run = read(None, JOBSET.format(command=command), Beside(name="job.yaml"))
    assert (run.num_devices, run.devices_per_node, run.sequence) == (32, 4, 2048)
    told = f"torchrun --nnodes 1 --nproc_per_node 2 pretrain_gpt.py {GPT} --micro-batch-size 1"
    run = read(None, JOBSET.format(command=told), Beside(name="job.yaml"))
    assert run.num_devices == 2


def test_devices_that_a_submitter_is_asked_for_are_named() -> None:
    words = "model_name=llama3.1-8b per_device_batch_size=2 max_target_length=2048"
    train = f"python3 -m MaxText.train base.yml {words}"
    text = f"#!/bin/bash\nxpk workload create {{}} --command='{train}'\n"
    run = read(None, text.format("--device-type=v5p-256 --num-slices=2"))
    assert "is not read (--device-type, --num-slices): give --nodes" in said(run)
    assert "give --nodes" not in said(read(None, text.format("--priority=high")))


def test_experts_of_olmoe_are_those_of_its_blocks() -> None:
    block = "d_model: 64, n_layers: 2, n_heads: 4, vocab_size: 128, mlp_ratio: 1"
    block += ", activation_type: swiglu, block_type: {}, moe_num_experts: 8, moe_top_k: 3"
    text = f"global_train_batch_size: 8\nmodel: {{{{{block}}}}}\n"
    model = read("olmo", text.format("moe")).model
    assert model is not None
    assert model.experts is not None
    assert (model.experts.num_experts, model.experts.experts_per_token) == (8, 3)
    assert model.experts.ffn_size == 32
    dense = read("olmo", text.format("sequential")).model
    assert dense is not None
    assert dense.experts is None


def test_what_serves_a_trainer_on_every_node_is_none() -> None:
    text = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:8\n#SBATCH --ntasks-per-node=1\n"
    text += "srun --ntasks=2 ${BIN}ray start --head --num-gpus 8 --block &\n"
    text += "${BIN}python -m verl.trainer.main_ppo data.max_prompt_length=512 "
    text += "data.max_response_length=512 actor_rollout_ref.model.path=Qwen/Qwen3-8B "
    text += "actor_rollout_ref.actor.ppo_mini_batch_size=32 trainer.n_gpus_per_node=8 "
    text += "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 trainer.nnodes=2\n"
    run = read(None, text, Beside(name="run.sh"))
    assert (run.model_name, run.num_devices, run.sequence) == ("Qwen/Qwen3-8B", 16, 1024)
