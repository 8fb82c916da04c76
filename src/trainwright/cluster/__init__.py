"""Where a model runs: accelerators, the networks between them, and clusters of both."""

from trainwright.cluster.accelerator import Accelerator, Host
from trainwright.cluster.calibration import CONSTANTS, Calibration, Constant
from trainwright.cluster.cluster import (
    Cluster,
    Hop,
    LevelKind,
    NetworkLevel,
    Pool,
    Rows,
    crossed_level,
    group_hops,
    levels_of,
    nested_hops,
    networked,
    template_device,
)
from trainwright.cluster.efficiency import (
    NO_LOSS,
    Circumstance,
    Efficiency,
    Saturating,
    Spread,
)
from trainwright.cluster.template import (
    ELEMENT_BYTES,
    REFERENCE_DESIGN,
    ChipCores,
    ChipTemplate,
    Surroundings,
    peak_flops_per_s,
)

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
    "Host",
    "LevelKind",
    "NetworkLevel",
    "Pool",
    "Rows",
    "Saturating",
    "Spread",
    "Surroundings",
    "crossed_level",
    "group_hops",
    "levels_of",
    "nested_hops",
    "networked",
    "peak_flops_per_s",
    "template_device",
]
