"""Random layers of operators, and two shapes of real ones."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import strategies as st

from oracles_layer import shortest_s
from trainwright.chips.layer_schedule import CoreOperator, LayerProblem, Unit

TIMES = st.integers(0, 6).map(float)


@st.composite
def problems(draw, *, most=5):
    count = draw(st.integers(1, most))
    operators = []
    for _ in range(count):
        unit = draw(st.sampled_from(Unit))
        spreads = unit not in (Unit.LINK, Unit.NONE) and draw(st.booleans())
        operators.append(
            CoreOperator(unit=unit, single_s=draw(TIMES), spread_s=draw(TIMES) if spreads else None)
        )
    pairs = [(u, v) for v in range(count) for u in range(v)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=6)) if pairs else []
    return LayerProblem(
        operators=tuple(operators),
        edges=tuple(edges),
        num_tensor_cores=draw(st.integers(1, 2)),
        num_vector_cores=draw(st.integers(1, 2)),
        exclusive=draw(st.booleans()),
        paired=draw(st.booleans()),
    )


def oracle_s(problem):
    return shortest_s(
        [(o.unit.name, o.single_s, o.spread_s) for o in problem.operators],
        problem.edges,
        problem.num_tensor_cores,
        problem.num_vector_cores,
        exclusive=problem.exclusive,
        paired=problem.paired,
    )


def moe_layer(experts, *, seed=0, tensor=4, vector=4, chain=8):
    """Attention as a chain, a router, experts of several operators side by side, a combine."""
    rng = random.Random(seed)
    operators, edges = [], []

    def add(unit, time_s, *before):
        cores = tensor if unit is Unit.TENSOR else vector
        spread_s = None
        if unit in (Unit.TENSOR, Unit.VECTOR):
            spread_s = time_s / cores * rng.uniform(1.1, 2.0)
        operators.append(CoreOperator(unit=unit, single_s=time_s, spread_s=spread_s))
        edges.extend((u, len(operators) - 1) for u in before)
        return len(operators) - 1

    last = add(Unit.VECTOR, 2.0)
    for k in range(chain):
        last = add(Unit.TENSOR if k % 2 else Unit.VECTOR, rng.randint(2, 12) * 1.0, last)
    router = add(Unit.LINK, 3.0, last)
    ends = []
    for _ in range(experts):
        one = add(Unit.TENSOR, rng.randint(8, 24) * 1.0, router)
        two = add(Unit.TENSOR, rng.randint(8, 24) * 1.0, router)
        gate = add(Unit.VECTOR, rng.randint(2, 6) * 1.0, one)
        both = add(Unit.VECTOR, rng.randint(2, 6) * 1.0, gate, two)
        ends.append(add(Unit.TENSOR, rng.randint(8, 24) * 1.0, both))
    add(Unit.LINK, 3.0, *ends)
    return LayerProblem(
        operators=tuple(operators),
        edges=tuple(edges),
        num_tensor_cores=tensor,
        num_vector_cores=vector,
    )


def dense_layer(count=16):
    operators = tuple(
        CoreOperator(
            unit=Unit.TENSOR if v % 2 else Unit.VECTOR, single_s=4.0 + v, spread_s=1.0 + v / 2
        )
        for v in range(count)
    )
    return LayerProblem(
        operators=operators,
        edges=tuple(pairwise(range(count))),
        num_tensor_cores=8,
        num_vector_cores=2,
    )
