"""What families in V hold: their published orders against those that the planner runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases
from trainwright.planning.question.layouts import (
    MOST_ACTIVATIONS,
    PUBLISHED_WARM_UP,
    most_in_flight,
    published_in_flight,
)
from trainwright.step.memory import peak_rows
from trainwright.step.pipeline import PipelineShape, PipelineTimes, orders_of, schedule_of

FAMILIES = ("v-min", "v-half", "zb-v")


def shape(family, num_ranks, num_microbatches):
    return PipelineShape(
        family=family,
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        virtual_stages=2,
    )


def held(schedule):
    """Of every rank, the microbatches of both chunks that wait for input gradients, [N, 2]."""
    rows = peak_rows(schedule)
    return [own[:, :2] for own in np.split(rows.rows, rows.starts[1:])]


@pytest.mark.parametrize(("num_ranks", "num_microbatches"), [(2, 3), (4, 3), (4, 12), (5, 20)])
def test_zb_v_is_published_with_the_counts_of_its_hand_made_order(num_ranks, num_microbatches):
    near, far = published_in_flight("zb-v", num_ranks, num_microbatches)
    handmade = held(orders_of(shape("zb-v-handmade", num_ranks, num_microbatches)))
    for rank, own in enumerate(handmade):
        counts = np.stack((near[:, rank], far[:, rank]), axis=1)
        # Every count is reached, and nothing that is reached exceeds all counts.
        assert (counts[:, np.newaxis] <= own).all(axis=2).any(axis=1).all()
        assert (own[:, np.newaxis] <= counts).all(axis=2).any(axis=1).all()


@cases(12)
@given(
    family=st.sampled_from(("v-half", "v-min")),
    num_ranks=st.integers(2, 6),
    rounds=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_v_half_and_v_min_never_hold_less_than_published(family, num_ranks, rounds, seed):
    rng, stages = np.random.default_rng(seed), 2 * num_ranks
    forward_s = rng.uniform(1.0, 1.3, stages)
    times = PipelineTimes(
        forward_s=forward_s,
        input_grad_s=forward_s * rng.uniform(0.8, 1.8, stages),
        weight_grad_s=forward_s * rng.uniform(0.5, 1.2, stages),
        transfer_s=np.full(stages - 1, rng.uniform(0.0, 0.1)),
    )
    asked = shape(family, num_ranks, rounds * num_ranks)
    real = held(schedule_of(asked, times))
    near, far = published_in_flight(family, num_ranks, asked.num_microbatches)
    for rank, own in enumerate(real):
        for share in np.linspace(0.0, 1.0, 6):  # of the bytes of both chunks
            published = share * near[:, rank] + (1 - share) * far[:, rank]
            assert (own @ [share, 1 - share]).max() >= published.max() * (1 - 1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_published_counts_lie_between_the_least_of_either_chunk_and_the_most_of_both(family):
    for num_ranks in range(2, 20):
        for num_microbatches in (1, 2, num_ranks, 3 * num_ranks):
            near, far = published_in_flight(family, num_ranks, num_microbatches)
            least = PUBLISHED_WARM_UP[family](np.arange(1, num_ranks + 1))
            assert (np.minimum(near, far).max(axis=0) >= np.minimum(least, num_microbatches)).all()
            assert (near + far <= MOST_ACTIVATIONS[family](num_ranks)).all()
            assert max(near.max(), far.max()) <= num_microbatches


@pytest.mark.parametrize("family", ["v-min", "v-half", "zb-v"])
@pytest.mark.parametrize("num_ranks", [2, 4, 7])
def test_no_rank_holds_more_than_its_family_promises_for_even_chunks(family, num_ranks):
    shape = PipelineShape(
        family=family, num_ranks=num_ranks, num_microbatches=3 * num_ranks, virtual_stages=2
    )
    stages = 2 * num_ranks
    times = PipelineTimes(
        forward_s=np.full(stages, 1.0),
        input_grad_s=np.full(stages, 1.2),
        weight_grad_s=np.full(stages, 0.7),
        transfer_s=np.full(stages - 1, 0.02),
    )
    schedule = schedule_of(shape, times)
    most = {
        "v-min": 2 * ((num_ranks + 4) // 3),
        "v-half": 2 * (num_ranks // 2) + 2,
        "zb-v": 2 * num_ranks,
    }[family]
    assert max(schedule.peak_activations) <= most
    near, far = most_in_flight(num_ranks, most)
    assert np.allclose(near + far, most)
