"""Profiles of points and the kinds of stages that they have, each made when first asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trainwright.costing.estimate import Estimator
from trainwright.planning.model_question import estimate_profile
from trainwright.planning.model_space import Point
from trainwright.planning.stage_kinds import StageKinds

if TYPE_CHECKING:
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.profile import Profile


@dataclass(slots=True)
class Shelf:
    """Profiles by point, made when first asked for."""

    question: ModelQuestion
    estimator: Estimator
    made: dict[Point, Profile] = field(default_factory=dict)
    cut: dict[Point, StageKinds] = field(default_factory=dict)
    alike: dict[bytes, StageKinds] = field(default_factory=dict)

    @classmethod
    def of(cls, question: ModelQuestion) -> Shelf:
        """An empty one."""
        return cls(question, question.estimator())

    def profile(self, point: Point) -> Profile:
        """What layers cost at a point."""
        if point not in self.made:
            self.made[point] = estimate_profile(self.estimator, self.question, point)
        return self.made[point]

    def kinds(self, point: Point) -> StageKinds:
        """The kinds of stages of a point's profile, the same where layers cost the same.

        That is so where context parallelism is free: twice of it cuts twice the microbatch.
        """
        if point not in self.cut:
            profile = self.profile(point)
            costs = _fingerprint(profile)
            if costs not in self.alike:
                self.alike[costs] = StageKinds.of(profile, self.question.settings.overlap)
            self.cut[point] = self.alike[costs]
        return self.cut[point]


def _fingerprint(profile: Profile) -> bytes:
    """All numbers that tell two profiles of one model apart."""
    costs, edges = profile.costs, profile.structure.edges
    assert costs.phases is not None, "an estimate has phases"
    tables = [
        costs.phases.forward_s,
        costs.phases.input_grad_s,
        costs.phases.weight_grad_s,
        costs.phases.recompute_s,
        costs.saved_until_input_grad_bytes,
        costs.saved_until_weight_grad_bytes,
        costs.transient_bytes,
        costs.static_bytes,
        costs.opaque_static_bytes,
        costs.gradient_sync_bytes,
        np.array([edge.bytes for edge in edges]),
    ]
    return b"".join(np.ascontiguousarray(table).tobytes() for table in tables)
