"""The entry point: commands, and how errors leave the program.

Exit codes: 0 done, 1 our bug, 2 bad input or an unsupported feature, 3 infeasible, 4 a requested
check failed, 5 unknown, 130 interrupted.
"""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from trainwright._version import __version__
from trainwright.cli import (
    calibrate,
    catalog,
    codesign,
    diff,
    estimate,
    explain,
    export,
    improve,
    plan,
    profile,
    report,
    schedule,
    serve,
    validate,
    verify,
    whatif,
)
from trainwright.errors import InvalidInput, TrainwrightError

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(
    name="trainwright",
    help="The best plan for training a large model on many accelerators, with a proof.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_COMMANDS = (
    plan.plan,
    estimate.estimate,
    schedule.schedule,
    codesign.codesign,
    explain.explain,
    export.export,
    verify.verify,
    improve.improve,
    diff.diff,
    whatif.whatif,
    report.report,
    serve.serve,
    validate.validate,
    calibrate.calibrate,
    profile.profile,
    catalog.catalog,
)
for _command in _COMMANDS:
    app.command()(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trainwright {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; never shows a traceback for a user's mistake."""
    _survive_narrow_encodings()
    try:
        app(arguments, prog_name="trainwright")
    except InvalidInput as error:
        _complain(error)
        sys.exit(error.exit_code)
    except TrainwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    raise AssertionError("the command line ends by itself")


def _survive_narrow_encodings() -> None:
    """A terminal without µ or lines shows a substitute; that is no reason to fail."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _complain(error: InvalidInput) -> None:
    where = f" in {error.source}" if error.source else ""
    count = len(error.faults)
    if count > 1:
        print(f"error: {count} faults{where}", file=sys.stderr)
        for fault in error.faults:
            print(f"  {fault}", file=sys.stderr)
    else:
        print(f"error{where}: {error.faults[0]}", file=sys.stderr)
