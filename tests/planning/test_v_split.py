"""The V search against every split in plain Python, and what its numbers promise."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from family_cases import case, every_cut, rows_of_split, step_of
from peel_cases import asked as asked_of_peel
from peel_cases import (
    beside_work_s,
    chain_of_stages,
    drawn_order_s,
    fitting,
    merged,
    problem,
    stages_of,
    until_near_s,
    with_bytes,
    with_times,
)
from random_cases import cases
from trainwright._native import _core
from trainwright.planning.splits.chain import best_chain_split
from trainwright.planning.splits.vee import best_v_split


def rank_s(x, rank: int, near: tuple[int, int], far: tuple[int, int]) -> float:
    """One rank's bound without limits on activations."""
    beside_s, found = beside_work_s(x, rank, near, far), [math.inf]
    for ways in fitting(x, rank, near, far):
        waited_s = max(beside_s, until_near_s(x, rank, near, far, ways))
        found.append(x["num_microbatches"] * x["front_time_s"][list(ways)].sum() + waited_s)
    return min(found)


def oracle(x) -> float:
    p, size = x["num_ranks"], len(x["kind_of"])
    best = math.inf
    for cuts in every_cut(size, 2 * p):
        stages = list(pairwise(cuts))
        best = min(best, max(rank_s(x, r, stages[r], stages[2 * p - 1 - r]) for r in range(p)))
    return best


@cases(40)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(6, 9),
    num_ranks=st.integers(1, 3),
    tight=st.sampled_from((1.0, 0.5, 0.3)),
)
def test_the_peel_finds_the_least_longest_rank_of_all_splits(seed, size, num_ranks, tight):
    x = problem(np.random.default_rng(seed), size=size, num_ranks=num_ranks, tight=tight)
    found = _core.peel(asked_of_peel(x))
    expected_s = oracle(x)
    assert found.cost == pytest.approx(expected_s, rel=1e-12)
    for limit_s in (0.999 * expected_s, 1.001 * expected_s):  # of nothing that fits both are beyond
        is_within = expected_s <= limit_s < math.inf
        assert _core.peel_reaches(asked_of_peel(x).replace(limit_s=limit_s)) == is_within
    if math.isfinite(expected_s):
        cuts = (0, *np.cumsum([*found.near, *found.far[::-1]]).tolist())
        stages = list(pairwise(cuts))
        own_s = [rank_s(x, r, stages[r], stages[-1 - r]) for r in range(num_ranks)]
        assert max(own_s) == pytest.approx(expected_s, rel=1e-12)
        assert math.isinf(_core.peel(asked_of_peel(x).replace(limit_s=0.999 * expected_s)).cost)


@cases(20)
@given(seed=st.integers(0, 2**32 - 1), num_ranks=st.integers(1, 3))
def test_the_most_even_split_stays_within_the_limit(seed, num_ranks):
    x = problem(np.random.default_rng(seed), size=8, num_ranks=num_ranks)
    least_s = _core.peel(asked_of_peel(x)).cost
    if math.isinf(least_s):
        return
    x["limit_s"] = 1.1 * least_s
    found = _core.peel_evenly(asked_of_peel(x), chunk_s=3.0)
    stages = list(pairwise((0, *np.cumsum([*found.near, *found.far[::-1]]).tolist())))
    own_s = [rank_s(x, r, stages[r], stages[-1 - r]) for r in range(num_ranks)]
    assert least_s * (1 - 1e-12) <= max(own_s) <= x["limit_s"]


@cases(25)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_ranks=st.integers(2, 5),
    num_microbatches=st.integers(2, 9),
    max_activations=st.integers(2, 10),
)
def test_no_order_of_a_split_in_v_ends_before_its_bound(
    seed, num_ranks, num_microbatches, max_activations
):
    rng = np.random.default_rng(seed)
    x = chain_of_stages(
        rng,
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        max_activations=max_activations,
    )
    least_s = min(drawn_order_s(x, rng) for _ in range(6))
    for limit_s in (math.inf, least_s * (1 + 1e-9)):
        assert _core.peel(asked_of_peel(x).replace(limit_s=limit_s)).cost <= least_s * (1 + 1e-9)


@cases(40)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_ranks=st.integers(2, 5),
    num_microbatches=st.integers(2, 12),
    microbatches=st.sampled_from((1.0, 1.5, 2.5, 4.0)),
)
def test_no_order_that_fits_into_bytes_ends_before_the_bound(
    seed, num_ranks, num_microbatches, microbatches
):
    rng = np.random.default_rng(seed)
    x = chain_of_stages(rng, num_ranks=num_ranks, num_microbatches=num_microbatches)
    x = with_bytes(x, rng, microbatches=microbatches)
    x["tail_s"] = rng.uniform(0, 3, 2 * num_ranks)
    least_s = min(drawn_order_s(x, rng) for _ in range(6))
    usable_bytes = x["usable_bytes"] * (1 + 1e-12)  # as bounds are asked: sums of floats round
    asked = asked_of_peel(x).replace(weighs_ends=True, usable_bytes=usable_bytes)
    slowest = asked.kinds.replace(tail_s=rng.uniform(0, 1, 2 * num_ranks) * x["tail_s"])
    for limit_s in (math.inf, least_s * (1 + 1e-9)):
        found = _core.peel(asked.replace(limit_s=limit_s, kinds=slowest))
        assert found.cost <= least_s * (1 + 1e-9)


@cases(60)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_ranks=st.integers(2, 5),
    num_microbatches=st.integers(1, 12),
    microbatches=st.sampled_from((None, 1.5, 4.0)),
)
def test_no_order_ends_before_the_paths_through_a_rank(
    seed, num_ranks, num_microbatches, microbatches
):
    """Of stages far from even, whose lengths keep others waiting."""
    rng = np.random.default_rng(seed)
    x = chain_of_stages(rng, num_ranks=num_ranks, num_microbatches=num_microbatches)
    lengths = rng.choice((0.1, 1, 1, 4), (3, 2 * num_ranks))
    own = (x[f"{name}_s"] for name in ("forward", "input_grad", "weight_grad"))
    x = with_times(x, *(each * length for each, length in zip(own, lengths, strict=True)))
    x["tail_s"] = rng.uniform(0, 3, 2 * num_ranks) * rng.integers(2)
    if microbatches is not None:
        x = with_bytes(x, rng, microbatches=microbatches)
    least_s = min(drawn_order_s(x, rng) for _ in range(8))
    usable_bytes = x["usable_bytes"] * (1 + 1e-12)
    asked = asked_of_peel(x).replace(weighs_ends=True, usable_bytes=usable_bytes)
    for limit_s in (math.inf, least_s * (1 + 1e-9)):
        assert _core.peel(asked.replace(limit_s=limit_s)).cost <= least_s * (1 + 1e-9)


def of_three_ranks(num_microbatches, forward_s, input_grad_s, weight_grad_s):
    """With places for all microbatches, and transfers that take no time."""
    x = chain_of_stages(np.random.default_rng(0), num_ranks=3, num_microbatches=num_microbatches)
    own = (np.array(each, np.float64) for each in (forward_s, input_grad_s, weight_grad_s))
    return asked_of_peel(with_times(x, *own) | {"transfer_s": np.zeros(2)})


def test_all_backwards_of_a_near_chunk_follow_the_first_that_returns():
    # Rank 0: 4.2 seconds there and 4.1 back, then two input and weight gradients of two each.
    forward_s, back_s = [0.1, 1, 1, 1, 1, 0.1], [2, 1, 1, 1, 1, 0.1]
    asked = of_three_ranks(2, forward_s, back_s, [2, 0.1, 0.1, 0.1, 0.1, 0.1])
    assert _core.peel(asked).cost < 4.2 + 4.1 + 2 * 4
    found = _core.peel(asked.replace(weighs_ends=True))
    assert found.cost == pytest.approx(4.2 + 4.1 + 2 * 4)


def test_a_long_stage_keeps_those_after_it_waiting():
    # Rank 1 starts after two seconds, and every two more forwards reach it. After five, when the
    # first comes to its far chunk, six near forwards, 8 far ones and all gradients are left.
    back_s = [0.1, 2, 0.1, 0.1, 2, 0.1]
    asked = of_three_ranks(8, [2, 1, 1, 1, 1, 0.1], back_s, back_s)
    assert _core.peel(asked).cost == pytest.approx(2 + 8 * 10)
    paced = _core.peel(asked.replace(weighs_ends=True))
    assert paced.cost == pytest.approx(5 + 6 + 8 * 9)


def test_what_waits_for_its_weight_gradient_alone_takes_room_until_the_end():
    x = chain_of_stages(
        np.random.default_rng(0), num_ranks=4, num_microbatches=12, max_activations=24
    )
    x = with_bytes(x, np.random.default_rng(1), microbatches=2.5)
    asked = asked_of_peel(x).replace(weighs_ends=True)
    known = asked.replace(kinds=asked.kinds.replace(freed_bytes=0.1 * x["front_bytes"]))
    unknown = asked.replace(kinds=asked.kinds.replace(freed_bytes=x["front_bytes"]))
    assert _core.peel(known).cost > _core.peel(unknown).cost * 1.01


@cases(40)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_ranks=st.integers(2, 3),
    more=st.integers(0, 2),
    num_microbatches=st.integers(1, 6),
    max_activations=st.integers(2, 10),
    tails=st.sampled_from((0.0, 0.5, 3.0)),
)
def test_no_split_in_v_exchanges_its_last_gradients_before_the_bound(
    seed, num_ranks, more, num_microbatches, max_activations, tails
):
    rng = np.random.default_rng(seed)
    layers = chain_of_stages(
        rng,
        num_ranks=num_ranks + more,
        num_microbatches=num_microbatches,
        max_activations=max_activations,
    )
    layers["tail_s"] = tails * rng.uniform(0, 1, 2 * (num_ranks + more)) ** 3
    x = merged(layers, num_ranks)
    least_s = min(
        drawn_order_s(stages_of(x, cuts), rng)
        for cuts in every_cut(2 * (num_ranks + more), 2 * num_ranks)
        for _ in range(2)
    )
    asked = asked_of_peel(x | {"weighs_ends": True})
    for limit_s in (math.inf, least_s * (1 + 1e-9)):
        assert _core.peel(asked.replace(limit_s=limit_s)).cost <= least_s * (1 + 1e-9)


def test_what_the_first_rank_exchanges_follows_the_last_input_gradients_of_the_others():
    x = chain_of_stages(
        np.random.default_rng(0), num_ranks=3, num_microbatches=8, max_activations=2
    )
    x["tail_s"] = np.array([9.0, 0, 0, 0, 0, 0])
    asked = asked_of_peel(x)
    weighed = asked.replace(weighs_ends=True)
    assert _core.peel(weighed).cost > _core.peel(asked).cost + 1


def test_a_far_chunk_waits_for_all_ranks_between():
    """Few microbatches reach it before the first goes back, so near ones fill the places."""
    x = chain_of_stages(
        np.random.default_rng(0), num_ranks=4, num_microbatches=6, max_activations=12
    )
    forward_s = np.repeat([1.0, 6.0], 4)
    halves = {"forward_s": forward_s, "input_grad_s": 1.2 * forward_s}
    x |= halves | {"weight_grad_s": 0.8 * forward_s, "front_time_s": 3 * forward_s}
    x |= {
        name.replace("_s", "_before_s"): np.append(0, np.cumsum(own))
        for name, own in halves.items()
    }
    x |= {"transfer_s": np.zeros(3), "rank_time_s": np.full(1, 21.0)}
    slow = _core.peel(asked_of_peel(x | {"rank_forward_s": np.full(1, 7.0)}))
    fast = _core.peel(asked_of_peel(x | {"rank_forward_s": np.full(1, 1e3)}))
    assert slow.cost == pytest.approx(137.0)
    assert slow.cost > 1.02 * fast.cost


def test_the_split_has_room_for_whatever_order_is_found():
    for memory_gib in (16, 20, 26, 40):
        asked = case(
            blocks=12, pipeline=4, virtual_stages=2, num_microbatches=16, memory_gib=memory_gib
        )
        split = best_v_split(asked.question("v-half"))
        if split.cuts:
            step, fits = step_of(asked, "v-half", split.cuts, rows_of_split(asked, split))
            assert fits
            assert step.step_time_s >= split.bound_s * (1 - 1e-9)


def test_v_half_recomputes_less_than_1f1b_where_memory_is_short():
    asked = case(blocks=32, pipeline=8, num_microbatches=32, memory_gib=30)
    halves = asked.with_degrees(virtual_stages=2)
    split = best_v_split(halves.question("v-half"))
    step, fits = step_of(halves, "v-half", split.cuts, rows_of_split(halves, split))
    other = best_chain_split(asked.question("1f1b"))
    whole, _ = step_of(asked, "1f1b", other.cuts, rows_of_split(asked, other))
    assert fits
    recomputed_s, whole_s = (sum(s.recompute_s for s in x.stages) for x in (step, whole))
    assert recomputed_s < 0.7 * whole_s
    assert step.step_time_s < whole.step_time_s


def test_a_struct_of_the_core_takes_every_field_once_and_says_which_is_wrong():
    twos = np.full(2, 2.0)
    named = dict.fromkeys(("forwards", "input_grads", "weight_grads", "ranks", "ends"), twos)
    weights = _core.PeelWeights(**named)
    assert weights.replace(ends=twos / 2).ends.tolist() == [1.0, 1.0]
    assert weights.ends is twos
    for wrong, message in (
        ({"ends": np.ones((2, 2))}, "ends must be an array"),
        ({"end": twos}, "there is no end"),
    ):
        with pytest.raises(TypeError, match=message):
            _core.PeelWeights(**(named | wrong))
    del named["ranks"]
    with pytest.raises(TypeError, match="ranks is missing"):
        _core.PeelWeights(**named)
