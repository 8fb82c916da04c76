"""Reads the lines in which Megatron-LM, torchtitan and DeepSpeed report speed and memory.

    Megatron-LM   elapsed time per iteration (ms): 1234.5        max allocated: 4096.0 (MB)
    torchtitan    memory: 42.96GiB(45.2%)  tps: 5,762
    DeepSpeed     CurrSamplesPerSec=61.2                         samples/sec: 61.2

Anything else in a log is ignored, so that whole files may be pasted.
"""

from __future__ import annotations

import re
from typing import Final

from trainwright.errors import InvalidInput
from trainwright.plan.logged_run import LoggedRun
from trainwright.units import GIB, MIB

_NUMBER: Final = r"([0-9][0-9,]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)"
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_MEGATRON: Final = re.compile(rf"elapsed time per iteration \(ms\):\s*{_NUMBER}")
_MEGATRON_MEMORY: Final = re.compile(rf"max allocated:\s*{_NUMBER}")
_TORCHTITAN: Final = re.compile(rf"\btps:\s*{_NUMBER}")
_TORCHTITAN_MEMORY: Final = re.compile(rf"\bmemory:\s*{_NUMBER}GiB")
_DEEPSPEED: Final = re.compile(rf"(?:CurrSamplesPerSec=|samples/sec:\s*){_NUMBER}")


def read_log(text: str, *, source: str | None = None) -> LoggedRun:
    """The figures of a log; raises `InvalidInput` where no line times a step."""
    plain = _COLOUR.sub("", text)
    milliseconds = _numbers(_MEGATRON, plain)
    if milliseconds:
        peak = _numbers(_MEGATRON_MEMORY, plain)
        return LoggedRun(
            framework="Megatron-LM",
            step_times_s=tuple(ms / 1e3 for ms in milliseconds),
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
        return LoggedRun(framework="DeepSpeed", sequences_per_s=sequences)
    raise InvalidInput.of(
        "log",
        "must hold lines of Megatron-LM (elapsed time per iteration), torchtitan (tps) or "
        "DeepSpeed (samples/sec)",
        source=source,
    )


def _numbers(pattern: re.Pattern[str], text: str) -> tuple[float, ...]:
    found = (float(match.replace(",", "")) for match in pattern.findall(text))
    return tuple(value for value in found if value > 0)
