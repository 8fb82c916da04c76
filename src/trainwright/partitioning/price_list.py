"""A profile laid out for pricing: plain Python numbers, looked up by layer, degree and option.

Reading single numbers out of arrays is slow, and every price of a plan is a sum of single numbers.
Building the list costs O(rows + edges); whoever prices many plans of one profile keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainwright.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedEdge:
    """An edge between layer indices; the slots say where its ends' rows keep its sync bytes."""

    source: int
    target: int
    bytes: float
    source_slot: int
    target_slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """Costs of a profile by row, and the way from (layer, degree, option id) to the row."""

    layer_ids: tuple[int, ...]
    index_of: Mapping[int, int]
    layer_class: tuple[int, ...]
    rows: tuple[Mapping[tuple[int, str], int], ...]
    duration_s: tuple[float, ...]
    gradient_sync_bytes: tuple[float, ...]
    saved_bytes: tuple[float, ...]
    static_bytes: tuple[float, ...]
    boundary_offsets: tuple[int, ...]
    boundary_bytes: tuple[float, ...]
    edges: tuple[PricedEdge, ...]

    def options_of(self, index: int) -> Mapping[tuple[int, str], int]:
        """Row by (tensor-parallel degree, option id) of the layer at `index`."""
        return self.rows[self.layer_class[index]]

    def sync_bytes(self, row: int, slot: int) -> float:
        """What cutting the edge at `slot` of the row's layer adds to the edge's bytes."""
        start = self.boundary_offsets[row]
        if start == self.boundary_offsets[row + 1]:
            return 0.0
        return self.boundary_bytes[start + slot]


def read_prices(profile: Profile) -> PriceList:
    """Lay out `profile` for pricing."""
    structure, costs = profile.structure, profile.costs
    degrees: list[int] = costs.tensor_parallel.tolist()
    keys = list(zip(degrees, costs.option_ids, strict=True))
    return PriceList(
        layer_ids=structure.ids,
        index_of={layer.id: index for index, layer in enumerate(structure.layers)},
        layer_class=tuple(layer.layer_class for layer in structure.layers),
        rows=tuple(
            {keys[row]: row for row in costs.rows_of(layer_class)}
            for layer_class in range(costs.num_classes)
        ),
        duration_s=tuple(costs.duration_s.tolist()),
        gradient_sync_bytes=tuple(costs.gradient_sync_bytes.sum(axis=1).tolist()),
        saved_bytes=tuple(costs.saved_bytes.tolist()),
        static_bytes=tuple(costs.total_static_bytes.tolist()),
        boundary_offsets=tuple(costs.boundary_offsets.tolist()),
        boundary_bytes=tuple(costs.boundary_bytes.tolist()),
        edges=_priced_edges(profile),
    )


def _priced_edges(profile: Profile) -> tuple[PricedEdge, ...]:
    """Rows keep one value per incoming edge, then one per outgoing edge, both in edge order."""
    structure = profile.structure
    num_in = [len(edges) for edges in structure.in_edges()]
    next_in, next_out = [0] * len(num_in), list(num_in)
    priced = []
    for edge in structure.edges:
        priced.append(
            PricedEdge(
                source=edge.source,
                target=edge.target,
                bytes=edge.bytes,
                source_slot=next_out[edge.source],
                target_slot=next_in[edge.target],
            )
        )
        next_out[edge.source] += 1
        next_in[edge.target] += 1
    return tuple(priced)
