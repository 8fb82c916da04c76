"""1F1B over stages with replicas of their own, replayed action by action at the earliest time.

Microbatch j of a stage runs on its replica j mod replicas, where it waits for all stages that feed
this one, and backwards for all that it feeds. A replica runs as many forwards as it may hold in
flight, then backward and forward in turn. Written for reading, as a check on
`native/pipeline_ends.hpp`: O(microbatches × (stages + feeds)), about 2 µs each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainwright.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedStage:
    """Seconds per microbatch, replicas, microbatches each may hold, later stages it feeds."""

    forward_s: float
    backward_s: float
    replicas: int
    in_flight: int
    feeds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReplay:
    """When each stage ends its last backward, and the most that one of its replicas held."""

    end_s: tuple[float, ...]
    most_in_flight: tuple[int, ...]
    num_actions: int


class _Replica:
    """What one replica does, in order, and how far it is."""

    def __init__(self, microbatches: range, in_flight: int) -> None:
        warm = min(in_flight, len(microbatches))
        self.actions: list[tuple[bool, int]] = [(True, j) for j in microbatches[:warm]]
        for index, microbatch in enumerate(microbatches):
            self.actions.append((False, microbatch))
            if index + warm < len(microbatches):
                self.actions.append((True, microbatches[index + warm]))
        self.at, self.clock_s, self.held, self.most = 0, 0.0, 0, 0


def replay_replicas(stages: Sequence[ReplicatedStage], num_microbatches: int) -> ReplicaReplay:
    """Replay a batch; raises InvalidInput where no replica can go on, naming what each waits for.

    `num_microbatches` counts those of the whole batch.
    """
    before: list[list[int]] = [[] for _ in stages]
    for number, stage in enumerate(stages):
        for target in stage.feeds:
            before[target].append(number)
    replicas = [
        [
            _Replica(range(own, num_microbatches, stage.replicas), stage.in_flight)
            for own in range(stage.replicas)
        ]
        for stage in stages
    ]
    ends: tuple[list[dict[int, float]], ...] = ([{} for _ in stages], [{} for _ in stages])
    moved = True
    while moved:
        moved = False
        for number, stage in enumerate(stages):
            for replica in replicas[number]:
                moved |= _go_on(replica, number, stage, before[number], ends)
    stuck = [
        f"a replica of stage {number} waits at {'F' if forward else 'B'}{microbatch}"
        for number, own in enumerate(replicas)
        for replica in own
        if replica.at < len(replica.actions)
        for forward, microbatch in [replica.actions[replica.at]]
    ]
    if stuck:
        raise InvalidInput.of("stages", f"no replica can go on: {'; '.join(stuck[:8])}")
    return ReplicaReplay(
        end_s=tuple(max(replica.clock_s for replica in own) for own in replicas),
        most_in_flight=tuple(max(replica.most for replica in own) for own in replicas),
        num_actions=sum(replica.at for own in replicas for replica in own),
    )


def _go_on(
    replica: _Replica,
    number: int,
    stage: ReplicatedStage,
    fed_by: Sequence[int],
    ends: tuple[list[dict[int, float]], ...],
) -> bool:
    """Run actions until one has to wait; whether any ran."""
    began = replica.at
    forward_ends, backward_ends = ends
    while replica.at < len(replica.actions):
        forward, microbatch = replica.actions[replica.at]
        sources = fed_by if forward else stage.feeds
        done = forward_ends if forward else backward_ends
        if not all(microbatch in done[source] for source in sources):
            break
        ready_s = max((done[source][microbatch] for source in sources), default=0.0)
        taken_s = stage.forward_s if forward else stage.backward_s
        replica.clock_s = max(replica.clock_s, ready_s) + taken_s
        done[number][microbatch] = replica.clock_s
        replica.held += 1 if forward else -1
        replica.most = max(replica.most, replica.held)
        replica.at += 1
    return replica.at > began
