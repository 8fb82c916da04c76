"""The document of `verify`: what was checked of a plan, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from trainwright.documents.view import Line, Table, table_of, words
from trainwright.plans.plan import FORMAT_VERSION
from trainwright.provenance import RARE

# What a real run of a schedule gave, compared with the same model in one piece
# -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBytes:
    """What saved tensors of the small model hold on a rank, at most: counted and predicted.

    `largest_difference_bytes` is how far the two are apart after any action of the rank. Where a
    backward is split, a runtime may free the part of the input gradient before or with that of the
    weights, and both count as predicted.
    """

    rank: int
    peak_bytes: float
    predicted_peak_bytes: float
    largest_difference_bytes: float
    num_actions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCheck:
    """Largest differences over all steps, ranks and parameters.

    A gradient passes within `gradient_limit`, which is 1e-6 times the largest entry of the
    parameter's reference gradient, or 1e-6 where that entry is below 1; the one nearest to, or
    farthest beyond, its limit is given. `num_replicas` pipelines of `num_ranks` ran side by side,
    each on its own data, and `kept` is of the first; the last of them ran other numbers of
    microbatches where `num_microbatches_beside` says so. Where the run did not get to its end,
    `problem` says why and there are no differences.
    """

    passed: bool
    form: str
    num_ranks: int
    num_stages: int
    num_microbatches: int
    num_steps: int
    num_replicas: int = 1
    num_microbatches_beside: tuple[int, ...] = field(default=(), metadata={RARE: True})
    max_error: float | None = None
    gradient_limit: float | None = None
    worst_parameter: str | None = None
    loss_error: float | None = None
    loss_limit: float
    problem: str | None = None
    torch_version: str
    kept: tuple[KeptBytes, ...] = ()


# The document of `verify`: what was checked of a plan, and what came of it
# -------------------------------------------------------------------------


class Outcome(StrEnum):
    """How a check ended; one that is left out says why."""

    PASS = "pass"
    FAIL = "fail"
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question of one level, and its answer; `where` lists what is wrong, place by place."""

    level: int
    name: str
    outcome: Outcome
    detail: str
    where: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The plan broken on purpose: a check that lets it pass checks nothing.

    `said` is what the check reported of it.
    """

    level: int
    name: str
    caught: bool
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedDocument:
    """What was verified; `sha256` is of the whole document."""

    kind: str
    name: str
    sha256: str
    num_stages: int
    num_ranks: int
    num_microbatches: int
    schedule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationResult:
    """Every check that was asked for. `passed` is false where one failed or a control got through.

    `missing_extra` names what has to be installed for the checks that were left out for that;
    `out_of_scope` says what no level proves.
    """

    kind: str = "verification"
    format_version: int = FORMAT_VERSION
    trainwright_version: str
    passed: bool
    level: int
    subject: VerifiedDocument
    checks: tuple[Check, ...]
    controls: tuple[Control, ...] = ()
    runs: tuple[GradientCheck, ...] = ()
    kept_activations: tuple[KeptBytes, ...] = ()
    out_of_scope: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    missing_extra: str | None = None
    interrupted: bool = False


# What was checked of a plan, level by level, and where it does not hold
# ----------------------------------------------------------------------

LEVELS: Final = {0: "order", 1: "replay", 2: "run"}
WORDS: Final = {Outcome.PASS: "PASS", Outcome.FAIL: "FAIL", Outcome.LEFT_OUT: "left out"}


def verification_view(found: VerificationResult) -> Iterator[Line]:
    """Checks, then what was broken on purpose, what is out of scope, and the verdict."""
    yield check_table(found)
    yield from _lines(found)


def check_table(found: VerificationResult) -> Table:
    """Every check with what it found; those that failed are marked."""
    return table_of(
        "Checks",
        (
            words("level"),
            words("check"),
            words("outcome", "outcome", ""),
            words("what was found", "found"),
        ),
        (
            (
                f"{check.level} {LEVELS[check.level]}",
                check.name,
                WORDS[check.outcome],
                "\n".join(filter(None, (check.detail, *check.where))),
            )
            for check in found.checks
        ),
        marked=(at for at, check in enumerate(found.checks) if check.outcome is Outcome.FAIL),
        caption=_title(found),
    )


def _title(found: VerificationResult) -> str:
    subject = found.subject
    if not subject.num_stages:
        return f"verify {subject.name} ({subject.kind})"
    sizes = (
        f"{subject.num_stages} stages, {subject.num_ranks} ranks, "
        f"{subject.num_microbatches} microbatches"
    )
    return f"verify {subject.name} ({subject.kind}): {subject.schedule}, {sizes}"


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
