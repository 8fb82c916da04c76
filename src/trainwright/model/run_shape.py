"""How one microbatch runs through a model: its size, the tensor slice, number formats, kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trainwright.errors import Fault, InvalidInput
from trainwright.model.precision import BF16, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShape:
    """One microbatch on one of `tensor_parallel` devices.

    `sequence_parallel` shards what tensor parallelism leaves whole (norms, dropout, residuals)
    along the sequence. `fused_attention` is a flash kernel: scores are never stored, and a causal
    kernel skips the upper triangle. `fused_cross_entropy` keeps 16-bit logits only. Vocabularies
    are padded to a multiple of `vocabulary_multiple` × tensor degree, as Megatron-LM does; 1 with
    tensor degree 1 leaves the published size.
    """

    microbatch_size: int
    sequence_length: int
    tensor_parallel: int = 1
    sequence_parallel: bool = False
    precision: Precision = BF16
    fused_attention: bool = True
    fused_cross_entropy: bool = False
    vocabulary_multiple: int = 128

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        names = ("microbatch_size", "sequence_length", "tensor_parallel", "vocabulary_multiple")
        for name in names:
            if (value := getattr(self, name)) < 1:
                yield Fault(name, f"must be >= 1, got {value}")
        shards, length = self.sequence_shards, self.sequence_length
        if length >= 1 and shards >= 1 and length % shards:
            yield Fault(
                "sequence_length",
                f"must be a multiple of tensor_parallel ({shards}) with sequence_parallel, "
                f"got {length}",
            )

    @property
    def tokens(self) -> int:
        """Tokens of one microbatch, b·s."""
        return self.microbatch_size * self.sequence_length

    @property
    def sequence_shards(self) -> int:
        """Parts into which sequence-sharded tensors are cut."""
        return self.tensor_parallel if self.sequence_parallel else 1

    def padded(self, vocabulary_size: int) -> int:
        """The vocabulary size that is stored and computed."""
        multiple = self.vocabulary_multiple * self.tensor_parallel
        return math.ceil(vocabulary_size / multiple) * multiple
