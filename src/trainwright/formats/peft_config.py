"""Reads the `adapter_config.json` of the peft library: low-rank adapters for a base model.

Target modules are named as in the base model's own code; they become the targets of `LowRank`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats.atomic_file import read_bytes
from trainwright.formats.hf_keys import KeyReader
from trainwright.formats.json_path import show_typed
from trainwright.formats.json_text import parse_json
from trainwright.model import LowRank

ADAPTER_FILE: Final = "adapter_config.json"

# The same products under the names that model families give them.
_TARGETS: Final = {
    "query": ("q_proj", "query"),
    "key": ("k_proj", "key"),
    "value": ("v_proj", "value"),
    "attention_output": ("o_proj", "out_proj"),
    "gate": ("gate_proj", "w1"),
    "up": ("up_proj", "fc1", "w3", "c_fc", "fc_in", "dense_h_to_4h"),
    "down": ("down_proj", "fc2", "w2", "fc_out", "dense_4h_to_h"),
    "query_down": ("q_a_proj",),
    "query_up": ("q_b_proj",),
    "key_value_down": ("kv_a_proj_with_mqa",),
    "key_value_up": ("kv_b_proj",),
}
_TARGET_OF: Final = {module: target for target, names in _TARGETS.items() for module in names}
_ALL_LINEAR: Final = ("query", "key", "value", "attention_output", "gate", "up", "down")

# Settings that would train or add something that is not modelled.
_REFUSED: Final = ("layers_to_transform", "rank_pattern", "modules_to_save", "use_dora")


def is_adapter(path: Path) -> bool:
    """Whether `path` is the folder of an adapter without a model of its own."""
    return (path / ADAPTER_FILE).is_file() and not (path / "config.json").is_file()


def load_adapter(folder: Path) -> tuple[str, LowRank]:
    """The base model's name and the adapters of a folder's `adapter_config.json`."""
    file = folder / ADAPTER_FILE
    data = read_bytes(file, name="adapter")
    document = parse_json(data, source=str(file), what="adapter")
    low_rank = read_adapter(document, source=str(file))
    base = document.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise InvalidInput.of(
            "base_model_name_or_path",
            "must name the base model: a path, a hub id or a catalog name",
            source=str(file),
        )
    return base, low_rank


def read_adapter(document: object, *, source: str | None = None) -> LowRank:
    """The adapters that the content of an `adapter_config.json` describes.

    Raises `InvalidInput` with every fault, `UnsupportedFeature` for other kinds of adapters.
    """
    if not isinstance(document, Mapping):
        raise InvalidInput.of(
            "adapter", f"must be a JSON object, got {show_typed(document)}", source=source
        )
    if (kind := document.get("peft_type", "LORA")) != "LORA":
        raise UnsupportedFeature(f'peft_type "{kind}" is not modelled', alternative="LORA is")
    for key in _REFUSED:
        if document.get(key):
            raise UnsupportedFeature(
                f"adapter with {key} is not modelled", alternative="leave it out"
            )
    keys = KeyReader(document)
    rank, dropout = keys.count("r", 8), keys.fraction("lora_dropout", 0.0)
    targets = _targets(keys)
    if keys.faults:
        raise InvalidInput(keys.faults, source=source)
    return LowRank(rank=rank, targets=targets, dropout=dropout)


def _targets(keys: KeyReader) -> tuple[str, ...]:
    stated = keys.value("target_modules", None)
    if stated == "all-linear":
        return _ALL_LINEAR
    if not isinstance(stated, list) or not stated or not all(isinstance(m, str) for m in stated):
        keys.refuse("target_modules", "must be a list of module names, or all-linear")
        return ()
    unknown = [module for module in stated if module not in _TARGET_OF]
    if unknown:
        known = ", ".join(sorted(_TARGET_OF))
        keys.refuse("target_modules", f'must be of {known}, got "{unknown[0]}"')
    found = {_TARGET_OF[module] for module in stated if module in _TARGET_OF}
    return tuple(target for target in _TARGETS if target in found)
