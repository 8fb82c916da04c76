"""What one pass over a layer keeps and how much it needs at its peak, counted in tensors.

Kept bytes come from `saved_tensors_hooks`, one entry per storage, parameters and buffers apart;
what a product saved stays until its weight gradient, the rest until the input gradient. The peak
counts every storage that an operator makes until it is freed, so it works on any device; the
workspaces of kernels, which no tensor holds, are not in it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainwright.measuring.block_modules import PRODUCTS
from trainwright.measuring.layer_modules import RunnableLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """Bytes of one pass; the fields are those of `LayerTiming`."""

    input_bytes: float
    saved_until_input_grad_bytes: float
    saved_until_weight_grad_bytes: float
    transient_bytes: float


def count_bytes(layer: RunnableLayer) -> LayerBytes:
    """Run the layer forward and backward once; each weight's gradient is dropped when ready.

    What stays of gradients and weights is static memory and none of this. The output counts as
    kept by the next layer.
    """
    kept = _Kept(layer.module)
    weights = list(layer.module.parameters())
    with ExitStack() as hooks, LiveBytes() as live:
        for weight in weights:
            handle = weight.register_post_accumulate_grad_hook(_drop_gradient)
            hooks.callback(handle.remove)
        outputs = kept.run(layer)
        made = {_key(t) for t in outputs} - kept.keys
        output_bytes = sum(_size(t) for t in outputs if _key(t) in made)
        seeds = [torch.ones_like(t) for t in outputs]
        torch.autograd.backward(outputs, seeds)
    layer.inputs.grad = None
    given = _key(layer.inputs)
    own = kept.total - kept.sizes.get(given, 0)
    return LayerBytes(
        input_bytes=float(_size(layer.inputs)),
        saved_until_input_grad_bytes=float(kept.total - kept.in_products),
        saved_until_weight_grad_bytes=float(kept.in_products),
        transient_bytes=float(max(0, live.peak_bytes - own - output_bytes)),
    )


def outputs_of(layer: RunnableLayer) -> tuple[torch.Tensor, ...]:
    """Run the layer forward."""
    found = layer.module(layer.inputs)
    return found if isinstance(found, tuple) else (found,)


class _Kept:
    """Storages that forward keeps for backward, by whether a product saved them."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.sizes: dict[int, int] = {}
        self.keys: set[int] = set()
        self.product_keys: set[int] = set()
        self._held: list[torch.Tensor] = []
        self._products = 0

    def run(self, layer: RunnableLayer) -> tuple[torch.Tensor, ...]:
        """Forward under watch."""
        fixed = {_key(t) for t in (*self.module.parameters(), *self.module.buffers())}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            key = _key(tensor)
            if key not in fixed:
                self.sizes[key] = _size(tensor)
                self.keys.add(key)
                if self._products:
                    self.product_keys.add(key)
            return tensor

        with ExitStack() as hooks:
            for product in self._watched():
                hooks.callback(product.register_forward_pre_hook(self._enter).remove)
                hooks.callback(product.register_forward_hook(self._leave).remove)
            hooks.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t))
            return outputs_of(layer)

    @property
    def total(self) -> int:
        return sum(self.sizes.values())

    @property
    def in_products(self) -> int:
        return sum(self.sizes[key] for key in self.product_keys)

    def _watched(self) -> Iterator[torch.nn.Module]:
        return (m for m in self.module.modules() if isinstance(m, PRODUCTS))

    def _enter(self, *_: Any) -> None:
        self._products += 1

    def _leave(self, *_: Any) -> None:
        self._products -= 1


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages that operators made and that still exist, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes = 0
        self.peak_bytes = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and note what is new."""
        given = {_key(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        results = func(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, torch.Tensor) and _key(result) not in given | self._known:
                self._note(result)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return results

    def _note(self, tensor: torch.Tensor) -> None:
        storage, key, size = tensor.untyped_storage(), _key(tensor), _size(tensor)
        self._known.add(key)
        self.live_bytes += size

        def freed() -> None:
            self._known.discard(key)
            self.live_bytes -= size

        weakref.finalize(storage, freed)


def _drop_gradient(weight: torch.Tensor) -> None:
    weight.grad = None


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _size(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().nbytes())
