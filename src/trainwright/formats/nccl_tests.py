"""Output of nccl-tests (or rccl-tests) as the latency and bandwidth of a link.

Each row of the table is a payload and a time. A collective over n ranks takes steps · latency +
share · payload / bandwidth (see `costing.communication`), so two numbers explain the whole column:

    collective                       steps       share of the payload
    all_reduce                       2 (n - 1)   2 (n - 1)/n
    all_gather, reduce_scatter       n - 1       (n - 1)/n
    alltoall                         n - 1       (n - 1)/n
    sendrecv                         1           1

They are fitted to relative errors, since payloads span seven orders of magnitude. Protocols that
change with size make small payloads faster than the straight line through large ones; the fit is
a compromise, and `misfit` says how good a one.

Lines may stand behind what a launcher puts before them (`[1,0]<stdout>:`, `0: `), among lines of
NCCL itself or of other programs; what the columns in place and of errors hold does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from trainwright.errors import InvalidInput


def _ring_passes(passes: int) -> Callable[[int], tuple[float, float]]:
    return lambda ranks: (passes * (ranks - 1), passes * (ranks - 1) / ranks)


# Steps, and share of the payload, over a number of ranks.
_COLLECTIVES: Final[dict[str, Callable[[int], tuple[float, float]]]] = {
    "all_reduce": _ring_passes(2),
    "all_gather": _ring_passes(1),
    "reduce_scatter": _ring_passes(1),
    "alltoall": _ring_passes(1),
    "sendrecv": lambda ranks: (1.0, 1.0),
}
COLLECTIVES: Final = tuple(_COLLECTIVES)
_RANK: Final = re.compile(r"\bRank\s+(\d+)\s.*\bdevice\s+\d+", re.ASCII)
_NAME: Final = re.compile(r"\b([a-z_]+)_perf(?:_mpi)?\b")
# Bytes, elements, type, and then, where printed, operation and root: a root is a whole number.
_ROW: Final = re.compile(
    r"(?:^|[:>\]|]\s*|\s)(\d+)\s+\d+\s+(?:u?int\d+|half|float|double|bfloat16|fp8\w*|f8\w*|bf16)"
    r"(?:\s+[a-z]\w*)?(?:\s+-?\d+(?=\s+\d*\.?\d+\s+\d+\.\d+\s+\d+\.\d+))?"
    r"\s+(\d*\.?\d+)\s+\d+\.\d+\s+\d+\.\d+(?:\s|$)",
    re.ASCII,
)
_US: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRun:
    """One table: payloads in bytes and out-of-place times over `num_ranks` ranks."""

    collective: str
    num_ranks: int
    payload_bytes: tuple[float, ...]
    time_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """A link as the collective saw it; `misfit` is the mean relative error over the table."""

    bandwidth_bytes_per_s: float
    latency_s: float
    misfit: float


def read_nccl_tests(
    text: str, *, collective: str | None = None, source: str | None = None
) -> CollectiveRun:
    """Read the output of one run.

    `collective` is needed where the output does not name its program. Raises `InvalidInput` where
    the table, the ranks or the name are missing.
    """
    lines = text.splitlines()
    rows = [row for line in lines if (row := _row(line)) is not None]
    listed = [int(match[1]) for line in lines if (match := _RANK.search(line))]
    ranks = set(listed)
    programs = list(dict.fromkeys(_NAME.findall(text)))
    named = [name for name in programs if name in _COLLECTIVES]
    if collective is None and len(named) > 1:
        problem = f"must be one program's in a file, got {', '.join(named)}"
        raise InvalidInput.of("collective", problem, source=source)
    name = collective or next(iter(named or programs), None)
    if name not in _COLLECTIVES:
        wanted = f"must be one of {', '.join(COLLECTIVES)}"
        raise InvalidInput.of("collective", f"{wanted}, got {name or 'none'}", source=source)
    if len(ranks) < len(listed):
        times = listed.count(listed[0])
        problem = f"must be those of one run, got rank {listed[0]} {times} times; keep one run"
        raise InvalidInput.of("ranks", problem, source=source)
    if len(ranks) < 2:
        wanted = 'must list at least 2 ranks in lines such as "#  Rank  0 … device  0"'
        raise InvalidInput.of("ranks", f"{wanted}, got {len(ranks)}", source=source)
    if len(rows) < 2:
        wanted = "must have at least 2 rows of payload and time"
        raise InvalidInput.of("table", f"{wanted}, got {len(rows)}", source=source)
    return CollectiveRun(
        collective=name,
        num_ranks=len(ranks),
        payload_bytes=tuple(size for size, _ in rows),
        time_s=tuple(time_s for _, time_s in rows),
    )


def fit_link(run: CollectiveRun, *, source: str | None = None) -> LinkFit:
    """Latency and bandwidth that explain the run with the least relative error.

    Raises `InvalidInput` where times do not grow with the payload.
    """
    steps, share = _COLLECTIVES[run.collective](run.num_ranks)
    start_s, byte_s = _weighted_line(run.payload_bytes, run.time_s)
    if not byte_s > 0:
        wanted = "must have times that grow with the payload"
        raise InvalidInput.of("table", wanted, source=source)
    errors = [
        abs(start_s + byte_s * size - time_s) / time_s
        for size, time_s in zip(run.payload_bytes, run.time_s, strict=True)
    ]
    return LinkFit(
        bandwidth_bytes_per_s=share / byte_s,
        latency_s=start_s / steps,
        misfit=sum(errors) / len(errors),
    )


def _row(line: str) -> tuple[float, float] | None:
    """Payload and out-of-place time of a line of the table, if it is one and moved anything."""
    match = _ROW.search(line)
    if match is None:
        return None
    size, time_us = float(match[1]), float(match[2])
    return (size, time_us * _US) if size > 0 and time_us > 0 else None


def _weighted_line(sizes: Sequence[float], times_s: Sequence[float]) -> tuple[float, float]:
    """Start >= 0 and slope of time over size by least squares of relative errors."""
    weights = [1 / time_s**2 for time_s in times_s]

    def total(values: Iterator[float]) -> float:
        return sum(w * value for w, value in zip(weights, values, strict=True))

    w, wx = sum(weights), total(iter(sizes))
    wxx = total(size * size for size in sizes)
    wt = total(iter(times_s))
    wxt = total(size * time_s for size, time_s in zip(sizes, times_s, strict=True))
    determinant = w * wxx - wx * wx
    if determinant <= 0:
        return 0.0, 0.0
    start_s = (wt * wxx - wx * wxt) / determinant
    if start_s < 0:
        return 0.0, wxt / wxx
    return start_s, (w * wxt - wx * wt) / determinant
