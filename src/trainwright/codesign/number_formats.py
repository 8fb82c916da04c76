"""What a number format costs in a chip: area and energy of a multiplier, bytes of an element.

Factors are against bfloat16, whose area PHAZE's constants describe; sums are kept in float32:

- fp32: 2.04 times the area and 2.3 times the energy (Horowitz, ISSCC 2014: multiplication 1640 and
  7700 µm², 1.1 and 3.7 pJ; addition in float32 4184 µm², 0.9 pJ);
- fp8: half the area, as devices sell twice its rate from the same array (H100, MI300); 0.59 times
  the energy, the multiplier's share shrinking with the square of the mantissa.

What a recipe in fp8 still multiplies in bfloat16 (attention, head, router) takes two
multiplications of such an array each, in elements of twice the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from trainwright.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFormat:
    """One format of the multipliers; factors against bfloat16."""

    area_factor: float
    energy_factor: float


NUMBER_FORMATS: Final[Mapping[str, NumberFormat]] = MappingProxyType(
    {
        "bf16": NumberFormat(area_factor=1.0, energy_factor=1.0),
        "fp8": NumberFormat(area_factor=0.5, energy_factor=0.59),
        "fp32": NumberFormat(area_factor=2.04, energy_factor=2.3),
    }
)


def number_format(name: str) -> NumberFormat:
    """Look a format up; raises `InvalidInput` naming those that a chip may have."""
    if name not in NUMBER_FORMATS:
        raise InvalidInput.of(
            "precision", f'must be one of {", ".join(NUMBER_FORMATS)}, got "{name}"'
        )
    return NUMBER_FORMATS[name]
