"""Times and sizes of single layers that somebody measured, by model, device and tensor degree.

Layer 0 is the embedding, the last one the head. A microbatch that was not measured is interpolated
between its neighbours in log space (times grow as a power of the size between two points); outside
the measured range the nearest two points are continued, and the caller is told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

LayerTimes = tuple[tuple[float, float, float], ...]  # forward, backward, update seconds
LayerSizes = tuple[tuple[float, float, float], ...]  # parameters, output bytes, saved bytes


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


def _between(low_s: float, high_s: float, low: int, high: int, at: int) -> float:
    if low == high or low_s <= 0 or high_s <= 0:
        return low_s * at / low if low == high else (low_s + high_s) / 2
    exponent = math.log(high_s / low_s) / math.log(high / low)
    return low_s * math.pow(at / low, exponent)
