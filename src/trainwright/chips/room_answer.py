"""The answer of a machine room: its document, the proof checked again, its tables.

A certificate is the tree of boxes that a search opened, each with the axis it was cut along and the
designs that went on. That no system is missing follows from the tree alone: the halves of a cut
cover its box, and what did not go on was closed there. Checking shares nothing with the search but
the pricing. What was closed is priced in full, without any bound: a design in the most capable
system of its box, at the rate of the least capable one, must have no less of the aim than the
stated bound, and, where the box is one of the front, a point must cover it. Systems are tried
beside, of the whole room and a few values from the best: none may be below the bound or uncovered.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.chips.document import (
    architecture_record,
    differences,
    plan_record,
    reticle_words,
    told,
)
from trainwright.chips.price import uses_of
from trainwright.chips.request import question_of
from trainwright.chips.room import AIMS, AXES, Figures, Limits, Room, RoomPricer
from trainwright.chips.room_front import FrontSearch
from trainwright.chips.room_search import (
    Closing,
    Designs,
    Found,
    Place,
    RoomSearch,
    designs_from_json,
    designs_to_json,
    ranges_of,
)
from trainwright.chips.search import Design
from trainwright.chips.tables import BOUNDS, core_rows, process_row
from trainwright.chips.workload import AXIS_WORDS, end_words, ends_of_system
from trainwright.documents.view import (
    Facts,
    Line,
    Table,
    column,
    number,
    percent,
    seconds,
    table_of,
    words,
)
from trainwright.errors import CheckFailed, InvalidInput, one_of
from trainwright.execution import Budget
from trainwright.execution.budget import Journal
from trainwright.formats import codesign_document
from trainwright.plans.plan import DEFAULT_SCHEDULE
from trainwright.plans.status import Status, relative_gap
from trainwright.provenance import __version__
from trainwright.units import MIB

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Indices

USUAL_GAP = 0.01
_BUDGETS = (
    ("budget-money", "dollars", "dollars"),
    ("budget-power", "watts", "watts"),
    ("budget-area", "silicon_mm2", "mm2 of dies"),
)
_UNITS = {"time": "seconds_per_token", "cost": "dollars_per_token", "energy": "joules_per_token"}


def room_request(
    chips: codesign_document.CodesignRequest,
    room: Room,
    *,
    aim: str,
    gap: float,
    front: float | None = None,
    dollars: float | None = None,
    watts: float | None = None,
    silicon_mm2: float | None = None,
) -> codesign_document.RoomRequest:
    """The request as its document carries it; raises `InvalidInput` with what is wrong."""
    if aim not in AIMS:
        raise InvalidInput.of("aim", one_of(AIMS, aim))
    if not 0 <= gap < 1:
        raise InvalidInput.of("gap", f"must be at least 0 and below 1, got {gap!r}")
    if front is not None and not 0 < front < 1:
        raise InvalidInput.of("epsilon", f"must be above 0 and below 1 of systems, got {front!r}")
    limits = {"budget-money": dollars, "budget-power": watts, "budget-area": silicon_mm2}
    for name, limit in limits.items():
        if limit is not None and not limit > 0:
            raise InvalidInput.of(name, f"must be > 0, got {limit!r}")
    for name in ("surroundings", "microbatch_sizes", "precisions"):
        if len(getattr(chips, name)) > 1:
            option = {"surroundings": "clock", "precisions": "precision"}.get(name, "micro-batch")
            raise InvalidInput.of(option, "must be a single value: the room has axes of its own")
    if any(set(job.schedules) != {DEFAULT_SCHEDULE} for job in chips.jobs):
        raise InvalidInput.of("schedule", "must be 1f1b: the machine room has bounds for no other")
    return codesign_document.RoomRequest(
        trainwright_version=__version__,
        chips=chips,
        room=codesign_document.RoomRecord(**asdict(room)),
        aim=aim,
        wanted_gap=gap,
        wanted_front=front,
        budget_dollars=dollars,
        budget_watts=watts,
        budget_mm2=silicon_mm2,
    )


def pricer_of(request: codesign_document.RoomRequest) -> RoomPricer:
    """What prices the systems of a request."""
    room = Room(**asdict(request.room))
    chips = request.chips
    return RoomPricer(question_of(chips), room, chips.losses)


def limits_of(request: codesign_document.RoomRequest) -> Limits:
    """Its budgets."""
    return Limits(
        dollars=request.budget_dollars,
        watts=request.budget_watts,
        silicon_mm2=request.budget_mm2,
    )


def search_of(
    request: codesign_document.RoomRequest, budget: Budget, journal: Journal | None = None
) -> RoomSearch:
    """The search that a request asks for."""
    aim, gap = request.aim, request.wanted_gap
    limits, pricer = limits_of(request), pricer_of(request)
    return RoomSearch(pricer, aim=aim, limits=limits, gap=gap, budget=budget, journal=journal)


def answer(
    request: codesign_document.RoomRequest, budget: Budget, journal: Journal | None = None
) -> codesign_document.RoomResult:
    """Search the systems of a request, and say what binds the best and what more would buy.

    `journal` keeps what is done; a search goes on from there.
    """
    aim, search = request.aim, search_of(request, budget, journal)
    pricer, limits = search.pricer, search.limits
    outcome = search.run()
    best, bound = outcome.best, outcome.lower_bound
    room, space = pricer.room, pricer.question.space
    made = codesign_document.RoomResult(
        request=request,
        status=outcome.status,
        objective=_UNITS[aim],
        value=None if best is None else best.value,
        lower_bound=bound,
        gap=None if best is None or bound is None else relative_gap(best.value, bound),
        systems=len(space) * len(room.stacks) * int(np.prod(room.sizes)),
        priced=outcome.priced,
        space_sha256=space.checksum(),
        certificate=tuple(_branches(outcome.tree)),
        search_s=outcome.solver_s,
    )
    if outcome.status is Status.INFEASIBLE:
        return replace(made, infeasible_because=why_infeasible(pricer, limits))
    if best is None:
        return made
    made = replace(
        made,
        best=system_record(pricer, best),
        step_parts=tuple(step_parts(pricer, best)),
        next_values=tuple(next_values(pricer, best, aim, limits)),
    )
    assert made.best is not None
    made = replace(
        made,
        at_ends=tuple(ends_of_system(request.room, request.chips.rules, made.best)),
        warnings=tuple(_of_reticle(pricer, best)),
    )
    if request.wanted_front is None or budget.stopped:
        return made
    front = FrontSearch(search, epsilon=request.wanted_front).run()
    made = replace(
        made,
        front=tuple(system_record(pricer, one) for one in front.points),
        front_s=front.solver_s,
    )
    if not np.isfinite(front.epsilon):  # ended before anything was proved
        return made
    return replace(
        made,
        front_epsilon=front.epsilon,
        front_epsilon_of_any_cut=front.epsilon_of_any_cut,
        front_proof=codesign_document.FrontProofRecord(
            of_designs=front.of_designs,
            within=front.within,
            stands=designs_to_json(front.stands),
            certificate=tuple(_branches(front.tree)),
            priced=front.priced,
        ),
    )


def _of_reticle(pricer: RoomPricer, best: Found) -> Iterator[str]:
    whole, most = float(pricer.die_mm2[best.design]), pricer.question.die.reticle_mm2
    if whole > most:
        yield reticle_words(whole, most)


def why_infeasible(pricer: RoomPricer, limits: Limits) -> str:
    """Which budget no system keeps to, and what the least system takes of it."""
    rows = np.arange(len(pricer.question.space))
    least = pricer.room.system((0,) * len(AXES))
    steps_s = np.ones((rows.size, len(pricer.question.jobs)))
    each = [pricer.figures(s, least, rows, steps_s, steps_s) for s in pricer.room.stacks]
    for budget, field, unit in _BUDGETS:
        limit = getattr(limits, field)
        takes = min(float(getattr(figures, field).min()) for figures in each)
        if limit is not None and takes > limit:
            return f"the least system takes {takes:,.6g} {unit}, {budget} allows {limit:,.6g}"
    return "no system within the budgets holds the models; more memory or devices may"


def _branches(tree: Mapping[str, Closing]) -> Iterator[codesign_document.BranchRecord]:
    for path, closing in sorted(tree.items()):
        yield codesign_document.BranchRecord(
            path=path,
            axis=None if closing.axis is None else AXES[closing.axis],
            left={str(s): ranges_of(np.sort(rows)) for s, rows in closing.left.items()},
        )


def system_record(pricer: RoomPricer, found: Found) -> codesign_document.SystemRecord:
    """A priced system as a document carries it."""
    system = pricer.room.system(found.place)
    around = pricer.surroundings(found.stacks, system)
    variant = pricer.variant(around)
    question = replace(pricer.question, surroundings=(around,), num_devices=system.devices)
    design = Design(variant=0, index=found.design, plans=found.plans, cost=found.value)
    one = np.array([found.design])
    plans = []
    for here, job, plan in zip(
        pricer.standing(found.stacks, system), question.jobs_of(variant), found.plans, strict=True
    ):
        joules = float(here.energies_j(one, [plan])[0])
        plans.append(plan_record(question, job, plan, joules, design))
    pace_s, cost, energy_j, watts, dollars, silicon_mm2 = found.figures
    return codesign_document.SystemRecord(
        architecture=architecture_record(question, found.design, variant),
        stacks=found.stacks,
        **system._asdict(),
        seconds_per_token=pace_s,
        dollars_per_token=cost,
        joules_per_token=energy_j,
        watts=watts,
        dollars=dollars,
        silicon_mm2=silicon_mm2,
        plans=tuple(plans),
    )


# The proof checked again
# -----------------------

_CLOSE = 1.0 - 1e-8
_NODE = AXES.index("node_devices")
_INSIDE = (AXES.index("node_gbytes_per_s"), AXES.index("topology"))
_OF_FRONT = (0, 1, 3)  # of `Figures`: seconds and dollars of a token, watts


class Branch(NamedTuple):
    """One box of a certificate: where it was cut (None: nowhere), what of each stacks went on."""

    axis: int | None
    left: Mapping[int, Indices]


class Closed(NamedTuple):
    """Designs that a certificate closes in a box, which is from `low` to `high`."""

    low: Place
    high: Place
    stacks: int
    designs: Indices


def closed_by(room: Room, tree: Mapping[str, Branch], begun: Designs) -> Iterator[Closed]:
    """Every closed part of a room whose whole has the designs `begun` by stacks.

    Raises `CheckFailed` where the tree leaves something out.
    """
    whole = tuple(size - 1 for size in room.sizes)
    waiting = [("", (0,) * len(AXES), whole, begun)]
    visited = 0
    while waiting:
        path, low, high, designs = waiting.pop()
        if path not in tree:
            raise CheckFailed(f"the certificate has no box at {path!r}")
        branch, visited = tree[path], visited + 1
        if room.node_devices[high[_NODE]] == 1:
            # A domain of one chip has no links: the first value of their axes stands for all.
            if any(low[axis] for axis in _INSIDE):
                continue
            high = tuple(0 if axis in _INSIDE else at for axis, at in enumerate(high))
        for stacks, rows in designs.items():
            on = branch.left.get(stacks, np.zeros(0, dtype=np.int64))
            if np.setdiff1d(on, rows).size:
                raise CheckFailed(f"designs appear from nowhere in the box at {path!r}")
            yield Closed(low, high, stacks, np.setdiff1d(rows, on))
        if branch.axis is None:
            if any(rows.size for rows in branch.left.values()):
                raise CheckFailed(f"the box at {path!r} is neither closed nor cut")
            continue
        axis = branch.axis
        if not (0 <= axis < len(AXES) and low[axis] < high[axis]):
            raise CheckFailed(f"the box at {path!r} cannot be cut along axis {axis}")
        middle = (low[axis] + high[axis]) // 2
        upper = tuple(middle if i == axis else at for i, at in enumerate(high))
        lower = tuple(middle + 1 if i == axis else at for i, at in enumerate(low))
        left = {stacks: rows for stacks, rows in branch.left.items() if rows.size}
        waiting += [(path + "0", low, upper, left), (path + "1", lower, high, left)]
    if visited != len(tree):
        raise CheckFailed(f"{len(tree) - visited} boxes of the certificate belong nowhere")


class Prover:
    """What a document claims, held against systems that are priced in full."""

    def __init__(
        self, pricer: RoomPricer, document: codesign_document.RoomResult, *, sample: int, seed: int
    ) -> None:
        self.pricer, self.room, self.document = pricer, pricer.room, document
        self.aim, self.limits = document.request.aim, limits_of(document.request)
        bound = document.lower_bound
        self.bound = np.inf if bound is None else bound
        self.sample, self.random = sample, np.random.default_rng(seed)
        points = [(p.seconds_per_token, p.dollars_per_token, p.watts) for p in document.front]
        self.points = np.array(points).reshape(-1, len(_OF_FRONT))
        space = len(pricer.question.space)
        self.everything = {stacks: np.arange(space) for stacks in self.room.stacks}

    def run(self, budget: Budget) -> codesign_document.RoomProofRecord:
        """Check all of it; raises `CheckFailed` with the first thing that contradicts it."""
        document, proof = self.document, self.document.front_proof
        tree = _tree(document.certificate)
        parts = [part for part in closed_by(self.room, tree, self.everything) if part.designs.size]
        repriced = 0
        for part in self._some(parts):
            if budget.stopped:
                break
            self._not_below(part, self._at_best(part))
            repriced += part.designs.size
        of_front = stood_for = 0
        if proof is not None:
            begun = designs_from_json(proof.stands)
            tree = _tree(proof.certificate)
            boxes = [part for part in closed_by(self.room, tree, begun) if part.designs.size]
            for part in self._some(boxes):
                if budget.stopped:
                    break
                self._covered(part, self._at_best(part), proof.within)
                of_front += part.designs.size
            for stacks, rows in begun.items():
                if not budget.stopped:
                    stood_for += self._stood_for(stacks, rows, proof.of_designs)
        tried = [0, 0]
        for near in (False, True):
            for _ in range(self.sample):
                one = self._near() if near else self._anywhere()
                if budget.stopped or one is None:
                    break
                if self.pricer.is_sound(one.stacks, self.room.system(one.low)):
                    self._try(one)
                    tried[near] += 1
        return codesign_document.RoomProofRecord(
            boxes=len(document.certificate),
            closed=sum(part.designs.size for part in parts),
            repriced=repriced,
            drawn=tried[0],
            near=tried[1],
            of_front=of_front,
            stood_for=stood_for,
            seed=0,
        )

    def _some(self, parts: list[Closed]) -> Iterator[Closed]:
        """So many of all closed designs as are wanted, drawn evenly, by their parts."""
        sizes = np.array([part.designs.size for part in parts])
        ends, total = np.cumsum(sizes), int(sizes.sum())
        chosen = np.arange(total)
        if total > self.sample:
            chosen = np.unique(self.random.integers(total, size=self.sample))
        of_part: dict[int, list[int]] = defaultdict(list)
        for at in chosen.tolist():
            which = int(np.searchsorted(ends, at, side="right"))
            of_part[which].append(int(parts[which].designs[at - ends[which]]))
        for which, designs in of_part.items():
            part = parts[which]
            # In a single system whose domain is slower than the network around it none is sought.
            sought = self.pricer.is_sound(part.stacks, self.room.system(part.low))
            if part.low != part.high or sought:
                yield part._replace(designs=np.array(designs))

    def _at_best(self, part: Closed) -> Figures:
        """Steps of the most capable system, in a domain of any size, at the rate of the least."""
        room, most = self.room, self.room.system(part.high)
        low = room.system(part.low)
        if part.low == part.high:
            figures, _ = self.pricer.price(part.stacks, low, part.designs)
            return figures
        sizes = room.node_devices[part.low[_NODE] : part.high[_NODE] + 1]
        each = [
            self.pricer.steps_s(part.stacks, most._replace(node_devices=n), part.designs)
            for n in sizes
        ]
        steps_s = np.min(each, axis=0)
        joules = np.zeros_like(steps_s)
        if self.aim == "energy":
            jobs = self.pricer.pricers(part.stacks)
            joules = np.stack([one.least_joules(part.designs) for one in jobs], axis=1)
        return self.pricer.figures(part.stacks, low, part.designs, steps_s, joules)

    def _not_below(self, part: Closed, figures: Figures) -> None:
        values = np.where(self.limits.kept(figures), figures.of(self.aim), np.inf)
        if (values < self.bound * _CLOSE).any():
            row = int(np.argmin(values))
            raise CheckFailed(
                f"design {int(part.designs[row])} with {part.stacks} stacks reaches "
                f"{values[row]:.6g} in {self.room.system(part.high)}, below the bound of "
                f"{self.bound:.6g}"
            )

    def _covered(self, part: Closed, figures: Figures, within: float) -> None:
        kept = self.limits.kept(figures) & np.isfinite(figures.pace_s)
        for row in np.flatnonzero(kept).tolist():
            least = np.array([figures[column][row] for column in _OF_FRONT])
            if not (self.points * _CLOSE <= least * (1.0 + within)).all(axis=1).any():
                raise CheckFailed(
                    f"no point of the front is within {within:.2%} of design "
                    f"{int(part.designs[row])} with {part.stacks} stacks in "
                    f"{self.room.system(part.high)}"
                )

    def _stood_for(self, stacks: int, stands: Indices, share: float) -> int:
        """Designs that are left out take at least 1 / (1 + share) of another's time, and price."""
        others = np.setdiff1d(self.everything[stacks], stands)
        chosen = self.random.choice(others, min(self.sample, others.size), replace=False)
        takes, those = self._takes(stacks, chosen), self._takes(stacks, stands)
        allowed = np.where(np.arange(takes.shape[1]) < 3, 1.0, 1.0 + share) / _CLOSE
        for design, own in zip(chosen.tolist(), takes, strict=True):
            if not (those <= own * allowed).all(axis=1).any():
                raise CheckFailed(f"no design of the front stands for {design}, {stacks} stacks")
        return int(chosen.size)

    def _takes(self, stacks: int, rows: Indices) -> Floats:
        """What designs take: area, dollars and watts of a chip, then seconds of every layer."""
        pricer = self.pricer
        fixed = (pricer.die_mm2[rows], pricer.die_price[rows], pricer.chip_watts(stacks, rows))
        seconds = [
            part.reshape(rows.size, -1)
            for one in pricer.pricers(stacks)
            for times in one.times(rows)
            for part in (times.forward_s, times.backward_s, times.update_s)
        ]
        return np.concatenate([np.stack(fixed, axis=1), *seconds], axis=1)

    def _anywhere(self) -> Closed:
        place = tuple(int(self.random.integers(size)) for size in self.room.sizes)
        design = int(self.random.integers(len(self.pricer.question.space)))
        stacks = int(self.random.choice(self.room.stacks))
        return Closed(place, place, stacks, np.array([design]))

    def _near(self) -> Closed | None:
        """A system a few values from the best, or from a point of the front."""
        known = [one for one in (self.document.best, *self.document.front) if one is not None]
        if not known:
            return None
        # The best takes half of the tries: a system below the bound is sought beside it.
        at = 0 if self.random.random() < 0.5 else int(self.random.integers(len(known)))
        one, room = known[at], self.room
        place = [getattr(room, name).index(getattr(one, name)) for name in AXES]
        stacks = room.stacks.index(one.stacks)
        for _ in range(int(self.random.integers(3))):
            axis, by = int(self.random.integers(-1, len(AXES))), int(self.random.choice((-1, 1)))
            if axis < 0:
                stacks = min(max(stacks + by, 0), len(room.stacks) - 1)
            else:
                place[axis] = min(max(place[axis] + by, 0), room.sizes[axis] - 1)
        space = self.pricer.question.space
        away = np.abs(np.log2(space.designs) - np.log2(space.designs[:, [self._row(one)]]))
        close = np.flatnonzero((away <= 1.0).all(axis=0) & (away.sum(axis=0) <= 2.0))
        design = int(self.random.choice(close))
        return Closed(tuple(place), tuple(place), room.stacks[stacks], np.array([design]))

    def _row(self, one: codesign_document.SystemRecord) -> int:
        """Where a design stands in the space."""
        space, chip = self.pricer.question.space, one.architecture
        per_mac = chip.buffer_bytes_per_mac
        key = (chip.num_tc, chip.num_vc, chip.width, chip.depth, chip.glb_bytes // MIB, per_mac)
        same = (space.designs[:-1] == np.array(key[:-1])[:, None]).all(axis=0)
        if len(set(space.column("buffer_bytes_per_mac").tolist())) > 1:
            same &= space.column("buffer_bytes_per_mac") == per_mac
        found = np.flatnonzero(same)
        if not found.size:
            raise CheckFailed(f"the design {key} is not of the space")
        return int(found[0])

    def _try(self, one: Closed) -> None:
        figures = self._at_best(one)
        self._not_below(one, figures)
        if self.document.front_epsilon is not None:
            self._covered(one, figures, self.document.front_epsilon)

    def priced_again(self, one: codesign_document.SystemRecord) -> Found:
        """A system of the document as it is priced now; raises where it is over a budget."""
        room, row = self.room, self._row(one)
        place = tuple(getattr(room, name).index(getattr(one, name)) for name in AXES)
        figures, (plans,) = self.pricer.price(one.stacks, room.system(place), np.array([row]))
        if plans is None or not self.limits.kept(figures)[0]:
            raise CheckFailed("a system of the document does not fit, or is over a budget")
        return Found(
            stacks=one.stacks,
            place=place,
            design=row,
            value=float(figures.of(self.aim)[0]),
            plans=plans,
            figures=tuple(float(column[0]) for column in figures),
        )


def recheck(
    document: codesign_document.RoomResult, *, sample: int, seed: int, budget: Budget
) -> codesign_document.RoomResult:
    """The document with its certificate checked; raises `CheckFailed` where it proves nothing."""
    pricer = pricer_of(document.request)
    if pricer.question.space.checksum() != document.space_sha256:
        raise CheckFailed("the space of designs is another than that of the certificate")
    prover = Prover(pricer, document, sample=sample, seed=seed)
    room, value, bound = prover.room, document.value, document.lower_bound
    every = len(pricer.question.space) * len(room.stacks) * int(np.prod(room.sizes))
    both: list[tuple[str, object, object]] = [
        ("systems", document.systems, every),
        ("objective", document.objective, _UNITS[document.request.aim]),
    ]
    if document.best is not None:
        again, request = prover.priced_again(document.best), document.request
        nexts = next_values(pricer, again, request.aim, prover.limits)
        ends = ends_of_system(request.room, request.chips.rules, document.best)
        both += [
            ("value", document.value, again.value),
            ("best", document.best, system_record(pricer, again)),
            ("step_parts", document.step_parts, tuple(step_parts(pricer, again))),
            ("next_values", document.next_values, tuple(nexts)),
            ("at_ends", document.at_ends, tuple(ends)),
        ]
    if value is not None and bound is not None:
        proved = Status.OPTIMAL if bound >= value * (1.0 - 1e-9) else Status.GAP
        both.append(("lower_bound", bound, min(bound, value)))
        both.append(("gap", document.gap, relative_gap(value, bound)))
        both.append(("status", document.status, proved))
    for at, point in enumerate(document.front):
        both.append((f"front[{at}]", point, system_record(pricer, prover.priced_again(point))))
    wrong = (one for key, stored, priced in both for one in differences(stored, priced, key))
    if (words := told(wrong, "the system has")) is not None:
        raise CheckFailed(words)
    proof = prover.run(budget)
    searched = not budget.stopped and _searched_again(document, budget)
    return replace(document, proof=replace(proof, seed=seed, searched=searched))


def _searched_again(document: codesign_document.RoomResult, budget: Budget) -> bool:
    """The request searched as it was; raises `CheckFailed` where the document claims more.

    What a budget ended claims less, so its bound must only be no higher, its front no nearer. False
    where the budget of the check ends it.
    """
    search = search_of(document.request, budget)
    outcome = search.run()
    if budget.stopped:
        return False
    _claims_no_more("lower_bound", document.lower_bound, outcome.lower_bound)
    if document.status is Status.INFEASIBLE and outcome.status is not Status.INFEASIBLE:
        raise CheckFailed("status: the document says infeasible, its request has an answer")
    wanted = document.request.wanted_front
    if document.front_epsilon is None or wanted is None:
        return True
    front = FrontSearch(search, epsilon=wanted).run()
    if budget.stopped:
        return False
    for name in ("epsilon", "epsilon_of_any_cut"):
        stored = getattr(document, f"front_{name}")
        _claims_no_more(f"front_{name}", getattr(front, name), stored)
    if math.isclose(document.front_epsilon, front.epsilon, rel_tol=1e-9):
        again = tuple(system_record(search.pricer, one) for one in front.points)
        wrong = told(differences(document.front, again, "front"), "its request gives")
        if wrong is not None:
            raise CheckFailed(wrong)
    return True


def _claims_no_more(name: str, low: float | None, high: float | None) -> None:
    if low is not None and high is not None and low * _CLOSE > high:
        raise CheckFailed(
            f"{name}: the document claims more than its request proves, {low}, {high}"
        )


def _tree(certificate: tuple[codesign_document.BranchRecord, ...]) -> dict[str, Branch]:
    return {
        one.path: Branch(
            None if one.axis is None else AXES.index(one.axis),
            designs_from_json(one.left),
        )
        for one in certificate
    }


# Why: where the step of the first model goes, and what the next value of each axis buys
# --------------------------------------------------------------------------------------


def step_parts(pricer: RoomPricer, found: Found) -> Iterator[codesign_document.TimePartRecord]:
    """The step of the first model, by kind of layer and what binds its kernels; adds up to it.

    Kernels count on the rank that is busiest: all microbatches of an even share of the layers.
    What ranks wait for (the filling of the pipeline, longer ranks, transfers, the exchange of
    gradients, the update) is what is left.
    """
    system, plan = pricer.room.system(found.place), found.plans[0]
    around = pricer.surroundings(found.stacks, system)
    job = pricer.question.jobs_of(pricer.variant(around))[0]
    chain = job.chain(plan.tensor_degree)
    times = job.num_microbatches / plan.data_degree / plan.num_ranks
    totals: dict[tuple[str, str], float] = {}
    repeated = sum(str(mode) == "full" for mode in plan.recompute) / len(plan.recompute)
    links = chain.collective_s(around)
    for index, (layer, count) in enumerate(
        zip(chain.graph.classes, chain.class_counts.tolist(), strict=True)
    ):
        kind = str(layer.kind)
        for use in uses_of(pricer.question.space, found.design, around, chain, index):
            again = repeated if chain.repeats[index] and use.kernel.phase == "forward" else 0.0
            key = (kind, use.bound)
            totals[key] = totals.get(key, 0.0) + use.seconds * count * times * (1.0 + again)
        sent = sum(float(each[index]) for phase, each in links.items())
        sent += repeated * float(links[next(p for p in links if p == "forward")][index])
        if sent:
            key = (kind, "tensor links")
            totals[key] = totals.get(key, 0.0) + sent * count * times
    totals["pipeline and replicas", "waiting"] = plan.step_s - sum(totals.values())
    for (part, bound), spent_s in sorted(totals.items(), key=lambda item: -item[1]):
        yield codesign_document.TimePartRecord(
            part=part, bound=bound, seconds=spent_s, share=spent_s / plan.step_s
        )


def next_values(
    pricer: RoomPricer, found: Found, aim: str, limits: Limits
) -> Iterator[codesign_document.NextValueRecord]:
    """Every axis one value up, or down from its last, with the same design planned anew.

    With a the aim, s the step and q = a / s, what changes is Δa = q·Δs + s'·Δq: the step's part and
    that of what a second costs. All axes at once are the last; what they have beyond their sum is
    their interplay.
    """
    room, one = pricer.room, np.array([found.design])
    now = {"stacks": room.stacks.index(found.stacks), **dict(zip(AXES, found.place, strict=True))}
    alone = room.system(found.place).node_devices == 1
    pace_s, value = found.figures[0], found.value

    def changed(
        axis: str, to: dict[str, int], told: tuple[str, str]
    ) -> codesign_document.NextValueRecord | None:
        stacks, place = room.stacks[to["stacks"]], tuple(to[name] for name in AXES)
        if not pricer.is_sound(stacks, room.system(place)):
            return None
        figures, _ = pricer.price(stacks, room.system(place), one)
        then, then_s = float(figures.of(aim)[0]), float(figures.pace_s[0])
        if not np.isfinite(then):
            return None
        step = then_s / pace_s - 1.0
        return codesign_document.NextValueRecord(
            axis=axis,
            now=told[0],
            then=told[1],
            step_change=step,
            rate_change=then / value - 1.0 - step,
            value_change=then / value - 1.0,
            dollars=float(figures.dollars[0]) - found.figures[4],
            fits=bool(limits.kept(figures)[0]),
        )

    rows, moved = [], dict(now)
    for axis in ("stacks", *AXES):
        values = getattr(room, axis)
        if alone and axis in ("node_gbytes_per_s", "topology"):
            continue  # a domain of one chip has no links
        after = now[axis] + 1 if now[axis] + 1 < len(values) else now[axis] - 1
        if after < 0:
            continue
        told = [v if axis == "topology" else f"{v:g}" for v in (values[now[axis]], values[after])]
        if (row := changed(axis, {**now, axis: after}, (told[0], told[1]))) is not None:
            rows.append(row)
            moved[axis] = after
    yield from rows
    together = changed("all at once", moved, ("", "")) if len(rows) > 1 else None
    if together is None:
        return
    names = ("step_change", "rate_change", "value_change", "dollars")
    beyond = {n: getattr(together, n) - sum(getattr(row, n) for row in rows) for n in names}
    yield codesign_document.NextValueRecord(axis="interplay", now="", then="", fits=True, **beyond)
    yield together


# What a terminal and a page show of it
# -------------------------------------


def room_view(found: codesign_document.RoomResult) -> Iterator[Line]:
    """The verdict, the best system, why, and the front."""
    yield Facts(title="machine room", rows=tuple(room_summary(found)))
    if found.best is None:
        return
    yield Facts(title="best system", rows=tuple(system_rows(found.best)))
    yield plan_table(found.best)
    yield why_table(found)
    yield next_table(found)
    yield from map(end_words, found.at_ends)
    if len(found.front) > 1:
        yield front_table(found)


def room_summary(found: codesign_document.RoomResult) -> Iterator[tuple[str, str]]:
    """Status, aim, what was searched and what is proved of it."""
    yield "status", str(found.status)
    if found.infeasible_because:
        yield "because", found.infeasible_because
    yield "aim", found.objective.replace("_", " ")
    yield from process_row(found.request.chips)
    yield "systems", f"{found.systems:,}, of which {found.priced:,} were priced in full"
    if found.value is not None and found.gap is not None:
        yield "value", f"{found.value:.4g}, proved to be within {found.gap:.2%} of the best"
    spent = f"{found.search_s:.1f} s search of {len(found.certificate):,} boxes"
    if found.front_s is not None:
        spent += f", {found.front_s:.1f} s front (--no-pareto leaves it out)"
    yield "CPU", spent
    if found.front_epsilon is not None and found.front_epsilon_of_any_cut is not None:
        any_cut = f"under any cut of the layers by {found.front_epsilon_of_any_cut:.0%}"
        points = f"{len(found.front)} systems that none beats by more than"
        yield "front", f"{points} {found.front_epsilon:.1%}, {any_cut}"
    if found.proof is not None:
        proof = found.proof
        whole = "searched again, " if proof.searched else ""
        yield (
            "rechecked",
            f"{whole}{proof.repriced:,} of {proof.closed:,} closed designs, "
            f"{proof.drawn:,} systems drawn, {proof.near:,} beside the best ones",
        )
    for warning in found.warnings:
        yield "warning", warning


def system_rows(best: codesign_document.SystemRecord) -> Iterator[tuple[str, str]]:
    """A system, from its cores to its bill."""
    around = best.architecture.surroundings
    yield from core_rows(best.architecture)
    size = f"{best.stacks} stacks of {best.stack_gib:g} GiB"
    yield "memory", f"{size}, {around.memory_bandwidth_bytes_per_s / 1e12:.4g} TB/s"
    domain = f"{best.node_devices} chips, {best.node_gbytes_per_s:g} GB/s each, {best.topology}"
    yield "domain", domain if best.node_devices > 1 else "single chips"
    yield "network", f"{best.cards:g} cards a chip, oversubscribed {best.oversubscription:g}:1"
    yield "devices", f"{best.devices:,}, {best.silicon_mm2:,.0f} mm² of dies"
    yield "price", f"{best.dollars:,.0f} dollars, {best.dollars_per_token * 1e9:.4g} for 1e9 tokens"
    yield "power", f"{best.watts / 1e3:,.4g} kW rated, {best.joules_per_token:.4g} J a token"


def plan_table(best: codesign_document.SystemRecord) -> Table:
    """The plan of each model on a system."""
    return table_of(
        "Plans",
        (
            words("model"),
            column("tensor", "tensor_parallel", "t"),
            column("data", "data_parallel", "d"),
            column("pipeline", "pipeline_parallel", "p"),
            words("recompute"),
            column("step", "step_time_s"),
            column("tokens/s", "tokens_per_s"),
            column("MFU", "mfu"),
        ),
        (
            (
                plan.model,
                *(plan.tensor_parallel, plan.data_parallel, plan.pipeline_parallel),
                plan.recompute,
                seconds(plan.step_time_s),
                number(plan.tokens_per_s),
                percent(plan.mfu),
            )
            for plan in best.plans
        ),
        caption="plans",
    )


def why_table(found: codesign_document.RoomResult) -> Table:
    """Where the first model's step goes, which adds up to it."""
    total = sum(part.seconds for part in found.step_parts)
    rows = [(p.part, BOUNDS.get(p.bound, p.bound), p.seconds, p.share) for p in found.step_parts]
    return table_of(
        "What binds",
        (
            words("layers", "part"),
            words("bound by", "bound"),
            column("time", "seconds"),
            column("share"),
        ),
        (
            (part, bound, seconds(spent_s), percent(share))
            for part, bound, spent_s, share in (*rows, ("step", "", total, 1.0))
        ),
        caption="where the first model's step goes",
    )


def next_table(found: codesign_document.RoomResult) -> Table:
    """What the next value of each axis changes; rows add up, and so do the columns of changes."""
    axes = [one for one in found.next_values if one.now]
    whole = [one for one in found.next_values if not one.now]
    return table_of(
        "What the next value buys",
        (
            words("axis"),
            words("from", "now"),
            words("to", "then"),
            column("step", "step_change"),
            column("per second", "rate_change", "rate"),
            column("aim", "value_change"),
            column("dollars"),
            words("", "fits"),
        ),
        (
            (
                AXIS_WORDS.get(one.axis, one.axis),
                one.now,
                one.then,
                percent(one.step_change, digits=2, sign=True),
                percent(one.rate_change, digits=2, sign=True),
                percent(one.value_change, digits=2, sign=True),
                number(one.dollars, "+,.0f"),
                "" if one.fits else "over budget",
            )
            for one in (*sorted(axes, key=lambda one: one.value_change), *whole)
        ),
        caption="the next value of each axis, planned anew: step + rate = aim, less is better",
    )


def front_table(found: codesign_document.RoomResult) -> Table:
    """Systems that cover all others; a terminal shows some of them, quick to slow."""
    shown = range(0, len(found.front), max(1, -(-len(found.front) // 12)))
    caption = "the front of seconds and dollars of a token and of watts"
    if found.front_epsilon is not None:
        caption += f": no system beats all of it by more than {found.front_epsilon:.1%}"
    return table_of(
        "The front",
        (
            words("cores", "cores"),
            column("devices"),
            column("GiB", "memory_gib"),
            column("domain", "node_devices"),
            column("cards"),
            column("step", "step_time_s"),
            column("dollars"),
            column("per 1e9 tokens", "dollars_per_token"),
            column("kW", "watts"),
        ),
        (
            (
                f"{one.architecture.num_tc} x {one.architecture.width} x {one.architecture.depth}",
                one.devices,
                number(one.stacks * one.stack_gib, "g"),
                one.node_devices,
                number(one.cards, "g"),
                seconds(one.plans[0].step_time_s),
                number(one.dollars, ",.0f"),
                number(one.dollars_per_token * 1e9, ".4g"),
                number(one.watts / 1e3, ".4g"),
            )
            for one in found.front
        ),
        caption=caption,
        brief=shown,
    )
