"""An independent check of a layer's schedule: every rule of the problem, event by event."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from trainwright.errors import Fault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.codesign.layer_problem import LayerProblem
    from trainwright.codesign.layer_replay import Run

_ROUNDING: Final = 1e-12


def find_layer_faults(problem: LayerProblem, runs: Sequence[Run]) -> tuple[Fault, ...]:
    """Every rule that the runs break: times, dependencies, which and how many cores, the link."""
    if len(runs) != len(problem.operators):
        return (Fault("runs", f"must have {len(problem.operators)} entries, got {len(runs)}"),)
    return (*_time_faults(problem, runs), *_core_faults(problem, runs), *_clashes(problem, runs))


def _time_faults(problem: LayerProblem, runs: Sequence[Run]) -> Iterator[Fault]:
    for v, run in enumerate(runs):
        wanted_s = problem.duration_s(v, spread=run.spread)
        if run.start_s < 0 or abs(run.end_s - run.start_s - wanted_s) > _ROUNDING * run.end_s:
            yield Fault(f"runs[{v}]", f"must last {wanted_s!r} s from 0 on")
    for u, v in problem.edges:
        if runs[v].start_s < runs[u].end_s:
            yield Fault(f"runs[{v}].start_s", f"must be at or after the end of operator {u}")


def _core_faults(problem: LayerProblem, runs: Sequence[Run]) -> Iterator[Fault]:
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


def _clashes(problem: LayerProblem, runs: Sequence[Run]) -> Iterator[Fault]:
    """Two operators on one core, or on the link, at one time."""
    busy: dict[tuple[str, int], list[tuple[float, float, int]]] = {}
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
