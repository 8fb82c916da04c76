"""DualPipe: two pipelines in opposite directions, forwards paired with backwards of the other.

Every rank has a stage of each of two copies of the model, as in Chimera (DeepSeek-AI, DeepSeek-V3
Technical Report, 2024, section 3.2.1). Ranks r and p - 1 - r each run the order of rank r of p/2 in
DualPipeV (`dualpipe_v`, where it stands), on half of the microbatches and with the directions
exchanged. The bubble is (p/2 - 1)(F&B + B - 3W), where F&B is a pair (table 2); a rank holds p + 1
activations, and all parameters are there twice.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trainwright.errors import Fault
from trainwright.plans.schedule import Schedule
from trainwright.scheduling.families.chimera import both_ways, even_rules
from trainwright.scheduling.families.dualpipe_v import rank_order
from trainwright.scheduling.families.family import Family, FamilyRequest


def order(request: FamilyRequest) -> Schedule:
    """All ranks in turn; the second half runs as the first, directions exchanged."""
    p, each = request.num_ranks, request.num_microbatches // 2
    orders, pairs, first_row = [], [], 0
    for rank in range(p):
        outer = min(rank, p - 1 - rank)
        stages = (outer, 2 * p - 1 - outer) if rank < p // 2 else (p + outer, p - 1 - outer)
        rows, paired = rank_order(p // 2, outer, each, stages=stages)
        orders.append(rows)
        pairs.append(paired + first_row)
        first_row += len(rows)
    return Schedule.of_ranks(
        orders, placement=both_ways(request), num_microbatches=each, pairs=np.concatenate(pairs)
    )


def rules(request: FamilyRequest) -> Iterator[Fault]:
    """Two halves, each with as many microbatches as ranks."""
    yield from even_rules(request)
    p, m = request.num_ranks, request.num_microbatches
    if m < 2 * p:
        yield Fault("num_microbatches", f"must be >= {2 * p}, twice the ranks, got {m}")


DUALPIPE = Family(
    name="dualpipe",
    summary="two pipelines in opposite directions, forwards and backwards in overlapping pairs",
    source="DeepSeek-AI, DeepSeek-V3 Technical Report, 2024",
    place=both_ways,
    order=order,
    is_plain=False,
    rules=rules,
    splits_backward=True,
)
