"""A replay that computes nothing: who had what when, and how much every rank kept.

Each forward leaves one token where its output is needed and keeps its activations; backwards use
them up. What is used before it was made, made twice or never used is a fault.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainwright.errors import InvalidInput
from trainwright.measuring.order_replay import replay
from trainwright.plan.lowered import LoweredKind

if TYPE_CHECKING:
    from trainwright.plan.lowered import LoweredAction, LoweredSchedule
    from trainwright.plan.schedule_memory import ScheduleMemory

_F, _I, _W, _B = LoweredKind.F, LoweredKind.I, LoweredKind.W, LoweredKind.B
_BEFORE = {_F: [], _I: [_F], _B: [_F], _W: [_F, _I]}  # what a stage has done of a microbatch
_UNIT = {_F: 1, _I: 0, _W: -1, _B: -1, LoweredKind.R: 0}


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
    reduced: set[int] = field(default_factory=set)
    num_messages: int = 0
    held: list[int] = field(init=False)
    most: list[int] = field(init=False)
    held_bytes: list[float] = field(init=False)
    most_bytes: list[float] = field(init=False)

    def __post_init__(self) -> None:
        ranks = self.lowered.num_ranks
        self.held, self.most = [0] * ranks, [0] * ranks
        self.held_bytes = self.memory.static_bytes.tolist()
        self.most_bytes = list(self.held_bytes)

    def compute(self, step: LoweredAction) -> None:
        """Use the inputs up, keep or free activations, leave outputs."""
        stage, microbatch = step.stage, step.microbatch
        last = self.lowered.placement.num_stages - 1
        before = self.done.setdefault((stage, microbatch), [])
        if step.kind is LoweredKind.R and before == [_F]:
            self._count(step)
            return
        if before != _BEFORE.get(step.kind):
            found = ", ".join(kind.name for kind in before) or "nothing"
            raise InvalidInput.of("orders", f"{step} comes when its stage has done {found} of it")
        before.append(step.kind)
        if step.kind is _F and stage > 0:
            self._use(_F, step, "its input has not arrived")
        if step.kind in (_I, _B) and stage < last:
            self._use(_B, step, "the gradient of its output has not arrived")
        if step.kind is _F and stage < last:
            self._leave(_F, stage, stage + 1, microbatch)
        if step.kind in (_I, _B) and stage > 0:
            self._leave(_B, stage, stage - 1, microbatch)
        if step.kind in (_W, _B) and stage in self.reduced:
            raise InvalidInput.of("orders", f"{step} comes after the gradients were reduced")
        self._count(step)

    def send(self, step: LoweredAction) -> Any:
        """The output it names, which must be there."""
        kind = _F if step.kind is LoweredKind.SEND_F else _B
        name = (kind, step.stage, step.microbatch)
        if name not in self.outputs:
            raise InvalidInput.of("orders", f"{step} sends what was not made, or was sent before")
        self.outputs.remove(name)
        self.num_messages += 1

    def receive(self, step: LoweredAction, message: Any) -> None:
        """Lay the input ready."""
        kind = _F if step.kind is LoweredKind.RECV_F else _B
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

    def _use(self, kind: LoweredKind, step: LoweredAction, problem: str) -> None:
        name = (kind, step.stage, step.microbatch)
        if name not in self.inputs:
            raise InvalidInput.of("orders", f"{step} runs when {problem}")
        self.inputs.remove(name)

    def _leave(self, kind: LoweredKind, stage: int, target: int, microbatch: int) -> None:
        rank_of = self.lowered.placement.rank_of_stage
        if rank_of[stage] == rank_of[target]:
            self.inputs.add((kind, target, microbatch))
        else:
            self.outputs.add((kind, stage, microbatch))

    def _count(self, step: LoweredAction) -> None:
        rank = self.lowered.placement.rank_of_stage[step.stage]
        self.held[rank] += _UNIT[step.kind]
        self.most[rank] = max(self.most[rank], self.held[rank])
        delta = float(self.memory.delta_bytes[step.kind, step.stage])
        beside = float(self.memory.transient_bytes[step.kind, step.stage])
        during = self.held_bytes[rank] + max(delta, 0.0) + beside
        self.most_bytes[rank] = max(self.most_bytes[rank], during)
        self.held_bytes[rank] += delta
