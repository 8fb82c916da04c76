"""The page of `validate`: how far predictions are from measured runs, file by file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from trainwright.documents import validation, verification
from trainwright.documents.printing import counted
from trainwright.documents.view import Notes, Table, table_of, words
from trainwright.pages.blocks import (
    BarChart,
    Card,
    Point,
    Scatter,
    Section,
    Verdict,
    card,
    folded,
    lay_out_agreement,
    plain_bars,
    section,
)
from trainwright.pages.subject import (
    Content,
    Figure,
    Subject,
    provenance_section,
    reproduce_section,
)
from trainwright.units import format_seconds

_MOST_RUNS: Final = 500  # in the table, those with the largest error of time first


def validation_content(subject: Subject[validation.ValidationResult]) -> Content:
    """Everything the page says about predictions beside measurements."""
    document = subject.document
    rows = sum(dataset.rows for dataset in document.datasets)
    modelled = sum(dataset.modelled for dataset in document.datasets)
    return Content(
        title="Predictions beside measured runs",
        subtitle=f"{counted(len(document.datasets), 'file')}, "
        f"{modelled:,} of {rows:,} rows modelled",
        figures=tuple(_figures(document)),
        sections=tuple(_sections(subject)),
    )


def _figures(document: validation.ValidationResult) -> Iterator[Figure]:
    for dataset in document.datasets:
        if dataset.time is not None:
            value = dataset.time.mape
            key = f"time_mape_{dataset.name}"
            yield Figure(key=key, title=f"{dataset.name}, time", value=value, text=f"{value:.1%}")


def _sections(subject: Subject[validation.ValidationResult]) -> Iterator[Section]:
    document = subject.document
    first = (*_answer(document), *_agreement(document))
    yield section("summary", "The answer", *first, label="Answer", cards=_cards(document))
    errors = (*_error_bars(document), validation.error_table(document))
    yield section("errors", "How far predictions are off", *errors)
    if validation.is_ranked(document):
        ranked = (validation.ranking_table(document), validation.interval_table(document))
        yield section("ranking", "Which layout is faster, and how sure", *ranked)
    else:
        title = "How sure predictions are"
        yield section("ranking", title, validation.interval_table(document), label="Ranges")
    if any(dataset.runs for dataset in document.datasets):
        yield folded(
            section("runs", "Run by run", validation.rows_table(document, most=_MOST_RUNS))
        )
    if any(dataset.skipped for dataset in document.datasets):
        left_out = validation.skipped_table(document)
        yield folded(section("skipped", "Not modelled", left_out, label="Not modelled"))
    stated = {"measured runs": document.folder, "layer times": document.profiles or "none"}
    yield provenance_section(subject, stated)
    yield reproduce_section(subject)


def _timed(document: validation.ValidationResult) -> tuple[int, float]:
    """Configurations with a measured step, and the mean relative error of theirs."""
    timed = [d.time for d in document.datasets if d.time is not None]
    runs = sum(record.n for record in timed)
    return runs, sum(record.mape * record.n for record in timed) / (runs or 1)


def _answer(document: validation.ValidationResult) -> Iterator[Verdict]:
    """How far step times are off, and how often their ranges hold."""
    runs, mean = _timed(document)
    if not runs:
        return
    said = f"step times on average, over {counted(runs, 'configuration')}."
    if (inside := document.pooled_interval_coverage) is not None:
        said += f" {inside:.1%} of measured times lie within their range, which promises 90%."
    if (regret := document.pooled_top1_regret) is not None:
        said += f" Choosing layouts by prediction loses {regret.mean:.1%} against the fastest."
    yield Verdict(state=f"{mean:.1%} off", said=said, tone="plain")


def _cards(document: validation.ValidationResult) -> Iterator[Card]:
    runs, mean = _timed(document)
    if runs:
        note = f"mean over {counted(runs, 'configuration')}"
        yield card("error of step times", f"{mean:.1%}", note)
    if document.pooled_interval_coverage is not None:
        inside = f"{document.pooled_interval_coverage:.1%}"
        yield card("in the 90% range", inside, "of measured times, all files")
    if (regret := document.pooled_top1_regret) is not None:
        note = f"than the fastest layout on average; at most {regret.max:.1%}"
        yield card("slower by choosing", f"{regret.mean:.1%}", note)
    skipped = sum(one.rows for dataset in document.datasets for one in dataset.skipped)
    yield card("not modelled", f"{skipped:,}", "rows, each with its reason")


def _agreement(document: validation.ValidationResult) -> Iterator[Scatter]:
    """Predicted against measured steps, those with the largest errors of many."""
    runs = [
        (abs(run.step_time_s / run.measured_step_time_s - 1), dataset.name, run)
        for dataset in document.datasets
        for run in dataset.runs
        if run.step_time_s and run.measured_step_time_s
    ]
    worst = sorted(runs, key=lambda each: -each[0])[:_MOST_RUNS]
    points = [
        Point(
            name=f"{name}: {run.row_id}",
            x=run.measured_step_time_s or 0.0,
            y=run.step_time_s or 0.0,
            x_text=format_seconds(run.measured_step_time_s or 0.0),
            y_text=format_seconds(run.step_time_s or 0.0),
            facts=(
                ("measured", format_seconds(run.measured_step_time_s or 0.0)),
                ("predicted", format_seconds(run.step_time_s or 0.0)),
                ("off", f"{(run.step_time_s or 0) / (run.measured_step_time_s or 1) - 1:+.1%}"),
            ),
        )
        for _, name, run in worst
    ]
    if points:
        yield lay_out_agreement(points)


def _error_bars(document: validation.ValidationResult) -> Iterator[BarChart]:
    """One chart per quantity: mean and worst decile of each file."""
    for field, label in validation.QUANTITIES:
        found = [(d.name, getattr(d, field)) for d in document.datasets]
        rows = [
            (name, record.mape, f"{record.mape:.1%}", f"{record.mape:.1%} of {record.n}")
            for name, record in found
            if record is not None
        ]
        if rows:
            title = f"Mean relative error: {label}"
            yield plain_bars(title, "file", rows, what="mean error")


# What `verify` found about a document, as a card of its summary and a section of its page
# ----------------------------------------------------------------------------------------


_CARDS: Final = frozenset({"verification", "verified"})  # that pages have by themselves
_BEFORE: Final = frozenset({"provenance", "reproduce"})


def with_verification(content: Content, found: verification.VerificationResult) -> Content:
    """The content with the verdict in its summary and every check before the sources."""
    sections = [
        replace(each, cards=(*_others(each), _card(found))) if each.name == "summary" else each
        for each in content.sections
    ]
    names = [section.name for section in sections]
    at = next((names.index(name) for name in names if name in _BEFORE), len(names))
    return replace(content, sections=(*sections[:at], _section(found), *sections[at:]))


def _others(found: Section) -> tuple[Card, ...]:
    return tuple(each for each in found.cards if each.label not in _CARDS)


def _card(found: verification.VerificationResult) -> Card:
    if found.interrupted:
        return card("verification", "interrupted", tone="warn")
    if not found.passed:
        failed = [check for check in found.checks if check.outcome is verification.Outcome.FAIL]
        where = f"level {failed[0].level}, {failed[0].name}" if failed else "a control got through"
        return card("verification", "failed", where, "bad")
    done = [check.level for check in found.checks if check.outcome is verification.Outcome.PASS]
    note = f"{counted(len(done), 'check')}, level {max(done)}: {_said(max(done), found)}"
    return card("verification", "passed", note, "good")


def _said(level: int, found: verification.VerificationResult) -> str:
    if level == 2 and found.runs:
        run = found.runs[0]
        return f"gradients of a real run on {run.num_ranks * run.num_replicas} processes"
    return {0: "its orders are legal"}.get(level, "replayed unfolded")


def _section(found: verification.VerificationResult) -> Section:
    blocks: list[Table | Notes] = [verification.check_table(found)]
    if found.controls:
        blocks.append(_controls(found.controls))
    if found.notes:
        blocks.append(Notes(title="How it was run", lines=found.notes))
    blocks.append(Notes(title="Not proved here", lines=found.out_of_scope))
    return section("verification", "Does it train the same model?", *blocks)


def _controls(controls: tuple[verification.Control, ...]) -> Table:
    return table_of(
        "Broken on purpose",
        (
            words("what was broken", "control"),
            words("level"),
            words("caught"),
            words("what the check said", "said"),
        ),
        (
            (
                each.name,
                f"{each.level} {verification.LEVELS[each.level]}",
                "yes" if each.caught else "NO",
                each.said,
            )
            for each in controls
        ),
        marked=(at for at, each in enumerate(controls) if not each.caught),
    )
