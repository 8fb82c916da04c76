"""One operator of a layer on one device: its work, its parameters, the tensors it keeps.

An operator's work is stated three times, because pipeline schedules may run the phases apart:
forward, input gradient (I) and weight gradient (W). Elementwise operators have bytes and no FLOPs
worth counting; matrix operators have both. Two FLOP counts exist and are never mixed: `flops` of a
`Work` is what the kernel executes (a fused causal kernel skips the upper triangle),
`model_flops` counts attention in full, and is what MFU is defined on.

What backward needs from forward is a list of tensors, each with the rule by which it is sharded and
the module whose recomputation drops it: the closed formulas of Korthikanti et al. (2022, Table 2)
are sums over this list, and a test says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from trainwright.errors import Fault, refuse
from trainwright.model.config import LayerKind, Norm, TransformerConfig
from trainwright.model.run_shape import Routing, RunShape

ATTENTION_CORE: Final = "attention_core"
NORM: Final = "norm"
QUERY_KEY_NORM: Final = "query_key_norm.input"  # what norms of queries and keys read
MLP_ACTIVATION: Final = "mlp_activation"  # of all feed-forward parts, or of routed experts alone:
EXPERT_ACTIVATION: Final = "expert_activation"
LATENT_UP_PROJECTION: Final = "latent_up_projection"
# Whole parts of a block: what their operators, and the tensors between these, are called.
PARTS: Final = MappingProxyType(
    {
        "mlp": ("mlp_in", "mlp_activation", "mlp_out"),
        "moe": ("router", "permute", "expert_", "experts_", "unpermute", "shared_"),
        "shared_experts": ("shared_",),
    }
)
RECOMPUTE_MODULES: Final = (
    *(ATTENTION_CORE, NORM, MLP_ACTIVATION, EXPERT_ACTIVATION, LATENT_UP_PROJECTION),
    *PARTS,
)
# What frameworks call them.
MODULE_NAMES: Final = MappingProxyType(
    {
        "core_attn": ATTENTION_CORE,
        "layernorm": NORM,
        "moe_act": EXPERT_ACTIVATION,
        "mla_up_proj": LATENT_UP_PROJECTION,
    }
)


def usual_modules(*, fused_attention: bool) -> tuple[str, ...]:
    """What "selective" recomputes of a block unless told: keeps much, costs little."""
    return (NORM, MLP_ACTIVATION) if fused_attention else (ATTENTION_CORE,)


def modules_by_block(modules: Iterable[str], model: TransformerConfig) -> tuple[str, ...]:
    """The same, activations told apart by the kind of block that the model has them in."""
    experts = model.experts
    routed = {experts is not None and experts.at(i) for i in range(model.num_layers)}
    of_kind = {False: MLP_ACTIVATION, True: EXPERT_ACTIVATION}
    activations = [name for is_routed, name in of_kind.items() if is_routed in routed]
    own = {MLP_ACTIVATION: activations}
    return tuple(dict.fromkeys(name for each in modules for name in own.get(each, [each])))


class OperatorKind(StrEnum):
    """Which efficiency prices an operator."""

    GEMM = "gemm"
    ATTENTION = "attention"
    MEMORY = "memory"


class Shard(StrEnum):
    """Over which devices of a tensor group a saved tensor is spread."""

    TENSOR = "tensor"
    SEQUENCE = "sequence"  # only where sequence parallelism is on
    REPLICATED = "replicated"
    EXPERT = "expert"  # over the devices that share one expert


class Phase(StrEnum):
    """When work happens; recomputation repeats forward work just before backward."""

    FORWARD = "forward"
    INPUT_GRAD = "input_grad"
    WEIGHT_GRAD = "weight_grad"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one phase of an operator does on one device."""

    flops: float = 0.0
    read_bytes: float = 0.0
    written_bytes: float = 0.0

    @property
    def bytes(self) -> float:
        """Memory traffic in both directions."""
        return self.read_bytes + self.written_bytes


NO_WORK: Final = Work()


def work_of_both(first: Work, second: Work) -> Work:
    """One after the other."""
    return Work(
        flops=first.flops + second.flops,
        read_bytes=first.read_bytes + second.read_bytes,
        written_bytes=first.written_bytes + second.written_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """`count` parameters of the model, of which each device holds `count / shards`.

    Parameters of one `shared` name are the same tensor in several layers (tied embeddings);
    `expert` ones are sharded and synchronised over the expert group, and a token meets `active` of
    them. What is not `trainable` has no gradient and no optimizer state, and may
    be kept in `kept_bytes` each, scaling constants included, in place of those of the precision.
    """

    name: str
    count: int
    shards: int = 1
    expert: bool = False
    active: int | None = None
    shared: str | None = None
    trainable: bool = True
    kept_bytes: float | None = None

    @property
    def count_per_device(self) -> float:
        """Parameters on one device of the tensor group."""
        return self.count / self.shards


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """A tensor kept from forward to backward; `elements` over all devices that share it.

    `dropped_by` names the module whose recomputation makes keeping it unnecessary; a full
    recomputation keeps the layer's input and nothing else. `until` is the phase that frees it;
    `serves_input_grad` says of a product's input that an input gradient needs it too. Tensors of
    one name in a layer are one tensor, kept once.
    """

    name: str
    elements: int
    element_bytes: float
    shard: Shard
    until: Phase
    dropped_by: str | None = None
    is_layer_input: bool = False
    serves_input_grad: bool = False

    def bytes_per_device(self, run: RunShape) -> float:
        """Bytes that one device keeps."""
        shards = {
            Shard.TENSOR: run.tensor_parallel,
            Shard.SEQUENCE: run.sequence_shards,
            Shard.REPLICATED: 1,
            Shard.EXPERT: run.expert_shards,
        }
        return self.elements * self.element_bytes / shards[self.shard]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixShape:
    """The product [rows, inputs] × [inputs, outputs] that one device computes.

    Of an expert mixture the rows spread evenly over `matrices` weights of that shape. `split` is
    what the tensor group cuts: "column", "row", "sequence" or "none".
    """

    rows: float
    inputs: float
    outputs: float
    matrices: int = 1
    split: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One kernel, or a few that run as one. `module` is the recomputable module it belongs to.

    `dtype` is the number format its matrix units run in, that of activations where absent. `matrix`
    is the shape of a product with weights, None for every other operator. Its kernels keep memory
    busy for `bandwidth_share` of the time that elementwise ones do. `head_size` is that of fused
    attention, the mean of those of queries and values. Of the bytes that forward moves, and the
    input gradient, `expanded_bytes` are those of a kernel that runs before the product.
    """

    name: str
    kind: OperatorKind
    forward: Work
    input_grad: Work = NO_WORK
    weight_grad: Work = NO_WORK
    model_flops: float = 0.0
    parameters: tuple[Parameter, ...] = ()
    saved: tuple[SavedTensor, ...] = ()
    module: str | None = None
    matrix: MatrixShape | None = None
    dtype: str | None = None
    bandwidth_share: float = 1.0
    head_size: float | None = None
    expanded_bytes: float = 0.0

    @property
    def model_step_flops(self) -> float:
        """`model_flops` of the forward pass and of the gradients that are computed.

        A fused kernel's backward counts as two forward passes, though it does more.
        """
        if self.kind is OperatorKind.ATTENTION:
            return self.model_flops * (3.0 if self.input_grad.flops else 1.0)
        if not self.forward.flops:
            return self.model_flops
        gradients = self.input_grad.flops + self.weight_grad.flops
        return self.model_flops * (1.0 + gradients / self.forward.flops)

    def work(self, phase: Phase) -> Work:
        """The work of one phase."""
        match phase:
            case Phase.INPUT_GRAD:
                return self.input_grad
            case Phase.WEIGHT_GRAD:
                return self.weight_grad
            case Phase.FORWARD | Phase.RECOMPUTE:
                return self.forward


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A collective that a layer performs over one parallel axis; `bytes` of the whole tensor.

    Of a ring, which passes blocks on n - 1 times, `bytes` are one block. Where `routing` is given,
    an all-to-all sends a token once to each unit of a network level that has one of its experts;
    `bytes` are still those of a copy for each expert. `hides_under` names the operator whose work
    in the same phase may hide it, up to `hidden_share` of that work. A `nearest` number of
    neighbours of the axis make a group of their own, or those that lie `apart` by so many.
    """

    axis: str  # "tensor", "context", "expert", "expert_tensor"
    kind: str  # "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "ring"
    bytes: float
    phase: Phase
    hides_under: str | None = None
    hidden_share: float = 1.0
    routing: Routing | None = None
    nearest: int | None = None
    apart: int | None = None


def inside(operator: Operator) -> Operator:
    """The operator where its input is no longer that of its layer."""
    saved = tuple(replace(tensor, is_layer_input=False) for tensor in operator.saved)
    return replace(operator, saved=saved)


def in_pieces(operator: Operator, num_pieces: float) -> Operator:
    """The operator on one piece of the tokens after another, without what it keeps.

    Each piece is computed again right before its gradients, as its own recomputation; the weights
    are read, and their gradients accumulated, once for each piece (ALST: Bekman et al., 2025;
    chunked cross entropy: Wijmans et al., 2024).
    """
    held = 0.0
    if operator.matrix is not None:
        held = operator.matrix.inputs * operator.matrix.outputs * operator.matrix.matrices
    again = Work(read_bytes=_WEIGHT_BYTES * held * (num_pieces - 1))
    gradient = operator.weight_grad
    if gradient.flops:
        more = _ACCUMULATOR_BYTES * held * (num_pieces - 1)
        gradient = work_of_both(gradient, Work(read_bytes=more, written_bytes=more))
    forward = work_of_both(operator.forward, again)
    backward = work_of_both(operator.input_grad, again)
    return replace(
        operator,
        forward=forward,
        input_grad=work_of_both(forward, backward),
        weight_grad=gradient,
        saved=(),
    )


_WEIGHT_BYTES: Final = 2
_ACCUMULATOR_BYTES: Final = 4


# The few kinds of kernel a transformer is made of: matrix products, norms, elementwise chains
# --------------------------------------------------------------------------------------------
# Every function returns an `Operator` of one device. Traffic counts each tensor once per pass over
# it, as a kernel without cache reuse between tensors would read and write it.


def linear(
    name: str,
    run: RunShape,
    *,
    inputs: int,
    outputs: int,
    split: str,
    parameters: tuple[Parameter, ...],
    saved: tuple[SavedTensor, ...],
    tokens: int | None = None,
    model_outputs: int | None = None,
    matrices: int = 1,
    module: str | None = None,
    shards: int | None = None,
    dtype: str | None = None,
    model_tokens: int | None = None,
) -> Operator:
    """A matrix product [tokens, inputs] × [inputs, outputs] with its bias.

    `split` says what a group of `shards` devices (the tensor group where absent) cuts: "column"
    (outputs of the weight), "row" (its inputs), "sequence" (the tokens, where sequence parallelism
    has cut them) or "none". Both gradients cost as many FLOPs as the product itself; the weight
    gradient reads and writes its accumulator. `model_outputs` and `model_tokens` are the width and
    rows of the model where the devices compute padded or repeated ones. The tokens spread over
    `matrices` weights of one shape (experts). `dtype` is that of the precision where absent.
    """
    all_rows = run.tokens if tokens is None else tokens
    shards = run.tensor_parallel if shards is None else shards
    counted = all_rows if model_tokens is None else model_tokens
    rows = all_rows / run.sequence_shards if split == "sequence" else all_rows
    local_inputs = inputs / shards if split == "row" else inputs
    local_outputs = outputs / shards if split == "column" else outputs
    flops = 2.0 * rows * local_inputs * local_outputs
    element, weight = run.precision.activation_bytes, run.precision.weight_bytes
    held = sum(p.count_per_device for p in parameters)
    in_bytes, out_bytes = element * rows * local_inputs, element * rows * local_outputs
    accumulator = held * run.precision.gradient_bytes
    return Operator(
        name=name,
        kind=OperatorKind.GEMM,
        forward=Work(flops=flops, read_bytes=in_bytes + weight * held, written_bytes=out_bytes),
        input_grad=Work(flops=flops, read_bytes=out_bytes + weight * held, written_bytes=in_bytes),
        weight_grad=Work(
            flops=flops, read_bytes=in_bytes + out_bytes + accumulator, written_bytes=accumulator
        ),
        model_flops=2.0 * counted * inputs * (outputs if model_outputs is None else model_outputs),
        matrix=MatrixShape(
            rows=rows, inputs=local_inputs, outputs=local_outputs, matrices=matrices, split=split
        ),
        parameters=parameters,
        saved=saved,
        module=module,
        dtype=run.precision.matmul_dtype if dtype is None else dtype,
    )


def linear_input(
    name: str,
    run: RunShape,
    *,
    width: int,
    shard: Shard,
    dropped_by: str | None = None,
    is_layer_input: bool = False,
    tokens: int | None = None,
    element_bytes: float | None = None,
    serves_input_grad: bool = False,
) -> SavedTensor:
    """The input of a linear layer, which its weight gradient needs; kept as the precision says."""
    return SavedTensor(
        name=name,
        elements=(run.tokens if tokens is None else tokens) * width,
        element_bytes=element_bytes or run.precision.linear_input_bytes,
        shard=shard,
        until=Phase.WEIGHT_GRAD,
        dropped_by=dropped_by,
        is_layer_input=is_layer_input,
        serves_input_grad=serves_input_grad,
    )


def norm(
    name: str,
    run: RunShape,
    *,
    kind: Norm,
    width: int,
    is_layer_input: bool = False,
) -> Operator:
    """A norm over `width` features: keeps its input; with sequence parallelism 1/t of the rows."""
    elements = run.tokens * width
    size = run.precision.activation_bytes * elements / run.sequence_shards
    kept = SavedTensor(
        name=f"{name}.input",
        elements=elements,
        element_bytes=run.precision.activation_bytes,
        shard=Shard.SEQUENCE,
        until=Phase.INPUT_GRAD,
        is_layer_input=is_layer_input,
    )
    return Operator(
        name=name,
        kind=OperatorKind.MEMORY,
        forward=Work(read_bytes=size, written_bytes=size),
        input_grad=Work(read_bytes=2 * size, written_bytes=size),
        parameters=norm_parameters(name, kind=kind, width=width),
        saved=(kept,),
        module=NORM,
    )


def norm_parameters(name: str, *, kind: Norm, width: int) -> tuple[Parameter, ...]:
    """The weight of a norm, and its bias, as far as it has them."""
    if kind is Norm.WITHOUT_WEIGHT:
        return ()
    weight = Parameter(name=f"{name}.weight", count=width)
    if not kind.has_bias:
        return (weight,)
    return (weight, Parameter(name=f"{name}.bias", count=width))


def elementwise(
    name: str,
    run: RunShape,
    *,
    elements: float,
    forward: tuple[float, float],
    backward: tuple[float, float],
    saved: tuple[SavedTensor, ...] = (),
    parameters: tuple[Parameter, ...] = (),
    module: str | None = None,
) -> Operator:
    """A chain of elementwise kernels over `elements` values of one device.

    `forward` and `backward` are (tensors read, tensors written) at activation width.
    """
    size = run.precision.activation_bytes * elements
    return Operator(
        name=name,
        kind=OperatorKind.MEMORY,
        forward=Work(read_bytes=forward[0] * size, written_bytes=forward[1] * size),
        input_grad=Work(read_bytes=backward[0] * size, written_bytes=backward[1] * size),
        parameters=parameters,
        saved=saved,
        module=module,
    )


def weighed(name: str, run: RunShape, factors: Mapping[str, int], *, shard: Shard) -> Operator:
    """The product of "weights" and an "input" of these widths, which keeps both."""
    shards = run.tensor_parallel if shard is Shard.TENSOR else run.sequence_shards
    return elementwise(
        name,
        run,
        elements=run.tokens * factors["input"] / shards,
        forward=(2, 1),
        backward=(3, 2),
        saved=tuple(
            SavedTensor(
                name=f"{name}.{factor}",
                elements=run.tokens * width,
                element_bytes=run.precision.activation_bytes,
                shard=shard,
                until=Phase.INPUT_GRAD,
            )
            for factor, width in factors.items()
        ),
    )


def residual_add(name: str, run: RunShape, *, width: int, dropout: float) -> Operator:
    """Dropout (with a one-byte mask where there is any), then the residual addition.

    Backward adds the gradients of the two branches and applies the mask.
    """
    elements = run.tokens * width
    local = elements / run.sequence_shards
    size = run.precision.activation_bytes * local
    mask = local if dropout > 0 else 0.0
    kept = SavedTensor(
        name=f"{name}.dropout_mask",
        elements=elements,
        element_bytes=1,
        shard=Shard.SEQUENCE,
        until=Phase.INPUT_GRAD,
    )
    return Operator(
        name=name,
        kind=OperatorKind.MEMORY,
        forward=Work(read_bytes=2 * size, written_bytes=size + mask),
        input_grad=Work(read_bytes=2 * size + mask, written_bytes=size),
        saved=(kept,) if dropout > 0 else (),
    )


# The layer graph of a model at one run shape: what precedes what, and what each layer does
# -----------------------------------------------------------------------------------------
# Identical layers share a class, so a model with 126 blocks holds one description of a block.


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerClass:
    """What all layers of one class do, operator by operator in forward order.

    `transient_bytes` is the most that backward needs on one device beside the saved tensors and
    whatever is recomputed: gradients of the widest activations.
    """

    kind: LayerKind
    operators: tuple[Operator, ...]
    exchanges: tuple[Exchange, ...] = ()
    transient_bytes: float = 0.0

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters of all operators."""
        return tuple(p for op in self.operators for p in op.parameters)

    @property
    def saved(self) -> tuple[SavedTensor, ...]:
        """Everything backward needs when nothing is recomputed; each tensor once."""
        named = {tensor.name: tensor for op in self.operators for tensor in op.saved}
        return tuple(named.values())

    @property
    def has_backward(self) -> bool:
        """Whether some gradient is computed; not where all is frozen, up to here."""
        return any(op.input_grad != NO_WORK or op.weight_grad != NO_WORK for op in self.operators)

    @property
    def is_idle(self) -> bool:
        """Whether the layer only holds parameters, as an encoder of images without any does."""
        return all(op.forward == NO_WORK for op in self.operators)

    @property
    def num_parameters(self) -> int:
        """Parameters of the layer over the whole tensor group, shared ones included."""
        return sum(p.count for p in self.parameters)

    @property
    def forward_flops(self) -> float:
        """FLOPs that one device executes in the forward pass of one microbatch."""
        return sum(op.forward.flops for op in self.operators)

    @property
    def model_flops(self) -> float:
        """Forward FLOPs of one microbatch over the whole tensor group, attention in full."""
        return sum(op.model_flops for op in self.operators)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEdge:
    """A tensor from layer index `source` to `target`; `bytes` that each device sends.

    The tensor group sends it in slices, one per device (scatter-gather, or sequence parallel).
    """

    source: int
    target: int
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGraph:
    """Layers as indices into `classes`, the edges between them, and the shape they run at."""

    classes: tuple[LayerClass, ...]
    layers: tuple[int, ...]
    edges: tuple[TensorEdge, ...]
    run: RunShape

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        for index, layer_class in enumerate(self.layers):
            if not 0 <= layer_class < len(self.classes):
                yield Fault(f"layers[{index}]", f"must name a class, got {layer_class}")
        for index, edge in enumerate(self.edges):
            if not 0 <= edge.source < edge.target < len(self.layers):
                yield Fault(f"edges[{index}]", "must lead from a layer to a later one")

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The kind of each layer."""
        return tuple(self.classes[c].kind for c in self.layers)

    @property
    def num_parameters(self) -> int:
        """Parameters of the model; a tensor that several layers share counts once."""
        return sum(p.count for p in self._distinct_parameters())

    @property
    def num_trainable_parameters(self) -> int:
        """Those of them that train."""
        return sum(p.count for p in self._distinct_parameters() if p.trainable)

    @property
    def num_active_parameters(self) -> int:
        """Parameters that one token meets: of the experts the routed share."""
        return sum(p.count if p.active is None else p.active for p in self._distinct_parameters())

    def _distinct_parameters(self) -> Iterator[Parameter]:
        seen: set[str] = set()
        for layer_class in self.layers:
            for parameter in self.classes[layer_class].parameters:
                if parameter.shared is None or parameter.shared not in seen:
                    yield parameter
                if parameter.shared is not None:
                    seen.add(parameter.shared)

    @property
    def forward_flops(self) -> float:
        """FLOPs that the tensor group executes in the forward pass of one microbatch."""
        per_device = [c.forward_flops for c in self.classes]
        return self.run.tensor_parallel * sum(per_device[c] for c in self.layers)

    @property
    def model_flops(self) -> float:
        """Forward FLOPs of one microbatch, attention in full: the basis of MFU (times three)."""
        per_class = [c.model_flops for c in self.classes]
        return sum(per_class[c] for c in self.layers)

    @property
    def model_step_flops(self) -> float:
        """`model_flops` of one microbatch with its gradients; three times it where all trains."""
        per_class = [sum(op.model_step_flops for op in c.operators) for c in self.classes]
        return sum(per_class[c] for c in self.layers)

    def shared_parameters(self) -> dict[str, tuple[int, ...]]:
        """The layers (indices) that hold each shared parameter."""
        names = [[p.shared for p in own.parameters if p.shared is not None] for own in self.classes]
        holders: dict[str, list[int]] = {}
        for index, layer_class in enumerate(self.layers):
            for name in names[layer_class]:
                holders.setdefault(name, []).append(index)
        return {name: tuple(layers) for name, layers in holders.items() if len(layers) > 1}
