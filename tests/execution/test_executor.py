"""Batches in order, whoever runs them."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor

import pytest

from trainwright.errors import InvalidInput, MissingExtra
from trainwright.execution.executor import DaskPool, LocalPool, Serial, executor_of


def test_results_come_in_order_from_every_executor() -> None:
    items = list(range(7))
    want = [2.0**i for i in items]
    assert list(Serial().map(pow, 2.0, items)) == want
    assert list(LocalPool(workers=2).map(pow, 2.0, items)) == want


def test_a_pool_can_be_left_early() -> None:
    results = LocalPool(workers=2).map(pow, 2.0, range(1000))
    assert next(results) == 1.0
    results.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("pool", [Serial(), LocalPool(workers=2)])
def test_items_are_drawn_no_further_ahead_than_asked(pool: Serial | LocalPool) -> None:
    taken: list[float] = []
    lead = []

    def items() -> Iterator[int]:
        for item in range(6):
            lead.append(item - len(taken))
            yield item

    for result in pool.map(pow, 2.0, items(), ahead=2):
        taken.append(result)  # noqa: PERF402 - items look at it
    assert taken == [2.0**i for i in range(6)]
    assert max(lead) < 2


def test_a_worker_that_cannot_be_started_is_one_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where another ends meanwhile, and its pool closes the pipes of all."""

    def start(*_: object) -> None:
        raise OSError("handle is closed")

    monkeypatch.setattr(ProcessPoolExecutor, "submit", start)
    with LocalPool(workers=2).crew() as crew, pytest.raises(BrokenExecutor, match="handle is"):
        assert crew is not None
        crew.hand(abs, -1)


def test_executors_are_named_as_users_write_them() -> None:
    assert executor_of(None) == executor_of("1") == Serial()
    assert executor_of("3") == LocalPool(workers=3)
    assert executor_of("dask://host:8786") == DaskPool(address="tcp://host:8786")
    assert executor_of("dask://local") == DaskPool(address="local")
    with pytest.raises(InvalidInput, match="jobs"):
        executor_of("many")
    with pytest.raises(InvalidInput, match="jobs"):
        LocalPool(workers=0)


@pytest.mark.skipif(
    importlib.util.find_spec("distributed") is not None, reason="distributed is installed"
)
def test_a_missing_package_is_one_clear_sentence() -> None:
    with pytest.raises(MissingExtra, match=r"install it with: pip install '\.\[dask\]'"):
        next(iter(DaskPool(address="local").map(pow, 2.0, [1])))


def test_a_pool_in_which_a_worker_died_waits_for_no_other():
    """One that was being started when another died is never told to end, and CPython waits."""
    with LocalPool(workers=1).crew() as crew:
        crew.hand(time.sleep, 600)
        pool = crew.pool
        while not any(process.is_alive() for process in pool._processes.values()):
            time.sleep(0.01)
        pool._broken = "another died"
    assert not pool._processes  # None: it has ended
