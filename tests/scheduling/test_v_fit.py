"""V within the bytes of its devices: what its orders promise, and what they are worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trainwright.plans.schedule import Placement, ScheduleCosts, ScheduleMemory
from trainwright.plans.status import Objective
from trainwright.scheduling.families import FAMILIES, FamilyRequest
from trainwright.scheduling.families.v_shape import (
    block_without_pauses,
    half_in_flight,
    v_fit_activations,
    v_half_activations,
)
from trainwright.scheduling.orders import justify
from trainwright.scheduling.simulate import simulate, validate

V_FIT, V_HALF, ZB_V = (FAMILIES[name] for name in ("v-fit", "v-half", "zb-v"))


def costs_of(p, rng, *, room=np.inf):
    """Stages of unequal times, activations of about one byte, and as many bytes on every rank."""
    placement = Placement.v(p)
    sizes = rng.uniform(0.8, 1.2, 2 * p)
    memory = ScheduleMemory.of(
        placement, forward_bytes=sizes, weight_grad_bytes=-sizes, limit_bytes=room
    )
    return ScheduleCosts.of(
        placement,
        forward_s=rng.uniform(0.9, 1.1, 2 * p),
        input_grad_s=rng.uniform(0.9, 1.1, 2 * p),
        weight_grad_s=rng.uniform(0.9, 1.1, 2 * p),
        transfer_s=0.02,
        memory=memory,
    )


def asked(costs, m, after_s=None):
    p = costs.memory.num_ranks
    return FamilyRequest(
        num_ranks=p,
        num_microbatches=m,
        costs=costs,
        objective=Objective.MAKESPAN,
        after_s=after_s,
    )


def held_by(schedule, stages):
    """Microbatches of both stages between forward and input gradient, after every action."""
    alive, seen = dict.fromkeys(stages, 0), []
    for kind, stage, _ in schedule.actions[schedule.rows_of(min(stages))].tolist():
        alive[stage] += {0: 1, 1: -1}.get(kind, 0)
        seen.append([alive[each] for each in stages])
    return np.array(seen)


@pytest.mark.parametrize("p", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("m", [1, 3, 8, 40])
def test_orders_hold_what_is_promised_and_fit(p, m):
    rng = np.random.default_rng([p, m])
    for room in (np.inf, v_half_activations(p) * 1.2, v_half_activations(p) * 0.9):
        costs = costs_of(p, rng, room=room)
        schedule = V_FIT.generate(asked(costs, m))
        if schedule is None:
            assert not simulate(V_HALF.generate(asked(costs_of(p, rng), m)), costs).fits
            continue
        validate(schedule)
        assert simulate(schedule, costs).fits
        assert max(schedule.peak_activations) <= v_fit_activations(p)
        near, far = half_in_flight(p, m)
        for rank in range(p):
            held = held_by(schedule, (rank, 2 * p - 1 - rank))
            for row in range(len(near)):
                promised = near[row, rank], far[row, rank]
                assert (held >= promised).all(axis=1).any()


@pytest.mark.parametrize("p", range(2, 40))
def test_what_covers_v_half_admits_its_orders(p):
    """So that what bounds V-Fit bounds V-Half."""
    assert V_FIT.covers == ("v-half",)
    assert V_FIT.most_activations(p) >= V_HALF.most_activations(p)
    for m in (1, p, 5 * p):
        for mine, its in zip(
            V_FIT.least_in_flight(p, m), V_HALF.least_in_flight(p, m), strict=True
        ):
            assert (mine <= its).all()


def test_a_middle_without_pauses_is_shorter_than_that_of_v_half():
    rng, p, m, shorter = np.random.default_rng(5), 6, 60, 0
    for _ in range(8):
        costs = costs_of(p, rng, room=v_half_activations(p) + 4.0)
        mine, half = (
            simulate(family.generate(asked(costs, m)), costs).makespan_s
            for family in (V_FIT, V_HALF)
        )
        assert mine <= 1.02 * half
        shorter += mine < 0.999 * half and block_without_pauses(costs) is not None
    assert shorter >= 2


def ended_s(schedule, costs, after_s):
    """When the last rank is through with what follows its last action."""
    ends_s = simulate(schedule, costs).end_s[schedule.rank_offsets[1:] - 1]
    return float((ends_s + after_s).max())


def test_ends_are_made_for_what_follows_them():
    """A rank that has more to do at last ends sooner, mostly."""
    p, m, gained = 6, 40, []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        costs, after_s = costs_of(p, rng, room=3.0 * p), rng.uniform(0, 8, p)
        order = ZB_V.generate(asked(costs, m))
        found = (justify(order, costs, after_s=after_s), justify(order, costs))
        made, blind = (ended_s(each, costs, after_s) for each in found)
        gained.append(blind - made)
    assert sum(gained) > 0
    assert np.mean(np.array(gained) >= 0) > 0.5


@pytest.mark.parametrize("seed", range(20))
def test_justified_orders_keep_both_limits_and_end_no_later(seed):
    rng = np.random.default_rng(seed)
    p = int(rng.integers(2, 7))
    costs = costs_of(p, rng, room=2.5 * p)
    m = int(rng.integers(p, 5 * p))
    order = ZB_V.generate(replace(asked(costs_of(p, rng), m), max_activations=2 * p))
    costs = replace(costs, memory=replace(costs.memory, limit_bytes=np.full(p, 2.5 * p)))
    after_s, most = rng.uniform(0, 4, p), max(order.peak_activations)

    found = justify(order, costs, after_s=after_s, max_activations=most)
    validate(found)
    assert max(found.peak_activations) <= most
    assert simulate(found, costs).fits
    assert ended_s(found, costs, after_s) <= ended_s(order, costs, after_s) * (1 + 1e-12)
