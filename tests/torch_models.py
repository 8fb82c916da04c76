"""Decoders written plainly in torch, to trace beside the closed formulas of the same sizes."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu, softmax

from trainwright.model import Experts, LatentAttention, TransformerConfig


class GroupedAttention(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads, self.size = config.num_heads, config.head_size
        h = config.hidden_size
        self.query = nn.Linear(h, config.query_size, bias=False)
        self.key = nn.Linear(h, config.key_value_size, bias=False)
        self.value = nn.Linear(h, config.key_value_size, bias=False)
        self.out = nn.Linear(config.query_size, h, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = (self.query(x), self.key(x), self.value(x))
        q, k, v = (part.unflatten(-1, (-1, self.size)).transpose(1, 2) for part in parts)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class MultiHeadLatentAttention(nn.Module):
    def __init__(self, config: TransformerConfig, latent: LatentAttention) -> None:
        super().__init__()
        h, self.heads, self.latent = config.hidden_size, config.num_heads, latent
        rank = latent.query_rank
        assert rank is not None
        self.query_down = nn.Linear(h, rank, bias=False)
        self.query_norm = nn.RMSNorm(rank)
        self.query_up = nn.Linear(rank, self.heads * latent.head_size, bias=False)
        self.down = nn.Linear(h, latent.key_value_rank + latent.rotary_head_size, bias=False)
        self.norm = nn.RMSNorm(latent.key_value_rank)
        expanded = self.heads * (latent.plain_head_size + latent.value_head_size)
        self.up = nn.Linear(latent.key_value_rank, expanded, bias=False)
        self.out = nn.Linear(self.heads * latent.value_head_size, h, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        sizes = self.latent
        q = self.query_up(self.query_norm(self.query_down(x))).unflatten(-1, (self.heads, -1))
        latent, rotary = self.down(x).split([sizes.key_value_rank, sizes.rotary_head_size], -1)
        both = self.up(self.norm(latent)).unflatten(-1, (self.heads, -1))
        k, v = both.split([sizes.plain_head_size, sizes.value_head_size], -1)
        k = torch.cat([k, rotary.unsqueeze(2).expand(-1, -1, self.heads, -1)], -1)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        return self.out(
            scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )


class GatedMlp(nn.Module):
    def __init__(self, h: int, f: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(h, f, bias=False), nn.Linear(h, f, bias=False)
        self.down = nn.Linear(f, h, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(silu(self.gate(x)) * self.up(x))


class Mixture(nn.Module):
    """Experts as two stacked weights; each token copy gathers its own expert's."""

    def __init__(self, h: int, experts: Experts) -> None:
        super().__init__()
        self.top, f = experts.experts_per_token, experts.ffn_size
        self.router = nn.Linear(h, experts.num_experts, bias=False)
        self.into = nn.Parameter(torch.empty(experts.num_experts, h, 2 * f))
        self.out = nn.Parameter(torch.empty(experts.num_experts, f, h))
        shared = experts.shared_ffn_size
        self.shared = GatedMlp(h, shared) if shared else None

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weight, chosen = softmax(self.router(tokens), -1).topk(self.top)
        copies = tokens.repeat_interleave(self.top, 0).unsqueeze(1)
        gate, up = torch.bmm(copies, self.into[chosen.flatten()]).chunk(2, -1)
        made = torch.bmm(silu(gate) * up, self.out[chosen.flatten()]).squeeze(1)
        mixed = (made.unflatten(0, (-1, self.top)) * weight.unsqueeze(-1)).sum(1).view_as(x)
        return mixed if self.shared is None else mixed + self.shared(x)


class Block(nn.Module):
    def __init__(self, config: TransformerConfig, index: int) -> None:
        super().__init__()
        h = config.hidden_size
        self.first, self.second = nn.RMSNorm(h), nn.RMSNorm(h)
        self.attention = (
            GroupedAttention(config)
            if config.latent is None
            else MultiHeadLatentAttention(config, config.latent)
        )
        routed = config.experts is not None and config.experts.at(index)
        self.mlp = (
            Mixture(h, config.experts)
            if routed and config.experts
            else GatedMlp(h, config.ffn_size)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class Decoder(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        h, vocabulary = config.hidden_size, config.vocabulary_size
        self.words = nn.Embedding(vocabulary, h)
        self.blocks = nn.ModuleList(Block(config, i) for i in range(config.num_layers))
        self.norm = nn.RMSNorm(h)
        self.head = nn.Linear(h, vocabulary, bias=False)
        if config.tied_embeddings:
            self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def on_meta(config: TransformerConfig) -> Decoder:
    with torch.device("meta"):
        return Decoder(config).to(torch.bfloat16)


def tokens(length: int, batch: int = 1) -> Tensor:
    return torch.empty(batch, length, dtype=torch.long, device="meta")
