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
