"""A document and what follows from it: everything a section may show.

The documents carry decisions and prices. Timelines, communication by network level and constants
with their sources are computed again by whoever asks for the page, from the request inside the
document; what could not be is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from trainwright.cluster import Cluster
from trainwright.documents.calibration import constant_table, constants_of
from trainwright.documents.view import Facts, Notes, Table
from trainwright.pages.blocks import Code, Section, folded, section
from trainwright.plans.plan import Embedded
from trainwright.plans.prediction import LevelUse, StepPrediction

if TYPE_CHECKING:
    from trainwright.documents.verification import VerificationResult
    from trainwright.pages.gantt import GanttPanel

Document = TypeVar("Document")


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedStep:
    """The step of a model's plan: its price, and the microbatches of one replica.

    `parts_of_rank_s` says where the step of each rank goes, `layers_of_rank` are indices of the
    model's layer graph, `recomputed_of_rank` how many of them repeat their forward, fully or in
    part, `degrees_of_rank` data and tensor degrees.
    """

    step: StepPrediction
    num_microbatches: int
    parts_of_rank_s: tuple[dict[str, float], ...]
    layers_of_rank: tuple[tuple[int, ...], ...]
    recomputed_of_rank: tuple[int, ...]
    degrees_of_rank: tuple[tuple[int, int], ...]
    network: tuple[LevelUse, ...] = ()

    @property
    def busiest_rank(self) -> int:
        """The rank that works longest, the first where several do."""
        work = [stage.forward_s + stage.backward_s for stage in self.step.stages]
        return work.index(max(work))


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What the page says about one document; `figures` are those a comparison lists."""

    title: str
    subtitle: str
    figures: tuple[Figure, ...]
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of a result, under the key it has in documents; None where there is none."""

    key: str
    title: str
    value: float | str | None
    text: str


def figures(*rows: tuple[str, str, float | str | None, str]) -> Iterator[Figure]:
    """Figures of (key, title, value, text); no text where there is no value."""
    for key, title, value, text in rows:
        yield Figure(key=key, title=title, value=value, text="" if value is None else text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject(Generic[Document]):
    """What one part of the page is about.

    `command` asks the same again; `command_note` says what it takes for that. `parts_of_rank_s` are
    those of each of the document's ranks on several pools. `verification` is of this very document.
    """

    name: str
    document: Document
    sha256: str
    command: str
    command_note: str = ""
    priced: PricedStep | None = None
    parts_of_rank_s: tuple[dict[str, float], ...] = ()
    cluster: Cluster | None = None
    panel: GanttPanel | None = None
    left_out: tuple[str, ...] = ()
    verification: VerificationResult | None = None


# Where the numbers come from: every constant with its source, hashes, and how to ask again
# -----------------------------------------------------------------------------------------


def provenance_section(subject: Subject[Any], assumptions: Mapping[str, str]) -> Section:
    """What the figures rest on."""
    blocks: list[Facts | Table | Notes] = []
    if assumptions:
        blocks.append(Facts(title="Taken for granted", rows=tuple(assumptions.items())))
    if subject.cluster is not None:
        blocks.append(constant_table(constants_of(subject.cluster)))
    warnings = tuple(getattr(subject.document, "warnings", ()))
    if warnings:
        blocks.append(Notes(title="Warnings", lines=warnings, tone="warn"))
    return folded(section("provenance", "Where the numbers come from", *blocks, label="Sources"))


def reproduce_section(subject: Subject[Any], inputs: tuple[Embedded, ...] = ()) -> Section:
    """Command line, hashes of what went in and of the document, version."""
    request = getattr(subject.document, "request", None)
    version = () if request is None else (("trainwright", request.trainwright_version),)
    hashes = ((f"{part.kind} {part.name}", f"sha256 {part.sha256}") for part in inputs)
    facts = (*version, *hashes, ("this document", f"sha256 {subject.sha256}"))
    blocks: list[Code | Notes | Facts] = [Code(text=subject.command)]
    if subject.command_note:
        blocks.append(Notes(lines=(subject.command_note,)))
    blocks.append(Facts(rows=facts))
    if subject.left_out:
        blocks.append(Notes(title="Left out of this page", lines=subject.left_out))
    return folded(section("reproduce", "How to reproduce", *blocks))
