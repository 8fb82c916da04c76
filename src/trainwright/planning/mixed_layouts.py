"""All ways to lay a point's chains over several pools, bounded together (`mixed_bound`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.planning.mixed_bound import MixedWork, across_bounds_s, beside_bounds_s
from trainwright.planning.mixed_priced import Shape
from trainwright.planning.mixed_space import (
    Across,
    Beside,
    Grid,
    MixedShelf,
    across_grid,
    beside_grid,
    mixed_families,
    pools_across,
    pools_beside,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from trainwright.planning.mixed_space import MixedCandidate
    from trainwright.planning.model_space import Point

    Floats = NDArray[np.float64]

_BESIDE_ZERO: Final = (0, 1)  # ZeRO 2 and 3 exchange inside microbatches


@dataclass(slots=True, kw_only=True)
class BoundedLayouts:
    """Those of one shape, ZeRO stage and family, least bound first."""

    shape: Shape
    point: Point
    zero_stage: int
    schedule: str
    grid: Grid
    bounds_s: Floats
    done: int = 0

    def count_below(self, limit_s: float) -> int:
        """Those left that may be below a limit."""
        return max(0, int(np.searchsorted(self.bounds_s, limit_s)) - self.done)

    def candidate(self) -> MixedCandidate:
        """The next one."""
        counts = tuple(self.grid.counts[self.done].tolist())
        shared = int(self.grid.shared[self.done])
        if self.shape.name == "across":
            return Across(
                point=self.point,
                zero_stage=self.zero_stage,
                schedule=self.schedule,
                pools=self.shape.pools,
                depths=counts,
                data=shared,
            )
        return Beside(
            point=self.point,
            zero_stage=self.zero_stage,
            schedule=self.schedule,
            pools=self.shape.pools,
            replicas=counts,
            depth=shared,
        )


@dataclass(slots=True)
class MixedLayouts:
    """Those of all shapes that use several pools; grids of counts are made once."""

    shelf: MixedShelf
    _grids: dict[tuple[object, ...], Grid] = field(default_factory=dict)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """All ways to use several pools."""
        count = len(self.shelf.cluster.pools)
        across = (Shape(name="across", pools=pools) for pools in pools_across(count))
        beside = (Shape(name="beside", pools=pools) for pools in pools_beside(count))
        return (*across, *beside)

    def count(self, point: Point) -> int:
        """Candidates at a point."""
        families = mixed_families(self.shelf.question)
        return sum(
            self._grid(shape, point).size * len(self._zero_stages(shape)) * len(families)
            for shape in self.shapes
        )

    def least_s(self, point: Point) -> float:
        """No plan of a point steps faster: all devices at the rates of its layers."""
        question, pools = self.shelf.question, tuple(range(len(self.shelf.cluster.pools)))
        work = MixedWork.of(self.shelf, point, pools)
        ranks = [pool.num_devices // point.devices for pool in self.shelf.cluster.pools]
        microbatches = question.workload.global_batch // point.microbatch_size
        rates = work.speeds @ np.array(ranks, dtype=np.float64)
        least_s = np.array([float(each.trade.time_s[-1]) for each in work.works])
        return float((microbatches * least_s / rates).max())

    def bounded(self, point: Point) -> Iterator[BoundedLayouts]:
        """Those of each shape, ZeRO stage and family that have a finite bound."""
        for shape in self.shapes:
            grid = self._grid(shape, point)
            if not grid.size:
                continue
            work = MixedWork.of(self.shelf, point, shape.pools)
            for zero_stage in self._zero_stages(shape):
                for schedule in mixed_families(self.shelf.question):
                    found = self._bounded(work, shape, point, grid, zero_stage, schedule)
                    if found.grid.size:
                        yield found

    def _bounded(
        self,
        work: MixedWork,
        shape: Shape,
        point: Point,
        grid: Grid,
        zero_stage: int,
        schedule: str,
    ) -> BoundedLayouts:
        grid = _worth_asking(grid, shape, point, zero_stage, schedule, self._zero_stages(shape))
        bounds_s = np.zeros(0)
        if grid.size:
            bounds_s = self._bounds_s(work, shape, point, grid, zero_stage, schedule)
        order = np.argsort(bounds_s, kind="stable")
        order = order[: int(np.isfinite(bounds_s).sum())]
        return BoundedLayouts(
            shape=shape,
            point=point,
            zero_stage=zero_stage,
            schedule=schedule,
            grid=Grid(counts=grid.counts[order], shared=grid.shared[order]),
            bounds_s=bounds_s[order],
        )

    def _bounds_s(
        self,
        work: MixedWork,
        shape: Shape,
        point: Point,
        grid: Grid,
        zero_stage: int,
        schedule: str,
    ) -> Floats:
        bounded = across_bounds_s if shape.name == "across" else beside_bounds_s
        degrees = Across(
            point=point, zero_stage=zero_stage, schedule=schedule, pools=(0,), depths=(1,), data=1
        ).degrees
        return bounded(
            work,
            point,
            grid,
            microbatches=self.shelf.question.workload.global_batch // point.microbatch_size,
            zero_stage=zero_stage,
            schedule=schedule,
            degrees=degrees,
        )

    def _zero_stages(self, shape: Shape) -> tuple[int, ...]:
        allowed = self.shelf.question.allowed.zero_stages
        if shape.name == "across":
            return allowed
        return tuple(stage for stage in allowed if stage in _BESIDE_ZERO)

    def _grid(self, shape: Shape, point: Point) -> Grid:
        key = (shape, point.microbatch_size, point.devices, point.expert_devices)
        if key not in self._grids:
            made = across_grid if shape.name == "across" else beside_grid
            self._grids[key] = made(self.shelf.question, point, shape.pools)
        return self._grids[key]


def _worth_asking(
    grid: Grid,
    shape: Shape,
    point: Point,
    zero_stage: int,
    schedule: str,
    zero_stages: tuple[int, ...],
) -> Grid:
    """Without replicas all ZeRO stages are one, and on one rank all families are."""
    kept = np.ones(grid.size, dtype=bool)
    if zero_stage != min(zero_stages):
        data = grid.shared if shape.name == "across" else grid.counts.sum(axis=1)
        kept &= data * point.context > 1
    if schedule != "1f1b" and shape.name == "beside":
        kept &= grid.shared > 1
    return Grid(counts=grid.counts[kept], shared=grid.shared[kept])
