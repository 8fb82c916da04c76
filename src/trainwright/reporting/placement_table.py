"""A placement as a table: stages, what binds, the stated strategy beside it, or what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.plan.status import Status
from trainwright.reporting.text import add_row, counted, ranges, table
from trainwright.units import format_bytes, format_percent_up, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from trainwright.plan.results.placement import (
        FixedStrategyRecord,
        PlacedStageRecord,
        PlacementResult,
    )

_COLUMNS: Final = (
    ("stage", "right"),
    ("layers", "left"),
    ("d", "right"),
    ("t", "right"),
    ("recomp", "right"),
    ("load", "right"),
    ("forward", "right"),
    ("backward", "right"),
    ("memory", "right"),
    ("of limit", "right"),
    ("held", "right"),
    ("", "left"),
)


def placement_report(document: PlacementResult) -> RenderableType:
    """Headline, stages, what binds or is missing, and the fixed strategy."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(line) for line in _headline(document)]
    if document.stages:
        parts.append(_stage_table(document))
        parts.append(Text(_what_binds(document)))
    parts.extend(Text(line) for line in _reasons(document))
    if document.fixed_strategy is not None:
        parts.append(Text(_strategy(document.fixed_strategy)))
    parts.extend(Text(f"warning: {warning}") for warning in document.warnings)
    return Group(*parts)


def _headline(document: PlacementResult) -> Iterator[str]:
    request = document.request
    where = f"{request.model.name} ({request.cost_model})"
    if document.time_per_batch_s is None:
        yield f"{where}: {_verdict(document)}"
        return
    offered = request.setting.num_devices if request.setting else document.devices_used
    yield (
        f"{where}: {format_seconds(document.time_per_batch_s)} per batch on "
        f"{document.devices_used} of {offered} devices: {_verdict(document)}"
    )
    yield (
        f"tensor {document.tensor_parallel} x data {document.data_parallel} x "
        f"{counted(document.num_stages or 0, 'stage')}"
    )


def _verdict(document: PlacementResult) -> str:
    if document.status is Status.OPTIMAL:
        return "optimal, proved"
    if document.status is Status.GAP:
        return f"gap <= {format_percent_up(document.gap or 0.0)}"
    if document.status is Status.INFEASIBLE:
        return "infeasible, proved: no placement fits"
    return "unknown: the limit was reached before a placement or a proof was found"


def _stage_table(document: PlacementResult) -> RenderableType:
    made = table(None, _COLUMNS)
    slowest_s = max(stage.load_s for stage in document.stages)
    setting = document.request.setting
    limit_bytes = setting.memory_bytes if setting else None
    for index, stage in enumerate(document.stages):
        add_row(made, *_stage_row(index, stage, slowest_s, limit_bytes))
    return made


def _stage_row(
    index: int, stage: PlacedStageRecord, slowest_s: float, limit_bytes: float | None
) -> tuple[str, ...]:
    return (
        str(index),
        ranges(stage.layers),
        str(stage.data_parallel),
        str(stage.tensor_parallel),
        f"{stage.num_recomputed}/{len(stage.layers)}",
        format_seconds(stage.load_s),
        format_seconds(stage.forward_s),
        format_seconds(stage.backward_s),
        format_bytes(stage.memory_bytes),
        f"{stage.memory_bytes / limit_bytes:.1%}" if limit_bytes else "",
        str(stage.microbatches_in_flight),
        "slowest" if stage.load_s == slowest_s else "",
    )


def _what_binds(document: PlacementResult) -> str:
    loads = [stage.load_s for stage in document.stages]
    sync_s, time_s = document.gradient_sync_s or 0.0, document.time_per_batch_s or 0.0
    share = sync_s / time_s if time_s > 0 else 0.0
    simulated_s = document.simulated_time_s
    simulated = "" if simulated_s is None else f"; simulated 1F1B {format_seconds(simulated_s)}"
    return (
        f"{document.rounds} rounds of stage {loads.index(max(loads))}, then gradients: "
        f"{format_seconds(sync_s)}, {share:.1%} of the batch{simulated}"
    )


def _reasons(document: PlacementResult) -> Iterator[str]:
    if document.binding is not None:
        yield f"why: {document.binding.description}"
    if document.relaxations:
        yield "any one of these is enough:"
        yield from (f"  {fix.change}: {fix.description}" for fix in document.relaxations)
    if document.interrupted:
        yield "interrupted: this is the best placement found so far"


def _strategy(fixed: FixedStrategyRecord) -> str:
    stated = (
        f"the stated strategy (tensor {fixed.tensor_parallel} x data {fixed.data_parallel} x "
        f"{counted(fixed.num_stages, 'stage')})"
    )
    if fixed.time_per_batch_s is None:
        return f"{stated} cannot run: {fixed.reason}"
    slower = f", {fixed.slowdown:.3f}x the best" if fixed.slowdown is not None else ""
    return f"{stated}: {format_seconds(fixed.time_per_batch_s)} per batch{slower}"
