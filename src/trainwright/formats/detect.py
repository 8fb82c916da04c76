"""What a MODEL file is, told by its content."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainwright.errors import InvalidInput
from trainwright.formats.json_path import quote

if TYPE_CHECKING:
    from collections.abc import Mapping


class ModelFormat(StrEnum):
    """The formats of a MODEL file."""

    PIPER = "piper"
    PROFILE = "profile"
    HF_CONFIG = "hf_config"
    PHAZE = "phaze"
    DOCUMENT = "document"


_PIPER_FIELDS: Final = frozenset(
    {"nodes", "edges", "maxDevices", "maxMemoryPerDevice", "mbsInBatch", "maxBatchSize"}
)
_HF_FIELDS: Final = frozenset({"model_type", "architectures"})
_HF_CONFIG_NAME: Final = "config.json"
_LOOKED_FOR: Final = (
    'a Piper profile ("nodes", "edges"), a trainwright profile ("kind": "profile"), '
    'a Hugging Face config ("model_type" or "architectures"), '
    'a PHAZE placement input ("nodes" by tensor width) or a trainwright document ("kind")'
)


def model_file(path: str | Path) -> Path:
    """The file to read: `path` itself, or the config.json of a folder."""
    path = Path(path)
    if not path.is_dir():
        return path
    if (path / _HF_CONFIG_NAME).is_file():
        return path / _HF_CONFIG_NAME
    raise InvalidInput.of("model", f'must be a file or a folder with config.json, got "{path}"')


def detect(value: Mapping[str, Any], *, source: str | None = None) -> ModelFormat:
    """Tell the format of a parsed JSON object; raises `InvalidInput` for none of them.

    A file that is nearly one of the formats is taken for that one, so that its reader can name what
    is wrong. Placement inputs wrap PHAZE's own file in `input`; both are recognised.
    """
    wrapped = value.get("input")
    placement = wrapped if isinstance(wrapped, dict) else value
    if value.get("kind") == "profile":
        return ModelFormat.PROFILE
    if isinstance(placement.get("nodes"), dict):
        return ModelFormat.PHAZE
    if not _PIPER_FIELDS.isdisjoint(value):
        return ModelFormat.PIPER
    if not _HF_FIELDS.isdisjoint(value):
        return ModelFormat.HF_CONFIG
    if isinstance(value.get("kind"), str):
        return ModelFormat.DOCUMENT
    if isinstance(value.get("points"), list):
        return ModelFormat.PROFILE
    raise InvalidInput.of(
        "model", f"must be one of: {_LOOKED_FOR}; got keys {_keys(value)}", source=source
    )


def _keys(value: Mapping[str, Any]) -> str:
    shown = ", ".join(quote(key) for key in list(value)[:6])
    return f"{shown}, …" if len(value) > 6 else shown or "none"
