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

# Formats of the tables → those of the estimator. Recipes of FP8 differ in their scaling factors.
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
    *,
    microbatch_size: int,
    recompute: str,
    virtual_stages: int,
) -> Configuration:
    """The settings of a run as its launcher would state them; raises `UnsupportedFeature`."""
    assert run.global_batch is not None
    interleaved = virtual_stages > 1
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
        schedule="interleaved" if interleaved else "1f1b",
        recompute=Recompute(recompute),
        fused_attention=line.fused_attention,
        fused_cross_entropy=line.fused_cross_entropy or run.flag("cross_entropy_loss_fusion"),
        vocabulary_multiple=line.vocabulary_multiple,
        recipe=_recipe(run, line),
        overlap=Overlap() if line.overlaps_gradients else Overlap(gradients=0.0, parameters=0.0),
        overheads=MemoryOverheads(workspace_bytes=line.fixed_bytes),
    )


def _recipe(run: MeasuredRun, line: SoftwareLine) -> Recipe:
    try:
        precision = _PRECISIONS[run.precision]
    except KeyError:
        raise UnsupportedFeature(f"precision {run.precision} is not modelled") from None
    exchange = ContextExchange.ALL_TO_ALL if run.setting("cp_comm_type") == "a2a" else None
    return Recipe(
        precision=precision,
        gradient_dtype=line.gradient_dtype,
        context_exchange=exchange or ContextExchange.RING,
        capacity_factor=1.0 if line.pads_experts else None,
    )
