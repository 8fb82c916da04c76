"""The shortest schedule of a tiny pipeline by plain enumeration of all orders, without a bound.

Each rank's word is any interleaving of its streams, W after I after F, within the memory limit; all
combinations of words are simulated. Microbatches run in order within a stream: they are alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product

import numpy as np

from trainwright.errors import InvalidInput
from trainwright.plans.schedule import ActionKind, Placement, Schedule, ScheduleCosts
from trainwright.plans.status import Objective
from trainwright.scheduling.simulate import simulate

F, I, W, _B, _R, *_ = ActionKind  # noqa: E741

Word = tuple[tuple[int, int, int], ...]


def shortest_s(
    placement: Placement,
    num_microbatches: int,
    costs: ScheduleCosts,
    max_activations: int,
    objective: Objective,
) -> float:
    """Objective of the best schedule with split backwards."""
    choices = [
        _words(stages, num_microbatches, max_activations) for stages in placement.stages_of_rank
    ]
    best_s = np.inf
    for words in product(*choices):
        schedule = Schedule.of_ranks(
            [np.array(word, np.int32) for word in words],
            placement=placement,
            num_microbatches=num_microbatches,
        )
        try:
            best_s = min(best_s, objective.of(simulate(schedule, costs)))
        except InvalidInput:  # a deadlock
            continue
    return float(best_s)


@lru_cache
def _words(stages: tuple[int, ...], m: int, max_activations: int) -> tuple[Word, ...]:
    return tuple(
        _extended((), {(kind, s): 0 for s in stages for kind in (F, I, W)}, m, max_activations)
    )


def _extended(
    word: Word, count: dict[tuple[int, int], int], m: int, max_activations: int
) -> Iterator[Word]:
    if len(word) == len(count) * m:
        yield word
        return
    live = sum(done * {F: 1, I: 0, W: -1}[kind] for (kind, _), done in count.items())
    stages = sorted({stage for _, stage in count})
    for (kind, stage), done in count.items():
        before = _inputs(count, stages, kind, stage, m)
        if done >= before or (kind == F and live == max_activations):
            continue
        after = {**count, (kind, stage): done + 1}
        yield from _extended((*word, (int(kind), stage, done)), after, m, max_activations)


def _inputs(
    count: dict[tuple[int, int], int], stages: list[int], kind: int, stage: int, m: int
) -> int:
    """For how many microbatches what the rank itself does before is done."""
    at = stages.index(stage)
    if kind == F:
        return count[F, stages[at - 1]] if at else m
    if kind == I and stage != stages[-1]:
        return min(count[F, stage], count[I, stages[at + 1]])
    return count[ActionKind(kind - 1), stage]
