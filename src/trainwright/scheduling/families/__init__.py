"""Named schedule families, by registry name. A family gives orders; times are the simulator's.

A new family is a file beside this one and a line in the registry below: what the planner, the
simulator and the pages have to know of it are fields of `Family`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

from trainwright.errors import InvalidInput
from trainwright.plans.schedule import Schedule, ScheduleCosts
from trainwright.plugins import SCHEDULES, plug_in
from trainwright.scheduling.bounds import LimitTooSmall, limit_below_all, misfit
from trainwright.scheduling.families.breadth_first import BREADTH_FIRST
from trainwright.scheduling.families.chimera import CHIMERA
from trainwright.scheduling.families.dualpipe import DUALPIPE
from trainwright.scheduling.families.dualpipe_v import DUALPIPE_V
from trainwright.scheduling.families.family import Family, FamilyRequest, without_limits
from trainwright.scheduling.families.interleaved import DEPTH_FIRST, GIS, GIS_H, INTERLEAVED
from trainwright.scheduling.families.one_f_one_b import EAGER_ONE_F_ONE_B, GPIPE, ONE_F_ONE_B
from trainwright.scheduling.families.pipe_offload import PIPE_OFFLOAD, PIPE_OFFLOAD_HALF
from trainwright.scheduling.families.seq1f1b import SEQ_ONE_F_ONE_B
from trainwright.scheduling.families.slimpipe import SLIMPIPE
from trainwright.scheduling.families.stp import STP
from trainwright.scheduling.families.two_stage_backward import TWO_STAGE_BACKWARD
from trainwright.scheduling.families.v_shape import (
    ADAPTIVE_V,
    ONE_F_ONE_B_V,
    V_FIT,
    V_HALF,
    V_MIN,
    ZB_V,
    ZB_V_HANDMADE,
)
from trainwright.scheduling.families.vocabulary import VOCABULARY_1, VOCABULARY_2
from trainwright.scheduling.families.wave import HANAYO, WAVE
from trainwright.scheduling.families.zero_bubble import ZB_1P, ZB_2P, ZB_H1, ZB_H2
from trainwright.scheduling.orders import cut_microbatches

_FAMILIES = (
    GPIPE,
    ONE_F_ONE_B,
    EAGER_ONE_F_ONE_B,
    INTERLEAVED,
    ZB_H1,
    ZB_H2,
    ZB_1P,
    ZB_2P,
    ZB_V,
    ZB_V_HANDMADE,
    V_HALF,
    V_MIN,
    ADAPTIVE_V,
    ONE_F_ONE_B_V,
    GIS,
    GIS_H,
    V_FIT,
    DUALPIPE_V,
    STP,
    WAVE,
    BREADTH_FIRST,
    DEPTH_FIRST,
    TWO_STAGE_BACKWARD,
    HANAYO,
    CHIMERA,
    DUALPIPE,
    SEQ_ONE_F_ONE_B,
    SLIMPIPE,
    VOCABULARY_1,
    VOCABULARY_2,
    PIPE_OFFLOAD,
    PIPE_OFFLOAD_HALF,
)

FAMILIES: Mapping[str, Family] = MappingProxyType({family.name: family for family in _FAMILIES})
ALIASES: Mapping[str, str] = MappingProxyType(
    {alias: family.name for family in _FAMILIES for alias in family.aliases}
)


# By name, as it is, or a function that gives the orders of a request.
GivenFamily: TypeAlias = "str | Family | Callable[[FamilyRequest], Schedule]"


def family_named(name: GivenFamily) -> Family:
    """Look a family up by its name or alias, or take one of somebody else's.

    Raises InvalidInput listing the names.
    """
    if isinstance(name, Family):
        return name
    found = FAMILIES.get(ALIASES.get(name, name)) if isinstance(name, str) else None
    return found or _plugged_in(name)


@lru_cache(maxsize=16)
def _plugged_in(name: str | Callable[[FamilyRequest], Schedule]) -> Family:
    """A family of a function: its orders keep the laws, and their placement is the family's."""
    from trainwright.plans.schedule import Schedule
    from trainwright.scheduling.simulate import validate

    found = plug_in("family", SCHEDULES, name, (*FAMILIES, *ALIASES))
    if isinstance(found.given, Family):
        return found.given

    def order(request: FamilyRequest) -> Schedule:
        made = found.call(Schedule, request)
        if made is None:
            raise found.fault("must return a Schedule, got None")
        for what, asked, own in (
            ("ranks", request.num_ranks, made.placement.num_ranks),
            ("microbatches", request.num_microbatches, made.num_microbatches),
        ):
            if asked != own:
                raise found.fault(f"must return orders of {asked} {what}, got {own}")
        try:
            validate(made)
        except InvalidInput as error:
            raise found.faults(error.faults) from None
        return made

    return Family(
        name=found.name,
        summary="a plug-in",
        source=f"plug-in {found.name}",
        place=lambda request: order(request).placement,
        order=order,
        reads_costs=True,
    )


def generate(name: GivenFamily, request: FamilyRequest) -> Schedule | LimitTooSmall:
    """Orders of the family `name` within the limits of `request`, or why there are none.

    Where any schedule of the placement needs more, the answer says so; otherwise what this family
    holds without limits. Raises InvalidInput naming the rule that the request breaks.
    """
    family = family_named(name)
    schedule = family.generate(request)
    placement = family.place(request)
    costs = request.costs or ScheduleCosts.of(placement)
    limit = request.max_activations
    if schedule is None:
        schedule = family.generate(without_limits(request))
    assert schedule is not None, "without limits every family has an order"
    costs = cut_microbatches(costs, schedule.num_slices)
    memory = costs.memory
    too_much = misfit(schedule, memory, max_activations=limit, costs=costs)
    if too_much is None:
        return schedule
    least = limit_below_all(placement, memory, max_activations=limit) if family.is_plain else None
    return least or replace(too_much, family=family.name)


__all__ = [
    "ALIASES",
    "FAMILIES",
    "Family",
    "FamilyRequest",
    "GivenFamily",
    "family_named",
    "generate",
]
