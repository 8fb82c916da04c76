"""Why a plan is what it is: what each dimension buys, and what more of a resource would.

A dimension buys what the best plan without it loses: the question is planned again with that
dimension forbidden. A resource is worth what the *same* plan gains by 1 % more of it, which one
pricing answers; memory makes no plan faster by itself, so there the question is planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from trainwright.planning.question.families import chunks_per_rank
from trainwright.planning.question.question import Allowed, Span
from trainwright.planning.search.framework import plan_runnable
from trainwright.planning.search.orders import with_searched_orders
from trainwright.plans.parallelism import DATA_INSIDE
from trainwright.plans.plan import DEFAULT_SCHEDULE
from trainwright.plans.status import Status, relative_gap
from trainwright.profile import Recompute
from trainwright.profile.measured_model import MeasuredModel
from trainwright.units import GIB

if TYPE_CHECKING:
    from trainwright.cluster import Cluster
    from trainwright.execution import Budget
    from trainwright.planning.question.question import ModelQuestion
    from trainwright.planning.search.search import ModelOutcome
    from trainwright.planning.splits.types import Priced
    from trainwright.plans import Plan
    from trainwright.plans.parallelism import Parallelism

    Reprice: TypeAlias = Callable[[Cluster], float]

MORE: Final = 1.01
MORE_MEMORY_BYTES: Final = 10 * GIB
_ONE: Final = Span.only(1)
_AXES: Final = (
    ("tensor parallelism", "tensor"),
    ("pipeline parallelism", "pipeline"),
    ("data parallelism", "data"),
    ("context parallelism", "context"),
    ("expert parallelism", "expert"),
    ("virtual stages", "virtual_stages"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Without:
    """The best plan without one thing that a plan uses; `best` None where none was found.

    `status` says how much of that is proved.
    """

    name: str
    status: Status
    best: Priced | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What more of a resource does to the step time, of the same plan or of the best one."""

    resource: str
    change: str
    step_time_s: float
    replanned: bool


def uses(
    plan: Plan, degrees: Parallelism, allowed: Allowed, *, recomputes: bool
) -> Iterator[tuple[str, Allowed]]:
    """Each thing the plan uses and could do without, with the space that lacks it."""
    for name, axis in _AXES:
        if getattr(degrees, axis) > 1:
            lacking: dict[str, Any] = {axis: _ONE}
            if axis != "virtual_stages" or _has_chain(allowed):
                yield name, replace(allowed, **lacking)
    if degrees.zero_stage > 0:
        yield "ZeRO", replace(allowed, zero_stages=(0,))
    if degrees.zero_stage > 1:
        yield "ZeRO above 1", replace(allowed, zero_stages=(0, 1))
    if degrees.state_copies > 1:
        yield "copies of sharded state", replace(allowed, state_copies=_ONE)
    if degrees.axis_order != DATA_INSIDE:
        yield "the pipeline inside replicas", replace(allowed, mappings=(DATA_INSIDE,))
    if recomputes:
        yield "recomputation", replace(allowed, recompute=(Recompute.NONE,))
    if plan.schedule != DEFAULT_SCHEDULE and degrees.pipeline > 1:
        only = replace(
            allowed, schedules=(DEFAULT_SCHEDULE,), virtual_stages=_ONE, searches_orders=False
        )
        yield f"the schedule {plan.schedule} ({DEFAULT_SCHEDULE} instead)", only
    if plan.microbatch_size is not None and plan.microbatch_size > 1:
        yield "microbatches above 1", replace(allowed, microbatch_size=_ONE)


def _has_chain(allowed: Allowed) -> bool:
    """Whether some family has one stage per rank."""
    families = allowed.schedules
    return families is None or any(chunks_per_rank(family) == 1 for family in families)


def without(question: ModelQuestion, name: str, space: Allowed, budget: Budget) -> Without:
    """The best plan of a narrower space."""
    outcome = _planned(replace(question, allowed=space), budget)
    best = outcome.priced[0] if outcome.priced else None
    return Without(name=name, status=_status(outcome), best=best)


def _planned(question: ModelQuestion, budget: Budget) -> ModelOutcome:
    """The best plan; with searched orders, where they are asked for."""
    if not question.allowed.searches_orders:
        return plan_runnable(question, budget, num_alternatives=0)
    outcome = plan_runnable(question, budget)
    return with_searched_orders(question, outcome, budget, num_alternatives=0)


def _status(outcome: ModelOutcome) -> Status:
    if not outcome.priced:
        return Status.INFEASIBLE if outcome.exhausted else Status.UNKNOWN
    gap = relative_gap(outcome.priced[0].step.step_time_s, outcome.lower_bound_s)
    return Status.OPTIMAL if gap <= 1e-9 else Status.GAP


def repriced_gains(question: ModelQuestion, reprice: Reprice) -> Iterator[Gain]:
    """One percent more of each resource that the same plan can use.

    Layers that were measured take what they took, whatever the peaks of a device.
    """
    cluster = question.cluster
    more = _more_of_links(cluster)
    if not isinstance(question.model, MeasuredModel):
        more = chain(_more_of_a_device(cluster), more)
    for resource, changed in more:
        yield Gain(resource=resource, change="+1 %", step_time_s=reprice(changed), replanned=False)


def _more_of_a_device(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    pool = cluster.pool_of()
    device = pool.accelerator
    yield "peak FLOP/s", cluster.with_peak_scaled(MORE)
    faster = replace(
        device, memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * MORE
    )
    yield "memory bandwidth", replace(cluster, pools=(replace(pool, accelerator=faster),))


def _more_of_links(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    for level in cluster.pool_of().levels:
        if level.size > 1:
            rate = level.bandwidth_bytes_per_s * MORE
            yield f"{level.name} bandwidth", cluster.with_bandwidth(level.name, rate)


def memory_gain(question: ModelQuestion, best_s: float, budget: Budget) -> Gain | None:
    """The best plan with 10 GiB more on every device; None where time did not suffice.

    The plan at hand fits there too, so it is never slower.
    """
    cluster = question.cluster
    larger = cluster.with_memory(cluster.accelerator.memory_bytes + MORE_MEMORY_BYTES)
    outcome = _planned(replace(question, cluster=larger), budget)
    if not outcome.priced:
        return None
    found_s = min(best_s, outcome.priced[0].step.step_time_s)
    return Gain(resource="memory", change="+10 GiB", step_time_s=found_s, replanned=True)
