"""Training software as far as it changes how fast kernels and networks run.

Constants carry over with the software more than with the chip: who launches kernels, fuses them
and overlaps exchanges is a property of the code. A class of software shares these; a single
program differs from its class by less than classes differ from each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class SoftwareClass(StrEnum):
    """Programs that start, fuse and overlap alike.

    MEGATRON: hand-written CUDA pipelines around Transformer Engine or its forerunners. NEMO: the
    same as NVIDIA tunes and publishes it. EAGER_FSDP, COMPILED_FSDP: PyTorch's sharded data
    parallelism, kernel by kernel or compiled. DEEPSPEED: ZeRO around eager models. NANOTRON: eager
    3-D parallelism in plain PyTorch. XLA: whole-program compilation. TYPICAL: nothing is known.
    """

    MEGATRON = "megatron"
    NEMO = "nemo"
    EAGER_FSDP = "eager-fsdp"
    COMPILED_FSDP = "compiled-fsdp"
    DEEPSPEED = "deepspeed"
    NANOTRON = "nanotron"
    XLA = "xla"
    TYPICAL = "typical"


# Classes that grew from the same code share more than their device.
_SCHOOLS: Final = {
    SoftwareClass.MEGATRON: "megatron",
    SoftwareClass.NEMO: "megatron",
    SoftwareClass.DEEPSPEED: "megatron",
    SoftwareClass.EAGER_FSDP: "pytorch",
    SoftwareClass.COMPILED_FSDP: "pytorch",
    SoftwareClass.NANOTRON: "pytorch",
    SoftwareClass.XLA: "xla",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """A program, by its usual lower-case name, and the class it counts to."""

    name: str
    kind: SoftwareClass

    @property
    def picks_fastest_attention(self) -> bool:
        """Whether it runs the fastest published attention kernel of each device.

        Current transformers, whose models TRL and DeepSpeed by itself train, take it unasked
        (huggingface/transformers, pull request 48163).
        """
        return self.name.startswith(("trl", "deepspeed"))

    @property
    def school(self) -> str | None:
        """The code that its class grew from: megatron, pytorch or xla."""
        return _SCHOOLS.get(self.kind)


TYPICAL: Final = Software(name="typical", kind=SoftwareClass.TYPICAL)

# Part of a program's name → its class; the first that is found decides. Trainers around PyTorch's
# own sharding run its kernels one by one; GPT-NeoX is Megatron under DeepSpeed.
_CLASSES: Final = (
    ("nanotron", SoftwareClass.NANOTRON),
    ("maxtext", SoftwareClass.XLA),
    ("paxml", SoftwareClass.XLA),
    ("jax", SoftwareClass.XLA),
    ("xla", SoftwareClass.XLA),
    ("levanter", SoftwareClass.XLA),
    ("deepspeed", SoftwareClass.DEEPSPEED),
    ("nemo", SoftwareClass.NEMO),
    ("bridge", SoftwareClass.NEMO),
    ("megatron", SoftwareClass.MEGATRON),
    ("primus", SoftwareClass.MEGATRON),
    ("neox", SoftwareClass.DEEPSPEED),
    ("torchtitan", SoftwareClass.COMPILED_FSDP),
    ("nanogpt", SoftwareClass.COMPILED_FSDP),
    ("foundry", SoftwareClass.EAGER_FSDP),
    ("composer", SoftwareClass.EAGER_FSDP),
    ("fsdp", SoftwareClass.EAGER_FSDP),
    ("accelerate", SoftwareClass.EAGER_FSDP),
    ("trl", SoftwareClass.EAGER_FSDP),
    ("transformers", SoftwareClass.EAGER_FSDP),
    ("hugging", SoftwareClass.EAGER_FSDP),
    ("pytorch", SoftwareClass.EAGER_FSDP),
    ("torchtune", SoftwareClass.EAGER_FSDP),
    ("axolotl", SoftwareClass.EAGER_FSDP),
    ("llamafactory", SoftwareClass.EAGER_FSDP),
    ("verl", SoftwareClass.EAGER_FSDP),
    ("olmo", SoftwareClass.EAGER_FSDP),
    ("litgpt", SoftwareClass.EAGER_FSDP),
    ("lightning", SoftwareClass.EAGER_FSDP),
    ("unsloth", SoftwareClass.EAGER_FSDP),
)
_EAGER: Final = "-eager"
# Names to offer where somebody asks for a program that nobody knows.
OFFERED: Final = (TYPICAL.name, *sorted({part for part, _ in _CLASSES}))


def software_named(text: str | None, *, compiled: bool | None = None) -> Software:
    """The program of a name; what nobody knows is typical. `compiled` says so of PyTorch's."""
    name = (text or "").strip().lower()
    kind = next((kind for part, kind in _CLASSES if part in name), SoftwareClass.TYPICAL)
    if not name:
        return TYPICAL
    if kind is SoftwareClass.COMPILED_FSDP and compiled is False:
        return Software(name=name + _EAGER, kind=SoftwareClass.EAGER_FSDP)
    if kind is SoftwareClass.EAGER_FSDP and compiled:
        return Software(name=name, kind=SoftwareClass.COMPILED_FSDP)
    return Software(name=name, kind=kind)
