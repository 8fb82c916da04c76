"""The small model keeps the shape of the plan."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainwright.lab.token_replay import BLOCK, GAIN, fewer_layers, spread, whole_model

counts = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any)


@given(counts, st.integers(1, 64))
def test_stages_with_blocks_keep_at_least_one_and_none_grows(sizes, most):
    stages = tuple((BLOCK,) * size for size in sizes)
    fewer = fewer_layers(stages, most=most)
    for before, after in zip(stages, fewer, strict=True):
        assert bool(before) == bool(after)
        assert len(after) <= len(before)
    assert sum(map(len, fewer)) <= max(most, sum(map(bool, sizes)))


def test_the_share_that_is_recomputed_stays():
    stage = (f"{BLOCK}:full",) * 20 + (BLOCK,) * 60
    (fewer,) = fewer_layers((stage,), most=8)
    assert fewer == (f"{BLOCK}:full",) * 2 + (BLOCK,) * 6


def test_ends_are_added_only_where_they_are_missing():
    assert whole_model(((BLOCK,), (BLOCK,))) == (("embedding", BLOCK), (BLOCK, "head"))
    own = (("embedding",), (BLOCK,), ("norm", "head"), ())
    assert whole_model(own) == (*own[:-1], (GAIN,))
    assert whole_model(((BLOCK,),)) == (("embedding", BLOCK, "head"),)


@given(st.integers(1, 20), st.integers(1, 8))
def test_first_and_last_stage_are_always_picked(size, count):
    stages = tuple((f"{BLOCK}{number}",) for number in range(size))
    picked = spread(stages, count)
    assert len(picked) == min(size, count)
    assert picked[0] == stages[0]
    if count > 1:
        assert picked[-1] == stages[-1]
    assert list(picked) == sorted(picked, key=stages.index)
    assert len(set(picked)) == len(picked)
