"""Orders of computations → orders in which every transfer is a step of its own; O(n log n).

All actions are put in one order of all ranks, by time; a SEND follows its producer directly, and
the RECV stands before the first action of its rank that comes later in that order. So neither a
blocking receive nor a send that waits for its receiver can lock up, and two ranks see all transfers
between them in one and the same order, which NCCL needs because both directions share a
communicator. A receive window moves receives later, but never out of that order.

Parameters: UNSHARD and RESHARD bring the parameters of a sharded stage and drop them, where the
stages next in use are kept; REDUCE_GRAD follows the last weight gradient of every stage, sharded
or not, because a runtime also divides the gradients by the number of microbatches there.

The rules follow PyTorch's own lowering (`_add_send_recv`, `_add_unshard_reshard`,
`_add_reduce_grad` of torch 2.13), which is quadratic in the number of actions.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.errors import Fault, InvalidInput
from trainwright.plan.lowered import NO_MICROBATCH, LoweredKind, LoweredSchedule
from trainwright.plan.schedule import ActionKind
from trainwright.plan.schedule_costs import ScheduleCosts
from trainwright.scheduling.sharding import parameter_moves
from trainwright.scheduling.simulate import simulate
from trainwright.scheduling.validate import validate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plan.schedule import Schedule

    Rows = NDArray[np.int64]

_F, _I, _W, _B, _R = ActionKind


class _Phase(IntEnum):
    """Where a step stands relative to the action of its row."""

    RESHARD = 0
    UNSHARD = 1
    RECEIVE = 2
    COMPUTE = 3
    SEND = 4
    REDUCE = 5
    LAST_RESHARD = 6


class _Steps(NamedTuple):
    """Steps beside `row`: kind, stage, microbatch; of one row and phase, the lowest `tie` first."""

    kind: Rows
    stage: Rows
    microbatch: Rows
    row: Rows
    phase: _Phase
    tie: Rows


class _Transfers(NamedTuple):
    """Rows that make a tensor for another rank, and the rows that need it."""

    producer: Rows
    consumer: Rows


class _Blocks(NamedTuple):
    """For each row the first and last of those that run together with it: itself, or a pair."""

    first: Rows
    last: Rows


def lower(
    schedule: Schedule,
    *,
    costs: ScheduleCosts | None = None,
    receive_window: int | None = None,
    sharded_stages: Collection[int] = (),
    active_stages: int = 3,
) -> LoweredSchedule:
    """Add transfers and the steps that manage parameters.

    `costs` say in which order things happen; absent, every action takes one second. A receive is
    posted at most `receive_window` actions before the one that needs it; None: as soon as it was
    sent. `active_stages` is how many of `sharded_stages` a rank keeps whole, prefetched ones
    included.

    Raises InvalidInput where the schedule is not legal; a deadlock names the cycle.
    """
    _require_sound_options(schedule, receive_window, sharded_stages, active_stages)
    validate(schedule)
    moment = _moments(schedule, costs or ScheduleCosts.of(schedule.placement))
    blocks = _blocks_of(schedule)
    transfers = _transfers_of(schedule)
    moves = parameter_moves(schedule, frozenset(sharded_stages), keep=active_stages)
    sharding = (
        _parameter_steps(LoweredKind.RESHARD, moves.dropped, _Phase.RESHARD),
        _parameter_steps(LoweredKind.UNSHARD, moves.fetched, _Phase.UNSHARD),
        _parameter_steps(LoweredKind.RESHARD, moves.left, _Phase.LAST_RESHARD),
    )
    return _merge(
        schedule,
        (
            _compute_steps(schedule),
            _send_steps(schedule, transfers, blocks),
            _receive_steps(schedule, transfers, blocks, moment, receive_window),
            _reduce_steps(schedule, blocks),
            *sharding,
        ),
    )


def _require_sound_options(
    schedule: Schedule, window: int | None, sharded: Collection[int], active: int
) -> None:
    faults = []
    if window is not None and window < 0:
        faults.append(Fault("receive_window", f"must be >= 0, got {window}"))
    if active < 1:
        faults.append(Fault("active_stages", f"must be >= 1, got {active}"))
    unknown = sorted(set(sharded) - set(range(schedule.placement.num_stages)))
    if unknown:
        last = schedule.placement.num_stages - 1
        faults.append(Fault("sharded_stages", f"must be from 0 to {last}, got {unknown[0]}"))
    if faults:
        raise InvalidInput(faults)


def _moments(schedule: Schedule, costs: ScheduleCosts) -> Rows:
    """Position of every row in one order of all ranks: by time, and nothing before its needs.

    Actions that take no time start together with what needs them; the depth in the graph of needs
    tells these apart. A pair needs all inputs of both.
    """
    in_sequence = costs.duration_s[_F] + costs.duration_s[_B]
    together = np.where(np.isfinite(costs.pair_s), costs.pair_s, in_sequence)
    start_s = simulate(schedule, replace(costs, pair_s=together)).start_s
    steps = ScheduleCosts.of(schedule.placement, recompute_s=1.0, pair_s=1.0)
    depth = simulate(schedule, steps).start_s
    moment = np.empty(schedule.num_actions, np.int64)
    moment[np.lexsort((depth, start_s))] = np.arange(schedule.num_actions)
    return moment


def _blocks_of(schedule: Schedule) -> _Blocks:
    first = np.arange(schedule.num_actions)
    last = first.copy()
    first[schedule.pairs + 1] -= 1
    last[schedule.pairs] += 1
    return _Blocks(first, last)


def _transfers_of(schedule: Schedule) -> _Transfers:
    kind, stage, microbatch = schedule.actions.T.astype(np.int64)
    rank = np.array(schedule.placement.rank_of_stage)
    num_stages = len(rank)
    row_of = np.zeros((2, num_stages, schedule.num_microbatches), np.int64)
    forward, backward = kind == _F, (kind == _I) | (kind == _B)
    for table, rows in zip(row_of, (forward, backward), strict=True):
        table[stage[rows], microbatch[rows]] = np.flatnonzero(rows)
    target = np.clip(stage + np.where(forward, 1, -1), 0, num_stages - 1)
    crosses = (forward | backward) & (rank[target] != rank[stage])
    producer = np.flatnonzero(crosses)
    consumer = row_of[backward[producer].astype(int), target[producer], microbatch[producer]]
    return _Transfers(producer, consumer)


def _compute_steps(schedule: Schedule) -> _Steps:
    kind, stage, microbatch = schedule.actions.T
    rows = np.arange(schedule.num_actions)
    return _Steps(kind, stage, microbatch, rows, _Phase.COMPUTE, rows)


def _send_steps(schedule: Schedule, transfers: _Transfers, blocks: _Blocks) -> _Steps:
    kind, stage, microbatch = schedule.actions[transfers.producer].T
    kind = np.where(kind == _F, LoweredKind.SEND_F, LoweredKind.SEND_B)
    row = blocks.last[transfers.producer]
    return _Steps(kind, stage, microbatch, row, _Phase.SEND, transfers.producer)


def _receive_steps(
    schedule: Schedule,
    transfers: _Transfers,
    blocks: _Blocks,
    moment: Rows,
    window: int | None,
) -> _Steps:
    """Each before the first action after it was sent, or later; `tie` is the order of sending."""
    size = schedule.num_actions
    rank_of_row = schedule.rank_of_row
    sender, receiver = rank_of_row[transfers.producer], rank_of_row[transfers.consumer]
    sent = moment[blocks.last[transfers.producer]]
    after = np.searchsorted(rank_of_row * size + moment, receiver * size + sent)
    row = blocks.first[after]
    tie = np.empty_like(sent)
    tie[np.lexsort((transfers.producer, sent))] = np.arange(len(sent))
    if window is not None:
        latest = blocks.first[np.maximum(transfers.consumer - window, row)]
        row = _no_later_than_the_next(
            np.concatenate([latest, blocks.first[transfers.producer]]),
            group=np.concatenate(
                [receiver * schedule.num_ranks + sender, sender * schedule.num_ranks + receiver]
            ),
            position=np.concatenate([tie, tie]),
        )[: len(latest)]
    kind, stage, microbatch = schedule.actions[transfers.consumer].T
    kind = np.where(kind == _F, LoweredKind.RECV_F, LoweredKind.RECV_B)
    return _Steps(kind, stage, microbatch, row, _Phase.RECEIVE, tie)


def _no_later_than_the_next(row: Rows, *, group: Rows, position: Rows) -> Rows:
    """The smallest row of those at the same or a later position in the same group."""
    order = np.lexsort((position, group))
    apart = group[order] * (int(row.max(initial=0)) + 1)
    smallest = np.minimum.accumulate((row[order] + apart)[::-1])[::-1] - apart
    result = np.empty_like(row)
    result[order] = smallest
    return result


def _reduce_steps(schedule: Schedule, blocks: _Blocks) -> _Steps:
    kind, stage = schedule.actions[:, 0], schedule.actions[:, 1]
    rows = np.flatnonzero((kind == _W) | (kind == _B))
    last = np.zeros(schedule.placement.num_stages, np.int64)
    np.maximum.at(last, stage[rows], rows)
    stages = np.arange(len(last))
    return _parameter_steps(
        LoweredKind.REDUCE_GRAD, np.stack([stages, blocks.last[last], last], axis=1), _Phase.REDUCE
    )


def _parameter_steps(kind: LoweredKind, moves: Rows, phase: _Phase) -> _Steps:
    """Steps from [k, 3] stage, row, tie."""
    stage, row, tie = moves.T
    return _Steps(
        np.full_like(stage, kind), stage, np.full_like(stage, NO_MICROBATCH), row, phase, tie
    )


def _merge(schedule: Schedule, parts: tuple[_Steps, ...]) -> LoweredSchedule:
    size = schedule.num_actions
    keys = [(part.row * len(_Phase) + part.phase) * size + part.tie for part in parts]
    order = np.argsort(np.concatenate(keys), kind="stable")
    columns = [np.concatenate([part[column] for part in parts]) for column in range(4)]
    actions = np.stack([column[order] for column in columns[:3]], axis=1).astype(np.int32)
    row = columns[3][order]
    position = np.flatnonzero(actions[:, 0] <= LoweredKind.R)
    return LoweredSchedule(
        placement=schedule.placement,
        num_microbatches=schedule.num_microbatches,
        actions=actions,
        rank_offsets=np.searchsorted(row, schedule.rank_offsets),
        pairs=position[schedule.pairs],
    )
