"""What a person sees of a model's plan, on several pools of devices or, the special case, on one.

The step and its proof, how pools are used, the ranks of each chain of like replicas, what is taken
for granted, and the plans that were considered and not chosen. A plan on one pool has one chain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from trainwright.cluster import Accelerator, Cluster
from trainwright.cluster.accelerator import UNFITTED
from trainwright.cluster.calibration import POOLED
from trainwright.documents.fit import figure_table, fit_line
from trainwright.documents.printing import (
    NEGLIGIBLE,
    layout_cells,
    layout_columns,
    layout_line,
    main_losses,
    ranges,
)
from trainwright.documents.reasons import MOST_SHOWN, change_table
from trainwright.documents.view import (
    MARKS,
    Cell,
    Folded,
    Line,
    Table,
    column,
    percent,
    recomputed_of,
    seconds,
    size,
    table_of,
    taken_for_granted,
    warning_lines,
    words,
)
from trainwright.formats.document_json import content_hash, encode
from trainwright.options.question import ModelCall
from trainwright.plans.capability import TARGETS, capability_of
from trainwright.plans.capability_table import Feature
from trainwright.plans.configuration import NO_OVERHEADS, MemoryOverheads, Overlap
from trainwright.plans.plan import Parallelism, SpaceRecord, SpanRecord
from trainwright.plans.prediction import RankRecord, StageMemory, StagePrediction
from trainwright.plans.status import OPTIMAL_TOLERANCE, Status, relative_gap, status_at
from trainwright.profile import Profile, StaticKind
from trainwright.profile.measured_model import MeasuredModel
from trainwright.provenance import Origin
from trainwright.scheduling.families import FAMILIES
from trainwright.scheduling.families.family import Searched
from trainwright.units import format_bytes, format_count, format_percent_up, format_seconds

if TYPE_CHECKING:
    from trainwright.documents.model_plan import Alternative, Launchable, ModelPlanResult
    from trainwright.execution import Budget
    from trainwright.model import Precision, Recipe
    from trainwright.planning.search.search import Outcome
    from trainwright.profile.measured_model import Trained


VERDICTS: Final = {
    Status.OPTIMAL: "optimal, proved",
    Status.GAP: "a plan with a gap",
    Status.INFEASIBLE: "infeasible: no plan of the space fits",
    Status.UNKNOWN: "unknown: no plan was found, and none is excluded",
}
LAYOUTS: Final = {
    "across": "stages on several kinds",
    "beside": "replicas on several kinds",
    "woven": "replicas that cross kinds in ways of their own",
    "alone": "one kind alone",
}
_MOST_ROWS: Final = 16  # of ranks, in a terminal


def plan_view(document: ModelPlanResult) -> Iterator[Line]:
    """The verdict and its evidence, what to change, pools and ranks; the rest is folded."""
    yield from _headline(document)
    if table := change_table(document, most=MOST_SHOWN):
        yield table
    if document.stages:
        if pools := pool_table(document):
            yield pools
        ranks = rank_table(rank_rows(document))
        yield ranks
        if hidden := len(ranks.rows) - len(ranks.brief or ranks.rows):
            yield f"({hidden} more ranks, none slower or fuller)"
        if figures := figure_table(document):
            yield figures
            yield f"it {fit_line(document)}"
        if document.groups:
            yield "d: replicas; each: microbatches of one replica in a step"
    yield from _search(document)
    if document.alternatives:
        others = alternative_table(document)
        if document.groups:
            yield others
        else:
            count, within = len(document.alternatives), document.alternatives[-1].slowdown - 1
            line = f"runners-up: {count} within {format_percent_up(within)} of the plan"
            yield Folded(line=line, full=(others,))
    yield from notable_lines(document)
    yield from taken_for_granted(document.assumptions)
    yield from warning_lines(document.warnings)


# The step and what is proved of it
# ---------------------------------


def _headline(document: ModelPlanResult) -> Iterator[str]:
    request = document.request
    cluster = request.cluster.name if request.cluster else "?"
    devices = format_count(document.devices_used or request.num_devices or 0, "device")
    where = f"{request.model.name} on {devices} of {cluster}"
    if document.step_time_s is None:
        yield f"{where}: {VERDICTS[document.status]}"
        if document.binding is not None:
            yield f"why: {document.binding.description}"
        if (framework := request.space.framework) is not None:
            yield f"of the plans that {framework} launches; --framework any asks for all"
        return
    fits = "does NOT fit" if document.fits is False else "fits"
    unable = framework_unable(document)
    fits += "" if unable is None else f", but {unable} cannot run it"
    yield f"{where}: {fits}, {format_seconds(document.step_time_s)} per step ({_range(document)})"
    yield from evidence_line(document.assumptions)
    yield "; ".join((*_throughput(document), proof(document)))
    if document.left_open is not None:
        yield f"left open: {document.left_open}"
    if document.parallelism is not None:
        yield (
            f"{use_of_pools(document)}{layout_line(document.parallelism)}, microbatch "
            f"{document.micro_batch}, schedule {document.schedule}{_on_all_ranks(document)}"
        )
    yield from launch_line(document, unable=unable)
    yield from left_to_hide(document)
    if document.order is not None and document.named_step_time_s:
        gain = 1 - document.step_time_s / document.named_step_time_s
        yield (
            f"the order of actions was found from that of {document.order.family}, which takes "
            f"{format_seconds(document.named_step_time_s)} ({gain:.2%} less now)"
        )
    if request.num_devices and document.devices_used != request.num_devices:
        yield f"uses {document.devices_used} of {request.num_devices} devices"
    if document.time_by_part_s:
        yield f"the step: {_shares(document.time_by_part_s, document.step_time_s)}"
    if (idle := imbalance(document)) >= NEGLIGIBLE:
        yield f"imbalance: the other ranks work {idle:.1%} of the step less on average"
    if not document.groups:
        yield from memory_line(document)
    if document.binding is not None:
        yield f"what binds: {document.binding.description}"
    yield from unfitted_line(document.assumptions)


def order_in_words(document: ModelPlanResult) -> str | None:
    """Where a searched order began, and a hash that tells it from others."""
    order = document.order
    if order is None:
        return None
    return f"from {order.family}, {content_hash(encode(order))[:12]}"


def _on_all_ranks(document: ModelPlanResult) -> str:
    family = FAMILIES.get(document.schedule or "")
    if family is None or not family.head_barriers or document.parallelism is None:
        return ""
    return f", head and embedding cut over all {document.parallelism.pipeline} ranks"


def framework_unable(document: ModelPlanResult) -> str | None:
    """The framework that was named and that cannot run the plan with what was asked beside it."""
    framework = document.request.space.framework
    if framework is None or document.request.model.kind == "profile":
        return None
    return None if framework in document.launched_by() else framework


def launch_line(document: ModelPlanResult, *, unable: str | None) -> Iterator[str]:
    """Which frameworks launch the plan; of one that none does, what it gains over one that is."""
    framework = document.request.space.framework
    if framework is not None:
        version = TARGETS[framework].replace(" (", ", ").removesuffix(")")
        said = "launched by" if unable is None else "as the warnings say, not launched by"
        yield f"{said} {framework} ({version})"
    if framework is not None or document.groups or document.request.model.kind == "profile":
        return
    if able := document.launched_by():
        yield f"launched by {', '.join(able)}"
        return
    other: Launchable | None = document.launchable
    yield "launched by no framework" + ("" if other is None else f": {other.reason}")
    if other is not None and other.step_time_s is None:
        yield f"nothing that {other.framework} launches fits"
    elif other is not None and other.step_time_s is not None:
        yield (
            f"the fastest plan found that {other.framework} launches takes "
            f"{format_seconds(other.step_time_s)}, {(other.slowdown or 1) - 1:.1%} more"
        )


def left_to_hide(document: ModelPlanResult) -> Iterator[str]:
    """What binds a pipeline and goes away under families that the request left out.

    A head that is alone on the slowest rank can be cut over all of them, which the target of the
    plan cannot run; exchanges of tensor parallelism hide in braids, which are searched by name.
    """
    space, degrees = document.request.space, document.parallelism
    if document.groups or degrees is None or degrees.pipeline == 1 or space.schedules is not None:
        return
    step_s, parts_s = document.step_time_s, document.time_by_part_s
    if space.framework is not None:
        busiest = busiest_rank(document.ranks)
        own = [stage for stage in document.stages if stage.rank == busiest]
        if own == [document.stages[-1]] and len(own[0].layers) == 1:
            yield (
                f"the head alone makes rank {busiest} the slowest: with --framework any it may be "
                "cut over all ranks"
            )
        return
    waits = parts_s.get("tensor", 0.0) / step_s if parts_s and step_s else 0.0
    braids = [each.name for each in FAMILIES.values() if each.braids and each.planned]
    if document.schedule not in braids and waits >= _MUCH:
        yield (
            f"{waits:.1%} of the step waits for tensor parallelism, much of which --schedule "
            f"{','.join(braids)} may hide"
        )


def imbalance(document: ModelPlanResult) -> float:
    """The share of the step that ranks work less than the busiest, on average over all ranks.

    It is no part of the step, which is that of the busiest rank: others wait for it. 0 where pools
    differ, whose ranks say how busy they are.
    """
    degrees, size, workload = document.parallelism, document.micro_batch, document.request.workload
    if document.groups or degrees is None or not size or workload is None:
        return 0.0
    count = workload.global_batch / (size * degrees.data)
    work_s = [rank.forward_s + rank.backward_s for rank in document.ranks]
    mean_s = sum(work_s) / len(work_s)
    return count * (max(work_s) - mean_s) / (document.step_time_s or math.inf)


def memory_line(document: ModelPlanResult) -> Iterator[str]:
    """How full the fullest rank is, and with what."""
    limit_bytes = document.memory_limit_bytes
    if not document.ranks or not limit_bytes:
        return
    rank, kept = fullest_rank(document), document.request.overheads or NO_OVERHEADS
    memory = document.ranks[rank].memory
    held, together = memory.total_bytes, ""
    spare = limit_bytes - kept.needed_bytes(held)
    if spare < 0 and document.allocated_bytes is not None:
        held, together = document.allocated_bytes, "never all together: "
        spare = limit_bytes - kept.needed_bytes(held)
    beside = f" beside {kept.fragmentation:.0%} for fragmentation" if kept.fragmentation else ""
    largest = sorted(memory_classes(memory).items(), key=lambda part: -part[1])
    named = ", ".join(f"{name} {format_bytes(held)}" for name, held in largest[:_MOST_CLASSES])
    yield (
        f"memory: {format_bytes(held)} of {format_bytes(limit_bytes)} on rank "
        f"{rank}, {format_bytes(spare)} spare{beside}; {together}{named}"
    )


_MOST_CLASSES: Final = 3  # of memory that are named in a line


def memory_classes(memory: StageMemory) -> dict[str, float]:
    """What a device holds at its fullest in bytes, by class; those that it has."""
    return {name: held for name, held in memory.by_class.items() if held > 0}


def use_of_pools(document: ModelPlanResult) -> str:
    """How the plan uses its pools, where there are several."""
    return "" if document.layout is None else f"{LAYOUTS[document.layout]}: "


def devices_by_pool(document: ModelPlanResult) -> str:
    """How many devices of each kind the plan uses, or of the only one."""
    if not document.groups:
        return f"{document.devices_used or 0}"
    used = [f"{each.devices_used} {each.device_kind}" for each in document.groups]
    return ", ".join(each for each in used if not each.startswith("0 ")) or "0"


def _range(document: ModelPlanResult) -> str:
    low_s, high_s = document.step_time_low_s, document.step_time_high_s
    if low_s is None or high_s is None:
        return "of the profile's layers"
    known = "fitted" if is_fitted(document) else "unfitted"
    return f"{format_seconds(low_s)} to {format_seconds(high_s)}, 90%, {known} estimate"


def is_fitted(document: ModelPlanResult) -> bool:
    """Whether the times rest on constants fitted to measured runs."""
    return document.assumptions.get("times", "").startswith(f"{Origin.FITTED}:")


def unfitted_line(assumptions: Mapping[str, str]) -> Iterator[str]:
    """The line, where times are of an accelerator's description; the runs say nothing of others."""
    if assumptions.get("times", "").startswith(f"{Origin.ASSUMED}: roofline of"):
        yield (
            f"unfitted: {UNFITTED.slower_share:.0%} of {UNFITTED.num_runs} public runs took longer "
            f"than such an estimate, {UNFITTED.median_ratio:.2f}x in the median, "
            f"{UNFITTED.within_share:.0%} within its range; fitted constants for --calibration: "
            "trainwright catalog calibrations"
        )


def evidence_line(assumptions: Mapping[str, str]) -> Iterator[str]:
    """The line under the headline: which measured runs stand behind it."""
    known, fitted = assumptions.get("range", ""), f"{Origin.FITTED}: "
    _, line, own = known.partition(f"{fitted}calibration ")
    pooled = known.split(f"{POOLED} for ")[1:]
    found = [evidence.partition(": ")[2].removesuffix(f"; {fitted}") for evidence in pooled]
    for said in [f"rests on calibration {own}"] if line else found:
        yield said if said.count("(") == said.count(")") else said.removesuffix(")")


def _throughput(document: ModelPlanResult) -> Iterator[str]:
    """Tokens and MFU, where the length of a sequence and the model's FLOPs are known."""
    if document.tokens_per_s is None:
        return
    per_device = document.tokens_per_s_per_device or 0
    mfu = "" if document.mfu is None else f", MFU {document.mfu:.1%}"
    yield f"{document.tokens_per_s:,.0f} tokens/s, {per_device:,.0f} per device{mfu}"


def proof(document: ModelPlanResult) -> str:
    """What is proved about the step time, and of which plans nothing is."""
    if document.status is not Status.OPTIMAL and not document.lower_bound_s:
        yet = " yet" if document.considered else ", for none was looked for"
        return f"nothing is proved about other plans{yet}"
    return _proved(document) + _unless_named(document)


def _unless_named(document: ModelPlanResult) -> str:
    """What no proof is about where the request leaves it open."""
    space, of_profile = document.request.space, document.request.model.kind == "profile"
    if document.groups or of_profile:
        return ""
    beside = []
    if space.framework is None and space.schedules is None:  # no framework launches these
        every = [each for each in FAMILIES.values() if each.searched is Searched.ASKED]
        beside += [
            each.name for each in every if each.planned and (each.braids or not each.is_plain)
        ]
    if _copies_open(document):
        beside.append("other numbers of state copies")
    if _experts_open(document):
        beside.append("experts cut over some of a tensor group (--etp)")
    return f"; nothing is claimed of {', '.join(beside)} unless named" if beside else ""


_MUCH: Final = 0.05  # of a step
_LEAST_COPIED: Final = 4  # devices that make two groups of several replicas
_LEAST_CUT: Final = 4  # devices of a tensor group, of which two may share an expert


def _copies_open(document: ModelPlanResult) -> bool:
    """Whether sharded state could be kept in numbers of copies that nobody asked for."""
    space, stages = document.request.space, document.request.space.zero_stages
    devices = document.request.num_devices or document.devices_used or 0
    return (
        space.state_copies is None
        and devices >= _LEAST_COPIED
        and (not stages or max(stages) > 0)
        and (space.framework is None or capability_of(space.framework).can(Feature.HYBRID_SHARD))
    )


def _experts_open(document: ModelPlanResult) -> bool:
    """Whether experts could be cut over some of the devices that share the rest of a layer.

    Unless that is asked for they are whole, or cut like the rest.
    """
    space, own = document.request.space, document.parallelism
    if own is None or own.expert_tensor is None or space.expert_tensor not in (None, SpanRecord()):
        return False
    most = document.request.num_devices or document.devices_used or 0
    if space.tensor is not None and space.tensor.most is not None:
        most = min(most, space.tensor.most)
    framework = space.framework
    return most >= _LEAST_CUT and (
        framework is None or capability_of(framework).can(Feature.EXPERT_TENSOR)
    )


def _proved(document: ModelPlanResult) -> str:
    if document.status is Status.OPTIMAL:
        return f"no {proved_space(document)} is faster, proved"
    gap = f"gap <= {format_percent_up(document.gap or 0)} to a proved bound"
    every = f"{gap} on every {proved_space(document)}"
    step_s, one_stage_s = document.step_time_s or 0.0, document.lower_bound_one_stage_s
    if document.lower_bound_one_order_s is not None:
        own = relative_gap(step_s, document.lower_bound_one_order_s)
        order = f"{format_percent_up(own)} to that of plans in this order"
        return f"{every} in any order of the layers, {order}"
    if one_stage_s is None or relative_gap(step_s, one_stage_s) > OPTIMAL_TOLERANCE:
        return every
    return f"{every}; none with one stage per rank is faster"


def _as_it_fits(document: ModelPlanResult) -> str:
    """What the request says of how the run is made smaller, which other plans may do otherwise."""
    recipe = document.request.recipe
    if recipe is None:
        return ""
    made = (
        recipe.loss_chunk and f"the loss over {recipe.loss_chunk} tokens at a time",
        recipe.mlp_tile and f"feed-forward parts over {recipe.mlp_tile} tokens at a time",
        recipe.offload and f"{recipe.offload.in_words} on the host",
    )
    said = " and ".join(each for each in made if each)
    return f" with {said}" if said else ""


def proved_space(document: ModelPlanResult) -> str:
    """What the bound is on: every plan that the request admits, or the layouts over pools.

    Where nothing fits as asked the request is what is planned in its place, which is told with it.
    """
    space = document.request.space
    if not document.groups:
        launched = f" and {space.framework} launches" if space.framework else ""
        return f"plan that the request admits{launched}{_as_it_fits(document)}"
    alike = " (replicas alike on all pools)" if space.framework else ""
    return f"plan of the space{launched_in_words(space)}{alike}"


def launched_in_words(space: SpaceRecord) -> str:
    """Whose plans are meant, named or not: those that a framework launches."""
    return f" that {space.framework} launches" if space.framework else ""


def _shares(parts_s: Mapping[str, float], step_s: float) -> str:
    """The parts that matter, largest first."""
    largest = sorted(parts_s.items(), key=lambda part: -part[1])
    named = [(name, spent_s / step_s) for name, spent_s in largest if step_s > 0]
    return ", ".join(f"{name} {share:.1%}" for name, share in named if share >= NEGLIGIBLE)


# Pools and ranks
# ---------------


def pool_table(document: ModelPlanResult) -> Table | None:
    """One row per pool, where the cluster has several."""
    if not document.groups:
        return None
    return table_of(
        "Pools",
        (
            column("pool"),
            words("device", "device_kind"),
            column("devices", "num_devices"),
            column("used", "devices_used"),
            column("of the work", "layer_share"),
            column("busy"),
            column("fullest", "peak_memory_bytes", "memory"),
            column("usable", "memory_limit_bytes", on="page"),
            column("of limit", "memory_share", on="terminal"),
        ),
        (
            (
                pool.pool,
                pool.device_kind,
                pool.num_devices,
                pool.devices_used,
                percent(pool.layer_share),
                percent(pool.busy),
                size(pool.peak_memory_bytes),
                size(pool.memory_limit_bytes),
                percent(pool.peak_memory_bytes / pool.memory_limit_bytes),
            )
            for pool in document.groups
        ),
        note="Work is passes of microbatches through layers; busy is the share of the step in "
        "which the devices in use work on microbatches.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """A pipeline rank of a chain of like replicas: what it runs, and what was predicted of it.

    `device_kind`, `count` (of replicas), `num_microbatches` (of one replica in a step) and `busy`
    are stated where there are several pools, (data, tensor) `degrees` where there is one.
    """

    rank: int
    layers: Sequence[int]
    num_recomputed: int
    found: StagePrediction
    limit_bytes: float | None
    degrees: tuple[int, int] | None = None
    device_kind: str | None = None
    count: int = 1
    num_microbatches: int = 0
    busy: float | None = None
    marks: tuple[str, ...] = field(default=())
    num_offloaded: int = 0
    host_bytes: float | None = None


def rank_rows(document: ModelPlanResult) -> tuple[RankRow, ...]:
    """The rows of a plan with stages; the rank that sets the pace is marked first."""
    several, marks = bool(document.groups), _marks_by_rank(document)
    return tuple(
        RankRow(
            rank=rank.rank,
            layers=[layer for stage in own for layer in stage.layers],
            num_recomputed=sum(stage.recomputed_by(rank) for stage in own),
            found=rank,
            limit_bytes=rank.memory_limit_bytes,
            degrees=None if several else (rank.count, own[0].tensor_parallel),
            device_kind=rank.device_kind if several else None,
            count=rank.count,
            num_microbatches=rank.num_microbatches,
            busy=rank.busy if several else None,
            marks=marks.get((rank.chain, rank.rank), ()),
            num_offloaded=sum(stage.offloaded_by(rank) for stage in own),
            host_bytes=next(iter(document.host_bytes_per_rank[at:]), None),
        )
        for at, rank in enumerate(document.ranks)
        for own in [[stage for stage in document.stages if stage.rank == rank.rank]]
    )


def _marks_by_rank(document: ModelPlanResult) -> dict[tuple[int, int], tuple[str, ...]]:
    """What is said of ranks, by chain and rank."""
    if document.on_pools:
        return {} if document.ends is None else {document.ends: ("binds",)}
    marks: dict[tuple[int, int], tuple[str, ...]] = {}
    marks[0, busiest_rank(document.ranks)] = ("slowest",)
    if len(document.ranks) > 1:
        fullest = (0, fullest_rank(document))
        marks[fullest] = (*marks.get(fullest, ()), "fullest")
    return marks


def busiest_rank(ranks: Sequence[RankRecord]) -> int:
    """The rank, by its place among all, that works longest in a step; the first of several."""
    busy_s = [rank.num_microbatches * (rank.forward_s + rank.backward_s) for rank in ranks]
    return busy_s.index(max(busy_s))


def fullest_rank(document: ModelPlanResult) -> int:
    """The rank, by its place among all, whose devices hold most."""
    sizes = [rank.memory_bytes for rank in document.ranks]
    return sizes.index(max(sizes))


def rank_table(rows: Sequence[RankRow]) -> Table:
    """One row per rank; a terminal shows of many the first, the marked and the last."""
    several = any(row.device_kind is not None for row in rows)
    differ = len({row.degrees for row in rows}) > 1
    limited = any(row.limit_bytes for row in rows)
    pools, one_pool, more = ("both", "none", "none") if several else ("none", "both", "page")
    degrees = "none" if several else "both" if differ else "page"
    offloads = "both" if any(row.num_offloaded for row in rows) else "none"
    hosted = "both" if any(row.host_bytes for row in rows) else "none"
    columns = (
        column("rank"),
        words("device", "device_kind", on=pools),
        column("replicas", "count", "d", on=pools),
        column("microbatches", "num_microbatches", "each", on=pools),
        words("layers"),
        column("data", "data_parallel", "d", on=degrees),
        column("tensor", "tensor_parallel", "t", on=degrees),
        column("recomputed", "num_recomputed", "recomp"),
        column("offloaded", "num_offloaded", "offload", on=offloads),
        column("forward", "forward_s"),
        column("backward", "backward_s"),
        column("of it recompute", "recompute_s", on=more),
        column("of both tensor", "tensor_parallel_s", on=more),
        column("send", "send_s", on=one_pool),
        column("busy", on=pools),
        column("weights", "weight_bytes", on=more),
        column("activations", "activation_bytes", on=more),
        column("memory", "memory_bytes"),
        column("of limit", "memory_share", on="both" if limited else "terminal"),
        column("on the host", "host_bytes", "host", on=hosted),
        column("held", "microbatches_in_flight", on=one_pool),
        MARKS,
    )
    marked = [at for at, row in enumerate(rows) if row.marks]
    brief = None
    if len(rows) > _MOST_ROWS:
        brief = sorted({*range(_MOST_ROWS - 4), *marked, len(rows) - 1})
    note = "Times of one microbatch; layers are indices of the model's layer graph."
    if several:
        note += " Microbatches are those of one replica in a step."
    return table_of(
        "Plan",
        columns,
        map(_rank_cells, rows),
        marked=[at for at in marked if rows[at].marks[0] != "fullest"],
        note=note,
        brief=brief,
    )


def _rank_cells(row: RankRow) -> Iterator[Cell | int | str]:
    found, memory = row.found, row.found.memory
    data, tensor = row.degrees or (row.count, 1)
    yield row.rank
    yield row.device_kind or ""
    yield row.count
    yield row.num_microbatches
    yield ranges(row.layers)
    yield data
    yield tensor
    yield recomputed_of(row.num_recomputed, len(row.layers))
    yield recomputed_of(row.num_offloaded, len(row.layers))
    yield seconds(found.forward_s)
    yield seconds(found.backward_s)
    yield seconds(found.recompute_s)
    yield seconds(found.tensor_parallel_s)
    yield seconds(found.send_s)
    yield percent(row.busy)
    yield size(memory.weight_bytes)
    yield size(memory.activation_bytes)
    yield size(memory.total_bytes)
    yield percent(memory.total_bytes / row.limit_bytes if row.limit_bytes else None)
    yield size(row.host_bytes or 0.0)
    yield memory.microbatches_in_flight
    yield ", ".join(row.marks)


# What stands in the way, and what else was considered
# ----------------------------------------------------


def _search(document: ModelPlanResult) -> Iterator[str]:
    if document.fits is False:
        yield "changes that fit are found by: trainwright improve DOCUMENT"
    if document.stages and not document.considered:
        return
    left = f", {document.not_reached} not reached" if document.not_reached else ""
    excluded = f"{document.pruned} excluded by their bounds"
    yield f"{document.considered} layouts considered, {excluded}{left}"
    if document.interrupted:
        found = "this is the best plan found so far" if document.stages else "before any plan"
        yield f"interrupted: {found}"


def alternative_table(document: ModelPlanResult) -> Table:
    """The plan, and those considered and not chosen; a terminal shows the others only."""
    others = document.alternatives
    several = document.on_pools
    plans = [other.parallelism for other in others]
    pools, one_pool = ("both", "none") if several else ("none", "both")
    columns = (
        words("way", "layout_of_pools", "", on=pools),
        words("devices", "device_kinds", on=pools),
        column("used", "devices_used", on=pools),
        *layout_columns(plans),
        column("microbatch", "micro_batch", "mb"),
        words("schedule"),
        column("recomputed", "num_recomputed", "recomp", on=one_pool),
        column("step", "step_time_s"),
        column("slower"),
        column("peak memory", "peak_memory_bytes", "memory", on=one_pool),
        words("loses most in", "lost", on=one_pool),
    )
    rows = [_own_cells(document, plans), *(_other_cells(other, plans) for other in others)]
    return table_of(
        "The plan and its runners-up",
        columns,
        rows,
        marked=(0,),
        caption="other ways to use the pools" if several else "next best",
        brief=range(1, len(rows)),
    )


def notable_lines(document: ModelPlanResult) -> Iterator[str]:
    """The runner-up that there is a reason to take, and the layout that people run."""
    if (who := document.published) is not None:
        yield f"these degrees were published by {who}, of what is known the nearest to this job"
    for other in document.alternatives:
        if other.reason:
            layout = layout_line(other.parallelism)
            yield f"{layout}, {other.schedule}: {other.reason} (--prefer simple)"
        if who := other.published:
            slower = f"{other.slowdown - 1:.1%} slower"
            yield f"{layout_line(other.parallelism)}: as published by {who}; here {slower}"


def _own_cells(
    document: ModelPlanResult, plans: Sequence[Parallelism | None]
) -> list[Cell | float | str | None]:
    return [
        "the plan",
        " + ".join(pool.device_kind for pool in document.groups if pool.devices_used),
        document.devices_used,
        *layout_cells(document.parallelism, plans, absent="degrees per stage"),
        document.micro_batch,
        document.schedule,
        sum(row.num_recomputed for row in rank_rows(document)),
        seconds(document.step_time_s or 0.0),
        percent(0.0),
        size(document.peak_memory_bytes or 0.0),
        "",
    ]


def _other_cells(
    other: Alternative, plans: Sequence[Parallelism | None]
) -> list[Cell | float | str | None]:
    return [
        LAYOUTS[other.layout or "alone"],
        (" -> " if other.layout == "across" else " + ").join(other.device_kinds),
        other.devices_used,
        *layout_cells(other.parallelism, plans),
        other.micro_batch,
        other.schedule,
        other.num_recomputed,
        seconds(other.step_time_s),
        percent(other.slowdown - 1),
        size(other.peak_memory_bytes or 0.0),
        losses(other),
    ]


def losses(other: Alternative) -> str:
    """The one or two parts of the step in which a plan loses most."""
    return ", ".join(f"{name} +{format_seconds(s)}" for name, s in main_losses(other))


# What is taken for granted of a step
# -----------------------------------


def mfu_in_words(devices: Iterable[Accelerator], numbers: Precision) -> str:
    """What MFU and HFU count, and the peak per device that they are shares of."""
    dtype = numbers.matmul_dtype
    peaks = ", ".join(
        f"{device.peak(dtype) / 1e12:,.4g} TFLOP/s of {device.name}"
        for device in dict.fromkeys(devices)
    )
    return (
        "FLOPs of forward and backward, attention in full (a causal mask halves nothing, a sliding "
        "window limits it), without recomputation, which HFU adds; of the dense "
        f"{dtype} peak, {peaks}"
    )


def memory_assumption(device: Accelerator, overheads: MemoryOverheads) -> str:
    """What of a device a run may fill, and what is kept beside it."""
    parts = [
        f"{device.usable_fraction:.0%} of the device usable",
        f"fragmentation {overheads.fragmentation:.0%}",
    ]
    if overheads.reserve_bytes:
        parts.append(f"{format_bytes(overheads.reserve_bytes)} kept free")
    if overheads.fit_probability:
        parts.append(f"fits with a probability of {overheads.fit_probability:.0%} or more")
    return ", ".join(parts)


def measured_words(
    model: Trained, profile: Profile, cluster: Cluster, overheads: MemoryOverheads
) -> dict[str, str]:
    """What is taken for granted about a profile: nothing of it was estimated."""
    point, provenance = profile.point, profile.costs.provenance
    told = model.assumptions if isinstance(model, MeasuredModel) else {}
    return {
        "times": f"{provenance.origin}: {provenance.source}; taken as they are on this cluster",
        "network": "exchanges between stages and replicas are estimated for the profile's bytes",
        **told,
        "range": "not known: no step made of measured layers was held against a real one",
        "memory": memory_assumption(cluster.accelerator, overheads),
        **({} if point.precision is None else {"precision": point.precision}),
    }


def state_in_words(recipe: Recipe, numbers: Precision) -> str:
    """The optimizer, and what a parameter keeps."""
    summed = f"; gradients summed in {recipe.reduce_dtype}" if recipe.reduce_dtype else ""
    sizes = {kind: each for kind, (each, _) in zip(StaticKind, numbers.state, strict=True)}
    said = {kind: each for kind, each in sizes.items() if each or kind <= StaticKind.OPTIMIZER}
    each, names = " + ".join(map(str, said.values())), ", ".join(kind.name.lower() for kind in said)
    return f"{recipe.optimizer}: {each} bytes per parameter ({names}){summed}"


def overlap_in_words(overlap: Overlap, recipe: Recipe) -> str:
    """The share of every kind; that of the host where something goes there."""
    return ", ".join(
        f"{name} {share:.0%}"
        for name, share in asdict(overlap).items()
        if name != "host" or recipe.offload is not None
    )


def to_fit_in_words(recipe: Recipe) -> dict[str, str]:
    """What makes a run smaller, by subject; empty where nothing is asked for."""
    found = {
        "loss": recipe.loss_chunk and f"{recipe.loss_chunk} tokens at a time, again backward",
        "feed-forward": recipe.mlp_tile and f"{recipe.mlp_tile} tokens at a time, again backward",
        "activations": recipe.activation_input_dtype
        and f"inputs of feed-forward activations kept in {recipe.activation_input_dtype}",
        "on the host": recipe.offload and recipe.offload.in_words,
        "of activations": recipe.offload_modules
        and f"those of {', '.join(recipe.offload_modules)} alone",
        "CUDA graphs": _graphs_in_words(recipe),
    }
    return {subject: words for subject, words in found.items() if words}


def _graphs_in_words(recipe: Recipe) -> str:
    """What is recorded, and by whom; empty where nothing is."""
    kind, modules = recipe.cuda_graph, ", ".join(recipe.cuda_graph_modules)
    if not kind.is_per_block:
        return "of all passes of a step" * (kind is not type(kind).NONE)
    pool = "their pool serves nothing else; counted from its source, no public run measures it"
    return f"of {modules or 'each block'}, by {kind}; {pool}"


# How a search ended
# ------------------


def status_of(outcome: Outcome[Any]) -> Status:
    """Whether a plan is proved to be the best, or what else a search found."""
    if not outcome.priced:
        return Status.INFEASIBLE if outcome.exhausted else Status.UNKNOWN
    gap = relative_gap(outcome.priced[0].step.step_time_s, outcome.lower_bound_s)
    return status_at(gap)


def how_left_open(call: ModelCall, outcome: Outcome[Any], budget: Budget) -> str | None:
    """What ended the search or the proof where it leaves a gap, and the option that buys more."""
    if status_of(outcome) is Status.OPTIMAL:
        return None
    if budget.interrupted:
        return "the search was interrupted; the same command without an end may find or prove more"
    if budget.stopped:
        limit = format_seconds(budget.time_limit_s or 0.0)
        return f"the time limit of {limit} ended the search; a longer --time-limit may prove more"
    if call.per_stage_degrees or outcome.lower_bound_one_order_s is not None:
        return f"no sharper bound is known of this space; {_FINDS_ALONE}"
    if (one := outcome.loosest) is not None:
        ranks = "1 rank" if one.pipeline == 1 else f"{one.pipeline} ranks"
        return (
            f"no sharper bound is known of {one.schedule} on {ranks}, "
            f"microbatch {one.microbatch_size}; {_FINDS_ALONE}"
        )
    gap = relative_gap(outcome.priced[0].step.step_time_s, outcome.lower_bound_s)
    more = f"--effort {_MORE_EFFORT * call.question.effort:g}"
    return f"the effort ended first; {more} may win or prove up to {format_percent_up(gap)}"


_MORE_EFFORT: Final = 4  # times as much is advised
_FINDS_ALONE: Final = "more effort may find a faster plan, but raises no bound"
