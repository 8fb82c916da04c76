"""A job in the words of Megatron-Core: fields of its configuration objects, with their values.

The flags of Megatron-LM, the keys of Megatron-Bridge and those of Primus are three spellings of
these fields. Which class a field belongs to is stated, so that a test can look each one up in the
real package (megatron-core 0.16.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from trainwright.errors import InvalidInput
from trainwright.formats.exports.layout import format_layout, letters_of
from trainwright.model import LayerKind
from trainwright.model.config import Activation, Norm
from trainwright.plan.axis_order import DATA_INSIDE, PIPELINE_INSIDE, mapping_name
from trainwright.plan.capability import capability_of
from trainwright.plan.demands import RecomputeForm
from trainwright.plan.megatron_setup import main_weights_of

if TYPE_CHECKING:
    from trainwright.plan.job import Job

Values = dict[str, Any]
SHARDING: Final = {2: "optim_grads", 3: "optim_grads_params"}
# Megatron's ways of tokens to experts, and ours that prices them.
_DISPATCHERS: Final = {
    "alltoall": "all_to_all",
    "alltoall_seq": "all_to_all",
    "allgather": "all_to_all",
    "flex": "hierarchical",
}
_NORMS: Final = {Norm.LAYER: "LayerNorm", Norm.LAYER_WITHOUT_BIAS: "LayerNorm", Norm.RMS: "RMSNorm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronFields:
    """Values by field name: `model` of TransformerConfig, `latent` of MLATransformerConfig, `ddp`
    of DistributedDataParallelConfig, `optimizer` of OptimizerConfig, `run` of the arguments alone.
    """

    model: Values
    run: Values
    ddp: Values = field(default_factory=dict)
    optimizer: Values = field(default_factory=dict)
    latent: Values = field(default_factory=dict)


def megatron_fields(job: Job) -> MegatronFields:
    """Everything of the job that Megatron takes as a value."""
    run: Values = {
        "micro_batch_size": job.microbatch_size,
        "global_batch_size": job.global_batch,
        "seq_length": job.sequence_length,
        "make_vocab_size_divisible_by": job.vocabulary_multiple,
    }
    if job.demands.axis_order == PIPELINE_INSIDE:
        run["use_tp_pp_dp_mapping"] = True
    return MegatronFields(
        model={**_sizes(job), **_experts(job), **_degrees(job), **_recompute(job), **_kernels(job)},
        latent=_latent(job),
        ddp=_data_parallel(job),
        optimizer=_optimizer(job),
        run=run,
    )


def layout_of(job: Job) -> str | None:
    """The pipeline layout; None where stages are even, which needs none."""
    if job.degrees.pipeline == 1 or job.is_even:
        return None
    return format_layout(map(letters_of, job.stages))


def _degrees(job: Job) -> Values:
    degrees, chunks = job.degrees, len(job.stages) // job.degrees.pipeline
    found: Values = {
        "tensor_model_parallel_size": degrees.tensor,
        "pipeline_model_parallel_size": degrees.pipeline,
        "context_parallel_size": degrees.context,
        "expert_model_parallel_size": degrees.expert,
        "sequence_parallel": degrees.sequence_parallel and degrees.tensor > 1,
    }
    if job.model.experts is not None:
        found["expert_tensor_parallel_size"] = degrees.expert_shards
    if (layout := layout_of(job)) is not None:
        found["pipeline_model_parallel_layout"] = layout
    if chunks > 1:
        found["virtual_pipeline_model_parallel_size"] = chunks
        found["microbatch_group_size_per_vp_stage"] = degrees.pipeline
    return found


def _recompute(job: Job) -> Values:
    form = job.recompute_form
    if form is RecomputeForm.NONE:
        return {}
    if form is RecomputeForm.MODULES:
        names = capability_of("megatron").modules or {}
        modules = [names[m] for m in sorted(job.demands.recompute_modules)]
        return {"recompute_granularity": "selective", "recompute_modules": modules}
    full: Values = {"recompute_granularity": "full"}
    if form is RecomputeForm.ALL:
        return full | {"recompute_method": "uniform", "recompute_num_layers": 1}
    return full | {"recompute_method": "block", "recompute_num_layers": job.first_recomputed}


def _sizes(job: Job) -> Values:
    model, recipe = job.model, job.recipe
    dropout = (model.hidden_dropout, model.attention_dropout)
    hidden, attention = dropout if recipe.dropout is None else (recipe.dropout,) * 2
    found: Values = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_size,
        "num_attention_heads": model.num_heads,
        "num_query_groups": model.num_kv_heads,
        "kv_channels": model.head_size if model.latent is None else None,
        "normalization": _NORMS[model.norm],
        "gated_linear_unit": model.gated,
        "add_bias_linear": model.mlp_bias,
        "add_qkv_bias": model.query_key_value_bias,
        "qk_layernorm": model.query_key_norm or model.latent is not None,
        "hidden_dropout": hidden,
        "attention_dropout": attention,
        "bf16": job.precision in ("bf16", "fp8"),
        "fp16": job.precision == "fp16",
    }
    if job.precision == "fp8":
        found["fp8"] = "hybrid"
    if model.num_mtp_layers:
        found["mtp_num_layers"] = model.num_mtp_layers
    return found


def _experts(job: Job) -> Values:
    experts, layers = job.model.experts, job.model.num_layers
    if experts is None:
        return {}
    found: Values = {
        "num_moe_experts": experts.num_experts,
        "moe_router_topk": experts.experts_per_token,
        "moe_ffn_hidden_size": experts.ffn_size,
        "moe_grouped_gemm": True,
        **_dispatcher(job),
    }
    if job.demands.groups_per_token:
        found |= {
            "moe_router_num_groups": experts.num_groups,
            "moe_router_group_topk": experts.groups_per_token,
        }
    if not all(experts.at(layer) for layer in range(layers)):
        found["moe_layer_freq"] = [int(experts.at(layer)) for layer in range(layers)]
    if experts.shared_ffn_size:
        found["moe_shared_expert_intermediate_size"] = experts.shared_ffn_size
    if (factor := job.recipe.capacity_factor) is not None:
        found |= {"moe_expert_capacity_factor": factor, "moe_pad_expert_input_to_capacity": True}
    return found


def _dispatcher(job: Job) -> Values:
    """How tokens travel; once to a node by DeepEP, or HybridEP, which pads to a capacity too.

    Both take probabilities in float32 alone. Without expert parallelism nothing travels, and the
    flexible dispatcher refuses to be made.
    """
    if not job.recipe.dispatches_once or job.degrees.expert == 1:
        return {"moe_token_dispatcher_type": "alltoall"}
    backend = "deepep" if job.recipe.capacity_factor is None else "hybridep"
    return {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": backend,
        "moe_router_dtype": "fp32",
    }


def _latent(job: Job) -> Values:
    latent = job.model.latent
    if latent is None:
        return {}
    return {
        "multi_latent_attention": True,
        "q_lora_rank": latent.query_rank,
        "kv_lora_rank": latent.key_value_rank,
        "qk_head_dim": latent.plain_head_size,
        "qk_pos_emb_head_dim": latent.rotary_head_size,
        "v_head_dim": latent.value_head_size,
    }


def _kernels(job: Job) -> Values:
    return {"cross_entropy_loss_fusion": True} if job.fused_cross_entropy else {}


def _data_parallel(job: Job) -> Values:
    stage = job.demands.zero_stage
    found: Values = {"use_distributed_optimizer": stage >= 1}
    if job.degrees.state_copies > 1:
        found["num_distributed_optimizer_instances"] = job.degrees.state_copies
    if stage >= 2:
        found["data_parallel_sharding_strategy"] = SHARDING[stage]
    if job.degrees.data > 1:
        overlaps = job.overlap.gradients > 0
        found["overlap_grad_reduce"] = overlaps
        found["overlap_param_gather"] = overlaps and stage >= 1 and job.overlap.parameters > 0
    found["grad_reduce_in_fp32"] = job.recipe.gradient_dtype in (None, "fp32")
    return found


def _optimizer(job: Job) -> Values:
    name = {"momentum": "sgd"}.get(job.recipe.optimizer, str(job.recipe.optimizer))
    found: Values = {
        "optimizer": name,
        "use_distributed_optimizer": job.demands.zero_stage >= 1,
    }
    if name == "sgd":
        found["sgd_momentum"] = 0.9 if job.recipe.optimizer == "momentum" else 0.0
    moments, main = job.recipe.moment_dtypes, main_weights_of(job)
    if {main, *moments} != {"fp32"}:
        found |= {
            "use_precision_aware_optimizer": True,
            "main_params_dtype": main,
            "exp_avg_dtype": moments[0],
            "exp_avg_sq_dtype": moments[-1],
        }
    return found


def dispatcher_of(kind: str | None) -> str | None:
    """What prices Megatron's dispatcher of a name, None where none is named.

    Gathering all tokens has no price of its own. Raises `InvalidInput` for an unknown name.
    """
    if kind not in (None, *_DISPATCHERS):
        wanted = f"must be one of {', '.join(_DISPATCHERS)}"
        raise InvalidInput.of("--moe-token-dispatcher-type", f'{wanted}, got "{kind}"')
    return None if kind is None else _DISPATCHERS[kind]


def mapping_of(is_pipeline_inside: object) -> str:
    """What the switch `use_tp_pp_dp_mapping` stands for."""
    return mapping_name(PIPELINE_INSIDE if is_pipeline_inside else DATA_INSIDE)


def unsaid(job: Job) -> tuple[str, ...]:
    """What of model and plan the fields leave to Megatron."""
    model, found = job.model, []
    if any(stage.has(LayerKind.FINAL_NORM) != stage.has(LayerKind.LOSS) for stage in job.stages):
        found.append("the stage of the final norm: it runs with the head")
    named = {
        "attention_sinks": "attention sinks",
        "sandwich_norm": "second norms of each half of a block",
        "sliding_window": "attention window",
        "mlm_transform": "the head of a masked language model",
    }
    found += [f"the model's {what}" for name, what in named.items() if getattr(model, name)]
    if model.activation is Activation.RELU:
        found.append("the model's activation (relu)")
    found.append("predicted times and memory")
    return tuple(found)
