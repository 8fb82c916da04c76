"""The entry point: commands, and how errors leave the program.

Exit codes: 0 done, 1 our bug, 2 bad input or an unsupported feature, 3 infeasible, 4 a requested
check failed, 5 unknown, 130 interrupted.
"""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from trainwright._version import __version__
from trainwright.errors import InvalidInput, TrainwrightError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# What each command is for, said here so that `--help` loads none of them.
COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "plan": "Find the best plan, and prove it.",
        "estimate": "Predict time and memory of a run: does it fit, and how long does a step take?",
        "fit": "What of a model trains on given devices: in full or adapters, sequences how long?",
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
        "support": "Say what can be asked of a model on a device, and how well it is known.",
        "capture": "Run a script with launchers that only record; print what they were given.",
        "mcp": "Serve plan, estimate, improve and explain to agents, over stdio.",
        "catalog": "List what is built in, with where each figure comes from.",
    }
)


class _Program(click.Group):
    """Builds a command only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are told of."""
        return list(COMMANDS)

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
        """The command of a name, from the table of options."""
        if cmd_name not in COMMANDS:
            return None
        from trainwright.commands.command_line import shell_command

        return shell_command(cmd_name, COMMANDS[cmd_name])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the command that may have been meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            if near := difflib.get_close_matches(args[0], COMMANDS):
                meant = f"Did you mean {', '.join(map(repr, near))}?"
                raise click.UsageError(f"{error.format_message()} {meant}", ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List all commands with what each is for, without loading any."""
        width = formatter.width - 6 - max(map(len, COMMANDS))
        rows = [
            (name, click.Command(name, help=text).get_short_help_str(width))
            for name, text in COMMANDS.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"trainwright {__version__}")
        context.exit()


def _print_completion(context: click.Context, _: click.Parameter, shell: str | None) -> None:
    if shell:
        from click.shell_completion import get_completion_class

        made = get_completion_class(shell)
        assert made is not None
        click.echo(made(app, {}, "trainwright", "_TRAINWRIGHT_COMPLETE").source())
        context.exit()


app = _Program(
    "trainwright",
    help="The best plan for training a large model on many accelerators, with a proof.",
    no_args_is_help=True,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version.",
        ),
        click.Option(
            ["--completion"],
            type=click.Choice(["bash", "zsh", "fish"]),
            is_eager=True,
            expose_value=False,
            callback=_print_completion,
            help='Print what completes words: eval "$(trainwright --completion bash)".',
        ),
    ],
)


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

    with suppress(click.exceptions.Exit, InvalidInput):  # nobody reads it: the message was said
        emit(Report(refusal_of(error)), as_json=True, output=None)


def _complain(error: TrainwrightError) -> None:
    from trainwright.documents.view import printable

    print("\n".join(map(printable, _said(error))), file=sys.stderr)


def _said(error: TrainwrightError) -> Iterator[str]:
    if not isinstance(error, InvalidInput):
        yield f"error: {error}"
        return
    where = f" in {error.source}" if error.source else ""
    count = len(error.faults)
    if count > 1:
        yield f"error: {count} faults{where}"
        yield from (f"  {fault}" for fault in error.faults)
    else:
        yield f"error{where}: {error.faults[0]}"
