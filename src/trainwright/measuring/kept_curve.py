"""Bytes kept before every action of a rank, beside what the order of its actions predicts.

F keeps what one microbatch of its stage keeps when it runs alone, B frees it. Of a split backward
the runtime chooses how much goes with I and how much with W, so between the two any part is right.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainwright.plan.results.gradient_check import KeptBytes

_COMPUTATION = re.compile(r"(\d+)([FIWB])(\d+)")


def compare_curve(rank: int, seen: Sequence[tuple[str, float]], alone: Sequence[int]) -> KeptBytes:
    """`seen` holds each action and the bytes before it, `alone` the bytes of F by stage."""
    kept, between = 0.0, 0.0
    peak = predicted_peak = difference = 0.0
    count = 0
    for action, found in seen:
        peak = max(peak, found)
        predicted_peak = max(predicted_peak, kept + between)
        difference = max(difference, kept - found, found - kept - between)
        for stage, kind, _ in _COMPUTATION.findall(action):
            count += 1
            size = float(alone[int(stage)])
            kept += {"F": size, "B": -size, "I": -size, "W": 0.0}[kind]
            between += {"I": size, "W": -size}.get(kind, 0.0)
    return KeptBytes(
        rank=rank,
        peak_bytes=peak,
        predicted_peak_bytes=predicted_peak,
        largest_difference_bytes=difference,
        num_actions=count,
    )
