"""Generating a named schedule as a guard: orders of magnitude."""

from __future__ import annotations

import pytest
from schedule_families import TARGET_S, UNEQUAL, timed

from trainwright.scheduling.families import FAMILIES, FamilyRequest

# Machines differ, and so does their load; a lost order of magnitude does not.
SLOWEST_RATIO = 5


@pytest.mark.parametrize("family", FAMILIES)
def test_a_large_named_schedule_is_generated_in_its_time(benchmark, family: str) -> None:
    size = FamilyRequest(num_ranks=64, num_microbatches=512)
    costs = UNEQUAL.costs(size, family)
    request = FamilyRequest(num_ranks=64, num_microbatches=512, costs=costs)
    taken: list[float] = []
    benchmark.pedantic(
        lambda: taken.append(timed(family, request)[0]), rounds=3, warmup_rounds=1, iterations=1
    )
    assert min(taken) <= SLOWEST_RATIO * TARGET_S
