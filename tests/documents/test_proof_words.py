"""What a table says is proved about a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

import reported
from trainwright.documents.plan_view import UNEVEN_STAGES, proof
from trainwright.plans.status import Status


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ("zb-v, simulated", "no plan of the space is faster, proved"),
        (
            f"zb-v, simulated; {UNEVEN_STAGES}",
            "no plan of nearly even stages is faster, proved; other uneven stages may be",
        ),
    ],
)
def test_a_proof_is_about_the_space_that_was_searched(schedule, said):
    found = reported.model_plan()
    assumptions = dict(found.assumptions) | {"schedule": schedule}
    closed = replace(found, status=Status.OPTIMAL, gap=0.0, assumptions=assumptions)
    assert proof(closed) == said
