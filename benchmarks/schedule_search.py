"""What the schedule search reaches with its default work: prints the rows of the dated report.

`python benchmarks/schedule_search.py SECTION…` with sections small, large, unequal, chunks, tight,
published, waves, within_p, front.
Chunks needs TRAINWRIGHT_SHARED. SHARE_OF_WORK=0.4 shortens `published`, `waves` and `within_p`, and
SEED=N draws others.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from trainwright.execution import Budget
from trainwright.plans.schedule import Placement, ScheduleCosts
from trainwright.plans.status import Objective
from trainwright.scheduling.candidates import SearchOutcome, SearchQuestion
from trainwright.scheduling.search import (
    default_evaluations,
    named_front,
    search_schedule,
    searched_front,
)

SMALL = [((3, 4, 2, 0), 8), ((2, 3, 2, 0), 8), ((4, 5, 3, 0), 12), ((1, 1, 1, 0), 8)]
LARGE = [
    ((1000, 1000, 1000, 0), 8, 32, (8, 10)),
    ((1000, 1000, 1000, 50), 8, 32, (8, 10)),
    ((1000, 1000, 1000, 0), 16, 64, (12, 18)),
    ((1000, 1000, 1000, 50), 16, 64, (12, 18, 32)),
    ((1296, 1260, 870, 20), 16, 64, (12, 18, 32)),
]
UNEQUAL = [{0: 1.15, 15: 1.4}, {3: 1.25, 7: 1.25, 11: 1.25, 15: 1.25}]


_TIMES = ("forward_s", "input_grad_s", "weight_grad_s", "transfer_s")


def question_of(
    placement: Placement,
    m: int,
    limit: int,
    times: tuple[object, ...],
    objective: Objective = Objective.SPAN,
) -> SearchQuestion:
    return SearchQuestion(
        placement=placement,
        num_ranks=placement.num_ranks,
        num_microbatches=m,
        costs=ScheduleCosts.of(placement, **dict(zip(_TIMES, times, strict=True))),
        max_activations=limit,
        objective=objective,
    )


def v_question(p: int, m: int, limit: int, times: tuple[object, ...]) -> SearchQuestion:
    return question_of(Placement.v(p), m, limit, times)


def row(label: str, question: SearchQuestion) -> str:
    before_s = time.process_time()
    outcome = search_schedule(question, budget=Budget())
    cpu_s = time.process_time() - before_s
    assert isinstance(outcome, SearchOutcome)
    timeline = outcome.timeline
    cells = (
        label,
        f"{timeline.span_s:.10g}",
        f"{timeline.makespan_s:.10g}",
        f"{max(outcome.schedule.peak_activations)}",
        f"{outcome.lower_bound_s:.10g} {outcome.bound.name}",
        f"{outcome.gap:.2%}",
        outcome.winner,
        f"{outcome.evaluations:,}",
        f"{cpu_s:.1f}",
    )
    return "| " + " | ".join(cells) + " |"


def small() -> Iterator[str]:
    for times, m in SMALL:
        for limit in range(4, 9):
            yield row(f"{times} p=4 m={m} k={limit}", v_question(4, m, limit, times))


def large() -> Iterator[str]:
    for times, p, m, limits in LARGE:
        for limit in limits:
            yield row(f"{times} p={p} m={m} k={limit}", v_question(p, m, limit, times))


def unequal() -> Iterator[str]:
    for factors in UNEQUAL:
        per_stage = [factors.get(stage, 1.0) for stage in range(16)]
        thousand = [math.floor(1000 * factor + 1e-9) for factor in per_stage]
        weight = [math.floor(700 * factor + 1e-9) for factor in per_stage]
        for limit in (8, 10, 16):
            question = v_question(8, 16, limit, (thousand, thousand, weight, 20))
            yield row(f"{factors} p=8 m=16 k={limit}", question)


def chunks() -> Iterator[str]:
    folder = Path(os.environ["TRAINWRIGHT_SHARED"]) / "data" / "schedules"
    for probe in json.loads((folder / "heterogeneous_probe.json").read_text()):
        for placement in ("loop", "any"):
            question = SearchQuestion(
                placement=placement,
                num_ranks=probe["p"],
                num_microbatches=probe["m"],
                costs=ScheduleCosts.of(
                    Placement.loop(probe["p"]),
                    forward_s=probe["F"],
                    input_grad_s=probe["I"],
                    weight_grad_s=probe["W"],
                    transfer_s=probe["comm"],
                ),
                max_activations=probe["limit"],
            )
            label = f"{probe['case']} m={probe['m']} k={probe['limit']} {placement}"
            yield row(label, question)


def tight() -> Iterator[str]:
    """Random pipelines within a third to a half of 1F1B's memory, one in three uneven: seed 7."""
    draw = random.Random(7)
    for number in range(24):
        p = draw.choice([4, 6, 8, 12])
        m = draw.choice([p, 2 * p, 3 * p, 4 * p])
        name = draw.choice(["v", "v", "loop1", "loop2"])
        placement = Placement.v(p)
        if name != "v":
            placement = Placement.loop(p, virtual_stages=int(name[-1]))
        times = draw.randint(2, 6), draw.randint(2, 7), draw.randint(1, 5)
        transfer_s, spread = draw.choice([0, 0, 0.2]), draw.choice([0, 0, 0.15])
        factors = [1 + spread * draw.uniform(-1, 1) for _ in range(placement.num_stages)]
        chunks_per_rank = placement.num_stages // p
        share = draw.uniform(0.35, 0.9 if name == "loop1" else 0.5)
        limit = max(chunks_per_rank, round(p * chunks_per_rank * share))
        per_stage = [[time_s * factor for factor in factors] for time_s in times]
        question = question_of(placement, m, limit, (*per_stage, transfer_s))
        label = f"{number}: {name} p={p} m={m} {times} transfer {transfer_s} +-{spread} k={limit}"
        yield row(label, question)


def _seed(otherwise: int) -> int:
    return int(os.environ.get("SEED", otherwise))


def published() -> Iterator[str]:
    """Random pipelines of published sizes, from a third of 1F1B's memory to all of it: seed 11."""
    yield from _random_pipelines(_seed(11), 24, names=("v", "v", "loop1", "loop2"), least_share=1.0)


def waves() -> Iterator[str]:
    """The same with waves of four chunks, and with half as many microbatches as ranks: seed 5."""
    names = ("v", "v", "wave4", "loop1", "loop2")
    yield from _random_pipelines(_seed(5), 30, names=names, least_share=0.5)


def within_p() -> Iterator[str]:
    """The three known instances, then random ones with at most one place per rank: seed 13.

    V (half of 1F1B's memory and less) and single loops, F, I and W unequal, no host.
    """
    for p, m, limit in ((8, 32, 8), (16, 64, 12), (6, 12, 7)):
        yield row(f"v p={p} m={m} (3, 4, 2) k={limit}", v_question(p, m, limit, (3, 4, 2, 0)))
    gaps = []
    for label, question in within_p_questions():
        if work := os.environ.get("SHARE_OF_WORK"):
            actions = 3 * question.placement.num_stages * question.num_microbatches
            evaluations = math.ceil(float(work) * default_evaluations(actions))
            question = replace(question, evaluations=evaluations)
        line = row(label, question)
        gaps.append(float(line.split("|")[6].strip(" %")))
        yield line
    gaps.sort()
    yield f"median {gaps[len(gaps) // 2]}%, nine of ten {gaps[math.ceil(0.9 * len(gaps)) - 1]}%"


def within_p_questions() -> Iterator[tuple[str, SearchQuestion]]:
    """The random ones of `within_p`, with what the report calls them."""
    draw = random.Random(_seed(13))
    for number in range(30):
        p = draw.choice([4, 6, 8, 12, 16])
        m = draw.choice([m for m in (8, 16, 24, 32, 48, 64) if p <= m <= 6 * p])
        name = draw.choice(["v", "v", "loop1"])
        placement = Placement.v(p) if name == "v" else Placement.loop(p)
        forward = draw.randint(20, 60)
        input_grad = round(forward * draw.uniform(0.8, 1.6))
        weight_grad = round(forward * draw.uniform(0.5, 1.1))
        limit = draw.randint(math.ceil(0.7 * p), p)
        times = forward, input_grad, weight_grad
        transfer_s = draw.choice([0, 1, 2])
        question = question_of(
            placement, m, limit, (*times, transfer_s), objective=Objective.MAKESPAN
        )
        yield f"{number}: {name} p={p} m={m} {times} k={limit}", question


def _random_pipelines(
    seed: int, count: int, *, names: tuple[str, ...], least_share: float
) -> Iterator[str]:
    """Of placements and at least so many microbatches per rank.

    Stages are alike, uneven, of a hybrid model (each second to fourth takes longer) or heavy at
    both ends; in one of three, activations may wait on the host.
    """
    draw, gaps = random.Random(seed), []
    for number in range(count):
        p = draw.choice([4, 6, 8, 12, 16])
        m = draw.choice([m for m in (8, 16, 24, 32, 48, 64) if least_share * p <= m <= 6 * p])
        name = draw.choice(names)
        placement = Placement.v(p)
        if name == "wave4":
            placement = Placement.wave(p, virtual_stages=4)
        elif name != "v":
            placement = Placement.loop(p, virtual_stages=int(name[-1]))
        forward = draw.randint(20, 60)
        times = (
            forward,
            round(forward * draw.uniform(0.8, 1.6)),
            round(forward * draw.uniform(0.5, 1.1)),
        )
        transfer_s, stages = draw.choice([0, 1, 2]), placement.num_stages
        kind = draw.choice(["even", "random", "hybrid", "ends"])
        factors = [1.0] * stages
        if kind == "random":
            factors = [1 + draw.uniform(-0.15, 0.15) for _ in range(stages)]
        elif kind == "hybrid":
            every, more = draw.choice([2, 3, 4]), draw.uniform(1.1, 1.4)
            factors = [more if s % every == every - 1 else 1.0 for s in range(stages)]
        elif kind == "ends":
            factors = [1.15, *factors[2:], draw.uniform(1.1, 1.4)]
        least = {"v": 1 / 3, "wave4": 0.35, "loop1": 0.5, "loop2": 0.6}[name]
        share = draw.uniform(least, 1.0)
        limit = max(stages // p + 1, math.ceil(stages * share))
        host = number % 3 == 2
        copy_s = forward * draw.uniform(0.3, 1.2) if host else 0.0
        if host:
            limit = max(stages // p + 1, limit // 2)
        per_stage = [[time_s * factor for factor in factors] for time_s in times]
        question = SearchQuestion(
            placement=placement,
            num_ranks=p,
            num_microbatches=m,
            costs=ScheduleCosts.of(
                placement,
                forward_s=per_stage[0],
                input_grad_s=per_stage[1],
                weight_grad_s=per_stage[2],
                transfer_s=transfer_s,
                offload_s=copy_s,
            ),
            max_activations=limit,
            offload=host,
        )
        if work := os.environ.get("SHARE_OF_WORK"):
            whole = default_evaluations(3 * stages * m)
            question = replace(question, evaluations=math.ceil(float(work) * whole))
        label = f"{number}: {name} p={p} m={m} {times} {kind} k={limit}"
        label += f" copies {copy_s:.3g}" if host else ""
        line = row(label, question)
        gaps.append(float(line.split("|")[6].strip(" %")))
        yield line
    gaps.sort()
    yield f"median {gaps[len(gaps) // 2]}%, nine of ten {gaps[math.ceil(0.9 * len(gaps)) - 1]}%"


def front() -> Iterator[str]:
    for p, m in ((16, 64), (64, 256)):
        question = v_question(p, m, 2 * p, (1296, 1260, 870, 20))
        before_s = time.process_time()
        num_points = len(named_front(question))
        cpu_s = time.process_time() - before_s
        yield f"named front, p={p}, m={m}: {num_points} points, {cpu_s:.1f} CPU s"
    question = v_question(16, 64, 32, (1296, 1260, 870, 20))
    before_s = time.process_time()
    points = searched_front(question, budget=Budget())
    yield f"searched front, p=16, m=64: {time.process_time() - before_s:.1f} CPU s"
    for point in points:
        cells = f"{point.peak_activations} | {point.value_s:.10g} | {point.gap:.2%}"
        yield f"| {cells} | {point.source} |"


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    section.__name__: section
    for section in (small, large, unequal, chunks, tight, published, waves, within_p, front)
}

if __name__ == "__main__":
    for name in sys.argv[1:] or SECTIONS:
        for line in SECTIONS[name]():
            print(line, flush=True)
