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
from pathlib import Path
from typing import Final

from trainwright.errors import Fault, InvalidInput
from trainwright.formats.atomic_file import read_bytes
from trainwright.units import MIB

# What a batch script asks of Slurm (`#SBATCH --nodes=16`), as the variables that Slurm sets
# ------------------------------------------------------------------------------------------
# Only sizes are read: nodes, tasks, and devices and tasks of a node. A range of nodes says no
# number.

_DIRECTIVE: Final = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
_OPTION: Final = re.compile(r"(--[\w-]+)(?:=(.*))?|(-[a-zA-Z])=?(.*)")
_SHORT: Final = {"-N": "--nodes", "-n": "--ntasks"}
_WHOLE: Final = re.compile(r"[0-9]{1,9}")
_DEVICES: Final = re.compile(r"(?:[^:(,]+:)?([0-9]{1,9})")  # 8 or h100:8
_RESOURCE: Final = re.compile(r"gpu(?::[^:(]+)?:([0-9]{1,9})(?:\(.*)?")  # also gpu:8(S:0-1)


def batch_variables(text: str) -> dict[str, str]:
    """The variables that follow from the script's directives; empty where it has none."""
    asked = {
        option: value
        for line in _DIRECTIVE.findall(text)
        for option, value in _options(line.partition(" #")[0].split())
    }
    nodes, each = (_whole(asked.get(name)) for name in ("--nodes", "--ntasks-per-node"))
    tasks = _whole(asked.get("--ntasks"))
    if tasks is None and nodes is not None and each is not None:
        tasks = nodes * each
    devices = _devices(asked)
    sizes = {
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_GPUS_ON_NODE": devices,
        "SLURM_GPUS_PER_NODE": devices,
        "SLURM_NTASKS_PER_NODE": each,
        "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks,
    }
    return {name: str(size) for name, size in sizes.items() if size is not None}


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    """Long names of the options of a line, each with its value, empty for a switch."""
    name = ""
    for word in words:
        found = _OPTION.fullmatch(word)
        if found is not None:
            name = found[1] or _SHORT.get(found[3], found[3])
            value = found[2] or found[4] or ""
            yield name, value
            name = "" if value else name
        elif name:
            yield name, word
            name = ""


def _whole(value: str | None) -> int | None:
    return int(value) if value is not None and _WHOLE.fullmatch(value) else None


def _devices(asked: dict[str, str]) -> int | None:
    """Devices of a node: what is asked of each, else those among its generic resources."""
    found = _DEVICES.fullmatch(asked.get("--gpus-per-node", ""))
    if found is not None:
        return int(found[1])
    resources = map(_RESOURCE.fullmatch, asked.get("--gres", "").split(","))
    counts = [int(each[1]) for each in resources if each is not None]
    return sum(counts) if counts else None


# Files that a bash script sources, put in where it sources them; nothing is run
# ------------------------------------------------------------------------------
# Only regular files inside the script's own folder are read. What is not read is reported with its
# line, so that whoever misses a variable can say where it may come from.

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


# Flags of a training script: a bash file, or a plain list of arguments
# ---------------------------------------------------------------------

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
    command = _filled_words(_IF_SET.sub(r"${\1[@]:-}", "\n".join(lines)), variables)
    if not any(word.startswith("--") for word in command.split()):
        command += "\n" + "\n".join(_filled_words(value, variables) for value in variables.values())
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


def _filled_words(text: str, variables: Mapping[str, str]) -> str:
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
