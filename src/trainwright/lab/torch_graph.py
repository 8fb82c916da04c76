"""Lines measured units of a module up as a layer graph, and lays adapters beside its products.

Needs torch; imported by `torch_trace` and `torch_library` alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from trainwright.errors import Fault, InvalidInput, UnsupportedFeature, refuse
from trainwright.model import (
    LayerClass,
    LayerGraph,
    LayerKind,
    Operator,
    OperatorKind,
    Parameter,
    Phase,
    RunShape,
    SavedTensor,
    Shard,
    TensorEdge,
    Work,
)
from trainwright.model.config import LowRank, Tuning
from trainwright.model.recipe import QUANTIZED_BYTES, expanding

if TYPE_CHECKING:
    from trainwright.lab.torch_trace import TracedModel

# Counts what a module does on the meta device: FLOPs, traffic, and weights that nothing counts
# ---------------------------------------------------------------------------------------------
# Needs torch; imported by `torch_trace` alone.

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


class Recorder(TorchDispatchMode):
    """Watches every kernel: its FLOPs and traffic, and whether weights are used uncounted."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.flops = 0
        self.traffic = Traffic()
        self.uncounted: dict[str, frozenset[str]] = {}
        self.read: set[int] = set()  # storages that some kernel was given
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
        self.read |= old
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


class FusedAttention(TorchFunctionMode):
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


class _Attention(torch.autograd.Function):
    """Keeps query, key, value, output and one statistic per row; products are done to be counted.

    Key and value heads may be fewer than query heads. Backward has the four products of the
    convention, not the fifth by which a flash kernel finds the scores again.
    """

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        out = query @ _repeated(key, query).transpose(-2, -1) @ _repeated(value, query)
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


# The units of a module (its blocks, and what stands around them), each run by itself
# -----------------------------------------------------------------------------------
# Needs torch; imported by `torch_trace` alone.


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
    """The whole forward pass: its calls of units in order, the whole's cost, and idle units.

    A unit is idle where no kernel was given any of its parameters, as an encoder of images is when
    there are none.
    """

    calls: tuple[Call, ...]
    whole: Measure
    saved_outside: int
    idle: tuple[Unit, ...]


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
        if not listed and any(_is_list(inner) for inner in child.modules()):
            yield from _units_in(child, prefix=f"{path}.")
        elif any(True for _ in child.parameters()):
            yield Unit(name=path, module=child, repeated=listed)


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
    read = watch.recorder.read
    return Pass(
        calls=tuple(watch.calls),
        whole=whole,
        saved_outside=watch.saved_outside(module),
        idle=tuple(
            unit
            for unit in units
            if all(storage_key(p) not in read for p in unit.module.parameters())
        ),
    )


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


# Lines measured units up as a layer graph. Needs torch; imported by `torch_trace` alone
# --------------------------------------------------------------------------------------

# A flash kernel computes the scores again: five products backward to two forward.
_FUSED_BACKWARD = 2.5
OUTSIDE = "outside of all units"


def traced_graph(
    module: torch.nn.Module, whole: Pass, run: RunShape
) -> tuple[LayerGraph, tuple[str, ...]]:
    """The chain of calls, and after them what no unit accounts for; with the layers' names.

    Idle units come first: they hold parameters, do no work and pass nothing on.
    """
    shared = _shared_names(module, whole)
    measures: dict[Hashable, Measure] = {}
    classes: list[LayerClass] = []
    class_of: dict[Hashable, int] = {}
    layers, last = [], len(whole.calls) - 1
    for unit in whole.idle:
        parameters = _parameters(unit.module, _own_shared(unit, shared))
        if parameters not in class_of:
            class_of[parameters] = len(classes)
            classes.append(_layer(LayerKind.BLOCK, _NO_WORK, parameters))
        layers.append(class_of[parameters])
    for position, call in enumerate(whole.calls):
        if call.key not in measures:
            measures[call.key] = run_alone(call)
        kind = _kind(call.unit, whole, position)
        held = tuple(sorted(_own_shared(call.unit, shared).items()))
        # Layers of a class have edges alike, so the ends of the chain have classes of their own.
        key = (call.key, kind, held, position == 0, position == last)
        if key not in class_of:
            class_of[key] = len(classes)
            parameters = _parameters(call.unit.module, _own_shared(call.unit, shared))
            classes.append(_layer(kind, measures[call.key], parameters))
        layers.append(class_of[key])
    names = [unit.name for unit in whole.idle]
    names += [call.unit.name or type(module).__name__ for call in whole.calls]
    rest = _rest(module, whole, [measures[call.key] for call in whole.calls])
    if rest is not None:
        layers.append(len(classes))
        classes.append(rest)
        names.append(OUTSIDE)
    sent = [0] * len(whole.idle) + [call.output_bytes for call in whole.calls]
    edges = tuple(
        TensorEdge(source=i, target=i + 1, bytes=float(sent[i])) for i in range(len(layers) - 1)
    )
    graph = LayerGraph(classes=tuple(classes), layers=tuple(layers), edges=edges, run=run)
    return graph, tuple(names)


def _kind(unit: Unit, whole: Pass, position: int) -> LayerKind:
    """What a unit looks like: by its type, and by whether blocks come before it."""
    if isinstance(unit.module, torch.nn.Embedding):
        return LayerKind.EMBEDDING
    if unit.repeated:
        return LayerKind.BLOCK
    after_blocks = any(call.unit.repeated for call in whole.calls[:position])
    if after_blocks and isinstance(unit.module, torch.nn.Linear):
        return LayerKind.LM_HEAD
    if after_blocks and "norm" in type(unit.module).__name__.lower():
        return LayerKind.FINAL_NORM
    return LayerKind.BLOCK


_NO_WORK: Final = Measure(
    forward_flops=0,
    input_grad_flops=0,
    weight_grad_flops=0,
    attention_flops=0,
    attention_executed=0.0,
    forward=Traffic(),
    backward=Traffic(),
    saved_bytes=0,
    input_bytes=0,
    output_bytes=0,
)


def _shared_names(module: torch.nn.Module, whole: Pass) -> dict[int, str]:
    """Parameters (by identity) that several calls hold, with a name for each."""
    units = (*whole.idle, *(call.unit for call in whole.calls))
    holders = Counter(id(p) for unit in units for p in unit.module.parameters())
    return {id(p): name for name, p in module.named_parameters() if holders[id(p)] > 1}


def _own_shared(unit: Unit, shared: dict[int, str]) -> dict[str, str]:
    return {n: shared[id(p)] for n, p in unit.module.named_parameters() if id(p) in shared}


def _parameters(module: torch.nn.Module, shared: dict[str, str]) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(
            name=name,
            count=p.numel(),
            trainable=p.requires_grad,
            shared=shared.get(name),
            kept_bytes=getattr(p, "kept_bytes", None),
        )
        for name, p in module.named_parameters()
    )


def _layer(kind: LayerKind, found: Measure, parameters: tuple[Parameter, ...]) -> LayerClass:
    """Products, attention and everything else as one operator each."""
    kept = (
        _kept("input", found.input_bytes, is_layer_input=True),
        _kept("kept", found.saved_bytes),
    )
    saved = tuple(tensor for tensor in kept if tensor.elements)
    operators = [expanding(_products(found, parameters, saved))]
    if found.attention_flops:
        operators.append(_attention(found))
    operators.append(_elementwise(found.forward, found.backward))
    return LayerClass(
        kind=kind, operators=tuple(operators), transient_bytes=float(2 * found.output_bytes)
    )


def _kept(name: str, size: int, *, is_layer_input: bool = False) -> SavedTensor:
    return SavedTensor(
        name=name,
        elements=size,
        element_bytes=1,
        shard=Shard.TENSOR,
        until=Phase.WEIGHT_GRAD,
        is_layer_input=is_layer_input,
    )


def _products(
    found: Measure, parameters: tuple[Parameter, ...], saved: tuple[SavedTensor, ...]
) -> Operator:
    """All matrix products outside of attention; traffic is split like the FLOPs."""
    attention = found.attention_flops
    backward = 2 * attention if found.input_grad_flops else 0
    forward, first = found.forward_flops - attention, found.input_grad_flops - backward
    last = found.weight_grad_flops
    if not found.input_grad_flops and attention and last:
        last -= 2 * attention  # inputs need no gradient, but what trains before attention does
    share = first / (first + last) if first + last else 0.0
    moved = float(found.backward.products)
    return Operator(
        name="products",
        kind=OperatorKind.GEMM,
        forward=Work(flops=float(forward), read_bytes=float(found.forward.products)),
        input_grad=Work(flops=float(first), read_bytes=share * moved),
        weight_grad=Work(flops=float(last), read_bytes=(1 - share) * moved if last else 0.0),
        model_flops=float(forward),
        parameters=parameters,
        saved=saved,
    )


def _attention(found: Measure) -> Operator:
    executed = found.attention_executed
    trains = found.input_grad_flops or found.weight_grad_flops
    backward = Work(flops=_FUSED_BACKWARD * executed) if trains else Work()
    return Operator(
        name="attention",
        kind=OperatorKind.ATTENTION,
        forward=Work(flops=executed),
        input_grad=backward,
        model_flops=float(found.attention_flops),
    )


def _elementwise(forward: Traffic, backward: Traffic) -> Operator:
    return Operator(
        name="elementwise",
        kind=OperatorKind.MEMORY,
        forward=Work(read_bytes=float(forward.other)),
        input_grad=Work(read_bytes=float(backward.other)),
    )


def _rest(module: torch.nn.Module, whole: Pass, measures: list[Measure]) -> LayerClass | None:
    """What the whole pass did beyond its units: FLOPs, kept tensors, parameters of its own."""
    forward = whole.whole.forward_flops - sum(m.forward_flops for m in measures)
    gradients = [m.input_grad_flops + m.weight_grad_flops for m in measures]
    total = whole.whole.input_grad_flops + whole.whole.weight_grad_flops
    backward = max(0, total - sum(gradients))
    units = (*whole.idle, *(call.unit for call in whole.calls))
    held = {id(p) for unit in units for p in unit.module.parameters()}
    own = tuple(
        Parameter(name=name, count=p.numel(), trainable=p.requires_grad)
        for name, p in module.named_parameters()
        if id(p) not in held
    )
    if not (forward or own or whole.saved_outside):
        return None
    rest = replace(
        _NO_WORK,
        forward_flops=forward,
        input_grad_flops=backward - backward // 2,
        weight_grad_flops=backward // 2,
        saved_bytes=whole.saved_outside,
        output_bytes=whole.whole.output_bytes,
    )
    return _layer(LayerKind.LOSS, rest, own)


# Freezes parts of a module, and lays low-rank adapters beside its products, before it is traced
# ----------------------------------------------------------------------------------------------
# What torch itself then computes no gradient for, the trace does not find either.

_ALL, _USUAL = "all", "usual"
_ROUTERS = ("gate", "router")


def tune(
    module: torch.nn.Module,
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
    blocks: list[torch.nn.Module], low_rank: LowRank, modules: Mapping[str, Collection[str]]
) -> None:
    found = {id(each): (name, each) for block in blocks for name, each in _adaptable(block)}
    names = {name for name, _ in found.values()}
    targets = low_rank.targets
    if targets == (_USUAL,):
        usual = ("query", "value")
        targets = usual if all(names.intersection(modules[t]) for t in usual) else (_ALL,)
    wanted = set[str]()
    for target in targets:
        own = names.intersection(names if target == _ALL else modules.get(target, (target,)))
        if not own:
            known = ", ".join(sorted(names))
            refuse([Fault("lora-targets", f'must be of {known}, or all, got "{target}"')])
        wanted |= own
    for name, product in found.values():
        if low_rank.few_bits is not None:
            product.weight.kept_bytes = QUANTIZED_BYTES[low_rank.few_bits]
        if name in wanted:
            _lay_beside(product, low_rank)


def _adaptable(block: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Linear layers by the last part of their names, routers left out."""
    from transformers.pytorch_utils import Conv1D

    for name, inner in block.named_modules():
        last = name.rpartition(".")[2]
        if isinstance(inner, torch.nn.Linear | Conv1D) and last not in _ROUTERS:
            yield last, inner


def _lay_beside(product: Any, low_rank: LowRank) -> None:
    """(dropout(x) A) B, added to what the product gives."""
    inputs, outputs = product.weight.shape
    if isinstance(product, torch.nn.Linear):
        inputs, outputs = outputs, inputs
    like: dict[str, Any] = {"dtype": product.weight.dtype, "device": "meta", "bias": False}
    product.adapter_a = torch.nn.Linear(inputs, low_rank.rank, **like)
    product.adapter_b = torch.nn.Linear(low_rank.rank, outputs, **like)

    def add(
        _: torch.nn.Module, given: tuple[torch.Tensor, ...], made: torch.Tensor
    ) -> torch.Tensor:
        x = torch.nn.functional.dropout(given[0], low_rank.dropout)
        beside: torch.Tensor = product.adapter_b(product.adapter_a(x))
        return made + beside

    product.register_forward_hook(add)
