"""Models of the transformers library, built without content and counted (extra `[torch]`).

What no rule of `formats` reads, the library may still build: on the meta device, where tensors have
shapes and no content, a model of any size is made in about a second. Its parameters are then exact
by construction, each tensor once. FLOPs are those of torch's own formulas in one forward pass of
text: two per multiply-add of products and convolutions, scores in full square, the head at
every position, each token to as many experts as it visits. A pass that needs values (routing by
`nonzero`, images) cannot run without content; then there is no figure, and a note says why.

Layers are the members of the outermost lists of modules, grouped by the shapes of their
parameters. A mixture of experts shows as a module of three-dimensional weights or a list named
`experts`; how many of them a token visits is seen in the pass itself, else read from the router.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Any, Final

import torch
import transformers
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.flop_counter import flop_registry
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from trainwright.errors import InvalidInput, TrainwrightError, UnsupportedFeature
from trainwright.lab import torch_values
from trainwright.lab.torch_graph import tune
from trainwright.lab.torch_trace import TracedModel, trace_module
from trainwright.model import LayerGraph, RunShape
from trainwright.model.config import TRAIN_ALL, Tuning

_ERRORS_ONLY: Final = 40  # of Python's logging
MOST_OPERATORS: Final = 3_000  # of a forward pass; most have under 1,000, up to 0.5 ms each

# The automatic classes in the order in which a file without `architectures` is read.
_HEADS: Final = (
    "CAUSAL_LM",
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "MASKED_LM",
    "PRETRAINING",
    "CTC",
)

# Keys that say how a checkpoint is stored, or name code that is not run.
_STORED: Final = ("quantization_config", "compression_config", "auto_map", "architectures")

# Bounds of a step, of which libraries write infinities that they do not read back.
_BOUNDS: Final = ("time_step_limit", "mamba_time_step_limit")

# What configuration classes and routers call the number of experts that a token visits.
_VISITED: Final = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_topk",
    "moe_k",
    "top_k_experts",
    "moe_top_k",
    "num_selected_experts",
    "top_k",
    "topk",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedLayer:
    """Layers of one structure: where they are, what class, how many, parameters of one."""

    path: str
    class_name: str
    count: int
    parameters: int
    experts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedModel:
    """A model of the library: parameters, layers, FLOPs of a pass (None where it cannot run)."""

    class_name: str
    model_type: str
    parameters: int
    active_parameters: int
    parts: tuple[tuple[str, int], ...]
    layers: tuple[CountedLayer, ...]
    forward_flops: int | None
    tokens: int
    note: str | None = None

    def mtp_parameters(self, document: Mapping[str, Any]) -> int:
        """Of layers that predict further tokens, which the library leaves out of a model.

        Each is a last layer with two norms before a projection of twice the hidden size, and one
        behind it, as DeepSeek-V3 has them; embedding and head are the model's.
        """
        inner = document.get("text_config")
        text = {**document, **inner} if isinstance(inner, Mapping) else document
        for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"):
            count, width = text.get(key), text.get("hidden_size")
            if isinstance(count, int) and isinstance(width, int) and self.layers:
                last = max(self.layers, key=lambda row: row.count * row.parameters)
                return count * (last.parameters + 2 * width * width + 3 * width)
        return 0


def known_type(document: Mapping[str, Any]) -> str | None:
    """The library's name for the model type of a file; None where it has none.

    A file may give the type of its text, whose sizes stand in a section that its class has, or be
    the text alone of a type that the library has behind images.
    """
    stated, made = document.get("model_type"), _stated_class(document)
    known = isinstance(stated, str) and stated in CONFIG_MAPPING
    if known and not (made is not None and _sections(made.config_class, document)):
        return str(stated)
    if known and _sections(CONFIG_MAPPING[str(stated)], document):
        return str(stated)
    if made is not None:
        return str(made.config_class.model_type)
    texts = (f"{stated}_text", f"{stated}_vl_text")
    return next((name for name in texts if name in CONFIG_MAPPING), None)


def _sections(config: Any, document: Mapping[str, Any]) -> list[str]:
    """Sections of a file that a configuration class reads."""
    return [key for key in config.sub_configs if isinstance(document.get(key), Mapping)]


def count_model(document: Mapping[str, Any], *, tokens: int) -> CountedModel:
    """Build the model that a `config.json` describes and count it over `tokens` of text.

    Raises `UnsupportedFeature` for a type that the library lacks, `InvalidInput` for a file that
    its own classes refuse.
    """
    kind = known_type(document)
    if kind is None:
        stated = document.get("model_type")
        raise UnsupportedFeature(
            f'model_type "{stated}" is not modelled, nor does transformers '
            f"{transformers.__version__} have it"
        )
    with _quiet():
        module = _build(document, kind)
        experts = _expert_modules(module)
        visited: dict[str, int] = {}
        flops, note = _measure(module, experts, visited, tokens=tokens)
    for name in experts:
        visited.setdefault(name, _stated_visits(module, name))
    total = _num_parameters(module)
    idle: dict[frozenset[int], int] = {}  # by weights, which several modules may share
    for name, (inner, count) in experts.items():
        weights, size = frozenset(map(id, inner.parameters())), _num_parameters(inner)
        rest = size - size * min(visited[name], count) // count
        idle[weights] = min(rest, idle.get(weights, rest))
    return CountedModel(
        class_name=type(module).__name__,
        model_type=kind,
        parameters=total,
        active_parameters=total - sum(idle.values()),
        parts=tuple(_parts(module)),
        layers=tuple(_layers(module, frozenset(experts))),
        forward_flops=flops,
        tokens=tokens,
        note=note,
    )


def trace_model(
    document: Mapping[str, Any],
    *,
    run: RunShape,
    tuning: Tuning = TRAIN_ALL,
    modules: Mapping[str, Collection[str]] | None = None,
) -> LayerGraph:
    """The layers of the model that a `config.json` describes, traced at `run` with text alone.

    Attention is taken for a fused kernel, experts for one product per weight. Parameters are those
    of the module to the last one; those of layers that share theirs are `Parameter.shared`. What
    `tuning` freezes has no gradient; its adapters lie beside `modules` (see `tune`).
    Raises `UnsupportedFeature` for a type that the library lacks or whose pass needs values,
    `InvalidInput` for a file that its own classes refuse, or a part to freeze that it lacks.
    """
    kind = known_type(document)
    if kind is None:
        raise UnsupportedFeature(f'model_type "{document.get("model_type")}" is not modelled')
    with _quiet():
        module, traced = _traced(document, kind, run)
        if tuning != TRAIN_ALL:
            own = functools.partial(tune, tuning=tuning, whole=traced, modules=modules or {})
            module, traced = _traced(document, kind, run, own)
    if missing := _num_parameters(module) - traced.graph.num_parameters:
        part = f", as {traced.unused[0]}" if traced.unused else ""
        raise UnsupportedFeature(
            f'model_type "{kind}" cannot be traced with text alone: '
            f"{missing:,} parameters take no part{part}"
        )
    return traced.graph


def _traced(
    document: Mapping[str, Any],
    kind: str,
    run: RunShape,
    prepare: Callable[[nn.Module], None] | None = None,
) -> tuple[nn.Module, TracedModel]:
    """The module and its trace, in the first of the ways in which its pass runs to the end.

    In bf16, else in float32, of which some modules make tensors of their own. First the pass of the
    whole, then those of the parts with its head, largest first: what a part leaves idle is held.
    """
    reasons: list[str] = []
    for dtype in (torch.bfloat16, torch.float32):
        module = _build(document, kind, attention=("sdpa", None, "eager"), dtype=dtype).train()
        _batch_experts(module)
        _spread_experts(module)
        _run_all_layers(module)
        if prepare is not None:
            prepare(module)
        for part in _passes(module):
            module.forward = part.forward
            traced = _trace_of(module, run, reasons, config=part.config)
            if traced is not None:
                return module, traced
    why = reasons[0] if reasons else "no part of it has a pass of its own"
    raise UnsupportedFeature(f'model_type "{kind}" cannot be traced: {why}')


def _passes(module: Any) -> list[Any]:
    """Modules with a pass of text that ends in the head of the whole, if that has one."""
    parts = [m for m in module.modules() if isinstance(m, transformers.PreTrainedModel)]
    parts = [m for m in parts if type(m).forward is not nn.Module.forward]
    head = next((found for m in parts if (found := _own_head(m)) is not None), None)
    if head is not None:
        parts = [m for m in parts if _own_head(m) is head]
    return sorted(parts, key=_num_parameters, reverse=True)


def _own_head(module: Any) -> nn.Module | None:
    with suppress(Exception):  # of classes without one
        found: nn.Module | None = module.get_output_embeddings()
        return found
    return None


def _trace_of(
    module: nn.Module, run: RunShape, reasons: list[str], *, config: Any
) -> TracedModel | None:
    """The trace in the first of the ways in which the pass runs; without one, why not.

    With text alone, else with sound or an image beside it; checks of values answered with yes,
    else with no.
    """
    for beside, truth, masked in product(torch_values.BESIDE, (True, False), (False, True)):
        if (beside and masked) or (
            beside in torch_values.OF_CODES and torch_values.codes_of(config) is None
        ):
            continue
        way = functools.partial(
            _trace_once, module, config=config, beside=beside, truth=truth, masked=masked
        )
        try:
            try:
                return way(run)
            except TimeoutError:
                few = [replace(run, sequence_length=torch_values.FEW * n) for n in (1, 2, 3, 4)]
                if run.sequence_length <= few[-1].sequence_length:
                    raise
                return carried_on([way(each) for each in few], run)
        except TimeoutError:
            reasons.insert(0, _TOO_LONG)
            return None
        except TrainwrightError as error:
            reasons.append(_first_line(error))
        except Exception as error:  # whatever the library's own code raises
            reasons.append(f"{type(error).__name__}: {_first_line(error)}")
    return None


def _trace_once(
    module: nn.Module,
    run: RunShape,
    *,
    config: Any,
    beside: str | None,
    truth: bool,
    masked: bool,
) -> TracedModel:
    most = _MANY_TIMES * MOST_OPERATORS
    with torch.device("meta"), torch_values.ValuesFromPython(), _Counter(most, truth=truth):
        given = torch_values.inputs(
            module, run.sequence_length, masked=masked, rows=run.microbatch_size
        )
        if beside in torch_values.OF_CODES:
            given |= torch_values.in_codes(
                given, form=beside, codes=torch_values.codes_of(config) or 1
            )
        elif beside is not None:
            given |= torch_values.beside_text(module, run, config, form=beside)
        with _without_former_keys():
            return trace_module(module, given, run=run)


# Building: the class that the file names, else the first automatic class that takes its type
# -----------------------------------------------------------------------------------------


def foreign_class(document: Mapping[str, Any]) -> str | None:
    """The class that a file names where the library has none of its classes, else None."""
    names = document.get("architectures")
    first = names[0] if isinstance(names, list) and names else None
    return first if isinstance(first, str) and _stated_class(document) is None else None


def _stated_class(document: Mapping[str, Any]) -> Any:
    names = document.get("architectures")
    for name in names if isinstance(names, list) else ():
        found = getattr(transformers, name, None) if isinstance(name, str) else None
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    return None


def _build(
    document: Mapping[str, Any],
    kind: str,
    *,
    attention: Sequence[str | None] = ("eager", None),
    dtype: torch.dtype = torch.bfloat16,
) -> nn.Module:
    """The module, with the first of the implementations of attention that its class takes."""
    try:
        config = CONFIG_MAPPING[kind].from_dict(_content(document))
    except Exception as error:  # whatever the library's own checks raise
        raise InvalidInput.of("config", f"the library refuses it: {_first_line(error)}") from error
    failures = []
    try:
        for made, own in _candidates(document, config):
            for name in attention:
                wanted = {} if name is None else {"attn_implementation": name}
                try:
                    with torch.device("meta"):
                        module: nn.Module = made._from_config(own, dtype=dtype, **wanted)
                except ImportError:
                    raise
                except Exception as error:
                    failures.append(_first_line(error))
                else:
                    return module.to("meta").eval()  # some make tensors from arrays
    except ImportError as error:  # a class that needs another library
        raise UnsupportedFeature(
            f'model_type "{kind}" cannot be built: {_first_line(error)}'
        ) from error
    if not failures:
        raise UnsupportedFeature(f'model_type "{kind}": the library has no model of it')
    raise InvalidInput.of("config", f"the library cannot build it: {failures[0]}")


def _content(document: Mapping[str, Any]) -> dict[str, Any]:
    """A file and its sections without what says nothing about the model, or cannot be read back."""
    return {
        key: _content(value) if isinstance(value, Mapping) else value
        for key, value in document.items()
        if key not in (*_STORED, *_BOUNDS)
    }


def _candidates(document: Mapping[str, Any], config: Any) -> Iterator[tuple[Any, Any]]:
    """Classes with the configuration that each takes: the file's own, or the text's inside it.

    First the class that the file names, then automatic ones that take the whole, then the rest.
    """
    if (stated := _stated_class(document)) is not None:
        yield from _with_configuration(stated, config)
    heads = [f"MODEL_FOR_{head}_MAPPING" for head in _HEADS]
    others = [n for n in dir(modeling_auto) if n.startswith("MODEL_FOR") and n.endswith("_MAPPING")]
    found = []
    if getattr(config, "is_encoder_decoder", False):  # else BART's decoder alone is found first
        heads.sort(key=lambda name: "SEQ" not in name)
    for name in (*heads, "MODEL_MAPPING", *others):
        mapping = getattr(modeling_auto, name, None)
        if mapping is not None and type(config) in mapping:
            made = mapping[type(config)]
            found.append(made[0] if isinstance(made, tuple) else made)
    for made in sorted(found, key=lambda made: not isinstance(config, made.config_class)):
        yield from _with_configuration(made, config)
    yield from ((made, config) for made in found)  # of another type's class, by the library's word
    yield from ((made, config) for made in _beside(type(config)))


def _beside(configuration: type) -> Iterator[Any]:
    """Classes that no automatic one lists (parts of larger models), the last of a module first."""
    name = configuration.__module__.replace(".configuration_", ".modeling_")
    with suppress(ImportError):
        members: list[Any] = [*vars(importlib.import_module(name)).values()]
        for made in reversed(members):
            if getattr(made, "config_class", None) is not configuration:
                continue
            if made.__module__ == name and "PreTrainedModel" not in made.__name__:
                yield made


def _with_configuration(made: Any, config: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(config, made.config_class):
        yield made, config
        return
    for name in ("text_config", "llm_config", "language_config", "thinker_config"):
        if isinstance(inner := getattr(config, name, None), made.config_class):
            yield made, inner


# Counting: each tensor once, layers by the shapes of their parameters
# --------------------------------------------------------------------


def _num_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())  # a shared one comes once


def _parts(module: nn.Module) -> Iterator[tuple[str, int]]:
    """The top modules; one that holds all the rest is opened."""
    seen: set[int] = set()
    opened = getattr(module, "base_model_prefix", "") or ""
    inner: nn.Module | None = getattr(module, opened, None) if opened else None
    for name, child in module.named_children():
        if inner is not None and child is inner:
            yield from _counted(child.named_children(), f"{name}.", seen)
            yield from _own(child, name, seen)
        else:
            yield from _counted([(name, child)], "", seen)
    yield from _own(module, type(module).__name__, seen)


def _counted(children: Any, prefix: str, seen: set[int]) -> Iterator[tuple[str, int]]:
    for name, child in children:
        fresh = [p for p in child.parameters() if id(p) not in seen]
        seen.update(map(id, fresh))
        if fresh:
            yield f"{prefix}{name}", sum(p.numel() for p in fresh)


def _own(module: nn.Module, name: str, seen: set[int]) -> Iterator[tuple[str, int]]:
    fresh = [p for p in module.parameters(recurse=False) if id(p) not in seen]
    seen.update(map(id, fresh))
    if fresh:
        yield f"{name} (own)", sum(p.numel() for p in fresh)


def _layers(module: nn.Module, experts: frozenset[str]) -> Iterator[CountedLayer]:
    found: Counter[CountedLayer] = Counter()
    for path, name, layer in _listed(module, ""):
        shapes = sum(p.numel() for p in layer.parameters())
        if not shapes:
            continue
        routed = any(key.startswith(f"{path}.{name}.") for key in experts)
        found[
            CountedLayer(
                path=path,
                class_name=type(layer).__name__,
                count=1,
                parameters=shapes,
                experts=routed,
            )
        ] += 1
    for one, count in found.items():
        yield CountedLayer(
            path=one.path,
            class_name=one.class_name,
            count=count,
            parameters=one.parameters,
            experts=one.experts,
        )


def _listed(module: nn.Module, prefix: str) -> Iterator[tuple[str, str, nn.Module]]:
    """Members of the outermost lists, with the path of their list."""
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if isinstance(child, nn.ModuleList):
            yield from ((path, key, layer) for key, layer in child.named_children())
        else:
            yield from _listed(child, f"{path}.")


def _expert_modules(module: nn.Module) -> dict[str, tuple[nn.Module, int]]:
    """Modules that hold the routed experts of a layer, and how many these are."""
    found: dict[str, tuple[nn.Module, int]] = {}
    for name, inner in module.named_modules():
        if any(name.startswith(f"{outer}.") for outer in found):
            continue
        last = name.rpartition(".")[2]
        if "shared" in last:  # which every token visits
            continue
        listed = isinstance(inner, nn.ModuleList | nn.ModuleDict) and "expert" in last
        members = sum(any(True for _ in c.parameters()) for c in inner.children()) if listed else 0
        if members > 1:
            found[name] = (inner, members)
        elif type(inner).__name__.endswith("Experts") and (count := _stacked(inner)):
            found[name] = (inner, count)
    return found


def _stacked(module: nn.Module) -> int:
    """How many experts lie one behind the other in weights of three dimensions.

    Of stacks that differ the deepest has experts that do nothing, too (LongCat).
    """
    depths = {p.shape[0] for p in module.parameters() if p.dim() == 3}
    if len(depths) == 1:
        return int(depths.pop())
    stated = getattr(module, "num_experts", 0)
    if isinstance(stated, int) and stated and not isinstance(module, nn.ModuleList):
        return int(stated)
    return max(map(int, depths), default=0)


def _stated_visits(module: nn.Module, name: str) -> int:
    """Experts per token, as the router or the configuration next to the experts says."""
    parent = name
    while parent:
        parent = parent.rpartition(".")[0]
        around = module.get_submodule(parent)
        holders = [
            around,
            *(c for _, c in around.named_children()),
            getattr(around, "config", None),
        ]
        for holder in holders:
            for key in _VISITED:
                value = getattr(holder, key, None)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
        if any("Switch" in type(h).__name__ or "Top1" in type(h).__name__ for h in holders):
            return 1
        if any("Top2" in type(h).__name__ for h in holders):
            return 2
    return 1


# One forward pass of text
# ------------------------


_TOO_LONG: Final = "the pass takes too long"


class _Counter(torch_values.KnownValues):
    """Adds up FLOPs of operators, and ends a pass that has too many."""

    def __init__(self, most: int, *, truth: bool = True) -> None:
        super().__init__(truth=truth)
        self.flops = 0
        self.operators = 0
        self._most = most
        self._composite: dict[Any, bool] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators += 1
        if self.operators > self._most:
            raise TimeoutError(_TOO_LONG)
        given, formula = kwargs or {}, flop_registry.get(getattr(func, "_overloadpacket", None))
        if formula is None and self._is_composite(func):
            with self:
                return func.decompose(*args, **given)
        found = super().__torch_dispatch__(func, types, args, given)
        if formula is not None:
            self.flops += int(formula(*args, **given, out_val=found))
        return found

    def _is_composite(self, func: Any) -> bool:
        known = self._composite.get(func)
        if known is None:
            known = isinstance(func, torch._ops.OpOverload) and func._can_decompose()
            self._composite[func] = known
        return known


def _measure(
    module: nn.Module,
    experts: Mapping[str, tuple[nn.Module, int]],
    visited: dict[str, int],
    *,
    tokens: int,
) -> tuple[int | None, str | None]:
    """FLOPs of one pass, and what a token visits; None and the reason where it cannot run."""
    _batch_experts(module)
    with ExitStack() as hooks:
        for name, (inner, count) in experts.items():
            note = _note_visits(name, count, visited)
            handle = inner.register_forward_pre_hook(note, with_kwargs=True)
            hooks.callback(handle.remove)
        with _Repeats(module) as repeats:
            found = _flops(module, tokens, repeats)
        for path, first in repeats.twins.items():
            for name in experts:
                if (
                    name.startswith(f"{path}.")
                    and (like := f"{first}{name[len(path) :]}") in visited
                ):
                    visited.setdefault(name, visited[like])
        if found[0] is None and found[1] != _TOO_LONG and repeats.twins:
            # A layer may have looked for what another left behind.
            found = _flops(module, tokens, None)
        if found[0] is None and found[1] != _TOO_LONG and experts:
            _spread_experts(module)  # they may have looked for their tokens
            spread = _flops(module, tokens, None)
            found = spread if spread[0] is not None else found
    return found


def _flops(
    module: nn.Module, tokens: int, repeats: _Repeats | None
) -> tuple[int | None, str | None]:
    """FLOPs of a pass over so many tokens, or why there are none.

    A recurrence that the library runs token by token is run over few tokens. Where FLOPs prove to
    be linear and quadratic in them (products, scores of pairs) and little else, that is carried on.
    """
    whole = _pass(module, tokens, most=MOST_OPERATORS, repeats=repeats)
    if whole.reason != _TOO_LONG:
        return whole.flops, whole.reason
    over = functools.partial(_pass, module, most=MOST_OPERATORS, repeats=repeats)
    shortest = over(torch_values.FEW)
    longest = shortest if shortest.reason == _TOO_LONG else over(4 * torch_values.FEW)
    if shortest.operators == longest.operators:  # many layers, but no loop over tokens
        whole = _pass(module, tokens, most=_MANY_TIMES * MOST_OPERATORS, repeats=repeats)
        return whole.flops, whole.reason
    few = (shortest, over(2 * torch_values.FEW), over(3 * torch_values.FEW), longest)
    carried = _carried_on([one.flops for one in few], tokens)
    return carried, None if carried else _TOO_LONG


class _Repeats:
    """Runs one layer of each structure and answers for its twins, which are most of a model.

    Twins are equal in class, in shapes of parameters, in settings, and in the shapes of what they
    are given. They cost what the first did and return tensors like its own: without content there
    is no more to know. The place of a layer in its list is no setting.
    """

    def __init__(self, module: nn.Module) -> None:
        self.twins: dict[str, str] = {}  # the path of a layer, and of the one that ran for it
        self._layers = [(f"{path}.{name}", layer) for path, name, layer in _listed(module, "")]
        self._ran: dict[Any, tuple[str, int, Any]] = {}
        self._counter = _Counter(0)

    def __enter__(self) -> _Repeats:
        for path, layer in self._layers:
            layer.forward = self._standing_in(path, layer)
        return self

    def __exit__(self, *_: object) -> None:
        for _path, layer in self._layers:
            del layer.forward  # that of its class shows again

    def begin(self, counter: _Counter) -> None:
        """A new pass, which `counter` counts, and in which nothing has run."""
        self._counter = counter
        self._ran.clear()

    def _standing_in(self, path: str, layer: nn.Module) -> Any:
        forward, structure = layer.forward, _structure(layer)
        names = [*inspect.signature(forward).parameters]

        @functools.wraps(forward)
        def run(*args: Any, **given: Any) -> Any:
            told = {**dict(zip(names, args, strict=False)), **given}
            leaves, form = tree_flatten({k: v for k, v in told.items() if not k.endswith(_PLACES)})
            key = (structure, str(form), *map(_shape, leaves))
            if key in self._ran:
                self.twins[path], flops, found = self._ran[key]
                self._counter.flops += flops
                return tree_map(_like, found)
            before = self._counter.flops
            found = forward(*args, **given)
            self._ran[key] = path, self._counter.flops - before, tree_map(_like, found)
            return found

        return run


def _structure(layer: nn.Module) -> tuple[Any, ...]:
    """Class, parameters and settings of all modules inside, without the layer's place."""
    settings = (
        (path, name, value)
        for path, inner in layer.named_modules()
        for name, value in vars(inner).items()
        if isinstance(value, _SETTINGS) and not name.endswith(_PLACES)
    )
    shapes = ((name, p.shape) for name, p in layer.named_parameters())
    return (type(layer), *shapes, *settings)


_SETTINGS: Final = (bool, int, float, str)
_PLACES: Final = ("idx", "index", "_id")


def _shape(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.shape, leaf.dtype
    return leaf if isinstance(leaf, _SETTINGS) else type(leaf)


def _like(leaf: Any) -> Any:
    return torch.empty_like(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _batch_experts(module: nn.Module) -> None:
    """Have experts computed by products of one weight per row, which needs no values."""
    for inner in module.modules():
        own = getattr(inner, "config", None)
        if own is not None and hasattr(own, "_experts_implementation"):
            with suppress(Exception):
                own._experts_implementation = "batched_mm"


def _run_all_layers(module: nn.Module) -> None:
    """Have all layers run, and nothing else: `layerdrop` asks a value drawn at random."""
    for inner in module.modules():
        own = getattr(inner, "config", None)
        if any(isinstance(child, nn.ModuleList) for child in inner.children()):
            dropped = (hasattr(at, name) for at in (inner, own) for name in _LAYERDROP)
            inner.training = inner.training and not any(dropped)
        for name in _NOT_OF_A_STEP:
            if getattr(own, name, False):
                setattr(own, name, False)


# Keys and values of former tokens, which a repeated layer would find; spans that the host draws.
_NOT_OF_A_STEP: Final = ("use_cache", "apply_spec_augment")
_LAYERDROP: Final = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")


@contextmanager
def _without_former_keys() -> Iterator[None]:
    """Have a cache, which some classes make unasked, hand back keys and values as given."""
    own = transformers.Cache.update
    transformers.Cache.update = lambda _, keys, values, *__, **___: (keys, values)
    try:
        yield
    finally:
        transformers.Cache.update = own


def _spread_experts(module: nn.Module) -> None:
    """Have experts that look for their tokens by value take equal shares of them instead."""
    for name, (inner, count) in _expert_modules(module).items():
        source = type(inner).forward
        if hasattr(source, "__wrapped__") or source is nn.Module.forward:
            continue  # batched, or called one by one by what is around them
        visits = _stated_visits(module, name)
        inner.forward = functools.partial(_in_shares, inner, count, visits)


def _in_shares(
    experts: Any, count: int, visits: int, tokens: torch.Tensor, *routing: Any
) -> torch.Tensor:
    """What experts make of `tokens` (rows), each of an equal share of the chosen pairs.

    `routing` has the chosen experts, a column each (or one per expert of all, of which a token
    `visits` some), and the weights; what is told the shares as numbers computes them itself.
    """
    if not all(isinstance(told, torch.Tensor) for told in routing):
        shared: torch.Tensor = type(experts).forward(experts, tokens, *routing)
        return shared
    rows = tokens.reshape(-1, tokens.shape[-1])
    chosen = next((t.shape[-1] for t in routing if not t.is_floating_point()), visits)
    visits = chosen if chosen < count else visits
    weights = [w for w in experts.parameters(recurse=False) if w.dim() == 3]
    whole = max((w.shape[0] for w in weights), default=count)
    pairs = len(rows) * visits * min((w.shape[0] for w in weights), default=count) // whole
    index = torch.arange(pairs, device="meta") // visits
    given = rows[index]
    if weights:
        made = _product_of_shares(given, weights)
    else:
        shares = zip(experts.children(), given.tensor_split(count), strict=False)
        made = torch.cat([expert(share) for expert, share in shares if len(share)])
    if (scale := routing[-1]).is_floating_point() and scale.numel() >= pairs:
        made = made * scale.reshape(-1)[:pairs, None]
    return torch.zeros_like(rows).index_add(0, index, made.to(rows.dtype)).view_as(tokens)


def _product_of_shares(given: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """Rows through one stack of weights after the other, half of a twice as wide result a gate."""
    depth = min(w.shape[0] for w in weights)
    each = -(-len(given) // depth)
    used = len(given) // each
    found = given[: used * each].view(used, each, -1)
    for weight in weights:
        width = found.shape[-1]
        if width not in weight.shape[1:] and width // 2 in weight.shape[1:]:
            gate, found = found.chunk(2, dim=-1)
            found = nn.functional.silu(gate) * found
        turned = weight.mT if weight.shape[2] == found.shape[-1] else weight
        found = torch.bmm(found, turned[:used])
    rest = len(given) - used * each  # fewer than one share
    return torch.cat([found.flatten(0, 1), found.flatten(0, 1)[:rest]])


_MANY_TIMES: Final = 20


def _carried_on(few: list[int | None], tokens: int) -> int | None:
    """c + a n + b n² at `tokens`, from passes of n = 1 to 4 times `FEW` that all obey it."""
    found = [flops for flops in few if flops is not None]
    if len(found) < len(few) or found[3] - 3 * found[2] + 3 * found[1] != found[0]:
        return None
    curved = Fraction(found[2] - 2 * found[1] + found[0], 2)
    sloped = found[1] - found[0] - 3 * curved
    constant = found[0] - sloped - curved
    if not 0 <= constant <= _OF_PADDING * found[0]:
        return None
    n = Fraction(tokens, torch_values.FEW)
    return int(constant + sloped * n + curved * n * n)


def carried_on(few: Sequence[TracedModel], run: RunShape) -> TracedModel:
    """The trace at `run`, of traces of 1 to 4 times `FEW` tokens, as `_carried_on` for FLOPs.

    Raises `TimeoutError` where layers or FLOPs do not follow tokens so.
    """
    graphs = [one.graph for one in few]
    found = [int(graph.model_flops) for graph in graphs]
    if _carried_on(list(found), run.sequence_length) is None:
        raise TimeoutError(_TOO_LONG)
    first, n = graphs[0], Fraction(run.sequence_length, torch_values.FEW)
    try:
        classes, edges = (
            _each_carried([getattr(graph, name) for graph in graphs], n)
            for name in ("classes", "edges")
        )
    except ValueError:
        raise TimeoutError(_TOO_LONG) from None
    made = LayerGraph(classes=classes, layers=first.layers, edges=edges, run=run)
    return replace(few[0], graph=made)


def _each_carried(values: Sequence[Any], n: Fraction) -> Any:
    """Numbers of like structures on the parabola through the first three, at `n`."""
    first = values[0]
    if is_dataclass(first) and not isinstance(first, type):
        told = {f.name: [getattr(v, f.name) for v in values] for f in fields(first) if f.init}
        return replace(first, **{name: _each_carried(found, n) for name, found in told.items()})
    if isinstance(first, tuple):
        return tuple(_each_carried(each, n) for each in zip(*values, strict=True))
    if first == values[1] == values[2]:
        return first
    if isinstance(first, bool) or not isinstance(first, (int, float)):
        raise ValueError(first)
    one, two, three = (Fraction(value) for value in values[:3])
    curved = (three - 2 * two + one) / 2
    sloped = two - one - 3 * curved
    return type(first)(max(Fraction(0), one + (sloped + curved * (n + 1)) * (n - 1)))


# A convolution over tokens also multiplies by the padding before the first: less than this share
# of the shortest pass. Chunks of a fixed size would be nearly all of it.
_OF_PADDING: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passed:
    """A pass: its FLOPs, else why there are none, and its operators."""

    flops: int | None = None
    reason: str | None = None
    operators: int = 0


def _pass(module: nn.Module, tokens: int, *, most: int, repeats: _Repeats | None = None) -> _Passed:
    """One pass over so many tokens, ended behind the `most` operators; of twins one runs."""
    failures = []
    for masked in (True, False):  # some look into a mask, others make one if there is none
        counter = _Counter(most)
        try:
            with torch.no_grad(), torch.device("meta"), torch_values.ValuesFromPython(), counter:
                if repeats is not None:
                    repeats.begin(counter)
                module(**torch_values.inputs(module, tokens, masked=masked))
        except TimeoutError:
            return _Passed(reason=_TOO_LONG)
        except Exception as error:  # whatever the library's own code raises
            failures.append(f"{type(error).__name__}: {_first_line(error)}")
        else:
            return _Passed(flops=counter.flops, operators=counter.operators)
    return _Passed(reason=failures[0])


def _note_visits(name: str, count: int, visited: dict[str, int]) -> Any:
    def before(_: nn.Module, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """The chosen experts are the one argument of integers: a row per token."""
        for value in (*args, *keywords.values()):
            if isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32):
                chosen = int(value.shape[-1]) if value.dim() > 1 else 1
                if chosen < count:  # else a mask with a column per expert
                    visited[name] = chosen
                return

    return before


def _first_line(error: BaseException) -> str:
    """What an error says first, with the line that a colon at its end leads to."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    said, *after = lines or [type(error).__name__]
    if said.endswith(":") and after:
        said = f"{said} {after[0]}"
    return said if len(said) <= _LONGEST_LINE else f"{said[: _LONGEST_LINE - 4]} ..."


_LONGEST_LINE: Final = 300


def _quiet() -> ExitStack:
    stack = ExitStack()
    stack.enter_context(warnings.catch_warnings())
    warnings.simplefilter("ignore")
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(_ERRORS_ONLY)
    stack.callback(transformers.logging.set_verbosity, level)
    return stack
