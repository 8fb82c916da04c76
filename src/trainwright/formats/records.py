"""JSON values → records, by type, with every fault noted.

Each type is compiled once into a function of (value, path, faults) that returns the Python value,
or `BAD` after it noted why not; a record is only made when all its fields are sound. Rules that a
record checks at birth are reported under the record's path.
"""

from __future__ import annotations

import difflib
import inspect
import math
import operator
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, Union

from trainwright.errors import InvalidInput
from trainwright.formats.json_text import Inner, Key, Path, PathFault, quote, show_typed, show_value

if TYPE_CHECKING:
    Decoder: TypeAlias = Callable[[Any, Path, list[PathFault]], Any]


# What the generic reader, writer and schema know about types
# -----------------------------------------------------------
# A *record* is a frozen dataclass whose fields are JSON values: scalars, string enumerations,
# tuples, `dict[str, X]`, `X | None`, `Any`, and other records. `Annotated` adds rules and, as plain
# text, a description: `Annotated[float, AtLeast(0), "seconds of one microbatch"]`. Results are
# records as they are; file formats define records of their own.

REQUIRED: Final = object()  # where the field is left out, that is a fault
BY_RECORD: Final = object()  # where the field is left out, the record's own default holds


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A number >= `limit`."""

    limit: int


@dataclass(frozen=True, slots=True)
class Above:
    """A number > `limit`."""

    limit: int


@dataclass(frozen=True, slots=True)
class AtMost:
    """A number <= `limit`."""

    limit: int


@dataclass(frozen=True, slots=True)
class NonEmpty:
    """Text or an array with at least one entry."""


class Closed:
    """Base of records that refuse unknown fields: a misspelt one would count as left out."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class RecordField:
    """A field by name, with its type and its value where left out: the above, or `None`."""

    name: str
    hint: Any
    when_missing: Any


@cache
def record_fields(record: type) -> tuple[RecordField, ...]:
    """The fields of a record in order; an optional field without a default is `None`."""
    hints = typing.get_type_hints(record, include_extras=True)
    return tuple(
        RecordField(field.name, hints[field.name], _when_missing(field, hints[field.name]))
        for field in fields(record)
    )


def _when_missing(field: Field[Any], hint: Any) -> Any:
    if field.default is not MISSING or field.default_factory is not MISSING:
        return BY_RECORD
    return None if optional_of(hint) is not None else REQUIRED


def optional_of(hint: Any) -> Any:
    """X of `X | None`, where X may be a union of records; `None` for any other type."""
    bare, _ = split_annotated(hint)
    if typing.get_origin(bare) not in (Union, UnionType):
        return None
    members = typing.get_args(bare)
    inner = tuple(member for member in members if member is not NoneType)
    assert len(inner) == 1 or all(map(is_dataclass, inner)), f"no record field may be {hint}"
    return Union[inner] if len(inner) < len(members) else None  # noqa: UP007


def split_annotated(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """The bare type and what annotates it."""
    if typing.get_origin(hint) is typing.Annotated:
        bare, *notes = typing.get_args(hint)
        return bare, tuple(notes)
    return hint, ()


# JSON values → records, by type, with every fault noted
# ------------------------------------------------------

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
    if origin in (Union, UnionType):
        return _one_record_of(arguments)
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


def _one_record_of(records: tuple[type, ...]) -> Decoder:
    """Of documents the one whose kind the value has; of others the first that suits its keys.

    It knows every key and lacks none that it needs; where none does, the first of all is read.
    """

    def kind_of(record: type) -> Any:
        return next((each.default for each in fields(record) if each.name == "kind"), MISSING)

    of_kind = {kind: record for record in records if isinstance(kind := kind_of(record), str)}

    def fits(record: type, keys: set[str]) -> bool:
        known = record_fields(record)
        needed = {field.name for field in known if field.when_missing is REQUIRED}
        return needed <= keys <= {field.name for field in known}

    def decode(value: Any, path: Path, faults: list[PathFault]) -> Any:
        keys = set(value) if isinstance(value, dict) else set()
        chosen = next((record for record in records if fits(record, keys)), records[0])
        if len(of_kind) == len(records) and isinstance(value, dict):
            kind = value.get("kind")
            chosen = of_kind.get(kind if isinstance(kind, str) else "", records[0])
        return decoder_for(chosen)(value, path, faults)

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
    fields = record_fields(record)
    known = {field.name for field in fields}
    closed = issubclass(record, Closed)

    @cache
    def plan() -> list[tuple[Any, Decoder]]:  # when first asked: a record may hold its own kind
        return [(field, decoder_for(field.hint)) for field in fields]

    def decode(value: Any, path: Path, faults: list[PathFault]) -> Any:
        if not isinstance(value, dict):
            return _wrong_type(value, "an object", path, faults)
        before = len(faults)
        values = {}
        for field, decode_field in plan():
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


# Records → JSON Schema (draft 2020-12), from the same types the reader is compiled from
# --------------------------------------------------------------------------------------

_SCALAR_SCHEMAS: Final[dict[Any, dict[str, Any]]] = {
    Any: {},
    float: {"type": "number"},
    int: {"type": "integer"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
}


def json_schema(record: type, *, title: str) -> dict[str, Any]:
    """The schema of documents that hold `record`; nested records become definitions."""
    definitions: dict[str, Any] = {}
    root = _record_schema(record, definitions)
    return titled(title, {**root, "$defs": dict(sorted(definitions.items()))})


# Of files of others, whose keys are no names of ours, and whose objects may have further keys.
AMOUNT: Final = {"type": "number", "minimum": 0}
POSITIVE: Final = {"type": "number", "exclusiveMinimum": 0}
NUMBER: Final = {"type": "number"}
TEXT: Final = {"type": "string"}
WHOLE: Final = {"type": "integer"}
COUNT: Final = {"type": "integer", "minimum": 1}


def titled(title: str, root: dict[str, Any], *, about: str = "") -> dict[str, Any]:
    """The schema of whole files, what they are `about` in a sentence."""
    told = {"description": about} if about else {}
    named = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return {**named, **told, **root}


def object_schema(required: dict[str, Any], optional: dict[str, Any] | None = None) -> Any:
    """An object that has the keys required, of these schemas."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties, "required": [*required]}


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """An object that has no further keys."""
    return schema | {"additionalProperties": False}


def map_schema(entry: Any, *, least: int = 0) -> Any:
    """An object whose keys are free, with so many entries at least."""
    return {"type": "object", "additionalProperties": entry, "minProperties": least}


def array_schema(entry: Any, *, least: int = 0) -> Any:
    """So many entries at least."""
    return {"type": "array", "items": entry, "minItems": least}


def suits(value: object, schema: Mapping[str, Any]) -> bool:
    """Whether a value of TOML is of a schema of scalars and lists, for readers without a record.

    A number must be finite, of which a schema cannot speak.
    """
    if "anyOf" in schema:
        return any(suits(value, each) for each in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    match schema["type"]:
        case "boolean":
            return isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "array":
            is_list = isinstance(value, list) and len(value) >= schema.get("minItems", 0)
            return is_list and all(suits(each, schema["items"]) for each in value)  # type: ignore[attr-defined]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if not -sys.float_info.max <= value <= sys.float_info.max:  # a number of TOML may be any
        return False
    if schema["type"] == "integer" and value != int(value):
        return False
    return all(is_kept(value, schema[name]) for name, is_kept in _LIMITS.items() if name in schema)


_LIMITS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "minimum": operator.ge,
    "exclusiveMinimum": operator.gt,
    "maximum": operator.le,
    "exclusiveMaximum": operator.lt,
}


def _record_schema(record: type, definitions: dict[str, Any]) -> dict[str, Any]:
    properties, required = {}, []
    for field in record_fields(record):
        properties[field.name] = _schema(field.hint, definitions)
        if field.when_missing is REQUIRED:
            required.append(field.name)
    schema: dict[str, Any] = {
        "type": "object",
        "description": " ".join((inspect.getdoc(record) or "").split()),
        "properties": properties,
    }
    if required:
        schema["required"] = required
    if issubclass(record, Closed):
        schema["additionalProperties"] = False
    return schema


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    bare, notes = split_annotated(hint)
    schema = dict(_bare_schema(bare, definitions))
    for note in notes:
        schema |= _note_schema(note, schema)
    return schema


def _note_schema(note: Any, schema: dict[str, Any]) -> dict[str, Any]:
    match note:
        case str():
            return {"description": note}
        case AtLeast(limit):
            return {"minimum": limit}
        case Above(limit):
            return {"exclusiveMinimum": limit}
        case AtMost(limit):
            return {"maximum": limit}
        case NonEmpty():
            return {"minItems" if schema["type"] == "array" else "minLength": 1}
    raise TypeError(f"no schema for the rule {note!r}")


def _bare_schema(bare: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if (inner := optional_of(bare)) is not None:
        return {"anyOf": [_schema(inner, definitions), {"type": "null"}]}
    origin, arguments = typing.get_origin(bare), typing.get_args(bare)
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    if origin is Literal:
        return {"enum": list(arguments)}
    if isinstance(bare, type) and issubclass(bare, StrEnum):
        return {"enum": [member.value for member in bare]}
    if is_dataclass(bare):
        assert isinstance(bare, type)
        name = bare.__name__.removesuffix("Record")
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = _record_schema(bare, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if origin in (Union, UnionType):
        return {"anyOf": [_schema(member, definitions) for member in arguments]}
    return _SCALAR_SCHEMAS[bare]
