"""What runners-up lose, in words: nothing of the size of rounding errors."""

from dataclasses import replace

import pytest

import trainwright
from trainwright.documents.model_plan import ModelPlanResult
from trainwright.documents.printing import main_losses
from trainwright.pages.model_plan import alternative_blocks


@pytest.fixture(scope="module")
def plan() -> ModelPlanResult:
    found = trainwright.plan(
        model="gpt2", cluster="dgx-h100", nodes=1, global_batch=16, sequence=1024, schedule="1f1b"
    )
    assert found.document.alternatives
    return found.document


def test_a_loss_of_less_than_a_two_thousandth_of_the_step_is_not_named(plan) -> None:
    other = plan.alternatives[0]
    step_s = other.step_time_s
    lost_s = {"compute": 2.2e-16, "tensor": 0.001 * step_s, "data": 0.0004 * step_s}
    assert main_losses(replace(other, lost_s=lost_s)) == (("tensor", 0.001 * step_s),)
    assert main_losses(replace(other, lost_s={"data": -0.1 * step_s})) == ()


def test_the_page_names_no_noise(plan) -> None:
    noise = replace(plan.alternatives[0], lost_s={"compute": 2.2e-16, "data": -2.2e-16})
    scatter, table = alternative_blocks(replace(plan, alternatives=(noise,)))
    assert table.rows[1][-1].text == ""
    facts = dict(scatter.marks[1].point.facts)
    assert "compute" not in facts
    assert "data parallelism" not in facts
