"""From a document to the job that exporters write: of the planner, or of a stated run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright._version import __version__
from trainwright.documents.model_estimate import ModelEstimateResult
from trainwright.documents.model_plan import ModelPlanResult, planned, planned_job
from trainwright.documents.open import load_any_document
from trainwright.documents.printing import Report
from trainwright.documents.runs import job_of_configuration, model_and_cluster
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats.document_json import encode
from trainwright.options.inputs import ModelInput, content_hash
from trainwright.plans.capability import RecomputeForm
from trainwright.plans.job import Orders, Stamp
from trainwright.scheduling.lower import as_pytorch_runs, lower
from trainwright.step.account import step_timeline
from trainwright.step.predict import estimator_of, plan_of, point_of

if TYPE_CHECKING:
    from trainwright.cluster import Cluster
    from trainwright.plans import Plan
    from trainwright.plans.configuration import Configuration
    from trainwright.plans.job import Job
    from trainwright.plans.request import PlanRequest
    from trainwright.profile import Profile

Jobbed = ModelPlanResult | ModelEstimateResult


def job_of(document: Jobbed) -> Job:
    """The job of a document. Raises `InvalidInput` where the document holds no plan."""
    model, cluster = model_and_cluster(document.request)
    if isinstance(document, ModelPlanResult):
        return planned_job(document, model, cluster)
    run = document.request.configuration
    return job_of_configuration(
        run, model, cluster, model_name=document.request.model.name or "model"
    )


def stamp_of(document: Jobbed) -> Stamp:
    """Who writes, and the hash of what the document decides: same plan, same hash."""
    if isinstance(document, ModelPlanResult):
        decided = {
            "model": document.request.model.sha256,
            "workload": encode(document.request.workload),
            **_trained_so(document.request),
            "parallelism": encode(document.parallelism) if document.parallelism else {},
            "schedule": document.schedule,
            **({} if document.order is None else {"order": encode(document.order)}),
            "micro_batch": document.micro_batch,
            "stages": [[list(stage.layers), stage.options] for stage in document.stages],
        }
    else:
        decided = {
            "model": document.request.model.sha256,
            "configuration": encode(document.request.configuration),
        }
    return Stamp(trainwright_version=__version__, plan_sha256=content_hash(decided))


def _trained_so(request: PlanRequest) -> dict[str, Any]:
    """How the model trains, where that is not as usual."""
    parts = {"recipe": request.recipe, "overlap": request.overlap}
    return {name: encode(part) for name, part in parts.items() if part is not None}


def with_orders(job: Job, plan: Plan, profile: Profile, cluster: Cluster) -> Job:
    """The job with its schedule written out, at the predicted times of its stages."""
    timeline = step_timeline(plan, profile, cluster, overlap=job.overlap, overheads=job.overheads)
    schedule = as_pytorch_runs(timeline.schedule)
    sharded = range(len(job.stages)) if job.demands.zero_stage >= 2 else ()
    lowered = lower(schedule, costs=timeline.costs, sharded_stages=frozenset(sharded))
    return replace(job, orders=Orders(schedule=schedule, lowered=lowered, timeline=timeline))


def plan_and_profile(document: Jobbed) -> tuple[Plan, Profile, Cluster]:
    """The plan of a document beside the profile that prices it."""
    if isinstance(document, ModelPlanResult):
        question, plan, profile = planned(document)
        return plan, profile, question.cluster
    run = document.request.configuration
    model, cluster = model_and_cluster(document.request)
    profile = estimator_of(model, cluster, run).profile(point_of(run))
    return plan_of(run, profile.structure), profile, cluster


# The run that a document is about: what an estimate states, or what a plan comes to
# ----------------------------------------------------------------------------------


def run_of_document(
    document: str | Path | Report[Any],
) -> tuple[ModelInput, Cluster, Configuration]:
    """Model, cluster and run of an estimate or a plan of a model (a path or a result).

    Raises `InvalidInput` for other kinds, `UnsupportedFeature` for a plan that no options of
    `estimate` state: with an order that was searched, or blocks recomputed one by one.
    """
    found = document.document if isinstance(document, Report) else load_any_document(document)
    if isinstance(found, ModelEstimateResult):
        run = found.request.configuration
    elif isinstance(found, ModelPlanResult):
        if found.order is not None:
            raise UnsupportedFeature(
                "this plan has an order of actions that was searched, which no stated run has",
                alternative=f"plan again with --schedule {found.order.family} and give that",
            )
        job = job_of(found)
        if job.recompute_form in (RecomputeForm.MIXED, RecomputeForm.ANY):
            raise UnsupportedFeature(
                "this plan recomputes blocks one by one, which no stated run does",
                alternative="it is the planner's own; compare others with: trainwright diff",
            )
        run = job.configuration()
    else:
        kind = getattr(found, "kind", type(found).__name__)
        raise InvalidInput.of("document", f'must be an estimate or plan of a model, got "{kind}"')
    config, where = model_and_cluster(found.request)
    return ModelInput(config=config, embedded=found.request.model), where, run
