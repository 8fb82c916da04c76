"""Flags of a training script: a bash file, or a plain list of arguments.

Nothing is run. Comments go, continued lines join, variables and arrays that the file sets itself
are put in where they are used, and what remains of the words is read as flags with their values.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from trainwright.errors import InvalidInput

_SCALAR: Final = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(?!\()(.*)$")
_ARRAY: Final = re.compile(r"([A-Za-z_]\w*)\+?=\((.*?)\n?\s*\)\s*(?:\n|$)", re.DOTALL)
_USE: Final = re.compile(r"\$(?:\{(\w+)(?:\[[@*]\])?(?::?[-=]([^}]*))?\}|(\w+))")
_NESTING: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """Values by flag, each without its dashes; a switch has none. `variables` are the file's own.

    A flag that is given twice keeps its last values, as argparse does.
    """

    values: Mapping[str, tuple[str, ...]]
    variables: Mapping[str, str]

    def one(self, name: str) -> str | None:
        """The single value of a flag, None where it is absent."""
        found = self.values.get(name)
        return found[0] if found else None

    def count(self, name: str) -> int | None:
        """The same as a whole number; raises `InvalidInput` naming the flag."""
        text = self.one(name)
        if text is None:
            return None
        try:
            return int(text.replace("_", ""))
        except ValueError:
            raise InvalidInput.of(f"--{name}", f'must be a whole number, got "{text}"') from None

    def number(self, name: str) -> float | None:
        """The same as a number."""
        text = self.one(name)
        if text is None:
            return None
        try:
            return float(text)
        except ValueError:
            raise InvalidInput.of(f"--{name}", f'must be a number, got "{text}"') from None


def read_flags(text: str) -> Flags:
    """The flags of a script. Raises `InvalidInput` for quotes that do not close."""
    plain = _without_comments(text).replace("\\\n", " ")
    variables: dict[str, str] = {}

    def keep(found: re.Match[str]) -> str:
        name, inside = found[1], found[2].replace("\n", " ")
        variables[name] = f"{variables.get(name, '')} {inside}".strip()
        return f"\n{_marker(name)}\n"

    rest = _ARRAY.sub(keep, plain)
    lines = []
    for line in rest.splitlines():
        assigned = _SCALAR.match(line)
        if assigned and not line.lstrip().startswith("--"):
            variables[assigned[1]] = _unquoted(assigned[2].strip())
        else:
            lines.append(line)
    command = _filled("\n".join(lines), variables)
    if not any(word.startswith("--") for word in command.split()):
        command += "\n" + "\n".join(_filled(value, variables) for value in variables.values())
    return Flags(values=dict(_flags(_words(command))), variables=variables)


def _marker(name: str) -> str:
    """Where an array was set; it is read at its use, or, where it has none, here."""
    return f"# {name}"


def _without_comments(text: str) -> str:
    """Lines without what follows a # that starts a word outside quotes."""
    return "\n".join(_before_comment(line) for line in text.splitlines())


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


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _filled(text: str, variables: Mapping[str, str]) -> str:
    """The text with the variables that the file sets; others take their default or stay."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        return variables.get(name, found[2] if found[2] is not None else found[0])

    for _ in range(_NESTING):
        filled = _USE.sub(value, re.sub(r'"(\$\{\w+\[@\]\})"', r"\1", text))
        if filled == text:
            break
        text = filled
    return text


def _words(command: str) -> list[str]:
    plain = "\n".join(line for line in command.splitlines() if not line.startswith("# "))
    try:
        return shlex.split(plain)
    except ValueError as error:
        raise InvalidInput.of("arguments", f"cannot be read: {error}") from None


def _flags(words: list[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    name = ""
    values: list[str] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            if name:
                yield name, tuple(values)
            name, equals, value = word[2:].partition("=")
            values = [value] if equals else []
        elif name:
            values.append(word)
    if name:
        yield name, tuple(values)
