"""Which format a job's file has, by what stands in it.

A script is what starts with an interpreter's line or launches a trainer; a mapping is told by keys
that only one framework has. What could be two things is none. A script that starts a trainer on a
file of settings has the format of that file.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

from trainwright.errors import InvalidInput
from trainwright.frameworks.jobs import settings
from trainwright.frameworks.jobs.bridge import is_bridge
from trainwright.frameworks.jobs.fine_tuning import logged_recipe
from trainwright.frameworks.jobs.hub_trainers import COLOSSALAI, SKYRL
from trainwright.frameworks.jobs.hugging_face import is_trainer_program, is_trainer_script
from trainwright.frameworks.jobs.recipes import EASY_R1, is_olmo_core, is_prime_rl
from trainwright.frameworks.jobs.script import (
    Launch,
    as_yaml,
    flags_of,
    is_maxtext_script,
    is_script,
    is_script_name,
    manifest_script,
    overrides_of,
    read_launch,
    text_beside,
    texts_of,
)
from trainwright.frameworks.jobs.torchtitan import FLAME, logged_tables
from trainwright.frameworks.launch import settings_beside
from trainwright.frameworks.shell import Value, read_script

_LOG: Final = re.compile(r"^[^\n]{0,40}-{6,}\s*arguments\s*-{6,}\s*$", re.MULTILINE)
_SCRIPT: Final = re.compile(
    r"^#!.*\b(?:ba|z|k|da)?sh\b|^\s*#SBATCH\b|^\s*(?:[A-Z_][A-Z_0-9]*=\S*\s+)*(?:torchrun|srun|"
    r"deepspeed|accelerate launch|python3?|mpirun)\s|\btorchrun\b|\bpretrain_\w+\.py\b|"
    r"^\s*[A-Z][A-Z_0-9]*=\(?\s*$|^\s*--[a-z][\w-]+",
    re.MULTILINE,
)
# Its programs and those of its recipes, which take the same settings.
_VERL: Final = re.compile(
    r"\bmain_ppo\b|\bverl\.trainer\.\w*sft_trainer\b|(?<![\w.])actor_rollout_ref\.\w+\.\w"
)
_OPENRLHF: Final = re.compile(r"\bopenrlhf\.cli\.train_\w+")
_REGISTRY: Final = re.compile(r"\b(?:Trainer\.Config\b|config_registry import )")
# Keys that tell a mapping, all of one line in it; the first line that matches counts.
_KEYS: Final = (
    ("megatron", ("MODEL_ARGS",)),
    ("megatron", ("system", "model.num_layers")),
    ("megatron", ("experiment.task", "defaults")),
    ("pytorch", ("kind", "mesh", "stages")),
    ("primus", ("overrides.tensor_model_parallel_size",)),
    ("primus", ("modules", "work_group")),
    ("primus", ("modules", "exp_name")),
    ("accelerate", ("distributed_type",)),
    ("torchtune", ("model._component_",)),
    ("automodel", ("step_scheduler", "distributed")),
    ("automodel", ("step_scheduler", "model._target_")),
    ("nanotron", ("parallelism", "tokens")),
    ("litgpt", ("checkpoint_dir", "train.micro_batch_size")),
    ("litgpt", ("model_name", "train.micro_batch_size")),
    ("easyr1", ("worker.actor", "algorithm")),
    ("fast-llm", ("model.base_model", "training")),
    ("fast-llm", ("model.multi_stage", "training")),
    ("levanter", ("trainer.train_batch_size", "trainer.mp")),
    ("levanter", ("trainer.train_batch_size", "model.hidden_dim")),
    ("picotron", ("distributed.tp_size", "training.micro_batch_size")),
    ("neuronx", ("distributed_strategy", "model", "trainer")),
    ("veomni", ("model.model_path", "train.accelerator")),
    ("veomni", ("model.config_path", "train.accelerator")),
    ("areal", ("actor.backend", "train_dataset")),
    ("lingua", ("distributed.fsdp_type", "model.dim")),
    ("lingua", ("data.root_dir", "model.dim", "optim")),
    ("roll", ("actor_train.strategy_args", "actor_train.training_args")),
    ("pipeline-rl", ("finetune", "world")),
    ("pipeline-rl", ("finetune.gradient_accumulation_passes",)),
    ("distillkit", ("training_args", "sequence_length", "teacher")),
    ("verl", ("actor_rollout_ref.model",)),
    ("verl", ("training_config.actor_rollout_ref",)),
    ("verl", ("training_config.engine", "training_config.data")),
    ("verl", ("model.partial_pretrain", "data")),
    ("nemo-rl", ("policy.dtensor_cfg",)),
    ("nemo-rl", ("policy.megatron_cfg",)),
    ("nemo-rl", ("policy.train_global_batch_size",)),
    ("llm-foundry", ("train_loader", "global_train_batch_size")),
    ("llm-foundry", ("model.d_model", "max_duration", "train_loader")),
    ("olmo", ("model.d_model", "global_train_batch_size")),
    ("axolotl", ("base_model",)),
    ("arctic", ("type", "model.name_or_path", "data.sources")),
    ("llamafactory", ("model_name_or_path", "stage")),
    ("llamafactory", ("model_name_or_path", "finetuning_type")),
    ("llamafactory", ("model", "train_dataset", "cutoff_len")),
    ("llamafactory", ("model", "train_dataset", "dist_config")),
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


def logged_format(text: str) -> str | None:
    """The name of the format of a log that states its settings; None of all other texts."""
    if _LOG.search(text):
        return "megatron"
    if logged_tables(text) is not None:
        return "torchtitan"
    return "torchtune" if logged_recipe(text) is not None else None


def format_of(text: str, name: str = "", folder: Path | None = None) -> str | None:
    """The name of the format, None where nothing tells it, or where the text cannot be read.

    What a script starts may stand in another script of its `folder`.
    """
    if (logged := logged_format(text)) is not None:
        return logged
    ending = name.rpartition(".")[2].lower()
    if ending in ("yaml", "yml") and (script := manifest_script(text)) is not None:
        return format_of(script, f"{name.rpartition('.')[0]}.sh", folder)
    if ending not in ("yaml", "yml", "json", "toml") and is_bridge(text[:_FIRST]):
        return "megatron-bridge"
    if ending == "py" and is_olmo_core(text):
        return "olmo-core"
    if ending == "py" and is_trainer_program(text):
        return "trl"
    if ending == "py" or (_REGISTRY.search(text) and "def " in text):
        return "torchtitan" if _REGISTRY.search(text) else None
    if ending == "toml":
        return _of_toml(text)
    if ending in ("yaml", "yml", "json"):
        return _of_mapping(text)
    parts = texts_of(text[:_FIRST], folder)
    if any(map(EASY_R1.search, parts)):
        return "easyr1"
    if any(map(SKYRL.search, parts)):
        return "skyrl"
    if any(map(COLOSSALAI.search, parts)):
        return "colossalai"
    if any(map(_VERL.search, parts)):
        return "verl"
    if any(map(FLAME.search, parts)):
        return "flame"
    if any(map(_OPENRLHF.search, parts)):
        return "openrlhf"
    if any(map(is_maxtext_script, parts)):
        return "maxtext"
    if _SCRIPT.search(parts[0]) or (is_script_name(name) and len(parts) > 1):
        if any(map(is_trainer_script, parts)):
            return "trl"
        started = started_by(text, settings.Beside(folder=folder, name=name))
        return "megatron" if started is None else started.format
    return _of_toml(text) or _of_mapping(text)


def _of_toml(text: str) -> str | None:
    try:
        tables = settings.parse_toml(text)
    except (ValueError, RecursionError):
        return None
    if sum(name in tables for name in _TITAN) >= 2:
        return "torchtitan"
    return "prime-rl" if is_prime_rl(tables) else None


def _of_mapping(text: str) -> str | None:
    try:
        found = {
            str(key).replace("-", "_"): value
            for key, value in settings.parse_settings(text).items()
        }
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


# Scripts that start a trainer on a file of settings: what is meant is that file, and what follows
# ------------------------------------------------------------------------------------------------
# `torchrun … -m torchtitan.train --job.config_file llama.toml --training.seq_len 8192` states what
# `llama.toml` does, with one value replaced. The script is followed as bash would; the file lies
# beside it, or the script writes it. Whose settings they are is told by the program, or by what
# stands in the file. A program that is given Megatron's own arguments has no such file.


# Whose settings a program takes; of others the file itself tells.
_PROGRAMS: Final[Mapping[str, str]] = {
    "axolotl": "axolotl", "axolotl.cli.train": "axolotl",
    "llamafactory-cli": "llamafactory", "llamafactory.launcher": "llamafactory",
    "automodel": "automodel",
    "nemo_automodel.recipes.llm.train_ft": "automodel", "run_train.py": "nanotron",
    "fast-llm": "fast-llm", "prime_rl.trainer.sft.train": "prime-rl",
}  # fmt: skip
_TITANS_OWN: Final = re.compile(r"torchtitan(?:\.experiments\.\w+)?\.train")
# Flags that name the file, the likeliest first.
_FILES: Final = (
    "job.config_file", "config_file", "config", "config_path", "deepspeed_config", "deepspeed",
)  # fmt: skip
_SETTINGS: Final = re.compile(r"[^=\s]*\.(?:ya?ml|toml|json)")
_NAMED: Final = re.compile(r"\.(?:ya?ml|toml|json)\b|--(?:job\.)?config|--module\b")
_VERBS: Final = frozenset({"train", "finetune", "pretrain", "sft"})
# What Megatron is told by arguments, and no trainer with a file is.
_ARGUMENTS: Final = frozenset({
    "num_layers", "hidden_size", "micro_batch_size", "global_batch_size", "seq_length",
    "tensor_model_parallel_size", "model_parallel_size", "max_position_embeddings",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A trainer's file of settings: its name, its text with what replaces parts of it, its format.

    `text` is None where the file is neither beside the script nor written by it. `function` is the
    one to read of a Python module.
    """

    name: str
    text: str | None
    format: str | None
    launch: Launch
    function: str | None = None
    notes: tuple[str, ...] = field(default=())

    def told(self, beside: settings.Beside) -> settings.Beside:
        """What is given beside the file."""
        return replace(beside, name=self.name, function=beside.function or self.function)

    def completed(self, run: settings.StatedRun, script: str) -> settings.StatedRun:
        """The run of the file, on the devices of the script."""
        devices, said = self.launch.devices, f"the settings are those of {self.name}, which "
        notes = (f"{said}{script} starts", *self.launch.notes, *devices.notes, *self.notes)
        if run.num_devices is None and not self.launch.starts_alone:
            seen = devices.visible
            total, per_node = devices.total or seen, devices.per_node or seen
            run = replace(run, num_devices=total, devices_per_node=per_node)
            if run.is_cut and run.pp is None and devices.total is not None:
                cut = _stages_left(run, devices.total)
                run = replace(run, pp=cut)
                if cut is not None:
                    each = f"{devices.total} devices, {run.dp} replicas"
                    said = "cut evenly, as neither is said; give --pp and --tp for another"
                    notes = (*notes, f"{each}: a pipeline of {cut} stages, {said}")
        return replace(run, notes=(*notes, *run.notes))


def _stages_left(run: settings.StatedRun, num_devices: int) -> int | None:
    """Stages of a pipeline that replicas, tensor and context parallelism leave devices for."""
    if run.dp is None:
        return None
    group = run.dp * (run.tp or 1) * (run.cp or 1)
    return None if num_devices % group else num_devices // group


def started_by(text: str, beside: settings.Beside) -> Started | None:
    """The file of settings that a script starts a trainer on; None where it does not."""
    if not is_script(text, beside.name):
        return None
    if (own := settings_beside(text)) is not None:
        return _of_ours(own, text, beside)
    texts = texts_of(text, beside.folder)
    if not any(map(_NAMED.search, texts)):
        return None
    try:
        launch = read_launch(text, beside)
    except InvalidInput:
        return None
    flags = flags_of(launch.words)
    known = "torchtitan" if _TITANS_OWN.fullmatch(launch.program) else None
    known = _PROGRAMS.get(launch.program, known)
    if known is None and _ARGUMENTS & flags.keys():
        return None
    if known == "torchtitan" and "module" in flags:
        return _of_module(flags, launch, beside)
    named = _file_of(launch, flags, trains=any(map(is_trainer_script, texts)))
    if named is None:
        return None
    shown = named.shown() if isinstance(named, Value) else named
    found = text_beside(shown, launch, beside)
    notes: tuple[str, ...] = ()
    own = None if known is not None or found is None else format_of(found, shown)
    if own == "deepspeed":  # says how a program shards, whose words are not of it
        notes = (f"what stands behind {launch.program} on the command line is not read",)
        known = own
    elif found is not None:
        found, notes = _with_words(found, shown, launch, flags)
    if known is None and found is not None:
        known = format_of(found, f"{posixpath.basename(shown)}.json" if notes else shown)
    if known is None:
        return None
    return Started(
        name=posixpath.basename(shown), text=found, format=known, launch=launch, notes=notes
    )


def _of_ours(name: str, text: str, beside: settings.Beside) -> Started | None:
    """Of a script that an export wrote, whose program takes no file."""
    launch = read_launch(text, beside)
    found = text_beside(name, launch, beside)
    told = None if found is None else format_of(found, name)
    return Started(name=name, text=found, format=told, launch=launch)


def _of_module(flags: Mapping[str, Any], launch: Launch, beside: settings.Beside) -> Started:
    """Of torchtitan 0.3, which takes a module and a function of it."""
    name = f"{flags['module']}".rpartition(".")[2] + ".py"
    function = flags.get("config")
    return Started(
        name=name,
        text=text_beside(name, launch, beside),
        format="torchtitan",
        launch=launch,
        function=function if isinstance(function, str) else None,
    )


def _file_of(launch: Launch, flags: Mapping[str, Any], *, trains: bool) -> Value | str | None:
    """The word that names the file: the value of a flag, or the first word with such an ending.

    Where the script `trains` by arguments, a file of DeepSpeed says how its states are sharded.
    """
    for name in _FILES[:-2] if trains else _FILES:
        value = flags.get(name)
        if isinstance(value, Value) or (isinstance(value, str) and _SETTINGS.fullmatch(value)):
            return value
    for word in launch.words:
        text = word.shown()
        if text.startswith("-"):
            break
        if _SETTINGS.fullmatch(text) or (launch.program in _PROGRAMS and text not in _VERBS):
            return word
    given = launch.accelerate.get("config_file")
    return given if isinstance(given, str) and _SETTINGS.fullmatch(given) else None


def _with_words(
    text: str, name: str, launch: Launch, flags: Mapping[str, Any]
) -> tuple[str, tuple[str, ...]]:
    """The settings with those that follow on the command line in place of their own."""
    words = {
        key.replace("-", "_"): value for key, value in flags.items() if key not in _FILES
    } | overrides_of(launch.words)
    given = dict(_leaves(words))
    if not given:
        return text, ()
    try:
        tables = (
            settings.parse_toml(text) if name.endswith(".toml") else settings.parse_settings(text)
        )
    except (InvalidInput, ValueError, RecursionError):
        return text, ()
    notes = []
    for path, value in given.items():
        if isinstance(value, Value):
            notes.append(f"{path}: {value.shown()} is not known, and what {name} says is used")
            continue
        *above, last = path.split(".", settings.DEEPEST)
        inside: Any = tables
        for part in above:
            inside = inside.setdefault(part, {}) if isinstance(inside, dict) else None
        if isinstance(inside, dict):
            inside[last] = as_yaml(value)
    notes.append(f"what stands behind {name} on the command line replaces what it says")
    return json.dumps(tables, default=str), tuple(notes)


def _leaves(words: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in words.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{under}{key}.")
        else:
            yield under + key, value


# Settings that somebody pasted into a log or an issue
# ----------------------------------------------------
# What stands in a fence, lines that read as a mapping, and objects of JSON. The settings of one
# trainer are taken as its file; more of them, which differ, could be either, and are none. Commands
# among sentences, which are no bash, are taken as a script of them.

_FENCED: Final = re.compile(r"^[ \t>]*```[^\n]*\n(.*?)^[ \t>]*```", re.MULTILINE | re.DOTALL)
_FRAME: Final = re.compile(r"""^.*\bFile ".*", line \d+.*$""", re.MULTILINE)
_KEYED: Final = re.compile(
    r"""(?!\S*Error:)(?:([A-Za-z_][\w.-]*)|"([^"\n]+)"|'([^'\n]+)'):(?:\s.*)?"""
)
_WITHIN: Final = re.compile(r"\s+\S.*|-\s.*|\s*#.*|\s*")
_OF_PROSE: Final = ("", "log", "txt", "md", "out", "err")  # endings of files that are no settings
_QUOTED: Final = re.compile(r"^(?:> ?)+|^`(?!``)|(?<!`)`$", re.MULTILINE)
_COMMAND: Final = re.compile(
    r"^[ \t]*(?:\$ )?((?:[A-Z_][A-Z_0-9]*=\S+[ \t]+)*(?:torchrun|accelerate|deepspeed|"
    r"llamafactory-cli|axolotl|trl|python3?|srun|mpirun)[ \t](?:[^\n]*\\[ \t]*\n)*[^\n]*)",
    re.MULTILINE,
)
_SAYS: Final = re.compile(r"\s--\w|\.(?:py|ya?ml|json)\b")  # what a command has, and a sentence not
_OBJECT: Final = re.compile(r"^\{", re.MULTILINE)
_FIRST_KEYS: Final = {key.partition(".")[0] for _, keys in _KEYS for key in keys}
_MOST_PASTED: Final = 64  # blocks of a text, and objects, that are tried
_LONGEST_PASTED: Final = 2**16  # characters
_BESIDE: Final = ("deepspeed", "accelerate")  # how a trainer's run is sharded, not the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Pasted:
    """Settings found in a text: their format, their text, and formats of others that it has."""

    format: str
    text: str
    left: tuple[str, ...] = ()


def untraced(text: str) -> str:
    """A log without the frames of its traces, which name programs that nobody starts there."""
    return _FRAME.sub("", text)


def pasted_in(text: str, name: str = "", folder: Path | None = None) -> Pasted | None:
    """The settings of one job that stand in a text; None where it is a job's file itself.

    None, too, where what stands there is not of one job.
    """
    ending = name.rpartition(".")[2].lower() if "." in name else ""
    if ending not in _OF_PROSE or is_script(text, name) or logged_format(text) is not None:
        return None
    text = untraced(text)
    known, said = format_of(text, name, folder), _QUOTED.sub("", text)
    if known is None:
        return _settings(said) or _commands(said, folder)
    return _commands(said, folder) if _of_mapping(text) is None else None


def _commands(text: str, folder: Path | None) -> Pasted | None:
    """The commands of a text that is not bash as a whole; None where it is, or has none."""
    said = dict.fromkeys(each.strip() for each in _COMMAND.findall(text) if _SAYS.search(each))
    script = "\n".join(("#!/bin/bash", *said, ""))
    if not said or _is_bash(text) or not _is_bash(script):
        return None
    kind = format_of(script, folder=folder)
    return None if kind is None else Pasted(format=kind, text=script)


def _is_bash(text: str) -> bool:
    try:
        return not read_script(text).errors
    except InvalidInput:
        return False


def _settings(text: str) -> Pasted | None:
    found: dict[str, tuple[str, str]] = {}
    for block in islice(_blocks(text), _MOST_PASTED):
        kind = _of_mapping(block)
        if kind is not None:
            found.setdefault(json.dumps(settings.parse_settings(block), default=str), (kind, block))
    trained = [each for each in found.values() if each[0] not in _BESIDE]
    others = [each for each in found.values() if each[0] in _BESIDE]
    if len(trained or others) != 1:
        return None
    ((kind, block),) = trained or others
    engines = [other for known, other in others if known == "deepspeed" and trained]
    tables = settings.parse_settings(block)
    if len(engines) == 1 and isinstance(tables.get("deepspeed"), str):
        block = json.dumps(
            {**tables, "deepspeed": settings.parse_settings(engines[0])}, default=str
        )
        others = [each for each in others if each[1] != engines[0]]
    left = tuple(dict.fromkeys(known for known, _ in others if trained))
    return Pasted(format=kind, text=block, left=left)


def _blocks(text: str) -> Iterator[str]:
    """Parts of a text that may be settings: objects, and lines that read as a mapping."""
    for fence in _FENCED.finditer(text):
        yield from _mappings(dedent(fence[1]))
    yield from _mappings(_FENCED.sub("\n```\n", text))


def _mappings(text: str) -> Iterator[str]:
    ends = 0
    for start in islice(_OBJECT.finditer(text), _MOST_PASTED):
        if start.start() >= ends:
            part = text[start.start() : start.start() + _LONGEST_PASTED]
            try:
                _, length = json.JSONDecoder().raw_decode(part)
            except (ValueError, RecursionError):
                continue
            ends = start.start() + length
            if any(f'"{key}"' in part[:length] for key in _FIRST_KEYS):
                yield part[:length]
    lines: list[str] = []
    keys: set[str] = set()
    for line in (*text.splitlines(), "{"):  # which ends a mapping
        keyed = _KEYED.fullmatch(line)
        if keyed is not None:
            key = next(each for each in keyed.groups() if each is not None)
            keys.add(key.replace("-", "_"))
        if keyed is not None or (lines and _WITHIN.fullmatch(line)):
            lines.append(line)
            continue
        if len(keys) > 1 and keys & _FIRST_KEYS:
            yield "\n".join(lines)[:_LONGEST_PASTED]
        lines, keys = [], set()
