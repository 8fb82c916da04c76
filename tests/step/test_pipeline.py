"""The 1F1B recurrence against its closed form, an explicit longest path, and its laws."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from trainwright.step.pipeline import PipelineStage, one_f_one_b_ends_s

seconds = st.integers(0, 20).map(float)


def chain(
    times: list[tuple[float, float]], *, transfer_s: float = 0.0, replicas: list[int] | None = None
) -> list[PipelineStage]:
    degrees = replicas or [1] * len(times)
    behind = list(accumulate(reversed(degrees)))[::-1]
    return [
        PipelineStage(
            forward_s=forward,
            backward_s=backward,
            in_flight=-(-behind[i] // degrees[i]),
            replicas=degrees[i],
            feeds=((i + 1, transfer_s),) if i + 1 < len(times) else (),
        )
        for i, (forward, backward) in enumerate(times)
    ]


def longest_path_ends_s(stages: list[PipelineStage], num_microbatches: int) -> list[float]:
    """Straight from the definition: relax all constraints until nothing moves."""
    orders: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for i, stage in enumerate(stages):
        for replica in range(stage.replicas):
            own = list(range(replica, num_microbatches, stage.replicas))
            warm = min(stage.in_flight, len(own))
            order = [("F", j) for j in own[:warm]]
            for done, j in enumerate(own):
                order.append(("B", j))
                if warm + done < len(own):
                    order.append(("F", own[warm + done]))
            orders[i, replica] = order
    duration = {"F": [s.forward_s for s in stages], "B": [s.backward_s for s in stages]}
    end = {
        (i, kind, j): 0.0
        for i in range(len(stages))
        for kind in "FB"
        for j in range(num_microbatches)
    }
    for _ in range(2 * len(stages) * num_microbatches + 1):
        before = dict(end)
        for (i, _replica), order in orders.items():
            previous = 0.0
            for kind, j in order:
                start = previous
                for other, stage in enumerate(stages):
                    for target, transfer_s in stage.feeds:
                        if kind == "F" and target == i:
                            start = max(start, end[other, "F", j] + transfer_s)
                        if kind == "B" and other == i:
                            start = max(start, end[target, "B", j] + transfer_s)
                previous = end[i, kind, j] = start + duration[kind][i]
        if end == before:
            break
    else:
        raise AssertionError("the constraints have a cycle")
    return [max(end[i, "B", j] for j in range(num_microbatches)) for i in range(len(stages))]


@given(p=st.integers(1, 6), m=st.integers(1, 12), forward=seconds, backward=seconds)
def test_equal_stages_take_the_closed_form(p: int, m: int, forward: float, backward: float) -> None:
    """Narayanan et al., 2019: (m + p − 1)(F + B)."""
    ends = one_f_one_b_ends_s(chain([(forward, backward)] * p), num_microbatches=m)
    assert max(ends) == pytest.approx((m + p - 1) * (forward + backward))
    assert ends[0] == max(ends)


@cases(60)
@given(
    times=st.lists(st.tuples(seconds, seconds), min_size=1, max_size=4),
    m=st.integers(1, 6),
    transfer_s=seconds,
)
def test_unequal_stages_follow_the_longest_path(
    times: list[tuple[float, float]], m: int, transfer_s: float
) -> None:
    stages = chain(times, transfer_s=transfer_s)
    expected = longest_path_ends_s(stages, m)
    assert list(one_f_one_b_ends_s(stages, num_microbatches=m)) == expected


@cases(60)
@given(
    times=st.lists(st.tuples(seconds, seconds), min_size=1, max_size=4),
    data=st.data(),
)
def test_unequal_replicas_never_block_each_other(
    times: list[tuple[float, float]], data: st.DataObject
) -> None:
    replicas = [data.draw(st.sampled_from([1, 2, 3, 6])) for _ in times]
    m = 6 * data.draw(st.integers(1, 2))
    stages = chain(times, transfer_s=1.0, replicas=replicas)
    expected = longest_path_ends_s(stages, m)
    assert list(one_f_one_b_ends_s(stages, num_microbatches=m)) == expected


@given(
    times=st.lists(st.tuples(seconds, seconds), min_size=1, max_size=5),
    m=st.integers(1, 8),
    transfer_s=seconds,
    factor=st.sampled_from([0.5, 2.0, 8.0]),
)
def test_scaling_all_times_scales_the_ends(
    times: list[tuple[float, float]], m: int, transfer_s: float, factor: float
) -> None:
    base = one_f_one_b_ends_s(chain(times, transfer_s=transfer_s), num_microbatches=m)
    scaled = [(f * factor, b * factor) for f, b in times]
    ends = one_f_one_b_ends_s(chain(scaled, transfer_s=transfer_s * factor), num_microbatches=m)
    assert ends == tuple(end * factor for end in base)


@given(
    times=st.lists(st.tuples(seconds, seconds), min_size=1, max_size=5),
    m=st.integers(1, 8),
    transfer_s=seconds,
)
def test_no_stage_beats_its_own_work_plus_the_way_there_and_back(
    times: list[tuple[float, float]], m: int, transfer_s: float
) -> None:
    ends = one_f_one_b_ends_s(chain(times, transfer_s=transfer_s), num_microbatches=m)
    for i, (forward, backward) in enumerate(times):
        before = sum(f + transfer_s for f, _ in times[:i])
        assert ends[i] >= before + m * (forward + backward)
    assert max(ends) >= sum(f + b for f, b in times) + 2 * transfer_s * (len(times) - 1)


def test_branches_run_beside_each_other() -> None:
    """Stage 0 feeds 1 and 2, both feed 3; nothing joins 1 and 2."""
    feeds = (((1, 0.0), (2, 0.0)), ((3, 0.0),), ((3, 0.0),), ())
    stages = [
        PipelineStage(forward_s=1.0, backward_s=1.0, in_flight=4 - i, feeds=feeds[i])
        for i in range(4)
    ]
    assert max(one_f_one_b_ends_s(stages, num_microbatches=1)) == 6.0


@st.composite
def branching(draw: st.DrawFn) -> tuple[list[PipelineStage], int]:
    """Stages that skip ahead, with replicas of their own, and more microbatches than are held."""
    m = draw(st.sampled_from([4, 8, 12, 24]))
    p = draw(st.integers(2, 4))
    degrees = [draw(st.sampled_from([d for d in (1, 2, 3, 4, 6) if m % d == 0])) for _ in range(p)]
    behind = list(accumulate(reversed(degrees)))[::-1]
    stages = []
    for i, d in enumerate(degrees):
        targets = [j for j in range(i + 1, p) if j == i + 1 or draw(st.booleans())]
        stages.append(
            PipelineStage(
                forward_s=draw(seconds),
                backward_s=draw(seconds),
                in_flight=min(-(-behind[i] // d), m // d),
                replicas=d,
                feeds=tuple((j, draw(seconds)) for j in targets),
            )
        )
    return stages, m


@cases(40)
@given(branching())
def test_branches_follow_the_longest_path(drawn: tuple[list[PipelineStage], int]) -> None:
    """What the core forgets is never asked for again."""
    stages, m = drawn
    assert list(one_f_one_b_ends_s(stages, num_microbatches=m)) == longest_path_ends_s(stages, m)


def test_a_million_microbatches_take_no_more_memory_than_a_few() -> None:
    """Equal stages: (m + p − 1)(F + B), and the ends kept do not grow with m."""
    stages = chain([(1.0, 2.0)] * 4)
    assert max(one_f_one_b_ends_s(stages, num_microbatches=10**6)) == 3.0 * (10**6 + 3)
