"""How results leave: exactly one document or table on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from trainwright.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainwright.api.result import Report
    from trainwright.execution import Budget, Progress

_PROGRESS_AFTER_S = 1.0


def parse_count(text: str | None, name: str) -> int | None:
    """A whole number ≥ 1, also written as 8.0 or 1_024."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not value >= 1 or value != int(value):
        raise InvalidInput.of(name, f'must be a whole number >= 1, got "{text}"')
    return int(value)


def check_output(path: Path | None) -> None:
    """Refuse a path that cannot be written before any work is done for it."""
    if path is not None:
        from trainwright.formats.atomic_file import check_writable

        check_writable(path)


def emit(report: Report[Any], *, as_json: bool, output: Path | None) -> None:
    """Save if asked, then print the document or its table."""
    if output is not None:
        report.save(output)
    if as_json:
        sys.stdout.write(report.to_json())
    else:
        from rich.console import Console

        console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
        console.print(report.renderable())


@contextmanager
def budget(time_limit_s: float | None) -> Iterator[Budget]:
    """A budget that Ctrl-C interrupts gently: the search stops and keeps its best result.

    A second Ctrl-C ends the program at once.
    """
    import signal

    from trainwright.execution import Budget

    made = Budget(time_limit_s=time_limit_s, on_progress=_show if sys.stderr.isatty() else None)

    def stop(*_: object) -> None:
        if made.interrupted:
            raise KeyboardInterrupt
        made.interrupt()
        print("\ninterrupted: keeping the best found so far", file=sys.stderr)

    previous = signal.signal(signal.SIGINT, stop)
    try:
        yield made
    finally:
        signal.signal(signal.SIGINT, previous)


def finish(exit_code: int, *, interrupted: bool) -> None:
    """Leave with the code of the contract; an interrupted run is always 130."""
    code = 130 if interrupted else exit_code
    if code:
        raise typer.Exit(code)


def _show(progress: Progress) -> None:
    if progress.elapsed_s < _PROGRESS_AFTER_S:
        return
    best = "none yet" if progress.best == float("inf") else f"{progress.best:.6g} s"
    line = f"{progress.stage}: {progress.elapsed_s:.0f} s, best {best}, gap {progress.gap:.2%}"
    print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
