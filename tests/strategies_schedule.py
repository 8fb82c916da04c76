"""Random schedules and costs."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

import oracles_schedule
from trainwright.plans.schedule import (
    Action,
    ActionKind,
    Placement,
    Schedule,
    ScheduleCosts,
    ScheduleMemory,
    TransferModel,
)

F, I, W, B, R, O, D, L, V, T = ActionKind  # noqa: E741


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


# Schedules that use more than the computation of one pipeline
# ------------------------------------------------------------


@st.composite
def resource_schedules(draw: st.DrawFn) -> Schedule:
    """A legal schedule with several pipelines, slices, copies to the host and a cut head, or some.

    All actions of all ranks are done one after the other, any that is ready being next.
    """
    pipelines, slices = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (1, 3), (2, 2)]))
    barriers = draw(st.sampled_from([0, 1, 2])) if pipelines == 1 else 0
    num_ranks, length = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    owners = st.lists(
        st.integers(0, num_ranks - 1), min_size=length * pipelines, max_size=length * pipelines
    )
    ranks = draw(owners.filter(lambda drawn: len(set(drawn)) == num_ranks or not barriers))
    placement = Placement(rank_of_stage=tuple(ranks), num_ranks=num_ranks, num_pipelines=pipelines)
    count = slices * draw(st.integers(1, 3))
    choose = random.Random(draw(st.integers(0, 2**32)))
    fused, copied = ([draw(st.booleans()) for _ in ranks] for _ in range(2))
    needs = {
        action: needed
        for stage in range(len(ranks))
        for j in range(count)
        for action, needed in _needs_of(stage, j, length, slices, count, fused, copied, barriers)
    }
    shards = [stages[0] for stages in placement.stages_of_rank] if barriers else []
    for j in range(count):
        last = Action(F, length - 1, j)
        needs |= {Action(V, shard, j): [last] for shard in shards}
        needs |= {
            Action(T, shard, j): [Action(V, other, j) for other in shards] for shard in shards
        }
        back = Action(B if fused[length - 1] else I, length - 1, j)
        needs[back] += [Action(V if barriers == 1 else T, shard, j) for shard in shards]
    orders: list[list[Action]] = [[] for _ in range(num_ranks)]
    done: set[Action] = set()
    while len(done) < len(needs):
        ready = [a for a, needed in needs.items() if a not in done and done.issuperset(needed)]
        action = choose.choice(ready)
        done.add(action)
        orders[ranks[action.stage]].append(action)
    schedule = Schedule.of_ranks(
        [np.array(order, np.int32).reshape(-1, 3) for order in orders],
        placement=placement,
        num_microbatches=count,
        num_slices=slices,
        head_barriers=barriers,
    )
    return replace(schedule, pairs=_harmless_pairs(schedule, choose))


def _needs_of(stage, j, length, slices, count, fused, copied, barriers):
    place, of_slice = stage % length, j % slices
    forward = [Action(F, stage - 1, j)] if place else []
    forward += [Action(F, stage, j - 1)] if of_slice else []
    yield Action(F, stage, j), forward
    kind = B if fused[stage] else I
    backward = [Action(F, stage, j)]
    if place + 1 < length:
        backward.append(Action(B if fused[stage + 1] else I, stage + 1, j))
    if of_slice + 1 < slices:
        backward.append(Action(kind, stage, j + 1))
    if copied[stage]:
        yield Action(O, stage, j), [Action(F, stage, j)]
        yield Action(D, stage, j), [Action(O, stage, j)]
        yield Action(L, stage, j), [Action(D, stage, j)]
        backward.append(Action(L, stage, j))
    yield Action(kind, stage, j), backward
    if kind is I:
        yield Action(W, stage, j), [Action(I, stage, j)]


def _harmless_pairs(schedule: Schedule, choose: random.Random) -> np.ndarray:
    """Some forwards and the computations after them, unless a pair would wait for itself."""
    kinds, same = schedule.actions[:, 0], np.diff(schedule.rank_of_row) == 0
    found = np.flatnonzero((kinds[:-1] == F) & np.isin(kinds[1:], (F, I, W, B)) & same)
    kept: list[int] = []
    for row in found.tolist():
        if kept and row == kept[-1] + 1:  # the second of a pair
            continue
        trial = replace(schedule, pairs=np.array([*kept, row]))
        overlapping = ScheduleCosts.of(schedule.placement, pair_s=1.0, network_s={F: 0.5})
        if choose.random() < 0.7 and not oracles_schedule.run(trial, overlapping).deadlocked:
            kept.append(row)
    return np.array(kept, np.int64)


@st.composite
def resource_costs(draw: st.DrawFn, schedule: Schedule) -> ScheduleCosts:
    """Costs of such a schedule, with network times, slices and barriers."""
    base = draw(costs(schedule.placement))
    stages = schedule.placement.num_stages

    def table(low: float, high: float, *shape: int) -> np.ndarray:
        drawn = random.Random(draw(st.integers(0, 2**32)))
        return np.array([drawn.uniform(low, high) for _ in range(int(np.prod(shape)))]).reshape(
            shape
        )

    compute = base.compute_s.copy()
    compute[5:] = table(0.0, 3.0, 5, stages)
    compute[D] = 0.0
    delta = base.memory.delta_bytes.copy()
    delta[L] = delta[F] * table(0.0, 1.0, stages)
    delta[D] = -delta[L]
    sliced = schedule.num_slices > 1 and draw(st.booleans())
    return replace(
        base,
        compute_s=compute,
        memory=replace(base.memory, delta_bytes=delta),
        network_s=compute * table(0.0, 1.0, 10, stages)
        if draw(st.booleans())
        else np.zeros((0, 0)),
        slice_s=table(0.0, 2.0, 10, stages, schedule.num_slices) if sliced else np.zeros((0, 0, 0)),
        barrier_s=draw(seconds()),
    )


def split_backward(order):
    """Replace each fused backward by its two halves, one right after the other."""
    repeats = np.where(order[:, 0] == ActionKind.B, 2, 1)
    rows = np.repeat(order, repeats, axis=0)
    fused = np.flatnonzero(rows[:, 0] == ActionKind.B)
    rows[fused[0::2], 0] = ActionKind.I
    rows[fused[1::2], 0] = ActionKind.W
    return rows
