"""Named schedule families, by registry name. A family gives orders; times are the simulator's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from trainwright.errors import InvalidInput
from trainwright.scheduling.families.family import Family, FamilyRequest
from trainwright.scheduling.families.gpipe import GPIPE
from trainwright.scheduling.families.interleaved import DEPTH_FIRST, INTERLEAVED
from trainwright.scheduling.families.one_f_one_b import EAGER_ONE_F_ONE_B, ONE_F_ONE_B

if TYPE_CHECKING:
    from trainwright.plan.schedule import Schedule

_FAMILIES = (GPIPE, ONE_F_ONE_B, EAGER_ONE_F_ONE_B, INTERLEAVED, DEPTH_FIRST)

FAMILIES: Mapping[str, Family] = MappingProxyType({family.name: family for family in _FAMILIES})
ALIASES: Mapping[str, str] = MappingProxyType({})


def family_named(name: str) -> Family:
    """Look a family up by its name or alias; raises InvalidInput listing the names."""
    found = FAMILIES.get(ALIASES.get(name, name))
    if found is None:
        names = ", ".join((*FAMILIES, *ALIASES))
        raise InvalidInput.of("family", f'must be one of {names}, got "{name}"')
    return found


def generate(name: str, request: FamilyRequest) -> Schedule:
    """Orders of the family `name`; raises InvalidInput naming the rule the request breaks."""
    return family_named(name).generate(request)


__all__ = ["ALIASES", "FAMILIES", "Family", "FamilyRequest", "family_named", "generate"]
