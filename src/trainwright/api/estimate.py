"""`trainwright estimate`: the price of a plan someone already has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.api.printed import Report
from trainwright.errors import InvalidInput
from trainwright.plan.results.estimate import EstimateResult

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    from trainwright.api.inputs import ProfileInput
    from trainwright.api.run_options import RunOptions
    from trainwright.api.stated import StatedJob
    from trainwright.cluster import Cluster
    from trainwright.plan.plan import Plan
    from trainwright.plan.results.model_estimate import ModelEstimateResult
    from trainwright.plan.stage import Stage
    from trainwright.profile import Profile, ProfileFile, Setting


def estimate(
    model: str | Path | Profile | ProfileFile | None = None,
    *,
    source: tuple[str, str | Path] | None = None,
    plan: str | Path | Plan | None = None,
    cluster: str | Path | Cluster | None = None,
    nodes: int | None = None,
    devices: int | None = None,
    memory: str | float | None = None,
    bandwidth: str | float | None = None,
    microbatches: int | None = None,
    point: int | None = None,
    time_unit: str | None = None,
    calibration: str | Path | None = None,
    **run: Unpack[RunOptions],
) -> Report[EstimateResult] | Report[ModelEstimateResult]:
    """Price a run of a model on `cluster`, or a `plan` (a document's path, or a noun) of a profile.

    `source` names a framework (megatron, torchtitan, deepspeed) and a file of an existing job:
    what it states stands in for options that are not given, and its model for `model`.
    A model takes the options of `RunOptions`; a profile `plan`, `devices`, `memory`, `bandwidth`,
    `microbatches`. `calibration` is a file that `calibrate` wrote or a built-in software line. What
    is not given is taken from the plan document's own request, then from the profile; see
    `trainwright.plan` for units. Raises `InvalidInput` naming every rule that is broken; what only
    overflows memory is priced in full, with `fits` false.
    """
    from trainwright.api.foreign_options import kind_of, refuse_foreign
    from trainwright.api.inputs import setting_overrides
    from trainwright.api.keywords import refuse_unknown
    from trainwright.api.models import ModelInput, resolve_model
    from trainwright.api.run_options import RunOptions

    refuse_unknown(estimate, run, RunOptions)
    overrides = setting_overrides(
        devices=devices, memory=memory, bandwidth=bandwidth, microbatches=microbatches
    )
    job: StatedJob | None = None
    if source is not None:
        from trainwright.api.stated import open_stated, stated_model, stated_options

        job = open_stated(*source, names_model=model is None)
        if not (model is None or isinstance(model, (str, Path))):
            raise InvalidInput.of("model", "must be a name or a file beside a framework's file")
        run = stated_options(job, run)
        given: ModelInput | ProfileInput = stated_model(job, model)
    elif model is None:
        raise InvalidInput.of("model", "must be given, or a framework's file, as --from")
    else:
        given = resolve_model(model, point=point, given=overrides, time_unit=time_unit)
    refuse_foreign(
        kind_of(given),
        {
            "plan": plan,
            "bandwidth": bandwidth,
            "microbatches": microbatches,
            "point": point,
            "time_unit": time_unit,
        },
        {"cluster": cluster, "nodes": nodes, "calibration": calibration, **run},
    )
    if not isinstance(given, ModelInput):
        return _estimate_profile(given, plan, overrides)
    from trainwright.api.clusters import opened, resolve_cluster
    from trainwright.api.estimate_model import estimate_model
    from trainwright.api.run_options import devices_asked_for
    from trainwright.api.tuning import tuned

    given = tuned(given, run)
    whole = opened(cluster)
    where, num_devices = resolve_cluster(
        whole,
        nodes=nodes,
        devices=devices if devices is not None or nodes is not None else devices_asked_for(run),
        memory_bytes=overrides.get("memory_bytes"),
    )
    if calibration is not None:
        from trainwright.api.calibrate import calibrated

        where = calibrated(where, calibration)
    if job is not None:
        from trainwright.api.stated import with_stated_batch

        run = with_stated_batch(job, run, num_devices=num_devices)
    warnings = [*(job.warnings if job else ()), *whole.warnings]
    document = estimate_model(
        given, cluster=where, num_devices=num_devices, options=run, warnings=warnings
    )
    return Report(document)


def _estimate_profile(
    given: ProfileInput,
    plan: str | Path | Plan | None,
    overrides: Mapping[str, float],
) -> Report[EstimateResult]:
    from trainwright.api.inputs import resolve_setting
    from trainwright.api.plan_profile import (
        ProfileQuestion,
        overflow_records,
        profile_request,
        stage_records,
        unit_warnings,
    )
    from trainwright.execution import Budget
    from trainwright.partitioning.evaluate import evaluate, time_per_sample_s
    from trainwright.partitioning.restrictions import Restrictions
    from trainwright.plan.plan import Plan

    if plan is None:
        raise InvalidInput.of("plan", "must be given for a profile, as --plan FILE")
    if isinstance(plan, Plan):
        stages, stated = plan.stages, given.setting
    else:
        stages, stated = _read_plan(plan, given.setting)
    setting = resolve_setting(stated, overrides)
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
    from trainwright.api.documents import PRICED_KINDS
    from trainwright.formats.atomic_file import read_bytes
    from trainwright.formats.document_json import document_type
    from trainwright.formats.json_text import parse_json
    from trainwright.formats.plan_json import read_setting, read_stages

    value = parse_json(read_bytes(path, name="plan"), source=str(path))
    if not {"kind", "format_version"}.isdisjoint(value):
        document_type(value, PRICED_KINDS, source=str(path))
    return read_stages(value, source=str(path)), read_setting(value, source=str(path)) or stated
