"""What a layer asks of a chip: products for the tensor cores, lane cycles, bytes, collectives.

Nothing here depends on the chip, so that one description serves every design of a search.

- A linear layer is one product forward and two backward, [rows, out]·[out, in] for its input's
  gradient and [in, rows]·[rows, out] for its weight's, which adds to an accumulator.
- A fused attention kernel (Dao et al., 2022) is two products per head forward and five backward,
  of which only queries, keys, values and outputs reach memory, beside a softmax on the lanes; a
  causal mask or a window scales them by the share of pairs that are computed.
- Unfused attention stores the scores: a batch of products forward, two backward, for each side.
- Everything else passes its bytes through the lanes, one element a cycle and pass. Norms make two
  passes, softmax three, an activation function takes four cycles: assumptions, as no published
  figure of this template counts them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trainwright.costing.tiled import Product
from trainwright.errors import UnsupportedFeature
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
