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


def shortest_of_all_orders(
    rank_of_stage: tuple[int, ...],
    times_s: tuple[list[int], list[int], list[int]],
    transfer_s: int,
    num_microbatches: int,
    limit: int,
) -> int:
    """Makespan of the best order, by states, with `times_s` of F, I and W per stage.

    A state is how often each action has run, when each rank is free, and when each microbatch that
    is between two actions can go on. All are kept but those that another with equal counts reaches
    with no time later.
    """
    num, m = len(rank_of_stage), num_microbatches
    layer = {((0,) * (3 * num)): {((0,) * (max(rank_of_stage) + 1), ((),) * (3 * num))}}
    for _ in range(3 * num * m):
        following: dict[tuple[int, ...], set[State]] = {}
        for counts, states in layer.items():
            for action in range(3 * num):
                kind, stage = divmod(action, num)
                rank = rank_of_stage[stage]
                live = sum(
                    counts[s] - counts[2 * num + s] for s in range(num) if rank_of_stage[s] == rank
                )
                if counts[action] == m or (kind == 0 and live == limit):
                    continue
                after = (*counts[:action], counts[action] + 1, *counts[action + 1 :])
                for free, waiting in states:
                    if action and not waiting[action]:
                        continue
                    start = max(free[rank], waiting[action][0]) if action else free[rank]
                    end = start + times_s[kind][stage]
                    queues = list(waiting)
                    queues[action] = queues[action][1:]
                    for then in _then(action, num):
                        hop = transfer_s if rank_of_stage[then % num] != rank else 0
                        queues[then] = (*queues[then], end + hop)
                    now = (*free[:rank], end, *free[rank + 1 :])
                    following.setdefault(after, set()).add((now, tuple(queues)))
        layer = {counts: _never_later(states) for counts, states in following.items()}
    return min(max(free) for states in layer.values() for free, _ in states)


State = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]


def _then(action: int, num: int) -> list[int]:
    """What of the same microbatch an action makes ready: F is 0 .. num-1, then I, then W."""
    if action < num:
        return [action + 1 if action + 1 < num else 2 * num - 1]
    if action < 2 * num:
        return [action + num, *([action - 1] if action > num else [])]
    return []


def _never_later(
    states: set[State],
) -> set[State]:
    kept: list[tuple[tuple[int, ...], tuple[tuple[int, ...], ...], np.ndarray]] = []
    for free, waiting in sorted(states, key=lambda state: sum(state[0]) + sum(map(sum, state[1]))):
        times = np.array([*free, *(time for queue in waiting for time in queue)])
        if not any((other <= times).all() for _, _, other in kept):
            kept.append((free, waiting, times))
    return {(free, waiting) for free, waiting, _ in kept}
