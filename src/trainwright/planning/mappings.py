"""Where the pipeline may lie inside the replicas: which pairs of depth and data degree gain by it.

With the pipeline inside (`plan.axis_order`), ranks lie as many devices apart as one of them has for
one replica, and replicas a whole pipeline apart. Transfers between ranks get no slower for it and
the exchange of replicas no faster, but for the latency of rings of other lengths. So where both
orders may be used, the pipeline is put inside where its ranks fill the units of a level evenly and
more neighbours share one.

Experts are dealt out over devices that follow on each other, so they have to fill them, as
Megatron-LM has it: only then layers cost the same under both orders.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.plan.axis_order import DATA_INSIDE, PIPELINE_INSIDE, AxisOrder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.cluster import NetworkLevel
    from trainwright.planning.layouts import Layouts
    from trainwright.planning.model_space import Point

    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]


def with_mappings(
    layouts: Layouts,
    orders: tuple[AxisOrder, ...],
    point: Point,
    levels: tuple[NetworkLevel, ...],
) -> Layouts:
    """Every pair under every order that may be used and that is looked at."""
    numbers = np.arange(layouts.size)
    if DATA_INSIDE not in orders:
        kept = numbers[_alike(point, layouts)]
        return replace(layouts.at(kept), inside=np.ones(len(kept), np.bool_))
    if PIPELINE_INSIDE not in orders:
        return layouts
    nearer = numbers[_nearer(point, layouts, levels)]
    both = layouts.at(np.concatenate((numbers, nearer)))
    return replace(both, inside=np.arange(both.size) >= layouts.size)


def _alike(point: Point, layouts: Layouts) -> Flags:
    """Where layers cost the same: experts fill what lies inside, or nothing lies between."""
    if point.expert_devices == point.devices:
        return np.ones(layouts.size, np.bool_)
    single: Flags = (layouts.pipeline == 1) | (layouts.data == 1)
    return single


def _nearer(point: Point, layouts: Layouts, levels: tuple[NetworkLevel, ...]) -> Flags:
    """Where fewer neighbours lie in different units of some level that pipelines fill evenly."""
    p, d, size = layouts.pipeline, layouts.data, point.devices
    gains = np.zeros(layouts.size, dtype=np.bool_)
    if point.expert_devices != size:
        return gains
    for unit in np.cumprod([level.size for level in levels]).tolist():
        if size < unit:
            gains |= _crossings(size, p, d, unit) < _crossings(size * d, p, np.ones_like(d), unit)
    return gains & (p > 1) & (d > 1)


def _crossings(size: Ints | int, p: Ints, repeats: Ints, unit: int) -> Ints:
    """How many neighbours among p ranks of so many devices lie in different units.

    All of them where ranks or pipelines do not fill units evenly.
    """
    period = size * p
    is_even = (unit % size == 0) & ((repeats == 1) | (period % unit == 0) | (unit % period == 0))
    found: Ints = np.where(is_even, (period - 1) // unit, p - 1)
    return found


def exchanges_no_nearer(levels: tuple[NetworkLevel, ...]) -> bool:
    """Whether groups that lie farther apart surely send no byte faster.

    So it is with one level, and with two of which the outer is half as fast or slower: a group that
    fills units unevenly is priced as if it filled the last one too, and only such a ratio outweighs
    that. Nothing is claimed of more levels.
    """
    rates = [level.effective_bytes_per_s for level in levels]
    is_finite = all(math.isfinite(rate) for rate in rates)
    return is_finite and (len(rates) == 1 or (len(rates) == 2 and rates[0] >= 2 * rates[1]))
