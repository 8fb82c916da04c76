"""What a running script knows: variables, arguments, functions, and the files it has written.

A state is copied where a condition cannot be known, both ways are followed, and the two states
are merged: what differs becomes unknown, with what it would be either way beside it. Options that
one way adds to a list leave the rest of the list known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from trainwright.frameworks.shell.values import Holes, Unknown

if TYPE_CHECKING:
    from trainwright.frameworks.shell.syntax import Function


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


_WORDS: Final = re.compile(r"\s+|\S+")


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
