"""The units of a module (its blocks, and what stands around them), each run by itself.

Needs torch; imported by `torch_trace` alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats.torch_counting import (
    FusedAttention,
    Recorder,
    Traffic,
    nbytes,
    refuse_uncounted,
    saved_storages,
    storage_key,
    tensors_in,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A submodule that becomes a layer; `repeated` where it is one of a list."""

    name: str
    module: torch.nn.Module
    repeated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a unit in the forward pass, with what it was given and what it computed."""

    unit: Unit
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    flops: int
    output_bytes: int

    @property
    def key(self) -> Hashable:
        """Equal for calls that cost the same."""
        parameters = tuple(
            (name, tuple(p.shape), p.dtype, p.requires_grad)
            for name, p in self.unit.module.named_parameters()
        )
        given = tuple(
            (tuple(t.shape), t.dtype, t.requires_grad)
            for t in tensors_in((self.arguments, dict(self.keywords)))
        )
        return (type(self.unit.module), parameters, given, self.flops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What one pass over a module costs; attention apart from the products.

    `saved_bytes` leave out what the module was given; of that `input_bytes` are kept, or what a
    recomputation of the whole module would have to keep.
    """

    forward_flops: int
    input_grad_flops: int
    weight_grad_flops: int
    attention_flops: int
    attention_executed: float
    forward: Traffic
    backward: Traffic
    saved_bytes: int
    input_bytes: int
    output_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The whole forward pass: its calls of units in order, and the whole's cost."""

    calls: tuple[Call, ...]
    whole: Measure
    saved_outside: int


def find_units(module: torch.nn.Module) -> tuple[Unit, ...]:
    """Members of the outermost lists, and the largest submodules without such a list beside them.

    A submodule without parameters is no unit; a module without submodules is its own.
    """
    found = tuple(_units_in(module, prefix=""))
    return found or (Unit(name="", module=module, repeated=False),)


def _units_in(module: torch.nn.Module, *, prefix: str) -> Iterator[Unit]:
    listed = _is_list(module)
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if not listed and _holds_list(child):
            yield from _units_in(child, prefix=f"{path}.")
        elif any(True for _ in child.parameters()):
            yield Unit(name=path, module=child, repeated=listed)


def _holds_list(module: torch.nn.Module) -> bool:
    return any(_is_list(inner) for inner in module.modules())


def _is_list(module: torch.nn.Module) -> bool:
    """A list of modules, or a sequence with two of one kind that have parameters."""
    if isinstance(module, torch.nn.ModuleList):
        return len(module) >= 1
    if not isinstance(module, torch.nn.Sequential):
        return False
    kinds = [type(child) for child in module if any(True for _ in child.parameters())]
    return any(kinds.count(kind) > 1 for kind in kinds)


def run_whole(
    module: torch.nn.Module, arguments: Mapping[str, Any], units: tuple[Unit, ...]
) -> Pass:
    """Run forward and backward once, noting every call of a unit."""
    watch = _Watch(units)
    with ExitStack() as hooks:
        for unit in units:
            hooks.enter_context(watch.on(unit))
        whole = measure(module, (), arguments, watch=watch)
    return Pass(calls=tuple(watch.calls), whole=whole, saved_outside=watch.saved_outside(module))


class _Watch:
    """Hooks on the units during the whole pass."""

    def __init__(self, units: tuple[Unit, ...]) -> None:
        self.calls: list[Call] = []
        self.recorder: Any = None
        self._open: list[tuple[Unit, tuple[Any, ...], Mapping[str, Any], int]] = []
        self._outside: list[torch.Tensor] = []

    def on(self, unit: Unit) -> ExitStack:
        """Attach to a unit for as long as the returned context lasts."""

        def before(_: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            self._open.append((unit, args, kwargs, self.recorder.flops))

        def after(_: Any, args: Any, kwargs: Any, result: Any) -> None:
            found, given, keywords, flops = self._open.pop()
            call = Call(
                unit=found,
                arguments=given,
                keywords=keywords,
                flops=self.recorder.flops - flops,
                output_bytes=sum(map(nbytes, tensors_in(result)[:1])),
            )
            self.calls.append(call)

        stack = ExitStack()
        first = unit.module.register_forward_pre_hook(before, with_kwargs=True)
        second = unit.module.register_forward_hook(after, with_kwargs=True)
        stack.callback(first.remove)
        stack.callback(second.remove)
        return stack

    def keeps(self, tensor: torch.Tensor) -> None:
        """Note a tensor kept for backward while no unit runs."""
        if not self._open:
            self._outside.append(tensor)

    def counts_all(self, flops: int) -> bool:
        """Whether the units called so far make up all of `flops`."""
        return sum(call.flops for call in self.calls) == flops

    def saved_outside(self, module: torch.nn.Module) -> int:
        """Bytes kept for backward by what runs outside of all units."""
        return _storage_bytes(saved_storages(self._outside, self.recorder, module))


def measure(
    module: torch.nn.Module,
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
    *,
    watch: _Watch | None = None,
) -> Measure:
    """Run a module forward and backward on the meta device and count.

    Raises `UnsupportedFeature` where it needs values, or multiplies by weights uncounted.
    """
    kept: list[torch.Tensor] = []
    recorder, attention = Recorder(module), FusedAttention()
    if watch is not None:
        watch.recorder = recorder

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        if watch is not None:
            watch.keeps(tensor)
        return tensor

    with recorder, attention, torch.enable_grad():
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            results = _called(module, arguments, keywords)
        refuse_uncounted(recorder)
        forward, moved = recorder.flops, recorder.traffic.snapshot()
        inputs = [t for t in tensors_in((arguments, dict(keywords))) if t.requires_grad]
        outputs = [t for t in tensors_in(results) if t.requires_grad]
        weights = [p for p in module.parameters() if p.requires_grad]
        # Where the units do all the work of the whole, their own gradients will be counted.
        ends = [] if watch is not None and watch.counts_all(forward) else outputs
        first = _gradient_flops(recorder, ends, inputs)
        before = recorder.traffic.snapshot()
        both = _gradient_flops(recorder, ends, [*inputs, *weights])
        backward = recorder.traffic.since(before)
    storages = list(saved_storages(kept, recorder, module)) if outputs else []
    given = {storage_key(t) for t in tensors_in((arguments, dict(keywords)))}
    own = [t for t in storages if storage_key(t) in given] or (inputs[:1] if outputs else [])
    return Measure(
        forward_flops=forward,
        input_grad_flops=first,
        weight_grad_flops=both - first,
        attention_flops=attention.flops,
        attention_executed=attention.executed,
        forward=moved,
        backward=backward,
        saved_bytes=_storage_bytes(t for t in storages if storage_key(t) not in given),
        input_bytes=_storage_bytes(own),
        output_bytes=sum(map(nbytes, tensors_in(results)[:1])),
    )


def _storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def _called(
    module: torch.nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Any:
    try:
        return module(*arguments, **keywords)
    except RuntimeError as error:  # NotImplementedError, which the meta device raises, is one
        told = _first_line(error)
        if "meta" not in str(error).lower():
            raise InvalidInput.of("module", f"its forward pass failed: {told}") from error
        raise UnsupportedFeature(
            f"the forward pass needs values, and the meta device has none: {told}",
            alternative="pass arguments that leave no choice open (in transformers: "
            "use_cache=False and a boolean attention_mask of shape (1, 1, s, s))",
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _gradient_flops(
    recorder: Recorder, outputs: list[torch.Tensor], wanted: list[torch.Tensor]
) -> int:
    """FLOPs of the gradients of all outputs with respect to `wanted`."""
    if not outputs or not wanted:
        return 0
    before = recorder.flops
    seeds = [torch.empty_like(t) for t in outputs]
    try:
        torch.autograd.grad(outputs, wanted, seeds, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        raise InvalidInput.of(
            "module", f"its backward pass failed: {_first_line(error)}"
        ) from error
    return recorder.flops - before


def run_alone(call: Call) -> Measure:
    """Repeat one call of a unit by itself, its inputs cut off from what made them."""

    def cut(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().requires_grad_(leaf.requires_grad)

    arguments, keywords = tree_map(cut, (call.arguments, dict(call.keywords)))
    return measure(call.unit.module, arguments, keywords)
