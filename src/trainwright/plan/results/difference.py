"""How two documents differ: first what was asked, then what came out."""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.plan.results.request import FORMAT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One key with its value in either document; absent where a document lacks it."""

    key: str
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`time_ratio` is time of the second document over that of the first."""

    kind: str = "diff"
    format_version: int = FORMAT_VERSION
    same_model: bool
    time_ratio: float | None = None
    request_changes: tuple[Change, ...] = ()
    result_changes: tuple[Change, ...] = ()
    stage_changes: tuple[Change, ...] = ()
