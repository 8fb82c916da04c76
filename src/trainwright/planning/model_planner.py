"""Planning a model without a measured profile: candidates best-first, each cut exactly.

The estimator prices the layers at (microbatch size, tensor degree); the partitioner cuts each
candidate under its memory limit; the step is priced by `pricing`. Candidates are taken in the order
of their lower bounds, so the search ends as soon as the next bound is no better than the best step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from trainwright.costing.estimate import Estimator
from trainwright.execution import Progress
from trainwright.model import model_flops_per_sequence
from trainwright.partitioning.downset_dp import solve
from trainwright.partitioning.restrictions import surviving_rows
from trainwright.plan.parallelism import Parallelism
from trainwright.plan.status import Status
from trainwright.planning.model_problem import (
    candidate_restrictions,
    lean_problem,
    roomy_problem,
)
from trainwright.planning.model_question import ModelQuestion, estimate_profile
from trainwright.planning.model_space import (
    Candidate,
    candidates,
    microbatch_sizes,
    step_bound_s,
    tensor_degrees,
)
from trainwright.pricing.step import predict_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainwright.execution import Budget
    from trainwright.partitioning.restrictions import Restrictions
    from trainwright.plan import Plan, StepPrediction
    from trainwright.profile import Profile

_Depth: TypeAlias = tuple[int, int, int]

NUM_ALTERNATIVES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A candidate with its plan, the profile it was cut from, and its predicted step."""

    candidate: Candidate
    plan: Plan
    profile: Profile
    step: StepPrediction


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutcome:
    """Best plan first among `priced`; the bound holds for every plan of the searched space.

    `exhausted` says that every candidate was priced, excluded by its bound, or proved not to fit.
    """

    priced: tuple[Priced, ...]
    lower_bound_s: float
    considered: int
    pruned: int
    exhausted: bool
    interrupted: bool


@dataclass(slots=True)
class _Shelf:
    """Profiles by (microbatch size, tensor degree), made when first asked for."""

    question: ModelQuestion
    estimator: Estimator
    made: dict[tuple[int, int], Profile] = field(default_factory=dict)

    def profile(self, microbatch_size: int, tensor: int) -> Profile:
        key = (microbatch_size, tensor)
        if key not in self.made:
            self.made[key] = estimate_profile(
                self.estimator, self.question, microbatch_size=microbatch_size, tensor=(tensor,)
            )
        return self.made[key]


def plan_model(question: ModelQuestion, budget: Budget) -> ModelOutcome:
    """The fastest uniform plan under 1F1B, its runners-up, and a bound on every other."""
    shelf = _Shelf(question, Estimator(model=question.model, cluster=question.cluster))
    waiting = sorted(_bounded(question, shelf), key=lambda pair: (pair[0], _order(pair[1])))
    flops = model_flops_per_sequence(question.model, question.workload.sequence_length)
    priced: list[Priced] = []
    bound_s = waiting[0][0] if waiting else 0.0
    tried, best_s, stopped = 0, math.inf, False
    too_large = set[_Depth]()
    for candidate_bound_s, candidate in waiting:
        if candidate_bound_s >= best_s:
            break
        stopped = budget.poll(
            Progress(stage="planning", elapsed_s=budget.elapsed_s, best=best_s, lower_bound=bound_s)
        )
        if stopped:
            break
        tried += 1
        if _depth(candidate) in too_large:
            continue
        found = _price(question, candidate, shelf, flops, budget)
        if found is None:
            too_large.add(_depth(candidate))
        else:
            priced.append(found)
            best_s = min(best_s, found.step.step_time_s)
    exhausted = not stopped and not budget.stopped
    if exhausted and not priced:
        leanest = {_depth(c): c for _, c in reversed(waiting)}
        exhausted = not any(_may_fit(question, c, shelf, budget) for c in leanest.values())
    return ModelOutcome(
        priced=best_first(priced)[: 1 + NUM_ALTERNATIVES],
        lower_bound_s=min(bound_s, best_s) if math.isfinite(bound_s) else 0.0,
        considered=len(waiting),
        pruned=len(waiting) - tried,
        exhausted=exhausted,
        interrupted=budget.interrupted,
    )


def best_first(priced: Iterable[Priced]) -> tuple[Priced, ...]:
    """Fastest first, then fewest devices; a plan that several candidates lead to counts once."""
    ranked = sorted(
        priced, key=lambda p: (p.step.step_time_s, p.plan.devices_used, _order(p.candidate))
    )
    seen: list[Plan] = []
    kept = []
    for found in ranked:
        if found.plan not in seen:
            seen.append(found.plan)
            kept.append(found)
    return tuple(kept)


def _order(candidate: Candidate) -> tuple[int, ...]:
    return candidate.pipeline, candidate.tensor, candidate.microbatch_size, -candidate.data


def _depth(candidate: Candidate) -> _Depth:
    """What candidates that differ only in their data degree share; less data is never leaner."""
    return candidate.microbatch_size, candidate.tensor, candidate.pipeline


def _bounded(question: ModelQuestion, shelf: _Shelf) -> Iterator[tuple[float, Candidate]]:
    workload, restrictions = question.workload, question.restrictions
    degrees = tensor_degrees(
        question.model,
        question.cluster,
        workload,
        tensor_parallel=restrictions.tensor_parallel,
    )
    for size in microbatch_sizes(workload, question.microbatch_size):
        num_microbatches = workload.global_batch // size
        for tensor in degrees:
            profile = shelf.profile(size, tensor)
            work_s = _least_work_s(profile, restrictions)
            for candidate in candidates(
                num_devices=question.num_devices,
                num_layers=len(profile.structure.layers),
                num_microbatches=num_microbatches,
                microbatch_size=size,
                tensor=tensor,
                data_parallel=restrictions.data_parallel,
            ):
                bound = step_bound_s(candidate, work_s=work_s, num_microbatches=num_microbatches)
                yield bound, candidate


def _least_work_s(profile: Profile, restrictions: Restrictions) -> float:
    costs = profile.costs
    kept = surviving_rows(costs, restrictions)
    durations = np.where(kept, costs.duration_s, np.inf)
    by_class = [float(durations[costs.rows_of(c)].min()) for c in range(costs.num_classes)]
    return sum(by_class[layer.layer_class] for layer in profile.structure.layers)


def _price(
    question: ModelQuestion, candidate: Candidate, shelf: _Shelf, flops: float, budget: Budget
) -> Priced | None:
    profile = shelf.profile(candidate.microbatch_size, candidate.tensor)
    restrictions = candidate_restrictions(question, candidate)
    roomy, setting = roomy_problem(question, candidate, profile)
    cut = solve(roomy, setting, restrictions=restrictions, budget=budget)
    if cut.plan is None:
        return None
    plan = replace(
        cut.plan,
        microbatch_size=candidate.microbatch_size,
        parallelism=Parallelism(
            tensor=candidate.tensor,
            pipeline=len(cut.plan.stages),
            data=candidate.data,
            sequence_parallel=candidate.tensor > 1,
            zero_stage=question.zero_stage,
        ),
    )
    step = predict_step(plan, profile, question.cluster, model_flops_per_sequence=flops)
    if step.peak_memory_bytes > question.cluster.accelerator.usable_bytes:
        return None
    return Priced(candidate=candidate, plan=plan, profile=profile, step=step)


def _may_fit(question: ModelQuestion, candidate: Candidate, shelf: _Shelf, budget: Budget) -> bool:
    """Whether the candidate is not proved to be too large."""
    profile = shelf.profile(candidate.microbatch_size, candidate.tensor)
    lean, setting = lean_problem(question, candidate, profile)
    restrictions = candidate_restrictions(question, candidate)
    cut = solve(lean, setting, restrictions=restrictions, budget=budget)
    return cut.status is not Status.INFEASIBLE
