"""The best system of a machine room, by branch and bound over boxes of systems.

A box is a range of every axis of a `Room`; beside it stand the designs, with their stacks of
memory, that may still be best in it. No system of a box is faster than its most capable one, nor
cheaper or thriftier than its least capable one, so

    value of a design in a box ≥ rate(least capable) · step(most capable)

and a design leaves a box whose bound is above (1 - gap) times the best system known. A box with
designs left is cut in two, first by devices, of which steps and prices depend most, then along the
axis that raises the bound most; where it is a single system these are priced in full. Boxes are
opened best bound first.

The bound of a step holds for every cut of the layers under 1F1B. With m microbatches on a replica,
p ranks, W the forward and backward of a microbatch on all layers, L blocks of the most frequent
class and w the seconds of one:

- a rank s keeps min(p - s, m) microbatches, so it holds so many blocks with all activations and
  so many recomputed. The least τ at which the ranks hold L blocks in τ each is the longest rank;
  blocks beyond those held with activations are recomputed, which W counts;
- step ≥ m·τ, and step ≥ W + (m - 1)·τ - (min(p, m) - 1)·φ·τ, for before the first backward of a
  rank all later ranks ran one microbatch, and it no more than min(p, m) forwards, which are φ of
  its time at most; the first rank ends last, and then exchanges the gradients of the layers before
  all blocks, and of the blocks that the others do not hold in τ;
- with a transfer of c between ranks, step ≥ ⌈m / min(p, m)⌉·(W + 2(p - 1)·c), for the first rank
  begins no microbatch before the one min(p, m) earlier came back; the second grows by 2(p - 1)·c;
- step ≥ (m·W + exchange of gradients + update + 1.5 p (p - 1)·c + S) / p, the mean over ranks of
  when they end: S = Σ i·w_i is what ranks behind rank i do to a microbatch before it can end, least
  where the first ranks work as long as a step of this length lets them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from trainwright.chips.plans import UniformPlan
from trainwright.chips.price import JobPricer
from trainwright.chips.request import Objective
from trainwright.chips.room import AXES, Limits, Room, RoomPricer, System
from trainwright.chips.search import plan_from_json, plan_to_json
from trainwright.chips.workload import Chain, Replication
from trainwright.cluster import Surroundings
from trainwright.errors import InvalidInput
from trainwright.execution import Budget
from trainwright.execution.best_first import BestFirst
from trainwright.execution.budget import Journal, Progress
from trainwright.model import Phase
from trainwright.plans.status import Status
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Indices

SAFE: Final = 1.0 - 1e-9
SLACK: Final = 1e-9  # of numbers of blocks, before they are rounded up
_CHUNK: Final = 4096  # designs priced at once, which bounds memory
_RATIOS: Final = (0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
_STEPS: Final = 2  # more blocks in the longest rank that are tried one by one
_SHARE: Final = 0.3  # of forward in forward and backward, from where on it is bounded
_PROBED: Final = 6  # designs that are priced in a system that is tried
_FIRST: Final = 512  # designs that are sought among before anything is known
_ROUNDS: Final = 3  # of all axes, one after the other, until none helps

_DOMAIN: Final = AXES.index("node_devices")
_OF_DOMAIN: Final = (AXES.index("node_gbytes_per_s"), AXES.index("topology"))

Place = tuple[int, ...]


# Seconds of a step that no plan of a design beats
# ------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Work:
    """A model at one tensor degree on designs, exchanges of its tensor group left out; [designs].

    `light_s` is a microbatch on all layers at the quickest option, `block_s` a block, `again_s`
    what recomputing one adds, `before_s` and `behind_s` the longest layer before and behind all
    blocks. Forward takes at most `_SHARE` of the time of any layers and `beyond_s`, or the share
    of a block if that is more. `ratio` bounds that of every design.
    """

    light_s: Floats
    block_s: Floats
    again_s: Floats
    update_s: Floats
    before_s: Floats
    behind_s: Floats
    forward_s: Floats
    beyond_s: Floats
    ratio: float = 0.0

    @classmethod
    def empty(cls, num_designs: int) -> _Work:
        """Of designs that nothing is known of."""
        names = [field.name for field in fields(cls) if field.name != "ratio"]
        return cls(**{name: np.full(num_designs, np.nan) for name in names})  # type: ignore[arg-type]


class _Ways(NamedTuple):
    """Data degrees and depths at one tensor degree and size of memory, what holds of each."""

    data: Indices
    depth: Indices
    microbatches: Floats
    longest: Floats  # least blocks of the longest rank, in those with activations
    repeated: Floats  # blocks that are recomputed at least


class StepBounds:
    """Bounds of one model with so many stacks; what they need of designs is estimated once."""

    def __init__(self, pricer: JobPricer, num_designs: int, most_devices: int) -> None:
        self.job = pricer.job
        self._pricer, self._most = pricer, most_devices
        self._work = {chain.tensor_degree: _Work.empty(num_designs) for chain in pricer.chains}
        self._joules = np.full(num_designs, np.nan)
        self._ways: dict[tuple[int, float, float], _Ways] = {}
        self._links: dict[tuple[int, int, float, float], dict[Phase, Floats]] = {}
        self._exchange: dict[tuple[int, float], dict[int, float]] = {}
        self._first: dict[tuple[int, float], dict[int, tuple[float, float]]] = {}

    def at_first(self, designs: Indices) -> Floats:
        """A bound on all devices that needs no estimate of a product, whatever the network is."""
        return self._pricer.ideal_bounds_s(designs) * SAFE

    def at_work(self, designs: Indices) -> Floats:
        """The same at the estimated times: all devices share the work of a step evenly."""
        each = [
            degree * self.job.num_microbatches * work.light_s[designs] / self._most
            for degree, work in self._work.items()
        ]
        return np.asarray(np.min(each, axis=0)) * SAFE

    def prepare(self, designs: Indices) -> None:
        """Estimate what is not known of designs yet."""
        some = next(iter(self._work.values())).light_s
        missing = designs[np.isnan(some[designs])]
        for start in range(0, missing.size, _CHUNK):
            self._estimate(missing[start : start + _CHUNK])

    def _estimate(self, designs: Indices) -> None:
        pairs = zip(self._pricer.chains, self._pricer.times(designs), strict=True)
        for chain, times in pairs:
            work, counts = self._work[chain.tensor_degree], chain.class_counts
            block = _block(chain)
            backward = times.backward_s.min(axis=1)
            layers_s = times.forward_s + backward
            heavy_s = times.backward_s.max(axis=1)[:, block] + times.forward_s[:, block]
            work.light_s[designs] = layers_s @ counts
            work.block_s[designs] = layers_s[:, block]
            work.again_s[designs] = heavy_s - layers_s[:, block]
            work.update_s[designs] = times.update_s @ counts
            before, behind = _ends(chain)
            work.before_s[designs] = layers_s[:, before].max(axis=1, initial=0.0)
            work.behind_s[designs] = layers_s[:, behind].max(axis=1, initial=0.0)
            others = np.where(np.arange(counts.size) == block, 0, counts)
            work.forward_s[designs] = times.forward_s[:, block]
            over_s = np.maximum(times.forward_s - _SHARE * layers_s, 0.0)
            work.beyond_s[designs] = over_s @ others
            work.ratio = max(work.ratio, float((layers_s[:, block] / heavy_s).max()))

    def steps_s(self, designs: Indices, systems: list[System], around: Surroundings) -> Floats:
        """No plan of a design is faster in any of `systems`, which differ in their domains alone.

        `around` is the most capable of them.
        """
        best = np.full(designs.size, np.inf)
        for chain in self._pricer.chains:
            if chain.tensor_degree > systems[0].devices:
                continue
            each = [self._exchanges(chain, system, around) for system in systems]
            links = {phase: np.min([one[phase] for one in each], axis=0) for phase in each[0]}
            for start in range(0, designs.size, _CHUNK):
                rows = slice(start, start + _CHUNK)
                found = self._at_degree(chain, designs[rows], links, around, systems[0].devices)
                best[rows] = np.minimum(best[rows], found)
        return best * SAFE

    def _exchanges(self, chain: Chain, system: System, around: Surroundings) -> dict[Phase, Floats]:
        inside, across = around.node_bandwidth_bytes_per_s, around.link_bandwidth_bytes_per_s
        key = (chain.tensor_degree, system.node_devices, inside, across)
        if key not in self._links:
            here = replace(around, node_devices=system.node_devices)
            self._links[key] = chain.collective_s(here)
        return self._links[key]

    def _at_degree(
        self,
        chain: Chain,
        designs: Indices,
        links: dict[Phase, Floats],
        around: Surroundings,
        devices: int,
    ) -> Floats:
        work, counts, block = self._work[chain.tensor_degree], chain.class_counts, _block(chain)
        both = links[Phase.FORWARD] + links[Phase.INPUT_GRAD] + links[Phase.WEIGHT_GRAD]
        forward = float(links[Phase.FORWARD][block])
        again = forward if Recompute.FULL in chain.recompute else 0.0
        lone = Recompute.NONE not in chain.recompute  # every block is recomputed, always
        both = both + np.where(chain.repeats, links[Phase.FORWARD], 0.0) if lone else both
        again = 0.0 if lone or len(chain.recompute) == 1 else again
        light_s = work.light_s[designs] + float(both @ counts)
        block_s = work.block_s[designs] + float(both[block])
        again_s = work.again_s[designs] + again
        # A mediant lies between the fractions that it is of.
        own = float(both[block])
        ratio = max(work.ratio, own / (own + again) if own else 0.0)
        ways = self._ways_of(chain, around, next(r for r in _RATIOS if r >= min(ratio, 1.0)))
        kept = np.isfinite(ways.longest)
        kept &= ways.data * ways.depth * chain.tensor_degree <= devices
        if not kept.any():
            return np.full(designs.size, np.inf)
        data, depth = ways.data[kept], ways.depth[kept]
        m, longest, repeated = ways.microbatches[kept], ways.longest[kept], ways.repeated[kept]
        exchange = self._exchange_s(chain, around)
        after = np.array([exchange[d] for d in data.tolist()])
        p_, m_ = depth[:, None], m[:, None]
        # The ends: (p-2)·⌊x⌋ + ⌊x-a⌋ + ⌊x-b⌋ blocks fit ranks of x blocks' time, so x is at least
        # the least number past (blocks + a + b) / p at which one of the three grows.
        a, b = work.before_s[designs] / block_s, work.behind_s[designs] / block_s
        even = (float(counts[block]) + a + b) / depth[:, None]
        grown = np.minimum(np.ceil(even - SLACK), np.ceil(even - a - SLACK) + a)
        grown = np.minimum(grown, np.ceil(even - b - SLACK) + b)
        grown = np.where(depth[:, None] > 1, np.maximum(grown, np.maximum(a, b)), 0.0)
        rank_s = np.maximum(longest[:, None], grown) * block_s
        all_s = light_s + repeated[:, None] * again_s
        found = m[:, None] * rank_s
        sent_s = 2.0 * (depth - 1.0) * float(chain.transfer_s(around).min())
        there_s = all_s + sent_s[:, None]
        rounds = np.ceil(m / np.minimum(depth, m))
        np.maximum(found, rounds[:, None] * there_s, out=found)
        others = np.where(np.arange(counts.size) == block, 0, counts)
        beyond_s = work.beyond_s[designs] + float(links[Phase.FORWARD] @ others)
        share = np.maximum((work.forward_s[designs] + forward) / block_s, _SHARE)
        warm_up = np.minimum(p_, m_) - 1.0
        filled = m_ - 1.0 - share * warm_up
        first = self._first_rank_s(chain, around)
        starts, slopes = (np.array([first[d][i] for d in data.tolist()])[:, None] for i in (0, 1))
        ramp = _with_first_rank(
            rank_s / block_s, filled * block_s, slopes, b, blocks=float(counts[block]), depth=p_
        )
        ramp += there_s - warm_up * beyond_s + starts
        ramp = np.where((filled >= 0) & (p_ > 1), ramp, 0.0)
        # The ends of all ranks together: S is least where the first ranks have all that they may.
        after_s = after[:, None] + work.update_s[designs] / data[:, None]
        shared = m[:, None] * all_s + after_s + (0.75 * depth * sent_s)[:, None]
        most_s = (shared + all_s * (p_ - 1.0) / 2.0) / p_ / m[:, None]
        full = np.minimum(np.floor(all_s / most_s), p_ - 1.0)
        shared += most_s * full * (full - 1.0) / 2.0 + (all_s - most_s * full) * full
        np.maximum(found, ramp, out=found)
        np.maximum(found, shared / depth[:, None], out=found)
        return np.asarray(found.min(axis=0))

    def _exchange_s(self, chain: Chain, around: Surroundings) -> dict[int, float]:
        key = (chain.tensor_degree, around.link_bandwidth_bytes_per_s)
        if key not in self._exchange:
            total, nothing = chain.sync_bytes @ chain.class_counts, np.zeros(())
            self._exchange[key] = {
                d: float(Replication.over(d, around).least_exposed_s(total, nothing, nothing))
                for d in self.job.data_degrees.tolist()
            }
        return self._exchange[key]

    def _first_rank_s(self, chain: Chain, around: Surroundings) -> dict[int, tuple[float, float]]:
        """What the first rank exchanges at least after a step: without a block, and for each."""
        key = (chain.tensor_degree, around.link_bandwidth_bytes_per_s)
        if key not in self._first:
            before, _ = _ends(chain)
            own, nothing = float(chain.sync_bytes[before].sum()), np.zeros(())
            each = float(chain.sync_bytes[_block(chain)])
            found = {}
            for d in self.job.data_degrees.tolist():
                exposed = Replication.over(d, around).least_exposed_s
                some = float(exposed(np.asarray(own + each), nothing, nothing))
                more = float(exposed(np.asarray(own + 2.0 * each), nothing, nothing))
                found[d] = (max(2.0 * some - more, 0.0), more - some)
            self._first[key] = found
        return self._first[key]

    def _ways_of(self, chain: Chain, around: Surroundings, ratio: float) -> _Ways:
        key = (chain.tensor_degree, around.memory_bytes, ratio)
        if key not in self._ways:
            self._ways[key] = _ways(chain, self.job.data_degrees, around, ratio, self._most)
        return self._ways[key]

    def joules(self, designs: Indices) -> Floats:
        """No plan of a step spends less beside what chips draw whatever they do."""
        missing = designs[np.isnan(self._joules[designs])]
        if missing.size:
            self._joules[missing] = self._pricer.least_joules(missing) * SAFE
        return self._joules[designs]


def _with_first_rank(
    longest: Floats, each_s: Floats, slopes: Floats, b: Floats, *, blocks: float, depth: Indices
) -> Floats:
    """Least seconds of the longest rank and the exchange of the first, over how blocks are dealt.

    With x blocks' time in the longest rank, at `each_s` a block, all others but the first hold
    (p-2)·⌊x⌋ + ⌊x-b⌋ at most, and the first, which exchanges `slopes` for each, what is left. The
    least is at `longest` or where one of the others may hold another block.
    """

    def at(x: Floats) -> Floats:
        held = (depth - 2.0) * np.floor(x + SLACK) + np.maximum(np.floor(x - b + SLACK), 0.0)
        left: Floats = each_s * x + slopes * np.maximum(blocks - held, 0.0)
        return left

    least = at(longest)
    for step in range(1, _STEPS + 1):
        np.minimum(least, at(np.floor(longest) + step), out=least)
        np.minimum(least, at(np.floor(longest - b) + step + b), out=least)
    last = np.minimum(np.floor(longest), np.floor(longest - b) + b) + _STEPS + 1.0
    return np.minimum(least, each_s * last)


def _ends(chain: Chain) -> tuple[list[int], list[int]]:
    """Classes of the layers before all blocks, and behind them."""
    layers = chain.layer_class.tolist()
    first, last = layers.index(_block(chain)), layers[::-1].index(_block(chain))
    return layers[:first], layers[len(layers) - last :]


def _block(chain: Chain) -> int:
    return int(np.argmax(chain.class_counts))


def _ways(
    chain: Chain, degrees: Indices, around: Surroundings, ratio: float, devices: int
) -> _Ways:
    """Every data degree and depth, with what memory says of the longest rank."""
    blocks, block = int(chain.class_counts.max()), _block(chain)
    layers, t = len(chain.graph.layers), chain.tensor_degree
    light = int(np.argmin([mode is Recompute.FULL for mode in chain.recompute]))
    heavy = int(np.argmax([mode is Recompute.FULL for mode in chain.recompute]))
    whole = np.arange(1, blocks + 1, dtype=np.float64)
    times = np.unique(np.concatenate((whole, whole / ratio)))
    rows: list[tuple[float, ...]] = []
    for d in degrees.tolist():
        most = min(layers, devices // (t * d))
        replication = Replication.over(d, around)
        state = float(replication.layer_bytes(chain.static_bytes)[block])
        m = int(degrees.max()) // d
        kept = np.minimum(np.arange(1, max(most, 1) + 1), m)
        room = around.memory_bytes - replication.beside_bytes

        def held(
            option: int, kept: Indices = kept, state: float = state, room: float = room
        ) -> Floats:
            free = room - chain.transient_bytes[option, block]
            most = np.floor(free / (state + kept * chain.saved_bytes[option, block]))
            return np.asarray(np.maximum(most, 0.0))

        with_all, repeated = held(light), held(heavy)
        if heavy == light:
            repeated = np.zeros_like(with_all)
        for p in range(1, most + 1):
            has, redoes = with_all[:p], repeated[:p]
            if np.maximum(has, redoes).sum() < blocks:
                continue
            low, high = 0, times.size - 1
            while low < high:
                middle = (low + high) // 2
                x = times[middle] * (1 + 1e-12)
                fit = np.maximum(
                    np.minimum(has, np.floor(x)), np.minimum(redoes, np.floor(x * ratio))
                )
                low, high = (low, middle) if fit.sum() >= blocks else (middle + 1, high)
            rows.append((d, p, m, times[low], max(0.0, blocks - float(has.sum()))))
    columns = np.array(rows, dtype=np.float64).reshape(-1, 5).T
    data, depth = (column.astype(np.int64) for column in columns[:2])
    return _Ways(data, depth, *columns[2:])


# Boxes of systems, and the search
# --------------------------------


class Box(NamedTuple):
    """Places of the least and of the most capable system, both among its own."""

    low: Place
    high: Place

    @property
    def is_single(self) -> bool:
        """Whether it is one system."""
        return self.low == self.high

    def proper(self, room: Room) -> Box | None:
        """The box without what a domain of one chip has no use for; None if nothing is left.

        Such a domain has no links, so the least value of its axes stands for all of them.
        """
        if room.node_devices[self.high[_DOMAIN]] > 1:
            return self
        if any(self.low[axis] for axis in _OF_DOMAIN):
            return None
        high = tuple(0 if axis in _OF_DOMAIN else at for axis, at in enumerate(self.high))
        return Box(self.low, high)

    def halves(self, axis: int) -> tuple[Box, Box]:
        """Both parts of it, cut in the middle of an axis."""
        middle = (self.low[axis] + self.high[axis]) // 2
        below = (*self.high[:axis], middle, *self.high[axis + 1 :])
        above = (*self.low[:axis], middle + 1, *self.low[axis + 1 :])
        return Box(self.low, below), Box(above, self.high)


Designs = dict[int, "Indices"]  # by stacks of memory


def designs_of(text: str) -> Indices:
    """Numbers from ranges, "3-7,12"."""
    parts = [tuple(map(int, part.split("-"))) for part in text.split(",")] if text else []
    every = [np.arange(part[0], part[-1] + 1) for part in parts]
    return np.concatenate(every) if every else np.zeros(0, dtype=np.int64)


def ranges_of(rows: Indices) -> str:
    """Rising numbers as ranges."""
    cuts = np.flatnonzero(np.diff(rows) > 1) + 1
    runs = [(int(run[0]), int(run[-1])) for run in np.split(rows, cuts) if run.size]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def designs_from_json(ranges: Mapping[str, str]) -> Designs:
    """Designs by stacks of memory, as a journal or a certificate writes them."""
    return {int(stacks): designs_of(text) for stacks, text in ranges.items()}


def designs_to_json(designs: Designs) -> dict[str, str]:
    """The ranges of rising numbers by stacks of memory."""
    return {str(stacks): ranges_of(rows) for stacks, rows in designs.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A system with a design and its plans, and what it does and costs."""

    stacks: int
    place: Place
    design: int
    value: float
    plans: tuple[UniformPlan, ...]
    figures: tuple[float, ...]  # as `Figures` has them


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """What became of a box: where it was cut (None: closed), and which designs went on."""

    axis: int | None
    left: Designs


@dataclass(slots=True, kw_only=True)
class RoomOutcome:
    """The best system, the bound, and the tree of boxes that proves it, in order of visit.

    `tree` maps the path of a box (0 and 1 for the halves of every cut) to its closing.
    """

    status: Status
    best: Found | None
    lower_bound: float | None
    tree: dict[str, Closing]
    priced: int
    seen: list[Found] = field(default_factory=list)
    solver_s: float = 0.0


class RoomSearch:
    """One search; `gap` is how far from the best its answer may be."""

    def __init__(
        self,
        pricer: RoomPricer,
        *,
        aim: str,
        limits: Limits,
        gap: float,
        budget: Budget,
        journal: Journal | None = None,
    ) -> None:
        self.pricer, self.room, self.limits = pricer, pricer.room, limits
        self.journal = journal
        self.aim, self.gap, self.budget = aim, gap, budget
        question = pricer.question
        around = question.surroundings[0]
        for name in ("tensor_overlap", "gradient_overlap"):
            if getattr(around, name):
                raise InvalidInput.of(name.replace("_", "-"), "must be 0 in a machine room")
        size, most = len(question.space), max(self.room.devices)
        self._bounds = {
            stacks: tuple(StepBounds(one, size, most) for one in pricer.pricers(stacks))
            for stacks in self.room.stacks
        }
        self.best: Found | None = None
        self.closed = np.inf  # least bound of what was closed
        self.priced = 0
        self.seen: list[Found] = []
        self._ideal: dict[int, Floats] = {}

    @property
    def threshold(self) -> float:
        """Bounds from here on are of no interest."""
        return np.inf if self.best is None else self.best.value * (1.0 - self.gap)

    def run(self) -> RoomOutcome:
        """Search until the gap is proved, or the budget ends it."""
        start_s = self.budget.cpu_s
        everything = Box((0,) * len(AXES), tuple(size - 1 for size in self.room.sizes))
        designs = self._at_first(everything)
        if self.budget.stopped:  # a start that was cut short is not written down
            self.journal = None
        tree: dict[str, Closing] = {}
        waiting: BestFirst[tuple[str, Box, Designs]] = BestFirst()
        if any(rows.size for rows in designs.values()):
            waiting.add(0.0, ("", everything, designs), tie="")
        else:
            tree[""] = Closing(axis=None, left={})
        for _, (path, box, known) in waiting.opened(
            stopped=lambda: self.budget.poll(self._progress(waiting))
        ):
            closing, least = self._done(f"box:{path}", partial(self._cut_open, box, known))
            tree[path] = closing
            if closing.axis is None:
                continue
            halves = zip("01", box.halves(closing.axis), least, strict=True)
            for side, whole, bound in halves:
                half = whole.proper(self.room)
                if half is None:
                    tree[path + side] = Closing(axis=None, left={})
                else:
                    waiting.add(bound, (path + side, half, closing.left), tie=path + side)
        for _, (path, *_) in waiting:  # what was not opened is closed at its bound
            tree[path] = Closing(axis=None, left={})
        value = np.inf if self.best is None else self.best.value
        bound = min(value, self.closed, waiting.least)
        status = Status.GAP if self.best is not None else Status.UNKNOWN
        if not waiting and self.best is None:
            status = Status.INFEASIBLE
        elif bound >= value * (1.0 - 1e-9) and self.best is not None:
            status = Status.OPTIMAL
        return RoomOutcome(
            status=status,
            best=self.best,
            lower_bound=bound if np.isfinite(bound) else None,
            tree=tree,
            priced=self.priced,
            seen=self.seen,
            solver_s=self.budget.cpu_s - start_s,
        )

    def _cut_open(self, box: Box, known: Designs) -> tuple[Closing, tuple[float, ...]]:
        """A box opened, and the bounds by which its halves wait."""
        closing = self._open(box, known)
        if closing.axis is None:
            return closing, ()
        halves = [half.proper(self.room) for half in box.halves(closing.axis)]
        return closing, tuple(np.inf if h is None else self._least(h, closing.left) for h in halves)

    def _done(
        self, key: str, work: Callable[[], tuple[Closing, tuple[float, ...]]]
    ) -> tuple[Closing, tuple[float, ...]]:
        """What a part of the search comes to, from the journal where that has it."""
        if self.journal is None:
            return work()
        known = self.journal.find(key)
        if known is not None:
            self._take(known)
            left = designs_from_json(known["left"])
            return Closing(axis=known["axis"], left=left), tuple(known["least"])
        before = len(self.seen)
        closing, least = work()
        if not self.budget.stopped:
            ranges = {str(s): ranges_of(np.sort(rows)) for s, rows in closing.left.items()}
            made = {"axis": closing.axis, "left": ranges, "least": least}
            self.journal.append(key, made | self._news(before))
        return closing, least

    def _news(self, before: int) -> dict[str, Any]:
        """What has become known since so many systems were seen, as a journal keeps it."""
        seen = []
        for one in self.seen[before:]:
            plans = [plan_to_json(plan) for plan in one.plans]
            seen.append([one.stacks, one.place, one.design, one.value, one.figures, plans])
        return {"seen": seen, "closed": self.closed, "priced": self.priced}

    def _take(self, known: Mapping[str, Any]) -> None:
        """The same taken from there."""
        for stacks, place, design, value, figures, plans in known["seen"]:
            made = Found(
                stacks=stacks,
                place=tuple(place),
                design=design,
                value=value,
                plans=tuple(map(plan_from_json, plans)),
                figures=tuple(figures),
            )
            self._note(made)
        self.closed, self.priced = known["closed"], known["priced"]

    def _note(self, made: Found) -> None:
        self.seen.append(made)
        if self.best is None or made.value < self.best.value:
            self.best = made

    def _at_first(self, box: Box) -> Designs:
        """All designs, but for those that arithmetic alone rules out once something is known."""
        everything = {
            stacks: np.arange(len(self.pricer.question.space)) for stacks in self.room.stacks
        }
        for stacks, rows in everything.items():
            each = [one.at_first(rows) for one in self._bounds[stacks]]
            self._ideal[stacks] = np.stack(each, axis=1)
        known = None if self.journal is None else self.journal.find("begun")
        if known is None:
            self._find_something(box, everything)
            left = self._sift(box, everything)
        else:
            left = designs_from_json(known["left"])
        for stacks, rows in left.items():
            for model, one in enumerate(self._bounds[stacks]):
                one.prepare(rows)
                self._ideal[stacks][rows, model] = one.at_work(rows)
        if known is not None:
            self._take(known)
            return everything
        self._find_something(box, left)
        if self.journal is not None and not self.budget.stopped:
            begun = designs_to_json(left)
            self.journal.append("begun", {"left": begun} | self._news(0))
        return everything

    def _sift(self, box: Box, known: Designs) -> Designs:
        """Designs of a box that arithmetic alone does not rule out."""
        left = {}
        for stacks, rows in known.items():
            kept = self._keep(rows, self._values(box, stacks, rows, self._first(box, stacks, rows)))
            if kept.size:
                left[stacks] = kept
        return left

    def _first(self, box: Box, stacks: int, rows: Indices) -> Floats:
        devices = self.room.devices[box.high[0]]
        found: Floats = self._ideal[stacks][rows] * (max(self.room.devices) / devices)
        return found

    def _find_something(self, box: Box, designs: Designs) -> None:
        """A good system by changing one axis after another; what follows proves how good."""
        middle = tuple((a + b) // 2 for a, b in zip(box.low, box.high, strict=True))
        for start in (box.low, middle, box.high):
            stacks, place = self.room.stacks[len(self.room.stacks) // 2], start
            value = np.inf
            for _ in range(_ROUNDS):
                before = value
                few = {
                    each: self._promising(each, place, designs.get(each, np.arange(0)))
                    for each in self.room.stacks
                }
                for axis in range(-1, len(AXES)):
                    if self.budget.stopped:
                        return
                    for at in range(len(self.room.stacks) if axis < 0 else self.room.sizes[axis]):
                        here = self.room.stacks[at] if axis < 0 else stacks
                        there = place if axis < 0 else (*place[:axis], at, *place[axis + 1 :])
                        reached = self._probe(here, there, few[here])
                        if reached < value:
                            value, stacks, place = reached, here, there
                if not value < before * (1 - 1e-4):
                    break

    def _promising(self, stacks: int, place: Place, rows: Indices) -> Indices:
        """Designs that arithmetic alone would take in a system."""
        single = Box(place, place)
        first = self._first(single, stacks, rows)
        values = self._values(single, stacks, rows, first, limited=False)
        return rows[np.argsort(values, kind="stable")[:_FIRST]]

    def _probe(self, stacks: int, place: Place, designs: Indices) -> float:
        """The least value of the most promising designs in a system."""
        if not designs.size or not self.pricer.is_sound(stacks, self.room.system(place)):
            return np.inf
        box = Box(place, place)
        values = self._bound(box, stacks, designs)
        order = np.argsort(values, kind="stable")[:_PROBED]
        chosen = designs[order[values[order] < (np.inf if self.best is None else self.best.value)]]
        return self._price(stacks, place, chosen) if chosen.size else np.inf

    def _open(self, box: Box, known: Designs) -> Closing:
        """Bound the designs of a box; price them where it is one system, else say where to cut."""
        known = self._sift(box, known)
        if known and box.low[0] < box.high[0]:
            return Closing(axis=0, left=known)
        left: Designs = {}
        leading: tuple[float, int, int] | None = None
        for stacks, rows in known.items():
            values = self._bound(box, stacks, rows)
            kept = self._keep(rows, values)
            if kept.size:
                left[stacks] = kept
                first = int(np.argmin(values))
                if leading is None or values[first] < leading[0]:
                    leading = (float(values[first]), stacks, int(rows[first]))
        if leading is None:
            return Closing(axis=None, left={})
        if box.is_single:
            for stacks, rows in left.items():
                self._price_all(stacks, box.low, rows)
            return Closing(axis=None, left={})
        return Closing(axis=self._cut(box, leading[1], leading[2]), left=left)

    def _keep(self, rows: Indices, values: Floats) -> Indices:
        """Designs that may still be best; of the others the least bound is written down."""
        kept = values < self.threshold
        self.closed = min(self.closed, float(values[~kept].min(initial=np.inf)))
        return rows[kept]

    def _cut(self, box: Box, stacks: int, design: int) -> int:
        """The axis whose halves have the highest bounds for the most promising design."""
        one, best = np.array([design]), (-1.0, -1.0, -1)
        for axis, (low, high) in enumerate(zip(box.low, box.high, strict=True)):
            if low == high:
                continue
            found = [float(self._bound(half, stacks, one)[0]) for half in box.halves(axis)]
            best = max(best, (min(found), max(found), -axis))
        return -best[2]

    def _least(self, box: Box, designs: Designs) -> float:
        """The bound by which a box waits for its turn."""
        found = np.inf
        for stacks, rows in designs.items():
            if box.low[0] < box.high[0]:
                values = self._values(box, stacks, rows, self._first(box, stacks, rows))
            else:
                values = self._bound(box, stacks, rows)
            found = min(found, float(values.min(initial=np.inf)))
        return found

    def _bound(self, box: Box, stacks: int, designs: Indices) -> Floats:
        """No system of a box has a lower value, design by design."""
        return self._values(box, stacks, designs, self.steps_s(box, stacks, designs))

    def steps_s(self, box: Box, stacks: int, designs: Indices) -> Floats:
        """Steps [n, models] that no system of a box is faster than."""
        around = self.pricer.surroundings(stacks, self.room.system(box.high))
        sizes = self.room.node_devices[box.low[_DOMAIN] : box.high[_DOMAIN] + 1]
        systems = [self.room.system(box.high)._replace(node_devices=size) for size in sizes]
        steps_s = np.empty((designs.size, len(self._bounds[stacks])))
        for model, one in enumerate(self._bounds[stacks]):
            one.prepare(designs)
            steps_s[:, model] = one.steps_s(designs, systems, around)
        return steps_s

    def _values(
        self, box: Box, stacks: int, designs: Indices, steps_s: Floats, *, limited: bool = True
    ) -> Floats:
        """What the aim is at least, with these steps and the least price and power of a box."""
        joules = np.zeros_like(steps_s)
        if self.aim == "energy" and limited:
            joules = np.stack([one.joules(designs) for one in self._bounds[stacks]], axis=1)
        low = self.room.system(box.low)
        figures = self.pricer.figures(stacks, low, designs, steps_s, joules)
        kept = self.limits.kept(figures) if limited else np.ones(designs.size, dtype=np.bool_)
        return np.where(kept, figures.of(self.aim) * SAFE, np.inf)

    def _price_all(self, stacks: int, place: Place, designs: Indices) -> None:
        if not self.pricer.is_sound(stacks, self.room.system(place)):
            return
        limit = self.threshold
        self.closed = min(self.closed, limit, self._price(stacks, place, designs))

    def _cutoffs_s(self, stacks: int, place: Place, designs: Indices) -> Floats | None:
        """Steps of each model above which a design is beaten, be the other models at their bounds.

        Time and cost go with the weighted product of steps, so it is as far as the bound.
        """
        question = self.pricer.question
        combined = question.objective is Objective.GEOMETRIC or len(question.jobs) == 1
        if self.aim == "energy" or self.best is None or not combined:
            return None
        box = Box(place, place)
        steps_s = self.steps_s(box, stacks, designs)
        values = self._values(box, stacks, designs, steps_s, limited=False)
        away = np.maximum(self.best.value / values, 1.0)[:, None] ** (1.0 / question.weights)
        found: Floats = steps_s * away * (1.0 + 1e-6)
        return found

    def _price(self, stacks: int, place: Place, designs: Indices) -> float:
        """Price designs in a system; the least value within the limits, the best is kept."""
        cutoffs_s = self._cutoffs_s(stacks, place, designs)
        figures, plans = self.pricer.price(stacks, self.room.system(place), designs, cutoffs_s)
        self.priced += designs.size
        values = np.where(self.limits.kept(figures), figures.of(self.aim), np.inf)
        for row in np.flatnonzero(np.isfinite(values)).tolist():
            chosen = plans[row]
            assert chosen is not None
            made = Found(
                stacks=stacks,
                place=place,
                design=int(designs[row]),
                value=float(values[row]),
                plans=chosen,
                figures=tuple(float(column[row]) for column in figures),
            )
            self._note(made)
        return float(values.min(initial=np.inf))

    def _progress(self, waiting: BestFirst[Any]) -> Progress:
        return Progress(
            stage=f"machine room, {len(waiting)} boxes open, {self.priced} systems priced",
            elapsed_s=self.budget.elapsed_s,
            best=np.inf if self.best is None else self.best.value,
            lower_bound=min(waiting.least, self.closed),
        )
