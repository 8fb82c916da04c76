"""The reference of the command line, from the table of options."""

from __future__ import annotations

import click

from trainwright.commands.main import COMMANDS, app
from trainwright.options.option import Option
from trainwright.options.table import rows_of_command
from trainwright.options.tool_rows import ARGUMENTS


def commands_part() -> str:
    """Every command with its arguments and options, as Markdown."""
    context = click.Context(app, info_name="trainwright")
    return "\n".join(_command(name, context) for name in COMMANDS)


def _command(name: str, parent: click.Context) -> str:
    command = app.get_command(parent, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join((context.command_path, *command.collect_usage_pieces(context)))
    lines = [f"## {name}", "", COMMANDS[name], "", "```text", usage, "```", ""]
    if arguments := ARGUMENTS.get(name, ()):
        lines += ["| argument | meaning |", "| --- | --- |"]
        lines += [f"| {_code(each.name)} | {_cell(each.help)} |" for each in arguments]
        lines.append("")
    lines += ["| option | meaning |", "| --- | --- |"]
    lines += [f"| {_flags(row)} | {_meaning(row)} |" for row in rows_of_command(name)]
    return "\n".join([*lines, ""])


def _meaning(row: Option) -> str:
    default = "" if row.default is None else f" Default: {_code(row.default)}."
    return _cell(row.help) + default


def _flags(row: Option) -> str:
    names = [f"--{row.flag}"]
    if row.short:
        names.append(f"-{row.short}")
    if row.reader.both:
        names.append(f"--no-{row.flag}")
    if not row.reader.is_flag:
        names[0] += f" {row.metavar or row.reader.metavar}"
    return ", ".join(map(_code, names))


def _code(text: str) -> str:
    return f"`{_cell(text)}`"


def _cell(text: str) -> str:
    """Text that neither ends a cell of a table nor a line of one."""
    return " ".join(text.split()).replace("|", "\\|")
