"""A picture of the schedule: a Chrome trace of one step at the predicted times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.formats.chrome_trace import format_chrome_trace
from trainwright.plan.bundle import ExportBundle

if TYPE_CHECKING:
    from trainwright.plan.bundle import Stamp
    from trainwright.plan.job import Job


def export_trace(job: Job, stamp: Stamp) -> ExportBundle:
    """One compressed trace; its title says which plan it shows."""
    assert job.orders is not None, "a trace shows the order of every action"
    title = f"{job.model_name}, plan {stamp.short_hash}, trainwright {stamp.trainwright_version}"
    trace = format_chrome_trace(job.orders.timeline, title=title)
    return ExportBundle(
        target="chrome-trace",
        version="Trace Event Format",
        files={"trace.json.gz": trace + "\n"},
        command=(),
        not_represented=("degrees, layers and recomputation",),
    )
