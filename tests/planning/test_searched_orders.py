"""Orders that a search finds: never slower than named ones, within the memory, as priced."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from exhaustive import LLAMA, asked, holds, on_four_ranks
from trainwright.execution import Budget
from trainwright.planning.question.question import Span
from trainwright.planning.search.framework import plan_runnable
from trainwright.planning.search.orders import with_searched_orders
from trainwright.plans.plan import SEARCHED
from trainwright.step.account import timeline_of
from trainwright.step.predict import predict_step, work_of_plan

WORK = 2_000_000
QUESTIONS = [
    (8, 60, ("1f1b",)),
    (8, 24, ("zb-v",)),
    (9, 20, ("zb-h1", "v-min")),
    (11, 30, ("interleaved", "v-half")),
    (14, 22, ("1f1b", "zb-v")),
    (15, 40, None),
]


@cache
def named_for(question):
    return plan_runnable(question, Budget())


def found_for(question, **options):
    named = named_for(question)
    options = {"num_alternatives": 5, "work": WORK, **options}
    return named, with_searched_orders(question, named, Budget(), **options)


@pytest.mark.slow
@pytest.mark.parametrize(("blocks", "memory_gib", "schedules"), QUESTIONS)
def test_a_searched_order_is_never_slower_and_fits(blocks, memory_gib, schedules):
    question = on_four_ranks(blocks, memory_gib, schedules)
    named, outcome = found_for(question)
    if not named.priced:
        assert outcome.priced == ()
        return
    best = outcome.priced[0]
    named_s = named.priced[0].step.step_time_s
    assert best.step.step_time_s <= named_s
    assert outcome.lower_bound_s <= best.step.step_time_s
    assert outcome.lower_bound_s <= best.step.step_time_s
    assert holds(question, best.step.peak_memory_bytes)
    assert {each.plan.schedule for each in outcome.priced[1:]} & {SEARCHED} == set()
    if best.plan.order is None:
        assert outcome.priced == named.priced
        return
    assert best.plan.schedule == SEARCHED
    assert best.step.step_time_s < named_s
    assert outcome.priced[1] == named.priced[0]
    again = predict_step(
        best.plan,
        best.profile,
        question.cluster,
        overlap=question.settings.overlap,
        overheads=question.overheads,
    )
    assert again.step_time_s == best.step.step_time_s
    assert again.stages == best.step.stages


def test_every_rank_holds_what_its_price_says():
    question = on_four_ranks(14, 22, ("1f1b", "zb-v"))
    _, outcome = found_for(question)
    best = outcome.priced[0]
    assert best.plan.order is not None
    timeline = timeline_of(
        *work_of_plan(
            best.plan,
            best.profile,
            question.cluster,
            overlap=question.settings.overlap,
            overheads=question.overheads,
        )
    )
    peaks = [stage.memory.total_bytes for stage in best.step.stages]
    assert timeline.peak_bytes.tolist() == pytest.approx(peaks, rel=1e-12)
    assert timeline.makespan_s == pytest.approx(best.step.pipeline_s, rel=1e-12)
    assert all(holds(question, peak) for peak in peaks)


def test_some_small_questions_gain():
    """V-Min leaves room that another order fills."""
    question = on_four_ranks(8, 60, ("v-min",))
    named, outcome = found_for(question)
    assert outcome.priced[0].step.step_time_s < 0.95 * named.priced[0].step.step_time_s
    assert outcome.priced[0].plan.order.family == "v-min"


def test_the_same_question_has_the_same_answer():
    question = on_four_ranks(9, 24, ("zb-v",))
    _, first = found_for(question)
    _, second = found_for(question)
    assert first == second


def test_a_budget_that_has_ended_leaves_the_named_plan():
    question = on_four_ranks(8, 60, ("v-min",))
    named = named_for(question)
    budget = Budget()
    budget.interrupt()
    outcome = with_searched_orders(question, named, budget, num_alternatives=5)
    assert outcome.priced == named.priced
    assert outcome.interrupted


def test_an_interrupted_search_keeps_the_best_so_far():
    question = on_four_ranks(8, 60, ("v-min",))
    named = named_for(question)
    budget = Budget()
    seen = []

    def stop_at_the_first_look(progress):
        seen.append(progress)
        budget.interrupt()

    budget.on_progress = stop_at_the_first_look
    outcome = with_searched_orders(question, named, budget, num_alternatives=5)
    assert outcome.interrupted
    assert {each.stage for each in seen} == {"searching orders"}
    assert outcome.priced[0].step.step_time_s <= named.priced[0].step.step_time_s


def test_nothing_is_searched_without_a_pipeline():
    question = asked(
        replace(LLAMA, num_layers=4), memory_gib=80, batch=8, sequence=512, pipeline=Span.only(1)
    )
    named, outcome = found_for(question)
    assert outcome.priced == named.priced


def test_runners_up_are_as_many_as_asked_for():
    question = on_four_ranks(8, 60, ("v-min",))
    _, outcome = found_for(question, num_alternatives=0)
    assert len(outcome.priced) == 1
    assert outcome.priced[0].plan.order is not None


def test_only_orders_that_the_framework_reads_are_searched():
    question = on_four_ranks(8, 60, ("1f1b",))
    asked_for = replace(question, allowed=replace(question.allowed, framework="megatron"))
    named, outcome = found_for(asked_for)
    assert outcome.priced == named.priced
