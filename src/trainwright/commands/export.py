"""`trainwright export`: the files that make a framework run a plan."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from trainwright.commands.output import emit
from trainwright.documents import jobs
from trainwright.documents.model_estimate import ModelEstimateResult
from trainwright.documents.model_plan import ModelPlanResult
from trainwright.documents.open import load_explained_document, opened_by, priced_plan
from trainwright.documents.printing import Report
from trainwright.documents.runs import gaps_of, model_and_cluster
from trainwright.errors import Inexpressible, InvalidInput
from trainwright.formats.atomic_file import check_folder, file_bytes, write_folder
from trainwright.frameworks import export_target, needs_orders, write
from trainwright.frameworks.chrome_trace import trace_of
from trainwright.frameworks.launch import Launcher
from trainwright.options.inputs import resolve_model
from trainwright.plans.capability import CHROME_TRACE
from trainwright.plans.job import ExportBundle, Job, Stamp
from trainwright.step.account import step_timeline
from trainwright.step.predict import plan_of, profile_of_run

if TYPE_CHECKING:
    Exportable: TypeAlias = str | Path | Report[Any] | ModelPlanResult | ModelEstimateResult


def export(
    document: Exportable,
    to: str,
    *,
    model: str | Path | None = None,
    output: str | Path | None = None,
    launcher: str = "torchrun",
    allow_nearest: bool = False,
    force: bool = False,
    check: bool = False,
) -> Report[jobs.ExportResult]:
    """Write the files that run a plan into the folder `output`; without one, say what they are.

    `to` is a target with or without a version (`torchtitan@0.2`), "chrome-trace" or "dry-run".
    `document` is a plan or an estimate of a model; an improvement stands for its recommended
    change, a what-if for the plan with the changes, a sweep for its best row. Of a profile `model`
    says what its layers are, as `plan` would take it. `launcher` is "torchrun" or "slurm".
    With `allow_nearest`, what the target cannot express is replaced by the nearest choice it can,
    and the plan is priced again. `check` hands the files to the framework's own parser, where
    that is installed.

    Raises `Inexpressible` with everything the target cannot say and the targets that can,
    `InvalidInput` with every rule of the framework that the plan breaks.
    """
    target = export_target(to)
    if output is not None:
        check_folder(output, force=force)
    found = _opened(document)
    if target == CHROME_TRACE and found.request.model.kind == "profile":
        bundle = _trace_of_profile(found)
        if output is not None:
            write_folder(output, bundle.files, force=force)
        return Report(_document(bundle, jobs.stamp_of(found), output, None, None))
    described = None if model is None else resolve_model(model)
    job, nearest = jobs.job_of(found, described), None
    if allow_nearest and gaps_of(job, target):
        from trainwright.frameworks.nearest import nearest_job, nearest_on_pools

        before, whole = _layout(found), priced_plan(found)
        order = found.order if isinstance(found, ModelPlanResult) else None
        family = None if order is None else order.family
        if isinstance(whole, ModelPlanResult) and whole.on_pools:
            job, nearest = nearest_on_pools(job, target, whole, before, family=family)
        else:
            _, cluster = model_and_cluster(found.request)
            job, nearest = nearest_job(job, target, cluster, before, family=family)
    stamp = jobs.stamp_of(found)
    if nearest is not None:
        stamp = replace(stamp, changes=nearest.changes)
    try:
        bundle = _written(found, job, stamp, target, launcher, is_nearest=nearest is not None)
    except Inexpressible as error:
        planned = isinstance(found, ModelPlanResult) and found.request.space.framework == target
        if described is None and not planned:
            raise
        told, who = "options such as --schedule or --zero", error.alternatives
        if planned:  # for the target, and all the same with what it cannot run
            told = f"--framework {target} and without the options named here"
        raise Inexpressible(target, error.faults, alternatives=who, replan=told) from None
    if described is not None:
        told = "the profile does not say how the model trains: the files say what is usual"
        bundle = replace(bundle, warnings=(*bundle.warnings, *described.warnings, told))
    checked = None
    if check:
        from trainwright.frameworks.nearest import check_bundle

        checked = check_bundle(bundle, job)
    if output is not None:
        write_folder(output, bundle.files, force=force)
    return Report(_document(bundle, stamp, output, nearest, checked))


def bundle_of(document: Exportable, to: str, *, launcher: str = "torchrun") -> ExportBundle:
    """The files themselves, nothing written; raises as `export` does."""
    found = _opened(document)
    if export_target(to) == CHROME_TRACE and found.request.model.kind == "profile":
        return _trace_of_profile(found)
    return _written(found, jobs.job_of(found), jobs.stamp_of(found), export_target(to), launcher)


def _trace_of_profile(document: jobs.Jobbed) -> ExportBundle:
    """What a profile's plan has for others: no framework builds its layers."""
    name = document.request.model.name or "profile"
    return trace_of(jobs.timelines_of(document)[0], name, jobs.stamp_of(document))


def _opened(document: Exportable) -> jobs.Jobbed:
    opened = _meant(opened_by(load_explained_document, document))
    kind = getattr(opened, "kind", type(opened).__name__)
    if kind not in ("model-plan", "model-estimate"):
        wanted = (
            "must be a plan or an estimate of a model, or an improvement, what-if or sweep of it"
        )
        lacks = "no model to train"
        if kind == "plan":
            lacks = "no cluster to train on: plan the profile with --cluster"
        raise InvalidInput.of("document", f'{wanted}, got "{kind}", which has {lacks}')
    job: jobs.Jobbed = opened
    return job


def _meant(document: Any) -> Any:
    """The plan or run that a document about several stands for."""
    from trainwright.documents.explanation import run_meant

    return run_meant(document)


def _written(
    document: jobs.Jobbed,
    job: Job,
    stamp: Stamp,
    target: str,
    launcher: str,
    *,
    is_nearest: bool = False,
) -> ExportBundle:
    if launcher not in set(Launcher):
        raise InvalidInput.of("launcher", f'must be torchrun or slurm, got "{launcher}"')
    if needs_orders(target) and not gaps_of(job, target) and job.parallelism is not None:
        if is_nearest and job.orders is None:
            job = _ordered_by_configuration(document, job)
        elif not is_nearest:
            job = jobs.with_orders(job, jobs.timelines_of(document, job)[0])
    return write(job, stamp, target, launcher=Launcher(launcher))


def _ordered_by_configuration(document: jobs.Jobbed, job: Job) -> Job:
    model, cluster = model_and_cluster(document.request)
    run = job.configuration()
    profile = profile_of_run(model, cluster, run)
    timeline = step_timeline(plan_of(run, profile), profile, cluster, **job.step_settings)
    return jobs.with_orders(job, timeline)


def _layout(document: jobs.Jobbed) -> jobs.PricedLayout:
    return jobs.PricedLayout(
        step_time_s=document.step_time_s or 0.0,
        peak_memory_bytes=document.peak_memory_bytes or 0.0,
    )


def _document(
    bundle: ExportBundle,
    stamp: Stamp,
    output: str | Path | None,
    nearest: jobs.Nearest | None,
    checked: str | None,
) -> jobs.ExportResult:
    data = {name: file_bytes(name, text) for name, text in bundle.files.items()}
    return jobs.ExportResult(
        target=bundle.target,
        version=bundle.version,
        plan_sha256=stamp.plan_sha256,
        trainwright_version=stamp.trainwright_version,
        folder=None if output is None else str(output),
        files=tuple(
            jobs.ExportedFile(name=name, sha256=hashlib.sha256(each).hexdigest(), bytes=len(each))
            for name, each in data.items()
        ),
        command=" ".join(bundle.command),
        environment=dict(bundle.environment),
        not_represented=bundle.not_represented,
        asked_of_user=bundle.asked_of_user,
        warnings=bundle.warnings,
        nearest=nearest,
        checked=checked,
    )


# `trainwright export`
# --------------------


def command(
    document: str, *, to: str, output: Path | None = None, as_json: bool = False, **options: Any
) -> None:
    """Write the files, or say what they are."""
    report = export(document, to, output=output, **options)
    emit(report, as_json=as_json, output=None)
