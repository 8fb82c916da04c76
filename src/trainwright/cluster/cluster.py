"""A cluster: pools of like devices, each with its network levels, joined by a top level."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from trainwright.cluster.accelerator import Accelerator
from trainwright.cluster.network import NetworkLevel
from trainwright.errors import Fault, InvalidInput, UnsupportedFeature

NODE: Final = "node"  # the name of the level that a node is, where it is not the innermost


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Devices of one kind; the sizes of `levels`, innermost first, multiply to their number."""

    accelerator: Accelerator
    levels: tuple[NetworkLevel, ...]

    def __post_init__(self) -> None:
        if not self.levels:
            raise InvalidInput.of("levels", "must have at least 1 entry, got 0")

    @property
    def num_devices(self) -> int:
        """Devices of the pool."""
        return math.prod(level.size for level in self.levels)

    @property
    def _levels_in_node(self) -> int:
        """Levels up to the one that is named as a node, or the innermost; never the outermost."""
        names = [level.name for level in self.levels[:-1]]
        return names.index(NODE) + 1 if NODE in names else 1

    @property
    def devices_per_node(self) -> int:
        """Devices of one unit of the level named "node", or else of the innermost level."""
        return math.prod(level.size for level in self.levels[: self._levels_in_node])

    @property
    def num_nodes(self) -> int:
        """Nodes of the pool, all of them full."""
        return self.num_devices // self.devices_per_node

    def with_nodes(self, nodes: int) -> Pool:
        """The same kind of pool with `nodes` nodes: inner levels fill up before outer ones.

        The outermost level grows without limit. Raises `InvalidInput` where a level between would
        be filled unevenly.
        """
        if nodes < 1:
            raise InvalidInput.of("nodes", f"must be >= 1, got {nodes}")
        if len(self.levels) == 1:
            if nodes > 1:
                raise InvalidInput.of(
                    "nodes", f"must be 1 where the network has a single level, got {nodes}"
                )
            return self
        inside = self._levels_in_node
        left, sized = nodes, [*self.levels[:inside]]
        for level in self.levels[inside:-1]:
            size = min(left, level.size)
            if left % size:
                raise InvalidInput.of(
                    "nodes", f"must be a multiple of {size} to fill each {level.name}, got {nodes}"
                )
            sized.append(replace(level, size=size))
            left //= size
        sized.append(replace(self.levels[-1], size=left))
        return replace(self, levels=tuple(sized))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One pool, or several pools whose traffic with each other crosses the level `joint`."""

    name: str
    pools: tuple[Pool, ...]
    joint: NetworkLevel | None = None

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        if not self.pools:
            yield Fault("pools", "must have at least 1 entry, got 0")
        if len(self.pools) > 1 and self.joint is None:
            yield Fault("joint", f"must join the {len(self.pools)} pools, got none")
        if self.joint is not None and self.joint.size != len(self.pools):
            yield Fault("joint.size", f"must be the {len(self.pools)} pools, got {self.joint.size}")

    @property
    def num_devices(self) -> int:
        """Devices over all pools."""
        return sum(pool.num_devices for pool in self.pools)

    @property
    def is_mixed(self) -> bool:
        """Whether the devices differ in kind."""
        return len({pool.accelerator.name for pool in self.pools}) > 1

    def alone(self, pool: int) -> Cluster:
        """The devices of one pool, without the others."""
        kind = self.pools[pool].accelerator.name
        return Cluster(name=f"{self.name}, {kind}", pools=(self.pools[pool],))

    def pool_of(self, device_kind: str | None = None) -> Pool:
        """The pool of a device kind, or the only one.

        Raises `UnsupportedFeature` where the kind is not there, or is needed and not given.
        """
        if device_kind is None and len(self.pools) == 1:
            return self.pools[0]
        kinds = ", ".join(pool.accelerator.name for pool in self.pools)
        if device_kind is None:
            raise UnsupportedFeature(
                f"{self.name} has several pools", alternative=f"name a device kind of {kinds}"
            )
        for pool in self.pools:
            if pool.accelerator.name == device_kind:
                return pool
        raise UnsupportedFeature(f"{self.name} has no {device_kind}", alternative=f"it has {kinds}")

    @property
    def accelerator(self) -> Accelerator:
        """The device kind of a cluster with one pool."""
        return self.pool_of().accelerator

    @property
    def levels(self) -> tuple[NetworkLevel, ...]:
        """The network levels of a cluster with one pool, innermost first."""
        return self.pool_of().levels

    def with_memory(self, memory_bytes: float) -> Cluster:
        """The same cluster with another memory on every device; raises like `pool_of`."""
        pool = self.pool_of()
        device = replace(pool.accelerator, memory_bytes=memory_bytes)
        return replace(self, pools=(replace(pool, accelerator=device),))

    def with_bandwidth(self, level: str, bytes_per_s: float) -> Cluster:
        """The same cluster with another bandwidth of a level, per device and direction.

        `level` is a level's name, or "intra" for the innermost and "inter" for the outermost.
        Raises `InvalidInput` where there is no such level.
        """
        pool = self.pool_of()
        names = [own.name for own in pool.levels]
        found = {"intra": 0, "inter": len(names) - 1, **{n: i for i, n in enumerate(names)}}
        if level not in found:
            offered = ", ".join(dict.fromkeys(("intra", "inter", *names)))
            raise InvalidInput.of("bandwidth", f'must name one of {offered}, got "{level}"')
        levels = list(pool.levels)
        changed = replace(levels[found[level]], bandwidth_bytes_per_s=bytes_per_s)
        levels[found[level]] = changed
        return replace(self, pools=(replace(pool, levels=tuple(levels)),))

    def with_peak_scaled(self, factor: float) -> Cluster:
        """The same cluster with so many times the peak of every number format.

        Cores of a chip design run at so many times their clock.
        """
        pool = self.pool_of()
        peaks = tuple((name, peak * factor) for name, peak in pool.accelerator.peak_flops_per_s)
        cores = pool.accelerator.cores and pool.accelerator.cores.at_rate(factor)
        device = replace(pool.accelerator, peak_flops_per_s=peaks, cores=cores)
        return replace(self, pools=(replace(pool, accelerator=device),))

    def with_nodes(self, nodes: int) -> Cluster:
        """The same cluster of `nodes` nodes; raises like `Pool.with_nodes` and `pool_of`."""
        return replace(self, pools=(self.pool_of().with_nodes(nodes),))
