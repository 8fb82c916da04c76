"""The bound from how long activations live: sums over every split, and steps of real orders."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from family_cases import case, every_cut, is_searched, rows_of_split, step_of
from peel_cases import asked as asked_of_peel
from peel_cases import beside_work_s, fitting, problem
from random_cases import cases
from trainwright._native import _core
from trainwright.model import LowRank, Tuning
from trainwright.planning.question.layouts import IN_V
from trainwright.planning.splits.types import best_family_split
from trainwright.planning.splits.vee import (
    bound_every_v_split,
    bound_v_lifetimes,
    bound_v_splits,
    is_beyond,
)

WEIGHTS = ("forwards", "input_grads", "weight_grads", "ranks", "ends")


def weights(rng, num_ranks):
    """Of every stage, and of every rank."""
    sizes = dict.fromkeys(WEIGHTS, 2 * num_ranks) | {"ranks": num_ranks, "ends": num_ranks}
    return {name: rng.uniform(0, 2, size) for name, size in sizes.items()}


def least_of_rank(x, w, rank: int, near: tuple[int, int], far: tuple[int, int]) -> float:
    """What one rank adds to the weighted sum with its best two points."""
    m, opposite = x["num_microbatches"], 2 * x["num_ranks"] - 1 - rank
    n, f = x["kind_of"][near], x["kind_of"][far]
    places = min(x["max_activations"], 2 * m)
    between = min(x["forward_s"][[n, f]]) + min(x["weight_grad_s"][[n, f]])
    ends = (places - 1) / 2 * between
    ends += sum(x["tail_s"][k] + x["optimizer_s"][k] for k in (n, f))
    found = []
    for i, j in fitting(x, rank, near, far):
        total = w["ends"][rank] * ends
        for stage, kind, point in ((rank, n, i), (opposite, f, j)):
            forward, weight = x["forward_s"][kind], x["weight_grad_s"][kind]
            total += w["forwards"][stage] * forward + w["weight_grads"][stage] * weight
            total += w["input_grads"][stage] * (x["front_time_s"][point] - forward - weight)
        own = m * x["front_time_s"][[i, j]].sum() + beside_work_s(x, rank, near, far)
        found.append(total + w["ranks"][rank] * own)
    return min(found, default=math.inf)


@cases(25)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(6, 8),
    num_ranks=st.integers(1, 3),
    tight=st.sampled_from((1.0, 0.5)),
)
def test_the_peel_finds_the_least_weighted_sum_of_all_splits(seed, size, num_ranks, tight):
    rng = np.random.default_rng(seed)
    x = problem(rng, size=size, num_ranks=num_ranks, tight=tight)
    x["front_time_s"] = x["front_time_s"] + x["weight_grad_s"][0] + 5.0  # these are part of it
    w = weights(rng, num_ranks)
    expected = math.inf
    for cuts in every_cut(size, 2 * num_ranks):
        own = list(pairwise(cuts))
        parts = [least_of_rank(x, w, r, own[r], own[-1 - r]) for r in range(num_ranks)]
        expected = min(expected, sum(parts))
    found = _core.peel_weighted(asked_of_peel(x), _core.PeelWeights(**w))
    assert found.cost == pytest.approx(expected, rel=1e-12)


@cases(25)
@given(data=st.data())
def test_no_order_that_a_family_finds_is_shorter(data):
    family = data.draw(st.sampled_from(IN_V))
    asked = case(
        blocks=data.draw(st.integers(8, 14)),
        pipeline=data.draw(st.integers(3, 5)),
        virtual_stages=2,
        num_microbatches=data.draw(st.integers(4, 20)),
        memory_gib=data.draw(st.sampled_from((12, 15, 18, 24, 80))),
        zero_stage=data.draw(st.integers(0, 1)),
    )
    split = best_family_split(asked.question(family))
    if not split.cuts:
        return
    step, fits = step_of(asked, family, split.cuts, rows_of_split(asked, split))
    searched = is_searched(asked, family, split.cuts, rows_of_split(asked, split), step)
    if fits and searched:
        bound = bound_v_lifetimes(asked.question(family))
        assert bound.bound_s <= step.step_time_s * (1 + 1e-9)


@cases(25)
@given(data=st.data())
def test_plenty_of_memory_excludes_no_split_that_all_memory_allows(data):
    asked = case(
        blocks=data.draw(st.integers(8, 14)),
        pipeline=data.draw(st.integers(3, 5)),
        virtual_stages=2,
        data=data.draw(st.sampled_from((1, 2))),
        num_microbatches=data.draw(st.integers(1, 20)),
        memory_gib=data.draw(st.sampled_from((12, 18, 80))),
        zero_stage=data.draw(st.integers(0, 3)),
    )
    question = asked.question(data.draw(st.sampled_from(IN_V)))
    bound_s = bound_every_v_split(question).bound_s
    if math.isinf(bound_s):
        return
    assert not is_beyond(question, bound_s * (1 + 1e-9))
    for share in (0.5, 0.9, 0.999, 1.001):
        cut = bound_every_v_split(question, limit_s=share * bound_s)
        assert cut.bound_s == pytest.approx(min(1.0, share) * bound_s, rel=1e-12)


def test_gradients_of_adapters_leave_v_min_waiting_for_places():
    asked = case(
        blocks=40,
        pipeline=10,
        virtual_stages=2,
        num_microbatches=80,
        tuning=Tuning(low_rank=LowRank(rank=64, targets=("query", "up", "down"))),
    )
    question = asked.question("v-min")
    by_rank = bound_v_splits(question).bound_s
    together = bound_v_lifetimes(question, limit_s=1.1 * by_rank)
    assert together.bound_s > 1.03 * by_rank


def test_the_bound_is_cut_down_to_the_limit():
    asked = case(blocks=12, pipeline=3, virtual_stages=2, num_microbatches=12, memory_gib=24)
    question = asked.question("v-half")
    whole = bound_v_lifetimes(question).bound_s
    for share in (0.5, 0.9, 0.99):
        cut = bound_v_lifetimes(question, limit_s=share * whole)
        assert cut.bound_s == pytest.approx(share * whole, rel=1e-9)
