"""Which of some plans in V steps fastest: their orders follow from times, so each is simulated.

An order is most of what a price costs. What a plan spends on communication takes another, without
transfers, so only the plan that is kept is priced in full.

What an order holds is known only then, too, and it may be more than the split has room for. So
where a faster plan than all that fit misses the memory, splits are looked for again with so much
less room as was missing, a few times; where that is too little room, halfway back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from trainwright.planning.device_room import with_usable
from trainwright.planning.v_floor import least_step_of_v_s
from trainwright.planning.v_split import best_uneven_v_split
from trainwright.pricing.assemble import simulated_step
from trainwright.pricing.step import work_of_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trainwright.plan import Plan
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.planning.split_bound import CutsAndRows
    from trainwright.planning.split_question import SplitQuestion
    from trainwright.profile import Profile

_TRIES: Final = 7
_LEAST_CUT: Final = 0.005  # of the room: by how much it is cut at least, each time twice as much
_WORTH_LESS_ROOM: Final = 0.998  # of the best step: where a plan that misses the memory ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """The fastest plan that fits, if any; by how much faster ones miss the memory, at least.

    `missing_bytes` is 0 where none does.
    """

    plan: Plan | None = None
    step_s: float = math.inf
    missing_bytes: float = 0.0

    def or_faster(self, other: Tried) -> Tried:
        """The faster of both; the first where they tie."""
        return other if other.step_s < self.step_s else self


def fastest_plan(
    question: ModelQuestion, profile: Profile, plans: Iterable[Plan], *, limit_s: float
) -> Tried:
    """The first of those that fit and step fastest; none whose pipeline alone exceeds the limit."""
    cluster, overheads = question.cluster, question.overheads
    best, over = Tried(), []
    for plan in plans:
        work, layout = work_of_plan(
            plan,
            profile,
            cluster,
            overlap=question.settings.overlap,
            overheads=overheads,
        )
        step = simulated_step(work, layout)
        if step.pipeline_s + cluster.accelerator.step_overhead_s > limit_s:
            continue
        if not question.holds(step.peak_memory_bytes):
            missing_bytes = step.peak_memory_bytes - overheads.workspace_bytes
            missing_bytes -= overheads.room_bytes(cluster.accelerator.usable_bytes)
            over.append((step.step_time_s, missing_bytes))
        elif step.step_time_s < best.step_s:
            best = Tried(plan=plan, step_s=step.step_time_s)
    faster = [missing for step_s, missing in over if step_s < _WORTH_LESS_ROOM * best.step_s]
    return replace(best, missing_bytes=min(faster, default=0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTries:
    """Plans of a candidate's splits, simulated; `plan_of` makes one of a split."""

    question: ModelQuestion
    profile: Profile
    plan_of: Callable[[CutsAndRows], Plan]

    def fastest(self, splits: list[CutsAndRows], limit_s: float) -> Tried:
        """The fastest that fits, of those whose pipelines are within the limit."""
        plans = map(self.plan_of, splits)
        return fastest_plan(self.question, self.profile, plans, limit_s=limit_s)

    def floor_s(self, split: CutsAndRows) -> float:
        """No order of the split steps faster."""
        asked = self.question
        work, layout = work_of_plan(
            self.plan_of(split),
            self.profile,
            asked.cluster,
            overlap=asked.settings.overlap,
            overheads=asked.overheads,
        )
        return least_step_of_v_s(work, layout)


def fastest_with_less_room(
    asked: SplitQuestion,
    missing_bytes: float,
    try_splits: Callable[[list[CutsAndRows], float], Tried],
    *,
    limit_s: float,
) -> Tried:
    """The fastest plan that is found for a candidate whose splits missed the memory.

    The bytes are by how much; where they are 0, the room is left as it is the first time.
    `try_splits` gets splits and the limit, and says which of their plans is best.
    """
    enough, too_little = asked.cluster.accelerator.usable_bytes, 0.0
    best, cut, least = Tried(), missing_bytes, _LEAST_CUT * enough
    if missing_bytes:
        cut = max(cut, least)
    for _ in range(_TRIES):
        room = enough - cut if enough - cut > too_little else (enough + too_little) / 2
        tighter = replace(asked, cluster=with_usable(asked.cluster, room))
        split = best_uneven_v_split(tighter, limit_s=min(limit_s, best.step_s))
        if not split.cuts:
            too_little = room
            if enough - too_little <= least:
                break
            cut = (enough - too_little) / 2
            continue
        tried = try_splits([(split.cuts, split.chosen), *split.others], limit_s)
        best = best.or_faster(tried)
        if tried.plan is not None and not tried.missing_bytes:
            break
        enough, least = room, 2 * least
        cut = max(tried.missing_bytes, least)
    return best
