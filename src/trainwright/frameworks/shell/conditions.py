"""Conditions: `[ … ]`, `test` and `[[ … ]]`, true, false, or not known.

A test reads unset variables as empty, as bash does. It is not known (None) where it looks into
what only a run could tell, at files that are not beside the script, or at patterns that could take
very long (bash manual, 6.4 and 3.2.5.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from trainwright.frameworks.shell import patterns
from trainwright.frameworks.shell.arithmetic import BadArithmetic
from trainwright.frameworks.shell.expand import Expander
from trainwright.frameworks.shell.values import Array, Unknown, has_holes, is_hard, without_soft
from trainwright.frameworks.shell.words import after_command, after_word, line_end

Verdict = bool | None

_FILE_TESTS: Final = frozenset("abcdefghknprstuwxGLNOS")
_NUMBERS: Final[dict[str, Callable[[int, int], bool]]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_BINARY: Final = frozenset({*_NUMBERS, "=", "==", "!=", "<", ">", "=~", "-ef", "-nt", "-ot"})


class Files(Protocol):
    """What is known of files: whether there is one of a path; None where that is not known."""

    def exists(self, path: str, sort: str) -> Verdict:
        """Whether `-sort path` holds."""


class BadTest(Exception):
    """Not a test: bash prints an error, and the status is 2."""


def negated(verdict: Verdict) -> Verdict:
    """The opposite."""
    return None if verdict is None else not verdict


def both(left: Verdict, right: Verdict) -> Verdict:
    """Left and right."""
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def either(left: Verdict, right: Verdict) -> Verdict:
    """Left or right."""
    return negated(both(negated(left), negated(right)))


class Tests:
    """Evaluates conditions against an expander's state."""

    def __init__(self, expander: Expander, files: Files) -> None:
        self._expander = expander
        self._files = files
        self.causes: list[str] = []  # texts with what made a verdict unknown

    def command(self, words: Sequence[str], line: int) -> Verdict:
        """`[ words ]`, expanded and without its brackets; raises `BadTest`."""
        self._note(words)
        return _Single(self, [without_soft(word) for word in words], line).verdict()

    def double(self, source: str, line: int) -> Verdict:
        """`[[ source ]]`; raises `BadTest`."""
        return _Double(self, source, line).verdict()

    def _note(self, words: Sequence[str]) -> None:
        for unknown in self._expander.holes.all_in(words):
            if unknown.is_unset:
                self._expander.used.append(unknown)

    def unary(self, operator: str, text: str, line: int) -> Verdict:
        """`-z text` and its kin; raises `BadTest`."""
        self._note((text,))
        text = without_soft(text)
        if operator in ("-z", "-n"):
            empty = self._expander.holes.may_be_empty(text)
            if empty is None:
                self.causes.append(text)
            return empty if operator == "-z" else negated(empty)
        if operator in ("-v", "-R"):
            name, _, index = text.partition("[")
            variable = self._expander.state.variables.get(name)
            if variable is None:
                self._expander.used.append(Unknown(kind="unset", name=name, line=line))
                return False
            if index and isinstance(variable.value, Array):
                return self._expander.key(name, index.rstrip("]"), line) in variable.value.items
            return variable.text is not None
        if operator == "-o":
            return text in self._expander.state.options
        if operator == "-t":
            return False
        if len(operator) == 2 and operator[1] in _FILE_TESTS:
            if is_hard(text):
                self.causes.append(text)
                return None
            found = self._files.exists(text, operator[1])
            if found is None:
                hole = Unknown(kind="file", name=f"{operator} {text}", line=line)
                self.causes.append(self._expander.holes.character(hole))
            return found
        raise BadTest

    def numbers(self, left: str, operator: str, right: str, line: int, *, strict: bool) -> Verdict:
        """`left -gt right` and its kin; raises `BadTest`."""
        found = []
        for text in (left, right):
            if is_hard(text):
                self.causes.append(text)
                return None
            plain = text.strip()
            if strict and not plain.lstrip("+-").isdigit():
                raise BadTest
            try:
                number = int(plain) if strict else self._expander.calculated(plain, line)
            except (BadArithmetic, ValueError):
                raise BadTest from None
            if isinstance(number, str):
                self.causes.append(number)
                return None
            found.append(number)
        return _NUMBERS[operator](found[0], found[1])

    def same(self, text: str, pattern: str, *, as_pattern: bool) -> Verdict:
        """Whether a text is another one, or matches a pattern."""
        self._note((text, pattern))
        text, pattern = without_soft(text), without_soft(pattern)
        if as_pattern and pattern == "*":
            return True
        if has_holes(text) or has_holes(pattern):
            if text == pattern:
                return True
            if not as_pattern and self._differ(text, pattern):
                return False
            self.causes += [text, pattern]
            return None
        if not as_pattern:
            return text == pattern
        try:
            return patterns.matches(pattern, text)
        except patterns.TooCostly:
            return self._given_up(text)

    def _given_up(self, text: str) -> Verdict:
        hole = Unknown(kind="computed", name=text[:40], line=0)
        self.causes.append(self._expander.holes.character(hole))
        return None

    def _differ(self, text: str, other: str) -> bool:
        """Whether two texts differ whatever their holes hold."""
        may = self._expander.holes.may_be_empty
        return (text == "" and may(other) is False) or (other == "" and may(text) is False)

    def regular(self, text: str, source: str, line: int) -> Verdict:
        """`text =~ source`; the groups go to `BASH_REMATCH`."""
        self._note((text, source))
        text, source = without_soft(text), without_soft(source)
        if is_hard(text) or is_hard(source):
            self.causes += [text, source]
            return None
        self._expander.budget.step(line, 1 + len(text) // 16)
        try:
            found = patterns.searched(source, text)
        except patterns.TooCostly:
            return self._given_up(text)
        groups = [] if found is None else [found[0], *(group or "" for group in found.groups())]
        self._expander.state.set("BASH_REMATCH", Array(dict(enumerate(groups))))
        return found is not None


class _Single:
    """The words of `[ … ]`, by the rules of the manual for 1 to 4 words, then by precedence."""

    def __init__(self, tests: Tests, words: list[str], line: int) -> None:
        self._tests = tests
        self._words = words
        self._line = line
        self._at = 0

    def verdict(self) -> Verdict:
        words = self._words
        if not words:
            return False
        if len(words) == 1:
            return self._tests.unary("-n", words[0], self._line)
        if len(words) == 2:
            if words[0] == "!":
                return negated(self._tests.unary("-n", words[1], self._line))
            return self._tests.unary(words[0], words[1], self._line)
        if len(words) == 3 and words[1] in _BINARY:
            return self._pair(*words)
        found = self._either()
        if self._at < len(words):
            raise BadTest
        return found

    def _pair(self, left: str, operator: str, right: str) -> Verdict:
        if operator in _NUMBERS:
            return self._tests.numbers(left, operator, right, self._line, strict=True)
        if operator in ("<", ">"):
            return left < right if operator == "<" else left > right
        if operator in ("=", "=="):
            return self._tests.same(left, right, as_pattern=False)
        if operator == "!=":
            return negated(self._tests.same(left, right, as_pattern=False))
        return None

    def _next(self) -> str:
        self._at += 1
        if self._at > len(self._words):
            raise BadTest
        return self._words[self._at - 1]

    def _peek(self) -> str | None:
        return self._words[self._at] if self._at < len(self._words) else None

    def _either(self) -> Verdict:
        found = self._both()
        while self._peek() == "-o":
            self._at += 1
            found = either(found, self._both())
        return found

    def _both(self) -> Verdict:
        found = self._one()
        while self._peek() == "-a":
            self._at += 1
            found = both(found, self._one())
        return found

    def _one(self) -> Verdict:
        word = self._next()
        following = self._peek()
        if following in _BINARY and following is not None and self._at + 1 < len(self._words):
            self._at += 2
            return self._pair(word, following, self._words[self._at - 1])
        if word == "!":
            return negated(self._one())
        if word in ("(", "\\("):
            found = self._either()
            self._next()
            return found
        if (
            len(word) == 2
            and word[0] == "-"
            and following is not None
            and following not in ("-a", "-o")
        ):
            return self._tests.unary(word, self._next(), self._line)
        return self._tests.unary("-n", word, self._line)


class _Double:
    """The source of `[[ … ]]`: its words keep their quotes, for a quoted pattern is text."""

    def __init__(self, tests: Tests, source: str, line: int) -> None:
        self._tests = tests
        self._expander = tests._expander
        self._line = line
        self._items = _items(source)
        self._at = 0

    def verdict(self) -> Verdict:
        found = self._either()
        if self._at < len(self._items):
            raise BadTest
        return found

    def _peek(self) -> str | None:
        return self._items[self._at] if self._at < len(self._items) else None

    def _next(self) -> str:
        self._at += 1
        if self._at > len(self._items):
            raise BadTest
        return self._items[self._at - 1]

    def _either(self) -> Verdict:
        found = self._both()
        while self._peek() == "||":
            self._at += 1
            found = either(found, self._both())
        return found

    def _both(self) -> Verdict:
        found = self._one()
        while self._peek() == "&&":
            self._at += 1
            found = both(found, self._one())
        return found

    def _one(self) -> Verdict:
        word = self._next()
        if word == "!":
            return negated(self._one())
        if word == "(":
            found = self._either()
            if self._next() != ")":
                raise BadTest
            return found
        following = self._peek()
        if following in _BINARY and following is not None:
            self._at += 1
            return self._pair(word, following, self._next())
        if len(word) == 2 and word[0] == "-" and following not in (None, "&&", "||", ")"):
            return self._tests.unary(word, self._one_text(self._next()), self._line)
        return self._tests.unary("-n", self._one_text(word), self._line)

    def _one_text(self, raw: str) -> str:
        return self._expander.one(raw, self._line)

    def _pair(self, left: str, operator: str, right: str) -> Verdict:
        text = self._one_text(left)
        if operator in _NUMBERS:
            other = self._one_text(right)
            self._tests._note((text, other))
            pair = (without_soft(text), operator, without_soft(other))
            return self._tests.numbers(*pair, self._line, strict=False)
        if operator == "=~":
            return self._tests.regular(text, self._expression(right), self._line)
        if operator in ("=", "==", "!="):
            pattern = self._expander.pattern(right, self._line)
            found = self._tests.same(text, pattern, as_pattern=True)
            return negated(found) if operator == "!=" else found
        if operator in ("<", ">"):
            other = self._one_text(right)
            if is_hard(text) or is_hard(other):
                self._tests.causes += [text, other]
                return None
            return text < other if operator == "<" else text > other
        return None

    def _expression(self, raw: str) -> str:
        """A regular expression: its backslashes are its own; quoted parts are text."""
        if "$" in raw or '"' in raw or "'" in raw:
            return self._expander.pattern(raw, self._line)
        return raw


def _items(source: str) -> list[str]:
    """The words and operators of `[[ … ]]`; parentheses and `<`, `>` are operators there."""
    found: list[str] = []
    at = 0
    while at < len(source):
        letter = source[at]
        if letter.isspace():
            at += 1
        elif source.startswith("\\\n", at):
            at += 2
        elif source.startswith(("&&", "||"), at):
            found.append(source[at : at + 2])
            at += 2
        elif found and found[-1] == "=~":
            end = _end_of_expression(source, at)
            found.append(source[at:end])
            at = end
        elif letter in "()<>":
            found.append(letter)
            at += 1
        elif letter == "!" and source[at + 1 : at + 2] in (" ", "("):
            found.append("!")
            at += 1
        elif letter == "#":
            at = line_end(source, at)
        else:
            end = after_word(source, at)
            found.append(source[at:end])
            at = end
    return found


def _end_of_expression(source: str, at: int) -> int:
    """Where a regular expression ends: at a blank outside its parentheses, sets and quotes."""
    while at < len(source):
        letter = source[at]
        if letter.isspace() or source.startswith(("&&", "||"), at) or letter == ")":
            return at
        if letter == "\\":
            at += 2
        elif letter == "(":
            at = after_command(source, at + 1)
        elif letter in "\"'":
            end = source.find(letter, at + 1)
            at = len(source) if end < 0 else end + 1
        elif letter == "[":
            end = source.find("]", at + 2)
            if source.startswith("[:", at + 1):
                end = source.find("]", end + 1)
            at = at + 1 if end < 0 else end + 1
        else:
            at += 1
    return at
