"""Words that trainers and what starts them take, and which say sizes, devices and formats."""

from dataclasses import replace

import pytest

import trainwright
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.frameworks.jobs import read
from trainwright.frameworks.jobs.settings import Beside
from trainwright.frameworks.read_job import job_format, open_stated, stated_model
from trainwright.model import count_parameters

SWIFT = """\
NPROC_PER_NODE={each} NNODES=2 \\
megatron sft \\
    --model {model} \\
    --dataset 'mine#200' \\
    --pipeline_model_parallel_size 2 --decoder_last_pipeline_num_layers 13 \\
    --expert_model_parallel_size 4 \\
    --micro_batch_size 2 --global_batch_size 32 --max_length 4096 \\
    --sequence_parallel true {more}
"""


def test_a_model_that_is_named_beside_megatrons_arguments_is_that_of_the_catalog() -> None:
    run = read(None, SWIFT.format(each=8, model="moonshotai/Moonlight-16B-A3B", more=""))
    assert (run.model_name, run.model) == ("moonshotai/Moonlight-16B-A3B", None)
    assert (run.num_devices, run.devices_per_node) == (16, 8)
    assert (run.pp, run.ep, run.etp, run.blocks) == (2, 4, 1, (14, 13))
    assert (run.sequence, run.micro_batch, run.global_batch) == (4096, 2, 32)
    assert (run.precision, run.zero, run.recompute) == ("bf16", 1, "selective")
    assert (run.lora_rank, run.unknown, run.notes) == (None, (), ())


def test_adapters_and_formats_of_the_trainer_that_wraps_megatron_are_its_own_words() -> None:
    more = (
        "--tuner_type lora --lora_rank 16 --target_modules q_proj v_proj "
        "--recompute_granularity none --torch_dtype float16"
    )
    run = read(None, SWIFT.format(each=4, model="moonshotai/Moonlight-16B-A3B", more=more))
    assert (run.lora_rank, run.lora_targets) == (16, ("query", "value"))
    assert (run.precision, run.recompute, run.num_devices) == ("fp16", "none", 8)


ROLLED = """\
MODEL=(--num-layers 4 --hidden-size 256 --num-attention-heads 8 --vocab-size 1024 --swiglu
  --group-query-attention --num-query-groups 2)
ray job submit --address=http://127.0.0.1:1 -- python3 train.py \\
   --actor-num-nodes 2 --actor-num-gpus-per-node 4 --rollout-num-gpus 8 ${MODEL[@]} \\
   --num-rollout 10 --rollout-batch-size 8 --rollout-max-response-len 1024 \\
   --global-batch-size 32 --tensor-model-parallel-size 2 --context-parallel-size 2 \\
   --use-dynamic-batch-size --max-tokens-per-gpu 2048 --sglang-dp-size 4
"""


def test_an_actor_of_reinforcement_has_the_devices_and_lengths_that_its_words_say() -> None:
    run = read(None, ROLLED)
    assert (run.num_devices, run.devices_per_node, run.tp, run.cp) == (8, 4, 2, 2)
    assert (run.sequence, run.micro_batch, run.global_batch) == (1024, 4, 32)
    assert (run.precision, run.zero, run.unknown) == ("bf16", 1, ())
    assert run.model is not None
    assert (run.model.num_heads, run.model.num_kv_heads) == (8, 2)


SECTIONS = """\
system:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  decoder_first_pipeline_num_layers: 1
  precision: {bf16: true}
model:
  num_layers: 4
  hidden_size: 256
  num_attention_heads: 8
  seq_length: 512
  micro_batch_size: 1
  global_batch_size: 16
  optimizer: {lr_scheduler: {lr: 1.0e-4}}
data:
  tokenizer: {vocab_size: 1024}
"""
EXPERIMENT = """\
defaults: [{train: small}, _self_]
experiment:
  task: {type: train, backend: megatron}
  runner: {nnodes: 2, nproc_per_node: 4}
"""


def test_arguments_of_megatron_may_stand_in_tables(tmp_path) -> None:
    (tmp_path / "train").mkdir()
    inner, outer = tmp_path / "train" / "small.yaml", tmp_path / "train.yaml"
    inner.write_text(SECTIONS)
    outer.write_text(EXPERIMENT)
    assert [job_format(each) for each in (inner, outer)] == ["megatron", "megatron"]
    run = open_stated(None, inner).run
    assert (run.tp, run.pp, run.blocks, run.precision) == (2, 2, (1, 3), "bf16")
    assert (run.num_devices, run.unknown) == (None, ())
    started = open_stated(None, outer).run
    assert started == replace(run, num_devices=8, devices_per_node=4)
    inner.unlink()
    with pytest.raises(InvalidInput, match=r"give train/small\.yaml"):
        open_stated(None, outer)


def test_text_behind_images_is_as_long_as_the_decoder() -> None:
    words = (
        "torchrun train.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 "
        "--vocab-size 64 --micro-batch-size 1 --seq-length 576 --decoder-seq-length 1024"
    )
    assert read("megatron", f"{words} --language-model-type=mine").sequence == 1024
    assert read("megatron", words).sequence == 576


def test_null_on_a_command_line_is_what_is_not_set() -> None:
    chunks = "actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size"
    text = (
        "python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer "
        "data.max_prompt_length=64 data.max_response_length=64 "
        "actor_rollout_ref.model.path=Qwen/Qwen3-8B "
        f"actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 {chunks}="
    )
    assert read(None, text + "null").virtual_stages == 1
    assert read(None, text + "2").virtual_stages == 2


SUBMITTED = """\
#!/bin/bash
python submit.py --pool big --num_nodes 2 -- source env.sh \\&\\& accelerate launch \\
    --mixed_precision bf16 --num_processes 8 --use_deepspeed \\
    --deepspeed_config_file {file} finetune.py \\
    --model_name_or_path Qwen/Qwen3-8B --max_seq_length 2048 \\
    --per_device_train_batch_size 1 --gradient_accumulation_steps 2
"""


@pytest.mark.parametrize(
    ("file", "moved"),
    [
        ("zero3_no_offload.json", ()),
        ("stage3_offload.json", ("optimizer to cpu", "gradients to cpu")),
    ],
)
def test_what_is_submitted_is_what_stands_behind_the_dashes(file, moved) -> None:
    run = read(None, SUBMITTED.format(file=file))
    assert (run.num_devices, run.zero, run.offload) == (8, 3, moved)
    assert (run.precision, run.reduce_dtype) == ("bf16", "bf16")
    assert (run.model_name, run.batch_per_replica, run.sequence) == ("Qwen/Qwen3-8B", 2, 2048)
    assert any("--num_nodes): give --nodes" in note for note in run.notes)
    assert any(f"{file} is not beside" in note for note in run.notes)


def test_a_format_that_accelerate_is_told_counts_where_the_trainer_is_told_none() -> None:
    words = "train.py --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 1"
    assert read("trl", f"accelerate launch --mixed_precision bf16 {words}").precision == "bf16"
    own = f"accelerate launch --mixed_precision bf16 {words} --fp16 true"
    assert read("trl", own).precision == "fp16"
    assert read("trl", f"accelerate launch {words}").precision == "fp32"


@pytest.mark.parametrize(
    ("said", "reduced"),
    [
        ("mixed_precision: PURE", "bf16"),
        ("mixed_precision: DEFAULT", None),
        ("mixed_precision: {reduce_dtype: bf16}", "bf16"),
        ("limit_all_gathers: true", None),
    ],
)
def test_composer_sums_gradients_in_what_fsdp_is_told(said, reduced) -> None:
    text = (
        "train_loader: {}\nglobal_train_batch_size: 8\nmax_seq_len: 128\nprecision: amp_bf16\n"
        "model: {pretrained_model_name_or_path: Qwen/Qwen3-8B}\nfsdp_config: {" + said + "}\n"
    )
    assert read(None, text, Beside(name="a.yaml")).reduce_dtype == reduced


@pytest.mark.parametrize(("said", "reduced"), [("{}", "bf16"), ("{precision: mixed}", None)])
def test_olmo_sums_gradients_in_16_bit_unless_it_is_told_to_mix(said, reduced) -> None:
    text = (
        "model: {d_model: 64, n_layers: 2, n_heads: 2, vocab_size: 64}\nprecision: amp_bf16\n"
        f"global_train_batch_size: 8\nfsdp: {said}\n"
    )
    assert read(None, text, Beside(name="a.yaml")).reduce_dtype == reduced


SPACES = """\
num_layers: 4
hidden_size: 64
num_attention_heads: 6
vocab_size: 512
pos_emb: none
norm: rmsnorm
seq_length: 128
train_micro_batch_size_per_gpu: 1
attention_config: {config}
"""


def test_state_spaces_of_neox_are_mixers_alone() -> None:
    space = read("neox", SPACES.format(config='[[["mamba"], 4]]')).model
    assert space is not None
    plain = catalog_of(num_hidden_layers=4, hidden_size=64, vocab_size=512)
    assert count_parameters(space) == count_parameters(plain)
    mixed = read("neox", SPACES.format(config='[[["mamba", "global"], 2]]')).model
    assert mixed is not None
    assert mixed.choice_of_layer == (0, 1, 0, 1)
    assert [choice.attends for choice in mixed.choices] == [False, True]


def catalog_of(**keys: int):
    from trainwright.formats.hf_config import read_config

    return read_config({"model_type": "mamba", **keys}, name="space").config


def test_axes_of_maxtext_that_are_all_stated_are_the_devices() -> None:
    text = "base_config: base.yml\nici_fsdp_parallelism: 8\n"
    assert read(None, text, Beside(name="a.yml")).num_devices is None
    run = read(None, f"{text}dcn_data_parallelism: 4\n", Beside(name="a.yml"))
    assert (run.num_devices, run.devices_per_node, run.state_copies) == (32, 8, 4)
    filled = text.replace("8", "-1") + "dcn_data_parallelism: 4\n"
    assert read(None, filled, Beside(name="a.yml")).num_devices is None


def test_a_registry_whose_trainer_has_a_class_of_its_own_is_one() -> None:
    text = (
        "class _Config(Trainer.Config):\n    pass\n\n\ndef small() -> Trainer.Config:\n"
        "    return _Config(training=TrainingConfig(local_batch_size=2, seq_len=512))\n"
    )
    run = read(None, text, Beside(name="config_registry.py"))
    assert (run.batch_per_replica, run.sequence) == (2, 512)


def test_a_model_that_is_asked_for_is_asked_for_with_the_way_to_give_it(tmp_path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("base_model: nobody/has-this\nsequence_len: 128\nmicro_batch_size: 1\n")
    with pytest.raises(InvalidInput, match=r"as MODEL --from FORMAT FILE.*nobody/has-this"):
        stated_model(open_stated(None, path), None)
    given = stated_model(open_stated(None, path), "qwen3-8b").config
    assert given == catalog.open_model("qwen3-8b").config


PRESET = """\
exp_name: mine
modules:
  pre_trainer:
    framework: megatron
    model: {model}.yaml
    overrides:
      tensor_model_parallel_size: 1
      micro_batch_size: 1
      global_batch_size: 8
      seq_length: 512
      {more}
"""


def priced(tmp_path, model: str, more: str):
    path = tmp_path / "job.yaml"
    path.write_text(PRESET.format(model=model, more=more))
    job = open_stated(None, path)
    return stated_model(job, None).config, job


def test_sizes_beside_a_preset_replace_its_own_and_nothing_else(tmp_path) -> None:
    same = "{num_layers: 24, hidden_size: 2880, num_attention_heads: 64, vocab_size: 201088}"
    model, job = priced(tmp_path, "gpt_oss_20B", same.strip("{}").replace(", ", "\n      "))
    assert model == catalog.open_model("gpt-oss-20b").config
    assert job.run.model_changes is None
    assert all("not in this file" in text for text in job.warnings)
    shorter, job = priced(tmp_path, "deepseek_v3", "num_layers: 8\n      mtp_num_layers: null")
    assert (shorter.num_layers, shorter.num_mtp_layers) == (8, 0)
    own = catalog.open_model("deepseek-v3").config
    assert replace(shorter, num_layers=61, num_mtp_layers=1) == own


def test_what_a_preset_cannot_be_is_named(tmp_path) -> None:
    more = "multi_latent_attention: false\n      num_experts: 64"
    model, job = priced(tmp_path, "deepseek_v3", more)
    assert model == catalog.open_model("deepseek-v3").config
    said = [text.partition(": ")[2] for text in job.warnings]
    assert "multi_latent_attention False: what the preset has is priced" in said
    assert "num_experts 64: what the preset has is priced" in said


def test_a_tokenizer_beside_a_preset_decides_its_vocabulary(tmp_path) -> None:
    model, job = priced(tmp_path, "gpt_oss_20B", "tokenizer_type: Llama3Tokenizer")
    assert model.vocabulary_size == 128_256
    assert any("vocabulary of 128256" in text for text in job.warnings)


def test_steps_of_rollouts_share_what_they_answer() -> None:
    steps = "--n-samples-per-prompt 6 --num-steps-per-rollout 3"
    assert read(None, ROLLED.replace("--global-batch-size 32", steps)).global_batch == 16


def test_arrays_of_a_script_that_asks_for_something_are_no_job() -> None:
    asks = 'MASTER=${MASTER:-}\nif [ -z "$MASTER" ]; then\n  echo "give MASTER"\n  exit 1\nfi\n'
    arrays, _, start = ROLLED.partition("ray job")
    script = f"#!/bin/bash\n{arrays}{asks}ray job{start}"
    with pytest.raises(InvalidInput, match=r'status 1 after "give MASTER"'):
        read(None, script)
    assert read(None, script, Beside(variables={"MASTER": "a"})).num_devices == 8


def test_neox_trains_in_fp32_where_no_format_is_enabled() -> None:
    run = read("neox", SPACES.format(config='[[["global"], 4]]'))
    assert run.precision == "fp32"
    assert any("neither fp16 nor bf16" in note for note in run.notes)
    half = SPACES.format(config='[[["global"], 4]]') + "bf16: {enabled: true}\n"
    assert read("neox", half).precision == "bf16"


NANO = """\
parallelism: {dp: 2, tp: 1, pp: 1}
tokens: {micro_batch_size: 1, sequence_length: 128}
model:
  dtype: bfloat16
  model_config: {is_mamba_config: true, d_model: 64, num_hidden_layers: 4, vocab_size: 512,
    ssm_cfg: {d_state: 16, expand: 2, dt_rank: auto, dt_max: 0.1}, rms_norm: true}
optimizer: {zero_stage: 0}
"""


def test_state_spaces_of_nanotron_are_those_of_the_library() -> None:
    run = read(None, NANO, Beside(name="a.yaml"))
    assert run.model is not None
    plain = catalog_of(num_hidden_layers=4, hidden_size=64, vocab_size=512)
    assert count_parameters(run.model) == count_parameters(plain)
    assert run.unknown == ()


def test_adapters_of_axolotl_may_lie_beside_experts_alone() -> None:
    text = "base_model: Qwen/Qwen3-30B-A3B\nadapter: lora\nsequence_len: 64\n"
    paths = "lora_target_parameters: [mlp.experts.gate_up_proj, mlp.experts.down_proj]\n"
    experts = ("expert_gate", "expert_up", "expert_down")
    assert read(None, text + paths, Beside(name="a.yaml")).lora_targets == experts
    both = text + paths + "lora_target_modules: [q_proj]\n"
    assert read(None, both, Beside(name="a.yaml")).lora_targets == ("query", *experts)


def test_a_loss_without_logits_is_named_with_the_option_that_comes_near() -> None:
    text = "base_model: Qwen/Qwen3-8B\nplugins: [axolotl.integrations.cut_cross_entropy.A]\n"
    notes = read(None, text, Beside(name="a.yaml")).notes
    assert any("give --loss-chunk" in note for note in notes)


def test_an_expression_in_a_program_is_no_name_of_a_model() -> None:
    text = (
        "from trl import SFTConfig, SFTTrainer\n"
        "trainer = SFTTrainer(model=args.model_name_or_path, args=SFTConfig(max_length=128))\n"
    )
    run = read(None, text, Beside(name="train.py"))
    assert run.model_name is None
    assert any("model_name_or_path is not written out" in note for note in run.notes)


TOWERED = "model_name_or_path: {model}\nstage: sft\nfinetuning_type: full\ncutoff_len: 64\n"


def test_what_takes_images_does_not_train_in_full_unless_it_is_said(tmp_path) -> None:
    from trainwright.frameworks.read_job import job_of_model

    def frozen(text: str) -> tuple[str, ...] | None:
        path = tmp_path / "job.yaml"
        path.write_text(text)
        job = open_stated(None, path)
        return job_of_model(job, stated_model(job, None).config).run.freeze

    seen = TOWERED.format(model="Qwen/Qwen2-VL-7B-Instruct")
    assert frozen(seen) == ("patch_embedding", "encoder_block", "projector")
    assert frozen(seen + "freeze_multi_modal_projector: false\n") == (
        "patch_embedding",
        "encoder_block",
    )
    assert frozen(seen.replace("full", "lora")) is None
    assert frozen(TOWERED.format(model="Qwen/Qwen3-8B")) is None


def test_a_file_that_ends_in_yaml_and_is_none_is_refused_by_its_line(tmp_path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("base_model: a\n  b: c\n")
    with pytest.raises(InvalidInput, match="line 2: is not YAML"):
        job_format(path)


def test_experts_that_need_more_devices_are_told_how_many_nodes_hold_them(tmp_path) -> None:
    text = SECTIONS.replace("tensor_model_parallel_size: 2", "expert_model_parallel_size: 16")
    path = tmp_path / "job.yaml"
    path.write_text(text.replace("  seq_length", "  num_experts: 16\n  seq_length"))
    with pytest.raises(InvalidInput, match="got 16 x 1; 4 nodes hold as many"):
        trainwright.estimate(source=("megatron", path), cluster="dgx-h100")
    found = trainwright.estimate(source=("megatron", path), cluster="dgx-h100", nodes=4)
    assert found.document.devices_used == 32


def test_state_spaces_of_nemo_are_told_by_their_groups() -> None:
    text = (
        "trainer: {devices: 1, num_nodes: 1, precision: bf16}\n"
        "model:\n  mcore_gpt: true\n  num_layers: 4\n  hidden_size: 256\n  ffn_hidden_size: 512\n"
        "  num_attention_heads: 4\n  vocab_size: 512\n  encoder_seq_length: 128\n"
        "  micro_batch_size: 1\n  global_batch_size: 8\n  tensor_model_parallel_size: 1\n"
    )
    spaces = "  mamba_ssm_ngroups: 2\n  hybrid_override_pattern: null\n"
    file = Beside(name="nemo.yaml")
    plain, hybrid = (read(None, each, file).model for each in (text, text + spaces))
    assert plain is not None
    assert hybrid is not None
    assert plain.choices == ()
    assert [choice.attends for choice in hybrid.choices] == [False]
    assert hybrid.choices[0].mixer.num_groups == 2  # type: ignore[union-attr]
    own = spaces.replace("null", '"M*M-"')
    assert read(None, text + own, file).model.choice_of_layer == (0, 1, 0, 2)  # type: ignore[union-attr]


def test_modules_that_recompute_may_stand_in_brackets() -> None:
    words = (
        "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 "
        "--vocab-size 64 --seq-length 64 --micro-batch-size 1 --recompute-granularity selective "
        "--recompute-modules "
    )
    plain, bare = (
        read("megatron", words + each) for each in ("'[mlp layernorm]'", "mlp layernorm")
    )
    assert plain.recompute_modules == bare.recompute_modules == ("mlp", "norm")
    assert not any("recompute-modules" in note for note in plain.notes)


@pytest.mark.parametrize(
    ("recipe", "precision"),
    [("mxfp8", "mxfp8"), ("block", "fp8_blockwise"), ("current", "fp8_delayed")],
)
def test_products_that_automodel_leaves_to_another_library_may_be_in_8_bit(
    recipe, precision
) -> None:
    text = (
        "step_scheduler: {local_batch_size: 1}\ndistributed: {strategy: fsdp2}\n"
        "model: {pretrained_model_name_or_path: Qwen/Qwen3-8B, backend: {linear: te%s}}\n"
    )
    eight = text % (", te_fp8: {recipe: " + recipe + "}")
    assert read(None, eight, Beside(name="a.yaml")).precision == precision
    assert read(None, text % "", Beside(name="a.yaml")).precision == "bf16"


def test_parts_before_text_do_not_train_in_the_trainer_that_wraps_megatron() -> None:
    seen = SWIFT.format(each=1, model="Qwen/Qwen2.5-VL-7B-Instruct", more="{}")
    assert read(None, seen.format("")).freeze == ("patch_embedding", "encoder_block", "projector")
    assert read(None, seen.format("--freeze_vit false --freeze_aligner false")).freeze is None
    assert read(None, seen.format("--tuner_type lora")).freeze is None


REGISTRY = """\
def small() -> Trainer.Config:
    return Trainer.Config(
        loss=ChunkedLossWrapper.Config(num_chunks=4),
        optimizer=OptimizersContainer.Config(param_groups=[
            ParamGroupConfig(pattern="w", optimizer_name="DistMuon"),
            ParamGroupConfig(pattern=".*", optimizer_name="AdamW"),
        ]),
        training=TrainingConfig(local_batch_size=2, seq_len=512),
    )
"""


def test_groups_of_parameters_name_their_optimizers() -> None:
    run = read(None, REGISTRY, Beside(name="config_registry.py"))
    assert run.optimizer == "muon"
    assert any("logits of 1 of 4 parts" in note for note in run.notes)
    plain = REGISTRY.replace("DistMuon", "AdamW").replace("ChunkedLossWrapper", "Loss")
    run = read(None, plain, Beside(name="config_registry.py"))
    assert run.optimizer in (None, "adam")
    assert not any("parts" in note for note in run.notes)


def test_a_blank_that_a_script_leaves_is_filled_by_what_is_given() -> None:
    blank = 'IMAGE=""\nif [ -z "$IMAGE" ]; then\n  echo "set IMAGE"\n  exit 1\nfi\n'
    arrays, _, start = ROLLED.partition("ray job")
    script = f"#!/bin/bash\n{arrays}{blank}ray job{start}"
    with pytest.raises(InvalidInput, match='after "set IMAGE"'):
        read(None, script)
    assert read(None, script, Beside(variables={"IMAGE": "a.sqsh"})).num_devices == 8


@pytest.mark.parametrize(
    ("strategy", "is_named"), [("HYBRID_SHARD", True), ("FULL_SHARD", False), ("NO_SHARD", False)]
)
def test_copies_of_sharded_state_that_composer_keeps_are_named(strategy, is_named) -> None:
    text = (
        "train_loader: {}\nglobal_train_batch_size: 8\nmax_seq_len: 128\n"
        "model: {pretrained_model_name_or_path: Qwen/Qwen3-8B}\n"
        f"fsdp_config: {{sharding_strategy: {strategy}}}\n"
    )
    notes = read(None, text, Beside(name="a.yaml")).notes
    assert any("give --state-copies" in note for note in notes) is is_named


@pytest.mark.parametrize(("strategy", "is_named"), [("HYBRID_SHARD", True), (4, True), (1, False)])
def test_copies_of_sharded_state_that_accelerate_keeps_are_named(strategy, is_named) -> None:
    text = (
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n"
        f"fsdp_config: {{fsdp_sharding_strategy: {strategy}}}\n"
    )
    run = read(None, text, Beside(name="a.yaml"))
    assert (run.zero, any("give --state-copies" in note for note in run.notes)) == (3, is_named)
