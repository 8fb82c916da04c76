"""TRL's supervised fine-tuning: accelerate's file, and the arguments of its trainer beside it.

TRL runs on the trainer of transformers, which accelerate starts and shards. What makes long
sequences fit are arguments of that trainer: its loss computes the logits of 256 tokens at a time,
and checkpointed layers may keep their inputs in the host's memory (transformers 5.16). Sources:
trl/trainer/sft_config.py and docs/source/long_context_training.md, 1.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trainwright.frameworks import accelerate
from trainwright.frameworks.launch import commented, header, to_yaml
from trainwright.plans.capability import RecomputeForm, capability_of
from trainwright.plans.capability_table import LOSS_CHUNKS
from trainwright.plans.job import ExportBundle

if TYPE_CHECKING:
    from trainwright.plans.job import Job, Stamp

FILE: Final = "sft.yaml"
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16"}


def export_trl(job: Job, stamp: Stamp) -> ExportBundle:
    """Both files, and the command that starts the trainer."""
    target, version = "trl", capability_of("trl").version
    tile = job.recipe.mlp_tile
    missing: tuple[str, ...] = ("the data", "predicted times and memory")
    chunk, usual = job.recipe.loss_chunk, LOSS_CHUNKS[target]
    if chunk not in (None, usual):
        missing += (f"a loss over {chunk} tokens at a time: it takes {usual}",)
    top = commented(header(stamp, target, version, missing))
    found = settings(job)
    return ExportBundle(
        target=target,
        version=version,
        files={accelerate.FILE: top + to_yaml(launched(job)), FILE: top + to_yaml(found)},
        command=(
            "-m",
            "trl.scripts.sft",
            "--config",
            FILE,
            "--model_name_or_path",
            '"${MODEL:?a model of the hub or its folder}"',
            "--dataset_name",
            '"${DATASET:?a dataset of the hub}"',
        ),
        not_represented=missing,
        starter="accelerate",
        asked_of_user=(
            "MODEL and DATASET",
            *((f"a forward of the model's MLP that takes {tile} tokens at a time",) * bool(tile)),
        ),
    )


def launched(job: Job) -> dict[str, Any]:
    """Accelerate's values; the trainer checkpoints activations itself."""
    found = accelerate.settings(job)
    if "fsdp_config" in found:
        found["fsdp_config"] = {**found["fsdp_config"], "fsdp_activation_checkpointing": False}
    return found


def settings(job: Job) -> dict[str, Any]:
    """The trainer's arguments."""
    recompute = job.recompute_form is RecomputeForm.ALL
    found: dict[str, Any] = {
        "max_length": job.sequence_length,
        "per_device_train_batch_size": job.microbatch_size,
        "gradient_accumulation_steps": job.num_microbatches,
        "loss_type": "nll" if job.recipe.loss_chunk is None else "chunked_nll",
        "gradient_checkpointing": recompute,
        "bf16": job.precision == "bf16",
        "fp16": job.precision == "fp16",
        "dtype": _DTYPES.get(job.precision, "float32"),
    }
    if recompute and job.demands.offload_activations:
        found["gradient_checkpointing_kwargs"] = {"offload": True}
    if job.degrees.context > 1:
        found |= {"pad_to_multiple_of": 2 * job.degrees.context, "packing": False}
    return found
