"""Reads a memory snapshot of PyTorch without running anything that stands in it.

`torch.cuda.memory._dump_snapshot` writes a pickle of plain values: lists, dictionaries, text and
numbers. A pickle may also name functions to be called; here nothing can be named, so such a file is
refused. Of `segments`, each with its blocks, and of `device_traces`, the allocations and frees in
order, the fullest instant is found by going back from the end: what was freed later was there, what
was allocated later was not. Every block of that instant counts to the class that the frames tell
which allocated it, innermost first.
"""

from __future__ import annotations

import io
import pickle
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

from trainwright.errors import InvalidInput
from trainwright.plans.status import MemorySnapshot

LARGEST: Final = 2**30  # of a file
_FRAMES_READ: Final = 60
_MOST_BYTES: Final = 2.0**50  # of a block: more than any device has

# What frames tell, innermost first; the first that any pattern knows decides. Names of files and
# functions are those of PyTorch, of torchtitan, DeepSpeed, Megatron and transformers.
_CLASSES: Final = (
    ("workspace", r"cublas|getCurrentCUDABlasHandle|cudnn|Workspace"),
    (
        "buffer",
        r"all_gather_copy_in|all_gather_inputs|c10d|nccl|distributed_c10d|send_recv|all_to_all|"
        r"reduce_scatter|all_reduce",
    ),
    (
        "optimizer",
        r"optim/(?:adam|sgd|adamw|optimizer)|_init_group|exp_avg|fused_adam|distrib_optimizer|"
        r"single_partition_of_fp32|cpu_adam|bnb/optim|bitsandbytes/optim",
    ),
    ("logits", r"cross_entropy|log_softmax|nll_loss|loss_utils|/loss\.py|loss_fn|LossFunction"),
    (
        "gradient",
        r"AccumulateGrad|accumulate_grad|grad_buffer|_ParamAndGradBuffer|foreach_reduce|"
        r"main_grad|averaged_gradients|ipg_",
    ),
    ("transient", r"run_backward|in backward|loss\.backward|autograd/graph\.py|\.backward"),
    (
        "weight",
        r"from_pretrained|init_weights|reset_parameters|to_empty|_apply|fully_shard|"
        r"_init_sharded_param|load_state_dict|nn/parameter|:__init__",
    ),
    ("activation", r":forward|_call_impl|/functional\.py|flash_attn|checkpoint\.py"),
)
_KNOWN: Final = tuple((name, re.compile(words)) for name, words in _CLASSES)
UNKNOWN: Final = "unknown"


class _Plain(pickle.Unpickler):
    """Values without a name; whatever names a function or a class is refused."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Nothing is known by name."""
        named = f"{module_name}.{global_name}"
        raise pickle.UnpicklingError(f"it names {named}, which a snapshot has no need of")

    def persistent_load(self, pid: Any) -> Any:
        """Nothing stands elsewhere."""
        raise pickle.UnpicklingError("it refers to what stands elsewhere")


def is_snapshot(head: bytes) -> bool:
    """Whether a file may be one, by its first bytes: those of a pickle of protocol 2 and later."""
    return len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5


def read_snapshot(data: bytes, *, source: str | None = None) -> tuple[MemorySnapshot, ...]:
    """Every device of a snapshot that holds anything.

    Raises `InvalidInput` where the pickle is broken, names anything, or is no snapshot.
    """
    try:
        found = _Plain(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError) as error:
        raise InvalidInput.of(
            "from", f"must be a pickle of plain values: {error}", source=source
        ) from None
    except (AttributeError, MemoryError, OverflowError, RecursionError):
        raise InvalidInput.of(
            "from", "must be a pickle of plain values: it cannot be read", source=source
        ) from None
    if not isinstance(found, dict) or not isinstance(found.get("segments"), list):
        wanted = "must have segments, as torch.cuda.memory._dump_snapshot writes them"
        raise InvalidInput.of("from", wanted, source=source)
    traces = found.get("device_traces") or []
    try:
        own: dict[int, list[Any]] = defaultdict(list)
        for segment in found["segments"]:
            own[int(segment.get("device", 0))].append(segment)
        _refuse_repeated(found["segments"], traces, most=len(data), source=source)
        return tuple(_device(device, own[device], traces) for device in sorted(own))
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError):
        wanted = "must have segments with blocks and sizes"
        raise InvalidInput.of("from", wanted, source=source) from None


def _refuse_repeated(
    segments: list[Any], traces: list[Any], *, most: int, source: str | None
) -> None:
    """Each block and event of a snapshot takes bytes of the file: one stands in it once.

    A pickle can refer to what it has many times, so that a short one would be read for days.
    """
    counted = sum(len(segment["blocks"]) for segment in segments) + sum(map(len, traces))
    if counted > most:
        wanted = f"must have no more blocks and events than bytes, got {counted:,} in {most:,}"
        raise InvalidInput.of("from", wanted, source=source)


def _device(device: int, own: list[Any], traces: list[Any]) -> MemorySnapshot:
    held: dict[int, tuple[float, str]] = {}
    for segment in own:
        address = int(segment.get("address", 0))
        for block in segment["blocks"]:
            at = int(block.get("address", address))
            address = at + int(block["size"])
            if str(block.get("state", "")).startswith("active"):
                size = block.get("requested_size") or block["size"]
                held[at] = _bytes(size), class_of(block.get("frames") or ())
    trace = traces[device] if device < len(traces) else []
    fullest, events = _fullest(held, trace)
    by_class: dict[str, float] = defaultdict(float)
    for size, name in fullest.values():
        by_class[name] += size
    return MemorySnapshot(
        device=device,
        allocated_bytes=sum(by_class.values()),
        reserved_bytes=float(sum(int(segment["total_size"]) for segment in own)),
        by_class_bytes=dict(sorted(by_class.items(), key=lambda item: -item[1])),
        num_blocks=len(fullest),
        num_events=events,
    )


def _bytes(size: Any) -> float:
    found = float(size)
    if not 0 <= found < _MOST_BYTES:
        raise ValueError(f"no device has a block of {found:g} bytes")
    return found


def _fullest(
    held: Mapping[int, tuple[float, str]], trace: Iterable[Any]
) -> tuple[dict[int, tuple[float, str]], int]:
    """What was held at the fullest instant, and how many events led to it.

    Going back over the trace twice: when was it, then what. A block freed since has there the
    frames that freed it, so its class is that of its allocation, where that is on record.
    """
    events = [
        (str(entry["action"]), int(entry["addr"]), _bytes(entry["size"]), entry.get("frames") or ())
        for entry in trace
        if entry.get("action") in ("alloc", "free_completed")
    ]
    sizes = {at: size for at, (size, _) in held.items()}
    now = most = sum(sizes.values())
    back = 0  # events gone back when it was fullest
    for count, (action, at, size, _) in enumerate(reversed(events), start=1):
        if action == "alloc":
            now -= sizes.pop(at, 0.0)
        else:
            now += size - sizes.get(at, 0.0)
            sizes[at] = size
        if now > most:
            most, back = now, count
    found = dict(held)
    for action, at, size, frames in list(reversed(events))[:back]:
        if action == "alloc":
            found.pop(at, None)
        else:
            found[at] = size, class_of(frames)
    # The frames of a block are those of its allocation, which stands further back.
    told: set[int] = set()
    for action, at, _, frames in reversed(events[: len(events) - back]):
        if action == "alloc" and at in found and at not in told:
            told.add(at)
            if (name := class_of(frames)) != UNKNOWN:
                found[at] = found[at][0], name
    return found, len(events)


def class_of(frames: Iterable[Any]) -> str:
    """What the frames of an allocation tell, innermost first, as "file:function"."""
    said = [
        f"{frame.get('filename', '')}:{frame.get('name', '')}"
        for frame in islice(frames, _FRAMES_READ)
        if isinstance(frame, dict)
    ]
    for line in said:
        for name, known in _KNOWN:
            if known.search(line):
                if name == "activation" and any("run_backward" in each for each in said):
                    return "transient"
                return name
    return UNKNOWN
