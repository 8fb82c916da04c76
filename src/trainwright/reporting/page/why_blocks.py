"""Why a step is not faster: its largest terms, and what sets each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.reporting.page.blocks import Bar, BarChart, Cell, Column, Table
from trainwright.reporting.page.cells import seconds, share
from trainwright.reporting.page.step_blocks import time_part
from trainwright.reporting.page.step_terms import busiest_rank, rank_terms
from trainwright.units import format_seconds

if TYPE_CHECKING:
    from trainwright.reporting.page.step_terms import Term
    from trainwright.reporting.page.subject import PricedStep


def term_rows(priced: PricedStep) -> tuple[tuple[Term, float], ...]:
    """The terms of the busiest rank that take time, longest first, with their share of the step."""
    found = [term for term in rank_terms(priced, busiest_rank(priced)) if term.seconds > 0]
    found.sort(key=lambda term: -term.seconds)
    return tuple((term, term.seconds / priced.step.step_time_s) for term in found)


def step_bar(priced: PricedStep) -> BarChart:
    """The step of the busiest rank as one bar."""
    rank = busiest_rank(priced)
    parts = tuple(map(time_part, rank_terms(priced, rank)))
    total = format_seconds(priced.step.step_time_s)
    return BarChart(
        title=f"Where the step goes: rank {rank}, the busiest",
        bars=(Bar(label=str(rank), parts=parts, total=total),),
    )


def term_table(priced: PricedStep) -> Table:
    """The largest terms, with what sets them."""
    rows = tuple(
        (
            Cell.of(term.label),
            seconds(term.seconds),
            share(of_step),
            Cell.of(_what_sets(term.kind, priced)),
        )
        for term, of_step in term_rows(priced)[:5]
    )
    return Table(
        title="The five largest terms",
        columns=(
            Column(title="term", key="term", is_number=False),
            Column(title="per step", key="seconds"),
            Column(title="of step", key="share"),
            Column(title="what sets it", key="cause", is_number=False),
        ),
        rows=rows,
    )


def _what_sets(kind: str, priced: PricedStep) -> str:
    step, m, rank = priced.step, priced.num_microbatches, busiest_rank(priced)
    ranks = len(step.stages)
    work_s = [stage.forward_s + stage.backward_s for stage in step.stages]
    match kind:
        case "compute":
            mean = sum(work_s) / ranks / max(work_s)
            return f"products and memory traffic of its layers; all ranks average {mean:.1%} of it"
        case "recompute":
            repeated = priced.recomputed_of_rank[rank]
            layers = len(priced.layers_of_rank[rank])
            return f"{repeated} of {layers} layers repeat their forward to save memory"
        case "waiting":
            least = (ranks - 1) / (m + ranks - 1)
            return (
                f"fill and drain of {ranks} ranks over {m} microbatches ({least:.1%} under 1F1B "
                "with equal ranks), transfers, unequal ranks"
            )
        case "gradients":
            return "gradients and parameters of replicas, as far as no compute hides them"
        case "optimizer":
            return "memory traffic of the update, and what a step costs once"
        case _:
            return "collectives inside layers, as far as no compute hides them"
