"""What is asked about a model: where it trains, on how much, and what a plan may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trainwright.errors import Fault, InvalidInput
from trainwright.profile import ProfilePoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.cluster import Cluster
    from trainwright.costing.estimate import Estimator
    from trainwright.model import TransformerConfig
    from trainwright.partitioning.restrictions import Restrictions
    from trainwright.planning.model_space import Workload
    from trainwright.profile import Profile

DEFAULT_ZERO_STAGE: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelQuestion:
    """A model to train on a cluster, and what the plan may use."""

    model: TransformerConfig
    cluster: Cluster
    workload: Workload
    restrictions: Restrictions
    num_devices: int
    microbatch_size: int | None = None
    zero_stage: int = DEFAULT_ZERO_STAGE

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        if not 1 <= self.num_devices <= self.cluster.num_devices:
            wanted = f"must be from 1 to {self.cluster.num_devices}"
            yield Fault("num_devices", f"{wanted}, got {self.num_devices}")
        size, batch = self.microbatch_size, self.workload.global_batch
        if size is not None and (size < 1 or batch % size):
            yield Fault("microbatch_size", f"must divide the global batch of {batch}, got {size}")
        if not 0 <= self.zero_stage <= 3:
            yield Fault("zero_stage", f"must be 0, 1, 2 or 3, got {self.zero_stage}")


def estimate_profile(
    estimator: Estimator,
    question: ModelQuestion,
    *,
    microbatch_size: int,
    tensor: tuple[int, ...],
) -> Profile:
    """The estimated profile at a point; sequence parallelism goes with tensor parallelism."""
    point = ProfilePoint(
        microbatch_size=microbatch_size,
        sequence_length=question.workload.sequence_length,
        tensor_parallel=tensor,
        sequence_parallel=max(tensor) > 1,
        precision=question.workload.precision,
    )
    return estimator.profile(point)
