"""dry-run: the program that shows what one rank of a plan holds, on one GPU or on none.

The program is `lab/rank_program.py`, written beside its case as it is. It runs what PyTorch itself
shards (FSDP2, tensor, context and expert parallelism, its own pipeline runtime) for decoders of the
usual kind; everything else is refused by name, because a neighbour's memory would say nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, Final

from trainwright.errors import UnsupportedFeature
from trainwright.formats.schedule_json import format_compute_only
from trainwright.model import NO_OFFLOAD, ContextExchange, CudaGraph, LayerKind, Norm
from trainwright.model.recipe import unusual
from trainwright.model.run_shape import heaviest_share
from trainwright.plans.capability import DRY_RUN, RecomputeForm
from trainwright.plans.job import ExportBundle, Job, Stamp
from trainwright.scheduling.lower import as_pytorch_runs
from trainwright.step.fsdp2 import even_schedule, frees_weights, sharing_replicas
from trainwright.step.memory import odd_parts, odd_together

PROGRAM: Final = "dry_run.py"
CASE: Final = "case.json"
# PyTorch's names of the schedules that it orders as these families do; interleaved nearly so.
_SCHEDULES: Final = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}

# Options of a recipe that the program follows, or that are refused in other words than their name.
_TOLD: Final = frozenset(
    {
        "precision", "optimizer", "gradient_dtype", "reduce_dtype", "main_weight_dtype",
        "moment_dtypes", "dropout", "context_exchange", "ulysses", "context_balanced",
        "expert_imbalance", "expert_loads", "dispatch_dtype", "token_dispatcher", "offload",
        "cuda_graph", "cuda_graph_modules", "loss_chunk",
    }
)  # fmt: skip


def export_dry_run(job: Job, stamp: Stamp) -> ExportBundle:
    """The program and its case; raises `UnsupportedFeature` with what it cannot run."""
    case = case_of(job)
    page = f"""\
Written by trainwright {stamp.trainwright_version} from plan {stamp.short_hash}.

    python {PROGRAM} {CASE}

runs every pipeline rank of the plan, one after the other, as a single
process: on a GPU with its real allocator, without one on fake tensors. The other ranks are a
process group that moves nothing. Needs PyTorch 2.13.
"""
    return ExportBundle(
        target=DRY_RUN,
        version="PyTorch 2.13",
        files={
            PROGRAM: program_text(),
            CASE: json.dumps(case, indent=2) + "\n",
            "README.md": page,
        },
        command=(PROGRAM, CASE),
        not_represented=("transfers between ranks", "data loading", "predicted times and memory"),
    )


_REDUCED: Final = {"fp32": "float32", "bf16": "bfloat16"}


def program_text() -> str:
    """The source of the stand-alone program."""
    return files("trainwright.lab").joinpath("rank_program.py").read_text(encoding="utf-8")


def case_of(job: Job) -> dict[str, Any]:
    """What the program needs to know; raises `UnsupportedFeature` with everything it cannot run."""
    if wrong := tuple(_unsupported(job)):
        raise UnsupportedFeature(f"the dry run does not run {'; '.join(wrong)}")
    model, degrees, experts = job.model, job.degrees.as_launched, job.model.experts
    shards = sharing_replicas(degrees)
    form, recipe = job.recompute_form, job.recipe
    recompute = {RecomputeForm.NONE: "none", RecomputeForm.MODULES: "selective"}.get(form, "full")
    return {
        "name": job.model_name,
        "model": {
            "hidden_size": model.hidden_size,
            "num_heads": model.num_heads,
            "num_kv_heads": model.num_kv_heads,
            "head_size": model.head_size,
            "ffn_size": model.ffn_size,
            "vocabulary_size": model.vocabulary_size,
            "query_key_value_bias": model.query_key_value_bias,
            "query_key_norm": model.query_key_norm,
            "norm": "rms" if model.norm is Norm.RMS else "layer",
            "activation": str(model.activation),
            "gated": model.gated,
            "rotary": model.rotary,
            "positions": model.max_positions,
            "output_bias": model.attention_output_bias,
            "mlp_bias": model.mlp_bias,
            "tied": model.tied_embeddings,
            "dropout": model.hidden_dropout,
            "experts": None
            if experts is None
            else {
                "num_experts": experts.num_experts,
                "experts_per_token": experts.experts_per_token,
                "ffn_size": experts.ffn_size,
                "shared_ffn_size": experts.shared_ffn_size,
                "heaviest": heaviest_share(recipe.expert_loads, experts.num_experts, degrees.expert)
                if recipe.expert_loads
                else recipe.expert_imbalance,
                "dense_layers": [i for i in range(model.num_layers) if not experts.at(i)],
            },
        },
        "degrees": {
            "pipeline": degrees.pipeline,
            "copies": degrees.data // shards,
            "shards": shards,
            "context": degrees.context,
            "tensor": degrees.tensor,
            "expert": degrees.expert,
        },
        "rank_of_stage": list(job.placement.rank_of_stage),
        "blocks_of_stage": [list(stage.blocks) for stage in job.stages],
        "recompute": recompute,
        "recompute_blocks": job.first_recomputed if form is RecomputeForm.FIRST else None,
        "zero_stage": degrees.zero_stage,
        "loss_chunk": recipe.loss_chunk,
        "reshard_after_forward": frees_weights(degrees),
        "reduce_dtype": _REDUCED[recipe.reduce_dtype or "fp32"],
        "sequence_length": job.sequence_length,
        "microbatch_size": job.microbatch_size,
        "num_microbatches": job.num_microbatches,
        "schedule": _SCHEDULES.get(job.schedule),
        "orders": _orders(job) if has_own_order(job) else None,
        "ranks": list(range(degrees.pipeline)),
    }


def has_own_order(job: Job) -> bool:
    """Whether PyTorch has no schedule by the name of the job's."""
    piped = job.parallelism is not None and job.parallelism.pipeline > 1
    return piped and job.schedule not in _SCHEDULES


def _orders(job: Job) -> list[str]:
    """A line of actions for each rank, as PyTorch's pipeline runtime reads them.

    They are those of the job, or else of its family at equal times.
    """
    if job.orders is None:
        return format_compute_only(as_pytorch_runs(even_schedule(job.configuration()))).splitlines()
    return format_compute_only(job.orders.schedule).splitlines()


def _unsupported(job: Job) -> Iterator[str]:
    """Everything of the job that the program does not run."""
    if job.parallelism is None:
        yield "degrees that differ between stages"
        return
    model, degrees, recipe = job.model, job.degrees, job.recipe
    kept = (recipe.gradient_dtype or "fp32", recipe.main_weight_dtype or "fp32")
    states = {*kept, *recipe.moment_dtypes}
    yield from odd_parts(model)
    again, splits = job.recompute_form is not RecomputeForm.NONE, job.shape.split_backward
    yield from odd_together(degrees, recipe, again=again, splits=splits)
    tensor = degrees.tensor
    parts = {
        "tensor parallelism without sequence parallelism": tensor > 1
        and not degrees.sequence_parallel,
        "experts that are dealt out and cut, or neither, beside tensor parallelism": tensor > 1
        and model.experts is not None
        and degrees.expert_shards != (1 if degrees.expert > 1 else tensor),
        "unfused attention": not job.fused_attention,
        "fused cross entropy": job.fused_cross_entropy,
        f"the precision {job.precision}": job.precision != "bf16",
        f"the optimizer {job.recipe.optimizer}": str(job.recipe.optimizer) != "adam",
        "gradients, weights or moments in another format than fp32": states != {"fp32"},
        **{
            f"the option {name.replace('_', '-')}": True
            for name in unusual(recipe)
            if name not in _TOLD
        },
        f"gradients reduced in {recipe.reduce_dtype}": (recipe.reduce_dtype or "fp32")
        not in _REDUCED,
        f"{recipe.context_exchange} attention": degrees.context > 1
        and recipe.context_exchange is not ContextExchange.RING,
        f"tokens to experts in {recipe.dispatch_dtype}": recipe.dispatch_dtype
        not in (None, "bf16"),
        "offload": recipe.offload is not None and recipe.offload != NO_OFFLOAD,
        "CUDA graphs": recipe.cuda_graph is not CudaGraph.NONE,
        "ends on stages of their own": not job.has_usual_ends,
        "blocks recomputed one by one": job.stated_recompute is None,
        "blocks that wait on the host": job.recompute_form is RecomputeForm.ON_HOST,
    }
    yield from (name for name, is_there in parts.items() if is_there)
    if {LayerKind.HEAD_TRANSFORM} & {kind for stage in job.stages for kind in stage.kinds}:
        yield "a transform before the head"
