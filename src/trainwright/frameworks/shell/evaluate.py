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
from dataclasses import replace
from functools import partial
from typing import Final, Literal

from trainwright.frameworks.shell import launchers, syntax, values
from trainwright.frameworks.shell.arithmetic import BadArithmetic
from trainwright.frameworks.shell.builtins import (
    BUILTINS,
    assign_words,
    find_command,
    is_assignment,
    run_program,
)
from trainwright.frameworks.shell.conditions import BadTest
from trainwright.frameworks.shell.session import (
    Assumption,
    Break,
    Continue,
    Exit,
    Leave,
    Return,
    Session,
    Stream,
    assigned_names,
)
from trainwright.frameworks.shell.words import Redirect, Word


class Shell(Session):
    """One shell: its state, what it printed, and what it would have started."""

    # Texts

    def run(self, text: str, line: int = 1) -> None:
        """Carry out a text in this shell; raises what ends it (`Leave`)."""
        script, names = self._script(text, line)
        self.expander.assigned |= names
        self.errors += [each for each in script.errors if each not in self.errors]
        self.block(script.body)

    def _script(self, text: str, line: int) -> tuple[syntax.Script, frozenset[str]]:
        """The statements of a text and the names it assigns; a loop reads its texts once."""
        found = self._scripts.get((text, line))
        if found is None:
            self.budget.step(line, 10 + len(text) // 16)
            found = self._scripts[text, line] = syntax.parse(text, line), assigned_names(text)
        return found

    def substituted(self, source: str, line: int) -> str:
        """What a command in `$(…)` prints, without the line ends after it."""
        text = source.strip()
        if text.startswith("<") and not text.startswith("<("):
            text = "cat " + text
        count, used = len(self.commands), self.expander.used
        sink, self.sink = self.sink, []
        try:
            self._apart(lambda: self.nested(text, line))
        finally:
            printed = "".join(self.sink or ())
            self.sink = sink
            self.expander.used = used
            del self.commands[count:]
        return self.budget.text(line, printed.rstrip("\n"))

    # Statements

    def block(self, block: syntax.Block) -> None:
        """Carry out statements in order."""
        for statement in block:
            self.statement(statement)
            if (
                "errexit" in self.state.options
                and not self.in_condition
                and self.state.status
                and isinstance(statement, syntax.Simple | syntax.Test | syntax.Calculation)
            ):
                raise Exit(self.state.status, statement.line)

    def statement(self, statement: syntax.Statement) -> None:
        """Carry out one statement; its status is then the state's."""
        self.line = statement.line
        self.budget.step(statement.line)
        match statement:
            case syntax.Simple():
                self._simple(statement)
            case syntax.If():
                self._if(statement)
            case syntax.Either():
                self._either(statement)
            case syntax.Test():
                self._test(statement)
            case syntax.Calculation():
                self.calculate(statement.source, statement.line)
            case syntax.Pipeline():
                self._pipeline(statement)
            case syntax.Negation():
                self._negation(statement)
            case syntax.For():
                self._for(statement)
            case syntax.While():
                self._while(statement)
            case syntax.Count():
                self._count(statement)
            case syntax.Case():
                self._case(statement)
            case syntax.Group():
                self._group(statement)
            case syntax.Function():
                self.state.functions[statement.name] = statement
                self.set_status(0)
            case syntax.Redirected():
                self._with_redirects(
                    statement.redirects, statement.line, lambda: self.statement(statement.body)
                )

    def _test(self, statement: syntax.Test) -> None:
        self.tests.causes = []
        try:
            found = self.tests.double(statement.source, statement.line)
        except (BadTest, BadArithmetic):
            self.set_status(2)
            return
        self.verdict(found, statement.line, " ".join(statement.source.split()))

    def _group(self, statement: syntax.Group) -> None:
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

    def _negation(self, statement: syntax.Negation) -> None:
        self._condition((statement.command,))
        if self.state.status is not None:
            self.set_status(int(self.state.status == 0))

    def _pipeline(self, statement: syntax.Pipeline) -> None:
        kept = self.input
        last = len(statement.commands) - 1
        try:
            for command in statement.commands[:last]:
                text = self.captured(partial(self._apart, partial(self.statement, command)))
                self.input = Stream(text)
            self._apart(lambda: self.statement(statement.commands[last]))
        finally:
            self.input = kept

    def _either(self, statement: syntax.Either) -> None:
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
                values.Unknown(
                    kind="condition", name=syntax.shown_source(statement.left), line=statement.line
                ),
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
                syntax.shown_source(statement.left),
            )  # fmt: skip
            return
        self.statement(statement.right)

    def _condition(self, block: syntax.Block) -> None:
        """Carry out what is only asked for its status: `set -e` does not count there."""
        self.in_condition += 1
        try:
            self.block(block)
        finally:
            self.in_condition -= 1

    def _if(self, statement: syntax.If) -> None:
        self._branches(statement, 0, ())

    def _branches(self, statement: syntax.If, k: int, before: tuple[values.Unknown, ...]) -> None:
        """The k-th condition and what follows; `before` was taken for unset by those before."""
        if k == len(statement.branches):
            if not before:
                self.block(statement.otherwise)
                return
            first = statement.branches[0]
            self._unless_it_ends(
                lambda: self.block(statement.otherwise), lambda: self.block(first[1]), before,
                statement.line, first[2], is_one_of_several=len(statement.branches) > 1,
            )  # fmt: skip
            if not statement.otherwise:
                self.set_status(0)
            return
        condition, body, source = statement.branches[k]
        self.expander.used = []
        self._condition(condition)
        used = (*before, *self.expander.used)
        if self.state.status is None:
            cause = self.holes.unknown(self.state.why)
            line = condition[0].line if condition else statement.line
            self._both_ways(
                values.Unknown(kind="condition", name=source, line=line),
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
            self.set_status(0)
            self.block(body)

    def _unless_it_ends(
        self,
        chosen: Callable[[], None],
        other: Callable[[], None],
        used: tuple[values.Unknown, ...],
        line: int,
        source: str,
        *,
        is_one_of_several: bool = False,
    ) -> None:
        """Follow a way that is taken because something is not set; not if that ends the script."""
        kept, count = self.state.fork(), len(self.commands)
        self.set_status(0)
        try:
            chosen()
        except Exit:
            if self._has_launched(count):
                raise
            self.state = kept
            del self.commands[count:]
            taken: Literal["first", "other"] = "first" if is_one_of_several else "other"
            self.assumptions.append(Assumption(line, source, taken, used))
            self.set_status(0)
            other()

    def _has_launched(self, count: int) -> bool:
        return any(launchers.trainer_call(each) is not None for each in self.commands[count:])

    def _both_ways(
        self,
        condition: values.Unknown,
        then: Callable[[], None],
        otherwise: Callable[[], None],
        cause: values.Unknown,
    ) -> None:
        """Follow both ways of an unknown condition and merge; a way that leaves is not taken."""
        base, sink, line = self.state, self.sink, condition.line
        self.budget.step(line, 2 + (len(base.variables) + len(base.files)) // 32)
        results: list[tuple[values.State, Leave | None, str]] = []
        started = len(self.commands)
        for way in (then, otherwise):
            count = len(self.commands)
            self.state = base.fork()
            self.sink = []
            self.set_status(0)
            leave: Leave | None = None
            try:
                way()
            except Leave as found:
                leave = found
                self._may_break = self._may_break or isinstance(found, Break)
            printed = "".join(self.sink)
            results.append((self.state, leave, printed))
            self.sink = sink
            if isinstance(leave, Exit) and not self._has_launched(count):
                del self.commands[count:]
            self.commands[count:] = [
                each if each.condition else replace(each, condition=condition)
                for each in self.commands[count:]
            ]
        (first, leaves, printed), (second, leaves_second, printed_second) = results
        if leaves is None and leaves_second is None:
            for name, each in second.variables.items():
                if first.variables.get(name) is not each:
                    self.budget.text(line, each.text or "")
            self.state = values.merged(first, second, condition, self.holes)
            text = values.merged_text(printed, printed_second, condition, self.holes)
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

    def _same(self, first: values.State, second: values.State) -> bool:
        """Whether it does not matter which way was taken: folders that were made do not."""
        paths = {path for path in {**first.files, **second.files} if not path.endswith("/")}
        return first.variables == second.variables and all(
            first.files.get(path) == second.files.get(path) for path in paths
        )

    def _while(self, statement: syntax.While) -> None:
        turns, status = 0, 0
        seen: list[dict[str, values.Variable]] = []
        while True:
            self.budget.step(statement.line)
            self._condition(statement.condition)
            if self.state.status is None:
                cause = self.holes.unknown(self.state.why)
                self._both_ways(
                    values.Unknown(kind="condition", name=statement.source, line=statement.line),
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
        self.set_status(status)

    def _one_turn(self, body: syntax.Block) -> None:
        self._turn(body)

    def _turn(self, body: syntax.Block) -> bool:
        """One turn of a loop; False where it leaves the loop."""
        try:
            self.block(body)
        except Break as leave:
            if leave.levels > 1:
                raise Break(leave.levels - 1) from None
            self.set_status(0)
            return False
        except Continue as leave:
            if leave.levels > 1:
                raise Continue(leave.levels - 1) from None
        return True

    def _for(self, statement: syntax.For) -> None:
        if statement.words is None:
            items: Sequence[str] = self.state.arguments
        else:
            items = self.expander.words(statement.words)
        self.set_status(0)
        for item in items:
            if values.only_soft(item):
                continue
            self.budget.step(statement.line)
            self.state.set(statement.name, item)
            if not self._turn(statement.body):
                break

    def _count(self, statement: syntax.Count) -> None:
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
                        values.Unknown(
                            kind="condition", name=condition.strip(), line=statement.line
                        ),
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
        self.set_status(0)

    def _case(self, statement: syntax.Case) -> None:
        self.expander.used = []
        subject = self.expander.one(statement.subject.raw, statement.subject.line)
        unset = (each for each in self.holes.all_in([subject]) if each.is_unset)
        used = (*self.expander.used, *unset)
        self.set_status(0)
        self._items(statement, 0, subject, used)

    def _items(
        self, statement: syntax.Case, k: int, subject: str, used: tuple[values.Unknown, ...]
    ) -> None:
        """The items of a `case` from the k-th on."""
        for at in range(k, len(statement.items)):
            found = self._matches(statement, at, subject)
            if found is None:
                cause = self.holes.all_in([subject])
                name = f"case {self.holes.shown(subject)} in {'|'.join(statement.items[at][0])}"
                self._both_ways(
                    values.Unknown(kind="condition", name=name, line=statement.line),
                    partial(self._item, statement, at, subject, ()),
                    partial(self._items, statement, at + 1, subject, ()),
                    cause[0]
                    if cause
                    else values.Unknown(kind="computed", name=name, line=statement.line),
                )
                return
            if found:
                self._item(statement, at, subject, used)
                return

    def _item(
        self, statement: syntax.Case, at: int, subject: str, used: tuple[values.Unknown, ...]
    ) -> None:
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

    def _matches(self, statement: syntax.Case, at: int, subject: str) -> bool | None:
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

    # Commands

    def _simple(self, statement: syntax.Simple) -> None:
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
            self.set_status(0)
            assign_words(self, words)
            return
        if words[k].raw in _DECLARES:
            assign_words(self, words[:k])
            BUILTINS[words[k].raw](self, self._declared(words[k:]), line)
            return
        texts = self.expander.words(words[k:])
        # bash drops what is unset and not in quotes where a word begins the command
        while texts and values.only_soft(texts[0]) and len(texts) > 1:
            texts = texts[1:]
        if not texts:
            self.set_status(0)
            assign_words(self, words[:k])
            return
        environment: dict[str, values.Variable] = {}
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
        self, texts: list[str], line: int, environment: dict[str, values.Variable] | None = None
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
            run_program(self, texts, line, environment or {})

    def _builtin(self, name: str, texts: list[str], line: int) -> None:
        if name not in ("return", "exit"):
            self.set_status(0)
        BUILTINS[name](self, texts, line)

    def _with_variables(
        self, variables: dict[str, values.Variable], action: Callable[[], None]
    ) -> None:
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

    def _prefixed(
        self, texts: list[str], line: int, environment: dict[str, values.Variable]
    ) -> None:
        """`command`, `builtin`, `exec` and `time` before a command."""
        name, rest = texts[0], texts[1:]
        if name == "command" and rest[0] in ("-v", "-V"):
            find_command(self, rest[-1], line)
            return
        while rest and rest[0].startswith("-"):
            rest = rest[2:] if rest[0] == "-a" else rest[1:]
        if not rest:
            self.set_status(0)
            return
        self.command(rest, line, environment)
        if name == "exec":
            raise Exit(self.state.status, line)

    def _call(
        self,
        function: syntax.Function,
        texts: list[str],
        line: int,
        environment: dict[str, values.Variable],
    ) -> None:
        """Call a function: arguments and `local` variables are its own."""
        self.enter(line)
        arguments = self.state.arguments
        calls = self.state.calls
        self.state.arguments = tuple(text for text in texts[1:] if not values.only_soft(text))
        self.state.calls = (*calls, function.name)
        self.state.frames.append({})
        try:
            self.set_status(0)
            self._with_variables(environment, lambda: self.statement(function.body))
        except Return as leave:
            self.set_status(leave.status, leave.why)
        finally:
            self.depth -= 1
            for name, variable in self.state.frames.pop().items():
                if variable is None:
                    self.state.variables.pop(name, None)
                else:
                    self.state.variables[name] = variable
            self.state.arguments, self.state.calls = arguments, calls


_DECLARES: Final = frozenset({"export", "declare", "typeset", "local", "readonly"})
