"""Counts what a module does on the meta device: FLOPs, traffic, and weights that nothing counts.

Needs torch; imported by `torch_trace` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from trainwright.errors import UnsupportedFeature

_ATEN: Final = torch.ops.aten
_EMBEDDINGS: Final = {_ATEN.embedding, _ATEN._embedding_bag, _ATEN.embedding_dense_backward}
_MOVES: Final = {_ATEN.cat, _ATEN.stack, _ATEN.copy_, _ATEN.index_put, _ATEN.scatter, _ATEN.where}
_NORMS: Final = {
    getattr(_ATEN, name)
    for name in ("native_layer_norm", "native_group_norm", "_fused_rms_norm")
    if hasattr(_ATEN, name)
}


def _grouped_product_flops(a: Any, b: Any, *_: Any, **__: Any) -> int:
    """FLOPs of a product with one weight per group of rows, whichever operand carries the groups.

    The groups split a dimension that the other operand lacks, so every row still meets one weight.
    """
    batch = a.shape[0] if a.dim() == b.dim() == 3 else 1
    return int(2 * batch * a.shape[-2] * a.shape[-1] * b.shape[-1])


# Torch's own formulas, those of `FlopCounterMode`, and the ones that it lacks.
_FORMULAS: Final[dict[Any, Callable[..., int]]] = flop_registry | {
    getattr(_ATEN, name): _grouped_product_flops
    for name in ("_grouped_mm", "_scaled_grouped_mm")
    if hasattr(_ATEN, name)
}


def storage_key(tensor: torch.Tensor) -> int:
    """What identifies the memory behind a tensor and all its views."""
    return int(tensor.untyped_storage()._cdata)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors of nested arguments or results, in order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def nbytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's own elements."""
    return int(tensor.numel() * tensor.element_size())


@dataclass
class Traffic:
    """Bytes read and written so far, by products and by everything else that moves data."""

    products: int = 0
    other: int = 0

    def snapshot(self) -> Traffic:
        """A copy, to subtract later."""
        return Traffic(self.products, self.other)

    def since(self, before: Traffic) -> Traffic:
        """What came after `before`."""
        return Traffic(self.products - before.products, self.other - before.other)


@dataclass
class _Weights:
    """Storages that hold a weight matrix or a copy of one, with the names of the parameters."""

    names: dict[int, frozenset[str]] = field(default_factory=dict)
    alive: list[torch.UntypedStorage] = field(default_factory=list)

    def add(self, tensor: torch.Tensor, names: frozenset[str]) -> None:
        self.names[storage_key(tensor)] = names
        self.alive.append(tensor.untyped_storage())  # a key must not be used twice

    def of(self, tensors: list[torch.Tensor]) -> frozenset[str]:
        found = (self.names.get(storage_key(t), frozenset()) for t in tensors)
        return frozenset().union(*found)


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Watches every kernel: its FLOPs and traffic, and whether weights are used uncounted."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.flops = 0
        self.traffic = Traffic()
        self.uncounted: dict[str, frozenset[str]] = {}
        self._weights = _Weights()
        for name, parameter in module.named_parameters():
            if parameter.dim() >= 2:
                self._weights.add(parameter, frozenset((name,)))

    def is_weight_copy(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor holds weights: a parameter, a cast or a gathered copy of some."""
        return bool(self._weights.of([tensor]))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        given, made = tensors_in((args, kwargs)), tensors_in(results)
        kernel = func._overloadpacket
        old = {storage_key(t) for t in given}
        moved = sum(map(nbytes, given)) + sum(map(nbytes, made))
        if (formula := _FORMULAS.get(kernel)) is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=results)
            self.traffic.products += moved
        elif any(storage_key(t) not in old for t in made):  # not a view
            self.traffic.other += moved
        if weights := self._weights.of(given):
            self._follow(func, kernel, weights, given, made)
        return results

    def _follow(
        self,
        func: Any,
        kernel: Any,
        weights: frozenset[str],
        given: list[torch.Tensor],
        made: list[torch.Tensor],
    ) -> None:
        """Copies of weights stay weights; where they meet activations, a formula must count it."""
        if kernel in _FORMULAS or kernel in _EMBEDDINGS:
            return
        floating = [t for t in given if t.is_floating_point()]
        if all(self._weights.of([t]) for t in floating):
            for tensor in made:
                self._weights.add(tensor, weights)
        elif not (torch.Tag.pointwise in func.tags or kernel in _MOVES or kernel in _NORMS):
            self.uncounted[str(kernel)] = weights


def refuse_uncounted(recorder: Recorder) -> None:
    """Raise `UnsupportedFeature` where weights were multiplied by a kernel without a formula."""
    for kernel, names in sorted(recorder.uncounted.items()):
        raise UnsupportedFeature(
            f"{kernel} uses {min(names)} and torch counts no FLOPs for it",
            alternative="choose an implementation made of matrix products "
            '(in transformers: experts_implementation "batched_mm")',
        )


class FusedAttention(TorchFunctionMode):  # type: ignore[misc]
    """Runs scaled dot product attention as a flash kernel would: no score is kept.

    `flops` adds up its forward FLOPs, of all pairs; `executed` those that a causal kernel computes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.executed = 0.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = dict(zip(names, args, strict=False)) | kwargs
        query, key, value = given["query"], given["key"], given["value"]
        flops = _attention_flops(query, key, value)
        self.flops += flops
        length = query.shape[-2]
        self.executed += flops * ((length + 1) / (2 * length) if given.get("is_causal") else 1.0)
        return _Attention.apply(query, key, value)


def _attention_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    pairs = query.shape[:-1].numel() * key.shape[-2]
    return int(2 * pairs * (query.shape[-1] + value.shape[-1]))


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """Keeps query, key, value, output and one statistic per row; products are done to be counted.

    Key and value heads may be fewer than query heads. Backward has the four products of the
    convention, not the fifth by which a flash kernel finds the scores again.
    """

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        out = _grouped_scores(query, key) @ _repeated(value, query)
        statistic = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, statistic)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        query, key, value, _, _ = ctx.saved_tensors
        scores = query.new_empty((*query.shape[:-1], key.shape[-2]))
        every_key, every_value = _repeated(key, query), _repeated(value, query)
        _ = scores.transpose(-2, -1) @ gradients[0]
        _ = gradients[0] @ every_value.transpose(-2, -1)
        _ = scores @ every_key
        _ = scores.transpose(-2, -1) @ query
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _grouped_scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query @ _repeated(key, query).transpose(-2, -1)


def _repeated(heads: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Key or value heads, as many as there are query heads."""
    if heads.dim() < 3 or heads.shape[-3] == query.shape[-3]:
        return heads
    return heads.repeat_interleave(query.shape[-3] // heads.shape[-3], dim=-3)


def saved_storages(
    tensors: list[torch.Tensor], recorder: Recorder, module: torch.nn.Module
) -> Iterator[torch.Tensor]:
    """Of the tensors kept for backward, one per storage; neither parameters nor copies of them."""
    own = {storage_key(t) for t in (*module.parameters(), *module.buffers())}
    seen: set[int] = set()
    for tensor in tensors:
        key = storage_key(tensor)
        if key in own or key in seen or recorder.is_weight_copy(tensor):
            continue
        seen.add(key)
        yield tensor
