"""Plans leave free what `estimate` wants free, and every later command keeps to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import trainwright
from trainwright.errors import InvalidInput
from trainwright.options.question import call_of
from trainwright.pages.command import command_of
from trainwright.plans.configuration import NO_OVERHEADS, USUAL_OVERHEADS

QUESTION = {"cluster": "dgx-h100", "devices": 8, "global_batch": 64, "sequence": 8192, "top": 0}
QUESTION["framework"] = "any"
TIGHT = {"tp": 1, "zero": 1, "micro_batch": 2, "pp": 1, "cp": 1}


@pytest.fixture(scope="module")
def usual():
    return trainwright.plan("llama3-8b", **TIGHT, **QUESTION).document


def test_by_default_a_plan_leaves_what_an_estimate_wants_free(usual):
    assert usual.request.overheads == USUAL_OVERHEADS
    peak = max(usual.peak_memory_bytes_per_rank)
    assert USUAL_OVERHEADS.needed_bytes(peak) <= usual.memory_limit_bytes
    filled = trainwright.plan(
        "llama3-8b", workspace="0", fragmentation=0, fit_probability=0, **TIGHT, **QUESTION
    ).document
    assert max(filled.peak_memory_bytes_per_rank) > peak
    assert filled.step_time_s < usual.step_time_s


def test_an_estimate_of_the_plan_has_its_figures_and_fits(usual):
    plain = trainwright.plan(
        "llama3-8b", **TIGHT, **QUESTION, recompute="full", reserve="1GiB"
    ).document
    run = trainwright.estimate(
        "llama3-8b",
        cluster="dgx-h100",
        dp=8,
        zero=1,
        micro_batch=2,
        recompute="full",
        reserve="1GiB",
        global_batch=64,
        sequence=8192,
    ).document
    assert run.fits
    assert run.peak_memory_bytes == max(plain.peak_memory_bytes_per_rank)
    assert run.step_time_s == plain.step_time_s
    difference = trainwright.diff(plain, run).document
    assert difference.request_changes == difference.result_changes == ()


@pytest.mark.slow
def test_what_is_kept_is_in_the_command_and_in_the_differences(usual):
    kept = trainwright.plan(
        "llama3-8b", reserve="8GiB", fragmentation=0.1, **TIGHT, **QUESTION
    ).document
    words = command_of(kept).text
    assert "--reserve 8GiB --fragmentation 0.1" in words
    assert "--workspace" not in words
    assert "--fragmentation" not in command_of(usual).text
    changed = {change.key for change in trainwright.diff(usual, kept).document.request_changes}
    assert changed == {"reserve_bytes", "fragmentation"}


def test_another_question_about_the_plan_keeps_it_too(usual):
    asked = trainwright.what_if(usual, flops_scale=2.0).document
    assert asked.after.request.overheads == USUAL_OVERHEADS
    peak = max(asked.after.peak_memory_bytes_per_rank)
    assert USUAL_OVERHEADS.needed_bytes(peak) <= asked.after.memory_limit_bytes


def test_a_document_from_before_is_read_as_it_was_made(usual):
    old = replace(usual.request, overheads=None)
    assert call_of(old).question.overheads == NO_OVERHEADS


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ({"fragmentation": -0.1}, "fragmentation: must be a share from 0 to below 1, got -0.1"),
        ({"fragmentation": 30}, "fragmentation: must be a share from 0 to below 1, got 30"),
        ({"reserve": "90GiB"}, "reserve: must leave something of the 77.21 GiB usable"),
        ({"reserve": -1.0}, "reserve: must be finite and >= 0, got -1.0"),
        ({"reserve": "-3"}, "reserve: must be >= 0, as 2GiB, got"),
        ({"workspace": "85GiB"}, "workspace: must leave something of the 77.21 GiB usable"),
        ({"workspace": "some"}, "workspace: must be"),
    ],
)
def test_what_cannot_be_kept_is_refused(option, problem):
    with pytest.raises(InvalidInput, match=problem):
        trainwright.plan("llama3-8b", **option, **QUESTION)
