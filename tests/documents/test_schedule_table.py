"""The tables of a schedule: what they must say whatever the schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trainwright
from trainwright.documents.printing import render, to_text
from trainwright.documents.schedule import BoundAtPlacement, ScheduleVerification
from trainwright.documents.verification import GradientCheck
from trainwright.plans.status import Status

AT_ITS_BOUND = BoundAtPlacement(lower_bound_s=45.0, bound="rank-work", gap=0.0)


@pytest.fixture(scope="module")
def document():
    return trainwright.schedule(family="interleaved", ranks=3, microbatches=6).document


def text_of(document) -> str:
    return to_text(render(document))


def headline(document) -> str:
    return text_of(document).splitlines()[0]


def test_every_status_has_its_own_words(document):
    said = {
        headline(replace(document, status=Status.OPTIMAL)),
        headline(replace(document, status=Status.GAP)),
        headline(replace(document, status=Status.GAP, bound_at_placement=AT_ITS_BOUND)),
        headline(replace(document, status=Status.INFEASIBLE)),
        headline(replace(document, status=Status.INFEASIBLE, makespan_s=None)),
        headline(replace(document, status=Status.UNKNOWN)),
    }
    assert len({line.partition(": ")[2] for line in said}) == 6


def test_a_gap_is_rounded_up(document):
    told = replace(document, status=Status.GAP, gap=0.012301)
    assert headline(told).endswith("within 1.24% of the best")


def test_a_bound_that_says_nothing_new_is_left_out(document):
    at_peak = replace(document.bound_at_peak, lower_bound_s=document.lower_bound_s)
    assert "nor with no more" not in text_of(replace(document, bound_at_peak=at_peak))
    at_peak = replace(at_peak, lower_bound_s=document.lower_bound_s + 1)
    assert "nor with no more" in text_of(replace(document, bound_at_peak=at_peak))


def test_many_ranks_are_not_listed(document):
    wide = trainwright.schedule(family="1f1b", ranks=17, microbatches=17).document
    assert " rank   stages" in text_of(document)
    assert " rank   stages" not in text_of(wide)
    assert "at most 17 activations on a rank" in text_of(wide)


def test_the_shares_of_the_critical_path_are_of_the_makespan(document):
    assert "critical path, " in text_of(document)
    assert "transfers" not in text_of(document)
    slow = trainwright.schedule(family="interleaved", ranks=3, microbatches=6, comm=1).document
    assert f"transfers {slow.critical_path.transfer_s / slow.makespan_s:.0%}" in text_of(slow)


def test_an_interrupted_search_says_so(document):
    told = text_of(replace(document, interrupted=True))
    assert "interrupted: this is the best schedule found so far" in told


def check(*, passed: bool, problem: str | None = None) -> GradientCheck:
    figures = {} if problem else {"max_error": 3e-8, "gradient_limit": 1e-6, "loss_error": 0.0}
    return GradientCheck(
        passed=passed,
        form="compute_only",
        num_ranks=3,
        num_stages=6,
        num_microbatches=6,
        num_steps=2,
        loss_limit=1e-5,
        problem=problem,
        torch_version="2.13.0",
        worst_parameter=None if problem else "weight",
        **figures,
    )


def test_real_runs_are_told_with_their_errors(document):
    runs = (check(passed=True), check(passed=False, problem="rank 1 failed"))
    controls = (check(passed=False, problem="no loss"), check(passed=True))
    found = ScheduleVerification(passed=False, runs=runs, controls=controls, folded_from="8 ranks")
    told = text_of(replace(document, verification=found))
    assert "verify: FAIL" in told
    assert "folded to 4 ranks from 8 ranks" in told
    assert "PASS compute_only, gloo x3, 6 microbatches: max gradient error 3.0e-08" in told
    assert "FAIL compute_only, gloo x3, 6 microbatches: rank 1 failed" in told
    assert "broken on purpose, caught: " in told
    assert "broken on purpose, NOT caught: " in told


def test_the_front_is_listed_by_memory():
    found = trainwright.schedule(pareto=True, ranks=4, microbatches=8).document
    rows = text_of(found).partition("memory against time")[2]
    for point in found.points:
        assert f"{point.makespan_s:g} slots" in rows
        assert point.family in rows
