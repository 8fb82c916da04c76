"""Sweeps: the same figures by any executor, in one go or in two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from codesign.jobs import BERT, GPT2_XL, question, some_designs
from trainwright.codesign import population
from trainwright.codesign.population import Population, populate
from trainwright.execution import Budget, Progress
from trainwright.execution.executor import DaskPool, LocalPool
from trainwright.formats.journal import FileJournal

SCALE = np.ones(2)
SMALL = {"batch_size": 40}


def same(first: Population, second: Population) -> bool:
    arrays = all(
        np.array_equal(getattr(first, name), getattr(second, name)) for name in population._ARRAYS
    )
    return arrays and first.plans == second.plans


def test_two_processes_give_the_same_bits() -> None:
    asked = question(BERT, GPT2_XL, space=some_designs(150, 8), devices=64)
    alone, _ = populate(asked, Budget(), scale_s=SCALE, **SMALL)
    together, finished = populate(
        asked, Budget(), scale_s=SCALE, executor=LocalPool(workers=2), **SMALL
    )
    assert finished
    assert same(alone, together)


def test_a_sweep_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    asked = question(BERT, GPT2_XL, space=some_designs(150, 8), devices=64)
    alone, _ = populate(asked, Budget(), scale_s=SCALE, **SMALL)
    budget, path = Budget(), tmp_path / "journal"
    polls = []

    def stop(progress: Progress) -> None:
        polls.append(progress)
        if len(polls) == 3:
            budget.interrupt()

    budget.on_progress = stop
    journal = FileJournal(path, about="x")
    _, finished = populate(asked, budget, scale_s=SCALE, journal=journal, **SMALL)
    assert not finished
    assert len(journal) == 2
    resumed = FileJournal(path, about="x")
    found, finished = populate(asked, Budget(), scale_s=SCALE, journal=resumed, **SMALL)
    assert finished
    assert len(resumed) == 4
    assert same(alone, found)


@pytest.mark.slow
def test_dask_gives_the_same_bits() -> None:
    pytest.importorskip("distributed")
    asked = question(BERT, space=some_designs(1000, 8), devices=64)
    alone, _ = populate(asked, Budget(), scale_s=SCALE[:1], **SMALL)
    found, _ = populate(
        asked, Budget(), scale_s=SCALE[:1], executor=DaskPool(address="local"), **SMALL
    )
    assert same(alone, found)
