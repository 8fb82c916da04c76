"""What each training framework can express, as data: planner, exporters and docs read one table.

A cell holds how the framework says it, or why it cannot. Facts are those of the versions in
`TARGETS`, from their sources and manuals; `docs/jobs.md` has this table, written out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Final

from trainwright.cluster.framework_memory import program_of
from trainwright.errors import Fault, InvalidInput, one_of
from trainwright.plans.capability_table import (
    AXIS_ORDERS,
    CELLS,
    MODULES,
    MOVES_LAYERS,
    OF_RECIPE,
    OPTIMIZERS,
    PRECISIONS,
    SCHEDULES,
    Feature,
)
from trainwright.plans.plan import DEFAULT_SCHEDULE, SEARCHED, Parallelism, mapping_name
from trainwright.plans.schedule import FamilyShape, Placing

# What a plan demands of the framework that runs it, without the plan itself
# --------------------------------------------------------------------------
# A search fills this in from degrees alone, before any stage is cut; an exporter from a whole plan.
# `plans.capability` compares it with what a framework can express.


class RecomputeForm(StrEnum):
    """Which blocks run their forward pass again, from the easiest pattern to the hardest.

    `FIRST` is the first k blocks of every stage, `MODULES` parts of every block ("selective"),
    `ANY` any set of whole blocks, `MIXED` parts of some blocks. In `ON_HOST` what some blocks keep
    waits on the host, whatever others do.
    """

    NONE = "none"
    ALL = "all blocks"
    FIRST = "first k blocks of every stage"
    MODULES = "parts of every block"
    ANY = "any set of blocks"
    MIXED = "parts of some blocks"
    ON_HOST = "some blocks on the host"


_ONE_EACH: Final = FamilyShape(Placing.ONE)
_ONE_DEVICE: Final = Parallelism()


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """Degrees, schedule and pattern of a plan; what is left out is not demanded.

    `shape` is that of the orders of `schedule`. `recompute_modules` are what `MODULES` repeats,
    "mlp_activation" where it is that of a dense block and "expert_activation" else.
    `several_kinds`: nodes differ in devices. `ends_apart`: embedding or head make a stage
    without blocks, `head_apart`: the loss is on another stage than the head. `has_experts` and
    `num_mtp_layers` are the model's, as are the `groups_per_token` of its experts, 0 without a
    limit; tokens that cross the network once for
    each node have `dispatches_once`, those in a format of their own `narrow_dispatch`;
    `has_capacity` drops those over one. Activations on the host are as many as `layers_on_host` of
    `num_layers` blocks keep, where `unlike_blocks` keep other amounts. `choices` are fields of the
    recipe that ask for a feature each (`OF_RECIPE`), and their values. `precision` is the number
    format, empty where none is demanded. `axis_order` lists the axes "tensor", "context", "data",
    "pipeline" from the innermost out, where the plan depends on it.
    """

    parallelism: Parallelism = _ONE_DEVICE
    schedule: str = DEFAULT_SCHEDULE
    shape: FamilyShape = _ONE_EACH
    unequal_chunks: bool = False
    uneven_stages: bool = False
    ends_apart: bool = False
    head_apart: bool = False
    degrees_per_stage: bool = False
    several_kinds: bool = False
    recompute: RecomputeForm = RecomputeForm.NONE
    recompute_modules: frozenset[str] = frozenset()
    has_experts: bool = False
    num_mtp_layers: int = 0
    groups_per_token: int = 0
    dispatches_once: bool = False
    narrow_dispatch: bool = False
    has_capacity: bool = False
    precision: str = ""
    axis_order: tuple[str, ...] | None = None
    optimizer: str = "adam"
    offload: bool = False
    offload_activations: bool = False
    layers_on_host: float = 0.0
    num_layers: int = 0
    unlike_blocks: bool = False
    offload_modules: tuple[str, ...] = ()
    choices: tuple[tuple[str, str], ...] = ()
    context_exchange: str = "ring"

    @property
    def has_pipeline(self) -> bool:
        """Whether there is more than one rank to order."""
        return self.parallelism.pipeline > 1

    @property
    def zero_stage(self) -> int:
        """That of the plan, or 0 where there is nothing to shard over."""
        return self.parallelism.as_launched.zero_stage


# What each training framework can express, as data: planner, exporters and docs read one table
# ---------------------------------------------------------------------------------------------

TARGETS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "megatron": "core-0.16",
        "megatron-bridge": "0.3 (fields of core-0.16)",
        "primus": "2026 (read, not run)",
        "torchtitan@0.2": "0.2.2",
        "torchtitan@0.3": "0.3.0",
        "pytorch": "2.13.0",
        "deepspeed": "0.19.8",
        "accelerate": "1.15.0",
        "nanotron": "0.4 (schema only)",
        "trl": "1.13 (read, not run)",
        "axolotl": "0.19.0 (read, not run)",
        "llamafactory": "0.9.5 (read, not run)",
        "automodel": "0.7.0 (read, not run)",
        "maxtext": "2026 (read, not run)",
    }
)


class Support(StrEnum):
    """Whether a framework can express a feature, and where."""

    YES = "yes"
    GLOBAL = "global"
    CODE = "in code"
    NO = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One entry of the table: `how` the framework says it, or why it does not."""

    support: Support
    how: str = ""

    @property
    def is_possible(self) -> bool:
        """Whether the framework can do it at all."""
        return self.support is not Support.NO


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Something a plan demands that `target` cannot express, and the targets that can."""

    field: str
    value: str
    target: str
    reason: str
    alternatives: tuple[str, ...]

    @property
    def fault(self) -> Fault:
        """As one line."""
        who = ", ".join(self.alternatives) or "none"
        return Fault(self.field, f"{self.value}: {self.target} {self.reason}; what can: {who}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One framework: its cells, its names for schedules, its axis orders, optimizers, formats.

    `modules` are the parts of a block it can recompute, by its names; None if it chooses itself.
    """

    target: str
    version: str
    cells: Mapping[Feature, Cell]
    schedules: Mapping[str, str]
    axis_orders: tuple[tuple[str, ...], ...]
    optimizers: frozenset[str]
    precisions: tuple[str, ...]
    modules: Mapping[str, str] | None

    def can(self, feature: Feature) -> bool:
        """Whether the framework expresses the feature."""
        return self.cells[feature].is_possible

    @property
    def splits_itself(self) -> bool:
        """Whether it runs a pipeline but takes no stages; see `configuration.own_split`."""
        return self.can(Feature.PIPELINE) and not self.can(Feature.UNEVEN_STAGES)

    def zero_stages(self, pipeline: int) -> tuple[int, ...]:
        """The ZeRO stages at that many pipeline ranks."""
        return tuple(z for z in range(4) if all(map(self.can, _zero_features(z, pipeline))))

    def recompute_forms(self) -> frozenset[RecomputeForm]:
        """The patterns of recomputation."""
        return frozenset(form for form in RecomputeForm if self.can(_RECOMPUTE[form]))

    def runs(self, demands: Demands) -> bool:
        """Whether the schedule can be run: by its name, or from a file of orders, which has room
        for plain ones alone.
        """
        if demands.schedule in self.schedules:
            return True
        return demands.shape.is_plain and all(map(self.can, _schedule_features(demands)))


def target_named(name: str) -> str:
    """The target of a name with or without a version; raises `InvalidInput` listing them.

    The newest is meant where several versions are known; a hyphen may stand for the @.
    """
    found = known_target(name)
    if found is None:
        raise InvalidInput.of("target", one_of(TARGETS, name))
    return found


def known_target(name: str) -> str | None:
    """The target of a name with or without a version; None where it names none."""
    return _aliases().get(program_of(name))


@cache
def capability_of(target: str) -> Capability:
    """What a target can express. Raises `InvalidInput` for an unknown one."""
    name = target_named(target)
    column = tuple(TARGETS).index(name)
    return Capability(
        target=name,
        version=TARGETS[name],
        cells=MappingProxyType({f: _cell(row[column]) for f, row in CELLS.items()}),
        schedules=MappingProxyType(SCHEDULES[name]),
        axis_orders=AXIS_ORDERS[name],
        optimizers=frozenset(OPTIMIZERS[name]),
        precisions=PRECISIONS[name],
        modules=MODULES[name],
    )


def alternatives(feature: Feature) -> tuple[str, ...]:
    """The targets that can express a feature."""
    return tuple(name for name in TARGETS if capability_of(name).can(feature))


def unsupported(demands: Demands, target: str) -> tuple[Gap, ...]:
    """Everything demanded that `target` cannot express; empty where it can run the plan."""
    return tuple(_gaps(demands, capability_of(target)))


def gaps_of_degrees(demands: Demands, target: str) -> tuple[Gap, ...]:
    """What `target` cannot express of the degrees demanded, and could of one device."""
    fields = _fields_alone(replace(demands, parallelism=_ONE_DEVICE), target)
    return tuple(gap for gap in unsupported(demands, target) if gap.field not in fields)


@lru_cache(maxsize=64)
def _fields_alone(demands: Demands, target: str) -> frozenset[str]:
    """What is not a matter of degrees: the order, and all that one device cannot express."""
    return frozenset({"schedule", *(gap.field for gap in unsupported(demands, target))})


def _gaps(demands: Demands, own: Capability) -> Iterator[Gap]:
    for feature, field, value in _demanded(demands):
        cell = own.cells[feature]
        if not cell.is_possible:
            yield Gap(
                field=field,
                value=value,
                target=own.target,
                reason=cell.how or f"cannot express {feature.value}",
                alternatives=alternatives(feature),
            )
    if demands.has_pipeline and own.can(Feature.PIPELINE) and not own.runs(demands):
        named = ", ".join(own.schedules) or "no schedule by name"
        yield Gap(
            field="schedule",
            value=demands.schedule,
            target=own.target,
            reason=f"runs {named}{_instead(demands, own)}",
            alternatives=tuple(n for n in TARGETS if _runs_pipeline(n, demands)),
        )
    yield from _choice_gaps(demands, own)


def _instead(demands: Demands, own: Capability) -> str:
    """What to do about an order without a name, or one whose activations wait on the host."""
    beside = demands.shape.host_of
    if beside in own.schedules and own.can(Feature.OFFLOAD_MODULES):
        return f"; with --schedule {beside} it moves what --offload-modules names"
    if demands.schedule != SEARCHED:
        return ""
    return f"; plan again with --framework {own.target} and without {SEARCHED}"


def _choice_gaps(demands: Demands, own: Capability) -> Iterator[Gap]:
    order = demands.axis_order
    if demands.offload_activations and own.target in MOVES_LAYERS:
        yield from _layer_gaps(demands, own)
    if order is not None and order not in own.axis_orders:
        yield Gap(
            field="axis_order",
            value=mapping_name(order),
            target=own.target,
            reason=f"orders its ranks {' or '.join(map(mapping_name, own.axis_orders))}",
            alternatives=tuple(n for n in TARGETS if order in capability_of(n).axis_orders),
        )
    if demands.recompute is RecomputeForm.MODULES and own.modules:
        for module in sorted(demands.recompute_modules - set(own.modules)):
            yield Gap(
                field="recompute_modules",
                value=module,
                target=own.target,
                reason=f"recomputes {', '.join(own.modules)} of a block",
                alternatives=tuple(n for n in TARGETS if _repeats(n, module)),
            )
    if demands.precision and demands.precision not in own.precisions:
        yield Gap(
            field="precision",
            value=demands.precision,
            target=own.target,
            reason=f"can be told {', '.join(own.precisions)}",
            alternatives=tuple(n for n in TARGETS if demands.precision in PRECISIONS[n]),
        )
    if demands.optimizer not in own.optimizers:
        yield Gap(
            field="optimizer",
            value=demands.optimizer,
            target=own.target,
            reason=f"has {', '.join(sorted(own.optimizers))}",
            alternatives=tuple(n for n in TARGETS if demands.optimizer in OPTIMIZERS[n]),
        )


def _layer_gaps(demands: Demands, own: Capability) -> Iterator[Gap]:
    """Why what is to lie on the host is not all that the first so many layers keep.

    With one layer left on the device copies would overlap nothing, which is not how a share is
    priced (`get_cpu_offload_context` of Transformer Engine warns of it).
    """
    total, wanted = demands.num_layers, demands.layers_on_host
    most = total - 2
    least = max(1, min(math.floor(wanted), most))
    shares = " or ".join(f"{k / total:.6g}" for k in sorted({least, min(least + 1, most)}))
    is_whole = abs(wanted - round(wanted)) < _OF_A_LAYER and 0 < round(wanted) <= most
    for reason, is_there in (
        (f"moves whole layers, all but two at most: activations={shares}", not is_whole),
        ("leaves layers of multi-token prediction on the device", demands.num_mtp_layers > 0),
        ("moves the first layers, which keep other amounts than the rest", demands.unlike_blocks),
        ("moves whole layers without CUDA graphs", "cuda_graph" in dict(demands.choices)),
    ):
        if is_there:
            yield Gap(
                field="offload",
                value=f"activations of {wanted:g} of {total} layers",
                target=own.target,
                reason=f"{reason}; or plan with --offload-modules",
                alternatives=tuple(
                    name
                    for name in alternatives(Feature.OFFLOAD_ACTIVATIONS)
                    if name not in MOVES_LAYERS
                ),
            )


_OF_A_LAYER: Final = 1e-3  # what a share in six digits may miss by


def _repeats(target: str, module: str) -> bool:
    own = capability_of(target)
    names = own.modules
    return own.can(Feature.RECOMPUTE_MODULES) and (names is None or module in names)


def _runs_pipeline(target: str, demands: Demands) -> bool:
    own = capability_of(target)
    return own.can(Feature.PIPELINE) and own.runs(demands)


def _demanded(demands: Demands) -> Iterator[tuple[Feature, str, str]]:
    """Features with the field that asks for them and its value, the schedule's own aside."""
    degrees = demands.parallelism
    if demands.degrees_per_stage:
        yield Feature.DEGREES_PER_STAGE, "parallelism", "degrees that differ between stages"
    if demands.several_kinds:
        yield Feature.SEVERAL_KINDS, "stages.replicas.device_kind", "several kinds of devices"
    for field, feature in _DEGREES:
        if (count := getattr(degrees, field)) > 1:
            yield feature, field, str(count)
    if degrees.context > 1 and demands.context_exchange in _TRADES:
        yield _TRADES[demands.context_exchange], "context_exchange", demands.context_exchange
    if degrees.tensor > 1:
        on = degrees.sequence_parallel
        feature = Feature.SEQUENCE_PARALLEL if on else Feature.NO_SEQUENCE_PARALLEL
        yield feature, "sequence_parallel", "on" if on else "off"
    if demands.has_experts and degrees.tensor * degrees.expert_shards > 1:
        yield _expert_feature(degrees), "expert_tensor", str(degrees.expert_shards)
    if demands.groups_per_token:
        yield Feature.EXPERT_GROUPS, "groups_per_token", str(demands.groups_per_token)
    for feature in dispatch_features(demands):
        value = "hierarchical" if feature is not Feature.NARROW_DISPATCH else "set"
        field = "dispatch_dtype" if feature is Feature.NARROW_DISPATCH else "token_dispatcher"
        yield feature, field, value
    if demands.has_capacity and demands.has_experts:
        yield Feature.CAPACITY, "capacity_factor", "set"
    if not demands.zero_stage and degrees.context * degrees.expert > 1:
        yield Feature.UNSHARDED_BESIDE, "zero_stage", "0"
    if not demands.zero_stage and degrees.data > 1 and degrees.tensor > 1:
        yield Feature.UNSHARDED_TENSOR, "zero_stage", "0"
    if not demands.zero_stage and degrees.data > 1 and degrees.pipeline > 1:
        yield Feature.UNSHARDED_PIPELINE, "zero_stage", "0"
    for feature in _zero_features(demands.zero_stage, degrees.pipeline):
        yield feature, "zero_stage", str(demands.zero_stage)
    if demands.zero_stage and demands.optimizer == "muon":
        yield Feature.SHARDED_MUON, "zero_stage", str(demands.zero_stage)
    yield _RECOMPUTE[demands.recompute], "recompute", demands.recompute.value
    for feature in copy_features(degrees, has_experts=demands.has_experts):
        yield feature, "state_copies", str(degrees.state_copies)
    if demands.offload:
        yield Feature.OFFLOAD, "offload", "optimizer"
        if not demands.zero_stage and degrees.data * degrees.context > 1:
            yield Feature.OFFLOAD_REPLICAS, "offload", "optimizer of ZeRO 0"
        elif not demands.zero_stage and degrees.num_devices > 1:
            yield Feature.OFFLOAD_ALONE, "offload", "optimizer of one replica"
    if demands.offload_activations:
        yield Feature.OFFLOAD_ACTIVATIONS, "offload", "activations"
        if demands.has_pipeline:
            yield Feature.OFFLOAD_PIPELINE, "offload", "activations beside a pipeline"
        if demands.recompute is not RecomputeForm.NONE:
            yield Feature.OFFLOAD_RECOMPUTED, "offload", "activations beside recomputation"
    if demands.offload_modules:
        yield Feature.OFFLOAD_MODULES, "offload_modules", ", ".join(demands.offload_modules)
    for field, value in demands.choices:
        yield OF_RECIPE[field], field, value
    if demands.num_mtp_layers:
        yield Feature.MTP, "num_mtp_layers", str(demands.num_mtp_layers)
    if demands.has_pipeline:
        yield from _demanded_stages(demands)
        yield from _beside_split(demands)


def _beside_split(demands: Demands) -> Iterator[tuple[Feature, str, str]]:
    if not demands.shape.split_backward:
        return
    beside = "beside a split backward"
    if demands.recompute is not RecomputeForm.NONE:
        yield Feature.SPLIT_RECOMPUTE, "recompute", f"{demands.recompute.value} {beside}"
    if demands.zero_stage == 3:
        yield Feature.SPLIT_ZERO_3, "zero_stage", f"3 {beside}"


_TRADES: Final = {
    "all_to_all": Feature.TRADED_HEADS,
    "all_to_all_ring": Feature.TRADED_HEADS_RING,
}


def copy_features(degrees: Parallelism, *, has_experts: bool) -> Iterator[Feature]:
    """What copies of sharded state need; Megatron-FSDP 0.16 copies on its dense mesh alone."""
    if degrees.state_copies == 1:
        return
    yield Feature.HYBRID_SHARD
    are_split = degrees.expert > 1 or degrees.expert_shards != degrees.tensor
    if degrees.zero_stage >= 2 and has_experts and are_split:
        yield Feature.HYBRID_SHARD_EXPERTS


def dispatch_features(demands: Demands) -> Iterator[Feature]:
    """What the way of tokens to experts needs, where any travel."""
    degrees = demands.parallelism
    if degrees.expert == 1:
        return
    if demands.dispatches_once:
        are_cut = degrees.expert_shards > 1
        yield Feature.DISPATCH_ONCE_CUT if are_cut else Feature.DISPATCH_ONCE
    if demands.narrow_dispatch:
        yield Feature.NARROW_DISPATCH


def _demanded_stages(demands: Demands) -> Iterator[tuple[Feature, str, str]]:
    if demands.uneven_stages:
        yield Feature.UNEVEN_STAGES, "stages", "stages that differ in blocks"
    if demands.ends_apart:
        yield Feature.ENDS_APART, "stages", "a stage without blocks"
    if demands.head_apart:
        yield Feature.HEAD_APART, "stages", "head and loss on different stages"
    if demands.unequal_chunks:
        yield Feature.UNEQUAL_CHUNKS, "stages", "ranks that differ in stages"
    if demands.parallelism.virtual_stages > 1:
        yield Feature.LOOP, "virtual_stages", str(demands.parallelism.virtual_stages)


def _schedule_features(demands: Demands) -> Iterator[Feature]:
    """What a schedule needs of a framework that does not know it by name."""
    yield Feature.CUSTOM_ORDER
    shape = demands.shape
    if shape.placing is Placing.V:
        yield Feature.V_PLACEMENT
    if shape.placing is Placing.ANY:
        yield Feature.ANY_PLACEMENT
    if shape.split_backward:
        yield Feature.SPLIT_BACKWARD


_DEGREES: Final = (
    ("pipeline", Feature.PIPELINE),
    ("tensor", Feature.TENSOR),
    ("context", Feature.CONTEXT),
    ("expert", Feature.EXPERT),
)
_RECOMPUTE: Final = {
    RecomputeForm.NONE: Feature.RECOMPUTE_ALL,
    RecomputeForm.ALL: Feature.RECOMPUTE_ALL,
    RecomputeForm.FIRST: Feature.RECOMPUTE_FIRST,
    RecomputeForm.MODULES: Feature.RECOMPUTE_MODULES,
    RecomputeForm.ANY: Feature.RECOMPUTE_ANY,
    RecomputeForm.MIXED: Feature.RECOMPUTE_MIXED,
    RecomputeForm.ON_HOST: Feature.OFFLOAD_BLOCKS,
}


def _expert_feature(degrees: Parallelism) -> Feature:
    if degrees.expert_shards == degrees.tensor:
        return Feature.EXPERTS_CUT
    return Feature.EXPERTS_WHOLE if degrees.expert_shards == 1 else Feature.EXPERT_TENSOR


def _zero_features(stage: int, pipeline: int) -> tuple[Feature, ...]:
    if stage < 2:
        return (Feature.ZERO_1,) if stage else ()
    if pipeline > 1:
        return (Feature.ZERO_2_PIPELINE if stage == 2 else Feature.ZERO_3_PIPELINE,)
    return (Feature.ZERO_2 if stage == 2 else Feature.ZERO_3,)


def _cell(text: str) -> Cell:
    """Read a cell: a word (yes, global, code, no), and after a blank how or why."""
    word, _, how = text.partition(" ")
    support = {"yes": Support.YES, "global": Support.GLOBAL, "code": Support.CODE}
    return Cell(support=support.get(word, Support.NO), how=how)


@cache
def _aliases() -> Mapping[str, str]:
    """Every name a target goes by: in order, so that a later version takes the bare name."""
    found: dict[str, str] = {}
    for name, version in TARGETS.items():
        bare, _, short = name.partition("@")
        stated = version.partition(" ")[0]
        for each in (bare, name, name.replace("@", "-"), f"{bare}@{stated}", f"{bare}-{short}"):
            found[each] = name
    return found


CHROME_TRACE: Final = "chrome-trace"
DRY_RUN: Final = "dry-run"
# Written like files for a framework, but no framework.
OTHER_TARGETS: Final = (CHROME_TRACE, DRY_RUN)
