"""Time and traffic of matrix products on tiled machines, by the native kernel.

A machine is an array of cores, each with multipliers and a buffer, around one global buffer; chip
templates and real accelerators are described alike. The recurrence is in
`native/chip/operator_estimate.hpp`; a readable copy of it, in the tests, gives identical bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainwright._native._core import estimate_products
from trainwright.cluster import (
    NO_LOSS,
    Accelerator,
    ChipTemplate,
    Efficiency,
    Saturating,
    Surroundings,
)
from trainwright.errors import Fault, UnsupportedFeature, not_positive, refuse, too_low
from trainwright.model import (
    LayerClass,
    LayerGraph,
    Operator,
    OperatorKind,
    Phase,
    Precision,
    RunShape,
)
from trainwright.model.operator import MatrixShape

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

ACCUMULATOR_BYTES: Final = 4.0


class Stationary(StrEnum):
    """Which operand of a product stays in place while the others pass."""

    OUTPUT = "output"
    WEIGHT = "weight"
    INPUT = "input"


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledMachine:
    """A device as `num_cores` arrays of `rows` × `columns` multipliers with two buffer levels.

    `compute_efficiency` is the share of its clock that an array sustains, in 8 bit `fp8_ratio` of
    that. Attention reaches at most the shares of `attention`. `pipelined_folds` hides
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
    fp8_ratio: float = 1.0
    attention: Efficiency = NO_LOSS
    element_bytes: float = 2.0
    accumulator_bytes: float = ACCUMULATOR_BYTES
    pipelined_folds: bool = False

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        yield from not_positive(self, *_POSITIVE)
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

    @property
    def _narrow_ratio(self) -> float:
        return self.fp8_ratio if self.element_bytes < 2.0 else 1.0

    def row(self) -> tuple[float, ...]:
        """The machine as the kernel reads it."""
        return (
            self.num_cores,
            self.rows,
            self.columns,
            self.core_buffer_bytes,
            self.glb_bytes,
            self.clock_hz * self.compute_efficiency * self._narrow_ratio,
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
        memory_efficiency=surroundings.efficiency.memory,
        launch_s=surroundings.launch_s,
        compute_efficiency=surroundings.efficiency.gemm.max,
        fp8_ratio=surroundings.efficiency.fp8_ratio,
        attention=surroundings.efficiency,
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
        refuse(too_low(self, 1, "m", "n", "k", "batch"))

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


# What a layer asks of a chip: products for the tensor cores, lane cycles, bytes, collectives
# -------------------------------------------------------------------------------------------
# Nothing here depends on the chip, so that one description serves every design of a search.
# - A linear layer is one product forward and two backward, [rows, out]·[out, in] for its input's
#   gradient and [in, rows]·[rows, out] for its weight's, which adds to an accumulator.
# - A fused attention kernel (Dao et al., 2022) is two products per head forward and five backward,
#   of which only queries, keys, values and outputs reach memory, beside a softmax on the lanes; a
#   causal mask or a window scales them by the share of pairs that are computed.
# - Unfused attention stores the scores: a batch of products forward, two backward, for each side.
# - Everything else passes its bytes through the lanes, one element a cycle and pass. Norms make two
#   passes, softmax three, an activation function takes four cycles: assumptions, as no published
#   figure of this template counts them.

PHASES: Final = (Phase.FORWARD, Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)
_SCORES: Final = "attention_scores"
_VALUES: Final = "attention_values"
_SOFTMAX_PASSES: Final = 3.0
_PASSES: Final = (("norm", 2.0), ("softmax", _SOFTMAX_PASSES), ("activation", 4.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipKernel:
    """One operator in one phase.

    `share` of the products is computed (a causal mask skips the rest). `lane_cycles` are element
    passes of the vector lanes, `memory_bytes` what goes to memory beside the products' own traffic.
    A fused kernel runs its parts side by side; any other one after another.
    """

    operator: str
    phase: Phase
    products: tuple[Product, ...] = ()
    share: float = 1.0
    lane_cycles: float = 0.0
    memory_bytes: float = 0.0

    @property
    def is_fused(self) -> bool:
        """Whether products run beside the lanes, with operands that do not stream themselves."""
        return any(not product.streams for product in self.products)

    @property
    def flops(self) -> float:
        """FLOPs of the products that are computed."""
        return self.share * sum(product.flops for product in self.products)

    @property
    def array_flops(self) -> float:
        """The same in operations of the arrays: a wide multiplication takes two of them."""
        return self.share * sum(p.flops * (2.0 if p.wide else 1.0) for p in self.products)

    def attention_s(self, peak_flops_per_s: ArrayLike, reached: Efficiency) -> Any:
        """Seconds of a fused kernel at the share of the peak that such kernels reach at best."""
        share = reached.attention(self.flops, 0.0, backward=self.phase is Phase.INPUT_GRAD)
        return self.array_flops / (np.asarray(peak_flops_per_s) * share)

    def compulsory_bytes(self, element_bytes: float) -> float:
        """Bytes that any tiling moves: each operand of a streaming product once, and the rest."""
        operands = sum(
            (2.0 if p.wide else 1.0) * p.batch * (p.m * p.k + p.k * p.n + p.m * p.n)
            for p in self.products
            if p.streams
        )
        return operands * element_bytes + self.memory_bytes


def layer_kernels(layer: LayerClass, graph: LayerGraph) -> tuple[ChipKernel, ...]:
    """The kernels of one layer on one device, phase by phase in forward order of operators.

    Raises `UnsupportedFeature` for an operator whose shape is not known.
    """
    made = []
    for phase in PHASES:
        for operator in layer.operators:
            made += list(operator_kernels(operator, phase, graph.run))
    return tuple(made)


def operator_kernels(operator: Operator, phase: Phase, run: RunShape) -> Iterator[ChipKernel]:
    """The kernel of an operator in one phase on one device, or none without work there.

    Raises `UnsupportedFeature` for an operator whose shape is not known.
    """
    work = operator.work(phase)
    if not (work.flops or work.bytes):
        return
    if operator.kind is OperatorKind.MEMORY:
        cycles = _passes(operator.name) * work.bytes / run.precision.activation_bytes
        yield ChipKernel(
            operator=operator.name, phase=phase, lane_cycles=cycles, memory_bytes=work.bytes
        )
    elif operator.kind is OperatorKind.ATTENTION:
        yield _attention(operator, phase, run)
    elif operator.matrix is not None:
        yield _linear(operator, operator.matrix, phase, run)
    elif operator.name in (_SCORES, _VALUES):
        yield _batched(operator, phase, run)
    else:
        raise UnsupportedFeature(
            f"the tiled estimator has no shape of {operator.name}",
            alternative="it has linear layers, attention and elementwise operators",
        )


def element_bytes(precision: Precision) -> float:
    """Bytes of what arrays multiply under a recipe; twice that for its wide products."""
    return 1.0 if precision.matmul_dtype == "fp8" else float(precision.activation_bytes)


def _passes(name: str) -> float:
    return next((passes for part, passes in _PASSES if part in name), 1.0)


def _is_wide(operator: Operator, run: RunShape) -> bool:
    """Whether a recipe in 8 bit multiplies this operator in 16."""
    narrow = run.precision.matmul_dtype
    return narrow == "fp8" and (operator.dtype or narrow) != narrow


def _linear(operator: Operator, shape: MatrixShape, phase: Phase, run: RunShape) -> ChipKernel:
    rows = max(1, math.ceil(shape.rows / shape.matrices))
    inputs, outputs = math.ceil(shape.inputs), math.ceil(shape.outputs)
    sides = {
        Phase.FORWARD: (rows, outputs, inputs),
        Phase.INPUT_GRAD: (rows, inputs, outputs),
        Phase.WEIGHT_GRAD: (inputs, outputs, rows),
    }
    m, n, k = sides[phase]
    accumulated = 0.0
    if phase is Phase.WEIGHT_GRAD:  # read and written wide, where the product writes it narrow
        held = float(inputs) * outputs * shape.matrices
        wide = 2.0 * run.precision.gradient_bytes - run.precision.activation_bytes
        accumulated = held * max(0.0, wide)
    return ChipKernel(
        operator=operator.name,
        phase=phase,
        products=(Product(m=m, n=n, k=k, batch=shape.matrices, wide=_is_wide(operator, run)),),
        memory_bytes=accumulated,
    )


def _batched(operator: Operator, phase: Phase, run: RunShape) -> ChipKernel:
    """A product with the stored scores of every head (unfused attention); nothing is skipped.

    Its sides and scores follow from the bytes it reads and writes.
    """
    element = run.precision.activation_bytes
    s, keys = run.local_sequence_length, run.sequence_length
    sides = operator.forward.written_bytes / element
    scores = operator.forward.read_bytes / element - sides
    batch = max(1, round(scores / (s * keys)))
    width = max(1, round(sides / (s * batch)))
    twice = _is_wide(operator, run)
    wide = Product(batch=batch, m=s, n=keys, k=width, wide=twice)  # [s, width] × [width, keys]
    narrow = Product(batch=batch, m=s, n=width, k=keys, wide=twice)
    turned = Product(batch=batch, m=keys, n=width, k=s, wide=twice)
    if operator.name == _SCORES:
        products = (wide,) if phase is Phase.FORWARD else (narrow, turned)
    else:
        products = (narrow,) if phase is Phase.FORWARD else (wide, turned)
    return ChipKernel(operator=operator.name, phase=phase, products=products)


def _attention(operator: Operator, phase: Phase, run: RunShape) -> ChipKernel:
    """Heads of one device as a batch; widths of query and value from the tensors it keeps."""
    batch, query, value = _head_shape(operator, run)
    s, keys = run.local_sequence_length, run.sequence_length
    pairs = 2.0 * batch * s * keys * (query + value)
    share = min(1.0, operator.forward.flops / pairs)

    def product(m: int, n: int, k: int) -> Product:
        wide = _is_wide(operator, run)
        return Product(m=m, n=n, k=k, batch=batch, streams=False, wide=wide)

    scores, weighted = product(s, keys, query), product(s, value, keys)
    products: tuple[Product, ...] = (scores, weighted)
    if phase is Phase.INPUT_GRAD:
        products = (
            scores,
            product(s, keys, value),  # gradient of the weights of values
            product(keys, value, s),
            product(s, query, keys),
            product(keys, query, s),
        )
    return ChipKernel(
        operator=operator.name,
        phase=phase,
        products=products,
        share=share,
        lane_cycles=_SOFTMAX_PASSES * share * batch * s * keys,
        memory_bytes=operator.work(phase).bytes,
    )


def _head_shape(operator: Operator, run: RunShape) -> tuple[int, int, int]:
    """Heads × sequences of one device, width of a query and of a value."""
    kept = {tensor.name: tensor.elements / run.tokens for tensor in operator.saved}
    heads = kept["attention.log_sum_exp"]
    batch = run.microbatch_size * math.ceil(heads / run.tensor_parallel)
    query = round(kept["query"] / heads)
    written = operator.forward.written_bytes / run.precision.activation_bytes / run.tokens
    value = round(written * run.tensor_parallel / heads)  # outputs are as wide as the values
    return batch, query, value


# A layer's operators on a tiled machine: what stands in for the roofline in a profile
# ------------------------------------------------------------------------------------
# With it `Estimator` prices a model on a chip design, or on a real device described as one, for the
# same partitioning, schedules and memory model as any other profile.

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
            reached_s = float(kernel.attention_s(machine.peak_flops_per_s, machine.attention))
            return max(inside_s, reached_s, beside_s) + machine.launch_s
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
        efficiency=device.efficiency,
        launch_s=device.launch_overhead_s,
        glb_bytes_per_cycle=cores.glb_bytes_per_cycle,
    )
    own = machine_of(cores.chip, around, element_bytes=cores.element_bytes)
    wide = element_bytes(precision) > cores.element_bytes
    return TiledTimer(machine=machine_taking(own, wide=wide), lanes_per_s=cores.lanes_per_s)
