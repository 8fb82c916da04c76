"""What a schedule file for PyTorch cannot say itself, in a side file: CSV has no comments.

`schedule.csv` is described by `schedule.meta.json`: who wrote it, for which version it was tested,
a hash by which the two can be matched, the placement in full, and what the file does not carry.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from trainwright.formats.pytorch_csv import CsvForm
from trainwright.formats.record_types import AtLeast, NonEmpty

if TYPE_CHECKING:
    from trainwright.plan.lowered import LoweredSchedule
    from trainwright.plan.schedule import Schedule

FORMAT_VERSION = 1
TESTED_TORCH_VERSION = "2.13.0"
NOT_REPRESENTED = (
    "durations and transfer times",
    "memory deltas and limits",
    "which layers a stage holds",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PytorchMeta:
    """The content of a side file; `rank_of_stage` follows from the CSV too, and is for people."""

    kind: Literal["pytorch_schedule_meta"] = "pytorch_schedule_meta"
    format_version: int = FORMAT_VERSION
    trainwright_version: str
    target: str = "pytorch"
    tested_version: str = TESTED_TORCH_VERSION
    form: CsvForm
    csv_sha256: str
    plan_sha256: str | None = None
    num_microbatches: Annotated[int, AtLeast(1)]
    rank_of_stage: Annotated[tuple[int, ...], NonEmpty()]
    not_represented: tuple[str, ...] = NOT_REPRESENTED


def describe_csv(
    text: str,
    written: Schedule | LoweredSchedule,
    *,
    form: CsvForm,
    trainwright_version: str,
    plan_sha256: str | None = None,
) -> PytorchMeta:
    """The side file of `text`, which holds `written` in `form`."""
    return PytorchMeta(
        trainwright_version=trainwright_version,
        form=form,
        csv_sha256=hashlib.sha256(text.encode()).hexdigest(),
        plan_sha256=plan_sha256,
        num_microbatches=written.num_microbatches,
        rank_of_stage=written.placement.rank_of_stage,
    )


def meta_path(csv_path: Path) -> Path:
    """Where the side file of a CSV lies."""
    return csv_path.with_suffix(".meta.json")
