"""What a table says is proved about a step."""

from __future__ import annotations

from dataclasses import replace

import reported
from trainwright.documents.plan_view import proof
from trainwright.plans.status import Status


def test_a_proof_is_about_every_plan_that_the_request_admits():
    closed = replace(reported.model_plan(), status=Status.OPTIMAL, gap=0.0)
    assert proof(closed) == "no plan that the request admits is faster, proved"
