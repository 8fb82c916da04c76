"""Reads a Hugging Face style `config.json` into a `TransformerConfig`, without torch.

`model_type` (else the first of `architectures`) selects the family. A missing key takes the default
that the family's public configuration class documents, and is reported; a key that says nothing
about cost is passed over, and one that is not known at all is reported as ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainwright.errors import Fault, InvalidInput, UnsupportedFeature
from trainwright.formats.atomic_file import read_bytes
from trainwright.formats.hf_families import ALIASES, FAMILIES
from trainwright.formats.hf_ignored import SILENT_KEYS, effect_of
from trainwright.formats.hf_keys import KeyReader
from trainwright.formats.json_path import show_typed
from trainwright.formats.json_text import parse_json
from trainwright.model import TransformerConfig, count_parameters

MAX_CONFIG_BYTES: Final = 2**22

# Families people will ask for and that are not transformers of the kind modelled here.
_OUT_OF_SCOPE: Final = {
    "mamba": "state-space models",
    "mamba2": "state-space models",
    "falcon_mamba": "state-space models",
    "rwkv": "state-space models",
    "jamba": "hybrid state-space models",
    "zamba2": "hybrid state-space models",
    "nemotron_h": "hybrid state-space models",
    "t5": "encoder-decoder models",
    "bart": "encoder-decoder models",
    "whisper": "encoder-decoder models",
    "clip": "multimodal models",
    "llava": "multimodal models",
    "gemma3": "multimodal models",
    "paligemma": "multimodal models",
}

# What follows a family's name in that of its class, and a family whose class is named otherwise.
_ROLES: Final = ("for", "model", "lmhead", "doubleheads", "pretraining")
_ARCHITECTURES: Final = {"gemma3": "gemma3_text"}
_CONDITIONAL: Final = "forconditionalgeneration"  # with images, or with two stacks

# Fields of the model under the names by which they are read.
_READ_AS: Final = {
    "experts.num_experts": "num_experts",
    "experts.experts_per_token": "num_experts_per_tok",
    "experts.ffn_size": "moe_intermediate_size",
    "experts.num_dense_layers": "first_k_dense_replace",
    "experts.num_groups": "n_group",
    "experts.groups_per_token": "topk_group",
    "num_mtp_layers": "num_nextn_predict_layers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A model as read: its hyper-parameters, the defaults used, and the keys that were ignored."""

    name: str
    config: TransformerConfig
    defaults: tuple[tuple[str, object], ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What was ignored, what that may cost, and a figure to check the rest against."""
        if not self.ignored:
            return ()
        count = f"as read, the model has {count_parameters(self.config):,} parameters"
        notes = (f"unknown key ignored: {key} ({effect_of(key)})" for key in self.ignored)
        return (*notes, f"{count}: compare them with the published count")


def load_config(path: Path) -> ModelDescription:
    """Read `config.json`, or the folder that holds it.

    Raises `InvalidInput` where it is missing, not JSON, too large, or breaks a rule.
    """
    file = path / "config.json" if path.is_dir() else path
    data = read_bytes(file, name="config", most=MAX_CONFIG_BYTES)
    document = parse_json(data, source=str(file), what="config")
    name = file.parent.name if file.name == "config.json" else file.stem
    return read_config(document, name=name or "model", source=str(file))


def read_config(document: object, *, name: str, source: str | None = None) -> ModelDescription:
    """Turn the content of a `config.json` into a model; every fault at once, in one error.

    Raises `UnsupportedFeature` for a family that is not modelled, naming the nearest one.
    """
    if not isinstance(document, Mapping):
        found = type(document).__name__
        raise InvalidInput.of("config", f"must be a JSON object, got {found}", source=source)
    family = _family(document, source=source)
    for key in ("is_encoder_decoder", "add_cross_attention"):
        if document.get(key) is True:
            raise UnsupportedFeature(
                f"{key}: true: encoder-decoder models are not modelled",
                alternative="models with one stack are",
            )
    keys = KeyReader(document)
    fields = FAMILIES[family](keys)
    faults = keys.all_faults
    if not faults:
        try:
            config = TransformerConfig(family=family, **fields)
        except InvalidInput as error:
            named = ((_READ_AS.get(f.path, f.path), f.problem) for f in error.faults)
            faults += [Fault(keys.path_of(path), problem) for path, problem in named]
    if faults:
        raise InvalidInput(faults, source=source)
    ignored = tuple(key for key in keys.unread if key.split(".")[-1] not in SILENT_KEYS)
    return ModelDescription(
        name=name, config=config, defaults=tuple(keys.all_defaults.items()), ignored=ignored
    )


def _family(document: Mapping[str, Any], *, source: str | None) -> str:
    stated = document.get("model_type")
    if stated is None:
        stated = _from_architecture(document.get("architectures"))
    if stated is None:
        raise InvalidInput.of(
            "model_type",
            "required field is missing (or architectures, to tell the family by)",
            source=source,
        )
    if not isinstance(stated, str):
        raise InvalidInput.of(
            "model_type", f"must be text, got {show_typed(stated)}", source=source
        )
    stated = ALIASES.get(stated, stated)
    if stated in FAMILIES:
        return stated
    if stated in _OUT_OF_SCOPE:
        raise UnsupportedFeature(
            f'model_type "{stated}": {_OUT_OF_SCOPE[stated]} are not modelled',
            alternative=f"supported are {', '.join(FAMILIES)}",
        )
    raise UnsupportedFeature(
        f'model_type "{stated}" is not modelled',
        alternative=f"{_nearest(stated)}; a file may name the family whose architecture it shares",
    )


def _nearest(stated: str) -> str:
    """The supported family whose name is like the one stated, where there is one."""
    near = difflib.get_close_matches(stated, FAMILIES, n=1)
    known = ", ".join(FAMILIES)
    if near:
        return f'the nearest supported one is "{near[0]}" (of {known})'
    return f"supported are {known}"


def _from_architecture(architectures: object) -> str | None:
    """The family in a name such as `LlamaForCausalLM`, not in that of a later one of its line."""
    if not (
        isinstance(architectures, list) and architectures and isinstance(architectures[0], str)
    ):
        return None
    stem = _squeezed(architectures[0])
    if stem.endswith(_CONDITIONAL):
        line = stem.removesuffix(_CONDITIONAL)
        return line if line in _OUT_OF_SCOPE else architectures[0]
    names = {_squeezed(family): family for family in FAMILIES} | _ARCHITECTURES
    fitting = (n for n in names if stem.startswith(n) and stem[len(n) :].startswith(_ROLES))
    return names.get(max(fitting, key=len, default=""), architectures[0])


def _squeezed(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
