"""Reads the lines in which Megatron-LM, torchtitan and DeepSpeed report speed and memory.

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

import math
import re
from typing import Final

from trainwright.errors import InvalidInput
from trainwright.plans.measured_run import LoggedRun
from trainwright.plans.status import OutOfMemory, Phase
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


def _numbers(pattern: re.Pattern[str], text: str) -> tuple[float, ...]:
    """The finite figures > 0; one that the text ends in may be cut off, and is the last resort."""
    found: list[float] = []
    cut: list[float] = []
    for match in pattern.finditer(text):
        value = float(match[1].replace(",", ""))
        if 0 < value < math.inf:
            (cut if match.end() == len(text) else found).append(value)
    return tuple(found or cut)


# ----------------------------------------------------------------------------------------------
# Reads the end of a job that ran out of device memory, as PyTorch prints it.
#
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
# bytes`.


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
_GPU: Final = re.compile(r"\bGPU (\d+)\b")
_UNALLOCATED: Final = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_PREFIX: Final = re.compile(r"^\W*(?:rank\W?|default)(\d+)\]?\W?:", re.MULTILINE)
_SAYS_RANK: Final = re.compile(r"\b(?:global_rank|local_rank|rank)\s*[:=]\s*(\d+)", re.IGNORECASE)
_LOOKED_BACK: Final = 20_000  # characters of a trace before its message

# Words in frames of a trace: the one that stands last before the message decides.
_FRAMES: Final = (
    (
        Phase.CHECKPOINT,
        r"save_checkpoint|load_checkpoint|load_state_dict|state_dict\(|torch\.save|torch\.load",
    ),
    (
        Phase.OPTIMIZER,
        r"optimizer\.step|\bin step\b|adamw?\.py|_multi_tensor_adam|_init_group|fused_adam|"
        r"clip_grad|exp_avg",
    ),
    (Phase.BACKWARD, r"loss\.backward|\.backward\(|_run_backward|in backward\b|backward_step"),
    (Phase.LOSS, r"cross_entropy|loss_function|loss_utils|log_softmax|\blogits\b|in loss_fn"),
    (
        Phase.INITIALISATION,
        r"from_pretrained|setup_model_and_optimizer|get_megatron_optimizer|"
        r"_configure_(?:zero_)?optimizer|partition_size|DeepSpeedZeroOptimizer|"
        r"initialize_optimizer_states|_load_pretrained_model|build_model|in __init__|init_weights|"
        r"to_empty|\.cuda\(|deepspeed\.initialize|in fully_shard|_move_states_to_device",
    ),
    (Phase.FORWARD, r"in forward\b|forward_step|_call_impl"),
)


def read_out_of_memory(text: str) -> OutOfMemory | None:
    """The first allocation that a log says has failed; None where it says of none."""
    found = _MESSAGE.search(text)
    if found is None:
        return _read_xla(text)
    # A message may be folded over lines, each with the prefix of its rank.
    said = " ".join(text[found.start() : found.start() + 1500].split())
    said = re.sub(r"\[rank\d+\]:\s*", "", said)
    sizes = {name: _first(patterns, said) for name, patterns in _SAID.items()}
    unallocated = _UNALLOCATED.search(said)
    if sizes["reserved_bytes"] is None and unallocated and sizes["allocated_bytes"] is not None:
        sizes["reserved_bytes"] = sizes["allocated_bytes"] + _bytes(unallocated)
    sizes["in_use_bytes"] = _at_most(sizes["capacity_bytes"], sizes["in_use_bytes"])
    before = text[max(0, found.start() - _LOOKED_BACK) : found.start()]
    # The launcher may repeat the message before it shows any trace.
    after = text[found.end() : found.end() + _LOOKED_BACK]
    rank, phase, gpu = _rank(text, found.start(), before), _phase(before), _GPU.search(said)
    if phase is None:
        again = _MESSAGE.search(after)
        after = after if again is None else after[: again.start()]
        follows = _PREFIX.search(after)
        phase = _phase(after)
        rank = int(follows.group(1)) if rank is None and follows else rank
    return OutOfMemory(
        rank=rank,
        gpu=None if gpu is None else int(gpu.group(1)),
        phase=phase,
        tried_bytes=_bytes(found),
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
        return int(found.group(1))
    stated = list(_SAYS_RANK.finditer(before))
    return int(stated[-1].group(1)) if stated else None


def _phase(lines: str) -> Phase | None:
    """Of the last trace in them; a loss and an update stand inside other calls."""
    start = lines.rfind("Traceback")
    trace = lines[start:] if start >= 0 else lines
    last = {
        phase: max((found.start() for found in re.finditer(words, trace)), default=-1)
        for phase, words in _FRAMES
    }
    phase = max(last, key=lambda each: last[each])
    return phase if last[phase] >= 0 else None
