"""The front of a machine room in time, cost and power, with a proof of what it may lack.

A point covers a system within ε where it is at most 1 + ε times it in seconds and dollars of a
token and in rated watts. The answer is a list of systems that together cover every system of the
room within a stated ε, be it priced or not. Three steps make it, each with a part of ε:

1. *Designs.* Where all layers of a design take at most 1 + δ times those of another, and its die
   and its watts are no more, so does its best plan in any system: layers that end sooner make no
   plan longer, and memory keeps the same plans for all designs. One design stands for all that it
   covers so.
2. *Boxes.* The systems of a box have no less than (step bound, rate · step bound, watts) at its
   most and least capable ends. A box leaves a design behind that a point known covers there; what
   is left is cut in two, the box furthest from the front first. In a single system the designs
   left are priced, below the step from which on a point covers them.
3. *Thinning.* Of the points those stay that cover all others within a last part.

Bounds hold for every cut of the layers; a price is that of the cut whose longest stage is shortest.
So a second ε is told, within which the front covers systems under any cut: that of the bounds in
all systems, also in those that were priced. Stopped early, both are those of the box furthest from
the front.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from trainwright.chips.plans import steps_of
from trainwright.chips.population import front
from trainwright.chips.request import Objective
from trainwright.chips.room import AXES, RoomPricer
from trainwright.chips.room_search import (
    SAFE,
    Box,
    Closing,
    Designs,
    Found,
    Place,
    RoomSearch,
    designs_from_json,
    designs_of,
    designs_to_json,
    ranges_of,
)
from trainwright.execution.best_first import BestFirst
from trainwright.execution.budget import Progress

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Indices

FIGURES: Final = (0, 1, 3)  # of `Figures`: seconds and dollars of a token, watts
_PART: Final = 0.15  # of ε for designs and for thinning each
_EXACT: Final = 3  # of `burdens`, columns behind the times: die, price, watts
_FEW: Final = 4  # designs that are priced first in a system, then twice as many, and so on
_ROWS: Final = 256
_DOMAIN: Final = AXES.index("node_devices")  # whose values are no order of steps


# One design for all that it beats in any system
# ----------------------------------------------


def burdens(pricer: RoomPricer, stacks: int) -> Floats:
    """What no design wants, logarithms [designs, n]: layers' seconds, then die, price and watts."""
    rows = np.arange(len(pricer.question.space))
    columns = []
    for one in pricer.pricers(stacks):
        for times in one.times(rows):
            columns += [times.forward_s, *np.moveaxis(times.backward_s, 1, 0), times.update_s]
    seconds = np.concatenate(columns, axis=1)
    seconds = np.unique(seconds[:, (seconds > 0).any(axis=0)], axis=1)
    fixed = (pricer.die_mm2, pricer.die_price, pricer.chip_watts(stacks, rows))
    found: Floats = np.log(np.maximum(np.column_stack([seconds, *fixed]), 1e-300))
    return found


def representatives(burden: Floats, share: float) -> Indices:
    """Of each design one that stands for it: no layer takes more than 1 + `share` times its."""
    slack = np.full(burden.shape[1], np.log1p(share))
    slack[-_EXACT:] = 1e-12
    stands = np.full(len(burden), -1)
    kept, known = np.empty((512, burden.shape[1])), 0
    names = np.empty(len(burden), dtype=np.int64)
    for design in np.argsort(burden.sum(axis=1), kind="stable").tolist():
        beaten = (kept[:known] <= burden[design] + slack).all(axis=1)
        first = int(beaten.argmax()) if known else 0
        if known and beaten[first]:
            stands[design] = names[first]
            continue
        if known == len(kept):
            kept = np.concatenate([kept, np.empty_like(kept)])
        kept[known], names[known], stands[design] = burden[design], design, design
        known += 1
    return stands


# Points known so far
# -------------------


@dataclass(slots=True)
class Points:
    """Systems that none of the others beats; logarithms of their figures [n, 3]."""

    logs: Floats = field(default_factory=lambda: np.zeros((0, len(FIGURES))))
    names: list[tuple[int, Place, int]] = field(default_factory=list)
    added: list[tuple[list[float], tuple[int, Place, int]]] = field(default_factory=list)

    def add(self, figures: Floats, name: tuple[int, Place, int]) -> None:
        """A priced system: its stacks, place and design."""
        self.added.append((figures.tolist(), name))
        if (self.logs <= figures).all(axis=1).any():
            return
        stays = np.logical_not((figures <= self.logs).all(axis=1))
        self.logs = np.vstack([self.logs[stays], figures])
        self.names = [one for one, kept in zip(self.names, stays.tolist(), strict=True) if kept]
        self.names.append(name)

    def excess(self, least: Floats) -> Floats:
        """The least ε, as log(1 + ε), within which a point covers figures no less than these."""
        found = np.full(len(least), np.inf if not len(self.logs) else 0.0)
        for start in range(0, len(least) if len(self.logs) else 0, _ROWS):
            part = least[start : start + _ROWS, None, :]
            apart = self.logs[None, :, 0] - part[..., 0]
            for column in range(1, len(FIGURES)):
                np.maximum(apart, self.logs[None, :, column] - part[..., column], out=apart)
            found[start : start + _ROWS] = apart.min(axis=1)
        return found

    def enough(self, least: Floats, slack: float) -> Floats:
        """How far the pace may rise above these figures until a point covers them, as a log."""
        found = np.full(len(least), np.inf)
        for start in range(0, len(least) if len(self.logs) else 0, _ROWS):
            part = least[start : start + _ROWS, None, :]
            apart = np.maximum(self.logs[:, 0] - part[..., 0], self.logs[:, 1] - part[..., 1])
            near = self.logs[:, 2] <= part[..., 2] + slack
            found[start : start + _ROWS] = np.where(near, apart, np.inf).min(axis=1)
        return found - slack


# The search
# ----------


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomFront:
    """Points that cover all systems within `epsilon`, under any cut within `epsilon_of_any_cut`.

    A part `within` of it is for boxes and thinning. `stands` are the designs by stacks that the
    boxes of `tree` begin with, which stand for all others within `of_designs`.
    """

    points: list[Found]
    epsilon: float
    epsilon_of_any_cut: float
    of_designs: float
    within: float
    stands: Designs
    tree: dict[str, Closing]
    priced: int
    solver_s: float


class _Left(NamedTuple):
    rows: Indices
    steps_s: Floats  # that no system of a box is faster than
    least: Floats  # logarithms of figures that no system of it has less of

    def take(self, kept: Any) -> _Left:
        return _Left(self.rows[kept], self.steps_s[kept], self.least[kept])


class _Half(NamedTuple):
    box: Box
    same: bool  # whether its most capable system, so its least steps, are those of the whole
    whole: Box | None = None  # of which it is a half


class _Opened(NamedTuple):
    """What became of a box: where it was cut, what is left, how far that is from the front.

    From a journal only the designs are known, not their bounds.
    """

    axis: int | None
    left: Designs
    bounds: dict[int, _Left] | None
    further: float


def _one_domain(box: Box) -> bool:
    return box.low[_DOMAIN] == box.high[_DOMAIN]


class FrontSearch:
    """One search, with the bounds of designs and the systems that an earlier one priced."""

    def __init__(self, search: RoomSearch, *, epsilon: float) -> None:
        self.search, self.pricer, self.room = search, search.pricer, search.room
        self.budget = search.budget
        self.of_designs = self.thinning = (1.0 + epsilon) ** _PART - 1.0
        self.slack = np.log1p(epsilon) * (1.0 - 2.0 * _PART)
        self.points, self.priced = Points(), 0
        self.journal = search.journal
        self.beyond = self.slack  # furthest bound in a system that was priced
        question = self.pricer.question
        self.parted = question.objective is Objective.GEOMETRIC or len(question.jobs) == 1

    def run(self) -> RoomFront:
        """Cut boxes until what is left of each is covered, or the budget ends it."""
        start_s = self.budget.cpu_s
        for one in self.search.seen:
            figures = np.log([one.figures[column] for column in FIGURES])
            self.points.add(figures, (one.stacks, one.place, one.design))
        stands = {stacks: self._stands(stacks) for stacks in self.room.stacks}
        box = Box((0,) * len(AXES), tuple(size - 1 for size in self.room.sizes))
        waiting: BestFirst[tuple[str, _Half, _Opened]] = BestFirst()
        start = _Opened(axis=None, left=stands, bounds=None, further=np.inf)
        waiting.add(-np.inf, ("", _Half(box, same=True), start), tie="")
        tree: dict[str, Closing] = {}

        def is_stopped() -> bool:
            worst = -waiting.least
            return worst > self.slack and self.budget.poll(self._progress(worst, len(waiting)))

        for _, (path, half, whole) in waiting.opened(stopped=is_stopped):
            opened = self._done(path, half, whole)
            tree[path] = Closing(axis=opened.axis, left=opened.left)
            if opened.axis is None:
                continue
            for side, part in zip("01", self._halves(half.box, opened.axis), strict=True):
                if part is None:
                    tree[path + side] = Closing(axis=None, left={})
                else:
                    waiting.add(-opened.further, (path + side, part, opened), tie=path + side)
        open_excess = -waiting.least if waiting else 0.0
        for _, (path, *_) in waiting:  # closed at the excess of the first of them
            tree[path] = Closing(axis=None, left={})
        within = np.exp(max(self.slack, open_excess)) * (1.0 + self.thinning)
        any_cut = np.exp(max(self.beyond, open_excess)) * (1.0 + self.thinning)
        return RoomFront(
            points=self._thinned(),
            epsilon=float(within * (1.0 + self.of_designs) - 1.0),
            epsilon_of_any_cut=float(any_cut * (1.0 + self.of_designs) - 1.0),
            of_designs=self.of_designs,
            within=float(within - 1.0),
            stands=stands,
            tree=tree,
            priced=self.priced,
            solver_s=self.budget.cpu_s - start_s,
        )

    def _stands(self, stacks: int) -> Indices:
        """Designs that stand for all others, from the journal where that has them."""
        key = f"stands:{stacks}"
        if self.journal is not None and (known := self.journal.find(key)) is not None:
            return designs_of(known)
        found = np.unique(representatives(burdens(self.pricer, stacks), self.of_designs))
        if self.journal is not None and not self.budget.stopped:
            self.journal.append(key, ranges_of(found))
        return found

    def _done(self, path: str, half: _Half, whole: _Opened) -> _Opened:
        """What a box comes to, from the journal where that has it."""
        key = f"front:{path}"
        if self.journal is not None and (known := self.journal.find(key)) is not None:
            for figures, (stacks, place, design) in known["points"]:
                self.points.add(np.array(figures), (stacks, tuple(place), design))
            self.beyond, self.priced = known["beyond"], known["priced"]
            left = designs_from_json(known["left"])
            return _Opened(known["axis"], left, None, known["further"])
        before, bounds = len(self.points.added), whole.bounds
        if bounds is None:  # those of the box that it is a half of, or its own
            box = half.whole or half.box
            bounds = {s: self._bounded(box, s, rows) for s, rows in whole.left.items()}
        axis, there = self._open(half, bounds)
        left = {stacks: each.rows for stacks, each in there.items()}
        excess = [float(self.points.excess(each.least).max()) for each in there.values()]
        opened = _Opened(axis, left, there, max(excess, default=0.0))
        if self.journal is not None and not self.budget.stopped:
            made = {"axis": axis, "further": opened.further, "beyond": self.beyond}
            made |= {"left": designs_to_json(left)}
            points = self.points.added[before:]
            self.journal.append(key, made | {"points": points, "priced": self.priced})
        return opened

    def _open(self, half: _Half, known: dict[int, _Left]) -> tuple[int | None, dict[int, _Left]]:
        """What no point covers yet of a box, and the axis it is cut along, if any is left."""
        box, left = half.box, {}
        furthest: tuple[float, int] | None = None
        for stacks, each in known.items():
            kept = each.take(self.points.excess(each.least) > self.slack)
            there = self._bounded(box, stacks, kept.rows, kept.steps_s if half.same else None)
            excess = self.points.excess(there.least)
            if (excess > self.slack).any():
                left[stacks] = there.take(excess > self.slack)
                if furthest is None or excess.max() > furthest[0]:
                    furthest = (float(excess.max()), stacks)
        if furthest is None:
            return None, {}
        if box.is_single:
            for stacks, each in left.items():
                if self.pricer.is_sound(stacks, self.room.system(box.low)):
                    self._price(stacks, box.low, each)
                    self.beyond = max(self.beyond, float(self.points.excess(each.least).max()))
            return None, {}
        stacks = furthest[1]
        one = left[stacks].take([int(self.points.excess(left[stacks].least).argmax())])
        for place in (box.low, box.high):
            if self.pricer.is_sound(stacks, self.room.system(place)):
                same = one.steps_s if place == box.high and _one_domain(box) else None
                self._price(stacks, place, self._bounded(Box(place, place), stacks, one.rows, same))
        if box.low[0] < box.high[0]:
            return 0, left
        return self._cut(box, stacks, one), left

    def _cut(self, box: Box, stacks: int, one: _Left) -> int:
        """The axis whose halves bring the furthest design closest to the front."""
        best = (np.inf, np.inf, 0)
        for axis, (low, high) in enumerate(zip(box.low, box.high, strict=True)):
            if low == high:
                continue
            found = []
            for half in self._halves(box, axis):
                if half is not None:
                    steps_s = one.steps_s if half.same else None
                    there = self._bounded(half.box, stacks, one.rows, steps_s)
                    found.append(float(self.points.excess(there.least)[0]))
            best = min(best, (max(found), min(found), axis))
        return best[2]

    def _halves(self, box: Box, axis: int) -> Iterator[_Half | None]:
        """Both halves, of which the more capable one may have the steps of the whole."""
        for side, half in enumerate(box.halves(axis)):
            proper = half.proper(self.room)
            same = side == 1 and axis != _DOMAIN and proper == half
            yield None if proper is None else _Half(proper, same=same, whole=box)

    def _bounded(
        self, box: Box, stacks: int, rows: Indices, steps_s: Floats | None = None
    ) -> _Left:
        """Designs with the least figures of a box, whose steps may be known."""
        if steps_s is None:
            steps_s = np.zeros((0, len(self.pricer.tokens)))
            if rows.size:
                steps_s = self.search.steps_s(box, stacks, rows) * SAFE
        return _Left(rows, steps_s, self._logs(stacks, box.low, rows, steps_s))

    def _logs(self, stacks: int, place: Place, rows: Indices, steps_s: Floats) -> Floats:
        """Logarithms of the figures of systems with these steps; infinite over the budgets."""
        system = self.room.system(place)
        figures = self.pricer.figures(stacks, system, rows, steps_s, np.zeros_like(steps_s))
        found = np.log(np.stack([figures[column] for column in FIGURES], axis=1))
        found[~self.search.limits.kept(figures)] = np.inf
        return np.asarray(found)

    def _price(self, stacks: int, place: Place, left: _Left) -> None:
        """Price what no point covers, the most promising first; points found spare what follows."""
        left = left.take(self.points.excess(left.least) > self.slack)
        order = np.argsort(left.least.sum(axis=1), kind="stable")
        jobs = self.pricer.standing(stacks, self.room.system(place)) if order.size else ()
        times = [one.times(left.rows) for one in jobs]
        weights, start, count = self.pricer.question.weights, 0, _FEW
        while start < order.size:
            few = order[start : start + count]
            start, count = start + count, 2 * count
            few = few[self.points.excess(left.least[few]) > self.slack]
            if not few.size:
                continue
            far = np.full(few.size, np.inf)
            if self.parted:
                far = np.maximum(self.points.enough(left.least[few], self.slack), 0.0) + 1e-6
            exact_s = np.full((few.size, len(jobs)), np.inf)
            for model, (one, layers) in enumerate(zip(jobs, times, strict=True)):
                limit = left.steps_s[few, model] * np.exp(far / weights[model])
                plans = one.plans(tuple(each.take(few) for each in layers), limit)
                exact_s[:, model] = steps_of(plans)
            self.priced += few.size
            figures = self._logs(stacks, place, left.rows[few], exact_s)
            for row in np.flatnonzero(np.isfinite(figures).all(axis=1)).tolist():
                self.points.add(figures[row], (stacks, place, int(left.rows[few[row]])))

    def _thinned(self) -> list[Found]:
        """Points that cover all others within the last part, with their plans."""
        if not self.points.names:
            return []
        chosen = front(np.exp(self.points.logs), epsilon=self.thinning).tolist()
        found = []
        for stacks, place, design in (self.points.names[row] for row in chosen):
            one = np.array([design])
            figures, plans = self.pricer.price(stacks, self.room.system(place), one)
            assert plans[0] is not None
            made = tuple(float(column[0]) for column in figures)
            value = float(figures.of(self.search.aim)[0])
            found.append(
                Found(
                    stacks=stacks,
                    place=place,
                    design=design,
                    value=value,
                    plans=plans[0],
                    figures=made,
                )
            )
        return found

    def _progress(self, excess: float, boxes: int) -> Progress:
        return Progress(
            stage=f"front, {boxes} boxes open, {len(self.points.names)} points, "
            f"covered within {min(np.expm1(excess), 99.0):.1%}",
            elapsed_s=self.budget.elapsed_s,
        )
