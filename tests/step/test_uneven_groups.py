"""Groups that units of the network cut: against a count of the devices of every group."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trainwright.cluster import Hop, NetworkLevel, launched_evenly
from trainwright.formats import catalog
from trainwright.plans.plan import AXIS_ORDERS, DATA_INSIDE, PIPELINE_INSIDE, Parallelism
from trainwright.step.stages import copy_hops, replica_hops

Groups = dict[tuple[int, ...], list[int]]


def level(size: int, name: str = "") -> NetworkLevel:
    return NetworkLevel(name=name, size=size, bandwidth_bytes_per_s=1e9, latency_s=1e-6)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[int], Parallelism, int]:
    """Sizes of levels, degrees that they have devices for, and how far apart like experts lie."""
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    devices = math.prod(sizes)
    t, c, p = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 9))
    assume(t * c * p <= devices)
    d = draw(st.integers(1, min(20, devices // (t * c * p))))
    copies = draw(st.sampled_from([n for n in range(1, d + 1) if d % n == 0]))
    order = draw(st.sampled_from(AXIS_ORDERS))
    whole = t * c * d // copies if order == DATA_INSIDE else t * c
    apart = draw(st.sampled_from([n for n in range(1, whole + 1) if whole % n == 0]))
    degrees = Parallelism(
        tensor=t,
        context=c,
        data=d,
        pipeline=p,
        state_copies=copies,
        expert=apart,
        expert_tensor=1,
        axis_order=order,
    )
    return sizes, degrees, apart


def groups_of(degrees: Parallelism, apart: int) -> tuple[Groups, Groups, Groups]:
    """Devices of all groups: of dense replicas, of those of experts, of copies of their state."""
    t, c, d, p = degrees.tensor, degrees.context, degrees.data, degrees.pipeline
    shards = d // degrees.state_copies
    dense: Groups = defaultdict(list)
    expert: Groups = defaultdict(list)
    copies: Groups = defaultdict(list)
    for rank in range(p):
        for k in range(d):
            for i in range(c * t):
                if degrees.axis_order == PIPELINE_INSIDE:
                    device, within = (k * p + rank) * c * t + i, i
                else:
                    device, within = (rank * d + k) * c * t + i, k * c * t + i
                dense[rank, k // shards, i % t].append(device)
                expert[rank, k // shards, within % apart].append(device)
                copies[rank, k % shards, i].append(device)
    return dense, expert, copies


def met(groups: Groups, sizes: list[int]) -> list[tuple[str, int]]:
    """Who meets where if each group had in every unit what the smallest piece of any has."""
    found, unit, inside = [], 1, 1
    for number, size in enumerate(sizes):
        unit *= size
        least = min(min(Counter(x // unit for x in own).values()) for own in groups.values())
        if (meeting := -(-least // inside)) > 1:
            found.append((str(number), meeting))
            inside *= meeting
    return found


def shown(hops: tuple[Hop, ...]) -> list[tuple[str, int]]:
    return [(hop.level.name, hop.ranks) for hop in hops]


@settings(max_examples=300)
@given(layout=layouts())
def test_groups_lie_as_a_count_of_their_devices_says(
    layout: tuple[list[int], Parallelism, int],
) -> None:
    sizes, degrees, apart = layout
    levels = tuple(level(size, str(number)) for number, size in enumerate(sizes))
    groups = groups_of(degrees, apart)
    dense, expert = replica_hops(levels, degrees, start=0)
    found = dense, expert, copy_hops(levels, degrees, start=0)
    assert [shown(own) for own in found] == [met(own, sizes) for own in groups]


@settings(max_examples=300)
@given(layout=layouts())
def test_groups_that_divide_evenly_lie_as_one_from_the_first_device_on(
    layout: tuple[list[int], Parallelism, int],
) -> None:
    """What was said before pieces were counted: units hold whole groups or are part of one."""
    sizes, degrees, _ = layout
    t, d = degrees.tensor, degrees.data * degrees.context
    units = [math.prod(sizes[: n + 1]) for n in range(len(sizes))]
    degrees = replace(degrees, state_copies=1, axis_order=DATA_INSIDE, expert=1)
    assume(all(n % (t * d) == 0 or t * d % n == 0 for n in units[:-1]))
    levels = tuple(level(size, str(number)) for number, size in enumerate(sizes))
    expected, inside = [], 1
    for number, unit in enumerate(units):
        members = d if (d - 1) * t < unit else max(1, unit // t)
        if (meeting := -(-members // inside)) > 1:
            expected.append((str(number), meeting))
            inside *= meeting
    assert shown(replica_hops(levels, degrees)[0]) == expected


@pytest.mark.parametrize(
    ("data", "pipeline", "near", "far"),
    [
        (12, 2, 4, 3),  # 0-7 | 8-11, 12-15 | 16-23
        (12, 1, 6, 2),  # six processes on each of two nodes
        (3, 8, 1, 3),  # 6, 7 | 8
        (3, 2, 3, 1),  # 0-2, 3-5
        (5, 2, 2, 3),  # 5-7 | 8, 9
        (24, 1, 8, 3),
        (16, 2, 8, 2),
    ],
)
def test_replicas_meet_as_the_smallest_piece_of_a_group_does(
    data: int, pipeline: int, near: int, far: int
) -> None:
    levels = catalog.cluster("dgx-h100").with_nodes(4).levels
    dense, _ = replica_hops(levels, Parallelism(data=data, pipeline=pipeline))
    assert [hop.ranks for hop in dense] == [n for n in (near, far) if n > 1]


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    devices=st.integers(1, 60),
    together=st.integers(1, 4),
)
def test_a_launch_with_as_many_processes_everywhere_fits_and_keeps_neighbours_together(
    sizes: list[int], devices: int, together: int
) -> None:
    assume(devices % together == 0 and devices <= math.prod(sizes))
    levels = tuple(level(size) for size in sizes)
    found = launched_evenly(levels, devices, together)
    if found == levels:
        return
    own = [each.size for each in found]
    assert math.prod(own) == devices
    assert all(size <= most for size, most in zip(own, sizes, strict=True))
    units = [math.prod(sizes[: n + 1]) for n in range(len(sizes))]
    filled = [math.prod(own[: n + 1]) for n in range(len(own))]
    for unit, part in zip(units, filled, strict=True):
        assert part % together == 0 or part == unit or unit >= math.prod(sizes)
    pieces = [min(Counter(x // unit for x in range(devices)).values()) for unit in units]
    first = next(n for n in range(len(own)) if filled[n] != pieces[n])
    assert filled[first] > pieces[first]


def test_replicas_that_an_even_launch_would_tear_stay_on_full_nodes() -> None:
    levels = catalog.cluster("dgx-h100").with_nodes(2).levels
    assert launched_evenly(levels, 12, 4) == levels  # fours stay together: 8 | 4
    assert [each.size for each in launched_evenly(levels, 12, 2)] == [6, 2]
    assert launched_evenly(levels, 16, 1) == levels
