"""What a chip loses between its figures and a training run: the same rule for designs and devices.

Clocks sag, kernels are imperfect, exchanges reach a share of their links. How much is known of real
devices from public runs (`cluster.pooled`); a design loses what they say of a device without runs
of its own. So both are compared as they would run, not one as it is drawn and the other as it was
measured. How small kernels fill a device are two of its fitted constants; of a design the tiles say
it. What hosts take belongs to an installation, not to a chip: neither has it here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainwright.cluster import REFERENCE_DESIGN, networked, template_device

if TYPE_CHECKING:
    from trainwright.cluster import Accelerator, Calibration, Pool, Surroundings

NO_SOFTWARE: Final = "none"  # what `--software` says for kernels and links without losses
_NOBODY_HAS: Final = "a chip design"
_OF_HOSTS: Final = ("host_pass_s", "step_overhead_s")


def losses_of(software: str) -> Calibration | None:
    """The constants of a device without runs of its own under a software; None for "none"."""
    from trainwright.cluster.software import software_named
    from trainwright.formats.calibration_toml import built_in_efficiencies

    if software == NO_SOFTWARE:
        return None
    found = built_in_efficiencies().calibration(_NOBODY_HAS, software_named(software))
    return replace(found, constants=tuple(c for c in found.constants if c.name not in _OF_HOSTS))


def with_losses(around: Surroundings, losses: Calibration | None) -> Surroundings:
    """What a design stands in as it runs."""
    if losses is None:
        return around
    pool = _pool(template_device(REFERENCE_DESIGN, around), around)
    return surroundings_in(losses.on_pool(pool), around)


def device_as_run(device: Accelerator, around: Surroundings, software: str | None) -> Pool:
    """A device of the catalog in the network of `around`, with its own constants under `software`.

    Without a software it is as its description says.
    """
    from trainwright.cluster.software import software_named
    from trainwright.formats.calibration_toml import built_in_efficiencies

    pool = _pool(device, around)
    if software is None:
        return pool
    found = built_in_efficiencies().applied_to(pool, software_named(software))
    return replace(found, accelerator=replace(found.accelerator, host_pass_s=0.0))


def _pool(device: Accelerator, around: Surroundings) -> Pool:
    return networked(device, around, num_devices=2 * around.node_devices).pool_of()


def surroundings_in(pool: Pool, around: Surroundings) -> Surroundings:
    """`around` with the memory, the losses and the network of a pool that was made in it."""
    device, node, links = pool.accelerator, pool.levels[0], pool.levels[-1]
    return replace(
        around,
        memory_bytes=device.usable_bytes,
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
        efficiency=device.efficiency,
        launch_s=device.launch_overhead_s,
        node_efficiency=node.efficiency,
        node_latency_s=node.latency_s,
        link_efficiency=links.efficiency,
        link_latency_s=links.latency_s,
    )
