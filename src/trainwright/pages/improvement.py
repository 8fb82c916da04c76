"""The page of `improve`: a run beside the best plan, and the changes on the way there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.documents.export import PricedLayout
from trainwright.documents.improvement import (
    BestPlanRecord,
    ImprovementRecord,
    bounded_plans,
    change_table,
    changes_title,
    choice_gain,
    choice_title,
    needed_bytes,
    needed_line,
    needed_parts,
    no_choice,
    speed,
    verdict,
)
from trainwright.documents.printing import layout_line
from trainwright.documents.runs import batch_in_words
from trainwright.documents.view import Facts, Notes
from trainwright.pages.blocks import (
    Point,
    Verdict,
    card,
    plain_bars,
    section,
    time_against_memory,
)
from trainwright.pages.first_screen import evidence
from trainwright.pages.model_estimate import enough_block
from trainwright.pages.subject import Content, figures, provenance_section, reproduce_section
from trainwright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.documents.improvement import ImprovementResult
    from trainwright.documents.view import Table
    from trainwright.pages.blocks import BarChart, Card, Scatter, Section
    from trainwright.pages.subject import Figure, Subject


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
        f"{batch_in_words(run)}",
        figures=tuple(_figures(document)),
        sections=tuple(_sections(subject)),
    )


def _figures(document: ImprovementResult) -> Iterator[Figure]:
    step_s, peak = document.run.step_time_s, document.run.peak_memory_bytes
    layout = layout_line(document.request.configuration.parallelism)
    yield from figures(
        ("step_time_s", "step", step_s, format_seconds(step_s)),
        ("peak_memory_bytes", "peak memory", peak, format_bytes(peak)),
        ("layout", "layout", layout, layout),
    )


def _sections(subject: Subject[ImprovementResult]) -> Iterator[Section]:
    document = subject.document
    yield section(
        "summary",
        "The answer",
        _answer(document),
        _steps(document),
        label="Answer",
        cards=_cards(document),
    )
    blocks: list[Scatter | Facts] = []
    if document.changes:
        blocks.append(_scatter(document))
    if document.best_plan is not None:
        blocks.append(_plan(document))
    found: list[Table | Notes] = [
        change_table(document)
        if document.changes
        else Notes(lines=(f"There is {no_choice(document)}.",))
    ]
    if document.best_known_s is None:
        found.append(enough_block(document.enough))
    title = f"{changes_title(document).capitalize()}, fastest first"
    yield section("changes", title, *found)
    if blocks:
        yield section("distance", "How far it is", *blocks)
    yield provenance_section(subject, document.assumptions)
    yield reproduce_section(subject, (document.request.model, document.request.cluster))


def _answer(document: ImprovementResult) -> Verdict:
    """The change to make, what it gains, and how far the run is from the best known."""
    run, chosen, known = document.run, document.recommended, evidence(document.assumptions)
    now = f"{format_seconds(run.step_time_s)} per step"
    state, tone = ("Fits", "good") if document.run_fits else ("Does not fit", "bad")
    if chosen is None:
        best = "" if not document.run_fits else f"It takes {now}; "
        said = f"{best}{no_choice(document)}."
        return Verdict(state=state, said=said[:1].upper() + said[1:], tone=tone, evidence=known)
    then = format_seconds(chosen.step_time_s)
    if not document.run_fits:
        said = f"{chosen.options} makes it fit, {then} per step: {choice_gain(document, chosen)}."
        return Verdict(state=state, said=said, tone=tone, evidence=known)
    said = f"{chosen.options}. {then} per step instead of {format_seconds(run.step_time_s)}: "
    gain = f"{choice_gain(document, chosen)}."
    return Verdict(state="Change", said=said + gain, tone="warn", evidence=known)


def _cards(document: ImprovementResult) -> Iterator[Card]:
    run, chosen = document.run, document.recommended
    fits = "" if document.run_fits else ", if devices had the memory"
    yield card("your run", format_seconds(run.step_time_s), f"per step{fits}")
    yield card(
        "what it needs of a device",
        format_bytes(needed_bytes(document, run.peak_memory_bytes)),
        f"{verdict(document)} in the {format_bytes(document.memory_limit_bytes)} usable; "
        f"{needed_parts(document, run.peak_memory_bytes)}",
        "plain" if document.run_fits else "bad",
    )
    yield _best_card(document)
    if chosen is None:
        yield card("smallest change", "none", no_choice(document))
        return
    step, gain = format_seconds(chosen.step_time_s), choice_gain(document, chosen)
    yield card(choice_title(document), step, f"{chosen.options}: {gain}", "good")


def _best_card(document: ImprovementResult) -> Card:
    plan, best_s = document.best_plan, document.best_known_s
    bound = ""
    if document.lower_bound_s is not None:
        floor = format_seconds(document.lower_bound_s)
        bound = f"; {bounded_plans(document)} takes less than {floor}"
    if plan is not None:
        gain = speed(document, plan.speedup)
        return card("best plan", format_seconds(plan.step_time_s), gain + bound)
    if best_s is None:
        return card("best plan", "none was found that fits", tone="warn")
    known = "your run" if not document.changes else document.changes[0].options
    return card("best known", format_seconds(best_s), known + bound)


def _steps(document: ImprovementResult) -> BarChart:
    steps = [("your run", document.run.step_time_s)]
    if document.changes:
        steps.append(("fastest change", document.changes[0].step_time_s))
    if document.recommended not in (None, *document.changes[:1]):
        assert document.recommended is not None
        steps.append(("smallest change", document.recommended.step_time_s))
    if document.best_plan is not None:
        steps.append(("best plan", document.best_plan.step_time_s))
    first_s = document.run.step_time_s
    rows = ((name, s, format_seconds(s), f"{s / first_s:.3g}×") for name, s in steps)
    return plain_bars("Step time", "run", rows)


def _scatter(document: ImprovementResult) -> Scatter:
    run = document.run
    points = [_point(document, "your run", run, is_winner=True)]
    points += [_point(document, one.options, one) for one in document.changes]
    if (plan := document.best_plan) is not None:
        points.append(_point(document, "best plan", plan))
    made = time_against_memory(
        points, limit_bytes=document.memory_limit_bytes, winner_text="your run"
    )
    return replace(
        made,
        title="Step time against the memory that is needed",
        y_title="needed of the fullest device, overheads included, GiB",
    )


def _point(
    document: ImprovementResult,
    name: str,
    one: PricedLayout | ImprovementRecord | BestPlanRecord,
    *,
    is_winner: bool = False,
) -> Point:
    needed = needed_bytes(document, one.peak_memory_bytes)
    facts = [
        ("step", format_seconds(one.step_time_s)),
        ("needed", format_bytes(needed)),
        ("peak memory", format_bytes(one.peak_memory_bytes)),
    ]
    if not isinstance(one, PricedLayout):
        facts.append(("speed", f"{one.speedup - 1:+.1%}"))
    if isinstance(one, ImprovementRecord) and one.gain_share is not None:
        facts.append(("of the gain", f"{one.gain_share:.0%}"))
    return Point(
        name=name,
        x=one.step_time_s,
        y=needed,
        x_text=format_seconds(one.step_time_s),
        y_text=format_bytes(needed),
        facts=tuple(facts),
        is_winner=is_winner,
    )


def _plan(document: ImprovementResult) -> Facts:
    plan = document.best_plan
    assert plan is not None, "asked for where there is one"
    layers = sum(len(stage.layers) for stage in plan.stages)
    return Facts(
        title="The best plan",
        rows=(
            ("layout", layout_line(plan.parallelism)),
            *((("kernels to add", plan.options),) if plan.options else ()),
            ("microbatch", str(plan.micro_batch)),
            ("schedule", plan.schedule),
            ("layers of each stage", ", ".join(str(len(stage.layers)) for stage in plan.stages)),
            ("layers recomputed", f"{plan.num_recomputed} of {layers}"),
            ("memory", needed_line(document, plan.peak_memory_bytes)),
        ),
    )
