"""What the generic reader, writer and schema know about types.

A *record* is a frozen dataclass whose fields are JSON values: scalars, string enumerations, tuples,
`dict[str, X]`, `X | None`, `Any`, and other records. `Annotated` adds rules and, as plain text, a
description: `Annotated[float, AtLeast(0), "seconds of one microbatch"]`. Results are records as
they are; file formats define records of their own.
"""

from __future__ import annotations

import typing
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Union

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
    """X of `X | None`; `None` for any other type."""
    bare, _ = split_annotated(hint)
    if typing.get_origin(bare) not in (Union, UnionType):
        return None
    inner = [member for member in typing.get_args(bare) if member is not NoneType]
    assert len(inner) == 1, f"a record field may be X | None, no other union: {hint}"
    return inner[0]


def split_annotated(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """The bare type and what annotates it."""
    if typing.get_origin(hint) is typing.Annotated:
        bare, *notes = typing.get_args(hint)
        return bare, tuple(notes)
    return hint, ()
