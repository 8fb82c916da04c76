"""The page of a model's estimate: one stated run, its step and its memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from trainwright.documents import improvement, model_estimate
from trainwright.documents.fit import FitResult, figure_table, fit_basis, fit_table
from trainwright.documents.jobs import PricedLayout
from trainwright.documents.model_summary import ModelSummary, model_summary_report
from trainwright.documents.plan_view import use_of_pools
from trainwright.documents.printing import layout_line
from trainwright.documents.runs import batch_in_words
from trainwright.documents.sweep import (
    ModelSweepResult,
    SweepRow,
    objective_figure,
    row_table,
    training_table,
    words_of_setting,
)
from trainwright.documents.view import Facts, Notes, Table
from trainwright.pages.blocks import (
    BarChart,
    Card,
    Part,
    Point,
    Scatter,
    Section,
    Verdict,
    card,
    folded,
    lay_out_areas,
    plain_bars,
    section,
    time_against_memory,
)
from trainwright.pages.model_plan import cost_cards, model_plan_content, waiting_card
from trainwright.pages.step import (
    estimate_changes,
    estimate_verdict,
    evidence,
    first_blocks,
    first_pictures,
    step_figures,
    step_sections,
    term_table,
)
from trainwright.pages.subject import (
    Content,
    Figure,
    Subject,
    figures,
    provenance_section,
    reproduce_section,
)
from trainwright.plans.status import OPTIMAL_TOLERANCE
from trainwright.units import (
    format_bytes,
    format_count,
    format_part,
    format_percent_up,
    format_seconds,
)


def model_estimate_content(subject: Subject[model_estimate.ModelEstimateResult]) -> Content:
    """Everything the page says about an estimate; on several pools, about the plan it prices."""
    document = subject.document
    if document.plan is not None:
        return model_plan_content(replace(subject, document=document.plan))  # type: ignore[arg-type]
    request, run = document.request, document.request.configuration
    devices = format_count(document.devices_used, "device")
    batches = format_count(document.num_microbatches, "microbatch")
    subtitle = (
        f"Estimate · {layout_line(run.parallelism)} · {batches} of "
        f"{run.microbatch_size}, schedule {run.schedule}, recompute {run.recompute} · "
        f"{batch_in_words(run)}"
    )
    return Content(
        title=f"{request.model.name} on {devices} of {request.cluster.name}",
        subtitle=subtitle,
        figures=tuple(
            step_figures(
                document,
                peak_bytes=document.peak_memory_bytes,
                layout=layout_line(run.parallelism),
            )
        ),
        sections=tuple(_sections(subject)),
    )


def _sections(subject: Subject[model_estimate.ModelEstimateResult]) -> Iterator[Section]:
    document, priced = subject.document, subject.priced
    pictures = first_pictures(priced, document)
    if not document.fits:  # memory is the question
        pictures = pictures[::-1]
    first = first_blocks(estimate_verdict(document), estimate_changes(subject), pictures)
    yield section("summary", "The answer", *first, label="Answer", cards=_cards(document))
    if document.changes == () and not document.fits:
        yield section("changes", "What would make it fit", enough_block(()))
    steps = tuple(step_sections(subject))
    yield from (each for each in steps if each.name == "schedule")
    if priced is not None:
        why: tuple[object, ...] = (
            term_table(priced),
            _facts(document),
            model_estimate.communication_table(document),
        )
        why += tuple(filter(None, [figure_table(document)]))
        yield folded(section("why", "Why it is not faster", *why))
    yield from (folded(each) for each in steps if each.name != "schedule")
    yield provenance_section(subject, document.assumptions)
    inputs = (document.request.model, document.request.cluster)
    yield reproduce_section(subject, inputs)


def _cards(document: model_estimate.ModelEstimateResult) -> Iterator[Card]:
    if document.tokens_per_s is not None:
        per_device = f"{document.tokens_per_s_per_device or 0.0:,.0f} per device"
        yield card("tokens per second", f"{document.tokens_per_s:,.0f}", per_device)
    if document.mfu is not None:
        yield card("MFU", f"{document.mfu:.1%}", f"with recomputation {document.hfu or 0.0:.1%}")
    yield waiting_card(document.bubble_of_makespan)
    yield from cost_cards(document.tokens_per_s, document.devices_used)


def _facts(document: model_estimate.ModelEstimateResult) -> Facts:
    exposed_s = sum(document.exposed_communication_s.values())
    hidden_s = sum(document.hidden_communication_s.values())
    rows = (
        ("pipeline", format_seconds(document.pipeline_s)),
        ("communication exposed", format_part(exposed_s, document.step_time_s)),
        ("communication hidden", format_part(hidden_s, document.step_time_s)),
        ("optimizer", format_seconds(document.optimizer_s)),
    )
    return Facts(title="The step", rows=rows)


def enough_block(changes: Sequence[model_estimate.PricedChange]) -> Table | Notes:
    """Changes of a run that make it fit, or that there is none."""
    if changes:
        return model_estimate.enough_table(changes)
    return Notes(lines=(f"{model_estimate.NONE_ENOUGH.capitalize()}.",), tone="bad")


# The page of a model's plans on several numbers of devices: the rows, then the preferred plan
# --------------------------------------------------------------------------------------------


def model_sweep_content(subject: Subject[ModelSweepResult]) -> Content:
    """The rows, and everything the page says about the best of them."""
    document = subject.document
    sizes = ", ".join(str(row.devices) for row in document.rows) + " devices"
    if document.swept:
        each = (f"{flag} {', '.join(values)}" for flag, values in document.values_swept)
        sizes = "; ".join(each)
    best = "no plan" if document.best is None else _name(document.rows[document.best])
    return Content(
        title=f"{document.request.model.name} on {document.cluster_in_words}: {best}",
        subtitle=f"Best by {document.objective} of {sizes}",
        figures=_figures(subject),
        sections=tuple(_sections_of_model_sweep(subject)),
    )


def _figures(subject: Subject[ModelSweepResult]) -> tuple[Figure, ...]:
    best = _best_content(subject)
    return () if best is None else best.figures


def _best_content(subject: Subject[ModelSweepResult]) -> Content | None:
    plan = subject.document.best_plan
    return None if plan is None else model_plan_content(replace(subject, document=plan))  # type: ignore[arg-type]


def _sections_of_model_sweep(subject: Subject[ModelSweepResult]) -> Iterator[Section]:
    document = subject.document
    blocks: list[Verdict | Table | BarChart | Notes] = [_answer(document)]
    planned = [row for row in document.rows if row.tokens_per_s]
    if planned:
        blocks.append(_throughput(planned, document.swept))
    blocks.append(row_table(document))
    if document.training.tokens is not None:
        blocks.append(training_table(document))
    reasons = tuple(f"{_name(row)}: {row.reason}" for row in document.rows if row.reason)
    if reasons:
        blocks.append(Notes(title="Without a plan", lines=reasons))
    yield section(
        "sizes", "The answer", *blocks, label="Answer", cards=_cards_of_model_sweep(document)
    )
    best = _best_content(subject)
    if best is None:
        yield provenance_section(subject, {})
        yield reproduce_section(subject, (document.request.model,))
        return
    assert document.best is not None, "a plan of the best row"
    first, *rest = best.sections
    title = f"The best plan: {_name(document.rows[document.best])}"
    yield replace(first, title=title, label="Best plan")
    yield from rest


def _answer(document: ModelSweepResult) -> Verdict:
    """Which setting is best, and what it reaches."""
    count = f"{len(document.rows)} settings"
    if not document.swept:
        count = f"{len(document.rows)} numbers of devices"
    if document.best is None or document.best_plan is None:
        return Verdict(state="No plan", said=f"none was found for {count}.", tone="bad")
    row = document.rows[document.best]
    said = (
        f"the best of {count} by {document.objective}: {format_seconds(row.step_time_s or 0.0)} "
        f"per step, {row.tokens_per_s or 0.0:,.0f} tokens per second, "
        f"{row.tokens_per_s_per_device or 0.0:,.0f} per device."
    )
    known = evidence(document.best_plan.assumptions)
    return Verdict(state=_name(row), said=said, tone="good", evidence=known)


def _cards_of_model_sweep(document: ModelSweepResult) -> Iterator[Card]:
    if document.best is None:
        yield card("status", str(document.status), tone="bad")
        return
    row = document.rows[document.best]
    yield card("preferred", _name(row), f"by {document.objective}")
    yield card(
        "tokens per second and device",
        f"{row.tokens_per_s_per_device or 0:,.0f}",
        f"{row.tokens_per_s or 0:,.0f} in all",
    )
    if document.gap is not None and document.objective_bound is not None:
        bound = objective_figure(document.objective, document.objective_bound)
        least = f"{document.devices_from} to {document.rows[-1].devices} devices"
        is_open = document.gap > OPTIMAL_TOLERANCE
        value = f"≤ {format_percent_up(document.gap)}" if is_open else "proved"
        yield card("optimality gap", value, f"bound of all on {least}: {bound}")
    if row.train_s is not None:
        days = f"{row.train_s / 86_400:,.1f} days"
        yield card("training", days, "failures and checkpoints included")
    if row.cost is not None:
        yield card("cost", f"{row.cost:,.0f}", "of the whole training")


def _name(row: SweepRow) -> str:
    return words_of_setting(row.settings, row.devices)


def _throughput(planned: list[SweepRow], swept: tuple[str, ...]) -> BarChart:
    rows = (
        (
            ", ".join((row.settings or {}).values()) or str(row.devices),
            row.tokens_per_s or 0.0,
            f"{row.tokens_per_s or 0:,.0f}",
            f"step {format_seconds(row.step_time_s or 0.0)}",
        )
        for row in planned
    )
    by = ", ".join(swept) or "devices"
    return plain_bars(f"Tokens per second by {by}", by, rows, what="tokens per second")


# The pages of what a model is, and of what fits on devices
# ---------------------------------------------------------


def fit_content(subject: Subject[FitResult]) -> Content:
    """Everything the page says about what fits."""
    document = subject.document
    request = document.request
    devices = format_count(request.num_devices, "device")
    longest = max((row.longest_sequence for row in document.rows if row.fits), default=0)
    return Content(
        title=f"{request.model.name} on {devices} of {request.cluster.name}",
        subtitle=f"What trains there, with sequences of {request.sequence_length:,} tokens",
        figures=tuple(
            figures(
                ("fits", "ways that fit", sum(row.fits for row in document.rows), ""),
                ("longest_sequence", "longest sequence", longest, f"{longest:,}"),
            )
        ),
        sections=tuple(_sections_of_fit(subject)),
    )


def _sections_of_fit(subject: Subject[FitResult]) -> Iterator[Section]:
    document = subject.document
    basis = fit_basis(document)
    blocks = (
        _answer_of_fit(document),
        fit_table(document),
        Notes(lines=(f"{basis[:1].upper()}{basis[1:]}.",)),
    )
    yield section("table", "The answer", *blocks, label="Answer", cards=_cards_of_fit(document))
    yield reproduce_section(subject, (document.request.model, document.request.cluster))


def _answer_of_fit(document: FitResult) -> Verdict:
    """What trains, the first way in full, and what does not."""
    room = format_bytes(document.device_memory_bytes)
    tight = [row.way for row in document.rows if not row.fits]
    lacking = f" Not: {', '.join(tight)}." if tight else ""
    row = next((each for each in document.rows if each.fits), None)
    if row is None:
        return Verdict(state="Nothing fits", said=f"{room} on a device.{lacking}", tone="bad")
    said = (
        f"{row.way} trains at {row.tokens_per_s:,.0f} tokens per second, with "
        f"{format_bytes(row.device_bytes)} of {room} on a device and sequences of up to "
        f"{row.longest_sequence:,} tokens.{lacking}"
    )
    return Verdict(state="Fits", said=said, tone="good")


def _cards_of_fit(document: FitResult) -> Iterator[Card]:
    for row in document.rows:
        needed = format_bytes(row.device_bytes)
        longest = f"up to {row.longest_sequence:,} tokens a sequence"
        yield card(
            row.way,
            "fits" if row.fits else "does not fit",
            f"{needed} on a device" + (f", {longest}" if row.fits else ""),
            "good" if row.fits else "bad",
        )


# What a model is
# ---------------

_PART_COLORS: Final = (
    "arrays",
    "lanes",
    "global",
    "array-buffers",
    "recompute",
    "workspace",
    "opaque",
)


def model_content(subject: Subject[ModelSummary]) -> Content:
    """Everything the page says about a model."""
    document = subject.document
    total, active = document.parameters_total, document.parameters_active
    return Content(
        title=f"{document.name}: what it is",
        subtitle=f"{document.model_type}, counted by {document.counted_by}",
        figures=tuple(
            figures(
                ("parameters_total", "parameters", total, f"{total:,}"),
                ("parameters_active", "active", active, f"{active:,}"),
            )
        ),
        sections=tuple(_model_sections(subject)),
    )


def _model_sections(subject: Subject[ModelSummary]) -> Iterator[Section]:
    document = subject.document
    first, *lines = model_summary_report(document)
    said = str(first).partition(": ")[2]
    tables = [each for each in lines if isinstance(each, Table)]
    inside = [part for part in document.parts if part.name != "mtp"]  # which stands beside them
    areas = tuple(
        Part(
            kind=_PART_COLORS[min(at, len(_PART_COLORS) - 1)],
            label=part.name,
            amount=part.parameters,
            text=f"{part.parameters:,} ({part.parameters / document.parameters_total:.1%})",
        )
        for at, part in enumerate(sorted(inside, key=lambda each: -each.parameters))
    )
    yield section(
        "summary",
        "The answer",
        Verdict(state=document.name, said=f"{said}.", tone="plain"),
        lay_out_areas(areas, title="Where the parameters are"),
        label="Answer",
        cards=_model_cards(document),
    )
    yield section("made-of", "What it is made of", *tables, label="Made of")
    limits = tuple(each for each in lines if isinstance(each, str))
    yield section("limits", "What it costs, and how it is cut", Notes(lines=limits), label="Limits")
    yield reproduce_section(subject)


def _model_cards(document: ModelSummary) -> Iterator[Card]:
    forward = document.flops_forward_per_token
    note = f"forward, at {document.sequence_length:,} tokens"
    yield card("FLOPs per token", f"{forward / 1e9:,.4g} G", note)
    if document.cache_bytes is not None:
        note = f"of one sequence of {document.sequence_length:,} tokens, 16 bit"
        yield card("cache", format_bytes(document.cache_bytes), note)
    yield card("layers", f"{sum(each.count for each in document.layers):,}")


# The page of `improve`: a run beside the best plan, and the changes on the way there
# -----------------------------------------------------------------------------------


def improvement_content(subject: Subject[improvement.ImprovementResult]) -> Content:
    """Everything the page says about a run and its neighbours."""
    document = subject.document
    request = document.request
    cluster = "?" if request.cluster is None else request.cluster.name
    target = "" if document.framework is None else f" for {document.framework}"
    return Content(
        title=f"What would improve {request.model.name} on {cluster}",
        subtitle=f"Changes of one or two decisions{target}, from {_run_in_words(document)}",
        figures=tuple(_figures_of_improvement(document)),
        sections=tuple(_sections_of_improvement(subject)),
    )


def _run_in_words(document: improvement.ImprovementResult) -> str:
    """The layout, the microbatch and the schedule; what a step trains on where that was stated."""
    plan = document.plan
    if plan is not None:
        words = f"{_layout_of(document)}, microbatch {plan.micro_batch}, schedule {plan.schedule}"
        return f"{use_of_pools(plan)}{words}"
    run = document.configuration
    words = f"{_layout_of(document)}, microbatch {run.microbatch_size}, schedule {run.schedule}"
    return f"{words}, recompute {run.recompute} · {batch_in_words(run)}"


def _layout_of(document: improvement.ImprovementResult) -> str:
    degrees = document.plan.parallelism if document.plan else document.configuration.parallelism
    return "" if degrees is None else layout_line(degrees)


def _figures_of_improvement(document: improvement.ImprovementResult) -> Iterator[Figure]:
    step_s, peak = document.run.step_time_s, document.run.peak_memory_bytes
    layout = _layout_of(document)
    yield from figures(
        ("step_time_s", "step", step_s, format_seconds(step_s)),
        ("peak_memory_bytes", "peak memory", peak, format_bytes(peak)),
        ("layout", "layout", layout, layout),
    )


def _sections_of_improvement(subject: Subject[improvement.ImprovementResult]) -> Iterator[Section]:
    document = subject.document
    yield section(
        "summary",
        "The answer",
        _answer_of_improvement(document),
        _steps(document),
        label="Answer",
        cards=_cards_of_improvement(document),
    )
    blocks: list[Scatter | Facts] = []
    if document.changes:
        blocks.append(_scatter(document))
    if document.best_plan is not None:
        blocks.append(_plan(document))
    found: list[Table | Notes] = [
        improvement.change_table(document)
        if document.changes
        else Notes(lines=(f"There is {improvement.no_choice(document)}.",))
    ]
    if document.best_known_s is None:
        found.append(enough_block(document.enough))
    title = f"{improvement.changes_title(document).capitalize()}, fastest first"
    yield section("changes", title, *found)
    if blocks:
        yield section("distance", "How far it is", *blocks)
    yield provenance_section(subject, document.assumptions)
    inputs = (document.request.model, document.request.cluster)
    yield reproduce_section(subject, tuple(filter(None, inputs)))


def _answer_of_improvement(document: improvement.ImprovementResult) -> Verdict:
    """The change to make, what it gains, and how far the run is from the best known."""
    run, chosen, known = document.run, document.recommended, evidence(document.assumptions)
    now = f"{format_seconds(run.step_time_s)} per step"
    state, tone = ("Fits", "good") if document.run_fits else ("Does not fit", "bad")
    if chosen is None:
        best = "" if not document.run_fits else f"It takes {now}; "
        said = f"{best}{improvement.no_choice(document)}."
        return Verdict(state=state, said=said[:1].upper() + said[1:], tone=tone, evidence=known)
    then = format_seconds(chosen.step_time_s)
    if not document.run_fits:
        gain = improvement.choice_gain(document, chosen)
        said = f"{chosen.options} makes it fit, {then} per step: {gain}."
        return Verdict(state=state, said=said, tone=tone, evidence=known)
    said = f"{chosen.options}. {then} per step instead of {format_seconds(run.step_time_s)}: "
    gain = f"{improvement.choice_gain(document, chosen)}."
    return Verdict(state="Change", said=said + gain, tone="warn", evidence=known)


def _cards_of_improvement(document: improvement.ImprovementResult) -> Iterator[Card]:
    run, chosen = document.run, document.recommended
    fits = "" if document.run_fits else ", if devices had the memory"
    yield card("your run", format_seconds(run.step_time_s), f"per step{fits}")
    yield card(
        "what it needs of a device",
        format_bytes(improvement.needed_bytes(document, run.peak_memory_bytes)),
        f"{improvement.verdict(document)} in the {format_bytes(document.memory_limit_bytes)} "
        "usable; "
        f"{improvement.needed_parts(document, run.peak_memory_bytes)}",
        "plain" if document.run_fits else "bad",
    )
    yield _best_card(document)
    if chosen is None:
        yield card("smallest change", "none", improvement.no_choice(document))
        return
    step, gain = format_seconds(chosen.step_time_s), improvement.choice_gain(document, chosen)
    yield card(improvement.choice_title(document), step, f"{chosen.options}: {gain}", "good")


def _best_card(document: improvement.ImprovementResult) -> Card:
    plan, best_s = document.best_plan, document.best_known_s
    bound = ""
    if document.lower_bound_s is not None:
        floor = format_seconds(document.lower_bound_s)
        bound = f"; {improvement.bounded_plans(document)} takes less than {floor}"
    if document.planned is not None and document.planned.step_time_s:
        step_s = document.planned.step_time_s
        gain = improvement.speed(document, document.run.step_time_s / step_s)
        return card("best plan", format_seconds(step_s), gain + bound)
    if plan is not None:
        gain = improvement.speed(document, plan.speedup)
        return card("best plan", format_seconds(plan.step_time_s), gain + bound)
    if best_s is None:
        return card("best plan", "none was found that fits", tone="warn")
    known = "your run" if not document.changes else document.changes[0].options
    return card("best known", format_seconds(best_s), known + bound)


def _steps(document: improvement.ImprovementResult) -> BarChart:
    steps = [("your run", document.run.step_time_s)]
    if document.changes:
        steps.append(("fastest change", document.changes[0].step_time_s))
    if document.recommended not in (None, *document.changes[:1]):
        assert document.recommended is not None
        steps.append(("smallest change", document.recommended.step_time_s))
    best = document.best_plan or document.planned
    if best is not None and best.step_time_s is not None:
        steps.append(("best plan", best.step_time_s))
    first_s = document.run.step_time_s
    rows = ((name, s, format_seconds(s), f"{s / first_s:.3g}×") for name, s in steps)
    return plain_bars("Step time", "run", rows)


def _scatter(document: improvement.ImprovementResult) -> Scatter:
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
    document: improvement.ImprovementResult,
    name: str,
    one: PricedLayout | improvement.ImprovementRecord | improvement.BestPlanRecord,
    *,
    is_winner: bool = False,
) -> Point:
    needed = improvement.needed_bytes(document, one.peak_memory_bytes)
    facts = [
        ("step", format_seconds(one.step_time_s)),
        ("needed", format_bytes(needed)),
        ("peak memory", format_bytes(one.peak_memory_bytes)),
    ]
    if not isinstance(one, PricedLayout):
        facts.append(("speed", f"{one.speedup - 1:+.1%}"))
    if isinstance(one, improvement.ImprovementRecord) and one.gain_share is not None:
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


def _plan(document: improvement.ImprovementResult) -> Facts:
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
            ("memory", improvement.needed_line(document, plan.peak_memory_bytes)),
        ),
    )
