"""Seconds of a chain's layers on many designs at once, exactly and from below.

Products depend on the tensor cores and the global buffer alone, so they are estimated once per
distinct core configuration (4,186 of 29,360 designs) and shape; lanes and bytes are arithmetic on
columns. `ideal_times` replaces the search for tiles by max(FLOPs / peak, bytes / bandwidth, lanes),
which no tiling beats: the bound that most designs never get past.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.cluster import Surroundings
from trainwright.costing.communication import beyond_s
from trainwright.costing.tiled import (
    PHASES,
    ChipKernel,
    Product,
    machine_of,
    machine_taking,
    product_times_of_rows,
)
from trainwright.errors import InvalidInput
from trainwright.model import Phase
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.arrays import Floats
    from trainwright.chips.space import DesignSpace
    from trainwright.chips.workload import Chain

_TENSOR_COLUMNS = (0, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Seconds on n designs: [n, classes], and `backward_s` [n, R, classes].

    Backward holds both gradients and, option by option, what it recomputes; `weight_grad_s` is the
    part of it that nothing but the update waits for.
    """

    forward_s: Floats
    backward_s: Floats
    weight_grad_s: Floats
    update_s: Floats

    def take(self, rows: NDArray[np.int64]) -> LayerTimes:
        """Some of the designs."""
        return LayerTimes(
            forward_s=self.forward_s[rows],
            backward_s=self.backward_s[rows],
            weight_grad_s=self.weight_grad_s[rows],
            update_s=self.update_s[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTable:
    """Estimates [tensor configurations, products]; `row_of` the configuration of each design."""

    row_of: NDArray[np.int64]
    column_of: Mapping[Product, int]
    seconds: Floats
    inside_s: Floats  # compute or global buffer, whichever is longer
    memory_bytes: Floats
    glb_bytes: Floats
    core_bytes: Floats

    def __len__(self) -> int:
        return int(self.row_of.size)


# What is estimated of a product on a configuration, in the order of the cache's arrays.
FIGURES: Final = ("seconds", "inside_s", "memory_bytes", "glb_bytes", "core_bytes")


class ProductCache:
    """Every product of a chain on the core configurations of a space, each estimated once.

    Keys are whole configurations and shapes, so that a figure read again has the same bits.
    """

    def __init__(self, space: DesignSpace, chain: Chain, surroundings: Surroundings) -> None:
        products = sorted({p for kernels in chain.kernels for k in kernels for p in k.products})
        columns = space.designs[list(_TENSOR_COLUMNS)]
        _, first, row_of = np.unique(columns, axis=1, return_index=True, return_inverse=True)
        machines = [
            machine_of(space.template(int(i)), surroundings, element_bytes=chain.element_bytes)
            for i in first
        ]
        self._products = products
        self._row_of = row_of.reshape(-1)
        self._rows = {
            wide: np.array([machine_taking(m, wide=wide).row() for m in machines], dtype=np.float64)
            for wide in {product.wide for product in products}
        }
        self._pace = np.array([m.glb_bandwidth_bytes_per_s for m in machines])[:, None]
        self._known = np.zeros(len(machines), dtype=np.bool_)
        self._figures = np.zeros((len(FIGURES), len(machines), len(products)))

    @property
    def figures(self) -> Floats:
        """Estimates [`FIGURES`, configurations, products], of every configuration that is known."""
        return self._figures

    def fill(self) -> None:
        """Estimate whatever is not known yet."""
        self.table(np.arange(self._row_of.size))

    def load(self, figures: Floats) -> None:
        """Take estimates of all configurations as they were saved; raises `InvalidInput`."""
        if figures.shape != self._figures.shape:
            wanted = f"must be of shape {self._figures.shape}, got {figures.shape}"
            raise InvalidInput.of("estimates", wanted)
        self._figures = figures
        self._known[:] = True

    def table(self, designs: NDArray[np.int64]) -> ProductTable:
        """The estimates that these designs (indices into the space) need."""
        rows, row_of = np.unique(self._row_of[designs], return_inverse=True)
        missing = rows[~self._known[rows]]
        if missing.size:
            for wide, machines in self._rows.items():
                columns = [i for i, p in enumerate(self._products) if p.wide is wide]
                found = product_times_of_rows(
                    machines[missing], [self._products[i] for i in columns]
                )
                inside_s = np.maximum(found.compute_s, found.glb_bytes / self._pace[missing])
                figures = (
                    found.seconds,
                    inside_s,
                    found.memory_bytes,
                    found.glb_bytes,
                    found.core_bytes,
                )
                self._figures[:, missing[:, None], columns] = np.stack(figures)
            self._known[missing] = True
        figures_of = dict(zip(FIGURES, self._figures[:, rows], strict=True))
        return ProductTable(
            row_of=row_of.reshape(-1),
            column_of={product: index for index, product in enumerate(self._products)},
            **figures_of,
        )


def exact_times(
    space: DesignSpace, chain: Chain, surroundings: Surroundings, products: ProductTable
) -> LayerTimes:
    """What the estimator says of each design; `products` are theirs."""
    rates = Rates.of(space, surroundings)

    def kernel_s(kernel: ChipKernel) -> Floats:
        return kernel_times_s(kernel, products, rates, surroundings)

    return _assemble(len(space), chain, surroundings, kernel_s, rates.lanes_per_s)


def ideal_times(space: DesignSpace, chain: Chain, surroundings: Surroundings) -> LayerTimes:
    """A lower bound of the same, without a search for tiles."""
    rates, share = Rates.of(space, surroundings), surroundings.efficiency
    lanes = rates.lanes_per_s

    def kernel_s(kernel: ChipKernel) -> Floats:
        moved = kernel.compulsory_bytes(chain.element_bytes)
        moved_s = moved / (surroundings.memory_bandwidth_bytes_per_s * share.memory.max)
        work_s = kernel.array_flops / (rates.peaks_flops_per_s * share.gemm.max)
        if kernel.is_fused:
            work_s = np.maximum(work_s, kernel.attention_s(rates.peaks_flops_per_s, share))
        work_s = np.maximum(work_s, kernel.lane_cycles / lanes)
        least_s: Floats = np.maximum(work_s, moved_s) + surroundings.launch_s
        return least_s

    return _assemble(len(space), chain, surroundings, kernel_s, lanes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What n designs do per second at their clock: FLOPs of the arrays, operations of the lanes."""

    peaks_flops_per_s: Floats
    lanes_per_s: Floats

    @classmethod
    def of(cls, space: DesignSpace, surroundings: Surroundings) -> Rates:
        """Of each design of a space."""
        macs = space.column("num_tc") * space.column("width") * space.column("depth")
        lanes = space.column("num_vc") * space.column("width")
        return cls(
            peaks_flops_per_s=np.multiply(2.0 * surroundings.clock_hz, macs, dtype=np.float64),
            lanes_per_s=np.multiply(surroundings.clock_hz, lanes, dtype=np.float64),
        )


def memory_s(moved: float, surroundings: Surroundings) -> float:
    """Seconds of `moved` bytes between a chip and its memory; 0 for none."""
    if not moved:
        return 0.0
    share = surroundings.efficiency.memory.at(moved)
    return moved / (surroundings.memory_bandwidth_bytes_per_s * share)


def kernel_times_s(
    kernel: ChipKernel, table: ProductTable, rates: Rates, surroundings: Surroundings
) -> Floats:
    """Seconds of one kernel on each design."""
    lanes = rates.lanes_per_s
    places = [table.column_of[product] for product in kernel.products]
    moved_s = memory_s(kernel.memory_bytes, surroundings)
    if kernel.is_fused:
        inside = kernel.share * table.inside_s[:, places].sum(axis=1)[table.row_of]
        reached = kernel.attention_s(rates.peaks_flops_per_s, surroundings.efficiency)
        beside = np.maximum(np.maximum(kernel.lane_cycles / lanes, moved_s), reached)
        fused: Floats = np.maximum(inside, beside) + surroundings.launch_s
        return fused
    if places:
        products: Floats = table.seconds[:, places].sum(axis=1)[table.row_of]
        return products + np.maximum(kernel.lane_cycles / lanes, moved_s)
    alone: Floats = np.maximum(kernel.lane_cycles / lanes, moved_s) + surroundings.launch_s
    return alone


def _assemble(
    num_designs: int,
    chain: Chain,
    surroundings: Surroundings,
    kernel_s: Callable[[ChipKernel], Floats],
    lanes: Floats,
) -> LayerTimes:
    links = chain.collective_s(surroundings)
    phases = {phase: np.zeros((num_designs, len(chain.kernels))) for phase in PHASES}
    for index, kernels in enumerate(chain.kernels):
        for kernel in kernels:
            phases[kernel.phase][:, index] += kernel_s(kernel)
    for phase in PHASES:
        phases[phase] += beyond_s(links[phase], surroundings.tensor_overlap * phases[phase])
    forward = phases[Phase.FORWARD]
    gradients = phases[Phase.INPUT_GRAD] + phases[Phase.WEIGHT_GRAD]
    again = np.where(chain.repeats, forward, 0.0)
    backward = [
        gradients + again if mode is Recompute.FULL else gradients for mode in chain.recompute
    ]
    pace = surroundings.memory_bandwidth_bytes_per_s * surroundings.efficiency.memory.max
    update = np.maximum(chain.update_bytes / pace, chain.update_lane_cycles / lanes[:, None])
    return LayerTimes(
        forward_s=np.ascontiguousarray(forward),
        backward_s=np.ascontiguousarray(np.stack(backward, axis=1)),
        weight_grad_s=np.ascontiguousarray(phases[Phase.WEIGHT_GRAD]),
        update_s=np.ascontiguousarray(update),
    )
