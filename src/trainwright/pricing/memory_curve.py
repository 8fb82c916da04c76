"""What a rank holds when its memory is fullest, from the orders of its schedule.

A rank runs one action at a time, so its memory is a property of its order: the forward of a chunk
keeps that chunk's activations, its input gradient frees one part of them, its weight gradient the
rest, and while a backward runs its transients lie beside. Times play no part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainwright.plan.schedule import ActionKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plan.schedule import Schedule

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageActivations:
    """Bytes of S virtual stages, per microbatch.

    `logits` are those of the kept bytes that belong to head and loss.
    """

    until_input_grad: Floats
    until_weight_grad: Floats
    transient: Floats
    logits: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeak:
    """One rank at its fullest: kept activations, head and loss among them apart, transients."""

    activation_bytes: float
    logits_bytes: float
    transient_bytes: float
    microbatches_in_flight: int

    @property
    def total_bytes(self) -> float:
        """All that the schedule adds to static memory."""
        return self.activation_bytes + self.logits_bytes + self.transient_bytes


def rank_peaks(schedule: Schedule, stages: StageActivations) -> tuple[RankPeak, ...]:
    """The first fullest instant of every rank; in flight are chunk activations held then."""
    tables = _tables(stages)
    return tuple(
        _peak(schedule.actions[schedule.rows_of(rank)], stages, *tables)
        for rank in range(schedule.num_ranks)
    )


def _tables(stages: StageActivations) -> tuple[Floats, Floats]:
    """Bytes by kind of action and stage, [5, S]: what it adds, and what it holds while it runs."""
    kept = stages.until_input_grad + stages.until_weight_grad
    table = np.zeros((len(ActionKind), len(kept)))
    table[ActionKind.F] = kept
    table[ActionKind.I] = -stages.until_input_grad
    table[ActionKind.W] = -stages.until_weight_grad
    table[ActionKind.B] = -kept
    transient = np.zeros_like(table)
    transient[ActionKind.I] = transient[ActionKind.B] = stages.transient
    return table, transient


def _peak(actions: Ints, stages: StageActivations, table: Floats, transient: Floats) -> RankPeak:
    kind, stage = actions[:, 0], actions[:, 1]
    delta = table[kind, stage]
    held = np.cumsum(delta) - np.minimum(delta, 0.0)  # releases come at the end of an action
    row = int(np.argmax(held + transient[kind, stage]))
    alive = _alive(actions[: row + 1], num_stages=len(stages.transient))
    logits = float(alive @ stages.logits)
    return RankPeak(
        activation_bytes=max(0.0, float(held[row]) - logits),
        logits_bytes=logits,
        transient_bytes=float(transient[kind[row], stage[row]]),
        microbatches_in_flight=int(alive.sum()),
    )


def _alive(actions: Ints, *, num_stages: int) -> Floats:
    """Chunks of each stage between forward and input gradient while the last of `actions` runs."""
    opened = np.bincount(actions[actions[:, 0] == ActionKind.F, 1], minlength=num_stages)
    before = actions[:-1]
    ends = (before[:, 0] == ActionKind.B) | (before[:, 0] == ActionKind.I)
    closed = np.bincount(before[ends, 1], minlength=num_stages)
    return (opened - closed).astype(np.float64)
