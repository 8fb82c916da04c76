"""A bound that a family in V holds down ends the work on loops, and proves no less for it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from exhaustive import LLAMA, asked
from trainwright.execution import Budget
from trainwright.planning.question.question import Span
from trainwright.planning.search import search

ONE = Span.only(1)


def on_four_ranks(blocks, schedules, *, memory_gib, batch):
    return asked(
        replace(LLAMA, num_layers=blocks),
        memory_gib=memory_gib,
        batch=batch,
        schedules=schedules,
        zero_stages=(1,),
        tensor=ONE,
        context=ONE,
        microbatch_size=ONE,
        pipeline=Span.only(4),
    )


def proved_s(question, monkeypatch, *, held):
    """The bound, and how often loops were bounded by all their ranks together."""
    number, find = 0, search.SplitAnswers.find

    def counted(self, proof, candidate, *, limit_s):
        nonlocal number
        number += proof in search._OF_ALL_RANKS
        return find(self, proof, candidate, limit_s=limit_s)

    with monkeypatch.context() as patched:
        patched.setattr(search.SplitAnswers, "find", counted)
        patched.setattr(search, "_held_in_v", held)
        found = search.plan_model(question, Budget(), num_alternatives=0)
    return found.lower_bound_s, number


@pytest.mark.parametrize(
    "question",
    [
        on_four_ranks(14, ("interleaved",), memory_gib=80, batch=12),
        on_four_ranks(13, ("interleaved", "zb-v"), memory_gib=60, batch=8),
        on_four_ranks(22, ("interleaved", "depth-first"), memory_gib=80, batch=8),
        on_four_ranks(13, ("depth-first", "v-half"), memory_gib=40, batch=8),
    ],
    ids=["loop", "loop and v", "loops", "tight"],
)
def test_as_much_is_proved_as_without_looking_at_v_first(question, monkeypatch):
    expected_s, _ = proved_s(question, monkeypatch, held=lambda _: math.inf)
    bound_s, _ = proved_s(question, monkeypatch, held=search._held_in_v)
    assert bound_s >= expected_s * (1 - 1e-9)
    for share in (0.9, 0.99):  # of one that is known too low
        bound_s, number = proved_s(question, monkeypatch, held=lambda _, s=share: s * expected_s)
        assert number > 0
        assert bound_s >= expected_s * (1 - 1e-9)


def test_what_is_held_in_v_is_no_lower_than_the_bound(monkeypatch):
    question = on_four_ranks(13, ("interleaved", "zb-v"), memory_gib=60, batch=8)
    seen = []

    def told(searched):
        seen.append(held(searched))
        return seen[-1]

    held = search._held_in_v
    bound_s, _ = proved_s(question, monkeypatch, held=told)
    assert bound_s * (1 - 1e-9) <= seen[0] < math.inf
