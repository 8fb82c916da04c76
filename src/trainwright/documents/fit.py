"""The document of `fit`: what of a model trains on given devices, in one table.

For each way to train (all parameters, or low-rank adapters beside frozen weights) the settings are
tried from the fastest to the leanest: nothing recomputed, then selectively, then in full, each with
the ZeRO stages that the replicas allow. The first that fits stands in the row. The longest sequence
and the largest microbatch are found by bisection with the leanest settings, since memory only grows
with either; all is judged by the account that `estimate` uses (`step.figures`). A run fits where
the device's figure stays within its memory with the probability asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from trainwright.cluster import Accelerator, Cluster
from trainwright.cluster.framework_memory import (
    TYPICAL_MEMORY,
    Figure,
    FrameworkMemory,
    is_sharded_by_deepspeed,
)
from trainwright.documents.runs import model_and_cluster
from trainwright.documents.view import (
    Cell,
    Line,
    Table,
    column,
    number,
    percent,
    size,
    table_of,
    warning_lines,
    words,
)
from trainwright.formats.calibration_toml import deciding_memory, framework_memory
from trainwright.model import NO_OFFLOAD, Offload, Recipe, RunShape, layer_graph
from trainwright.model.config import WIDE_BITS
from trainwright.model.recipe import ALL_IN_16_BIT
from trainwright.options.inputs import ModelInput, embed_cluster
from trainwright.options.run import tuned
from trainwright.options.table import keywords_of
from trainwright.plans import Parallelism, StepPrediction, configuration
from trainwright.plans.capability import capability_of, known_target
from trainwright.plans.capability_table import Feature, own_choices
from trainwright.plans.plan import FORMAT_VERSION, CommandLine, Embedded
from trainwright.plans.prediction import StagePrediction
from trainwright.plans.status import MemorySnapshot, OutOfMemory, Phase
from trainwright.profile import Recompute
from trainwright.profile.measured_model import MeasuredModel
from trainwright.provenance import RARE, __version__
from trainwright.scheduling.families import family_named
from trainwright.step.account import host_activations, on_the_host
from trainwright.step.figures import (
    STEP,
    MemoryFigures,
    PhaseMemory,
    fullest_figures,
    memory_figures,
    missing_bytes,
    phase_memories,
)
from trainwright.step.memory import SHARDS_WEIGHTS
from trainwright.step.predict import price_configuration, profile_of_run
from trainwright.units import format_bytes, format_count

if TYPE_CHECKING:
    from trainwright.model import TransformerConfig
    from trainwright.profile.measured_model import Trained

# Allocated, reserved and device memory of the fullest rank, as documents and screens have them
# ---------------------------------------------------------------------------------------------


_WORDS: Final = {
    Figure.ALLOCATED: "allocated: tensors",
    Figure.RESERVED: "reserved: the allocator",
    Figure.DEVICE: "device: with context and communicators",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDocument:
    """A document about a step, with the memory of a device of the fullest rank, where known.

    By the account of `memory_account`, `allocated_bytes` are in tensors, `reserved_bytes` taken by
    the allocator, and `device_bytes` shown by the device, each from `_low` to `_high` in nine of
    ten runs; with `fit_probability` they stay within `device_memory_bytes`.
    """

    kind: str
    format_version: int = FORMAT_VERSION
    allocated_bytes: float | None = None
    allocated_low_bytes: float | None = None
    allocated_high_bytes: float | None = None
    reserved_bytes: float | None = None
    reserved_low_bytes: float | None = None
    reserved_high_bytes: float | None = None
    device_bytes: float | None = None
    device_low_bytes: float | None = None
    device_high_bytes: float | None = None
    device_memory_bytes: float | None = None
    fit_probability: float | None = None
    memory_account: str | None = None


class ShowsMemory(Protocol):
    """A document with the three figures, each with the ends of its range; these are read here."""

    @property
    def device_bytes(self) -> float | None:
        """What the device shows."""

    @property
    def device_memory_bytes(self) -> float | None:
        """What the device has."""

    @property
    def fit_probability(self) -> float | None:
        """How probable it is that the first stays within the second."""

    @property
    def memory_account(self) -> str | None:
        """Whose account it is."""


def figure_fields(
    model: TransformerConfig | MeasuredModel | None,
    run: configuration.Configuration,
    step: StepPrediction,
    device: Accelerator,
    *,
    framework: str | None,
) -> dict[str, Any]:
    """The fields of `StepDocument` of a run's fullest rank, under its framework's account.

    Of measured layers, as where stages differ in degrees (None), nothing is known beside.
    """
    account = framework_memory(framework)
    known = None if isinstance(model, MeasuredModel) else model
    found = fullest_figures(known, run, step, device, account)
    return _fields(found, account, device, run.overheads.reserve_bytes)


def whole_experts(model: Trained, software: str | None) -> Iterator[str]:
    """A warning where adapters of few bits would leave experts as they are."""
    if isinstance(model, MeasuredModel) or model.experts is None:
        return
    if framework_memory(software).whole_experts:
        yield (
            "weight bits: transformers 5 leaves experts in 16 bit, whatever bits other weights "
            "have (bitsandbytes quantizes Linear modules alone)"
        )


def run_fits(
    model: TransformerConfig | MeasuredModel,
    run: configuration.Configuration,
    step: StepPrediction,
    cluster: Cluster,
    *,
    framework: str | None,
) -> bool:
    """Whether a device of the cluster holds the run, by the rule of `step.figures`."""
    known = None if isinstance(model, MeasuredModel) else model
    account = deciding_memory(framework, run.overheads)
    return missing_bytes(known, run, step, cluster.accelerator, account) <= 0


def host_bytes(
    model: TransformerConfig,
    cluster: Cluster,
    run: configuration.Configuration,
    step: StepPrediction,
) -> tuple[float, ...]:
    """What a device of each pipeline rank keeps on its host; empty where nothing lies there.

    It is what the device would hold besides if nothing did; what comes back for a moment is there
    all the same.
    """
    beside, by_layer = family_named(run.schedule).host_of, tuple[float, ...]()
    if run.recompute is Recompute.OFFLOAD:
        moved = on_the_host(profile_of_run(model, cluster, run))
        by_layer = host_activations(price_configuration(model, cluster, run, moved).stages)
    if run.recipe.offload is None and beside is None:
        return by_layer
    alone = replace(
        run, recipe=without_offload(run.recipe), schedule=run.schedule if beside is None else beside
    )
    whole = price_configuration(model, cluster, alone)
    held = tuple(
        max(0.0, without.memory.movable_bytes - own.memory.movable_bytes)
        for without, own in zip(whole.stages, step.stages, strict=True)
    )
    return tuple(map(sum, zip(held, by_layer, strict=True))) if by_layer else held


def host_holds(
    model: Trained, cluster: Cluster, run: configuration.Configuration, step: StepPrediction
) -> bool:
    """Whether what a run keeps on the hosts has room there."""
    host = cluster.accelerator.host
    moves = run.recipe.offload is not None or run.recompute is Recompute.OFFLOAD
    if host is None or isinstance(model, MeasuredModel) or not moves:
        return True
    return max(host_bytes(model, cluster, run, step), default=0.0) <= host.memory_bytes


def without_offload(recipe: Recipe) -> Recipe:
    """The recipe with everything on the device."""
    return replace(recipe, offload=None)


def _fields(
    found: MemoryFigures, account: FrameworkMemory, device: Accelerator, reserve_bytes: float
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    shown = found.on_device(device.memory_bytes)
    for figure in Figure:
        ranged = shown.of(figure)
        fields[f"{figure}_bytes"] = ranged.typical_bytes
        fields[f"{figure}_low_bytes"] = ranged.low_bytes
        fields[f"{figure}_high_bytes"] = ranged.high_bytes
    return {
        **fields,
        "device_memory_bytes": device.memory_bytes,
        "fit_probability": found.fit_probability(device.memory_bytes - reserve_bytes),
        "memory_account": account.name,
    }


def figure_table(document: ShowsMemory) -> Table | None:
    """The figures with their ranges; None where the document has none."""
    if document.device_bytes is None:
        return None
    account = account_words(document.memory_account)
    return table_of(
        "A device of the fullest rank, as three tools show it",
        (
            words("figure"),
            column("bytes", "bytes"),
            column("from", "low_bytes"),
            column("to, 90%", "high_bytes"),
        ),
        (
            (
                text,
                size(getattr(document, f"{figure}_bytes")),
                size(getattr(document, f"{figure}_low_bytes")),
                size(getattr(document, f"{figure}_high_bytes")),
            )
            for figure, text in _WORDS.items()
        ),
        caption="a device of the fullest rank, as three tools show it",
        note=f"{account[:1].upper()}{account[1:]} it {fit_line(document)}.",
    )


def fit_line(document: ShowsMemory) -> str:
    """How probable it is that the device's figure stays within its memory."""
    limit, chance = format_bytes(document.device_memory_bytes or 0.0), document.fit_probability or 0
    digits = 1 if 0.49 < chance < 0.51 else 0  # what is asked for unless something is said
    shown = f"{min(max(chance, 0.01), 0.99):.{digits}%}"
    if not 0.01 <= chance <= 0.99:
        shown = f"{'above' if chance > 0.5 else 'below'} {shown}"
    return f"stays within the device's {limit} with probability {shown}"


def account_words(account: str | None) -> str:
    """By whose account of memory, to open or end a clause."""
    return f"by the account of {'typical software' if account == TYPICAL_MEMORY else account}"


def doubt(document: ShowsMemory) -> str | None:
    """A warning where a plan that keeps its margins may fail all the same."""
    probability = document.fit_probability
    if probability is None or probability >= configuration.SURE_FIT_PROBABILITY:
        return None
    shown = format_bytes(document.device_bytes or 0.0)
    account = account_words(document.memory_account)
    return (
        f"memory: {account} a device shows {shown}; it {fit_line(document)}; "
        f"--fit-probability {configuration.SURE_FIT_PROBABILITY} asks for a surer one"
    )


# What a job left behind of its memory, beside what was predicted: where it ran out, a snapshot
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """Where a job failed; bytes of one device, absent where its message leaves them out.

    `rank` is that of the process among all, `pipeline_rank` the one that it belongs to, `gpu` the
    number of the device among those that the process sees.
    `missing_bytes` is what must be spared at least. `allocated_bytes`, `reserved_bytes` and
    `outside_bytes` (context and communicators) are what was held then; `predicted_bytes` is the
    most that tensors of that pipeline rank, or of the fullest, were predicted to hold.
    `largest_class` is what most of that goes to.
    """

    rank: int | None = None
    pipeline_rank: int | None = None
    gpu: int | None = None
    phase: Phase | None = None
    tried_bytes: float | None = None
    missing_bytes: float
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    outside_bytes: float | None = None
    predicted_bytes: float
    largest_class: str


def phase_table(phases: Sequence[PhaseMemory]) -> Table:
    """What is held before the first step, in a step, and while a checkpoint is saved."""
    return table_of(
        "A device in the phases of a job",
        (words("phase"), column("tensors", "device_bytes"), column("first host", "host_bytes")),
        ((each.phase, size(each.device_bytes), size(each.host_bytes)) for each in phases),
        caption="a device in the phases of a job, and the host of rank 0",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRecord:
    """Bytes of one class of memory: in a snapshot, and predicted of the fullest rank.

    Where frames do not tell, a block is of the class "unknown", of which nothing is predicted.
    """

    name: str
    measured_bytes: float
    predicted_bytes: float | None = None


def class_records(
    snapshot: MemorySnapshot, predicted_bytes: Mapping[str, float]
) -> tuple[ClassRecord, ...]:
    """Every class that either has, the largest of the snapshot first."""
    names = [*snapshot.by_class_bytes, *predicted_bytes]
    return tuple(
        ClassRecord(
            name=name,
            measured_bytes=snapshot.by_class_bytes.get(name, 0.0),
            predicted_bytes=predicted_bytes.get(name),
        )
        for name in dict.fromkeys(names)
        if snapshot.by_class_bytes.get(name) or predicted_bytes.get(name)
    )


def class_table(snapshot: MemorySnapshot, records: Sequence[ClassRecord]) -> Table:
    """Measured beside predicted, class by class."""
    held = sum(record.predicted_bytes or 0.0 for record in records)
    rows = [
        *((r.name, r.measured_bytes, r.predicted_bytes) for r in records),
        ("all", snapshot.allocated_bytes, held),
    ]
    title = f"Device {snapshot.device} at its fullest on record, by what allocated it"
    return table_of(
        title,
        (
            words("class"),
            column("snapshot", "measured_bytes"),
            column("predicted", "predicted_bytes"),
            column("difference", "difference_bytes"),
        ),
        (
            (
                name,
                size(measured),
                size(predicted),
                "" if predicted is None else _difference(measured - predicted),
            )
            for name, measured, predicted in rows
        ),
        caption=title,
        note=f"{snapshot.num_blocks:,} blocks; {snapshot.num_events:,} allocations and frees "
        "were replayed.",
    )


def _difference(bytes_: float) -> Cell:
    sign = "-" if bytes_ < 0 else "+"
    return Cell(text=f"{sign}{format_bytes(abs(bytes_))}", value=bytes_)


def failure_record(
    failed: OutOfMemory,
    run: configuration.Configuration,
    stages: Sequence[StagePrediction],
    *,
    fullest: int,
    largest_classes: Sequence[str],
) -> FailureRecord:
    """The failure of a run that was priced."""
    rank = None
    if failed.rank is not None and failed.rank < run.parallelism.num_devices:
        rank = pipeline_rank(failed.rank, run.parallelism)
    shown = fullest if rank is None else rank
    outside = None
    if failed.in_use_bytes is not None and failed.reserved_bytes is not None:
        outside = max(0.0, failed.in_use_bytes - failed.reserved_bytes)
    return FailureRecord(
        rank=failed.rank,
        pipeline_rank=rank,
        gpu=failed.gpu,
        phase=failed.phase,
        tried_bytes=failed.tried_bytes,
        missing_bytes=failed.missing_bytes,
        allocated_bytes=failed.allocated_bytes,
        reserved_bytes=failed.reserved_bytes,
        outside_bytes=outside,
        predicted_bytes=stages[shown].memory.total_bytes,
        largest_class=largest_classes[shown],
    )


def pipeline_rank(rank: int, degrees: Parallelism) -> int:
    """The pipeline rank of a process, in the order in which the degrees number devices."""
    return rank // degrees.adjacent_devices % degrees.pipeline


def failure_lines(found: FailureRecord) -> Iterator[str]:
    """What happened, what was held, and what was predicted."""
    where = "on a rank that the message does not name"
    if found.gpu is not None:
        where = f"on GPU {found.gpu} of a node, whose rank the message does not name"
    if found.rank is not None:
        where = f"on rank {found.rank}"
        where += "" if found.pipeline_rank is None else f" (pipeline rank {found.pipeline_rank})"
    phase = "" if found.phase is None else f" in {found.phase}"
    tried, missing = found.tried_bytes, format_bytes(found.missing_bytes)
    lacks = "the message does not name the bytes"
    if tried is not None:
        lacks = f"{format_bytes(tried)} were asked for, {missing} were missing"
    yield f"the job ran out of memory {where}{phase}: {lacks}"
    held = {
        "tensors": found.allocated_bytes,
        "the allocator": found.reserved_bytes,
        "context and communicators": found.outside_bytes,
    }
    said = ", ".join(f"{format_bytes(size)} {name}" for name, size in held.items() if size)
    if said:
        yield f"  held then: {said}"
    yield (
        f"  predicted: {format_bytes(found.predicted_bytes)} in tensors at the fullest, most in "
        f"{found.largest_class}"
    )


# What of a model trains on given devices
# ---------------------------------------

LARGEST_SEQUENCE: Final = 2**20
LARGEST_MICROBATCH: Final = 2**12
_STEP: Final = 64  # tokens by which sequences are told apart
_WEIGHT_BITS: Final = "weight_bits"  # the option of frozen weights in few bits


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWay:
    """One way to train. Sizes in bytes of a device, seconds of a step of one sequence a replica.

    `zero_stage` and `recompute` are the fastest settings that fit at the sequence asked for, or the
    leanest where none does; figures and step are theirs. `longest_sequence` of one sequence a
    microbatch and `largest_microbatch` of the sequence asked for are under `lean_zero_stage` and
    full recomputation, whose device figure at the sequence asked for is `lean_device_bytes`; 0
    where nothing fits. `options` are those of `estimate` for the row.
    `fullest_phase` is the part of the job that the figures are of, `first_host_bytes` what rank 0
    gathers on its host for a checkpoint, `host_bytes` what each device keeps on its host.
    """

    way: str
    trained_parameters: int
    zero_stage: int
    recompute: Recompute
    fits: bool
    fit_probability: float
    allocated_bytes: float
    reserved_bytes: float
    device_bytes: float
    device_low_bytes: float
    device_high_bytes: float
    step_time_s: float
    tokens_per_s: float
    longest_sequence: int
    largest_microbatch: int
    lean_zero_stage: int
    options: str
    lean_device_bytes: float = 0.0
    fullest_phase: str = field(default=STEP, metadata={RARE: True})
    first_host_bytes: float = field(default=0.0, metadata={RARE: True})
    host_bytes: float = field(default=0.0, metadata={RARE: True})


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRequest:
    """Everything that the rows follow from; `software` is whose account of memory holds."""

    trainwright_version: str
    model: Embedded
    cluster: Embedded
    num_devices: int
    sequence_length: int
    software: str
    lora_rank: int
    probability: float
    images: int = field(default=0, metadata={RARE: True})
    image_size: int | None = field(default=None, metadata={RARE: True})
    mtp_layers: int | None = field(default=None, metadata={RARE: True})
    command_line: CommandLine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """What fits on the devices; a row fits where its probability is at least that of the request.

    `fits` says whether any row does.
    """

    kind: str = "fit"
    format_version: int = FORMAT_VERSION
    fits: bool
    device_memory_bytes: float
    memory_account: str
    rows: tuple[TrainingWay, ...]
    warnings: tuple[str, ...] = ()
    request: FitRequest


# Every way, by bisection
# -----------------------


def fit_model(
    given: ModelInput,
    cluster: Cluster,
    *,
    num_devices: int,
    sequence_length: int,
    software: str,
    lora_rank: int,
    probability: float,
    images: int = 0,
    image_size: int | None = None,
    mtp_layers: int | None = None,
) -> FitResult:
    """The table of a model; raises `InvalidInput` for a rank that its layers do not have."""
    request = FitRequest(
        trainwright_version=__version__,
        model=given.embedded,
        cluster=embed_cluster(cluster),
        num_devices=num_devices,
        sequence_length=sequence_length,
        software=software,
        lora_rank=lora_rank,
        probability=probability,
        images=images,
        image_size=image_size,
        mtp_layers=mtp_layers,
    )
    left = tuple(whole_experts(given.config, software))
    return replace(_document(given, cluster, request), warnings=(*given.warnings, *left))


def remake_fit(document: FitResult) -> FitResult:
    """The document as its request gives it, warnings as they are."""
    request = document.request
    model, cluster = model_and_cluster(request)
    given = ModelInput(config=model, embedded=request.model)
    return replace(_document(given, cluster, request), warnings=document.warnings)


def _document(given: ModelInput, cluster: Cluster, request: FitRequest) -> FitResult:
    rows = tuple(
        row
        for name, options, state in _ways(given.config, request, cluster)
        for row in _rows(name, tuned(given, options).config, cluster, request, options, state)
    )
    return FitResult(
        fits=any(row.fits for row in rows),
        device_memory_bytes=cluster.accelerator.memory_bytes,
        memory_account=framework_memory(request.software).name,
        rows=rows,
        request=request,
    )


def _ways(
    model: TransformerConfig, request: FitRequest, cluster: Cluster
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """What trains, the options of `estimate` that say so, and fields of the recipe that do.

    Options that it does not have go. All in 16 bit, without copies in float32, is what cards that
    are too small for these are used with; it needs bf16, whose range is that of float32.
    """
    rank, is_bf16 = request.lora_rank, cluster.accelerator.default_precision == "bf16"
    if model.tuning.low_rank is not None:  # an adapter's folder says what trains
        yield "as given", {}, {}
        return
    yield "full", {}, {}
    if is_bf16:
        said = {"main_weight_dtype": "none", "gradient_dtype": "bf16", "moment_dtype": "bf16"}
        yield "full, all bf16", said, dict(ALL_IN_16_BIT)
    yield f"LoRA-{rank}", {"lora_rank": rank}, {}
    if is_bf16 and framework_memory(request.software).casts_shards:  # transformers may load so
        shards = {_WEIGHT_BITS: WIDE_BITS} if request.num_devices > 1 else {}
        whole = {} if shards else {"precision": "bf16_autocast"}
        yield f"LoRA-{rank}, float32", {"lora_rank": rank, **shards, **whole}, dict(whole)
    if _WEIGHT_BITS in keywords_of("estimate"):
        yield f"QLoRA-{rank}", {"lora_rank": rank, _WEIGHT_BITS: 4}, {}


_ON_HOST: Final = Offload(optimizer=1.0, gradients=1.0, weights=1.0)


def _rows(
    name: str,
    model: TransformerConfig,
    cluster: Cluster,
    request: FitRequest,
    options: Mapping[str, Any],
    state: Mapping[str, Any],
) -> Iterator[TrainingWay]:
    """A way with everything on the devices; where that does not fit, with states on the hosts."""
    plain = _row(name, _Way(model, cluster, request, state), options)
    yield plain
    moved = _Way(model, cluster, request, {**state, "offload": _ON_HOST})
    if plain.fits or not moved.moves:
        return
    hosted = _row(f"{name}, on hosts", moved, options)
    if hosted.fits or hosted.longest_sequence:
        yield hosted


class _Way:
    """A model to train on the devices, priced setting by setting."""

    def __init__(
        self,
        model: TransformerConfig,
        cluster: Cluster,
        request: FitRequest,
        state: Mapping[str, Any],
    ):
        self.model, self.cluster, self.request = model, cluster, request
        self.account = framework_memory(request.software)
        self.limit_bytes = cluster.accelerator.memory_bytes
        self.stages: tuple[int, ...] = (1, 2, 3) if request.num_devices > 1 else (0,)
        program, precision = request.software, cluster.accelerator.default_precision
        usual = own_choices(
            known_target(program) or program, precision, program=program, zero=self.stages[0]
        )
        self.recipe = Recipe(**{**usual, **state})
        if model.tuning.is_wide:
            self.stages = tuple(
                stage for stage in self.stages if stage >= configuration.FIRST_OF_SHARDS
            )
        if self.recipe.offload is not None:
            self.stages = (SHARDS_WEIGHTS,)

    @property
    def moves(self) -> bool:
        """Whether the program can leave on the hosts what it shards."""
        target = known_target(self.request.software)
        can = target is not None and capability_of(target).can(Feature.OFFLOAD)
        sharded = self.request.num_devices > 1 or is_sharded_by_deepspeed(self.request.software)
        return can and sharded and self.cluster.accelerator.host is not None

    @property
    def on_hosts_by_name(self) -> tuple[str, ...]:
        """What lies there."""
        moved = self.recipe.offload or NO_OFFLOAD
        return tuple(each.name for each in fields(moved) if getattr(moved, each.name))

    def on_hosts(self, run: configuration.Configuration, step: StepPrediction) -> float:
        """What a device keeps on its host."""
        if self.recipe.offload is None:
            return 0.0
        return max(host_bytes(self.model, self.cluster, run, step), default=0.0)

    def run(
        self, zero_stage: int, recompute: Recompute, sequence: int, microbatch: int = 1
    ) -> configuration.Configuration:
        """Replicas on all devices, each with one microbatch a step."""
        data = self.request.num_devices
        return configuration.Configuration(
            parallelism=Parallelism(data=data, zero_stage=zero_stage),
            microbatch_size=microbatch,
            global_batch=microbatch * data,
            sequence_length=sequence,
            recompute=recompute,
            recipe=self.recipe,
            vocabulary_multiple=1,
            overheads=configuration.overheads_at(self.request.probability),
        )

    def priced(self, run: configuration.Configuration) -> tuple[StepPrediction, MemoryFigures]:
        """The step and the fullest rank."""
        step = price_configuration(self.model, self.cluster, run)
        ranks = memory_figures(self.model, run, step, self.account, device=self.cluster.accelerator)
        fullest = max(ranks, key=lambda rank: rank.needed.typical_bytes)
        return step, fullest.on_device(self.limit_bytes)

    def fits(self, run: configuration.Configuration) -> bool:
        """Whether the run is legal and a device holds it, by the rule of `estimate`."""
        if configuration.broken_rules(run, self.model, self.cluster.pool_of()):
            return False
        step, device = price_configuration(self.model, self.cluster, run), self.cluster.accelerator
        if missing_bytes(self.model, run, step, device, self.account) > 0:
            return False
        return device.host is None or self.on_hosts(run, step) <= device.host.memory_bytes

    def phases(
        self, run: configuration.Configuration, step: StepPrediction
    ) -> tuple[PhaseMemory, ...]:
        """What a device holds before the first step, in one, and while a checkpoint is saved."""
        return phase_memories(self.model, run, step, self.cluster.accelerator, self.account)

    def chance(self, found: MemoryFigures) -> float:
        """How probable it is that the device's figure stays within its memory."""
        return found.fit_probability(self.limit_bytes)


def _row(name: str, way: _Way, options: Mapping[str, Any]) -> TrainingWay:
    request, length = way.request, way.request.sequence_length
    ladder = [
        way.run(stage, mode, length)
        for mode in (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
        for stage in way.stages
    ]
    lean = min(
        (run for run in ladder if run.recompute is Recompute.FULL),
        key=lambda run: way.priced(run)[1].device.typical_bytes,
    )
    chosen = next((run for run in ladder if way.fits(run)), lean)
    step, found = way.priced(chosen)
    _, leanest = way.priced(lean)
    stage = lean.parallelism.zero_stage
    probability = way.chance(found)
    of_images = way.model.images * sum(tower.tokens for tower in way.model.towers)
    before = max(0, -(-of_images // _STEP) - 1)  # steps too short to hold the images
    longest = largest_that(
        lambda n: way.fits(way.run(stage, Recompute.FULL, (before + n) * _STEP)),
        LARGEST_SEQUENCE // _STEP - before,
    )
    longest += before if longest else 0
    most = largest_that(
        lambda n: way.fits(way.run(stage, Recompute.FULL, length, n)), LARGEST_MICROBATCH
    )
    said = (
        *(f"--{option.replace('_', '-')} {value}" for option, value in options.items()),
        *(f"--offload {name}=1" for name in way.on_hosts_by_name),
        *(f"--images {request.images}" for _ in range(request.images > 0)),
        *(f"--image-size {request.image_size}" for _ in range(request.image_size is not None)),
        *(f"--mtp-layers {request.mtp_layers}" for _ in range(request.mtp_layers is not None)),
        *(f"--zero {chosen.parallelism.zero_stage}", f"--recompute {chosen.recompute}"),
        *(f"--sequence {length}", f"--global-batch {chosen.global_batch}"),
    )
    phases = way.phases(chosen, step)
    return TrainingWay(
        way=name,
        trained_parameters=_trained_parameters(way.model, length),
        zero_stage=chosen.parallelism.zero_stage,
        recompute=chosen.recompute,
        fits=way.fits(chosen),
        fit_probability=probability,
        allocated_bytes=found.allocated.typical_bytes,
        reserved_bytes=found.reserved.typical_bytes,
        device_bytes=found.device.typical_bytes,
        device_low_bytes=found.device.low_bytes,
        device_high_bytes=found.device.high_bytes,
        step_time_s=step.step_time_s,
        tokens_per_s=step.tokens_per_s or 0.0,
        longest_sequence=longest * _STEP,
        largest_microbatch=most,
        lean_zero_stage=stage,
        options=" ".join(said),
        lean_device_bytes=leanest.device.typical_bytes,
        fullest_phase=max(phases, key=lambda each: each.device_bytes).phase if phases else STEP,
        first_host_bytes=max((each.host_bytes for each in phases), default=0.0),
        host_bytes=way.on_hosts(chosen, step),
    )


def _trained_parameters(model: TransformerConfig, length: int) -> int:
    shape = RunShape(microbatch_size=1, sequence_length=length)
    return layer_graph(model, shape).num_trainable_parameters


def largest_that(holds: Callable[[int], bool], limit: int) -> int:
    """The largest number from 1 to `limit` for which `holds`, 0 for none, by bisection.

    What holds for a number must hold for all below it.
    """
    if not holds(1):
        return 0
    below, above = 1, limit + 1
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if holds(middle) else (below, middle)
    return below


# One table
# ---------


def fit_view(document: FitResult) -> Iterator[Line]:
    """The devices, the table, and what it rests on."""
    request = document.request
    yield (
        f"{request.model.name} on {format_count(request.num_devices, 'device')} of "
        f"{format_bytes(document.device_memory_bytes)} ({request.cluster.name}), sequences of "
        f"{request.sequence_length:,} tokens"
    )
    yield fit_table(document)
    yield fit_basis(document)
    yield from warning_lines(document.warnings)


def fit_table(document: FitResult) -> Table:
    """A row for each way to train."""
    return table_of(
        "What trains on the devices",
        (
            words("what trains", "way"),
            column("trained", "trained_parameters", on="page"),
            column("ZeRO", "zero_stage", on="terminal"),
            words("recompute", on="terminal"),
            column("memory", "device_bytes"),
            column("least memory", "lean_device_bytes", "least"),
            column("from", "device_low_bytes", on="page"),
            column("to, 90%", "device_high_bytes", on="page"),
            words("fullest in", "fullest_phase", on="page"),
            column("first host", "first_host_bytes", on="page"),
            column("on each host", "host_bytes", on="page"),
            words("fits", on="terminal"),
            column("probability", "fit_probability", "chance"),
            column("tokens/s", "tokens_per_s"),
            column("longest sequence", "longest_sequence", "longest"),
            column("largest microbatch", "largest_microbatch", "most"),
            words("options", on="page"),
        ),
        (
            (
                row.way,
                number(row.trained_parameters),
                row.zero_stage,
                str(row.recompute),
                size(row.device_bytes),
                size(row.lean_device_bytes),
                size(row.device_low_bytes),
                size(row.device_high_bytes),
                row.fullest_phase,
                *(
                    size(held) if held else Cell(text="", value=0.0)
                    for held in (row.first_host_bytes, row.host_bytes)
                ),
                "yes" if row.fits else "no",
                percent(row.fit_probability, digits=0),
                number(row.tokens_per_s),
                _most(row.longest_sequence, LARGEST_SEQUENCE),
                _most(row.largest_microbatch, LARGEST_MICROBATCH),
                row.options,
            )
            for row in document.rows
        ),
        caption="What trains on the devices, one sequence a microbatch",
    )


def _most(count: int, limit: int) -> Cell:
    """A number that was found, or that was the last one tried; 0 where not even 1 holds."""
    if not count:
        return Cell(text="none", value=0)
    return Cell(text=f"{count:,}{' or more' if count == limit else ''}", value=count)


def fit_basis(document: FitResult) -> str:
    """What the table rests on."""
    asked, other = document.request.probability, configuration.USUAL_FIT_PROBABILITY
    beside = "" if asked == other else f" (plan and estimate ask {other:.0%} unless told)"
    return (
        f"fits: the device stays within its memory with probability "
        f"{asked:.0%}{beside}, {account_words(document.memory_account)}; memory and "
        "tokens/s: as each row recomputes, the fastest that fits; least memory, longest sequence "
        "and most sequences a microbatch: recomputed in full, at the leanest ZeRO stage"
    )
