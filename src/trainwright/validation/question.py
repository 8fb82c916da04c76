"""What is asked of the cost model about one run: model, cluster, and every setting decided."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from trainwright.cluster import Cluster
from trainwright.costing.estimate import (
    FUSED_ATTENTION,
    FUSED_CROSS_ENTROPY,
    UNFUSED_ATTENTION,
    UNFUSED_CROSS_ENTROPY,
    Estimator,
)
from trainwright.errors import UnsupportedFeature
from trainwright.model import LayerKind, TransformerConfig
from trainwright.plan import Parallelism, Plan, Stage
from trainwright.plan.measured_run import MeasuredRun
from trainwright.profile import Profile, ProfilePoint
from trainwright.validation.lines import SoftwareLine
from trainwright.validation.split import blocks_per_stage, layers_per_stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One run with nothing left open."""

    run: MeasuredRun
    line: SoftwareLine
    model: TransformerConfig
    cluster: Cluster
    microbatch_size: int
    recompute: str
    virtual_stages: int

    @property
    def num_microbatches(self) -> int:
        """Microbatches of one replica in a step."""
        assert self.run.global_batch is not None
        return self.run.global_batch // (self.microbatch_size * self.run.data)

    def point(self) -> ProfilePoint:
        """The circumstances under which layers are priced."""
        run, line = self.run, self.line
        return ProfilePoint(
            microbatch_size=self.microbatch_size,
            sequence_length=run.sequence_length,
            tensor_parallel=(run.tensor,),
            context_parallel=run.context,
            expert_parallel=run.expert,
            expert_tensor_parallel=run.expert_tensor or 1,
            sequence_parallel=bool(run.sequence_parallel) and run.tensor > 1,
            precision=precision_of(run),
            recompute=("none",) if self.recompute == "none" else ("none", self.recompute),
            kernels=(
                FUSED_ATTENTION if line.fused_attention else UNFUSED_ATTENTION,
                FUSED_CROSS_ENTROPY if line.fused_cross_entropy else UNFUSED_CROSS_ENTROPY,
            ),
        )

    def profile(self) -> Profile:
        """Every layer of the model, priced."""
        source = Estimator(
            model=self.model,
            cluster=self.cluster,
            vocabulary_multiple=self.line.vocabulary_multiple,
        )
        return source.profile(self.point())

    def plan(self, profile: Profile) -> Plan:
        """The run's plan; virtual stages are left to the caller."""
        run = self.run
        names = [layer.name for layer in profile.structure.layers]
        num_blocks = sum(name == LayerKind.BLOCK for name in names)
        blocks = blocks_per_stage(num_blocks, run.pipeline)
        stages = layers_per_stage(blocks, len(names) - 1 - num_blocks)
        options = [self.recompute if n == LayerKind.BLOCK else "none" for n in names]
        return Plan(
            stages=tuple(
                Stage.uniform(
                    layers,
                    tuple(options[i] for i in layers),
                    data_parallel=run.data,
                    tensor_parallel=run.tensor,
                )
                for layers in stages
            ),
            num_microbatches=self.num_microbatches * run.data,
            microbatch_size=self.microbatch_size,
            parallelism=Parallelism(
                tensor=run.tensor,
                pipeline=run.pipeline,
                data=run.data,
                zero_stage=run.zero_stage or 0,
            ),
        )


@cache
def _known_precisions() -> dict[str, str]:
    return {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "bf16_amp": "bf16"}


def precision_of(run: MeasuredRun) -> str:
    """The estimator's name of a run's number formats; raises `UnsupportedFeature`."""
    try:
        return _known_precisions()[run.precision]
    except KeyError:
        raise UnsupportedFeature(f"precision {run.precision} is not modelled") from None
