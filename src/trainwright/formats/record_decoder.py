"""JSON values → records, by type, with every fault noted.

Each type is compiled once into a function of (value, path, faults) that returns the Python value,
or `BAD` after it noted why not; a record is only made when all its fields are sound. Rules that a
record checks at birth are reported under the record's path.
"""

from __future__ import annotations

import difflib
import math
import typing
from dataclasses import is_dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from trainwright.errors import InvalidInput
from trainwright.formats.json_path import Inner, Key, PathFault, quote, show_typed, show_value
from trainwright.formats.record_types import (
    BY_RECORD,
    REQUIRED,
    Above,
    AtLeast,
    AtMost,
    Closed,
    NonEmpty,
    optional_of,
    record_fields,
    split_annotated,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainwright.formats.json_path import Path

    Decoder: TypeAlias = Callable[[Any, Path, list[PathFault]], Any]

BAD: Final = object()

_MISSING: Final = object()
_MOST_HINTS: Final = 8  # per object; similarity is slow to judge
_LONGEST_SLIP: Final = 60  # characters


@cache
def decoder_for(hint: Any) -> Decoder:
    """The function that reads values of type `hint`."""
    bare, notes = split_annotated(hint)
    rules = [note for note in notes if not isinstance(note, str)]
    if rules:
        return _with_rules(decoder_for(bare), rules)
    if (inner := optional_of(bare)) is not None:
        return _optional(decoder_for(inner))
    origin, arguments = typing.get_origin(bare), typing.get_args(bare)
    if origin is tuple:
        if arguments[1:] == (Ellipsis,):
            return _array(decoder_for(arguments[0]))
        return _fixed_array([decoder_for(argument) for argument in arguments])
    if origin is dict:
        return _mapping(decoder_for(arguments[1]))
    if origin is Literal:
        return _one_of({text: text for text in arguments})
    if isinstance(bare, type) and issubclass(bare, StrEnum):
        return _one_of({member.value: member for member in bare})
    if is_dataclass(bare):
        return _record(bare)  # type: ignore[arg-type]
    return _SCALARS[bare]


def _decode_any(value: Any, path: Path, faults: list[PathFault]) -> Any:
    return value


def _decode_float(value: Any, path: Path, faults: list[PathFault]) -> Any:
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is not float and type(value) is not int:
        return _wrong_type(value, "a number", path, faults)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isfinite(number):
        return number
    return _bad(faults, path, f"must be finite, got {show_value(value)}")


def _decode_int(value: Any, path: Path, faults: list[PathFault]) -> Any:
    if type(value) is int:
        return value
    if type(value) is not float:
        return _wrong_type(value, "an integer", path, faults)
    if not math.isfinite(value):
        return _bad(faults, path, f"must be finite, got {show_value(value)}")
    if not value.is_integer():
        return _bad(faults, path, f"must be an integer, got {show_value(value)}")
    return int(value)


def _decode_text(value: Any, path: Path, faults: list[PathFault]) -> Any:
    return value if type(value) is str else _wrong_type(value, "a string", path, faults)


def _decode_bool(value: Any, path: Path, faults: list[PathFault]) -> Any:
    return value if type(value) is bool else _wrong_type(value, "true or false", path, faults)


_SCALARS: Final[dict[Any, Decoder]] = {
    Any: _decode_any,
    float: _decode_float,
    int: _decode_int,
    str: _decode_text,
    bool: _decode_bool,
}


def _optional(inner: Decoder) -> Decoder:
    def decode(value: Any, path: Path, faults: list[PathFault]) -> Any:
        return None if value is None else inner(value, path, faults)

    return decode


def _array(entry: Decoder) -> Decoder:
    def decode(value: Any, path: Path, faults: list[PathFault]) -> Any:
        if not isinstance(value, list):
            return _wrong_type(value, "an array", path, faults)
        before = len(faults)
        found = tuple([entry(item, (*path, index), faults) for index, item in enumerate(value)])
        return BAD if len(faults) > before else found

    return decode


def _fixed_array(entries: list[Decoder]) -> Decoder:
    def decode(value: Any, path: Path, faults: list[PathFault]) -> Any:
        if not isinstance(value, list):
            return _wrong_type(value, "an array", path, faults)
        if len(value) != len(entries):
            return _bad(faults, path, f"must have {len(entries)} entries, got {len(value)}")
        before = len(faults)
        pairs = zip(entries, value, strict=True)
        found = tuple(read(item, (*path, i), faults) for i, (read, item) in enumerate(pairs))
        return BAD if len(faults) > before else found

    return decode


def _mapping(entry: Decoder) -> Decoder:
    def decode(value: Any, path: Path, faults: list[PathFault]) -> Any:
        if not isinstance(value, dict):
            return _wrong_type(value, "an object", path, faults)
        before = len(faults)
        found = {key: entry(item, (*path, Key(key)), faults) for key, item in value.items()}
        return BAD if len(faults) > before else found

    return decode


def _one_of(choices: dict[str, Any]) -> Decoder:
    def decode(value: Any, path: Path, faults: list[PathFault]) -> Any:
        if type(value) is not str:
            return _wrong_type(value, "a string", path, faults)
        if value in choices:
            return choices[value]
        wanted = ", ".join(map(quote, choices))
        wanted = f"one of {wanted}" if len(choices) > 1 else wanted
        return _bad(faults, path, f"must be {wanted}, got {quote(value)}")

    return decode


def _with_rules(inner: Decoder, rules: list[Any]) -> Decoder:
    def decode(value: Any, path: Path, faults: list[PathFault]) -> Any:
        found = inner(value, path, faults)
        if found is not BAD:
            for rule in rules:
                if problem := _broken_rule(rule, found):
                    return _bad(faults, path, f"{problem}, got {_show_found(found, value)}")
        return found

    return decode


def _broken_rule(rule: Any, found: Any) -> str | None:
    match rule:
        case AtLeast(limit) if found < limit:
            return f"must be >= {limit}"
        case Above(limit) if found <= limit:
            return f"must be > {limit}"
        case AtMost(limit) if found > limit:
            return f"must be <= {limit}"
        case NonEmpty() if not found:
            return "must be non-empty" if found == "" else "must have at least 1 entry"
    return None


def _show_found(found: Any, value: Any) -> str:
    return str(len(found)) if isinstance(found, tuple) else show_value(value)


def _record(record: type) -> Decoder:
    plan = [(field, decoder_for(field.hint)) for field in record_fields(record)]
    known = {field.name for field, _ in plan}
    closed = issubclass(record, Closed)

    def decode(value: Any, path: Path, faults: list[PathFault]) -> Any:
        if not isinstance(value, dict):
            return _wrong_type(value, "an object", path, faults)
        before = len(faults)
        values = {}
        for field, decode_field in plan:
            raw = value.get(field.name, _MISSING)
            if raw is not _MISSING:
                values[field.name] = decode_field(raw, (*path, field.name), faults)
            elif field.when_missing is REQUIRED:
                _bad(faults, (*path, field.name), "required field is missing")
            elif field.when_missing is not BY_RECORD:
                values[field.name] = field.when_missing
        if closed and not value.keys() <= known:
            _refuse_unknown(value, known, path, faults)
        return BAD if len(faults) > before else _make(record, values, path, faults)

    return decode


def _refuse_unknown(
    value: dict[str, Any], known: set[str], path: Path, faults: list[PathFault]
) -> None:
    unknown = [key for key in value if key not in known]
    few = [key for key in unknown[:_MOST_HINTS] if len(key) <= _LONGEST_SLIP]
    hints = {key: difflib.get_close_matches(key, sorted(known), n=1) for key in few}
    for key in unknown:
        near = hints.get(key)
        meant = f", did you mean {near[0]}?" if near else ""
        _bad(faults, (*path, key), f"must be a field of this format{meant}")


def _make(record: type, values: dict[str, Any], path: Path, faults: list[PathFault]) -> Any:
    try:
        return record(**values)
    except InvalidInput as error:
        for fault in error.faults:
            _bad(faults, (*path, Inner(fault.path)), fault.problem)
        return BAD


def _wrong_type(value: Any, wanted: str, path: Path, faults: list[PathFault]) -> Any:
    return _bad(faults, path, f"must be {wanted}, got {show_typed(value)}")


def _bad(faults: list[PathFault], path: Path, problem: str) -> Any:
    faults.append(PathFault(path, problem))
    return BAD
