"""Plans under other schedules than 1F1B, sought where they can beat what is known.

A design of little memory may win with V-Half, which holds half of 1F1B's activations and so needs
less recomputation or less depth. Each combination of family, recompute option, degree d and depth p
is passed over unless

    m · max(W / p, w_max) + least synchronisation and update  <  best so far,     m = N / d

holds for some design: p ranks share the work W of a microbatch, whatever the order. They share what
is kept too: the state, and a microbatch on its way back. What is left is cut, simulated and
compared by `native/family_plan.hpp`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright._native._core import fastest_family_plans
from trainwright.codesign.family_orders import Shape, order_of, ratios
from trainwright.codesign.uniform import IN_V, UniformPlan, problem_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from trainwright.cluster import Surroundings
    from trainwright.codesign.design_times import LayerTimes
    from trainwright.codesign.workload import Chain, TrainingJob

    Floats = NDArray[np.float64]

_SAFE = 1.0 - 1e-12


class Layout(NamedTuple):
    """One combination to try."""

    family: str
    option: int
    data_degree: int
    num_ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """Least seconds of the designs under an option: `work_s` of a microbatch, heaviest layer."""

    work_s: Floats
    heaviest_s: Floats
    update_s: Floats
    sync_s: float

    def least_s(self, layout: Layout, num_microbatches: int) -> Floats:
        d, p = layout.data_degree, layout.num_ranks
        busiest = num_microbatches * np.maximum(self.work_s / p, self.heaviest_s)
        hops = 2.0 * (d - 1) / d
        found: Floats = (busiest + (hops * self.sync_s + self.update_s / d) / p) * _SAFE
        return found


def improve_with_families(
    best: list[UniformPlan | None],
    limit_s: Floats,
    chain: Chain,
    times: LayerTimes,
    *,
    job: TrainingJob,
    surroundings: Surroundings,
    num_devices: int,
) -> None:
    """Replace plans of `best` (None: none below `limit_s`) by faster ones of other families."""
    problem = problem_of(chain, job=job, surroundings=surroundings, num_devices=num_devices)
    bounds = [_bounds(chain, times, option, surroundings) for option in range(len(chain.recompute))]
    for layout in _by_promise(chain, job, num_devices, bounds):
        if not _may_fit(chain, layout, surroundings.memory_bytes):
            continue
        m = job.num_microbatches // layout.data_degree
        rows = np.flatnonzero(bounds[layout.option].least_s(layout, m) < limit_s)
        if not rows.size:
            continue
        input_grad, weight_grad = ratios(chain, layout.option)
        order = order_of(
            Shape(
                family=layout.family,
                num_ranks=layout.num_ranks,
                num_microbatches=m,
                input_grad=input_grad,
                weight_grad=weight_grad,
            )
        )
        if order is None:
            continue
        step_s, starts = fastest_family_plans(
            problem,
            order,
            forward_s=times.forward_s[rows],
            backward_s=np.ascontiguousarray(times.backward_s[rows].reshape(rows.size, -1)),
            weight_grad_s=times.weight_grad_s[rows],
            update_s=times.update_s[rows],
            pending_bytes=chain.pending_bytes,
            restored_bytes=np.ascontiguousarray(chain.restored_bytes.ravel()),
            cutoff_s=limit_s[rows],
            option=layout.option,
            data_degree=layout.data_degree,
        )
        for row, found_s, cut in zip(rows.tolist(), step_s.tolist(), starts, strict=True):
            if found_s < limit_s[row]:
                limit_s[row] = found_s
                best[row] = _plan(chain, layout, found_s, cut)


def _may_fit(chain: Chain, layout: Layout, memory_bytes: float) -> bool:
    """Whether state and one microbatch of all layers fit the ranks together.

    Each rank holds a microbatch in all of its layers between its last forward and first backward.
    """
    state = chain.static_bytes + chain.sharded_bytes / layout.data_degree
    held = float((state + chain.saved_bytes[layout.option]) @ chain.class_counts)
    return held * _SAFE <= layout.num_ranks * memory_bytes


def _plan(chain: Chain, layout: Layout, step_s: float, starts: list[int]) -> UniformPlan:
    return UniformPlan(
        step_s=step_s,
        tensor_degree=chain.tensor_degree,
        data_degree=layout.data_degree,
        recompute=(chain.recompute[layout.option],) * len(starts),
        starts=tuple(starts),
        schedule=layout.family,
    )


def _bounds(chain: Chain, times: LayerTimes, option: int, surroundings: Surroundings) -> _Bounds:
    link_byte_s = 1.0 / surroundings.link_bandwidth_bytes_per_s
    layers_s = times.forward_s + times.backward_s[:, option]
    alone = surroundings.gradient_overlap == 0  # else it may hide
    return _Bounds(
        work_s=layers_s @ chain.class_counts,
        heaviest_s=layers_s.max(axis=1),
        update_s=times.update_s @ chain.class_counts,
        sync_s=alone * float(chain.sync_bytes @ chain.class_counts) * link_byte_s,
    )


def _by_promise(
    chain: Chain, job: TrainingJob, num_devices: int, bounds: list[_Bounds]
) -> list[Layout]:
    """Every combination, those first whose bound on the first design is least."""
    first = [
        (float(bounds[x.option].least_s(x, job.num_microbatches // x.data_degree)[0]), x)
        for x in _layouts(chain, job, num_devices)
    ]
    return [layout for _, layout in sorted(first, key=lambda entry: entry[0])]


def _layouts(chain: Chain, job: TrainingJob, num_devices: int) -> Iterator[Layout]:
    """A single rank waits for nothing under any schedule, so depths begin at 2."""
    for family in job.schedules:
        if family == "1f1b":
            continue
        most = len(chain.graph.layers) // (2 if family in IN_V else 1)
        for option in range(len(chain.recompute)):
            for d in job.data_degrees.tolist():
                for p in range(2, min(most, num_devices // (chain.tensor_degree * d)) + 1):
                    yield Layout(family, option, d, p)
