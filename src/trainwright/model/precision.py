"""How numbers are kept while training: bytes per element, and the matrix units used.

Bytes per parameter follow mixed-precision Adam (Micikevicius et al., 2018, as Megatron-LM runs it):
a 16-bit weight, a float32 gradient, and in the optimizer a float32 main weight with two moments,
2 + 4 + 12 = 18 bytes. Plain float32 needs no main weight: 4 + 4 + 8. With FP8 the linear layers
of the blocks multiply and keep their inputs in 8 bit; everything else stays as with bfloat16
(Micikevicius et al., 2022; scaling factors and transposed copies are ignored).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from trainwright.errors import UnsupportedFeature


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """A training recipe's number formats; `matmul_dtype` is the peak of the accelerator it uses.

    `base_dtype` is the format of what is not multiplied in `matmul_dtype`: attention, the head, the
    router, all activations. `linear_input_bytes` is the size in which linear layers keep inputs,
    `dispatch_bytes` that of a number on its way to experts, scaling factors included.
    """

    name: str
    matmul_dtype: str
    base_dtype: str
    activation_bytes: int
    linear_input_bytes: int
    dispatch_bytes: float
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int

    @property
    def static_bytes(self) -> int:
        """Bytes that one parameter keeps for the whole step, without sharding."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes


def _mixed(dtype: str) -> Precision:
    return Precision(
        name=dtype,
        matmul_dtype=dtype,
        base_dtype=dtype,
        activation_bytes=2,
        linear_input_bytes=2,
        dispatch_bytes=2,
        weight_bytes=2,
        gradient_bytes=4,
        optimizer_bytes=12,
    )


def _single(dtype: str) -> Precision:
    return Precision(
        name=dtype,
        matmul_dtype=dtype,
        base_dtype=dtype,
        activation_bytes=4,
        linear_input_bytes=4,
        dispatch_bytes=4,
        weight_bytes=4,
        gradient_bytes=4,
        optimizer_bytes=8,
    )


BF16: Final = _mixed("bf16")
FP16: Final = _mixed("fp16")
FP32: Final = _single("fp32")
TF32: Final = _single("tf32")
FP8: Final = replace(BF16, name="fp8", matmul_dtype="fp8", linear_input_bytes=1)
FP4: Final = replace(FP8, name="fp4", matmul_dtype="fp4")  # inputs kept for backward in 8 bit
PRECISIONS: Final = {p.name: p for p in (BF16, FP16, FP32, TF32, FP8, FP4)}


def precision_named(name: str) -> Precision:
    """Look a precision up; raises `UnsupportedFeature` naming those that exist."""
    try:
        return PRECISIONS[name]
    except KeyError:
        raise UnsupportedFeature(
            f'precision "{name}" is not modelled', alternative=f"use one of {', '.join(PRECISIONS)}"
        ) from None
