"""Schedules run for real on PyTorch: the right gradients, and files broken on purpose caught."""

from __future__ import annotations

import pytest

import trainwright
from trainwright.errors import UnsupportedFeature
from trainwright.formats.schedule_json import ScheduleSpec
from trainwright.lab.verify_runs import fold

UNEVEN = ScheduleSpec(
    forward_s=(1.0, 2.0, 1.5, 1.0, 3.0, 1.0), input_grad_s=(1.0,), weight_grad_s=(0.5,)
)
THREE_AND_ONE = ScheduleSpec(
    forward_s=(1.0,), input_grad_s=(1.0,), weight_grad_s=(1.0,), rank_of_stage=(0, 0, 1, 0)
)
SEARCHED = {"search": True, "evaluations": 2000}


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        {"family": "interleaved", "ranks": 2},
        *(
            pytest.param({"family": name, "ranks": 2}, marks=pytest.mark.papers, id=name)
            for name in (
                "v-half",
                "v-min",
                "zb-v",
                "dualpipe-v",
            )  # with all others in one set of processes elsewhere
        ),
        {"spec": UNEVEN, "placement": "v", "ranks": 3, "memory_limit": 4, **SEARCHED},
        pytest.param(
            {"spec": THREE_AND_ONE, **SEARCHED}, marks=pytest.mark.papers, id="three and one"
        ),  # `verify` runs one
        {"family": "zb-h1", "ranks": 1},
    ],
    ids=lambda asked: asked.get("family") or f"searched on {asked.get('ranks', 2)}",
)
def test_gradients_are_those_of_the_model_in_one_piece(asked):
    report = trainwright.schedule(microbatches=4, **asked).verified()
    found = report.document.verification
    assert found.passed, found
    assert [run.form for run in found.runs] == ["compute_only", "compute_comms"]
    assert len(found.controls) == 2
    assert found.controls_left_out is None
    assert "verify: PASS" in report.explain()
    assert max(run.max_error for run in found.runs) <= 1e-6


@pytest.mark.torch
@pytest.mark.slow
def test_one_microbatch_leaves_nothing_to_break_and_that_is_said():
    report = trainwright.schedule(family="1f1b", ranks=2, microbatches=1).verified()
    found = report.document.verification
    assert (found.passed, found.controls) == (True, ())
    assert "one microbatch leaves no sum" in found.controls_left_out
    assert f"nothing broken on purpose was run: {found.controls_left_out}" in report.explain()


@pytest.mark.torch
@pytest.mark.slow
def test_a_family_on_many_ranks_is_folded_to_four():
    report = trainwright.schedule(family="v-half", ranks=8, microbatches=10).verified()
    found = report.document.verification
    assert found.passed
    assert found.folded_from == "8 ranks, 10 microbatches"
    assert {run.num_ranks for run in found.runs} == {4}
    assert {run.num_microbatches for run in found.runs} == {8}


@pytest.mark.parametrize("family", ["1f1b", "interleaved", "v-min", "zb-v", "gis-h", "dualpipe-v"])
@pytest.mark.parametrize("microbatches", [20, 30])
def test_a_folded_schedule_is_of_the_same_family(family, microbatches):
    full = trainwright.schedule(family=family, ranks=10, microbatches=microbatches)
    folded = fold(full.document, full.timeline, ranks=4).schedule
    again = trainwright.schedule(family=family, ranks=4, microbatches=folded.num_microbatches)
    assert folded == again.timeline.schedule


def test_a_limit_shrinks_with_the_ranks():
    full = trainwright.schedule(family="adaptive-v", ranks=8, microbatches=16, memory_limit=12)
    folded = fold(full.document, full.timeline, ranks=4).schedule
    assert max(folded.peak_activations) <= 6


def test_given_orders_cannot_be_folded(tmp_path):
    made = trainwright.schedule(family="1f1b", ranks=5, microbatches=5)
    made.save_orders(tmp_path / "orders.json")
    given = trainwright.schedule(simulate=tmp_path / "orders.json")
    with pytest.raises(UnsupportedFeature, match="cannot be rebuilt for fewer"):
        given.verified()


@pytest.mark.torch
@pytest.mark.papers
def test_a_searched_schedule_on_many_ranks_is_searched_again_on_four():
    found = trainwright.schedule(search=True, placement="v", ranks=5, microbatches=4, evaluations=9)
    verified = found.verified().document.verification
    assert verified.passed
    assert verified.folded_from == "5 ranks, 4 microbatches, searched again"
    assert {run.num_ranks for run in verified.runs} == {4}
