"""What a reader sees first of a priced step: the verdict, what to change, where time and memory go.

A plan and an estimate answer the same first questions in the same places: whether it fits and how
long a step takes, on what evidence; what is worth changing, each change with its price; and two
pictures, of the step and of the memory. The schedule comes after them, all else is folded.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from trainwright.documents.fit import fit_line
from trainwright.documents.plan_view import (
    evidence_line,
    fullest_rank,
    is_fitted,
    unfitted_line,
)
from trainwright.documents.printing import NEGLIGIBLE
from trainwright.documents.reasons import changes_of, fixes_of
from trainwright.pages.blocks import Bar, BarChart, Beside, ChangeList, ChangeRow, Part, Verdict
from trainwright.pages.step import memory_bars, time_parts
from trainwright.plans.configuration import NO_OVERHEADS
from trainwright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from trainwright.documents.model_estimate import ModelEstimateResult
    from trainwright.documents.plan_view import Planned
    from trainwright.documents.reasons import Change
    from trainwright.pages.subject import PricedStep, Subject
    from trainwright.plans.status import Relaxation

_FAR: Final = 0.05  # of a step: what is slower by more is marked
_NOTICED: Final = 0.002  # of a step: less imbalance is no bar of its own


def plan_verdict(document: Planned) -> Verdict:
    """Whether a plan fits, how long its step takes, and what stands behind that."""
    if document.step_time_s is None:
        why = document.binding.description if document.binding else "no plan was found in time"
        none = str(document.status) == "infeasible"
        return Verdict(state="Nothing fits" if none else "No plan yet", said=why, tone="bad")
    if document.groups:
        room = "every kind of device" if document.fits else "not every kind of device"
        said = f"on {room}."
    else:
        rank = fullest_rank(document)  # type: ignore[arg-type]
        held = document.ranks[rank].memory.total_bytes  # type: ignore[union-attr]
        limit = document.memory_limit_bytes or 0.0  # type: ignore[union-attr]
        kept = document.request.overheads or NO_OVERHEADS
        said = _room(rank, held, limit, limit - kept.needed_bytes(held))
    low, high = document.step_time_low_s, document.step_time_high_s
    if getattr(document, "fit_probability", None) is not None:
        said += f" It {fit_line(document)}."
    return Verdict(
        state="Fits" if document.fits else "Does not fit",
        said=f"{said} {_step(document.step_time_s, low, high, fitted=is_fitted(document))}",
        tone="good" if document.fits else "bad",
        evidence=evidence(document.assumptions),
    )


def estimate_verdict(document: ModelEstimateResult) -> Verdict:
    """Whether a run fits, how long its step takes, and what stands behind that."""
    said = _room(
        document.heaviest_rank,
        document.peak_memory_bytes,
        document.memory_limit_bytes,
        document.margin_bytes,
    )
    if document.fit_probability is not None:
        said += f" It {fit_line(document)}."
    low, high = document.step_time_low_s, document.step_time_high_s
    fitted = document.assumptions.get("times", "").startswith("fitted:")
    state = str(document.verdict)
    return Verdict(
        state=state[:1].upper() + state[1:],
        said=f"{said} {_step(document.step_time_s, low, high, fitted=fitted)}",
        tone={"fits": "good", "tight": "warn"}.get(state, "bad"),
        evidence=evidence(document.assumptions),
    )


def _room(rank: int, held_bytes: float, limit_bytes: float, spare_bytes: float) -> str:
    left = f"{format_bytes(spare_bytes)} to spare after margins"
    if spare_bytes < 0:
        left = f"short of {format_bytes(-spare_bytes)} with margins"
    return f"{format_bytes(held_bytes)} of {format_bytes(limit_bytes)} on rank {rank}, {left}."


def _step(step_s: float, low_s: float | None, high_s: float | None, *, fitted: bool) -> str:
    known = "" if fitted else " (no constant is fitted to this device)"
    if low_s is None or high_s is None:
        return f"A step takes {format_seconds(step_s)}."
    between = f"{format_seconds(low_s)} to {format_seconds(high_s)}"
    return f"A step takes {format_seconds(step_s)}; nine of ten like it take {between}{known}."


def evidence(assumptions: Mapping[str, str]) -> tuple[str, ...]:
    """The sentences that a step rests on."""
    lines = (*evidence_line(assumptions), *unfitted_line(assumptions))
    return tuple(f"{line[:1].upper()}{line[1:]}." for line in lines)


# What is worth changing
# ----------------------


def plan_changes(subject: Subject[Any]) -> ChangeList | None:
    """The changes of a plan, each with its whole command; None where there is none."""
    document: Planned = subject.document
    return _listed(changes_of(document), subject.command, fixes=document.step_time_s is None)


def fixing_changes(relaxations: Iterable[Relaxation], command: str) -> ChangeList | None:
    """What would each make a plan fit, with the whole command; None where nothing is known."""
    return _listed(fixes_of(relaxations), command, fixes=True)


def estimate_changes(subject: Subject[ModelEstimateResult]) -> ChangeList | None:
    """What would make a run fit, each with its whole command; None where nothing is known."""
    document = subject.document
    rows = tuple(
        ChangeRow(
            what=each.description,
            step=format_seconds(each.step_time_s),
            against=f"{each.device_time_ratio - 1:+.1%}",
            tone=_tone(each.device_time_ratio),
            memory=format_bytes(each.peak_memory_bytes),
            options=each.options,
            command=_with(subject.command, each.options),
        )
        for each in document.changes or ()
    )
    if not rows:
        return None
    return ChangeList(rows=rows, title="Any one of these makes it fit", against="device time")


def _step_of(change: Change) -> str:
    if change.step_time_s is None:
        return ""
    return f"{'≤ ' if change.is_bound else ''}{format_seconds(change.step_time_s)}"


def _listed(found: Iterable[Change], command: str, *, fixes: bool) -> ChangeList | None:
    rows = tuple(
        ChangeRow(
            what=each.what,
            step=_step_of(each),
            against="" if each.ratio is None else f"{each.ratio - 1:+.1%}",
            tone="" if each.ratio is None else _tone(each.ratio),
            memory="" if not each.peak_memory_bytes else format_bytes(each.peak_memory_bytes),
            options=each.options,
            command=_with(command, each.options),
        )
        for each in found
    )
    if not rows:
        return None
    if fixes:
        return ChangeList(rows=rows, title="Any one of these is enough")
    note = "Each row was found and priced. Its options, added to the command, ask for it."
    return ChangeList(rows=rows, note=note)


def _tone(ratio: float) -> str:
    return "better" if ratio < 1 - NEGLIGIBLE else "worse" if ratio > 1 + _FAR else ""


def _with(command: str, options: str) -> str:
    """The command with options in place of its own of the same names."""
    words, added = shlex.split(command), options.split()
    names = {word for word in added if word.startswith("--")}
    kept: list[str] = []
    skip = False
    for word in words:
        if word.startswith("--"):
            skip = word in names
        if not skip:
            kept.append(word)
    return shlex.join([*kept, *added])


# Where the step and the memory go
# --------------------------------


def first_pictures(
    priced: PricedStep | None, document: Planned | ModelEstimateResult
) -> tuple[BarChart, ...]:
    """The step of the busiest rank beside that of the average rank, and the fullest device."""
    if priced is None:
        return ()
    fullest = priced.step.fullest_stage
    held = memory_bars(
        [(fullest, priced.step.stages[fullest].memory)],
        document.memory_limit_bytes,  # type: ignore[union-attr]
        title=f"What the fullest device holds: rank {fullest}",
    )
    return step_bars(priced), held


def step_bars(priced: PricedStep) -> BarChart:
    """Where the step goes on the busiest rank, and on average over the ranks.

    What ranks wait for slower ones is imbalance, what the busiest waits, too, is the bubble.
    """
    step_s, busiest = priced.step.step_time_s, priced.busiest_rank
    own = priced.parts_of_rank_s[busiest]
    bars = [Bar(label="busiest", parts=time_parts(own), total=format_seconds(step_s))]
    count = len(priced.parts_of_rank_s)
    note = ""
    if count > 1:
        mean = {name: sum(parts[name] for parts in priced.parts_of_rank_s) / count for name in own}
        waits = ("bubble", "transfers")
        uneven_s = sum(mean[name] for name in waits) - sum(own[name] for name in waits)
        if uneven_s > _NOTICED * step_s:
            mean |= {name: own[name] for name in waits}
            parts = (*time_parts(mean), _imbalance(uneven_s))
            bars.append(Bar(label="average", parts=parts, total=f"{uneven_s / step_s:.1%} idle"))
            note = (
                f"The average rank waits {uneven_s / step_s:.1%} of the step for slower ones; "
                f"{sum(own[name] for name in waits) / step_s:.1%} is fill, drain and transfers."
            )
    return BarChart(
        title="Where the step goes", bars=tuple(bars), label="rank of the pipeline", note=note
    )


def _imbalance(amount_s: float) -> Part:
    text = format_seconds(amount_s)
    return Part(kind="imbalance", label="imbalance", amount=amount_s, text=text)


def first_blocks(
    verdict: Verdict, changes: ChangeList | None, pictures: tuple[BarChart, ...]
) -> Iterator[Any]:
    """The verdict over the changes, with the pictures beside them."""
    yield verdict
    if changes is not None and pictures:
        yield Beside(left=(changes,), right=pictures)
    else:
        yield from filter(None, (changes, *pictures))
