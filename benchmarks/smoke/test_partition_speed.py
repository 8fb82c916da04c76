"""The partitioner's speed table as a guard: orders of magnitude, and the peak memory."""

from __future__ import annotations

import resource

import pytest
from partition_cases import CASES, DATA, STAR, Case

from trainwright.partitioning.downset_dp import solve

# Machines differ, and so does their load; a lost order of magnitude does not.
SLOWEST_RATIO = 5
MOST_BYTES = 2**30


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_instance_of_the_table_is_settled_in_its_time(benchmark, case: Case) -> None:
    if DATA is None and case is not STAR:
        pytest.skip("needs reference data: set TRAINWRIGHT_SHARED")
    profile, setting = case.load()
    outcome = benchmark.pedantic(solve, (profile, setting), rounds=2, warmup_rounds=1)
    assert outcome.status.value == case.status
    assert outcome.solver_s <= SLOWEST_RATIO * case.target_s
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 <= MOST_BYTES
