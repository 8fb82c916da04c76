"""A plan with everything a launcher has to be told: what exporters write and readers return.

Stages are described by the kinds of their layers alone, so that no profile is needed. A plan made
by the planner and a configuration stated by hand become the same job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Final

from trainwright.errors import Fault, refuse
from trainwright.model import (
    BESIDE_BLOCKS,
    DEFAULT_RECIPE,
    NO_OFFLOAD,
    TRAIN_ALL,
    Activation,
    ContextExchange,
    DeltaRule,
    Head,
    LayerKind,
    Norm,
    Recipe,
    StateSpace,
    TransformerConfig,
)
from trainwright.model.operator import modules_by_block, usual_modules
from trainwright.model.recipe import ALL_IN_16_BIT, unusual
from trainwright.model.run_shape import padded_vocabulary
from trainwright.plans.capability import Demands, RecomputeForm, known_target
from trainwright.plans.capability_table import MOVES_GRADIENTS, OF_RECIPE, PRODUCTS, TOLD
from trainwright.plans.configuration import (
    DEFAULT_OVERLAP,
    NO_OVERHEADS,
    Configuration,
    MemoryOverheads,
    Overlap,
    StepSettings,
)
from trainwright.plans.plan import DEFAULT_SCHEDULE, AxisOrder, Parallelism
from trainwright.plans.schedule import FamilyShape, Placement, Schedule
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from trainwright.plans.lowered import LoweredSchedule, Timeline


# What an export leaves: files, how to start them, and what they do not say
# -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Who wrote a file, and from which plan; `changes` say how what is written differs from it.

    `software` is whose speed the plan's times expect, where one was named; `unsaid` are choices
    of the plan that no file states.
    """

    trainwright_version: str
    plan_sha256: str
    changes: tuple[str, ...] = ()
    software: str | None = None
    unsaid: tuple[str, ...] = ()

    @property
    def short_hash(self) -> str:
        """Enough of the hash to find the plan."""
        return self.plan_sha256[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportBundle:
    """Texts by file name, for one target.

    `command` starts the program on every node, after the launcher and the lines of `setup`;
    `starter` is that launcher, torchrun or accelerate; `environment` are variables that must be
    set, or unset where empty. `settings` is the file that holds the plan, where the command does
    not name it. `not_represented` lists what of the plan the files cannot say and the framework
    decides by itself, `asked_of_user` what they need from the user.
    """

    target: str
    version: str
    files: Mapping[str, str]
    command: tuple[str, ...]
    settings: str | None = None
    setup: tuple[str, ...] = ()
    starter: str = "torchrun"
    environment: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    not_represented: tuple[str, ...] = ()
    asked_of_user: tuple[str, ...] = ()


# A plan with everything a launcher has to be told: what exporters write and readers return
# -----------------------------------------------------------------------------------------

_HEAD = frozenset({LayerKind.LM_HEAD, LayerKind.LOSS})


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePart:
    """The layers of one virtual stage, in order, and what of each is recomputed.

    `first_block` is the index in the model of the first of its blocks.
    """

    kinds: tuple[LayerKind, ...]
    recompute: tuple[Recompute, ...]
    first_block: int

    @property
    def blocks(self) -> range:
        """Indices in the model of the stage's blocks."""
        return range(self.first_block, self.first_block + self.kinds.count(LayerKind.BLOCK))

    @property
    def block_modes(self) -> tuple[Recompute, ...]:
        """What of each block is recomputed."""
        return self.modes_of(LayerKind.BLOCK)

    def modes_of(self, kind: LayerKind) -> tuple[Recompute, ...]:
        """What is recomputed of each layer of a kind."""
        pairs = zip(self.kinds, self.recompute, strict=True)
        return tuple(mode for own, mode in pairs if own is kind)

    def has(self, kind: LayerKind) -> bool:
        """Whether the stage holds a layer of the kind."""
        return kind in self.kinds

    @property
    def is_end_alone(self) -> bool:
        """Whether it holds neither a block nor a layer that predicts further tokens."""
        return not ({LayerKind.BLOCK, LayerKind.MTP} & set(self.kinds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """A schedule in full: its orders, with transfers, and when everything happens."""

    schedule: Schedule
    lowered: LoweredSchedule
    timeline: Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training run, ready to be written for a framework.

    `parallelism` None says that degrees differ between stages. `placement` says which rank runs
    which of `stages`; `orders` is there for targets that take a schedule as a file.
    """

    model: TransformerConfig
    model_name: str
    parallelism: Parallelism | None
    stages: tuple[StagePart, ...]
    placement: Placement
    shape: FamilyShape
    microbatch_size: int
    global_batch: int
    sequence_length: int
    precision: str
    schedule: str = DEFAULT_SCHEDULE
    recipe: Recipe = DEFAULT_RECIPE
    recompute_modules: tuple[str, ...] | None = None
    fused_attention: bool = True
    fused_cross_entropy: bool = False
    vocabulary_multiple: int = 128
    overlap: Overlap = DEFAULT_OVERLAP
    overheads: MemoryOverheads = NO_OVERHEADS
    devices_per_node: int = 8
    node_kinds: tuple[str, ...] = ()
    orders: Orders | None = None

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        if self.placement.num_stages != len(self.stages):
            wanted = f"must list {self.placement.num_stages} virtual stages"
            yield Fault("stages", f"{wanted}, got {len(self.stages)}")
        blocks = sum(len(stage.blocks) for stage in self.stages)
        if blocks != self.model.num_layers:
            yield Fault("stages", f"must hold {self.model.num_layers} blocks, got {blocks}")
        degrees = self.parallelism
        if degrees and self.global_batch % (self.microbatch_size * degrees.data):
            wanted = (
                f"must be a multiple of micro-batch x dp ({self.microbatch_size * degrees.data})"
            )
            yield Fault("global_batch", f"{wanted}, got {self.global_batch}")

    @property
    def state_shards(self) -> int:
        """Data-parallel replicas that share one copy of the state."""
        return self.degrees.data // self.degrees.state_copies if self.demands.zero_stage else 1

    @property
    def step_settings(self) -> StepSettings:
        """What a step is priced with beside its plan, profile and cluster."""
        return {"overlap": self.overlap, "overheads": self.overheads}

    @property
    def degrees(self) -> Parallelism:
        """The degrees that all stages share; raises where they differ."""
        assert self.parallelism is not None, "a plan with degrees per stage is refused before"
        return self.parallelism

    @property
    def num_microbatches(self) -> int:
        """Microbatches of a step on each replica."""
        return self.global_batch // (self.microbatch_size * self.degrees.data)

    @property
    def blocks_per_stage(self) -> tuple[int, ...]:
        """Blocks of each virtual stage, in pipeline order."""
        return tuple(len(stage.blocks) for stage in self.stages)

    @property
    def is_even(self) -> bool:
        """Whether every stage has the same number of blocks, with the ends on the outer ones."""
        return len(set(self.blocks_per_stage)) == 1 and self.has_usual_ends

    @property
    def has_usual_ends(self) -> bool:
        """Whether embedding is on the first and everything after the blocks on the last stage."""
        inner = (LayerKind.BLOCK,)
        return all(
            kind in inner
            or (kind is LayerKind.EMBEDDING and at == 0)
            or (kind is not LayerKind.EMBEDDING and at == len(self.stages) - 1)
            for at, stage in enumerate(self.stages)
            for kind in stage.kinds
        )

    @property
    def splits_head(self) -> bool:
        """Whether head and loss are on different stages."""
        return any(0 < len(_HEAD & set(stage.kinds)) < len(_HEAD) for stage in self.stages)

    @property
    def recompute_form(self) -> RecomputeForm:
        """The pattern of recomputation over the stages."""
        blocks = [mode for stage in self.stages for mode in stage.block_modes]
        further = [mode for stage in self.stages for mode in stage.modes_of(LayerKind.MTP)]
        encoder = [m for stage in self.stages for m in stage.modes_of(LayerKind.ENCODER_BLOCK)]
        if {*encoder} > {Recompute.NONE} or Recompute.NONE not in encoder:
            further += encoder  # one that keeps all may be idle or frozen
        modes = {*blocks, *further}
        if Recompute.OFFLOAD in modes:
            return RecomputeForm.ON_HOST
        if modes <= {Recompute.NONE}:
            return RecomputeForm.NONE
        if modes == {Recompute.FULL}:
            return RecomputeForm.ALL
        if set(blocks) == {Recompute.SELECTIVE} and modes == {Recompute.SELECTIVE}:
            return RecomputeForm.MODULES
        if Recompute.SELECTIVE in modes:
            return RecomputeForm.MIXED
        # Frameworks that count the first blocks of a stage leave the other layers as they are.
        is_first = self._is_first(Recompute.FULL)
        return RecomputeForm.FIRST if is_first and Recompute.FULL not in further else _ANY

    def _is_first(self, mode: Recompute) -> bool:
        """Whether the first so many blocks of every stage are in the mode, and others keep all."""
        most = self._most_in(mode)
        for modes in (stage.block_modes for stage in self.stages):
            count = min(most, len(modes))
            if modes != (mode,) * count + (Recompute.NONE,) * (len(modes) - count):
                return False
        return True

    def _most_in(self, mode: Recompute) -> int:
        """The most blocks of a stage that are in the mode."""
        return max(stage.block_modes.count(mode) for stage in self.stages)

    @property
    def first_recomputed(self) -> int:
        """The most blocks of a stage that are recomputed as a whole."""
        return self._most_in(Recompute.FULL)

    @property
    def stated_recompute(self) -> tuple[Recompute, int | None] | None:
        """The mode of a stated run, of all blocks or of so many of each stage; None: of no run."""
        match self.recompute_form:
            case RecomputeForm.NONE:
                return Recompute.NONE, None
            case RecomputeForm.MODULES:
                return Recompute.SELECTIVE, None
            case RecomputeForm.ALL:
                return Recompute.FULL, None
            case RecomputeForm.FIRST:
                return Recompute.FULL, self.first_recomputed
            case RecomputeForm.ON_HOST:
                blocks = {mode for stage in self.stages for mode in stage.block_modes}
                beside = {
                    m for s in self.stages for kind in BESIDE_BLOCKS for m in s.modes_of(kind)
                }
                if blocks | beside == {Recompute.OFFLOAD}:
                    return Recompute.OFFLOAD, None
                if self._is_first(Recompute.OFFLOAD) and beside <= {Recompute.NONE}:
                    return Recompute.OFFLOAD, self._most_in(Recompute.OFFLOAD)
        return None

    @property
    def selected_modules(self) -> tuple[str, ...]:
        """What "selective" recomputes of a block; the default is that of `costing.Estimator`."""
        return self.recompute_modules or usual_modules(fused_attention=self.fused_attention)

    @property
    def _modules_by_block(self) -> frozenset[str]:
        """The same, activations told apart by the kind of block they are in."""
        return frozenset(modules_by_block(self.selected_modules, self.model))

    @property
    def _axis_order(self) -> AxisOrder | None:
        """None where all orders are the same."""
        degrees = self.parallelism
        if degrees is None or min(degrees.pipeline, degrees.data) == 1:
            return None
        return degrees.axis_order

    @property
    def demands(self) -> Demands:
        """What the job demands of a framework."""
        counts = {len(owned) for owned in self.placement.stages_of_rank}
        return replace(
            training_demands(self.model, self.recipe, self.precision),
            parallelism=self.parallelism or Parallelism(),
            degrees_per_stage=self.parallelism is None,
            several_kinds=len(set(self.node_kinds)) > 1,
            schedule=self.schedule,
            shape=self.shape,
            unequal_chunks=len(counts) > 1,
            uneven_stages=len(set(self.blocks_per_stage)) > 1,
            ends_apart=any(stage.is_end_alone for stage in self.stages),
            head_apart=self.splits_head,
            recompute=self.recompute_form,
            recompute_modules=self._modules_by_block,
            axis_order=self._axis_order,
        )

    def configuration(self) -> Configuration:
        """The job as a stated run; ends go to the outer stages.

        Its recomputation must be that of one (`stated_recompute`).
        """
        stated = self.stated_recompute
        assert stated is not None, f"{self.recompute_form} is not a regular form"
        mode, blocks = stated
        return Configuration(
            parallelism=self.degrees,
            microbatch_size=self.microbatch_size,
            global_batch=self.global_batch,
            sequence_length=self.sequence_length,
            schedule=self.schedule,
            recompute=mode,
            recompute_blocks=blocks,
            recompute_modules=self.recompute_modules,
            blocks_per_stage=self.blocks_per_stage,
            fused_attention=self.fused_attention,
            fused_cross_entropy=self.fused_cross_entropy,
            vocabulary_multiple=self.vocabulary_multiple,
            recipe=replace(self.recipe, precision=self.precision),
            overlap=self.overlap,
            overheads=self.overheads,
        )


_ANY = RecomputeForm.ANY


def training_demands(model: TransformerConfig, recipe: Recipe, precision: str) -> Demands:
    """What a model that trains so demands of a framework, whatever the plan."""
    numbers, on_host = recipe.numbers(precision), recipe.offload or NO_OFFLOAD
    experts = model.experts
    limited = experts is not None and experts.groups_per_token != experts.num_groups
    return Demands(
        has_experts=experts is not None,
        num_mtp_layers=model.num_mtp_layers,
        groups_per_token=experts.groups_per_token if experts is not None and limited else 0,
        dispatches_once=recipe.dispatches_once,
        narrow_dispatch=numbers.dispatch_bytes != numbers.activation_bytes,
        has_capacity=recipe.capacity_factor is not None,
        precision=precision,
        optimizer=str(recipe.optimizer),
        offload=on_host.holds_states,
        offload_activations=on_host.activations > 0 and not recipe.offload_modules,
        layers_on_host=on_host.activations * model.num_layers,
        num_layers=model.num_layers,
        unlike_blocks=_are_unlike(model),
        offload_modules=recipe.offload_modules if on_host.activations > 0 else (),
        context_exchange=str(recipe.context_exchange),
        choices=tuple(_chosen(recipe)),
    )


def _chosen(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Fields that ask a framework for a feature of their own, and their values."""
    asked = {*unusual(recipe)}
    if not _keeps_narrow(recipe):
        asked.discard("activation_input_dtype")
    yield from ((name, str(getattr(recipe, name))) for name in OF_RECIPE if name in asked)


def _are_unlike(model: TransformerConfig) -> bool:
    """Whether blocks differ in what they keep: experts in some, or other mixers."""
    experts = model.experts
    routed = {experts is not None and experts.at(layer) for layer in range(model.num_layers)}
    return len(routed) > 1 or bool(model.choices) or model.is_recurrent


def _keeps_narrow(recipe: Recipe) -> bool:
    """Whether inputs of activations wait in another format than that of 16-bit activations."""
    return recipe.activation_input_dtype == "fp8"


# The choices of how a job trains, each beside the job without it
# ---------------------------------------------------------------

# How busy experts are is expected of the data; the precision is every target's to write or refuse.
_NO_CHOICE: Final = frozenset({"precision", "expert_imbalance", "expert_loads"})


def choices_of(job: Job, target: str) -> Iterator[tuple[str, Job]]:
    """Every choice of how the job trains that changes something, and the job with another one.

    A target that moves all states to the host by one word is told of all of them together.
    The other is the usual one. Context ranks have no usual exchange, nor tensor ranks a usual cut
    of what lies between split layers, as frameworks differ: theirs is held against any other.
    """
    degrees = job.degrees
    if degrees.tensor > 1:
        on = degrees.sequence_parallel
        other = replace(job, parallelism=replace(degrees, sequence_parallel=not on))
        yield f"sequence parallel: {'on' if on else 'off'}", other
    if job.recompute_form is RecomputeForm.MODULES and job.recompute_modules is not None:
        parts = ", ".join(job.recompute_modules)
        yield f"recomputed parts: {parts}", replace(job, recompute_modules=None)
    for name, value, usual in _recipe_choices(job, together=target in MOVES_GRADIENTS):
        yield f"{name.replace('_', ' ')}: {value}", replace(job, recipe=usual)
    if not job.fused_attention:
        yield "attention without a fused kernel", replace(job, fused_attention=True)
    if job.fused_cross_entropy:
        yield "fused cross entropy", replace(job, fused_cross_entropy=False)
    words, t = job.model.vocabulary_size, job.degrees.tensor
    multiples = (job.vocabulary_multiple, USUAL_MULTIPLE)
    if len({padded_vocabulary(words, each, t) for each in multiples}) > 1:
        what = f"a vocabulary padded to a multiple of {job.vocabulary_multiple}"
        yield what, replace(job, vocabulary_multiple=USUAL_MULTIPLE)
    for name, has in _exchanges(job):
        usual_share, share = getattr(DEFAULT_OVERLAP, name), getattr(job.overlap, name)
        if has and (share > 0) != (usual_share > 0):
            what = "overlap" if share else "do not overlap"
            overlap = replace(job.overlap, **{name: usual_share})
            yield f"exchanges of {name} {what}", replace(job, overlap=overlap)


def _recipe_choices(job: Job, *, together: bool) -> Iterator[tuple[str, str, Recipe]]:
    recipe, precision = job.recipe, job.precision
    for each in fields(Recipe):
        value, usual = getattr(recipe, each.name), getattr(DEFAULT_RECIPE, each.name)
        if each.name in _NO_CHOICE or not _matters(each.name, job):
            continue
        match each.name:
            case "context_exchange":
                other = next(kind for kind in _EXCHANGES if kind is not value)
                shown = str(value) if recipe.ulysses is None else f"{value} of {recipe.ulysses}"
                changed = replace(recipe, context_exchange=other, ulysses=None)
                yield each.name, shown, changed
            case "offload":
                for part in fields(NO_OFFLOAD):
                    if share := getattr(recipe.offload or NO_OFFLOAD, part.name):
                        left = {part.name: 0.0}
                        if together and part.name != "activations":
                            left = dict.fromkeys(("optimizer", "gradients", "weights"), 0.0)
                        less = replace(recipe.offload or NO_OFFLOAD, **left)
                        shown = f"{share:.0%} of {part.name} on the host"
                        yield each.name, shown, replace(recipe, offload=less)
            case _ if value != usual:
                names = (each.name, _BESIDE.get(each.name, each.name))
                changed = replace(recipe, **{n: getattr(DEFAULT_RECIPE, n) for n in names})
                is_same = (
                    each.name in _FORMATS
                    and len(
                        {
                            replace(numbers, reduced_bytes=numbers.sync_bytes)
                            for numbers in (changed.numbers(precision), recipe.numbers(precision))
                        }
                    )
                    == 1
                )
                if not is_same:
                    shown = ", ".join(value) if isinstance(value, tuple) else str(value)
                    yield each.name, shown, changed


_FORMATS: Final = frozenset(
    {"gradient_dtype", "reduce_dtype", "main_weight_dtype", "moment_dtypes"}
)
_EXCHANGES: Final = (ContextExchange.RING, ContextExchange.ALL_GATHER)
USUAL_MULTIPLE: Final = 128  # of the vocabulary, on each tensor rank


# What must change beside a field: moments are counted by the optimizer, parts are of graphs.
_BESIDE: Final[Mapping[str, str]] = {
    "optimizer": "moment_dtypes",
    "cuda_graph": "cuda_graph_modules",
}


def _matters(name: str, job: Job) -> bool:
    """Whether a field of the recipe changes anything of such a job."""
    degrees, has_experts = job.degrees, job.model.experts is not None
    match name:
        case "context_exchange" | "context_balanced":
            return degrees.context > 1
        case "ulysses":
            return False  # said with the exchange
        case "dropout":
            return job.recipe.applied(job.model) != job.model
        case "capacity_factor":
            return has_experts
        case "dispatch_dtype" | "token_dispatcher":
            return has_experts and degrees.expert > 1
        case "offload_modules":
            return bool(job.demands.offload_modules)
        case "activation_input_dtype":
            return _keeps_narrow(job.recipe)
        case "fused_update":
            return job.recipe.update_copy_bytes > 0
    return True


def _exchanges(job: Job) -> Iterator[tuple[str, bool]]:
    """Kinds of exchanges by their names in `Overlap`, and whether the job has them."""
    degrees = job.degrees
    replicas = job.demands.zero_stage > 0 or degrees.data * degrees.context > 1
    yield "gradients", replicas
    yield "parameters", job.demands.zero_stage > 0
    yield "tensor", degrees.tensor > 1
    yield "experts", degrees.expert > 1
    yield "pipeline", degrees.pipeline > 1
    yield "host", job.demands.offload_activations or bool(job.demands.offload_modules)


# What the files of a target leave out of a model, however it is cut
# ------------------------------------------------------------------

OF_CORE: Final = frozenset({"megatron", "megatron-bridge", "primus"})
# Targets around the trainer of transformers, whose `optim` knows optimizers of 8 bit.
_OF_TRANSFORMERS: Final = frozenset({"trl", "axolotl", "llamafactory"})
_MAMBA_KERNEL: Final = 4  # of Megatron's convolution, which has a bias
_PRODUCTS: Final = frozenset(PRODUCTS.values())
# Targets whose files say what the model is; the others run a model of the user's own.
WITH_MODEL: Final = OF_CORE | {"nanotron"}
# Targets that take a pattern of single layers, of any kind that it has a letter for.
_HYBRIDS: Final = frozenset({"megatron", "megatron-bridge"})
# Targets that run a model and an optimizer of the user's own code.
OWN_CODE: Final = frozenset(
    {"pytorch", "deepspeed", "accelerate", "torchtitan@0.2", "torchtitan@0.3"}
)
# Targets whose files say which low-rank adapters are trained; with weights in few bits beside them.
_ADAPTS: Final = frozenset({"trl", "axolotl", "llamafactory", "automodel"})
_QUANTIZES: Final = _ADAPTS - {"automodel"}
_LOADS_WIDE: Final = frozenset({"trl"})
# Programs with adapters of their own, or around a script of the user's that can have some.
_TRAIN_ADAPTERS: Final = _ADAPTS | {
    *("deepspeed", "accelerate", "pytorch", "transformers", "torchtune", "verl", "llm-foundry"),
    *("openrlhf", "litgpt", "nemo-rl", "prime-rl", "levanter", "fast-llm", "neuronx", "easyr1"),
}


def trains_adapters(software: str | None) -> bool:
    """Whether a program can train adapters beside frozen weights; a program that nobody names can.

    Those are left out of which it is not known.
    """
    return software is None or (known_target(software) or software) in _TRAIN_ADAPTERS


def unsaid_training(model: TransformerConfig, recipe: Recipe, target: str) -> tuple[Fault, ...]:
    """What of the weights that train, and of their state, the files of a target would leave out."""
    return (*_unsaid_tuning(model, target), *_unsaid_formats(recipe, target))


def _unsaid_tuning(model: TransformerConfig, target: str) -> Iterator[Fault]:
    tuning = model.tuning
    if tuning.reference and target != "accelerate":  # whose script and model are the user's
        yield Fault("reference", f"on: {target} trains one model alone in what is exported")
    tuning = replace(tuning, reference=False)
    if tuning == TRAIN_ALL or target in OWN_CODE:
        return
    low_rank = tuning.low_rank
    if low_rank is None or replace(tuning, low_rank=None) != TRAIN_ALL:
        yield Fault("freeze", f"{target} trains all weights in what is exported")
    if low_rank is not None and target not in _ADAPTS:
        yield Fault(
            "lora_rank", f"{low_rank.rank}: {target} trains all weights in what is exported"
        )
    elif low_rank is not None and not {*low_rank.targets} <= _PRODUCTS:
        left = ", ".join(each for each in low_rank.targets if each not in _PRODUCTS)
        yield Fault("lora_targets", f"{left}: have no name that all models share")
    elif low_rank is not None and low_rank.is_wide and target not in _LOADS_WIDE:
        yield Fault("weight_bits", f"{low_rank.bits}: {target} loads 16 bits in what is exported")
    elif low_rank is not None and low_rank.few_bits is not None and target not in _QUANTIZES:
        problem = f"{low_rank.bits}: {target} keeps 16 bits of a weight in what is exported"
        yield Fault("weight_bits", problem)


_CORE_MOMENTS: Final = frozenset({"fp32", "fp16", "bf16", "fp8"})  # of its precision-aware Adam


def _unsaid_formats(recipe: Recipe, target: str) -> Iterator[Fault]:
    if target in OF_CORE and (left := {*recipe.moment_dtypes} - _CORE_MOMENTS):
        yield Fault("moment_dtypes", f"{', '.join(sorted(left))}: {target} has none of these")
    for name in unusual(recipe):
        if name not in TOLD and name not in OF_RECIPE:
            asked = getattr(recipe, name)
            yield Fault(name, f"{asked}: {target} is not known to do so in what is exported")
    if recipe.update_in_backward:
        yield Fault("update_in_backward", f"{target} updates after a step in what is exported")
    keeps = ("gradients", "weights") if target in OF_CORE else ("weights",) * (target == "maxtext")
    for kept in keeps:
        if getattr(recipe.offload or NO_OFFLOAD, kept):
            yield Fault("offload", f"{kept}: {target} keeps them on the device")
    if target in OF_CORE or target in OWN_CODE - {"deepspeed", "accelerate"}:
        return
    narrow = all(getattr(recipe, name) == value for name, value in ALL_IN_16_BIT.items())
    if narrow and target == "trl":  # weights as they are loaded, and no autocast
        return
    if recipe.main_weight_dtype not in (None, "fp32"):
        said = recipe.main_weight_dtype
        yield Fault("main_weight_dtype", f"{said}: {target} keeps fp32 in what is exported")
    eight_bit = target in _OF_TRANSFORMERS and recipe.optimizer in ("adam", "lion")
    if {*recipe.moment_dtypes} not in ({"fp32"}, {"int8"} if eight_bit else {"fp32"}):
        said = ", ".join(recipe.moment_dtypes)
        yield Fault("moment_dtypes", f"{said}: {target} keeps fp32 in what is exported")


def unwritable(model: TransformerConfig, target: str) -> tuple[Fault, ...]:
    """What of a model the files of a target cannot say, however it is trained."""
    if target in OWN_CODE:
        return ()
    if target not in WITH_MODEL:
        unsaid = {
            "a decoder that attends to an encoder": model.crosses,
            "attention to later tokens": not model.causal,
            "a head of classes, or none": model.head is not Head.LANGUAGE,
        }
        return tuple(Fault("model", f"has {what}") for what, has in unsaid.items() if has)
    if target in _HYBRIDS and model.is_recurrent:
        own = (Fault("model", f"has {what}") for what in _unsaid_of_hybrid(model))
        return (*own, *_beyond_gpt(model))
    alone = not (model.attends and model.mlp)
    uneven = {
        "blocks that differ in kind": model.choices or model.mixer is not None,
        "blocks without attention or without a feed-forward part": alone,
    }
    kinds = (Fault("model", f"has {what}") for what, has in uneven.items() if has)
    return (*kinds, *_beyond_gpt(model))


def untold(model: TransformerConfig, target: str) -> Iterator[Fault]:
    """The same, each naming the target."""
    for fault in unwritable(model, target):
        yield replace(fault, problem=f"{fault.problem}, which {target} cannot be told")


def _beyond_gpt(model: TransformerConfig) -> Iterator[Fault]:
    """What of a model's blocks the arguments of a GPT cannot say."""
    unsaid = {
        "a head of classes, or none": model.head is not Head.LANGUAGE,
        "norms behind the halves of a block alone": model.norm_after,
        "attention and feed-forward part side by side": model.parallel,
        "query and key norms over all heads": model.query_key_norm_whole,
        "a gate on what attention gives that is not one per feature": model.attention_gate
        not in (0, model.num_heads * model.value_head_size),
        "a gate on what attention gives with a bias": model.attention_gate
        and model.attention_gate_bias,
        "value heads of a size of their own": model.value_size,
        "norms without weights": model.norm is Norm.WITHOUT_WEIGHT,
        "attention to keys that an indexer chose": model.latent is not None
        and model.latent.indexer is not None,
        "attention in chunks": model.chunked,
        "an encoder": model.towers,
        "attention to compressed entries": model.compressed,
        "several residual streams": model.streams > 1,
        "residuals of earlier blocks": model.residual_blocks,
        "a norm before what widens experts' outputs": model.experts is not None
        and model.experts.latent_norm,
        "inputs of each block's own": model.layer_inputs,
        "experts with norms of their own": model.experts is not None and model.experts.apart,
        "an activation that learns (xielu)": model.activation is Activation.XIELU,
    }
    for what, has in unsaid.items():
        if has:
            yield Fault("model", f"has {what}")


def _unsaid_of_hybrid(model: TransformerConfig) -> Iterator[str]:
    """What of a model's mixers the arguments of Megatron cannot say."""
    blocks = model.kinds_of_blocks
    mixers = {block.mixer for block in blocks if block.mixer is not None}
    if any(block.mixer is not None and block.attends for block in blocks):
        yield "a mixer and attention side by side"
    if len(mixers) > 1:
        yield "mixers of several sizes"
    for mixer in mixers:
        if isinstance(mixer, DeltaRule) and mixer.narrow_size is None:
            if mixer.gate_bias:
                yield "a gated delta rule with a bias on its gate"
        elif not isinstance(mixer, StateSpace) or mixer.time_rank is not None:
            yield f"mixers other than Mamba-2 and the gated delta rule ({mixer.name})"
        elif mixer.kernel != _MAMBA_KERNEL or not mixer.convolution_bias or mixer.bias:
            yield "a convolution or products that Megatron's Mamba-2 has not"
        elif not mixer.gated_norm:
            yield "Mamba-2 without its gated norm"
    if any(choice.overrides for choice in model.choices):
        yield "attention that differs from block to block"
