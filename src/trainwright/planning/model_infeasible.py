"""Why a model does not fit on a cluster: the leanest candidate, and what would make it fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainwright.costing.estimate import Estimator
from trainwright.errors import InvalidInput
from trainwright.plan.results.plan import Binding, Relaxation
from trainwright.planning.model_planner import (
    candidate_restrictions,
    estimate_profile,
    partition_problem,
    plan_model,
    reserve_transients,
)
from trainwright.planning.model_space import candidates, microbatch_sizes, tensor_degrees
from trainwright.planning.relax import Diagnosis, diagnose
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.execution import Budget
    from trainwright.planning.model_planner import ModelQuestion

_MAX_DOUBLINGS: Final = 6


def diagnose_model(question: ModelQuestion, budget: Budget) -> Diagnosis:
    """What binds in the deepest, widest candidate, and single changes that are enough."""
    workload = question.workload
    size = microbatch_sizes(workload, question.microbatch_size)[0]
    tensor = tensor_degrees(
        question.model,
        question.cluster,
        workload,
        tensor_parallel=question.restrictions.tensor_parallel,
    )[-1]
    estimator = Estimator(model=question.model, cluster=question.cluster)
    profile = estimate_profile(estimator, question, microbatch_size=size, tensor=(tensor,))
    offered = list(
        candidates(
            num_devices=question.num_devices,
            num_layers=len(profile.structure.layers),
            num_microbatches=workload.global_batch // size,
            microbatch_size=size,
            tensor=tensor,
            data_parallel=question.restrictions.data_parallel,
        )
    )
    if not offered:
        return Diagnosis(binding=_too_few_devices(question, tensor), relaxations=())
    restrictions = candidate_restrictions(question, offered[-1])
    surrogate, setting = reserve_transients(
        *partition_problem(question, offered[-1], profile), restrictions
    )
    found = diagnose(surrogate, setting, restrictions=restrictions, budget=budget)
    kept = tuple(fix for fix in found.relaxations if fix.change != "devices")
    reserve = question.cluster.accelerator.usable_bytes - setting.memory_bytes
    more = tuple(_with_reserve(fix, reserve) for fix in kept)
    return Diagnosis(binding=found.binding, relaxations=(*more, *_more_nodes(question, budget)))


def _too_few_devices(question: ModelQuestion, tensor: int) -> Binding:
    return Binding(
        kind="devices",
        layers=(),
        missing_bytes=0.0,
        description=f"{question.num_devices} devices are fewer than one tensor group of {tensor}",
    )


def _with_reserve(fix: Relaxation, reserve_bytes: float) -> Relaxation:
    """Memory as the device has it, with the part kept free for transients."""
    if fix.change != "memory" or fix.value is None:
        return fix
    needed = fix.value + reserve_bytes
    return replace(
        fix, value=needed, description=f"{format_bytes(needed)} of usable memory per device"
    )


def _more_nodes(question: ModelQuestion, budget: Budget) -> Iterator[Relaxation]:
    pool = question.cluster.pool_of()
    nodes = pool.num_nodes
    for _ in range(_MAX_DOUBLINGS):
        nodes *= 2
        try:
            larger = question.cluster.with_nodes(nodes)
        except InvalidInput:
            return
        tried = replace(question, cluster=larger, num_devices=larger.num_devices)
        outcome = plan_model(tried, budget)
        if outcome.priced:
            yield Relaxation(
                change="devices",
                value=larger.num_devices,
                description=f"{larger.num_devices} devices ({nodes} nodes)",
            )
            return
