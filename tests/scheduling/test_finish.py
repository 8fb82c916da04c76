"""Orders tried and polished in the core are those that the passes give one by one."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from trainwright.plans.schedule import Placement, ScheduleCosts, ScheduleMemory, TransferModel
from trainwright.plans.status import Objective
from trainwright.scheduling.block import blocks_within, repeated_order, rewritten_order
from trainwright.scheduling.bounds import LeastCosts, best_bound
from trainwright.scheduling.orders import fill_weight_grads, reorder
from trainwright.scheduling.simulate import simulate
from trainwright.scheduling.weight_grads import best_of, polish

if TYPE_CHECKING:
    from trainwright.plans.schedule import Schedule
    from trainwright.scheduling.weight_grads import Order


def test_the_best_order_is_that_of_the_passes_one_by_one() -> None:
    polished = fitting = 0
    for seed in range(60):
        p, m, costs, orders = _question(np.random.default_rng(seed))
        found = best_of(orders, Placement.v(p), costs, num_microbatches=m)
        expected, is_polished = _one_by_one(orders, p, m, costs)
        assert found == expected
        fitting += found is not None
        polished += is_polished
    assert polished > 10
    assert 30 < fitting < 60


def test_an_order_with_pairs_is_refused() -> None:
    order = repeated_order(blocks_within(2, 4)[0], 3)
    paired = type(order).of_ranks(
        [order.actions[order.rows_of(rank)] for rank in range(2)],
        placement=order.placement,
        num_microbatches=3,
        pairs=np.array([0]),
    )
    costs = ScheduleCosts.of(order.placement)
    with pytest.raises(ValueError, match="pairs"):
        best_of([lambda _: paired], order.placement, costs, num_microbatches=3)


def _question(
    random: np.random.Generator,
) -> tuple[int, int, ScheduleCosts, list[Order]]:
    """Random times and limits of 2 to 5 ranks, and some orders, of which some are the same."""
    p, m = int(random.integers(2, 6)), int(random.integers(2, 13))
    placement = Placement.v(p)
    forward_bytes = random.uniform(0.5, 2.0, 2 * p)
    limit = np.inf if random.random() < 0.3 else random.uniform(1.0, 3.0) * (p + 1)
    memory = ScheduleMemory.of(
        placement,
        forward_bytes=forward_bytes,
        input_grad_bytes=-0.4 * forward_bytes,
        weight_grad_bytes=-0.6 * forward_bytes,
        limit_bytes=limit,
    )
    costs = ScheduleCosts.of(
        placement,
        forward_s=random.uniform(0.5, 1.5, 2 * p),
        input_grad_s=random.uniform(0.5, 1.5, 2 * p),
        weight_grad_s=random.uniform(0.3, 1.2, 2 * p),
        transfer_s=float(random.choice([0.0, 0.1])),
        memory=memory,
        transfer_model=TransferModel(random.choice(["free", "link"])),
    )
    orders: list[Order] = []
    for block in blocks_within(p, 2 * p)[:4]:
        orders += [
            partial(rewritten_order, block, warm_up=2 * p, cool_down=2 * p),
            partial(repeated_order, block),
        ]
    return p, m, costs, [*orders, *orders[:2]]


def _one_by_one(
    orders: list[Order], p: int, m: int, costs: ScheduleCosts
) -> tuple[Schedule | None, bool]:
    """By the definition: the best of all, and whether it got better by being polished."""
    least = LeastCosts.of(Placement.v(p), costs)
    enough_s = best_bound(least, m, objective=Objective.SPAN).value_s * (1 + 1e-9)
    closed = []
    for order in orders:
        for tolerated_idle_s in (math.inf, 0.0):
            filled = fill_weight_grads(order(m), costs, tolerated_idle_s=tolerated_idle_s)
            if filled is not None:
                closed.append(reorder(filled, costs))
                if simulate(closed[-1], costs).span_s <= enough_s:
                    return closed[-1], False

    def cost(schedule: Schedule) -> tuple[float, float]:
        timeline = simulate(schedule, costs)
        return timeline.span_s, timeline.makespan_s

    closed.sort(key=cost)
    polished = [polish(schedule, costs) for schedule in closed[:24]]
    best = min((*closed, *polished), key=cost, default=None)
    return best, best is not None and cost(best) < cost(closed[0])
