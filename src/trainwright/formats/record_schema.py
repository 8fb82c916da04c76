"""Records → JSON Schema (draft 2020-12), from the same types the reader is compiled from."""

from __future__ import annotations

import inspect
import typing
from dataclasses import is_dataclass
from enum import StrEnum
from typing import Any, Final, Literal

from trainwright.formats.record_types import (
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

_SCALARS: Final[dict[Any, dict[str, Any]]] = {
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
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **root,
        "$defs": dict(sorted(definitions.items())),
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
    return _SCALARS[bare]
