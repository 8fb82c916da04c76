"""Text with holes: what a shell script's words come to where some of it cannot be known.

A value of the shell is a plain `str`. What cannot be known (the output of a program, a variable
that nothing sets) is one character of it, taken from two planes of Unicode that are reserved for
private use, and a table says what each of those characters stands for. So every operation on text
(joining, splitting into words, cutting a prefix off) carries the unknown along, and a text that
was put together with `eval` can be parsed again with its holes inside.

Holes are *soft* or *hard*. Soft: a variable or an argument that is not set as far as can be seen
(though a file that is not read may set it); a test may take it for empty, as bash does, and
`${X:-default}` is the default. Hard: there is a value, and only a run of the script could tell it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from trainwright.errors import InvalidInput

if TYPE_CHECKING:
    from trainwright.frameworks.shell.syntax import Function

Kind = Literal[
    "unset",  # a variable that neither the script nor whoever reads it sets
    "argument",  # a positional argument that is not given
    "sourced",  # perhaps set by a file that the script sources and that is not read
    "slurm",  # set by Slurm when the job starts
    "program",  # the output or the status of a program
    "machine",  # differs by run or machine: $RANDOM, hostname, date
    "file",  # the contents or the existence of a file
    "placeholder",  # <FILL THIS IN>
    "condition",  # depends on a condition that cannot be known
    "computed",  # computed from something unknown, or not computable here
]

_ONE_OF_A_NAME: Final = frozenset({"unset", "argument", "sourced", "slurm"})
_SOFT_KINDS: Final = frozenset({"unset", "argument", "sourced"})
_FIRST_SOFT: Final = 0xF0000
_FIRST_HARD: Final = 0x100000
_MOST_HOLES: Final = 0xFFF0
_HOLE: Final = re.compile("[\U000f0000-\U0010ffff]")
_HARD: Final = re.compile("[\U00100000-\U0010ffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A part of a word that cannot be known without running the script.

    `name` is what it is about (a variable, the text of a command or condition), `line` is where
    the script uses it first. `choices` are, of a value that depends on a condition, what it would
    be either way, as far as that is known itself. `derived` says that this is not the variable
    itself but something computed from it.
    """

    kind: Kind
    name: str
    line: int
    choices: tuple[str, ...] = ()
    derived: bool = False

    @property
    def is_unset(self) -> bool:
        """Whether bash would put nothing here, were the script run as it is."""
        return self.kind in _SOFT_KINDS and not self.derived

    @property
    def never_empty(self) -> bool:
        """Whether there surely is some text, whatever it is."""
        return self.derived or self.kind in ("machine", "slurm", "placeholder")

    @property
    def reason(self) -> str:
        """Why it is not known, as the end of a sentence that begins with the name."""
        return _REASONS[self.kind]

    def __str__(self) -> str:
        return f"{self.name} (line {self.line}): {self.reason}"


_REASONS: Final[dict[str, str]] = {
    "unset": "is not set in the script",
    "argument": "is an argument of the script that is not given",
    "sourced": "is not set here; it may be set by a file that the script sources",
    "slurm": "is set by Slurm when the job starts",
    "program": "is known only when the program runs",
    "machine": "differs by run or machine",
    "file": "depends on files that are not beside the script",
    "placeholder": "is to be filled in",
    "condition": "depends on a condition that is known only when the script runs",
    "computed": "is computed from what is known only when the script runs",
}


@dataclass(frozen=True, slots=True)
class Value:
    """A word of a command: pieces of text and of what is not known, in order."""

    parts: tuple[str | Unknown, ...]

    @property
    def text(self) -> str | None:
        """The whole text, None where a part of it is unknown."""
        if not self.parts:
            return ""
        return self.parts[0] if len(self.parts) == 1 and isinstance(self.parts[0], str) else None

    @property
    def unknowns(self) -> tuple[Unknown, ...]:
        """Every unknown part, in order."""
        return tuple(part for part in self.parts if isinstance(part, Unknown))

    @property
    def is_unset(self) -> bool:
        """Whether nothing but unset variables is there: bash drops such a word when unquoted."""
        return bool(self.parts) and all(not isinstance(p, str) and p.is_unset for p in self.parts)

    @property
    def is_open(self) -> bool:
        """Whether the word is one unknown and no text: it may stand for any number of words."""
        return len(self.parts) == 1 and isinstance(self.parts[0], Unknown)

    def shown(self) -> str:
        """The text, with the name of each unknown part as `$NAME` or `$(NAME)`."""
        return "".join(part if isinstance(part, str) else _named(part) for part in self.parts)

    def __str__(self) -> str:
        return self.shown()


def _named(unknown: Unknown) -> str:
    name = unknown.name
    if name.startswith(("$", "<")):
        return name
    return f"${{{name}}}" if re.fullmatch(r"\w+", name) else f"$({name})"


class Holes:
    """The table of what the private characters in a shell's texts stand for."""

    def __init__(self) -> None:
        self._soft: list[Unknown] = []
        self._hard: list[Unknown] = []
        self._known: dict[Unknown, str] = {}

    def character(self, unknown: Unknown) -> str:
        """The character for an unknown; a variable has one, whichever lines it is used in.

        Raises `InvalidInput` where there are more than can be told apart.
        """
        key = replace(unknown, line=0) if unknown.kind in _ONE_OF_A_NAME else unknown
        if (found := self._known.get(key)) is not None:
            return found
        table, first = (self._soft, _FIRST_SOFT) if unknown.is_unset else (self._hard, _FIRST_HARD)
        if len(table) >= _MOST_HOLES:
            raise too_much(unknown.line, f"more than {_MOST_HOLES} values that are not known")
        character = chr(first + len(table))
        table.append(unknown)
        self._known[key] = character
        return character

    def unknown(self, character: str) -> Unknown:
        """What a private character stands for."""
        code = ord(character)
        table, first = (
            (self._hard, _FIRST_HARD) if code >= _FIRST_HARD else (self._soft, _FIRST_SOFT)
        )
        return table[code - first]

    def all_in(self, texts: Iterable[str]) -> list[Unknown]:
        """Each unknown of some texts, once, in order."""
        found = dict.fromkeys(
            c for text in texts if not text.isascii() for c in _HOLE.findall(text)
        )
        return [self.unknown(character) for character in found]

    def value(self, text: str) -> Value:
        """A text for the outside: its pieces, with what is unknown spelled out."""
        if text.isascii():
            return Value((text,) if text else ())
        parts: list[str | Unknown] = []
        start = 0
        for found in _HOLE.finditer(text):
            if found.start() > start:
                parts.append(text[start : found.start()])
            parts.append(self.unknown(found[0]))
            start = found.end()
        if start < len(text):
            parts.append(text[start:])
        return Value(tuple(parts))

    def shown(self, text: str) -> str:
        """A text for people, with names in place of private characters."""
        return text if text.isascii() else self.value(text).shown()

    def may_be_empty(self, text: str) -> bool | None:
        """Whether a text is empty as a test sees it: None where that is not known."""
        plain = without_soft(text)
        if not is_hard(plain):
            return not plain
        if _HARD.sub("", plain) or any(
            self.unknown(character).never_empty for character in _HARD.findall(plain)
        ):
            return False
        return None


def clean(text: str) -> str:
    """Text from outside without the characters that stand for holes."""
    return text if text.isascii() else _HOLE.sub("\N{REPLACEMENT CHARACTER}", text)


def has_holes(text: str) -> bool:
    """Whether anything in a text is unknown."""
    return not text.isascii() and _HOLE.search(text) is not None


def is_hard(text: str) -> bool:
    """Whether a text has a part that a test cannot take for empty."""
    return not text.isascii() and _HARD.search(text) is not None


def is_one_hole(text: str) -> bool:
    """Whether a text is, but for white space, one part that a test cannot take for empty."""
    return is_hard(text) and len(text.strip()) == 1


def only_soft(text: str) -> bool:
    """Whether a text is one or more unset variables and nothing else."""
    return bool(text) and not text.isascii() and not without_soft(text)


def without_soft(text: str) -> str:
    """The text that bash would see where unset variables are empty."""
    return text if text.isascii() else _SOFT.sub("", text)


_SOFT: Final = re.compile("[\U000f0000-\U000fffff]")


def shortened(text: str) -> str:
    """A text on one line, for messages."""
    text = " ".join(text[: 4 * _LONGEST_SHOWN].split())
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"


_LONGEST_SHOWN: Final = 80


def too_much(line: int, what: str) -> InvalidInput:
    """The refusal of a script that goes beyond a bound."""
    return InvalidInput.of(f"line {line}", f"the script comes to {what}; it is not read")


class Budget:
    """What reading a script may cost: a script is data from a stranger.

    Steps are commands, expansions and turns of loops, bytes are of all text that expansions make.
    Launch scripts of public repositories stay below 1,300 steps and 25 kB.
    """

    MOST_STEPS: Final = 50_000
    MOST_BYTES: Final = 4 * 2**20
    LONGEST_TEXT: Final = 2**18
    DEEPEST: Final = 32
    MOST_WORDS: Final = 50_000

    def __init__(self) -> None:
        self.steps = 0
        self.size_bytes = 0

    def step(self, line: int, count: int = 1) -> None:
        """Count work; raises `InvalidInput` naming the line where it becomes too much."""
        self.steps += count
        if self.steps > self.MOST_STEPS:
            raise too_much(line, f"more than {self.MOST_STEPS} steps")

    def text(self, line: int, text: str) -> str:
        """Count text that was made, and hand it on; raises `InvalidInput` as `step` does."""
        self.size_bytes += len(text)
        if len(text) > self.LONGEST_TEXT:
            raise too_much(line, f"a text of more than {self.LONGEST_TEXT} characters")
        if self.size_bytes > self.MOST_BYTES:
            raise too_much(line, f"more than {self.MOST_BYTES} characters of text")
        return text

    def words(self, line: int, words: Sequence[str]) -> Sequence[str]:
        """Refuse a list of too many words; raises `InvalidInput`."""
        if len(words) > self.MOST_WORDS:
            raise too_much(line, f"a list of more than {self.MOST_WORDS} words")
        return words


# What a running script knows: variables, arguments, functions, and the files it has written
# ------------------------------------------------------------------------------------------
# A state is copied where a condition cannot be known, both ways are followed, and the two states
# are merged: what differs becomes unknown, with what it would be either way beside it. Options that
# one way adds to a list leave the rest of the list known.


@dataclass(frozen=True, slots=True)
class Array:
    """The elements of an array by index, in order of index, or by key in order of arrival."""

    items: Mapping[int | str, str]
    by_name: bool = False

    def with_item(self, key: int | str, text: str) -> Array:
        """The array with one element more or replaced."""
        items = {**self.items, key: text}
        if not self.by_name and self.items and isinstance(key, int):
            last = next(reversed(self.items))
            if isinstance(last, int) and key < last:
                items = dict(sorted(items.items(), key=lambda item: int(item[0])))
        return Array(items, self.by_name)

    def extended(self, texts: list[str]) -> Array:
        """The array with more elements after its last."""
        first = 1 + max((key for key in self.items if isinstance(key, int)), default=-1)
        return Array({**self.items, **dict(enumerate(texts, first))}, self.by_name)


@dataclass(frozen=True, slots=True)
class Variable:
    """A value with its attributes. `by_script` says that the script itself has set it."""

    value: str | Array
    exported: bool = False
    integer: bool = False
    reference: bool = False
    by_script: bool = True
    letters: str = ""  # "u" or "l" where `declare -u` or `-l` changes the case

    @property
    def text(self) -> str | None:
        """The text of a variable; of an array that of its first element."""
        if isinstance(self.value, str):
            return self.value
        return self.value.items.get("0" if self.value.by_name else 0)


@dataclass(slots=True)
class State:
    """Everything that a statement can change."""

    variables: dict[str, Variable]
    arguments: tuple[str, ...]
    name: str
    functions: dict[str, Function] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    folder: str = "."
    before_folder: str = "."
    options: frozenset[str] = frozenset()
    status: int | None = 0
    why: str = ""  # the private character for why the status is not known
    frames: list[dict[str, Variable | None]] = field(default_factory=list)
    calls: tuple[str, ...] = ()
    getopts_at: int = 0

    def fork(self) -> State:
        """A copy that can be changed apart."""
        return replace(
            self,
            variables=dict(self.variables),
            functions=dict(self.functions),
            files=dict(self.files),
            frames=[dict(frame) for frame in self.frames],
        )

    def set(self, name: str, value: str | Array) -> None:
        """Give a variable a value; attributes stay."""
        old = self.variables.get(name)
        if old is None:
            self.variables[name] = Variable(value, exported="allexport" in self.options)
            return
        if isinstance(value, str):
            value = {"u": value.upper(), "l": value.lower()}.get(old.letters, value)
            if isinstance(old.value, Array):
                value = old.value.with_item("0" if old.value.by_name else 0, value)
        self.variables[name] = replace(old, value=value, by_script=True)

    def unset(self, name: str) -> None:
        """Forget a variable."""
        self.variables.pop(name, None)

    def exported(self) -> dict[str, Variable]:
        """The variables that programs see."""
        return {name: each for name, each in self.variables.items() if each.exported}


def merged(first: State, second: State, condition: Unknown, holes: Holes) -> State:
    """The state after either of two ways; `second` decides what cannot be merged.

    `condition` is the unknown condition between them: differing values become unknowns that
    bear its name and line.
    """
    out = second.fork()
    out.functions = {**first.functions, **second.functions}
    for name in {**first.variables, **second.variables}:
        one, other = first.variables.get(name), second.variables.get(name)
        if one != other:
            out.variables[name] = _merged_variable(one, other, condition, holes)
    for path in {**first.files, **second.files}:
        text, second_text = first.files.get(path, ""), second.files.get(path, "")
        if text != second_text:
            out.files[path] = merged_text(text, second_text, condition, holes)
    if first.status != second.status:
        out.status = None
        out.why = holes.character(condition)
    return out


def _merged_variable(
    one: Variable | None, other: Variable | None, condition: Unknown, holes: Holes
) -> Variable:
    kept = other or one
    assert kept is not None, "a variable that differs is set on one side"
    first = "" if one is None else one.value
    second = "" if other is None else other.value
    exported = any(each is not None and each.exported for each in (one, other))
    if isinstance(first, Array) or isinstance(second, Array):
        left, right = _elements(first), _elements(second)
        texts = _merged_list(left, right, condition, holes)
        by_name = any(isinstance(value, Array) and value.by_name for value in (first, second))
        if not by_name:
            return replace(kept, value=Array(dict(enumerate(texts))), exported=exported)
        items = {
            key: merged_text(_item(first, key), _item(second, key), condition, holes)
            for key in {**_items(first), **_items(second)}
        }
        return replace(kept, value=Array(items, True), exported=exported)
    return replace(kept, value=merged_text(first, second, condition, holes), exported=exported)


def _items(value: str | Array) -> Mapping[int | str, str]:
    return value.items if isinstance(value, Array) else {0: value} if value else {}


def _elements(value: str | Array) -> list[str]:
    return list(_items(value).values())


def _item(value: str | Array, key: int | str) -> str:
    return _items(value).get(key, "")


def merged_text(first: str, second: str, condition: Unknown, holes: Holes) -> str:
    """What is common to two texts, word by word, with an unknown where they differ."""
    if first == second:
        return first
    if any(c.isspace() for c in first + second):
        left, right = first.split(), second.split()
        if not left and not right:
            return second
        return " ".join(_merged_list(left, right, condition, holes))
    return _choice([first], [second], condition, holes)


def _merged_list(left: list[str], right: list[str], condition: Unknown, holes: Holes) -> list[str]:
    shorter = min(len(left), len(right))
    before = 0
    while before < shorter and left[before] == right[before]:
        before += 1
    after = 0
    while after < shorter - before and left[-1 - after] == right[-1 - after]:
        after += 1
    middle = [side[before : len(side) - after] for side in (left, right)]
    if not any(middle):
        return right
    tail = right[len(right) - after :]
    return [*right[:before], _choice(middle[0], middle[1], condition, holes), *tail]


_LONGEST_CHOICE: Final = 400


def _choice(first: list[str], second: list[str], condition: Unknown, holes: Holes) -> str:
    choices = tuple(holes.shown(" ".join(side))[:_LONGEST_CHOICE] for side in (first, second))
    return holes.character(replace(condition, choices=choices))
