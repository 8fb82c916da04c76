"""The least cut of a chain by exhaustion of the recurrence, and the fastest ways that fit, plainly.

The reference of `native/chain/chain_cuts.hpp`.
"""

from __future__ import annotations

import math
from itertools import combinations


def fitting_time_s(ways, rows, room_bytes):
    """`ways` of (level bytes, [(until I, until W, seconds), ...]); `rows` of one rank, [N, 3]."""
    fitting = [
        time_s
        for level_bytes, own in ways
        for until_i, until_w, time_s in own
        if all(a * until_i + b * until_w + c * level_bytes <= room_bytes for a, b, c in rows)
    ]
    return min(fitting, default=math.inf)


def end_s(own, order, away_s, count):
    """The last input gradient of a stage that waits `away_s` for each microbatch to come back."""
    forward_s, weight_grad_s, time_s = own
    w, drained, drained_weight_grads, left = order
    handed_on_s = time_s - weight_grad_s
    idle_s = max(0.0, away_s - (w - 1) * forward_s)
    if count > w:
        input_grads_s = drained * (handed_on_s - forward_s)
        idle_s += max(0.0, away_s - input_grads_s - drained_weight_grads * weight_grad_s)
    ends_s = count * time_s - left * weight_grad_s + idle_s
    late_s = away_s - (w - 1) * handed_on_s
    if count > w and late_s > 0:
        rounds = (count - w - 1) // w
        ends_s = max(ends_s, count * handed_on_s + away_s + late_s + rounds * late_s)
    return ends_s


def finish_of_cut_s(stages, orders, transfers_s, count):
    """The end of a step by the ranks of one cut: `stages` of (F, W, P, tail) from the first on."""
    way_s = last_s = finish_s = 0.0
    for (forward_s, weight_grad_s, time_s, tail_s), order, across_s in reversed(
        list(zip(stages, orders, transfers_s, strict=True))
    ):
        handed_on_s = time_s - weight_grad_s
        away_s = 2 * across_s + way_s
        alone_s = end_s((forward_s, weight_grad_s, time_s), order, away_s, count)
        last_s = max(alone_s, handed_on_s + 2 * across_s + last_s)
        finish_s = max(last_s + order[3] * weight_grad_s + tail_s, forward_s + across_s + finish_s)
        way_s = handed_on_s + away_s
    return finish_s


def cuts_of(num_layers, num_stages):
    """All ways to cut so many layers into stages."""
    for inner in combinations(range(1, num_layers), num_stages - 1):
        yield (0, *inner, num_layers)
