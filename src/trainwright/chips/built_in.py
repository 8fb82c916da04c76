"""`technology.toml`: what chips are made of and what things cost, with sources."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

USUAL_PROCESS: Final = "7nm"  # that of the reference design, TPU v4


@cache
def built_in() -> Mapping[str, Any]:
    """The tables of the file, as they are written."""
    file = resources.files("trainwright.chips") / "technology.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))
