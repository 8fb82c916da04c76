"""The document of `verify`: what was checked of a plan, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from trainwright.plan.results.gradient_check import GradientCheck, KeptBytes
from trainwright.plan.results.request import FORMAT_VERSION


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
