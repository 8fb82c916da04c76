"""Words about an improvement that promise no more than was found."""

from __future__ import annotations

from dataclasses import replace

import reported
from trainwright.reporting.improvement_words import bounded_plans


def test_a_bound_on_plans_of_a_framework_is_said_to_be_one() -> None:
    found = replace(reported.improvement(), framework=None)
    assert bounded_plans(found) == "no plan with the run's settings"
    of_one = replace(found, framework="megatron")
    assert bounded_plans(of_one) == "no plan for megatron with the run's settings"


def test_a_bound_on_plans_with_other_kernels_names_them() -> None:
    found = replace(reported.improvement(), framework=None)
    assert found.best_plan is not None
    added = replace(found, best_plan=replace(found.best_plan, options="--flash-attention"))
    said = bounded_plans(added)
    assert said == "no plan with the run's settings, --flash-attention or not,"
