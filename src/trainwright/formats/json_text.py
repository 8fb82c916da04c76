"""JSON text → Python values, strictly: what the standard library lets pass is a fault here.

The standard library's C scanner does the work. Its hooks notice repeated keys and the constants
NaN and Infinity, but not where they are; only where one was noticed is the value walked for the
paths. A 40 MB file costs about a second.
"""

from __future__ import annotations

import gc
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from trainwright.errors import Fault, InvalidInput

# Where in a JSON document a fault lies, and how paths and values are printed
# ---------------------------------------------------------------------------
# A path is a tuple of steps from the root: names of fields, indices of arrays, and `Key`s of
# objects whose keys the file chooses itself; `nodes[3].TMPCs["2"][0].syncTimeFw` has all three.

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
    if isinstance(value, dict):
        return "{...}" if value else "{}"
    return str(value)  # TOML has dates


def show_typed(value: object) -> str:
    """Print a JSON value with the name of its type, for values of a wrong type."""
    if value is None:
        return "null"
    name = _TYPE_NAMES.get(type(value), type(value).__name__)
    return f"{show_value(value)} ({name})"


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


# JSON text → Python values, strictly: what the standard library lets pass is a fault here
# ----------------------------------------------------------------------------------------

_LARGEST_FLOAT: Final = sys.float_info.max
_BYTE_ORDER_MARK: Final = "\ufeff"
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_HUGE_INTEGER: Final = re.compile(r"[0-9]{309}")  # may be more than a float holds


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonText:
    """The object a text holds, and what is wrong with the text as such.

    A reader adds its own faults to these, so that one error can name all of them.
    """

    value: dict[str, Any]
    faults: tuple[PathFault, ...] = ()


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Pause the cyclic garbage collector, which would look at millions of values to find nothing.

    JSON values hold no cycles; with the collector at work a large file takes about twice as long.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def parse_json(
    data: bytes, *, source: str | None = None, what: str = "document", finite: bool = True
) -> dict[str, Any]:
    """Read a JSON object; `what` names it in messages. Raises `InvalidInput` for any fault.

    Without `finite` the constants Infinity and NaN, which some libraries write, may stand in it.
    """
    text = scan_json(data, source=source, what=what)
    faults = [f for f in text.faults if finite or not f.problem.startswith(_UNBOUNDED)]
    if faults:
        raise InvalidInput(in_document_order(faults, text.value), source=source)
    return text.value


_UNBOUNDED: Final = "must be finite"


@collector_at_rest()
def scan_json(data: bytes, *, source: str | None = None, what: str = "profile") -> JsonText:
    """Read a JSON object and list its faults; raises `InvalidInput` where there is no object."""
    try:
        return _scan(data)
    except _NotAnObject as refusal:
        problem = f"must be a JSON object, got {refusal}"
    raise InvalidInput.of(what, problem, source=source)


class _NotAnObject(Exception):
    """Says what was found instead."""


class _RepeatedKeys(dict[str, Any]):
    """An object of which some key appeared more than once; the last entry counts."""

    counts: dict[str, int]


def _scan(data: bytes) -> JsonText:
    text = _decode(data)
    value, suspicious = _parse(text)
    if type(value) not in (dict, _RepeatedKeys):
        raise _NotAnObject(show_typed(value))
    suspicious = suspicious or any(p.search(text) for p in (_SURROGATE_ESCAPE, _HUGE_INTEGER))
    return JsonText(value=value, faults=tuple(_text_faults(value)) if suspicious else ())


def _decode(data: bytes) -> str:
    try:
        text = data.decode("utf-8").removeprefix(_BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        at = f"at line {line}, byte {column}"
        raise _NotAnObject(f"text that is not UTF-8 ({error.reason} {at})") from None
    if not text or text.isspace():
        raise _NotAnObject("an empty file")
    return text


def _parse(text: str) -> tuple[Any, bool]:
    """The value, and whether a repeated key or a non-finite constant was noticed."""
    noticed = []

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) == len(pairs):
            return value
        noticed.append("repeated key")
        repeated = _RepeatedKeys(value)
        counts = Counter(key for key, _ in pairs)
        repeated.counts = {key: count for key, count in counts.items() if count > 1}
        return repeated

    def make_constant(name: str) -> float:
        noticed.append(name)
        return float(name)

    def decoder(**more: Any) -> json.JSONDecoder:
        return json.JSONDecoder(object_pairs_hook=make_object, parse_constant=make_constant, **more)

    try:
        try:
            value = decoder().decode(text)
        except json.JSONDecodeError:
            raise
        except ValueError:  # an integer with more digits than the interpreter converts
            value = decoder(parse_int=_make_integer).decode(text)
    except json.JSONDecodeError as error:
        raise _NotAnObject(_explain(error)) from None
    except RecursionError:
        raise _NotAnObject("arrays or objects nested too deeply") from None
    return value, bool(noticed)


def _make_integer(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:
        return float(digits)


def _explain(error: json.JSONDecodeError) -> str:
    at = f"line {error.lineno}, column {error.colno}"
    broken_off = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated")
    if broken_off:
        return f"text that breaks off at {at}"
    return f"text that is not JSON at {at} ({error.msg})"


def _text_faults(root: Any) -> Iterator[PathFault]:
    """Repeated keys, non-finite constants and broken text, with an explicit stack."""
    stack: list[tuple[Path, Any]] = [((), root)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict):
            stack += [((*path, _step(key)), entry) for key, entry in value.items()]
            yield from (_broken((*path, Key(key))) for key in value if _is_broken(key))
        if isinstance(value, _RepeatedKeys):
            for key, count in value.counts.items():
                problem = f"must appear once in its object, got {count} entries"
                yield PathFault((*path, _step(key)), problem)
        elif isinstance(value, list):
            stack += [((*path, index), entry) for index, entry in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            yield PathFault(path, f"{_UNBOUNDED}, got {show_value(value)}")
        elif isinstance(value, int) and abs(value) > _LARGEST_FLOAT:
            yield PathFault(path, f"must be at most {_LARGEST_FLOAT:.3g}, got {show_value(value)}")
        elif isinstance(value, str) and _is_broken(value):
            yield _broken(path)


def _step(key: str) -> str:
    return key if key.isidentifier() else Key(key)


def _is_broken(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _broken(path: Path) -> PathFault:
    return PathFault(path, "must be valid Unicode text, got half a surrogate pair")


# Typed fields of JSON objects, read one by one, with every fault noted instead of raised
# ---------------------------------------------------------------------------------------
# Each method takes the object, the field's name and the object's path, and returns the value, or a
# stand-in of the right type where a fault was noted: whoever reads on finds the faults of the rest.
# Paths are built only for faults, so a good field costs about 150 ns.

_MISSING: Final = object()


class FieldReader:
    """Reads fields and collects faults; `check` raises them all, in document order."""

    __slots__ = ("faults",)

    def __init__(self, faults: Iterable[PathFault] = ()) -> None:
        self.faults = list(faults)

    def fault(self, path: Path, problem: str) -> None:
        """Note a fault."""
        self.faults.append(PathFault(path, problem))

    def check(self, document: object, *, source: str | None) -> None:
        """Raise `InvalidInput` if any fault was noted."""
        if self.faults:
            raise InvalidInput(in_document_order(self.faults, document), source=source)

    def amount(self, holder: dict[str, Any], name: str, at: Path) -> float:
        """A finite number >= 0."""
        value = holder.get(name, _MISSING)
        if (type(value) is float or type(value) is int) and 0 <= value <= _LARGEST_FLOAT:
            return float(value)
        number = self._number(value, name, at)
        if number < 0:
            self.fault((*at, name), f"must be >= 0, got {show_value(value)}")
        return number

    def positive(self, holder: dict[str, Any], name: str, at: Path) -> float:
        """A finite number > 0."""
        value = holder.get(name, _MISSING)
        number = self._number(value, name, at)
        if number <= 0:
            self.fault((*at, name), f"must be > 0, got {show_value(value)}")
        return number

    def integer(self, holder: dict[str, Any], name: str, at: Path) -> int | None:
        """An integer; `8.0` is one, `8.5`, `"8"` and `true` are not."""
        value = holder.get(name, _MISSING)
        if type(value) is int:
            return value
        if type(value) is not float:
            self._wrong_type(value, "an integer", (*at, name))
        elif not math.isfinite(value):
            self.fault((*at, name), f"must be finite, got {show_value(value)}")
        elif not value.is_integer():
            self.fault((*at, name), f"must be an integer, got {show_value(value)}")
        else:
            return int(value)
        return None

    def count(self, holder: dict[str, Any], name: str, at: Path, *, most: int) -> int | None:
        """An integer from 1 to `most`."""
        value = self.integer(holder, name, at)
        if value is None:
            return None
        if value < 1:
            self.fault((*at, name), f"must be >= 1, got {show_value(holder[name])}")
        elif value > most:
            self.fault((*at, name), f"must be <= {most}, got {show_value(holder[name])}")
        else:
            return value
        return None

    def text(self, holder: dict[str, Any], name: str, at: Path) -> str | None:
        """A string."""
        value = holder.get(name, _MISSING)
        if type(value) is str:
            return value
        self._wrong_type(value, "a string", (*at, name))
        return None

    def array(self, holder: dict[str, Any], name: str, at: Path) -> list[Any] | None:
        """An array."""
        value = holder.get(name, _MISSING)
        if type(value) is list:
            return value
        self._wrong_type(value, "an array", (*at, name))
        return None

    def mapping(self, holder: dict[str, Any], name: str, at: Path) -> dict[str, Any] | None:
        """An object."""
        value = holder.get(name, _MISSING)
        if isinstance(value, dict):
            return value
        self._wrong_type(value, "an object", (*at, name))
        return None

    def entry(self, value: object, path: Path) -> dict[str, Any] | None:
        """An object that is an entry of an array."""
        if isinstance(value, dict):
            return value
        self._wrong_type(value, "an object", path)
        return None

    def _number(self, value: object, name: str, at: Path) -> float:
        """A finite number, or NaN (which no comparison finds out of range) after a fault."""
        if type(value) is int and abs(value) <= _LARGEST_FLOAT:
            return float(value)
        if type(value) is float and math.isfinite(value):
            return value
        if type(value) is int or type(value) is float:
            self.fault((*at, name), f"must be finite, got {show_value(value)}")
        else:
            self._wrong_type(value, "a number", (*at, name))
        return math.nan

    def _wrong_type(self, value: object, wanted: str, path: Path) -> None:
        if value is _MISSING:
            self.fault(path, "required field is missing")
        else:
            self.fault(path, f"must be {wanted}, got {show_typed(value)}")
