"""The public evaluator of placements: what one costs, and which rules it breaks.

Independent of the search: every stage is replayed event by event, with layers in their stated
order. A layer starts when the one before it ends and everything that enters it from outside has
arrived, `bytes / bandwidth` after the stage could begin; backward runs in reverse, with what leaves
the stage; recomputing runs the forward once more, without transfers, before the backward. A batch
takes the slowest stage's load times (microbatches of a replica + stages − 1), and the gradients.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING, Final

from trainwright.errors import Fault, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.partitioning.placement_rules import PlacementRules
    from trainwright.profile.placement_case import PlacementCase, WidthTable

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
    faults = tuple(_faults(plan, case))
    if faults:
        raise InvalidInput(faults)
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
