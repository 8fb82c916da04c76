"""A training run as its launcher states it: degrees, batch, schedule, recipe, kernels.

This is what `estimate` prices and what measured runs are compared by. Stages hold equal numbers of
blocks, with the embedding before the first and norm, head and loss after the last block; where the
blocks do not divide, the ends hold fewer (`stage_blocks`), unless the split is stated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Final, TypedDict

from trainwright.errors import Fault, InvalidInput, negative, one_of, refuse, too_low
from trainwright.model import (
    DEFAULT_RECIPE,
    PRECISIONS,
    ContextExchange,
    CudaGraph,
    Recipe,
    RunShape,
)
from trainwright.model.recipe import model_graph_faults, model_module_faults
from trainwright.plans.plan import (
    DEFAULT_SCHEDULE,
    Embedded,
    FlatRequest,
    Parallelism,
    WorkloadRecord,
    mapping_name,
)
from trainwright.plans.prediction import BESIDE
from trainwright.profile import USUAL_MODES, Recompute
from trainwright.profile.measured_model import MeasuredModel
from trainwright.provenance import RARE
from trainwright.units import MIB

if TYPE_CHECKING:
    from trainwright.cluster import Accelerator, Pool
    from trainwright.model import TransformerConfig
    from trainwright.profile.measured_model import Trained

# How far communication hides under compute, and what a device keeps free
# -----------------------------------------------------------------------
# A transfer that may hide is exposed by max(0, time - share · window): 0.9 of the compute beside it
# where a run overlaps, 0 where it does not. The defaults are those of current frameworks: gradients
# and parameters of data parallelism overlap, tensor and expert exchanges do not, pipeline transfers
# run beside compute.


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Shares, from 0 to 1, of the compute that a kind of communication may hide under.

    `gradients` hide under the backward pass that makes them, `parameters` (gathered by ZeRO) under
    the forward pass that needs them or the layer before, `tensor` exchanges under the other
    operators of their phase, `experts` likewise, `pipeline` is the share of a transfer during
    which sender and receiver compute; `host` is what activations on their way to the host and back
    hide under, of the pass that makes or needs them.
    """

    gradients: float = 0.9
    parameters: float = 0.9
    tensor: float = 0.0
    experts: float = 0.0
    pipeline: float = 1.0
    host: float = field(default=0.9, metadata={RARE: True})

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        for each in fields(self):
            if not 0 <= (share := getattr(self, each.name)) <= 1:
                yield Fault(f"overlap.{each.name}", f"must be from 0 to 1, got {share!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOverheads:
    """Bytes beside the model's own, on every device.

    `workspace_bytes` is what matrix libraries keep (two of 32 MiB on Hopper), `reserve_bytes` what
    the user wants free, `fragmentation` the share by which the allocator reserves more than it
    gives out, where no account says so; the last two count for the verdict, not for the predicted
    peak. Each class of `StageMemory` that is beside the model is a field here, of the same name.
    `buffers` says whether communication buffers are counted. What is needed of a device, by the
    account of the framework (`step.figures`), must stay within its memory with the
    `fit_probability`, too; at 0 these margins alone decide.
    """

    workspace_bytes: float = 64.0 * MIB
    reserve_bytes: float = 0.0
    fragmentation: float = 0.05
    buffers: bool = True
    fit_probability: float = field(default=0.0, metadata={RARE: True})

    def __post_init__(self) -> None:
        refuse(self._faults())

    @property
    def beside(self) -> dict[str, float]:
        """What every device holds beside the model, whatever its plan, by field."""
        return {name: getattr(self, name) for name in BESIDE}

    @property
    def beside_bytes(self) -> float:
        """All of `beside`; part of a step's peak."""
        return float(sum(getattr(self, name) for name in BESIDE))

    def needed_bytes(self, peak_bytes: float) -> float:
        """What must be usable of a device for a run of that peak, workspaces in it."""
        return peak_bytes * (1 + self.fragmentation) + self.reserve_bytes

    def room_bytes(self, usable_bytes: float) -> float:
        """What a peak may reach without `beside_bytes`: the inverse of `needed_bytes`."""
        return (usable_bytes - self.reserve_bytes) / (1 + self.fragmentation) - self.beside_bytes

    def over_bytes(self, peak_bytes: float, usable_bytes: float) -> float:
        """By how much a peak, `beside_bytes` in it, is above what it may reach."""
        return peak_bytes - self.beside_bytes - self.room_bytes(usable_bytes)

    def _faults(self) -> Iterator[Fault]:
        yield from negative(self, "workspace_bytes", "reserve_bytes")
        if not 0 <= (share := self.fragmentation) < 1:
            yield Fault("fragmentation", f"must be a share from 0 to below 1, got {share!r}")
        if not 0 <= (chance := self.fit_probability) < 1:
            yield Fault("fit_probability", f"must be from 0 to below 1, got {chance!r}")


class StepSettings(TypedDict):
    """What a step is priced with beside its plan, profile and cluster."""

    overlap: Overlap
    overheads: MemoryOverheads


class StepTerms(StepSettings):
    """The same, with the work by which throughput is known, where it is."""

    model_flops_per_sequence: float | None


DEFAULT_OVERLAP: Final = Overlap()
DEFAULT_OVERHEADS: Final = MemoryOverheads()
# Who trains fills devices: of 137 runs of llm-foundry, which took the largest microbatch that ran,
# all have a probability of 0.5, 95% one of 0.6 and 90% one of 0.7. Layouts that are known to have
# run out of memory have 0.00 to 0.32, but for one (tests/step/test_figures.py).
USUAL_FIT_PROBABILITY: Final = 0.5
SURE_FIT_PROBABILITY: Final = 0.9  # below, a run that is called fitting is worth a warning


def overheads_at(fit_probability: float) -> MemoryOverheads:
    """The defaults at a probability: an account says itself what the allocator wastes."""
    kept = DEFAULT_OVERHEADS
    wasted = 0.0 if fit_probability else kept.fragmentation
    return replace(kept, fit_probability=fit_probability, fragmentation=wasted)


USUAL_OVERHEADS: Final = overheads_at(USUAL_FIT_PROBABILITY)
NO_OVERHEADS: Final = MemoryOverheads(workspace_bytes=0.0, fragmentation=0.0, buffers=False)


# Which combinations of degrees, batch and kernels can run at all: every rule, each with its fault
# ------------------------------------------------------------------------------------------------
# The rules are those of the common launchers (Megatron-LM, DeepSpeed, torchtitan), and of
# arithmetic. What a model's sizes allow is said by the model (`TransformerConfig.faults_at`), what
# a schedule allows by its family.


def broken_rules(configuration: Configuration, model: Trained, pool: Pool) -> tuple[Fault, ...]:
    """Every rule that the configuration breaks for `model` on `pool`, in a fixed order."""
    found: list[Fault] = []
    for rule in RULES:
        found += rule(configuration, model, pool)
    return tuple(dict.fromkeys(found))


def run_shape(configuration: Configuration, *, precision: str) -> RunShape:
    """One microbatch of the configuration; raises `InvalidInput` where it cannot be cut so."""
    degrees, recipe = configuration.parallelism, configuration.recipe
    return RunShape(
        microbatch_size=configuration.microbatch_size,
        sequence_length=configuration.sequence_length,
        tensor_parallel=degrees.tensor,
        sequence_parallel=degrees.sequence_parallel,
        precision=recipe.numbers(precision),
        fused_attention=configuration.fused_attention,
        fused_cross_entropy=configuration.fused_cross_entropy,
        vocabulary_multiple=configuration.vocabulary_multiple,
        context_parallel=degrees.context,
        expert_parallel=degrees.expert,
        expert_tensor_parallel=degrees.expert_tensor,
        **recipe.run_fields,
    )


def _devices(configuration: Configuration, model: Trained, pool: Pool) -> Iterator[Fault]:
    """The degrees multiply to no more devices than there are."""
    used = configuration.parallelism.num_devices
    if used > pool.num_devices:
        wanted = f"tp x pp x dp x cp must be at most the {pool.num_devices} devices"
        yield Fault("devices", f"{wanted}, got {used}{_enough(used, pool)}")


def _enough(devices: int, pool: Pool) -> str:
    """How many nodes hold so many devices, where that is more than there are."""
    nodes = pool.nodes_for(devices)
    return f"; {nodes} nodes hold as many" if nodes > pool.num_nodes else ""


def _batch(configuration: Configuration, model: Trained, pool: Pool) -> Iterator[Fault]:
    """Every replica runs the same number of whole microbatches."""
    size, data = configuration.microbatch_size, configuration.parallelism.data
    if configuration.global_batch % (size * data):
        wanted = f"must be a multiple of micro-batch x dp ({size} x {data})"
        yield Fault("global_batch", f"{wanted}, got {configuration.global_batch}")


def _pipeline(configuration: Configuration, model: Trained, pool: Pool) -> Iterator[Fault]:
    """Every virtual stage holds a block, unless a split is stated, which holds all of them."""
    degrees, blocks = configuration.parallelism, model.num_layers
    if configuration.num_stages > blocks and configuration.blocks_per_stage is None:
        wanted = f"x virtual stages must be at most the {blocks} blocks"
        yield Fault("pipeline", f"{wanted}, got {degrees.pipeline} x {degrees.virtual_stages}")
    if degrees.pipeline == 1 and degrees.virtual_stages > 1:
        wanted = "must be 1 without pipeline stages"
        yield Fault("virtual_stages", f"{wanted}, got {degrees.virtual_stages}")
    split = configuration.blocks_per_stage
    if split is not None and 0 in split[1:-1]:
        shown = ",".join(map(str, split))
        yield Fault("blocks_per_stage", f"must give a block to every inner stage, got {shown}")
    if split is not None and sum(split) != blocks:
        yield Fault("blocks_per_stage", f"must add up to the {blocks} blocks, got {sum(split)}")


def _experts(configuration: Configuration, model: Trained, pool: Pool) -> Iterator[Fault]:
    """Experts are dealt out over whole groups of the devices of one pipeline rank."""
    degrees = configuration.parallelism
    spanned = degrees.expert * degrees.expert_shards
    if degrees.devices_per_rank % spanned:
        wanted = f"x expert-tensor must divide tp x cp x dp ({degrees.devices_per_rank})"
        least = degrees.pipeline * math.lcm(spanned, degrees.tensor * degrees.context)
        given = f"got {degrees.expert} x {degrees.expert_shards}"
        yield Fault("expert", f"{wanted}, {given}{_enough(least, pool)}")
    elif model.experts is not None and degrees.adjacent_devices % spanned:
        inside = degrees.adjacent_devices
        wanted = f"x expert-tensor must divide the {inside} devices that lie inside the pipeline"
        order = mapping_name(degrees.axis_order)
        given = f"got {degrees.expert} x {degrees.expert_shards} with {order}"
        yield Fault("expert", f"{wanted}, {given}")


def _copies(configuration: Configuration, model: Trained, pool: Pool) -> Iterator[Fault]:
    """Groups that each hold all sharded state are equal, and there is state that is sharded."""
    degrees = configuration.parallelism
    copies = degrees.state_copies
    if copies == 1:
        return
    if degrees.zero_stage == 0:
        yield Fault("state_copies", f"must be 1 without ZeRO, got {copies}; choose ZeRO 1, 2 or 3")
    if degrees.data % copies:
        yield Fault("state_copies", f"must divide dp ({degrees.data}), got {copies}")
    elif copies == degrees.data:
        unsharded = f"must be below dp ({degrees.data}), for one replica shards nothing"
        yield Fault("state_copies", f"{unsharded}, got {copies}; choose ZeRO 0")
    elif model.experts is not None and degrees.expert_data % copies:
        wanted = f"must divide the {degrees.expert_data} replicas of each expert"
        yield Fault("state_copies", f"{wanted}, got {copies}")


def _context(configuration: Configuration, model: Trained, pool: Pool) -> Iterator[Fault]:
    """Balanced rings give every rank an early and a late part; traded heads one part each."""
    c, s = configuration.parallelism.context, configuration.sequence_length
    recipe, traded = configuration.recipe, ContextExchange.ALL_TO_ALL
    if c == 1 or not model.causal or s % (2 * c) == 0:
        return
    if recipe.context_exchange is traded and s % c:
        yield Fault("sequence_length", f"must be a multiple of cp ({c}), got {s}")
    elif recipe.context_exchange is not traded and recipe.context_balanced:
        yield Fault("sequence_length", f"must be a multiple of 2 x cp ({2 * c}), got {s}")


def _recompute(configuration: Configuration, model: Trained, pool: Pool) -> Iterator[Fault]:
    """No stage recomputes more blocks than there are."""
    blocks = configuration.recompute_blocks
    if blocks is not None and blocks > model.num_layers:
        yield Fault("recompute_blocks", f"must be <= {model.num_layers}, got {blocks}")


def _measured(configuration: Configuration, model: Trained, pool: Pool) -> Iterator[Fault]:
    """Layers that were measured run in modes that were, and shard what is known to be state."""
    if not isinstance(model, MeasuredModel):
        return
    degrees, mode = configuration.parallelism, configuration.recompute
    offered = model.recompute_modes(configuration.microbatch_size, degrees.tensor)
    if offered and mode not in offered:
        modes = ", ".join(offered)
        yield Fault("recompute", f"must be one of {modes}, which the profile has, got {mode}")
    if degrees.tensor > 1 and not degrees.sequence_parallel:
        problem = "must be left on: the profile does not say what its tensor groups exchange"
        yield Fault("sequence_parallel", problem)
    if not pool.keeps_in_node(degrees.tensor):
        node = f"must keep tensor groups in a node of {pool.devices_per_node}, as measured"
        yield Fault("tensor", f"{node}, got {degrees.tensor}")
    if degrees.zero_stage and not model.tells_state_apart:
        known = "the profile does not tell weights, gradients and optimizer states apart"
        yield Fault("zero_stage", f"must be 0: {known}, got {degrees.zero_stage}")


def _precision(configuration: Configuration, model: Trained, pool: Pool) -> Iterator[Fault]:
    """The device multiplies in the formats of the recipe."""
    precision = configuration.recipe.precision
    yield from precision_faults(precision, pool.accelerator)
    wanted = PRECISIONS.get(precision or "")
    if wanted is not None and wanted.casts and configuration.parallelism.zero_stage > 1:
        known = "where gradients or weights are sharded, which are gathered in 16 bit"
        yield Fault("precision", f"must be {wanted.matmul_dtype} {known}, got {precision}")
    stage = configuration.parallelism.zero_stage
    if is_wide(model) and stage < FIRST_OF_SHARDS:
        known = "whole float32 weights have precision bf16_autocast"
        yield Fault("zero_stage", f"must be 2 or 3 beside float32 shards, got {stage}; {known}")


# The first ZeRO stage that FSDP's shards of weights are priced under: between steps, or always.
FIRST_OF_SHARDS: Final = 2


def is_wide(model: Trained) -> bool:
    """Whether frozen weights lie in float32 shards."""
    return not isinstance(model, MeasuredModel) and model.tuning.is_wide


def precision_faults(precision: str | None, device: Accelerator) -> Iterator[Fault]:
    """A precision nobody models, or its formats that the device does not multiply in.

    That of the device where absent.
    """
    wanted = PRECISIONS.get(precision or device.default_precision)
    if wanted is None:
        yield Fault("precision", one_of(PRECISIONS, precision))
        return
    for dtype in dict.fromkeys((wanted.matmul_dtype, wanted.base_dtype)):
        if dtype not in device.dtypes:
            offered = ", ".join(device.dtypes)
            yield Fault("precision", f"{device.name} multiplies in {offered}, not in {dtype}")


def _offload(configuration: Configuration, model: Trained, pool: Pool) -> Iterator[Fault]:
    """Something lies on the host only where the device says how it reaches that."""
    offload, by_block = configuration.recipe.offload, configuration.recompute is Recompute.OFFLOAD
    if offload is not None or by_block:
        yield from offload_faults(pool.accelerator)
    zero = configuration.parallelism.zero_stage
    if offload is not None and offload.weights and zero != 3:
        yield Fault("offload", f"weights: only ZeRO-3 brings them layer by layer, got {zero}")
    if by_block and offload is not None and offload.activations:
        problem = "must not be offload where all blocks leave a share on the host"
        yield Fault("recompute", f"{problem}, got {offload.in_words}")
    modules = configuration.recipe.offload_modules
    if modules and not isinstance(model, MeasuredModel):
        yield from model_module_faults(model, modules)
        if configuration.recompute is Recompute.FULL:
            yield Fault("recompute", f"must not be full where {KEEP_THEIRS}")


def modes_beside(recipe: Recipe) -> tuple[Recompute, ...]:
    """The usual modes that stand beside what a recipe records, or leaves on the host by module."""
    is_whole = not (recipe.cuda_graph.is_per_block or recipe.offload_modules)
    return tuple(mode for mode in USUAL_MODES if is_whole or mode is not Recompute.FULL)


KEEP_THEIRS: Final = "modules leave theirs on the host: a block that runs again keeps its input"


def _updates(configuration: Configuration, model: Trained, pool: Pool) -> Iterator[Fault]:
    """What is updated while its pass runs has one microbatch, and so one stage."""
    once = configuration.num_microbatches <= 1 and configuration.parallelism.pipeline == 1
    if configuration.recipe.update_in_backward and not once:
        wanted = "needs one stage and one microbatch a step"
        yield Fault("update_in_backward", f"{wanted}, got {configuration.num_microbatches}")


def offload_faults(device: Accelerator) -> Iterator[Fault]:
    """What hinders a device to keep anything on its host."""
    if device.host is None:
        wanted = "link_bytes_per_s, memory_gib and updates_per_s of [accelerator.NAME.host]"
        yield Fault("offload", f"needs {wanted}, which {device.name} does not state")


def _graphs(configuration: Configuration, model: Trained, pool: Pool) -> Iterator[Fault]:
    """Graphs record what is alike in every step, and not what recomputes blocks around them."""
    kind = configuration.recipe.cuda_graph
    yield from recipe_graph_faults(configuration.recipe, model)
    if kind.is_per_block and configuration.recompute in (Recompute.FULL, Recompute.OFFLOAD):
        wanted = "must be full_iteration where blocks are recomputed whole"
        yield Fault("cuda_graph", f"{wanted}, got {kind}")


def recipe_graph_faults(recipe: Recipe, model: Trained) -> Iterator[Fault]:
    """Why graphs of a recipe cannot be recorded for a model, however it is cut."""
    kind, modules = recipe.cuda_graph, recipe.cuda_graph_modules
    if isinstance(model, MeasuredModel):
        if kind is not CudaGraph.NONE:
            yield Fault("cuda_graph", f"must be none for layers that were measured, got {kind}")
        return
    padded = recipe.capacity_factor is not None
    yield from model_graph_faults(model, kind, modules, is_padded=padded)


def _shape(configuration: Configuration, model: Trained, pool: Pool) -> Iterable[Fault]:
    """The sizes of the model can be cut as the degrees say."""
    name = configuration.recipe.precision or pool.accelerator.default_precision
    if name not in PRECISIONS:
        return ()  # `_precision` says so, and nothing has a size without
    faults: tuple[Fault, ...] = ()
    if isinstance(model, MeasuredModel):  # nothing is cut, so that its length need not divide
        degrees = replace(configuration.parallelism, sequence_parallel=False)
        configuration = replace(configuration, parallelism=degrees)
    try:
        run = run_shape(configuration, precision=name)
    except InvalidInput as error:
        faults, degrees = error.faults, configuration.parallelism
        # A sequence that can be cut: the model's own rules are asked all the same.
        cut = replace(configuration, sequence_length=degrees.tensor * degrees.context)
        run = run_shape(cut, precision=name)
    return (*faults, *model.faults_at(run))


Rule = Callable[["Configuration", "Trained", "Pool"], Iterable[Fault]]
RULES: Final[tuple[Rule, ...]] = (
    _devices,
    _batch,
    _pipeline,
    _experts,
    _copies,
    _context,
    _recompute,
    _measured,
    _precision,
    _offload,
    _updates,
    _graphs,
    _shape,
)


# A training run as its launcher states it: degrees, batch, schedule, recipe, kernels
# -----------------------------------------------------------------------------------

LARGEST_BATCH: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One run. `recompute` holds for the first `recompute_blocks` blocks of each virtual stage.

    It holds for all blocks where that is absent; `recompute_modules` is what "selective" repeats
    (`costing.Estimator` has the default). `blocks_per_stage` lists the blocks of each
    virtual stage in pipeline order, where the split is not the default one.
    """

    parallelism: Parallelism
    microbatch_size: int
    global_batch: int
    sequence_length: int
    schedule: str = DEFAULT_SCHEDULE
    recompute: Recompute = Recompute.NONE
    recompute_blocks: int | None = None
    recompute_modules: tuple[str, ...] | None = None
    blocks_per_stage: tuple[int, ...] | None = None
    fused_attention: bool = True
    fused_cross_entropy: bool = False
    vocabulary_multiple: int = 128
    recipe: Recipe = DEFAULT_RECIPE
    overlap: Overlap = DEFAULT_OVERLAP
    overheads: MemoryOverheads = DEFAULT_OVERHEADS

    def __post_init__(self) -> None:
        refuse(self._faults())

    @property
    def kernels(self) -> Kernels:
        """Those that run."""
        return Kernels(**{each.name: getattr(self, each.name) for each in fields(Kernels)})

    @property
    def step_settings(self) -> StepSettings:
        """What a step is priced with beside its plan, profile and cluster."""
        return {"overlap": self.overlap, "overheads": self.overheads}

    def _faults(self) -> Iterator[Fault]:
        for name in ("microbatch_size", "global_batch", "sequence_length", "vocabulary_multiple"):
            if not 1 <= (value := getattr(self, name)) <= LARGEST_BATCH:
                yield Fault(name, f"must be from 1 to {LARGEST_BATCH}, got {value}")
        yield from too_low(self, 0, "recompute_blocks")
        if self.blocks_per_stage is not None:
            if len(self.blocks_per_stage) != self.num_stages:
                count = len(self.blocks_per_stage)
                wanted = f"must list {self.num_stages} virtual stages"
                yield Fault("blocks_per_stage", f"{wanted}, got {count}")
            if any(blocks < 0 for blocks in self.blocks_per_stage):
                yield Fault("blocks_per_stage", "must be >= 0")

    @property
    def num_stages(self) -> int:
        """Virtual stages of the pipeline, p·v."""
        return self.parallelism.pipeline * self.parallelism.virtual_stages

    @property
    def tokens(self) -> float:
        """Tokens of a microbatch on one context rank, b·s/c."""
        return self.microbatch_size * self.sequence_length / self.parallelism.context

    @property
    def num_microbatches(self) -> int:
        """Microbatches of a step on each replica; a batch that does not divide is rounded down."""
        return self.global_batch // (self.microbatch_size * self.parallelism.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What of a `Configuration` says which kernels run, where a request keeps that by itself."""

    fused_attention: bool = True
    fused_cross_entropy: bool = False
    vocabulary_multiple: int = 128

    def __post_init__(self) -> None:
        if not 1 <= (multiple := self.vocabulary_multiple) <= LARGEST_BATCH:
            wanted = f"must be from 1 to {LARGEST_BATCH}"
            raise InvalidInput.of("vocabulary_multiple", f"{wanted}, got {multiple}")


USUAL_KERNELS: Final = Kernels()


def even_blocks(num_blocks: int, num_stages: int) -> tuple[int, ...]:
    """Blocks of each stage: equal numbers, or else the embedding and the loss count as one each.

    Where even that does not divide, the rest goes to the stages in the middle, one each. Source:
    Megatron-LM's account of embedding and loss in the pipeline split.
    """
    if num_blocks % num_stages == 0:
        return (num_blocks // num_stages,) * num_stages
    share, rest = divmod(num_blocks + 2, num_stages)
    counts = [share] * num_stages
    first = (num_stages - rest) // 2
    for stage in range(first, first + rest):
        counts[stage] += 1
    counts[0] -= 1
    counts[-1] -= 1
    return tuple(counts) if min(counts) >= 0 else _dealt_out(num_blocks, num_stages)


def _dealt_out(num_blocks: int, num_stages: int) -> tuple[int, ...]:
    share, rest = divmod(num_blocks, num_stages)
    return tuple(share + (stage < rest) for stage in range(num_stages))


def own_split(target: str, model: TransformerConfig, num_stages: int) -> tuple[int, ...]:
    """The blocks that a framework which takes no stages gives each of them.

    nanotron ends a stage after the block with which the running sum of costs passes its share: that
    of a block by its matrices, of the head by its own; nothing else counts. Others deal blocks out
    alike, the first stages getting what is over, as NeMo Automodel names modules of Hugging Face's
    models.
    """
    if target != "nanotron":
        return _dealt_out(model.num_layers, num_stages)
    hidden, heads = model.hidden_size, model.num_heads
    block = 4 * heads * (hidden // heads) * hidden + 3 * model.ffn_size * hidden
    head = model.vocabulary_size * hidden
    total = model.num_layers * block + head
    counts, stage, done = [0] * num_stages, 0, 0
    for _ in range(model.num_layers):
        counts[stage] += 1
        done += block
        if done * num_stages > total * (stage + 1):
            stage += 1
    return tuple(counts)


# What was asked of a plan of a model, in full
# --------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest(FlatRequest):
    """The request of `plan` on a cluster: of a model, or of a profile.

    `overheads` are none where absent, `recipe`, `overlap` and `kernels` the usual ones; `top` is
    the number of runners-up, `effort` 1 where absent, and the account of memory is that of
    `software` where it is not the framework's.
    """

    cluster: Embedded | None = None
    workload: WorkloadRecord | None = None
    overheads: MemoryOverheads | None = None
    recipe: Recipe | None = None
    overlap: Overlap | None = None
    kernels: Kernels | None = field(default=None, metadata={RARE: True})
    num_devices: int | None = None
    top: int | None = None
    prefer: str | None = None
    effort: float | None = None
    software: str | None = None
