"""A causal transformer small enough for any CPU, cut into the stages of a plan.

Width 32, 4 heads, vocabulary 64, sequences of 16 tokens. Embedding, blocks and head are where the
plan puts them, recomputed layers are checkpointed. Weights depend on a layer's place in the model
alone, so whoever builds a stage gets the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu
from torch.utils.checkpoint import checkpoint

from trainwright.measuring.tiny_layers import BLOCK, EMBEDDING, GAIN, HEAD, NORM, Stage, kind_of

WIDTH, HEADS, VOCABULARY, SEQUENCE = 32, 4, 64, 16
MICROBATCH_SIZE = 2
LEARNING_RATE = 0.1


class Embedding(nn.Module):
    """Tokens and positions to vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.randn(SEQUENCE, WIDTH) * 0.1)

    def forward(self, tokens: Any) -> Any:
        """[batch, sequence] of whole numbers to [batch, sequence, width]."""
        return self.tokens(tokens) + self.positions


class Block(nn.Module):
    """Attention and a feed-forward part, each after its norm and beside a shortcut."""

    def __init__(self, *, selective: bool) -> None:
        super().__init__()
        self.selective = selective
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.expand, self.contract = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        """Same shape as x."""
        q, k, v = self.qkv(self.before_attention(x)).chunk(3, dim=-1)
        x = x + self.out(self._perhaps_again(_attention, q, k, v))
        return x + self.contract(self._perhaps_again(gelu, self.expand(self.before_mlp(x))))

    def _perhaps_again(self, part: Any, *inputs: Any) -> Any:
        return checkpoint(part, *inputs, use_reentrant=False) if self.selective else part(*inputs)


class Gain(nn.Module):
    """One number that everything is multiplied by."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Any) -> Any:
        """Same shape as x."""
        return x * self.factor


class RunAgain(nn.Module):
    """A layer that keeps its input alone, and computes the rest once more for its backward."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        """As the layer does."""
        return checkpoint(self.layer, x, use_reentrant=False)


def _attention(q: Any, k: Any, v: Any) -> Any:
    batch, sequence, width = q.shape
    q, k, v = (each.view(batch, sequence, HEADS, -1).transpose(1, 2) for each in (q, k, v))
    scores = q @ k.transpose(-1, -2) * (width // HEADS) ** -0.5
    hidden = torch.triu(torch.ones(sequence, sequence, dtype=torch.bool), diagonal=1)
    mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
    return mixed.transpose(1, 2).reshape(batch, sequence, width)


def _layer(name: str) -> nn.Module:
    kind, _, again = name.partition(":")
    made: dict[str, Any] = {
        EMBEDDING: Embedding,
        BLOCK: lambda: Block(selective=again == "selective"),
        NORM: lambda: nn.LayerNorm(WIDTH),
        # Without a bias, or its output is a view, and PyTorch's last stage then keeps its graph to
        # the end of the step under a split backward (`backward_one_chunk`, torch 2.13).
        HEAD: lambda: nn.Linear(WIDTH, VOCABULARY, bias=False),
        GAIN: Gain,
    }
    layer: nn.Module = made[kind]()
    return RunAgain(layer) if again == "full" else layer


def build_stage(stages: Sequence[Stage], stage: int) -> Any:
    """One stage of the model; the same weights whoever builds it."""
    first = sum(map(len, stages[:stage]))
    layers = []
    for number, name in enumerate(stages[stage], start=first):
        torch.manual_seed(number)
        layers.append(_layer(name))
    return nn.Sequential(*layers)


def example_tensors(stages: Sequence[Stage]) -> tuple[Any, ...]:
    """What enters each stage, and last what leaves the last: one microbatch, for its shape."""
    hidden = torch.zeros(MICROBATCH_SIZE, SEQUENCE, WIDTH, requires_grad=True)
    logits = torch.zeros(MICROBATCH_SIZE, SEQUENCE, VOCABULARY, requires_grad=True)
    found: list[Any] = [torch.zeros(MICROBATCH_SIZE, SEQUENCE, dtype=torch.long)]
    has_head = False
    for stage in stages:
        has_head |= any(kind_of(name) == HEAD for name in stage)
        found.append(logits if has_head else hidden)
    return tuple(found)


def build_batch(step: int, num_microbatches: int, *, replica: int = 0) -> tuple[Any, Any]:
    """Tokens and the tokens to predict, of one replica's share of a step."""
    generator = torch.Generator().manual_seed(1000 * (replica + 1) + step)
    shape = (num_microbatches * MICROBATCH_SIZE, SEQUENCE)
    tokens, wanted = (torch.randint(VOCABULARY, shape, generator=generator) for _ in range(2))
    return tokens, wanted


def mean_loss(logits: Any, wanted: Any) -> Any:
    """Cross entropy, mean over all tokens."""
    return cross_entropy(logits.flatten(0, 1), wanted.flatten())


def run_unpartitioned(
    stages: Sequence[Any], step: int, num_microbatches: int, *, num_replicas: int = 1
) -> float:
    """Leave the gradients of the mean loss over all replicas' batches; returns that loss."""
    total, parts = 0.0, num_microbatches * num_replicas
    for tokens, wanted in _microbatches(step, num_microbatches, num_replicas):
        x = tokens
        for module in stages:
            x = module(x)
        loss = mean_loss(x, wanted)
        (loss / parts).backward()
        total += loss.item()
    return total / parts


def _microbatches(step: int, count: int, num_replicas: int) -> Iterator[tuple[Any, Any]]:
    for replica in range(num_replicas):
        tokens, wanted = build_batch(step, count, replica=replica)
        yield from zip(tokens.chunk(count), wanted.chunk(count), strict=True)


def descend(stages: Sequence[Any]) -> None:
    """One step of gradient descent; gradients are gone afterwards."""
    for module in stages:
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.data.sub_(LEARNING_RATE * parameter.grad)
            parameter.grad = None
