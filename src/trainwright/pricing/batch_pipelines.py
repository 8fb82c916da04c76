"""When the ranks of many configurations end, and what they hold at their fullest.

Configurations of equal times share what is simulated, and steps of one pipeline and different
lengths share a steady state. Memory in flight depends on counts alone, unless the family looks at
times, so it is one product for all cuts of a shape.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from trainwright.pricing.memory_curve import StageActivations
from trainwright.pricing.peak_rows import PeakRows, peak_rows
from trainwright.pricing.pipeline_run import (
    TIMELESS,
    PipelineTimes,
    SteadyState,
    peak_shape,
    schedule_of,
    shorter_shape,
    simulated_ends_s,
    steady_state,
)
from trainwright.pricing.ragged import Ragged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainwright.pricing.batch_cuts import Cut, Cuts
    from trainwright.pricing.batch_ranks import RankCosts
    from trainwright.pricing.block_sums import WorkTable
    from trainwright.pricing.pipeline_run import PipelineShape

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Timings = tuple["_Timing", ...]


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: what several figures need is kept
class Pipelines:
    """Runs [n] as numbers of cuts, shapes and pairs of cut and replicas.

    Figures come by run and rank, one rank after another.
    """

    table: WorkTable
    cuts: Sequence[Cut]
    laid: Cuts
    shapes: Sequence[PipelineShape]
    costs: RankCosts
    cut: Ints
    shape: Ints
    pair: Ints

    def ends_s(self) -> Floats:
        """When each rank ends its last action."""
        timings, timing = self._timings
        first, which = distinct(timing, self.shape)
        shorter = [shorter_shape(shape) for shape in self.shapes]
        found = []
        for number, shape in zip(timing[first].tolist(), self.shape[first].tolist(), strict=True):
            found.append(timings[number].ends_s(self.shapes[shape], shorter[shape]))
        return _spread(found, which)

    def held_bytes(self) -> Floats:
        """What the schedule holds beside static memory."""
        timings, timing = self._timings
        enough = [peak_shape(s) if s.family in TIMELESS else s for s in self.shapes]
        timeless = np.array([shape.family in TIMELESS for shape in self.shapes])[self.shape]
        number = {shape: i for i, shape in enumerate(dict.fromkeys(enough))}
        of_shape = np.array([number[shape] for shape in enough])[self.shape]
        first, which = distinct(self.cut, np.where(timeless, -1, timing), of_shape)
        by_shape: dict[int, list[int]] = defaultdict(list)
        for place, shape in enumerate(of_shape[first].tolist()):
            by_shape[shape].append(place)
        found: list[Floats] = [np.zeros(0)] * len(first)
        for shape, of_number in number.items():
            places = by_shape[of_number]
            if shape.family in TIMELESS:
                peaks = _timeless_rows(shape).peaks(self._activations(self.cut[first[places]]))
                for place, own in zip(places, peaks, strict=True):
                    found[place] = own
                continue
            for place in places:
                schedule = schedule_of(shape, timings[int(timing[first[place]])].times)
                alone = self._activations(self.cut[first[place : place + 1]])
                found[place] = peak_rows(schedule).peaks(alone)[0]
        return _spread(found, which)

    def _activations(self, cuts: Ints) -> StageActivations:
        """Of cuts [n] with equally many stages [n, S]."""
        works = self.laid.works[self.laid.stages.places(cuts)].reshape(len(cuts), -1)
        return StageActivations(
            until_input_grad=self.table["until_input_grad_bytes"][works],
            until_weight_grad=self.table["until_weight_grad_bytes"][works],
            transient=self.table["transient_bytes"][works],
            logits=self.table["logits_bytes"][works],
        )

    @cached_property
    def _timings(self) -> tuple[Timings, Ints]:
        """Cuts at all times that differ, and which of these a run has."""
        pair = np.where(self.costs.adds[self.pair], self.pair, -1)
        first, which = distinct(self.cut, pair)
        cut, pair = self.cut[first], pair[first]
        stages = self.laid.stages.chosen(cut)
        works = self.laid.works[self.laid.stages.places(cut)]
        added = np.zeros((2, len(works)))
        adds = np.repeat(pair >= 0, stages.lengths)
        places = self.costs.stages.places(pair[pair >= 0])
        added[0, adds] = self.costs.added_forward_s[places]
        added[1, adds] = self.costs.added_backward_s[places]
        forward_s = self.table["forward_s"][works] + added[0]
        input_grad_s = self.table["input_grad_s"][works] + added[1]
        weight_grad_s = self.table["weight_grad_s"][works]
        timings = []
        for number, start, length in zip(
            cut.tolist(), stages.starts.tolist(), stages.lengths.tolist(), strict=True
        ):
            own, of = slice(start, start + length), self.cuts[number]
            timings.append(
                _Timing(
                    times=PipelineTimes(
                        forward_s=forward_s[own],
                        input_grad_s=input_grad_s[own],
                        weight_grad_s=weight_grad_s[own],
                        transfer_s=of.transfer_s,
                        blocking=1 - of.overlap.pipeline,
                    )
                )
            )
        return tuple(timings), which


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Timing:
    """Times of a pipeline, and the steady states that its steps of several lengths share."""

    times: PipelineTimes
    states: dict[PipelineShape, SteadyState | None] = field(default_factory=dict)

    def ends_s(self, shape: PipelineShape, shorter: PipelineShape | None) -> Floats:
        if shorter is not None:
            if shorter not in self.states:
                self.states[shorter] = steady_state(shorter, self.times)
            state = self.states[shorter]
            if state is not None:
                return state.ends_s(shape.num_microbatches)
        return simulated_ends_s(shape, self.times)


def distinct(*columns: Ints) -> tuple[Ints, Ints]:
    """The first row of each distinct one, and which of these every row is; numbers from -1 on."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        key = key * (int(column.max(initial=0)) + 2) + column + 1
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return first, which


def _spread(found: Sequence[Floats], which: Ints) -> Floats:
    ranks = Ragged.of([len(own) for own in found])
    values: Floats = np.concatenate(found)[ranks.places(which)]
    return values


@lru_cache(maxsize=1024)
def _timeless_rows(shape: PipelineShape) -> PeakRows:
    zeros = np.zeros(0)
    times = PipelineTimes(
        forward_s=zeros, input_grad_s=zeros, weight_grad_s=zeros, transfer_s=zeros
    )
    return peak_rows(schedule_of(shape, times))
