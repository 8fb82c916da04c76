"""A tiny model in stages: residual blocks of two linear layers, so that any cut is one tensor.

Stages differ in size and every one gets gradients of ordinary magnitude: a lost, doubled or
foreign gradient is off by far more than rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

WIDTH = 16
HIDDEN = 24
MICROBATCH_SIZE = 2
LEARNING_RATE = 0.1


class ResidualBlock(torch.nn.Module):
    """x + contract(tanh(expand(x)))."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = torch.nn.Linear(WIDTH, HIDDEN)
        self.contract = torch.nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Any) -> Any:
        """Same shape as x."""
        return x + self.contract(torch.tanh(self.expand(x)))


def build_stage(stage: int) -> Any:
    """Odd stages have two blocks, even ones one; the same weights whoever builds it."""
    torch.manual_seed(stage)
    return torch.nn.Sequential(*(ResidualBlock() for _ in range(1 + stage % 2)))


def example_tensor(*, requires_grad: bool) -> Any:
    """One microbatch of activations, for its shape."""
    return torch.zeros(MICROBATCH_SIZE, WIDTH, requires_grad=requires_grad)


def build_batch(step: int, num_microbatches: int) -> tuple[Any, Any]:
    """Inputs and targets of a step, another for every step."""
    generator = torch.Generator().manual_seed(1000 + step)
    shape = (num_microbatches * MICROBATCH_SIZE, WIDTH)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def mean_loss(output: Any, target: Any) -> Any:
    """Mean squared error."""
    return torch.nn.functional.mse_loss(output, target)


def run_unpartitioned(stages: Sequence[Any], step: int, num_microbatches: int) -> float:
    """Leave the gradients of the mean loss in `stages`; returns that loss."""
    inputs, targets = build_batch(step, num_microbatches)
    total = 0.0
    for x, y in zip(inputs.chunk(num_microbatches), targets.chunk(num_microbatches), strict=True):
        for module in stages:
            x = module(x)
        loss = mean_loss(x, y)
        (loss / num_microbatches).backward()
        total += loss.item()
    return total / num_microbatches


def descend(stages: Sequence[Any]) -> None:
    """One step of gradient descent; gradients are gone afterwards."""
    for module in stages:
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.data.sub_(LEARNING_RATE * parameter.grad)
            parameter.grad = None
