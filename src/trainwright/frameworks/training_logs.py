"""Reads what runs leave: lines of Megatron-LM, torchtitan and DeepSpeed, and memory snapshots.

    Megatron-LM   elapsed time per iteration (ms): 1234.5        max allocated: 4096.0 (MB)
                  elapsed time per iteration (s): 1.2345         of its forks for DeepSpeed
    torchtitan    memory: 42.96GiB(45.2%)  tps: 5,762            wps: 5,762 until 2024
    DeepSpeed     CurrSamplesPerSec=61.2, MaxMemAllocated=9.0GB  samples/sec: 61.2
                  SamplesPerSec=61.2 until 2022

Anything else in a log is ignored, so that whole files may be pasted: time stamps, names of ranks,
lines of other programs, colours (also where their escape character was lost). A last line that
breaks off within its figure counts only where it is the sole one.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

from trainwright.errors import InvalidInput
from trainwright.formats.measured_csv import LoggedRun
from trainwright.formats.records import titled
from trainwright.plans.status import MemorySnapshot, OutOfMemory, Phase
from trainwright.units import GIB, MIB

_NUMBER: Final = r"([0-9][0-9,]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)"
# Control sequences, and colours that were copied without their escape character.
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[@-~]|(?:\^\[)?\[[0-9;]+m")
_MEGATRON: Final = re.compile(rf"elapsed time per iteration \(ms\):\s*{_NUMBER}")
_MEGATRON_S: Final = re.compile(rf"elapsed time per iteration \(s\):\s*{_NUMBER}")
_MEGATRON_MEMORY: Final = re.compile(rf"max allocated:\s*{_NUMBER}")
_TORCHTITAN: Final = re.compile(rf"\b[tw]ps:\s*{_NUMBER}")
_TORCHTITAN_MEMORY: Final = re.compile(rf"\bmemory:\s*{_NUMBER}GiB")
_DEEPSPEED: Final = re.compile(rf"(?:\b(?:Curr)?SamplesPerSec=|samples/sec:\s*){_NUMBER}")
_DEEPSPEED_MEMORY: Final = re.compile(rf"\bMaxMemAllocated=\s*{_NUMBER}\s*GB")


def read_log(text: str, *, source: str | None = None) -> LoggedRun:
    """The figures of a log; raises `InvalidInput` where no line times a step."""
    plain = _CONTROL.sub("", text)
    times_s = tuple(ms / 1e3 for ms in _numbers(_MEGATRON, plain)) or _numbers(_MEGATRON_S, plain)
    if times_s:
        peak = _numbers(_MEGATRON_MEMORY, plain)
        return LoggedRun(
            framework="Megatron-LM",
            step_times_s=times_s,
            peak_memory_bytes=max(peak) * MIB if peak else None,
        )
    tokens = _numbers(_TORCHTITAN, plain)
    if tokens:
        peak = _numbers(_TORCHTITAN_MEMORY, plain)
        return LoggedRun(
            framework="torchtitan",
            tokens_per_s=tokens,
            peak_memory_bytes=max(peak) * GIB if peak else None,
        )
    sequences = _numbers(_DEEPSPEED, plain)
    if sequences:
        peak = _numbers(_DEEPSPEED_MEMORY, plain)
        return LoggedRun(
            framework="DeepSpeed",
            sequences_per_s=sequences,
            peak_memory_bytes=max(peak) * GIB if peak else None,
        )
    raise InvalidInput.of(
        "log",
        "must hold lines of Megatron-LM (elapsed time per iteration), torchtitan (tps) or "
        "DeepSpeed (samples/sec)",
        source=source,
    )


def log_schema() -> dict[str, Any]:
    """The JSON Schema of a log, as one text without the sequences that colour it."""
    timed = {
        "Megatron-LM, in ms": _MEGATRON,
        "Megatron-LM, in s": _MEGATRON_S,
        "torchtitan": _TORCHTITAN,
        "DeepSpeed": _DEEPSPEED,
    }
    lines = [{"description": who, "pattern": line.pattern} for who, line in timed.items()]
    about = "A training log as one text, without control sequences: it times a step at least once."
    return titled("training log", {"type": "string", "anyOf": lines}, about=about)


def _numbers(pattern: re.Pattern[str], text: str) -> tuple[float, ...]:
    """The finite figures > 0; one that the text ends in may be cut off, and is the last resort."""
    found: list[float] = []
    cut: list[float] = []
    for match in pattern.finditer(text):
        value = float(match[1].replace(",", ""))
        if 0 < value < math.inf:
            (cut if match.end() == len(text) else found).append(value)
    return tuple(found or cut)


# Reads the end of a job that ran out of device memory, as PyTorch prints it
# --------------------------------------------------------------------------
#     torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total
#     capacity of 79.10 GiB of which 1.23 GiB is free. Including non-PyTorch memory, this process
#     has
#     77.80 GiB memory in use. Of the allocated memory 70.10 GiB is allocated by PyTorch, and 5.00
#     GiB
#     is reserved by PyTorch but unallocated.
#
# until 2023: `Tried to allocate 20.00 MiB (GPU 0; 79.15 GiB total capacity; 77.00 GiB already
# allocated; 15.00 MiB free; 78.00 GiB reserved in total by PyTorch)`. The rank is that of a prefix
# (`[rank3]:`), or of the launcher's own lines. The phase follows from the names in the trace that
# precedes the message: the innermost frame that tells it.
#
# XLA says before the first step what a whole program needs, `Ran out of memory in memory space hbm.
# Used 21.95G of 15.48G hbm. Exceeded hbm capacity by 6.47G.`, or that it tried `to allocate 85899
# bytes`. Who asks the driver itself says no bytes: `RuntimeError: CUDA error: out of memory`, NCCL
# `Cuda failure 2 'out of memory'` or `Failed to CUDA calloc async 608 bytes`, and cuBLAS that its
# workspace is missing, `CUBLAS_STATUS_ALLOC_FAILED`.


_SIZE: Final = r"([0-9][0-9,]*(?:\.[0-9]+)?)\s*([KMGT]?i?)[Bb](?:ytes)?"
_UNITS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_MESSAGE: Final = re.compile(
    rf"(?:OutOfMemoryError|out of memory)[^\n]*?Tried to allocate\s+{_SIZE}[^\n]*", re.IGNORECASE
)
# Of one message: what is said, and by which words, newest first.
_SAID: Final = {
    "capacity_bytes": (rf"total capaci?ty of {_SIZE}", rf"{_SIZE} total capacity"),
    "free_bytes": (rf"of which {_SIZE} is free", rf"{_SIZE} free"),
    "in_use_bytes": (rf"this process has {_SIZE} memory in use",),
    "allocated_bytes": (
        rf"allocated memory {_SIZE} is allocated by PyTorch",
        rf"{_SIZE} already allocated",
    ),
    "reserved_bytes": (rf"{_SIZE} reserved in total",),
}
_OF_XLA: Final = re.compile(
    r"Ran out of memory in memory space hbm\.\s+Used ([0-9.]+)([KMGT]?) of ([0-9.]+)([KMGT]?) hbm"
    r"|RESOURCE_EXHAUSTED:[^\n]*?allocat(?:e|ing) ([0-9]+) bytes",
    re.IGNORECASE,
)
# No bytes are told: no comment of a script either.
_BARE: Final = re.compile(
    r"^(?!\s*#).*(?:(?:Error|Exception):\s+(?:CUDA|HIP|NPU|XPU) (?:error: )?out of memory"
    r"|NCCL WARN (?:Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA (?:c|m)alloc)"
    r"|(?:Error|Exception):.*CUBLAS_STATUS_ALLOC_FAILED)",
    re.MULTILINE,
)
_GPU: Final = re.compile(r"\b[GNX]PU (\d+)\b|\[(\d+)\] \S+ NCCL WARN")
_PROCESS: Final = re.compile(rf"\bProcess \d+ has {_SIZE} memory in use")
_UNALLOCATED: Final = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_PREFIX: Final = re.compile(r"^(?:\W*(?:rank\W?|default)(\d+)\]?\W?:|(\d+): )", re.MULTILINE)
_SAYS_RANK: Final = re.compile(r"\b(?:global_rank|local_rank|rank)\s*[:=]\s*(\d+)", re.IGNORECASE)
_BOX: Final = re.compile(r"[\s│❱]+")  # of a trace that `rich` frames and folds
_LOOKED_BACK: Final = 20_000  # characters of a trace before its message

# Words in frames of a trace: the one that stands last before the message decides.
_FRAMES: Final = (
    (
        Phase.CHECKPOINT,
        r"save_checkpoint|load_checkpoint|\bload_state_dict|\bstate_dict\(|torch\.save|torch\.load",
    ),
    (
        Phase.OPTIMIZER,
        r"optimizer[._]step|\bin step\b|adamw?\.py|_multi_tensor_adam|_init_group|fused_adam|"
        r"clip_grad|exp_avg",
    ),
    (Phase.BACKWARD, r"loss\.backward|\.backward\(|_run_backward|in backward\b|backward_step"),
    (Phase.LOSS, r"cross_entropy|loss_function|loss_utils|log_softmax|\blogits\b|in loss_fn"),
    (
        Phase.INITIALISATION,
        r"from_pretrained|setup_model_and_optimizer|get_megatron_optimizer|"
        r"_configure_(?:zero_)?optimizer|partition_size|DeepSpeedZeroOptimizer|"
        r"initialize_optimizer_states|_load_pretrained_model|_into_meta_model|build_model|"
        r"in __init__|init_weights|to_empty|\.cuda\(|deepspeed\.initialize|"
        r"in fully_shard|_move_states_to_device",
    ),
    (Phase.FORWARD, r"in forward\b|forward_step|_call_impl"),
)


def read_out_of_memory(text: str) -> OutOfMemory | None:
    """The first allocation that a log says has failed; None where it says of none."""
    found = _MESSAGE.search(text)
    if found is None:
        if (of_xla := _read_xla(text)) is not None:
            return of_xla
        found = _BARE.search(text)
        if found is None:
            return None
    # A message may be folded over lines, each with the prefix of its rank.
    said = " ".join(text[found.start() : found.start() + 1500].split())
    said = re.sub(r"\[rank\d+\]:\s*", "", said)
    sizes = {name: _first(patterns, said) for name, patterns in _SAID.items()}
    unallocated = _UNALLOCATED.search(said)
    if sizes["reserved_bytes"] is None and unallocated and sizes["allocated_bytes"] is not None:
        sizes["reserved_bytes"] = sizes["allocated_bytes"] + _bytes(unallocated)
    if sizes["in_use_bytes"] is None:  # of a container: the one that ran out holds the most
        held = max(map(_bytes, _PROCESS.finditer(said)), default=None)
        sizes["in_use_bytes"] = held if held and held >= (sizes["allocated_bytes"] or 0.0) else None
    sizes["in_use_bytes"] = _at_most(sizes["capacity_bytes"], sizes["in_use_bytes"])
    before = text[max(0, found.start() - _LOOKED_BACK) : found.start()]
    # The launcher may repeat the message before it shows any trace.
    after = text[found.end() : found.end() + _LOOKED_BACK]
    at = found.start() if found.re is _MESSAGE else found.end()
    rank, phase, gpu = _rank(text, at, before), _phase(before), _GPU.search(said)
    if phase is None:
        again = _MESSAGE.search(after)
        after = after if again is None else after[: again.start()]
        follows = _PREFIX.search(after)
        phase = _phase(after)
        rank = _number_in(follows) if rank is None and follows else rank
    return OutOfMemory(
        rank=rank,
        gpu=None if gpu is None else _number_in(gpu),
        phase=phase,
        tried_bytes=_bytes(found) if found.re is _MESSAGE else None,
        **sizes,
    )


def _at_most(capacity_bytes: float | None, in_use_bytes: float | None) -> float | None:
    """What a process holds, unless that is more than there is: WSL prints 2^64 bytes."""
    if capacity_bytes is None or in_use_bytes is None or in_use_bytes <= capacity_bytes:
        return in_use_bytes
    return None


def _read_xla(text: str) -> OutOfMemory | None:
    found = _OF_XLA.search(text)
    if found is None:
        return None
    used, used_unit, size, size_unit, asked = found.groups()
    if asked is not None:
        return OutOfMemory(tried_bytes=float(asked))
    needed, capacity = (
        float(value) * 1024.0 ** _UNITS[unit.upper()]
        for value, unit in ((used, used_unit), (size, size_unit))
    )
    return OutOfMemory(tried_bytes=needed, capacity_bytes=capacity, free_bytes=capacity)


def _first(patterns: tuple[str, ...], text: str) -> float | None:
    for pattern in patterns:
        if found := re.search(pattern, text):
            return _bytes(found)
    return None


def _bytes(found: re.Match[str]) -> float:
    """PyTorch prints powers of 1,024, whatever the unit is called."""
    value, unit = found.group(1), found.group(2).removesuffix("i").upper()
    return float(value.replace(",", "")) * 1024.0 ** _UNITS[unit]


def _rank(text: str, at: int, before: str) -> int | None:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    if found := _PREFIX.match(line):
        return _number_in(found)
    stated = list(_SAYS_RANK.finditer(before))
    return int(stated[-1].group(1)) if stated else None


def _number_in(found: re.Match[str]) -> int:
    return int(found.group(1) or found.group(2))


def _phase(lines: str) -> Phase | None:
    """Of the last trace in them; a loss and an update stand inside other calls."""
    lines = _BOX.sub(" ", lines)
    start = lines.rfind("Traceback")
    trace = lines[start:] if start >= 0 else lines
    last = {
        phase: max((found.start() for found in re.finditer(words, trace)), default=-1)
        for phase, words in _FRAMES
    }
    phase = max(last, key=lambda each: last[each])
    return phase if last[phase] >= 0 else None


# Memory snapshots of PyTorch, read without running anything that stands in them
# ------------------------------------------------------------------------------
# `torch.cuda.memory._dump_snapshot` writes a pickle of plain values: lists, dictionaries, text and
# numbers. A pickle may also name functions to be called; here nothing can be named, so such a file
# is refused. Of `segments`, each with its blocks, and of `device_traces`, the allocations and frees
# in order, the fullest instant is found by going back from the end: what was freed later was there,
# what was allocated later was not. Every block of that instant counts to the class that the frames
# tell which allocated it, innermost first.


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
                held[at] = _block_bytes(size), class_of(block.get("frames") or ())
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


def _block_bytes(size: Any) -> float:
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
        (
            str(entry["action"]),
            int(entry["addr"]),
            _block_bytes(entry["size"]),
            entry.get("frames") or (),
        )
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
