"""Planning a model without a measured profile: candidates best-first, each with its best split.

The estimator prices the layers at (microbatch size, tensor degree). A candidate has a coarse bound
at once; when that comes to be the least of all, the best split of its layers gives a sharp one;
when that comes to be the least, the split is priced by `pricing`. So the search ends as soon as the
next bound is no better than the best step.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from trainwright.costing.estimate import Estimator
from trainwright.execution import Progress
from trainwright.planning.model_question import ModelQuestion, estimate_profile
from trainwright.planning.model_space import (
    Candidate,
    candidates,
    microbatch_sizes,
    step_bound_s,
    tensor_degrees,
)
from trainwright.planning.split_bound import Split, best_split
from trainwright.planning.split_plan import Priced, candidate_degrees, price_split
from trainwright.planning.stage_kinds import StageKinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trainwright.execution import Budget
    from trainwright.plan import Plan
    from trainwright.profile import Profile

_Depth: TypeAlias = tuple[int, ...]

NUM_ALTERNATIVES: Final = 5
_WORTH_KEEPING: Final = 1.05  # splits whose bounds exceed the best step by more are forgotten


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
    cut: dict[tuple[int, int], StageKinds] = field(default_factory=dict)

    def profile_of(self, candidate: Candidate) -> Profile:
        """The profile at a candidate's point."""
        return self.profile(candidate.microbatch_size, candidate.tensor)

    def kinds(self, microbatch_size: int, tensor: int) -> StageKinds:
        """The kinds of stages of a profile."""
        key = (microbatch_size, tensor)
        if key not in self.cut:
            profile = self.profile(microbatch_size, tensor)
            self.cut[key] = StageKinds.of(profile)
        return self.cut[key]

    def profile(self, microbatch_size: int, tensor: int) -> Profile:
        key = (microbatch_size, tensor)
        if key not in self.made:
            self.made[key] = estimate_profile(
                self.estimator, self.question, microbatch_size=microbatch_size, tensor=(tensor,)
            )
        return self.made[key]


def plan_model(
    question: ModelQuestion, budget: Budget, *, num_alternatives: int = NUM_ALTERNATIVES
) -> ModelOutcome:
    """The fastest uniform plan under 1F1B, its runners-up, and a bound on every other."""
    shelf = _Shelf(question, Estimator(model=question.model, cluster=question.cluster))
    waiting = sorted(_bounded(question, shelf, budget), key=lambda p: (p[0], _order(p[1])))
    is_complete = not budget.stopped  # else some candidates are not among those waiting
    search = _Search(question, shelf, budget, [(b, i, None) for i, (b, _) in enumerate(waiting)])
    in_order = [candidate for _, candidate in waiting]
    search.run(in_order)
    search.add_runners_up(in_order, num_alternatives)
    best_s = search.best_s
    bound_s = min([best_s, search.least_priced_s, *(bound for bound, *_ in search.heap)])
    pruned = search.excluded + sum(bound >= best_s for bound, *_ in search.heap)
    return ModelOutcome(
        priced=best_first(search.priced)[: 1 + num_alternatives],
        lower_bound_s=bound_s if is_complete and math.isfinite(bound_s) else 0.0,
        considered=len(waiting),
        pruned=pruned,
        not_reached=sum(bound < best_s for bound, *_ in search.heap),
        exhausted=is_complete and not budget.stopped and not search.undecided,
        interrupted=budget.interrupted,
    )


@dataclass(slots=True)
class _Search:
    """Best-first: a candidate is bounded coarsely, then by its best split, then priced.

    `heap` holds (bound, candidate's number, its best split once known), all of one candidate's
    entries one after the other; `excluded` counts candidates whose best split cannot be better than
    a plan that was found, `undecided` those whose best split fits by the bound, but no plan did.
    """

    question: ModelQuestion
    shelf: _Shelf
    budget: Budget
    heap: list[tuple[float, int, Split | None]]
    priced: list[Priced] = field(default_factory=list)
    best_s: float = math.inf
    least_priced_s: float = math.inf
    excluded: int = 0
    undecided: int = 0
    too_large: set[_Depth] = field(default_factory=set)

    def run(self, candidates: Sequence[Candidate]) -> None:
        """Until no candidate left can be better than the best plan, or the budget ends."""
        while self.heap and self.heap[0][0] < self.best_s:
            if self.budget.poll(self._progress):
                return
            bound_s, number, split = heapq.heappop(self.heap)
            if split is None:
                self._sharpen(bound_s, number, candidates[number])
            else:
                self._price(split, candidates[number])

    @property
    def _progress(self) -> Progress:
        left_s = self.heap[0][0] if self.heap else math.inf
        return Progress(
            stage="planning",
            elapsed_s=self.budget.elapsed_s,
            best=self.best_s,
            lower_bound=min(left_s, self.least_priced_s, self.best_s),
        )

    def add_runners_up(self, candidates: Sequence[Candidate], count: int) -> None:
        """Price the best of the splits at hand until there are `count` alternatives."""
        known = sorted((e for e in self.heap if e[2] is not None), key=lambda e: e[:2])
        for entry in known[: max(0, 1 + count - len(self.priced))]:
            _, number, split = entry
            if split is None or self.budget.poll(self._progress):
                return
            self.heap.remove(entry)
            heapq.heapify(self.heap)
            self._price(split, candidates[number])

    def _sharpen(self, bound_s: float, number: int, candidate: Candidate) -> None:
        if _depth(candidate) in self.too_large:
            return
        split = best_split(
            self.shelf.kinds(candidate.microbatch_size, candidate.tensor),
            candidate_degrees(candidate),
            self.question.cluster,
            num_microbatches=self.question.workload.global_batch
            // (candidate.microbatch_size * candidate.data),
            limit_s=_WORTH_KEEPING * self.best_s,
        )
        if math.isinf(split.bound_s):
            self.too_large.add(_depth(candidate))
        elif split.bound_s >= _WORTH_KEEPING * self.best_s:
            self.excluded += 1
        else:
            sharper = replace(split, bound_s=max(bound_s, split.bound_s))
            heapq.heappush(self.heap, (sharper.bound_s, number, sharper))

    def _price(self, split: Split, candidate: Candidate) -> None:
        self.least_priced_s = min(self.least_priced_s, split.bound_s)
        found = price_split(
            self.question, candidate, self.shelf.profile_of(candidate), split, self.budget
        )
        if found is None:
            self.undecided += 1
        else:
            self.priced.append(found)
            self.best_s = min(self.best_s, found.step.step_time_s)


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
    return (
        candidate.pipeline,
        candidate.tensor,
        candidate.microbatch_size,
        -candidate.data,
        candidate.zero_stage,
    )


def _depth(candidate: Candidate) -> _Depth:
    """What candidates that differ only in their data degree share; less data is never leaner."""
    return candidate.microbatch_size, candidate.tensor, candidate.pipeline, candidate.zero_stage


def _bounded(
    question: ModelQuestion, shelf: _Shelf, budget: Budget
) -> Iterator[tuple[float, Candidate]]:
    """The candidates with their bounds; not all of them where the budget runs out."""
    workload, allowed = question.workload, question.allowed
    degrees = tensor_degrees(question.model, question.cluster, workload, allowed.tensor)
    for size in microbatch_sizes(workload, allowed.microbatch_size):
        num_microbatches = workload.global_batch // size
        for tensor in degrees:
            if budget.stopped:
                return
            profile = shelf.profile(size, tensor)
            work_s = _least_work_s(profile)
            for candidate in candidates(
                num_devices=question.num_devices,
                num_layers=len(profile.structure.layers),
                num_microbatches=num_microbatches,
                microbatch_size=size,
                tensor=tensor,
                allowed=allowed,
            ):
                bound = step_bound_s(
                    candidate,
                    work_s=work_s,
                    num_microbatches=num_microbatches,
                    overhead_s=question.cluster.accelerator.step_overhead_s,
                )
                yield bound, candidate


def _least_work_s(profile: Profile) -> float:
    costs = profile.costs
    by_class = np.minimum.reduceat(costs.duration_s, costs.class_offsets[:-1]).tolist()
    return math.fsum(by_class[layer.layer_class] for layer in profile.structure.layers)
