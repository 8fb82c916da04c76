"""A placement problem answered: the optimum, the fixed strategy beside it, or why nothing fits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.partitioning.place_layers import place_case
from trainwright.plan.results.plan import Binding, Relaxation
from trainwright.plan.status import Status
from trainwright.planning.fixed_strategy import price_strategy
from trainwright.planning.placement_by_profile import place_by_profile
from trainwright.units import format_bytes, format_bytes_up

if TYPE_CHECKING:
    from trainwright.execution import Budget
    from trainwright.partitioning.place_layers import PlacementOutcome
    from trainwright.partitioning.placement_rules import PlacementRules
    from trainwright.partitioning.restrictions import Restrictions
    from trainwright.planning.fixed_strategy import PricedStrategy
    from trainwright.profile.placement_case import PlacementCase

_STEPS: Final = 60
_MAX_DEVICES: Final = 1 << 20
_AMPLE: Final = 2.0**600


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementAnswer:
    """What a search found, the fixed strategy's price, and what binds where nothing fits."""

    outcome: PlacementOutcome
    fixed: PricedStrategy | None
    binding: Binding | None = None
    relaxations: tuple[Relaxation, ...] = ()


def restricted_case(case: PlacementCase, restrictions: Restrictions) -> PlacementCase:
    """The case without what is switched off; raises `InvalidInput` where no width remains."""
    widths = case.widths
    if not restrictions.tensor_parallel:
        widths = tuple(table for table in widths if table.tensor_parallel == 1)
        if not widths:
            offered = ", ".join(str(table.tensor_parallel) for table in case.widths)
            raise InvalidInput.of(
                "no-tensor-parallel", f"must leave a tensor width; the file has {offered}"
            )
    return replace(case, widths=widths, recompute=case.recompute and restrictions.recompute)


def plan_placement(
    case: PlacementCase,
    *,
    rules: PlacementRules,
    restrictions: Restrictions,
    budget: Budget,
    planner: str = "exact",
) -> PlacementAnswer:
    """Search, price the fixed strategy, and where nothing fits say what is missing.

    `planner` is "exact", or "profile" for the restricted profile partitioner, which is slower and
    finds the same. Raises `UnsupportedFeature` for a graph that branches where the rules do not
    admit one, and for what the chosen planner cannot express.
    """
    _refuse_endless(case)
    allowed = restricted_case(case, restrictions)
    if planner == "profile":
        outcome = _by_profile(allowed, rules, restrictions, budget)
    else:
        outcome = _place(allowed, rules, restrictions, budget)
    fixed = price_strategy(replace(case, recompute=allowed.recompute), rules)
    if outcome.status is not Status.INFEASIBLE:
        return PlacementAnswer(outcome=outcome, fixed=fixed)
    least_bytes = _least_memory(allowed, rules, restrictions, budget)
    return PlacementAnswer(
        outcome=outcome,
        fixed=fixed,
        binding=_binding(allowed, rules, least_bytes),
        relaxations=_relaxations(allowed, rules, restrictions, budget, least_bytes),
    )


def _place(
    case: PlacementCase, rules: PlacementRules, restrictions: Restrictions, budget: Budget
) -> PlacementOutcome:
    most = None if restrictions.data_parallel else 1
    return place_case(case, rules=rules, budget=budget, max_data_parallel=most)


def _refuse_endless(case: PlacementCase) -> None:
    """Sums beyond all floats have no order, so a search over them would prove nothing."""
    setting = case.setting
    for table in case.widths:
        work_s = sum((*table.forward_s.tolist(), *table.backward_s.tolist()))
        edges_bytes, parameters_bytes = (
            sum(e.bytes for e in table.edges),
            sum(table.parameter_bytes.tolist()),
        )
        kept_bytes = sum(table.activation_bytes.tolist()) + edges_bytes
        moved_s = 8 * (edges_bytes + parameters_bytes) / setting.bandwidth_bytes_per_s
        rounds = setting.num_microbatches + table.num_layers
        needed = {
            "seconds": rounds * (2 * work_s + moved_s),
            "bytes": 16 * parameters_bytes + table.num_layers * kept_bytes,
        }
        for unit, amount in needed.items():
            if not math.isfinite(amount):
                where = f"at tensor width {table.tensor_parallel}"
                raise InvalidInput.of("model", f"must add up to finite {unit} {where}")


def _by_profile(
    case: PlacementCase, rules: PlacementRules, restrictions: Restrictions, budget: Budget
) -> PlacementOutcome:
    if not restrictions.data_parallel:
        raise UnsupportedFeature(
            "the profile partitioner without data parallelism", alternative="use planner exact"
        )
    return place_by_profile(case, rules=rules, budget=budget)


def _least_memory(
    case: PlacementCase, rules: PlacementRules, restrictions: Restrictions, budget: Budget
) -> float | None:
    """The least bytes per device at which something fits, as a plan's own need; `None`: never."""

    def need_at(memory_bytes: float) -> float | None:
        setting = replace(case.setting, memory_bytes=memory_bytes)
        cost = _place(replace(case, setting=setting), rules, restrictions, budget).cost
        return cost.peak_memory_bytes if cost else None

    high = need_at(_AMPLE)
    if high is None:
        return None
    low = case.setting.memory_bytes
    for _ in range(_STEPS):
        if high <= low * (1 + 1e-9) or budget.stopped:
            break
        middle = (low + high) / 2
        need = need_at(middle)
        low, high = (middle, high) if need is None else (low, min(need, middle))
    return high


def _binding(case: PlacementCase, rules: PlacementRules, least_bytes: float | None) -> Binding:
    memory_bytes = case.setting.memory_bytes
    if least_bytes is None:
        return Binding(
            kind="devices",
            layers=(),
            missing_bytes=0.0,
            description=f"{case.setting.num_devices} devices are too few for the tensor widths "
            "of the file, whatever their memory",
        )
    missing = least_bytes - memory_bytes
    layer, needed = _largest_layer(case, rules)
    if needed > memory_bytes:
        return Binding(
            kind="layer",
            layers=(layer,),
            missing_bytes=needed - memory_bytes,
            description=f"layer {layer} alone needs {format_bytes(needed)} with one microbatch in "
            f"flight, {format_bytes(needed - memory_bytes)} more than a device has",
        )
    return Binding(
        kind="stage",
        layers=(),
        missing_bytes=missing,
        description=f"each layer fits alone, but even the leanest placement needs "
        f"{format_bytes(least_bytes)} per device, {format_bytes(missing)} more than it has",
    )


def _largest_layer(case: PlacementCase, rules: PlacementRules) -> tuple[int, float]:
    """The layer that needs most on its own, at the width where that is least."""
    copies = rules.copies[case.optimizer]
    largest = []
    for table in case.widths:
        needs = copies * table.parameter_bytes + table.activation_bytes
        v = int(needs.argmax())
        largest.append((float(needs[v]), table.layer_ids[v]))
    needed, layer = min(largest)
    return layer, needed


def _relaxations(
    case: PlacementCase,
    rules: PlacementRules,
    restrictions: Restrictions,
    budget: Budget,
    least_bytes: float | None,
) -> tuple[Relaxation, ...]:
    found = []
    if least_bytes is not None:
        more = least_bytes - case.setting.memory_bytes
        found.append(
            Relaxation(
                change="memory",
                value=least_bytes,
                description=f"{format_bytes_up(least_bytes)} per device ({format_bytes(more)} "
                "more)",
            )
        )
    devices = _fewest_devices(case, rules, restrictions, budget)
    if devices is not None:
        more_devices = devices - case.setting.num_devices
        found.append(
            Relaxation(
                change="devices",
                value=devices,
                description=f"{devices} devices ({more_devices} more)",
            )
        )
    return tuple(found)


def _fewest_devices(
    case: PlacementCase, rules: PlacementRules, restrictions: Restrictions, budget: Budget
) -> int | None:
    """The fewest devices on which something fits: one per layer and rank is all that can help."""

    def fits_on(num_devices: int) -> bool:
        setting = replace(case.setting, num_devices=num_devices)
        return _place(replace(case, setting=setting), rules, restrictions, budget).plan is not None

    low = case.setting.num_devices
    most = max(table.tensor_parallel * table.num_layers for table in case.widths)
    if rules.caps_in_flight:  # replicas hold fewer microbatches each, which frees memory
        most *= case.setting.num_microbatches
    high = min(_MAX_DEVICES, most)
    if high <= low or not fits_on(high):
        return None
    while high - low > 1 and not budget.stopped:
        middle = (low + high) // 2
        low, high = (low, middle) if fits_on(middle) else (middle, high)
    return high
