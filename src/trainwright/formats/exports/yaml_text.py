"""A small part of YAML: mappings of plain values, written readably and read back.

Values are those of JSON, on the line of their key; mappings nest by indentation. Whatever this
writes, any YAML parser reads alike: texts that could mean something else are in quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from trainwright.errors import InvalidInput

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_WORDS: Final = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def to_yaml(values: Mapping[str, Any]) -> str:
    """The text of a mapping; keys keep their order."""
    return "".join(f"{line}\n" for line in _lines(values, ""))


def _lines(values: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:" if value else f"{indent}{key}: {{}}"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{key}: {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)


def from_yaml(text: str) -> dict[str, Any]:
    """Read what `to_yaml` writes, comments aside; raises `InvalidInput` by line for more."""
    top: dict[str, Any] = {}
    open_maps: list[tuple[int, dict[str, Any]]] = [(-1, top)]
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        indent = len(line) - len(line.lstrip(" "))
        key, colon, rest = line.strip().partition(":")
        if not colon or (rest and not rest.startswith(" ")):
            raise InvalidInput.of(f"line {number}", f'must be "key: value", got "{line.strip()}"')
        while open_maps[-1][0] >= indent:
            open_maps.pop()
        inside = open_maps[-1][1]
        if rest.strip():
            inside[key] = _value(rest.strip())
        else:
            inside[key] = {}
            open_maps.append((indent, inside[key]))
    return top


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
