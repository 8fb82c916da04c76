"""Where the numbers come from: every constant with its source, hashes, and how to ask again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainwright.reporting.page.blocks import Cell, Code, Column, Facts, Notes, Section, Table
from trainwright.units import format_bandwidth, format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trainwright.cluster import Accelerator, Cluster, NetworkLevel
    from trainwright.plan.results.request import Embedded
    from trainwright.provenance import Provenance
    from trainwright.reporting.page.subject import Subject

    Row = tuple[str, str, Provenance]


def provenance_section(subject: Subject[Any], assumptions: Mapping[str, str]) -> Section:
    """What the figures rest on."""
    blocks: list[Facts | Table | Notes] = []
    if assumptions:
        blocks.append(Facts(title="Taken for granted", rows=tuple(assumptions.items())))
    if subject.cluster is not None:
        blocks.append(_constants(subject.cluster))
    warnings = tuple(getattr(subject.document, "warnings", ()))
    if warnings:
        blocks.append(Notes(title="Warnings", lines=warnings, tone="warn"))
    return Section(
        name="provenance",
        label="Sources",
        title="Where the numbers come from",
        blocks=tuple(blocks),
    )


def reproduce_section(subject: Subject[Any], inputs: tuple[Embedded, ...]) -> Section:
    """Command line, hashes of what went in and of the document, version."""
    request = subject.document.request
    hashes = [(f"{part.kind} {part.name}", f"sha256 {part.sha256}") for part in inputs]
    facts = (
        ("trainwright", request.trainwright_version),
        *hashes,
        ("this document", f"sha256 {subject.sha256}"),
    )
    blocks: list[Code | Notes | Facts] = [Code(text=subject.command)]
    if subject.command_note:
        blocks.append(Notes(lines=(subject.command_note,)))
    blocks.append(Facts(rows=facts))
    if subject.left_out:
        blocks.append(Notes(title="Left out of this page", lines=subject.left_out))
    return Section(
        name="reproduce", label="Reproduce", title="How to reproduce", blocks=tuple(blocks)
    )


def _constants(cluster: Cluster) -> Table:
    rows = []
    for pool in cluster.pools:
        rows += [(pool.accelerator.name, *row) for row in _device_rows(pool.accelerator)]
        for level in (*pool.levels, *((cluster.joint,) if cluster.joint else ())):
            rows += [(level.name, *row) for row in _level_rows(level)]
    return Table(
        title="Constants",
        columns=(
            Column(title="of", key="of", is_number=False),
            Column(title="constant", key="constant", is_number=False),
            Column(title="value", key="value", is_number=False),
            Column(title="known from", key="origin", is_number=False),
            Column(title="source", key="source", is_number=False),
        ),
        rows=tuple(
            tuple(map(Cell.of, (owner, name, value, str(known.origin), known.source)))
            for owner, name, value, known in rows
        ),
    )


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
    known = device.provenance_of("efficiency")
    efficiency = device.efficiency
    shares = {
        "products reach": efficiency.gemm.max,
        "memory traffic reaches": efficiency.memory.max,
        "attention forward reaches": efficiency.attention_forward,
        "attention backward reaches": efficiency.attention_backward,
    }
    for name, value in shares.items():
        yield f"{name}, of peak at most", f"{value:.1%}", known
    overheads = {
        "launch_overhead_s": "start of a kernel",
        "host_pass_s": "host time of a block and pass",
        "step_overhead_s": "once per step",
    }
    for field, name in overheads.items():
        yield name, format_seconds(getattr(device, field)), device.provenance_of(field)


def _level_rows(level: NetworkLevel) -> Iterator[Row]:
    from trainwright.provenance import Origin, Provenance

    sources = dict(level.sources)
    unstated = Provenance(origin=Origin.ASSUMED, source="not stated")

    def known(field: str) -> Provenance:
        return sources.get(field, unstated)

    bandwidth = level.bandwidth_bytes_per_s
    yield "bandwidth per device", format_bandwidth(bandwidth), known("bandwidth_bytes_per_s")
    yield "latency", format_seconds(level.latency_s), known("latency_s")
    yield "share that collectives reach", f"{level.efficiency:.0%}", known("efficiency")
    yield "oversubscription", f"{level.oversubscription:g}", known("oversubscription")
