"""Adaptive V: the best V schedule known for a limit of k activations, and ZB-V, which is k = 2p.

Building blocks of every lag that fit the limit, their ends rewritten for it, are filled with real
times and compared (Qi et al., NeurIPS 2024, enumerate 900(p-1) blocks; the odd ones suffice). With
equal times and no transfers the published optimum 6p-1-3k is reached for every limit k <= 2p-2 that
avoids a bubble per microbatch, usually by the first block.

Below that limit, microbatches pass in groups of k/2: slow, but legal down to two activations.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trainwright.plan.schedule import ActionKind, Schedule
from trainwright.scheduling.bounds import best_bound
from trainwright.scheduling.families import zb_v_handmade
from trainwright.scheduling.families.family import (
    Family,
    activations_within,
    limited_costs,
    two_chunks_in_v,
)
from trainwright.scheduling.finish import best_of
from trainwright.scheduling.order_arrays import actions, by_time, one_after_another
from trainwright.scheduling.passes import Objective, drop_weight_grads
from trainwright.scheduling.v_pattern import blocks_within, rewritten_order

if TYPE_CHECKING:
    from trainwright.plan.timeline import Timeline
    from trainwright.scheduling.families.family import FamilyRequest
    from trainwright.scheduling.finish import Order

_F, _I, _W, _B, _R = ActionKind
