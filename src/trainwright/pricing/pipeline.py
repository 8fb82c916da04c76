"""When each stage of a 1F1B pipeline ends, by the longest path through its actions.

Every replica of a stage runs the 1F1B order (Narayanan et al., 2019): as many forwards as it may
hold in flight, then backward and forward in turn. A forward waits for the forwards of the stages
before it and their transfers, a backward for the backwards behind it; both wait for the device.
With microbatches dealt round-robin to the replicas of a stage the order has no cycle for any
degrees, so sweeping over the stages settles every action. O(stages × microbatches), plain Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStage:
    """One stage: seconds per microbatch, replicas, microbatches each may hold in flight.

    `feeds` lists the later stages it sends to as (stage, seconds per transfer); gradients come
    back in the same time.
    """

    forward_s: float
    backward_s: float
    in_flight: int
    replicas: int = 1
    feeds: tuple[tuple[int, float], ...] = ()


def one_f_one_b_ends_s(
    stages: Sequence[PipelineStage], *, num_microbatches: int
) -> tuple[float, ...]:
    """When each stage ends its last backward, from the start of the step.

    `num_microbatches` counts those of the whole batch. Transfers delay the receiver and leave both
    devices free to work.
    """
    feeders: list[list[tuple[int, float]]] = [[] for _ in stages]
    for index, stage in enumerate(stages):
        for target, transfer_s in stage.feeds:
            feeders[target].append((index, transfer_s))
    forward_end = [[-1.0] * num_microbatches for _ in stages]
    backward_end = [[-1.0] * num_microbatches for _ in stages]

    def arrival(
        ends: list[list[float]], sources: Sequence[tuple[int, float]], microbatch: int
    ) -> float:
        """When everything needed is there; negative while something is not yet known."""
        latest = 0.0
        for source, transfer_s in sources:
            end = ends[source][microbatch]
            if end < 0:
                return -1.0
            latest = max(latest, end + transfer_s)
        return latest

    def advance(index: int, replica: int, state: list[float]) -> bool:
        """Run one replica until it has to wait; `state` is forwards, backwards, clock."""
        stage = stages[index]
        own = range(replica, num_microbatches, stage.replicas)
        forwards, backwards, clock = int(state[0]), int(state[1]), state[2]
        while backwards < len(own):
            forward_next = forwards < len(own) and forwards - backwards < stage.in_flight
            microbatch = own[forwards if forward_next else backwards]
            if forward_next:
                ready = arrival(forward_end, feeders[index], microbatch)
            else:
                ready = arrival(backward_end, stage.feeds, microbatch)
            if ready < 0:
                break
            if forward_next:
                clock = max(clock, ready) + stage.forward_s
                forward_end[index][microbatch] = clock
                forwards += 1
            else:
                clock = max(clock, ready) + stage.backward_s
                backward_end[index][microbatch] = clock
                backwards += 1
        moved = forwards + backwards > state[0] + state[1]
        state[:] = forwards, backwards, clock
        return moved

    states = [[[0.0, 0.0, 0.0] for _ in range(stage.replicas)] for stage in stages]
    moved = True
    while moved:
        moved = False
        for index in chain(range(len(stages)), reversed(range(len(stages)))):
            for replica, state in enumerate(states[index]):
                moved |= advance(index, replica, state)
    done = num_microbatches * len(stages)
    settled = sum(state[1] for replicas in states for state in replicas)
    assert settled == done, "the order of a 1F1B pipeline has no cycle"
    return tuple(max(state[2] for state in replicas) for replicas in states)
