"""The uniform plans of a model: the same degrees for all stages, as frameworks run.

A *point* fixes what one microbatch of a layer costs: its size and the degrees that cut layers. A
candidate adds the depth of the pipeline, the data degree, the ZeRO stage and the schedule; where
the stages are cut and what is recomputed is left open. Which degrees are legal is said by
`plan.legality`, `TransformerConfig.faults_at` and `RunShape`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainwright.errors import Fault, InvalidInput
from trainwright.model import RunShape
from trainwright.plan.axis_order import DATA_INSIDE, AxisOrder
from trainwright.plan.parallelism import Parallelism
from trainwright.profile.setting import divisors

if TYPE_CHECKING:
    from trainwright.cluster import Cluster
    from trainwright.model import TransformerConfig
    from trainwright.planning.allowed import Allowed, Span

LARGEST_BATCH = 10**6  # sequences; every microbatch of a step is simulated
LARGEST_SEQUENCE = 10**9  # tokens; far beyond any model


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


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Point:
    """One microbatch on one device; `expert_tensor` None is that of a model without experts."""

    microbatch_size: int
    tensor: int
    context: int = 1
    expert: int = 1
    expert_tensor: int | None = None

    @property
    def devices(self) -> int:
        """Devices that share one sequence in one stage."""
        return self.tensor * self.context

    @property
    def expert_devices(self) -> int:
        """Devices among which all experts are dealt out."""
        return self.expert * (self.expert_tensor or self.tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Degrees of a uniform plan, the sequences of one microbatch, and the schedule."""

    microbatch_size: int
    tensor: int
    pipeline: int
    data: int
    context: int = 1
    expert: int = 1
    expert_tensor: int | None = None
    zero_stage: int = 1
    schedule: str = "1f1b"
    virtual_stages: int = 1
    axis_order: AxisOrder = DATA_INSIDE
    state_copies: int = 1

    @property
    def point(self) -> Point:
        """What prices its layers."""
        return Point(
            microbatch_size=self.microbatch_size,
            tensor=self.tensor,
            context=self.context,
            expert=self.expert,
            expert_tensor=self.expert_tensor,
        )

    @property
    def degrees(self) -> Parallelism:
        """The degrees in full."""
        return Parallelism(
            tensor=self.tensor,
            pipeline=self.pipeline,
            data=self.data,
            context=self.context,
            expert=self.expert,
            expert_tensor=self.expert_tensor,
            virtual_stages=self.virtual_stages,
            sequence_parallel=self.tensor > 1,
            zero_stage=self.zero_stage,
            axis_order=self.axis_order,
            state_copies=self.state_copies,
        )

    @property
    def num_devices(self) -> int:
        """Devices the candidate occupies."""
        return self.point.devices * self.pipeline * self.data

    def num_microbatches(self, workload: Workload) -> int:
        """Microbatches of one replica."""
        return workload.global_batch // (self.microbatch_size * self.data)


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


def context_degrees(
    model: TransformerConfig, workload: Workload, allowed: Span, *, limit: int
) -> tuple[int, ...]:
    """Degrees up to `limit` that divide the sequence; twice, where halves balance a causal mask."""
    length = workload.sequence_length
    parts = 2 if model.causal else 1
    return tuple(
        c
        for c in divisors(length)
        if c <= limit and c in allowed and (c == 1 or length % (parts * c) == 0)
    )


def expert_points(model: TransformerConfig, point: Point, allowed: Allowed) -> Iterator[Point]:
    """The ways to deal the experts out: degrees that divide them, cut like the rest or not at all.

    A cut that the user fixes is taken, too. A model without experts has one way.
    """
    experts = model.experts
    if experts is None:
        if 1 in allowed.expert and (point.tensor in allowed.expert_tensor):
            yield point
        return
    fixed = allowed.expert_tensor
    cuts = {1, point.tensor} | ({fixed.least} if fixed.least == fixed.most else set())
    for expert in filter(allowed.expert.__contains__, divisors(experts.num_experts)):
        for cut in sorted(c for c in cuts if c in fixed and experts.ffn_size % c == 0):
            yield replace(point, expert=expert, expert_tensor=cut)


def dense_points(
    model: TransformerConfig,
    cluster: Cluster,
    workload: Workload,
    allowed: Allowed,
    *,
    num_devices: int,
) -> Iterator[Point]:
    """Microbatch sizes and degrees of all that is not an expert, on at most `num_devices`."""
    tensors = tensor_degrees(model, cluster, workload, allowed.tensor)
    for size in microbatch_sizes(workload, allowed.microbatch_size):
        for tensor in tensors:
            contexts = context_degrees(
                model, workload, allowed.context, limit=num_devices // tensor
            )
            for context in contexts:
                point = Point(microbatch_size=size, tensor=tensor, context=context)
                if workload.sequence_length % point.devices == 0 or tensor == 1:
                    yield point


def run_of(point: Point, sequence_length: int) -> RunShape:
    """The point's shape, for the rules of the model."""
    return RunShape(
        microbatch_size=point.microbatch_size,
        sequence_length=sequence_length,
        tensor_parallel=point.tensor,
        sequence_parallel=point.tensor > 1,
        context_parallel=point.context,
        expert_parallel=point.expert,
        expert_tensor_parallel=point.expert_tensor,
    )
