"""Which format a job's file has, by what stands in it.

A script is what starts with an interpreter's line or launches a trainer; a mapping is told by keys
that only one framework has. What could be two things is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trainwright.errors import InvalidInput
from trainwright.frameworks.jobs.bridge import is_bridge
from trainwright.frameworks.jobs.hugging_face import is_trainer_script
from trainwright.frameworks.jobs.script import (
    is_maxtext_script,
    is_script_name,
    started_by,
    texts_of,
)
from trainwright.frameworks.jobs.settings import Beside, parse_settings, parse_toml
from trainwright.frameworks.jobs.torchtitan import logged_tables

_LOG: Final = re.compile(r"^[^\n]{0,40}-{6,}\s*arguments\s*-{6,}\s*$", re.MULTILINE)
_SCRIPT: Final = re.compile(
    r"^#!.*\b(?:ba|z|k|da)?sh\b|^\s*#SBATCH\b|^\s*(?:torchrun|srun|deepspeed|accelerate launch|"
    r"python3?|mpirun)\s|\btorchrun\b|\bpretrain_\w+\.py\b|^\s*[A-Z][A-Z_0-9]*=\(?\s*$|"
    r"^\s*--[a-z][\w-]+",
    re.MULTILINE,
)
_VERL: Final = re.compile(r"\bmain_ppo\b|\bverl\.trainer\.\w*sft_trainer\b")
_REGISTRY: Final = re.compile(r"\b(?:Trainer\.Config\(|config_registry import )")
# Keys that tell a mapping, all of one line in it; the first line that matches counts.
_KEYS: Final = (
    ("megatron", ("MODEL_ARGS",)),
    ("pytorch", ("kind", "mesh", "stages")),
    ("primus", ("overrides.tensor_model_parallel_size",)),
    ("primus", ("modules", "work_group")),
    ("primus", ("modules", "exp_name")),
    ("accelerate", ("distributed_type",)),
    ("torchtune", ("model._component_",)),
    ("automodel", ("step_scheduler", "distributed")),
    ("automodel", ("step_scheduler", "model._target_")),
    ("nanotron", ("parallelism", "tokens")),
    ("llm-foundry", ("train_loader", "global_train_batch_size")),
    ("llm-foundry", ("model.d_model", "max_duration", "train_loader")),
    ("olmo", ("model.d_model", "global_train_batch_size")),
    ("axolotl", ("base_model",)),
    ("llamafactory", ("model_name_or_path", "stage")),
    ("llamafactory", ("model_name_or_path", "finetuning_type")),
    ("trl", ("model_name_or_path",)),
    ("trl", ("per_device_train_batch_size", "gradient_accumulation_steps")),
    ("maxtext", ("base_config",)),
    ("maxtext", ("per_device_batch_size", "max_target_length")),
    ("maxtext", ("ici_fsdp_parallelism",)),
    ("neox", ("pipe_parallel_size", "model_parallel_size")),
    ("neox", ("num_layers", "pos_emb")),
    ("megatron-bridge", ("model.tensor_model_parallel_size",)),
    ("megatron-bridge", ("model", "train.global_batch_size")),
    ("deepspeed", ("zero_optimization",)),
    ("deepspeed", ("train_micro_batch_size_per_gpu",)),
    ("deepspeed", ("train_batch_size", "gradient_accumulation_steps")),
)
_TITAN: Final = ("training", "parallelism", "activation_checkpoint", "lr_scheduler", "job")
_FIRST: Final = 2**18  # characters of a script that are looked at


def format_of(text: str, name: str = "", folder: Path | None = None) -> str | None:
    """The name of the format, None where nothing tells it, or where the text cannot be read.

    What a script starts may stand in another script of its `folder`.
    """
    if _LOG.search(text):
        return "megatron"
    if logged_tables(text) is not None:
        return "torchtitan"
    ending = name.rpartition(".")[2].lower()
    if ending not in ("yaml", "yml", "json", "toml") and is_bridge(text[:_FIRST]):
        return "megatron-bridge"
    if ending == "py" or (_REGISTRY.search(text) and "def " in text):
        return "torchtitan" if _REGISTRY.search(text) else None
    if ending == "toml":
        return "torchtitan" if _is_titan(text) else None
    if ending in ("yaml", "yml", "json"):
        return _of_mapping(text)
    parts = texts_of(text[:_FIRST], folder)
    if any(map(_VERL.search, parts)):
        return "verl"
    if any(map(is_maxtext_script, parts)):
        return "maxtext"
    if _SCRIPT.search(parts[0]) or (is_script_name(name) and len(parts) > 1):
        if any(map(is_trainer_script, parts)):
            return "trl"
        started = started_by(text, Beside(folder=folder, name=name))
        return "megatron" if started is None else started.format
    return "torchtitan" if _is_titan(text) else _of_mapping(text)


def _is_titan(text: str) -> bool:
    try:
        tables = parse_toml(text)
    except (ValueError, RecursionError):
        return False
    return sum(name in tables for name in _TITAN) >= 2


def _of_mapping(text: str) -> str | None:
    try:
        found = {str(key).replace("-", "_"): value for key, value in parse_settings(text).items()}
    except (InvalidInput, RecursionError):
        return None
    kind = next((kind for kind, keys in _KEYS if all(_has(found, key) for key in keys)), None)
    # GPT-NeoX shares DeepSpeed's names, in YAML
    return "neox" if kind == "deepspeed" and not _is_json(text) else kind


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _has(found: Mapping[str, Any], path: str) -> bool:
    first, _, rest = path.partition(".")
    value = found.get(first)
    if not rest:
        return first in found
    return isinstance(value, dict) and _has(value, rest)
