"""Every named family that fits a placement, in the modes a search asks for."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.plan.schedule import ActionKind, Schedule
from trainwright.scheduling.families import FAMILIES, Family, FamilyRequest
from trainwright.scheduling.families.wave import WAVE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plan.placement import Placement
    from trainwright.plan.schedule_costs import ScheduleCosts


def named_schedules(
    placement: Placement,
    num_microbatches: int,
    *,
    costs: ScheduleCosts,
    limits: Collection[int | None],
) -> Iterator[tuple[str, Schedule]]:
    """Orders of all families with this placement, by name; some may exceed the limits.

    Families that obey limits are built for each of `limits` (activations of a rank, None for no
    limit beside those of `costs`), unless what they gave for more fits.
    """
    chunks, rest = divmod(placement.num_stages, placement.num_ranks)
    if rest:
        return
    request = FamilyRequest(
        num_ranks=placement.num_ranks,
        num_microbatches=num_microbatches,
        virtual_stages=chunks,
        costs=costs,
    )
    for family in _distinct_families(placement):
        if not family.obeys_limits:
            schedules = [_generated(family, request, placement)]
        else:
            schedules = list(_within(family, request, placement, limits))
        yield from ((family.name, schedule) for schedule in schedules if schedule is not None)


def _distinct_families(placement: Placement) -> tuple[Family, ...]:
    """Of families that are one generator under two names, the more general; a wave may be V."""
    by_order = {family.order: family for family in FAMILIES.values()}
    return tuple(f for f in by_order.values() if f is not WAVE or not placement.is_v)


def _within(
    family: Family, request: FamilyRequest, placement: Placement, limits: Collection[int | None]
) -> Iterator[Schedule | None]:
    peak = math.inf
    for limit in sorted(limits, key=lambda limit: -math.inf if limit is None else -limit):
        if limit is not None and peak <= limit:
            continue
        schedule = _generated(family, replace(request, max_activations=limit), placement)
        if schedule is not None:
            peak = max(schedule.peak_activations)
        yield schedule


def _generated(family: Family, request: FamilyRequest, placement: Placement) -> Schedule | None:
    """Nothing where the family has another placement or breaks a rule of its own."""
    try:
        if family.place(request) != placement:
            return None
        return family.generate(request)
    except (InvalidInput, UnsupportedFeature):
        return None


def in_modes(
    schedule: Schedule, *, fused: NDArray[np.bool_], recomputed: NDArray[np.bool_]
) -> Schedule:
    """The same orders with backwards fused, split and preceded by R as told per stage, shape [S].

    A half that becomes a whole stays where its I was; a whole that is split has its W right after.
    Pairs are dropped where rows change.
    """
    kind, stage, _ = schedule.actions.T
    is_back = (kind == ActionKind.I) | (kind == ActionKind.B)
    kept = (kind == ActionKind.F) | is_back | ((kind == ActionKind.W) & ~fused[stage])
    num_rows = kept.astype(np.int64)
    num_rows += is_back & recomputed[stage]
    num_rows += (kind == ActionKind.B) & ~fused[stage]
    origin = np.repeat(np.arange(len(kind)), num_rows)
    rows = schedule.actions[origin]
    step = np.arange(len(origin)) - np.repeat(np.cumsum(num_rows) - num_rows, num_rows)
    step -= recomputed[rows[:, 1]]  # -1 at R, 0 at the backward, 1 at the W of what was whole
    backs = is_back[origin]
    rows[backs, 0] = np.where(fused[rows[backs, 1]], ActionKind.B, ActionKind.I)
    rows[backs & (step == 1), 0] = ActionKind.W
    rows[backs & (step == -1), 0] = ActionKind.R
    if np.array_equal(rows, schedule.actions):
        return schedule
    ends = np.concatenate([[0], np.cumsum(num_rows)])
    return Schedule(
        placement=schedule.placement,
        num_microbatches=schedule.num_microbatches,
        actions=rows,
        rank_offsets=ends[schedule.rank_offsets],
    )
