"""Where batches of work run: here, in local processes, or on a Dask cluster; results in order.

A batch is `work(shared, item)`: `shared` goes to every process once, items one by one. Results
come back in the order of items whoever computed them, so an answer never depends on the executor.
Batches should take 50 ms or more; smaller ones cost more to send than to compute.

Items may be made from earlier results, for item k is drawn only when the results of all items up
to k - `ahead` have been taken.

A *crew* is for work that no list foresees: parcels are handed to it one by one, and each result is
taken when it is needed, or never.

Workers do not hear Ctrl-C, which a terminal sends to all processes of a program: the first process
ends its work in order. They end when it does, however it ends.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from trainwright.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


class Parcel(Protocol):
    """Work under way."""

    def result(self) -> Any:
        """What came of it, waiting for it; raises what the work raised."""
        ...

    def done(self) -> bool:
        """Whether nobody works on it any more."""
        ...


class Crew(Protocol):
    """Workers that take parcels as they come."""

    @property
    def size(self) -> int:
        """How many work at once."""
        ...

    def hand(self, work: Callable[[Item], Result], item: Item) -> Parcel:
        """Let one of them run `work(item)`."""
        ...


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

    def crew(self) -> AbstractContextManager[Crew | None]:
        """Workers for as long as the context lasts; None where there is but this process."""
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

    def crew(self) -> AbstractContextManager[None]:
        """Nobody."""
        return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPool:
    """`workers` processes, started afresh (spawn), with one numerical thread each."""

    workers: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InvalidInput.of("jobs", f"must be >= 1, got {self.workers}")

    def map(
        self,
        work: Callable[[Shared, Item], Result],
        shared: Shared,
        items: Iterable[Item],
        *,
        ahead: int | None = None,
    ) -> Iterator[Result]:
        """Batches in flight are at most twice the workers; leaving early cancels the rest."""
        pool = self._pool(_begin, work, shared)
        window = min(2 * self.workers, ahead or 2 * self.workers)
        waiting: list[Future[Any]] = []
        try:
            for item in items:
                waiting.append(_submit(pool, _run, item))
                if len(waiting) >= window:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            _end(pool)

    @contextmanager
    def crew(self) -> Iterator[Crew]:
        """Processes start with the first parcels; those that none began are dropped at the end."""
        pool = self._pool(_settle)
        try:
            yield _Processes(pool, self.workers)
        finally:
            _end(pool)

    def _pool(self, begin: Callable[..., None], *given: object) -> ProcessPoolExecutor:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        return ProcessPoolExecutor(
            max_workers=self.workers,
            mp_context=get_context("spawn"),
            initializer=begin,
            initargs=given,
        )


def _end(pool: ProcessPoolExecutor) -> None:
    """Wait for the workers, but for none that outlives a pool in which one died.

    Where one was being started just then, nothing tells it to end, and CPython waits for it.
    """
    if getattr(pool, "_broken", False):
        for process in [*(getattr(pool, "_processes", None) or {}).values()]:
            process.kill()
    pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Processes:
    """A crew of this machine."""

    pool: ProcessPoolExecutor
    size: int

    def hand(self, work: Callable[[Item], Result], item: Item) -> Parcel:
        """Let a process run `work(item)`."""
        return _submit(self.pool, work, item)


def _submit(
    pool: ProcessPoolExecutor, work: Callable[[Item], Result], item: Item
) -> Future[Result]:
    """Hand work to the pool; a process that is started for it never hears Ctrl-C.

    From its first moment on, for what is blocked here is blocked in what is started here. Raises
    `BrokenExecutor` where none can be started: a worker that ends just then closes pipes of others.
    """
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(work, item)
    except OSError as error:
        from concurrent.futures import BrokenExecutor

        raise BrokenExecutor(f"no worker can be started: {error}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


_batch: dict[str, Any] = {}  # of this worker process: what to run, and what all batches share


def _begin(work: Callable[[Any, Any], Any], shared: object) -> None:
    _settle()
    _batch.update(work=work, shared=shared)


def _settle() -> None:
    """One numerical thread, and an end with the process that started this one."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


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
        with self._client() as client:
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

    @contextmanager
    def crew(self) -> Iterator[Crew]:
        """The workers that the cluster has when it is asked; raises `MissingExtra` without [dask].

        Parcels that nobody needs any more end with the connection.
        """
        with self._client() as client:
            yield _DaskWorkers(client, max(1, sum(client.nthreads().values())))

    def _client(self) -> Any:
        try:
            from distributed import Client
        except ImportError:
            raise MissingExtra(
                "running on a Dask cluster needs distributed", extra="dask"
            ) from None
        try:
            return Client(None if self.address == "local" else self.address)
        except OSError:
            problem = f'must be the address of a Dask scheduler; none answers at "{self.address}"'
            raise InvalidInput.of("jobs", problem) from None


@dataclass(frozen=True, slots=True)
class _DaskWorkers:
    """A crew on a cluster."""

    client: Any
    size: int

    def hand(self, work: Callable[[Item], Result], item: Item) -> Parcel:
        """Let a worker run `work(item)`."""
        parcel: Parcel = self.client.submit(work, item, pure=False)
        return parcel


def executor_of(jobs: str | int | None) -> Executor:
    """From how a user names it: a number of processes, or `dask://HOST:PORT` (`dask://local`).

    Raises `InvalidInput` under "jobs".
    """
    if jobs is None or jobs in (1, "1"):
        return Serial()
    text = str(jobs)
    if text.startswith("dask://"):
        rest = text.removeprefix("dask://")
        address = rest if rest == "local" else f"tcp://{rest}"
        return DaskPool(address=address)
    if not text.isdecimal() or int(text) < 1:
        raise InvalidInput.of(
            "jobs", f'must be a whole number >= 1 or dask://HOST:PORT, got "{jobs}"'
        )
    return LocalPool(workers=int(text))
