"""Where in a JSON document a fault lies, and how paths and values are printed.

A path is a tuple of steps from the root: names of fields, indices of arrays, and `Key`s of objects
whose keys the file chooses itself; `nodes[3].TMPCs["2"][0].syncTimeFw` has all three.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from trainwright.errors import Fault

if TYPE_CHECKING:
    from collections.abc import Iterable

Path: TypeAlias = "tuple[str | int, ...]"

_LONGEST_TEXT: Final = 60
_BEFORE_ALL_ENTRIES: Final = -1


class Key(str):
    """A key that the file chose, not the format; printed in brackets and quotes."""

    __slots__ = ()


class Inner(str):
    """A path inside a value, printed already by whoever checked that value."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PathFault:
    """A fault at a path; becomes a `Fault` when all are known and sorted."""

    path: Path
    problem: str


def show_path(path: Path) -> str:
    """Print a path the way code would reach it."""
    parts = []
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif isinstance(step, Inner) or _is_plain(step):
            parts.append(f".{step}" if parts else step)
        else:
            parts.append(f"[{quote(step)}]")
    return "".join(parts)


def _is_plain(step: str) -> bool:
    return step.isidentifier() and len(step) <= _LONGEST_TEXT and not isinstance(step, Key)


def quote(text: str) -> str:
    """Print text as JSON would, shortened, and printable even with half a surrogate pair in it."""
    short = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
    return json.dumps(short, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


def show_value(value: object) -> str:
    """Print a JSON value: numbers and text themselves, containers by their shape."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else _NON_FINITE[str(value)]
    if isinstance(value, int):
        digits = str(value)
        return digits if len(digits) <= _LONGEST_TEXT else f"{digits[:12]}… ({len(digits)} digits)"
    if isinstance(value, list):
        return "[...]" if value else "[]"
    return "{...}" if value else "{}"


def show_typed(value: object) -> str:
    """Print a JSON value with the name of its type, for values of a wrong type."""
    return "null" if value is None else f"{show_value(value)} ({_TYPE_NAMES[type(value)]})"


def in_document_order(faults: Iterable[PathFault], document: object) -> tuple[Fault, ...]:
    """Sort by where `document` has what the path names; what is missing comes before its siblings.

    Faults that name the same place with the same words are given once.
    """
    position = _Positions(document)
    ordered = sorted(faults, key=lambda fault: position.of(fault.path))
    unique = {(fault.path, fault.problem): None for fault in ordered}
    return tuple(Fault(show_path(path), problem) for path, problem in unique)


class _Positions:
    """Rank of a path in the document; the rank of every key is looked up once per object."""

    def __init__(self, document: object) -> None:
        self._document = document
        self._ranks: dict[int, dict[str, int]] = {}

    def of(self, path: Path) -> tuple[int, ...]:
        here, ranks = self._document, []
        for step in path:
            if isinstance(step, Inner):
                break
            if isinstance(here, dict):
                ranks.append(self._ranks_of(here).get(str(step), _BEFORE_ALL_ENTRIES))
                here = here.get(step)
            elif isinstance(here, list) and isinstance(step, int):
                ranks.append(step)
                here = here[step]
        return tuple(ranks)

    def _ranks_of(self, node: dict[str, object]) -> dict[str, int]:
        if id(node) not in self._ranks:
            self._ranks[id(node)] = {key: rank for rank, key in enumerate(node)}
        return self._ranks[id(node)]


_NON_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_TYPE_NAMES: Final[dict[type, str]] = {
    bool: "boolean",
    str: "string",
    float: "number",
    int: "number",
    list: "array",
    dict: "object",
}
