"""How two documents differ: first what was asked, then what came out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainwright.plan.results.request import FORMAT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One key with its value in either document; absent where a document lacks it.

    Values are as in the documents: numbers in the unit that the key names, text, arrays of text.
    """

    key: str
    before: Any = None
    after: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFacts:
    """What a stage is and costs, for comparison."""

    layers: tuple[int, ...]
    data_parallel: int
    tensor_parallel: int
    num_recomputed: int
    time_per_sample_s: float
    memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChange:
    """A stage (index, from 0) in either document; absent where a document has fewer."""

    stage: int
    before: StageFacts | None = None
    after: StageFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`time_ratio` is time of the second document over that of the first.

    `same_model` compares what the documents hold, whatever the files were called.
    """

    kind: str = "diff"
    format_version: int = FORMAT_VERSION
    same_model: bool
    time_ratio: float | None = None
    request_changes: tuple[Change, ...] = ()
    result_changes: tuple[Change, ...] = ()
    stage_changes: tuple[StageChange, ...] = ()
