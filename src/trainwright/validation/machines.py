"""From a row of a table to the cluster it ran on.

A node of the row's size from the catalog's cluster of the same accelerator, as many as the row has
devices; publications that state another network per node replace that figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trainwright.cluster import Accelerator, Calibration, Cluster, NetworkLevel, Pool
from trainwright.errors import UnsupportedFeature
from trainwright.plan.measured_run import MeasuredRun
from trainwright.validation.lines import SoftwareLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the catalog knows: accelerators and clusters by name, fitted constants."""

    accelerators: Mapping[str, Accelerator]
    clusters: tuple[Cluster, ...]
    calibrations: tuple[Calibration, ...] = ()

    def calibration(self, accelerator: str, line: str) -> Calibration | None:
        """The constants of an accelerator under a software line, where they were fitted."""
        for calibration in self.calibrations:
            if (calibration.accelerator, calibration.line) == (accelerator, line):
                return calibration
        return None


def cluster_of(run: MeasuredRun, line: SoftwareLine, known: Known) -> Cluster:
    """The calibrated cluster of a run; raises `UnsupportedFeature` for unknown devices."""
    device = known.accelerators.get(run.accelerator)
    if device is None:
        raise UnsupportedFeature(f"accelerator {run.accelerator} is not in the catalog")
    levels = _levels(run, known)
    if line.node_bytes_per_s is not None:
        each = line.node_bytes_per_s / run.devices_per_node
        levels = (levels[0], *(replace(o, bandwidth_bytes_per_s=each) for o in levels[1:]))
    cluster = Cluster(name="measured", pools=(Pool(accelerator=device, levels=levels),))
    calibration = known.calibration(run.accelerator, line.name)
    return cluster if calibration is None else calibration.applied(cluster)


def _levels(run: MeasuredRun, known: Known) -> tuple[NetworkLevel, ...]:
    """The levels of the catalog's cluster, innermost at the row's node size, filled evenly."""
    usual = [c for c in known.clusters if c.pools[0].accelerator.name == run.accelerator]
    if not usual:
        raise UnsupportedFeature(f"no cluster of {run.accelerator} is in the catalog")
    inner, *outer = usual[0].levels
    inside = min(inner.size, run.devices_per_node, run.num_devices)
    levels, left = [replace(inner, size=inside)], -(-run.num_devices // inside)
    for level in outer[:-1]:
        size = max(n for n in range(1, min(level.size, left) + 1) if left % n == 0)
        levels.append(replace(level, size=size))
        left //= size
    if outer:
        levels.append(replace(outer[-1], size=left))
    elif left > 1:
        raise UnsupportedFeature(f"no network between nodes of {run.accelerator} is known")
    return tuple(levels)
