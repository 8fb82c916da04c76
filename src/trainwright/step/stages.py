"""The layers of each stage, added up: times, bytes, and what crosses to other stages."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from trainwright.cluster import (
    Hop,
    NetworkLevel,
    Pool,
    Rows,
    crossed_level,
    group_hops,
    launched_evenly,
    nested_hops,
)
from trainwright.costing.communication import Lines, all_reduce_lines, exchange_time_s, fastest_s
from trainwright.costing.estimate import axis_hops
from trainwright.costing.layer import kind_of_axis
from trainwright.errors import Fault, UnsupportedFeature
from trainwright.model import LayerKind, TransformerConfig
from trainwright.plans import Plan, Stage
from trainwright.plans.plan import DEFAULT_SCHEDULE, Parallelism
from trainwright.profile import (
    CostTable,
    Profile,
    StaticKind,
    Structure,
    TimeKind,
)
from trainwright.step.pipeline import PipelineShape, placement_of, slices_of
from trainwright.step.zero import Replicas

if TYPE_CHECKING:
    from trainwright.arrays import Floats, Ints

    AxisHops = Mapping[str, tuple[Hop, ...]]
    from trainwright.profile.measured_model import Trained

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
    layers = profile.structure.layers
    index_of = {layer.id: i for i, layer in enumerate(layers)}
    special = {i for group in profile.structure.shared_parameters for i in group.layers}
    special |= {i for i, layer in enumerate(layers) if layer.name in _OF_LOGITS}
    made: dict[tuple[object, ...], StageWork] = {}  # most stages are alike
    works = []
    for stage, own in zip(plan.stages, rows, strict=True):
        row_of = dict(zip((index_of[i] for i in stage.layers), own.tolist(), strict=True))
        key = (stage.tensor_parallel, own.tobytes(), *sorted(special & row_of.keys()))
        if key not in made:
            made[key] = _work(stage, own, row_of, profile, hops)
        works.append(made[key])
    return tuple(works)


# A head that is cut over all ranks of a pipeline
# -----------------------------------------------
# Every rank has the same share of the vocabulary: of the head's work and state, and of the state of
# the input embedding, which may be tied to it. What is left of the chain is priced as ever, with
# layers there that cost nothing. Looking up the embedding is left to the first stage; its parts
# on other ranks need no input but the tokens, so they are there ahead of time. A cut product is
# taken to run as fast as a whole one.

_HEAD: Final = (LayerKind.LM_HEAD, LayerKind.LOSS)
_OF_CLASS: Final = ("duration_s", "transient_bytes", "energy_j", "time_by_kind_s")
_STATE: Final = ("opaque_static_bytes", "static_bytes", "gradient_sync_bytes")
_STATE_OF_TRAINED: Final = "trained_weight_bytes"
_SAVED: Final = ("saved_until_input_grad_bytes", "saved_until_weight_grad_bytes")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CutHead:
    """What a rank of a pipeline has of a head that is cut over all of them.

    `share` is its part, as if a stage; `barrier_s` is how long all ranks exchange an activation of
    the last stage, which bounds each exchange of the head.
    """

    share: StageWork
    barrier_s: float

    def passes_s(self, barriers: int) -> tuple[float, float]:
        """Seconds of V and T of one microbatch; with one barrier V has the input gradient, too."""
        own = self.share
        times_s = own.forward_s, own.input_grad_s, own.weight_grad_s
        return head_passes_s(*times_s, barriers=barriers)

    def work_s(self, m: int, barriers: int, forward_s: float, backward_s: float) -> float:
        """What the rank runs of it before its last backward, of m microbatches.

        V and T take longer by what replicas exchange in each.
        """
        first_s, second_s = self.passes_s(barriers)
        passes_s = first_s + forward_s, second_s + backward_s
        return float(head_work_s(*passes_s, np.array(m), barriers=barriers))


def cuts_head(structure: Structure) -> bool:
    """Whether the layers end with a head and its loss, which nothing else uses."""
    names = [layer.name for layer in structure.layers]
    ends = [name for name in names if name in _HEAD]
    alone = {layer.layer_class for layer in structure.layers[len(names) - len(ends) :]}
    others = {layer.layer_class for layer in structure.layers[: len(names) - len(ends)]}
    is_last = bool(ends) and names[-len(ends) :] == ends and LayerKind.MTP not in names
    return is_last and not alone & others and len(names) > len(ends)


def without_head(profile: Profile) -> Profile:
    """The profile with a head that costs nothing, and an embedding without state."""
    costs, structure = profile.costs, profile.structure
    head = _rows_named(profile, _HEAD)
    embedding = _rows_named(profile, (_EMBEDDING,))
    changed: dict[str, Any] = {}
    for name in (*_OF_CLASS, *_SAVED, *_STATE, _STATE_OF_TRAINED):
        value = getattr(costs, name)
        if value is not None:
            value = value.copy()
            value[head] = 0.0
            if name in (*_STATE, _STATE_OF_TRAINED):
                value[embedding] = 0.0
            changed[name] = value
    if costs.phases is not None:
        phases = {}
        for field in fields(costs.phases):
            phases[field.name] = getattr(costs.phases, field.name).copy()
            phases[field.name][head] = 0.0
        changed["phases"] = replace(costs.phases, **phases)
    if costs.collectives is not None:
        silent = set(head.tolist())
        changed["collectives"] = tuple(
            () if row in silent else own for row, own in enumerate(costs.collectives)
        )
    return replace(
        profile,
        costs=replace(costs, **changed),
        structure=replace(structure, shared_parameters=()),
    )


def slice_faults(
    family: str, model: Trained, sequence_length: int, *, num_ranks: int
) -> Iterator[Fault]:
    """Why a family that cuts sequences cannot cut these: slices are equal, and look back alone."""
    slices, many = slices_of(family, num_ranks), slices_of(family, max(2, num_ranks))
    if sequence_length % slices:
        wanted = f"must be a multiple of {slices} slices for the schedule {family}"
        yield Fault("sequence_length", f"{wanted}, got {sequence_length}")
    if many > 1 and isinstance(model, TransformerConfig) and (model.towers or not model.causal):
        problem = f"must leave sequences whole, got {family}: tokens of this model see later ones"
        yield Fault("schedule", problem)


def in_slices(profile: Profile, slices: int) -> Profile:
    """What one of so many slices of a microbatch costs, where all take equal times.

    Kernels are taken to run as fast on a slice. What a slice keeps, and hands on, is an equal part,
    and so is what head and loss work with; blocks also gather gradients of earlier keys and values,
    so that what lies there while one runs is taken to be that of the whole microbatch.
    """
    if slices == 1:
        return profile
    costs, structure = profile.costs, profile.structure
    shared = [*_SAVED, *(name for name in _OF_CLASS if name != "transient_bytes")]
    values = {name: getattr(costs, name) for name in (*shared, "boundary_bytes")}
    changed: dict[str, Any] = {n: own / slices for n, own in values.items() if own is not None}
    changed["transient_bytes"] = costs.transient_bytes.copy()
    changed["transient_bytes"][_rows_named(profile, _HEAD)] /= slices
    if costs.phases is not None:
        times = {f.name: getattr(costs.phases, f.name) / slices for f in fields(costs.phases)}
        changed["phases"] = replace(costs.phases, **times)
    if costs.collectives is not None:
        changed["collectives"] = tuple(
            tuple(replace(each, bytes=each.bytes / slices) for each in own)
            for own in costs.collectives
        )
    edges = tuple(replace(edge, bytes=edge.bytes / slices) for edge in structure.edges)
    return replace(
        profile, costs=replace(costs, **changed), structure=replace(structure, edges=edges)
    )


def waiting_for_host(profile: Profile, bytes_per_s: float) -> Profile:
    """The profile with layers that wait for what a link cannot copy there and back beside them.

    A head and its loss do not: they are on the last rank, whose activations stay.
    """
    costs, phases = profile.costs, profile.costs.by_phase
    waits_s = np.maximum(0.0, 2 * costs.saved_bytes / bytes_per_s - phases.total_s)
    waits_s[_rows_named(profile, _HEAD)] = 0.0
    longer = replace(phases, input_grad_s=phases.input_grad_s + waits_s)
    return replace(
        profile, costs=replace(costs, phases=longer, duration_s=costs.duration_s + waits_s)
    )


def rank_lines(levels: tuple[NetworkLevel, ...], degrees: Parallelism) -> Lines:
    """Start and seconds per byte of each way in which the ranks of a pipeline sum a tensor."""
    if degrees.pipeline == 1:
        return ()
    size, p, repeats = RankSpacing.of(degrees)
    return all_reduce_lines(group_hops(levels, ranks=p, stride=size, tiles=repeats))


def cut_head(profile: Profile, p: int, lines: Lines, hops: AxisHops) -> CutHead:
    """The share of one of p ranks; raises `UnsupportedFeature` for models whose head is not cut.

    Of several options of a layer the fastest is taken. `lines` are the ways to sum over the ranks.
    """
    structure, costs = profile.structure, profile.costs
    if not cuts_head(structure):
        raise UnsupportedFeature(
            "a head is cut over all ranks only where it ends the model and no other layer uses it",
            alternative=f"use the schedule {DEFAULT_SCHEDULE}",
        )
    layers = [i for i, layer in enumerate(structure.layers) if layer.name in _HEAD]
    row_of = {i: _fastest_row(costs, structure.layers[i].layer_class) for i in layers}
    rows = np.array(list(row_of.values()))
    forward_s, input_grad_s, weight_grad_s, recompute_s = head_times_s(profile)
    exposed_s = _exposed_s(costs, rows)
    holders = [i for i, layer in enumerate(structure.layers) if layer.name == _EMBEDDING]
    held = {i: _fastest_row(costs, structure.layers[i].layer_class) for i in holders} | row_of
    static, sync_bytes, trained = _state_of(held, profile)
    # The input of the head is not cut: every rank has it whole.
    given = sum(edge.bytes for edge in structure.edges if edge.target == layers[0])
    kept = float(costs.saved_bytes[rows].sum())
    kept = (kept - min(given, kept)) / p + min(given, kept)
    weights = costs.static_bytes[list(held.values())][:, :, StaticKind.WEIGHT].sum(axis=1)
    return CutHead(
        share=StageWork(
            forward_s=forward_s / p,
            input_grad_s=input_grad_s / p,
            weight_grad_s=weight_grad_s / p,
            recompute_s=recompute_s / p,
            exposed_s=exposed_s / p,
            communication_s=np.maximum(exposed_s, _communication_s(costs, rows, hops)) / p,
            until_input_grad_bytes=0.0,
            until_weight_grad_bytes=kept,
            logits_bytes=kept,
            transient_bytes=float(costs.transient_bytes[rows].max()) / p,
            static_bytes=static / p,
            opaque_bytes=float(costs.opaque_static_bytes[list(held.values())].sum()) / p,
            largest_weight_bytes=float(weights.max()) / p,
            shared_gradient_bytes=0.0,
            sync_bytes=sync_bytes / p,
            trained_weight_bytes=trained / p,
        ),
        barrier_s=fastest_s(lines, given),
    )


def head_times_s(profile: Profile) -> tuple[float, float, float, float]:
    """Of a whole head: forward, input gradient with recomputation, weight gradient, recomputation.

    Of several options of a layer the fastest is taken.
    """
    layers = [layer for layer in profile.structure.layers if layer.name in _HEAD]
    rows = [_fastest_row(profile.costs, layer.layer_class) for layer in layers]
    return _phase_sums_s(profile.costs, np.array(rows, dtype=np.int64))


def head_passes_s(
    forward_s: float, input_grad_s: float, weight_grad_s: float, *, barriers: int
) -> tuple[float, float]:
    """V and T. With one barrier V makes the gradient of its input, with two T does."""
    if barriers == 1:
        return forward_s + input_grad_s, weight_grad_s
    return forward_s, input_grad_s + weight_grad_s


def head_work_s(first_s: float, second_s: float, m: Ints, *, barriers: int) -> Floats:
    """What a rank runs of a head before its last backward: V and T of m microbatches.

    Where there is one barrier the last T may come after it.
    """
    found_s: Floats = m.astype(np.float64) * (first_s + second_s)
    return found_s - (2 - barriers) * second_s


def _rows_named(profile: Profile, names: Collection[str]) -> Ints:
    classes = {layer.layer_class for layer in profile.structure.layers if layer.name in names}
    rows = [row for number in sorted(classes) for row in profile.costs.rows_of(number)]
    return np.array(rows, dtype=np.int64)


def _fastest_row(costs: CostTable, layer_class: int) -> int:
    return min(costs.rows_of(layer_class), key=lambda row: float(costs.duration_s[row]))


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
    static, sync_bytes, trained = _state_of(row_of, profile)
    elsewhere = _gradients_elsewhere(row_of, profile)
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


def _state_of(row_of: Mapping[int, int], profile: Profile) -> tuple[Floats, Floats, Floats]:
    """Static [2, 3], synchronised [2] and trained bytes [2] of some layers, tied ones once."""
    costs, rows = profile.costs, list(row_of.values())
    static = costs.static_bytes[rows].sum(axis=0)
    sync_bytes = costs.gradient_sync_bytes[rows].sum(axis=0)
    trained = costs.updated_weight_bytes[rows].sum(axis=0)
    for group in profile.structure.shared_parameters:
        here = [layer for layer in group.layers if layer in row_of]
        if not here:
            continue
        holder = row_of[here[0]]
        share, others = costs.share_of_tied(group, holder), len(here) - 1
        static[0] -= costs.static_bytes[holder, 0] * share * others
        sync_bytes[0] -= costs.tied_gradient_bytes(group, holder) * others
        trained[0] -= float(costs.updated_weight_bytes[holder, 0]) * share * others
    return static, sync_bytes, trained


def _gradients_elsewhere(row_of: Mapping[int, int], profile: Profile) -> float:
    """Of tied parameters that other stages hold, too."""
    found = 0.0
    for group in profile.structure.shared_parameters:
        here = [layer for layer in group.layers if layer in row_of]
        if here and len(here) < len(group.layers):
            found += profile.costs.tied_gradient_bytes(group, row_of[here[0]])
    return found


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


def boundary_bytes(structure: Structure) -> float:
    """What the layers of text hand on, per device: that of the embedding, else of the first."""
    names = (layer.name for layer in structure.layers)
    first = next((at for at, name in enumerate(names) if name == _EMBEDDING), 0)
    return structure.edges[min(first, len(structure.edges) - 1)].bytes


_EMBEDDING = "embedding"


# Which devices a plan's stages lie on, and which networks lie between them
# -------------------------------------------------------------------------
# Pipeline ranks take consecutive devices in order. Inside a rank tensor groups are innermost, then
# context groups, then replicas: replica k of a stage that starts at device o with c context ranks
# of t devices runs on o + k·c·t to o + (k + 1)·c·t − 1. Experts are dealt out over the same
# devices.
#
# With the pipeline inside the replicas (`plans.plan`), replica k is a whole pipeline of p
# ranks of c·t devices each: rank r of it runs on (k·p + r)·c·t to (k·p + r + 1)·c·t − 1.


def stages_on(rank_of_stage: Sequence[int], rank: int) -> list[int]:
    """The virtual stages of a rank."""
    return [stage for stage, owner in enumerate(rank_of_stage) if owner == rank]


@dataclass(frozen=True, kw_only=True)  # no slots: what is asked for each stage is kept
class Placement:
    """A plan laid on the devices of one pool."""

    plan: Plan
    pool: Pool

    @cached_property
    def degrees(self) -> Parallelism:
        """The degrees that all stages share; those of the plan's own, else one of each."""
        return self.plan.parallelism or Parallelism(pipeline=len(self.plan.stages))

    @cached_property
    def shape(self) -> PipelineShape:
        """Family, ranks, microbatches of one replica and chunks per rank."""
        stages, p = len(self.plan.stages), self.degrees.pipeline
        return PipelineShape(
            family=self.plan.schedule,
            num_ranks=p,
            num_microbatches=self.plan.num_microbatches // self.data_parallel[0],
            virtual_stages=max(1, stages // p),
            order=self.plan.order,
            room_bytes=self.plan.room_bytes,
        )

    @cached_property
    def rank_of_stage(self) -> tuple[int, ...]:
        """The pipeline rank of each virtual stage."""
        return placement_of(self.shape).rank_of_stage

    @cached_property
    def data_parallel(self) -> list[int]:
        """Replicas of each stage."""
        return [stage.data_parallel for stage in self.plan.stages]

    @cached_property
    def is_uniform(self) -> bool:
        """Whether all stages have the same degrees."""
        return len({(s.data_parallel, s.tensor_parallel) for s in self.plan.stages}) == 1

    @cached_property
    def in_flight(self) -> list[int]:
        """Microbatches a replica holds under 1F1B: ⌈(d of its stage and all later ones) / d⌉."""
        degrees = self.data_parallel
        behind = list(accumulate(reversed(degrees)))[::-1]
        share = [self.plan.num_microbatches // d for d in degrees]
        return [min(-(-s // d), m) for s, d, m in zip(behind, degrees, share, strict=True)]

    def replicas(self, stage: int) -> Replicas:
        """How the replicas of a stage, dense and expert, spread over the network."""
        placed = self.plan.stages[stage]
        own = replace(self.degrees, tensor=placed.tensor_parallel, data=placed.data_parallel)
        if self.is_uniform:
            return group_replicas(self.pool, own)
        return group_replicas(self.pool, replace(own, pipeline=1), self._first_devices[stage])

    def axis_hops(self, tensor: int) -> dict[str, tuple[Hop, ...]]:
        """How the groups inside a layer spread over the network."""
        return group_axis_hops(self.pool, replace(self.degrees, tensor=tensor))

    def level_between(self, sender: int, receiver: int) -> NetworkLevel | None:
        """The outermost level that any replica's message between two stages crosses."""
        if not self.is_uniform:
            return self._level_between_unequal(sender, receiver)
        ranks, spacing = self.rank_of_stage, RankSpacing.of(self.degrees)
        return spacing.level_between(self.pool.levels, ranks[sender], ranks[receiver])

    @cached_property
    def _sizes(self) -> list[int]:
        return [stage.num_devices for stage in self.plan.stages]

    @cached_property
    def _first_devices(self) -> list[int]:
        return list(accumulate(self._sizes, initial=0))

    def _level_between_unequal(self, sender: int, receiver: int) -> NetworkLevel:
        sizes, first = self._sizes, self._first_devices
        steps = max(sizes[sender], sizes[receiver])
        step = np.arange(steps)
        crossed = crossed_level(
            self.pool.levels,
            first[sender] + step * sizes[sender] // steps,
            first[receiver] + step * sizes[receiver] // steps,
        )
        assert crossed is not None, "two stages share no device"
        return crossed


def group_replicas(pool: Pool, degrees: Parallelism, start: int | None = None) -> Replicas:
    """How dense and expert replicas of pipeline ranks spread over the network: `replica_hops`."""
    return _replicas_over(pool.levels, degrees, start, hosted_weights(pool))


def hosted_weights(pool: Pool) -> tuple[float, float]:
    """The share of sharded weights on the hosts of a pool, and seconds in which a byte comes."""
    device = pool.accelerator
    if device.host is None or device.held_weights == 1.0:
        return 0.0, 0.0
    return 1.0 - device.held_weights, 1.0 / device.host.link_bytes_per_s


@lru_cache(maxsize=1024)
def _replicas_over(
    levels: tuple[NetworkLevel, ...],
    degrees: Parallelism,
    start: int | None,
    hosted: tuple[float, float],
) -> Replicas:
    dense, expert = replica_rows(degrees)
    return Replicas.over(
        (math.prod(n for n, _ in dense), math.prod(n for n, _ in expert)),
        replica_hops(levels, degrees, start),
        zero_stage=degrees.zero_stage,
        copies=copy_hops(levels, degrees, start),
        hosted=hosted,
    )


def replica_rows(degrees: Parallelism) -> tuple[Rows, Rows]:
    """The replicas of what a device holds that share a copy of its state: context, then data.

    Dense ones and those of experts, which have some there where they do not fill the devices of a
    rank that follow on each other.
    """
    t, c, d = degrees.tensor, degrees.context, degrees.data // degrees.state_copies
    spanned = degrees.expert * degrees.expert_shards
    if degrees.adjacent_devices == degrees.devices_per_rank:
        return ((d * c, t),), ((max(1, t * c * d // spanned), spanned),)
    outer = (d, t * c * degrees.pipeline)
    return ((c, t), outer), ((max(1, t * c // spanned), spanned), outer)


def replica_hops(
    levels: tuple[NetworkLevel, ...], degrees: Parallelism, start: int | None = None
) -> tuple[tuple[Hop, ...], tuple[Hop, ...]]:
    """How these replicas, dense and of experts, spread over the network: see `nested_hops`.

    The ranks of the pipeline begin at device `start` of more that a plan uses, or are all of it.
    """
    tiles = degrees.state_copies
    if degrees.adjacent_devices == degrees.devices_per_rank:
        tiles *= degrees.pipeline
    if start is None and tiles == degrees.pipeline == 1:
        spanned = degrees.expert * degrees.expert_shards
        together = math.lcm(degrees.tensor * degrees.context, spanned)
        levels = launched_evenly(levels, degrees.devices_per_rank, together)
    dense, expert = replica_rows(degrees)
    return (
        nested_hops(levels, dense, tiles=tiles, start=start or 0),
        nested_hops(levels, expert, tiles=tiles, start=start or 0),
    )


def copy_hops(
    levels: tuple[NetworkLevel, ...], degrees: Parallelism, start: int | None = None
) -> tuple[Hop, ...]:
    """How like shards of all copies of sharded state spread over the network."""
    copies, tiles, whole = degrees.state_copies, degrees.pipeline, degrees.devices_per_rank
    if copies == 1:
        return ()
    if degrees.adjacent_devices < whole:  # a group is so many whole pipelines
        tiles, whole = 1, whole * degrees.pipeline
    stride = whole // copies
    return group_hops(levels, ranks=copies, stride=stride, tiles=tiles, start=start or 0)


def group_axis_hops(pool: Pool, degrees: Parallelism) -> dict[str, tuple[Hop, ...]]:
    """How the groups inside a layer spread over the network."""
    return axis_hops(
        pool,
        tensor=degrees.tensor,
        context=degrees.context,
        expert=degrees.expert,
        expert_tensor=degrees.expert_shards,
    )


class RankSpacing(NamedTuple):
    """Pipelines of `num_ranks` ranks of `size` devices each, `repeats` of them in a row."""

    size: int
    num_ranks: int
    repeats: int = 1

    @classmethod
    def of(cls, degrees: Parallelism) -> RankSpacing:
        """That of all ranks of a plan."""
        size = degrees.adjacent_devices
        return cls(size, degrees.pipeline, degrees.devices_per_rank // size)

    def level_between(
        self, levels: tuple[NetworkLevel, ...], sender: int, receiver: int
    ) -> NetworkLevel | None:
        """The outermost level between any two like devices of two ranks.

        Device k of one rank sends to device k of the other. Some such pair lies across a unit's
        edge just where the first and the last device of all these pairs do.
        """
        low, high = sorted((sender, receiver))
        if low == high:
            return None
        first, distance = low * self.size, (high - low) * self.size
        crossed, unit = None, 1
        for level in levels:
            reach = self.size - 1 + distance
            if distance >= unit or self._latest(first, unit) + reach >= unit:
                crossed = level
            unit *= level.size
        return crossed

    def _latest(self, first: int, unit: int) -> int:
        """How far into a unit of devices that device of a pipeline lies at most."""
        period = self.size * self.num_ranks
        shared = math.gcd(unit, period)
        if self.repeats >= unit // shared:  # every place that it can have
            return unit - shared + first % shared
        if first % unit + (self.repeats - 1) * period < unit:
            return first % unit + (self.repeats - 1) * period
        return max((first + k * period) % unit for k in range(self.repeats))


def rank_level(
    levels: tuple[NetworkLevel, ...], sender: int, receiver: int, size: int
) -> NetworkLevel | None:
    """The outermost level between any two like devices of two ranks of `size` devices each."""
    return RankSpacing(size, max(sender, receiver) + 1).level_between(levels, sender, receiver)
