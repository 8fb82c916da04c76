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
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from trainwright.errors import InvalidInput
from trainwright.formats.json_path import Key, Path, PathFault, in_document_order, show_typed
from trainwright.formats.json_path import show_value as show

if TYPE_CHECKING:
    from collections.abc import Iterator

_BYTE_ORDER_MARK: Final = "\ufeff"
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")


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


def parse_json(data: bytes, *, source: str | None = None, what: str = "document") -> dict[str, Any]:
    """Read a JSON object; `what` names it in messages. Raises `InvalidInput` for any fault."""
    text = scan_json(data, source=source, what=what)
    if text.faults:
        raise InvalidInput(in_document_order(text.faults, text.value), source=source)
    return text.value


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
    suspicious = suspicious or _SURROGATE_ESCAPE.search(text) is not None
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
            yield PathFault(path, f"must be finite, got {show(value)}")
        elif isinstance(value, str) and _is_broken(value):
            yield _broken(path)


def _step(key: str) -> str:
    return key if key.isidentifier() else Key(key)


def _is_broken(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _broken(path: Path) -> PathFault:
    return PathFault(path, "must be valid Unicode text, got half a surrogate pair")
