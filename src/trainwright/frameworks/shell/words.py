"""Words of bash: where they end, and which pieces they are made of.

`tokens` cuts the text of a simple command into words and redirections, as they are written.
`pieces` takes one such word apart: literal text, parameters, commands and arithmetic that are put
in, each inside quotes or not. `braces` multiplies `a{b,c}`. Nothing is expanded here.
(Bash manual, sections 3.1.2 Quoting, 3.5 Shell Expansions, 3.6 Redirections.)

Scanning costs time in proportion to the text and to how deep it is nested.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from trainwright.frameworks.shell.values import Budget, too_much


@dataclass(frozen=True, slots=True)
class Literal:
    """Text as it is."""

    text: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$name` or `${…}`: `sign` is `#` (length of), `!` (named by) or empty."""

    name: str
    quoted: bool
    line: int  # counted from the line where the word begins, as below
    sign: str = ""
    index: str | None = None
    operator: str = ""
    argument: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """`$(…)`, `` `…` ``; with `process`, `<(…)` and `>(…)`."""

    source: str
    quoted: bool
    line: int
    process: bool = False


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`$((…))`."""

    source: str
    quoted: bool
    line: int


Piece = Literal | Parameter | Command | Arithmetic


@dataclass(frozen=True, slots=True)
class Word:
    """A word as it is written."""

    raw: str
    line: int


@dataclass(frozen=True, slots=True)
class Redirect:
    """A redirection; a here-document's target is its text, `plain` if its word is quoted."""

    operator: str
    target: str
    line: int
    descriptor: str = ""
    plain: bool = False


_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNS_ARRAY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[[^\]]*\])?\+?=\Z")
_SPACE: Final = re.compile(r"(?:[ \t\r\n]|\\\n)+")
_PLAIN: Final = re.compile(r"[^\s\\'\"`$<>|&;()#]+")
_REDIRECT: Final = re.compile(r"(\d*|\{\w+\})(<<<|<<-?|<>|<&|>>|>&|>\||&>>|&>|<(?!\()|>(?!\())")
_IN_DOUBLE: Final = re.compile(r"[\"\\$`]")
_IN_BRACES: Final = re.compile(r"[\"'\\$`{}]")
_IN_COMMAND: Final = re.compile(r"[\"'\\$`()#\n<]|\b(?:case|esac)\b")
_IN_ARITHMETIC: Final = re.compile(r"[\"'\\$`()]")
_NEAR: Final = 2000  # how far the end of a quote inside ${…} is looked for
_MOST_BRACES: Final = 200
_HEREDOC: Final = re.compile(r"<<(-?)[ \t]*(['\"\\]?)([\w.-]+)['\"]?")


def _after_single(text: str, at: int) -> int:
    """The index after the single quote that closes; `at` is after the one that opens."""
    end = text.find("'", at)
    return len(text) if end < 0 else end + 1


def _after_escaped(text: str, at: int, closing: str) -> int:
    """The index after a letter that closes, of `$'…'` or `` `…` ``; a backslash hides one."""
    while at < len(text):
        if text[at] == "\\":
            at += 2
        elif text[at] == closing:
            return at + 1
        else:
            at += 1
    return len(text)


def line_end(text: str, at: int) -> int:
    """The index of the end of the line in which an index lies."""
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _after_double(text: str, at: int) -> int:
    while found := _IN_DOUBLE.search(text, at):
        letter, at = found[0], found.start()
        if letter == '"':
            return at + 1
        at = after_dollar(text, at, quoted=True) if letter == "$" else _after_piece(text, at)
    return len(text)


def after_dollar(text: str, at: int, *, quoted: bool = False) -> int:
    """The index after the expansion that begins with the `$` at an index."""
    following = text[at + 1 : at + 2]
    if following == "(":
        # One scan decides where it ends: trying both readings takes 2^depth steps.
        if text.startswith("((", at + 1):
            return _after_parentheses(text, at + 2)
        return after_command(text, at + 2)
    if following == "{":
        return _after_braces(text, at + 2)
    if following == "[":
        end = text.find("]", at)
        return len(text) if end < 0 else end + 1
    if following == "'" and not quoted:
        return _after_escaped(text, at + 2, "'")
    if following == '"' and not quoted:
        return _after_double(text, at + 2)
    if found := _NAME.match(text, at + 1):
        return found.end()
    return at + 2 if following and following in "0123456789@*#?$!-" else at + 1


def _after_braces(text: str, at: int) -> int:
    """The index after the `}` that closes `${`."""
    while found := _IN_BRACES.search(text, at):
        letter, at = found[0], found.start()
        if letter == "}":
            return at + 1
        if letter == "'":
            # Inside double quotes a lone apostrophe is text: take it for a quote if it closes.
            end = text.find("'", at + 1, at + _NEAR)
            close = text.find("}", at + 1, at + _NEAR)
            is_quote = end >= 0 and (close < 0 or end < close or text.find("'", close, end + 1) > 0)
            at = end + 1 if is_quote else at + 1
        else:
            at = _after_piece(text, at)
    return len(text)


def _after_parentheses(text: str, at: int) -> int:
    """The index after the `)` that closes `$(`, of arithmetic: no comments, no documents."""
    depth = 0
    while found := _IN_ARITHMETIC.search(text, at):
        letter, at = found[0], found.start()
        if letter == ")":
            if depth == 0:
                return at + 1
            depth -= 1
            at += 1
        elif letter == "(":
            depth += 1
            at += 1
        else:
            at = _after_piece(text, at)
    return len(text)


def _is_arithmetic(raw: str) -> bool:
    """Whether `$((…))` closes with the two parentheses that open it; else it is a command."""
    after = _after_parentheses(raw, 3)
    return after == len(raw) - 1 and raw.startswith("))", after - 1)


def after_command(text: str, at: int) -> int:
    """The index after the `)` that closes `$(`, `<(` or `(`; `at` is after the one that opens."""
    depth = cases = 0
    waiting: list[tuple[str, bool]] = []
    while found := _IN_COMMAND.search(text, at):
        letter, at = found[0], found.start()
        if letter == ")":
            if depth:
                depth -= 1
            elif not cases:  # else it closes a pattern of `case`
                return at + 1
            at += 1
        elif letter == "(":
            depth += 1
            at += 1
        elif letter == "#":
            is_comment = at == 0 or text[at - 1] in " \t\n;("
            at = line_end(text, at) if is_comment else at + 1
        elif letter == "\n":
            at += 1
            for delimiter, dashed in waiting:
                at = _after_heredoc(text, at, delimiter, dashed)
            waiting.clear()
        elif letter == "<":
            here = None if text.startswith("<<<", at) else _HEREDOC.match(text, at)
            if here:
                waiting.append((here[3], bool(here[1])))
                at = here.end()
            else:
                at += 3 if text.startswith("<<<", at) else 1
        elif letter in ("case", "esac"):
            cases = cases + 1 if letter == "case" else max(0, cases - 1)
            at = found.end()
        else:
            at = _after_piece(text, at)
    return len(text)


def _after_heredoc(text: str, at: int, delimiter: str, dashed: bool) -> int:
    while at < len(text):
        end = line_end(text, at)
        line = text[at:end]
        if (line.lstrip("\t") if dashed else line) == delimiter:
            return end
        at = end + 1
    return len(text)


def _after_piece(text: str, at: int) -> int:
    """The index after the quote or expansion at an index, or after one letter."""
    letter = text[at]
    if letter == "\\":
        return at + 2
    if letter == "'":
        return _after_single(text, at + 1)
    if letter == '"':
        return _after_double(text, at + 1)
    if letter == "`":
        return _after_escaped(text, at + 1, "`")
    if letter == "$":
        return after_dollar(text, at)
    return at + 1


def tokens(text: str, line: int) -> list[Word | Redirect]:
    """The words and redirections of a simple command that begins at a line; comments are left out.

    An operator between commands (`|`, `;`, `&`) ends the command: what follows is left out too.
    """
    found: list[Word | Redirect] = []
    at, counted = 0, 0
    waiting: tuple[str, str] | None = None
    while True:
        if space := _SPACE.match(text, at):
            at = space.end()
        if at >= len(text):
            return found
        if text[at] == "#":
            at = line_end(text, at)
            continue
        line, counted = line + text.count("\n", counted, at), at
        redirect = _REDIRECT.match(text, at) if waiting is None else None
        if redirect:
            waiting, at = (redirect[1], redirect[2]), redirect.end()
            continue
        if text[at] in "|;&)":
            return found
        start, at = at, after_word(text, at)
        raw = text[start:at]
        if waiting is None:
            found.append(Word(raw, line))
        else:
            found.append(Redirect(waiting[1], raw, line, waiting[0]))
            waiting = None


def after_word(text: str, at: int) -> int:
    """The index after the word that begins at an index of a text."""
    start = at
    while at < len(text):
        if plain := _PLAIN.match(text, at):
            at = plain.end()
            continue
        letter = text[at]
        if letter in " \t\r\n|&;)":
            break
        if letter in "<>":
            if not text.startswith("(", at + 1):
                break
            at = after_command(text, at + 2)
        elif letter == "(":
            if at == start or _ASSIGNS_ARRAY.match(text, start, at) or text[at - 1] in "@!?*+":
                at = after_command(text, at + 1)
            else:
                break
        else:
            at = _after_piece(text, at)
    return max(min(at, len(text)), start + 1)


def pieces(raw: str) -> tuple[Piece, ...]:
    """What a word that is not in quotes as a whole is made of."""
    return tuple(_pieces(raw, in_double=False))


def quoted_pieces(raw: str, *, is_document: bool = False) -> tuple[Piece, ...]:
    """What text inside double quotes is made of; in a here-document `"` is text too."""
    return tuple(_pieces(raw, in_double=True, is_document=is_document))


def _pieces(raw: str, *, in_double: bool, is_document: bool = False) -> Iterator[Piece]:
    text: list[str] = []
    quoted = in_double
    at = line = counted = 0
    size = len(raw)

    def flush() -> Iterator[Piece]:
        if text:
            yield Literal("".join(text), quoted)
            text.clear()

    while at < size:
        letter = raw[at]
        if letter == '"' and not is_document:
            if not in_double:  # "${X:-"a b"}" stays in quotes
                yield from flush()
                if not quoted and raw.startswith('""', at):
                    yield Literal("", True)  # an empty pair of quotes is a word all the same
                quoted = not quoted
            at += 1
        elif letter == "\\":
            following = raw[at + 1 : at + 2]
            at += 2
            if following == "\n":
                continue
            if not quoted:
                yield from flush()
                yield Literal(following or "\\", True)
            elif following and following in '$`"\\' and not (is_document and following == '"'):
                text.append(following)
            else:
                text.append("\\" + following)
        elif letter == "'" and not quoted:
            yield from flush()
            end = _after_single(raw, at + 1)
            yield Literal(
                raw[at + 1 : end - 1] if raw[end - 1 : end] == "'" else raw[at + 1 :], True
            )
            at = end
        elif letter == "$" and not quoted and raw.startswith("$'", at):
            yield from flush()
            end = _after_escaped(raw, at + 2, "'")
            yield Literal(_ansi(raw[at + 2 : end - 1]), True)
            at = end
        elif letter == "$" and not quoted and raw.startswith('$"', at):
            at += 1
        elif letter in "$`" or (letter in "<>" and not quoted and raw.startswith("(", at + 1)):
            line, counted = line + raw.count("\n", counted, at), at
            end = _end_of_expansion(raw, at, quoted)
            piece = _expansion(raw[at:end], quoted, line)
            if piece is None:
                text.append(raw[at:end])
            else:
                yield from flush()
                yield piece
            at = end
        else:
            end = at + 1
            while end < size and raw[end] not in "\"\\'$`<>":
                end += 1
            text.append(raw[at:end])
            at = end
    yield from flush()


def _end_of_expansion(raw: str, at: int, quoted: bool) -> int:
    letter = raw[at]
    if letter == "`":
        return _after_escaped(raw, at + 1, "`")
    if letter in "<>":
        return after_command(raw, at + 2)
    return after_dollar(raw, at, quoted=quoted)


def _expansion(raw: str, quoted: bool, line: int) -> Piece | None:
    if raw.startswith("`"):
        special = r'\\([\\`$"])' if quoted else r"\\([\\`$])"
        inside = re.sub(special, r"\1", raw[1:].removesuffix("`"))
        return Command(inside, quoted, line)
    if raw[0] in "<>":
        return Command(raw[2:].removesuffix(")"), quoted, line, process=True)
    if raw.startswith("$((") and _is_arithmetic(raw):
        return Arithmetic(raw[3:-2], quoted, line)
    if raw.startswith("$["):
        return Arithmetic(raw[2:].removesuffix("]"), quoted, line)
    if raw.startswith("$("):
        return Command(raw[2:].removesuffix(")"), quoted, line)
    if raw.startswith("${"):
        return _parameter(raw[2:].removesuffix("}"), quoted, line)
    return Parameter(raw[1:], quoted, line, source=raw) if len(raw) > 1 else None


_SUBJECT: Final = re.compile(r"([!#]?)([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-])")
_OPERATOR: Final = re.compile(r":?[-=?+]|##?|%%?|//?|\^\^?|,,?|@|:")


def _parameter(inside: str, quoted: bool, line: int) -> Parameter | None:
    if inside in ("#", "?", "!", "-", "$", "@", "*"):
        return Parameter(inside, quoted, line, source="${" + inside + "}")
    found = _SUBJECT.match(inside)
    if found is None:
        return Parameter("", quoted, line, source="${" + inside + "}")
    sign, name = found[1], found[2]
    if sign and re.match(r"[-:=?+%/#]", inside[1:]) and name in "@*#?$!-":  # ${#-x}, ${!:-x}
        sign, name = "", sign
        rest = inside[1:]
    else:
        rest = inside[found.end() :]
    index: str | None = None
    if rest.startswith("["):
        end = _after_index(rest)
        index, rest = rest[1 : end - 1], rest[end:]
    operator = _OPERATOR.match(rest)
    sort = operator[0] if operator else ""
    return Parameter(
        name, quoted, line, sign, index, sort, rest[len(sort) :], source="${" + inside + "}"
    )


def _after_index(text: str) -> int:
    at = depth = 1
    while at < len(text) and depth:
        if text[at] in "\\'\"`$":
            at = _after_piece(text, at)
            continue
        depth += {"[": 1, "]": -1}.get(text[at], 0)
        at += 1
    return at


_ESCAPES: Final = {
    "n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f",
    "v": "\v", "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip
_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|0?[0-7]{1,3}|.)", re.DOTALL)


def _ansi(text: str) -> str:
    """Text with the escapes of `$'…'`, `echo -e` and `printf`."""

    def one(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] in "xu" and len(code) > 1:
            return chr(int(code[1:], 16))
        if code[0] in "01234567":
            return chr(int(code, 8) & 0xFF)
        return _ESCAPES.get(code, "\\" + code)

    return _ESCAPE.sub(one, text)


unescaped = _ansi

_BRACED: Final = re.compile(r"[{},\\'\"`$]")
_SEQUENCE: Final = re.compile(
    r"(-?\d{1,9})\.\.(-?\d{1,9})(?:\.\.(-?\d{1,9}))?|([a-zA-Z])\.\.([a-zA-Z])"
)


def braces(raw: str, line: int) -> list[str]:
    """The words that a word with `{a,b}` or `{1..4}` comes to; itself where it has none.

    Raises `InvalidInput` where they are too many.
    """
    if "{" not in raw or not ("," in raw or ".." in raw) or raw.count("{") > _MOST_BRACES:
        return [raw]
    return _braces(raw, line, 0)


def _braces(raw: str, line: int, depth: int) -> list[str]:
    at = 0
    if depth > Budget.DEEPEST:
        raise too_much(line, f"braces more than {Budget.DEEPEST} deep")
    while found := _BRACED.search(raw, at):
        at = found.start()
        if found[0] != "{":
            at = _after_piece(raw, at)
            continue
        group = _group(raw, at + 1)
        if group is None:
            at += 1
            continue
        inner, end = group
        choices = _choices(inner, line, depth)
        if choices is None:
            at += 1
            continue
        rest = _braces(raw[end:], line, depth + 1)
        if len(choices) * len(rest) > Budget.MOST_WORDS:
            raise too_much(line, f"a list of more than {Budget.MOST_WORDS} words")
        return [raw[:at] + choice + tail for choice, tail in product(choices, rest)]
    return [raw]


def _group(raw: str, at: int) -> tuple[list[str], int] | None:
    """The parts between commas of a group, and the index after its `}`."""
    parts: list[str] = []
    start, depth = at, 0
    while found := _BRACED.search(raw, at):
        letter, at = found[0], found.start()
        if letter == "{":
            depth += 1
        elif letter == "}":
            if depth == 0:
                return [*parts, raw[start:at]], at + 1
            depth -= 1
        elif letter == ",":
            if depth == 0:
                parts.append(raw[start:at])
                start = at + 1
        else:
            at = _after_piece(raw, at)
            continue
        at += 1
    return None


def _choices(parts: list[str], line: int, depth: int) -> list[str] | None:
    if len(parts) > 1:
        return [word for part in parts for word in _braces(part, line, depth + 1)]
    found = _SEQUENCE.fullmatch(parts[0])
    if found is None:
        return None
    if found[4]:
        first, last, width = ord(found[4]), ord(found[5]), 0
        step = 1
    else:
        first, last = int(found[1]), int(found[2])
        step = abs(int(found[3] or 1)) or 1
        padded = any(re.match(r"-?0\d", found[k]) for k in (1, 2))
        width = max(len(found[1]), len(found[2])) if padded else 0
    if abs(last - first) // step >= Budget.MOST_WORDS:
        raise too_much(line, f"a list of more than {Budget.MOST_WORDS} words")
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    return [chr(n) if found[4] else f"{n:0{width}d}" for n in numbers]
