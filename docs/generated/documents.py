"""The reference of result documents: every key with its type and unit, from the records themselves.

A record states what a reader needs in three places: types in its annotations, units in the names of
its keys, the rest in its docstring and in the comments beside its fields.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import typing
from dataclasses import fields, is_dataclass
from enum import StrEnum
from types import UnionType
from typing import Any, Literal

from trainwright.formats.records import optional_of, record_fields, split_annotated

# Longest first: `tokens_per_s_per_device` is no time.
UNITS = (
    ("tokens_per_s_per_device", "tokens/s per device"),
    ("tokens_per_s_per_watt", "tokens/s per watt"),
    ("flops_per_s", "FLOP/s"),
    ("bytes_per_cycle", "bytes per cycle"),
    ("bytes_per_s", "bytes/s"),
    ("tokens_per_s", "tokens/s"),
    ("per_token_j", "J per token"),
    ("per_hour", "per hour"),
    ("flops", "FLOPs"),
    ("bytes", "bytes"),
    ("watts", "W"),
    ("mm2", "mm²"),
    ("um2", "µm²"),
    ("mib", "MiB"),
    ("hz", "Hz"),
    ("seconds", "s"),
    ("days", "days"),
    ("_s", "s"),
    ("_j", "J"),
)
# Words that stand before `_per_rank` and the like say what is counted, the unit comes before them.
_SPREAD = re.compile(r"_per_(rank|stage)$")
# Where records of documents stand: with how they are made, or with their command.
_PACKAGES = ("trainwright.documents", "trainwright.commands")
_SCALARS = {float: "number", int: "integer", str: "text", bool: "true or false", Any: "any value"}


def documents_part() -> str:
    """Every kind of document, then the records inside them, as Markdown."""
    kinds = document_types()
    inner = [record for record in nested_records(kinds) if record not in kinds]
    lines = [_section(record, heading(record), level=3) for record in kinds]
    lines += ["## Records inside documents", ""]
    lines += [_section(record, heading(record), level=3) for record in inner]
    return "\n".join(lines)


def document_types() -> list[type]:
    """The records that are documents: those that state their kind and their format's version."""
    modules = [
        importlib.import_module(f"{package.__name__}.{found.name}")
        for package in map(importlib.import_module, _PACKAGES)
        for found in pkgutil.iter_modules(package.__path__)
        if found.name != "live"  # needs the extra [serve], and has no documents
    ]
    modules.append(importlib.import_module("trainwright.formats.codesign_document"))
    found = {
        value
        for module in modules
        for value in vars(module).values()
        if is_dataclass(value) and _has_kind(value)
    }
    return sorted(found, key=heading)


def nested_records(roots: list[type]) -> list[type]:
    """The records that these hold, however deep, by name."""
    found: dict[type, None] = {}
    waiting = list(roots)
    while waiting:
        record = waiting.pop()
        if record in found:
            continue
        found[record] = None
        for field in record_fields(record):
            waiting += _records_of(field.hint)
    return sorted(found, key=heading)


def _records_of(hint: Any) -> list[type]:
    bare, _ = split_annotated(hint)
    if is_dataclass(bare):
        assert isinstance(bare, type)
        return [bare]
    return [record for part in typing.get_args(bare) for record in _records_of(part)]


def heading(record: type) -> str:
    """What the page calls a document, by its kind, or a record: no two alike."""
    if _has_kind(record):
        return _kind(record)
    name = record.__name__.removesuffix("Record")
    if name in _LIKE_A_KIND:
        return f"{name} record"
    return f"{name} ({record.__module__.rpartition('.')[2]})" if name in _IN_TWO_FILES else name


_IN_TWO_FILES = {"FrontPoint", "FixedStrategy"}
_LIKE_A_KIND = {"Fit", "Calibration", "Improvement"}


def _has_kind(record: type) -> bool:
    stated = {field.name: field.default for field in fields(record)}
    return "format_version" in stated and isinstance(stated.get("kind"), str)


def _kind(record: type) -> str:
    (kind,) = (field.default for field in fields(record) if field.name == "kind")
    assert isinstance(kind, str)
    return kind


def _section(record: type, title: str, *, level: int) -> str:
    lines = ["#" * level + f" {title}", "", inspect.getdoc(record) or "", ""]
    notes = _comments(record)
    rows = [("key", "type", "unit", "note"), ("---",) * 4]
    for field in record_fields(record):
        name = field.name
        about = type_text(field.hint), unit(name, field.hint), notes.get(name, "")
        rows.append((f"`{name}`", *about))
    columns = [column for column in zip(*rows, strict=True) if any(column[2:])]
    lines += ["| " + " | ".join(row) + " |" for row in zip(*columns, strict=True)]
    return "\n".join([*lines, ""])


def _comments(record: type) -> dict[str, str]:
    """What a comment beside a field says."""
    source = inspect.getsource(record)
    return {
        name: text.strip().replace("|", "\\|")
        for name, text in re.findall(r"^    (\w+):[^#\n]*  # (.+)$", source, flags=re.MULTILINE)
    }


def type_text(hint: Any) -> str:
    """A type in words, with links to the records it names."""
    bare, _ = split_annotated(hint)
    if (inner := optional_of(bare)) is not None:
        return f"{type_text(inner)}, or absent"
    origin, arguments = typing.get_origin(bare), typing.get_args(bare)
    if origin is tuple:
        return f"list of {type_text(arguments[0])}"
    if origin is dict:
        return f"{type_text(arguments[1])} by name"
    if origin in (typing.Union, UnionType):
        return " or ".join(map(type_text, arguments))
    if origin is Literal:
        return "one of " + ", ".join(f"`{value}`" for value in arguments)
    if isinstance(bare, type) and issubclass(bare, StrEnum):
        return "one of " + ", ".join(f"`{member.value}`" for member in bare)
    if is_dataclass(bare):
        assert isinstance(bare, type)
        title = heading(bare)
        return f"[{title}](#{slug(title)})"
    return _SCALARS[bare]


def slug(title: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def unit(name: str, hint: Any) -> str:
    """What a number of this name is measured in; a share or ratio has no unit."""
    if "number" not in type_text(hint):
        return ""
    bare = _SPREAD.sub("", name)
    for suffix, written in UNITS:
        if bare.endswith(suffix):
            return written
    return ""
