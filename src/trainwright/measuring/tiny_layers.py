"""What the layers of a small stand-in model are, by name; no PyTorch is needed to say it.

A stage is a tuple of names: "embedding", "block", "norm", "head", or "gain", a number that is
learned, where nothing else is on a stage. A name ends in ":full" where the layer keeps its input
alone and runs again, in ":selective" where attention scores and the activation are.
"""

from __future__ import annotations

from typing import Final, TypeAlias

Stage: TypeAlias = tuple[str, ...]

EMBEDDING: Final = "embedding"
BLOCK: Final = "block"
NORM: Final = "norm"
HEAD: Final = "head"
GAIN: Final = "gain"
MOST_LAYERS: Final = 64


def whole_model(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The stages with an embedding in front and a head behind, where they have none."""
    first, last = list(stages[0]), list(stages[-1])
    if not any(kind_of(name) == EMBEDDING for stage in stages for name in stage):
        first.insert(0, EMBEDDING)
    if len(stages) == 1:
        last = first
    if not any(kind_of(name) == HEAD for stage in stages for name in stage):
        last.append(HEAD)
    ends = [tuple(first)] if len(stages) == 1 else [tuple(first), *stages[1:-1], tuple(last)]
    return tuple(stage or (GAIN,) for stage in ends)


def kind_of(name: str) -> str:
    """A layer's name without what is recomputed of it."""
    return name.partition(":")[0]


def fewer_layers(stages: tuple[Stage, ...], *, most: int = MOST_LAYERS) -> tuple[Stage, ...]:
    """At most `most` blocks where there are more, in proportion, at least one where there was any.

    Of a stage, every k-th block is kept, so that the share that is recomputed stays about the same.
    """
    counts = [sum(kind_of(name) == BLOCK for name in stage) for stage in stages]
    total, filled = sum(counts), sum(map(bool, counts))
    if total <= most:
        return stages
    # Every stage with blocks keeps one; what is left is given out in proportion.
    spare = max(0, most - filled)
    return tuple(
        _thinned(stage, 1 + (count - 1) * spare // max(1, total - filled)) if count else stage
        for stage, count in zip(stages, counts, strict=True)
    )


def _thinned(stage: Stage, count: int) -> Stage:
    blocks = [at for at, name in enumerate(stage) if kind_of(name) == BLOCK]
    kept = {blocks[index * len(blocks) // count] for index in range(count)}
    return tuple(name for at, name in enumerate(stage) if at in kept or at not in blocks)


def spread(stages: tuple[Stage, ...], count: int) -> tuple[Stage, ...]:
    """`count` of the stages: the first, the last, and as many between, evenly apart."""
    if count >= len(stages):
        return stages
    last = len(stages) - 1
    return tuple(stages[round(at * last / max(1, count - 1))] for at in range(count))
