"""Why a model does not fit on a cluster: the leanest layout, and what would make one fit.

Smaller microbatches and larger data degrees never need more memory, so only the smallest and the
largest count. Every change that is offered was tried: a layout with room for its transients was
found. All layouts are tried under 1F1B; where one fits, it is the families asked for that do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, count, islice, takewhile
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trainwright.cluster import Cluster
from trainwright.errors import InvalidInput
from trainwright.execution import Budget
from trainwright.model import Offload, Optimizer
from trainwright.model.recipe import ALL_IN_16_BIT
from trainwright.partitioning.profile_planner import Diagnosis, Feasibility, find_binding
from trainwright.planning.question.layouts import layouts_of
from trainwright.planning.question.question import (
    ANY,
    Allowed,
    Candidate,
    ModelQuestion,
    Point,
    Span,
    dense_points,
    estimate_profile,
    expert_points,
    room_of_devices,
    sizes_of,
)
from trainwright.planning.reasons.improve import adapted_models
from trainwright.planning.search.framework import plan_runnable, runnable_spaces, weight_faults
from trainwright.planning.search.plans import (
    candidate_restrictions,
    is_more_than_all_devices_hold,
    least_state_bytes,
    roomy_problem,
    state_bytes,
)
from trainwright.planning.splits.types import Priced
from trainwright.plans.capability import unsupported
from trainwright.plans.configuration import modes_beside
from trainwright.plans.job import OF_CORE, training_demands, trains_adapters, unsaid_training
from trainwright.plans.plan import DEFAULT_SCHEDULE
from trainwright.plans.status import ADAPTER_RANK, TRAININGS, Binding, Relaxation
from trainwright.profile import Recompute
from trainwright.profile.measured_model import MeasuredModel
from trainwright.step.figures import least_device_bytes
from trainwright.step.stages import group_replicas
from trainwright.units import MIB, format_bytes, format_bytes_up

_MAX_DOUBLINGS: Final = 6
_MAX_HALVINGS: Final = 4
_TOLERANCE: Final = 1e-4
_MOST_GROUPS: Final = 5  # of processes, of a device whose degrees are all above 1
_SCHEDULE: Final = "schedule"
_SPANS: Final = (
    ("tensor", "tensor-parallel", "allow other tensor degrees"),
    ("data", "data-parallel", "allow other data degrees"),
    ("pipeline", "pipeline-parallel", "allow other numbers of stages"),
    ("context", "context-parallel", "allow other context degrees"),
    ("expert", "expert-parallel", "allow other expert degrees"),
    ("expert_tensor", "expert-tensor-parallel", "allow experts cut in other ways"),
    ("microbatch_size", "micro-batch", "allow other microbatch sizes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """A candidate's question; `reserve_bytes` of each device are kept free for transients."""

    question: Feasibility
    reserve_bytes: float

    def fits_into(self, usable_bytes: float) -> bool:
        room = usable_bytes - self.reserve_bytes
        return room > 0 and self.question.with_memory(room).fits()


@dataclass(slots=True)
class _Limit:
    """Layouts whose devices each hold more state are left out; it may fall on the way."""

    state_bytes: float = math.inf


def diagnose_model(question: ModelQuestion, budget: Budget) -> Diagnosis:
    """What binds in the leanest layout, and single changes that are enough.

    What a framework keeps beside the model is known of whole plans alone: where that binds,
    `priced_relaxations` searches under one change after another.
    """
    found = _leanest(question, budget)
    if found is None:
        first = next(_layouts(question, budget, _Limit()), None)
        relaxations = tuple(_relaxations(question, budget))
        return Diagnosis(binding=_no_layout(question, first, budget), relaxations=relaxations)
    layout, least_bytes = found
    needed_bytes = least_bytes + layout.reserve_bytes
    if layout.fits_into(room_of_devices(question).accelerator.usable_bytes):
        if question.keeps_beside or question.uses_host:
            return Diagnosis(binding=_of_plans(question), relaxations=())
        fix = next((fix for fix, _ in eased(question) if fix.change == _SCHEDULE), None)
        return Diagnosis(
            binding=_of_schedule(question, needed_bytes),
            relaxations=() if fix is None else (fix,),
        )
    memory = _memory(needed_bytes, question)
    binding = find_binding(layout.question, least_bytes, reserve_bytes=layout.reserve_bytes)
    return Diagnosis(
        binding=binding and replace(binding, description=_with_state(question, binding)),
        relaxations=(memory, *_relaxations(question, budget)),
    )


def _of_plans(question: ModelQuestion) -> Binding:
    """What is known of whole plans alone: what lies on hosts, what a framework keeps besides."""
    description = "no plan searched fits"
    if (account := question.account) is not None:
        description += (
            f" with a probability of {question.overheads.fit_probability:g} by the account of "
            f"{account.name}; --fit-probability 0 asks for what the margins alone need"
        )
    if (host := question.cluster.accelerator.host) and question.uses_host:
        has, fix = format_bytes(host.memory_bytes), "--recompute without offload"
        if question.settings.recipe.offload is not None:
            fix = "--offload with smaller shares"
        description += f"; a host has {has} for each device: {fix}"
    return Binding(kind="memory", layers=(), missing_bytes=0.0, description=description)


def _with_state(question: ModelQuestion, binding: Binding) -> str:
    """What binds: the state alone, where no cut can make room for it."""
    if not is_more_than_all_devices_hold(question):
        return binding.description
    total, devices = least_state_bytes(question), question.num_devices
    room_bytes = room_of_devices(question).accelerator.usable_bytes
    share = f", {format_bytes(total / devices)} on each of {devices} devices" * (devices > 1)
    room = f"room for {format_bytes(room_bytes)}" if room_bytes >= MIB else "no room left"
    return (
        f"weights, gradients and optimizer states alone are {format_bytes(total)}{share}; one has "
        f"{room}, {format_bytes(binding.missing_bytes)} less than the leanest plan needs"
    )


def _of_schedule(question: ModelQuestion, needed_bytes: float) -> Binding:
    named = ", ".join(question.allowed.schedules or ()) or "the families with more stages per rank"
    description = (
        f"{DEFAULT_SCHEDULE} fits into {format_bytes(needed_bytes)} per device; no plan searched "
        f"for {named} fits into what there is"
    )
    if min(question.num_devices, question.allowed.pipeline.most or question.num_devices) < 2:
        description = f"{named}: a pipeline of at least 2 ranks is needed, and 1 is the most here"
    return Binding(kind=_SCHEDULE, layers=(), missing_bytes=0.0, description=description)


def _layouts(question: ModelQuestion, budget: Budget, limit: _Limit) -> Iterator[_Layout]:
    """The candidates of the smallest microbatch, the widest and deepest first.

    Those whose devices each hold more state (weights, gradients, optimizer states) are left out.
    """
    workload = question.workload
    usable_bytes = room_of_devices(question).accelerator.usable_bytes
    size = min(sizes_of(question))
    estimator = question.estimator()
    points = [
        dealt
        for point in dense_points(
            question.model,
            question.cluster,
            workload,
            replace(question.allowed, microbatch_size=Span.only(size)),
            question.settings,
            num_devices=question.num_devices,
        )
        for dealt in expert_points(question.model, point, question.allowed)
    ]
    for point in sorted(points, key=lambda p: (-p.devices, -p.expert_devices, p)):
        if budget.stopped:
            return
        candidates = list(_leanest_candidates(question, point))
        if not candidates:
            continue
        profile = estimate_profile(estimator, question, point)
        state = state_bytes(profile)
        for candidate in candidates:
            if budget.stopped:
                return
            if _state_per_device(state, candidate, question) > limit.state_bytes:
                continue
            restrictions = candidate_restrictions(candidate)
            roomy, setting = roomy_problem(question, candidate, profile)
            yield _Layout(
                question=Feasibility.of(roomy, setting, restrictions=restrictions, budget=budget),
                reserve_bytes=usable_bytes - setting.memory_bytes,
            )


def _state_per_device(
    state_bytes: NDArray[np.float64], candidate: Candidate, question: ModelQuestion
) -> float:
    """What the fullest device holds at least: an even share of the ranks."""
    replicas = group_replicas(question.cluster.pool_of(), candidate.degrees)
    return float(replicas.state_bytes(state_bytes).sum()) / candidate.pipeline


def _leanest_candidates(question: ModelQuestion, point: Point) -> Iterator[Candidate]:
    """For each depth the most replicas, under every ZeRO stage, with the fewest copies of state."""
    layouts = layouts_of(
        point,
        question.allowed,
        num_devices=question.num_devices,
        num_blocks=question.model.num_layers,
        num_microbatches=question.workload.microbatches(point.microbatch_size),
    )
    copies = question.allowed.state_copies.least
    if copies > 1:
        layouts = layouts.at((layouts.data % copies == 0) & (layouts.data > copies))
    _, first = np.unique(layouts.pipeline, return_index=True)
    for pipeline, data in zip(
        layouts.pipeline[first].tolist(), layouts.data[first].tolist(), strict=True
    ):
        for zero_stage in sorted(question.allowed.zero_stages, reverse=True):
            if copies > 1 and not zero_stage:
                continue
            yield Candidate(
                state_copies=copies,
                microbatch_size=point.microbatch_size,
                tensor=point.tensor,
                context=point.context,
                expert=point.expert,
                expert_tensor=point.expert_tensor,
                pipeline=pipeline,
                data=data,
                zero_stage=zero_stage,
            )


def _leanest(question: ModelQuestion, budget: Budget) -> tuple[_Layout, float] | None:
    """The layout that needs the least memory, within 1e-4, and what it needs without reserve."""
    found: tuple[_Layout, float] | None = None
    best_bytes, limit = float("inf"), _Limit()
    for layout in _layouts(question, budget, limit):
        if budget.stopped:
            break
        if found is not None and not layout.fits_into(best_bytes * (1 - _TOLERANCE)):
            continue
        least_bytes = layout.question.least_memory()
        if least_bytes is not None:
            found, best_bytes = (layout, least_bytes), least_bytes + layout.reserve_bytes
            limit.state_bytes = best_bytes
    return found


def _no_layout(question: ModelQuestion, first: _Layout | None, budget: Budget) -> Binding | None:
    if first is not None:
        return find_binding(first.question, None)
    if budget.stopped:
        return None
    return Binding(
        kind="devices",
        layers=(),
        missing_bytes=0.0,
        description=f"no layout of {question.num_devices} devices is in the space that was asked "
        "for, whatever its memory",
    )


def _memory(filled_bytes: float, question: ModelQuestion) -> Relaxation:
    """What the driver would have to show, of which a fraction is usable and some is kept free."""
    accelerator, overheads = question.cluster.accelerator, question.overheads
    peak_bytes = filled_bytes + overheads.beside_bytes
    shown_bytes = overheads.needed_bytes(peak_bytes) / accelerator.usable_fraction
    if (account := question.account) is not None and overheads.fit_probability:
        asked = account, _MOST_GROUPS, peak_bytes, overheads.fit_probability
        shown_bytes = max(shown_bytes, least_device_bytes(*asked) + overheads.reserve_bytes)
    return memory_change(shown_bytes, question)


def memory_change(shown_bytes: float, question: ModelQuestion) -> Relaxation:
    """Devices whose driver shows so much memory."""
    today = format_bytes(question.cluster.accelerator.memory_bytes)
    return Relaxation(
        change="memory",
        value=shown_bytes,
        description=f"{format_bytes_up(shown_bytes)} per device, instead of {today}",
    )


def _relaxations(question: ModelQuestion, budget: Budget) -> Iterator[Relaxation]:
    yield from _more_devices(question, budget)
    offered: set[str] = set()
    for fix, allowed in eased(question):
        known = fix.value is not None and fix.change in offered  # a smaller amount is enough
        if not known and _fits(replace(question, allowed=allowed), budget):
            offered.add(fix.change)
            yield fix
    yield from _shorter_sequence(question, budget)
    for family in leaner_trainings(question):
        yield from islice((fix for fix, asked in family if _fits(asked, budget)), 1)


def eased(question: ModelQuestion) -> Iterator[tuple[Relaxation, Allowed]]:
    """Each thing that was fixed or forbidden, with what is allowed without that.

    What the framework that was named cannot run is not offered, nor what cannot stand beside
    weights on the host.
    """
    modes = modes_beside(question.settings.recipe)
    for fix, freer in _eased(question.allowed, modes):
        if any(weight_faults(replace(question, allowed=freer))):
            continue
        try:
            runnable_spaces(freer, question.repeated_modules)
        except InvalidInput:
            continue
        yield fix, freer


def _eased(allowed: Allowed, modes: tuple[Recompute, ...]) -> Iterator[tuple[Relaxation, Allowed]]:
    if allowed.recompute == (Recompute.NONE,):
        fix = Relaxation(change="recompute", description="allow recomputation")
        yield fix, replace(allowed, recompute=modes)
    else:
        for mode in modes:
            if mode not in allowed.recompute:
                fix = Relaxation(change="exclude-option", description=f'allow the option "{mode}"')
                yield fix, replace(allowed, recompute=(*allowed.recompute, mode))
    if DEFAULT_SCHEDULE not in (allowed.schedules or (DEFAULT_SCHEDULE,)):
        fix = Relaxation(change=_SCHEDULE, description=f"allow the schedule {DEFAULT_SCHEDULE}")
        yield fix, replace(allowed, schedules=(*(allowed.schedules or ()), DEFAULT_SCHEDULE))
    for name, change, description in _SPANS:
        if getattr(allowed, name) != ANY:
            fix = Relaxation(change=change, description=description)
            freed: dict[str, Any] = {name: ANY}
            yield fix, replace(allowed, **freed)
    for stage in range(max(allowed.zero_stages) + 1, 4):
        fix = Relaxation(change="zero", value=stage, description=f"ZeRO stage {stage}")
        yield fix, replace(allowed, zero_stages=(stage,))


# Training in another way: states in fewer bits, on the host, or of adapters alone
# -------------------------------------------------------------------------------

_SAY_GRADIENTS: Final = OF_CORE | {"nanotron", "pytorch", None}


def leaner_trainings(
    question: ModelQuestion,
) -> Iterator[Iterator[tuple[Relaxation, ModelQuestion]]]:
    """Families of ways to keep less, each from the least change on; adapters come last.

    What the framework that was named cannot do is not among them.
    """
    if isinstance(question.model, MeasuredModel):
        return
    recipe, target = question.settings.recipe, question.allowed.framework
    changed = "which changes what is computed"
    words: list[tuple[str, str, dict[str, Any]]] = []
    if target in _SAY_GRADIENTS and recipe.gradient_dtype is None:
        told = f"gradients in 16 bit, {changed}"
        words.append(("gradient-dtype", told, {"gradient_dtype": "bf16"}))
    is_plain = recipe.optimizer is Optimizer.ADAM and recipe.moment_dtypes == ("fp32",)
    if is_plain and target not in OF_CORE:
        told = f"moments in 8 bit, {changed}"
        words.append(("moment-dtype", told, {"moment_dtypes": ("int8",)}))
    yield _with_recipes(question, words)
    if (narrow := all_in_16_bit(question)) is not None and _is_run(narrow):
        told = f"weights, gradients and moments all in bf16, {changed}"
        yield iter([(Relaxation(change="all-bf16", description=told), narrow)])
    if recipe.offload is None and question.cluster.accelerator.host is not None:
        name, said, held = "offload-states", "optimizer states and gradients on the host", 1.0
        if target in OF_CORE:
            name, said, held = "offload-optimizer", "optimizer states on the host", 0.0
        moved = Offload(optimizer=1.0, gradients=held)
        yield _with_recipes(question, [(name, said, {"offload": moved})])
    if trains_adapters(target):
        yield _with_adapters(question)


def all_in_16_bit(question: ModelQuestion) -> ModelQuestion | None:
    """The question with no number of the states in float32; None where it says anything of them."""
    recipe, usual = question.settings.recipe, question.cluster.accelerator.default_precision
    precision = question.workload.precision or recipe.precision or usual
    said = (recipe.main_weight_dtype, recipe.gradient_dtype, recipe.moment_dtypes)
    if precision != "bf16" or said != (None, None, ("fp32",)):
        return None
    narrow = replace(recipe, **ALL_IN_16_BIT)
    return replace(question, settings=replace(question.settings, recipe=narrow))


def _with_recipes(
    question: ModelQuestion, words: Iterable[tuple[str, str, dict[str, Any]]]
) -> Iterator[tuple[Relaxation, ModelQuestion]]:
    for change, description, fields in words:
        recipe = replace(question.settings.recipe, **fields)
        asked = replace(question, settings=replace(question.settings, recipe=recipe))
        if _is_run(asked):
            yield Relaxation(change=change, description=description), asked


def _with_adapters(question: ModelQuestion) -> Iterator[tuple[Relaxation, ModelQuestion]]:
    for name, model in adapted_models(question.model):
        asked = replace(question, model=model)
        if _is_run(asked):
            said = f"{name}, another training: adapters of rank {ADAPTER_RANK} alone"
            yield Relaxation(change=name.lower(), description=said), asked


def _is_run(question: ModelQuestion) -> bool:
    target, model, recipe = question.allowed.framework, question.config, question.settings.recipe
    if target is None:
        return True
    usual = question.cluster.accelerator.default_precision
    demands = training_demands(model, recipe, question.workload.precision or usual)
    return not (unsaid_training(model, recipe, target) or unsupported(demands, target))


def _shorter_sequence(question: ModelQuestion, budget: Budget) -> Iterator[Relaxation]:
    """The longest of a half, a quarter, … of the sequence at which a plan fits."""
    length = question.workload.sequence_length
    shorter: list[int] = []
    while length % 2 == 0 and len(shorter) < _MAX_HALVINGS:
        length //= 2
        shorter.append(length)

    def fits(length: int) -> bool:
        workload = replace(question.workload, sequence_length=length)
        return _fits(replace(question, workload=workload), budget)

    if shorter and fits(shorter[-1]):  # else the length is not what is too large
        longest = next((each for each in shorter[:-1] if fits(each)), shorter[-1])
        text = f"{longest} tokens per sequence, instead of {question.workload.sequence_length}"
        yield Relaxation(change="sequence", value=longest, description=text)


def _fits(question: ModelQuestion, budget: Budget) -> bool:
    if is_more_than_all_devices_hold(question):
        return False
    usable_bytes = room_of_devices(question).accelerator.usable_bytes
    layouts = _layouts(question, budget, _Limit(usable_bytes))
    return any(layout.question.fits() for layout in layouts)


def _more_devices(question: ModelQuestion, budget: Budget) -> Iterator[Relaxation]:
    """The fewest that are enough: doubled within the cluster, or else whole nodes, up to 64 times.

    The whole cluster is tried after the doublings below it.
    """
    low, most = question.cluster.pool_of().num_nodes, question.cluster.num_devices
    asked = question.num_devices
    for devices in (*takewhile(lambda n: n < most, (asked << k for k in count(1))), most):
        if asked < most and _fits(replace(question, num_devices=devices), budget):
            yield _devices(devices, question.cluster)
            return
    for doubling in range(1, _MAX_DOUBLINGS + 1):
        if _fits_on(question, low * 2, budget):
            break
        if doubling == _MAX_DOUBLINGS or budget.stopped:
            return
        low *= 2
    high = low * 2
    while high - low > 1 and not budget.stopped:
        middle = (low + high) // 2
        low, high = (low, middle) if _fits_on(question, middle, budget) else (middle, high)
    larger = question.cluster.with_nodes(high)
    yield replace(_devices(larger.num_devices, larger), nodes=high)


def _devices(devices: int, cluster: Cluster) -> Relaxation:
    nodes = cluster.pool_of().nodes_for(devices)
    word = "node" if nodes == 1 else "nodes"
    return Relaxation(
        change="devices", value=devices, description=f"{devices} devices ({nodes} {word})"
    )


def _fits_on(question: ModelQuestion, nodes: int, budget: Budget) -> bool:
    try:
        larger = question.cluster.with_nodes(nodes)
    except InvalidInput:  # not every number of nodes fills the network evenly
        return False
    tried = replace(question, cluster=larger, num_devices=larger.num_devices)
    return _fits(tried, budget)


# What each change that makes a model fit would cost: the best plan under it, priced
# ----------------------------------------------------------------------------------

SHARE_S: Final = 20.0  # wall seconds of the search under one change
_GROWTH: Final = 1.2  # of memory that is tried
_MAX_GROWTHS: Final = 10  # six times the memory in all
_MAX_BISECTIONS: Final = 2


def priced_relaxations(
    question: ModelQuestion, relaxations: tuple[Relaxation, ...], budget: Budget
) -> Iterator[Relaxation]:
    """The changes with the step of the best plan found under each, where time sufficed.

    They were tried under 1F1B, without what a framework keeps beside the model; those that prove
    too little for what was asked for are left out, and memory is grown until a plan is found.
    Another training is told with a plan alone. Where only whole plans tell what fits, and none was
    tried, each kind of change is; memory is grown where none of them is enough.
    """
    if not relaxations and question.keeps_beside and not question.uses_host:
        found = tuple(_by_whole_plans(question, budget))
        yield from found
        if found:
            return
    usual = DEFAULT_SCHEDULE in (question.allowed.schedules or (DEFAULT_SCHEDULE,))
    is_tried = usual and not question.keeps_beside
    for fix in relaxations:
        if fix.change == "memory" and not is_tried:
            continue
        changed = None if budget.stopped else relaxed(question, fix)
        if changed is None:
            yield fix
            continue
        part = budget.part(SHARE_S, stage=f"nothing fits; trying {fix.change}")
        outcome = plan_runnable(changed, part, num_alternatives=0)
        if not outcome.priced:
            if fix.change not in TRAININGS and (is_tried or not outcome.exhausted):
                yield fix
            continue
        yield _priced(fix, outcome.priced[0])
    if not is_tried:
        part = budget.part(SHARE_S, stage="nothing fits; trying memory")
        yield from _enough_memory(question, relaxations, part)


def _by_whole_plans(question: ModelQuestion, budget: Budget) -> Iterator[Relaxation]:
    """The first change of each kind with which a plan is found: of settings, devices, training."""
    more, length = 2 * question.num_devices, question.workload.sequence_length
    larger = question.cluster
    if more > larger.num_devices:
        larger = larger.with_nodes(larger.pool_of().nodes_for(more))
    kinds: list[Iterator[Relaxation]] = [(fix for fix, _ in eased(question))]
    kinds += [(fix for fix, _ in family) for family in leaner_trainings(question)]
    kinds.append(iter([replace(_devices(more, larger), nodes=larger.pool_of().num_nodes)]))
    if length % 2 == 0:
        text = f"{length // 2} tokens per sequence, instead of {length}"
        half = Relaxation(change="sequence", value=length // 2, description=text)
        kinds.append(iter([half]))
    for kind in kinds:
        for fix in kind:
            changed = None if budget.stopped else relaxed(question, fix)
            if changed is None:
                continue
            part = budget.part(SHARE_S, stage=f"nothing fits; trying {fix.change}")
            outcome = plan_runnable(changed, part, num_alternatives=0)
            if outcome.priced:
                yield _priced(fix, outcome.priced[0])
                break


def _priced(fix: Relaxation, best: Priced) -> Relaxation:
    return replace(fix, step_time_s=best.step.step_time_s, devices_used=best.plan.devices_used)


def _enough_memory(
    question: ModelQuestion, relaxations: tuple[Relaxation, ...], budget: Budget
) -> Iterator[Relaxation]:
    """Memory with which a plan of the families asked for was found, within 5% of one without."""
    low = question.cluster.accelerator.memory_bytes
    low = max([low, *(fix.value or low for fix in relaxations if fix.change == "memory")])

    def best_with(memory_bytes: float) -> Priced | None:
        changed = replace(question, cluster=question.cluster.with_memory(memory_bytes))
        return next(iter(plan_runnable(changed, budget, num_alternatives=0).priced), None)

    high, best = low, None
    for _ in range(_MAX_GROWTHS):
        low, high = high, high * _GROWTH
        best = best_with(high)
        if best is not None or budget.stopped:
            break
    for _ in range(_MAX_BISECTIONS):
        if best is None or budget.stopped:
            break
        middle = (low * high) ** 0.5
        found = best_with(middle)
        low, high, best = (middle, high, best) if found is None else (low, middle, found)
    if best is not None:
        yield _priced(memory_change(high, question), best)


def relaxed(question: ModelQuestion, fix: Relaxation) -> ModelQuestion | None:
    """The question with one change of those that a diagnosis offers."""
    for known, allowed in eased(question):
        if (known.change, known.description) == (fix.change, fix.description):
            return replace(question, allowed=allowed)
    if fix.change in TRAININGS:
        families = chain.from_iterable(leaner_trainings(question))
        return next((asked for known, asked in families if known.change == fix.change), None)
    cluster, value = question.cluster, fix.value
    if value is None:
        return None
    if fix.change == "memory":
        return replace(question, cluster=cluster.with_memory(value))
    if fix.change == "sequence":
        workload = replace(question.workload, sequence_length=int(value))
        return replace(question, workload=workload)
    if fix.change == "devices":
        devices = int(value)
        if devices > cluster.num_devices:
            cluster = cluster.with_nodes(cluster.pool_of().nodes_for(devices))
        return replace(question, cluster=cluster, num_devices=devices)
    return None
