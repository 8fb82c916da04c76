"""Times and sizes of single layers that somebody measured, by model, device and tensor degree.

Layer 0 is the embedding, the last one the head. A microbatch that was not measured is interpolated
between its neighbours in log space (times grow as a power of the size between two points); outside
the measured range the nearest two points are continued, and the caller is told.

A single measured time repeats within some percent only, and more where the host is as slow as the
device. `steady_times_at` therefore reads a + c·b off all microbatches b of a layer: what starting
it takes, and what each sequence adds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from trainwright.arrays import Floats


# What timing one layer on a device gives: seconds by phase, bytes by what frees them
# -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTiming:
    """One layer (or slice of one) at one microbatch: medians of `num_repeats` passes.

    `spread` is the distance between the quartiles of a whole pass over its median, absent after
    a single pass. `input_bytes` is what recomputing the layer has to keep; the saved bytes include
    it where the layer keeps its input. `transient_bytes` come on top of them while the layer runs.
    """

    forward_s: float
    input_grad_s: float
    weight_grad_s: float
    spread: float | None
    num_repeats: int
    input_bytes: float
    saved_until_input_grad_bytes: float
    saved_until_weight_grad_bytes: float
    transient_bytes: float

    @property
    def total_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.input_grad_s + self.weight_grad_s

    @property
    def saved_bytes(self) -> float:
        """What one microbatch in flight keeps."""
        return self.saved_until_input_grad_bytes + self.saved_until_weight_grad_bytes


# Times and sizes of single layers that somebody measured, by model, device and tensor degree
# -------------------------------------------------------------------------------------------

LayerTimes = tuple[tuple[float, float, float], ...]  # forward, backward, update seconds
LayerSizes = tuple[tuple[float, float, float], ...]  # parameters, output bytes, saved bytes

_ENOUGH_FOR_A_LINE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayers:
    """`times_s` by (model, accelerator, microbatch, tensor degree); `sizes` by (model, degree)."""

    times_s: Mapping[tuple[str, str, int, int], LayerTimes]
    sizes: Mapping[tuple[str, int], LayerSizes]

    def times_at(
        self, model: str, accelerator: str, *, microbatch_size: int, tensor_parallel: int
    ) -> LayerTimes | None:
        """Seconds of each layer, interpolated between microbatches where need be."""
        exact = self.times_s.get((model, accelerator, microbatch_size, tensor_parallel))
        if exact is not None:
            return exact
        measured = sorted(
            batch
            for name, device, batch, degree in self.times_s
            if (name, device, degree) == (model, accelerator, tensor_parallel)
        )
        if not measured:
            return None
        smaller = [b for b in measured if b < microbatch_size][-2:]
        larger = [b for b in measured if b > microbatch_size][:2]
        around = (smaller[-1:] + larger[:1]) if smaller and larger else (smaller or larger)
        low, high = around[0], around[-1]
        low_times = self.times_s[model, accelerator, low, tensor_parallel]
        high_times = self.times_s[model, accelerator, high, tensor_parallel]
        return tuple(
            (
                _between(a[0], b[0], low, high, microbatch_size),
                _between(a[1], b[1], low, high, microbatch_size),
                _between(a[2], b[2], low, high, microbatch_size),
            )
            for a, b in zip(low_times, high_times, strict=True)
        )

    def steady_times_at(
        self, model: str, accelerator: str, *, microbatch_size: int, tensor_parallel: int
    ) -> LayerTimes | None:
        """Seconds of each layer on the line through all measured microbatches.

        As `times_at` where fewer than three were measured.
        """
        found = {
            batch: times
            for (name, device, batch, degree), times in self.times_s.items()
            if (name, device, degree) == (model, accelerator, tensor_parallel)
        }
        if len(found) < _ENOUGH_FOR_A_LINE:
            return self.times_at(
                model,
                accelerator,
                microbatch_size=microbatch_size,
                tensor_parallel=tensor_parallel,
            )
        on_line = _on_lines(np.array(list(found)), np.array(list(found.values())), microbatch_size)
        return tuple((f, b, u) for f, b, u in on_line.tolist())


def _on_lines(sizes: Floats, times_s: Floats, at: float) -> Floats:
    """Lines through times [k, ...] by least squares of the relative error, at a size.

    Neither end of a line may be negative; what took no time at some size takes the mean.
    """
    size = sizes.reshape(-1, *[1] * (times_s.ndim - 1)).astype(np.float64)
    known = (times_s > 0).all(axis=0)
    weight = 1 / np.where(known, times_s, 1.0)
    ones, slopes = weight, size * weight  # what a start and a slope of 1 are, in shares of a time
    aa, ab, bb = (ones**2).sum(0), (ones * slopes).sum(0), (slopes**2).sum(0)
    a, b = ones.sum(0), slopes.sum(0)
    determinant = aa * bb - ab**2
    start_s, slope = (bb * a - ab * b) / determinant, (aa * b - ab * a) / determinant
    start_s, slope = (
        np.where(slope < 0, a / aa, np.where(start_s < 0, 0.0, start_s)),
        np.where(start_s < 0, b / bb, np.where(slope < 0, 0.0, slope)),
    )
    found: Floats = np.where(known, start_s + slope * at, times_s.mean(axis=0))
    return found


def _between(low_s: float, high_s: float, low: int, high: int, at: int) -> float:
    if low == high or low_s <= 0 or high_s <= 0:
        return low_s * at / low if low == high else (low_s + high_s) / 2
    exponent = math.log(high_s / low_s) / math.log(high / low)
    return low_s * math.pow(at / low, exponent)
