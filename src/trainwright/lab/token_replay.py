"""A replay that computes nothing: who had what when, and how much every rank kept.

Each forward leaves one token where its output is needed and keeps its activations; backwards use
them up. What is used before it was made, made twice or never used is a fault.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from trainwright.documents.verification import KeptBytes
from trainwright.errors import InvalidInput
from trainwright.plans.lowered import HEAD_EXCHANGES, LoweredAction, LoweredKind, LoweredSchedule
from trainwright.plans.schedule import ACTIVATIONS_OF, Placement, ScheduleMemory

# How far a pipeline's float32 results may be from those of the model in one piece
# --------------------------------------------------------------------------------
# Both add the same terms, in another order: 5e-8 was seen for gradients, where a schedule that
# mixes up microbatches or forgets to divide by their number is off by as much as the gradient
# itself.

LOSS_LIMIT = 1e-5

_GRADIENT_LIMIT = 1e-6


def gradient_limit(largest_entry: float) -> float:
    """The limit for a parameter whose reference gradient has this largest absolute entry."""
    return _GRADIENT_LIMIT * max(1.0, largest_entry)


# Bytes kept before every action of a rank, beside what the order of its actions predicts
# ---------------------------------------------------------------------------------------
# F keeps what one microbatch of its stage keeps when it runs alone, B frees it. Of a split backward
# the runtime chooses how much goes with I and how much with W, so between the two any part is
# right.

_COMPUTATION = re.compile(r"(\d+)([FIWB])(\d+)")


def compare_curve(rank: int, seen: Sequence[tuple[str, float]], alone: Sequence[int]) -> KeptBytes:
    """`seen` holds each action and the bytes before it, `alone` the bytes of F by stage."""
    kept, between = 0.0, 0.0
    peak = predicted_peak = difference = 0.0
    count = 0
    for action, found in seen:
        peak = max(peak, found)
        predicted_peak = max(predicted_peak, kept + between)
        difference = max(difference, kept - found, found - kept - between)
        for stage, kind, _ in _COMPUTATION.findall(action):
            count += 1
            size = float(alone[int(stage)])
            kept += {"F": size, "B": -size, "I": -size, "W": 0.0}[kind]
            between += {"I": size, "W": -size}.get(kind, 0.0)
    return KeptBytes(
        rank=rank,
        peak_bytes=peak,
        predicted_peak_bytes=predicted_peak,
        largest_difference_bytes=difference,
        num_actions=count,
    )


# What the layers of a small stand-in model are, by name; no PyTorch is needed to say it
# --------------------------------------------------------------------------------------
# A stage is a tuple of names: "embedding", "block", "norm", "head", or "gain", a number that is
# learned, where nothing else is on a stage. A name ends in ":full" where the layer keeps its input
# alone and runs again, in ":offload" where all that it keeps is copied away and back, in
# ":selective" where attention scores and the activation run again.

Stage: TypeAlias = tuple[str, ...]

EMBEDDING: Final = "embedding"
BLOCK: Final = "block"
NORM: Final = "norm"
HEAD: Final = "head"
GAIN: Final = "gain"
MOST_LAYERS: Final = 64


def whole_model(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The stages with an embedding in front and a head behind, where they have none."""
    first, last = list(stages[0]), list(stages[-1])
    if not any(kind_of(name) == EMBEDDING for stage in stages for name in stage):
        first.insert(0, EMBEDDING)
    if len(stages) == 1:
        last = first
    if not any(kind_of(name) == HEAD for stage in stages for name in stage):
        last.append(HEAD)
    ends = [tuple(first)] if len(stages) == 1 else [tuple(first), *stages[1:-1], tuple(last)]
    return tuple(stage or (GAIN,) for stage in ends)


def plain_stages(placement: Placement) -> tuple[Stage, ...]:
    """A block for each stage of one copy of the model."""
    return ((BLOCK,),) * (placement.num_stages // placement.num_pipelines)


def kind_of(name: str) -> str:
    """A layer's name without what is recomputed of it."""
    return name.partition(":")[0]


def fewer_layers(stages: tuple[Stage, ...], *, most: int = MOST_LAYERS) -> tuple[Stage, ...]:
    """At most `most` blocks where there are more, in proportion, at least one where there was any.

    Of a stage, every k-th block is kept, so that the share that is recomputed stays about the same.
    """
    counts = [sum(kind_of(name) == BLOCK for name in stage) for stage in stages]
    total, filled = sum(counts), sum(map(bool, counts))
    if total <= most:
        return stages
    # Every stage with blocks keeps one; what is left is given out in proportion.
    spare = max(0, most - filled)
    return tuple(
        _thinned(stage, 1 + (count - 1) * spare // max(1, total - filled)) if count else stage
        for stage, count in zip(stages, counts, strict=True)
    )


def _thinned(stage: Stage, count: int) -> Stage:
    blocks = [at for at, name in enumerate(stage) if kind_of(name) == BLOCK]
    kept = {blocks[index * len(blocks) // count] for index in range(count)}
    return tuple(name for at, name in enumerate(stage) if at in kept or at not in blocks)


def spread(stages: tuple[Stage, ...], count: int) -> tuple[Stage, ...]:
    """`count` of the stages: the first, the last, and as many between, evenly apart."""
    if count >= len(stages):
        return stages
    last = len(stages) - 1
    return tuple(stages[round(at * last / max(1, count - 1))] for at in range(count))


# Every action of every rank in one process, in an order that each rank could have run
# ------------------------------------------------------------------------------------
# Ranks are rows of a lowered schedule. Each goes on until it needs a message that is not there;
# what is sent waits in a queue per ordered pair of ranks, without a name, as between real
# processes. What an action does is up to a `Worker`: counting tokens (here) or real autograd
# (`autograd_replay`).

_SENT_FROM = {
    LoweredKind.RECV_F: (LoweredKind.SEND_F, -1),
    LoweredKind.RECV_B: (LoweredKind.SEND_B, 1),
}
_SENT_TO = {LoweredKind.SEND_F: 1, LoweredKind.SEND_B: -1}
_SHARED_AS = {get: share for share, get in HEAD_EXCHANGES.items()}


class Worker(Protocol):
    """What steps do. Each raises InvalidInput, without a place, where something is not as it was
    promised."""

    def compute(self, step: LoweredAction) -> None:
        """Run an action of a stage, or of the head that is cut over all ranks."""

    def send(self, step: LoweredAction) -> Any:
        """What SEND_F, SEND_B or a SHARE ships."""

    def receive(self, step: LoweredAction, message: Any) -> None:
        """Take what RECV_F or RECV_B brings, or the list, by rank, of what a GET does."""

    def reduce(self, stage: int) -> None:
        """All gradients of a stage are there."""


def replay(lowered: LoweredSchedule, worker: Worker) -> int:
    """Run all steps; returns how many.

    Raises InvalidInput that names rank and position (`orders[rank][position]`): for the first step
    that cannot do what it says, and where no rank can go on.
    """
    orders = [lowered.order(rank) for rank in range(lowered.num_ranks)]
    queues: _Queues = {}
    at = [0] * len(orders)
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            began = at[rank]
            while at[rank] < len(order) and _step(
                order[at[rank]], rank, at[rank], lowered, queues, worker
            ):
                at[rank] += 1
            moved |= at[rank] > began
    stuck = [rank for rank, order in enumerate(orders) if at[rank] < len(order)]
    if stuck:
        waits = (f"rank {rank} waits at {orders[rank][at[rank]]}" for rank in stuck)
        raise InvalidInput.of(
            f"orders[{stuck[0]}][{at[stuck[0]]}]", f"no rank can go on: {', '.join(waits)}"
        )
    for (sender, receiver, _), queue in queues.items():
        if queue:
            problem = f"rank {receiver} never receives what rank {sender} sent as {queue[0][0]}"
            raise InvalidInput.of(f"orders[{receiver}]", problem)
    return sum(at)


# By sender and receiver, for each SHARE apart from all that is sent from stage to stage.
_Queues: TypeAlias = "dict[tuple[int, int, LoweredKind | None], deque[tuple[LoweredAction, Any]]]"


def _step(
    step: LoweredAction,
    rank: int,
    position: int,
    lowered: LoweredSchedule,
    queues: _Queues,
    worker: Worker,
) -> bool:
    """Run one step; false where it has to wait."""
    place = f"orders[{rank}][{position}]"
    owner = lowered.placement.rank_of_stage
    if owner[step.stage] != rank:
        raise InvalidInput.of(place, f"{step} is on rank {rank}, its stage on {owner[step.stage]}")
    try:
        if step.kind in _SENT_FROM:
            kind, offset = _SENT_FROM[step.kind]
            queue = queues.get((owner[step.stage + offset], rank, None))
            if not queue:
                return False
            worker.receive(
                step,
                _popped(queue, step, LoweredAction(kind, step.stage + offset, step.microbatch)),
            )
        elif step.kind in _SENT_TO:
            key = (rank, owner[step.stage + _SENT_TO[step.kind]], None)
            queues.setdefault(key, deque()).append((step, worker.send(step)))
        elif step.kind in HEAD_EXCHANGES:
            message = worker.send(step)
            for other in lowered.peers(step.kind, rank):
                queues.setdefault((rank, other, step.kind), deque()).append((step, message))
        elif step.kind in _SHARED_AS:
            share = _SHARED_AS[step.kind]
            found = [queues.get((other, rank, share)) for other in lowered.peers(step.kind, rank)]
            if not all(found):
                return False
            worker.receive(step, [_popped(queue, step) for queue in found if queue])
        elif step.kind is LoweredKind.REDUCE_GRAD:
            worker.reduce(step.stage)
        elif step.kind < LoweredKind.SEND_F:
            worker.compute(step)
    except InvalidInput as error:
        raise InvalidInput.of(place, error.faults[0].problem) from None
    return True


def _popped(
    queue: deque[tuple[LoweredAction, Any]],
    step: LoweredAction,
    wanted: LoweredAction | None = None,
) -> Any:
    """The oldest message, which must be what is `wanted`, or else of the step's microbatch."""
    sent, message = queue.popleft()
    if sent.microbatch != step.microbatch or wanted not in (None, sent):
        raise InvalidInput.of("orders", f"{step} gets what was sent as {sent}")
    return message


# A replay that computes nothing: who had what when, and how much every rank kept
# -------------------------------------------------------------------------------

_F, _I, _W, _B, _R, _O, _D, _L, _V, _T = list(LoweredKind)[:10]
# What a stage has done of a microbatch before, leaving out R and copies.
_BEFORE = {_F: [], _I: [_F], _B: [_F], _W: [_F, _I], _R: [_F], _O: [_F], _D: [_F], _L: [_F]}
_COPIED = {_O: "", _D: "O", _L: "OD"}  # and of its activations' way to the host and back


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay counted; per rank the most chunk activations and the most bytes."""

    num_steps: int
    num_messages: int
    peak_activations: tuple[int, ...]
    peak_bytes: tuple[float, ...]


def replay_tokens(lowered: LoweredSchedule, memory: ScheduleMemory) -> Replayed:
    """Replay every step of `lowered`; raises InvalidInput, with rank and position, as `replay`."""
    tokens = _Tokens(lowered, memory)
    num_steps = replay(lowered, tokens)
    tokens.require_done()
    return Replayed(
        num_steps=num_steps,
        num_messages=tokens.num_messages,
        peak_activations=tuple(tokens.most),
        peak_bytes=tuple(tokens.most_bytes),
    )


@dataclass(slots=True)
class _Tokens:
    lowered: LoweredSchedule
    memory: ScheduleMemory
    inputs: set[tuple[LoweredKind, int, int]] = field(default_factory=set)
    outputs: set[tuple[LoweredKind, int, int]] = field(default_factory=set)
    done: dict[tuple[int, int], list[LoweredKind]] = field(default_factory=dict)
    copied: dict[tuple[int, int], str] = field(default_factory=dict)
    reduced: set[int] = field(default_factory=set)
    num_messages: int = 0
    held: list[int] = field(init=False)
    most: list[int] = field(init=False)
    held_bytes: list[float] = field(init=False)
    most_bytes: list[float] = field(init=False)
    edge: list[bool] = field(init=False)  # before stage s, whether s-1 hands on to it; [S + 1]

    def __post_init__(self) -> None:
        ranks = self.lowered.num_ranks
        self.held, self.most = [0] * ranks, [0] * ranks
        self.held_bytes = self.memory.static_bytes.tolist()
        self.most_bytes = list(self.held_bytes)
        self.edge = [False, *self.lowered.placement.has_edge.tolist(), False]

    def compute(self, step: LoweredAction) -> None:
        """Use the inputs up, keep or free activations, leave outputs."""
        stage, microbatch = step.stage, step.microbatch
        if step.kind in (_V, _T):
            self._head(step)
            self._count(step)
            return
        key = (stage, microbatch)
        before, copied = self.done.setdefault(key, []), self.copied.get(key, "")
        if before != _BEFORE.get(step.kind):
            found = ", ".join(kind.name for kind in before) or "nothing"
            raise InvalidInput.of("orders", f"{step} comes when its stage has done {found} of it")
        if copied != _COPIED.get(step.kind, copied):
            raise InvalidInput.of("orders", f"{step} comes after {copied or 'no copy'} of it")
        if step.kind in _COPIED:
            self.copied[key] = copied + step.kind.name
        elif step.kind is not _F and copied not in ("", "ODL"):
            raise InvalidInput.of("orders", f"{step} runs when its activations are on the host")
        if step.kind in (_F, _I, _W, _B):
            before.append(step.kind)
        if step.kind is _F:
            if self.edge[stage]:
                self._use(_F, step, "its input has not arrived")
            self._require_slice(step, -1)
            self._leave(_F, stage, 1, microbatch)
        if step.kind in (_I, _B):
            if self.edge[stage + 1]:
                self._use(_B, step, "the gradient of its output has not arrived")
            elif self.lowered.head_barriers:
                gate = _V if self.lowered.head_barriers == 1 else _T
                self._require_gate(gate, step)
            self._require_slice(step, 1)
            self._leave(_B, stage, -1, microbatch)
        if step.kind in (_W, _B) and stage in self.reduced:
            raise InvalidInput.of("orders", f"{step} comes after the gradients were reduced")
        self._count(step)

    def send(self, step: LoweredAction) -> Any:
        """The output it names, which must be there."""
        if step.kind in HEAD_EXCHANGES:
            self._require_made(step)
        else:
            kind = _F if step.kind is LoweredKind.SEND_F else _B
            name = (kind, step.stage, step.microbatch)
            if name not in self.outputs:
                problem = f"{step} sends what was not made, or was sent before"
                raise InvalidInput.of("orders", problem)
            self.outputs.remove(name)
        self.num_messages += 1

    def receive(self, step: LoweredAction, message: Any) -> None:
        """Lay the input ready."""
        kind = {
            LoweredKind.RECV_F: _F,
            LoweredKind.RECV_B: _B,
            LoweredKind.GET_F: LoweredKind.GET_F,
            LoweredKind.GET_V: LoweredKind.GET_V,
            LoweredKind.GET_T: LoweredKind.GET_T,
        }[step.kind]
        self.inputs.add((kind, step.stage, step.microbatch))

    def reduce(self, stage: int) -> None:
        """Gradients are divided once."""
        if stage in self.reduced:
            raise InvalidInput.of("orders", f"{stage}REDUCE_GRAD comes twice")
        self.reduced.add(stage)

    def require_done(self) -> None:
        """Raise for what was left undone."""
        placement, m = self.lowered.placement, self.lowered.num_microbatches
        for stage in range(placement.num_stages):
            place = f"orders[{placement.rank_of_stage[stage]}]"
            for microbatch in range(m):
                found = self.done.get((stage, microbatch), [])
                if found not in ([_F, _B], [_F, _I, _W]):
                    ran = ", ".join(kind.name for kind in found) or "nothing"
                    problem = f"stage {stage} ran {ran} of microbatch {microbatch}"
                    raise InvalidInput.of(place, f"{problem}; it must run F and B, or F, I and W")
            if stage not in self.reduced:
                raise InvalidInput.of(place, f"{stage}REDUCE_GRAD is missing")

    def _head(self, step: LoweredAction) -> None:
        """V needs the last stage's output, T what V of all ranks found."""
        rank = self.lowered.placement.rank_of_stage[step.stage]
        end = self.lowered.placement.num_stages - 1
        if step.kind is _V and rank == self.lowered.placement.rank_of_stage[end]:
            there = self.done.get((end, step.microbatch), []) != []
        elif step.kind is _V:
            there = (LoweredKind.GET_F, step.stage, step.microbatch) in self.inputs
        else:
            there = self._is_past(_V, rank, step.microbatch)
        if not there or (step.kind, step.stage, step.microbatch) in self.outputs:
            needed = "the output of the last stage" if step.kind is _V else "V of all ranks"
            raise InvalidInput.of("orders", f"{step} runs before {needed}, or a second time")
        if step.kind is _T and step.stage in self.reduced:
            raise InvalidInput.of("orders", f"{step} comes after the gradients were reduced")
        self.outputs.add((step.kind, step.stage, step.microbatch))

    def _require_made(self, step: LoweredAction) -> None:
        made = {LoweredKind.SHARE_V: _V, LoweredKind.SHARE_T: _T}.get(step.kind)
        end = self.lowered.placement.num_stages - 1
        if made is None:
            there = self.done.get((end, step.microbatch), []) != []
        else:
            there = (made, step.stage, step.microbatch) in self.outputs
        if not there:
            raise InvalidInput.of("orders", f"{step} gives what was not made")

    def _is_past(self, gate: LoweredKind, rank: int, microbatch: int) -> bool:
        """Whether V or T of all ranks is known on a rank, its own and what it got."""
        first = self.lowered.placement.stages_of_rank[rank][0]
        get = LoweredKind.GET_V if gate is _V else LoweredKind.GET_T
        got = (get, first, microbatch) in self.inputs or self.lowered.num_ranks == 1
        return got and (gate, first, microbatch) in self.outputs

    def _require_gate(self, gate: LoweredKind, step: LoweredAction) -> None:
        rank = self.lowered.placement.rank_of_stage[step.stage]
        if not self._is_past(gate, rank, step.microbatch):
            raise InvalidInput.of("orders", f"{step} runs before {gate.name} of all ranks")

    def _require_slice(self, step: LoweredAction, other: int) -> None:
        """Forwards from the first slice of a microbatch on, backwards from the last back."""
        neighbour, q = step.microbatch + other, self.lowered.num_slices
        if neighbour // q != step.microbatch // q:
            return
        done = self.done.get((step.stage, neighbour), [])
        if len(done) < (1 if step.kind is _F else 2):
            raise InvalidInput.of("orders", f"{step} comes before its neighbouring slice")

    def _use(self, kind: LoweredKind, step: LoweredAction, problem: str) -> None:
        name = (kind, step.stage, step.microbatch)
        if name not in self.inputs:
            raise InvalidInput.of("orders", f"{step} runs when {problem}")
        self.inputs.remove(name)

    def _leave(self, kind: LoweredKind, stage: int, step: int, microbatch: int) -> None:
        if not self.edge[stage + (step > 0)]:
            return
        target, rank_of = stage + step, self.lowered.placement.rank_of_stage
        if rank_of[stage] == rank_of[target]:
            self.inputs.add((kind, target, microbatch))
        else:
            self.outputs.add((kind, stage, microbatch))

    def _count(self, step: LoweredAction) -> None:
        rank = self.lowered.placement.rank_of_stage[step.stage]
        self.held[rank] += ACTIVATIONS_OF[step.kind]
        self.most[rank] = max(self.most[rank], self.held[rank])
        delta = float(self.memory.delta_bytes[step.kind, step.stage])
        beside = float(self.memory.transient_bytes[step.kind, step.stage])
        during = self.held_bytes[rank] + max(delta, 0.0) + beside
        self.most_bytes[rank] = max(self.most_bytes[rank], during)
        self.held_bytes[rank] += delta


# 1F1B over stages with replicas of their own, replayed action by action at the earliest time
# -------------------------------------------------------------------------------------------
# Microbatch j of a stage runs on its replica j mod replicas, where it waits for all stages that
# feed this one, and backwards for all that it feeds. A replica runs as many forwards as it may hold
# in flight, then backward and forward in turn. Written for reading, as a check on
# `native/chain/pipeline_ends.hpp`: O(microbatches × (stages + feeds)), about 2 µs each.


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
