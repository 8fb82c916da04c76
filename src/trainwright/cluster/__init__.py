"""Where a model runs: accelerators, the networks between them, and clusters of both."""

from trainwright.cluster.accelerator import NO_LOSS, Accelerator, Efficiency
from trainwright.cluster.calibration import CONSTANTS, Calibration, Constant
from trainwright.cluster.chip_cores import ELEMENT_BYTES, ChipCores
from trainwright.cluster.cluster import Cluster, Pool
from trainwright.cluster.network import (
    Hop,
    LevelKind,
    NetworkLevel,
    Rows,
    crossed_level,
    group_hops,
    nested_hops,
)
from trainwright.cluster.saturating import Saturating
from trainwright.cluster.spread import Circumstance, Spread
from trainwright.cluster.template import (
    REFERENCE_DESIGN,
    ChipTemplate,
    Surroundings,
    peak_flops_per_s,
)
from trainwright.cluster.template_device import networked, template_device

__all__ = [
    "CONSTANTS",
    "ELEMENT_BYTES",
    "NO_LOSS",
    "REFERENCE_DESIGN",
    "Accelerator",
    "Calibration",
    "ChipCores",
    "ChipTemplate",
    "Circumstance",
    "Cluster",
    "Constant",
    "Efficiency",
    "Hop",
    "LevelKind",
    "NetworkLevel",
    "Pool",
    "Rows",
    "Saturating",
    "Spread",
    "Surroundings",
    "crossed_level",
    "group_hops",
    "nested_hops",
    "networked",
    "peak_flops_per_s",
    "template_device",
]
