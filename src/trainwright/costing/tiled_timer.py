"""A layer's operators on a tiled machine: what stands in for the roofline in a profile.

With it `Estimator` prices a model on a chip design, or on a real device described as one, for the
same partitioning, schedules and memory model as any other profile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from trainwright.cluster import Accelerator, Surroundings
from trainwright.costing.chip_work import ChipKernel, element_bytes, operator_kernels
from trainwright.costing.tiled import (
    Product,
    TiledMachine,
    machine_of,
    machine_taking,
    product_times,
)
from trainwright.model import Operator, Phase, Precision, RunShape

_TIMERS_KEPT: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledTimer:
    """Times operators on `machine` with `lanes_per_s` vector operations per second.

    Products that were timed are kept, by shape.
    """

    machine: TiledMachine
    lanes_per_s: float
    _known: dict[Product, tuple[float, float]] = field(default_factory=dict, compare=False)

    def operator_s(self, operator: Operator, phase: Phase, run: RunShape) -> float:
        """Seconds of one phase of an operator on one device; 0 where it has no work there.

        Raises `UnsupportedFeature` for an operator whose shape is not known.
        """
        return sum(self._kernel_s(kernel) for kernel in operator_kernels(operator, phase, run))

    def _kernel_s(self, kernel: ChipKernel) -> float:
        machine = self.machine
        beside_s = max(kernel.lane_cycles / self.lanes_per_s, self._memory_s(kernel.memory_bytes))
        times = [self._product(product) for product in kernel.products]
        if kernel.is_fused:
            inside_s = kernel.share * sum(inside for _, inside in times)
            return max(inside_s, beside_s) + machine.launch_s
        if times:
            return sum(seconds for seconds, _ in times) + beside_s
        return beside_s + machine.launch_s

    def _product(self, product: Product) -> tuple[float, float]:
        """Seconds in all, and those inside the chip."""
        if product not in self._known:
            machine = machine_taking(self.machine, wide=product.wide)
            found = product_times([machine], [product])
            glb_s = found.glb_bytes[0, 0] / machine.glb_bandwidth_bytes_per_s
            inside_s = max(float(found.compute_s[0, 0]), float(glb_s))
            self._known[product] = (float(found.seconds[0, 0]), inside_s)
        return self._known[product]

    def _memory_s(self, moved: float) -> float:
        if not moved:
            return 0.0
        share = self.machine.memory_efficiency.at(moved)
        return moved / (self.machine.memory_bandwidth_bytes_per_s * share)


@lru_cache(maxsize=_TIMERS_KEPT)
def timer_of(device: Accelerator, precision: Precision) -> TiledTimer | None:
    """What times a device that is described by its cores, on numbers of `precision`.

    None for a device that takes a share of its peaks. Products that were timed stay known as long
    as the device is in use: a planner prices the same shapes at many points.
    """
    cores = device.cores
    if cores is None:
        return None
    around = Surroundings(
        clock_hz=cores.clock_hz,
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
        memory_efficiency=device.efficiency.memory,
        launch_s=device.launch_overhead_s,
        glb_bytes_per_cycle=cores.glb_bytes_per_cycle,
    )
    own = machine_of(cores.chip, around, element_bytes=cores.element_bytes)
    wide = element_bytes(precision) > cores.element_bytes
    return TiledTimer(machine=machine_taking(own, wide=wide), lanes_per_s=cores.lanes_per_s)
