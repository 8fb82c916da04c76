"""The entry point: commands, and how errors leave the program.

Exit codes: 0 done, 1 our bug, 2 bad input or an unsupported feature, 3 infeasible, 4 a requested
check failed, 5 unknown, 130 interrupted.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from trainwright.commands.output import COMMAND_LINE, check_output
from trainwright.errors import Fault, InvalidInput, TrainwrightError, meant
from trainwright.options.option import Argument, Option
from trainwright.options.table import rows_of_command
from trainwright.options.tool_rows import ARGUMENTS, FIRST

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from trainwright.plans.plan import CommandLine

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


# The same commands, by what a reader comes with.
_GROUPS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "Plan a training": ("plan", "estimate", "fit", "improve", "explain", "whatif", "diff"),
        "Run it": ("export", "verify", "schedule"),
        "Show it": ("report", "serve", "mcp"),
        "Measure": ("profile", "validate", "calibrate", "capture"),
        "Look up, and design chips": ("model", "support", "catalog", "codesign"),
    }
)


class _Program(click.Group):
    """Builds a command only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are told of."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, from the table of options."""
        if cmd_name not in COMMANDS:
            return None

        return shell_command(cmd_name, COMMANDS[cmd_name])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Refuse what is no command with what may have been meant."""
        if not args[0].startswith("-") and args[0] not in COMMANDS:
            problem = f'must be one of trainwright, got "{args[0]}"'
            raise Misread(Fault("command", f"{problem}; {_instead_of_command(args[0])}"), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """All commands with what each is for, in groups, without loading any."""
        for title, names in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name]) for name in names], col_max=12)


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from trainwright.provenance import __version__

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
    """Run the command line and exit; never shows a traceback for a user's mistake.

    Where a document is owed on stdout, a refusal is one, too.
    """
    _survive_narrow_encodings()
    # what is still to be printed on stdout; whoever prints it takes it away
    owed = {"document"} if "--json" in (sys.argv if arguments is None else arguments) else set()
    try:
        code = app(arguments, prog_name="trainwright", obj=owed, standalone_mode=False)
    except TrainwrightError as error:
        _complain(error)
        if owed:
            _print_refusal(error)
        sys.exit(error.exit_code)
    except click.ClickException as error:  # what was given is no command, or not in its words
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            error.show()
            sys.exit(error.exit_code)
        refused = misread(error)
        if owed:
            _print_refusal(InvalidInput([refused.fault]))
        refused.show()
        sys.exit(refused.exit_code)
    except click.Abort:
        click.echo("Aborted!", file=sys.stderr)
        code = 1
    sys.exit(code or 0)


def _survive_narrow_encodings() -> None:
    """A terminal without µ or lines shows a substitute; that is no reason to fail."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _print_refusal(error: TrainwrightError) -> None:
    """The one document on stdout, where a command that was to print one ends without it."""
    from trainwright.commands.output import emit
    from trainwright.documents.printing import Report, refusal_of

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


# The command line, made from the table of options: parsing, help, `--config`
# ---------------------------------------------------------------------------
# A command is built when it is asked for, and its help loads nothing of what it does.


_MOST_USED = "Most used"


class ShellCommand(click.Command):
    """`command` of the module of its name, with help in groups, what matters first at the front."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Leave in the context what was given, read, and load what is called with it."""
        ctx.meta[_TYPED] = tuple(args)
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise
        if rest and not ctx.resilient_parsing:
            raise Misread(_too_many(rest, ctx), ctx)
        if self.name is not None and not ctx.resilient_parsing:  # else words are completed
            given, ctx.params = ctx.params, _values(self.name, ctx.params)
            if self.name in _REPEATED:
                ctx.meta[COMMAND_LINE] = _command_line(self.name, given)
            self.callback = import_module(f"trainwright.commands.{self.name}").command
        return rest

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Arguments with what they mean, then the options of each group."""
        name = self.name or ""
        arguments = [
            (
                each.make_metavar(context),
                f"{argument.help}  [required]" if argument.required else argument.help,
            )
            for each, argument in zip(self.params, ARGUMENTS.get(name, ()), strict=False)
        ]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        groups: dict[str, list[tuple[str, str]]] = {_MOST_USED: []} if name in FIRST else {}
        options = {_plain_name(row): row for row in rows_of_command(name)}
        for parameter in self.get_params(context):
            record = parameter.get_help_record(context)
            if record is None or isinstance(parameter, click.Argument):
                continue
            row = options.get(str(parameter.name))
            is_first = row is None or row.flag in FIRST.get(name, ())
            title = "Options"
            if name in FIRST:
                title = _MOST_USED if is_first or row is None else row.group
            groups.setdefault(title, []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


@cache
def shell_command(name: str, summary: str) -> click.Command:
    """The command of a name, from the table of options."""
    return ShellCommand(
        name,
        params=[
            *map(_argument, ARGUMENTS.get(name, ())),
            *map(_option, rows_of_command(name)),
        ],
        help=summary,
        context_settings={"allow_extra_args": True},  # refused with what they may be meant for
    )


def _plain_name(row: Option) -> str:
    """What a parsed value is called."""
    return row.flag.replace("-", "_")


def _argument(argument: Argument) -> click.Argument:
    return click.Argument(
        [argument.name],
        metavar=argument.metavar or None,
        required=argument.required,
        nargs=-1 if argument.many else 1,
        shell_complete=_completions(argument.name, is_file=True),
    )


def _option(row: Option) -> click.Option:
    reader = row.reader
    flag = f"--{row.flag}/--no-{row.flag}" if reader.both else f"--{row.flag}"
    settings: dict[str, Any] = {"is_flag": True} if reader.is_flag else {}
    if not reader.is_flag:
        metavar = row.metavar or reader.metavar
        settings |= {"metavar": metavar, "multiple": reader.repeats}
        settings["nargs"] = len(metavar.split())
        if row.flag not in _OF_OTHERS:
            settings["callback"] = _whole_values
        is_file = row.flag in _FILE_TOO or metavar in _FILES
        settings["shell_complete"] = _completions(row.flag, is_file=is_file)
    if not row.required:  # what has a default, even none, click takes for given
        settings["default"] = None
    shown = [f"-{row.short}", flag] if row.short else [flag]
    return click.Option(
        [_plain_name(row), *shown],
        required=row.required,
        help=row.help if row.default is None else f"{row.help}  [default: {row.default}]",
        **settings,
    )


# What was typed and is not understood: where, the rule with what was given, the fix
# ---------------------------------------------------------------------------------

_TYPED: Final = "trainwright.typed"  # where a context keeps the words of its command
_OF_OTHERS: Final = ("argument",)  # options whose values are words of another program


class Misread(click.UsageError):
    """Words that are no command line, as any other fault is said."""

    def __init__(self, fault: Fault, ctx: click.Context | None) -> None:
        super().__init__(str(fault), ctx)
        self.fault = fault

    def format_message(self) -> str:
        """The fault, on one line that a terminal shows as it stands."""
        from trainwright.documents.view import printable

        return printable(self.message)


def misread(error: click.ClickException) -> Misread:
    """What the parser refuses, in our words."""
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, Misread):
        return error
    if ctx is not None and isinstance(error, click.NoSuchOption):
        return Misread(_no_option(error.option_name, ctx), ctx)
    if ctx is not None and isinstance(error, click.BadOptionUsage):
        return Misread(_without_value(error.option_name, ctx), ctx)
    param = error.param if isinstance(error, click.BadParameter) else None
    if ctx is not None and param is not None and isinstance(error, click.MissingParameter):
        return Misread(_missing(param, ctx), ctx)
    where = "command" if param is None else _spoken(param)
    return Misread(Fault(where, error.message), ctx)


def _typed(ctx: click.Context) -> list[str]:
    """The words of a command, values behind = apart."""
    words: Sequence[str] = ctx.meta.get(_TYPED, ())
    return [part for word in words for part in word.split("=", word.startswith("--"))]


def _behind(flag: str, ctx: click.Context) -> str:
    """The word that was typed behind another, if any was."""
    typed = _typed(ctx)
    at = typed.index(flag) + 1 if flag in typed else len(typed)
    return typed[at] if at < len(typed) else ""


def _no_option(flag: str, ctx: click.Context) -> Fault:
    """An option that is not the command's: whose it is, which is like it, what takes its value."""
    typed = _typed(ctx)
    if not flag.startswith("--"):  # -cluster is read as -c, and so on
        flag = next((word for word in typed if word.startswith(flag)), flag)
    name, command = flag.lstrip("-"), ctx.info_name
    own = [opt.lstrip("-") for each in ctx.command.get_params(ctx) for opt in each.opts]
    problem = f"is no option of {command}"
    if name not in own and (takers := _takers_of(name)):
        problem += f", but of {', '.join(takers)}"
    behind = _behind(flag, ctx)
    likely = [name] if name in own else _options_that_name(behind, ctx)
    if likely:
        behind = "" if behind.startswith("-") else behind
        return Fault(flag, f"{problem}{_did_you_mean(likely, behind)}")
    near = meant(name, own).replace(' "', " --").replace('"', "")
    return Fault(flag, f"{problem}{near or f'; {ctx.command_path} --help lists those it has'}")


def _did_you_mean(flags: Sequence[str], word: str) -> str:
    """What a refusal ends with: options that take a word."""
    said = (f"--{flag} {word}{' FILE' * (flag == 'from')}".rstrip() for flag in flags)
    return f"; did you mean {' or '.join(said)}?"


def _takers_of(name: str) -> list[str]:
    """The commands that have an option of a name."""
    plain = name.removeprefix("no-")
    return [each for each in COMMANDS if plain in {row.flag for row in rows_of_command(each)}]


def _too_many(rest: Sequence[str], ctx: click.Context) -> Fault:
    """Words without an option that a command has no place for."""
    own = [each for each in ctx.command.params if isinstance(each, click.Argument)]
    takes = " and ".join(each.make_metavar(ctx).strip("[]") for each in own) or "none"
    got = " ".join(f'"{word}"' for word in rest)
    beside = "" if not own else " beside it" if len(own) == 1 else " beside them"
    problem = f"{ctx.info_name} takes {takes}, got {got}{beside}"
    if likely := _options_that_name(rest[0], ctx):
        return Fault("arguments", f"{problem}{_did_you_mean(likely, rest[0])}")
    fix = _with_format(rest[0], ctx) or _joined(rest[0], ctx)
    return Fault("arguments", problem + (fix or f"; {ctx.command_path} --help says what it takes"))


def _joined(word: str, ctx: click.Context) -> str:
    """The list that was meant where a word stands behind the value of an option of lists."""
    typed = _typed(ctx)
    at = typed.index(word) if word in typed else 0
    flag, value = typed[at - 2 : at] if at > 1 else ("", "")
    rows = {f"--{row.flag}": row for row in rows_of_command(str(ctx.info_name))}
    is_list = flag in rows and "," in rows[flag].reader.metavar
    return f"; did you mean {flag} {value},{word}?" if is_list else ""


def _options_that_name(word: str, ctx: click.Context) -> list[str]:
    """The options of a command that take a word: by the names that they know, or as a file."""
    flags = [row.flag for row in rows_of_command(str(ctx.info_name))] if ctx.parent else []
    if word.endswith(".toml"):
        return [each for each in flags if each in (*_FILE_TOO, "config")]
    return [each for each in flags if each in _NAMES and word in _names_for(each)]


def _without_value(flag: str, ctx: click.Context) -> Fault:
    """An option that lacks its value or values, or a switch that has one."""
    params = ctx.command.get_params(ctx)
    each = next(each for each in params if flag in (*each.opts, *each.secondary_opts))
    assert isinstance(each, click.Option)
    name = _spoken(each)
    if each.is_flag or each.nargs == 0:
        value = _behind(flag, ctx)
        return Fault(name, f'takes no value, got "{value}"; give {flag} alone')
    if each.nargs > 1:
        value = _behind(flag, ctx)
        problem = f"takes {each.nargs} values, {each.metavar}, got "
        got = f'"{value}" alone' if value else "none"
        return Fault(name, f"{problem}{got}{_with_format(value, ctx)}")
    return Fault(name, f"must have a value behind it, got none; give {_asked_for(each, flag)}")


def _missing(param: click.Parameter, ctx: click.Context) -> Fault:
    """An argument or option that a command cannot do without."""
    if isinstance(param, click.Option):
        flag = max(param.opts, key=len)
        return Fault(_spoken(param), f"must be given, got none; give {_asked_for(param, flag)}")
    own = {each.name: each for each in ARGUMENTS.get(str(ctx.info_name), ())}
    places = (each for each in ctx.command.params if isinstance(each, click.Argument))
    whole = " ".join(each.make_metavar(ctx) for each in places)
    asked = f"{ctx.command_path} {whole}: {_inside(own[str(param.name)].help)}"
    return Fault(_spoken(param), f"must be given, got none; give {asked}")


def _spoken(param: click.Parameter) -> str:
    """A parameter as other refusals call it."""
    return str(param.name).replace("_", "-")


def _asked_for(option: click.Option, flag: str) -> str:
    """An option with what stands behind it, and what that is."""
    said = _inside((option.help or "").partition("  [")[0])
    return f"{flag} {option.metavar}: {said}"


def _inside(sentence: str) -> str:
    """A sentence of help as the end of another."""
    first = sentence.partition(" ")[0]
    begun = sentence if first[1:] != first[1:].lower() else sentence[:1].lower() + sentence[1:]
    return begun if begun.endswith("...") else begun.removesuffix(".")


def _instead_of_command(word: str) -> str:
    """What was meant by a word that is no command."""
    from trainwright.commands.catalog import TOPICS
    from trainwright.formats.atomic_file import exists

    if word in TOPICS:
        return f"did you mean trainwright catalog {word}?"
    if Path(word).suffix and exists(Path(word)):
        return f"name one before the file, as trainwright explain {word}"
    if near := meant(word, COMMANDS):
        return near.removeprefix("; ").replace('"', "")
    if takers := _takers_of(word):
        row = next(
            row for row in rows_of_command(takers[0]) if row.flag == word.removeprefix("no-")
        )
        value = "" if row.reader.is_flag else f" {row.metavar or row.reader.metavar}"
        return f"it is an option, as in trainwright {takers[0]} --{word}{value}"
    if word in _names_for("model"):
        return f"name one before the model, as trainwright plan {word}"
    if word in _names_for("family"):
        return f"did you mean trainwright schedule --family {word}?"
    return f"there are {', '.join(COMMANDS)}"


def _whole_values(ctx: click.Context, option: click.Parameter, value: Any) -> Any:
    """The value or values of an option; another option in their place is one too few."""
    given = value if option.multiple else [value] if value else []
    flags = {opt for each in ctx.command.params for opt in each.opts}
    for each in given or ():
        words = each if option.nargs > 1 else (each,)
        taken = next((str(v) for v in words if v in flags or _is_second(v, option)), None)
        if taken is None:
            continue
        wanted = "a value" if option.nargs == 1 else f"{option.nargs} values"
        problem = f"takes {wanted}, {option.metavar}, and {taken} stands in the place of one"
        raise Misread(Fault(_spoken(option), f"{problem}{_with_format(str(words[0]), ctx)}"), ctx)
    return value


def _is_second(word: object, option: click.Parameter) -> bool:
    return option.nargs > 1 and str(word).startswith("--")


def _with_format(value: str, ctx: click.Context) -> str:
    """What was meant where a job's file stands alone, its format being told by its content."""
    from trainwright.frameworks.read_job import job_format

    if not value or "from" not in {row.flag for row in rows_of_command(str(ctx.info_name))}:
        return ""
    known = job_format(value)
    return "" if known is None else f"; did you mean --from {known} {value}?"


# What a shell may offer for a value: names of the catalog, files
# ----------------------------------------------------------------

_FILE_TOO: Final = ("cluster", "chip")
_FILES: Final = ("FILE", "PATH", "DIR", "FOLDER")
# Where the names are that an option or argument of this name takes.
_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "model": ("formats.catalog", "model_names"),
    "models": ("formats.catalog", "model_names"),
    "cluster": ("formats.catalog", "cluster_names"),
    "chip": ("formats.catalog", "accelerator_names"),
    "device": ("formats.catalog", "accelerator_names"),
    "gpu": ("formats.catalog", "accelerator_names"),
    "framework": ("plans.capability", "TARGETS"),
    "to": ("plans.capability", "TARGETS"),
    "from": ("frameworks.jobs", "FORMATS"),
    "family": ("scheduling.families", "FAMILIES"),
    "schedule": ("scheduling.families", "FAMILIES"),
    "topic": ("commands.catalog", "TOPICS"),
}


def _completions(
    name: str, *, is_file: bool
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """What offers the known names that go on from what is typed, and files where one may stand."""

    def offer(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        files = [CompletionItem(typed, type="file")] if is_file else []
        if name not in _NAMES:
            return files
        begun, comma, last = typed.rpartition(",")
        return files + [
            CompletionItem(begun + comma + one) for one in _names_for(name) if one.startswith(last)
        ]

    return offer


def _names_for(name: str) -> Collection[str]:
    """The names that an option or argument of `_NAMES` knows."""
    module, source = _NAMES[name]
    known = getattr(import_module(f"trainwright.{module}"), source)
    names: Collection[str] = known() if callable(known) else known
    return names


# What was given, by keyword
# --------------------------


def _values(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values that were given, read, by keyword; those of a `--config` file behind them."""
    rows = {row.flag: row for row in rows_of_command(name)}
    own = {each.name for each in ARGUMENTS.get(name, ())}
    there = {key: value for key, value in given.items() if value not in (None, ())}
    values = {key: value for key, value in there.items() if key in own}
    plain = {_plain(key): value for key, value in there.items() if key not in own}
    if (path := plain.pop("config", None)) is not None:
        values |= _read(rows, read_config(name, path))
    values |= _read(rows, plain)
    if path is not None:
        check_output(values.get("output"), path, document=False)
    for row in rows.values():
        if row.default is not None and row.name not in values:
            values[row.name] = row.value(row.default)
    return values


def _read(rows: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    faults: list[Fault] = []
    flags: dict[str, str] = {}
    for flag, value in given.items():
        row = rows[flag]
        if row.reader.is_flag and not row.reader.both:
            if value is not True:
                continue
            value = row.reader.given
        if row.name in values:
            switch, other = (flag, flags[row.name])
            if rows[other].reader.is_flag:
                switch, other = other, switch
            kept = value if other == flag else values[row.name]
            problem = f'must not be given together with --{switch}, got "{kept}"'
            faults.append(Fault(other, problem))
            continue
        flags[row.name] = flag
        try:
            values[row.name] = row.value(value)
        except InvalidInput as error:
            faults += error.faults
    if faults:
        raise InvalidInput(faults)
    return values


# What was typed, for documents whose question came from files, and for chips
# ---------------------------------------------------------------------------

_REPEATED: Final = ("plan", "estimate", "improve", "fit", "schedule", "model", "codesign")
# What says where results go, or what else is written, and nothing of the question.
_OF_RESULTS: Final = frozenset(
    ("output", "json", "verbose", "open", "journal", "patch", "orders", "orders-form", "gantt")
) | {"csv", "figure", "artifacts", "stage"}
# Words in the names of variables whose values no document keeps: HF_TOKEN, but not TOKENIZER.
_SECRETS: Final = frozenset(
    ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "KEY", "APIKEY", "CREDENTIALS"]
)


def _command_line(name: str, given: Mapping[str, Any]) -> CommandLine | None:
    """The words that ask this again beside its files; None where a document says them itself.

    Nor is there one where two files of one name lie in different folders, or one is a stream.
    """
    from trainwright.formats.atomic_file import exists

    files: dict[str, Path] = {}
    streams: list[Path] = []

    def word(value: str, *, is_file: bool) -> str:
        path = Path(value)
        if not (is_file and exists(path)):
            return value
        if not (path.is_file() or path.is_dir()):
            streams.append(path)
        whole = path.absolute() if path.name not in ("", "..") else path.resolve()
        if files.setdefault(whole.name, whole) != whole:
            streams.append(path)
        return f"./{whole.name}" if whole.name.startswith("-") else whole.name

    words = [name]
    for argument in ARGUMENTS.get(name, ()):
        value = given.get(argument.name)
        if value is None:
            continue
        words += [word(each, is_file=True) for each in (value if argument.many else (value,))]
    for row in rows_of_command(name):
        values = given.get(_plain_name(row))
        if values in (None, ()) or row.flag in _OF_RESULTS:
            continue
        if row.reader.is_flag:
            words.append(f"--{row.flag}" if values else f"--no-{row.flag}")
            continue
        metavars = (row.metavar or row.reader.metavar).split()
        for value in values if row.reader.repeats else (values,):
            texts = value if len(metavars) > 1 else (value,)
            words.append(f"--{row.flag}")
            for text, metavar in zip(texts, metavars, strict=True):
                kept = _without_secret(text) if row.flag == "variable" else text
                words.append(word(kept, is_file=row.flag in _FILE_TOO or metavar in _FILES))
    whole = name != "codesign" or not (given.get("recheck") or given.get("stage"))
    if streams or not whole or not (files or name == "codesign"):
        return None  # of a chip that was checked, or found step by step, the document says it
    from trainwright.plans.plan import CommandLine

    return CommandLine(words=tuple(words), files=tuple(files))


def _without_secret(setting: str) -> str:
    """NAME=VALUE of a script's variable, without the value of what is named like a secret."""
    name, separator, _ = setting.partition("=")
    hides = separator and not _SECRETS.isdisjoint(name.upper().split("_"))
    return f"{name}=hidden" if hides else setting


# `--config FILE`: a TOML file whose keys are the command's own options
# ---------------------------------------------------------------------
# The command line wins over the file. Unknown keys are refused: an ignored option is a wrong plan.

_NOT_IN_FILES = ("config", "help")


def read_config(name: str, path: str | Path) -> dict[str, Any]:
    """What a file gives, by flag; raises `InvalidInput` with all faults."""
    from trainwright.formats.atomic_file import read_toml

    values = read_toml(path, name="config")
    known = {row.flag: row for row in rows_of_command(name) if row.flag not in _NOT_IN_FILES}
    faults = list(_faults(values, known))
    if faults:
        raise InvalidInput(faults, source=str(path))
    return {_plain(key): _as_typed(known[_plain(key)], value) for key, value in values.items()}


def _plain(key: str) -> str:
    return key.replace("_", "-")


def _faults(values: Mapping[str, Any], known: Mapping[str, Option]) -> Iterator[Fault]:
    first_of: dict[str, str] = {}
    for key, value in values.items():
        name = _plain(key)
        if name not in known:
            hint = meant(name, known) or f"; it has {', '.join(sorted(known))}"
            yield Fault(key, f"must be an option of this command{hint}")
        elif name in first_of:
            yield Fault(key, f'must be given once, got "{first_of[name]}" too')
        elif problem := _type_problem(known[name], value):
            yield Fault(key, f"{problem}, got {value!r}")
        first_of.setdefault(name, key)


def _type_problem(row: Option, value: object) -> str | None:
    from trainwright.formats.records import suits

    wanted, schema = _written_as(row)
    return None if suits(value, schema) else f"must be {wanted}"


def _written_as(row: Option) -> tuple[str, dict[str, Any]]:
    """How a file gives an option, in words and as a JSON Schema."""
    if row.reader.is_flag:
        return "true or false", {"type": "boolean"}
    text = {"type": "string"}
    if row.reader.repeats:
        many = {"type": "array", "items": text}
        return "a string or an array of strings", {"anyOf": [text, many]}
    return "a string or a number", {"anyOf": [text, {"type": "number"}]}


def config_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a `--config` file of a command, as TOML is read.

    A value is what the command line would take, so its range and unit are not in it.
    """
    from trainwright.formats.records import titled

    stated = {row.flag: row for row in rows_of_command(name) if row.flag not in _NOT_IN_FILES}
    schemas = {
        flag: {**_written_as(row)[1], "description": row.help} for flag, row in stated.items()
    }
    either = {f"^{flag.replace('-', '[-_]')}$": each for flag, each in schemas.items()}
    about = f"Options of `trainwright {name}`; those of the command line go before."
    root = {"type": "object", "description": about, "properties": schemas}
    return titled(
        f"trainwright {name} --config",
        {**root, "patternProperties": either, "additionalProperties": False},
    )


def plan_config_schema() -> dict[str, Any]:
    """The JSON Schema of `plan --config`."""
    return config_schema("plan")


def estimate_config_schema() -> dict[str, Any]:
    """The JSON Schema of `estimate --config`."""
    return config_schema("estimate")


def _as_typed(row: Option, value: Any) -> object:
    """As the command line would have given it."""
    if row.reader.is_flag:
        return value
    if row.reader.repeats:
        return tuple(value) if isinstance(value, list) else (value,)
    return str(value)
