"""The uniform plans of a model: one tensor and one data degree for all stages, as frameworks run.

A candidate fixes the microbatch size and the degrees; where the stages are cut and what is
recomputed is left to the partitioner. Each candidate has a lower bound on its step time, so that
most need no partitioning at all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trainwright.cluster import Cluster
from trainwright.errors import Fault, InvalidInput
from trainwright.model import TransformerConfig
from trainwright.planning.allowed import Allowed, Span
from trainwright.profile.setting import divisors

LARGEST_BATCH: Final = 10**6  # sequences; every microbatch of a step is simulated
LARGEST_SEQUENCE: Final = 10**9  # tokens; far beyond any model


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One training step: so many sequences of so many tokens."""

    global_batch: int
    sequence_length: int
    precision: str | None = None

    def __post_init__(self) -> None:
        limits = (("global_batch", LARGEST_BATCH), ("sequence_length", LARGEST_SEQUENCE))
        faults = [
            Fault(name, f"must be from 1 to {limit}, got {value}")
            for name, limit in limits
            if not 1 <= (value := getattr(self, name)) <= limit
        ]
        if faults:
            raise InvalidInput(faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Degrees of a uniform plan and the sequences of one microbatch."""

    microbatch_size: int
    tensor: int
    pipeline: int
    data: int
    zero_stage: int = 1

    @property
    def num_devices(self) -> int:
        """Devices the candidate occupies."""
        return self.tensor * self.pipeline * self.data


def microbatch_sizes(workload: Workload, allowed: Span) -> tuple[int, ...]:
    """Powers of two that divide the global batch, up to 32; or the one the user chose."""
    if allowed.least == allowed.most:
        return (allowed.least,)
    sizes = (2**power for power in range(6))
    return tuple(size for size in sizes if size in allowed and workload.global_batch % size == 0)


def tensor_degrees(
    model: TransformerConfig, cluster: Cluster, workload: Workload, allowed: Span
) -> tuple[int, ...]:
    """Degrees that the model's sizes allow, inside one node, dividing the sequence evenly."""
    pool = cluster.pool_of()
    return tuple(
        t
        for t in model.tensor_degrees(pool.devices_per_node)
        if t in allowed and pool.devices_per_node % t == 0 and workload.sequence_length % t == 0
    )


def candidates(
    *,
    num_devices: int,
    num_layers: int,
    num_microbatches: int,
    microbatch_size: int,
    tensor: int,
    allowed: Allowed,
) -> Iterator[Candidate]:
    """For each pipeline depth the data degrees that fit and divide the microbatches, largest first.

    Of one depth the largest degree needs the least memory and has the lowest bound, but not always
    the shortest step: gradients may have to cross a slow network level. Every replica gets at least
    as many microbatches as there are stages.
    """
    degrees = divisors(num_microbatches)
    deepest = min(num_layers, num_devices // tensor, num_microbatches)
    for pipeline in filter(allowed.pipeline.__contains__, range(1, deepest + 1)):
        most = min(num_devices // tensor, num_microbatches) // pipeline
        for data in reversed(degrees[: bisect_right(degrees, most)]):
            if data not in allowed.data:
                continue
            for zero_stage in allowed.zero_stages:
                yield Candidate(
                    microbatch_size=microbatch_size,
                    tensor=tensor,
                    pipeline=pipeline,
                    data=data,
                    zero_stage=zero_stage,
                )


def step_bound_s(
    candidate: Candidate, *, work_s: float, num_microbatches: int, overhead_s: float = 0.0
) -> float:
    """No 1F1B plan of the candidate has a shorter step; `work_s` is one microbatch's, all stages.

    `overhead_s` is what every step takes once, whatever the plan.

    With P_r the work of stage r and m microbatches per replica, the first forward reaches stage r
    after the forwards of all earlier stages, and their backwards follow its last one, so

        makespan ≥ m·P_r + Σ_{i<r} P_i   for every r.

    The largest of these is least where all p are equal, which gives work / (1 − (1 − 1/m)^p).
    """
    m = num_microbatches // candidate.data
    unfinished: float = (1 - 1 / m) ** candidate.pipeline
    return work_s / (1 - unfinished) + overhead_s
