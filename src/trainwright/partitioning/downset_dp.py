"""The exact partitioner: the plan of least time per sample, and the proof.

A plan is a chain of downsets (sets closed under successors) of the layer graph. For a threshold the
native core sweeps all chains whose stages stay below it, each stage with its best choice of options
under the memory limit; the last "no" is the proof. See `native/partition/partition.hpp` for the
recurrence and `docs/partitioning.md` for the idea; the problem is Piper's (Tarnawski et al.,
NeurIPS 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright._native import _core
from trainwright.errors import Fault, refuse
from trainwright.execution import Budget, Progress
from trainwright.partitioning.evaluate import evaluate, time_per_sample_s
from trainwright.plans import Plan, Stage, StageCost
from trainwright.plans.status import Status, relative_gap
from trainwright.profile import CostTable, Profile, Recompute, Setting, Structure

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Profile and setting → the flat arrays of the native partitioner, and its answer → a plan
# ----------------------------------------------------------------------------------------
# The core knows layers by index and options by row, sorted by (layer, tensor degree); it never sees
# ids, classes or units. Options that the restrictions exclude are not handed over at all.


# What a search may use: Piper's restricted modes, and degrees fixed from outside
# -------------------------------------------------------------------------------
# A restriction only ever removes options or degrees, so a restricted optimum is never better than
# the full one. Nothing is an error here: a layer that keeps no option at some degree does not offer
# that degree, and a search that is left with nothing answers `infeasible`.


@dataclass(frozen=True, slots=True, kw_only=True)
class Restrictions:
    """Which axes and options a plan may use; the default allows everything.

    `data_parallel` or `tensor_parallel` false fixes that degree to 1 in every stage; `recompute`
    false drops every option that recomputes anything; `excluded_options` drops options by id. The
    two tuples of degrees, where given, are the only ones allowed.
    """

    data_parallel: bool = True
    tensor_parallel: bool = True
    recompute: bool = True
    excluded_options: frozenset[str] = frozenset()
    data_degrees: tuple[int, ...] | None = None
    tensor_degrees: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        for name in ("data_degrees", "tensor_degrees"):
            degrees: tuple[int, ...] | None = getattr(self, name)
            if degrees is not None and not degrees:
                yield Fault(name, "must have at least 1 entry, got 0")
            for degree in degrees or ():
                if degree < 1:
                    yield Fault(name, f"must be >= 1, got {degree}")


UNRESTRICTED: Final = Restrictions()


def surviving_rows(costs: CostTable, restrictions: Restrictions) -> NDArray[np.bool_]:
    """Which rows of the table the restrictions leave, as a mask of shape [R]."""
    kept = np.ones(costs.num_rows, dtype=np.bool_)
    if not restrictions.tensor_parallel:
        kept &= costs.tensor_parallel == 1
    if restrictions.tensor_degrees is not None:
        kept &= np.isin(costs.tensor_parallel, restrictions.tensor_degrees)
    if not restrictions.recompute:
        kept &= np.array([mode is Recompute.NONE for mode in costs.recompute], dtype=np.bool_)
    if restrictions.excluded_options:
        excluded = restrictions.excluded_options
        kept &= np.array([option not in excluded for option in costs.option_ids], dtype=np.bool_)
    return kept


def surviving_data_degrees(setting: Setting, restrictions: Restrictions) -> tuple[int, ...]:
    """The data-parallel degrees the restrictions leave, ascending; may be empty.

    A degree that does not divide the number of microbatches, or exceeds the devices, never counts.
    """
    allowed = setting.data_parallel_degrees
    if not restrictions.data_parallel:
        allowed = (1,)
    if restrictions.data_degrees is not None:
        allowed = tuple(d for d in allowed if d in restrictions.data_degrees)
    return allowed


# What a partitioning search answers: a plan, what it costs, and how much of that is proved
# -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOutcome:
    """The result of one search, priced by the public evaluator.

    `plan` and `time_per_sample_s` are absent exactly where the status is `infeasible` or `unknown`.
    `lower_bound_s` holds for every plan. `solver_s` is the CPU time of the search alone;
    `interrupted` says that the user stopped it. `counters` tell how much work it was.
    """

    status: Status
    plan: Plan | None
    stage_costs: tuple[StageCost, ...]
    time_per_sample_s: float | None
    lower_bound_s: float
    solver_s: float
    interrupted: bool = False
    counters: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = self.status in (Status.OPTIMAL, Status.GAP)
        assert found == (self.plan is not None) == (self.time_per_sample_s is not None)
        assert len(self.stage_costs) == (len(self.plan.stages) if self.plan is not None else 0)

    @property
    def gap(self) -> float | None:
        """(T − L) / T, as a fraction; absent without a plan."""
        if self.time_per_sample_s is None:
            return None
        return relative_gap(self.time_per_sample_s, self.lower_bound_s)


# Profile and setting → the flat arrays of the native partitioner, and its answer → a plan
# ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProblem:
    """The native problem, and what turns its answer back into ids.

    `profile_rows[r]` is the cost-table row of native option row r.
    """

    native: _core.PartitionProblem
    layer_ids: tuple[int, ...]
    option_ids: tuple[str, ...]
    profile_rows: NDArray[np.int64]
    num_microbatches: int

    def decode(self, stages: Sequence[_core.PartitionStage]) -> Plan | None:
        """The plan the native stages describe; `None` where there are none."""
        if not stages:
            return None
        return Plan(
            stages=tuple(self._decode_stage(stage) for stage in stages),
            num_microbatches=self.num_microbatches,
        )

    def _decode_stage(self, stage: _core.PartitionStage) -> Stage:
        rows = self.profile_rows[np.asarray(stage.option_rows)]
        return Stage.uniform(
            tuple(self.layer_ids[v] for v in stage.layers),
            tuple(self.option_ids[row] for row in rows),
            data_parallel=stage.data_degree,
            tensor_parallel=stage.tensor_degree,
        )


def compile_problem(
    profile: Profile, setting: Setting, restrictions: Restrictions
) -> CompiledProblem:
    """Arrays for the native solver, in O(options + boundary values)."""
    costs, structure = profile.costs, profile.structure
    classes = np.array([layer.layer_class for layer in structure.layers], dtype=np.int64)
    data_degrees = surviving_data_degrees(setting, restrictions)
    # A degree nobody can use is harmless; a problem without any degree has no shape.
    kept = _kept_rows(costs, setting, restrictions)[: None if data_degrees else 0]
    offered = sorted(set(costs.tensor_parallel[kept].tolist())) or [1]
    degrees = np.array(offered, dtype=np.int64)
    rows, offsets = _rows_by_layer_and_degree(costs, classes, kept, degrees)
    memory_bytes, scale = _moderate(setting.memory_bytes)
    never_fits = 4 * memory_bytes
    boundary_offset, boundary_bytes = _boundary(costs, structure, rows, offsets, len(degrees))
    native = _core.PartitionProblem(
        num_layers=len(classes),
        edge_source=np.array([edge.source for edge in structure.edges], dtype=np.int32),
        edge_target=np.array([edge.target for edge in structure.edges], dtype=np.int32),
        edge_bytes=np.array([edge.bytes for edge in structure.edges], dtype=np.float64),
        tensor_degrees=degrees.astype(np.int32),
        option_offset=offsets,
        option_time_s=costs.duration_s[rows],
        option_gradient_bytes=costs.gradient_sync_bytes.sum(axis=1)[rows],
        option_saved_bytes=np.minimum(costs.saved_bytes[rows] * scale, never_fits),
        option_static_bytes=np.minimum(costs.total_static_bytes[rows] * scale, never_fits),
        option_boundary_offset=boundary_offset,
        option_boundary_bytes=boundary_bytes,
        memory_bytes=memory_bytes,
        bandwidth_bytes_per_s=setting.bandwidth_bytes_per_s,
        num_devices=setting.num_devices,
        num_microbatches=setting.num_microbatches,
        data_degrees=np.array(data_degrees or (1,), dtype=np.int64),
    )
    return CompiledProblem(
        native=native,
        layer_ids=structure.ids,
        option_ids=costs.option_ids,
        profile_rows=rows,
        num_microbatches=setting.num_microbatches,
    )


def _moderate(memory_bytes: float) -> tuple[float, float]:
    """The limit in units that leave room for sums of many layers, and the factor to those units.

    With sizes cut off above the limit, no sum of them overflows, and none that fits is changed.
    """
    scale = 2.0**-600 if memory_bytes > 2.0**500 else 1.0
    return memory_bytes * scale, scale


def _kept_rows(costs: CostTable, setting: Setting, restrictions: Restrictions) -> NDArray[np.int64]:
    """Rows that the restrictions keep and the number of devices allows."""
    possible = surviving_rows(costs, restrictions) & (costs.tensor_parallel <= setting.num_devices)
    return np.flatnonzero(possible)


def _rows_by_layer_and_degree(
    costs: CostTable,
    classes: NDArray[np.int64],
    kept: NDArray[np.int64],
    degrees: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Table rows in (layer, degree) order, and where each such group starts, [layers·degrees+1]."""
    num_slots = len(degrees)
    class_of_row = np.repeat(np.arange(costs.num_classes), np.diff(costs.class_offsets))
    slots = np.searchsorted(degrees, costs.tensor_parallel[kept])
    group = class_of_row[kept] * num_slots + slots
    order = np.argsort(group, kind="stable")
    by_group = kept[order]
    starts = np.searchsorted(group[order], np.arange(costs.num_classes * num_slots + 1))
    groups = (classes[:, None] * num_slots + np.arange(num_slots)).ravel()
    lengths = np.diff(starts)[groups]
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    return by_group[np.repeat(starts[:-1][groups], lengths) + within], offsets


def _boundary(
    costs: CostTable,
    structure: Structure,
    rows: NDArray[np.int64],
    offsets: NDArray[np.int64],
    num_slots: int,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Boundary values per native row; a table row without any means zeros."""
    ends = [edge.source for edge in structure.edges] + [edge.target for edge in structure.edges]
    num_layers = len(structure.layers)
    degree = np.bincount(np.array(ends, dtype=np.int64), minlength=num_layers)
    rows_per_layer = offsets[num_slots::num_slots] - offsets[:-1:num_slots]
    lengths = np.repeat(degree, rows_per_layer)
    out_offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    values = np.zeros(int(out_offsets[-1]))
    stated = np.diff(costs.boundary_offsets)[rows] > 0
    lengths = np.where(stated, lengths, 0)
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    target = np.repeat(out_offsets[:-1], lengths) + within
    values[target] = costs.boundary_bytes[np.repeat(costs.boundary_offsets[rows], lengths) + within]
    return out_offsets, values


# ----------------------------------------------------------------------------------------------


def solve(
    profile: Profile,
    setting: Setting,
    *,
    restrictions: Restrictions | None = None,
    budget: Budget | None = None,
) -> PartitionOutcome:
    """Best plan of `profile` in `setting`, with a lower bound; `optimal` only where proved.

    The time reported is that of the public evaluator, not of the search. Deterministic unless the
    budget has a time limit. Without a plan the outcome says whether that is proved.
    """
    budget = budget or Budget()
    started_s = budget.cpu_s
    compiled = compile_problem(profile, setting, restrictions or Restrictions())

    def poll(elapsed_s: float, best_s: float, lower_bound_s: float) -> bool:
        return budget.poll(
            Progress(
                stage="partitioning", elapsed_s=elapsed_s, best=best_s, lower_bound=lower_bound_s
            )
        )

    found = _core.solve_partition(compiled.native, time_limit_s=budget.remaining_s, poll=poll)
    plan = compiled.decode(found.stages)
    stage_costs = evaluate(plan, profile, setting) if plan is not None else ()
    time_s = max((cost.time_per_sample_s for cost in stage_costs), default=None)
    bound_s = found.lower_bound_s if math.isfinite(found.lower_bound_s) else 0.0
    return PartitionOutcome(
        status=Status(found.status),
        plan=plan,
        stage_costs=stage_costs,
        time_per_sample_s=time_s,
        lower_bound_s=bound_s if time_s is None else min(bound_s, time_s),
        solver_s=budget.cpu_s - started_s,
        interrupted=budget.interrupted,  # the core cannot tell the user from the deadline
        counters=found.counters,
    )


# Among plans of the same time, one that recomputes less
# ------------------------------------------------------
# The search keeps, of options that take equally long, the one that needs less memory, and asks no
# further. An option that recomputes for nothing is then replaced by one that does not, wherever the
# stage's memory allows: no stage gets slower, so the outcome's proof stands. Within a stage the
# cheapest replacements in bytes come first, which replaces as many layers as fit.

_WORK: Final = tuple(Recompute)  # from least to most


def recompute_least(
    outcome: PartitionOutcome, profile: Profile, setting: Setting, *, restrictions: Restrictions
) -> PartitionOutcome:
    """The outcome with the same cuts and times, and no recomputation that saves nothing needed."""
    if outcome.plan is None:
        return outcome
    lighter = _Lighter(profile, restrictions)
    stages = tuple(
        _relieve(stage, cost, lighter, setting.memory_bytes - cost.memory_bytes)
        for stage, cost in zip(outcome.plan.stages, outcome.stage_costs, strict=True)
    )
    if stages == outcome.plan.stages:
        return outcome
    plan = replace(outcome.plan, stages=stages)
    costs = evaluate(plan, profile, setting)
    return replace(
        outcome, plan=plan, stage_costs=costs, time_per_sample_s=time_per_sample_s(costs)
    )


def _relieve(stage: Stage, cost: StageCost, lighter: _Lighter, free_bytes: float) -> Stage:
    """The stage with as many layers relieved as its memory allows, of all recomputation first."""
    held = cost.microbatches_in_flight
    wishes = sorted(
        (other.work, held * other.saved_bytes + other.static_bytes, place, other.option)
        for place, (layer, option) in enumerate(zip(stage.layers, stage.options, strict=True))
        for other in lighter.than(layer, stage.tensor_parallel, option)
    )
    options = list(stage.options)
    for _, needed_bytes, place, option in wishes:
        if options[place] == stage.options[place] and needed_bytes <= free_bytes:
            options[place] = option
            free_bytes -= needed_bytes
    return replace(stage, options=tuple(options))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Other:
    """An option with less `work` to redo, as quick as another, and the bytes it needs beyond."""

    option: str
    work: int
    saved_bytes: float
    static_bytes: float


class _Lighter:
    """For an option, those as quick that recompute less; looked up by layer and degree."""

    def __init__(self, profile: Profile, restrictions: Restrictions) -> None:
        self._costs = profile.costs
        self._kept = surviving_rows(profile.costs, restrictions)
        self._class_of = {layer.id: layer.layer_class for layer in profile.structure.layers}
        self._found: dict[tuple[int, int, str], tuple[_Other, ...]] = {}

    def than(self, layer: int, tensor: int, option: str) -> tuple[_Other, ...]:
        key = (self._class_of[layer], tensor, option)
        if key not in self._found:
            self._found[key] = tuple(self._search(*key))
        return self._found[key]

    def _search(self, layer_class: int, tensor: int, option: str) -> Iterator[_Other]:
        costs = self._costs
        rows = [r for r in costs.rows_of(layer_class) if costs.tensor_parallel[r] == tensor]
        (chosen,) = (row for row in rows if costs.option_ids[row] == option)
        work = _WORK.index(costs.recompute[chosen])
        for row in rows if work else ():
            less = _WORK.index(costs.recompute[row])
            if less < work and self._kept[row] and _is_as_quick(costs, row, chosen):
                yield _Other(
                    option=costs.option_ids[row],
                    work=less,
                    saved_bytes=float(costs.saved_bytes[row] - costs.saved_bytes[chosen]),
                    static_bytes=float(
                        costs.total_static_bytes[row] - costs.total_static_bytes[chosen]
                    ),
                )


def _is_as_quick(costs: CostTable, row: int, than: int) -> bool:
    """Whether no stage takes longer with `row`, wherever it is cut."""
    cut, other = costs.boundary_of(row), costs.boundary_of(than)
    return bool(
        costs.duration_s[row] <= costs.duration_s[than]
        and costs.gradient_sync_bytes[row].sum() <= costs.gradient_sync_bytes[than].sum()
        and (len(cut) == 0 or (len(cut) == len(other) and (cut <= other).all()))
    )
