"""What is asked about a model: where it trains, on how much, and what a plan may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainwright.errors import Fault, InvalidInput
from trainwright.plan.overlap import NO_OVERHEADS
from trainwright.planning.allowed import EVERYTHING, Allowed
from trainwright.planning.run_settings import USUAL_SETTINGS
from trainwright.profile import ProfilePoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.cluster import Cluster
    from trainwright.costing.estimate import Estimator
    from trainwright.model import TransformerConfig
    from trainwright.plan.overlap import MemoryOverheads
    from trainwright.planning.model_space import Point, Workload
    from trainwright.planning.run_settings import RunSettings
    from trainwright.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelQuestion:
    """A model to train on a cluster, what the plan may use, what it leaves free of each device.

    `settings` are those of the run beside what the plan decides.
    """

    model: TransformerConfig
    cluster: Cluster
    workload: Workload
    num_devices: int
    allowed: Allowed = EVERYTHING
    overheads: MemoryOverheads = NO_OVERHEADS
    settings: RunSettings = USUAL_SETTINGS

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def estimator(self, cluster: Cluster | None = None) -> Estimator:
        """What prices the layers, on the question's cluster where no other is given."""
        return self.settings.estimator(self.model, cluster or self.cluster)

    def holds(self, peak_bytes: float) -> bool:
        """Whether a device has room for a plan that peaks there, by the rule of `estimate`."""
        return self.overheads.needed_bytes(peak_bytes) <= self.cluster.accelerator.usable_bytes

    def _faults(self) -> Iterator[Fault]:
        if not 1 <= self.num_devices <= self.cluster.num_devices:
            wanted = f"must be from 1 to {self.cluster.num_devices}"
            yield Fault("num_devices", f"{wanted}, got {self.num_devices}")
        sizes, batch = self.allowed.microbatch_size, self.workload.global_batch
        if sizes.least == sizes.most and batch % sizes.least:
            wanted = f"must divide the global batch of {batch}"
            yield Fault("microbatch_size", f"{wanted}, got {sizes.least}")


def estimate_profile(estimator: Estimator, question: ModelQuestion, point: Point) -> Profile:
    """The estimated profile at a point; sequence parallelism goes with tensor parallelism."""
    return estimator.profile(_profile_point(question, point, (point.tensor,)))


def estimate_profile_of_degrees(
    estimator: Estimator, question: ModelQuestion, point: Point, *, tensor: tuple[int, ...]
) -> Profile:
    """Like `estimate_profile` with the options of several tensor degrees."""
    return estimator.profile(_profile_point(question, point, tensor))


def _profile_point(question: ModelQuestion, point: Point, tensor: tuple[int, ...]) -> ProfilePoint:
    return ProfilePoint(
        microbatch_size=point.microbatch_size,
        sequence_length=question.workload.sequence_length,
        tensor_parallel=tensor,
        context_parallel=point.context,
        expert_parallel=point.expert,
        expert_tensor_parallel=point.expert_tensor,
        sequence_parallel=max(tensor) > 1,
        precision=question.workload.precision,
        recompute=tuple(map(str, question.allowed.recompute)),
        kernels=question.settings.kernels,
    )
