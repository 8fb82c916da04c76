"""A layer's operators on a tiled machine: what stands in for the roofline in a profile.

With it `Estimator` prices a model on a chip, or on a real device described as one, for the same
partitioning, schedules and memory model as any other profile.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trainwright.costing.chip_work import ChipKernel, operator_kernels
from trainwright.costing.tiled import Product, TiledMachine, product_times
from trainwright.model import Operator, Phase, RunShape


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledTimer:
    """Times operators on `machine` with `lanes_per_s` vector operations per second.

    Products that were timed are kept, by machine and shape.
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
            found = product_times([self.machine], [product])
            glb_s = found.glb_bytes[0, 0] / self.machine.glb_bandwidth_bytes_per_s
            inside_s = max(float(found.compute_s[0, 0]), float(glb_s))
            self._known[product] = (float(found.seconds[0, 0]), inside_s)
        return self._known[product]

    def _memory_s(self, moved: float) -> float:
        if not moved:
            return 0.0
        share = self.machine.memory_efficiency.at(moved)
        return moved / (self.machine.memory_bandwidth_bytes_per_s * share)
