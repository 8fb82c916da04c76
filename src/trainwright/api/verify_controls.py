"""Orders broken on purpose, for levels 0 and 1: what lets them pass checks nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainwright.errors import InvalidInput
from trainwright.measuring.token_replay import replay_tokens
from trainwright.plan.lowered import LoweredKind
from trainwright.plan.results.verification import Control
from trainwright.plan.schedule import ActionKind, Schedule
from trainwright.scheduling.validate import validate
from trainwright.scheduling.validate_lowered import validate_lowered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainwright.api.verify_subject import Pipeline
    from trainwright.plan.lowered import LoweredSchedule


def controls_of(subject: Pipeline, lowered: LoweredSchedule) -> Iterator[Control]:
    """Each broken copy with the word of the check that has to catch it."""
    schedule = subject.timeline.schedule
    yield _control(0, "two actions swapped", lambda: validate(_swapped(schedule)))
    if schedule.num_ranks > 1:
        yield _control(0, "an action on a wrong rank", lambda: validate(_misplaced(schedule)))
    reduce = _first(lowered, LoweredKind.REDUCE_GRAD)
    assert reduce is not None, "a lowered schedule reduces gradients"
    without = lowered.without(reduce)
    yield _control(0, "gradients not reduced", lambda: validate_lowered(without))
    memory = subject.timeline.costs.memory
    yield _control(1, "gradients not reduced", lambda: replay_tokens(without, memory))
    receive = _first(lowered, LoweredKind.RECV_F)
    if receive is not None:
        missing = lowered.without(receive)
        yield _control(0, "a receive missing", lambda: validate_lowered(missing))
        yield _control(1, "a receive missing", lambda: replay_tokens(missing, memory))
        cyclic = _first_receive_early(lowered)
        if cyclic is not None:
            yield _control(0, "a cycle of waits", lambda: validate_lowered(cyclic))
            yield _control(1, "a cycle of waits", lambda: replay_tokens(cyclic, memory))


def _control(level: int, name: str, run: Callable[[], object]) -> Control:
    try:
        run()
    except InvalidInput as error:
        return Control(level=level, name=name, caught=True, said=str(error.faults[0]))
    return Control(level=level, name=name, caught=False, said="nothing")


def _swapped(schedule: Schedule) -> Schedule:
    """The first forward of the last stage after its backward."""
    last = schedule.placement.num_stages - 1
    kind, stage, microbatch = schedule.actions.T
    of_last = (stage == last) & (microbatch == schedule.forward_order(last)[0])
    forward = int(np.flatnonzero(of_last & (kind == ActionKind.F))[0])
    backward = int(np.flatnonzero(of_last & ((kind == ActionKind.B) | (kind == ActionKind.I)))[0])
    actions = schedule.actions.copy()
    actions[[forward, backward]] = actions[[backward, forward]]
    return _with_actions(schedule, actions)


def _misplaced(schedule: Schedule) -> Schedule:
    """The first actions of the first and the last rank change places."""
    actions = schedule.actions.copy()
    first, other = (int(schedule.rank_offsets[rank]) for rank in (0, -2))
    actions[[first, other]] = actions[[other, first]]
    return _with_actions(schedule, actions)


def _with_actions(schedule: Schedule, actions: np.ndarray) -> Schedule:
    return Schedule(
        placement=schedule.placement,
        num_microbatches=schedule.num_microbatches,
        actions=actions,
        rank_offsets=schedule.rank_offsets,
    )


def _first(lowered: LoweredSchedule, kind: LoweredKind) -> int | None:
    rows = np.flatnonzero(lowered.actions[:, 0] == kind)
    return int(rows[0]) if len(rows) else None


def _first_receive_early(lowered: LoweredSchedule) -> LoweredSchedule | None:
    """Rank 0 waits for its first gradient before it sends anything."""
    from dataclasses import replace

    rows = lowered.rows_of(0)
    kinds = lowered.actions[rows, 0]
    receives = np.flatnonzero(kinds == LoweredKind.RECV_B)
    sends = np.flatnonzero(kinds == LoweredKind.SEND_F)
    if not len(receives) or not len(sends) or receives[0] < sends[0]:
        return None
    actions = lowered.actions.copy()
    own = actions[rows]
    actions[rows] = np.concatenate(
        [own[receives[0] : receives[0] + 1], np.delete(own, receives[0], axis=0)]
    )
    return replace(lowered, actions=actions, pairs=np.zeros(0, np.int64))
