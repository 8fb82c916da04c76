"""Does a schedule train the same model? Its files run for real, and so do files broken on purpose.

The orders are written in both of PyTorch's forms and executed on this machine's CPU, one process
per rank (`measuring.gloo_check`). Beside them run two files that must fail: one without the
reduction of gradients, one whose last stage meets microbatches in the wrong order. A check that
passes those would check nothing, so it counts as failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.api.schedule_fold import fold, is_searched
from trainwright.formats.pytorch_csv import CsvForm, format_compute_comms, format_compute_only
from trainwright.measuring.gloo_check import MOST_RANKS, PipelineRun, check_gradients
from trainwright.measuring.negative_controls import (
    with_swapped_microbatches,
    without_gradient_reduction,
)
from trainwright.plan.results.schedule import ScheduleVerification
from trainwright.scheduling.lower import lower
from trainwright.scheduling.pytorch_rules import as_pytorch_runs

if TYPE_CHECKING:
    from trainwright.plan.results.schedule import ScheduleResult
    from trainwright.plan.timeline import Timeline


_NO_CONTROLS = "one microbatch leaves no sum of gradients to divide and no order to swap"


def verify_folded(document: ScheduleResult, timeline: Timeline) -> ScheduleVerification:
    """Run a schedule; one of more ranks than are run for real is first folded to fewer."""
    ranks = timeline.schedule.num_ranks
    if ranks <= MOST_RANKS:
        return verify(timeline)
    folded = fold(document, timeline, ranks=MOST_RANKS)
    full = f"{ranks} ranks, {timeline.schedule.num_microbatches} microbatches"
    if is_searched(document):
        full += ", searched again"
    return verify(folded, folded_from=full)


def verify(timeline: Timeline, *, folded_from: str | None = None) -> ScheduleVerification:
    """Run the orders of `timeline` and compare loss and gradients over two steps.

    Raises UnsupportedFeature for what PyTorch cannot run and for more than 4 ranks, MissingExtra
    without PyTorch.
    """
    schedule = as_pytorch_runs(timeline.schedule)
    computations = format_compute_only(schedule)
    lowered = format_compute_comms(lower(schedule, costs=timeline.costs))

    def run(csv: str, form: CsvForm) -> PipelineRun:
        return PipelineRun(
            csv=csv,
            form=form.value,
            placement=schedule.placement,
            num_microbatches=schedule.num_microbatches,
        )

    runs = [run(computations, CsvForm.COMPUTE_ONLY), run(lowered, CsvForm.COMPUTE_COMMS)]
    controls = []
    if schedule.num_microbatches > 1:
        controls = [
            run(without_gradient_reduction(lowered), CsvForm.COMPUTE_COMMS),
            run(with_swapped_microbatches(computations), CsvForm.COMPUTE_ONLY),
        ]
    checks = check_gradients([*runs, *controls])
    own, broken = checks[: len(runs)], checks[len(runs) :]
    return ScheduleVerification(
        passed=all(check.passed for check in own) and not any(check.passed for check in broken),
        runs=own,
        controls=broken,
        controls_left_out=None if controls else _NO_CONTROLS,
        folded_from=folded_from,
    )
