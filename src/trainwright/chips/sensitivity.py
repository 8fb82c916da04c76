"""What limits a design: the gain in throughput of a little more of each resource.

A gain is the best design's throughput with plans sought anew, everything else alike: finite
differences, not derivatives, as plans change in steps. The area's is a search of a larger space.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.chips.population import populate
from trainwright.chips.search import search
from trainwright.chips.space import FIELDS, SpaceRules, enumerate_designs, subspace

if TYPE_CHECKING:
    from trainwright.chips.question import CodesignQuestion
    from trainwright.chips.search import CodesignOutcome
    from trainwright.cluster import Surroundings
    from trainwright.execution import Budget

RESOURCES: Final = (
    "clock_hz",
    "memory_bytes",
    "memory_bandwidth_bytes_per_s",
    "link_bandwidth_bytes_per_s",
    "glb_bytes_per_cycle",
)
_NO_LIMIT_UM2: Final = 1e12
TWICE: Final = ("num_tc", "num_vc", "glb_mib")
WITH_PORT: Final = "num_tc+port"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """`factor` times a resource gives 1 + `gain` times the throughput.

    `design` is the chip that takes the place of the best, where one does.
    """

    resource: str
    factor: float
    gain: float
    design: str | None = None


def sensitivities(
    question: CodesignQuestion,
    outcome: CodesignOutcome,
    rules: SpaceRules,
    budget: Budget,
    *,
    factor: float = 1.1,
) -> tuple[Gain, ...]:
    """Gains of the best design by `factor` of each surrounding resource and of area, and by twice
    the cores of a class or the global buffer, whatever their area. Empty without a best design.

    All cores take their operands through one port of the global buffer, which more of them do not
    widen: twice the cores can gain less than a tenth more area, for which the whole space is
    searched again and another shape of cores found. `WITH_PORT` is twice the cores and the port.
    """
    best = outcome.best
    if best is None:
        return ()
    variant = question.variants[best.variant]
    base = replace(
        question,
        space=subspace(question.space, np.array([best.index])),
        surroundings=(variant.surroundings,),
        microbatch_sizes=(variant.microbatch_size,),
        max_power_watts=None,
    )

    def gain(name: str, factor: float, changed: CodesignQuestion) -> Gain:
        found, _ = populate(changed, budget, scale_s=outcome.scale_s)
        least = float(found.cost.min(initial=np.inf))
        return Gain(resource=name, factor=factor, gain=best.cost / least - 1.0)

    gains = [
        gain(
            name,
            factor,
            replace(base, surroundings=(_more(variant.surroundings, name, factor),)),
        )
        for name in RESOURCES
    ]
    for name in TWICE:
        changed = _twice(base, name)
        if changed is not None:
            gains.append(gain(name, 2.0, changed))
            if name == "num_tc":
                wider = (_more(variant.surroundings, "glb_bytes_per_cycle", 2.0),)
                gains.append(gain(WITH_PORT, 2.0, replace(changed, surroundings=wider)))
    return (*gains, _area_gain(question, outcome, rules, budget, factor))


def _more(surroundings: Surroundings, name: str, factor: float) -> Surroundings:
    return replace(surroundings, **{name: getattr(surroundings, name) * factor})


def _twice(base: CodesignQuestion, name: str) -> CodesignQuestion | None:
    values = dict(zip(FIELDS, base.space.designs[:, 0].tolist(), strict=True))
    values[name] *= 2
    if name == "glb_mib" and values[name] > max(SpaceRules().glb_mib):
        return None  # beyond the area table
    rules = SpaceRules(
        **{name: (value,) for name, value in values.items()},
        largest_um2=_NO_LIMIT_UM2,
        least_share=0.0,
    )
    return replace(base, space=enumerate_designs(rules))


def _area_gain(
    question: CodesignQuestion,
    outcome: CodesignOutcome,
    rules: SpaceRules,
    budget: Budget,
    factor: float,
) -> Gain:
    assert outcome.best is not None
    wider = replace(rules, largest_um2=rules.largest_um2 * factor)
    makings = [variant.making for variant in question.variants]
    larger = replace(question, space=enumerate_designs(wider, makings))
    found = search(larger, budget).best
    reached = np.inf if found is None else found.cost
    gain = max(0.0, outcome.best.cost / reached - 1.0)  # where the budget ended it early
    design = str(larger.space.template(found.index)) if found is not None and gain else None
    return Gain(resource="area", factor=factor, gain=gain, design=design)
