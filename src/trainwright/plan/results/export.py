"""The document of `export`: which files were written, and what they do not say."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainwright.plan.results.request import FORMAT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """A file by its name inside the folder."""

    name: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedLayout:
    """What a plan is predicted to take."""

    step_time_s: float
    peak_memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The plan that was exported in place of one the target cannot express."""

    changes: tuple[str, ...]
    before: PricedLayout
    after: PricedLayout
    memory_limit_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """Files of a job for one target. `checked` says what the framework's own parser found."""

    kind: str = "export"
    format_version: int = FORMAT_VERSION
    target: str
    version: str
    plan_sha256: str
    trainwright_version: str
    folder: str | None = None
    files: tuple[ExportedFile, ...]
    command: str
    environment: dict[str, str] = field(default_factory=dict)
    not_represented: tuple[str, ...] = ()
    asked_of_user: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    nearest: Nearest | None = None
    checked: str | None = None
