"""Why a plan is what it is: each claim held against planning or pricing again by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trainwright
from trainwright.documents.explanation import capped, with_reasons
from trainwright.documents.model_plan import Alternative
from trainwright.documents.printing import Report
from trainwright.documents.reasons import changes_of
from trainwright.errors import InvalidInput
from trainwright.execution import Budget
from trainwright.options.question import call_of
from trainwright.planning.question.question import Span
from trainwright.planning.reasons.why import unnamed, uses
from trainwright.plans import Plan, Stage
from trainwright.plans.plan import Parallelism
from trainwright.plans.status import Status

JOB = {"cluster": "dgx-h100", "devices": 8, "global_batch": 16, "sequence": 4096, "top": 1}
JOB["calibration"] = "none"
BOUNDS = {"memory": "24GiB", "cp": 1, "pp": 1, "micro_batch": "..2", "schedule": "1f1b"}


@pytest.fixture(scope="module")
def planned():
    """Llama-3 8B in little memory: sharded, recomputed."""
    return trainwright.plan("llama3-8b", **JOB, **BOUNDS)


@pytest.fixture(scope="module")
def why(planned):
    return trainwright.reasons(planned).document


@pytest.fixture(scope="module")
def reasoned(planned):
    """The plan with its reasons."""
    return with_reasons(planned.document, Budget())


@pytest.mark.slow
def test_what_a_thing_buys_is_what_planning_without_it_loses(planned, why):
    forbidding = {
        "tensor parallelism": {"tp": 1},
        "pipeline parallelism": {"pp": 1},
        "data parallelism": {"dp": 1},
        "ZeRO": {"zero": 0},
        "ZeRO above 1": {"zero": "0,1"},
        "recomputation": {"recompute": "none"},
        "microbatches above 1": {"micro_batch": 1},
        "virtual stages": {"virtual_stages": 1},
    }
    only_1f1b = {"schedule": "1f1b", "virtual_stages": 1}
    assert len(why.without) >= 3
    for each in why.without:
        options = {**JOB, **BOUNDS, **forbidding.get(each.name, only_1f1b)}
        alone = trainwright.plan("llama3-8b", **options).document
        if alone.request.space.framework != planned.document.request.space.framework:
            assert each.status is Status.INFEASIBLE  # another framework was asked instead
            continue
        assert (each.step_time_s is None) == (alone.step_time_s is None)
        if each.step_time_s is None:
            assert each.status is alone.status
            continue
        # a brief search finds a plan that there is, of nearly the shortest step
        assert alone.step_time_s * (1 - 1e-9) <= each.step_time_s <= 1.03 * alone.step_time_s
        assert each.slowdown == each.step_time_s / planned.step_time_s


@pytest.mark.slow
def test_only_what_the_plan_uses_is_left_out(planned, why):
    degrees = planned.document.parallelism
    names = {each.name for each in why.without}
    assert ("tensor parallelism" in names) == (degrees.tensor > 1)
    assert ("pipeline parallelism" in names) == (degrees.pipeline > 1)
    assert "context parallelism" not in names
    assert "expert parallelism" not in names


def test_more_of_a_resource_saves_what_pricing_the_plan_again_says(planned, why):
    gains = {gain.resource: gain for gain in why.gains}
    assert {"peak FLOP/s", "memory bandwidth", "nvlink bandwidth", "memory"} <= set(gains)
    for gain in why.gains:
        assert 0 <= gain.saved < 0.5
        assert gain.saved == pytest.approx(1 - gain.step_time_s / planned.step_time_s, abs=1e-12)
    repriced = [gain for gain in why.gains if not gain.replanned]
    assert why.binding == max(repriced, key=lambda gain: gain.saved).resource
    assert all(gain.saved <= 0.01 for gain in repriced)
    larger = trainwright.plan("llama3-8b", **{**JOB, **BOUNDS, "memory": "34GiB"}).document
    assert larger.step_time_s * (1 - 1e-9) <= gains["memory"].step_time_s <= planned.step_time_s
    assert gains["memory"].replanned


def test_the_parts_add_up(planned, why):
    assert sum(why.time_by_part_s.values()) == pytest.approx(planned.step_time_s)
    fullest = planned.document.peak_memory_bytes_per_rank[why.fullest_rank]
    assert sum(why.memory_by_class_bytes.values()) == pytest.approx(fullest)
    assert why.free_bytes == pytest.approx(planned.document.memory_limit_bytes - fullest)
    assert why.free_bytes >= 0


def test_what_was_not_reached_in_time_is_listed(planned):
    budget = Budget()
    budget.interrupt()
    found = trainwright.reasons(planned, budget=budget).document
    others = {each.step_time_s for each in planned.document.alternatives}
    assert {each.step_time_s for each in found.without} <= others  # what is known anyway
    assert found.not_asked[0] == "10 GiB more memory"
    assert len(found.not_asked) > 2
    assert all(not gain.replanned for gain in found.gains)


def test_reasons_take_a_share_of_what_the_plan_took_at_most(planned):
    document = replace(planned.document, alternatives=())
    for search_s, most_s in ((0.1, 3.2), (40.0, 8.0)):
        limited = capped(Budget(), replace(document, search_s=search_s))
        assert limited.cpu_limit_s == most_s
    given = Budget(cpu_limit_s=1e-6)
    reasons = with_reasons(document, given).reasons
    assert reasons.without == ()
    assert "10 GiB more memory" in reasons.not_asked
    assert "without data parallelism" in reasons.not_asked
    assert reasons.binding  # pricing the plan again takes no time to speak of


def test_every_choice_of_a_plan_can_be_left_out(planned):
    question = call_of(planned.document.request).question
    stage = Stage.uniform((0,), ("none",), data_parallel=1, tensor_parallel=1)
    degrees = Parallelism(pipeline=2, virtual_stages=2, expert=2)
    plan = Plan(
        stages=(stage,),
        num_microbatches=8,
        microbatch_size=2,
        schedule="v-half",
        parallelism=degrees,
    )
    spaces = uses(plan, degrees, question.allowed, recomputes=False)
    found = {name: space for name, _, space in spaces}
    schedule = found["schedules beyond 1f1b"]
    assert schedule.schedules == ("1f1b",)
    assert 2 not in schedule.virtual_stages
    assert 2 not in found["expert parallelism"].expert
    assert set(found) == {
        "pipeline parallelism",
        "expert parallelism",
        "virtual stages",
        "schedules beyond 1f1b",
        "microbatches above 1",
    }


def test_a_space_of_several_stages_per_rank_alone_is_not_asked_for_less(planned):
    allowed = call_of(planned.document.request).question.allowed
    stage = Stage.uniform((0,), ("none",), data_parallel=1, tensor_parallel=1)
    degrees = Parallelism(pipeline=2, virtual_stages=2)
    plan = Plan(stages=(stage,), num_microbatches=8, schedule="v-half", parallelism=degrees)
    for families, asked in ((("v-half",), False), (("v-half", "zb-h1"), True), (None, True)):
        narrower = replace(allowed, schedules=families)
        found = [each[0] for each in uses(plan, degrees, narrower, recomputes=False)]
        assert ("virtual stages" in found) is asked


@pytest.mark.slow
def test_a_document_without_a_plan_has_no_reasons(path):
    none = trainwright.plan("llama3-8b", **{**JOB, "memory": "1GiB"})
    assert none.status is Status.INFEASIBLE
    for document in (none, trainwright.plan(path)):
        with pytest.raises(InvalidInput, match="document: must hold a plan of a model"):
            trainwright.reasons(document)


def test_what_is_free_again_is_never_slower_and_is_asked_for_by_its_option(planned, why):
    freed = [gain for gain in why.gains if gain.replanned and gain.resource != "memory"]
    for gain in freed:
        assert gain.options.startswith(("--cp ", "--micro-batch "))
        assert gain.step_time_s < planned.step_time_s


def test_the_changes_are_ranked_and_each_tells_of_another_plan(planned, reasoned):
    changes = changes_of(reasoned)
    assert len(changes) >= 3
    ratios = [change.ratio for change in changes]
    assert ratios == sorted(ratios)
    assert all(change.options.startswith("--") for change in changes)
    assert len({(change.step_time_s, change.options) for change in changes}) == len(changes)
    assert reasoned.search_s == planned.document.search_s


def test_a_plan_keeps_its_reasons_when_it_is_read_again(reasoned, tmp_path):
    document = reasoned
    file = tmp_path / "plan.json"
    Report(document).save(file)
    assert trainwright.explain(file).document == document
    found = trainwright.reasons(file).document
    assert (found.without, found.gains) == (document.reasons.without, document.reasons.gains)
    assert with_reasons(document, Budget()) is document


@pytest.mark.slow
def test_what_makes_a_plan_fit_is_a_list_of_options(path):
    # another framework, which nobody names here, would move all but the layers to the host
    asked = {**JOB, "memory": "4GiB", "framework": "megatron"}
    document = trainwright.plan("llama3-8b", **asked, cp=1, zero=0).document
    changes = changes_of(document)
    assert len(changes) == len(document.relaxations) > 0
    assert any(change.options.startswith("--memory ") for change in changes)


@pytest.mark.slow
def test_a_plan_without_something_is_never_slower_than_one_that_is_known(planned):
    """A brief search may miss a runner-up; then that is the plan without the thing."""
    document = planned.document
    degrees = document.parallelism
    assert degrees.zero_stage > 0
    known = Alternative(
        parallelism=replace(degrees, zero_stage=0),
        micro_batch=document.micro_batch,
        num_recomputed=1,
        step_time_s=1.001 * document.step_time_s,
        slowdown=1.001,
        peak_memory_bytes=1.0,
    )
    reasons = with_reasons(replace(document, alternatives=(known,)), Budget()).reasons
    steps = {each.name: each.step_time_s for each in reasons.without}
    assert steps["ZeRO"] == known.step_time_s
    assert steps["ZeRO above 1"] == known.step_time_s
    assert steps["recomputation"] != known.step_time_s


def test_orders_that_no_framework_runs_are_asked_for_where_none_is_meant(planned):
    question = call_of(planned.document.request).question
    stage = Stage.uniform((0,), ("none",), data_parallel=1, tensor_parallel=1)

    def asked(*, tensor: int = 2, pipeline: int = 2, **allowed):
        degrees = Parallelism(tensor=tensor, pipeline=pipeline)
        plan = Plan(stages=(stage,), num_microbatches=8, schedule="1f1b", parallelism=degrees)
        space = replace(question.allowed, framework=None, schedules=None, **allowed)
        return unnamed(replace(question, allowed=space), plan)

    space = asked(virtual_stages=Span()).allowed
    assert {"stp", "seq1f1b", "slimpipe"} <= set(space.schedules)
    assert (space.tensor, space.pipeline) == (Span.only(2), Span.only(2))
    assert "stp" not in asked(tensor=1, virtual_stages=Span()).allowed.schedules  # hides nothing
    assert "seq1f1b" in (one := asked(virtual_stages=Span.only(1)).allowed.schedules)
    assert not {"stp", "slimpipe"} & set(one)
    uneven = asked(pipeline=3, virtual_stages=Span()).allowed.schedules  # slices of 3 are not equal
    assert "slimpipe" not in uneven
    assert "seq1f1b" in uneven
    assert asked(pipeline=1, virtual_stages=Span()) is None
    plan = Plan(stages=(stage,), num_microbatches=8, parallelism=Parallelism(pipeline=2))
    assert unnamed(question, plan) is None  # 1F1B is named


@pytest.mark.slow
def test_a_plan_says_what_braids_would_save_and_their_options_ask_for_it():
    job = {**JOB, "framework": "any", "pp": 2, "cp": 1, "dp": 1, "micro_batch": 1}
    plain = trainwright.plan("llama3-8b", **job, tp=4).document
    change = changes_of(with_reasons(plain, Budget()))[0]
    assert change.what == "the order of stp, which no framework runs"
    assert change.options == "--schedule stp --tp 4 --pp 2 --dp 1 --cp 1 --ep 1"
    named = trainwright.plan("llama3-8b", **job, tp=4, ep=1, schedule="stp").document
    assert named.step_time_s <= change.step_time_s * (1 + 1e-9)
    assert change.ratio == pytest.approx(change.step_time_s / plain.step_time_s)
    assert change.ratio < 0.95
