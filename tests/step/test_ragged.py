"""Lists of different lengths in one array: chosen lists are those that were laid out."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainwright.step.stages import Ragged

lists = st.lists(st.lists(st.integers(), min_size=1, max_size=4), min_size=1, max_size=6)


@given(rows=lists, data=st.data())
def test_chosen_lists_hold_what_was_laid_out(rows: list[list[int]], data: st.DataObject) -> None:
    places = st.integers(0, len(rows) - 1)
    chosen = np.array(data.draw(st.lists(places, min_size=1, max_size=8)))
    laid = np.array([value for row in rows for value in row], dtype=object)
    ragged = Ragged.of([len(row) for row in rows])
    found = laid[ragged.places(chosen)].tolist()
    assert found == [value for row in chosen for value in rows[row]]
    shorter = ragged.chosen(chosen)
    assert np.add.reduceat(np.ones(len(found)), shorter.starts).tolist() == [
        len(rows[row]) for row in chosen
    ]
