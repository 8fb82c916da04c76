"""From the best split of a candidate to a priced plan.

The split that reaches the bound is decoded and simulated. The bound leaves out how bottlenecks
delay each other, so where the simulated step is longer the partitioner's split, whose longest stage
is the shortest possible, is tried beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from trainwright.model import model_flops_per_sequence
from trainwright.partitioning.downset_dp import solve
from trainwright.partitioning.ties import recompute_least
from trainwright.plan import Plan, Stage
from trainwright.planning.family_split import IN_V
from trainwright.planning.model_problem import candidate_restrictions, roomy_problem
from trainwright.planning.schedules import ONE_F_ONE_B
from trainwright.planning.v_plan import SplitTries, Tried, fastest_plan, fastest_with_less_room
from trainwright.planning.v_rooms import fastest_in_rooms, is_small
from trainwright.pricing.step import predict_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trainwright.cluster import Accelerator
    from trainwright.execution import Budget
    from trainwright.plan import StepPrediction
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.planning.model_space import Candidate
    from trainwright.planning.split_bound import CutsAndRows, Split
    from trainwright.planning.split_question import SplitQuestion
    from trainwright.profile import Layer, Profile

_NEAR: Final = 1.001  # a step this close to its bound is not worth another split
_OF_A_V: Final = 2  # splits that a search in V finds, unless one is longer than its limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A candidate with its plan, the profile it was cut from, and its predicted step."""

    candidate: Candidate
    plan: Plan
    profile: Profile
    step: StepPrediction


def price_split(
    question: ModelQuestion,
    candidate: Candidate,
    profile: Profile,
    split: Split,
    budget: Budget,
    *,
    limit_s: float = math.inf,
    again: SplitQuestion | None = None,
    in_rooms: bool = False,
) -> Priced | None:
    """The fastest plan of the split's cuts and, if that misses its bound, the partitioner's.

    None where none fits; of families in V, where `least_step_s` is above the limit, too. `again` is
    what to ask with less room where a split in V misses the memory, and `in_rooms` to ask it with
    many rooms in any case (`v_rooms`), where that is quickly done.
    """
    every = (*([(split.cuts, split.chosen)] if split.cuts else []), *split.others)
    plans = [_plan(question, candidate, _stages_of(*each, candidate, profile)) for each in every]
    if candidate.schedule in IN_V:
        tried = fastest_plan(question, profile, plans, limit_s=limit_s)
        if again is not None and tried.missing_bytes:
            if len(every) < _OF_A_V:  # the other may have room as it is
                tried = replace(tried, missing_bytes=0.0)
            tried = _with_less_room(question, candidate, profile, again, tried, limit_s=limit_s)
        if again is not None and in_rooms and is_small(again):
            tries = split_tries(question, candidate, profile)
            tried = fastest_in_rooms(again, tries, tried, limit_s=limit_s, but=frozenset(every))
        return None if tried.plan is None else _priced(question, candidate, profile, tried.plan)
    found = [_priced(question, candidate, profile, plan) for plan in plans]
    if candidate.schedule == ONE_F_ONE_B and not _is_near(found, split.bound_s):
        found.append(_partitioned(question, candidate, profile, budget))
    return min(
        (each for each in found if each is not None),
        key=lambda each: each.step.step_time_s,
        default=None,
    )


def _with_less_room(
    question: ModelQuestion,
    candidate: Candidate,
    profile: Profile,
    asked: SplitQuestion,
    tried: Tried,
    *,
    limit_s: float,
) -> Tried:
    tries = split_tries(question, candidate, profile)
    found = fastest_with_less_room(
        asked, tried.missing_bytes, tries.fastest, limit_s=min(limit_s, tried.step_s)
    )
    return tried.or_faster(found)


def split_tries(question: ModelQuestion, candidate: Candidate, profile: Profile) -> SplitTries:
    """To try splits of a candidate in V."""

    def plan_of(split: CutsAndRows) -> Plan:
        return _plan(question, candidate, _stages_of(*split, candidate, profile))

    return SplitTries(question=question, profile=profile, plan_of=plan_of)


def _is_near(found: Iterable[Priced | None], bound_s: float) -> bool:
    """Whether a plan is so close to the bound that no other split is worth a look."""
    return any(each is not None and each.step.step_time_s <= _NEAR * bound_s for each in found)


def _stages_of(
    cuts: tuple[int, ...],
    chosen: tuple[tuple[int, ...], ...],
    candidate: Candidate,
    profile: Profile,
) -> Iterator[Stage]:
    layers = profile.structure.layers
    for (first, after), counts in zip(pairwise(cuts), chosen, strict=True):
        own = layers[first:after]
        yield Stage.uniform(
            tuple(layer.id for layer in own),
            options_of(own, counts, profile),
            data_parallel=candidate.data,
            tensor_parallel=candidate.tensor,
        )


def options_of(layers: Sequence[Layer], chosen: Sequence[int], profile: Profile) -> tuple[str, ...]:
    """How each layer of a stage runs; of a class, the layers that recompute most come first."""
    costs, left, options = profile.costs, list(chosen), []
    for layer in layers:
        row = max(row for row in costs.rows_of(layer.layer_class) if left[row])
        left[row] -= 1
        options.append(costs.option_ids[row])
    return tuple(options)


def _partitioned(
    question: ModelQuestion, candidate: Candidate, profile: Profile, budget: Budget
) -> Priced | None:
    restrictions = candidate_restrictions(candidate)
    roomy, setting = roomy_problem(question, candidate, profile)
    found = solve(roomy, setting, restrictions=restrictions, budget=budget)
    cut = recompute_least(found, roomy, setting, restrictions=restrictions)
    if cut.plan is None or len(cut.plan.stages) != candidate.pipeline:
        return None
    plan = _plan(question, candidate, iter(cut.plan.stages))
    return _priced(question, candidate, profile, plan)


def least_step_s(step: StepPrediction, device: Accelerator) -> float:
    """The pipeline alone, before anything is synchronised."""
    return step.pipeline_s + device.step_overhead_s


def price_cuts(
    question: ModelQuestion, candidate: Candidate, profile: Profile, split: CutsAndRows
) -> Priced | None:
    """The plan of some cuts, priced; None where it does not fit."""
    plan = _plan(question, candidate, _stages_of(*split, candidate, profile))
    return _priced(question, candidate, profile, plan)


def _plan(question: ModelQuestion, candidate: Candidate, stages: Iterator[Stage]) -> Plan:
    return Plan(
        stages=tuple(stages),
        num_microbatches=question.workload.global_batch // candidate.microbatch_size,
        microbatch_size=candidate.microbatch_size,
        schedule=candidate.schedule,
        parallelism=candidate.degrees,
    )


def _priced(
    question: ModelQuestion, candidate: Candidate, profile: Profile, plan: Plan
) -> Priced | None:
    """The plan priced; None where it does not fit."""
    length = question.workload.sequence_length
    step = predict_step(
        plan,
        profile,
        question.cluster,
        model_flops_per_sequence=model_flops_per_sequence(question.model, length),
        overlap=question.settings.overlap,
        overheads=question.overheads,
    )
    if not question.holds(step.peak_memory_bytes):
        return None
    return Priced(candidate=candidate, plan=plan, profile=profile, step=step)
