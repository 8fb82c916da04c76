"""A candidate of a model as a problem for the partitioner.

The partitioner adds bytes up, layer by layer. Three things of a stage do not add up: transients
count at their largest, weights that ZeRO-3 gathers likewise, and parameters tied between layers are
held once by a stage with both. What fits the *roomy* problem fits with all of them; beside it
stand two changes of a profile that take no plan away, for proofs that none fits. Gradient
synchronisation is left out; `step` knows how much of it hides.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainwright.cluster import Accelerator
from trainwright.costing.estimate import flat_setting
from trainwright.execution import Budget
from trainwright.model import LayerKind
from trainwright.partitioning.downset_dp import Restrictions, recompute_least, solve, surviving_rows
from trainwright.planning.bounds.stages import StageKinds
from trainwright.planning.question import layouts
from trainwright.planning.question.question import (
    Aim,
    Allowed,
    Candidate,
    ModelQuestion,
    Point,
    estimate_profile,
    missing_of_plan,
    room_of_candidate,
    room_of_devices,
    room_of_peak,
    run_of_plan,
)
from trainwright.planning.search.frontier import Shelf
from trainwright.planning.splits.chain import CutsAndRows, Site, Split, fastest_ways
from trainwright.planning.splits.types import (
    Priced,
    SplitQuestion,
    in_first_blocks,
    options_of,
    with_fewer_first_blocks,
    with_whole_head,
)
from trainwright.planning.splits.vee_cuts import (
    SplitTries,
    Tried,
    fastest_in_rooms,
    fastest_plan,
    fastest_with_less_room,
    fastest_without_pauses,
    is_small,
)
from trainwright.plans import Plan, Stage, StagePrediction, StepPrediction
from trainwright.plans.capability import capability_of
from trainwright.plans.configuration import own_split
from trainwright.plans.plan import AXIS_ORDERS, Parallelism
from trainwright.profile import Profile, Recompute, Setting, StaticKind
from trainwright.profile.measured_model import MeasuredModel
from trainwright.scheduling.families import family_named
from trainwright.step import zero
from trainwright.step.account import host_activations, on_the_host
from trainwright.step.figures import start_bytes
from trainwright.step.pipeline import PipelineShape, slices_of
from trainwright.step.predict import predict_step, with_communication
from trainwright.step.stages import group_replicas

if TYPE_CHECKING:
    from trainwright.arrays import Floats

    Profiles = Mapping[int, Profile]  # by pool
    Price = Callable[[ModelQuestion, Plan, Profiles], Sequence[StagePrediction]]
    Problem = tuple[Profile, Setting]


def candidate_restrictions(candidate: Candidate) -> Restrictions:
    """The candidate's degrees alone; its profile has no options but those allowed."""
    return Restrictions(data_degrees=(candidate.data,), tensor_degrees=(candidate.tensor,))


def roomy_problem(question: ModelQuestion, candidate: Candidate, profile: Profile) -> Problem:
    """What fits here fits with transients, gathered weights and tied parameters too."""
    sizes = _replicas(candidate)
    on_device = question.cluster.accelerator.held_weights
    layers = zero.gathered_layers(candidate.zero_stage, sizes[0], held=on_device)
    gathered = _weights(profile) * layers if layers else None
    held = hold_tied_once(profile) if candidate.pipeline == 1 else profile
    setting = candidate_setting(question, candidate, profile)
    restrictions = candidate_restrictions(candidate)
    sharded = _sharded(held, candidate, on_device)
    # Each rank is one stage of the partitioner.
    beside = float(zero.beside_layers_bytes(candidate.zero_stage, sizes))
    setting = replace(setting, memory_bytes=max(1.0, setting.memory_bytes - beside))
    return reserve_transients(sharded, setting, restrictions, gathered_bytes=gathered)


def _replicas(candidate: Candidate) -> tuple[int, int]:
    """Devices that share the state of the same dense parameters, and of the same experts."""
    point, data = candidate.point, candidate.data // candidate.state_copies
    return data * point.context, max(1, point.devices * data // point.expert_devices)


def candidate_setting(question: ModelQuestion, candidate: Candidate, profile: Profile) -> Setting:
    """The candidate's devices, those of a context group counted once, and microbatches."""
    num_microbatches = question.workload.microbatches(candidate.microbatch_size)
    room = room_of_candidate(question, candidate, profile)
    setting = flat_setting(room, num_microbatches=num_microbatches)
    return replace(setting, num_devices=candidate.num_devices // candidate.context)


def reserve_transients(
    profile: Profile,
    setting: Setting,
    restrictions: Restrictions,
    *,
    gathered_bytes: Floats | None = None,
) -> Problem:
    """Room for transients, and for gathered weights of shape [R]: what fits here fits with them.

    The largest of the repeated layers is kept free on every device; a layer that exists once adds
    what it needs beyond that.
    """
    once = _exists_once(profile)
    repeated = ~once & surviving_rows(profile.costs, restrictions)
    reserve_bytes, beyond = 0.0, np.zeros(len(once))
    for needed in (profile.costs.transient_bytes, gathered_bytes):
        if needed is not None:
            largest = float(needed[repeated].max(initial=0.0))
            reserve_bytes += largest
            beyond += np.where(once, np.maximum(needed - largest, 0.0), 0.0)
    memory_bytes = max(1.0, setting.memory_bytes - reserve_bytes)
    return _with_static(profile, beyond), replace(setting, memory_bytes=memory_bytes)


def require_largest_transient(profile: Profile) -> Profile:
    """The largest transient of a layer that exists once: what does not fit here never fits.

    Some stage holds that layer, and while the layer runs its transient lies beside all the rest.
    """
    costs = profile.costs
    alone = np.where(_exists_once(profile), costs.transient_bytes, 0.0)
    least = np.minimum.reduceat(alone, costs.class_offsets[:-1])
    largest = np.arange(costs.num_classes) == least.argmax()
    rows = np.repeat(largest, np.diff(costs.class_offsets))
    return _with_static(profile, np.where(rows, alone, 0.0))


def _exists_once(profile: Profile) -> NDArray[np.bool_]:
    """Which rows belong to a layer that has its class for itself, shape [R]."""
    counts = np.bincount([layer.layer_class for layer in profile.structure.layers])
    return np.repeat(counts == 1, np.diff(profile.costs.class_offsets))


def _with_static(profile: Profile, added_bytes: Floats) -> Profile:
    costs = profile.costs
    static_bytes = costs.opaque_static_bytes + added_bytes
    return replace(profile, costs=replace(costs, opaque_static_bytes=static_bytes))


def _weights(profile: Profile) -> Floats:
    """Weight bytes of each row, shape [R]."""
    weights: Floats = profile.costs.static_bytes[:, :, StaticKind.WEIGHT].sum(axis=1)
    return weights


def hold_tied_once(profile: Profile) -> Profile:
    """Tied parameters are with one of their layers alone: no plan holds less.

    That is the first that no other is like, as layers that are alike hold as much; where there is
    none, no layer holds them.
    """
    costs, layers = profile.costs, profile.structure.layers
    static = costs.static_bytes.copy()
    for group in profile.structure.shared_parameters:
        kinds = Counter(layers[layer].layer_class for layer in group.layers)
        holder = next((kind for kind, count in kinds.items() if count == 1), None)
        for kind in kinds.keys() - {holder}:
            rows = np.array(costs.rows_of(kind))
            weight = static[rows, 0, StaticKind.WEIGHT]
            tied = group.bytes / costs.tensor_parallel[rows]
            kept = np.where(weight > 0, 1 - np.minimum(1.0, tied / np.maximum(weight, 1e-300)), 1.0)
            static[rows, 0] *= kept[:, np.newaxis]
    return replace(profile, costs=replace(costs, static_bytes=static))


def _sharded(profile: Profile, candidate: Candidate, held_weights: float) -> Profile:
    """State divided over the replicas by ZeRO, and no gradient synchronisation."""
    costs, sizes = profile.costs, _replicas(candidate)
    surrogate = replace(
        costs,
        static_bytes=zero.kept_bytes(
            candidate.zero_stage, sizes, costs.static_bytes, held=held_weights
        ),
        gradient_sync_bytes=np.zeros_like(costs.gradient_sync_bytes),
    )
    return replace(profile, costs=surrogate)


# Is the state of a model alone more than all devices together hold?
# ------------------------------------------------------------------
# Every plan keeps each weight, gradient and optimizer state at least once, however it is cut and
# sharded, so its fullest device holds at least the total over the number of devices; of weights
# that ZeRO-3 shards, the share that hosts leave. Tensor groups repeat norms and pad the vocabulary,
# so the total is least without any. One profile is priced; where the answer is yes, no layout has
# to be looked at.

_BELOW_ONE = 1 - 1e-9  # sums of floats may round


def is_more_than_all_devices_hold(question: ModelQuestion) -> bool:
    """Whether no plan on the question's devices can hold the state of its model."""
    room_bytes = room_of_devices(question).accelerator.usable_bytes
    return least_state_bytes(question) * _BELOW_ONE > room_bytes * question.num_devices


def least_state_bytes(question: ModelQuestion) -> float:
    """Weights, gradients and optimizer states that all devices hold, each once."""
    if isinstance(question.model, MeasuredModel):
        return question.model.least_state_bytes()
    expert_tensor = None if question.model.experts is None else 1
    whole = Point(microbatch_size=1, tensor=1, expert_tensor=expert_tensor)
    state = state_bytes(estimate_profile(question.estimator(), question, whole))
    held, stages = question.cluster.accelerator.held_weights, question.allowed.zero_stages
    return float(zero.kept_bytes(max(stages), (1, 1), state, held=held).sum())


def state_bytes(profile: Profile) -> NDArray[np.float64]:
    """Of the whole model before sharding over replicas, tied parameters once: shape [2, 3]."""
    held = hold_tied_once(profile)
    first = held.costs.class_offsets[[layer.layer_class for layer in held.structure.layers]]
    total: NDArray[np.float64] = held.costs.static_bytes[first].sum(axis=0)
    return total


# From the best split of a candidate to a priced plan
# ---------------------------------------------------
# The split that reaches the bound is decoded and simulated. The bound leaves out how bottlenecks
# delay each other, so where the simulated step is longer the partitioner's split, whose longest
# stage is the shortest possible, is tried beside it.

_NEAR: Final = 1.001  # a step this close to its bound is not worth another split
_TRIES: Final = 4  # partitions with ever less room
_OF_A_V: Final = 2  # splits that a search in V finds, unless one is longer than its limit


@dataclass(frozen=True, slots=True)
class PlanAsk:
    """The fastest plan of a candidate's split, priced; None where none fits.

    It is None where it is known to be longer than a limit, too (`plans_of_split`). A limit
    that has come down since it was handed out leaves an answer right.
    """

    candidate: Candidate
    split: Split
    limit_s: float = field(default=math.inf, compare=False)
    may_tighten: bool = False  # whether splits in V that miss the memory are looked for with less
    in_rooms: bool = False  # and with many rooms, where that is quickly done

    def answer(self, shelf: Shelf, budget: Budget) -> Priced | None:
        """Decode and simulate."""
        question, candidate = shelf.question, self.candidate
        profile = shelf.profile(candidate.point)
        if splits_itself(question.allowed):
            own = plan_of_own_stages(question, candidate, profile, shelf.kinds_of(candidate))
            return None if own is None else price_plan(question, candidate, profile, own)
        plans = plans_of_split(
            question,
            candidate,
            profile,
            self.split,
            limit_s=self.limit_s,
            again=asked_of(shelf, candidate) if self.may_tighten or self.in_rooms else None,
            in_rooms=self.in_rooms,
        )
        found = [price_plan(question, candidate, profile, plan) for plan in plans]
        bound_s = self.split.bound_s
        found += price_beside(question, candidate, profile, plans, found, budget, bound_s=bound_s)
        fitting = (each for each in found if each is not None)
        return min(fitting, key=lambda each: each.step.step_time_s, default=None)


def asked_of(shelf: Shelf, candidate: Candidate) -> SplitQuestion:
    """What the search for splits of a candidate is asked."""
    question = shelf.question
    return SplitQuestion(
        kinds=shelf.kinds_of(candidate),
        head=shelf.head_of(candidate),
        hosted=shelf.hosted_of(candidate),
        degrees=candidate.degrees,
        cluster=shelf.room_of(candidate),
        family=candidate.schedule,
        num_microbatches=slices_of(candidate.schedule, candidate.pipeline)
        * candidate.num_microbatches(question.workload),
        effort=question.effort,
    )


def plans_of_split(
    question: ModelQuestion,
    candidate: Candidate,
    profile: Profile,
    split: Split,
    *,
    limit_s: float = math.inf,
    again: SplitQuestion | None = None,
    in_rooms: bool = False,
) -> list[Plan]:
    """The plans of the split's cuts, to be priced.

    Of families in V it is the fastest alone, if that fits and `least_step_s` is within the limit.
    `again` is what to ask with less room where a split in V misses the memory, and `in_rooms` to
    ask it with many rooms in any case (`vee_cuts.fastest_in_rooms`), where that is quickly done.
    """
    every = (*([(split.cuts, split.chosen)] if split.cuts else []), *split.others)
    plans = [
        _plan(question, candidate, profile, _stages_of(*each, candidate, profile)) for each in every
    ]
    if candidate.schedule not in layouts.IN_V:
        return plans
    tried = fastest_plan(question, profile, plans, limit_s=limit_s)
    if again is not None and tried.missing_bytes:
        if len(every) < _OF_A_V:  # the other may have room as it is
            tried = replace(tried, missing_bytes=0.0)
        tried = _with_less_room(question, candidate, profile, again, tried, limit_s=limit_s)
    if again is not None and in_rooms and is_small(again):
        tries = split_tries(question, candidate, profile)
        tried = fastest_in_rooms(again, tries, tried, limit_s=limit_s, but=frozenset(every))
    return [] if tried.plan is None else [tried.plan]


def price_beside(
    question: ModelQuestion,
    candidate: Candidate,
    profile: Profile,
    plans: Sequence[Plan],
    found: Sequence[Priced | None],
    budget: Budget,
    *,
    bound_s: float,
) -> Iterator[Priced]:
    """The partitioner's plan, where the plans of a split were priced and miss their bound.

    If nothing fits even then, one with room for what a framework keeps beside the model.
    """
    beside = layouts.CUTS_HEAD | layouts.ON_HOST | layouts.SLICED
    if candidate.schedule not in layouts.WHOLE_BACKWARD - beside or _is_near(found, bound_s):
        return
    plan = _partition(question, candidate, profile, budget)
    other = None if plan is None else price_plan(question, candidate, profile, plan)
    missing = other is None and not any(found)
    if missing and (question.keeps_beside or _starts_fuller(question, profile, plans)):
        other = _beside_account(question, candidate, profile, budget)
    if other is not None:
        yield other


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
        return _plan(question, candidate, profile, _stages_of(*split, candidate, profile))

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


def _partition(
    question: ModelQuestion,
    candidate: Candidate,
    profile: Profile,
    budget: Budget,
    *,
    less_bytes: float = 0.0,
) -> Plan | None:
    """The partitioner's plan, with less room on every device."""
    restrictions = candidate_restrictions(candidate)
    roomy, setting = roomy_problem(question, candidate, profile)
    setting = replace(setting, memory_bytes=max(1.0, setting.memory_bytes - less_bytes))
    found = solve(roomy, setting, restrictions=restrictions, budget=budget)
    cut = recompute_least(found, roomy, setting, restrictions=restrictions)
    if cut.plan is None or len(cut.plan.stages) != candidate.pipeline:
        return None
    return _plan(question, candidate, profile, cut.plan.stages)


def _starts_fuller(question: ModelQuestion, profile: Profile, plans: Sequence[Plan]) -> bool:
    """Whether one of the plans is fuller before its first step than in any."""
    account, device = question.account, question.cluster.accelerator
    if account is None or not account.copies_weights or not plans:
        return False
    step = predict_step(plans[0], profile, question.cluster, **question.step_terms)
    run = run_of_plan(question, plans[0], profile)
    starts = (start_bytes(run, stage.memory, device, account) for stage in step.stages)
    return max(starts) > step.peak_memory_bytes


def _beside_account(
    question: ModelQuestion, candidate: Candidate, profile: Profile, budget: Budget
) -> Priced | None:
    """A plan with room for what its framework keeps beside the tensors of the model.

    How much that is follows from the plan: each try leaves what the one before it lacked.
    """
    if candidate.pipeline > 1 and splits_itself(question.allowed):
        return None
    less_bytes = 0.0
    for _ in range(_TRIES):
        plan = _partition(question, candidate, profile, budget, less_bytes=less_bytes)
        if plan is None:
            return None
        step = predict_step(plan, profile, question.cluster, **question.step_terms)
        lacks_bytes = missing_of_plan(question, plan, profile, step)
        if lacks_bytes <= 0:
            if not _host_holds(question, plan, profile, step):
                return None
            return Priced(candidate=candidate, plan=plan, profile=profile, step=step)
        less_bytes += lacks_bytes
    return None


def priced_in_full(question: ModelQuestion, priced: Priced) -> Priced:
    """With what its step communicates, which takes orders in V as long again as all else."""
    if priced.step.communication or priced.candidate.schedule not in layouts.IN_V:
        return priced
    step = with_communication(
        priced.step, priced.plan, priced.profile, question.cluster, **question.step_settings
    )
    return replace(priced, step=step)


def _host_holds(
    question: ModelQuestion, plan: Plan, profile: Profile, step: StepPrediction
) -> bool:
    """Whether the host has room, and its link one user: layers, or orders that copy."""
    if both_copy(plan, profile):
        return False
    host = question.cluster.accelerator.host
    return host is None or bytes_on_host(question, plan, profile, step) <= host.memory_bytes


def bytes_on_host(
    question: ModelQuestion, plan: Plan, profile: Profile, step: StepPrediction
) -> float:
    """The most that a device keeps on its host."""
    return max(host_bytes_of_ranks(question, plan, profile, step), default=0.0)


def host_bytes_of_ranks(
    question: ModelQuestion, plan: Plan, profile: Profile, step: StepPrediction
) -> tuple[float, ...]:
    """What a device of each rank keeps on its host; see `host_bytes_of`."""
    return host_bytes_of(
        question,
        plan,
        {0: profile},
        step.stages,
        lambda asked, ordered, found: (
            predict_step(ordered, found[0], asked.cluster, **asked.step_terms).stages
        ),
    )


def host_bytes_of(
    question: ModelQuestion,
    plan: Plan,
    profiles: Profiles,
    stages: Sequence[StagePrediction],
    price: Price,
) -> tuple[float, ...]:
    """What a device of each rank keeps on its host, empty where none does: more it would hold
    itself of shares of the whole run, and what its layers leave there.

    `profiles` are those of the pools in use, `stages` what the ranks of all chains do, which
    `price` says of other questions, plans and profiles.
    """
    by_layer = _bytes_by_layer(question, plan, profiles, price)
    settings, beside = question.settings, None
    if plan.order is None:
        beside = family_named(plan.schedule).host_of
    alone = question
    if settings.recipe.offload is not None and not isinstance(question.model, MeasuredModel):
        settings = replace(settings, recipe=replace(settings.recipe, offload=None))
        cluster = zero.with_all_weights(question.cluster)
        alone = replace(question, settings=settings, cluster=cluster)
        profiles = {
            pool: alone.estimator(alone.cluster.alone(pool)).profile(profile.point)
            for pool, profile in profiles.items()
        }
    elif beside is None:
        return by_layer
    whole = price(alone, replace(plan, schedule=beside or plan.schedule), profiles)
    held = tuple(
        without.memory.movable_bytes - own.memory.movable_bytes
        for without, own in zip(whole, stages, strict=True)
    )
    return tuple(map(sum, zip(held, by_layer, strict=True))) if by_layer else held


def _bytes_by_layer(
    question: ModelQuestion, plan: Plan, profiles: Profiles, price: Price
) -> tuple[float, ...]:
    """What layers of each rank leave on the host, as their options say; empty where none does."""
    if not any(_moves_layers(plan, profile) for profile in profiles.values()):
        return ()
    moved = {}
    for pool, profile in profiles.items():
        if str(Recompute.NONE) not in profile.point.recompute:  # beside which it is told
            modes = (str(Recompute.NONE), *profile.point.recompute)
            estimator = question.estimator(question.cluster.alone(pool))
            profile = estimator.profile(replace(profile.point, recompute=modes))
        moved[pool] = on_the_host(profile)
    return host_activations(price(question, plan, moved))


def both_copy(plan: Plan, profile: Profile) -> bool:
    """Whether layers and the order would copy to the host, whose link has one user."""
    copies = plan.order is None and family_named(plan.schedule).host_of is not None
    return copies and _moves_layers(plan, profile)


def _moves_layers(plan: Plan, profile: Profile) -> bool:
    """Whether some layer leaves on the host what hides, by its option in some group."""
    costs = profile.costs
    class_of = {layer.id: layer.layer_class for layer in profile.structure.layers}
    moving = {
        (number, costs.option_ids[row])
        for number in range(costs.num_classes)
        for row in costs.rows_of(number)
        if costs.recompute[row] is Recompute.OFFLOAD
    }
    return any(
        (class_of[layer], option) in moving
        for stage in plan.stages
        for options in (stage.options, *(group.options for group in stage.replicas))
        for layer, option in zip(stage.layers, options, strict=False)
    )


def least_step_s(step: StepPrediction, device: Accelerator) -> float:
    """The pipeline alone, before anything is synchronised."""
    return step.pipeline_s + device.step_overhead_s


def price_without_pauses(
    question: ModelQuestion,
    candidate: Candidate,
    profile: Profile,
    splits: Iterable[CutsAndRows],
    *,
    limit_s: float,
) -> Priced | None:
    """The fastest plan of splits like these whose ranks need not pause (`vee_cuts`), if any."""
    tries = split_tries(question, candidate, profile)
    plan = fastest_without_pauses(tries, splits, limit_s=limit_s).plan
    return None if plan is None else price_plan(question, candidate, profile, plan)


def price_cuts(
    question: ModelQuestion, candidate: Candidate, profile: Profile, split: CutsAndRows
) -> Priced | None:
    """The plan of some cuts, priced; None where it does not fit."""
    plan = _plan(question, candidate, profile, _stages_of(*split, candidate, profile))
    return price_plan(question, candidate, profile, plan)


def _plan(
    question: ModelQuestion, candidate: Candidate, profile: Profile, stages: Iterable[Stage]
) -> Plan:
    room, stages = None, tuple(stages)
    if layouts.together(question.allowed):  # in V, whose cuts are free
        stages = with_whole_head(stages, profile)
    if question.allowed.recomputes_first:
        stages = in_first_blocks(stages, profile)
    if candidate.schedule in layouts.KEEPS_TO_ROOM:
        room = max(1.0, room_of_peak(question, candidate.degrees))
    return Plan(
        room_bytes=room,
        stages=stages,
        num_microbatches=question.workload.microbatches(candidate.microbatch_size),
        microbatch_size=candidate.microbatch_size,
        schedule=candidate.schedule,
        parallelism=candidate.degrees,
    )


def price_plan(
    question: ModelQuestion, candidate: Candidate, profile: Profile, plan: Plan
) -> Priced | None:
    """The plan priced, of families in V not in full (`priced_in_full`); None where it misfits.

    Of one that repeats first blocks it is that with the fewest that fits.
    """
    tried, in_full = [plan], candidate.schedule not in layouts.IN_V
    if question.allowed.recomputes_first:
        fewer = with_fewer_first_blocks(plan.stages, profile)
        tried[:0] = [replace(plan, stages=stages) for stages in fewer]
    for each in tried:
        step = predict_step(each, profile, question.cluster, **question.step_terms, in_full=in_full)
        fits = missing_of_plan(question, each, profile, step) <= 0
        if fits and _host_holds(question, each, profile, step):
            return Priced(candidate=candidate, plan=each, profile=profile, step=step)
    return None


# The stages that a framework makes itself, where a plan cannot tell it others
# ----------------------------------------------------------------------------
# What precedes the blocks is in the first stage, what follows them in the last. The bound of a
# candidate is that of all its splits; the plan has the one that would be run.


def splits_itself(allowed: Allowed) -> bool:
    """Whether the framework, if one is named, runs a pipeline but takes no stages."""
    return allowed.framework is not None and capability_of(allowed.framework).splits_itself


def plan_of_own_stages(
    question: ModelQuestion, candidate: Candidate, profile: Profile, kinds: StageKinds
) -> Plan | None:
    """The fastest plan of a candidate with one stage per rank; None where it has none.

    `kinds` may be those of another profile of the same costs.
    """
    workload, degrees = question.workload, candidate.degrees
    framework = question.allowed.framework
    assert framework is not None, "one that splits layers itself is named"
    blocks = own_split(framework, question.config, candidate.pipeline)
    if not all(blocks[:-1]):
        return None
    cuts = cuts_of(profile, blocks)
    room = room_of_candidate(question, candidate, profile)
    replicas = group_replicas(room.pool_of(), degrees)
    shape = PipelineShape(
        family=candidate.schedule,
        num_ranks=candidate.pipeline,
        num_microbatches=slices_of(candidate.schedule, candidate.pipeline)
        * candidate.num_microbatches(workload),
    )
    site = Site(kinds=kinds, cluster=room, replicas=replicas)
    chosen = fastest_ways([site] * candidate.pipeline, cuts, shape)
    if chosen is None:
        return None
    return _plan(question, candidate, profile, _stages_of(cuts, chosen, candidate, profile))


def cuts_of(profile: Profile, blocks_per_stage: Sequence[int]) -> tuple[int, ...]:
    """Where stages of so many blocks begin, and the number of layers."""
    layers = profile.structure.layers
    first = next(at for at, layer in enumerate(layers) if layer.name == LayerKind.BLOCK)
    return (0, *(first + before for before in accumulate(blocks_per_stage[:-1])), len(layers))


# Which of several priced plans comes first, and which of those that are alike stands for all
# -------------------------------------------------------------------------------------------


def best_first(priced: Iterable[Priced], aim: Aim | None = None) -> tuple[Priced, ...]:
    """Fastest first, or best by the aim; of equal plans the one that recomputes least, then uses
    least.

    Equal are figures that agree in twelve digits. Of plans that agree in all of them, as where
    context replaces data parallelism at no cost, the plainest stands for the others.
    """
    seen: set[tuple[object, ...]] = set()
    kept = []
    for found in sorted(priced, key=lambda each: (_rounded(key_of(each, aim)), *_rank(each))):
        alike = _figures(found)
        if alike not in seen:
            seen.add(alike)
            kept.append(found)
    return tuple(kept)


def of_kinds(ranked: Sequence[Priced], count: int) -> tuple[Priced, ...]:
    """The first `count` that differ in kind, of plans best first; fewer where no more are known.

    Plans of one kind cut the model alike: they differ in chunks, microbatches, ZeRO, or in how many
    devices share a sequence. What shares sequences is no kind of its own beside a better plan that
    does not. Each plan with degrees of its own per stage is a kind.
    """
    found: list[Priced] = []
    seen: set[PlanKind] = set()
    for each in ranked:
        if each.plan.parallelism is not None:
            kind = plan_kind(each.plan.parallelism, each.plan.schedule)
            if is_known_kind(kind, seen):
                continue
            seen.add(kind)
        found.append(each)
    return tuple(found[:count])


PlanKind: TypeAlias = "tuple[bool, int, int, int, int, str]"


def plan_kind(degrees: Parallelism, schedule: str) -> PlanKind:
    """Whether sequences are shared, the degrees that cut the model, devices, and the schedule."""
    cut = (degrees.tensor, degrees.pipeline, degrees.expert, degrees.num_devices)
    return (degrees.context > 1, *cut, schedule)


def is_known_kind(kind: PlanKind, seen: Collection[PlanKind]) -> bool:
    """Whether a plan of the kind was seen, or one that shares no sequences and is else alike."""
    return kind in seen or (False, *kind[1:]) in seen


def told_of(
    priced: Iterable[Priced], aim: Aim | None, count: int, *, in_kind: bool
) -> tuple[Priced, ...]:
    """The plans that an outcome tells: the best ones, or the best of each kind."""
    ranked = best_first(priced, aim)
    return of_kinds(ranked, count) if in_kind else ranked[:count]


def key_of(found: Priced, aim: Aim | None) -> float:
    """The figure of a plan that the aim makes least."""
    step_s = found.step.step_time_s
    return step_s if aim is None else aim.key(step_s, found.plan.devices_used)


def _rank(found: Priced) -> tuple[float, ...]:
    return (
        _rounded(found.step.step_time_s),
        _recomputed_s(found),
        found.plan.devices_used,
        *_plainness(found.candidate),
        found.step.peak_memory_bytes,
        *_order(found.candidate),
    )


def _figures(found: Priced) -> tuple[object, ...]:
    plan = found.plan
    return (
        _rounded(found.step.step_time_s),
        _recomputed_s(found),
        plan.devices_used,
        _rounded(found.step.peak_memory_bytes),
        plan.schedule,
        tuple(stage.layers for stage in plan.stages),
    )


def _recomputed_s(found: Priced) -> float:
    """Seconds of devices that a step spends on recomputation."""
    plan = found.plan
    return _rounded(
        sum(
            part.recompute_s * placed.tensor_parallel * plan.num_microbatches
            for part, placed in zip(
                found.step.stages, plan.stages[: len(found.step.stages)], strict=True
            )
        )
        * found.candidate.context
    )


def _rounded(value: float) -> float:
    return float(f"{value:.11e}")


def _plainness(candidate: Candidate) -> tuple[int, ...]:
    """Fewer axes and less sharding come first."""
    return (
        candidate.context,
        candidate.expert,
        candidate.virtual_stages,
        candidate.zero_stage,
        AXIS_ORDERS.index(candidate.axis_order),
        candidate.state_copies,
        candidate.tensor,
    )


def _order(candidate: Candidate) -> tuple[int, ...]:
    return (
        candidate.pipeline,
        candidate.microbatch_size,
        -candidate.data,
    )
