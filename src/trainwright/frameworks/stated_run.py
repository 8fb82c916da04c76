"""A run as the configuration of a framework states it: what is not stated is absent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from trainwright.errors import Fault, InvalidInput
from trainwright.formats.json_text import show_typed

if TYPE_CHECKING:
    from trainwright.model import TransformerConfig

_ABOUT_THE_FILE = frozenset(
    {"model", "model_name", "num_devices", "batch_per_replica", "unknown", "notes"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedRun:
    """Options of a run by their names in the table of options.

    `recomputed_blocks` are indices in the model where the file lists them one by one. `model` is
    there where the file describes one in full, else perhaps its catalog name; `batch_per_replica`
    are the sequences of each replica, where they and not the global batch are stated; `unknown` are
    settings that this reader does not know, `notes` what it left out knowingly.
    """

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    zero: int | None = None
    mapping: str | None = None
    state_copies: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    sequence: int | None = None
    recompute: str | None = None
    recompute_modules: tuple[str, ...] | None = None
    recomputed_blocks: tuple[int, ...] | None = None
    schedule: str | None = None
    virtual_stages: int | None = None
    blocks: tuple[int, ...] | None = None
    sequence_parallel: bool | None = None
    flash_attention: bool | None = None
    fused_cross_entropy: bool | None = None
    vocabulary_multiple: int | None = None
    precision: str | None = None
    optimizer: str | None = None
    gradient_dtype: str | None = None
    main_weight_dtype: str | None = None
    moment_dtypes: tuple[str, ...] | None = None
    dropout: float | None = None
    capacity_factor: float | None = None
    token_dispatcher: str | None = None
    model: TransformerConfig | None = None
    model_name: str | None = None
    num_devices: int | None = None
    batch_per_replica: int | None = None
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """What is stated of the run itself, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value
            for name, value in found.items()
            if value is not None and name not in _ABOUT_THE_FILE
        }


# Typed fields of a framework's configuration, with every fault noted and a default in its place
# ----------------------------------------------------------------------------------------------
# A field that is absent, or null, has its default. Paths are printed as the file spells them.

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


# A small part of YAML: mappings of plain values, written readably and read back
# ------------------------------------------------------------------------------
# Values are those of JSON, on the line of their key; mappings nest by indentation. Whatever this
# writes, any YAML parser reads alike: texts that could mean something else are in quotes.

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
