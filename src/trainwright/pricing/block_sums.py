"""Sums over intervals of a model's blocks, so that many layouts share one profile.

Everything a stage needs is a sum over its layers, except two maxima (the largest transient, the
heaviest layer's weight). One row per block and recompute mode, summed up front, gives any interval
in one subtraction; the layers before and after the blocks are two rows of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.plan import Plan, Stage
from trainwright.pricing.sharding import RankState
from trainwright.pricing.stage_work import StageWork, stage_works
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainwright.pricing.stage_work import AxisHops
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
_MAXIMA: Final = ("transient_bytes", "largest_weight_bytes")
_ARRAYS: Final = (("exposed_s", (4,)), ("communication_s", (4,)), ("static_bytes", (2, 3)))
_ARRAYS_AND_SYNC: Final = (*_ARRAYS, ("sync_bytes", (2,)), ("trained_weight_bytes", (2,)))
_SIZES: Final = [math.prod(shape) for _, shape in _ARRAYS_AND_SYNC]
_ENDS: Final = list(accumulate(_SIZES, initial=len(_SCALARS)))
# Where each array lies in a row: name, shape, first and after the last.
_PLACES: Final = [
    (name, shape, first, last)
    for (name, shape), (first, last) in zip(_ARRAYS_AND_SYNC, pairwise(_ENDS), strict=True)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Consecutive blocks of a stage, the first `num_recomputed` of them in the run's mode."""

    first: int
    last: int
    num_recomputed: int
    has_front: bool
    has_back: bool


@dataclass(slots=True)
class BlockSums:
    """The blocks of one profile at one recompute mode; intervals are kept once summed.

    `mtp_mode` is that of MTP layers, which follow the blocks only where all of those recompute.
    `is_uniform` says whether all blocks are alike, so that an interval may begin anywhere.
    """

    profile: Profile
    mode: Recompute
    mtp_mode: Recompute
    tensor: int
    hops: AxisHops
    _rows: dict[Recompute, tuple[Floats, Floats]] = field(init=False)
    _ends: dict[str, tuple[Floats, Floats]] = field(init=False)
    _classes: tuple[int, ...] = field(init=False)
    is_uniform: bool = field(init=False)
    _made: dict[tuple[object, ...], StageWork] = field(default_factory=dict)
    _states: dict[tuple[int, ...], RankState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [layer.name for layer in self.profile.structure.layers]
        blocks = [i for i, name in enumerate(names) if name == _BLOCK]
        modes = dict.fromkeys((Recompute.NONE, self.mode))
        self._rows = {mode: self._block_rows(blocks, mode) for mode in modes}
        self._classes = tuple(self.profile.structure.layers[i].layer_class for i in blocks)
        self.is_uniform = len(set(self._classes)) == 1
        first, last = blocks[0], blocks[-1] + 1
        self._ends = {
            "front": self._part(range(first), names),
            "back": self._part(range(last, len(names)), names),
        }

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
        return len(self._rows[Recompute.NONE][0]) - 1

    def work(self, interval: Interval) -> StageWork:
        """The stage of an interval, as `stage_works` would sum it; the same for like blocks."""
        a, b = interval.first, interval.last
        ends = (interval.num_recomputed, interval.has_front, interval.has_back)
        key = (b - a if self.is_uniform else self._classes[a:b], *ends)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._summed(interval)
        return found

    def state(self, works: Sequence[StageWork]) -> RankState:
        """The state of a rank with these of its stages; one object for the same ones."""
        key = tuple([id(work) for work in works])
        found = self._states.get(key)
        if found is None:
            found = self._states[key] = RankState.of(works)
        return found

    def _summed(self, interval: Interval) -> StageWork:
        if interval.has_front and interval.has_back:  # where tied parameters are held once
            return self._whole(interval.num_recomputed)
        a, b = interval.first, interval.last
        middle = a + interval.num_recomputed
        parts = [self._range(self.mode, a, middle), self._range(Recompute.NONE, middle, b)]
        parts += [self._ends["front"]] * interval.has_front
        parts += [self._ends["back"]] * interval.has_back
        sums, most = parts[0]
        for total, own_most in parts[1:]:
            sums, most = sums + total, np.maximum(most, own_most)
        return _work(sums, most)

    def _whole(self, num_recomputed: int) -> StageWork:
        layers = self.profile.structure.layers
        blocks = [i for i, layer in enumerate(layers) if layer.name == _BLOCK]
        again = set(blocks[:num_recomputed])
        modes = [self.mode if i in again else Recompute.NONE for i in range(len(layers))]
        for i in _mtp(layers):
            modes[i] = self.mtp_mode
        return _work(*self._price([layer.id for layer in layers], modes))

    def _range(self, mode: Recompute, first: int, last: int) -> tuple[Floats, Floats]:
        summed, most = self._rows[mode]
        if first == last:
            return np.zeros_like(summed[0]), np.zeros(len(_MAXIMA))
        return summed[last] - summed[first], most[first:last].max(axis=0)

    def _block_rows(self, blocks: list[int], mode: Recompute) -> tuple[Floats, Floats]:
        """Running sums with a zero row before the first block, and the maxima of each block."""
        layers = self.profile.structure.layers
        by_class: dict[int, tuple[Floats, Floats]] = {}
        for block in blocks:
            layer = layers[block]
            if layer.layer_class not in by_class:
                by_class[layer.layer_class] = self._price([layer.id], [mode])
        rows = [by_class[layers[block].layer_class] for block in blocks]
        sums = np.cumsum([np.zeros_like(rows[0][0]), *(total for total, _ in rows)], axis=0)
        return sums, np.array([most for _, most in rows])

    def _part(self, indices: range, names: list[str]) -> tuple[Floats, Floats]:
        """Layers before or after the blocks."""
        layers = self.profile.structure.layers
        modes = [self.mtp_mode if names[i] == _MTP else Recompute.NONE for i in indices]
        return self._price([layers[i].id for i in indices], modes)

    def _price(self, layers: list[int], modes: Sequence[Recompute]) -> tuple[Floats, Floats]:
        stage = Stage.uniform(
            tuple(layers), tuple(map(str, modes)), data_parallel=1, tensor_parallel=self.tensor
        )
        plan = Plan(stages=(stage,), num_microbatches=1)
        (work,) = stage_works(plan, self.profile, self.hops)
        return _flat(work)


def _mtp(layers: Sequence[Layer]) -> list[int]:
    return [i for i, layer in enumerate(layers) if layer.name == _MTP]


def _flat(work: StageWork) -> tuple[Floats, Floats]:
    sums = [np.array([getattr(work, name) for name in _SCALARS])]
    sums += [np.ravel(getattr(work, name)) for name, _ in _ARRAYS_AND_SYNC]
    return np.concatenate(sums), np.array([getattr(work, name) for name in _MAXIMA])


def _work(sums: Floats, most: Floats) -> StageWork:
    fields: dict[str, object] = dict(zip(_SCALARS, sums.tolist(), strict=False))
    fields |= zip(_MAXIMA, most.tolist(), strict=True)
    fields |= ((name, sums[first:last].reshape(shape)) for name, shape, first, last in _PLACES)
    return StageWork(**fields)  # type: ignore[arg-type]
