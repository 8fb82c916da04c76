"""What a plan may fill of a device: all that is usable, less what its run keeps beside the model.

Libraries keep workspaces, the allocator loses some to fragmentation, the user wants some free
(`plans.configuration.MemoryOverheads`); a pipeline rank keeps a tensor and its gradient for each of
its boundaries, and a tensor group the gathered input of a layer. The search counts on every rank
the boundaries of the rank that has most, one more than the first and the last need; pricing counts
each rank's own. So what is found here fits there, under the rule by which `estimate` decides.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from trainwright.step.pipeline import PipelineShape, placement_of

if TYPE_CHECKING:
    from trainwright.cluster import Cluster
    from trainwright.planning.question.question import Candidate, ModelQuestion
    from trainwright.profile import Profile

_LEAST_BYTES: Final = 1.0  # a device with nothing left still is one


def room_of_devices(question: ModelQuestion) -> Cluster:
    """The cluster with no more usable than what plans may fill, buffers included."""
    return with_usable(question.cluster, _room_bytes(question))


def room_of_candidate(question: ModelQuestion, candidate: Candidate, profile: Profile) -> Cluster:
    """The same, less the buffers of a rank of the candidate."""
    room_bytes = _room_bytes(question)
    if question.overheads.buffers:
        room_bytes -= rank_buffer_bytes(candidate, profile)
    return with_usable(question.cluster, room_bytes)


def rank_buffer_bytes(candidate: Candidate, profile: Profile) -> float:
    """Communication buffers of one device of the rank with most boundaries, cut between blocks."""
    passed = min((edge.bytes for edge in profile.structure.edges), default=0.0)
    gathered = passed * candidate.tensor if candidate.tensor > 1 else 0.0
    return 2 * passed * _most_boundaries(_shape_of(candidate)) + gathered


def _room_bytes(question: ModelQuestion) -> float:
    return question.overheads.room_bytes(question.cluster.accelerator.usable_bytes)


def with_usable(cluster: Cluster, usable_bytes: float) -> Cluster:
    """The cluster with so many bytes of each device usable."""
    pool = cluster.pool_of()
    device = pool.accelerator
    if usable_bytes == device.usable_bytes:
        return cluster
    share = max(usable_bytes, _LEAST_BYTES) / device.memory_bytes
    left = replace(device, usable_fraction=share)
    return replace(cluster, pools=(replace(pool, accelerator=left),))


def _shape_of(candidate: Candidate) -> PipelineShape:
    return PipelineShape(
        family=candidate.schedule,
        num_ranks=candidate.pipeline,
        num_microbatches=1,
        virtual_stages=candidate.virtual_stages,
    )


@lru_cache(maxsize=1024)
def _most_boundaries(shape: PipelineShape) -> int:
    """Boundaries to other ranks of the rank that has most of them."""
    ranks = placement_of(shape).rank_of_stage
    counts = [0] * shape.num_ranks
    for sender, receiver in pairwise(ranks):
        if sender != receiver:
            counts[sender] += 1
            counts[receiver] += 1
    return max(counts)
