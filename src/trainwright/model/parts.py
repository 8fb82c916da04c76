"""Parts of a block that some families have: a mixture of experts, latent attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainwright.errors import Fault
from trainwright.model.routing import group_faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts in place of the feed-forward part of most blocks.

    The first `num_dense_layers` blocks, and those at the indices `dense_layers`, keep a dense one.
    `shared_ffn_size` is the total width of the experts that every token passes, 0 without any;
    `shared_gate` weighs their output by a learned product with the token (Qwen2-MoE). The experts
    lie in `num_groups` groups of neighbours, of which a token uses `groups_per_token` (DeepSeek-V2,
    2024, section 2.1.3).
    """

    num_experts: int
    experts_per_token: int
    ffn_size: int
    shared_ffn_size: int = 0
    num_dense_layers: int = 0
    dense_layers: tuple[int, ...] = ()
    router_bias: bool = False
    shared_gate: bool = False
    num_groups: int = 1
    groups_per_token: int = 1

    def at(self, layer: int) -> bool:
        """Whether block `layer` (index from 0) routes its tokens."""
        return layer >= self.num_dense_layers and layer not in self.dense_layers

    def faults(self, num_layers: int) -> Iterator[Fault]:
        """What cannot be in a stack of `num_layers` blocks."""
        for name in ("num_experts", "ffn_size"):
            if (value := getattr(self, name)) < 1:
                yield Fault(f"experts.{name}", f"must be >= 1, got {value}")
        if not 1 <= self.experts_per_token <= max(1, self.num_experts):
            problem = f"must be in 1..{self.num_experts}, got {self.experts_per_token}"
            yield Fault("experts.experts_per_token", problem)
        else:
            yield from self._group_faults()
        if self.shared_ffn_size < 0:
            yield Fault("experts.shared_ffn_size", f"must be >= 0, got {self.shared_ffn_size}")
        if self.shared_gate and not self.shared_ffn_size:
            yield Fault("experts.shared_gate", "needs a shared expert (shared_ffn_size >= 1)")
        if not 0 <= self.num_dense_layers <= num_layers:
            problem = f"must be in 0..{num_layers}, got {self.num_dense_layers}"
            yield Fault("experts.num_dense_layers", problem)
        if any(not 0 <= layer < num_layers for layer in self.dense_layers):
            yield Fault("experts.dense_layers", f"must be in 0..{num_layers - 1}")

    def _group_faults(self) -> Iterator[Fault]:
        found = group_faults(
            num_experts=self.num_experts,
            experts_per_token=self.experts_per_token,
            num_groups=self.num_groups,
            groups_per_token=self.groups_per_token,
        )
        yield from (Fault(f"experts.{fault.path}", fault.problem) for fault in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Keys and values (and queries, where `query_rank` is given) through a narrow latent.

    Of a head's query and key, `rotary_head_size` features carry the position; that part of the key
    is one for all heads. Source: DeepSeek-V2, 2024, section 2.1.
    """

    key_value_rank: int
    rotary_head_size: int
    plain_head_size: int
    value_head_size: int
    query_rank: int | None = None

    @property
    def head_size(self) -> int:
        """Features of a head's query and key."""
        return self.plain_head_size + self.rotary_head_size

    def faults(self) -> Iterator[Fault]:
        """Sizes that cannot be."""
        for name in ("key_value_rank", "rotary_head_size", "plain_head_size", "value_head_size"):
            if (value := getattr(self, name)) < 1:
                yield Fault(f"latent.{name}", f"must be >= 1, got {value}")
        if self.query_rank is not None and self.query_rank < 1:
            yield Fault("latent.query_rank", f"must be >= 1, got {self.query_rank}")
