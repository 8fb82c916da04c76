"""Orders of a pipeline as JSON: everything a `Schedule` holds; `read(write(x)) == x`.

`orders` has one array of cells per rank, written as PyTorch's CSV does: `3F0`, and
`(0F1;7B0)OVERLAP_F_B` for a forward that overlaps a backward. Unlike CSV it carries the placement
and the number of microbatches, keeps ranks without actions, and allows recomputation (`3R0`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np

from trainwright.errors import Fault, InvalidInput, refuse, sourced
from trainwright.formats.atomic_file import read_bytes
from trainwright.formats.document_json import carried, decode, encode, refuse_newer_version
from trainwright.formats.json_text import PathFault, collector_at_rest, in_document_order, scan_json
from trainwright.formats.records import (
    BAD,
    AtLeast,
    AtMost,
    Closed,
    NonEmpty,
    array_schema,
    decoder_for,
    json_schema,
    titled,
)
from trainwright.plans.lowered import (
    STEP,
    LoweredAction,
    LoweredKind,
    LoweredSchedule,
    refuse_inexpressible,
    refuse_misordered,
)
from trainwright.plans.schedule import (
    ACTION,
    Action,
    ActionKind,
    Placement,
    Schedule,
    ScheduleCosts,
    ScheduleMemory,
    TransferModel,
)
from trainwright.profile.profile import LARGEST_COUNT

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Orders as PyTorch's pipeline runtime reads them (`_load_csv`, torch 2.13)
# -------------------------------------------------------------------------
# One row per rank, one cell per action, such as `3F0`: stage, letter, microbatch. A forward and a
# backward that overlap share a cell: `(0F1;7B0)OVERLAP_F_B`. Which rank owns a stage follows from
# the rows. In the form "compute_only" an empty cell is idle time, which orders do not keep; in the
# form "compute_comms" transfers and parameter steps have cells too, such as `3SEND_F0` and
# `3UNSHARD`, and no cell is empty. Unlike PyTorch's, these readers take nothing they do not
# understand.


TESTED_TORCH_VERSION = "2.13.0"

Step = TypeVar("Step", Action, LoweredAction)

_PAIR = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_([BFW])")


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
    with sourced(source):
        return Schedule.from_orders(rows.orders, pairs=rows.pairs)


def read_compute_comms(path: Path) -> LoweredSchedule:
    """Read lowered orders; raises InvalidInput with every cell that is wrong."""
    return parse_compute_comms(path.read_text(encoding="utf-8"), source=str(path))


def parse_compute_comms(text: str, *, source: str | None = None) -> LoweredSchedule:
    """Read lowered orders from the text of a file."""
    rows = _read_rows(text, _lowered_step, skip_empty=False, source=source)
    steps = [step for order in rows.orders for step in order]
    with sourced(source):
        return LoweredSchedule(
            placement=Placement.from_ranks(
                [sorted({step.stage for step in order}) for order in rows.orders]
            ),
            num_microbatches=max(step.microbatch for step in steps) + 1,
            actions=np.array(steps, np.int32),
            rank_offsets=np.cumsum([0, *map(len, rows.orders)]),
            pairs=np.array(rows.pairs, np.int64),
        )


def format_compute_only(schedule: Schedule) -> str:
    """The text of a file; reading it gives the same schedule.

    Raises UnsupportedFeature for what PyTorch cannot run, or runs with wrong gradients;
    `scheduling.lower` puts a schedule in its terms where that is possible.
    """
    _refuse_what_pytorch_cannot_run(schedule)
    return _rows_written(schedule)


def format_compute_comms(lowered: LoweredSchedule) -> str:
    """The text of a file of lowered orders; reading it gives the same orders.

    Raises UnsupportedFeature as `format_compute_only` does.
    """
    _refuse_what_pytorch_cannot_run(lowered.compute_only())
    return _rows_written(lowered)


def _rows_written(orders: Schedule | LoweredSchedule) -> str:
    rows = [orders.order(rank) for rank in range(orders.num_ranks)]
    return _write_rows(rows, orders.pairs[orders.meets_backward].tolist())


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
    first, second, kind = parse(pair[1]), parse(pair[2]), pair[3]
    if first.kind != ActionKind.F or _in_pair(second) != kind:
        wanted = "B or I" if kind == "B" else kind
        raise InvalidInput.of("pair", f'must hold F and then {wanted}, got "{cell}"')
    return (first, second)


def _in_pair(second: Action | LoweredAction) -> str:
    """How cells of pairs call what is beside a forward."""
    return "B" if second.kind == ActionKind.I else second.kind.name


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
            first, second = order[position : position + 2]
            yield f"({first};{second})OVERLAP_F_{_in_pair(second)}"
            position += 2
        else:
            yield str(order[position])
            position += 1


def csv_schema() -> dict[str, Any]:
    """The JSON Schema of a file in either form, as rows of the cells between its commas.

    What a pair holds, and that its actions make a schedule, is not in it.
    """
    cells = {form: f"{known.pattern}|{_PAIR.pattern}" for form, known in _CELLS.items()}
    idle = {CsvForm.COMPUTE_ONLY: "?", CsvForm.COMPUTE_COMMS: ""}
    either = [
        array_schema(array_schema({"type": "string", "pattern": rf"^\s*({cell}){idle[form]}\s*$"}))
        | {"description": f"{form}; of a pair the cells of both actions, without R"}
        for form, cell in cells.items()
    ]
    about = "Orders as PyTorch's pipeline runtime loads them: a row per rank, a cell per action."
    return titled("orders of PyTorch", {"minItems": 1, "anyOf": either}, about=about)


_CELLS = {CsvForm.COMPUTE_ONLY: ACTION, CsvForm.COMPUTE_COMMS: STEP}


# ----------------------------------------------------------------------------------------------


FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdersRecord(Closed):
    """The order in which each rank of a pipeline runs its actions."""

    kind: Literal["orders"]
    format_version: Annotated[int, AtLeast(1), AtMost(FORMAT_VERSION)]
    num_microbatches: Annotated[int, AtLeast(1), AtMost(LARGEST_COUNT)]
    rank_of_stage: Annotated[tuple[Annotated[int, AtLeast(0)], ...], NonEmpty()]
    num_pipelines: Annotated[int, AtLeast(1)] | None = None
    num_slices: Annotated[int, AtLeast(1)] | None = None
    head_barriers: Annotated[int, AtLeast(0), AtMost(2)] | None = None
    orders: Annotated[
        tuple[tuple[str, ...], ...],
        NonEmpty(),
        "per rank its actions: stage, a letter of F, I, W, B, R, O, D, L, V and T, microbatch",
    ]


def orders_schema() -> dict[str, Any]:
    """The JSON Schema of the format."""
    return json_schema(OrdersRecord, title="trainwright orders")


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
    _refuse_results(value, "orders", source=source)
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
    with sourced(source):
        return Schedule.of_ranks(
            [order.actions.astype(np.int32) for order in orders],
            placement=Placement(
                rank_of_stage=record.rank_of_stage,
                num_ranks=len(orders),
                num_pipelines=record.num_pipelines or 1,
            ),
            num_microbatches=record.num_microbatches,
            pairs=np.concatenate(pairs),
            num_slices=record.num_slices or 1,
            head_barriers=record.head_barriers or 0,
        )


def write_orders(schedule: Schedule) -> dict[str, Any]:
    """The schedule as JSON values."""
    record = OrdersRecord(
        kind="orders",
        format_version=FORMAT_VERSION,
        num_microbatches=schedule.num_microbatches,
        rank_of_stage=schedule.placement.rank_of_stage,
        num_pipelines=None if schedule.is_plain else schedule.placement.num_pipelines,
        num_slices=None if schedule.is_plain else schedule.num_slices,
        head_barriers=None if schedule.is_plain else schedule.head_barriers,
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
    num_pipelines: int = 1,
    num_slices: int = 1,
    head_barriers: int = 0,
    source: str | None = None,
) -> Schedule:
    """Orders from what `order_rows` gave; raises InvalidInput with all faults."""
    value = {
        "kind": "orders",
        "format_version": FORMAT_VERSION,
        "num_microbatches": num_microbatches,
        "rank_of_stage": list(rank_of_stage),
        "num_pipelines": num_pipelines,
        "num_slices": num_slices,
        "head_barriers": head_barriers,
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


# What the stages of a pipeline cost, as a user writes it down: the file behind `--spec`
# --------------------------------------------------------------------------------------
# Lists hold one value per stage, per edge between stages or per rank, in order; a list of one value
# stands for all. `costs` turns it into the costs of a given placement, because how many values a
# list must have depends on that.
LARGEST_AMOUNT = 1e100  # seconds or bytes; sums over all actions, and products of both, are finite

Amounts: TypeAlias = tuple[Annotated[float, AtLeast(0)], ...]
Deltas: TypeAlias = tuple[float, ...]

_EDGE_FIELDS = ("transfer_s", "backward_transfer_s")
_SINGLE_FIELDS = ("barrier_s",)
_RANK_FIELDS = ("static_bytes", "limit_bytes")
_DELTA_FIELDS = ("forward_bytes", "input_grad_bytes", "weight_grad_bytes", "recompute_bytes")
_SAVED_FIELD = "recompute_saved_bytes"
_TRANSIENT_FIELDS = {
    ActionKind.F: "forward_transient_bytes",
    ActionKind.I: "input_grad_transient_bytes",
    ActionKind.W: "weight_grad_transient_bytes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpec(Closed):
    """Times and memory of pipeline stages; a list of one value stands for all."""

    kind: Literal["schedule_spec"] = "schedule_spec"
    format_version: Annotated[int, AtLeast(1), AtMost(FORMAT_VERSION)] = FORMAT_VERSION
    num_microbatches: Annotated[int, AtLeast(1), AtMost(LARGEST_COUNT)] | None = None
    rank_of_stage: Annotated[
        tuple[Annotated[int, AtLeast(0), AtMost(LARGEST_COUNT)], ...] | None,
        "the placement, where it is given and not chosen",
    ] = None
    forward_s: Annotated[Amounts, NonEmpty(), "per stage, of one microbatch, as all times"]
    input_grad_s: Annotated[Amounts, NonEmpty(), "per stage"]
    weight_grad_s: Annotated[Amounts, NonEmpty(), "per stage"]
    backward_s: Annotated[Amounts, "per stage, where fused; the sum of the two if left out"] = ()
    recompute_s: Annotated[Amounts, "per stage"] = ()
    overhead_s: Annotated[Amounts, "per stage, added to each of its actions"] = ()
    transfer_s: Annotated[Amounts, "per edge: of the tensor from each stage to the next"] = ()
    backward_transfer_s: Annotated[Amounts, "per edge; as forward if left out"] = ()
    offload_s: Annotated[Amounts, "per stage: to copy its activations to the host"] = ()
    reload_s: Annotated[Amounts, "per stage; as offload if left out"] = ()
    head_s: Annotated[Amounts, "per stage: V of a head cut over all ranks"] = ()
    head_grad_s: Annotated[Amounts, "per stage: T; as V if left out"] = ()
    barrier_s: Annotated[
        float, AtLeast(0), AtMost(LARGEST_AMOUNT), "to a cut head, and of each of its barriers"
    ] = 0.0
    attention_share: Annotated[
        float, AtLeast(0), AtMost(1), "of the compute time, where sequences are cut into slices"
    ] = 0.0
    transfer_model: TransferModel = TransferModel.FREE
    blocking_fraction: Annotated[float, AtLeast(0), AtMost(1)] = 0.0
    forward_bytes: Annotated[
        Deltas, "per stage: left allocated by a forward; if left out, activations are counted"
    ] = ()
    input_grad_bytes: Annotated[Deltas, "per stage: negative where it frees more"] = ()
    weight_grad_bytes: Annotated[Deltas, "per stage; frees all that is left if left out"] = ()
    recompute_bytes: Annotated[Deltas, "per stage"] = ()
    recompute_saved_bytes: Annotated[
        Amounts, "per stage: what a forward need not keep if R runs; lets a search choose R"
    ] = ()
    forward_transient_bytes: Annotated[Amounts, "per stage: on top, while it runs"] = ()
    input_grad_transient_bytes: Annotated[Amounts, "per stage"] = ()
    weight_grad_transient_bytes: Annotated[Amounts, "per stage"] = ()
    static_bytes: Annotated[Amounts, "per rank: what is always there"] = ()
    limit_bytes: Annotated[
        Amounts, "per rank; none if left out; in activations where these are counted"
    ] = ()

    def __post_init__(self) -> None:
        faults = [*self._size_faults(), *self._rank_faults(), *self._memory_faults()]
        if self.rank_of_stage is None:
            faults += self._disagreements()
        elif self.placement is not None:
            faults += self._length_faults(self.placement)
        if faults:
            raise InvalidInput(faults)

    @property
    def placement(self) -> Placement | None:
        """The placement, if the file gives one; ranks count from 0 to the largest it names."""
        if not self.rank_of_stage or any(self._rank_faults()):
            return None
        return Placement(rank_of_stage=self.rank_of_stage, num_ranks=max(self.rank_of_stage) + 1)

    @property
    def num_stages(self) -> int | None:
        """S, where the placement or a list of more than one value tells."""
        if self.rank_of_stage is not None:
            return len(self.rank_of_stage)
        return next((stages for _, _, stages in self._telling_lists()), None)

    @property
    def saved_bytes(self) -> float | tuple[float, ...] | None:
        """What recompute saves: of each stage, or one for all; None where it is no choice."""
        found: float | tuple[float, ...] | None = self._values(_SAVED_FIELD, None)
        return found

    def costs(self, placement: Placement) -> ScheduleCosts:
        """The costs of stages placed so; raises InvalidInput where a list has another length."""
        refuse(self._length_faults(placement))
        overhead = self._values("overhead_s", 0.0)
        return ScheduleCosts.of(
            placement,
            forward_s=self._values("forward_s", 0.0),
            input_grad_s=self._values("input_grad_s", 0.0),
            weight_grad_s=self._values("weight_grad_s", 0.0),
            backward_s=self._values("backward_s", None),
            recompute_s=self._values("recompute_s", 0.0),
            overhead_s=dict.fromkeys(set(ActionKind) - {ActionKind.D}, overhead),
            transfer_s=self._values("transfer_s", 0.0),
            backward_transfer_s=self._values("backward_transfer_s", None),
            offload_s=self._values("offload_s", 0.0),
            reload_s=self._values("reload_s", None),
            head_s=self._values("head_s", 0.0),
            head_grad_s=self._values("head_grad_s", None),
            barrier_s=self.barrier_s,
            memory=self._memory(placement),
            transfer_model=self.transfer_model,
            blocking_fraction=self.blocking_fraction,
        )

    def _memory(self, placement: Placement) -> ScheduleMemory:
        per_rank = {
            "static_bytes": self._values("static_bytes", 0.0),
            "limit_bytes": self._values("limit_bytes", np.inf),
        }
        if not self.forward_bytes:
            return ScheduleMemory.of(placement, **per_rank)
        forward = np.asarray(self._values("forward_bytes", 0.0))
        input_grad = np.asarray(self._values("input_grad_bytes", 0.0))
        return ScheduleMemory.of(
            placement,
            forward_bytes=forward,
            input_grad_bytes=input_grad,
            weight_grad_bytes=self._values("weight_grad_bytes", -(forward + input_grad)),
            recompute_bytes=self._values("recompute_bytes", 0.0),
            transient_bytes={
                kind: self._values(name, 0.0) for kind, name in _TRANSIENT_FIELDS.items()
            },
            **per_rank,
        )

    def _values(self, name: str, otherwise: Any) -> Any:
        """What a broadcast takes: one value, all of them, or what stands for none."""
        values: tuple[float, ...] = getattr(self, name)
        if not values:
            return otherwise
        return values[0] if len(values) == 1 else values

    def _stage_lists(self) -> Iterator[tuple[str, int]]:
        """Lists per stage or edge, and how many more stages there are than entries."""
        for field in fields(self):
            if field.name in _EDGE_FIELDS:
                yield field.name, 1
            elif field.name.endswith(("_s", "_bytes")) and field.name not in (
                *_RANK_FIELDS,
                *_SINGLE_FIELDS,
            ):
                yield field.name, 0

    def _telling_lists(self) -> Iterator[tuple[str, int, int]]:
        """Lists of more than one value: name, difference, and the number of stages they are for."""
        for name, fewer in self._stage_lists():
            if (entries := len(getattr(self, name))) > 1:
                yield name, fewer, entries + fewer

    def _size_faults(self) -> Iterator[Fault]:
        for name in (field.name for field in fields(self)):
            if name in _SINGLE_FIELDS or not name.endswith(("_s", "_bytes")):
                continue
            for at, value in enumerate(getattr(self, name)):
                unlimited = name == "limit_bytes" and value == np.inf
                if not unlimited and (problem := too_large(value)) is not None:
                    yield Fault(f"{name}[{at}]", problem)

    def _rank_faults(self) -> Iterator[Fault]:
        if self.rank_of_stage is None:
            return
        used = set(self.rank_of_stage)
        unused = next(rank for rank in count() if rank not in used)
        if not used:
            yield Fault("rank_of_stage", "must have at least 1 entry, got 0")
        elif unused < max(used):
            yield Fault("rank_of_stage", f"must use every rank up to {max(used)}, misses {unused}")

    def _memory_faults(self) -> Iterator[Fault]:
        for name in (*_DELTA_FIELDS[1:], _SAVED_FIELD, *_TRANSIENT_FIELDS.values()):
            if getattr(self, name) and not self.forward_bytes:
                yield Fault(name, "must come with forward_bytes, which is missing")

    def _disagreements(self) -> Iterator[Fault]:
        """Lists for different numbers of stages, where no placement says which is right."""
        lists = tuple(self._telling_lists())
        for name, fewer, stages in lists[1:]:
            if stages != lists[0][2]:
                wanted = f"must have {lists[0][2] - fewer} entries or 1, as {lists[0][0]} is for"
                yield Fault(name, f"{wanted} {lists[0][2]} stages, got {stages - fewer}")

    def _length_faults(self, placement: Placement) -> Iterator[Fault]:
        sizes = {name: placement.num_stages - fewer for name, fewer in self._stage_lists()}
        sizes |= dict.fromkeys(_RANK_FIELDS, placement.num_ranks)
        of = f"{placement.num_stages} stages on {placement.num_ranks} ranks"
        for name, size in sizes.items():
            if (entries := len(getattr(self, name))) > 1 and entries != size:
                yield Fault(name, f"must have {size} entries or 1 for {of}, got {entries}")


def too_large(value: float) -> str | None:
    """What is wrong with a time or size that would make totals overflow."""
    if abs(value) <= LARGEST_AMOUNT:
        return None
    rule = f"must be at most {LARGEST_AMOUNT:g}, so that the total stays finite"
    return f"{rule}, got {value:g}; scale all of its kind down alike"


def schedule_spec_schema() -> dict[str, Any]:
    """The JSON Schema of the format."""
    return json_schema(ScheduleSpec, title="trainwright schedule spec")


def load_schedule_spec(path: Path) -> ScheduleSpec:
    """Read a spec file, or the costs that a schedule carries; raises InvalidInput."""
    text = scan_json(read_bytes(path, name="spec"), source=str(path), what="spec")
    if text.value.get("kind") == "schedule":
        own = carried(text.value, "costs", source=str(path))
        return read_schedule_spec(own.content, source=str(path))
    return read_schedule_spec(text.value, source=str(path), text_faults=text.faults)


def read_schedule_spec(
    value: dict[str, Any], *, source: str | None = None, text_faults: Iterable[PathFault] = ()
) -> ScheduleSpec:
    """Turn a parsed spec into a value; raises InvalidInput with all faults."""
    _refuse_results(value, "schedule_spec", source=source)
    refuse_newer_version(value, FORMAT_VERSION, source=source)
    return decode(ScheduleSpec, value, source=source, text_faults=text_faults)


def _refuse_results(value: Mapping[str, Any], own: str, *, source: str | None) -> None:
    """Raise `InvalidInput` for a document of a result, which has none of the keys that are read."""
    kind = value.get("kind")
    if isinstance(kind, str) and kind != own and "request" in value:
        problem = f'must be "{own}" or "schedule", got "{kind}"; what its own schedule is like'
        raise InvalidInput.of("kind", f"{problem}: trainwright report {source or 'FILE'}")
