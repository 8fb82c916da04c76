"""The search against a constraint solver; needs the extra [exact]."""

import importlib.util
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from strategies_schedule import placements
from trainwright.errors import Contradiction, InvalidInput, MissingExtra, UnsupportedFeature
from trainwright.execution.budget import Budget
from trainwright.plans.schedule import Placement, ScheduleCosts, ScheduleMemory, TransferModel
from trainwright.plans.status import Bound, BoundName, Objective, Status
from trainwright.scheduling.candidates import SearchOutcome, SearchQuestion
from trainwright.scheduling.exact import solve_exactly
from trainwright.scheduling.search import search_schedule
from trainwright.scheduling.simulate import validate

needs_solver = pytest.mark.skipif(
    importlib.util.find_spec("ortools") is None, reason="needs the extra [exact]"
)


def found(question: SearchQuestion) -> SearchOutcome:
    outcome = search_schedule(question, budget=Budget())
    assert isinstance(outcome, SearchOutcome)
    return outcome


@st.composite
def tiny_questions(draw: st.DrawFn) -> SearchQuestion:
    placement = draw(placements(max_ranks=2, max_stages=3))
    stages = placement.num_stages
    times = st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=stages, max_size=stages)
    most = max(map(len, placement.stages_of_rank))
    memory = ScheduleMemory.of(
        placement,
        forward_bytes=2.0,
        input_grad_bytes=-0.5,
        weight_grad_bytes=-1.5,
        limit_bytes=2.0 * (most + draw(st.sampled_from([0.0, 1.0, 1.75]))),
    )
    return SearchQuestion(
        placement=placement,
        num_ranks=placement.num_ranks,
        num_microbatches=draw(st.integers(1, 3)),
        costs=ScheduleCosts.of(
            placement,
            forward_s=draw(times),
            input_grad_s=draw(times),
            weight_grad_s=draw(times),
            transfer_s=draw(st.sampled_from([0.0, 1.0, 0.5])),
            memory=memory,
        ),
        objective=draw(st.sampled_from(Objective)),
        evaluations=20_000,
    )


@pytest.mark.exact
@needs_solver
@cases(25)
@given(tiny_questions())
def test_on_tiny_pipelines_the_search_finds_the_optimum(question):
    searched = found(question)
    exact = solve_exactly(question, searched, budget=Budget())
    assert exact.status is Status.OPTIMAL
    validate(exact.schedule)
    assert exact.timeline.fits
    assert searched.value_s == pytest.approx(exact.value_s, rel=1e-9)


@pytest.mark.exact
@needs_solver
def test_a_proof_about_one_placement_is_none_about_the_others():
    question = SearchQuestion(
        placement="any",
        num_ranks=2,
        num_microbatches=3,
        costs=ScheduleCosts.of(Placement.loop(2)),
        max_activations=1,
        evaluations=200,
    )
    searched = found(question)
    exact = solve_exactly(question, searched, budget=Budget())
    assert exact.tried > 1
    assert exact.bound == searched.bound
    assert exact.pipeline_bound.value_s >= searched.pipeline_bound.value_s >= exact.lower_bound_s
    assert exact.value_s >= exact.pipeline_bound.value_s * (1 - 1e-9)


@pytest.mark.slow
@needs_solver
def test_the_solver_improves_on_a_search_without_effort():
    placement = Placement.v(2)
    question = SearchQuestion(
        placement=placement,
        num_ranks=2,
        num_microbatches=4,
        costs=ScheduleCosts.of(placement, forward_s=3, input_grad_s=4, weight_grad_s=2),
        max_activations=2,
        evaluations=1,
    )
    hasty = found(question)
    exact = solve_exactly(question, hasty, budget=Budget())
    patient = found(
        SearchQuestion(
            **{
                name: getattr(question, name)
                for name in SearchQuestion.__slots__
                if name != "evaluations"
            },
            evaluations=100_000,
        )
    )
    assert exact.value_s <= patient.value_s <= hasty.value_s
    assert max(exact.schedule.peak_activations) <= 2


@pytest.mark.exact
@needs_solver
def test_a_proof_that_excludes_what_runs_is_an_error():
    """Here the bound is what is wrong: it says twice what the schedule takes."""
    placement = Placement.loop(2)
    question = SearchQuestion(
        placement=placement,
        num_ranks=2,
        num_microbatches=3,
        costs=ScheduleCosts.of(placement, forward_s=[1.0, 2.0]),
        evaluations=1,
    )
    searched = found(question)
    wrong = replace(searched, pipeline_bound=Bound(2 * searched.value_s, BoundName.RANK_WORK))
    with pytest.raises(Contradiction, match="what runs"):
        solve_exactly(question, wrong, budget=Budget())


def test_without_the_solver_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ortools.sat.python", None)
    placement = Placement.loop(2)
    question = SearchQuestion(
        placement=placement,
        num_ranks=2,
        num_microbatches=2,
        costs=ScheduleCosts.of(placement),
        evaluations=1,
    )
    with pytest.raises(MissingExtra, match=r"'\.\[exact\]' in a checkout"):
        solve_exactly(question, found(question), budget=Budget())


@pytest.mark.exact
@needs_solver
def test_what_the_solver_cannot_model_is_refused():
    placement = Placement.loop(2)

    def asked(microbatches: int, model: TransferModel) -> None:
        question = SearchQuestion(
            placement=placement,
            num_ranks=2,
            num_microbatches=microbatches,
            costs=ScheduleCosts.of(placement, transfer_model=model),
            evaluations=1,
        )
        solve_exactly(question, found(question), budget=Budget())

    with pytest.raises(InvalidInput, match="at most 2000 actions, got 2400"):
        asked(400, TransferModel.FREE)
    with pytest.raises(UnsupportedFeature, match="use the transfer model free"):
        asked(2, TransferModel.LINK)
