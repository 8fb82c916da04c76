"""What somebody measured or imported, in the form in which the planner takes what a model costs.

The planner cuts a chain of layers whose classes hold the same state however they are run, and
whose times are known by phase. The estimator makes no other profiles; a file may hold others. What
a file says is brought to that form once, without a figure made up in silence:

    graph       a chain. A source that takes no time and holds no state is no layer but an input
                of the batch: every stage that needs it reads it itself, and what is kept of it
                counts with the first layer that reads it. Layers that branch are put into one
                order, each after those that it reads. A cut sends all edges that cross it, for a
                stage passes on what a later one than the next reads:

                    bytes(cut after i) = sum of bytes(u -> v) over edges with u <= i < v

                Every set of stages that is contiguous in that order is searched. Where the graph
                has other orders, the bound on all plans is that of `planning.bounds.step`.
    times       by phase where the file has phases. Where it has one time T for all, forward, input
                gradient and weight gradient are T/3 each, T that of the fastest option of the layer
                that recomputes nothing; what another option takes more is recomputation.
    state       weights, gradients and optimizer states where the file tells them apart: ZeRO shards
                these. Opaque bytes are on every replica in full. What one option of a layer holds
                beyond another is what it needs while the layer runs: in Piper's files it is the
                activations that were recomputed.
    microbatch  of one sequence where the file names no size.

A profile that says all that the estimator says is left as it is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

import numpy as np

from trainwright.errors import Fault, InvalidInput, UnsupportedFeature, refuse
from trainwright.model import LayerKind
from trainwright.profile.profile import (
    BLOCK_LAYER,
    CostTable,
    Edge,
    Layer,
    PhaseTimes,
    Profile,
    ProfilePoint,
    Recompute,
    SharedParameters,
    StaticKind,
    Structure,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.arrays import Floats, Ints
    from trainwright.model import RunShape, TransformerConfig

    Rows = NDArray[np.int64]
    Trained: TypeAlias = "TransformerConfig | MeasuredModel"

ONE_ORDER: Final = "order"  # what is assumed where layers could be cut in other orders
_FLAT: Final = "plan it without --cluster: the flat question takes any graph of layers"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredModel:
    """Layers whose costs are known at some microbatch sizes and tensor degrees, and nowhere else.

    A `ProfileSource` of `trainwright.profile`. `offered` has the profile of each (microbatch size,
    tensor degree), all of the same layers; `assumptions` says in words what was taken for granted
    about the file.
    """

    experts: ClassVar[None] = None  # none that could be dealt out: the profile has one degree
    causal: ClassVar[bool] = False  # nothing that a context degree could cut
    offered: dict[tuple[int, int], Profile]
    assumptions: dict[str, str] = field(default_factory=dict)

    @property
    def any_profile(self) -> Profile:
        """One of them; all have the same layers."""
        return next(iter(self.offered.values()))

    @property
    def num_layers(self) -> int:
        """Blocks of the chain; a stage holds at least one."""
        names = [layer.name for layer in self.any_profile.structure.layers]
        return names.count(LayerKind.BLOCK)

    @property
    def is_in_one_order(self) -> bool:
        """Whether the layers branch, so that stages could be cut from other orders, too."""
        return ONE_ORDER in self.assumptions

    @property
    def sequence_length(self) -> int | None:
        """Tokens of a sequence, where the file says so."""
        return self.any_profile.point.sequence_length

    @property
    def tells_state_apart(self) -> bool:
        """Whether all that is synchronised is known as weights, so that ZeRO can shard it."""
        return all(_tells_state_apart(profile.costs) for profile in self.offered.values())

    def sizes(self) -> tuple[int, ...]:
        """The microbatch sizes, ascending."""
        return tuple(sorted({size for size, _ in self.offered}))

    def degrees(self, microbatch_size: int, modes: Collection[Recompute]) -> tuple[int, ...]:
        """The tensor degrees at a size at which every layer can run in one of the modes."""
        return tuple(
            degree
            for (size, degree), profile in sorted(self.offered.items())
            if size == microbatch_size and _runs_in(profile.costs, modes)
        )

    def faults_at(self, run: RunShape) -> Iterator[Fault]:
        """Why nothing is known of a microbatch cut as `run`; empty where its costs are known."""
        known = self.sequence_length
        if known not in (None, run.sequence_length):
            yield Fault("sequence_length", f"must be {known}, at which the profile was taken")
        for name in ("context_parallel", "expert_parallel"):
            if (degree := getattr(run, name)) > 1:
                yield Fault(name, f"must be 1: the profile has no other, got {degree}")
        if run.expert_tensor_parallel not in (None, run.tensor_parallel):
            yield Fault("expert_tensor_parallel", "must be left out: the profile has no other")
        degrees = sorted(t for size, t in self.offered if size == run.microbatch_size)
        if not degrees:
            sizes = ", ".join(map(str, self.sizes()))
            problem = f"must be one of {sizes}, which the profile has, got {run.microbatch_size}"
            yield Fault("microbatch_size", problem)
        elif run.tensor_parallel not in degrees:
            offered = ", ".join(map(str, degrees))
            problem = f"must be one of {offered}, which the profile has at microbatches of "
            yield Fault(
                "tensor_parallel", f"{problem}{run.microbatch_size}, got {run.tensor_parallel}"
            )
        if not run.fused_attention or run.fused_cross_entropy:
            yield Fault("kernels", "must be left as they are: the profile was taken with its own")

    def recompute_modes(self, microbatch_size: int, degree: int) -> tuple[Recompute, ...]:
        """What blocks may recompute at a point: no mode that none of them offers."""
        profile = self.offered.get((microbatch_size, degree))
        if profile is None:
            return ()
        return tuple(mode for mode in Recompute if mode in profile.costs.recompute)

    def profile(self, point: ProfilePoint) -> Profile:
        """The profile of a size and a single degree, with the options of the point's modes.

        Raises `UnsupportedFeature` where nothing is known of the point.
        """
        (degree,) = point.tensor_parallel
        found = self.offered.get((point.microbatch_size or 1, degree))
        modes = frozenset(map(Recompute, point.recompute))
        if found is None or not _runs_in(found.costs, modes):
            raise UnsupportedFeature(
                f"the profile has no costs for {point.microbatch_size} sequences per microbatch "
                f"at tensor degree {degree}",
                alternative="plan within what was measured",
            )
        return in_modes(found, modes)

    def without(self, excluded: Collection[str]) -> MeasuredModel:
        """The options of these ids left out; raises `InvalidInput` where none is left anywhere."""
        left = {}
        for key, profile in self.offered.items():
            rows = [option not in excluded for option in profile.costs.option_ids]
            if _serves_all(profile.costs, rows):
                left[key] = with_rows(profile, np.flatnonzero(rows))
        if not left:
            names = ", ".join(sorted(excluded))
            raise InvalidInput.of("exclude-option", f"must leave every layer one, got {names}")
        return replace(self, offered=left)

    def with_sequence(self, length: int) -> MeasuredModel:
        """The same, of sequences of so many tokens.

        Raises `InvalidInput` where the file has another length.
        """
        known = self.sequence_length
        if known not in (None, length):
            problem = f"must be {known}, at which the profile was taken, or left out; got {length}"
            raise InvalidInput.of("sequence", problem)
        return replace(
            self,
            offered={
                key: replace(profile, point=replace(profile.point, sequence_length=length))
                for key, profile in self.offered.items()
            },
        )

    def checkpoint_bytes(self) -> float:
        """Weights and optimizer states of all layers, and what is not told apart."""
        kept = [kind for kind in StaticKind if kind is not StaticKind.GRADIENT]
        return min(
            degree * _whole_state_bytes(profile, kept)
            for (_, degree), profile in self.offered.items()
        )

    def least_state_bytes(self) -> float:
        """Of state over all devices, each kept at least once however it is cut."""
        return min(
            degree * _whole_state_bytes(profile) for (_, degree), profile in self.offered.items()
        )


def measured_model(profiles: Sequence[Profile]) -> MeasuredModel:
    """The profiles of a file, which are those of one model, in the planner's form.

    Raises `UnsupportedFeature` for what the planner cannot take as it stands, such as a graph with
    branches, naming what can, and `InvalidInput` for points that contradict each other.
    """
    offered: dict[tuple[int, int], Profile] = {}
    assumptions: dict[str, str] = {}
    for index, profile in enumerate(profiles):
        _refuse_other_axes(profile.point, index)
        chain = _as_chain(profile, assumptions)
        size = profile.point.microbatch_size or 1
        for degree in sorted(set(chain.costs.tensor_parallel.tolist())):
            rows = chain.costs.tensor_parallel == degree
            if not _serves_all(chain.costs, rows):
                continue
            if (size, degree) in offered:
                problem = (
                    f"must say which of the points to plan: more than one has tensor degree "
                    f"{degree} for microbatches of {size}{_lengths_in_words(profiles)}"
                )
                raise InvalidInput.of("point", problem)
            offered[size, degree] = _at_degree(chain, np.flatnonzero(rows), degree, assumptions)
    if not offered:
        raise InvalidInput.of("model", "must have a tensor degree that every layer offers")
    found = MeasuredModel(offered=offered, assumptions=assumptions)
    refuse(_disagreements(found))
    _note(found, profiles)
    return found


def _note(found: MeasuredModel, profiles: Sequence[Profile]) -> None:
    """What holds of all profiles, whatever they hold."""
    notes = found.assumptions
    if any(profile.point.microbatch_size is None for profile in profiles):
        notes["microbatch"] = (
            "the profile names no size: a microbatch counts as one sequence of the global batch"
        )
    opaque = any(profile.costs.opaque_static_bytes.any() for profile in found.offered.values())
    if not found.tells_state_apart:
        notes["state"] = (
            "the profile does not tell weights, gradients and optimizer states apart: nothing is "
            "sharded (no ZeRO), and no time is counted for the optimizer"
        )
    elif opaque:
        notes["state"] = "bytes of unknown kind are kept in full by every replica, whatever ZeRO"
    if any(degree > 1 for _, degree in found.offered):
        notes["tensor"] = "exchanges of a tensor group are part of the times of the layers"


def _refuse_other_axes(point: ProfilePoint, index: int) -> None:
    for name, degree in (
        ("context", point.context_parallel),
        ("expert", point.expert_parallel),
    ):
        if degree > 1:
            raise UnsupportedFeature(
                f"point {index} was taken at {name} degree {degree}, which no other point shows",
                alternative=f"use a profile at {name} degree 1",
            )
    cut = point.expert_tensor_parallel
    if cut is not None and set(point.tensor_parallel) != {cut}:
        raise UnsupportedFeature(
            f"point {index} cuts experts in {cut}, and other layers otherwise",
            alternative="use a profile that cuts all layers alike",
        )


def _disagreements(found: MeasuredModel) -> Iterator[Fault]:
    """Points that are not of the same layers, or of sequences of other lengths."""
    first = found.any_profile
    for profile in found.offered.values():
        if [(e.id, e.name) for e in profile.structure.layers] != [
            (e.id, e.name) for e in first.structure.layers
        ]:
            yield Fault("point", "must say which to plan: the points are not of the same layers")
            return
        if profile.point.sequence_length != first.point.sequence_length:
            problem = "must say which to plan: the points differ in sequence length"
            yield Fault("point", problem + _lengths_in_words(found.offered.values()))
            return


def _lengths_in_words(profiles: Iterable[Profile]) -> str:
    """The option that tells points apart that were taken at several sequence lengths."""
    lengths = sorted({each.point.sequence_length or 0 for each in profiles} - {0})
    known = ", ".join(map(str, lengths))
    return f"; --sequence takes those of one of {known}" if len(lengths) > 1 else ""


# The graph of a file as a chain
# ------------------------------


def _as_chain(profile: Profile, assumptions: dict[str, str]) -> Profile:
    """The layers in one order, each pair joined by one edge, classes told apart by their rows."""
    structure, costs = profile.structure, profile.costs
    inputs = () if _is_path(structure, ()) else tuple(_inputs(structure, costs))
    order = _order(structure, inputs)
    if inputs:
        names = ", ".join(dict.fromkeys(_shown(structure.layers[i]) for i in inputs))
        assumptions["inputs"] = (
            f"{names}: of the batch, read by every stage that needs it; kept with its first reader"
        )
    if not _is_path(structure, inputs):
        assumptions |= _words_of_branches(structure, order, inputs)
    place = {layer: at for at, layer in enumerate(order)}
    beside = _kept_inputs(structure, costs, inputs, place)
    crossing = _crossing(structure, place)
    rows: list[Rows] = []
    classes: list[int] = []
    boundaries: list[list[list[float]]] = []
    known: dict[tuple[object, ...], int] = {}
    shared = {layer for group in structure.shared_parameters for layer in group.layers}
    for at, layer in enumerate(order):
        own = np.array(costs.rows_of(structure.layers[layer].layer_class))
        ends = [_boundary(profile, order, crossing, at, int(row)) for row in own]
        alone = layer if layer in shared else None
        key = (tuple(own.tolist()), tuple(map(tuple, ends)), beside[at], alone)
        if key not in known:
            known[key] = len(rows)
            rows.append(own)
            boundaries.append(ends)
        classes.append(known[key])
    table = _taken(costs, rows, boundaries)
    added = np.zeros(table.num_rows)
    for at, number in enumerate(classes):
        added[table.class_offsets[number] : table.class_offsets[number + 1]] = beside[at]
    called = _named_blocks([structure.layers[layer].name for layer in order])
    return Profile(
        structure=Structure(
            layers=tuple(
                Layer(id=structure.layers[layer].id, name=name, layer_class=number)
                for layer, name, number in zip(order, called, classes, strict=True)
            ),
            edges=tuple(
                Edge(
                    source=at,
                    target=at + 1,
                    bytes=sum(structure.edges[number].bytes for number in cut),
                )
                for at, cut in enumerate(crossing)
            ),
            shared_parameters=tuple(
                SharedParameters(layers=tuple(sorted(place[i] for i in holders)), bytes=group.bytes)
                for group in structure.shared_parameters
                if len(holders := [layer for layer in group.layers if layer in place]) > 1
            ),
        ),
        costs=replace(
            table,
            saved_until_input_grad_bytes=table.saved_until_input_grad_bytes + added,
        ),
        point=profile.point,
    )


def _is_path(structure: Structure, inputs: Collection[int]) -> bool:
    """Whether all layers but the inputs follow one another."""
    count = len(structure.layers) - len(inputs)
    edges = [edge for edge in structure.edges if edge.source not in inputs]
    sources, targets = {e.source for e in edges}, {e.target for e in edges}
    return len(edges) == count - 1 == len(sources) == len(targets)


def _inputs(structure: Structure, costs: CostTable) -> Iterator[int]:
    """Layers without predecessors that do nothing and hold no state."""
    targets = {edge.target for edge in structure.edges}
    sources = {edge.source for edge in structure.edges}
    for index, layer in enumerate(structure.layers):
        rows = list(costs.rows_of(layer.layer_class))
        idle = not costs.duration_s[rows].any() and not costs.total_static_bytes[rows].any()
        if index in sources and index not in targets and idle:
            yield index


def _order(structure: Structure, inputs: Collection[int]) -> list[int]:
    """All layers but the inputs, each after those that it reads, so that few bytes cross a cut.

    Of the layers that could come next it takes the one after which the least lies between what ran
    and what did not; the first in the file among several. A chain has one such order.
    """
    edges = [edge for edge in structure.edges if edge.source not in inputs]
    rest = [at for at in range(len(structure.layers)) if at not in inputs]
    waiting = dict.fromkeys(rest, 0)
    after: dict[int, list[int]] = {at: [] for at in rest}
    # What running a layer adds to the bytes between both sides: what it sends less what it reads.
    added = dict.fromkeys(rest, 0.0)
    for edge in edges:
        waiting[edge.target] += 1
        after[edge.source].append(edge.target)
        added[edge.source] += edge.bytes
        added[edge.target] -= edge.bytes
    ready = [(added[at], at) for at in rest if not waiting[at]]
    heapify(ready)
    order: list[int] = []
    while ready:
        _, layer = heappop(ready)
        order.append(layer)
        for target in after[layer]:
            waiting[target] -= 1
            if not waiting[target]:
                heappush(ready, (added[target], target))
    return order


def _words_of_branches(
    structure: Structure, order: Sequence[int], inputs: Collection[int]
) -> dict[str, str]:
    """What is taken for granted about layers that are no chain."""
    found = {
        "branches": f"{_branch(structure, inputs)}: a stage passes on what a later one than the "
        "next reads, each edge of the graph by itself"
    }
    joined = {(edge.source, edge.target) for edge in structure.edges}
    if not all(pair in joined for pair in pairwise(order)):
        found[ONE_ORDER] = (
            "stages are cut from one order of the layers, chosen so that little crosses a cut; "
            "other orders are not searched, but the bound holds for them"
        )
    return found


def _crossing(structure: Structure, place: dict[int, int]) -> list[list[int]]:
    """Numbers of the edges that each cut of the order goes through, by the layer before it."""
    cuts: list[list[int]] = [[] for _ in range(len(place) - 1)]
    for number, edge in enumerate(structure.edges):
        if edge.source in place:
            for at in range(place[edge.source], place[edge.target]):
                cuts[at].append(number)
    return cuts


def _branch(structure: Structure, inputs: Collection[int]) -> str:
    """Where the graph is no chain, in words."""
    layers = structure.layers
    for name, ends in (
        ("leads to", [e.source for e in structure.edges if e.source not in inputs]),
        ("follows", [e.target for e in structure.edges if e.source not in inputs]),
    ):
        for index, layer in enumerate(layers):
            if (count := ends.count(index)) > 1:
                return f"layer {_shown(layer)} {name} {count} layers"
    return f"the {len(layers)} layers of this graph do not hang together"


def _shown(layer: Layer) -> str:
    return f"{layer.id} ({layer.name})" if layer.name else str(layer.id)


def _kept_inputs(
    structure: Structure, costs: CostTable, inputs: Iterable[int], place: dict[int, int]
) -> list[float]:
    """Bytes of inputs that each layer of the chain keeps for all its readers."""
    beside = [0.0] * len(place)
    for index in inputs:
        readers = [e.target for e in structure.edges if e.source == index and e.target in place]
        if readers:
            row = costs.rows_of(structure.layers[index].layer_class)[0]
            beside[min(place[reader] for reader in readers)] += float(costs.saved_bytes[row])
    return beside


def _boundary(
    profile: Profile, order: Sequence[int], crossing: Sequence[Sequence[int]], at: int, row: int
) -> list[float]:
    """What cuts before and after a layer add to what is sent, by its option; empty for zeros.

    Of an edge that alone joins neighbours each of both says its own. Of others it is the most that
    any option of the tensor degree adds, said by the layer before the cut.
    """
    found = []
    for cut, is_before in ((at - 1, True), (at, False)):
        if not 0 <= cut < len(crossing):
            continue
        numbers = crossing[cut]
        if len(numbers) == 1 and _joins(profile.structure, numbers[0], order[cut : cut + 2]):
            found.append(_added_by(profile, order[at], row, numbers[0]))
        else:
            degree = int(profile.costs.tensor_parallel[row])
            found.append(
                0.0 if is_before else sum(_most_added(profile, n, degree) for n in numbers)
            )
    return found if any(found) else []


def _joins(structure: Structure, number: int, pair: Sequence[int]) -> bool:
    edge = structure.edges[number]
    return [edge.source, edge.target] == list(pair)


def _most_added(profile: Profile, number: int, degree: int) -> float:
    """The most that cutting an edge adds, over the options of both its ends at a degree."""
    edge, costs = profile.structure.edges[number], profile.costs
    return max(
        (
            _added_by(profile, end, row, number)
            for end in (edge.source, edge.target)
            for row in costs.rows_of(profile.structure.layers[end].layer_class)
            if costs.tensor_parallel[row] == degree
        ),
        default=0.0,
    )


def _added_by(profile: Profile, layer: int, row: int, number: int) -> float:
    """What cutting one of its edges adds by an option of a layer."""
    values, edges = profile.costs.boundary_of(row), profile.structure.edges
    if not len(values):
        return 0.0
    numbers = [
        *(n for n, edge in enumerate(edges) if edge.target == layer),
        *(n for n, edge in enumerate(edges) if edge.source == layer),
    ]
    return float(values[numbers.index(number)])


def _named_blocks(names: Sequence[str]) -> list[str]:
    """The names with blocks called so: transformer layers where they lie together, else all."""
    for block in (LayerKind.BLOCK, BLOCK_LAYER):
        places = [at for at, name in enumerate(names) if name == block]
        if places and places[-1] - places[0] + 1 == len(places):
            return [LayerKind.BLOCK if name == block else name for name in names]
    return [str(LayerKind.BLOCK)] * len(names)


# Rows of a cost table
# --------------------


def _taken(
    costs: CostTable, rows: Sequence[Rows], boundaries: Sequence[Sequence[Sequence[float]]] | None
) -> CostTable:
    """A table of these rows by class, with other boundary bytes where they are given."""
    taken = np.concatenate(rows)
    if boundaries is None:
        ends = [costs.boundary_of(int(row)).tolist() for row in taken]
    else:
        ends = [list(own) for of_class in boundaries for own in of_class]
    phases, kinds = costs.phases, costs.time_by_kind_s
    return CostTable(
        class_offsets=np.cumsum([0, *map(len, rows)]),
        option_ids=tuple(costs.option_ids[row] for row in taken),
        tensor_parallel=costs.tensor_parallel[taken],
        recompute=tuple(costs.recompute[row] for row in taken),
        duration_s=costs.duration_s[taken],
        saved_until_input_grad_bytes=costs.saved_until_input_grad_bytes[taken],
        saved_until_weight_grad_bytes=costs.saved_until_weight_grad_bytes[taken],
        transient_bytes=costs.transient_bytes[taken],
        static_bytes=costs.static_bytes[taken],
        opaque_static_bytes=costs.opaque_static_bytes[taken],
        gradient_sync_bytes=costs.gradient_sync_bytes[taken],
        boundary_offsets=np.cumsum([0, *map(len, ends)]),
        boundary_bytes=np.array([value for own in ends for value in own], dtype=np.float64),
        provenance=costs.provenance,
        phases=phases
        and PhaseTimes(
            forward_s=phases.forward_s[taken],
            input_grad_s=phases.input_grad_s[taken],
            weight_grad_s=phases.weight_grad_s[taken],
            recompute_s=phases.recompute_s[taken],
        ),
        time_by_kind_s=None if kinds is None else kinds[taken],
        energy_j=None if costs.energy_j is None else costs.energy_j[taken],
        collectives=costs.collectives and tuple(costs.collectives[row] for row in taken),
        trained_weight_bytes=(
            None if costs.trained_weight_bytes is None else costs.trained_weight_bytes[taken]
        ),
    )


def with_rows(profile: Profile, kept: Rows) -> Profile:
    """The profile with some rows of its table; every class has one of them."""
    costs = profile.costs
    number = np.searchsorted(costs.class_offsets, kept, side="right") - 1
    rows = [kept[number == each] for each in range(costs.num_classes)]
    return replace(profile, costs=_taken(costs, rows, None))


def in_modes(profile: Profile, modes: Collection[Recompute]) -> Profile:
    """The profile with the options of some modes, of which every class has one."""
    rows = _rows_in(profile.costs, modes)
    return profile if rows.all() else with_rows(profile, np.flatnonzero(rows))


def _rows_in(costs: CostTable, modes: Collection[Recompute]) -> NDArray[np.bool_]:
    """Which options run in one of the modes: what has nothing to recompute runs in every mode."""
    plain = np.array([mode is Recompute.NONE for mode in costs.recompute])
    starts, counts = costs.class_offsets[:-1], np.diff(costs.class_offsets)
    only_plain: NDArray[np.bool_] = np.repeat(np.logical_and.reduceat(plain, starts), counts)
    return only_plain | np.array([mode in modes for mode in costs.recompute], dtype=np.bool_)


def _serves_all(costs: CostTable, rows: Sequence[bool] | NDArray[np.bool_]) -> bool:
    """Whether every class has one of the rows."""
    return bool(np.logical_or.reduceat(np.asarray(rows), costs.class_offsets[:-1]).all())


def _runs_in(costs: CostTable, modes: Collection[Recompute]) -> bool:
    """Whether every class has an option in the modes, one of them because it was asked for."""
    asked = any(mode in modes for mode in costs.recompute)
    return asked and _serves_all(costs, _rows_in(costs, modes))


def _at_degree(profile: Profile, rows: Rows, degree: int, notes: dict[str, str]) -> Profile:
    """The options of one tensor degree, with phases and with state that no option changes."""
    own = with_rows(profile, rows)
    costs = own.costs
    phases = costs.phases or _assumed_phases(costs, notes)
    starts, offsets = costs.class_offsets[:-1], costs.class_offsets
    _refuse_varied_state(own, degree)
    least = np.repeat(np.minimum.reduceat(costs.opaque_static_bytes, starts), np.diff(offsets))
    beyond = costs.opaque_static_bytes - least
    if beyond.any():
        notes["recomputed"] = (
            "static bytes that one option of a layer has beyond another are what it needs while "
            "the layer runs: a stage needs its largest"
        )
    point = replace(
        own.point,
        microbatch_size=own.point.microbatch_size or 1,
        tensor_parallel=(degree,),
        recompute=tuple(str(mode) for mode in Recompute if mode in costs.recompute),
    )
    costs = replace(
        costs,
        phases=phases,
        duration_s=phases.total_s,
        opaque_static_bytes=least,
        transient_bytes=costs.transient_bytes + beyond,
    )
    return replace(own, costs=costs, point=point)


def _assumed_phases(costs: CostTable, notes: dict[str, str]) -> PhaseTimes:
    """Thirds of each time; what recomputation takes more than the fastest option without is it."""
    total_s, plain = costs.duration_s, np.array([m is Recompute.NONE for m in costs.recompute])
    alone_s = np.where(plain, total_s, np.inf)
    starts, counts = costs.class_offsets[:-1], np.diff(costs.class_offsets)
    fastest_s = np.repeat(np.minimum.reduceat(alone_s, starts), counts)
    once_s = np.where(plain, total_s, np.minimum(total_s, fastest_s))
    third_s = once_s / 3
    notes["phases"] = (
        "the profile has one time per layer: forward, input gradient and weight gradient are a "
        "third each; what an option takes more than the fastest without recomputation is that"
    )
    return PhaseTimes(
        forward_s=third_s,
        input_grad_s=third_s.copy(),
        weight_grad_s=third_s.copy(),
        recompute_s=total_s - once_s,
    )


def _refuse_varied_state(profile: Profile, degree: int) -> None:
    """Raise `UnsupportedFeature` where state or gradients depend on how a layer is run."""
    costs = profile.costs
    for name in ("static_bytes", "gradient_sync_bytes", "updated_weight_bytes"):
        values: Floats = getattr(costs, name)
        for number in range(costs.num_classes):
            own = values[list(costs.rows_of(number))]
            if (own != own[0]).any():
                layer = next(e for e in profile.structure.layers if e.layer_class == number)
                raise UnsupportedFeature(
                    f"options of layer {_shown(layer)} at tensor degree {degree} differ in "
                    f"{name}, and the state of a layer is that of its parameters",
                    alternative=_FLAT,
                )


def _tells_state_apart(costs: CostTable) -> bool:
    weights: Floats = costs.static_bytes[:, :, StaticKind.WEIGHT]
    return bool((weights[costs.gradient_sync_bytes > 0] > 0).all())


def _whole_state_bytes(
    profile: Profile, kinds: Collection[StaticKind] = tuple(StaticKind)
) -> float:
    """Of one tensor rank that holds all layers, tied parameters once; with what is opaque."""
    costs, structure = profile.costs, profile.structure
    first: Ints = costs.class_offsets[[layer.layer_class for layer in structure.layers]]
    known: Floats = costs.static_bytes[:, :, list(kinds)]
    total = float(known[first].sum() + costs.opaque_static_bytes[first].sum())
    for group in structure.shared_parameters:
        again = known[first[list(group.layers[1:])], 0].sum()
        total -= float(again)  # no less than what is shared
    return max(0.0, total)


# Times and sizes of single layers that somebody measured, by model, device and tensor degree
# -------------------------------------------------------------------------------------------
# Layer 0 is the embedding, the last one the head. A microbatch that was not measured is
# interpolated between its neighbours in log space (times grow as a power of the size between two
# points); outside the measured range the nearest two points are continued, and the caller is told.
#
# A single measured time repeats within some percent only, and more where the host is as slow as the
# device. `steady_times_at` therefore reads a + c·b off all microbatches b of a layer: what starting
# it takes, and what each sequence adds.


# What timing one layer on a device gives: seconds by phase, bytes by what frees them
# -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTiming:
    """One layer (or slice of one) at one microbatch: medians of `num_repeats` passes.

    `spread` is the distance between the quartiles of a whole pass over its median, absent after
    a single pass. `input_bytes` is what recomputing the layer has to keep; the saved bytes include
    it where the layer keeps its input. `transient_bytes` come on top of them while the layer runs.
    """

    forward_s: float
    input_grad_s: float
    weight_grad_s: float
    spread: float | None
    num_repeats: int
    input_bytes: float
    saved_until_input_grad_bytes: float
    saved_until_weight_grad_bytes: float
    transient_bytes: float

    @property
    def total_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.input_grad_s + self.weight_grad_s

    @property
    def saved_bytes(self) -> float:
        """What one microbatch in flight keeps."""
        return self.saved_until_input_grad_bytes + self.saved_until_weight_grad_bytes


# Times and sizes of single layers that somebody measured, by model, device and tensor degree
# -------------------------------------------------------------------------------------------

LayerTimes = tuple[tuple[float, float, float], ...]  # forward, backward, update seconds
LayerSizes = tuple[tuple[float, float, float], ...]  # parameters, output bytes, saved bytes

_ENOUGH_FOR_A_LINE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayers:
    """`times_s` by (model, accelerator, microbatch, tensor degree); `sizes` by (model, degree)."""

    times_s: Mapping[tuple[str, str, int, int], LayerTimes]
    sizes: Mapping[tuple[str, int], LayerSizes]

    def times_at(
        self, model: str, accelerator: str, *, microbatch_size: int, tensor_parallel: int
    ) -> LayerTimes | None:
        """Seconds of each layer, interpolated between microbatches where need be."""
        exact = self.times_s.get((model, accelerator, microbatch_size, tensor_parallel))
        if exact is not None:
            return exact
        measured = sorted(
            batch
            for name, device, batch, degree in self.times_s
            if (name, device, degree) == (model, accelerator, tensor_parallel)
        )
        if not measured:
            return None
        smaller = [b for b in measured if b < microbatch_size][-2:]
        larger = [b for b in measured if b > microbatch_size][:2]
        around = (smaller[-1:] + larger[:1]) if smaller and larger else (smaller or larger)
        low, high = around[0], around[-1]
        low_times = self.times_s[model, accelerator, low, tensor_parallel]
        high_times = self.times_s[model, accelerator, high, tensor_parallel]
        return tuple(
            (
                _between(a[0], b[0], low, high, microbatch_size),
                _between(a[1], b[1], low, high, microbatch_size),
                _between(a[2], b[2], low, high, microbatch_size),
            )
            for a, b in zip(low_times, high_times, strict=True)
        )

    def steady_times_at(
        self, model: str, accelerator: str, *, microbatch_size: int, tensor_parallel: int
    ) -> LayerTimes | None:
        """Seconds of each layer on the line through all measured microbatches.

        As `times_at` where fewer than three were measured.
        """
        found = {
            batch: times
            for (name, device, batch, degree), times in self.times_s.items()
            if (name, device, degree) == (model, accelerator, tensor_parallel)
        }
        if len(found) < _ENOUGH_FOR_A_LINE:
            return self.times_at(
                model,
                accelerator,
                microbatch_size=microbatch_size,
                tensor_parallel=tensor_parallel,
            )
        on_line = _on_lines(np.array(list(found)), np.array(list(found.values())), microbatch_size)
        return tuple((f, b, u) for f, b, u in on_line.tolist())


def _on_lines(sizes: Floats, times_s: Floats, at: float) -> Floats:
    """Lines through times [k, ...] by least squares of the relative error, at a size.

    Neither end of a line may be negative; what took no time at some size takes the mean.
    """
    size = sizes.reshape(-1, *[1] * (times_s.ndim - 1)).astype(np.float64)
    known = (times_s > 0).all(axis=0)
    weight = 1 / np.where(known, times_s, 1.0)
    ones, slopes = weight, size * weight  # what a start and a slope of 1 are, in shares of a time
    aa, ab, bb = (ones**2).sum(0), (ones * slopes).sum(0), (slopes**2).sum(0)
    a, b = ones.sum(0), slopes.sum(0)
    determinant = aa * bb - ab**2
    start_s, slope = (bb * a - ab * b) / determinant, (aa * b - ab * a) / determinant
    start_s, slope = (
        np.where(slope < 0, a / aa, np.where(start_s < 0, 0.0, start_s)),
        np.where(start_s < 0, b / bb, np.where(slope < 0, 0.0, slope)),
    )
    found: Floats = np.where(known, start_s + slope * at, times_s.mean(axis=0))
    return found


def _between(low_s: float, high_s: float, low: int, high: int, at: int) -> float:
    if low == high or low_s <= 0 or high_s <= 0:
        return low_s * at / low if low == high else (low_s + high_s) / 2
    exponent = math.log(high_s / low_s) / math.log(high / low)
    return low_s * math.pow(at / low, exponent)
