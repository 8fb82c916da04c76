"""What the actions of a schedule allocate and free.

A positive delta is allocated when its action starts and stays; a negative one is freed when its
action ends. A rank runs one action at a time, so its memory is a property of its order alone: at an
instant where one action ends and the next starts, the release comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.errors import Fault, InvalidInput
from trainwright.plan.per_stage import broadcast, freeze_arrays, is_finite_and_not_negative
from trainwright.plan.placement import Placement
from trainwright.plan.schedule import ActionKind

if TYPE_CHECKING:
    from trainwright.plan.per_stage import Floats, PerStage

_F, _I, _W, _B, _R = ActionKind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScheduleMemory:
    """Memory of S stages on p ranks.

    `delta_bytes` and `transient_bytes` have shape [5, S]: what an action of that kind leaves
    allocated or frees, and what it needs on top while it runs. `static_bytes` and `limit_bytes`
    have shape [p]; an infinite limit is none.
    """

    delta_bytes: Floats
    transient_bytes: Floats
    static_bytes: Floats
    limit_bytes: Floats

    def __post_init__(self) -> None:
        freeze_arrays(self)
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        if self.delta_bytes.ndim != 2 or len(self.delta_bytes) != len(ActionKind):
            yield Fault("delta_bytes", f"must have shape [5, S], got {self.delta_bytes.shape}")
        elif not np.isfinite(self.delta_bytes).all():
            yield Fault("delta_bytes", "must be finite")
        if self.transient_bytes.shape != self.delta_bytes.shape:
            yield Fault("transient_bytes", f"must have shape {self.delta_bytes.shape}")
        if self.limit_bytes.shape != self.static_bytes.shape or self.static_bytes.ndim != 1:
            yield Fault("limit_bytes", f"must have shape {self.static_bytes.shape}")
        for name in ("transient_bytes", "static_bytes"):
            if not is_finite_and_not_negative(getattr(self, name)):
                yield Fault(name, "must be finite and >= 0")
        if not (self.limit_bytes >= 0).all():
            yield Fault("limit_bytes", "must be >= 0")

    @classmethod
    def of(
        cls,
        placement: Placement,
        *,
        forward_bytes: PerStage = 1.0,
        input_grad_bytes: PerStage = 0.0,
        weight_grad_bytes: PerStage = -1.0,
        recompute_bytes: PerStage = 0.0,
        transient_bytes: Mapping[ActionKind, PerStage] | None = None,
        static_bytes: PerStage = 0.0,
        limit_bytes: PerStage = np.inf,
    ) -> ScheduleMemory:
        """Broadcast scalars; the fused backward allocates and frees what I and W do.

        The defaults count chunk activations: F +1, I 0, W -1. The transient of B is the larger of
        those of I and W unless given.
        """
        stages, ranks = placement.num_stages, placement.num_ranks
        delta = np.zeros((len(ActionKind), stages))
        given = {_F: forward_bytes, _I: input_grad_bytes, _W: weight_grad_bytes}
        for kind, value in {**given, _R: recompute_bytes}.items():
            delta[kind] = broadcast(value, stages, name=f"{kind.name} bytes")
        delta[_B] = delta[_I] + delta[_W]
        transient = np.zeros_like(delta)
        for kind, value in sorted((transient_bytes or {}).items()):
            transient[kind] = broadcast(value, stages, name=f"transient {kind.name} bytes")
        if _B not in (transient_bytes or {}):
            transient[_B] = np.maximum(transient[_I], transient[_W])
        return cls(
            delta_bytes=delta,
            transient_bytes=transient,
            static_bytes=broadcast(static_bytes, ranks, name="static_bytes"),
            limit_bytes=broadcast(limit_bytes, ranks, name="limit_bytes"),
        )

    @property
    def num_stages(self) -> int:
        """S: virtual stages."""
        return int(self.delta_bytes.shape[1])

    @property
    def num_ranks(self) -> int:
        """p: ranks."""
        return len(self.static_bytes)

    def as_torch_runs_stage0(self) -> ScheduleMemory:
        """On stage 0, I frees nothing and W all that both would."""
        delta, transient = self.delta_bytes.copy(), self.transient_bytes.copy()
        delta[_W, 0] += delta[_I, 0]
        transient[_W, 0] = max(transient[_W, 0], transient[_I, 0])
        delta[_I, 0] = transient[_I, 0] = 0.0
        return replace(self, delta_bytes=delta, transient_bytes=transient)
