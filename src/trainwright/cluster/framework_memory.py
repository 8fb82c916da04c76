"""What a framework keeps on a device beside weights, gradients, states and activations of a model.

Three figures say how full a device is: what tensors hold (allocated), what the caching allocator
has taken for them (reserved), and what the device shows (reserved, the context of the process, and
the buffers of its communicators). Frameworks differ in copies of gradients, in what an update
allocates, in the loss and in how many communicators they make. These are facts of their public
source, one file for each framework in `cluster/memory`; nothing in them is fitted to a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Final

from trainwright.errors import Fault, InvalidInput, refuse


class Figure(StrEnum):
    """What a figure of memory counts: tensors, what the allocator took, or what a device shows."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    DEVICE = "device"


_DEVICE_WORDS: Final = ("nvidia-smi", "rocm-smi", "driver", "device")


def figure_in(text: str | None) -> Figure | None:
    """The figure that a note on a measured peak speaks of; None where it says neither or both."""
    words = (text or "").lower()
    if any(word in words for word in _DEVICE_WORDS):
        return Figure.DEVICE
    named = [figure for figure in (Figure.ALLOCATED, Figure.RESERVED) if figure in words]
    return named[0] if len(named) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A ratio with the ends of the range that holds nine of ten measured ones."""

    low: float
    typical: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.typical <= self.high < math.inf:
            given = f"{self.low!r}, {self.typical!r}, {self.high!r}"
            raise InvalidInput.of("share", f"must rise from low over typical to high, got {given}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkMemory:
    """The account of one framework; `software` are parts of the names of programs it holds for.

    Tensors of a rank. `kept_gradient_bytes` per parameter are 16-bit gradients that lie beside
    float32 accumulators from backward to the update; `update_bytes` per parameter of a rank's
    share of the states are what an update makes where gradients accumulate in 16 bit, and
    `plain_update_bytes` are that where nothing is sharded; where ZeRO-3 updates group by group, one
    has `update_parameters` at most; `bucket_parameters` are copied into a
    buffer to be reduced, from the ZeRO stage `buckets_from` on into two of 16 bit during the
    backward pass. Below the ZeRO stage `frees_gradients_below` gradients go with an update and come
    again in the backward pass after it. With `copies_gradients` replicas that shard nothing reduce
    copies of all gradients, which stay. With `accumulates_apart` a new
    gradient is whole before it is added to the old one; with `keeps_stage_output` each microbatch
    in flight keeps the hidden state that its stage sent on. `loss_bytes` per logit come on top of
    a float32 softmax and the gradient of 16-bit logits, at the loss and while nothing is fused;
    where tokens' log-probabilities are compared with a reference's it is `compared_bytes`, and with
    a kernel that makes these of logits at once `compared_fused_bytes` on top of what that keeps;
    with `keeps_gathered_inputs` a tensor group keeps what it gathered for a product, not its shard.
    With `puts_back_by_index` experts keep the output of their activation beside its product, and
    backward has the routed tokens three times at once.
    Where `norm_bytes` are set, RMS norms are written out: they keep a copy of their input with so
    many bytes a number in its place, and what they multiply by a weight that trains. With
    `keeps_activated` dense and shared feed-forward parts keep the output of a gated activation
    beside its product; with `keeps_tiles` a part that works on some tokens at a time keeps what
    all of them need backward.
    With `merges_rings` a ring of context ranks is PyTorch's, which has the keys of all ranks at
    once and sums gradients in float32.
    Where `softmax_bytes` are set, attention without a fused kernel keeps its softmax with so many
    bytes a number beside the narrower one that it multiplies. With `upcasts_quantized` all but
    weights of 4 or 8 bits is float32 where adapters train beside these, unless ZeRO-3 shards them.
    With `reuses_buffers` a compiler places every tensor by its lifetime: logits lie where the
    tensors of blocks lie later, and the gradient of an activation's input where that input was.
    With `casts_shards` ZeRO-3 keeps shards of weights that train in float32 alone, and casts what
    it gathers; with `keeps_frozen` what recomputed blocks of frozen weights read, and its gradient,
    stays until the backward pass ends.
    With `whole_experts` those stay in 16 bit where other frozen weights are quantized.
    Without `gathers_ahead` ZeRO-3 gathers the weights of the layer at hand only; without
    `keeps_attended` selective recomputation runs attention again, from its inputs.

    Before the first step, with `copies_weights`, weights that train lie beside the buffer that they
    are copied into, chunk by chunk of a rank, beside that of gradients, if an optimizer's states
    are sharded; with `builds_whole` every device holds the weights that ZeRO-3 then shards. When a
    checkpoint is saved, rank 0 gathers `saves_bytes` of each trained parameter on its host, under
    ZeRO-3.

    `reports` is the figure that the program's own log calls its peak memory. Where tensors are
    `counted` one by one (`step.fsdp2`), the account's facts serve what is not known there.
    `allocated` is what tensors hold over what is predicted, of a source that nobody has seen: wider
    the fewer sources measured this framework. `reserved` is what the
    allocator took over what tensors hold. `context_bytes` are of a process, `communicator_bytes` of
    each of its groups: one for each degree above 1, and `more_communicators` besides. `sources`
    say where a fact or figure comes from, by field.
    """

    name: str
    software: tuple[str, ...] = ()
    counted: bool = False
    reports: Figure = Figure.ALLOCATED
    kept_gradient_bytes: float = 0.0
    update_bytes: float = 0.0
    plain_update_bytes: float = 0.0
    update_parameters: float = 0.0
    bucket_parameters: float = 0.0
    buckets_from: int = 2
    frees_gradients_below: int = 0
    copies_gradients: bool = False
    accumulates_apart: bool = False
    keeps_stage_output: bool = False
    keeps_gathered_inputs: bool = False
    loss_bytes: float = 0.0
    compared_bytes: float = 0.0
    compared_fused_bytes: float = 0.0
    puts_back_by_index: bool = False
    norm_bytes: float = 0.0
    keeps_activated: bool = False
    keeps_tiles: bool = False
    softmax_bytes: float = 0.0
    merges_rings: bool = False
    upcasts_quantized: bool = False
    reuses_buffers: bool = False
    gathers_ahead: bool = True
    keeps_attended: bool = True
    casts_shards: bool = False
    keeps_frozen: bool = False
    whole_experts: bool = False
    copies_weights: bool = False
    builds_whole: bool = False
    saves_bytes: float = 0.0
    allocated: Share
    reserved: Share
    context_bytes: float
    communicator_bytes: float
    more_communicators: int = 0
    sources: dict[str, str]

    def __post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not 0 <= value < math.inf:
                yield Fault(field.name, f"must be finite and >= 0, got {value!r}")

    @property
    def may_hold_less(self) -> bool:
        """Whether a device can hold less than the model's own account says."""
        keeps_all = self.gathers_ahead and self.keeps_attended
        return self.counted or self.reuses_buffers or not keeps_all

    @property
    def of_all_tensors(self) -> FrameworkMemory:
        """The account of a device that never holds less than the model's own account says."""
        return replace(
            self,
            counted=False,
            reuses_buffers=False,
            casts_shards=False,
            gathers_ahead=True,
            keeps_attended=True,
        )

    @property
    def keeps_nothing_beside(self) -> bool:
        """Whether a device holds the tensors of the model's own account, no more and no less."""
        kept = (
            self.kept_gradient_bytes,
            self.update_bytes,
            self.plain_update_bytes,
            self.bucket_parameters,
            self.loss_bytes,
            self.compared_bytes,
            self.compared_fused_bytes,
            self.copies_gradients,
            self.accumulates_apart,
            self.keeps_stage_output,
            self.keeps_gathered_inputs,
            self.puts_back_by_index,
            self.norm_bytes,
            self.keeps_activated,
            self.keeps_tiles,
            self.softmax_bytes,
            self.merges_rings,
            self.upcasts_quantized,
            self.keeps_frozen,
            self.whole_experts,
            self.may_hold_less,
        )
        return not any(kept)

    def outside_bytes(self, num_groups: int) -> float:
        """What a device shows beside the allocator's memory, with so many process groups."""
        groups = num_groups + self.more_communicators if num_groups else 0
        return self.context_bytes + self.communicator_bytes * groups


TYPICAL_MEMORY: Final = "typical"
_ENGINE: Final = " with "
EAGER, COMPILED = "-eager", "-compiled"  # ends of a program's name that say how blocks run


def on_engine(program: str | None, engine: str | None) -> str | None:
    """A program that a library shards, as software: "trl with deepspeed"."""
    return program if engine is None else f"{program}{_ENGINE}{engine}"


def is_sharded_by_deepspeed(software: str) -> bool:
    """Whether ZeRO of DeepSpeed shards the model of another program, with 16-bit gradients."""
    return software.partition(_ENGINE)[2].startswith("deepspeed")


def without_engine(software: str) -> str:
    """The program of such a name."""
    return software.partition(_ENGINE)[0]


def program_of(software: str) -> str:
    """The program alone, whatever shards its model and however its blocks run."""
    return without_engine(software).removesuffix(EAGER).removesuffix(COMPILED)


def memory_of_software(known: tuple[FrameworkMemory, ...], name: str | None) -> FrameworkMemory:
    """The account whose `software` is part of a program's name; else the typical one.

    What shards a program's model decides first, then the longest part, so that `megatron-deepspeed`
    is DeepSpeed's.
    """
    text = (name or "").strip().lower()
    for words in (text[len(without_engine(text)) :], text):
        found = [(len(part), each) for each in known for part in each.software if part in words]
        if found:
            return max(found, key=lambda pair: pair[0])[1]
    return next(each for each in known if each.name == TYPICAL_MEMORY)
