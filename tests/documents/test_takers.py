"""Which commands take which documents: what is meant by one about several plans, and refusals."""

from __future__ import annotations

import json

import pytest

import reported
import trainwright
from trainwright.commands.report import report
from trainwright.documents.explanation import run_meant
from trainwright.documents.open import plan_meant
from trainwright.documents.registry import (
    COMPARABLE,
    EXPLAINED,
    KINDS,
    OF_PLANS,
    REPORTED,
    VERIFIED,
)
from trainwright.errors import InvalidInput, UnsupportedFeature

TAKERS = {
    "explain": (trainwright.explain, EXPLAINED),
    "diff": (lambda path: trainwright.diff(path, path), COMPARABLE),
    "verify": (lambda path: trainwright.verify(path, level=0), VERIFIED),
    "improve": (trainwright.improve, EXPLAINED),
    "whatif": (
        lambda path: trainwright.what_if(path, devices=2),
        ("model-plan", "model-estimate", *OF_PLANS),
    ),
    "export": (lambda path: trainwright.export(path, to="megatron"), EXPLAINED),
    "report": (report, REPORTED),
}


SOME_KINDS = [
    pytest.param(kind, marks=() if at % 6 == 0 else pytest.mark.slow)
    for at, kind in enumerate(KINDS)
]


@pytest.mark.parametrize("kind", SOME_KINDS)
@pytest.mark.parametrize("command", TAKERS)
def test_a_kind_that_a_command_does_not_take_is_refused_with_where_it_goes(command, kind, tmp_path):
    take, kinds = TAKERS[command]
    path = tmp_path / "document.json"
    path.write_text(json.dumps({"kind": kind, "format_version": 1}))
    with pytest.raises((InvalidInput, UnsupportedFeature)) as refused:
        take(path)
    said = str(refused.value)
    if kind in kinds:  # an empty one is refused for what it lacks
        assert "goes to" not in said
        return
    told = (
        f'"{kind}" goes to: trainwright ',
        f'no command reads "{kind}"',
        "plan the profile again",
    )
    is_told = any(each in said for each in told)
    assert is_told or f'"{kind}" has no page; put' in said


@pytest.mark.slow
@pytest.mark.parametrize("make", [reported.what_if, reported.model_sweep, reported.improvement])
def test_a_document_about_several_plans_stands_for_one_in_every_command(make):
    document = make()
    plan = run_meant(document)
    assert plan.kind in ("model-plan", "model-estimate")
    found = trainwright.verify(document, level=1).document
    assert found.passed
    assert found.subject.kind == document.kind
    assert found.subject.num_ranks == trainwright.verify(plan, level=1).document.subject.num_ranks
    if document.kind in OF_PLANS:
        same = trainwright.diff(document, plan).document
        assert not same.result_changes
        assert trainwright.improve(document).document.run.step_time_s == plan.step_time_s
        before = trainwright.what_if(document, memory="70GiB").document.before
        assert before == plan


def test_an_explanation_stands_for_its_plan():
    plan = reported.small_plan()
    found = trainwright.reasons(plan).document
    assert plan_meant(found) == plan
    assert trainwright.verify(found, level=0).passed
    assert not trainwright.diff(found, plan).document.result_changes


def test_a_fit_is_made_again_and_has_nothing_to_run():
    found = trainwright.fit("gpt2", gpu="RTX-4090").document
    checks = trainwright.verify(found).document.checks
    assert [(check.name, str(check.outcome)) for check in checks] == [
        ("document", "pass"),
        ("orders", "left out"),
    ]
    assert "verify an estimate of one of its runs" in checks[1].detail
