"""Every kind of layer as a torch module with inputs of its own, ready to run forward and back.

Weights and inputs are random: matrix units draw more power, and run slower, on real digits than on
zeros. Layers are built without content first, so that nothing is initialised twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from trainwright.errors import UnsupportedFeature
from trainwright.measuring.block_modules import make_block, make_norm
from trainwright.model import LayerKind, RunShape, TransformerConfig
from trainwright.model.config import Norm
from trainwright.model.tuning import TRAIN_ALL

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunnableLayer:
    """A module and what to call it with; an input that needs no gradient is ids."""

    module: nn.Module
    inputs: torch.Tensor


def refuse_untimed(config: TransformerConfig, run: RunShape) -> None:
    """Raise `UnsupportedFeature` where a model has parts that have no module here."""
    window, length = config.sliding_window, run.sequence_length
    if window is not None and window < length:
        raise UnsupportedFeature(
            f"attention within a window of {window} tokens cannot be timed at {length} tokens",
            alternative=f"use --sequence {window} or less",
        )
    parts = {
        "latent attention": config.latent is not None,
        "attention sinks": config.attention_sinks,
        "layers that predict further tokens": config.num_mtp_layers > 0,
        "adapters and frozen layers": config.tuning != TRAIN_ALL,
    }
    if named := ", ".join(name for name, there in parts.items() if there):
        raise UnsupportedFeature(
            f"{named} cannot be timed", alternative="trainwright estimate prices such models"
        )


def make_layer(
    kind: LayerKind, config: TransformerConfig, run: RunShape, *, device: str
) -> RunnableLayer:
    """One layer with random weights and inputs; `config` holds the choices of its block."""
    dtype = DTYPES[run.precision.name]
    with torch.device("meta"):
        module = _module(kind, config, run)
    module = module.to(dtype).to_empty(device=device)
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dtype is dtype:
            tensor.detach().normal_(std=0.02)
    return RunnableLayer(module=module, inputs=_inputs(kind, config, run, module, device=device))


def _module(kind: LayerKind, config: TransformerConfig, run: RunShape) -> nn.Module:
    match kind:
        case LayerKind.EMBEDDING:
            return Embedding(config, run)
        case LayerKind.BLOCK:
            return make_block(config, run)
        case LayerKind.FINAL_NORM:
            return make_norm(config.norm, config.hidden_size)
        case LayerKind.HEAD_TRANSFORM:
            return HeadTransform(config)
        case LayerKind.LM_HEAD:
            return Head(config, run)
        case LayerKind.LOSS:
            return Loss(run)
        case other:
            raise UnsupportedFeature(f"layers of kind {other} cannot be timed")


def _inputs(
    kind: LayerKind, config: TransformerConfig, run: RunShape, module: nn.Module, *, device: str
) -> torch.Tensor:
    """Ids for the embedding, logits for the loss, hidden states for all others."""
    shape = (run.microbatch_size, run.sequence_length)
    local = run.padded(config.vocabulary_size) // run.tensor_parallel
    if isinstance(module, Loss):
        module.targets.random_(local)
    if kind is LayerKind.EMBEDDING:
        return torch.randint(local, shape, device=device)
    width = local if kind is LayerKind.LOSS else config.hidden_size
    dtype = DTYPES[run.precision.name]
    return torch.randn(*shape, width, device=device, dtype=dtype, requires_grad=True)


class Embedding(nn.Module):
    """Look-up of words, positions and token types, then norm, projection and dropout if any."""

    def __init__(self, config: TransformerConfig, run: RunShape) -> None:
        super().__init__()
        h = config.hidden_size
        width = config.projection_size or h
        local = run.padded(config.vocabulary_size) // run.tensor_parallel
        self.words = nn.Embedding(local, width)
        self.positions = nn.Embedding(config.max_positions, h) if config.max_positions else None
        self.types = nn.Embedding(config.num_token_types, h) if config.num_token_types else None
        project = config.projection_size is not None
        self.project: nn.Module = nn.Linear(width, h, bias=False) if project else nn.Identity()
        normed = config.embedding_norm
        self.norm: nn.Module = make_norm(Norm.LAYER, h) if normed else nn.Identity()
        self.dropout = config.hidden_dropout

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[batch, sequence] to [batch, sequence, hidden]."""
        x = self.project(self.words(ids))
        if self.positions is not None:
            x = x + self.positions.weight[: ids.shape[1]]
        if self.types is not None:
            x = x + self.types(torch.zeros_like(ids))
        return functional.dropout(self.norm(x), self.dropout)


class HeadTransform(nn.Module):
    """BERT's pooler on the first token, and the dense layer and norm before its head."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        h = config.hidden_size
        self.pooler = nn.Linear(h, h) if config.pooler else None
        self.dense = nn.Linear(h, h) if config.mlm_transform else None
        self.norm = make_norm(config.norm, h) if config.mlm_transform else None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[batch, sequence, hidden] to the same, and to one vector per sequence."""
        found = []
        if self.dense is not None and self.norm is not None:
            found.append(self.norm(functional.gelu(self.dense(x))))
        if self.pooler is not None:
            found.append(self.pooler(x[:, 0]).tanh())
        return tuple(found)


class Head(nn.Module):
    """The product with this device's part of the vocabulary matrix."""

    def __init__(self, config: TransformerConfig, run: RunShape) -> None:
        super().__init__()
        width = config.projection_size or config.hidden_size
        local = run.padded(config.vocabulary_size) // run.tensor_parallel
        self.project: nn.Module = nn.Identity()
        if config.projection_size is not None:
            self.project = nn.Linear(config.hidden_size, width, bias=False)
        self.product = nn.Linear(width, local, bias=config.head_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, hidden] to logits."""
        return self.product(self.project(x))


class Loss(nn.Module):
    """Cross entropy in float32 over this device's part of the logits."""

    targets: torch.Tensor

    def __init__(self, run: RunShape) -> None:
        super().__init__()
        self.register_buffer("targets", torch.empty(run.tokens, dtype=torch.long))

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        """[batch, sequence, vocabulary] to a scalar."""
        return functional.cross_entropy(logits.flatten(0, 1).float(), self.targets)
