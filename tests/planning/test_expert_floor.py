"""What experts compute at least, however they are dealt out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exhaustive import TINY_MIXTURE, asked, two_nodes_of_two
from trainwright.model import RunShape
from trainwright.planning.bounds.layers import PointWork, least_layers, least_share, with_exchanges
from trainwright.planning.question.question import Point, estimate_profile
from trainwright.profile import Recompute

EXPERTS = 8


@given(
    tensor=st.sampled_from([1, 2, 4, 8]),
    tokens=st.integers(1, 40),
    chosen=st.integers(1, 8),
    capacity=st.none() | st.floats(0.01, 2),
    imbalance=st.floats(1, 3),
    data=st.data(),
)
def test_no_cut_of_experts_computes_less_than_the_least_share(
    tensor, tokens, chosen, capacity, imbalance, data
):
    """Rows times the width that a device has of an expert; a few tokens round up most."""
    whole = RunShape(
        microbatch_size=1,
        sequence_length=tokens,
        tensor_parallel=tensor,
        expert_tensor_parallel=1,
        capacity_factor=capacity,
        expert_imbalance=imbalance,
    )
    least = least_share(whole, chosen, EXPERTS) * whole.expert_rows(chosen, EXPERTS)
    cut = data.draw(st.sampled_from([x for x in (1, 2, 4, 8) if x <= tensor]))
    shared = replace(whole, expert_tensor_parallel=cut)
    assert 0 < least <= shared.expert_rows(chosen, EXPERTS) / cut * (1 + 1e-12)
    assert least >= whole.expert_rows(chosen, EXPERTS) - 1


@pytest.mark.parametrize("inside_bytes_per_s", [2e9, 20e9, 100e9])
@pytest.mark.parametrize("width", [512, 4096])
def test_a_gather_may_hide_under_other_experts_than_the_shared_ones(inside_bytes_per_s, width):
    """Experts cut as the rest take tokens where they are: one gather serves all of them."""
    shared = replace(TINY_MIXTURE, experts=replace(TINY_MIXTURE.experts, shared_ffn_size=width))
    cluster = two_nodes_of_two(10e9)
    inner, outer = cluster.levels
    slow = replace(inner, bandwidth_bytes_per_s=inside_bytes_per_s)
    cluster = replace(cluster, pools=(replace(cluster.pools[0], levels=(slow, outer)),))
    question = asked(shared, memory_gib=60, cluster=cluster)
    point = Point(microbatch_size=4, tensor=2, expert=1, expert_tensor=2)
    work = PointWork.of(estimate_profile(question.estimator(), question, point))
    least = with_exchanges(question, point, least_layers(question, point))
    floor_s = sum(each.time_s * each.num_layers for each in least)
    assert 0 < floor_s <= float(work.trade.time_s[-1]) * (1 + 1e-9)


@pytest.mark.parametrize("mode", list(Recompute))
def test_blocks_that_must_recompute_have_it_in_their_floor(mode):
    """The floor of one mode lies above that of all modes and below what the mode costs."""
    question = asked(TINY_MIXTURE, memory_gib=60)
    only = replace(question, allowed=replace(question.allowed, recompute=(mode,)))
    point = Point(microbatch_size=4, tensor=2, expert=1, expert_tensor=2)

    def floor_s(of):
        least = with_exchanges(of, point, least_layers(of, point))
        return sum(each.time_s * each.num_layers for each in least)

    work = PointWork.of(estimate_profile(only.estimator(), only, point))
    assert floor_s(only) <= float(work.trade.time_s[-1]) * (1 + 1e-9)
    assert (floor_s(only) > floor_s(question)) is mode.repeats
