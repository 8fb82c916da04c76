"""A document with everything the page shows of it, computed again from its request and plan."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Any, Final

from trainwright.documents.explanation import ModelExplanation
from trainwright.documents.improvement import ImprovementResult
from trainwright.documents.mixed_plan import MixedPlanResult
from trainwright.documents.model_estimate import ModelEstimateResult
from trainwright.documents.model_plan import ModelPlanResult
from trainwright.documents.schedule import ScheduleResult
from trainwright.documents.sweep import ModelSweepResult
from trainwright.errors import UnsupportedFeature
from trainwright.formats.document_json import content_hash
from trainwright.pages.command import command_of
from trainwright.plans.configuration import DEFAULT_OVERLAP, NO_OVERHEADS
from trainwright.units import format_count

if TYPE_CHECKING:
    from trainwright.cluster import Cluster
    from trainwright.pages.gantt import GanttPanel
    from trainwright.pages.subject import PricedStep, Subject
    from trainwright.plans import Plan, StepPrediction
    from trainwright.plans.configuration import Embedded, MemoryOverheads, Overlap
    from trainwright.plans.lowered import Timeline
    from trainwright.profile import Profile

MOST_DRAWN_ACTIONS: Final = 1_000_000  # a page of about 3 MB; more would not open quickly


def subject_of(document: Any, *, name: str, file: str = "") -> Subject[Any]:
    """The document with its timeline, network use and constants, as far as it has them.

    `name` is what it is called on the page, `file` the name of its own file, if it has one.
    """
    from trainwright.formats.document_json import encode
    from trainwright.pages.subject import Subject

    command = command_of(document, file=file)
    parts = _parts(document, name)
    return Subject(
        name=name,
        document=document,
        sha256=content_hash(encode(document)),
        command=command.text,
        command_note=command.note,
        **parts,
    )


@singledispatch
def _parts(document: object, name: str) -> dict[str, Any]:
    """What follows from a document beside its own figures; of a profile's plan nothing does."""
    return {}


@_parts.register
def _(document: ModelPlanResult, name: str) -> dict[str, Any]:
    from trainwright.documents.model_plan import planned
    from trainwright.planning.search.plans import predicted

    if not document.stages:
        return {"cluster": _cluster(document.request.cluster)}
    question, plan, profile = planned(document)
    step = predicted(question, plan, profile)
    return _step_parts(
        name,
        plan,
        profile,
        question.cluster,
        step,
        overlap=question.settings.overlap,
        overheads=question.overheads,
    )


@_parts.register
def _(document: MixedPlanResult, name: str) -> dict[str, Any]:
    from trainwright.documents.mixed_plan import planned_mixed
    from trainwright.step.account import chain_timeline

    parts: dict[str, Any] = {"cluster": _cluster(document.request.cluster)}
    if document.binding is None:
        return parts
    own = [rank for rank in document.ranks if rank.chain == document.binding.chain]
    if too_many := _undrawn(2 * len(document.stages) * own[0].num_microbatches):
        return parts | too_many
    shelf, plan, profiles = planned_mixed(document)
    timeline = chain_timeline(
        plan,
        profiles,
        shelf.cluster,
        chain=document.binding.chain,
        overheads=shelf.question.overheads,
    )
    return parts | {"panel": _panel(name, plan, timeline)}


@_parts.register
def _(document: ImprovementResult, name: str) -> dict[str, Any]:
    return {"cluster": _cluster(document.request.cluster)}


@_parts.register
def _(document: ModelExplanation, name: str) -> dict[str, Any]:
    return _parts(document.plan, name)


@_parts.register
def _(document: ModelSweepResult, name: str) -> dict[str, Any]:
    if document.best_plan is None:
        return {"cluster": _cluster(document.request.cluster)}
    return _parts(document.best_plan, name)


@_parts.register
def _(document: ModelEstimateResult, name: str) -> dict[str, Any]:
    from trainwright.documents.runs import trained_and_cluster
    from trainwright.step.predict import plan_of, price_profiled, profile_of_run

    run = document.request.configuration
    model, cluster = trained_and_cluster(document.request)
    profile = profile_of_run(model, cluster, run)
    plan = plan_of(run, profile)
    step = price_profiled(model, cluster, run, profile)
    return _step_parts(
        name, plan, profile, cluster, step, overlap=run.overlap, overheads=run.overheads
    )


@_parts.register
def _(document: ScheduleResult, name: str) -> dict[str, Any]:
    from trainwright.documents.schedule import timeline_of
    from trainwright.pages.schedule_report import ScheduleReport

    timeline = timeline_of(document)
    if timeline is None:
        return {}
    return {"panel": ScheduleReport(document, timeline).panel()}


def _step_parts(
    name: str,
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    step: StepPrediction,
    *,
    overlap: Overlap = DEFAULT_OVERLAP,
    overheads: MemoryOverheads = NO_OVERHEADS,
) -> dict[str, Any]:
    from trainwright.step.account import step_timeline

    priced = _priced(plan, profile, cluster, step)
    parts: dict[str, Any] = {"cluster": cluster, "priced": priced}
    if too_many := _undrawn(2 * len(plan.stages) * priced.num_microbatches):
        return parts | too_many
    try:
        timeline = step_timeline(plan, profile, cluster, overlap=overlap, overheads=overheads)
    except UnsupportedFeature as error:
        return parts | {"left_out": (f"the schedule: {error}",)}
    return parts | {"panel": _panel(name, plan, timeline)}


def _undrawn(actions: int) -> dict[str, Any]:
    """What is said in place of a schedule that has too many actions."""
    if actions <= MOST_DRAWN_ACTIONS:
        return {}
    why = f"the schedule: of {actions:,} actions, more than {MOST_DRAWN_ACTIONS:,} are not drawn"
    return {"left_out": (why,)}


def _panel(name: str, plan: Plan, timeline: Timeline) -> GanttPanel:
    from trainwright.pages.gantt import GanttPanel
    from trainwright.scheduling.simulate import critical_path

    ranks, m = timeline.schedule.num_ranks, timeline.schedule.num_microbatches
    return GanttPanel(
        timeline=timeline,
        title=f"{name}: {plan.schedule}, {format_count(ranks, 'rank')}, "
        f"{format_count(m, 'microbatch')}",
        critical=critical_path(timeline),
    )


def _priced(plan: Plan, profile: Profile, cluster: Cluster, step: StepPrediction) -> PricedStep:
    from trainwright.documents.profile_plan import count_recomputed
    from trainwright.pages.subject import PricedStep
    from trainwright.step.account import network_use, ranks_by_part_s
    from trainwright.step.stages import Placement

    placement = Placement(plan=plan, pool=cluster.pool_of())
    owner = placement.rank_of_stage if placement.is_uniform else tuple(range(len(plan.stages)))
    stages = [
        [stage for stage, rank in zip(plan.stages, owner, strict=True) if rank == own]
        for own in range(len(step.stages))
    ]
    return PricedStep(
        step=step,
        num_microbatches=placement.shape.num_microbatches,
        parts_of_rank_s=ranks_by_part_s(plan, profile, step, rank_of_stage=owner),
        layers_of_rank=tuple(tuple(sorted(i for s in own for i in s.layers)) for own in stages),
        recomputed_of_rank=tuple(sum(count_recomputed(s, profile) for s in own) for own in stages),
        degrees_of_rank=tuple((own[0].data_parallel, own[0].tensor_parallel) for own in stages),
        network=network_use(plan, cluster, step),
    )


def _cluster(embedded: Embedded | None) -> Cluster | None:
    from trainwright.cluster import Cluster
    from trainwright.formats.document_json import decode

    if embedded is None:
        return None
    return decode(Cluster, embedded.content, path="request.cluster.content")
