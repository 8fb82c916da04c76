"""The front of throughput, area, power and energy per token over all designs.

Every design stands for itself with its fastest plan, so the front is exact over designs: nothing is
left out by a bound. A point is dominated where another is no worse in all objectives and better in
one; with `epsilon`, where another is no worse than (1 + epsilon) times it in all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainwright.codesign.question import cost
from trainwright.codesign.search import Design, pricers
from trainwright.execution.budget import Progress

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.codesign.price import JobPricer
    from trainwright.codesign.question import CodesignQuestion
    from trainwright.codesign.uniform import UniformPlan
    from trainwright.execution import Budget

    Floats = NDArray[np.float64]
    Indices = NDArray[np.int64]

OBJECTIVES: Final = ("cost", "area_mm2", "power_watts", "energy_per_token_j")
_CHUNK: Final = 2048


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
) -> tuple[Population, bool]:
    """Price nodes (variant, design), all of them where absent, without any bound.

    Designs that hold no plan or pass the power limit are left out. The second value is False where
    the budget ended it early.
    """
    size = len(question.space)
    if nodes is None:
        everything = np.arange(len(question.variants) * size)
        nodes = (everything // size, everything % size)
    parts: list[Population] = []
    done, finished = 0, True
    for variant in range(len(question.variants)):
        designs = nodes[1][nodes[0] == variant]
        jobs = pricers(question, question.variants[variant]) if designs.size else ()
        for start in range(0, designs.size, _CHUNK):
            left_s = budget.elapsed_s / done * (nodes[0].size - done) if done else 0.0
            stage = f"front, {done} of {nodes[0].size} designs, about {left_s:.0f} s left"
            if budget.poll(Progress(stage=stage, elapsed_s=budget.elapsed_s)):
                finished = False
                break
            chunk = designs[start : start + _CHUNK]
            parts.append(_price(question, variant, chunk, jobs, scale_s))
            done += chunk.size
    return _joined(parts, len(question.jobs)), finished


def _price(
    question: CodesignQuestion,
    variant: int,
    designs: Indices,
    jobs: tuple[JobPricer, ...],
    scale_s: Floats,
) -> Population:
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
    energies = [
        job.energies_j(designs, [chosen[index] for chosen in kept])
        for index, job in enumerate(jobs)
    ]
    return population_of(question, variant, designs, kept, energies, scale_s)


def population_of(
    question: CodesignQuestion,
    variant: int,
    designs: Indices,
    plans: list[tuple[UniformPlan, ...]],
    energies_j: list[Floats],
    scale_s: Floats,
) -> Population:
    """Figures of designs whose plans are known, with the energies of a step model by model."""
    steps = np.array([[p.step_s for p in chosen] for chosen in plans], dtype=np.float64)
    steps = steps.reshape(designs.size, len(question.jobs))
    energy = np.stack(energies_j, axis=1)
    tokens = np.array([job.tokens_per_step for job in question.jobs], dtype=np.float64)
    return Population(
        variant=np.full(designs.size, variant),
        index=designs,
        plans=tuple(plans),
        steps_s=steps,
        cost=cost(question.objective, steps, scale_s=scale_s, weights=question.weights),
        area_mm2=question.space.areas_mm2[designs],
        power_watts=(energy / steps / question.num_devices).max(axis=1, initial=0.0),
        energy_per_token_j=(energy / tokens) @ question.weights,
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
