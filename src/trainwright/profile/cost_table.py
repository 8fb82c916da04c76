"""What each layer class costs under each option: arrays, one row per (class, option).

A row is one way to run one layer: a tensor-parallel degree, a recompute mode, a kernel choice. Rows
of one class are contiguous, `class_offsets[c]` to `class_offsets[c + 1]`. A chip search swaps the
table and keeps the structure.

Traps. Memory is split by *when it is freed*, because schedules with split backward free some
activations at the input gradient and the rest at the weight gradient. Imported figures that do not
say what they hold go to `opaque_static_bytes` and to `saved_until_input_grad_bytes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Protocol

import numpy as np

from trainwright.errors import Fault, InvalidInput, UnsupportedFeature
from trainwright.profile.structure import Setting, Structure

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Ints
    from trainwright.model import Routing
    from trainwright.provenance import Provenance


class Recompute(StrEnum):
    """What backward recomputes of a layer."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class StaticKind(IntEnum):
    """Last axis of `static_bytes`."""

    WEIGHT = 0
    GRADIENT = 1
    OPTIMIZER = 2


class TimeKind(IntEnum):
    """Second axis of `time_by_kind_s`: what the exposed time is spent on."""

    COMPUTE = 0
    TENSOR_PARALLEL = 1
    CONTEXT_PARALLEL = 2
    EXPERT_PARALLEL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective inside a layer: its axis, payload, phase, and what it may hide under.

    `routing` is that of tokens of which one copy serves all experts of a unit of devices; `nearest`
    and `apart` say which part of the axis' group exchanges (`model.operator.Exchange`).
    """

    axis: str  # "tensor", "context", "expert"
    kind: str  # "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point"
    bytes: float
    phase: str  # "forward", "input_grad", "weight_grad", "recompute"
    hides_under: str | None = None
    routing: Routing | None = None
    nearest: int | None = None
    apart: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PhaseTimes:
    """Seconds of one microbatch by phase, each of shape [rows]; `recompute_s` precedes backward."""

    forward_s: Floats
    input_grad_s: Floats
    weight_grad_s: Floats
    recompute_s: Floats

    def __post_init__(self) -> None:
        _freeze(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PhaseTimes) and _equal_arrays(self, other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def total_s(self) -> Floats:
        """Fused duration of each row."""
        return self.forward_s + self.input_grad_s + self.weight_grad_s + self.recompute_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostTable:
    """Costs per (class, option) row; R rows, C classes. Times are seconds per microbatch.

    `static_bytes` has shape [R, 2, 3]: dense and expert parameters × `StaticKind`. Gradients are
    synchronised per group, so `gradient_sync_bytes` has shape [R, 2] likewise, and so have
    `trained_weight_bytes`, the weights that the optimizer changes: all where absent.
    `boundary_bytes` holds, from `boundary_offsets[r]`, what cutting an edge of the layer adds to
    that edge's bytes: first one value per incoming edge, then one per outgoing edge, both in edge
    order; a row may have none, which means zeros.
    """

    class_offsets: Ints
    option_ids: tuple[str, ...]
    tensor_parallel: Ints
    recompute: tuple[Recompute, ...]
    duration_s: Floats
    saved_until_input_grad_bytes: Floats
    saved_until_weight_grad_bytes: Floats
    transient_bytes: Floats
    static_bytes: Floats
    opaque_static_bytes: Floats
    gradient_sync_bytes: Floats
    boundary_offsets: Ints
    boundary_bytes: Floats
    provenance: Provenance
    phases: PhaseTimes | None = None
    time_by_kind_s: Floats | None = None
    energy_j: Floats | None = None
    collectives: tuple[tuple[Collective, ...], ...] | None = None
    trained_weight_bytes: Floats | None = None

    def __post_init__(self) -> None:
        _freeze(self)
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        rows = self.num_rows
        shapes = {
            "tensor_parallel": (rows,),
            "static_bytes": (rows, 2, 3),
            "gradient_sync_bytes": (rows, 2),
            "trained_weight_bytes": (rows, 2),
            "boundary_offsets": (rows + 1,),
            "time_by_kind_s": (rows, len(TimeKind)),
        }
        shapes |= dict.fromkeys(_ROW_FLOATS, (rows,))
        for name, shape in shapes.items():
            value = getattr(self, name)
            if value is not None and value.shape != shape:
                yield Fault(name, f"must have shape {shape}, got {value.shape}")
            elif value is not None and not (np.isfinite(value) & (value >= 0)).all():
                yield Fault(name, "must be finite and >= 0")
        if int(self.class_offsets[0]) != 0 or int(self.class_offsets[-1]) != rows:
            yield Fault("class_offsets", f"must run from 0 to {rows}")
        if (np.diff(self.class_offsets) < 1).any():
            yield Fault("class_offsets", "must give each class at least one option")
        if (self.tensor_parallel < 1).any():
            yield Fault("tensor_parallel", "must be >= 1")
        if len(self.recompute) != rows:
            yield Fault("recompute", f"must have {rows} entries, got {len(self.recompute)}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CostTable) and _equal_arrays(self, other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def num_rows(self) -> int:
        """R: options over all classes."""
        return len(self.option_ids)

    @property
    def num_classes(self) -> int:
        """C: layer classes."""
        return len(self.class_offsets) - 1

    def rows_of(self, layer_class: int) -> range:
        """The rows of one class."""
        return range(int(self.class_offsets[layer_class]), int(self.class_offsets[layer_class + 1]))

    def boundary_of(self, row: int) -> Floats:
        """Boundary bytes of a row: incoming edges, then outgoing; empty means zeros."""
        return self.boundary_bytes[self.boundary_offsets[row] : self.boundary_offsets[row + 1]]

    @property
    def updated_weight_bytes(self) -> Floats:
        """Weights that the optimizer changes: dense and expert, shape [R, 2]."""
        if self.trained_weight_bytes is not None:
            return self.trained_weight_bytes
        weights: Floats = self.static_bytes[:, :, StaticKind.WEIGHT]
        return weights

    @property
    def total_static_bytes(self) -> Floats:
        """All bytes of a row that stay for the whole step, shape [R]."""
        total: Floats = self.opaque_static_bytes + self.static_bytes.sum(axis=(1, 2))
        return total

    @property
    def saved_bytes(self) -> Floats:
        """Activation bytes of one microbatch in flight, shape [R]."""
        return self.saved_until_input_grad_bytes + self.saved_until_weight_grad_bytes


_ROW_FLOATS = (
    "duration_s",
    "saved_until_input_grad_bytes",
    "saved_until_weight_grad_bytes",
    "transient_bytes",
    "opaque_static_bytes",
    "energy_j",
)


def _freeze(value: CostTable | PhaseTimes) -> None:
    for field in fields(value):
        array = getattr(value, field.name)
        if isinstance(array, np.ndarray):
            array.flags.writeable = False


def _equal_arrays(left: CostTable | PhaseTimes, right: CostTable | PhaseTimes) -> bool:
    for field in fields(left):
        a, b = getattr(left, field.name), getattr(right, field.name)
        same = np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b
        if not same:
            return False
    return True


# A profile at one point, and where profiles come from
# ----------------------------------------------------
# The estimator answers any point; a measured file answers what it holds. Piper's file is a source
# with a single point whose options span several tensor-parallel degrees.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePoint:
    """The circumstances under which a profile holds. Unknown circumstances are `None`.

    `tensor_parallel` lists the degrees the options span; experts are cut as many ways where
    `expert_tensor_parallel` is absent. `network_levels` says, per axis, the network levels its
    groups cross, as (axis, level names).
    """

    microbatch_size: int | None = None
    sequence_length: int | None = None
    tensor_parallel: tuple[int, ...] = (1,)
    context_parallel: int = 1
    expert_parallel: int = 1
    expert_tensor_parallel: int | None = None
    sequence_parallel: bool = False
    precision: str | None = None
    recompute: tuple[str, ...] = ()
    network_levels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    device_kind: str | None = None
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A layer graph and what its layers cost at one point."""

    structure: Structure
    costs: CostTable
    point: ProfilePoint

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        if self.structure.num_classes > self.costs.num_classes:
            yield Fault("costs", "must have a class for every layer")
            return
        ins, outs = self.structure.in_edges(), self.structure.out_edges()
        for index, layer in enumerate(self.structure.layers):
            degree = len(ins[index]) + len(outs[index])
            for row in self.costs.rows_of(layer.layer_class):
                found = int(self.costs.boundary_offsets[row + 1] - self.costs.boundary_offsets[row])
                if found not in (0, degree):
                    yield Fault(
                        f"layers[{index}]",
                        f"needs {degree} boundary values per option, got {found}",
                    )


class ProfileSource(Protocol):
    """Anything that can say what the layers cost."""

    def points(self) -> tuple[ProfilePoint, ...]:
        """The points that exist; empty where any point can be answered."""

    def profile(self, point: ProfilePoint) -> Profile:
        """The profile at `point`; raises `UnsupportedFeature` where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFile:
    """Profiles read from a file, with the setting the file states, if it states one."""

    profiles: tuple[Profile, ...]
    setting: Setting | None = None

    def __post_init__(self) -> None:
        if not self.profiles:
            raise InvalidInput.of("points", "must have at least 1 entry, got 0")

    def points(self) -> tuple[ProfilePoint, ...]:
        """The points the file holds."""
        return tuple(profile.point for profile in self.profiles)

    def profile(self, point: ProfilePoint) -> Profile:
        """The profile at exactly `point`."""
        for profile in self.profiles:
            if profile.point == point:
                return profile
        raise UnsupportedFeature(f"this file holds no profile for {point}")
