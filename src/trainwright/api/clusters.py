"""What the cluster of a model means: a catalog entry, a file or a noun, sized."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from trainwright.errors import InvalidInput, UnsupportedFeature

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainwright.cluster import Cluster, Surroundings

LARGEST_CLUSTER: Final = 10**9  # devices or nodes; far beyond any machine


class OpenedCluster(NamedTuple):
    """A cluster, how many of its devices it stands for, and what is to be said of it."""

    cluster: Cluster
    num_devices: int
    warnings: tuple[str, ...] = ()


GivenCluster: TypeAlias = "str | Path | Cluster | OpenedCluster | None"


def opened(cluster: GivenCluster) -> OpenedCluster:
    """Read what names a cluster; a document of co-design stands for the chips it planned for."""
    from trainwright.cluster import Cluster
    from trainwright.formats.catalog import open_cluster_or_chip

    if cluster is None:
        raise InvalidInput.of(
            "cluster", "must be given for a model; see: trainwright catalog clusters"
        )
    if isinstance(cluster, OpenedCluster):
        return cluster
    found = cluster if isinstance(cluster, Cluster) else open_cluster_or_chip(str(cluster))
    if isinstance(found, Cluster):
        return OpenedCluster(found, found.num_devices)
    return OpenedCluster(found.cluster, found.num_devices, tuple(_not_taken(found.surroundings)))


def _not_taken(around: Surroundings) -> Iterator[str]:
    """What the search for a chip was told and pricing does not take."""
    from trainwright.plan.overlap import DEFAULT_OVERLAP

    told = (around.tensor_overlap, around.gradient_overlap)
    taken = (DEFAULT_OVERLAP.tensor, DEFAULT_OVERLAP.gradients)
    if told in ((0.0, 0.0), taken):
        return
    yield (
        f"cluster: the search for this chip hid tensor exchanges under {told[0]:.0%} and gradients "
        f"under {told[1]:.0%} of compute; plans hide them under {taken[0]:.0%} and {taken[1]:.0%}, "
        "estimates as --overlap says"
    )


def resolve_cluster(
    cluster: GivenCluster,
    *,
    nodes: int | None,
    devices: int | None,
    memory_bytes: float | None = None,
) -> tuple[Cluster, int]:
    """A catalog cluster or a file, sized, and how many of its devices to use.

    `memory_bytes` replaces what the driver shows of a device, of which a fraction is usable.
    """
    found, own_devices, _ = opened(cluster)
    refuse_several_pools(found, "cluster", alternative="give one pool; plan takes several")
    if memory_bytes is not None:
        found = found.with_memory(memory_bytes)
    if nodes is not None:
        _refuse_too_many("nodes", nodes)
        found = found.with_nodes(nodes)
    if devices is None:
        return found, own_devices if nodes is None else found.num_devices
    _refuse_too_many("devices", devices)
    if devices > found.num_devices and len(found.levels) == 1:
        known = f"the {found.num_devices} of {found.name}, whose network has a single level"
        raise InvalidInput.of("devices", f"must be at most {known}, got {devices}")
    if nodes is None and devices > found.num_devices:
        found = found.with_nodes(-(-devices // found.pool_of().devices_per_node))
    if devices > found.num_devices:
        raise InvalidInput.of(
            "devices", f"must be at most the {found.num_devices} of {nodes} nodes, got {devices}"
        )
    return found, devices


def resolve_pools(
    cluster: GivenCluster,
    *,
    nodes: int | None,
    devices: int | None,
    memory_bytes: float | None = None,
) -> tuple[Cluster, int]:
    """Like `resolve_cluster`, and also a cluster of several pools, which its file sizes."""
    given = opened(cluster)
    found = given.cluster
    if len(found.pools) == 1:
        return resolve_cluster(given, nodes=nodes, devices=devices, memory_bytes=memory_bytes)
    sized = {"memory": memory_bytes, "nodes": nodes, "devices": devices}
    for name, value in sized.items():
        if value not in (None, found.num_devices):
            refuse_several_pools(found, name)
    return found, found.num_devices


_IN_FILE: Final = "say it in the cluster file, pool by pool"


def refuse_several_pools(cluster: Cluster, option: str, *, alternative: str = _IN_FILE) -> None:
    """Raise `UnsupportedFeature` naming an option that speaks of one kind of device."""
    if len(cluster.pools) > 1:
        kinds = ", ".join(pool.accelerator.name for pool in cluster.pools)
        raise UnsupportedFeature(
            f"{option}: {cluster.name} has several pools, of {kinds}",
            alternative=alternative,
        )


def _refuse_too_many(name: str, count: int) -> None:
    if count > LARGEST_CLUSTER:
        raise InvalidInput.of(name, f"must be <= {LARGEST_CLUSTER}, got {count}")
