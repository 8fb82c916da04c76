"""All pairs of a point under every schedule and ZeRO stage, one after the other, as arrays.

A pair comes once for each number of chunks that a rank may have under a schedule, and under each
ZeRO stage at which it differs from others. They are counted without being made.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.planning.bounds.layers import Ramp
from trainwright.planning.question.layouts import (
    Layouts,
    is_replicated,
    is_worth_copying,
    layouts_of,
    with_copies,
    with_mappings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from trainwright.arrays import Flags, Floats, Ints
    from trainwright.planning.bounds.layers import LeastLayers, Shares
    from trainwright.planning.question.layouts import Schedule
    from trainwright.planning.question.question import Aim, Allowed, ModelQuestion, Point


class Part(NamedTuple):
    """Which pairs run under a schedule and ZeRO stage."""

    schedule: Schedule
    zero_stage: int
    own: slice

    @property
    def size(self) -> int:
        """How many."""
        return int(self.own.stop - self.own.start)


class Space(NamedTuple):
    """What pairs of a point become: schedules for a chain of so many blocks, ZeRO stages, copies.

    Where state has no replicas all ZeRO stages are alike: the first stands for them.
    """

    schedules: Sequence[Schedule]
    num_blocks: int
    allowed: Allowed

    def num_candidates(self, point: Point, layouts: Layouts) -> int:
        """How many candidates some pairs are."""
        chunks = sum(each.chunks_at(layouts, self.num_blocks) for each in self.schedules)
        stages = sum(kept.astype(np.int64) for _, kept in self.by_zero_stage(point, layouts))
        return int(np.sum(chunks * stages))

    def of(self, families: Collection[str]) -> Space:
        """Some families alone."""
        return self._replace(schedules=[s for s in self.schedules if s.family in families])

    def without(self, families: Collection[str]) -> Space:
        """All but some families."""
        return self._replace(schedules=[s for s in self.schedules if s.family not in families])

    def by_zero_stage(self, point: Point, layouts: Layouts) -> list[tuple[int, Flags]]:
        """Which pairs are looked at under each ZeRO stage."""
        first, *others = self.allowed.zero_stages
        replicated, copies = is_replicated(point, layouts), self.allowed.state_copies
        return [
            (first, is_worth_copying(layouts, first, copies)),
            *((zero, replicated & is_worth_copying(layouts, zero, copies)) for zero in others),
        ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Pairs in all their forms, [N]; those of a schedule lie next to each other.

    `groups` [D, 2] are their data degrees and copies of state, `group` [N] says which each pair
    has, from D on with the pipeline inside.
    """

    layouts: Layouts
    zero_stage: Ints
    groups: Ints
    group: Ints
    parts: tuple[Part, ...]
    families: tuple[tuple[str, slice], ...]

    @classmethod
    def of(cls, space: Space, point: Point, layouts: Layouts) -> Batch:
        """All forms of some pairs of one chunk per rank."""
        stages = space.by_zero_stage(point, layouts)
        numbers = np.arange(layouts.size)
        picked, chunks, parts, size = [numbers[:0]], [numbers[:0]], [], 0
        for schedule in space.schedules:
            counts = schedule.chunks_at(layouts, space.num_blocks)
            for zero_stage, kept in stages:
                own = np.where(kept, counts, 0)
                after = np.cumsum(own)
                picked.append(np.repeat(numbers, own))
                before = np.repeat(after - own, own)
                chunks.append(schedule.virtual_stages.least + np.arange(len(before)) - before)
                parts.append(Part(schedule, zero_stage, slice(size, size + len(before))))
                size += len(before)
        every = layouts.at(np.concatenate(picked))
        return cls._joined(replace(every, virtual_stages=np.concatenate(chunks)), parts)

    @classmethod
    def under(cls, schedule: Schedule, zero_stage: int, layouts: Layouts) -> Batch:
        """Some pairs as they are."""
        return cls._joined(layouts, [Part(schedule, zero_stage, slice(0, layouts.size))])

    @classmethod
    def _joined(cls, layouts: Layouts, parts: Sequence[Part]) -> Batch:
        parts = tuple(part for part in parts if part.size)
        base = int(layouts.copies.max(initial=1)) + 1
        keys, group = np.unique(layouts.data * base + layouts.copies, return_inverse=True)
        families = []
        for family, own in groupby(parts, key=lambda part: part.schedule.family):
            first, *_, last = (*own,) * 2
            families.append((family, slice(first.own.start, last.own.stop)))
        return cls(
            layouts=layouts,
            zero_stage=np.repeat([part.zero_stage for part in parts], [p.size for p in parts]),
            groups=np.stack(np.divmod(keys, base), axis=1),
            group=group + len(keys) * layouts.inside,
            parts=parts,
            families=tuple(families),
        )

    def of_pairs(self, table: Floats) -> Floats:
        """From a table by ZeRO stage and kind of replicas, [4, D, ...], the value of each pair."""
        found: Floats = table[self.zero_stage, self.group]
        return found

    def warm_up(self, known: Mapping[str, Callable[[Ints], Ints]]) -> Callable[[Ints], Ints]:
        """Forwards before the first backward by ranks from one on, [N]; 1 where none is known."""
        ranks = np.arange(int(self.layouts.pipeline.max()) + 1)
        table = np.stack([known[f](ranks) if f in known else 0 * ranks + 1 for f in self.names])
        row = np.repeat(np.arange(len(table)), self.sizes)
        return lambda ranks: table[row, ranks]

    def ramp(self, shares: Shares) -> Ramp:
        """That of each pair's family, arrays [N]."""
        ramps = np.array([Ramp.of(family, shares) for family in self.names])
        return Ramp(*np.repeat(ramps, self.sizes, axis=0).T)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the families."""
        return tuple(family for family, _ in self.families)

    @property
    def sizes(self) -> list[int]:
        """Pairs of each family."""
        return [own.stop - own.start for _, own in self.families]


# The pairs of depth and data degree that points have, and the least that plans of each take
# ------------------------------------------------------------------------------------------
# Points of the same microbatch size and devices share their pairs. What each would take if all
# ranks worked all the time and had all memory bounds a point before its pairs are bounded
# (`pair_batch`).


@dataclass(slots=True)
class PointPairs:
    """Those of a question, in all schedules and ZeRO stages of its `space`."""

    question: ModelQuestion
    aim: Aim
    schedules: tuple[Schedule, ...]
    space: Space = field(init=False)
    _layouts: dict[tuple[int, int, int], Layouts] = field(default_factory=dict)
    _counts: dict[tuple[int, int, int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        asked = self.question
        self.space = Space(self.schedules, asked.model.num_layers, asked.allowed)

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
