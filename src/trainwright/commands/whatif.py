"""`trainwright whatif`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainwright.commands.output import budget, check_output, emit, finish
from trainwright.documents.difference import Change, WhatIfResult, step_ratio
from trainwright.documents.open import open_model_plan
from trainwright.documents.printing import Report
from trainwright.errors import Fault, InvalidInput, refuse
from trainwright.options.clusters import resolve_cluster
from trainwright.options.inputs import naming_options, setting_overrides
from trainwright.options.question import (
    QUESTION_OPTION_OF,
    call_of,
    known_length,
    refuse_empty_space,
)
from trainwright.options.run import recipe_of, refuse_unknown_words
from trainwright.options.table import fields_given, read, rows_of, verb
from trainwright.profile.measured_model import MeasuredModel
from trainwright.units import format_seconds, parse_hardware_bandwidth

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainwright.cluster import Cluster
    from trainwright.documents.open import AnyDocument
    from trainwright.execution import Budget
    from trainwright.options.option import Options
    from trainwright.planning.question.question import ModelQuestion
    from trainwright.plans.status import Status


# `trainwright whatif`: plan the request of a document again with something different
# -----------------------------------------------------------------------------------


class WhatIfReport(Report[WhatIfResult]):
    """The answer of `whatif`."""

    __slots__ = ()

    @property
    def status(self) -> Status:
        """That of the new plan."""
        return self.document.after.status

    def _in_brief(self) -> str:
        told = (
            format_seconds(plan.step_time_s) if plan.step_time_s else str(plan.status)
            for plan in (self.document.before, self.document.after)
        )
        return f"{super()._in_brief()}: step {' → '.join(told)}"


@verb
def what_if(document: AnyDocument, *, budget: Budget | None = None, **options: Any) -> WhatIfReport:
    """Plan the request of a model's plan (a path or a result) again with these changes.

    `memory` is that of a device, `bandwidth` one or several texts such as "inter=800Gb/s" (a level
    of the cluster, "intra" for its innermost, "inter" for its outermost), `flops_scale` multiplies
    the peak of the devices; `dispatch_dtype` and `token_dispatcher` say how tokens travel to
    experts, as for `estimate`. All that is not changed stays as it was asked, degrees that were
    fixed included. Raises `InvalidInput` with every fault.
    """
    from trainwright.documents.model_plan import plan_model
    from trainwright.execution import Budget as NoLimit

    options = read("whatif", options)
    before = open_model_plan(document)
    call = call_of(before.request)
    question = _trained(_changed(call.question, options), options)
    changes = tuple(_changes(call.question, question))
    if not changes:
        *others, last = (f"--{row.flag}" for row in rows_of("whatif") if not row.shell)
        problem = f"must change something: {', '.join(others)} or {last}"
        raise InvalidInput.of("whatif", problem)
    after = plan_model(replace(call, question=question), budget or NoLimit())
    ratio = step_ratio(before, after)
    return WhatIfReport(WhatIfResult(changes=changes, time_ratio=ratio, before=before, after=after))


def _changed(question: ModelQuestion, options: Options) -> ModelQuestion:
    bandwidths = options.get("bandwidth", ())
    devices, flops_scale = options.get("devices"), options.get("flops_scale")
    cluster, num_devices = question.cluster, question.num_devices
    if devices is not None:
        cluster, num_devices = resolve_cluster(cluster, nodes=None, devices=devices)
    if "memory" in options:
        setting_overrides({"memory": options["memory"]})  # refuses what no device has
        cluster = cluster.with_memory(options["memory"])
    for text in (bandwidths,) if isinstance(bandwidths, str) else bandwidths:
        cluster = _with_bandwidth(cluster, text)
    if flops_scale is not None:
        if not 0 < flops_scale < float("inf"):
            raise InvalidInput.of("flops-scale", f"must be finite and > 0, got {flops_scale!r}")
        cluster = cluster.with_peak_scaled(flops_scale)
    model, workload = question.model, question.workload
    if isinstance(model, MeasuredModel):
        _refuse_what_is_measured(options)
        if "sequence" in options:
            model = model.with_sequence(options["sequence"])
    with naming_options(QUESTION_OPTION_OF):
        workload = replace(
            workload,
            **fields_given("whatif", "workload", options),
        )
        changed = replace(
            question, model=model, cluster=cluster, num_devices=num_devices, workload=workload
        )
    refuse_empty_space(changed)
    return changed


def _refuse_what_is_measured(options: Options) -> None:
    """Layers that were measured take what they took, whatever the peak of the device."""
    flags = ("flops_scale", "dispatch_dtype", "token_dispatcher")
    problem = "must be left out: the times of a profile are what was measured"
    refuse(Fault(name.replace("_", "-"), problem) for name in flags if name in options)


def _trained(question: ModelQuestion, options: Options) -> ModelQuestion:
    """With what the options say of how the model trains."""
    refuse_unknown_words(options)
    settings, given = question.settings, fields_given("whatif", "recipe", options)
    with naming_options(QUESTION_OPTION_OF):
        stated = recipe_of(options)
        recipe = replace(settings.recipe, **{name: getattr(stated, name) for name in given})
    return replace(question, settings=replace(settings, recipe=recipe))


def _with_bandwidth(cluster: Cluster, text: str) -> Cluster:
    level, equals, rate = text.partition("=")
    if not equals:
        raise InvalidInput.of("bandwidth", f'must be LEVEL=RATE, as inter=800Gb/s, got "{text}"')
    return cluster.with_bandwidth(level.strip(), parse_hardware_bandwidth(rate))


def _changes(before: ModelQuestion, after: ModelQuestion) -> Iterator[Change]:
    old, new = _facts(before), _facts(after)
    for key, value in new.items():
        if old.get(key) != value:
            yield Change(key=key, before=old.get(key), after=value)


def _facts(question: ModelQuestion) -> dict[str, Any]:
    recipe, device = question.settings.recipe, question.cluster.accelerator
    peak = f"peak {device.default_precision} flops_per_s"
    return {
        "num_devices": question.num_devices,
        "global_batch": question.workload.global_batch,
        "sequence_length": known_length(question),
        "memory_bytes": device.memory_bytes,
        "dispatch_dtype": recipe.dispatch_dtype,
        "token_dispatcher": str(recipe.token_dispatcher),
        peak: device.peak(device.default_precision),
        **{
            f"{level.name} bandwidth_bytes_per_s": level.bandwidth_bytes_per_s
            for level in question.cluster.levels
        },
    }


# `trainwright whatif`
# --------------------


def command(
    document: str,
    *,
    output: Path | None = None,
    as_json: bool = False,
    time_limit: float | None = None,
    **options: Any,
) -> None:
    """Plan again with changes."""
    check_output(output, document)
    with budget(time_limit) as allowed:
        report = what_if(document, budget=allowed, **options)
    emit(report, as_json=as_json, output=output)
    finish(report.status.exit_code, interrupted=allowed.interrupted)
