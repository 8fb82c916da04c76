"""The reasons of a model's plan, and the one list of what is worth changing.

A reason is a plan that was found without something that the plan uses, or with more of something.
What is worth changing comes from all that a document knows: what would make a plan fit, what would
make it faster, and which plans of another kind are nearly as fast. Ranked in this order, each with
its price and the options that ask for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from trainwright.documents.printing import NEGLIGIBLE, layout_cells, layout_columns
from trainwright.documents.view import Cell, Table, column, percent, seconds, size, table_of, words
from trainwright.plans.plan import DATA_INSIDE, Parallelism, mapping_name
from trainwright.plans.status import Relaxation, Status
from trainwright.units import format_count

if TYPE_CHECKING:
    from trainwright.documents.explanation import ModelExplanation
    from trainwright.documents.model_plan import Alternative, ModelPlanResult


# What a document keeps of its reasons
# ------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutRecord:
    """A plan without something that the plan uses; `slowdown` is relative to the plan, 1 for none.

    The plan was looked for briefly, so `options` added to the plan's own command may find a faster
    one. `status` is infeasible where nothing fits, unknown where nothing was found.
    """

    name: str
    options: str = ""
    status: Status
    step_time_s: float | None = None
    slowdown: float | None = None
    peak_memory_bytes: float | None = None
    parallelism: Parallelism | None = None
    micro_batch: int | None = None
    schedule: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GainRecord:
    """More of a resource or of freedom: the step then, in seconds, and the share that it saves.

    `replanned` says that another plan was looked for, not the same plan priced again. `options`
    added to the plan's command ask for it, where options can.
    """

    resource: str
    change: str
    step_time_s: float
    saved: float
    replanned: bool
    options: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """What each choice of a plan buys, and what more would help; `binding` saves most by 1%.

    `not_asked` lists what time did not suffice for, `search_s` counts CPU seconds, which are not
    part of those of the plan's own search.
    """

    binding: str | None
    without: tuple[WithoutRecord, ...] = ()
    gains: tuple[GainRecord, ...] = ()
    not_asked: tuple[str, ...] = ()
    search_s: float = 0.0


def remake_reasons(document: Any, step_s: float) -> Any:
    """The reasons, or a document that has them, with every ratio to a step of `step_s` seconds."""
    return replace(
        document,
        without=tuple(
            each if each.step_time_s is None else replace(each, slowdown=each.step_time_s / step_s)
            for each in document.without
        ),
        gains=tuple(
            replace(each, saved=max(0.0, 1 - each.step_time_s / step_s)) for each in document.gains
        ),
    )


# What is worth changing, best first
# ----------------------------------

MOST_SHOWN: Final = 6  # changes, in a terminal
_WORST: Final = 1.25  # times the plan's step: what is slower is no change that anybody makes


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something to change, in words, and the `options` that ask for it beside the plan's own.

    `ratio` is the step then by the plan's own; absent where the plan has no step. Where `is_bound`
    the plan was looked for briefly: its options may find one whose step is shorter. A layout that
    people run `is_published`.
    """

    what: str
    options: str
    step_time_s: float | None = None
    ratio: float | None = None
    peak_memory_bytes: float | None = None
    is_bound: bool = False
    is_published: bool = False


def changes_of(document: ModelPlanResult) -> tuple[Change, ...]:
    """What would make a plan fit, else what makes it faster, and what is nearly as fast.

    Of several ways to one plan the first is told.
    """
    if document.step_time_s is None:
        return tuple(fixes_of(document.relaxations))
    faster = list(_faster(document))
    known_s = {change.step_time_s for change, _ in faster}
    others = [one for one in _others(document) if one[0].step_time_s not in known_s]
    kept: dict[object, Change] = {}
    for change, plan in (*faster, *sorted(others, key=lambda one: one[0].ratio or 0.0)):
        kept.setdefault(plan, change)
    return tuple(kept.values())


def fixes_of(relaxations: Iterable[Relaxation]) -> Iterator[Change]:
    """What would each make a plan fit, with the options that ask for it, where options can."""
    for fix in relaxations:
        used = ""
        if fix.change != "devices" and fix.devices_used:
            used = f", on {format_count(fix.devices_used, 'device')}"
        options = fix.option or ""
        what = f"{fix.description}{used}"
        yield Change(what=what, options=options, step_time_s=fix.step_time_s)


def _faster(document: ModelPlanResult) -> Iterator[tuple[Change, object]]:
    reasons = document.reasons
    for gain in sorted(reasons.gains if reasons else (), key=lambda each: -each.saved):
        if gain.replanned and gain.saved >= NEGLIGIBLE:
            more = f"{gain.change.removeprefix('+')} more {gain.resource}"
            change = Change(
                what=more if gain.change else gain.resource,
                options=gain.options,
                step_time_s=gain.step_time_s,
                ratio=1 - gain.saved,
            )
            yield change, gain


def _others(document: ModelPlanResult) -> Iterator[tuple[Change, object]]:
    """Plans without something, and runners-up that cut the model otherwise than these."""
    reasons, step_s = document.reasons, document.step_time_s or 0.0
    cuts = {_cut(document)}
    for each in reasons.without if reasons else ():
        if each.slowdown is not None and each.slowdown <= _WORST:
            cuts.add(_cut(each))
            change = Change(
                what=f"without {each.name}",
                options=each.options,
                step_time_s=each.step_time_s,
                ratio=each.slowdown,
                peak_memory_bytes=each.peak_memory_bytes,
                is_bound=each.status is Status.GAP,
            )
            yield change, _kind(each, document)
    if document.kind != "model-plan" or document.parallelism is None:
        return
    for other in document.alternatives:
        published = other.published is not None
        if not published and (_cut(other) in cuts or other.slowdown > _WORST):
            continue
        cuts.add(_cut(other))
        differs = ", ".join(_differences(document, other))
        change = Change(
            what=f"as published: {differs}" if published else differs,
            options=_options(other),
            step_time_s=other.step_time_s,
            ratio=other.step_time_s / step_s,
            peak_memory_bytes=other.peak_memory_bytes,
            is_published=published,
        )
        yield change, _kind(other, document)


def _cut(plan: Any) -> tuple[object, ...]:
    """How a plan cuts the model: what it has beside is no news in a runner-up."""
    degrees = plan.parallelism
    if degrees is None:
        return (id(plan),)
    shared = degrees.context > 1
    return degrees.tensor, degrees.pipeline, degrees.expert, shared, plan.schedule


def _kind(plan: Any, own: Any) -> object:
    """What tells plans apart that a person would call different.

    Chunks are not among it, nor is the ZeRO stage of what differs from the `own` plan in more.
    """

    def core(each: Any) -> tuple[object, ...]:
        degrees = each.parallelism
        whole = None if degrees is None else replace(degrees, virtual_stages=1, zero_stage=0)
        return whole, each.micro_batch, each.schedule

    found = core(plan)
    if plan.parallelism is None or own.kind != "model-plan" or found != core(own):
        return found
    return (*found, plan.parallelism.zero_stage)


_AXES: Final = (
    ("tensor", "tp"),
    ("pipeline", "pp"),
    ("data", "dp"),
    ("context", "cp"),
    ("expert", "ep"),
    ("virtual_stages", "virtual-stages"),
    ("zero_stage", "zero"),
    ("state_copies", "state-copies"),
)


def _differences(plan: ModelPlanResult, other: Alternative) -> Iterator[str]:
    """In what a runner-up differs, in words."""
    own = plan.parallelism
    assert own is not None
    is_same = True
    for name, flag in _AXES:
        before, after = getattr(own, name), getattr(other.parallelism, name)
        if before != after:
            yield f"{flag} {before}→{after}"
            is_same = False
    if other.micro_batch != plan.micro_batch:
        yield f"microbatch {plan.micro_batch}→{other.micro_batch}"
        is_same = False
    if other.schedule != plan.schedule:
        yield f"{plan.schedule}→{other.schedule}"
        is_same = False
    if other.devices_used not in (None, plan.devices_used):
        yield f"on {format_count(other.devices_used, 'device')}"
    # which ranks are neighbours is no news beside other degrees
    if is_same and other.parallelism.axis_order != own.axis_order:
        yield f"ranks in the order {mapping_name(other.parallelism.axis_order)}"


def _options(other: Alternative) -> str:
    degrees = other.parallelism
    named = [f"--{flag} {getattr(degrees, name)}" for name, flag in _AXES]
    kept = [each for each in named if each not in ("--cp 1", "--ep 1", "--state-copies 1")]
    if degrees.virtual_stages == 1 and "--virtual-stages 1" in kept:
        kept.remove("--virtual-stages 1")
    rest = [f"--micro-batch {other.micro_batch}", f"--schedule {other.schedule}"]
    if degrees.axis_order != DATA_INSIDE:
        rest.insert(0, f"--mapping {mapping_name(degrees.axis_order)}")
    return " ".join([*kept, *rest])


def change_table(document: ModelPlanResult, *, most: int | None = None) -> Table | None:
    """The changes as a table; None where there is none."""
    every = changes_of(document)
    found = every[:most]
    if not found:
        return None
    if published := [each for each in every[len(found) :] if each.is_published]:
        found = (*found[: -len(published)], *published)
    fixes = document.step_time_s is None
    title = title_of(found, fixes=fixes)
    sizes = any(each.peak_memory_bytes for each in found)
    return table_of(
        title,
        (
            words("change"),
            column("step", "step_time_s"),
            column("against the plan", "ratio", "vs plan", on="none" if fixes else "both"),
            column("peak memory", "peak_memory_bytes", "memory", on="both" if sizes else "none"),
            words("options"),
        ),
        (
            (
                each.what,
                _at_most(seconds(each.step_time_s), each),
                percent(None if each.ratio is None else each.ratio - 1, sign=True),
                size(each.peak_memory_bytes),
                each.options,
            )
            for each in found
        ),
        caption=_CAPTIONS[title],
        note="Each row is a plan that was found and priced. Its options, added to the command of "
        "the plan, ask for it.",
    )


_ENOUGH: Final = "Any one of these is enough"
_FASTER: Final = "Change this"
_NEXT: Final = "Next best plans"
_CAPTIONS: Final = {
    _ENOUGH: "any one of these is enough: add its options to the command",
    _FASTER: "change this: add the options to the command",
    _NEXT: "next best plans: add the options to the command; "
    "`trainwright improve` looks for a faster run beside them",
}


def title_of(changes: Iterable[Change], *, fixes: bool) -> str:
    """What a list of changes is: each makes a plan fit, or some make it faster, or none does."""
    if fixes:
        return _ENOUGH
    return _FASTER if any((each.ratio or 1) < 1 for each in changes) else _NEXT


def _at_most(step: Cell, change: Change) -> Cell:
    return _no_more(step) if change.is_bound else step


def _no_more(step: Cell) -> Cell:
    return replace(step, text=f"<= {step.text}")


# What each choice buys, and what more of a resource would, in full
# -----------------------------------------------------------------


def explanation_tables(document: Reasons | ModelExplanation) -> Iterator[Table]:
    """What each choice buys, and what more of a resource would."""
    if document.without:
        yield _without_table(document)
    if document.gains:
        yield _gain_table(document)


def _without_table(document: Reasons | ModelExplanation) -> Table:
    plans = [each.parallelism for each in document.without]
    return table_of(
        "A plan without",
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
                _no_more(seconds(each.step_time_s))
                if each.status is Status.GAP
                else seconds(each.step_time_s),
                percent(None if each.slowdown is None else each.slowdown - 1, sign=True),
                *layout_cells(each.parallelism, plans),
                each.micro_batch,
                each.schedule,
                _proved(each),
            )
            for each in document.without
        ),
        caption="a plan without, looked for briefly: a faster one may be there",
        note="Looked for briefly with a choice forbidden, so at most so much is lost.",
    )


def _proved(each: WithoutRecord) -> str:
    return {
        Status.OPTIMAL: "",
        Status.GAP: "",
        Status.INFEASIBLE: "nothing fits",
        Status.UNKNOWN: "nothing found",
    }[each.status]


def _gain_table(document: Reasons | ModelExplanation) -> Table:
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
