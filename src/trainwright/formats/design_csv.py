"""Designs of a co-design search as CSV: one header, one row each, numbers to their last bit."""

from __future__ import annotations

import csv
from io import StringIO
from typing import TYPE_CHECKING

from trainwright.formats.atomic_file import write_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


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
