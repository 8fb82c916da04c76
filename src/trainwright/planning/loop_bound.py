"""A bound on every split over chunks in a loop, whose orders ignore times.

A path through the order's graph is a lower bound on the step, linear in the times of the stages;
that a rank's memory suffices at one instant is linear in the bytes of its stages. For multipliers
λ of paths, which sum to 1, and μ of ranks

    step ≥ min over splits of Σ λ_k · path_k + Σ μ_r · (needed_r - usable)

and the minimum is a sum over layers, each with its cheapest option at the stage that it lies in: a
chain DP, O(stages · layers). Multipliers are improved by weighing up what exceeds the average.
Paths of rank r, with its own first backward and last forward:

    all own actions, between the forwards that lead to it and the backwards that lead back
    forwards to the loss and back to its first backward, then its own from there
    its own to its last forward, then to the loss and all the way back
    both of these ends

Beside it holds that blocks do not divide: some rank runs at least its share, rounded up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from trainwright.plan.schedule import ActionKind
from trainwright.planning.order_facts import orders_of
from trainwright.pricing.pipeline_run import peak_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plan.schedule import Schedule
    from trainwright.pricing.pipeline_run import PipelineShape

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    _Counts = NDArray[Any]

_F, _B = ActionKind.F, ActionKind.B


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PathCounts:
    """K paths over S stages: how many forwards and backwards [K, S], and transfers [K, S - 1]."""

    forward: Floats
    backward: Floats
    transfer: Floats


@lru_cache(maxsize=64)
def path_counts(shape: PipelineShape) -> PathCounts:
    """Of every rank; of the family's own orders, backwards fused, for the shape's microbatches."""
    schedule = orders_of(peak_shape(shape))
    found = [
        counts
        for rank in range(shape.num_ranks)
        for counts in _rank_paths(schedule, rank, shape.num_microbatches)
    ]
    forward, backward, transfer = (np.array(each) for each in zip(*found, strict=True))
    return PathCounts(forward=forward, backward=backward, transfer=transfer)


def _rank_paths(
    schedule: Schedule, rank: int, num_microbatches: int
) -> list[tuple[Floats, Floats, Floats]]:
    num_stages, m = schedule.placement.num_stages, num_microbatches
    own = np.array(schedule.placement.rank_of_stage) == rank
    rows = schedule.actions[schedule.rows_of(rank)]
    kinds, stages = rows[:, 0], rows[:, 1]
    first_backward = int(np.argmax(kinds == _B))
    last_forward = len(kinds) - 1 - int(np.argmax(kinds[::-1] == _F))

    def counted(part: slice, kind: ActionKind) -> Floats:
        chosen = stages[part][kinds[part] == kind]
        return np.bincount(chosen, minlength=num_stages).astype(np.float64)

    warm = counted(slice(0, first_backward), _F)
    drain = counted(slice(last_forward + 1, None), _B)
    begins, ends = int(stages[0]), int(stages[-1])
    turns, leaves = int(stages[first_backward]), int(stages[last_forward])
    stage, edge, all_own = np.arange(num_stages), np.arange(num_stages - 1), own * float(m)
    head = (stage < begins, np.zeros(num_stages), edge < begins)
    tail = (np.zeros(num_stages), stage < ends, edge < ends)
    to_first = (np.ones(num_stages), stage > turns, 1 + (edge >= turns))
    from_last = (stage > leaves, np.ones(num_stages), 1 + (edge >= leaves))
    none = np.zeros(num_stages - 1)
    paths = [
        _sum(head, (all_own, all_own, none), tail),
        _sum(to_first, (all_own - warm, all_own, none), tail),
        _sum(head, (all_own, all_own - drain, none), from_last),
    ]
    if first_backward < last_forward:
        paths.append(_sum(to_first, (all_own - warm, all_own - drain, none), from_last))
    return paths


def _sum(*parts: tuple[_Counts, _Counts, _Counts]) -> tuple[Floats, Floats, Floats]:
    forward, backward, transfer = (np.sum(each, axis=0) for each in zip(*parts, strict=True))
    return forward.astype(np.float64), backward.astype(np.float64), transfer.astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainCosts:
    """The chain and its options: class of each layer [L]; by row [R] of the classes.

    `fits_rows` weigh kept bytes of the stages of a rank at an instant: [N, S], `fits_rank` [N].
    `room_bytes` is what a rank has for them and for `static_bytes` [R].
    """

    layer_class: Ints
    class_offsets: Ints
    forward_s: Floats
    backward_s: Floats
    kept_bytes: Floats
    static_bytes: Floats
    instants: Floats
    rank_of_instant: Ints
    rank_of_stage: Ints
    room_bytes: float


def relaxed_step_s(
    costs: ChainCosts, paths: PathCounts, transfer_s: Floats, *, target_s: float, rounds: int
) -> float:
    """The largest bound found; `target_s` is a step that may be reached. Infinite: none fits."""
    crossing_s = paths.transfer @ transfer_s
    num_instants = len(costs.instants)
    weights = np.full(len(crossing_s), 1 / len(crossing_s))
    prices = np.zeros(num_instants)  # seconds per byte
    best_s, scale = 0.0, 1.0
    for _ in range(rounds):
        found = _least_split(costs, paths, weights, prices)
        lengths_s = found.path_s + crossing_s
        bound_s = float(weights @ lengths_s + prices @ found.excess_bytes)
        if bound_s > best_s:
            best_s = bound_s
        else:
            scale *= 0.8
        if best_s >= target_s:
            break
        gap_s = max(target_s - bound_s, 1e-9 * target_s)
        spread = lengths_s - float(weights @ lengths_s)
        excess = np.where((prices > 0) | (found.excess_bytes > 0), found.excess_bytes, 0.0)
        norm = float((weights * spread**2).sum()) + _PRICE_SHARE**2 * float((excess**2).sum())
        step = scale * gap_s / max(norm, 1e-300)
        grown = weights * np.exp(np.clip(step * spread, -2.0, 2.0))
        weights = grown / grown.sum()
        prices = np.maximum(0.0, prices + step * _PRICE_SHARE**2 * excess)
    return best_s


_PRICE_SHARE = 1e-9  # seconds of a byte: brings bytes and seconds of a step to one scale


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Least:
    path_s: Floats
    excess_bytes: Floats


def _least_split(costs: ChainCosts, paths: PathCounts, weights: Floats, prices: Floats) -> _Least:
    forwards, backwards = weights @ paths.forward, weights @ paths.backward
    held = prices @ costs.instants  # per kept byte, by stage
    of_rank = np.bincount(costs.rank_of_instant, weights=prices, minlength=1)
    static = of_rank[costs.rank_of_stage]
    unit = (
        np.multiply.outer(forwards, costs.forward_s)
        + np.multiply.outer(backwards, costs.backward_s)
        + np.multiply.outer(held, costs.kept_bytes)
        + np.multiply.outer(static, costs.static_bytes)
    )
    starts = costs.class_offsets[:-1]
    by_class = np.minimum.reduceat(unit, starts, axis=1)
    stage_of = _cheapest(by_class[:, costs.layer_class])
    # What the cheapest choice of every layer takes, at its stage.
    row_of = np.stack(
        [
            unit[:, a:b].argmin(axis=1) + a
            for a, b in zip(starts, costs.class_offsets[1:], strict=True)
        ]
    )
    row = row_of[costs.layer_class, stage_of]
    num_stages = len(forwards)

    def summed(values: Floats) -> NDArray[Any]:
        return np.bincount(stage_of, weights=values[row], minlength=num_stages)

    static_of_rank = np.bincount(
        costs.rank_of_stage, weights=summed(costs.static_bytes), minlength=len(of_rank)
    )
    needed = costs.instants @ summed(costs.kept_bytes) + static_of_rank[costs.rank_of_instant]
    return _Least(
        path_s=paths.forward @ summed(costs.forward_s) + paths.backward @ summed(costs.backward_s),
        excess_bytes=needed - costs.room_bytes,
    )


def _cheapest(unit: Floats) -> Ints:
    """The stage of every layer, [L], for costs [S, L]; every stage has a layer."""
    num_stages, size = unit.shape
    total = np.concatenate([np.zeros((num_stages, 1)), np.cumsum(unit, axis=1)], axis=1)
    least = np.full(size + 1, np.inf)
    least[0] = 0.0
    began = np.zeros((num_stages, size + 1), dtype=np.int64)
    position = np.arange(size + 1)
    for stage in range(num_stages):
        opened = least - total[stage]
        lowest = np.minimum.accumulate(opened)
        at = np.maximum.accumulate(np.where(opened <= lowest, position, 0))
        began[stage, 1:] = at[:-1]
        least = np.concatenate(([np.inf], total[stage, 1:] + lowest[:-1]))
    stage_of = np.zeros(size, dtype=np.int64)
    end = size
    for stage in reversed(range(num_stages)):
        start = int(began[stage, end])
        stage_of[start:end] = stage
        end = start
    return stage_of


def undivided_step_s(*, block_s: float, num_blocks: int, num_ranks: int, m: int) -> float:
    """Work of the rank with most blocks of one class."""
    return m * block_s * math.ceil(num_blocks / num_ranks)
