"""Why a model's plan is what it is: what binds, what each choice buys, what more would help."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from trainwright.documents.model_plan import ModelPlanResult, planned, predicted, profile_of
from trainwright.documents.open import open_document
from trainwright.documents.plan_view import busiest_rank, fullest_rank, losses, plan_view
from trainwright.documents.printing import Report, layout_cells, layout_columns, layout_line
from trainwright.documents.profile_plan import count_recomputed
from trainwright.documents.view import column, percent, seconds, table_of, words
from trainwright.errors import InvalidInput
from trainwright.execution import Budget as NoLimit
from trainwright.planning.reasons.why import memory_gain, repriced_gains, uses, without
from trainwright.plans.configuration import NO_OVERHEADS
from trainwright.plans.parallelism import Parallelism
from trainwright.plans.request import FORMAT_VERSION
from trainwright.plans.status import Status
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainwright.cluster import Cluster
    from trainwright.documents.open import AnyDocument
    from trainwright.documents.view import Line, Table
    from trainwright.execution import Budget
    from trainwright.planning.question.question import Allowed
    from trainwright.planning.reasons.why import Gain, Without
    from trainwright.plans.prediction import StageMemory


# The document of `explain` on a model's plan: what binds, what choices buy, what would help
# ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutRecord:
    """The best plan without something that the plan uses; `slowdown` relative to the plan.

    `status` infeasible: nothing fits without it. `gap`, or unknown: time ran out or a gap is left.
    """

    name: str
    status: Status
    step_time_s: float | None = None
    slowdown: float | None = None
    parallelism: Parallelism | None = None
    micro_batch: int | None = None
    schedule: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GainRecord:
    """More of a resource: the step then, and what share of the step is saved.

    `replanned` says that the best plan was looked for again, not the same plan priced again.
    """

    resource: str
    change: str
    step_time_s: float
    saved: float
    replanned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelExplanation:
    """Ranks are indices from 0. `memory_by_class_bytes` is of the fullest rank, whose device has
    `free_bytes` left beside what every device keeps (`plans.configuration.MemoryOverheads`);
    `busiest_rank` works longest. `binding` names the resource whose increase of 1 % saves most.
    """

    kind: str = "model-explanation"
    format_version: int = FORMAT_VERSION
    busiest_rank: int
    fullest_rank: int
    free_bytes: float
    binding: str | None
    time_by_part_s: dict[str, float]
    memory_by_class_bytes: dict[str, float]
    without: tuple[WithoutRecord, ...] = ()
    gains: tuple[GainRecord, ...] = ()
    not_asked: tuple[str, ...] = ()
    search_s: float = 0.0
    plan: ModelPlanResult


# Why a model's plan is what it is: what binds, what each choice buys, what more would help
# -----------------------------------------------------------------------------------------

SHARE_S: Final = 20.0  # wall seconds of each search for another plan
_CLASSES: Final = (
    "weight",
    "gradient",
    "optimizer",
    "opaque",
    "activation",
    "logits",
    "transient",
    "buffer",
    "workspace",
)


def reasons(document: AnyDocument, *, budget: Budget | None = None) -> Report[ModelExplanation]:
    """Explain the plan of a model (a path or a result).

    The plan is priced again with 1 % more of each resource, and planned again with 10 GiB more
    memory and without each thing that it uses: each of these searches takes at most 20 s, all
    together what `budget` allows; what was not reached is listed. Raises `InvalidInput` where the
    document holds no plan of a model.
    """
    found = open_document(document)
    if not isinstance(found, ModelPlanResult) or not found.stages or found.step_time_s is None:
        raise InvalidInput.of("document", "must hold a plan of a model")
    return Report(_explained(found, budget or NoLimit()))


def _explained(document: ModelPlanResult, budget: Budget) -> ModelExplanation:
    started_s, step_s = budget.cpu_s, document.step_time_s
    assert step_s is not None
    question, plan, profile = planned(document)

    def reprice(cluster: Cluster) -> float:
        changed = replace(question, cluster=cluster)
        return predicted(changed, plan, profile_of(changed, plan)).step_time_s

    gains = list(repriced_gains(question, reprice))
    binding = max(gains, key=lambda gain: -gain.step_time_s, default=None)
    not_asked: list[str] = []
    part = budget.part(SHARE_S, stage="with more memory")
    more = None if budget.stopped else memory_gain(question, step_s, part)
    if more is None:
        not_asked.append("10 GiB more memory")
    else:
        gains.append(more)
    lacking: list[Without] = []
    recomputes = any(count_recomputed(stage, profile) for stage in plan.stages)
    spaces: Iterable[tuple[str, Allowed]] = ()
    if plan.parallelism is not None:
        spaces = uses(plan, plan.parallelism, question.allowed, recomputes=recomputes)
    for name, space in spaces:
        if budget.stopped:
            not_asked.append(f"without {name}")
        else:
            part = budget.part(SHARE_S, stage=f"without {name}")
            lacking.append(without(question, name, space, part))
    saves = binding is not None and binding.step_time_s < step_s * (1 - 1e-6)
    return ModelExplanation(
        **_figures(document),
        binding=binding.resource if binding is not None and saves else None,
        without=tuple(_without_records(lacking, step_s)),
        gains=tuple(_gain_record(gain, step_s) for gain in gains),
        not_asked=tuple(not_asked),
        search_s=budget.cpu_s - started_s,
        plan=document,
    )


def _figures(plan: ModelPlanResult) -> dict[str, Any]:
    """What follows from the plan alone, by key of the document."""
    sizes = plan.peak_memory_bytes_per_rank
    fullest = fullest_rank(plan)
    needed_bytes = (plan.request.overheads or NO_OVERHEADS).needed_bytes(sizes[fullest])
    return {
        "busiest_rank": busiest_rank(plan.ranks),
        "fullest_rank": fullest,
        "free_bytes": (plan.memory_limit_bytes or 0.0) - needed_bytes,
        "time_by_part_s": plan.time_by_part_s,
        "memory_by_class_bytes": _classes(plan.ranks[fullest].memory),
    }


def remake_explanation(document: ModelExplanation) -> ModelExplanation:
    """The document with every figure that follows from its plan and the steps of other plans."""
    plan = document.plan
    if not plan.ranks or plan.step_time_s is None:
        raise InvalidInput.of("plan", "must be a plan of a model, with stages")
    step_s = plan.step_time_s
    return replace(
        document,
        **_figures(plan),
        without=tuple(
            each if each.step_time_s is None else replace(each, slowdown=each.step_time_s / step_s)
            for each in document.without
        ),
        gains=tuple(
            replace(each, saved=max(0.0, 1 - each.step_time_s / step_s)) for each in document.gains
        ),
    )


def _classes(memory: StageMemory) -> dict[str, float]:
    sizes = {name: float(getattr(memory, f"{name}_bytes")) for name in _CLASSES}
    return {name: size for name, size in sizes.items() if size > 0}


def _without_records(lacking: list[Without], step_s: float) -> Iterator[WithoutRecord]:
    for each in lacking:
        record = WithoutRecord(name=each.name, status=each.status)
        if each.best is not None:
            time_s = each.best.step.step_time_s
            record = replace(
                record,
                step_time_s=time_s,
                slowdown=time_s / step_s,
                parallelism=each.best.plan.parallelism,
                micro_batch=each.best.plan.microbatch_size,
                schedule=each.best.plan.schedule,
            )
        yield record


def _gain_record(gain: Gain, step_s: float) -> GainRecord:
    return GainRecord(
        resource=gain.resource,
        change=gain.change,
        step_time_s=gain.step_time_s,
        saved=max(0.0, 1 - gain.step_time_s / step_s),
        replanned=gain.replanned,
    )


def has_reasons(document: object) -> bool:
    """Whether a document holds a plan of a model."""
    found = isinstance(document, ModelPlanResult) and bool(document.stages)
    return found and document.status in (Status.OPTIMAL, Status.GAP)  # type: ignore[attr-defined]


# Why a model's plan is what it is, below its table
# -------------------------------------------------


def model_explanation_view(document: ModelExplanation) -> Iterator[Line]:
    """The plan's view, what binds, what each choice buys, what more of a resource would."""
    yield from plan_view(document.plan)
    yield ""
    yield from _what_binds(document)
    yield from explanation_tables(document)
    if document.not_asked:
        yield f"not asked for want of time: {', '.join(document.not_asked)}"
    yield from _runner_up(document)


def explanation_tables(document: ModelExplanation) -> Iterator[Table]:
    """What each choice buys, and what more of a resource would."""
    if document.without:
        yield _without_table(document)
    if document.gains:
        yield _gain_table(document)


def _what_binds(document: ModelExplanation) -> Iterator[str]:
    plan = document.plan
    step_s = plan.step_time_s or 0.0
    largest = max(document.time_by_part_s.items(), key=lambda part: part[1])
    share = largest[1] / step_s if step_s > 0 else 0.0
    yield (
        f"time: rank {document.busiest_rank} works longest; "
        f"{share:.1%} of the step is {largest[0]}"
        + (f"; what would help most is {document.binding}" if document.binding else "")
    )
    limit_bytes = plan.memory_limit_bytes or 0.0
    classes = sorted(document.memory_by_class_bytes.items(), key=lambda part: -part[1])
    named = ", ".join(f"{name} {format_bytes(size)}" for name, size in classes)
    yield (
        f"memory: rank {document.fullest_rank} is fullest, {format_bytes(document.free_bytes)} of "
        f"{format_bytes(limit_bytes)} free{_kept(plan)}: {named}"
    )


def _kept(plan: ModelPlanResult) -> str:
    """What a device keeps that no class of memory counts, where there is any."""
    kept = plan.request.overheads
    if kept is None or not (kept.fragmentation or kept.reserve_bytes):
        return ""
    parts = [f"{kept.fragmentation:.0%} fragmentation"] if kept.fragmentation else []
    parts += [format_bytes(kept.reserve_bytes)] if kept.reserve_bytes else []
    return f" beside {' and '.join(parts)}"


def _without_table(document: ModelExplanation) -> Table:
    plans = [each.parallelism for each in document.without]
    return table_of(
        "The best plan without",
        (
            words("without", "name", ""),
            column("step", "step_time_s"),
            column("slower", "slowdown"),
            *layout_columns(plans),
            column("microbatch", "micro_batch", "mb"),
            words("schedule"),
            words("", "proved"),
        ),
        (
            (
                each.name,
                seconds(each.step_time_s),
                percent(None if each.slowdown is None else each.slowdown - 1, sign=True),
                *layout_cells(each.parallelism, plans),
                each.micro_batch,
                each.schedule,
                _proved(each),
            )
            for each in document.without
        ),
        caption="the best plan without",
        note="Looked for again with a choice forbidden; the best found where time ran out.",
    )


def _proved(each: WithoutRecord) -> str:
    return {
        Status.OPTIMAL: "",
        Status.GAP: "(best found)",
        Status.INFEASIBLE: "nothing fits",
        Status.UNKNOWN: "nothing found in time",
    }[each.status]


def _gain_table(document: ModelExplanation) -> Table:
    return table_of(
        "With more of",
        (
            words("resource", "resource", ""),
            column("more", "change", ""),
            column("step", "step_time_s"),
            column("saves", "saved"),
            words("plan", "plan", ""),
        ),
        (
            (
                gain.resource,
                gain.change,
                seconds(gain.step_time_s),
                percent(gain.saved, digits=2),
                "planned again" if gain.replanned else "the same plan",
            )
            for gain in sorted(document.gains, key=lambda each: -each.saved)
        ),
        caption="with more of",
    )


def _runner_up(document: ModelExplanation) -> Iterator[str]:
    if not document.plan.alternatives:
        return
    other = document.plan.alternatives[0]
    yield (
        f"next best: {layout_line(other.parallelism)}, microbatch {other.micro_batch}, schedule "
        f"{other.schedule}: {other.slowdown - 1:.1%} slower"
    )
    if lost := losses(other):
        yield f"  it loses {lost}"
