"""The only source of time limits, progress and interruption that a verb may consult.

A `Budget` is handed down from the front door. Long searches call `poll` a few times a second; it
passes progress on and says whether to stop, because time is up or the user asked.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from trainwright.errors import InvalidInput

# What a long sweep writes down as it goes, so that it can be taken up again
# --------------------------------------------------------------------------


class Journal(Protocol):
    """Finished batches by key; a batch is in it entirely or not at all."""

    def find(self, key: str) -> Any | None:
        """What a finished batch gave, as JSON values; None where it is not finished."""
        ...

    def append(self, key: str, value: Any) -> None:
        """Write a finished batch down."""
        ...


# The only source of time limits, progress and interruption that a verb may consult
# ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a search stands: best value and bound so far, in the objective's own unit.

    `remaining_s` is what is left of the time limit, if there is one.
    """

    stage: str
    elapsed_s: float
    best: float = math.inf
    lower_bound: float = 0.0
    remaining_s: float = math.inf

    @property
    def gap(self) -> float:
        """Relative gap between the best value and the bound; 1 while nothing is found."""
        if not math.isfinite(self.best) or self.best <= 0:
            return 0.0 if self.best == 0 else 1.0
        return max(0.0, (self.best - self.lower_bound) / self.best)


@dataclass(slots=True, kw_only=True)
class Budget:
    """A deadline, a stop switch and a listener.

    `time_limit_s` counts wall seconds from the creation of the budget, `cpu_limit_s` what the
    process works since then; `None` means no limit.
    `stage` says what searches are about, in place of the name that they give themselves.
    """

    time_limit_s: float | None = None
    on_progress: Callable[[Progress], None] | None = None
    interrupted: bool = False
    stage: str | None = None
    cpu_limit_s: float | None = None
    _start_s: float = field(default_factory=time.monotonic)
    _start_cpu_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._start_cpu_s = self.cpu_s
        limit = self.time_limit_s
        if limit is not None and not (math.isfinite(limit) and limit > 0):
            raise InvalidInput.of("time_limit", f"must be > 0 seconds, got {limit!r}")

    @property
    def elapsed_s(self) -> float:
        """Wall seconds since the budget was created."""
        return time.monotonic() - self._start_s

    @property
    def cpu_s(self) -> float:
        """CPU seconds of this process and its ended children; differences are what work cost."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    @property
    def remaining_s(self) -> float:
        """Wall seconds left; infinite without a limit, never negative."""
        if self.time_limit_s is None:
            return math.inf
        return max(0.0, self.time_limit_s - self.elapsed_s)

    @property
    def stopped(self) -> bool:
        """Whether time is up or the user asked to stop."""
        return self.interrupted or self.remaining_s <= 0 or self.remaining_cpu_s <= 0

    @property
    def remaining_cpu_s(self) -> float:
        """CPU seconds left; infinite without a limit, never negative."""
        if self.cpu_limit_s is None:
            return math.inf
        return max(0.0, self.cpu_limit_s - (self.cpu_s - self._start_cpu_s))

    def part(
        self,
        time_limit_s: float = math.inf,
        *,
        stage: str | None = None,
        cpu_limit_s: float = math.inf,
    ) -> Budget:
        """A share of what is left, for one of several searches; it stops where this one does.

        Progress is passed on with the time of the whole, under the name of `stage` where given.
        """

        def listen(progress: Progress) -> None:
            if self.poll(replace(progress, elapsed_s=self.elapsed_s)):
                inner.interrupt()

        wall_s, cpu_s = min(time_limit_s, self.remaining_s), min(cpu_limit_s, self.remaining_cpu_s)
        inner = Budget(
            time_limit_s=None if math.isinf(wall_s) else max(1e-3, wall_s),
            cpu_limit_s=None if math.isinf(cpu_s) else cpu_s,
            stage=stage,
            interrupted=self.interrupted,
        )
        inner.on_progress = listen
        return inner

    def interrupt(self) -> None:
        """Ask the running search to stop and keep its best result."""
        self.interrupted = True

    def poll(self, progress: Progress) -> bool:
        """Report progress; true when the search has to stop."""
        if self.on_progress is not None:
            stage = self.stage or progress.stage
            self.on_progress(replace(progress, stage=stage, remaining_s=self.remaining_s))
        return self.stopped
