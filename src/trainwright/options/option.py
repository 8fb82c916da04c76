"""What an option is: a row of the table, and how its values are read, checked and printed back.

A reader takes what a command line, a TOML file or a Python caller gives. Text is read with its
unit; a value that is no text passes through where its type is right, and its range is judged by the
noun that it becomes a part of. Reading what was read already changes nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeAlias

from trainwright.errors import InvalidInput
from trainwright.options.clusters import read_software
from trainwright.units import (
    GIB,
    MIB,
    parse_bandwidth,
    parse_deadline,
    parse_duration,
    parse_memory,
)

Options: TypeAlias = Mapping[str, Any]  # values by keyword, of those that were given


class Kind(StrEnum):
    """What an option may be for."""

    MODEL = "a model"
    PROFILE = "a profile"
    PLACEMENT = "a placement problem"
    MEASURED = "a profile on a cluster"
    FLAT = "a profile without --cluster"


# Readers
# -------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How values of an option are written.

    `read` takes a value and the option's name, and raises `InvalidInput` naming it. `annotation` is
    the type that Python callers give. `words` are what follows the flag, once per repetition, in a
    command that asks for a value again; `usual` is the value that need not be asked for. `given` is
    what a flag without a value stands for; `both` says that `--no-FLAG` stands for its contrary.
    """

    read: Callable[[Any, str], Any]
    annotation: str
    metavar: str = "TEXT"
    words: Callable[[Any, Any], Iterable[str]] = lambda value, _: (str(value),)
    repeats: bool = False
    given: bool | None = None
    both: bool = False

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value."""
        return self.given is not None


def read_count(given: Any, name: str, *, least: int = 1) -> int:
    """A whole number ≥ `least`, also written as 8.0 or 1_024."""
    if not isinstance(given, str):
        is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
        if not is_number or not math.isfinite(given) or given != int(given):
            raise InvalidInput.of(name, f"must be a whole number, got {given!r}")
        return int(given)
    value = _float(given)
    if not least <= value < math.inf or value != int(value):
        problem = f'must be a whole number >= {least}, got "{given}"{_in_full(given)}'
        raise InvalidInput.of(name, problem)
    return int(value)


def _sizes(given: Any, name: str) -> Any:
    """A whole number, or text that stands for several."""
    return (
        given
        if isinstance(given, str) and ("," in given or ".." in given)
        else read_count(given, name)
    )


def _in_full(text: str) -> str:
    """What 8k may stand for, where the text is such a number."""
    if text[-1:].lower() != "k" or not text[:-1].isdecimal():
        return ""
    thousands = int(text[:-1])
    return f"; did you mean {thousands * 1024} or {thousands * 1000}?"


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _any_number(given: Any, name: str) -> float:
    """A number; what it may be is said where it is used."""
    try:
        return given if isinstance(given, (int, float)) else float(given)
    except (TypeError, ValueError):
        raise InvalidInput.of(name, f'must be a number, got "{given}"') from None


def _number(given: Any, name: str) -> float:
    """A finite number >= 0."""
    value = _float(given) if isinstance(given, str) else _any_number(given, name)
    if isinstance(given, str) and not 0 <= value < math.inf:
        raise InvalidInput.of(name, f'must be a finite number >= 0, got "{given}"')
    return value


def _positive(given: Any, name: str) -> float:
    """A finite number > 0, also written as 15e12."""
    value = _float(given) if isinstance(given, str) else _any_number(given, name)
    if isinstance(given, str) and not 0 < value < math.inf:
        raise InvalidInput.of(name, f'must be a number > 0, got "{given}"')
    return value


def _prices(given: Any, name: str) -> float | tuple[float, ...]:
    """A finite number > 0, or several."""
    parts = given.split(",") if isinstance(given, str) else given
    if isinstance(parts, list | tuple) and len(parts) > 1:
        return tuple(_positive(part, name) for part in parts)
    return _positive(parts[0] if isinstance(parts, list | tuple) and parts else parts, name)


_TOKENS_OF: Final = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def _tokens(given: Any, name: str) -> float:
    """A finite number > 0, also written as 15e12, or with K, M, B or T, as 15T."""
    if not isinstance(given, str):
        return _any_number(given, name)
    factor = _TOKENS_OF.get(given[-1:].upper(), 1.0)
    value = _float(given[:-1] if factor > 1 else given) * factor
    if not 0 < value < math.inf:
        raise InvalidInput.of(name, f'must be a number > 0, such as 15e12 or 15T, got "{given}"')
    return value


def _share(given: Any, name: str) -> Any:
    """A number >= 0, or percent of it, as 5%."""
    if not isinstance(given, str):
        return given
    value = _float(given.removesuffix("%"))
    if not 0 <= value < math.inf:
        raise InvalidInput.of(name, f'must be a number >= 0, such as 0.05 or 5%, got "{given}"')
    return value / 100 if given.endswith("%") else value


def _pairs(
    given: Any, name: str, form: str, is_key: Callable[[str], bool] = lambda key: True
) -> Iterator[tuple[str, str]]:
    """What stands before and after the `=` of each text."""
    for text in (given,) if isinstance(given, str) else given:
        key, equals, value = text.partition("=")
        if not (equals and is_key(key)):
            raise InvalidInput.of(name, f'must be {form}, got "{text}"')
        yield key, value


def _shares(given: Any, name: str) -> Mapping[str, float]:
    """Of KIND=SHARE, repeated, or as a mapping."""
    if isinstance(given, Mapping):
        return given
    pairs = _pairs(given, name, "KIND=SHARE")
    return {kind.strip(): _any_number(share, name) for kind, share in pairs}


def _variables(given: Any, name: str) -> Mapping[str, str]:
    """Of NAME=VALUE, repeated, or as a mapping."""
    if isinstance(given, Mapping):
        return given
    return dict(_pairs(given, name, "NAME=VALUE", str.isidentifier))


def _figures(given: Any, name: str) -> Mapping[str, Any]:
    """Of TABLE.NAME=VALUE with values as TOML writes them, repeated, or as a mapping."""
    import tomllib

    if isinstance(given, Mapping):
        return given
    found: dict[str, Any] = {}
    for text in (given,) if isinstance(given, str) else given:
        key, equals, value = text.partition("=")
        if not (equals and key.strip() and value.strip()):
            raise InvalidInput.of(name, f'must be NAME=VALUE, as die.wafer_cost=9000, got "{text}"')
        try:
            found[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except (tomllib.TOMLDecodeError, RecursionError):
            found[key.strip()] = value.strip()  # a name, as process=5nm
    return found


def _figure_words(value: Any, _: Any) -> Iterator[str]:
    """Each figure as it may be given again."""
    for key, figure in value.items():
        yield f"{key}={figure if not isinstance(figure, tuple) else list(figure)}"


def _sweeps(given: Any, name: str) -> Mapping[str, tuple[Any, ...]]:
    """Of OPTION=VALUE,VALUE, repeated, or as a mapping from keywords to values."""
    asked: dict[str, Any] = {}
    if isinstance(given, Mapping):
        asked |= given
    else:
        for option, values in _pairs(given, name, "OPTION=VALUE,VALUE"):
            asked[option.strip().removeprefix("--").replace("-", "_")] = texts(values, name)
    for option, values in asked.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise InvalidInput.of(name, f"must have a list of values of {option}, got {values!r}")
        asked[option] = tuple(values)
        if not asked[option]:
            raise InvalidInput.of(name, f"must have a value of {option}, got none")
    return asked


def _sweep_words(value: Any, _: Any) -> Iterator[str]:
    """Each option with its values, as text."""
    for option, values in value:
        yield f"{option.replace('_', '-')}={','.join(map(str, values))}"


def _share_words(value: Any, usual: Any) -> Iterator[str]:
    """The fields of a noun of shares that are not as usual."""
    for each in fields(value):
        share = getattr(value, each.name)
        if share != getattr(usual, each.name, None):
            yield f"{each.name}={share!r}"


def _quantity(given: Any, name: str, unit: str) -> Any:
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise InvalidInput.of(
            name, f"must be a number of {unit}, or text with a unit, got {given!r}"
        )
    return given


LARGEST_MEMORY_BYTES: Final = 2.0**50  # thousands of times what a device has


def _memory(given: Any, name: str) -> Any:
    if isinstance(given, str):
        is_nothing = given.strip() == "0"  # in any unit
        size = 0.0 if is_nothing else parse_memory(given, name=name)
    else:
        size = _quantity(given, name, "bytes")
    if size > LARGEST_MEMORY_BYTES:
        raise InvalidInput.of(name, f"must be at most 1PiB, as no device has more, got {given!r}")
    return size


def _kept(given: Any, name: str) -> Any:
    """Memory that is kept free, which may be none."""
    if isinstance(given, str) and given.strip().startswith("-"):
        raise InvalidInput.of(name, f'must be >= 0, as 2GiB, got "{given}"')
    return _memory(given, name)


def _rate(given: Any, name: str) -> Any:
    if isinstance(given, str):
        return parse_bandwidth(given, name=name)
    return _quantity(given, name, "bytes per second")


def _time(given: Any, name: str) -> Any:
    return parse_duration(given, name=name) if isinstance(given, str) else given


def _deadline(given: Any, name: str) -> Any:
    return parse_deadline(given, name=name) if isinstance(given, str) else given


def _limit(given: Any, name: str) -> float:
    """Seconds > 0, written with or without a unit."""
    is_negative = isinstance(given, str) and given.strip().startswith("-")
    limit_s = _time(given.strip()[1:], name) if is_negative else _time(given, name)
    if is_negative or limit_s <= 0:
        raise InvalidInput.of(name, f'must be > 0, such as 30s or 5min, got "{given}"')
    return float(limit_s)


def _as_it_is(given: Any, name: str) -> Any:
    return given


def texts(given: Any, name: str) -> Any:
    """The parts between commas."""
    if isinstance(given, str):
        return tuple(part.strip() for part in given.split(",") if part.strip())
    return given


def _each(read: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    def of_list(given: Any, name: str) -> Any:
        if isinstance(given, str):
            return tuple(read(part, name) for part in texts(given, name))
        return given

    return of_list


def _one_or_several(given: Any, name: str) -> Any:
    """A text is one, not its letters."""
    return (given,) if isinstance(given, str) else given


def _listed(given: Any) -> Iterable[Any]:
    """What stands between the commas of a text; a lone number is a list of one."""
    if isinstance(given, int | float):
        return [given]
    parts: Iterable[Any] = given.split(",") if isinstance(given, str) else given
    return parts


def _blocks(given: Any, name: str) -> Any:
    """Counts of which an empty one is a fault, too."""
    parts = _listed(given)
    return [read_count(part, name, least=0) for part in parts]


def _joined(value: Any, _: Any) -> tuple[str, ...]:
    return (",".join(map(str, value)),)


def _own_repr(value: Any, _: Any) -> tuple[str, ...]:
    return (repr(value),)


def _quantity_words(
    units: Mapping[str, float], value: Any, *, bare_from: float = 0.0
) -> tuple[str, ...]:
    """A whole number of the largest of `units` that divides it, else of the base unit.

    Each reads back as exactly the same float. The base unit comes last; below `bare_from` it has to
    be written, as a bare number would be refused.
    """
    if isinstance(value, str):
        return (value,)
    *larger, (base, _) = units.items()
    if value and float(value).is_integer():
        for unit, factor in larger:
            if value % factor == 0 and float(value / factor) * factor == value:
                return (f"{int(value / factor)}{unit}",)
    number = str(int(value)) if float(value).is_integer() else repr(value)
    return (number if value == 0 or abs(value) >= bare_from else f"{number}{base}",)


def _size_words(value: Any, _: Any) -> tuple[str, ...]:
    return _quantity_words({"GiB": GIB, "MiB": MIB, "B": 1.0}, value, bare_from=MIB)


def _rate_words(value: Any, _: Any) -> tuple[str, ...]:
    return _quantity_words({"GB/s": 1e9, "MB/s": 1e6, "B/s": 1.0}, value)


def _price_words(value: Any, _: Any) -> tuple[str, ...]:
    return (",".join(map(repr, value)) if isinstance(value, tuple) else repr(value),)


def _loads(given: Any, name: str) -> tuple[float, ...]:
    """Numbers, or the name of a way to keep loads even."""
    from trainwright.model.recipe import BALANCES

    if isinstance(given, str) and given in BALANCES:
        return (BALANCES[given],)
    parts = _listed(given)
    try:
        return tuple(float(part) for part in parts)
    except (TypeError, ValueError):
        wanted = f"must be numbers with commas between, or one of {', '.join(BALANCES)}"
        raise InvalidInput.of(name, f'{wanted}, got "{given}"') from None


def _list(value: Any, _: Any) -> tuple[str, ...]:
    return tuple(map(str, value))


def _span_words(value: Any, _: Any) -> tuple[str, ...]:
    """As a range of degrees is written."""
    if value.most == value.least:
        return (str(value.least),)
    return (f"{value.least}..{'' if value.most is None else value.most}",)


def _mapping_words(value: Any, _: Any) -> tuple[str, ...]:
    """An order of axes, or several, by name."""
    from trainwright.plans.plan import mapping_name

    orders = (value,) if isinstance(value[0], str) else value
    return (",".join(map(mapping_name, orders)),)


def _seconds_words(value: Any, _: Any) -> tuple[str, ...]:
    return (f"{value!r}s",)  # bare, a short one is a slip


def _named(kind: str) -> Reader:
    return Reader(read=_as_it_is, annotation="str | None", metavar=kind)


TEXT: Final = _named("TEXT")
NAME: Final = _named("NAME")
NAME_OR_CALL: Final = replace(NAME, annotation="str | Callable[..., Any] | None")
SOFTWARE: Final = replace(NAME, read=read_software)
DTYPE: Final = _named("DTYPE")
FILE: Final = Reader(read=_as_it_is, annotation="str | Path | None", metavar="FILE")
PATH: Final = Reader(
    read=lambda given, _: Path(given), annotation="str | Path | None", metavar="PATH"
)
CLUSTER: Final = Reader(read=_as_it_is, annotation="str | Path | Cluster | None")
COUNT: Final = Reader(read=read_count, annotation="int | None", metavar="N")
SIZES: Final = Reader(read=_sizes, annotation="int | None", metavar="N")
COUNT_OR_NONE: Final = Reader(
    read=lambda given, name: read_count(given, name, least=0), annotation="int | None", metavar="N"
)
COUNTS: Final = Reader(
    read=_each(read_count), annotation="Sequence[int] | None", metavar="VALUE,...", words=_joined
)
BLOCKS: Final = Reader(
    read=_blocks, annotation="Sequence[int] | None", metavar="LIST", words=_joined
)
DEGREE: Final = Reader(
    read=_as_it_is, annotation="str | int | None", metavar="N|A..B", words=_span_words
)
NUMBER: Final = Reader(read=_any_number, annotation="float | None", metavar="X", words=_own_repr)
AMOUNT: Final = Reader(read=_number, annotation="float | None", metavar="X", words=_own_repr)
POSITIVE: Final = Reader(read=_positive, annotation="float | None", metavar="X", words=_own_repr)
PRICES: Final = Reader(
    read=_prices, annotation="float | Sequence[float] | None", metavar="X", words=_price_words
)
AMOUNTS: Final = Reader(
    read=_each(_number), annotation="Sequence[float] | None", metavar="VALUE,...", words=_joined
)
TOKENS: Final = Reader(read=_tokens, annotation="float | None", metavar="N", words=_own_repr)
SHARE: Final = Reader(read=_share, annotation="float | None", metavar="X", words=_own_repr)
SHARES: Final = Reader(
    read=_shares,
    annotation="Mapping[str, float] | None",
    metavar="KIND=SHARE",
    words=_share_words,
    repeats=True,
)
SIZE: Final = Reader(
    read=_memory, annotation="str | float | None", metavar="SIZE", words=_size_words
)
KEPT: Final = replace(SIZE, read=_kept)
RATE: Final = Reader(read=_rate, annotation="str | float | None", metavar="RATE", words=_rate_words)
TIME: Final = Reader(read=_time, annotation="str | float | None", metavar="TIME", words=_own_repr)
DEADLINE: Final = Reader(
    read=_deadline, annotation="str | float | None", metavar="TIME", words=_seconds_words
)
LIMIT: Final = Reader(read=_limit, annotation="str | float | None", metavar="TIME")
NAMES: Final = Reader(
    read=_as_it_is, annotation="str | Iterable[str] | None", metavar="NAMES", words=_joined
)
ORDER: Final = Reader(
    read=_as_it_is, annotation="str | None", metavar="ORDER", words=_mapping_words
)
ORDERS: Final = Reader(
    read=_as_it_is,
    annotation="str | Iterable[str] | None",
    metavar="ORDERS",
    words=_mapping_words,
)
LOADS: Final = Reader(
    read=_loads, annotation="Sequence[float] | str | None", metavar="LIST", words=_joined
)
LIST: Final = Reader(
    read=texts, annotation="Sequence[str] | None", metavar="VALUE,...", words=_joined
)
QUANTITIES: Final = replace(LIST, annotation="Sequence[str | float] | str | float | None")
EACH: Final = Reader(
    read=_one_or_several,
    annotation="str | Sequence[str] | None",
    metavar="TEXT",
    words=_list,
    repeats=True,
)
SWEEPS: Final = Reader(
    read=_sweeps,
    annotation="Mapping[str, Iterable[Any]] | None",
    metavar="OPTION=V,V",
    words=_sweep_words,
    repeats=True,
)
VARIABLES: Final = Reader(
    read=_variables,
    annotation="Mapping[str, str] | None",
    metavar="NAME=VALUE",
    repeats=True,
)
FIGURES: Final = Reader(
    read=_figures,
    annotation="Mapping[str, Any] | None",
    metavar="NAME=VALUE",
    words=_figure_words,
    repeats=True,
)
ON: Final = Reader(read=_as_it_is, annotation="bool", words=lambda *_: (), given=True)
OFF: Final = Reader(read=_as_it_is, annotation="bool", words=lambda *_: (), given=False)
SWITCH: Final = Reader(
    read=_as_it_is, annotation="bool | None", words=lambda *_: (), given=True, both=True
)


# Options
# -------


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A row of the table: everything there is to say of an option.

    `commands` are the verbs that take it; `keyword` is its name in Python, the flag's where that is
    empty; `shell` says that it is one of the command line alone. `default` is what a command line
    takes where it is absent, printed in its help. `nouns` are where its value is kept, as
    HEAD.FIELD or HEAD alone, in what a document is about (the first that is there): its record, and
    the field whose faults are told under the option's name; `also` are further fields of such
    faults. `foreign` are the kinds of input that it is refused for: whose it is, and what to do
    instead.
    """

    flag: str
    reader: Reader
    help: str
    commands: tuple[str, ...]
    group: str = ""
    keyword: str = ""
    metavar: str = ""
    default: str | None = None
    short: str = ""
    required: bool = False
    shell: bool = False
    nouns: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    foreign: Mapping[Kind, tuple[Kind, str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The keyword."""
        return self.keyword or self.flag.replace("-", "_")

    @property
    def usual(self) -> object:
        """What a keyword that is not given stands for, and that means nothing where it is given."""
        if self.reader.is_flag and not self.reader.both:
            return not self.reader.given
        return self.default

    def value(self, given: Any) -> Any:
        """What was given, read; raises `InvalidInput` under the flag's name."""
        annotation = self.reader.annotation
        if _is_of(annotation, given):
            return self.reader.read(given, self.flag)
        with suppress(AttributeError, TypeError, ValueError):
            self.reader.read(given, self.flag)  # its own words, where it has any
        wanted = annotation.removesuffix(" | None")
        raise InvalidInput.of(self.flag, f"must be {wanted}, got {given!r}")

    def words(self, value: Any, usual: Any) -> Iterator[str]:
        """As a command line asks for the value again."""
        flag = f"--{self.flag}"
        if self.reader.is_flag:
            yield f"--no-{self.flag}" if self.reader.both and not value else flag
        for word in self.reader.words(value, usual):
            yield from (flag, word)


def _is_of(annotation: str, given: Any) -> bool:
    """Whether a value is of the sort that Python callers give, or text, which is read.

    Text stands for anything but a switch; a list of text is what a command line repeats.
    """
    words = set(re.findall(r"\w+", annotation))
    if isinstance(given, int | float):
        is_number = "Mapping" not in words and not words.isdisjoint(("int", "float"))
        return is_number or ("bool" in words and given in (0, 1))
    if isinstance(given, str | PathLike):
        return words != {"bool"} and words != {"bool", "None"}
    if isinstance(given, Mapping):
        return "Mapping" in words
    if isinstance(given, bytes | bytearray) or not isinstance(given, Iterable):
        is_noun = type(given).__module__.startswith("trainwright.")
        return is_noun or ("Callable" in words and callable(given))
    if words.isdisjoint(("Sequence", "Iterable", "Mapping", "tuple")):
        return False
    are_text = "Mapping" in words or words.isdisjoint(("int", "float"))
    parts = (str, PathLike, tuple) if are_text else (str, int, float)
    return not isinstance(given, Collection) or all(isinstance(each, parts) for each in given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """What stands after the command without a flag."""

    name: str
    help: str
    metavar: str = ""
    required: bool = True
    many: bool = False


def row(flag: str, reader: Reader, text: str, at: str = "", **settings: Any) -> dict[str, Any]:
    """An option without what its section says; `at` are the nouns that keep its value."""
    return {"flag": flag, "reader": reader, "help": text, "nouns": at, **settings}


def section(group: str, commands: str, *rows: dict[str, Any], **common: Any) -> list[Option]:
    """Rows of one group and, if they do not say otherwise, of the same commands."""
    made = []
    for each in rows:
        settings = {"commands": commands, **common, **each, "group": group}
        for name in ("commands", "nouns", "also"):
            settings[name] = tuple(settings.get(name, "").split())
        made.append(Option(**settings))
    return made
