"""The bound on each rank against the simulator, on stages of arbitrary times."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.planning.splits.chain import LaterRanks, RankTimes, add_rank
from trainwright.step.pipeline import PipelineShape, PipelineTimes, simulated_ends_s

TIMES = st.floats(0.01, 10.0)


@st.composite
def pipelines(draw):
    p = draw(st.integers(1, 6))
    columns = [draw(st.lists(TIMES, min_size=p, max_size=p)) for _ in range(3)]
    scale = draw(st.sampled_from([0.0, 0.05, 1.0]))
    forward_s, backward_s, transfer_s = (np.array(column) for column in columns)
    return forward_s, backward_s, scale * transfer_s, draw(st.integers(1, 30))


@settings(deadline=None)
@given(pipelines())
def test_no_simulated_rank_ends_before_its_bound(pipeline):
    forward_s, backward_s, transfer_s, m = pipeline
    p = len(forward_s)
    ends_s = simulated_ends_s(
        PipelineShape(family="1f1b", num_ranks=p, num_microbatches=m),
        PipelineTimes(
            forward_s=forward_s,
            input_grad_s=backward_s / 2,
            weight_grad_s=backward_s / 2,
            transfer_s=transfer_s[:-1],
        ),
    )
    start_s = np.concatenate(([0.0], np.cumsum(forward_s + transfer_s)))
    later = LaterRanks.none(p)
    for rank in reversed(range(p)):
        layers = np.full((p, 1), np.inf)
        layers[rank] = forward_s[rank] + backward_s[rank]
        own = RankTimes(
            in_flight=min(p - rank, m),
            forward_s=np.full((p, 1), forward_s[rank]),
            time_s=layers,
            tail_s=np.zeros((p, 1)),
            transfer_s=np.full((p, 1), transfer_s[rank] if rank < p - 1 else 0.0),
        )
        after = np.arange(1, p + 1)[:, np.newaxis]
        later, _ = add_rank(later, own, after, num_microbatches=m)
        assert start_s[rank] + later.end_s[rank] <= ends_s[rank] * (1 + 1e-9)
        # The lower side of a stage that ends a step on its own is met exactly.
        if p == 1:
            assert np.isclose(later.end_s[0], ends_s[0])
