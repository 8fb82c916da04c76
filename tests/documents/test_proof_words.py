"""What a table says is proved about a step."""

from __future__ import annotations

from dataclasses import replace

import reported
from trainwright.documents.plan_view import proof
from trainwright.plans.status import Status


def planned(framework, schedules):
    found = replace(reported.model_plan(), status=Status.OPTIMAL, gap=0.0)
    space = replace(found.request.space, framework=framework, schedules=schedules)
    return replace(found, request=replace(found.request, space=space))


def test_a_proof_is_about_every_plan_that_the_request_admits():
    for framework, schedules in (("megatron", None), (None, ("stp",))):
        closed = planned(framework, schedules)
        assert proof(closed) == "no plan that the request admits is faster, proved"


def test_a_proof_says_which_schedules_it_is_not_about():
    words = "no plan that the request admits is faster, proved; nothing is claimed of"
    assert proof(planned(None, None)) == f"{words} stp, seq1f1b, slimpipe, po-f unless named"
