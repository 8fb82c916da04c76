"""Random instances by seed, and the least time of each by exhaustive search, found once."""

from __future__ import annotations

from functools import cache
from random import Random

from oracles import least_time
from strategies import random_piper


@cache
def least_time_of(seed: int):
    return least_time(random_piper(Random(seed)))
