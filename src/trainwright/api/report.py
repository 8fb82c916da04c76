"""`trainwright report`: documents as one page that needs nothing else."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.api.documents import KINDS
from trainwright.api.printed import Report
from trainwright.api.report_documents import opened
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.plan.results.model_explanation import ModelExplanation
from trainwright.plan.results.report import ReportedDocument, ReportResult
from trainwright.plan.results.verification import VerificationResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.api.documents import AnyDocument
    from trainwright.plan.results.difference import Difference
    from trainwright.plan.results.improvement import ImprovementResult
    from trainwright.plan.results.mixed_plan import MixedPlanResult
    from trainwright.plan.results.model_estimate import ModelEstimateResult
    from trainwright.plan.results.validation import ValidationResult
    from trainwright.plan.results.what_if import WhatIfResult
    from trainwright.reporting.page.subject import Subject

    Reportable = (
        AnyDocument
        | ImprovementResult
        | MixedPlanResult
        | ModelEstimateResult
        | ValidationResult
        | VerificationResult
        | WhatIfResult
    )


@dataclass(frozen=True, slots=True)
class Page(Report[ReportResult]):
    """A page and what it shows; `save_html` writes it."""

    html: str

    def save_html(self, path: str | Path) -> None:
        """Write the page; nothing is left behind where that fails."""
        from trainwright.formats.atomic_file import write_text

        write_text(path, self.html)


def report(*documents: Reportable, title: str | None = None, date: str | None = None) -> Page:
    """Show documents (paths or results) on one page.

    All that `report_documents.kinds_with_a_page` names; a what-if is shown as its two plans, and
    what `verify` made of a document with it. `title` replaces the heading, `date` is
    printed as given. Raises `InvalidInput` with every fault of the first file that has one, without
    documents, and for a verification of a document that is not among them.
    """
    from trainwright.api.report_subject import subject_of
    from trainwright.reporting.page.page import page_html

    if not documents:
        raise InvalidInput.of("documents", "must be at least 1 document, got none")
    found = [each for given in documents for each in opened(given)]
    verified = [each for each, _ in found if isinstance(each, VerificationResult)]
    shown = [(each, name) for each, name in found if not isinstance(each, VerificationResult)]
    subjects = [
        subject_of(each, name=name or f"{each.kind} {number}")
        for number, (each, name) in enumerate(shown, 1)
    ]
    subjects = _with_verifications(subjects, verified)
    differences = _differences([subject.document for subject in subjects])
    html = page_html(*subjects, differences=differences, title=title, date=date)
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


def _with_verifications(
    subjects: list[Subject[Any]], verified: Sequence[VerificationResult]
) -> list[Subject[Any]]:
    """Each verification beside the document whose hash it states."""
    for found in verified:
        stated = found.subject.sha256
        owners = [at for at, subject in enumerate(subjects) if stated in _hashes(subject)]
        if not owners:
            problem = f"is of {found.subject.name}, sha256 {stated[:12]}…"
            advice = "put that document on the page, too, unchanged"
            raise InvalidInput.of("verification", f"{problem}; {advice}")
        for at in owners:
            subjects[at] = replace(subjects[at], verification=found)
    return subjects


def _hashes(subject: Subject[Any]) -> tuple[str, ...]:
    """That of the document, and of the plan that an explanation is about."""
    from trainwright.api.inputs import content_hash
    from trainwright.formats.document_json import encode

    if isinstance(subject.document, ModelExplanation):
        return (subject.sha256, content_hash(encode(subject.document.plan)))
    return (subject.sha256,)


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
