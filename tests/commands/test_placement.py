"""`plan` on a placement problem: keys, exit codes, tables, documents."""

from __future__ import annotations

import json

import pytest

from small_placements import chain, chain_file


@pytest.fixture
def placed(run, folder):
    """The document of a placement, with these options."""

    def call(*options, code=0, **changes):
        chain_file(folder, **changes)
        outcome = run("plan", "chain.json", *options, "--json")
        assert outcome.code == code, outcome.err
        return outcome.document

    return call


def test_the_document_has_the_keys_of_a_placement(placed):
    found = placed("--cost-model", "phaze-compat")
    assert found["kind"] == "placement"
    assert found["status"] == "optimal"
    assert found["gap"] == 0
    assert {"time_per_batch_s", "data_parallel", "tensor_parallel", "solver_s"} <= found.keys()
    assert [v for stage in found["stages"] for v in stage["layers"]] == [0, 1, 2, 3, 4, 5]
    assert found["fixed_strategy"]["feasible"] is True
    assert found["fixed_strategy"]["slowdown"] >= 1
    assert found["request"]["cost_model"] == "phaze-compat"


def test_the_cost_models_differ_and_ours_is_the_default(placed):
    ours, published = placed(), placed("--cost-model", "phaze-compat")
    assert ours["request"]["cost_model"] == "native"
    assert ours["time_per_batch_s"] != published["time_per_batch_s"]
    assert placed("--cost-model", "native")["time_per_batch_s"] == ours["time_per_batch_s"]


def test_restrictions_never_make_a_placement_faster(placed):
    free = placed()["time_per_batch_s"]
    single = placed("--no-data-parallel")
    assert single["data_parallel"] == 1
    narrow = placed("--no-tensor-parallel")
    assert narrow["tensor_parallel"] == 1
    assert min(single["time_per_batch_s"], narrow["time_per_batch_s"]) >= free


def test_options_replace_what_the_file_says_of_the_machine(placed):
    found = placed("--devices", "2", "--memory", "2GB", "--bandwidth", "1GB/s")
    assert found["devices_used"] <= 2
    assert found["request"]["setting"]["memory_bytes"] == 2e9


def test_a_strategy_that_does_not_fit_loses_nothing_else(placed):
    found = placed(maxMemoryPerDevice=0.45e9)
    assert found["status"] == "optimal"
    assert found["fixed_strategy"]["feasible"] is False
    assert found["fixed_strategy"]["reason"] == "out of memory"
    assert "time_per_batch_s" not in found["fixed_strategy"]


def test_infeasible_names_the_missing_bytes_and_exits_3(placed):
    found = placed(code=3, maxMemoryPerDevice=1e8)
    assert found["status"] == "infeasible"
    assert found["binding"]["missing_bytes"] > 0
    (memory, *_) = found["relaxations"]
    assert memory["change"] == "memory"
    again = placed("--memory", str(memory["value"]), maxMemoryPerDevice=1e8)
    assert again["status"] == "optimal"


def test_an_unknown_cost_model_is_refused(run, folder):
    chain_file(folder)
    outcome = run("plan", "chain.json", "--cost-model", "phase")
    assert outcome.code == 2
    assert "cost-model: must be one of native, phaze-compat, phaze-general-dag" in outcome.err


def test_a_graph_that_branches_is_refused_in_compat_with_a_way_out(run, folder):
    value = chain()
    for edges in value["edges"].values():
        del edges[2]
    chain_file(folder, edges=value["edges"])
    outcome = run("plan", "chain.json", "--cost-model", "phaze-compat")
    assert outcome.code == 2
    assert "branching" in outcome.err
    assert "phaze-general-dag" in outcome.err
    assert run("plan", "chain.json").code == 0


@pytest.mark.parametrize(
    ("options", "whose"),
    [
        (("--compare",), "compare: must be given for a profile only"),
        (("--point", "0"), "point: must be given for a profile only"),
        (("--block-layer", "x"), "block-layer: must be given for a profile only"),
        (("--exclude-option", "x"), "exclude-option: must be given for a profile only"),
        (("--sequence", "5"), "sequence: must be given for a model only"),
        (("--recompute", "full"), "recompute: must be given for a model only"),
        (("--time-unit", "ms"), "time-unit: must be given for a Piper profile only"),
    ],
)
def test_options_that_mean_nothing_here_are_refused(run, folder, options, whose):
    chain_file(folder)
    outcome = run("plan", "chain.json", *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert whose in outcome.err


def test_other_commands_refuse_a_placement_problem(run, folder):
    chain_file(folder)
    outcome = run("estimate", "chain.json")
    assert outcome.code == 2
    assert "is a phaze file, which this command does not read" in outcome.err


def test_documents_are_explained_and_compared(run, folder):
    chain_file(folder)
    run("plan", "chain.json", "-o", "a.json")
    run("plan", "chain.json", "--cost-model", "phaze-compat", "-o", "b.json")
    assert run("explain", "a.json").out == run("plan", "chain.json").out
    shown = run("diff", "a.json", "b.json")
    assert shown.code == 0
    assert "time per batch" in shown.out
    run("plan", "small.json", "-o", "c.json")
    assert run("diff", "a.json", "c.json").code == 2


@pytest.mark.parametrize(
    "place",
    [
        ("time_per_batch_s",),
        ("devices_used",),
        ("stages", 0, "memory_bytes"),
        ("stages", 0, "forward_s"),
        ("gradient_sync_s",),
        ("rounds",),
        ("lower_bound_s",),
        ("fixed_strategy", "peak_memory_bytes"),
    ],
)
def test_an_edited_figure_is_refused_by_name(run, folder, place):
    chain_file(folder)
    run("plan", "chain.json", "-o", "a.json")
    document = json.loads((folder / "a.json").read_text())
    at = document
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = at[place[-1]] * 2
    (folder / "a.json").write_text(json.dumps(document))
    outcome = run("explain", "a.json")
    assert outcome.code == 2
    assert str(place[-1]) in outcome.err


def test_tables(run, folder, snapshot):
    chain_file(folder)
    assert run("plan", "chain.json").report == snapshot
    assert run("plan", "chain.json", "--memory", "100MB").report == snapshot
