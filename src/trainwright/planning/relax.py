"""Why no plan fits, and the smallest single change that makes one fit.

Feasibility ignores time, so every question here is asked of a profile whose times and traffic are
zero: the partitioner then only has to find stages that fit. Memory is bisected (more memory never
hurts), device counts are searched the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.partitioning.downset_dp import solve
from trainwright.partitioning.restrictions import surviving_rows
from trainwright.plan.results.plan import Binding, Relaxation
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from trainwright.execution import Budget
    from trainwright.partitioning.outcome import PartitionOutcome
    from trainwright.partitioning.restrictions import Restrictions
    from trainwright.profile import Profile, Setting

_MEMORY_TOLERANCE: Final = 1e-4
_MAX_DOUBLINGS: Final = 64
_MAX_DEVICES: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What cannot fit, and the changes that would each be enough."""

    binding: Binding
    relaxations: tuple[Relaxation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """The infeasible problem with all times removed."""

    profile: Profile
    setting: Setting
    restrictions: Restrictions
    budget: Budget

    def outcome(self) -> PartitionOutcome:
        return solve(self.profile, self.setting, restrictions=self.restrictions, budget=self.budget)

    def fits(self) -> bool:
        return self.outcome().plan is not None

    def with_memory(self, memory_bytes: float) -> _Question:
        return replace(self, setting=replace(self.setting, memory_bytes=memory_bytes))

    def with_devices(self, num_devices: int) -> _Question:
        return replace(self, setting=replace(self.setting, num_devices=num_devices))


def diagnose(
    profile: Profile, setting: Setting, *, restrictions: Restrictions, budget: Budget
) -> Diagnosis:
    """Explain an infeasible problem; the budget bounds how finely the changes are searched."""
    question = _Question(
        profile=_without_times(profile), setting=setting, restrictions=restrictions, budget=budget
    )
    memory_bytes = _least_memory(question)
    binding = _unservable_layer(question) or _oversized_layer(question)
    if binding is None:
        binding = _oversized_stage(question, memory_bytes)
    relaxations = tuple(_relaxations(question, memory_bytes))
    return Diagnosis(binding=binding, relaxations=relaxations)


def _without_times(profile: Profile) -> Profile:
    costs = profile.costs
    nothing = np.zeros_like(costs.duration_s)
    free = replace(
        costs,
        duration_s=nothing,
        gradient_sync_bytes=np.zeros_like(costs.gradient_sync_bytes),
        boundary_offsets=np.zeros_like(costs.boundary_offsets),
        boundary_bytes=np.zeros(0),
        phases=None,
        time_by_kind_s=None,
    )
    edges = tuple(replace(edge, bytes=0.0) for edge in profile.structure.edges)
    return replace(profile, costs=free, structure=replace(profile.structure, edges=edges))


def _least_memory(question: _Question) -> float | None:
    """The smallest memory (within 1e-4, from above) at which a plan fits; `None` if unknown."""
    low = question.setting.memory_bytes
    high = low
    for _ in range(_MAX_DOUBLINGS):
        high *= 2
        if question.with_memory(high).fits():
            break
        if question.budget.remaining_s <= 0 or question.budget.interrupted:
            return None
        low = high
    else:
        return None
    while high / low > 1 + _MEMORY_TOLERANCE and question.budget.remaining_s > 0:
        middle = (low * high) ** 0.5
        if question.with_memory(middle).fits():
            high = middle
        else:
            low = middle
    return high


def _least_per_layer(question: _Question) -> Iterator[tuple[int, float]]:
    """For each layer index the least memory of one microbatch over all options; inf if none."""
    costs = question.profile.costs
    kept = surviving_rows(costs, question.restrictions)
    kept &= costs.tensor_parallel <= question.setting.num_devices
    need = np.where(kept, costs.saved_bytes + costs.total_static_bytes, np.inf)
    by_class = [float(need[costs.rows_of(c)].min()) for c in range(costs.num_classes)]
    for index, layer in enumerate(question.profile.structure.layers):
        yield index, by_class[layer.layer_class]


def _unservable_layer(question: _Question) -> Binding | None:
    layers = question.profile.structure.layers
    for index, need in _least_per_layer(question):
        if need == np.inf:
            return Binding(
                kind="devices",
                layers=(layers[index].id,),
                missing_bytes=0.0,
                description=f"layer {layers[index].id} offers no option that "
                f"{question.setting.num_devices} devices and the chosen restrictions allow",
            )
    return None


def _oversized_layer(question: _Question) -> Binding | None:
    index, need = max(_least_per_layer(question), key=lambda pair: pair[1])
    missing = need - question.setting.memory_bytes
    if missing <= 0:
        return None
    layer = question.profile.structure.layers[index].id
    return Binding(
        kind="layer",
        layers=(layer,),
        missing_bytes=missing,
        description=f"layer {layer} alone needs {format_bytes(need)} with one microbatch in "
        f"flight, {format_bytes(missing)} more than a device has",
    )


def _oversized_stage(question: _Question, memory_bytes: float | None) -> Binding:
    """Each layer fits alone, but no cut fits: name the heaviest stage of the least-memory plan."""
    limit = question.setting.memory_bytes
    if memory_bytes is None:
        return Binding(
            kind="devices",
            layers=(),
            missing_bytes=0.0,
            description="no amount of memory tried makes a plan fit on these devices",
        )
    outcome = question.with_memory(memory_bytes).outcome()
    assert outcome.plan is not None
    costs = [cost.memory_bytes for cost in outcome.stage_costs]
    heaviest = max(range(len(costs)), key=costs.__getitem__)
    missing = costs[heaviest] - limit
    return Binding(
        kind="stage",
        layers=outcome.plan.stages[heaviest].layers,
        missing_bytes=missing,
        description=f"each layer fits alone, but even the leanest plan has a stage (number "
        f"{heaviest} of 0 to {len(costs) - 1}) that needs {format_bytes(costs[heaviest])}, "
        f"{format_bytes(missing)} more than a device has",
    )


def _relaxations(question: _Question, memory_bytes: float | None) -> Iterator[Relaxation]:
    if memory_bytes is not None:
        more = memory_bytes - question.setting.memory_bytes
        yield Relaxation(
            change="memory",
            value=memory_bytes,
            description=f"{format_bytes(memory_bytes)} per device ({format_bytes(more)} more)",
        )
    devices = _fewest_devices(question)
    if devices is not None:
        yield Relaxation(
            change="devices",
            value=devices,
            description=f"{devices} devices ({devices - question.setting.num_devices} more)",
        )
    recompute = replace(question.restrictions, recompute=True)
    if not question.restrictions.recompute and replace(question, restrictions=recompute).fits():
        yield Relaxation(change="recompute", description="allow recomputation")


def _fewest_devices(question: _Question) -> int | None:
    low = question.setting.num_devices
    most = question.setting.num_microbatches * int(question.profile.costs.tensor_parallel.max())
    most = max(low, min(_MAX_DEVICES, most))
    if low == most or not question.with_devices(most).fits():
        return None
    high = most
    while high - low > 1 and question.budget.remaining_s > 0:
        middle = (low + high) // 2
        if question.with_devices(middle).fits():
            high = middle
        else:
            low = middle
    return high
