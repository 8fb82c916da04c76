"""Orders as PyTorch's pipeline runtime reads them (`_load_csv`, format "compute_only").

One row per rank, one cell per action, `<stage><letter><microbatch>` such as `3F0`; an empty cell is
idle time, which orders do not keep. A forward and a backward that overlap share a cell:
`(0F1;7B0)OVERLAP_F_B`. Which rank owns a stage follows from the rows. Unlike PyTorch's, this reader
takes nothing it does not understand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainwright.errors import Fault, InvalidInput, UnsupportedFeature
from trainwright.plan.schedule import Action, ActionKind, Schedule

if TYPE_CHECKING:
    from pathlib import Path

_PAIR = re.compile(r"\((?P<forward>[^;()]*);(?P<backward>[^;()]*)\)OVERLAP_F_B")


def read_compute_only(path: Path) -> Schedule:
    """Read orders; raises InvalidInput with every cell that is wrong, by row and column."""
    return parse_compute_only(path.read_text(encoding="utf-8"), source=str(path))


def parse_compute_only(text: str, *, source: str | None = None) -> Schedule:
    """Read orders from the text of a file."""
    orders: list[list[Action]] = []
    pairs, faults = [], []
    num_rows = 0
    for row, line in enumerate(text.splitlines()):
        orders.append([])
        for column, cell in enumerate(line.split(",")):
            try:
                found = tuple(_actions_in(cell.strip()))
            except InvalidInput as error:
                place = f"row {row + 1}, column {column + 1}"
                faults += [Fault(place, fault.problem) for fault in error.faults]
                continue
            if len(found) == 2:
                pairs.append(num_rows)
            orders[-1] += found
            num_rows += len(found)
    if not num_rows and not faults:
        faults.append(Fault("rows", "must have at least 1 action, got none"))
    if faults:
        raise InvalidInput(faults, source=source)
    try:
        return Schedule.from_orders(orders, pairs=pairs)
    except InvalidInput as error:
        raise InvalidInput(error.faults, source=source) from error


def format_compute_only(schedule: Schedule) -> str:
    """The text of a file; reading it gives the same schedule.

    Raises UnsupportedFeature for recomputation, which PyTorch does inside its modules.
    """
    if (schedule.actions[:, 0] == ActionKind.R).any():
        raise UnsupportedFeature(
            "PyTorch schedules have no recompute action",
            alternative="checkpoint inside the module and order without R",
        )
    return "".join(",".join(_cells_of(schedule, rank)) + "\n" for rank in range(schedule.num_ranks))


def _actions_in(cell: str) -> Iterator[Action]:
    if not cell:
        return
    pair = _PAIR.fullmatch(cell)
    if pair is None:
        yield _supported(cell)
        return
    forward, backward = _supported(pair["forward"]), _supported(pair["backward"])
    if forward.kind is not ActionKind.F or backward.kind not in (ActionKind.B, ActionKind.I):
        raise InvalidInput.of("pair", f'must hold F and then B or I, got "{cell}"')
    yield forward
    yield backward


def _supported(text: str) -> Action:
    action = Action.parse(text)
    if action.kind is ActionKind.R:
        raise InvalidInput.of("action", f'must be F, I, W or B, got "{text}"')
    return action


def _cells_of(schedule: Schedule, rank: int) -> Iterator[str]:
    order = schedule.order(rank)
    first_row = int(schedule.rank_offsets[rank])
    paired = set((schedule.pairs - first_row).tolist())
    position = 0
    while position < len(order):
        if position in paired:
            yield f"({order[position]};{order[position + 1]})OVERLAP_F_B"
            position += 2
        else:
            yield str(order[position])
            position += 1
