"""What `verify` found about a document, as a card of its summary and a section of its page."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainwright.documents.printing import counted
from trainwright.documents.verification import LEVELS, Outcome, check_table
from trainwright.documents.view import Notes, table_of, words
from trainwright.pages.blocks import card, section

if TYPE_CHECKING:
    from trainwright.documents.verification import Control, VerificationResult
    from trainwright.documents.view import Table
    from trainwright.pages.blocks import Card, Section
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


def _others(found: Section) -> tuple[Card, ...]:
    return tuple(each for each in found.cards if each.label not in _CARDS)


def _card(found: VerificationResult) -> Card:
    if found.interrupted:
        return card("verification", "interrupted", tone="warn")
    if not found.passed:
        failed = [check for check in found.checks if check.outcome is Outcome.FAIL]
        where = f"level {failed[0].level}, {failed[0].name}" if failed else "a control got through"
        return card("verification", "failed", where, "bad")
    done = [check.level for check in found.checks if check.outcome is Outcome.PASS]
    note = f"{counted(len(done), 'check')}, level {max(done)}: {_said(max(done), found)}"
    return card("verification", "passed", note, "good")


def _said(level: int, found: VerificationResult) -> str:
    if level == 2 and found.runs:
        run = found.runs[0]
        return f"gradients of a real run on {run.num_ranks * run.num_replicas} processes"
    return {0: "its orders are legal"}.get(level, "replayed unfolded")


def _section(found: VerificationResult) -> Section:
    blocks: list[Table | Notes] = [check_table(found)]
    if found.controls:
        blocks.append(_controls(found.controls))
    if found.notes:
        blocks.append(Notes(title="How it was run", lines=found.notes))
    blocks.append(Notes(title="Not proved here", lines=found.out_of_scope))
    return section("verification", "Does it train the same model?", *blocks)


def _controls(controls: tuple[Control, ...]) -> Table:
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
                f"{each.level} {LEVELS[each.level]}",
                "yes" if each.caught else "NO",
                each.said,
            )
            for each in controls
        ),
        marked=(at for at, each in enumerate(controls) if not each.caught),
    )
