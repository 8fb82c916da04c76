"""Follows a bash script as bash would, without starting anything.

Assignments, conditions, loops and functions are carried out; small tools of text are computed
(`tools`); every other program is written down with its words and taken to succeed. What is not
known goes through as holes (see `values`). A condition that cannot be known is followed both ways
and what comes out is merged (see `state`); where one way ends the script, the other is taken. So
is it where a script ends only because a variable or an argument is missing: that is said, and the
rest is read all the same.

Everything is bounded (`Budget`): a script is data from a stranger.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

from trainwright.frameworks.shell import launchers
from trainwright.frameworks.shell.arithmetic import BadArithmetic
from trainwright.frameworks.shell.builtins import BUILTINS, assign_words, is_assignment
from trainwright.frameworks.shell.conditions import BadTest, Tests
from trainwright.frameworks.shell.control import Break, Continue, Exit, Leave, Return
from trainwright.frameworks.shell.expand import Expander
from trainwright.frameworks.shell.files import Files, NotRead
from trainwright.frameworks.shell.launchers import Command, InnerShell
from trainwright.frameworks.shell.patterns import TooCostly, matches
from trainwright.frameworks.shell.state import Array, State, Variable, merged, merged_text
from trainwright.frameworks.shell.syntax import (
    Block,
    Calculation,
    Case,
    Count,
    Either,
    For,
    Function,
    Group,
    If,
    Negation,
    Pipeline,
    Redirected,
    Simple,
    Statement,
    Test,
    While,
    parse,
)
from trainwright.frameworks.shell.tools import READS_INPUT, TOOLS, getopt
from trainwright.frameworks.shell.values import (
    Budget,
    Holes,
    Unknown,
    has_holes,
    is_hard,
    only_soft,
    too_much,
    without_soft,
)
from trainwright.frameworks.shell.words import Redirect, Word

_MOST_COMMANDS: Final = 2000
_MOST_FORKED_BYTES: Final = 2**16
_LAST_SAID: Final = 20
_ASSIGNED: Final = re.compile(
    r"\b([A-Za-z_]\w*)(?:\[[^\]\n]*\])?(?:\+\+|--|(?:[-+*/%|&^]|<<|>>)?=(?!=))|(?:\+\+|--)([A-Za-z_]\w*)"
    r"|\b(?:for|select|read|local|declare|mapfile|readarray|getopts \S+)\s+(?:-\w+\s+)*([A-Za-z_]\w*)"
)


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something that was taken as it usually is, because only a run could tell.

    `taken` is `"both"` where both ways were followed and merged, `"other"` where the way that ends
    the script was not taken. `unknowns` are what it depends on.
    """

    line: int
    condition: str
    taken: Literal["both", "other"]
    unknowns: tuple[Unknown, ...]

    def __str__(self) -> str:
        names = ", ".join(dict.fromkeys(each.name for each in self.unknowns))
        if self.taken == "other":
            about = f" ({names})" if names and names != self.condition else ""
            return f"line {self.line}: `{self.condition}`{about} would end the script; read on"
        return f"line {self.line}: `{self.condition}` is known only when the script runs"


@dataclass(frozen=True, slots=True)
class NotSourced:
    """A file that the script sources and that was not read: its line, its name, and why."""

    line: int
    name: str
    why: str

    def __str__(self) -> str:
        return f'line {self.line} sources "{self.name}", which is not read: {self.why}'


@dataclass(frozen=True, slots=True)
class End:
    """Where a script ends before its last line: the status, and what it printed last."""

    line: int
    status: int | None
    said: str


class Stream:
    """Text that is read line by line; None inside stands for what is not known."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def line(self) -> str | None:
        """The next line with its end, None at the end of the text."""
        if self._at >= len(self._text):
            return None
        end = self._text.find("\n", self._at)
        end = len(self._text) if end < 0 else end + 1
        found, self._at = self._text[self._at : end], end
        return found

    def rest(self) -> str:
        """All that is left."""
        found, self._at = self._text[self._at :], len(self._text)
        return found


class Shell:
    """One shell: its state, what it printed, and what it would have started."""

    def __init__(
        self,
        *,
        state: State,
        budget: Budget,
        holes: Holes,
        folder: Path | None,
        is_batch: bool,
    ) -> None:
        self.budget = budget
        self.holes = holes
        self.files = Files(folder)
        self.expander = Expander(
            state,
            budget=budget,
            holes=holes,
            substitute=self.substituted,
            is_batch=is_batch,
            assigned=frozenset(),
        )
        self.tests = Tests(self.expander, self.files)
        self.commands: list[Command] = []
        self.assumptions: list[Assumption] = []
        self.not_sourced: list[NotSourced] = []
        self.errors: list[int] = []
        self.end: End | None = None
        self.input: Stream | None = None
        self.said: list[str] = []
        self.line = 1
        self._sink: list[str] | None = None
        self._within: tuple[tuple[str, ...], ...] = ()
        self._depth = 0
        self._in_condition = 0
        self._may_break = False
        self.state = state

    @property
    def state(self) -> State:
        """What the script knows now."""
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = self.expander.state = self.files.state = state

    # Texts

    def run(self, text: str, line: int = 1) -> None:
        """Carry out a text in this shell; raises what ends it (`Leave`)."""
        self.know_assigned(text)
        script = parse(text, line)
        self.errors += [each for each in script.errors if each not in self.errors]
        self.block(script.body)

    def know_assigned(self, text: str) -> None:
        """Note the names to which a text gives values."""
        names = {name for found in _ASSIGNED.findall(text) for name in found if name}
        self.expander.assigned |= names

    def nested(self, text: str, line: int) -> None:
        """Carry out a text inside the statement of a line: every command has that line."""
        self._enter(line)
        try:
            self.budget.step(line, 1 + len(text) // 256)
            self.run(text, line)
        finally:
            self._depth -= 1

    def _enter(self, line: int) -> None:
        self._depth += 1
        if self._depth > Budget.DEEPEST:
            self._depth -= 1
            raise too_much(line, f"more than {Budget.DEEPEST} levels of calls")

    def substituted(self, source: str, line: int) -> str:
        """What a command in `$(…)` prints, without the line ends after it."""
        text = source.strip()
        if text.startswith("<") and not text.startswith("<("):
            text = "cat " + text
        kept, count = self.state, len(self.commands)
        self.state = kept.fork()
        sink, self._sink = self._sink, []
        used = self.expander.used
        try:
            self.nested(text, line)
        except Leave as leave:
            self.state.status = leave.status
        finally:
            printed = "".join(self._sink or ())
            self._sink = sink
            files, status, why = self.state.files, self.state.status, self.state.why
            self.state = kept
            self.expander.used = used
            del self.commands[count:]
        kept.files, kept.status, kept.why = files, status, why
        return self.budget.text(line, printed.rstrip("\n"))

    def print(self, text: str) -> None:
        """Print on standard output, wherever that goes now."""
        self.budget.text(self.line, text)
        if self._sink is not None:
            self._sink.append(text)
        else:
            self.say(text)

    def say(self, text: str) -> None:
        """Print for a person; the last lines are kept."""
        self.said = [*self.said, text[:400]][-_LAST_SAID:]

    def captured(self, action: Callable[[], None]) -> str:
        """What an action prints."""
        sink, self._sink = self._sink, []
        try:
            action()
        finally:
            printed = "".join(self._sink)
            self._sink = sink
        return printed

    # Statements

    def block(self, block: Block) -> None:
        """Carry out statements in order."""
        for statement in block:
            self.statement(statement)
            if (
                "errexit" in self.state.options
                and not self._in_condition
                and self.state.status
                and isinstance(statement, Simple | Test | Calculation)
            ):
                raise Exit(self.state.status, statement.line)

    def statement(self, statement: Statement) -> None:
        """Carry out one statement; its status is then the state's."""
        self.line = statement.line
        self.budget.step(statement.line)
        match statement:
            case Simple():
                self._simple(statement)
            case If():
                self._if(statement)
            case Either():
                self._either(statement)
            case Test():
                self._test(statement)
            case Calculation():
                self.calculate(statement.source, statement.line)
            case Pipeline():
                self._pipeline(statement)
            case Negation():
                self._negation(statement)
            case For():
                self._for(statement)
            case While():
                self._while(statement)
            case Count():
                self._count(statement)
            case Case():
                self._case(statement)
            case Group():
                self._group(statement)
            case Function():
                self.state.functions[statement.name] = statement
                self._status(0)
            case Redirected():
                self._with_redirects(
                    statement.redirects, statement.line, lambda: self.statement(statement.body)
                )

    def _status(self, status: int | None, why: str = "") -> None:
        self.state.status, self.state.why = status, why

    def verdict(self, found: bool | None, line: int, source: str) -> None:
        """Take the verdict of a condition for the status."""
        if found is not None:
            self._status(0 if found else 1)
            return
        causes = self.holes.all_in(self.tests.causes)
        self.tests.causes = []
        cause = causes[0] if causes else Unknown(kind="condition", name=source, line=line)
        self._status(None, self.holes.character(replace(cause, derived=True, choices=())))

    def _test(self, statement: Test) -> None:
        self.tests.causes = []
        try:
            found = self.tests.double(statement.source, statement.line)
        except (BadTest, BadArithmetic):
            self._status(2)
            return
        self.verdict(found, statement.line, " ".join(statement.source.split()))

    def calculate(self, source: str, line: int) -> None:
        """`(( … ))` and `let`: true where the value is not 0."""
        try:
            number = self.expander.arithmetic(source, line)
        except BadArithmetic:
            self._status(1)
            return
        if isinstance(number, str):
            self._status(None, number)
        else:
            self._status(0 if number else 1)

    def _group(self, statement: Group) -> None:
        if not statement.subshell:
            self.block(statement.body)
            return
        self._apart(lambda: self.block(statement.body))

    def _apart(self, action: Callable[[], None]) -> None:
        """Carry something out in a subshell: files and commands stay, variables do not."""
        kept = self.state
        self.state = kept.fork()
        try:
            action()
        except Leave as leave:
            self.state.status = leave.status
        finally:
            files, status, why = self.state.files, self.state.status, self.state.why
            self.state = kept
        kept.files, kept.status, kept.why = files, status, why

    def _negation(self, statement: Negation) -> None:
        self._condition((statement.command,))
        if self.state.status is not None:
            self._status(int(self.state.status == 0))

    def _pipeline(self, statement: Pipeline) -> None:
        kept = self.input
        last = len(statement.commands) - 1
        try:
            for command in statement.commands[:last]:
                text = self.captured(partial(self._apart, partial(self.statement, command)))
                self.input = Stream(text)
            self._apart(lambda: self.statement(statement.commands[last]))
        finally:
            self.input = kept

    def _either(self, statement: Either) -> None:
        """`a && b`, `a || b`: programs are taken to succeed."""
        self.expander.used = []
        self._condition((statement.left,))
        status, used = self.state.status, tuple(self.expander.used)
        if status is None:
            cause = self.holes.unknown(self.state.why)
            if cause.kind in ("program", "machine") and not cause.derived:
                if not statement.is_or:
                    self.statement(statement.right)
                return
            self._both_ways(
                Unknown(kind="condition", name=_source(statement.left), line=statement.line),
                lambda: self.statement(statement.right),
                lambda: None,
                cause,
            )
            return
        if (status == 0) == statement.is_or:
            return
        if used:
            self._unless_it_ends(
                lambda: self.statement(statement.right), lambda: None, used, statement.line,
                _source(statement.left),
            )  # fmt: skip
            return
        self.statement(statement.right)

    def _condition(self, block: Block) -> None:
        """Carry out what is only asked for its status: `set -e` does not count there."""
        self._in_condition += 1
        try:
            self.block(block)
        finally:
            self._in_condition -= 1

    def _if(self, statement: If) -> None:
        self._branches(statement, 0, ())

    def _branches(self, statement: If, k: int, before: tuple[Unknown, ...]) -> None:
        """The k-th condition and what follows; `before` was taken for unset by those before."""
        if k == len(statement.branches):
            if not before:
                self.block(statement.otherwise)
                return
            first = statement.branches[0]
            self._unless_it_ends(
                lambda: self.block(statement.otherwise), lambda: self.block(first[1]), before,
                statement.line, first[2],
            )  # fmt: skip
            if not statement.otherwise:
                self._status(0)
            return
        condition, body, source = statement.branches[k]
        self.expander.used = []
        self._condition(condition)
        used = (*before, *self.expander.used)
        if self.state.status is None:
            cause = self.holes.unknown(self.state.why)
            line = condition[0].line if condition else statement.line
            self._both_ways(
                Unknown(kind="condition", name=source, line=line),
                lambda: self.block(body),
                lambda: self._branches(statement, k + 1, used),
                cause,
            )
        elif self.state.status != 0:
            self._branches(statement, k + 1, used)
        elif used:
            self._unless_it_ends(
                lambda: self.block(body), lambda: self._branches(statement, k + 1, ()), used,
                statement.line, source,
            )  # fmt: skip
        else:
            self._status(0)
            self.block(body)

    def _unless_it_ends(
        self,
        chosen: Callable[[], None],
        other: Callable[[], None],
        used: tuple[Unknown, ...],
        line: int,
        source: str,
    ) -> None:
        """Follow a way that is taken because something is not set; not if that ends the script."""
        kept, count = self.state.fork(), len(self.commands)
        self._status(0)
        try:
            chosen()
        except Exit:
            if self._has_launched(count):
                raise
            self.state = kept
            del self.commands[count:]
            self.assumptions.append(Assumption(line, source, "other", used))
            self._status(0)
            other()

    def _has_launched(self, count: int) -> bool:
        return any(launchers.trainer_call(each) is not None for each in self.commands[count:])

    def _both_ways(
        self,
        condition: Unknown,
        then: Callable[[], None],
        otherwise: Callable[[], None],
        cause: Unknown,
    ) -> None:
        """Follow both ways of an unknown condition and merge; a way that leaves is not taken."""
        base, sink, line = self.state, self._sink, condition.line
        self.budget.step(line, 2 + sum(len(e) for e in base.files.values()) // _MOST_FORKED_BYTES)
        results: list[tuple[State, Leave | None, str]] = []
        started = len(self.commands)
        for way in (then, otherwise):
            count = len(self.commands)
            self.state = base.fork()
            self._sink = []
            self._status(0)
            leave: Leave | None = None
            try:
                way()
            except Leave as found:
                leave = found
                self._may_break = self._may_break or isinstance(found, Break)
            printed = "".join(self._sink)
            results.append((self.state, leave, printed))
            self._sink = sink
            if isinstance(leave, Exit) and not self._has_launched(count):
                del self.commands[count:]
            self.commands[count:] = [
                each if each.condition else replace(each, condition=condition)
                for each in self.commands[count:]
            ]
        (first, leaves, printed), (second, leaves_second, printed_second) = results
        if leaves is None and leaves_second is None:
            self.state = merged(first, second, condition, self.holes)
            text = merged_text(printed, printed_second, condition, self.holes)
        elif leaves is None:
            self.state, text = first, printed
        else:
            self.state, text = second, printed_second
        if text and sink is not None:
            sink.append(text)
        ends = (leaves is None) != (leaves_second is None)
        if (
            ends
            or not self._same(first, second)
            or (sink is not None and printed != printed_second)
            or self._has_launched(started)
        ):
            self.assumptions.append(
                Assumption(line, condition.name, "other" if ends else "both", (cause,))
            )
        if leaves is not None and leaves_second is not None:
            raise leaves_second

    def _same(self, first: State, second: State) -> bool:
        """Whether it does not matter which way was taken: folders that were made do not."""
        paths = {path for path in {**first.files, **second.files} if not path.endswith("/")}
        return first.variables == second.variables and all(
            first.files.get(path) == second.files.get(path) for path in paths
        )

    def _while(self, statement: While) -> None:
        turns, status = 0, 0
        seen: list[dict[str, Variable]] = []
        while True:
            self.budget.step(statement.line)
            self._condition(statement.condition)
            if self.state.status is None:
                cause = self.holes.unknown(self.state.why)
                self._both_ways(
                    Unknown(kind="condition", name=statement.source, line=statement.line),
                    lambda: self._one_turn(statement.body),
                    lambda: None,
                    cause,
                )
                return
            if (self.state.status == 0) == statement.until:
                break
            if turns < 4 or turns % 16 == 0:
                # The same again: what would end the loop is not something that the script decides.
                if self.state.variables in seen and self.input is None:
                    break
                seen = [*seen[-1:], dict(self.state.variables)]
            if self._may_break and turns > 100:
                break
            turns += 1
            if not self._turn(statement.body):
                break
            status = self.state.status or 0
        self._status(status)

    def _one_turn(self, body: Block) -> None:
        self._turn(body)

    def _turn(self, body: Block) -> bool:
        """One turn of a loop; False where it leaves the loop."""
        try:
            self.block(body)
        except Break as leave:
            if leave.levels > 1:
                raise Break(leave.levels - 1) from None
            self._status(0)
            return False
        except Continue as leave:
            if leave.levels > 1:
                raise Continue(leave.levels - 1) from None
        return True

    def _for(self, statement: For) -> None:
        if statement.words is None:
            items: Sequence[str] = self.state.arguments
        else:
            items = self.expander.words(statement.words)
        self._status(0)
        for item in items:
            if only_soft(item):
                continue
            self.budget.step(statement.line)
            self.state.set(statement.name, item)
            if not self._turn(statement.body):
                break

    def _count(self, statement: Count) -> None:
        first, condition, each = statement.parts
        self.calculate(first, statement.line)
        turns = 0
        while True:
            self.budget.step(statement.line)
            if condition.strip():
                self.calculate(condition, statement.line)
                if self.state.status is None:
                    cause = self.holes.unknown(self.state.why)
                    self._both_ways(
                        Unknown(kind="condition", name=condition.strip(), line=statement.line),
                        lambda: self._one_turn(statement.body),
                        lambda: None,
                        cause,
                    )
                    return
                if self.state.status:
                    break
            turns += 1
            if not self._turn(statement.body) or (self._may_break and turns > 100):
                break
            self.calculate(each, statement.line)
        self._status(0)

    def _case(self, statement: Case) -> None:
        self.expander.used = []
        subject = self.expander.one(statement.subject.raw, statement.subject.line)
        used = tuple(
            [*self.expander.used, *(u for u in self.holes.all_in([subject]) if u.is_unset)]
        )
        self._status(0)
        self._items(statement, 0, subject, used)

    def _items(self, statement: Case, k: int, subject: str, used: tuple[Unknown, ...]) -> None:
        """The items of a `case` from the k-th on."""
        for at in range(k, len(statement.items)):
            found = self._matches(statement, at, subject)
            if found is None:
                cause = self.holes.all_in([subject])
                name = f"case {self.holes.shown(subject)} in {'|'.join(statement.items[at][0])}"
                self._both_ways(
                    Unknown(kind="condition", name=name, line=statement.line),
                    partial(self._item, statement, at, subject, ()),
                    partial(self._items, statement, at + 1, subject, ()),
                    cause[0] if cause else Unknown(kind="computed", name=name, line=statement.line),
                )
                return
            if found:
                self._item(statement, at, subject, used)
                return

    def _item(self, statement: Case, at: int, subject: str, used: tuple[Unknown, ...]) -> None:
        _, body, ending = statement.items[at]
        if used:
            shown = f"case {statement.subject.raw}"
            self._unless_it_ends(
                lambda: self.block(body), lambda: None, used, statement.line, shown
            )
        else:
            self.block(body)
        if ending == ";&" and at + 1 < len(statement.items):
            self._item(statement, at + 1, subject, ())
        elif ending == ";;&":
            self._items(statement, at + 1, subject, ())

    def _matches(self, statement: Case, at: int, subject: str) -> bool | None:
        verdict: bool | None = False
        for raw in statement.items[at][0]:
            pattern = self.expander.pattern(raw, statement.line)
            found = self.tests.same(subject, pattern, as_pattern=True)
            self.tests.causes = []
            if found:
                return True
            verdict = None if found is None else verdict
        return verdict

    # Redirections

    def _with_redirects(
        self, redirects: Sequence[Redirect], line: int, action: Callable[[], None]
    ) -> None:
        """Carry something out with its input and output redirected."""
        kept = self.input
        target: tuple[str, bool] | None = None
        away = False  # to standard error, which only people read
        for redirect in redirects:
            operator, at = redirect.operator, redirect.line
            if operator == "<<":
                text = redirect.target
                self.input = Stream(text if redirect.plain else self.expander.document(text, at))
            elif operator == "<<<":
                self.input = Stream(self.expander.one(redirect.target, at) + "\n")
            elif operator in ("<", "<>"):
                self.input = Stream(self.read(self.expander.one(redirect.target, at), at))
            elif operator in (">&", "<&"):
                if redirect.descriptor in ("", "1") and operator == ">&":
                    name = redirect.target
                    if name == "2":
                        away, target = True, None
                    elif not name.isdigit() and name != "-":
                        target = self.expander.one(name, at), False
            elif redirect.descriptor in ("", "1", "&") and ">" in operator:
                target = self.expander.one(redirect.target, at), operator.endswith(">>")
                away = False
        try:
            if target is None and not away:
                action()
                return
            printed = ""
            try:
                printed = self.captured(action)
            finally:
                if target is not None:
                    self.write(*target, printed)
                else:
                    self.say(printed)
        finally:
            self.input = kept

    def write(self, name: str, more: bool, text: str) -> None:
        """Write a file, or add to it; nothing goes to a disk."""
        if name.startswith("/dev/"):
            if name in ("/dev/stderr", "/dev/tty", "/dev/stdout"):
                self.say(text)
            return
        path = self.files.path(name)
        before = self.state.files.get(path, "") if more else ""
        self.state.files[path] = self.budget.text(self.line, before + text)

    def read(self, name: str, line: int) -> str:
        """The text of a file; a hole where it is not known."""
        if name == "/dev/null":
            return ""
        try:
            return self.files.text(name)
        except NotRead:
            shown = self.holes.shown(name)
            return self.holes.character(Unknown(kind="file", name=shown, line=line)) + "\n"

    # Commands

    def _simple(self, statement: Simple) -> None:
        words = statement.words
        k = 0
        while k < len(words) and is_assignment(words[k].raw):
            k += 1
        if statement.redirects:
            self._with_redirects(
                statement.redirects, statement.line, lambda: self._words(words, k, statement.line)
            )
        else:
            self._words(words, k, statement.line)

    def _words(self, words: Sequence[Word], k: int, line: int) -> None:
        """A command of which the first k words are assignments."""
        self.line = line
        if k == len(words):
            self._status(0)
            assign_words(self, words)
            return
        if words[k].raw in _DECLARES:
            assign_words(self, words[:k])
            BUILTINS[words[k].raw](self, self._declared(words[k:]), line)
            return
        texts = self.expander.words(words[k:])
        # bash drops what is unset and not in quotes where a word begins the command
        while texts and only_soft(texts[0]) and len(texts) > 1:
            texts = texts[1:]
        if not texts:
            self._status(0)
            assign_words(self, words[:k])
            return
        environment: dict[str, Variable] = {}
        if k:
            kept = self.state
            self.state = kept.fork()
            assign_words(self, words[:k])
            names = [re.split(r"[+=\[]", word.raw, maxsplit=1)[0] for word in words[:k]]
            environment = {n: self.state.variables[n] for n in names if n in self.state.variables}
            self.state = kept
        self.command(texts, line, environment)

    def _declared(self, words: Sequence[Word]) -> list[Word | str]:
        """The words of `export`, `declare` and their kin: assignments as they are written."""
        found: list[Word | str] = []
        for word in words:
            if is_assignment(word.raw):
                found.append(word)
            else:
                found += self.expander.words([word])
        return found

    def command(
        self, texts: list[str], line: int, environment: dict[str, Variable] | None = None
    ) -> None:
        """Carry out a command whose words are expanded."""
        self.line = line
        name = texts[0]
        if name in self.state.functions:
            self._call(self.state.functions[name], texts, line, environment or {})
        elif name in BUILTINS:
            if environment and name in ("read", "eval", "source", "."):
                self._with_variables(environment, lambda: self._builtin(name, texts, line))
            else:
                self._builtin(name, texts, line)
        elif name in ("command", "builtin", "exec", "time") and len(texts) > 1:
            self._prefixed(texts, line, environment or {})
        else:
            self._program(texts, line, environment or {})

    def _builtin(self, name: str, texts: list[str], line: int) -> None:
        if name not in ("return", "exit"):
            self._status(0)
        BUILTINS[name](self, texts, line)

    def _with_variables(self, variables: dict[str, Variable], action: Callable[[], None]) -> None:
        before = {name: self.state.variables.get(name) for name in variables}
        self.state.variables.update(variables)
        try:
            action()
        finally:
            for name, variable in before.items():
                if variable is None:
                    self.state.variables.pop(name, None)
                else:
                    self.state.variables[name] = variable

    def _prefixed(self, texts: list[str], line: int, environment: dict[str, Variable]) -> None:
        """`command`, `builtin`, `exec` and `time` before a command."""
        name, rest = texts[0], texts[1:]
        if name == "command" and rest[0] in ("-v", "-V"):
            self._known_command(rest[-1], line)
            return
        while rest and rest[0].startswith("-"):
            rest = rest[2:] if rest[0] == "-a" else rest[1:]
        if not rest:
            self._status(0)
            return
        self.command(rest, line, environment)
        if name == "exec":
            raise Exit(self.state.status, line)

    def _known_command(self, name: str, line: int) -> None:
        """Whether there is a command, and its path."""
        if name in self.state.functions or name in BUILTINS:
            self.print(name + "\n")
            self._status(0)
            return
        hole = self.holes.character(Unknown(kind="file", name=f"command -v {name}", line=line))
        self.print(hole + "\n")
        self._status(None, hole)

    def _call(
        self, function: Function, texts: list[str], line: int, environment: dict[str, Variable]
    ) -> None:
        """Call a function: arguments and `local` variables are its own."""
        self._enter(line)
        arguments = self.state.arguments
        calls = self.state.calls
        self.state.arguments = tuple(text for text in texts[1:] if not only_soft(text))
        self.state.calls = (*calls, function.name)
        self.state.frames.append({})
        try:
            self._status(0)
            self._with_variables(environment, lambda: self.statement(function.body))
        except Return as leave:
            self._status(leave.status, leave.why)
        finally:
            self._depth -= 1
            for name, variable in self.state.frames.pop().items():
                if variable is None:
                    self.state.variables.pop(name, None)
                else:
                    self.state.variables[name] = variable
            self.state.arguments, self.state.calls = arguments, calls

    def _program(self, texts: list[str], line: int, environment: dict[str, Variable]) -> None:
        """A tool that is computed, a shell inside, or a program that is written down."""
        name = texts[0].rpartition("/")[2]
        if name in TOOLS and self._tool(name, texts, line):
            return
        if name == "cat" and self._cat(texts[1:], line):
            return
        if name == "tee":
            self._tee(texts[1:])
            return
        if name == "getopt":
            found = (
                None if any(map(is_hard, texts)) else getopt([without_soft(t) for t in texts[1:]])
            )
            if found is not None:
                self.print(found)
                self._status(0)
                return
        if name == "mkdir":
            for text in texts[1:]:
                path = "" if text.startswith("-") else self.files.path(text)
                while path not in ("", ".", "/", "..") and path + "/" not in self.state.files:
                    self.state.files[path + "/"] = ""
                    path = path.rpartition("/")[0]
        if name in ("realpath", "readlink") and len(texts) > 1:
            self.print(self.files.path(texts[-1]) + "\n")
            self._status(0)
            return
        if name in ("cp", "mv") and len(texts) == 3 and self.files.written(texts[1]) is not None:
            self.state.files[self.files.path(texts[2])] = self.files.written(texts[1]) or ""
        inner = launchers.inner_shell(texts)
        if inner is not None and self._inner(inner, texts, line, environment):
            return
        self._record(texts, line, environment)
        if name in _SILENT:
            self._status(0)
            return
        hole = self.holes.character(
            Unknown(
                kind=_KINDS.get(name, "program"),
                name=_named(self.holes.shown(" ".join(texts))),
                line=line,
            )
        )
        if self._sink is not None:
            self.print(hole + "\n")
        self._status(None, hole)

    def _record(self, texts: list[str], line: int, environment: dict[str, Variable]) -> None:
        if len(self.commands) >= _MOST_COMMANDS:
            raise too_much(line, f"more than {_MOST_COMMANDS} commands")
        seen = {name: v for name, v in self.state.variables.items() if v.exported and v.by_script}
        seen |= environment
        value = self.holes.value
        self.commands.append(
            Command(
                words=tuple(map(value, texts)),
                environment={name: value(v.text or "") for name, v in seen.items()},
                line=line,
                within=tuple(tuple(map(value, outer)) for outer in self._within),
            )
        )

    def _tool(self, name: str, texts: list[str], line: int) -> bool:
        """Compute a tool of text; False where it is one to write down."""
        arguments = texts[1:]
        read = ""
        if name in READS_INPUT:
            names, arguments = self._inputs(name, arguments)
            if names:
                read = "".join(self.read(each, line) for each in names)
            elif self.input is not None:
                read = self.input.rest()
            else:
                return False
        if name == "xargs" and list(arguments) not in ([], ["echo"]):
            return self._xargs(arguments, read, line)
        self.budget.step(line, 1 + len(read) // 256)
        holes = "".join((*arguments, read))
        if has_holes(holes):
            if (
                name in _KEEP_HOLES
                and not is_hard("".join(arguments))
                and not self._lone_hole(read)
            ):
                found = TOOLS[name]([without_soft(a) for a in arguments], read)
                if found is not None:
                    self.print(found[0])
                    self._status(found[1])
                    return True
            if not is_hard(holes) and name in ("basename", "dirname"):
                self.print(holes + "\n")
            else:
                self.print(self.expander.derived(holes, line) + "\n")
            if name in ("grep", "egrep", "fgrep"):
                self._status(None, self.expander.derived(holes, line))
            return True
        found = TOOLS[name](arguments, read)
        if found is None:
            hole = self.holes.character(
                Unknown(kind="computed", name=_named(" ".join(texts)), line=line)
            )
            self.print(hole + "\n")
            self._status(None, hole)
            return True
        self.print(self.budget.text(line, found[0]))
        self._status(found[1])
        return True

    def _lone_hole(self, text: str) -> bool:
        """Whether a text has a line that is only a hole: it may stand for many lines."""
        return any(is_hard(line) and len(line) == 1 for line in text.split("\n"))

    def _inputs(self, name: str, arguments: list[str]) -> tuple[list[str], list[str]]:
        """The files that a tool reads, which are its last words, and its other arguments."""
        if name in ("tr", "xargs", "bc"):
            return [], arguments
        plain = [k for k, a in enumerate(arguments) if not a.startswith("-") or a == "-"]
        if name in ("cut", "head", "tail"):
            valued = {"cut": ("-d", "-f", "-c", "-b"), "head": ("-n", "-c"), "tail": ("-n", "-c")}[
                name
            ]
            plain = [k for k in plain if k == 0 or arguments[k - 1] not in valued]
        elif name in ("sed", "grep", "egrep", "fgrep", "awk", "gawk"):
            valued = ("-e", "-f", "-F", "-v", "-m") if name != "grep" else ("-e", "-f", "-m")
            plain = [k for k in plain if k == 0 or arguments[k - 1] not in valued]
            if "-e" not in arguments:
                plain = plain[1:]
        names = [arguments[k] for k in plain if arguments[k] != "-"]
        return names, [a for k, a in enumerate(arguments) if k not in plain]

    def _xargs(self, arguments: Sequence[str], read: str, line: int) -> bool:
        words = list(arguments)
        if has_holes(read) or any(word.startswith("-") for word in words[:1]):
            return False
        self.command([*words, *read.split()], line)
        return True

    def _cat(self, arguments: Sequence[str], line: int) -> bool:
        names = [each for each in arguments if not each.startswith("-") or each == "-"]
        out = []
        for name in names or ["-"]:
            if name == "-":
                if self.input is None:
                    return False
                out.append(self.input.rest())
            else:
                out.append(self.read(name, line))
        self.print("".join(out))
        self._status(0)
        return True

    def _tee(self, arguments: Sequence[str]) -> None:
        text = "" if self.input is None else self.input.rest()
        more = "-a" in arguments or "--append" in arguments
        for name in arguments:
            if not name.startswith("-"):
                self.write(name, more, text)
        self.print(text)
        self._status(0)

    def _inner(
        self, inner: InnerShell, texts: list[str], line: int, environment: dict[str, Variable]
    ) -> bool:
        """Follow a shell inside a command; False where its text is not known."""
        arguments = texts[inner.arguments :]
        name = "bash"
        if inner.script is None:
            text, arguments = " ".join(arguments), []
        elif inner.is_file:
            name = texts[inner.script]
            try:
                text = self.files.text(name)
            except NotRead:
                return False
            if len(text) > 1 and "\0" in text:
                return False
        else:
            text = texts[inner.script]
            if arguments:
                name, arguments = arguments[0], arguments[1:]
        if only_soft(text) or (is_hard(text) and len(text.strip()) == 1):
            return False
        kept, within, count = self.state, self._within, len(self.commands)
        variables = {**kept.exported(), **environment} if inner.has_environment else {}
        self.state = State(
            variables=variables,
            arguments=tuple(arguments),
            name=name,
            files=kept.files,
            folder=kept.folder,
        )
        self._within = (*within, tuple(texts[: inner.at])) if inner.at else within
        was_batch, self.expander.is_batch = (
            self.expander.is_batch,
            self.expander.is_batch or bool(inner.at),
        )
        own, self.expander.assigned = self.expander.assigned, frozenset()
        status: int | None = 0
        try:
            self.nested(text, line)
            status, why = self.state.status, self.state.why
        except Leave as leave:
            status, why = leave.status, leave.why
        finally:
            self.state, self._within = kept, within
            self.expander.is_batch, self.expander.assigned = was_batch, own
        if len(self.commands) == count:
            self._record(texts, line, environment)
        self._status(status, why)
        if status is None and not why:
            self._status(0)
        return True

    # Files that are sourced

    def source(self, name: str, arguments: Sequence[str], line: int) -> None:
        """Carry out a file beside the script in this shell; note it where it is not read."""
        try:
            if is_hard(name):
                raise NotRead("its name is known only when the script runs")
            text = self.files.text(name)
            if is_hard(text) and len(text.strip()) == 1:
                raise NotRead("it is written by a program")
        except NotRead as reason:
            self.not_sourced.append(NotSourced(line, self.holes.shown(name), str(reason)))
            self.expander.not_read = True
            hole = Unknown(
                kind="program", name=_named(f"source {self.holes.shown(name)}"), line=line
            )
            self._status(None, self.holes.character(hole))
            return
        kept = self.state.arguments
        if arguments:
            self.state.arguments = tuple(arguments)
        self._status(0)
        try:
            self.nested(text.replace("\r\n", "\n"), line)
        except Return as leave:
            self._status(leave.status, leave.why)
        finally:
            if arguments:
                self.state.arguments = kept


def _source(statement: Statement) -> str:
    """The text of a condition, for people."""
    if isinstance(statement, Test):
        return f"[[ {' '.join(statement.source.split())} ]]"
    if isinstance(statement, Calculation):
        return f"(( {' '.join(statement.source.split())} ))"
    if isinstance(statement, Simple):
        return _named(" ".join(word.raw for word in statement.words))
    if isinstance(statement, Negation):
        return f"! {_source(statement.command)}"
    if isinstance(statement, Either):
        return f"{_source(statement.left)} {'||' if statement.is_or else '&&'} {_source(statement.right)}"
    if isinstance(statement, Pipeline):
        return " | ".join(map(_source, statement.commands))
    return type(statement).__name__.lower()


def _named(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:80] + "…"


_DECLARES: Final = frozenset({"export", "declare", "typeset", "local", "readonly"})
_KEEP_HOLES: Final = frozenset({"sed", "tac", "sort", "uniq", "xargs"})
_SILENT: Final = frozenset(
    {"mkdir", "cp", "mv", "rm", "ln", "chmod", "touch", "sleep", "rmdir", "chown"}
)
_KINDS: Final[dict[str, Literal["machine"]]] = {
    "hostname": "machine", "date": "machine", "nproc": "machine", "whoami": "machine", "uname": "machine",
    "shuf": "machine", "mktemp": "machine", "uuidgen": "machine", "id": "machine",
}  # fmt: skip
