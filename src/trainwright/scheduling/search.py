"""Search for the shortest pipeline schedule within memory limits.

1. Portfolio: every named family that fits the placement and the limits, priced with the true
   costs. The answer is never worse than any of them.
2. Seeds: list scheduling by target offsets, which repeat one microbatch's path every period, and
   annealing of the offsets (`native/target_search.hpp`).
3. Annealing on words over streams, starting from the best of both (`native/word_annealing.hpp`).

All with per-stage times, memory deltas and per-rank limits; it ends early at the lower bound. The
core prices free transfers only: under other transfer models it searches as if they were free, and
what it finds is re-simulated like every family before it may win.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright._native import _core
from trainwright.execution import Budget, Progress
from trainwright.plan.schedule import Schedule
from trainwright.plan.schedule_costs import TransferModel
from trainwright.scheduling.bounds import best_bound
from trainwright.scheduling.least_costs import LeastCosts
from trainwright.scheduling.least_memory import one_at_a_time
from trainwright.scheduling.portfolio import in_modes, named_schedules
from trainwright.scheduling.search_candidates import (
    Candidate,
    activation_limit,
    candidates,
    recomputed_everywhere,
)
from trainwright.scheduling.search_question import (
    Backward,
    LimitTooSmall,
    SearchOutcome,
    SearchQuestion,
)
from trainwright.scheduling.simulate import native_orders, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainwright.plan.placement import Placement
    from trainwright.plan.schedule_bound import Bound
    from trainwright.plan.timeline import Timeline

_FIRST_ROUND = 0.4  # of the work, shared by all candidates; the best of them get the rest
_FINALISTS = 2
_ROUNDING = 1e-12  # relative: what sums in another order differ by


def search_schedule(
    question: SearchQuestion, *, budget: Budget, known: Sequence[Schedule] = ()
) -> SearchOutcome | LimitTooSmall:
    """The shortest schedule found for `question`, with a bound; same question, same answer.

    Schedules already `known` join the starts of every candidate with their placement.
    A time limit or interruption in `budget` ends the search early with the best found so far, and
    is the only thing that can make two answers differ.
    """
    tries = candidates(question)
    misfits = [_misfit(candidate) for candidate in tries]
    attempts = [
        _Attempt.begin(question, candidate, known)
        for candidate, misfit in zip(tries, misfits, strict=True)
        if misfit is None
    ]
    if not attempts:
        return _least_of(tries, misfits)
    if len(attempts) == 1:
        return _outcome(question, [_searched(question, attempts[0], 1.0, budget)])
    share = _FIRST_ROUND / len(attempts)
    attempts = [_searched(question, attempt, share, budget) for attempt in attempts]
    rest = (1.0 - _FIRST_ROUND) / _FINALISTS
    order = sorted(range(len(attempts)), key=lambda at: attempts[at].value_s)
    for at in order[:_FINALISTS]:
        attempts[at] = _searched(question, attempts[at], rest, budget)
    return _outcome(question, attempts)


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
        cls, question: SearchQuestion, candidate: Candidate, known: Sequence[Schedule]
    ) -> _Attempt:
        """The best named family that fits, or else one microbatch at a time."""
        starts = [*_named(question, candidate)]
        modes = {"fused": candidate.fused, "recomputed": candidate.recomputed}
        starts += [
            ("known", in_modes(schedule, **modes))
            for schedule in known
            if schedule.placement == candidate.placement
        ]
        starts.append(("one at a time", _fallback(candidate, question.num_microbatches)))
        best: tuple[float, str, Timeline] | None = None
        for name, schedule in starts:
            timeline = simulate(schedule, candidate.costs)
            if not _fits(timeline, candidate):
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
            bound=lower_bound(question, candidate),
            starts=tuple(starts),
        )


def _named(question: SearchQuestion, candidate: Candidate) -> Iterator[tuple[str, Schedule]]:
    """Families in the candidate's modes, and as they are where the question leaves modes open."""
    named = named_schedules(
        candidate.placement,
        question.num_microbatches,
        costs=candidate.costs,
        limits=(candidate.activation_limit,),
    )
    leaves_open = question.backward is Backward.ANY and not candidate.recomputed.any()
    for name, schedule in named:
        own = in_modes(schedule, fused=candidate.fused, recomputed=candidate.recomputed)
        yield name, own
        if leaves_open and own is not schedule:
            yield name, schedule


def _searched(
    question: SearchQuestion, attempt: _Attempt, share: float, budget: Budget
) -> _Attempt:
    """Spend a share of the question's work on one candidate."""
    if attempt.interrupted or attempt.value_s <= attempt.bound.value_s * (1 + _ROUNDING):
        return attempt
    candidate = attempt.candidate
    problem = _problem(question, candidate)
    starts = [schedule for _, schedule in attempt.starts]
    found = _core.search_schedule(
        problem,
        [native_orders(schedule) for schedule in (*starts, attempt.timeline.schedule)],
        seed=question.seed,
        work=max(1, int(share * _work(question, problem.num_actions))),
        stop_at_s=attempt.bound.value_s,
        poll=lambda best_s: budget.poll(
            Progress(
                stage="search",
                elapsed_s=budget.elapsed_s,
                best=best_s,
                lower_bound=attempt.bound.value_s,
            )
        ),
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
    if value_s >= attempt.value_s:
        return attempt
    return replace(attempt, timeline=timeline, value_s=value_s, winner=_winner(found, attempt))


def _winner(found: _core.FoundOrders, attempt: _Attempt) -> str:
    if found.winner != "given":
        return found.winner
    names = [name for name, _ in attempt.starts]
    return names[found.winning_start] if found.winning_start < len(names) else attempt.winner


def _outcome(question: SearchQuestion, attempts: Sequence[_Attempt]) -> SearchOutcome:
    """The best of the attempts, the plainest first: finer ones do not win by rounding."""
    least_s = min(attempt.value_s for attempt in attempts) * (1 + _ROUNDING)
    best = next(attempt for attempt in attempts if attempt.value_s <= least_s)
    work = sum(attempt.work for attempt in attempts)
    return SearchOutcome(
        timeline=best.timeline,
        objective=question.objective,
        bound=_bound_of_all(question, attempts),
        pipeline_bound=best.bound,
        winner=best.winner,
        evaluations=work // best.timeline.schedule.num_actions,
        seed=question.seed,
        tried=len(attempts),
        interrupted=any(attempt.interrupted for attempt in attempts),
    )


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


def lower_bound(question: SearchQuestion, candidate: Candidate) -> Bound:
    """The best bound on what a search may find for one candidate."""
    split_or_fused = question.backward is Backward.ANY and not candidate.recomputed.any()
    least = LeastCosts.of(
        candidate.placement,
        candidate.costs,
        max_activations=candidate.activation_limit,
        fused=None if split_or_fused else candidate.fused,
        recomputed=candidate.recomputed,
    )
    return best_bound(least, question.num_microbatches, objective=question.objective)


def _bound_of_all(question: SearchQuestion, attempts: Sequence[_Attempt]) -> Bound:
    """The least of the bounds on what the question leaves open, the plainest of equal ones."""
    bounds = [attempt.bound for attempt in attempts]
    if question.recompute_saved_bytes is not None and len(attempts) > 1:
        placements = dict.fromkeys(attempt.candidate.placement for attempt in attempts)
        bounds = [_bound_of_any_recompute(question, placement) for placement in placements]
    least_s = min(bound.value_s for bound in bounds) * (1 + _ROUNDING)
    return next(bound for bound in bounds if bound.value_s <= least_s)


def _bound_of_any_recompute(question: SearchQuestion, placement: Placement) -> Bound:
    """Whichever stages recompute, of which candidates are a few: all keep less, R is free."""
    least = LeastCosts.of(
        placement,
        recomputed_everywhere(question, parts=placement.num_stages // question.costs.num_stages),
        max_activations=activation_limit(question, placement),
    )
    return best_bound(least, question.num_microbatches, objective=question.objective)


def default_evaluations(num_actions: int) -> int:
    """Whole simulations of n actions: some seconds for small schedules, a few more for large."""
    return math.ceil(min(5e8 * math.pow(num_actions / 192, 0.35), 1.2e9) / num_actions)


def _work(question: SearchQuestion, num_actions: int) -> int:
    """Actions to simulate."""
    return (question.evaluations or default_evaluations(num_actions)) * num_actions


def _fits(timeline: Timeline, candidate: Candidate) -> bool:
    limit = candidate.activation_limit
    return timeline.fits and (limit is None or max(timeline.schedule.peak_activations) <= limit)


def _fallback(candidate: Candidate, num_microbatches: int) -> Schedule:
    """One microbatch at a time, in the candidate's modes."""
    return one_at_a_time(
        candidate.placement,
        num_microbatches,
        fused=candidate.fused,
        recomputed=candidate.recomputed,
    )


def _misfit(candidate: Candidate) -> LimitTooSmall | None:
    """Why nothing fits, if so: no schedule needs less than one microbatch at a time."""
    timeline = simulate(_fallback(candidate, 1), candidate.costs)
    limits = candidate.costs.memory.limit_bytes
    for rank in np.flatnonzero(timeline.peak_bytes > limits).tolist():
        return LimitTooSmall(
            rank=rank,
            needed=float(timeline.peak_bytes[rank]),
            limit=float(limits[rank]),
            unit="bytes",
        )
    limit = candidate.activation_limit
    peaks = timeline.schedule.peak_activations
    if limit is not None and max(peaks) > limit:
        rank = int(np.argmax(peaks))
        return LimitTooSmall(rank=rank, needed=peaks[rank], limit=limit, unit="activations")
    return None
