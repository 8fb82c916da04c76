"""Names in torchtitan, by version: modules of a stage, models and their sizes.

torchtitan does not check the names of a stage, so they are owned here; `check_names.py` of a bundle
compares them with the model in place. Read from torchtitan 0.2.2 and 0.3.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from trainwright.errors import UnsupportedFeature
from trainwright.model import LayerKind

if TYPE_CHECKING:
    from trainwright.plan.job import Job, StagePart


@dataclass(frozen=True, slots=True, kw_only=True)
class Titan:
    """One version: what the head is called, whether degrees of its own exist, known models.

    `models` maps a catalog name to the model and its size (0.2) or the module and its function.
    """

    target: str
    head: str
    models: Mapping[str, tuple[str, str]]


TITAN_02: Final = Titan(
    target="torchtitan@0.2",
    head="output",
    models=MappingProxyType(
        {
            "llama3-8b": ("llama3", "8B"),
            "llama3-70b": ("llama3", "70B"),
            "llama3-405b": ("llama3", "405B"),
            "deepseek-v2-lite": ("deepseek_v3", "16B"),
            "deepseek-v2": ("deepseek_v3", "236B"),
            "deepseek-v3": ("deepseek_v3", "671B"),
            "qwen3-32b": ("qwen3", "32B"),
            "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
            "qwen3-235b-a22b": ("qwen3", "235B-A22B"),
            "gpt-oss-20b": ("gpt_oss", "20b"),
            "gpt-oss-120b": ("gpt_oss", "120b"),
        }
    ),
)
TITAN_03: Final = Titan(
    target="torchtitan@0.3",
    head="lm_head",
    models=MappingProxyType(
        {
            "llama3-8b": ("llama3", "llama3_8b"),
            "llama3-70b": ("llama3", "llama3_70b"),
            "llama3-405b": ("llama3", "llama3_405b"),
            "deepseek-v2-lite": ("deepseek_v3", "deepseek_v3_16b"),
            "deepseek-v3": ("deepseek_v3", "deepseek_v3_671b"),
            "qwen3-32b": ("qwen3", "qwen3_32b"),
            "qwen3-30b-a3b": ("qwen3", "qwen3_30b_a3b"),
            "gpt-oss-20b": ("gpt_oss", "gpt_oss_20b"),
            "gpt-oss-120b": ("gpt_oss", "gpt_oss_120b"),
        }
    ),
)
_LAYER: Final = re.compile(r"layers\.(\d+)")


def module_names(job: Job, titan: Titan) -> list[list[str]]:
    """The modules of every stage, in pipeline order.

    Raises `UnsupportedFeature` where loss and head lie apart: the loss belongs to the last stage.
    """
    if job.splits_head:
        raise UnsupportedFeature(
            f"{titan.target} computes the loss where the head is; this plan has them apart",
            alternative="none: give head and loss to one stage",
        )
    return [list(_names(stage, titan)) for stage in job.stages]


def _names(stage: StagePart, titan: Titan) -> list[str]:
    names = ["tok_embeddings"] if stage.has(LayerKind.EMBEDDING) else []
    names += [f"layers.{block}" for block in stage.blocks]
    if stage.has(LayerKind.FINAL_NORM):
        names.append("norm")
    if stage.has(LayerKind.LM_HEAD):
        names.append(titan.head)
    return names


def blocks_of(names: list[list[str]]) -> tuple[int, ...]:
    """How many blocks every stage names."""
    return tuple(sum(1 for name in stage if _LAYER.fullmatch(name)) for stage in names)
