"""Orders as PyTorch's pipeline runtime reads them (`_load_csv`, torch 2.13).

One row per rank, one cell per action, such as `3F0`: stage, letter, microbatch. A forward and a
backward that overlap share a cell: `(0F1;7B0)OVERLAP_F_B`. Which rank owns a stage follows from the
rows. In the form "compute_only" an empty cell is idle time, which orders do not keep; in the form
"compute_comms" transfers and parameter steps have cells too, such as `3SEND_F0` and `3UNSHARD`, and
no cell is empty. Unlike PyTorch's, these readers take nothing they do not understand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from trainwright.errors import Fault, InvalidInput
from trainwright.plans.lowered import (
    LoweredAction,
    LoweredKind,
    LoweredSchedule,
    refuse_inexpressible,
    refuse_misordered,
)
from trainwright.plans.schedule import Action, ActionKind, Placement, Schedule

TESTED_TORCH_VERSION = "2.13.0"

Step = TypeVar("Step", Action, LoweredAction)

_PAIR = re.compile(r"\((?P<forward>[^;()]*);(?P<backward>[^;()]*)\)OVERLAP_F_B")


class CsvForm(StrEnum):
    """What the cells hold, by the name PyTorch's loader takes."""

    COMPUTE_ONLY = "compute_only"
    COMPUTE_COMMS = "compute_comms"


def read_compute_only(path: Path) -> Schedule:
    """Read orders; raises InvalidInput with every cell that is wrong, by row and column."""
    return parse_compute_only(path.read_text(encoding="utf-8"), source=str(path))


def parse_compute_only(text: str, *, source: str | None = None) -> Schedule:
    """Read orders from the text of a file."""
    rows = _read_rows(text, _computation, skip_empty=True, source=source)
    try:
        return Schedule.from_orders(rows.orders, pairs=rows.pairs)
    except InvalidInput as error:
        raise InvalidInput(error.faults, source=source) from error


def read_compute_comms(path: Path) -> LoweredSchedule:
    """Read lowered orders; raises InvalidInput with every cell that is wrong."""
    return parse_compute_comms(path.read_text(encoding="utf-8"), source=str(path))


def parse_compute_comms(text: str, *, source: str | None = None) -> LoweredSchedule:
    """Read lowered orders from the text of a file."""
    rows = _read_rows(text, _lowered_step, skip_empty=False, source=source)
    steps = [step for order in rows.orders for step in order]
    try:
        return LoweredSchedule(
            placement=Placement.from_ranks(
                [sorted({step.stage for step in order}) for order in rows.orders]
            ),
            num_microbatches=max(step.microbatch for step in steps) + 1,
            actions=np.array(steps, np.int32),
            rank_offsets=np.cumsum([0, *map(len, rows.orders)]),
            pairs=np.array(rows.pairs, np.int64),
        )
    except InvalidInput as error:
        raise InvalidInput(error.faults, source=source) from error


def format_compute_only(schedule: Schedule) -> str:
    """The text of a file; reading it gives the same schedule.

    Raises UnsupportedFeature for what PyTorch cannot run, or runs with wrong gradients;
    `scheduling.lower` puts a schedule in its terms where that is possible.
    """
    _refuse_what_pytorch_cannot_run(schedule)
    orders = map(schedule.order, range(schedule.num_ranks))
    return _write_rows(list(orders), schedule.pairs.tolist())


def format_compute_comms(lowered: LoweredSchedule) -> str:
    """The text of a file of lowered orders; reading it gives the same orders.

    Raises UnsupportedFeature as `format_compute_only` does.
    """
    _refuse_what_pytorch_cannot_run(lowered.compute_only())
    orders = map(lowered.order, range(lowered.num_ranks))
    return _write_rows(list(orders), lowered.pairs.tolist())


def _refuse_what_pytorch_cannot_run(schedule: Schedule) -> None:
    refuse_inexpressible(schedule)
    refuse_misordered(schedule)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows(Generic[Step]):
    """Orders by rank, and which steps (counted over all ranks) begin a pair."""

    orders: list[list[Step]]
    pairs: list[int]


def _read_rows(
    text: str, parse: Callable[[str], Step], *, skip_empty: bool, source: str | None
) -> _Rows[Step]:
    orders: list[list[Step]] = []
    pairs: list[int] = []
    faults: list[Fault] = []
    num_steps = 0
    for row, line in enumerate(text.splitlines()):
        order: list[Step] = []
        for column, cell in enumerate(line.split(",")):
            if skip_empty and not cell.strip():
                continue
            try:
                found = steps_in(cell.strip(), parse)
            except InvalidInput as error:
                place = f"row {row + 1}, column {column + 1}"
                faults += [Fault(place, fault.problem) for fault in error.faults]
                continue
            if len(found) == 2:
                pairs.append(num_steps)
            order += found
            num_steps += len(found)
        orders.append(order)
    if not num_steps and not faults:
        faults.append(Fault("rows", "must have at least 1 action, got none"))
    if faults:
        raise InvalidInput(faults, source=source)
    return _Rows(orders=orders, pairs=pairs)


def steps_in(cell: str, parse: Callable[[str], Step]) -> tuple[Step, ...]:
    """The one step of a cell, or the two of a pair; raises InvalidInput for anything else."""
    pair = _PAIR.fullmatch(cell)
    if pair is None:
        return (parse(cell),)
    forward, backward = parse(pair["forward"]), parse(pair["backward"])
    if forward.kind != ActionKind.F or backward.kind not in (ActionKind.B, ActionKind.I):
        raise InvalidInput.of("pair", f'must hold F and then B or I, got "{cell}"')
    return (forward, backward)


def _computation(text: str) -> Action:
    action = Action.parse(text)
    if action.kind is ActionKind.R:
        raise InvalidInput.of("action", f'must be F, I, W or B, got "{text}"')
    return action


def _lowered_step(text: str) -> LoweredAction:
    step = LoweredAction.parse(text)
    if step.kind is LoweredKind.R:
        raise InvalidInput.of("action", f'must be no recomputation, got "{text}"')
    return step


def _write_rows(orders: Sequence[Sequence[Action | LoweredAction]], pairs: Sequence[int]) -> str:
    lines, first = [], 0
    for order in orders:
        paired = {row - first for row in pairs if first <= row < first + len(order)}
        lines.append(",".join(cells_of(order, paired)) + "\n")
        first += len(order)
    return "".join(lines)


def cells_of(order: Sequence[Action | LoweredAction], paired: set[int]) -> Iterator[str]:
    """Cells of one rank; `paired` are the positions in its order that begin a pair."""
    position = 0
    while position < len(order):
        if position in paired:
            yield f"({order[position]};{order[position + 1]})OVERLAP_F_B"
            position += 2
        else:
            yield str(order[position])
            position += 1
