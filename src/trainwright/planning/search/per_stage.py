"""A model with degrees of its own in every stage: Piper's problem on an estimated profile.

No framework runs such plans yet; they show what uniform degrees give away. Uniform plans are plans
of this space too, so the answer is never slower. The partitioner minimises the steady-state time
per microbatch, the step is then priced like any other, so the bound on the step is only that of
the least work.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.costing.estimate import Estimator, flat_setting
from trainwright.model import model_flops_per_sequence
from trainwright.partitioning.downset_dp import recompute_least, solve
from trainwright.partitioning.problem import Restrictions
from trainwright.planning.question.question import (
    Candidate,
    ModelQuestion,
    Point,
    estimate_profile_of_degrees,
    microbatch_sizes,
    tensor_degrees,
)
from trainwright.planning.question.room import missing_of_plan, room_of_devices
from trainwright.planning.search.plans import (
    hold_tied_once,
    require_largest_transient,
    reserve_transients,
)
from trainwright.planning.search.search import (
    NUM_ALTERNATIVES,
    ModelOutcome,
    best_first,
    plan_model,
)
from trainwright.planning.splits.types import Priced
from trainwright.plans.status import Status
from trainwright.profile.structure import divisors
from trainwright.step.predict import predict_step

if TYPE_CHECKING:
    from trainwright.execution import Budget
    from trainwright.execution.executor import Crew
    from trainwright.profile import Profile, Setting


def plan_per_stage(
    question: ModelQuestion,
    budget: Budget,
    *,
    num_alternatives: int = NUM_ALTERNATIVES,
    crew: Crew | None = None,
) -> ModelOutcome:
    """The best of the uniform plans, which a `crew` helps to find, and of one partitioning per
    microbatch size.

    In the latter static state is not sharded (ZeRO 0): replicas of a stage need not be alike.
    """
    workload = question.workload
    uniform = plan_model(question, budget, num_alternatives=num_alternatives, crew=crew)
    config = question.config
    estimator = question.settings.estimator(config, question.cluster)
    degrees = tensor_degrees(config, question.cluster, workload, question.allowed.tensor)
    flops = model_flops_per_sequence(config, workload.sequence_length)
    offered = [
        (size, _profile(estimator, question, size, degrees))
        for size in microbatch_sizes(workload, question.allowed.microbatch_size)
    ]
    bound_s = min(
        _least_device_s(profile) * (workload.global_batch // size) for size, profile in offered
    )
    found: list[Priced | None] = []
    for size, profile in offered:
        if budget.stopped:
            break
        found.append(_price(question, profile, size, flops, budget))
    priced = best_first([*uniform.priced, *filter(None, found)])
    may_fit = not priced and any(_may_fit(question, p, n, budget) for n, p in offered)
    best_s = priced[0].step.step_time_s if priced else math.inf
    overhead_s = question.cluster.accelerator.step_overhead_s
    bound_s = min(bound_s / question.num_devices + overhead_s, best_s)
    return ModelOutcome(
        priced=priced,
        lower_bound_s=bound_s if math.isfinite(bound_s) else 0.0,
        considered=uniform.considered + len(offered),
        pruned=uniform.pruned,
        not_reached=uniform.not_reached + len(offered) - len(found),
        exhausted=uniform.exhausted and not budget.stopped and not may_fit,
        interrupted=budget.interrupted,
    )


def _profile(
    estimator: Estimator, question: ModelQuestion, size: int, tensor: tuple[int, ...]
) -> Profile:
    point = Point(microbatch_size=size, tensor=max(tensor))
    return estimate_profile_of_degrees(estimator, question, point, tensor=tensor)


def _may_fit(question: ModelQuestion, profile: Profile, size: int, budget: Budget) -> bool:
    """Whether the profile is not proved, in the time left, to be too large."""
    if budget.stopped:
        return True
    lean = require_largest_transient(hold_tied_once(profile))
    setting = _setting(question, size)
    cut = solve(lean, setting, restrictions=_restrictions(question, size), budget=budget)
    return cut.status is not Status.INFEASIBLE


def _restrictions(question: ModelQuestion, size: int) -> Restrictions:
    """The data degrees that are allowed; one that the partitioner refuses where none divides."""
    allowed = question.allowed.data
    degrees = divisors(question.workload.global_batch // size)
    return Restrictions(
        data_degrees=tuple(filter(allowed.__contains__, degrees)) or (allowed.least,)
    )


def _setting(question: ModelQuestion, size: int) -> Setting:
    num_microbatches = question.workload.global_batch // size
    room = room_of_devices(question)
    setting = flat_setting(room, num_microbatches=num_microbatches)
    return replace(setting, num_devices=question.num_devices)


def _price(
    question: ModelQuestion, profile: Profile, size: int, flops: float, budget: Budget
) -> Priced | None:
    restrictions = _restrictions(question, size)
    roomy, setting = reserve_transients(profile, _setting(question, size), restrictions)
    found = solve(roomy, setting, restrictions=restrictions, budget=budget)
    cut = recompute_least(found, roomy, setting, restrictions=restrictions)
    if cut.plan is None or len(cut.plan.stages) not in question.allowed.pipeline:
        return None
    plan = replace(cut.plan, microbatch_size=size)
    step = predict_step(
        plan,
        profile,
        question.cluster,
        model_flops_per_sequence=flops,
        overlap=question.settings.overlap,
        overheads=question.overheads,
    )
    if missing_of_plan(question, plan, profile, step) > 0:
        return None
    candidate = Candidate(
        microbatch_size=size,
        tensor=max(stage.tensor_parallel for stage in plan.stages),
        pipeline=len(plan.stages),
        data=max(stage.data_parallel for stage in plan.stages),
        zero_stage=0,
    )
    return Priced(candidate=candidate, plan=plan, profile=profile, step=step)


def _least_device_s(profile: Profile) -> float:
    """Device seconds of one microbatch if every layer took its cheapest option."""
    costs = profile.costs
    device_s = costs.duration_s * costs.tensor_parallel
    by_class = [float(device_s[costs.rows_of(c)].min()) for c in range(costs.num_classes)]
    return sum(by_class[layer.layer_class] for layer in profile.structure.layers)
