"""`--json` and `-o`: one document, complete, finite, with the exit code of its status."""

from __future__ import annotations

import copy
import json

import pytest

from small_profiles import transformer, write_json

PLAN = ("plan", "small.json")
LLAMA = (
    *("plan", "llama3-8b", "--cluster", "dgx-h100", "--nodes", "2"),
    *("--global-batch", "512", "--sequence", "8192"),
)
GPT2 = (
    *("plan", "gpt2", "--cluster", "dgx-h100", "--devices", "8", "--global-batch", "32"),
    *("--sequence", "1024", "--schedule", "1f1b", "--cp", "1"),
)


def without_value(value) -> bool:
    """Whether some key, at any depth, is there without a value."""
    if isinstance(value, dict):
        return any(entry is None or without_value(entry) for entry in value.values())
    return isinstance(value, list) and any(entry is None or without_value(entry) for entry in value)


def test_plan_prints_one_document_with_the_promised_keys(run):
    done = run(*PLAN, "--json")
    assert (done.code, done.err) == (0, "")
    document = done.document
    assert document["kind"] == "plan"
    assert document["format_version"] == 1
    assert document["status"] == "optimal"
    assert document["objective"] == "time_per_sample_s"
    assert document["bound_kind"] == "proved"
    assert document["time_per_sample_s"] == pytest.approx(0.013002, rel=1e-4)
    assert 0 < document["lower_bound_s"] <= document["time_per_sample_s"]
    assert 0 <= document["gap"] <= 1e-9
    assert 0 <= document["solver_s"] <= document["search_s"]
    assert document["devices_used"] == 8
    assert not without_value(document)
    assert "binding" not in document
    for stage in document["stages"]:
        assert set(stage) == {
            *("layers", "data_parallel", "tensor_parallel", "options", "num_recomputed"),
            *("time_per_sample_s", "memory_bytes", "microbatches_in_flight", "breakdown"),
        }
        assert set(stage["options"]) == {str(layer) for layer in stage["layers"]}
        parts = stage["breakdown"]
        assert set(parts) == {"compute_s", "edge_traffic_s", "gradient_sync_s"}
        assert sum(parts.values()) == pytest.approx(stage["time_per_sample_s"])
    placed = [layer for stage in document["stages"] for layer in stage["layers"]]
    assert sorted(placed) == list(range(8))


def test_the_request_holds_every_input(run):
    request = run(*PLAN, "--memory", "3GB", "--exclude-option", "y", "--json").document["request"]
    assert request["model"]["name"] == "small.json"
    assert len(request["model"]["sha256"]) == 64
    assert request["model"]["content"]["kind"] == "profile"
    assert request["setting"] == {
        "num_devices": 8,
        "memory_bytes": 3e9,
        "bandwidth_bytes_per_s": 25e9,
        "num_microbatches": 48,
    }
    assert request["space"]["excluded_options"] == ["y"]


def test_an_infeasible_plan_is_a_document_with_exit_code_3(run):
    done = run(*PLAN, "--memory", "2.5GB", "--no-recompute", "--json")
    assert done.code == 3
    document = done.document
    assert document["status"] == "infeasible"
    assert document["stages"] == []
    assert not without_value(document)
    assert {"time_per_sample_s", "gap", "devices_used"}.isdisjoint(document)
    assert document["binding"]["kind"] == "stage"
    assert document["binding"]["missing_bytes"] > 0
    changes = [fix["change"] for fix in document["relaxations"]]
    assert changes == ["memory", "devices", "recompute"]


@pytest.mark.slow
def test_a_change_under_which_nothing_fits_exits_with_3(run):
    run("plan", "gpt2", "--cluster", "dgx-h100", "--devices", "8", "--global-batch", "64",
        "--sequence", "1024", "--schedule", "1f1b", "-o", "plan.json")  # fmt: skip
    assert run("whatif", "plan.json", "--memory", "10MiB").code == 3


def test_no_equal_split_is_unknown_with_exit_code_5(run):
    done = run(*PLAN, "--planner", "equal", "--memory", "2.1GB", "--json")
    assert done.code == 5
    assert done.document["status"] == "unknown"


def test_an_estimate_that_overflows_is_a_full_document_with_exit_code_3(run):
    run(*PLAN, "-o", "plan.json")
    done = run("estimate", "small.json", "--plan", "plan.json", "--memory", "6GiB", "--json")
    assert done.code == 3
    document = done.document
    assert document["kind"] == "estimate"
    assert document["fits"] is False
    assert not without_value(document)
    (over,) = document["overflows"]
    assert over["stage"] == 0
    assert over["missing_bytes"] == document["stages"][0]["memory_bytes"] - 6 * 2**30
    assert len(document["stages"]) == document["num_stages"] == 2


def test_an_estimate_agrees_with_the_plan_it_prices(run):
    planned = run(*PLAN, "--memory", "3GB", "--json", "-o", "plan.json").document
    priced = run("estimate", "small.json", "--plan", "plan.json", "--json")
    assert priced.code == 0
    for key in ("time_per_sample_s", "devices_used", "num_stages", "stages"):
        assert priced.document[key] == planned[key]
    assert priced.document["request"]["setting"] == planned["request"]["setting"]


class TestTimeUnit:
    """Piper's format has no field for the unit of its times."""

    @pytest.fixture
    def in_ms(self, folder):
        """The small profile with its times in milliseconds."""
        profile = transformer()
        for node in profile["nodes"]:
            for configs in node["TMPCs"].values():
                for config in configs:
                    config["timePerSample"] *= 1000
        write_json(folder / "ms.json", profile)

    def test_milliseconds_give_the_plan_that_seconds_gave(self, run, in_ms):
        wanted = run(*PLAN, "--json").document
        found = run("plan", "ms.json", "--time-unit", "ms", "--json").document
        assert found["time_per_sample_s"] == pytest.approx(wanted["time_per_sample_s"], rel=1e-12)
        assert found["warnings"] == []
        (point,) = found["request"]["model"]["content"]["points"]
        assert point["provenance"]["source"] == "ms.json, its times in units of 0.001 s"

    def test_times_that_are_hardly_seconds_bring_a_warning(self, run, in_ms):
        for asked in (
            ("plan", "ms.json", "--microbatches", "480", "-o", "ms.plan"),
            ("estimate", "ms.json", "--plan", "ms.plan"),
        ):
            (warning,) = run(*asked, "--json").document["warnings"]
            assert "if they are milliseconds, use --time-unit ms" in warning
            assert "warning: a batch of 480 microbatches takes 4,800 s" in run(*asked).out
        assert run(*PLAN, "--json").document["warnings"] == []
        said = run("plan", "ms.json", "--microbatches", "480", "--time-unit", "s", "--json")
        assert said.document["warnings"] == []


def test_a_model_plan_is_one_document(run):
    done = run(*LLAMA, "--schedule", "1f1b,zb-v", "--cp", "1", "--json")
    assert done.code == 0
    document = done.document
    assert document["kind"] == "model-plan"
    assert document["objective"] == "step_time_s"
    assert document["status"] in ("gap", "optimal")
    assert 0 < document["lower_bound_s"] <= document["step_time_s"]
    assert not without_value(document)
    limit = document["memory_limit_bytes"]
    assert max(document["peak_memory_bytes_per_rank"]) <= limit
    layers = [layer for stage in document["stages"] for layer in stage["layers"]]
    assert layers == list(range(36))
    times = [document["step_time_s"], *(a["step_time_s"] for a in document["alternatives"])]
    assert times == sorted(times)
    assert {"model", "cluster", "workload", "space"} <= set(document["request"])


def test_degrees_are_uniform_unless_asked_otherwise(run):
    stages = run(*GPT2, "--json").document["stages"]
    assert len({(stage["data_parallel"], stage["tensor_parallel"]) for stage in stages}) == 1


@pytest.mark.parametrize("topic", ["models", "accelerators", "clusters"])
def test_every_catalog_entry_states_its_source(run, topic):
    items = run("catalog", topic, "--json").document["topics"][topic]
    assert items
    for item in items:
        assert item["name"]
        assert item["source"]


def test_diff_is_one_document(run):
    run(*PLAN, "-o", "a.json")
    run(*PLAN, "--devices", "4", "-o", "b.json")
    document = run("diff", "a.json", "b.json", "--json").document
    assert document["same_model"] is True
    assert document["time_ratio"] > 1
    assert document["request_changes"] == [{"key": "num_devices", "before": 8, "after": 4}]


def test_diff_states_numbers_in_the_units_of_their_keys(run):
    first = run(*PLAN, "--json", "-o", "a.json").document
    second = run(
        *PLAN, "--memory", "3GB", "--exclude-option", "y", "--json", "-o", "b.json"
    ).document
    document = run("diff", "a.json", "b.json", "--json").document
    assert document["request_changes"] == [
        {"key": "memory_bytes", "before": 16e9, "after": 3e9},
        {"key": "excluded_options", "before": [], "after": ["y"]},
    ]
    (time,) = (change for change in document["result_changes"] if change["key"].endswith("_s"))
    assert time["key"] == "time_per_sample_s"
    assert (time["before"], time["after"]) == tuple(d["time_per_sample_s"] for d in (first, second))
    for change in document["stage_changes"]:
        for side, stages in (("before", first["stages"]), ("after", second["stages"])):
            if side in change:
                stated = stages[change["stage"]]
                assert change[side] == {key: stated[key] for key in change[side]}
                assert {"layers", "time_per_sample_s", "memory_bytes"} < set(change[side])


def test_the_same_profile_under_another_name_is_the_same_model(run, folder):
    (folder / "copy.json").write_bytes((folder / "small.json").read_bytes())
    write_json(folder / "other.json", transformer(5))
    for name in ("small", "copy", "other"):
        run("plan", f"{name}.json", "-o", f"{name}.plan")
    assert run("diff", "small.plan", "copy.plan", "--json").document["same_model"] is True
    assert "different models" not in run("diff", "small.plan", "copy.plan").out
    assert run("diff", "small.plan", "other.plan", "--json").document["same_model"] is False
    assert "different models" in run("diff", "small.plan", "other.plan").out


@pytest.mark.slow
def test_diff_does_not_compare_a_step_with_a_microbatch(run):
    run(*PLAN, "-o", "a.json")
    run(*GPT2, "-o", "b.json")
    document = run("diff", "a.json", "b.json", "--json").document
    assert document["same_model"] is False
    assert "time_ratio" not in document


def test_times_of_zero_can_be_planned_and_compared(run, folder):
    profile = transformer(devices=1, memory_bytes=1e12)
    run(*PLAN, "-o", "a.json")
    for node in profile["nodes"]:
        for configs in node["TMPCs"].values():
            for config in configs:
                config["timePerSample"] = 0
    write_json(folder / "free.json", profile)
    done = run("plan", "free.json", "--json", "-o", "b.json")
    assert done.document["time_per_sample_s"] == 0
    assert done.document["gap"] == 0
    assert done.document["status"] == "optimal"
    assert run("explain", "b.json").code == 0
    assert run("diff", "a.json", "b.json").out.endswith("the second takes no time at all\n")
    assert "time_ratio" not in run("diff", "b.json", "a.json", "--json").document


def test_the_written_file_is_the_printed_document(run, folder):
    done = run(*PLAN, "--json", "-o", "plan.json")
    assert (folder / "plan.json").read_text(encoding="utf-8") == done.out


def test_explain_prints_the_document_it_read(run):
    planned = run(*PLAN, "--json", "-o", "plan.json")
    assert run("explain", "plan.json", "--json").out == planned.out


def test_the_same_question_has_the_same_answer(run):
    def answer():
        document = run(*PLAN, "--memory", "3GB", "--compare", "--json").document
        return {k: v for k, v in document.items() if k not in ("solver_s", "search_s")}

    assert answer() == answer()


def test_a_profile_with_several_points_needs_to_be_told_which(run, folder):
    content = run(*PLAN, "--json").document["request"]["model"]["content"]
    content["points"].append(copy.deepcopy(content["points"][0]))
    for option in content["points"][1]["classes"][1]["options"]:
        option["duration_s"] *= 2
    write_json(folder / "two.json", content)
    undecided = run("plan", "two.json")
    assert undecided.code == 2
    assert undecided.err == "error: point: must say which of the 2 points (0 to 1)\n"
    first, second = (run("plan", "two.json", "--point", p, "--json").document for p in "01")
    assert first["time_per_sample_s"] < second["time_per_sample_s"]
    assert len(second["request"]["model"]["content"]["points"]) == 1
    assert run("plan", "two.json", "--point", "2").err == (
        "error: point: must be from 0 to 1, got 2\n"
    )


def test_an_excluded_option_is_not_used(run):
    tight = (*PLAN, "--memory", "3GB", "--json")
    assert "activation recomp" in json.dumps(run(*tight).document["stages"])
    excluded = run(*tight, "--exclude-option", "activation recomp")
    assert "activation recomp" not in json.dumps(excluded.document["stages"])
    none_left = run(*tight, "--exclude-option", "activation recomp", "--exclude-option", "vanilla")
    assert none_left.code == 3
    assert none_left.document["binding"]["kind"] == "devices"
    assert {fix["change"] for fix in none_left.document["relaxations"]} == {"exclude-option"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "question",
    [
        (*PLAN, "--memory", "2.5GB", "--no-recompute"),
        (*PLAN, "--memory", "500MB"),
        pytest.param(
            ("plan", "llama3-70b", "--cluster", "dgx-h100", *LLAMA[6:], "--no-recompute"),
            marks=pytest.mark.papers,
        ),
    ],
)
def test_the_sizes_that_are_printed_as_enough_are(run, question):
    for fix in run(*question, "--json").document["relaxations"]:
        if fix["change"] == "memory":
            size = "".join(fix["description"].split()[:2])
            assert run(*question, "--memory", size).code == 0
        if fix["change"] == "devices":
            assert run(*question, "--devices", fix["description"].split()[0]).code == 0
        if fix["change"] == "recompute":
            assert run(*[word for word in question if word != "--no-recompute"]).code == 0
