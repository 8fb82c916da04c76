"""Orders of computations → orders in which every transfer is a step of its own; O(n log n).

All actions are put in one order of all ranks, by time; a SEND follows its producer directly, and
the RECV stands before the first action of its rank that comes later in that order. So neither a
blocking receive nor a send that waits for its receiver can lock up, and two ranks see all transfers
between them in one and the same order, which NCCL needs because both directions share a
communicator. A receive window moves receives later, but never out of that order.

Parameters: UNSHARD and RESHARD bring the parameters of a sharded stage and drop them, where the
stages next in use are kept; REDUCE_GRAD follows the last weight gradient of every stage, sharded
or not, because a runtime also divides the gradients by the number of microbatches there.

Copies to and from the host are steps of their own rank alone. Around a head that is cut over all
ranks, a SHARE follows its producer and never waits, being a collective beside the computation; the
GET stands where a receive would that all of them have been sent to.

The rules follow PyTorch's own lowering (`_add_send_recv`, `_add_unshard_reshard`,
`_add_reduce_grad` of torch 2.13), which is quadratic in the number of actions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.errors import Fault, InvalidInput
from trainwright.plans.lowered import (
    HEAD_EXCHANGES,
    NO_MICROBATCH,
    LoweredKind,
    LoweredSchedule,
    refuse_inexpressible,
)
from trainwright.plans.schedule import ON_HOST_LINK, ActionKind, Schedule, ScheduleCosts
from trainwright.scheduling.simulate import Wait, all_paired, describe_cycle, simulate, validate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]


# When a rank gathers the parameters of its sharded stages, and when it drops them
# --------------------------------------------------------------------------------
# A rank keeps the stages it uses next, as many as it has room for: at each action the ones that are
# missing are gathered and the others dropped. A stage that was gathered is used before it is
# dropped, because its place among those in use next never gets worse until then.


class ParameterMoves(NamedTuple):
    """Each [k, 3]: stage, row, tie; of one row, the lowest tie first.

    `fetched` and `dropped` come before their row, `left` after the last row of its rank.
    """

    fetched: Rows
    dropped: Rows
    left: Rows


def parameter_moves(schedule: Schedule, sharded: frozenset[int], *, keep: int) -> ParameterMoves:
    """Moves of all ranks that have stages in `sharded`, with room for `keep` of them at once.

    A pair of actions on two stages has room for both.
    """
    none = np.zeros((0, 3), np.int64)
    moves = ParameterMoves(none, none, none)
    for rank, stages in enumerate(schedule.placement.stages_of_rank):
        own = np.array([stage for stage in stages if stage in sharded], np.int64)
        if len(own) and schedule.rank_offsets[rank] < schedule.rank_offsets[rank + 1]:
            more = _moves_of_rank(schedule, rank, own, keep)
            moves = ParameterMoves(*map(np.concatenate, zip(moves, more, strict=True)))
    return moves


def _moves_of_rank(schedule: Schedule, rank: int, own: Rows, keep: int) -> ParameterMoves:
    rows = schedule.rows_of(rank)
    length = rows.stop - rows.start
    next_use = _next_use(schedule.actions[rows, 1], own)
    place = np.argsort(np.argsort(next_use, axis=0, kind="stable"), axis=0, kind="stable")
    whole = (place < keep) & (next_use < length)
    pairs = schedule.pairs[(schedule.pairs >= rows.start) & (schedule.pairs < rows.stop)]
    first = pairs - rows.start
    whole[:, first] |= whole[:, first + 1]
    whole[:, first + 1] = whole[:, first]
    change = np.diff(whole.astype(np.int8), axis=1, prepend=0)
    fetched, dropped = np.nonzero(change == 1), np.nonzero(change == -1)
    left = np.flatnonzero(whole[:, -1])
    return ParameterMoves(
        fetched=_moves(own[fetched[0]], rows.start + fetched[1], place[fetched]),
        dropped=_moves(own[dropped[0]], rows.start + dropped[1], own[dropped[0]]),
        left=_moves(own[left], np.full_like(left, rows.stop - 1), own[left]),
    )


def _next_use(stage_of_row: NDArray[np.int32], own: Rows) -> Rows:
    """Of each own stage the position of its next action, at or after each; [own, rows]."""
    length = len(stage_of_row)
    here = np.arange(length)
    used = np.where(stage_of_row == own[:, None], here, length)
    return np.minimum.accumulate(used[:, ::-1], axis=1)[:, ::-1]


def _moves(stage: Rows, row: Rows, tie: Rows) -> Rows:
    return np.stack([stage, row, tie], axis=1)


# A schedule in the terms of PyTorch's pipeline runtime, where it can be put so
# -----------------------------------------------------------------------------
# The last stage must meet the microbatches in order 0..m-1 (`plans.lowered` says why).
# Nothing tells microbatches apart but their number, so the numbers are changed, alike on all ranks.


def meets_in_order(schedule: Schedule) -> bool:
    """Whether microbatches are already numbered as the last stage meets them."""
    met = schedule.forward_order(schedule.placement.num_stages - 1)
    return bool((met == np.arange(len(met))).all())


def as_pytorch_runs(schedule: Schedule) -> Schedule:
    """The same schedule with microbatches numbered as the last stage meets them; O(actions).

    Raises InvalidInput where it is no legal schedule, and UnsupportedFeature, naming what can be
    done instead, where PyTorch cannot run it.
    """
    refuse_inexpressible(schedule)
    validate(schedule)
    met = schedule.forward_order(schedule.placement.num_stages - 1)
    number = np.empty_like(met)
    number[met] = np.arange(len(met))
    actions = schedule.actions.copy()
    actions[:, 2] = number[actions[:, 2]]
    return replace(schedule, actions=actions)


# Orders of computations → orders in which every transfer is a step of its own; O(n log n)
# ----------------------------------------------------------------------------------------

_F, _I, _W, _B, _R, _O, _D, _L, _V, _T = ActionKind


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
            # Before the receives of what was sent at the same time or later.
            *_head_steps(schedule, transfers, blocks, moment),
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
    tells these apart. A pair needs all inputs of both. A copy to or from the host is issued with
    the computation before it, whenever its link is free.
    """
    in_sequence = costs.duration_s[_F] + costs.duration_s[_B]
    together = np.where(np.isfinite(costs.pair_s), costs.pair_s, in_sequence)
    hidden = np.zeros_like(costs.compute_s)
    hidden[_F] = costs.compute_s[_F] / 2
    start_s = simulate(schedule, replace(costs, pair_s=together, network_s=hidden)).start_s
    depth = simulate(schedule, all_paired(schedule)).start_s
    copies = np.isin(schedule.actions[:, 0], ON_HOST_LINK)
    if copies.any():
        first = schedule.rank_offsets[schedule.rank_of_row]
        rows = np.where(copies, first - 1, np.arange(schedule.num_actions))
        issuer = np.maximum.accumulate(rows)
        start_s = np.where(issuer < first, 0.0, start_s[issuer])
        depth = np.where(issuer < first, 0.0, depth[issuer])
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
    edge = np.concatenate([[False], schedule.placement.has_edge, [False]])
    hands_on = np.where(forward, edge[stage + 1], edge[stage])
    crosses = (forward | backward) & hands_on & (rank[target] != rank[stage])
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
    rows = np.flatnonzero((kind == _W) | (kind == _B) | (kind == _T))
    last = np.zeros(schedule.placement.num_stages, np.int64)
    np.maximum.at(last, stage[rows], rows)
    stages = np.arange(len(last))
    return _parameter_steps(
        LoweredKind.REDUCE_GRAD, np.stack([stages, blocks.last[last], last], axis=1), _Phase.REDUCE
    )


def _head_steps(
    schedule: Schedule, transfers: _Transfers, blocks: _Blocks, moment: Rows
) -> Iterator[_Steps]:
    """SHARE after what it gives, GET before the first action after all of them were given.

    `tie` of a GET is the number of tensors that were sent before.
    """
    if not schedule.head_barriers or schedule.num_ranks == 1:
        return
    kind, stage, microbatch = schedule.actions.T.astype(np.int64)
    rank_of_row, size = schedule.rank_of_row, schedule.num_actions
    first = np.array([stages[0] for stages in schedule.placement.stages_of_rank])
    last = schedule.placement.rank_of_stage[-1]
    everywhere = np.arange(schedule.num_ranks)
    is_output = (kind == _F) & (stage == schedule.placement.num_stages - 1)
    exchanges = [
        (LoweredKind.SHARE_F, is_output, everywhere[everywhere != last]),
        (LoweredKind.SHARE_V, kind == _V, everywhere),
    ]
    if schedule.head_barriers > 1:
        exchanges.append(
            (LoweredKind.SHARE_T, (kind == _T) & (rank_of_row != last), everywhere[[last]])
        )
    sent_before = np.sort(moment[blocks.last[transfers.producer]])
    for share, gives, takers in exchanges:
        rows = np.flatnonzero(gives)
        named, after_row = first[rank_of_row[rows]], blocks.last[rows]
        yield _Steps(
            np.full_like(rows, share), named, microbatch[rows], after_row, _Phase.SEND, rows
        )
        given = np.zeros(schedule.num_microbatches, np.int64)
        np.maximum.at(given, microbatch[rows], moment[after_row])
        taker, taken = (each.ravel() for each in np.meshgrid(takers, np.arange(len(given))))
        key = taker * size + given[taken]
        after = blocks.first[np.searchsorted(rank_of_row * size + moment, key, side="right")]
        yield _Steps(
            np.full_like(taken, HEAD_EXCHANGES[share]),
            first[taker],
            taken,
            after,
            _Phase.RECEIVE,
            np.searchsorted(sent_before, given[taken]),
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
    position = np.flatnonzero(actions[:, 0] < LoweredKind.SEND_F)
    return LoweredSchedule(
        placement=schedule.placement,
        num_microbatches=schedule.num_microbatches,
        actions=actions,
        rank_offsets=np.searchsorted(row, schedule.rank_offsets),
        pairs=position[schedule.pairs],
        num_slices=schedule.num_slices,
        head_barriers=schedule.head_barriers,
    )


# Whether lowered orders run to their end when receives block; if not, the cycle of waits
# ---------------------------------------------------------------------------------------
# Only transfers wait, each for steps of other ranks, so a run is a walk of p pointers over the
# transfers: O(transfers). With rendezvous, as with messages too large to be buffered, a send
# also waits until its receiver gets there.


class Matches(NamedTuple):
    """Rows of a SEND and of its RECV, entry by entry, and of a SHARE and each GET of it."""

    send: Rows
    receive: Rows
    share: Rows
    get: Rows


class _Barrier(NamedTuple):
    """The step in `row` runs when rank `other` has reached row `until`."""

    row: int
    other: int
    until: int


def find_lowered_cycle(
    lowered: LoweredSchedule, matches: Matches, *, rendezvous: bool
) -> tuple[Wait, ...]:
    """The waits that form a cycle; empty where every rank gets to its end."""
    barriers = _barriers_by_rank(lowered, matches, rendezvous=rendezvous)
    stuck = _run(barriers)
    if not stuck:
        return ()
    partner = dict(zip(matches.receive.tolist(), matches.send.tolist(), strict=True))
    partner |= dict(zip(matches.send.tolist(), matches.receive.tolist(), strict=True))
    waits: dict[int, Wait] = {}
    rank = min(stuck)
    while rank not in waits:
        barrier = stuck[rank]
        needed = lowered.step(partner.get(barrier.row, barrier.until - 1))
        waits[rank] = Wait(rank, lowered.step(barrier.row), needed, barrier.other)
        rank = barrier.other
    return tuple(waits.values())[list(waits).index(rank) :]


def _barriers_by_rank(
    lowered: LoweredSchedule, matches: Matches, *, rendezvous: bool
) -> list[list[_Barrier]]:
    """A receive needs its sender past the send; with rendezvous, both need the other there.

    A GET needs all of its SHAREs begun, which never wait.
    """
    row = np.concatenate([matches.receive, matches.get])
    until = np.concatenate([matches.send + (0 if rendezvous else 1), matches.share + 1])
    other = np.concatenate([matches.send, matches.share])
    if rendezvous:
        row = np.concatenate([row, matches.send])
        until = np.concatenate([until, matches.receive])
        other = np.concatenate([other, matches.receive])
    rank_of_row = lowered.rank_of_row
    order = np.argsort(row, kind="stable")
    columns = (row[order], rank_of_row[other[order]], until[order])
    every = list(map(_Barrier, *(column.tolist() for column in columns)))
    ends = np.searchsorted(row[order], lowered.rank_offsets).tolist()
    return [every[ends[rank] : ends[rank + 1]] for rank in range(lowered.num_ranks)]


def _run(barriers: list[list[_Barrier]]) -> dict[int, _Barrier]:
    """Let every rank go as far as it can; returns what the ranks that stopped short wait for."""
    end = 1 + max((barrier.until for rank in barriers for barrier in rank), default=0)
    reached = [rank[0].row if rank else end for rank in barriers]
    passed = [0] * len(barriers)
    sleepers: list[list[int]] = [[] for _ in barriers]
    stuck: dict[int, _Barrier] = {}
    ready = list(range(len(barriers)))
    while ready:
        rank = ready.pop()
        own, start = barriers[rank], passed[rank]
        at = start
        while at < len(own) and reached[own[at].other] >= own[at].until:
            at += 1
            reached[rank] = own[at].row if at < len(own) else end
        passed[rank] = at
        if at < len(own):
            stuck[rank] = own[at]
            sleepers[own[at].other].append(rank)
        else:
            stuck.pop(rank, None)
        if at > start:
            ready += sleepers[rank]
            sleepers[rank] = []
    return stuck


# What makes lowered orders run and give the right gradients
# ----------------------------------------------------------
# 1. The computations alone are a legal schedule, and nothing comes between those of a pair.
# 2. Each tensor another rank needs is sent once, after it was made, and received once, before it is
#    used; nothing else is sent or received.
# 3. For each ordered pair of ranks, what is sent first is received first: messages carry no name.
# 4. Each stage has REDUCE_GRAD once, after its last weight gradient: it also divides by m.
# 5. A stage that is ever gathered is whole whenever it computes, and gathered and dropped in turn.
# 6. With blocking receives, every rank gets to its end.
# 7. Around a cut head, each rank gives and gets what `plans.lowered` says, once per microbatch,
#    after it was made and before it is used, and all ranks in one order: collectives have no name.

_MISSING = -1


class _Direction(NamedTuple):
    """One way tensors travel: which kinds make, send, receive and use them, and where they go."""

    producers: tuple[LoweredKind, ...]
    send: LoweredKind
    receive: LoweredKind
    step: int


_DIRECTIONS = (
    _Direction((LoweredKind.F,), LoweredKind.SEND_F, LoweredKind.RECV_F, 1),
    _Direction((LoweredKind.I, LoweredKind.B), LoweredKind.SEND_B, LoweredKind.RECV_B, -1),
)


def validate_lowered(lowered: LoweredSchedule, *, rendezvous: bool = False) -> None:
    """Raise InvalidInput with the first law the orders break; O(n log n).

    With `rendezvous`, sends wait for their receivers, as where messages are not buffered.
    """
    validate(lowered.compute_only())
    for law in (_owned, _paired, _once, _in_order, _exchanged, _reduced, _gathered):
        for fault in law(lowered):
            raise InvalidInput((fault,))
    matches = _matches(lowered)
    for fault in _same_sequences(lowered, matches):
        raise InvalidInput((fault,))
    cycle = find_lowered_cycle(lowered, matches, rendezvous=rendezvous)
    if cycle:
        raise InvalidInput.of("orders", describe_cycle(cycle))


def _owned(lowered: LoweredSchedule) -> Iterator[Fault]:
    owner = np.array(lowered.placement.rank_of_stage)[lowered.actions[:, 1]]
    for row in np.flatnonzero(owner != lowered.rank_of_row).tolist():
        problem = f"{lowered.step(row)} must be on rank {owner[row]}, which owns its stage"
        yield Fault(lowered.place_of(row), problem)


def _paired(lowered: LoweredSchedule) -> Iterator[Fault]:
    for row in lowered.pairs[lowered.actions[lowered.pairs + 1, 0] >= LoweredKind.SEND_F].tolist():
        yield Fault(lowered.place_of(row + 1), "must not stand between the two actions of a pair")


def _once(lowered: LoweredSchedule) -> Iterator[Fault]:
    """Each transfer that the placement makes necessary, and no other."""
    rank = np.array(lowered.placement.rank_of_stage)
    for direction in _DIRECTIONS:
        for kind, step in ((direction.send, direction.step), (direction.receive, -direction.step)):
            wanted = np.zeros(len(rank), np.int64)
            edges = np.flatnonzero(lowered.placement.has_edge & (rank[1:] != rank[:-1]))
            wanted[edges if step == 1 else edges + 1] = 1
            found = _counts(lowered, kind)
            for stage, microbatch in np.argwhere(found != wanted[:, None]):
                name = f"{stage}{kind.name}{microbatch}"
                count = found[stage, microbatch]
                yield Fault("orders", f"{name} must appear {wanted[stage]} times, got {count}")


def _in_order(lowered: LoweredSchedule) -> Iterator[Fault]:
    """On each rank: made, then sent; received, then used."""
    for direction in _DIRECTIONS:
        made = lowered.rows_by_microbatch(direction.producers)
        for kind, before in ((direction.send, False), (direction.receive, True)):
            moved = lowered.rows_by_microbatch((kind,))
            wrong = (moved != _MISSING) & ((moved > made) if before else (moved < made))
            for row, other in zip(moved[wrong].tolist(), made[wrong].tolist(), strict=True):
                word = "before" if before else "after"
                problem = f"{lowered.step(row)} must come {word} {lowered.step(other)}"
                yield Fault(lowered.place_of(row), problem)


def _matches(lowered: LoweredSchedule) -> Matches:
    """The k-th send from one rank to another and the k-th receive there, over all pairs."""
    kind, stage, _ = lowered.actions.T
    rank = np.array(lowered.placement.rank_of_stage)
    pair = np.zeros(len(kind), np.int64)
    sends, receives = np.zeros(len(kind), bool), np.zeros(len(kind), bool)
    for direction in _DIRECTIONS:
        sent, received = kind == direction.send, kind == direction.receive
        pair[sent] = rank[stage[sent]] * len(rank) + rank[stage[sent] + direction.step]
        pair[received] = rank[stage[received] - direction.step] * len(rank) + rank[stage[received]]
        sends |= sent
        receives |= received
    sent_rows, received_rows = (
        rows[np.argsort(pair[rows], kind="stable")]
        for rows in (np.flatnonzero(sends), np.flatnonzero(receives))
    )
    exchanges = [_exchange_rows(lowered, share) for share in HEAD_EXCHANGES]
    shared, got = (np.concatenate(part).astype(np.int64) for part in zip(*exchanges, strict=True))
    return Matches(sent_rows, received_rows, shared, got)


def _exchange_rows(lowered: LoweredSchedule, share: LoweredKind) -> tuple[list[int], list[int]]:
    """Rows of every SHARE with each GET that takes of it; the laws before hold."""
    get = HEAD_EXCHANGES[share]
    shared, got = [], []
    for rank in range(lowered.num_ranks):
        taken = _rows_on(lowered, rank, (get,))
        for other in lowered.peers(get, rank):
            shared += _rows_on(lowered, other, (share,)).tolist()  # in one order on all ranks
            got += taken.tolist()
    return shared, got


def _same_sequences(lowered: LoweredSchedule, matches: Matches) -> Iterator[Fault]:
    sent, received = lowered.actions[matches.send], lowered.actions[matches.receive]
    step = np.where(sent[:, 0] == LoweredKind.SEND_F, 1, -1)
    same = (
        (received[:, 0] == sent[:, 0] + 1)
        & (received[:, 1] == sent[:, 1] + step)
        & (received[:, 2] == sent[:, 2])
    )
    for at in np.flatnonzero(~same).tolist():
        send, receive = int(matches.send[at]), int(matches.receive[at])
        sender = lowered.rank_of_row[send]
        problem = f"{lowered.step(receive)} gets what rank {sender} sent as {lowered.step(send)}"
        yield Fault(lowered.place_of(receive), f"{problem}; receive in the order of sending")


def _exchanged(lowered: LoweredSchedule) -> Iterator[Fault]:
    """Law 7, over the rows of each kind on each rank."""
    end = lowered.placement.num_stages - 1
    last = lowered.placement.rank_of_stage[end]
    for share, get in HEAD_EXCHANGES.items():
        sequences = []
        for rank, stages in enumerate(lowered.placement.stages_of_rank):
            for kind in (share, get):
                rows = _rows_on(lowered, rank, (kind,))
                wanted = lowered.num_microbatches if lowered.peers(kind, rank) else 0
                order = lowered.actions[rows, 2].tolist()
                if len(order) != wanted or len(set(order)) != wanted:
                    problem = f"rank {rank} must run {kind.name} of {wanted} microbatches"
                    yield Fault(f"orders[{rank}]", f"{problem}, got {len(order)}")
                    return
                sequences += [order] if wanted else []
                for beside, stage in _beside(
                    lowered, kind, (*stages, -1)[0], end if rank == last else -1
                ):
                    yield from _follow(lowered, rows, _rows_on(lowered, rank, beside, stage))
        if any(order != sequences[0] for order in sequences):
            problem = f"{share.name} and {get.name} must come in one order on all ranks"
            yield Fault("orders", f"{problem}: collectives have no name")


def _beside(
    lowered: LoweredSchedule, kind: LoweredKind, own: int, end: int
) -> Iterator[tuple[tuple[LoweredKind, ...], int]]:
    """What makes or uses what is exchanged, and in which stage; `end` is the last on its rank."""
    gradient = (LoweredKind.I, LoweredKind.B)
    if kind is LoweredKind.GET_T or (
        kind is LoweredKind.GET_V and lowered.head_barriers == 1 and end >= 0
    ):
        yield gradient, end
    if kind is LoweredKind.SHARE_F:
        yield (LoweredKind.F,), end
    elif kind in (LoweredKind.GET_F, LoweredKind.SHARE_V):
        yield (LoweredKind.V,), own
    elif kind in (LoweredKind.GET_V, LoweredKind.SHARE_T):
        yield (LoweredKind.T,), own


def _follow(lowered: LoweredSchedule, rows: Rows, beside: Rows) -> Iterator[Fault]:
    """A SHARE after its microbatch's row of `beside`, a GET before it."""
    at = np.zeros(lowered.num_microbatches, np.int64)
    at[lowered.actions[beside, 2]] = beside
    for row in rows.tolist():
        step, other = lowered.step(row), int(at[lowered.actions[row, 2]])
        gives = step.kind in HEAD_EXCHANGES
        if row < other if gives else row > other:
            problem = f"must come {'after' if gives else 'before'} {lowered.step(other)}"
            yield Fault(lowered.place_of(row), f"{step} {problem}")


def _rows_on(
    lowered: LoweredSchedule, rank: int, kinds: tuple[LoweredKind, ...], stage: int | None = None
) -> Rows:
    """Rows of a rank with a step of one of `kinds`, of one stage if it is given."""
    own = lowered.rows_of(rank)
    wanted = np.isin(lowered.actions[own, 0], kinds)
    if stage is not None:
        wanted &= lowered.actions[own, 1] == stage
    rows: Rows = own.start + np.flatnonzero(wanted)
    return rows


def _reduced(lowered: LoweredSchedule) -> Iterator[Fault]:
    rows = np.arange(len(lowered.actions))
    kind, stage = lowered.actions[:, 0], lowered.actions[:, 1]
    reduces = kind == LoweredKind.REDUCE_GRAD
    counts = np.bincount(stage[reduces], minlength=lowered.placement.num_stages)
    for wrong in np.flatnonzero(counts != 1).tolist():
        problem = f"{wrong}REDUCE_GRAD must appear once, got {counts[wrong]}"
        yield Fault("orders", f"{problem}; it divides the gradients by the microbatches")
    last = np.zeros(lowered.placement.num_stages, np.int64)
    grads = (kind == LoweredKind.W) | (kind == LoweredKind.B)
    np.maximum.at(last, stage[grads], rows[grads])
    for row in rows[reduces][rows[reduces] < last[stage[reduces]]].tolist():
        problem = f"{lowered.step(row)} must come after {lowered.step(int(last[stage[row]]))}"
        yield Fault(lowered.place_of(row), problem)


def _gathered(lowered: LoweredSchedule) -> Iterator[Fault]:
    kind, stage = lowered.actions[:, 0], lowered.actions[:, 1]
    change = np.select([kind == LoweredKind.UNSHARD, kind == LoweredKind.RESHARD], [1, -1], 0)
    computes = kind < LoweredKind.SEND_F
    for sharded in np.unique(stage[change != 0]).tolist():
        rows = np.flatnonzero((stage == sharded) & (computes | (change != 0)))
        whole = np.cumsum(change[rows])
        wrong = (whole < 0) | (whole > 1) | (computes[rows] & (whole == 0))
        for row in rows[wrong].tolist():
            step = lowered.step(row)
            rule = "between UNSHARD and RESHARD" if step.kind < LoweredKind.SEND_F else "in turn"
            yield Fault(lowered.place_of(row), f"{step} must come {rule}")


def _counts(lowered: LoweredSchedule, kind: LoweredKind) -> Rows:
    shape = (lowered.placement.num_stages, lowered.num_microbatches)
    found = lowered.actions[lowered.actions[:, 0] == kind]
    flat = found[:, 1].astype(np.int64) * shape[1] + found[:, 2]
    return np.bincount(flat, minlength=shape[0] * shape[1]).reshape(shape)
