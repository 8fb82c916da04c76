"""Files that a bash script sources, put in where it sources them; nothing is run.

Only regular files inside the script's own folder are read. What is not read is reported with its
line, so that whoever misses a variable can say where it may come from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainwright.errors import InvalidInput
from trainwright.formats.atomic_file import read_bytes
from trainwright.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

_SOURCE: Final = re.compile(
    r"^(?:.*(?:&&|\|\||;|\bthen\b|\bdo\b|\{))?\s*(?:source|\.)\s+"
    r"""("[^"]*"|'[^']*'|[^\s;&|]+)\s*(?:[;&|}].*)?$"""
)
_OWN: Final = r"\$(?:0|\{0\}|BASH_SOURCE|\{BASH_SOURCE(?:\[0\])?\})"
_OWN_FOLDER: Final = re.compile(
    rf'"?\$\(\s*dirname\s+(?:--\s+)?"?{_OWN}"?\s*\)"?|\$\{{(?:0|BASH_SOURCE(?:\[0\])?)%/\*\}}'
)
_ENTERED: Final = re.compile(r"""\$\(\s*cd\s+["']?\.["']?\s*&&\s*pwd(?:\s+-P)?\s*\)|\$PWD\b""")
_ASSIGNED: Final = re.compile(r"""^\s*(?:export\s+)?([A-Za-z_]\w*)=(["']?)([^\s"']*)\2\s*$""")
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_DEEPEST: Final = 8
_LARGEST: Final = 4 * MIB


@dataclass(frozen=True, slots=True)
class NotRead:
    """A file that a script sources and that was left out: its line, its name there, and why."""

    line: int
    name: str
    why: str

    def __str__(self) -> str:
        return f'line {self.line} sources "{self.name}", which is not read: {self.why}'


def without_comments(text: str) -> str:
    """Lines without what follows a # that starts a word outside quotes."""
    return "\n".join(_before_comment(line) for line in text.splitlines())


def with_sourced(text: str, folder: Path | None) -> tuple[str, tuple[NotRead, ...]]:
    """The text without comments, sourced files in their places; what was not read."""
    left: list[NotRead] = []
    lines = _lines(text, folder, {}, left, line=None, depth=0)
    return "\n".join(lines), tuple(left)


def _lines(
    text: str,
    folder: Path | None,
    variables: dict[str, str],
    left: list[NotRead],
    *,
    line: int | None,
    depth: int,
) -> Iterator[str]:
    """`line` is that of the script itself, by which sourced lines are known."""
    for number, plain in enumerate(without_comments(text).split("\n"), 1):
        known = _ENTERED.sub(".", _OWN_FOLDER.sub(".", plain))
        if assigned := _ASSIGNED.match(known):
            variables[assigned[1]] = _filled(assigned[3], variables)
        found = _SOURCE.match(known)
        if not found:
            yield plain
            continue
        name = _filled(found[1].strip("\"'"), variables)
        at = number if line is None else line
        try:
            inside = _read_beside(folder, name, depth)
        except InvalidInput as error:
            left.append(NotRead(at, name, error.faults[0].problem))
            yield plain
            continue
        yield from _lines(inside, folder, variables, left, line=at, depth=depth + 1)


def _read_beside(folder: Path | None, name: str, depth: int) -> str:
    """Raises `InvalidInput` where the file lies elsewhere, or cannot be read as text."""
    if folder is None:
        raise InvalidInput.of("source", "the script has no folder")
    if "$" in name or "`" in name:
        raise InvalidInput.of("source", "its name is known only when the script runs")
    if depth == _DEEPEST:
        raise InvalidInput.of("source", f"it lies deeper than {_DEEPEST} sourced files")
    try:
        home = folder.resolve()
        path = (home / name).resolve()
        is_file = path.is_file()
    except (OSError, ValueError, RuntimeError):
        raise InvalidInput.of("source", "it is not a valid path") from None
    if not path.is_relative_to(home):
        raise InvalidInput.of("source", "it lies outside the script's folder")
    if not is_file:
        raise InvalidInput.of("source", "there is no such file")
    try:
        return read_bytes(path, name="source", most=_LARGEST).decode()
    except UnicodeDecodeError:
        raise InvalidInput.of("source", "it is not text") from None


def _filled(text: str, variables: dict[str, str]) -> str:
    return _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], found[0]), text)


def _before_comment(line: str) -> str:
    quote = ""
    for at, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (at == 0 or line[at - 1].isspace()):
            return line[:at]
    return line
