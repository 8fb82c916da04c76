"""Finds the `config.json` of a Hugging Face hub id in the local cache; nothing is ever downloaded.

The cache holds a folder `models--ORGANISATION--NAME` per model, with the commit of each branch in
`refs/` and the files of each commit in `snapshots/`. Its place follows the variables that the hub's
own client reads: HF_HUB_CACHE, then HF_HOME, then XDG_CACHE_HOME, then `~/.cache`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from trainwright.errors import InvalidInput

_PART: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_HUB_ID: Final = re.compile(rf"{_PART}/{_PART}")


def is_hub_id(name: str) -> bool:
    """Whether `name` has the form ORGANISATION/NAME."""
    return _HUB_ID.fullmatch(name) is not None


def hub_cache() -> Path:
    """The folder in which the hub's client keeps what it downloaded."""
    if stated := os.environ.get("HF_HUB_CACHE"):
        return Path(stated).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "huggingface" / "hub"


def cached_config(hub_id: str, *, cache: Path, instead: str | None = None) -> Path:
    """The `config.json` of the main branch, else of the latest snapshot that has one.

    Raises `InvalidInput` where the cache has none, saying how to get it, and what the same model is
    called `instead` where it is built in.
    """
    folder = cache / f"models--{hub_id.replace('/', '--')}"
    for snapshot in _snapshots(folder):
        if (file := snapshot / "config.json").is_file():
            return file
    built_in = "" if instead is None else f'use the catalog\'s "{instead}", '
    raise InvalidInput.of(
        "model",
        f'"{hub_id}" is not in the local Hugging Face cache ({cache}); it is not downloaded: '
        f"{built_in}run `hf download {hub_id} config.json` first, or give a path",
    )


def _snapshots(folder: Path) -> list[Path]:
    """The snapshot of the main branch first, then the others, newest first."""
    try:
        others = sorted((folder / "snapshots").iterdir(), key=_modified, reverse=True)
    except OSError:
        return []
    try:
        main = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return others
    return sorted(others, key=lambda snapshot: snapshot.name != main)


def _modified(path: Path) -> tuple[float, str]:
    return path.stat().st_mtime, path.name
