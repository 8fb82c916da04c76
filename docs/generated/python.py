"""The reference of the Python names, from their signatures and docstrings."""

from __future__ import annotations

import inspect
import re

import trainwright
from trainwright import results


def python_part() -> str:
    """Every public name: calls first, then what they return, then what they raise."""
    names = (*trainwright.__all__, *results.__all__)
    found = {name: getattr(trainwright, name) for name in names if name[0] != "_"}
    groups = {
        "Calls": [name for name, value in found.items() if not inspect.isclass(value)],
        "What they take and return": [
            name
            for name, value in found.items()
            if inspect.isclass(value) and not _is_error(value) and name not in results.__all__
        ],
        "What some return, in `trainwright.results`": results.__all__,
        "Errors": [name for name, value in found.items() if _is_error(value)],
    }
    lines = []
    for title, names in groups.items():
        lines += [f"### {title}", ""]
        for name in sorted(names):
            lines += _entry(name, found[name])
    return "\n".join(lines)


def _is_error(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, Exception)


def _entry(name: str, value: object) -> list[str]:
    lines = [f"#### {name}", ""]
    if not inspect.isclass(value):
        lines += ["```python", _signature(name, value), "```", ""]
    lines += [_text(value), ""]
    if not inspect.isclass(value) or _is_error(value):
        return lines
    members = [
        (key, member)
        for base in reversed(value.__mro__)
        for key, member in vars(base).items()
        if not key.startswith("_") and base.__module__.startswith("trainwright")
    ]
    for key, member in dict(members).items():
        call = "()" if inspect.isfunction(member) else ""
        if isinstance(member, property) or call:
            summary = _text(member).partition("\n\n")[0].replace("\n", " ")
            lines.append(f"- `{key}{call}`: {summary}")
    return [*lines, ""]


def _signature(name: str, value: object) -> str:
    """One parameter a line, types without quotes; options by keyword after the star."""
    lines, after_star = [], False
    for each in inspect.signature(value).parameters.values():  # type: ignore[arg-type]
        if each.kind is each.KEYWORD_ONLY and not after_star:
            lines.append("    *,")
            after_star = True
        star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        kind = "" if each.annotation is each.empty else f": {each.annotation}"
        default = "" if each.default is each.empty else f" = {each.default!r}"
        lines.append(f"    {star}{each.name}{kind.replace(chr(39), '')}{default},")
    return "\n".join([f"{name}(", *lines, ")"])


def _text(value: object) -> str:
    """The docstring; examples as code, brackets as they are."""
    text = inspect.getdoc(value) or ""
    return re.sub(r"^(>>> .*)$", r"`\1`", text, flags=re.MULTILINE)
