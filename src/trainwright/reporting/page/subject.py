"""A document and what follows from it: everything a section may show.

The documents carry decisions and prices. Timelines, communication by network level and constants
with their sources are computed again by whoever asks for the page, from the request inside the
document; what could not be is left out, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from trainwright.cluster import Cluster
    from trainwright.plan.network_use import LevelUse
    from trainwright.plan.prediction import StepPrediction
    from trainwright.plan.results.verification import VerificationResult
    from trainwright.reporting.gantt_panel import GanttPanel
    from trainwright.reporting.page.blocks import Section

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject(Generic[Document]):
    """What one part of the page is about.

    `command` asks the same again; `command_note` says what it takes for that. `verification` is of
    this very document.
    """

    name: str
    document: Document
    sha256: str
    command: str
    command_note: str = ""
    priced: PricedStep | None = None
    cluster: Cluster | None = None
    panel: GanttPanel | None = None
    left_out: tuple[str, ...] = ()
    verification: VerificationResult | None = None
