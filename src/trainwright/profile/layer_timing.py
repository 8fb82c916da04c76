"""What timing one layer on a device gives: seconds by phase, bytes by what frees them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTiming:
    """One layer (or slice of one) at one microbatch: medians of `num_repeats` passes.

    `spread` is the distance between the quartiles of a whole pass over its median, absent after
    a single pass. `input_bytes` is what recomputing the layer has to keep; the saved bytes include
    it where the layer keeps its input. `transient_bytes` come on top of them while the layer runs.
    """

    forward_s: float
    input_grad_s: float
    weight_grad_s: float
    spread: float | None
    num_repeats: int
    input_bytes: float
    saved_until_input_grad_bytes: float
    saved_until_weight_grad_bytes: float
    transient_bytes: float

    @property
    def total_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.input_grad_s + self.weight_grad_s

    @property
    def saved_bytes(self) -> float:
        """What one microbatch in flight keeps."""
        return self.saved_until_input_grad_bytes + self.saved_until_weight_grad_bytes
