import gzip
import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given

import pictures
from strategies_schedule import schedules_with_costs
from trainwright.frameworks.chrome_trace import format_chrome_trace, write_chrome_trace
from trainwright.scheduling.simulate import simulate


def events_of(timeline, phase=None):
    events = json.loads(format_chrome_trace(timeline))["traceEvents"]
    return [event for event in events if phase in (None, event["ph"])]


def by_thread(events):
    threads = defaultdict(list)
    for event in events:
        threads[event["pid"], event["tid"]].append(event)
    return threads


@given(schedules_with_costs())
def test_events_have_the_fields_their_phase_needs(case):
    needed = {
        "X": {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"},
        "C": {"name", "ph", "pid", "tid", "ts", "args"},
        "M": {"name", "ph", "pid", "tid", "args"},
        "s": {"name", "cat", "ph", "id", "pid", "tid", "ts"},
        "f": {"name", "cat", "ph", "id", "bp", "pid", "tid", "ts"},
    }
    times = []
    for event in events_of(simulate(*case)):
        assert set(event) == needed[event["ph"]]
        assert type(event["pid"]) is int and type(event["tid"]) is int
        assert event.get("ts", 0.0) >= 0 and event.get("dur", 0.0) >= 0
        times += [event["ts"]] if "ts" in event else []
    assert times == sorted(times)


@given(schedules_with_costs())
def test_complete_events_of_a_thread_do_not_overlap(case):
    for events in by_thread(events_of(simulate(*case), "X")).values():
        for before, after in pairwise(sorted(events, key=lambda e: (e["ts"], e["dur"]))):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-5


@given(schedules_with_costs())
def test_compute_events_are_the_actions_with_their_times(case):
    timeline = simulate(*case)
    schedule = timeline.schedule
    compute = [e for e in events_of(timeline, "X") if e["cat"] == "compute"]
    found = {(e["pid"], e["name"]): (e["ts"], e["dur"]) for e in compute}
    first_s = timeline.start_s.min()
    assert len(found) == len(compute) == schedule.num_actions
    for row, rank in enumerate(schedule.rank_of_row.tolist()):
        start, length = found[rank, str(schedule.action(row))]
        assert start == pytest.approx((timeline.start_s[row] - first_s) * 1e6, abs=1e-5)
        assert start + length == pytest.approx((timeline.end_s[row] - first_s) * 1e6, abs=1e-5)


@given(schedules_with_costs())
def test_every_send_has_a_receive_and_an_arrow_between_them(case):
    timeline = simulate(*case)
    moved = [e for e in events_of(timeline, "X") if e["cat"] == "transfer"]
    sends = [e for e in moved if "SEND" in e["name"]]
    starts, ends = events_of(timeline, "s"), events_of(timeline, "f")
    assert 2 * len(sends) == len(moved) == 2 * len(starts)
    assert sorted(e["id"] for e in starts) == sorted(e["id"] for e in ends)
    threads = by_thread(moved)
    for end in (*starts, *ends):
        within = threads[end["pid"], end["tid"]]
        assert any(e["ts"] <= end["ts"] <= e["ts"] + e["dur"] for e in within)


def test_the_counter_ends_at_static_memory_and_peaks_at_the_peak():
    timeline = pictures.timeline()
    for rank in range(timeline.schedule.num_ranks):
        levels = [e["args"]["bytes"] for e in events_of(timeline, "C") if e["pid"] == rank]
        assert max(levels) == timeline.peak_bytes[rank]
        assert levels[-1] == timeline.costs.memory.static_bytes[rank]


def test_threads_are_named_and_in_order():
    metadata = events_of(pictures.timeline(), "M")
    names = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in metadata if e["name"] == "thread_name"
    }
    assert [names[1, tid] for tid in (0, 1, 2)] == ["compute", "send", "receive"]
    ranks = [e["args"]["name"] for e in metadata if e["name"] == "process_name"]
    assert ranks[0] == "rank 0 (stages 0, 4)"
    used = {(e["pid"], e["tid"]) for e in events_of(pictures.timeline(), "X")}
    assert used == set(names)


def test_what_overlaps_has_a_thread_of_its_own():
    compute = [e for e in events_of(pictures.paired(), "X") if e["cat"] == "compute"]
    assert [e["tid"] for e in compute if e["name"] == "0B0"] == [4]
    metadata = [e for e in events_of(pictures.paired(), "M") if e["name"] == "thread_name"]
    assert {e["tid"]: e["args"]["name"] for e in metadata} == {0: "compute", 4: "compute 2"}


def test_many_transfers_are_drawn_without_arrows():
    text = format_chrome_trace(pictures.timeline(), max_flows=10)
    events = json.loads(text)["traceEvents"]
    assert {event["ph"] for event in events} == {"X", "C", "M"}
    assert [event for event in events if event.get("cat") == "transfer"]


def test_instant_transfers_are_left_out():
    timeline = pictures.timeline()
    zeros = timeline.costs.forward_transfer_s * 0
    costs = replace(timeline.costs, forward_transfer_s=zeros, backward_transfer_s=zeros)
    events = events_of(simulate(timeline.schedule, costs), "X")
    assert {event["cat"] for event in events} == {"compute"}


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_files_hold_the_trace_and_repeat(tmp_path, name):
    timeline, path = pictures.timeline(), tmp_path / name
    write_chrome_trace(path, timeline)
    data = path.read_bytes()
    text = gzip.decompress(data).decode() if name.endswith(".gz") else data.decode()
    assert text == format_chrome_trace(timeline)
    write_chrome_trace(path, timeline)
    assert path.read_bytes() == data
