"""Random layers of operators, two shapes of real ones, and a check of their schedules."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import strategies as st

from oracles_layer import shortest_s
from trainwright.chips.layer_schedule import CoreOperator, LayerProblem, Unit
from trainwright.errors import Fault

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


# An independent check of a schedule: every rule of the problem, event by event
# -----------------------------------------------------------------------------

_ROUNDING = 1e-12


def find_layer_faults(problem, runs):
    """Every rule that the runs break: times, dependencies, which and how many cores, the link."""
    if len(runs) != len(problem.operators):
        return (Fault("runs", f"must have {len(problem.operators)} entries, got {len(runs)}"),)
    return (*_time_faults(problem, runs), *_core_faults(problem, runs), *_clashes(problem, runs))


def _time_faults(problem, runs):
    for v, run in enumerate(runs):
        wanted_s = problem.duration_s(v, spread=run.spread)
        if run.start_s < 0 or abs(run.end_s - run.start_s - wanted_s) > _ROUNDING * run.end_s:
            yield Fault(f"runs[{v}]", f"must last {wanted_s!r} s from 0 on")
    for u, v in problem.edges:
        if runs[v].start_s < runs[u].end_s:
            yield Fault(f"runs[{v}].start_s", f"must be at or after the end of operator {u}")


def _core_faults(problem, runs):
    for v, run in enumerate(runs):
        tensor, vector, _ = problem.demand_of(v, spread=run.spread)
        cores = (run.tensor_cores, run.vector_cores)
        limits = (problem.num_tensor_cores, problem.num_vector_cores)
        for own, wanted, limit in zip(cores, (tensor, vector), limits, strict=True):
            sound = len(set(own)) == len(own) == wanted and all(0 <= c < limit for c in own)
            if not sound:
                yield Fault(f"runs[{v}]", f"must take {wanted} different cores of {limit}")
        fused = problem.paired and not run.spread and tensor == vector == 1
        if fused and run.tensor_cores != run.vector_cores:
            yield Fault(f"runs[{v}]", "must take cores of one number")


def _clashes(problem, runs):
    """Two operators on one core, or on the link, at one time."""
    busy = {}
    for v, run in enumerate(runs):
        link = problem.demand_of(v, spread=run.spread)[2]
        taken = [("tensor", core) for core in run.tensor_cores]
        taken += [("vector", core) for core in run.vector_cores]
        taken += [("link", 0)] * link
        for place in taken:
            if run.end_s > run.start_s:
                busy.setdefault(place, []).append((run.start_s, run.end_s, v))
    for (kind, core), spans in busy.items():
        spans.sort()
        for (_, end_s, u), (start_s, _, v) in pairwise(spans):
            if start_s < end_s:
                yield Fault(f"runs[{v}]", f"must not share {kind} {core} with operator {u}")
