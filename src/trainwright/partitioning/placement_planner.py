"""A placement problem answered: the optimum, the fixed strategy beside it, or why nothing fits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np

from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.execution import Budget
from trainwright.partitioning.downset_dp import Restrictions, solve
from trainwright.partitioning.placement import (
    PlacedCost,
    PlacedPlan,
    PlacementOutcome,
    PlacementRules,
    fits,
    held_by,
    needs_recompute,
    place_case,
    price_placement,
)
from trainwright.plans.status import Binding, Relaxation, Status
from trainwright.profile import (
    CostTable,
    Edge,
    Layer,
    Origin,
    Profile,
    ProfilePoint,
    Provenance,
    Recompute,
    Setting,
    StaticKind,
    Structure,
)
from trainwright.profile.profile import FixedStrategy, PlacementCase, WidthTable
from trainwright.units import format_bytes, format_bytes_up

# A strategy stated beside a placement problem, priced next to the optimum
# ------------------------------------------------------------------------
# It deals out its layers evenly over p stages, with t devices for every stage and d replicas. The
# published program counts positions in the whole chain, so that an embedding in front shifts every
# group by one; the native rules find the repeated layers, deal out those, and give what comes
# before and after to the first and the last stage. What does not fit is reported, never an error.

OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedStrategy:
    """The strategy's plan and price; `reason` says why it cannot run, and is absent if it can."""

    plan: PlacedPlan | None
    cost: PlacedCost | None
    reason: str | None


def price_strategy(case: PlacementCase, rules: PlacementRules) -> PricedStrategy | None:
    """Price the case's fixed strategy; `None` where it states none."""
    fixed = case.fixed
    if fixed is None:
        return None
    table = case.at_width(fixed.tensor_parallel)
    if table is None:
        offered = ", ".join(str(width.tensor_parallel) for width in case.widths)
        missing = f"tensor width {fixed.tensor_parallel} is not one of {offered}"
        return PricedStrategy(plan=None, cost=None, reason=missing)
    plan = _plan(fixed, table, case, rules)
    cost = price_placement(plan, case, rules)
    if cost.devices_used > case.setting.num_devices:
        excess = f"needs {cost.devices_used} devices of {case.setting.num_devices}"
        return PricedStrategy(plan=plan, cost=cost, reason=excess)
    reason = None if fits(cost, case) else OUT_OF_MEMORY
    return PricedStrategy(plan=plan, cost=cost, reason=reason)


def _plan(
    fixed: FixedStrategy, table: WidthTable, case: PlacementCase, rules: PlacementRules
) -> PlacedPlan:
    by_position: dict[int, list[int]] = {}
    for layer, position in enumerate(stage_positions(fixed, table, rules)):
        by_position.setdefault(position, []).append(layer)
    held = {
        k: held_by(k, fixed.num_stages, fixed.data_parallel, case, rules.caps_in_flight)
        for k in by_position
    }
    return PlacedPlan(
        tensor_parallel=table.tensor_parallel,
        data_parallel=fixed.data_parallel,
        stages=tuple(tuple(table.layer_ids[v] for v in stage) for stage in by_position.values()),
        recomputes=tuple(
            needs_recompute(stage, held[k], table, case, rules) for k, stage in by_position.items()
        ),
        depth=fixed.num_stages,
        positions=tuple(by_position),
        narrow_stages=False,
    )


def stage_positions(
    fixed: FixedStrategy, table: WidthTable, rules: PlacementRules
) -> tuple[int, ...]:
    """The stage of each layer, ascending along the table's order."""
    last, count = fixed.num_stages - 1, fixed.num_layers
    per_stage = -(-count // fixed.num_stages)
    first = _first_block(table, count) if rules.deals_blocks else 0
    return tuple(
        last if v - first >= count else min(max(0, v - first) // per_stage, last)
        for v in range(table.num_layers)
    )


def _first_block(table: WidthTable, count: int) -> int:
    """Where the `count` most alike consecutive layers begin; about the middle where many do."""
    spare = table.num_layers - count
    if spare <= 0:
        return 0
    columns = (
        table.parameter_bytes,
        table.activation_bytes,
        table.forward_s,
        table.backward_s,
        table.is_split,
    )
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    middle = -(-spare // 2)
    starts = range(spare + 1)
    return min(starts, key=lambda k: (len(set(rows[k : k + count])), abs(k - middle)))


# PHAZE's placement as a restriction of the profile partitioner: one t, uniform d
# -------------------------------------------------------------------------------
# The partitioner (Piper's problem) chooses degrees per stage and minimises the slowest stage's time
# per sample. Restricted to one tensor degree t and one replica on s·t devices it finds the least
# load L(j, s) of layers j … n − 1 in at most s stages, where a microbatch that crosses a cut is
# charged to both ends, as here, and stage k from the end holds k microbatches, as here. A batch is
# then the best of
#
#     max(load of layers 0 … j − 1, L(j, s − 1)) · (ceil(N / d) + s − 1) + gradients of stage 0
#
# over t, d, s and j. Fewer stages than s only make rounds fewer, so "at most" is enough. This is
# how the two problems are one; `place_case` solves it thousands of times faster.

Stages = tuple[tuple[int, ...], ...]


def place_by_profile(
    case: PlacementCase, *, rules: PlacementRules, budget: Budget
) -> PlacementOutcome:
    """The optimum of a chain by the published rules, from the profile partitioner.

    Raises `UnsupportedFeature` for what its costs cannot say: recomputation, edges that skip
    layers, stages of which only some take t devices, gradients of any stage but the first.
    """
    started_s = budget.cpu_s
    best: tuple[PlacedPlan, PlacedCost] | None = None
    for table in case.widths:
        _refuse(table, case, rules)
        best = _Width(table, case, rules, budget).improve(best)
    status = Status.OPTIMAL if best else Status.INFEASIBLE
    if budget.stopped:
        status = Status.GAP if best else Status.UNKNOWN
    return PlacementOutcome(
        status=status,
        plan=best[0] if best else None,
        cost=best[1] if best else None,
        lower_bound_s=best[1].time_s if best and status is Status.OPTIMAL else 0.0,
        solver_s=budget.cpu_s - started_s,
    )


def _refuse(table: WidthTable, case: PlacementCase, rules: PlacementRules) -> None:
    pairs = {(edge.source, edge.target) for edge in table.edges}
    chain = {(v, v + 1) for v in range(table.num_layers - 1)}
    reasons = {
        "recomputation": case.recompute,
        "edges that skip layers": pairs != chain or len(table.edges) != len(chain),
        "stages on fewer devices than t": table.tensor_parallel > 1 and not table.is_split.all(),
        f"the cost model {rules.name}": not rules.sync_first_stage or rules.caps_in_flight,
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnsupportedFeature(
                f"the profile partitioner cannot express {reason}", alternative="use planner exact"
            )


@dataclass(frozen=True, slots=True)
class _Width:
    """One tensor width, and what the partitioner says about its suffixes."""

    table: WidthTable
    case: PlacementCase
    rules: PlacementRules
    budget: Budget

    def improve(
        self, best: tuple[PlacedPlan, PlacedCost] | None
    ) -> tuple[PlacedPlan, PlacedCost] | None:
        """The better of `best` and the best placement at this width."""
        setting, width = self.case.setting, self.table.tensor_parallel
        suffix = cache(self._suffix)
        for d in range(1, min(setting.num_devices // width, setting.num_microbatches) + 1):
            for stages in range(1, min(setting.num_devices // (d * width), self._layers) + 1):
                for first in range(1, self._layers - stages + 2):
                    best_s = best[1].time_s if best else math.inf
                    if self.budget.stopped or self._bound_s(d, stages, first) >= best_s:
                        continue
                    rest = suffix(first, stages - 1)
                    if rest is not None:
                        best = self._better(best, (tuple(range(first)), *rest), d)
        return best

    @property
    def _layers(self) -> int:
        return self.table.num_layers

    def _work_s(self, first: int, last: int) -> float:
        table = self.table
        return float((table.forward_s[first:last] + table.backward_s[first:last]).sum())

    def _bound_s(self, d: int, stages: int, first: int) -> float:
        """No placement with this first stage is faster: its work, and an even share of the rest."""
        setting, rules = self.case.setting, self.rules
        load_s = self._work_s(0, first)
        if stages > 1:
            load_s = max(load_s, self._work_s(first, self._layers) / (stages - 1))
        sync_bytes = rules.sync_factor * float(self.table.parameter_bytes[:first].sum())
        sync_s = sync_bytes * (d - 1) / (d * setting.bandwidth_bytes_per_s)
        return load_s * (-(-setting.num_microbatches // d) + stages - 1) + sync_s

    def _suffix(self, first: int, stages: int) -> Stages | None:
        """The best cut of layers `first` … in at most `stages` stages, `None` where none fits."""
        if first == self._layers:
            return ()
        if stages == 0:
            return None
        width = self.table.tensor_parallel
        found = solve(
            _profile(self.table, first, self.case, self.rules),
            Setting(
                num_devices=stages * width,
                memory_bytes=self.case.setting.memory_bytes,
                bandwidth_bytes_per_s=self.case.setting.bandwidth_bytes_per_s,
                num_microbatches=stages,  # the partitioner fills its pipelines
            ),
            restrictions=Restrictions(data_degrees=(1,), tensor_degrees=(width,)),
            budget=self.budget,
        )
        if found.plan is None:
            return None
        return tuple(tuple(sorted(stage.layers)) for stage in found.plan.stages)

    def _better(
        self, best: tuple[PlacedPlan, PlacedCost] | None, stages: Stages, d: int
    ) -> tuple[PlacedPlan, PlacedCost] | None:
        ids, depth = self.table.layer_ids, len(stages)
        plan = PlacedPlan(
            tensor_parallel=self.table.tensor_parallel,
            data_parallel=d,
            stages=tuple(tuple(ids[v] for v in stage) for stage in stages),
            recomputes=(False,) * depth,
            depth=depth,
            positions=tuple(range(depth)),
        )
        cost = price_placement(plan, self.case, self.rules)
        better = best is None or cost.time_s < best[1].time_s
        return (plan, cost) if better and fits(cost, self.case) else best


def _profile(table: WidthTable, first: int, case: PlacementCase, rules: PlacementRules) -> Profile:
    """Layers `first` … as a profile: a cut edge costs both ends half of what Piper would charge."""
    count = table.num_layers - first
    duration_s = (table.forward_s + table.backward_s)[first:].copy()
    entering = [edge.bytes for edge in table.edges if edge.target == first]
    duration_s[0] += sum(entering) / case.setting.bandwidth_bytes_per_s
    nothing = np.zeros(count)
    return Profile(
        structure=Structure(
            layers=tuple(
                Layer(id=v, name="", layer_class=v - first) for v in range(first, first + count)
            ),
            edges=tuple(
                Edge(source=e.source - first, target=e.target - first, bytes=e.bytes / 2)
                for e in table.edges
                if e.source >= first
            ),
        ),
        costs=CostTable(
            class_offsets=np.arange(count + 1),
            option_ids=("",) * count,
            tensor_parallel=np.full(count, table.tensor_parallel),
            recompute=(Recompute.NONE,) * count,
            duration_s=duration_s,
            saved_until_input_grad_bytes=table.activation_bytes[first:].copy(),
            saved_until_weight_grad_bytes=nothing.copy(),
            transient_bytes=nothing.copy(),
            static_bytes=np.zeros((count, 2, len(StaticKind))),
            opaque_static_bytes=rules.copies[case.optimizer] * table.parameter_bytes[first:],
            gradient_sync_bytes=np.zeros((count, 2)),
            boundary_offsets=np.zeros(count + 1, dtype=np.int64),
            boundary_bytes=np.zeros(0),
            provenance=Provenance(origin=Origin.IMPORTED, source="placement input"),
        ),
        point=ProfilePoint(tensor_parallel=(table.tensor_parallel,)),
    )


# A placement problem answered: the optimum, the fixed strategy beside it, or why nothing fits
# --------------------------------------------------------------------------------------------

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
