"""The kernels of a layer scheduled on one design's cores: side by side, or spread over all.

The search charges a layer the sum of its kernels, each spread over all cores of its class. Here the
same estimator also prices every kernel on a single core, and the schedule chooses. Forward is taken
in the order of the layer's operators, a chain. Backward is not one: the gradients of an operator's
weights and of its input become ready together, and only the latter are waited for, so weight
gradients may run beside the rest. Collectives use the link. All kernels share one memory, so a
schedule takes at least as long as their traffic at full bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainwright.codesign.design_times import ProductCache, kernel_times_s, lanes_per_s
from trainwright.codesign.layer_problem import CoreOperator, LayerProblem, Unit
from trainwright.codesign.layer_schedule import schedule_layer
from trainwright.codesign.space import DesignSpace
from trainwright.model import Phase
from trainwright.plan.status import OPTIMAL_TOLERANCE, Status, relative_gap
from trainwright.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainwright.cluster import ChipTemplate, Surroundings
    from trainwright.codesign.layer_schedule import LayerSchedule
    from trainwright.codesign.workload import Chain
    from trainwright.costing.chip_work import ChipKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSchedule:
    """One direction of a layer on a design; `names` has an entry per run of the schedule.

    `sequential_s` is what the search charges, `traffic_s` the memory's least time for all bytes.
    """

    names: tuple[str, ...]
    problem: LayerProblem
    schedule: LayerSchedule
    sequential_s: float
    traffic_s: float

    @property
    def seconds(self) -> float:
        """The schedule's length, or that of the traffic if it is longer."""
        return max(self.schedule.makespan_s, self.traffic_s)

    @property
    def lower_bound_s(self) -> float:
        """No schedule of these kernels is shorter."""
        return max(self.schedule.lower_bound_s, self.traffic_s)

    @property
    def gap(self) -> float:
        """(T − bound) / T, as a fraction."""
        return relative_gap(self.seconds, self.lower_bound_s)

    @property
    def status(self) -> Status:
        """`optimal` where the bound is met, else `gap`."""
        return Status.OPTIMAL if self.gap <= OPTIMAL_TOLERANCE else Status.GAP


def schedule_forward(
    chip: ChipTemplate, surroundings: Surroundings, chain: Chain, layer_class: int
) -> CoreSchedule:
    """The forward pass of a layer class: operators in order, then its collectives."""
    kernels = [k for k in chain.kernels[layer_class] if k.phase is Phase.FORWARD]
    edges = [(v, v + 1) for v in range(len(kernels))]
    link_s = float(chain.collective_s(surroundings)[Phase.FORWARD][layer_class])
    return _scheduled(chip, surroundings, chain, kernels, edges, [("collectives", link_s)])


def schedule_backward(
    chip: ChipTemplate, surroundings: Surroundings, chain: Chain, layer_class: int
) -> CoreSchedule:
    """The backward pass of a layer class, without recomputation.

    Gradients of inputs run against the order of operators; what an operator's weights need is there
    when its own input gradient may start.
    """
    kernels = [k for k in chain.kernels[layer_class] if k.phase is not Phase.FORWARD]
    kernels.sort(key=lambda k: k.phase is Phase.WEIGHT_GRAD)
    names = list(dict.fromkeys(k.operator for k in chain.kernels[layer_class]))
    index = {(k.operator, k.phase): v for v, k in enumerate(kernels)}
    edges, arrives = [], None
    for name in reversed(names):
        own = [
            index[name, phase]
            for phase in (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)
            if (name, phase) in index
        ]
        if arrives is not None:
            edges += [(arrives, v) for v in own]
        arrives = index.get((name, Phase.INPUT_GRAD), arrives)
    links = chain.collective_s(surroundings)
    times = [(p, float(links[p][layer_class])) for p in (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)]
    if arrives is not None:
        edges.append((arrives, len(kernels)))
    exchanged = [(f"collectives of {phase.value}", time_s) for phase, time_s in times]
    return _scheduled(chip, surroundings, chain, kernels, edges, exchanged)


def _scheduled(
    chip: ChipTemplate,
    surroundings: Surroundings,
    chain: Chain,
    kernels: list[ChipKernel],
    edges: Iterable[tuple[int, int]],
    exchanged: list[tuple[str, float]],
) -> CoreSchedule:
    """`exchanged` follows the kernels: names and seconds of what uses the link."""
    columns = [
        [chip.num_tc, 1],
        [chip.num_vc, 1],
        [chip.width] * 2,
        [chip.depth] * 2,
        [chip.glb_bytes // MIB] * 2,
    ]
    space = DesignSpace(
        designs=np.array(columns, dtype=np.int64), areas_um2=np.zeros(2), num_candidates=2
    )
    table = ProductCache(space, chain, surroundings).table(np.arange(2))
    lanes = lanes_per_s(space, surroundings)
    operators, sequential_s = [], 0.0
    for kernel in kernels:
        spread_s, single_s = kernel_times_s(kernel, table, lanes, surroundings).tolist()
        operators.append(CoreOperator(unit=_unit(kernel), single_s=single_s, spread_s=spread_s))
        sequential_s += spread_s
    operators += [CoreOperator(unit=Unit.LINK, single_s=time_s) for _, time_s in exchanged]
    problem = LayerProblem(
        operators=tuple(operators),
        edges=tuple(edges),
        num_tensor_cores=chip.num_tc,
        num_vector_cores=chip.num_vc,
    )
    moved = sum(kernel.compulsory_bytes(chain.element_bytes) for kernel in kernels)
    return CoreSchedule(
        names=(*(f"{k.operator} {k.phase.value}" for k in kernels), *(n for n, _ in exchanged)),
        problem=problem,
        schedule=schedule_layer(problem),
        sequential_s=sequential_s + sum(time_s for _, time_s in exchanged),
        traffic_s=moved / surroundings.memory_bandwidth_bytes_per_s,
    )


def _unit(kernel: ChipKernel) -> Unit:
    if kernel.is_fused:
        return Unit.FUSED
    return Unit.TENSOR if kernel.products else Unit.VECTOR
