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

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from trainwright.model.routing import Routing
from trainwright.model.run_shape import RunShape

ATTENTION_CORE: Final = "attention_core"
NORM: Final = "norm"
MLP_ACTIVATION: Final = "mlp_activation"
LATENT_UP_PROJECTION: Final = "latent_up_projection"
RECOMPUTE_MODULES: Final = (ATTENTION_CORE, NORM, MLP_ACTIVATION, LATENT_UP_PROJECTION)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """`count` parameters of the model, of which each device holds `count / shards`.

    Parameters of one `shared` name are the same tensor in several layers (tied embeddings);
    `expert` ones are sharded and synchronised over the expert group, and a token meets `active` of
    them. What is not `trainable` has no gradient and no optimizer state.
    """

    name: str
    count: int
    shards: int = 1
    expert: bool = False
    active: int | None = None
    shared: str | None = None
    trainable: bool = True

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
    element_bytes: int
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
    is the shape of a product with weights, None for every other operator.
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
    in the same phase may hide it, up to `hidden_share` of that work.
    """

    axis: str  # "tensor", "context", "expert", "expert_tensor"
    kind: str  # "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "ring"
    bytes: float
    phase: Phase
    hides_under: str | None = None
    hidden_share: float = 1.0
    routing: Routing | None = None
