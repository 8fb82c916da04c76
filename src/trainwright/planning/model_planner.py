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
from trainwright.partitioning.ties import recompute_least
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
    from collections.abc import Iterable, Iterator, Sequence

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

    `exhausted` says that every candidate was priced, excluded by its bound, or proved not to fit;
    `not_reached` counts those that were neither priced nor excluded when the search was stopped.
    """

    priced: tuple[Priced, ...]
    lower_bound_s: float
    considered: int
    pruned: int
    not_reached: int
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
    waiting = sorted(_bounded(question, shelf, budget), key=lambda p: (p[0], _order(p[1])))
    is_complete = not budget.stopped  # else some candidates are not among those waiting
    bound_s = waiting[0][0] if waiting and is_complete else 0.0
    priced, tried = _price_in_order(question, waiting, shelf, budget)
    best_s = min((found.step.step_time_s for found in priced), default=math.inf)
    exhausted = is_complete and not budget.stopped
    if exhausted and not priced:
        leanest = {_depth(c): c for _, c in reversed(waiting)}
        exhausted = all(_is_too_large(question, c, shelf, budget) for c in leanest.values())
    left = waiting[tried:]
    pruned = sum(candidate_bound_s >= best_s for candidate_bound_s, _ in left)
    return ModelOutcome(
        priced=best_first(priced)[: 1 + NUM_ALTERNATIVES],
        lower_bound_s=min(bound_s, best_s) if math.isfinite(bound_s) else 0.0,
        considered=len(waiting),
        pruned=pruned,
        not_reached=len(left) - pruned,
        exhausted=exhausted,
        interrupted=budget.interrupted,
    )


def _price_in_order(
    question: ModelQuestion,
    waiting: Sequence[tuple[float, Candidate]],
    shelf: _Shelf,
    budget: Budget,
) -> tuple[list[Priced], int]:
    """Plans of the candidates that fit, and how many were tried until none can be better."""
    flops = model_flops_per_sequence(question.model, question.workload.sequence_length)
    priced: list[Priced] = []
    best_s, too_large = math.inf, set[_Depth]()
    for tried, (bound_s, candidate) in enumerate(waiting):
        progress = Progress(
            stage="planning", elapsed_s=budget.elapsed_s, best=best_s, lower_bound=waiting[0][0]
        )
        if bound_s >= best_s or budget.poll(progress):
            return priced, tried
        if _depth(candidate) in too_large:
            continue
        found = _price(question, candidate, shelf, flops, budget)
        if found is None:
            too_large.add(_depth(candidate))
        else:
            priced.append(found)
            best_s = min(best_s, found.step.step_time_s)
    return priced, len(waiting)


def best_first(priced: Iterable[Priced]) -> tuple[Priced, ...]:
    """Fastest first; of equally fast plans the one that recomputes least, then uses least.

    Equally fast are times that agree in twelve digits. A plan that several candidates lead to
    counts once.
    """
    seen: list[Plan] = []
    kept = []
    for found in sorted(priced, key=_rank):
        if found.plan not in seen:
            seen.append(found.plan)
            kept.append(found)
    return tuple(kept)


def _rank(found: Priced) -> tuple[float, ...]:
    step, plan = found.step, found.plan
    recomputed_s = sum(
        part.recompute_s * placed.tensor_parallel * plan.num_microbatches
        for part, placed in zip(step.stages, plan.stages, strict=True)
    )
    return (
        float(f"{step.step_time_s:.11e}"),
        recomputed_s,
        plan.devices_used,
        step.peak_memory_bytes,
        *_order(found.candidate),
    )


def _order(candidate: Candidate) -> tuple[int, ...]:
    return candidate.pipeline, candidate.tensor, candidate.microbatch_size, -candidate.data


def _depth(candidate: Candidate) -> _Depth:
    """What candidates that differ only in their data degree share; less data is never leaner."""
    return candidate.microbatch_size, candidate.tensor, candidate.pipeline


def _bounded(
    question: ModelQuestion, shelf: _Shelf, budget: Budget
) -> Iterator[tuple[float, Candidate]]:
    """The candidates with their bounds; not all of them where the budget runs out."""
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
            if budget.stopped:
                return
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
                bound = step_bound_s(
                    candidate,
                    work_s=work_s,
                    num_microbatches=num_microbatches,
                    overhead_s=question.cluster.accelerator.step_overhead_s,
                )
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
    found = solve(roomy, setting, restrictions=restrictions, budget=budget)
    cut = recompute_least(found, roomy, setting, restrictions=restrictions)
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


def _is_too_large(
    question: ModelQuestion, candidate: Candidate, shelf: _Shelf, budget: Budget
) -> bool:
    """Whether it is proved, in the time left, that no plan of the candidate fits."""
    if budget.stopped:
        return False
    profile = shelf.profile(candidate.microbatch_size, candidate.tensor)
    lean, setting = lean_problem(question, candidate, profile)
    restrictions = candidate_restrictions(question, candidate)
    cut = solve(lean, setting, restrictions=restrictions, budget=budget)
    return cut.status is Status.INFEASIBLE
