"""What the layers of a model are; a stage split may fall between any two of them."""

from __future__ import annotations

from enum import StrEnum


class LayerKind(StrEnum):
    """What a layer is."""

    EMBEDDING = "embedding"
    BLOCK = "block"
    FINAL_NORM = "final_norm"
    HEAD_TRANSFORM = "head_transform"
    LM_HEAD = "lm_head"
    LOSS = "loss"
    MTP = "mtp"
