"""A refusal as a document: what `--json` prints where a command ends without a result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainwright.errors import Inexpressible, Infeasible, InvalidInput, UnsupportedFeature
from trainwright.plans.request import FORMAT_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainwright.errors import Fault, TrainwrightError


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRecord:
    """A broken rule: the field or option, what it must be and what was found, how to mend it."""

    field: str
    rule: str
    fix: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalResult:
    """Why there is no result; `error` is the class of the error in Python.

    `exit_code` is that of the command. `source` is the file with the faults, `fixes` are what would
    do instead, where that is known.
    """

    kind: str = "refusal"
    format_version: int = FORMAT_VERSION
    exit_code: int
    error: str
    message: str
    source: str | None = None
    faults: tuple[FaultRecord, ...] = ()
    fixes: tuple[str, ...] = ()


def refusal_of(error: TrainwrightError) -> RefusalResult:
    """The document of an error that ended a command."""
    faults: tuple[Fault, ...] = ()
    fixes: tuple[str, ...] = ()
    if isinstance(error, InvalidInput | Inexpressible):
        faults = error.faults
    if isinstance(error, UnsupportedFeature) and error.alternative is not None:
        fixes = (error.alternative,)
    elif isinstance(error, Infeasible):
        fixes = error.fixes
    return RefusalResult(
        exit_code=error.exit_code,
        error=type(error).__name__,
        message=str(error),
        source=error.source if isinstance(error, InvalidInput) else None,
        faults=tuple(_records(faults)),
        fixes=fixes,
    )


def _records(faults: Iterable[Fault]) -> Iterator[FaultRecord]:
    """A problem names the rule and the value first, then, after a semicolon, the fix."""
    for fault in faults:
        rule, _, fix = fault.problem.partition("; ")
        yield FaultRecord(field=fault.path, rule=rule, fix=fix or None)


def refusal_view(document: RefusalResult) -> Iterator[str]:
    """The message."""
    yield document.message
