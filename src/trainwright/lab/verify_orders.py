"""Level 0 of `verify`: is the document true, and are its orders fit to run?

Nothing runs. The document's figures are computed again from its own request; orders are held
against the laws of `scheduling.simulate` and, with every transfer written out, against those of
`scheduling.lower`, with buffered messages and with sends that wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainwright.documents.jobs import job_of, measured_modes, timelines_of
from trainwright.documents.model_estimate import ModelEstimateResult
from trainwright.documents.model_plan import ModelPlanResult
from trainwright.documents.open import recheck
from trainwright.documents.placement import PlacementResult
from trainwright.documents.printing import counted, no_plan
from trainwright.documents.profile_plan import (
    EstimateResult,
    PlanResult,
    StageRecord,
    profile_of_request,
)
from trainwright.documents.runs import planned_parts, trained_and_cluster
from trainwright.documents.schedule import ScheduleResult, timeline_of
from trainwright.documents.verification import Check, Control, Outcome
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats.json_text import parse_json
from trainwright.formats.schedule_json import read_compute_comms, read_compute_only
from trainwright.frameworks.pytorch import STAGES
from trainwright.lab import token_replay
from trainwright.model.config import LayerKind
from trainwright.plans.job import Job, StagePart
from trainwright.plans.lowered import LoweredKind, LoweredSchedule, Timeline, refuse_misordered
from trainwright.plans.plan import DEFAULT_SCHEDULE, Parallelism
from trainwright.plans.schedule import ActionKind, Schedule
from trainwright.profile import Recompute
from trainwright.profile.measured_model import MeasuredModel
from trainwright.scheduling.lower import as_pytorch_runs, lower, meets_in_order, validate_lowered
from trainwright.scheduling.simulate import validate
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from trainwright.model import TransformerConfig
    from trainwright.plans.prediction import RankRecord
    from trainwright.profile.measured_model import Trained


# What there is to replay of a document: its orders, or 1F1B over replicated stages
# ---------------------------------------------------------------------------------
# A schedule document and a model's plan or estimate have one pipeline with the same degrees in
# every stage: orders, times and memory of every action; a plan on several pools has one for each
# chain of like replicas. A profile's plan has degrees per stage, so there every replica of a stage
# is a worker of its own.

Verifiable = (
    PlanResult
    | EstimateResult
    | PlacementResult
    | ModelPlanResult
    | ModelPlanResult
    | ModelEstimateResult
    | ScheduleResult
)

_TINY = {
    LayerKind.EMBEDDING: token_replay.EMBEDDING,
    LayerKind.BLOCK: token_replay.BLOCK,
    LayerKind.MTP: token_replay.BLOCK,
    LayerKind.FINAL_NORM: token_replay.NORM,
    LayerKind.HEAD_TRANSFORM: token_replay.NORM,
    LayerKind.LM_HEAD: token_replay.HEAD,
}
_SHARDING = 2  # from this ZeRO stage on, parameters come and go in the lowered orders


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Orders with times and memory; `claims` are figures of the document that they must give.

    `stages` are layers of the small model, by virtual stage; `peak_activations` and `peak_bytes`
    are by rank, empty where the document does not say. `is_sharded` says that parameters are.
    `beside` are other chains of a plan on several pools, and `chain` what tells this one from them.
    """

    timeline: Timeline
    schedule: str
    stages: tuple[token_replay.Stage, ...]
    data_parallel: int = 1
    makespan_s: float | None = None
    peak_activations: tuple[int, ...] = ()
    peak_bytes: tuple[float, ...] = ()
    max_activations: int | None = None
    is_sharded: bool = False
    notes: tuple[str, ...] = ()
    chain: str = ""
    beside: tuple[Pipeline, ...] = ()

    @property
    def chains(self) -> tuple[Pipeline, ...]:
        """This pipeline and those beside it."""
        return (self, *self.beside)

    def lowered(self) -> LoweredSchedule:
        """The orders with every transfer, as an export of the plan writes them."""
        return self._lowered(self.timeline.schedule)

    def runnable(self) -> tuple[Schedule, LoweredSchedule]:
        """The same in PyTorch's terms, or as it is where there are none."""
        schedule = in_known_terms(self.timeline.schedule)
        return schedule, self._lowered(schedule)

    def _lowered(self, schedule: Schedule) -> LoweredSchedule:
        sharded = range(schedule.placement.num_stages) if self.is_sharded else ()
        return lower(schedule, costs=self.timeline.costs, sharded_stages=frozenset(sharded))


def in_known_terms(schedule: Schedule) -> Schedule:
    """In PyTorch's terms, or as it is where there are none: then no runtime of its runs it."""
    try:
        return as_pytorch_runs(schedule)
    except UnsupportedFeature:
        return schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """Stages with replicas of their own, under 1F1B; `batch_s` is what the document predicts."""

    replicated: tuple[token_replay.ReplicatedStage, ...]
    num_microbatches: int
    schedule: str
    stages: tuple[token_replay.Stage, ...]
    data_parallel: int
    in_flight: tuple[int, ...]
    batch_s: float | None = None
    time_per_sample_s: float | None = None
    notes: tuple[str, ...] = ()


@singledispatch
def subject_of(document: Any) -> Pipeline | Replicas:
    """What to replay; raises InvalidInput where the document holds no plan."""
    raise InvalidInput.of("kind", f'a document of kind "{document.kind}" has nothing to run')


@subject_of.register
def _(document: ScheduleResult) -> Pipeline:
    timeline = timeline_of(document)
    if timeline is None:
        raise InvalidInput.of("orders", f"there are none: the document is {document.status}")
    limit = document.request.max_activations
    return Pipeline(
        timeline=timeline,
        schedule=document.family,
        stages=token_replay.plain_stages(timeline.schedule.placement),
        makespan_s=document.makespan_s,
        peak_activations=document.peak_activations_per_rank,
        peak_bytes=document.peak_memory_bytes_per_rank,
        max_activations=None if limit is None else limit * (document.parts_per_stage or 1),
    )


@subject_of.register
def _(document: ModelPlanResult) -> Pipeline | Replicas:
    if document.on_pools:
        return _of_chains(document)
    if document.request.model.kind == "profile":
        return _of_measured(document, document.peak_memory_bytes_per_rank or ())
    job = job_of(document)
    if job.parallelism is None:
        return of_own_degrees(document, job)
    return _of_job(document, job, document.peak_memory_bytes_per_rank or ())


@subject_of.register
def _(document: ModelEstimateResult) -> Pipeline:
    if document.plan is not None:
        return _of_chains(document.plan)
    held = tuple(rank.total_bytes for rank in document.memory)
    if document.request.model.kind == "profile":
        found = _of_measured(document, held)
    else:
        found = _of_job(document, job_of(document), held)
    return replace(found, makespan_s=document.pipeline_s)


def _of_chains(document: ModelPlanResult) -> Pipeline:
    """The chains of like replicas, the one that ends the step with the time of the pipeline."""
    degrees = document.parallelism
    if not document.stages or degrees is None:
        raise no_plan(document.status)
    model, _ = trained_and_cluster(document.request)
    timelines = timelines_of(document)
    latest = max(range(len(timelines)), key=lambda at: timelines[at].makespan_s)
    found = []
    for number, timeline in enumerate(timelines):
        ranks = [rank for rank in document.ranks if rank.chain == number]
        stages, notes = _run_in_small(document, model, ranks)
        pools = " → ".join(dict.fromkeys(rank.device_kind for rank in ranks))
        found.append(
            Pipeline(
                timeline=timeline,
                schedule=document.schedule or DEFAULT_SCHEDULE,
                stages=stages,
                data_parallel=ranks[0].count,
                is_sharded=degrees.zero_stage >= _SHARDING and degrees.data * degrees.context > 1,
                makespan_s=document.pipeline_s if number == latest else None,
                peak_bytes=tuple(rank.memory_bytes for rank in ranks),
                notes=notes,
                chain=f"{ranks[0].count} x {pools}" if len(timelines) > 1 else "",
            )
        )
    return replace(found[0], beside=tuple(found[1:]))


def _run_in_small(
    document: ModelPlanResult, model: Trained, ranks: Sequence[RankRecord]
) -> tuple[tuple[token_replay.Stage, ...], tuple[str, ...]]:
    """The layers that a chain with these ranks runs in small, and what they leave out."""
    degrees = document.parallelism
    assert degrees is not None, "chains of like replicas share their degrees"
    if isinstance(model, MeasuredModel):
        modes = measured_modes(document, ranks)
        return _tiny_measured(model, modes), tuple(_notes_of_measured(modes, degrees))
    parts = planned_parts(document, model, ranks)
    return tiny_stages(model, parts), tuple(_notes(model, parts, degrees))


def _of_measured(
    document: ModelPlanResult | ModelEstimateResult, peak_bytes: tuple[float, ...]
) -> Pipeline:
    """What was measured, on one pool."""
    if isinstance(document, ModelPlanResult):
        degrees, schedule = document.parallelism, document.schedule
        if not document.stages or degrees is None:
            raise no_plan(document.status)
    else:
        run = document.request.configuration
        degrees, schedule = run.parallelism, run.schedule
    model, _ = trained_and_cluster(document.request)
    assert isinstance(model, MeasuredModel), "of a profile"
    modes = measured_modes(document)
    return Pipeline(
        timeline=timelines_of(document)[0],
        schedule=schedule or DEFAULT_SCHEDULE,
        stages=_tiny_measured(model, modes),
        data_parallel=degrees.data,
        is_sharded=degrees.zero_stage >= _SHARDING and degrees.data > 1,
        peak_bytes=peak_bytes,
        notes=tuple(_notes_of_measured(modes, degrees)),
    )


def _tiny_measured(
    model: MeasuredModel, stages: Sequence[Mapping[int, Recompute]]
) -> tuple[token_replay.Stage, ...]:
    """Blocks, and norms for layers beside them, of each virtual stage, recomputed as they say."""
    names = {layer.id: layer.name for layer in model.any_profile.structure.layers}

    def tiny(layer: int, mode: Recompute) -> str:
        own = token_replay.BLOCK if names[layer] == LayerKind.BLOCK else token_replay.NORM
        is_plain = mode is Recompute.NONE
        is_plain |= mode is not Recompute.FULL and own != token_replay.BLOCK
        return own if is_plain else f"{own}:{mode.value}"

    return tuple(tuple(tiny(*pair) for pair in own.items()) for own in stages)


def _notes_of_measured(
    stages: Sequence[Mapping[int, Recompute]], degrees: Parallelism
) -> Iterator[str]:
    yield "a profile does not say what its layers are: blocks run, and norms beside them"
    yield from _notes_of_modes((tuple(own.values()) for own in stages), degrees)


def _of_job(
    document: ModelPlanResult | ModelEstimateResult, job: Job, peak_bytes: tuple[float, ...]
) -> Pipeline:
    return Pipeline(
        timeline=timelines_of(document, job)[0],
        schedule=job.schedule,
        stages=tiny_stages(job.model, job.stages),
        data_parallel=job.degrees.data,
        is_sharded=job.demands.zero_stage >= _SHARDING,
        peak_bytes=peak_bytes,
        notes=tuple(_notes(job.model, job.stages, job.degrees)),
    )


@subject_of.register
def _(document: PlanResult) -> Replicas:
    return of_profile(document)


@subject_of.register
def _(document: EstimateResult) -> Replicas:
    return of_profile(document)


@subject_of.register
def _(document: PlacementResult) -> Replicas:
    return of_placement(document)


def tiny_stages(
    model: TransformerConfig, parts: Sequence[StagePart]
) -> tuple[token_replay.Stage, ...]:
    """The layers of each virtual stage, as those of the small model."""
    before = model.towers or model.tuning.reference
    if parts and before and not parts[0].has(LayerKind.EMBEDDING):
        raise UnsupportedFeature(
            "an encoder or a reference that fills the first stage cannot be run in small",
            alternative="a plan with the embedding on the first stage can",
        )
    return tuple(map(_tiny_stage, parts))


def _tiny_stage(stage: StagePart) -> token_replay.Stage:
    names = []
    for kind, mode in zip(stage.kinds, stage.recompute, strict=True):
        if kind in _TINY:
            is_plain = mode is Recompute.NONE
            is_plain |= mode is not Recompute.FULL and _TINY[kind] != token_replay.BLOCK
            names.append(_TINY[kind] if is_plain else f"{_TINY[kind]}:{mode.value}")
    return tuple(names) or (token_replay.GAIN,)


def _notes(
    model: TransformerConfig, parts: Sequence[StagePart], degrees: Parallelism
) -> Iterator[str]:
    if model.towers:
        yield "the encoder does not run"
    if model.tuning.reference:
        yield "the reference does not run"
    if model.num_mtp_layers:
        yield "layers that predict further tokens run as plain blocks"
    yield from _notes_of_modes((part.recompute for part in parts), degrees)


def _notes_of_modes(stages: Iterable[Sequence[Recompute]], degrees: Parallelism) -> Iterator[str]:
    modes = {mode for own in stages for mode in own}
    if Recompute.SELECTIVE in modes:
        yield "selective recomputation runs attention scores and the activation again"
    if Recompute.OFFLOAD in modes:
        yield "blocks that use the host copy all they keep there and back"
    if degrees.zero_stage:
        yield f"ZeRO-{degrees.zero_stage}: replicas hold whole parameters here"


# Plans whose stages have replicas of their own, as `verify` replays them: 1F1B by worker
# ---------------------------------------------------------------------------------------

_FORWARD_SHARE: Final = 1 / 3  # of a profile's stage time, which is of both directions


def of_placement(document: PlacementResult) -> Replicas:
    """The stages of a placement, on one of its equal replicas."""
    setting = document.request.setting
    if not document.stages or setting is None:
        raise no_plan(document.status)
    last = len(document.stages) - 1
    replicas = document.data_parallel or 1
    sync_s = document.gradient_sync_s or 0.0
    simulated_s = document.simulated_time_s
    return Replicas(
        replicated=tuple(
            token_replay.ReplicatedStage(
                forward_s=stage.forward_s,
                backward_s=stage.backward_s,
                replicas=1,
                in_flight=stage.microbatches_in_flight,
                feeds=(at + 1,) if at < last else (),
            )
            for at, stage in enumerate(document.stages)
        ),
        num_microbatches=-(-setting.num_microbatches // replicas),
        schedule=DEFAULT_SCHEDULE,
        stages=tuple(
            _generic(len(stage.layers), stage.num_recomputed) for stage in document.stages
        ),
        data_parallel=replicas,
        in_flight=tuple(stage.microbatches_in_flight for stage in document.stages),
        batch_s=None if simulated_s is None else simulated_s - sync_s,
        notes=("one of the equal replicas of the pipeline is replayed",) if replicas > 1 else (),
    )


def of_profile(document: PlanResult | EstimateResult) -> Replicas:
    """The stages of a profile's plan, each with its own replicas."""
    setting = document.request.setting
    if not document.stages or setting is None:
        raise InvalidInput.of("document", "holds no plan: it has no stages")
    feeds = _feeds(document)
    whole = sorted({target for targets in feeds for target in targets})
    chain = whole == list(range(1, len(feeds))) and all(len(each) <= 1 for each in feeds)
    branches = "stages that branch are run one after the other at level 2"
    return Replicas(
        replicated=tuple(map(_replicated, document.stages, feeds)),
        num_microbatches=setting.num_microbatches,
        schedule=DEFAULT_SCHEDULE,
        stages=tuple(
            _generic(len(stage.layers), stage.num_recomputed) for stage in document.stages
        ),
        data_parallel=_common([stage.data_parallel for stage in document.stages]),
        in_flight=tuple(stage.microbatches_in_flight for stage in document.stages),
        time_per_sample_s=document.time_per_sample_s,
        notes=(
            "a profile does not say how a stage's time splits; a third is taken as forward",
            *(() if chain else (branches,)),
        ),
    )


def _replicated(stage: StageRecord, feeds: tuple[int, ...]) -> token_replay.ReplicatedStage:
    own_s = stage.time_per_sample_s * stage.data_parallel
    return token_replay.ReplicatedStage(
        forward_s=own_s * _FORWARD_SHARE,
        backward_s=own_s * (1 - _FORWARD_SHARE),
        replicas=stage.data_parallel,
        in_flight=stage.microbatches_in_flight,
        feeds=feeds,
    )


def _feeds(document: PlanResult | EstimateResult) -> tuple[tuple[int, ...], ...]:
    """For each stage the stages that take a tensor of it."""
    structure = profile_of_request(document.request).structure
    stage_of = {layer: at for at, stage in enumerate(document.stages) for layer in stage.layers}
    found: list[set[int]] = [set() for _ in document.stages]
    for edge in structure.edges:
        source, target = (stage_of[structure.ids[end]] for end in (edge.source, edge.target))
        if source != target:
            found[source].add(target)
    return tuple(tuple(sorted(targets)) for targets in found)


def of_own_degrees(document: ModelPlanResult, job: Job) -> Replicas:
    """The stages of a model's plan that differ in degrees."""
    workload, last = document.request.workload, len(document.stages) - 1
    assert workload is not None and document.micro_batch is not None, "a plan has both"
    return Replicas(
        replicated=tuple(
            token_replay.ReplicatedStage(
                forward_s=rank.forward_s,
                backward_s=rank.backward_s,
                replicas=stage.data_parallel,
                in_flight=rank.memory.microbatches_in_flight,
                feeds=(at + 1,) if at < last else (),
            )
            for at, (stage, rank) in enumerate(zip(document.stages, document.ranks, strict=True))
        ),
        num_microbatches=workload.global_batch // document.micro_batch,
        schedule=job.schedule,
        stages=tiny_stages(job.model, job.stages),
        data_parallel=1,
        in_flight=tuple(rank.memory.microbatches_in_flight for rank in document.ranks),
        notes=("transfers are taken as free",),
    )


def _common(degrees: list[int]) -> int:
    return degrees[0] if len(set(degrees)) == 1 else 1


def _generic(num_layers: int, num_recomputed: int) -> token_replay.Stage:
    """Layers that are not told apart: blocks, of which the first are recomputed."""
    again = (f"{token_replay.BLOCK}:full",) * num_recomputed
    return again + (token_replay.BLOCK,) * (num_layers - num_recomputed)


# Level 0 of `verify`: is the document true, and are its orders fit to run?
# -------------------------------------------------------------------------

_MOST_PLACES = 8


def check(level: int, name: str, detail: str, faults: InvalidInput | None = None) -> Check:
    """A check that passed, or failed with these faults."""
    if faults is None:
        return Check(level=level, name=name, outcome=Outcome.PASS, detail=detail)
    where = tuple(map(str, faults.faults[:_MOST_PLACES]))
    more = len(faults.faults) - len(where)
    return Check(
        level=level,
        name=name,
        outcome=Outcome.FAIL,
        detail=f"{counted(len(faults.faults), 'contradiction')}",
        where=where if more <= 0 else (*where, f"and {more} more"),
    )


def left_out(level: int, name: str, why: str) -> Check:
    """A check that was not done, and why."""
    return Check(level=level, name=name, outcome=Outcome.LEFT_OUT, detail=why)


def check_document(document: Verifiable) -> tuple[Check, Verifiable]:
    """Every figure, from the request and the decisions that the document carries.

    The document comes back with figures that its version did not have yet.
    """
    detail = "hashes, decisions, prices and claims follow from its request"
    try:
        known = recheck(document)
    except InvalidInput as error:
        return check(0, "document", detail, error), document
    before, after = (getattr(each, "warnings", ()) for each in (document, known))
    said = "; ".join((detail, *after[len(before) :]))  # an explanation has its plan's
    return check(0, "document", said), known


def named(found: Check, subject: Pipeline) -> Check:
    """The check under the name of the chain that it is of, where there are several."""
    return replace(found, name=f"{found.name}, {subject.chain}") if subject.chain else found


def check_memory(document: Verifiable, subject: Pipeline | Replicas) -> Check:
    """No rank above its limit."""
    name = "memory"
    if isinstance(subject, Pipeline):
        return _pipeline_memory(subject)
    setting = getattr(document.request, "setting", None)
    limit = setting.memory_bytes if setting else getattr(document, "memory_limit_bytes", None)
    stages = [stage.memory_bytes for stage in getattr(document, "stages", ())]
    if limit is None or not stages:
        return left_out(0, name, "the document states no limit")
    over = [
        f"stages[{at}].memory_bytes: needs {format_bytes(each)} of {format_bytes(limit)}"
        for at, each in enumerate(stages)
        if each > limit * (1 + 1e-9)
    ]
    detail = f"at most {format_bytes(max(stages))} of {format_bytes(limit)} on a device"
    outcome = Outcome.FAIL if over else Outcome.PASS
    return Check(level=0, name=name, outcome=outcome, detail=detail, where=tuple(over))


def _pipeline_memory(subject: Pipeline) -> Check:
    timeline = subject.timeline
    limits, peaks = timeline.costs.memory.limit_bytes, timeline.peak_bytes
    held, most = timeline.schedule.peak_activations, subject.max_activations
    in_bytes = bool(subject.peak_bytes)
    over = []
    for rank in range(timeline.schedule.num_ranks):
        if peaks[rank] > limits[rank] * (1 + 1e-9):
            sizes = [format_bytes(x) if in_bytes else f"{x:g}" for x in (peaks[rank], limits[rank])]
            over.append(f"rank {rank}: holds {sizes[0]} of {sizes[1]}")
        if most is not None and held[rank] > most:
            over.append(f"rank {rank}: holds {held[rank]} activations of {most}")
    detail = f"at most {counted(max(held), 'chunk activation')} on a rank"
    if in_bytes:
        detail += f", {format_bytes(float(peaks.max()))} of {format_bytes(float(limits.min()))}"
    elif most is not None:
        detail += f", limit {most}"
    outcome = Outcome.FAIL if over else Outcome.PASS
    return Check(level=0, name="memory", outcome=outcome, detail=detail, where=tuple(over))


def check_orders(subject: Pipeline) -> Check:
    """Owners, counts, order on each rank, no cycle."""
    schedule = subject.timeline.schedule
    sizes = (
        counted(schedule.placement.num_stages, "stage"),
        counted(schedule.num_ranks, "rank"),
        f"{schedule.num_microbatches} microbatches",
    )
    actions = counted(schedule.num_actions, "action")
    detail = f"{actions}: {', '.join(sizes)}; one owner each, no cycle"
    try:
        validate(schedule)
    except InvalidInput as error:
        return check(0, "orders", detail, error)
    return check(0, "orders", detail)


def check_transfers(lowered: LoweredSchedule) -> Check:
    """Each tensor sent and received once, in one order, buffered or not; gradients reduced once."""
    detail = f"{counted(len(lowered.actions), 'step')}: sends match receives, also where sends wait"
    try:
        validate_lowered(lowered)
        validate_lowered(lowered, rendezvous=True)
    except InvalidInput as error:
        return check(0, "transfers", detail, error)
    return check(0, "transfers", detail)


def check_last_stage(subject: Pipeline) -> Check:
    """PyTorch's runtime looks losses up by the order in which the last stage ran its forwards."""
    schedule = subject.timeline.schedule
    try:
        refuse_misordered(as_pytorch_runs(schedule))
    except UnsupportedFeature as error:
        return left_out(0, "last stage", str(error))
    done = "runs" if meets_in_order(schedule) else "with microbatches numbered anew, runs"
    return check(0, "last stage", f"{done} its forwards as 0, 1, 2, …, which PyTorch needs")


def exported_checks(folder: Path, subject: Pipeline) -> Iterator[Check]:
    """The schedule files of an export, against the laws and against the plan.

    A pipeline of one rank has none: there its stages are held against the plan.
    """
    if subject.timeline.schedule.num_ranks == 1:
        yield _stages_check(folder, subject)
        return
    yield from _order_checks(folder, subject)


def _stages_check(folder: Path, subject: Pipeline) -> Check:
    path = folder / STAGES
    detail = "one rank, which needs no schedule; layers, replicas and microbatches of this plan"
    if not path.is_file():
        raise InvalidInput.of("exported", f'holds no {STAGES}; export the plan to "pytorch"')
    expected = (
        1,
        subject.data_parallel,
        subject.timeline.schedule.num_microbatches,
        tuple(
            sum(name.startswith(token_replay.BLOCK) for name in stage) for stage in subject.stages
        ),
    )
    try:
        if _stated(parse_json(path.read_bytes(), source=STAGES)) != expected:
            raise InvalidInput.of("stages", "are not those of this plan")
    except InvalidInput as error:
        return check(0, STAGES, detail, error)
    return check(0, STAGES, detail)


def _stated(found: Any) -> tuple[int, int, int, tuple[int, ...]]:
    """Pipeline ranks, replicas, microbatches, and the blocks of each stage."""
    kinds = {LayerKind.BLOCK.value, LayerKind.MTP.value}
    try:
        return (
            found["mesh"]["pipeline"],
            found["mesh"]["data"],
            found["num_microbatches"],
            tuple(
                sum(layer["kind"] in kinds for layer in stage["layers"])
                for stage in found["stages"]
            ),
        )
    except (KeyError, TypeError):
        raise InvalidInput.of("stages", "must be as `export --to pytorch` writes them") from None


def _order_checks(folder: Path, subject: Pipeline) -> Iterator[Check]:
    expected = as_pytorch_runs(subject.timeline.schedule)
    for name in ("schedule.csv", "schedule_comms.csv"):
        path, detail = folder / name, "legal, and the orders of this plan"
        if not path.is_file():
            raise InvalidInput.of("exported", f'holds no {name}; export the plan to "pytorch"')
        try:
            if name == "schedule.csv":
                found = read_compute_only(path)
                validate(found)
            else:
                lowered = read_compute_comms(path)
                validate_lowered(lowered)
                found = lowered.compute_only()
            if found != expected:
                raise InvalidInput.of("orders", "are not those of this plan")
        except InvalidInput as error:
            yield check(0, name, detail, error)
        else:
            yield check(0, name, detail)


# Orders broken on purpose, for levels 0 and 1: what lets them pass checks nothing
# --------------------------------------------------------------------------------


def controls_of(subject: Pipeline, lowered: LoweredSchedule) -> Iterator[Control]:
    """Each broken copy with the word of the check that has to catch it."""
    schedule = subject.timeline.schedule
    yield _control(0, "two actions swapped", lambda: validate(_swapped(schedule)))
    if schedule.num_ranks > 1:
        yield _control(0, "an action on a wrong rank", lambda: validate(_misplaced(schedule)))
    reduce = _first(lowered, LoweredKind.REDUCE_GRAD)
    assert reduce is not None, "a lowered schedule reduces gradients"
    without = lowered.without(reduce)
    yield _control(0, "gradients not reduced", lambda: validate_lowered(without))
    memory = subject.timeline.costs.memory
    yield _control(1, "gradients not reduced", lambda: token_replay.replay_tokens(without, memory))
    receive = _first(lowered, LoweredKind.RECV_F)
    if receive is not None:
        missing = lowered.without(receive)
        yield _control(0, "a receive missing", lambda: validate_lowered(missing))
        yield _control(1, "a receive missing", lambda: token_replay.replay_tokens(missing, memory))
        cyclic = _first_receive_early(lowered)
        if cyclic is not None:
            yield _control(0, "a cycle of waits", lambda: validate_lowered(cyclic))
            yield _control(
                1, "a cycle of waits", lambda: token_replay.replay_tokens(cyclic, memory)
            )


def _control(level: int, name: str, run: Callable[[], object]) -> Control:
    try:
        run()
    except InvalidInput as error:
        return Control(level=level, name=name, caught=True, said=str(error.faults[0]))
    return Control(level=level, name=name, caught=False, said="nothing")


def _swapped(schedule: Schedule) -> Schedule:
    """The first forward of the last stage after its backward."""
    last = schedule.placement.num_stages - 1
    kind, stage, microbatch = schedule.actions.T
    of_last = (stage == last) & (microbatch == schedule.forward_order(last)[0])
    forward = int(np.flatnonzero(of_last & (kind == ActionKind.F))[0])
    backward = int(np.flatnonzero(of_last & ((kind == ActionKind.B) | (kind == ActionKind.I)))[0])
    actions = schedule.actions.copy()
    actions[[forward, backward]] = actions[[backward, forward]]
    return _with_actions(schedule, actions)


def _misplaced(schedule: Schedule) -> Schedule:
    """The first actions of the first and the last rank change places."""
    actions = schedule.actions.copy()
    first, other = (int(schedule.rank_offsets[rank]) for rank in (0, -2))
    actions[[first, other]] = actions[[other, first]]
    return _with_actions(schedule, actions)


def _with_actions(schedule: Schedule, actions: np.ndarray) -> Schedule:
    return replace(schedule, actions=actions, pairs=schedule.pairs[:0])


def _first(lowered: LoweredSchedule, kind: LoweredKind) -> int | None:
    rows = np.flatnonzero(lowered.actions[:, 0] == kind)
    return int(rows[0]) if len(rows) else None


def _first_receive_early(lowered: LoweredSchedule) -> LoweredSchedule | None:
    """Rank 0 waits for its first gradient before it sends anything."""
    rows = lowered.rows_of(0)
    kinds = lowered.actions[rows, 0]
    receives = np.flatnonzero(kinds == LoweredKind.RECV_B)
    sends = np.flatnonzero(kinds == LoweredKind.SEND_F)
    if not len(receives) or not len(sends) or receives[0] < sends[0]:
        return None
    actions = lowered.actions.copy()
    own = actions[rows]
    actions[rows] = np.concatenate(
        [own[receives[0] : receives[0] + 1], np.delete(own, receives[0], axis=0)]
    )
    return replace(lowered, actions=actions, pairs=np.zeros(0, np.int64))
