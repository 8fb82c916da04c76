"""Draws the pictures of the pages into a folder, by default the one this script is in.

`interleaved.svg` and `families/`, of those that it shows, are for schedules.md, `charts/` has one
for each part of an algorithm.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from generated.charts import charts

from trainwright.pages.gantt import MemoryUnit
from trainwright.pages.schedule_report import gantt_svg
from trainwright.plans.lowered import Timeline
from trainwright.plans.schedule import ScheduleCosts, ScheduleMemory
from trainwright.scheduling.families import FAMILIES, FamilyRequest, generate
from trainwright.scheduling.simulate import critical_path, simulate
from trainwright.units import GIB, TimeUnit


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


def family(name: str) -> Timeline:
    """Four ranks, eight microbatches, one slot per action and no transfers."""
    limit = 5 if name == "adaptive-v" else None
    chunks = 3 if name == "wave" else 2
    request = FamilyRequest(
        num_ranks=4, num_microbatches=8, virtual_stages=chunks, max_activations=limit
    )
    schedule = generate(name, request)
    return simulate(schedule, ScheduleCosts.of(schedule.placement))


def shown() -> list[str]:
    """The families with a picture of their own in schedules.md."""
    page = (Path(__file__).parents[1] / "schedules.md").read_text(encoding="utf-8")
    return [name for name in FAMILIES if f"(pictures/families/{name}.svg)" in page]


def main(folder: Path) -> None:
    """Write every picture."""
    timeline = interleaved()
    picture = gantt_svg(timeline, critical=critical_path(timeline), title="Interleaved 1F1B")
    (folder / "interleaved.svg").write_text(picture, encoding="utf-8")
    (folder / "families").mkdir(exist_ok=True)
    for name in shown():
        picture = gantt_svg(
            family(name),
            title=name,
            memory_unit=MemoryUnit.ACTIVATIONS,
            time_unit=TimeUnit.SLOTS,
        )
        (folder / "families" / f"{name}.svg").write_text(picture, encoding="utf-8")
    (folder / "charts").mkdir(exist_ok=True)
    for name, draw in charts().items():
        (folder / "charts" / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
