"""PipeOffload: activations wait for their backward in the memory of the host (Wan et al., 2025).

The computation is that of another family. The activations of a forward are copied out (O) while
the next actions run, dropped (D) when the next forward but one of the rank begins, and brought back
(L) one backward ahead of their own, so that the link works beside the computation in both
directions. What has no time to go and come back stays: an action whose backward follows within the
next two forwards. Copies are free if O and L of a chunk together take no longer than its F and B.

`po-f` offloads every chunk of 1F1B: a rank holds at most four activations, whatever p is.
`po-h` offloads the first half of the chunks of interleaved 1F1B in building blocks, those that
wait longest, for hosts whose link carries half of all activations in time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainwright.plans.schedule import Action, ActionKind, Schedule
from trainwright.scheduling.families import family, interleaved, one_f_one_b

_O, _D, _L = ActionKind.O, ActionKind.D, ActionKind.L
_BACKWARDS = (ActionKind.B, ActionKind.I)


def order(request: family.FamilyRequest) -> Schedule:
    """1F1B, every activation that waits long enough on the host."""
    return offloaded(one_f_one_b.order(request), share=1.0)


def half_order(request: family.FamilyRequest) -> Schedule:
    """Interleaved, the first half of each rank's chunks on the host."""
    return offloaded(interleaved.gis_order(replace(request, group=None)), share=0.5)


def offloaded(schedule: Schedule, *, share: float) -> Schedule:
    """The same computation with the earliest `share` of each rank's chunks on the host."""
    orders = []
    for rank, stages in enumerate(schedule.placement.stages_of_rank):
        chosen = frozenset(stages[: max(1, round(share * len(stages)))])
        orders.append(np.array(_with_copies(schedule.order(rank), chosen), np.int32))
    return Schedule.of_ranks(
        orders, placement=schedule.placement, num_microbatches=schedule.num_microbatches
    )


def _with_copies(order: tuple[Action, ...], chosen: frozenset[int]) -> list[Action]:
    forwards = [at for at, action in enumerate(order) if action.kind is ActionKind.F]
    backwards = [at for at, action in enumerate(order) if action.kind in _BACKWARDS]
    position = {(order[at].stage, order[at].microbatch): k for k, at in enumerate(backwards)}
    before: dict[int, list[Action]] = {}
    for k, at in enumerate(forwards):
        _, stage, microbatch = order[at]
        own = position[stage, microbatch]
        if stage not in chosen or k + 2 >= len(forwards) or own == 0:
            continue
        dropped, fetched = forwards[k + 2], backwards[own - 1]
        if fetched <= dropped:  # it would come back before it has gone
            continue
        before.setdefault(forwards[k + 1], []).append(Action(_O, stage, microbatch))
        before.setdefault(dropped, []).append(Action(_D, stage, microbatch))
        before.setdefault(fetched, []).append(Action(_L, stage, microbatch))
    rows: list[Action] = []
    for at, action in enumerate(order):
        rows += sorted(before.get(at, ()), key=lambda copy: (copy.kind is _L, copy.kind is _O))
        rows.append(action)
    return rows


_SOURCE = "Wan et al., PipeOffload, ICML 2025"
PIPE_OFFLOAD = family.Family(
    name="po-f",
    summary="1F1B with activations on the host while they wait: a constant number on the device",
    source=_SOURCE,
    place=family.one_chunk,
    order=order,
    is_plain=False,
    host_of=one_f_one_b.ONE_F_ONE_B.name,
    steady=one_f_one_b.ONE_F_ONE_B.steady,
    planned=True,
    searched=family.Searched.ASKED,
)
PIPE_OFFLOAD_HALF = family.Family(
    name="po-h",
    summary="interleaved, the activations that wait longest on the host",
    source=_SOURCE,
    place=family.looped,
    order=half_order,
    is_plain=False,
    host_of=interleaved.GIS.name,
    splits_backward=True,
)
