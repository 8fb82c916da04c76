"""The best design and plan together, by branch and bound over all designs.

A node is a design under a variant (memory, links, clock, number format, microbatch). Nodes are
opened best bound first, in batches of fixed size, so that the answer does not depend on who
computes a batch:

1. *peak*: every layer at max(FLOPs / peak, bytes / bandwidth, lanes), and the devices share all
   work evenly. Costs microseconds for a thousand designs; most end here.
2. *work*: the same with the estimated time of every layer.
3. *placement*: the fastest uniform plan below the best so far.

A node whose bound is above the best is pruned; when all are, the best is proved. The bounds hold
for every schedule, as none makes p ranks work less. Of designs that are equally fast the smallest
is returned, then the first in order of enumeration. Peak power over the limit excludes a design
before its plan is sought, mean power after; memory excludes a whole variant, for what a plan keeps
does not depend on the cores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainwright.cluster import REFERENCE_DESIGN
from trainwright.codesign.nodes import MEMORY, PEAK, Design, Ledger, Sweep, pricers
from trainwright.codesign.opening import Batch, Opened, Task, open_or_read
from trainwright.codesign.question import Objective, cost
from trainwright.codesign.space import SpaceRules, enumerate_designs
from trainwright.execution.budget import Progress
from trainwright.execution.executor import Serial
from trainwright.plan.status import Status
from trainwright.units import MIB

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.codesign.price import JobPricer
    from trainwright.codesign.question import CodesignQuestion
    from trainwright.codesign.space import DesignSpace
    from trainwright.codesign.uniform import UniformPlan
    from trainwright.execution import Budget
    from trainwright.execution.executor import Executor
    from trainwright.execution.journal import Journal

    Floats = NDArray[np.float64]
    Indices = NDArray[np.int64]
    Prepared = Mapping[int, tuple[JobPricer, ...]]

BATCH: Final = 1024
AHEAD: Final = 16  # batches under way; each knows the best of those that many before it


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
    sweep: Sweep
    budget: Budget
    ledger: Ledger
    executor: Executor
    journal: Journal | None
    label: str
    best: Design | None = None
    opened: int = 0

    @property
    def question(self) -> CodesignQuestion:
        return self.sweep.question

    @property
    def incumbent(self) -> float:
        return float("inf") if self.best is None else self.best.cost

    def bound_all(self) -> None:
        question, ledger = self.question, self.ledger
        for variant in range(len(question.variants)):
            inside = np.flatnonzero(ledger.levels[variant] == "")
            if not inside.size:
                continue
            jobs = self.sweep.pricers(variant)
            if not all(job.fits() for job in jobs):
                ledger.bounds[variant, inside] = np.inf
                ledger.levels[variant, inside] = MEMORY
                continue
            steps = np.stack([job.ideal_bounds_s(inside) for job in jobs], axis=1)
            ledger.bounds[variant, inside] = cost(
                question.objective, steps, scale_s=self.sweep.scale_s, weights=question.weights
            )

    def run(self) -> bool:
        """Open nodes until none can beat the best; False where the budget ended it."""
        self.bound_all()
        order = np.argsort(self.ledger.bounds.ravel(), kind="stable")
        # The first node gives an interrupted search something to show, and the first batch a limit.
        # That batch finds a good design here; most searches end with it.
        for nodes, executor in (
            (order[:1], Serial()),
            (order[1:BATCH], Serial()),
            (order[BATCH:], self.executor),
        ):
            if not self._take(nodes, executor):
                return False
        self.ledger.levels[self.ledger.levels == ""] = PEAK
        return True

    def _take(self, nodes: Indices, executor: Executor) -> bool:
        """Open nodes batch by batch, in order of their bounds; False where the budget ends it.

        A batch knows the best of those `AHEAD` before it, whoever computes them, so that neither
        the answer nor what is visited depends on the executor.
        """
        tasks: list[Task] = []
        limits = [self.incumbent] * AHEAD

        def draw() -> Iterator[Task]:
            for start in range(0, nodes.size, BATCH):
                limit = limits[len(tasks)]
                for batch in self._split(nodes[start : start + BATCH], limit):
                    tasks.append(Task(batch, self._find(batch)))
                    yield tasks[-1]

        results = iter(executor.map(open_or_read, self.sweep, draw(), ahead=AHEAD))
        for done in count():
            if self.budget.poll(self._progress()):
                return False
            opened = next(results, None)
            if opened is None:
                break
            self._merge(tasks[done], opened)
            limits.append(self.incumbent)
        return True

    def _split(self, nodes: Indices, limit: float) -> Iterator[Batch]:
        """What of some nodes may still beat `limit`, variant by variant."""
        size, flat = len(self.question.space), self.ledger.bounds.ravel()
        left = nodes[(flat[nodes] <= limit) & np.isfinite(flat[nodes])]
        for variant in range(len(self.question.variants)):
            designs = left[left // size == variant] % size
            if designs.size:
                yield Batch(variant, designs, limit)

    def _merge(self, task: Task, opened: Opened) -> None:
        batch = task.batch
        if task.known is None and self.journal is not None:
            self.journal.append(self._key(batch), opened.to_json())
        self.ledger.bounds[batch.variant, batch.designs] = opened.bounds
        self.ledger.levels[batch.variant, batch.designs] = opened.levels
        self.opened += batch.designs.size
        if opened.best is not None and opened.best.comes_before(self.best, self.question):
            self.best = opened.best

    def _find(self, batch: Batch) -> dict[str, Any] | None:
        return None if self.journal is None else self.journal.find(self._key(batch))

    def _key(self, batch: Batch) -> str:
        designs = hashlib.sha256(batch.designs.tobytes()).hexdigest()[:16]
        return f"{self.label}:{batch.variant}:{designs}:{batch.incumbent.hex()}"

    def _progress(self) -> Progress:
        flat = self.ledger.bounds.ravel()
        waiting = (self.ledger.levels.ravel() == "") & (flat <= self.incumbent)
        left, elapsed_s = int(waiting.sum()), self.budget.elapsed_s
        stage = f"co-design, {self.opened} designs opened, {left} left"
        if self.opened > 1:  # the first alone makes the orders that all others run
            stage += f", at most {elapsed_s / self.opened * left:.0f} s"
        return Progress(
            stage=stage,
            elapsed_s=elapsed_s,
            best=self.incumbent,
            lower_bound=float(flat[waiting].min(initial=self.incumbent)),
        )


def search(
    question: CodesignQuestion,
    budget: Budget,
    prepared: Prepared | None = None,
    *,
    executor: Executor | None = None,
    journal: Journal | None = None,
) -> CodesignOutcome:
    """The best design of the question, proved unless the budget ends the search.

    `prepared` holds pricers by variant whose products are estimated already. Batches found in
    `journal` are not opened again; the answer depends neither on it nor on `executor`. Raises
    `InvalidInput` where a model cannot be cut to one of its tensor degrees.
    """
    start_s = budget.cpu_s
    scale_s = scale_of(question, budget, executor=executor, journal=journal)
    run = _Search(
        sweep=Sweep(question, scale_s, prepared),
        budget=budget,
        ledger=Ledger.empty(question),
        executor=executor or Serial(),
        journal=journal,
        label="+".join(("search", *(job.name for job in question.jobs))),
    )
    finished = run.run()
    best, ledger = run.best, run.ledger
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


def scale_of(
    question: CodesignQuestion,
    budget: Budget,
    *,
    executor: Executor | None = None,
    journal: Journal | None = None,
) -> Floats:
    """What each model's step time is compared with, in an objective over several models."""
    if len(question.jobs) == 1:
        return np.ones(1)
    if question.objective is Objective.ARITHMETIC:
        return np.array([float(job.global_batch) for job in question.jobs])
    if question.objective is Objective.REGRET:
        alone = (replace(question, jobs=(job,)) for job in question.jobs)
        found = [search(one, budget, executor=executor, journal=journal).best for one in alone]
        return np.array([np.inf if best is None else best.cost for best in found])
    return reference_steps_s(question)


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
