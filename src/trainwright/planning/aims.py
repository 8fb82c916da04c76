"""What a search makes least: a figure that grows with the step, for each number of devices.

Cost, energy and device-seconds of a token are the step times a factor that only the number of
devices decides; a deadline is a longest step for each number; the fewest devices within it are the
number itself, with a share of the step that never reaches one more. So

    key(n, T) = offset(n) + weight(n) · T      where T <= limit(n), infinite else

and whatever bounds the step of a candidate bounds its key: the planner's search, its pruning and
its bound hold for each of them as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


class Aim(Protocol):
    """What a search makes least of plans, by their steps and numbers of devices."""

    def keys(self, steps_s: Floats, devices: Ints) -> Floats:
        """The least figure of steps that take at least so long, [K]."""

    def key(self, step_s: float, devices: int) -> float:
        """Of one step."""

    def longest_s(self, key: float, devices: int) -> float:
        """The longest step with no larger figure, negative where the devices allow none."""


class StepAim:
    """The shortest step, whatever it runs on."""

    def keys(self, steps_s: Floats, devices: Ints) -> Floats:
        """The steps."""
        return steps_s

    def key(self, step_s: float, devices: int) -> float:
        """The step."""
        return step_s

    def longest_s(self, key: float, devices: int) -> float:
        """The figure is the step."""
        return key


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightedAim:
    """Arrays by number of devices, [N + 1]: `weight` > 0 per second of a step, `limit_s` >= 0.

    A negative limit allows no step on so many devices.
    """

    offset: Floats
    weight: Floats
    limit_s: Floats

    def keys(self, steps_s: Floats, devices: Ints) -> Floats:
        """The least figure of steps that take at least so long, [K]."""
        keys = self.offset[devices] + self.weight[devices] * steps_s
        allowed: Floats = np.where(steps_s <= self.limit_s[devices], keys, math.inf)
        return allowed

    def key(self, step_s: float, devices: int) -> float:
        """Of one step."""
        if step_s > self.limit_s[devices]:
            return math.inf
        return float(self.offset[devices] + self.weight[devices] * step_s)

    def longest_s(self, key: float, devices: int) -> float:
        """The longest step with no larger figure, negative where the devices allow none."""
        step_s = (key - self.offset[devices]) / self.weight[devices]
        return float(min(step_s, self.limit_s[devices]))
