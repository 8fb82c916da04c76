"""When each stage of a 1F1B pipeline ends, by the longest path through its actions.

Every replica of a stage runs the 1F1B order (Narayanan et al., 2019): as many forwards as it may
hold in flight, then backward and forward in turn. A forward waits for the forwards of the stages
before it and their transfers, a backward for the backwards behind it; both wait for the device.
With microbatches dealt round-robin to the replicas of a stage the order has no cycle for any
degrees, so sweeping over the stages settles every action. See `native/pipeline_ends.hpp`; it is
O(stages × microbatches), about 10 ns each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from trainwright._native import _core


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStage:
    """One stage: seconds per microbatch, replicas, microbatches each may hold in flight.

    `feeds` lists the later stages it sends to as (stage, seconds per transfer); gradients come
    back in the same time.
    """

    forward_s: float
    backward_s: float
    in_flight: int
    replicas: int = 1
    feeds: tuple[tuple[int, float], ...] = ()


def one_f_one_b_ends_s(
    stages: Sequence[PipelineStage], *, num_microbatches: int
) -> tuple[float, ...]:
    """When each stage ends its last backward, from the start of the step.

    `num_microbatches` counts those of the whole batch. Transfers delay the receiver and leave both
    devices free to work.
    """
    feeds = [feed for stage in stages for feed in stage.feeds]
    ends_s = _core.one_f_one_b_ends_s(
        forward_s=np.array([stage.forward_s for stage in stages], dtype=np.float64),
        backward_s=np.array([stage.backward_s for stage in stages], dtype=np.float64),
        in_flight=np.array([stage.in_flight for stage in stages], dtype=np.int64),
        replicas=np.array([stage.replicas for stage in stages], dtype=np.int64),
        feed_offset=np.array(
            list(accumulate((len(stage.feeds) for stage in stages), initial=0)), dtype=np.int64
        ),
        feed_target=np.array([target for target, _ in feeds], dtype=np.int32),
        feed_s=np.array([transfer_s for _, transfer_s in feeds], dtype=np.float64),
        num_microbatches=num_microbatches,
    )
    return tuple(ends_s.tolist())
