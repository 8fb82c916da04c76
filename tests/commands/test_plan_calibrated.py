"""A plan made with fitted constants says so."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

import trainwright
from trainwright.cluster.calibration import Calibration, Constant
from trainwright.commands.main import main
from trainwright.documents.open import recheck
from trainwright.documents.plan_view import unfitted_line
from trainwright.documents.printing import render
from trainwright.execution import Budget
from trainwright.formats import catalog
from trainwright.formats.calibration_toml import built_in_calibrations, write_calibrations
from trainwright.pages.command import command_of

JOB = {
    "cluster": "dgx-h100",
    "nodes": 1,
    "global_batch": 32,
    "sequence": 1024,
    "schedule": "1f1b",
    "cp": 1,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calibration", "origin", "said"),
    [
        ("megatron-core", "fitted", "90%, fitted estimate)"),
        ("none", "assumed", "90%, unfitted estimate)"),
    ],
)
def test_the_headline_says_whether_times_rest_on_fitted_constants(calibration, origin, said):
    document = trainwright.plan("gpt2", **JOB, calibration=calibration).document
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(render(document))
    shown = console.export_text()
    assert said in shown
    line = "unfitted: 99% of 398 public runs took longer than such an estimate, 1.31x in the median"
    assert (line in shown) is (calibration == "none")
    assert document.assumptions["times"].startswith(f"{origin}: roofline of H100-80GB-SXM")
    assert document.lower_bound_s <= document.step_time_s


def test_every_door_expects_what_runs_reached_where_nobody_names_software(capsys):
    asked = {"devices": 1, "global_batch": 4, "sequence": 512}
    known = {"cluster": "dgx-h100", "schedule": "1f1b"}
    called = trainwright.plan("gpt2", **asked, **known).document
    typical = trainwright.plan("gpt2", **asked, **known, software="typical").document
    assert called.step_time_s == typical.step_time_s
    roofline = trainwright.plan("gpt2", **asked, **known, calibration="none").document
    assert roofline.step_time_s < called.step_time_s
    options = [f"--{name.replace('_', '-')}={each}" for name, each in {**asked, **known}.items()]
    with pytest.raises(SystemExit):
        main(["plan", "gpt2", *options, "--json"])
    assert json.loads(capsys.readouterr().out)["step_time_s"] == called.step_time_s


def test_public_runs_say_nothing_of_a_chip_that_was_never_built():
    times = "assumed: operators tiled onto a chip"
    assert list(unfitted_line({"times": times})) == []
    assert list(unfitted_line({})) == []


@pytest.mark.serve
def test_the_live_page_expects_what_python_does():
    from trainwright.commands.live import Question, answer

    asked = {"devices": 1, "global_batch": 4, "sequence": 512}
    called = trainwright.plan("gpt2", cluster="dgx-h100", schedule="1f1b", **asked).document
    shown = Question(model="gpt2", cluster="dgx-h100", options={"schedule": "1f1b"}, **asked)
    assert answer(shown, Budget()).document.step_time_s == called.step_time_s


WIDE = {"cluster": "dgx-h100", "nodes": 1, "global_batch": 16, "sequence": 4096, "tp": 8}


def priced(**options):
    return trainwright.estimate("llama2-7b", **{**WIDE, **options}).document


@pytest.fixture(scope="module")
def own_logs(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own.toml"
    (line,) = (
        each
        for each in built_in_calibrations()
        if (each.accelerator, each.line) == ("H100-80GB-SXM", "megatron-core")
    )
    write_calibrations(path, [replace(line, line="ours")])
    return str(path)


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({}, False),
        ({"software": "nemo"}, False),
        ({"software": "megatron-core"}, False),
        ({"calibration": "megatron-core"}, False),
        ({"software": "torchtitan"}, True),  # whose runs say which of them split their products
        ({"calibration": "none"}, True),
        ({"calibration": "own"}, True),
    ],
)
def test_what_efficiencies_hold_of_an_overlap_is_not_taken_off_again(options, counts, own_logs):
    options = {name: own_logs if value == "own" else value for name, value in options.items()}
    plain, hiding = priced(**options), priced(**options, overlap={"tensor": 0.9})
    said = [line for line in hiding.warnings if line.startswith("overlap: tensor=0.9")]
    assert hiding.request.configuration.overlap.tensor == 0.9  # as exports write it
    if counts:
        assert hiding.step_time_s < 0.99 * plain.step_time_s
        assert not said
    else:
        assert hiding.step_time_s == plain.step_time_s
        assert len(said) == 1
        assert "--calibration none" in said[0]
    assert recheck(hiding).step_time_s == hiding.step_time_s
    assert "--overlap tensor=0.9" in command_of(hiding).text


def test_overlap_that_runs_tell_apart_counts_as_it_is_asked():
    usual = priced(tp=2)
    exposed = priced(tp=2, overlap={"gradients": 0.0, "parameters": 0.0})
    assert exposed.step_time_s > usual.step_time_s
    spread = {"ep": 16, "nodes": 2, "global_batch": 64, "sequence": 4096, "cluster": "dgx-h100"}
    tokens, hidden = (
        trainwright.estimate("deepseek-v2-lite", **spread, overlap={"experts": share}).document
        for share in (0.0, 0.9)
    )
    assert hidden.step_time_s < tokens.step_time_s
    assert not any(line.startswith("overlap:") for line in hidden.warnings)


def test_a_plan_takes_no_overlap_that_its_efficiencies_hold():
    asked = {**WIDE, "schedule": "1f1b", "zero": 1, "micro_batch": 1, "recompute": "none"}
    plain = trainwright.plan("llama2-7b", **asked).document
    hiding = trainwright.plan("llama2-7b", **asked, overlap={"tensor": 0.9}).document
    assert hiding.step_time_s == plain.step_time_s
    assert hiding.lower_bound_s == plain.lower_bound_s
    assert any(line.startswith("overlap: tensor=0.9") for line in hiding.warnings)
    assert "--overlap tensor=0.9" in command_of(hiding).text


def fitted(upon=None, **constants):
    """A calibration of H100s by three runs with these constants."""
    return Calibration(
        accelerator="H100-80GB-SXM",
        line="own",
        constants=tuple(
            Constant(name=name, value=value, low=0.9 * value, high=value)
            for name, value in constants.items()
        ),
        low_ratio=0.9,
        high_ratio=1.1,
        source="own logs",
        rows=3,
        upon=upon,
    )


CONSTANTS = {
    "launch_overhead_s": 1e-3,
    "host_pass_s": 0.01,
    "step_overhead_s": 1.0,
    "scale_up_efficiency": 0.01,
    "scale_up_latency_s": 1e-3,
    "gemm_max": 0.1,
}


@pytest.mark.parametrize("upon", [None, "megatron"])
@pytest.mark.parametrize("name", CONSTANTS)
def test_a_cluster_with_fitted_constants_is_priced_as_their_file_prices_it(name, upon, tmp_path):
    asked = {"global_batch": 8, "sequence": 512, "tp": 2, "dp": 4}
    cluster = catalog.cluster("dgx-h100").with_nodes(1)
    made = fitted(upon, **{name: CONSTANTS[name]})
    write_calibrations(tmp_path / "own.toml", (made,))
    by_file = trainwright.estimate(
        "gpt2", cluster=cluster, calibration=tmp_path / "own.toml", **asked
    )
    applied = trainwright.estimate("gpt2", cluster=made.applied(cluster), **asked)
    assert applied.document.step_time_s == by_file.document.step_time_s
    without = trainwright.estimate("gpt2", cluster=cluster, **asked).document.step_time_s
    assert applied.document.step_time_s != pytest.approx(without, rel=1e-3)
    ranges = [(d.step_time_low_s, d.step_time_high_s) for d in (applied.document, by_file.document)]
    assert ranges[0] == ranges[1]


def test_what_a_description_says_of_the_host_stays_under_pooled_efficiencies():
    asked = {"global_batch": 8, "sequence": 512, "dp": 8}
    cluster = catalog.cluster("dgx-h100").with_nodes(1)
    (pool,) = cluster.pools
    steps = {}
    for name, value in (("launch_overhead_s", 1e-3), ("step_overhead_s", 1.0)):
        device = replace(pool.accelerator, **{name: value})
        own = replace(cluster, pools=(replace(pool, accelerator=device),))
        steps[name] = trainwright.estimate("gpt2", cluster=own, **asked).document.step_time_s
    usual_s = trainwright.estimate("gpt2", cluster=cluster, **asked).document.step_time_s
    assert usual_s < 0.1
    assert steps["launch_overhead_s"] > usual_s + 0.1
    assert 1.0 < steps["step_overhead_s"] < 1.0 + usual_s
