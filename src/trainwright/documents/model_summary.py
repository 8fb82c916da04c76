"""What a model is: parameters by part, layers by kind, FLOPs and cache, what cannot be cut how.

Parameters are counted once each, a tied head not again. `parameters_active` leaves out, of the
routed experts, those that a token does not visit; `parameters_mtp`, of layers that predict further
tokens, stand apart from both. FLOPs are two per multiply-add of products and convolutions, scores
in full square, the head at every position, one token of a sequence of `sequence_length`. The
backward pass is twice the forward, less what is frozen. The cache is what each further token would
attend to: keys and values (or their latent), states of recurrence, in 16 bit for one sequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trainwright.documents.view import Cell, Table, column, words
from trainwright.model import LayerGraph, LayerKind, RunShape, TransformerConfig, layer_graph
from trainwright.model.run_shape import ONE_TOKEN
from trainwright.model.transformer import cache_bytes, kind_names
from trainwright.plans.plan import FORMAT_VERSION, CommandLine, Embedded
from trainwright.provenance import RARE
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from trainwright.formats.hf_config import ModelDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPart:
    """A part of a model and its parameters."""

    name: str
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersOfKind:
    """Layers of one kind: how many, parameters of one."""

    kind: str
    count: int
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """A model in figures; `counted_by` says whether our formulas or a library's own code did it.

    `description` is the config.json of a model that is not built in, so that the document stands
    for it; FLOPs are with `images` of `image_size` pixels a side in each sequence, where there are.
    """

    kind: str = "model"
    format_version: int = FORMAT_VERSION
    name: str
    model_type: str
    counted_by: str
    parameters_total: int
    parameters_active: int
    parameters_mtp: int
    parts: tuple[ModelPart, ...]
    layers: tuple[LayersOfKind, ...]
    sequence_length: int
    flops_forward_per_token: float
    flops_backward_per_token: float
    cache_bytes: float | None
    limits: tuple[str, ...]
    notes: tuple[str, ...]
    images: int = field(default=0, metadata={RARE: True})
    image_size: int | None = None
    description: Embedded | None = None
    command_line: CommandLine | None = None


def summary_of(found: ModelDescription, *, sequence_length: int) -> ModelSummary:
    """Figures of a model that our own layers describe, at no more tokens than it has positions."""
    config, asked = found.config, sequence_length
    positions = [c.max_positions for c in (config, *(t.stack for t in config.towers))]
    sequence_length = min([asked, *(count for count in positions if count)])
    run = RunShape(microbatch_size=1, sequence_length=sequence_length, vocabulary_multiple=1)
    graph = layer_graph(config, run)
    without = layer_graph(replace(config, num_mtp_layers=0), run)
    fewer = f"figures are at {sequence_length} tokens: as many positions are learned"
    return ModelSummary(
        name=found.name,
        model_type=found.model_type,
        counted_by="formulas",
        parameters_total=without.num_parameters,
        parameters_active=without.num_active_parameters,
        parameters_mtp=graph.num_parameters - without.num_parameters,
        parts=tuple(_parts(config, without)),
        layers=tuple(_kinds(config, graph)),
        sequence_length=sequence_length,
        flops_forward_per_token=without.model_flops / sequence_length,
        flops_backward_per_token=(without.model_step_flops - without.model_flops) / sequence_length,
        cache_bytes=cache_bytes(config, sequence_length),
        limits=tuple(_limits(config)),
        notes=(*found.doubts, *found.notes, *([fewer] if sequence_length < asked else [])),
    )


def _parts(config: TransformerConfig, graph: LayerGraph) -> Iterator[ModelPart]:
    """Embedding, blocks by what is in them, head; tensors that two parts share are the first's."""
    names = {LayerKind.BLOCK: "layers"}
    if config.experts is not None:
        names[LayerKind.BLOCK] += " without routed experts"
    if any(tower.words for tower in config.towers):
        names[LayerKind.PATCH_EMBEDDING] = "embedding"
    seen: set[str] = set()
    sums: dict[str, int] = {}
    for index in graph.layers:
        layer = graph.classes[index]
        for parameter in layer.parameters:
            if parameter.shared is not None:
                if parameter.shared in seen:
                    continue
                seen.add(parameter.shared)
            name = names.get(layer.kind, str(layer.kind).replace("_", " "))
            if parameter.expert:
                name = "routed experts"
            sums[name] = sums.get(name, 0) + parameter.count
    return (ModelPart(name=name, parameters=count) for name, count in sums.items() if count)


def _kinds(config: TransformerConfig, graph: LayerGraph) -> Iterator[LayersOfKind]:
    """Blocks of one class are of one kind; further predicted tokens stand in `parameters_mtp`."""
    images = Counter(c for c in graph.layers if graph.classes[c].kind is LayerKind.ENCODER_BLOCK)
    for index, count in images.items():
        parameters = graph.classes[index].num_parameters
        kind = _ENCODERS.get(config.towers[0].name, "encoder")
        yield LayersOfKind(kind=kind, count=count, parameters=parameters)
    blocks = [c for c in graph.layers if graph.classes[c].kind is LayerKind.BLOCK]
    names = kind_names(config)
    for index in dict.fromkeys(blocks):
        yield LayersOfKind(
            kind=names[blocks.index(index)],
            count=blocks.count(index),
            parameters=graph.classes[index].num_parameters,
        )


_ENCODERS = {"vision": "encoder of images", "sound": "encoder of sound"}  # by the tower's name
_DEGREES = 256  # up to which degrees are listed


def _limits(config: TransformerConfig) -> Iterator[str]:
    """What sizes forbid, in the order of the axes."""
    degrees = config.tensor_degrees(range(1, _DEGREES + 1))
    line = f"tensor parallel: --tp may be {', '.join(map(str, degrees))}"
    refused = (t for t in range(1, _DEGREES + 1) if t not in degrees)
    runs = (replace(ONE_TOKEN, tensor_parallel=t) for t in refused)
    faults = (fault for run in runs for fault in config.faults_at(run))
    rules = dict.fromkeys(fault.problem.partition(", got")[0] for fault in faults)
    yield line + (f"; it {', '.join(rules)}" if rules else "")
    if config.experts is None:
        yield "expert parallel: none, there are no experts"
    else:
        yield f"expert parallel: divisors of {config.experts.num_experts}"
    yield from config.context_limits()


# The summary on one screen
# -------------------------


def model_summary_report(found: ModelSummary) -> Iterator[str | Table]:
    """A line of totals, two tables, then costs, limits and notes."""
    total, active = found.parameters_total, found.parameters_active
    line = f"{found.name} ({found.model_type}): {_short(total)} parameters ({total:,})"
    if active != total:
        line += f", {_short(active)} active ({active:,})"
    yield line
    if found.parameters_mtp:
        yield f"beside them, to predict further tokens: {_short(found.parameters_mtp)}"
    yield Table(
        title="Parameters",
        columns=(words("part"), column("parameters"), column("share", "share")),
        rows=tuple(
            (
                Cell.of(part.name),
                Cell(text=f"{part.parameters:,}", value=part.parameters),
                Cell(text=f"{part.parameters / total:.1%}", value=part.parameters / total),
            )
            for part in found.parts
        ),
    )
    yield Table(
        title="Layers",
        columns=(words("kind"), column("count"), column("parameters each", "parameters")),
        rows=tuple(
            (Cell.of(r.kind), Cell.of(r.count), Cell(text=f"{r.parameters:,}", value=r.parameters))
            for r in found.layers
        ),
    )
    forward, backward = found.flops_forward_per_token, found.flops_backward_per_token
    yield (
        f"FLOPs per token at {found.sequence_length} tokens: forward {forward / 1e9:.4g} G, "
        f"backward {backward / 1e9:.4g} G"
    )
    if found.cache_bytes is not None:
        yield (
            f"cache of one sequence of {found.sequence_length} tokens in 16 bit: "
            f"{format_bytes(found.cache_bytes)}"
        )
    yield from found.limits
    yield f"counted by {found.counted_by}"
    yield from found.notes


def _short(count: int) -> str:
    """A count in thousands, millions, billions, to four digits."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= size:
            return f"{count / size:.4g} {letter}"
    return str(count)
