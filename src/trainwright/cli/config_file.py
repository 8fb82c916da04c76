"""`--config FILE`: a TOML file whose keys are the command's own options.

The command line wins over the file. Unknown keys are refused: an ignored option is a wrong plan.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import typer

from trainwright.errors import Fault, InvalidInput


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make the file's values the defaults of this call."""
    if path is None:
        return None
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput.of("config", f"cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput.of("config", f"must be TOML: {error}", source=str(path)) from None
    params = context.command.params
    known = {p.name: p for p in params if p.name and p.name not in ("config", "model")}
    named = {_parameter_name(key, context): value for key, value in values.items()}
    unknown = [key for key in values if _parameter_name(key, context) not in known]
    if unknown:
        listed = ", ".join(sorted(name.replace("_", "-") for name in known))
        raise InvalidInput(
            (Fault(key, f"must be an option of this command ({listed})") for key in unknown),
            source=str(path),
        )
    defaults = {name: _as_text(value) for name, value in named.items()}
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def _parameter_name(key: str, context: typer.Context) -> str:
    """`time-limit`, `time_limit` and `json` as the command's parameter names."""
    flat = key.replace("-", "_")
    for parameter in context.command.params:
        if f"--{key}" in parameter.opts and parameter.name:
            return parameter.name
    return flat


def _as_text(value: object) -> object:
    if isinstance(value, bool):
        return value
    if isinstance(value, list):
        return [str(entry) for entry in value]
    return str(value)
