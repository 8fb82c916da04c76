"""Our own profile: everything the waist can say, as JSON; `read_profile(write_profile(x)) == x`.

The format is declared in `profile_records`: reader, writer and JSON Schema follow from there. Rules
between values are in `profile_relations`, the way to and from the nouns in `profile_nouns`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainwright.errors import InvalidInput
from trainwright.formats.document_json import encode_compact, refuse_newer_version
from trainwright.formats.json_path import in_document_order
from trainwright.formats.json_text import collector_at_rest, scan_json
from trainwright.formats.profile_nouns import from_record, to_record
from trainwright.formats.profile_records import FORMAT_VERSION, ProfileRecord
from trainwright.formats.profile_relations import relation_faults
from trainwright.formats.record_decoder import decoder_for
from trainwright.formats.record_schema import json_schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainwright.formats.json_path import PathFault
    from trainwright.profile import ProfileFile


def profile_schema() -> dict[str, Any]:
    """The JSON Schema of the format."""
    return json_schema(ProfileRecord, title="trainwright profile")


def read_profile_bytes(data: bytes, *, source: str | None = None) -> ProfileFile:
    """Read the bytes of a profile; raises `InvalidInput` with all faults."""
    text = scan_json(data, source=source)
    return read_profile(text.value, source=source, text_faults=text.faults)


@collector_at_rest()
def read_profile(
    value: dict[str, Any],
    *,
    source: str | None = None,
    text_faults: Iterable[PathFault] = (),
) -> ProfileFile:
    """Turn a parsed profile into nouns.

    `text_faults` are those of the text itself (`scan_json`); one `InvalidInput` lists them with all
    others in document order.
    """
    refuse_newer_version(value, FORMAT_VERSION, source=source)
    faults = list(text_faults)
    record = decoder_for(ProfileRecord)(value, (), faults)
    faults += relation_faults(value)
    if faults:
        raise InvalidInput(in_document_order(faults, value), source=source)
    return from_record(record)


@collector_at_rest()
def write_profile(file: ProfileFile) -> dict[str, Any]:
    """The profile as JSON values; fields at their default are left out."""
    return encode_compact(to_record(file))
