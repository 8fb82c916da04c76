"""The document of `export`: which files were written, and what they do not say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainwright.documents.view import column, size, table_of, words
from trainwright.plans.request import FORMAT_VERSION
from trainwright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.documents.view import Line


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


# What an export wrote, and what the files do not say
# ---------------------------------------------------


def export_view(found: ExportResult) -> Iterator[Line]:
    """Files, then lists of what to add and what is missing."""
    yield table_of(
        "Files",
        (words("file", "name"), column("size", "bytes")),
        ((each.name, size(each.bytes)) for each in found.files),
        caption=found.target,
    )
    yield from _lines(found)


def _lines(found: ExportResult) -> Iterator[str]:
    where = "not written; -o names a folder" if found.folder is None else f"in {found.folder}"
    yield f"{where}; {found.target} {found.version}"
    if found.nearest is not None:
        yield from _nearest(found.nearest)
    if found.command:
        yield f"runs: {found.command}"
    for name, value in found.environment.items():
        yield f"needs: {name}={value}" if value else f"needs: {name} unset"
    for title, items in (
        ("you must add", found.asked_of_user),
        ("not in the files", found.not_represented),
        ("take care", found.warnings),
    ):
        yield from (f"{title}: {item}" for item in items)
    if found.checked is not None:
        yield f"checked: {found.checked}"


def _nearest(nearest: Nearest) -> Iterator[str]:
    before, after = nearest.before, nearest.after
    yield "not the plan itself, but the nearest that the target can express:"
    yield from (f"  {change}" for change in nearest.changes)
    ratio = after.step_time_s / before.step_time_s - 1 if before.step_time_s else 0.0
    was, now = format_seconds(before.step_time_s), format_seconds(after.step_time_s)
    yield f"  step time {was} becomes {now} ({ratio:+.1%})"
    held, holds = format_bytes(before.peak_memory_bytes), format_bytes(after.peak_memory_bytes)
    yield f"  peak memory {held} becomes {holds} of {format_bytes(nearest.memory_limit_bytes)}"
