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


def shortest_of_one_chunk_each(
    forward_s: list[int],
    input_grad_s: list[int],
    weight_grad_s: list[int],
    transfer_s: int,
    num_microbatches: int,
    limit: int,
) -> int:
    """Makespan of the best order of a pipeline with one stage per rank, action by action.

    A state is how often each action has run, when each rank is free, and when each microbatch that
    is between two stages can go on. All states are kept but those that another with equal counts
    reaches with no time later.
    """
    p, m = len(forward_s), num_microbatches
    work = (forward_s, input_grad_s, weight_grad_s)
    queues: tuple[tuple[int, ...], ...] = ((),) * (
        2 * p
    )  # before F of each stage, before I of each
    layer = {((0,) * (3 * p)): {((0,) * p, queues)}}
    for _ in range(3 * p * m):
        following: dict[tuple[int, ...], set[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]]]
        following = {}
        for counts, states in layer.items():
            for kind, stage in product(range(3), range(p)):
                done, live = counts[kind * p + stage], counts[stage] - counts[2 * p + stage]
                before = counts[p + stage] if kind == 2 else m
                if done == before or (kind == 0 and live == limit):
                    continue
                after = list(counts)
                after[kind * p + stage] += 1
                for free, waiting in states:
                    own = kind * p + stage
                    at_hand = kind == 2 or (kind == 0 and stage == 0)
                    if not at_hand and not waiting[own]:
                        continue
                    start = free[stage] if at_hand else max(free[stage], waiting[own][0])
                    end = start + work[kind][stage]
                    queue = list(waiting)
                    if not at_hand:
                        queue[own] = queue[own][1:]
                    if kind == 0:
                        then, ready = (stage + 1, end + transfer_s) if stage + 1 < p else (own, end)
                        then = then if stage + 1 < p else p + stage
                        queue[then] = (*queue[then], ready)
                    elif kind == 1 and stage > 0:
                        queue[p + stage - 1] = (*queue[p + stage - 1], end + transfer_s)
                    now = (*free[:stage], end, *free[stage + 1 :])
                    following.setdefault(tuple(after), set()).add((now, tuple(queue)))
        layer = {counts: _never_later(states) for counts, states in following.items()}
    return min(max(free) for states in layer.values() for free, _ in states)


def _never_later(
    states: set[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]],
) -> set[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]]:
    kept: list[tuple[tuple[int, ...], tuple[tuple[int, ...], ...], np.ndarray]] = []
    for free, waiting in sorted(states, key=lambda state: sum(state[0]) + sum(map(sum, state[1]))):
        times = np.array([*free, *(time for queue in waiting for time in queue)])
        if not any((other <= times).all() for _, _, other in kept):
            kept.append((free, waiting, times))
    return {(free, waiting) for free, waiting, _ in kept}
