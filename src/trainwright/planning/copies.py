"""How many copies of sharded state there may be: groups of replicas that fill units of the network.

A copy on fewer devices gathers and scatters over nearer links, takes more memory, and its gradients
are reduced over all copies once per step. That pays where microbatches exchange (ZeRO 2 and 3) and
a group just fills a node or a domain, so unless the user narrows the number these are searched
beside a single copy, without a pipeline. Else every number that divides the replicas, beside one
too, and under ZeRO 1. There all is exchanged once per step, and copies send more between nodes:
gradients twice for weights once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.planning.allowed import ANY
from trainwright.planning.layouts import joined
from trainwright.profile.setting import divisors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.cluster import NetworkLevel
    from trainwright.planning.allowed import Span
    from trainwright.planning.layouts import Layouts
    from trainwright.planning.model_space import Point

    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]

_PER_MICROBATCH = 2  # the first ZeRO stage that exchanges with every microbatch


def with_copies(
    layouts: Layouts, allowed: Span, point: Point, levels: tuple[NetworkLevel, ...]
) -> Layouts:
    """Every pair with each number of copies that is looked at; a single copy comes first."""
    parts = [layouts] if 1 in allowed else []
    if allowed == ANY:
        units = np.cumprod([level.size for level in levels])[:-1]
        for unit in units.tolist():
            copies = point.devices * layouts.data // unit
            fills = (layouts.pipeline == 1) & (point.devices * layouts.data == copies * unit)
            parts.append(_copied(layouts, np.maximum(1, copies), fills, point))
    else:
        for number in divisors(int(np.lcm.reduce(layouts.data))) if layouts.size else ():
            if number > 1 and number in allowed:
                copies = np.full(layouts.size, number)
                parts.append(_copied(layouts, copies, np.ones(layouts.size, np.bool_), point))
    return joined(parts) if parts else layouts.at(slice(0, 0))


def is_worth_copying(layouts: Layouts, zero_stage: int, allowed: Span) -> Flags:
    """Which pairs are looked at under a ZeRO stage; without one there is nothing to copy."""
    if zero_stage >= _PER_MICROBATCH or (zero_stage and allowed != ANY):
        return np.ones(layouts.size, np.bool_)
    found: Flags = layouts.copies == 1
    return found


def _copied(layouts: Layouts, copies: Ints, asked: Flags, point: Point) -> Layouts:
    """The pairs whose replicas, of experts too, make so many equal groups of several devices."""
    data, devices = layouts.data, point.devices
    kept = asked & (copies > 1) & (data % copies == 0)
    kept &= (devices * data) % (point.expert_devices * copies) == 0
    return replace(layouts, copies=copies).at(kept & (data > copies))
