"""The plan of a model as a table: the step, the stages, the runners-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.plan.status import Status
from trainwright.provenance import Origin
from trainwright.reporting.text import add_row, ranges, table
from trainwright.units import format_bytes, format_percent_up, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from trainwright.plan.parallelism import Parallelism
    from trainwright.plan.results.model_plan import ModelPlanResult, ModelStageRecord

_COLUMNS = (
    ("stage", "right"),
    ("layers", "left"),
    ("d", "right"),
    ("t", "right"),
    ("recomp", "right"),
    ("forward", "right"),
    ("backward", "right"),
    ("of it tp", "right"),
    ("send", "right"),
    ("memory", "right"),
    ("of limit", "right"),
    ("held", "right"),
    ("", "left"),
)


def model_plan_report(document: ModelPlanResult) -> RenderableType:
    """Headline, stages, what would make it fit, and the runners-up."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(line) for line in _headline(document)]
    if document.stages:
        parts.append(_stage_table(document))
    parts.extend(Text(line) for line in _reasons(document))
    if document.alternatives:
        parts.append(_alternative_table(document))
    parts.extend(Text(f"warning: {warning}") for warning in document.warnings)
    return Group(*parts)


def _confidence(document: ModelPlanResult) -> str:
    """Whether the times rest on constants fitted to measured runs."""
    fitted = document.assumptions.get("times", "").startswith(f"{Origin.FITTED}:")
    return "fitted estimate" if fitted else "unfitted estimate"


def _headline(document: ModelPlanResult) -> Iterator[str]:
    request = document.request
    cluster = request.cluster.name if request.cluster else "?"
    devices = document.devices_used or request.num_devices
    where = f"{request.model.name} on {devices} devices of {cluster}"
    if document.step_time_s is None:
        yield f"{where}: {_VERDICTS[document.status]}"
        return
    yield (
        f"{where}: {format_seconds(document.step_time_s)} per step, "
        f"{document.tokens_per_s or 0:,.0f} tokens/s, MFU {document.mfu or 0:.1%} "
        f"({_confidence(document)}): "
        f"gap <= {format_percent_up(document.gap or 0)} to a proved bound"
    )
    if document.parallelism is not None:
        yield (
            f"{_degrees(document.parallelism)}, microbatch {document.micro_batch}, "
            f"schedule {document.schedule}"
        )
    if document.request.num_devices and document.devices_used != document.request.num_devices:
        yield f"uses {document.devices_used} of {document.request.num_devices} devices"
    yield (
        f"the step: bubble {document.bubble_of_makespan or 0:.1%} of the pipeline, "
        f"exposed gradient sync {format_seconds(document.exposed_gradient_sync_s or 0)}, optimizer "
        f"{format_seconds(document.optimizer_s or 0)}"
    )


_VERDICTS = {
    Status.OPTIMAL: "optimal, proved",
    Status.GAP: "a plan with a gap",
    Status.INFEASIBLE: "infeasible: no uniform plan fits",
    Status.UNKNOWN: "unknown: no plan was found, and none is excluded",
}


def _degrees(parallelism: Parallelism) -> str:
    sequence = " + sequence parallel" if parallelism.sequence_parallel else ""
    return (
        f"tensor {parallelism.tensor}{sequence} x pipeline {parallelism.pipeline} x "
        f"data {parallelism.data}, ZeRO-{parallelism.zero_stage}"
    )


def _stage_table(document: ModelPlanResult) -> RenderableType:
    made = table(None, _COLUMNS)
    slowest_s = max(stage.time_per_sample_s for stage in document.stages)
    for index, stage in enumerate(document.stages):
        add_row(made, *_stage_row(index, stage, slowest_s, document.memory_limit_bytes))
    return made


def _stage_row(
    index: int, stage: ModelStageRecord, slowest_s: float, limit_bytes: float | None
) -> tuple[str, ...]:
    found = stage.prediction
    return (
        str(index),
        ranges(stage.layers),
        str(stage.data_parallel),
        str(stage.tensor_parallel),
        f"{stage.num_recomputed}/{len(stage.layers)}",
        format_seconds(found.forward_s),
        format_seconds(found.backward_s),
        format_seconds(found.tensor_parallel_s),
        format_seconds(found.send_s),
        format_bytes(stage.memory_bytes),
        f"{stage.memory_bytes / limit_bytes:.1%}" if limit_bytes else "",
        str(found.memory.microbatches_in_flight),
        "slowest" if stage.time_per_sample_s == slowest_s else "",
    )


def _reasons(document: ModelPlanResult) -> Iterator[str]:
    if document.stages:
        yield "taken for granted:"
        yield from (f"  {name}: {value}" for name, value in document.assumptions.items())
    if document.binding is not None:
        yield f"why: {document.binding.description}"
    if document.relaxations:
        yield "any one of these is enough:"
        yield from (f"  {fix.change}: {fix.description}" for fix in document.relaxations)
    left = f", {document.not_reached} not reached" if document.not_reached else ""
    excluded = f"{document.pruned} excluded by their bounds"
    yield f"{document.considered} layouts considered, {excluded}{left}"
    if document.interrupted:
        yield "interrupted: this is the best plan found so far"


def _alternative_table(document: ModelPlanResult) -> RenderableType:
    made = table(
        "next best",
        (
            ("layout", "left"),
            ("microbatch", "right"),
            ("step", "right"),
            ("slower", "right"),
            ("peak memory", "right"),
        ),
    )
    for other in document.alternatives:
        add_row(
            made,
            _degrees(other.parallelism),
            str(other.micro_batch),
            format_seconds(other.step_time_s),
            f"{other.slowdown - 1:.1%}",
            format_bytes(other.peak_memory_bytes),
        )
    return made
