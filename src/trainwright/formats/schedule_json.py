"""Orders of a pipeline as JSON: everything a `Schedule` holds; `read(write(x)) == x`.

`orders` has one array of cells per rank, written as PyTorch's CSV does: `3F0`, and
`(0F1;7B0)OVERLAP_F_B` for a forward that overlaps a backward. Unlike CSV it carries the placement
and the number of microbatches, keeps ranks without actions, and allows recomputation (`3R0`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from trainwright.errors import InvalidInput
from trainwright.formats.document_json import encode, refuse_newer_version
from trainwright.formats.json_path import PathFault, in_document_order
from trainwright.formats.json_text import collector_at_rest, scan_json
from trainwright.formats.pytorch_csv import (
    cells_of,
    parse_compute_comms,
    parse_compute_only,
    steps_in,
)
from trainwright.formats.record_decoder import BAD, decoder_for
from trainwright.formats.record_schema import json_schema
from trainwright.formats.record_types import AtLeast, AtMost, Closed, NonEmpty
from trainwright.plan.placement import Placement
from trainwright.plan.schedule import Action, ActionKind, Schedule
from trainwright.profile.setting import LARGEST_COUNT

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdersRecord(Closed):
    """The order in which each rank of a pipeline runs its actions."""

    kind: Literal["orders"]
    format_version: Annotated[int, AtLeast(1), AtMost(FORMAT_VERSION)]
    num_microbatches: Annotated[int, AtLeast(1), AtMost(LARGEST_COUNT)]
    rank_of_stage: Annotated[tuple[Annotated[int, AtLeast(0)], ...], NonEmpty()]
    orders: Annotated[
        tuple[tuple[str, ...], ...],
        NonEmpty(),
        "per rank its actions: stage, F, I, W, B or R, microbatch",
    ]


def orders_schema() -> dict[str, Any]:
    """The JSON Schema of the format."""
    return json_schema(OrdersRecord, title="trainwright orders")


def load_orders(path: Path) -> Schedule:
    """Read orders from a file: JSON, or one of PyTorch's two CSV forms, told apart by content.

    Of a lowered file the computations are kept. Raises InvalidInput with every fault.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput.of("orders", f"cannot be read: {error.strerror}") from None
    return parse_orders(data, source=str(path))


def is_json(data: bytes) -> bool:
    """Whether the bytes of an orders file are meant as JSON."""
    return data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")


def parse_orders(data: bytes, *, source: str | None = None) -> Schedule:
    """Read the bytes of a file as `load_orders` does."""
    if is_json(data):
        return read_orders_bytes(data, source=source)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        problem = "must be JSON or PyTorch's CSV, got text that is not UTF-8"
        raise InvalidInput.of("orders", problem, source=source) from None
    if any(word in text for word in ("SEND_", "RECV_", "REDUCE_GRAD", "SHARD")):
        return parse_compute_comms(text, source=source).compute_only()
    return parse_compute_only(text, source=source)


def read_orders_bytes(data: bytes, *, source: str | None = None) -> Schedule:
    """Read the bytes of an orders document; raises InvalidInput with all faults."""
    text = scan_json(data, source=source, what="orders")
    return read_orders(text.value, source=source, text_faults=text.faults)


@collector_at_rest()
def read_orders(
    value: dict[str, Any], *, source: str | None = None, text_faults: Iterable[PathFault] = ()
) -> Schedule:
    """Turn a parsed orders document into a schedule; raises InvalidInput with all faults.

    Only what a schedule needs to exist is checked; whether it is legal is for `validate`.
    """
    refuse_newer_version(value, FORMAT_VERSION, source=source)
    faults = list(text_faults)
    record = decoder_for(OrdersRecord)(value, (), faults)
    orders: list[_Order] = []
    if record is not BAD:
        faults += _rank_faults(record)
        orders = [_read_order(rank, cells, faults) for rank, cells in enumerate(record.orders)]
        faults += _range_faults(record, orders)
    if faults:
        raise InvalidInput(in_document_order(faults, value), source=source)
    starts = np.cumsum([0, *(len(order.actions) for order in orders)])
    pairs = [order.pairs + start for order, start in zip(orders, starts[:-1], strict=True)]
    try:
        return Schedule.of_ranks(
            [order.actions.astype(np.int32) for order in orders],
            placement=Placement(rank_of_stage=record.rank_of_stage, num_ranks=len(orders)),
            num_microbatches=record.num_microbatches,
            pairs=np.concatenate(pairs),
        )
    except InvalidInput as error:
        raise InvalidInput(error.faults, source=source) from error


def write_orders(schedule: Schedule) -> dict[str, Any]:
    """The schedule as JSON values."""
    record = OrdersRecord(
        kind="orders",
        format_version=FORMAT_VERSION,
        num_microbatches=schedule.num_microbatches,
        rank_of_stage=schedule.placement.rank_of_stage,
        orders=tuple(tuple(_cells(schedule, rank)) for rank in range(schedule.num_ranks)),
    )
    return encode(record)


def order_rows(schedule: Schedule) -> tuple[str, ...]:
    """Per rank its cells in one text, parted by commas, as a row of PyTorch's CSV."""
    if len(schedule.pairs):
        return tuple(",".join(_cells(schedule, rank)) for rank in range(schedule.num_ranks))
    letters = [kind.name for kind in ActionKind]
    orders = (schedule.actions[schedule.rows_of(rank)] for rank in range(schedule.num_ranks))
    return tuple(
        ",".join([f"{stage}{letters[kind]}{mb}" for kind, stage, mb in order.tolist()])
        for order in orders
    )


def read_order_rows(
    rows: tuple[str, ...],
    *,
    rank_of_stage: tuple[int, ...],
    num_microbatches: int,
    source: str | None = None,
) -> Schedule:
    """Orders from what `order_rows` gave; raises InvalidInput with all faults."""
    value = {
        "kind": "orders",
        "format_version": FORMAT_VERSION,
        "num_microbatches": num_microbatches,
        "rank_of_stage": list(rank_of_stage),
        "orders": [row.split(",") if row else [] for row in rows],
    }
    return read_orders(value, source=source)


def _cells(schedule: Schedule, rank: int) -> Iterator[str]:
    first = int(schedule.rank_offsets[rank])
    return cells_of(schedule.order(rank), {row - first for row in schedule.pairs.tolist()})


@dataclass(frozen=True, slots=True)
class _Order:
    """Actions of one rank, the cell each came from, and the positions that begin a pair."""

    actions: NDArray[np.int64]
    cells: list[int]
    pairs: NDArray[np.int64]


def _rank_faults(record: OrdersRecord) -> Iterator[PathFault]:
    last = len(record.orders) - 1
    for stage, rank in enumerate(record.rank_of_stage):
        if rank > last:
            problem = f"must be a rank that has an order, 0 to {last}, got {rank}"
            yield PathFault(("rank_of_stage", stage), problem)


def _read_order(rank: int, cells: tuple[str, ...], faults: list[PathFault]) -> _Order:
    actions: list[Action] = []
    origin: list[int] = []
    pairs: list[int] = []
    for index, cell in enumerate(cells):
        try:
            found = steps_in(cell, Action.parse)
        except InvalidInput as error:
            faults += [PathFault(("orders", rank, index), f.problem) for f in error.faults]
            continue
        if len(found) == 2:
            pairs.append(len(actions))
        actions += found
        origin += [index] * len(found)
    rows = np.array(actions, np.int64).reshape(-1, 3)
    return _Order(rows, origin, np.array(pairs, np.int64))


def _range_faults(record: OrdersRecord, orders: list[_Order]) -> Iterator[PathFault]:
    sizes = (("stage", 1, len(record.rank_of_stage)), ("microbatch", 2, record.num_microbatches))
    for rank, order in enumerate(orders):
        for name, column, size in sizes:
            for row in np.flatnonzero(order.actions[:, column] >= size).tolist():
                problem = f"{name} must be from 0 to {size - 1}, got {order.actions[row, column]}"
                yield PathFault(("orders", rank, order.cells[row]), problem)
