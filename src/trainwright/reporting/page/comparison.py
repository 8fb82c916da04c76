"""Several results beside each other: key figures, the times as bars, what was asked differently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trainwright.reporting.difference_table import change_texts
from trainwright.reporting.page.blocks import Bar, BarChart, Cell, Column, Part, Section, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainwright.plan.results.difference import Change, Difference
    from trainwright.reporting.page.subject import Content, Figure, Subject

_DRAWN: Final = ("step_time_s", "tokens_per_s", "time_per_sample_s", "makespan_s")


def comparison_section(
    subjects: Sequence[Subject[Any]],
    contents: Sequence[Content],
    differences: Sequence[Difference | None],
) -> Section:
    """All documents at once; `differences` are from the first to each of the others."""
    blocks: list[Table | BarChart] = [_figures_table(subjects, contents)]
    for key in _DRAWN:
        stated = [
            (subject.name, figure)
            for subject, content in zip(subjects, contents, strict=True)
            for figure in content.figures
            if figure.key == key and isinstance(figure.value, float)
        ]
        if len(stated) > 1:
            blocks.append(_bars(stated))
    for subject, difference in zip(subjects[1:], differences, strict=True):
        if difference is not None:
            blocks += _changes(subjects[0].name, subject.name, difference)
    return Section(name="comparison", label="Comparison", title="Comparison", blocks=tuple(blocks))


def _figures_table(subjects: Sequence[Subject[Any]], contents: Sequence[Content]) -> Table:
    titles = {figure.key: figure.title for content in contents for figure in content.figures}
    numeric = {
        figure.key: not isinstance(figure.value, str)
        for content in contents
        for figure in content.figures
    }
    rows = []
    for subject, content in zip(subjects, contents, strict=True):
        found = {figure.key: figure for figure in content.figures}
        cells = (_cell(found.get(key)) for key in titles)
        rows.append((Cell.of(subject.name), Cell.of(content.title), *cells))
    columns = [
        Column(title="document", key="document", is_number=False),
        Column(title="what", key="what", is_number=False),
    ]
    columns += [Column(title=titles[key], key=key, is_number=numeric[key]) for key in titles]
    return Table(title="Key figures", columns=tuple(columns), rows=tuple(rows))


def _cell(figure: Figure | None) -> Cell:
    if figure is None or figure.value is None:
        return Cell.of("")
    return Cell(text=figure.text, value=figure.value)


def _bars(stated: Sequence[tuple[str, Figure]]) -> BarChart:
    first = float(stated[0][1].value or 0.0)
    bars = []
    for name, figure in stated:
        amount = float(figure.value or 0.0)
        ratio = f", {amount / first:.3g}×" if first else ""
        part = Part(kind="plain", label=figure.title, amount=amount, text=figure.text)
        bars.append(Bar(label=name, parts=(part,), total=figure.text + ratio))
    return BarChart(
        title=stated[0][1].title[:1].upper() + stated[0][1].title[1:],
        bars=tuple(bars),
        label="document",
    )


def _changes(first: str, other: str, difference: Difference) -> Iterator[Table]:
    groups = {"asked": difference.request_changes, "found": difference.result_changes}
    for what, changes in groups.items():
        if changes:
            rows = tuple(_cells(change) for change in changes)
            yield Table(
                title=f"What was {what} differently: {first} → {other}",
                columns=(
                    Column(title="what", key="key", is_number=False),
                    Column(title=first, key="before", is_number=False),
                    Column(title=other, key="after", is_number=False),
                ),
                rows=rows,
            )


def _cells(change: Change) -> tuple[Cell, Cell, Cell]:
    """A row in words; keys and bare numbers are what is copied."""
    name, before, after = change_texts(change)
    return (
        Cell(text=name, value=change.key),
        _told(before, change.before),
        _told(after, change.after),
    )


def _told(text: str, value: object) -> Cell:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return Cell(text=text, value=value if is_number else text)  # type: ignore[arg-type]
