"""What is asked of the cost model about one run: model, cluster, and every setting decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trainwright.cluster import Cluster
from trainwright.errors import UnsupportedFeature
from trainwright.model import ContextExchange, Recipe, TransformerConfig
from trainwright.plan import Parallelism
from trainwright.plan.configuration import Configuration
from trainwright.plan.measured_run import MeasuredRun
from trainwright.plan.overlap import MemoryOverheads, Overlap
from trainwright.profile import Recompute
from trainwright.validation.lines import SoftwareLine
from trainwright.validation.megatron_shapes import stage_blocks, uses_fused_attention

# Formats of the tables → those of the estimator; FP8 recipes differ in their scaling factors.
_PRECISIONS: Final = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp32": "fp32",
    "bf16_amp": "bf16",
    "fp8": "fp8",
    "fp8_amp": "fp8",
    "fp8_cs": "fp8",
    "fp8_mx": "fp8",
    "mxfp8": "fp8",
    "fp8_rowwise": "fp8",
    "fp8_tensorwise": "fp8",
    "nvfp4": "fp4",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One run with nothing left open."""

    run: MeasuredRun
    line: SoftwareLine
    model: TransformerConfig
    cluster: Cluster
    configuration: Configuration


def configuration_of(
    run: MeasuredRun,
    line: SoftwareLine,
    model: TransformerConfig,
    *,
    microbatch_size: int,
    recompute: str,
    virtual_stages: int,
) -> Configuration:
    """The settings of a run as its launcher would state them; raises `UnsupportedFeature`."""
    assert run.global_batch is not None
    return Configuration(
        parallelism=Parallelism(
            tensor=run.tensor,
            pipeline=run.pipeline,
            data=run.data,
            context=run.context,
            expert=run.expert,
            expert_tensor=run.expert_tensor,
            virtual_stages=virtual_stages,
            sequence_parallel=bool(run.sequence_parallel) and run.tensor > 1,
            zero_stage=run.zero_stage or 0,
        ),
        microbatch_size=microbatch_size,
        global_batch=run.global_batch,
        sequence_length=run.sequence_length,
        schedule=_schedule(run, microbatches=run.global_batch // (microbatch_size * run.data))
        if virtual_stages > 1
        else "1f1b",
        recompute=Recompute(recompute),
        fused_attention=uses_fused_attention(run)
        if run.schema == "megatron_ci"
        else line.fused_attention,
        blocks_per_stage=_stage_blocks(run, model, virtual_stages),
        fused_cross_entropy=line.fused_cross_entropy or run.flag("cross_entropy_loss_fusion"),
        vocabulary_multiple=int(
            run.number("make_vocab_size_divisible_by") or line.vocabulary_multiple
        ),
        recipe=_recipe(run, line),
        overlap=_overlap(run, line),
        overheads=MemoryOverheads(workspace_bytes=line.fixed_bytes),
    )


def _overlap(run: MeasuredRun, line: SoftwareLine) -> Overlap:
    """What the line's software hides, and tensor exchanges where the run splits them to do so."""
    share = 0.9 if line.overlaps_gradients else 0.0
    splits = run.flag("async_tp") or run.flag("tp_comm_overlap")
    return Overlap(gradients=share, parameters=share, tensor=0.9 if splits else 0.0)


def _stage_blocks(
    run: MeasuredRun, model: TransformerConfig, virtual_stages: int
) -> tuple[int, ...] | None:
    stated = stage_blocks(run, model.num_layers)
    fits = stated is not None and len(stated) == run.pipeline * virtual_stages
    return stated if fits else None


def _schedule(run: MeasuredRun, *, microbatches: int) -> str:
    """Interleaving takes microbatches in groups of the pipeline's size, or depth-first."""
    return "depth-first" if microbatches % run.pipeline else "interleaved"


def _recipe(run: MeasuredRun, line: SoftwareLine) -> Recipe:
    try:
        precision = _PRECISIONS[run.precision]
    except KeyError:
        raise UnsupportedFeature(f"precision {run.precision} is not modelled") from None
    exchange = ContextExchange.ALL_TO_ALL if run.setting("cp_comm_type") == "a2a" else None
    return Recipe(
        precision=precision,
        gradient_dtype="fp16" if precision == "fp16" else line.gradient_dtype,
        context_exchange=exchange or ContextExchange.RING,
        capacity_factor=1.0 if line.pads_experts else None,
    )
