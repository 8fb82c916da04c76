"""Two documents side by side, only what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.reporting.text import add_row, ranges, table
from trainwright.units import (
    TimeUnit,
    format_bandwidth,
    format_bytes,
    format_percent_up,
    format_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from trainwright.plan.results.difference import (
        Change,
        Difference,
        StageChange,
        StageFacts,
    )


def difference_report(found: Difference) -> RenderableType:
    """What was asked differently, then what came out differently."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    if not found.same_model:
        parts.append(Text("the two documents are about different models"))
    for title, rows in (
        ("request", [_row(change) for change in found.request_changes]),
        ("result", [_row(change) for change in found.result_changes]),
        ("stages", [_stage_row(change) for change in found.stage_changes]),
    ):
        if rows:
            parts.append(_change_table(title, rows))
    if parts and found.time_ratio is not None:
        parts.append(Text(_of_other_work(found) or _verdict(found.time_ratio)))
    return Group(*(parts or [Text("no difference")]))


def _of_other_work(found: Difference) -> str:
    """Steps of unlike work are compared by their tokens, where both documents count them."""
    if not any(change.key in WORK_KEYS for change in found.request_changes):
        return ""
    counted = (change for change in found.result_changes if change.key == "tokens_per_s")
    tokens = next(counted, None)
    if tokens is None or not tokens.before or not tokens.after or found.time_ratio is None:
        return ""
    return throughput_words(tokens.after / tokens.before, found.time_ratio)


def throughput_words(ratio: float, time_ratio: float) -> str:
    """What a change of the work of a step does to tokens per second, and to the step beside."""
    steps = f"its steps, of another size, take {time_ratio:.4g}x as long"
    return f"{ratio:.4g}x as many tokens per second; {steps}"


def _verdict(ratio: float) -> str:
    if ratio == 1:
        return "both take the same time"
    if ratio == 0:
        return "the second takes no time at all"
    word = "slower" if ratio > 1 else "faster"
    excess = max(ratio, 1 / ratio) - 1
    size = f"{1 + excess:.4g}x" if excess >= 1e-3 else f"a fraction of {excess:.2g}"
    return f"the second is {size} {word}"


def _change_table(title: str, rows: Iterable[tuple[str, str, str]]) -> RenderableType:
    made = table(title, (("what", "left"), ("first", "left"), ("second", "left")))
    for row in rows:
        add_row(made, *row)
    return made


WORK_KEYS: Final = ("global_batch", "sequence_length")  # what decides the tokens of a step
_SHOWN: Final = {
    "step_time_s": "step time",
    "time_per_batch_s": "time per batch",
    "time_per_sample_s": "time per microbatch",
    "compute_s": "compute",
    "recompute_s": "recomputation",
    "tensor_s": "exposed tensor communication",
    "context_s": "exposed context communication",
    "expert_s": "exposed expert communication",
    "pipeline_s": "exposed transfers between stages",
    "transfers_s": "exposed transfers between stages",
    "gradients_s": "exposed sums of gradients",
    "parameters_s": "exposed gathers of parameters",
    "data_s": "exposed data communication",
    "bubble_s": "bubble",
    "optimizer_s": "optimizer",
    "peak_memory_bytes": "peak memory",
    "tokens_per_s": "tokens per second",
    "mfu": "MFU",
    "blocks_per_stage": "blocks of each stage",
    "recompute_per_stage": "recomputation of each stage",
}


def _row(change: Change) -> tuple[str, str, str]:
    key, values = change.key, (change.before, change.after)
    before, after = (value_text(key, value) for value in values)
    if before == after:  # too close to tell apart when rounded
        before, after = map(str, values)
    return _SHOWN.get(key, key), before, after


def value_text(key: str, value: object) -> str:
    """A value in the unit its key names, as a person reads it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, (int, float)):
        for suffix, shown in _UNITS:
            if key.endswith(suffix):
                return shown(value)
    return str(value)


_UNITS: Final = (
    ("_bytes_per_s", format_bandwidth),
    ("tokens_per_s", lambda value: f"{value:,.1f}"),
    ("mfu", lambda value: f"{value:.2%}"),
    ("flops_per_s", lambda value: f"{value / 1e12:.5g} TFLOP/s"),
    ("_bytes", format_bytes),
    ("_s", format_seconds),
    ("_slots", TimeUnit.SLOTS.describe),
    ("gap", format_percent_up),
)


def _stage_row(change: StageChange) -> tuple[str, str, str]:
    values = (change.before, change.after)
    before, after = map(_stage_text, values)
    if before == after:
        before, after = map(_exact_text, values)
    return f"stage {change.stage}", before, after


def _exact_text(stage: StageFacts | None) -> str:
    return f"{stage.time_per_sample_s!r} s, {stage.memory_bytes!r} B" if stage else ""


def _stage_text(stage: StageFacts | None) -> str:
    if stage is None:
        return ""
    return (
        f"layers {ranges(stage.layers)}; d={stage.data_parallel}, t={stage.tensor_parallel}, "
        f"recompute {stage.num_recomputed}/{len(stage.layers)}, "
        f"{format_seconds(stage.time_per_sample_s)}, {format_bytes(stage.memory_bytes)}"
    )
