"""What `verify` proves of every kind of document, and what it finds in documents that are wrong."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

import trainwright
from reported import model_estimate, model_plan, of_unequal_degrees, placement, profile_plan
from trainwright.documents.verification import KeptBytes, Outcome, VerificationResult
from trainwright.errors import InvalidInput, MissingExtra
from trainwright.formats.schedule_json import ScheduleSpec
from trainwright.lab.verify_orders import Pipeline, Replicas, subject_of
from trainwright.lab.verify_runs import fold, kept_check, small_of

THREE_AND_ONE = ScheduleSpec(
    forward_s=(1.0,), input_grad_s=(1.0,), weight_grad_s=(1.0,), rank_of_stage=(0, 0, 1, 0)
)


@pytest.fixture
def no_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)


def outcomes(found: VerificationResult) -> dict[str, str]:
    return {f"{check.level} {check.name}": check.outcome.value for check in found.checks}


def failures(found: VerificationResult) -> list[str]:
    return [
        place for check in found.checks if check.outcome is Outcome.FAIL for place in check.where
    ]


def half() -> trainwright.ScheduleReport:
    return trainwright.schedule(family="v-half", ranks=4, microbatches=8, memory_limit=8)


ORDERS = ["0 document", "0 memory", "0 orders", "0 transfers", "0 last stage"]


@pytest.mark.parametrize("make", [model_plan, model_estimate, lambda: half().document])
def test_a_pipeline_holds_on_levels_0_and_1_without_pytorch(make, no_torch):
    found = trainwright.verify(make(), level=1).document
    assert found.passed
    assert outcomes(found) == {
        **dict.fromkeys([*ORDERS, "1 times", "1 replay"], "pass"),
        **dict.fromkeys(["1 gradients", "1 kept bytes"], "left out"),
    }
    assert found.subject.num_ranks > 1
    assert found.missing_extra is None


@pytest.mark.parametrize("make", [profile_plan, placement, of_unequal_degrees])
def test_a_plan_with_degrees_per_stage_is_replayed_replica_by_replica(make, no_torch):
    found = trainwright.verify(make(), level=1).document
    assert found.passed
    assert outcomes(found) == dict.fromkeys(["0 document", "0 memory", "1 replay"], "pass")


def test_without_pytorch_level_2_names_the_extra_and_the_rest_is_checked(no_torch):
    report = trainwright.verify(half())
    assert report.passed
    assert report.document.missing_extra == "torch"
    assert outcomes(report.document)["1 replay"] == "pass"
    assert "pip install '.[torch]'" in report.explain()
    with pytest.raises(MissingExtra, match=r"pip install '\.\[torch\]'"):
        report.require_installed()


def test_the_document_and_its_table_say_the_same(no_torch):
    report = trainwright.verify(half(), level=1, self_test=True)
    document = report.to_dict()
    assert document["kind"] == "verification"
    assert {check["level"] for check in document["checks"]} == {0, 1}
    table = report.explain()
    assert "verify: PASS (2 left out)" in table
    for check in document["checks"]:
        assert check["name"] in table
    assert "not proved here: tensor, context and expert parallelism" in table


@pytest.mark.parametrize("family", ["1f1b", "interleaved", "zb-h1", "v-min", "dualpipe-v", "wave"])
def test_everything_broken_on_purpose_is_caught(family, no_torch):
    made = trainwright.schedule(family=family, ranks=4, microbatches=8)
    found = trainwright.verify(made, level=1, self_test=True).document
    assert found.passed
    assert all(control.caught for control in found.controls)
    names = {(control.level, control.name) for control in found.controls}
    for level in (0, 1):
        assert {(level, "a receive missing"), (level, "gradients not reduced")} <= names
    assert (0, "two actions swapped") in names
    assert (0, "an action on a wrong rank") in names


def broken(make_wrong) -> VerificationResult:
    """What `verify` finds in a schedule document after `make_wrong` changed its orders."""
    document = half().document
    orders = [row.split(",") for row in document.orders]
    make_wrong(orders)
    rows = tuple(",".join(row) for row in orders)
    return trainwright.verify(replace(document, orders=rows)).document


def test_a_swapped_action_fails_and_is_named_before_anything_runs():
    def swap(orders):
        row = orders[0]
        one, other = row.index("7F0"), row.index("7I0")
        row[one], row[other] = row[other], row[one]

    found = broken(swap)
    assert not found.passed
    (said,) = failures(found)
    assert "7I0 must come after 7F0" in said
    assert outcomes(found) == {"0 document": "fail", "1 replay": "left out", "2 run": "left out"}


def test_an_action_on_a_wrong_rank_fails_and_is_named():
    def move(orders):
        orders[1].insert(0, orders[0].pop(0))

    (said,) = failures(broken(move))
    assert "0F0 must run on rank 0, which owns stage 0" in said


def test_a_cycle_fails_and_is_named():
    def wait_for_ever(orders):
        row = orders[0]
        row.insert(0, row.pop(row.index("7F0")))

    (said,) = failures(broken(wait_for_ever))
    assert "deadlock: " in said
    assert "7F0 on rank 0 waits for 6F0" in said


def test_a_price_that_was_edited_fails():
    document = model_plan()
    found = trainwright.verify(replace(document, step_time_s=document.step_time_s * 0.9)).document
    assert not found.passed
    assert any(place.startswith("step_time_s: must be ") for place in failures(found))


def test_memory_above_the_limit_fails_and_names_the_rank():
    made = trainwright.schedule(family="gpipe", ranks=2, microbatches=4)
    over = trainwright.schedule(simulate=made.timeline.schedule, memory_limit=3)
    found = trainwright.verify(over.document, level=0).document
    assert failures(found) == [f"rank {rank}: holds 4 activations of 3" for rank in (0, 1)]


def test_bytes_off_the_curve_fail_and_name_the_rank():
    held = {"peak_bytes": 96.0, "predicted_peak_bytes": 64.0, "num_actions": 4}
    on = KeptBytes(rank=0, largest_difference_bytes=0.0, **held)
    off = KeptBytes(rank=1, largest_difference_bytes=32.0, **held)
    assert kept_check(1, (on,)).outcome is Outcome.PASS
    found = kept_check(1, (on, off))
    assert found.outcome is Outcome.FAIL
    assert found.where == ("rank 1: 32 bytes off its curve, which peaks at 64",)


@pytest.mark.parametrize("level", [-1, 3])
def test_only_levels_0_to_2_exist(level):
    with pytest.raises(InvalidInput, match=f"level: must be 0, 1 or 2, got {level}"):
        trainwright.verify(half(), level=level)


def test_a_document_that_nothing_runs_is_refused(tmp_path):
    report = trainwright.verify(half(), level=0)
    report.save(tmp_path / "verified.json")
    for given in (report, tmp_path / "verified.json"):
        with pytest.raises(InvalidInput, match=r'kind: must be one of "plan", .*"verification"'):
            trainwright.verify(given)


def test_a_schedule_that_was_not_found_is_refused():
    nothing = trainwright.schedule(family="v-half", ranks=4, microbatches=8, memory_limit=1)
    with pytest.raises(InvalidInput, match="orders: there are none: the document is infeasible"):
        trainwright.verify(nothing)


def exported(tmp_path, document=None):
    folder = tmp_path / "files"
    trainwright.export(document or model_plan(), "pytorch", output=folder)
    return folder


def test_exported_files_are_those_that_are_checked_and_run(tmp_path, no_torch):
    folder = exported(tmp_path)
    found = trainwright.verify(model_plan(), level=1, exported=folder).document
    assert found.passed
    names = outcomes(found)
    assert names["0 schedule.csv"] == names["0 schedule_comms.csv"] == "pass"
    subject = subject_of(model_plan())
    assert isinstance(subject, Pipeline)
    small = small_of(model_plan(), subject)
    from trainwright.formats.schedule_json import format_compute_comms, format_compute_only

    if not small.label:
        assert format_compute_only(small.schedule) == (folder / "schedule.csv").read_text()
        assert format_compute_comms(small.lowered) == (folder / "schedule_comms.csv").read_text()


def test_a_missing_receive_in_an_exported_file_fails_and_is_named(tmp_path):
    folder = exported(tmp_path)
    comms = folder / "schedule_comms.csv"
    comms.write_text(comms.read_text().replace("1RECV_F0,", "", 1))
    found = trainwright.verify(model_plan(), exported=folder).document
    assert not found.passed
    assert failures(found) == ["orders: 1RECV_F0 must appear 1 times, got 0"]
    assert outcomes(found)["2 run"] == "left out"


def test_a_folder_without_schedule_files_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"exported: holds no schedule\.csv"):
        trainwright.verify(model_plan(), exported=tmp_path)
    with pytest.raises(InvalidInput, match="exported: must be left out"):
        trainwright.verify(profile_plan(), exported=tmp_path)


def one_rank():
    return trainwright.estimate(
        model="llama3-8b", cluster="dgx-h100", tp=8, global_batch=8, sequence=2048
    )


def test_the_stages_of_one_rank_are_checked_where_it_has_no_schedule(tmp_path):
    folder = exported(tmp_path, one_rank())
    assert not (folder / "schedule.csv").exists()
    found = trainwright.verify(one_rank(), level=0, exported=folder).document
    assert found.passed
    assert outcomes(found)["0 stages.json"] == "pass"
    with pytest.raises(InvalidInput, match=r"exported: holds no stages\.json"):
        trainwright.verify(one_rank(), level=0, exported=tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('"num_microbatches": 8', '"num_microbatches": 9', "stages: are not those of this plan"),
        ('{"kind": "final_norm"', '{"kind": "block"', "stages: are not those of this plan"),
        ('"mesh"', '"mush"', "stages: must be as `export --to pytorch` writes them"),
        ('"stages": [', '"stages": [7, ', "stages: must be as `export --to pytorch` writes them"),
        ('"stages"', "stages", "text that is not JSON"),
    ],
)
def test_other_stages_of_one_rank_fail(old, new, fault, tmp_path):
    folder = exported(tmp_path, one_rank())
    path = folder / "stages.json"
    changed = path.read_text().replace(old, new, 1)
    assert changed != path.read_text()
    path.write_text(changed)
    found = trainwright.verify(one_rank(), level=0, exported=folder).document
    assert not found.passed
    assert any(fault in failure for failure in failures(found)), failures(found)


def test_a_searched_schedule_is_searched_again_on_four_ranks():
    asked = {"search": True, "placement": "v", "evaluations": 50, "memory_limit": 8}
    made = trainwright.schedule(ranks=6, microbatches=8, **asked)
    folded = fold(made.document, made.timeline, ranks=4).schedule
    assert (folded.num_ranks, folded.num_microbatches) == (4, 8)
    assert folded.placement.is_v
    assert max(folded.peak_activations) <= 6
    subject = subject_of(made.document)
    assert small_of(made.document, subject).label.startswith(
        "searched again from 6 ranks x 8 microbatches"
    )


def test_given_orders_of_many_ranks_are_replayed_and_not_run(tmp_path, no_torch):
    made = trainwright.schedule(family="1f1b", ranks=6, microbatches=6)
    made.save_orders(tmp_path / "orders.json")
    given = trainwright.schedule(simulate=tmp_path / "orders.json")
    found = trainwright.verify(given).document
    assert found.passed
    assert outcomes(found)["1 replay"] == "pass"
    (left_out,) = [check for check in found.checks if check.level == 2]
    assert left_out.outcome is Outcome.LEFT_OUT
    assert "cannot be rebuilt for fewer" in left_out.detail


def test_stages_with_branches_keep_what_feeds_what():
    subject = subject_of(profile_plan())
    assert isinstance(subject, Replicas)
    last = len(subject.replicated) - 1
    fed = {target for stage in subject.replicated for target in stage.feeds}
    assert fed == set(range(1, last + 1))


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"family": "v-half", "ranks": 4}, marks=pytest.mark.papers, id="v-half"),
        pytest.param(
            {"family": "interleaved", "ranks": 8}, marks=pytest.mark.papers, id="interleaved"
        ),
        pytest.param(
            {"family": "wave", "ranks": 2, "virtual_stages": 4}, marks=pytest.mark.papers, id="wave"
        ),
        pytest.param(
            {"search": True, "ranks": 5, "placement": "v", "evaluations": 500, "memory_limit": 7},
            marks=pytest.mark.papers,
            id="searched on 5",
        ),
        {"search": True, "spec": THREE_AND_ONE, "evaluations": 500},
    ],
    ids=lambda asked: asked.get("family", f"searched on {asked.get('ranks', 2)}"),
)
def test_schedules_train_the_same_model_on_every_level(asked):
    """Every other family is run in `lab/test_gloo_check.py`, all in one set of processes."""
    made = trainwright.schedule(microbatches=8, **asked)
    found = trainwright.verify(made).document
    assert found.passed, failures(found)
    assert set(outcomes(found).values()) == {"pass"}
    assert [run.form for run in found.runs] == ["compute_only", "compute_comms"]
    assert max(run.max_error for run in found.runs) <= 1e-6
    kept = [*found.kept_activations, *(each for run in found.runs for each in run.kept)]
    assert max(each.largest_difference_bytes for each in kept) == 0


@pytest.mark.torch
@pytest.mark.slow
def test_files_broken_on_purpose_are_caught_by_a_real_run():
    found = trainwright.verify(half(), self_test=True).document
    assert found.passed
    at_level_2 = {control.name: control for control in found.controls if control.level == 2}
    assert set(at_level_2) == {"gradients not reduced", "microbatches swapped"}
    assert all(control.caught for control in at_level_2.values())
    assert " off" in at_level_2["gradients not reduced"].said


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [model_plan, *(pytest.param(m, marks=pytest.mark.papers) for m in (profile_plan, placement))],
)
def test_plans_train_the_same_model_and_replicas_are_real_where_processes_are_free(make):
    found = trainwright.verify(make()).document
    assert found.passed, failures(found)
    assert found.runs[0].passed
    processes = found.runs[0].num_ranks * found.runs[0].num_replicas
    assert processes <= 4
    if found.runs[0].num_ranks <= 2:
        assert found.runs[0].num_replicas > 1
