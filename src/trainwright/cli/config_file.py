"""`--config FILE`: a TOML file whose keys are the command's own options.

The command line wins over the file. Unknown keys are refused: an ignored option is a wrong plan.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from trainwright.errors import Fault, InvalidInput

_NOT_IN_FILES = ("config", "help")


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make the file's values the defaults of this call; raises `InvalidInput` with all faults."""
    if path is None:
        return None
    from trainwright.formats.atomic_file import read_bytes

    data = read_bytes(path, name="config")
    try:
        values = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput.of("config", f"must be TOML: {error}", source=str(path)) from None
    known = _options(context)
    faults = list(_faults(values, known))
    if faults:
        raise InvalidInput(faults, source=str(path))
    given = ((known[_plain(key)], value) for key, value in values.items())
    defaults = {option.name: _as_typed(option, value) for option, value in given}
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def _options(context: typer.Context) -> dict[str, Any]:
    """The command's options by long name."""
    return {
        name: parameter
        for parameter in context.command.params
        for flag in parameter.opts
        if flag.startswith("--") and (name := flag.removeprefix("--")) not in _NOT_IN_FILES
    }


def _plain(key: str) -> str:
    return key.replace("_", "-")


def _faults(values: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[Fault]:
    first_of: dict[str, str] = {}
    for key, value in values.items():
        name = _plain(key)
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"it has {', '.join(sorted(known))}"
            yield Fault(key, f"must be an option of this command; {hint}")
        elif name in first_of:
            yield Fault(key, f'must be given once, got "{first_of[name]}" too')
        elif problem := _type_problem(known[name], value):
            yield Fault(key, f"{problem}, got {value!r}")
        first_of.setdefault(name, key)


def _type_problem(option: Any, value: object) -> str | None:
    if option.is_flag:
        return None if isinstance(value, bool) else "must be true or false"
    if option.multiple:
        entries = value if isinstance(value, list) else [value]
        texts = all(isinstance(entry, str) for entry in entries)
        return None if texts else "must be a string or an array of strings"
    plain = isinstance(value, (str, int, float)) and not isinstance(value, bool)
    return None if plain else "must be a string or a number"


def _as_typed(option: Any, value: Any) -> object:
    """As the command line would have given it."""
    if option.is_flag:
        return value
    if option.multiple:
        return value if isinstance(value, list) else [value]
    return str(value)
