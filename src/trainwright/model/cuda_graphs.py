"""CUDA graphs: which operators a run records once and replays, and who records them.

A graph starts its kernels with one call of the host and keeps its tensors in a pool of its own,
which serves nothing else (`step.figures` counts those bytes). Megatron-Core and Transformer Engine
record each block, or named modules of it, once for every microbatch in flight; or the passes of a
whole step. Names are Megatron's (`--cuda-graph-impl`, `--cuda-graph-scope`).
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from trainwright.errors import Fault
from trainwright.model.run_shape import CudaGraph

if TYPE_CHECKING:
    from trainwright.model.config import TransformerConfig
    from trainwright.model.operator import LayerClass, Operator


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
            yield Fault(field, f'must name {", ".join(GRAPH_MODULES)}, got "{name}"')
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


def recorded_share(layer: LayerClass, kind: CudaGraph, modules: tuple[str, ...]) -> float:
    """The share of a block's operators that the host need not start one by one."""
    inside = sum(is_recorded(op, kind, modules) for op in layer.operators)
    return inside / max(1, len(layer.operators))
