"""A layer graph from any `torch.nn.Module`, without computing anything (extra `[torch]`).

The module lives on the meta device, where tensors have shapes and no content. One pass over the
whole finds the *units* (repeated blocks, and what stands before and after them) in the order in
which they run. Then each distinct unit runs once more by itself, so that its gradients, and what it
keeps for them, cannot be mistaken for another's:

    forward          FLOPs of every matrix product (the formulas of torch's `FlopCounterMode`)
    input gradient   FLOPs of the gradients of its inputs alone
    weight gradient  what the gradients of inputs and parameters need beyond that
    kept tensors     `saved_tensors_hooks`, one entry per storage, parameters and buffers apart

Attention is taken for a fused kernel, which keeps query, key, value, output and a statistic. Model
FLOPs follow the convention of MFU: a causal mask halves nothing. Products that torch does not count
would leave a model too light, so weights that meet activations in a kernel without a formula are an
error. What runs outside of all units (a loss, a tied head applied by hand) becomes a last layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainwright.errors import Fault, MissingExtra, refuse
from trainwright.model import LayerGraph, RunShape

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedModel:
    """A traced module: its graph, the name of each layer, and units that were never called."""

    graph: LayerGraph
    names: tuple[str, ...]
    unused: tuple[str, ...] = ()


def trace_module(
    module: torch.nn.Module, arguments: Mapping[str, Any], *, run: RunShape
) -> TracedModel:
    """Trace `module(**arguments)`; `run` says which microbatch the arguments are, on one device.

    Module and arguments must be on the meta device: build the module under
    `torch.device("meta")`. Raises `MissingExtra` without torch, `InvalidInput` where something is
    on another device or the forward pass fails, `UnsupportedFeature` where the pass needs values or
    multiplies by weights in a way that nothing counts.
    """
    try:
        from trainwright.lab.torch_graph import find_units, run_whole, traced_graph
    except ImportError as error:
        raise MissingExtra("tracing a module needs PyTorch", extra="torch") from error
    refuse(_off_meta(module, arguments))
    units = find_units(module)
    whole = run_whole(module, arguments, units)
    called = {call.unit.name for call in whole.calls}
    graph, names = traced_graph(module, whole, run)
    unused = tuple(unit.name for unit in units if unit.name not in called)
    return TracedModel(graph=graph, names=names, unused=unused)


def _off_meta(module: torch.nn.Module, arguments: Mapping[str, Any]) -> Iterator[Fault]:
    """The first parameter and the first argument that have content."""
    wanted = 'must be on the meta device (build it under torch.device("meta"))'
    for kind, named in (("module", module.named_parameters()), ("arguments", arguments.items())):
        for name, tensor in named:
            device = getattr(tensor, "device", None)
            if device is not None and device.type != "meta":
                yield Fault(f"{kind}.{name}", f"{wanted}, is on {device}")
                break
