"""Random profile files: everything the nouns of the waist can say."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from trainwright.profile import (
    Collective,
    CostTable,
    Edge,
    Layer,
    Origin,
    PhaseTimes,
    Profile,
    ProfileFile,
    ProfilePoint,
    Provenance,
    Recompute,
    Setting,
    SharedParameters,
    Structure,
)

amounts = st.just(0.0) | st.floats(0, 1e300) | st.integers(0, 2**60).map(float)
counts = st.integers(1, 10**12)
names = st.text(max_size=4)
words = st.text(min_size=1, max_size=4)

provenances = st.builds(Provenance, origin=st.sampled_from(Origin), source=names)

settings = st.builds(
    Setting,
    num_devices=counts,
    memory_bytes=st.floats(1e-300, 1e300),
    bandwidth_bytes_per_s=st.floats(1e-300, 1e300),
    num_microbatches=counts,
)


def _tuples(entries, **limits):
    return st.lists(entries, **limits).map(tuple)


points = st.builds(
    ProfilePoint,
    microbatch_size=st.none() | counts,
    sequence_length=st.none() | counts,
    tensor_parallel=st.just((1,)) | _tuples(counts, max_size=3),
    context_parallel=st.just(1) | counts,
    expert_parallel=st.just(1) | counts,
    expert_tensor_parallel=st.none() | counts,
    sequence_parallel=st.booleans(),
    precision=st.none() | names,
    recompute=_tuples(names, max_size=2),
    network_levels=_tuples(st.tuples(words, _tuples(names, max_size=2)), max_size=2),
    device_kind=st.none() | names,
    kernels=_tuples(names, max_size=2),
)

collectives = st.builds(
    Collective,
    axis=words,
    kind=words,
    bytes=amounts,
    phase=words,
    hides_under=st.none() | names,
)


@st.composite
def structures(draw, num_classes: int):
    """Layers of all classes in some order, edges along the order of indices."""
    ids = draw(st.lists(st.integers(), min_size=num_classes, max_size=6, unique=True))
    classes = [*range(num_classes)]
    classes += [draw(st.sampled_from(classes)) for _ in ids[num_classes:]]
    classes = draw(st.permutations(classes))
    pairs = [(u, v) for v in range(len(ids)) for u in range(v)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=6)) if pairs else []
    indices = st.integers(0, len(ids) - 1)
    shared = st.builds(SharedParameters, layers=_tuples(indices, max_size=3), bytes=amounts)
    return Structure(
        layers=tuple(
            Layer(id=layer_id, name=draw(names), layer_class=layer_class)
            for layer_id, layer_class in zip(ids, classes, strict=True)
        ),
        edges=tuple(Edge(source=u, target=v, bytes=draw(amounts)) for u, v in chosen),
        shared_parameters=draw(_tuples(shared, max_size=2)),
    )


@st.composite
def cost_tables(draw, num_classes: int, boundary_lengths: list[set[int]]):
    """Rows of every class; `boundary_lengths[c]` are the degrees of the layers of class c."""
    options = st.tuples(words, st.sampled_from([1, 2, 8]))
    rows = [
        (layer_class, option_id, degree)
        for layer_class in range(num_classes)
        for option_id, degree in draw(st.lists(options, min_size=1, max_size=3, unique=True))
    ]
    count = len(rows)
    per_class = np.bincount([row[0] for row in rows], minlength=num_classes)
    lengths = [_boundary_length(draw, boundary_lengths[row[0]]) for row in rows]
    row_of = _columns(draw, count)
    return CostTable(
        class_offsets=np.concatenate(([0], np.cumsum(per_class))),
        option_ids=tuple(row[1] for row in rows),
        tensor_parallel=np.array([row[2] for row in rows]),
        recompute=tuple(draw(st.sampled_from(Recompute)) for _ in rows),
        duration_s=row_of(),
        saved_until_input_grad_bytes=row_of(),
        saved_until_weight_grad_bytes=row_of(),
        transient_bytes=row_of(),
        static_bytes=row_of(2, 3),
        opaque_static_bytes=row_of(),
        gradient_sync_bytes=row_of(2),
        boundary_offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        boundary_bytes=np.array([draw(amounts) for _ in range(sum(lengths))]),
        provenance=draw(provenances),
        phases=_phases(row_of) if draw(st.booleans()) else None,
        time_by_kind_s=row_of(4) if draw(st.booleans()) else None,
        energy_j=row_of() if draw(st.booleans()) else None,
        collectives=tuple(draw(_tuples(collectives, max_size=2)) for _ in rows)
        if draw(st.booleans())
        else None,
        trained_weight_bytes=row_of(2) if draw(st.booleans()) else None,
    )


def _boundary_length(draw, degrees: set[int]) -> int:
    """A row may state boundary values only where all layers of its class have one degree."""
    return draw(st.sampled_from([0, *degrees])) if len(degrees) == 1 else 0


def _columns(draw, count: int):
    def column(*shape: int):
        size = count * int(np.prod(shape, dtype=int))
        some = draw(st.lists(amounts, min_size=1, max_size=4))
        return np.resize(np.array(some), size).reshape((count, *shape))

    return column


def _phases(row_of) -> PhaseTimes:
    return PhaseTimes(
        forward_s=row_of(), input_grad_s=row_of(), weight_grad_s=row_of(), recompute_s=row_of()
    )


@st.composite
def profiles(draw):
    num_classes = draw(st.integers(1, 3))
    structure = draw(structures(num_classes))
    degrees = [set() for _ in range(num_classes)]
    for layer, before, after in zip(
        structure.layers, structure.in_edges(), structure.out_edges(), strict=True
    ):
        degrees[layer.layer_class].add(len(before) + len(after))
    return Profile(
        structure=structure, costs=draw(cost_tables(num_classes, degrees)), point=draw(points)
    )


profile_files = st.builds(
    ProfileFile,
    profiles=_tuples(profiles(), min_size=1, max_size=2),
    setting=st.none() | settings,
)
