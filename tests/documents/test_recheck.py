"""A document that was edited by hand is refused, and the field that lies is named."""

from __future__ import annotations

import copy
import json

import pytest

import reported
import trainwright
from trainwright.errors import InvalidInput
from trainwright.formats.document_json import content_hash, encode

MODEL = {"cluster": "dgx-h100", "global_batch": 32, "sequence": 1024, "schedule": "1f1b"}
# Only the search, or the clock, knows these.
UNCHECKED = (
    "counters",
    "search_s",
    "solver_s",
    "considered",
    "pruned",
    "not_reached",
    "interrupted",
    "warnings",
)


def leaves(value, path=()):
    """Paths of all numbers of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, entry in items:
        if isinstance(entry, (dict, list)):
            yield from leaves(entry, (*path, key))
        elif isinstance(entry, (int, float)):
            yield (*path, key)


def changed(document, path, change):
    """A copy of the document with one value changed."""
    made = copy.deepcopy(document)
    *parents, last = path
    place = made
    for key in parents:
        place = place[key]
    place[last] = change(place[last])
    return made


@pytest.fixture
def explained(tmp_path):
    """Save JSON values as a document and explain it."""

    def call(document):
        file = tmp_path / "edited.json"
        file.write_text(json.dumps(document), encoding="utf-8")
        return trainwright.explain(file)

    return call


def made(path, tmp_path, kind):
    planned = trainwright.plan(path, compare=True)
    if kind == "plan":
        return planned.to_dict()
    if kind == "estimate":
        planned.save(tmp_path / "plan.json")
        plan = tmp_path / "plan.json"
        return trainwright.estimate(path, plan=plan, memory="6GiB").to_dict()
    per_stage = kind == "per-stage"
    return trainwright.plan("gpt2", **MODEL, per_stage_degrees=per_stage).to_dict()


def bends(value):
    return not value if isinstance(value, bool) else value * 1.01 + 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plan", "estimate", "model-plan", "per-stage"])
def test_every_figure_that_follows_from_the_plan_is_checked(kind, path, tmp_path, explained):
    document = made(path, tmp_path, kind)
    assert explained(document).to_dict() == document
    document["request"]["model"]["name"] = "renamed.json"  # names are free
    explained(document)
    checked = 0
    for place in leaves({k: v for k, v in document.items() if k not in ("request", *UNCHECKED)}):
        if place[0] in ("alternatives", "baselines") and place[-1] != "slowdown":
            continue
        with pytest.raises(InvalidInput):
            explained(changed(document, place, bends))
        checked += 1
    assert checked > 20


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (("time_per_sample_s",), lambda t: t / 2, "time_per_sample_s: must be 0.01"),
        (("stages", 1, "memory_bytes"), lambda b: b / 2, "stages[1].memory_bytes: must be 57"),
        (("stages", 0, "breakdown", "compute_s"), lambda t: 0, "breakdown.compute_s: must be 0.01"),
        (("stages", 0, "num_recomputed"), lambda n: 2, "stages[0].num_recomputed: must be 0"),
        (("stages", 0, "options", "0"), lambda o: "magic", 'stages[0].options["0"]: must be one'),
        (("lower_bound_s",), lambda t: 1.0, "gap: must be 0.0"),
        (("lower_bound_s",), lambda t: t / 2, "gap: must be 0.5"),
        (("gap",), lambda g: 0.3, "gap: must be 9"),
        (("status",), lambda s: "infeasible", "status: must fit a document with stages"),
        (("bound_kind",), lambda b: "published", 'status: must be "gap" unless'),
        (("objective",), lambda o: "luck", 'objective: must be time_per_sample_s, got "luck"'),
        (("request", "setting", "memory_bytes"), lambda b: 6e9, "stages[0].memory_bytes: must be"),
        (("request", "setting", "num_devices"), lambda n: 0, "request.setting.num_devices: must"),
        (("request", "model", "sha256"), lambda h: "0" * 64, "request.model.sha256: must be"),
        (("baselines", 0, "slowdown"), lambda s: 9.0, "baselines[0].slowdown: must be"),
    ],
)
def test_the_field_that_lies_is_named(place, change, message, path, tmp_path, explained):
    document = made(path, tmp_path, "plan")
    with pytest.raises(InvalidInput) as refused:
        explained(changed(document, place, change))
    assert message in str(refused.value)
    assert refused.value.source.endswith("edited.json")


def test_a_proved_plan_was_not_interrupted_unless_it_is_compared(path, explained):
    for document in (encode(reported.placement()), trainwright.plan(path).to_dict()):
        assert document["status"] == "optimal"
        assert not explained(document).document.interrupted
        with pytest.raises(InvalidInput, match="interrupted: must be False"):
            explained(document | {"interrupted": True})
    compared = trainwright.plan(path, compare=True).to_dict()
    assert explained(compared | {"interrupted": True}).document.interrupted


def test_an_edited_profile_is_refused_with_its_old_hash_and_with_a_new_one(
    path, tmp_path, explained
):
    document = made(path, tmp_path, "plan")
    for layer_class in document["request"]["model"]["content"]["points"][0]["classes"]:
        for option in layer_class["options"]:
            option["duration_s"] *= 0.5
    with pytest.raises(InvalidInput, match=r"request\.model\.sha256: must be .* it was edited"):
        explained(document)
    document["request"]["model"]["sha256"] = content_hash(document["request"]["model"]["content"])
    with pytest.raises(InvalidInput, match=r"time_per_sample_s: must be .* as the request gives"):
        explained(document)
    del document["request"]["model"]["content"]["points"]
    document["request"]["model"]["sha256"] = content_hash(document["request"]["model"]["content"])
    with pytest.raises(InvalidInput, match=r"request\.model\.content\.points: required"):
        explained(document)


@pytest.mark.parametrize("name", ["small_plan", "model_estimate", "improvement"])
def test_of_estimated_figures_that_are_not_ours_it_is_said_how_that_comes_about(name, tmp_path):
    document = encode(getattr(reported, name)())
    timed = document["run"] if name == "improvement" else document
    timed["step_time_s"] *= 1.01
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InvalidInput) as refused:
        trainwright.report(path)
    *figures, last = refused.value.faults
    assert any(fault.path.endswith("step_time_s") for fault in figures)
    assert last.path == "document"
    assert "made by another build of version" in last.problem
    assert "make it anew with the command that wrote it" in last.problem


@pytest.mark.slow
def test_a_models_request_is_checked_too(path, tmp_path, explained):
    document = made(path, tmp_path, "model-plan")
    for place, change, message in (
        (("request", "workload", "global_batch"), lambda n: 31, "micro_batch: must divide"),
        (("request", "workload", "global_batch"), lambda n: 64, "step_time_s: must be"),
        (("request", "num_devices"), lambda n: 1, "devices_used: must be at most the 1"),
        (("request", "cluster", "content", "name"), lambda n: "x", "request.cluster.sha256"),
        (("stages", 0, "data_parallel"), lambda d: d * 2, "stages[0].data_parallel: must be"),
    ):
        if place[0] == "stages" and document["num_stages"] == 1:
            continue
        with pytest.raises(InvalidInput) as refused:
            explained(changed(document, place, change))
        assert message in str(refused.value)
    del document["request"]["workload"]
    with pytest.raises(InvalidInput, match=r"request\.workload: required field is missing"):
        explained(document)


@pytest.mark.slow
def test_a_model_plan_of_another_version_is_shown_with_a_warning(path, tmp_path, explained):
    document = made(path, tmp_path, "model-plan")
    document["request"]["trainwright_version"] = "0.0.1"
    assert explained(document).document.warnings == ()
    document["step_time_s"] *= 2
    document["gap"] = 1 - document["lower_bound_s"] / document["step_time_s"]
    document["status"] = "gap"
    (warning,) = explained(document).document.warnings
    assert warning.startswith("made by version 0.0.1; ")
    assert "computes other figures: step_time_s: must be" in warning


def test_documents_without_a_plan_claim_none(path, explained):
    document = trainwright.plan(path, memory="2.5GB", recompute=False).to_dict()
    assert explained(document).to_dict() == document
    document |= {"lower_bound_s": 1.0, "gap": 0.0, "status": "optimal"}
    with pytest.raises(InvalidInput, match="status: must fit a document without stages"):
        explained(document)


def test_diff_refuses_an_edited_document_on_either_side(path, tmp_path):
    document = made(path, tmp_path, "plan")
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(document), encoding="utf-8")
    bad.write_text(json.dumps(document | {"time_per_sample_s": 1e-9}), encoding="utf-8")
    for pair in ((good, bad), (bad, good)):
        with pytest.raises(InvalidInput, match="time_per_sample_s: must be"):
            trainwright.diff(*pair)


def test_a_gap_is_not_called_optimal(path, tmp_path, explained):
    document = made(path, tmp_path, "plan")
    document["lower_bound_s"] = document["time_per_sample_s"] / 2
    document["gap"] = 0.5
    with pytest.raises(InvalidInput, match='status: must be "gap" unless'):
        explained(document)
    assert explained(document | {"status": "gap"}).document.gap == 0.5
    with pytest.raises(InvalidInput, match=r"lower_bound_s: must be from 0 to the 0\.01"):
        explained(document | {"lower_bound_s": 1.0, "gap": 0.0})


def test_documents_inside_a_document_are_checked_and_what_is_made_of_them(tmp_path):
    document = encode(reported.what_if())
    path = tmp_path / "edited.json"
    for place, change, message in (
        (("time_ratio",), lambda r: r * 2, "time_ratio: must be"),
        (("after", "step_time_s"), lambda t: t * 2, "after.step_time_s: must be"),
        (("before", "request", "model", "sha256"), lambda h: "0" * 64, "before.request.model.sha"),
    ):
        path.write_text(json.dumps(changed(document, place, change)), encoding="utf-8")
        with pytest.raises(InvalidInput) as refused:
            trainwright.explain(path)
        assert message in str(refused.value)


def test_an_edited_chip_is_refused_where_its_inputs_are_not_its_own(tmp_path):
    document = encode(reported.codesign())
    path = tmp_path / "chip.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    trainwright.report(path)
    document["request"]["jobs"][0]["model"]["sha256"] = "0" * 64
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"request\.jobs\[0\]\.model\.sha256: must be"):
        trainwright.report(path)


def test_what_a_framework_repeats_is_told_from_all_modes(tmp_path) -> None:
    """Megatron has one mode for all blocks, so its search prices no block that repeats nothing."""
    one = {"tp": 8, "pp": 1, "micro_batch": 32, "schedule": "1f1b", "framework": "megatron"}
    asked = {"cluster": "dgx-h100", "devices": 8, "global_batch": 32, "sequence": 8192}
    planned = trainwright.plan("llama3-8b", **asked, **one)
    assert planned.document.time_by_part_s["recompute"] > 0
    planned.save(tmp_path / "plan.json")
    trainwright.explain(tmp_path / "plan.json")  # every figure is computed again
