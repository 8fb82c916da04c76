"""What was checked of a plan, level by level, and where it does not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.plan.results.verification import Outcome
from trainwright.reporting.text import add_row, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from trainwright.plan.results.verification import Check, VerificationResult

LEVELS: Final = {0: "order", 1: "replay", 2: "run"}
WORDS: Final = {Outcome.PASS: "PASS", Outcome.FAIL: "FAIL", Outcome.LEFT_OUT: "left out"}


def verification_report(found: VerificationResult) -> RenderableType:
    """Checks, then what was broken on purpose, what is out of scope, and the verdict."""
    from rich.console import Group
    from rich.text import Text

    columns = (("level", "left"), ("check", "left"), ("", "left"), ("what was found", "left"))
    made = table(_title(found), columns)
    for check in found.checks:
        level = f"{check.level} {LEVELS[check.level]}"
        add_row(made, level, check.name, WORDS[check.outcome], _detail(check))
    return Group(made, *(Text(line, overflow="fold") for line in _lines(found)))


def _title(found: VerificationResult) -> str:
    subject = found.subject
    if not subject.num_stages:
        return f"verify {subject.name} ({subject.kind})"
    sizes = (
        f"{subject.num_stages} stages, {subject.num_ranks} ranks, "
        f"{subject.num_microbatches} microbatches"
    )
    return f"verify {subject.name} ({subject.kind}): {subject.schedule}, {sizes}"


def _detail(check: Check) -> str:
    return "\n".join((check.detail, *check.where)) if check.detail else "\n".join(check.where)


def _lines(found: VerificationResult) -> Iterator[str]:
    for control in found.controls:
        caught = "caught" if control.caught else "NOT caught"
        where = f"broken on purpose, {caught} at level {control.level}"
        yield f"{where}: {control.name}: {control.said}"
    yield from (f"note: {note}" for note in found.notes)
    yield f"not proved here: {'; '.join(found.out_of_scope)}"
    yield verdict(found)


def verdict(found: VerificationResult) -> str:
    """One line: what holds."""
    if found.interrupted:
        return "verify: interrupted"
    skipped = [check for check in found.checks if check.outcome is Outcome.LEFT_OUT]
    also = f" ({len(skipped)} left out)" if skipped else ""
    return f"verify: {'PASS' if found.passed else 'FAIL'}{also}"
