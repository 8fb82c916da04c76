"""The published order and stop rule, and what they miss."""

from __future__ import annotations

import numpy as np

from chips.jobs import BERT, GPT3, question, some_designs
from trainwright.chips.population import (
    INFEASIBLE,
    buckets_of,
    descending_area_search,
    feasible_stop,
)
from trainwright.chips.search import PLACEMENT, search
from trainwright.execution import Budget
from trainwright.plans.status import Status


def test_buckets_without_a_plan_do_not_end_ours() -> None:
    values = [INFEASIBLE] * 6 + [1.0] + [INFEASIBLE] * 10
    assert feasible_stop(values) == len(values)


def test_throughput_that_stops_growing_ends_the_search() -> None:
    assert feasible_stop([1.0, 2.0, 3.0, 3.0, 3.0, 2.0, 2.0, 9.0]) == 7
    assert feasible_stop([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == 6


def test_the_order_is_by_area_and_the_answer_claims_no_proof() -> None:
    asked = question(GPT3, space=some_designs(2000, 1), devices=256)
    buckets = asked.space.buckets()
    order = np.concatenate(buckets_of(asked.space))
    assert (np.diff(buckets[order]) <= 0).all()
    found, exact = descending_area_search(asked, Budget()), search(asked, Budget())
    assert found.status is Status.GAP
    assert found.best is not None
    assert exact.best is not None
    assert found.lower_bound is not None
    assert found.lower_bound <= exact.best.cost <= found.best.cost
    assert 5 <= found.ledger.count(PLACEMENT) < 2000


def test_nothing_found_is_unknown() -> None:
    asked = question(BERT, space=some_designs(30), devices=1, memory_gib=1)
    assert descending_area_search(asked, Budget()).status is Status.UNKNOWN
