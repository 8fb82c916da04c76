"""Options that several commands share, declared once."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainwright.commands.output import parse_count
from trainwright.errors import Fault, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

Json = Annotated[bool, typer.Option("--json", help="Print the document as JSON, nothing else.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write the document to this file.")
]
Devices = Annotated[str | None, typer.Option("--devices", help="Number of devices.", metavar="N")]
Memory = Annotated[
    str | None,
    typer.Option("--memory", help="Memory per device, such as 80GiB.", metavar="SIZE"),
]
Bandwidth = Annotated[
    str | None,
    typer.Option(
        "--bandwidth", help="From each device to the others, such as 25GiB/s.", metavar="RATE"
    ),
]
Microbatches = Annotated[
    str | None,
    typer.Option("--microbatches", help="Microbatches per batch of a profile.", metavar="N"),
]
TimeUnit = Annotated[
    str | None,
    typer.Option(
        "--time-unit",
        help="Of the times in a Piper profile: s (if absent), ms, us.",
        metavar="UNIT",
    ),
]
Calibration = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        help="Fitted constants: a file of `calibrate`, or a line of `catalog calibrations`.",
        metavar="FILE",
    ),
]
TimeLimit = Annotated[
    str | None,
    typer.Option("--time-limit", help="Stop after this long, such as 30s.", metavar="TIME"),
]
Point = Annotated[
    str | None,
    typer.Option("--point", help="Which point of a profile with several (from 0).", metavar="N"),
]
Reserve = Annotated[
    str | None,
    typer.Option("--reserve", help="Memory to keep free; 0 if absent.", metavar="SIZE"),
]
Workspace = Annotated[
    str | None,
    typer.Option("--workspace", help="Memory of libraries; 64MiB if absent.", metavar="SIZE"),
]
Fragmentation = Annotated[
    str | None,
    typer.Option(
        "--fragmentation",
        help="What the allocator wastes, of the peak; 0.05 if absent.",
        metavar="X",
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        "--precision", help="bf16, fp16, fp8, fp32 or tf32; 16 bit if absent.", metavar="NAME"
    ),
]
Optimizer = Annotated[
    str | None,
    typer.Option(
        "--optimizer", help="adam, momentum, muon or sgd; adam if absent.", metavar="NAME"
    ),
]
GradientDtype = Annotated[
    str | None,
    typer.Option("--gradient-dtype", help="Of gradients; fp32 if absent.", metavar="DTYPE"),
]
MainWeightDtype = Annotated[
    str | None,
    typer.Option(
        "--main-weight-dtype",
        help="Of the optimizer's weights, or none; fp32 beside 16-bit weights if absent.",
        metavar="DTYPE",
    ),
]
MomentDtype = Annotated[
    list[str] | None,
    typer.Option(
        "--moment-dtype",
        help="Of the optimizer's moments, once or once each; fp32 if absent.",
        metavar="DTYPE",
    ),
]
Dropout = Annotated[
    str | None, typer.Option("--dropout", help="Rate; the model's own if absent.", metavar="SHARE")
]
ContextExchange = Annotated[
    str | None,
    typer.Option(
        "--context-exchange",
        help="ring, all_gather or all_to_all; ring if absent.",
        metavar="NAME",
    ),
]
ExpertImbalance = Annotated[
    str | None,
    typer.Option(
        "--expert-imbalance",
        help="Load of the heaviest experts over the mean; 1 if absent.",
        metavar="X",
    ),
]
CapacityFactor = Annotated[
    str | None,
    typer.Option(
        "--capacity-factor", help="Pad and drop to this share of the mean load.", metavar="X"
    ),
]
Overlap = Annotated[
    list[str] | None,
    typer.Option(
        "--overlap",
        help="KIND=SHARE (repeatable): of gradients or parameters (0.9 if absent), tensor or "
        "experts (0), pipeline (1).",
        metavar="KIND=SHARE",
    ),
]
DispatchDtype = Annotated[
    str | None,
    typer.Option(
        "--dispatch-dtype",
        help="Of tokens on their way to experts: fp8, bf16, fp16 or fp32; that of activations if "
        "absent.",
        metavar="DTYPE",
    ),
]
TokenDispatcher = Annotated[
    str | None,
    typer.Option(
        "--token-dispatcher",
        help="all_to_all (a copy per expert; if absent) or hierarchical (a copy per node, passed "
        "on inside).",
        metavar="NAME",
    ),
]
Source = Annotated[
    tuple[str, Path] | None,
    typer.Option(
        "--from",
        help="An existing job's file and its format, as megatron (docs/jobs.md lists them).",
        metavar="FORMAT FILE",
    ),
]
Argument = Annotated[
    list[str] | None,
    typer.Option(
        "--argument", help="Of the job's script, one after another (repeatable).", metavar="VALUE"
    ),
]
Variable = Annotated[
    list[str] | None,
    typer.Option("--variable", help="Of the job's environment (repeatable).", metavar="NAME=VALUE"),
]
VocabularySize = Annotated[
    str | None,
    typer.Option(
        "--vocab-size", help="The vocabulary that the job's tokenizer decides.", metavar="N"
    ),
]
Function = Annotated[
    str | None,
    typer.Option("--function", help="Which function of a Python registry.", metavar="NAME"),
]


def variables(given: Sequence[str] | None) -> dict[str, str]:
    """The variables of `NAME=VALUE`; raises `InvalidInput` for what has no such form."""
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (equals and name.isidentifier()):
            raise InvalidInput.of("variable", f'must be NAME=VALUE, got "{text}"')
        found[name] = value
    return found


# Numbers and lists of them, as options: 1,2,4 or 32GiB,80GiB
# -----------------------------------------------------------


def texts(given: str | None) -> tuple[str, ...] | None:
    """The parts between commas."""
    return None if given is None else tuple(p.strip() for p in given.split(",") if p.strip())


def counts(given: str | None, name: str) -> tuple[int, ...] | None:
    """Whole numbers >= 1."""
    parts = texts(given)
    return None if parts is None else tuple(parse_count(part, name) or 1 for part in parts)


def numbers(given: str | None, name: str) -> tuple[float, ...] | None:
    """Finite numbers >= 0."""
    parts = texts(given)
    return None if parts is None else tuple(number(part, name) or 0.0 for part in parts)


def number(given: str | None, name: str) -> float | None:
    """One finite number >= 0."""
    if given is None:
        return None
    try:
        value = float(given)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise InvalidInput.of(name, f'must be a finite number >= 0, got "{given}"')
    return value


def any_number(given: str | None, name: str) -> float | None:
    """A number; what it may be is said where it is used."""
    if given is None:
        return None
    try:
        return float(given)
    except ValueError:
        raise InvalidInput.of(name, f'must be a number, got "{given}"') from None


def shares(given: Sequence[str] | None) -> dict[str, float] | None:
    """Of KIND=SHARE, repeated."""
    if not given:
        return None
    found = {}
    for text in given:
        kind, equals, share = text.partition("=")
        if not equals:
            raise InvalidInput.of("overlap", f'must be KIND=SHARE, got "{text}"')
        found[kind.strip()] = any_number(share, "overlap") or 0.0
    return found


# `--config FILE`: a TOML file whose keys are the command's own options
# ---------------------------------------------------------------------
# The command line wins over the file. Unknown keys are refused: an ignored option is a wrong plan.

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
