"""`trainwright estimate`: the price of a plan someone already has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.api.result import Report
from trainwright.errors import InvalidInput
from trainwright.plan.results.estimate import EstimateResult

if TYPE_CHECKING:
    from trainwright.plan.plan import Plan
    from trainwright.plan.stage import Stage
    from trainwright.profile import Profile, ProfileFile, Setting


def estimate(
    model: str | Path | Profile | ProfileFile,
    *,
    plan: str | Path | Plan,
    devices: int | None = None,
    memory: str | float | None = None,
    bandwidth: str | float | None = None,
    microbatches: int | None = None,
    point: int | None = None,
    time_unit: str | None = None,
) -> Report[EstimateResult]:
    """Price `plan` (a document's path, or a noun) on a profile; see `trainwright.plan` for units.

    What is not given here is taken from the plan document's own request, then from the profile.
    Raises `InvalidInput` naming every rule the plan breaks; a plan that only overflows memory is
    priced in full, with `fits` false and the bytes each stage misses.
    """
    from trainwright.api.inputs import resolve_setting, setting_overrides
    from trainwright.api.models import ModelInput, resolve_model
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

    overrides = setting_overrides(
        devices=devices, memory=memory, bandwidth=bandwidth, microbatches=microbatches
    )
    given = resolve_model(model, point=point, given=overrides, time_unit=time_unit)
    if isinstance(given, ModelInput):
        raise InvalidInput.of("model", "must be a profile where a plan is given")
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
        warnings=(*given.warnings, *unit_warnings(given, time_s, setting)),
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
