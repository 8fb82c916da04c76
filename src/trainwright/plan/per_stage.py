"""Arrays with one entry per stage or rank: broadcast, checked, read-only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from trainwright.errors import InvalidInput

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    PerStage: TypeAlias = float | Sequence[float] | Floats


def broadcast(value: PerStage, size: int, *, name: str) -> Floats:
    """One value for all, or exactly `size` of them; raises InvalidInput on another length."""
    array = np.asarray(value, np.float64)
    if array.ndim == 0:
        return np.full(size, float(array))
    if array.shape != (size,):
        raise InvalidInput.of(name, f"must be 1 value or {size} values, got {array.size}")
    return array.copy()


def freeze_arrays(value: DataclassInstance) -> None:
    """Make every array of a frozen dataclass read-only."""
    for field in fields(value):
        array = getattr(value, field.name)
        if isinstance(array, np.ndarray):
            array.flags.writeable = False


def is_finite_and_not_negative(array: Floats) -> bool:
    """Whether every entry is finite and >= 0."""
    return bool((np.isfinite(array) & (array >= 0)).all())
