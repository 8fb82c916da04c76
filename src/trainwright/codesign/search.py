"""The best design and plan together, by branch and bound over all designs.

A node is a design under a variant (memory, links, clock, microbatch). Nodes are opened best bound
first, in batches of fixed size, so that the answer does not depend on who computes a batch:

1. *peak*: every layer at max(FLOPs / peak, bytes / bandwidth, lanes), and the devices share all
   work evenly. Costs microseconds for a thousand designs; most end here.
2. *work*: the same with the estimated time of every layer.
3. *placement*: the fastest uniform plan below the best so far.

A node whose bound is above the best is pruned; when all are, the best is proved. Of designs that
are equally fast the smallest is returned, then the first in order of enumeration. Power over the
limit excludes a design before its plan is sought; memory excludes a whole variant, for what a plan
keeps does not depend on the cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.cluster import REFERENCE_DESIGN
from trainwright.codesign.price import JobPricer
from trainwright.codesign.question import Objective, cost
from trainwright.codesign.space import SpaceRules, enumerate_designs
from trainwright.execution.budget import Progress
from trainwright.plan.status import Status
from trainwright.units import MIB

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.codesign.design_times import LayerTimes
    from trainwright.codesign.question import CodesignQuestion, Variant
    from trainwright.codesign.space import DesignSpace
    from trainwright.codesign.uniform import UniformPlan
    from trainwright.execution import Budget

    Floats = NDArray[np.float64]
    Indices = NDArray[np.int64]
    Prepared = Mapping[int, tuple[JobPricer, ...]]

BATCH: Final = 1024
_CHUNK: Final = 64
PEAK, WORK, PLACEMENT = "peak", "work", "placement"
POWER, MEMORY = "power", "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A design with its plans, one per model, and what is minimised."""

    variant: int
    index: int
    plans: tuple[UniformPlan, ...]
    cost: float


@dataclass(slots=True, kw_only=True)
class Ledger:
    """What became of every node: its best known bound and the level that ended it.

    Arrays [variants, designs]; level "" is a node that was not reached.
    """

    bounds: Floats
    levels: NDArray[np.str_]

    def count(self, level: str) -> int:
        """Nodes that ended at a level."""
        return int((self.levels == level).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class CodesignOutcome:
    """The best design, how much is proved of it, and the ledger that proves it."""

    status: Status
    best: Design | None
    lower_bound: float | None
    ledger: Ledger
    scale_s: Floats
    solver_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Search:
    question: CodesignQuestion
    budget: Budget
    scale_s: Floats
    ledger: Ledger
    pricers: dict[int, tuple[JobPricer, ...]] = field(default_factory=dict)
    best: Design | None = None
    opened: int = 0

    @property
    def incumbent(self) -> float:
        return float("inf") if self.best is None else self.best.cost

    def cost(self, steps_s: Floats) -> Floats:
        question = self.question
        return cost(question.objective, steps_s, scale_s=self.scale_s, weights=question.weights)

    def pricers_of(self, variant: int) -> tuple[JobPricer, ...]:
        if variant not in self.pricers:
            self.pricers[variant] = pricers(self.question, self.question.variants[variant])
        return self.pricers[variant]

    def bound_all(self) -> None:
        designs = np.arange(len(self.question.space))
        for variant in range(len(self.question.variants)):
            jobs = self.pricers_of(variant)
            if not all(job.fits() for job in jobs):
                self.ledger.bounds[variant] = np.inf
                self.ledger.levels[variant] = MEMORY
                continue
            found = [job.ideal_bounds_s(designs) for job in jobs]
            self.ledger.bounds[variant] = self.cost(np.stack(found, axis=1))

    def run(self) -> bool:
        """Open nodes until none can beat the best; False where the budget ended it."""
        self.bound_all()
        flat = self.ledger.bounds.ravel()
        order = np.argsort(flat, kind="stable")
        for batch in _batches(order):
            if flat[batch[0]] > self.incumbent or np.isinf(flat[batch[0]]):
                break
            if self.budget.poll(self._progress(float(flat[batch[0]]))):
                return False
            open_nodes = batch[(flat[batch] <= self.incumbent) & np.isfinite(flat[batch])]
            for variant in range(len(self.question.variants)):
                inside = open_nodes // len(self.question.space) == variant
                designs = open_nodes[inside] % len(self.question.space)
                if designs.size:
                    self._open(variant, designs)
            self.opened += batch.size
        unopened = self.ledger.levels == ""
        self.ledger.levels[unopened] = PEAK
        return True

    def _progress(self, bound: float) -> Progress:
        total, elapsed_s = self.ledger.bounds.size, self.budget.elapsed_s
        left_s = elapsed_s / self.opened * (total - self.opened) if self.opened else 0.0
        stage = f"co-design, {self.opened} of {total} designs, at most {left_s:.0f} s left"
        return Progress(stage=stage, elapsed_s=elapsed_s, best=self.incumbent, lower_bound=bound)

    def _open(self, variant: int, designs: Indices) -> None:
        jobs = self.pricers_of(variant)
        limit = self.question.max_power_watts
        if limit is not None:
            watts = np.max([job.hungriest_watts(designs) for job in jobs], axis=0)
            self.ledger.levels[variant, designs[watts > limit]] = POWER
            designs = designs[watts <= limit]
            if not designs.size:
                return
        times = [job.times(designs) for job in jobs]
        steps = [job.work_bounds_s(t) for job, t in zip(jobs, times, strict=True)]
        bounds = self.cost(np.stack(steps, axis=1))
        self.ledger.bounds[variant, designs] = bounds
        order = np.argsort(bounds, kind="stable")
        for start in range(0, order.size, _CHUNK):
            rows = order[start : start + _CHUNK]
            beaten = bounds[rows] > self.incumbent
            self.ledger.levels[variant, designs[rows[beaten]]] = WORK
            rows = rows[~beaten]
            if rows.size:
                chosen = [tuple(layer.take(rows) for layer in layers) for layers in times]
                self._place(variant, designs[rows], jobs, chosen)

    def _place(
        self,
        variant: int,
        designs: Indices,
        jobs: tuple[JobPricer, ...],
        times: list[tuple[LayerTimes, ...]],
    ) -> None:
        alone = len(jobs) == 1
        cutoff = np.full(designs.size, np.nextafter(self.incumbent, np.inf) if alone else np.inf)
        plans = [job.plans(layers, cutoff) for job, layers in zip(jobs, times, strict=True)]
        self.ledger.levels[variant, designs] = PLACEMENT
        for row, design in enumerate(designs.tolist()):
            chosen = [found[row] for found in plans]
            steps = [np.inf if plan is None else plan.step_s for plan in chosen]
            reached = float(self.cost(np.array([steps]))[0])
            if np.isfinite(reached) and self._comes_first(reached, variant, design):
                made = tuple(plan for plan in chosen if plan is not None)
                self.best = Design(variant=variant, index=design, plans=made, cost=reached)

    def _comes_first(self, reached: float, variant: int, design: int) -> bool:
        """Less cost; of equals less area, then the order of enumeration."""
        if self.best is None:
            return True
        areas = self.question.space.areas_um2
        mine = (reached, float(areas[design]), variant, design)
        best = self.best
        return mine < (best.cost, float(areas[best.index]), best.variant, best.index)


def pricers(question: CodesignQuestion, variant: Variant) -> tuple[JobPricer, ...]:
    """One pricer per model of the question."""
    return tuple(JobPricer(job, variant, question) for job in question.jobs_of(variant))


def _batches(order: Indices) -> Iterator[Indices]:
    for start in range(0, order.size, BATCH):
        yield order[start : start + BATCH]


def search(
    question: CodesignQuestion, budget: Budget, prepared: Prepared | None = None
) -> CodesignOutcome:
    """The best design of the question, proved unless the budget ends the search.

    `prepared` holds pricers by variant whose products are estimated already. Raises `InvalidInput`
    where a model cannot be cut to one of its tensor degrees.
    """
    start_s = budget.cpu_s
    scale_s = scale_of(question, budget)
    shape = (len(question.variants), len(question.space))
    ledger = Ledger(bounds=np.zeros(shape), levels=np.full(shape, "", dtype="<U9"))
    run = _Search(
        question=question,
        budget=budget,
        scale_s=scale_s,
        ledger=ledger,
        pricers=dict(prepared or {}),
    )
    finished = run.run()
    best = run.best
    if finished:
        status = Status.INFEASIBLE if best is None else Status.OPTIMAL
        bound = None if best is None else best.cost
    else:
        status = Status.UNKNOWN if best is None else Status.GAP
        left = ledger.bounds[ledger.levels == ""]
        bound = float(min(left.min(initial=np.inf), run.incumbent))
    return CodesignOutcome(
        status=status,
        best=best,
        lower_bound=bound,
        ledger=ledger,
        scale_s=scale_s,
        solver_s=budget.cpu_s - start_s,
    )


def scale_of(question: CodesignQuestion, budget: Budget) -> Floats:
    """What each model's step time is compared with, in an objective over several models."""
    count = len(question.jobs)
    if count == 1:
        return np.ones(1)
    if question.objective is Objective.ARITHMETIC:
        return np.array([float(job.global_batch) for job in question.jobs])
    if question.objective is Objective.REGRET:
        return np.array([_own_best_s(question, index, budget) for index in range(count)])
    return reference_steps_s(question)


def _own_best_s(question: CodesignQuestion, index: int, budget: Budget) -> float:
    alone = search(replace(question, jobs=(question.jobs[index],)), budget)
    return float("inf") if alone.best is None else alone.best.cost


def reference_plans(question: CodesignQuestion) -> tuple[UniformPlan | None, ...]:
    """The fastest plan of each model on the reference design, under the first variant."""
    one = replace(question, space=_reference_space())
    designs, cutoff = np.arange(1), np.full(1, np.inf)
    return tuple(
        pricer.plans(pricer.times(designs), cutoff)[0]
        for pricer in pricers(one, question.variants[0])
    )


def reference_steps_s(question: CodesignQuestion) -> Floats:
    """Their step times; where the reference cannot hold a model, its bound from work alone."""
    one = replace(question, space=_reference_space())
    designs = np.arange(1)
    steps = []
    for pricer, plan in zip(
        pricers(one, question.variants[0]), reference_plans(question), strict=True
    ):
        bound = float(pricer.work_bounds_s(pricer.times(designs))[0])
        steps.append(bound if plan is None else plan.step_s)
    return np.array(steps)


def _reference_space() -> DesignSpace:
    chip = REFERENCE_DESIGN
    rules = SpaceRules(
        num_tc=(chip.num_tc,),
        num_vc=(chip.num_vc,),
        width=(chip.width,),
        depth=(chip.depth,),
        glb_mib=(chip.glb_bytes // MIB,),
    )
    return enumerate_designs(rules)
