"""Hugging Face accelerate: the YAML file of `accelerate launch`, with FSDP2 for ZeRO 2 and 3.

Its parser takes unknown keys inside a section without a word, so only keys of 1.15 are written, and
the product of the degrees, which nobody there checks, is the number of processes by construction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trainwright.frameworks.launch import commented, header, to_yaml
from trainwright.plans.capability import RecomputeForm, capability_of
from trainwright.plans.job import ExportBundle

if TYPE_CHECKING:
    from trainwright.plans.job import Job, Stamp

FILE: Final = "accelerate.yaml"
PREFIX: Final = "parallelism_config_"
_PRECISIONS: Final = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}


def export_accelerate(job: Job, stamp: Stamp) -> ExportBundle:
    """The file, and the command that takes it in place of torchrun's own program."""
    target, version = "accelerate", capability_of("accelerate").version
    degrees = job.degrees
    missing = (
        f"microbatches: {job.microbatch_size} sequences each, {job.num_microbatches} accumulated, "
        f"of {job.sequence_length} tokens",
        "the model itself, and its tensor-parallel plan",
        "predicted times and memory",
    )
    top = commented(header(stamp, target, version, missing))
    return ExportBundle(
        target=target,
        version=version,
        files={FILE: top + to_yaml(settings(job))},
        command=('"${TRAIN_SCRIPT:?a training script for accelerate}"',),
        not_represented=missing,
        starter="accelerate",
        asked_of_user=(
            f"TRAIN_SCRIPT, with gradient_accumulation_steps={job.num_microbatches}",
            *_shape_note(degrees.tensor),
        ),
    )


def _shape_note(tensor: int) -> tuple[str, ...]:
    return () if tensor == 1 else ("a model with a tensor-parallel plan (tp_plan)",)


def settings(job: Job) -> dict[str, Any]:
    """The file's values by section."""
    degrees, sharding = job.degrees, job.demands.zero_stage
    shards = degrees.data // degrees.state_copies if sharding else 1
    found: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if sharding else "MULTI_GPU",
        "num_machines": -(-degrees.num_devices // min(job.devices_per_node, degrees.num_devices)),
        "num_processes": degrees.num_devices,
        "mixed_precision": _PRECISIONS.get(job.precision, "no"),
    }
    if sharding:
        found["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": sharding == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": job.recompute_form is RecomputeForm.ALL,
        }
        if job.demands.offload:
            found["fsdp_config"]["fsdp_offload_params"] = True
    if sharding or degrees.tensor > 1:
        found["parallelism_config"] = {
            f"{PREFIX}dp_replicate_size": degrees.data // shards,
            f"{PREFIX}dp_shard_size": shards,
            f"{PREFIX}tp_size": degrees.tensor,
            f"{PREFIX}cp_size": degrees.context,
            f"{PREFIX}sp_size": 1,
        }
    return found
