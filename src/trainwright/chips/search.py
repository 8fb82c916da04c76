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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from trainwright.chips.design_times import LayerTimes
from trainwright.chips.plans import UniformPlan
from trainwright.chips.price import SAFE, JobPricer
from trainwright.chips.request import CodesignQuestion, Objective, Variant, cost
from trainwright.chips.space import space_of
from trainwright.chips.workload import Chain, Replication, TrainingJob
from trainwright.cluster import REFERENCE_DESIGN, Surroundings
from trainwright.execution import Budget
from trainwright.execution.budget import Journal, Progress
from trainwright.execution.executor import Executor, Serial
from trainwright.plans.status import Status
from trainwright.profile import Recompute
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.arrays import Floats, Indices

    Prepared = Mapping[int, tuple[JobPricer, ...]]


# Nodes of a co-design search: designs under variants, what becomes of them, who prices them
# ------------------------------------------------------------------------------------------

PEAK, WORK, PLACEMENT = "peak", "work", "placement"
POWER, MEMORY, AREA = "power", "memory", "area"
_KEPT: Final = 16  # variants whose estimates stay in memory, some 10 MB each


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A design with its plans, one per model, and what is minimised."""

    variant: int
    index: int
    plans: tuple[UniformPlan, ...]
    cost: float

    def comes_before(self, other: Design | None, question: CodesignQuestion) -> bool:
        """Less cost; of equals less area, then the order of enumeration."""
        if other is None:
            return True
        if self.cost != other.cost:
            return self.cost < other.cost
        mine, its = (
            (question.area_mm2(x.variant, x.index), x.variant, x.index) for x in (self, other)
        )
        return mine < its


@dataclass(slots=True, kw_only=True)
class Ledger:
    """What became of every node: its best known bound and the level that ended it.

    Arrays [variants, designs]; level "" is a node that was not reached.
    """

    bounds: Floats
    levels: NDArray[np.str_]

    @classmethod
    def empty(cls, question: CodesignQuestion) -> Ledger:
        """Nothing is known of any node but whether its area is within the limits."""
        shape = (len(question.variants), len(question.space))
        ledger = cls(bounds=np.zeros(shape), levels=np.full(shape, "", dtype="<U9"))
        for variant, one in enumerate(question.variants):
            outside = ~question.space.admitted(one.making)
            ledger.bounds[variant, outside] = np.inf
            ledger.levels[variant, outside] = AREA
        return ledger

    def count(self, level: str) -> int:
        """Nodes that ended at a level."""
        return int((self.levels == level).sum())


class Sweep:
    """A question in one process: what its batches share, pricers made when they are needed."""

    def __init__(
        self, question: CodesignQuestion, scale_s: Floats, prepared: Prepared | None = None
    ) -> None:
        self.question, self.scale_s = question, scale_s
        self._prepared = prepared or {}
        self._made: dict[int, tuple[JobPricer, ...]] = {}

    def pricers(self, variant: int) -> tuple[JobPricer, ...]:
        """One pricer per model under a variant; of those made here the latest few are kept."""
        if variant in self._prepared:
            return self._prepared[variant]
        if variant not in self._made:
            if len(self._made) >= _KEPT:
                del self._made[next(iter(self._made))]
            self._made[variant] = pricers(self.question, self.question.variants[variant])
        return self._made[variant]

    def __getstate__(self) -> tuple[CodesignQuestion, Floats]:
        return self.question, self.scale_s

    def __setstate__(self, state: tuple[CodesignQuestion, Floats]) -> None:
        self.__init__(*state)  # type: ignore[misc]


def pricers(question: CodesignQuestion, variant: Variant) -> tuple[JobPricer, ...]:
    """One pricer per model of the question."""
    return tuple(JobPricer(job, variant, question) for job in question.jobs_of(variant))


def mean_watts(
    question: CodesignQuestion,
    jobs: tuple[JobPricer, ...],
    designs: Indices,
    plans: list[tuple[UniformPlan, ...]],
) -> tuple[Floats, Floats]:
    """Joules [n, models] of a step of each design's plans, and the mean power of a chip [n].

    With several models the power is that of the hungriest.
    """
    found = [
        job.energies_j(designs, [chosen[index] for chosen in plans])
        for index, job in enumerate(jobs)
    ]
    energies = np.stack(found, axis=1)
    steps = np.array([[p.step_s for p in chosen] for chosen in plans], dtype=np.float64)
    steps = steps.reshape(energies.shape)
    watts: Floats = (energies / steps / question.num_devices).max(axis=1, initial=0.0)
    return energies, watts


# A plan as a journal holds it, to its last bit
# ---------------------------------------------


def plan_to_json(plan: UniformPlan) -> list[Any]:
    """Step, degrees, what stages recompute, where they begin, and the schedule."""
    modes = [str(mode) for mode in plan.recompute]
    degrees = [plan.tensor_degree, plan.data_degree]
    return [plan.step_s, *degrees, modes, list(plan.starts), plan.schedule]


def plan_from_json(value: list[Any]) -> UniformPlan:
    """The plan that was written."""
    step_s, tensor, data, modes, starts, schedule = value
    return UniformPlan(
        step_s=step_s,
        tensor_degree=tensor,
        data_degree=data,
        recompute=tuple(map(Recompute, modes)),
        starts=tuple(starts),
        schedule=schedule,
    )


# Why no design holds a plan: what fits does not depend on cores, only on memory and devices
# ------------------------------------------------------------------------------------------


def least_bytes(
    chain: Chain, *, job: TrainingJob, surroundings: Surroundings, num_devices: int
) -> float:
    """No plan on that many devices keeps less on its fullest device.

    State and one microbatch's activations at the option that keeps least, dealt out evenly to the
    deepest pipeline of each data degree; or the largest single layer.
    """
    counts, groups = chain.class_counts, num_devices // chain.tensor_degree
    saved, transient = chain.saved_bytes.min(axis=0), chain.transient_bytes.min(axis=0)
    least = np.inf
    for degree in job.data_degrees.tolist():
        if degree > groups:
            continue
        replication = Replication.over(degree, surroundings)
        held = replication.layer_bytes(chain.static_bytes) + saved
        spread = float(held @ counts) / min(groups // degree, int(counts.sum()))
        single = float((held + transient).max())
        least = min(least, max(spread, single) + replication.beside_bytes)
    return least


def why_infeasible(question: CodesignQuestion) -> str:
    """The first model that fits nowhere, with what it lacks; else the power limit."""
    for variant in question.variants:
        memory = variant.surroundings.memory_bytes
        for job in question.jobs_of(variant):
            degrees = [t for t in job.tensor_degrees if t <= question.num_devices]
            needed = min(
                least_bytes(
                    job.chain(t),
                    job=job,
                    surroundings=variant.surroundings,
                    num_devices=question.num_devices,
                )
                for t in degrees
            )
            if needed > memory:
                return (
                    f"{job.name} needs at least {format_bytes(needed)} on a device of "
                    f"{format_bytes(memory)}, {format_bytes(needed - memory)} more"
                )
    limits = {"in its hungriest operator": question.max_power_watts}
    limits |= {"on average, with the plan that is fastest": question.max_mean_watts}
    if told := [f"{watts:g} W {when}" for when, watts in limits.items() if watts is not None]:
        return f"no design that holds the models stays within {' and '.join(told)}"
    return "no uniform plan fits the memory of the devices"


# One batch of a search: designs of a variant opened against the best cost known so far
# -------------------------------------------------------------------------------------
# A batch reads nothing but its own designs and the incumbent it is given, so that it gives the same
# answer in any process, now or from a journal.

_CHUNK: Final = 64  # designs priced between two looks at the best


class Batch(NamedTuple):
    """Designs of a variant to open; a node above `incumbent` is of no interest."""

    variant: int
    designs: Indices
    incumbent: float


class Task(NamedTuple):
    """A batch, with what a journal knows of it."""

    batch: Batch
    known: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What became of a batch: the sharper bound and level of each design, the best if any."""

    bounds: Floats
    levels: NDArray[np.str_]
    best: Design | None

    def to_json(self) -> dict[str, Any]:
        """All figures to their last bit."""
        best = self.best
        return {
            "bounds": self.bounds.tolist(),
            "levels": self.levels.tolist(),
            "best": best
            and [best.variant, best.index, best.cost, [plan_to_json(p) for p in best.plans]],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Opened:
        """The same as it was written."""
        best = None
        if value["best"] is not None:
            variant, index, reached, plans = value["best"]
            made = tuple(plan_from_json(plan) for plan in plans)
            best = Design(variant=variant, index=index, cost=reached, plans=made)
        levels = np.array(value["levels"], dtype="<U9")
        return cls(bounds=np.array(value["bounds"], dtype=np.float64), levels=levels, best=best)


def open_or_read(sweep: Sweep, task: Task) -> Opened:
    """Open a batch, unless a journal has it."""
    if task.known is not None:
        return Opened.from_json(task.known)
    return open_batch(sweep, task.batch)


def open_batch(sweep: Sweep, batch: Batch) -> Opened:
    """Bound the designs of a batch by their work, then place those that are not beaten."""
    opening = _Opening(sweep, batch)
    opening.run()
    return Opened(bounds=opening.bounds, levels=opening.levels, best=opening.best)


class _Opening:
    def __init__(self, sweep: Sweep, batch: Batch) -> None:
        self._question, self._scale_s = sweep.question, sweep.scale_s
        self._jobs = sweep.pricers(batch.variant)
        self._batch, self._incumbent = batch, batch.incumbent
        self.bounds = np.zeros(batch.designs.size)
        self.levels = np.full(batch.designs.size, "", dtype="<U9")
        self.best: Design | None = None

    def run(self) -> None:
        """Bounds of all, then chunk after chunk, the most promising first."""
        rows = self._within_power()
        if not rows.size:
            return
        designs = self._batch.designs[rows]
        times = [job.times(designs) for job in self._jobs]
        steps = [job.work_bounds_s(t) for job, t in zip(self._jobs, times, strict=True)]
        bounds = self._cost(np.stack(steps, axis=1))
        self.bounds[rows] = bounds
        order = np.argsort(bounds, kind="stable")
        for start in range(0, order.size, _CHUNK):
            chosen = order[start : start + _CHUNK]
            beaten = bounds[chosen] > self._incumbent
            self.levels[rows[chosen[beaten]]] = WORK
            chosen = chosen[~beaten]
            if chosen.size:
                self.levels[rows[chosen]] = PLACEMENT
                part = [tuple(layer.take(chosen) for layer in layers) for layers in times]
                self._place(designs[chosen], part)

    def _within_power(self) -> Indices:
        """Rows whose hungriest operator, and what they draw at rest, keep to the limits."""
        designs, question = self._batch.designs, self._question
        over = np.zeros(designs.size, dtype=np.bool_)
        if (limit := question.max_power_watts) is not None:
            over |= np.max([job.hungriest_watts(designs) for job in self._jobs], axis=0) > limit
        if (limit := question.max_mean_watts) is not None:  # no plan draws less on average
            over |= self._jobs[0].static_watts(designs) * SAFE > limit
        self.levels[over] = POWER
        return np.flatnonzero(~over)

    def _cost(self, steps_s: Floats) -> Floats:
        question = self._question
        return cost(question.objective, steps_s, scale_s=self._scale_s, weights=question.weights)

    def _place(self, designs: Indices, times: list[tuple[LayerTimes, ...]]) -> None:
        alone = len(self._jobs) == 1
        cutoff = np.full(designs.size, np.nextafter(self._incumbent, np.inf) if alone else np.inf)
        plans = [job.plans(t, cutoff) for job, t in zip(self._jobs, times, strict=True)]
        for row, design in enumerate(designs.tolist()):
            chosen = tuple(plan for found in plans if (plan := found[row]) is not None)
            if len(chosen) < len(plans):
                continue
            reached = float(self._cost(np.array([[plan.step_s for plan in chosen]]))[0])
            found = Design(variant=self._batch.variant, index=design, plans=chosen, cost=reached)
            if reached > self._incumbent or not self._is_cool(design, chosen):
                continue
            if found.comes_before(self.best, self._question):
                self.best, self._incumbent = found, reached

    def _is_cool(self, design: int, plans: tuple[UniformPlan, ...]) -> bool:
        """Whether the mean power of a step keeps to the limit."""
        limit = self._question.max_mean_watts
        if limit is None:
            return True
        _, watts = mean_watts(self._question, self._jobs, np.array([design]), [plans])
        return bool(watts[0] <= limit)


# The best design and plan together, by branch and bound over all designs
# -----------------------------------------------------------------------

BATCH: Final = 1024  # nodes handed out at once
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
    one = replace(question, space=space_of(REFERENCE_DESIGN, table=question.space.table))
    designs, cutoff = np.arange(1), np.full(1, np.inf)
    return tuple(
        pricer.plans(pricer.times(designs), cutoff)[0]
        for pricer in pricers(one, question.variants[0])
    )


def reference_steps_s(question: CodesignQuestion) -> Floats:
    """Their step times; where the reference cannot hold a model, its bound from work alone."""
    one = replace(question, space=space_of(REFERENCE_DESIGN, table=question.space.table))
    designs = np.arange(1)
    steps = []
    for pricer, plan in zip(
        pricers(one, question.variants[0]), reference_plans(question), strict=True
    ):
        bound = float(pricer.work_bounds_s(pricer.times(designs))[0])
        steps.append(bound if plan is None else plan.step_s)
    return np.array(steps)
