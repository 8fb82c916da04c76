"""Collectives against the formulas of the α–β model, and their laws."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.cluster import Hop, NetworkLevel
from trainwright.costing.communication import (
    all_gather_time_s,
    all_reduce_time_s,
    all_to_all_time_s,
    collective_time_s,
    hops_within,
    point_to_point_time_s,
    tokens_time_s,
)
from trainwright.model import Routing

FAST = NetworkLevel(name="fast", size=8, bandwidth_bytes_per_s=400e9, latency_s=3e-6)
SLOW = NetworkLevel(name="slow", size=4, bandwidth_bytes_per_s=50e9, latency_s=8e-6, efficiency=0.8)
ranks = st.integers(2, 64)
payloads = st.floats(0.0, 1e11)


def hop(level: NetworkLevel, count: int) -> Hop:
    return Hop(level=level, ranks=count)


def test_a_group_of_one_needs_no_time() -> None:
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point"):
        assert collective_time_s(kind, 1e9, ()) == 0.0
    assert point_to_point_time_s(1e9, None) == 0.0


@pytest.mark.parametrize(
    ("near", "inside", "across"),
    [
        (1, (), (8, 4)),
        (2, (2,), (4, 4)),
        (8, (8,), (4,)),
        (16, (8, 2), (2,)),
        (32, (8, 4), ()),
    ],
)
def test_neighbours_meet_inside_and_their_groups_across(
    near: int, inside: tuple[int, ...], across: tuple[int, ...]
) -> None:
    whole = (hop(FAST, 8), hop(SLOW, 4))
    assert tuple(h.ranks for h in hops_within(whole, nearest=near)) == inside
    assert tuple(h.ranks for h in hops_within(whole, apart=near)) == across
    assert hops_within(whole) == whole


@given(n=ranks, payload=payloads)
def test_gather_and_scatter_follow_the_ring(n: int, payload: float) -> None:
    expected = (n - 1) * 3e-6 + (n - 1) / n * payload / 400e9
    assert all_gather_time_s(payload, (hop(FAST, n),)) == pytest.approx(expected)
    assert collective_time_s("reduce_scatter", payload, (hop(FAST, n),)) == pytest.approx(expected)


@given(n=ranks, payload=payloads)
def test_all_reduce_takes_the_better_of_ring_and_tree(n: int, payload: float) -> None:
    ring = 2 * (n - 1) * 3e-6 + 2 * (n - 1) / n * payload / 400e9
    tree = 2 * math.ceil(math.log2(n)) * 3e-6 + 2 * payload / 400e9
    assert all_reduce_time_s(payload, (hop(FAST, n),)) == pytest.approx(min(ring, tree))


def test_a_small_all_reduce_takes_the_tree_and_a_large_one_the_ring() -> None:
    group = (hop(FAST, 8),)
    assert all_reduce_time_s(0.0, group) == pytest.approx(6 * 3e-6)
    assert all_reduce_time_s(8e9, group) == pytest.approx(14 * 3e-6 + 2 * 7 / 8 * 8e9 / 400e9)


def test_across_nodes_only_the_shard_travels() -> None:
    """Scatter among 8, all-reduce an eighth among 4, gather among 8."""
    payload = 8e9
    inside = 7 * 3e-6 + 7 / 8 * payload / 400e9
    across = 2 * 3 * 8e-6 + 2 * 3 / 4 * (payload / 8) / 40e9
    found = all_reduce_time_s(payload, (hop(FAST, 8), hop(SLOW, 4)))
    assert found == pytest.approx(2 * inside + across)


def test_an_all_to_all_sends_far_only_what_leaves_the_node() -> None:
    payload = 32e9
    near = 7 * 3e-6 + 7 / 32 * payload / 400e9
    far = 3 * 8e-6 + 24 / 32 * payload / 40e9
    found = all_to_all_time_s(payload, (hop(FAST, 8), hop(SLOW, 4)))
    assert found == pytest.approx(near + far)


GROUPED = Routing(num_experts=256, experts_per_token=8, num_groups=8, groups_per_token=4, ranks=64)


def test_tokens_cross_to_a_node_once_and_are_passed_on_meanwhile() -> None:
    """DeepSeek-V3's expert group: 3.63 nodes of 8 and 7.36 devices of 64 a token."""
    nodes = hop(NetworkLevel(name="x", size=8, bandwidth_bytes_per_s=40e9, latency_s=8e-6), 8)
    payload = 8 * 64e6  # 64 MB of tokens, 8 copies of each
    far = 7 / 8 * 4 * (1 - math.comb(96, 8) / math.comb(128, 8)) * 64e6 / 40e9
    starts = 7 * 3e-6 + 7 * 8e-6
    found = tokens_time_s(payload, (hop(FAST, 8), nodes), GROUPED)
    assert found == pytest.approx(starts + far)
    assert found < all_to_all_time_s(payload, (hop(FAST, 8), nodes)) / 2
    near = 7 / 8 * GROUPED.units_met(1) * 64e6 / 1e9
    slow_inside = hop(NetworkLevel(name="y", size=8, bandwidth_bytes_per_s=1e9, latency_s=3e-6), 8)
    assert tokens_time_s(payload, (slow_inside, nodes), GROUPED) == pytest.approx(starts + near)


def test_tokens_inside_a_node_go_to_each_device_once() -> None:
    routing = Routing(num_experts=8, experts_per_token=2, ranks=4)
    met = 4 * (1 - math.comb(6, 2) / math.comb(8, 2))
    found = tokens_time_s(2e9, (hop(FAST, 4),), routing)
    assert found == pytest.approx(3 * 3e-6 + 3 / 4 * met * 1e9 / 400e9)
    assert tokens_time_s(2e9, (), routing) == 0.0


@given(
    outer=st.integers(2, 8),
    groups=st.sampled_from([1, 2, 4, 8]),
    share=st.floats(0, 1),
    payload=payloads,
)
def test_a_limit_on_groups_never_adds_to_what_crosses(
    outer: int, groups: int, share: float, payload: float
) -> None:
    """Nor do tokens that cross once ever send more bytes far than copies do."""
    free = Routing(num_experts=64, experts_per_token=8, ranks=64)
    used = max(1, round(share * groups))
    limited = Routing(
        num_experts=64,
        experts_per_token=8,
        num_groups=groups,
        groups_per_token=used,
        ranks=64,
    )
    group = (hop(FAST, 8), hop(SLOW, outer))
    least, most = (tokens_time_s(payload, group, each) for each in (limited, free))
    assert least <= most * (1 + 1e-12)
    far = (1 - 1 / outer) * payload / SLOW.effective_bytes_per_s
    near = (1 - 1 / 8) * payload / FAST.effective_bytes_per_s
    starts = 7 * FAST.latency_s + (outer - 1) * SLOW.latency_s
    assert most <= (starts + max(far, near)) * (1 + 1e-12)


def test_oversubscription_divides_the_bandwidth() -> None:
    level = NetworkLevel(
        name="x", size=4, bandwidth_bytes_per_s=1e9, latency_s=0.0, oversubscription=4.0
    )
    assert point_to_point_time_s(1e9, level) == pytest.approx(4.0)


@given(inner=st.integers(2, 16), outer=st.integers(2, 64), payload=payloads, more=st.floats(1, 9))
def test_collectives_grow_with_the_payload(
    inner: int, outer: int, payload: float, more: float
) -> None:
    group = (hop(FAST, inner), hop(SLOW, outer))
    for kind in ("all_reduce", "all_gather", "all_to_all", "point_to_point"):
        smaller = collective_time_s(kind, payload, group)
        assert collective_time_s(kind, payload * more, group) >= smaller * (1 - 1e-12)


@given(inner=st.integers(2, 16), outer=st.integers(2, 64), payload=payloads)
def test_reducing_costs_no_less_than_gathering_and_no_more_than_both_passes(
    inner: int, outer: int, payload: float
) -> None:
    group = (hop(FAST, inner), hop(SLOW, outer))
    gather = all_gather_time_s(payload, group)
    reduce = all_reduce_time_s(payload, group)
    assert reduce <= 2 * gather * (1 + 1e-12)
    ranks_in_all = inner * outer
    bound = 2 * (ranks_in_all - 1) / ranks_in_all * payload / 400e9
    assert reduce >= bound * (1 - 1e-12)
