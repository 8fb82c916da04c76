"""The native cut of a chain against exhaustion, and its memory against a plain check."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles_chain import cuts_of, finish_of_cut_s, fitting_time_s
from trainwright._native import _core
from trainwright.planning.splits.chain import ChainTables
from trainwright.planning.splits.cuts import cuts_below

SECONDS = st.floats(0.1, 4.0)
ORDERS = {  # w, then i, j and k of a rank, by the number of ranks after it and before it
    "1f1b": lambda after, before, m: (min(after + 1, m), min(after + 1, m) - 1, 0, 0),
    "zb-h1": lambda after, before, m: (min(after + 1, m), after, after, min(m, before + 1)),
}


@st.composite
def chains(draw):
    """Ranks, layers, microbatches, and stages that cost the same wherever they begin."""
    ranks, count = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    layers = draw(st.integers(ranks, 7))
    longest = draw(st.integers(-(-layers // ranks), layers))
    forward_s, input_grad_s = draw(SECONDS), draw(SECONDS)
    family = draw(st.sampled_from(sorted(ORDERS)))
    weight_grad_s = 0.0 if family == "1f1b" else draw(SECONDS)
    lengths = np.arange(1, longest + 1, dtype=np.float64)
    more_s = np.array([[draw(st.floats(0, 0.5)) for _ in lengths] for _ in range(ranks)])
    return {
        "orders": [ORDERS[family](ranks - 1 - r, r, count) for r in range(ranks)],
        "count": count,
        "layers": layers,
        "forward_s": np.tile(forward_s * lengths, (ranks, 1)),
        "weight_grad_s": np.tile(weight_grad_s * lengths, (ranks, 1)),
        "time_s": (forward_s + input_grad_s + weight_grad_s) * lengths + more_s,
        "tail_s": np.array([[draw(st.floats(0, 2)) for _ in lengths] for _ in range(ranks)]),
        "transfer_s": np.array(
            [[draw(st.floats(0, 0.3)) for _ in range(layers + 1)] for _ in range(ranks)]
        ),
    }


def finish_s(chain, cuts):
    """Of one cut, by the reference."""
    stages, across_s = [], []
    for rank, (a, b) in enumerate(pairwise(cuts)):
        at = (rank, b - a - 1)
        names = ("forward_s", "weight_grad_s", "time_s", "tail_s")
        stages.append(tuple(float(chain[name][at]) for name in names))
        across_s.append(float(chain["transfer_s"][rank, b]))
    return finish_of_cut_s(stages, chain["orders"], across_s, chain["count"])


@given(chains())
def test_the_bound_is_no_longer_than_any_cut_and_its_own_cut_is_one(chain):
    layers, longest = chain["layers"], chain["time_s"].shape[1]
    lengths = np.arange(longest)
    inside = np.arange(layers)[:, np.newaxis] + lengths + 1 <= layers
    arrays = ("forward_s", "weight_grad_s", "time_s", "tail_s", "transfer_s")
    bound_s, found = _core.least_chain_cut(
        num_microbatches=chain["count"],
        tie=0.0,
        kind_of=np.where(inside, lengths, -1),
        order=np.array(chain["orders"], dtype=np.int64),
        **{name: chain[name] for name in arrays},
    )
    ranks = len(chain["orders"])
    legal = legal_cuts(chain)
    least_s = min(finish_s(chain, cuts) for cuts in legal)
    assert bound_s <= least_s * (1 + 1e-12)
    cuts = tuple(np.cumsum([0, *found]).tolist())
    assert cuts in legal
    assert finish_s(chain, cuts) >= bound_s * (1 - 1e-12)
    if ranks <= 2:  # the last rank has no choice left
        assert bound_s == pytest.approx(least_s, rel=1e-12)


def legal_cuts(chain):
    layers, longest = chain["layers"], chain["time_s"].shape[1]
    every = cuts_of(layers, len(chain["orders"]))
    return [cuts for cuts in every if max(b - a for a, b in pairwise(cuts)) <= longest]


def tables_of(chain):
    longest = chain["time_s"].shape[1]
    lengths = np.arange(longest)
    inside = np.arange(chain["layers"])[:, np.newaxis] + lengths + 1 <= chain["layers"]
    names = ("forward_s", "weight_grad_s", "time_s", "tail_s", "transfer_s")
    return ChainTables(
        used=lengths,
        kind_of=np.where(inside, lengths, -1),
        order=np.array(chain["orders"], dtype=np.int64),
        num_microbatches=chain["count"],
        **{name: chain[name] for name in names},
    )


@given(chains(), st.floats(0.9, 2))
def test_every_cut_below_a_limit_is_found_with_its_bound(chain, times):
    bounds_s = {cuts: finish_s(chain, cuts) for cuts in legal_cuts(chain)}
    limit_s = times * min(bounds_s.values())
    found = cuts_below(tables_of(chain), limit_s, most=1000)
    below = {
        tuple(cuts): own_s for cuts, own_s in zip(found.cuts.tolist(), found.bound_s, strict=True)
    }
    assert found.others_s == limit_s
    for cuts, bound_s in bounds_s.items():
        if cuts in below:
            assert below.pop(cuts) == pytest.approx(bound_s, rel=1e-12)
        else:
            assert bound_s >= limit_s * (1 - 1e-12)
    assert not below


@given(chains(), st.integers(1, 4))
def test_what_is_left_out_for_want_of_room_is_bounded(chain, most):
    bounds_s = {cuts: finish_s(chain, cuts) for cuts in legal_cuts(chain)}
    found = cuts_below(tables_of(chain), 1e9, most=most)
    assert len(found.cuts) <= most
    assert (np.diff(found.bound_s) >= 0).all()
    for cuts in set(bounds_s) - {tuple(cuts) for cuts in found.cuts.tolist()}:
        assert bounds_s[cuts] >= found.others_s * (1 - 1e-12)


@given(st.data())
def test_the_fastest_way_that_fits_every_instant_is_found(data):
    whole = st.integers(0, 9).map(float)
    ranks, kinds = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    rows = np.array(data.draw(st.lists(st.tuples(whole, whole, whole), min_size=2, max_size=2)))
    rows = np.stack([rows + rank for rank in range(ranks)])
    levels = [data.draw(st.integers(1, 2)) for _ in range(kinds)]
    ways = [
        (
            data.draw(whole),
            sorted(
                data.draw(st.lists(st.tuples(whole, whole, whole), min_size=1, max_size=4)),
                key=lambda way: -way[2],
            ),
        )
        for _ in range(sum(levels))
    ]
    room_bytes = np.array([data.draw(st.integers(0, 200)) for _ in range(kinds)], np.float64)
    offset = np.cumsum([0, *levels])
    found = _core.fitting_times_s(
        num_ranks=ranks,
        level_offset=offset,
        level_bytes=np.array([level for level, _ in ways]),
        way_offset=np.cumsum([0, *(len(own) for _, own in ways)]),
        ways=np.concatenate([np.array(own) for _, own in ways]),
        room_bytes=room_bytes,
        rows=rows.reshape(ranks, -1),
    ).reshape(ranks, kinds)
    for rank in range(ranks):
        for kind in range(kinds):
            own = ways[offset[kind] : offset[kind + 1]]
            assert found[rank, kind] == fitting_time_s(own, rows[rank], room_bytes[kind])


def test_nothing_fits_where_no_stage_can_run():
    bound_s, lengths = _core.least_chain_cut(
        num_microbatches=2,
        tie=0.0,
        kind_of=np.array([[0], [0], [0]]),
        forward_s=np.ones((2, 1)),
        weight_grad_s=np.zeros((2, 1)),
        time_s=np.full((2, 1), 3.0),
        tail_s=np.zeros((2, 1)),
        transfer_s=np.zeros((2, 4)),
        order=np.array([[2, 1, 0, 0], [1, 0, 0, 0]]),
    )
    assert np.isinf(bound_s)  # two ranks of one layer each leave the third
    assert len(lengths) == 0
