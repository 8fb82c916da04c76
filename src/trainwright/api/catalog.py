"""`trainwright catalog`: the models, accelerators and clusters that are built in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.api.result import Report
from trainwright.errors import InvalidInput
from trainwright.plan.results.catalog import CatalogItem, CatalogResult
from trainwright.units import format_bandwidth, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPICS = ("models", "accelerators", "clusters")


def catalog(topic: str | None = None) -> Report[CatalogResult]:
    """List one topic, or all. Raises `InvalidInput` for a topic that does not exist."""
    if topic is not None and topic not in TOPICS:
        raise InvalidInput.of("topic", f'must be one of {", ".join(TOPICS)}, got "{topic}"')
    makers = {"models": _models, "accelerators": _accelerators, "clusters": _clusters}
    wanted = TOPICS if topic is None else (topic,)
    return Report(CatalogResult(topics={name: tuple(makers[name]()) for name in wanted}))


def _models() -> Iterator[CatalogItem]:
    from trainwright.formats.catalog import model, model_entries
    from trainwright.model import count_parameters

    for entry in model_entries():
        config = model(entry.name).config
        size = count_parameters(config)
        summary = f"{size / 1e9:.4g} B parameters, {config.num_layers} layers"
        yield CatalogItem(name=entry.name, summary=summary, source=entry.source)


def _accelerators() -> Iterator[CatalogItem]:
    from trainwright.formats.catalog import accelerators

    for name, device in accelerators().items():
        peaks = ", ".join(f"{k} {v / 1e12:.4g}" for k, v in device.peak_flops_per_s)
        memory = format_bytes(device.memory_bytes)
        traffic = format_bandwidth(device.memory_bandwidth_bytes_per_s)
        sources = dict.fromkeys(f"{p.origin}: {p.source}" for _, p in device.sources)
        yield CatalogItem(
            name=name,
            summary=f"TFLOP/s {peaks}; {memory} at {traffic}",
            source="; ".join(sources),
        )


def _clusters() -> Iterator[CatalogItem]:
    from trainwright.formats.catalog import cluster, cluster_entries

    for entry in cluster_entries():
        pool = cluster(entry.name).pool_of()
        links = ", ".join(
            f"{level.name} {format_bandwidth(level.bandwidth_bytes_per_s)}" for level in pool.levels
        )
        summary = f"{pool.devices_per_node} x {pool.accelerator.name} a node; {links}"
        yield CatalogItem(name=entry.name, summary=summary, source=entry.source)
