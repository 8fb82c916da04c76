"""Existing jobs of other people: scripts, TOML and JSON as they are found."""

import json

import pytest

from trainwright.cluster.calibration import SoftwareClass, software_named
from trainwright.errors import InvalidInput
from trainwright.frameworks.jobs import read
from trainwright.frameworks.jobs.deepspeed import read_deepspeed
from trainwright.frameworks.jobs.hugging_face import read_trl
from trainwright.frameworks.jobs.megatron import read_megatron
from trainwright.frameworks.jobs.script import flags_of, read_launch
from trainwright.frameworks.jobs.settings import NOTHING, Beside, parse_yaml, products_of
from trainwright.frameworks.jobs.torchtitan import read_torchtitan
from trainwright.frameworks.launch import to_yaml
from trainwright.frameworks.read_job import (
    job_format,
    job_of_model,
    open_stated,
    stated_model,
    stated_options,
    with_stated_batch,
)
from trainwright.plans.capability import known_target

SCRIPT = """\
#!/bin/bash
# Runs a GPT on two nodes
GPUS_PER_NODE=8
NNODES=2
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes ${NNODES}
)
GPT_MODEL_ARGS=(
    --num-layers 24   # deep
    --hidden-size 2048
    --num-attention-heads 16
    --seq-length 4096
    --max-position-embeddings 4096
    --swiglu
    --vocab-size 50257
    --moe-layer-freq "([0]*4+[1]*20)"
    --num-experts 8
)
TP=2
MODEL_PARALLEL_ARGS="--tensor-model-parallel-size $TP --pipeline-model-parallel-size 4 \\
  --sequence-parallel"
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size=64
    --recompute-granularity full --recompute-method block --recompute-num-layers 2
    --bf16
    --lr 6.0e-5
    --use-distributed-optimizer
    --my-own-flag 3
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    "${GPT_MODEL_ARGS[@]}" \\
    ${MODEL_PARALLEL_ARGS} \\
    ${TRAINING_ARGS[@]} --data-path $DATA_PATH
"""


def test_the_order_of_ranks_is_read_from_a_script():
    assert read_megatron(SCRIPT).mapping == "tp-cp-ep-dp-pp"
    switched = SCRIPT.replace("--sequence-parallel", "--sequence-parallel --use-tp-pp-dp-mapping")
    found = read_megatron(switched)
    assert found.mapping == "tp-cp-ep-pp-dp"
    assert found.unknown == read_megatron(SCRIPT).unknown


def test_a_launch_script_with_arrays_and_variables_is_read() -> None:
    found = read_megatron(SCRIPT)
    assert (found.tp, found.pp, found.cp, found.ep) == (2, 4, 1, 1)
    assert (found.micro_batch, found.global_batch, found.sequence) == (1, 64, 4096)
    assert (found.num_devices, found.zero, found.recompute) == (16, 1, "full:2")
    assert found.sequence_parallel
    assert found.precision == "bf16"
    assert found.unknown == ("--my-own-flag",)
    assert found.model is not None
    assert found.model.num_layers == 24
    assert found.model.gated
    assert found.model.ffn_size == 2048 * 8 // 3 // 64 * 64
    assert found.model.experts is not None
    assert found.model.experts.num_dense_layers == 4


BATCH = """\
#!/bin/bash
#SBATCH --nodes=16
#SBATCH --gres=gpu:h100:8
#SBATCH --ntasks-per-node 1
"""
TASK = "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2"


def test_sizes_of_a_batch_job_are_those_that_slurm_sets() -> None:
    launched = (
        f"torchrun --nnodes=$SLURM_NNODES --nproc-per-node=${{SLURM_GPUS_ON_NODE}} x.py {TASK}"
    )
    assert read_megatron(BATCH + launched).num_devices == 128
    alone = BATCH.replace("ntasks-per-node 1", "ntasks-per-node=8") + f"srun python x.py {TASK}"
    assert read_megatron(alone).num_devices == 128
    open_range = BATCH.replace("--nodes=16", "--nodes=2-16")
    assert read_megatron(open_range + launched).num_devices is None


@pytest.mark.parametrize("shell", ["bash -c", "bash -lc", "sh -exc"])
def test_a_command_in_quotes_is_read(shell: str) -> None:
    found = read_megatron(f'srun -l {shell} "torchrun x.py {TASK}"')
    assert (found.tp, found.pp) == (4, 2)


def test_quotes_of_another_language_are_left_alone() -> None:
    script = f"""python -c "print(' --it\\'s')"\ntorchrun x.py {TASK}\n"""
    found = read_megatron(script)
    assert (found.tp, found.pp) == (4, 2)


def test_a_plain_list_of_arguments_is_read() -> None:
    found = read_megatron("--tensor-model-parallel-size 8\n--micro-batch-size 2 --fp16")
    assert (found.tp, found.micro_batch, found.precision) == (8, 2, "fp16")
    assert found.model is None
    assert "not described" in found.notes[0]


def test_a_layout_gives_blocks_and_virtual_stages() -> None:
    text = "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et|tt|tt|tL'"
    found = read_megatron(text)
    assert found.blocks == (1, 2, 2, 1)
    assert (found.virtual_stages, found.schedule) == (2, "interleaved")


def test_uneven_ends_become_a_split() -> None:
    text = """--num-layers 22 --hidden-size 64 --num-attention-heads 8 --vocab-size 100
    --pipeline-model-parallel-size 4
    --decoder-first-pipeline-num-layers 5 --decoder-last-pipeline-num-layers 5"""
    assert read_megatron(text).blocks == (5, 6, 6, 5)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("--tensor-model-parallel-size two", "--tensor-model-parallel-size"),
        ("--pipeline-model-parallel-layout 'Et tL'", "layout"),
        ("--pipeline-model-parallel-size 3 --pipeline-model-parallel-layout 'Et|tL'",
         "--pipeline-model-parallel-layout"),
        ("--swiglu 'open", "arguments"),
        ("--num-layers 4 --hidden-size 64 --num-attention-heads 8 --vocab-size 100 --num-experts 4 "
         "--moe-layer-freq '([0]*2]+[1]*2)'", "--moe-layer-freq"),
    ],
)  # fmt: skip
def test_faults_of_a_script_name_the_flag(text: str, path: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_megatron(text)
    assert caught.value.faults[0].path == path


@pytest.mark.parametrize("count", ["9999999999", "9" * 5000])
def test_numbers_of_repeats_have_a_limit(count: str) -> None:
    with pytest.raises(InvalidInput, match="layout"):
        read_megatron(f"--pipeline-model-parallel-layout 'Et*{count}|tL'")
    with pytest.raises(InvalidInput, match="--moe-layer-freq"):
        read_megatron(
            "--num-layers 4 --hidden-size 64 --num-attention-heads 8 --vocab-size 100 "
            f"--num-experts 4 --moe-layer-freq '([0]*{count})'"
        )


def test_comments_inside_quotes_stay() -> None:
    assert flags("--data-path 'a #b' # c")["data_path"] == "a #b"


def test_a_default_of_a_variable_is_taken() -> None:
    found = flags("python run.py --lr ${LR:-0.1} --save $SAVE")
    assert found["lr"] == "0.1"
    assert str(found["save"]) == "${SAVE}"


def flags(text: str):
    return flags_of(read_launch(text, NOTHING).words)


TITAN = """\
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 8
global_batch_size = 256
seq_len = 8192
surprise = 1
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_microbatch_size = 2
[activation_checkpoint]
mode = "full"
"""


def test_a_torchtitan_file_is_read() -> None:
    found = read_torchtitan(TITAN)
    assert (found.tp, found.pp, found.dp, found.zero) == (8, 4, None, 2)
    assert (found.micro_batch, found.global_batch, found.sequence) == (2, 256, 8192)
    assert (found.model_name, found.recompute, found.schedule) == (
        "llama3-70b", "full", "interleaved",
    )  # fmt: skip
    assert found.unknown == ("training.surprise",)


def test_what_is_neither_toml_nor_a_module_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is not a TOML file"):
        read_torchtitan("tensor_parallel_degree: 8")


def test_a_deepspeed_file_is_read() -> None:
    text = """{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4, "bf16": {"enabled": true}, "optimiser": 1,
    "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}"""
    found = read_deepspeed(text)
    assert (found.dp, found.zero, found.micro_batch, found.precision) == (8, 3, 2, "bf16")
    assert found.unknown == ('optimiser (did you mean "optimizer"?)',)
    assert found.offload == ("param to cpu",)


def test_deepspeed_batches_must_agree() -> None:
    text = """{"train_batch_size": 65, "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4}"""
    with pytest.raises(InvalidInput, match="multiple of micro-batch x accumulation"):
        read_deepspeed(text)


def test_auto_is_not_stated() -> None:
    assert read_deepspeed('{"train_batch_size": "auto"}').global_batch is None


@pytest.mark.parametrize(
    ("beside", "each"),
    [
        ("", 2),
        (', "gradient_accumulation_steps": null', 2),
        (', "gradient_accumulation_steps": 3', 6),
        (', "gradient_accumulation_steps": "auto"', None),
        (', "train_batch_size": "auto"', None),
        (', "train_batch_size": 64', None),
    ],
)
def test_a_microbatch_alone_is_one_step_of_accumulation(beside: str, each: int | None) -> None:
    found = read_deepspeed(f'{{"train_micro_batch_size_per_gpu": 2{beside}}}')
    assert (found.micro_batch, found.batch_per_replica, found.dp) == (2, each, None)


def test_an_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="megatron, log, megatron-bridge, torchtitan"):
        read("horovod", "")


def test_yaml_reads_back() -> None:
    values = {
        "a": {"b": 1, "c": "yes", "d": [1, "x"], "e": {}},
        "f": True,
        "g": "Et|tL",
        "h": 0.5,
        "i": None,
    }
    assert parse_yaml("# top\n" + to_yaml(values)) == values


def test_yaml_of_another_kind_is_refused_by_line() -> None:
    with pytest.raises(InvalidInput, match="line 2"):
        parse_yaml("a: 1\n- b\n")


DEEPSPEED_GROUPS = """{{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1,
 "gradient_accumulation_steps": 4, "zero_optimization": {{"stage": 3, {}}}}}"""


def test_groups_of_deepspeed_are_copies_of_the_state():
    found = read_deepspeed(DEEPSPEED_GROUPS.format('"mics_shard_size": 8'))
    assert (found.dp, found.state_copies) == (16, 2)
    with pytest.raises(InvalidInput, match="mics_shard_size: must divide the 16 replicas, got 5"):
        read_deepspeed(DEEPSPEED_GROUPS.format('"mics_shard_size": 5'))


def test_a_second_copy_of_the_weights_alone_is_said_not_to_be_priced():
    found = read_deepspeed(DEEPSPEED_GROUPS.format('"zero_hpz_partition_size": 8'))
    assert found.state_copies is None
    assert any("zero_hpz_partition_size is not priced" in note for note in found.notes)


CHAT = """\
deepspeed main.py --model_name_or_path facebook/opt-6.7b --per_device_train_batch_size 3 \\
  --max_seq_len 640 --gradient_accumulation_steps 2 --gradient_checkpointing \\
  --zero_stage 3 --deepspeed {more}
"""


def test_a_switch_for_deepspeed_takes_the_stage_of_the_programs_own_arguments():
    run = read(None, CHAT.format(more="--offload"))
    assert (run.zero, run.micro_batch, run.batch_per_replica, run.sequence) == (3, 3, 6, 640)
    assert run.on_host == {"weights": 1.0, "optimizer": 1.0, "gradients": 1.0}
    assert (run.precision, run.recompute, run.lora_rank) == ("fp16", "full", None)
    assert any("priced in fp16" in note for note in run.notes)
    assert read(None, CHAT.format(more="--dtype bf16")).precision == "bf16"
    tuned = read(None, CHAT.format(more="--lora_dim 64 --only_optimize_lora"))
    assert (tuned.lora_rank, tuned.lora_targets) == (64, ("all",))
    both = read(None, CHAT.format(more="--lora_dim 64"))  # `LinearLayer_LoRA` freezes its weight
    assert (both.lora_rank, both.lora_targets) == (64, ("all",))
    assert any("priced as frozen" in note for note in both.notes)


ACTOR = """\
deepspeed --num_gpus 4 main.py --actor_model_name_or_path $1 --critic_model_name_or_path $2 \\
  --actor_zero_stage 2 --critic_zero_stage 3 --per_device_training_batch_size 8 {more} \\
  --actor_lora_dim 64 --only_optimize_lora --actor_gradient_checkpointing --deepspeed
"""


def test_the_third_step_of_deepspeed_chat_is_the_training_of_its_actor():
    given = Beside(arguments=("facebook/opt-1.3b", "facebook/opt-350m"))
    run = read(None, ACTOR.format(more=""), given)
    assert (run.model_name, run.num_devices) == ("facebook/opt-1.3b", 4)
    assert (run.zero, run.micro_batch, run.sequence, run.lora_rank) == (2, 8, 512, 64)
    assert (run.precision, run.recompute, run.unknown) == ("fp16", "full", ())
    assert any("the critic and the two models" in note for note in run.notes)
    longer = read(None, ACTOR.format(more="--max_answer_seq_len 768"), given)
    assert longer.sequence == 1024


def test_a_model_is_described_by_what_a_script_overrides_of_its_kind():
    line = (
        "torchrun --nproc_per_node 8 run_clm.py --model_type gpt2 --per_device_train_batch_size 2"
    )
    more = "n_embd=512,n_layer=3,n_head=8,gradient_checkpointing=true"
    run = read(None, f'{line} --config_overrides "{more}"\n')
    assert (run.model_name, run.recompute) == ("gpt2", "full")
    assert run.model_changes is not None
    assert run.model_changes["n_embd"] == 512
    with pytest.raises(InvalidInput, match="must be KEY=VALUE"):
        read(None, f"{line} --config_overrides n_embd\n")


FORKED = """\
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --seq-length 64 \\
  --num-attention-heads 8 --micro-batch-size 1 --global-batch-size 16 --vocab-size 1000 {more}
"""


def test_queries_share_heads_as_forks_of_megatron_say_it():
    shared = read(None, FORKED.format(more="--attention-head-type multiquery")).model
    assert shared is not None
    assert (shared.num_kv_heads, shared.query_key_value_bias) == (1, True)
    own = read(None, FORKED.format(more="--num_attention_heads_kv 2 --use_rms_norm")).model
    assert own is not None
    assert (own.num_kv_heads, own.query_key_value_bias, str(own.norm)) == (2, False, "rms")
    untied = read(None, FORKED.format(more="--no_tie_embed_logits --use_bias")).model
    assert untied is not None
    assert (untied.tied_embeddings, untied.mlp_bias) == (False, True)


def test_the_patches_of_pai_have_names_of_their_own():
    more = "--intermediate-size 1280 --swiglu --optimizer hybridadam --optimizer-offload-policy"
    run = read(None, FORKED.format(more=f"{more} static --optimizer-offload-fraction 0.5"))
    assert run.model is not None
    assert run.model.ffn_size == 1280
    assert run.on_host["optimizer"] == 0.5
    every = read(None, FORKED.format(more=f"{more} auto"))
    assert any("priced as the whole" in note for note in every.notes)


def test_layers_that_megatron_offloads_are_a_share_of_what_all_keep():
    first = read(None, FORKED.format(more="--cpu-offloading-num-layers 1 --bf16"))
    assert first.on_host == {"activations": 0.25}
    both = "--cpu-offloading-num-layers 3 --optimizer-cpu-offload --optimizer-offload-fraction 0.5"
    assert read(None, FORKED.format(more=both)).on_host == {"activations": 0.75, "optimizer": 0.5}
    assert read(None, FORKED.format(more="--cpu-offloading-num-layers 0")).on_host == {}


def test_arguments_of_a_script_that_sources_what_is_missing_are_no_job():
    text = 'EXTRA_ARGS="--num-layers-per-virtual-pipeline-stage 2"\n. ./CONFIG.sh\nexit 0\n'
    with pytest.raises(InvalidInput, match=r"sources .\./CONFIG.sh., which is not read"):
        read_launch(text, NOTHING)


MAXTEXT = """\
#!/bin/bash
export RUN=$1
python3 -m MaxText.train "$HOME"/configs/base.yml run_name=$RUN per_device_batch_size=3 \\
  max_target_length=1024 remat_policy=full ici_fsdp_parallelism=-1 ici_tensor_parallelism=4 {more}
"""


def test_words_of_a_maxtext_script_are_its_settings():
    run = read(None, MAXTEXT.format(more="model_name=gemma2-27b"))
    assert (run.tp, run.zero, run.micro_batch, run.sequence) == (4, 3, 12, 1024)
    assert (run.model_name, run.model, run.recompute) == ("gemma2-27b", None, "full")


def test_a_maxtext_model_may_have_another_depth_than_its_name():
    text = "base_config: base.yml\nmodel_name: mixtral-8x7b\nbase_num_decoder_layers: 5\n"
    run = read(None, text, Beside(name="short.yml"))
    assert (run.model_name, run.model_changes) == ("mixtral-8x7b", {"num_hidden_layers": 5})


def test_a_maxtext_model_without_a_name_is_that_of_its_defaults_scaled():
    model = read(None, MAXTEXT.format(more="base_mlp_dim=8192")).model
    assert model is not None
    assert (model.num_layers, model.hidden_size, model.ffn_size) == (16, 2048, 8192)
    scaled = read(None, MAXTEXT.format(more="global_parameter_scale=32")).model
    assert scaled is not None
    sizes = (scaled.num_layers, scaled.hidden_size, scaled.num_heads, scaled.ffn_size)
    assert sizes == (32, 8192, 64, 28672)


def test_settings_that_a_maxtext_script_takes_from_elsewhere_are_asked_for():
    run = read(None, MAXTEXT.format(more="").replace("base.yml", "large.yml"))
    assert run.model is None
    assert any("large.yml is not beside" in note for note in run.notes)


SUPERVISED = """\
torchrun --standalone --nnodes=1 --nproc_per_node=8 -m verl.trainer.{trainer} \\
  data.train_batch_size=96 data.max_length=2048 {more}
"""


def test_verls_supervised_trainers_are_told_from_its_reinforcement():
    older = "model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct data.micro_batch_size_per_gpu=6 "
    older += "ulysses_sequence_parallel_size=2 model.lora_rank=8"
    run = read(None, SUPERVISED.format(trainer="fsdp_sft_trainer", more=older))
    assert (run.zero, run.cp, run.micro_batch, run.global_batch) == (3, 2, 6, 96)
    assert (run.model_name, run.lora_rank) == ("Qwen/Qwen2.5-0.5B-Instruct", 8)
    newer = "engine=megatron engine.tensor_model_parallel_size=2 data.max_token_len_per_gpu=16384"
    newer += " engine.pipeline_model_parallel_size=2 model.path=/data/Qwen3-VL-2B-Instruct"
    run = read(None, SUPERVISED.format(trainer="sft_trainer", more=newer))
    assert (run.zero, run.tp, run.pp, run.num_devices) == (1, 2, 2, 8)
    assert run.micro_batch == 8  # of 48 sequences of a replica as many as 16,384 tokens hold
    assert not run.unknown


def test_references_are_read_from_where_they_stand():
    text = "a: 8\nb: {a: 3, c: '${.a}', d: {e: '${..a}', f: '${a}'}, g: '${multiply:4,${.a}}'}\n"
    found = parse_yaml(text)["b"]
    assert (found["c"], found["d"], found["g"]) == (3, {"e": 3, "f": 8}, 12)
    assert parse_yaml("a: {b: '${...c}'}\nc: 1\n")["a"]["b"] == "${...c}"


FOUNDRY = """\
model:
  name: hf_causal_lm
  pretrained_model_name_or_path: {name}
  config_overrides:
    num_hidden_layers: 4
max_duration: 1ep
max_seq_len: 2048
train_loader: {{name: finetuning}}
global_train_batch_size: 64
device_train_microbatch_size: 1
"""


def test_a_named_model_is_changed_as_a_file_says(tmp_path):
    file = tmp_path / "short.yaml"
    file.write_text(FOUNDRY.format(name="meta-llama/Llama-2-7b-hf"))
    job = open_stated(None, file)
    assert job.run.unknown == ()
    assert stated_model(job, None).config.num_layers == 4
    assert stated_model(job, "llama2-13b").config.num_layers == 40
    file.write_text(FOUNDRY.format(name="nobody/knows"))
    with pytest.raises(InvalidInput, match="changes num_hidden_layers of nobody/knows"):
        stated_model(open_stated(None, file), None)


def test_a_json_of_deepspeed_is_known_without_a_stage_of_zero(tmp_path):
    file = tmp_path / "config.json"
    file.write_text('{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}')
    assert job_format(file) == "deepspeed"
    file.write_text('{"model_type": "gpt2", "n_layer": 2}')
    assert job_format(file) is None


def test_a_script_is_told_by_what_it_starts(tmp_path):
    (tmp_path / "inner.sh").write_text(MAXTEXT.format(more="model_name=gemma2-27b"))
    outer = tmp_path / "outer.sh"
    outer.write_text("bash inner.sh run\n")
    assert job_format(outer) == "maxtext"
    run = open_stated(None, outer).run
    assert (run.model_name, run.tp) == ("gemma2-27b", 4)
    (tmp_path / "inner.sh").write_text(CHAT.format(more=""))
    assert open_stated(None, outer).run.micro_batch == 3
    outer.write_text("bash missing.sh\n")
    assert job_format(outer) is None


def test_settings_of_maxtext_that_are_not_there_leave_their_name():
    text = MAXTEXT.format(more="").replace("base.yml", "llama2_7b.yml")
    run = read(None, text)
    assert run.model_name == "llama2_7b"
    assert any("has the name" in note for note in run.notes)


def test_products_that_a_model_lacks_have_no_adapters_and_are_named(tmp_path):
    file = tmp_path / "tuned.yaml"
    file.write_text(
        "base_model: EleutherAI/pythia-1.4b\nadapter: lora\nmicro_batch_size: 2\nbatch_size: 8\n"
        "lora_target_modules: [query_key_value, gate_proj]\n"
    )
    job = open_stated(None, file)
    assert job.run.batch_per_replica == 8
    assert job.run.lora_targets is not None
    found = job_of_model(job, stated_model(job, None).config)
    assert set(job.run.lora_targets) - set(found.run.lora_targets or ()) == {"gate"}
    assert found.warnings[-1] == (
        "tuned: adapters beside gate are left out: the model has no such product"
    )
    assert job_of_model(found, stated_model(job, None).config) is found


@pytest.mark.parametrize(("stated", "devices", "size"), [(8, 8, 6), (8, 2, 8), (4, 1, 4)])
def test_a_microbatch_of_composer_is_no_larger_than_its_share(tmp_path, stated, devices, size):
    file = tmp_path / "mpt.yaml"
    text = FOUNDRY.format(name="mosaicml/mpt-7b").replace("batch_size: 64", "batch_size: 48")
    file.write_text(text.replace("microbatch_size: 1", f"microbatch_size: {stated}"))
    job = open_stated(None, file)
    options = with_stated_batch(job, stated_options(job, {}), num_devices=devices)
    assert options["micro_batch"] == size
    given = with_stated_batch(job, stated_options(job, {"micro_batch": 16}), num_devices=8)
    assert given["micro_batch"] == 16


@pytest.mark.parametrize(
    ("word", "products"),
    [
        ("q_proj", ("query",)),
        ("model.layers.3.mlp.down_proj", ("down",)),
        ("c_attn", ("query", "key", "value")),
        ("*_proj", ("all",)),
        (r"model\.layers\.[\d]+.self_attn.(q|v)_proj", ("query", "value")),
        (r".*\.(self_attn\.q_a_proj|mlp\.(gate|up)_proj)", ("gate", "up", "query_down")),
        ("nobody_knows", ("nobody_knows",)),
    ],
)
def test_adapters_lie_beside_the_products_that_a_name_or_a_pattern_says(word, products):
    assert products_of([word]) == products


@pytest.mark.parametrize(
    ("given", "gone"),
    [
        ({"pp": 4}, {"blocks"}),
        ({"pp": 1}, {"blocks", "virtual_stages", "schedule"}),
        ({"virtual_stages": 1}, {"blocks"}),
        ({"recompute": "full"}, {"recompute_module"}),
        ({"tp": 1}, {"sequence_parallel"}),
        ({"zero": 0}, set()),
    ],
)
def test_what_follows_from_a_replaced_setting_goes_with_it(tmp_path, given, gone):
    file = tmp_path / "job.sh"
    more = (
        "--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2 "
        "--pipeline-model-parallel-layout 'Et|t|t|tL' --recompute-granularity selective"
    )
    file.write_text(FORKED.format(more=more))
    job = open_stated(None, file)
    whole = stated_options(job, {})
    left = stated_options(job, given)
    assert set(whole) - set(left) == gone - set(given)
    assert {name: left[name] for name in given} == given


SHARDED = """\
accelerate launch --num_processes 8 {launcher} train.py --model_name_or_path Qwen/Qwen3-8B \\
  --per_device_train_batch_size 1 --gradient_accumulation_steps 4 --max_length 4096 --bf16 true \\
  --gradient_checkpointing true {words}
"""


@pytest.mark.parametrize(
    ("launcher", "words", "settings", "kept"),
    [
        ("", "--deepspeed ds.json", {}, "bf16"),
        ("--use_deepspeed --deepspeed_config_file ds.json", "", {}, "bf16"),
        ("", "--deepspeed ds.json", {"data_types": {"grad_accum_dtype": "fp32"}}, None),
    ],
)
def test_a_trainer_that_deepspeed_shards_is_told_from_one_that_fsdp_does(
    tmp_path, launcher, words, settings, kept
):
    stage = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    (tmp_path / "ds.json").write_text(json.dumps(stage | settings))
    script = tmp_path / "run.sh"
    script.write_text(SHARDED.format(launcher=launcher, words=words))
    sharded = open_stated("trl", script)
    assert (sharded.software, sharded.run.zero) == ("trl with deepspeed", 2)
    assert sharded.run.gradient_dtype == kept
    script.write_text(SHARDED.format(launcher="", words='--fsdp "shard_grad_op"'))
    wrapped = open_stated("trl", script)
    assert (wrapped.software, wrapped.run.zero, wrapped.run.gradient_dtype) == ("trl", 2, None)


PRIMUS = """
work_group: AMD
exp_name: llama
modules:
  pre_trainer:
    framework: {}
    model: llama3.1_8B.yaml
    overrides: {}
"""
PLAIN_TITAN = """
[job]
dump_folder = "out"
[training]
local_batch_size = 1
[activation_checkpoint]
mode = "selective"
[compile]
"""
ACCELERATE = "distributed_type: {}\nmixed_precision: bf16\nnum_processes: 8\n"
DYNAMO = "dynamo_config: {dynamo_backend: INDUCTOR}\n"
NEMO = """
from nemo.collections import llm
def recipe():
    found = llm.gemma_2b.pretrain_recipe(num_nodes=1, num_gpus_per_node=8)
    found.trainer.strategy = run.Config({}, tensor_parallel_size=1)
    return found
"""
AXOLOTL = "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 4096\nmicro_batch_size: 1\n"
TUNE = "model: {{_component_: torchtune.models.llama3_1.llama3_1_8b}}\nbatch_size: 2\ncompile: {}\n"
EAGER, COMPILED = SoftwareClass.EAGER_FSDP, SoftwareClass.COMPILED_FSDP


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("p.yaml", PRIMUS.format("megatron", "{seq_length: 8192}"), SoftwareClass.MEGATRON),
        ("p.yaml", PRIMUS.format("maxtext", "{max_target_length: 8192}"), SoftwareClass.XLA),
        ("p.yaml", PRIMUS.format("torchtitan", "{compile: {enable: true}}"), COMPILED),
        ("p.yaml", PRIMUS.format("torchtitan", "{training: {seq_len: 8192}}"), EAGER),
        ("t.toml", PLAIN_TITAN, EAGER),
        ("t.toml", PLAIN_TITAN + "enable = true\n", COMPILED),
        ("t.toml", PLAIN_TITAN + 'enable = true\ncomponents = ["loss"]\n', EAGER),
        ("a.yaml", ACCELERATE.format("FSDP"), EAGER),
        ("a.yaml", ACCELERATE.format("MEGATRON_LM"), SoftwareClass.MEGATRON),
        ("a.yaml", ACCELERATE.format("FSDP") + DYNAMO, COMPILED),
        ("x.yaml", AXOLOTL, EAGER),
        ("x.yaml", AXOLOTL + "torch_compile: true\n", COMPILED),
        ("n.py", NEMO.format("MegatronStrategy"), SoftwareClass.NEMO),
        ("n.py", NEMO.format("FSDP2Strategy"), EAGER),
        ("u.yaml", TUNE.format("false"), EAGER),
        ("u.yaml", TUNE.format("true"), COMPILED),
        ("u.yaml", TUNE.format("{loss: true, model: false}"), EAGER),
    ],
)
def test_speed_is_that_of_the_program_that_runs(tmp_path, name, text, kind):
    (tmp_path / name).write_text(text)
    job = open_stated(None, tmp_path / name)
    assert software_named(job.software).kind is kind
    assert not any("compile" in note for note in job.run.notes)
    assert known_target(job.software or "") == known_target(job.run.program or job.framework or "")


def test_recomputation_by_operator_repeats_experts_in_torchtitan() -> None:
    """It saves no output of their grouped products (distributed/activation_checkpoint.py)."""
    text = (
        '[model]\nname = "{}"\nflavor = "{}"\n\n[training]\nlocal_batch_size = 4\nseq_len = 4096\n'
        '\n[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "{}"\n'
    )
    of = read_torchtitan(text.format("deepseek_v3", "16B", "op"))
    assert of.options["recompute_module"] == ("norm", "mlp_activation", "moe")
    for other in (("llama3", "8B", "op"), ("deepseek_v3", "16B", "2")):
        assert "recompute_module" not in read_torchtitan(text.format(*other)).options


@pytest.mark.parametrize(
    ("command", "devices", "of_a_node"),
    [
        ("deepspeed --include localhost:4,5,6,7 train.py", 4, 4),
        ("deepspeed --include a:0,1@b:0,1,2 train.py", 5, 3),
        ("deepspeed --include a@b:0,2 train.py", None, None),
        ("deepspeed --num_gpus 8 --include localhost:0,1 train.py", 8, 8),
        ("CUDA_VISIBLE_DEVICES=2,3 deepspeed train.py", 2, 2),
        ("CUDA_VISIBLE_DEVICES=0,1,2 accelerate launch train.py", 3, 3),
        ("CUDA_VISIBLE_DEVICES=0,1,2 accelerate launch --num_processes 2 train.py", 2, None),
        ("CUDA_VISIBLE_DEVICES=$GPUS accelerate launch train.py", None, None),
    ],
)
def test_devices_are_those_that_a_launcher_is_given_or_sees(
    command: str, devices: int | None, of_a_node: int | None
) -> None:
    run = read_trl(f"{command} --model_name_or_path gpt2 --per_device_train_batch_size 1\n")
    assert (run.num_devices, run.devices_per_node) == (devices, of_a_node)


@pytest.mark.parametrize(
    ("command", "total"),
    [
        ("llamafactory-cli train a.yaml", None),
        ("CUDA_VISIBLE_DEVICES=0,1 llamafactory-cli train a.yaml", 2),
        ("FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=4 llamafactory-cli train a.yaml", 8),
        ("CUDA_VISIBLE_DEVICES=0 axolotl train a.yaml", 1),
        ("trl sft --config a.yaml", None),
        ("swift sft --model gpt2", 1),
    ],
)
def test_programs_that_start_themselves_take_every_device_that_they_see(
    command: str, total: int | None
) -> None:
    assert read_launch(command + "\n", NOTHING).devices.total == total


@pytest.mark.parametrize(
    ("said", "precision"),
    [
        ("--fp16 True --bf16 False", "fp16"),
        ("--bf16 False", "fp32"),
        ("--bf16 no --fp16 true", "fp16"),
        ("--bf16 True --fp16 False", "bf16"),
        ("--bf16", "bf16"),
    ],
)
def test_a_switch_of_a_script_that_is_turned_off_is_off(said: str, precision: str) -> None:
    start = "torchrun --nproc_per_node=5 train.py --model_name_or_path gpt2"
    run = read_trl(f'{start} --per_device_train_batch_size 1 {said} --fsdp "full_shard"\n')
    assert run.precision == precision


SHARDED_BY_JSON = (
    "deepspeed --num_gpus=4 train.py --model_name_or_path mistralai/Mistral-7B-v0.1 --bf16 True "
    "--per_device_train_batch_size 2 --max_seq_length 4096 --deepspeed ds_config.json\n"
)


SHARDED_MEGATRON = (
    "deepspeed --num_gpus=8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --seq-length 2048 "
    "--num-attention-heads 16 --max-position-embeddings 2048 --micro-batch-size 4 --bf16 "
    "--global-batch-size 512 --deepspeed --deepspeed_config ds.json\n"
)


def test_the_json_of_a_megatron_script_is_read_where_it_lies_or_is_refused(tmp_path) -> None:
    file, script = tmp_path / "ds.json", tmp_path / "run.sh"
    script.write_text(SHARDED_MEGATRON)
    assert "is not beside the script" in str(open_stated(None, script).warnings)
    for stage in (1, 3):
        file.write_text(f'{{"zero_optimization": {{"stage": {stage}}}}}')
        assert open_stated(None, script).run.zero == stage
        written = f"cat <<EOT > ds.json\n{file.read_text()}\nEOT\n{SHARDED_MEGATRON}"
        file.unlink()
        script.write_text(written)
        assert open_stated(None, script).run.zero == stage
        script.write_text(SHARDED_MEGATRON)
    for broken in ('{"zero_optimization": {"stage": 1', '{"zero_optimization": {"stage": 7}}'):
        file.write_text(broken)
        with pytest.raises(InvalidInput, match=r"ds\.json: "):
            open_stated(None, script)
    script.write_text(f"sed 's/A/B/' template > ds.json\n{SHARDED_MEGATRON}")
    assert "is not beside the script" in str(open_stated(None, script).warnings)


@pytest.mark.parametrize(
    ("json", "fault"),
    [
        (
            '{"zero_optimization": {"stage": 7}}',
            "zero_optimization.stage: must be a whole number from 0 to 3, got 7 (number)",
        ),
        ('{"zero_optimization": [3]}', "zero_optimization: must be a table, got [...] (array)"),
    ],
)
def test_a_broken_json_beside_a_script_is_refused_as_it_is_alone(tmp_path, json, fault) -> None:
    file, script = tmp_path / "ds_config.json", tmp_path / "run.sh"
    file.write_text(json)
    script.write_text(SHARDED_BY_JSON)
    with pytest.raises(InvalidInput) as beside:
        open_stated(None, script)
    assert f"ds_config.json: {fault}" in str(beside.value)
    with pytest.raises(InvalidInput) as alone:
        open_stated("deepspeed", file)
    assert fault in str(alone.value)


def test_a_json_beside_a_script_that_ends_early_is_not_priced_by_its_name(tmp_path) -> None:
    (tmp_path / "zero3.json").write_text('{"zero_optimization": {"stage": 2')
    script = tmp_path / "run.sh"
    script.write_text(SHARDED_BY_JSON.replace("ds_config", "zero3"))
    with pytest.raises(InvalidInput, match=r"zero3\.json: line 2: is not YAML"):
        open_stated(None, script)


def test_a_slip_in_a_section_of_deepspeed_is_named_with_what_it_is_like(tmp_path) -> None:
    file, script = tmp_path / "ds_config.json", tmp_path / "run.sh"
    file.write_text(
        '{"zero_optimization": {"stagee": 3, "leaf_module": {"names": ["a"]},'
        ' "offload_param": {"device": "none", "pin": true}},'
        ' "optimizer": {"type": "AdamW", "params": {"lr": 1, "betas": [0.9, 0.95]}}}'
    )
    script.write_text(SHARDED_BY_JSON)
    wanted = (
        "not known here and not used: "
        'zero_optimization.stagee (did you mean "stage"?), zero_optimization.offload_param.pin'
    )
    assert f"ds_config.json: {wanted}" in open_stated("deepspeed", file).warnings
    assert f"run.sh: ds_config.json: {wanted}" in open_stated(None, script).warnings


@pytest.mark.parametrize(
    ("formats", "precision", "says"),
    [
        ('"bf16": {"enabled": "auto"}', "bf16", True),
        ('"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}', "bf16", True),
        ('"fp16": {"enabled": "auto"}', "fp16", True),
        ('"fp16": {"enabled": true}, "bf16": {"enabled": "auto"}', "fp16", False),
        ('"bf16": {"enabled": true}', "bf16", False),
        ('"bf16": {"enabled": false}', None, False),
    ],
)
def test_what_auto_leaves_to_a_trainer_is_taken_as_on_and_said(formats, precision, says) -> None:
    found = read_deepspeed(f'{{"zero_optimization": {{"stage": 3}}, {formats}}}')
    assert (found.precision, found.gradient_dtype, found.reduce_dtype) == (precision,) * 3
    assert says == any('.enabled is "auto"' in note for note in found.notes)


@pytest.mark.parametrize("called", ["huggingface", "HF", "transformers", "trainer"])
def test_the_trainer_of_transformers_is_known_by_what_people_call_it(tmp_path, called) -> None:
    script = tmp_path / "run.sh"
    script.write_text(SHARDED_BY_JSON.replace("--deepspeed ds_config.json", ""))
    assert open_stated(called, script).run == open_stated("trl", script).run


@pytest.mark.parametrize("name", ["accelerate", "deepspeed", "axolotl"])
def test_a_script_given_as_the_settings_of_another_format_says_how_to_ask(tmp_path, name) -> None:
    script = tmp_path / "run.sh"
    script.write_text(SHARDED_BY_JSON)
    with pytest.raises(InvalidInput, match=rf"a script of trl, not the settings of {name}.*--from"):
        open_stated(name, script)
