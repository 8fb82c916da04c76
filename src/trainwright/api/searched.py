"""Where `--schedule searched` can be asked for, and what is said about its orders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.errors import InvalidInput
from trainwright.plan.searched_order import SEARCHED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.plan.results.model_plan import ModelPlanResult
    from trainwright.planning.model_planner import ModelOutcome
    from trainwright.planning.model_question import ModelQuestion


def refuse_no_search(question: ModelQuestion, *, per_stage_degrees: bool) -> None:
    """Raise `InvalidInput` where orders are asked for and cannot be searched or run."""
    if not question.allowed.searches_orders:
        return
    from trainwright.plan.capability import alternatives, capability_of
    from trainwright.plan.feature import Feature

    if per_stage_degrees:
        raise InvalidInput.of(
            "schedule", f"{SEARCHED} must not be given together with --per-stage-degrees"
        )
    if len(question.cluster.pools) > 1:
        problem = f"{SEARCHED} is for clusters of one pool; plan on each pool alone"
        raise InvalidInput.of("schedule", problem)
    framework = question.allowed.framework
    if framework is not None and not capability_of(framework).can(Feature.CUSTOM_ORDER):
        how = capability_of(framework).cells[Feature.CUSTOM_ORDER].how
        able = ", ".join(alternatives(Feature.CUSTOM_ORDER))
        raise InvalidInput.of("schedule", f"{SEARCHED}: {framework} {how}; what can: {able}")


def search_in_words(
    question: ModelQuestion, outcome: ModelOutcome, *, was_stopped: bool
) -> Iterator[str]:
    """What a search that found nothing says; `was_stopped` where time or patience ran out."""
    if not question.allowed.searches_orders or not outcome.priced:
        return
    from trainwright.planning.searched_orders import MOST_ACTIONS, num_actions

    plan = outcome.priced[0].plan
    if plan.order is not None:
        return
    degrees = plan.parallelism
    if degrees is not None and degrees.pipeline == 1:
        yield "schedule: nothing to search: the best plan has no pipeline"
    elif (count := num_actions(outcome.priced[0])) > MOST_ACTIONS:
        yield (
            f"schedule: nothing was searched: an order of the best plan has {count:,} actions, "
            f"more than {MOST_ACTIONS:,}"
        )
    else:
        when = " before the search was stopped" if was_stopped else ""
        yield f"schedule: no order was found{when} that is shorter than that of {plan.schedule}"


def order_in_words(document: ModelPlanResult) -> str | None:
    """Where a searched order began, and a hash that tells it from others."""
    from trainwright.api.inputs import content_hash
    from trainwright.formats.document_json import encode

    order = document.order
    if order is None:
        return None
    return f"from {order.family}, {content_hash(encode(order))[:12]}"
