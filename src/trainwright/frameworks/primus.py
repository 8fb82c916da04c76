"""Primus on Megatron: overrides of its trainer as YAML, with schedules Megatron does not have.

Keys are Megatron's arguments with underscores; Primus adds a list of recomputed layers and named
zero-bubble and V schedules. Experimental: written after its documentation, its syntax checked, not
run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from trainwright.frameworks.launch import commented, header
from trainwright.frameworks.megatron import (
    FLAG_OF,
    dispatcher_of,
    environment_of,
    layout_of,
    mapping_of,
    megatron_fields,
    parse_layout,
    unsaid,
)
from trainwright.frameworks.stated_run import StatedRun, from_yaml, to_yaml
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
        *("dispatcher", "router_dtype"),
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
    kept = ("micro_batch_size", "global_batch_size", "use_tp_pp_dp_mapping")
    found |= {name: fields.run[name] for name in kept if name in fields.run}
    found |= {"seq_length": job.sequence_length, **fields.ddp}
    if "data_parallel_sharding_strategy" in fields.ddp:
        found |= {"use_megatron_fsdp": True, "ckpt_format": "fsdp_dtensor"}
    return found | {"optimizer": fields.optimizer["optimizer"]}


def recomputed(job: Job) -> tuple[int, ...]:
    """Indices in the model of the blocks that are recomputed as a whole."""
    return tuple(
        block
        for stage in job.stages
        for block, mode in zip(stage.blocks, stage.block_modes, strict=True)
        if mode is Recompute.FULL
    )


def read_primus(text: str) -> StatedRun:
    """The run that the overrides state."""
    found = from_yaml(text)["overrides"]
    layout = found.get("pipeline_model_parallel_layout")
    ranks, stages = found["pipeline_model_parallel_size"], parse_layout(layout or "")
    chunks = found.get("num_virtual_stages_per_pipeline_rank", 1)
    if layout is not None:
        chunks = len(stages) // ranks
    # Of two names for one schedule the first counts.
    spelled = reversed(list(capability_of("primus").schedules.items()))
    named = {theirs: ours for ours, theirs in spelled}
    blocks = found.get("recompute_layer_ids")
    strategy = found.get("data_parallel_sharding_strategy", "")
    return StatedRun(
        tp=found["tensor_model_parallel_size"],
        pp=ranks,
        cp=found["context_parallel_size"],
        ep=found["expert_model_parallel_size"],
        etp=found.get("expert_tensor_parallel_size"),
        virtual_stages=chunks,
        schedule=named.get(found.get("pp_algorithm", ""), usual_schedule(chunks)),
        blocks=None if layout is None else tuple(stage.count("t") for stage in stages),
        sequence_parallel=found["sequence_parallel"],
        token_dispatcher=dispatcher_of(found.get("moe_token_dispatcher_type")),
        recompute=None if blocks is not None else _recompute(found),
        recomputed_blocks=None if blocks is None else tuple(blocks),
        zero={"optim_grads": 2, "optim_grads_params": 3}.get(
            strategy, int(found["use_distributed_optimizer"])
        ),
        state_copies=found.get("num_distributed_optimizer_instances"),
        mapping=mapping_of(found.get("use_tp_pp_dp_mapping")),
        micro_batch=found["micro_batch_size"],
        global_batch=found["global_batch_size"],
        sequence=found["seq_length"],
    )


def _recompute(found: dict[str, Any]) -> str:
    granularity: str = found.get("recompute_granularity", "none")
    if found.get("recompute_method") == "block":
        return f"full:{found['recompute_num_layers']}"
    return granularity
