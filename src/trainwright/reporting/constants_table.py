"""Every constant of a cluster with where it is known from, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.reporting.text import add_row, table
from trainwright.units import format_bandwidth, format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from trainwright.cluster import Accelerator, Cluster, NetworkLevel
    from trainwright.provenance import Provenance

    Row = tuple[str, str, Provenance]

# Key of a column → its title.
CONSTANT_COLUMNS: Final = {
    "of": "of",
    "constant": "constant",
    "value": "value",
    "origin": "known from",
    "source": "source",
}


def constants_report(cluster: Cluster) -> RenderableType:
    """Devices and networks, each constant with its value, origin and source."""
    columns = tuple((title, "left") for title in CONSTANT_COLUMNS.values())
    found = table(f"constants of {cluster.name}", columns)
    for row in constant_rows(cluster):
        add_row(found, *row)
    return found


def constant_rows(cluster: Cluster) -> Iterator[tuple[str, ...]]:
    """A text for each of `CONSTANT_COLUMNS`, constant by constant."""
    for pool in cluster.pools:
        yield from _texts(pool.accelerator.name, _device_rows(pool.accelerator))
        for level in pool.levels:
            yield from _texts(level.name, _level_rows(level))
    if cluster.joint is not None:
        yield from _texts(cluster.joint.name, _level_rows(cluster.joint))


def _texts(owner: str, rows: Iterator[Row]) -> Iterator[tuple[str, ...]]:
    for name, value, known in rows:
        yield owner, name, value, str(known.origin), known.source


def _device_rows(device: Accelerator) -> Iterator[Row]:
    peaks = device.provenance_of("peak_flops_per_s")
    for dtype, flops in device.peak_flops_per_s:
        yield f"dense peak, {dtype}", f"{flops / 1e12:,.4g} TFLOP/s", peaks
    memory, bandwidth = device.memory_bytes, device.memory_bandwidth_bytes_per_s
    yield "memory", format_bytes(memory), device.provenance_of("memory_bytes")
    known = device.provenance_of("usable_fraction")
    yield "share of memory usable", f"{device.usable_fraction:.0%}", known
    known = device.provenance_of("memory_bandwidth_bytes_per_s")
    yield "memory bandwidth", format_bandwidth(bandwidth), known
    efficiency = device.efficiency
    products, attention = efficiency.gemm.half, efficiency.attention_half_flops
    reached = {
        "gemm.max": ("products reach, of peak at most", efficiency.gemm.max),
        "memory.max": ("memory traffic reaches, of peak at most", efficiency.memory.max),
        "attention_forward": (
            "attention forward reaches, of peak at most",
            efficiency.attention_forward,
        ),
        "attention_backward": (
            "attention backward reaches, of peak at most",
            efficiency.attention_backward,
        ),
        "gemm.half": ("products reach half of that with", f"{products / 1e9:,.4g} GFLOP"),
        "memory.half": (
            "memory traffic reaches half of that with",
            format_bytes(efficiency.memory.half),
        ),
        "attention_half_flops": (
            "attention reaches half of that with",
            f"{attention / 1e9:,.4g} GFLOP",
        ),
        "fp8_ratio": ("products in 8 bit reach, of the share in 16", efficiency.fp8_ratio),
    }
    for field, (name, value) in reached.items():
        text = value if isinstance(value, str) else f"{value:.1%}"
        yield name, text, device.provenance_of(f"efficiency.{field}")
    overheads = {
        "launch_overhead_s": "start of a kernel",
        "host_pass_s": "host time of a block and pass",
        "step_overhead_s": "once per step",
    }
    for field, name in overheads.items():
        yield name, format_seconds(getattr(device, field)), device.provenance_of(field)
    low, high = device.step_low_ratio, device.step_high_ratio
    known = device.provenance_of("step_low_ratio")
    yield "nine of ten measured steps take, of predicted", f"{low:.2f} to {high:.2f}", known


def _level_rows(level: NetworkLevel) -> Iterator[Row]:
    from trainwright.provenance import UNSTATED

    sources = dict(level.sources)

    def known(field: str) -> Provenance:
        return sources.get(field, UNSTATED)

    bandwidth = level.bandwidth_bytes_per_s
    yield "bandwidth per device", format_bandwidth(bandwidth), known("bandwidth_bytes_per_s")
    yield "latency", format_seconds(level.latency_s), known("latency_s")
    yield "share that collectives reach", f"{level.efficiency:.0%}", known("efficiency")
    yield "oversubscription", f"{level.oversubscription:g}", known("oversubscription")
