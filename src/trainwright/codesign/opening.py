"""One batch of a search: designs of a variant opened against the best cost known so far.

A batch reads nothing but its own designs and the incumbent it is given, so that it gives the same
answer in any process, now or from a journal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from trainwright.codesign.nodes import PLACEMENT, POWER, WORK, Design, Sweep, mean_watts
from trainwright.codesign.question import cost
from trainwright.codesign.written import plan_from_json, plan_to_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.codesign.design_times import LayerTimes
    from trainwright.codesign.uniform import UniformPlan

    Floats = NDArray[np.float64]
    Indices = NDArray[np.int64]

_CHUNK: Final = 64


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
        """Rows whose hungriest operator keeps to the limit."""
        designs, limit = self._batch.designs, self._question.max_power_watts
        if limit is None:
            return np.arange(designs.size)
        watts = np.max([job.hungriest_watts(designs) for job in self._jobs], axis=0)
        self.levels[watts > limit] = POWER
        return np.flatnonzero(watts <= limit)

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
