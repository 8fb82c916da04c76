"""The statements of a bash script, as the grammar of tree-sitter reads them.

tree-sitter's bash grammar decides the structure (lists, pipelines, conditions, loops, functions,
here-documents); words are kept as they are written and taken apart by `words`. Its tree is turned
into the small one below, with the following put right on the way, all seen in version 0.25:

- a redirection after `a && b` or `a | b` belongs to the last command, not to the list;
- words after a redirection belong to the command, not to the redirection;
- what follows `<<EOF` on its line (`| tee f`, `&& echo done`) continues the command outside.

Where the grammar finds an error, what it could read around it is kept, and the place is named.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from trainwright.errors import InvalidInput
from trainwright.frameworks.shell.values import shortened
from trainwright.frameworks.shell.words import Redirect, Word, tokens

if TYPE_CHECKING:
    from tree_sitter import Node, Parser, Tree


@dataclass(frozen=True, slots=True)
class Simple:
    """Assignments, then a command and its arguments; `[ … ]` and `declare` among them."""

    line: int
    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True, slots=True)
class Test:
    """`[[ … ]]`, by its text."""

    line: int
    source: str


@dataclass(frozen=True, slots=True)
class Calculation:
    """`(( … ))`, by its text."""

    line: int
    source: str


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands whose output goes into the next."""

    line: int
    commands: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """`left && right`, or with `is_or`, `left || right`."""

    line: int
    left: Statement
    right: Statement
    is_or: bool


@dataclass(frozen=True, slots=True)
class Negation:
    """`! command`."""

    line: int
    command: Statement


@dataclass(frozen=True, slots=True)
class If:
    """Conditions with what they lead to, in order; `source` is the text of each condition."""

    line: int
    branches: tuple[tuple[Block, Block, str], ...]
    otherwise: Block


@dataclass(frozen=True, slots=True)
class While:
    """`while`, or with `until`, until."""

    line: int
    condition: Block
    body: Block
    until: bool
    source: str


@dataclass(frozen=True, slots=True)
class For:
    """`for name in words`; without `in`, over the arguments."""

    line: int
    name: str
    words: tuple[Word, ...] | None
    body: Block


@dataclass(frozen=True, slots=True)
class Count:
    """`for ((first; condition; each))`."""

    line: int
    parts: tuple[str, str, str]
    body: Block


@dataclass(frozen=True, slots=True)
class Case:
    """`case`: patterns as they are written, what they lead to, and how that ends."""

    line: int
    subject: Word
    items: tuple[tuple[tuple[str, ...], Block, str], ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A definition."""

    line: int
    name: str
    body: Statement


@dataclass(frozen=True, slots=True)
class Group:
    """`{ … }`, or as a `subshell`, `( … )`."""

    line: int
    body: Block
    subshell: bool


@dataclass(frozen=True, slots=True)
class Redirected:
    """A compound command with redirections."""

    line: int
    body: Statement
    redirects: tuple[Redirect, ...]


Statement = (
    Simple | Test | Calculation | Pipeline | Either | Negation | If | While | For | Count | Case
    | Function | Group | Redirected
)  # fmt: skip
Block = tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """The statements of a text, and the lines where the grammar found an error."""

    body: Block
    errors: tuple[int, ...]


@functools.cache
def _parser() -> Parser:
    # Loaded at the first script: other commands start without it.
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parse(text: str, line: int = 1) -> Script:
    """Read the statements of a text that begins at a line of the script.

    Raises `RecursionError` for statements nested beyond some hundreds, and `InvalidInput` for a
    text that the grammar cannot find its way through.
    """
    if _REPEATED.search(text) or any(text.count(sign) > most for sign, most in _MOST.items()):
        raise InvalidInput.of(f"line {line}", "is no bash script: signs without end")
    data = text.encode("utf-8", "replace")
    if not data.strip():
        return Script((), ())
    reading = _Reading(data, line)
    tree = _tree(data, line)
    body = reading.block(tree.root_node.children)
    return Script(body, tuple(sorted(set(reading.errors))))


# Where a text is no bash, the grammar tries many ways on, and the time grows with the square of
# the length. It reports now and then: real scripts make it do so once in 250 bytes. Signs that open
# something may cost much between two reports, so those are counted beforehand; the longest of the
# launch scripts that this was tuned on has 12 of one kind.
_REPEATED: Final = re.compile(r"([^\w\s#=*+.~\"'-]{1,4}?)\1{299}")
_MOST: Final = {"=(": 2000, "<<": 2000, "((": 3000, "=~": 2000, "case ": 1500, "$[": 300}
_FEWEST_REPORTS: Final = 1000
_BYTES_A_REPORT: Final = 16


def _tree(data: bytes, line: int) -> Tree:
    parser = _parser()
    left = _FEWEST_REPORTS + len(data) // _BYTES_A_REPORT

    def is_enough(offset: int, has_error: bool) -> bool:
        nonlocal left
        left -= 1
        return left < 0

    try:
        return parser.parse(lambda at, _: data[at : at + 4096], progress_callback=is_enough)
    except ValueError:
        parser.reset()
        raise InvalidInput.of(f"line {line}", "is no bash script that can be read") from None


_STATEMENTS: Final = frozenset(
    {
        "command", "declaration_command", "unset_command", "variable_assignment", "list",
        "variable_assignments", "test_command", "pipeline", "negated_command", "if_statement",
        "while_statement", "for_statement", "c_style_for_statement", "case_statement", "subshell",
        "function_definition", "compound_statement", "redirected_statement",
    }
)  # fmt: skip
_REDIRECTS: Final = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect"})
_CASE_ENDS: Final = frozenset({";;", ";&", ";;&"})


class _Reading:
    def __init__(self, data: bytes, line: int) -> None:
        self._data = data
        self._first = line
        self.errors: list[int] = []

    def _line(self, node: Node) -> int:
        return node.start_point[0] + self._first

    def _text(self, start: int, end: int) -> str:
        return self._data[start:end].decode("utf-8", "replace")

    def _of(self, node: Node) -> str:
        return self._text(node.start_byte, node.end_byte)

    def block(self, nodes: Sequence[Node]) -> Block:
        return tuple(statement for node in nodes for statement in self._found(node))

    def _found(self, node: Node) -> Iterator[Statement]:
        if node.type in _STATEMENTS:
            yield self.statement(node)
        elif node.type in _REDIRECTS:
            yield self._simple(node, [node])
        elif node.type == "ERROR":
            if self._of(node).strip("\\ \t\n"):
                self.errors.append(self._line(node))
                yield from self.block(node.children)
        elif node.is_missing:
            self.errors.append(self._line(node))

    def statement(self, node: Node) -> Statement:
        if node.has_error:
            self._note_errors(node)
        convert = getattr(self, "_" + node.type, None)
        return self._simple(node) if convert is None else convert(node)

    def _note_errors(self, node: Node) -> None:
        for child in node.children:
            if child.is_missing or (child.is_error and self._of(child).strip("\\ \t\n")):
                self.errors.append(self._line(child))

    def _simple(self, node: Node, redirects: Sequence[Node] = ()) -> Statement:
        """A command with its redirections, by its text, up to where a here-document begins."""
        start, end = node.start_byte, node.end_byte
        after: list[Redirect] = []
        for redirect in redirects:
            if redirect.type == "heredoc_redirect":
                after += self._document(redirect)
            else:
                end = max(end, redirect.end_byte)
        line = self._line(node)
        if node.type in _REDIRECTS:
            end = start if node.type == "heredoc_redirect" else end
        found = tokens(self._text(start, end), line)
        words = tuple(token for token in found if isinstance(token, Word))
        before = tuple(t for t in found if isinstance(t, Redirect) and t.operator not in _HERE)
        for redirect in redirects:
            if redirect.type == "heredoc_redirect":
                words += self._more_words(redirect)
        return Simple(line, words, (*before, *after))

    def _document(self, node: Node) -> list[Redirect]:
        """The here-document itself and the redirections on its line."""
        start = next((c for c in node.children if c.type == "heredoc_start"), None)
        body = next((c for c in node.children if c.type == "heredoc_body"), None)
        end = next((c for c in node.children if c.type == "heredoc_end"), None)
        found: list[Redirect] = []
        for child in node.children:
            if child.type in ("file_redirect", "herestring_redirect"):
                inside = tokens(self._of(child), self._line(child))
                found += [token for token in inside if isinstance(token, Redirect)]
        if start is None:
            self.errors.append(self._line(node))
            return found
        delimiter = self._of(start)
        plain = delimiter.strip("'\"\\") != delimiter
        text, line = "", self._line(node) + 1
        if body is not None:
            stop = body.end_byte if end is None else end.start_byte
            text, line = self._text(body.start_byte, stop), self._line(body)
        operator = "<<-" if any(c.type == "<<-" for c in node.children) else "<<"
        if operator == "<<-":
            text = re.sub(r"^\t+", "", text, flags=re.MULTILINE)
        return [*found, Redirect("<<", text, line, plain=plain)]

    def _more_words(self, node: Node) -> tuple[Word, ...]:
        """Words that follow `<<EOF` on its line."""
        found: list[Word] = []
        skip = {"heredoc_start", "heredoc_body", "heredoc_end", "pipeline", *_REDIRECTS}
        seen = False
        for child in node.children:
            if child.type in ("&&", "||"):
                break
            if child.type == "heredoc_start":
                seen = True
            elif child.is_named and seen and child.type not in skip | _STATEMENTS | {"comment"}:
                found += [
                    t for t in tokens(self._of(child), self._line(child)) if isinstance(t, Word)
                ]
            elif child.type == "file_redirect":  # > f and more words, as the grammar has it
                inside = tokens(self._of(child), self._line(child))
                found += [token for token in inside if isinstance(token, Word)]
        return tuple(found)

    def _redirected_statement(self, node: Node) -> Statement:
        body = node.child_by_field_name("body")
        redirects = [child for child in node.children if child.type in _REDIRECTS]
        if body is None:
            statement = self._simple(redirects[0], redirects)
        else:
            statement = self._with(body, redirects)
        for redirect in redirects:
            if redirect.type == "heredoc_redirect":
                statement = self._continued(statement, redirect)
        return statement

    def _with(self, body: Node, redirects: Sequence[Node]) -> Statement:
        if body.type in ("list", "pipeline", "negated_command"):
            # the last command is the one that is redirected
            last = body.children[-1]
            inner = self._with(last, redirects)
            return self._rebuilt(body, inner)
        if body.type == "redirected_statement":
            inside = body.child_by_field_name("body")
            more = [child for child in body.children if child.type in _REDIRECTS]
            if inside is not None:
                return self._with(inside, [*more, *redirects])
        if body.type in ("command", "variable_assignment", "declaration_command", "unset_command"):
            return self._simple(body, redirects)
        if (
            body.type == "test_command"
            and self._data[body.start_byte : body.start_byte + 2] != b"[["
        ):
            return self._simple(body, redirects)
        line = self._line(body)
        found: list[Redirect] = []
        for redirect in redirects:
            if redirect.type == "heredoc_redirect":
                found += self._document(redirect)
            else:
                inside_tokens = tokens(self._of(redirect), line)
                found += [token for token in inside_tokens if isinstance(token, Redirect)]
        return Redirected(line, self.statement(body), tuple(found))

    def _rebuilt(self, node: Node, last: Statement) -> Statement:
        """A list, pipeline or negation with another last command."""
        line = self._line(node)
        if node.type == "negated_command":
            return Negation(line, last)
        if node.type == "pipeline":
            return self._joined(line, [*self._commands(node.children[:-1]), last])
        operator = next(c.type for c in reversed(node.children) if c.type in ("&&", "||"))
        return Either(line, self.statement(node.children[0]), last, operator == "||")

    def _continued(self, statement: Statement, redirect: Node) -> Statement:
        """What follows a here-document's delimiter on its line."""
        line = self._line(redirect)
        operator = ""
        for child in redirect.children:
            if child.type in ("&&", "||"):
                operator = child.type
            elif child.type == "pipeline":
                rest = self.block([c for c in child.children if c.type in _STATEMENTS])
                for each in rest:
                    statement = _piped(statement, each)
            elif operator and child.type in _STATEMENTS:
                statement = Either(line, statement, self.statement(child), operator == "||")
                operator = ""
        return statement

    def _commands(self, nodes: Sequence[Node]) -> list[Statement]:
        return list(self.block([node for node in nodes if node.type in _STATEMENTS]))

    def _joined(self, line: int, commands: Sequence[Statement]) -> Statement:
        """A pipeline; one inside another is flattened, and `!` before it is of the whole."""
        if len(commands) == 1:
            return commands[0]
        first = commands[0]
        if isinstance(first, Negation):
            return Negation(line, self._joined(line, [first.command, *commands[1:]]))
        flat: list[Statement] = []
        for each in commands:
            flat += each.commands if isinstance(each, Pipeline) else [each]
        return Pipeline(line, tuple(flat))

    def _pipeline(self, node: Node) -> Statement:
        return self._joined(self._line(node), self._commands(node.children))

    def _list(self, node: Node) -> Statement:
        found = self._commands(node.children)
        if len(found) < 2:
            return found[0] if found else Group(self._line(node), (), False)
        is_or = any(child.type == "||" for child in node.children)
        return Either(self._line(node), found[0], found[1], is_or)

    def _negated_command(self, node: Node) -> Statement:
        found = self._commands(node.children)
        return Negation(self._line(node), found[0] if found else Group(self._line(node), (), False))

    def _variable_assignments(self, node: Node) -> Statement:
        return self._simple(node)

    def _test_command(self, node: Node) -> Statement:
        text = self._of(node)
        if text.startswith("[["):
            return Test(self._line(node), text[2:].removesuffix("]]"))
        if text.startswith("(("):
            return Calculation(self._line(node), text[2:].removesuffix("))"))
        return self._simple(node)

    def _compound_statement(self, node: Node) -> Statement:
        text = self._data[node.start_byte : node.start_byte + 2]
        if text == b"((":
            return Calculation(self._line(node), self._of(node)[2:].removesuffix("))"))
        return Group(self._line(node), self.block(node.children), False)

    def _subshell(self, node: Node) -> Statement:
        return Group(self._line(node), self.block(node.children), True)

    def _if_statement(self, node: Node) -> Statement:
        branches = [self._branch(node)]
        otherwise: Block = ()
        for child in node.children:
            if child.type == "elif_clause":
                branches.append(self._branch(child))
            elif child.type == "else_clause":
                otherwise = self.block(child.children)
        return If(self._line(node), tuple(branches), otherwise)

    def _branch(self, node: Node) -> tuple[Block, Block, str]:
        children = node.children
        at = next((k for k, c in enumerate(children) if c.type == "then"), len(children))
        condition = children[1:at]
        body = [c for c in children[at + 1 :] if c.type not in ("elif_clause", "else_clause")]
        return self.block(condition), self.block(body), self._source(condition)

    def _source(self, nodes: Sequence[Node]) -> str:
        named = [node for node in nodes if node.is_named]
        if not named:
            return ""
        return shortened(self._text(named[0].start_byte, named[-1].end_byte))

    def _while_statement(self, node: Node) -> Statement:
        body = node.child_by_field_name("body")
        condition = [c for c in node.children[1:] if body is None or c.end_byte <= body.start_byte]
        return While(
            self._line(node),
            self.block(condition),
            () if body is None else self.block(body.children),
            self._data[node.start_byte : node.start_byte + 5] == b"until",
            self._source(condition),
        )

    def _for_statement(self, node: Node) -> Statement:
        variable = node.child_by_field_name("variable")
        body = node.child_by_field_name("body")
        keyword = next((c for c in node.children if c.type == "in"), None)
        words: tuple[Word, ...] | None = None
        if keyword is not None:
            end = node.end_byte if body is None else body.start_byte
            text = self._text(keyword.end_byte, end)
            found = tokens(text, self._line(keyword))
            words = tuple(token for token in found if isinstance(token, Word))
        return For(
            self._line(node),
            "" if variable is None else self._of(variable),
            words,
            () if body is None else self.block(body.children),
        )

    def _c_style_for_statement(self, node: Node) -> Statement:
        body = node.child_by_field_name("body")
        end = node.end_byte if body is None else body.start_byte
        head = self._text(node.start_byte, end)
        inside = head[head.find("((") + 2 : head.rfind("))")]
        first, condition, each = (*inside.split(";"), "", "", "")[:3]
        block = () if body is None else self.block(body.children)
        return Count(self._line(node), (first, condition, each), block)

    def _case_statement(self, node: Node) -> Statement:
        line = self._line(node)
        keyword = next((c for c in node.children if c.type == "in"), None)
        end = node.end_byte if keyword is None else keyword.start_byte
        found = tokens(self._text(node.start_byte + len("case"), end), line)
        subject = next((token for token in found if isinstance(token, Word)), Word("", line))
        items = [self._item(child) for child in node.children if child.type == "case_item"]
        return Case(line, subject, tuple(items))

    def _item(self, node: Node) -> tuple[tuple[str, ...], Block, str]:
        close = next((k for k, c in enumerate(node.children) if c.type == ")"), 0)
        end = node.children[close].start_byte if node.children else node.end_byte
        patterns = _patterns(self._text(node.start_byte, end).strip().removeprefix("("))
        ending = next((c.type for c in reversed(node.children) if c.type in _CASE_ENDS), ";;")
        return patterns, self.block(node.children[close + 1 :]), ending

    def _function_definition(self, node: Node) -> Statement:
        line = self._line(node)
        name = node.child_by_field_name("name")
        body = node.child_by_field_name("body")
        inside = Group(line, (), False) if body is None else self.statement(body)
        return Function(line, "" if name is None else self._of(name), inside)


def shown_source(statement: Statement) -> str:
    """The text of a statement, shortened for people to read."""
    if isinstance(statement, Test):
        return f"[[ {' '.join(statement.source.split())} ]]"
    if isinstance(statement, Calculation):
        return f"(( {' '.join(statement.source.split())} ))"
    if isinstance(statement, Simple):
        return shortened(" ".join(word.raw for word in statement.words))
    if isinstance(statement, Negation):
        return f"! {shown_source(statement.command)}"
    if isinstance(statement, Either):
        sign = "||" if statement.is_or else "&&"
        return f"{shown_source(statement.left)} {sign} {shown_source(statement.right)}"
    if isinstance(statement, Pipeline):
        return " | ".join(map(shown_source, statement.commands))
    return type(statement).__name__.lower()


_HERE: Final = frozenset({"<<", "<<-"})


_MOST_PATTERNS: Final = 500


def _piped(before: Statement, after: Statement) -> Statement:
    """`before | after`, where after may be the beginning of a list."""
    if isinstance(after, Either):
        return replace(after, left=_piped(before, after.left))
    inside: tuple[Any, ...] = after.commands if isinstance(after, Pipeline) else (after,)
    return Pipeline(before.line, (before, *inside))


def _patterns(text: str) -> tuple[str, ...]:
    """The alternatives of a case item, as they are written."""
    found: list[str] = []
    rest = text
    while rest and len(found) < _MOST_PATTERNS:
        first = next((t for t in tokens(rest, 0) if isinstance(t, Word)), None)
        if first is None:
            break
        found.append(first.raw)
        at = rest.find(first.raw) + len(first.raw)
        rest = rest[at:].lstrip(" \t\n\\").removeprefix("|").lstrip(" \t\n\\")
    return tuple(found)
