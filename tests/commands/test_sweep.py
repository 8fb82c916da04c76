"""Plans on several numbers of devices: rows agree with single plans, and the best is the best."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import replace

import pytest

import trainwright
from trainwright.documents.open import recheck
from trainwright.documents.printing import Report
from trainwright.documents.sweep import on_more_devices, remake_sweep
from trainwright.errors import InvalidInput
from trainwright.options.clusters import parse_sizes
from trainwright.plans.status import Status

JOB = {
    "cluster": "dgx-h100",
    "global_batch": 64,
    "sequence": 1024,
    "cp": 1,
    "top": 0,
    "schedule": "1f1b,interleaved",
}
MONEY = {"tokens": 3e11, "price": 2.0}


def sweep(devices="8..32", **options):
    return trainwright.sweep("gpt2", devices=devices, **JOB, **options)


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ("64..512", (64, 128, 256, 512)),
        ("64..500", (64, 128, 256, 500)),
        ("96,64, 128", (64, 96, 128)),
        ("8..16,96", (8, 16, 96)),
        (8, (8,)),
        ([32, 8, 8], (8, 32)),
        ("7..7", (7,)),
    ],
)
def test_sizes_are_listed_or_doubled(given, sizes):
    assert parse_sizes(given) == sizes


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("64..", "devices: must be a whole number >= 1, a range such as 64..4096"),
        ("x,8", "devices: must be a whole number"),
        ("0..8", "devices: must be a whole number"),
        ("64..8", r"devices: must not be empty, got 64\.\.8; write 8\.\.64"),
        ("1,2000000000", "devices: must be <= 1000000000"),
        (list(range(1, 100)), "devices: must be at most 64 numbers, got 99"),
        ([], "devices: must name at least one number"),
    ],
)
def test_other_sizes_are_refused(given, fault):
    with pytest.raises(InvalidInput, match=fault):
        parse_sizes(given)


@pytest.mark.slow
def test_every_row_is_the_plan_of_its_size():
    document = sweep("8,24").document
    for row in document.rows:
        alone = trainwright.plan("gpt2", devices=row.devices, **JOB).document
        assert row.step_time_s == alone.step_time_s
        assert row.parallelism == alone.parallelism
        assert row.tokens_per_s_per_device == alone.tokens_per_s_per_device
        assert (row.gap, row.status) == (alone.gap, alone.status)
    assert [row.devices for row in document.rows] == [8, 24]
    assert document.best_plan.devices_used == document.rows[document.best].devices_used


@pytest.mark.slow
def test_where_a_search_ends_early_the_plan_of_fewer_devices_stands_in():
    plan = trainwright.plan("gpt2", devices=8, **JOB).document
    late = trainwright.plan("gpt2", devices=16, **JOB, pp=12).document  # slower than on 8
    assert late.step_time_s > plan.step_time_s
    wide = trainwright.plan("gpt2", devices=16, **JOB).document
    own = replace(
        late,
        lower_bound_s=wide.lower_bound_s,
        request=wide.request,
    )
    found = on_more_devices(plan, own)
    assert found.status is Status.GAP
    assert found.gap == pytest.approx(1 - wide.lower_bound_s / plan.step_time_s)
    assert recheck(found).step_time_s == plan.step_time_s


@pytest.mark.slow
def test_more_devices_are_never_slower():
    times = [row.step_time_s for row in sweep("8..64").document.rows]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("objective", "key", "sign"),
    [
        ("step-time", "step_time_s", 1),
        pytest.param("tokens-per-device", "tokens_per_s_per_device", -1, marks=pytest.mark.slow),
        pytest.param("cost", "cost", 1, marks=pytest.mark.slow),
        ("energy", "energy_j", 1),
    ],
)
def test_the_best_row_is_best_by_its_objective(objective, key, sign):
    document = sweep("8,16", objective=objective, **MONEY).document
    values = [sign * getattr(row, key) for row in document.rows]
    assert values.index(min(values)) == document.best
    assert document.objective == objective


@pytest.mark.slow
def test_a_single_number_with_an_objective_is_halved_down_to_one_node():
    document = sweep(48, objective="tokens-per-device").document
    assert [row.devices for row in document.rows] == [24, 48]


@pytest.mark.slow
def test_rows_that_miss_the_deadline_are_marked_late():
    free = sweep("8,16", **MONEY).document.rows
    deadline_s = (free[0].train_s + free[1].train_s) / 2
    told = sweep("8,16", objective="cost", deadline=deadline_s, **MONEY).explain()
    rows = [line.split() for line in told.splitlines()]
    assert [row[-1] for row in rows if row[:1] == ["8"]] == ["late", "late"]
    assert not any("late" in row for row in rows if row[:1] == ["16"])
    assert "late rows miss the deadline" in told


@pytest.mark.parametrize(("days", "said"), [(1, "1 day and"), (2, "2 days and"), (0.5, "0.5 days")])
def test_the_deadline_is_said_in_days(days, said):
    document = sweep("8", **MONEY).document
    late = replace(
        document,
        rows=(replace(document.rows[0], train_s=1e9),),
        training=replace(document.training, deadline_s=days * 86_400.0),
    )
    assert f"late rows miss the deadline of {said}" in Report(late).explain()


def test_a_sweep_whose_rows_are_all_late_has_nothing_to_export():
    late = sweep("8", objective="cost", deadline="1s", **MONEY)
    with pytest.raises(InvalidInput, match=r"no row of the sweep met its objective \(cost\)"):
        trainwright.export(late, "megatron")


def test_the_gap_of_a_row_is_told():
    document = sweep("8", **MONEY).document
    row = document.rows[0]
    row = replace(
        row,
        status=Status.GAP,
        gap=0.25,
        lower_bound_s=0.75 * row.step_time_s,
    )
    told = Report(replace(document, rows=(row,), best=None, best_plan=None)).explain()
    assert "25.00%" in told


def test_progress_names_the_number_of_devices():
    told: list[str] = []
    budget = trainwright.Budget(on_progress=lambda progress: told.append(progress.stage))
    sweep("8,16", budget=budget)
    assert list(dict.fromkeys(told)) == ["planning for 8 devices", "planning for 16 devices"]
    assert budget.stage is None


def test_a_sweep_exports_its_best_row():
    document = sweep("8").document
    exported = [
        trainwright.export(Report(each), "deepspeed").document.files
        for each in (document, document.best_plan)
    ]
    assert exported[0] == exported[1]


@pytest.mark.slow
def test_the_fewest_devices_within_a_deadline_are_found_between_the_sizes():
    free = sweep("8..64", **MONEY).document.rows
    deadline_s = (free[1].train_s + free[2].train_s) / 2  # between 16 and 32 devices
    document = sweep("8..64", objective="devices", deadline=deadline_s, **MONEY).document
    best = document.rows[document.best]
    assert 16 < best.devices <= 32
    assert best.train_s <= deadline_s
    fewer = [row for row in document.rows if row.devices < best.devices]
    assert all(row.train_s > deadline_s for row in fewer)
    assert document.status is Status.OPTIMAL
    assert document.objective_value == document.objective_bound == best.devices
    impossible = sweep("8", objective="devices", deadline="1s", **MONEY)
    assert impossible.document.best is None
    assert impossible.status is Status.INFEASIBLE
    assert "no plan on 8 devices trains the tokens within the deadline" in impossible.explain()


@pytest.fixture(scope="module")
def by_cost():
    return sweep("8,32", objective="cost", pareto="step-time,cost", **MONEY)


@pytest.mark.slow
def test_a_cheaper_number_between_the_sizes_is_found_and_proved(by_cost):
    document = by_cost.document
    best = document.rows[document.best]
    assert document.objective_value == best.cost
    assert document.objective_bound <= best.cost <= document.objective_bound * (1 + 1e-6)
    assert {each.objective for each in document.searched} == {"cost", "tokens-per-device"}
    between = trainwright.plan("gpt2", devices=16, **JOB).document
    cost = between.step_time_s * 16 * best.cost / (best.step_time_s * best.devices_used)
    near = 1 + document.pareto_within + 1e-3  # but for goodput, which hardly differs
    front = [document.rows[index] for index in document.pareto]
    assert any(r.step_time_s <= between.step_time_s * near and r.cost <= cost * near for r in front)


def test_tokens_per_device_are_bounded_from_above():
    document = sweep("8,16", objective="tokens-per-device").document
    assert document.objective_value == document.rows[document.best].tokens_per_s_per_device
    assert document.objective_bound >= document.objective_value
    assert document.gap == pytest.approx(
        1 - document.objective_value / document.objective_bound, abs=1e-9
    )


@pytest.mark.parametrize("field", ["objective_bound", "gap", "pareto_within", "devices_from"])
def test_a_bound_that_was_edited_is_refused(field, by_cost, tmp_path):
    path = tmp_path / "sweep.json"
    by_cost.save(path)
    changed = json.loads(path.read_text())
    changed[field] = 0 if field == "devices_from" else changed[field] + 0.5
    path.write_text(json.dumps(changed))
    with pytest.raises(InvalidInput, match=field):
        trainwright.explain(path)


@pytest.mark.slow
def test_pareto_rows_are_not_beaten_in_both():
    document = sweep(pareto="step-time,cost", **MONEY).document
    front = [document.rows[i] for i in document.pareto]
    assert document.pareto_objectives == ("step-time", "cost")
    for row in document.rows:
        beaten = any(f.step_time_s <= row.step_time_s and f.cost <= row.cost for f in front)
        assert beaten


@pytest.mark.slow
def test_sizes_without_a_plan_say_why():
    report = trainwright.sweep("llama3-8b", devices="1,8", **JOB, memory="20GiB")
    one, eight = report.document.rows
    assert one.status is Status.INFEASIBLE
    assert one.step_time_s is None
    assert "needs" in one.reason
    assert eight.step_time_s is not None
    assert report.document.best == 1
    assert f"1 devices: {one.reason}"[:60] in report.explain()


@pytest.mark.slow
def test_nothing_that_fits_is_infeasible_and_time_that_ran_out_is_unknown():
    tiny = trainwright.sweep("llama3-8b", devices="1,2", **JOB, memory="1GiB")
    assert tiny.status is Status.INFEASIBLE
    assert "no plan was found on any of these" in tiny.explain()
    budget = trainwright.Budget()
    budget.interrupt()
    stopped = sweep("8,16", budget=budget)
    assert stopped.status is Status.UNKNOWN
    assert stopped.document.interrupted


def without_seconds(report):
    document = json.loads(report.to_json())
    for each in (document, document["best_plan"], *document["rows"], *document.get("searched", ())):
        each.pop("search_s")
    return document


@pytest.mark.slow
def test_a_sweep_goes_on_from_its_journal_with_the_same_answer(tmp_path):
    journal = tmp_path / "journal"
    wanted = {**MONEY, "objective": "cost"}
    one = sweep("8,16", journal=journal, **wanted).document
    two = sweep("8..32", journal=journal, **wanted)
    known = {row.devices: row.search_s for row in one.rows}
    assert {row.devices: row.search_s for row in two.document.rows if row.devices in known} == known
    size = journal.stat().st_size
    again = sweep("8..32", journal=journal, **wanted)
    assert journal.stat().st_size == size
    assert without_seconds(again) == without_seconds(two) == without_seconds(sweep(**wanted))


@pytest.mark.slow
def test_a_sweep_that_is_killed_keeps_the_searches_that_ended(tmp_path):
    journal = tmp_path / "journal"
    asked = [
        "--cluster",
        "dgx-h100",
        "--global-batch",
        "64",
        "--sequence",
        "1024",
        "--top",
        "0",
        "--json",
        "--devices",
    ]
    program = [sys.executable, "-m", "trainwright", "plan", "gpt2", "--journal", str(journal)]
    run = subprocess.Popen([*program, *asked, "8,16,32,64,128"])
    while run.poll() is None and not (journal.exists() and journal.read_text().count("\n") > 1):
        time.sleep(0.01)
    run.kill()
    run.wait()
    ended = json.loads(journal.read_text().split("\n")[1])["value"]["search_s"]
    again = subprocess.run([*program, *asked, "8,16"], capture_output=True, check=True)
    assert json.loads(again.stdout)["rows"][0]["search_s"] == ended


def test_a_journal_of_something_else_is_refused(tmp_path):
    other = tmp_path / "notes"
    other.write_text("hello\n")
    with pytest.raises(InvalidInput, match="journal"):
        sweep("8", journal=other)


def test_a_document_is_read_back_and_an_edited_one_refused(by_cost, tmp_path):
    path = tmp_path / "sweep.json"
    by_cost.save(path)
    assert trainwright.explain(path).document == by_cost.document
    for change in (
        lambda d: d.update(best=0 if d["best"] else 1),
        lambda d: d["rows"][0].update(cost=1.0),
        lambda d: d["rows"][d["best"]].update(step_time_s=1.0),
        lambda d: d["training"].update(price_per_hour=9.0),
        lambda d: d["best_plan"].update(mfu=0.9),
        lambda d: d.update(objective="luck"),
    ):
        edited = json.loads(by_cost.to_json())
        change(edited)
        path.write_text(json.dumps(edited), encoding="utf-8")
        with pytest.raises(InvalidInput):
            trainwright.explain(path)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"objective": "luck"}, "objective: must be one of step-time, tokens-per-device"),
        ({"objective": "cost", "tokens": 1e9}, "price: must be given for cost, as --price X"),
        ({"objective": "devices"}, "tokens: must be given for devices, as --tokens X"),
        ({"pareto": "cost"}, "pareto: must name two objectives, such as step-time,cost"),
        ({"tokens": -1.0}, "tokens: must be from 1e-06 to 1e\\+24, got -1.0"),
        ({"nodes": 2}, "nodes: must not be given together with several devices"),
        ({"mtbf": "soon"}, "mtbf: must be a quantity such as 30s"),
    ],
)
def test_a_bad_option_is_named(options, fault):
    with pytest.raises(InvalidInput, match=fault):
        sweep("8,16", **options)


def test_a_profile_has_no_sizes(path):
    with pytest.raises(InvalidInput, match="devices: several numbers and objectives need a --cl"):
        trainwright.sweep(path, devices="8,16")


# Values of any option
# --------------------

PLAIN = {"cluster": "dgx-a100", "devices": 4, "global_batch": 16, "tp": 1, "pp": 1, "cp": 1}


def over(**values):
    return trainwright.sweep("gpt2", **PLAIN, schedule="1f1b", sequence=256, sweep=values)


def test_a_row_of_an_option_is_the_plan_with_its_value(tmp_path):
    found = over(sequence=(256, 512), micro_batch=[1]).document
    assert [row.settings for row in found.rows] == [
        {"sequence": "256", "micro-batch": "1"},
        {"sequence": "512", "micro-batch": "1"},
    ]
    for row in found.rows:
        alone = {**PLAIN, "sequence": int(row.settings["sequence"]), "micro_batch": 1}
        assert row.step_time_s == trainwright.plan("gpt2", schedule="1f1b", **alone).step_time_s
    assert found.objective == "tokens-per-device"
    best = max(found.rows, key=lambda row: row.tokens_per_s_per_device)
    assert found.rows[found.best] == best
    assert found.gap is None
    assert recheck(found) == found
    text = str(Report(found))
    assert " sequence " in text
    assert " devices " not in text.partition("best by")[0]
    assert "best by tokens-per-device: sequence 512, micro-batch 1" in text


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"objective": ("cost",)}, "sweep: must name an option that plans depend on"),
        ({"journal": ("a",)}, "sweep: must name an option that plans depend on"),
        ({"zer": (1,)}, 'zer: is no option of sweep; did you mean "zero"'),
        ({"sequence": "2048"}, "sweep: must have a list of values of sequence, got '2048'"),
        ({"sequence": ()}, "sweep: must have a value of sequence, got none"),
        ({"sequence": range(1, 99)}, "sweep: must have at most 64 combinations"),
        ({"sequence_parallel": ("maybe",)}, "sequence_parallel: is no option of sweep"),
        ({"per_stage_degrees": ("maybe",)}, 'must be yes or no, got "maybe"'),
        ({"sequence": (256, 4096)}, "sequence: must be <= the 1024 learned positions, got 4096"),
    ],
)
def test_values_that_cannot_be_swept_are_named(values, fault):
    with pytest.raises(InvalidInput, match=re.escape(fault)):
        over(**values)


def test_the_frame_of_a_sweep_has_its_rows():
    pytest.importorskip("pandas", reason="needs pandas")
    frame = over(micro_batch=(1, 2)).to_dataframe()
    assert list(frame["micro-batch"]) == ["1", "2"]
    assert (frame["step_time_s"] > 0).all()


def test_several_values_in_the_place_of_one_are_told_how_to_be_swept():
    hint = 'sequence: must be a whole number, got (512, 1024); for a row each give sweep={"sequence'
    with pytest.raises(InvalidInput, match=re.escape(hint)):
        trainwright.sweep("gpt2", **{**PLAIN, "sequence": (512, 1024)})


def test_devices_and_options_are_swept_together():
    own = {**PLAIN, "devices": None}
    found = trainwright.sweep(
        "gpt2", **own, sequence=256, schedule="1f1b", sweep={"devices": (2, 4), "sequence": (128,)}
    ).document
    assert [(row.devices, row.settings) for row in found.rows] == [
        (2, {"sequence": "128"}),
        (4, {"sequence": "128"}),
    ]
    with pytest.raises(InvalidInput, match="devices: must be given, or else sweep"):
        trainwright.sweep("gpt2", **own, sequence=256)


def test_clusters_are_compared_by_what_devices_of_each_cost_and_draw() -> None:
    asked = {"sweep": {"cluster": ("dgx-h100", "dgx-a100")}, "global_batch": 64, "sequence": 1024}
    asked |= {"devices": 8, "top": 0, "tokens": 3e11, "objective": "cost", "schedule": "1f1b"}
    alike = trainwright.sweep("gpt2", **asked, price=2.5)
    own = trainwright.sweep("gpt2", **asked, price=(2.5, 1.2))
    for document in (alike.document, own.document):
        for row, watts in zip(document.rows, (700, 400), strict=True):
            assert row.train_s is not None
            assert row.energy_j == pytest.approx(watts * 8 * row.train_s)
    h100, a100 = own.document.rows
    assert h100.cost == pytest.approx(alike.document.rows[0].cost)
    assert a100.cost == pytest.approx(1.2 / 2.5 * alike.document.rows[1].cost)
    assert (alike.document.best, own.document.best) == (0, 1)
    assert remake_sweep(own.document).rows == own.document.rows
    with pytest.raises(InvalidInput, match="one for each swept cluster, got 3 for 2"):
        trainwright.sweep("gpt2", **asked, price=(2.5, 1.2, 1.0))
