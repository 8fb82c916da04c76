"""Expansion of words, in the order of the manual's section 3.5.

Braces; then parameters, commands and arithmetic, from left to right; then what was not in quotes
is split at the characters of `IFS`; then quotes go. Names of files are not expanded: a pattern
stays as it is written, as in a folder where nothing matches. `~` stays too.

What a variable does not hold becomes a hole (see `values`), and holes go through every operation:
an operation that would have to look into one gives a hole that bears its name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from trainwright.frameworks.shell import patterns, values
from trainwright.frameworks.shell.arithmetic import BadArithmetic, Names, Number, calculate
from trainwright.frameworks.shell.words import (
    Arithmetic,
    Command,
    Literal,
    Parameter,
    Piece,
    Word,
    after_dollar,
    braces,
    pieces,
    quoted_pieces,
)

_SPECIAL: Final = re.compile(r"([*?\[\]\\@+!()|^-])")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_MACHINE: Final = frozenset(
    {
        "RANDOM", "SRANDOM", "SECONDS", "HOSTNAME", "USER", "LOGNAME", "HOME", "PATH", "UID",
        "EUID", "PPID", "EPOCHSECONDS", "EPOCHREALTIME", "SHELL", "TERM", "BASHPID", "LANG",
        "MACHTYPE",
    }
)  # fmt: skip
_BLANKS: Final = " \t\n"


class Expander:
    """Expands words against a state.

    `substitute` runs the text of a command in a shell of its own and gives what it prints.
    `is_batch` says that Slurm starts the script, `assigned` names what the script gives a value
    anywhere: in arithmetic such a name is 0 until then, as in bash; any other is not known.
    """

    def __init__(
        self,
        state: values.State,
        *,
        budget: values.Budget,
        holes: values.Holes,
        substitute: Callable[[str, int], str],
        is_batch: bool,
        assigned: frozenset[str],
    ) -> None:
        self.state = state
        self.budget = budget
        self.holes = holes
        self.is_batch = is_batch
        self.assigned = assigned
        self.not_read = False  # a file that the script sources was not read
        self.used: list[values.Unknown] = []  # what was taken for unset, for conditions to look at
        self._substitute = substitute
        self._pieces: dict[str, tuple[Piece, ...]] = {}

    # Words

    def words(self, words: Sequence[Word]) -> list[str]:
        """All fields of some words: braces, expansions, splitting."""
        found: list[str] = []
        for word in words:
            for raw in braces(word.raw, word.line):
                found += self._fields(raw, word.line)
        line = words[0].line if words else 0
        self.budget.step(line, len(found) // 8)
        self.budget.words(line, found)
        return found

    def one(self, raw: str, line: int) -> str:
        """A word that is not split: the value of an assignment, the target of a redirection."""
        return self._joined(self._parsed(raw), line)

    def document(self, text: str, line: int) -> str:
        """The text of a here-document."""
        return self._joined(quoted_pieces(text, is_document=True), line)

    def pattern(self, raw: str, line: int) -> str:
        """A word as a pattern: special characters that were in quotes have a backslash."""
        out: list[str] = []
        for piece in self._parsed(raw):
            text = self._text(piece, line)
            out.append(_SPECIAL.sub(r"\\\1", text) if piece.quoted else text)
        return self.budget.text(line, "".join(out))

    def arithmetic(self, raw: str, line: int) -> Number:
        """The value of an expression, `$` in it expanded; raises `BadArithmetic`."""
        text = raw
        if "$" in raw or "`" in raw or '"' in raw or "\\" in raw:
            text = self._joined(quoted_pieces(raw.replace('"', "").replace("\\\n", " ")), line)
        return self.calculated(text, line)

    def calculated(self, text: str, line: int) -> Number:
        """The value of an expression that is expanded already; raises `BadArithmetic`."""
        self.budget.step(line, 1 + len(text) // 64)
        text = self._without_own(text)
        found = calculate(
            text,
            Names(
                lambda name, index: self._number(name, index, line, 0),
                lambda name, index, number: self._put(name, index, number, line),
            ),
        )
        return self._of(found, line) if isinstance(found, str) else found

    def _without_own(self, text: str) -> str:
        """Soft holes of the script's own variables are empty: bash takes them for 0."""
        if text.isascii():
            return text
        own = (c for c in set(text) if values.only_soft(c))
        for character in own:
            if self.holes.unknown(character).name in self.assigned:
                text = text.replace(character, " 0 " if text.strip() == character else "")
        return text

    def _parsed(self, raw: str) -> tuple[Piece, ...]:
        found = self._pieces.get(raw)
        if found is None:
            found = self._pieces[raw] = pieces(raw)
        return found

    def _joined(self, found: Sequence[Piece], line: int) -> str:
        if len(found) == 1 and isinstance(found[0], Literal):
            return found[0].text
        return self.budget.text(line, "".join(self._text(piece, line) for piece in found))

    def _fields(self, raw: str, line: int) -> Iterator[str]:
        """The fields of one word, after braces."""
        found = self._parsed(raw)
        if len(found) == 1 and isinstance(found[0], Literal):
            yield found[0].text
            return
        field: list[str] = []
        begun = False  # quotes make a field even where nothing is in them
        for piece in found:
            if isinstance(piece, Literal):
                field.append(piece.text)
                begun = begun or piece.quoted or bool(piece.text)
                continue
            several = self._several(piece, line)
            if several is not None:
                for k, text in enumerate(several):
                    if k:
                        yield self.budget.text(line, "".join(field))
                        field = []
                    field.append(text)
                    begun = True
                continue
            for part in self._split(piece, line):
                if part is not None:
                    field.append(part)
                    begun = True
                elif begun:
                    yield self.budget.text(line, "".join(field))
                    field, begun = [], False
        if begun:
            yield self.budget.text(line, "".join(field))

    def _split(self, piece: Piece, line: int) -> Iterator[str | None]:
        """The parts of an expansion, with None where a field ends."""
        if piece.quoted:
            yield self._text(piece, line)
            return
        if (
            isinstance(piece, Parameter)
            and piece.operator in _ALTERNATIVES
            and _QUOTE.search(piece.argument)
        ):
            yield from self._split_alternative(piece, line)
            return
        texts = self._list(piece, line)
        for k, text in enumerate([self._text(piece, line)] if texts is None else texts):
            if k:
                yield None
            yield from self._split_text(text, line)

    def _split_alternative(self, piece: Parameter, line: int) -> Iterator[str | None]:
        """`${name:-word}` outside quotes where the word has quotes of its own: `${1+"$@"}`."""
        marked = self._parameter(replace(piece, argument="\\\x01"), line)
        if marked != "\x01":
            yield from self._split_text(marked, line)
            return
        for inner in self._parsed(piece.argument):
            several = self._several(inner, line)
            if several is not None:
                for k, text in enumerate(several):
                    if k:
                        yield None
                    yield text
            elif isinstance(inner, Literal) and not inner.quoted:
                yield from self._split_text(inner.text, line)
            else:
                yield from self._split(inner, line)

    def _split_text(self, text: str, line: int) -> Iterator[str | None]:
        separators = self.separators()
        self.budget.step(line, len(text) // 256)
        if separators == _BLANKS:
            if text[:1] in _BLANKS and text:
                yield None
            for k, part in enumerate(text.split()):
                if k:
                    yield None
                yield part
            if text[-1:] in _BLANKS and text:
                yield None
            return
        yield from _split_by(text, separators)

    def separators(self) -> str:
        """The characters at which words are split."""
        variable = self.state.variables.get("IFS")
        return _BLANKS if variable is None else values.without_soft(variable.text or "")

    # Parameters

    def _several(self, piece: Piece, line: int) -> list[str] | None:
        """The fields of `"$@"`, `"${A[@]}"` and the like; None for what is one text."""
        if not piece.quoted or not _is_list(piece):
            return None
        return self._list(piece, line)

    def _list(self, piece: Piece, line: int) -> list[str] | None:
        """The texts of a parameter that stands for several; None where it stands for one."""
        if not isinstance(piece, Parameter) or piece.sign == "#":
            return None
        if piece.sign == "!" and piece.name not in "@*":
            return self._named_list(piece, line)
        if piece.name in ("@", "*"):
            items = list(self.state.arguments)
            if not items:
                self.used.append(values.Unknown(kind="argument", name="$@", line=line))
        elif piece.index in ("@", "*"):
            held = self._array(piece.name)
            items = self._missing_array(piece, line) if held is None else held
        else:
            return None
        self.budget.step(line, len(items) // 64)
        if not piece.operator:
            return items
        return self._list_operation(piece, items, line)

    def _missing_array(self, piece: Parameter, line: int) -> list[str]:
        if piece.operator in ("-", ":-", "+", ":+", "=", ":=", "?", ":?"):
            return []
        if piece.name in self.assigned and not self.not_read:
            return []
        return [self._missing(piece.name, line)]

    def _named_list(self, piece: Parameter, line: int) -> list[str] | None:
        """`${!A[@]}` (its keys), `${!prefix*}` (names), `${!name}` where that is a list."""
        if piece.index in ("@", "*"):
            variable = self.state.variables.get(piece.name)
            if variable is None:
                return []
            keys = variable.value.items if isinstance(variable.value, values.Array) else {0: ""}
            return [str(key) for key in keys]
        if piece.argument == "*" or piece.operator == "@":
            return sorted(n for n in self.state.variables if n.startswith(piece.name))
        target = self._plain(piece.name, line)
        if target is not None and target.endswith(("[@]", "[*]")):
            return self._array(target[:-3]) or []
        return None

    def _list_operation(self, piece: Parameter, items: list[str], line: int) -> list[str]:
        """An operation on `$@` or `${A[@]}`: of the list as a whole, or of each element."""
        operator = piece.operator
        if operator == ":":
            try:
                start, count = self._slice(piece.argument, line)
            except BadArithmetic:
                return [self._hole("computed", piece.source, line)]
            if piece.name in ("@", "*"):
                items = [self.state.name, *items] if start == 0 else items
                start = max(0, start - 1) if start > 0 else start
            start = max(0, len(items) + start) if start < 0 else start
            end = (
                len(items) if count is None else start + count if count >= 0 else len(items) + count
            )
            return items[start:end]
        if operator in ("-", ":-", "=", ":=", "?", ":?"):
            empty = not items or (
                operator[0] == ":" and not "".join(map(values.without_soft, items))
            )
            return self._argument_fields(piece, line) if empty else items
        if operator in ("+", ":+"):
            there = bool(items) and (
                operator == "+" or bool("".join(map(values.without_soft, items)))
            )
            return self._argument_fields(piece, line) if there else []
        return [self._operation(piece, text, line) for text in items]

    def _argument_fields(self, piece: Parameter, line: int) -> list[str]:
        """The fields of the word after `:-` or `:+` of a list."""
        if piece.quoted:
            inside = quoted_pieces(piece.argument)
            if len(inside) == 1 and (found := self._list(inside[0], line)) is not None:
                return found
            return [self._joined(inside, line)]
        return self.words([Word(piece.argument, line + piece.line)]) if piece.argument else []

    def _array(self, name: str) -> list[str] | None:
        """All elements of an array; a text is an array of one."""
        variable = self.state.variables.get(self.target(name))
        if variable is None:
            return self._special_array(name)
        if isinstance(variable.value, str):
            return [variable.value]
        return list(variable.value.items.values())

    def _special_array(self, name: str) -> list[str] | None:
        if name == "BASH_SOURCE":
            return [self.state.name]
        return list(self.state.calls[::-1]) if name == "FUNCNAME" else None

    def target(self, name: str) -> str:
        """The name that a reference (`declare -n`) leads to."""
        for _ in range(8):
            variable = self.state.variables.get(name)
            if variable is None or not variable.reference or not isinstance(variable.value, str):
                break
            name = variable.value
        return name

    def _text(self, piece: Piece, line: int) -> str:
        """The text of one piece."""
        if isinstance(piece, Literal):
            return piece.text
        self.budget.step(line + piece.line)
        line += piece.line
        if isinstance(piece, Command):
            if piece.process:
                return self.holes.character(
                    values.Unknown(kind="program", name=values.shortened(piece.source), line=line)
                )
            return self._substitute(piece.source, line)
        if isinstance(piece, Arithmetic):
            try:
                return str(self.arithmetic(piece.source, line))
            except BadArithmetic:
                return self.holes.character(
                    values.Unknown(kind="computed", name=values.shortened(piece.source), line=line)
                )
        return self._parameter(piece, line)

    def _parameter(self, piece: Parameter, line: int) -> str:
        several = self._list(piece, line)
        if several is not None:
            starred = piece.name == "*" or piece.index == "*"
            return self.budget.text(line, (self.separators()[:1] if starred else " ").join(several))
        if piece.sign == "#":
            return self._length(piece, line)
        name, index = piece.name, piece.index
        if piece.sign == "!":
            target = self._plain(name, line)
            if target is None or values.is_hard(target):
                return self._hole("computed", piece.source, line)
            name, index = re.match(r"([^\[]*)(?:\[(.*)\])?", target, re.DOTALL).groups()  # type: ignore[union-attr]
            if not _NAME.fullmatch(name) and not name.isdigit():
                return self._missing(piece.name, line)
        if not name:
            return self._hole("computed", piece.source, line)
        text = self._value(name, index, line)
        if piece.operator in _DEFAULTS:
            return self._defaulted(replace(piece, name=name, index=index), text, line)
        if text is None:
            text = self._missing(name, line)
        elif values.only_soft(text):
            self.used += self.holes.all_in([text])
        return self._operation(piece, text, line) if piece.operator else text

    def _plain(self, name: str, line: int) -> str | None:
        return self._value(name, None, line)

    def _value(self, name: str, index: str | None, line: int) -> str | None:
        """The text of a variable, an element, an argument or a special parameter; None if unset."""
        if name.isdigit():
            k = int(name) if len(name) < 6 else 10**6
            if k == 0:
                return self.state.name
            return self.state.arguments[k - 1] if k <= len(self.state.arguments) else None
        if not _NAME.fullmatch(name):
            return self._special(name, line)
        name = self.target(name)
        variable = self.state.variables.get(name)
        if variable is None:
            return self._implied(name, line)
        if index is None:
            return variable.text
        if not isinstance(variable.value, values.Array):
            return variable.text if self._key(index, line, by_name=False) == 0 else None
        key = self._key(index, line, by_name=variable.value.by_name)
        if isinstance(key, int) and key < 0:
            keys = [k for k in variable.value.items if isinstance(k, int)]
            key += 1 + max(keys, default=-1)
        if isinstance(key, str) and not variable.value.by_name:
            return self._of(key, line)
        return variable.value.items.get(key)

    def key(self, name: str, index: str, line: int) -> int | str:
        """The key that an index of a variable stands for."""
        variable = self.state.variables.get(self.target(name))
        array = variable.value if variable is not None else ""
        return self._key(index, line, by_name=isinstance(array, values.Array) and array.by_name)

    def _key(self, index: str, line: int, *, by_name: bool) -> int | str:
        if by_name:
            return self.one(index, line)
        try:
            return self.arithmetic(index, line)
        except BadArithmetic:
            return 0

    def _special(self, name: str, line: int) -> str | None:
        if name == "#":
            if not self.state.arguments:
                self.used.append(values.Unknown(kind="argument", name="$#", line=line))
            return str(len(self.state.arguments))
        if name == "?":
            status = self.state.status
            return self.state.why if status is None else str(status)
        if name == "-":
            return "hB"
        return self._hole("machine", f"${name}", line)

    def _implied(self, name: str, line: int) -> str | None:
        """A variable that the shell or Slurm sets by itself."""
        if name == "IFS":
            return _BLANKS
        if name == "PWD":
            return self.state.folder
        if name == "OLDPWD":
            return self.state.before_folder
        if name == "BASH_SOURCE":
            return self.state.name
        if name == "LINENO":
            return str(line)
        if name == "FUNCNAME":
            return self.state.calls[-1] if self.state.calls else None
        if name in _OF_MACHINE:
            return self._hole("machine", name, line)
        if name == "OPTIND":
            return str(1 + self.state.getopts_at)
        if self.is_batch and name.startswith("SLURM"):
            return self._hole("slurm", name, line)
        return None

    def _missing(self, name: str, line: int) -> str:
        """The hole for what is not set; a test sees nothing there."""
        kind: values.Kind = (
            "argument" if name.isdigit() else "sourced" if self.not_read else "unset"
        )
        unknown = values.Unknown(kind=kind, name=f"${name}" if name.isdigit() else name, line=line)
        self.used.append(unknown)
        return self.holes.character(unknown)

    def _hole(self, kind: values.Kind, name: str, line: int) -> str:
        return self.holes.character(values.Unknown(kind=kind, name=name, line=line))

    def _of(self, character: str, line: int) -> str:
        """A hole for what is computed from another: the same cause, but surely some text."""
        unknown = self.holes.unknown(character)
        return self.holes.character(replace(unknown, derived=True, choices=()))

    def derived(self, text: str, line: int) -> str:
        """A hole for what an operation makes of a text with holes."""
        found = next((c for c in text if values.is_hard(c)), None) or next(
            c for c in text if values.has_holes(c)
        )
        return self._of(found, line)

    def _length(self, piece: Parameter, line: int) -> str:
        if piece.name in ("@", "*"):
            return self._special("#", line) or "0"
        if piece.index in ("@", "*"):
            items = self._array(piece.name) or []
            self.budget.step(line, len(items) // 64)
            lone = [text for text in items if values.is_hard(text) and len(text) == 1]
            return self._of(lone[0], line) if lone else str(len(items))
        text = self._value(piece.name, piece.index, line)
        if text is None:
            self._missing(piece.name, line)
            return "0"
        return (
            self._of(text, line)
            if len(text) == 1 and values.is_hard(text)
            else str(len(values.without_soft(text)))
        )

    def _defaulted(self, piece: Parameter, text: str | None, line: int) -> str:
        """`${name:-word}` and its kin."""
        operator = piece.operator
        empty = (
            text is None
            or (operator[0] == ":" and not values.without_soft(text))
            or values.only_soft(text)
        )
        if operator[-1] == "+":
            if empty:
                self.used.append(values.Unknown(kind="unset", name=piece.name, line=line))
                return ""
            return self._argument(piece, line)
        if not empty:
            assert text is not None
            return text
        if operator[-1] == "?":  # bash would end the script: it has to be given
            return self._missing(piece.name, line)
        word = self._argument(piece, line)
        if operator[-1] == "=":
            self.assign(piece.name, piece.index, word, line)
        return word

    def _argument(self, piece: Parameter, line: int) -> str:
        """The word after an operator; single quotes in it are text where the whole is quoted."""
        if piece.quoted:
            return self._joined(quoted_pieces(piece.argument), line)
        return self.one(piece.argument, line)

    def _operation(self, piece: Parameter, text: str, line: int) -> str:
        """Substring, removal, replacement and change of case of one text."""
        self.budget.step(line, 1 + len(text) // 64)
        if values.only_soft(text):
            return text
        operator, argument = piece.operator, piece.argument
        try:
            if operator == ":":
                return self._substring(text, argument, line)
            if operator in ("^^", ",,", "^", ","):
                change = str.upper if operator[0] == "^" else str.lower
                return change(text) if len(operator) == 2 else change(text[:1]) + text[1:]
            if operator == "@":
                return self._transformed(text, argument)
            if operator in ("/", "//"):
                pattern, by = _halves(argument)
                by = "" if by is None else self.one(by, line)
                pattern = self.pattern(pattern, line)
                self._look_into(pattern)
                done = patterns.replaced(pattern, text, by, everywhere=operator == "//")
                return self.budget.text(line, done)
            pattern = self.pattern(argument, line)
            self._look_into(pattern)
            cut = patterns.without_prefix if operator[0] == "#" else patterns.without_suffix
            plain = patterns.literal(pattern) is not None
            if values.has_holes(text) and not plain and not _cuts_known(text, pattern, operator):
                return self.derived(text, line)
            return cut(pattern, text, longest=len(operator) == 2)
        except (patterns.TooCostly, BadArithmetic):
            return (
                self.derived(text, line)
                if values.has_holes(text)
                else self._hole("computed", piece.source, line)
            )

    def _look_into(self, pattern: str) -> None:
        if values.is_hard(pattern):
            raise patterns.TooCostly

    def _substring(self, text: str, argument: str, line: int) -> str:
        if values.has_holes(text):
            return self.derived(text, line)
        start, count = self._slice(argument, line)
        start = len(text) + start if start < 0 else start
        if start < 0:
            return ""
        if count is None:
            return text[start:]
        return text[start : start + count if count >= 0 else len(text) + count]

    def _slice(self, argument: str, line: int) -> tuple[int, int | None]:
        """Start and length of `:start:length`; raises `BadArithmetic` where one is not known."""
        first, second = _halves(argument, ":")
        start = self.arithmetic(first, line)
        count = None if second is None else self.arithmetic(second, line)
        if isinstance(start, str) or isinstance(count, str):
            raise BadArithmetic
        return start, count

    def _transformed(self, text: str, how: str) -> str:
        if how == "Q":
            return shlex.quote(text) if not text.isalnum() else f"'{text}'"
        return {"U": text.upper(), "L": text.lower(), "u": text[:1].upper() + text[1:]}.get(
            how, text
        )

    # Assignment and arithmetic

    def assign(self, name: str, index: str | None, text: str, line: int) -> None:
        """Give a variable or an element a value."""
        name = self.target(name)
        if index is None:
            self.state.set(name, text)
            return
        variable = self.state.variables.get(name)
        array = variable.value if variable is not None else ""
        if not isinstance(array, values.Array):
            array = values.Array({0: array} if array else {})
        key = self._key(index, line, by_name=array.by_name)
        if isinstance(key, int) and key < 0:
            key += 1 + max((k for k in array.items if isinstance(k, int)), default=-1)
        if isinstance(key, str) and not array.by_name:
            key = len(array.items)
        self.state.set(name, array.with_item(key, text))

    def _number(self, name: str, index: str | None, line: int, depth: int) -> Number:
        """The number that a name in an expression stands for."""
        text = self._value(name, index, line)
        if text is None:
            if name in self.assigned:
                return 0
            return self._of(self._missing(name, line), line)
        if depth > values.Budget.DEEPEST:
            raise BadArithmetic
        self.budget.step(line)
        text = self._without_own(text)
        found = calculate(
            text,
            Names(
                lambda inner, at: self._number(inner, at, line, depth + 1),
                lambda inner, at, number: self._put(inner, at, number, line),
            ),
        )
        return self._of(found, line) if isinstance(found, str) else found

    def _put(self, name: str, index: str | None, number: Number, line: int) -> None:
        self.assign(name, index, str(number), line)


_ALTERNATIVES: Final = frozenset({"-", ":-", "+", ":+"})
_QUOTE: Final = re.compile("[\"']")
_DEFAULTS: Final = frozenset({"-", ":-", "=", ":=", "?", ":?", "+", ":+"})


def _is_list(piece: Piece) -> bool:
    """Whether a quoted piece makes as many fields as it has elements, perhaps none."""
    if not isinstance(piece, Parameter) or piece.sign == "#":
        return False
    return piece.name == "@" or piece.index == "@"


def _halves(text: str, separator: str = "/") -> tuple[str, str | None]:
    """The text before and after the first separator outside quotes and expansions."""
    at = 1 if separator == "/" and text[:1] == "/" else 0
    while at < len(text):
        letter = text[at]
        if letter == "\\":
            at += 2
        elif letter in "'\"":
            end = text.find(letter, at + 1)
            at = end + 1 if end >= 0 else at + 1
        elif letter == "$":
            at = after_dollar(text, at)
        elif letter == separator:
            return text[:at], text[at + 1 :]
        else:
            at += 1
    return text, None


def _split_by(text: str, separators: str) -> Iterator[str | None]:
    """Fields of a text between separators that are not only blanks."""
    if not separators:
        yield text
        return
    blanks = "".join(c for c in separators if c in _BLANKS)
    others = "".join(c for c in separators if c not in _BLANKS)
    text = text.strip(blanks) if blanks else text
    if not text:
        return
    spaces = f"[{re.escape(blanks)}]" if blanks else r"(?!)"
    hard = f"{spaces}*[{re.escape(others)}]{spaces}*" if others else r"(?!)"
    parts = re.split(f"{hard}|{spaces}+", text)
    if parts and not parts[-1]:
        parts.pop()  # a separator ends a field, it does not begin one
    for k, part in enumerate(parts):
        if k:
            yield None
        yield part or ""


def _cuts_known(text: str, pattern: str, operator: str) -> bool:
    """Whether what a pattern cuts off can be told though the text has holes.

    So it is where the text that the pattern ends at is known on its side of the first hole:
    `${path##*/}` of `$HOME/models/llama`.
    """
    if operator not in ("##", "%", "#", "%%") or pattern not in ("*/", "/*", ".*", "*."):
        return False
    sign = pattern.replace("*", "")
    known = re.split("[\U000f0000-\U0010ffff]", text)
    return (operator == "##" and sign in known[-1]) or (operator == "%" and sign in known[-1])
