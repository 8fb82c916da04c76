"""Random schedules and costs."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import strategies as st

from trainwright.plans.schedule import Action, ActionKind, Placement, Schedule
from trainwright.plans.schedule_costs import ScheduleCosts, ScheduleMemory, TransferModel

F, I, W, B, R = ActionKind  # noqa: E741


@st.composite
def placements(draw: st.DrawFn, *, max_ranks: int = 4, max_stages: int = 6) -> Placement:
    num_ranks = draw(st.integers(1, max_ranks))
    ranks = draw(
        st.lists(st.integers(0, num_ranks - 1), min_size=1, max_size=max_stages).filter(bool)
    )
    return Placement(rank_of_stage=tuple(ranks), num_ranks=num_ranks)


@st.composite
def schedules(
    draw: st.DrawFn,
    *,
    placement: Placement | None = None,
    max_microbatches: int = 4,
    may_recompute: bool = True,
) -> Schedule:
    """A legal schedule: actions become ready by their needs, and any ready one is next."""
    placement = placement or draw(placements())
    num_microbatches = draw(st.integers(1, max_microbatches))
    fused = [draw(st.booleans()) for _ in range(placement.num_stages)]
    recomputed = [may_recompute and draw(st.booleans()) for _ in range(placement.num_stages)]
    choose = random.Random(draw(st.integers(0, 2**32)))
    orders: list[list[Action]] = [[] for _ in range(placement.num_ranks)]
    ready = [Action(F, 0, j) for j in range(num_microbatches)]
    while ready:
        action = ready.pop(choose.randrange(len(ready)))
        orders[placement.rank_of_stage[action.stage]].append(action)
        ready += _enabled_by(action, placement.num_stages, fused, recomputed)
    return Schedule.of_ranks(
        [np.array(order, np.int32).reshape(-1, 3) for order in orders],
        placement=placement,
        num_microbatches=num_microbatches,
    )


def _enabled_by(
    action: Action, num_stages: int, fused: list[bool], recomputed: list[bool]
) -> list[Action]:
    kind, s, j = action

    def backward(stage: int) -> Action:
        if recomputed[stage]:
            return Action(R, stage, j)
        return Action(B if fused[stage] else I, stage, j)

    if kind is F:
        return [Action(F, s + 1, j)] if s + 1 < num_stages else [backward(s)]
    if kind is R:
        return [Action(B if fused[s] else I, s, j)]
    after = [backward(s - 1)] if kind in (I, B) and s > 0 else []
    return [*after, Action(W, s, j)] if kind is I else after


def seconds(low: float = 0.0) -> st.SearchStrategy[float]:
    """Some of which binary fractions do not hold: their sums round."""
    return st.sampled_from([low, 0.003, 0.1, 0.25, 1.0, 1.5, 3.0, 7.125])


@st.composite
def costs(draw: st.DrawFn, placement: Placement, *, low: float = 0.0) -> ScheduleCosts:
    stages, edges = placement.num_stages, placement.num_stages - 1

    def per(count: int, values: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(values, min_size=count, max_size=count))

    byte_counts = st.sampled_from([0.0, 1.0, 2.5, 8.0])
    memory = ScheduleMemory.of(
        placement,
        forward_bytes=per(stages, byte_counts),
        input_grad_bytes=[-b for b in per(stages, byte_counts)],
        recompute_bytes=per(stages, byte_counts),
        transient_bytes={F: per(stages, byte_counts), W: per(stages, byte_counts)},
        static_bytes=per(placement.num_ranks, byte_counts),
    )
    return ScheduleCosts.of(
        placement,
        forward_s=per(stages, seconds(low)),
        input_grad_s=per(stages, seconds(low)),
        weight_grad_s=per(stages, seconds(low)),
        recompute_s=per(stages, seconds(low)),
        overhead_s={F: draw(seconds()), W: draw(seconds())},
        transfer_s=per(edges, seconds()),
        backward_transfer_s=per(edges, seconds()),
        memory=memory,
        transfer_model=draw(st.sampled_from(TransferModel)),
        blocking_fraction=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )


@st.composite
def schedules_with_costs(draw: st.DrawFn) -> tuple[Schedule, ScheduleCosts]:
    schedule = draw(schedules())
    return schedule, draw(costs(schedule.placement))
