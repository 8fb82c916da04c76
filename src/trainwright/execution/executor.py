"""Where batches of work run: here, in local processes, or on a Dask cluster; results in order.

A batch is `work(shared, item)`: `shared` goes to every process once, items one by one. Results
come back in the order of items whoever computed them, so an answer never depends on the executor.
Batches should take 50 ms or more; smaller ones cost more to send than to compute.

Items may be made from earlier results, for item k is drawn only when the results of all items up
to k - `ahead` have been taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from trainwright.errors import InvalidInput, MissingExtra

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


class Executor(Protocol):
    """Runs batches; `map` may be left early, which drops what has not started."""

    def map(
        self,
        work: Callable[[Shared, Item], Result],
        shared: Shared,
        items: Iterable[Item],
        *,
        ahead: int | None = None,
    ) -> Iterator[Result]:
        """Results of `work(shared, item)`, in the order of `items`."""
        ...


@dataclass(frozen=True, slots=True)
class Serial:
    """Everything in this process."""

    def map(
        self,
        work: Callable[[Shared, Item], Result],
        shared: Shared,
        items: Iterable[Item],
        *,
        ahead: int | None = None,
    ) -> Iterator[Result]:
        """One after another, each when it is asked for."""
        return (work(shared, item) for item in items)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPool:
    """`workers` processes, started afresh (spawn), with one numerical thread each."""

    workers: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InvalidInput.of("workers", f"must be >= 1, got {self.workers}")

    def map(
        self,
        work: Callable[[Shared, Item], Result],
        shared: Shared,
        items: Iterable[Item],
        *,
        ahead: int | None = None,
    ) -> Iterator[Result]:
        """Batches in flight are at most twice the workers; leaving early cancels the rest."""
        from multiprocessing import get_context

        pool = ProcessPoolExecutor(
            max_workers=self.workers,
            mp_context=get_context("spawn"),
            initializer=_begin,
            initargs=(work, shared),
        )
        window = min(2 * self.workers, ahead or 2 * self.workers)
        waiting: list[Future[Any]] = []
        try:
            for item in items:
                waiting.append(pool.submit(_run, item))
                if len(waiting) >= window:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_batch: dict[str, Any] = {}  # of this worker process: what to run, and what all batches share


def _begin(work: Callable[[Any, Any], Any], shared: object) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    _batch.update(work=work, shared=shared)


def _run(item: object) -> Any:
    return _batch["work"](_batch["shared"], item)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskPool:
    """The workers of a Dask cluster at `address`; a local one where that is "local"."""

    address: str

    def map(
        self,
        work: Callable[[Shared, Item], Result],
        shared: Shared,
        items: Iterable[Item],
        *,
        ahead: int | None = None,
    ) -> Iterator[Result]:
        """All batches are submitted at once, or `ahead`; raises `MissingExtra` without [dask]."""
        try:
            from distributed import Client
        except ImportError:
            raise MissingExtra(
                "running on a Dask cluster needs distributed", extra="dask"
            ) from None
        try:
            connected = Client(None if self.address == "local" else self.address)
        except OSError:
            problem = f'must be the address of a Dask scheduler; none answers at "{self.address}"'
            raise InvalidInput.of("workers", problem) from None
        with connected as client:
            everywhere = client.scatter(shared, broadcast=True)
            futures: list[Any] = []
            try:
                for item in items:
                    futures.append(client.submit(work, everywhere, item, pure=False))
                    if ahead is not None and len(futures) >= ahead:
                        yield futures.pop(0).result()
                while futures:
                    yield futures.pop(0).result()
            finally:
                client.cancel(futures)


def executor_of(workers: str | int | None) -> Executor:
    """From how a user names it: a number of processes, or `dask://HOST:PORT` (`dask://local`)."""
    if workers is None or workers in (1, "1"):
        return Serial()
    text = str(workers)
    if text.startswith("dask://"):
        rest = text.removeprefix("dask://")
        return DaskPool(address=rest if rest == "local" else f"tcp://{rest}")
    if not text.isdecimal() or int(text) < 1:
        raise InvalidInput.of(
            "workers", f'must be a whole number >= 1 or dask://HOST:PORT, got "{workers}"'
        )
    return LocalPool(workers=int(text))
