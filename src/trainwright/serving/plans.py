"""Answering questions, a few at a time, and keeping the last answers for their pages."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainwright.api.explore import answer
from trainwright.api.report import report
from trainwright.api.report_command import command_of
from trainwright.execution import Budget

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trainwright.api.explore import Question
    from trainwright.api.report_command import Command
    from trainwright.api.result import Result
    from trainwright.serving.limits import Limits

_LOOK_S = 0.05  # how often it is looked whether the reader still waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """An answer, its id and its command; not complete where the search was stopped."""

    id: str
    is_complete: bool
    result: Result
    command: Command


class BusyError(Exception):
    """More questions than are answered or may wait."""


class Planner:
    """Plans in threads, `max_running` at once; a question nobody waits for any more is stopped."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._free = asyncio.Semaphore(limits.max_running)
        self._num_asked = 0
        self._kept: OrderedDict[str, Made] = OrderedDict()
        self._pages: dict[str, str] = {}
        self._lock = threading.Lock()

    async def plan(
        self,
        question: Question,
        is_gone: Callable[[], Awaitable[bool]],
        *,
        time_limit_s: float | None = None,
    ) -> Made:
        """The best plan within both time limits; raises `BusyError`, or `InvalidInput`."""
        if self._num_asked >= self._limits.max_running + self._limits.max_waiting:
            raise BusyError
        self._num_asked += 1
        try:
            async with self._free:
                most_s = self._limits.time_limit_s
                budget = Budget(time_limit_s=min(time_limit_s or most_s, most_s))
                running = asyncio.create_task(asyncio.to_thread(answer, question, budget))
                while not (await asyncio.wait({running}, timeout=_LOOK_S))[0]:
                    if not budget.interrupted and await is_gone():
                        budget.interrupt()
                return self._keep(running.result(), is_complete=not budget.stopped)
        finally:
            self._num_asked -= 1

    def made(self, plan_id: str) -> Made | None:
        """An answer that is still kept."""
        return self._kept.get(plan_id)

    def page(self, plan_id: str) -> str | None:
        """The page of an answer that is still kept, written when it is first asked for."""
        found = self._kept.get(plan_id)
        if found is None:
            return None
        with self._lock:
            if plan_id not in self._pages:
                self._pages[plan_id] = report(found.result).html
            return self._pages[plan_id]

    def _keep(self, result: Result, *, is_complete: bool) -> Made:
        import hashlib

        text = result.to_json()
        made = Made(
            id=hashlib.sha256(text.encode()).hexdigest()[:24],
            is_complete=is_complete,
            result=result,
            command=command_of(result.document),
        )
        self._kept[made.id] = made
        self._kept.move_to_end(made.id)
        while len(self._kept) > self._limits.max_kept:
            oldest, _ = self._kept.popitem(last=False)
            self._pages.pop(oldest, None)
        return made
