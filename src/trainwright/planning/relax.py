"""Why no plan fits, and the smallest single changes that each make one fit.

What binds is the first of: a layer that no allowed option serves, a layer too large on its own, a
stage of the leanest plan. Every change that is offered was tried: a plan that fits was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainwright.plan.results.plan import Binding, Relaxation
from trainwright.planning.feasibility import Feasibility
from trainwright.units import format_bytes, format_bytes_up

if TYPE_CHECKING:
    from trainwright.execution import Budget
    from trainwright.partitioning.restrictions import Restrictions
    from trainwright.profile import Profile, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What cannot fit, where time was enough to say, and changes that would each be enough."""

    binding: Binding | None
    relaxations: tuple[Relaxation, ...]


def diagnose(
    profile: Profile, setting: Setting, *, restrictions: Restrictions, budget: Budget
) -> Diagnosis:
    """Explain an infeasible problem; the budget bounds how finely the changes are searched."""
    question = Feasibility.of(profile, setting, restrictions=restrictions, budget=budget)
    memory_bytes = question.least_memory()
    return Diagnosis(
        binding=find_binding(question, memory_bytes),
        relaxations=tuple(_relaxations(question, memory_bytes)),
    )


def find_binding(
    question: Feasibility, memory_bytes: float | None, *, reserve_bytes: float = 0.0
) -> Binding | None:
    """What cannot fit; `memory_bytes` is the question's least memory.

    `None` where no single layer is too large and the budget ran out while all were looked at.

    `reserve_bytes` were taken off each device before the question was asked; what is printed counts
    them as needed.
    """
    needs = question.least_per_layer()
    largest = max(range(len(needs)), key=needs.__getitem__)
    layer = question.profile.structure.layers[largest].id
    missing = needs[largest] - question.setting.memory_bytes
    if needs[largest] == float("inf"):
        return Binding(
            kind="devices",
            layers=(layer,),
            missing_bytes=0.0,
            description=f"layer {layer} offers no option that "
            f"{question.setting.num_devices} devices and the chosen restrictions allow",
        )
    if missing > 0:
        return Binding(
            kind="layer",
            layers=(layer,),
            missing_bytes=missing,
            description=f"layer {layer} alone needs {format_bytes(needs[largest] + reserve_bytes)} "
            f"with one microbatch in flight, {format_bytes(missing)} more than a device has",
        )
    if question.budget.stopped:
        return None
    if memory_bytes is None:
        return Binding(
            kind="devices",
            layers=(),
            missing_bytes=0.0,
            description=f"{question.setting.num_devices} devices are too few for the tensor "
            "degrees that the layers offer, whatever their memory",
        )
    return _oversized_stage(question, memory_bytes, reserve_bytes)


def _oversized_stage(question: Feasibility, memory_bytes: float, reserve_bytes: float) -> Binding:
    """Each layer fits alone, but no cut fits: name the heaviest stage of the least-memory plan."""
    outcome = question.with_memory(memory_bytes).outcome()
    costs = [cost.memory_bytes for cost in outcome.stage_costs]
    layers: tuple[int, ...] = ()
    needed, which = memory_bytes, "a stage"
    if outcome.plan is not None:
        heaviest = max(range(len(costs)), key=costs.__getitem__)
        layers, needed = outcome.plan.stages[heaviest].layers, costs[heaviest]
        which = f"a stage ({heaviest}, counted from 0, of {len(costs)})"
    missing = needed - question.setting.memory_bytes
    return Binding(
        kind="stage",
        layers=layers,
        missing_bytes=missing,
        description=f"each layer fits alone, but even the leanest plan has {which} that needs "
        f"{format_bytes(needed + reserve_bytes)}, {format_bytes(missing)} more than a device has",
    )


def _relaxations(question: Feasibility, memory_bytes: float | None) -> Iterator[Relaxation]:
    if memory_bytes is not None:
        more = memory_bytes - question.setting.memory_bytes
        yield Relaxation(
            change="memory",
            value=memory_bytes,
            description=f"{format_bytes_up(memory_bytes)} per device ({format_bytes(more)} more)",
        )
    devices = question.fewest_devices()
    if devices is not None:
        yield Relaxation(
            change="devices",
            value=devices,
            description=f"{devices} devices ({devices - question.setting.num_devices} more)",
        )
    for fix, restrictions in lifted(question.restrictions):
        if question.with_restrictions(restrictions).fits():
            yield fix


def lifted(restrictions: Restrictions) -> Iterator[tuple[Relaxation, Restrictions]]:
    """Each thing that was switched off, with the restrictions that allow it."""
    if not restrictions.recompute:
        fix = Relaxation(change="recompute", description="allow recomputation")
        yield fix, replace(restrictions, recompute=True)
    if not restrictions.tensor_parallel:
        fix = Relaxation(change="tensor-parallel", description="allow tensor parallelism")
        yield fix, replace(restrictions, tensor_parallel=True)
    if not restrictions.data_parallel:
        fix = Relaxation(change="data-parallel", description="allow data parallelism")
        yield fix, replace(restrictions, data_parallel=True)
    for option in sorted(restrictions.excluded_options):
        fix = Relaxation(change="exclude-option", description=f'allow the option "{option}"')
        kept = restrictions.excluded_options - {option}
        yield fix, replace(restrictions, excluded_options=kept)
