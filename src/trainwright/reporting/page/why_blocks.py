"""Why a step is not faster: its largest parts, and what sets each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.reporting.page.blocks import Bar, BarChart, Cell, Column, Table
from trainwright.reporting.page.cells import seconds, share
from trainwright.reporting.page.step_blocks import TIME_PARTS, time_parts
from trainwright.units import format_seconds

if TYPE_CHECKING:
    from trainwright.reporting.page.subject import PricedStep

_MOST_TERMS = 5


def step_bar(priced: PricedStep) -> BarChart:
    """The step of the busiest rank as one bar."""
    rank = priced.busiest_rank
    parts = time_parts(priced.parts_of_rank_s[rank])
    total = format_seconds(priced.step.step_time_s)
    return BarChart(
        title=f"Where the step goes: rank {rank}, the busiest",
        bars=(Bar(label=str(rank), parts=parts, total=total),),
    )


def term_table(priced: PricedStep) -> Table:
    """The largest terms, with what sets them."""
    found = priced.parts_of_rank_s[priced.busiest_rank]
    largest = sorted(found.items(), key=lambda item: -item[1])[:_MOST_TERMS]
    rows = tuple(
        (
            Cell.of(TIME_PARTS[name]),
            seconds(spent_s),
            share(spent_s / priced.step.step_time_s),
            Cell.of(_what_sets(name, priced)),
        )
        for name, spent_s in largest
        if spent_s > 0
    )
    return Table(
        title="The largest terms",
        columns=(
            Column(title="term", key="term", is_number=False),
            Column(title="per step", key="seconds"),
            Column(title="of step", key="share"),
            Column(title="what sets it", key="cause", is_number=False),
        ),
        rows=rows,
    )


def _what_sets(name: str, priced: PricedStep) -> str:
    step, m, rank = priced.step, priced.num_microbatches, priced.busiest_rank
    ranks = len(step.stages)
    work_s = [stage.forward_s + stage.backward_s for stage in step.stages]
    match name:
        case "compute":
            mean = sum(work_s) / ranks / max(work_s)
            even = f"; the ranks work {mean:.1%} as long on average" if ranks > 1 else ""
            return f"products and memory traffic of the layers{even}"
        case "recompute":
            repeated, layers = priced.recomputed_of_rank[rank], len(priced.layers_of_rank[rank])
            return f"{repeated} of the rank's {layers} layers repeat their forward to save memory"
        case "bubble":
            share_of_equal = (ranks - 1) / (m + ranks - 1)
            return (
                f"fill and drain of {ranks} ranks over {m} microbatches: {share_of_equal:.1%} of "
                "the pipeline under 1F1B with equal ranks"
            )
        case "transfers":
            return "what the pipeline would gain if tensors between ranks took no time"
        case "data":
            return "gradients and parameters of replicas, as far as no compute hides them"
        case "optimizer":
            return "memory traffic of the update"
        case "overhead":
            return "what every step costs once, of the installation"
        case _:
            return "collectives inside layers, as far as no compute hides them"
