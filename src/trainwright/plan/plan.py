"""A plan: the stages of a pipeline, in order, and how a batch flows through them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainwright.errors import Fault, InvalidInput
from trainwright.plan.parallelism import Parallelism
from trainwright.plan.searched_order import SEARCHED, SearchedOrder
from trainwright.plan.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Stages in pipeline order. `num_microbatches` counts those of a batch over all replicas.

    `parallelism` is present where all stages agree on it. With virtual stages, `stages` lists all
    of them, and the schedule says which rank runs which. An `order` that a search found is there
    where, and only where, the schedule is "searched".
    """

    stages: tuple[Stage, ...]
    num_microbatches: int
    microbatch_size: int | None = None
    schedule: str = "1f1b"
    parallelism: Parallelism | None = None
    order: SearchedOrder | None = None

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        if not self.stages:
            yield Fault("stages", "must have at least 1 entry, got 0")
        if self.num_microbatches < 1:
            yield Fault("num_microbatches", f"must be >= 1, got {self.num_microbatches}")
        if (self.order is not None) != (self.schedule == SEARCHED):
            wanted = "must come with" if self.order is None else "must be missing without"
            yield Fault("order", f'{wanted} the schedule "{SEARCHED}", got "{self.schedule}"')
        elif self.order is not None:
            words, ranks = len(self.order.words), (self.parallelism or Parallelism()).pipeline
            if words != ranks:
                yield Fault("order.words", f"must be of {ranks} pipeline ranks, got {words}")
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
