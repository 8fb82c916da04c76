"""The machine room: what stands around chips as variables, with its price and its power.

A system is a design with `stacks` of memory, and values of the axes of a `Room`: number of devices,
size of a stack, size, bandwidth and topology of a scale-up domain, network cards of a chip, and
oversubscription of the network above. Values of an axis are ordered from least to most capable: a
later one never costs less, and never slows a given plan, but for the size of a domain, whose links
may start later than those between. On that the bounds of `room_search` rest.

    price = devices · (die + package + stacks + domain links + cards and ports + host
                       + facility · watts)
    rate  = price / lifetime + watts · load · overhead · price of a joule        dollars a second
    cost  = rate · step / tokens

Watts are rated: the hungriest operator of any model, idle memory, links, cards, ports, the host.
Constants stand in `technology.toml`, which says what is assumed. Plans are uniform ones under 1F1B.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from trainwright.chips.plans import UniformPlan, steps_of
from trainwright.chips.price import EnergyTable, JobPricer
from trainwright.chips.request import CodesignQuestion, Objective, Variant, cost
from trainwright.chips.technology import (
    MemoryKind,
    Technology,
    memory_kinds,
    read_technology,
    room_defaults,
    technology_tables,
    with_losses,
)
from trainwright.cluster import Calibration, Surroundings
from trainwright.errors import Fault, InvalidInput, one_of, refuse
from trainwright.formats.atomic_file import read_toml
from trainwright.formats.codesign_document import RoomRecord
from trainwright.formats.records import (
    AMOUNT,
    POSITIVE,
    TEXT,
    array_schema,
    closed,
    object_schema,
    suits,
    titled,
)
from trainwright.units import GIB

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Indices

AXES: Final = (
    "devices",
    "stack_gib",
    "node_devices",
    "node_gbytes_per_s",
    "topology",
    "cards",
    "oversubscription",
)
AIMS: Final = ("time", "cost", "energy")
USUAL_MEMORY: Final = "hbm3"  # of a room that names none
_GB: Final = 1e9


class Room(RoomRecord):
    """Values of every axis, as a document carries them, and the systems they make."""

    __slots__ = ()

    @property
    def kind(self) -> MemoryKind:
        """A stack of the room's memory."""
        return MemoryKind(**self.stack) if self.stack else memory_kinds()[self.memory]

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many values each of `AXES` has."""
        return tuple(len(getattr(self, name)) for name in AXES)

    def system(self, place: tuple[int, ...]) -> System:
        """The values at a place of every axis."""
        return System(*(getattr(self, name)[at] for name, at in zip(AXES, place, strict=True)))


class System(NamedTuple):
    """One value of each axis."""

    devices: int
    stack_gib: float
    node_devices: int
    node_gbytes_per_s: float
    topology: str
    cards: float
    oversubscription: float


def read_room(path: Path | None, *, devices: int, made_of: Technology | None = None) -> Room:
    """The axes and prices of a TOML file, usual ones where it (or None) says nothing.

    What `made_of` says of a room goes before. Without a list of devices there are `devices`, a
    half, a quarter and an eighth of them. Raises `InvalidInput` with everything that is wrong.
    """
    made_of = read_technology(None) if made_of is None else made_of
    stated = {} if path is None else read_toml(path, name="room")
    usual = dict(room_defaults())
    refuse(_faults(stated, usual, made_of.memories))
    own = {**made_of.room, **({"prices": made_of.prices} if made_of.prices else {})}
    refuse(_faults(own, usual, made_of.memories))
    both = {**stated.get("prices", {}), **own.get("prices", {})}
    stated = {**stated, **own, "prices": both}
    prices = {**usual.pop("prices"), **stated.pop("prices", {})}
    counts = sorted({max(1, devices // part) for part in (8, 4, 2, 1)})
    memory = made_of.memory or USUAL_MEMORY
    values = {"devices": counts, "memory": memory, **usual, **stated}
    ordered = {name: _ordered(name, values[name]) for name in (*AXES, "stacks")}
    numbers = {name: float(value) for name, value in prices.items()}
    kind = made_of.memories[values["memory"]]
    stack = {each.name: float(getattr(kind, each.name)) for each in fields(kind)}
    return Room(**ordered, memory=values["memory"], prices=numbers, stack=stack)


def _ordered(name: str, values: list[Any]) -> tuple[Any, ...]:
    if name == "topology":
        return tuple(kind for kind in ("torus", "switch") if kind in values)
    numbers = map(int, values) if _VALUES[name] is _COUNTED else values
    return tuple(sorted(set(numbers), reverse=name == "oversubscription"))


_LARGEST: Final = {"exclusiveMaximum": 1e30}
_ABOVE_0: Final = {**POSITIVE, **_LARGEST}
_COUNTED: Final = ("whole numbers > 0", {**_ABOVE_0, "type": "integer"})
# What the values of a list must be, in words, and the schema of one of them.
_VALUES: Final = {
    "devices": _COUNTED,
    "stacks": _COUNTED,
    "stack_gib": ("numbers > 0", _ABOVE_0),
    "node_devices": _COUNTED,
    "node_gbytes_per_s": ("numbers > 0", _ABOVE_0),
    "topology": ("torus and switch", {"enum": ["torus", "switch"]}),
    "cards": ("numbers > 0", _ABOVE_0),
    "oversubscription": ("numbers >= 1", {"type": "number", "minimum": 1, **_LARGEST}),
}
_PRICE: Final = ("a number >= 0", {**AMOUNT, **_LARGEST})
_SHARE: Final = ("a number from 0 to 1", {**AMOUNT, "maximum": 1})
_OF_PRICE: Final = {"torus_price_share": _SHARE, "torus_bandwidth_share": _SHARE}


def room_tables() -> dict[str, Any]:
    """The schema of each key of a file."""
    prices = {name: _OF_PRICE.get(name, _PRICE)[1] for name in room_defaults()["prices"]}
    lists = {name: array_schema(schema, least=1) for name, (_, schema) in _VALUES.items()}
    return {**lists, "memory": TEXT, "prices": closed(object_schema({}, prices))}


def room_schema() -> dict[str, Any]:
    """The JSON Schema of a file of `--room`."""
    about = "Axes of a machine room and its prices, as TOML is read; usual values where absent."
    return titled("trainwright room", _described(about, room_tables()))


def technology_schema() -> dict[str, Any]:
    """The JSON Schema of a file of `--technology`, which may state a room and its prices, too."""
    about = "What chips are made of, as TOML is read; usual values where absent."
    room = room_tables()
    own = {"room": closed(object_schema({}, room)), "prices": room["prices"]}
    tables = {**technology_tables(), **own}
    return titled("trainwright technology", _described(about, tables))


def _described(about: str, tables: dict[str, Any]) -> dict[str, Any]:
    return {"description": about, **closed(object_schema({}, tables))}


def _faults(
    stated: Mapping[str, Any], usual: Mapping[str, Any], memories: Mapping[str, MemoryKind]
) -> Iterator[Fault]:
    known = (*_VALUES, "memory", "prices")
    for name, values in stated.items():
        if name not in known:
            yield Fault(name, f"is not a known key; there are {', '.join(known)}")
        elif name == "memory":
            if not (isinstance(values, str) and values in memories):
                yield Fault(name, one_of(memories, values))
        elif name == "prices":
            yield from _price_faults(values, usual["prices"])
        else:
            wanted, schema = _VALUES[name]
            if not suits(values, array_schema(schema, least=1)):
                yield Fault(name, f"must be a list of {wanted}, got {values!r}")


def _price_faults(stated: object, usual: Mapping[str, float]) -> Iterator[Fault]:
    if not isinstance(stated, dict):
        yield Fault("prices", "must be a table")
        return
    for name, value in stated.items():
        wanted, schema = _OF_PRICE.get(name, _PRICE)
        if name not in usual:
            yield Fault(f"prices.{name}", f"is not a known key; there are {', '.join(usual)}")
        elif not suits(value, schema):
            yield Fault(f"prices.{name}", f"must be {wanted}, got {value!r}")


# What a system costs and draws, part by part, of one chip
# --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Dollars and watts of a chip's share of a system beside its die; no later value is less."""

    dollars: Mapping[str, float]
    watts: Mapping[str, float]

    @classmethod
    def of(cls, room: Room, stacks: int, system: System) -> Bill:
        """The parts of one chip with `stacks` of memory."""
        p, kind = room.prices, room.kind
        share = system.stack_gib / kind.stack_gib
        rate, reach = system.node_gbytes_per_s * _GB, _reach(room, system.node_devices)
        plain = p["torus_price_share"] if system.topology == "torus" else 1.0
        ports = 1.0 + 2.0 / system.oversubscription
        links = ("", 0.0, 0.0) if reach is None else reach
        return cls(
            dollars={
                "package": p.get("package_price", 0.0),
                "memory": stacks * kind.stack_price * share,
                "domain links": plain * links[1] * rate,
                "cards": system.cards * p["card_price"],
                "network ports": system.cards * ports * p["port_price"],
                "host": p["host_price"],
            },
            watts={
                "idle memory": stacks * kind.stack_watts * p["stack_idle_share"] * share,
                "domain links": plain * links[2] * rate,
                "cards": system.cards * p["card_watts"],
                "network ports": system.cards * ports * p["port_watts"],
                "host": p["host_watts"],
            },
        )


def _reach(room: Room, size: int) -> tuple[str, float, float] | None:
    """How far links of a domain of `size` chips reach: dollars and joules of a byte per second."""
    p = room.prices
    if size == 1:
        return None
    word = "board" if size <= p["reach_board"] else "rack" if size <= p["reach_rack"] else "row"
    return word, p[f"{word}_price_per_byte_per_s"], p[f"{word}_joules_per_byte"]


class Figures(NamedTuple):
    """What a system does and costs, arrays over designs: seconds, dollars and joules of a token.

    `pace_s` is the step time over its tokens, of several models as their objective combines them;
    `watts` and `dollars` are of the whole system, `silicon_mm2` of all its dies.
    """

    pace_s: Floats
    cost: Floats
    energy_j: Floats
    watts: Floats
    dollars: Floats
    silicon_mm2: Floats

    def of(self, aim: str) -> Floats:
        """The figure that an aim minimises."""
        return {"time": self.pace_s, "cost": self.cost, "energy": self.energy_j}[aim]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Budgets of a whole system, absent where there is none."""

    dollars: float | None = None
    watts: float | None = None
    silicon_mm2: float | None = None

    def kept(self, figures: Figures) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which designs keep to all of them."""
        kept = np.ones(figures.pace_s.size, dtype=np.bool_)
        for field in fields(self):
            limit = getattr(self, field.name)
            if limit is not None:
                kept &= getattr(figures, field.name) <= limit
        return kept


# Systems priced exactly: the fastest plans of every model, and what they cost
# -----------------------------------------------------------------------------


class RoomPricer:
    """Designs with stacks of memory in the systems of a room; products are estimated once."""

    def __init__(self, question: CodesignQuestion, room: Room, losses: Calibration | None) -> None:
        if question.energy.idle_watts not in (0.0, EnergyTable().idle_watts):
            problem = "must not be given where whole systems are sought: prices.stack_idle_share is"
            raise InvalidInput.of("energy.idle_watts", problem)
        # What memory draws while it waits is on the bill, by its stacks.
        question = replace(question, energy=replace(question.energy, idle_watts=0.0))
        self.question, self.room = question, room
        # Cards lose what a network between nodes loses, however large a domain is.
        raw = replace(question.surroundings[0], node_devices=2)
        self._base = with_losses(raw, losses)
        self._usable = self._base.memory_bytes / raw.memory_bytes
        self._size, self._precision = question.microbatch_sizes[0], question.precisions[0]
        self.tokens = np.array([job.tokens_per_step for job in question.jobs], dtype=np.float64)
        here = self.variant(self._base)
        self.energy = question.energy_of(here)
        self.die_mm2 = question.dies_mm2(here, np.arange(len(question.space)))
        prices = [question.die.cost_per_good_die(area) for area in self.die_mm2.tolist()]
        self.die_price = np.array(prices)
        self._pricers: dict[int, tuple[JobPricer, ...]] = {}
        self._watts: dict[int, Floats] = {}
        self._standing: tuple[tuple[int, System], tuple[JobPricer, ...]] | None = None

    def variant(self, around: Surroundings) -> Variant:
        """What the chips of the room share, in what stands around them."""
        return self.question.variant(around, self._size, self._precision)

    def surroundings(self, stacks: int, system: System) -> Surroundings:
        """What a chip stands in; a torus has a part of its links for a group in one dimension."""
        p, kind = self.room.prices, self.room.kind
        torus = p["torus_bandwidth_share"] if system.topology == "torus" else 1.0
        return replace(
            self._base,
            memory_bytes=stacks * system.stack_gib * GIB * self._usable,
            memory_bandwidth_bytes_per_s=stacks * kind.stack_bytes_per_s,
            node_devices=system.node_devices,
            node_bandwidth_bytes_per_s=system.node_gbytes_per_s * _GB * torus,
            link_bandwidth_bytes_per_s=self.link_bandwidth(system),
        )

    def link_bandwidth(self, system: System) -> float:
        """Of a chip over its cards, as far as the network above is not oversubscribed."""
        return system.cards * self.room.prices["card_bytes_per_s"] / system.oversubscription

    def is_sound(self, stacks: int, system: System) -> bool:
        """Whether links inside a domain are no slower than those between; else none is sought."""
        around = self.surroundings(stacks, system)
        inside = around.node_bandwidth_bytes_per_s * around.node_efficiency
        across = around.link_bandwidth_bytes_per_s * around.link_efficiency
        return inside >= across or system.node_devices == 1

    def pricers(self, stacks: int) -> tuple[JobPricer, ...]:
        """One pricer per model with so much memory, in a network without any delay."""
        if stacks not in self._pricers:
            bandwidth = stacks * self.room.kind.stack_bytes_per_s
            around = replace(
                self._base,
                memory_bandwidth_bytes_per_s=bandwidth,
                node_devices=1 << 20,
                node_bandwidth_bytes_per_s=1e40,
                link_bandwidth_bytes_per_s=1e40,
                node_latency_s=0.0,
                link_latency_s=0.0,
            )
            variant = self.variant(around)
            question = replace(self.question, num_devices=max(self.room.devices))
            jobs = question.jobs_of(variant)
            self._pricers[stacks] = tuple(JobPricer(job, variant, question) for job in jobs)
        return self._pricers[stacks]

    def standing(self, stacks: int, system: System) -> tuple[JobPricer, ...]:
        """The same in a system, with its memory and links; the last one is kept."""
        if self._standing is None or self._standing[0] != (stacks, system):
            around, made = self.surroundings(stacks, system), []
            for pricer in self.pricers(stacks):
                made.append(copy.copy(pricer))
                made[-1].move(around, system.devices)
            self._standing = (stacks, system), tuple(made)
        return self._standing[1]

    def chip_watts(self, stacks: int, designs: Indices) -> Floats:
        """Rated watts of chips: the hungriest operator of any model."""
        known = self._watts.setdefault(stacks, np.full(len(self.question.space), np.nan))
        missing = designs[np.isnan(known[designs])]
        if missing.size:
            each = [pricer.hungriest_watts(missing) for pricer in self.pricers(stacks)]
            known[missing] = np.max(each, axis=0)
        return known[designs]

    def pace_s(self, steps_s: Floats) -> Floats:
        """Seconds of a token from step times [n, models], as the objective combines models."""
        if steps_s.shape[1] == 1:
            return np.asarray(steps_s[:, 0] / self.tokens[0])
        objective, weights = self.question.objective, self.question.weights
        objective = Objective.MEAN if objective is Objective.ARITHMETIC else objective
        return cost(objective, steps_s, scale_s=self.tokens, weights=weights)

    def figures(
        self,
        stacks: int,
        system: System,
        designs: Indices,
        steps_s: Floats,
        dynamic_j: Floats,
    ) -> Figures:
        """From step times and dynamic joules of a step [n, models] to what is minimised."""
        bill, p = Bill.of(self.room, stacks, system), self.room.prices
        chip_watts = self.chip_watts(stacks, designs) + sum(bill.watts.values())
        watts = chip_watts * p["overhead_of_power"] * system.devices
        per_chip = self.die_price[designs] + sum(bill.dollars.values())
        dollars = per_chip * system.devices + watts * p["facility_price_per_watt"]
        rate = dollars / p["lifetime_s"] + watts * p["load"] * p["electricity_price_per_joule"]
        pace_s = self.pace_s(steps_s)
        static = self.energy.static_watts(self.die_mm2[designs]) + sum(bill.watts.values())
        spent = dynamic_j + (static * system.devices)[:, None] * steps_s
        return Figures(
            pace_s=pace_s,
            cost=rate * pace_s,
            energy_j=(spent / self.tokens * self.question.weights).sum(axis=1)
            * p["overhead_of_power"],
            watts=watts,
            dollars=dollars,
            silicon_mm2=self.die_mm2[designs] * system.devices,
        )

    def price(
        self, stacks: int, system: System, designs: Indices, cutoffs_s: Floats | None = None
    ) -> tuple[Figures, list[tuple[UniformPlan, ...] | None]]:
        """Figures of designs with their fastest plans, infinite where one holds no model.

        `cutoffs_s` [n, models] are step times above which a plan is of no interest.
        """
        steps_s = np.full((designs.size, len(self.question.jobs)), np.inf)
        dynamic_j = np.zeros_like(steps_s)
        found: list[list[UniformPlan | None]] = []
        static = self.energy.static_watts(self.die_mm2[designs]) * system.devices
        for model, here in enumerate(self.standing(stacks, system)):
            limit = np.full(designs.size, np.inf) if cutoffs_s is None else cutoffs_s[:, model]
            plans = here.plans(here.times(designs), limit.copy()) if here.chains else []
            found.append(plans or [None] * designs.size)
            rows = np.array([i for i, plan in enumerate(plans) if plan is not None], dtype=np.int64)
            if not rows.size:
                continue
            chosen = [plan for plan in plans if plan is not None]
            steps_s[rows, model] = [plan.step_s for plan in chosen]
            spent_j = here.energies_j(designs[rows], chosen)
            dynamic_j[rows, model] = spent_j - static[rows] * steps_s[rows, model]
        figures = self.figures(stacks, system, designs, steps_s, np.maximum(dynamic_j, 0.0))
        together = [tuple(p for p in row if p is not None) for row in zip(*found, strict=True)]
        return figures, [row if len(row) == len(found) else None for row in together]

    def steps_s(self, stacks: int, system: System, designs: Indices) -> Floats:
        """Step times of the fastest plans, [n, models]."""
        found = np.full((designs.size, len(self.question.jobs)), np.inf)
        for model, here in enumerate(self.standing(stacks, system)):
            if here.chains:
                plans = here.plans(here.times(designs), np.full(designs.size, np.inf))
                found[:, model] = steps_of(plans)
        return found
