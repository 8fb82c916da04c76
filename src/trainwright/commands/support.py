"""`trainwright support`: what can be asked of a model on a device, and how well it is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.cluster import Cluster
from trainwright.cluster.calibration import POOLED, SoftwareClass
from trainwright.commands.output import emit
from trainwright.documents.printing import Report
from trainwright.documents.view import Line, table_of, words
from trainwright.errors import InvalidInput, meant
from trainwright.formats.catalog import cluster, cluster_names, open_model
from trainwright.model import PRECISIONS, count_parameters
from trainwright.options.clusters import (
    accelerators_of_clusters,
    cluster_of_accelerator,
    expected,
    opened,
)
from trainwright.plans.capability import TARGETS
from trainwright.plans.job import unwritable
from trainwright.plans.plan import FORMAT_VERSION
from trainwright.units import format_count

if TYPE_CHECKING:
    from trainwright.model import TransformerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedTarget:
    """A framework: whether its files can say the model, else `lacks` says what they cannot."""

    name: str
    version: str
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSpeed:
    """What predictions under a class of software rest on: nine of ten measured steps take between
    `low_ratio` and `high_ratio` times the predicted one."""

    software: str
    low_ratio: float
    high_ratio: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportResult:
    """A model on a device. `precisions` are those that the device multiplies in; `min_devices` is
    how many hold weights, gradients and Adam's state in 16 and 32 bit, sharded over all of them.
    """

    kind: str = "support"
    format_version: int = FORMAT_VERSION
    model: str
    parameters_total: float
    accelerator: str
    devices_per_node: int
    precisions: tuple[str, ...]
    min_devices: int
    speeds: tuple[KnownSpeed, ...]
    targets: tuple[SupportedTarget, ...]
    commands: tuple[str, ...]


_STATE_BYTES = 18.0  # of a parameter: 2 + 4 + 12, weight, gradient and Adam
_ASKED = ("plan", "estimate", "improve", "sweep", "serve", "export", "verify")


def support(model: str | Path, device: str | Path) -> Report[SupportResult]:
    """What can be asked of `model` on `device`, and what the answers rest on.

    `model` is a catalog name or a `config.json`; `device` a cluster of the catalog, its file, or
    the name of an accelerator. Raises `InvalidInput` for names that are not known,
    `UnsupportedFeature` for a model that nothing here describes.

        support("llama3-8b", "dgx-h100").document.min_devices
    """
    opened = open_model(str(model))
    cluster = _cluster_of(str(device))
    accelerator = cluster.accelerator
    parameters = count_parameters(opened.config)
    least = -(-parameters * _STATE_BYTES // accelerator.usable_bytes)
    return Report(
        SupportResult(
            model=opened.name,
            parameters_total=parameters,
            accelerator=accelerator.name,
            devices_per_node=cluster.pools[0].devices_per_node,
            precisions=tuple(
                name
                for name, formats in PRECISIONS.items()
                if {formats.matmul_dtype, formats.base_dtype} <= set(accelerator.dtypes)
            ),
            min_devices=int(max(1, least)),
            speeds=tuple(_speeds(cluster)),
            targets=tuple(_targets(opened.config)),
            commands=_ASKED,
        )
    )


def _cluster_of(device: str) -> Cluster:
    """The cluster of a name or a file, or the first of the catalog whose devices have the name."""
    if device.lower() in cluster_names():
        return cluster(device.lower())
    if Path(device).exists():
        return opened(device).cluster
    if (found := cluster_of_accelerator(device)) is not None:
        return found
    known = accelerators_of_clusters()
    wanted = f"must be a cluster of the catalog, its file, or one of {', '.join(known)}"
    near = meant(device, (*known, *cluster_names()))
    raise InvalidInput.of("device", f'{wanted}, got "{device}"{near}')


def _speeds(cluster: Cluster) -> Iterator[KnownSpeed]:
    for kind in SoftwareClass:
        device = expected(cluster, kind.value).accelerator
        fitted = device.calibration
        yield KnownSpeed(
            software=kind.value,
            low_ratio=device.step_low_ratio,
            high_ratio=device.step_high_ratio,
            source="assumed: not fitted" if fitted is None else f"{fitted.origin}: {fitted.source}",
        )


def _targets(model: TransformerConfig) -> Iterator[SupportedTarget]:
    for name, version in TARGETS.items():
        lacks = tuple(fault.problem for fault in unwritable(model, name))
        yield SupportedTarget(name=name, version=version, lacks=lacks)


def support_view(found: SupportResult) -> Iterator[Line]:
    """What is known, then who can run it."""
    size = f"{found.parameters_total / 1e9:.4g} B parameters"
    yield f"{found.model}: {size}, on {found.accelerator}, {found.devices_per_node} to a node"
    yield f"number formats: {', '.join(found.precisions)}"
    least = format_count(found.min_devices, "device")
    yield f"weights, gradients and Adam's state, sharded over all, need at least {least}"
    yield f"commands that take it: {', '.join(found.commands)}"
    yield table_of(
        "How well steps are known",
        (words("software"), words("range"), words("evidence", "source")),
        (
            (each.software, f"{each.low_ratio:.2f} to {each.high_ratio:.2f}", _evidence(each))
            for each in found.speeds
        ),
        caption="how well steps are known: nine of ten take from and to so many times the "
        "predicted time",
    )
    yield table_of(
        "Who can be given the plan",
        (words("framework"), words("version"), words("cannot express", "lacks")),
        ((each.name, each.version, "; ".join(each.lacks)) for each in found.targets),
        caption="frameworks that files are written for",
    )


def _evidence(known: KnownSpeed) -> str:
    """The runs behind a range, which with the software's name stands in columns of its own."""
    _, pooled, runs = known.source.partition(f"{POOLED} for {known.software}: ")
    return runs.partition("; ")[0] if pooled else known.source


# `trainwright support`
# ---------------------


def command(model: str, device: str, *, as_json: bool = False) -> None:
    """Print what is known of a model on a device."""
    emit(support(model, device), as_json=as_json, output=None)
