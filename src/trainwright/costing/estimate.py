"""A profile without a measurement: every layer of a model priced at one point by the roofline.

The cost of an operator is `compute`, of a collective `communication`, of a tensor `memory`, of a
layer `layer`; this module lines the prices up as a cost table. A model of 126 blocks prices one
block, so a profile takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from trainwright.cluster import Cluster, Hop, NetworkLevel, Pool, group_hops
from trainwright.costing.layer import (
    KEEP_ALL,
    RECOMPUTABLE,
    LayerPrice,
    Platform,
    RecomputeRule,
    layer_prices,
)
from trainwright.costing.tiled import TiledTimer
from trainwright.errors import Fault, InvalidInput, one_of, refuse
from trainwright.model import (
    DEFAULT_RECIPE,
    LayerGraph,
    LayerKind,
    Phase,
    Recipe,
    RunShape,
    TransformerConfig,
    layer_graph,
)
from trainwright.model.operator import RECOMPUTE_MODULES, usual_modules
from trainwright.plans.configuration import DEFAULT_OVERLAP, Overlap
from trainwright.profile import (
    USUAL_MODES,
    CostTable,
    Edge,
    Layer,
    PhaseTimes,
    Profile,
    ProfilePoint,
    Recompute,
    Setting,
    SharedParameters,
    StaticKind,
    Structure,
)
from trainwright.provenance import Origin, Provenance

FUSED_ATTENTION: Final = "fused_attention"
UNFUSED_ATTENTION: Final = "unfused_attention"
FUSED_CROSS_ENTROPY: Final = "fused_cross_entropy"
UNFUSED_CROSS_ENTROPY: Final = "unfused_cross_entropy"
KERNELS: Final = (FUSED_ATTENTION, UNFUSED_ATTENTION, FUSED_CROSS_ENTROPY, UNFUSED_CROSS_ENTROPY)
DEFAULT_KERNELS: Final = (FUSED_ATTENTION, UNFUSED_CROSS_ENTROPY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """A profile source that answers any point for one model on one cluster.

    `selective_modules` are what the recompute mode "selective" recomputes. By default the cheap
    and large: the attention core where it stores scores, else the norms and the feed-forward
    activation. `overlap` says what collectives inside layers hide under. `vocabulary_multiple` is
    the padding of `RunShape`. `tiled` times operators in place of what the device's description
    asks for: tiles on its cores where it names them, else a roofline. A point's precision goes
    before the recipe's.
    """

    model: TransformerConfig
    cluster: Cluster
    recipe: Recipe = DEFAULT_RECIPE
    overlap: Overlap = DEFAULT_OVERLAP
    selective_modules: tuple[str, ...] | None = None
    vocabulary_multiple: int = 128
    tiled: TiledTimer | None = None

    def __post_init__(self) -> None:
        for module in self.selective_modules or ():
            if module not in RECOMPUTE_MODULES:
                wanted = f"must be of {', '.join(RECOMPUTE_MODULES)}"
                raise InvalidInput.of("selective_modules", f'{wanted}, got "{module}"')

    def profile(self, point: ProfilePoint) -> Profile:
        """Price every layer at `point`, one option per tensor degree × recompute mode.

        Blanks of the point take defaults, which the profile's own point shows: microbatch 1, the
        device's 16-bit format, all recompute modes, fused attention, unfused cross entropy. Layers
        that are neither blocks, of an encoder too, nor MTP have the mode "none" only. Groups lie
        tensor innermost, then context, then data; experts over all three. Raises `InvalidInput`
        where the model cannot run so.
        """
        return _profile(self, point)

    def _priced(self, point: ProfilePoint) -> Profile:
        pool = self.cluster.pool_of(point.device_kind)
        point = self._completed(point, pool)
        model = self.recipe.applied(self.model)
        graphs = [layer_graph(model, run) for run in self._runs(point)]
        rows = self._rows(graphs, point, pool)
        table = cost_table(rows, boundary(graphs), roofline_provenance(pool))
        return Profile(structure=structure(graphs), costs=table, point=point)

    def _runs(self, point: ProfilePoint) -> Iterator[RunShape]:
        assert point.microbatch_size is not None
        assert point.sequence_length is not None
        assert point.precision is not None
        for degree in point.tensor_parallel:
            yield RunShape(
                microbatch_size=point.microbatch_size,
                sequence_length=point.sequence_length,
                tensor_parallel=degree,
                sequence_parallel=point.sequence_parallel,
                precision=self.recipe.numbers(point.precision),
                fused_attention=FUSED_ATTENTION in point.kernels,
                fused_cross_entropy=FUSED_CROSS_ENTROPY in point.kernels,
                vocabulary_multiple=self.vocabulary_multiple,
                context_parallel=point.context_parallel,
                expert_parallel=point.expert_parallel,
                expert_tensor_parallel=point.expert_tensor_parallel,
                **self.recipe.run_fields,
            )

    def _rows(
        self, graphs: Sequence[LayerGraph], point: ProfilePoint, pool: Pool
    ) -> list[list[LayerPrice]]:
        """For each layer class its prices, tensor degree by tensor degree."""
        rules = self._rules(point)
        rows: list[list[LayerPrice]] = [[] for _ in graphs[0].classes]
        for graph in graphs:
            platform = Platform(
                accelerator=pool.accelerator,
                dtype=graph.run.precision.base_dtype,
                hops=_hops_of(pool, graph.run),
                overlap=self.overlap,
                tiled=self.tiled,
            )
            for prices, layer in zip(rows, graph.classes, strict=True):
                offered = rules if layer.kind in RECOMPUTABLE else {Recompute.NONE: KEEP_ALL}
                prices += layer_prices(layer, graph.run, offered, platform)
        return rows

    def rule(self, mode: Recompute, *, fused_attention: bool) -> RecomputeRule:
        """What a block keeps and repeats in `mode`."""
        match mode:
            case Recompute.NONE:
                return KEEP_ALL
            case Recompute.OFFLOAD:
                return RecomputeRule(uses_host=True)
            case Recompute.FULL:
                return RecomputeRule(whole_layer=True)
            case Recompute.SELECTIVE:
                usual = usual_modules(fused_attention=fused_attention)
                return RecomputeRule(modules=frozenset(self.selective_modules or usual))

    def _rules(self, point: ProfilePoint) -> dict[Recompute, RecomputeRule]:
        fused = FUSED_ATTENTION in point.kernels
        return {m: self.rule(m, fused_attention=fused) for m in Recompute if m in point.recompute}

    def _completed(self, point: ProfilePoint, pool: Pool) -> ProfilePoint:
        """The point with its blanks filled, or every fault it has."""
        refuse(_point_faults(point, pool))
        chosen = [kernel for kernel in DEFAULT_KERNELS if _opposite(kernel) not in point.kernels]
        degrees = tuple(sorted(set(point.tensor_parallel)))
        default = self.recipe.precision or pool.accelerator.default_precision
        filled = replace(
            point,
            microbatch_size=point.microbatch_size or 1,
            tensor_parallel=degrees,
            precision=point.precision or default,
            recompute=point.recompute or tuple(map(str, USUAL_MODES)),
            kernels=tuple(dict.fromkeys((*chosen, *point.kernels))),
            device_kind=pool.accelerator.name,
        )
        *_, widest = self._runs(filled)
        crossed = (
            (axis, tuple(hop.level.name for hop in hops))
            for axis, hops in _hops_of(pool, widest).items()
            if self.model.experts is not None or not axis.startswith("expert")
        )
        return replace(filled, network_levels=tuple(pair for pair in crossed if pair[1]))


@lru_cache(maxsize=256)  # a search, its runners-up and what explains them ask for the same points
def _profile(estimator: Estimator, point: ProfilePoint) -> Profile:
    return estimator._priced(point)


def _point_faults(point: ProfilePoint, pool: Pool) -> Iterator[Fault]:
    if point.sequence_length is None:
        yield Fault("sequence_length", "must be given to estimate a profile")
    if not point.tensor_parallel:
        yield Fault("tensor_parallel", "must have at least 1 entry, got 0")
    for degree in point.tensor_parallel:
        if not 1 <= degree <= pool.num_devices:
            yield Fault("tensor_parallel", f"must be in 1..{pool.num_devices}, got {degree}")
            continue
        cut = point.expert_tensor_parallel or degree
        for axis, spanned in (
            ("context_parallel", degree * point.context_parallel),
            ("expert_parallel", cut * point.expert_parallel),
        ):
            if getattr(point, axis) < 1 or spanned > pool.num_devices:
                wanted = f"must span 1..{pool.num_devices} devices with tensor_parallel"
                yield Fault(axis, f"{wanted}, got {spanned}")
    for mode in point.recompute:
        if mode not in set(Recompute):
            yield Fault("recompute", one_of(Recompute, mode))
    for kernel in point.kernels:
        if kernel not in KERNELS:
            yield Fault("kernels", one_of(KERNELS, kernel))
        elif _opposite(kernel) in point.kernels:
            yield Fault("kernels", f"must not name both {kernel} and {_opposite(kernel)}")


def _opposite(kernel: str) -> str:
    return kernel.removeprefix("un") if kernel.startswith("un") else f"un{kernel}"


def axis_hops(
    pool: Pool, *, tensor: int, context: int, expert: int, expert_tensor: int
) -> dict[str, tuple[Hop, ...]]:
    """How the groups of each axis spread over the network: tensor innermost, then context."""
    groups = {
        "tensor": (tensor, 1),
        "context": (context, tensor),
        "expert_tensor": (expert_tensor, 1),
        "expert": (expert, expert_tensor),
    }
    return {
        axis: group_hops(pool.levels, ranks=ranks, stride=stride, tiles=None)
        for axis, (ranks, stride) in groups.items()
    }


def _hops_of(pool: Pool, run: RunShape) -> dict[str, tuple[Hop, ...]]:
    return axis_hops(
        pool,
        tensor=run.tensor_parallel,
        context=run.context_parallel,
        expert=run.expert_parallel,
        expert_tensor=run.expert_shards,
    )


def structure(graphs: Sequence[LayerGraph]) -> Structure:
    """The chain of layers; an edge carries what the largest tensor degree sends per device."""
    graph = graphs[0]
    edges = zip(graph.edges, _least_edge_bytes(graphs), strict=True)
    pairs = tuple((edge.source, edge.target, least) for edge, least in edges)
    return _structure(graph.kinds, graph.layers, pairs, _shared(graphs))


@lru_cache(maxsize=256)  # points that deal experts out in another way have the same
def _structure(
    kinds: tuple[LayerKind, ...],
    classes: tuple[int, ...],
    pairs: tuple[tuple[int, int, float], ...],
    shared: tuple[SharedParameters, ...],
) -> Structure:
    layers = tuple(
        Layer(id=index, name=str(kind), layer_class=layer_class)
        for index, (kind, layer_class) in enumerate(zip(kinds, classes, strict=True))
    )
    edges = tuple(Edge(source=a, target=b, bytes=least) for a, b, least in pairs)
    return Structure(layers=layers, edges=edges, shared_parameters=shared)


def _shared(graphs: Sequence[LayerGraph]) -> tuple[SharedParameters, ...]:
    """Tied parameters in the bytes of their weight, at the largest padding of the vocabulary."""
    groups = []
    for name, holders in graphs[0].shared_parameters().items():
        counts = (
            p.count for g in graphs for c in g.classes for p in c.parameters if p.shared == name
        )
        size = max(counts) * graphs[0].run.precision.weight_bytes
        groups.append(SharedParameters(layers=holders, bytes=float(size)))
    return tuple(groups)


def _least_edge_bytes(graphs: Sequence[LayerGraph]) -> list[float]:
    return [min(g.edges[i].bytes for g in graphs) for i in range(len(graphs[0].edges))]


def boundary(graphs: Sequence[LayerGraph]) -> list[dict[int, list[float]]]:
    """For each class and tensor degree, what its edges carry beyond the structure's bytes."""
    least = _least_edge_bytes(graphs)
    first = graphs[0]
    extra: list[dict[int, list[float]]] = []
    for layer_class in range(len(first.classes)):
        layer = first.layers.index(layer_class)
        edges = [i for i, e in enumerate(first.edges) if e.target == layer]
        edges += [i for i, e in enumerate(first.edges) if e.source == layer]
        extra.append(
            {
                graph.run.tensor_parallel: [graph.edges[i].bytes - least[i] for i in edges]
                for graph in graphs
            }
        )
    return extra


def cost_table(
    rows: list[list[LayerPrice]],
    boundary: list[dict[int, list[float]]],
    provenance: Provenance,
) -> CostTable:
    """The prices of each class, with what their edges carry, as arrays."""
    prices = [price for prices in rows for price in prices]
    extras = [b[p.tensor_parallel] for b, group in zip(boundary, rows, strict=True) for p in group]
    times = {phase: np.array([p.phase_s[phase] for p in prices]) for phase in Phase}
    phases = PhaseTimes(
        forward_s=times[Phase.FORWARD],
        input_grad_s=times[Phase.INPUT_GRAD],
        weight_grad_s=times[Phase.WEIGHT_GRAD],
        recompute_s=times[Phase.RECOMPUTE],
    )
    static = np.array([p.static_bytes for p in prices])
    trained = np.array([p.trained_weight_bytes for p in prices])
    return CostTable(
        class_offsets=np.cumsum([0, *map(len, rows)]),
        option_ids=tuple(str(p.recompute) for p in prices),
        tensor_parallel=np.array([p.tensor_parallel for p in prices]),
        recompute=tuple(p.recompute for p in prices),
        duration_s=phases.total_s,
        saved_until_input_grad_bytes=np.array([p.activations.until_input_grad for p in prices]),
        saved_until_weight_grad_bytes=np.array([p.activations.until_weight_grad for p in prices]),
        transient_bytes=np.array([p.activations.transient for p in prices]),
        static_bytes=static,
        opaque_static_bytes=np.zeros(len(prices)),
        gradient_sync_bytes=np.array([p.gradient_sync_bytes for p in prices]),
        boundary_offsets=np.cumsum([0, *map(len, extras)]),
        boundary_bytes=np.array([value for extra in extras for value in extra]),
        provenance=provenance,
        phases=phases,
        time_by_kind_s=np.array([p.kind_s for p in prices]),
        collectives=tuple(p.collectives for p in prices),
        trained_weight_bytes=None
        if np.array_equal(trained, static[:, :, StaticKind.WEIGHT])
        else trained,
    )


def roofline_provenance(pool: Pool) -> Provenance:
    """Where the times of an estimated profile come from."""
    name, fitted = pool.accelerator.name, pool.accelerator.calibration
    if pool.accelerator.cores is not None:
        source = f"operators tiled onto the cores of {name}"
        return Provenance(origin=Origin.ASSUMED, source=source)
    if fitted is not None:
        return replace(fitted, source=f"roofline of {name}, {fitted.source}")
    return Provenance(
        origin=Origin.ASSUMED, source=f"roofline of {name} with efficiencies of its description"
    )


def flat_setting(cluster: Cluster, *, num_microbatches: int) -> Setting:
    """A cluster of one pool reduced to four numbers, for partitioning with a single bandwidth.

    The bandwidth is that of the outermost level in use, per device: stages lie furthest apart.
    """
    pool = cluster.pool_of()
    used: list[NetworkLevel] = [level for level in pool.levels if level.size > 1]
    outermost = (used or list(pool.levels))[-1]
    return Setting(
        num_devices=pool.num_devices,
        memory_bytes=pool.accelerator.usable_bytes,
        bandwidth_bytes_per_s=outermost.effective_bytes_per_s,
        num_microbatches=num_microbatches,
    )
