"""Estimates of products between the stages of a co-design: one NumPy archive, about one request."""

from __future__ import annotations

import csv
import zipfile
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.errors import InvalidInput
from trainwright.formats.atomic_file import read_bytes, write_bytes, write_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


# Designs of a co-design search as CSV: one header, one row each, numbers to their last bit
# -----------------------------------------------------------------------------------------


def write_designs(
    path: str | Path, columns: Sequence[str], rows: Iterable[Sequence[str | int | float]]
) -> None:
    """Write the file whole, or not at all; raises `InvalidInput` where it cannot be written."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([repr(v) if isinstance(v, float) else v for v in row])
    write_text(path, text.getvalue())


# Estimates of products between the stages of a co-design: one NumPy archive, about one request
# ---------------------------------------------------------------------------------------------

_ABOUT: Final = "about"

Key = tuple[int, int, int]  # variant, model, tensor degree


def write_estimates(
    path: Path, estimates: Mapping[Key, NDArray[np.float64]], *, about: str
) -> None:
    """Write the archive whole; raises `InvalidInput` where it cannot be written."""
    data = BytesIO()
    named = {"_".join(map(str, key)): figures for key, figures in estimates.items()}
    np.savez_compressed(data, **{_ABOUT: np.array(about)}, **named)  # type: ignore[arg-type]
    write_bytes(path, data.getvalue())


def read_estimates(path: Path, *, about: str) -> dict[Key, NDArray[np.float64]]:
    """Read an archive; raises `InvalidInput` where it is none, or about another request."""
    data = read_bytes(path, name="estimates")
    try:
        with np.load(BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
            told = str(arrays.pop(_ABOUT))
            keys = {name: _key(name) for name in arrays}
    except (ValueError, KeyError, OSError, zipfile.BadZipFile):
        problem = f'must be an archive of the stage estimate: "{path}"; run that stage again'
        raise InvalidInput.of("estimates", problem) from None
    if told != about:
        problem = f'is about another request: "{path}"; run the stage estimate again'
        raise InvalidInput.of("estimates", problem)
    return {keys[name]: np.asarray(array, dtype=np.float64) for name, array in arrays.items()}


def _key(name: str) -> Key:
    variant, model, degree = map(int, name.split("_"))
    return variant, model, degree
