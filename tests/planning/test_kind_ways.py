"""Ways that are kept against all ways of the layers, one by one."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainwright._native import _core
from trainwright.planning.bounds.stages import Front, Ways, _both_ways
from trainwright.planning.bounds.stages import _both as both_fronts

few = st.integers(0, 4).map(float)
takes = st.lists(st.tuples(few, few, few), min_size=1, max_size=12).map(np.array)


def is_beaten(rows, number):
    """By a way that takes no more of anything, and less of something or came first of equals."""
    own = rows[number]
    for other, row in enumerate(rows):
        if other == number or not (row <= own).all():
            continue
        if (row < own).any() or other < number:
            return True
    return False


@given(takes)
def test_ways_that_no_other_beats_are_kept_slowest_first(rows):
    kept = _core.unbeaten_ways(rows).tolist()
    assert sorted(kept) == [n for n in range(len(rows)) if not is_beaten(rows, n)]
    times = rows[kept, 2].tolist()
    assert times == sorted(times, reverse=True)


@given(takes, takes)
def test_ways_of_two_parts_choose_what_they_take(first, second):
    parts = [
        Ways(rows, np.eye(25, dtype=np.int16)[at : at + len(rows)])
        for rows, at in ((first, 0), (second, 12))
    ]
    both = _both_ways(*parts)
    table = np.zeros((25, 3))
    table[: len(first)], table[12 : 12 + len(second)] = first, second
    assert (both.chosen @ table == both.takes).all()
    assert len(both.takes) == len(both.chosen) <= len(first) * len(second)


@given(takes, takes)
def test_fronts_of_two_parts_keep_the_fastest_of_every_size(first, second):
    parts = []
    for rows, at in ((first, 0), (second, 12)):
        order = np.lexsort((rows[:, 2], rows[:, 0]))
        rows = rows[order]
        chosen = np.eye(25, dtype=np.int16)[at : at + len(rows)]
        parts.append((Front(rows[:, 0], rows[:, 2], chosen), rows, at))
    (a, first, _), (b, second, _) = parts
    front = both_fronts(a, b)
    sums = [(x[0] + y[0], x[2] + y[2]) for x, y in product(first, second)]
    for kept, time_s in zip(front.kept_bytes, front.time_s, strict=True):
        assert time_s == min(t for k, t in sums if k <= kept)
    assert (np.diff(front.kept_bytes) > 0).all()
    assert (np.diff(front.time_s) < 0).all()
    assert front.time_s[-1] == min(t for _, t in sums)
    table = np.zeros((25, 2))
    table[: len(first)], table[12 : 12 + len(second)] = first[:, [0, 2]], second[:, [0, 2]]
    assert (front.chosen @ table == np.stack((front.kept_bytes, front.time_s), axis=1)).all()
