"""The plan of a model as a table: the step, where it goes, the ranks, the runners-up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.plan.status import Status
from trainwright.provenance import Origin
from trainwright.reporting.layout import layout_cells, layout_columns, layout_line
from trainwright.reporting.losses import NEGLIGIBLE, main_losses
from trainwright.reporting.proved_space import proved_space
from trainwright.reporting.text import add_row, ranges, table
from trainwright.reporting.unfitted import unfitted_line
from trainwright.units import format_bytes, format_count, format_percent_up, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType

    from trainwright.plan.results.model_plan import Alternative, ModelPlanResult, ModelStageRecord
    from trainwright.plan.results.plan import Relaxation

_COLUMNS: Final = (
    ("rank", "right"),
    ("layers", "left"),
    ("d", "right"),
    ("t", "right"),
    ("recomp", "right"),
    ("forward", "right"),
    ("backward", "right"),
    ("send", "right"),
    ("memory", "right"),
    ("of limit", "right"),
    ("held", "right"),
    ("", "left"),
)
_MOST_RANKS: Final = 16


def model_plan_report(document: ModelPlanResult) -> RenderableType:
    """Headline, ranks, what would make it fit, and the runners-up."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(line) for line in _headline(document)]
    if document.stages:
        parts.append(_rank_table(document))
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
    devices = format_count(document.devices_used or request.num_devices or 0, "device")
    where = f"{request.model.name} on {devices} of {cluster}"
    if document.step_time_s is None:
        yield f"{where}: {_VERDICTS[document.status]}"
        return
    yield (
        f"{where}: {format_seconds(document.step_time_s)} per step "
        f"({format_seconds(document.step_time_low_s or 0)} to "
        f"{format_seconds(document.step_time_high_s or 0)}, 90 %, {_confidence(document)})"
    )
    yield (
        f"{document.tokens_per_s or 0:,.0f} tokens/s, "
        f"{document.tokens_per_s_per_device or 0:,.0f} per device, MFU {document.mfu or 0:.1%}; "
        f"{proof(document)}"
    )
    if document.parallelism is not None:
        yield (
            f"{layout_line(document.parallelism)}, microbatch {document.micro_batch}, "
            f"schedule {document.schedule}"
        )
    if document.order is not None and document.named_step_time_s:
        gain = 1 - document.step_time_s / document.named_step_time_s
        yield (
            f"the order of actions was found from that of {document.order.family}, which takes "
            f"{format_seconds(document.named_step_time_s)} ({gain:.2%} less now); "
            "the proof is about plans of named families"
        )
    if request.num_devices and document.devices_used != request.num_devices:
        yield f"uses {document.devices_used} of {request.num_devices} devices"
    yield f"the step: {_shares(document.time_by_part_s, document.step_time_s)}"
    yield from unfitted_line(document.assumptions)


_VERDICTS = {
    Status.OPTIMAL: "optimal, proved",
    Status.GAP: "a plan with a gap",
    Status.INFEASIBLE: "infeasible: no plan of the space fits",
    Status.UNKNOWN: "unknown: no plan was found, and none is excluded",
}


def proof(document: ModelPlanResult) -> str:
    """What is proved about the step time."""
    if document.status is Status.OPTIMAL:
        space, beside = proved_space(document)
        return f"no {space} is faster, proved{beside}"
    gap = f"gap <= {format_percent_up(document.gap or 0)} to a proved bound"
    if document.gap_all is None or document.gap_all <= (document.gap or 0):
        return gap
    if not document.gap:
        return (
            f"gap <= {format_percent_up(document.gap_all)} to a proved bound on all families; "
            "no plan with one stage per rank is faster"
        )
    return f"{gap} on one stage per rank, {format_percent_up(document.gap_all)} on all families"


def _shares(parts_s: Mapping[str, float], step_s: float) -> str:
    """The parts that matter, largest first."""
    largest = sorted(parts_s.items(), key=lambda part: -part[1])
    named = [(name, spent_s / step_s) for name, spent_s in largest if step_s > 0]
    return ", ".join(f"{name} {share:.1%}" for name, share in named if share >= NEGLIGIBLE)


def _rank_table(document: ModelPlanResult) -> RenderableType:
    degrees_differ = document.parallelism is None
    columns = [c for c in _COLUMNS if degrees_differ or c[0] not in ("d", "t")]
    made = table(None, columns)
    for rank in shown_ranks(document):
        cells = _rank_cells(document, rank)
        add_row(made, *(cells[name] for name, _ in columns))
    return made


def shown_ranks(document: ModelPlanResult) -> list[int]:
    """All ranks, or of many the first, the slowest, the fullest and the last."""
    count = len(document.ranks)
    if count <= _MOST_RANKS:
        return list(range(count))
    return sorted({*range(_MOST_RANKS - 4), _slowest(document), _fullest(document), count - 1})


def _slowest(document: ModelPlanResult) -> int:
    busy_s = [rank.forward_s + rank.backward_s for rank in document.ranks]
    return busy_s.index(max(busy_s))


def _fullest(document: ModelPlanResult) -> int:
    sizes = document.peak_memory_bytes_per_rank
    return sizes.index(max(sizes))


def _rank_cells(document: ModelPlanResult, rank: int) -> dict[str, str]:
    found, own = document.ranks[rank], _stages_of(document, rank)
    limit_bytes, memory_bytes = document.memory_limit_bytes, found.memory.total_bytes
    layers = [layer for stage in own for layer in stage.layers]
    marks = ["slowest"] if rank == _slowest(document) else []
    marks += ["fullest"] if rank == _fullest(document) and len(document.ranks) > 1 else []
    return {
        "rank": str(rank),
        "layers": ranges(layers),
        "d": str(own[0].data_parallel),
        "t": str(own[0].tensor_parallel),
        "recomp": f"{sum(stage.num_recomputed for stage in own)}/{len(layers)}",
        "forward": format_seconds(found.forward_s),
        "backward": format_seconds(found.backward_s),
        "send": format_seconds(found.send_s),
        "memory": format_bytes(memory_bytes),
        "of limit": f"{memory_bytes / limit_bytes:.1%}" if limit_bytes else "",
        "held": str(found.memory.microbatches_in_flight),
        "": ", ".join(marks),
    }


def _stages_of(document: ModelPlanResult, rank: int) -> list[ModelStageRecord]:
    return [stage for stage in document.stages if stage.rank == rank]


def _reasons(document: ModelPlanResult) -> Iterator[str]:
    if document.stages:
        hidden = len(document.ranks) - len(shown_ranks(document))
        if hidden:
            yield f"({hidden} more ranks, none slower or fuller)"
        yield "taken for granted:"
        yield from (f"  {name}: {value}" for name, value in document.assumptions.items())
    if document.binding is not None:
        yield f"why: {document.binding.description}"
    yield from relaxation_lines(document)
    left = f", {document.not_reached} not reached" if document.not_reached else ""
    excluded = f"{document.pruned} excluded by their bounds"
    yield f"{document.considered} layouts considered, {excluded}{left}"
    if document.interrupted:
        found = "this is the best plan found so far" if document.stages else "before any plan"
        yield f"interrupted: {found}"


def relaxation_lines(document: ModelPlanResult) -> Iterator[str]:
    """What would make a plan fit, where some single change does."""
    if document.relaxations:
        yield "any one of these is enough:"
        yield from (
            f"  {fix.change}: {fix.description}{_price(fix)}" for fix in document.relaxations
        )


def _price(fix: Relaxation) -> str:
    """What the best plan under a change takes."""
    if fix.step_time_s is None:
        return ""
    used = format_count(fix.devices_used or 0, "device")
    return f" ({format_seconds(fix.step_time_s)} per step on {used})"


def _alternative_table(document: ModelPlanResult) -> RenderableType:
    plans = [other.parallelism for other in document.alternatives]
    made = table(
        "next best",
        (
            *layout_columns(plans),
            ("mb", "right"),
            ("schedule", "left"),
            ("recomp", "right"),
            ("step", "right"),
            ("slower", "right"),
            ("memory", "right"),
            ("loses most in", "left"),
        ),
    )
    for other in document.alternatives:
        add_row(
            made,
            *layout_cells(other.parallelism, plans),
            str(other.micro_batch),
            other.schedule,
            "" if other.num_recomputed is None else str(other.num_recomputed),
            format_seconds(other.step_time_s),
            f"{other.slowdown - 1:.1%}",
            format_bytes(other.peak_memory_bytes),
            losses(other),
        )
    return made


def losses(other: Alternative) -> str:
    """The one or two parts of the step in which a plan loses most."""
    return ", ".join(f"{name} +{format_seconds(s)}" for name, s in main_losses(other))
