"""What all parts of a shell share: its state, its input and output, its files, what it notes.

`evaluate.Shell` carries statements out on it; builtins and programs act on it.
"""

from __future__ import annotations

import posixpath
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from trainwright.frameworks.shell import values
from trainwright.frameworks.shell.arithmetic import BadArithmetic
from trainwright.frameworks.shell.conditions import Tests
from trainwright.frameworks.shell.expand import Expander
from trainwright.frameworks.shell.launchers import Command
from trainwright.frameworks.shell.syntax import Script

# What leaves a statement before its end: `exit`, `return`, `break` and `continue`
# --------------------------------------------------------------------------------


class Leave(Exception):
    """Something left; `status` is None where it is not known, `why` is then its hole."""

    def __init__(self, status: int | None = 0, why: str = "") -> None:
        super().__init__()
        self.status = status
        self.why = why


class Exit(Leave):
    """`exit`, or a command that fails under `set -e`."""

    def __init__(self, status: int | None = 0, line: int = 0) -> None:
        super().__init__(status)
        self.line = line


class Return(Leave):
    """`return` from a function or a sourced file."""


class Break(Leave):
    """`break` out of a number of loops."""

    def __init__(self, levels: int = 1) -> None:
        super().__init__()
        self.levels = levels


class Continue(Leave):
    """`continue` with the next turn of the loop that many levels out."""

    def __init__(self, levels: int = 1) -> None:
        super().__init__()
        self.levels = levels


# Files as a script sees them: those it has written so far, and those beside it
# -----------------------------------------------------------------------------
# A script that is read may come from anyone: only regular files inside its own folder are opened,
# and nothing outside it is even looked at.


LARGEST_FILE_BYTES: Final = 96 * 1024
_ALWAYS: Final = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/", "/tmp"})


class NotRead(Exception):
    """Why a file is not read, in words."""


class Stream:
    """Text that is read line by line."""

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


class Files:
    """What is known of files."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.state: values.State | None = None
        self._read: dict[str, str] = {}

    def path(self, name: str) -> str:
        """A name as a path from the script's folder, whatever folder the script is in."""
        assert self.state is not None, "files belong to a state"
        name = values.without_soft(name)
        return posixpath.normpath(posixpath.join(self.state.folder, name))

    def written(self, name: str) -> str | None:
        """The text of a file that the script has written."""
        assert self.state is not None, "files belong to a state"
        return self.state.files.get(self.path(name))

    def exists(self, name: str, sort: str) -> bool | None:
        """Whether `-f name` and its kin hold; None where only a run could tell."""
        assert self.state is not None, "files belong to a state"
        if not name:
            return False
        if name in _ALWAYS:
            return sort not in "fdLS" or (sort == "d" and name in ("/", "/tmp"))
        path = self.path(name)
        if path in self.state.files:
            text = self.state.files[path]
            return sort not in "dLShxpcb" and (sort != "s" or bool(text))
        if path + "/" in self.state.files or path == ".":
            return sort in "derwxaGO"
        if sort not in "efsrad":
            return None
        try:
            found = self._beside(path)
        except NotRead:
            return None
        return sort != "d" if found is not None else None

    def text(self, name: str) -> str:
        """The text of a file that was written or lies beside the script; raises `NotRead`."""
        written = self.written(name)
        if written is not None:
            return written
        path = self.path(name)
        if path in self._read:
            return self._read[path]
        found = self._beside(path)
        if found is None:
            raise NotRead("there is no such file beside the script")
        try:
            with found.open("rb") as file:
                data = file.read(LARGEST_FILE_BYTES + 1)
        except OSError:
            raise NotRead("it cannot be read") from None
        if len(data) > LARGEST_FILE_BYTES:
            raise NotRead(f"it is larger than {LARGEST_FILE_BYTES} bytes")
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise NotRead("it is not text") from None
        self._read[path] = text
        return text

    def _beside(self, path: str) -> Path | None:
        """The regular file inside the script's folder that a path names, None where none is."""
        if self._folder is None:
            raise NotRead("the script has no folder")
        if values.is_hard(path) or values.has_holes(path):
            raise NotRead("its name is known only when the script runs")
        if path.startswith(("/", "..", "~")) or "\0" in path:
            raise NotRead("it lies outside the script's folder")
        try:
            home = self._folder.resolve()
            found = (home / path).resolve()
            if not found.is_relative_to(home):
                raise NotRead("it lies outside the script's folder")
            return found if found.is_file() else None
        except (OSError, ValueError, RuntimeError):
            raise NotRead("it is not a valid path") from None


# ----------------------------------------------------------------------------------------------


_LAST_SAID: Final = 20
_ASSIGNED: Final = re.compile(
    r"\b([A-Za-z_]\w*)(?:\[[^\]\n]{0,99}\])?(?:\+\+|--|(?:[-+*/%|&^]|<<|>>)?=(?!=))"
    r"|(?:\+\+|--)([A-Za-z_]\w*)"
    r"|\b(?:for|select|read|local|declare|mapfile|readarray|getopts \S+)\s+"
    r"(?:-\w+\s+)*([A-Za-z_]\w*)"
)


def assigned_names(text: str) -> frozenset[str]:
    """The names to which a text gives values, as far as its letters show."""
    return frozenset(name for found in _ASSIGNED.findall(text) for name in found if name)


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something that was taken as it usually is, because only a run could tell.

    `taken` is `"both"` where both ways were followed and merged, `"other"` where the way that ends
    the script was not taken, `"first"` where the first of several was, as all others end it.
    `unknowns` are what it depends on.
    """

    line: int
    condition: str
    taken: Literal["both", "other", "first"]
    unknowns: tuple[values.Unknown, ...]

    def __str__(self) -> str:
        names = ", ".join(dict.fromkeys(each.name for each in self.unknowns))
        if self.taken == "first":
            fix = f"; give --variable {names}=VALUE" if names else ""
            return f"line {self.line}: `{self.condition}` is taken to hold, of several ways{fix}"
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


class Session(ABC):
    """One shell: its state, what it printed, and what it would have started."""

    def __init__(
        self,
        *,
        state: values.State,
        budget: values.Budget,
        holes: values.Holes,
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
        self.sink: list[str] | None = None
        self.within: tuple[tuple[str, ...], ...] = ()
        self.depth = 0
        self.in_condition = 0
        self._may_break = False
        self._scripts: dict[tuple[str, int], tuple[Script, frozenset[str]]] = {}
        self.state = state

    @property
    def state(self) -> values.State:
        """What the script knows now."""
        return self._state

    @state.setter
    def state(self, state: values.State) -> None:
        """Go on with another state."""
        self._state = self.expander.state = self.files.state = state

    @abstractmethod
    def run(self, text: str, line: int = 1) -> None:
        """Carry out a text in this shell; raises what ends it (`Leave`)."""

    @abstractmethod
    def command(
        self, texts: list[str], line: int, environment: dict[str, values.Variable] | None = None
    ) -> None:
        """Carry out a command whose words are expanded."""

    @abstractmethod
    def substituted(self, source: str, line: int) -> str:
        """What a command in `$(…)` prints, without the line ends after it."""

    def nested(self, text: str, line: int) -> None:
        """Carry out a text inside the statement of a line: every command has that line."""
        self.enter(line)
        try:
            self.budget.step(line)
            self.run(text, line)
        finally:
            self.depth -= 1

    def enter(self, line: int) -> None:
        """Count a level of calls; raises `InvalidInput` where they are too many."""
        self.depth += 1
        if self.depth > values.Budget.DEEPEST:
            self.depth -= 1
            raise values.too_much(line, f"more than {values.Budget.DEEPEST} levels of calls")

    def print(self, text: str) -> None:
        """Print on standard output, wherever that goes now."""
        self.budget.text(self.line, text)
        if self.sink is not None:
            self.sink.append(text)
        else:
            self.say(text)

    def say(self, text: str) -> None:
        """Print for a person; the last lines are kept."""
        self.said = [*self.said, text[:400]][-_LAST_SAID:]

    def captured(self, action: Callable[[], None]) -> str:
        """What an action prints."""
        sink, self.sink = self.sink, []
        try:
            action()
        finally:
            printed = "".join(self.sink)
            self.sink = sink
        return printed

    def set_status(self, status: int | None, why: str = "") -> None:
        """Set `$?`; where it is not known (None), `why` is the hole for it."""
        self.state.status, self.state.why = status, why

    def verdict(self, found: bool | None, line: int, source: str) -> None:
        """Take the verdict of a condition for the status."""
        if found is not None:
            self.set_status(0 if found else 1)
            return
        causes = self.holes.all_in(self.tests.causes)
        self.tests.causes = []
        cause = causes[0] if causes else values.Unknown(kind="condition", name=source, line=line)
        self.set_status(None, self.holes.character(replace(cause, derived=True, choices=())))

    def calculate(self, source: str, line: int) -> None:
        """`(( … ))` and `let`: true where the value is not 0."""
        try:
            number = self.expander.arithmetic(source, line)
        except BadArithmetic:
            self.set_status(1)
            return
        if isinstance(number, str):
            self.set_status(None, number)
        else:
            self.set_status(0 if number else 1)

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
            return self.holes.character(values.Unknown(kind="file", name=shown, line=line)) + "\n"

    # Files that are sourced

    def source(self, name: str, arguments: Sequence[str], line: int) -> None:
        """Carry out a file beside the script in this shell; note it where it is not read."""
        try:
            if values.has_holes(name):
                raise NotRead("its name is known only when the script runs")
            text = self.files.text(name)
            if values.is_one_hole(text):
                raise NotRead("it is written by a program")
        except NotRead as reason:
            self.not_sourced.append(NotSourced(line, self.holes.shown(name), str(reason)))
            self.expander.not_read = True
            hole = values.Unknown(
                kind="program", name=values.shortened(f"source {self.holes.shown(name)}"), line=line
            )
            self.set_status(None, self.holes.character(hole))
            return
        kept = self.state.arguments
        if arguments:
            self.state.arguments = tuple(arguments)
        self.set_status(0)
        try:
            self.nested(text.replace("\r\n", "\n"), line)
        except Return as leave:
            self.set_status(leave.status, leave.why)
        finally:
            if arguments:
                self.state.arguments = kept
