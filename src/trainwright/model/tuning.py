"""Training a part of a model: frozen layers, and low-rank adapters beside frozen products.

A frozen product needs no weight gradient, so its input is not kept for one, and its parameters have
neither gradient nor optimizer state. Where nothing at or before an operator trains, no gradient
flows back through it at all: it keeps nothing and has no backward. Both rules are applied to the
finished chain of layers, operator by operator in forward order.

An adapter (Hu et al., 2021) adds (x A) B of rank r to a product x W; A and B train, W does not. A
part of a fused product (the queries of query-key-value, the gate of gate-up) may have one alone.
Beside a product whose outputs the tensor group cuts, B is cut alike and A is whole; beside one
whose inputs it cuts, A is cut and B is whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainwright.errors import Fault
from trainwright.model.layer_kind import LayerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """Adapters of `rank` beside the products named by `targets`; nothing else trains.

    Targets are `query`, `key`, `value`, `attention_output`, `gate`, `up`, `down` (of dense and
    shared feed-forward parts, not of routed experts), and with latent attention `query_down`,
    `query_up`, `key_value_down`, `key_value_up`; without a gate, `up` is the first product.
    `dropout` on an adapter's input keeps a copy of it and a mask.
    """

    rank: int
    targets: tuple[str, ...]
    dropout: float = 0.0

    def faults(self) -> Iterator[Fault]:
        """What cannot be, whatever the model."""
        if self.rank < 1:
            yield Fault("tuning.low_rank.rank", f"must be >= 1, got {self.rank}")
        if not self.targets:
            yield Fault("tuning.low_rank.targets", "must have at least 1 entry, got 0")
        if not 0 <= self.dropout < 1:
            yield Fault("tuning.low_rank.dropout", f"must be in [0, 1), got {self.dropout!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What of a model trains: everything that nothing here freezes.

    `frozen_kinds` are layers by kind, `num_frozen_blocks` the first blocks, `frozen_operators`
    single operators of any layer by name (as `router`).
    """

    frozen_kinds: tuple[LayerKind, ...] = ()
    num_frozen_blocks: int = 0
    frozen_operators: tuple[str, ...] = ()
    low_rank: LowRank | None = None

    def faults(self, num_layers: int) -> Iterator[Fault]:
        """What cannot be in a stack of `num_layers` blocks."""
        if not 0 <= self.num_frozen_blocks <= num_layers:
            problem = f"must be in 0..{num_layers}, got {self.num_frozen_blocks}"
            yield Fault("tuning.num_frozen_blocks", problem)
        if self.low_rank is not None:
            yield from self.low_rank.faults()

    def freezes(self, kind: LayerKind, block: int | None, operator: str) -> bool:
        """Whether an operator of a layer of `kind` (block index where it is one) stays as it is."""
        return (
            self.low_rank is not None
            or kind in self.frozen_kinds
            or (block is not None and block < self.num_frozen_blocks)
            or operator in self.frozen_operators
        )


TRAIN_ALL = Tuning()
