"""Jobs of other people, as they are found: which format a file has, and the run that it states."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

from trainwright.errors import InvalidInput, UnsupportedFeature, one_of
from trainwright.formats.records import titled
from trainwright.frameworks.jobs.settings import NOTHING, OPENED, Beside, Schema, StatedRun
from trainwright.frameworks.launch import settings_beside

__all__ = ["FORMATS", "NOTHING", "Beside", "format_called", "read"]

# Where each format is read.
FORMATS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "megatron": ("megatron", "read_megatron"),
        "log": ("megatron", "read_log"),
        "megatron-bridge": ("bridge", "read_bridge"),
        "torchtitan": ("torchtitan", "read_torchtitan"),
        "deepspeed": ("deepspeed", "read_deepspeed"),
        "accelerate": ("hugging_face", "read_accelerate"),
        "trl": ("hugging_face", "read_trl"),
        "axolotl": ("hugging_face", "read_axolotl"),
        "llamafactory": ("hugging_face", "read_llamafactory"),
        "torchtune": ("fine_tuning", "read_torchtune"),
        "automodel": ("fine_tuning", "read_automodel"),
        "verl": ("fine_tuning", "read_verl"),
        "openrlhf": ("fine_tuning", "read_openrlhf"),
        "litgpt": ("fine_tuning", "read_litgpt"),
        "nemo-rl": ("bridge", "read_nemo_rl"),
        "neox": ("pretraining", "read_neox"),
        "nanotron": ("pretraining", "read_nanotron"),
        "llm-foundry": ("pretraining", "read_llm_foundry"),
        "olmo": ("pretraining", "read_olmo"),
        "maxtext": ("pretraining", "read_maxtext"),
        "primus": ("pretraining", "read_primus"),
        "olmo-core": ("recipes", "read_olmo_core"),
        "prime-rl": ("recipes", "read_prime_rl"),
        "levanter": ("recipes", "read_levanter"),
        "fast-llm": ("recipes", "read_fast_llm"),
        "flame": ("torchtitan", "read_flame"),
        "lingua": ("torchtitan", "read_lingua"),
        "picotron": ("recipes", "read_picotron"),
        "easyr1": ("recipes", "read_easy_r1"),
        "neuronx": ("recipes", "read_neuronx"),
        "veomni": ("hub_trainers", "read_veomni"),
        "arctic": ("hub_trainers", "read_arctic"),
        "distillkit": ("hub_trainers", "read_distillkit"),
        "areal": ("hub_trainers", "read_areal"),
        "roll": ("hub_trainers", "read_roll"),
        "pipeline-rl": ("hub_trainers", "read_pipeline_rl"),
        "skyrl": ("hub_trainers", "read_skyrl"),
        "colossalai": ("hub_trainers", "read_colossalai"),
        "pytorch": ("torchtitan", "read_stages"),
    }
)
# What people call the trainer of transformers, whose arguments TRL's are.
_CALLED: Final = dict.fromkeys(
    ("huggingface", "hugging-face", "hf", "transformers", "trainer"), "trl"
)
# Formats that are read by themselves where a script starts their trainer.
_STARTED: Final = frozenset(FORMATS) - {
    "megatron",
    "log",
    "megatron-bridge",
    "trl",
    "verl",
    "openrlhf",
    "easyr1",
    "flame",
    "skyrl",
    "colossalai",
}


def format_called(name: str | None) -> str | None:
    """The format that is called so; one that is not known stays as it is."""
    return None if name is None else _CALLED.get(name.lower(), name)


def read(name: str | None, text: str, beside: Beside = NOTHING) -> StatedRun:
    """The run that a file states, of a format, or of that which its content says.

    Raises `InvalidInput` for other formats, and with every fault of the file.
    """
    if name is None:
        from trainwright.frameworks.jobs.detect import format_of

        name = format_of(text, beside.name, beside.folder)
        if name is None:
            raise InvalidInput.of("from", "is not known by its content; name it by --from FORMAT")
    if beside.name.endswith((".yaml", ".yml")):
        from trainwright.frameworks.jobs.script import manifest_devices, manifest_script

        if (script := manifest_script(text)) is not None:
            devices = manifest_devices(text)
            run = read(name, script, replace(beside, name=f"{beside.name.rpartition('.')[0]}.sh"))
            if run.num_devices is not None or devices.total is None:
                return run
            return replace(run, num_devices=devices.total, devices_per_node=devices.per_node)
    name = _CALLED.get(name.lower(), name)
    found = FORMATS.get(name)
    if found is None:
        raise InvalidInput.of("from", one_of(FORMATS, name))
    module, function = found
    reader: Callable[[str, Beside], Any] = getattr(import_module(f"{__name__}.{module}"), function)
    if name in _STARTED or settings_beside(text) is not None:
        from trainwright.frameworks.jobs.detect import started_by

        if (started := started_by(text, beside)) is not None:
            if started.text is None:
                wanted = f"starts {name} on {started.name}, which is not beside it: give that file"
                raise InvalidInput.of("script", wanted)
            return started.completed(reader(started.text, started.told(beside)), beside.name)
    try:
        stated: StatedRun = reader(text, beside)
    except InvalidInput:
        _refuse_script(name, text, beside)
        raise
    return stated


# What a file of a format may say, as a JSON Schema: made by the readers themselves
# ---------------------------------------------------------------------------------

# What no reader knows, by which a file as it stands is told from what is made of it; the second is
# kept also where a reader takes dashes in names for underscores.
_STRANGE: Final = ({"of-nobody": {"nor-this": 1}}, {"of_nobody": {"nor-this": 1}})


def job_schema(name: str) -> Schema | None:
    """The JSON Schema of a format's file, as its reader asks for keys; None where there is none.

    A reader is given a file that says nothing, then one with the tables that it looked for, and
    what it asks of the file as it stands is kept. A key that is asked for only where others have
    some value is not among them. There is none of scripts, of programs, and where a reader first
    brings a file into another form.
    """
    strange, spelling = _STRANGE[0], ""
    shapes, asked = _asked(name, strange)
    if not asked:
        strange, spelling = _STRANGE[1], " Names may have dashes for underscores."
        shapes, asked = _asked(name, strange)
    tables = {key: dict[str, Any]() for key in sorted(asked - shapes.keys()) if "." not in key}
    inside, _ = _asked(name, strange | tables)
    for key, known in inside.items():
        table, dot, _ = key.partition(".")
        if dot and table in tables:
            shapes[key] = known
    if not shapes:
        return None
    about = (
        f"A file of {name}. Keys that are read of any, references filled in; null stands for an "
        "absent key, of several names for one thing the first that is there counts, other keys are "
        f"free, and some are read beside certain values only.{spelling}"
    )
    return titled(f"a job of {name}", _inside(shapes, ""), about=about)


def _asked(name: str, file: Mapping[str, Any]) -> tuple[dict[str, list[Schema]], set[str]]:
    """What a reader takes of each key of a file that it asks for, and all keys that it asks for."""
    module, function = FORMATS[name]
    reader: Callable[[str, Beside], Any] = getattr(import_module(f"{__name__}.{module}"), function)
    as_toml = (
        f"[{key}]\n" + "".join(f"{k} = {v}\n" for k, v in t.items()) for key, t in file.items()
    )
    opened: list[tuple[Mapping[str, Any], Any]] = []
    listening = OPENED.set(opened)
    try:
        for text, suffix in ((json.dumps(file), "yaml"), ("".join(as_toml), "toml")):
            with suppress(InvalidInput, UnsupportedFeature):  # what was asked until then is kept
                reader(text, Beside(name=f"job.{suffix}"))
    finally:
        OPENED.reset(listening)
    shapes: dict[str, list[Schema]] = {}
    asked: set[str] = set()
    for found, ledger in opened:
        if file.items() <= found.items():
            shapes |= ledger.shapes
            asked |= ledger.asked
    return shapes, asked


def _inside(shapes: Mapping[str, list[Schema]], path: str) -> Schema:
    """The schema of a table with the keys below its path."""
    below = {key.removeprefix(path) for key in shapes if key.startswith(path)}
    properties = {}
    for key in sorted({each.partition(".")[0] for each in below}):
        known = shapes.get(path + key, [{}])
        if {} in known:
            known = []
        schema: Schema = {"anyOf": [*known, {"type": "null"}]} if known else {}
        if any(each.startswith(f"{key}.") for each in below):
            schema |= _inside(shapes, f"{path}{key}.")
        properties[key] = schema
    root = {"type": "object"} if not path else {}
    return {**root, "properties": properties}


def _refuse_script(name: str, text: str, beside: Beside) -> None:
    """Refuse a script that starts another trainer than that of the settings asked for."""
    from trainwright.frameworks.jobs.detect import format_of
    from trainwright.frameworks.jobs.script import is_script

    if not is_script(text, beside.name):
        return
    own = format_of(text, beside.name, beside.folder)
    if own not in (None, name):
        problem = f"{beside.name} is a script of {own}, not the settings of {name}"
        raise InvalidInput.of("from", f"{problem}: ask as --from {own}, or give it as the model")
