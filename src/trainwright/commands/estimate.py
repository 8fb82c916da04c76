"""`trainwright estimate`: the price of a plan someone already has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.commands.output import check_output, emit, finish
from trainwright.documents.model_estimate import (
    ModelEstimateResult,
    estimate_model,
    estimate_on_pools,
)
from trainwright.documents.printing import Report
from trainwright.documents.profile_plan import (
    EstimateResult,
    ProfileQuestion,
    overflow_records,
    profile_request,
    read_setting,
    read_stages,
    stage_records,
    unit_warnings,
)
from trainwright.documents.registry import PRICED, records
from trainwright.errors import InvalidInput
from trainwright.execution import Budget
from trainwright.formats.atomic_file import read_bytes
from trainwright.formats.document_json import document_type
from trainwright.formats.json_text import parse_json
from trainwright.frameworks import read_job
from trainwright.options import inputs
from trainwright.options.clusters import (
    grown,
    opened,
    priced_as_run,
    replaced_figures,
    resolve_cluster,
    software_named_by,
)
from trainwright.options.run import as_program_trains, as_trained, devices_asked_for, tuned
from trainwright.options.table import read, refuse_foreign, verb
from trainwright.partitioning.downset_dp import Restrictions
from trainwright.partitioning.evaluate import evaluate, time_per_sample_s
from trainwright.plans.plan import Plan, Stage
from trainwright.plans.status import MemorySnapshot, OutOfMemory
from trainwright.profile import Profile, ProfileFile, Setting
from trainwright.units import format_bytes

if TYPE_CHECKING:
    Priceable = str | Path | Profile | ProfileFile
    Source = tuple[str | None, str | Path]
    Told = tuple[Source | None, Priceable | None, OutOfMemory | None, MemorySnapshot | None]


@verb
def estimate(
    model: str | Path | Profile | ProfileFile | None = None,
    *,
    source: tuple[str | None, str | Path] | None = None,
    **options: Any,
) -> Report[EstimateResult] | Report[ModelEstimateResult]:
    """Price a run of a model or profile on `cluster`, or a `plan` (a document) of a profile.

    `source` names a framework (`frameworks.jobs.FORMATS`; None: its content says) and a file of an
    existing job: what it states stands in for options that are not given, and its model for
    `model`. `argument` and `variable` are those of its script, `vocab_size` is what its
    tokenizer decides, `function` the one of a Python registry. `model` may be such a file itself.
    The log of a job that ran out of memory says where and by how much, beside a model and options
    where it does not state what was run; a memory snapshot of PyTorch, which is read without
    running anything in it, is compared class by class.
    `docs/cli-reference.md` describes all options and their defaults; `recompute` is none,
    selective, full, or full:N for the first N blocks of each stage, `overlap` maps gradients,
    parameters, tensor, experts or pipeline to a share, sizes are bytes or text with a unit, and
    `calibration` is a file that `calibrate` wrote or a built-in software line. On several pools
    `pool` says where each rank lies. A profile takes degrees and schedule on a `cluster`, and
    without one `plan`, `devices`, `memory`, `bandwidth` and `microbatches`. What is not given is
    taken from the plan document's own request, then from the profile. Raises `InvalidInput` naming
    every rule that is broken; what only overflows memory is priced in full, with `fits` false, and
    `changes` prices what would make it fit.
    """
    options = read("estimate", options, own=("source",))
    overrides = inputs.setting_overrides(options)
    on_cluster = options.get("cluster") is not None
    source, model, failure, snapshot = _told(source, model)
    asked = options
    given, job, options = _opened(source, model, options, overrides)
    of_before: tuple[str, ...] = ()
    if job is not None and failure is not None:
        from trainwright.frameworks.read_job import replaced_options

        if replaced := replaced_options(job, asked):
            failure, words = None, ", ".join(replaced)
            of_before = (
                f"the job that ran out was run without {words}: priced is the changed one",
            )
    refuse_foreign(
        "estimate", inputs.kind_of(given, on_cluster=on_cluster), inputs.unused(given, options)
    )
    if not isinstance(given, inputs.ModelInput) and not on_cluster:
        return _estimate_profile(given, options.get("plan"), overrides)

    carrier = given.document if isinstance(given, inputs.ModelInput) else None
    whole = opened(options.get("cluster"), document=carrier)
    if len(whole.cluster.pools) > 1:
        if failure is not None or snapshot is not None:
            problem = "how a run ended is compared with an estimate on one pool"
            raise InvalidInput.of("from", problem)
        asked = {**options, "cluster": whole}
        if job is not None and options.get("calibration") is None:
            asked["software"] = software_named_by(options, framework=job.software)
        said = (*job.warnings, *read_job.left_open(job, options)) if job else ()
        software = software_named_by(asked, framework=job.software if job else None)
        return Report(estimate_on_pools(given, asked, framework=software, warnings=said))
    if "pool" in options:
        raise InvalidInput.of("pool", f"must be left out: {whole.cluster.name} is one pool")
    if isinstance(given, inputs.ModelInput):
        given = tuned(as_trained(given, options), options)
    nodes, devices = options.get("nodes"), options.get("devices")
    where, num_devices = resolve_cluster(
        whole,
        nodes=nodes,
        devices=devices if devices is not None or nodes is not None else devices_asked_for(options),
        memory_bytes=overrides.get("memory_bytes"),
    )
    where = priced_as_run(
        where,
        options,
        framework=job.software if job else None,
        measured=not isinstance(given, inputs.ModelInput),
    )
    unpriced: tuple[str, ...] = ()
    if job is not None:
        options, unpriced = read_job.on_known_host(job, options, where.accelerator)
        unpriced += tuple(read_job.left_open(job, options))
        options = read_job.with_stated_batch(job, options, num_devices=num_devices)
    elif isinstance(given, inputs.ModelInput):  # a file says itself what its program does
        options = {**as_program_trains(options, where.accelerator)}
    warnings = [*of_before, *(job.warnings if job else ()), *unpriced, *whole.warnings]
    warnings += grown(whole.cluster, where, nodes=nodes)
    warnings += replaced_figures(whole.cluster, where)
    document = estimate_model(
        given,
        cluster=where,
        num_devices=num_devices,
        options=options,
        changes=bool(options.get("changes")),
        framework=software_named_by(options, framework=job.software if job else None),
        failure=failure,
        snapshot=snapshot,
        warnings=warnings,
    )
    return Report(document)


def _told(source: Source | None, model: Priceable | None) -> Told:
    """The run to price, as a job's own file or as a model, and how an earlier run ended.

    A log or a snapshot of memory says how a run ended; what was run stands in the job's own file,
    which may be given as the model, or in options.
    """
    if source is None:
        if not isinstance(model, (str, Path)):
            return None, model, None, None

        if (known := read_job.job_format(model)) is None:
            is_text = Path(model).suffix not in (".json", ".toml")
            if is_text and (failure := read_job.failure_of(model)) is not None:
                raise _unstated(failure, "model")
            return None, model, None, None
        source, model = (known, model), None

    failure, snapshot = read_job.failure_of(source[1]), read_job.snapshot_of(source[1])
    if snapshot is not None:
        return None, model, failure, snapshot
    if failure is None or read_job.job_format(source[1]) is not None:
        return source, model, failure, None
    if model is None:
        raise _unstated(failure, "--from")
    if isinstance(model, (str, Path)) and (own := read_job.job_format(model)) is not None:
        return (own, model), None, failure, None
    return None, model, failure, None


def _opened(
    source: Source | None,
    model: Priceable | None,
    options: dict[str, Any],
    overrides: Mapping[str, float],
) -> tuple[inputs.ModelInput | inputs.ProfileInput, read_job.StatedJob | None, dict[str, Any]]:
    """What is priced, the job that states it, and the options with what the job states."""
    if source is not None:
        job = read_job.open_stated(
            *source, names_model=model is None, **read_job.how_to_read(options)
        )
        if not (model is None or isinstance(model, (str, Path))):
            raise InvalidInput.of("model", "must be a name or a file beside a framework's file")
        found = read_job.stated_model(job, model)
        job = read_job.job_of_model(job, found.config)
        return found, job, read_job.stated_options(job, options, found.config)
    if model is None:
        raise InvalidInput.of("model", "must be given, or a framework's file, as --from")
    from trainwright.commands.model import open_model_of

    return inputs.no_placement(open_model_of(model, options, given=overrides), model), None, options


def _unstated(failure: OutOfMemory, path: str) -> InvalidInput:
    """What a log at `path` says of its end, where nothing says what was run."""
    where = "" if failure.rank is None else f" on rank {failure.rank}"
    where += "" if failure.phase is None else f" in {failure.phase}"
    if failure.tried_bytes is not None:
        where += f", {format_bytes(failure.missing_bytes)} short"
    fix = (
        "give the model before it, and --cluster, degrees and batch, or the job's own file"
        if path == "--from"
        else "give that here, a model or the job's own file, and the log by --from FORMAT FILE"
    )
    problem = f"says that the job ran out of memory{where}, and not what was run: {fix}"
    return InvalidInput.of(path, problem)


def _estimate_profile(
    given: inputs.ProfileInput,
    plan: str | Path | Plan | None,
    overrides: Mapping[str, float],
) -> Report[EstimateResult]:
    if plan is None:
        raise InvalidInput.of("plan", "must be given for a profile, as --plan FILE")
    if isinstance(plan, Plan):
        stages, stated = plan.stages, given.setting
    else:
        stages, stated = _read_plan(plan, given.setting)
    setting = inputs.resolve_setting(stated, overrides)
    priced = Plan(stages=stages, num_microbatches=setting.num_microbatches)
    costs = evaluate(priced, given.profile, setting)
    overflows, time_s = overflow_records(costs, setting), time_per_sample_s(costs)
    question = ProfileQuestion(given=given, setting=setting, restrictions=Restrictions())
    document = EstimateResult(
        fits=not overflows,
        time_per_sample_s=time_s,
        devices_used=priced.devices_used,
        num_stages=len(stages),
        stages=stage_records(priced, costs, given.profile),
        overflows=overflows,
        warnings=(
            *given.warnings,
            *unit_warnings(given, time_s, setting),
        ),
        request=profile_request(question, Budget()),
    )
    return Report(document)


def _read_plan(
    path: str | Path, stated: Setting | None
) -> tuple[tuple[Stage, ...], Setting | None]:
    """Stages of a document or of a plan by hand, and the setting it was made for if it says so."""
    value = parse_json(read_bytes(path, name="plan"), source=str(path))
    if not {"kind", "format_version"}.isdisjoint(value):
        document_type(value, records(PRICED), source=str(path))
    return read_stages(value, source=str(path)), read_setting(value, source=str(path)) or stated


# `trainwright estimate`
# ----------------------


def command(
    model: str | None = None,
    *,
    source: tuple[str, str] | None = None,
    output: Path | None = None,
    as_json: bool = False,
    verbose: bool = False,
    **options: Any,
) -> None:
    """Price a run or a plan; of a run that does not fit also what would make it fit."""
    check_output(output, model, options.get("plan"), source[1] if source else None)
    if options.get("plan") is None:
        options.setdefault("changes", True)
    report = estimate(model, source=source, **options)
    emit(report, as_json=as_json, output=output, verbose=verbose)
    finish(0 if report.document.fits else 3, interrupted=False)
