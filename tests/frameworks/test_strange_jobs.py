"""Files of strangers: scripts that look like another trainer's, and launchers of other places."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwright.errors import InvalidInput
from trainwright.formats.catalog import open_model
from trainwright.frameworks.jobs import Beside, read
from trainwright.frameworks.jobs.detect import format_of
from trainwright.frameworks.jobs.settings import StatedRun, catalog_name
from trainwright.frameworks.read_job import job_of_model, open_stated, stated_model

TRAINER = """\
#!/bin/bash
GPUS=4
{name}=2
torchrun --nproc_per_node=$GPUS finetune.py --model_name_or_path Qwen/Qwen2.5-7B-Instruct \\
  --per_device_train_batch_size ${name} --max_seq_length 4096 --bf16 True
"""
ACTOR = """\
#!/bin/bash
python3 -m {program} data.max_prompt_length=512 data.max_response_length=1536 \\
 actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.actor.ppo_mini_batch_size=32 \\
 actor_rollout_ref.actor.use_dynamic_bsz=True \\
 actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2048 \\
 actor_rollout_ref.actor.ulysses_sequence_parallel_size={heads} \\
 trainer.nnodes=2 trainer.n_gpus_per_node=8
"""
MAXTEXT = (
    "python3 -m MaxText.train MaxText/configs/base.yml model_name=llama3.1-8b "
    "per_device_batch_size=2 max_target_length=8192 ici_fsdp_parallelism=-1"
)
BRIDGE = """\
#!/bin/bash
python scripts/performance/setup_experiment.py -mr llama3_8b --model_recipe_name llama3_8b \\
 --num_gpus 64 --gpus_per_node 4 --compute_dtype bf16 -tp 2 -pp 1 -mb 1 -gb 128 -sl 8192 {more}
"""
MEGATRON = (
    "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 512 "
    "--max-position-embeddings 512 --micro-batch-size 1 --global-batch-size 8 "
    "--tokenizer-type Llama2Tokenizer --tokenizer-model"
)


def said(run: StatedRun) -> str:
    return " ".join((*run.unknown, *run.notes))


@pytest.mark.parametrize("name", ["PER_DEVICE_BATCH_SIZE", "per_device_batch_size"])
def test_a_variable_that_is_called_as_a_setting_of_maxtext_makes_no_job_of_it(name: str) -> None:
    text = TRAINER.replace("{name}", name)
    assert format_of(text, "finetune.sh") == "trl"
    run = read(None, text, Beside(name="finetune.sh"))
    assert (run.micro_batch, run.num_devices, run.sequence) == (2, 4, 4096)


def test_settings_of_maxtext_are_told_without_its_program() -> None:
    words = MAXTEXT.partition("base.yml ")[2].replace(" ", " \\\n")
    assert format_of(f'ARGS="{words}"\npython train.py $ARGS\n', "run.sh") == "maxtext"


@pytest.mark.parametrize(
    "program", ["verl.trainer.main_ppo", "recipe.dapo.main_dapo", "mine.agent.main_agent"]
)
def test_recipes_of_verl_take_the_settings_of_verl(program: str) -> None:
    text = ACTOR.format(program=program, heads=1)
    assert format_of(text, "run.sh") == "verl"
    run = read(None, text, Beside(name="run.sh"))
    assert (run.model_name, run.num_devices, run.global_batch) == ("Qwen/Qwen3-8B", 16, 32)


@pytest.mark.parametrize(("heads", "microbatch"), [(1, 1), (4, 4), (8, 8)])
def test_ranks_that_share_sequences_fill_a_microbatch_with_the_tokens_of_each(
    heads: int, microbatch: int
) -> None:
    run = read("verl", ACTOR.format(program="verl.trainer.main_ppo", heads=heads))
    assert (run.cp, run.micro_batch) == (heads, microbatch)


@pytest.mark.parametrize("joined", ["=", " "])
def test_what_a_submitter_is_told_to_run_elsewhere_is_followed(joined: str) -> None:
    text = f'#!/bin/bash\nxpk workload create --num-slices=1 --command{joined}"set -e && {MAXTEXT}"'
    run = read(None, text, Beside(name="run.sh"))
    assert (run.model_name, run.micro_batch, run.sequence) == ("llama3.1-8b", 2, 8192)


def test_a_trainer_that_starts_elsewhere_is_on_devices_that_are_not_known() -> None:
    inner = "python3 train.py --model_name_or_path gpt2 --per_device_train_batch_size 4"
    assert read(None, f"#!/bin/bash\n{inner}\n").num_devices == 1
    text = f"#!/bin/bash\ngcloud compute tpus tpu-vm ssh n --command='{inner}'\n"
    run = read(None, text)
    assert (run.micro_batch, run.num_devices) == (4, None)


@pytest.mark.parametrize("joined", ["=", " "])
def test_what_slurm_wraps_is_followed(joined: str) -> None:
    inner = "torchrun --nproc_per_node 8 f.py --model_name_or_path gpt2"
    inner += " --per_device_train_batch_size 4"
    run = read(None, f"#!/bin/bash\nsbatch --wrap{joined}'{inner}'\n")
    assert (run.micro_batch, run.num_devices) == (4, 8)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", {"zero": 1, "recompute": "none", "offload": ()}),
        ("--use_megatron_fsdp true", {"zero": 3}),
        ("--use_megatron_fsdp false", {"zero": 1}),
        ("--activation_offload_layers 16", {"offload": ("0.5 of activations to cpu",)}),
        ("-ol 8", {"offload": ("0.25 of activations to cpu",)}),
        ("--recompute_num_layers 3", {"recompute": "full:3"}),
        ("--recompute_modules mlp", {"recompute": "selective"}),
        ("--recompute_modules None", {"recompute": "none"}),
        ("--task peft", {"lora_rank": 32}),
    ],
)
def test_options_of_performance_scripts_set_what_they_set_there(
    more: str, expected: dict[str, object]
) -> None:
    run = read(None, BRIDGE.format(more=more), Beside(name="run.sh"))
    assert {name: getattr(run, name) for name in expected} == expected
    assert (run.tp, run.sequence, run.num_devices) == (2, 8192, 64)


def test_an_option_of_a_performance_script_that_nobody_knows_is_named() -> None:
    text = BRIDGE.format(more="--use_warp_drive true --max_retries 2")
    assert read(None, text, Beside(name="run.sh")).unknown == ("--use_warp_drive",)


@pytest.mark.parametrize(
    ("name", "vocabulary"),
    [
        ("tokenizer.model", 32_000),
        ("/models/llama-2/tokenizer.model", 32_000),
        ("$SOMEWHERE/tokenizer.model", 32_000),
        ("our-own-100k.model", None),
        ("$SOMEWHERE/our-own-100k.model", None),
    ],
)
def test_the_vocabulary_of_another_file_of_pieces_is_asked_for(
    name: str, vocabulary: int | None
) -> None:
    run = read("megatron", f"#!/bin/bash\ntorchrun pretrain_gpt.py {MEGATRON} {name}\n")
    assert (run.model and run.model.vocabulary_size) == vocabulary
    assert vocabulary or "--vocab-size" in said(run)


def test_layers_that_attend_to_what_was_retrieved_are_named() -> None:
    text = f"torchrun pretrain_retro.py --retro-add-retriever {MEGATRON} tokenizer.model"
    assert "retro-add-retriever: changes the answer" in said(read("megatron", text))


IMAGES = """\
#!/bin/bash
deepspeed --num_gpus 8 train.py --model_name_or_path liuhaotian/llava-v1.5-13b {more} \\
  --per_device_train_batch_size 4 --model_max_length 2048 --bf16 True
"""
ENCODER = ("patch_embedding", "encoder_block")
DECODER = ("embedding", "block", "final_norm", "lm_head")


@pytest.mark.parametrize(
    ("more", "frozen"),
    [
        ("", None),
        ("--vision_tower openai/clip", ENCODER),
        ("--vision_tower openai/clip --unfreeze_mm_vision_tower True", None),
        ("--vision_tower openai/clip --tune_mm_mlp_adapter True", (*ENCODER, *DECODER)),
        ("--vision_tower openai/clip --freeze_backbone True", (*ENCODER, *DECODER)),
        ("--vision_tower v --mm_tunable_parts=mm_mlp_adapter", (*ENCODER, *DECODER)),
        ("--force_image_size 448 --freeze_backbone True", ENCODER),
        ("--freeze_llm True --freeze_merger True", ("projector", *DECODER)),
        ("--tune_mm_llm True --tune_mm_mlp True --tune_mm_vision False", ENCODER),
        ("--tune_mm_llm True", (*ENCODER, "projector")),
    ],
)
def test_trainers_of_text_behind_images_say_which_parts_train(
    more: str, frozen: tuple[str, ...] | None
) -> None:
    assert read(None, IMAGES.format(more=more), Beside(name="run.sh")).freeze == frozen


@pytest.mark.parametrize(
    ("more", "rank", "targets"),
    [
        ("--lora_enable False --lora_r 128", None, None),
        ("--lora_enable True --lora_r 128", 128, ("all",)),
        ("--lora_enable True", 64, ("all",)),
        (
            "--lora_enable True --tune_mm_llm True",
            64,
            ("query", "key", "value", "attention_output"),
        ),
        ("--use_llm_lora 16", 16, ("all",)),
        ("--use_llm_lora 0", None, None),
    ],
)
def test_adapters_of_trainers_of_images_are_read(
    more: str, rank: int | None, targets: tuple[str, ...] | None
) -> None:
    run = read(None, IMAGES.format(more=more), Beside(name="run.sh"))
    assert (run.lora_rank, run.lora_targets) == (rank, targets)


def test_a_file_that_freezes_the_text_does_not_train_a_model_of_text_alone(tmp_path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(IMAGES.format(more="--vision_tower v --tune_mm_mlp_adapter True"))
    job = open_stated(None, path)
    assert job_of_model(job, open_model("llama2-13b").config).run.freeze == DECODER
    assert "vision_tower" in said(job.run)


OF_OLD = """\
#!/bin/bash
read -r -d '' words <<EOF
openrlhf.cli.train_{kind} --pretrain meta-llama/Meta-Llama-3-8B --micro_train_batch_size 2 \\
 --train_batch_size 64 --max_len 4096 --zero_stage 3 --bf16 --gradient_checkpointing \\
 --adam_offload --lora_rank 16
EOF
deepspeed --num_gpus 8 --module $words
"""
OF_TODAY = """\
#!/bin/bash
deepspeed --num_gpus 8 --module openrlhf.cli.train_{kind} \\
 --model.model_name_or_path meta-llama/Meta-Llama-3-8B --train.micro_batch_size 2 \\
 --train.batch_size 64 --data.max_len 4096 --ds.zero_stage 3 --ds.param_dtype bf16 \\
 --model.gradient_checkpointing_enable --ds.adam_offload --ds.lora.rank 16
"""


@pytest.mark.parametrize("text", [OF_OLD, OF_TODAY])
@pytest.mark.parametrize(
    ("kind", "answers", "reference"), [("sft", 1, None), ("dpo", 2, True), ("rm", 2, None)]
)
def test_openrlhf_says_the_same_in_both_of_its_spellings(
    text: str, kind: str, answers: int, reference: bool | None
) -> None:
    text = text.format(kind=kind)
    assert format_of(text, "run.sh") == "openrlhf"
    run = read(None, text, Beside(name="run.sh"))
    assert run.model_name == "meta-llama/Meta-Llama-3-8B"
    assert (run.micro_batch, run.global_batch, run.per_example) == (
        2 * answers,
        64 * answers,
        answers,
    )
    assert (run.sequence, run.zero, run.precision, run.recompute) == (4096, 3, "bf16", "full")
    assert (run.offload, run.lora_rank, run.num_devices) == (("optimizer to cpu",), 16, 8)
    assert (run.reference, run.engine, run.unknown) == (reference, "deepspeed", ())


@pytest.mark.parametrize(
    ("more", "sequence", "microbatch", "context"),
    [
        ("", 2048, 4, 1),
        ("--data.max_len 8192", 8192, 4, 1),
        ("--train.dynamic_batch_enable --train.max_tokens_per_gpu 16384", 2048, 8, 1),
        (
            "--train.dynamic_batch_enable --train.max_tokens_per_gpu 16384 --ds.ring_attn_size 2",
            2048,
            16,
            2,
        ),
    ],
)
def test_an_actor_of_openrlhf_trains_on_devices_of_its_own(
    more: str, sequence: int, microbatch: int, context: int
) -> None:
    text = f"""#!/bin/bash
ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --actor.num_nodes 2 \\
 --actor.num_gpus_per_node 4 --ref.num_nodes 1 --actor.model_name_or_path Qwen/Qwen3-8B \\
 --train.micro_batch_size 4 --train.batch_size 512 {more}
"""
    run = read(None, text, Beside(name="run.sh"))
    assert (run.num_devices, run.devices_per_node, run.global_batch) == (8, 4, 512)
    assert (run.sequence, run.micro_batch, run.cp) == (sequence, microbatch, context)
    assert "the policy's update alone" in said(run)


LIT = """\
checkpoint_dir: checkpoints/meta-llama/Llama-3.1-8B
precision: {precision}
devices: {devices}
num_nodes: 1
train: {{global_batch_size: 32, micro_batch_size: 2, max_seq_length: 512, lr_warmup_steps: 10}}
optimizer: {{class_path: torch.optim.AdamW, init_args: {{lr: 0.0002}}}}
"""
LIT_PURE = ("bf16", "none", ("bf16",))


@pytest.mark.parametrize(
    ("precision", "devices", "more", "expected"),
    [
        ("bf16-true", 4, "", ("bf16", 3, "full", *LIT_PURE, None)),
        ("bf16-true", 1, "", ("bf16", 0, "none", *LIT_PURE, None)),
        ("bf16-mixed", 1, "", ("bf16", 0, "none", None, None, None, "fp32")),
        ("32-true", 4, "", ("fp32", 3, "full", None, None, None, None)),
        ("bf16-true", 1, "lora_r: 16", ("bf16", 0, "none", None, None, None, None)),
        (
            "bf16-mixed",
            "auto",
            "model_name: Llama-3.1-8B",
            ("bf16", 3, "none", None, None, None, None),
        ),
    ],
)
def test_files_of_litgpt_say_formats_and_devices(
    precision: str, devices: object, more: str, expected: tuple[object, ...]
) -> None:
    text = LIT.format(precision=precision, devices=devices) + more
    assert format_of(text, "lora.yaml") == "litgpt"
    run = read(None, text, Beside(name="lora.yaml"))
    numbers = (run.gradient_dtype, run.main_weight_dtype, run.moment_dtypes or None, run.loaded_in)
    assert (run.precision, run.zero or 0, run.recompute, *numbers) == expected
    assert (run.global_batch, run.micro_batch, run.sequence, run.unknown) == (32, 2, 512, ())
    assert run.num_devices == (None if devices == "auto" else devices)
    assert run.model_name and run.model_name.rpartition("/")[2] == "Llama-3.1-8B"


def test_adapters_of_litgpt_lie_beside_queries_and_values_unless_told_otherwise() -> None:
    text = LIT.format(precision="bf16-true", devices=1) + "lora_r: 4\n"
    assert read("litgpt", text).lora_targets == ("query", "value")
    text += "lora_query: false\nlora_mlp: true\nquantize: bnb.nf4\n"
    run = read("litgpt", text)
    assert run.lora_targets == ("value", "gate", "up", "down")
    assert (run.lora_rank, run.weight_bits) == (4, 4)


def test_fine_tuning_with_litgpt_has_a_head_beside_the_embedding_it_was_tied_to(
    tmp_path: Path,
) -> None:
    text = LIT.format(precision="bf16-true", devices=1).replace("Llama-3.1-8B", "gemma-2b")
    file = tmp_path / "file.yaml"
    for more, tied in (("", False), (", tie_embeddings: true", True)):
        file.write_text(text.replace("lr_warmup_steps: 10", f"lr_warmup_steps: 10{more}"))
        job = open_stated("litgpt", file)
        assert stated_model(job, None).config.tied_embeddings == tied
    plain = read("litgpt", LIT.format(precision="bf16-true", devices=1))
    assert plain.model_changes is None


RL = """\
{kind}: {{max_num_steps: 5}}
policy:
  model_name: meta-llama/Llama-3.1-8B
  train_global_batch_size: 128
  train_micro_batch_size: 2
  max_total_sequence_length: 4096
  precision: bfloat16
  dtensor_cfg:
    enabled: true
    tensor_parallel_size: 2
    activation_checkpointing: true
    sequence_parallel: true
  megatron_cfg: {{enabled: false, pipeline_model_parallel_size: 2, activation_checkpointing: false}}
  sequence_packing:
    enabled: false
    train_mb_tokens: ${{mul:4096, ${{policy.train_micro_batch_size}}}}
cluster: {{gpus_per_node: 8, num_nodes: 2}}
"""
CHANGED = """\
defaults: {name}
policy:
  train_micro_batch_size: 4
  dtensor_cfg: {{enabled: false}}
  megatron_cfg: {{enabled: true, tensor_model_parallel_size: 4}}
  sequence_packing: {{enabled: true}}
"""


def test_a_policy_of_nemo_rl_is_read() -> None:
    run = read(None, RL.format(kind="sft"), Beside(name="sft.yaml"))
    assert (run.tp, run.pp, run.cp, run.zero, run.sequence_parallel) == (2, 1, 1, 3, True)
    assert (run.micro_batch, run.global_batch, run.sequence) == (2, 128, 4096)
    assert (run.recompute, run.reduce_dtype, run.program) == ("full", "fp32", None)
    assert (run.num_devices, run.devices_per_node, run.unknown) == (16, 8, ())
    pairs = read(None, RL.format(kind="dpo"), Beside(name="dpo.yaml"))
    assert (pairs.micro_batch, pairs.global_batch, pairs.reference) == (4, 256, True)
    assert any("its weights wait on the host" in note for note in pairs.notes)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("", "a forward pass of the policy"),
        ("force_on_policy_ratio: true", None),
        (
            "reference_policy_kl_penalty: 0.01",
            "a forward pass of the policy and one of the reference, whose weights wait on the host",
        ),
    ],
)
def test_log_probabilities_before_an_update_are_said_to_be_unpriced(
    loss: str, expected: str | None
) -> None:
    text = RL.format(kind="grpo") + f"loss_fn: {{{loss}}}\n"
    said = [note for note in read(None, text, Beside(name="grpo.yaml")).notes if "before" in note]
    wanted = f"not priced: log-probabilities before an update, {expected}"
    assert said == ([] if expected is None else [wanted])


def test_a_file_of_nemo_rl_changes_the_one_that_it_is_based_on(tmp_path) -> None:
    (tmp_path / "base.yaml").write_text(RL.format(kind="sft"))
    text = CHANGED.format(name="../base.yaml")  # where it lies in its repository
    run = read(None, text, Beside(folder=tmp_path, name="changed.yaml"))
    assert (run.tp, run.pp, run.zero, run.program) == (4, 2, 1, "megatron")
    assert (run.recompute, run.reduce_dtype) == ("none", None)
    assert run.micro_batch == 4  # 4096 x 4 tokens, by the values of both
    with pytest.raises(InvalidInput, match=r"other\.yaml, which this file changes"):
        read(None, CHANGED.format(name="other.yaml"), Beside(folder=tmp_path, name="changed.yaml"))


@pytest.mark.parametrize(
    ("engine", "policy", "expected"),
    [
        ("use_fused_linear_logprobs: true", "", 4 * 256),  # positions of four sequences
        (
            "use_fused_linear_logprobs: true, fused_linear_logprobs_chunk_size: 128",
            "logprob_chunk_size: 2048",
            4 * 128,
        ),
        ("use_fused_linear_logprobs: false", "logprob_chunk_size: null", None),
        ("use_fused_linear_logprobs: false", "logprob_chunk_size: -1", None),
    ],
)
def test_log_probabilities_of_nemo_rl_from_the_head_take_no_whole_logits(
    engine: str, policy: str, expected: int | None, tmp_path: Path
) -> None:
    (tmp_path / "base.yaml").write_text(RL.format(kind="grpo"))
    text = CHANGED.format(name="base.yaml").replace(
        "parallel_size: 4", f"parallel_size: 4, {engine}"
    )
    run = read(None, f"{text}  {policy}\n", Beside(folder=tmp_path, name="changed.yaml"))
    assert (run.loss_chunk, run.unknown) == (expected, ())
    assert not any("fused" in note or "logprob" in note for note in run.notes)


@pytest.mark.parametrize("is_megatron", [True, False])
def test_log_probabilities_of_nemo_rl_in_parts_are_said_to_be_priced_whole(
    tmp_path: Path, *, is_megatron: bool
) -> None:
    """The loss of Megatron takes parts since NVIDIA-NeMo/RL, pull request 2872, no other does."""
    base = RL.format(kind="grpo")
    text = CHANGED.format(name="base.yaml") + "  logprob_chunk_size: 2048\n"
    if not is_megatron:
        base, text = (each.replace("enabled: true", "enabled: false") for each in (base, text))
    (tmp_path / "base.yaml").write_text(base)
    run = read(None, text, Beside(folder=tmp_path, name="changed.yaml"))
    assert (run.program == "megatron", run.loss_chunk) == (is_megatron, None)
    (note,) = (each for each in run.notes if each.startswith("logprob_chunk_size 2048: "))
    assert note.endswith("the loss is priced with all of them at once")
    assert ("since June 2026" in note) == is_megatron


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", {"zero": 0, "precision": "bf16", "loaded_in": "fp32", "recompute": "full"}),
        ("dist_config: {name: fsdp2}", {"zero": 3, "reduce_dtype": "fp32", "loaded_in": None}),
        ("dist_config: {name: fsdp2, reshard_after_forward: false}", {"zero": 2}),
        (
            "dist_config: {name: deepspeed, config_file: ds_z2_config.json}",
            {"zero": 2, "engine": "deepspeed", "reduce_dtype": "bf16"},
        ),
        ("cp_size: 4", {"cp": 4, "context_exchange": "all_to_all"}),
        ("enable_activation_checkpointing: false", {"recompute": "none"}),
        ("global_batch_size: 64", {"global_batch": 64, "batch_per_replica": None}),
        ("optim_config: {name: muon}", {"optimizer": "muon"}),
        (
            "peft_config: {name: lora, r: 16, target_modules: all}\n"
            "quant_config: {name: bnb, quantization_bit: 4}",
            {"lora_rank": 16, "lora_targets": ("all",), "weight_bits": 4},
        ),
    ],
)
def test_the_second_way_of_llamafactorys_files_is_read(
    more: str, expected: dict[str, object]
) -> None:
    text = "model: Qwen/Qwen3-8B\ntrain_dataset: d.yaml\nmicro_batch_size: 2\n"
    text += f"cutoff_len: 1024\n{more}"
    assert format_of(text, "train.yaml") == "llamafactory"
    run = read(None, text, Beside(name="train.yaml"))
    assert {name: getattr(run, name) for name in expected} == expected
    assert (run.model_name, run.micro_batch, run.sequence) == ("Qwen/Qwen3-8B", 2, 1024)
    assert run.unknown == ()


def test_a_model_that_is_called_alpha_is_not_its_successor() -> None:
    assert catalog_name("stabilityai/stablelm-base-alpha-3b") is None
    assert catalog_name("HuggingFaceH4/zephyr-7b-alpha") == "mistral-7b"


PLAIN = """\
#!/bin/bash
torchrun --nproc_per_node 2 {program} --model_name_or_path gpt2 {more} \\
  --per_device_train_batch_size 4 --bf16 True
"""


@pytest.mark.parametrize(
    ("program", "more", "rank", "targets"),
    [
        ("run_with_peft.py", "--lora_rank 64 --trainable q_proj,o_proj", 64, None),
        ("run_with_peft.py", "--lora_r 64 --use_lora False", None, None),
        ("finetune.py", "--lora_r 8", 8, ("query", "value")),
        ("examples/scripts/sft.py", "--lora_r 8", None, None),
        ("examples/scripts/sft.py", "--lora_r 8 --use_peft", 8, ("query", "value")),
    ],
)
def test_a_rank_without_a_switch_is_that_of_adapters_where_no_switch_is_known(
    program: str, more: str, rank: int | None, targets: tuple[str, ...] | None
) -> None:
    run = read("trl", PLAIN.format(program=program, more=more), Beside(name="run.sh"))
    assert run.lora_rank == rank
    if "trainable" in more:
        assert run.lora_targets == ("query", "attention_output")
    else:
        assert run.lora_targets == targets


def test_parts_that_minicpm_does_not_tune_are_frozen() -> None:
    text = PLAIN.format(program="finetune.py", more="--tune_vision true --tune_llm false")
    assert read("trl", text).freeze == DECODER


@pytest.mark.parametrize(
    ("words", "blocks"),
    [
        ("--num-layers 4", 8),
        ("--encoder-num-layers 4", 8),
        ("--encoder-num-layers 4 --decoder-num-layers 2", 6),
    ],
)
def test_a_decoder_of_t5_has_as_many_blocks_as_its_encoder(words: str, blocks: int) -> None:
    text = f"torchrun pretrain_t5.py {MEGATRON} tokenizer.model".replace("--num-layers 4", words)
    run = read("megatron", text)
    assert run.model is not None
    assert run.model.num_layers == blocks
    assert f"one stack of {blocks} blocks" in said(run)


@pytest.mark.parametrize("program", ["pretrain_ict.py", "pretrain_vision_classify.py"])
def test_programs_whose_arguments_do_not_describe_their_model_are_refused(program: str) -> None:
    with pytest.raises(InvalidInput, match="arguments do not describe"):
        read("megatron", f"torchrun {program} {MEGATRON} tokenizer.model")


CHOICE = """\
#!/bin/bash
if [[ $KIND == small ]]; then
  SIZE=2
elif [[ $KIND == large ]]; then
  SIZE=4
else
  echo unknown; exit 1
fi
torchrun f.py --model_name_or_path gpt2 --per_device_train_batch_size $SIZE
"""


def test_the_first_of_several_ways_that_a_variable_decides_is_named() -> None:
    run = read(None, CHOICE, Beside(name="run.sh"))
    assert run.micro_batch == 2
    assert "$KIND == small ]]` is taken to hold" in said(run)
    assert "--variable KIND=VALUE" in said(run)
    told = read(None, CHOICE, Beside(name="run.sh", variables={"KIND": "large"}))
    assert told.micro_batch == 4
    assert "taken to hold" not in said(told)


def test_settings_of_verl_may_stand_in_a_file() -> None:
    text = """\
data: {max_prompt_length: 512, max_response_length: 1536}
actor_rollout_ref:
  model: {path: Qwen/Qwen3-8B, enable_gradient_checkpointing: true}
  actor: {ppo_mini_batch_size: 32, ppo_micro_batch_size_per_gpu: 2}
  rollout: {n: 4}
trainer: {nnodes: 2, n_gpus_per_node: 8}
"""
    assert format_of(text, "trainer.yaml") == "verl"
    run = read(None, text, Beside(name="trainer.yaml"))
    assert (run.micro_batch, run.global_batch, run.sequence) == (2, 128, 2048)
    assert (run.num_devices, run.recompute, run.unknown) == (16, "full", ())
    text = "data: {train_batch_size: 64, micro_batch_size_per_gpu: 2}\n"
    text += "model: {partial_pretrain: google/gemma-2b, lora_rank: 8}\n"
    assert format_of(text, "sft.yaml") == "verl"
    run = read(None, text, Beside(name="sft.yaml"))
    assert (run.model_name, run.micro_batch, run.global_batch) == ("google/gemma-2b", 2, 64)
    assert (run.lora_rank, run.num_devices) == (8, None)


def test_a_model_that_verl_takes_from_elsewhere_is_asked_for_and_may_stand_beside() -> None:
    text = ACTOR.format(program="verl.trainer.main_ppo", heads=1)
    run = read("verl", text.replace("Qwen/Qwen3-8B", "$MODEL_PATH"))
    assert (run.model_name, run.global_batch) == (None, 32)
    assert "the model is not described" in said(run)
    assert "--variable MODEL_PATH=VALUE" in said(run)


def test_an_option_that_the_machine_decides_is_not_what_is_started() -> None:
    text = """\
#!/bin/bash
#SBATCH --nodes=2
if [ -d "/opt/somewhere" ]; then
  RESUME="--auto-resume=1"
fi
srun ${RESUME} -l torchrun --nproc_per_node=8 --nnodes=2 f.py --model_name_or_path gpt2 \\
  --per_device_train_batch_size 4
"""
    run = read(None, text, Beside(name="run.sbatch"))
    assert (run.num_devices, run.micro_batch) == (16, 4)


OF_ALL = """\
#!/bin/bash
python3 -m verl.trainer.main_ppo data.train_batch_size={prompts} data.max_prompt_length=512 \\
 data.max_response_length=512 actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B \\
 actor_rollout_ref.actor.ppo_mini_batch_size=256 {more} \\
 trainer.nnodes=1 trainer.n_gpus_per_node=8
"""


@pytest.mark.parametrize(("ranks", "microbatch"), [(1, 4), (2, 8)])
def test_a_microbatch_of_all_ranks_is_cut_into_that_of_each(ranks: int, microbatch: int) -> None:
    more = "actor_rollout_ref.actor.ppo_micro_batch_size=32 "
    more += f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={ranks}"
    run = read("verl", OF_ALL.format(prompts=1024, more=more))
    assert (run.micro_batch, run.global_batch, run.recompute) == (microbatch, 256, "none")
    assert f"ppo_micro_batch_size 32: {microbatch} of it for each" in said(run)
    own = read("verl", OF_ALL.format(prompts=1024, more=more.replace("size=32", "size_per_gpu=4")))
    assert (own.micro_batch, own.recompute) == (4, "full")
    assert "enable_gradient_checkpointing: priced as true" in said(own)


@pytest.mark.parametrize(("tokens", "microbatch"), [("12000", 8), ("2100", 2), ("500", 1)])
def test_a_microbatch_of_tokens_divides_what_a_replica_trains(tokens: str, microbatch: int) -> None:
    more = "actor_rollout_ref.actor.use_dynamic_bsz=True "
    more += f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={tokens}"
    run = read("verl", OF_ALL.format(prompts=1024, more=more))
    assert run.micro_batch == microbatch  # of 32 sequences for each of 8


def test_an_update_has_no_more_answers_than_an_iteration_makes() -> None:
    more = "actor_rollout_ref.rollout.n=16 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"
    run = read("verl", OF_ALL.format(prompts=128, more=more))
    assert run.global_batch == 128 * 16
    assert "the 128 prompts of an iteration" in said(run)


def test_a_script_that_trains_twice_says_which_is_priced() -> None:
    line = "torchrun --nproc_per_node 8 t.py --model_name_or_path gpt2"
    first, second = (f"{line} --per_device_train_batch_size {size}" for size in (4, 8))
    run = read(None, f"#!/bin/bash\n{first}\n{second} --bf16\n")
    assert run.micro_batch == 8
    assert "line 3 alone is priced: line 2 trains by itself" in said(run)
    again = read(None, f"#!/bin/bash\n{first}\n{first}\n")
    assert "trains by itself" not in said(again)


@pytest.mark.parametrize(
    ("words", "frozen"),
    [
        ("--tune_vision_tower True --tune_mm_projector True", ("embedding",)),
        ("--tune_language_model True --tune_mm_projector True", ("patch_embedding",)),
        ("--tune_language_model True --tune_vision_tower True", ("projector",)),
    ],
)
def test_parts_that_vila_does_not_name_do_not_train(words: str, frozen: tuple[str, ...]) -> None:
    line = "torchrun --nproc_per_node 8 t.py --model_name_or_path x --vision_tower siglip"
    run = read(None, f"#!/bin/bash\n{line} --per_device_train_batch_size 1 {words}\n")
    assert run.freeze is not None and run.freeze[0] == frozen[0]


def test_a_folder_of_the_hubs_cache_names_its_model() -> None:
    path = "$HOME/hub/models--meta-llama--Meta-Llama-3.1-405B/snapshots/222de096204587406c7c"
    assert catalog_name(path) == "llama3-405b"
    assert catalog_name("lmsys/vicuna-13b-v1.5") == "llama2-13b"


def test_a_path_to_a_folder_elsewhere_is_followed_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    settings = "base_model: gpt2\nsequence_len: 512\nmicro_batch_size: 3\n"
    (tmp_path / "configs" / "fft.yaml").write_text(settings)
    text = "#!/bin/bash\naxolotl train $1/cookbook/configs/fft.yaml\n"
    beside = Beside(folder=tmp_path, name="train.sh", arguments=("/storage",))
    assert read(None, text, beside).micro_batch == 3


def test_what_an_argument_decides_is_asked_for_as_an_argument() -> None:
    text = "#!/bin/bash\ntorchrun t.py --model_name_or_path $1 --per_device_train_batch_size 4\n"
    assert "give --argument VALUE" in said(read(None, text))


def test_a_job_over_a_recipe_says_what_is_taken_and_what_is_assumed() -> None:
    run = read(None, BRIDGE.format(more=""), Beside(name="b.sh"))
    assert "taken from what recipes share: use_distributed_optimizer true" in said(run)
    assert "bf16_mixed" not in said(run)  # --compute_dtype says it
    assert "may set: context_parallel_size 1, expert_model_parallel_size 1" in said(run)
    stated = read(None, BRIDGE.format(more="-cp 2 -ep 2 -vp 2 -rl 4"), Beside(name="b.sh"))
    assert "may set" not in said(stated)


def test_a_file_of_primus_says_what_is_taken_and_what_is_assumed() -> None:
    text = (
        "modules: {pre_trainer: {framework: megatron, model: llama3_8B.yaml, overrides: "
        "{tensor_model_parallel_size: 2, micro_batch_size: 1, global_batch_size: 8, "
        "seq_length: 4096}}}\nwork_group: x\nexp_name: y\n"
    )
    run = read("primus", text)
    assert run.sequence_parallel
    taken = (
        "its pre_trainer.yaml: use_distributed_optimizer true, bf16 true, sequence_parallel true"
    )
    assert taken in said(run)
    assert "may set: pipeline_model_parallel_size 1, context_parallel_size 1" in said(run)


# What a fourth round misread in silence
# --------------------------------------


def test_files_of_nemo_one_group_keys_without_a_switch() -> None:
    sizes = "num_layers: 4, hidden_size: 512, num_attention_heads: 8, encoder_seq_length: 1024"
    text = f"model: {{mcore_gpt: true, {sizes}, num_query_groups: 2, micro_batch_size: 1, "
    text += "global_batch_size: 8, tokenizer: {type: GPT2BPETokenizer}}\n"
    text += "trainer: {num_nodes: 1, devices: 8}\n"
    run = read("megatron-bridge", text, Beside(name="llama.yaml"))
    assert run.model is not None
    assert run.model.num_kv_heads == 2


def test_states_of_32_bit_are_float32_beside_bf16_weights() -> None:
    text = "base_model: meta-llama/Meta-Llama-3-8B\nsequence_len: 2048\nbf16: auto\n"
    assert read(None, text, Beside(name="a.yaml")).options["moment_dtype"] == ("bf16",)
    text += "optimizer: paged_adamw_32bit\n"
    run = read(None, text, Beside(name="a.yaml"))
    assert run.options["moment_dtype"] == ("fp32",)
    assert run.options["main_weight_dtype"] == "none"


@pytest.mark.parametrize(
    ("file", "host", "said"),
    [
        ("zero2.json", {}, "its ZeRO stage is read"),
        ("zero3_offload.json", {"optimizer": 1.0, "gradients": 1.0}, "optimizer is on the host"),
    ],
)
def test_what_only_the_name_of_a_missing_file_says_is_named(
    file: str, host: dict[str, float], said: str
) -> None:
    text = "model_name_or_path: Qwen/Qwen2.5-7B\nstage: sft\nfinetuning_type: full\n"
    run = read(None, f"{text}deepspeed: conf/{file}\n", Beside(name="a.yaml"))
    assert run.on_host == host
    assert [note for note in run.notes if file in note and said in note]


@pytest.mark.parametrize(("heads", "size"), [(1, 2), (4, 8)])
def test_a_microbatch_of_verls_first_supervised_trainer_is_that_of_all_ranks(
    heads: int, size: int
) -> None:
    text = "torchrun --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer data.micro_batch_size=16 "
    text += f"model.partial_pretrain=google/gemma-2b ulysses_sequence_parallel_size={heads}\n"
    run = read("verl", text)
    assert (run.micro_batch, run.recompute) == (size, "none")
    assert any("priced as false, the default" in note for note in run.notes)


def test_a_length_or_an_old_word_alone_is_no_job_of_megatron() -> None:
    text = "#!/bin/bash\naccelerate launch train.py --batch-size 1 --seq-length 32768 {more}\n"
    with pytest.raises(InvalidInput, match="no argument of Megatron"):
        read("megatron", text.format(more="--model meta-llama/Llama-2-7b-hf"))
    run = read("megatron", text.format(more="--num-layers 2 --hidden-size 64"))
    assert (run.micro_batch, run.sequence) == (1, 32768)


def test_deepspeeds_file_may_lie_right_beside_a_job(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    job = tmp_path / "args.yaml"
    job.write_text(
        "model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 1\n"
        "gradient_accumulation_steps: 1\ndeepspeed: config/ds.json\n"
    )
    assert open_stated(None, job).run.zero == 2


def test_words_of_a_program_are_no_settings_of_deepspeeds_file(tmp_path: Path) -> None:
    (tmp_path / "z.json").write_text(
        '{"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}'
    )
    script = tmp_path / "run.sh"
    script.write_text("deepspeed tune.py --batch_size 2 --bf16 --deepspeed z.json\n")
    job = open_stated(None, script)
    assert (job.run.zero, job.run.micro_batch) == (1, None)
    assert any("what stands behind tune.py" in note for note in job.warnings)


QLORA = "python qlora.py --model_name_or_path huggyllama/llama-7b --per_device_train_batch_size 1"


def test_quantized_adapters_are_read_by_the_words_of_their_first_program() -> None:
    more = " --bits 4 --double_quant --lora_r 64 --lora_modules all --source_max_len 16"
    run = read(None, f"{QLORA}{more} --target_max_len 512\n")
    assert (run.weight_bits, run.lora_rank, run.lora_targets) == (4, 64, ("all",))
    assert run.sequence == 528
    assert read(None, f"{QLORA} --bits 8\n").weight_bits is None  # of what, is not said


@pytest.mark.parametrize("name", ["model_name", "model_name_or_path"])
def test_a_model_is_named_by_either_word(name: str) -> None:
    words = f"torchrun --nproc_per_node 8 sft.py --{name}=Qwen/Qwen2.5-32B-Instruct --bf16 True"
    run = read(None, f"{words} --per_device_train_batch_size 1 --block_size 32768\n")
    assert (run.model_name, run.sequence) == ("Qwen/Qwen2.5-32B-Instruct", 32768)


WORDS = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024"
WORDS += " --max-position-embeddings 1024 --vocab-size 1000 --micro-batch-size 1 {more}"


def test_launchers_of_other_devices_start_a_trainer() -> None:
    words = WORDS.format(more="--global-batch-size 64")
    text = f"#!/bin/bash\nmsrun --worker_num 32 --local_worker_num 8 pretrain_gpt.py {words}\n"
    run = read(None, text)
    assert (run.num_devices, run.devices_per_node) == (32, 8)
    text = f"#!/bin/bash\nbcprun -p 8 --env 'A=1' -c 'python /mount/main.py {words}'\n"
    run = read(None, text)
    assert (run.model is not None, run.num_devices) == (True, None)


def test_experts_are_described_in_the_words_of_mindspeed() -> None:
    more = "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 128 --n-shared-experts 2"
    more += " --first-k-dense-replace 1 --moe-layer-freq 1 --reuse-fp32-param"
    run = read(None, f"torchrun --nproc_per_node 8 pretrain_gpt.py {WORDS.format(more=more)}\n")
    assert run.model is not None
    assert run.model.experts is not None
    assert (run.model.experts.shared_ffn_size, run.model.experts.num_dense_layers) == (256, 1)
    assert any("--reuse-fp32-param" in note for note in run.notes)


def test_several_documents_are_refused_as_such() -> None:
    with pytest.raises(InvalidInput, match="several documents"):
        read("trl", "model_name_or_path: gpt2\n---\nmodel_name_or_path: gpt2\n")


@pytest.mark.parametrize("wraps", ["true", "false"])
def test_what_a_file_of_fsdp_recomputes_is_read(wraps: str, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    words = "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --bf16 True"
    script.write_text(
        f"torchrun --nproc_per_node 8 train.py {words} --max_seq_length 2048 "
        "--fsdp 'full_shard auto_wrap' --fsdp_config conf/fsdp.json\n"
    )
    assert any("fsdp.json is not beside" in note for note in open_stated(None, script).warnings)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/fsdp.json").write_text(f'{{"activation_checkpointing": {wraps}}}')
    run = open_stated(None, script).run
    assert (run.zero, run.recompute) == (3, "full" if wraps == "true" else "none")


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 32), ("bfloat16", None)])
@pytest.mark.parametrize(("shards", "zero"), [("full_shard", 3), ("shard_grad_op", 2)])
def test_frozen_weights_that_fsdp_keeps_in_float32_are_priced(
    dtype: str, bits: int | None, shards: str, zero: int, tmp_path: Path
) -> None:
    script = tmp_path / "run.sh"
    words = "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --bf16 True"
    script.write_text(
        f"torchrun --nproc_per_node 8 train.py {words} --use_peft True --lora_r 8 "
        f"--torch_dtype {dtype} --fsdp {shards} --max_seq_length 2048\n"
    )
    run = open_stated(None, script).run
    assert (run.zero, run.options.get("weight_bits")) == (zero, bits)


ASKED = "--model Qwen/Qwen3-8B --per_device_train_batch_size 2 --max_length 2048"


@pytest.mark.parametrize("word", ["--tuner_type", "--train_type", "--sft_type"])
@pytest.mark.parametrize(("kind", "rank"), [("full", None), ("lora", 8)])
def test_each_name_of_how_swift_tunes_is_read(word: str, kind: str, rank: int | None) -> None:
    run = read(None, f"#!/bin/bash\nNPROC_PER_NODE=4 swift sft {ASKED} {word} {kind}\n")
    assert (run.options.get("lora_rank"), run.num_devices) == (rank, 4)


def test_swift_tunes_adapters_unless_it_is_told_otherwise_where_torchrun_starts_it() -> None:
    run = read(None, f"torchrun --nproc_per_node=2 /opt/bin/swift sft {ASKED}\n")
    assert (run.options.get("lora_rank"), run.num_devices) == (8, 2)


QUANTIZED = (
    "torchrun --nproc_per_node 4 finetune.py --model_name_or_path Qwen/Qwen2.5-7B --bf16 True "
    "--per_device_train_batch_size 1 --max_seq_length 1024 {}\n"
)


@pytest.mark.parametrize("switch", ["--use_lora --q_lora", "--q_lora True", "--train_mode qlora"])
def test_switches_of_quantized_adapters_quantize_the_frozen_weights(switch: str) -> None:
    assert read(None, QUANTIZED.format(switch)).options["weight_bits"] == 4
    assert read(None, QUANTIZED.format("--use_lora")).options.get("weight_bits") is None


def test_what_a_strange_program_may_have_of_adapters_by_its_own_default_is_named() -> None:
    assert "give --lora-rank" in said(run := read(None, QUANTIZED.format("--use_lora")))
    assert "give --lora-targets" in said(run)
    told = read(None, QUANTIZED.format("--use_lora --lora_r 4 --lora_target_modules q_proj"))
    assert "--lora-" not in said(told)
    trls = QUANTIZED.replace("finetune.py", "sft.py").format("--use_peft")
    assert "--lora-" not in said(read(None, trls))


def test_a_recipe_with_a_rank_that_is_no_word_of_trl_trains_adapters() -> None:
    text = "model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 1\nlearning_rate: 1\n"
    run = read("trl", f"{text}lora_rank: 64\n")
    assert run.options["lora_rank"] == 64
    assert "a rank without a switch" in said(run)
    assert read("trl", f"{text}lora_r: 64\n").options.get("lora_rank") is None
    assert read("trl", f"{text}lora_rank: 64\ntrain_mode: full\n").options.get("lora_rank") is None


@pytest.mark.parametrize(("question", "length"), [("max_prompt_length: 100\n", 400), ("", 812)])
def test_a_sampled_answer_stands_behind_its_question(question: str, length: int) -> None:
    text = "model_name_or_path: Qwen/Qwen2.5-7B\nmax_completion_length: 300\n" + question
    assert read("trl", f"{text}num_generations: 8\n").sequence == length
    assert read("trl", text).sequence == 1024  # of pairs, whose whole length has a default


def test_a_learning_rate_of_text_says_that_it_trains() -> None:
    words = QUANTIZED.format("--tune_vision_tower True --connector_lr 1e-4 {}")
    assert read(None, words.format("--language_model_lr 1e-5")).freeze is None
    assert "block" in (read(None, words.format("")).freeze or ())


def test_devices_that_a_script_lists_are_those_of_the_file_that_it_starts(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("base_model: Qwen/Qwen2.5-7B\nsequence_len: 512\n")
    text = "CUDA_VISIBLE_DEVICES=1,3 accelerate launch -m axolotl.cli.train a.yml\n"
    run = read(None, f"#!/bin/bash\n{text}", Beside(folder=tmp_path, name="run.sh"))
    assert (run.num_devices, run.devices_per_node) == (2, 2)


def test_hosts_in_a_file_and_processes_that_are_not_known_are_named() -> None:
    start = "deepspeed --hostfile hosts.txt train.py --model_name_or_path Qwen/Qwen2.5-7B "
    run = read(None, f"{start}--per_device_train_batch_size 1 --max_seq_length 512\n")
    assert run.num_devices is None
    assert "the hosts of hosts.txt are not read" in said(run)
    words = WORDS.format(more="--global-batch-size 64")
    run = read(None, f"#!/bin/bash\nmpirun -np $(wc -l hosts) python pretrain_gpt.py {words}\n")
    assert run.num_devices is None
    assert "is not known; the devices are those of --nodes" in said(run)


def test_degrees_need_more_devices_than_the_one_of_a_program_without_a_launcher() -> None:
    words = WORDS.format(more="--global-batch-size 64 --tensor-model-parallel-size {}")
    alone, many = (
        read(None, f"#!/bin/bash\npython pretrain_gpt.py {words.format(size)}\n") for size in (1, 4)
    )
    assert (alone.num_devices, many.num_devices) == (1, None)
    assert "no launcher is in the file" in said(many)


def test_a_program_that_shards_is_started_on_several_devices_elsewhere() -> None:
    words = (
        "run_clm.py --model_name_or_path meta-llama/Llama-3.2-1B --per_device_train_batch_size 2 "
        "--block_size 2048 --bf16 --output_dir out"
    )
    sharded, alone, off, started = (
        read(None, f"#!/bin/bash\n{line}\n")
        for line in (
            f'python {words} --fsdp "full_shard auto_wrap"',
            f"python {words}",
            f'python {words} --fsdp ""',
            f'torchrun --nproc_per_node 4 {words} --fsdp "full_shard auto_wrap"',
        )
    )
    assert (sharded.num_devices, sharded.zero) == (None, 3)
    assert [each.num_devices for each in (alone, off, started)] == [1, 1, 4]
    found = ["no launcher is in the file" in said(one) for one in (sharded, alone, off, started)]
    assert found == [True, False, False, False]


def test_an_optimizer_that_nobody_knows_is_named() -> None:
    words = WORDS.format(more="--global-batch-size 64 --optimizer {}")
    for name, known in (("ademamix", False), ("adam", True), ("dist_muon", True), ("lion", True)):
        run = read(None, f"torchrun --nproc_per_node 8 pretrain_gpt.py {words.format(name)}\n")
        assert (f"{name} is not known here, and priced as Adam" in said(run)) is not known


def test_a_number_is_not_true() -> None:
    text = "base_model: Qwen/Qwen2.5-7B\nadapter: lora\nlora_r: 8\nlora_dropout: {}\n"
    with pytest.raises(InvalidInput, match="lora_dropout: must be a number, got true"):
        read("axolotl", text.format("true"))
    assert read("axolotl", text.format("false")).options.get("lora_dropout") is None
    assert read("axolotl", text.format("0.1")).options["lora_dropout"] == 0.1


def test_an_experiment_of_torchtitan_takes_a_file_that_the_script_writes() -> None:
    text = (
        "#!/bin/bash\ndocker run image bash -lc 'cat > /tmp/a.toml <<END\n"
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\n'
        "seq_len = 2048\nEND\ntorchrun --nproc_per_node=4 -m torchtitan.experiments.ft.train "
        "--job.config_file /tmp/a.toml --training.seq_len 4096'\n"
    )
    run = read(None, text, Beside(name="run.sh"))
    assert (run.sequence, run.num_devices, run.micro_batch) == (4096, 4, 1)
