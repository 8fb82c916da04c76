"""A plan with everything a launcher has to be told: what exporters write and readers return.

Stages are described by the kinds of their layers alone, so that no profile is needed. A plan made
by the planner and a configuration stated by hand become the same job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trainwright.errors import Fault, InvalidInput
from trainwright.model import DEFAULT_RECIPE, NO_OFFLOAD, LayerKind, Recipe, TransformerConfig
from trainwright.model.operator import MLP_ACTIVATION, usual_modules
from trainwright.plans.capability import Demands, RecomputeForm
from trainwright.plans.configuration import (
    DEFAULT_OVERLAP,
    NO_OVERHEADS,
    Configuration,
    MemoryOverheads,
    Overlap,
)
from trainwright.plans.parallelism import Parallelism
from trainwright.plans.plan import DEFAULT_SCHEDULE
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from trainwright.plans.lowered import LoweredSchedule
    from trainwright.plans.parallelism import AxisOrder
    from trainwright.plans.schedule import FamilyShape, Placement, Schedule
    from trainwright.plans.timeline import Timeline


# What an export leaves: files, how to start them, and what they do not say
# -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Who wrote a file, and from which plan; `changes` say how what is written differs from it.

    `software` is whose speed the plan's times expect, where one was named.
    """

    trainwright_version: str
    plan_sha256: str
    changes: tuple[str, ...] = ()
    software: str | None = None

    @property
    def short_hash(self) -> str:
        """Enough of the hash to find the plan."""
        return self.plan_sha256[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportBundle:
    """Texts by file name, for one target.

    `command` starts the program on every node, after the launcher and the lines of `setup`;
    `starter` is that launcher, torchrun or accelerate; `environment` are variables that must be
    set, or unset where empty. `not_represented` lists what
    of the plan the files cannot say and the framework decides by itself, `asked_of_user` what they
    need from the user.
    """

    target: str
    version: str
    files: Mapping[str, str]
    command: tuple[str, ...]
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
    orders: Orders | None = None

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

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
        modes = {*blocks, *further}
        if modes <= {Recompute.NONE}:
            return RecomputeForm.NONE
        if modes == {Recompute.FULL}:
            return RecomputeForm.ALL
        if set(blocks) == {Recompute.SELECTIVE} and modes == {Recompute.SELECTIVE}:
            return RecomputeForm.MODULES
        if Recompute.SELECTIVE in modes:
            return RecomputeForm.MIXED
        # Frameworks that count the first blocks of a stage leave further-token layers as they are.
        is_first = all(self._starts_with(stage.block_modes) for stage in self.stages)
        return RecomputeForm.FIRST if is_first and Recompute.FULL not in further else _ANY

    def _starts_with(self, modes: tuple[Recompute, ...]) -> bool:
        count = min(self.first_recomputed, len(modes))
        again = (Recompute.FULL,) * count
        return modes == again + (Recompute.NONE,) * (len(modes) - count)

    @property
    def first_recomputed(self) -> int:
        """The most blocks of a stage that are recomputed as a whole."""
        return max(stage.block_modes.count(Recompute.FULL) for stage in self.stages)

    @property
    def selected_modules(self) -> tuple[str, ...]:
        """What "selective" recomputes of a block; the default is that of `costing.Estimator`."""
        return self.recompute_modules or usual_modules(fused_attention=self.fused_attention)

    @property
    def _modules_by_block(self) -> frozenset[str]:
        """The same, activations told apart by the kind of block they are in."""
        experts, found = self.model.experts, set(self.selected_modules)
        routed = [experts is not None and experts.at(i) for i in range(self.model.num_layers)]
        if MLP_ACTIVATION in found and any(routed):
            found |= {"expert_activation"}
            found -= {MLP_ACTIVATION} if all(routed) else set()
        return frozenset(found)

    @property
    def _groups_per_token(self) -> int:
        """Groups of experts that a token may use; 0 where it may use all."""
        experts = self.model.experts
        if experts is None or experts.groups_per_token == experts.num_groups:
            return 0
        return experts.groups_per_token

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
        numbers = self.recipe.numbers(self.precision)
        on_host = self.recipe.offload or NO_OFFLOAD
        counts = {len(owned) for owned in self.placement.stages_of_rank}
        return Demands(
            parallelism=self.parallelism or Parallelism(),
            degrees_per_stage=self.parallelism is None,
            schedule=self.schedule,
            shape=self.shape,
            unequal_chunks=len(counts) > 1,
            uneven_stages=len(set(self.blocks_per_stage)) > 1,
            ends_apart=any(stage.is_end_alone for stage in self.stages),
            recompute=self.recompute_form,
            recompute_modules=self._modules_by_block,
            has_experts=self.model.experts is not None,
            num_mtp_layers=self.model.num_mtp_layers,
            groups_per_token=self._groups_per_token,
            dispatches_once=self.recipe.dispatches_once,
            narrow_dispatch=numbers.dispatch_bytes != numbers.activation_bytes,
            axis_order=self._axis_order,
            has_capacity=self.recipe.capacity_factor is not None,
            precision=self.precision,
            optimizer=str(self.recipe.optimizer),
            offload=on_host.optimizer + on_host.gradients > 0,
            offload_activations=on_host.activations > 0,
            loss_chunk=self.recipe.loss_chunk,
            mlp_tile=self.recipe.mlp_tile,
        )

    def configuration(self) -> Configuration:
        """The job as a stated run; ends go to the outer stages.

        Its recomputation must be one of the regular forms: `MIXED` and `ANY` have no such run.
        """
        form = self.recompute_form
        assert form not in (RecomputeForm.MIXED, _ANY), f"{form} is not a regular form"
        mode = {
            RecomputeForm.NONE: Recompute.NONE,
            RecomputeForm.MODULES: Recompute.SELECTIVE,
        }.get(form, Recompute.FULL)
        return Configuration(
            parallelism=self.degrees,
            microbatch_size=self.microbatch_size,
            global_batch=self.global_batch,
            sequence_length=self.sequence_length,
            schedule=self.schedule,
            recompute=mode,
            recompute_blocks=self.first_recomputed if form is RecomputeForm.FIRST else None,
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
