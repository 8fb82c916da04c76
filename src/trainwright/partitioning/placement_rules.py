"""What a placement costs beyond its layers: the published rules, and ours.

The published program charges the gradients of the first stage alone, at 4 (d - 1) / d of their
bytes; counts an optimizer with state as one more copy of the parameters; recomputes in all stages
but the last or in none; and gives every stage as many microbatches in flight as stages follow,
however few there are. The native rules charge the slowest stage's ring all-reduce, 2 (d - 1) / d of
its bytes; count the bytes that training in 16 bits with Adam really keeps, 16 per parameter;
let each stage recompute only where it must; and hold no more microbatches than a replica has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trainwright.errors import InvalidInput
from trainwright.profile.placement_case import Optimizer

NATIVE: Final = "native"
COMPAT: Final = "phaze-compat"
GENERAL_DAG: Final = "phaze-general-dag"
COST_MODELS: Final = (NATIVE, COMPAT, GENERAL_DAG)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRules:
    """One way to price placements; `copies` of the parameters stay in memory, by optimizer.

    A batch pays `sync_factor`·(d − 1)/d of the parameter bytes of one stage over the bandwidth:
    the first (`sync_first_stage`) or the heaviest. `recompute_by_stage` lets a stage that fits
    without recomputing do without; `caps_in_flight` bounds what a stage holds by the microbatches
    of a replica; `allows_branches` admits layer graphs other than chains; `deals_blocks` has a
    fixed strategy deal out the repeated layers and not whatever comes first.
    """

    name: str
    copies: dict[Optimizer, float]
    sync_factor: float
    sync_first_stage: bool
    recompute_by_stage: bool
    caps_in_flight: bool
    allows_branches: bool
    deals_blocks: bool


def placement_rules(cost_model: str) -> PlacementRules:
    """The rules of a cost model by name; raises `InvalidInput` for another name."""
    if cost_model == NATIVE:
        return NATIVE_RULES
    if cost_model not in COST_MODELS:
        listed = ", ".join(COST_MODELS)
        raise InvalidInput.of("cost-model", f'must be one of {listed}, got "{cost_model}"')
    return PlacementRules(
        name=cost_model,
        copies={Optimizer.SGD: 2, Optimizer.ADAM: 3},
        sync_factor=4,
        sync_first_stage=True,
        recompute_by_stage=False,
        caps_in_flight=False,
        allows_branches=cost_model == GENERAL_DAG,
        deals_blocks=False,
    )


# Of 2 bytes per parameter: weight and gradient; for Adam also a master copy and two moments of 4.
NATIVE_RULES: Final = PlacementRules(
    name=NATIVE,
    copies={Optimizer.SGD: 2, Optimizer.ADAM: 8},
    sync_factor=2,
    sync_first_stage=False,
    recompute_by_stage=True,
    caps_in_flight=True,
    allows_branches=True,
    deals_blocks=True,
)
