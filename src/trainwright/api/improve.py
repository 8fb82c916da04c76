"""`trainwright improve`: how far is a job from the best plan, and what gets most of the way?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright._version import __version__
from trainwright.api.printed import Report
from trainwright.errors import Fault, InvalidInput, UnsupportedFeature

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from trainwright.api.models import ModelInput
    from trainwright.cluster import Cluster
    from trainwright.execution import Budget
    from trainwright.plan import StepPrediction
    from trainwright.plan.configuration import Configuration
    from trainwright.plan.results.improvement import (
        BestPlanRecord,
        ImprovementRecord,
        ImprovementResult,
    )
    from trainwright.plan.results.model_plan import ModelPlanResult
    from trainwright.planning.improve import Improvement

NUM_CHANGES = 8


def improve(
    document: str | Path | Report[Any] | None = None,
    *,
    source: tuple[str, str | Path] | None = None,
    model: str | Path | None = None,
    cluster: str | Path | Cluster | None = None,
    nodes: int | None = None,
    sequence: int | None = None,
    framework: str | None = None,
    budget: Budget | None = None,
) -> Report[ImprovementResult]:
    """Compare a run with the best plan of its model, devices and batch, and with small changes.

    The run is an estimate of a model (`document`), or the file of a framework (`source`, its name
    and path) on `cluster`, of `sequence` tokens where the file does not say. With `framework`, only
    what that framework can run is considered. Raises `InvalidInput` where the run is not legal, is
    missing a part, or is stated twice.
    """
    from trainwright.execution import Budget as NoLimit

    budget = budget or NoLimit()
    if source is not None and document is None:
        given, where, run, warnings = _of_file(source, model, cluster, nodes, sequence)
    elif source is None and document is not None:
        beside = {"model": model, "cluster": cluster, "nodes": nodes, "sequence": sequence}
        _refuse_restated(beside)
        given, where, run, warnings = _of_document(document)
    else:
        raise InvalidInput.of("document", "must be given, or a framework's file, as --from")
    return Report(
        _improved(given, where, run, framework=framework, warnings=warnings, budget=budget)
    )


def _refuse_restated(beside: Mapping[str, object]) -> None:
    """A document says all of this by itself."""
    problem = "belongs to --from; a document states its own"
    faults = [Fault(name, problem) for name, value in beside.items() if value is not None]
    if faults:
        raise InvalidInput(faults)


def _of_file(
    source: tuple[str, str | Path],
    model: str | Path | None,
    cluster: str | Path | Cluster | None,
    nodes: int | None,
    sequence: int | None,
) -> tuple[ModelInput, Cluster, Configuration, tuple[str, ...]]:
    from trainwright.api.clusters import resolve_cluster
    from trainwright.api.run_options import configuration_of, devices_asked_for
    from trainwright.api.stated import open_stated, stated_model, stated_options

    job = open_stated(*source)
    given, options = stated_model(job, model), stated_options(job, {"sequence": sequence})
    devices = devices_asked_for(options) if nodes is None else None
    where, _ = resolve_cluster(cluster, nodes=nodes, devices=devices, memory_bytes=None)
    run = configuration_of(options, num_devices=where.num_devices)
    return given, where, run, (*given.warnings, *job.warnings)


def _of_document(
    document: str | Path | Report[Any],
) -> tuple[ModelInput, Cluster, Configuration, tuple[str, ...]]:
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
    return ModelInput(config=config, embedded=found.request.model), where, run, ()


def _improved(
    given: ModelInput,
    cluster: Cluster,
    run: Configuration,
    *,
    framework: str | None,
    warnings: tuple[str, ...],
    budget: Budget,
) -> ImprovementResult:
    from trainwright.api.inputs import embed, naming_options
    from trainwright.api.run_options import OPTION_OF
    from trainwright.formats.document_json import encode
    from trainwright.plan.capability import target_named
    from trainwright.plan.results.export import PricedLayout
    from trainwright.plan.results.improvement import ImprovementResult
    from trainwright.plan.results.model_estimate import ModelEstimateRequest
    from trainwright.planning.improve import Neighbourhood, improvements, recommended
    from trainwright.pricing.configuration import price_configuration

    target = None if framework is None else target_named(framework)
    limit_bytes = cluster.accelerator.usable_bytes

    def fits(step: StepPrediction) -> bool:
        return run.overheads.needed_bytes(step.peak_memory_bytes) <= limit_bytes

    def wanted(other: Configuration) -> bool:
        if target is None:
            return True
        from trainwright.api.jobs import job_of_configuration
        from trainwright.formats.exports import gaps_of

        job = job_of_configuration(other, given.config, cluster, model_name=given.embedded.name)
        return not gaps_of(job, target)

    with naming_options(OPTION_OF):
        step = price_configuration(given.config, cluster, run)
    plan = _best_plan(given, cluster, run, target, budget)
    around = Neighbourhood(model=given.config, cluster=cluster, wanted=wanted, fits=fits)
    found = improvements(run, around, budget)
    times_s = [each.step.step_time_s for each in found]
    if plan is not None and plan.step_time_s is not None:
        times_s.append(plan.step_time_s)
    best_s = min([step.step_time_s, *times_s])
    chosen = recommended(found, base_s=step.step_time_s, best_s=best_s)
    faster = [each for each in found if each.step.step_time_s < step.step_time_s]
    return ImprovementResult(
        framework=target,
        run=PricedLayout(step_time_s=step.step_time_s, peak_memory_bytes=step.peak_memory_bytes),
        run_fits=fits(step),
        memory_limit_bytes=limit_bytes,
        best_plan=None if plan is None else _plan_record(plan, step.step_time_s),
        recommended=None if chosen is None else _record(chosen, step.step_time_s, best_s),
        changes=tuple(_records(faster, step.step_time_s, best_s)),
        warnings=(*warnings, *_unlike_the_plan(run)),
        request=ModelEstimateRequest(
            trainwright_version=__version__,
            model=given.embedded,
            cluster=embed("cluster", cluster.name, encode(cluster)),
            configuration=run,
        ),
    )


def _best_plan(
    given: ModelInput, cluster: Cluster, run: Configuration, target: str | None, budget: Budget
) -> ModelPlanResult | None:
    """The planner's answer to the same question; None where it has none."""
    from trainwright.api.model_options import model_call
    from trainwright.api.plan_model import plan_model

    call = model_call(
        given,
        {
            "cluster": cluster,
            "global_batch": run.global_batch,
            "sequence": run.sequence_length,
            "framework": target,
            "top": 0,
        },
        devices=run.parallelism.num_devices,
        memory_bytes=None,
    )
    workload = replace(call.question.workload, precision=run.recipe.precision)
    question = replace(call.question, workload=workload, overheads=run.overheads)
    found = plan_model(replace(call, question=question), budget)
    return found if found.stages else None


def _unlike_the_plan(run: Configuration) -> Iterator[str]:
    """What the planner does not take over from the run, so that the two compare only roughly."""
    from trainwright.model import DEFAULT_RECIPE
    from trainwright.plan.overlap import DEFAULT_OVERLAP

    recipe = replace(run.recipe, precision=DEFAULT_RECIPE.precision)
    if (recipe, run.overlap) != (DEFAULT_RECIPE, DEFAULT_OVERLAP):
        yield (
            "the best plan is priced with the usual kernels, optimizer and overlap, not with those "
            "of the run: it and its bound are for comparison only"
        )


def _plan_record(plan: ModelPlanResult, base_s: float) -> BestPlanRecord:
    from trainwright.plan.results.improvement import BestPlanRecord

    step_s = plan.step_time_s or 0.0
    return BestPlanRecord(
        parallelism=plan.parallelism,
        schedule=plan.schedule,
        micro_batch=plan.micro_batch,
        num_recomputed=sum(stage.num_recomputed for stage in plan.stages),
        step_time_s=step_s,
        lower_bound_s=plan.lower_bound_s or 0.0,
        peak_memory_bytes=max(plan.peak_memory_bytes_per_rank, default=0.0),
        speedup=base_s / step_s,
    )


def _records(
    found: Iterable[Improvement], base_s: float, best_s: float
) -> Iterable[ImprovementRecord]:
    """The fastest of each size first: single changes, then pairs that beat them."""
    singles = [each for each in found if len(each.dimensions) == 1]
    pairs = [each for each in found if len(each.dimensions) > 1]
    half = NUM_CHANGES // 2
    for each in (*singles[:half], *pairs[:half]):
        yield _record(each, base_s, best_s)


def _record(each: Improvement, base_s: float, best_s: float) -> ImprovementRecord:
    from trainwright.plan.results.improvement import ImprovementRecord

    step_s = each.step.step_time_s
    return ImprovementRecord(
        dimensions=each.dimensions,
        options=each.options,
        step_time_s=step_s,
        peak_memory_bytes=each.step.peak_memory_bytes,
        speedup=base_s / step_s,
        gain_share=(base_s - step_s) / (base_s - best_s) if base_s > best_s else 0.0,
    )
