"""Blocks about a priced step that the pages of plans and of estimates share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.reporting.page.blocks import Bar, BarChart, Cell, Column, Gantt, Part, Table
from trainwright.reporting.page.cells import seconds, share, size
from trainwright.reporting.text import ranges
from trainwright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.plan.prediction import StageMemory
    from trainwright.reporting.gantt_panel import GanttPanel
    from trainwright.reporting.page.subject import PricedStep

_MEMORY = (
    ("weights", "weights", "weight_bytes"),
    ("gradient", "gradients", "gradient_bytes"),
    ("state", "optimizer states", "optimizer_bytes"),
    ("opaque", "static", "opaque_bytes"),
    ("activations", "activations", "activation_bytes"),
    ("logits", "logits and loss", "logits_bytes"),
    ("transient", "temporary", "transient_bytes"),
    ("buffers", "communication buffers", "buffer_bytes"),
    ("workspace", "workspaces", "workspace_bytes"),
)


def rank_table(priced: PricedStep, *, limit_bytes: float | None) -> Table:
    """One row per pipeline rank."""
    slowest = priced.busiest_rank
    fullest = priced.step.fullest_stage
    rows = tuple(
        tuple(_rank_cells(priced, rank, limit_bytes)) for rank in range(len(priced.step.stages))
    )
    return Table(
        title="Plan",
        columns=_RANK_COLUMNS if limit_bytes else _RANK_COLUMNS[:-2] + _RANK_COLUMNS[-1:],
        rows=rows,
        marked=frozenset({slowest}),
        note=f"Times of one microbatch. Rank {slowest} is the busiest, rank {fullest} the fullest; "
        "layers are indices of the model's layer graph.",
    )


_RANK_COLUMNS = (
    Column(title="rank", key="rank"),
    Column(title="layers", key="layers", is_number=False),
    Column(title="data", key="data_parallel"),
    Column(title="tensor", key="tensor_parallel"),
    Column(title="recomputed", key="num_recomputed"),
    Column(title="forward", key="forward_s"),
    Column(title="backward", key="backward_s"),
    Column(title="of it recompute", key="recompute_s"),
    Column(title="of both tensor", key="tensor_parallel_s"),
    Column(title="send", key="send_s"),
    Column(title="weights", key="weight_bytes"),
    Column(title="activations", key="activation_bytes"),
    Column(title="memory", key="memory_bytes"),
    Column(title="of limit", key="memory_share"),
    Column(title="held", key="microbatches_in_flight"),
)


def _rank_cells(priced: PricedStep, rank: int, limit_bytes: float | None) -> Iterator[Cell]:
    stage, layers = priced.step.stages[rank], priced.layers_of_rank[rank]
    yield Cell.of(rank)
    yield Cell.of(ranges(layers))
    data, tensor = priced.degrees_of_rank[rank]
    yield Cell.of(data)
    yield Cell.of(tensor)
    repeated = priced.recomputed_of_rank[rank]
    yield Cell(text=f"{repeated} of {len(layers)}", value=repeated)
    for value_s in (
        stage.forward_s,
        stage.backward_s,
        stage.recompute_s,
        stage.tensor_parallel_s,
        stage.send_s,
    ):
        yield seconds(value_s)
    yield size(stage.memory.weight_bytes)
    yield size(stage.memory.activation_bytes)
    yield size(stage.memory.total_bytes)
    if limit_bytes:
        yield share(stage.memory.total_bytes / limit_bytes)
    yield Cell.of(stage.memory.microbatches_in_flight)


def time_bars(priced: PricedStep) -> BarChart:
    """What every rank does with the step."""
    step_s = priced.step.step_time_s
    bars = tuple(
        Bar(
            label=str(rank),
            parts=time_parts(parts_s),
            total=f"{1 - _idle_s(parts_s) / step_s:.1%} busy",
        )
        for rank, parts_s in enumerate(priced.parts_of_rank_s)
    )
    return BarChart(
        title="Time of a step by rank",
        bars=bars,
        note=f"Every bar is the step, {format_seconds(step_s)}; the bubble is fill and drain of "
        "the pipeline and ranks that wait for slower ones.",
    )


def _idle_s(parts_s: dict[str, float]) -> float:
    return parts_s["bubble"] + parts_s["transfers"]


TIME_PARTS: Final = {
    "compute": "compute",
    "recompute": "recomputation",
    "tensor": "tensor parallelism",
    "context": "context parallelism",
    "expert": "expert parallelism",
    "data": "data parallelism",
    "optimizer": "optimizer",
    "overhead": "overhead",
    "transfers": "pipeline transfers",
    "bubble": "bubble",
}


def time_parts(parts_s: dict[str, float]) -> tuple[Part, ...]:
    """The parts of a step as segments, waiting last."""
    return tuple(
        Part(kind=name, label=label, amount=parts_s[name], text=format_seconds(parts_s[name]))
        for name, label in TIME_PARTS.items()
        if name in parts_s
    )


def memory_bars(priced: PricedStep, limit_bytes: float | None) -> BarChart:
    """What every rank holds when it is fullest, with the limit."""
    bars = tuple(
        _memory_bar(rank, stage.memory, limit_bytes)
        for rank, stage in enumerate(priced.step.stages)
    )
    return BarChart(
        title="Memory of a device at its fullest, by rank",
        bars=bars,
        limit=limit_bytes,
        limit_text=f"usable {format_bytes(limit_bytes)}" if limit_bytes else "",
    )


def memory_parts(memory: StageMemory) -> tuple[Part, ...]:
    """What a device holds at its fullest, by class."""
    return tuple(
        Part(kind=kind, label=label, amount=amount, text=format_bytes(amount))
        for kind, label, name in _MEMORY
        if (amount := float(getattr(memory, name))) > 0
    )


def _memory_bar(rank: int, memory: StageMemory, limit_bytes: float | None) -> Bar:
    is_over = limit_bytes is not None and memory.total_bytes > limit_bytes * (1 + 1e-12)
    return Bar(
        label=str(rank),
        parts=memory_parts(memory),
        total=format_bytes(memory.total_bytes) + (" over" if is_over else ""),
        is_over=is_over,
    )


def gantt(panel: GanttPanel, priced: PricedStep) -> Gantt:
    """The pipeline of the step, and what of the step lies outside it."""
    step = priced.step
    after_s = step.step_time_s - step.pipeline_s
    return Gantt(
        note=f"The pipeline takes {format_seconds(step.pipeline_s)} of the step; "
        f"{format_seconds(after_s)} after it, for synchronisation, optimizer and overhead, are "
        f"not drawn. {panel.num_bars:,} actions, simulated one by one."
    )
