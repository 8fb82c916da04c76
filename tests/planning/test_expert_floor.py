"""What experts compute at least, however they are dealt out."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from trainwright.model import RunShape
from trainwright.planning.expert_floor import least_share


@given(
    tensor=st.sampled_from([1, 2, 4, 8]),
    tokens=st.integers(1, 40),
    chosen=st.integers(1, 8),
    capacity=st.none() | st.floats(0.01, 2),
    imbalance=st.floats(1, 3),
    data=st.data(),
)
def test_no_cut_of_experts_computes_less_than_the_least_share(
    tensor, tokens, chosen, capacity, imbalance, data
):
    """Rows times the width that a device has of an expert; a few tokens round up most."""
    whole = RunShape(
        microbatch_size=1,
        sequence_length=tokens,
        tensor_parallel=tensor,
        expert_tensor_parallel=1,
        capacity_factor=capacity,
        expert_imbalance=imbalance,
    )
    least = least_share(whole, chosen) * whole.expert_rows(chosen)
    cut = data.draw(st.sampled_from([x for x in (1, 2, 4, 8) if x <= tensor]))
    shared = replace(whole, expert_tensor_parallel=cut)
    assert 0 < least <= shared.expert_rows(chosen) / cut * (1 + 1e-12)
    assert least >= whole.expert_rows(chosen) - 1
