"""`trainwright.plan`, `estimate`, `explain` and `diff` from Python."""

from __future__ import annotations

import inspect
import json
import runpy
import subprocess
import sys
from dataclasses import replace

import pytest

import trainwright
from small_profiles import transformer, write_json
from trainwright import results
from trainwright.cluster import Cluster
from trainwright.documents.open import load_document
from trainwright.documents.profile_plan import read_stages
from trainwright.errors import InvalidInput
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.formats.document_json import decode
from trainwright.formats.piper_json import read_piper
from trainwright.formats.profile_json import read_profile
from trainwright.model import TransformerConfig
from trainwright.options.clusters import without_host
from trainwright.plans import Plan, Stage
from trainwright.plans.schedule import Action, ActionKind, Schedule
from trainwright.plans.status import Status

LLAMA = {
    "cluster": "dgx-h100",
    "nodes": 2,
    "global_batch": 128,
    "sequence": 4096,
    "cp": 1,
    "schedule": "1f1b",
}


def same(first, second):
    """Two documents, but for the time it took."""
    blank = {"solver_s": None, "search_s": None}
    return replace(first.document, **blank) == replace(second.document, **blank)


def plan_noun(result) -> Plan:
    stages = read_stages(result.to_dict())
    return Plan(stages=stages, num_microbatches=result.document.request.setting.num_microbatches)


def test_a_file_a_noun_and_a_single_profile_give_the_same_plan(path, noun):
    setting = noun.setting
    by_file = trainwright.plan(str(path))
    by_path = trainwright.plan(path)
    by_noun = trainwright.plan(noun)
    (profile,) = noun.profiles
    by_profile = trainwright.plan(
        profile,
        devices=setting.num_devices,
        memory=setting.memory_bytes,
        bandwidth=setting.bandwidth_bytes_per_s,
        microbatches=setting.num_microbatches,
    )
    assert same(by_file, by_path)
    for other in (by_noun, by_profile):
        assert other.document.stages == by_file.document.stages
        assert other.document.request.setting == by_file.document.request.setting
        assert other.document.request.model.name == "profile"


def test_quantities_are_numbers_or_text_with_a_unit(noun):
    as_text = trainwright.plan(noun, memory="3GB", bandwidth="200Gb/s")
    assert same(as_text, trainwright.plan(noun, memory=3e9, bandwidth=25e9))


def test_the_result_answers_for_its_document(noun):
    result = trainwright.plan(noun)
    assert result.status is Status.OPTIMAL
    assert result.stages == result.document.stages
    assert result.time_per_sample_s == max(s.time_per_sample_s for s in result.stages)
    assert result.lower_bound_s <= result.time_per_sample_s
    assert 0 <= result.gap <= 1e-9
    assert result.step_time_s is None
    assert str(result) == result.explain()
    assert result.explain().startswith("profile: ")


def test_the_result_of_a_model_answers_for_its_document():
    result = trainwright.plan("llama3-8b", **LLAMA)
    assert result.status in (Status.GAP, Status.OPTIMAL)
    assert result.step_time_s >= result.lower_bound_s > 0
    assert result.gap == pytest.approx(1 - result.lower_bound_s / result.step_time_s)
    assert result.time_per_sample_s < result.step_time_s


def test_nothing_that_fits_is_a_result_and_no_error(noun):
    result = trainwright.plan(noun, memory="1GB")
    assert result.status is Status.INFEASIBLE
    assert result.stages == ()
    assert result.time_per_sample_s is None
    assert result.gap is None
    assert result.document.binding.missing_bytes > 0


def test_estimate_takes_a_document_or_a_noun(path, noun, tmp_path):
    result = trainwright.plan(path)
    result.save(tmp_path / "plan.json")
    by_file = trainwright.estimate(path, plan=tmp_path / "plan.json")
    by_noun = trainwright.estimate(noun, plan=plan_noun(result))
    for report in (by_file, by_noun):
        assert report.document.fits
        assert report.document.stages == result.stages
        assert report.document.time_per_sample_s == result.time_per_sample_s


def test_estimate_takes_the_setting_of_the_plan_before_that_of_the_profile(path, tmp_path):
    trainwright.plan(path, devices=6, memory="3GB").save(tmp_path / "plan.json")
    found = trainwright.estimate(path, plan=tmp_path / "plan.json", devices=7)
    setting = found.document.request.setting
    assert (setting.num_devices, setting.memory_bytes) == (7, 3e9)


def test_explain_and_diff_take_results_documents_and_paths(path, tmp_path):
    first = trainwright.plan(path)
    second = trainwright.plan(path, devices=4)
    first.save(tmp_path / "first.json")
    for given in (first, first.document, tmp_path / "first.json", str(tmp_path / "first.json")):
        assert trainwright.explain(given).document == first.document
        difference = trainwright.diff(given, second).document
        assert difference.time_ratio > 1
        assert [change.key for change in difference.request_changes] == ["num_devices"]


def test_several_points_need_to_be_told_apart(noun):
    double = replace(noun, profiles=noun.profiles * 2)
    with pytest.raises(InvalidInput, match="point: must say which of the 2 points"):
        trainwright.plan(double)
    assert trainwright.plan(double, point=1).stages == trainwright.plan(noun).stages


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"devices": 0}, "devices: must be >= 1, got 0"),
        ({"memory": 0.0}, "memory: must be finite and > 0, got 0.0"),
        ({"bandwidth": float("nan")}, "bandwidth: must be finite and > 0, got nan"),
        ({"microbatches": -1}, "microbatches: must be >= 1, got -1"),
        ({"planner": "best"}, "planner: must be one of"),
        ({"planner": "equal", "block_layer": "x"}, "block-layer: must be the name"),
        ({"point": 3}, "point: must be from 0 to 0, got 3"),
    ],
)
def test_a_bad_argument_is_named(noun, options, fault):
    with pytest.raises(InvalidInput, match=fault):
        trainwright.plan(noun, **options)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"nodes": 0}, "nodes: must be >= 1, got 0"),
        ({"nodes": None, "devices": 0}, "devices: must be >= 1, got 0"),
        ({"micro_batch": 0}, "micro-batch: must be >= 1, got 0"),
        ({"zero": 4}, "zero: must be 0, 1, 2 or 3, or a list such as 0,1; got 4"),
        ({"global_batch": 0}, "global-batch: must be from 1 to 1000000, got 0"),
        ({"sequence": 0}, "sequence: must be from 1 to 1000000000, got 0"),
        ({"nodes": 1, "devices": 9}, "devices: must be at most the 8 of 1 nodes, got 9"),
        ({"cluster": None}, "cluster: must be given for a model"),
    ],
)
def test_a_bad_argument_for_a_model_is_named(options, fault):
    with pytest.raises(InvalidInput, match=fault):
        trainwright.plan("llama3-8b", **LLAMA | options)


def test_a_sequence_the_model_has_no_positions_for_is_named():
    with pytest.raises(InvalidInput, match="sequence: must be <= the 1024 learned positions"):
        trainwright.plan("gpt2", **LLAMA)


def test_times_that_overflow_are_refused_and_priced_as_the_largest_number(noun):
    with pytest.raises(InvalidInput, match="bandwidth: must move all bytes in finite time"):
        trainwright.plan(noun, bandwidth=1e-305)
    plan = plan_noun(trainwright.plan(noun))
    document = trainwright.estimate(noun, plan=plan, bandwidth=1e-305).to_dict()
    assert document["time_per_sample_s"] == sys.float_info.max


def test_a_document_stands_for_the_model_that_it_carries(path, tmp_path):
    first = trainwright.plan(path)
    first.save(tmp_path / "plan.json")
    assert trainwright.plan(tmp_path / "plan.json").stages == first.stages


def test_a_folder_stands_for_its_config(tmp_path):
    config = {"model_type": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 4, "vocab_size": 1000}
    (tmp_path / "tiny").mkdir()
    write_json(tmp_path / "tiny" / "config.json", config | {"odd_key": 1})
    result = trainwright.plan(tmp_path / "tiny", **LLAMA | {"sequence": 512})
    assert result.document.request.model.name == "tiny"
    assert result.document.warnings[:2] == (
        "tiny: unknown key ignored: odd_key (its effect is unknown)",
        "tiny: as read, the model has 3,677,696 parameters: compare them with the published count",
    )
    with pytest.raises(InvalidInput, match=r"a folder with config\.json"):
        trainwright.plan(tmp_path)


def test_a_cluster_file_is_taken_like_a_catalog_name(tmp_path):
    (tmp_path / "mine.toml").write_text(
        'device_kind = "H100-80GB-SXM"\n[[level]]\nname = "nvlink"\nsize = 4\n'
        "bandwidth_bytes_per_s = 450e9\nlatency_s = 3e-6\n",
        encoding="utf-8",
    )
    result = trainwright.plan(
        "llama3-8b",
        cluster=tmp_path / "mine.toml",
        global_batch=16,
        sequence=2048,
        schedule="1f1b",
    )
    assert result.document.devices_used == 4
    assert result.document.request.cluster.name == "mine"


def test_an_interrupted_budget_still_gives_a_document(noun):
    budget = Budget()
    budget.interrupt()
    for result in (
        trainwright.plan(noun, budget=budget, compare=True),
        trainwright.plan("llama3-8b", budget=budget, **LLAMA),
    ):
        assert result.document.interrupted
        assert result.status is not Status.INFEASIBLE
        assert result.to_json()


def test_progress_comes_with_the_best_plan_and_a_bound():
    seen = []
    trainwright.plan("llama3-8b", budget=Budget(on_progress=seen.append), **LLAMA)
    assert [step.stage for step in seen if step.stage == "planning"]
    best = [step.best for step in seen if step.stage == "planning"]
    assert best == sorted(best, reverse=True)


def test_the_embedded_profile_alone_gives_the_same_answer(path, tmp_path):
    first = trainwright.plan(path, devices=6, memory="3GB", recompute=False)
    request = first.to_dict()["request"]
    path.unlink()
    setting, space = request["setting"], request["space"]
    again = trainwright.plan(
        read_profile(request["model"]["content"]),
        devices=setting["num_devices"],
        memory=setting["memory_bytes"],
        bandwidth=setting["bandwidth_bytes_per_s"],
        microbatches=setting["num_microbatches"],
        data_parallel=space["data_parallel"],
        tensor_parallel=space["tensor_parallel"],
        recompute=space["recompute"],
        exclude_option=space["excluded_options"],
        planner=space["planner"],
    )
    assert again.document.stages == first.document.stages
    assert again.document.request.model.sha256 == first.document.request.model.sha256
    write_json(tmp_path / "own.json", request["model"]["content"])
    own = trainwright.plan(tmp_path / "own.json", devices=6, memory="3GB", recompute=False)
    assert own.document.stages == first.document.stages


def test_the_hash_tells_models_apart(noun):
    other = read_piper(transformer(5), source="small.json")
    first, second = (trainwright.plan(x).document.request.model.sha256 for x in (noun, other))
    assert first != second
    assert not trainwright.diff(trainwright.plan(noun), trainwright.plan(other)).document.same_model


def test_the_embedded_model_and_cluster_are_nouns_again():
    request = trainwright.plan("llama3-8b", calibration="none", **LLAMA).to_dict()["request"]
    model = decode(TransformerConfig, request["model"]["content"])
    assert model == catalog.model("llama3-8b").config
    cluster = decode(Cluster, request["cluster"]["content"])
    assert cluster == without_host(catalog.cluster("dgx-h100").with_nodes(2))


_SLOW = pytest.mark.slow  # each starts a process


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        "commands.main",
        pytest.param("plans.plan", marks=_SLOW),
        pytest.param("plans.status", marks=_SLOW),
        pytest.param("commands.plan", marks=_SLOW),
        pytest.param("commands.diff", marks=_SLOW),
    ],
)
def test_the_root_names_are_the_verbs_after_any_import(module):
    code = (
        f"import trainwright\nimport trainwright.{module}\n"
        "for name in ('plan', 'estimate', 'explain', 'diff'):\n"
        "    assert callable(getattr(trainwright, name)), name\n"
        "from trainwright.plans.plan import Plan\n"
        "assert callable(trainwright.plan)\n"
        "assert set(trainwright.__all__) <= set(dir(trainwright))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_root_lists_33_names_and_keeps_the_way_to_the_others():
    assert len(trainwright.__all__) <= 33
    for name in results.__all__:
        assert name not in trainwright.__all__
        assert name not in dir(trainwright)
        assert getattr(trainwright, name) is getattr(results, name)


# Plug-ins: judged by the same rules, and named where they go wrong
# -----------------------------------------------------------------


def one_by_one(request):
    """Both passes of a microbatch, then the next one."""
    passes = [(m, kind) for m in range(request.num_microbatches) for kind in "FB"]
    ranks = range(request.num_ranks)
    return Schedule.from_orders([[Action(ActionKind[k], r, m) for m, k in passes] for r in ranks])


def test_the_example_of_plug_ins_is_short_and_runs(request, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    example = request.config.rootpath / "examples" / "plug_in.py"
    lines = filter(None, example.read_text(encoding="utf-8").splitlines())
    assert len(list(lines)) <= 30
    runpy.run_path(str(example))
    printed = capsys.readouterr().out
    assert "costs of profile.json are those of the plug-in slower" in printed
    assert "one_at_a_time on 4 ranks, 8 microbatches" in printed


def test_a_partitioner_of_ones_own_is_priced_as_ours_with_the_bound_of_ours(path, tmp_path):
    exact = trainwright.plan(path, memory="80GiB")
    ours = read_stages(json.loads(exact.to_json()))

    def same_plan(profile, setting, restrictions):
        return Plan(stages=ours, num_microbatches=setting.num_microbatches)

    found = trainwright.plan(path, memory="80GiB", planner=same_plan)
    assert found.status is Status.OPTIMAL
    assert found.document.time_per_sample_s == exact.document.time_per_sample_s
    assert found.document.request.space.planner == "same_plan"
    found.save(tmp_path / "plan.json")
    assert load_document(tmp_path / "plan.json") == found.document

    def on_one_device(profile, setting, restrictions):
        costs, layers = profile.costs, profile.structure.layers
        rows = [costs.rows_of(layer.layer_class).start for layer in layers]
        options = tuple(costs.option_ids[row] for row in rows)
        stage = Stage.uniform(profile.structure.ids, options, data_parallel=1, tensor_parallel=1)
        return Plan(stages=(stage,), num_microbatches=setting.num_microbatches)

    slow = trainwright.plan(path, memory="80GiB", planner=on_one_device)
    assert slow.status is Status.GAP
    assert slow.document.lower_bound_s == pytest.approx(exact.document.time_per_sample_s)
    assert slow.gap == pytest.approx(
        1 - exact.document.time_per_sample_s / slow.document.time_per_sample_s
    )
    with pytest.raises(InvalidInput, match=r"plug-in on_one_device has a stage \(0\) that needs"):
        trainwright.plan(path, memory="3GiB", planner=on_one_device)
    with pytest.raises(InvalidInput, match=r"plug-in same_plan breaks a rule: stages\[0\]"):
        trainwright.plan(path, memory="80GiB", planner=same_plan, data_parallel=False)


def test_what_goes_wrong_in_a_plug_in_is_told_under_its_name(path):
    def raises(*_):
        raise KeyError("layer")

    def of_seven(request):
        return one_by_one(replace(request, num_microbatches=7))

    def backwards(request):
        own = one_by_one(request)
        return replace(own, actions=own.actions[::-1].copy(), rank_offsets=own.rank_offsets)

    for wrong, what in ((raises, "raised KeyError: 'layer'"), (lambda *_: 7, "got int")):
        with pytest.raises(InvalidInput, match=what) as error:
            trainwright.plan(path, planner=wrong)
        assert error.value.faults[0].path == "planner"
        with pytest.raises(InvalidInput, match=what):
            trainwright.plan(path, cost_model=wrong)
        with pytest.raises(InvalidInput, match=what):
            trainwright.schedule(family=wrong, ranks=2, microbatches=4)
    for wrong, what in ((of_seven, "of 4 microbatches, got 7"), (backwards, "breaks a rule")):
        with pytest.raises(InvalidInput, match=what):
            trainwright.schedule(family=wrong, ranks=2, microbatches=4)


def test_plug_ins_of_packages_are_found_by_name(path, tmp_path, monkeypatch):
    about = tmp_path / "mine-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[trainwright.schedules]\nin-turn = mine_orders:one_by_one\n"
        "[trainwright.partitioners]\nlost = mine_orders:nothing\n"
    )
    text = inspect.getsource(one_by_one)
    head = "from trainwright.plans.schedule import Action, ActionKind, Schedule\n"
    (tmp_path / "mine_orders.py").write_text(head + text)
    monkeypatch.syspath_prepend(tmp_path)
    found = trainwright.schedule(family="in-turn", ranks=2, microbatches=4)
    assert found.document.family == "in-turn"
    assert found.document.makespan_s == 3 * 2 * 4
    with pytest.raises(InvalidInput, match=r"lost \(mine_orders:nothing\) cannot be loaded"):
        trainwright.plan(path, planner="lost")
    with pytest.raises(InvalidInput, match="must be one of exact, equal, lost, or a plug-in of"):
        trainwright.plan(path, planner="nonsense")
