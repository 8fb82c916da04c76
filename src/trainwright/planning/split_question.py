"""What every search for splits is asked: a candidate, and where it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainwright.cluster import Cluster
    from trainwright.plan.parallelism import Parallelism
    from trainwright.planning.stage_kinds import StageKinds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitQuestion:
    """How are the layers of `kinds` best cut into p·v stages under a schedule family?

    `num_microbatches` is that of one replica, v = `degrees.virtual_stages`.
    """

    kinds: StageKinds
    degrees: Parallelism
    cluster: Cluster
    family: str
    num_microbatches: int

    @property
    def overhead_s(self) -> float:
        """What every step takes once, beside its pipeline."""
        return self.cluster.accelerator.step_overhead_s
