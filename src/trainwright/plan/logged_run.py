"""What a training log says about one run: how fast, and how full."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from trainwright.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """The figures of a log, line by line, in whichever of three forms its framework prints.

    `step_times_s` are seconds per step (Megatron-LM), `tokens_per_s` per device (torchtitan),
    `sequences_per_s` of the whole run (DeepSpeed).
    """

    framework: str
    step_times_s: tuple[float, ...] = ()
    tokens_per_s: tuple[float, ...] = ()
    sequences_per_s: tuple[float, ...] = ()
    peak_memory_bytes: float | None = None

    @property
    def num_steps(self) -> int:
        """Lines that time a step."""
        return len(self.step_times_s or self.tokens_per_s or self.sequences_per_s)

    def step_time_s(self, *, global_batch: int, sequence_length: int, num_devices: int) -> float:
        """The median step; the first fifth of the lines is left out as warm-up."""
        if not self.num_steps:
            raise InvalidInput.of("log", "must hold at least 1 line that times a step")
        if self.step_times_s:
            return median(_settled(self.step_times_s))
        if self.tokens_per_s:
            tokens = global_batch * sequence_length / num_devices
            return tokens / median(_settled(self.tokens_per_s))
        return global_batch / median(_settled(self.sequences_per_s))


def _settled(values: tuple[float, ...]) -> tuple[float, ...]:
    return values[len(values) // 5 :]
