"""The reference of the command line, from the Typer application itself."""

from __future__ import annotations

import inspect

import click
import typer.main

from trainwright.commands.main import app


def commands_part() -> str:
    """Every command with its arguments and options, as Markdown."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    context = click.Context(group, info_name="trainwright")
    commands = [group.get_command(context, name) for name in group.list_commands(context)]
    return "\n".join(_command(command, context) for command in commands if command is not None)


def _command(command: click.Command, parent: click.Context) -> str:
    context = click.Context(command, info_name=command.name, parent=parent)
    usage = " ".join((context.command_path, *command.collect_usage_pieces(context)))
    lines = [f"## {command.name}", "", inspect.cleandoc(command.help or ""), ""]
    lines += ["```text", usage, "```", ""]
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    options = [
        each for each in command.params if isinstance(each, click.Option) and not each.hidden
    ]
    if arguments:
        lines += ["| argument | meaning |", "| --- | --- |"]
        lines += [_row(_code(each.human_readable_name), each) for each in arguments]
        lines.append("")
    lines += ["| option | meaning |", "| --- | --- |"]
    lines += [_row(_option_name(each, context), each) for each in options]
    return "\n".join([*lines, ""])


def _row(name: str, parameter: click.Parameter) -> str:
    meaning = getattr(parameter, "help", None) or ""
    default = parameter.default
    is_flag = isinstance(parameter, click.Option) and parameter.is_flag
    if default is not None and not is_flag and not parameter.required:
        meaning += f" Default: {_code(str(default))}."
    return f"| {name} | {_cell(meaning)} |"


def _option_name(option: click.Option, context: click.Context) -> str:
    names = [*sorted(option.opts, key=len, reverse=True), *option.secondary_opts]
    if not option.is_flag:
        names[0] += f" {option.make_metavar(context)}"
    return ", ".join(map(_code, names))


def _code(text: str) -> str:
    return f"`{_cell(text)}`"


def _cell(text: str) -> str:
    """Text that neither ends a cell of a table nor a line of one."""
    return " ".join(text.split()).replace("|", "\\|")
