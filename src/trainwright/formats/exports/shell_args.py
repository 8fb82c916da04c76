"""Flags of a training script: a bash file, or a plain list of arguments.

Nothing is run. Comments go, files that it sources from its own folder come in, continued lines
join, variables and arrays that are set, by the script or from its directives to Slurm, are put in
where they are used, and what remains of the words, those of a command in quotes (`bash -c "…"`)
among them, is read as flags with their values.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from trainwright.errors import Fault, InvalidInput
from trainwright.formats.exports.shell_sources import NotRead, with_sourced
from trainwright.formats.exports.slurm_directives import batch_variables

if TYPE_CHECKING:
    from pathlib import Path

_SCALAR: Final = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(?!\()(.*)$")
_ARRAY: Final = re.compile(r"([A-Za-z_]\w*)\+?=\((.*?)\n?\s*\)\s*(?:\n|$)", re.DOTALL)
_USE: Final = re.compile(r"\$(?:\{(\w+)(?:\[[@*]\])?(?::?[-=]([^}]*))?\}|(\w+))")
_OPEN_QUOTE: Final = re.compile(
    r"""^(\s*(?:export\s+)?[A-Za-z_]\w*=)(["'])([^"'\n]*\n[^"']*)\2""", re.MULTILINE
)
_IF_SET: Final = re.compile(r"""\$\{(\w+)\[[@*]\]:?\+"?\$\{\1\[[@*]\]\}"?\}""")
_UNSET_ARRAY: Final = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_UNSET_LIST: Final = re.compile(r"\$\{?(\w*(?:ARGS|OPTS|OPTIONS|FLAGS|PARAMS))\}?", re.IGNORECASE)
_UNSET: Final = re.compile(r"\$(?:\w+|\{[^}]*\})")
_QUOTED_COMMAND: Final = re.compile(r"-\w*c")
_NESTING: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """Values by flag, each without its dashes; a switch has none. `variables` are the file's own.

    A flag that is given twice keeps its last values, as argparse does. `notes` say which lists of
    arguments are used and never set.
    """

    values: Mapping[str, tuple[str, ...]]
    variables: Mapping[str, str]
    notes: tuple[str, ...] = ()

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
            raise self._no_number(name, "a whole number") from None

    def positive(self, name: str) -> int | None:
        """The same, at least 1."""
        found = self.count(name)
        if found is not None and found < 1:
            raise InvalidInput.of(f"--{name}", f"must be a whole number >= 1, got {found}")
        return found

    def number(self, name: str) -> float | None:
        """The same as a number."""
        text = self.one(name)
        if text is None:
            return None
        try:
            return float(text)
        except ValueError:
            raise self._no_number(name, "a number") from None

    def is_unset(self, name: str) -> bool:
        """Whether the value of a flag is a variable that the file does not set."""
        return _UNSET.fullmatch(self.one(name) or "") is not None

    def _no_number(self, name: str, wanted: str) -> InvalidInput:
        unset = ", which this script does not set: write its value" if self.is_unset(name) else ""
        return InvalidInput.of(f"--{name}", f'must be {wanted}, got "{self.one(name)}"{unset}')


def read_flags(text: str, folder: Path | None = None) -> Flags:
    """The flags of a script that lies in `folder`.

    Raises `InvalidInput` for quotes that do not close and for arrays that nothing sets.
    """
    whole, left = with_sourced(text, folder)
    plain = _OPEN_QUOTE.sub(_on_one_line, whole.replace("\\\n", " "))
    variables = batch_variables(text)

    def keep(found: re.Match[str]) -> str:
        name, inside = found[1], found[2].replace("\n", " ")
        variables[name] = f"{variables.get(name, '')} {inside}".strip()
        return f"\n{_marker(name)}\n"

    rest = _ARRAY.sub(keep, plain)
    lines = []
    for line in rest.splitlines():
        assigned = _SCALAR.match(line)
        if assigned and not line.lstrip().startswith("--"):
            name, value = assigned[1], _unquoted(assigned[2].strip())
            variables[name] = _extended(name, value, variables)
        else:
            lines.append(line)
    command = _filled(_IF_SET.sub(r"${\1[@]:-}", "\n".join(lines)), variables)
    if not any(word.startswith("--") for word in command.split()):
        command += "\n" + "\n".join(_filled(value, variables) for value in variables.values())
    _refuse_unset_arrays(command, left)
    words = _words(command)
    notes = tuple(_unset_lists(words, left))
    return Flags(values=dict(_flags(words)), variables=variables, notes=notes)


def _on_one_line(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}{found[3].replace(chr(10), ' ')}{found[2]}"


def _extended(name: str, value: str, variables: Mapping[str, str]) -> str:
    """A value in which its own name stands for what it was before."""
    if name not in variables:
        return value
    before = variables[name]
    return re.sub(rf"\$(?:\{{{name}\}}|{name}\b)", lambda _: before, value)


def _refuse_unset_arrays(command: str, left: Iterable[NotRead]) -> None:
    names = dict.fromkeys(_UNSET_ARRAY.findall(command))
    if names:
        problem = f"must be set in the script or a file of its folder that it sources{_from(left)}"
        raise InvalidInput([Fault(name, problem) for name in names])


def _unset_lists(words: Iterable[str], left: Iterable[NotRead]) -> Iterator[str]:
    for name in dict.fromkeys(found[1] for word in words if (found := _UNSET_LIST.fullmatch(word))):
        yield f"{name} is not set here, and what it holds is not used{_from(left)}"


def _from(left: Iterable[NotRead]) -> str:
    return "".join(f"; {each}" for each in left)


def _marker(name: str) -> str:
    """Where an array was set; it is read at its use, or, where it has none, here."""
    return f"# {name}"


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
        words = shlex.split(plain)
    except ValueError as error:
        raise InvalidInput.of("arguments", f"cannot be read: {error}") from None
    around = pairwise(["", *words])
    return [part for before, word in around for part in _words_of(before, word)]


def _words_of(before: str, word: str) -> list[str]:
    """The words of a command in quotes (`bash -lc "…"`), else the word, as of another language."""
    if " --" not in word or not _QUOTED_COMMAND.fullmatch(before):
        return [word]
    try:
        return shlex.split(word)
    except ValueError:
        return [word]


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
