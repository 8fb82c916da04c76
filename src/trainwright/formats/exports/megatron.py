"""Megatron-LM: its command-line arguments in a bash array, ready for `pretrain_gpt.py`.

Each flag stands for a field of Megatron-Core's configuration (`megatron_fields`); this module only
spells them. Tested with megatron-core 0.16.1 and the arguments of Megatron-LM beside it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from trainwright.formats.exports.launch import commented, header
from trainwright.formats.exports.megatron_fields import megatron_fields, unsaid
from trainwright.model.config import Activation
from trainwright.plan.bundle import ExportBundle
from trainwright.plan.capability import capability_of

if TYPE_CHECKING:
    from trainwright.plan.bundle import Stamp
    from trainwright.plan.job import Job

ARRAY: Final = "TRAINWRIGHT_ARGS"
FILE: Final = "megatron_args.sh"
# Fields whose flag is not simply their name.
FLAG_OF: Final = {
    "num_moe_experts": "--num-experts",
    "fp8": "--fp8-format",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "microbatch_group_size_per_vp_stage": "--microbatch-group-size-per-virtual-pipeline-stage",
    "qk_head_dim": "--qk-head-dim",
}
# Switches that are written when a field is off.
OFF_FLAG_OF: Final = {"add_bias_linear": "--disable-bias-linear"}
_ROTARY: Final = (
    "--rotary-base of the model's configuration (rope_theta; Megatron takes 10000, Llama 3 has "
    "500000), and --use-rope-scaling with --rope-scaling-factor where it scales positions"
)
_EPSILON: Final = "--norm-epsilon of the model's configuration (Megatron takes 1e-05)"
_RUN: Final = "length and rate: --train-iters and --lr; if wanted --min-lr, --save and --load"


def export_megatron(job: Job, stamp: Stamp) -> ExportBundle:
    """The arguments as a sourced file, and the command that takes them."""
    missing = (*_unsaid_constants(job), *unsaid(job))
    target, version = "megatron", capability_of("megatron").version
    top = commented(header(stamp, target, version, missing))
    lines = "".join(f"  {line}\n" for line in argument_lines(job))
    return ExportBundle(
        target=target,
        version=version,
        files={FILE: f"{top}{ARRAY}=(\n{lines})\n"},
        command=('"$MEGATRON_PATH"/pretrain_gpt.py', f'"${{{ARRAY}[@]}}"'),
        setup=(f". ./{FILE}", ': "${MEGATRON_PATH:?set it to a checkout of Megatron-LM}"'),
        environment=environment_of(job),
        not_represented=missing,
        warnings=tuple(_warnings(job)),
        asked_of_user=("MEGATRON_PATH, a checkout of Megatron-LM", *_asked(job)),
    )


def _unsaid_constants(job: Job) -> Iterator[str]:
    """What changes the result of training and no time, so that plans do not carry it."""
    if job.model.rotary:
        yield "base and scaling of rotary positions: Megatron's defaults unless you add them"
    yield "epsilon of norms: Megatron's default unless you add it"


def _asked(job: Job) -> Iterator[str]:
    if job.model.rotary:
        yield _ROTARY
    yield _EPSILON
    # The tokenizer without text counts a token for the end of a document itself.
    words = job.model.vocabulary_size - 1
    yield (
        "tokenizer and data: --tokenizer-type with --tokenizer-model, and --data-path; for a trial "
        f"--mock-data --tokenizer-type NullTokenizer --vocab-size {words}"
    )
    yield _RUN


def argument_lines(job: Job) -> Iterator[str]:
    """Flags with their values, quoted for a shell, one to a line."""
    for flag, value in arguments(job):
        values = value if isinstance(value, (list, tuple)) else [value]
        shown = [] if value is True else [shlex.quote(str(each)) for each in values]
        yield " ".join((flag, *shown))


def arguments(job: Job) -> Iterator[tuple[str, Any]]:
    """Flags and values; a switch has the value True."""
    fields = megatron_fields(job)
    has_layout = "pipeline_model_parallel_layout" in fields.model
    for name, value in (*fields.model.items(), *fields.latent.items()):
        yield from _spelled(name, value, job, has_layout=has_layout)
    yield from _described(job)
    for name, value in fields.run.items():
        yield _flag(name), value
    yield from _sharded(job, fields.ddp)
    for name, value in fields.optimizer.items():
        if name != "use_distributed_optimizer":
            yield _flag(name), value
    if job.recipe.optimizer == "muon":
        yield "--ckpt-format", "torch"


def _spelled(name: str, value: Any, job: Job, *, has_layout: bool) -> Iterator[tuple[str, Any]]:
    if value is None or (has_layout and name == "virtual_pipeline_model_parallel_size"):
        return
    if name == "gated_linear_unit":
        yield from _activation(job)
    elif name == "num_query_groups":
        if value != job.model.num_heads and job.model.latent is None:
            yield "--group-query-attention", True
            yield _flag(name), value
    elif name == "moe_layer_freq":
        yield _flag(name), "(" + "+".join(f"[{v}]*{n}" for v, n in _run_lengths(value)) + ")"
    elif name in OFF_FLAG_OF:
        if not value:
            yield OFF_FLAG_OF[name], True
    elif value is False:
        return
    else:
        yield _flag(name), value


def _run_lengths(values: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1] = value, runs[-1][1] + 1
        else:
            runs.append((value, 1))
    return runs


def _activation(job: Job) -> Iterator[tuple[str, Any]]:
    model = job.model
    if model.activation is Activation.SILU and model.gated:
        yield "--swiglu", True
    elif model.activation is Activation.SQUARED_RELU and not model.gated:
        yield "--squared-relu", True
    elif model.activation is Activation.GELU and model.gated:
        yield "--quick-geglu", True


def _described(job: Job) -> Iterator[tuple[str, Any]]:
    """What the arguments say of a model beside the fields of its configuration."""
    model = job.model
    if not model.tied_embeddings:
        yield "--untie-embeddings-and-output-weights", True
    yield "--position-embedding-type", "rope" if model.rotary else "learned_absolute"
    yield "--max-position-embeddings", model.max_positions or job.sequence_length
    if not job.fused_attention:
        yield "--attention-backend", "unfused"


def _sharded(job: Job, ddp: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    if ddp["use_distributed_optimizer"]:
        yield "--use-distributed-optimizer", True
    if "data_parallel_sharding_strategy" in ddp:
        yield "--use-megatron-fsdp", True
        yield "--data-parallel-sharding-strategy", ddp["data_parallel_sharding_strategy"]
        yield "--ckpt-format", "fsdp_dtensor"
    if "num_distributed_optimizer_instances" in ddp:
        name = "num_distributed_optimizer_instances"
        yield _flag(name), ddp[name]
    for name in ("overlap_grad_reduce", "overlap_param_gather"):
        if ddp.get(name):
            yield _flag(name), True
    if not ddp["grad_reduce_in_fp32"]:
        yield "--grad-reduce-in-bf16", True
    elif job.precision != "fp32":
        yield "--accumulate-allreduce-grads-in-fp32", True


def _flag(name: str) -> str:
    return FLAG_OF.get(name, "--" + name.replace("_", "-"))


def environment_of(job: Job) -> dict[str, str]:
    """Variables that Megatron checks; an empty value must be unset."""
    if job.demands.zero_stage >= 2:
        return {"CUDA_DEVICE_MAX_CONNECTIONS": ""}
    if job.degrees.tensor > 1 or job.degrees.context > 1:
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    return {}


def _warnings(job: Job) -> Iterator[str]:
    degrees = job.degrees
    if job.demands.zero_stage >= 2 and degrees.tensor * degrees.context > 1:
        yield (
            "Megatron-FSDP wants CUDA_DEVICE_MAX_CONNECTIONS unset, tensor and context parallelism "
            "want it 1 before Blackwell: expect less overlap"
        )
    if job.model.activation is Activation.GELU and job.model.gated:
        yield "--quick-geglu approximates the model's gated GELU"
    yield (
        f"the vocabulary is padded to a multiple of {job.vocabulary_multiple} x tp = "
        f"{job.vocabulary_multiple * degrees.tensor}"
    )
