"""Where a model runs: accelerators, the networks between them, and clusters of both."""

from trainwright.cluster.accelerator import Accelerator, Efficiency, Saturating
from trainwright.cluster.cluster import Cluster, Pool
from trainwright.cluster.network import Hop, LevelKind, NetworkLevel, crossed_level, group_hops

__all__ = [
    "Accelerator",
    "Cluster",
    "Efficiency",
    "Hop",
    "LevelKind",
    "NetworkLevel",
    "Pool",
    "Saturating",
    "crossed_level",
    "group_hops",
]
