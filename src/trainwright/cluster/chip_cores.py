"""The cores of a chip design, as the part of an accelerator that times its operators.

An accelerator with cores is priced by the tiled estimator (`costing.tiled_timer`), one without by a
roofline; whoever prices, plans or explains sees an accelerator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from trainwright.cluster.template import ChipTemplate, Surroundings
from trainwright.errors import Fault, InvalidInput

# What the arrays of a chip may be made to multiply, and the bytes of its elements.
ELEMENT_BYTES: Final[Mapping[str, float]] = MappingProxyType({"bf16": 2.0, "fp8": 1.0, "fp32": 4.0})
# Adam in mixed precision: ten operations of a lane on the thirty bytes of a parameter's states.
UPDATE_BYTES_PER_LANE_CYCLE: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipCores:
    """Cores and buffers of `chip` at `clock_hz`, with multipliers for elements of `precision`.

    The global buffer moves `glb_bytes_per_cycle` at most.
    """

    chip: ChipTemplate
    clock_hz: float = Surroundings().clock_hz
    glb_bytes_per_cycle: float = Surroundings().glb_bytes_per_cycle
    precision: str = "bf16"

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        for name in ("clock_hz", "glb_bytes_per_cycle"):
            if not (math.isfinite(value := getattr(self, name)) and value > 0):
                yield Fault(name, f"must be finite and > 0, got {value!r}")
        if self.precision not in ELEMENT_BYTES:
            wanted = f"must be one of {', '.join(ELEMENT_BYTES)}"
            yield Fault("precision", f'{wanted}, got "{self.precision}"')

    @property
    def element_bytes(self) -> float:
        """Bytes of what the arrays multiply."""
        return ELEMENT_BYTES[self.precision]

    @property
    def peak_flops_per_s(self) -> tuple[tuple[str, float], ...]:
        """Peaks by number format; arrays for 8 bit multiply 16 bit at half their rate."""
        peak = 2.0 * self.chip.num_macs * self.clock_hz
        if self.precision == "fp8":
            return (("bf16", peak / 2.0), ("fp8", peak))
        return ((self.precision, peak),)

    @property
    def lanes_per_s(self) -> float:
        """Operations of the vector lanes, per second."""
        return self.chip.num_lanes * self.clock_hz

    @property
    def update_bytes_per_s(self) -> float:
        """Bytes of optimizer states that the lanes take per second."""
        return UPDATE_BYTES_PER_LANE_CYCLE * self.lanes_per_s

    def at_rate(self, factor: float) -> ChipCores:
        """The same cores at so many times their clock."""
        return replace(self, clock_hz=self.clock_hz * factor)
