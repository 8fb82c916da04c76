"""What a job left behind of its memory, beside what was predicted: where it ran out, a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainwright.documents.view import Cell, column, size, table_of, words
from trainwright.plans.failure import MemorySnapshot, OutOfMemory, Phase
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trainwright.documents.view import Table
    from trainwright.plans.configuration import Configuration
    from trainwright.plans.parallelism import Parallelism
    from trainwright.plans.prediction import StagePrediction


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """Where a job failed; bytes of one device, absent where its message leaves them out.

    `rank` is that of the process among all, `pipeline_rank` the one that it belongs to.
    `missing_bytes` is what must be spared at least. `allocated_bytes`, `reserved_bytes` and
    `outside_bytes` (context and communicators) are what was held then; `predicted_bytes` is the
    most that tensors of that pipeline rank, or of the fullest, were predicted to hold.
    `largest_class` is what most of that goes to.
    """

    rank: int | None = None
    pipeline_rank: int | None = None
    phase: Phase | None = None
    tried_bytes: float
    missing_bytes: float
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    outside_bytes: float | None = None
    predicted_bytes: float
    largest_class: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRecord:
    """Bytes of one class of memory: in a snapshot, and predicted of the fullest rank.

    Where frames do not tell, a block is of the class "unknown", of which nothing is predicted.
    """

    name: str
    measured_bytes: float
    predicted_bytes: float | None = None


def class_records(
    snapshot: MemorySnapshot, predicted_bytes: Mapping[str, float]
) -> tuple[ClassRecord, ...]:
    """Every class that either has, the largest of the snapshot first."""
    names = [*snapshot.by_class_bytes, *predicted_bytes]
    return tuple(
        ClassRecord(
            name=name,
            measured_bytes=snapshot.by_class_bytes.get(name, 0.0),
            predicted_bytes=predicted_bytes.get(name),
        )
        for name in dict.fromkeys(names)
        if snapshot.by_class_bytes.get(name) or predicted_bytes.get(name)
    )


def class_table(snapshot: MemorySnapshot, records: Sequence[ClassRecord]) -> Table:
    """Measured beside predicted, class by class."""
    held = sum(record.predicted_bytes or 0.0 for record in records)
    rows = [
        *((r.name, r.measured_bytes, r.predicted_bytes) for r in records),
        ("all", snapshot.allocated_bytes, held),
    ]
    title = f"Device {snapshot.device} at its fullest on record, by what allocated it"
    return table_of(
        title,
        (
            words("class"),
            column("snapshot", "measured_bytes"),
            column("predicted", "predicted_bytes"),
            column("difference", "difference_bytes"),
        ),
        (
            (
                name,
                size(measured),
                size(predicted),
                "" if predicted is None else _difference(measured - predicted),
            )
            for name, measured, predicted in rows
        ),
        caption=title,
        note=f"{snapshot.num_blocks:,} blocks; {snapshot.num_events:,} allocations and frees "
        "were replayed.",
    )


def _difference(bytes_: float) -> Cell:
    sign = "-" if bytes_ < 0 else "+"
    return Cell(text=f"{sign}{format_bytes(abs(bytes_))}", value=bytes_)


def failure_record(
    failed: OutOfMemory,
    run: Configuration,
    stages: Sequence[StagePrediction],
    *,
    fullest: int,
    largest_classes: Sequence[str],
) -> FailureRecord:
    """The failure of a run that was priced."""
    rank = None
    if failed.rank is not None and failed.rank < run.parallelism.num_devices:
        rank = pipeline_rank(failed.rank, run.parallelism)
    shown = fullest if rank is None else rank
    outside = None
    if failed.in_use_bytes is not None and failed.reserved_bytes is not None:
        outside = max(0.0, failed.in_use_bytes - failed.reserved_bytes)
    return FailureRecord(
        rank=failed.rank,
        pipeline_rank=rank,
        phase=failed.phase,
        tried_bytes=failed.tried_bytes,
        missing_bytes=failed.missing_bytes,
        allocated_bytes=failed.allocated_bytes,
        reserved_bytes=failed.reserved_bytes,
        outside_bytes=outside,
        predicted_bytes=stages[shown].memory.total_bytes,
        largest_class=largest_classes[shown],
    )


def pipeline_rank(rank: int, degrees: Parallelism) -> int:
    """The pipeline rank of a process, in the order in which the degrees number devices."""
    return rank // degrees.adjacent_devices % degrees.pipeline


def failure_lines(found: FailureRecord) -> Iterator[str]:
    """What happened, what was held, and what was predicted."""
    where = "on a rank that the message does not name"
    if found.rank is not None:
        where = f"on rank {found.rank}"
        where += "" if found.pipeline_rank is None else f" (pipeline rank {found.pipeline_rank})"
    phase = "" if found.phase is None else f" in {found.phase}"
    yield (
        f"the job ran out of memory {where}{phase}: {format_bytes(found.tried_bytes)} were asked "
        f"for, {format_bytes(found.missing_bytes)} were missing"
    )
    held = {
        "tensors": found.allocated_bytes,
        "the allocator": found.reserved_bytes,
        "context and communicators": found.outside_bytes,
    }
    said = ", ".join(f"{format_bytes(size)} {name}" for name, size in held.items() if size)
    if said:
        yield f"  held then: {said}"
    yield (
        f"  predicted: {format_bytes(found.predicted_bytes)} in tensors at the fullest, most in "
        f"{found.largest_class}"
    )
