"""Memory snapshots: nothing in them runs, the fullest instant is found, blocks have classes."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import InvalidInput
from trainwright.frameworks.training_logs import class_of, is_snapshot, read_snapshot
from trainwright.units import MIB

FRAMES = {
    "weight": [("torch/nn/modules/module.py", "_apply"), ("train.py", "main")],
    "optimizer": [("torch/optim/adamw.py", "_init_group"), ("train.py", "step")],
    "activation": [("torch/nn/modules/linear.py", "forward"), ("train.py", "step")],
    "logits": [("torch/nn/functional.py", "cross_entropy"), ("train.py", "step")],
    "transient": [("torch/autograd/graph.py", "_engine_run_backward"), ("train.py", "step")],
    "unknown": [("somewhere.py", "something")],
}


def frames(name: str) -> list[dict[str, Any]]:
    return [{"filename": file, "name": function, "line": 1} for file, function in FRAMES[name]]


class Device:
    """An allocator that writes what PyTorch's does: its blocks at the end, and its trace."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[int, str]] = {}
        self.trace: list[dict[str, Any]] = []
        self.fullest: dict[int, tuple[int, str]] = {}

    def take(self, at: int, size: int, name: str) -> None:
        self.held[at] = size, name
        self._event("alloc", at, size, name)
        if sum(s for s, _ in self.held.values()) > sum(s for s, _ in self.fullest.values()):
            self.fullest = dict(self.held)

    def free(self, at: int) -> None:
        size, _ = self.held.pop(at)
        self._event("free_requested", at, size, "unknown")
        self._event("free_completed", at, size, "unknown")

    def _event(self, action: str, at: int, size: int, name: str) -> None:
        event = {"action": action, "addr": at, "size": size, "frames": frames(name)}
        self.trace.append(event)

    def snapshot(self) -> bytes:
        blocks = [
            {"address": at, "size": size, "state": "active_allocated", "frames": frames(name)}
            for at, (size, name) in self.held.items()
        ]
        free = {"address": 1 << 40, "size": MIB, "state": "inactive", "frames": []}
        segment = {"device": 0, "address": 0, "total_size": 64 * MIB, "blocks": [*blocks, free]}
        return pickle.dumps({"segments": [segment], "device_traces": [self.trace]})


def test_blocks_at_the_end_are_counted_where_that_is_the_fullest() -> None:
    device = Device()
    device.take(0, 4 * MIB, "weight")
    device.take(1, 8 * MIB, "optimizer")
    (found,) = read_snapshot(device.snapshot())
    assert found.by_class_bytes == {"optimizer": 8 * MIB, "weight": 4 * MIB}
    assert (found.reserved_bytes, found.num_blocks, found.num_events) == (64 * MIB, 2, 2)


def test_what_was_freed_since_counts_with_the_frames_that_allocated_it() -> None:
    device = Device()
    device.take(0, 4 * MIB, "weight")
    device.take(1, 16 * MIB, "activation")
    device.take(2, 2 * MIB, "logits")
    device.free(1)
    device.free(2)
    device.take(1, 3 * MIB, "transient")
    (found,) = read_snapshot(device.snapshot())
    assert found.by_class_bytes == {
        "activation": 16 * MIB,
        "weight": 4 * MIB,
        "logits": 2 * MIB,
    }


steps = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 100), st.sampled_from(sorted(FRAMES))), max_size=40
)


@given(steps)
def test_any_history_is_replayed_to_its_fullest_instant(
    history: list[tuple[int, int, str]],
) -> None:
    device = Device()
    for at, size, name in history:
        if at in device.held:
            device.free(at)
        else:
            device.take(at, size, name)
    (found,) = read_snapshot(device.snapshot())
    expected: dict[str, int] = {}
    for size, name in device.fullest.values():
        expected[name] = expected.get(name, 0) + size
    assert found.allocated_bytes == sum(expected.values())
    assert sum(found.by_class_bytes.values()) == found.allocated_bytes


@pytest.mark.parametrize("name", FRAMES)
def test_frames_tell_the_class(name: str) -> None:
    assert class_of(frames(name)) == name


class Evil:
    """A pickle that would write a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_names_a_function_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    there = tmp_path / "ran"
    data = pickle.dumps({"segments": [Evil(there)]})
    assert is_snapshot(data[:3])
    with pytest.raises(InvalidInput, match=r"names .*mkdir"):
        read_snapshot(data)
    assert not there.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04.",
        pickle.dumps({"segments": 3}),
        pickle.dumps([1, 2]),
        pickle.dumps({"segments": [{"blocks": [{}]}]}),
        pickle.dumps({"segments": [{"total_size": "x", "blocks": []}]}),
        pickle.dumps({"segments": []})[:-3],
    ],
)
def test_what_is_no_snapshot_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="must"):
        read_snapshot(data)


def test_other_files_are_no_snapshots() -> None:
    assert not is_snapshot(b"#!/")
    assert not is_snapshot(b"")


def plain(**block: Any) -> bytes:
    given = {"size": 1, "state": "active_allocated", "frames": [], **block}
    segment = {"device": 0, "address": 0, "total_size": 1, "blocks": [given]}
    return pickle.dumps({"segments": [segment], "device_traces": []})


@pytest.mark.parametrize("size", [float("inf"), float("nan"), -1.0, 10**400, "many"])
@pytest.mark.parametrize("name", ["size", "requested_size"])
def test_sizes_that_no_device_has_are_refused(name: str, size: Any) -> None:
    assert read_snapshot(plain())[0].allocated_bytes == 1
    with pytest.raises(InvalidInput, match="must have segments with blocks and sizes"):
        read_snapshot(plain(**{name: size}))
    traced = {"segments": [], "device_traces": [[{"action": "alloc", "addr": 0, "size": size}]]}
    traced["segments"] = [{"device": 0, "total_size": 1, "blocks": []}]
    with pytest.raises(InvalidInput, match="must have segments with blocks and sizes"):
        read_snapshot(pickle.dumps(traced))


def test_a_short_file_that_refers_to_a_block_many_times_is_refused_at_once() -> None:
    blocks = [{"size": 1, "state": "active", "frames": []}] * 10_000
    segment = {"device": 0, "total_size": 1, "blocks": blocks}
    data = pickle.dumps({"segments": [segment] * 10_000, "device_traces": []})
    with pytest.raises(InvalidInput, match="no more blocks and events than bytes, got 100,000,000"):
        read_snapshot(data)
    many = [{"device": i, "total_size": 1, "blocks": []} for i in range(5_000)]
    assert len(read_snapshot(pickle.dumps({"segments": many, "device_traces": []}))) == 5_000
