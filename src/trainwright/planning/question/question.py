"""The uniform plans of a model: the same degrees for all stages, as frameworks run.

A *point* fixes what one microbatch of a layer costs: its size and the degrees that cut layers. A
candidate adds the depth of the pipeline, the data degree, the ZeRO stage and the schedule; where
the stages are cut and what is recomputed is left open. Which degrees are legal is said by
`plans.configuration`, `TransformerConfig.faults_at` and `RunShape`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from trainwright.cluster import Cluster
from trainwright.cluster.framework_memory import FrameworkMemory
from trainwright.costing.estimate import (
    FUSED_ATTENTION,
    FUSED_CROSS_ENTROPY,
    UNFUSED_ATTENTION,
    UNFUSED_CROSS_ENTROPY,
    Estimator,
)
from trainwright.costing.layer import RecomputeRule
from trainwright.errors import Fault, InvalidInput, UnsupportedFeature, refuse
from trainwright.model import (
    DEFAULT_RECIPE,
    Head,
    LayerKind,
    Recipe,
    RunShape,
    model_flops_per_sequence,
)
from trainwright.model.operator import modules_by_block, usual_modules
from trainwright.model.recipe import model_module_faults
from trainwright.plans import Plan, StepPrediction, configuration
from trainwright.plans.plan import (
    AXIS_ORDERS,
    DATA_INSIDE,
    DEFAULT_SCHEDULE,
    AxisOrder,
    Parallelism,
)
from trainwright.profile import USUAL_MODES, Profile, ProfilePoint, ProfileSource, Recompute
from trainwright.profile.measured_model import MeasuredModel
from trainwright.profile.profile import divisors
from trainwright.scheduling.families import FAMILIES
from trainwright.step.figures import keeps_beside, missing_bytes, most_allocated_bytes, num_groups
from trainwright.step.pipeline import PipelineShape, placement_of, slices_of
from trainwright.step.stages import cuts_head, slice_faults
from trainwright.step.zero import with_offload

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Ints
    from trainwright.model import TransformerConfig
    from trainwright.profile.measured_model import Trained

# What a search makes least: a figure that grows with the step, for each number of devices
# ----------------------------------------------------------------------------------------
# Cost, energy and device-seconds of a token are the step times a factor that only the number of
# devices decides; a deadline is a longest step for each number; the fewest devices within it are
# the number itself, with a share of the step that never reaches one more. So
#
#     key(n, T) = offset(n) + weight(n) · T      where T <= limit(n), infinite else
#
# and whatever bounds the step of a candidate bounds its key: the planner's search, its pruning and
# its bound hold for each of them as they are.


class Aim(Protocol):
    """What a search makes least of plans, by their steps and numbers of devices."""

    def keys(self, steps_s: Floats, devices: Ints) -> Floats:
        """The least figure of steps that take at least so long, [K]."""

    def key(self, step_s: float, devices: int) -> float:
        """Of one step."""

    def longest_s(self, key: float, devices: int) -> float:
        """The longest step with no larger figure, negative where the devices allow none."""


class StepAim:
    """The shortest step, whatever it runs on."""

    def keys(self, steps_s: Floats, devices: Ints) -> Floats:
        """The steps."""
        return steps_s

    def key(self, step_s: float, devices: int) -> float:
        """The step."""
        return step_s

    def longest_s(self, key: float, devices: int) -> float:
        """The figure is the step."""
        return key


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightedAim:
    """Arrays by number of devices, [N + 1]: `weight` > 0 per second of a step, `limit_s` >= 0.

    A negative limit allows no step on so many devices.
    """

    offset: Floats
    weight: Floats
    limit_s: Floats

    def keys(self, steps_s: Floats, devices: Ints) -> Floats:
        """The least figure of steps that take at least so long, [K]."""
        keys = self.offset[devices] + self.weight[devices] * steps_s
        allowed: Floats = np.where(steps_s <= self.limit_s[devices], keys, math.inf)
        return allowed

    def key(self, step_s: float, devices: int) -> float:
        """Of one step."""
        if step_s > self.limit_s[devices]:
            return math.inf
        return float(self.offset[devices] + self.weight[devices] * step_s)

    def longest_s(self, key: float, devices: int) -> float:
        """The longest step with no larger figure, negative where the devices allow none."""
        step_s = (key - self.offset[devices]) / self.weight[devices]
        return float(min(step_s, self.limit_s[devices]))


# How a model trains beside what a plan decides: what stays as it is whichever plan is chosen
# -------------------------------------------------------------------------------------------
# Degrees, batch, schedule and recomputation are decisions of a plan. Number formats, optimizer,
# dropout, kernels and what communication hides under are not; they change what layers cost, what
# state they keep and what is exposed, so that plans compare only where these are the same.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Recipe, overlap and kernels, as in `Configuration`, which has the same defaults.

    `recompute_modules` are what the mode "selective" repeats. The precision is that of the
    workload, where it names one, and else the recipe's.
    """

    recipe: Recipe = DEFAULT_RECIPE
    overlap: configuration.Overlap = configuration.DEFAULT_OVERLAP
    kernels: configuration.Kernels = configuration.USUAL_KERNELS
    recompute_modules: tuple[str, ...] | None = None

    @classmethod
    def of(cls, run: configuration.Configuration) -> RunSettings:
        """Those of a stated run."""
        return cls(
            recipe=run.recipe,
            overlap=run.overlap,
            kernels=run.kernels,
            recompute_modules=run.recompute_modules,
        )

    @property
    def kernel_names(self) -> tuple[str, str]:
        """As a profile's point names them."""
        own = self.kernels
        return (
            FUSED_ATTENTION if own.fused_attention else UNFUSED_ATTENTION,
            FUSED_CROSS_ENTROPY if own.fused_cross_entropy else UNFUSED_CROSS_ENTROPY,
        )

    def estimator(self, model: TransformerConfig, cluster: Cluster) -> Estimator:
        """What prices the layers."""
        return Estimator(
            model=model,
            cluster=cluster,
            recipe=self.recipe,
            overlap=self.overlap,
            selective_modules=self.recompute_modules,
            vocabulary_multiple=self.kernels.vocabulary_multiple,
        )

    def shape(self, run: RunShape, *, precision: str) -> RunShape:
        """The same cut of a microbatch, run so."""
        recipe = self.recipe
        return replace(
            run,
            precision=recipe.numbers(precision),
            **asdict(self.kernels),
            **recipe.run_fields,
        )

    def takes_context(self, model: Trained, *, tensor: int, context: int) -> bool:
        """Whether the model's blocks can be cut by both degrees under the exchange of context."""
        return self.context_problem(model, tensor=tensor, context=context) is None

    def context_problem(self, model: Trained, *, tensor: int, context: int) -> str | None:
        """Why the model's blocks cannot be cut by both degrees, in the words of their rule."""
        if isinstance(model, MeasuredModel) or context == 1:
            return None
        run = RunShape(
            microbatch_size=1,
            sequence_length=2 * tensor * context,
            tensor_parallel=tensor,
            context_parallel=context,
            context_exchange=self.recipe.context_exchange,
            ulysses=self.recipe.ulysses,
        )
        faults = (f.problem for f in model.faults_at(run) if f.path == "context_parallel")
        return next(faults, None)


USUAL_SETTINGS: Final = RunSettings()


# What the user fixes, bounds or forbids in the search for a model's plan; the default is all
# -------------------------------------------------------------------------------------------
# Each degree has a span of its own; what the model, the batch and the cluster allow is decided by
# `plans.configuration`, what a framework can run by `plans.capability`.


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Whole numbers from `least` to `most`, both included; no upper end where `most` is None."""

    least: int = 1
    most: int | None = None

    @classmethod
    def only(cls, value: int) -> Span:
        """The span that holds one number."""
        return cls(least=value, most=value)

    def __contains__(self, value: int) -> bool:
        return self.least <= value and (self.most is None or value <= self.most)


ANY: Final = Span()
ZERO_STAGES: Final = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """The degrees, batch sizes and methods that a plan may use.

    `expert_tensor` is the number of devices that share one expert. `schedules` None is every family
    that the planner searches by default; what is proved holds for others, too, and where some are
    named for those that are `only_bounded`. `searches_orders` asks for orders that none of them
    has, too.
    `framework` None is every plan, whether or not something runs it.
    `mappings` are orders of the axes on the network; `state_copies` is searched where shards fill
    units of the network unless it is narrowed. Where a plan `recomputes_first` it does so with the
    first blocks of every stage, as many in each, or with all that it can; bounds are those
    of any ways that repeat one block in each.
    """

    tensor: Span = ANY
    pipeline: Span = ANY
    data: Span = ANY
    context: Span = ANY
    expert: Span = ANY
    expert_tensor: Span = ANY
    virtual_stages: Span = ANY
    microbatch_size: Span = ANY
    state_copies: Span = ANY
    zero_stages: tuple[int, ...] = ZERO_STAGES
    recompute: tuple[Recompute, ...] = USUAL_MODES
    schedules: tuple[str, ...] | None = None
    only_bounded: tuple[str, ...] = ()
    searches_orders: bool = False
    framework: str | None = None
    mappings: tuple[AxisOrder, ...] = AXIS_ORDERS
    recomputes_first: bool = False

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Span):
                if value.least < 1:
                    yield Fault(field.name, f"must be >= 1, got {value.least}")
                if value.most is not None and value.most < value.least:
                    yield Fault(field.name, f"must not be empty, got {value.least}..{value.most}")
        for stage in self.zero_stages:
            if stage not in ZERO_STAGES:
                yield Fault("zero_stages", f"must be 0, 1, 2 or 3, got {stage}")
        for name in ("zero_stages", "recompute", "schedules", "mappings"):
            if getattr(self, name) == ():
                yield Fault(name, "must have at least 1 entry, got 0")

    def admits(
        self, degrees: Parallelism, *, microbatch: int, schedule: str, recomputes: bool
    ) -> bool:
        """Whether a plan of these degrees, batch and methods is one of those allowed.

        Asked of plans that some framework is known to run as this asks: `framework`, and which
        layers recompute in what way, are not looked at.
        """
        return (
            all(getattr(degrees, axis) in getattr(self, axis) for axis in _DEGREES)
            and (degrees.expert == 1 or degrees.expert_shards in self.expert_tensor)
            and microbatch in self.microbatch_size
            and degrees.zero_stage in self.zero_stages
            and degrees.axis_order in self.mappings
            and (self.schedules is None or schedule in self.schedules)
            and not (recomputes and self.recompute == (Recompute.NONE,))
        )


_DEGREES: Final = (
    *("tensor", "pipeline", "data", "context", "expert", "virtual_stages", "state_copies"),
)
EVERYTHING: Final = Allowed()


# What is asked about a model: where it trains, on how much, and what a plan may use
# ----------------------------------------------------------------------------------


def described(model: Trained) -> TransformerConfig:
    """What the model is; raises `UnsupportedFeature` where only its costs are known."""
    if isinstance(model, MeasuredModel):
        raise UnsupportedFeature(
            "a profile says what layers cost, not what they are",
            alternative="ask it of the model, by its config.json or its name in the catalog",
        )
    return model


LEAST_EFFORT: Final = 0.01
MOST_EFFORT: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelQuestion:
    """A model to train on a cluster, what the plan may use, what it leaves free of each device.

    The model is described, and its layers are estimated at any point, or it was measured at some.
    `settings` are those of the run beside what the plan decides. `account` is that of the memory of
    who runs it, where it decides what fits; else the margins of `overheads` do. `software` names
    them where that is not the framework. `effort` is how much work a search may take, as a multiple
    of the usual.
    """

    model: Trained
    cluster: Cluster
    workload: Workload
    num_devices: int
    allowed: Allowed = EVERYTHING
    overheads: configuration.MemoryOverheads = configuration.NO_OVERHEADS
    settings: RunSettings = USUAL_SETTINGS
    account: FrameworkMemory | None = None
    software: str | None = None
    effort: float = 1.0

    def __post_init__(self) -> None:
        refuse(self._faults())
        recipe, precision = self.settings.recipe, self.workload.precision
        if recipe.offload is not None:  # whoever prices a plan asks the question for the devices
            hosted = with_offload(self.cluster, recipe, precision=precision)
            object.__setattr__(self, "cluster", hosted)

    @property
    def config(self) -> TransformerConfig:
        """What the model is; raises `UnsupportedFeature` where only its costs are known."""
        return described(self.model)

    @property
    def repeated_modules(self) -> tuple[str, ...]:
        """What "selective" repeats of a block, by the kinds of blocks that the model has."""
        settings = self.settings
        fused = settings.kernels.fused_attention
        named = settings.recompute_modules or usual_modules(fused_attention=fused)
        is_known = not isinstance(self.model, MeasuredModel)
        return modules_by_block(named, self.config) if is_known else named

    @property
    def cuts_head(self) -> bool:
        """Whether the head of the model can be cut over all ranks of a pipeline."""
        model = self.model
        if isinstance(model, MeasuredModel):  # bounds on other orders keep it whole
            return not model.is_in_one_order and cuts_head(model.any_profile.structure)
        return model.head is Head.LANGUAGE and not model.num_mtp_layers

    @property
    def shards_state(self) -> bool:
        """Whether ZeRO shards anything: not of a profile that does not tell what its bytes are."""
        return not isinstance(self.model, MeasuredModel) or self.model.tells_state_apart

    @property
    def precision(self) -> str:
        """The number format that is stated, or the usual one of the devices of the one pool."""
        stated = self.workload.precision or self.settings.recipe.precision
        return stated or self.cluster.accelerator.default_precision

    @property
    def program(self) -> str | None:
        """Whose speed and memory are expected; None where nobody is named."""
        return self.software or self.allowed.framework

    @property
    def step_settings(self) -> configuration.StepSettings:
        """What a step is priced with beside its plan, profile and cluster."""
        return {"overlap": self.settings.overlap, "overheads": self.overheads}

    @property
    def step_terms(self) -> configuration.StepTerms:
        """All that a step is priced with beside its plan, profile and cluster.

        FLOPs are of forward and backward, where the model is known by more than its costs.
        """
        flops = None
        if not isinstance(self.model, MeasuredModel):
            flops = model_flops_per_sequence(self.model, self.workload.sequence_length)
        return {**self.step_settings, "model_flops_per_sequence": flops}

    @property
    def uses_host(self) -> bool:
        """Whether plans may keep anything on hosts, whose room is known of plans alone."""
        by_layer = Recompute.OFFLOAD in self.allowed.recompute
        return by_layer or self.settings.recipe.offload is not None

    @property
    def keeps_beside(self) -> bool:
        """Whether who runs it keeps tensors beside the model's, which is known of plans alone."""
        model, account = self.model, self.account
        if account is None or isinstance(model, MeasuredModel):
            return False
        return keeps_beside(account, self.settings.recipe, model)

    def estimator(self, cluster: Cluster | None = None) -> ProfileSource:
        """What prices the layers, on the question's cluster where no other is given.

        Costs that were measured are what they are on any cluster.
        """
        if isinstance(self.model, MeasuredModel):
            return self.model
        return self.settings.estimator(self.model, cluster or self.cluster)

    @property
    def recompute_rules(self) -> tuple[RecomputeRule, ...]:
        """What a block repeats in each mode that is allowed."""
        source = self.settings.estimator(self.config, self.cluster)
        fused = self.settings.kernels.fused_attention
        return tuple(source.rule(mode, fused_attention=fused) for mode in self.allowed.recompute)

    def _faults(self) -> Iterator[Fault]:
        if not 1 <= self.num_devices <= self.cluster.num_devices:
            wanted = f"must be from 1 to {self.cluster.num_devices}"
            yield Fault("num_devices", f"{wanted}, got {self.num_devices}")
        if not LEAST_EFFORT <= self.effort <= MOST_EFFORT:
            wanted = f"must be from {LEAST_EFFORT} to {MOST_EFFORT}"
            yield Fault("effort", f"{wanted}, got {self.effort:g}")
        sizes, batch = self.allowed.microbatch_size, self.workload.global_batch
        if sizes.least == sizes.most and batch % sizes.least:
            wanted = f"must divide the global batch of {batch}"
            yield Fault("microbatch_size", f"{wanted}, got {sizes.least}")
        named = [FAMILIES.get(family) for family in self.allowed.schedules or ()]
        waits = any(family is not None and family.host_of is not None for family in named)
        recipe, by_layer = self.settings.recipe, Recompute.OFFLOAD in self.allowed.recompute
        if waits or self.uses_host:
            for pool in self.cluster.pools:
                yield from configuration.offload_faults(pool.accelerator)
        if recipe.update_in_backward:
            problem = "must be left out: plans update after a step; estimate prices a run"
            yield Fault("update_in_backward", problem)
        if by_layer and recipe.offload is not None and recipe.offload.activations:
            problem = "must not list offload where all blocks leave a share on the host"
            yield Fault("recompute", f"{problem}, got {recipe.offload.in_words}")
        modules = recipe.offload_modules
        if modules and not isinstance(self.model, MeasuredModel):
            yield from model_module_faults(self.model, modules)
            if Recompute.FULL in self.allowed.recompute:
                yield Fault("recompute", f"must not list full where {configuration.KEEP_THEIRS}")
        for family in self.allowed.schedules or ():
            depths, length = self.allowed.pipeline, self.workload.sequence_length
            ranks = depths.least if depths.least == depths.most else 1
            yield from slice_faults(family, self.model, length, num_ranks=ranks)
        yield from configuration.recipe_graph_faults(recipe, self.model)
        whole = {Recompute.FULL, Recompute.OFFLOAD} & {*self.allowed.recompute}
        if recipe.cuda_graph.is_per_block and whole:
            wanted = "must be full_iteration where blocks may be recomputed whole"
            yield Fault("cuda_graph", f"{wanted}, got {recipe.cuda_graph}")


def estimate_profile(estimator: ProfileSource, question: ModelQuestion, point: Point) -> Profile:
    """What layers cost at a point."""
    return estimator.profile(_profile_point(question, point, (point.tensor,)))


def estimate_profile_of_degrees(
    estimator: ProfileSource, question: ModelQuestion, point: Point, *, tensor: tuple[int, ...]
) -> Profile:
    """Like `estimate_profile` with the options of several tensor degrees."""
    return estimator.profile(_profile_point(question, point, tensor))


def _profile_point(question: ModelQuestion, point: Point, tensor: tuple[int, ...]) -> ProfilePoint:
    return ProfilePoint(
        microbatch_size=point.microbatch_size,
        sequence_length=question.workload.sequence_length,
        tensor_parallel=tensor,
        context_parallel=point.context,
        expert_parallel=point.expert,
        expert_tensor_parallel=point.expert_tensor,
        sequence_parallel=max(tensor) > 1 and point.cuts_sequences,
        precision=question.workload.precision,
        recompute=tuple(map(str, question.allowed.recompute)),
        kernels=question.settings.kernel_names,
    )


# The uniform plans of a model: the same degrees for all stages, as frameworks run
# --------------------------------------------------------------------------------

LARGEST_BATCH = 10**6  # sequences; every microbatch of a step is simulated
LARGEST_SEQUENCE = 10**9  # tokens; far beyond any model


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One training step: so many sequences of so many tokens."""

    global_batch: int
    sequence_length: int
    precision: str | None = None

    def __post_init__(self) -> None:
        limits = (("global_batch", LARGEST_BATCH), ("sequence_length", LARGEST_SEQUENCE))
        faults = [
            Fault(name, f"must be from 1 to {limit}, got {value}")
            for name, limit in limits
            if not 1 <= (value := getattr(self, name)) <= limit
        ]
        if faults:
            raise InvalidInput(faults)

    def microbatches(self, size: int) -> int:
        """Microbatches of so many sequences in a step, over all replicas."""
        return self.global_batch // size


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Point:
    """One microbatch on one device; `expert_tensor` None is that of a model without experts.

    Plans that are searched cut sequences wherever tensors are cut; a run that is stated need not.
    """

    microbatch_size: int
    tensor: int
    context: int = 1
    expert: int = 1
    expert_tensor: int | None = None
    cuts_sequences: bool = True

    @classmethod
    def of(cls, degrees: Parallelism, microbatch_size: int | None) -> Point:
        """Where a plan of these degrees runs its layers."""
        names = ("tensor", "context", "expert", "expert_tensor")
        own = {name: getattr(degrees, name) for name in names}
        cut = degrees.sequence_parallel or degrees.tensor == 1
        return cls(microbatch_size=microbatch_size or 1, cuts_sequences=cut, **own)

    @property
    def devices(self) -> int:
        """Devices that share one sequence in one stage."""
        return self.tensor * self.context

    @property
    def expert_devices(self) -> int:
        """Devices among which all experts are dealt out."""
        return self.expert * (self.expert_tensor or self.tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Degrees of a uniform plan, the sequences of one microbatch, and the schedule."""

    microbatch_size: int
    tensor: int
    pipeline: int
    data: int
    context: int = 1
    expert: int = 1
    expert_tensor: int | None = None
    zero_stage: int = 1
    schedule: str = DEFAULT_SCHEDULE
    virtual_stages: int = 1
    axis_order: AxisOrder = DATA_INSIDE
    state_copies: int = 1

    @property
    def point(self) -> Point:
        """What prices its layers."""
        return Point(
            microbatch_size=self.microbatch_size,
            tensor=self.tensor,
            context=self.context,
            expert=self.expert,
            expert_tensor=self.expert_tensor,
        )

    @property
    def degrees(self) -> Parallelism:
        """The degrees in full."""
        return Parallelism(
            tensor=self.tensor,
            pipeline=self.pipeline,
            data=self.data,
            context=self.context,
            expert=self.expert,
            expert_tensor=self.expert_tensor,
            virtual_stages=self.virtual_stages,
            sequence_parallel=self.tensor > 1,
            zero_stage=self.zero_stage,
            axis_order=self.axis_order,
            state_copies=self.state_copies,
        )

    @property
    def num_devices(self) -> int:
        """Devices the candidate occupies."""
        return self.point.devices * self.pipeline * self.data

    def num_microbatches(self, workload: Workload) -> int:
        """Microbatches of one replica."""
        return workload.microbatches(self.microbatch_size) // self.data


def microbatch_sizes(workload: Workload, allowed: Span) -> tuple[int, ...]:
    """All that divide the global batch; or the one the user chose."""
    if allowed.least == allowed.most:
        return (allowed.least,)
    return tuple(size for size in divisors(workload.global_batch) if size in allowed)


def tensor_degrees(
    model: TransformerConfig, workload: Workload, allowed: Span, *, limit: int
) -> tuple[int, ...]:
    """Degrees up to `limit` that the model's sizes allow and that divide the sequence evenly."""
    dividing = [t for t in divisors(workload.sequence_length) if t <= limit and t in allowed]
    return model.tensor_degrees(dividing)


def node_degrees(question: ModelQuestion) -> tuple[int, ...]:
    """Tensor degrees of a question whose groups lie inside nodes, which stages may mix."""
    pool, allowed = question.cluster.pool_of(), question.allowed.tensor
    limit = pool.devices_per_node
    offered = tensor_degrees(question.config, question.workload, allowed, limit=limit)
    return tuple(filter(pool.keeps_in_node, offered))


def context_degrees(
    model: TransformerConfig, workload: Workload, allowed: Span, *, limit: int
) -> tuple[int, ...]:
    """Degrees up to `limit` that divide the sequence; twice, where halves balance a causal mask."""
    length = workload.sequence_length
    parts = 2 if model.causal else 1
    return tuple(
        c
        for c in divisors(length)
        if c <= limit and c in allowed and (c == 1 or length % (parts * c) == 0)
    )


def expert_points(model: Trained, point: Point, allowed: Allowed) -> Iterator[Point]:
    """The ways to deal the experts out: degrees that divide them, cut like the rest or not at all.

    Of a range that is named all degrees are taken that divide the tensor degree, and one that is
    fixed. A model without experts has one way.
    """
    experts = model.experts
    if experts is None:
        if 1 in allowed.expert and (point.tensor in allowed.expert_tensor):
            yield point
        return
    fixed = allowed.expert_tensor
    cuts = {1, point.tensor} if fixed == ANY else {*divisors(point.tensor)}
    cuts |= {fixed.least} if fixed.least == fixed.most else set()
    for expert in filter(allowed.expert.__contains__, divisors(experts.num_experts)):
        for cut in sorted(c for c in cuts if c in fixed and experts.ffn_size % c == 0):
            yield replace(point, expert=expert, expert_tensor=cut)


def dense_points(
    model: Trained,
    cluster: Cluster,
    workload: Workload,
    allowed: Allowed,
    settings: RunSettings,
    *,
    num_devices: int,
) -> Iterator[Point]:
    """Microbatch sizes and degrees of all that is not an expert, on at most `num_devices`."""
    if isinstance(model, MeasuredModel):
        yield from _measured_points(model, cluster, workload, allowed, num_devices=num_devices)
        return
    degrees = [
        (tensor, context)
        for tensor in tensor_degrees(model, workload, allowed.tensor, limit=num_devices)
        for context in context_degrees(
            model, workload, allowed.context, limit=num_devices // tensor
        )
        if settings.takes_context(model, tensor=tensor, context=context)
        and (tensor == 1 or workload.sequence_length % (tensor * context) == 0)
    ]
    for size in microbatch_sizes(workload, allowed.microbatch_size):
        for tensor, context in degrees:
            yield Point(microbatch_size=size, tensor=tensor, context=context)


def _measured_points(
    model: MeasuredModel,
    cluster: Cluster,
    workload: Workload,
    allowed: Allowed,
    *,
    num_devices: int,
) -> Iterator[Point]:
    """Where costs are known, inside one node; what was measured knows no context."""
    pool = cluster.pool_of()
    for size in measured_sizes(model, workload, allowed.microbatch_size):
        for tensor in model.degrees(size, allowed.recompute):
            fits = tensor <= num_devices and pool.keeps_in_node(tensor)
            if fits and tensor in allowed.tensor and 1 in allowed.context:
                yield Point(microbatch_size=size, tensor=tensor)


def sizes_of(question: ModelQuestion) -> tuple[int, ...]:
    """Microbatch sizes that a question allows: of a profile, those that it knows."""
    model, workload, allowed = question.model, question.workload, question.allowed.microbatch_size
    if isinstance(model, MeasuredModel):
        return measured_sizes(model, workload, allowed)
    return microbatch_sizes(workload, allowed)


def measured_sizes(model: MeasuredModel, workload: Workload, allowed: Span) -> tuple[int, ...]:
    """Microbatch sizes of the profile that divide the global batch."""
    batch = workload.global_batch
    return tuple(size for size in model.sizes() if size in allowed and batch % size == 0)


def run_of(point: Point, sequence_length: int) -> RunShape:
    """The point's shape, for the rules of the model."""
    return RunShape(
        microbatch_size=point.microbatch_size,
        sequence_length=sequence_length,
        tensor_parallel=point.tensor,
        sequence_parallel=point.tensor > 1,
        context_parallel=point.context,
        expert_parallel=point.expert,
        expert_tensor_parallel=point.expert_tensor,
    )


# What a plan may fill of a device: all that is usable, less what its run keeps beside the model
# ----------------------------------------------------------------------------------------------
# Libraries keep workspaces, the allocator loses some to fragmentation, the user wants some free
# (`plans.configuration.MemoryOverheads`); a pipeline rank keeps a tensor and its gradient for each
# of its boundaries, and a tensor group the gathered input of a layer. The search counts on every
# rank the boundaries of the rank that has most, one more than the first and the last need; pricing
# counts each rank's own. So what is found here fits there, under the rule by which `estimate`
# decides (`step.figures.missing_bytes`). What a framework keeps beside the model's tensors is known
# of a plan alone: one that misses the device by it is looked for again with less room.


_SHARDS_WEIGHTS: Final = 3  # the ZeRO stage
_LEAST_BYTES: Final = 1.0  # a device with nothing left still is one


def room_of_devices(question: ModelQuestion) -> Cluster:
    """The cluster with no more usable than what plans may fill, buffers included."""
    return with_usable(question.cluster, room_bytes(question, groups=0))


def room_of_candidate(
    question: ModelQuestion, candidate: Candidate, profile: Profile, *, groups: int | None = None
) -> Cluster:
    """The same, less the buffers of a rank of the candidate.

    `groups` are the process groups of a device, those of the candidate's degrees where absent.
    """
    if groups is None:
        groups = num_groups(candidate.degrees)
    left_bytes = room_bytes(question, groups=groups)
    if question.overheads.buffers:
        left_bytes -= rank_buffer_bytes(candidate, profile)
    return with_usable(question.cluster, left_bytes)


def rank_buffer_bytes(candidate: Candidate, profile: Profile) -> float:
    """Communication buffers of one device of the rank with most boundaries, cut between blocks."""
    passed = min((edge.bytes for edge in profile.structure.edges), default=0.0)
    passed /= slices_of(candidate.schedule, candidate.pipeline)
    gathered = passed * candidate.tensor if candidate.tensor > 1 else 0.0
    return 2 * passed * _most_boundaries(_shape_of(candidate)) + gathered


def room_bytes(question: ModelQuestion, *, groups: int) -> float:
    """What the peak of a plan with so many process groups may reach, without `beside_bytes`."""
    kept, device = question.overheads, question.cluster.accelerator
    left_bytes = kept.room_bytes(device.usable_bytes)
    return min(left_bytes, account_bytes(question, groups=groups) - kept.beside_bytes)


def room_of_peak(question: ModelQuestion, degrees: Parallelism) -> float:
    """What the peak of a plan of these degrees may reach, all that a device holds in it."""
    return room_bytes(question, groups=num_groups(degrees)) + question.overheads.beside_bytes


def left_bytes(question: ModelQuestion, plan: Plan, peak_bytes: float) -> float:
    """What a rank of the plan with that peak leaves free of a device; at least 0 where it fits."""
    left = question.cluster.accelerator.usable_bytes - question.overheads.needed_bytes(peak_bytes)
    groups = num_groups(plan.parallelism or Parallelism())
    return min(left, account_bytes(question, groups=groups) - peak_bytes)


def account_bytes(question: ModelQuestion, *, groups: int) -> float:
    """What the peak of a plan with so many process groups may reach by the account, if any."""
    kept = question.overheads
    account, measured = question.account, isinstance(question.model, MeasuredModel)
    if account is None or not kept.fit_probability or (account.may_hold_less and not measured):
        return math.inf  # what a device holds may be less than the step's own peak
    limit_bytes = question.cluster.accelerator.memory_bytes - kept.reserve_bytes
    most_bytes = most_allocated_bytes(account, groups, limit_bytes, kept.fit_probability)
    return most_bytes if measured else most_bytes * _most_over_cast(question, account)


def _most_over_cast(question: ModelQuestion, account: FrameworkMemory) -> float:
    """The largest ratio of the step's own peak to one without its 16-bit shards of weights.

    Of p parameters whose shards lie on a device the step's account has all states, s·p bytes, in a
    peak of S, and the framework's w·p fewer: S / (S - w·p) is at most s / (s - w).
    """
    numbers = question.settings.recipe.numbers(question.precision)
    if not account.casts_shards or max(question.allowed.zero_stages) < _SHARDS_WEIGHTS:
        return 1.0
    states = numbers.static_bytes
    return states / (states - numbers.weight_bytes)


def missing_of_plan(
    question: ModelQuestion, plan: Plan, profile: Profile, step: StepPrediction
) -> float:
    """What a device lacks to hold the plan; at most 0 where it fits, as `estimate` decides."""
    device = question.cluster.accelerator
    if question.account is None:
        return question.overheads.over_bytes(step.peak_memory_bytes, device.usable_bytes)
    alone = isinstance(question.model, MeasuredModel) or plan.parallelism is None
    return missing_bytes(
        None if alone else question.config,
        run_of_plan(question, plan, profile),
        step,
        device,
        question.account,
    )


def run_of_plan(
    question: ModelQuestion, plan: Plan, profile: Profile
) -> configuration.Configuration:
    """The plan as a launcher would state it, with the mode that most of its blocks recompute in."""
    settings, degrees = question.settings, plan.parallelism
    kinds = [layer.name for layer in profile.structure.layers]
    index_of = {layer.id: at for at, layer in enumerate(profile.structure.layers)}
    modes = [
        Recompute(mode)
        for stage in plan.stages
        for layer, mode in stage.option_of.items()
        if kinds[index_of[layer]] == LayerKind.BLOCK and mode in tuple(Recompute)
    ]
    blocks = tuple(
        sum(kinds[index_of[layer]] == LayerKind.BLOCK for layer in stage.layers)
        for stage in plan.stages
    )
    return configuration.Configuration(
        parallelism=degrees or narrowest(plan),
        microbatch_size=plan.microbatch_size or 1,
        global_batch=question.workload.global_batch,
        sequence_length=question.workload.sequence_length,
        schedule=plan.schedule if plan.order is None else plan.order.family,
        recompute=max(sorted(set(modes)), key=modes.count, default=Recompute.NONE),
        recompute_modules=settings.recompute_modules,
        blocks_per_stage=blocks if degrees is not None and any(blocks) else None,
        recipe=replace(
            settings.recipe, precision=question.workload.precision or settings.recipe.precision
        ),
        **asdict(settings.kernels),
        **question.step_settings,
    )


def narrowest(plan: Plan) -> Parallelism:
    """Degrees that stand for stages which differ: the narrowest tensor group, the most replicas."""
    return Parallelism(
        tensor=min(stage.tensor_parallel for stage in plan.stages),
        pipeline=len(plan.stages),
        data=max(stage.data_parallel for stage in plan.stages),
    )


def with_usable(cluster: Cluster, usable_bytes: float) -> Cluster:
    """The cluster with so many bytes of each device usable, if need be more than it has."""
    pool = cluster.pool_of()
    device = pool.accelerator
    if usable_bytes == device.usable_bytes:
        return cluster
    memory_bytes = max(usable_bytes, device.memory_bytes)
    share = max(usable_bytes, _LEAST_BYTES) / memory_bytes
    left = replace(device, usable_fraction=share, memory_bytes=memory_bytes)
    return replace(cluster, pools=(replace(pool, accelerator=left),))


def _shape_of(candidate: Candidate) -> PipelineShape:
    return PipelineShape(
        family=candidate.schedule,
        num_ranks=candidate.pipeline,
        num_microbatches=1,
        virtual_stages=candidate.virtual_stages,
    )


@lru_cache(maxsize=1024)
def _most_boundaries(shape: PipelineShape) -> int:
    """Boundaries to other ranks of the rank that has most of them."""
    ranks = placement_of(shape).rank_of_stage
    counts = [0] * shape.num_ranks
    for sender, receiver in pairwise(ranks):
        if sender != receiver:
            counts[sender] += 1
            counts[receiver] += 1
    return max(counts)
