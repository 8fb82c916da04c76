"""Between the orders of a schedule and the words of a `SearchedOrder`."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from trainwright.errors import Fault, InvalidInput
from trainwright.plan.placement import Placement
from trainwright.plan.schedule import ActionKind, Schedule
from trainwright.plan.searched_order import SearchedOrder
from trainwright.scheduling.validate import validate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]


def words_of(schedule: Schedule, *, family: str) -> SearchedOrder:
    """The orders as words; stages must run F, I and W each in the order of microbatches."""
    return SearchedOrder(
        family=family,
        words=tuple(_word(schedule, rank) for rank in range(schedule.num_ranks)),
    )


def _word(schedule: Schedule, rank: int) -> str:
    rows = schedule.actions[schedule.rows_of(rank), :2].tolist()
    steps = []
    for (kind, stage), run in groupby(rows):
        count = sum(1 for _ in run)
        step = f"{stage}{ActionKind(kind).name}"
        steps.append(step if count == 1 else f"{step}*{count}")
    return " ".join(steps)


@lru_cache(maxsize=16)
def schedule_of_words(order: SearchedOrder, *, num_stages: int, num_microbatches: int) -> Schedule:
    """The orders of S stages and m microbatches.

    Raises `InvalidInput` under `words` where a rank is without a stage, a stage without a rank, an
    action missing or one too many, or where ranks wait for each other for ever.
    """
    steps = [_steps(word) for word in order.words]
    _require_counts(steps, num_stages=num_stages, num_microbatches=num_microbatches)
    rows = [np.repeat(of_rank[:, :2], of_rank[:, 2], axis=0) for of_rank in steps]
    owned = [np.unique(of_rank[:, 1]).tolist() for of_rank in rows]
    try:
        schedule = Schedule.of_ranks(
            [_numbered(of_rank) for of_rank in rows],
            placement=Placement.from_ranks(owned),
            num_microbatches=num_microbatches,
        )
        validate(schedule)
    except InvalidInput as error:
        raise InvalidInput(Fault("words", str(fault)) for fault in error.faults) from None
    return schedule


def _steps(word: str) -> Rows:
    """Kind, stage and count of every step, shape [n, 3]."""
    found = []
    for step in word.split(" "):
        name, _, count = step.partition("*")
        found.append((ActionKind[name[-1]].value, int(name[:-1]), int(count or 1)))
    return np.array(found, np.int64)


def _require_counts(steps: list[Rows], *, num_stages: int, num_microbatches: int) -> None:
    """Checked before tables are made of it: F, I and W of each of the rank's stages m times."""
    faults = []
    for rank, own in enumerate(steps):
        if (last := int(own[:, 1].max())) >= num_stages:
            problem = f"must name stages below {num_stages}, got {last}"
            faults.append(Fault(f"words[{rank}]", problem))
            continue
        counts = np.zeros((num_stages, 3), np.int64)
        np.add.at(counts, (own[:, 1], own[:, 0]), own[:, 2])
        wrong = np.argwhere((counts != num_microbatches) & counts.any(axis=1, keepdims=True))
        for stage, kind in wrong[:1].tolist():
            name, count = f"{stage}{ActionKind(kind).name}", int(counts[stage, kind])
            problem = f"must run {name} {num_microbatches} times, got {count}"
            faults.append(Fault(f"words[{rank}]", problem))
    named = {int(stage) for own in steps for stage in own[:, 1]}
    missing = next((stage for stage in range(num_stages) if stage not in named), None)
    if missing is not None and not faults:
        faults.append(Fault("words", f"must run every stage, misses {missing}"))
    if faults:
        raise InvalidInput(faults)


def _numbered(rows: Rows) -> NDArray[np.int32]:
    """With the microbatch of each row: how often its kind and stage came before, [n, 3]."""
    stream = rows[:, 1] * len(ActionKind) + rows[:, 0]
    by_stream = np.argsort(stream, kind="stable")
    counted = stream[by_stream]
    starts = np.flatnonzero(np.diff(counted, prepend=-1))
    lengths = np.diff(np.append(starts, len(counted)))
    microbatch = np.empty(len(rows), np.int64)
    microbatch[by_stream] = np.arange(len(rows)) - np.repeat(starts, lengths)
    return np.column_stack([rows, microbatch]).astype(np.int32)
