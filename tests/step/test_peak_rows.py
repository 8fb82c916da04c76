"""Instants that can be the fullest, against every pair of instants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.step import memory as peak_rows
from trainwright.step.memory import undominated

counts = st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=40, unique=True)


@given(rows=counts.map(np.array), few=st.sampled_from([0, 64]))
def test_rows_that_are_left_are_those_no_other_has_as_much_of_everything_as(rows, few):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peak_rows, "_FEW", few)
        found = undominated(rows).tolist()
    left = [
        row.tolist()
        for row in rows
        if not any((other >= row).all() and (other > row).any() for other in rows)
    ]
    assert sorted(found) == sorted(left)
    assert found == sorted(found, key=lambda row: -sum(row))
