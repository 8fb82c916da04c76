"""Scripts that start a trainer on a file of settings: what is meant is that file, and what follows.

`torchrun … -m torchtitan.train --job.config_file llama.toml --training.seq_len 8192` states what
`llama.toml` does, with one value replaced. The script is followed as bash would; the file lies
beside it, or the script writes it. Whose settings they are is told by the program, or by what
stands in the file. A program that is given Megatron's own arguments has no such file.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from trainwright.errors import InvalidInput
from trainwright.formats.atomic_file import read_bytes
from trainwright.frameworks.jobs.script import (
    Launch,
    flags_of,
    is_script_name,
    overrides_of,
    read_launch,
    texts_of,
)
from trainwright.frameworks.jobs.settings import DEEPEST, Beside, parse_settings, parse_toml
from trainwright.frameworks.launch import settings_beside
from trainwright.frameworks.shell import Value

if TYPE_CHECKING:
    from trainwright.frameworks.stated_run import StatedRun

# Whose settings a program takes; of others the file itself tells.
_PROGRAMS: Final[Mapping[str, str]] = {
    "axolotl": "axolotl", "axolotl.cli.train": "axolotl",
    "llamafactory-cli": "llamafactory", "llamafactory.launcher": "llamafactory",
    "torchtitan.train": "torchtitan", "automodel": "automodel",
    "nemo_automodel.recipes.llm.train_ft": "automodel", "run_train.py": "nanotron",
}  # fmt: skip
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
_MOST: Final = 2**20  # bytes of a file of settings


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

    def told(self, beside: Beside) -> Beside:
        """What is given beside the file."""
        return replace(beside, name=self.name, function=beside.function or self.function)

    def completed(self, run: StatedRun, script: str) -> StatedRun:
        """The run of the file, on the devices of the script."""
        devices, said = self.launch.devices, f"the settings are those of {self.name}, which "
        notes = (f"{said}{script} starts", *self.launch.notes, *devices.notes, *self.notes)
        if run.num_devices is None and not self.launch.starts_alone:
            run = replace(run, num_devices=devices.total, devices_per_node=devices.per_node)
        return replace(run, notes=(*notes, *run.notes))


def is_script(text: str, name: str) -> bool:
    """Whether a text is a script by its name, its first line or its directives."""
    return is_script_name(name) or text.startswith("#!") or text.lstrip().startswith("#SBATCH")


def started_by(text: str, beside: Beside) -> Started | None:
    """The file of settings that a script starts a trainer on; None where it does not."""
    if not is_script(text, beside.name):
        return None
    if (own := settings_beside(text)) is not None:
        return _of_ours(own, text, beside)
    if not any(map(_NAMED.search, texts_of(text, beside.folder))):
        return None
    try:
        launch = read_launch(text, beside)
    except InvalidInput:
        return None
    flags = flags_of(launch.words)
    known = _PROGRAMS.get(launch.program)
    if known is None and _ARGUMENTS & flags.keys():
        return None
    if known == "torchtitan" and "module" in flags:
        return _of_module(flags, launch, beside)
    named = _file_of(launch, flags)
    if named is None:
        return None
    shown = named.shown() if isinstance(named, Value) else named
    found = text_beside(shown, launch, beside)
    notes: tuple[str, ...] = ()
    if found is not None:
        found, notes = _with_words(found, shown, launch, flags)
    if known is None and found is not None:
        from trainwright.frameworks.jobs.detect import format_of

        known = format_of(found, f"{posixpath.basename(shown)}.json" if notes else shown)
    if known is None:
        return None
    return Started(
        name=posixpath.basename(shown), text=found, format=known, launch=launch, notes=notes
    )


def _of_ours(name: str, text: str, beside: Beside) -> Started | None:
    """Of a script that an export wrote, whose program takes no file."""
    from trainwright.frameworks.jobs.detect import format_of

    launch = read_launch(text, beside)
    found = text_beside(name, launch, beside)
    told = None if found is None else format_of(found, name)
    return Started(name=name, text=found, format=told, launch=launch)


def _of_module(flags: Mapping[str, Any], launch: Launch, beside: Beside) -> Started:
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


def _file_of(launch: Launch, flags: Mapping[str, Any]) -> Value | str | None:
    """The word that names the file: the value of a flag, or the first word with such an ending."""
    for name in _FILES:
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


def text_beside(name: str, launch: Launch, beside: Beside) -> str | None:
    """What the script writes to the file, else what stands in it, at its path or beside."""
    if (written := launch.file(name)) is not None:
        return written
    folder = beside.folder
    places = () if folder is None else (folder / name, folder / posixpath.basename(name))
    for place in places:
        inside = folder is not None and _is_below(place, folder)
        try:
            if inside and place.is_file():
                return read_bytes(place, name="config", most=_MOST).decode()
        except (InvalidInput, OSError, ValueError):
            continue
    return None


def _is_below(place: Path, folder: Path) -> bool:
    try:
        return place.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):
        return False


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
        tables = parse_toml(text) if name.endswith(".toml") else parse_settings(text)
    except (InvalidInput, ValueError, RecursionError):
        return text, ()
    notes = []
    for path, value in given.items():
        if isinstance(value, Value):
            notes.append(f"{path}: {value.shown()} is not known, and what {name} says is used")
            continue
        *above, last = path.split(".", DEEPEST)
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


def as_yaml(value: Any) -> Any:
    """A word as YAML reads it: a number, true or false, a text; a flag alone is true."""
    if not isinstance(value, str):
        return [str(each) for each in value] if isinstance(value, tuple) else value
    try:
        return yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError):
        return value
