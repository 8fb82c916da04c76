"""What `verify` found, on the page of what it is about."""

from __future__ import annotations

from dataclasses import replace

import pytest

import reported
import trainwright
from html_page import text_of
from trainwright.documents.explanation import ModelExplanation
from trainwright.documents.verification import Check, GradientCheck, Outcome
from trainwright.errors import InvalidInput


def shown(found) -> str:
    return text_of(trainwright.report(reported.model_plan(), found).html)


def test_a_plan_beside_its_verification_shows_the_verdict_and_every_check():
    found = reported.verification()
    page = shown(found)
    assert "Does it train the same model?" in page
    assert "verification passed 5 checks, level 0: its orders are legal" in page
    assert "not run" not in page
    for check in found.checks:
        assert check.detail in page
    for control in found.controls:
        assert control.said in page


def test_a_failure_is_named_in_the_summary():
    found = reported.verification()
    wrong = Check(
        level=0, name="transfers", outcome=Outcome.FAIL, detail="", where=("orders[1][3]: off",)
    )
    page = shown(replace(found, passed=False, checks=(*found.checks[:3], wrong)))
    assert "verification failed level 0, transfers" in page
    assert "orders[1][3]: off" in page


def test_a_real_run_says_on_how_many_processes():
    found = reported.verification()
    run = GradientCheck(
        passed=True,
        form="compute_only",
        num_ranks=2,
        num_stages=2,
        num_microbatches=8,
        num_steps=2,
        num_replicas=2,
        loss_limit=1e-5,
        torch_version="2.13.0",
    )
    check = Check(level=2, name="run", outcome=Outcome.PASS, detail="gloo")
    page = shown(replace(found, level=2, checks=(*found.checks, check), runs=(run,)))
    assert "level 2: gradients of a real run on 4 processes" in page


def test_an_interrupted_one_is_no_verdict():
    page = shown(replace(reported.verification(), passed=False, interrupted=True))
    assert "verification interrupted" in page


def test_an_explanation_of_a_plan_shows_what_was_verified_of_the_plan():
    explanation = ModelExplanation(
        busiest_rank=0,
        fullest_rank=0,
        free_bytes=1.0,
        binding=None,
        time_by_part_s={"compute": 1.0},
        memory_by_class_bytes={"weights": 1.0},
        plan=reported.model_plan(),
    )
    page = trainwright.report(explanation, reported.verification())
    assert "verification passed" in text_of(page.html)


def test_files_of_both_are_taken_and_a_verification_of_another_document_is_refused(tmp_path):
    trainwright.verify(reported.schedule(), level=0).save(tmp_path / "verified.json")
    page = trainwright.report(reported.schedule(), tmp_path / "verified.json")
    assert "its orders are legal" in text_of(page.html)
    with pytest.raises(InvalidInput, match=r"verification: is of schedule, sha256 .*; put that"):
        trainwright.report(reported.model_plan(), tmp_path / "verified.json")
    with pytest.raises(InvalidInput, match="verification: is of schedule"):
        trainwright.report(tmp_path / "verified.json")
