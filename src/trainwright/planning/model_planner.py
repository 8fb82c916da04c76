"""Planning a model without a measured profile: the search, what follows it, and the outcome."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trainwright.planning.after_search import (
    finish,
    sharpen_priced,
    try_small_spaces,
    try_uneven,
)
from trainwright.planning.ahead import Foresight
from trainwright.planning.aims import Aim, StepAim
from trainwright.planning.family_split import CHAIN
from trainwright.planning.frontier import Frontier
from trainwright.planning.model_search import ModelSearch
from trainwright.planning.plan_ranking import best_first
from trainwright.planning.shelf import Shelf
from trainwright.planning.split_answers import SplitAnswers
from trainwright.planning.state_floor import is_more_than_all_devices_hold

if TYPE_CHECKING:
    from trainwright.execution import Budget
    from trainwright.execution.executor import Crew
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.planning.split_plan import Priced

NUM_ALTERNATIVES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutcome:
    """Best plan first among `priced`; the bound holds for every plan of the searched space.

    Where no schedule was named `lower_bound_s` is on plans with one stage per rank, which has sharp
    bounds, and `lower_bound_all_s` on those of all families; with an aim in place of the step both
    are in the aim's unit. `exhausted` says that every candidate was priced, excluded by its bound,
    or proved not to fit; `not_reached` counts those that were neither priced nor excluded when the
    search was stopped.
    """

    priced: tuple[Priced, ...]
    lower_bound_s: float
    considered: int
    pruned: int
    not_reached: int
    exhausted: bool
    interrupted: bool
    lower_bound_all_s: float | None = None

    @property
    def least_bound_s(self) -> float:
        """On all plans that were searched."""
        return self.lower_bound_s if self.lower_bound_all_s is None else self.lower_bound_all_s


def plan_model(
    question: ModelQuestion,
    budget: Budget,
    *,
    num_alternatives: int = NUM_ALTERNATIVES,
    aim: Aim | None = None,
    crew: Crew | None = None,
) -> ModelOutcome:
    """The fastest uniform plan, up to `num_alternatives` runners-up, and a bound on every other.

    With an `aim` in place of the step, the plan of its least figure, and a bound on that. The
    outcome of a search that runs to its end does not depend on the `crew` that helps.
    """
    aim = aim or StepAim()
    shelf = Shelf.of(question)
    frontier = Frontier(question, shelf, aim)
    is_complete = frontier.open(budget)
    one_bound = bool(question.allowed.schedules) or not frontier.families & set(CHAIN)
    if is_more_than_all_devices_hold(question):
        return _without_a_plan(frontier.considered, budget, one_bound, is_complete=is_complete)
    foresight = Foresight(shelf, budget, crew)
    search = ModelSearch(
        frontier, budget, aim, foresight, SplitAnswers(foresight), num_told=NUM_ALTERNATIVES
    )
    search.run()
    finish(search)
    search.add_runners_up(num_alternatives)
    try_uneven(search)
    try_small_spaces(search)
    sharpen_priced(search)
    best_s, bound_s = search.best_s, search.bound_s
    proved = is_complete and math.isfinite(bound_s)
    all_s = bound_s if proved else 0.0
    reached = len({each.candidate for each in search.priced} | search.undecided)
    not_reached = frontier.count_below(best_s) + sum(e[0] < best_s for e in search.splits)
    not_reached += frontier.num_aside if frontier.aside_s < best_s else 0
    return ModelOutcome(
        priced=best_first(search.priced, aim)[: 1 + num_alternatives],
        lower_bound_s=all_s if one_bound or not proved else search.chain_bound_s,
        lower_bound_all_s=None if one_bound else all_s,
        considered=frontier.considered,
        pruned=frontier.considered - reached - not_reached,
        not_reached=not_reached,
        exhausted=is_complete
        and not budget.stopped
        and not (search.undecided or frontier.num_aside),
        interrupted=budget.interrupted,
    )


def _without_a_plan(
    considered: int, budget: Budget, one_bound: bool, *, is_complete: bool
) -> ModelOutcome:
    """What is said where no layout can hold the model: all are excluded, none was looked at."""
    return ModelOutcome(
        priced=(),
        lower_bound_s=0.0,
        lower_bound_all_s=None if one_bound else 0.0,
        considered=considered,
        pruned=considered,
        not_reached=0,
        exhausted=is_complete and not budget.stopped,
        interrupted=budget.interrupted,
    )
