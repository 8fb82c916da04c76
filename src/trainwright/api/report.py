"""`trainwright report`: documents as one page that needs nothing else."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.api.documents import KINDS, load_any_document
from trainwright.api.printed import Report
from trainwright.api.recheck import recheck
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.plan.results.codesign import CodesignResult
from trainwright.plan.results.model_explanation import ModelExplanation
from trainwright.plan.results.report import ReportedDocument, ReportResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.api.documents import AnyDocument
    from trainwright.plan.results.difference import Difference
    from trainwright.plan.results.model_estimate import ModelEstimateResult
    from trainwright.reporting.page.subject import Subject

    Reportable = AnyDocument | Report[ModelEstimateResult] | ModelEstimateResult


@dataclass(frozen=True, slots=True)
class Page(Report[ReportResult]):
    """A page and what it shows; `save_html` writes it."""

    html: str

    def save_html(self, path: str | Path) -> None:
        """Write the page; nothing is left behind where that fails."""
        from trainwright.formats.atomic_file import write_text

        write_text(path, self.html)


def report(*documents: Reportable, title: str | None = None, date: str | None = None) -> Page:
    """Show plans, estimates and schedules (paths or results) on one page.

    `title` replaces the heading, `date` is printed as given. Raises `InvalidInput` with every fault
    of the first file that has one, and without documents.
    """
    from trainwright.reporting.page.page import page_html

    if not documents:
        raise InvalidInput.of("documents", "must be at least 1 document, got none")
    subjects = [_subject(given, number) for number, given in enumerate(documents, 1)]
    found = [subject.document for subject in subjects]
    html = page_html(*subjects, differences=_differences(found), title=title, date=date)
    data = html.encode()
    return Page(
        ReportResult(
            size_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            documents=tuple(
                ReportedDocument(
                    kind=subject.document.kind,
                    name=subject.name,
                    sha256=subject.sha256,
                    left_out=subject.left_out,
                )
                for subject in subjects
            ),
        ),
        html,
    )


def _subject(given: Reportable, number: int) -> Subject[Any]:
    from trainwright.api.report_subject import subject_of

    document = given.document if isinstance(given, Report) else given
    if isinstance(document, (str, Path)):
        return subject_of(_load(document), name=Path(document).name)
    return subject_of(document, name=f"{document.kind} {number}")


def _load(path: str | Path) -> Any:
    """Any document that has a page. A co-design's search and an explanation's are not repeated."""
    from trainwright.formats.atomic_file import read_bytes
    from trainwright.formats.document_json import decode_document
    from trainwright.formats.json_text import parse_json

    value = parse_json(read_bytes(path, name="document"), source=str(path))
    kinds: dict[str, type[Any]] = {
        "codesign": CodesignResult,
        "model-explanation": ModelExplanation,
    }
    if not (isinstance(value, dict) and value.get("kind") in kinds):
        return load_any_document(path)
    found: Any = decode_document(value, kinds, source=str(path))
    if isinstance(found, ModelExplanation):
        recheck(found.plan, source=str(path))
    return found


def _differences(found: Sequence[Any]) -> tuple[Difference | None, ...]:
    """From the first document to the others, where they can be compared key by key."""
    from trainwright.api.diff import diff

    comparable = tuple(KINDS.values())
    made: list[Difference | None] = []
    for other in found[1:]:
        try:
            both = isinstance(found[0], comparable) and isinstance(other, comparable)
            made.append(diff(found[0], other).document if both else None)
        except (InvalidInput, UnsupportedFeature):  # a schedule beside a plan
            made.append(None)
    return tuple(made)
