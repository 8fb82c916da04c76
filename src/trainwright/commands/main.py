"""The entry point: commands, and how errors leave the program.

Exit codes: 0 done, 1 our bug, 2 bad input or an unsupported feature, 3 infeasible, 4 a requested
check failed, 5 unknown, 130 interrupted.
"""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import click
import typer
from typer.core import TyperGroup

from trainwright._version import __version__
from trainwright.errors import InvalidInput, TrainwrightError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What each command is for, said here too so that `--help` loads none of them (a test compares).
COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "plan": "Find the best plan, and prove it.",
        "estimate": "Predict time and memory of a run: does it fit, and how long does a step take?",
        "schedule": "Order the work of a pipeline: by name, by search, or as given.",
        "codesign": "Find the best accelerator and its plans within an area, and prove it.",
        "explain": (
            "Show a plan or schedule as a table: times, memory, what binds; of a "
            "model's plan also why."
        ),
        "export": "Write the files that make a training framework run a plan.",
        "verify": "Prove on this machine that a plan's schedule trains the same model.",
        "improve": (
            "How far is a job from the best plan, and what is the smallest change "
            "that gets most of it?"
        ),
        "diff": "Compare two documents: what was asked differently, what came out differently.",
        "whatif": (
            "Plan the request of a document again with something different, beside the old plan."
        ),
        "report": "Show documents on one HTML page that needs nothing else.",
        "serve": "Explore plans on a local page: choose a model and a cluster, move sliders.",
        "validate": "Score predictions against measured runs.",
        "calibrate": "Fit a few efficiencies from measured runs or training logs.",
        "profile": (
            "Time a model's layers on the device at hand; write a profile that `plan` takes."
        ),
        "model": "Say what a model is: parameters, layers, FLOPs, cache, and how it can be cut.",
        "catalog": "List what is built in, with where each figure comes from.",
    }
)


class _Program(TyperGroup):
    """Builds a command, the function named like its module, only when it is asked for."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: click.Command(name, help=text) for name, text in COMMANDS.items()}

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; with `ctx.obj`, what is owed on stdout, a refusal is a document, too."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if ctx.obj:
                parameter = getattr(error, "param", None)
                option = getattr(error, "option_name", getattr(parameter, "name", None))
                _print_refusal(InvalidInput.of(option or "command", error.format_message()))
            raise

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _command(cmd_name) if cmd_name in self.commands else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List all commands with what each is for, without loading any."""
        width = formatter.width - 6 - max(map(len, self.commands))
        rows = [(name, each.get_short_help_str(width)) for name, each in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@cache
def _command(name: str) -> click.Command:
    alone = typer.Typer(**_SHOWN)
    alone.command(name)(import_module(f"trainwright.commands.{name}").command)
    return typer.main.get_command(alone)


_SHOWN: Any = {
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
}
app = typer.Typer(
    name="trainwright",
    cls=_Program,
    help="The best plan for training a large model on many accelerators, with a proof.",
    no_args_is_help=True,
    **_SHOWN,
)


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
    # what is still to be printed on stdout; whoever prints it takes it away
    owed = {"document"} if "--json" in (sys.argv if arguments is None else arguments) else set()
    try:
        app(arguments, prog_name="trainwright", obj=owed)
    except TrainwrightError as error:
        _complain(error)
        if owed:
            _print_refusal(error)
        sys.exit(error.exit_code)
    raise AssertionError("the command line ends by itself")


def _survive_narrow_encodings() -> None:
    """A terminal without µ or lines shows a substitute; that is no reason to fail."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _print_refusal(error: TrainwrightError) -> None:
    """The one document on stdout, where a command that was to print one ends without it."""
    from trainwright.commands.output import emit
    from trainwright.documents.printing import Report
    from trainwright.documents.refusal import refusal_of

    with suppress(typer.Exit, InvalidInput):  # nobody reads it: the message was said
        emit(Report(refusal_of(error)), as_json=True, output=None)


def _complain(error: TrainwrightError) -> None:
    if not isinstance(error, InvalidInput):
        print(f"error: {error}", file=sys.stderr)
        return
    where = f" in {error.source}" if error.source else ""
    count = len(error.faults)
    if count > 1:
        print(f"error: {count} faults{where}", file=sys.stderr)
        for fault in error.faults:
            print(f"  {fault}", file=sys.stderr)
    else:
        print(f"error{where}: {error.faults[0]}", file=sys.stderr)
