"""Draws the pictures of docs/pictures.md into a folder, by default the one this script is in."""

from __future__ import annotations

import sys
from pathlib import Path

from trainwright.plan.schedule_costs import ScheduleCosts
from trainwright.plan.schedule_memory import ScheduleMemory
from trainwright.plan.timeline import Timeline
from trainwright.reporting.gantt_svg import gantt_svg
from trainwright.scheduling.critical_path import critical_path
from trainwright.scheduling.families import FamilyRequest, generate
from trainwright.scheduling.simulate import simulate
from trainwright.units import GIB


def interleaved() -> Timeline:
    """Four ranks with two chunks each; rank 0 needs more than the 40 GiB it has."""
    request = FamilyRequest(num_ranks=4, num_microbatches=8, virtual_stages=2)
    schedule = generate("interleaved", request)
    memory = ScheduleMemory.of(
        schedule.placement,
        forward_bytes=3 * GIB,
        weight_grad_bytes=-3 * GIB,
        static_bytes=10 * GIB,
        limit_bytes=40 * GIB,
    )
    costs = ScheduleCosts.of(
        schedule.placement,
        forward_s=3e-3,
        backward_s=6e-3,
        transfer_s=0.4e-3,
        memory=memory,
    )
    return simulate(schedule, costs)


def main(folder: Path) -> None:
    """Write every picture."""
    timeline = interleaved()
    picture = gantt_svg(timeline, critical=critical_path(timeline), title="Interleaved 1F1B")
    (folder / "interleaved.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
