"""Result documents ↔ JSON, by type alone: a new kind of document needs no code here.

A document is a record (see `formats.records`) with fields `kind` and `format_version`. It is
written flat and in field order; keys without a value are left out. It is read back with every fault
named; unknown keys are ignored, so that an older trainwright reads what a newer one wrote of the
same version, and a version from the future is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

from trainwright.errors import Fault, InvalidInput
from trainwright.formats import json_text
from trainwright.formats.atomic_file import read_bytes, write_text
from trainwright.formats.records import decoder_for, object_schema, titled
from trainwright.plans.plan import Embedded
from trainwright.provenance import RARE

Record = TypeVar("Record")


def encode(record: object) -> dict[str, Any]:
    """A record as JSON values; NaN is our own mistake.

    Fields that are `None` are left out, and those at a default that their record marks as `RARE`.
    """
    return _encode_record(record, _has_value)


def encode_compact(record: object) -> dict[str, Any]:
    """Like `encode`, and fields at their default are left out too."""
    return _encode_record(record, _differs_from_default)


def _has_value(field: Field[Any], value: object) -> bool:
    return value is not None and not (RARE in field.metadata and value == field.default)


def _differs_from_default(field: Field[Any], value: object) -> bool:
    if field.default_factory is not MISSING:
        return bool(value != field.default_factory())
    return value is not None and value != field.default


def _encode_record(record: Any, keep: Callable[[Field[Any], object], bool]) -> dict[str, Any]:
    stated = ((field, getattr(record, field.name)) for field in fields(record))
    return {field.name: _encode(value, keep) for field, value in stated if keep(field, value)}


def _encode(value: Any, keep: Callable[[Field[Any], object], bool]) -> Any:
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        assert math.isfinite(value), "a document holds finite numbers"
        return value
    if isinstance(value, (tuple, list)):
        return [_encode(entry, keep) for entry in value]
    if isinstance(value, dict):
        return {key: _encode(entry, keep) for key, entry in value.items()}
    assert is_dataclass(value), f"a document cannot hold a {type(value).__name__}"
    return _encode_record(value, keep)


def decode(
    record: type[Record],
    value: object,
    *,
    path: str = "",
    source: str | None = None,
    text_faults: Iterable[json_text.PathFault] = (),
) -> Record:
    """Read a record of the given type; `path` is where in its document `value` lies.

    Raises `InvalidInput` with every fault, in document order.
    """
    faults = list(text_faults)
    hint: Any = record
    found = decoder_for(hint)(value, (), faults)
    if faults:
        raise InvalidInput(_below(path, json_text.in_document_order(faults, value)), source=source)
    assert isinstance(found, record)
    return found


def _below(path: str, faults: tuple[Fault, ...]) -> Iterable[Fault]:
    for fault in faults:
        dot = "." if path and fault.path and not fault.path.startswith("[") else ""
        yield Fault(f"{path}{dot}{fault.path}", fault.problem)


def decode_document(
    value: object,
    kinds: Mapping[str, type[Record]],
    *,
    source: str | None = None,
    text_faults: Iterable[json_text.PathFault] = (),
) -> Record:
    """Read a document of one of `kinds` (its `kind` → its type); raises `InvalidInput`."""
    if not isinstance(value, dict):
        raise InvalidInput.of(
            "document", f"must be a JSON object, got {json_text.show_typed(value)}", source=source
        )
    record = document_type(value, kinds, source=source)
    return decode(record, value, source=source, text_faults=text_faults)


def document_type(
    value: Mapping[str, Any], kinds: Mapping[str, type[Record]], *, source: str | None = None
) -> type[Record]:
    """The type a document says it has; raises `InvalidInput` for another kind or a later format."""
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        found = "none" if kind is None else json_text.quote(kind) if isinstance(kind, str) else ""
        wanted = ", ".join(map(json_text.quote, kinds))
        choice = "one of " if len(kinds) > 1 else ""
        problem = f"must be {choice}{wanted}, got {found or json_text.show_typed(kind)}"
        if kind is None:
            problem += (
                "; a profile or a config.json becomes a document where it is planned: trainwright "
                f"plan {source or 'FILE'} -o plan.json"
            )
        raise InvalidInput.of("kind", problem, source=source)
    refuse_newer_version(value, _current_version(kinds[kind]), source=source)
    return kinds[kind]


def content_hash(content: dict[str, Any]) -> str:
    """The SHA-256 of canonical JSON: keys sorted, no blanks."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def carried(value: Mapping[str, Any], part: str, *, source: str | None = None) -> Embedded:
    """The input that a document carries as this part of its request: its model, cluster or costs.

    A what-if carries those of the plan after the change. Raises `InvalidInput` where there is none
    of that name, or it was edited.
    """
    whole = value["after"] if isinstance(value.get("after"), dict) else value
    request = whole.get("request")
    found = request.get(part) if isinstance(request, dict) else None
    path = f"request.{part}"
    if not isinstance(found, dict):
        problem = f"is not there: {json_text.quote(str(value.get('kind')))} carries no {part}"
        raise InvalidInput.of(path, problem, source=source)
    own = decode(Embedded, found, path=path, source=source)
    if content_hash(own.content) != own.sha256:
        problem = "must be the hash of the content, which was edited"
        raise InvalidInput.of(f"{path}.sha256", problem, source=source)
    return own


def refuse_newer_version(
    value: Mapping[str, Any], current: int, *, source: str | None = None
) -> None:
    """Raise `InvalidInput` for a document that only a later trainwright can read, or none."""
    version = value.get("format_version")
    if not isinstance(version, (int, float)):
        return  # its reader says so, with all other faults
    if version > current:
        shown = json_text.show_value(version)
        problem = f"must be <= {current}, got {shown}; a newer trainwright wrote this file"
        raise InvalidInput.of("format_version", problem, source=source)
    if version < 1:
        problem = f"must be >= 1, got {json_text.show_value(version)}"
        raise InvalidInput.of("format_version", problem, source=source)


def _current_version(record: type) -> int:
    (version,) = (field.default for field in fields(record) if field.name == "format_version")
    assert isinstance(version, int)
    return version


# A journal as a file of JSON lines: what it is about, then one line per finished batch
# -------------------------------------------------------------------------------------
# A line is written and flushed at once. A last line that was cut off counts as not written. A
# journal about other inputs is refused, for its batches would answer another question.

_KIND: Final = "journal"
_LINE: Final[Mapping[str, Any]] = {"key": {"type": "string"}, "value": {}}


def journal_schema() -> dict[str, Any]:
    """The JSON Schema of a line; what a batch gave is its command's own affair."""
    header = {"kind": {"const": _KIND}, "about": {"type": "string"}}
    either = [object_schema(header), object_schema(dict(_LINE))]
    about = "A line of a journal: the first says what it is about, each other what a batch gave."
    return titled("a line of a journal", {"anyOf": either}, about=about)


class FileJournal:
    """The journal at `path`, about the inputs with the hash `about`; made if it is not there.

    Raises `InvalidInput` where the file is no journal, is about other inputs, or cannot be written.
    """

    def __init__(self, path: str | Path, *, about: str) -> None:
        self._path = Path(path)
        self._known: dict[str, Any] = {}
        header = json.dumps({"kind": _KIND, "about": about}) + "\n"
        if not self._path.exists() or not self._path.stat().st_size:
            write_text(self._path, header)
            return
        whole = self._lines()
        self._check(whole[0], about)
        for line in whole[1:]:
            if not (isinstance(line, dict) and line.keys() >= set(_LINE)):
                raise self._not_one()
            self._known[line["key"]] = line["value"]
        kept = [json.dumps({"key": key, "value": value}) for key, value in self._known.items()]
        write_text(self._path, header + "".join(f"{line}\n" for line in kept))

    def _lines(self) -> list[Any]:
        text = read_bytes(self._path, name="journal").decode(errors="replace")
        lines: list[Any] = []
        for number, line in enumerate(text.splitlines()):
            try:
                lines.append(json.loads(line))
            except ValueError:
                if number == 0:
                    raise self._not_one() from None
                break  # cut off while it was written
        return lines

    def _check(self, header: Any, about: str) -> None:
        if not isinstance(header, dict) or header.get("kind") != _KIND:
            raise self._not_one()
        if header.get("about") != about:
            problem = f'is about other inputs: "{self._path}"; name another file or remove it'
            raise InvalidInput.of("journal", problem)

    def _not_one(self) -> InvalidInput:
        return InvalidInput.of("journal", f'must be a journal of this command: "{self._path}"')

    def find(self, key: str) -> Any | None:
        """What a finished batch gave; None where it is not finished."""
        return self._known.get(key)

    def append(self, key: str, value: Any) -> None:
        """Write a finished batch down; raises `InvalidInput` where that fails."""
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "value": value}) + "\n")
        except OSError as error:
            raise InvalidInput.of(
                "journal", f'cannot be written, {error.strerror}: "{self._path}"'
            ) from None
        self._known[key] = value

    def __len__(self) -> int:
        return len(self._known)
