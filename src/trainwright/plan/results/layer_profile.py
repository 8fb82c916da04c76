"""What `profile` found: the profile it writes, and how sure each of its times is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainwright.profile import ProfileFile


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """A layer class at one tensor degree; phases and spread are absent in tables of others."""

    name: str
    num_layers: int
    tensor_parallel: int
    forward_s: float | None = None
    input_grad_s: float | None = None
    weight_grad_s: float | None = None
    duration_s: float
    saved_bytes: float
    transient_bytes: float
    spread: float | None = None
    num_repeats: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfileResult:
    """A profile of one point, a row per layer class and tensor degree, and what to know."""

    file: ProfileFile
    rows: tuple[LayerRow, ...]
    warnings: tuple[str, ...] = ()
