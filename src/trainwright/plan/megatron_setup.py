"""A Megatron configuration as plain values, legal or not: what `megatron_rules` judges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainwright.plan.axis_order import PIPELINE_INSIDE
from trainwright.plan.demands import RecomputeForm

if TYPE_CHECKING:
    from trainwright.plan.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronSetup:
    """Names are those of Megatron's arguments, shortened; nothing is checked here.

    `layout` lists the letters of every stage; `first_layers` and `last_layers` are the counts of
    the outer stages. `pipeline_inside` is `use_tp_pp_dp_mapping`, `max_connections` the variable
    CUDA_DEVICE_MAX_CONNECTIONS.
    """

    layers: int
    hidden: int
    heads: int
    kv_groups: int
    sequence: int
    world: int
    micro_batch: int = 1
    global_batch: int = 1
    head_size: int | None = None
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    sequence_parallel: bool = False
    pipeline_inside: bool = False
    virtual_stages: int | None = None
    layout: tuple[str, ...] | None = None
    first_layers: int | None = None
    last_layers: int | None = None
    account_embedding: bool = False
    account_loss: bool = False
    group: int | None = None
    p2p_overlap: bool = True
    experts: int | None = None
    grouped_gemm: bool = False
    latent_attention: bool = False
    shared_overlap: bool = False
    mtp_layers: int = 0
    recompute: str | None = None
    recompute_method: str | None = None
    recompute_layers: int | None = None
    recompute_modules: tuple[str, ...] = ()
    activation_offload: bool = False
    fine_grained_offload: bool = False
    pipeline_dtype: bool = True
    torch_fsdp2: bool = False
    megatron_fsdp: bool = False
    distributed_optimizer: bool = False
    tied_embeddings: bool = False
    fp16: bool = False
    ckpt_format: str = "torch_dist"
    max_connections: str | None = None
    is_blackwell: bool = False
    vocabulary: int | None = None
    padded_vocabulary: int | None = None
    vocabulary_multiple: int = 128
    optimizer: str = "adam"
    main_weights: str = "fp32"
    moments: tuple[str, ...] = ("fp32",)

    @property
    def data(self) -> int:
        """Replicas, rounded down."""
        return max(1, self.world // (self.tp * self.pp * self.cp))

    @property
    def chunks(self) -> int:
        """Stages of a rank."""
        if self.layout is not None:
            return max(1, len(self.layout) // self.pp)
        return self.virtual_stages or 1

    @property
    def microbatches(self) -> int:
        """Microbatches of a step on each replica, rounded down."""
        return self.global_batch // (self.micro_batch * self.data)

    @property
    def most_layers_of_a_stage(self) -> int:
        """Decoder layers of the largest stage."""
        if self.layout is not None:
            return max(stage.count("t") for stage in self.layout)
        ends = (self.first_layers or 0, self.last_layers or 0)
        return max(*ends, -(-self.layers // (self.pp * self.chunks)))


def setup_of(job: Job, *, letters: tuple[str, ...] | None) -> MegatronSetup:
    """What a job sets; `letters` are its layout where it needs one."""
    degrees, model, form = job.degrees, job.model, job.recompute_form
    full, zero = form in (RecomputeForm.ALL, RecomputeForm.FIRST), job.demands.zero_stage
    chunks = len(job.stages) // degrees.pipeline
    method = "uniform" if form is RecomputeForm.ALL else "block"
    count = 1 if form is RecomputeForm.ALL else job.first_recomputed
    selective = form is RecomputeForm.MODULES
    connections = "1" if zero < 2 and degrees.tensor * degrees.context > 1 else None
    padded = job.vocabulary_multiple * degrees.tensor
    return MegatronSetup(
        layers=model.num_layers,
        hidden=model.hidden_size,
        heads=model.num_heads,
        kv_groups=model.num_kv_heads,
        head_size=model.head_size,
        sequence=job.sequence_length,
        world=degrees.num_devices,
        micro_batch=job.microbatch_size,
        global_batch=job.global_batch,
        tp=degrees.tensor,
        pp=degrees.pipeline,
        cp=degrees.context,
        ep=degrees.expert,
        etp=None if model.experts is None else degrees.expert_shards,
        sequence_parallel=degrees.sequence_parallel and degrees.tensor > 1,
        pipeline_inside=job.demands.axis_order == PIPELINE_INSIDE,
        virtual_stages=chunks if chunks > 1 and letters is None else None,
        layout=letters,
        group=degrees.pipeline if chunks > 1 else None,
        experts=None if model.experts is None else model.experts.num_experts,
        grouped_gemm=model.experts is not None,
        latent_attention=model.latent is not None,
        mtp_layers=model.num_mtp_layers,
        recompute="selective" if selective else ("full" if full else None),
        recompute_method=method if full else None,
        recompute_layers=count if full else None,
        megatron_fsdp=zero >= 2,
        distributed_optimizer=zero >= 1,
        tied_embeddings=model.tied_embeddings,
        fp16=job.precision == "fp16",
        ckpt_format="fsdp_dtensor" if zero >= 2 else "torch_dist",
        max_connections=connections,
        vocabulary=model.vocabulary_size,
        padded_vocabulary=-(-model.vocabulary_size // padded) * padded,
        vocabulary_multiple=job.vocabulary_multiple,
        optimizer=str(job.recipe.optimizer),
        main_weights=main_weights_of(job),
        moments=job.recipe.moment_dtypes,
    )


def main_weights_of(job: Job) -> str:
    """The format in which the optimizer keeps weights; those of a run in fp32 are its own."""
    stated = job.recipe.main_weight_dtype or "fp32"
    return "fp32" if stated == "none" and job.precision == "fp32" else stated
