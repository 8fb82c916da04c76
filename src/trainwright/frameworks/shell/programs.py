"""Programs that a script starts: computed, followed, or written down.

Small tools of text are computed where what they read is known. A shell inside a command
(`srun … bash -c "…"`, a script beside this one) is followed. All others are written down; their
output and their status are not known, and whoever asks is told so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trainwright.frameworks.shell import launchers
from trainwright.frameworks.shell.control import Leave
from trainwright.frameworks.shell.files import NotRead
from trainwright.frameworks.shell.launchers import Command, InnerShell
from trainwright.frameworks.shell.session import Session
from trainwright.frameworks.shell.state import State, Variable
from trainwright.frameworks.shell.tools import READS_INPUT, TOOLS, getopt
from trainwright.frameworks.shell.values import (
    Kind,
    Unknown,
    has_holes,
    is_hard,
    only_soft,
    shortened,
    too_much,
    without_soft,
)

_MOST_COMMANDS: Final = 2000
_KEEP_HOLES: Final = frozenset({"sed", "tac", "sort", "uniq", "xargs"})
_SILENT: Final = frozenset(
    {"mkdir", "cp", "mv", "rm", "ln", "chmod", "touch", "sleep", "rmdir", "chown"}
)
_KINDS: Final[dict[str, Kind]] = {
    "hostname": "machine", "date": "machine", "nproc": "machine", "whoami": "machine",
    "uname": "machine", "shuf": "machine", "mktemp": "machine", "uuidgen": "machine",
    "id": "machine",
}  # fmt: skip


def run_program(
    shell: Session, texts: list[str], line: int, environment: dict[str, Variable]
) -> None:
    """A tool that is computed, a shell inside, or a program that is written down."""
    name = texts[0].rpartition("/")[2]
    if name in TOOLS and _tool(shell, name, texts, line):
        return
    if name == "cat" and _cat(shell, texts[1:], line):
        return
    if name == "tee":
        _tee(shell, texts[1:])
        return
    if name == "getopt":
        found = None if any(map(is_hard, texts)) else getopt([without_soft(t) for t in texts[1:]])
        if found is not None:
            shell.print(found)
            shell.set_status(0)
            return
    if name == "mkdir":
        for text in texts[1:]:
            path = "" if text.startswith("-") else shell.files.path(text)
            while path not in ("", ".", "/", "..") and path + "/" not in shell.state.files:
                shell.state.files[path + "/"] = ""
                path = path.rpartition("/")[0]
    if name in ("realpath", "readlink") and len(texts) > 1:
        shell.print(shell.files.path(texts[-1]) + "\n")
        shell.set_status(0)
        return
    if name in ("cp", "mv") and len(texts) == 3 and shell.files.written(texts[1]) is not None:
        shell.state.files[shell.files.path(texts[2])] = shell.files.written(texts[1]) or ""
    inner = launchers.inner_shell(texts)
    if inner is not None and _inner(shell, inner, texts, line, environment):
        return
    _record(shell, texts, line, environment)
    if name in _SILENT:
        shell.set_status(0)
        return
    hole = shell.holes.character(
        Unknown(
            kind=_KINDS.get(name, "program"),
            name=shortened(shell.holes.shown(" ".join(texts)[:400])),
            line=line,
        )
    )
    if shell.sink is not None:
        shell.print(hole + "\n")
    shell.set_status(None, hole)


def _record(shell: Session, texts: list[str], line: int, environment: dict[str, Variable]) -> None:
    if len(shell.commands) >= _MOST_COMMANDS:
        raise too_much(line, f"more than {_MOST_COMMANDS} commands")
    seen = {name: v for name, v in shell.state.variables.items() if v.exported and v.by_script}
    seen |= environment
    value = shell.holes.value
    shell.commands.append(
        Command(
            words=tuple(map(value, texts)),
            environment={name: value(v.text or "") for name, v in seen.items()},
            line=line,
            within=tuple(tuple(map(value, outer)) for outer in shell.within),
        )
    )


def _tool(shell: Session, name: str, texts: list[str], line: int) -> bool:
    """Compute a tool of text; False where it is one to write down."""
    arguments = texts[1:]
    read = ""
    if name in READS_INPUT:
        names, arguments = _inputs(shell, name, arguments)
        if names:
            read = "".join(shell.read(each, line) for each in names)
        elif shell.input is not None:
            read = shell.input.rest()
        else:
            return False
    if name == "xargs" and list(arguments) not in ([], ["echo"]):
        return _xargs(shell, arguments, read, line)
    shell.budget.step(line, 1 + len(read) // 256)
    holes = "".join((*arguments, read))
    if has_holes(holes):
        if name in _KEEP_HOLES and not is_hard("".join(arguments)) and not _lone_hole(shell, read):
            found = TOOLS[name]([without_soft(a) for a in arguments], read)
            if found is not None:
                shell.print(found[0])
                shell.set_status(found[1])
                return True
        if not is_hard(holes) and name in ("basename", "dirname"):
            shell.print(holes + "\n")
        else:
            shell.print(shell.expander.derived(holes, line) + "\n")
        if name in ("grep", "egrep", "fgrep"):
            shell.set_status(None, shell.expander.derived(holes, line))
        return True
    found = TOOLS[name](arguments, read)
    if found is None:
        hole = shell.holes.character(
            Unknown(kind="computed", name=shortened(" ".join(texts)), line=line)
        )
        shell.print(hole + "\n")
        shell.set_status(None, hole)
        return True
    shell.print(shell.budget.text(line, found[0]))
    shell.set_status(found[1])
    return True


def _lone_hole(shell: Session, text: str) -> bool:
    """Whether a text has a line that is only a hole: it may stand for many lines."""
    return any(is_hard(line) and len(line) == 1 for line in text.split("\n"))


def _inputs(shell: Session, name: str, arguments: list[str]) -> tuple[list[str], list[str]]:
    """The files that a tool reads, which are its last words, and its other arguments."""
    if name in ("tr", "xargs", "bc"):
        return [], arguments
    plain = [k for k, a in enumerate(arguments) if not a.startswith("-") or a == "-"]
    if name in ("cut", "head", "tail"):
        valued = {"cut": ("-d", "-f", "-c", "-b"), "head": ("-n", "-c"), "tail": ("-n", "-c")}[name]
        plain = [k for k in plain if k == 0 or arguments[k - 1] not in valued]
    elif name in ("sed", "grep", "egrep", "fgrep", "awk", "gawk"):
        valued = ("-e", "-f", "-F", "-v", "-m") if name != "grep" else ("-e", "-f", "-m")
        plain = [k for k in plain if k == 0 or arguments[k - 1] not in valued]
        if "-e" not in arguments:
            plain = plain[1:]
    names = [arguments[k] for k in plain if arguments[k] != "-"]
    return names, [a for k, a in enumerate(arguments) if k not in plain]


def _xargs(shell: Session, arguments: Sequence[str], read: str, line: int) -> bool:
    words = list(arguments)
    if has_holes(read) or any(word.startswith("-") for word in words[:1]):
        return False
    shell.command([*words, *read.split()], line)
    return True


def _cat(shell: Session, arguments: Sequence[str], line: int) -> bool:
    names = [each for each in arguments if not each.startswith("-") or each == "-"]
    out = []
    for name in names or ["-"]:
        if name == "-":
            if shell.input is None:
                return False
            out.append(shell.input.rest())
        else:
            out.append(shell.read(name, line))
    shell.print("".join(out))
    shell.set_status(0)
    return True


def _tee(shell: Session, arguments: Sequence[str]) -> None:
    text = "" if shell.input is None else shell.input.rest()
    more = "-a" in arguments or "--append" in arguments
    for name in arguments:
        if not name.startswith("-"):
            shell.write(name, more, text)
    shell.print(text)
    shell.set_status(0)


def _inner(
    shell: Session, inner: InnerShell, texts: list[str], line: int, environment: dict[str, Variable]
) -> bool:
    """Follow a shell inside a command; False where its text is not known."""
    arguments = texts[inner.arguments :]
    name = "bash"
    if inner.script is None:
        text, arguments = " ".join(arguments), []
    elif inner.is_file:
        name = texts[inner.script]
        try:
            text = shell.files.text(name)
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
    kept, within, count = shell.state, shell.within, len(shell.commands)
    variables = {**kept.exported(), **environment} if inner.has_environment else {}
    shell.state = State(
        variables=variables,
        arguments=tuple(arguments),
        name=name,
        files=kept.files,
        folder=kept.folder,
    )
    shell.within = (*within, tuple(texts[: inner.at])) if inner.at else within
    was_batch, shell.expander.is_batch = (
        shell.expander.is_batch,
        shell.expander.is_batch or bool(inner.at),
    )
    own, shell.expander.assigned = shell.expander.assigned, frozenset()
    status: int | None = 0
    try:
        shell.nested(text, line)
        status, why = shell.state.status, shell.state.why
    except Leave as leave:
        status, why = leave.status, leave.why
    finally:
        shell.state, shell.within = kept, within
        shell.expander.is_batch, shell.expander.assigned = was_batch, own
    if len(shell.commands) == count:
        _record(shell, texts, line, environment)
    shell.set_status(status, why)
    if status is None and not why:
        shell.set_status(0)
    return True
