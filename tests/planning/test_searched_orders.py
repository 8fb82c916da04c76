"""Orders that a search finds: never slower than named ones, within the memory, as priced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from exhaustive import LLAMA, asked, holds, on_four_ranks
from exhaustive_pools import SLOW_JOINT, pair
from exhaustive_pools import asked as asked_on_pools
from mixed_clusters import ETHERNET
from trainwright.errors import InvalidInput
from trainwright.execution import Budget
from trainwright.planning.bounds.pools import MixedShelf
from trainwright.planning.question.question import Span
from trainwright.planning.search.framework import plan_runnable
from trainwright.planning.search.orders import (
    with_searched_orders,
    with_searched_orders_on_pools,
)
from trainwright.planning.search.pools import plan_mixed, priced_mixed
from trainwright.plans.plan import SEARCHED, SearchedOrder
from trainwright.profile import Recompute
from trainwright.step.account import timeline_of
from trainwright.step.predict import predict_step, work_of_plan

WORK = 2_000_000
SLOW = pytest.mark.slow
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


def words_of_rank(rank: int, count: int) -> list[str]:
    """Every order of forwards, input and weight gradients of one stage, each in turn."""

    def begun(done: tuple[int, int, int]) -> Iterator[list[str]]:
        if done == (count,) * 3:
            yield []
        for kind, name in enumerate("FIW"):
            if done[kind] < (count if kind == 0 else done[kind - 1]):
                more = tuple(n + (own == kind) for own, n in enumerate(done))
                for others in begun(more):
                    yield [f"{rank}{name}", *others]

    return [" ".join(words) for words in begun((0, 0, 0))]


@pytest.mark.parametrize(
    ("batch", "joint"), [(2, ETHERNET), (2, SLOW_JOINT), pytest.param(3, ETHERNET, marks=SLOW)]
)
def test_no_order_on_two_pools_is_faster_than_the_one_that_is_found(batch, joint):
    question = asked_on_pools(
        pair(1, joint=joint),
        batch=batch,
        schedules=("1f1b", "zb-h1", "zb-h2"),
        recompute=(Recompute.NONE,),
        **{name: Span.only(1) for name in ("tensor", "data", "microbatch_size")},
        pipeline=Span.only(2),
        zero_stages=(0,),
    )
    named = plan_mixed(question, Budget())
    outcome = with_searched_orders_on_pools(question, named, Budget())
    shelf, best = MixedShelf.of(question), outcome.priced[0]
    assert best.shape.name == "across"
    assert outcome.lower_bound_s <= named.lower_bound_s
    every = []
    for chosen in product(*(words_of_rank(rank, batch) for rank in range(2))):
        order = SearchedOrder(family="zb-h1", words=chosen)
        for other in named.priced:
            if other.shape.name == "across":
                plan = replace(other.plan, schedule=SEARCHED, order=order)
                with suppress(InvalidInput):  # ranks that wait for each other
                    step = priced_mixed(shelf, other.shape, plan, other.profiles).step
                    every.append((other.shape == best.shape, step.step_time_s))
    assert len(every) > 15
    least_s = min(step_s for _, step_s in every)
    assert outcome.lower_bound_s <= least_s * (1 + 1e-12)
    own_s = min(step_s for is_best, step_s in every if is_best)
    assert own_s * (1 - 1e-12) <= best.step.step_time_s <= own_s / (1 - 1e-4)
