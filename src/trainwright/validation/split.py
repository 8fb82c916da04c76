"""Which layers lie on which stage, as frameworks split a model evenly.

The embedding opens the first stage, what follows the blocks closes the last. Blocks that do not
divide by the stages are dealt with the ends counted as one layer each (how Megatron's releases run
126 blocks), else as evenly as possible with the longer stages first.
"""

from __future__ import annotations


def blocks_per_stage(num_blocks: int, num_stages: int) -> tuple[int, ...]:
    """Blocks of each stage (or chunk), in order."""
    if num_blocks % num_stages == 0:
        return (num_blocks // num_stages,) * num_stages
    if (num_blocks + 2) % num_stages == 0 and num_stages > 1:
        each = (num_blocks + 2) // num_stages
        return (each - 1, *([each] * (num_stages - 2)), each - 1)
    each, longer = divmod(num_blocks, num_stages)
    return tuple(each + (index < longer) for index in range(num_stages))


def layers_per_stage(blocks: tuple[int, ...], num_after: int) -> tuple[tuple[int, ...], ...]:
    """Layer indices of each stage: the embedding is 0, `num_after` layers follow the blocks."""
    stages, first = [], 0
    for index, count in enumerate(blocks):
        size = count + (index == 0) + (num_after if index == len(blocks) - 1 else 0)
        stages.append(tuple(range(first, first + size)))
        first += size
    return tuple(stages)
