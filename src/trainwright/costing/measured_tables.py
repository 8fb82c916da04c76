"""The profile of a model whose layers somebody timed and listed in tables.

The tables say what forward and backward of each layer take, collectives included, its parameters
and what it keeps. They do not split the backward; the update, once a step, is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from trainwright.errors import InvalidInput
from trainwright.model import Precision
from trainwright.profile import (
    CostTable,
    Edge,
    Layer,
    Profile,
    ProfilePoint,
    Recompute,
    Structure,
)
from trainwright.profile.measured_layers import MeasuredLayers
from trainwright.provenance import Origin, Provenance

Figures = tuple[tuple[float, float], tuple[float, float, float]]
LayerKey = tuple[Figures, ...]  # one entry per tensor degree: (forward, backward), sizes


def profile_of_tables(
    layers: MeasuredLayers,
    model: str,
    accelerator: str,
    *,
    microbatch_size: int,
    tensor_parallel: Sequence[int],
    precision: Precision,
    source: str,
) -> Profile:
    """One option per tensor degree; layers with equal figures share a class.

    A microbatch that was not measured is interpolated, and the provenance says so. Raises
    `InvalidInput` where the tables lack the model, the device or a degree.
    """
    degrees = sorted(set(tensor_parallel))
    by_degree = [
        _figures(layers, model, accelerator, microbatch_size=microbatch_size, degree=degree)
        for degree in degrees
    ]
    keys = list(zip(*by_degree, strict=True))
    classes = list(dict.fromkeys(keys))
    exact = all((model, accelerator, microbatch_size, t) in layers.times_s for t in degrees)
    origin = Origin.MEASURED if exact else Origin.INTERPOLATED
    point = ProfilePoint(
        microbatch_size=microbatch_size,
        tensor_parallel=tuple(degrees),
        precision=precision.name,
        recompute=(str(Recompute.NONE),),
        device_kind=accelerator,
    )
    table = _table(
        classes,
        degrees,
        microbatch_size=microbatch_size,
        precision=precision,
        provenance=Provenance(origin=origin, source=source),
    )
    chain = _chain(keys, classes, microbatch_size)
    return Profile(structure=chain, costs=table, point=point)


def _figures(
    layers: MeasuredLayers, model: str, accelerator: str, *, microbatch_size: int, degree: int
) -> list[Figures]:
    """Of each layer: forward and backward seconds, then parameters, output and saved bytes."""
    times = layers.times_at(
        model, accelerator, microbatch_size=microbatch_size, tensor_parallel=degree
    )
    sizes = layers.sizes.get((model, degree))
    if times is None or sizes is None or len(times) != len(sizes):
        raise InvalidInput.of("csv", _missing(layers, model, accelerator, degree))
    return [((time[0], time[1]), size) for time, size in zip(times, sizes, strict=True)]


def _chain(keys: list[LayerKey], classes: list[LayerKey], microbatch_size: int) -> Structure:
    """Embedding, blocks, head; an edge carries the output of its source."""
    names = ["embedding", *["block"] * (len(keys) - 2), "lm_head"][: len(keys)]
    return Structure(
        layers=tuple(
            Layer(id=index, name=name, layer_class=classes.index(key))
            for index, (name, key) in enumerate(zip(names, keys, strict=True))
        ),
        edges=tuple(
            Edge(
                source=source,
                target=target,
                bytes=microbatch_size * min(sizes[1] for _, sizes in keys[source]),
            )
            for source, target in pairwise(range(len(keys)))
        ),
    )


def _table(
    classes: list[LayerKey],
    degrees: list[int],
    *,
    microbatch_size: int,
    precision: Precision,
    provenance: Provenance,
) -> CostTable:
    rows = [row for key in classes for row in key]
    count, none = len(rows), Recompute.NONE
    parameters = np.array([sizes[0] for _, sizes in rows])
    states = (precision.weight_bytes, precision.gradient_bytes, precision.optimizer_bytes)
    static = np.zeros((count, 2, 3))
    static[:, 0, :] = np.outer(parameters, states)
    return CostTable(
        class_offsets=np.array([0, *accumulate(map(len, classes))]),
        option_ids=(str(none),) * count,
        tensor_parallel=np.array(degrees * len(classes)),
        recompute=(none,) * count,
        duration_s=np.array([sum(times_s) for times_s, _ in rows]),
        saved_until_input_grad_bytes=np.array([microbatch_size * s[2] for _, s in rows]),
        saved_until_weight_grad_bytes=np.zeros(count),
        transient_bytes=np.zeros(count),
        static_bytes=static,
        opaque_static_bytes=np.zeros(count),
        gradient_sync_bytes=np.stack(
            (parameters * precision.gradient_bytes, np.zeros(count)), axis=1
        ),
        boundary_offsets=np.zeros(count + 1, dtype=np.int64),
        boundary_bytes=np.zeros(0),
        provenance=provenance,
    )


def _missing(layers: MeasuredLayers, model: str, accelerator: str, degree: int) -> str:
    """What is not in the tables, and what is."""
    names = sorted({name for name, *_ in layers.times_s})
    if model not in names:
        return f'must have times of model "{model}"; it has {", ".join(names)}'
    kinds = sorted({kind for name, kind, *_ in layers.times_s if name == model})
    if accelerator not in kinds:
        return f'must have times of {model} on "{accelerator}"; it has {", ".join(kinds)}'
    timed = sorted(
        {t for name, kind, _, t in layers.times_s if (name, kind) == (model, accelerator)}
    )
    sized = sorted({t for name, t in layers.sizes if name == model})
    return (
        f"must have times and sizes of the same layers of {model} at tensor degree {degree}; it "
        f"has times at {timed} and sizes at {sized}"
    )
