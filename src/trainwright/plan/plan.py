"""A plan: the stages of a pipeline, in order, and how a batch flows through them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainwright.errors import Fault, InvalidInput
from trainwright.plan.parallelism import Parallelism
from trainwright.plan.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Stages in pipeline order. `num_microbatches` counts those of a batch over all replicas.

    `parallelism` is present where all stages agree on it. With virtual stages, `stages` lists all
    of them, and the schedule says which rank runs which.
    """

    stages: tuple[Stage, ...]
    num_microbatches: int
    microbatch_size: int | None = None
    schedule: str = "1f1b"
    parallelism: Parallelism | None = None

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        if not self.stages:
            yield Fault("stages", "must have at least 1 entry, got 0")
        if self.num_microbatches < 1:
            yield Fault("num_microbatches", f"must be >= 1, got {self.num_microbatches}")
        seen: dict[int, int] = {}
        for index, stage in enumerate(self.stages):
            for layer in stage.layers:
                if layer in seen:
                    yield Fault(
                        f"stages[{index}].layers",
                        f"layer {layer} must be in one stage, is also in stages[{seen[layer]}]",
                    )
                seen[layer] = index

    @property
    def devices_used(self) -> int:
        """Devices over all ranks."""
        if self.parallelism is not None:
            return self.parallelism.num_devices
        return sum(stage.num_devices for stage in self.stages)
