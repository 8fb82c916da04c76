"""The public evaluator of placements: what one costs, and which rules it breaks.

Independent of the search: every stage is replayed event by event, with layers in their stated
order. A layer starts when the one before it ends and everything that enters it from outside has
arrived, `bytes / bandwidth` after the stage could begin; backward runs in reverse, with what leaves
the stage; recomputing runs the forward once more, without transfers, before the backward. A batch
takes the slowest stage's load times (microbatches of a replica + stages − 1), and the gradients.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright._native import _core
from trainwright.errors import Fault, InvalidInput, UnsupportedFeature, one_of, refuse
from trainwright.execution import Budget, Progress
from trainwright.plans.status import OPTIMAL_TOLERANCE, Status, relative_gap
from trainwright.profile.profile import Optimizer, PlacementCase, Setting, WidthTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.arrays import Floats, Ints


# What a placement costs beyond its layers: the published rules, and ours
# -----------------------------------------------------------------------
# The published program charges the gradients of the first stage alone, at 4 (d - 1) / d of their
# bytes; counts an optimizer with state as one more copy of the parameters; recomputes in all stages
# but the last or in none; and gives every stage as many microbatches in flight as stages follow,
# however few there are. The native rules charge the slowest stage's ring all-reduce, 2 (d - 1) / d
# of its bytes; count the bytes that training in 16 bits with Adam really keeps, 16 per parameter;
# let each stage recompute only where it must; and hold no more microbatches than a replica has.

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
        raise InvalidInput.of("cost-model", one_of(COST_MODELS, cost_model))
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


# Placing a chain of layers at one tensor width, for one speed of the layers or for thousands
# -------------------------------------------------------------------------------------------
# The dynamic program of PHAZE (Wang et al., ICML 2024, section 4) with an exact, much smaller
# state; see `native/placement/placement.hpp` for the recurrence. Co-design asks the same
# question for every chip, so what does not depend on the chip (sizes, edges, what fits) is laid out
# once and only the times are handed over per design. A design of 98 layers on 1,024 devices takes 1
# to 2 ms.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedChains:
    """The best placement of each of A designs; `time_s` is of a batch, infinite where none fits.

    Design a has stages `stage_offset[a]` to `stage_offset[a + 1]`; stage k ends before layer
    `stage_end[k]`. `data_parallel` is 0 where nothing fits. `stopped` says that some designs were
    not looked at in full.
    """

    time_s: Floats
    data_parallel: Ints
    stage_offset: Ints
    stage_end: NDArray[np.int32]
    stopped: bool = False

    @property
    def num_stages(self) -> Ints:
        """Stages of each design, shape [A]; 0 where nothing fits."""
        return np.diff(self.stage_offset)

    def stages_of(self, design: int) -> tuple[range, ...]:
        """Layer indices of each stage of a design, in pipeline order."""
        ends = self.stage_end[self.stage_offset[design] : self.stage_offset[design + 1]].tolist()
        return tuple(range(a, b) for a, b in zip([0, *ends], ends, strict=False))


def place_many(
    forward_s: Floats,
    backward_s: Floats,
    table: WidthTable,
    setting: Setting,
    *,
    rules: PlacementRules,
    optimizer: Optimizer,
    recompute: bool,
    cutoff_s: Floats | None = None,
    max_data_parallel: int | None = None,
    poll: Callable[[], bool] | None = None,
) -> PlacedChains:
    """Place the layers of `table` with other times: `forward_s` and `backward_s`, shape [A, L].

    The times in the table itself are not read. A placement that takes longer than `cutoff_s`
    (seconds, shape [A]) is not looked for, and its design comes back infinite. `recompute` says
    whether activations may be computed again. Exact for chains; layers of a graph that branches
    are taken in the table's order. `poll` is asked a few times a second whether to stop; designs
    not reached then are infinite. The interpreter lock is released meanwhile.
    Raises `InvalidInput` for times of another shape.
    """
    shape = (forward_s.shape[0], table.num_layers)
    if forward_s.shape != shape or backward_s.shape != shape:
        wanted = f"must be of shape [designs, {table.num_layers}]"
        raise InvalidInput.of("times", f"{wanted}, got {forward_s.shape} and {backward_s.shape}")
    if cutoff_s is None:
        cutoff_s = np.full(shape[0], np.inf)
    found = _core.place_chain(
        forward_s=np.ascontiguousarray(forward_s, np.float64),
        backward_s=np.ascontiguousarray(backward_s, np.float64),
        cutoff_s=np.ascontiguousarray(cutoff_s, np.float64),
        layers=native_layers(table, rules.copies[optimizer]),
        memory_bytes=setting.memory_bytes,
        recompute=recompute_mode(rules, recompute=recompute),
        rules=native_rules(table, setting, rules, max_data_parallel),
        poll=poll,
    )
    return PlacedChains(**found)


def native_layers(table: WidthTable, copies: float) -> _core.PlacementLayers:
    """Sizes and edges for the core, with `copies` of the parameters in memory."""
    return _core.PlacementLayers(
        parameter_bytes=table.parameter_bytes,
        static_bytes=table.parameter_bytes * copies,
        activation_bytes=table.activation_bytes,
        is_split=table.is_split.astype(np.uint8),
        edge_source=np.array([edge.source for edge in table.edges], dtype=np.int32),
        edge_target=np.array([edge.target for edge in table.edges], dtype=np.int32),
        edge_bytes=np.array([edge.bytes for edge in table.edges], dtype=np.float64),
    )


def native_rules(
    table: WidthTable, setting: Setting, rules: PlacementRules, max_data_parallel: int | None
) -> _core.PlacementRules:
    """The machine and the rules for the core."""
    return _core.PlacementRules(
        tensor_parallel=table.tensor_parallel,
        num_devices=setting.num_devices,
        num_microbatches=setting.num_microbatches,
        max_data_parallel=max_data_parallel or setting.num_devices,
        bandwidth_bytes_per_s=setting.bandwidth_bytes_per_s,
        sync_factor=rules.sync_factor,
        sync_first_stage=rules.sync_first_stage,
        cap_in_flight=rules.caps_in_flight,
    )


def recompute_mode(rules: PlacementRules, *, recompute: bool) -> str:
    """When stages recompute, in the core's words."""
    if not recompute:
        return "never"
    return "per_stage" if rules.recompute_by_stage else "always"


# The public evaluator of placements: what one costs, and which rules it breaks
# -----------------------------------------------------------------------------

MEMORY_TOLERANCE: Final = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPlan:
    """Stages as layer ids in the order they run, at one tensor width and one number of replicas.

    `recomputes` has an entry per stage, and so has `positions`: where in a pipeline of `depth`
    stages it stands, for a fixed strategy may leave stages empty. Such a strategy also gives every
    stage `tensor_parallel` devices; a search gives one to a stage without split layers.
    """

    tensor_parallel: int
    data_parallel: int
    stages: tuple[tuple[int, ...], ...]
    recomputes: tuple[bool, ...]
    depth: int
    positions: tuple[int, ...]
    narrow_stages: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStageCost:
    """One stage of one replica: seconds per microbatch and bytes per device.

    `backward_s` contains what is recomputed, both contain transfers into the stage.
    """

    num_devices: int
    forward_s: float
    backward_s: float
    memory_bytes: float
    parameter_bytes: float
    microbatches_in_flight: int

    @property
    def load_s(self) -> float:
        """What the stage does for each microbatch."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedCost:
    """A batch: `rounds` of the slowest stage, then the synchronisation of gradients."""

    time_s: float
    rounds: int
    gradient_sync_s: float
    devices_used: int
    stages: tuple[PlacedStageCost, ...]

    @property
    def peak_memory_bytes(self) -> float:
        """The fullest device."""
        return max(stage.memory_bytes for stage in self.stages)


def price_placement(plan: PlacedPlan, case: PlacementCase, rules: PlacementRules) -> PlacedCost:
    """Price a placement, whether it fits into memory or not; raises `InvalidInput` for the rest."""
    refuse(_faults(plan, case))
    table = case.at_width(plan.tensor_parallel)
    assert table is not None
    stages = tuple(
        _price_stage(plan, index, table, case, rules) for index in range(len(plan.stages))
    )
    replicas, setting = plan.data_parallel, case.setting
    synchronised = stages[:1] if rules.sync_first_stage else stages
    heaviest_bytes = max(stage.parameter_bytes for stage in synchronised)
    sync_s = (
        rules.sync_factor
        * (replicas - 1)
        * heaviest_bytes
        / (setting.bandwidth_bytes_per_s * replicas)
    )
    rounds = -(-setting.num_microbatches // replicas) + plan.depth - 1
    return PlacedCost(
        time_s=max(stage.load_s for stage in stages) * rounds + sync_s,
        rounds=rounds,
        gradient_sync_s=sync_s,
        devices_used=_devices(plan, stages),
        stages=stages,
    )


def fits(cost: PlacedCost, case: PlacementCase) -> bool:
    """Whether every stage fits into a device, and all of them on the devices there are."""
    room_bytes = case.setting.memory_bytes * (1 + MEMORY_TOLERANCE)
    return cost.peak_memory_bytes <= room_bytes and cost.devices_used <= case.setting.num_devices


def needs_recompute(
    layers: Sequence[int], held: int, table: WidthTable, case: PlacementCase, rules: PlacementRules
) -> bool:
    """Whether a stage (layer indices) that holds `held` microbatches recomputes."""
    if not case.recompute or held <= 1:
        return False
    if not rules.recompute_by_stage:
        return True
    kept = _memory_bytes(layers, held, table, case, rules, recompute=False)
    return kept > case.setting.memory_bytes * (1 + MEMORY_TOLERANCE)


def held_by(position: int, depth: int, data_parallel: int, case: PlacementCase, caps: bool) -> int:
    """Microbatches that the stage at `position` (from 0) of a pipeline holds at most."""
    share = -(-case.setting.num_microbatches // data_parallel)
    return min(depth - position, share) if caps else depth - position


def _price_stage(
    plan: PlacedPlan, index: int, table: WidthTable, case: PlacementCase, rules: PlacementRules
) -> PlacedStageCost:
    index_of = {layer: i for i, layer in enumerate(table.layer_ids)}
    layers = [index_of[layer] for layer in plan.stages[index]]
    held = held_by(
        plan.positions[index], plan.depth, plan.data_parallel, case, rules.caps_in_flight
    )
    recompute = plan.recomputes[index]
    forward_s, backward_s = _replay(layers, table, case, recompute=recompute)
    is_split = any(table.is_split[v] for v in layers) or not plan.narrow_stages
    return PlacedStageCost(
        num_devices=plan.tensor_parallel if is_split else 1,
        forward_s=forward_s,
        backward_s=backward_s,
        memory_bytes=_memory_bytes(layers, held, table, case, rules, recompute=recompute),
        parameter_bytes=fsum(float(table.parameter_bytes[v]) for v in layers),
        microbatches_in_flight=held,
    )


def _replay(
    layers: Sequence[int], table: WidthTable, case: PlacementCase, *, recompute: bool
) -> tuple[float, float]:
    """Ends of forward and backward, each counted from its own start."""
    inside, bandwidth = set(layers), case.setting.bandwidth_bytes_per_s
    enters_s, leaves_s = dict.fromkeys(layers, 0.0), dict.fromkeys(layers, 0.0)
    for edge in table.edges:
        wait_s = edge.bytes / bandwidth
        if edge.target in inside and edge.source not in inside:
            enters_s[edge.target] = max(enters_s[edge.target], wait_s)
        if edge.source in inside and edge.target not in inside:
            leaves_s[edge.source] = max(leaves_s[edge.source], wait_s)
    now_s = 0.0
    for v in layers:
        now_s = max(now_s, enters_s[v]) + float(table.forward_s[v])
    forward_s, now_s = now_s, 0.0
    if recompute:
        now_s = sum(float(table.forward_s[v]) for v in layers)
    for v in reversed(layers):
        now_s = max(now_s, leaves_s[v]) + float(table.backward_s[v])
    return forward_s, now_s


def _memory_bytes(
    layers: Sequence[int],
    held: int,
    table: WidthTable,
    case: PlacementCase,
    rules: PlacementRules,
    *,
    recompute: bool,
) -> float:
    """All of the running microbatch; of the others activations, or only what entered the stage."""
    copies = rules.copies[case.optimizer]
    activations = [float(table.activation_bytes[v]) for v in layers]
    inside, kept = set(layers), activations
    if recompute:
        kept = [e.bytes for e in table.edges if e.target in inside and e.source not in inside]
    static = (copies * float(table.parameter_bytes[v]) for v in layers)
    total = sum((*static, *activations, *((held - 1) * size for size in kept)))
    return min(total, sys.float_info.max)


def _devices(plan: PlacedPlan, stages: Sequence[PlacedStageCost]) -> int:
    per_replica = sum(stage.num_devices for stage in stages)
    if not plan.narrow_stages:
        per_replica = plan.tensor_parallel * plan.depth
    return plan.data_parallel * per_replica


def _faults(plan: PlacedPlan, case: PlacementCase) -> Iterator[Fault]:
    table = case.at_width(plan.tensor_parallel)
    if table is None:
        offered = ", ".join(str(width.tensor_parallel) for width in case.widths)
        yield Fault("tensor_parallel", f"must be one of {offered}, got {plan.tensor_parallel}")
        return
    if plan.data_parallel < 1:
        yield Fault("data_parallel", f"must be >= 1, got {plan.data_parallel}")
    if not plan.stages or not all(plan.stages):
        yield Fault("stages", "must each have at least 1 layer")
    if not len(plan.recomputes) == len(plan.stages) == len(plan.positions) <= plan.depth:
        yield Fault("stages", "must each say whether they recompute, and be at most the depth")
    listed = [layer for stage in plan.stages for layer in stage]
    if sorted(listed) != sorted(table.layer_ids):
        yield Fault("stages", "must hold every layer exactly once")
        return
    position = {layer: i for i, layer in enumerate(listed)}
    ids = table.layer_ids
    for edge in table.edges:
        if position[ids[edge.source]] > position[ids[edge.target]]:
            joined = f"layer {ids[edge.source]} before {ids[edge.target]}"
            yield Fault("stages", f"must follow the edges: {joined}")
    if any(plan.recomputes) and not case.recompute:
        yield Fault("stages", "must not recompute, which the request does not allow")


# Placing the layers of a whole case: every tensor width, chains and graphs that branch
# -------------------------------------------------------------------------------------
# A chain is searched over all cuts between its layers. A graph that branches is searched over all
# sets of layers closed under predecessors, each stage in its best order; where these are too many
# the graph is taken as a chain in one topological order, and a bound from its work says how far the
# result can be from the optimum.

_MAX_STAGE_SETS: Final = 1_000_000
_MAX_CHAIN: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOutcome:
    """A placement and its price, or none; `lower_bound_s` holds for every placement of the space.

    `solver_s` is CPU time of the search alone.
    """

    status: Status
    plan: PlacedPlan | None
    cost: PlacedCost | None
    lower_bound_s: float
    solver_s: float

    @property
    def gap(self) -> float | None:
        """(T − L) / T, as a fraction; absent without a plan."""
        return relative_gap(self.cost.time_s, self.lower_bound_s) if self.cost else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """The best of one width: replicas and stages as layer indices; whether all was looked at."""

    time_s: float
    data_parallel: int
    stages: tuple[tuple[int, ...], ...]
    complete: bool


def place_case(
    case: PlacementCase,
    *,
    rules: PlacementRules,
    budget: Budget,
    max_data_parallel: int | None = None,
    max_stage_sets: int = _MAX_STAGE_SETS,
) -> PlacementOutcome:
    """The fastest placement over all widths; equal times go to the smaller width.

    Raises `UnsupportedFeature` for a graph that branches where the rules do not admit one.
    """
    started_s = budget.cpu_s
    best: tuple[_Placed, WidthTable] | None = None
    complete, bound_s = True, math.inf
    for table in case.widths:
        _refuse_shape(table, rules)
        found = _place_width(table, case, rules, budget, max_data_parallel, max_stage_sets)
        if found.complete:
            bound_s = min(bound_s, found.time_s)
        else:
            complete = False
            bound_s = min(bound_s, _work_bound_s(table, case, max_data_parallel))
        if found.data_parallel and (best is None or found.time_s < best[0].time_s * (1 - 1e-12)):
            best = found, table
    if best is None:
        return PlacementOutcome(
            status=Status.INFEASIBLE if complete else Status.UNKNOWN,
            plan=None,
            cost=None,
            lower_bound_s=bound_s if math.isfinite(bound_s) else 0.0,
            solver_s=budget.cpu_s - started_s,
        )
    plan = _plan(*best, case, rules)
    cost = price_placement(plan, case, rules)
    bound_s = min(bound_s, cost.time_s)
    proved = complete or relative_gap(cost.time_s, bound_s) <= OPTIMAL_TOLERANCE
    return PlacementOutcome(
        status=Status.OPTIMAL if proved else Status.GAP,
        plan=plan,
        cost=cost,
        lower_bound_s=cost.time_s if proved else bound_s,
        solver_s=budget.cpu_s - started_s,
    )


def _refuse_shape(table: WidthTable, rules: PlacementRules) -> None:
    if table.branches and not rules.allows_branches:
        raise UnsupportedFeature(
            f"branching in the layer graph is not supported by the cost model {rules.name}",
            alternative="use phaze-general-dag or native",
        )
    if table.num_layers > _MAX_CHAIN:
        raise UnsupportedFeature(
            f"a placement of {table.num_layers} layers", alternative=f"at most {_MAX_CHAIN}"
        )


def _place_width(
    table: WidthTable,
    case: PlacementCase,
    rules: PlacementRules,
    budget: Budget,
    max_data_parallel: int | None,
    max_stage_sets: int,
) -> _Placed:
    poll = _poll(budget)
    if table.branches:
        found = _core.place_graph(
            forward_s=table.forward_s,
            backward_s=table.backward_s,
            max_stage_sets=max_stage_sets,
            layers=native_layers(table, rules.copies[case.optimizer]),
            memory_bytes=case.setting.memory_bytes,
            recompute=recompute_mode(rules, recompute=case.recompute),
            rules=native_rules(table, case.setting, rules, max_data_parallel),
            poll=poll,
        )
        if found["complete"]:
            cuts, order = found["stage_offset"].tolist(), found["layers"].tolist()
            return _Placed(
                time_s=found["time_s"],
                data_parallel=found["data_parallel"],
                stages=tuple(tuple(order[a:b]) for a, b in pairwise(cuts)),
                complete=not found["stopped"],
            )
    chains = place_many(
        table.forward_s[None, :],
        table.backward_s[None, :],
        table,
        case.setting,
        rules=rules,
        optimizer=case.optimizer,
        recompute=case.recompute,
        max_data_parallel=max_data_parallel,
        poll=poll,
    )
    return _Placed(
        time_s=float(chains.time_s[0]),
        data_parallel=int(chains.data_parallel[0]),
        stages=tuple(map(tuple, chains.stages_of(0))),
        complete=not (chains.stopped or table.branches),
    )


def _poll(budget: Budget) -> Callable[[], bool]:
    return lambda: budget.poll(Progress(stage="placement", elapsed_s=budget.elapsed_s))


def _plan(
    found: _Placed, table: WidthTable, case: PlacementCase, rules: PlacementRules
) -> PlacedPlan:
    depth = len(found.stages)
    held = [
        held_by(k, depth, found.data_parallel, case, rules.caps_in_flight) for k in range(depth)
    ]
    return PlacedPlan(
        tensor_parallel=table.tensor_parallel,
        data_parallel=found.data_parallel,
        stages=tuple(tuple(table.layer_ids[v] for v in stage) for stage in found.stages),
        recomputes=tuple(
            needs_recompute(stage, count, table, case, rules)
            for stage, count in zip(found.stages, held, strict=True)
        ),
        depth=depth,
        positions=tuple(range(depth)),
    )


def _work_bound_s(table: WidthTable, case: PlacementCase, max_data_parallel: int | None) -> float:
    """No placement at this width is faster: its work, shared evenly, and its longest layer."""
    setting = case.setting
    work_s = table.forward_s + table.backward_s
    widest = table.tensor_parallel if bool(table.is_split.all()) else 1
    most = min(max_data_parallel or setting.num_devices, setting.num_devices)
    bounds = [math.inf]
    for stages in range(1, min(table.num_layers, setting.num_devices // widest) + 1):
        replicas = min(most, setting.num_devices // (stages * widest), setting.num_microbatches)
        if replicas >= 1:
            rounds = -(-setting.num_microbatches // replicas) + stages - 1
            bounds.append(rounds * max(float(work_s.max()), float(np.sum(work_s)) / stages))
    return min(bounds)


# A placement on the event simulator: what 1F1B makes of it, where the price assumes equal rounds
# -----------------------------------------------------------------------------------------------
# The price of a batch has every stage take as long as the slowest. In a 1F1B pipeline of unequal
# stages the quicker ones fill and drain sooner, so the simulated batch is never longer.

_MOST_ACTIONS: Final = 20_000_000


def simulated_time_s(plan: PlacedPlan, cost: PlacedCost, case: PlacementCase) -> float | None:
    """Seconds of a batch: the replica with most microbatches, then the gradients.

    `None` for a strategy with empty stages, and beyond 20 million actions.
    """
    share = -(-case.setting.num_microbatches // plan.data_parallel)
    stages = cost.stages
    if plan.depth != len(stages) or share * len(stages) > _MOST_ACTIONS:
        return None
    count = len(stages)
    ends_s = _core.one_f_one_b_ends_s(
        forward_s=np.array([stage.forward_s for stage in stages]),
        backward_s=np.array([stage.backward_s for stage in stages]),
        in_flight=np.array([stage.microbatches_in_flight for stage in stages], dtype=np.int64),
        replicas=np.ones(count, dtype=np.int64),
        feed_offset=np.minimum(np.arange(count + 1), count - 1).astype(np.int64),
        feed_target=np.arange(1, count, dtype=np.int32),
        feed_s=np.zeros(count - 1),
        num_microbatches=share,
    )
    return float(ends_s.max()) + cost.gradient_sync_s
