"""The request of `codesign`: from options to records, and from records to the question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from trainwright.chips.price import DEFAULT_ENERGY, EnergyTable, VoltageCurve
from trainwright.chips.space import (
    DEFAULT_RULES,
    FIELDS,
    NUMBER_FORMATS,
    PHAZE_AREAS,
    UM2_PER_MM2,
    AreaTable,
    DesignSpace,
    DieModel,
    Making,
    NumberFormat,
    SpaceRules,
    area_um2,
    enumerate_designs,
    number_format,
    subspace,
)
from trainwright.chips.technology import (
    NO_SOFTWARE,
    Technology,
    die_of,
    losses_of,
    read_technology,
    with_losses,
)
from trainwright.chips.workload import RECOMPUTE, SCHEDULES, TrainingJob, tensor_run
from trainwright.cluster import REFERENCE_DESIGN, Surroundings
from trainwright.cluster.calibration import TYPICAL
from trainwright.errors import Fault, InvalidInput, one_of, refuse
from trainwright.formats import codesign_document
from trainwright.formats.document_json import decode
from trainwright.model import TransformerConfig, count_parameters
from trainwright.options.inputs import resolve_model
from trainwright.options.option import Options
from trainwright.provenance import __version__
from trainwright.units import GIB, parse_hardware_bandwidth, parse_memory

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Indices


# What is searched: designs × what surrounds them × microbatch sizes, for one or several models
# ---------------------------------------------------------------------------------------------


class Objective(StrEnum):
    """How several models share one figure; with one model all of them are its step time.

    GEOMETRIC, MEAN and WORST are of throughputs relative to the reference design, REGRET is the
    largest loss against each model's own best design, ARITHMETIC the mean of raw throughputs (as
    PHAZE takes it, where small models dominate).
    """

    GEOMETRIC = "geometric"
    MEAN = "mean"
    WORST = "worst"
    REGRET = "regret"
    ARITHMETIC = "arithmetic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One choice of what a design stands in, of its multipliers and of the microbatch size."""

    surroundings: Surroundings
    microbatch_size: int
    precision: str = "bf16"
    number_format: NumberFormat | None = None  # the built-in one of that precision where absent

    @property
    def multiplies(self) -> NumberFormat:
        """What its multipliers take against those of bfloat16."""
        return self.number_format or number_format(self.precision)

    @property
    def making(self) -> Making:
        """What it means for the area of a design."""
        return making_of(self.surroundings, self.multiplies)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodesignQuestion:
    """The search, with its hard limits; `jobs` carry their own sequence, batch and degrees.

    `max_power_watts` limits the power of a chip while the hungriest operator of any model runs,
    `max_mean_watts` (a thermal design power) its mean over a step of the fastest plan. `energy` is
    at the nominal voltage of `curve`, or at one voltage for every clock where there is none; `die`
    is what dies have beside cores, in their process.
    """

    space: DesignSpace
    jobs: tuple[TrainingJob, ...]
    num_devices: int
    surroundings: tuple[Surroundings, ...]
    microbatch_sizes: tuple[int, ...] = (1,)
    precisions: tuple[str, ...] = ("bf16",)
    objective: Objective = Objective.GEOMETRIC
    energy: EnergyTable = DEFAULT_ENERGY
    max_power_watts: float | None = None
    max_mean_watts: float | None = None
    die: DieModel = field(default_factory=die_of)
    curve: VoltageCurve | None = None
    formats: Mapping[str, NumberFormat] = field(default_factory=lambda: dict(NUMBER_FORMATS))

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        for name in ("jobs", "surroundings", "microbatch_sizes", "precisions"):
            if not getattr(self, name):
                yield Fault(name, "must have at least 1 entry, got 0")
        if self.curve is not None:
            try:
                self.curve.volts_for(max((s.clock_hz for s in self.surroundings), default=1.0))
            except InvalidInput as error:
                yield from error.faults
        if self.num_devices < 1:
            yield Fault("devices", f"must be >= 1, got {self.num_devices}")
        if not len(self.space):
            yield Fault("space", "must admit at least 1 design; widen the area limits or ranges")
        limits = {"max_power": self.max_power_watts, "max_mean_power": self.max_mean_watts}
        for name, watts in limits.items():
            if watts is not None and not watts > 0:
                yield Fault(name, f"must be > 0, got {watts!r}")
        if self.jobs and not any(t <= self.num_devices for t in self.jobs[0].tensor_degrees):
            yield Fault("devices", f"must hold one tensor group, got {self.num_devices}")

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Every combination of surroundings, precision and microbatch size."""
        return tuple(
            self.variant(s, b, p)
            for s in self.surroundings
            for p in self.precisions
            for b in self.microbatch_sizes
        )

    def variant(self, around: Surroundings, microbatch_size: int, precision: str) -> Variant:
        """A variant in these surroundings, with multipliers as the question makes them."""
        return Variant(
            surroundings=around,
            microbatch_size=microbatch_size,
            precision=precision,
            number_format=self.formats.get(precision),
        )

    def energy_of(self, variant: Variant) -> EnergyTable:
        """What events draw at the clock and with the multipliers of a variant."""
        table = self.energy.multiplying(variant.multiplies.energy_factor).drawn()
        if self.curve is None:
            return table
        volts = self.curve.volts_for(variant.surroundings.clock_hz)
        return table.at_voltage(volts / self.curve.volts)

    def dies_mm2(self, variant: Variant, designs: Indices) -> Floats:
        """Whole dies of some designs under a variant."""
        areas_mm2 = subspace(self.space, designs).areas_um2_of(variant.making) / UM2_PER_MM2
        return np.asarray(self.die.die_area_mm2(areas_mm2))

    @property
    def weights(self) -> Floats:
        """Each model's share, summing to 1."""
        raw = np.array([job.weight for job in self.jobs])
        shares: Floats = raw / raw.sum()
        return shares

    def jobs_of(self, variant: Variant) -> tuple[TrainingJob, ...]:
        """The jobs at a variant's microbatch size and precision."""
        return tuple(
            replace(job, microbatch_size=variant.microbatch_size, precision=variant.precision)
            for job in self.jobs
        )

    def area_mm2(self, variant: int, design: int) -> float:
        """Area of one design under a variant."""
        one = subspace(self.space, np.array([design]))
        return float(one.areas_um2_of(self.variants[variant].making)[0]) / UM2_PER_MM2

    def areas_um2(self, variant: Variant) -> Floats:
        """Area of every design under a variant, with its multipliers and interfaces."""
        return self.space.areas_um2_of(variant.making)


def making_of(surroundings: Surroundings, multiplies: NumberFormat) -> Making:
    """How surroundings and multipliers change the area of a design."""
    return Making(
        mac_factor=multiplies.area_factor,
        interface_mm2=surroundings.interface_mm2,
    )


def cost(objective: Objective, steps_s: Floats, *, scale_s: Floats, weights: Floats) -> Floats:
    """What is minimised, from step times [n, models]; grows with each of them.

    `scale_s` are the step times of the reference (for REGRET each model's own best, for ARITHMETIC
    its samples per step). One model: its step time, in seconds.
    """
    if steps_s.shape[1] == 1:
        return steps_s[:, 0]
    ratios = steps_s / scale_s  # summed row by row: the same bits in batches of any size
    if objective is Objective.GEOMETRIC:
        found: Floats = np.exp((np.log(ratios) * weights).sum(axis=1))
    elif objective in (Objective.MEAN, Objective.ARITHMETIC):
        found = 1.0 / (weights / ratios).sum(axis=1)
    else:
        found = ratios.max(axis=1)
    return found


# What the chips of a co-design search stand in: every combination of the values it may choose
# --------------------------------------------------------------------------------------------

Quantity = str | float

USUAL_MEMORY: Final = "hbm2e"  # of stacks that nothing is said of


class _Memory(NamedTuple):
    size_bytes: float
    bandwidth_bytes_per_s: float
    interface_mm2: float


def surroundings_records(options: Options) -> tuple[codesign_document.SurroundingsRecord, ...]:
    """Every combination of the given values; what is not given takes its default."""
    made_of = _technology(options)
    base = replace(Surroundings(), **made_of.surroundings)
    nodes = listed(options.get("node_devices")) or (base.node_devices,)
    inside = _values(
        listed(options.get("node_bandwidth")),
        base.node_bandwidth_bytes_per_s,
        "node-bandwidth",
        parse_hardware_bandwidth,
    )
    links = _values(
        options.get("link_bandwidth"),
        base.link_bandwidth_bytes_per_s,
        "link-bandwidth",
        parse_hardware_bandwidth,
    )
    clocks = tuple(hz * made_of.clock_factor for hz in options.get("clock") or (base.clock_hz,))
    ports = tuple(options.get("buffer_port") or (base.glb_bytes_per_cycle,))
    return tuple(
        codesign_document.SurroundingsRecord.of(
            replace(
                base,
                clock_hz=clock,
                memory_bytes=memory.size_bytes,
                memory_bandwidth_bytes_per_s=memory.bandwidth_bytes_per_s,
                link_bandwidth_bytes_per_s=link,
                node_devices=size,
                node_bandwidth_bytes_per_s=node,
                interface_mm2=memory.interface_mm2,
                tensor_overlap=options.get("tensor_overlap") or 0.0,
                gradient_overlap=options.get("gradient_overlap") or 0.0,
                glb_bytes_per_cycle=port,
            )
        )
        for memory, link, clock, port, size in product(
            _memories(options, base), links, clocks, ports, nodes
        )
        for node in (inside if size > 1 else inside[:1])  # a node of one chip has no links inside
    )


def _technology(options: Options) -> Technology:
    found: Technology | None = options.get("technology")
    return read_technology(None) if found is None else found


def _memories(options: Options, base: Surroundings) -> Iterator[_Memory]:
    """Sizes with bandwidths, or numbers of stacks, which settle both."""
    sizes, paces = options.get("memory"), options.get("memory_bandwidth")
    stacks = options.get("stacks")
    if stacks is None:
        for size, pace in product(
            _values(sizes, base.memory_bytes, "memory", parse_memory),
            _values(
                paces,
                base.memory_bandwidth_bytes_per_s,
                "memory-bandwidth",
                parse_hardware_bandwidth,
            ),
        ):
            yield _Memory(size, pace, 0.0)
        return
    if sizes or paces:
        given = "memory" if sizes else "memory-bandwidth"
        raise InvalidInput.of(given, "must not be given: stacks settle memory and its bandwidth")
    made_of = _technology(options)
    kind = made_of.memories[made_of.memory or USUAL_MEMORY]
    usual = kind.stack_gib * GIB
    (size,) = _values(_one(options.get("stack_memory")), usual, "stack-memory", parse_memory)
    (pace,) = _values(
        _one(options.get("stack_bandwidth")),
        kind.stack_bytes_per_s,
        "stack-bandwidth",
        parse_hardware_bandwidth,
    )
    area = options.get("stack_area") or 0.0
    for count in stacks:
        if count < 1:
            raise InvalidInput.of("stacks", f"must be >= 1, got {count}")
        yield _Memory(count * size, count * pace, count * area)


def listed(value: Any) -> tuple[Any, ...]:
    """Values to choose from, of which Python may give one alone; none where it gives none."""
    if value is None:
        return ()
    return (value,) if isinstance(value, (str, int, float)) else tuple(value)


def _one(value: Quantity | None) -> Sequence[Quantity] | None:
    return None if value is None else (value,)


def _values(
    given: Sequence[Quantity] | None, default: float, name: str, parse: Callable[..., float]
) -> tuple[float, ...]:
    if not given:
        return (default,)
    return tuple(parse(v, name=name) if isinstance(v, str) else float(v) for v in given)


# The request of `codesign`: from options to records, and from records to the question
# ------------------------------------------------------------------------------------

DEFAULT_GLOBAL_BATCH: Final = 4096
_ROTARY_SEQUENCE: Final = 4096
_LARGE_MODEL: Final = 50e9
_LARGE_DEGREES: Final = (4, 8)
_DEGREES: Final = (1, 2, 4, 8)

RECOMPUTE_MODES: Final = ("none", "full")


def request_of(
    models: Sequence[str | Path] | str | Path, *, devices: int, options: Options
) -> tuple[codesign_document.CodesignRequest, tuple[str, ...]]:
    """The whole request with defaults filled in, and the warnings of reading the models."""
    names = [models] if isinstance(models, (str, Path)) else list(models)
    weights = options.get("weights")
    shares = [1.0] * len(names) if weights is None else list(weights)
    if len(shares) != len(names):
        raise InvalidInput.of("weights", f"must be {len(names)} numbers, got {len(shares)}")
    found = [job_record(name, options, weight=w) for name, w in zip(names, shares, strict=True)]
    made_of = _technology(options)
    least_share = options.get("least_area_share", made_of.least_area_share)
    watts = options.get("tdp")
    request = make_request(
        [record for record, _ in found],
        num_devices=devices,
        rules=rules_record(
            max_area_mm2=options.get("max_area"),
            least_share=least_share,
            ranges={**made_of.ranges, **(options.get("ranges") or {})},
            areas=made_of.areas,
        ),
        surroundings=surroundings_records(options),
        microbatch_sizes=options.get("micro_batch", (1,)),
        objective=options.get("objective", "geometric"),
        energy=options.get("energy"),
        max_power_watts=options.get("max_power"),
        precisions=options.get("precision") or ("bf16",),
        max_mean_watts=made_of.package_watts if watts is None else watts,
        software=options.get("software") or TYPICAL.name,
        like=options.get("like"),
        made_of=made_of,
        die=options.get("die"),
    )
    return request, tuple(note for _, notes in found for note in notes)


def job_record(
    model: str | Path, options: Options, *, weight: float
) -> tuple[codesign_document.JobRecord, tuple[str, ...]]:
    """A model with its workload, defaults filled in, and the warnings of reading it.

    The sequence is the largest power of two of learned positions, 4096 without any; tensor degrees
    are 4 and 8 from 50 billion parameters on, else 1, 2, 4 and 8, as far as the model can be cut.
    """
    given = resolve_model(model)
    config = given.config
    positions = config.max_positions or _ROTARY_SEQUENCE
    length = options.get("sequence") or 2 ** (positions.bit_length() - 1)
    degrees = tuple(options.get("tp") or ())
    if not degrees:
        wanted = _LARGE_DEGREES if count_parameters(config) >= _LARGE_MODEL else _DEGREES
        degrees = tuple(t for t in wanted if _can_be_cut(config, t, length)) or (1,)
    record = codesign_document.JobRecord(
        model=given.embedded,
        sequence_length=length,
        global_batch=options.get("global_batch") or DEFAULT_GLOBAL_BATCH,
        tensor_parallel=degrees,
        recompute=tuple(options.get("recompute", RECOMPUTE_MODES)),
        weight=weight,
        schedules=tuple(options.get("schedule") or SCHEDULES),
    )
    return record, given.warnings


def _can_be_cut(config: TransformerConfig, degree: int, length: int) -> bool:
    if length % degree:
        return False
    run = tensor_run(degree, microbatch_size=1, sequence_length=length)
    return not tuple(config.faults_at(run))


def rules_record(
    *,
    max_area_mm2: float | None,
    least_share: float | None,
    ranges: Mapping[str, Sequence[int]] | None = None,
    areas: AreaTable | None = None,
) -> codesign_document.RulesRecord:
    """The default space with other limits or ranges (by the template's names), or areas."""
    given = dict(ranges or {})
    unknown = [name for name in given if name not in FIELDS]
    if unknown:
        raise InvalidInput.of("ranges", one_of(FIELDS, unknown[0]))
    values: dict[str, Any] = asdict(DEFAULT_RULES)
    values |= {name: tuple(chosen) for name, chosen in given.items()}
    if areas is not None:
        values["largest_um2"] = area_um2(REFERENCE_DESIGN, areas)
    if max_area_mm2 is not None:
        if not max_area_mm2 > 0:
            raise InvalidInput.of("max-area", f"must be > 0, got {max_area_mm2!r}")
        values["largest_um2"] = max_area_mm2 * UM2_PER_MM2
    if least_share is not None:
        values["least_share"] = least_share
    return codesign_document.RulesRecord(**values)


def make_request(
    jobs: Sequence[codesign_document.JobRecord],
    *,
    num_devices: int,
    rules: codesign_document.RulesRecord,
    surroundings: tuple[codesign_document.SurroundingsRecord, ...],
    microbatch_sizes: Sequence[int],
    objective: str,
    energy: Mapping[str, float] | None,
    max_power_watts: float | None,
    precisions: Sequence[str] = ("bf16",),
    max_mean_watts: float | None = None,
    software: str = NO_SOFTWARE,
    like: str | None = None,
    made_of: Technology | None = None,
    die: Mapping[str, float] | None = None,
) -> codesign_document.CodesignRequest:
    """The request as the document carries it; raises `InvalidInput` for an unknown objective."""
    made_of = read_technology(None) if made_of is None else made_of
    if objective not in set(Objective):
        raise InvalidInput.of("objective", one_of(Objective, objective))
    table = made_of.energy
    unknown = [name for name in energy or () if name not in table]
    if unknown:
        raise InvalidInput.of("energy", one_of(table, unknown[0]))
    return codesign_document.CodesignRequest(
        trainwright_version=__version__,
        jobs=tuple(jobs),
        num_devices=num_devices,
        rules=rules,
        surroundings=surroundings,
        microbatch_sizes=tuple(microbatch_sizes),
        objective=objective,
        energy={**table, **(energy or {})},
        max_power_watts=max_power_watts,
        precisions=tuple(precisions),
        max_mean_watts=max_mean_watts,
        software=None if software == NO_SOFTWARE else software,
        like=like,
        losses=losses_of(software, like),
        process=made_of.process,
        die={**made_of.die, **(die or {})},
        technology=_technology_record(made_of),
    )


def _technology_record(made_of: Technology) -> codesign_document.TechnologyRecord:
    return codesign_document.TechnologyRecord(
        areas=codesign_document.AreasRecord(**asdict(made_of.areas)),
        formats={
            name: codesign_document.FormatRecord(**asdict(each))
            for name, each in made_of.formats.items()
        },
        volts=made_of.volts,
        curve=None
        if made_of.curve is None
        else codesign_document.CurveRecord(**asdict(made_of.curve)),
    )


def question_of(request: codesign_document.CodesignRequest) -> CodesignQuestion:
    """The question that a request asks; raises `InvalidInput` with what is wrong with it."""
    surroundings = tuple(
        with_losses(record.surroundings(), request.losses) for record in request.surroundings
    )
    made, areas, formats, curve = request.technology, PHAZE_AREAS, NUMBER_FORMATS, None
    if made is not None:
        areas = AreaTable(**asdict(made.areas))
        formats = {name: NumberFormat(**asdict(each)) for name, each in made.formats.items()}
        curve = None if made.curve is None else VoltageCurve(**asdict(made.curve))
    if unknown := [name for name in request.precisions if name not in formats]:
        raise InvalidInput.of("precision", one_of(formats, unknown[0]))
    makings = [making_of(s, formats[p]) for s in surroundings for p in request.precisions]
    return CodesignQuestion(
        space=enumerate_designs(rules_of(request), makings, areas),
        jobs=tuple(_job(record) for record in request.jobs),
        num_devices=request.num_devices,
        surroundings=surroundings,
        microbatch_sizes=request.microbatch_sizes,
        objective=Objective(request.objective),
        energy=EnergyTable(**request.energy),
        max_power_watts=request.max_power_watts,
        precisions=request.precisions,
        max_mean_watts=request.max_mean_watts,
        die=die_of() if request.die is None else DieModel(**request.die),
        curve=curve,
        formats=formats,
    )


def rules_of(request: codesign_document.CodesignRequest) -> SpaceRules:
    """The rules of the space that a request searches."""
    return SpaceRules(**asdict(request.rules))


def _job(record: codesign_document.JobRecord) -> TrainingJob:
    modes = {str(mode): mode for mode in RECOMPUTE}
    if unknown := [mode for mode in record.recompute if mode not in modes]:
        raise InvalidInput([Fault("recompute", f'must be of none, full, got "{unknown[0]}"')])
    return TrainingJob(
        name=record.model.name,
        model=decode(TransformerConfig, record.model.content, path="request.jobs.model.content"),
        sequence_length=record.sequence_length,
        global_batch=record.global_batch,
        tensor_degrees=record.tensor_parallel,
        recompute=tuple(modes[mode] for mode in record.recompute),
        weight=record.weight,
        schedules=record.schedules,
    )
