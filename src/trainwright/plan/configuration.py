"""A training run as its launcher states it: degrees, batch, schedule, recipe, kernels.

This is what `estimate` prices and what measured runs are compared by. Stages hold equal numbers of
blocks, with the embedding before the first and norm, head and loss after the last block; where the
blocks do not divide, the ends hold fewer (`stage_blocks`), unless the split is stated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trainwright.errors import Fault, InvalidInput
from trainwright.model import DEFAULT_RECIPE, Recipe
from trainwright.plan.overlap import DEFAULT_OVERHEADS, DEFAULT_OVERLAP, MemoryOverheads, Overlap
from trainwright.plan.parallelism import Parallelism
from trainwright.profile import Recompute

LARGEST_BATCH: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One run. `recompute` holds for the first `recompute_blocks` blocks of each virtual stage.

    It holds for all blocks where that is absent; `recompute_modules` is what "selective" repeats
    (`costing.Estimator` has the default). `blocks_per_stage` lists the blocks of each
    virtual stage in pipeline order, where the split is not the default one.
    """

    parallelism: Parallelism
    microbatch_size: int
    global_batch: int
    sequence_length: int
    schedule: str = "1f1b"
    recompute: Recompute = Recompute.NONE
    recompute_blocks: int | None = None
    recompute_modules: tuple[str, ...] | None = None
    blocks_per_stage: tuple[int, ...] | None = None
    fused_attention: bool = True
    fused_cross_entropy: bool = False
    vocabulary_multiple: int = 128
    recipe: Recipe = DEFAULT_RECIPE
    overlap: Overlap = DEFAULT_OVERLAP
    overheads: MemoryOverheads = DEFAULT_OVERHEADS

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        for name in ("microbatch_size", "global_batch", "sequence_length", "vocabulary_multiple"):
            if not 1 <= (value := getattr(self, name)) <= LARGEST_BATCH:
                yield Fault(name, f"must be from 1 to {LARGEST_BATCH}, got {value}")
        if self.recompute_blocks is not None and self.recompute_blocks < 0:
            yield Fault("recompute_blocks", f"must be >= 0, got {self.recompute_blocks}")
        if self.blocks_per_stage is not None:
            if len(self.blocks_per_stage) != self.num_stages:
                count = len(self.blocks_per_stage)
                wanted = f"must list {self.num_stages} virtual stages"
                yield Fault("blocks_per_stage", f"{wanted}, got {count}")
            if any(blocks < 0 for blocks in self.blocks_per_stage):
                yield Fault("blocks_per_stage", "must be >= 0")

    @property
    def num_stages(self) -> int:
        """Virtual stages of the pipeline, p·v."""
        return self.parallelism.pipeline * self.parallelism.virtual_stages

    @property
    def num_microbatches(self) -> int:
        """Microbatches of a step on each replica; a batch that does not divide is rounded down."""
        return self.global_batch // (self.microbatch_size * self.parallelism.data)


def even_blocks(num_blocks: int, num_stages: int) -> tuple[int, ...]:
    """Blocks of each stage: equal numbers, or else the embedding and the loss count as one each.

    Where even that does not divide, the rest goes to the stages in the middle, one each. Source:
    Megatron-LM's account of embedding and loss in the pipeline split.
    """
    if num_blocks % num_stages == 0:
        return (num_blocks // num_stages,) * num_stages
    share, rest = divmod(num_blocks + 2, num_stages)
    counts = [share] * num_stages
    first = (num_stages - rest) // 2
    for stage in range(first, first + rest):
        counts[stage] += 1
    counts[0] -= 1
    counts[-1] -= 1
    if min(counts) >= 0:
        return tuple(counts)
    share, rest = divmod(num_blocks, num_stages)
    return tuple(share + (stage < rest) for stage in range(num_stages))
