"""List schedules of layers against the solver's: lengths, bounds, CPU seconds.

python benchmarks/layer_schedules.py [EFFORT]

Graphs are those that `codesign` schedules, and the same with a mixture's experts apart: each of n
takes an n-th of the grouped kernel. Random graphs are seeded. The solver needs the extra [exact].
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from trainwright.chips.layer_schedule import (
    CoreOperator,
    CoreSchedule,
    LayerProblem,
    Unit,
    find_layer_faults,
    schedule_backward,
    schedule_forward,
    schedule_layer,
    shorten_layer,
)
from trainwright.chips.workload import TrainingJob
from trainwright.cluster import REFERENCE_DESIGN, ChipTemplate, Surroundings
from trainwright.execution import Budget
from trainwright.formats.catalog import model
from trainwright.units import MIB

FOUR = ChipTemplate(num_tc=4, num_vc=4, width=128, depth=128, glb_bytes=32 * MIB)
FOUND = ChipTemplate(num_tc=16, num_vc=32, width=128, depth=128, glb_bytes=8 * MIB)


def on(chip: ChipTemplate, name: str, *, sequence: int, degree: int) -> dict[str, CoreSchedule]:
    """Both directions of a model's most frequent layer."""
    job = TrainingJob(
        name=name,
        model=model(name).config,
        sequence_length=sequence,
        tensor_degrees=(degree,),
    )
    chain = job.chain(degree)
    block = int(np.argmax(chain.class_counts))
    return {
        "forward": schedule_forward(chip, Surroundings(), chain, block),
        "backward": schedule_backward(chip, Surroundings(), chain, block),
    }


def experts_apart(found: CoreSchedule, count: int) -> LayerProblem:
    """Every expert's kernel by itself, side by side with the others'."""
    copies: list[list[int]] = []
    operators: list[CoreOperator] = []
    names = [*found.names, *[""] * (len(found.problem.operators) - len(found.names))]
    for name, operator in zip(names, found.problem.operators, strict=True):
        parts = count if name.startswith("expert_") else 1
        copies.append(list(range(len(operators), len(operators) + parts)))
        spread_s = None if operator.spread_s is None else operator.spread_s / parts
        operators += [
            replace(operator, single_s=operator.single_s / parts, spread_s=spread_s)
        ] * parts
    edges = []
    for u, v in found.problem.edges:
        alike = len(copies[u]) == len(copies[v])
        edges += (
            list(zip(copies[u], copies[v], strict=True))
            if alike
            else [(a, b) for a in copies[u] for b in copies[v]]
        )
    return replace(found.problem, operators=tuple(operators), edges=tuple(edges))


def random_layer(count: int, cores: int, *, seed: int) -> LayerProblem:
    """Operators of 1 to 20 s on either class, each after up to two of the last eight."""
    draw = random.Random(seed)
    operators, edges = [], []
    for v in range(count):
        single_s = float(draw.randint(1, 20))
        spread_s = single_s * draw.uniform(1 / cores, 1.2)
        unit = draw.choice((Unit.TENSOR, Unit.VECTOR))
        operators.append(CoreOperator(unit=unit, single_s=single_s, spread_s=spread_s))
        before = range(max(0, v - 8), v)
        edges += [(u, v) for u in draw.sample(before, min(len(before), draw.randint(0, 2)))]
    return LayerProblem(
        operators=tuple(operators),
        edges=tuple(edges),
        num_tensor_cores=cores,
        num_vector_cores=cores,
    )


def problems() -> Iterator[tuple[str, LayerProblem]]:
    dense = on(REFERENCE_DESIGN, "gpt3-175b", sequence=2048, degree=8)
    yield "GPT-3 backward, t 8, reference design", dense["backward"].problem
    found = on(FOUND, "gpt3-175b", sequence=2048, degree=4)
    yield "GPT-3 backward, t 4, 16 + 32 cores", found["backward"].problem
    gated = on(REFERENCE_DESIGN, "llama3-8b", sequence=4096, degree=1)
    yield "Llama 3 8B backward, t 1, reference design", gated["backward"].problem
    mixture = on(FOUR, "mixtral-8x7b", sequence=4096, degree=8)
    yield "Mixtral forward, 8 experts apart, 4 + 4 cores", experts_apart(mixture["forward"], 8)
    yield "Mixtral backward, 8 experts apart, 4 + 4 cores", experts_apart(mixture["backward"], 8)
    yield "40 random operators, 2 + 2 cores", random_layer(40, 2, seed=0)
    yield "38 random operators, 4 + 4 cores", random_layer(38, 4, seed=1)


def main() -> None:
    effort = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    for name, problem in problems():
        start = time.process_time()
        listed = schedule_layer(problem)
        listed_s = time.process_time() - start
        start = time.process_time()
        solved = shorten_layer(problem, listed, budget=Budget(), effort=effort)
        solved_s = time.process_time() - start
        assert not find_layer_faults(problem, solved.runs)
        unit = 1.0 if listed.makespan_s > 1 else 1e3
        figures = {
            "operators": len(problem.operators),
            "method": listed.method,
            "list": round(listed.makespan_s * unit, 4),
            "list_bound": round(listed.lower_bound_s * unit, 4),
            "list_gap": round(listed.gap, 4),
            "list_cpu_ms": round(listed_s * 1e3, 1),
            "solver": round(solved.makespan_s * unit, 4),
            "solver_bound": round(solved.lower_bound_s * unit, 4),
            "solver_gap": round(solved.gap, 4),
            "solver_cpu_s": round(solved_s, 1),
        }
        print(json.dumps({"case": name, **figures}), flush=True)


if __name__ == "__main__":
    main()
