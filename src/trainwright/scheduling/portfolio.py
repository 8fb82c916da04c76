"""Every named family that fits a placement, in the modes a search asks for."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.plan.schedule import ActionKind, Schedule
from trainwright.scheduling.families import FAMILIES, Family, FamilyRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plan.placement import Placement
    from trainwright.plan.schedule_costs import ScheduleCosts


# In V these are adaptive V under another name.
_ADAPTIVE_IN_V = frozenset({"zb-v", "wave"})


def named_schedules(
    placement: Placement,
    num_microbatches: int,
    *,
    costs: ScheduleCosts,
    limits: Collection[int] = (),
) -> Iterator[tuple[str, Schedule]]:
    """Orders of all families with this placement, by name; some may exceed the limits.

    Each is built without a limit of activations, and those that can obey one once more for each of
    `limits` that is below what they hold without.
    """
    chunks, rest = divmod(placement.num_stages, placement.num_ranks)
    if rest:
        return
    unlimited = FamilyRequest(
        num_ranks=placement.num_ranks,
        num_microbatches=num_microbatches,
        virtual_stages=chunks,
        costs=costs,
    )
    for family in FAMILIES.values():
        if placement.is_v and family.name in _ADAPTIVE_IN_V:
            continue
        free = _generated(family, unlimited, placement)
        if free is not None:
            yield family.name, free
        if not family.obeys_limits:
            continue
        for limit in sorted(set(limits)):
            if free is None or limit < max(free.peak_activations):
                request = replace(unlimited, max_activations=limit)
                schedule = _generated(family, request, placement)
                if schedule is not None:
                    yield family.name, schedule


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
