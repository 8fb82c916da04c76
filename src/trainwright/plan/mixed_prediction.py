"""What a plan on several kinds of devices is predicted to cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainwright.plan.prediction import StagePrediction, StepPrediction


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPrediction:
    """`count` replicas of the pipeline that run alike; `pools` are those of its ranks, in order.

    `step` is the step as long as this chain alone makes it.
    """

    count: int
    num_microbatches: int
    pools: tuple[int, ...]
    step: StepPrediction

    def busy_s(self, rank: int) -> float:
        """Seconds of a step that a rank works on microbatches."""
        stage: StagePrediction = self.step.stages[rank]
        return self.num_microbatches * (stage.forward_s + stage.backward_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPrediction:
    """One training step over all chains: the latest gradients, then the slowest optimizer.

    Throughput and MFU, over the peaks of all devices used, are `None` where they are not known.
    """

    step_time_s: float
    pipeline_s: float
    exposed_gradient_sync_s: float
    optimizer_s: float
    chains: tuple[ChainPrediction, ...]
    tokens_per_s: float | None = None
    mfu: float | None = None

    @property
    def slowest(self) -> int:
        """The chain that ends last, the first where several do."""
        return max(range(len(self.chains)), key=lambda i: self.chains[i].step.step_time_s)
