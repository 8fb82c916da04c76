"""The run that a document is about: what an estimate states, or what a plan comes to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.api.printed import Report
from trainwright.errors import InvalidInput, UnsupportedFeature

if TYPE_CHECKING:
    from trainwright.api.models import ModelInput
    from trainwright.cluster import Cluster
    from trainwright.plan.configuration import Configuration


def run_of_document(
    document: str | Path | Report[Any],
) -> tuple[ModelInput, Cluster, Configuration]:
    """Model, cluster and run of an estimate or a plan of a model (a path or a result).

    Raises `InvalidInput` for other kinds, `UnsupportedFeature` for a plan that no options of
    `estimate` state: with an order that was searched, or blocks recomputed one by one.
    """
    from trainwright.api.documents import load_any_document
    from trainwright.api.jobs import job_of, model_and_cluster
    from trainwright.api.models import ModelInput
    from trainwright.plan.demands import RecomputeForm
    from trainwright.plan.results.model_estimate import ModelEstimateResult
    from trainwright.plan.results.model_plan import ModelPlanResult

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
    config, where = model_and_cluster(found)
    return ModelInput(config=config, embedded=found.request.model), where, run
