"""The plan of a model on several pools as a table: the step, the groups, the ranks by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.plan.status import Status
from trainwright.reporting.layout import layout_line
from trainwright.reporting.text import add_row, ranges, table
from trainwright.units import format_bytes, format_percent_up, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from trainwright.plan.results.mixed_plan import MixedPlanResult, MixedRankRecord

_COLUMNS: Final = (
    ("rank", "right"),
    ("device", "right"),
    ("d", "right"),
    ("each", "right"),
    ("layers", "left"),
    ("recomp", "right"),
    ("forward", "right"),
    ("backward", "right"),
    ("busy", "right"),
    ("memory", "right"),
    ("of limit", "right"),
    ("", "right"),
)
_MOST_RANKS: Final = 24
LAYOUTS: Final = {
    "across": "stages on several kinds",
    "beside": "replicas on several kinds",
    "woven": "replicas that cross kinds in ways of their own",
    "alone": "one kind alone",
}


def mixed_plan_report(document: MixedPlanResult) -> RenderableType:
    """Headline, groups of devices, ranks, why, and the other ways to use the groups."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(line) for line in _headline(document)]
    if document.stages:
        parts += [_group_table(document), _rank_table(document)]
    parts.extend(Text(line) for line in _reasons(document))
    if document.alternatives:
        parts.append(_alternative_table(document))
    parts.extend(Text(f"warning: {warning}") for warning in document.warnings)
    return Group(*parts)


def _headline(document: MixedPlanResult) -> Iterator[str]:
    request = document.request
    cluster = request.cluster.name if request.cluster else "?"
    used = document.devices_used or request.num_devices
    where = f"{request.model.name} on {used} devices of {cluster}"
    if document.step_time_s is None:
        yield f"{where}: {_VERDICTS[document.status]}"
        return
    yield (
        f"{where}: {format_seconds(document.step_time_s)} per step "
        f"({format_seconds(document.step_time_low_s or 0)} to "
        f"{format_seconds(document.step_time_high_s or 0)}, 90 %)"
    )
    proof = (
        "no plan of the space is faster, proved"
        if document.status is Status.OPTIMAL
        else f"gap <= {format_percent_up(document.gap or 0)} to a proved bound"
    )
    yield (
        f"{document.tokens_per_s or 0:,.0f} tokens/s, "
        f"{document.tokens_per_s_per_device or 0:,.0f} per device, MFU {document.mfu or 0:.1%}; "
        f"{proof}"
    )
    assert document.parallelism is not None
    yield (
        f"{LAYOUTS[document.layout or 'alone']}: {layout_line(document.parallelism)}, "
        f"microbatch {document.micro_batch}, schedule {document.schedule}; "
        f"{'fits' if document.fits else 'does NOT fit'}"
    )


_VERDICTS: Final = {
    Status.OPTIMAL: "optimal, proved",
    Status.GAP: "a plan with a gap",
    Status.INFEASIBLE: "infeasible: no plan of the space fits",
    Status.UNKNOWN: "unknown: no plan was found, and none is excluded",
}


def _group_table(document: MixedPlanResult) -> RenderableType:
    made = table(
        None,
        (
            ("group", "right"),
            ("device", "left"),
            ("used", "right"),
            ("of the work", "right"),
            ("busy", "right"),
            ("memory", "right"),
            ("of limit", "right"),
        ),
    )
    for group in document.groups:
        add_row(
            made,
            str(group.pool),
            group.device_kind,
            f"{group.devices_used}/{group.num_devices}",
            f"{group.layer_share:.1%}",
            f"{group.busy:.1%}",
            format_bytes(group.peak_memory_bytes),
            f"{group.peak_memory_bytes / group.memory_limit_bytes:.1%}",
        )
    return made


def _rank_table(document: MixedPlanResult) -> RenderableType:
    made = table(None, _COLUMNS)
    for rank in document.ranks[:_MOST_RANKS]:
        found, layers, recomputed = rank.prediction, *layers_of(document, rank)
        binding = document.binding
        binds = binding is not None and (binding.chain, binding.rank) == (rank.chain, rank.rank)
        add_row(
            made,
            str(rank.rank),
            rank.device_kind,
            str(rank.count),
            str(rank.num_microbatches),
            ranges(layers),
            f"{recomputed}/{len(layers)}",
            format_seconds(found.forward_s),
            format_seconds(found.backward_s),
            f"{rank.busy:.1%}",
            format_bytes(rank.memory_bytes),
            f"{rank.memory_bytes / rank.memory_limit_bytes:.1%}",
            "binds" if binds else "",
        )
    return made


def layers_of(document: MixedPlanResult, rank: MixedRankRecord) -> tuple[list[int], int]:
    """The layers of a rank, and how many of them it recomputes."""
    layers: list[int] = []
    recomputed = 0
    for stage in document.stages:
        if stage.rank == rank.rank:
            own = (r for r in stage.replicas if _is_of(r, rank))
            layers += stage.layers
            recomputed += next(own).num_recomputed
    return layers, recomputed


def _is_of(replicas: object, rank: MixedRankRecord) -> bool:
    pair = (getattr(replicas, "pool", None), getattr(replicas, "num_microbatches", None))
    return pair == (rank.pool, rank.num_microbatches)


def _reasons(document: MixedPlanResult) -> Iterator[str]:
    if document.stages:
        hidden = len(document.ranks) - _MOST_RANKS
        if hidden > 0:
            yield f"({hidden} more ranks)"
        yield "d: replicas; each: microbatches of one replica in a step"
        yield "taken for granted:"
        yield from (f"  {name}: {value}" for name, value in document.assumptions.items())
    if document.binding is not None:
        yield f"what binds: group {document.binding.pool}, {document.binding.description}"
    left = f", {document.not_reached} not reached" if document.not_reached else ""
    excluded = f"{document.pruned} excluded by their bounds"
    yield f"{document.considered} layouts considered, {excluded}{left}"
    if document.interrupted:
        yield "interrupted: this is the best plan found so far"


def _alternative_table(document: MixedPlanResult) -> RenderableType:
    made = table(
        "other ways to use the groups",
        (
            ("", "left"),
            ("devices", "left"),
            ("used", "right"),
            ("layout", "left"),
            ("mb", "right"),
            ("schedule", "left"),
            ("step", "right"),
            ("slower", "right"),
        ),
    )
    for other in document.alternatives:
        add_row(
            made,
            LAYOUTS[other.layout],
            (" -> " if other.layout == "across" else " + ").join(other.device_kinds),
            str(other.devices_used),
            layout_line(other.parallelism),
            str(other.micro_batch),
            other.schedule,
            format_seconds(other.step_time_s),
            f"{other.slowdown - 1:.1%}",
        )
    return made
