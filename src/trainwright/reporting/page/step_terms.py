"""Where the time of a step goes, term by term, on one rank: the terms add up to the step.

    step = m · (compute + exposed communication + recomputation) + waiting
           + exposed synchronisation + optimizer + what a step costs once

Waiting is what remains of the step: fill and drain of the pipeline, unequal stages, transfers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainwright.plan.prediction import StagePrediction
    from trainwright.reporting.page.subject import PricedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Seconds of a step; `kind` names the colour."""

    kind: str
    label: str
    seconds: float


def busiest_rank(priced: PricedStep) -> int:
    """The rank that computes longest, the first where several do."""
    stages = priced.step.stages
    return max(range(len(stages)), key=lambda rank: _work_s(stages[rank]))


def rank_terms(priced: PricedStep, rank: int) -> tuple[Term, ...]:
    """The terms of a rank, in the order they are drawn; waiting is all that is left."""
    stage, m = priced.step.stages[rank], priced.num_microbatches
    inside = {
        "recompute": ("recomputation", stage.recompute_s),
        "tensor": ("tensor parallelism", stage.tensor_parallel_s),
        "context": ("context parallelism", stage.context_parallel_s),
        "expert": ("expert parallelism", stage.expert_parallel_s),
    }
    compute_s = _work_s(stage) - sum(seconds for _, seconds in inside.values())
    terms = [Term(kind="compute", label="compute", seconds=m * max(compute_s, 0.0))]
    terms += [Term(kind=k, label=label, seconds=m * s) for k, (label, s) in inside.items()]
    terms.append(Term(kind="gradients", label="synchronisation", seconds=_sync_s(priced, stage)))
    once_s = _once_s(priced)
    terms.append(Term(kind="optimizer", label="optimizer and overhead", seconds=once_s))
    left_s = priced.step.step_time_s - sum(term.seconds for term in terms)
    terms.append(Term(kind="waiting", label="waiting", seconds=max(left_s, 0.0)))
    return tuple(terms)


def _work_s(stage: StagePrediction) -> float:
    return stage.forward_s + stage.backward_s


def _sync_s(priced: PricedStep, stage: StagePrediction) -> float:
    """What a rank adds at the end, at most what the step allows for."""
    return min(stage.exposed_gradient_sync_s, priced.step.exposed_gradient_sync_s)


def _once_s(priced: PricedStep) -> float:
    step = priced.step
    return step.step_time_s - step.pipeline_s - step.exposed_gradient_sync_s
