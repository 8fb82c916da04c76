"""What a schedule search is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from trainwright.errors import Fault, InvalidInput
from trainwright.plan.placement import Placement
from trainwright.plan.schedule_bound import Objective
from trainwright.plan.status import OPTIMAL_TOLERANCE, Status, relative_gap

if TYPE_CHECKING:
    from trainwright.plan.per_stage import PerStage
    from trainwright.plan.schedule import Schedule
    from trainwright.plan.schedule_bound import Bound
    from trainwright.plan.schedule_costs import ScheduleCosts
    from trainwright.plan.timeline import Timeline


class Backward(StrEnum):
    """Whether a stage's backward runs as one action or as two; `ANY` leaves it to the search."""

    SPLIT = "split"
    FUSED = "fused"
    ANY = "any"


DEFAULT_SEED: Final = 0

PlacementName = Literal["v", "loop", "wave", "any"]
PLACEMENT_NAMES: tuple[PlacementName, ...] = ("v", "loop", "wave", "any")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuestion:
    """A pipeline to schedule, and within which limits.

    `costs` describe the S stages of `placement`. A named placement has S / `num_ranks` chunks per
    rank; `any` also tries every named one and cuts each stage into equal parts, up to
    `max_virtual_stages` chunks per rank. Limits are those of `costs.memory` in bytes and, beside
    them, `max_activations` live chunk activations per rank (F adds one, W or B releases one; a
    stage cut in f parts counts f). `recompute_saved_bytes` per stage allows the search to drop
    that much of each forward's memory and to run R, of `costs`' duration, before the backward.

    One evaluation is the simulation of the whole schedule once; `None` is a default for the size.
    """

    placement: Placement | PlacementName
    num_ranks: int
    num_microbatches: int
    costs: ScheduleCosts
    max_activations: int | None = None
    objective: Objective = Objective.MAKESPAN
    backward: Backward = Backward.ANY
    recompute_saved_bytes: PerStage | None = None
    max_virtual_stages: int = 4
    evaluations: int | None = None
    seed: int = DEFAULT_SEED

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        counts = ("num_ranks", "num_microbatches", "max_activations", "evaluations")
        for name in (*counts, "max_virtual_stages"):
            count = getattr(self, name)
            if count is not None and count < 1:
                yield Fault(name, f"must be >= 1, got {count}")
        if self.seed < 0:
            yield Fault("seed", f"must be >= 0, got {self.seed}")
        stages, ranks = self.costs.num_stages, self.num_ranks
        if ranks != self.costs.memory.num_ranks:
            yield Fault("costs", f"must be of {ranks} ranks, got {self.costs.memory.num_ranks}")
        if isinstance(self.placement, Placement):
            wanted = (self.placement.num_ranks, self.placement.num_stages)
            if wanted != (ranks, stages):
                yield Fault(
                    "placement",
                    f"must have {ranks} ranks and {stages} stages, as the costs, got {wanted}",
                )
            return
        if self.placement not in PLACEMENT_NAMES:
            names = ", ".join(PLACEMENT_NAMES)
            yield Fault("placement", f'must be one of {names}, got "{self.placement}"')
        elif ranks > 0 and stages % ranks:
            yield Fault("costs", f"must be of a multiple of {ranks} stages, got {stages}")
        elif self.placement == "v" and stages != 2 * ranks:
            yield Fault("costs", f"must be of {2 * ranks} stages for V, got {stages}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutcome:
    """The best schedule found, re-simulated with the question's costs.

    `winner` is the family it is, or the phase of the search that found it; `evaluations` counts
    whole simulations. `bound` holds for every pipeline (placement, chunks, modes) that the question
    leaves open, of which `tried` were searched; `pipeline_bound` for that of the schedule alone.
    """

    timeline: Timeline
    objective: Objective
    bound: Bound
    pipeline_bound: Bound
    winner: str
    evaluations: int
    seed: int
    tried: int = 1
    interrupted: bool = False

    @property
    def schedule(self) -> Schedule:
        """Orders without times."""
        return self.timeline.schedule

    @property
    def value_s(self) -> float:
        """The objective of the schedule."""
        return self.objective.of(self.timeline)

    @property
    def lower_bound_s(self) -> float:
        """No schedule that the question allows is shorter."""
        return self.bound.value_s

    @property
    def gap(self) -> float:
        """(value - bound) / value."""
        return relative_gap(self.value_s, self.lower_bound_s)

    @property
    def status(self) -> Status:
        """`optimal` where the bound on all that the question allows is met."""
        return Status.OPTIMAL if self.gap <= OPTIMAL_TOLERANCE else Status.GAP


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitTooSmall:
    """`needed` on `rank` exceeds `limit`: of `family`, or where that is None, of every schedule.

    The latter is proved: one microbatch alone needs so much.
    """

    rank: int
    needed: float
    limit: float
    unit: Literal["bytes", "activations"]
    family: str | None = None

    @property
    def status(self) -> Status:
        """A limit below the minimum is a result, not an error."""
        return Status.INFEASIBLE if self.family is None else Status.UNKNOWN


def activation_steps(num_stages: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Chunk activations each action adds or releases, shape [5, S]."""
    return np.repeat(np.array([[1.0], [0.0], [-1.0], [-1.0], [0.0]]), num_stages, axis=1)
