"""One door to the ways of partitioning a profile: the exact search and the equal split."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from trainwright.errors import Fault, InvalidInput
from trainwright.execution import Budget
from trainwright.partitioning import downset_dp
from trainwright.partitioning.evaluate import (
    PriceList,
    evaluate,
    exchanged_share,
    find_faults,
    find_overflows,
    price,
    read_prices,
    time_per_sample_s,
)
from trainwright.plans import Plan, Stage
from trainwright.plans.status import (
    OPTIMAL_TOLERANCE,
    Baseline,
    Binding,
    Relaxation,
    Status,
    relative_gap,
)
from trainwright.plugins import PlugIn
from trainwright.profile import Profile, Setting, Structure
from trainwright.profile.profile import BLOCK_LAYER
from trainwright.units import format_bytes, format_bytes_up

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Ints

# The equal-split baseline: as many like stages as possible, everything else uniform
# ----------------------------------------------------------------------------------
# The planner of PipeDream-2BW (Narayanan et al., ICML 2021) as Piper's evaluation uses it. The
# *block* layers of a repetitive model are dealt out evenly to b stages; layers before them join the
# first stage or form one, layers after them likewise at the end. One data-parallel degree, one
# tensor-parallel degree and one option id hold for all layers. Every combination is tried.
#
# With equal degrees the microbatches in flight of stage i of m are m − i whatever the degree, so
# memory decides once per (split, option) and all degrees are timed in one array operation. This
# screening ranks the combinations; the public evaluator then decides among the leaders. Cost:
# O(blocks · options · (layers + edges + stages · degrees)).


_SCREENING_SLACK: Final = 1e-9  # far above the rounding of the screening, far below any difference


def plan_equal(
    profile: Profile,
    setting: Setting,
    *,
    block_layer: str | None = BLOCK_LAYER,
    restrictions: downset_dp.Restrictions = downset_dp.UNRESTRICTED,
) -> Plan | None:
    """Return the fastest equal split of `profile`, or `None` where none fits into memory.

    Blocks are the layers named `block_layer`; with `None` all layers are blocks. Among equally fast
    plans the fewest devices win, then the fewest stages, then the smallest tensor-parallel degree.
    Raises `InvalidInput` if no layer has that name.
    """
    prices = read_prices(profile)
    choices = _uniform_choices(profile, prices, restrictions)
    degrees = np.array(downset_dp.surviving_data_degrees(setting, restrictions), dtype=np.int64)
    with np.errstate(over="ignore"):  # a time beyond all floats is a bad time, not a fault
        candidates = [
            candidate
            for split in _splits(profile.structure, block_layer, setting.num_devices)
            for choice in choices
            for candidate in _screen(split, choice, degrees, profile.structure, setting)
        ]
    return _fastest(sorted(candidates), prices, setting)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """Layers dealt to stages: `stage_of` by layer index, layers listed in topological order."""

    separate: bool
    num_stages: int
    stage_of: Ints
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """One (tensor-parallel degree, option id) that all layers offer, and what it costs them.

    `rank` is the position of the option in the cost table.
    Durations and bytes have shape [layers]; `sent_bytes` and `received_bytes` have shape [edges],
    what a cut edge costs its source's and its target's stage.
    """

    tensor_parallel: int
    option: str
    rank: int
    duration_s: Floats
    gradient_sync_bytes: Floats
    saved_bytes: Floats
    static_bytes: Floats
    sent_bytes: Floats
    received_bytes: Floats


class _Candidate(NamedTuple):
    """A combination; sorting puts the fastest first and breaks ties before it meets the split."""

    screened_s: float
    num_devices: int
    num_stages: int
    tensor_parallel: int
    rank: int
    separate: bool
    split: _Split
    option: str

    @property
    def data_parallel(self) -> int:
        """Replicas of every stage."""
        return self.num_devices // (self.num_stages * self.tensor_parallel)


def _uniform_choices(
    profile: Profile, prices: PriceList, restrictions: downset_dp.Restrictions
) -> tuple[_Choice, ...]:
    kept = downset_dp.surviving_rows(profile.costs, restrictions)
    offers = [prices.options_of(index) for index in range(len(prices.layer_ids))]
    return tuple(
        _choice(t, option, np.array([offer[t, option] for offer in offers]), profile, prices)
        for t, option in offers[0]
        if all((row := offer.get((t, option))) is not None and kept[row] for offer in offers)
    )


def _choice(t: int, option: str, rows: Ints, profile: Profile, prices: PriceList) -> _Choice:
    costs = profile.costs
    sent = [e.bytes + prices.sync_bytes(rows[e.source], e.source_slot) for e in prices.edges]
    received = [e.bytes + prices.sync_bytes(rows[e.target], e.target_slot) for e in prices.edges]
    return _Choice(
        tensor_parallel=t,
        option=option,
        rank=int(rows[0]),
        duration_s=costs.duration_s[rows],
        gradient_sync_bytes=costs.gradient_sync_bytes[rows].sum(axis=1),
        saved_bytes=costs.saved_bytes[rows],
        static_bytes=costs.total_static_bytes[rows],
        sent_bytes=np.array(sent, dtype=np.float64),
        received_bytes=np.array(received, dtype=np.float64),
    )


def _splits(structure: Structure, block_layer: str | None, num_devices: int) -> Iterator[_Split]:
    """Every legal way to deal the blocks to at most `num_devices` stages.

    The last n mod b of b stages get one block more. Groups of outer layers can stand alone only
    where both exist.
    """
    order = _topological_order(structure)
    blocks, initial, final = _group_layers(structure, block_layer, order)
    for separate in (False, True) if initial and final else (False,):
        offset = int(separate)
        for num_block_stages in range(1, min(len(blocks), num_devices - 2 * offset) + 1):
            q, r = divmod(len(blocks), num_block_stages)
            sizes = [q] * (num_block_stages - r) + [q + 1] * r
            last = num_block_stages - 1 + 2 * offset
            stage_of = np.zeros(len(order), dtype=np.int64)
            stage_of[final] = last
            stage_of[blocks] = np.repeat(np.arange(num_block_stages), sizes) + offset
            if all(stage_of[edge.source] <= stage_of[edge.target] for edge in structure.edges):
                yield _Split(separate=separate, num_stages=last + 1, stage_of=stage_of, order=order)


def _topological_order(structure: Structure) -> tuple[int, ...]:
    """Kahn's algorithm with a stack, scanning layers and out-edges in the order of the input."""
    waiting = [len(edges) for edges in structure.in_edges()]
    out_edges = structure.out_edges()
    stack = [index for index, count in enumerate(waiting) if count == 0]
    order = []
    while stack:
        order.append(index := stack.pop())
        for edge in out_edges[index]:
            target = structure.edges[edge].target
            waiting[target] -= 1
            if waiting[target] == 0:
                stack.append(target)
    return tuple(order)


def _group_layers(
    structure: Structure, block_layer: str | None, order: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """Blocks, other layers that some block depends on, and the rest, each in topological order."""
    names = [layer.name for layer in structure.layers]
    is_block = [block_layer is None or name == block_layer for name in names]
    if not any(is_block):
        problem = f'must be the name of at least one layer, got "{block_layer}"'
        raise InvalidInput.of("block_layer", problem)
    precedes_block = [False] * len(names)
    out_edges = structure.out_edges()
    for index in reversed(order):
        targets = [structure.edges[edge].target for edge in out_edges[index]]
        precedes_block[index] = any(is_block[v] or precedes_block[v] for v in targets)
    blocks = [index for index in order if is_block[index]]
    initial = [index for index in order if not is_block[index] and precedes_block[index]]
    final = [index for index in order if not is_block[index] and not precedes_block[index]]
    return blocks, initial, final


def _screen(
    split: _Split, choice: _Choice, degrees: Ints, structure: Structure, setting: Setting
) -> list[_Candidate]:
    """Time a split at every data-parallel degree that the devices allow, if it fits into memory."""
    num_stages, t = split.num_stages, choice.tensor_parallel
    allowed = degrees[num_stages * degrees * t <= setting.num_devices]
    allowed = allowed[num_stages * allowed <= setting.num_microbatches]
    if not len(allowed) or not _fits(split, choice, setting):
        return []
    times = _times(split, choice, allowed, structure, setting)
    return [
        _Candidate(
            screened_s=time_s,
            num_devices=num_stages * d * t,
            num_stages=num_stages,
            tensor_parallel=t,
            rank=choice.rank,
            separate=split.separate,
            split=split,
            option=choice.option,
        )
        for time_s, d in zip(times.tolist(), allowed.tolist(), strict=True)
    ]


def _fits(split: _Split, choice: _Choice, setting: Setting) -> bool:
    in_flight = np.arange(split.num_stages, 0, -1)[split.stage_of]
    needed = np.bincount(split.stage_of, choice.saved_bytes * in_flight + choice.static_bytes)
    return bool(needed.max() <= setting.memory_bytes * (1 + _SCREENING_SLACK))


def _times(
    split: _Split, choice: _Choice, degrees: Ints, structure: Structure, setting: Setting
) -> Floats:
    """Time of the slowest stage at each degree, shape [degrees]."""
    ends = np.array([(e.source, e.target) for e in structure.edges], dtype=np.int64).reshape(-1, 2)
    sender, receiver = split.stage_of[ends[:, 0]], split.stage_of[ends[:, 1]]
    cut, size, bandwidth = sender != receiver, split.num_stages, setting.bandwidth_bytes_per_s
    cut_bytes = np.bincount(sender[cut], choice.sent_bytes[cut], size)
    cut_bytes += np.bincount(receiver[cut], choice.received_bytes[cut], size)
    sync_bytes = np.bincount(split.stage_of, choice.gradient_sync_bytes)
    d = degrees[:, np.newaxis]
    base_s = np.bincount(split.stage_of, choice.duration_s) + 2 * (cut_bytes / bandwidth)
    share = exchanged_share(d, setting.num_microbatches)
    sync_s = share * np.minimum(sync_bytes, np.finfo(np.float64).max) / bandwidth
    times: Floats = (base_s / d + sync_s).max(axis=1)
    return times


def _fastest(candidates: Sequence[_Candidate], prices: PriceList, setting: Setting) -> Plan | None:
    """Price candidates exactly, in screened order, until no later one can win."""
    best: Plan | None = None
    best_key: tuple[float, _Candidate] | None = None
    for candidate in candidates:
        if best_key and candidate.screened_s >= best_key[0] * (1 + _SCREENING_SLACK):
            break
        plan = _build(candidate, prices, setting)
        stage_costs = price(plan, prices, setting)
        if find_overflows(stage_costs, setting):
            continue
        key = (time_per_sample_s(stage_costs), candidate._replace(screened_s=0.0))
        if best_key is None or key < best_key:
            best, best_key = plan, key
    return best


def _build(candidate: _Candidate, prices: PriceList, setting: Setting) -> Plan:
    layers: list[list[int]] = [[] for _ in range(candidate.num_stages)]
    for index in candidate.split.order:
        layers[candidate.split.stage_of[index]].append(prices.layer_ids[index])
    return Plan(
        stages=tuple(
            Stage.uniform(
                tuple(stage),
                (candidate.option,) * len(stage),
                data_parallel=candidate.data_parallel,
                tensor_parallel=candidate.tensor_parallel,
            )
            for stage in layers
        ),
        num_microbatches=setting.num_microbatches,
    )


# ----------------------------------------------------------------------------------------------


# Does any plan fit at all? The partitioning problem with its times removed
# -------------------------------------------------------------------------
# Feasibility ignores time, so the question is asked of a profile whose durations and traffic are
# zero: the partitioner then only has to find stages that fit. More memory and more devices never
# hurt, so the least amounts are bisected; the leanest plan found then says exactly what it needs.

_TOLERANCE: Final = 1e-4
_HAIR: Final = 1e-9
_MAX_STEPS: Final = 20
_MAX_DEVICES: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Feasibility:
    """A profile without times, in a setting, under restrictions; `budget` bounds the searching."""

    profile: Profile
    setting: Setting
    restrictions: downset_dp.Restrictions
    budget: Budget

    @classmethod
    def of(
        cls,
        profile: Profile,
        setting: Setting,
        *,
        restrictions: downset_dp.Restrictions,
        budget: Budget,
    ) -> Feasibility:
        """The question whether `profile` fits."""
        return cls(
            profile=_without_times(profile),
            setting=setting,
            restrictions=restrictions,
            budget=budget,
        )

    def outcome(self) -> downset_dp.PartitionOutcome:
        """A plan that fits, or the proof that none does, or neither where time ran out."""
        return downset_dp.solve(
            self.profile, self.setting, restrictions=self.restrictions, budget=self.budget
        )

    def fits(self) -> bool:
        """Whether a plan that fits was found."""
        return self.outcome().plan is not None

    def with_memory(self, memory_bytes: float) -> Feasibility:
        """The same question for devices of another size."""
        return replace(self, setting=replace(self.setting, memory_bytes=memory_bytes))

    def with_devices(self, num_devices: int) -> Feasibility:
        """The same question for another number of devices."""
        return replace(self, setting=replace(self.setting, num_devices=num_devices))

    def with_restrictions(self, restrictions: downset_dp.Restrictions) -> Feasibility:
        """The same question under other restrictions."""
        return replace(self, restrictions=restrictions)

    def least_per_layer(self) -> list[float]:
        """For each layer the least bytes of one microbatch over all its options; inf if none."""
        costs = self.profile.costs
        kept = downset_dp.surviving_rows(costs, self.restrictions)
        kept &= costs.tensor_parallel <= self.setting.num_devices
        with np.errstate(over="ignore"):
            total = costs.saved_bytes + costs.total_static_bytes
        need = np.where(kept, np.minimum(total, sys.float_info.max), np.inf)
        by_class = [float(need[costs.rows_of(c)].min()) for c in range(costs.num_classes)]
        return [by_class[layer.layer_class] for layer in self.profile.structure.layers]

    def least_memory(self) -> float | None:
        """The least bytes per device at which a plan fits; `None` where no amount is enough.

        It is what the leanest plan found needs: exactly the least, or, where many plans need nearly
        the same or time runs out, an amount that is enough (within 1e-4 of the least with time).
        """
        high = self._need_at(sys.float_info.max)
        if high is None:
            return None
        low = max(self.least_per_layer()) * (1 - _HAIR)
        while high > low * (1 + _TOLERANCE) and not self.budget.stopped:
            middle = (low * high) ** 0.5 if low > 0 else high / 2
            need = self._need_at(middle)
            low, high = (middle, high) if need is None else (low, min(need, middle))
        for _ in range(_MAX_STEPS):
            need = self._need_at(high * (1 - _HAIR)) if high > low else None
            if need is None:
                break
            high = need
        return high

    def _need_at(self, memory_bytes: float) -> float | None:
        """What the fullest device of some plan that fits into `memory_bytes` needs."""
        costs = self.with_memory(memory_bytes).outcome().stage_costs
        return max((cost.memory_bytes for cost in costs), default=None)

    def fewest_devices(self) -> int | None:
        """The fewest devices on which a plan fits, at least those of the setting."""
        low, setting = self.setting.num_devices, self.setting
        most = setting.num_microbatches * int(self.profile.costs.tensor_parallel.max())
        high = max(low, min(_MAX_DEVICES, most))
        if low == high or not self.with_devices(high).fits():
            return None
        while high - low > 1 and not self.budget.stopped:
            middle = (low + high) // 2
            low, high = (low, middle) if self.with_devices(middle).fits() else (middle, high)
        return high


def _without_times(profile: Profile) -> Profile:
    costs = profile.costs
    free = replace(
        costs,
        duration_s=np.zeros_like(costs.duration_s),
        gradient_sync_bytes=np.zeros_like(costs.gradient_sync_bytes),
        boundary_offsets=np.zeros_like(costs.boundary_offsets),
        boundary_bytes=np.zeros(0),
        phases=None,
        time_by_kind_s=None,
    )
    edges = tuple(replace(edge, bytes=0.0) for edge in profile.structure.edges)
    return replace(profile, costs=free, structure=replace(profile.structure, edges=edges))


# Why no plan fits, and the smallest single changes that each make one fit
# ------------------------------------------------------------------------
# What binds is the first of: a layer that no allowed option serves, a layer too large on its own, a
# stage of the leanest plan. Every change that is offered was tried: a plan that fits was found.


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What cannot fit, where time was enough to say, and changes that would each be enough."""

    binding: Binding | None
    relaxations: tuple[Relaxation, ...]


def diagnose(
    profile: Profile, setting: Setting, *, restrictions: downset_dp.Restrictions, budget: Budget
) -> Diagnosis:
    """Explain an infeasible problem; the budget bounds how finely the changes are searched."""
    question = Feasibility.of(profile, setting, restrictions=restrictions, budget=budget)
    memory_bytes = question.least_memory()
    return Diagnosis(
        binding=find_binding(question, memory_bytes),
        relaxations=tuple(_relaxations(question, memory_bytes)),
    )


def find_binding(
    question: Feasibility, memory_bytes: float | None, *, reserve_bytes: float = 0.0
) -> Binding | None:
    """What cannot fit; `memory_bytes` is the question's least memory.

    `None` where no single layer is too large and the budget ran out while all were looked at.

    `reserve_bytes` were taken off each device before the question was asked; what is printed counts
    them as needed.
    """
    needs = question.least_per_layer()
    largest = max(range(len(needs)), key=needs.__getitem__)
    layer = question.profile.structure.layers[largest].id
    missing = needs[largest] - question.setting.memory_bytes
    if needs[largest] == float("inf"):
        return Binding(
            kind="devices",
            layers=(layer,),
            missing_bytes=0.0,
            description=f"layer {layer} offers no option that "
            f"{question.setting.num_devices} devices and the chosen restrictions allow",
        )
    if missing > 0:
        return Binding(
            kind="layer",
            layers=(layer,),
            missing_bytes=missing,
            description=f"layer {layer} alone needs {format_bytes(needs[largest] + reserve_bytes)} "
            f"with one microbatch in flight, {format_bytes(missing)} more than a device has",
        )
    if question.budget.stopped:
        return None
    if memory_bytes is None:
        return Binding(
            kind="devices",
            layers=(),
            missing_bytes=0.0,
            description=f"{question.setting.num_devices} devices are too few for the tensor "
            "degrees that the layers offer, whatever their memory",
        )
    return _oversized_stage(question, memory_bytes, reserve_bytes)


def _oversized_stage(question: Feasibility, memory_bytes: float, reserve_bytes: float) -> Binding:
    """Each layer fits alone, but no cut fits: name the heaviest stage of the least-memory plan."""
    outcome = question.with_memory(memory_bytes).outcome()
    costs = [cost.memory_bytes for cost in outcome.stage_costs]
    layers: tuple[int, ...] = ()
    needed, which = memory_bytes, "a stage"
    if outcome.plan is not None:
        heaviest = max(range(len(costs)), key=costs.__getitem__)
        layers, needed = outcome.plan.stages[heaviest].layers, costs[heaviest]
        which = f"a stage ({heaviest}, counted from 0, of {len(costs)})"
    missing = needed - question.setting.memory_bytes
    return Binding(
        kind="stage",
        layers=layers,
        missing_bytes=missing,
        description=f"each layer fits alone, but even the leanest plan has {which} that needs "
        f"{format_bytes(needed + reserve_bytes)}, {format_bytes(missing)} more than a device has",
    )


def _relaxations(question: Feasibility, memory_bytes: float | None) -> Iterator[Relaxation]:
    if memory_bytes is not None:
        more = memory_bytes - question.setting.memory_bytes
        yield Relaxation(
            change="memory",
            value=memory_bytes,
            description=f"{format_bytes_up(memory_bytes)} per device ({format_bytes(more)} more)",
        )
    devices = question.fewest_devices()
    if devices is not None:
        yield Relaxation(
            change="devices",
            value=devices,
            description=f"{devices} devices ({devices - question.setting.num_devices} more)",
        )
    for fix, restrictions in lifted(question.restrictions):
        if question.with_restrictions(restrictions).fits():
            yield fix


def lifted(
    restrictions: downset_dp.Restrictions,
) -> Iterator[tuple[Relaxation, downset_dp.Restrictions]]:
    """Each thing that was switched off, with the restrictions that allow it."""
    if not restrictions.recompute:
        fix = Relaxation(change="recompute", description="allow recomputation")
        yield fix, replace(restrictions, recompute=True)
    if not restrictions.tensor_parallel:
        fix = Relaxation(change="tensor-parallel", description="allow tensor parallelism")
        yield fix, replace(restrictions, tensor_parallel=True)
    if not restrictions.data_parallel:
        fix = Relaxation(change="data-parallel", description="allow data parallelism")
        yield fix, replace(restrictions, data_parallel=True)
    for option in sorted(restrictions.excluded_options):
        fix = Relaxation(change="exclude-option", description=f'allow the option "{option}"')
        kept = restrictions.excluded_options - {option}
        yield fix, replace(restrictions, excluded_options=kept)


# One door to the ways of partitioning a profile: the exact search and the equal split
# ------------------------------------------------------------------------------------


def search(
    profile: Profile,
    setting: Setting,
    *,
    restrictions: downset_dp.Restrictions,
    planner: str | PlugIn,
    block_layer: str | None,
    budget: Budget,
) -> downset_dp.PartitionOutcome:
    """The outcome of the named planner, "exact" or "equal", or of somebody else's."""
    if isinstance(planner, PlugIn):
        return judged(planner, profile, setting, restrictions=restrictions, budget=budget)
    if planner == "exact":
        found = downset_dp.solve(profile, setting, restrictions=restrictions, budget=budget)
        return downset_dp.recompute_least(found, profile, setting, restrictions=restrictions)
    return equal_split(
        profile, setting, restrictions=restrictions, block_layer=block_layer, budget=budget
    )


def judged(
    planner: PlugIn,
    profile: Profile,
    setting: Setting,
    *,
    restrictions: downset_dp.Restrictions,
    budget: Budget,
) -> downset_dp.PartitionOutcome:
    """The plan of somebody else's partitioner, priced as ours, with the bound that ours proves.

    Raises `InvalidInput` with its name and every rule that the plan breaks; a plan must fit.
    """
    started_s = budget.cpu_s
    plan = planner.call(Plan, profile, setting, restrictions)
    solver_s = budget.cpu_s - started_s
    best = downset_dp.solve(profile, setting, restrictions=restrictions, budget=budget)
    if plan is None:
        if best.status is Status.INFEASIBLE:
            return replace(best, solver_s=solver_s)
        return downset_dp.PartitionOutcome(
            status=Status.UNKNOWN,
            plan=None,
            stage_costs=(),
            time_per_sample_s=None,
            lower_bound_s=best.lower_bound_s,
            solver_s=solver_s,
        )
    prices = read_prices(profile)
    if faults := find_faults(plan, prices, setting):
        raise planner.faults(faults)
    if faults := tuple(_restricted(plan, profile, setting, restrictions)):
        raise planner.faults(faults)
    costs = price(plan, prices, setting)
    for over in find_overflows(costs, setting):
        missing = format_bytes_up(over.missing_bytes)
        raise planner.fault(f"has a stage ({over.stage}) that needs {missing} more than there is")
    time_s = time_per_sample_s(costs)
    is_best = relative_gap(time_s, best.lower_bound_s) <= OPTIMAL_TOLERANCE
    return downset_dp.PartitionOutcome(
        status=Status.OPTIMAL if is_best else Status.GAP,
        plan=plan,
        stage_costs=costs,
        time_per_sample_s=time_s,
        lower_bound_s=min(best.lower_bound_s, time_s),
        solver_s=solver_s,
        interrupted=best.interrupted,
    )


def _restricted(
    plan: Plan, profile: Profile, setting: Setting, restrictions: downset_dp.Restrictions
) -> Iterator[Fault]:
    """Degrees and options that the plan uses and the restrictions exclude."""
    kept, costs = downset_dp.surviving_rows(profile.costs, restrictions), profile.costs
    rows = np.flatnonzero(kept).tolist()
    allowed = {(int(costs.tensor_parallel[row]), costs.option_ids[row]) for row in rows}
    degrees = downset_dp.surviving_data_degrees(setting, restrictions)
    for index, stage in enumerate(plan.stages):
        if stage.data_parallel not in degrees:
            yield Fault(f"stages[{index}]", f"data parallel {stage.data_parallel} is not allowed")
        for option in sorted(
            {o for o in stage.options if (stage.tensor_parallel, o) not in allowed}
        ):
            yield Fault(f"stages[{index}]", f"option {option} is not allowed")


def equal_split(
    profile: Profile,
    setting: Setting,
    *,
    restrictions: downset_dp.Restrictions,
    block_layer: str | None,
    budget: Budget,
) -> downset_dp.PartitionOutcome:
    """The best equal split. It proves nothing, so its bound is 0 and it is never `infeasible`."""
    started_s = budget.cpu_s
    plan = plan_equal(profile, setting, restrictions=restrictions, block_layer=block_layer)
    costs = evaluate(plan, profile, setting) if plan is not None else ()
    return downset_dp.PartitionOutcome(
        status=Status.UNKNOWN if plan is None else Status.GAP,
        plan=plan,
        stage_costs=costs,
        time_per_sample_s=time_per_sample_s(costs) if plan is not None else None,
        lower_bound_s=0.0,
        solver_s=budget.cpu_s - started_s,
    )


# The same problem under restricted modes and by equal splitting, beside the full optimum
# ---------------------------------------------------------------------------------------
# The modes are those of the Piper paper: no data parallelism, no tensor parallelism, no activation
# recomputation; the equal splits are what a person writes by hand.


def baselines(
    profile: Profile,
    setting: Setting,
    *,
    restrictions: downset_dp.Restrictions,
    best_time_s: float | None,
    block_layer: str | None,
    budget: Budget,
) -> Iterator[Baseline]:
    """Each restricted mode and equal split, with its slowdown over `best_time_s`."""
    for name, planner, mode in _modes(restrictions):
        outcome = search(
            profile,
            setting,
            restrictions=mode,
            planner=planner,
            block_layer=block_layer,
            budget=budget,
        )
        yield Baseline(
            name=name,
            status=outcome.status,
            time_per_sample_s=outcome.time_per_sample_s,
            slowdown=slowdown(outcome.time_per_sample_s, best_time_s),
            num_stages=len(outcome.plan.stages) if outcome.plan else None,
        )


def _modes(
    restrictions: downset_dp.Restrictions,
) -> Iterator[tuple[str, str, downset_dp.Restrictions]]:
    """(name, planner, restrictions) of each comparison that differs from what was asked."""
    without_tensor = replace(restrictions, tensor_parallel=False)
    if restrictions.data_parallel:
        yield "no data parallelism", "exact", replace(restrictions, data_parallel=False)
    if restrictions.tensor_parallel:
        yield "no tensor parallelism", "exact", without_tensor
    if restrictions.recompute:
        yield "no recomputation", "exact", replace(restrictions, recompute=False)
    if restrictions.tensor_parallel:
        yield "equal split", "equal", restrictions
    yield "equal split, no tensor parallelism", "equal", without_tensor


def slowdown(time_s: float | None, best_time_s: float | None) -> float | None:
    """How many times as long as the best; `None` where one of them is missing or nothing."""
    if time_s is None or best_time_s is None or best_time_s <= 0:
        return None
    return time_s / best_time_s
