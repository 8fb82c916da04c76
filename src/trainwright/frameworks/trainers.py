"""Trainers that take a YAML file, from accelerate to nanotron.

Keys are those that `frameworks.jobs` reads; each file is read back as the plan that it was written
from. Most of these trainers run models of a hub, shard by FSDP2 or DeepSpeed and have no pipeline.
What their parsers take without a word is why only keys of the versions below are written, and why
the product of degrees is the number of processes by construction.

Sources: accelerate 1.15; trl/trainer/sft_config.py 1.13; axolotl/utils/schemas 0.19;
llamafactory/hparams 0.9.5; nemo_automodel/recipes/_dist_utils.py 0.7; maxtext/configs/base.yml;
nanotron's configuration (0.4, and the repository of 2026 for recomputation and context), which does
not import without a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import accumulate
from math import gcd
from typing import Any, Final

from trainwright.errors import Fault, Inexpressible
from trainwright.formats.catalog import model_entries
from trainwright.frameworks.launch import PIPELINE_CODE, commented, header, nodes_of, to_yaml
from trainwright.frameworks.megatron import (
    FLAG_OF,
    decided_of_model,
    environment_of,
    layout_of,
    megatron_fields,
    unsaid,
)
from trainwright.frameworks.torchtitan import ROTATES
from trainwright.model import NO_OFFLOAD, LayerKind
from trainwright.plans.capability import RecomputeForm, capability_of
from trainwright.plans.capability_table import LOSS_CHUNKS, PRODUCTS, own_reduction
from trainwright.plans.job import ExportBundle, Job, Stamp
from trainwright.plans.plan import DEFAULT_SCHEDULE, usual_schedule
from trainwright.plans.schedule import Placing
from trainwright.profile import Recompute

# DeepSpeed: its JSON, and Python for a pipeline, whose stages the JSON cannot state
# ----------------------------------------------------------------------------------
# The parser accepts unknown keys at the top and under `pipeline` without a word, so only known ones
# are written; what JSON has no comments for goes to a side file.


DEEPSPEED_FILE: Final = "ds_config.json"


def export_deepspeed(job: Job, stamp: Stamp) -> ExportBundle:
    """The JSON with its side file, and for a pipeline the module that cuts it."""
    target, version = "deepspeed", capability_of("deepspeed").version
    missing = (*_unsaid(job), "predicted times and memory")
    meta = {
        "written_by": f"trainwright {stamp.trainwright_version}",
        "plan_sha256": stamp.plan_sha256,
        "target": target,
        "version": version,
        "changes": list(stamp.changes),
        "not_represented": [*stamp.unsaid, *missing],
    }
    files = {
        DEEPSPEED_FILE: _deepspeed_text(job),
        "ds_config.meta.json": json.dumps(meta, indent=2) + "\n",
    }
    if job.degrees.pipeline > 1:
        files[PIPELINE_CODE] = commented(header(stamp, target, version, missing)) + _code(job)
    return ExportBundle(
        target=target,
        version=version,
        files=files,
        command=(
            '"${TRAIN_SCRIPT:?a training script for DeepSpeed}"',
            "--deepspeed",
            f"--deepspeed_config {DEEPSPEED_FILE}",
        ),
        not_represented=missing,
        asked_of_user=(
            "TRAIN_SCRIPT: model, data and optimizer",
            *((f"in it, the module of {PIPELINE_CODE}",) if PIPELINE_CODE in files else ()),
        ),
    )


def _unsaid(job: Job) -> Iterator[str]:
    degrees = job.degrees
    if degrees.tensor > 1:
        yield f"tensor parallel {degrees.tensor}: it is the model's own"
    if degrees.expert > 1:
        yield f"expert parallel {degrees.expert}: ep_size of the MoE layers in code"
    if degrees.pipeline == 1 and job.recompute_form is RecomputeForm.ALL:
        yield "recomputation: checkpoint every block in the model's code"
    yield f"sequences of {job.sequence_length} tokens"


def _deepspeed_text(job: Job) -> str:
    """The JSON."""
    return json.dumps(settings(job), indent=2) + "\n"


def settings(job: Job) -> dict[str, Any]:
    """The values of the JSON; batch = microbatch x accumulation x replicas."""
    found: dict[str, Any] = {
        "train_batch_size": job.global_batch,
        "train_micro_batch_size_per_gpu": job.microbatch_size,
        "gradient_accumulation_steps": job.num_microbatches,
        "zero_optimization": {"stage": job.demands.zero_stage},
    }
    if job.demands.zero_stage:  # which overlaps by itself at its third stage alone
        found["zero_optimization"]["overlap_comm"] = job.overlap.gradients > 0
    moved = job.recipe.offload or NO_OFFLOAD
    if job.demands.offload and not job.demands.zero_stage:  # which one replica does not shard
        found["zero_optimization"]["stage"] = 3 if moved.weights else 1
    if moved.optimizer or moved.gradients:
        found["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if moved.weights:
        found["zero_optimization"]["offload_param"] = {"device": "cpu", "pin_memory": True}
    if job.precision == "bf16":
        found["bf16"] = {"enabled": True}
    elif job.precision == "fp16":
        found["fp16"] = {"enabled": True}
    reduced = job.recipe.reduce_dtype or job.recipe.gradient_dtype or "fp32"
    own = own_reduction("deepspeed", job.precision) or "fp32"
    is_said = job.recipe.reduce_dtype is not None or reduced != own
    if is_said and reduced in ("fp32", "bf16", "fp16"):
        found["communication_data_type"] = reduced
    kept = job.recipe.gradient_dtype or "fp32"
    if job.demands.zero_stage and kept in ("fp32", "bf16", "fp16") and kept != job.precision:
        found["data_types"] = {"grad_accum_dtype": kept}
    if job.degrees.pipeline > 1:
        found["pipeline"] = {"activation_checkpoint_interval": _interval(job)}
    return found


def _interval(job: Job) -> int:
    return int(job.recompute_form is RecomputeForm.ALL)


def bounds(job: Job) -> tuple[int, ...]:
    """First layers of the stages, and the end, of embedding, blocks, norm and head in order."""
    kinds = {LayerKind.EMBEDDING, LayerKind.BLOCK, LayerKind.FINAL_NORM, LayerKind.LM_HEAD}
    counts = [sum(kind in kinds for kind in stage.kinds) for stage in job.stages]
    return tuple(accumulate(counts, initial=0))


def _code(job: Job) -> str:
    """A pipeline cut as planned, whatever DeepSpeed's own methods would do."""
    return f'''"""The pipeline of the plan, of embedding, blocks, norm and head as one list."""

from deepspeed.pipe import PipelineModule

NUM_STAGES = {job.degrees.pipeline}
BOUNDS = {list(bounds(job))}  # stage i holds layers BOUNDS[i] to BOUNDS[i + 1]


class PlannedPipeline(PipelineModule):
    """Cut at BOUNDS; DeepSpeed's own methods balance counts or parameters instead."""

    def _partition_layers(self, method="planned"):
        stage = self._topo.get_coord(self.global_rank).pipe
        self.parts = list(BOUNDS)
        self._set_bounds(start=BOUNDS[stage], stop=BOUNDS[stage + 1])


def pipeline(layers, loss_fn):
    """The module of this rank; `layers` must be as many as the plan's."""
    if len(layers) != BOUNDS[-1]:
        raise ValueError(f"the plan has {{BOUNDS[-1]}} layers, got {{len(layers)}}")
    return PlannedPipeline(
        layers=layers,
        num_stages=NUM_STAGES,
        loss_fn=loss_fn,
        activation_checkpoint_interval={_interval(job)},
    )
'''


_HUB: Final = "huggingface.co/"
_ASKS_MODEL: Final = "the model's folder or its name at the hub, where the file has another"
_DATA_MISSING: Final = ("the data and rates", "predicted times and memory")


@cache
def hub_name(name: str) -> str:
    """What the hub calls a model of the catalog; any other name stays, without what is tuned."""
    name = name.partition(" + ")[0]
    entry = next((each for each in model_entries() if each.name == name), None)
    if entry is None or _HUB not in entry.source:
        return name
    return "/".join(entry.source.split(_HUB)[-1].split("/")[:2])


def _adapted(job: Job, keys: Mapping[str, str], **on: Any) -> dict[str, Any]:
    """Low-rank adapters by the trainer's `keys` for rank, targets, dropout and bits; none: nothing.

    `on` says that there are any.
    """
    low_rank = job.model.tuning.low_rank
    if low_rank is None:
        return {}
    names = {ours: theirs for theirs, ours in reversed(PRODUCTS.items())}
    said = {
        "rank": low_rank.rank,
        "targets": [names[each] for each in low_rank.targets],
        "dropout": low_rank.dropout or None,
        "bits": low_rank.few_bits,
        "load_in_4bit": low_rank.bits == 4 or None,
        "load_in_8bit": low_rank.bits == 8 or None,
    }
    return {**on, **{key: said[name] for name, key in keys.items() if said[name] is not None}}


_OF_PEFT: Final = {
    "rank": "lora_r",
    "targets": "lora_target_modules",
    "dropout": "lora_dropout",
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
}


def _is_recomputed(job: Job) -> bool:
    return job.recompute_form is RecomputeForm.ALL


def _bundle(
    target: str,
    stamp: Stamp,
    files: Mapping[str, Mapping[str, Any]],
    command: tuple[str, ...],
    *,
    missing: tuple[str, ...] = _DATA_MISSING,
    others: Mapping[str, str] | None = None,
    **more: Any,
) -> ExportBundle:
    """YAML files with their headers, and `others` as they are."""
    version = capability_of(target).version
    top = commented(header(stamp, target, version, missing))
    written = {name: top + to_yaml(values) for name, values in files.items()}
    return ExportBundle(
        target=target,
        version=version,
        files={**written, **(others or {})},
        command=command,
        not_represented=missing,
        **more,
    )


# Hugging Face accelerate: the file of `accelerate launch`, with FSDP2 for ZeRO 2 and 3
# -------------------------------------------------------------------------------------

ACCELERATE: Final = "accelerate.yaml"
PREFIX: Final = "parallelism_config_"
_MIXED: Final = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}


def export_accelerate(job: Job, stamp: Stamp) -> ExportBundle:
    """The file, and the command that takes it in place of torchrun's own program."""
    missing = (
        f"microbatches: {job.microbatch_size} sequences each, {job.num_microbatches} accumulated, "
        f"of {job.sequence_length} tokens",
        "the model itself, and its tensor-parallel plan",
        "predicted times and memory",
    )
    return _bundle(
        "accelerate",
        stamp,
        {ACCELERATE: launched(job)},
        ('"${TRAIN_SCRIPT:?a training script for accelerate}"',),
        missing=missing,
        starter="accelerate",
        asked_of_user=(
            f"TRAIN_SCRIPT, with gradient_accumulation_steps={job.num_microbatches}",
            *_shape_note(job.degrees.tensor),
        ),
    )


def _shape_note(tensor: int) -> tuple[str, ...]:
    return () if tensor == 1 else ("a model with a tensor-parallel plan (tp_plan)",)


def launched(job: Job) -> dict[str, Any]:
    """The file's values by section."""
    degrees, sharding, shards = job.degrees, job.demands.zero_stage, job.state_shards
    wrapped = _wrapped(job)
    found: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if wrapped else "MULTI_GPU",
        "num_machines": -(-degrees.num_devices // min(job.devices_per_node, degrees.num_devices)),
        "num_processes": degrees.num_devices,
        "mixed_precision": "no"
        if job.recipe.main_weight_dtype == "none"
        else _MIXED.get(job.precision, "no"),
    }
    if wrapped:
        found["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": wrapped == 3,
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
        if degrees.context > 1:
            strategy = ROTATES[job.recipe.context_exchange]
            found["parallelism_config"][f"{PREFIX}cp_comm_strategy"] = strategy
    return found


def _wrapped(job: Job) -> int:
    """How FSDP shards, by ZeRO stage, or 0 without it.

    On one device it shards nothing, and moves to the host what lies there.
    """
    moved, sharding = job.recipe.offload or NO_OFFLOAD, job.demands.zero_stage
    if sharding or not job.demands.offload:
        return sharding
    return 3 if moved.weights else 2


# TRL's supervised fine-tuning: accelerate's file, and the arguments of its trainer beside it
# -------------------------------------------------------------------------------------------
# TRL runs on the trainer of transformers. What makes long sequences fit are arguments of that
# trainer: its loss computes the logits of 256 tokens at a time, and checkpointed layers may keep
# their inputs in the host's memory (transformers 5.16, docs/source/long_context_training.md).

TRL: Final = "sft.yaml"
_TRL_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16"}


def export_trl(job: Job, stamp: Stamp) -> ExportBundle:
    """Both files, and the command that starts the trainer."""
    tile = job.recipe.mlp_tile
    missing: tuple[str, ...] = ("the data", "predicted times and memory")
    chunk, usual = job.recipe.loss_chunk, LOSS_CHUNKS["trl"]
    if chunk not in (None, usual):
        missing += (f"a loss over {chunk} tokens at a time: it takes {usual}",)
    return _bundle(
        "trl",
        stamp,
        {ACCELERATE: _launched_trl(job), TRL: _trl(job)},
        (
            "-m",
            "trl.scripts.sft",
            "--config",
            TRL,
            "--model_name_or_path",
            '"${MODEL:?a model of the hub or its folder}"',
            "--dataset_name",
            '"${DATASET:?a dataset of the hub}"',
        ),
        missing=missing,
        starter="accelerate",
        asked_of_user=(
            "MODEL and DATASET",
            *((f"a forward of the model's MLP that takes {tile} tokens at a time",) * bool(tile)),
        ),
    )


# `optim` of transformers (OptimizerNames), by optimizer and the format of its moments.
_OPTIM: Final = {
    ("adam", "int8"): "adamw_bnb_8bit",
    ("lion", "fp32"): "lion_32bit",
    ("lion", "int8"): "lion_8bit",
    ("adafactor", "fp32"): "adafactor",
    ("sgd", "fp32"): "sgd",
    ("muon", "fp32"): "muon",  # axolotl's own
}


def _optim_of(job: Job) -> str | None:
    """The optimizer as trainers around transformers name it; None for their default."""
    if job.recipe.update_copy_bytes:
        return "adamw_torch"
    moments = job.recipe.moment_dtypes[0] if job.recipe.optimizer.num_moments else "fp32"
    return _OPTIM.get((str(job.recipe.optimizer), moments))


def _launched_trl(job: Job) -> dict[str, Any]:
    """Accelerate's values; the trainer checkpoints activations itself."""
    found = launched(job)
    if "fsdp_config" in found:
        found["fsdp_config"] = {**found["fsdp_config"], "fsdp_activation_checkpointing": False}
    return found


def _trl(job: Job) -> dict[str, Any]:
    """The trainer's arguments."""
    recompute = job.recompute_form is RecomputeForm.ALL
    found: dict[str, Any] = {
        "max_length": job.sequence_length,
        "per_device_train_batch_size": job.microbatch_size,
        "gradient_accumulation_steps": job.num_microbatches,
        "loss_type": "nll" if job.recipe.loss_chunk is None else "chunked_nll",
        "gradient_checkpointing": recompute,
        "bf16": job.precision in ("bf16", "bf16_autocast")
        and job.recipe.main_weight_dtype != "none",
        "fp16": job.precision in ("fp16", "fp16_autocast"),
        "dtype": _loaded_in(job),
    }
    if optim := _optim_of(job):
        found["optim"] = optim
    if recompute and job.demands.offload_activations:
        found["gradient_checkpointing_kwargs"] = {"offload": True}
    found |= _adapted(job, _OF_PEFT, use_peft=True)
    if job.degrees.context > 1:
        found |= {"pad_to_multiple_of": 2 * job.degrees.context, "packing": False}
    return found


def _loaded_in(job: Job) -> str:
    """The format that weights are loaded in.

    FSDP's are made float32 for their optimizer, beside its mixed precision (accelerate 1.15,
    fsdp2_prepare_model). Whole ones stay as they come, and their gradients and moments are like
    them: those that are updated in float32 are loaded so, and autocast copies them. Adapters that
    lie beside frozen weights are float32 by themselves.
    """
    is_sharded, is_adapted = job.demands.zero_stage > 0, job.model.tuning.low_rank is not None
    if job.model.tuning.is_wide:
        return "float32"
    if is_sharded or is_adapted or job.recipe.main_weight_dtype == "none":
        return _TRL_DTYPES.get(job.precision, "float32")
    return "float32"


# axolotl: FSDP2 and a mesh of replicas, shards, tensor and context ranks
# -----------------------------------------------------------------------

AXOLOTL: Final = "axolotl.yaml"


def export_axolotl(job: Job, stamp: Stamp) -> ExportBundle:
    """Its file: model, batch, degrees."""
    return _bundle(
        "axolotl",
        stamp,
        {AXOLOTL: _axolotl(job)},
        ("-m", "axolotl.cli.train", AXOLOTL),
        asked_of_user=("datasets and learning_rate", _ASKS_MODEL),
    )


def _axolotl(job: Job) -> dict[str, Any]:
    degrees, sharding = job.degrees, job.demands.zero_stage
    found: dict[str, Any] = {
        "base_model": hub_name(job.model_name),
        "sequence_len": job.sequence_length,
        # Over context ranks it packs one row of a microbatch at most.
        "sample_packing": degrees.context == 1 or job.microbatch_size == 1,
        "pad_to_sequence_len": True,
        "micro_batch_size": job.microbatch_size,
        "gradient_accumulation_steps": job.num_microbatches,
        "gradient_checkpointing": _is_recomputed(job),
        "bf16": job.precision in ("bf16", "fp8"),
        "fp16": job.precision == "fp16",
        "fp8": job.precision == "fp8",
        "float32": job.precision == "fp32",
        # Packing needs it to keep sequences apart, context parallelism to be accepted.
        **({"attn_implementation": "flash_attention_2"} if job.fused_attention else {}),
        "optimizer": _optim_of(job) or "adamw_torch_fused",
    }
    if _is_recomputed(job) and job.demands.offload_activations:
        found["activation_offloading"] = True
    tuned = job.model.tuning.low_rank
    found |= _adapted(job, _OF_PEFT, adapter="qlora" if tuned and tuned.bits == 4 else "lora")
    if sharding or degrees.tensor > 1:
        copies = degrees.state_copies if sharding else degrees.data
        found |= {
            "dp_replicate_size": copies,
            "dp_shard_size": degrees.data // copies,
            "tensor_parallel_size": degrees.tensor,
            "context_parallel_size": degrees.context,
        }
    if wrapped := _wrapped(job):
        found["fsdp_version"] = 2
        found["fsdp_config"] = {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "reshard_after_forward": wrapped == 3,
            "offload_params": job.demands.offload,
        }
    return found


# LLaMA-Factory: the trainer of transformers on replicas, which DeepSpeed's JSON shards
# -------------------------------------------------------------------------------------

LLAMAFACTORY: Final = "llamafactory.yaml"


def export_llamafactory(job: Job, stamp: Stamp) -> ExportBundle:
    """Its file, and DeepSpeed's where something is sharded."""
    sharding = job.demands.zero_stage
    found: dict[str, Any] = {
        "model_name_or_path": hub_name(job.model_name),
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full",
        "cutoff_len": job.sequence_length,
        "packing": True,
        "per_device_train_batch_size": job.microbatch_size,
        "gradient_accumulation_steps": job.num_microbatches,
        "disable_gradient_checkpointing": not _is_recomputed(job),
        "bf16": job.precision == "bf16",
        "fp16": job.precision == "fp16",
    }
    if optim := _optim_of(job):
        found["optim"] = optim
    keys = {"rank": "lora_rank", "dropout": "lora_dropout", "bits": "quantization_bit"}
    found |= _adapted(job, {**keys, "targets": "lora_target"}, finetuning_type="lora")
    others = {}
    if sharding or job.demands.offload:
        found["deepspeed"] = DEEPSPEED_FILE
        others[DEEPSPEED_FILE] = _deepspeed_text(job)
    return _bundle(
        "llamafactory",
        stamp,
        {LLAMAFACTORY: found},
        ("-m", "llamafactory.launcher", LLAMAFACTORY),
        others=others,
        asked_of_user=("dataset, template, output_dir and learning_rate", _ASKS_MODEL),
    )


# NeMo Automodel: FSDP2, or replicas, on a mesh with a pipeline of PyTorch's
# --------------------------------------------------------------------------

AUTOMODEL: Final = "automodel.yaml"


def export_automodel(job: Job, stamp: Stamp) -> ExportBundle:
    """The sections that a plan decides."""
    return _bundle(
        "automodel",
        stamp,
        {AUTOMODEL: _automodel(job)},
        ("-m", "nemo_automodel.recipes.llm.train_ft", "--config", AUTOMODEL),
        asked_of_user=("dataset, loss_fn and the rates of the optimizer", _ASKS_MODEL),
    )


def _automodel(job: Job) -> dict[str, Any]:
    degrees, sharding = job.degrees, job.demands.zero_stage
    alone = not sharding and degrees.data > 1
    mesh: dict[str, Any] = {
        "strategy": "ddp" if alone else "fsdp2",
        "dp_size": degrees.data,
        "tp_size": degrees.tensor,
        "pp_size": degrees.pipeline,
        "cp_size": degrees.context,
        "ep_size": degrees.expert,
        "activation_checkpointing": _is_recomputed(job),
    }
    if not alone:
        mesh |= {
            "dp_replicate_size": degrees.state_copies if sharding else 1,
            "sequence_parallel": degrees.sequence_parallel,
            "reshard_after_forward": sharding == 3,
        }
    local = job.microbatch_size
    if degrees.pipeline > 1:
        local *= job.num_microbatches  # all of them pass the pipeline in one run of its schedule
        schedules = capability_of("automodel").schedules
        mesh["pipeline"] = {
            "pp_schedule": schedules[job.schedule],
            "pp_microbatch_size": job.microbatch_size,
        }
    keys = {"rank": "dim", "targets": "target_modules", "dropout": "dropout"}
    peft = _adapted(job, keys, _target_="nemo_automodel.components._peft.lora.PeftConfig")
    return {
        **({"peft": peft} if peft else {}),
        "model": {
            "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
            "pretrained_model_name_or_path": hub_name(job.model_name),
            "torch_dtype": "float32",  # what is stored; its policy of FSDP computes in bf16
        },
        "step_scheduler": {"global_batch_size": job.global_batch, "local_batch_size": local},
        "distributed": mesh,
        "packed_sequence": {"packed_sequence_size": job.sequence_length},
        "optimizer": {
            "_target_": "torch.optim.AdamW",
            **({"fused": True} if job.recipe.fused_update else {}),
        },
    }


# MaxText: one program on a mesh of devices
# -----------------------------------------

MAXTEXT: Final = "maxtext.yml"


def export_maxtext(job: Job, stamp: Stamp) -> ExportBundle:
    """What it changes of `base.yml`; the batch of a device may be a part of a sequence."""
    degrees, recipe = job.degrees, job.recipe
    shards = job.state_shards
    copies, nodes = degrees.data // shards, nodes_of(job)[0]
    # Its meshes are one of nodes (dcn) and one of the devices of a node (ici): copies of state go
    # to different nodes first, then shards of it. What cuts a layer lies in a node.
    apart = gcd(nodes, copies)
    across = nodes // apart
    if shards % (across * degrees.expert):
        wanted = f"must divide the {shards} ranks that share state, on {nodes} nodes"
        fault = Fault("ep", f"{degrees.expert}: {wanted}: maxtext has a mesh of nodes")
        raise Inexpressible("maxtext", (fault,), alternatives=())
    found: dict[str, Any] = {
        "base_config": "base.yml",
        "hardware": "gpu",
        "model_name": job.model_name,
        "per_device_batch_size": job.microbatch_size / (degrees.tensor * degrees.context),
        "gradient_accumulation_steps": job.num_microbatches,
        "max_target_length": job.sequence_length,
        "remat_policy": "full" if _is_recomputed(job) else "none",
        "dtype": "float32" if job.precision == "fp32" else "bfloat16",
        "quantization": "fp8" if job.precision == "fp8" else "",
        "opt_type": "adamw",
        "optimizer_memory_host_offload": job.demands.offload,
        "dcn_data_parallelism": apart,
        "dcn_fsdp_parallelism": across,
        "ici_data_parallelism": copies // apart,
        "ici_fsdp_parallelism": shards // (across * degrees.expert),
        "ici_tensor_parallelism": degrees.tensor,
        "ici_context_parallelism": degrees.context,
        "ici_expert_parallelism": degrees.expert,
    }
    if degrees.context > 1:
        found["context_parallel_strategy"] = str(recipe.context_exchange)
        found["context_parallel_load_balance"] = recipe.context_balanced
    if recipe.capacity_factor is not None:
        found["capacity_factor"] = recipe.capacity_factor
    if recipe.dropout is not None:
        found["dropout_rate"] = recipe.dropout
    if not job.fused_attention:
        found["attention"] = "dot_product"
    return _bundle(
        "maxtext",
        stamp,
        {MAXTEXT: found},
        ("-m", "MaxText.train", MAXTEXT),
        starter="jax",
        asked_of_user=("model_name as MaxText spells it", "dataset, run_name and output directory"),
    )


# nanotron: its sections of parallelism, tokens and optimizer
# -----------------------------------------------------------
# It cuts the model itself: blocks and head have weights by their matrix products, and a stage ends
# after the block with which the running sum passes its share. A plan with other stages is refused.

NANOTRON: Final = "nanotron.yaml"


def export_nanotron(job: Job, stamp: Stamp) -> ExportBundle:
    """The three sections that a plan decides."""
    return _bundle(
        "nanotron",
        stamp,
        {NANOTRON: _nanotron(job)},
        ('"${NANOTRON_PATH:?a checkout}"/run_train.py', "--config-file", NANOTRON),
        missing=("the model, its tokenizer and data", "predicted times and memory"),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        asked_of_user=("the sections general, model, tokenizer, data_stages and optimizer rates",),
        warnings=("checked against our reading of its schema only",),
    )


_FACTORIES: Final = {"adam": "adamW", "sgd": "sgd"}
_NANOTRON_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def _nanotron(job: Job) -> dict[str, Any]:
    """The sections with their values."""
    degrees, engines = job.degrees, capability_of("nanotron").schedules
    parallelism: dict[str, Any] = {
        "dp": degrees.data,
        "pp": degrees.pipeline,
        "tp": degrees.tensor,
        "pp_engine": engines.get(job.schedule, engines[DEFAULT_SCHEDULE]),
        "tp_mode": "REDUCE_SCATTER" if degrees.sequence_parallel else "ALL_REDUCE",
        "recompute_layer": job.recompute_form is RecomputeForm.ALL,
        "expert_parallel_size": degrees.expert,
        "context_parallel_size": degrees.context,
    }
    return {
        "parallelism": parallelism,
        "tokens": {
            "micro_batch_size": job.microbatch_size,
            "batch_accumulation_per_replica": job.num_microbatches,
            "sequence_length": job.sequence_length,
        },
        "model": {"dtype": _NANOTRON_DTYPES[job.precision]},
        "optimizer": {
            "zero_stage": job.demands.zero_stage,
            "accumulate_grad_in_fp32": job.recipe.gradient_dtype in (None, "fp32"),
            "optimizer_factory": {"name": _FACTORIES[str(job.recipe.optimizer)]},
        },
    }


# Primus on Megatron: overrides of its trainer, with schedules that Megatron does not have
# ----------------------------------------------------------------------------------------
# Keys are Megatron's arguments with underscores; Primus adds a list of recomputed layers and named
# zero-bubble and V schedules. Experimental: written after its documentation, its syntax checked,
# not run.


PRIMUS: Final = "primus.yaml"


def export_primus(job: Job, stamp: Stamp) -> ExportBundle:
    """The overrides, to be merged into an experiment of Primus."""
    missing = (*unsaid(job), "the model itself: choose the model file of Primus that describes it")
    target, version = "primus", capability_of("primus").version
    top = commented(header(stamp, target, version, missing))
    experimental = "# experimental: written after the documentation of Primus, not run\n"
    return ExportBundle(
        target=target,
        version=version,
        files={PRIMUS: top + experimental + to_yaml({"overrides": primus_settings(job)})},
        command=('"${TRAIN_SCRIPT:?the training entry of Primus}"',),
        settings=PRIMUS,
        environment=environment_of(job),
        not_represented=missing,
        warnings=tuple(_primus_warnings(job)),
        asked_of_user=(
            f"TRAIN_SCRIPT: the training entry of Primus, with an experiment whose overrides are "
            f"those of {PRIMUS}",
        ),
    )


def _primus_warnings(job: Job) -> Iterator[str]:
    yield "experimental: nobody has run these files yet"
    if job.shape.placing is Placing.V and layout_of(job) is not None:
        yield (
            "the layout lists stages in the model's order; whether Primus reads it so for a V is "
            "not known: compare the layers that it reports for every rank"
        )


def primus_settings(job: Job) -> dict[str, Any]:
    """Overrides by their names in Primus."""
    fields = megatron_fields(job)
    wanted = (
        *("parallel", "recompute", "virtual", "microbatch_group", "cross_entropy"),
        *("dispatcher", "router_dtype", "capacity", "cp_comm", "activation_func_fp8"),
        *("cuda_graph", "offload"),
    )
    found = {
        FLAG_OF.get(name, name).removeprefix("--").replace("-", "_"): value
        for name, value in fields.model.items()
        if any(part in name for part in wanted)
    }
    if "pipeline_model_parallel_layout" in found:
        found.pop("num_virtual_stages_per_pipeline_rank", None)
    if job.recompute_form is RecomputeForm.ANY:
        found.pop("recompute_method", None)
        found.pop("recompute_num_layers", None)
        found |= {"recompute_granularity": "full", "recompute_layer_ids": list(recomputed(job))}
    if job.demands.has_pipeline and job.schedule != usual_schedule(job.degrees.virtual_stages):
        name = capability_of("primus").schedules[job.schedule]
        found |= {"patch_primus_pipeline": True, "pp_algorithm": name}
    kept = (
        *("micro_batch_size", "global_batch_size", "use_tp_pp_dp_mapping"),
        "check_for_nan_in_loss_and_grad",
    )
    found |= {name: fields.run[name] for name in kept if name in fields.run}
    found |= decided_of_model(job, fields)
    found |= {"seq_length": job.sequence_length, **fields.ddp}
    if "data_parallel_sharding_strategy" in fields.ddp:
        found |= {"use_megatron_fsdp": True, "ckpt_format": "fsdp_dtensor"}
    found |= {name: fields.model[name] for name in ("bf16", "fp16", "fp8") if name in fields.model}
    return found | fields.optimizer


def recomputed(job: Job) -> tuple[int, ...]:
    """Indices in the model of the blocks that are recomputed as a whole."""
    return tuple(
        block
        for stage in job.stages
        for block, mode in zip(stage.blocks, stage.block_modes, strict=True)
        if mode is Recompute.FULL
    )
