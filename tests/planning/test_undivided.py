"""The busiest rank against every way to deal layers to ranks."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainwright.planning.bounds.layers import undivided_work_s


def busiest_s(layers, num_ranks: int) -> float:
    """The least of all ways to deal them."""
    dealt = product(range(num_ranks), repeat=len(layers) - 1)
    return min(
        max(np.bincount((0, *owners), weights=layers, minlength=num_ranks)) for owners in dealt
    )


@given(
    block_s=st.floats(0.1, 10),
    num_blocks=st.integers(1, 4),
    others=st.lists(st.tuples(st.floats(0, 20) | st.floats(0, 1), st.integers(0, 2)), max_size=2),
    num_ranks=st.integers(1, 3),
)
def test_no_way_to_deal_layers_beats_the_bound(block_s, num_blocks, others, num_ranks):
    class_s = np.array([block_s, *(each for each, _ in others)])
    counts = np.array([num_blocks, *(count for _, count in others)])
    bound_s = undivided_work_s(class_s, counts, np.array([num_ranks]))[0]
    layers = np.repeat(class_s, counts).tolist()
    assert bound_s <= busiest_s(layers, num_ranks) * (1 + 1e-9)


def test_a_head_of_most_of_a_block_costs_the_ranks_what_it_is_longer_than_their_rest():
    # Ten blocks on each of 8 ranks, and on one of them a head of 0.9 blocks.
    bound_s = undivided_work_s(np.array([2.0, 1.8]), np.array([80, 1]), np.array([8, 9]))
    assert bound_s[0] == np.float64(2.0 * 10.9) * (1 - 1e-9)
    assert bound_s[1] == 2.0 * 9 * (1 - 1e-9)  # 81 places for 80 blocks: the head takes the last


def test_layers_that_are_longer_than_what_blocks_leave_of_a_rank_each_cost_a_block():
    # Two blocks on each of 30 ranks leave 0.2 of a block, and two places: three layers of 0.8.
    bound_s = undivided_work_s(np.array([1.0, 0.8]), np.array([58, 3]), np.array([30]))
    assert bound_s[0] == np.float64(2 + (2.4 - 2) / 3) * (1 - 1e-9)
