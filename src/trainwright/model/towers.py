"""Layers of an encoder: what turns patches, sound or words into vectors, its blocks, the projector.

The stack of a tower is a transformer like any other, run over the patches of one image at a time;
see `config.Tower` for what it is given. Without images a tower keeps its parameters and does no
work. With sequence parallelism the tokens of an image are padded to a multiple of the group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from trainwright.model.config import LayerKind, Projection, Tower, TransformerConfig
from trainwright.model.ends import (
    embedding_exchanges,
    embedding_operators,
    final_norm_operators,
)
from trainwright.model.operator import (
    NO_WORK,
    LayerClass,
    Operator,
    Parameter,
    Phase,
    SavedTensor,
    Shard,
    elementwise,
    inside,
    linear,
    linear_input,
    norm,
)
from trainwright.model.run_shape import RunShape

Block = Callable[[TransformerConfig, RunShape], LayerClass]


def tower_layers(config: TransformerConfig, run: RunShape, *, block: Block) -> list[LayerClass]:
    """The layers of every tower of `config` in order; `block` makes one of a stack."""
    towers = [tower.at(run.sequence_length) for tower in config.towers]
    return [layer for tower in towers for layer in _layers(tower, config, run, block)]


def tower_edge_bytes(config: TransformerConfig, run: RunShape) -> list[float]:
    """What each of these layers hands on, in bytes that one device of the tensor group sends."""
    element = run.precision.activation_bytes / run.tensor_parallel
    count = run.microbatch_size * config.images
    found = []
    for tower in (tower.at(run.sequence_length) for tower in config.towers):
        hidden = element * count * tower.patches * tower.stack.hidden_size
        width = tower.stack.hidden_size if config.crosses else config.hidden_size
        out = element * count * tower.tokens * width
        found += [hidden] * (1 + tower.stack.num_layers) + [out]
    return found


def _layers(
    tower: Tower, config: TransformerConfig, run: RunShape, block: Block
) -> Iterator[LayerClass]:
    own = image_run(run, length=tower.patches, images=config.images)
    kinds: dict[TransformerConfig, LayerClass] = {}
    made = [_front(tower, own)]
    for index in range(tower.stack.num_layers):
        stated = tower.stack.block(index)
        if stated not in kinds:
            kinds[stated] = replace(block(stated, own), kind=LayerKind.ENCODER_BLOCK)
        made.append(kinds[stated])
    made.append(_projector(tower, config, run))
    if config.images:
        yield from made
        return
    idle = {id(layer): _idle(layer) for layer in made}
    yield from (idle[id(layer)] for layer in made)


def image_run(run: RunShape, *, length: int, images: int) -> RunShape:
    """How `images` of each sequence run, each as a sequence of `length` tokens of its own."""
    shards = run.sequence_shards
    return replace(
        run,
        microbatch_size=run.microbatch_size * max(1, images),
        sequence_length=math.ceil(length / shards) * shards,
        context_parallel=1,
        expert_parallel=1,
        expert_tensor_parallel=None,
    )


def _idle(layer: LayerClass) -> LayerClass:
    """The layer with its parameters alone."""
    held = tuple(
        Operator(name=op.name, kind=op.kind, forward=NO_WORK, parameters=op.parameters)
        for op in layer.operators
        if op.parameters
    )
    return LayerClass(kind=layer.kind, operators=held)


def _front(tower: Tower, run: RunShape) -> LayerClass:
    """The product of patches, with positions and a norm where there are any."""
    if tower.words:
        return LayerClass(
            kind=LayerKind.PATCH_EMBEDDING,
            operators=embedding_operators(tower.stack, run),
            exchanges=embedding_exchanges(tower.stack, run),
        )
    h = tower.stack.hidden_size
    parameters = [Parameter(name="patch_embedding.weight", count=tower.patch_features * h)]
    if tower.patch_bias:
        parameters.append(Parameter(name="patch_embedding.bias", count=h))
    if tower.parameters:
        parameters.append(Parameter(name=f"{tower.name}_front.weight", count=tower.parameters))
    product = linear(
        "patch_embedding",
        run,
        inputs=tower.patch_features,
        outputs=h,
        split="sequence",
        parameters=tuple(parameters),
        saved=(
            linear_input(
                "patches",
                run,
                width=tower.patch_features,
                shard=Shard.SEQUENCE,
                is_layer_input=True,
                element_bytes=run.precision.activation_bytes,
            ),
        ),
        dtype=run.precision.base_dtype,
    )
    before: list[Operator] = []
    for at, narrow in enumerate(tower.front):
        rows = replace(run, sequence_length=run.sequence_length * narrow.repeats)
        before += _product(narrow, rows, is_first=at == 0)
    last = inside(product) if before else product
    return LayerClass(kind=LayerKind.PATCH_EMBEDDING, operators=(*before, last))


def _projector(tower: Tower, config: TransformerConfig, run: RunShape) -> LayerClass:
    """The products between the last block and the text."""
    operators: list[Operator] = []
    if tower.normed:
        own = image_run(run, length=tower.patches, images=config.images)
        operators += final_norm_operators(tower.stack, own)
    for product in tower.projector:
        length = tower.tokens if product.merged else tower.patches
        rows = image_run(run, length=length, images=config.images)
        operators += _product(product, rows, is_first=not operators)
    return LayerClass(kind=LayerKind.PROJECTOR, operators=tuple(operators))


def _product(product: Projection, rows: RunShape, *, is_first: bool) -> Iterator[Operator]:
    width = product.inputs
    if product.norm is not None:
        narrow = product.norm_width or width
        before = replace(rows, sequence_length=rows.sequence_length * (width // narrow))
        yield norm(
            f"{product.name}_norm", before, kind=product.norm, width=narrow, is_layer_input=is_first
        )
    inner = product.outputs * (1 + product.gated)
    parameters = [Parameter(name=f"{product.name}.weight", count=width * inner)]
    if product.bias:
        parameters.append(Parameter(name=f"{product.name}.bias", count=inner))
    yield linear(
        product.name,
        rows,
        inputs=width,
        outputs=inner,
        split="sequence",
        parameters=tuple(parameters),
        saved=(
            linear_input(
                f"{product.name}.input",
                rows,
                width=width,
                shard=Shard.SEQUENCE,
                is_layer_input=is_first and product.norm is None,
            ),
        ),
    )
    if product.activation:
        yield _activation(product, rows, inner)
    if product.norm_after is not None:
        yield norm(
            f"{product.name}_output_norm", rows, kind=product.norm_after, width=product.outputs
        )


def _activation(product: Projection, run: RunShape, width: int) -> Operator:
    elements = run.tokens * width
    kept = SavedTensor(
        name=f"{product.name}_activation.input",
        elements=elements,
        element_bytes=run.precision.activation_bytes,
        shard=Shard.SEQUENCE,
        until=Phase.INPUT_GRAD,
    )
    return elementwise(
        f"{product.name}_activation",
        run,
        elements=elements / run.sequence_shards,
        forward=(1, 1),
        backward=(2, 1),
        saved=(kept,),
    )
