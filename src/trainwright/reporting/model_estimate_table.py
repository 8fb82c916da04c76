"""A model's estimate as a table: the step, where its time goes, memory by rank, what would fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.reporting.layout import sharding_words
from trainwright.reporting.text import add_row, table
from trainwright.reporting.unfitted import unfitted_line
from trainwright.units import (
    GIB,
    format_bytes,
    format_count,
    format_part,
    format_seconds,
    without_noise,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import RenderableType

    from trainwright.plan.results.model_estimate import (
        ModelEstimateResult,
        PricedChange,
        RankMemory,
    )

_CLASSES = (
    "weight",
    "gradient",
    "optimizer",
    "activation",
    "logits",
    "transient",
    "buffer",
    "workspace",
)
_SHORT = {"optimizer": "optim", "activation": "active", "transient": "temp", "workspace": "work"}
_MOST_RANKS = 8
_NAMES = {
    "weight": "weights",
    "gradient": "gradients",
    "optimizer": "optimizer states",
    "activation": "activations in flight",
    "logits": "logits and loss",
    "transient": "temporary tensors",
    "buffer": "communication buffers",
}

NONE_ENOUGH: Final = "no single change of the run is enough"


def model_estimate_report(document: ModelEstimateResult) -> RenderableType:
    """Headline, communication, memory, and the changes that would make it fit."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(line) for line in _headline(document)]
    parts.append(_communication_table(document))
    parts.append(_memory_table(document))
    parts.extend(Text(line) for line in _verdict(document))
    if document.changes:
        parts.append(enough_table(document.changes))
    parts.append(Text("taken for granted:"))
    parts.extend(Text(f"  {name}: {text}") for name, text in document.assumptions.items())
    parts.extend(Text(f"warning: {warning}") for warning in document.warnings)
    return Group(*parts)


def _headline(document: ModelEstimateResult) -> Iterator[str]:
    request, run = document.request, document.request.configuration
    degrees, devices = run.parallelism, format_count(document.devices_used, "device")
    yield (
        f"{request.model.name} on {devices} of {request.cluster.name}: "
        f"{format_seconds(document.step_time_s)} per step "
        f"({format_seconds(document.step_time_low_s)} to "
        f"{format_seconds(document.step_time_high_s)}, 90 %)"
    )
    yield (
        f"{document.tokens_per_s:,.0f} tokens/s, {document.tokens_per_s_per_device:,.0f} per "
        f"device, MFU {document.mfu:.1%}, HFU {document.hfu:.1%}"
    )
    named = {
        "tensor": degrees.tensor,
        "context": degrees.context,
        "data": degrees.data,
        "pipeline": degrees.pipeline,
        "virtual": degrees.virtual_stages,
        "expert": degrees.expert,
    }
    cut = " x ".join(f"{name} {n}" for name, n in named.items() if n > 1) or "one device"
    blocks = "" if run.recompute_blocks is None else f" of {run.recompute_blocks} blocks"
    batches = format_count(document.num_microbatches, "microbatch")
    yield (
        f"{cut}, {sharding_words(degrees)}, {batches} of "
        f"{run.microbatch_size}, schedule {run.schedule}, recompute {run.recompute}{blocks}"
    )
    yield (
        f"pipeline {format_seconds(document.pipeline_s)} (bubble "
        f"{document.bubble_of_makespan:.1%}), optimizer {format_seconds(document.optimizer_s)}"
    )
    yield from unfitted_line(document.assumptions)


def _communication_table(document: ModelEstimateResult) -> RenderableType:
    made = table(
        "communication of a step",
        (("for", "left"), ("exposed", "right"), ("of step", "right"), ("hidden", "right")),
    )
    step_s = document.step_time_s
    for kind, exposed_s in document.exposed_communication_s.items():
        hidden_s = document.hidden_communication_s[kind]
        if without_noise(exposed_s + hidden_s, step_s) > 0:
            share = f"{exposed_s / step_s:.1%}"
            add_row(
                made, kind, format_part(exposed_s, step_s), share, format_part(hidden_s, step_s)
            )
    return made


def _memory_table(document: ModelEstimateResult) -> RenderableType:
    columns = [("rank", "right"), *((_SHORT.get(name, name), "right") for name in _CLASSES)]
    columns += [("total", "right"), ("margin", "right"), ("", "right")]
    made = table("GiB at its fullest, by pipeline rank", columns)
    for rank in _shown(document):
        mark = "fullest" if rank.rank == document.heaviest_rank else ""
        sizes = (float(getattr(rank, f"{name}_bytes")) for name in _CLASSES)
        add_row(
            made,
            str(rank.rank),
            *map(_gib, sizes),
            _gib(rank.total_bytes),
            _gib(rank.margin_bytes),
            mark,
        )
    return made


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.2f}"


def _shown(document: ModelEstimateResult) -> list[RankMemory]:
    """All ranks, or of many the first, the last and the heaviest."""
    ranks = list(document.memory)
    if len(ranks) <= _MOST_RANKS:
        return ranks
    kept = {*range(_MOST_RANKS - 2), document.heaviest_rank, len(ranks) - 1}
    return [ranks[rank] for rank in sorted(kept)]


def _verdict(document: ModelEstimateResult) -> Iterator[str]:
    hidden = len(document.memory) - len(_shown(document))
    if hidden:
        yield f"({hidden} more ranks, none heavier)"
    limit = format_bytes(document.memory_limit_bytes)
    peak = format_bytes(document.peak_memory_bytes)
    if document.fits:
        left = format_bytes(document.margin_bytes)
        yield f"fits: {peak} of {limit}, {left} left after margins"
        return
    heaviest = document.memory[document.heaviest_rank]
    yield f"{document.verdict}: {peak} of {limit} on rank {heaviest.rank}"
    for rank in document.memory:
        if rank.margin_bytes < 0:
            missing = format_bytes(-rank.margin_bytes)
            yield f"  rank {rank.rank} misses {missing}; most goes to {_NAMES[rank.largest_class]}"
    if not document.changes:
        yield NONE_ENOUGH


def enough_table(changes: Iterable[PricedChange]) -> RenderableType:
    """Changes of a run that make it fit, each with its options."""
    made = table(
        "any one of these is enough",
        (
            ("change", "left"),
            ("options", "left"),
            ("step", "right"),
            ("device time", "right"),
            ("peak memory", "right"),
        ),
    )
    for change in changes:
        add_row(
            made,
            change.description,
            change.options,
            format_seconds(change.step_time_s),
            f"{change.device_time_ratio - 1:+.1%}",
            format_bytes(change.peak_memory_bytes),
        )
    return made
