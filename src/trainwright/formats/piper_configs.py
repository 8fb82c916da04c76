"""The configs of one Piper node → rows of the cost table.

A row is a plain tuple, hashable, so that layers with equal rows are found by a dictionary: they
share a class. A row whose sync values are all zero keeps none, so that it fits any neighbourhood.
"""

from __future__ import annotations

import re
import sys
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trainwright.formats.json_path import Key, quote
from trainwright.profile.setting import LARGEST_COUNT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.formats.json_fields import FieldReader
    from trainwright.formats.json_path import Path
    from trainwright.formats.piper_graph import LostEdges

_DEGREE: Final = re.compile(r"[1-9][0-9]*", re.ASCII)
_LARGEST_FLOAT: Final = sys.float_info.max


class Row(NamedTuple):
    """One config: p, w, a and b of the paper, and sync bytes to predecessors, then successors."""

    tensor_parallel: int
    option_id: str
    duration_s: float
    gradient_bytes: float
    saved_bytes: float
    static_bytes: float
    boundary_bytes: tuple[float, ...]


class Side(NamedTuple):
    """One side of a layer: its sync table, and the ids (as text) of its neighbours there.

    `others` is in merged-edge order, and `None` where the neighbours are not known.
    """

    table: str  # "syncTimeFw", "syncTimeBw"
    relation: str  # "predecessor", "successor"
    layer: str
    others: Sequence[str] | None


class ConfigReader:
    """Reads the configs of node after node; `lost` excuses sync entries of broken edges."""

    def __init__(self, reader: FieldReader, lost: LostEdges) -> None:
        self._reader = reader
        self._lost = lost

    def read(self, node: dict[str, Any], at: Path, sides: tuple[Side, Side]) -> tuple[Row, ...]:
        """All rows of a node, by ascending degree; `sides` are the incoming, then the outgoing."""
        degrees = self._reader.mapping(node, "TMPCs", at)
        if degrees is None:
            return ()
        rows: list[Row] = []
        at = (*at, "TMPCs")
        if all(configs == [] for configs in degrees.values()):
            self._reader.fault(at, "must offer at least one config, got none")
        for key in degrees:
            degree = self._degree(key, at)
            ids: dict[str, int] = {}
            for index, config in enumerate(self._reader.array(degrees, Key(key), at) or ()):
                place = (*at, Key(key), index)
                if self._reader.entry(config, place) is not None:
                    option_id = self._option_id(config, place, ids)
                    rows.append(self._row(config, place, degree, option_id, sides))
        rows.sort(key=attrgetter("tensor_parallel"))
        return tuple(rows)

    def _degree(self, key: str, at: Path) -> int:
        if _DEGREE.fullmatch(key) is None:
            problem = f"key must be a positive integer, got {quote(key)}"
        elif len(key) > len(str(LARGEST_COUNT)) or int(key) > LARGEST_COUNT:
            problem = f"key must be <= {LARGEST_COUNT}, got {quote(key)}"
        else:
            return int(key)
        self._reader.fault((*at, Key(key)), problem)
        return 1

    def _option_id(self, config: dict[str, Any], at: Path, ids: dict[str, int]) -> str:
        option_id = self._reader.text(config, "id", at)
        index = at[-1]
        assert isinstance(index, int)
        if option_id == "":
            self._reader.fault((*at, "id"), 'must be non-empty, got ""')
        elif option_id is not None and (first := ids.setdefault(option_id, index)) != index:
            problem = f"must be unique within the degree, got {quote(option_id)} (also [{first}])"
            self._reader.fault((*at, "id"), problem)
        return option_id or ""

    def _row(
        self,
        config: dict[str, Any],
        at: Path,
        degree: int,
        option_id: str,
        sides: tuple[Side, Side],
    ) -> Row:
        amount = self._reader.amount
        incoming, outgoing = sides
        boundary = self._sync(config, at, incoming) + self._sync(config, at, outgoing)
        return Row(
            degree,
            option_id,
            amount(config, "timePerSample", at),
            amount(config, "parameterSize", at),
            amount(config, "memoryUsageA", at),
            amount(config, "memoryUsageB", at),
            boundary if any(boundary) else (),
        )

    def _sync(self, config: dict[str, Any], at: Path, side: Side) -> tuple[float, ...]:
        """Sync bytes in the order of `side.others`."""
        table = self._reader.mapping(config, side.table, at)
        if table is None:
            return ()
        others = side.others or ()
        values = tuple(map(table.get, others))
        if len(table) == len(others) and all(map(_is_plain_amount, values)):
            return values  # type: ignore[return-value]  # plain amounts are floats
        return self._check_sync(table, (*at, side.table), side)

    def _check_sync(self, table: dict[str, Any], at: Path, side: Side) -> tuple[float, ...]:
        values = {key: self._reader.amount(table, Key(key), at) for key in table}
        if side.others is None:
            return ()
        others = set(side.others)
        for other in side.others:
            if other not in table:
                problem = f"must have an entry for {side.relation} {other}, got none"
                self._reader.fault(at, problem)
        for key in table:
            if key not in others and not self._is_lost(key, side):
                problem = f"key must be a {side.relation} of node {side.layer}, got {quote(key)}"
                self._reader.fault((*at, Key(key)), problem)
        return tuple(values.get(other, 0.0) for other in side.others)

    def _is_lost(self, key: str, side: Side) -> bool:
        if side.relation == "predecessor":
            return self._lost.explain(key, side.layer)
        return self._lost.explain(side.layer, key)


def _is_plain_amount(value: object) -> bool:
    return type(value) is float and 0.0 <= value <= _LARGEST_FLOAT
