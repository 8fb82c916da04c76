"""The document of `calibrate`: fitted constants, and how the fits did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from trainwright.cluster import Accelerator, Cluster, NetworkLevel
from trainwright.cluster.calibration import Calibration
from trainwright.documents import view
from trainwright.plans.plan import FORMAT_VERSION
from trainwright.provenance import UNSTATED, Origin, Provenance
from trainwright.units import format_bandwidth, format_bytes, format_seconds

if TYPE_CHECKING:
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


# Fitted constants as tables: value, 90% interval, and how far predictions with them miss
# ----------------------------------------------------------------------------------------


def calibration_view(found: CalibrationResult) -> Iterator[view.Line]:
    """One table of constants for all lines, one of errors."""
    head = (view.words("accelerator"), view.words("software", "line"))
    yield view.table_of(
        "Constants",
        (
            *head,
            view.words("constant"),
            view.column("value"),
            view.column("low"),
            view.column("high"),
        ),
        (
            (
                *((made.accelerator, made.line) if at == 0 else ("", "")),
                constant.name,
                *(
                    view.number(value, ".4g")
                    for value in (constant.value, constant.low, constant.high)
                ),
            )
            for made in found.calibrations
            for at, constant in enumerate(made.constants)
        ),
        caption="constants, with 90% intervals",
    )
    yield view.table_of(
        "Errors of the fit",
        (
            *head,
            view.column("rows"),
            view.column("mean", "mape"),
            view.column("mean, unseen", "unseen_mape"),
            view.column("9 of 10 steps within", "spread"),
        ),
        (
            (
                fit.accelerator,
                fit.line,
                fit.rows,
                view.percent(fit.mape),
                view.percent(fit.unseen_mape),
                f"{made.low_ratio:.2f} to {made.high_ratio:.2f}",
            )
            for made, fit in zip(found.calibrations, found.fits, strict=True)
        ),
        caption="errors of the fit",
    )
    yield from view.warning_lines(found.warnings)


# Every constant of a cluster with where it is known from, as a table
# -------------------------------------------------------------------


def constants_view(document: ConstantsResult) -> Iterator[view.Table]:
    """Devices and networks, each constant with its value, origin and source."""
    yield constant_table(document.constants, caption=f"constants of {document.cluster}")


_RESTS: Final = ", rests on "


def constant_table(constants: Iterable[ClusterConstant], *, caption: str = "") -> view.Table:
    """Constants with where each is known from; a page says once what a calibration rests on."""
    rows = tuple(constants)
    calibrations = {each.source.partition(_RESTS)[::2] for each in rows if _RESTS in each.source}
    return view.table_of(
        "Constants",
        (
            view.words("of"),
            view.words("constant"),
            view.words("value"),
            view.words("known from", "origin"),
            view.words("source", on="terminal"),
            view.words("source", on="page"),
        ),
        (
            (
                *(each.of, each.constant, each.text, str(each.origin), each.source),
                each.source.partition(_RESTS)[0],
            )
            for each in rows
        ),
        caption=caption,
        note=" ".join(
            f"{name[:1].upper()}{name[1:]} rests on {what}." for name, what in sorted(calibrations)
        ),
    )


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


def _flops_a_byte(ratio: float) -> str:
    return f"{ratio:,.4g} FLOP a byte"


def _features(size: float) -> str:
    return f"{size:,.4g} inputs"


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
    ("efficiency.gemm_half_depth", "which is of products with", _features),
    ("efficiency.memory.half", "memory traffic reaches half of that with", format_bytes),
    ("efficiency.attention_half_flops", "attention reaches half of that with", _gflop),
    ("efficiency.attention_half_intensity", "or with", _flops_a_byte),
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
