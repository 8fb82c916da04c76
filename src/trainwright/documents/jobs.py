"""From a document to the job that exporters write: of the planner, or of a stated run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from trainwright.cluster import Cluster
from trainwright.documents.model_estimate import ModelEstimateResult
from trainwright.documents.model_plan import ModelPlanResult, planned
from trainwright.documents.model_search import planned_on_pools, refuse_own_degrees
from trainwright.documents.open import (
    load_explained_document,
    opened_by,
    plan_meant,
    priced_plan,
)
from trainwright.documents.runs import (
    job_of_configuration,
    layer_kinds,
    model_and_cluster,
    planned_job,
    planned_parts,
    stage_part,
    trained_and_cluster,
)
from trainwright.documents.view import Line, column, size, table_of, words
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats.document_json import content_hash, encode
from trainwright.model import LayerKind
from trainwright.model.config import block_indices
from trainwright.options.question import call_of
from trainwright.planning.question.question import ModelQuestion
from trainwright.plans import Plan
from trainwright.plans.configuration import Configuration, PlanRequest, StepSettings
from trainwright.plans.job import Job, Orders, Stamp
from trainwright.plans.lowered import Timeline
from trainwright.plans.plan import FORMAT_VERSION, Embedded
from trainwright.profile import Profile, Recompute
from trainwright.profile.measured_model import MeasuredModel
from trainwright.provenance import __version__
from trainwright.scheduling.lower import as_pytorch_runs, lower
from trainwright.step.account import step_timeline, timeline_of
from trainwright.step.pools import mixed_works
from trainwright.step.predict import plan_of, profile_of_run
from trainwright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from trainwright.model import TransformerConfig
    from trainwright.options.inputs import ModelInput
    from trainwright.plans.prediction import RankRecord
    from trainwright.profile.measured_model import Trained

Jobbed = ModelPlanResult | ModelEstimateResult


def job_of(document: Jobbed, described: ModelInput | None = None) -> Job:
    """The job of a document. Raises `InvalidInput` where the document holds no plan.

    A profile says what layers cost; what they are is `described`, of a profile alone.
    """
    document = priced_plan(document)
    if described is not None:
        return _job_of_measured(document, described)
    model, cluster = model_and_cluster(document.request)
    if isinstance(document, ModelPlanResult):
        return planned_job(document, model, cluster)
    run = document.request.configuration
    return job_of_configuration(
        run, model, cluster, model_name=document.request.model.name or "model"
    )


def _job_of_measured(document: Jobbed, described: ModelInput) -> Job:
    """The job of a plan or run of a profile that is one of the model described."""
    if document.request.model.kind != "profile":
        raise InvalidInput.of("model", "must be left out: the document says what its model is")
    if isinstance(document, ModelPlanResult) and document.on_pools:
        raise UnsupportedFeature(
            "model: plans of a profile on several pools are not exported",
            alternative="plan the profile on the pools of one kind, or the model itself",
        )
    plan, profile, cluster = plan_and_profile(document)
    if profile.point.sequence_length in (None, 1):
        problem = "must have a sequence length, which the profile does not say"
        raise InvalidInput.of("document", f"{problem}; plan it with --sequence N")
    model = described.config
    places = _places_in(model, [layer.name for layer in profile.structure.layers])
    if isinstance(document, ModelPlanResult):
        kinds, parts = layer_kinds(model), []
        for stage, blocks in zip(plan.stages, block_modes(document), strict=True):
            start, after = places[min(stage.layers)], places[max(stage.layers) + 1]
            modes = iter(blocks)
            own = kinds[start:after]
            dealt = [next(modes) if k is LayerKind.BLOCK else Recompute.NONE for k in own]
            parts.append(stage_part(own, dealt, kinds, start))
        job = planned_job(document, model, cluster, tuple(parts))
    else:
        run = document.request.configuration
        job = job_of_configuration(run, model, cluster, model_name="model")
    precision = profile.point.precision or job.precision
    return replace(job, model_name=described.embedded.name or "model", precision=precision)


def _places_in(model: TransformerConfig, names: Sequence[str | None]) -> list[int]:
    """Where each layer of a profile begins in the model, and where the last one ends.

    An end that the profile has as one layer is all that the model has there.
    """
    kinds = layer_kinds(model)
    spans = []
    for chain in (names, kinds):
        blocks = block_indices(chain)
        if not blocks or blocks != [*range(blocks[0], blocks[-1] + 1)]:
            whose = "the profile" if chain is names else "the model"
            raise UnsupportedFeature(
                f"model: {whose} has no blocks in one row, by which the two are matched",
                alternative='name the layers of the profile, blocks "block"',
            )
        spans.append((blocks[0], len(blocks), len(chain) - 1 - blocks[-1]))
    (before, count, after), (own_before, own_count, own_after) = spans
    if count != own_count:
        problem = f"must have {count} blocks, as the profile has, got {own_count}"
        raise InvalidInput.of("model", problem)
    if before not in (0, 1, own_before) or after not in (0, 1, own_after):
        ends = f"{own_before} layers before the blocks and {own_after} after them"
        problem = f"must have {before} and {after}, as the profile has, got {ends}"
        raise InvalidInput.of("model", problem)
    blocks_at = [own_before + at for at in range(count + 1)]
    heads = [*range(before)] if before == own_before else [0] * before
    tails = [own_before + count + at + 1 for at in range(after)]
    places = [*heads, *blocks_at, *tails]
    places[0], places[-1] = 0, len(kinds)
    return places


def stamp_of(document: Jobbed) -> Stamp:
    """Who writes, and the hash of what the document decides: same plan, same hash."""
    document = priced_plan(document)
    if isinstance(document, ModelPlanResult):
        decided = {
            "model": document.request.model.sha256,
            "workload": encode(document.request.workload),
            **_trained_so(document.request),
            "parallelism": encode(document.parallelism) if document.parallelism else {},
            "schedule": document.schedule,
            **({} if document.order is None else {"order": encode(document.order)}),
            **({} if document.room_bytes is None else {"room_bytes": document.room_bytes}),
            "micro_batch": document.micro_batch,
            "stages": [[list(stage.layers), stage.first_options] for stage in document.stages],
            **_placed(document),
        }
    else:
        decided = {
            "model": document.request.model.sha256,
            "configuration": encode(document.request.configuration),
        }
    return Stamp(
        trainwright_version=__version__,
        plan_sha256=content_hash(decided),
        software=_software_of(document),
    )


def _placed(document: ModelPlanResult) -> dict[str, Any]:
    """What lies in which of several pools."""
    if not document.groups:
        return {}
    return {"pools": [[rank.chain, rank.rank, rank.device_kind] for rank in document.ranks]}


def _software_of(document: Jobbed) -> str | None:
    if isinstance(document, ModelPlanResult):
        return document.request.software or document.request.space.framework
    return document.request.framework


def _trained_so(request: PlanRequest) -> dict[str, Any]:
    """How the model trains, where that is not as usual."""
    parts = {"recipe": request.recipe, "overlap": request.overlap}
    return {name: encode(part) for name, part in parts.items() if part is not None}


def with_orders(job: Job, timeline: Timeline) -> Job:
    """The job with its schedule written out, at the predicted times of its stages."""
    schedule = as_pytorch_runs(timeline.schedule)
    sharded = range(len(job.stages)) if job.demands.zero_stage >= 2 else ()
    lowered = lower(schedule, costs=timeline.costs, sharded_stages=frozenset(sharded))
    return replace(job, orders=Orders(schedule=schedule, lowered=lowered, timeline=timeline))


def timelines_of(document: Jobbed, job: Job | None = None) -> tuple[Timeline, ...]:
    """When everything happens in a step of a document, chain by chain; on one pool there is one.

    `job` is that of the document, whose overlap and overheads count.
    """
    document = priced_plan(document)
    if isinstance(document, ModelPlanResult) and document.on_pools:
        shelf, plan = planned_on_pools(document)
        profiles, settings = shelf.profiles_of(plan), shelf.question.step_settings
        works = mixed_works(plan, profiles, shelf.cluster, **settings)
        return tuple(timeline_of(work, layout) for _, work, layout in works)
    plan, profile, cluster = plan_and_profile(document)
    settings = _settings_of(document) if job is None else job.step_settings
    return (step_timeline(plan, profile, cluster, **settings),)


def _settings_of(document: ModelPlanResult | ModelEstimateResult) -> StepSettings:
    """Of a document on one pool, of a model or of what was measured."""
    if isinstance(document, ModelPlanResult):
        return call_of(document.request).question.step_settings
    return document.request.configuration.step_settings


def plan_and_profile(
    document: ModelPlanResult | ModelEstimateResult,
) -> tuple[Plan, Profile, Cluster]:
    """The plan of a document on one pool beside the profile that prices it."""
    if isinstance(document, ModelPlanResult):
        question, plan, profile = planned(document)
        return plan, profile, question.cluster
    run = document.request.configuration
    model, cluster = trained_and_cluster(document.request)
    profile = profile_of_run(model, cluster, run)
    return plan_of(run, profile), profile, cluster


def block_modes(document: Jobbed) -> list[tuple[Recompute, ...]]:
    """How each block of each virtual stage recomputes, of a model or of what was measured.

    Of replicas on several pools that differ in it, those of the first.
    """
    document = priced_plan(document)
    several = document if isinstance(document, ModelPlanResult) and document.on_pools else None
    if document.request.model.kind != "profile":
        if several is None:
            return [stage.block_modes for stage in job_of(document).stages]
        model, _ = model_and_cluster(several.request)
        return [stage.block_modes for stage in planned_parts(several, model)]
    measured, _ = trained_and_cluster(document.request)
    assert isinstance(measured, MeasuredModel)
    layers = measured.any_profile.structure.layers
    blocks = {layer.id for layer in layers if layer.name == LayerKind.BLOCK}
    ranks = () if several is None else several.ranks
    first = tuple(rank for rank in ranks if rank.chain == 0)
    return [
        tuple(mode for layer, mode in own.items() if layer in blocks)
        for own in measured_modes(document, first)
    ]


def measured_modes(
    document: Jobbed, ranks: Sequence[RankRecord] = ()
) -> list[dict[int, Recompute]]:
    """How each layer that was measured recomputes, by virtual stage; in a chain with these ranks.

    Without ranks the document is of one pool.
    """
    if ranks:
        document = priced_plan(document)
        assert isinstance(document, ModelPlanResult), "chains are of a plan"
        model, _ = trained_and_cluster(document.request)
        degrees = document.parallelism
        assert isinstance(model, MeasuredModel) and degrees is not None
        profile = model.offered[document.micro_batch or 1, degrees.tensor]
        chosen = [
            {int(layer): option for layer, option in stage.options_of(ranks[stage.rank]).items()}
            for stage in document.stages
        ]
    else:
        plan, profile, _ = plan_and_profile(document)
        chosen = [stage.option_of for stage in plan.stages]
    costs = profile.costs
    rows = {e.id: costs.rows_of(e.layer_class) for e in profile.structure.layers}

    def mode_of(layer: int, option: str) -> Recompute:
        return next(costs.recompute[row] for row in rows[layer] if costs.option_ids[row] == option)

    return [{layer: mode_of(layer, own) for layer, own in each.items()} for each in chosen]


# The run that a document is about: what an estimate states, or what a plan comes to
# ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentedRun:
    """A run that a document is about: the model and what embeds it, where it runs, and how.

    `software` is the program whose account of memory holds, if one is known.
    """

    model: Trained
    embedded: Embedded
    cluster: Cluster
    configuration: Configuration
    software: str | None = None


def opened_run(document: Any) -> Any:
    """The document of a run: from its file, the one a result carries, or as it is."""
    return priced_plan(plan_meant(opened_by(load_explained_document, document)))


def run_of_document(document: Any) -> DocumentedRun:
    """The run of an estimate, plan or improvement of a model, or of a profile on a cluster.

    The document is a path, a result or itself; the run of an improvement is the one before it.

    Raises `InvalidInput` for other kinds, `UnsupportedFeature` for a plan that no options of
    `estimate` state: with an order that was searched, or blocks recomputed one by one.
    """
    found = opened_run(document)
    if isinstance(found, ModelEstimateResult) or found.kind == "improvement":
        run = found.request.configuration
    elif isinstance(found, ModelPlanResult):
        run = _stated(found)
    else:
        kind = getattr(found, "kind", type(found).__name__)
        fix = _INSTEAD.get(kind, "")
        problem = f'must be an estimate or plan of a model, got "{kind}"{fix}'
        raise InvalidInput.of("document", problem)
    model, where = trained_and_cluster(found.request)
    return DocumentedRun(
        model=model,
        embedded=found.request.model,
        cluster=where,
        configuration=run,
        software=_software_of(found),
    )


_FLAT: Final = (
    "; plan the profile on a cluster: trainwright plan PROFILE --cluster C --global-batch B"
)
# What to do with documents that are of no run.
_INSTEAD: Final = {
    **dict.fromkeys(("plan", "estimate", "placement"), _FLAT),
    "schedule": "; look for a better order with: trainwright schedule --search",
}


def is_stated(document: ModelPlanResult) -> bool:
    """Whether options of `estimate` state the run that a plan on one pool comes to."""
    try:
        _stated(document)
    except UnsupportedFeature:
        return False
    return True


def _stated(document: ModelPlanResult) -> Configuration:
    """The plan as options of `estimate` state it."""
    refuse_own_degrees(document)
    if document.order is not None:
        raise UnsupportedFeature(
            "this plan has an order of actions that was searched, which no stated run has",
            alternative=f"plan again with --schedule {document.order.family} and give that",
        )
    one_by_one = UnsupportedFeature(
        "this plan recomputes blocks one by one, which no stated run does",
        alternative="it is the planner's own; compare others with: trainwright diff",
    )
    if document.request.model.kind == "profile":
        run = _run_of_measured(*planned(document))
        if run is None:
            raise one_by_one
        return run
    job = job_of(document)
    if job.stated_recompute is None:
        raise one_by_one
    return job.configuration()


def _run_of_measured(question: ModelQuestion, plan: Plan, profile: Profile) -> Configuration | None:
    """The run that deals layers out as the plan does; None where no options state such a run."""
    degrees, structure = plan.parallelism, profile.structure
    assert degrees is not None, "a plan with degrees per stage is refused before"
    blocks = {layer.id for layer in structure.layers if layer.name == LayerKind.BLOCK}
    run = Configuration(
        parallelism=degrees,
        microbatch_size=plan.microbatch_size or 1,
        global_batch=question.workload.global_batch,
        sequence_length=question.workload.sequence_length,
        schedule=plan.schedule,
        blocks_per_stage=tuple(len(blocks.intersection(s.layers)) for s in plan.stages),
        **question.step_settings,
    )
    dealt = [stage.layers for stage in plan_of(run, profile).stages]
    if dealt != [stage.layers for stage in plan.stages]:
        raise UnsupportedFeature(
            "this plan cuts the layers before or after the blocks, which no stated run does",
            alternative="it is the planner's own; compare others with: trainwright diff",
        )
    most = max(run.blocks_per_stage or (0,))
    for mode in (mode for mode in Recompute if mode in profile.costs.recompute):
        counts = (None,) if mode is Recompute.NONE else (None, *range(1, most))
        for count in counts:
            tried = replace(run, recompute=mode, recompute_blocks=count)
            if plan_of(tried, profile).stages == plan.stages:
                return tried
    return None


# The document of `export`: which files were written, and what they do not say
# ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """A file by its name inside the folder."""

    name: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedLayout:
    """What a plan is predicted to take."""

    step_time_s: float
    peak_memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The plan that was exported in place of one the target cannot express."""

    changes: tuple[str, ...]
    before: PricedLayout
    after: PricedLayout
    memory_limit_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """Files of a job for one target. `checked` says what the framework's own parser found."""

    kind: str = "export"
    format_version: int = FORMAT_VERSION
    target: str
    version: str
    plan_sha256: str
    trainwright_version: str
    folder: str | None = None
    files: tuple[ExportedFile, ...]
    command: str
    environment: dict[str, str] = field(default_factory=dict)
    not_represented: tuple[str, ...] = ()
    asked_of_user: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    nearest: Nearest | None = None
    checked: str | None = None


# What an export wrote, and what the files do not say
# ---------------------------------------------------


def export_view(found: ExportResult) -> Iterator[Line]:
    """Files, then lists of what to add and what is missing."""
    yield table_of(
        "Files",
        (words("file", "name"), column("size", "bytes")),
        ((each.name, size(each.bytes)) for each in found.files),
        caption=found.target,
    )
    yield from _lines(found)


def _lines(found: ExportResult) -> Iterator[str]:
    where = "not written; -o names a folder" if found.folder is None else f"in {found.folder}"
    yield f"{where}; {found.target} {found.version}"
    if found.nearest is not None:
        yield from _nearest(found.nearest)
    if found.command:
        yield f"runs: {found.command}"
    for name, value in found.environment.items():
        yield f"needs: {name}={value}" if value else f"needs: {name} unset"
    for title, items in (
        ("you must add", found.asked_of_user),
        ("not in the files", found.not_represented),
        ("take care", found.warnings),
    ):
        yield from (f"{title}: {item}" for item in items)
    if found.checked is not None:
        yield f"checked: {found.checked}"


def _nearest(nearest: Nearest) -> Iterator[str]:
    before, after = nearest.before, nearest.after
    yield "not the plan itself, but the nearest that the target can express:"
    yield from (f"  {change}" for change in nearest.changes)
    ratio = after.step_time_s / before.step_time_s - 1 if before.step_time_s else 0.0
    was, now = format_seconds(before.step_time_s), format_seconds(after.step_time_s)
    yield f"  step time {was} becomes {now} ({ratio:+.1%})"
    held, holds = format_bytes(before.peak_memory_bytes), format_bytes(after.peak_memory_bytes)
    yield f"  peak memory {held} becomes {holds} of {format_bytes(nearest.memory_limit_bytes)}"
