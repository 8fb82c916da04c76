"""Whose uneven splits in V are worth a look, once the search of the certified space is over.

Such splits lie outside that space (`nearly_even`), so they may only improve on its bound; where
blocks are one short of a multiple of the stages, by a tenth of a step. Looking for one takes two
peels, O(L²) states each, so among long chains only the most promising candidates get there.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final

from trainwright.planning.family_split import IN_V
from trainwright.planning.nearly_even import nearly_even

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainwright.plan import Plan
    from trainwright.planning.model_space import Candidate
    from trainwright.profile import Profile

_LAYERS: Final = 100_000  # L² of all candidates that are looked at, but always
_SOME: Final = 8


def worth_uneven(
    bounds: Mapping[Candidate, float], num_layers: int, *, first: Candidate | None = None
) -> list[tuple[float, Candidate]]:
    """`first`, then those of the least coarse bounds; of equal ones those that may hold more."""
    order = sorted(
        bounds.items(), key=lambda one: (one[0] != first, one[1], -IN_V.index(one[0].schedule))
    )
    most = max(_SOME, _LAYERS // num_layers**2)
    return [(bound, candidate) for candidate, bound in order[:most]]


def is_uneven(plan: Plan, profile: Profile) -> bool:
    """Whether a plan is in V and its cut outside the certified space."""
    if plan.schedule not in IN_V:
        return False
    even = nearly_even(profile, len(plan.stages))
    if even is None:
        return True
    is_stage = even.stages(len(profile.structure.layers))
    ends = accumulate((len(stage.layers) for stage in plan.stages), initial=0)
    return not all(is_stage[first, after] for first, after in pairwise(ends))
