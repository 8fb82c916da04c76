"""The joint planner against exhaustion: every legal plan of a small space, priced one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exhaustive import LLAMA, TINY_MIXTURE, asked, distinct, least_step_s
from trainwright.execution import Budget
from trainwright.planning.allowed import Span
from trainwright.planning.model_planner import plan_model

SMALL = {
    "roomy": asked(replace(LLAMA, num_layers=2), memory_gib=60),
    "tight": asked(replace(LLAMA, num_layers=2), memory_gib=16),
    "experts": asked(TINY_MIXTURE, memory_gib=24, zero_stages=(1, 3), context=Span.only(1)),
    "slow to synchronise": asked(replace(LLAMA, num_layers=2), memory_gib=40, sequence=128),
}


@pytest.mark.parametrize("question", SMALL.values(), ids=SMALL)
def test_the_planner_finds_what_exhaustion_finds(question):
    outcome = plan_model(question, Budget())
    least_s = least_step_s(question)
    found_s = outcome.priced[0].step.step_time_s
    assert found_s == pytest.approx(least_s, rel=1e-9)
    assert outcome.lower_bound_s <= least_s * (1 + 1e-12)
    assert outcome.considered == sum(1 for _ in distinct(question))
