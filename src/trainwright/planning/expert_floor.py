"""A floor of what a microbatch costs, however the experts of a model are dealt out.

A model with experts has dozens of ways to deal them out for each microbatch size and degrees of the
rest. For all of them holds: what is no expert costs what it costs, experts compute at the best
efficiency of the device, and tokens that go to other devices travel.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from trainwright.costing.communication import exchange_time_s
from trainwright.costing.compute import operator_time_s
from trainwright.costing.estimate import axis_hops
from trainwright.model import Phase, layer_graph
from trainwright.model.feed_forward import FeedForward, expert_exchanges
from trainwright.planning.model_space import Point, run_of

if TYPE_CHECKING:
    from trainwright.cluster import Accelerator, Hop
    from trainwright.model import LayerClass, Operator, RunShape
    from trainwright.plan.overlap import Overlap
    from trainwright.planning.model_question import ModelQuestion

_PHASES = (Phase.FORWARD, Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)


class LeastLayers(NamedTuple):
    """Like layers: the least seconds of one for a microbatch, how many, whether they exchange."""

    time_s: float
    num_layers: int
    has_experts: bool


def least_layers(question: ModelQuestion, point: Point) -> tuple[LeastLayers, ...]:
    """Every class of layers, however the experts of `point` are dealt out."""
    experts = question.model.experts
    assert experts is not None, "a model without experts has a profile per point"
    pool = question.cluster.pool_of()
    dealt = replace(point, expert=experts.num_experts, expert_tensor=1)
    run = _run_at(question, dealt)
    graph = layer_graph(question.settings.recipe.applied(question.model), run)
    hops = axis_hops(pool, tensor=point.tensor, context=point.context, expert=1, expert_tensor=1)
    overlap = question.settings.overlap
    spare = least_share(run, experts.experts_per_token)
    return tuple(
        LeastLayers(
            time_s=_floor_s(
                layer, hops, pool.accelerator, run.precision.base_dtype, spare, overlap
            ),
            num_layers=graph.layers.count(number),
            has_experts=any(map(_of_experts, layer.operators)),
        )
        for number, layer in enumerate(graph.classes)
    )


def least_share(run: RunShape, experts_per_token: int) -> float:
    """Of the rows that whole experts see, what each of those who share one computes at least.

    Rows are rounded up, so with x devices to an expert ⌈a·x⌉ / x may be as few as a, of ⌈a⌉.
    """
    return run.expert_copies(experts_per_token) / run.expert_rows(experts_per_token)


def with_exchanges(
    question: ModelQuestion, point: Point, least: tuple[LeastLayers, ...]
) -> tuple[LeastLayers, ...]:
    """The layers with what their tokens travel where experts are dealt out as the point says."""
    added_s = _exchange_s(question, point)
    return tuple(
        each._replace(time_s=each.time_s + added_s) if each.has_experts else each for each in least
    )


def _floor_s(
    layer: LayerClass,
    hops: dict[str, tuple[Hop, ...]],
    device: Accelerator,
    dtype: str,
    spare: float,
    overlap: Overlap,
) -> float:
    """All phases of one layer; `spare` allows for tokens that other ways of dealing round up.

    Exchanges of a tensor group that may hide are left out. So is what shared experts gather again:
    where tokens stay in their group one gather serves all, and hides under the others, which take
    longer.
    """
    total_s = 0.0
    for phase in _PHASES:
        operator_s = {
            op.name: spare * _expert_floor_s(op, phase, device, op.dtype or dtype)
            if _of_experts(op)
            else _operator_floor_s(op, phase, device, op.dtype or dtype)
            for op in layer.operators
        }
        total_s += math.fsum(operator_s.values())
        for exchange in layer.exchanges:
            if exchange.phase is not phase or exchange.axis.startswith("expert"):
                continue
            if exchange.hides_under is None and exchange.axis == "tensor" and overlap.tensor > 0:
                continue
            if exchange.hides_under == FeedForward.SHARED_EXPERT.first:
                continue
            time_s = exchange_time_s(exchange, hops[exchange.axis])
            if exchange.hides_under is not None:
                time_s -= exchange.hidden_share * operator_s[exchange.hides_under]
            total_s += max(0.0, time_s)
    return total_s


def _of_experts(operator: Operator) -> bool:
    return operator.name.startswith(f"{FeedForward.EXPERT}_") or any(
        p.expert for p in operator.parameters
    )


def _operator_floor_s(operator: Operator, phase: Phase, device: Accelerator, dtype: str) -> float:
    """What the device takes, or what no tiling on its cores beats."""
    if device.cores is None:
        return operator_time_s(operator, phase, accelerator=device, dtype=dtype)
    return operator.work(phase).flops / device.peak(dtype)


def _expert_floor_s(operator: Operator, phase: Phase, device: Accelerator, dtype: str) -> float:
    if operator.matrix is None:
        return _operator_floor_s(operator, phase, device, dtype)
    return operator.work(phase).flops / (device.peak(dtype) * device.efficiency.gemm.max)


def _run_at(question: ModelQuestion, point: Point) -> RunShape:
    device = question.cluster.pool_of().accelerator
    recipe = question.settings.recipe
    name = question.workload.precision or recipe.precision or device.default_precision
    run = run_of(point, question.workload.sequence_length)
    return question.settings.shape(run, precision=name)


def _exchange_s(question: ModelQuestion, point: Point) -> float:
    """Seconds of one layer that tokens travel to other devices; 0 where that may hide."""
    model, pool = question.model, question.cluster.pool_of()
    assert model.experts is not None
    run = _run_at(question, point)
    if not run.shares_tokens_to_experts or question.settings.overlap.experts > 0:
        return 0.0
    hops = axis_hops(
        pool,
        tensor=point.tensor,
        context=point.context,
        expert=point.expert,
        expert_tensor=run.expert_shards,
    )
    return math.fsum(
        exchange_time_s(each, hops[each.axis])
        for each in expert_exchanges(model, run, model.experts)
    )
