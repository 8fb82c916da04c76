"""What `verify` found about a document, as a card of its summary and a section of its page."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainwright.documents.printing import counted
from trainwright.documents.verification import LEVELS, WORDS, Outcome
from trainwright.documents.view import Cell, Column, Notes, Table
from trainwright.pages.blocks import Card, Section

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trainwright.documents.verification import Check, Control, VerificationResult
    from trainwright.pages.subject import Content

_CARDS: Final = frozenset({"verification", "verified"})  # that pages have by themselves
_BEFORE: Final = frozenset({"provenance", "reproduce"})


def with_verification(content: Content, found: VerificationResult) -> Content:
    """The content with the verdict in its summary and every check before the sources."""
    sections = [
        replace(each, cards=(*_others(each), _card(found))) if each.name == "summary" else each
        for each in content.sections
    ]
    names = [section.name for section in sections]
    at = next((names.index(name) for name in names if name in _BEFORE), len(names))
    return replace(content, sections=(*sections[:at], _section(found), *sections[at:]))


def _others(section: Section) -> tuple[Card, ...]:
    return tuple(card for card in section.cards if card.label not in _CARDS)


def _card(found: VerificationResult) -> Card:
    if found.interrupted:
        return Card(label="verification", value="interrupted", tone="warn")
    if not found.passed:
        failed = [check for check in found.checks if check.outcome is Outcome.FAIL]
        where = f"level {failed[0].level}, {failed[0].name}" if failed else "a control got through"
        return Card(label="verification", value="failed", note=where, tone="bad")
    done = [check.level for check in found.checks if check.outcome is Outcome.PASS]
    note = f"{counted(len(done), 'check')}, level {max(done)}: {_said(max(done), found)}"
    return Card(label="verification", value="passed", note=note, tone="good")


def _said(level: int, found: VerificationResult) -> str:
    if level == 2 and found.runs:
        run = found.runs[0]
        return f"gradients of a real run on {run.num_ranks * run.num_replicas} processes"
    return {0: "its orders are legal"}.get(level, "replayed unfolded")


def _section(found: VerificationResult) -> Section:
    blocks: list[Table | Notes] = [_checks(found.checks)]
    if found.controls:
        blocks.append(_controls(found.controls))
    if found.notes:
        blocks.append(Notes(title="How it was run", lines=found.notes))
    blocks.append(Notes(title="Not proved here", lines=found.out_of_scope))
    return Section(
        name="verification",
        label="Verification",
        title="Does it train the same model?",
        blocks=tuple(blocks),
    )


def _checks(checks: tuple[Check, ...]) -> Table:
    columns = {"check": "check", "level": "level", "outcome": "outcome", "found": "what was found"}
    rows = [
        (
            check.name,
            f"{check.level} {LEVELS[check.level]}",
            WORDS[check.outcome],
            "; ".join((check.detail, *check.where)),
        )
        for check in checks
    ]
    failed = (at for at, check in enumerate(checks) if check.outcome is Outcome.FAIL)
    return _words_table("Checks", columns, rows, marked=failed)


def _controls(controls: tuple[Control, ...]) -> Table:
    columns = {
        "control": "what was broken",
        "level": "level",
        "caught": "caught",
        "said": "what the check said",
    }
    rows = [
        (
            each.name,
            f"{each.level} {LEVELS[each.level]}",
            "yes" if each.caught else "NO",
            each.said,
        )
        for each in controls
    ]
    missed = (at for at, each in enumerate(controls) if not each.caught)
    return _words_table("Broken on purpose", columns, rows, marked=missed)


def _words_table(
    title: str,
    columns: Mapping[str, str],
    rows: Sequence[tuple[str, ...]],
    *,
    marked: Iterable[int],
) -> Table:
    """Columns of words, by key and title."""
    return Table(
        title=title,
        columns=tuple(
            Column(title=name, key=key, is_number=False) for key, name in columns.items()
        ),
        rows=tuple(tuple(map(Cell.of, row)) for row in rows),
        marked=frozenset(marked),
    )
