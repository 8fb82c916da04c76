"""Trainers that shard a hub's model by a library: each by a file made up for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwright.cluster.framework_memory import (
    is_sharded_by_deepspeed,
    memory_of_software,
    on_engine,
)
from trainwright.errors import InvalidInput
from trainwright.formats.calibration_toml import framework_memories
from trainwright.frameworks.jobs import Beside, read
from trainwright.frameworks.jobs.detect import format_of
from trainwright.frameworks.jobs.settings import StatedRun
from trainwright.frameworks.read_job import open_stated

VEOMNI = """\
model:
  model_path: Qwen/Qwen3-8B
data: {{train_path: mine, max_seq_len: 8192}}
train:
  micro_batch_size: 2
  global_batch_size: 64
  accelerator:
    ulysses_size: 4
    fsdp_config: {{fsdp_mode: {mode}, mixed_precision: {{enable: {mixed}}}}}
  {more}
"""


def said(run: StatedRun) -> str:
    return "\n".join((*run.notes, *run.unknown))


def test_veomni_shards_float32_weights_unless_nothing_is_mixed() -> None:
    text = VEOMNI.format(mode="fsdp2", mixed="true", more="")
    assert format_of(text, "a.yaml") == "veomni"
    run = read(None, text, Beside(name="a.yaml"))
    assert (run.zero, run.cp, run.context_exchange) == (3, 4, "all_to_all")
    assert (run.micro_batch, run.global_batch, run.sequence) == (2, 64, 8192)
    assert (run.recompute, run.precision, run.main_weight_dtype) == ("full", "bf16", None)
    off = "gradient_checkpointing: {enable: false}"
    plain = read(None, VEOMNI.format(mode="ddp", mixed="true", more=off), Beside(name="a.yaml"))
    assert (plain.zero, plain.recompute, plain.precision) == (0, "none", "bf16_autocast")
    half = read(None, VEOMNI.format(mode="fsdp2", mixed="false", more=""), Beside(name="a.yaml"))
    assert half.main_weight_dtype == "none"


def test_what_veomnis_file_says_otherwise_is_named() -> None:
    more = "chunk_mbs_config: {enable: true}\n  new_way: 3"
    notes = said(read("veomni", VEOMNI.format(mode="fsdp2", mixed="true", more=more)))
    assert "chunk_mbs_config" in notes
    assert "train.new_way" in notes


ARCTIC = """\
type: {kind}
micro_batch_size: 1
gradient_accumulation_steps: 2
sequence_parallel_size: 8
activation_checkpoint_cpu_offload: true
tiled_mlp_compute: true
deepspeed: {deepspeed}
optimizer: {{type: cpu_adam}}
model: {{type: liger, name_or_path: Qwen/Qwen3-8B}}
data: {{sources: [{{type: huggingface_instruct}}], max_length: 500_000}}
"""


def test_arctic_tells_deepspeed_its_settings() -> None:
    deepspeed = "{zero_optimization: {stage: 3, offload_optimizer: {device: cpu}}}"
    text = ARCTIC.format(kind="sft", deepspeed=deepspeed)
    assert format_of(text, "a.yml") == "arctic"
    run = read(None, text, Beside(name="a.yml"))
    assert (run.zero, run.cp, run.sequence, run.batch_per_replica) == (3, 8, 500_000, 2)
    assert run.on_host == {"activations": 1.0, "optimizer": 1.0, "gradients": 1.0}
    assert (run.gradient_dtype, run.recompute) == ("bf16", "full")
    assert run.loss_chunk is not None
    assert run.mlp_tile == 4096  # tokens, as many as Qwen3-8B is wide
    usual = read(None, ARCTIC.format(kind="swiftkv", deepspeed="{}"), Beside(name="a.yml"))
    assert usual.zero == 2
    assert "type swiftkv" in said(usual)


def test_distillkits_student_trains_as_trl_trains_it() -> None:
    text = "model: Qwen/Qwen3-8B\nsequence_length: 4096\nteacher: {kind: hf, path: x}\n"
    text += "dataset: {prepacked: true}\nfrozen_modules: [vision_tower]\n"
    text += "training_args: {per_device_train_batch_size: 2, gradient_accumulation_steps: 4}\n"
    assert format_of(text, "a.yaml") == "distillkit"
    run = read(None, text, Beside(name="a.yaml"))
    assert (run.sequence, run.micro_batch, run.batch_per_replica) == (4096, 2, 8)
    assert (run.recompute, run.precision, run.model_name) == ("full", "bf16", "Qwen/Qwen3-8B")
    assert all(word in said(run) for word in ("teacher", "vision_tower", "--zero"))


AREAL = """\
cluster: {{n_nodes: 2, n_gpus_per_node: 8}}
gconfig: {{n_samples: 4, max_new_tokens: 1024}}
train_dataset: {{batch_size: 128, max_length: 1024}}
actor:
  backend: "{backend}"
  path: Qwen/Qwen3-30B-A3B
  gradient_checkpointing: true
  mb_spec: {{max_tokens_per_mb: 8192}}
  ppo_n_minibatches: 2
"""


@pytest.mark.parametrize(
    ("backend", "degrees", "devices"),
    [
        ("fsdp:d8p1t1", (1, 1, 8, 1, 3), 8),
        ("fsdp:d4c2", (1, 1, 4, 1, 3), 8),
        ("megatron:(attn:d2p2t4|ffn:d1p2e8)", (4, 2, 2, 8, 1), 16),
        ("megatron:d4p1t2e4", (2, 1, 4, 4, 1), 8),
    ],
)
def test_degrees_of_areal_stand_in_a_word(
    backend: str, degrees: tuple[int, ...], devices: int
) -> None:
    text = AREAL.format(backend=backend)
    assert format_of(text, "a.yaml") == "areal"
    run = read(None, text, Beside(name="a.yaml"))
    assert (run.tp, run.pp, run.dp, run.ep, run.zero) == degrees
    assert (run.num_devices, run.global_batch, run.sequence) == (devices, 256, 2048)
    assert run.micro_batch == 4
    # FSDP2 shards weights in the format that they are loaded in; Megatron has float32 copies
    assert run.main_weight_dtype == ("none" if degrees[-1] == 3 else None)


@pytest.mark.parametrize(("kind", "refers"), [("dpo", True), ("rw", None)])
def test_a_pair_of_areals_answers_is_two_sequences(kind: str, refers: bool | None) -> None:
    text = AREAL.format(backend="fsdp:d8").replace(
        "gconfig: {n_samples: 4, max_new_tokens: 1024}\n", ""
    )
    text = text.replace("batch_size: 128,", f"batch_size: 128, type: {kind},") + "ref: {path: x}\n"
    run = read("areal", text)
    assert (run.per_example, run.global_batch, run.sequence) == (2, 256, 1024)
    assert (run.micro_batch, run.reference) == (8, refers)
    assert "a pair of answers" in said(run)


def test_a_backend_of_areal_without_degrees_is_refused() -> None:
    with pytest.raises(InvalidInput, match="fsdp:d8t1p1"):
        read("areal", AREAL.format(backend="fsdp"))


ROLL = """\
prompt_length: 1024
response_length: 3072
pretrain: Qwen/Qwen2.5-7B
num_gpus_per_node: 8
reward_model: {{strategy_args: {{strategy_name: vllm}}}}
actor_train:
  model_args: {{disable_gradient_checkpointing: false, {model}}}
  training_args: {{per_device_train_batch_size: 1, gradient_accumulation_steps: 16}}
  strategy_args:
    strategy_name: {name}
    strategy_config: {config}
  device_mapping: list(range(0,16))
"""


def test_strategies_of_roll_shard_as_each_library_does() -> None:
    config = "{tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2, "
    config += "use_distributed_optimizer: true, recompute_granularity: full, new_way: 1}"
    text = ROLL.format(name="megatron_train", config=config, model="ulysses_size: 1")
    assert format_of(text, "a.yaml") == "roll"
    run = read(None, text, Beside(name="a.yaml"))
    assert (run.tp, run.pp, run.zero, run.num_devices) == (2, 2, 1, 16)
    assert (run.sequence, run.batch_per_replica, run.recompute) == (4096, 16, "full")
    assert "new_way" in said(run)
    config = "{param_dtype: bf16, reduce_dtype: float32, fsdp_size: 8}"
    text = ROLL.format(name="fsdp2_train", config=config, model="ulysses_size: 2")
    run = read(None, text, Beside(name="a.yaml"))
    assert (run.tp, run.cp, run.zero, run.main_weight_dtype) == (1, 2, 3, "none")
    assert "fsdp_size 8" in said(run)
    config = "${{deepspeed_zero2}}".replace("{{", "{").replace("}}", "}")
    run = read(None, ROLL.format(name="deepspeed_train", config=config, model="lora_rank: 8"))
    assert (run.zero, run.lora_rank) == (2, 8)


def test_files_of_pipeline_rl_lie_over_those_that_they_name(tmp_path: Path) -> None:
    (tmp_path / "finetune").mkdir()
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "finetune/base.yaml").write_text("seq_length: 4096\ntrain_batch_size: 2\n")
    (tmp_path / "base.yaml").write_text(
        "model_path: Qwen/Qwen2.5-7B\ndeepspeed_config: z1\n"
        "world: {actor_fraction: 4, preprocessor_fraction: 1, finetune_fraction: 3}\n"
    )
    (tmp_path / "deepspeed/z1.json").write_text('{"zero_optimization": {"stage": 1}}')
    job = tmp_path / "mine.yaml"
    job.write_text(
        "defaults: [base, _self_]\nfinetune: {gradient_accumulation_passes: 96, "
        "lora: {enabled: true, r: 32}}\nworld: {env_replicas: 1}\n"
    )
    assert format_of(job.read_text(), job.name) == "pipeline-rl"
    run = open_stated(None, job).run
    assert (run.model_name, run.zero, run.sequence) == ("Qwen/Qwen2.5-7B", 1, 4096)
    assert (run.micro_batch, run.global_batch, run.num_devices) == (2, 192, 3)
    assert (run.lora_rank, run.recompute) == (32, "full")
    job.write_text(job.read_text().replace("env_replicas: 1", "finetune_fraction: 4"))
    assert open_stated(None, job).run.num_devices is None  # four ninths of a node
    (tmp_path / "base.yaml").unlink()
    assert "base.yaml is not beside" in said(open_stated(None, job).run)


SKYRL = """\
#!/bin/bash
GPUS=4
uv run --isolated --extra fsdp -m {program} \\
  trainer.policy.model.path="Qwen/Qwen2.5-1.5B-Instruct" trainer.strategy={strategy} \\
  trainer.placement.policy_num_gpus_per_node=$GPUS trainer.policy_mini_batch_size=64 \\
  trainer.micro_train_batch_size_per_gpu=8 trainer.max_prompt_length=512 \\
  generator.n_samples_per_prompt=5 generator.sampling_params.max_generate_length=1024 \\
  {more} $@
"""


@pytest.mark.parametrize("program", ["skyrl.train.entrypoints.main_base", "mine.main_dapo"])
def test_a_module_behind_uv_is_a_program(program: str) -> None:
    text = SKYRL.format(program=program, strategy="fsdp", more="")
    assert format_of(text, "a.sh") == "skyrl"
    run = read(None, text, Beside(name="a.sh"))
    assert (run.zero, run.num_devices, run.micro_batch) == (3, 4, 8)
    assert (run.global_batch, run.sequence, run.recompute) == (320, 1536, "full")


def test_skyrls_megatron_has_degrees_of_its_own() -> None:
    more = "trainer.policy.megatron_config.tensor_model_parallel_size=2 trainer.policy.new_way=1"
    run = read("skyrl", SKYRL.format(program="mine.main", strategy="megatron", more=more))
    assert (run.tp, run.zero, run.program) == (2, 1, "megatron")
    assert "trainer.policy.new_way" in said(run)
    other = SKYRL.format(program="mine.main", strategy="fsdp", more="trainer.arctic_rl.zorro=1")
    assert "arctic_rl" in said(read("skyrl", other))


COLOSSAL = """\
colossalai run --nproc_per_node 8 --hostfile hosts {program} --pretrain "{model}" \\
  --plugin {plugin} --accumulation_steps 2 --batch_size 16 --max_length 4096 \\
  --mixed_precision bf16 --grad_checkpoint --use_flash_attn {more}
"""


def test_a_plugin_of_colossalai_says_what_is_sharded() -> None:
    words = {"program": "train_dpo.py", "model": "Qwen/Qwen2.5-7B", "more": ""}
    text = COLOSSAL.format(plugin="zero2_cpu", **words)
    assert format_of(text, "a.sh") == "colossalai"
    run = read(None, text, Beside(name="a.sh"))
    assert (run.zero, run.micro_batch, run.per_example, run.num_devices) == (2, 32, 2, 8)
    assert run.reference
    assert run.on_host == {"optimizer": 1.0, "gradients": 1.0}
    words |= {"program": "train_sft.py", "more": "--tp 2 --pp 2 --microbatch_size 1"}
    run = read("colossalai", COLOSSAL.format(plugin="3d", **words))
    assert (run.tp, run.pp, run.zero, run.micro_batch) == (2, 2, 0, 1)
    assert (run.batch_per_replica, run.per_example) == (32, 1)
    words["program"] = "train_ppo.py"
    with pytest.raises(InvalidInput, match="generates"):
        read("colossalai", COLOSSAL.format(plugin="zero2", **words))
    words |= {"program": "train_sft.py", "model": ""}
    assert "--pretrain" in said(read("colossalai", COLOSSAL.format(plugin="ddp", **words)))


@pytest.mark.parametrize(("kind", "account"), [("liger", "liger"), ("causal", "hugging-face")])
def test_kernels_of_liger_have_an_account_of_their_own(kind: str, account: str) -> None:
    deepspeed = "{zero_optimization: {stage: 3}}"
    text = ARCTIC.format(kind="sft", deepspeed=deepspeed).replace("liger", kind)
    run = read("arctic", text)
    found = memory_of_software(framework_memories(), on_engine("arctic", run.sharded_by))
    assert found.name.startswith(account)
    assert is_sharded_by_deepspeed(on_engine("arctic", run.sharded_by) or "")
    # an RMS norm of Liger keeps what came in as it came
    assert (found.norm_bytes == 0) is (account == "liger")


LINGUA = """\
grad_acc_steps: 2
distributed: {{fsdp_type: {way}, compile: true, model_dtype: bf16, {more}}}
model: {{dim: 4096, n_layers: 32, n_heads: 32, ffn_dim_multiplier: 1.0, {kind}}}
data: {{root_dir: x, batch_size: 2, seq_len: 4096, tokenizer: {{name: tiktoken}}}}
optim: {{lr: 1.0e-3}}
"""


def test_lingua_describes_a_llama_whose_tokenizer_decides_the_vocabulary() -> None:
    text = LINGUA.format(way="full_shard", more="tp_size: 2", kind="multiple_of: 256")
    assert format_of(text, "a.yaml") == "lingua"
    open_ = read(None, text, Beside(name="a.yaml"))
    assert open_.model is None
    assert "--vocab-size" in said(open_)
    run = read(None, text, Beside(name="a.yaml", vocabulary=128_256))
    assert run.model is not None
    assert (run.model.ffn_size, run.model.num_kv_heads, run.model.head_size) == (11008, 32, 128)
    assert (run.tp, run.zero, run.micro_batch, run.batch_per_replica) == (2, 3, 2, 4)
    assert (run.recompute, run.precision, run.compiled, run.unknown) == ("none", "bf16", True, ())


def test_lingua_without_shards_casts_whole_weights() -> None:
    more = "selective_activation_checkpointing: true"
    text = LINGUA.format(way="no_shard", more=more, kind="vocab_size: 1000")
    run = read("lingua", text)
    assert (run.zero, run.precision, run.recompute) == (0, "bf16_autocast", "selective")
    hybrid = "dp_shard: 8, dp_replicate: 4"
    shared = read("lingua", LINGUA.format(way="full_shard", more=hybrid, kind="vocab_size: 1000"))
    assert shared.state_copies == 4
    spaces = read("lingua", LINGUA.format(way="full_shard", more="", kind="state_dim: 128"))
    assert spaces.model is None
    assert "not those of Llama" in said(spaces)
