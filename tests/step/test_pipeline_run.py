"""The simulated pipeline: against an independent recurrence, and its shortcut for long steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from trainwright.errors import InvalidInput
from trainwright.plans.schedule import ScheduleCosts, ScheduleMemory
from trainwright.scheduling.simulate import simulate
from trainwright.step.memory import StageActivations, rank_peaks
from trainwright.step.pipeline import (
    PipelineShape,
    PipelineStage,
    PipelineTimes,
    extrapolated_ends_s,
    one_f_one_b_ends_s,
    peak_shape,
    pipeline_ends_s,
    schedule_of,
    simulated_ends_s,
)

seconds = st.integers(0, 20).map(float)


@st.composite
def runs(draw: st.DrawFn, families: tuple[str, ...] = ("1f1b",)) -> tuple:
    family = draw(st.sampled_from(families))
    p = draw(st.integers(1, 4))
    chunked = family in ("interleaved", "depth-first")
    v = draw(st.integers(1, 3)) if chunked else 1
    groups = draw(st.integers(1, 4))
    rest = 0 if family == "interleaved" else draw(st.integers(0, p - 1))
    shape = PipelineShape(
        family=family, num_ranks=p, num_microbatches=p * groups + rest, virtual_stages=v
    )
    count = p * v

    def times(size: int) -> np.ndarray:
        return np.array(draw(st.lists(seconds, min_size=size, max_size=size)), np.float64)

    return shape, PipelineTimes(
        forward_s=times(count),
        input_grad_s=times(count),
        weight_grad_s=times(count),
        transfer_s=times(count - 1),
    )


@cases(60)
@given(run=runs())
def test_the_simulator_and_the_longest_path_of_1f1b_agree(run: tuple) -> None:
    shape, times = run
    p = shape.num_ranks
    stages = [
        PipelineStage(
            forward_s=times.forward_s[i],
            backward_s=times.input_grad_s[i] + times.weight_grad_s[i],
            in_flight=p - i,
            feeds=((i + 1, times.transfer_s[i]),) if i + 1 < p else (),
        )
        for i in range(p)
    ]
    expected = one_f_one_b_ends_s(stages, num_microbatches=shape.num_microbatches)
    assert list(pipeline_ends_s(shape, times)) == list(expected)


TIMELESS = (
    "gpipe",
    "1f1b",
    "eager-1f1b",
    "interleaved",
    "depth-first",
    "zb-h1",
    "zb-h2",
)


@cases(100)
@given(run=runs(TIMELESS))
def test_known_orders_end_when_the_simulator_says_to_the_last_bit(run: tuple) -> None:
    shape, times = run
    schedule = schedule_of(shape, times)
    placement = schedule.placement
    costs = ScheduleCosts.of(
        placement,
        forward_s=times.forward_s,
        input_grad_s=times.input_grad_s,
        weight_grad_s=times.weight_grad_s,
        transfer_s=times.transfer_s,
        memory=ScheduleMemory.of(placement),
    )
    timeline = simulate(schedule, costs)
    ends = [timeline.end_s[schedule.rows_of(rank)][-1] for rank in range(shape.num_ranks)]
    assert list(simulated_ends_s(shape, times)) == ends


BOUNDED = tuple(family for family in TIMELESS if family != "gpipe")


@cases(300)
@given(run=runs(BOUNDED), periods=st.integers(10, 40))
def test_a_long_step_extrapolated_equals_one_simulated(run: tuple, periods: int) -> None:
    shape, times = run
    p = shape.num_ranks
    long = shape.with_microbatches(shape.num_microbatches % p + periods * p)
    found = extrapolated_ends_s(long, times)
    if found is not None:
        assert found == pytest.approx(simulated_ends_s(long, times), rel=1e-9, abs=1e-9)


def test_equal_stages_are_always_extrapolated() -> None:
    for family in BOUNDED:
        shape = PipelineShape(family=family, num_ranks=4, num_microbatches=4000)
        ones = np.ones(4)
        times = PipelineTimes(
            forward_s=ones, input_grad_s=ones, weight_grad_s=ones, transfer_s=np.zeros(3)
        )
        found = extrapolated_ends_s(shape, times)
        assert found is not None, family
        assert found == pytest.approx(simulated_ends_s(shape, times), rel=1e-12)


def test_where_nothing_repeats_at_every_microbatch_all_are_simulated() -> None:
    """Eager 1F1B bound by transfers repeats after as many microbatches as are in flight."""
    zeros = np.zeros(2)
    times = PipelineTimes(
        forward_s=zeros, input_grad_s=zeros, weight_grad_s=zeros, transfer_s=np.ones(1)
    )
    shape = PipelineShape(family="eager-1f1b", num_ranks=2, num_microbatches=60)
    assert extrapolated_ends_s(shape, times) is None


@given(p=st.integers(1, 8), groups=st.integers(1, 4), v=st.integers(1, 4))
def test_interleaving_divides_the_bubble_by_its_chunks(p: int, groups: int, v: int) -> None:
    """Narayanan et al., 2021: m (F + B) + (p - 1)(F + B)/v, F and B of a rank."""
    m = p * groups
    times = PipelineTimes(
        forward_s=np.full(p * v, 1 / v),
        input_grad_s=np.full(p * v, 1 / v),
        weight_grad_s=np.full(p * v, 1 / v),
        transfer_s=np.zeros(p * v - 1),
    )
    shape = PipelineShape(family="interleaved", num_ranks=p, num_microbatches=m, virtual_stages=v)
    assert pipeline_ends_s(shape, times).max() == pytest.approx(3 * m + 3 * (p - 1) / v)


def test_interleaving_needs_groups_that_come_out_even() -> None:
    shape = PipelineShape(family="interleaved", num_ranks=4, num_microbatches=6, virtual_stages=2)
    zeros = np.zeros(8)
    times = PipelineTimes(
        forward_s=zeros, input_grad_s=zeros, weight_grad_s=zeros, transfer_s=np.zeros(7)
    )
    with pytest.raises(InvalidInput, match="must be a multiple of 4 ranks for interleaved, got 6"):
        pipeline_ends_s(shape, times)


def test_split_backward_hides_weight_gradients_in_the_bubble() -> None:
    """ZB-H1: (p - 1)(F + I - W) idle instead of (p - 1)(F + B). Qi et al., 2023, table 1."""
    ones = np.ones(4)
    times = PipelineTimes(
        forward_s=ones, input_grad_s=ones, weight_grad_s=ones, transfer_s=np.zeros(3)
    )
    ends = {
        family: pipeline_ends_s(
            PipelineShape(family=family, num_ranks=4, num_microbatches=12), times
        ).max()
        for family in ("1f1b", "zb-h1", "zb-2p")
    }
    assert ends["1f1b"] == 3 * 12 + 3 * 3
    assert ends["zb-h1"] < ends["1f1b"]
    assert ends["zb-2p"] <= ends["zb-h1"]


def activations(count: int, rng: np.random.Generator) -> StageActivations:
    return StageActivations(
        until_input_grad=rng.integers(1, 9, count).astype(float),
        until_weight_grad=rng.integers(0, 9, count).astype(float),
        transient=rng.integers(0, 9, count).astype(float),
        logits=np.zeros(count),
    )


def test_1f1b_holds_p_minus_i_microbatches_and_one_transient() -> None:
    """Narayanan et al., 2019."""
    stages = activations(4, np.random.default_rng(0))
    shape = PipelineShape(family="1f1b", num_ranks=4, num_microbatches=9)
    zeros = PipelineTimes(
        forward_s=np.zeros(4),
        input_grad_s=np.zeros(4),
        weight_grad_s=np.zeros(4),
        transfer_s=np.zeros(3),
    )
    peaks = rank_peaks(schedule_of(shape, zeros), stages)
    kept = stages.until_input_grad + stages.until_weight_grad
    for rank, peak in enumerate(peaks):
        assert peak.microbatches_in_flight == 4 - rank
        assert peak.total_bytes == (4 - rank) * kept[rank] + stages.transient[rank]


@pytest.mark.parametrize(("p", "v"), [(4, 2), (8, 3), (35, 3)])
def test_interleaving_holds_a_little_more_on_the_first_rank(p: int, v: int) -> None:
    """Korthikanti et al., 2022: 1 + (p - 1)/(p v) times as much, a chunk being 1/v."""
    shape = PipelineShape(
        family="interleaved", num_ranks=p, num_microbatches=4 * p, virtual_stages=v
    )
    count = p * v
    zeros = np.zeros(count)
    times = PipelineTimes(
        forward_s=zeros, input_grad_s=zeros, weight_grad_s=zeros, transfer_s=np.zeros(count - 1)
    )
    chunk = StageActivations(
        until_input_grad=np.full(count, 1 / v),
        until_weight_grad=zeros,
        transient=zeros,
        logits=zeros,
    )
    first = rank_peaks(schedule_of(shape, times), chunk)[0]
    assert first.total_bytes == pytest.approx(p * (1 + (p - 1) / (p * v)))


@cases(60)
@given(run=runs(TIMELESS), extra=st.integers(7, 12), seed=st.integers(0, 99))
def test_fewer_microbatches_hold_as_much_where_that_is_claimed(
    run: tuple, extra: int, seed: int
) -> None:
    shape, times = run
    long = shape.with_microbatches(shape.num_microbatches + extra * shape.num_ranks)
    stages = activations(long.num_ranks * long.virtual_stages, np.random.default_rng(seed))
    found = rank_peaks(schedule_of(peak_shape(long), times), stages)
    expected = rank_peaks(schedule_of(long, times), stages)
    assert [p.total_bytes for p in found] == [p.total_bytes for p in expected]
