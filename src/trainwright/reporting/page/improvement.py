"""The page of `improve`: a run beside the best plan, and the changes on the way there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.reporting.layout import layout_line
from trainwright.reporting.page.blocks import (
    Bar,
    BarChart,
    Card,
    Cell,
    Column,
    Facts,
    Notes,
    Part,
    Point,
    Scatter,
    Section,
    Table,
)
from trainwright.reporting.page.cells import seconds, share, size
from trainwright.reporting.page.provenance import provenance_section, reproduce_section
from trainwright.reporting.page.scatter import time_against_memory
from trainwright.reporting.page.subject import Content, Figure
from trainwright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.plan.results.improvement import ImprovementRecord, ImprovementResult
    from trainwright.reporting.page.subject import Subject


def improvement_content(subject: Subject[ImprovementResult]) -> Content:
    """Everything the page says about a run and its neighbours."""
    document = subject.document
    request = document.request
    run = request.configuration
    target = "" if document.framework is None else f" for {document.framework}"
    return Content(
        title=f"What would improve {request.model.name} on {request.cluster.name}",
        subtitle=f"Changes of one or two decisions{target}, from {layout_line(run.parallelism)}, "
        f"microbatch {run.microbatch_size}, schedule {run.schedule}, recompute {run.recompute} · "
        f"{run.global_batch:,} sequences of {run.sequence_length:,} tokens per step",
        figures=tuple(_figures(document)),
        sections=tuple(_sections(subject)),
    )


def _figures(document: ImprovementResult) -> Iterator[Figure]:
    step_s, peak = document.run.step_time_s, document.run.peak_memory_bytes
    yield Figure(key="step_time_s", title="step", value=step_s, text=format_seconds(step_s))
    yield Figure(key="peak_memory_bytes", title="peak memory", value=peak, text=format_bytes(peak))
    layout = layout_line(document.request.configuration.parallelism)
    yield Figure(key="layout", title="layout", value=layout, text=layout)


def _sections(subject: Subject[ImprovementResult]) -> Iterator[Section]:
    document = subject.document
    yield Section(name="summary", label="Summary", title="Summary", cards=tuple(_cards(document)))
    blocks: list[BarChart | Scatter | Facts | Notes] = [_steps(document)]
    if document.changes:
        blocks.append(_scatter(document))
    if document.best_plan is not None:
        blocks.append(_plan(document))
    yield Section(name="distance", label="Distance", title="How far it is", blocks=tuple(blocks))
    found: tuple[Table | Notes, ...] = (
        (_changes(document),)
        if document.changes
        else (Notes(lines=("No change of one or two decisions is faster.",)),)
    )
    yield Section(
        name="changes", label="Changes", title="Changes that fit and are faster", blocks=found
    )
    yield provenance_section(subject, document.assumptions)
    yield reproduce_section(subject, (document.request.model, document.request.cluster))


def _cards(document: ImprovementResult) -> Iterator[Card]:
    run, limit = document.run, document.memory_limit_bytes
    yield Card(label="your run", value=format_seconds(run.step_time_s), note="per step")
    yield Card(
        label="its peak memory",
        value=format_bytes(run.peak_memory_bytes),
        note=f"of {format_bytes(limit)}: {'fits' if document.run_fits else 'does not fit'}",
        tone="plain" if document.run_fits else "bad",
    )
    plan, chosen = document.best_plan, document.recommended
    if plan is None:
        yield Card(label="best plan", value="none was found", tone="warn")
    else:
        yield Card(
            label="best plan",
            value=format_seconds(plan.step_time_s),
            note=f"{plan.speedup - 1:+.1%} speed; no plan takes less than "
            f"{format_seconds(plan.lower_bound_s)}",
        )
    if chosen is None:
        yield Card(label="smallest change", value="none", note="no small change is faster")
        return
    yield Card(
        label="smallest change with most of the gain",
        value=f"{chosen.speedup - 1:+.1%} speed",
        note=f"{chosen.options}: {format_seconds(chosen.step_time_s)}, "
        f"{chosen.gain_share:.0%} of the gain",
        tone="good",
    )


def _steps(document: ImprovementResult) -> BarChart:
    steps = [("your run", document.run.step_time_s)]
    if document.recommended is not None:
        steps.append(("smallest change", document.recommended.step_time_s))
    if document.best_plan is not None:
        steps.append(("best plan", document.best_plan.step_time_s))
    first_s = document.run.step_time_s
    bars = tuple(
        Bar(
            label=name,
            parts=(Part(kind="plain", label="step", amount=time_s, text=format_seconds(time_s)),),
            total=f"{time_s / first_s:.3g}×",
        )
        for name, time_s in steps
    )
    return BarChart(title="Step time", bars=bars, label="run")


def _scatter(document: ImprovementResult) -> Scatter:
    run = document.run
    points = [_point("your run", run.step_time_s, run.peak_memory_bytes, is_winner=True)]
    points += [
        _point(one.options, one.step_time_s, one.peak_memory_bytes, change=one)
        for one in document.changes
    ]
    if (plan := document.best_plan) is not None:
        points.append(_point("best plan", plan.step_time_s, plan.peak_memory_bytes))
    return time_against_memory(
        points, limit_bytes=document.memory_limit_bytes, winner_text="your run"
    )


def _point(
    name: str,
    step_s: float,
    peak_bytes: float,
    *,
    change: ImprovementRecord | None = None,
    is_winner: bool = False,
) -> Point:
    facts = [("step", format_seconds(step_s)), ("peak memory", format_bytes(peak_bytes))]
    if change is not None:
        facts.append(("speed", f"{change.speedup - 1:+.1%}"))
        facts.append(("of the gain", f"{change.gain_share:.0%}"))
    return Point(
        name=name,
        x=step_s,
        y=peak_bytes,
        x_text=format_seconds(step_s),
        y_text=format_bytes(peak_bytes),
        facts=tuple(facts),
        is_winner=is_winner,
    )


def _plan(document: ImprovementResult) -> Facts:
    plan = document.best_plan
    assert plan is not None, "asked for where there is one"
    degrees = layout_line(plan.parallelism) if plan.parallelism else "degrees per stage"
    return Facts(
        title="The best plan",
        rows=(
            ("layout", degrees),
            ("microbatch", str(plan.micro_batch or "")),
            ("schedule", plan.schedule or ""),
            ("layers recomputed", str(plan.num_recomputed)),
            ("peak memory", format_bytes(plan.peak_memory_bytes)),
        ),
    )


def _changes(document: ImprovementResult) -> Table:
    chosen = document.recommended
    options = None if chosen is None else chosen.options
    return Table(
        title="Changes",
        columns=(
            Column(title="change", key="options", is_number=False),
            Column(title="decisions", key="decisions"),
            Column(title="step", key="step_time_s"),
            Column(title="speed", key="faster"),
            Column(title="of the gain", key="gain_share"),
            Column(title="peak memory", key="peak_memory_bytes"),
        ),
        rows=tuple(
            (
                Cell.of(one.options),
                Cell.of(len(one.dimensions)),
                seconds(one.step_time_s),
                Cell(text=f"{one.speedup - 1:+.1%}", value=one.speedup - 1),
                share(one.gain_share, digits=0),
                size(one.peak_memory_bytes),
            )
            for one in document.changes
        ),
        marked=frozenset(at for at, one in enumerate(document.changes) if one.options == options),
        note="Options are written as trainwright estimate takes them. The marked row is the "
        "smallest change that gets most of the gain.",
    )
