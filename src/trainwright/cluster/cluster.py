"""A cluster: pools of like devices, each with its network levels, joined by a top level."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.cluster.accelerator import Accelerator, ChipCores, ChipTemplate, Surroundings
from trainwright.errors import (
    Fault,
    InvalidInput,
    UnsupportedFeature,
    meant,
    one_of,
    refuse,
    too_low,
)
from trainwright.provenance import Origin, Provenance

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


# A hierarchy of networks, innermost level first, and how a group of ranks lies in it
# -----------------------------------------------------------------------------------
# Bandwidths are per *device* and direction: a level of 8 devices behind 8 × 400 Gb/s network cards
# has 50 GB/s here. Placement is by stride: the ranks of a group are `stride` devices apart, as
# frameworks number them (tensor innermost, then data, then pipeline).


class LevelKind(StrEnum):
    """How the children of a unit are wired."""

    SWITCH = "switch"
    RING = "ring"
    TORUS = "torus"
    MESH = "mesh"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLevel:
    """One level: `size` children per unit; a child of the innermost level is a device.

    `oversubscription` divides the bandwidth of traffic that crosses the level, `efficiency` is the
    share of it that collectives reach; `sources` says of a field where its figure comes from.
    """

    name: str
    size: int
    bandwidth_bytes_per_s: float
    latency_s: float
    efficiency: float = 1.0
    oversubscription: float = 1.0
    kind: LevelKind = LevelKind.SWITCH
    sources: tuple[tuple[str, Provenance], ...] = ()

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        yield from too_low(self, 1, "size")
        bandwidth = self.bandwidth_bytes_per_s
        if not (math.isfinite(bandwidth) and bandwidth > 0):
            yield Fault("bandwidth_bytes_per_s", f"must be finite and > 0, got {bandwidth!r}")
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            yield Fault("latency_s", f"must be finite and >= 0, got {self.latency_s!r}")
        if not 0 < self.efficiency <= 1:
            yield Fault("efficiency", f"must be in (0, 1], got {self.efficiency!r}")
        if not (math.isfinite(self.oversubscription) and self.oversubscription >= 1):
            yield Fault("oversubscription", f"must be >= 1, got {self.oversubscription!r}")

    @property
    def effective_bytes_per_s(self) -> float:
        """Bytes per second that one device gets across this level."""
        return self.bandwidth_bytes_per_s * self.efficiency / self.oversubscription

    @property
    def is_measured(self) -> bool:
        """Whether its bandwidth is what collectives were timed at, not what links are built for."""
        origin = dict(self.sources).get("bandwidth_bytes_per_s")
        return origin is not None and origin.origin is Origin.MEASURED


Rows = tuple[tuple[int, int], ...]  # (ranks, devices from one to the next), innermost first


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """`ranks` members (or groups of members) that meet at one network level."""

    level: NetworkLevel
    ranks: int


def group_hops(
    levels: tuple[NetworkLevel, ...],
    *,
    ranks: int,
    stride: int,
    tiles: int | None = 1,
    start: int = 0,
) -> tuple[Hop, ...]:
    """How `ranks` ranks, `stride` devices apart, spread over the levels: see `nested_hops`."""
    return nested_hops(levels, ((ranks, stride),), tiles=tiles, start=start)


def nested_hops(
    levels: tuple[NetworkLevel, ...], rows: Rows, *, tiles: int | None = 1, start: int = 0
) -> tuple[Hop, ...]:
    """How a group of ranks spreads over the levels; those that it does not cross are left out.

    A row (ranks, stride) repeats what is before it, at most two of them: (2, 1), (4, 16) are the
    devices 0, 1, 16, 17, 32, 33, 48 and 49. Like groups take the devices between, and `tiles` such
    spans follow on each other from device `start` on; None stands for any number of them. Units of
    a level are filled in order, so that edges may cut groups into unlike pieces. Then the smallest
    one counts as what every unit has: its devices move most of what passes the edge. Two groups of
    12 on nodes of 8 are 0-7, 8-11 and 12-15, 16-23: 4 near, 3 far. Threes are 6, 7 | 8: all far.

    Raises `InvalidInput` when the devices do not suffice.
    """
    devices = math.prod(level.size for level in levels)
    if (span := sum((ranks - 1) * stride for ranks, stride in rows) + 1) > devices:
        raise InvalidInput.of("ranks", f"must span at most {devices} devices, got {span}")
    hops = []
    unit, inside, every = 1, 1, math.prod(ranks for ranks, _ in rows)
    for level in levels:
        unit *= level.size
        members = every if unit == devices else _least_members(rows, unit, tiles, start)
        if (meeting := math.ceil(members / inside)) > 1:
            hops.append(Hop(level=level, ranks=meeting))
            inside *= meeting
    return tuple(hops)


def _least_members(rows: Rows, unit: int, tiles: int | None, start: int) -> int:
    """The fewest members that any of these groups has in a unit which it touches."""
    ranks, stride = rows[-1]
    pieces = max(1, least_piece(ranks * stride, unit, tiles, start) // stride)
    if len(rows) == 1:
        return pieces
    inner, step = rows[0]
    block = inner * step
    if inner == 1 or unit % block == start % block == 0:
        return inner * pieces
    if block % unit == start % unit == 0:
        return max(1, unit // step)
    # Blocks that edges cut: the members of each group in each unit are counted.
    device = np.arange(ranks * stride * (unit if tiles is None else tiles))
    first = device // (ranks * stride) * stride + device % stride // block * block + device % step
    _, counts = np.unique((first, (device + start) // unit), axis=1, return_counts=True)
    return int(counts.min())


@lru_cache(maxsize=1 << 16)
def least_piece(span: int, unit: int, tiles: int | None = 1, start: int = 0) -> int:
    """Devices of the smallest part of a span in one unit, of `tiles` spans from `start` on.

    After unit / gcd(span, unit) of them each offset has come; None stands for so many.
    """
    shared = math.gcd(span, unit)
    every = shared in (span, unit) or tiles is None or tiles >= unit // shared
    if every and start % shared == 0:
        return shared
    assert tiles is not None, "any number of spans begins at an edge"
    least = span
    for first in (((start + number * span) % unit) for number in range(tiles)):
        if first + span > unit:
            least = min(least, unit - first, (first + span) % unit or unit)
    return least


def launched_evenly(
    levels: tuple[NetworkLevel, ...], devices: int, together: int
) -> tuple[NetworkLevel, ...]:
    """The part of the levels that a single group of so many devices is best launched on.

    Launchers start as many processes on every node: 12 on nodes of 8 are 6 + 6, not 8 + 4. So
    units of each level, innermost first, have the most devices that deal out all evenly and leave
    `together` neighbours together. All of `levels` where that needs more units than there are or
    makes the first pieces that differ no larger.
    """
    left, unit, own, sizes = devices, 1, 1, list[int]()
    differs = False
    for level in levels[:-1]:
        size = next(n for n in range(min(left, level.size), 0, -1) if left % n == 0)
        left, unit, own = left // size, unit * level.size, own * size
        piece = least_piece(devices, unit)
        if (own % together and own != unit) or (not differs and own < piece):
            return levels
        differs = differs or own > piece
        sizes.append(size)
    if not differs or left > levels[-1].size:
        return levels
    return tuple(
        replace(level, size=size) for level, size in zip(levels, (*sizes, left), strict=True)
    )


def crossed_level(
    levels: tuple[NetworkLevel, ...], source: ArrayLike, target: ArrayLike
) -> NetworkLevel | None:
    """The outermost level that a message between two devices crosses; none to itself.

    For arrays of devices, the outermost of any of the messages source[i] → target[i].
    """
    unit, crossed = 1, None
    for level in levels:
        if np.any(np.floor_divide(source, unit) != np.floor_divide(target, unit)):
            crossed = level
        unit *= level.size
    return crossed


# A cluster: pools of like devices, each with its network levels, joined by a top level
# -------------------------------------------------------------------------------------

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
    def fabric(self) -> tuple[NetworkLevel, ...]:
        """The levels that one fabric joins: the innermost, and those around it that are as fast.

        Trays that share a fabric are no nodes of their own; the outermost switch is a network
        between nodes, however fast it is.
        """
        inner, outermost = self.levels[0], self.levels[-1]
        ends = len(self.levels) if outermost.kind is LevelKind.TORUS else len(self.levels) - 1
        around = takewhile(
            lambda level: level.bandwidth_bytes_per_s >= inner.bandwidth_bytes_per_s,
            self.levels[1:ends],
        )
        return (inner, *around)

    @property
    def devices_per_node(self) -> int:
        """Devices of one unit of the level named "node", or else of the innermost level."""
        return math.prod(level.size for level in self.levels[: self._levels_in_node])

    @property
    def num_nodes(self) -> int:
        """Nodes of the pool, all of them full."""
        return self.num_devices // self.devices_per_node

    def nodes_for(self, devices: int) -> int:
        """How many nodes hold so many devices."""
        return -(-devices // self.devices_per_node)

    def keeps_in_node(self, ranks: int) -> bool:
        """Whether groups of so many neighbours, side by side, all lie inside one node."""
        node = self.devices_per_node
        return node % ranks == 0 or (self.num_nodes == 1 and ranks <= node)

    def with_nodes(self, nodes: int) -> Pool:
        """The same kind of pool with `nodes` nodes: inner levels fill up before outer ones.

        The outermost level grows without limit. Units of a level between are filled alike, each at
        least half: 32 trays of NVL72 are two domains of 16, as schedulers deal them out. Raises
        `InvalidInput` where a level cannot be filled so.
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
            most = min(left, level.size)
            size = next(n for n in range(most, 0, -1) if left % n == 0)
            if 2 * size < most:
                raise InvalidInput.of(
                    "nodes",
                    f"must fill every {level.name} of {level.size} alike and at least half, "
                    f"got {nodes}",
                )
            sized.append(replace(level, size=size))
            left //= size
        sized.append(replace(self.levels[-1], size=left))
        return replace(self, levels=tuple(sized))

    def with_devices(self, devices: int) -> Pool:
        """The same kind of pool with so many devices: whole nodes, or a part of a flat one.

        Raises `InvalidInput` for other numbers, and like `with_nodes`.
        """
        node, kind = self.devices_per_node, self.accelerator.name
        if len(self.levels) > 1 and devices % node == 0:
            return self.with_nodes(devices // node)
        if len(self.levels) == 1 and devices > node:
            known = f"the {node} {kind} of a network with a single level"
            raise InvalidInput.of("devices", f"must be at most {known}, got {devices}")
        if self._levels_in_node > 1 or devices > node:
            raise InvalidInput.of("devices", f"must fill nodes of {node} {kind}, got {devices}")
        inner = replace(self.levels[0], size=devices)
        return replace(self, levels=(inner, *(replace(own, size=1) for own in self.levels[1:])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One pool, or several pools whose traffic with each other crosses the level `joint`."""

    name: str
    pools: tuple[Pool, ...]
    joint: NetworkLevel | None = None

    def __post_init__(self) -> None:
        refuse(self._faults())

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
    def least_share(self) -> int:
        """The fewest devices, in whole nodes, whose pools are in the cluster's proportion."""
        return self.num_devices // math.gcd(*(pool.num_nodes for pool in self.pools))

    def alone(self, pool: int) -> Cluster:
        """The devices of one pool, without the others."""
        kind = self.pools[pool].accelerator.name
        return Cluster(name=f"{self.name}, {kind}", pools=(self.pools[pool],))

    @property
    def with_like_pools_joined(self) -> Cluster:
        """The same devices with each pool of a kind of its own: like pools are one with `joint`.

        Pools are alike where their devices and networks are. Where `joint` is as their outermost
        level they are more units of that level, else it is a level around them.
        """
        if self.joint is None:
            return self
        alike: dict[tuple[Accelerator, tuple[NetworkLevel, ...]], list[tuple[Pool, int]]] = {}
        for pool in self.pools:
            *inner, outermost = pool.levels
            is_joint = replace(self.joint, name=outermost.name, size=outermost.size) == outermost
            is_within = bool(inner) and (is_joint or outermost.size == 1)
            inside, units = (tuple(inner), outermost.size) if is_within else (pool.levels, 1)
            alike.setdefault((pool.accelerator, inside), []).append((pool, units))
        pools = []
        for (device, inside), found in alike.items():
            around = replace(self.joint, size=sum(units for _, units in found))
            joined = Pool(accelerator=device, levels=(*inside, around))
            pools.append(joined if len(found) > 1 else found[0][0])
        joint = None if len(pools) == 1 else replace(self.joint, size=len(pools))
        return replace(self, pools=tuple(pools), joint=joint)

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

    def pool_names(self) -> tuple[str, ...]:
        """What each pool is called: its kind of device, with its index where two share a kind."""
        kinds = [pool.accelerator.name for pool in self.pools]
        return tuple(
            kind if kinds.count(kind) == 1 else f"{kind} ({index})"
            for index, kind in enumerate(kinds)
        )

    def pool_named(self, name: str) -> int:
        """The index of the pool that is called so, or has this index; raises `InvalidInput`."""
        names = self.pool_names()
        for index, own in enumerate(names):
            if name in (own, str(index)):
                return index
        offered = ", ".join(f"{index} ({own})" for index, own in enumerate(names))
        raise InvalidInput.of("pool", f'must be one of {offered}, got "{name}"{meant(name, names)}')

    def _with_pools(self, change: Callable[[Pool], Pool], only: int | None) -> Cluster:
        """The same cluster with one of its pools changed, or all."""
        changed = tuple(
            change(pool) if only in (None, index) else pool for index, pool in enumerate(self.pools)
        )
        return replace(self, pools=changed)

    def with_memory(self, memory_bytes: float, *, pool: int | None = None) -> Cluster:
        """The same cluster with another memory on every device, or on every one of a pool."""
        return self._with_pools(
            lambda own: replace(
                own, accelerator=replace(own.accelerator, memory_bytes=memory_bytes)
            ),
            pool,
        )

    def with_memory_bandwidth(self, bytes_per_s: float, *, pool: int | None = None) -> Cluster:
        """The same cluster with another bandwidth of the memory of every device, or of a pool's."""
        return self._with_pools(
            lambda own: replace(
                own,
                accelerator=replace(own.accelerator, memory_bandwidth_bytes_per_s=bytes_per_s),
            ),
            pool,
        )

    def with_bandwidth(self, level: str, bytes_per_s: float, *, pool: int | None = None) -> Cluster:
        """The same cluster with another bandwidth of a level, per device and direction.

        `level` is a level's name, "intra" for the innermost and "inter" for the outermost of every
        pool, or of one, that has it, or "joint" for what lies between pools. Raises `InvalidInput`
        where there is no such level.
        """
        if level == "joint" and self.joint is not None and pool is None:
            return replace(self, joint=replace(self.joint, bandwidth_bytes_per_s=bytes_per_s))
        asked = [each for index, each in enumerate(self.pools) if pool in (None, index)]
        names = [own.name for each in asked for own in each.levels]
        if level not in (*names, "intra", "inter"):
            between = ("joint",) if self.joint is not None and pool is None else ()
            offered = dict.fromkeys(("intra", "inter", *between, *names))
            raise InvalidInput.of("bandwidth", one_of(offered, level))

        def change(own: Pool) -> Pool:
            of = [each.name for each in own.levels]
            places = {"intra": 0, "inter": len(of) - 1, **{name: i for i, name in enumerate(of)}}
            index = places.get(level)
            if index is None:
                return own
            levels = list(own.levels)
            levels[index] = replace(levels[index], bandwidth_bytes_per_s=bytes_per_s)
            return replace(own, levels=tuple(levels))

        return self._with_pools(change, pool)

    def with_peak_scaled(self, factor: float, *, pool: int | None = None) -> Cluster:
        """The same cluster with so many times the peak of every number format, or of one pool's.

        Cores of a chip design run at so many times their clock.
        """

        def change(own: Pool) -> Pool:
            peaks = tuple((name, peak * factor) for name, peak in own.accelerator.peak_flops_per_s)
            cores = own.accelerator.cores and own.accelerator.cores.at_rate(factor)
            device = replace(own.accelerator, peak_flops_per_s=peaks, cores=cores)
            return replace(own, accelerator=device)

        return self._with_pools(change, pool)

    def with_pool_of(self, devices: int, *, pool: int) -> Cluster:
        """The same cluster with so many devices in one of several pools; without it where 0.

        Raises `InvalidInput` where they fill no whole nodes and are no part of one.
        """
        if devices:
            return self._with_pools(lambda own: own.with_devices(devices), pool)
        left = tuple(each for index, each in enumerate(self.pools) if index != pool)
        if not left:
            raise InvalidInput.of("devices", "must leave a device in some pool, got 0")
        between = self.joint if len(left) > 1 else None
        joint = None if between is None else replace(between, size=len(left))
        return replace(self, pools=left, joint=joint)

    def with_devices(self, devices: int) -> Cluster:
        """The same cluster with so many devices, the pools in proportion.

        Raises `InvalidInput` where a pool has no whole number of them, and like `with_pool_of`.
        """
        counts = self._dealt_out("devices", devices, [pool.num_devices for pool in self.pools])
        pools = zip(self.pools, counts, strict=True)
        return replace(self, pools=tuple(pool.with_devices(count) for pool, count in pools))

    def with_nodes(self, nodes: int) -> Cluster:
        """The same cluster of `nodes` nodes, the pools in proportion.

        Raises `InvalidInput` where a pool has no whole number of them, and like `Pool.with_nodes`.
        """
        counts = self._dealt_out("nodes", nodes, [pool.num_nodes for pool in self.pools])
        pools = zip(self.pools, counts, strict=True)
        return replace(self, pools=tuple(pool.with_nodes(count) for pool, count in pools))

    def _dealt_out(self, name: str, count: int, sizes: list[int]) -> list[int]:
        whole = sum(sizes)
        if any(count * size % whole for size in sizes):
            shares = ":".join(map(str, sizes))
            problem = f"must be dealt out to the pools as {shares}, got {count}"
            raise InvalidInput.of(name, problem)
        return [count * size // whole for size in sizes]


# A chip template in its surroundings as an accelerator, and many of them as a cluster
# ------------------------------------------------------------------------------------
# So a design is planned, estimated and explained by what plans, estimates and explains real
# devices.


def template_device(
    chip: ChipTemplate,
    surroundings: Surroundings,
    *,
    precision: str = "bf16",
    name: str = "template",
    power_watts: float | None = None,
) -> Accelerator:
    """The accelerator that a design is, with the losses of its surroundings.

    All of its memory is usable, and no host slows it.
    """
    cores = ChipCores(
        chip=chip,
        clock_hz=surroundings.clock_hz,
        glb_bytes_per_cycle=surroundings.glb_bytes_per_cycle,
        precision=precision,
    )
    return Accelerator(
        name=name,
        peak_flops_per_s=cores.peak_flops_per_s,
        memory_bytes=surroundings.memory_bytes,
        memory_bandwidth_bytes_per_s=surroundings.memory_bandwidth_bytes_per_s,
        launch_overhead_s=surroundings.launch_s,
        usable_fraction=1.0,
        efficiency=surroundings.efficiency,
        sources=tuple((field, _MODELLED) for field in _FIELDS),
        power_watts=power_watts,
        cores=cores,
    )


_MODELLED = Provenance(origin=Origin.ASSUMED, source="a chip design, timed by the tiled estimator")
_FIELDS = ("peak_flops_per_s", "memory_bytes", "memory_bandwidth_bytes_per_s", "efficiency")


def networked(device: Accelerator, surroundings: Surroundings, *, num_devices: int) -> Cluster:
    """Devices in nodes of `node_devices`, links between nodes: a cluster of at least so many.

    Nodes of one chip are a flat network, a single level of exactly so many.
    """
    num_nodes = -(-num_devices // surroundings.node_devices)
    node, links = levels_of(surroundings, num_nodes=num_nodes)
    levels = (links,) if node.size == 1 else (node, links)
    return Cluster(name=device.name, pools=(Pool(accelerator=device, levels=levels),))


def levels_of(surroundings: Surroundings, *, num_nodes: int) -> tuple[NetworkLevel, NetworkLevel]:
    """The network of a chip design: inside a node, and between `num_nodes` nodes."""
    node = NetworkLevel(
        name="node",
        size=surroundings.node_devices,
        bandwidth_bytes_per_s=surroundings.node_bandwidth_bytes_per_s,
        latency_s=surroundings.node_latency_s,
        efficiency=surroundings.node_efficiency,
    )
    links = NetworkLevel(
        name="links",
        size=num_nodes,
        bandwidth_bytes_per_s=surroundings.link_bandwidth_bytes_per_s,
        latency_s=surroundings.link_latency_s,
        efficiency=surroundings.link_efficiency,
    )
    return node, links
