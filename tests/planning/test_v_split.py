"""The V search against every split in plain Python, and what its numbers promise."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from family_cases import case, every_cut, rows_of_split, step_of
from random_cases import cases
from trainwright._native import _core
from trainwright.planning.split_bound import best_split
from trainwright.planning.v_split import best_v_split


def problem(rng, *, size: int, num_ranks: int, num_kinds: int = 6, tight: float = 1.0):
    """A chain whose stages' kinds are drawn at random, each with a front of one to three ways."""
    points = rng.integers(1, 4, num_kinds)
    times, kept = [], []
    for count in points.tolist():
        times += sorted(rng.uniform(1, 5, count).tolist(), reverse=True)
        kept += sorted(rng.uniform(1, 9, count).tolist())
    kind_of = np.full((size, size + 1), -1, dtype=np.int64)
    for first in range(size):
        for after in range(first + 1, size + 1):
            kind_of[first, after] = rng.integers(num_kinds)

    def each():
        return rng.uniform(0, 2, num_kinds)

    return {
        "num_ranks": num_ranks,
        "num_microbatches": int(rng.integers(1, 9)),
        "max_activations": 2**40,  # no waits but for the head
        "usable_bytes": 60.0 * tight,
        "gathered_share": 0.5,
        "floor_s": 0.0,
        "limit_s": math.inf,
        "kind_of": kind_of,
        "forward_s": each(),
        "input_grad_s": np.zeros(num_kinds),
        "weight_grad_s": np.full(num_kinds, 1e3),  # work enough to do at the end of a step
        "tail_s": each(),
        "optimizer_s": each(),
        "static_bytes": each(),
        "weight_bytes": each(),
        "largest_weight_bytes": each(),
        "level_offset": np.arange(num_kinds + 1),
        "transient_bytes": each(),
        "beside_bytes": each(),
        "front_offset": np.concatenate(([0], np.cumsum(points))),
        "front_bytes": np.array(kept),
        "front_time_s": np.array(times),
        "forward_before_s": np.concatenate(([0.0], np.cumsum(rng.uniform(0, 1, size)))),
        "input_grad_before_s": np.zeros(size + 1),
        "transfer_s": rng.uniform(0, 1, num_ranks - 1),
        "near_in_flight": rng.uniform(0, 4, (2 * num_ranks, size + 1)),
        "far_in_flight": rng.uniform(0, 4, (2 * num_ranks, size + 1)),
    }


def rank_s(x, rank: int, near: tuple[int, int], far: tuple[int, int]) -> float:
    """One rank's bound without limits on activations: its wait, its work, what follows it.

    It waits for its first forward, or runs all forwards before its first backward can begin.
    """
    p, m = x["num_ranks"], x["num_microbatches"]
    kinds = x["kind_of"][near], x["kind_of"][far]
    ways = [range(x["front_offset"][k], x["front_offset"][k + 1]) for k in kinds]
    whole = sum(x["weight_bytes"][k] for k in kinds)
    heaviest = max(x["largest_weight_bytes"][k] for k in kinds)
    held = sum(x["static_bytes"][k] for k in kinds)
    room = x["usable_bytes"] - held - min(x["gathered_share"] * heaviest, whole)
    beside = max(x["beside_bytes"][k] for k in kinds)
    times = []
    for i in ways[0]:
        for j in ways[1]:
            own, other = x["front_bytes"][i], x["front_bytes"][j]
            instants = [
                x["near_in_flight"][row * p + rank, near[0]] * own
                + x["far_in_flight"][row * p + rank, far[0]] * other
                + beside
                for row in range(2)
            ]
            instants.append(own + x["transient_bytes"][kinds[0]])
            instants.append(own + other + x["transient_bytes"][kinds[1]])
            if max(instants) <= room:
                times.append(x["front_time_s"][i] + x["front_time_s"][j])
    head = x["forward_before_s"][near[0]] + x["transfer_s"][:rank].sum()
    there_and_back = x["forward_before_s"][-1] + 2 * x["transfer_s"].sum()
    to_backward = there_and_back + x["transfer_s"][:rank].sum()
    idle = to_backward - m * sum(x["forward_s"][k] for k in kinds)
    after = sum(x["tail_s"][k] + x["optimizer_s"][k] for k in kinds)
    return m * min(times, default=math.inf) + max(head, idle) + after


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
    least_s, near, far, *_ = _core.peel(**x)
    expected_s = oracle(x)
    assert least_s == pytest.approx(expected_s, rel=1e-12)
    if math.isfinite(expected_s):
        cuts = (0, *np.cumsum([*near, *far[::-1]]).tolist())
        stages = list(pairwise(cuts))
        own_s = [rank_s(x, r, stages[r], stages[-1 - r]) for r in range(num_ranks)]
        assert max(own_s) == pytest.approx(expected_s, rel=1e-12)
        assert math.isinf(_core.peel(**(x | {"limit_s": 0.999 * expected_s}))[0])


@cases(20)
@given(seed=st.integers(0, 2**32 - 1), num_ranks=st.integers(1, 3))
def test_the_most_even_split_stays_within_the_limit(seed, num_ranks):
    x = problem(np.random.default_rng(seed), size=8, num_ranks=num_ranks)
    least_s = _core.peel(**x)[0]
    if math.isinf(least_s):
        return
    x["limit_s"] = 1.1 * least_s
    _, near, far, *_ = _core.peel_evenly(**x, chunk_s=3.0)
    stages = list(pairwise((0, *np.cumsum([*near, *far[::-1]]).tolist())))
    own_s = [rank_s(x, r, stages[r], stages[-1 - r]) for r in range(num_ranks)]
    assert least_s * (1 - 1e-12) <= max(own_s) <= x["limit_s"]


def test_the_split_has_room_for_whatever_order_is_found():
    for memory_gib in (16, 20, 26, 40):
        asked = case(
            blocks=12, pipeline=4, virtual_stages=2, num_microbatches=16, memory_gib=memory_gib
        )
        split = best_v_split(*asked.asked, family="v-half", num_microbatches=16)
        if split.cuts:
            step, fits = step_of(asked, "v-half", split.cuts, rows_of_split(asked, split))
            assert fits
            assert step.step_time_s >= split.bound_s * (1 - 1e-9)


def test_v_half_recomputes_less_than_1f1b_where_memory_is_short():
    asked = case(blocks=32, pipeline=8, num_microbatches=32, memory_gib=30)
    halves = asked.with_degrees(virtual_stages=2)
    split = best_v_split(*halves.asked, family="v-half", num_microbatches=32)
    step, fits = step_of(halves, "v-half", split.cuts, rows_of_split(halves, split))
    other = best_split(*asked.asked, num_microbatches=32)
    whole, _ = step_of(asked, "1f1b", other.cuts, rows_of_split(asked, other))
    assert fits
    recomputed_s, whole_s = (sum(s.recompute_s for s in x.stages) for x in (step, whole))
    assert recomputed_s < 0.7 * whole_s
    assert step.step_time_s < whole.step_time_s
