"""How results leave: exactly one document or table on stdout, everything else on stderr."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import click

from trainwright.errors import InvalidInput

if TYPE_CHECKING:
    from trainwright.documents.printing import Report
    from trainwright.execution import Budget, Progress
    from trainwright.plans.plan import CommandLine

_NARROWEST = 40  # columns that tables are made for
_PROGRESS_AFTER_S = 1.0
_READER_LEFT = 141  # what a shell reports of a program that SIGPIPE ended
_CLEAR_LINE = "\r\x1b[K"


_PAGES: Final = (".html", ".htm")


def check_output(path: Path | None, *inputs: str | Path | None, document: bool = True) -> None:
    """Refuse a path that cannot be written, or is an input, before any work is done for it.

    Nor is a document written under the name of a page, which a browser would open.
    """
    if path is None:
        return
    if document and path.suffix.lower() in _PAGES:
        plain = path.with_suffix(".json")
        problem = (
            f'is the name of a page, "{path}", and what is written is a document; write {plain},'
            f" then: trainwright report {plain} -o {path}"
        )
        raise InvalidInput.of("output", problem)
    from trainwright.formats.atomic_file import check_writable

    for given in inputs:
        if given is not None and _is_input(path, Path(given)):
            problem = (
                f'must not be the input "{given}", which it would replace; choose another path'
            )
            raise InvalidInput.of("output", problem)
    with _uninterrupted():
        check_writable(path)


def _is_input(path: Path, given: Path) -> bool:
    """Whether they are one file, by whatever links; a folder stands for the config.json in it."""
    with suppress(OSError, ValueError):  # a name no file has is nothing to lose
        return path.samefile(given / "config.json" if given.is_dir() else given)
    return False


def emit(report: Report[Any], *, as_json: bool, output: Path | None, verbose: bool = False) -> None:
    """Save if asked, then print the document or its table; `verbose` shows what is folded."""
    report = _as_typed(report)
    if output is not None:
        save(report.save, output)
    _print(report.to_json() if as_json else _table(report, verbose=verbose))


COMMAND_LINE: Final = "trainwright.command_line"  # what a command's context keeps under this


def _as_typed(report: Report[Any]) -> Report[Any]:
    """The document with the words that asked for it, where files are among them."""
    context = click.get_current_context(silent=True)
    typed = None if context is None else context.meta.get(COMMAND_LINE)
    if typed is None:
        return report
    return replace(report, document=_with_command_line(report.document, typed))


def _with_command_line(document: Any, typed: CommandLine) -> Any:
    for part in ("request", "plan"):  # an explanation is about a plan
        if is_dataclass(within := getattr(document, part, None)):
            return replace(document, **{part: _with_command_line(within, typed)})
    return replace(document, command_line=typed) if hasattr(document, "command_line") else document


def save(write: Callable[[Path], None], path: Path) -> None:
    """Write a file, whole or not at all."""
    with _uninterrupted():
        write(path)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back for a moment: a file is written whole or not at all.

    A signal mask would not do, for other threads may take the signal.
    """
    pressed = False

    def note(*_: object) -> None:
        nonlocal pressed
        pressed = True

    heard = signal.getsignal(signal.SIGINT)
    if heard is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, heard)
        if pressed:
            signal.raise_signal(signal.SIGINT)


def _table(report: Report[Any], *, verbose: bool) -> str:
    """The table, as wide as the terminal or, in a pipe, COLUMNS; a narrow one wraps words."""
    if not sys.stdout.isatty():
        stated = os.environ.get("COLUMNS", "")
        if stated.isascii() and stated.isdigit() and int(stated) > 0:
            return report.explain(verbose=verbose, width=max(int(stated), _NARROWEST))
        return report.explain(verbose=verbose)
    from rich.console import Console

    console = Console(highlight=False)
    console.width = max(console.width, _NARROWEST)
    with console.capture() as captured:
        console.print(report.renderable(verbose=verbose))
    return captured.get()


def _print(text: str) -> None:
    context = click.get_current_context(silent=True)
    if context is not None and (owed := context.find_root().obj):
        owed.clear()  # no refusal follows it: stdout has one document
    try:
        sys.stdout.write(_spelled(text, sys.stdout.encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
        raise click.exceptions.Exit(_READER_LEFT) from None
    except OSError as error:
        _drop_stdout()
        raise InvalidInput.of("output", f"cannot be printed: {error.strerror}") from None


# Ours, as they are spelled where a stream lacks them.
_SPELLED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "─": "-",
        "µ": "u",
        "×": "x",
        "→": "->",
        "≤": "<=",
        "≥": ">=",
        "−": "-",
        "…": "...",
        "²": "2",
        "┬": "+",
        "·": ".",
    }
    | {eighths: str(number) for number, eighths in enumerate("▁▂▃▄▅▆▇█", 1)}
)


def _spelled(text: str, encoding: str | None) -> str:
    """The text in letters that the stream has, where it lacks lines, arrows or Greek.

    What is longer then takes of the blanks that follow, so that columns stay under each other.
    """
    missing: dict[str, str] = {}
    for letter, plain in _SPELLED.items():
        try:
            letter.encode(encoding or "utf-8")
        except (UnicodeEncodeError, LookupError):
            missing[letter] = plain
    if not missing:
        return text
    table, excess, found = str.maketrans(missing), 0, []
    for part in _BLANKS.split(text):
        if part == "\n":
            excess = 0
        elif part.isspace():
            taken = min(excess, len(part) - 1)
            part, excess = part[taken:], excess - taken
        else:
            plain = part.translate(table)
            part, excess = plain, excess + len(plain) - len(part)
        found.append(part)
    return "".join(found)


_BLANKS: Final = re.compile(r"(\n| {2,})")  # ends of lines, and what lies between columns


def _drop_stdout() -> None:
    """Let the interpreter's last flush go nowhere instead of failing again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def budget(time_limit_s: float | None) -> Iterator[Budget]:
    """A budget that Ctrl-C interrupts gently: the search stops and keeps its best result.

    A second Ctrl-C ends the program at once, whatever it is busy with.
    """
    from trainwright.execution import Budget

    watched = sys.stderr.isatty()
    made = Budget(time_limit_s=time_limit_s, on_progress=_show if watched else None)

    def stop(*_: object) -> None:
        made.interrupt()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with suppress(OSError):  # the handler may run inside a print to the same stream
            os.write(2, b"\ninterrupted: keeping the best found so far\n")

    previous = signal.getsignal(signal.SIGINT)
    if previous is not signal.SIG_IGN:  # a background job is not meant
        signal.signal(signal.SIGINT, stop)
    try:
        yield made
    finally:
        signal.signal(signal.SIGINT, previous)
        if watched:
            print(_CLEAR_LINE, end="", file=sys.stderr, flush=True)


def finish(exit_code: int, *, interrupted: bool) -> None:
    """Leave with the code of the contract; an interrupted run is always 130."""
    code = 130 if interrupted else exit_code
    if code:
        raise click.exceptions.Exit(code)


def _show(progress: Progress) -> None:
    if progress.elapsed_s < _PROGRESS_AFTER_S:
        return
    found = "nothing yet"
    if progress.best < float("inf"):
        # the bound on all plans of a model is proved last, and may be below what was searched
        known = f"gap {progress.gap:.2%}"
        if progress.stage == "planning":
            known = f"searched up to {progress.lower_bound:.6g} s"
        found = f"best {progress.best:.6g} s, {known}"
    passed = f"{progress.elapsed_s:.0f} s"
    if progress.remaining_s < float("inf"):
        passed += f", at most {progress.remaining_s:.0f} s left"
    line = f"{progress.stage}: {passed}, {found}"
    print(f"{_CLEAR_LINE}{line}", end="", file=sys.stderr, flush=True)
