"""A chip template in its surroundings as an accelerator, and many of them as a cluster.

So a design is planned, estimated and explained by what plans, estimates and explains real devices.
"""

from __future__ import annotations

from trainwright.cluster.accelerator import NO_LOSS, Accelerator
from trainwright.cluster.chip_cores import ChipCores
from trainwright.cluster.cluster import Cluster, Pool
from trainwright.cluster.network import NetworkLevel
from trainwright.cluster.template import ChipTemplate, Surroundings
from trainwright.provenance import Origin, Provenance


def template_device(
    chip: ChipTemplate,
    surroundings: Surroundings,
    *,
    precision: str = "bf16",
    name: str = "template",
    power_watts: float | None = None,
) -> Accelerator:
    """The accelerator that a design is; all of its memory is usable, and no host slows it."""
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
        efficiency=NO_LOSS,
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
    size = surroundings.node_devices
    node = NetworkLevel(
        name="node",
        size=size,
        bandwidth_bytes_per_s=surroundings.node_bandwidth_bytes_per_s,
        latency_s=surroundings.link_latency_s,
    )
    links = NetworkLevel(
        name="links",
        size=-(-num_devices // size),
        bandwidth_bytes_per_s=surroundings.link_bandwidth_bytes_per_s,
        latency_s=surroundings.link_latency_s,
    )
    levels = (links,) if size == 1 else (node, links)
    return Cluster(name=device.name, pools=(Pool(accelerator=device, levels=levels),))
