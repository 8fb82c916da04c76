"""A plan that fills its devices to the last byte says so, and how to leave room."""

from __future__ import annotations

import re

import trainwright

QUESTION = {"cluster": "dgx-h100", "devices": 8, "global_batch": 64, "sequence": 8192}


def test_a_full_device_is_warned_of_and_the_advice_leaves_room():
    full = trainwright.plan("llama3-8b", tp=1, zero_stage=1, micro_batch=2, **QUESTION).document
    (warning,) = [text for text in full.warnings if text.startswith("memory:")]
    advised = re.search(r"--memory ([\d.]+GiB)", warning)
    assert advised is not None
    lean = trainwright.plan(
        "llama3-8b", tp=1, zero_stage=1, micro_batch=2, memory=advised[1], **QUESTION
    ).document
    peak = max(lean.peak_memory_bytes_per_rank)
    assert 1.05 * (peak + 64 * 2**20) <= full.memory_limit_bytes
    assert not any(text.startswith("memory:") for text in lean.warnings)


def test_a_plan_with_room_to_spare_is_not():
    roomy = trainwright.plan("gpt2", **{**QUESTION, "sequence": 1024}, micro_batch=1).document
    assert not any(text.startswith("memory:") for text in roomy.warnings)
