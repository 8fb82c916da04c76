"""`trainwright whatif`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.cluster import Cluster
from trainwright.commands.output import budget, check_output, emit, finish
from trainwright.documents.difference import Change, WhatIfResult, step_ratio
from trainwright.documents.model_search import plan_on_cluster
from trainwright.documents.open import open_model_plan
from trainwright.documents.printing import Report
from trainwright.errors import Fault, InvalidInput, refuse
from trainwright.execution import Budget
from trainwright.execution import Budget as NoLimit
from trainwright.options.clusters import grown, resolve_cluster
from trainwright.options.inputs import naming_options, setting_overrides
from trainwright.options.option import Options
from trainwright.options.question import (
    QUESTION_OPTION_OF,
    call_of,
    known_length,
    refuse_empty_space,
)
from trainwright.options.run import recipe_of, refuse_unknown_words
from trainwright.options.table import fields_given, read, rows_of, verb
from trainwright.planning.question.question import ModelQuestion
from trainwright.plans.status import Status
from trainwright.profile.measured_model import MeasuredModel
from trainwright.units import format_seconds, parse_hardware_bandwidth

if TYPE_CHECKING:
    from trainwright.documents.open import AnyDocument


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
    options = read("whatif", options)
    before = open_model_plan(document)
    call = call_of(before.request)
    question = _trained(_changed(call.question, options), options)
    changes = tuple(_changes(call.question, question))
    if not changes:
        *others, last = (
            f"--{row.flag}" for row in rows_of("whatif") if not row.shell and row.name != "pool"
        )
        problem = f"must change something: {', '.join(others)} or {last}"
        raise InvalidInput.of("whatif", problem)
    was, now = call.question.cluster, question.cluster
    larger = grown(was, now, nodes=None) if len(was.pools) == len(now.pools) == 1 else ()
    call = replace(call, question=question, warnings=(*call.warnings, *larger))
    after = plan_on_cluster(call, budget or NoLimit())
    ratio = step_ratio(before, after)
    return WhatIfReport(WhatIfResult(changes=changes, time_ratio=ratio, before=before, after=after))


def _changed(question: ModelQuestion, options: Options) -> ModelQuestion:
    cluster, num_devices = _other_machine(question, options)
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


def _other_machine(question: ModelQuestion, options: Options) -> tuple[Cluster, int]:
    """The cluster with what the options change of it, or of one of its pools, and its devices."""
    bandwidths, flops_scale = options.get("bandwidth", ()), options.get("flops_scale")
    devices, num_devices = options.get("devices"), question.num_devices
    cluster, several = question.cluster, len(question.cluster.pools) > 1
    pool = None if options.get("pool") is None else cluster.pool_named(options["pool"])
    if "memory" in options:
        setting_overrides({"memory": options["memory"]})  # refuses what no device has
        cluster = cluster.with_memory(options["memory"], pool=pool)
    for text in (bandwidths,) if isinstance(bandwidths, str) else bandwidths:
        cluster = _with_bandwidth(cluster, text, pool)
    if flops_scale is not None:
        if not 0 < flops_scale < float("inf"):
            raise InvalidInput.of("flops-scale", f"must be finite and > 0, got {flops_scale!r}")
        cluster = cluster.with_peak_scaled(flops_scale, pool=pool)
    if devices is not None and several and pool is None:
        kinds = ", ".join(cluster.pool_names())
        raise InvalidInput.of("devices", f"must be given of one pool, by --pool: {kinds}")
    if devices is not None and not several:
        if devices < 1:
            raise InvalidInput.of("devices", f"must be from 1, got {devices}")
        cluster, num_devices = resolve_cluster(cluster, nodes=None, devices=devices)
    elif devices is not None and pool is not None:
        cluster = cluster.with_pool_of(devices, pool=pool)
    if several:
        cluster = cluster.with_like_pools_joined
        num_devices = cluster.num_devices
    return cluster, num_devices


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


def _with_bandwidth(cluster: Cluster, text: str, pool: int | None) -> Cluster:
    level, equals, rate = text.partition("=")
    if not equals:
        raise InvalidInput.of("bandwidth", f'must be LEVEL=RATE, as inter=800Gb/s, got "{text}"')
    return cluster.with_bandwidth(level.strip(), parse_hardware_bandwidth(rate), pool=pool)


def _changes(before: ModelQuestion, after: ModelQuestion) -> Iterator[Change]:
    several = max(len(each.cluster.pools) for each in (before, after)) > 1
    old, new = _facts(before, several=several), _facts(after, several=several)
    for key in dict.fromkeys((*new, *old)):
        if old.get(key) != new.get(key):
            yield Change(key=key, before=old.get(key), after=new.get(key))


def _facts(question: ModelQuestion, *, several: bool) -> dict[str, Any]:
    """What can be changed, by key; what belongs to one of several pools by its name."""
    recipe, cluster = question.settings.recipe, question.cluster
    facts: dict[str, Any] = {
        "num_devices": question.num_devices,
        "global_batch": question.workload.global_batch,
        "sequence_length": known_length(question),
    }
    pools = [
        (f"{name} " if several else "", pool)
        for name, pool in zip(cluster.pool_names(), cluster.pools, strict=True)
    ]
    for of, pool in pools:
        facts |= {f"{of}num_devices": pool.num_devices} if several else {}
        facts[f"{of}memory_bytes"] = pool.accelerator.memory_bytes
    facts["dispatch_dtype"] = recipe.dispatch_dtype
    facts["token_dispatcher"] = str(recipe.token_dispatcher)
    for of, pool in pools:
        device = pool.accelerator
        peak = f"{of}peak {device.default_precision} flops_per_s"
        facts[peak] = device.peak(device.default_precision)
        for level in pool.levels:
            facts[f"{of}{level.name} bandwidth_bytes_per_s"] = level.bandwidth_bytes_per_s
    if cluster.joint is not None:
        facts["joint bandwidth_bytes_per_s"] = cluster.joint.bandwidth_bytes_per_s
    return facts


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
