"""What is built in, with where it comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from trainwright.commands.output import emit
from trainwright.documents.printing import Report
from trainwright.documents.registry import schema_names, schema_of
from trainwright.documents.view import Table, table_of, words
from trainwright.errors import InvalidInput, UnsupportedFeature, one_of
from trainwright.formats.catalog import accelerators, cluster, cluster_entries, model, model_entries
from trainwright.formats.hf_decoders import ENCODER_DECODERS
from trainwright.formats.hf_families import BERTS, FAMILIES
from trainwright.formats.hf_towers import WRAPPERS
from trainwright.model import count_parameters
from trainwright.plans.plan import FORMAT_VERSION
from trainwright.units import format_bandwidth, format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogItem:
    """One entry: its name, its key figure in words, its source."""

    name: str
    summary: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogResult:
    """Entries by topic."""

    kind: str = "catalog"
    format_version: int = FORMAT_VERSION
    topics: dict[str, tuple[CatalogItem, ...]]


# `trainwright catalog`: models, types, machines, calibrations, schedules and targets, all built in
# ------------------------------------------------------------------------------------------

TOPICS = (
    *("models", "types", "accelerators", "clusters", "calibrations"),
    *("families", "targets", "schemas"),
)


def catalog(topic: str | None = None) -> Report[CatalogResult]:
    """List one topic, or all. Raises `InvalidInput` for a topic that does not exist."""
    if topic is not None and topic not in TOPICS:
        has_schema = topic in schema_names()
        hint = f"; its JSON Schema: trainwright catalog --schema {topic}" if has_schema else ""
        raise InvalidInput.of("topic", f"{one_of(TOPICS, topic)}{hint}")
    makers = {
        "models": _models,
        "types": _types,
        "accelerators": _accelerators,
        "clusters": _clusters,
        "calibrations": _calibrations,
        "families": _families,
        "targets": _targets,
        "schemas": _schemas,
    }
    wanted = TOPICS if topic is None else (topic,)
    return Report(CatalogResult(topics={name: tuple(makers[name]()) for name in wanted}))


def _models() -> Iterator[CatalogItem]:
    for entry in model_entries():
        config = model(entry.name).config
        size = count_parameters(config)
        summary = f"{size / 1e9:.4g} B parameters, {config.num_layers} layers"
        yield CatalogItem(name=entry.name, summary=summary, source=entry.source)


def _types() -> Iterator[CatalogItem]:
    """Values of `model_type` that a rule reads; all others that the library has are traced."""
    for name in sorted({*FAMILIES, *WRAPPERS}):
        if name in WRAPPERS:
            summary = f"read: text ({WRAPPERS[name].text}) with an encoder before it"
        elif name in ENCODER_DECODERS:
            summary = "read: an encoder and a decoder"
        else:
            summary = f"read: {'an encoder' if name in BERTS else 'a stack of blocks'}"
        source = "its public configuration class"
        yield CatalogItem(name=name, summary=summary, source=source)
    yield CatalogItem(
        name="(any other)",
        summary="counted, and traced layer by layer, with the extra [torch]",
        source="the module that transformers builds of it",
    )


def _accelerators() -> Iterator[CatalogItem]:
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
    for entry in cluster_entries():
        pool = cluster(entry.name).pool_of()
        links = ", ".join(
            f"{level.name} {format_bandwidth(level.bandwidth_bytes_per_s)}" for level in pool.levels
        )
        summary = f"{pool.devices_per_node} x {pool.accelerator.name} a node; {links}"
        yield CatalogItem(name=entry.name, summary=summary, source=entry.source)


def _calibrations() -> Iterator[CatalogItem]:
    """The lines that `--calibration` takes by name, each for the accelerator it was fitted on."""
    from trainwright.formats.calibration_toml import built_in_calibrations

    for made in built_in_calibrations():
        if not made.replaced:
            continue
        fitted = ", ".join(f"{c.name} {c.value:.4g}" for c in made.fitted)
        runs = f"{made.rows} run{'s' if made.rows > 1 else ''}"
        summary = (
            f"{made.accelerator}, {runs}: {fitted}; steps take {made.low_ratio:.2f} to "
            f"{made.high_ratio:.2f} of predicted"
        )
        yield CatalogItem(name=made.line, summary=summary, source=f"fitted: {made.source}")


def _families() -> Iterator[CatalogItem]:
    from trainwright.scheduling.families import FAMILIES

    for family in FAMILIES.values():
        yield CatalogItem(name=family.name, summary=family.summary, source=family.source)


def _targets() -> Iterator[CatalogItem]:
    from trainwright.plans.capability import TARGETS, capability_of

    for name, version in TARGETS.items():
        own = capability_of(name)
        count = sum(map(own.can, own.cells))
        schedules = ", ".join(own.schedules) or "none by name"
        yield CatalogItem(
            name=name,
            summary=f"{count} of {len(own.cells)} plan features; schedules: {schedules}",
            source=f"its sources and manual, version {version}",
        )


def _schemas() -> Iterator[CatalogItem]:
    """JSON Schemas of inputs and documents; `--schema NAME` prints one."""
    for name in schema_names():
        try:
            about = schema_of(name).get("description", "")
        except UnsupportedFeature as error:
            problem, instead = error.feature, error.alternative or ""
            reason = problem.removeprefix(f"{name} has ")
            yield CatalogItem(name=name, summary=reason, source=instead)
            continue
        summary = about.partition(". ")[0].partition(";")[0]
        yield CatalogItem(name=name, summary=summary, source="made from the types of its reader")


# The catalog as tables, one per topic
# ------------------------------------


def catalog_view(found: CatalogResult) -> Iterator[Table]:
    """One table per topic."""
    for topic, items in found.topics.items():
        yield table_of(
            topic,
            (words("name"), words("what", "summary"), words("source")),
            ((item.name, item.summary, item.source) for item in items),
            caption=topic,
        )


# `trainwright catalog`
# ---------------------


def command(topic: str | None = None, *, schema: str | None = None, as_json: bool = False) -> None:
    """Print one topic or all, or a JSON Schema."""
    if schema is not None:
        print(json.dumps(schema_of(schema), indent=2))
        return
    emit(catalog(topic), as_json=as_json, output=None)
