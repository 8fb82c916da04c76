"""Plans whose orders are worth a search: near the best one, and one of every other placement.

How good an order can become depends on where stages lie, and a family far from the best may leave
most of that to a search. So placements that no plan near the best has are planned again at the
degrees of the best pipeline, which is quick.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.planning.allowed import Span
from trainwright.planning.family_split import CHAIN, IN_V, LOOPED
from trainwright.planning.framework import plan_runnable
from trainwright.planning.schedules import SEARCHED as BY_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainwright.execution import Budget
    from trainwright.planning.allowed import Allowed
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.planning.model_space import Candidate
    from trainwright.planning.split_plan import Priced

_NEAR: Final = 1.05  # of the best step: how slow a plan may be under its family's order
_PLACEMENTS: Final = (IN_V, LOOPED, CHAIN)


def order_starts(
    question: ModelQuestion, priced: Sequence[Priced], budget: Budget
) -> Iterator[Priced]:
    """Plans with a pipeline, the best of them first, and one for each placement that is allowed."""
    near_s = _NEAR * priced[0].step.step_time_s
    near = [
        each
        for each in priced
        if each.candidate.pipeline > 1
        and each.plan.parallelism is not None
        and each.step.step_time_s <= near_s
    ]
    yield from near
    if not near:
        return
    allowed, seen = question.allowed, {each.candidate.schedule for each in near}
    for families in _PLACEMENTS:
        left = tuple(f for f in allowed.schedules or BY_DEFAULT if f in families)
        if not left or seen & set(families) or budget.stopped:
            continue
        narrowed = _at_degrees(allowed, near[0].candidate, left)
        try:
            found = plan_runnable(
                replace(question, allowed=narrowed), budget, num_alternatives=0
            ).priced
        except (InvalidInput, UnsupportedFeature):  # nothing is left of the space
            continue
        yield from found


def _at_degrees(allowed: Allowed, at: Candidate, families: tuple[str, ...]) -> Allowed:
    """The same devices, replicas and microbatches under some families."""
    return replace(
        allowed,
        tensor=Span.only(at.tensor),
        pipeline=Span.only(at.pipeline),
        data=Span.only(at.data),
        context=Span.only(at.context),
        expert=Span.only(at.expert),
        expert_tensor=Span.only(at.degrees.expert_shards),
        microbatch_size=Span.only(at.microbatch_size),
        state_copies=Span.only(at.state_copies),
        zero_stages=(at.zero_stage,),
        mappings=(at.axis_order,),
        schedules=families,
        searches_orders=False,
    )
