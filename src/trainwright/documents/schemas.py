"""JSON Schemas of what the program reads and writes, made from the types of readers and records."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from trainwright.documents.registry import KINDS, part
from trainwright.errors import InvalidInput
from trainwright.formats.records import json_schema

# Input files by name, each with the function that makes its schema; documents are inputs, too.
_INPUTS: Final = {
    "profile": "formats.profile_json:profile_schema",
    "schedule-spec": "formats.schedule_json:schedule_spec_schema",
    "orders": "formats.schedule_json:orders_schema",
    "cluster": "formats.cluster_schema:cluster_schema",
    "metis-profile": "formats.metis_json:metis_schema",
}
SCHEMAS: Final = (*_INPUTS, *KINDS)


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of an input file or of a kind of document.

    Raises `InvalidInput` for any other name.
    """
    if name in _INPUTS:
        made: dict[str, Any] = part(_INPUTS[name])()
        return made
    if name not in KINDS:
        raise InvalidInput.of("name", f'must be one of {", ".join(SCHEMAS)}, got "{name}"')
    record = part(KINDS[name].record)
    made = json_schema(record, title=f"trainwright {name}")
    (version,) = (each.default for each in fields(record) if each.name == "format_version")
    made["properties"]["kind"] = {"const": name}
    made["properties"]["format_version"] |= {"minimum": 1, "maximum": version}
    made["required"] = ["kind", "format_version", *made.get("required", ())]
    return made
