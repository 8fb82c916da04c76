"""Timelines as Chrome traces, for chrome://tracing, Perfetto and whatever else reads the format.

"Trace Event Format" (Google, 2016), JSON object form. One process per rank. Its threads are
compute, send and receive; where two things on one thread overlap (two transfers at once, a paired
forward and backward) the later one is on a further thread of the same name, because complete events
of one thread must nest. Counters follow memory, flow arrows join each send with its receive. Times
are microseconds from the first start.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainwright.formats.atomic_file import write_bytes
from trainwright.plans.job import ExportBundle, Job, Stamp
from trainwright.plans.schedule import ActionKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.plans.lowered import Timeline, Transfers

MAX_FLOWS: Final = 50_000
_COMPUTE, _SEND, _RECEIVE = 0, 1, 2
_THREAD_NAMES: Final = ("compute", "send", "receive")
_LANE_STRIDE: Final = 4  # thread numbers of one lane; 3 is for collectives, which schedules lack
_MICROSECONDS: Final = 1e6

Event = dict[str, Any]


def format_chrome_trace(
    timeline: Timeline,
    *,
    title: str = "pipeline schedule",
    max_flows: int = MAX_FLOWS,
    memory_unit: str = "bytes",
) -> str:
    """The text of a `.json` trace, events by time.

    Transfers that take no time are left out, and so are flow arrows where there would be more than
    `max_flows`. `args` of an action are its kind, stage and microbatch; `memory_unit` names what
    the counters count.
    """
    compute = _action_events(timeline)
    moved = _transfer_events(timeline, max_flows)
    counters = [
        event
        for rank in range(_num_ranks(timeline))
        for event in _memory(timeline, rank, unit=memory_unit)
    ]
    timed = sorted((*compute, *moved, *counters), key=lambda event: float(event["ts"]))
    document = {
        "traceEvents": [*_names(timeline, (*compute, *moved)), *timed],
        "displayTimeUnit": "ms",
        "otherData": {"title": title, "makespan_s": timeline.makespan_s},
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def write_chrome_trace(path: str | Path, timeline: Timeline, *, memory_unit: str = "bytes") -> None:
    """Write a trace in one step, compressed where the name ends in `.gz`."""
    data = format_chrome_trace(timeline, memory_unit=memory_unit).encode()
    zipped = Path(path).suffix == ".gz"
    write_bytes(path, gzip.compress(data, compresslevel=6, mtime=0) if zipped else data)


def _num_ranks(timeline: Timeline) -> int:
    return timeline.schedule.num_ranks


def _microseconds(timeline: Timeline, time_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """From the first start, to a millionth: float noise would make neighbours overlap."""
    rounded: NDArray[np.float64] = np.round((time_s - timeline.start_s.min()) * _MICROSECONDS, 6)
    return rounded


def _action_events(timeline: Timeline) -> list[Event]:
    schedule = timeline.schedule
    starts = _microseconds(timeline, timeline.start_s)
    ends = _microseconds(timeline, timeline.end_s)
    ranks = schedule.rank_of_row
    lanes = _lanes(ranks, starts, ends)
    columns = (schedule.actions.tolist(), ranks.tolist(), starts.tolist(), ends.tolist(), lanes)
    return [
        {
            "name": f"{stage}{ActionKind(kind).name}{microbatch}",
            "cat": "compute",
            "ph": "X",
            "pid": rank,
            "tid": _COMPUTE + _LANE_STRIDE * lane,
            "ts": start,
            "dur": round(end - start, 6),
            "args": {"kind": ActionKind(kind).name, "stage": stage, "microbatch": microbatch},
        }
        for (kind, stage, microbatch), rank, start, end, lane in zip(*columns, strict=True)
    ]


def _transfer_events(timeline: Timeline, max_flows: int) -> list[Event]:
    """Send, receive and, where they are few enough, the arrow between them."""
    transfers = timeline.transfers()
    happened = np.flatnonzero((transfers.end_s > transfers.start_s) & (transfers.end_s > 0))
    forward, source = transfers.is_forward[happened], transfers.source_stage[happened]
    owner = np.array(timeline.schedule.placement.rank_of_stage)
    sender, receiver = owner[source], owner[source + np.where(forward, 1, -1)]
    starts = _microseconds(timeline, transfers.start_s[happened])
    ends = _microseconds(timeline, transfers.end_s[happened])
    send_lanes, receive_lanes = _lanes(sender, starts, ends), _lanes(receiver, starts, ends)
    events: list[Event] = []
    for at, transfer in enumerate(happened.tolist()):
        times = float(starts[at]), float(ends[at])
        here = {"pid": int(sender[at]), "tid": _SEND + _LANE_STRIDE * send_lanes[at]}
        there = {"pid": int(receiver[at]), "tid": _RECEIVE + _LANE_STRIDE * receive_lanes[at]}
        events += _both_ends(transfers, transfer, times, here, there)
        if len(happened) <= max_flows:
            flow = {"name": "transfer", "cat": "transfer", "id": transfer}
            events.append({**flow, "ph": "s", "ts": times[0], **here})
            middle = round((times[0] + times[1]) / 2, 6)  # inside the slice it binds to
            events.append({**flow, "ph": "f", "bp": "e", "ts": middle, **there})
    return events


def _both_ends(
    transfers: Transfers, at: int, times: tuple[float, float], here: Event, there: Event
) -> Iterator[Event]:
    letter = "F" if transfers.is_forward[at] else "B"
    stage, microbatch = int(transfers.source_stage[at]), int(transfers.microbatch[at])
    target = stage + (1 if transfers.is_forward[at] else -1)
    length = {"ts": times[0], "dur": round(times[1] - times[0], 6)}
    for verb, owner, where in (("SEND", stage, here), ("RECV", target, there)):
        yield {
            "name": f"{owner}{verb}_{letter}{microbatch}",
            "cat": "transfer",
            "ph": "X",
            **where,
            **length,
            "args": {"kind": f"{verb}_{letter}", "stage": owner, "microbatch": microbatch},
        }


def _lanes(
    groups: NDArray[np.int64], starts: NDArray[np.float64], ends: NDArray[np.float64]
) -> list[int]:
    """For each interval the lowest lane of its group that is free when it starts."""
    lanes = [0] * len(starts)
    free_at: dict[int, list[float]] = {}
    for at in np.lexsort((ends, starts)).tolist():
        busy = free_at.setdefault(int(groups[at]), [])
        start = float(starts[at])
        lane = next((lane for lane, until in enumerate(busy) if until <= start), len(busy))
        if lane == len(busy):
            busy.append(0.0)
        busy[lane], lanes[at] = float(ends[at]), lane
    return lanes


def _memory(timeline: Timeline, rank: int, *, unit: str) -> Iterator[Event]:
    """The level of a rank after everything that happens at an instant, where it changes."""
    curve = timeline.memory_curve(rank)
    times = _microseconds(timeline, np.maximum(curve.time_s, timeline.start_s.min()))
    times, levels = curve.by_instant(np.maximum.accumulate(times))
    changed = np.append(True, levels[1:] != levels[:-1])
    for time, level in zip(times[changed].tolist(), levels[changed].tolist(), strict=True):
        counter = {"name": "memory", "ph": "C", "pid": rank, "tid": 0, "ts": time}
        yield {**counter, "args": {unit: level}}


def _names(timeline: Timeline, events: tuple[Event, ...]) -> Iterator[Event]:
    """Metadata: names of ranks and threads, and the order to show them in."""
    used = {(event["pid"], event["tid"]) for event in events}
    stages = timeline.schedule.placement.stages_of_rank
    for rank in range(_num_ranks(timeline)):
        threads = sorted(tid for pid, tid in used if pid == rank)
        numbers = ", ".join(map(str, stages[rank])) or "none"
        yield _metadata("process_name", rank, 0, name=f"rank {rank} (stages {numbers})")
        yield _metadata("process_sort_index", rank, 0, sort_index=rank)
        for tid in threads:
            lane, part = divmod(tid, _LANE_STRIDE)
            name = _THREAD_NAMES[part] + (f" {lane + 1}" if lane else "")
            yield _metadata("thread_name", rank, tid, name=name)
            yield _metadata("thread_sort_index", rank, tid, sort_index=part * 1000 + lane)


def _metadata(kind: str, pid: int, tid: int, /, **args: str | int) -> Event:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args}


# A picture of the schedule: a Chrome trace of one step at the predicted times
# ----------------------------------------------------------------------------


def export_trace(job: Job, stamp: Stamp) -> ExportBundle:
    """One compressed trace; its title says which plan it shows."""
    assert job.orders is not None, "a trace shows the order of every action"
    return trace_of(job.orders.timeline, job.model_name, stamp)


def trace_of(timeline: Timeline, name: str, stamp: Stamp) -> ExportBundle:
    """The same of a timeline, which is all of a plan that a trace shows."""
    title = f"{name}, plan {stamp.short_hash}, trainwright {stamp.trainwright_version}"
    trace = format_chrome_trace(timeline, title=title)
    return ExportBundle(
        target="chrome-trace",
        version="Trace Event Format",
        files={"trace.json.gz": trace + "\n"},
        command=(),
        not_represented=("degrees, layers and recomputation",),
    )
