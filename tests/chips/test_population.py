"""Sweeps: the same figures by any executor, in one go or in two."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chips.jobs import BERT, GPT2_XL, question, some_designs
from trainwright.chips import population
from trainwright.chips import search as codesign_search
from trainwright.chips.population import Population, populate
from trainwright.chips.request import CodesignQuestion
from trainwright.chips.search import PLACEMENT, CodesignOutcome, search
from trainwright.execution import Budget, Progress
from trainwright.execution.executor import DaskPool, LocalPool
from trainwright.formats.document_json import FileJournal
from trainwright.plans.status import Status

SCALE = np.ones(2)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many that a sweep of few designs is stopped between them."""
    monkeypatch.setattr(population, "BATCH_SIZE", 40)


def same(first: Population, second: Population) -> bool:
    arrays = all(
        np.array_equal(getattr(first, name), getattr(second, name)) for name in population._ARRAYS
    )
    return arrays and first.plans == second.plans


@pytest.mark.slow
def test_two_processes_give_the_same_bits() -> None:
    asked = question(BERT, space=some_designs(80, 8), devices=64)
    alone, _ = populate(asked, Budget(), scale_s=SCALE)
    together, finished = populate(asked, Budget(), scale_s=SCALE, executor=LocalPool(workers=2))
    assert finished
    assert same(alone, together)


def test_a_sweep_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    asked = question(BERT, GPT2_XL, space=some_designs(150, 8), devices=64)
    alone, _ = populate(asked, Budget(), scale_s=SCALE)
    budget, path = Budget(), tmp_path / "journal"
    polls = []

    def stop(progress: Progress) -> None:
        polls.append(progress)
        if len(polls) == 3:
            budget.interrupt()

    budget.on_progress = stop
    journal = FileJournal(path, about="x")
    _, finished = populate(asked, budget, scale_s=SCALE, journal=journal)
    assert not finished
    assert len(journal) == 2
    resumed = FileJournal(path, about="x")
    found, finished = populate(asked, Budget(), scale_s=SCALE, journal=resumed)
    assert finished
    assert len(resumed) == 4
    assert same(alone, found)


def two_variants(seed: int) -> CodesignQuestion:
    """Enough nodes for many batches, in a space where bounds prune little."""
    asked = question(BERT, space=some_designs(150, seed), devices=64)
    return replace(asked, microbatch_sizes=(1, 2))


def same_search(first: CodesignOutcome, second: CodesignOutcome) -> bool:
    ledgers = first.ledger, second.ledger
    equal = all(
        np.array_equal(getattr(ledgers[0], name), getattr(ledgers[1], name))
        for name in ("bounds", "levels")
    )
    return equal and first.best == second.best and first.lower_bound == second.lower_bound


@pytest.mark.slow
def test_a_search_in_processes_visits_and_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codesign_search, "BATCH", 8)
    asked = two_variants(8)
    alone = search(asked, Budget())
    together = search(asked, Budget(), executor=LocalPool(workers=2))
    assert alone.ledger.count(PLACEMENT) > 8  # more than the first batch
    assert same_search(alone, together)


def test_a_search_that_was_stopped_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codesign_search, "BATCH", 8)
    asked, budget, path = two_variants(8), Budget(), tmp_path / "journal"
    alone = search(asked, Budget())
    polls = []

    def stop(progress: Progress) -> None:
        polls.append(progress)
        if len(polls) == 4:
            budget.interrupt()

    budget.on_progress = stop
    journal = FileJournal(path, about="x")
    assert search(asked, budget, journal=journal).status is not Status.OPTIMAL
    written = len(journal)
    assert written >= 2
    resumed = FileJournal(path, about="x")
    assert same_search(alone, search(asked, Budget(), journal=resumed))
    assert len(resumed) > written
    text = path.read_text()
    assert same_search(alone, search(asked, Budget(), journal=FileJournal(path, about="x")))
    assert path.read_text() == text  # nothing was opened again


@pytest.mark.slow
def test_dask_searches_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(codesign_search, "BATCH", 50)
    asked = replace(question(BERT, space=some_designs(1000, 8), devices=64))
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        pool = DaskPool(address=cluster.scheduler_address)
        found = search(asked, Budget(), executor=pool)
        priced, _ = populate(asked, Budget(), scale_s=SCALE[:1], executor=pool)
    assert same_search(search(asked, Budget()), found)
    alone, _ = populate(asked, Budget(), scale_s=SCALE[:1])
    assert same(alone, priced)


@pytest.mark.slow
def test_dask_gives_the_same_bits() -> None:
    pytest.importorskip("distributed")
    asked = question(BERT, space=some_designs(1000, 8), devices=64)
    alone, _ = populate(asked, Budget(), scale_s=SCALE[:1])
    found, _ = populate(asked, Budget(), scale_s=SCALE[:1], executor=DaskPool(address="local"))
    assert same(alone, found)
