"""The front against all pairs, and its volume."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chips.jobs import BERT, GPT3, question, some_designs
from trainwright.chips.population import OBJECTIVES, front, hypervolume, populate
from trainwright.chips.search import search
from trainwright.execution import Budget

points = st.lists(
    st.lists(st.integers(1, 6).map(float), min_size=3, max_size=3), min_size=1, max_size=25
).map(np.array)


def dominated(figures: np.ndarray, row: int) -> bool:
    point = figures[row]
    better = (figures <= point).all(axis=1) & (figures < point).any(axis=1)
    return bool(better.any())


@given(figures=points)
def test_the_front_is_what_no_pair_dominates(figures: np.ndarray) -> None:
    kept = front(figures).tolist()
    assert not any(dominated(figures, row) for row in kept)
    distinct = {tuple(figures[row]) for row in range(len(figures)) if not dominated(figures, row)}
    assert {tuple(figures[row]) for row in kept} == distinct
    assert len(kept) == len(distinct)


@given(figures=points, epsilon=st.sampled_from([0.1, 0.5, 1.0]))
def test_a_thinned_front_keeps_every_single_optimum_and_covers_the_rest(
    figures: np.ndarray, epsilon: float
) -> None:
    kept = front(figures, epsilon=epsilon)
    assert set(kept.tolist()) <= set(front(figures).tolist())
    assert (figures[kept].min(axis=0) == figures.min(axis=0)).all()
    for point in figures:
        assert (figures[kept] <= point * (1 + epsilon)).all(axis=1).any()


@given(figures=points)
def test_volume_equals_counting_cells(figures: np.ndarray) -> None:
    grid = np.stack(np.meshgrid(*[np.arange(7)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    covered = (figures[:, None, :] <= grid[None, :, :]).all(axis=2).any(axis=0)
    inside = (grid < 7).all(axis=1)
    want = (covered & inside).sum() / 7**3
    assert hypervolume(figures, np.full(3, 7.0)) == pytest.approx(want)


def test_the_front_of_designs_holds_the_optimum_of_every_objective() -> None:
    asked = question(GPT3, space=some_designs(500, 4), devices=1024)
    found = search(asked, Budget())
    everything, finished = populate(asked, Budget(), scale_s=found.scale_s)
    assert finished
    assert len(everything) == 500
    figures = everything.figures()
    kept = front(figures)
    assert not any(dominated(figures, int(row)) for row in kept)
    rest = sorted(set(range(500)) - set(kept.tolist()))
    copies = {tuple(figures[row]) for row in kept}
    assert all(dominated(figures, row) or tuple(figures[row]) in copies for row in rest)
    assert (figures[kept].min(axis=0) == figures.min(axis=0)).all()
    assert found.best is not None
    assert figures[kept, 0].min() == found.best.cost
    assert len(OBJECTIVES) == figures.shape[1] == 4


def test_an_interrupted_front_says_so() -> None:
    budget = Budget()
    budget.interrupt()
    found, finished = populate(question(BERT), budget, scale_s=np.ones(1))
    assert not finished
    assert len(found) == 0
