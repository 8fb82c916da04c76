"""Schedule files broken on purpose: a check that passes them checks nothing."""

from __future__ import annotations

import re

_MICROBATCH = re.compile(r"(?<=[A-Z])\d+")
_SWAPPED = {"0": "1", "1": "0"}


def without_gradient_reduction(csv: str) -> str:
    """A lowered file less its REDUCE_GRAD cells: gradients are m times too large, losses right."""
    lines = ([cell for cell in line.split(",") if "REDUCE_GRAD" not in cell] for line in _rows(csv))
    return "".join(",".join(cells) + "\n" for cells in lines)


def with_swapped_microbatches(csv: str) -> str:
    """Microbatches 0 and 1 change names everywhere: the last stage meets them in the wrong order.

    The file is as consistent as before, but PyTorch looks losses up by the order of its forwards.
    """
    return _MICROBATCH.sub(lambda found: _SWAPPED.get(found[0], found[0]), csv)


def _rows(csv: str) -> list[str]:
    return csv.splitlines()
