"""Memory of a megatron-core process as its allocator reports it: more than weights and activations.

    static = parameters · bytes + matrix libraries' workspaces + tensors between stages
             + one shared buffer + what rounding of blocks adds
    peak   = static + activations in flight + loss + final norm

Sizes were read in public training code or inferred from public golden values (the accuracy page
says which): two cuBLAS workspaces of 32 MiB where kernels must be deterministic or on Hopper, else
8.125 MiB; one of Transformer Engine, four more with grouped products; input and gradient of every
model chunk behind a stage boundary; the largest of local attention's scores, the gathered input of
sequence parallelism and the gathered tokens of experts. With fp16 a float32 copy of the gradients
outlives the optimizer step, so that it counts as static and not at the peak.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trainwright.plan import StageMemory
from trainwright.plan.measured_run import MeasuredRun
from trainwright.units import MIB
from trainwright.validation.question import Question

_LARGE_WORKSPACE: Final = 32 * MIB
_SMALL_WORKSPACE: Final = 8.125 * MIB
_LARGE_DEVICES: Final = ("H100", "H200")
_BLACKWELL: Final = ("B200", "GB200", "B300", "GB300")
_ENGINE_WORKSPACE: Final = {"A100": 4 * MIB}
_GROUPED_WORKSPACES: Final = 4
_ROUNDING_ALONE, _ROUNDING_PIPELINED = 2.7 * MIB, 3.7 * MIB
_MAIN_STATE_BYTES: Final = 12
_LOSS_BYTES: Final = {False: 6, True: 10}
_MIXTURE_COPIES: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """Bytes the allocator has given out: for ever, and at most."""

    static_bytes: float
    peak_bytes: float


def megatron_memory(run: MeasuredRun, question: Question, stage: StageMemory) -> ProcessMemory:
    """Memory of the last pipeline rank, which is the one that reports."""
    optimizer = stage.optimizer_bytes * (run.number("num_distributed_optimizer_instances") or 1)
    parameters = stage.weight_bytes + stage.gradient_bytes + optimizer
    copy = 4 / _MAIN_STATE_BYTES * optimizer if run.precision == "fp16" else 0.0
    fixed = _workspaces(run) + _between_stages(question) + _shared_buffer(run, question)
    fixed += _ROUNDING_PIPELINED if run.pipeline > 1 else _ROUNDING_ALONE
    peak = parameters + fixed + stage.activation_bytes + _loss(question)
    peak += 2 * _hidden(question) + _copies(run, question, stage.microbatches_in_flight)
    return ProcessMemory(static_bytes=parameters + copy + fixed, peak_bytes=peak)


def _has_large_workspace(run: MeasuredRun) -> bool:
    """Hopper, or deterministic kernels. On Blackwell it depends on a library version that no table
    records: tests that resume a checkpoint show the small one nine times in ten, others mostly the
    large.
    """
    if run.flag("deterministic_mode") or run.accelerator.startswith(_LARGE_DEVICES):
        return True
    return run.accelerator.startswith(_BLACKWELL) and run.setting("test_type") != "ckpt-resume"


def _workspaces(run: MeasuredRun) -> float:
    large = _has_large_workspace(run)
    total = 2 * (_LARGE_WORKSPACE if large else _SMALL_WORKSPACE)
    if run.setting("transformer_impl") == "local" and run.number("num_experts") is None:
        return total
    device = run.accelerator.partition("-")[0]
    engine = _ENGINE_WORKSPACE.get(device, _LARGE_WORKSPACE)
    return total + engine * (1 + _GROUPED_WORKSPACES * run.flag("moe_grouped_gemm"))


def _between_stages(question: Question) -> float:
    """Input and gradient of each chunk stay allocated where stages exchange them."""
    degrees = question.configuration.parallelism
    if degrees.pipeline == 1:
        return 0.0
    return 2 * degrees.virtual_stages * _hidden(question)


def _hidden(question: Question) -> float:
    """One hidden state of a microbatch on one device."""
    asked = question.configuration
    degrees = asked.parallelism
    cut = degrees.context * (degrees.tensor if degrees.sequence_parallel else 1)
    return 2 * asked.microbatch_size * asked.sequence_length * question.model.hidden_size / cut


def _shared_buffer(run: MeasuredRun, question: Question) -> float:
    asked, model = question.configuration, question.model
    degrees = asked.parallelism
    scores = gathered = 0.0
    if run.setting("transformer_impl") == "local":
        heads = model.num_heads / degrees.tensor
        scores = 2 * asked.microbatch_size * heads * (asked.sequence_length / degrees.context) ** 2
    if degrees.sequence_parallel:
        gathered = _hidden(question) * degrees.tensor
    if model.experts and run.setting("moe_token_dispatcher_type") in (None, "allgather"):
        group = degrees.expert * (degrees.expert_tensor or degrees.tensor)
        gathered = max(gathered, _hidden(question) * group)
    return max(scores, gathered)


def _loss(question: Question) -> float:
    asked, t = question.configuration, question.configuration.parallelism.tensor
    multiple = asked.vocabulary_multiple * t
    padded = -(-question.model.vocabulary_size // multiple) * multiple
    tokens = asked.microbatch_size * asked.sequence_length / asked.parallelism.context
    heads = 1 + question.model.num_mtp_layers
    return heads * _LOSS_BYTES[asked.fused_cross_entropy] * tokens * padded / t


def _copies(run: MeasuredRun, question: Question, in_flight: int) -> float:
    """Tensors that the list of a block does not name, for the blocks in flight on the last rank.

    A flash kernel's output is kept twice, in its own and in the projection's layout (cuDNN's, which
    Hopper picks unless told otherwise, once). Routed tokens leave copies around the experts.
    """
    asked, model = question.configuration, question.model
    degrees = asked.parallelism
    blocks = in_flight * (asked.blocks_per_stage or (model.num_layers / asked.num_stages,))[-1]
    copied = 0.0
    hopper = run.accelerator.startswith(_LARGE_DEVICES)
    if asked.fused_attention and (run.setting("attention_backend") == "flash" or not hopper):
        tokens = asked.microbatch_size * asked.sequence_length / degrees.context
        copied += 2 * tokens * model.num_heads * model.head_size / degrees.tensor
    if model.experts is not None:
        routing = sum(model.experts.at(i) for i in range(model.num_layers)) / model.num_layers
        copied += routing * _MIXTURE_COPIES * _hidden(question)
    return blocks * copied
