"""One transformer block as a torch module, cut to the slice that one device of a tensor group runs.

The same operators as in `model.attention` and `model.feed_forward`, from the same hyper-parameters:
heads, inner width and experts' width are divided by the tensor degree, everything else is whole.
Experts get equal shares of the tokens, whatever the router says. Collectives are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from trainwright.model import RunShape, TransformerConfig
from trainwright.model.config import Activation, Norm
from trainwright.model.parts import Experts


class ExpertLinear(nn.Module):
    """One product per expert: [experts, rows, inputs] × [experts, inputs, outputs]."""

    def __init__(self, experts: int, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, inputs, outputs))
        self.bias = nn.Parameter(torch.empty(experts, 1, outputs)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply the rows of each expert by its weight."""
        product = torch.bmm(x, self.weight)
        return product if self.bias is None else product + self.bias


# Modules whose saved inputs (for an embedding, ids) serve the weight gradient.
PRODUCTS = (nn.Linear, nn.Embedding, ExpertLinear)


def make_norm(kind: Norm, width: int) -> nn.Module:
    """A norm over the last dimension."""
    if kind is Norm.RMS:
        return nn.RMSNorm(width, eps=1e-6)
    return nn.LayerNorm(width, bias=kind.has_bias)


def make_block(config: TransformerConfig, run: RunShape) -> nn.Module:
    """Both halves of a block; `config` holds the choices of this block."""
    middle: nn.Module = FeedForward(config, config.ffn_size // run.tensor_parallel)
    if config.experts is not None:
        middle = Mixture(config, config.experts, run)
    return nn.Sequential(Half(config, Attention(config, run)), Half(config, middle))


class Half(nn.Module):
    """Norm, the part between, dropout and the residual addition."""

    def __init__(self, config: TransformerConfig, middle: nn.Module) -> None:
        super().__init__()
        self.norm, self.middle = make_norm(config.norm, config.hidden_size), middle
        self.output_norm: nn.Module = nn.Identity()
        if config.sandwich_norm:
            self.output_norm = make_norm(config.norm, config.hidden_size)
        self.pre_norm, self.dropout = config.pre_norm, config.hidden_dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] to the same."""
        found = self.output_norm(self.middle(self.norm(x) if self.pre_norm else x))
        x = x + functional.dropout(found, self.dropout)
        return x if self.pre_norm else self.norm(x)


class Attention(nn.Module):
    """Projections, rotation, a fused core, output projection; heads of one device only."""

    def __init__(self, config: TransformerConfig, run: RunShape) -> None:
        super().__init__()
        t, e, h = run.tensor_parallel, config.head_size, config.hidden_size
        self.heads, self.groups = config.num_heads // t, max(config.num_kv_heads, t) // t
        self.head_size, self.causal = e, config.causal
        self.rotary, self.dropout = config.rotary, config.attention_dropout
        width = (self.heads + 2 * self.groups) * e
        self.query_key_value = nn.Linear(h, width, bias=config.query_key_value_bias)
        self.output = nn.Linear(self.heads * e, h, bias=config.attention_output_bias)
        self.query_norm: nn.Module = nn.Identity()
        self.key_norm: nn.Module = nn.Identity()
        if config.query_key_norm:
            self.query_norm, self.key_norm = make_norm(config.norm, e), make_norm(config.norm, e)
        angles = torch.empty(run.sequence_length, e // 2 if config.rotary else 0)
        self.register_buffer("cosine", angles)
        self.register_buffer("sine", angles.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] to the same."""
        batch, sequence, _ = x.shape
        held = self.query_key_value(x).view(batch, sequence, -1, self.head_size).transpose(1, 2)
        query, key, value = held.split((self.heads, self.groups, self.groups), dim=1)
        query, key = self.query_norm(query), self.key_norm(key)
        if self.rotary:
            query, key = self._rotated(query), self._rotated(key)
        found = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=self.dropout,
            is_causal=self.causal,
            enable_gqa=self.heads != self.groups,
        )
        return self.output(found.transpose(1, 2).reshape(batch, sequence, -1))

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        """The halves of each head as the two coordinates of a rotation (Su et al., 2021)."""
        left, right = x[..., : self.head_size // 2], x[..., self.head_size // 2 :]
        return torch.cat(
            (left * self.cosine - right * self.sine, right * self.cosine + left * self.sine), dim=-1
        )


_ACTIVATIONS: dict[Activation, Callable[[Any], Any]] = {
    Activation.GELU: functional.gelu,
    Activation.RELU: functional.relu,
    Activation.SILU: functional.silu,
    Activation.SQUARED_RELU: lambda x: functional.relu(x).square(),
}


def _activated(config: TransformerConfig, x: torch.Tensor) -> torch.Tensor:
    """The activation, of the first half times the second where it is gated."""
    act = _ACTIVATIONS[config.activation]
    if not config.gated:
        return act(x)
    gate, up = x.chunk(2, dim=-1)
    return act(gate) * up


class FeedForward(nn.Module):
    """Two products with the activation between, `width` of the inner features."""

    def __init__(self, config: TransformerConfig, width: int) -> None:
        super().__init__()
        self.config = config
        h, bias = config.hidden_size, config.mlp_bias
        self.into = nn.Linear(h, width * (1 + config.gated), bias=bias)
        self.out = nn.Linear(width, h, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[…, hidden] to the same."""
        return self.out(_activated(self.config, self.into(x)))


class Mixture(nn.Module):
    """Router, experts over equal shares of the token copies, shared expert."""

    def __init__(self, config: TransformerConfig, experts: Experts, run: RunShape) -> None:
        super().__init__()
        self.config, self.chosen = config, experts.experts_per_token
        h, count, t = config.hidden_size, experts.num_experts, run.tensor_parallel
        width = experts.ffn_size // t
        self.rows = math.ceil(self.chosen * run.tokens / count)
        self.router = nn.Linear(h, count, bias=experts.router_bias)
        inner = width * (1 + config.gated)
        self.into = ExpertLinear(count, h, inner, bias=config.mlp_bias)
        self.out = ExpertLinear(count, width, h, bias=config.mlp_bias)
        self.shared: nn.Module | None = None
        self.shared_gate: nn.Module | None = None
        if experts.shared_ffn_size:
            self.shared = FeedForward(config, experts.shared_ffn_size // t)
        if experts.shared_gate:
            self.shared_gate = nn.Linear(h, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] to the same."""
        tokens = x.flatten(0, 1)
        weights, _ = self.router(tokens).softmax(dim=-1).topk(self.chosen, dim=-1)
        copies = torch.arange(self.router.out_features * self.rows, device=x.device)
        copies %= len(tokens) * self.chosen
        index = copies // self.chosen
        permuted = tokens[index].view(self.router.out_features, self.rows, -1)
        found = self.out(_activated(self.config, self.into(permuted))).flatten(0, 1)
        weighed = found * weights.flatten()[copies, None]
        result = torch.zeros_like(tokens).index_add(0, index, weighed).view_as(x)
        if self.shared is not None:
            shared = self.shared(x)
            if self.shared_gate is not None:
                shared = shared * self.shared_gate(x).sigmoid()
            result = result + shared
        return result
