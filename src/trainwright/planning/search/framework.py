"""What a training framework can run, as spaces to search.

A framework's limits are not independent: ZeRO may end at stage 1 just where there is a pipeline,
and where blocks cannot recompute as each likes, all of them do the same. So what is left of a space
is a union of spaces; the best plan is the best of theirs, and the least of their bounds holds.
Frameworks that recompute the first k blocks of every stage are planned as recomputing none of them,
all, or some: of these each stage with a block repeats one or more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from trainwright.cluster import Cluster
from trainwright.cluster.calibration import only_program_on
from trainwright.errors import Fault, InvalidInput, refuse
from trainwright.execution import Budget, Progress
from trainwright.model import layer_graph
from trainwright.model.operator import MLP_ACTIVATION
from trainwright.planning.bounds.step import any_order_bounds_s
from trainwright.planning.question.layouts import (
    ONLY_BOUNDED,
    SEARCHED_UNLESS_NAMED,
    RunnableDegrees,
)
from trainwright.planning.question.question import (
    Aim,
    Allowed,
    Candidate,
    ModelQuestion,
    Span,
    StepAim,
    missing_of_plan,
    with_usable,
)
from trainwright.planning.search.frontier import Opened, Shelves, opened
from trainwright.planning.search.plans import (
    best_first,
    is_more_than_all_devices_hold,
    key_of,
    of_kinds,
    told_of,
)
from trainwright.planning.search.prefetch import Foresight
from trainwright.planning.search.search import (
    NUM_ALTERNATIVES,
    WORTH_KEEPING,
    ModelOutcome,
    ModelSearch,
    Outcome,
    PartSearch,
    begin_search,
)
from trainwright.planning.splits.types import BRIEF, Priced
from trainwright.plans.capability import (
    Capability,
    Demands,
    RecomputeForm,
    alternatives,
    capability_of,
    known_target,
    unsupported,
)
from trainwright.plans.capability_table import Feature
from trainwright.plans.job import training_demands, unsaid_training, untold
from trainwright.plans.plan import (
    DATA_INSIDE,
    DEFAULT_SCHEDULE,
    SEARCHED,
    AxisOrder,
    Parallelism,
    mapping_name,
)
from trainwright.profile import USUAL_MODES, Recompute
from trainwright.profile.measured_model import MeasuredModel
from trainwright.scheduling.families import FAMILIES, family_named

if TYPE_CHECKING:
    from trainwright.execution.executor import Crew

_ONE: Final = Span.only(1)
_FULL: Final = (Recompute.FULL,)
_ALL_OR_NONE: Final = (Recompute.NONE, Recompute.FULL)
_PIPELINED: Final = Parallelism(pipeline=2)
_USUAL_S: Final = 5.0  # CPU seconds for a usual plan; of DeepSeek-V3 on 2,048 devices it takes one
_NO_PLAN_S: Final = 3.0  # CPU seconds after which whoever listens is told of that
_PROOFS: Final = 0.25  # of the time of all searches, for all proofs
_SEARCHES: Final = 4  # for plans that fit when they are counted
_LESS: Final = 0.3  # of the room, at most, that the next search does without
_ALL: Final = 255  # plans of a part whose plans are all told
_OF_A_KIND: Final = 3  # plans that are counted for each that is told
_NEEDED: Final = (
    ("tensor", Feature.TENSOR),
    ("tensor", Feature.SEQUENCE_PARALLEL),
    ("pipeline", Feature.PIPELINE),
    ("context", Feature.CONTEXT),
    ("expert", Feature.EXPERT),
    ("virtual_stages", Feature.LOOP),
    ("state_copies", Feature.HYBRID_SHARD),
)
_FORM_OF: Final = {
    Recompute.NONE: RecomputeForm.NONE,
    Recompute.SELECTIVE: RecomputeForm.MODULES,
    Recompute.FULL: RecomputeForm.ALL,
}


def runnable_spaces(
    allowed: Allowed, modules: tuple[str, ...] = (MLP_ACTIVATION,)
) -> tuple[Allowed, ...]:
    """The parts of what is allowed that its framework can run; itself where none is named.

    `modules` are what "selective" repeats (`repeated_modules`). Raises `InvalidInput`
    under the fields of `Allowed` where nothing is left of one.
    """
    if allowed.framework is None:
        return (allowed,)
    own = capability_of(allowed.framework)
    refuse(_degree_faults(allowed, own))
    narrowed = _with_degrees(allowed, own)
    families = _families(allowed, own)
    beside = () if allowed.schedules else tuple(f for f in ONLY_BOUNDED if f not in families)
    pipeline = Parallelism(pipeline=2)
    narrowed = replace(
        narrowed,
        schedules=families,
        only_bounded=tuple(f for f in beside if own.runs(_demands(f, pipeline))),
        mappings=_mappings(allowed, own),
    )
    spaces = [
        s for pipelined in _by_depth(narrowed, own) for s in _by_recompute(pipelined, own, modules)
    ]
    parts = [part for space in spaces for part in _by_backward(space, own)]
    if parts:
        return tuple(sorted(parts, key=lambda part: part.recomputes_first))  # led by the others
    features = (Feature.SPLIT_RECOMPUTE, Feature.SPLIT_ZERO_3)
    name, lacking = next(
        (name, each)
        for name, each in zip(("recompute", "zero_stages"), features, strict=True)
        if not own.can(each)
    )
    raise InvalidInput.of(
        name, f"must allow what can stand beside a split backward: {cannot(own, lacking)}"
    )


def sketch_runnable(
    question: ModelQuestion,
    budget: Budget,
    *,
    to_beat_s: float = math.inf,
    any_will_do: bool = False,
    shelves: Shelves | None = None,
) -> Priced | None:
    """The best plan that `BRIEF` searches find of all parts of the space; None where none does.

    Nor is one told that does not beat the step of a plan that is known, `to_beat_s`; where
    `any_will_do`, the first that does is.

    The part of the least bound is searched first, and what it finds is to beat in the others, most
    of which are over at once. Families in V are left out of a part unless only they are asked for:
    to order the actions of one of their plans takes as long as all the rest.
    """
    shelves, aim = shelves or Shelves(), StepAim()
    spaces = runnable_spaces(question.allowed, question.repeated_modules)
    parts = [replace(question, allowed=space) for space in spaces]
    frontiers = [
        opened(part, budget, aim, shelves, is_quick=True).frontier
        for part in parts
        if not is_more_than_all_devices_hold(part)
    ]
    found: list[Priced] = []
    best_s = to_beat_s
    for frontier in sorted(frontiers, key=lambda each: each.least_s):
        search = ModelSearch(
            *(frontier, budget, aim, Foresight(frontier.shelf, budget, None)),
            num_told=1,
            patience=BRIEF,
            best_s=best_s,
        )
        for ask in search.in_turn(below=to_beat_s if any_will_do else -math.inf):
            search.settle(ask, ask.answer(search.shelf, budget))
        found += search.told(1, in_kind=False)
        best_s = search.best_s
        if any_will_do and best_s < to_beat_s:
            break
    best = next(iter(best_first(found)), None)
    return best if best is not None and best.step.step_time_s < to_beat_s else None


# Who is planned for where nobody is named: the first that can run what is asked.
USUAL_FRAMEWORKS: Final = ("megatron", "automodel", "trl", "torchtitan@0.3", "pytorch")


def usual_frameworks(cluster: Cluster) -> tuple[str, ...]:
    """Who is planned for on these devices where nobody is named, the usual one first."""
    alone = only_program_on(cluster.accelerator.name)
    return USUAL_FRAMEWORKS if alone is None else (alone,)


def frameworks_for(
    question: ModelQuestion, *, first: str | None = None
) -> tuple[tuple[str, ...], str | None]:
    """The frameworks that can run what is asked, and why the one wanted most is not among them.

    `first` is wanted most, if that names one, then the `usual_frameworks` in their order; none can
    where stages differ in degrees. Whether a plan of theirs fits is for a search to say.
    """
    wanted = known_target(first) if first else None
    able, reason = [], None
    for target in dict.fromkeys(filter(None, (wanted, *usual_frameworks(question.cluster)))):
        fault = next(_unrunnable(question, target), None)
        if fault is None:
            able.append(target)
        elif not able:
            reason = reason or str(fault)
    return tuple(able), reason


def in_words(able: Sequence[str], reason: str | None) -> str | None:
    """Who is planned for, where that is not the one wanted most."""
    if not able:
        return f"planned without one: {reason}"
    return None if reason is None else f"planned for {able[0]}: {reason}"


def _unrunnable(question: ModelQuestion, target: str) -> Iterator[Fault]:
    """What of the question keeps a framework from running any plan that answers it."""
    model, recipe = question.config, question.settings.recipe
    yield from untold(model, target)
    yield from unsaid_training(model, recipe, target)
    demands = training_demands(model, recipe, question.precision)
    yield from (gap.fault for gap in unsupported(demands, target))
    spread = replace(demands, parallelism=_spread(question))
    yield from (gap.fault for gap in unsupported(spread, target) if gap.field in _OF_EXCHANGES)
    degrees = RunnableDegrees.of(question, target)
    yield from () if degrees is None else degrees.faults_of(question.allowed)
    allowed, own = question.allowed, capability_of(target)
    if allowed.searches_orders and not own.can(Feature.CUSTOM_ORDER):
        yield Fault("schedule", f"{SEARCHED}: {cannot(own, Feature.CUSTOM_ORDER)}")
    pipelined = Parallelism(pipeline=2)
    for family in allowed.schedules or ():
        if allowed.pipeline != _ONE and unsupported(_demands(family, pipelined), target):
            yield Fault("schedule", f"{target} does not run {family}")
    try:
        named = replace(allowed, framework=target)
        runnable_spaces(named, question.repeated_modules)
    except InvalidInput as error:
        yield from error.faults


# What is asked of exchanges, which degrees of one have none of.
_OF_EXCHANGES: Final = frozenset({"context_exchange", "dispatch_dtype", "token_dispatcher"})


def _spread(question: ModelQuestion) -> Parallelism:
    """Few degrees that are allowed and have every exchange that plans may have."""
    allowed, experts = question.allowed, question.config.experts
    context, expert = (1 if span.most == 1 else 2 for span in (allowed.context, allowed.expert))
    return Parallelism(context=context, data=2, expert=1 if experts is None else expert)


def plan_runnable(
    question: ModelQuestion,
    budget: Budget,
    *,
    num_alternatives: int = NUM_ALTERNATIVES,
    in_kind: bool = False,
    aim: Aim | None = None,
    crew: Crew | None = None,
    to_beat: float = math.inf,
    is_bounded: bool = True,
    shelves: Shelves | None = None,
) -> ModelOutcome:
    """The best plan of all parts of the space, its runners-up, and a bound on every other.

    Runners-up may be asked to differ `in_kind`. A `crew` helps, and changes nothing; `shelves` have
    what was priced for other questions. Where none are asked for, what a part of the space has
    found is to beat in the next; so is the figure `to_beat` of a plan from elsewhere.
    The bound is 0 unless it `is_bounded`. Where the account counts tensors one by one, which takes
    too long for every candidate, the margins decide in the search, and what it finds is counted;
    where nothing of that fits, it searches again with less room. Where hosts are too small for what
    is offloaded, it searches what keeps least. Plans whose gradients are made anew may hold less
    than the search counts with: their parts of the space are searched again, with room for them.
    """
    wanted = _Wanted(
        num_alternatives, in_kind, aim, crew, to_beat, is_bounded, shelves or Shelves()
    )
    refuse(weight_faults(question))
    account = question.account
    counts = account is not None and account.may_hold_less and question.keeps_beside
    if counts:
        found = _plan_counted(question, budget, wanted)
    else:
        found = _plan_all(question, budget, wanted)
        if not found.priced and (leaner := _leaner(question)) is not None:
            found = replace(found, priced=_plan_all(leaner, budget, wanted).priced)
    for allowed in _made_anew(question):
        more = _plan_without(replace(question, allowed=allowed), budget, wanted)
        found = _joined(found, more, wanted)
    return found


class _Wanted(NamedTuple):
    """What is asked of a search beside the question; see `plan_runnable`."""

    num_alternatives: int
    in_kind: bool
    aim: Aim | None
    crew: Crew | None
    to_beat: float
    is_bounded: bool
    shelves: Shelves

    def told_of(self, priced: Iterable[Priced]) -> tuple[Priced, ...]:
        """The best of the plans, and as many runners-up as are asked for."""
        return told_of(priced, self.aim, 1 + self.num_alternatives, in_kind=self.in_kind)


def _made_anew(question: ModelQuestion) -> Iterator[Allowed]:
    """Parts of the space whose runs have no gradients at their loss (`step.figures`).

    They are of one stage and one microbatch, so replicas and sizes of microbatches go together.
    """
    account, allowed = question.account, question.allowed
    if account is None or isinstance(question.model, MeasuredModel) or allowed.framework is None:
        return
    freed = tuple(z for z in allowed.zero_stages if z < account.frees_gradients_below)
    batch = question.workload.global_batch
    if not freed or 1 not in allowed.pipeline or 1 not in allowed.virtual_stages:
        return
    for data in range(1, min(batch, question.num_devices) + 1):
        size = batch // data
        if batch % data == 0 and data in allowed.data and size in allowed.microbatch_size:
            yield replace(
                allowed,
                pipeline=_ONE,
                virtual_stages=_ONE,
                data=Span.only(data),
                microbatch_size=Span.only(size),
                zero_stages=freed,
            )


def gradient_bytes(question: ModelQuestion) -> float:
    """All gradients of the model, on one device."""
    numbers = question.settings.recipe.numbers(question.precision)
    return numbers.gradient_bytes * layer_graph(question.config).num_trainable_parameters


def _plan_without(question: ModelQuestion, budget: Budget, wanted: _Wanted) -> ModelOutcome:
    """The plans of a part whose gradients are made anew, of all that fit without any gradient.

    Its candidates have one plan each. If all of them are told, those that do not fit are no plans.
    But the search forgets what is far above the best that it sees, which need not fit.
    """
    room_bytes = question.cluster.accelerator.usable_bytes + gradient_bytes(question)
    found = _plan_all(
        replace(question, account=None, cluster=with_usable(question.cluster, room_bytes)),
        budget,
        _Wanted(_ALL, False, wanted.aim, wanted.crew, math.inf, True, Shelves()),
    )
    fitting = tuple(
        p for p in found.priced if missing_of_plan(question, p.plan, p.profile, p.step) <= 0
    )
    if not found.exhausted or len(found.priced) > _ALL:
        return replace(found, priced=fitting, exhausted=False)
    best, best_seen = (
        min((key_of(each, wanted.aim) for each in some), default=math.inf)
        for some in (fitting, found.priced)
    )
    bound = min(best, max(found.lower_bound_s, WORTH_KEEPING * best_seen))
    return replace(found, priced=fitting, lower_bound_s=bound)


def _joined(found: ModelOutcome, more: ModelOutcome, wanted: _Wanted) -> ModelOutcome:
    """Both of what was searched; a plan of the second may beat the best of the first."""
    of_first = math.inf if not found.is_open else found.lower_bound_s
    if not found.priced and not more.priced:
        lower_bound_s = min(found.lower_bound_s, more.lower_bound_s)
    else:
        lower_bound_s = min(of_first, more.lower_bound_s)
    one_stage_s = found.lower_bound_one_stage_s
    return replace(
        found,
        priced=wanted.told_of((*found.priced, *more.priced)),
        lower_bound_s=lower_bound_s,
        lower_bound_one_stage_s=None if one_stage_s is None else min(one_stage_s, lower_bound_s),
        considered=found.considered + more.considered,
        pruned=found.pruned + more.pruned,
        not_reached=found.not_reached + more.not_reached,
        exhausted=found.exhausted and more.exhausted,
        interrupted=found.interrupted or more.interrupted,
    )


def weight_faults(question: ModelQuestion) -> Iterator[Fault]:
    """Weights come from the host layer by layer, to one pipeline rank of one kind of device."""
    offload = question.settings.recipe.offload
    if offload is None or not offload.weights or isinstance(question.model, MeasuredModel):
        return
    stages, pipeline = question.allowed.zero_stages, question.allowed.pipeline
    if stages != (_SHARDS_WEIGHTS,):
        listed = ", ".join(map(str, stages))
        yield Fault("offload", f"weights: only ZeRO-3 brings them layer by layer, got {listed}")
    if pipeline != _ONE or len(question.cluster.pools) > 1:
        yield Fault("offload", "weights: plans keep them on devices beside a pipeline; --pp 1")


_SHARDS_WEIGHTS: Final = 3  # the ZeRO stage


def _leaner(question: ModelQuestion) -> ModelQuestion | None:
    """What is left of the question where only what keeps least on a host is allowed, if less."""
    modes = question.allowed.recompute
    on_device = tuple(mode for mode in modes if mode is not Recompute.OFFLOAD)
    if question.settings.recipe.offload is not None and Recompute.FULL in modes:
        on_device = _FULL
    if on_device in (modes, ()):
        return None
    return replace(question, allowed=replace(question.allowed, recompute=on_device))


def _plan_counted(question: ModelQuestion, budget: Budget, wanted: _Wanted) -> ModelOutcome:
    """`plan_runnable` where what a run keeps beside the margins is counted of plans alone."""
    count, in_kind = wanted.num_alternatives, wanted.in_kind
    # Few may be left of all that are near the best.
    more = wanted._replace(num_alternatives=(_OF_A_KIND if in_kind else 1) * count, in_kind=False)
    alone = replace(question, account=None)

    def search(asked: ModelQuestion) -> ModelOutcome:
        return plan_runnable(asked, budget, **more._asdict())

    def fitting_of(found: ModelOutcome) -> tuple[list[Priced], float]:
        """The plans that fit, and the most that another may hold to fit; 0 where all do."""
        lacks = [missing_of_plan(question, p.plan, p.profile, p.step) for p in found.priced]
        both = [*zip(found.priced, lacks, strict=True)]
        room = (p.step.peak_memory_bytes - lack for p, lack in both if lack > 0)
        return [p for p, lack in both if lack <= 0], max(room, default=0.0)

    def with_less_room(asked: ModelQuestion, found: ModelOutcome) -> list[Priced]:
        """What fits of the plans that need less by the margins than what was found."""
        room_bytes = asked.cluster.accelerator.usable_bytes
        for _ in range(_SEARCHES - 1):
            fitting, enough_bytes = fitting_of(found)
            if fitting or not enough_bytes or budget.stopped:
                return fitting
            room_bytes = max(min(room_bytes, enough_bytes), (1 - _LESS) * room_bytes)
            cluster = with_usable(asked.cluster, room_bytes)
            found = search(replace(asked, cluster=cluster))
        return fitting_of(found)[0]

    first = search(alone)
    fitting, enough_bytes = fitting_of(first)
    allowed = question.allowed
    if not fitting and enough_bytes and 1 in allowed.pipeline and allowed.pipeline != _ONE:
        # Plans without a pipeline are few, and what is counted is most of what they hold.
        unpiped = replace(alone, allowed=replace(allowed, pipeline=_ONE))
        with suppress(InvalidInput):  # nothing may be left of a field
            fitting = with_less_room(unpiped, search(unpiped))
    if not fitting and enough_bytes:
        fitting = with_less_room(alone, first)
    proved = first.exhausted and bool(fitting or not first.priced)
    told = of_kinds(fitting, len(fitting)) if in_kind else tuple(fitting)
    return replace(first, priced=told[: 1 + count], exhausted=proved)


def _plan_all(question: ModelQuestion, budget: Budget, wanted: _Wanted) -> ModelOutcome:
    aim, to_beat = wanted.aim, wanted.to_beat
    searched: list[PartSearch] = []
    found: list[ModelOutcome] = []
    usual = _Usual(question, aim)
    is_first = math.isinf(to_beat)
    if is_first:
        budget = usual.told_in(budget)
    parts, told = _parts(question, budget, wanted), tuple[Priced, ...]()
    for at, (asked, begun) in enumerate(parts):
        alone, left = len(parts) == 1, len(parts) - at + _PROOFS * len(parts)
        part = budget if alone else _share(budget, searched, found, left=left, aim=aim)
        known = _best_of(found, aim) if asked.allowed.recomputes_first else math.inf
        own = begin_search(
            asked,
            part,
            num_alternatives=wanted.num_alternatives,
            in_kind=wanted.in_kind,
            aim=aim,
            crew=wanted.crew,
            to_beat=min(to_beat, known),
            begun=begun or opened(asked, part, aim or StepAim(), wanted.shelves),
        )
        for ask in own.in_turn(told=told):
            own.search.settle(ask, ask.answer(own.search.shelf, part))
        searched.append(own)
        found.append(own.unproved())
        if wanted.in_kind:
            told = wanted.told_of(_priced_of(searched, found, aim))
        if part.stopped and is_first and (own.search.is_on or not own.is_complete):
            usual.make()
        if not wanted.num_alternatives:
            to_beat = min((to_beat, *(key_of(each, aim) for each in found[-1].priced)))
    if wanted.is_bounded:
        found = _proved(searched, found, budget, aim)
    if usual.found is not None and usual.best < _best_of(found, aim):
        found.append(usual.found)
    loosest = loosest_of(found)
    outcome = Outcome(
        priced=wanted.told_of(_priced_of(searched, found, aim)),
        lower_bound_s=loosest.lower_bound_s,
        loosest=loosest.loosest,
        lower_bound_one_stage_s=found[0].lower_bound_one_stage_s if len(found) == 1 else None,
        considered=sum(each.considered for each in found),
        pruned=sum(each.pruned for each in found),
        not_reached=sum(each.not_reached for each in found),
        exhausted=all(each.exhausted for each in found),
        interrupted=any(each.interrupted for each in found),
    )
    if isinstance(question.model, MeasuredModel) and question.model.is_in_one_order:
        return _of_any_order(question, outcome, aim)
    return outcome


def _priced_of(
    searched: Sequence[PartSearch], found: Sequence[ModelOutcome], aim: Aim | None
) -> Iterator[Priced]:
    """The plans of all parts; none that repeats first blocks beside a better one of its candidate.

    That repeats none, so it is the same layout.
    """
    best: dict[Candidate, float] = {}
    for each in (each for one in found for each in one.priced):
        best[each.candidate] = min(key_of(each, aim), best.get(each.candidate, math.inf))
    for part, one in zip_longest(searched, found):
        repeats = part is not None and part.search.shelf.question.allowed.recomputes_first
        for each in one.priced:
            if not repeats or key_of(each, aim) <= best[each.candidate]:
                yield each


def _parts(
    question: ModelQuestion, budget: Budget, wanted: _Wanted
) -> Sequence[tuple[ModelQuestion, Opened | None]]:
    """The parts of the space; where nothing is proved of them the likeliest first.

    What that finds is to beat in the others, most of which are over at once.
    """
    spaces = runnable_spaces(question.allowed, question.repeated_modules)
    parts = [replace(question, allowed=space) for space in spaces]
    if wanted.is_bounded or wanted.num_alternatives or len(parts) == 1:
        return [(part, None) for part in parts]
    begun = [opened(part, budget, wanted.aim or StepAim(), wanted.shelves) for part in parts]
    begun.sort(key=lambda each: each.frontier.least_s)
    return [(each.frontier.question, each) for each in begun]


def _proved(
    searched: Sequence[PartSearch],
    found: Sequence[ModelOutcome],
    budget: Budget,
    aim: Aim | None,
) -> list[ModelOutcome]:
    """What was found in all parts of a space, with bounds as high as they are of use.

    No plan of a part beats the best of all, and the least bound of all parts is that of the whole.
    The part whose bound is likely to be the least is proved first, before it one that has all plans
    of others: these need no more.
    """
    found, enough = list(found), math.inf

    def first(at: int) -> tuple[bool, float]:
        covers = searched[at].search.shelf.question.allowed.recomputes_first
        return not covers, searched[at].least_s

    for done, at in enumerate(sorted(range(len(searched)), key=first)):
        best = _best_of(found, aim)
        alone, left = len(searched) == 1, len(searched) - done
        part = budget if alone else _share(budget, searched, found, left=left, aim=aim)
        found[at] = searched[at].proved(part, best_s=best, enough_s=enough)
        if found[at].lower_bound_s > 0:
            enough = min(enough, found[at].lower_bound_s)
    return found


@dataclass(slots=True)
class _Usual:
    """A usual plan, where the time for a part of a large space ended before its search.

    So little is left to choose that one is found in a moment: one chunk per rank in 1F1B, one
    sequence at a time, whole on its devices, and state sharded at most by ZeRO-1. It is `found` at
    most once. The first plans of a search need not be as good.
    """

    question: ModelQuestion
    aim: Aim | None
    found: ModelOutcome | None = None
    _is_made: bool = False

    def make(self) -> None:
        """Look for it, unless that was done."""
        if self._is_made:
            return
        self._is_made = True
        plan = sketch_runnable(_as_usual(self.question), Budget(cpu_limit_s=_USUAL_S))
        if plan is not None:
            self.found = Outcome(
                priced=(plan,),
                lower_bound_s=math.inf,  # what bounds the space bounds this part of it
                considered=0,
                pruned=0,
                not_reached=0,
                exhausted=True,
                interrupted=False,
            )

    @property
    def best(self) -> float:
        """Its figure; infinite where there is none."""
        return _best_of([] if self.found is None else [self.found], self.aim)

    def told_in(self, budget: Budget) -> Budget:
        """The budget, if somebody listens to it: told of this plan where none comes for long."""
        if budget.on_progress is None:
            return budget
        began_s = budget.cpu_s

        def listen(told: Progress) -> None:
            if math.isinf(told.best) and budget.cpu_s - began_s > _NO_PLAN_S:
                self.make()
            if budget.poll(replace(told, best=min(told.best, self.best))):
                whole.interrupt()

        whole = budget.part()
        whole.on_progress = listen
        return whole


def _as_usual(question: ModelQuestion) -> ModelQuestion:
    allowed = question.allowed
    narrow: dict[str, Any] = {
        name: _ONE
        for name in ("context", "state_copies", "microbatch_size")
        if 1 in getattr(allowed, name)
    }
    families, own = allowed.schedules or (DEFAULT_SCHEDULE,), allowed.framework
    runs = own is None or capability_of(own).runs(_demands(DEFAULT_SCHEDULE, _PIPELINED))
    if DEFAULT_SCHEDULE in families and runs and 1 in allowed.virtual_stages:
        narrow |= {"schedules": (DEFAULT_SCHEDULE,), "virtual_stages": _ONE}
    if little := tuple(stage for stage in allowed.zero_stages if stage <= 1):
        narrow["zero_stages"] = little
    if DATA_INSIDE in allowed.mappings:
        narrow["mappings"] = (DATA_INSIDE,)
    return replace(question, allowed=replace(allowed, **narrow))


def _best_of(found: Sequence[ModelOutcome], aim: Aim | None) -> float:
    """The figure of the best plan that was found; infinite where none was."""
    return min((key_of(each, aim) for one in found for each in one.priced), default=math.inf)


def _share(
    budget: Budget,
    searched: Sequence[PartSearch],
    found: Sequence[ModelOutcome],
    *,
    left: float,
    aim: Aim | None,
) -> Budget:
    """For the next of so many parts of a space: its share of the time.

    Who listens is told of the best plan of all parts, and up to where all of them were searched.
    """
    known = _best_of(found, aim)
    bounds = (
        one.search.bound_s if one.is_complete else 0 for one in searched if not one.is_hopeless
    )
    bound = min(bounds, default=math.inf)

    def listen(told: Progress) -> None:
        whole = replace(
            told,
            elapsed_s=budget.elapsed_s,
            best=min(told.best, known),
            lower_bound=min(told.lower_bound, bound),
        )
        if budget.poll(whole) and budget.interrupted:  # its share of the time ends by itself
            own.interrupt()

    limited = budget.time_limit_s is not None
    limit_s = max(1e-3, budget.remaining_s / left) if limited else None
    own = Budget(time_limit_s=limit_s, on_progress=listen, interrupted=budget.interrupted)
    return own


def _of_any_order(question: ModelQuestion, outcome: ModelOutcome, aim: Aim | None) -> ModelOutcome:
    """With a bound on plans in whatever order of the layers; in others something may fit."""
    steps_s = any_order_bounds_s(question)
    devices = np.flatnonzero(np.isfinite(steps_s))
    keys = (aim or StepAim()).keys(steps_s[devices], devices)
    return replace(
        outcome,
        lower_bound_s=min(outcome.lower_bound_s, float(keys.min(initial=np.inf))),
        lower_bound_one_order_s=outcome.lower_bound_s,
        lower_bound_one_stage_s=None,
        exhausted=outcome.exhausted and bool(outcome.priced),
    )


def loosest_of(found: list[ModelOutcome]) -> ModelOutcome:
    """The least bound of the parts that are not proved to hold no plan."""
    open_parts = [each for each in found if each.is_open] or found
    return min(open_parts, key=lambda each: (each.lower_bound_s, each.loosest is None))


def _degree_faults(allowed: Allowed, own: Capability) -> Iterator[Fault]:
    for name, feature in _NEEDED:
        if not own.can(feature) and 1 not in getattr(allowed, name):
            yield Fault(name, f"must include 1: {cannot(own, feature)}")


def cannot(own: Capability, feature: Feature) -> str:
    """That a framework does without a feature, why, and which others have it."""
    reason = own.cells[feature].how or f"cannot express {feature.value}"
    able = ", ".join(alternatives(feature)) or "none"
    return f"{own.target} {reason}; what can: {able}"


def _with_degrees(allowed: Allowed, own: Capability) -> Allowed:
    lacking: dict[str, Any] = {name: _ONE for name, feature in _NEEDED if not own.can(feature)}
    return replace(allowed, **lacking)


def _mappings(allowed: Allowed, own: Capability) -> tuple[AxisOrder, ...]:
    left = tuple(order for order in allowed.mappings if order in own.axis_orders)
    if not left:
        offered = " or ".join(map(mapping_name, own.axis_orders))
        raise InvalidInput.of("mappings", f"must hold one that {own.target} has: {offered}")
    return left


def _families(allowed: Allowed, own: Capability) -> tuple[str, ...]:
    """Those that are allowed and run; where all are, those searched by default or known by name."""
    known = {*SEARCHED_UNLESS_NAMED, *own.schedules}
    offered = allowed.schedules or tuple(family for family in FAMILIES if family in known)
    pipeline = Parallelism(pipeline=2)
    left = tuple(f for f in offered if own.runs(_demands(f, pipeline)))
    if not left and own.can(Feature.PIPELINE):
        runs = ", ".join(f for f in FAMILIES if own.runs(_demands(f, Parallelism())))
        raise InvalidInput.of("schedules", f"must name one that {own.target} runs: {runs}")
    return left or offered


def _demands(family: str, degrees: Parallelism) -> Demands:
    """What a family demands of a framework, with as many chunks per rank as it may have."""
    return Demands(parallelism=degrees, schedule=family, shape=family_named(family).shape(3))


def _by_depth(allowed: Allowed, own: Capability) -> Iterator[Allowed]:
    """Without and with a pipeline, where ZeRO differs between them.

    One replica shards nothing, so it runs whatever stage is asked for.
    """
    alone, piped = (
        tuple(z for z in allowed.zero_stages if z in own.zero_stages(p)) for p in (1, 2)
    )
    ranks = [p for p, has in ((1, 1 in allowed.pipeline), (2, allowed.pipeline != _ONE)) if has]
    offered = {stage for p in ranks for stage in own.zero_stages(p)}
    if not offered & {*allowed.zero_stages}:
        beside = " beside a pipeline" if ranks == [2] else ""
        names = ", ".join(map(str, sorted(offered)))
        raise InvalidInput.of(
            "zero_stages", f"must hold one that {own.target} has{beside}: {names}"
        )
    if alone == piped:
        yield replace(allowed, zero_stages=alone)
        return
    pipeline = allowed.pipeline
    if alone and 1 in pipeline:
        yield replace(allowed, zero_stages=alone, pipeline=_ONE)
    deep = replace(pipeline, least=max(2, pipeline.least)) if pipeline.most != 1 else None
    if piped and deep is not None:
        yield replace(allowed, zero_stages=piped, pipeline=deep)
    elif deep is not None:
        yield from _of_one_replica(replace(allowed, pipeline=deep))


def _of_one_replica(allowed: Allowed) -> Iterator[Allowed]:
    """That part of the space, if there is one; experts that have replicas are found later."""
    if 1 in allowed.data and 1 in allowed.context:
        own = allowed.zero_stages[:1]
        yield replace(allowed, zero_stages=own, data=_ONE, context=_ONE)


def _by_recompute(allowed: Allowed, own: Capability, modules: tuple[str, ...]) -> Iterator[Allowed]:
    """One mode for all blocks, where each block cannot have its own."""
    forms = own.recompute_forms()
    if Recompute.OFFLOAD in allowed.recompute and not own.can(Feature.OFFLOAD_BLOCKS):
        problem = f"must not list offload: {cannot(own, Feature.OFFLOAD_BLOCKS)}"
        raise InvalidInput.of("recompute", problem)
    if RecomputeForm.MIXED in forms:
        yield allowed
        return
    left = tuple(mode for mode in allowed.recompute if _has(mode, own, modules))
    if not left:
        offered = ", ".join(mode for mode in USUAL_MODES if _has(mode, own, modules))
        raise InvalidInput.of("recompute", f"must hold one that {own.target} has: {offered}")
    whole = tuple(mode for mode in left if mode is not Recompute.SELECTIVE)
    if RecomputeForm.ANY in forms and whole:
        yield replace(allowed, recompute=whole)
        left = tuple(mode for mode in left if mode not in whole)
    for mode in left:
        yield replace(allowed, recompute=(mode,))
    if RecomputeForm.FIRST in forms and {*left} >= {*_ALL_OR_NONE}:
        yield replace(allowed, recompute=_ALL_OR_NONE, recomputes_first=True)


def _by_backward(allowed: Allowed, own: Capability) -> Iterator[Allowed]:
    """Backward passes in one, and in two, where what may stand beside these is less."""
    families = allowed.schedules or ()
    split = tuple(f for f in families if family_named(f).splits_backward)
    modes, zero = allowed.recompute, allowed.zero_stages
    if not own.can(Feature.SPLIT_RECOMPUTE):
        modes = tuple(mode for mode in modes if mode is Recompute.NONE)
    if not own.can(Feature.SPLIT_ZERO_3):
        zero = tuple(stage for stage in zero if stage < 3)
    is_whole = (modes, zero) == (allowed.recompute, allowed.zero_stages)
    if is_whole or not split or allowed.pipeline.most == 1 or allowed.searches_orders:
        yield allowed
        return
    whole = tuple(f for f in families if f not in split)
    if whole:
        yield replace(allowed, schedules=whole)
    if modes and not (allowed.recomputes_first and modes != allowed.recompute):
        deep = replace(allowed.pipeline, least=max(2, allowed.pipeline.least))
        beside = replace(allowed, schedules=split, recompute=modes, pipeline=deep)
        if zero:
            yield replace(beside, zero_stages=zero)
        else:
            yield from _of_one_replica(beside)


def _has(mode: Recompute, own: Capability, modules: tuple[str, ...]) -> bool:
    """Whether all blocks can be run so; "selective" repeats the `modules`."""
    if mode is Recompute.SELECTIVE and own.modules is not None:
        return own.modules.keys() >= {*modules}
    return _FORM_OF[mode] in own.recompute_forms()
