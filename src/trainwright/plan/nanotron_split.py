"""The stages that nanotron makes of a model by itself.

A stage ends after the block with which the running sum of costs passes its share: that of a block
by its matrices, of the head by its own; nothing else counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainwright.model import TransformerConfig


def own_split(model: TransformerConfig, num_stages: int) -> tuple[int, ...]:
    """The blocks that nanotron gives each stage."""
    hidden, heads = model.hidden_size, model.num_heads
    block = 4 * heads * (hidden // heads) * hidden + 3 * model.ffn_size * hidden
    head = model.vocabulary_size * hidden
    total = model.num_layers * block + head
    counts, stage, done = [0] * num_stages, 0, 0
    for _ in range(model.num_layers):
        counts[stage] += 1
        done += block
        if done * num_stages > total * (stage + 1):
            stage += 1
    return tuple(counts)
