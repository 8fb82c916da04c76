"""A plan: the stages of a pipeline, in order, and how a batch flows through them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from trainwright.errors import Fault, InvalidInput, UnsupportedFeature, refuse, too_low

# How many ways each axis is cut, where all stages agree
# ------------------------------------------------------


# How devices are numbered over the axes of a plan, from the axis whose neighbours lie closest
# --------------------------------------------------------------------------------------------
# Groups that exchange something for every layer, tensor and context, always lie innermost: any
# other place only puts them farther apart. What is left to choose is whether replicas or the ranks
# of the pipeline come next. Megatron-LM has both (`--use-tp-pp-dp-mapping`), most frameworks the
# first.

AxisOrder = tuple[str, ...]
DATA_INSIDE: Final[AxisOrder] = ("tensor", "context", "data", "pipeline")
PIPELINE_INSIDE: Final[AxisOrder] = ("tensor", "context", "pipeline", "data")
AXIS_ORDERS: Final = (DATA_INSIDE, PIPELINE_INSIDE)
_SHORT: Final = {"tensor": "tp", "context": "cp", "data": "dp", "pipeline": "pp"}
# Experts are dealt out over the devices of a rank, so they have a place but no order of their own.
_EXPERTS: Final = "ep"


def mapping_name(order: AxisOrder) -> str:
    """As Megatron spells it: tp-cp-ep-dp-pp or tp-cp-ep-pp-dp."""
    inner, outer = order[:2], order[2:]
    return "-".join((*(_SHORT[axis] for axis in inner), _EXPERTS, *(_SHORT[a] for a in outer)))


MAPPINGS: Final = tuple(map(mapping_name, AXIS_ORDERS))


def mapping_named(name: str) -> AxisOrder:
    """The order of a name, experts named or not; raises `InvalidInput` listing the names."""
    wanted = name.strip().lower()
    for order, known in zip(AXIS_ORDERS, MAPPINGS, strict=True):
        if wanted in (known, known.replace(f"-{_EXPERTS}", "")):
            return order
    offered = " or ".join(MAPPINGS)
    raise InvalidInput.of("mapping", f'must be {offered}, got "{name}"')


# How many ways each axis is cut, where all stages agree
# ------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Uniform degrees of a plan. Expert degrees divide the data × context × tensor group.

    Each expert is cut `expert_tensor` ways, as many as `tensor` where absent. `axis_order` lists
    the axes as devices are numbered, closest neighbours first. `state_copies` is how many groups of
    replicas each hold all state that ZeRO shards (hybrid shard); 1 shards it over all of them.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int | None = None
    virtual_stages: int = 1
    sequence_parallel: bool = False
    zero_stage: int = 0
    axis_order: AxisOrder = DATA_INSIDE
    state_copies: int = 1

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or field.name == "axis_order":
                continue
            least = 0 if field.name in ("zero_stage", "sequence_parallel") else 1
            if value < least:
                yield Fault(field.name, f"must be >= {least}, got {value}")
        if self.zero_stage > 3:
            yield Fault("zero_stage", f"must be 0, 1, 2 or 3, got {self.zero_stage}")
        if self.axis_order not in AXIS_ORDERS:
            given = "-".join(self.axis_order)
            yield Fault("axis_order", f"must be the order of {' or '.join(MAPPINGS)}, got {given}")

    @property
    def num_devices(self) -> int:
        """Devices the plan occupies."""
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def devices_per_rank(self) -> int:
        """Devices of one pipeline rank."""
        return self.tensor * self.data * self.context

    @property
    def adjacent_devices(self) -> int:
        """Devices of one pipeline rank that follow on each other; as many apart lie its ranks."""
        inside = self.tensor * self.context
        is_apart = self.axis_order == PIPELINE_INSIDE and self.pipeline > 1
        return inside if is_apart else inside * self.data

    @property
    def expert_shards(self) -> int:
        """Devices that share one expert."""
        return self.expert_tensor or self.tensor

    @property
    def expert_data(self) -> int:
        """Replicas of each expert; degrees that do not divide evenly are a fault of legality."""
        replicas = self.tensor * self.context * self.data // (self.expert * self.expert_shards)
        return max(1, replicas)

    @property
    def as_launched(self) -> Parallelism:
        """Without ZeRO where nothing holds a part twice: frameworks then shard nothing."""
        held = max(self.data * self.context, self.expert_data)
        return self if held > 1 else replace(self, zero_stage=0)


# ----------------------------------------------------------------------------------------------


# A pipeline stage: its layers, how each is run, and on which devices
# -------------------------------------------------------------------

ANY_DEVICE: Final = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLayout:
    """Degrees that somebody published of a run: of which model, on what, and where it is said.

    `parameters` counts all of them, those of every expert.
    """

    model: str
    parameters: float
    has_experts: bool
    device: str
    num_devices: int
    sequence_length: int
    parallelism: Parallelism
    by: str
    source: str

    def __str__(self) -> str:
        run = f"{self.model} on {self.num_devices} {self.device} at {self.sequence_length} tokens"
        return f"{self.by} for {run} ({self.source})"

    def distance(
        self, *, parameters: float, num_devices: int, sequence_length: int, memory: float
    ) -> float:
        """How far another job is: ratios of four sizes as logarithms, `memory` that of devices.

        Devices count half: more of them are more replicas first.
        """
        ratios = (
            self.parameters / parameters,
            math.sqrt(self.num_devices / num_devices),
            self.sequence_length / sequence_length,
            memory,
        )
        return sum(abs(math.log(ratio)) for ratio in ratios)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroup:
    """`count` replicas of a stage, each on `tensor_parallel` devices of one kind.

    `share` is the fraction of the stage's microbatches that this group processes, `pool` the index
    of the cluster's pool that holds it, and `options` those of its layers where they are not the
    stage's.
    """

    count: int
    tensor_parallel: int = 1
    device_kind: str = ANY_DEVICE
    share: float = 1.0
    pool: int = 0
    options: tuple[str, ...] = ()

    @property
    def num_devices(self) -> int:
        """Devices of the whole group."""
        return self.count * self.tensor_parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Layers (ids of the input), the option of each (ids too), and the stage's replicas.

    Mixed clusters have several replica groups; the scalar degrees are those of the uniform case.
    """

    layers: tuple[int, ...]
    options: tuple[str, ...]
    replicas: tuple[ReplicaGroup, ...]

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        if not self.layers:
            yield Fault("layers", "must have at least 1 entry, got 0")
        if len(set(self.layers)) < len(self.layers):
            yield Fault("layers", "must be unique")
        if len(self.options) != len(self.layers):
            yield Fault("options", f"must name {len(self.layers)} options, got {len(self.options)}")
        if not self.replicas:
            yield Fault("replicas", "must have at least 1 entry, got 0")
        for index, group in enumerate(self.replicas):
            if group.count < 1 or group.tensor_parallel < 1:
                yield Fault(f"replicas[{index}]", "must have count and tensor_parallel >= 1")
            if group.options and len(group.options) != len(self.layers):
                wanted = f"must name {len(self.layers)} options, got {len(group.options)}"
                yield Fault(f"replicas[{index}].options", wanted)

    @classmethod
    def uniform(
        cls,
        layers: tuple[int, ...],
        options: tuple[str, ...],
        *,
        data_parallel: int,
        tensor_parallel: int,
    ) -> Stage:
        """Build a stage whose replicas are all alike."""
        group = ReplicaGroup(count=data_parallel, tensor_parallel=tensor_parallel)
        return cls(layers=layers, options=options, replicas=(group,))

    @property
    def data_parallel(self) -> int:
        """Replicas over all groups."""
        return sum(group.count for group in self.replicas)

    @property
    def tensor_parallel(self) -> int:
        """The tensor-parallel degree, where all groups share one."""
        degrees = {group.tensor_parallel for group in self.replicas}
        if len(degrees) > 1:
            raise UnsupportedFeature(f"this stage mixes tensor-parallel degrees {sorted(degrees)}")
        return degrees.pop()

    @property
    def num_devices(self) -> int:
        """Devices over all groups."""
        return sum(group.num_devices for group in self.replicas)

    @property
    def option_of(self) -> dict[int, str]:
        """Option id by layer id."""
        return dict(zip(self.layers, self.options, strict=True))


# An order of actions that a search found, as a plan and its document carry it
# ----------------------------------------------------------------------------
# Microbatches of a stage follow each other, so a rank's order is a *word*: kinds and stages in the
# order in which the rank runs them, without microbatches. Written `0F*3 7F 7I 0F`, where `*3`
# stands for three of them in a row; letters are those of `plans.schedule`.

SEARCHED: Final = "searched"  # the schedule of a plan that carries such an order
DEFAULT_SCHEDULE: Final = "1f1b"  # of whoever names none, with one stage per rank


def usual_schedule(virtual_stages: int) -> str:
    """The family that frameworks run with so many stages per rank unless they are told another."""
    return "interleaved" if virtual_stages > 1 else DEFAULT_SCHEDULE


_STEP: Final = r"\d{1,9}[FIW](?:\*[1-9]\d{0,8})?"
_WORD: Final = re.compile(rf"{_STEP}(?: {_STEP})*", re.ASCII)
_LONGEST_SHOWN: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedOrder:
    """`words` of the ranks, and the named family whose order the search began with.

    Only the writing is checked here; what orders a plan can have, `scheduling.orders` knows.
    """

    family: str
    words: tuple[str, ...]

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        if not self.words:
            yield Fault("words", "must have at least 1 entry, got 0")
        for rank, word in enumerate(self.words):
            if not _WORD.fullmatch(word):
                shown = word[:_LONGEST_SHOWN] + ("…" if len(word) > _LONGEST_SHOWN else "")
                yield Fault(f"words[{rank}]", f'must look like "0F*3 7F 7I", got "{shown}"')


# A plan: the stages of a pipeline, in order, and how a batch flows through them
# ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Stages in pipeline order. `num_microbatches` counts those of a batch over all replicas.

    `parallelism` is present where all stages agree on it. With virtual stages, `stages` lists all
    of them, and the schedule says which rank runs which. An `order` that a search found is there
    where, and only where, the schedule is "searched". `room_bytes` is what a device may hold at its
    fullest, for a schedule that orders by it; the device's own memory where absent.
    """

    stages: tuple[Stage, ...]
    num_microbatches: int
    microbatch_size: int | None = None
    schedule: str = DEFAULT_SCHEDULE
    parallelism: Parallelism | None = None
    order: SearchedOrder | None = None
    room_bytes: float | None = None

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        if not self.stages:
            yield Fault("stages", "must have at least 1 entry, got 0")
        yield from too_low(self, 1, "num_microbatches")
        if self.room_bytes is not None and not 0 < self.room_bytes < math.inf:
            yield Fault("room_bytes", f"must be finite and > 0, got {self.room_bytes!r}")
        if (self.order is not None) != (self.schedule == SEARCHED):
            wanted = "must come with" if self.order is None else "must be missing without"
            yield Fault("order", f'{wanted} the schedule "{SEARCHED}", got "{self.schedule}"')
        elif self.order is not None:
            words, ranks = len(self.order.words), (self.parallelism or Parallelism()).pipeline
            if words != ranks:
                yield Fault("order.words", f"must be of {ranks} pipeline ranks, got {words}")
        seen: dict[int, int] = {}
        for index, stage in enumerate(self.stages):
            for layer in stage.layers:
                if layer in seen:
                    yield Fault(
                        f"stages[{index}].layers",
                        f"layer {layer} must be in one stage, is also in stages[{seen[layer]}]",
                    )
                seen[layer] = index

    @property
    def devices_used(self) -> int:
        """Devices over all ranks."""
        if self.parallelism is not None:
            return self.parallelism.num_devices
        return sum(stage.num_devices for stage in self.stages)


# What was asked, in full: a document can be explained and re-run without any other file
# --------------------------------------------------------------------------------------


FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """An input carried inside the document: its kind, where it came from, its hash and content."""

    kind: str
    name: str
    sha256: str
    content: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """What was typed: the words behind the program's name.

    `files` are those among the words, without folders; in the folder that holds them all the words
    ask the same again.
    """

    words: tuple[str, ...]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRecord:
    """The flat setting after all overrides; see `trainwright.profile.Setting`."""

    num_devices: int
    memory_bytes: float
    bandwidth_bytes_per_s: float
    num_microbatches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRecord:
    """Whole numbers from `least` to `most`; no upper end where that is absent."""

    least: int = 1
    most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceRecord:
    """Which plans were searched: what was switched off, fixed or bounded.

    The degrees, `zero_stages`, `recompute_modes`, `recompute_modules` (what "selective" repeats),
    `schedules`, `framework` and `mappings` (orders of the axes on the network) belong to a model's
    plan; a degree that is absent was free, and so were the schedules.
    """

    data_parallel: bool = True
    tensor_parallel: bool = True
    recompute: bool = True
    excluded_options: tuple[str, ...] = ()
    per_stage_degrees: bool = True
    planner: str = "exact"
    block_layer: str | None = None
    tensor: SpanRecord | None = None
    pipeline: SpanRecord | None = None
    data: SpanRecord | None = None
    context: SpanRecord | None = None
    expert: SpanRecord | None = None
    expert_tensor: SpanRecord | None = None
    virtual_stages: SpanRecord | None = None
    microbatch_size: SpanRecord | None = None
    state_copies: SpanRecord | None = None
    zero_stages: tuple[int, ...] = ()
    recompute_modes: tuple[str, ...] = ()
    recompute_modules: tuple[str, ...] | None = None
    schedules: tuple[str, ...] | None = None
    framework: str | None = None
    mappings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRecord:
    """What one training step processes, for a model.

    A measured model may not say how long its sequences are.
    """

    global_batch: int
    sequence_length: int | None = None
    precision: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatRequest:
    """The request of a flat question: of a profile, or a placement problem with a `cost_model`.

    `model` is the input, `setting` its devices, which a placement problem holds itself.
    """

    trainwright_version: str
    model: Embedded
    space: SpaceRecord
    setting: SettingRecord | None = None
    cost_model: str | None = None
    time_limit_s: float | None = None
    command_line: CommandLine | None = None
