"""What a table says is proved about a step."""

from __future__ import annotations

from dataclasses import replace

import reported
from trainwright.documents.plan_view import proof
from trainwright.plans.plan import SpanRecord
from trainwright.plans.status import Status


def planned(framework, schedules, **space):
    found = replace(reported.model_plan(), status=Status.OPTIMAL, gap=0.0)
    space = {"framework": framework, "schedules": schedules, "state_copies": ONE, **space}
    asked = replace(found.request.space, **space)
    return replace(found, request=replace(found.request, space=asked))


ONE = SpanRecord(least=1, most=1)
WORDS = "no plan that the request admits is faster, proved"


def test_a_proof_is_about_every_plan_that_the_request_admits():
    for framework, schedules in (("megatron", None), (None, ("stp",))):
        assert proof(planned(framework, schedules)) == WORDS


def test_a_proof_says_which_schedules_it_is_not_about():
    beside = "nothing is claimed of stp, seq1f1b, slimpipe, po-f unless named"
    assert proof(planned(None, None)) == f"{WORDS}; {beside}"


def test_a_proof_says_that_it_is_not_about_copies_of_state_nobody_named():
    beside = "nothing is claimed of other numbers of state copies unless named"
    for framework in ("megatron", None):
        free = planned(framework, ("1f1b",), state_copies=None)
        assert proof(free) == f"{WORDS}; {beside}"
        assert proof(planned(framework, ("1f1b",), state_copies=None, zero_stages=(0,))) == WORDS
    few = replace(free, request=replace(free.request, num_devices=2))
    assert proof(few) == WORDS  # too few devices for two groups of several replicas
    assert proof(planned("deepspeed", ("1f1b",), state_copies=None)) == WORDS  # runs no copies
