"""How far a pipeline's float32 results may be from those of the model in one piece.

Both add the same terms, in another order: 5e-8 was seen for gradients, where a schedule that mixes
up microbatches or forgets to divide by their number is off by as much as the gradient itself.
"""

from __future__ import annotations

LOSS_LIMIT = 1e-5

_GRADIENT_LIMIT = 1e-6


def gradient_limit(largest_entry: float) -> float:
    """The limit for a parameter whose reference gradient has this largest absolute entry."""
    return _GRADIENT_LIMIT * max(1.0, largest_entry)
