"""A plan made with fitted constants says so."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

import trainwright
from trainwright.commands.main import main
from trainwright.documents.plan_view import unfitted_line
from trainwright.documents.printing import render
from trainwright.execution import Budget

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
