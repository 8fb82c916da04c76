"""The table of options: every option of every command, said once, and what follows from it.

A row (an `Option`, in `planning_rows` and `tool_rows`) says how an option is written, read and
checked, what it means, who takes it and for which kind of input, and where a document keeps its
value. The parsing and the help of the command line, `--config` files, the keywords of Python with
their signatures, refusals of options that belong to another input, the names in faults, and the
command that asks for a document again all follow from it. A new option is a row, and the place
where its value has an effect: a field of the noun that the row names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trainwright.errors import Fault, InvalidInput, meant
from trainwright.options.option import Kind, Option, Options
from trainwright.options.planning_rows import ROWS as PLANNING_ROWS
from trainwright.options.tool_rows import ROWS as TOOL_ROWS
from trainwright.options.tool_rows import VERBS

if TYPE_CHECKING:
    from inspect import Signature

Verb = TypeVar("Verb", bound=Callable[..., Any])
ROWS: Final[list[Option]] = [*PLANNING_ROWS, *TOOL_ROWS]


@cache
def rows_of(*verbs: str) -> tuple[Option, ...]:
    """The rows of one verb or several, each flag once."""
    found: dict[str, Option] = {}
    for row in ROWS:
        if any(verb in row.commands for verb in verbs):
            found.setdefault(row.flag, row)
    return tuple(found.values())


def rows_of_command(command: str) -> tuple[Option, ...]:
    """What the command line takes."""
    return rows_of(*VERBS.get(command, (command,)))


# Keywords of Python
# ------------------


def keywords_of(verb: str) -> dict[str, list[Option]]:
    """By keyword its rows; two are one switch and its values."""
    found: dict[str, list[Option]] = {}
    for row in rows_of(verb):
        if not row.shell:
            found.setdefault(row.name, []).append(row)
    return found


_TIME_LIMIT: Final = "time_limit"  # the command line's name of what a budget holds


def read(verb: str, given: Options, *, own: tuple[str, ...] = ("budget",)) -> dict[str, Any]:
    """The values of the options that were given, by keyword.

    Raises `InvalidInput` with the fault of every value, and for every keyword that the verb does
    not have the nearest one; `own` are parameters of the verb beside the table.
    """
    known = keywords_of(verb)
    faults = [_unknown(verb, name, [*known, *own]) for name in given if name not in known]
    values = {}
    for name, value in given.items():
        if name in known and value is not None:
            if hasattr(value, "tolist"):  # a number or an array of numpy
                value = value.tolist()
            try:
                values[name] = _row_for(known[name], value).value(value)
            except InvalidInput as error:
                faults += error.faults
    if faults:
        raise InvalidInput(faults)
    return values


def _row_for(rows: list[Option], value: object) -> Option:
    """Of a switch and its values: the one that the value is of."""
    return next((row for row in rows if row.reader.is_flag == isinstance(value, bool)), rows[0])


def _unknown(verb: str, name: str, offered: list[str]) -> Fault:
    hint = meant(name, offered)
    if name == _TIME_LIMIT and "budget" in offered:
        hint = "; give budget=Budget(time_limit_s=30)"
    return Fault(name, f"is no option of {verb}{hint}")


def verb(own: Verb) -> Verb:
    """Show the options of the table in the signature of a verb that takes them as `**options`."""
    own.__signature__ = signature_of(own)  # type: ignore[attr-defined]
    return own


def signature_of(own: Callable[..., Any]) -> Signature:
    """Its own parameters, and a keyword for every option."""
    from inspect import Parameter, signature

    mine = signature(own)
    before = [each for each in mine.parameters.values() if each.kind is not each.VAR_KEYWORD]
    keywords = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=rows[0].usual,
            annotation=_union(row.reader.annotation for row in rows),
        )
        for name, rows in keywords_of(own.__name__.replace("_", "")).items()
        if name not in mine.parameters
    ]
    return mine.replace(parameters=[*before, *keywords])


def _union(annotations: Iterable[str]) -> str:
    parts = dict.fromkeys(part for each in annotations for part in each.split(" | "))
    return " | ".join(sorted(parts, key=lambda part: part == "None"))


# Options of another kind of input are refused: a plan without them answers another question
# ------------------------------------------------------------------------------------------


def given_foreign(verb: str, kind: Kind, given: Options) -> tuple[Fault, ...]:
    """A fault for every option that was given and is not for an input of this kind."""
    faults = []
    for name, rows in keywords_of(verb).items():
        value = given.get(name)
        row = _row_for(rows, value)
        if kind in row.foreign and value not in (None, (), [], row.usual):
            whose, instead = row.foreign[kind]
            faults.append(Fault(row.flag, f"must be given for {whose} only; {instead}"))
    return tuple(faults)


def refuse_foreign(verb: str, kind: Kind, given: Options) -> None:
    """Raise `InvalidInput` with all faults of `given_foreign`."""
    if faults := given_foreign(verb, kind, given):
        raise InvalidInput(faults)


# Between options and the nouns that keep their values
# ----------------------------------------------------


@cache
def option_of(*verbs: str) -> Mapping[str, str]:
    """Names of nouns' fields, as options: what `naming_options` takes."""
    return {
        field: row.flag
        for row in reversed(rows_of(*verbs))
        for field in (*(path.partition(".")[2] or path for path in row.nouns), *row.also)
    }


def fields_given(verb: str, head: str, given: Options) -> dict[str, Any]:
    """Of a noun, by field, what the options say."""
    return {
        field: given[row.name]
        for row in rows_of(verb)
        for noun, _, field in (path.partition(".") for path in row.nouns)
        if noun == head and given.get(row.name) not in (None, (), [])
    }


def words_of(
    command: str, kept: Mapping[str, Any], *, usual: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """The options as words of a command that asks for what a document keeps, once more.

    `kept` are nouns by head; what is as in `usual`, of the same heads, need not be said.
    """
    for row in rows_of_command(command):
        for path in row.nouns:
            head, _, field = path.partition(".")
            if kept.get(head) is None:
                continue
            value = _field(kept[head], field)
            otherwise = _field((usual or {}).get(head), field, default=row.usual)
            if value not in (None, (), otherwise):
                yield from row.words(value, otherwise)
            break


def _field(noun: Any, name: str, *, default: Any = None) -> Any:
    """Of a noun, of a mapping, or of a type, whose defaults count; all of it without a name."""
    if noun is None or not name:
        return default if noun is None else noun
    if isinstance(noun, Mapping):
        return noun.get(name)
    if isinstance(noun, type):
        return next(each.default for each in fields(noun) if each.name == name)
    return getattr(noun, name)
