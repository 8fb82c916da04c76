"""Plans under other schedules than 1F1B, sought where they can beat what is known.

A design of little memory may win with V-Half, which holds half of 1F1B's activations and so needs
less recomputation or less depth. Each combination of family, recompute option, degree d and depth p
is passed over unless

    max(m · W / p + A / p, m · w_max)  <  best so far,     m = N / d

holds for some design: p ranks share the work W of a microbatch, whatever the order, and what all of
them exchange and update after it, A at least; one has the heaviest layer. They share what is kept
too: the state, and a microbatch on its way back. What is left is cut, simulated and
compared by `native/chain/family_plan.hpp`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from trainwright._native._core import (
    FamilyOrder,
    UniformProblem,
    fastest_family_plans,
    fastest_uniform_plans,
)
from trainwright.chips.workload import Chain, Replication, TrainingJob, sharing_of
from trainwright.cluster import Surroundings
from trainwright.errors import InvalidInput
from trainwright.model import Phase
from trainwright.plans.plan import DEFAULT_SCHEDULE
from trainwright.plans.schedule import ActionKind, Schedule, ScheduleCosts
from trainwright.plans.status import Objective
from trainwright.profile import Recompute
from trainwright.scheduling.families import FamilyRequest, family_named
from trainwright.scheduling.simulate import native_orders
from trainwright.step.memory import undominated

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.arrays import Floats
    from trainwright.chips.design_times import LayerTimes


# The fastest uniform plans of a chain on many designs, by the native kernel
# --------------------------------------------------------------------------
# A uniform plan has one tensor degree t, d replicas and p ranks on p·t·d devices. Under 1F1B all
# stages recompute alike, or each takes the quickest choice that fits it; the cut makes the longest
# stage as short as memory allows. The schedule is run action by action; what replicas hold and
# exchange is worked out by `workload.Replication`. The recurrence is in
# `native/chain/uniform_plan.hpp`; `improve_with_families` tries other schedules.


def num_chunks(family: str) -> int:
    """Stages of a rank: 2 in V, where rank r of p owns stages r and 2p-1-r."""
    found = family_named(family).num_chunks
    assert found is not None, "a chip search runs no family whose chunks have to be chosen"
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformPlan:
    """One plan; `starts` is the first layer of each stage, `recompute` what each does."""

    step_s: float
    tensor_degree: int
    data_degree: int
    recompute: tuple[Recompute, ...]
    starts: tuple[int, ...]
    schedule: str = DEFAULT_SCHEDULE

    @property
    def num_chunks(self) -> int:
        """Stages of a rank: 2 in V, where rank r of p owns stages r and 2p-1-r."""
        return num_chunks(self.schedule)

    @property
    def num_ranks(self) -> int:
        """Pipeline depth."""
        return len(self.starts) // self.num_chunks

    @property
    def crossed_cuts(self) -> tuple[int, ...]:
        """First layers of the stages whose input comes from another rank."""
        turn = self.num_ranks if self.num_chunks == 2 else 0
        return tuple(start for stage, start in enumerate(self.starts) if stage not in (0, turn))

    @property
    def recompute_name(self) -> str:
        """What all stages do, or "mixed"."""
        return str(self.recompute[0]) if len(set(self.recompute)) == 1 else "mixed"

    def stages(self, num_layers: int) -> tuple[range, ...]:
        """The layers of each stage."""
        ends = (*self.starts[1:], num_layers)
        return tuple(range(start, end) for start, end in zip(self.starts, ends, strict=True))

    @property
    def num_devices(self) -> int:
        """Devices that the plan uses."""
        return self.num_ranks * self.tensor_degree * self.data_degree


def steps_of(plans: Sequence[UniformPlan | None]) -> list[float]:
    """Seconds of the steps; infinite where there is no plan."""
    return [np.inf if plan is None else plan.step_s for plan in plans]


def fastest_plans(
    chain: Chain,
    times: LayerTimes,
    *,
    job: TrainingJob,
    surroundings: Surroundings,
    num_devices: int,
    cutoff_s: NDArray[np.float64],
) -> list[UniformPlan | None]:
    """The fastest plan of each design below its cutoff; None where nothing fits, or none is."""
    problem = problem_of(chain, job=job, surroundings=surroundings, num_devices=num_devices)
    return plans_of(problem, chain, times, cutoff_s)


def plans_of(
    problem: UniformProblem, chain: Chain, times: LayerTimes, cutoff_s: Floats
) -> list[UniformPlan | None]:
    """The same of a chain as the kernel reads it, for those that ask of one many times."""
    count = cutoff_s.size
    step_s, degree, starts, options = fastest_uniform_plans(
        problem,
        forward_s=times.forward_s,
        backward_s=np.ascontiguousarray(times.backward_s.reshape(count, -1)),
        update_s=times.update_s,
        cutoff_s=np.ascontiguousarray(cutoff_s),
    )
    return [
        UniformPlan(
            step_s=float(step_s[i]),
            tensor_degree=chain.tensor_degree,
            data_degree=int(degree[i]),
            recompute=tuple(chain.recompute[option] for option in options[i]),
            starts=tuple(starts[i]),
        )
        if np.isfinite(step_s[i])
        else None
        for i in range(count)
    ]


def problem_of(
    chain: Chain, *, job: TrainingJob, surroundings: Surroundings, num_devices: int
) -> UniformProblem:
    """The chain as the kernel reads it."""
    return UniformProblem(
        layer_class=chain.layer_class,
        transfer_s=chain.transfer_s(surroundings),
        saved_bytes=chain.saved_bytes,
        transient_bytes=chain.transient_bytes,
        sync_bytes=chain.sync_bytes,
        data_degrees=job.data_degrees,
        sharing=sharing_of(job.data_degrees.tolist(), chain.static_bytes, surroundings),
        memory_bytes=surroundings.memory_bytes,
        tensor_degree=chain.tensor_degree,
        num_devices=num_devices,
        num_microbatches=job.num_microbatches,
    )


def work_bounds_s(
    chain: Chain, times: LayerTimes, *, job: TrainingJob, num_devices: int
) -> NDArray[np.float64]:
    """No plan of a design is faster: the devices share the work of all microbatches evenly.

    p·d·t devices run N/d microbatches whose longest stage has at least 1/p of the work W of the
    chain, so a step takes N·t·W/D at least, of the option with the least work.
    """
    per_class = times.forward_s[:, None, :] + times.backward_s
    work_s = (per_class * chain.class_counts).sum(axis=2).min(axis=1)
    bounds: NDArray[np.float64] = job.num_microbatches * chain.tensor_degree * work_s / num_devices
    return bounds


# Orders of schedule families for co-design: made once per shape, for any design
# ------------------------------------------------------------------------------
# A family's order depends on its depth and microbatches, and where it places weight gradients by
# time on how long forward, input and weight gradient take against each other. These are taken from
# the FLOPs of the model, rounded, so that all designs run the same orders and what a plan holds in
# memory is known before any design is.

_F, _I, _W, _B, _R, *_ = ActionKind
_STEPS: Final = 8  # ratios are whole eighths of a forward


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What an order is made for: p ranks, m microbatches, I and W as multiples of a forward."""

    family: str
    num_ranks: int
    num_microbatches: int
    input_grad: float
    weight_grad: float


def ratios(chain: Chain, option: int) -> tuple[float, float]:
    """Input gradient (with what it recomputes) and weight gradient against forward, by FLOPs."""
    counts = chain.class_counts
    flops = dict.fromkeys(Phase, 0.0)
    again = 0.0
    for count, kernels, repeats in zip(counts, chain.kernels, chain.repeats, strict=True):
        for kernel in kernels:
            flops[kernel.phase] += count * kernel.flops
            if kernel.phase is Phase.FORWARD and repeats:
                again += count * kernel.flops
    if chain.recompute[option] is Recompute.FULL:
        flops[Phase.INPUT_GRAD] += again
    forward = flops[Phase.FORWARD]
    rounded = (
        max(1, round(_STEPS * flops[phase] / forward)) / _STEPS
        for phase in (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)
    )
    input_grad, weight_grad = rounded
    return input_grad, weight_grad


@lru_cache(maxsize=512)
def order_of(shape: Shape) -> FamilyOrder | None:
    """The family's order with what its ranks can hold; None where the family has none."""
    costs = ScheduleCosts.of(
        family_named(shape.family).place(_request(shape, None)),
        input_grad_s=shape.input_grad,
        weight_grad_s=shape.weight_grad,
    )
    try:
        schedule = family_named(shape.family).generate(_request(shape, costs))
    except InvalidInput:
        return None
    if schedule is None:
        return None
    counts = [_counts(schedule, rank) for rank in range(shape.num_ranks)]
    offsets = np.cumsum([0, *map(len, counts)])
    return FamilyOrder(
        orders=native_orders(schedule),
        counts=np.ascontiguousarray(np.concatenate(counts), dtype=np.int32),
        count_offset=offsets.astype(np.int64),
    )


def _request(shape: Shape, costs: ScheduleCosts | None) -> FamilyRequest:
    return FamilyRequest(
        num_ranks=shape.num_ranks,
        num_microbatches=shape.num_microbatches,
        costs=costs,
        objective=Objective.MAKESPAN,
    )


def _counts(schedule: Schedule, rank: int) -> NDArray[np.int64]:
    """Fullest instants of a rank [k, 3 · chunks]: before I, between I and W, in I, by chunk."""
    actions = schedule.actions[schedule.rows_of(rank)]
    kind, stage = actions[:, 0], actions[:, 1]
    columns = []
    for owned in schedule.placement.stages_of_rank[rank]:
        begun, handed, freed = ((stage == owned) & (kind == k) for k in (_F, _I, _W))
        handed_before = np.cumsum(handed) - handed
        columns += [
            np.cumsum(begun) - handed_before,
            handed_before - (np.cumsum(freed) - freed),
            handed.astype(np.int64),
        ]
    rows = np.stack(columns, axis=1)
    # Distinct rows by one number each: sorting rows as such takes most of the time of it all.
    places = np.cumprod(np.concatenate(([1], rows.max(axis=0)[:-1] + 1)))
    _, first = np.unique(rows @ places, return_index=True)
    return undominated(rows[first])


# Plans under other schedules than 1F1B, sought where they can beat what is known
# -------------------------------------------------------------------------------

_SAFE = 1.0 - 1e-12


class Layout(NamedTuple):
    """One combination to try."""

    family: str
    option: int
    data_degree: int
    num_ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """Least seconds of the designs under an option: `work_s` of a microbatch, heaviest layer.

    `after_s` is what all ranks exchange and update after the last microbatch, by data degree.
    """

    work_s: Floats
    heaviest_s: Floats
    after_s: Mapping[int, Floats]

    def least_s(self, layout: Layout, num_microbatches: int) -> Floats:
        shared_s = num_microbatches * self.work_s + self.after_s[layout.data_degree]
        alone_s = num_microbatches * self.heaviest_s
        found: Floats = np.maximum(shared_s / layout.num_ranks, alone_s) * _SAFE
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
    if set(job.schedules) == {DEFAULT_SCHEDULE}:
        return
    problem = problem_of(chain, job=job, surroundings=surroundings, num_devices=num_devices)
    degrees = job.data_degrees.tolist()
    replications = {degree: Replication.over(degree, surroundings) for degree in degrees}
    bounds = [_bounds(chain, times, option, replications) for option in range(len(chain.recompute))]
    for layout in _by_promise(chain, job, num_devices, bounds):
        replication = replications[layout.data_degree]
        if not _may_fit(chain, layout, replication, surroundings.memory_bytes):
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
            degree=degrees.index(layout.data_degree),
        )
        for row, found_s, cut in zip(rows.tolist(), step_s.tolist(), starts, strict=True):
            if found_s < limit_s[row]:
                limit_s[row] = found_s
                best[row] = _plan(chain, layout, found_s, cut)


def _may_fit(chain: Chain, layout: Layout, replication: Replication, memory_bytes: float) -> bool:
    """Whether state and one microbatch of all layers fit the ranks together.

    Each rank holds a microbatch in all of its layers between its last forward and first backward.
    """
    state = replication.layer_bytes(chain.static_bytes)
    held = float((state + chain.saved_bytes[layout.option]) @ chain.class_counts)
    held += layout.num_ranks * num_chunks(layout.family) * replication.beside_bytes
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


def _bounds(
    chain: Chain, times: LayerTimes, option: int, replications: Mapping[int, Replication]
) -> _Bounds:
    counts = chain.class_counts
    layers_s = times.forward_s + times.backward_s[:, option]
    forward_s, backward_s = times.forward_s @ counts, times.backward_s[:, option] @ counts
    update_s, sync_bytes = times.update_s @ counts, chain.sync_bytes @ counts
    return _Bounds(
        work_s=layers_s @ counts,
        heaviest_s=layers_s.max(axis=1),
        after_s={
            degree: one.least_exposed_s(sync_bytes, forward_s, backward_s)
            + update_s / one.update_parts
            for degree, one in replications.items()
        },
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
        if family == DEFAULT_SCHEDULE:
            continue
        most = len(chain.graph.layers) // num_chunks(family)
        for option in range(len(chain.recompute)):
            for d in job.data_degrees.tolist():
                for p in range(2, min(most, num_devices // (chain.tensor_degree * d)) + 1):
                    yield Layout(family, option, d, p)
