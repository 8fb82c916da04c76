"""The pipelines a question leaves open: placement, chunks per rank, fused stages, recomputed ones.

A candidate is one of them, with its own costs. Where a fused backward is no shorter than I + W,
splitting can only help and fused candidates are left out; in between all and none of the stages
there are those whose fusion gains most, half of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.plan.per_stage import broadcast
from trainwright.plan.placement import Placement
from trainwright.plan.schedule import ActionKind
from trainwright.scheduling.search_question import Backward, SearchQuestion, activation_steps
from trainwright.scheduling.stage_parts import cut_stages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plan.per_stage import Floats
    from trainwright.plan.schedule_costs import ScheduleCosts

_F, _I, _W, _B, _R = ActionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One pipeline: which rank runs which stage, which stages fuse or recompute, at what cost.

    `fused` and `recomputed` have shape [S]; `activation_limit` counts chunks of this candidate.
    """

    placement: Placement
    costs: ScheduleCosts
    fused: NDArray[np.bool_]
    recomputed: NDArray[np.bool_]
    activation_limit: int | None

    @property
    def resources(self) -> tuple[Floats, Floats, Floats]:
        """What is limited: delta and transient [R * 5, S], room [R, p]; activations come first."""
        memory = self.costs.memory
        delta, transient, room = [], [], []
        if self.activation_limit is not None:
            delta.append(activation_steps(memory.num_stages))
            transient.append(np.zeros_like(delta[0]))
            room.append(np.full(memory.num_ranks, float(self.activation_limit)))
        if np.isfinite(memory.limit_bytes).any():
            delta.append(memory.delta_bytes)
            transient.append(memory.transient_bytes)
            room.append(memory.limit_bytes - memory.static_bytes)
        if not delta:
            return (
                np.zeros((0, memory.num_stages)),
                np.zeros((0, memory.num_stages)),
                np.zeros((0, memory.num_ranks)),
            )
        return np.vstack(delta), np.vstack(transient), np.vstack(room)


def candidates(question: SearchQuestion) -> tuple[Candidate, ...]:
    """Every pipeline the question allows, the plainest first."""
    return tuple(
        candidate
        for placement, parts in _placements(question)
        for candidate in _modes(question, placement, parts)
    )


def _placements(question: SearchQuestion) -> Iterator[tuple[Placement, int]]:
    """Placements, and into how many parts each stage of the question is cut for them."""
    if isinstance(question.placement, Placement):
        yield question.placement, 1
        return
    ranks = question.num_ranks
    chunks = question.costs.num_stages // ranks
    if question.placement == "loop":
        yield Placement.loop(ranks, virtual_stages=chunks), 1
    elif question.placement in ("v", "wave"):
        yield Placement.wave(ranks, virtual_stages=chunks), 1
    else:
        for parts in range(1, max(1, question.max_virtual_stages // chunks) + 1):
            loop = Placement.loop(ranks, virtual_stages=chunks * parts)
            wave = Placement.wave(ranks, virtual_stages=chunks * parts)
            yield from ((placement, parts) for placement in dict.fromkeys((loop, wave)))


def _modes(question: SearchQuestion, placement: Placement, parts: int) -> Iterator[Candidate]:
    costs = cut_stages(question.costs, parts)
    for recomputed in _recompute_choices(question, costs, parts):
        own = costs
        if recomputed.any():
            own = with_recompute(costs, _saved_bytes(question, parts), recomputed=recomputed)
        for fused in _fusion_choices(question.backward, own):
            yield Candidate(
                placement=placement,
                costs=own,
                fused=fused,
                recomputed=recomputed,
                activation_limit=activation_limit(question, placement),
            )


def activation_limit(question: SearchQuestion, placement: Placement) -> int | None:
    """The limit in chunks of a placement; the question counts its own stages."""
    limit, stages = question.max_activations, question.costs.num_stages
    return None if limit is None else limit * (placement.num_stages // stages)


def recomputed_everywhere(question: SearchQuestion, *, parts: int) -> ScheduleCosts:
    """Costs, each stage cut in `parts`, of a pipeline that recomputes all it may."""
    costs = cut_stages(question.costs, parts)
    every = np.ones(costs.num_stages, np.bool_)
    return with_recompute(costs, _saved_bytes(question, parts), recomputed=every)


def _fusion_choices(backward: Backward, costs: ScheduleCosts) -> Iterator[NDArray[np.bool_]]:
    duration_s = costs.duration_s
    saved_s = duration_s[_I] + duration_s[_W] - duration_s[_B]
    stages = costs.num_stages
    if backward is not Backward.FUSED:
        yield np.zeros(stages, np.bool_)
    if backward is Backward.FUSED:
        yield np.ones(stages, np.bool_)
    elif backward is Backward.ANY and (saved_s > 1e-12 * duration_s.max()).any():
        yield from _some_and_all(saved_s)


def _recompute_choices(
    question: SearchQuestion, costs: ScheduleCosts, parts: int
) -> Iterator[NDArray[np.bool_]]:
    yield np.zeros(costs.num_stages, np.bool_)
    if question.recompute_saved_bytes is not None:
        saved = _saved_bytes(question, parts)
        yield from _some_and_all(saved)


def _some_and_all(gain: Floats) -> Iterator[NDArray[np.bool_]]:
    """All stages that gain, and the better half of them where they are not alike."""
    gains = gain > 0
    if not gains.any():
        return
    yield gains
    better = gain > np.median(gain[gains])
    if better.any():
        yield better


def _saved_bytes(question: SearchQuestion, parts: int) -> Floats:
    stages = question.costs.num_stages
    assert question.recompute_saved_bytes is not None, "asked only where recompute is allowed"
    saved = broadcast(question.recompute_saved_bytes, stages, name="recompute_saved_bytes")
    return np.repeat(saved / parts, parts)


def with_recompute(
    costs: ScheduleCosts, saved_bytes: Floats, *, recomputed: NDArray[np.bool_]
) -> ScheduleCosts:
    """Forwards of recomputed stages keep less by `saved_bytes` [S], and their R brings it back."""
    saved = np.where(recomputed, saved_bytes, 0.0)
    delta = costs.memory.delta_bytes.copy()
    delta[_F] -= saved
    delta[_R] += saved
    return replace(costs, memory=replace(costs.memory, delta_bytes=delta))
