"""What one microbatch costs all stages together at a point, at the very least.

A priced profile gives the sums exactly. A model with experts has dozens of ways to deal them out
for each microbatch size and degrees of the rest, so these get a floor that holds for all of them:
experts compute at the best efficiency of the device and exchange nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.costing.communication import collective_time_s
from trainwright.costing.compute import operator_time_s
from trainwright.costing.estimate import axis_hops
from trainwright.model import LayerKind, Phase, layer_graph, precision_named
from trainwright.model.feed_forward import expert_exchanges
from trainwright.planning.model_space import Point, run_of
from trainwright.profile import StaticKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.cluster import Accelerator, Hop
    from trainwright.model import LayerClass, Operator
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.profile import Profile

    Floats = NDArray[np.float64]

_PHASES = (Phase.FORWARD, Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PointWork:
    """Least seconds and bytes of all layers, per microbatch and device of a point.

    `block_s` is the least of any block, of which there are `num_blocks`. `static_bytes` [2, 3] and
    `sync_bytes` [2] are as in the cost table, tied parameters once; `kept_bytes` is the least that
    one microbatch keeps of the layers.
    """

    forward_s: float
    backward_s: float
    block_s: float
    num_blocks: int
    static_bytes: Floats
    sync_bytes: Floats
    kept_bytes: float

    @property
    def total_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s

    @classmethod
    def of(cls, profile: Profile) -> PointWork:
        """The sums of a priced profile."""
        costs, layers = profile.costs, profile.structure.layers
        assert costs.phases is not None, "an estimate has phases"
        classes = [layer.layer_class for layer in layers]
        blocks = [layer.layer_class for layer in layers if layer.name == LayerKind.BLOCK]
        starts = costs.class_offsets[:-1]
        total_s = np.minimum.reduceat(costs.duration_s, starts)
        forward_s = np.minimum.reduceat(costs.phases.forward_s, starts)
        static = costs.static_bytes[starts][classes].sum(axis=0)
        sync = costs.gradient_sync_bytes[starts][classes].sum(axis=0)
        for group in profile.structure.shared_parameters:
            first = starts[classes[group.layers[0]]]
            own = costs.static_bytes[first, 0]
            twice = len(group.layers) - 1
            static[0] -= twice * own
            sync[0] -= twice * own[StaticKind.GRADIENT]
        return cls(
            forward_s=math.fsum(forward_s[classes].tolist()),
            backward_s=math.fsum((total_s - forward_s)[classes].tolist()),
            block_s=float(total_s[blocks].min()),
            num_blocks=len(blocks),
            static_bytes=np.maximum(static, 0.0),
            sync_bytes=np.maximum(sync, 0.0),
            kept_bytes=float(np.minimum.reduceat(costs.saved_bytes, starts)[classes].sum()),
        )


def floor_without_experts_s(question: ModelQuestion, point: Point) -> float:
    """Seconds of one microbatch, all layers, however the experts of `point` are dealt out."""
    experts = question.model.experts
    assert experts is not None, "a model without experts has a profile per point"
    pool = question.cluster.pool_of()
    dealt = replace(point, expert=experts.num_experts, expert_tensor=1)
    run = run_of(dealt, question.workload.sequence_length)
    name = question.workload.precision or pool.accelerator.default_precision
    run = replace(run, precision=precision_named(name))
    graph = layer_graph(question.model, run)
    hops = axis_hops(pool, tensor=point.tensor, context=point.context, expert=1, expert_tensor=1)
    spare = 1 - 1 / max(2, run.expert_rows(experts.experts_per_token))
    least_s = [
        _floor_s(layer, hops, pool.accelerator, run.precision.base_dtype, spare)
        for layer in graph.classes
    ]
    return math.fsum(least_s[layer] for layer in graph.layers)


def _floor_s(
    layer: LayerClass,
    hops: dict[str, tuple[Hop, ...]],
    device: Accelerator,
    dtype: str,
    spare: float,
) -> float:
    """All phases of one layer; `spare` allows for tokens that other ways of dealing round up."""
    total_s = 0.0
    for phase in _PHASES:
        operator_s = {
            op.name: spare * _expert_floor_s(op, phase, device, op.dtype or dtype)
            if _of_experts(op)
            else operator_time_s(op, phase, accelerator=device, dtype=op.dtype or dtype)
            for op in layer.operators
        }
        total_s += math.fsum(operator_s.values())
        for exchange in layer.exchanges:
            if exchange.phase is not phase or exchange.axis.startswith("expert"):
                continue
            time_s = collective_time_s(exchange.kind, exchange.bytes, hops[exchange.axis])
            if exchange.hides_under is not None:
                time_s -= exchange.hidden_share * operator_s[exchange.hides_under]
            total_s += max(0.0, time_s)
    return total_s


def _of_experts(operator: Operator) -> bool:
    return operator.name.startswith("expert_") or any(p.expert for p in operator.parameters)


def _expert_floor_s(operator: Operator, phase: Phase, device: Accelerator, dtype: str) -> float:
    if operator.matrix is None:
        return operator_time_s(operator, phase, accelerator=device, dtype=dtype)
    return operator.work(phase).flops / (device.peak(dtype) * device.efficiency.gemm.max)


def expert_exchange_s(question: ModelQuestion, point: Point) -> float:
    """Seconds that tokens of one microbatch travel between devices that hold other experts."""
    model, pool = question.model, question.cluster.pool_of()
    assert model.experts is not None
    name = question.workload.precision or pool.accelerator.default_precision
    run = replace(run_of(point, question.workload.sequence_length), precision=precision_named(name))
    if not run.shares_tokens_to_experts:
        return 0.0
    hops = axis_hops(
        pool,
        tensor=point.tensor,
        context=point.context,
        expert=point.expert,
        expert_tensor=run.expert_shards,
    )
    block_s = math.fsum(
        collective_time_s(each.kind, each.bytes, hops[each.axis])
        for each in expert_exchanges(model, run, model.experts)
    )
    routed = sum(model.block(layer).experts is not None for layer in range(model.num_layers))
    return routed * block_s
