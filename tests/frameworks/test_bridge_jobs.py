"""Recipes of Megatron-Bridge and NeMo, wherever they are changed: YAML, scripts, Python, Primus."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainwright.commands.improve import _file_of, _of_file, _run_of
from trainwright.errors import InvalidInput
from trainwright.frameworks.jobs import Beside, read
from trainwright.frameworks.jobs.detect import format_of
from trainwright.frameworks.jobs.edit import patched
from trainwright.frameworks.read_job import open_stated
from trainwright.profile import Recompute

OVERRIDES = """\
model:
  seq_length: 4096
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 4
  sequence_parallel: true
  recompute_granularity: full
  recompute_method: uniform
  recompute_num_layers: 1
  teacher: {tensor_model_parallel_size: 8}
train: {train_iters: 10, global_batch_size: 64, micro_batch_size: 2}
mixed_precision: bf16_with_fp8_current_scaling_mixed
scheduler: {lr_warmup_iters: 2}
"""
SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
MODEL_NAME=llama32_3b
TP=2
srun python scripts/training/run_recipe.py --recipe ${MODEL_NAME}_pretrain_config \\
    model.tensor_model_parallel_size=$TP model.pipeline_model_parallel_size=1 \\
    model.sequence_parallel=True train.global_batch_size=256 train.micro_batch_size=4 \\
    dataset.seq_length=8192 logger.log_interval=1
"""
RECIPE = """\
from megatron.bridge import AutoBridge
LONG = 16384

def _common(tensor_model_parallel_size=8):
    cfg = ConfigContainer(model=None)
    cfg.train.micro_batch_size = 4
    cfg.model.tensor_model_parallel_size = tensor_model_parallel_size
    return cfg

def small_config():
    cfg = _common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_provider()
    cfg.model.tensor_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.sequence_parallel = True
    cfg.model.seq_length = LONG
    cfg.train.global_batch_size = 512
    return cfg

def open_config():
    cfg = small_config()
    cfg.train.global_batch_size = 4 * world_size()
    return cfg
"""
PRIMUS = """\
work_group: a
exp_name: b
modules:
  post_trainer:
    framework: megatron_bridge
    config: sft_trainer.yaml
    model: qwen3_32b.yaml
    overrides:
      tensor_model_parallel_size: 4
      pipeline_model_parallel_size: 1
      sequence_parallel: false
      peft: lora
      global_batch_size: 32
      micro_batch_size: 1
      seq_length: 8192
      precision_config: bf16_mixed
peft: {dim: 16, target_modules: [linear_qkv, linear_proj]}
"""


def test_overrides_are_those_of_the_model_and_its_training() -> None:
    assert format_of(OVERRIDES, "conf.yaml") == "megatron-bridge"
    run = read(None, OVERRIDES, Beside(name="conf.yaml"))
    assert (run.tp, run.pp, run.micro_batch, run.global_batch) == (2, 4, 2, 64)
    assert (run.sequence, run.recompute, run.precision) == (4096, "full", "fp8")
    assert (run.zero, run.sequence_parallel) == (1, True)
    assert not any("decided by" in note for note in run.notes)


def test_what_the_recipe_decides_is_named_and_not_guessed() -> None:
    run = read("megatron-bridge", "model: {seq_length: 4096}\n", Beside(name="a.yaml"))
    assert run.tp is None
    assert run.pp is None
    assert run.global_batch is None
    assert "give --tp, --pp, --micro-batch, --global-batch" in run.notes[0]


def test_a_script_names_the_recipe_and_its_model() -> None:
    assert format_of(SCRIPT, "train.sh") == "megatron-bridge"
    run = read(None, SCRIPT, Beside(name="train.sh"))
    assert run.model_name == "llama3.2_3b"
    assert (run.tp, run.pp, run.global_batch, run.micro_batch, run.sequence) == (
        2, 1, 256, 4, 8192,
    )  # fmt: skip
    assert run.num_devices == 32


def test_short_options_of_the_performance_scripts() -> None:
    text = (
        "python scripts/performance/setup_experiment.py --model_recipe_name llama3_70b -tp 4 "
        "-pp 4 -vp 5 -mb 1 -gb 128 --num_gpus 64 --gpus_per_node 8 --compute_dtype fp8_cs\n"
    )
    run = read("megatron-bridge", text, Beside(name="run.sh"))
    assert (run.tp, run.pp, run.virtual_stages, run.global_batch) == (4, 4, 5, 128)
    assert (run.num_devices, run.devices_per_node, run.precision) == (64, 8, "fp8")
    assert any("seq_length" in note and "--sequence" in note for note in run.notes)


def test_a_recipe_in_python_is_followed_in_its_own_file() -> None:
    assert format_of(RECIPE, "recipes.py") == "megatron-bridge"
    run = read(None, RECIPE, Beside(name="recipes.py", function="small_config"))
    assert (run.tp, run.pp, run.global_batch, run.micro_batch) == (4, 2, 512, 4)
    assert (run.sequence, run.sequence_parallel) == (16384, True)
    assert run.model_name == "meta-llama/Meta-Llama-3-8B"


def test_a_value_that_a_recipe_computes_is_asked_for() -> None:
    with pytest.raises(InvalidInput, match="global_batch_size"):
        read(None, RECIPE, Beside(name="recipes.py", function="open_config"))
    with pytest.raises(InvalidInput, match="must be one of small_config, open_config"):
        read(None, RECIPE, Beside(name="recipes.py"))


def test_primus_on_megatron_bridge() -> None:
    assert format_of(PRIMUS, "a.yaml") == "primus"
    run = read(None, PRIMUS, Beside(name="a.yaml"))
    assert run.model_name == "qwen3_32b"
    assert (run.tp, run.pp, run.sequence_parallel, run.global_batch) == (4, 1, False, 32)
    assert run.lora_rank == 16
    assert run.lora_targets == ("query", "key", "value", "attention_output")


def test_a_change_is_written_where_the_recipe_has_the_field(tmp_path: Path) -> None:
    path = tmp_path / "conf.yaml"
    path.write_text(OVERRIDES)
    read_so = {"arguments": (), "variables": {}, "vocabulary": None, "function": None}

    def of_text(text: str | None = None) -> Any:
        job = open_stated(None, path, **read_so, names_model=False, nodes=2, text=text)
        beside = {"sequence": None, "global_batch": None}
        return _of_file(job, "llama3-8b", "dgx-h100", 2, beside)[0]

    asked = of_text()
    file = _file_of((None, path), read_so, lambda text: _run_of(of_text(text)))
    degrees = replace(asked.configuration.parallelism, pipeline=2, data=4)
    wanted = replace(
        asked.configuration, parallelism=degrees, microbatch_size=4, recompute=Recompute.NONE
    )
    copy = patched(file, wanted, asked.model)
    assert "pipeline_model_parallel_size: 2\n" in copy
    assert "train: {train_iters: 10, global_batch_size: 64, micro_batch_size: 4}" in copy
    assert "recompute" not in copy
    assert "teacher: {tensor_model_parallel_size: 8}" in copy


NEMO = """\
import nemo_run as run
from nemo.collections import llm

class Mine(llm.Llama3Config):
    num_layers: int = 4

def executor(devices: int = 8):
    return run.LocalExecutor(ntasks_per_node=devices)

def configure(nodes: int = 1):
    recipe = llm.llama3_8b.pretrain_recipe(name="x", num_nodes=2, num_gpus_per_node=8)
    recipe.data.seq_length = 4096
    recipe.model.config.seq_length = recipe.data.seq_length
    recipe.trainer.devices = 4
    recipe.trainer.strategy.pipeline_model_parallel_size = 2
    recipe.data.global_batch_size = 64
    {line}
    return recipe
"""


def test_a_function_that_changes_a_recipe_of_nemo_is_that_recipe() -> None:
    run = read("megatron-bridge", NEMO.format(line="pass"), Beside(name="train.py"))
    assert (run.model_name, run.num_devices, run.sequence, run.pp) == ("llama3_8b", 8, 4096, 2)
    assert run.precision == "bf16"


def test_the_format_of_a_plugin_is_that_of_the_run() -> None:
    line = "recipe.trainer.plugins = bf16_with_fp8_mixed()"
    assert read("megatron-bridge", NEMO.format(line=line)).precision == "fp8"


@pytest.mark.parametrize("name", ["Mine", "llm.Llama32Config1B"])
def test_a_model_that_the_function_puts_in_is_asked_for(name: str) -> None:
    line = f"recipe.model = run.Config(llm.LlamaModel, config=run.Config({name}))"
    run = read("megatron-bridge", NEMO.format(line=line))
    assert (run.model, run.model_name) == (None, None)
    assert f"configure makes it of {name.rpartition('.')[2]}" in " ".join(run.notes)
