"""Runs measured several times count once: with their median, their spread printed beside it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from trainwright.plan.measured_run import MeasuredRun

# Columns that tell repeats of one configuration apart and no more.
_NOISE: Final = frozenset(
    {
        "source",
        "release",
        "plan",
        "campaign",
        "config_source",
        "timed_steps",
        "test_type",
        "step_time_origin",
        "tokens_per_s",
        "tokens_per_s_per_gpu",
        "mfu_percent",
        "hfu_percent",
        "model_tflops_per_gpu",
        "tflops_per_gpu",
        "grad_reduce_time_s",
        "peak_reserved_bytes",
        "peak_memory_last_rank_bytes",
        "peer_step_time_s",
        "peer_peak_memory_bytes",
        "peer_tokens_per_s_per_gpu",
    }
)


def repeat_key(run: MeasuredRun) -> tuple[object, ...]:
    """What two measurements must share to be repeats of each other."""
    if run.schema == "megatron_ci":  # a test's name stands for its arguments
        return (run.model, run.accelerator, run.num_devices)
    settings = tuple(sorted((k, v) for k, v in run.settings.items() if k not in _NOISE))
    return (
        run.model,
        run.accelerator,
        run.num_devices,
        run.sequence_length,
        run.global_batch,
        run.precision,
        run.num_layers,
        run.layout,
        settings,
    )


def median_of(values: Sequence[float | None]) -> float | None:
    """The median of what was measured; `None` where nothing was."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def spread_of(values: Sequence[float | None]) -> float:
    """Largest over smallest, less one; 0 for one value."""
    known = [value for value in values if value is not None]
    return max(known) / min(known) - 1 if len(known) > 1 else 0.0
