"""`trainwright whatif`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainwright.commands import command_line as options
from trainwright.commands.output import (
    budget,
    check_output,
    emit,
    finish,
    parse_count,
    parse_number,
    parse_time_limit,
)
from trainwright.documents.difference import Change, WhatIfResult, step_ratio
from trainwright.documents.open import open_model_plan
from trainwright.documents.printing import Report
from trainwright.errors import InvalidInput
from trainwright.options.clusters import resolve_cluster
from trainwright.options.inputs import naming_options, setting_overrides
from trainwright.options.question import QUESTION_OPTION_OF, call_of, refuse_empty_space
from trainwright.options.run import RECIPE_OPTION_OF, recipe_of, refuse_unknown_words
from trainwright.units import parse_hardware_bandwidth

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainwright.cluster import Cluster
    from trainwright.documents.open import AnyDocument
    from trainwright.execution import Budget
    from trainwright.options.run import RecipeOptions
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


def what_if(
    document: AnyDocument,
    *,
    memory: str | float | None = None,
    bandwidth: str | Iterable[str] = (),
    flops_scale: float | None = None,
    devices: int | None = None,
    global_batch: int | None = None,
    sequence: int | None = None,
    dispatch_dtype: str | None = None,
    token_dispatcher: str | None = None,
    budget: Budget | None = None,
) -> WhatIfReport:
    """Plan the request of a model's plan (a path or a result) again with these changes.

    `memory` is that of a device, `bandwidth` one or several texts such as "inter=800Gb/s" (a level
    of the cluster, "intra" for its innermost, "inter" for its outermost), `flops_scale` multiplies
    the peak of the devices; `dispatch_dtype` and `token_dispatcher` say how tokens travel to
    experts, as for `estimate`. All that is not changed stays as it was asked, degrees that were
    fixed included. Raises `InvalidInput` with every fault.
    """
    from trainwright.documents.model_plan import plan_model
    from trainwright.execution import Budget as NoLimit

    before = open_model_plan(document)
    call = call_of(before.request)
    question = _changed(
        call.question,
        memory=memory,
        bandwidth=(bandwidth,) if isinstance(bandwidth, str) else tuple(bandwidth),
        flops_scale=flops_scale,
        devices=devices,
        global_batch=global_batch,
        sequence=sequence,
    )
    question = _dispatched(
        question, {"dispatch_dtype": dispatch_dtype, "token_dispatcher": token_dispatcher}
    )
    changes = tuple(_changes(call.question, question))
    if not changes:
        wanted = "must change something: --memory, --bandwidth, --flops-scale, --devices, "
        others = "--global-batch, --sequence, --dispatch-dtype or --token-dispatcher"
        raise InvalidInput.of("whatif", f"{wanted}{others}")
    after = plan_model(replace(call, question=question), budget or NoLimit())
    ratio = step_ratio(before, after)
    return WhatIfReport(WhatIfResult(changes=changes, time_ratio=ratio, before=before, after=after))


def _changed(
    question: ModelQuestion,
    *,
    memory: str | float | None,
    bandwidth: tuple[str, ...],
    flops_scale: float | None,
    devices: int | None,
    global_batch: int | None,
    sequence: int | None,
) -> ModelQuestion:
    overrides = setting_overrides(devices=None, memory=memory, bandwidth=None, microbatches=None)
    cluster, num_devices = question.cluster, question.num_devices
    if devices is not None:
        cluster, num_devices = resolve_cluster(cluster, nodes=None, devices=devices)
    if "memory_bytes" in overrides:
        cluster = cluster.with_memory(overrides["memory_bytes"])
    for text in bandwidth:
        cluster = _with_bandwidth(cluster, text)
    if flops_scale is not None:
        if not 0 < flops_scale < float("inf"):
            raise InvalidInput.of("flops-scale", f"must be finite and > 0, got {flops_scale!r}")
        cluster = cluster.with_peak_scaled(flops_scale)
    workload = question.workload
    with naming_options(QUESTION_OPTION_OF):
        workload = replace(
            workload,
            global_batch=workload.global_batch if global_batch is None else global_batch,
            sequence_length=workload.sequence_length if sequence is None else sequence,
        )
        changed = replace(question, cluster=cluster, num_devices=num_devices, workload=workload)
    refuse_empty_space(changed)
    return changed


def _dispatched(question: ModelQuestion, options: RecipeOptions) -> ModelQuestion:
    """With tokens that travel to experts as the options say."""
    refuse_unknown_words(options)
    settings, given = question.settings, {k: v for k, v in options.items() if v is not None}
    with naming_options(RECIPE_OPTION_OF):
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
        "sequence_length": question.workload.sequence_length,
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
    document: Annotated[Path, typer.Argument(help="A plan document of a model.")],
    memory: options.Memory = None,
    bandwidth: Annotated[
        list[str] | None,
        typer.Option(
            help="Of a level, such as inter=800Gb/s or nvlink=900GB/s (repeatable).",
            metavar="LEVEL=RATE",
        ),
    ] = None,
    flops_scale: Annotated[
        str | None, typer.Option(help="So many times the peak of each device.", metavar="X")
    ] = None,
    devices: options.Devices = None,
    global_batch: Annotated[
        str | None, typer.Option(help="Sequences per step, over all replicas.", metavar="N")
    ] = None,
    sequence: Annotated[str | None, typer.Option(help="Tokens per sequence.", metavar="N")] = None,
    dispatch_dtype: options.DispatchDtype = None,
    token_dispatcher: options.TokenDispatcher = None,
    time_limit: options.TimeLimit = None,
    output: options.Output = None,
    as_json: options.Json = False,
) -> None:
    """Plan the request of a document again with something different, beside the old plan."""
    check_output(output, document)
    with budget(parse_time_limit(time_limit)) as allowed:
        report = what_if(
            document,
            memory=memory,
            bandwidth=bandwidth or (),
            flops_scale=parse_number(flops_scale, "flops-scale"),
            devices=parse_count(devices, "devices"),
            global_batch=parse_count(global_batch, "global-batch"),
            sequence=parse_count(sequence, "sequence"),
            dispatch_dtype=dispatch_dtype,
            token_dispatcher=token_dispatcher,
            budget=allowed,
        )
    emit(report, as_json=as_json, output=output)
    finish(report.status.exit_code, interrupted=allowed.interrupted)
