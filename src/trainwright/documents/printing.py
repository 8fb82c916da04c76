"""The degrees of a plan, as a line and as columns that several tables share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from trainwright.documents.registry import kind_of, part
from trainwright.documents.view import (
    Column,
    Folded,
    Line,
    Table,
    column,
    to_html,
    to_terminal,
    words,
)
from trainwright.errors import (
    Fault,
    Inexpressible,
    Infeasible,
    InvalidInput,
    TrainwrightError,
    UnsupportedFeature,
)
from trainwright.formats.atomic_file import write_text
from trainwright.formats.document_json import encode
from trainwright.plans.plan import DATA_INSIDE, FORMAT_VERSION, Parallelism, mapping_name

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trainwright.documents.model_plan import Alternative

# Small pieces every table shares: plain tables, ranges of ids, rendering to text
# -------------------------------------------------------------------------------

TEXT_WIDTH = 120


def to_text(renderable: RenderableType, *, width: int = TEXT_WIDTH) -> str:
    """Render without colour; trailing blanks are cut."""
    from rich.console import Console

    out = StringIO()
    Console(file=out, width=width, color_system=None, highlight=False).print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n") + "\n"


def no_plan(status: object) -> InvalidInput:
    """Why a document without a plan is not taken."""
    return InvalidInput.of("document", f'holds no plan: its status is "{status}"')


def counted(count: int, noun: str) -> str:
    """A count with its noun: 1 stage, 2 stages."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def ranges(ids: Iterable[int]) -> str:
    """Ids as ranges: 0-3, 7, 9-11. Runs of two stay two numbers."""
    runs: list[list[int]] = []
    for value in sorted(ids):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(
        str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in runs
    )


# The degrees of a plan, as a line and as columns that several tables share
# -------------------------------------------------------------------------

# (header, shown also where every plan of a table has degree 1, or the usual order)
_DEGREES: Final = (
    ("tp", True),
    ("pp", True),
    ("v", False),
    ("dp", True),
    ("cp", False),
    ("ep", False),
    ("etp", False),
    ("zero", True),
    ("copies", False),
    ("order", False),
)


def layout_line(degrees: Parallelism) -> str:
    """The degrees above one in words."""
    sequence = " + sequence parallel" if degrees.sequence_parallel else ""
    virtual = f" x {degrees.virtual_stages} virtual" if degrees.virtual_stages > 1 else ""
    parts = [
        f"tensor {degrees.tensor}{sequence}",
        f"pipeline {degrees.pipeline}{virtual}",
        f"data {degrees.data}",
    ]
    if degrees.context > 1:
        parts.append(f"context {degrees.context}")
    if degrees.expert > 1:
        shards = degrees.expert_shards
        cut = "each whole" if shards == 1 else f"each cut {shards} ways"
        parts.append(f"expert {degrees.expert} ({cut})")
    return f"{' x '.join(parts)}, {sharding_words(degrees)}"


def sharding_words(degrees: Parallelism) -> str:
    """The ZeRO stage, and copies and the order of ranks where they are not the usual ones."""
    words = f"ZeRO-{degrees.zero_stage}"
    if degrees.state_copies > 1:
        words += f" in {degrees.state_copies} copies"
    if degrees.axis_order != DATA_INSIDE:
        words += f", ranks in the order {mapping_name(degrees.axis_order)}"
    return words


def layout_columns(plans: Sequence[Parallelism | None]) -> tuple[Column, ...]:
    """The layout in words on a page, in a terminal the degrees that one of the plans uses."""
    return (words("layout", on="page"), *(column(name, on="terminal") for name in _shown(plans)))


def layout_cells(
    degrees: Parallelism | None, plans: Sequence[Parallelism | None], *, absent: str = ""
) -> tuple[str, ...]:
    """One plan's degrees under `layout_columns`; `absent` where stages differ or nothing fits."""
    if degrees is None:
        return (absent, *("" for _ in _shown(plans)))
    values = _values(degrees)
    return (layout_line(degrees), *(values[name] for name in _shown(plans)))


def _shown(plans: Sequence[Parallelism | None]) -> list[str]:
    used = [_values(degrees) for degrees in plans if degrees is not None]
    special = {name for each in used for name, value in each.items() if value != _PLAIN[name]}
    return [name for name, always in _DEGREES if always or name in special]


_PLAIN: Final = dict.fromkeys((name for name, _ in _DEGREES), "1") | {"order": "dp-pp"}


def _values(degrees: Parallelism) -> dict[str, str]:
    numbers = {
        "tp": degrees.tensor,
        "pp": degrees.pipeline,
        "v": degrees.virtual_stages,
        "dp": degrees.data,
        "cp": degrees.context,
        "ep": degrees.expert,
        "etp": degrees.expert_shards if degrees.expert > 1 else 1,
        "zero": degrees.zero_stage,
        "copies": degrees.state_copies,
    }
    outer = mapping_name(degrees.axis_order).split("-")[-2:]
    return {name: str(number) for name, number in numbers.items()} | {"order": "-".join(outer)}


# What a runner-up loses against the plan, without the rounding errors of sums
# ----------------------------------------------------------------------------

NEGLIGIBLE: Final = 5e-4  # of the step: not worth a word


def main_losses(other: Alternative) -> tuple[tuple[str, float], ...]:
    """The one or two parts of the step in which it loses most, in seconds, largest first."""
    worst = sorted((other.lost_s or {}).items(), key=lambda part: -part[1])[:2]
    return tuple(
        (name, lost_s) for name, lost_s in worst if lost_s > 0 and is_noticed(lost_s, other)
    )


def is_noticed(changed_s: float, other: Alternative) -> bool:
    """Whether a change is more than a negligible part of the step."""
    return abs(changed_s) >= NEGLIGIBLE * other.step_time_s


def render(document: object, *, verbose: bool = False) -> RenderableType:
    """What the terminal shows of a document; raises `TypeError` for what is none."""
    found = _viewed(document)
    if isinstance(found, tuple):
        return to_terminal(found, verbose=verbose)
    shown: RenderableType = found
    return shown


def _viewed(document: object) -> Any:
    """Its lines and tables as a tuple, or what is drawn in their place."""
    found = part(kind_of(document).view)(document)
    return tuple(found) if isinstance(found, Iterable) else found


# A document that prints and saves itself: what every call returns
# ----------------------------------------------------------------

Document = TypeVar("Document")


@dataclass(frozen=True, slots=True, repr=False)
class Report(Generic[Document]):
    """A document and its table."""

    document: Document

    def renderable(self, *, verbose: bool = False) -> RenderableType:
        """The table, for a rich console; `verbose` shows what is folded behind a line."""
        return render(self.document, verbose=verbose)

    def explain(self, *, verbose: bool = False, width: int = TEXT_WIDTH) -> str:
        """The table as plain text of `width` columns; `verbose` shows what is folded."""
        return to_text(self.renderable(verbose=verbose), width=width)

    def to_dict(self) -> dict[str, Any]:
        """The document as JSON values."""
        return encode(self.document)

    def to_json(self) -> str:
        """The document as JSON text, one line."""
        return json.dumps(self.to_dict(), allow_nan=False) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the document; nothing is left behind where that fails."""
        write_text(path, self.to_json())

    def to_dataframe(self, table: str | None = None) -> Any:
        """One of the document's tables as a `pandas.DataFrame`: a row for each stage, say.

        `table` is the title of one, by default that with most columns, of a sweep that of its rows;
        a document without any gives an empty frame. Columns are named as in copied CSV, with their
        units; numbers are in SI units to full precision.
        Raises `InvalidInput` for an unknown title, naming those there are, and `UnsupportedFeature`
        without pandas.

        >>> trainwright.plan("gpt2", cluster="dgx-h100", ...).to_dataframe()  # doctest: +SKIP
        """
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise UnsupportedFeature(
                "to_dataframe needs pandas", alternative="install it with: pip install pandas"
            ) from None
        tables = [each for each in self._lines() if isinstance(each, Table)]
        if table is None and not tables:
            return pandas.DataFrame()
        wanted = [each for each in tables if table in (each.title, None)]
        if not wanted:
            titles = ", ".join(f'"{each.title}"' for each in tables) or "none, as it has no table"
            raise InvalidInput.of("table", f'must be one of {titles}, got "{table}"')
        shown = self._main([each.on("page") for each in wanted])
        names = [each.key or str(at) for at, each in enumerate(shown.columns)]
        return pandas.DataFrame([[cell.value for cell in row] for row in shown.rows], columns=names)

    def _main(self, tables: Sequence[Table]) -> Table:
        """The table that is meant where none is named: that with most columns that have names."""
        return max(tables, key=lambda each: sum(bool(column.key) for column in each.columns))

    def _lines(self) -> Iterator[Line]:
        """Lines and tables, what is folded among them."""
        found = _viewed(self.document)
        for each in found if isinstance(found, tuple) else ():
            yield from each.full if isinstance(each, Folded) else (each,)

    def __getattr__(self, name: str) -> Any:
        """Every figure of the document under its own name: `result.step_time_s`."""
        if name.startswith("_") or name == "document":
            raise AttributeError(name)
        try:
            return getattr(self.document, name)
        except AttributeError:
            kind = type(self.document).__name__
            raise AttributeError(f"neither the result nor its {kind} has {name!r}") from None

    def __dir__(self) -> Iterable[str]:
        return sorted({*object.__dir__(self), *filter(_is_public, dir(self.document))})

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._in_brief()}>"

    def _in_brief(self) -> str:
        """What it is of, with its first figure."""
        return self.explain(width=200).partition("\n")[0]

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        found = _viewed(self.document)
        if isinstance(found, tuple):
            return to_html(found)
        from html import escape  # start-up

        return f"<pre>{escape(self.explain())}</pre>"

    def __str__(self) -> str:
        return self.explain()


def _is_public(name: str) -> bool:
    return not name.startswith("_")


# A refusal as a document: what `--json` prints where a command ends without a result
# -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRecord:
    """A broken rule: the field or option, what it must be and what was found, how to mend it."""

    field: str
    rule: str
    fix: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalResult:
    """Why there is no result; `error` is the class of the error in Python.

    `exit_code` is that of the command. `source` is the file with the faults, `fixes` are what would
    do instead, where that is known.
    """

    kind: str = "refusal"
    format_version: int = FORMAT_VERSION
    exit_code: int
    error: str
    message: str
    source: str | None = None
    faults: tuple[FaultRecord, ...] = ()
    fixes: tuple[str, ...] = ()


def refusal_of(error: TrainwrightError) -> RefusalResult:
    """The document of an error that ended a command."""
    faults: tuple[Fault, ...] = ()
    fixes: tuple[str, ...] = ()
    if isinstance(error, InvalidInput | Inexpressible):
        faults = error.faults
    if isinstance(error, UnsupportedFeature) and error.alternative is not None:
        fixes = (error.alternative,)
    elif isinstance(error, Infeasible):
        fixes = error.fixes
    return RefusalResult(
        exit_code=error.exit_code,
        error=type(error).__name__,
        message=str(error),
        source=error.source if isinstance(error, InvalidInput) else None,
        faults=tuple(_records(faults)),
        fixes=fixes,
    )


def _records(faults: Iterable[Fault]) -> Iterator[FaultRecord]:
    """A problem names the rule and the value first, then, after a semicolon, the fix."""
    for fault in faults:
        rule, _, fix = fault.problem.partition("; ")
        yield FaultRecord(field=fault.path, rule=rule, fix=fix or None)


def refusal_view(document: RefusalResult) -> Iterator[str]:
    """The message."""
    yield document.message
