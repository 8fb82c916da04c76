"""The same kind of schedule on fewer ranks, where the machine at hand cannot run all of them.

A family is generated again, a search repeated, with the same placement. Chunks and proportions of
times stay (medians over stages), the memory limit shrinks with the ranks; microbatches are at most
16, in whole rounds of the ranks where there are as many. What a real run of the folded schedule
shows is about the family, or about what such a search finds, not about every rank of the full one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.api.schedule_inputs import ScheduleCase
from trainwright.api.schedule_method import Method, SearchOptions
from trainwright.api.schedule_methods import by_family
from trainwright.api.schedule_search import by_search
from trainwright.errors import UnsupportedFeature
from trainwright.execution import Budget
from trainwright.formats.schedule_spec import ScheduleSpec
from trainwright.plan.placement import Placement
from trainwright.plan.schedule import ActionKind
from trainwright.scheduling.families import FAMILIES

if TYPE_CHECKING:
    from trainwright.plan.results.schedule import ScheduleResult
    from trainwright.plan.timeline import Timeline

_MOST_MICROBATCHES = 16
_EVALUATIONS = 2000  # of a search that is repeated: seconds


def fold(
    document: ScheduleResult, timeline: Timeline, *, ranks: int, microbatches: int | None = None
) -> Timeline:
    """The schedule of the document's family, or of another search, on `ranks` ranks.

    `microbatches` are at most 16 where left out. Raises UnsupportedFeature
    where the orders have no family to be rebuilt from.
    """
    request, full = document.request, timeline.schedule
    if request.method == Method.SIMULATE or request.group is not None:
        raise UnsupportedFeature(
            f"at most {ranks} ranks are run for real, got {full.num_ranks}, and these orders "
            "cannot be rebuilt for fewer",
            alternative=f"verify a schedule of {ranks} ranks, or a family by its name",
        )
    limit = request.max_activations
    case = replace(
        _median_case(timeline),
        ranks=ranks,
        microbatches=microbatches or fewer_microbatches(full.num_microbatches, ranks),
        virtual_stages=document.chunks_per_rank,
        max_activations=None if limit is None else math.ceil(limit * ranks / full.num_ranks),
    )
    if is_searched(document):
        options = SearchOptions(
            placement=_placement_name(timeline), seed=request.seed, evaluations=_EVALUATIONS
        )
        folded = by_search(case, options, method=Method.SEARCH, budget=Budget()).timeline
    else:
        folded = by_family(case, document.family, budget=Budget()).timeline
    if folded is None:
        problem = (
            f"{document.family} has no schedule on {ranks} ranks within the limit in proportion"
        )
        raise UnsupportedFeature(problem, alternative="verify it without the limit")
    return folded


def is_searched(document: ScheduleResult) -> bool:
    """Whether its orders have no family's name: they were searched for."""
    return document.request.method != Method.SIMULATE and document.family not in FAMILIES


def _placement_name(timeline: Timeline) -> str:
    placement = timeline.schedule.placement
    ranks, chunks = placement.num_ranks, placement.num_stages // placement.num_ranks
    if placement.is_v:
        return "v"
    if placement == Placement.loop(ranks, virtual_stages=chunks):
        return "loop"
    return "wave" if placement == Placement.wave(ranks, virtual_stages=chunks) else "any"


def _median_case(timeline: Timeline) -> ScheduleCase:
    costs = timeline.costs
    times = {kind: (float(np.median(costs.duration_s[kind])),) for kind in ActionKind}
    transfers = costs.forward_transfer_s
    spec = ScheduleSpec(
        forward_s=times[ActionKind.F],
        input_grad_s=times[ActionKind.I],
        weight_grad_s=times[ActionKind.W],
        backward_s=times[ActionKind.B],
        transfer_s=(float(np.median(transfers)),) if len(transfers) else (),
    )
    return ScheduleCase.of(spec)


def fewer_microbatches(count: int, ranks: int) -> int:
    """At most 16, in whole rounds of the ranks where there are as many."""
    fewer = min(count, _MOST_MICROBATCHES)
    return fewer - fewer % ranks if fewer >= ranks else fewer
