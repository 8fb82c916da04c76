"""The same family on fewer ranks, where the machine at hand cannot run all of them.

Placement, chunks and proportions of times stay (medians over stages), the memory limit shrinks with
the ranks; microbatches are at most 16, in whole rounds of the ranks where there are as many. What a
real run of the folded schedule shows is about the family, not about every rank of the full one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.api.schedule_inputs import ScheduleCase
from trainwright.api.schedule_method import Method
from trainwright.api.schedule_methods import by_family
from trainwright.errors import UnsupportedFeature
from trainwright.execution import Budget
from trainwright.formats.schedule_spec import ScheduleSpec
from trainwright.plan.schedule import ActionKind

if TYPE_CHECKING:
    from trainwright.plan.results.schedule import ScheduleResult
    from trainwright.plan.timeline import Timeline

_MOST_MICROBATCHES = 16


def fold(document: ScheduleResult, timeline: Timeline, *, ranks: int) -> Timeline:
    """The schedule of the document's family on `ranks` ranks.

    Raises UnsupportedFeature where the orders have no family to be rebuilt from.
    """
    request, full = document.request, timeline.schedule
    if request.method != Method.FAMILY or request.group is not None:
        raise UnsupportedFeature(
            f"at most {ranks} ranks are run for real, got {full.num_ranks}, and these orders "
            "cannot be rebuilt for fewer",
            alternative=f"verify a schedule of {ranks} ranks, or a family by its name",
        )
    limit = request.max_activations
    case = replace(
        _median_case(timeline),
        ranks=ranks,
        microbatches=_fewer_microbatches(full.num_microbatches, ranks),
        virtual_stages=document.chunks_per_rank,
        max_activations=None if limit is None else math.ceil(limit * ranks / full.num_ranks),
    )
    folded = by_family(case, document.family, budget=Budget()).timeline
    if folded is None:
        problem = (
            f"{document.family} has no schedule on {ranks} ranks within the limit in proportion"
        )
        raise UnsupportedFeature(problem, alternative="verify it without the limit")
    return folded


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


def _fewer_microbatches(count: int, ranks: int) -> int:
    fewer = min(count, _MOST_MICROBATCHES)
    return fewer - fewer % ranks if fewer >= ranks else fewer
