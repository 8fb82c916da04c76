"""Profile and setting → the flat arrays of the native partitioner, and its answer → a plan.

The core knows layers by index and options by row, sorted by (layer, tensor degree); it never sees
ids, classes or units. Options that the restrictions exclude are not handed over at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright._native import _core
from trainwright.errors import Fault, InvalidInput
from trainwright.plans import Plan, Stage, StageCost, Status
from trainwright.plans.status import relative_gap
from trainwright.profile import CostTable, Recompute, Setting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainwright.profile import Profile, Structure


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
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

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
