"""Typed fields of a framework's configuration, with every fault noted and a default in its place.

A field that is absent, or null, has its default. Paths are printed as the file spells them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from trainwright.errors import Fault, InvalidInput
from trainwright.formats.json_path import show_typed

_AUTO: Final = "auto"


class StatedTable:
    """A table of a file; `check` raises what it and the tables inside it noted."""

    __slots__ = ("_faults", "_found", "_path")

    def __init__(
        self, found: Mapping[str, Any], *, path: str = "", faults: list[Fault] | None = None
    ) -> None:
        self._found = found
        self._path = path
        self._faults: list[Fault] = [] if faults is None else faults

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def __iter__(self) -> Any:
        return iter(self._found)

    def check(self) -> None:
        """Raise `InvalidInput` with every fault that was noted."""
        if self._faults:
            raise InvalidInput(self._faults)

    def fault(self, name: str, problem: str) -> None:
        """Note a fault of a field."""
        self._faults.append(Fault(f"{self._path}{name}", problem))

    def is_absent(self, name: str) -> bool:
        """Whether a field is not written, not even as "auto"."""
        return self._found.get(name) is None

    def table(self, name: str) -> StatedTable:
        """A table inside this one; empty where it is absent."""
        value = self._found.get(name)
        if value is not None and not isinstance(value, dict):
            self._wrong(name, "a table", value)
        inside = value if isinstance(value, dict) else {}
        return StatedTable(inside, path=f"{self._path}{name}.", faults=self._faults)

    def count(
        self, name: str, *, least: int = 1, most: int | None = None, also: int | None = None
    ) -> int | None:
        """A whole number from `least` to `most`, or `also`."""
        value = self._found.get(name)
        if value is None:
            return None
        is_whole = type(value) is int
        if is_whole and (value == also or (least <= value and (most is None or value <= most))):
            return int(value)
        wanted = f">= {least}" if most is None else f"from {least} to {most}"
        other = "" if also is None else f", or {also}"
        self._wrong(name, f"a whole number {wanted}{other}", value)
        return None

    def count_or_auto(self, name: str) -> int | None:
        """A whole number >= 1; "auto" counts as absent."""
        return None if self._found.get(name) == _AUTO else self.count(name)

    def switch(self, name: str, *, default: bool) -> bool:
        """True or false."""
        value = self._found.get(name)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self._wrong(name, "true or false", value)
        return default

    def switch_or_auto(self, name: str) -> bool:
        """True or false; "auto" counts as absent, which is false."""
        return self._found.get(name) != _AUTO and self.switch(name, default=False)

    def text(self, name: str) -> str | None:
        """A text."""
        value = self._found.get(name)
        if value is None or isinstance(value, str):
            return value
        self._wrong(name, "a text", value)
        return None

    def one_of(self, name: str, known: Iterable[str], default: str) -> str:
        """One of some words."""
        value, words = self._found.get(name, default), tuple(known)
        if isinstance(value, str) and value in words:
            return value
        self._wrong(name, f"one of {', '.join(words)}", value)
        return default

    def names(self, name: str) -> list[list[str]]:
        """A list of lists of texts, none of them empty; empty where it is absent."""
        value = self._found.get(name)
        if value is None:
            return []
        if isinstance(value, list) and all(
            isinstance(part, list) and part and all(isinstance(each, str) for each in part)
            for part in value
        ):
            return value
        self._wrong(name, "a list of lists of names", value)
        return []

    def _wrong(self, name: str, wanted: str, value: object) -> None:
        self.fault(name, f"must be {wanted}, got {_shown(value)}")


def _shown(value: object) -> str:
    if value is None or isinstance(value, (bool, str, int, float, list, dict)):
        return show_typed(value)
    return f"{value} ({type(value).__name__})"
