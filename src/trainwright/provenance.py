"""Where a number comes from: every predicted figure can be traced to one of these."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__version__ = "0.1.0"  # of the program that a document names; stated here alone

# Marks a field of a choice that few inputs make: documents leave it out at its default.
RARE: Final = "rare"


class Origin(StrEnum):
    """How a figure came to be known, from weakest to strongest claim about reality."""

    ASSUMED = "assumed"  # a documented default nobody measured
    DATASHEET = "datasheet"  # a vendor's or a paper's figure
    FITTED = "fitted"  # a constant fitted to measurements
    INTERPOLATED = "interpolated"  # between measured points
    MEASURED = "measured"  # timed on a device
    IMPORTED = "imported"  # taken over from a file that does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """An origin and, in words, its source (a file, a datasheet, a report)."""

    origin: Origin
    source: str


# Of a figure that a description states, or leaves at its default, without a source.
UNSTATED: Final = Provenance(origin=Origin.ASSUMED, source="no source stated")
