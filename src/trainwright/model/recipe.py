"""How a model is trained, beside the degrees: number formats, optimizer, dropout, expert load.

Everything here changes memory or time, and everything has a default that documents can repeat.
Mixed 16-bit training keeps 2 bytes of weight, 4 of gradient and, in Adam, a float32 main weight
and two float32 moments; each of these sizes is an option of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from trainwright.errors import Fault, InvalidInput, one_of, refuse
from trainwright.model.config import Experts, LayerKind, LowRank, TransformerConfig, Tuning
from trainwright.model.feed_forward import FeedForward
from trainwright.model.operator import (
    NO_WORK,
    Exchange,
    LayerClass,
    Operator,
    OperatorKind,
    Parameter,
    Phase,
    SavedTensor,
    Shard,
    Work,
    elementwise,
    linear,
    linear_input,
    work_of_both,
)
from trainwright.model.run_shape import (
    ContextExchange,
    CudaGraph,
    Precision,
    RunShape,
    TokenDispatcher,
    precision_named,
)
from trainwright.provenance import RARE

# CUDA graphs: which operators a run records once and replays, and who records them
# ---------------------------------------------------------------------------------
# A graph starts its kernels with one call of the host and keeps its tensors in a pool of its own,
# which serves nothing else (`step.figures` counts those bytes). Megatron-Core and Transformer
# Engine record each block, or named modules of it, once for every microbatch in flight; or the
# passes of a whole step. Names are Megatron's (`--cuda-graph-impl`, `--cuda-graph-scope`).


# What begins the names of a module's operators. The rest of a block is attention, and the norm
# before a feed-forward part goes with what reads it. `moe_preprocess` counts tokens, which is no
# operator here.
GRAPH_MODULES: Final = MappingProxyType(
    {
        "attn": (),
        "mlp": ("mlp_",),
        "moe": ("mlp_", "router", "permute", "expert_", "unpermute", "shared_"),
        "moe_router": ("mlp_norm", "router", "shared_"),
        "moe_preprocess": (),
        "mamba": ("mixer_",),
    }
)
_NOT_ATTENTION: Final = ("mixer_", *GRAPH_MODULES["moe"])


def graph_faults(kind: CudaGraph, modules: tuple[str, ...]) -> Iterator[Fault]:
    """Modules that are unknown or exclude one another, as Megatron-Core 0.16 checks them."""
    field, given = "cuda_graph_modules", set(modules)
    if modules and not kind.is_per_block:
        yield Fault(field, f"must be left out beside cuda_graph {kind}, which has no modules")
    for name in modules:
        if name not in GRAPH_MODULES:
            yield Fault(field, one_of(GRAPH_MODULES, name))
    if {"moe", "moe_router"} <= given:
        yield Fault(field, "must not name both moe and moe_router, which is part of it")
    if "moe_preprocess" in given and "moe_router" not in given:
        yield Fault(field, "must name moe_router beside moe_preprocess, got that alone")


def model_graph_faults(
    model: TransformerConfig, kind: CudaGraph, modules: tuple[str, ...], *, is_padded: bool
) -> Iterator[Fault]:
    """What of the model cannot be recorded: experts whose tokens differ from step to step."""
    if kind is CudaGraph.NONE:
        return
    experts, whole = model.experts is not None, kind.is_per_block and not modules
    if experts and not is_padded and (whole or "moe" in modules):
        field = "cuda_graph" if whole else "cuda_graph_modules"
        known = "numbers of tokens are not known when it is recorded"
        yield Fault(field, f"must leave experts out, whose {known}, or needs a capacity_factor")
    if not experts and {"moe", "moe_router"} & set(modules):
        yield Fault("cuda_graph_modules", "must not name experts of a model that has none")


def is_recorded(operator: Operator, kind: CudaGraph, modules: tuple[str, ...]) -> bool:
    """Whether an operator of a block runs inside a graph."""
    if kind is CudaGraph.NONE or not modules:
        return kind is not CudaGraph.NONE
    if "attn" in modules and not operator.name.startswith(_NOT_ATTENTION):
        return True
    return any(operator.name.startswith(GRAPH_MODULES[module]) for module in modules)


# Modules of blocks whose activations lie on the host, of all that blocks keep
# ----------------------------------------------------------------------------
# Megatron-Core moves what autograd keeps while a module runs (`--fine-grained-activation-offloading
# --offload-modules`, from 0.16 on; fine_grained_activation_offload.py and the callers of its
# `off_interface`): in every layer, tensor by tensor, with those that another module keeps as well.


# Which kept tensors lie on the host where a module is named. The norm before attention is part of
# the product behind it unless that makes latents; a norm before a dense feed-forward part is part
# of its first product, which is no module.
OFFLOAD_MODULES: Final = MappingProxyType(
    {
        "attn_norm": ("attention_norm.input",),
        "qkv_linear": (
            *("attention_norm.output", "query_key_value.input", "query_key_norm.input"),
            *("query_latent_norm.input", "query_up.input"),
            *("key_value_latent_norm.input", "key_value_up.input"),
        ),
        "core_attn": (
            *("query", "key", "value"),
            *("softmax.output", "softmax.dropout_mask", "softmax.dropout_output"),
        ),
        "attn_proj": ("attention_output.input",),
        "mlp_norm": ("mlp_norm.input",),
        "expert_fc1": ("expert_in.input",),
        "moe_act": ("expert_activation.input",),
    }
)
# Kernels of attention keep their output, which the product behind them holds on its own.
_COPIED_BESIDE: Final = MappingProxyType({"core_attn": ("attention_output.input",)})
_OF_EXPERTS: Final = frozenset({"mlp_norm", "expert_fc1", "moe_act"})


def offload_module_faults(modules: tuple[str, ...]) -> Iterator[Fault]:
    """Modules that are unknown or lack another, as Megatron-Core 0.16 checks them."""
    for name in modules:
        if name not in OFFLOAD_MODULES:
            yield Fault("offload_modules", one_of(OFFLOAD_MODULES, name))
    if "attn_proj" in modules and "core_attn" not in modules:
        problem = "must name core_attn beside attn_proj, whose input its backward needs, too"
        yield Fault("offload_modules", problem)


def model_module_faults(model: TransformerConfig, modules: tuple[str, ...]) -> Iterator[Fault]:
    """Modules that the model has not, so that nothing of theirs would move."""
    absent = [] if model.experts is not None else [m for m in modules if m in _OF_EXPERTS]
    if absent:
        problem = f"must not name {', '.join(absent)} of a model without experts"
        yield Fault("offload_modules", problem)
    if "attn_norm" in modules and model.latent is None:
        yield Fault(
            "offload_modules",
            "must not name attn_norm, which is part of qkv_linear but for latent attention",
        )


def moved_tensors(
    layer: LayerClass, modules: tuple[str, ...]
) -> tuple[frozenset[str], frozenset[str]]:
    """Tensors that modules of a layer leave on the host, and those they copy there beside these."""
    kept = {tensor.name for tensor in layer.saved}
    found = {name for module in modules for name in OFFLOAD_MODULES[module]}
    if "qkv_linear" in modules and "attention_norm.output" not in kept:
        found.add("attention_norm.input")
    if not any(operator.name == "router" for operator in layer.operators):
        found -= {"mlp_norm.input"}
    beside = (name for module in modules for name in _COPIED_BESIDE.get(module, ()))
    return frozenset(found & kept), frozenset(kept.intersection(beside))


def recorded_share(layer: LayerClass, kind: CudaGraph, modules: tuple[str, ...]) -> float:
    """The share of a block's operators that the host need not start one by one."""
    inside = sum(is_recorded(op, kind, modules) for op in layer.operators)
    return inside / max(1, len(layer.operators))


# Bytes per number of the formats in which states can be kept.
STATE_BYTES: Final = MappingProxyType({"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1})
# Fields of a recipe that keeps weights, gradients and moments in 16 bit, with no copy in float32.
ALL_IN_16_BIT: Final[Mapping[str, Any]] = MappingProxyType(
    {"main_weight_dtype": "none", "gradient_dtype": "bf16", "moment_dtypes": ("bf16",)}
)
# Of those that PyTorch's own updates keep moments in.
_OF_PYTORCH: Final = frozenset({"fp32", "bf16", "fp16"})
# Of those in which tokens can travel to experts; in 8 bit with a float32 scale per 128 numbers, as
# DeepSeek-V3 (2024, section 3.3) and its communication library have it.
DISPATCH_BYTES: Final = MappingProxyType(
    {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1 + 4 / 128}
)
# Of those in which the input of a feed-forward activation can wait for its backward.
KEPT_BYTES: Final = MappingProxyType({"fp8": 1.0, "bf16": 2.0})
# Load of the heaviest expert over the mean where a loss, or a bias of its own, keeps loads even:
# 1 + MaxVio over a validation set, 64 experts, 1 billion parameters (Wang et al., "Auxiliary-Loss-
# Free Load Balancing", 2024, table 2; 1.52 and 1.04 with 3 billion).
BALANCES: Final = MappingProxyType({"auxiliary_loss": 1.72, "loss_free": 1.04})
_LARGEST_LOAD: Final = 10**6  # of an expert over the mean: more experts than any model has


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Shares, from 0 to 1, of what lies in the memory of the host between its uses.

    `activations` of what blocks keep for their backward pass; `optimizer` of the optimizer's
    states, which the host then updates; `gradients` of those that a device would hold for the
    update; `weights` of the shards of ZeRO-3, which come to the device with each layer that runs.
    """

    activations: float = 0.0
    optimizer: float = 0.0
    gradients: float = 0.0
    weights: float = field(default=0.0, metadata={RARE: True})

    def __post_init__(self) -> None:
        refuse(tuple(self._faults()))

    def _faults(self) -> Iterator[Fault]:
        for each in fields(self):
            if not 0 <= (share := getattr(self, each.name)) <= 1:
                yield Fault(f"offload.{each.name}", f"must be from 0 to 1, got {share!r}")

    @property
    def holds_states(self) -> bool:
        """Whether anything of weights, gradients or the optimizer's states lies there."""
        return self.optimizer + self.gradients + self.weights > 0

    @property
    def in_words(self) -> str:
        """What lies there, as a list."""
        held = {each.name: getattr(self, each.name) for each in fields(self)}
        return ", ".join(
            name if share == 1 else f"{share:.0%} of {name}"
            for name, share in held.items()
            if share
        )


NO_OFFLOAD: Final = Offload()


class Optimizer(StrEnum):
    """An optimizer, for the moments it keeps per parameter.

    ADAFACTOR keeps sums over rows and columns of the second moment alone, some thousandth of a
    number per parameter (Shazeer and Stern, 2018, without momentum, as transformers has it); LION
    one moment (Chen et al., 2023). MUON keeps one of matrices inside the blocks and leaves
    embedding and head to Adam (Jordan et al., 2024).
    """

    ADAM = "adam"
    SGD = "sgd"
    MOMENTUM = "momentum"
    MUON = "muon"
    LION = "lion"
    ADAFACTOR = "adafactor"

    @property
    def num_moments(self) -> int:
        """Running averages per parameter of a block."""
        none = (Optimizer.SGD, Optimizer.ADAFACTOR)
        return 2 if self is Optimizer.ADAM else int(self not in none)


# Parts of the names that PyTorch, transformers, bitsandbytes, DeepSpeed and Composer give to
# optimizers; the first that is found decides. AdamW decays weights, and keeps what Adam does.
_OPTIMIZERS: Final = (
    ("muon", Optimizer.MUON),
    ("adafactor", Optimizer.ADAFACTOR),
    ("lion", Optimizer.LION),
    ("adagrad", Optimizer.MOMENTUM),
    ("momentum", Optimizer.MOMENTUM),
    ("sgd", Optimizer.SGD),
    ("adam", Optimizer.ADAM),
)


def optimizer_named(name: str) -> tuple[Optimizer, str | None] | None:
    """What a name as `paged_adamw_8bit` keeps, and in which format; None where nobody knows it.

    States of 8 bit are numbers with a float32 for each 256 of them (Dettmers et al., 2022), which
    is left out. Those of 32 bit are float32 whatever the weights are (bitsandbytes, `init_state`).
    Paged states lie on the device while there is room.
    """
    word = name.lower().rpartition(".")[2]
    kind = next((known for part, known in _OPTIMIZERS if part in word), None)
    if kind is None:
        return None
    eight, whole = re.search(r"8_?bit", word), re.search(r"32_?bit|^paged_adamw$", word)
    return kind, "int8" if eight else "fp32" if whole else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One way to train. Absent fields take the default of what they qualify.

    `precision` is the 16-bit format of the device where absent. `gradient_dtype` is that of the
    gradient accumulator, float32 where absent; `reduce_dtype` of gradients while they are summed
    over replicas, that of the accumulator where absent; `main_weight_dtype` of the copy the
    optimizer updates ("none" without one; float32 where absent, none beside float32 weights);
    `moment_dtypes` of the optimizer's moments, one for all or one each. `dispatch_dtype` is that in
    which tokens travel to their experts, and gradients to them in the backward pass; that of
    activations where absent, as is what comes back from experts in both passes.
    `activation_input_dtype` is what the input of a feed-forward activation waits in for its
    backward; as it came where absent. Without a `fused_update` PyTorch's Adam makes the roots of
    all second moments at once; with `update_in_backward` each weight is updated as its gradient
    comes, which goes then. `dropout` replaces the model's rates; `offload` lies on the host,
    nothing where absent, and of activations those of `offload_modules` alone where any is named.
    The rest is described at `RunShape`.
    """

    precision: str | None = None
    optimizer: Optimizer = Optimizer.ADAM
    gradient_dtype: str | None = None
    reduce_dtype: str | None = field(default=None, metadata={RARE: True})
    main_weight_dtype: str | None = None
    moment_dtypes: tuple[str, ...] = ("fp32",)
    dropout: float | None = None
    context_exchange: ContextExchange = ContextExchange.RING
    ulysses: int | None = None
    context_balanced: bool = True
    expert_imbalance: float = 1.0
    expert_loads: tuple[float, ...] = ()
    capacity_factor: float | None = None
    dispatch_dtype: str | None = None
    token_dispatcher: TokenDispatcher = TokenDispatcher.ALL_TO_ALL
    activation_input_dtype: str | None = None
    fused_update: bool = field(default=True, metadata={RARE: True})
    update_in_backward: bool = field(default=False, metadata={RARE: True})
    loss_chunk: int | None = None
    mlp_tile: int | None = None
    offload: Offload | None = None
    offload_modules: tuple[str, ...] = field(default=(), metadata={RARE: True})
    cuda_graph: CudaGraph = field(default=CudaGraph.NONE, metadata={RARE: True})
    cuda_graph_modules: tuple[str, ...] = field(default=(), metadata={RARE: True})

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        given = [("gradient_dtype", self.gradient_dtype), ("main_weight_dtype", self._main_copy)]
        given.append(("reduce_dtype", self.reduce_dtype))
        given += [("moment_dtypes", dtype) for dtype in self.moment_dtypes]
        for name, dtype in given:
            if dtype is not None and dtype not in STATE_BYTES:
                yield Fault(name, one_of(STATE_BYTES, dtype))
        if self.dispatch_dtype is not None and self.dispatch_dtype not in DISPATCH_BYTES:
            yield Fault("dispatch_dtype", one_of(DISPATCH_BYTES, self.dispatch_dtype))
        both = self.context_exchange is ContextExchange.ALL_TO_ALL_RING
        if both != (self.ulysses is not None):
            given_degree = "is missing" if both else f"got {self.ulysses}"
            wanted = f"must be given with context_exchange {ContextExchange.ALL_TO_ALL_RING} alone"
            yield Fault("ulysses", f"{wanted}, {given_degree}")
        elif self.ulysses is not None and self.ulysses < 1:
            yield Fault("ulysses", f"must be >= 1, got {self.ulysses}")
        if self.activation_input_dtype not in (None, *KEPT_BYTES):
            problem = one_of(KEPT_BYTES, self.activation_input_dtype)
            yield Fault("activation_input_dtype", problem)
        if len(self.moment_dtypes) not in (1, max(1, self.optimizer.num_moments)):
            wanted = f"must be 1 format or one for each of {self.optimizer.num_moments} moments"
            yield Fault("moment_dtypes", f"{wanted}, got {len(self.moment_dtypes)}")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            yield Fault("dropout", f"must be in [0, 1), got {self.dropout!r}")
        if not 1 <= self.expert_imbalance <= _LARGEST_LOAD:
            wanted = f"must be from 1 to {_LARGEST_LOAD}"
            yield Fault("expert_imbalance", f"{wanted}, got {self.expert_imbalance!r}")
        yield from self._load_faults()
        if self.capacity_factor is not None and not 0 < self.capacity_factor <= _LARGEST_LOAD:
            wanted = f"must be > 0 and at most {_LARGEST_LOAD}"
            yield Fault("capacity_factor", f"{wanted}, got {self.capacity_factor!r}")
        yield from graph_faults(self.cuda_graph, self.cuda_graph_modules)
        yield from offload_module_faults(self.offload_modules)
        for name in ("loss_chunk", "mlp_tile"):
            if (tokens := getattr(self, name)) is not None and tokens < 1:
                yield Fault(name, f"must be >= 1 token, got {tokens}")

    def _load_faults(self) -> Iterator[Fault]:
        """Loads are of tokens, and stand in place of one figure for all of them."""
        loads = self.expert_loads
        if loads and self.expert_imbalance != 1:
            problem = "must be left out beside expert_imbalance, which says how uneven groups are"
            yield Fault("expert_loads", problem)
        if any(not 0 <= load < float("inf") for load in loads) or (loads and not any(loads)):
            yield Fault("expert_loads", "must be finite and >= 0, and not all 0")
        elif len(loads) == 1 and loads[0] < 1:
            wanted = (
                "must be >= 1 where it is one number, that of the heaviest expert over the mean"
            )
            yield Fault("expert_loads", f"{wanted}, got {loads[0]!r}")

    @property
    def run_fields(self) -> dict[str, Any]:
        """The fields of a `RunShape` that are decided here, beside its precision."""
        held = self.offload or NO_OFFLOAD
        return {
            "context_exchange": self.context_exchange,
            "ulysses": self.ulysses,
            "context_balanced": self.context_balanced,
            "expert_imbalance": self.expert_imbalance,
            "expert_loads": self.expert_loads,
            "capacity_factor": self.capacity_factor,
            "token_dispatcher": self.token_dispatcher,
            "activation_input_bytes": KEPT_BYTES.get(self.activation_input_dtype or ""),
            "loss_chunk": self.loss_chunk,
            "mlp_tile": self.mlp_tile,
            "offloaded_activations": held.activations,
            "offloaded_modules": self.offload_modules,
            "cuda_graph": self.cuda_graph,
            "cuda_graph_modules": self.cuda_graph_modules,
        }

    @property
    def update_copy_bytes(self) -> float:
        """What an update makes for each parameter that it changes, beside its states.

        Source: torch/optim/adam.py, _multi_tensor_adam, from PyTorch 2.1 on; before, a copy more.
        """
        last = self.moment_dtypes[-1]
        at_once = not (self.fused_update or self.update_in_backward)
        makes = self.optimizer is Optimizer.ADAM and at_once
        return STATE_BYTES[last] if makes and last in _OF_PYTORCH else 0.0

    @property
    def dispatches_once(self) -> bool:
        """Whether one copy of a token serves all experts of a unit of devices."""
        return self.token_dispatcher is TokenDispatcher.HIERARCHICAL

    @property
    def dispatch_in_words(self) -> str:
        """How tokens travel to their experts."""
        copies = (
            "a copy per node, passed on inside" if self.dispatches_once else "a copy per expert"
        )
        return f"{copies}, in {self.dispatch_dtype or 'the format of activations'}"

    @property
    def _main_copy(self) -> str | None:
        return None if self.main_weight_dtype == "none" else self.main_weight_dtype

    def numbers(self, precision: str) -> Precision:
        """Bytes per element under this recipe, for the precision of the run.

        Raises `UnsupportedFeature` where the precision is not modelled.
        """
        base = precision_named(precision)
        main = self.main_weight_dtype or ("fp32" if base.weight_bytes < 4 else "none")
        states = 0 if main == "none" else STATE_BYTES[main]
        moments = self.moment_dtypes
        if len(moments) == 1:
            moments *= self.optimizer.num_moments
        states += sum(STATE_BYTES[dtype] for dtype in moments[: self.optimizer.num_moments])
        ends = STATE_BYTES[moments[0]] if self.optimizer is Optimizer.MUON else 0
        gradient, dispatch = self.gradient_dtype, self.dispatch_dtype
        reduced = self.reduce_dtype
        offload = self.offload or NO_OFFLOAD
        return replace(
            base,
            dispatch_bytes=base.dispatch_bytes if dispatch is None else DISPATCH_BYTES[dispatch],
            gradient_bytes=base.gradient_bytes if gradient is None else STATE_BYTES[gradient],
            reduced_bytes=None if reduced is None else STATE_BYTES[reduced],
            optimizer_bytes=states,
            end_state_bytes=ends,
            held_gradients=0.0 if self.update_in_backward else 1 - offload.gradients,
            held_states=1 - offload.optimizer,
            held_weights=1 - offload.weights,
        )

    def applied(self, model: TransformerConfig) -> TransformerConfig:
        """The model with the dropout of this recipe."""
        if self.dropout is None:
            return model
        return replace(model, hidden_dropout=self.dropout, attention_dropout=self.dropout)


DEFAULT_RECIPE: Final = Recipe()


def unusual(recipe: Recipe) -> Iterator[str]:
    """The fields that ask for something else than their default does."""
    for each in fields(recipe):
        said = getattr(recipe, each.name)
        if each.name == "moment_dtypes":
            said = tuple(dict.fromkeys(said))
        if said not in (each.default, NO_OFFLOAD):
            yield each.name


# Low-rank adapters as operators beside the products they adapt (see `tuning`)
# ----------------------------------------------------------------------------


# Takes out of a chain of layers what freezing saves: gradients, their collectives, tensors
# -----------------------------------------------------------------------------------------

ADAPTER_MARK = ".adapter_"
EXPERT_MARK = "expert_"  # before the targets of routed experts


def frozen_chain(chain: list[LayerClass], tuning: Tuning) -> list[LayerClass]:
    """The chain with what `tuning` freezes; layers that stay identical stay one object."""
    made: dict[tuple[int, bool, bool], tuple[LayerClass, bool]] = {}
    tuned, reached, block = [], False, 0
    for layer in chain:
        own = block if layer.kind is LayerKind.BLOCK else None
        block += layer.kind is LayerKind.BLOCK
        below = own is not None and own < tuning.num_frozen_blocks
        key = (id(layer), reached, below)
        if key not in made:
            made[key] = _frozen_layer(layer, tuning, block=own, reached=reached)
        made_layer, reached = made[key]
        tuned.append(made_layer)
    return tuned


def _frozen_layer(
    layer: LayerClass, tuning: Tuning, *, block: int | None, reached: bool
) -> tuple[LayerClass, bool]:
    """The layer, and whether gradients flow back into what it gives out."""
    before, operators = reached, []
    for operator in layer.operators:
        adapter = ADAPTER_MARK in operator.name
        frozen = not adapter and tuning.freezes(layer.kind, block, operator.name)
        if frozen and tuning.low_rank is not None and layer.kind is LayerKind.BLOCK:
            operator = _quantized(operator, tuning.low_rank.few_bits)
        operators.append(_frozen_operator(operator, frozen=frozen, reached=reached))
        reached = reached or any(p.trainable for p in operators[-1].parameters)
    tuned = replace(
        layer,
        operators=tuple(operators),
        exchanges=tuple(x for x in layer.exchanges if _is_needed(x, operators, reached)),
        transient_bytes=layer.transient_bytes if reached else 0.0,
    )
    return (tuned if tuned != layer else layer), (reached or before)


# Bytes of a weight in blocks with scaling constants: 4 bit (NF4) a float32 for each 64, themselves
# in 8 bit with a float32 for each 256, 4.127 bits in all (Dettmers et al., QLoRA, 2023, section 3);
# 8 bit a 16-bit constant for each row (Dettmers et al., LLM.int8(), 2022), less than a percent.
QUANTIZED_BYTES: Final = {4: (4 + 8 / 64 + 32 / (64 * 256)) / 8, 8: 1.0}


def _quantized(operator: Operator, bits: int | None) -> Operator:
    """A product with its weights in few bits, which it expands to 16 whenever it runs.

    A product that runs in 8 bit itself takes 8-bit weights as they are.
    """
    if bits is None or operator.matrix is None or operator.name == "router":
        return operator
    parameters = tuple(
        replace(p, kept_bytes=QUANTIZED_BYTES[bits]) if p.name.endswith(".weight") else p
        for p in operator.parameters
    )
    operator = replace(operator, parameters=parameters)
    if bits == _MULTIPLIED_BITS and operator.dtype == "fp8":
        return operator
    return expanding(operator)


def expanding(operator: Operator) -> Operator:
    """The operator with the traffic of expanding those of its weights that are kept in few bits.

    A kernel of its own does that before the product (bitsandbytes, `MatMul4Bit`: `dequantize_4bit`,
    then `linear`, in both passes), so that no compute of the product hides it.
    """
    kept = [p for p in operator.parameters if p.kept_bytes is not None]
    if not kept:
        return operator
    expanded = Work(
        read_bytes=sum((p.kept_bytes or 0.0) * p.count_per_device for p in kept),
        written_bytes=_EXPANDED_BYTES * sum(p.count_per_device for p in kept),
    )
    return replace(
        operator,
        forward=work_of_both(operator.forward, expanded),
        input_grad=work_of_both(operator.input_grad, expanded),
        expanded_bytes=expanded.bytes,
    )


_EXPANDED_BYTES: Final = 2
_MULTIPLIED_BITS: Final = 8


def _frozen_operator(operator: Operator, *, frozen: bool, reached: bool) -> Operator:
    if frozen:
        parameters = tuple(replace(p, trainable=False) for p in operator.parameters)
        operator = replace(operator, parameters=parameters, weight_grad=NO_WORK)
    trains = any(p.trainable for p in operator.parameters)
    if not reached and (not trains or operator.kind is OperatorKind.GEMM):
        operator = replace(operator, input_grad=NO_WORK)
    saved = tuple(t for t in operator.saved if _is_kept(t, operator, trains, reached))
    return replace(operator, saved=saved)


def _is_kept(tensor: SavedTensor, operator: Operator, trains: bool, reached: bool) -> bool:
    """Whether some gradient of the operator still needs the tensor."""
    if trains and operator.weight_grad != NO_WORK and tensor.until is Phase.WEIGHT_GRAD:
        return True
    if tensor.is_layer_input or tensor.serves_input_grad or tensor.until is Phase.INPUT_GRAD:
        return reached or (trains and operator.kind is not OperatorKind.GEMM)
    return False


def _is_needed(exchange: Exchange, tuned: list[Operator], reached: bool) -> bool:
    """Forward collectives all are; those of gradients where there are gradients."""
    if exchange.phase is Phase.FORWARD:
        return True
    by_name = {op.name: op for op in tuned}
    if exchange.phase is Phase.WEIGHT_GRAD:
        return any(op.weight_grad != NO_WORK for op in tuned)
    hider = exchange.hides_under
    if exchange.axis == "tensor" and hider is not None:
        # The input of a product, gathered again for its weight gradient.
        return by_name[hider].weight_grad != NO_WORK
    return reached


# Low-rank adapters as operators beside the products they adapt (see `tuning`)
# ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A target: the operator whose product it is part of, and its own inputs and outputs.

    Of routed `experts` each has an adapter of its own.
    """

    operator: str
    inputs: int
    outputs: int
    experts: Experts | None = None


def adapted_chain(
    chain: list[LayerClass], config: TransformerConfig, low_rank: LowRank, run: RunShape
) -> list[LayerClass]:
    """The chain with adapters; raises `InvalidInput` for a target that no layer has."""
    distinct, kinds = {id(layer): layer for layer in chain}, _kinds(chain, config)
    parts = {key: tuple(_parts(kinds[key], layer)) for key, layer in distinct.items()}
    offered = offered_targets(chain, config)
    if missing := [target for target in low_rank.targets if target not in offered]:
        known = ", ".join(sorted(offered))
        raise InvalidInput.of(
            "tuning.low_rank.targets", f'must be of {known} for this model, got "{missing[0]}"'
        )
    made = {key: _adapted(layer, parts[key], low_rank, run) for key, layer in distinct.items()}
    return [made[id(layer)] for layer in chain]


def offered_targets(chain: list[LayerClass], config: TransformerConfig) -> tuple[str, ...]:
    """The products of a chain that an adapter can lie beside, by name."""
    distinct, kinds = {id(layer): layer for layer in chain}, _kinds(chain, config)
    return tuple(
        sorted({n for key, layer in distinct.items() for n, _ in _parts(kinds[key], layer)})
    )


def _kinds(chain: list[LayerClass], config: TransformerConfig) -> dict[int, TransformerConfig]:
    """The sizes of each layer, by its identity: blocks may differ, an encoder has its own."""
    places = {
        LayerKind.BLOCK: [(config, at) for at in range(config.num_layers)],
        LayerKind.ENCODER_BLOCK: [
            (tower.stack, at) for tower in config.towers for at in range(tower.stack.num_layers)
        ],
    }
    found: dict[int, TransformerConfig] = {}
    met = dict.fromkeys(places, 0)
    for layer in chain:
        if layer.kind not in places:
            found[id(layer)] = config
            continue
        owner, at = places[layer.kind][met[layer.kind]]
        met[layer.kind] += 1
        if id(layer) not in found:
            found[id(layer)] = owner.block(at)
    return found


def _adapted(
    layer: LayerClass, parts: tuple[tuple[str, _Part], ...], low_rank: LowRank, run: RunShape
) -> LayerClass:
    wanted = [found for found in parts if found[0] in low_rank.targets]
    if not wanted:
        return layer
    operators: list[Operator] = []
    for operator in layer.operators:
        operators.append(operator)
        for name, part in wanted:
            if part.operator == operator.name:
                operators += _adapter(name, part, operator, low_rank, run)
    return replace(layer, operators=tuple(operators))


def _parts(config: TransformerConfig, layer: LayerClass) -> Iterator[tuple[str, _Part]]:
    """The targets that a layer has, by name; those of an encoder of images begin with `encoder_`.

    An encoder that sees no images has none.
    """
    mark = "encoder_" if layer.kind is LayerKind.ENCODER_BLOCK else ""
    h = config.hidden_size
    present = {op.name for op in layer.operators if op.matrix is not None}

    def part(operator: str, inputs: int, outputs: int) -> _Part:
        return _Part(operator=operator, inputs=inputs, outputs=outputs)

    out = config.attention_output_size
    if (own := config.compressed) is not None:
        out = own.output_groups * own.output_rank
    keys, values = config.projected_sizes
    sizes = {"query": config.query_size, "key": keys, "value": values}
    candidates = [(name, part("query_key_value", h, size)) for name, size in sizes.items() if size]
    candidates.append(("attention_output", part("attention_output", out, h)))
    if own is not None:
        candidates += [
            ("query_down", part("query_down", h, own.query_rank)),
            ("query_up", part("query_up", own.query_rank, config.query_size)),
            ("key_value_down", part("key_value_down", h, config.head_size)),
        ]
    if config.crosses:  # attention to the encoder has products of the same names
        given = config.towers[0].stack.hidden_size
        candidates += [
            ("query", part("cross_query", h, config.query_size)),
            ("key", part("cross_key_value", given, keys)),
            ("value", part("cross_key_value", given, values)),
            ("attention_output", part("cross_output", out, h)),
        ]
    if (latent := config.latent) is not None:
        rank, narrow = latent.query_rank or h, latent.key_value_rank
        expanded = config.num_heads * (latent.plain_head_size + latent.value_head_size)
        candidates += [
            ("query", part("query", h, config.query_size)),
            ("query_down", part("query_down", h, rank)),
            ("query_up", part("query_up", rank, config.query_size)),
            ("key_value_down", part("key_value_down", h, narrow + latent.rotary_head_size)),
            ("key_value_up", part("key_value_up", narrow, expanded)),
        ]
    candidates.append(("attention_gate", part("attention_gate", h, config.attention_gate)))
    candidates.append(("receptance", part("mlp_receptance", h, h)))
    widths = {FeedForward.MLP: config.ffn_size}
    if (experts := config.experts) is not None:
        widths[FeedForward.SHARED_EXPERT] = experts.shared_ffn_size
        inner, routed = experts.ffn_size, experts.latent_size or h
        first, last = FeedForward.EXPERT.first, FeedForward.EXPERT.last
        each = {"up": (first, routed, inner), "down": (last, inner, routed)}
        if config.gated:
            each["gate"] = each["up"]
        for name, (operator, inputs, outputs) in each.items():
            own_part = _Part(operator=operator, inputs=inputs, outputs=outputs, experts=experts)
            candidates.append((f"{EXPERT_MARK}{name}", own_part))
    for pair, width in widths.items():
        if config.gated:
            candidates.append(("gate", part(pair.first, h, width)))
        candidates.append(("up", part(pair.first, h, width)))
        candidates.append(("down", part(pair.last, width, h)))
    if config.mixer is not None:
        for product in config.mixer.products(h):
            if product.inputs == h:
                found = part(f"mixer_{product.name}", h, product.outputs)
                candidates.append(("mixer_in", found))
        candidates.append(("mixer_out", part("mixer_out", config.mixer.output_size, h)))
    yield from ((mark + name, each) for name, each in candidates if each.operator in present)


def _adapter(
    target: str, part: _Part, beside: Operator, low_rank: LowRank, run: RunShape
) -> tuple[Operator, ...]:
    """x A, its product with B, and the sum with what the frozen product gave."""
    assert beside.matrix is not None
    split, r, experts = beside.matrix.split, low_rank.rank, part.experts
    t = run.tensor_parallel if experts is None else run.expert_shards
    rows = run.tokens if experts is None else _routed_rows(run, experts)
    name = f"{beside.name}{ADAPTER_MARK}{target}"
    beside_experts: dict[str, Any] = {}
    if experts is not None:
        beside_experts = {
            "tokens": rows,
            "shards": t,
            "model_tokens": experts.experts_per_token * run.tokens,
            "matrices": beside.matrix.matrices,
        }

    def matrix(letter: str, count: int, shards: int) -> Parameter:
        if experts is None:
            return Parameter(name=f"{name}_{letter}.weight", count=count, shards=shards)
        return Parameter(
            name=f"{name}_{letter}.weight",
            count=experts.num_experts * count,
            shards=shards * run.expert_parallel,
            expert=True,
            active=experts.experts_per_token * count,
        )

    into = linear(
        f"{name}_a",
        run,
        inputs=part.inputs,
        outputs=r,
        split="none" if split == "column" else split,
        parameters=(matrix("a", part.inputs * r, t if split == "row" else 1),),
        saved=_kept_input(beside, part, low_rank, run, name),
        **beside_experts,
    )
    inner = Shard.SEQUENCE if split == "sequence" else Shard.REPLICATED
    out = linear(
        f"{name}_b",
        run,
        inputs=r,
        outputs=part.outputs,
        split="none" if split == "row" else split,
        parameters=(matrix("b", r * part.outputs, t if split == "column" else 1),),
        saved=(linear_input(f"{name}_b.input", run, width=r, shard=inner, tokens=rows),),
        **beside_experts,
    )
    shards = {"column": t, "sequence": run.sequence_shards}.get(split, 1)
    elements = rows * part.outputs / shards
    added = elementwise(f"{name}_sum", run, elements=elements, forward=(2, 1), backward=(0, 0))
    return (into, out, added)


def _routed_rows(run: RunShape, experts: Experts) -> int:
    """Token copies that the experts of one device see."""
    return run.expert_rows(experts.experts_per_token, experts.num_experts)


def _kept_input(
    beside: Operator, part: _Part, low_rank: LowRank, run: RunShape, name: str
) -> tuple[SavedTensor, ...]:
    """The input that the product itself would keep; with dropout a copy and its mask."""
    own = tuple(tensor for tensor in beside.saved if tensor.until is Phase.WEIGHT_GRAD)
    if not low_rank.dropout:
        return own
    shard = own[0].shard if own else Shard.SEQUENCE
    rows = None if part.experts is None else _routed_rows(run, part.experts)
    copy = linear_input(f"{name}_a.input", run, width=part.inputs, shard=shard, tokens=rows)
    mask = replace(copy, name=f"{name}_a.dropout_mask", element_bytes=1, serves_input_grad=True)
    return (copy, mask)
