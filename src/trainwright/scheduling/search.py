"""Search for the shortest pipeline schedule within memory limits.

1. Portfolio: every named family that fits the placement and the limits, priced with the true
   costs. The answer is never worse than any of them.
2. Seeds: list scheduling by target offsets, which repeat one microbatch's path every period, and
   annealing of the offsets (`native/schedule/target_search.hpp`).
3. Annealing on words over streams, starting from the best of both
   (`native/schedule/word_annealing.hpp`).
4. Families in V whose paths are placed in seconds, and annealing from these; in long steps with
   little memory half of the work is for orders that repeat (`native/schedule/repeating_words.hpp`),
   in shorter ones of few actions as much is, on top of it.
5. Of small orders in other shapes that stay open, annealing from hot to cold, on top of the work.
6. Where activations may wait on the host, copies by a rule in orders of wider limits, and annealing
   of what comes out.
7. Where whole backwards may hold less than their halves, all of this with whole ones alone, too.

All with per-stage times, memory deltas and per-rank limits; it ends early at the lower bound. The
core prices free transfers only: under other transfer models it searches as if they were free, and
what it finds is re-simulated like every family before it may win.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from trainwright._native import _core
from trainwright.execution import Budget, Progress
from trainwright.plans.lowered import Timeline
from trainwright.plans.schedule import (
    ActionKind,
    Placement,
    Schedule,
    ScheduleMemory,
    TransferModel,
)
from trainwright.plans.status import Bound, Status, relative_gap
from trainwright.scheduling.bounds import (
    LeastCosts,
    LimitTooSmall,
    best_bound,
    crossings_bound,
    misfit,
    two_ranks_bound,
)
from trainwright.scheduling.candidates import (
    ROUNDING,
    Backward,
    Candidate,
    SearchOutcome,
    SearchQuestion,
    activation_limit,
    candidates,
    fusing_saves_memory,
    in_modes,
    named_schedules,
    recomputed_everywhere,
    with_copies,
)
from trainwright.scheduling.orders import justify
from trainwright.scheduling.simulate import native_costs, native_orders, simulate

_F, _I, _W, _B, _R, _O, _D, _L, *_ = ActionKind

# The link to the host: activations that do not fit wait there
# -------------------------------------------------------------
# Computations in the order of a schedule that holds too much are the start (`with_copies`): named
# families, a search within wider limits, and one that limits only what cannot leave.

_WIDER = (1.5, 2.0, 3.0, math.inf)  # limits of the computation, in those of the question
_WIDER_SHARE = 0.5  # of the work of a search, on top of it
_AWAY_SHARE = 0.25  # of the work, on top of both, for orders as if all were away that may leave
_AHEAD = (1, 2, 0)  # how many backwards before its own an activation is fetched
_HOPELESS = 1.1  # times as long as the best with the first way to copy
_SETTLED = (3, 0, 6)  # how many actions of its rank a copy has time for, where there is a choice


def _with_host(question: SearchQuestion, attempt: _Attempt, budget: Budget) -> _Attempt:
    """The best of wider limits, with copies; never worse than the attempt."""
    if _is_shortest(attempt) or budget.stopped:
        return attempt
    given, own, found = attempt, attempt.candidate, attempt.timeline.schedule
    plain = () if found.has_copies else ((attempt.winner, found),)
    seen: set[bytes] = set()
    starts: list[tuple[float, Candidate, Schedule]] = []  # the best of each wider limit
    for factor in _WIDER:
        wider = _widened(own, factor)
        if wider is None or _misfit(wider, question, offload=False) is not None:
            continue
        chosen = math.inf, wider, found
        for name, schedule in (*_named(question, wider), *plain):
            for each in (schedule, _without_delay(schedule, own)):
                if each.actions.tobytes() in seen:
                    continue
                seen.add(each.actions.tobytes())
                attempt, value_s = _offloaded(question, attempt, each, name)
                if value_s < chosen[0]:
                    chosen = value_s, wider, each
        starts.append(chosen)
    without = replace(question, offload=False)
    found_wide: list[tuple[str, Schedule]] = []
    for _, wider, schedule in sorted(starts, key=lambda start: start[0]):
        began = _Attempt.begin(without, wider, () if schedule.has_copies else [schedule])
        longer = _searched(without, began, _WIDER_SHARE / len(starts), budget)
        found_wide.append((longer.winner, longer.timeline.schedule))
        for each in (longer.timeline.schedule, _without_delay(longer.timeline.schedule, own)):
            attempt, _ = _offloaded(question, attempt, each, longer.winner)
        attempt = _with_work_of(longer, attempt)
    attempt = _annealed_in_place(question, attempt, budget)
    if _is_shortest(attempt) or budget.stopped:
        return attempt
    return _with_early(question, attempt, given, found_wide, budget)


def _with_early(
    question: SearchQuestion,
    attempt: _Attempt,
    given: _Attempt,
    found_wide: Sequence[tuple[str, Schedule]],
    budget: Budget,
) -> _Attempt:
    """The attempt, or better: what copies and early weight gradients make of `given` and others.

    Beside orders `found_wide`, these are of a search that limits only what cannot leave.
    """
    without, own = replace(question, offload=False), attempt.candidate
    other, orders = replace(given, work=0), [*found_wide]
    for away in _all_away(own):
        known = [schedule for _, schedule in found_wide]
        began = _Attempt.begin(without, away, known, built_for=_widened(own, math.inf))
        longer = _searched(without, began, _AWAY_SHARE, budget)
        orders.append((longer.winner, longer.timeline.schedule))
        other = _with_work_of(longer, other)
    for name, schedule in orders:
        other, _ = _offloaded(question, other, schedule, name, early=True)
    other = _annealed_in_place(question, other, budget, share=_MOVED_AGAIN)
    if other.value_s < attempt.value_s:
        return _with_work_of(attempt, other)
    return _with_work_of(other, attempt)


def _with_work_of(other: _Attempt, attempt: _Attempt) -> _Attempt:
    interrupted = attempt.interrupted or other.interrupted
    return replace(attempt, work=attempt.work + other.work, interrupted=interrupted)


# Annealing of finished orders with copies: actions move a few places on their rank
# ----------------------------------------------------------------------------------
# Copies made by a rule leave the link idle at one time and are late at another. Orders with copies
# are no words, so the core moves single actions of them (`native/schedule/move_annealing.hpp`).

_MOST_MOVED = 800_000_000  # actions, beside the work of a search: some twelve seconds
_MOVED_AGAIN = 0.5  # of that, from orders with early weight gradients


def _annealed_in_place(
    question: SearchQuestion, attempt: _Attempt, budget: Budget, *, share: float = 1.0
) -> _Attempt:
    """The attempt, or a better order that moves lead to; only of orders with copies."""
    schedule, candidate = attempt.timeline.schedule, attempt.candidate
    if not schedule.has_copies or len(schedule.pairs) or _is_shortest(attempt):
        return attempt
    delta, transient, room = candidate.resources
    found = _core.anneal_moves(
        native_orders(schedule),
        native_costs(candidate.costs),
        resource_delta=delta,
        resource_transient=transient,
        resource_room=room,
        objective=question.objective.value,
        seed=question.seed,
        work=int(share * min(_work(question, schedule.num_actions), _MOST_MOVED)),
        stop_at_s=attempt.bound.value_s,
        poll=_poll(budget, attempt),
    )
    attempt = replace(
        attempt,
        work=attempt.work + found.work,
        interrupted=attempt.interrupted or found.interrupted,
    )
    if not found.complete:
        return attempt
    timeline = simulate(replace(schedule, actions=found.actions), candidate.costs)
    value_s = question.objective.of(timeline)
    if candidate.costs.transfer_model is TransferModel.FREE:
        assert np.isclose(found.value_s, value_s, rtol=1e-9, atol=0), "both tell the same time"
    if not (candidate.fits(timeline) and value_s < attempt.value_s):
        return attempt
    winner = f"{attempt.winner}, moved"
    return replace(attempt, timeline=timeline, value_s=value_s, winner=winner)


def _without_delay(schedule: Schedule, candidate: Candidate) -> Schedule:
    """Each weight gradient right after its input gradient: what waits for one cannot leave."""
    modes = {"recomputed": candidate.recomputed}
    whole = in_modes(schedule, fused=np.ones(candidate.fused.shape, np.bool_), **modes)
    return in_modes(whole, fused=candidate.fused, **modes)


def _offloaded(
    question: SearchQuestion,
    attempt: _Attempt,
    schedule: Schedule,
    name: str,
    *,
    early: bool = False,
) -> tuple[_Attempt, float]:
    """The attempt, or what copies make of another schedule if that is better; and its value."""
    candidate, least_s = attempt.candidate, math.inf
    for ahead, settled in itertools.product(_AHEAD, _SETTLED):
        paged = with_copies(schedule, candidate, ahead=ahead, settled=settled, early=early)
        timeline = simulate(paged, candidate.costs)
        if not candidate.fits(timeline):
            continue
        value_s = question.objective.of(timeline)
        least_s = min(least_s, value_s)
        if value_s < attempt.value_s:
            attempt = replace(
                attempt, timeline=timeline, value_s=value_s, winner=f"{name}, offloaded"
            )
        elif value_s > _HOPELESS * attempt.value_s:  # of other ways to copy, too
            break
    return attempt, least_s


def _all_away(candidate: Candidate) -> Iterator[Candidate]:
    """Of each limit, as if all that may leave were away from its forward to its first use.

    A forward takes that room only while it runs, and R or the backward takes it again. Every order
    that fits with copies fits so without them.
    """
    recomputed = candidate.recomputed
    for delta, transient, room in zip(*candidate.resources_by_kind, strict=True):
        peak = np.maximum(delta, 0.0) + transient
        own = delta.copy()
        own[_F] += delta[_D]
        own[_D] = own[_L] = 0.0
        for kind in (_I, _B, _R):
            users = recomputed if kind is _R else ~recomputed
            own[kind] += np.where(users, delta[_L], 0.0)
            peak[kind] += np.where(users, delta[_L], 0.0)
        memory = ScheduleMemory(
            delta_bytes=own,
            transient_bytes=peak - np.maximum(own, 0.0),
            static_bytes=np.zeros(len(room)),
            limit_bytes=room * (1 + ROUNDING),  # sums come in another order
        )
        yield replace(
            candidate, costs=replace(candidate.costs, memory=memory), activation_limit=None
        )


def _widened(candidate: Candidate, factor: float) -> Candidate | None:
    """The candidate with more room; None where it has no limit."""
    memory, limit = candidate.costs.memory, candidate.activation_limit
    bounded = np.isfinite(memory.limit_bytes)
    if limit is None and not bounded.any():
        return None
    wider_bytes = np.full(memory.num_ranks, math.inf)
    if factor < math.inf:
        room = memory.limit_bytes - memory.static_bytes
        wider_bytes[bounded] = (memory.static_bytes + room * factor)[bounded]
    wider = replace(memory, limit_bytes=wider_bytes)
    return replace(
        candidate,
        costs=replace(candidate.costs, memory=wider),
        activation_limit=None if limit is None or factor == math.inf else int(limit * factor),
    )


# Search for the shortest pipeline schedule within memory limits
# --------------------------------------------------------------

_FIRST_ROUND = 0.4  # of the work, shared by all candidates; the best of them get the rest
_FINALISTS = 2
_FURTHER = 0.25  # of the work, on top of it, from paths in V that are placed in seconds
_REPEATING = 0.5  # of the work, for orders that repeat
_STEPS_OF_RANKS = 3  # as many microbatches for each rank at least
_OPEN = 0.04  # and such a gap of the families
_FEWER_STEPS = 2  # or so many, on top of the work, where all of that leaves
_STILL_OPEN = 0.01  # such a gap
_FEW_ACTIONS = 500  # of an order that is annealed quickly
_HEATED = 2.0  # of the work, on top of it, from hot to cold; only where the search leaves
_OPEN_TO_HEAT = 0.02  # such a gap
_HEATED_ACTIONS = 2000  # of an order; larger ones do not cool in the time
_NUM_LABELS = 2_000_000  # of the bound by crossings: at most some two seconds
_NUM_PAIR_LABELS = 3_000_000  # of that of two ranks: at most some five seconds
_FRONT_SHARE = 20  # of them, for a point of a front
_BOUND_SHARE = 0.5  # of a time limit, at most, for bounds before the search


def search_schedule(
    question: SearchQuestion, *, budget: Budget, known: Sequence[Schedule] = ()
) -> SearchOutcome | LimitTooSmall:
    """The shortest schedule found for `question`, with a bound; same question, same answer.

    Schedules already `known` join the starts of every candidate with their placement.
    A time limit or interruption in `budget` ends the search early with the best found so far, and
    is the only thing that can make two answers differ.
    """
    found = _search_of(question, budget=budget, known=known)
    if (
        isinstance(found, LimitTooSmall)
        or found.status is Status.OPTIMAL
        or question.backward is not Backward.ANY
        or not fusing_saves_memory(question.costs)
    ):
        return found
    # Halves that fit may leave room for less than whole backwards do.
    whole = _search_of(replace(question, backward=Backward.FUSED), budget=budget, known=known)
    if isinstance(whole, LimitTooSmall):
        return found
    shorter = whole if whole.value_s < found.value_s * (1 - ROUNDING) else found
    return replace(
        shorter,
        bound=found.bound,
        pipeline_bound=found.pipeline_bound if shorter is found else found.bound,
        evaluations=found.evaluations + whole.evaluations,
        tried=found.tried,
        is_open=found.is_open,
        interrupted=found.interrupted or whole.interrupted,
    )


def _search_of(
    question: SearchQuestion, *, budget: Budget, known: Sequence[Schedule]
) -> SearchOutcome | LimitTooSmall:
    """In the modes that the question leaves open; whole backwards where these are quicker."""
    tries = _tries(question)
    misfits = [_misfit(candidate, question, offload=question.offload) for candidate in tries]
    attempts = [
        _Attempt.begin(question, candidate, known)
        for candidate, misfit in zip(tries, misfits, strict=True)
        if misfit is None
    ]
    if not attempts:
        return _least_of(tries, misfits)
    # Bounds that take seconds leave half of the time to the search.
    part = budget.part(_BOUND_SHARE * budget.remaining_s)
    num_labels = _NUM_LABELS // len(attempts)
    attempts = [_sharper(question, attempt, num_labels, part) for attempt in attempts]
    wider: list[Bound] = []
    if question.recompute_saved_bytes is not None and len(tries) > 1:
        placements = {attempt.candidate.placement: attempt for attempt in attempts}
        share = _NUM_LABELS // len(placements)
        wider = [
            _bound_of_any_recompute(question, placement, share, _asks(part, attempt))
            for placement, attempt in placements.items()
        ]
    if len(attempts) == 1:
        attempts = [_searched_alone(question, attempts[0], budget)]
        return _outcome(question, attempts, wider, budget, was_cut=part.stopped)
    first = _FIRST_ROUND / len(attempts)
    attempts = [_searched(question, attempt, first, budget) for attempt in attempts]
    rest = (1.0 - _FIRST_ROUND) / _FINALISTS
    order = sorted(range(len(attempts)), key=lambda at: attempts[at].value_s)
    for at in order[:_FINALISTS]:
        attempts[at] = _searched(question, attempts[at], rest, budget)
        attempts[at] = _from_seconds(question, attempts[at], _FURTHER * rest, budget)
        attempts[at] = _justified(question, attempts[at])
        if question.offload:
            attempts[at] = _with_host(question, attempts[at], budget)
    return _outcome(question, attempts, wider, budget, was_cut=part.stopped)


def _searched_alone(question: SearchQuestion, attempt: _Attempt, budget: Budget) -> _Attempt:
    """Spend all of the question's work on one candidate."""
    repeats = _repeats(question, attempt)
    attempt = _searched(question, attempt, 1.0 - _REPEATING if repeats else 1.0, budget)
    further = _repeating if repeats else _from_seconds
    attempt = further(question, attempt, _REPEATING if repeats else _FURTHER, budget)
    attempt = _justified(question, attempt)
    if not repeats and _repeats_on_top(question, attempt):
        attempt = _justified(question, _repeating(question, attempt, _REPEATING, budget))
    if _is_heated(question, attempt):
        attempt = _justified(question, _heated(question, attempt, budget))
    return _with_host(question, attempt, budget) if question.offload else attempt


def _tries(question: SearchQuestion) -> list[Candidate]:
    """The candidates; where no mode of a pipeline fits, the first fuses what does not fit split."""
    tries = list(candidates(question))
    if question.backward is not Backward.ANY:
        return tries
    fitting: dict[tuple[Placement, bytes], bool] = {}
    for candidate in tries:
        key = candidate.placement, candidate.recomputed.tobytes()
        fits = _misfit(candidate, question, offload=question.offload) is None
        fitting[key] = fitting.get(key, False) or fits
    for at, candidate in enumerate(tries):
        key = candidate.placement, candidate.recomputed.tobytes()
        if not fitting.pop(key, True):
            tries[at] = candidate.leaner
    return tries


def _least_of(tries: Sequence[Candidate], misfits: Sequence[LimitTooSmall | None]) -> LimitTooSmall:
    """The smallest need of the plainest placement, in whatever modes: its chunks are the stages."""
    plainest = tries[0].placement
    reasons = [
        misfit
        for candidate, misfit in zip(tries, misfits, strict=True)
        if misfit is not None and candidate.placement == plainest
    ]
    return min(reasons, key=lambda misfit: misfit.needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """The best schedule of one candidate so far."""

    candidate: Candidate
    timeline: Timeline
    value_s: float
    winner: str
    bound: Bound
    starts: tuple[tuple[str, Schedule], ...]
    work: int = 0
    interrupted: bool = False

    @classmethod
    def begin(
        cls,
        question: SearchQuestion,
        candidate: Candidate,
        known: Sequence[Schedule],
        *,
        built_for: Candidate | None = None,
    ) -> _Attempt:
        """The best named family that fits, or else one microbatch at a time.

        Families are built for the limits of `built_for`, unless told the candidate's.
        """
        starts = [*_named(question, built_for or candidate)]
        modes = {"fused": candidate.fused, "recomputed": candidate.recomputed}
        starts += [
            ("known", in_modes(schedule, **modes))
            for schedule in known
            if schedule.placement == candidate.placement
        ]
        fallback = candidate.one_at_a_time(question.num_microbatches)
        starts.append(("one at a time", fallback))
        if question.offload:
            paged = with_copies(fallback, candidate, ahead=0)
            starts.append(("one at a time, offloaded", paged))
        best: tuple[float, str, Timeline] | None = None
        for name, schedule in starts:
            timeline = simulate(schedule, candidate.costs)
            if not candidate.fits(timeline):
                continue
            value_s = question.objective.of(timeline)
            if best is None or value_s < best[0]:
                best = value_s, name, timeline
        assert best is not None, "one microbatch at a time fits where anything does"
        return cls(
            candidate=candidate,
            timeline=best[2],
            value_s=best[0],
            winner=best[1],
            bound=lower_bound(question, candidate, num_labels=0),
            starts=tuple(starts),
        )


def _named(
    question: SearchQuestion, candidate: Candidate, *, in_slots: bool = True
) -> Iterator[tuple[str, Schedule]]:
    """Families in the candidate's modes, and as they are where the question leaves modes open."""
    named = named_schedules(
        candidate.placement,
        question.num_microbatches,
        costs=candidate.costs,
        limits=(candidate.activation_limit,),
        in_slots=in_slots,
    )
    leaves_open = question.backward is Backward.ANY and not candidate.recomputed.any()
    for name, schedule in named:
        own = in_modes(schedule, fused=candidate.fused, recomputed=candidate.recomputed)
        yield name, own
        if leaves_open and own is not schedule:
            yield name, schedule


def _from_seconds(
    question: SearchQuestion, attempt: _Attempt, share: float, budget: Budget
) -> _Attempt:
    """With the families in V that place paths in seconds, and a search that starts from them.

    They are no starts of the search itself: it finds more from those that differ most.
    """
    attempt, starts = _in_seconds(question, attempt)
    return _annealed(question, attempt, starts, share, budget) if starts else attempt


def _in_seconds(
    question: SearchQuestion, attempt: _Attempt
) -> tuple[_Attempt, list[tuple[str, Schedule]]]:
    """The attempt, or the best of these families if that is shorter; and all that fit."""
    candidate = attempt.candidate
    if not _is_in_v(candidate) or attempt.interrupted or _is_shortest(attempt):
        return attempt, []
    known = {schedule.actions.tobytes() for _, schedule in attempt.starts}
    starts = []
    for name, schedule in _named(question, candidate, in_slots=False):
        timeline = simulate(schedule, candidate.costs)
        if schedule.actions.tobytes() in known or not candidate.fits(timeline):
            continue
        starts.append((name, schedule))
        value_s = question.objective.of(timeline)
        if value_s < attempt.value_s:
            attempt = replace(attempt, timeline=timeline, value_s=value_s, winner=name)
    return attempt, starts


def _is_in_v(candidate: Candidate) -> bool:
    return candidate.placement == Placement.v(candidate.placement.num_ranks)


def _repeats(question: SearchQuestion, attempt: _Attempt) -> bool:
    """Whether most of a step is its middle, and families in V leave much of it to gain."""
    num_ranks = attempt.candidate.placement.num_ranks
    is_long = question.num_microbatches >= _STEPS_OF_RANKS * num_ranks
    is_open = attempt.value_s > attempt.bound.value_s * (1 + _OPEN)
    return _is_in_v(attempt.candidate) and is_long and is_open


def _repeats_on_top(question: SearchQuestion, attempt: _Attempt) -> bool:
    """Whether more than ends are left of a short step, and its orders are small."""
    is_long = question.num_microbatches >= _FEWER_STEPS * attempt.candidate.placement.num_ranks
    is_small = attempt.timeline.schedule.num_actions <= _FEW_ACTIONS
    is_open = attempt.value_s > attempt.bound.value_s * (1 + _STILL_OPEN)
    return _is_in_v(attempt.candidate) and is_long and is_small and is_open


def _repeating(
    question: SearchQuestion, attempt: _Attempt, share: float, budget: Budget
) -> _Attempt:
    """With orders that repeat, like those of families, and a search that starts from the best."""
    attempt, starts = _in_seconds(question, attempt)
    starts += attempt.starts
    return _annealed(question, attempt, starts, share, budget, search=_core.search_repeating)


def _is_heated(question: SearchQuestion, attempt: _Attempt) -> bool:
    """Whether orders are small and open, and no family places paths like theirs in seconds."""
    is_small = attempt.timeline.schedule.num_actions <= _HEATED_ACTIONS
    is_open = attempt.value_s > attempt.bound.value_s * (1 + _OPEN_TO_HEAT)
    return is_small and is_open and not (question.offload or _is_in_v(attempt.candidate))


def _heated(question: SearchQuestion, attempt: _Attempt, budget: Budget) -> _Attempt:
    """With what annealing finds that forgets where it began."""
    return _annealed(question, attempt, (), _HEATED, budget, search=_core.search_heated)


def _justified(question: SearchQuestion, attempt: _Attempt) -> _Attempt:
    """The attempt's order against both ends, where that is shorter."""
    if _is_shortest(attempt):
        return attempt
    costs = attempt.candidate.costs
    timeline = simulate(justify(attempt.timeline.schedule, costs), costs)
    value_s = question.objective.of(timeline)
    if not (attempt.candidate.fits(timeline) and value_s < attempt.value_s):
        return attempt
    winner = f"{attempt.winner}, justified"
    return replace(attempt, timeline=timeline, value_s=value_s, winner=winner)


def _searched(
    question: SearchQuestion, attempt: _Attempt, share: float, budget: Budget
) -> _Attempt:
    """Spend a share of the question's work on one candidate."""
    return _annealed(question, attempt, attempt.starts, share, budget)


def _annealed(
    question: SearchQuestion,
    attempt: _Attempt,
    starts: Sequence[tuple[str, Schedule]],
    share: float,
    budget: Budget,
    *,
    search: Callable[..., _core.FoundOrders] = _core.search_schedule,
) -> _Attempt:
    """With what a search finds that begins with some orders and the best so far."""
    if attempt.interrupted or _is_shortest(attempt):
        return attempt
    candidate = attempt.candidate
    problem = _problem(question, candidate)
    begun = (*starts, (attempt.winner, attempt.timeline.schedule))
    found = search(
        problem,
        [native_orders(schedule) for _, schedule in begun],
        seed=question.seed,
        work=max(1, int(share * _work(question, problem.num_actions))),
        stop_at_s=attempt.bound.value_s,
        poll=_poll(budget, attempt),
    )
    attempt = replace(attempt, work=attempt.work + found.work, interrupted=found.interrupted)
    if not len(found.actions):
        return attempt
    schedule = Schedule(
        placement=candidate.placement,
        num_microbatches=question.num_microbatches,
        actions=found.actions.reshape(-1, 3),
        rank_offsets=found.rank_offsets,
    )
    timeline = simulate(schedule, candidate.costs)
    if candidate.costs.transfer_model is TransferModel.FREE:
        times_s = (found.span_s, found.makespan_s), (timeline.span_s, timeline.makespan_s)
        assert np.allclose(*times_s, rtol=1e-9, atol=0), "both simulators tell the same times"
    value_s = question.objective.of(timeline)
    if value_s >= attempt.value_s or not candidate.fits(timeline):
        return attempt
    winner = begun[found.winning_start][0] if found.winner == "given" else found.winner
    return replace(attempt, timeline=timeline, value_s=value_s, winner=winner)


def _poll(budget: Budget, attempt: _Attempt) -> Callable[[float], bool]:
    """Tells the budget how far a search is, and whether to stop."""
    return lambda best_s: budget.poll(
        Progress(
            stage="search",
            elapsed_s=budget.elapsed_s,
            best=best_s,
            lower_bound=attempt.bound.value_s,
        )
    )


def _asks(budget: Budget, attempt: _Attempt) -> Callable[[], bool]:
    """The same while a bound is sought, which finds no order."""
    return partial(_poll(budget, attempt), attempt.value_s)


def _sharper(
    question: SearchQuestion, attempt: _Attempt, num_labels: int, budget: Budget
) -> _Attempt:
    """With the bound that takes longest, where others leave a gap."""
    if _is_shortest(attempt):
        return attempt
    asks = _asks(budget, attempt)
    bound = lower_bound(question, attempt.candidate, num_labels=num_labels, poll=asks)
    return replace(attempt, bound=bound)


def _of_two_ranks(
    question: SearchQuestion,
    attempt: _Attempt,
    enough_s: float,
    num_labels: int,
    budget: Budget,
) -> _Attempt:
    """With the bound that needs to know what was found, where others are below that."""
    if attempt.interrupted or attempt.bound.value_s >= enough_s * (1 - ROUNDING):
        return attempt
    bound = two_ranks_bound(
        _least_costs(question, attempt.candidate),
        question.num_microbatches,
        objective=question.objective,
        enough_s=enough_s,
        num_labels=num_labels,
        known_s=attempt.bound.value_s * (1 + ROUNDING),
        poll=_asks(budget, attempt),
    )
    higher = bound.value_s > attempt.bound.value_s * (1 + ROUNDING)
    return replace(attempt, bound=bound) if higher else attempt


def _is_shortest(attempt: _Attempt) -> bool:
    return attempt.value_s <= attempt.bound.value_s * (1 + ROUNDING)


def _outcome(
    question: SearchQuestion,
    attempts: Sequence[_Attempt],
    wider: Sequence[Bound],
    budget: Budget,
    *,
    was_cut: bool,
) -> SearchOutcome:
    """The best of the attempts, the plainest first: finer ones do not win by rounding.

    `wider` are the bounds on whatever is open beside the attempts; `was_cut` says whether one of
    the bounds before the search was stopped.
    """
    least_s = min(attempt.value_s for attempt in attempts)
    num_labels = _NUM_PAIR_LABELS // len(attempts)
    attempts = [
        _of_two_ranks(question, attempt, least_s, num_labels, budget) for attempt in attempts
    ]
    least_s *= 1 + ROUNDING
    best = next(attempt for attempt in attempts if attempt.value_s <= least_s)
    work = sum(attempt.work for attempt in attempts)
    found = SearchOutcome(
        timeline=best.timeline,
        objective=question.objective,
        bound=_least_bound(wider or [attempt.bound for attempt in attempts]),
        pipeline_bound=best.bound,
        winner=best.winner,
        evaluations=work // best.timeline.schedule.num_actions,
        seed=question.seed,
        tried=len(attempts),
        is_open=bool(wider) or len(attempts) > 1,
        interrupted=any(attempt.interrupted for attempt in attempts),
    )
    if (was_cut or budget.stopped) and found.status is not Status.OPTIMAL:
        return replace(found, interrupted=True)
    return found


def _problem(question: SearchQuestion, candidate: Candidate) -> _core.StreamProblem:
    delta, transient, room = candidate.resources
    costs = candidate.costs
    return _core.StreamProblem(
        rank_of_stage=np.array(candidate.placement.rank_of_stage, np.int32),
        num_ranks=candidate.placement.num_ranks,
        num_microbatches=question.num_microbatches,
        duration_s=costs.duration_s,
        forward_transfer_s=costs.forward_transfer_s,
        backward_transfer_s=costs.backward_transfer_s,
        fused=candidate.fused,
        recomputed=candidate.recomputed,
        resource_delta=delta,
        resource_transient=transient,
        resource_room=room,
        objective=question.objective.value,
    )


def lower_bound(
    question: SearchQuestion,
    candidate: Candidate,
    *,
    num_labels: int = _NUM_LABELS,
    poll: Callable[[], bool] | None = None,
) -> Bound:
    """The best bound on what a search may find for one candidate; 0 labels leave crossings out.

    These take seconds; `poll` is asked meanwhile whether to stop.
    """
    return _best_with_crossings(question, _least_costs(question, candidate), num_labels, poll)


def _least_costs(question: SearchQuestion, candidate: Candidate) -> LeastCosts:
    split_or_fused = question.backward is Backward.ANY and not candidate.recomputed.any()
    return LeastCosts.of(
        candidate.placement,
        candidate.costs,
        max_activations=candidate.activation_limit,
        fused=None if split_or_fused else candidate.fused,
        recomputed=candidate.recomputed,
        offload=question.offload,
    )


def _best_with_crossings(
    question: SearchQuestion, least: LeastCosts, num_labels: int, poll: Callable[[], bool] | None
) -> Bound:
    m, objective = question.num_microbatches, question.objective
    best = best_bound(least, m, objective=objective)
    if not num_labels:
        return best
    crossings = crossings_bound(least, m, objective=objective, num_labels=num_labels, poll=poll)
    return crossings if crossings.value_s > best.value_s * (1 + ROUNDING) else best


def _least_bound(bounds: Sequence[Bound]) -> Bound:
    """The least, the plainest of equal ones."""
    least_s = min(bound.value_s for bound in bounds) * (1 + ROUNDING)
    return next(bound for bound in bounds if bound.value_s <= least_s)


def _bound_of_any_recompute(
    question: SearchQuestion,
    placement: Placement,
    num_labels: int,
    poll: Callable[[], bool] | None,
) -> Bound:
    """Whichever stages recompute, of which candidates are a few: all keep less, R is free."""
    least = LeastCosts.of(
        placement,
        recomputed_everywhere(question, parts=placement.num_stages // question.costs.num_stages),
        max_activations=activation_limit(question, placement),
        offload=question.offload,
    )
    return _best_with_crossings(question, least, num_labels, poll)


def bound_of_point(
    question: SearchQuestion,
    candidate: Candidate,
    *,
    num_labels: int,
    poll: Callable[[], bool] | None = None,
) -> Bound:
    """The bound on a point of a front: of one placement, whatever is recomputed."""
    if question.recompute_saved_bytes is None:
        return lower_bound(question, candidate, num_labels=num_labels, poll=poll)
    at_peak = replace(question, max_activations=candidate.activation_limit)
    return _bound_of_any_recompute(at_peak, candidate.placement, num_labels, poll)


def default_evaluations(num_actions: int) -> int:
    """Whole simulations of n actions: some seconds for small schedules, a few more for large."""
    return math.ceil(min(5e8 * math.pow(num_actions / 192, 0.35), 1.2e9) / num_actions)


def _work(question: SearchQuestion, num_actions: int) -> int:
    """Actions to simulate."""
    return (question.evaluations or default_evaluations(num_actions)) * num_actions


def _misfit(
    candidate: Candidate, question: SearchQuestion, *, offload: bool
) -> LimitTooSmall | None:
    """Why nothing fits, if so: no schedule needs less than one microbatch at a time."""
    least, limit = candidate.one_at_a_time(question.num_microbatches), candidate.activation_limit
    if offload:
        least = with_copies(least, candidate, ahead=0)
    return misfit(least, candidate.costs.memory, max_activations=limit)


# Memory against time: the schedules that no other beats in both
# --------------------------------------------------------------
# Named families give the first points, at many limits those that take one; the search then fills in
# limits of its own. Memory is the largest rank's peak: chunk activations, or the bytes of the costs
# where those are limited. A dominated point (no less memory and no less time than another) is
# dropped.


_NAMED_ACTIONS = 400_000  # of named families at all limits together: about five seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    """One schedule: what it holds at most, how long it takes, and how much shorter one could be.

    `bound` holds for schedules of this placement that need no more than `peak_activations`.
    """

    timeline: Timeline
    value_s: float
    peak_activations: int
    peak_bytes: float
    bound: Bound
    source: str

    @property
    def schedule(self) -> Schedule:
        """Orders without times."""
        return self.timeline.schedule

    @property
    def gap(self) -> float:
        """(value - bound) / value."""
        return relative_gap(self.value_s, self.bound.value_s)


def named_front(
    question: SearchQuestion, *, limits: Sequence[int] = (), budget: Budget | None = None
) -> tuple[ParetoPoint, ...]:
    """The front of all named families with the question's placement, least memory first.

    Families that take a memory limit are built for each of `limits`, by default `many_limits`, and
    for none. The question's own limits and work are ignored.
    """
    best: dict[int, tuple[float, str, Timeline]] = {}
    candidate = candidates(question)[0]
    named = named_schedules(
        candidate.placement,
        question.num_microbatches,
        costs=candidate.costs,
        limits=(None, *(limits or many_limits(question))),
    )
    for name, schedule in named:
        timeline = simulate(schedule, candidate.costs)
        value_s = question.objective.of(timeline)
        peak = max(schedule.peak_activations)
        if peak not in best or value_s < best[peak][0]:
            best[peak] = value_s, name, timeline
    budget = budget or Budget()
    return _front(
        _point(question, timeline, name, budget=budget) for _, name, timeline in best.values()
    )


def searched_front(
    question: SearchQuestion, *, budget: Budget, limits: Sequence[int] = ()
) -> tuple[ParetoPoint, ...]:
    """The named front improved by a search at each limit, each from the schedules before it.

    The question's evaluations are for all limits together, half of them for the largest, whose
    schedule is the answer; the default is that of four searches.
    """
    limits = sorted(limits or some_limits(question, count=8))
    between = (limit for limit in many_limits(question) if limit < limits[-1])
    points = list(named_front(question, limits=sorted({*limits, *between}), budget=budget))
    placement = candidates(question)[0].placement
    num_actions = 3 * placement.num_stages * question.num_microbatches
    evaluations = question.evaluations or 4 * default_evaluations(num_actions)
    known: list[Schedule] = []
    for limit in limits:
        at_limit = replace(
            question,
            placement=placement,
            max_activations=limit,
            evaluations=max(1, evaluations // (2 if limit == limits[-1] else 2 * len(limits))),
        )
        outcome = search_schedule(at_limit, budget=budget, known=known)
        if isinstance(outcome, SearchOutcome):
            known = [outcome.schedule]
            points.append(_point(question, outcome.timeline, outcome.winner, budget=budget))
        if budget.stopped:
            break
    return _front(points)


def many_limits(question: SearchQuestion) -> tuple[int, ...]:
    """Every limit worth asking about, or as many as take a few seconds to build families for."""
    num_actions = 3 * candidates(question)[0].placement.num_stages * question.num_microbatches
    return some_limits(question, count=max(8, _NAMED_ACTIONS // num_actions))


def some_limits(question: SearchQuestion, *, count: int) -> tuple[int, ...]:
    """Limits worth asking about: from what one microbatch needs to 1F1B's peak, evenly spread.

    V-Min's peak, a third of it, and V-Half's lie between; beyond it memory brings nothing where
    all stages cost the same.
    """
    placement = candidates(question)[0].placement
    least = max(map(len, placement.stages_of_rank))
    most = max(least, placement.num_stages)
    return tuple(sorted({round(limit) for limit in np.linspace(least, most, count)}))


def _point(
    question: SearchQuestion, timeline: Timeline, source: str, *, budget: Budget
) -> ParetoPoint:
    peak, value_s = max(timeline.schedule.peak_activations), question.objective.of(timeline)
    candidate = candidates(replace(question, max_activations=peak))[0]
    asked = partial(budget.poll, Progress(stage="search", elapsed_s=budget.elapsed_s, best=value_s))
    num_labels = _NUM_LABELS // _FRONT_SHARE
    return ParetoPoint(
        timeline=timeline,
        value_s=value_s,
        peak_activations=peak,
        peak_bytes=float(timeline.peak_bytes.max()),
        bound=bound_of_point(question, candidate, num_labels=num_labels, poll=asked),
        source=source,
    )


def _front(points: Iterable[ParetoPoint]) -> tuple[ParetoPoint, ...]:
    """Points by memory, each shorter than all before it; of equals the first stays."""
    front: list[ParetoPoint] = []
    for point in sorted(points, key=lambda point: (point.peak_activations, point.value_s)):
        if not front or point.value_s < front[-1].value_s:
            front.append(point)
    return tuple(front)
