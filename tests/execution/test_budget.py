"""The budget is the only clock and the only brake of a search."""

import math

import pytest

from trainwright.errors import InvalidInput
from trainwright.execution import Budget, Progress

HALFWAY = Progress(stage="search", elapsed_s=1.0, best=2.0, lower_bound=1.0)


def test_without_a_limit_time_never_runs_out() -> None:
    assert Budget().remaining_s == math.inf
    assert not Budget().poll(HALFWAY)


def test_an_interrupted_budget_stops_the_search_and_still_reports() -> None:
    seen: list[Progress] = []
    budget = Budget(on_progress=seen.append)
    budget.interrupt()
    assert budget.poll(HALFWAY)
    assert seen == [HALFWAY]


def test_an_expired_limit_stops_the_search() -> None:
    assert Budget(time_limit_s=1e-9).poll(HALFWAY)


@pytest.mark.parametrize("limit_s", [0.0, -1.0, math.inf, math.nan])
def test_a_limit_must_be_a_positive_time(limit_s: float) -> None:
    with pytest.raises(InvalidInput, match="time_limit"):
        Budget(time_limit_s=limit_s)


def test_progress_reports_the_gap_even_before_anything_is_found() -> None:
    assert HALFWAY.gap == 0.5
    assert Progress(stage="search", elapsed_s=0.0).gap == 1


def test_a_part_tells_its_own_stage_and_the_time_of_the_whole() -> None:
    seen: list[Progress] = []
    whole = Budget(on_progress=seen.append)
    whole.part(10, stage="trying memory").poll(HALFWAY)
    (told,) = seen
    assert told.stage == "trying memory"
    assert (told.best, told.lower_bound) == (HALFWAY.best, HALFWAY.lower_bound)
    assert told.elapsed_s <= whole.elapsed_s


def test_a_part_of_a_budget_stops_where_the_whole_does():
    whole = Budget(time_limit_s=1000)
    part = whole.part(10)
    assert part.time_limit_s == 10
    assert Budget(time_limit_s=5).part(10).time_limit_s <= 5
    assert not part.poll(Progress(stage="x", elapsed_s=0))
    whole.interrupt()
    assert part.poll(Progress(stage="x", elapsed_s=0))
    assert part.stopped


def test_a_part_may_be_limited_by_what_the_process_works() -> None:
    whole = Budget()
    part = whole.part(cpu_limit_s=1e-9)
    assert whole.remaining_cpu_s == math.inf
    assert part.time_limit_s is None
    assert part.poll(HALFWAY)
    assert not whole.stopped
    assert Budget(cpu_limit_s=5).part(cpu_limit_s=10).cpu_limit_s <= 5
