"""`--schedule searched`: the document holds the order; commands read it or say why not."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

import trainwright
from exhaustive import holds
from mixed_clusters import two_kinds
from trainwright.commands.verify import verify
from trainwright.documents.model_plan import ModelPlanResult, planned
from trainwright.documents.open import load_document, load_explained_document, recheck
from trainwright.errors import InvalidInput, TrainwrightError
from trainwright.execution import Budget
from trainwright.formats.schedule_json import read_compute_only
from trainwright.options.question import call_of
from trainwright.pages.command import command_of
from trainwright.planning.question.question import Allowed
from trainwright.planning.search.orders import search_in_words
from trainwright.planning.search.search import plan_model
from trainwright.step.predict import predict_step
from trainwright.units import GIB

JOB = {
    "cluster": "dgx-h100",
    "devices": 4,
    "global_batch": 8,
    "sequence": 8192,
    "tp": 1,
    "pp": 4,
    "dp": 1,
    "micro_batch": 1,
}


@pytest.fixture(scope="module")
def answer():
    return trainwright.plan("llama3-8b", **JOB, zero=0, schedule="v-half,searched")


@pytest.fixture(scope="module")
def named():
    """The plan that the order of the answer was found from."""
    return trainwright.plan("llama3-8b", **JOB, zero=0, schedule="v-half")


@pytest.fixture
def edited(answer, tmp_path):
    """The document with changes, as a file."""

    def call(change):
        document = copy.deepcopy(answer.to_dict())
        change(document)
        path = tmp_path / "edited.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    return call


def refusal(path):
    with pytest.raises(InvalidInput) as caught:
        trainwright.explain(path)
    return str(caught.value)


@pytest.mark.slow
def test_the_order_is_labelled_and_inside_the_proof(answer):
    document = answer.document
    assert document.schedule == "searched"
    assert document.order.family == "v-half"
    assert document.step_time_s < document.named_step_time_s
    # The order may have begun with stages that were not the best of those that are named.
    assert document.named_step_time_s >= document.alternatives[0].step_time_s
    assert document.alternatives[0].schedule == "v-half"
    assert document.lower_bound_s <= document.step_time_s
    assert "an order found from v-half" in document.assumptions["schedule"]
    assert 0 < document.lower_bound_s < document.alternatives[0].step_time_s
    assert document.request.space.schedules == ("v-half", "searched")


def test_the_table_says_what_the_order_gained(answer):
    printed = " ".join(str(answer).split())
    assert "schedule searched" in printed
    assert "the order of actions was found from that of v-half, which takes" in printed
    assert "to a proved bound" in printed


@pytest.mark.slow
def test_the_default_plan_is_what_it_was(named):
    plain = named.to_dict()
    assert "order" not in plain
    assert "named_step_time_s" not in plain


def test_the_order_in_the_document_takes_the_stated_step(answer, tmp_path):
    path = tmp_path / "plan.json"
    answer.save(path)
    document = load_document(path)
    assert document == answer.document
    assert recheck(document) == document
    question, plan, profile = planned(document)
    step = predict_step(plan, profile, question.cluster, **question.step_terms)
    assert step.step_time_s == document.step_time_s
    assert holds(question, step.peak_memory_bytes)
    assert tuple(s.memory.total_bytes for s in step.stages) == document.peak_memory_bytes_per_rank


def test_what_was_asked_comes_back_from_the_request(answer):
    call = call_of(answer.document.request)
    assert call.question.allowed.schedules == ("v-half",)
    assert call.question.allowed.searches_orders
    words = command_of(answer.document).words
    assert words[words.index("--schedule") + 1] == "v-half,searched"


@pytest.mark.slow
def test_a_search_alone_leaves_all_families_free():
    job = {**JOB, "devices": 2, "pp": 2, "global_batch": 4, "sequence": 1024}
    alone, chains = (
        trainwright.plan("gpt2", **job, schedule=names) for names in ("searched", "1f1b,searched")
    )
    allowed = call_of(alone.document.request).question.allowed
    assert (allowed.schedules, allowed.searches_orders) == (None, True)
    assert alone.document.lower_bound_s <= alone.document.step_time_s
    assert alone.document.step_time_s <= chains.document.step_time_s * (1 + 1e-3)
    assert Allowed().searches_orders is False


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d["order"]["words"].pop(), "order.words: must be of 4 pipeline ranks, got 3"),
        (lambda d: d.pop("order"), 'order: must come with the schedule "searched"'),
        (lambda d: d.update(schedule="v-half"), "order: must be missing without"),
        (
            lambda d: d["order"].update(family="zb-v"),
            'order.family: must be one of v-half, got "zb',
        ),
        (lambda d: d["order"].update(family="none"), 'got "none"'),
        (lambda d: d["order"]["words"].__setitem__(0, "0B"), 'words[0]: must look like "0F*3 7F'),
        (lambda d: d["order"]["words"].__setitem__(0, "0F*0"), 'words[0]: must look like "0F*3 7'),
        (lambda d: d["order"]["words"].__setitem__(0, "0F 7F"), "order.words[0]: must run 0F 8 ti"),
        (lambda d: d["order"]["words"].reverse(), "stages[0].rank"),
        (lambda d: d.update(named_step_time_s=9.0), "named_step_time_s"),
        (lambda d: d.update(step_time_s=0.9 * d["step_time_s"]), "step_time_s"),
        (
            lambda d: d["request"]["space"].update(schedules=["v-half"]),
            "schedule: must be",
        ),
    ],
)
def test_an_edited_order_is_refused(edited, change, problem):
    assert problem in refusal(edited(change))


@pytest.mark.slow
def test_explain_and_whatif_read_it(answer):
    why = trainwright.explain(answer)
    assert why.document.order == answer.document.order
    changed = trainwright.what_if(answer, memory="70GiB")
    assert changed.document.after.request.space.schedules == ("v-half", "searched")


@pytest.mark.slow
def test_more_memory_gains_what_planning_and_searching_again_gains(answer):
    why = trainwright.reasons(answer, budget=Budget(time_limit_s=600.0)).document
    gain = next(each for each in why.gains if each.resource == "memory")
    has_bytes = call_of(answer.document.request).question.cluster.accelerator.memory_bytes
    more = trainwright.what_if(answer, memory=has_bytes + 10 * GIB).document.after
    assert gain.step_time_s == more.step_time_s < answer.step_time_s
    names = {each.name for each in why.without}
    assert "schedules beyond 1f1b" in names
    assert "virtual stages" not in names


def test_a_document_differs_from_itself_in_nothing(answer):
    found = trainwright.diff(answer, answer).document
    assert found.request_changes == found.result_changes == found.stage_changes == ()


def test_diff_tells_an_order_from_that_of_its_family(answer, named):
    found = {each.key: each for each in trainwright.diff(named, answer).document.result_changes}
    assert found["schedule"].after == "searched"
    assert found["order"].before is None
    assert found["order"].after.startswith("from v-half, ")


def test_the_page_shows_the_order_and_of_what_the_proof_is(answer):
    page = trainwright.report(answer).html
    assert "schedule searched" in page
    assert "no plan that the request admits" in page


def test_frameworks_that_read_orders_get_these(tmp_path):
    options = {"zero": 0, "recompute": "none", "schedule": "v-half,searched"}
    answer = trainwright.plan("llama3-8b", **{**JOB, "sequence": 2048}, **options)
    assert answer.document.schedule == "searched"
    for target in ("torchtitan", "pytorch"):
        folder = tmp_path / target
        trainwright.export(answer, to=target, output=folder)
        schedule = read_compute_only(folder / "schedule.csv")
        _, plan, _ = planned(answer.document)
        assert schedule.num_ranks == len(plan.order.words)
        assert schedule.num_actions == 3 * 8 * 8
    verified = trainwright.verify(answer, level=0, exported=tmp_path / "pytorch")
    assert verified.passed


@pytest.mark.torch
def test_the_order_runs_on_pytorch(answer):
    assert trainwright.verify(answer).passed


def test_a_trace_of_the_order_can_be_drawn(answer, tmp_path):
    trainwright.export(answer, to="chrome-trace", output=tmp_path / "trace")
    assert list((tmp_path / "trace").iterdir())


@pytest.mark.slow
def test_the_nearest_plan_has_the_order_of_a_family():
    job = {**JOB, "devices": 8, "dp": 2, "zero": 1, "schedule": "v-half,searched"}
    job["calibration"] = "none"
    answer = trainwright.plan("llama3-8b", **job)
    assert answer.document.schedule == "searched"
    for target, schedule in (("megatron", "interleaved"), ("torchtitan", "v-half")):
        found = trainwright.export(answer, to=target, allow_nearest=True).document
        assert f"schedule: searched becomes {schedule}" in found.nearest.changes


def test_others_refuse_it_by_name(answer):
    problem = "schedule: searched: megatron runs 1f1b, interleaved; plan again with --framework meg"
    with pytest.raises(TrainwrightError, match=problem):
        trainwright.export(answer, to="megatron")


def test_its_improvement_starts_from_the_order(answer):
    found = trainwright.improve(answer).document
    assert found.run.step_time_s == answer.document.step_time_s
    assert found.lower_bound_s <= found.best_known_s <= found.run.step_time_s * (1 + 1e-9)
    assert recheck(found) == found


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"framework": "megatron"}, "schedule: searched: megatron runs"),
        ({"per_stage_degrees": True}, "must not be given together with --per-stage-degrees"),
        ({"schedule": "serched"}, 'did you mean "searched"'),
    ],
)
def test_where_orders_cannot_be_searched_it_says_so(options, problem):
    with pytest.raises(InvalidInput, match=problem):
        trainwright.plan("llama3-8b", **{**JOB, "schedule": "searched", **options})


def test_a_sweep_refuses_it():
    job = {**JOB, "devices": "4,8"}
    with pytest.raises(InvalidInput, match="schedule: searched is for one number of devices"):
        trainwright.sweep("llama3-8b", **job, schedule="searched")


def test_a_plan_without_a_pipeline_says_that_there_is_nothing_to_search():
    job = {**JOB, "pp": 1, "dp": 4}
    document = trainwright.plan("gpt2", **{**job, "sequence": 512}, schedule="searched").document
    assert document.schedule == "1f1b"
    assert any("the best plan has no pipeline" in warning for warning in document.warnings)


def test_a_search_without_an_order_says_whether_it_was_stopped(answer):
    question = call_of(answer.document.request).question
    outcome = plan_model(question, Budget())  # as where the time ends before any order
    for was_stopped in (False, True):
        (said,) = search_in_words(question, outcome, was_stopped=was_stopped)
        assert said.endswith("that is shorter than that of v-half")
        assert ("before the search was stopped" in said) is was_stopped


def test_an_order_of_stages_on_several_pools_is_read_again_and_verified(tmp_path: Path) -> None:
    asked = {"global_batch": 32, "sequence": 2048, "tp": 2, "pp": 3, "cp": 1, "zero": 1}
    families = ("1f1b", "zb-h1", "zb-h2", "searched")
    report = trainwright.plan(
        "llama3-8b",
        cluster=two_kinds(),
        micro_batch=1,
        recompute="none",
        schedule=families,
        **asked,  # type: ignore[arg-type]
    )
    found = report.document
    assert isinstance(found, ModelPlanResult)
    assert (found.layout, found.schedule) == ("across", "searched")
    assert found.order is not None
    assert found.lower_bound_s <= found.step_time_s < found.named_step_time_s
    assert "the order of actions was found from that of zb-h2" in report.explain()
    path = tmp_path / "searched.json"
    report.save(path)
    assert load_explained_document(path) == found
    assert verify(path, level=0).passed
    edited = json.loads(path.read_text())
    edited["order"]["words"][0] = "0F"
    path.write_text(json.dumps(edited))
    with pytest.raises(InvalidInput, match="order"):
        load_explained_document(path)
