"""Primus on Megatron: overrides of its trainer as YAML, with schedules Megatron does not have.

Keys are Megatron's arguments with underscores; Primus adds a list of recomputed layers and named
zero-bubble and V schedules. Experimental: written after its documentation, its syntax checked, not
run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from trainwright.frameworks.launch import commented, header, to_yaml
from trainwright.frameworks.megatron import (
    FLAG_OF,
    decided_of_model,
    environment_of,
    layout_of,
    megatron_fields,
    unsaid,
)
from trainwright.plans.capability import RecomputeForm, capability_of
from trainwright.plans.job import ExportBundle
from trainwright.plans.plan import usual_schedule
from trainwright.plans.schedule import Placing
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from trainwright.plans.job import Job, Stamp

FILE: Final = "primus.yaml"


def export_primus(job: Job, stamp: Stamp) -> ExportBundle:
    """The overrides, to be merged into an experiment of Primus."""
    missing = (*unsaid(job), "the model itself: choose the model file of Primus that describes it")
    target, version = "primus", capability_of("primus").version
    top = commented(header(stamp, target, version, missing))
    experimental = "# experimental: written after the documentation of Primus, not run\n"
    return ExportBundle(
        target=target,
        version=version,
        files={FILE: top + experimental + to_yaml({"overrides": settings(job)})},
        command=('"${TRAIN_SCRIPT:?the training entry of Primus}"',),
        settings=FILE,
        environment=environment_of(job),
        not_represented=missing,
        warnings=tuple(_warnings(job)),
        asked_of_user=(
            f"TRAIN_SCRIPT: the training entry of Primus, with an experiment whose overrides are "
            f"those of {FILE}",
        ),
    )


def _warnings(job: Job) -> Iterator[str]:
    yield "experimental: nobody has run these files yet"
    if job.shape.placing is Placing.V and layout_of(job) is not None:
        yield (
            "the layout lists stages in the model's order; whether Primus reads it so for a V is "
            "not known: compare the layers that it reports for every rank"
        )


def settings(job: Job) -> dict[str, Any]:
    """Overrides by their names in Primus."""
    fields = megatron_fields(job)
    wanted = (
        *("parallel", "recompute", "virtual", "microbatch_group", "cross_entropy"),
        *("dispatcher", "router_dtype", "capacity", "cp_comm", "activation_func_fp8"),
        "cuda_graph",
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
