"""The public evaluator: what a plan of a profile costs, and which rules it breaks.

The cost model is that of Piper (Tarnawski et al., NeurIPS 2021). A stage with data-parallel degree
d, of which P, W and X are summed durations, synchronised parameter bytes and cut bytes, takes

    T = P/d + 2·X/(d·B) + 4·(d − 1)/d · W/(N·B)

seconds per microbatch. With s the sum of d over this stage and all later ones, it keeps the
activations of y = ceil(s/d) microbatches, a·y + b bytes per layer. A cut edge is charged at both
ends, each with the sync bytes of that end's own option; an edge inside a stage is free.

All sums are correctly rounded (`math.fsum`). Breaking a rule is an error; not fitting into memory
is a finding, with every price still known. Cost: O(rows + edges) to lay the profile out, then
O(layers + edges) for a plan. Transient bytes and shared parameters are not part of this model.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from trainwright.errors import Fault, InvalidInput
from trainwright.plans import Plan, Stage, StageCost, TimeBreakdown
from trainwright.profile import Profile, Setting

# A profile laid out for pricing: plain Python numbers, looked up by layer, degree and option
# -------------------------------------------------------------------------------------------
# Reading single numbers out of arrays is slow, and every price of a plan is a sum of single
# numbers. Building the list costs O(rows + edges); whoever prices many plans of one profile keeps
# it.


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedEdge:
    """An edge between layer indices; the slots say where its ends' rows keep its sync bytes."""

    source: int
    target: int
    bytes: float
    source_slot: int
    target_slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """Costs of a profile by row, and the way from (layer, degree, option id) to the row."""

    layer_ids: tuple[int, ...]
    index_of: Mapping[int, int]
    layer_class: tuple[int, ...]
    rows: tuple[Mapping[tuple[int, str], int], ...]
    duration_s: tuple[float, ...]
    gradient_sync_bytes: tuple[float, ...]
    saved_bytes: tuple[float, ...]
    static_bytes: tuple[float, ...]
    boundary_offsets: tuple[int, ...]
    boundary_bytes: tuple[float, ...]
    edges: tuple[PricedEdge, ...]

    def options_of(self, index: int) -> Mapping[tuple[int, str], int]:
        """Row by (tensor-parallel degree, option id) of the layer at `index`."""
        return self.rows[self.layer_class[index]]

    def sync_bytes(self, row: int, slot: int) -> float:
        """What cutting the edge at `slot` of the row's layer adds to the edge's bytes."""
        start = self.boundary_offsets[row]
        if start == self.boundary_offsets[row + 1]:
            return 0.0
        return self.boundary_bytes[start + slot]


def read_prices(profile: Profile) -> PriceList:
    """Lay out `profile` for pricing."""
    structure, costs = profile.structure, profile.costs
    degrees: list[int] = costs.tensor_parallel.tolist()
    keys = list(zip(degrees, costs.option_ids, strict=True))
    return PriceList(
        layer_ids=structure.ids,
        index_of={layer.id: index for index, layer in enumerate(structure.layers)},
        layer_class=tuple(layer.layer_class for layer in structure.layers),
        rows=tuple(
            {keys[row]: row for row in costs.rows_of(layer_class)}
            for layer_class in range(costs.num_classes)
        ),
        duration_s=tuple(costs.duration_s.tolist()),
        gradient_sync_bytes=tuple(costs.gradient_sync_bytes.sum(axis=1).tolist()),
        saved_bytes=tuple(costs.saved_bytes.tolist()),
        static_bytes=tuple(costs.total_static_bytes.tolist()),
        boundary_offsets=tuple(costs.boundary_offsets.tolist()),
        boundary_bytes=tuple(costs.boundary_bytes.tolist()),
        edges=_priced_edges(profile),
    )


def _priced_edges(profile: Profile) -> tuple[PricedEdge, ...]:
    """Rows keep one value per incoming edge, then one per outgoing edge, both in edge order."""
    structure = profile.structure
    num_in = [len(edges) for edges in structure.in_edges()]
    next_in, next_out = [0] * len(num_in), list(num_in)
    priced = []
    for edge in structure.edges:
        priced.append(
            PricedEdge(
                source=edge.source,
                target=edge.target,
                bytes=edge.bytes,
                source_slot=next_out[edge.source],
                target_slot=next_in[edge.target],
            )
        )
        next_out[edge.source] += 1
        next_in[edge.target] += 1
    return tuple(priced)


# The public evaluator: what a plan of a profile costs, and which rules it breaks
# -------------------------------------------------------------------------------

MEMORY_TOLERANCE: Final = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """A stage (index) that needs `missing_bytes` more than a device has."""

    stage: int
    missing_bytes: float


def evaluate(plan: Plan, profile: Profile, setting: Setting) -> tuple[StageCost, ...]:
    """Price every stage of `plan`, in order, whether it fits into memory or not.

    Raises `InvalidInput` naming every broken rule other than memory; `find_overflows` judges that.
    """
    prices = read_prices(profile)
    faults = find_faults(plan, prices, setting)
    if faults:
        raise InvalidInput(faults)
    return price(plan, prices, setting)


def find_faults(plan: Plan, prices: PriceList, setting: Setting) -> tuple[Fault, ...]:
    """Every rule other than memory that `plan` breaks, stage by stage, then over all stages."""
    return (*find_layer_faults(plan, prices, setting), *_total_faults(plan, setting))


def find_layer_faults(plan: Plan, prices: PriceList, setting: Setting) -> tuple[Fault, ...]:
    """Every broken rule about layers, options and their order; these hold in any cost model."""
    return (*_stage_faults(plan, prices, setting), *_placement_faults(plan, prices))


def find_overflows(stage_costs: Sequence[StageCost], setting: Setting) -> tuple[Overflow, ...]:
    """The stages that do not fit, in order; fitting means at most M·(1 + 1e-12) bytes."""
    limit_bytes = setting.memory_bytes
    return tuple(
        Overflow(stage=index, missing_bytes=cost.memory_bytes - limit_bytes)
        for index, cost in enumerate(stage_costs)
        if cost.memory_bytes > limit_bytes * (1 + MEMORY_TOLERANCE)
    )


def time_per_sample_s(stage_costs: Sequence[StageCost]) -> float:
    """The time of the slowest stage: seconds per microbatch of the whole pipeline."""
    return max(cost.time_per_sample_s for cost in stage_costs)


def price(plan: Plan, prices: PriceList, setting: Setting) -> tuple[StageCost, ...]:
    """Price the stages of a plan known to break no rule."""
    rows = [_rows_of(stage, prices) for stage in plan.stages]
    traffic = _cut_bytes(plan, rows, prices)
    degrees = [stage.data_parallel for stage in plan.stages]
    suffix_sums = list(accumulate(reversed(degrees)))[::-1]
    return tuple(
        _stage_cost(rows[i], traffic[i], degrees[i], suffix_sums[i], prices, setting)
        for i in range(len(plan.stages))
    )


def _rows_of(stage: Stage, prices: PriceList) -> list[int]:
    degree = stage.tensor_parallel
    index_of = prices.index_of
    return [
        prices.options_of(index_of[layer])[degree, option]
        for layer, option in zip(stage.layers, stage.options, strict=True)
    ]


def _cut_bytes(plan: Plan, rows: Sequence[list[int]], prices: PriceList) -> list[list[float]]:
    """For each stage the terms of X: bytes and sync bytes of the edges cut at its border."""
    stage_of, row_of = [0] * len(prices.layer_ids), [0] * len(prices.layer_ids)
    for i, stage in enumerate(plan.stages):
        for layer, row in zip(stage.layers, rows[i], strict=True):
            index = prices.index_of[layer]
            stage_of[index], row_of[index] = i, row
    terms: list[list[float]] = [[] for _ in plan.stages]
    for edge in prices.edges:
        sender, receiver = stage_of[edge.source], stage_of[edge.target]
        if sender != receiver:
            sent = prices.sync_bytes(row_of[edge.source], edge.source_slot)
            received = prices.sync_bytes(row_of[edge.target], edge.target_slot)
            terms[sender] += edge.bytes, sent
            terms[receiver] += edge.bytes, received
    return terms


def exchanged_share(d: Any, num_microbatches: int) -> Any:
    """Of a stage's gradients, what each of d replicas exchanges for a microbatch: 4 (d - 1) / d.

    The gradients of a step are exchanged once for all its microbatches. `d` may be an array.
    """
    return 4 * (d - 1) / (d * num_microbatches)


def _stage_cost(
    rows: Sequence[int],
    cut_bytes: Sequence[float],
    d: int,
    s: int,
    prices: PriceList,
    setting: Setting,
) -> StageCost:
    bandwidth, num_microbatches = setting.bandwidth_bytes_per_s, setting.num_microbatches
    duration_s = _sum(prices.duration_s[row] for row in rows)
    sync_bytes = _sum(prices.gradient_sync_bytes[row] for row in rows)
    breakdown = TimeBreakdown(
        compute_s=duration_s / d,
        edge_traffic_s=_finite(2 * (_sum(cut_bytes) / bandwidth) / d),
        gradient_sync_s=_finite(exchanged_share(d, num_microbatches) * sync_bytes / bandwidth),
    )
    y = -(-s // d)
    parts = (breakdown.compute_s, breakdown.edge_traffic_s, breakdown.gradient_sync_s)
    return StageCost(
        time_per_sample_s=_sum(parts),
        breakdown=breakdown,
        memory_bytes=_sum(
            term for row in rows for term in (prices.saved_bytes[row] * y, prices.static_bytes[row])
        ),
        microbatches_in_flight=y,
    )


def _sum(terms: Iterable[float]) -> float:
    """Correctly rounded sum of non-negative terms, at most the largest float: 0·∞ has no value."""
    try:
        return _finite(math.fsum(terms))
    except OverflowError:
        return sys.float_info.max


def _finite(value: float) -> float:
    return min(value, sys.float_info.max)


def _stage_faults(plan: Plan, prices: PriceList, setting: Setting) -> Iterator[Fault]:
    if plan.num_microbatches != setting.num_microbatches:
        wanted = f"must equal the setting's {setting.num_microbatches}"
        yield Fault("num_microbatches", f"{wanted}, got {plan.num_microbatches}")
    for i, stage in enumerate(plan.stages):
        if setting.num_microbatches % stage.data_parallel:
            wanted = f"must divide the {setting.num_microbatches} microbatches"
            yield Fault(f"stages[{i}].data_parallel", f"{wanted}, got {stage.data_parallel}")
        for j, (layer, option) in enumerate(zip(stage.layers, stage.options, strict=True)):
            index = prices.index_of.get(layer)
            if index is None:
                yield Fault(f"stages[{i}].layers[{j}]", f"must be the id of a layer, got {layer}")
            else:
                yield from _option_faults(i, stage.tensor_parallel, option, index, prices)


def _option_faults(
    i: int, degree: int, option: str, index: int, prices: PriceList
) -> Iterator[Fault]:
    offered = prices.options_of(index)
    if (degree, option) in offered:
        return
    layer = prices.layer_ids[index]
    names = [name for t, name in offered if t == degree]
    if names:
        listed = ", ".join(f'"{name}"' for name in names)
        wanted = f"must be one of {listed} at tensor-parallel degree {degree}"
        yield Fault(f'stages[{i}].options["{layer}"]', f'{wanted}, got "{option}"')
    else:
        listed = ", ".join(map(str, sorted({t for t, _ in offered})))
        wanted = f"must be a degree that layer {layer} offers ({listed})"
        yield Fault(f"stages[{i}].tensor_parallel", f"{wanted}, got {degree}")


def _placement_faults(plan: Plan, prices: PriceList) -> Iterator[Fault]:
    stage_of = {layer: i for i, stage in enumerate(plan.stages) for layer in stage.layers}
    missing = [str(layer) for layer in prices.layer_ids if layer not in stage_of]
    if missing:
        yield Fault("stages", f"must place every layer, got none with {', '.join(missing)}")
    for edge in prices.edges:
        source, target = prices.layer_ids[edge.source], prices.layer_ids[edge.target]
        sender, receiver = stage_of.get(source), stage_of.get(target)
        if sender is not None and receiver is not None and sender > receiver:
            yield Fault(
                f"stages[{receiver}].layers",
                f"must keep the order of the edge {source} -> {target}, "
                f"got {target} here and {source} in stages[{sender}]",
            )


def _total_faults(plan: Plan, setting: Setting) -> Iterator[Fault]:
    if plan.devices_used > setting.num_devices:
        wanted = f"must use at most {setting.num_devices} devices"
        yield Fault("stages", f"{wanted}, got {plan.devices_used}")
    replicas = sum(stage.data_parallel for stage in plan.stages)
    if replicas > setting.num_microbatches:
        wanted = f"must have at most {setting.num_microbatches} replicas, one per microbatch"
        yield Fault("stages", f"{wanted}, got {replicas}")
