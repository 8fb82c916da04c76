"""The document of `report`: what was written about what."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.style import Style
from rich.text import Text

from trainwright.commands.diff import diff
from trainwright.commands.output import check_output, emit, save
from trainwright.documents.difference import Difference, WhatIfResult
from trainwright.documents.explanation import ModelExplanation
from trainwright.documents.improvement import ImprovementResult
from trainwright.documents.model_estimate import ModelEstimateResult
from trainwright.documents.model_plan import ModelPlanResult
from trainwright.documents.open import opened
from trainwright.documents.printing import Report, counted
from trainwright.documents.registry import READABLE
from trainwright.documents.validation import ValidationResult
from trainwright.documents.verification import VerificationResult
from trainwright.documents.view import Line, printable, table_of, words
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats.atomic_file import write_text
from trainwright.formats.document_json import content_hash, encode
from trainwright.pages.page import page_html, subject_of
from trainwright.pages.subject import Subject
from trainwright.plans.plan import FORMAT_VERSION

if TYPE_CHECKING:
    from trainwright.documents.open import AnyDocument

    Reportable = (
        AnyDocument
        | ImprovementResult
        | ModelPlanResult
        | ModelEstimateResult
        | ValidationResult
        | VerificationResult
        | WhatIfResult
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedDocument:
    """A document on the page; `left_out` says what could not be shown of it, and why."""

    kind: str
    name: str
    sha256: str
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportResult:
    """A page: its size and hash, and the documents it shows."""

    kind: str = "report"
    format_version: int = FORMAT_VERSION
    size_bytes: int
    sha256: str
    documents: tuple[ReportedDocument, ...]


# `trainwright report`: documents as one page that needs nothing else
# -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Page(Report[ReportResult]):
    """A page and what it shows; `save_html` writes it."""

    html: str

    def save_html(self, path: str | Path) -> None:
        """Write the page; nothing is left behind where that fails."""
        write_text(path, self.html)


def report(*documents: Reportable, title: str | None = None, date: str | None = None) -> Page:
    """Show documents (paths or results) on one page.

    All that `registry.REPORTED` names; a what-if is shown as its two plans, and
    what `verify` made of a document with it. `title` replaces the heading, `date` is
    printed as given. Raises `InvalidInput` with every fault of the first file that has one, without
    documents, and for a verification of a document that is not among them.
    """
    if not documents:
        raise InvalidInput.of("documents", "must be at least 1 document, got none")
    found = [each for given in documents for each in opened(given)]
    verified = [each for each, *_ in found if isinstance(each, VerificationResult)]
    shown = [each for each in found if not isinstance(each[0], VerificationResult)]
    subjects = [
        subject_of(each, name=name or f"{each.kind} {number}", file=file)
        for number, (each, name, file) in enumerate(shown, 1)
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
    if isinstance(subject.document, ModelExplanation):
        return (subject.sha256, content_hash(encode(subject.document.plan)))
    return (subject.sha256,)


def _differences(found: Sequence[Any]) -> tuple[Difference | None, ...]:
    """From the first document to the others, where they can be compared key by key."""
    made: list[Difference | None] = []
    for other in found[1:]:
        try:
            both = found[0].kind in READABLE and other.kind in READABLE
            made.append(diff(found[0], other).document if both else None)
        except (InvalidInput, UnsupportedFeature):  # a schedule beside a plan
            made.append(None)
    return tuple(made)


# What a report shows, as a line and a table
# ------------------------------------------


def report_view(document: ReportResult) -> Iterator[Line]:
    """The page's size, its documents, and what was left out."""
    shown = counted(len(document.documents), "document")
    yield f"a page of {document.size_bytes / 1e3:,.0f} kB on {shown}"
    yield table_of(
        "Documents",
        (words("document", "name"), words("kind"), words("left out", "left_out")),
        ((one.name, one.kind, "; ".join(one.left_out)) for one in document.documents),
    )


# `trainwright report`
# --------------------


def command(
    documents: tuple[str, ...],
    *,
    output: Path | None = None,
    open: bool = False,
    as_json: bool = False,
    **options: Any,
) -> None:
    """Write the page; `open` shows it."""
    first = Path(documents[0])
    where = output or (first.with_suffix(".html") if first.name else first / "report.html")
    check_output(where, *documents, document=False)
    page = report(*documents, **options)
    save(page.save_html, where)
    emit(page, as_json=as_json, output=None)
    if output is None or open:
        _say_where(where)
    if open:
        _show(where)


def _say_where(page: Path) -> None:
    """A link in terminals that have them (OSC 8), its name alone elsewhere."""
    name = Text(printable(str(page)), style=Style(link=page.resolve().as_uri()))
    Console(stderr=True, soft_wrap=True, highlight=False).print(Text("wrote ") + name)


def _show(page: Path) -> None:
    """In the browser that the system, or BROWSER, names."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        print(f"warning: found no browser; open {printable(str(page))} in one", file=sys.stderr)
