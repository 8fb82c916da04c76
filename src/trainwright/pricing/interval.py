"""How far a predicted step may be off, as the range that holds nine of ten measured ones.

Without a calibration the range is an assumption: a roofline with default efficiencies leaves out
host time, stragglers and imperfect kernels, so it errs on the fast side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trainwright.cluster.spread import Circumstance

if TYPE_CHECKING:
    from trainwright.cluster import Cluster
    from trainwright.model import TransformerConfig
    from trainwright.plan.configuration import Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """A measured step takes between `low_ratio` and `high_ratio` times the predicted one."""

    low_ratio: float
    high_ratio: float
    source: str


_UNCALIBRATED: Final = "assumed: default efficiencies, not fitted to this accelerator and software"


def time_range(
    model: TransformerConfig, cluster: Cluster, configuration: Configuration
) -> TimeRange:
    """The range of the cluster's device for such a run, fitted with its efficiencies or assumed."""
    device = cluster.accelerator
    held = circumstances(model, cluster, configuration)
    spread = next((spread for spread in device.step_spreads if spread.when in held), None)
    fitted = device.calibration
    return TimeRange(
        low_ratio=device.step_low_ratio if spread is None else spread.low_ratio,
        high_ratio=device.step_high_ratio if spread is None else spread.high_ratio,
        source=_UNCALIBRATED if fitted is None else f"{fitted.origin}: {fitted.source}",
    )


def circumstances(
    model: TransformerConfig, cluster: Cluster, configuration: Configuration
) -> frozenset[Circumstance]:
    """What holds of a run that makes steps scatter."""
    degrees, node = configuration.parallelism, cluster.pools[0].devices_per_node
    held = set()
    spans_nodes = degrees.num_devices > node
    apart = degrees.tensor * degrees.context  # replicas, one from the next
    if degrees.adjacent_devices < degrees.devices_per_rank:
        apart *= degrees.pipeline
    if spans_nodes and degrees.data > 1 and apart < node:
        held.add(Circumstance.SHARED_NODES)
    if model.experts is not None:
        held.add(Circumstance.EXPERTS)
    return frozenset(held)
