"""How long each named family takes to generate, as Markdown on standard output.

    python benchmarks/schedule_families.py > table.md

CPU seconds of `generate` alone, the least of five calls, at 64 ranks × 512 microbatches with unit
and with unequal times, and the bubble and peak that come out.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from trainwright.plans.schedule import Schedule, ScheduleCosts
from trainwright.scheduling.families import FAMILIES, FamilyRequest, generate
from trainwright.scheduling.simulate import simulate

RUNS = 5
TARGET_S = 0.1
SIZES = ((64, 512), (16, 64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of F, I and W of one stage, and of a transfer."""

    name: str
    forward_s: float
    input_grad_s: float
    weight_grad_s: float
    transfer_s: float

    def costs(self, request: FamilyRequest, family: str) -> ScheduleCosts:
        """The same for every stage of the family's placement."""
        return ScheduleCosts.of(
            FAMILIES[family].place(request),
            forward_s=self.forward_s,
            input_grad_s=self.input_grad_s,
            weight_grad_s=self.weight_grad_s,
            transfer_s=self.transfer_s,
        )


UNIT = Times(name="1, 1, 1", forward_s=1, input_grad_s=1, weight_grad_s=1, transfer_s=0)
UNEQUAL = Times(
    name="1296, 1260, 870, transfers 20",
    forward_s=1296,
    input_grad_s=1260,
    weight_grad_s=870,
    transfer_s=20,
)


def timed(family: str, request: FamilyRequest) -> tuple[float, Schedule]:
    """CPU seconds of one call, and its schedule."""
    start_s = time.process_time()
    schedule = generate(family, request)
    taken_s = time.process_time() - start_s
    assert isinstance(schedule, Schedule)
    return taken_s, schedule


def row(family: str, times: Times, num_ranks: int, num_microbatches: int) -> str:
    """One line of the table."""
    request = FamilyRequest(num_ranks=num_ranks, num_microbatches=num_microbatches)
    costs = times.costs(request, family)
    request = FamilyRequest(num_ranks=num_ranks, num_microbatches=num_microbatches, costs=costs)
    runs = [timed(family, request) for _ in range(RUNS)]
    seconds = [taken_s for taken_s, _ in runs]
    schedule = runs[0][1]
    timeline = simulate(schedule, costs)
    cells = (
        family,
        f"{schedule.num_actions:,}",
        f"{min(seconds):.4f}",
        f"{max(seconds):.4f}",
        f"{timeline.bubble_of_span:.2%}",
        str(max(schedule.peak_activations)),
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    for num_ranks, num_microbatches in SIZES:
        for times in (UNIT, UNEQUAL):
            print(f"\n{num_ranks} ranks, {num_microbatches} microbatches, F I W = {times.name}\n")
            print("| family | actions | CPU s | slowest | bubble of span | peak |")
            print("|---|--:|--:|--:|--:|--:|")
            for family in FAMILIES:
                print(row(family, times, num_ranks, num_microbatches), flush=True)


if __name__ == "__main__":
    main()
