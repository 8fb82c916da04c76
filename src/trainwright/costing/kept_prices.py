"""Prices of layers that do not depend on where experts are, kept for the points that ask again.

A search prices a model with experts at hundreds of points that differ in how these are dealt out.
What is no expert is the same object at all of them (`model.transformer`), and costs the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from trainwright.cluster import Accelerator, Hop
from trainwright.costing.layer import LayerPrice, Platform, price_layer
from trainwright.costing.memory import RecomputeRule
from trainwright.model import LayerClass, RunShape
from trainwright.plan.overlap import Overlap
from trainwright.profile import Recompute

_KEPT = 128


def layer_prices(
    layer: LayerClass,
    run: RunShape,
    rules: Mapping[Recompute, RecomputeRule],
    platform: Platform,
) -> Iterable[LayerPrice]:
    """One price per recompute mode of `rules`, as `price_layer` makes them."""
    if not _is_kept(layer, platform):
        return price_layer(layer, run, rules, platform)
    return _made_prices(
        _Layer(layer, run),
        tuple(rules.items()),
        platform.accelerator,
        platform.dtype,
        tuple((axis, platform.hops[axis]) for axis in ("tensor", "context")),
        platform.overlap,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """A layer where it was made for one run: another object is another layer."""

    layer: LayerClass
    run: RunShape

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Layer) and self.layer is other.layer

    def __hash__(self) -> int:
        return id(self.layer)


def _is_kept(layer: LayerClass, platform: Platform) -> bool:
    """Whether the layer costs the same however experts are dealt out."""
    if platform.tiled is not None or not platform.hops["expert"]:
        return False
    if any(exchange.axis.startswith("expert") for exchange in layer.exchanges):
        return False
    return not any(parameter.expert for parameter in layer.parameters)


@lru_cache(maxsize=128)
def _made_prices(
    made: _Layer,
    rules: tuple[tuple[Recompute, RecomputeRule], ...],
    device: Accelerator,
    dtype: str,
    hops: tuple[tuple[str, tuple[Hop, ...]], ...],
    overlap: Overlap,
) -> tuple[LayerPrice, ...]:
    platform = Platform(accelerator=device, dtype=dtype, hops=dict(hops), overlap=overlap)
    return tuple(price_layer(made.layer, made.run, dict(rules), platform))
