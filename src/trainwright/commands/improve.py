"""`trainwright improve`: how far is a job from the best plan, and what gets most of the way?"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.cluster import Cluster
from trainwright.commands.output import budget, check_output, emit, finish
from trainwright.documents.improvement import (
    ImprovementResult,
    PricedPlan,
    Surroundings,
    allowed_for,
    best_plan,
    chosen_of,
    document_of,
    not_taken_over,
    unrunnable,
    with_kernels,
    with_weights_on_devices,
)
from trainwright.documents.jobs import DocumentedRun, is_stated, opened_run, run_of_document
from trainwright.documents.model_estimate import ModelEstimateRequest
from trainwright.documents.model_plan import ModelPlanResult
from trainwright.documents.printing import Report, no_plan
from trainwright.documents.runs import gaps_of_run, runs_on
from trainwright.errors import Fault, InvalidInput
from trainwright.execution import Budget
from trainwright.execution import Budget as NoLimit
from trainwright.formats.atomic_file import check_writable, write_text
from trainwright.frameworks import read_job
from trainwright.frameworks.jobs import Beside
from trainwright.frameworks.jobs.detect import started_by
from trainwright.options import clusters
from trainwright.options.inputs import embed_cluster, naming_options
from trainwright.options.option import Options
from trainwright.options.run import OPTION_OF, configuration_of, devices_asked_for, tuned
from trainwright.planning.question.question import described
from trainwright.planning.reasons.improve import (
    Improvement,
    Neighbourhood,
    every_improvement,
    improvements,
    other_trainings,
    settings_between,
)
from trainwright.plans.capability import target_named
from trainwright.plans.capability_table import LOSS_CHUNKS
from trainwright.plans.configuration import Configuration
from trainwright.plans.job import trains_adapters, unsaid_training
from trainwright.profile.measured_model import MeasuredModel
from trainwright.provenance import __version__
from trainwright.step.predict import price_configuration
from trainwright.units import format_seconds

if TYPE_CHECKING:
    from trainwright.frameworks.jobs.edit import JobText
    from trainwright.profile.measured_model import Trained


def improve(
    document: str | Path | Report[Any] | None = None,
    *,
    source: tuple[str | None, str | Path] | None = None,
    argument: Sequence[str] = (),
    variable: Mapping[str, str] | None = None,
    vocab_size: int | None = None,
    function: str | None = None,
    model: str | Path | None = None,
    cluster: str | Path | Cluster | None = None,
    nodes: int | None = None,
    sequence: int | None = None,
    global_batch: int | None = None,
    calibration: str | Path | None = None,
    software: str | None = None,
    framework: str | None = None,
    patch: str | Path | None = None,
    budget: Budget | None = None,
) -> Improved:
    """Compare a run with the best plan of its model, devices and batch, and with small changes.

    The run is an estimate of a model (`document`), or the file of a framework (`document` too, or
    `source`, its name and path, read with `argument` and the rest as `estimate` does) on
    `cluster`, with `sequence` tokens and `global_batch` sequences in place of what the file says
    of them, timed with what `calibration` fitted (a file of `calibrate`, or a built-in software
    line), or as runs under `software` are expected to be. With `framework`, only what that
    framework can run is considered; of a file it is that of the file, and what the file has no
    settings for is not considered either, unless `framework` is another, or "any". `patch` is where
    a copy of the file goes with the recommended change in it; nothing else in it changes. Raises
    `InvalidInput` where the run is not legal, is missing a part, or is stated twice.
    """
    budget = budget or NoLimit()
    path = document if source is None and isinstance(document, (str, Path)) else None
    if path is not None and (known := read_job.job_format(path)) is not None:
        source, document = (known, path), None
    job_file = None
    dialect, target = None, None if framework == clusters.ANY_FRAMEWORK else framework
    if source is not None and document is None:
        beside_file = {"sequence": sequence, "global_batch": global_batch}
        read: dict[str, Any] = {
            "arguments": tuple(argument),
            "variables": dict(variable or {}),
            "vocabulary": vocab_size,
            "function": function,
        }

        where_from, names_model = source, model is None

        def of_text(
            text: str | None = None,
        ) -> tuple[DocumentedRun, tuple[str, ...], read_job.StatedJob]:
            job = read_job.open_stated(
                *where_from, names_model=names_model, nodes=nodes, text=text, **read
            )
            return *_of_file(job, model, cluster, nodes, beside_file), job

        asked, warnings, job = of_text()
        priced: dict[str, Any] = {"calibration": calibration, "software": software}
        priced |= {"framework": target, "offload": asked.configuration.recipe.offload}
        priced["overlap"] = asdict(asked.configuration.overlap)
        where = clusters.priced_as_run(asked.cluster, priced, framework=job.software)
        warnings = (*warnings, *clusters.replaced_figures(asked.cluster, where))
        asked = replace(
            asked,
            cluster=where,
            software=clusters.software_named_by(priced, framework=job.software),
        )
        job_file = _file_of(source, read, lambda text: _run_of(of_text(text)[0]))
        spoken = job_file.dialect if job.run.per_example == 1 else None  # which counts otherwise
        dialect, target = _spoken(spoken, framework, asked)
    elif source is None and document is not None:
        beside = {"model": model, "cluster": cluster, "nodes": nodes, "sequence": sequence}
        beside |= {"global-batch": global_batch, "calibration": calibration}
        beside |= {"software": None if software == clusters.AUTO_SOFTWARE else software}
        _refuse_restated(beside)
        found = opened_run(document)
        if (unstated := _unstated(found)) is not None:
            return Improved(_improved_plan(unstated, framework, patch, budget))
        asked = run_of_document(found)
        warnings = ()
    elif source is None:
        raise InvalidInput.of("document", "must be given, or a framework's file, as --from")
    else:
        given_twice = (
            "must not be given beside --from, which states the run; name a model by --model"
        )
        raise InvalidInput.of("document", given_twice)
    if patch is not None and job_file is not None:
        _refuse_own(patch, job_file)
    if patch is not None and (job_file is None or dialect is None):
        raise InvalidInput.of("patch", "needs a framework's file whose settings are changed")
    bare = _priced(asked, framework=target, dialect=dialect)
    found = _searched(bare, budget)
    text = None
    if job_file is not None and dialect is not None:
        found, text = _that_can_be_written(found, job_file)
    answer = document_of(found)
    said = (*warnings, *_gaps_of(found), *found.warnings, *_limits(found, answer, budget))
    shown = ""
    if patch is not None and job_file is not None:
        if text is None:
            said += (f"patch: no change is recommended, so {patch} is not written",)
        else:
            shown = _write_copy(patch, job_file, text)
    return Improved(replace(answer, warnings=said), difference=shown)


def _unstated(found: Any) -> ModelPlanResult | None:
    """The plan that a document is, or whose improvement it is, where no options state it."""
    plan = found.plan if found.kind == "improvement" else found
    if plan is None or plan.kind != "model-plan":
        return None
    return None if plan.stages and not plan.on_pools and is_stated(plan) else plan


def _improved_plan(
    document: ModelPlanResult, framework: str | None, patch: str | Path | None, budget: Budget
) -> ImprovementResult:
    """Raises `InvalidInput` for what is about a run of options, or where there is no plan."""
    from trainwright.documents.explanation import improved_plan

    if not document.stages:
        raise no_plan(document.status)
    own = document.request.space.framework
    if framework not in (None, own or clusters.ANY_FRAMEWORK):
        problem = f"must be {own or clusters.ANY_FRAMEWORK}, which the plan was made for"
        raise InvalidInput.of("framework", f"{problem}; plan with --framework {framework}")
    if patch is not None:
        raise InvalidInput.of("patch", "needs a framework's file whose settings are changed")
    return improved_plan(document, budget)


@dataclass(frozen=True, slots=True, repr=False)
class Improved(Report["ImprovementResult"]):
    """The document of `improve`, and where a copy of the file was written how it differs."""

    difference: str = ""


# The file's own settings
# -----------------------


def _file_of(
    source: tuple[str | None, str | Path],
    read: Mapping[str, Any],
    run_of: Callable[[str], tuple[Configuration, Trained]],
) -> JobText:
    from trainwright.frameworks.jobs.edit import job_text

    where = Path(source[1])
    beside = Beside(folder=where.parent, name=where.name, **read)
    return job_text(*source, read_job.text_of(where), beside, run_of)


def _run_of(read: DocumentedRun) -> tuple[Configuration, Trained]:
    return read.configuration, read.model


def _spoken(
    dialect: str | None, framework: str | None, asked: DocumentedRun
) -> tuple[str | None, str | None]:
    """In whose settings changes are said, and whose limits hold.

    Another framework that is asked for has other settings. A run that its own framework does not
    have in the planner's account of it (a fork) is held to its settings alone.
    """
    from trainwright.frameworks.jobs.dialects import DIALECTS

    own = None if dialect is None else DIALECTS[dialect].target
    if framework is not None:
        if framework == clusters.ANY_FRAMEWORK:
            return None, None
        return (dialect if own and target_named(framework) == own else None), framework
    if own and not runs_on(asked.configuration, asked.model, asked.cluster, own):
        own = None
    return dialect, own


def _that_can_be_written(found: Surroundings, job: JobText) -> tuple[Surroundings, str | None]:
    """Without those that would be recommended but cannot be written into the file; its new text."""
    from trainwright.frameworks.jobs.edit import patched

    if not job.can_edit:
        return found, None
    while (chosen := chosen_of(found)) is not None:
        try:
            return found, patched(job, chosen.run, described(found.model), chosen.model)
        except InvalidInput:
            left, others = (
                tuple(each for each in some if each is not chosen)
                for some in (found.changes, found.trainings)
            )
            found = replace(found, changes=left, trainings=others)
    return found, None


def _refuse_own(path: str | Path, job: JobText) -> None:
    if Path(path).resolve() == job.path.resolve():
        raise InvalidInput.of("patch", "must be another file than the one that is read")
    if not job.can_edit:
        raise InvalidInput.of("patch", _not_edited(job))
    check_writable(path)


def _not_edited(job: JobText) -> str:
    """Why no copy of a file is written, and which file is to be given in its place."""
    started = started_by(job.text, job.beside)
    if started is None:
        return "such a file is read only: no copy of it is written"
    here = job.path.parent / started.name
    words = ", with what replaces its settings on the command line" if started.notes else ""
    devices, nodes = started.launch.devices, ""
    if devices.total and devices.per_node:
        nodes = f" and --nodes {devices.total // devices.per_node}"
    return (
        f"{job.path.name} starts its trainer on {started.name}, where the settings stand{words}: "
        f"give {here}{nodes} in place of {job.path.name}"
    )


def _write_copy(path: str | Path, job: JobText, text: str) -> str:
    """The copy is written; what comes back shows how it differs."""
    from trainwright.frameworks.jobs.edit import difference

    write_text(path, text)
    return difference(job, text, str(path))


def _refuse_restated(beside: Mapping[str, object]) -> None:
    """A document says all of this by itself."""
    problem = "belongs to --from; a document states its own"
    faults = [Fault(name, problem) for name, value in beside.items() if value is not None]
    if faults:
        raise InvalidInput(faults)


def _of_file(
    job: read_job.StatedJob,
    model: str | Path | None,
    cluster: str | Path | Cluster | None,
    nodes: int | None,
    beside: Options,
) -> tuple[DocumentedRun, tuple[str, ...]]:
    given = read_job.stated_model(job, model)
    job = read_job.job_of_model(job, given.config)
    options = read_job.stated_options(job, beside, given.config)
    given = tuned(given, options)
    devices = devices_asked_for(options) if nodes is None else None
    whole = clusters.opened(cluster)
    where, num_devices = clusters.resolve_cluster(whole, nodes=nodes, devices=devices)
    options, unpriced = read_job.on_known_host(job, options, where.accelerator)
    unpriced += tuple(read_job.left_open(job, options))
    options = read_job.with_stated_batch(job, options, num_devices=num_devices)
    run = configuration_of(options, num_devices=num_devices)
    found = DocumentedRun(
        model=given.config, embedded=given.embedded, cluster=where, configuration=run
    )
    said = (*whole.warnings, *clusters.grown(whole.cluster, where, nodes=nodes))
    return found, (*given.warnings, *job.warnings, *unpriced, *said)


# The run, what is around it, and what the search finds
# -----------------------------------------------------


def _priced(
    asked: DocumentedRun,
    *,
    framework: str | None,
    dialect: str | None,
) -> Surroundings:
    model, run = asked.model, asked.configuration
    cluster = (
        asked.cluster if isinstance(model, MeasuredModel) else clusters.with_host(asked.cluster)
    )
    with naming_options({"target": "framework"}):
        target = None if framework is None else target_named(framework)
    if target is not None and isinstance(model, MeasuredModel):
        problem = "must be left out: a profile does not say what a framework would build"
        raise InvalidInput.of("framework", problem)
    with naming_options(OPTION_OF):
        step = price_configuration(model, cluster, run)
    return Surroundings(
        model=model,
        cluster=cluster,
        request=ModelEstimateRequest(
            trainwright_version=__version__,
            model=asked.embedded,
            cluster=embed_cluster(cluster),
            configuration=run,
            framework=asked.software or target,
        ),
        framework=target,
        dialect=dialect,
        step=step,
        changes=(),
        plan=None,
        bound_s=0.0,
    )


def _searched(bare: Surroundings, budget: Budget) -> Surroundings:
    """The changes first, which take seconds, then the best plan with what is left of the budget."""
    from trainwright.frameworks.jobs.dialects import changed_words

    run, target, dialect = bare.request.configuration, bare.framework, bare.dialect
    chunk = LOSS_CHUNKS.get(target or "")

    def wanted(trained: Trained, other: Configuration) -> bool:
        if dialect and changed_words(dialect, run, other, described(bare.model), trained) is None:
            return False
        if target is None:
            return True
        if chunk is not None and other.recipe.loss_chunk not in (
            None,
            chunk,
            run.recipe.loss_chunk,
        ):
            return False
        if trained is not bare.model and not trains_adapters(target):
            return False
        unsaid = unsaid_training(described(trained), other.recipe, target)
        return runs_on(other, trained, bare.cluster, target) and {*unsaid} <= now

    now = set() if target is None else {*unsaid_training(bare.config, run.recipe, target)}
    around = Neighbourhood(model=bare.model, cluster=bare.cluster, wanted=wanted, fits=bare.fits)
    changes = improvements(run, around, budget) if wanted(bare.model, run) else ()
    changes = _in_words(bare, changes)
    tried_all = not any(map(bare.helps, changes))
    if tried_all:
        changes = _in_words(bare, every_improvement(run, around, budget))
        tried_all = not budget.stopped
    nothing_fits = not changes and not bare.base_fits
    others = other_trainings(run, around, budget, with_others=nothing_fits)
    bare = replace(bare, trainings=_in_words(bare, others))
    fastest = min(changes, key=lambda each: each.step.step_time_s, default=None)
    kernels = ""
    if fastest is not None:
        kernels = settings_between(*map(with_weights_on_devices, (run, fastest.run)))
    # With the kernels of the fastest change first: what is found is to beat with the run's own.
    plan: PricedPlan | None = None
    pool = bare.cluster.pool_of()

    def of_model(other: Configuration) -> bool:
        return wanted(bare.model, other)

    bound_s, unable = math.inf, tuple[str, ...]()
    for added in dict.fromkeys((kernels, "")):
        to_beat_s = math.inf if plan is None else plan.step.step_time_s
        found, found_s, unable = _planned(
            bare, with_kernels(run, added, pool), added, of_model, budget, to_beat_s
        )
        plan, bound_s = found or plan, min(bound_s, found_s)
    return replace(
        bare, changes=changes, tried_all=tried_all, plan=plan, bound_s=bound_s, warnings=unable
    )


def _in_words(bare: Surroundings, changes: tuple[Improvement, ...]) -> tuple[Improvement, ...]:
    """The changes with what they are in the settings of the run's file."""
    from trainwright.frameworks.jobs.dialects import changed_words, shown_words

    dialect, run = bare.dialect, bare.request.configuration
    if dialect is None:
        return changes
    model = described(bare.model)
    words = (changed_words(dialect, run, each.run, model, each.model) or {} for each in changes)
    return tuple(
        replace(each, settings=shown_words(dialect, said))
        for each, said in zip(changes, words, strict=True)
    )


def _planned(
    bare: Surroundings,
    asked: Configuration,
    kernels: str,
    wanted: Callable[[Configuration], bool],
    budget: Budget,
    to_beat_s: float,
) -> tuple[PricedPlan | None, float, tuple[str, ...]]:
    """The best plan that the framework runs, what none is faster than, and why there is none."""
    from trainwright.frameworks.jobs.dialects import said_in

    allowed = allowed_for(asked, bare.framework, wanted)
    if bare.dialect is not None:
        allowed = said_in(bare.dialect, asked, allowed, wanted)
    question = bare.question_of(asked, allowed)
    plan, bound_s = best_plan(question, asked, kernels, budget, to_beat_s=to_beat_s)
    gaps = () if plan is None else unrunnable(plan, question)
    if gaps:
        return None, 0.0, tuple(f"no plan of {bare.framework} is for this run: {g}" for g in gaps)
    return plan, bound_s, ()


def _gaps_of(found: Surroundings) -> Iterator[str]:
    """What the framework cannot express of the run itself."""
    if found.framework is not None:
        run = found.request.configuration
        for gap in gaps_of_run(run, found.config, found.cluster, found.framework):
            yield f"your run: {gap}"


def _limits(found: Surroundings, document: ImprovementResult, budget: Budget) -> Iterator[str]:
    """What the comparison leaves out."""
    yield from not_taken_over(found.request.configuration)
    if found.plan is not None and document.best_plan is None:
        what = "your run" if not document.changes else "the fastest change"
        yield (
            f"the planner's own plan takes {format_seconds(found.plan.step.step_time_s)}, more "
            f"than {what}, which is the best that is known"
        )
    if budget.stopped:
        yield "the time limit ended the search: there may be better changes, and a better plan"


# `trainwright improve`
# ---------------------


def command(
    document: str | None = None,
    *,
    source: tuple[str, str] | None = None,
    output: Path | None = None,
    as_json: bool = False,
    verbose: bool = False,
    time_limit: float | None = None,
    **options: Any,
) -> None:
    """Look for changes and for the best plan; the limit ends it with the best found."""
    check_output(output, document, source[1] if source else None)
    with budget(time_limit) as limited:
        report = improve(document, source=source, budget=limited, **options)
    emit(report, as_json=as_json, output=output, verbose=verbose)
    if report.difference:
        print(report.difference, end="", file=sys.stderr if as_json else sys.stdout)
    nothing_fits = report.document.best_known_s is None and report.document.recommended is None
    finish(3 if nothing_fits and not limited.stopped else 0, interrupted=limited.interrupted)
