"""Time and traffic of matrix products on tiled machines, by the native kernel.

A machine is an array of cores, each with multipliers and a buffer, around one global buffer; chip
templates and real accelerators are described alike. The recurrence is in
`native/operator_estimate.hpp`; a readable copy of it, in the tests, gives identical bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright._native._core import estimate_products, output_stationary_cycles
from trainwright.cluster import ChipTemplate, Saturating, Surroundings
from trainwright.errors import Fault, InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

ACCUMULATOR_BYTES: Final = 4.0
BUFFER_CONSTANT: Final = 2.0


class Stationary(StrEnum):
    """Which operand of a product stays in place while the others pass."""

    OUTPUT = "output"
    WEIGHT = "weight"
    INPUT = "input"


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledMachine:
    """A device as `num_cores` arrays of `rows` × `columns` multipliers with two buffer levels.

    `compute_efficiency` is the share of its clock that an array sustains. `pipelined_folds` hides
    the filling of an array behind its previous fold. The multipliers take elements of
    `element_bytes` and add in `accumulator_bytes`.
    """

    num_cores: int
    rows: int
    columns: int
    core_buffer_bytes: float
    glb_bytes: float
    clock_hz: float
    glb_bandwidth_bytes_per_s: float
    memory_bandwidth_bytes_per_s: float
    memory_efficiency: Saturating = field(default=Saturating(max=1.0, half=0.0))
    launch_s: float = 0.0
    compute_efficiency: float = 1.0
    element_bytes: float = 2.0
    accumulator_bytes: float = ACCUMULATOR_BYTES
    pipelined_folds: bool = False

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        for name in _POSITIVE:
            if not (math.isfinite(value := getattr(self, name)) and value > 0):
                yield Fault(name, f"must be finite and > 0, got {value!r}")
        if not self.compute_efficiency <= 1:
            yield Fault("compute_efficiency", f"must be <= 1, got {self.compute_efficiency!r}")
        if not (math.isfinite(self.launch_s) and self.launch_s >= 0):
            yield Fault("launch_s", f"must be finite and >= 0, got {self.launch_s!r}")
        if self.glb_bytes < self.core_buffer_bytes:
            wanted = f"must be >= core_buffer_bytes ({self.core_buffer_bytes})"
            yield Fault("glb_bytes", f"{wanted}, got {self.glb_bytes}")

    @property
    def peak_flops_per_s(self) -> float:
        """Two operations per multiplier and clock, before any efficiency."""
        return 2.0 * self.num_cores * self.rows * self.columns * self.clock_hz

    def row(self) -> tuple[float, ...]:
        """The machine as the kernel reads it."""
        return (
            self.num_cores,
            self.rows,
            self.columns,
            self.core_buffer_bytes,
            self.glb_bytes,
            self.clock_hz * self.compute_efficiency,
            self.glb_bandwidth_bytes_per_s,
            self.memory_bandwidth_bytes_per_s * self.memory_efficiency.max,
            self.memory_efficiency.half,
            self.launch_s,
            self.element_bytes,
            self.accumulator_bytes,
            float(self.pipelined_folds),
        )


_POSITIVE: Final = (
    "num_cores",
    "rows",
    "columns",
    "core_buffer_bytes",
    "glb_bytes",
    "clock_hz",
    "glb_bandwidth_bytes_per_s",
    "memory_bandwidth_bytes_per_s",
    "compute_efficiency",
    "element_bytes",
    "accumulator_bytes",
)


def machine_of(
    chip: ChipTemplate, surroundings: Surroundings, *, element_bytes: float = 2.0
) -> TiledMachine:
    """The machine of a chip template.

    Every array can take `width + depth` elements per cycle from the global buffer, all of them
    together no more than it moves.
    """
    ports = chip.num_tc * (chip.width + chip.depth) * element_bytes
    glb_bytes_per_cycle = min(ports, surroundings.glb_bytes_per_cycle)
    return TiledMachine(
        num_cores=chip.num_tc,
        rows=chip.width,
        columns=chip.depth,
        core_buffer_bytes=chip.tc_buffer_bytes,
        glb_bytes=chip.glb_bytes,
        clock_hz=surroundings.clock_hz,
        glb_bandwidth_bytes_per_s=glb_bytes_per_cycle * surroundings.clock_hz,
        memory_bandwidth_bytes_per_s=surroundings.memory_bandwidth_bytes_per_s,
        memory_efficiency=surroundings.memory_efficiency,
        launch_s=surroundings.launch_s,
        element_bytes=element_bytes,
    )


def machine_taking(machine: TiledMachine, *, wide: bool) -> TiledMachine:
    """The machine as it multiplies elements of its own size, or of twice that."""
    if not wide:
        return machine
    return replace(
        machine,
        element_bytes=2.0 * machine.element_bytes,
        compute_efficiency=machine.compute_efficiency / 2.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Product:
    """`batch` products [m, k] × [k, n].

    One that does not stream leaves its operands' way to memory to the caller (fused attention). A
    `wide` one has elements of twice the bytes that a machine's arrays multiply, at half their rate.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    streams: bool = True
    wide: bool = False

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            if (value := getattr(self, name)) < 1:
                raise InvalidInput.of(name, f"must be >= 1, got {value}")

    @property
    def flops(self) -> float:
        """Two per multiplication: 2·b·M·N·K."""
        return 2.0 * self.batch * self.m * self.n * self.k

    def row(self) -> tuple[float, ...]:
        """The product as the kernel reads it."""
        return (self.batch, self.m, self.n, self.k, float(self.streams))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """How a product is cut: `core` and `whole` tiles as (m, n, k), parts of k, what stays where."""

    dataflow: Stationary
    order: Stationary
    core: tuple[int, int, int]
    whole: tuple[int, int, int]
    split: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTimes:
    """Estimates of products on machines, arrays [machines, products]; seconds and bytes.

    `core_bytes` pass between core buffers and arrays, `glb_bytes` between the global buffer and the
    cores, `memory_bytes` between the chip and its memory. Seconds are infinite where not even the
    least tile fits a buffer.
    """

    seconds: NDArray[np.float64]
    compute_s: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]
    glb_bytes: NDArray[np.float64]
    core_bytes: NDArray[np.float64]
    choices: tuple[NDArray[np.float64], ...]

    def tiles(self, machine: int, product: int) -> Tiles:
        """How one of them is cut."""
        values = [int(column[machine, product]) for column in self.choices]
        dataflow, order, m_t, n_t, k_t, m_g, n_g, k_g, split = values
        kinds = tuple(Stationary)
        return Tiles(
            dataflow=kinds[dataflow],
            order=kinds[order],
            core=(m_t, n_t, k_t),
            whole=(m_g, n_g, k_g),
            split=split,
        )


def product_times(machines: Sequence[TiledMachine], products: Sequence[Product]) -> ProductTimes:
    """The fastest tiling of every product on every machine, about 1 µs each."""
    rows = np.array([machine.row() for machine in machines], dtype=np.float64).reshape(-1, 13)
    return product_times_of_rows(rows, products)


def product_times_of_rows(rows: NDArray[np.float64], products: Sequence[Product]) -> ProductTimes:
    """The same for machines that are rows of a table already (`TiledMachine.row`)."""
    table = np.array([product.row() for product in products], dtype=np.float64).reshape(-1, 5)
    *figures, choices = estimate_products(np.ascontiguousarray(rows), table)
    shape = (rows.shape[0], table.shape[0])
    seconds, compute_s, memory_bytes, glb_bytes, core_bytes = (f.reshape(shape) for f in figures)
    return ProductTimes(
        seconds=seconds,
        compute_s=compute_s,
        memory_bytes=memory_bytes,
        glb_bytes=glb_bytes,
        core_bytes=core_bytes,
        choices=tuple(column.reshape(shape) for column in choices),
    )


def systolic_cycles(*, rows: int, columns: int, m: int, n: int, k: int) -> int:
    """Cycles of one output-stationary array, as SCALE-Sim counts them."""
    cycles = output_stationary_cycles(
        rows=float(rows), columns=float(columns), m=float(m), n=float(n), k=float(k)
    )
    return int(cycles)
