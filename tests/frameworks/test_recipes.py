"""Files of research groups' trainers, and manifests that start a trainer, read as they mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainwright.errors import InvalidInput
from trainwright.frameworks.jobs import FORMATS, Beside, read
from trainwright.frameworks.jobs.detect import format_of
from trainwright.frameworks.jobs.script import manifest_script
from trainwright.frameworks.jobs.settings import StatedRun
from trainwright.frameworks.read_job import job_format, open_stated

OLMO_CORE = """\
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.train.train_module import TransformerTrainModuleConfig

LENGTH = 4096
BATCH = 512 * LENGTH
MASKED = {masked}


def build_model_config(common):
    return TransformerConfig.olmo2_7B(vocab_size=common.tokenizer.padded_vocab_size())


def build(common):
    rank_microbatch_size = 2 * common.max_sequence_length
    {branch}
    return TransformerTrainModuleConfig(
        rank_microbatch_size=rank_microbatch_size,
        max_sequence_length=common.max_sequence_length,
        optim=SkipStepAdamWConfig(lr=3e-4),
        compile_model=True,
        dp_config=TransformerDataParallelConfig(
            name=DataParallelType.{kind}, param_dtype=DType.bfloat16, reduce_dtype=DType.float32
        ),
        cp_config=TransformerContextParallelConfig.llama3(degree=8) if MASKED else None,
        ac_config=TransformerActivationCheckpointingConfig(Mode.{mode}),
    )


partial(build_config, global_batch_size=BATCH, max_sequence_length=LENGTH)
"""
PRIME = """\
seq_len = 16384
[model]
name = "Qwen/Qwen3-30B-A3B"
[deployment]
type = "multi_node"
num_train_nodes = 2
[trainer.model]
ep = 8
cp = 2
cp_style = "ulysses"
{more}
[orchestrator]
batch_size = 256
"""
LEVANTER = """\
data: {{tokenizer: "NousResearch/Llama-2-7b-hf"}}
model: {{type: llama, hidden_dim: 768, intermediate_dim: 2048, num_heads: 12, num_kv_heads: 4,
  num_layers: 12, seq_len: 1024}}
trainer: {{mp: "{mp}", train_batch_size: 256, per_device_parallelism: {own}}}
"""
FAST = """\
training: {train_iters: 10}
data: {micro_batch_size: 8192, maximum_document_length: 2048}
schedule: {depth_first_micro_batches: 4}
model:
  base_model:
    embeddings: {vocab_size: 32000}
    hidden_size: 4096
    decoder:
      num_blocks: 32
      block:
        mixer: {heads: 32, head_groups: 8, head_size: 128, add_linear_biases: false,
          rotary: {type: default}}
        mlp: {intermediate_size: 14336, gated: true, activation: silu}
        normalization: {type: rms_norm}
  multi_stage: {zero_stage: 3}
  distributed: {compute_dtype: bf16, tensor_parallel: 2, sequence_tensor_parallel: true}
"""
EASY = """\
data: {max_prompt_length: 1024, max_response_length: 1024}
algorithm: {adv_estimator: grpo}
worker:
  actor:
    global_batch_size: 64
    micro_batch_size_per_device_for_update: 2
    model: {model_path: Qwen/Qwen3-8B, lora: {rank: 0, target_modules: all-linear}}
    offload: {offload_params: true}
  rollout: {n: 4}
trainer: {nnodes: 1, n_gpus_per_node: 8}
"""
NEURON = """\
trainer: {devices: 32, num_nodes: 2}
distributed_strategy: {tensor_model_parallel_size: 8, pipeline_model_parallel_size: 2,
  virtual_pipeline_model_parallel_size: 1, zero1: true, sequence_parallel: true}
data: {micro_batch_size: 1, global_batch_size: 512}
model: {encoder_seq_length: 4096, num_layers: 32, hidden_size: 4096, ffn_hidden_size: 11008,
  num_attention_heads: 32, num_kv_heads: 32, activation: swiglu, normalization: rmsnorm,
  position_embedding_type: rope, share_embeddings_and_output_weights: false, has_bias: false,
  activations_checkpoint_granularity: selective, activations_checkpoint_recompute: [CoreAttention]}
precision: {type: mixed_precision}
"""
MANIFEST = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  nprocPerNode: "8"
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template: {spec: {containers: [{name: other, image: x}]}}
    Worker:
      replicas: 3
      template:
        spec:
          containers:
            - name: pytorch
              resources: {limits: {nvidia.com/gpu: 8}}
              env: [{name: SIZE, value: "2"}]
              command:
                - bash
                - -c
                - |
                  torchrun --nnodes=$PET_NNODES --nproc_per_node=$PET_NPROC_PER_NODE train.py \\
                    --model_name_or_path gpt2 --per_device_train_batch_size $SIZE \\
                    --max_seq_length 512
"""


def said(run: StatedRun) -> str:
    return " ".join((*run.unknown, *run.notes))


def olmo(*, kind: str = "fsdp", masked: str = "True", mode: str = "full", branch: str = "") -> str:
    return OLMO_CORE.format(kind=kind, masked=masked, mode=mode, branch=branch)


def test_a_program_of_olmo_core_is_read_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import missing_module\n" + olmo())
    assert job_format(path) == "olmo-core"
    run = open_stated(None, path).run
    assert (run.micro_batch, run.global_batch, run.sequence) == (2, 512, 4096)
    assert (run.cp, run.context_exchange, run.zero) == (8, "all_gather", 3)
    assert (run.recompute, run.precision, run.reduce_dtype) == ("full", "bf16", "fp32")
    assert (run.model_name, run.model_changes) == ("olmo2-7b", {"vocab_size": 100_352})


def test_a_choice_in_a_program_is_made_where_it_is_known() -> None:
    assert read("olmo-core", olmo(masked="False")).cp == 1
    unknown = read("olmo-core", olmo(masked="asked()"))
    assert unknown.cp == 8 and "cp_config" in said(unknown)


def test_what_a_program_sets_anew_under_a_condition_is_named() -> None:
    branch = "if common.launch:\n        rank_microbatch_size *= 2"
    run = read("olmo-core", olmo(branch=branch, kind="hsdp", mode="budget"))
    assert "under a condition, which is not used: rank_microbatch_size" in said(run)
    assert "give --state-copies" in said(run) and "ac_config budget" in said(run)


@pytest.mark.parametrize(
    ("line", "is_known"),
    [
        ("config.init_seed = 3", True),
        ("config.lm_head.loss_implementation = x", True),
        ("config.block = hybrid(config.block)", False),
        ("config.n_layers //= 2", False),
        ("config.block_overrides[0] = x", False),
        ("other.block = x", True),
    ],
)
def test_a_preset_that_a_program_changes_is_not_taken_for_itself(line: str, is_known: bool) -> None:
    text = olmo().replace("    return TransformerConfig", "    config = TransformerConfig")
    text = text.replace("padded_vocab_size())\n", f"padded_vocab_size())\n    {line}\n", 1)
    run = read("olmo-core", text)
    assert (run.model_name == "olmo2-7b") is is_known
    assert is_known or "olmo2_7B with another config." in said(run)


def test_sizes_that_a_program_computes_are_asked_for() -> None:
    text = olmo().replace("LENGTH = 4096", "LENGTH = length_of(4096)")
    with pytest.raises(InvalidInput, match="computes what is needed: max_sequence_length"):
        read("olmo-core", text)
    other = read("olmo-core", olmo().replace("olmo2_7B", "olmo2_370M"))
    assert other.model_name is None and "olmo2_370M is not known" in said(other)


def test_the_trainer_of_prime_rl_has_its_own_defaults() -> None:
    text = PRIME.format(more="")
    assert format_of(text, "rl.toml") == "prime-rl"
    run = read(None, text, Beside(name="rl.toml"))
    assert (run.num_devices, run.devices_per_node, run.cp, run.ep) == (16, 8, 2, 8)
    assert (run.micro_batch, run.global_batch, run.sequence) == (1, 256, 16384)
    assert (run.recompute, run.loss_chunk, run.context_exchange) == ("full", 8192, "all_to_all")
    assert run.on_host == {"activations": 1.0, "optimizer": 1.0}
    on_device = PRIME.format(more="optim_cpu_offload = false\nac_offloading = false")
    assert read("prime-rl", on_device).on_host == {}


def test_adapters_of_prime_rl_lie_beside_float32_shards() -> None:
    text = (
        '[model]\nname = "Qwen/Qwen3-4B"\n{more}[model.lora]\nrank = 16\n[data]\nseq_len = 4096\n'
    )
    wide = read("prime-rl", text.format(more='attn = "flash_attention_2"\n'))
    assert wide.options["weight_bits"] == 32
    assert "attn flash_attention_2: priced as the fastest kernel" in said(wide)
    narrow = read("prime-rl", text.format(more='optimization_dtype = "bfloat16"\n'))
    assert "weight_bits" not in narrow.options
    assert "fastest kernel" not in said(narrow)


def test_supervised_training_of_prime_rl_counts_its_batch_in_sequences() -> None:
    text = '[model]\nname = "Qwen/Qwen3-0.6B"\n[data]\nseq_len = 4096\nbatch_size = 32\n'
    text += "micro_batch_size = 2\n[deployment]\nnum_train_gpus = 4\n"
    run = read(None, text, Beside(name="sft.toml"))
    assert (run.micro_batch, run.global_batch, run.num_devices) == (2, 32, 4)
    assert run.loss_chunk is None  # supervised training has no chunks


@pytest.mark.parametrize(
    ("own", "devices", "microbatch"), [("2", 8, 2), ("-1", 8, 32), ("-1", 64, 4)]
)
def test_a_device_of_levanter_takes_its_part_at_once(
    own: str, devices: int, microbatch: int, tmp_path: Path
) -> None:
    from trainwright.frameworks.read_job import with_stated_batch

    path = tmp_path / "llama.yaml"
    path.write_text(LEVANTER.format(mp="p=f32,c=bfloat16", own=own))
    job = open_stated(None, path)
    assert job.framework == "levanter"
    options = with_stated_batch(job, job.run.options, num_devices=devices)
    assert (options["micro_batch"], options["global_batch"]) == (microbatch, 256)
    assert job.run.model is not None
    assert (job.run.model.num_kv_heads, job.run.model.vocabulary_size) == (4, 32_000)


def test_policies_of_levanter_say_what_is_kept() -> None:
    whole = read("levanter", LEVANTER.format(mp="f32", own=1))
    assert (whole.precision, whole.main_weight_dtype) == ("fp32", None)
    half = read("levanter", LEVANTER.format(mp="p=bfloat16,c=bfloat16", own=1))
    assert (half.precision, half.main_weight_dtype) == ("bf16", "none")


def test_microbatches_of_fast_llm_are_tokens() -> None:
    assert format_of(FAST, "config.yaml") == "fast-llm"
    run = read("fast-llm", FAST)
    assert (run.micro_batch, run.batch_per_replica, run.sequence) == (4, 16, 2048)
    assert (run.tp, run.zero, run.sequence_parallel, run.precision) == (2, 3, True, "bf16")
    assert run.model is not None and run.model.num_kv_heads == 8 and not run.model.mlp_bias


def test_flame_reads_torchtitans_settings_and_a_model_beside(tmp_path: Path) -> None:
    settings = "[training]\nbatch_size = 4\nseq_len = 1024\n[activation_checkpoint]\nmode='full'\n"
    (tmp_path / "fla.toml").write_text(settings)
    config = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2,
              "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 1000}  # fmt: skip
    (tmp_path / "model.json").write_text(json.dumps(config))
    text = (
        "#!/bin/bash\ntorchrun --nproc_per_node 8 -m flame.train --job.config_file fla.toml "
        "--model.config configs/model.json --training.seq_len 2048 "
        "--training.gradient_accumulation_steps 2\n"
    )
    path = tmp_path / "run.sh"
    path.write_text(text)
    run = open_stated(None, path).run
    assert (run.micro_batch, run.batch_per_replica, run.sequence) == (4, 8, 2048)
    assert (run.zero, run.recompute, run.num_devices) == (3, "full", 8)
    assert run.model is not None and run.model.vocabulary_size == 1000
    (tmp_path / "model.json").unlink()
    assert "configs/model.json is not beside this file" in said(open_stated(None, path).run)


def test_picotron_changes_a_named_model(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "distributed": {"tp_size": 2, "pp_size": 2, "dp_size": 4, "pp_engine": "afab"},
            "model": {"name": "HuggingFaceTB/SmolLM-135M", "num_hidden_layers": 16},
            "training": {
                "seq_length": 1024, "micro_batch_size": 4, "gradient_accumulation_steps": 8
            },
        }
    )  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(text)
    job = open_stated(job_format(path), path)
    run = job.run
    assert (job.framework, run.tp, run.pp, run.dp, run.schedule) == ("picotron", 2, 2, 4, "gpipe")
    assert (run.global_batch, run.num_devices, run.gradient_dtype) == (128, 16, "fp32")
    assert run.model_changes == {"num_hidden_layers": 16}


def test_easy_r1_is_told_from_verl(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(EASY)
    text = (
        "#!/bin/bash\npython3 -m verl.trainer.main config=examples/config.yaml "
        "worker.actor.optim.strategy=adamw_bf16 worker.actor.fsdp.torch_dtype=bf16\n"
    )
    path = tmp_path / "run.sh"
    path.write_text(text)
    job = open_stated(None, path)
    run = job.run
    assert job.framework == "easyr1"
    assert (run.micro_batch, run.global_batch, run.sequence) == (2, 256, 2048)
    assert (run.main_weight_dtype, run.recompute, run.num_devices) == ("none", "full", 8)
    alone = open_stated(None, tmp_path / "config.yaml").run
    assert (alone.main_weight_dtype, alone.global_batch) == (None, 256)


def test_neuron_cores_are_devices() -> None:
    assert format_of(NEURON, "conf.yaml") == "neuronx"
    run = read("neuronx", NEURON, Beside(vocabulary=32_000))
    assert (run.tp, run.pp, run.num_devices, run.zero) == (8, 2, 64, 1)
    assert (run.micro_batch, run.global_batch, run.sequence) == (1, 512, 4096)
    assert (run.recompute, run.recompute_modules) == ("selective", ("attention_core",))
    assert run.model is not None and run.model.gated and run.model.rotary
    lora = NEURON + "model_alignment_strategy: {peft: {lora_rank: 16, target_modules: [qkv_proj]}}"
    assert read("neuronx", lora, Beside(vocabulary=32_000)).lora_rank == 16


def test_pairs_of_answers_are_two_sequences_on_neuron_cores() -> None:
    text = NEURON + "model_alignment_strategy: {dpo: {kl_beta: 0.1}}"
    run = read("neuronx", text, Beside(vocabulary=32_000))
    assert (run.micro_batch, run.global_batch, run.per_example, run.reference) == (2, 1024, 2, True)
    assert "a pair of answers is priced as two sequences" in said(run)


def test_a_recipe_of_hyperpod_holds_verls_tables() -> None:
    inner = {
        "data": {"max_length": 4096, "train_batch_size": 32, "max_token_len_per_gpu": 8192,
                 "use_dynamic_bsz": True},
        "engine": {"strategy": "fsdp2"},
        "model": {"path": "Qwen/Qwen3-14B"},
    }  # fmt: skip
    text = json.dumps({"trainer": {"devices": 8, "num_nodes": 2}, "training_config": inner})
    assert format_of(text, "recipe.yaml") == "verl"
    run = read("verl", text, Beside(name="recipe.yaml"))
    assert (run.num_devices, run.micro_batch, run.global_batch) == (16, 2, 32)


def test_a_manifest_is_the_script_of_its_container() -> None:
    run = read(None, MANIFEST, Beside(name="job.yaml"))
    assert (run.num_devices, run.micro_batch, run.sequence) == (32, 2, 512)
    assert format_of(MANIFEST, "job.yaml") == "trl"


@pytest.mark.parametrize(
    ("kind", "spec", "expected"),
    [
        ("RayJob", {"entrypoint": "python train.py"}, "python train.py"),
        ("TrainJob", {"trainer": {"numNodes": 3, "command": ["torchrun", "a b.py"]}}, "'a b.py'"),
        (
            "JobSet",
            {"replicatedJobs": [{"replicas": 2, "template": {"spec": {"parallelism": 4,
              "template": {"spec": {"containers": [{"command": ["python", "x.py"]}]}}}}}]},
            "export NNODES=8",
        ),
        ("Job", {"parallelism": 2, "template": {"spec": {"containers": [
            {"command": ["sh", "-ec", "python y.py"], "env": [{"name": "A", "value": "1 2"}]}]}}},
         "export A='1 2'"),
    ],
)  # fmt: skip
def test_kinds_of_manifests(kind: str, spec: dict[str, object], expected: str) -> None:
    found = manifest_script(json.dumps({"apiVersion": "v1", "kind": kind, "spec": spec}))
    assert found is not None and expected in found


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: ConfigMap\ndata: {}\n",
        "apiVersion: v1\nkind: Pod\nspec: {containers: [{image: x}]}\n",
        "apiVersion: v1\nkind: Pod\nspec: [1]\n",
        "apiVersion: v1\nkind: {{ .Kind }}\n",
    ],
)
def test_manifests_without_a_command_are_none(text: str) -> None:
    assert manifest_script(text) is None


@pytest.mark.parametrize(
    "name", sorted(name for name, (module, _) in FORMATS.items() if module == "recipes")
)
@pytest.mark.parametrize("text", ["", "a: [", "{", "x = ", "- 1", "trainer: 3\nmodel: 4\n"])
def test_what_is_no_such_file_is_refused_or_read(name: str, text: str) -> None:
    try:
        read(name, text, Beside(name="file.yaml"))
    except InvalidInput as error:
        assert error.faults
