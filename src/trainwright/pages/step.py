"""Blocks about a priced step that the pages of plans and of estimates share, verdict first."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from trainwright.documents import plan_view
from trainwright.documents.fit import fit_line
from trainwright.documents.printing import NEGLIGIBLE
from trainwright.documents.reasons import Change, changes_of, fixes_of, title_of
from trainwright.documents.view import (
    Cell,
    Table,
    column,
    part_of_step,
    percent,
    seconds,
    table_of,
    words,
)
from trainwright.pages import blocks
from trainwright.pages.subject import Figure, PricedStep, Subject, figures
from trainwright.plans.configuration import NO_OVERHEADS
from trainwright.plans.prediction import MEMORY_CLASSES, LevelUse, StageMemory
from trainwright.plans.status import Relaxation
from trainwright.units import format_bandwidth, format_bytes, format_part, format_seconds

if TYPE_CHECKING:
    from trainwright.documents.model_estimate import ModelEstimateResult
    from trainwright.documents.model_plan import ModelPlanResult
    from trainwright.pages.gantt import GanttPanel

    Stepped: TypeAlias = ModelPlanResult | ModelEstimateResult
    from trainwright.documents.model_plan import ModelPlanResult

# Which network levels a step keeps busy, as bars and as a table
# --------------------------------------------------------------


def network_blocks(priced: PricedStep) -> tuple[blocks.BarChart, Table]:
    """Which network levels the step keeps busy, as bars and as a table."""
    step_s = priced.step.step_time_s
    return _network_bars(priced.network, step_s), _network_table(priced.network, step_s)


def _network_bars(levels: tuple[LevelUse, ...], step_time_s: float) -> blocks.BarChart:
    """How much of the step each level is under way, exposed and hidden."""
    bars = []
    for level in levels:
        exposed_s = sum(axis.exposed_s for axis in level.axes)
        hidden_s = sum(axis.hidden_s for axis in level.axes)
        idle_s = max(step_time_s - exposed_s - hidden_s, 0.0)
        parts = tuple(
            blocks.Part(kind=kind, label=kind, amount=amount, text=format_part(amount, step_time_s))
            for kind, amount in (("exposed", exposed_s), ("hidden", hidden_s), ("unused", idle_s))
        )
        used = f"{(exposed_s + hidden_s) / step_time_s:.1%} used" if step_time_s else ""
        bars.append(blocks.Bar(label=level.name, parts=parts, total=used))
    return blocks.BarChart(title="Use of each network level", bars=tuple(bars), label="level")


def _network_table(levels: tuple[LevelUse, ...], step_time_s: float) -> Table:
    """What crosses each level."""
    return table_of(
        "Communication of the busiest rank",
        (
            words("level"),
            words("for", "kind"),
            column("ranks"),
            column("per device", "effective_bytes_per_s"),
            column("exposed", "exposed_s"),
            column("hidden", "hidden_s"),
            column("of step", "share"),
        ),
        (
            (
                level.name,
                axis.kind,
                axis.ranks,
                Cell(
                    text=format_bandwidth(level.effective_bytes_per_s),
                    value=level.effective_bytes_per_s,
                ),
                part_of_step(axis.exposed_s, step_time_s),
                part_of_step(axis.hidden_s, step_time_s),
                percent(axis.total_s / step_time_s),
            )
            for level in levels
            for axis in level.axes
        ),
        note="A group that spans several levels counts at the outermost one. Exposed time makes "
        "the step longer, hidden time runs beside compute; collectives that recomputation repeats "
        "are included.",
    )


# Blocks about a priced step that the pages of plans and of estimates share
# -------------------------------------------------------------------------


def priced_rows(priced: PricedStep, limit_bytes: float | None) -> tuple[plan_view.RankRow, ...]:
    """The ranks of a step whose document names no stages."""
    return tuple(
        plan_view.RankRow(
            rank=rank,
            layers=priced.layers_of_rank[rank],
            num_recomputed=priced.recomputed_of_rank[rank],
            found=found,
            limit_bytes=limit_bytes,
            degrees=priced.degrees_of_rank[rank],
            marks=("slowest",) * (rank == priced.busiest_rank)
            + ("fullest",) * (rank == priced.step.fullest_stage),
        )
        for rank, found in enumerate(priced.step.stages)
    )


def time_bars(priced: PricedStep) -> blocks.BarChart:
    """What every rank does with the step."""
    labels = map(str, range(len(priced.parts_of_rank_s)))
    return bars_of_parts(labels, priced.parts_of_rank_s, step_s=priced.step.step_time_s)


def bars_of_parts(
    labels: Iterable[str], parts_of_rank_s: Sequence[dict[str, float]], *, step_s: float
) -> blocks.BarChart:
    """A bar for each rank, on one pool or several."""
    bars = tuple(
        blocks.Bar(
            label=label,
            parts=time_parts(parts_s),
            total=f"{1 - _idle_s(parts_s) / step_s:.1%} busy",
        )
        for label, parts_s in zip(labels, parts_of_rank_s, strict=True)
    )
    return blocks.BarChart(
        title="Time of a step by rank",
        bars=bars,
        note=f"Every bar is the step, {format_seconds(step_s)}; the bubble is fill and drain of "
        "the pipeline and ranks that wait for slower ones.",
    )


def _idle_s(parts_s: dict[str, float]) -> float:
    return parts_s["bubble"] + parts_s["transfers"]


TIME_PARTS: Final = {
    "compute": "compute",
    "recompute": "recomputation",
    "tensor": "tensor parallelism",
    "context": "context parallelism",
    "expert": "expert parallelism",
    "data": "data parallelism",
    "optimizer": "optimizer",
    "overhead": "overhead",
    "transfers": "pipeline transfers",
    "bubble": "bubble",
}


def time_parts(parts_s: dict[str, float]) -> tuple[blocks.Part, ...]:
    """The parts of a step as segments, waiting last."""
    return tuple(
        blocks.Part(
            kind=name, label=label, amount=parts_s[name], text=format_seconds(parts_s[name])
        )
        for name, label in TIME_PARTS.items()
        if name in parts_s
    )


def memory_bars(
    ranks: Iterable[tuple[int, StageMemory]], limit_bytes: float | None, *, title: str
) -> blocks.BarChart:
    """What every rank holds when it is fullest, with the limit."""
    return blocks.BarChart(
        title=title,
        bars=tuple(_memory_bar(rank, memory, limit_bytes) for rank, memory in ranks),
        limit=limit_bytes,
        limit_text=f"usable {format_bytes(limit_bytes)}" if limit_bytes else "",
    )


def memory_parts(memory: StageMemory) -> tuple[blocks.Part, ...]:
    """What a device holds at its fullest, by class."""
    held = memory.by_class
    return tuple(
        blocks.Part(kind=each.part, label=each.words, amount=amount, text=format_bytes(amount))
        for each in MEMORY_CLASSES
        if (amount := held[each.name]) > 0
    )


def _memory_bar(rank: int, memory: StageMemory, limit_bytes: float | None) -> blocks.Bar:
    is_over = limit_bytes is not None and memory.total_bytes > limit_bytes * (1 + 1e-12)
    return blocks.Bar(
        label=str(rank),
        parts=memory_parts(memory),
        total=format_bytes(memory.total_bytes) + (", over" if is_over else ""),
        is_over=is_over,
    )


def schedule_section(panel: GanttPanel, of: blocks.Gantt | PricedStep | None) -> blocks.Section:
    """Where the schedule is drawn, with what of the step lies outside it."""
    if not isinstance(of, blocks.Gantt):
        assert of is not None, "a schedule is drawn of a priced step"
        step = of.step
        after_s = step.step_time_s - step.pipeline_s
        of = blocks.Gantt(
            note=f"The pipeline takes {format_seconds(step.pipeline_s)} of the step; "
            f"{format_seconds(after_s)} after it, for synchronisation, optimizer and overhead, are "
            f"not drawn. {panel.num_bars:,} actions, simulated one by one."
        )
    return blocks.section("schedule", "Schedule and memory over time", of)


# Why a step is not faster: its largest parts, and what sets each of them
# -----------------------------------------------------------------------

_MOST_TERMS = 5


def term_table(priced: PricedStep) -> Table:
    """The largest terms, with what sets them."""
    found = priced.parts_of_rank_s[priced.busiest_rank]
    largest = sorted(found.items(), key=lambda item: -item[1])[:_MOST_TERMS]
    return table_of(
        "The largest terms",
        (
            words("term"),
            column("per step", "seconds"),
            column("of step", "share"),
            words("what sets it", "cause"),
        ),
        (
            (
                TIME_PARTS[name],
                seconds(spent_s),
                percent(spent_s / priced.step.step_time_s),
                _what_sets(name, priced),
            )
            for name, spent_s in largest
            if spent_s > 0
        ),
    )


def _what_sets(name: str, priced: PricedStep) -> str:
    step, m, rank = priced.step, priced.num_microbatches, priced.busiest_rank
    ranks = len(step.stages)
    work_s = [stage.forward_s + stage.backward_s for stage in step.stages]
    match name:
        case "compute":
            mean = sum(work_s) / ranks / max(work_s)
            even = f"; the ranks work {mean:.1%} as long on average" if ranks > 1 else ""
            return f"products and memory traffic of the layers{even}"
        case "recompute":
            repeated, layers = priced.recomputed_of_rank[rank], len(priced.layers_of_rank[rank])
            return f"{repeated} of the rank's {layers} layers repeat their forward to save memory"
        case "bubble":
            share_of_equal = (ranks - 1) / (m + ranks - 1)
            return (
                f"fill and drain of {ranks} ranks over {m} microbatches: {share_of_equal:.1%} of "
                "the pipeline under 1F1B with equal ranks"
            )
        case "transfers":
            return "what the pipeline would gain if tensors between ranks took no time"
        case "data":
            return "gradients and parameters of replicas, as far as no compute hides them"
        case "optimizer":
            return "memory traffic of the update"
        case "overhead":
            return "what every step costs once, of the installation"
        case _:
            return "collectives inside layers, as far as no compute hides them"


# What pages about one priced step share: its figures, its ranks, its schedule and its network
# --------------------------------------------------------------------------------------------


def step_figures(document: Stepped, *, peak_bytes: float | None, layout: str) -> Iterator[Figure]:
    """Columns of a comparison; `peak_bytes` is that of the fullest device."""
    step_s, tokens, mfu = document.step_time_s, document.tokens_per_s, document.mfu
    devices = document.devices_used
    yield from figures(
        ("step_time_s", "step", step_s, format_seconds(step_s or 0.0)),
        ("tokens_per_s", "tokens/s", tokens, f"{tokens or 0:,.0f}"),
        ("mfu", "MFU", mfu, f"{mfu or 0:.1%}"),
        ("peak_memory_bytes", "peak memory", peak_bytes, format_bytes(peak_bytes or 0.0)),
        ("devices_used", "devices", devices, f"{devices}"),
        ("layout", "layout", layout, layout),
    )


def step_sections(subject: Subject[ModelEstimateResult]) -> Iterator[blocks.Section]:
    """Ranks in a table and in bars, schedule, network; nothing without a step."""
    priced, limit = subject.priced, subject.document.memory_limit_bytes
    if priced is None:
        return
    yield blocks.section("plan", "The run", plan_view.rank_table(priced_rows(priced, limit)))
    held = memory_bars(
        enumerate(stage.memory for stage in priced.step.stages),
        limit,
        title="Memory of a device at its fullest, by rank",
    )
    yield blocks.section("ranks", "Time and memory of the ranks", time_bars(priced), held)
    if subject.panel is not None:
        yield schedule_section(subject.panel, priced)
    if priced.network:
        yield blocks.section("network", "Network", *network_blocks(priced))


# What a reader sees first: the verdict, what to change, where time and memory go
# -------------------------------------------------------------------------------
# A plan and an estimate answer the same first questions in the same places: whether it fits and how
# long a step takes, on what evidence; what is worth changing, each change with its price; and two
# pictures, of the step and of the memory. The schedule comes after them, all else is folded.


_FAR: Final = 0.05  # of a step: what is slower by more is marked
_NOTICED: Final = 0.002  # of a step: less imbalance is no bar of its own


def plan_verdict(document: ModelPlanResult) -> blocks.Verdict:
    """Whether a plan fits, how long its step takes, and what stands behind that."""
    if document.step_time_s is None:
        why = document.binding.description if document.binding else "no plan was found in time"
        none = str(document.status) == "infeasible"
        return blocks.Verdict(state="Nothing fits" if none else "No plan yet", said=why, tone="bad")
    if document.groups:
        room = "every kind of device" if document.fits else "not every kind of device"
        said = f"on {room}."
    else:
        rank = plan_view.fullest_rank(document)
        held = document.ranks[rank].memory_bytes
        limit = document.memory_limit_bytes or 0.0
        kept = document.request.overheads or NO_OVERHEADS
        said = _room(rank, held, limit, limit - kept.needed_bytes(held))
    low, high = document.step_time_low_s, document.step_time_high_s
    if document.fit_probability is not None:
        said += f" It {fit_line(document)}."
    if (unable := plan_view.framework_unable(document)) is not None:
        said += f" But {unable} cannot run it, as the warnings say."
    fits, fitted = document.fits is not False, plan_view.is_fitted(document)
    return blocks.Verdict(
        state="Fits" if fits else "Does not fit",
        said=f"{said} {_step(document.step_time_s, low, high, fitted=fitted)}",
        tone="good" if fits else "bad",
        evidence=evidence(document.assumptions),
    )


def estimate_verdict(document: ModelEstimateResult) -> blocks.Verdict:
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
    return blocks.Verdict(
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
    lines = (*plan_view.evidence_line(assumptions), *plan_view.unfitted_line(assumptions))
    return tuple(f"{line[:1].upper()}{line[1:]}." for line in lines)


# What is worth changing
# ----------------------


def plan_changes(subject: Subject[Any]) -> blocks.ChangeList | None:
    """The changes of a plan, each with its whole command; None where there is none."""
    document: ModelPlanResult = subject.document
    return _listed(changes_of(document), subject.command, fixes=document.step_time_s is None)


def fixing_changes(relaxations: Iterable[Relaxation], command: str) -> blocks.ChangeList | None:
    """What would each make a plan fit, with the whole command; None where nothing is known."""
    return _listed(tuple(fixes_of(relaxations)), command, fixes=True)


def estimate_changes(subject: Subject[ModelEstimateResult]) -> blocks.ChangeList | None:
    """What would make a run fit, each with its whole command; None where nothing is known."""
    document = subject.document
    rows = tuple(
        blocks.ChangeRow(
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
    return blocks.ChangeList(
        rows=rows, title="Any one of these makes it fit", against="device time"
    )


def _step_of(change: Change) -> str:
    if change.step_time_s is None:
        return ""
    return f"{'≤ ' if change.is_bound else ''}{format_seconds(change.step_time_s)}"


def _listed(found: Sequence[Change], command: str, *, fixes: bool) -> blocks.ChangeList | None:
    rows = tuple(
        blocks.ChangeRow(
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
    title, note = title_of(found, fixes=fixes), ""
    if not fixes:
        note = "Each row was found and priced. Its options, added to the command, ask for it."
    return blocks.ChangeList(rows=rows, title=title, note=note)


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
    priced: PricedStep | None, document: ModelPlanResult | ModelEstimateResult
) -> tuple[blocks.BarChart, ...]:
    """The step of the busiest rank beside that of the average rank, and the fullest device."""
    if priced is None:
        return ()
    fullest = priced.step.fullest_stage
    held = memory_bars(
        [(fullest, priced.step.stages[fullest].memory)],
        document.memory_limit_bytes,
        title=f"What the fullest device holds: rank {fullest}",
    )
    return step_bars(priced), held


def step_bars(priced: PricedStep) -> blocks.BarChart:
    """Where the step goes on the busiest rank, and on average over the ranks.

    What ranks wait for slower ones is imbalance, what the busiest waits, too, is the bubble.
    """
    step_s, busiest = priced.step.step_time_s, priced.busiest_rank
    own = priced.parts_of_rank_s[busiest]
    bars = [blocks.Bar(label="busiest", parts=time_parts(own), total=format_seconds(step_s))]
    count = len(priced.parts_of_rank_s)
    note = ""
    if count > 1:
        mean = {name: sum(parts[name] for parts in priced.parts_of_rank_s) / count for name in own}
        waits = ("bubble", "transfers")
        uneven_s = sum(mean[name] for name in waits) - sum(own[name] for name in waits)
        if uneven_s > _NOTICED * step_s:
            mean |= {name: own[name] for name in waits}
            parts = (*time_parts(mean), _imbalance(uneven_s))
            bars.append(
                blocks.Bar(label="average", parts=parts, total=f"{uneven_s / step_s:.1%} idle")
            )
            note = (
                f"The average rank waits {uneven_s / step_s:.1%} of the step for slower ones; "
                f"{sum(own[name] for name in waits) / step_s:.1%} is fill, drain and transfers."
            )
    return blocks.BarChart(
        title="Where the step goes", bars=tuple(bars), label="rank of the pipeline", note=note
    )


def _imbalance(amount_s: float) -> blocks.Part:
    text = format_seconds(amount_s)
    return blocks.Part(kind="imbalance", label="imbalance", amount=amount_s, text=text)


def first_blocks(
    verdict: blocks.Verdict,
    changes: blocks.ChangeList | None,
    pictures: tuple[blocks.BarChart, ...],
) -> Iterator[Any]:
    """The verdict over the changes, with the pictures beside them."""
    yield verdict
    if changes is not None and pictures:
        yield blocks.Beside(left=(changes,), right=pictures)
    else:
        yield from filter(None, (changes, *pictures))
