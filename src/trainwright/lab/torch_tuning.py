"""Freezes parts of a module, and lays low-rank adapters beside its products, before it is traced.

What torch itself then computes no gradient for, the trace does not find either. Needs torch;
imported by `torch_library` alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from trainwright.errors import Fault, InvalidInput, refuse
from trainwright.lab.torch_graph import find_units
from trainwright.lab.torch_trace import TracedModel
from trainwright.model import LayerKind
from trainwright.model.config import LowRank, Tuning
from trainwright.model.recipe import QUANTIZED_BYTES

ALL, USUAL = "all", "usual"
_ROUTERS = ("gate", "router")


def tune(
    module: nn.Module,
    tuning: Tuning,
    *,
    whole: TracedModel,
    modules: Mapping[str, Collection[str]],
) -> None:
    """Freeze what `tuning` freezes of a module of which `whole` is the trace with all that trains.

    Targets of adapters are names of submodules, or stand for those that `modules` gives them; "all"
    is every linear layer of the blocks, "usual" query and value, or all without both. Raises
    `InvalidInput` for targets and kinds of layers that the module does not have, and for more
    blocks than it has.
    """
    repeated = {unit.name for unit in find_units(module) if unit.repeated}
    classes = (whole.graph.classes[at] for at in whole.graph.layers)
    layers = [(n, c.kind) for n, c in zip(whole.names, classes, strict=True) if not c.is_idle]
    blocks = list(dict.fromkeys(name for name, _ in layers if name in repeated))
    refuse(tuning.faults(len(blocks)))
    kinds = dict.fromkeys(kind for _, kind in layers if kind is not LayerKind.LOSS)
    if absent := [kind for kind in tuning.frozen_kinds if kind not in kinds]:
        known = ", ".join(kinds)
        raise InvalidInput.of("freeze", f'must be one of {known}, got "{absent[0]}"')
    named = [name for name, kind in layers if kind in tuning.frozen_kinds]
    for name in (*named, *blocks[: tuning.num_frozen_blocks]):
        module.get_submodule(name).requires_grad_(False)
    if tuning.low_rank is not None:
        module.requires_grad_(False)
        _adapt([module.get_submodule(name) for name in blocks], tuning.low_rank, modules)


def _adapt(
    blocks: list[nn.Module], low_rank: LowRank, modules: Mapping[str, Collection[str]]
) -> None:
    found = {id(each): (name, each) for block in blocks for name, each in _products(block)}
    names = {name for name, _ in found.values()}
    targets = low_rank.targets
    if targets == (USUAL,):
        usual = ("query", "value")
        targets = usual if all(names.intersection(modules[t]) for t in usual) else (ALL,)
    wanted = set[str]()
    for target in targets:
        own = names.intersection(names if target == ALL else modules.get(target, (target,)))
        if not own:
            known = ", ".join(sorted(names))
            refuse([Fault("lora-targets", f'must be of {known}, or all, got "{target}"')])
        wanted |= own
    for name, product in found.values():
        if low_rank.bits is not None:
            product.weight.kept_bytes = QUANTIZED_BYTES[low_rank.bits]
        if name in wanted:
            _lay_beside(product, low_rank)


def _products(block: nn.Module) -> Iterator[tuple[str, Any]]:
    """Linear layers by the last part of their names, routers left out."""
    for name, inner in block.named_modules():
        last = name.rpartition(".")[2]
        if isinstance(inner, nn.Linear | Conv1D) and last not in _ROUTERS:
            yield last, inner


def _lay_beside(product: Any, low_rank: LowRank) -> None:
    """(dropout(x) A) B, added to what the product gives."""
    inputs, outputs = product.weight.shape
    if isinstance(product, nn.Linear):
        inputs, outputs = outputs, inputs
    like: dict[str, Any] = {"dtype": product.weight.dtype, "device": "meta", "bias": False}
    product.adapter_a = nn.Linear(inputs, low_rank.rank, **like)
    product.adapter_b = nn.Linear(low_rank.rank, outputs, **like)

    def add(_: nn.Module, given: tuple[torch.Tensor, ...], made: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(given[0], low_rank.dropout)
        beside: torch.Tensor = product.adapter_b(product.adapter_a(x))
        return made + beside

    product.register_forward_hook(add)
