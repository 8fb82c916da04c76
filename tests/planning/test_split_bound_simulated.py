"""The bound on each rank against the simulator, on stages of arbitrary times."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright._native._core import least_chain_cut
from trainwright.planning.splits.chain import ChainTables, rank_orders
from trainwright.planning.splits.cuts import _least_later
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
    shape = PipelineShape(family="1f1b", num_ranks=p, num_microbatches=m)
    time_s = forward_s + backward_s
    kind_of = np.arange(p)[:, np.newaxis]  # layer r is the stage of rank r
    own = np.where(np.eye(p, dtype=bool), time_s[:, np.newaxis], np.inf)
    tables = ChainTables(
        used=np.arange(p),
        kind_of=kind_of,
        forward_s=np.tile(forward_s, (p, 1)),
        weight_grad_s=np.zeros((p, p)),
        time_s=own,
        tail_s=np.zeros((p, p)),
        transfer_s=np.tile(np.append(transfer_s[:-1], 0.0)[:, np.newaxis], p + 1),
        order=np.array([order[:4] for order in rank_orders(shape)]),
        num_microbatches=m,
    )
    later = _least_later(tables)
    for rank in range(p):
        end_s = later[rank].end_s[rank]
        assert start_s[rank] + end_s <= ends_s[rank] * (1 + 1e-9)
        # The lower side of a stage that ends a step on its own is met exactly.
        if p == 1:
            assert np.isclose(end_s, ends_s[0])
    finish_s, lengths = least_chain_cut(
        num_microbatches=m,
        tie=0.0,
        kind_of=tables.kind_of,
        forward_s=tables.forward_s,
        weight_grad_s=tables.weight_grad_s,
        time_s=tables.time_s,
        tail_s=tables.tail_s,
        transfer_s=tables.transfer_s,
        order=tables.order,
    )
    assert list(lengths) == [1] * p
    assert np.isclose(finish_s, later[0].finish_s[0], rtol=1e-12)
