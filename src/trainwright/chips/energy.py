"""Joules of kernels, layers and steps, from a table of energies per event.

    E = MACs·e_mac + lane operations·e_lane + Σ over levels bytes·e_level + link bytes·e_link
        + (idle + leakage·area)·time

Dynamic energy is counted where it happens, backward by its own kernels; idle and leakage power run
for the whole step on every chip, also on those that wait. The table is an input. Its defaults are
public figures, scaled where they are of an older process:

- arithmetic and SRAM: Horowitz, ISSCC 2014, 45 nm (16-bit multiplication 1.1 pJ, 32-bit addition
  0.9 pJ and multiplication 3.7 pJ; 8 bytes from 32 KB 20 pJ, from 1 MB 100 pJ), halved for 22 nm;
- memory: O'Connor et al., MICRO 2017, HBM2 3.9 pJ per bit;
- links: Poulton et al., JSSC 2019, 1.17 pJ per bit;
- leakage and idle power are assumptions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.costing.tiled import PHASES
from trainwright.errors import InvalidInput
from trainwright.model import Phase
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from trainwright.arrays import Floats
    from trainwright.chips.design_times import ProductTable
    from trainwright.chips.plans import UniformPlan
    from trainwright.chips.workload import Chain, TrainingJob
    from trainwright.costing.tiled import ChipKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyTable:
    """Joules per event; `leakage_watts_per_mm2` and `idle_watts` run all the time."""

    mac_j: float = 1.0e-12
    lane_j: float = 1.2e-12
    core_byte_j: float = 1.25e-12
    glb_byte_j: float = 6.25e-12
    memory_byte_j: float = 31.2e-12
    link_byte_j: float = 9.4e-12
    leakage_watts_per_mm2: float = 0.03
    idle_watts: float = 20.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not (math.isfinite(value := getattr(self, field.name)) and value >= 0):
                raise InvalidInput.of(field.name, f"must be finite and >= 0, got {value!r}")

    def static_watts(self, area_mm2: Floats) -> Floats:
        """What a chip draws whatever it does."""
        return self.idle_watts + self.leakage_watts_per_mm2 * area_mm2

    def multiplying(self, energy_factor: float) -> EnergyTable:
        """The table of arrays whose multiplications take so many times the energy."""
        return replace(self, mac_j=self.mac_j * energy_factor)


DEFAULT_ENERGY = EnergyTable()


def kernel_energy_j(kernel: ChipKernel, products: ProductTable, table: EnergyTable) -> Floats:
    """Dynamic joules of one kernel on one chip of each design.

    Bytes beside the products pass every level between memory and the lanes.
    """
    places = [products.column_of[product] for product in kernel.products]
    per_byte = table.memory_byte_j + table.glb_byte_j + table.core_byte_j
    alone = kernel.lane_cycles * table.lane_j + kernel.memory_bytes * per_byte
    inside = (
        products.glb_bytes[:, places] * table.glb_byte_j
        + products.core_bytes[:, places] * table.core_byte_j
        + products.memory_bytes[:, places] * table.memory_byte_j
    )
    energy: Floats = (kernel.share * inside.sum(axis=1))[products.row_of]
    return energy + kernel.array_flops / 2.0 * table.mac_j + alone


def layer_energy_j(chain: Chain, products: ProductTable, table: EnergyTable) -> Floats:
    """Dynamic joules [designs, options, classes] of one microbatch on one chip, links included."""
    links = chain.link_bytes()
    phases = {
        phase: np.zeros((products.row_of.size, len(chain.kernels)))
        + links[phase] * table.link_byte_j
        for phase in PHASES
    }
    for index, kernels in enumerate(chain.kernels):
        for kernel in kernels:
            phases[kernel.phase][:, index] += kernel_energy_j(kernel, products, table)
    once = sum(phases[phase] for phase in PHASES)
    again = once + np.where(chain.repeats, phases[Phase.FORWARD], 0.0)
    modes = [again if mode is Recompute.FULL else once for mode in chain.recompute]
    return np.stack(modes, axis=1)


def step_energy_j(
    layers_j: Floats,
    chain: Chain,
    plan: UniformPlan,
    *,
    job: TrainingJob,
    num_devices: int,
    area_mm2: float,
    table: EnergyTable,
) -> float:
    """Joules of a step on all chips; `layers_j` [options, classes] are those of the design.

    Transfers between stages, the synchronisation of gradients and the update are counted once per
    replica and device.
    """
    counts, classes = chain.class_counts, chain.layer_class
    microbatch_j = sum(
        float(layers_j[chain.recompute.index(mode), classes[stage.start : stage.stop]].sum())
        for mode, stage in zip(plan.recompute, plan.stages(classes.size), strict=True)
    )
    work_j = job.num_microbatches * chain.tensor_degree * microbatch_j
    sent = job.num_microbatches * chain.tensor_degree * _boundary_bytes(chain, plan) * 2.0
    ring = 2.0 * (plan.data_degree - 1) * chain.tensor_degree * float(chain.sync_bytes @ counts)
    moved = chain.tensor_degree * float(chain.update_bytes @ counts)
    cycles = chain.tensor_degree * float(chain.update_lane_cycles @ counts)
    static_watts = float(table.static_watts(np.asarray(area_mm2, dtype=np.float64)))
    return (
        work_j
        + (sent + ring) * table.link_byte_j
        + moved * table.memory_byte_j
        + cycles * table.lane_j
        + num_devices * static_watts * plan.step_s
    )


def _boundary_bytes(chain: Chain, plan: UniformPlan) -> float:
    """Bytes that cross the cuts for one microbatch, in one direction."""
    cuts = set(plan.crossed_cuts)
    return sum(edge.bytes for edge in chain.graph.edges if edge.target in cuts)
