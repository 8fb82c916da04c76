"""The layers of each stage, added up: times, bytes, and what crosses to other stages."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright.costing.communication import exchange_time_s
from trainwright.costing.layer import kind_of_axis
from trainwright.plans import Plan, Stage
from trainwright.profile import Recompute, StaticKind, Structure, TimeKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainwright.arrays import Floats, Ints
    from trainwright.cluster import Hop
    from trainwright.profile import CostTable, Layer, Profile, SharedParameters

    AxisHops = Mapping[str, tuple[Hop, ...]]


# Lists of different lengths, one after another in one array
# ----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ragged:
    """Where lists [k] of these lengths begin; every list holds something."""

    lengths: Ints
    starts: Ints

    @classmethod
    def of(cls, lengths: Sequence[int] | Ints) -> Ragged:
        """Lists of these lengths, in this order."""
        counts = np.asarray(lengths, dtype=np.int64)
        return cls(lengths=counts, starts=np.cumsum(counts) - counts)

    @property
    def size(self) -> int:
        """Entries of all lists."""
        return int(self.lengths.sum())

    def places(self, chosen: Ints) -> Ints:
        """Where the entries of the chosen lists lie, list after list."""
        lengths = self.lengths[chosen]
        shift = self.starts[chosen] - (np.cumsum(lengths) - lengths)
        return np.repeat(shift, lengths) + np.arange(int(lengths.sum()))

    def chosen(self, chosen: Ints) -> Ragged:
        """The chosen lists, one after another."""
        return Ragged.of(self.lengths[chosen])


# The layers of each stage, added up: times, bytes, and what crosses to other stages
# ----------------------------------------------------------------------------------

# Backward costs twice the forward pass in matrix products; used where a profile has fused times.
_FORWARD_SHARE = 1 / 3
_OF_LOGITS = frozenset({"lm_head", "loss"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageWork:
    """Sums over one stage, per device and microbatch.

    `input_grad_s` includes recomputation; `exposed_s` [4] and `communication_s` [4] are the seconds
    of collectives by `TimeKind`, exposed and in all. `logits_bytes` are those of the kept bytes
    that belong to head and loss. `static_bytes` has shape [2, 3] and `sync_bytes` [2] as in the
    cost table, tied parameters of a stage counted once; `largest_weight_bytes` is the heaviest
    layer's weight; `shared_gradient_bytes` are gradients of tied parameters that another stage
    holds too; `trained_weight_bytes` [2] of the weights the optimizer changes.
    """

    forward_s: float
    input_grad_s: float
    weight_grad_s: float
    recompute_s: float
    exposed_s: Floats
    communication_s: Floats
    until_input_grad_bytes: float
    until_weight_grad_bytes: float
    logits_bytes: float
    transient_bytes: float
    static_bytes: Floats
    opaque_bytes: float
    largest_weight_bytes: float
    shared_gradient_bytes: float
    sync_bytes: Floats
    trained_weight_bytes: Floats

    @property
    def backward_s(self) -> float:
        """Input gradient, weight gradient and recomputation."""
        return self.input_grad_s + self.weight_grad_s

    @property
    def saved_bytes(self) -> float:
        """Kept from forward to backward."""
        return self.until_input_grad_bytes + self.until_weight_grad_bytes


def stage_works(plan: Plan, profile: Profile, hops: AxisHops) -> tuple[StageWork, ...]:
    """Sum the chosen rows of every stage; the plan breaks no rule of the profile.

    `hops` says how the groups of each axis lie, to price collectives that hide.
    """
    rows = chosen_rows(plan, profile)
    index_of = {layer.id: i for i, layer in enumerate(profile.structure.layers)}
    works = []
    for stage, own in zip(plan.stages, rows, strict=True):
        row_of = dict(zip((index_of[i] for i in stage.layers), own.tolist(), strict=True))
        works.append(_work(stage, own, row_of, profile, hops))
    return tuple(works)


def chosen_rows(plan: Plan, profile: Profile) -> tuple[Ints, ...]:
    """For each stage the cost-table rows of its layers, in the stage's order."""
    costs = profile.costs
    class_of = {layer.id: layer.layer_class for layer in profile.structure.layers}
    found = {
        (layer_class, int(costs.tensor_parallel[row]), costs.option_ids[row]): row
        for layer_class in range(costs.num_classes)
        for row in costs.rows_of(layer_class)
    }
    return tuple(
        np.array(
            [
                found[class_of[layer], stage.tensor_parallel, option]
                for layer, option in zip(stage.layers, stage.options, strict=True)
            ],
            dtype=np.int64,
        )
        for stage in plan.stages
    )


def cut_bytes(plan: Plan, profile: Profile) -> dict[tuple[int, int], float]:
    """Bytes per device and microbatch that stage i sends to stage j, by (i, j)."""
    structure, costs = profile.structure, profile.costs
    ins, outs = structure.in_edges(), structure.out_edges()
    index_of = {layer.id: i for i, layer in enumerate(structure.layers)}
    placed = {}
    for number, (stage, rows) in enumerate(
        zip(plan.stages, chosen_rows(plan, profile), strict=True)
    ):
        for layer, row in zip(stage.layers, rows.tolist(), strict=True):
            placed[index_of[layer]] = (number, row)
    sent: dict[tuple[int, int], float] = {}
    for number, edge in enumerate(structure.edges):
        (sender, source_row), (receiver, target_row) = placed[edge.source], placed[edge.target]
        if sender == receiver:
            continue
        source_slot = len(ins[edge.source]) + outs[edge.source].index(number)
        extra = max(
            _boundary(costs, source_row, source_slot),
            _boundary(costs, target_row, ins[edge.target].index(number)),
        )
        sent[sender, receiver] = sent.get((sender, receiver), 0.0) + edge.bytes + extra
    return sent


def _boundary(costs: CostTable, row: int, slot: int) -> float:
    values = costs.boundary_of(row)
    return float(values[slot]) if len(values) else 0.0


def _work(
    stage: Stage, rows: Ints, row_of: dict[int, int], profile: Profile, hops: AxisHops
) -> StageWork:
    costs = profile.costs
    forward_s, input_grad_s, weight_grad_s, recompute_s = _phase_sums_s(costs, rows)
    static = costs.static_bytes[rows].sum(axis=0)
    sync_bytes = costs.gradient_sync_bytes[rows].sum(axis=0)
    trained = costs.updated_weight_bytes[rows].sum(axis=0)
    elsewhere = 0.0
    for group in profile.structure.shared_parameters:
        here = [layer for layer in group.layers if layer in row_of]
        if not here:
            continue
        holder = row_of[here[0]]
        shared = _shared_static_bytes(group, holder, stage.tensor_parallel, costs)
        static[0] -= shared * (len(here) - 1)
        sync_bytes[0] -= float(shared[StaticKind.GRADIENT]) * (len(here) - 1)
        if costs.updated_weight_bytes[holder, 0] > 0:
            trained[0] -= float(shared[StaticKind.WEIGHT]) * (len(here) - 1)
        if len(here) < len(group.layers):
            elsewhere += float(shared[StaticKind.GRADIENT])
    static.flags.writeable = sync_bytes.flags.writeable = trained.flags.writeable = False
    exposed_s = _exposed_s(costs, rows)
    weights = costs.static_bytes[rows][:, :, StaticKind.WEIGHT].sum(axis=1)
    return StageWork(
        forward_s=forward_s,
        input_grad_s=input_grad_s,
        weight_grad_s=weight_grad_s,
        recompute_s=recompute_s,
        exposed_s=exposed_s,
        communication_s=np.maximum(exposed_s, _communication_s(costs, rows, hops)),
        until_input_grad_bytes=float(costs.saved_until_input_grad_bytes[rows].sum()),
        until_weight_grad_bytes=float(costs.saved_until_weight_grad_bytes[rows].sum()),
        logits_bytes=_logits_bytes(row_of, profile),
        transient_bytes=float(costs.transient_bytes[rows].max()),
        static_bytes=static,
        opaque_bytes=float(costs.opaque_static_bytes[rows].sum()),
        largest_weight_bytes=float(weights.max()),
        shared_gradient_bytes=elsewhere,
        sync_bytes=sync_bytes,
        trained_weight_bytes=trained,
    )


def _phase_sums_s(costs: CostTable, rows: Ints) -> tuple[float, float, float, float]:
    """Forward, input gradient with recomputation, weight gradient, and recomputation again."""
    phases = costs.phases
    if phases is None:
        third = _FORWARD_SHARE * float(costs.duration_s[rows].sum())
        return third, third, third, 0.0
    recompute_s = float(phases.recompute_s[rows].sum())
    input_grad_s = float(phases.input_grad_s[rows].sum()) + recompute_s
    weight_grad_s = float(phases.weight_grad_s[rows].sum())
    return float(phases.forward_s[rows].sum()), input_grad_s, weight_grad_s, recompute_s


def _exposed_s(costs: CostTable, rows: Ints) -> Floats:
    """Exposed seconds of collectives by kind, shape [4]; zeros where the profile does not say."""
    if costs.time_by_kind_s is None:
        return np.zeros(len(TimeKind))
    exposed: Floats = costs.time_by_kind_s[rows].sum(axis=0)
    exposed[TimeKind.COMPUTE] = 0.0
    return exposed


def _communication_s(costs: CostTable, rows: Ints, hops: AxisHops) -> Floats:
    """Seconds of collectives by kind, hidden ones too, shape [4]."""
    total = np.zeros(len(TimeKind))
    if costs.collectives is None:
        return total
    for row, count in sorted(Counter(rows.tolist()).items()):
        for each in costs.collectives[row]:
            time_s = exchange_time_s(each, hops.get(each.axis, ()))
            total[kind_of_axis(each.axis)] += count * time_s
    return total


def _logits_bytes(row_of: dict[int, int], profile: Profile) -> float:
    """Kept bytes of head and loss, told by the names of the layers."""
    layers, kept = profile.structure.layers, profile.costs.saved_bytes
    return sum(float(kept[row]) for i, row in row_of.items() if layers[i].name in _OF_LOGITS)


def _shared_static_bytes(
    group: SharedParameters, row: int, tensor_parallel: int, costs: CostTable
) -> Floats:
    """{weight, gradient, optimizer} bytes per device of tied parameters, from one holder's row.

    The group states weight bytes of the whole tensor; the holder's row may hold more than it.
    """
    static: Floats = costs.static_bytes[row, 0]
    weight = float(static[StaticKind.WEIGHT])
    share = min(1.0, group.bytes / tensor_parallel / weight) if weight > 0 else 0.0
    return static * share


# Sums over intervals of a model's blocks, so that many layouts share one profile
# -------------------------------------------------------------------------------
# Everything a stage needs is a sum over its layers, except two maxima (the largest transient, the
# heaviest layer's weight). One row per block and recompute mode, summed up front, gives any
# interval in one subtraction; the layers before and after the blocks are two rows of their own. The
# stages of thousands of layouts end up as rows of one table, whose columns are those of
# `StageWork`.

_BLOCK: Final = "block"
_MTP: Final = "mtp"


def boundary_bytes(structure: Structure) -> float:
    """What a block hands to the next one, per device; what the first layer does without blocks."""
    names = (layer.name for layer in structure.layers)
    first = next((at for at, name in enumerate(names) if name == _BLOCK), 0)
    return structure.edges[min(first, len(structure.edges) - 1)].bytes


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
        return boundary_bytes(self.profile.structure)

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
