"""The pairs of depth and data degree that points have, and the least that plans of each take.

Points of the same microbatch size and devices share their pairs. What each would take if all ranks
worked all the time and had all memory bounds a point before its pairs are bounded (`pair_batch`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trainwright.planning.copies import with_copies
from trainwright.planning.layouts import Layouts, layouts_of
from trainwright.planning.mappings import with_mappings
from trainwright.planning.pair_batch import Space
from trainwright.planning.schedules import schedules_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainwright.planning.aims import Aim
    from trainwright.planning.expert_floor import LeastLayers
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.planning.model_space import Point

    Floats = NDArray[np.float64]


@dataclass(slots=True)
class PointPairs:
    """Those of a question, in all schedules and ZeRO stages of its `space`."""

    question: ModelQuestion
    aim: Aim
    space: Space = field(init=False)
    _layouts: dict[tuple[int, int, int], Layouts] = field(default_factory=dict)
    _counts: dict[tuple[int, int, int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        asked = self.question
        self.space = Space(schedules_of(asked.allowed), asked.model.num_layers, asked.allowed)

    def of(self, point: Point) -> Layouts:
        """All pairs of a point."""
        key = (point.microbatch_size, point.devices, point.expert_devices)
        if key not in self._layouts:
            asked = self.question
            found = layouts_of(
                point,
                asked.allowed,
                num_devices=asked.num_devices,
                num_blocks=asked.model.num_layers,
                num_microbatches=asked.workload.global_batch // point.microbatch_size,
            )
            levels = asked.cluster.levels
            found = with_mappings(found, asked.allowed.mappings, point, levels)
            self._layouts[key] = with_copies(found, asked.allowed.state_copies, point, levels)
        return self._layouts[key]

    def num_candidates(self, point: Point) -> int:
        """Candidates at a point."""
        key = (point.microbatch_size, point.devices, point.context, point.expert_devices)
        if key not in self._counts:
            self._counts[key] = self.space.num_candidates(point, self.of(point))
        return self._counts[key]

    def least_keys(
        self, point: Point, least: Sequence[LeastLayers], layouts: Layouts | None = None
    ) -> Floats:
        """Of every pair, or of some, if ranks worked all the time and had all memory, [N]."""
        layouts = self.of(point) if layouts is None else layouts
        p, m = layouts.pipeline, layouts.num_microbatches
        steps_s = m / p * sum(each.time_s * each.num_layers for each in least)
        for each in least:
            steps_s = np.maximum(steps_s, m * each.time_s * -(-each.num_layers // p))
        steps_s = steps_s + self.question.cluster.accelerator.step_overhead_s
        return self.aim.keys(steps_s, point.devices * p * layouts.data)
