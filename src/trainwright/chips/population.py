"""Many designs priced without any bound: in batches, by any executor, resumed from a journal.

Every design stands for itself with its fastest plans. Batches are fixed before they run and come
back in order, so the figures are the same bits with one process, several, or half of them from a
journal.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainwright.chips.plans import UniformPlan
from trainwright.chips.request import CodesignQuestion, cost
from trainwright.chips.search import (
    PEAK,
    PLACEMENT,
    WORK,
    CodesignOutcome,
    Design,
    Ledger,
    Sweep,
    mean_watts,
    plan_from_json,
    plan_to_json,
    pricers,
    scale_of,
)
from trainwright.chips.space import FIELDS, UM2_PER_MM2, DesignSpace
from trainwright.execution import Budget
from trainwright.execution.budget import Journal, Progress
from trainwright.execution.executor import Executor, Serial
from trainwright.formats.atomic_file import write_text
from trainwright.formats.records import TEXT, closed, object_schema, titled
from trainwright.plans.status import Status

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.arrays import Floats, Indices
    from trainwright.chips.search import Prepared

    Batch = tuple[int, Indices]


# The front of throughput, area, power and energy per token over all designs
# --------------------------------------------------------------------------
# Every design stands for itself with its fastest plan, so the front is exact over designs: nothing
# is left out by a bound. A point is dominated where another is no worse in all objectives and
# better in one; with `epsilon`, where another is no worse than (1 + epsilon) times it in all.


def front(figures: Floats, *, epsilon: float = 0.0) -> Indices:
    """Rows of `figures` [n, objectives] that no other dominates, ascending by the first column.

    Of equal rows the first stays. With `epsilon` points are taken in that order, and dropped where
    one taken already is no worse than (1 + epsilon) times them; the least of every objective is
    taken first, so that each single optimum stays.
    """
    order = np.lexsort(figures.T[::-1])
    kept: list[int] = []
    taken = np.zeros((0, figures.shape[1]))
    for row in order.tolist():
        point = figures[row]
        if not (taken <= point).all(axis=1).any():
            kept.append(row)
            taken = np.vstack([taken, point])
    exact = np.array(kept, dtype=np.int64)
    if not epsilon or not exact.size:
        return exact
    return _thinned(figures, exact, epsilon)


def _thinned(figures: Floats, exact: Indices, epsilon: float) -> Indices:
    first = [int(exact[np.argmin(figures[exact, k])]) for k in range(figures.shape[1])]
    kept = list(dict.fromkeys(first))
    for row in exact.tolist():
        near = (figures[kept] <= figures[row] * (1.0 + epsilon)).all(axis=1)
        if row not in kept and not near.any():
            kept.append(row)
    return np.array(sorted(kept, key=lambda row: tuple(figures[row])), dtype=np.int64)


def hypervolume(figures: Floats, reference: Floats) -> float:
    """Share of the box between zero and `reference` that points of three objectives dominate.

    Slices along the last objective, each a staircase in the other two: O(n² log n).
    """
    inside = figures[(figures < reference).all(axis=1)] / reference
    if not inside.size:
        return 0.0
    inside = inside[np.argsort(inside[:, 2], kind="stable")]
    volume = 0.0
    for k in range(len(inside)):
        depth = (inside[k + 1, 2] if k + 1 < len(inside) else 1.0) - inside[k, 2]
        volume += depth * _staircase(inside[: k + 1, :2])
    return float(volume)


def _staircase(points: Floats) -> float:
    area, lowest = 0.0, 1.0
    for x, y in points[np.lexsort(points.T[::-1])].tolist():
        if y < lowest:
            area += (1.0 - x) * (lowest - y)
            lowest = y
    return area


# Every design of a search as a row: its parts, what ended it, and its figures where priced
# -----------------------------------------------------------------------------------------

COLUMNS: Final = (
    "variant",
    "design",
    *FIELDS,
    "area_mm2",
    "ended_by",
    "bound",
    "objective",
    "power_watts",
    "energy_per_token_j",
    "tensor_parallel",
    "data_parallel",
    "pipeline_parallel",
    "recompute",
    "schedule",
)

Row = tuple[str | int | float, ...]


def designs_schema() -> dict[str, Any]:
    """The JSON Schema of a design in the table that `codesign --csv` writes."""
    about = "A design: a row of a CSV table, its cells as text by column."
    return titled(
        "a row of designs", closed(object_schema(dict.fromkeys(COLUMNS, TEXT))), about=about
    )


def design_rows(
    question: CodesignQuestion, outcome: CodesignOutcome, found: Population | None
) -> Iterator[Row]:
    """One row per node; plans are those of the first model, empty where no plan was priced.

    The bound is the one that ended the node, in the unit of the objective.
    """
    priced = {}
    if found is not None:
        nodes = zip(found.variant.tolist(), found.index.tolist(), strict=True)
        priced = {node: row for row, node in enumerate(nodes)}
    ledger = outcome.ledger
    for variant, one in enumerate(question.variants):
        areas = question.areas_um2(one) / UM2_PER_MM2
        for design in range(len(question.space)):
            level = str(ledger.levels[variant, design]) or "open"
            bound = float(ledger.bounds[variant, design])
            parts = tuple(question.space.designs[:, design].tolist())
            row: Row = (variant, design, *parts, float(areas[design]), level, bound)
            place = priced.get((variant, design))
            yield row + (_figures(found, place) if found and place is not None else ("",) * 8)


def _figures(found: Population, row: int) -> Row:
    plan = found.plans[row][0]
    return (
        float(found.cost[row]),
        float(found.power_watts[row]),
        float(found.energy_per_token_j[row]),
        plan.tensor_degree,
        plan.data_degree,
        plan.num_ranks,
        plan.recompute_name,
        plan.schedule,
    )


def write_designs(
    path: str | Path, columns: Sequence[str], rows: Iterable[Sequence[str | int | float]]
) -> None:
    """Write the file whole, or not at all; raises `InvalidInput` where it cannot be written."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([repr(v) if isinstance(v, float) else v for v in row])
    write_text(path, text.getvalue())


# Many designs priced without any bound: in batches, by any executor, resumed from a journal
# ------------------------------------------------------------------------------------------

OBJECTIVES: Final = ("cost", "area_mm2", "power_watts", "energy_per_token_j")
BATCH_SIZE: Final = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Designs with their plans; figures are arrays over them.

    `variant` and `index` say which node of the question each is. Power is the mean of a chip over a
    step, the larger of several models'; energy per token their mean by weight. `steps_s` is
    [n, models].
    """

    variant: Indices
    index: Indices
    plans: tuple[tuple[UniformPlan, ...], ...]
    steps_s: Floats
    cost: Floats
    area_mm2: Floats
    power_watts: Floats
    energy_per_token_j: Floats

    def __len__(self) -> int:
        return int(self.cost.size)

    def design(self, row: int) -> Design:
        """One of them as the search returns it."""
        return Design(
            variant=int(self.variant[row]),
            index=int(self.index[row]),
            plans=self.plans[row],
            cost=float(self.cost[row]),
        )

    def figures(self) -> Floats:
        """The objectives as columns, all to be minimised."""
        return np.stack([getattr(self, name) for name in OBJECTIVES], axis=1)

    def take(self, rows: Indices) -> Population:
        """Some of them."""
        return Population(
            variant=self.variant[rows],
            index=self.index[rows],
            plans=tuple(self.plans[row] for row in rows.tolist()),
            steps_s=self.steps_s[rows],
            cost=self.cost[rows],
            area_mm2=self.area_mm2[rows],
            power_watts=self.power_watts[rows],
            energy_per_token_j=self.energy_per_token_j[rows],
        )


def populate(
    question: CodesignQuestion,
    budget: Budget,
    *,
    scale_s: Floats,
    nodes: tuple[Indices, Indices] | None = None,
    executor: Executor | None = None,
    journal: Journal | None = None,
    prepared: Prepared | None = None,
) -> tuple[Population, bool]:
    """Price nodes (variant, design), all of them where absent, without any bound.

    Designs that hold no plan or pass a limit of area or power are left out. The second value is
    False where the budget ended it early. Batches found in `journal` are not priced again; the
    answer depends neither on it nor on `executor`.
    """
    makings = [variant.making for variant in question.variants]
    inside = np.array([question.space.admitted(making) for making in makings])
    if nodes is None:
        nodes = np.divmod(np.flatnonzero(inside), len(question.space))
    within = inside[nodes]
    nodes = (nodes[0][within], nodes[1][within])
    batches = [
        (variant, designs[start : start + BATCH_SIZE])
        for variant in range(len(question.variants))
        for designs in (nodes[1][nodes[0] == variant],)
        for start in range(0, designs.size, BATCH_SIZE)
    ]
    parts: list[Population] = []
    priced = _priced(batches, Sweep(question, scale_s, prepared), executor or Serial(), journal)
    begun_s = budget.elapsed_s
    for done in range(len(batches)):
        stage = f"front, {done} of {len(batches)} batches"
        if done:
            left_s = (budget.elapsed_s - begun_s) / done * (len(batches) - done)
            stage += f", about {left_s:.0f} s left"
        if budget.poll(Progress(stage=stage, elapsed_s=budget.elapsed_s)):
            priced.close()
            return _joined(parts, len(question.jobs)), False
        parts.append(next(priced))
    return _joined(parts, len(question.jobs)), True


def _priced(
    batches: list[Batch], sweep: Sweep, executor: Executor, journal: Journal | None
) -> Generator[Population, None, None]:
    """Batch after batch, from the journal where it has them."""
    stored = {} if journal is None else {_key(b): journal.find(_key(b)) for b in batches}
    missing = [batch for batch in batches if stored.get(_key(batch)) is None]
    fresh = iter(executor.map(price_batch, sweep, missing))
    for batch in batches:
        value = stored.get(_key(batch))
        if value is not None:
            yield _from_json(value, len(sweep.question.jobs))
            continue
        found = next(fresh)
        if journal is not None:
            journal.append(_key(batch), _to_json(found))
        yield found


def price_batch(sweep: Sweep, batch: Batch) -> Population:
    """Every design of a batch (variant, designs) with its fastest plans, whatever they cost."""
    variant, designs = batch
    question, jobs = sweep.question, sweep.pricers(variant)
    limit = question.max_power_watts
    if limit is not None:
        watts = np.max([job.hungriest_watts(designs) for job in jobs], axis=0)
        designs = designs[watts <= limit]
    cutoff = np.full(designs.size, np.inf)
    plans = [job.plans(job.times(designs), cutoff) for job in jobs]
    together = [tuple(p for p in row if p is not None) for row in zip(*plans, strict=True)]
    rows = [row for row, chosen in enumerate(together) if len(chosen) == len(jobs)]
    designs = designs[np.array(rows, dtype=np.int64)]
    kept = [together[row] for row in rows]
    energies, watts = mean_watts(question, jobs, designs, kept)
    found = _population(sweep, variant, designs, kept, energies, watts)
    if question.max_mean_watts is None:
        return found
    return found.take(np.flatnonzero(watts <= question.max_mean_watts))


def _key(batch: Batch) -> str:
    variant, designs = batch
    return f"{variant}:{hashlib.sha256(designs.tobytes()).hexdigest()[:16]}"


_ARRAYS: Final = (
    "variant",
    "index",
    "steps_s",
    "cost",
    "area_mm2",
    "power_watts",
    "energy_per_token_j",
)


def _to_json(found: Population) -> dict[str, Any]:
    """All figures to their last bit; a plan as (step, t, d, recompute, starts)."""
    value: dict[str, Any] = {name: getattr(found, name).tolist() for name in _ARRAYS}
    value["plans"] = [[plan_to_json(plan) for plan in chosen] for chosen in found.plans]
    return value


def _from_json(value: dict[str, Any], models: int) -> Population:
    arrays = {name: np.array(value[name], dtype=np.float64) for name in _ARRAYS}
    return Population(
        variant=arrays.pop("variant").astype(np.int64),
        index=arrays.pop("index").astype(np.int64),
        steps_s=arrays.pop("steps_s").reshape(-1, models),
        plans=tuple(tuple(map(plan_from_json, chosen)) for chosen in value["plans"]),
        **arrays,
    )


def _population(
    sweep: Sweep,
    variant: int,
    designs: Indices,
    plans: list[tuple[UniformPlan, ...]],
    energies_j: Floats,
    watts: Floats,
) -> Population:
    """Figures of designs whose plans are known, with the energies [n, models] of a step."""
    question = sweep.question
    steps = np.array([[p.step_s for p in chosen] for chosen in plans], dtype=np.float64)
    steps = steps.reshape(designs.size, len(question.jobs))
    tokens = np.array([job.tokens_per_step for job in question.jobs], dtype=np.float64)
    areas_um2 = question.areas_um2(question.variants[variant])[designs]
    return Population(
        variant=np.full(designs.size, variant),
        index=designs,
        plans=tuple(plans),
        steps_s=steps,
        cost=cost(question.objective, steps, scale_s=sweep.scale_s, weights=question.weights),
        area_mm2=areas_um2 / UM2_PER_MM2,
        power_watts=watts,
        energy_per_token_j=(energies_j / tokens * question.weights).sum(axis=1),
    )


def _joined(parts: list[Population], models: int) -> Population:
    def column(name: str) -> NDArray[Any]:
        arrays = [getattr(part, name) for part in parts]
        return np.concatenate(arrays) if arrays else np.zeros(0)

    return Population(
        variant=column("variant").astype(np.int64),
        index=column("index").astype(np.int64),
        plans=tuple(plans for part in parts for plans in part.plans),
        steps_s=column("steps_s").reshape(-1, models),
        cost=column("cost"),
        area_mm2=column("area_mm2"),
        power_watts=column("power_watts"),
        energy_per_token_j=column("energy_per_token_j"),
    )


# Proving a search again: pruned designs priced in full, without any bound
# ------------------------------------------------------------------------
# A pruned design's bound says that none of its plans is better than the best; pricing it without a
# cutoff must agree, and must not undercut the bound itself. A sample is drawn from a seed.


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck:
    """How many pruned nodes were priced, and which contradict the search (variant, design)."""

    sampled: int
    seed: int
    contradictions: tuple[tuple[int, int], ...]

    @property
    def confirmed(self) -> int:
        """Those that agree with it."""
        return self.sampled - len(self.contradictions)


def recheck(
    question: CodesignQuestion,
    outcome: CodesignOutcome,
    budget: Budget,
    *,
    sample: int = 1000,
    seed: int = 0,
) -> Recheck:
    """Price a random `sample` of the pruned nodes (all, where there are fewer)."""
    levels = outcome.ledger.levels
    variants, designs = np.nonzero((levels == PEAK) | (levels == WORK))
    count = min(sample, variants.size)
    rows = np.sort(np.random.default_rng(seed).choice(variants.size, count, replace=False))
    nodes = (variants[rows], designs[rows])
    found, finished = populate(question, budget, scale_s=outcome.scale_s, nodes=nodes)
    best = np.inf if outcome.best is None else outcome.best.cost
    bounds = outcome.ledger.bounds[found.variant, found.index]
    wrong = (found.cost < best) | (found.cost < bounds)
    pairs = zip(found.variant[wrong].tolist(), found.index[wrong].tolist(), strict=True)
    return Recheck(
        sampled=count if finished else len(found), seed=seed, contradictions=tuple(pairs)
    )


# The published search: designs by descending area until throughput stops growing
# -------------------------------------------------------------------------------
# PHAZE (Wang et al., ICML 2024) visits buckets of 10,000 µm² from the largest and stops when the
# best throughput of the last five never increased. Throughput is not monotone in area, so the rule
# proves nothing: the answer has the status `gap`, with the bound of the exact search. A bucket in
# which nothing fits does not count here; in the published program five of them end the search.

WINDOW: Final = 5
INFEASIBLE: Final = -1.0
_AHEAD: Final = 128  # designs priced together, though buckets hold two or three


def feasible_stop(values: Iterable[float]) -> int:
    """How many buckets are visited; those in which nothing fits (`INFEASIBLE`) do not count."""
    visited = counted = 0
    last: list[float] = []
    for value in values:
        visited += 1
        if value == INFEASIBLE:
            continue
        counted += 1
        last = [*last, value][-WINDOW:]
        if counted >= WINDOW and all(b <= a for a, b in pairwise(last)):
            break
    return visited


def buckets_of(space: DesignSpace) -> list[Indices]:
    """Designs of each bucket, from the largest area, in order of enumeration inside."""
    order = space.by_descending_area()
    buckets = space.buckets()[order]
    return np.split(order, np.flatnonzero(np.diff(buckets)) + 1)


def descending_area_search(
    question: CodesignQuestion, budget: Budget, prepared: Prepared | None = None
) -> CodesignOutcome:
    """Visit buckets under the first variant until the rule ends it; `prepared` as for `search`."""
    start_s = budget.cpu_s
    scale_s = scale_of(question, budget)
    run = _Visit(question, budget, scale_s, prepared)
    feasible_stop(run.values())
    bound = _least_bound(question, scale_s)
    ledger = Ledger(
        bounds=np.full((1, len(question.space)), bound),
        levels=np.full((1, len(question.space)), "", dtype="<U9"),
    )
    ledger.levels[0, run.visited] = PLACEMENT
    best = run.best
    return CodesignOutcome(
        status=Status.UNKNOWN if best is None else Status.GAP,
        best=best,
        lower_bound=bound,
        ledger=ledger,
        scale_s=scale_s,
        solver_s=budget.cpu_s - start_s,
    )


class _Visit:
    """Buckets in order, priced a few at a time; what was found so far."""

    def __init__(
        self,
        question: CodesignQuestion,
        budget: Budget,
        scale_s: NDArray[np.float64],
        prepared: Prepared | None,
    ) -> None:
        self._question, self._budget, self._scale_s = question, budget, scale_s
        self._prepared = prepared or {0: pricers(question, question.variants[0])}
        self.best: Design | None = None
        self.visited: list[int] = []

    def values(self) -> Iterator[float]:
        """Best throughput (one over the cost) of each bucket."""
        ahead: list[Indices] = []
        for bucket in [*buckets_of(self._question.space), None]:
            if bucket is not None:
                ahead.append(bucket)
            if bucket is None or sum(map(len, ahead)) >= _AHEAD:
                if self._budget.stopped:
                    return
                yield from self._priced(ahead)
                ahead = []

    def _priced(self, buckets: list[Indices]) -> Iterator[float]:
        designs = np.concatenate(buckets) if buckets else np.zeros(0, dtype=np.int64)
        nodes = (np.zeros(designs.size, dtype=np.int64), designs)
        found, _ = populate(
            self._question,
            self._budget,
            scale_s=self._scale_s,
            nodes=nodes,
            prepared=self._prepared,
        )
        row_of = {design: row for row, design in enumerate(found.index.tolist())}
        for bucket in buckets:
            self.visited += bucket.tolist()
            rows = [row_of[d] for d in bucket.tolist() if d in row_of]
            yield self._value(found, rows)

    def _value(self, found: Population, rows: list[int]) -> float:
        if not rows:
            return INFEASIBLE
        row = min(rows, key=lambda r: float(found.cost[r]))
        if self.best is None or found.cost[row] < self.best.cost:
            self.best = found.design(row)
        return 1.0 / float(found.cost[row])


def _least_bound(question: CodesignQuestion, scale_s: NDArray[np.float64]) -> float:
    designs = np.arange(len(question.space))
    jobs = pricers(question, question.variants[0])
    steps = np.stack([job.ideal_bounds_s(designs) for job in jobs], axis=1)
    bounds = cost(question.objective, steps, scale_s=scale_s, weights=question.weights)
    return float(bounds.min())
