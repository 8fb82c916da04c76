"""The document of `estimate` on a model: one stated run, its step and its memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from trainwright.cluster import Cluster
from trainwright.cluster.framework_memory import is_sharded_by_deepspeed
from trainwright.costing.estimate import roofline_provenance
from trainwright.documents.fit import (
    ClassRecord,
    FailureRecord,
    StepDocument,
    account_words,
    class_records,
    class_table,
    failure_lines,
    failure_record,
    figure_fields,
    figure_table,
    fit_line,
    host_bytes,
    host_holds,
    phase_table,
    run_fits,
    whole_experts,
)
from trainwright.documents.model_plan import ModelPlanResult
from trainwright.documents.plan_view import (
    evidence_line,
    measured_words,
    memory_assumption,
    mfu_in_words,
    overlap_in_words,
    plan_view,
    state_in_words,
    to_fit_in_words,
    unfitted_line,
)
from trainwright.documents.printing import sharding_words
from trainwright.documents.runs import gaps_of, job_of_configuration, range_of, trained_and_cluster
from trainwright.documents.view import (
    Cell,
    Line,
    Table,
    column,
    part_of_step,
    percent,
    seconds,
    size,
    table_of,
    taken_for_granted,
    warning_lines,
    words,
)
from trainwright.errors import InvalidInput
from trainwright.formats.calibration_toml import framework_memory
from trainwright.model import model_flops_per_sequence
from trainwright.options.clusters import with_host
from trainwright.options.inputs import (
    ModelInput,
    ProfileInput,
    embed_cluster,
    naming_options,
)
from trainwright.options.option import Options
from trainwright.options.question import measured_by
from trainwright.options.run import OPTION_OF, configuration_of, overlap_not_taken, without_effect
from trainwright.planning.reasons.improve import changes_that_fit, grown
from trainwright.plans.capability import known_target
from trainwright.plans.configuration import Configuration, is_wide
from trainwright.plans.job import trains_adapters, unsaid_training
from trainwright.plans.plan import CommandLine, Embedded
from trainwright.plans.prediction import MEMORY_CLASSES, RankMemory, StageMemory, StepPrediction
from trainwright.plans.status import MemorySnapshot, OutOfMemory
from trainwright.profile.measured_model import MeasuredModel
from trainwright.provenance import RARE, __version__
from trainwright.step.figures import PhaseMemory, phase_memories
from trainwright.step.predict import (
    hardware_flops_per_sequence,
    price_configuration,
    profile_of_run,
)
from trainwright.units import GIB, format_bytes, format_count, format_seconds, without_noise

if TYPE_CHECKING:
    from trainwright.documents.model_search import StatedPlan
    from trainwright.profile.measured_model import Trained


class Verdict(StrEnum):
    """FITS as probably as was asked, with all margins; TIGHT probably, without them; else not."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedChange:
    """A change of options that makes the run fit, and what its step then takes.

    `slowdown` and `device_time_ratio` compare step time, and step time times devices, with those of
    the run as it was asked for.
    """

    options: str
    description: str
    step_time_s: float
    slowdown: float
    device_time_ratio: float
    devices_used: int
    peak_memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEstimateRequest:
    """Everything the estimate depends on.

    `framework` is the one whose account of memory holds, `failure` what a job said that ran out,
    `snapshot` the fullest device of a job whose memory was recorded.
    """

    trainwright_version: str
    model: Embedded
    cluster: Embedded
    configuration: Configuration
    framework: str | None = None
    failure: OutOfMemory | None = None
    snapshot: MemorySnapshot | None = None
    command_line: CommandLine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEstimateResult(StepDocument):
    """Predicted step of a stated run. Times in seconds, sizes in bytes, shares as fractions.

    `step_time_low_s` and `step_time_high_s` hold nine of ten measured steps. They and the shares of
    the peak are absent where only the costs of the layers are known, tokens where nobody said how
    long a sequence is. `memory` has one entry per pipeline rank; all tensor, context and data ranks
    of it hold the same. `changes` would each make the run fit; there are none where it fits, None
    where they were not asked for. A job that ran out of memory does not fit, whatever was
    predicted: `failure` says where. `snapshot` compares recorded memory by class. `phases` are what
    a device holds before the first step, in one and while a checkpoint is saved, where known.

    On several pools `plan` has the stages, and where they lie. Communication and bubble are those
    of the chain that ends the step, `num_microbatches` those of the replica that has most; limit
    and margin are those of the rank with the least room to spare, `heaviest_rank` its place in
    `memory`.
    """

    kind: str = "model-estimate"
    step_time_s: float
    step_time_low_s: float | None
    step_time_high_s: float | None
    tokens_per_s: float | None
    tokens_per_s_per_device: float | None
    mfu: float | None
    hfu: float | None
    pipeline_s: float
    optimizer_s: float
    exposed_communication_s: dict[str, float]
    hidden_communication_s: dict[str, float]
    bubble_of_makespan: float
    devices_used: int
    num_microbatches: int
    memory: tuple[RankMemory, ...]
    peak_memory_bytes: float
    heaviest_rank: int
    memory_limit_bytes: float
    margin_bytes: float
    fits: bool
    verdict: Verdict
    failure: FailureRecord | None = None
    snapshot: tuple[ClassRecord, ...] = ()
    phases: tuple[PhaseMemory, ...] = field(default=(), metadata={RARE: True})
    changes: tuple[PricedChange, ...] | None = ()
    warnings: tuple[str, ...] = ()
    assumptions: dict[str, str] = field(default_factory=dict)
    request: ModelEstimateRequest
    plan: ModelPlanResult | None = field(default=None, metadata={RARE: True})


# `estimate` on a model: one stated run on a cluster, as a document
# -----------------------------------------------------------------


def estimate_model(
    given: ModelInput | ProfileInput,
    *,
    cluster: Cluster,
    num_devices: int,
    options: Options,
    changes: bool = False,
    framework: str | None = None,
    failure: OutOfMemory | None = None,
    snapshot: MemorySnapshot | None = None,
    warnings: Sequence[str] = (),
) -> ModelEstimateResult:
    """Price the run; raises `InvalidInput` naming every rule it breaks, by its option.

    With `changes`, what would make it fit is priced too, which takes a few times as long.

    Data parallelism that is not given fills `num_devices`, of which the last node may have more.
    """
    model, options = _trained(given, options)
    with naming_options(OPTION_OF):
        run = configuration_of(options, num_devices=num_devices)
        used = run.parallelism.num_devices
        if num_devices < used <= cluster.num_devices:
            wanted = f"tp x pp x dp x cp must be at most the {num_devices} devices"
            raise InvalidInput.of("devices", f"{wanted}, got {used}")
        request = ModelEstimateRequest(
            trainwright_version=__version__,
            model=given.embedded,
            cluster=embed_cluster(cluster),
            configuration=run,
            framework=framework,
            failure=failure,
            snapshot=snapshot,
        )
        document = price_request(model, cluster, request, changes=changes)
    notes = [*given.warnings, *warnings]
    if not isinstance(given, ProfileInput):
        notes += given.beyond(options.get("sequence"))
    if used < num_devices:
        notes.append(f"uses {used} of {num_devices} devices")
    return replace(document, warnings=(*notes, *document.warnings))


def estimate_on_pools(
    given: ModelInput | ProfileInput,
    options: Options,
    *,
    framework: str | None = None,
    warnings: Sequence[str] = (),
) -> ModelEstimateResult:
    """Price a run that lies on several pools as the options say.

    Raises `InvalidInput` naming every rule it breaks, `UnsupportedFeature` for what is priced on
    one pool alone.
    """
    from trainwright.documents.model_search import stated_plan

    stated = stated_plan(given, options, _trained(given, options)[1])
    cluster = stated.question.cluster
    request = ModelEstimateRequest(
        trainwright_version=__version__,
        model=given.embedded,
        cluster=embed_cluster(cluster),
        configuration=stated.run,
        framework=framework,
    )
    said = (*given.warnings, *warnings, *stated.document.warnings)
    return replace(
        _of_stated_plan(stated, request),
        warnings=(*said, *overlap_not_taken(stated.run.overlap, cluster)),
    )


def _of_stated_plan(stated: StatedPlan, request: ModelEstimateRequest) -> ModelEstimateResult:
    plan, run, step = stated.document, stated.run, stated.priced.step
    own = step.chains[step.slowest].step
    on_host = plan.host_bytes_per_rank or (None,) * len(plan.ranks)
    memory = tuple(
        RankMemory(
            rank=rank.rank,
            **_class_bytes(rank.memory),
            total_bytes=rank.memory_bytes,
            margin_bytes=rank.margin_bytes,
            microbatches_in_flight=rank.memory.microbatches_in_flight,
            largest_class=_largest_class(rank.memory),
            host_bytes=held,
            chain=rank.chain,
            pool=rank.pool,
            device_kind=rank.device_kind,
            memory_limit_bytes=rank.memory_limit_bytes,
        )
        for rank, held in zip(plan.ranks, on_host, strict=True)
    )
    worst = min(range(len(memory)), key=lambda at: memory[at].margin_bytes)
    fits = bool(plan.fits) and stated.hosts_hold
    has_room = all(rank.memory_bytes <= rank.memory_limit_bytes for rank in plan.ranks)
    tight = Verdict.TIGHT if has_room and stated.hosts_hold else Verdict.DOES_NOT_FIT
    model, hfu = stated.question.model, None
    if step.mfu is not None and not isinstance(model, MeasuredModel):
        alone = stated.question.cluster.alone(plan.ranks[0].pool)
        flops = model_flops_per_sequence(model, run.sequence_length)
        hfu = step.mfu * hardware_flops_per_sequence(model, alone, run) / flops
    return ModelEstimateResult(
        step_time_s=step.step_time_s,
        step_time_low_s=plan.step_time_low_s,
        step_time_high_s=plan.step_time_high_s,
        tokens_per_s=step.tokens_per_s,
        tokens_per_s_per_device=plan.tokens_per_s_per_device,
        mfu=step.mfu,
        hfu=hfu,
        pipeline_s=step.pipeline_s,
        optimizer_s=step.optimizer_s,
        exposed_communication_s={part.kind: part.exposed_s for part in own.communication},
        hidden_communication_s={part.kind: part.hidden_s for part in own.communication},
        bubble_of_makespan=max(0.0, own.bubble_of_makespan),
        devices_used=stated.priced.plan.devices_used,
        num_microbatches=max(chain.num_microbatches for chain in step.chains),
        memory=memory,
        peak_memory_bytes=step.peak_memory_bytes,
        heaviest_rank=worst,
        memory_limit_bytes=plan.ranks[worst].memory_limit_bytes,
        margin_bytes=memory[worst].margin_bytes,
        fits=fits,
        verdict=Verdict.FITS if fits else tight,
        changes=() if fits else None,
        assumptions=plan.assumptions,
        request=request,
        plan=replace(plan, warnings=()),
    )


def _trained(given: ModelInput | ProfileInput, options: Options) -> tuple[Trained, Options]:
    """The model, and the options with what a profile decides where nothing is said."""
    if not isinstance(given, ProfileInput):
        return given.config, options
    length = options.get("sequence")
    model = measured_by(given.points, sequence=length)
    known = model.sequence_length
    usual = {"sequence": 1 if known is None else known, "micro_batch": min(model.sizes())}
    if not model.tells_state_apart:
        usual["zero"] = 0
    stated = {name: value for name, value in options.items() if value is not None}
    return model, {**usual, **stated}


def price_request(
    model: Trained,
    cluster: Cluster,
    request: ModelEstimateRequest,
    *,
    changes: bool = False,
) -> ModelEstimateResult:
    """The document of a request: the step, and with `changes` what would make it fit."""
    run, limit_bytes = request.configuration, cluster.accelerator.usable_bytes
    if is_wide(model) and is_sharded_by_deepspeed(request.framework or ""):
        raise InvalidInput.of("weight-bits", "must be absent: DeepSpeed casts what it shards")
    spread = range_of(model, cluster, run)
    step = price_configuration(model, cluster, run)
    on_host = () if isinstance(model, MeasuredModel) else host_bytes(model, cluster, run, step)
    host = cluster.accelerator.host
    room = host is None or max(on_host, default=0.0) <= host.memory_bytes
    if isinstance(model, MeasuredModel):
        assumptions = assumptions_of_measured(model, cluster, run)
    else:
        assumptions = assumptions_of(cluster, run, spread.source if spread else "")
    shown = figure_fields(model, run, step, cluster.accelerator, framework=request.framework)
    failed = request.failure
    possible = failed is None and room
    asked = run.overheads.fit_probability
    likely = request.framework is None or shown["fit_probability"] >= asked
    fits = possible and run_fits(model, run, step, cluster, framework=request.framework)
    tight = possible and likely and step.peak_memory_bytes <= limit_bytes
    verdict = Verdict.TIGHT if tight else Verdict.DOES_NOT_FIT
    missing_bytes = 0.0 if failed is None else failed.missing_bytes
    enough: tuple[PricedChange, ...] | None = ()
    if not fits:
        enough = None
        if changes:
            enough = changes_enough(
                model,
                cluster,
                run,
                step,
                framework=known_target(request.framework or ""),
                software=request.framework,
                missing_bytes=missing_bytes,
            )
    phases: tuple[PhaseMemory, ...] = ()
    if request.framework is not None and not isinstance(model, MeasuredModel):
        account = framework_memory(request.framework)
        phases = phase_memories(model, run, step, cluster.accelerator, account)
    devices, tokens_per_s = run.parallelism.num_devices, step.tokens_per_s
    classes = [_largest_class(stage.memory) for stage in step.stages]
    return ModelEstimateResult(
        step_time_s=step.step_time_s,
        step_time_low_s=None if spread is None else spread.low_ratio * step.step_time_s,
        step_time_high_s=None if spread is None else spread.high_ratio * step.step_time_s,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=None if tokens_per_s is None else tokens_per_s / devices,
        mfu=step.mfu,
        hfu=step.hfu,
        pipeline_s=step.pipeline_s,
        optimizer_s=step.optimizer_s,
        exposed_communication_s={part.kind: part.exposed_s for part in step.communication},
        hidden_communication_s={part.kind: part.hidden_s for part in step.communication},
        bubble_of_makespan=max(0.0, step.bubble_of_makespan),
        devices_used=devices,
        num_microbatches=run.num_microbatches,
        memory=tuple(_rank_memories(step, run, limit_bytes, on_host)),
        peak_memory_bytes=step.peak_memory_bytes,
        heaviest_rank=step.fullest_stage,
        memory_limit_bytes=limit_bytes,
        margin_bytes=_margin_bytes(step.peak_memory_bytes, run, limit_bytes),
        **shown,
        fits=fits,
        verdict=Verdict.FITS if fits else verdict,
        failure=None
        if failed is None
        else failure_record(
            failed, run, step.stages, fullest=step.fullest_stage, largest_classes=classes
        ),
        snapshot=()
        if request.snapshot is None
        else class_records(request.snapshot, step.stages[step.fullest_stage].memory.by_class),
        phases=phases,
        changes=enough,
        warnings=(
            *_warnings(request.model.name, model, cluster, run),
            *_full_host(on_host, cluster, room=room),
            *_full_first_host(phases, cluster),
            *(whole_experts(model, request.framework) if _has_few_bits(model) else ()),
        ),
        assumptions=assumptions,
        request=request,
    )


def changes_enough(
    model: Trained,
    cluster: Cluster,
    run: Configuration,
    step: StepPrediction,
    *,
    framework: str | None = None,
    software: str | None = None,
    missing_bytes: float = 0.0,
    runs_whole: bool = False,
) -> tuple[PricedChange, ...]:
    """What makes the run fit, cheapest first, compared with its own `step`.

    With a framework, only what that can run, or unless `runs_whole` as much of it as of the run
    itself; `software` is whose account of memory holds. A job that ran out must spare
    `missing_bytes` of what it was predicted to need, whether that was too much or not.
    """
    most_bytes = math.inf
    if missing_bytes:
        most_bytes = run.overheads.needed_bytes(step.peak_memory_bytes) - missing_bytes

    def is_enough(trained: Trained, changed: Configuration, other: StepPrediction) -> bool:
        spared = run.overheads.needed_bytes(other.peak_memory_bytes) <= most_bytes
        fits = spared and run_fits(trained, changed, other, cluster, framework=software)
        return fits and host_holds(trained, grown(hosted, changed), changed, other)

    def gaps(trained: Trained, asked: Configuration) -> set[str]:
        if isinstance(trained, MeasuredModel):
            return set()
        found = () if trained is model or trains_adapters(software) else ("lora_rank",)
        if framework is None:
            return {*found}
        job = job_of_configuration(asked, trained, cluster, model_name="model")
        unsaid = (each.path for each in unsaid_training(trained, asked.recipe, framework))
        return {*found, *unsaid, *(gap.field for gap in gaps_of(job, framework))}

    now, hosted = set() if runs_whole else gaps(model, run), with_host(cluster)
    found = changes_that_fit(
        model, hosted, run, is_enough, wanted=lambda *new: not gaps(*new) - now
    )
    device_s = step.step_time_s * run.parallelism.num_devices
    return tuple(
        PricedChange(
            options=change.options,
            description=change.description,
            step_time_s=change.step.step_time_s,
            slowdown=change.step.step_time_s / step.step_time_s,
            device_time_ratio=change.device_s / device_s,
            devices_used=change.configuration.parallelism.num_devices,
            peak_memory_bytes=change.step.peak_memory_bytes,
        )
        for change in found
    )


def _margin_bytes(peak_bytes: float, run: Configuration, limit_bytes: float) -> float:
    return limit_bytes - run.overheads.needed_bytes(peak_bytes)


def _has_few_bits(model: Trained) -> bool:
    low_rank = None if isinstance(model, MeasuredModel) else model.tuning.low_rank
    return low_rank is not None and low_rank.few_bits is not None


def _full_first_host(phases: Sequence[PhaseMemory], cluster: Cluster) -> Iterator[str]:
    host, most = cluster.accelerator.host, max((each.host_bytes for each in phases), default=0.0)
    if host is None:
        return
    room = host.memory_bytes * cluster.pool_of().devices_per_node
    if most > room:
        yield (
            f"checkpoint: rank 0 gathers {format_bytes(most)} of weights in host memory, of which "
            f"a node has {format_bytes(room)}: save shard by shard"
        )


def _full_host(on_host: Sequence[float], cluster: Cluster, *, room: bool) -> Iterator[str]:
    host = cluster.accelerator.host
    if not room and host is not None:
        held, limit = format_bytes(max(on_host)), format_bytes(host.memory_bytes)
        yield f"offload: {held} lie on the host, which has {limit} for each device"


def _rank_memories(
    step: StepPrediction, run: Configuration, limit_bytes: float, on_host: Sequence[float]
) -> Iterator[RankMemory]:
    for rank, stage in enumerate(step.stages):
        memory = stage.memory
        yield RankMemory(
            rank=rank,
            **_class_bytes(memory),
            total_bytes=memory.total_bytes,
            margin_bytes=_margin_bytes(memory.total_bytes, run, limit_bytes),
            microbatches_in_flight=memory.microbatches_in_flight,
            largest_class=_largest_class(memory),
            host_bytes=on_host[rank] if on_host else None,
        )


_OPTIONAL: Final = frozenset(each.name for each in fields(RankMemory) if each.default is None)


def _class_bytes(memory: StageMemory) -> dict[str, Any]:
    """Bytes by the keys of `RankMemory`, without those of optional classes that hold nothing."""
    keys = {f"{name}_bytes": held for name, held in memory.by_class.items()}
    return {key: held for key, held in keys.items() if held or key not in _OPTIONAL}


def _largest_class(memory: StageMemory) -> str:
    ours = [each.name for each in MEMORY_CLASSES if not each.is_beside]
    return max(ours, key=memory.by_class.__getitem__)


def _warnings(name: str, model: Trained, cluster: Cluster, run: Configuration) -> Iterator[str]:
    """Options without effect, and choices that are rarely meant."""
    degrees, pool = run.parallelism, cluster.pool_of()
    if degrees.tensor > pool.devices_per_node:
        size = pool.devices_per_node
        yield f"tp: a tensor group of {degrees.tensor} leaves its node of {size} devices"
    if degrees.sequence_parallel and degrees.tensor == 1:
        yield "sequence-parallel: has no effect without tensor parallelism"
    if degrees.pipeline > 1 and degrees.zero_stage >= 2:
        yield f"zero: stage {degrees.zero_stage} communicates for every microbatch of a pipeline"
    yield from without_effect(
        run.recipe,
        model=name,
        expert_parallel=degrees.expert > 1,
        experts=model.experts is not None,
    )
    yield from overlap_not_taken(run.overlap, cluster)
    if run.recompute_modules and run.recompute != "selective":
        yield "recompute-modules: have no effect unless recompute is selective"


def assumptions_of(cluster: Cluster, run: Configuration, interval: str) -> dict[str, str]:
    """What the figures of a run rest on, by subject; `interval` says where the range comes from."""
    device, recipe = cluster.accelerator, run.recipe
    times = roofline_provenance(cluster.pool_of())
    numbers = recipe.numbers(recipe.precision or device.default_precision)
    degrees = run.parallelism
    dispatch = {"dispatch": recipe.dispatch_in_words} if degrees.expert > 1 else {}
    return {
        "times": f"{times.origin}: {times.source}",
        "range": interval,
        "mfu": mfu_in_words((device,), numbers),
        "precision": numbers.name,
        "state": state_in_words(recipe, numbers),
        "kernels": f"{'fused' if run.fused_attention else 'unfused'} attention, "
        f"{'fused' if run.fused_cross_entropy else 'unfused'} cross entropy",
        "sequence parallel": "on" if degrees.sequence_parallel else "off",
        **dispatch,
        "overlap": overlap_in_words(run.overlap, recipe),
        **to_fit_in_words(recipe),
        "memory": memory_assumption(device, run.overheads),
    }


def assumptions_of_measured(
    model: MeasuredModel, cluster: Cluster, run: Configuration
) -> dict[str, str]:
    """The same where the layers were measured."""
    return {
        **measured_words(model, profile_of_run(model, cluster, run), cluster, run.overheads),
        "schedule": f"{run.schedule}, simulated",
        "overlap": overlap_in_words(run.overlap, run.recipe),
    }


# The figures of a model's estimate, computed again from the request it carries
# -----------------------------------------------------------------------------


def remake_model_estimate(document: ModelEstimateResult) -> ModelEstimateResult:
    """The document with every figure that follows from its request, warnings as they are.

    Raises `InvalidInput` where model or cluster cannot be read or the run breaks a rule.
    """
    request = document.request
    if document.plan is not None:
        from trainwright.documents.model_search import restated

        stated = restated(request.configuration, document.plan)
        for name in ("model", "cluster"):
            if getattr(request, name) != getattr(document.plan.request, name):
                raise InvalidInput.of(f"request.{name}", "must be that of plan.request")
        return replace(_of_stated_plan(stated, request), warnings=document.warnings)
    model, cluster = trained_and_cluster(request)
    made = price_request(model, cluster, request, changes=document.changes is not None)
    return replace(made, warnings=document.warnings)


def with_changes(document: ModelEstimateResult) -> ModelEstimateResult:
    """The document with what would make its run fit, where that was not asked for."""
    if document.fits or document.changes is not None or document.plan is not None:
        return document
    model, cluster = trained_and_cluster(document.request)
    made = price_request(model, cluster, document.request, changes=True)
    return replace(document, changes=made.changes)


# A model's estimate as a table: the step, where its time goes, memory by rank, what would fit
# --------------------------------------------------------------------------------------------

_MOST_RANKS = 8

NONE_ENOUGH: Final = "no single change of the run is enough"


def model_estimate_view(document: ModelEstimateResult) -> Iterator[Line]:
    """The verdict, the changes that would make it fit, communication, memory; the rest folded.

    On several pools it is the plan's own view, which says where the ranks lie.
    """
    if document.plan is not None:
        yield from plan_view(replace(document.plan, warnings=document.warnings))
        return
    yield from _headline(document)
    yield from _verdict(document)
    if document.changes:
        yield enough_table(document.changes)
        if document.failure is not None:
            yield "the log is of the run without them: beside a model leave out its --from"
    if (sent := communication_table(document)).rows:  # one device sends nothing
        yield sent
    yield memory_table(document)
    brief = memory_table(document).brief
    if brief is not None and (hidden := len(document.memory) - len(brief)):
        yield f"({hidden} more ranks, none heavier)"
    if (figures := figure_table(document)) is not None:
        yield figures
    if document.phases:
        yield phase_table(document.phases)
    if document.request.snapshot is not None:
        yield class_table(document.request.snapshot, document.snapshot)
    yield from taken_for_granted(document.assumptions)
    yield from warning_lines(document.warnings)


def _headline(document: ModelEstimateResult) -> Iterator[str]:
    request, run = document.request, document.request.configuration
    degrees, devices = run.parallelism, format_count(document.devices_used, "device")
    yield (
        f"{request.model.name} on {devices} of {request.cluster.name}: {document.verdict}, "
        f"{format_seconds(document.step_time_s)} per step ({range_in_words(document)})"
    )
    yield from evidence_line(document.assumptions)
    rates = []
    if document.tokens_per_s is not None:
        per_device = document.tokens_per_s_per_device or 0.0
        rates += [f"{document.tokens_per_s:,.0f} tokens/s", f"{per_device:,.0f} per device"]
    if document.mfu is not None and document.hfu is not None:
        rates += [f"MFU {document.mfu:.1%}", f"HFU {document.hfu:.1%}"]
    if rates:
        yield ", ".join(rates)
    named = {
        "tensor": degrees.tensor,
        "context": degrees.context,
        "data": degrees.data,
        "pipeline": degrees.pipeline,
        "virtual": degrees.virtual_stages,
        "expert": degrees.expert,
    }
    cut = " x ".join(f"{name} {n}" for name, n in named.items() if n > 1) or "one device"
    blocks = "" if run.recompute_blocks is None else f" of {run.recompute_blocks} blocks"
    batches = format_count(document.num_microbatches, "microbatch")
    yield (
        f"{cut}, {sharding_words(degrees)}, {batches} of "
        f"{run.microbatch_size}, schedule {run.schedule}, recompute {run.recompute}{blocks}"
    )
    yield (
        f"pipeline {format_seconds(document.pipeline_s)} (waits "
        f"{document.bubble_of_makespan:.1%}: bubble and transfers), "
        f"optimizer {format_seconds(document.optimizer_s)}"
    )
    yield from unfitted_line(document.assumptions)


def range_in_words(document: ModelEstimateResult) -> str:
    """Where nine of ten measured steps lie; of layers that were measured nobody knows."""
    low_s, high_s = document.step_time_low_s, document.step_time_high_s
    if low_s is None or high_s is None:
        return "of the profile's layers"
    return f"{format_seconds(low_s)} to {format_seconds(high_s)}, 90%"


def communication_table(document: ModelEstimateResult) -> Table:
    """What a step sends, by what for."""
    step_s = document.step_time_s
    both = (
        (kind, exposed_s, document.hidden_communication_s[kind])
        for kind, exposed_s in document.exposed_communication_s.items()
    )
    return table_of(
        "Communication of a step",
        (
            words("for", "kind"),
            column("exposed", "exposed_s"),
            column("of step", "share"),
            column("hidden", "hidden_s"),
        ),
        (
            (
                kind,
                part_of_step(exposed_s, step_s),
                percent(exposed_s / step_s),
                part_of_step(hidden_s, step_s),
            )
            for kind, exposed_s, hidden_s in both
            if without_noise(exposed_s + hidden_s, step_s) > 0
        ),
        caption="communication of a step",
    )


def memory_table(document: ModelEstimateResult) -> Table:
    """What each rank holds at its fullest; a terminal shows of many first, last and heaviest."""
    ranks = document.memory
    keys = {each.name: f"{each.name}_bytes" for each in MEMORY_CLASSES}
    held = {
        n: key not in _OPTIONAL or any(getattr(r, key) for r in ranks) for n, key in keys.items()
    }
    headings = {each.name: each.heading for each in MEMORY_CLASSES if held[each.name]}
    names = [*headings, "total", "margin"]
    brief = None
    if len(ranks) > _MOST_RANKS:
        brief = sorted({*range(_MOST_RANKS - 2), document.heaviest_rank, len(ranks) - 1})
    return table_of(
        "GiB at its fullest, by pipeline rank",
        (
            column("rank"),
            *(column(name, f"{name}_bytes", headings.get(name)) for name in names),
            column("", "marks"),
        ),
        (
            (
                rank.rank,
                *(_gib(getattr(rank, f"{name}_bytes") or 0.0) for name in names),
                "fullest" if rank.rank == document.heaviest_rank else "",
            )
            for rank in ranks
        ),
        caption="GiB at its fullest, by pipeline rank",
        brief=brief,
    )


def _gib(size_bytes: float) -> Cell:
    return Cell(text=f"{size_bytes / GIB:.2f}", value=size_bytes)


def _verdict(document: ModelEstimateResult) -> Iterator[str]:
    limit = format_bytes(document.memory_limit_bytes)
    peak = format_bytes(document.peak_memory_bytes)
    if document.failure is not None:
        yield from failure_lines(document.failure)
    decided_by_account = document.fit_probability is not None
    if document.fits:
        left = format_bytes(document.margin_bytes)
        margins = f"{peak} of {limit}, {left} left after margins"
        yield f"fits: {_device_line(document) if decided_by_account else margins}"
        return
    heaviest = document.memory[document.heaviest_rank]
    shown = "" if document.failure is None else ", as the job showed"
    if decided_by_account and heaviest.margin_bytes >= 0:
        said = f"{_device_line(document)}, {account_words(document.memory_account)}"
        yield f"{document.verdict}{shown}: on rank {heaviest.rank} {said}"
    else:
        yield f"{document.verdict}{shown}: {peak} of {limit} on rank {heaviest.rank}"
        if decided_by_account:
            yield f"  {account_words(document.memory_account)} {_device_line(document)}"
    if document.failure is not None and document.margin_bytes >= 0:
        yield "  if the log is of another run, before a change, ask without it as --from"
    for rank in document.memory:
        if rank.margin_bytes < 0:
            missing = format_bytes(-rank.margin_bytes)
            holds = next(c.words for c in MEMORY_CLASSES if c.name == rank.largest_class)
            yield f"  rank {rank.rank} is short of {missing}; most goes to {holds}"
    if document.changes is None:
        yield "what would make it fit was not asked for: --changes"
    elif not document.changes:
        yield NONE_ENOUGH


def _device_line(document: ModelEstimateResult) -> str:
    """What the fullest device shows by the account that decides, and how surely it has the room."""
    low, shown, high = (
        format_bytes(size or 0.0)
        for size in (document.device_low_bytes, document.device_bytes, document.device_high_bytes)
    )
    return f"a device shows {shown} ({low} to {high}, 90%); it {fit_line(document)}"


def enough_table(changes: Iterable[PricedChange]) -> Table:
    """Changes of a run that make it fit, each with its options."""
    return table_of(
        "Any one of these is enough",
        (
            words("change"),
            words("options"),
            column("step", "step_time_s"),
            column("more device time", "device_time_share", "device time"),
            column("peak memory", "peak_memory_bytes"),
        ),
        (
            (
                change.description,
                change.options,
                seconds(change.step_time_s),
                percent(change.device_time_ratio - 1, sign=True),
                size(change.peak_memory_bytes),
            )
            for change in changes
        ),
        caption="any one of these is enough",
    )
