"""Constants fitted to measured runs of one accelerator under one line of software.

A handful of physical numbers, each with a 90% interval: shares of peaks, latencies, host times.
They replace the defaults of a cluster's description and nothing else, so a calibrated cluster is a
cluster. Software is part of the key because kernels and fusion move these numbers as much as the
hardware does.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, Final

from trainwright.cluster.accelerator import Accelerator, Circumstance, Saturating, Spread
from trainwright.cluster.cluster import Cluster, LevelKind, NetworkLevel, Pool
from trainwright.cluster.framework_memory import COMPILED, EAGER, without_engine
from trainwright.errors import Fault, refuse
from trainwright.provenance import Origin, Provenance

# Names of the constants, and the largest value of those that are shares.
CONSTANTS: Final = {
    "gemm_max": 1.0,
    "gemm_half_flops": math.inf,
    "gemm_half_depth": math.inf,
    "memory_max": 1.0,
    "attention_forward": 1.0,
    "attention_backward": 1.0,
    "attention_half_flops": math.inf,
    "attention_half_intensity": math.inf,
    "fp8_ratio": 1.0,
    "launch_overhead_s": math.inf,
    "host_pass_s": math.inf,
    "scale_up_efficiency": 1.0,
    "scale_up_latency_s": math.inf,
    "scale_out_efficiency": 1.0,
    "scale_out_latency_s": math.inf,
    "step_overhead_s": math.inf,
    # Where layers were measured, what is left to fit: how much slower they run in a step than
    # alone, what gradients and activations cross the network with, what memory holds beside them.
    "layer_ratio": math.inf,
    "reduce_bytes_per_s": math.inf,
    "send_bytes_per_s": math.inf,
    "parameter_bytes": math.inf,
    "saved_ratio": math.inf,
    "fixed_bytes": math.inf,
}
# Where a description keeps what a constant replaces.
_PLACES: Final = {
    "gemm_max": "efficiency.gemm.max",
    "gemm_half_flops": "efficiency.gemm.half",
    "gemm_half_depth": "efficiency.gemm_half_depth",
    "memory_max": "efficiency.memory.max",
    "attention_forward": "efficiency.attention_forward",
    "attention_backward": "efficiency.attention_backward",
    "attention_half_flops": "efficiency.attention_half_flops",
    "attention_half_intensity": "efficiency.attention_half_intensity",
    "fp8_ratio": "efficiency.fp8_ratio",
    "launch_overhead_s": "launch_overhead_s",
    "host_pass_s": "host_pass_s",
    "step_overhead_s": "step_overhead_s",
}
_NETWORK_CONSTANTS: Final = (
    "scale_up_efficiency",
    "scale_up_latency_s",
    "scale_out_efficiency",
    "scale_out_latency_s",
)
# Prior widths of a fit, as standard deviations of the log: of shares of a peak, of overheads.
SHARE_WIDTH: Final = 0.2
OVERHEAD_WIDTH: Final = 0.7
NETWORK_FIELDS: Final = ("efficiency", "latency_s")  # of a level, which constants replace
POOLED: Final = "pooled efficiencies"
_USUAL_SHARE: Final = 0.75  # of links, as descriptions of clusters assume it
_Z90: Final = 1.6448536269514722
_AS_WIDE: Final = 0.9995  # of the prior's interval; files round its ends to five digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One fitted number with the ends of its 90% interval."""

    name: str
    value: float
    low: float
    high: float

    @property
    def is_prior(self) -> bool:
        """Whether the runs said nothing of it: its interval is as wide as its prior's."""
        width = SHARE_WIDTH if CONSTANTS.get(self.name) == 1.0 else OVERHEAD_WIDTH
        if not 0 < self.low < self.value:
            return False
        return math.log(self.value / self.low) >= _AS_WIDE * _Z90 * width


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The constants of `accelerator` under `line`, and how far predictions with them miss.

    A step takes between `low_ratio` and `high_ratio` times its prediction in nine cases of ten, and
    in the range of the first of `spreads` whose circumstance holds. `pooled` constants are those of
    many devices and programs (`calibration`). Others replace what a description says or, `upon`
    a program, what is pooled for it.
    """

    accelerator: str
    line: str
    constants: tuple[Constant, ...]
    low_ratio: float
    high_ratio: float
    source: str
    rows: int = 0
    spreads: tuple[Spread, ...] = ()
    pooled: bool = False
    upon: str | None = None

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        for constant in self.constants:
            place = f"constants.{constant.name}"
            if constant.name not in CONSTANTS:
                yield Fault(place, f"must be one of {', '.join(CONSTANTS)}")
                continue
            if CONSTANTS[constant.name] == 1.0:
                if not 0 < constant.value <= 1:
                    yield Fault(place, f"must be in (0, 1], got {constant.value!r}")
            elif not 0 <= constant.value < math.inf:
                yield Fault(place, f"must be finite and >= 0, got {constant.value!r}")
            if not constant.low <= constant.value <= constant.high:
                ends = f"{constant.low!r} and {constant.high!r}"
                yield Fault(place, f"must lie between low and high, got {ends}")
        if not 0 < self.low_ratio <= 1 <= self.high_ratio < math.inf:
            given = f"{self.low_ratio!r} and {self.high_ratio!r}"
            yield Fault("low_ratio", f"must be <= 1, and high_ratio >= 1, got {given}")

    def value(self, name: str, default: float) -> float:
        """A constant, or `default` where it was not fitted."""
        return next((c.value for c in self.constants if c.name == name), default)

    @property
    def names(self) -> tuple[str, ...]:
        """The constants that are stated."""
        return tuple(constant.name for constant in self.constants)

    @property
    def replaced(self) -> tuple[str, ...]:
        """Of these, the ones that `applied` puts in place of those of a description."""
        return tuple(name for name in self.names if name in _PLACES or name in _NETWORK_CONSTANTS)

    @property
    def fitted(self) -> tuple[Constant, ...]:
        """The constants that `applied` puts in place and that the runs moved from their priors."""
        return tuple(c for c in self.constants if c.name in self.replaced and not c.is_prior)

    @property
    def provenance(self) -> Provenance:
        """What a calibrated device rests on: the line, its runs and the constants they moved."""
        if self.pooled:
            return Provenance(
                origin=Origin.FITTED, source=f"{POOLED} for {self.line}: {self.source}"
            )
        which = ", ".join(constant.name for constant in self.fitted) or "none"
        source = f"calibration {self.line} ({self.source}; fitted: {which})"
        if self.upon is not None:
            source += f", upon {POOLED} for {self.upon}"
        return Provenance(origin=Origin.FITTED, source=source)

    def _origins(self, places: Mapping[str, str]) -> dict[str, Provenance]:
        """By place in a description, where the constants that are replaced there come from."""
        line = f"calibration {self.line}"
        fitted = Provenance(origin=Origin.FITTED, source=f"{line}, {self.source}")
        kept = f"default of {line}, which its runs do not determine ({self.source})"
        prior = Provenance(origin=Origin.ASSUMED, source=kept)
        return {
            places[c.name]: prior if c.is_prior else fitted
            for c in self.constants
            if c.name in places
        }

    def applied(self, cluster: Cluster) -> Cluster:
        """The cluster with these constants in place of its defaults."""
        pools = tuple(map(self.on_pool, cluster.pools))
        return replace(cluster, pools=pools)

    def on_pool(self, pool: Pool) -> Pool:
        """The same of one pool."""
        inside = len(pool.fabric)
        levels = [
            self._level(level, "scale_up" if number < inside else "scale_out")
            for number, level in enumerate(pool.levels)
        ]
        return replace(pool, accelerator=self._accelerator(pool.accelerator), levels=tuple(levels))

    def _accelerator(self, device: Accelerator) -> Accelerator:
        given = device.efficiency
        gemm_half = self.value("gemm_half_flops", given.gemm.half)
        attention_half = self.value("attention_half_flops", given.attention_half_flops)
        intensity = self.value("attention_half_intensity", given.attention_half_intensity)
        if device.cores is not None:  # tiles say how small kernels fill a chip design
            gemm_half = attention_half = intensity = 0.0
        efficiency = replace(
            given,
            gemm=Saturating(max=self.value("gemm_max", given.gemm.max), half=gemm_half),
            memory=replace(given.memory, max=self.value("memory_max", given.memory.max)),
            attention_forward=self.value("attention_forward", given.attention_forward),
            attention_backward=self.value("attention_backward", given.attention_backward),
            fp8_ratio=self.value("fp8_ratio", given.fp8_ratio),
            attention_half_flops=attention_half,
            attention_half_intensity=intensity,
            gemm_half_depth=self.value("gemm_half_depth", given.gemm_half_depth),
        )
        measured = dict.fromkeys(("step_low_ratio", "step_high_ratio"), self.provenance)
        sources = dict(device.sources) | self._origins(_PLACES) | measured
        return replace(
            device,
            efficiency=efficiency,
            launch_overhead_s=self.value("launch_overhead_s", device.launch_overhead_s),
            host_pass_s=self.value("host_pass_s", device.host_pass_s),
            step_overhead_s=self.value("step_overhead_s", device.step_overhead_s),
            step_low_ratio=self.low_ratio,
            step_high_ratio=self.high_ratio,
            step_spreads=self.spreads,
            sources=tuple(sources.items()),
        )

    def _level(self, level: NetworkLevel, place: str) -> NetworkLevel:
        if self.pooled and level.is_measured:
            return level
        taken: dict[str, Any] = {
            field: self.value(f"{place}_{field}", getattr(level, field))
            for field in NETWORK_FIELDS
            if f"{place}_{field}" in self.names and not self._keeps(level, field, place)
        }
        origins = self._origins({f"{place}_{field}": field for field in taken})
        sources = dict(level.sources) | origins
        return replace(level, sources=tuple(sources.items()), **taken)

    def _keeps(self, level: NetworkLevel, field: str, place: str) -> bool:
        """Whether a level's own figure stays, with the source that its description gives it.

        A pooled constant is that of usual fabrics: a description that says where a figure comes
        from knows better, and a slower fabric stays as slow as it is described. A torus' share is
        that of its links that a ring uses, which is no software's.
        """
        if field == "efficiency" and level.kind is LevelKind.TORUS:
            return True
        if not self.pooled or not is_stated(level, field):
            return False
        if field in dict(level.sources):
            return True
        own: float = getattr(level, field)
        pooled = self.value(f"{place}_{field}", own)
        return own < min(_USUAL_SHARE, pooled) if field == "efficiency" else own > pooled


def is_stated(level: NetworkLevel, field: str) -> bool:
    """Whether a level has a figure as it was described, not as a calibration has it."""
    origin = dict(level.sources).get(field)
    is_put = origin is not None and origin.origin in (Origin.FITTED, Origin.ASSUMED)
    return origin is None or not is_put or line_of((origin.source,)) is None


def is_calibrated(device: Accelerator) -> bool:
    """Whether a device carries constants of runs of its own, as `Calibration.applied` leaves it."""
    return line_of(origin.source for _, origin in device.sources) is not None


def is_pooled(device: Accelerator) -> bool:
    """Whether a device has pooled efficiencies, under a calibration or not."""
    return any(origin.source.startswith(POOLED) for _, origin in device.sources)


def with_fitted(pool: Pool, fitted: Pool) -> Pool:
    """A pool with the constants that a calibration left in `fitted`, of the same devices."""

    def put_back(own: Any, given: Any, places: Iterable[str]) -> Any:
        sources = dict(given.sources)
        for place in places:
            if place not in sources or not line_of((sources[place].source,)):
                continue
            own = _with(own, place.split("."), given)
            own = replace(own, sources=tuple((dict(own.sources) | {place: sources[place]}).items()))
        return own

    ranges = ("step_low_ratio", "step_high_ratio")
    device = put_back(pool.accelerator, fitted.accelerator, (*_PLACES.values(), *ranges))
    device = replace(device, step_spreads=fitted.accelerator.step_spreads)
    levels = tuple(
        put_back(own, given, NETWORK_FIELDS)
        for own, given in zip(pool.levels, fitted.levels, strict=True)
    )
    return replace(pool, accelerator=device, levels=levels)


def _with(own: Any, path: Sequence[str], given: Any) -> Any:
    """A value with the field at a path as another has it."""
    name, *inner = path
    value = getattr(given, name)
    return replace(own, **{name: _with(getattr(own, name), inner, value) if inner else value})


def pooled_for(device: Accelerator) -> str | None:
    """The program whose pooled efficiencies a device was given, under a calibration or not."""
    for _, origin in device.sources:
        if found := re.search(rf"{POOLED} for ([^:,]+)", origin.source):
            return found[1]
    return None


def line_of(sources: Iterable[str]) -> str | None:
    """The line that a device's constants are said to come from, as `Calibration.applied` does."""
    for source in sources:
        if found := re.match(r"(?:default of )?calibration (.+?)(?:,| \()", source):
            return found[1]
    return None


# Training software as far as it changes how fast kernels and networks run
# ------------------------------------------------------------------------
# Constants carry over with the software more than with the chip: who launches kernels, fuses them
# and overlaps exchanges is a property of the code. A class of software shares these; a single
# program differs from its class by less than classes differ from each other.


class SoftwareClass(StrEnum):
    """Programs that start, fuse and overlap alike.

    MEGATRON: hand-written CUDA pipelines around Transformer Engine or its forerunners. NEMO: the
    same as NVIDIA tunes and publishes it. EAGER_FSDP, COMPILED_FSDP: PyTorch's sharded data
    parallelism, kernel by kernel or compiled. DEEPSPEED: ZeRO around eager models. NANOTRON: eager
    3-D parallelism in plain PyTorch. XLA: whole-program compilation. TYPICAL: nothing is known.
    """

    MEGATRON = "megatron"
    NEMO = "nemo"
    EAGER_FSDP = "eager-fsdp"
    COMPILED_FSDP = "compiled-fsdp"
    DEEPSPEED = "deepspeed"
    NANOTRON = "nanotron"
    XLA = "xla"
    TYPICAL = "typical"


# Classes that grew from the same code share more than their device.
_SCHOOLS: Final = {
    SoftwareClass.MEGATRON: "megatron",
    SoftwareClass.NEMO: "megatron",
    SoftwareClass.DEEPSPEED: "megatron",
    SoftwareClass.EAGER_FSDP: "pytorch",
    SoftwareClass.COMPILED_FSDP: "pytorch",
    SoftwareClass.NANOTRON: "pytorch",
    SoftwareClass.XLA: "xla",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """A program, by its usual lower-case name, and the class it counts to."""

    name: str
    kind: SoftwareClass

    @property
    def picks_fastest_attention(self) -> bool:
        """Whether it runs the fastest published attention kernel of each device.

        Current transformers, whose models TRL and DeepSpeed by itself train, take it unasked
        (huggingface/transformers, pull request 48163), as prime-rl does (`model.attn` "auto":
        FlashAttention-3 on Hopper, 4 on Blackwell).
        """
        return self.name.startswith(("trl", "deepspeed", "prime-rl"))

    @property
    def adds_gradients_apart(self) -> bool:
        """Whether kernels of their own add the gradients of each microbatch to those before.

        Megatron's pipelines under DeepSpeed: autograd adds those of fp16 in place, and
        `BF16_Optimizer.update_hp_grads` casts those of bf16 before it adds them. ZeRO 2 and 3,
        which keep shards alone, exclude DeepSpeed's pipelines (`PipelineEngine.__init__`).
        """
        return self.kind is SoftwareClass.DEEPSPEED and not self.name.startswith("deepspeed")

    @property
    def merges_rings(self) -> bool:
        """Whether context ranks run PyTorch's ring attention kernel by kernel.

        Accelerate's context parallelism is `torch.distributed.tensor.experimental.context_parallel`
        around models of transformers (`Accelerator._prepare_cp`). Compiled, the kernels fuse.
        """
        return self.kind is SoftwareClass.EAGER_FSDP and self.name.startswith(_ON_ACCELERATE)

    def on(self, device: Accelerator) -> Accelerator:
        """The device as this program uses it."""
        facts = {name: getattr(self, name) for name in ("adds_gradients_apart", "merges_rings")}
        if all(getattr(device, name) == own for name, own in facts.items()):
            return device
        return replace(device, **facts)

    @property
    def school(self) -> str | None:
        """The code that its class grew from: megatron, pytorch or xla."""
        return _SCHOOLS.get(self.kind)


_ON_ACCELERATE: Final = ("trl", "accelerate", "transformers", "hugging")
TYPICAL: Final = Software(name="typical", kind=SoftwareClass.TYPICAL)

# Part of a program's name → its class; the first that is found decides. Trainers around PyTorch's
# own sharding run its kernels one by one, NVIDIA's Automodel too; GPT-NeoX is Megatron under
# DeepSpeed.
_CLASSES: Final = (
    ("nanotron", SoftwareClass.NANOTRON),
    ("maxtext", SoftwareClass.XLA),
    ("paxml", SoftwareClass.XLA),
    ("jax", SoftwareClass.XLA),
    ("xla", SoftwareClass.XLA),
    ("levanter", SoftwareClass.XLA),
    ("deepspeed", SoftwareClass.DEEPSPEED),
    ("automodel", SoftwareClass.EAGER_FSDP),
    ("nemo-rl", SoftwareClass.EAGER_FSDP),
    ("nemo", SoftwareClass.NEMO),
    ("bridge", SoftwareClass.NEMO),
    ("megatron", SoftwareClass.MEGATRON),
    ("primus", SoftwareClass.MEGATRON),
    ("neox", SoftwareClass.DEEPSPEED),
    ("torchtitan", SoftwareClass.COMPILED_FSDP),
    ("nanogpt", SoftwareClass.COMPILED_FSDP),
    ("foundry", SoftwareClass.EAGER_FSDP),
    ("composer", SoftwareClass.EAGER_FSDP),
    ("fsdp", SoftwareClass.EAGER_FSDP),
    ("accelerate", SoftwareClass.EAGER_FSDP),
    ("trl", SoftwareClass.EAGER_FSDP),
    ("transformers", SoftwareClass.EAGER_FSDP),
    ("hugging", SoftwareClass.EAGER_FSDP),
    ("pytorch", SoftwareClass.EAGER_FSDP),
    ("torchtune", SoftwareClass.EAGER_FSDP),
    ("axolotl", SoftwareClass.EAGER_FSDP),
    ("llamafactory", SoftwareClass.EAGER_FSDP),
    ("verl", SoftwareClass.EAGER_FSDP),
    ("openrlhf", SoftwareClass.DEEPSPEED),
    ("olmo", SoftwareClass.EAGER_FSDP),
    ("litgpt", SoftwareClass.EAGER_FSDP),
    ("lightning", SoftwareClass.EAGER_FSDP),
    ("unsloth", SoftwareClass.EAGER_FSDP),
)
# Names to offer where somebody asks for a program that nobody knows.
OFFERED: Final = (TYPICAL.name, *sorted({part for part, _ in _CLASSES}))


def only_program_on(accelerator: str) -> str | None:
    """The program that alone drives such devices: XLA does TPUs. None where there are several."""
    return "maxtext" if accelerator.startswith("TPU") else None


def software_named(text: str | None, *, compiled: bool | None = None) -> Software:
    """The program of a name; what nobody knows is typical.

    `compiled` says whether PyTorch's blocks are; so may the end of the name (`as_compiled`).
    """
    name = without_engine((text or "").strip().lower())
    kind = next((kind for part, kind in _CLASSES if part in name), SoftwareClass.TYPICAL)
    if not name:
        return TYPICAL
    if name.endswith(EAGER) or (kind is SoftwareClass.COMPILED_FSDP and compiled is False):
        kind = SoftwareClass.EAGER_FSDP if kind is SoftwareClass.COMPILED_FSDP else kind
        return Software(name=name.removesuffix(EAGER) + EAGER, kind=kind)
    if kind is SoftwareClass.EAGER_FSDP and (compiled or name.endswith(COMPILED)):
        return Software(name=name, kind=SoftwareClass.COMPILED_FSDP)
    return Software(name=name, kind=kind)


def as_compiled(program: str | None, compiled: bool | None) -> str | None:
    """A program that compiles its blocks, or does not, where it usually does otherwise."""
    if program is None or compiled is None:
        return program
    usual = software_named(program)
    if software_named(program, compiled=compiled).kind is usual.kind:
        return program
    return program + (COMPILED if compiled else EAGER)


# Efficiencies of any device under any software, pooled over all public runs
# --------------------------------------------------------------------------
# One set of constants for each pair of device and software would fit noise where runs are few, and
# say nothing of a pair that nobody measured. So each constant is a sum of effects on its logarithm,
#
#     log θ = centre + family + device + school + class + program
#             + family × school + device × class + publication
#
# of the device's architecture family, the device, the code that a class of software grew from, the
# class, the program, the pairs and whose runs they are, each shrunk towards zero where its runs say
# little (hierarchical or partial pooling; Gelman and Hill, 2007, chapter 12). A pair without runs
# borrows from its neighbours: the constants are those of its family and its class. `lab.pooling`
# fits them; the ranges come from tables of runs that were left out whole, and widen with the
# distance from evidence.


# What a device does with all its kernels: an effect on the pace moves these together.
PACE: Final = "pace"
_OF_ATTENTION: Final = (
    "attention_forward",
    "attention_backward",
    "attention_half_flops",
    "attention_half_intensity",
)
PACED: Final = ("gemm_max", "memory_max", "attention_forward", "attention_backward")

Key = tuple[str, ...]  # a level and the names it holds for: ("device", "B200")


def keys_of(
    device: str, software: Software, family: str | None, publication: str | None = None
) -> tuple[Key, ...]:
    """The effects that a run is made of, from the widest to the narrowest."""
    found: list[Key] = [("centre",)]
    if family is not None:
        found.append(("family", family))
    found.append(("device", device))
    if software.school is not None:
        found.append(("school", software.school))
        if family is not None:
            found.append(("kin", family, software.school))
        found.append(("class", str(software.kind)))
        found.append(("program", software.name))
        found.append(("pair", device, str(software.kind)))
    if publication is not None:
        found.append(("publication", publication, device))
    return tuple(found)


# Exchanges inside layers, which some programs split to compute beside them. Few tables say so;
# where runs leave it open, what they hid is in the constants that were fitted to them.
TELLABLE: Final = ("tensor", "experts")

# Fewer runs say little of how far the next one misses: their range is that of neighbours.
_FEW_RUNS: Final = 5


class Distance(IntEnum):
    """How far the nearest measured runs lie from a device under a software."""

    SAME_PUBLICATION = 0  # other runs of the same publication
    SAME_CLASS = 1  # this device under a program of the class
    NEIGHBOUR = 2  # this device under other software, or the class on a device of the family
    FAR = 3  # the family or the class, not both
    NOTHING = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Shifts of the logarithm of constants, and the runs that they rest on."""

    shifts: Mapping[str, float]
    runs: int = 0
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Nine of ten steps take `low_ratio` to `high_ratio` times the prediction at a distance."""

    low_ratio: float
    high_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The measured runs that stand behind a prediction, and how far they lie from it.

    Of `runs`, `runs_on_device` were on the device itself, whatever their software, and `own_runs`
    under the class of the software there; a pair with too few of these borrows from the others.
    Without a run its pace may follow what is known of its products and power.
    """

    distance: Distance
    runs: int
    runs_on_device: int
    own_runs: int
    sources: tuple[str, ...]
    device: str
    software: Software
    low_ratio: float
    high_ratio: float
    has_known_pace: bool = False

    @property
    def sentence(self) -> str:
        """One plain sentence for a reader who has no other page."""
        named = self.software.school is not None
        any_software = "whatever the software (--software narrows this)"
        under = f"software like {self.software.name}" if named else "software that is not named"
        if self.distance is Distance.NOTHING:
            pace = ", paced by its products and power" if self.has_known_pace else ""
            known = f"no run of {self.device}, of its family or of {under} is known"
            if not named:
                known = (
                    f"no run of {self.device} or of its family is known, and no software is named"
                )
            return f"{known}: a typical device{pace} under typical software; {self._range}"
        tables = f"{len(self.sources)} public table{'s' if len(self.sources) != 1 else ''}"
        runs = f"{self.runs} measured run{'s' if self.runs != 1 else ''} in {tables}"
        near = f"of {self.device}, {any_software}"
        own = self.runs_on_device or "none"
        far = f"of the family of {self.device}, {own} on it, {any_software}"
        if named:
            near = self._borrowed("", f"of its family under {under}")
            far = self._borrowed("distant relatives, ", f"under {under} or of its family")
        where = {
            Distance.SAME_PUBLICATION: f"of the same publication on {self.device}",
            Distance.SAME_CLASS: f"of {self.device} under {under}",
            Distance.NEIGHBOUR: near,
            Distance.FAR: far,
        }
        joined = "," if named and self.distance in {Distance.NEIGHBOUR, Distance.FAR} else ""
        return f"rests on {runs}{joined} {where[self.distance]}; {self._range}"

    def _borrowed(self, whose: str, elsewhere: str) -> str:
        """How many runs are of the pair itself, and of whom the others are that it borrows."""
        beside, away = self.runs_on_device - self.own_runs, self.runs - self.runs_on_device
        parts = [f"{beside} of {self.device} under other software"] if beside else []
        parts += [f"{away} {elsewhere}"] if away else []
        parts += [] if self.runs_on_device else [f"none on {self.device}"]
        share = f"{self.own_runs} its own, the others" if self.own_runs else "all"
        return f"{share} borrowed from {whose}{', '.join(parts)}"

    @property
    def _range(self) -> str:
        low, high = f"{self.low_ratio:.2f}", f"{self.high_ratio:.2f}"
        return f"nine of ten take {low} to {high} times as long"


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledEfficiencies:
    """The fitted effects, and how far predictions with them miss by distance from evidence.

    `families` names the architecture family of each device; `spreads` are standard deviations of
    the logarithm that remain of each constant. Under one of `circumstances`, the first that holds,
    the range is at least as wide as it says. `told_apart` names by class of software the kinds of
    exchange of which its runs say whether they hide.
    """

    effects: Mapping[Key, Effect]
    families: Mapping[str, str]
    spreads: Mapping[str, float]
    ranges: Mapping[Distance, Range]
    circumstances: Mapping[Circumstance, Range] = field(
        default_factory=lambda: MappingProxyType({})
    )
    told_apart: Mapping[SoftwareClass, tuple[str, ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )

    def held_overlap(self, software: Software) -> tuple[str, ...]:
        """The kinds of exchange that constants hold as its runs hid them, whatever they hid."""
        apart = self.told_apart.get(software.kind, ())
        return tuple(kind for kind in TELLABLE if kind not in apart)

    def value_of(
        self, name: str, device: str, software: Software, publication: str | None = None
    ) -> float:
        """A constant of a device under a software; `publication` names whose runs are meant."""
        logs = 0.0
        names = (name, PACE) if name in PACED else (name,)
        for key in keys_of(device, software, self.families.get(device), publication):
            effect = self.effects.get(key)
            if effect is not None:
                logs += sum(effect.shifts.get(each, 0.0) for each in names)
        return min(math.exp(logs), CONSTANTS[name])

    @property
    def names(self) -> tuple[str, ...]:
        """The constants that were fitted."""
        return tuple(name for name in self.effects["centre",].shifts if name != PACE)

    def evidence(self, device: str, software: Software, publication: str | None = None) -> Evidence:
        """What a prediction for `device` under `software` rests on."""
        distance, found = self._nearest(device, software, publication)
        span = self.ranges[distance]
        pairs = self._runs_by_pair()
        own = pairs.get((device, str(software.kind))) if software.school is not None else None
        return Evidence(
            distance=distance,
            runs=sum(effect.runs for effect in found),
            runs_on_device=sum(effect.runs for (on, _), effect in pairs.items() if on == device),
            own_runs=own.runs if own is not None else 0,
            sources=tuple(sorted({source for effect in found for source in effect.sources})),
            device=device,
            software=software,
            low_ratio=span.low_ratio,
            high_ratio=span.high_ratio,
            has_known_pace=("device", device) in self.effects,
        )

    def _nearest(
        self, device: str, software: Software, publication: str | None
    ) -> tuple[Distance, list[Effect]]:
        family = self.families.get(device)
        kind = str(software.kind) if software.school is not None else ""  # that of no runs
        own = self.effects.get(("publication", publication or "", device))
        if own is not None and own.runs:
            return Distance.SAME_PUBLICATION, [own]
        pairs = self._runs_by_pair()
        if (device, kind) in pairs and pairs[device, kind].runs >= _FEW_RUNS:
            return Distance.SAME_CLASS, [pairs[device, kind]]
        related = {
            pair: family is not None and self.families.get(pair[0]) == family for pair in pairs
        }
        near = [
            effect
            for pair, effect in pairs.items()
            if pair[0] == device or (pair[1] == kind and related[pair])
        ]
        if sum(effect.runs for effect in near) >= _FEW_RUNS:
            return Distance.NEIGHBOUR, near
        far = [effect for pair, effect in pairs.items() if pair[1] == kind or related[pair]]
        return (Distance.FAR, far) if far else (Distance.NOTHING, [])

    def _runs_by_pair(self) -> dict[tuple[str, str | None], Effect]:
        """The runs by device and class of software, which is None of software without a name."""
        found: dict[tuple[str, str | None], Effect] = {
            (key[1], key[2]): effect
            for key, effect in self.effects.items()
            if key[0] == "pair" and effect.runs
        }
        named: Counter[str] = Counter()
        for (device, _), effect in found.items():
            named[device] += effect.runs
        return found | {
            (key[1], None): replace(effect, runs=effect.runs - named[key[1]])
            for key, effect in self.effects.items()
            if key[0] == "device" and effect.runs > named[key[1]]
        }

    def calibration(
        self, device: str, software: Software, publication: str | None = None
    ) -> Calibration:
        """The constants of a device under a software, as the calibration of a cluster."""
        found = self.evidence(device, software, publication)
        constants = []
        for name in self.names:
            value = self.value_of(name, device, software, publication)
            reach = math.exp(_Z90 * self.spreads.get(name, 0.0))
            low, high = value / reach, min(value * reach, CONSTANTS[name])
            constants.append(Constant(name=name, value=value, low=low, high=high))
        return Calibration(
            accelerator=device,
            line=software.name,
            constants=tuple(constants),
            low_ratio=found.low_ratio,
            high_ratio=found.high_ratio,
            source=found.sentence,
            rows=found.runs,
            pooled=True,
            spreads=tuple(
                Spread(
                    when=when,
                    low_ratio=min(found.low_ratio, own.low_ratio),
                    high_ratio=max(found.high_ratio, own.high_ratio),
                )
                for when, own in self.circumstances.items()
            ),
        )

    def applied(
        self, cluster: Cluster, software: Software, publication: str | None = None
    ) -> Cluster:
        """The cluster with the constants expected of its devices under `software`."""
        pools = (self.applied_to(pool, software, publication) for pool in cluster.pools)
        return replace(cluster, pools=tuple(pools))

    def holding(self, cluster: Cluster, software: Software) -> Cluster:
        """A cluster that was priced so, whose devices take no overlap that the constants hold."""
        held = self.held_overlap(software)
        pools = [
            replace(pool, accelerator=replace(pool.accelerator, held_overlap=held))
            for pool in cluster.pools
        ]
        return replace(cluster, pools=tuple(pools))

    def applied_to(self, pool: Pool, software: Software, publication: str | None = None) -> Pool:
        """The same of one pool.

        Public runs, over which efficiencies are pooled, ran older attention kernels, at short
        sequences. A program that runs the fastest keeps what its device is described with.
        """
        given = pool.accelerator
        found = self.calibration(given.name, software, publication).on_pool(pool)
        found = replace(found, accelerator=software.on(found.accelerator))
        if not software.picks_fastest_attention:
            return found
        described = {name: getattr(given.efficiency, name) for name in _OF_ATTENTION}
        kernels = replace(found.accelerator.efficiency, **described)
        return replace(found, accelerator=replace(found.accelerator, efficiency=kernels))
