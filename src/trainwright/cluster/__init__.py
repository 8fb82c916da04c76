"""Where a model runs: accelerators, the networks between them, and clusters of both."""

from trainwright.cluster.accelerator import Accelerator, Efficiency, Saturating
from trainwright.cluster.calibration import CONSTANTS, Calibration, Constant
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
from trainwright.cluster.spread import Circumstance, Spread
from trainwright.cluster.template import (
    REFERENCE_DESIGN,
    ChipTemplate,
    Surroundings,
    peak_flops_per_s,
)

__all__ = [
    "CONSTANTS",
    "REFERENCE_DESIGN",
    "Accelerator",
    "Calibration",
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
    "peak_flops_per_s",
]
