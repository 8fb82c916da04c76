"""The document of `calibrate`: fitted constants, and how the fits did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from trainwright.cluster.calibration import Calibration
from trainwright.documents.view import add_row, table
from trainwright.plans.request import FORMAT_VERSION
from trainwright.provenance import UNSTATED, Origin
from trainwright.units import format_bandwidth, format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from trainwright.cluster import Accelerator, Cluster, NetworkLevel
    from trainwright.provenance import Provenance

    Row = tuple[str, float | tuple[float, float], str, Provenance]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRecord:
    """Mean relative error of one line's runs, in the fit and (where there are several) unseen."""

    accelerator: str
    line: str
    rows: int
    mape: float
    unseen_mape: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationResult:
    """One calibration per accelerator and software line."""

    kind: str = "calibration"
    format_version: int = FORMAT_VERSION
    calibrations: tuple[Calibration, ...]
    fits: tuple[FitRecord, ...]
    warnings: tuple[str, ...] = ()


# The document of `explain --constants`: what a cluster is known by, and where from
# ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConstant:
    """A constant `of` a device or network level: `value` in SI units or a share, `text` as printed.

    A range has a `high_value`, too.
    """

    of: str
    constant: str
    value: float
    high_value: float | None = None
    text: str
    origin: Origin
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantsResult:
    """Every constant of a document's cluster, device by device and level by level."""

    kind: str = "constants"
    format_version: int = FORMAT_VERSION
    cluster: str
    constants: tuple[ClusterConstant, ...]


# Fitted constants as tables: value, 90 % interval, and how far predictions with them miss
# ----------------------------------------------------------------------------------------


def calibration_report(found: CalibrationResult) -> RenderableType:
    """One table of constants for all lines, one of errors."""
    from rich.console import Group
    from rich.text import Text

    columns = (
        ("accelerator", "left"),
        ("software", "left"),
        ("constant", "left"),
        ("value", "right"),
        ("low", "right"),
        ("high", "right"),
    )
    constants = table("constants, with 90 % intervals", columns)
    for made in found.calibrations:
        head = (made.accelerator, made.line)
        for constant in made.constants:
            figures = (constant.value, constant.low, constant.high)
            add_row(constants, *head, constant.name, *(f"{value:.4g}" for value in figures))
            head = ("", "")
    errors = table(
        "errors of the fit",
        (
            ("accelerator", "left"),
            ("software", "left"),
            ("rows", "right"),
            ("mean", "right"),
            ("mean, unseen", "right"),
            ("9 of 10 steps within", "right"),
        ),
    )
    for made, fit in zip(found.calibrations, found.fits, strict=True):
        unseen = "" if fit.unseen_mape is None else f"{fit.unseen_mape:.1%}"
        spread = f"{made.low_ratio:.2f} to {made.high_ratio:.2f}"
        add_row(errors, fit.accelerator, fit.line, str(fit.rows), f"{fit.mape:.1%}", unseen, spread)
    return Group(constants, errors, *(Text(f"warning: {line}") for line in found.warnings))


# Every constant of a cluster with where it is known from, as a table
# -------------------------------------------------------------------

# Key of a column → its title.
CONSTANT_COLUMNS: Final = {
    "of": "of",
    "constant": "constant",
    "value": "value",
    "origin": "known from",
    "source": "source",
}


def constants_report(document: ConstantsResult) -> RenderableType:
    """Devices and networks, each constant with its value, origin and source."""
    columns = tuple((title, "left") for title in CONSTANT_COLUMNS.values())
    found = table(f"constants of {document.cluster}", columns)
    for each in document.constants:
        add_row(found, *_texts(each))
    return found


def constant_rows(cluster: Cluster) -> Iterator[tuple[str, ...]]:
    """A text for each of `CONSTANT_COLUMNS`, constant by constant."""
    return map(_texts, constants_of(cluster))


def _texts(each: ClusterConstant) -> tuple[str, ...]:
    return each.of, each.constant, each.text, str(each.origin), each.source


def constants_of(cluster: Cluster) -> Iterator[ClusterConstant]:
    """Every constant of the cluster, device by device and level by level."""
    for pool in cluster.pools:
        yield from _records(pool.accelerator.name, _device_rows(pool.accelerator))
        for level in pool.levels:
            yield from _records(level.name, _level_rows(level))
    if cluster.joint is not None:
        yield from _records(cluster.joint.name, _level_rows(cluster.joint))


def _records(owner: str, rows: Iterator[Row]) -> Iterator[ClusterConstant]:
    for name, value, text, known in rows:
        low, high = value if isinstance(value, tuple) else (value, None)
        yield ClusterConstant(
            of=owner,
            constant=name,
            value=low,
            high_value=high,
            text=text,
            origin=known.origin,
            source=known.source,
        )


def _device_rows(device: Accelerator) -> Iterator[Row]:
    peaks = device.provenance_of("peak_flops_per_s")
    for dtype, flops in device.peak_flops_per_s:
        yield f"dense peak, {dtype}", flops, f"{flops / 1e12:,.4g} TFLOP/s", peaks
    for field, name, show in _DEVICE_CONSTANTS:
        value = attrgetter(field)(device)
        yield name, value, show(value), device.provenance_of(field)
    ratios = (device.step_low_ratio, device.step_high_ratio)
    text, known = "{:.2f} to {:.2f}".format(*ratios), device.provenance_of("step_low_ratio")
    yield "nine of ten measured steps take, of predicted", ratios, text, known


def _share(value: float) -> str:
    return f"{value:.1%}"


def _whole_share(value: float) -> str:
    return f"{value:.0%}"


def _gflop(flops: float) -> str:
    return f"{flops / 1e9:,.4g} GFLOP"


# Field of a device, what it is called, and how it is shown.
_DEVICE_CONSTANTS: Final[tuple[tuple[str, str, Callable[[float], str]], ...]] = (
    ("memory_bytes", "memory", format_bytes),
    ("usable_fraction", "share of memory usable", _whole_share),
    ("memory_bandwidth_bytes_per_s", "memory bandwidth", format_bandwidth),
    ("efficiency.gemm.max", "products reach, of peak at most", _share),
    ("efficiency.memory.max", "memory traffic reaches, of peak at most", _share),
    ("efficiency.attention_forward", "attention forward reaches, of peak at most", _share),
    ("efficiency.attention_backward", "attention backward reaches, of peak at most", _share),
    ("efficiency.gemm.half", "products reach half of that with", _gflop),
    ("efficiency.memory.half", "memory traffic reaches half of that with", format_bytes),
    ("efficiency.attention_half_flops", "attention reaches half of that with", _gflop),
    ("efficiency.fp8_ratio", "products in 8 bit reach, of the share in 16", _share),
    ("launch_overhead_s", "start of a kernel", format_seconds),
    ("host_pass_s", "host time of a block and pass", format_seconds),
    ("step_overhead_s", "once per step", format_seconds),
)
# The same of a network level.
_LEVEL_CONSTANTS: Final[tuple[tuple[str, str, Callable[[float], str]], ...]] = (
    ("bandwidth_bytes_per_s", "bandwidth per device", format_bandwidth),
    ("latency_s", "latency", format_seconds),
    ("efficiency", "share that collectives reach", _whole_share),
    ("oversubscription", "oversubscription", "{:g}".format),
)


def _level_rows(level: NetworkLevel) -> Iterator[Row]:
    sources = dict(level.sources)
    for field, name, show in _LEVEL_CONSTANTS:
        value: float = getattr(level, field)
        yield name, value, show(value), sources.get(field, UNSTATED)
