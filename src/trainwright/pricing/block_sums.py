"""Sums over intervals of a model's blocks, so that many layouts share one profile.

Everything a stage needs is a sum over its layers, except two maxima (the largest transient, the
heaviest layer's weight). One row per block and recompute mode, summed up front, gives any interval
in one subtraction; the layers before and after the blocks are two rows of their own. The stages of
thousands of layouts end up as rows of one table, whose columns are those of `StageWork`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.plan import Plan, Stage
from trainwright.pricing.stage_work import stage_works
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainwright.pricing.stage_work import AxisHops, StageWork
    from trainwright.profile import Layer, Profile

    Floats = NDArray[np.float64]

_BLOCK: Final = "block"
_MTP: Final = "mtp"
_SCALARS: Final = (
    "forward_s",
    "input_grad_s",
    "weight_grad_s",
    "recompute_s",
    "until_input_grad_bytes",
    "until_weight_grad_bytes",
    "logits_bytes",
    "opaque_bytes",
    "shared_gradient_bytes",
)
_ARRAYS: Final = (
    ("exposed_s", (4,)),
    ("communication_s", (4,)),
    ("static_bytes", (2, 3)),
    ("sync_bytes", (2,)),
    ("trained_weight_bytes", (2,)),
)
_MAXIMA: Final = ("transient_bytes", "largest_weight_bytes")
_SHAPES: Final = (
    *((name, ()) for name in _SCALARS),
    *_ARRAYS,
    *((name, ()) for name in _MAXIMA),
)
_ENDS: Final = list(accumulate((math.prod(shape) for _, shape in _SHAPES), initial=0))
_SUMMED: Final = _ENDS[-1] - len(_MAXIMA)  # columns before the maxima
# Where each figure lies in a row: its shape, first and after the last.
_PLACES: Final = {
    name: (shape, first, last)
    for (name, shape), (first, last) in zip(_SHAPES, pairwise(_ENDS), strict=True)
}


@dataclass(slots=True)
class WorkRows:
    """Stages as rows of a table that grows; row 0 is of nothing."""

    _rows: list[Floats] = field(default_factory=lambda: [np.zeros(_ENDS[-1])])

    def add(self, row: Floats) -> int:
        """The number of a new row."""
        self._rows.append(row)
        return len(self._rows) - 1

    def value(self, row: int, name: str) -> float:
        """A single figure of a row."""
        return float(self._rows[row][_PLACES[name][1]])

    def table(self) -> WorkTable:
        """All rows so far."""
        return WorkTable(rows=np.array(self._rows))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkTable:
    """Stages by row; a column is named as in `StageWork` and has its shape."""

    rows: Floats

    def __getitem__(self, name: str) -> Floats:
        shape, first, last = _PLACES[name]
        return self.rows[:, first:last].reshape(len(self.rows), *shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Consecutive blocks of a stage, the first `num_recomputed` of them in `mode`, others in none.

    `mtp_mode` is that of MTP layers, which follow the blocks only where all of those recompute.
    """

    first: int
    last: int
    num_recomputed: int
    mode: Recompute
    mtp_mode: Recompute
    has_front: bool
    has_back: bool


@dataclass(slots=True)
class BlockSums:
    """The blocks of one profile; intervals are kept in `rows` once summed.

    `is_uniform` says whether all blocks are alike, so that an interval may begin anywhere.
    """

    profile: Profile
    tensor: int
    hops: AxisHops
    rows: WorkRows
    _blocks: tuple[int, ...] = field(init=False)
    _classes: tuple[int, ...] = field(init=False)
    _sums: dict[Recompute, tuple[Floats, Floats]] = field(default_factory=dict)
    _fronts: dict[Recompute, Floats] = field(default_factory=dict)
    _backs: dict[Recompute, Floats] = field(default_factory=dict)
    is_uniform: bool = field(init=False)
    _made: dict[tuple[object, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        layers = self.profile.structure.layers
        self._blocks = tuple(i for i, layer in enumerate(layers) if layer.name == _BLOCK)
        self._classes = tuple(layers[i].layer_class for i in self._blocks)
        self.is_uniform = len(set(self._classes)) == 1

    @property
    def boundary_bytes(self) -> float:
        """What crosses between two stages, per device and microbatch."""
        return self.profile.structure.edges[0].bytes

    @property
    def is_tied(self) -> bool:
        """Whether the layers before and after the blocks share parameters."""
        return bool(self.profile.structure.shared_parameters)

    @property
    def num_blocks(self) -> int:
        """Blocks of the model."""
        return len(self._blocks)

    def work(self, interval: Interval) -> int:
        """The row of an interval, as `stage_works` would sum it; the same for like blocks."""
        a, b = interval.first, interval.last
        modes = (interval.num_recomputed, interval.mode, interval.mtp_mode)
        ends = (interval.has_front, interval.has_back)
        key = (b - a if self.is_uniform else self._classes[a:b], *modes, *ends)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self.rows.add(self._summed(interval))
        return found

    def _summed(self, interval: Interval) -> Floats:
        if interval.has_front and interval.has_back:  # where tied parameters are held once
            return self._whole(interval)
        a, b = interval.first, interval.last
        middle = a + interval.num_recomputed
        parts = []
        if middle > a:
            parts.append(self._range(interval.mode, a, middle))
        if b > middle:
            parts.append(self._range(Recompute.NONE, middle, b))
        if interval.has_front:
            parts.append(self._front(interval.mtp_mode))
        if interval.has_back:
            parts.append(self._back(interval.mtp_mode))
        return _added(parts)

    def _whole(self, interval: Interval) -> Floats:
        layers = self.profile.structure.layers
        again = set(self._blocks[: interval.num_recomputed])
        modes = [interval.mode if i in again else Recompute.NONE for i in range(len(layers))]
        for i in _mtp(layers):
            modes[i] = interval.mtp_mode
        return self._price(range(len(layers)), modes)

    def _range(self, mode: Recompute, first: int, last: int) -> Floats:
        if mode not in self._sums:
            self._sums[mode] = self._block_rows(mode)
        summed, most = self._sums[mode]
        row = np.empty(_ENDS[-1])
        row[:_SUMMED] = summed[last] - summed[first]
        row[_SUMMED:] = most[first:last].max(axis=0)
        return row

    def _block_rows(self, mode: Recompute) -> tuple[Floats, Floats]:
        """Running sums with a zero row before the first block, and the maxima of each block."""
        first = {layer_class: i for i, layer_class in reversed([*enumerate(self._classes)])}
        by_class = {
            layer_class: self._price([self._blocks[i]], [mode]) for layer_class, i in first.items()
        }
        rows = np.array([by_class[layer_class] for layer_class in self._classes])
        sums = np.zeros((len(rows) + 1, _SUMMED))
        np.cumsum(rows[:, :_SUMMED], axis=0, out=sums[1:])
        return sums, rows[:, _SUMMED:]

    def _front(self, mtp_mode: Recompute) -> Floats:
        """Layers before the blocks."""
        if mtp_mode not in self._fronts:
            self._fronts[mtp_mode] = self._part(range(self._blocks[0]), mtp_mode)
        return self._fronts[mtp_mode]

    def _back(self, mtp_mode: Recompute) -> Floats:
        """Layers after the blocks."""
        if mtp_mode not in self._backs:
            after = range(self._blocks[-1] + 1, len(self.profile.structure.layers))
            self._backs[mtp_mode] = self._part(after, mtp_mode)
        return self._backs[mtp_mode]

    def _part(self, indices: range, mtp_mode: Recompute) -> Floats:
        mtp = _mtp(self.profile.structure.layers)
        return self._price(indices, [mtp_mode if i in mtp else Recompute.NONE for i in indices])

    def _price(self, indices: Sequence[int], modes: Sequence[Recompute]) -> Floats:
        layers = self.profile.structure.layers
        stage = Stage.uniform(
            tuple(layers[i].id for i in indices),
            tuple(map(str, modes)),
            data_parallel=1,
            tensor_parallel=self.tensor,
        )
        plan = Plan(stages=(stage,), num_microbatches=1)
        (work,) = stage_works(plan, self.profile, self.hops)
        return _row(work)


def _mtp(layers: Sequence[Layer]) -> list[int]:
    return [i for i, layer in enumerate(layers) if layer.name == _MTP]


def _added(parts: Sequence[Floats]) -> Floats:
    """Stages joined to one; of no layers at all, a row of nothing."""
    row = np.zeros(_ENDS[-1])
    for part in parts:
        row[:_SUMMED] += part[:_SUMMED]
        np.maximum(row[_SUMMED:], part[_SUMMED:], out=row[_SUMMED:])
    return row


def _row(work: StageWork) -> Floats:
    return np.concatenate([np.ravel(getattr(work, name)) for name in _PLACES])
