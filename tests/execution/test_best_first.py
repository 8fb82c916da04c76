"""Nodes that wait by their bounds: taken in order, ties as they came, a bound on what is left."""

import math

from hypothesis import given
from hypothesis import strategies as st

from trainwright.execution.best_first import BestFirst

BOUNDS = st.lists(st.integers(0, 9).map(float), max_size=30)


def waiting_of(bounds):
    waiting = BestFirst()
    for number, bound in enumerate(bounds):
        waiting.add(bound, number)
    return waiting


@given(BOUNDS)
def test_nodes_come_by_their_bounds_and_equal_ones_as_they_were_added(bounds):
    waiting = waiting_of(bounds)
    expected = sorted(zip(bounds, range(len(bounds)), strict=True))
    assert waiting.soonest(3) == expected[:3]
    assert list(waiting.opened()) == expected
    assert (len(waiting), waiting.least) == (0, math.inf)


@given(BOUNDS, st.integers(0, 9), st.integers(0, 30))
def test_what_is_left_is_no_better_than_the_least_bound(bounds, limit, most):
    waiting, taken = waiting_of(bounds), []
    for bound, node in waiting.opened(below=lambda: limit, stopped=lambda: len(taken) >= most):
        taken.append((bound, node))
    expected = sorted(zip(bounds, range(len(bounds)), strict=True))
    assert taken == [entry for entry in expected if entry[0] < limit][:most]
    assert sorted(waiting) == expected[len(taken) :]
    assert waiting.least == min((bound for bound, _ in waiting), default=math.inf)


@given(BOUNDS)
def test_revised_nodes_keep_their_order_and_those_without_a_bound_leave(bounds):
    waiting = waiting_of(bounds)
    waiting.revise(lambda bound, node: None if node % 3 == 0 else bound // 2)
    expected = sorted((bound // 2, node) for node, bound in enumerate(bounds) if node % 3)
    assert list(waiting.opened()) == expected


@given(BOUNDS.filter(len))
def test_a_sharpened_node_keeps_its_place_among_equal_bounds(bounds):
    waiting = waiting_of(bounds)
    first = waiting.first
    waiting.sharpen_first(5.0, first)
    changed = [5.0 if node == first else bound for node, bound in enumerate(bounds)]
    assert list(waiting.opened()) == sorted(zip(changed, range(len(bounds)), strict=True))


def test_ties_go_by_what_is_said_where_it_is_said():
    waiting = BestFirst()
    for path in ("10", "01", "1", "0"):
        waiting.add(1.0, path, tie=path)
    assert [node for _, node in waiting.opened()] == ["0", "01", "1", "10"]
