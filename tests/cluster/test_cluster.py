"""Clusters: how many devices, which networks, what is refused."""

import math
import pickle
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.cluster import (
    Accelerator,
    Cluster,
    NetworkLevel,
    Pool,
    crossed_level,
    group_hops,
)
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats import catalog


def level(size: int, name: str = "net") -> NetworkLevel:
    return NetworkLevel(name=name, size=size, bandwidth_bytes_per_s=1e9, latency_s=1e-6)


def h100() -> Accelerator:
    return catalog.accelerator("H100-80GB-SXM")


def test_nodes_grow_the_outermost_level() -> None:
    cluster = catalog.cluster("dgx-h100").with_nodes(4)
    assert [lv.size for lv in cluster.levels] == [8, 4]
    assert cluster.num_devices == 32
    assert cluster.pool_of().num_nodes == 4


def test_nodes_fill_inner_levels_first() -> None:
    nvl72 = catalog.cluster("gb200-nvl72")
    assert [lv.size for lv in nvl72.with_nodes(9).levels] == [4, 9, 1]
    assert [lv.size for lv in nvl72.with_nodes(36).levels] == [4, 18, 2]
    # 64 of the 72 devices of each domain, as NVIDIA publishes runs of 128 and 256.
    assert [lv.size for lv in nvl72.with_nodes(32).levels] == [4, 16, 2]
    assert [lv.size for lv in nvl72.with_nodes(64).levels] == [4, 16, 4]
    with pytest.raises(InvalidInput, match="at least half"):
        nvl72.with_nodes(37)


def test_a_level_named_node_is_where_a_node_ends() -> None:
    pool = Pool(accelerator=h100(), levels=(level(2), level(4, "node"), level(3)))
    assert (pool.devices_per_node, pool.num_nodes) == (8, 3)
    assert [lv.size for lv in pool.with_nodes(5).levels] == [2, 4, 5]
    outermost = Pool(accelerator=h100(), levels=(level(8), level(3, "node")))  # 3 nodes of 8
    assert (outermost.devices_per_node, outermost.num_nodes) == (8, 3)


@pytest.mark.parametrize("name", ["mi250x", "dgx-h100", "mi300x", "gh200"])
def test_a_name_and_one_node_are_the_same(name: str) -> None:
    assert catalog.cluster(name).with_nodes(1) == catalog.cluster(name)


def test_a_single_level_cannot_grow() -> None:
    pool = Pool(accelerator=h100(), levels=(level(8),))
    assert pool.with_nodes(1) is pool
    with pytest.raises(InvalidInput, match="single level"):
        pool.with_nodes(2)
    with pytest.raises(InvalidInput, match=">= 1"):
        pool.with_nodes(0)


def test_a_mixed_cluster_has_pools_joined_by_a_level() -> None:
    fast = Pool(accelerator=h100(), levels=(level(8),))
    slow = Pool(accelerator=catalog.accelerator("A100-80GB-SXM"), levels=(level(8), level(2)))
    cluster = Cluster(name="mixed", pools=(fast, slow), joint=level(2, "ethernet"))
    assert cluster.num_devices == 24
    assert cluster.pool_of("A100-80GB-SXM") is slow
    with pytest.raises(UnsupportedFeature, match="name a device kind of H100"):
        cluster.pool_of()
    with pytest.raises(UnsupportedFeature, match="it has H100"):
        cluster.pool_of("TPU")


def test_pools_without_a_joint_and_joints_of_a_wrong_size_are_refused() -> None:
    pool = Pool(accelerator=h100(), levels=(level(8),))
    with pytest.raises(InvalidInput, match="joint"):
        Cluster(name="x", pools=(pool, pool))
    with pytest.raises(InvalidInput, match=r"joint\.size"):
        Cluster(name="x", pools=(pool, pool), joint=level(3))


def test_an_accelerator_names_every_constant_that_cannot_be() -> None:
    good = h100()
    with pytest.raises(InvalidInput) as caught:
        replace(
            good,
            peak_flops_per_s=(("bf16", math.nan),),
            memory_bandwidth_bytes_per_s=0.0,
            launch_overhead_s=-1.0,
            usable_fraction=1.5,
            efficiency=replace(good.efficiency, attention_forward=0.0),
        )
    assert [fault.path for fault in caught.value.faults] == [
        "peak_flops_per_s.bf16",
        "memory_bandwidth_bytes_per_s",
        "launch_overhead_s",
        "usable_fraction",
        "efficiency.attention_forward",
    ]


def test_a_level_names_every_constant_that_cannot_be() -> None:
    with pytest.raises(InvalidInput) as caught:
        NetworkLevel(
            name="x",
            size=0,
            bandwidth_bytes_per_s=0.0,
            latency_s=-1.0,
            efficiency=2.0,
            oversubscription=0.5,
        )
    assert len(caught.value.faults) == 5


def test_a_missing_peak_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnsupportedFeature, match="no bf16 peak; it has fp16, fp32"):
        catalog.accelerator("V100-SXM2-32GB").peak("bf16")
    assert catalog.accelerator("V100-SXM2-32GB").default_precision == "fp16"


def test_clusters_survive_pickling() -> None:
    cluster = catalog.cluster("dgx-h100").with_nodes(2)
    assert pickle.loads(pickle.dumps(cluster)) == cluster


@pytest.mark.parametrize(
    ("ranks", "stride", "expected"),
    [
        (1, 1, []),
        (8, 1, [("inner", 8)]),
        (16, 1, [("inner", 8), ("outer", 2)]),
        (4, 2, [("inner", 4)]),
        (8, 4, [("inner", 2), ("outer", 4)]),
        (4, 8, [("outer", 4)]),
        (2, 16, [("outer", 2)]),
    ],
)
def test_a_group_meets_its_members_level_by_level(
    ranks: int, stride: int, expected: list[tuple[str, int]]
) -> None:
    levels = (level(8, "inner"), level(4, "outer"))
    hops = group_hops(levels, ranks=ranks, stride=stride)
    assert [(hop.level.name, hop.ranks) for hop in hops] == expected


@pytest.mark.parametrize(
    ("ranks", "stride", "expected"),
    [
        (3, 1, [("outer", 3)]),  # 6, 7 | 8
        (6, 1, [("inner", 2), ("outer", 3)]),  # 6, 7 | 8, 9, 10, 11
        (12, 1, [("inner", 4), ("outer", 3)]),
        (4, 2, [("inner", 4)]),
        (2, 3, [("outer", 2)]),  # 6 | 9
    ],
)
def test_groups_side_by_side_are_priced_as_the_one_that_lies_worst(
    ranks: int, stride: int, expected: list[tuple[str, int]]
) -> None:
    levels = (level(8, "inner"), level(4, "outer"))
    hops = group_hops(levels, ranks=ranks, stride=stride, tiles=None)
    assert [(hop.level.name, hop.ranks) for hop in hops] == expected


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3), data=st.data())
def test_no_group_side_by_side_lies_worse_than_said(sizes: list[int], data: st.DataObject) -> None:
    levels = tuple(level(size, str(i)) for i, size in enumerate(sizes))
    devices = math.prod(sizes)
    ranks = data.draw(st.integers(2, max(2, devices)))
    stride = data.draw(st.integers(1, max(1, devices // ranks)))
    span = ranks * stride
    if span > devices:
        return
    hops = group_hops(levels, ranks=ranks, stride=stride, tiles=None)
    places = {hop.level.name: hop.ranks for hop in hops}
    for start in range(0, devices - span + 1, span):
        members = [start + lane + stride * k for lane in range(stride) for k in range(ranks)]
        unit, inside = 1, 1
        for own in levels:
            unit *= own.size
            inside *= places.get(own.name, 1)
            for lane in range(stride):
                pieces = Counter(m // unit for m in members[lane * ranks : (lane + 1) * ranks])
                assert min(pieces.values()) >= min(inside, ranks)


def test_a_group_beyond_the_devices_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at most 8"):
        group_hops((level(8),), ranks=3, stride=4)


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3), data=st.data())
def test_every_rank_of_a_group_is_reached(sizes: list[int], data: st.DataObject) -> None:
    levels = tuple(level(size, str(i)) for i, size in enumerate(sizes))
    devices = math.prod(sizes)
    ranks = data.draw(st.integers(1, devices))
    stride = data.draw(st.integers(1, max(1, (devices - 1) // max(1, ranks - 1))))
    hops = group_hops(levels, ranks=ranks, stride=stride)
    assert math.prod(hop.ranks for hop in hops) >= ranks
    assert all(hop.ranks > 1 for hop in hops)
    if ranks > 1:
        far = crossed_level(levels, 0, (ranks - 1) * stride)
        assert hops[-1].level == far


def test_a_message_crosses_the_outermost_level_that_separates_its_ends() -> None:
    levels = (level(8, "inner"), level(4, "outer"))
    assert crossed_level(levels, 3, 3) is None
    several = crossed_level(levels, [0, 7, 3], [7, 8, 3])
    assert several is not None
    assert several.name == "outer"
    for source, target, name in ((0, 7, "inner"), (7, 8, "outer"), (0, 31, "outer")):
        crossed = crossed_level(levels, source, target)
        assert crossed is not None
        assert crossed.name == name
