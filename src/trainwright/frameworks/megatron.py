"""Megatron-LM: its command-line arguments in a bash array, ready for `pretrain_gpt.py`.

Each flag stands for a field of Megatron-Core's configuration (`megatron_fields`); this module only
spells them. Tested with megatron-core 0.16.1 and the arguments of Megatron-LM beside it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from trainwright.errors import InvalidInput
from trainwright.formats.catalog import constants_of
from trainwright.frameworks.launch import commented, header
from trainwright.frameworks.megatron_rules import main_weights_of
from trainwright.model import (
    ContextExchange,
    CudaGraph,
    DeltaRule,
    LayerKind,
    StateSpace,
    layer_graph,
)
from trainwright.model.config import Activation, Norm
from trainwright.model.recipe import moved_tensors
from trainwright.plans.capability import RecomputeForm, capability_of
from trainwright.plans.configuration import run_shape
from trainwright.plans.job import USUAL_MULTIPLE, ExportBundle, Job, StagePart, Stamp
from trainwright.plans.plan import DATA_INSIDE, PIPELINE_INSIDE, mapping_name

if TYPE_CHECKING:
    from trainwright.model import TransformerConfig


# Megatron's pipeline layout: one string that says which stage holds which layers
# -------------------------------------------------------------------------------
# `E` is the embedding, `t` a block, `m` a layer that predicts further tokens, `L` head and loss;
# `|` stands between stages, all ranks of the first chunk before those of the second. `x*n` repeats
# a letter and `(...)*n` a group, groups do not nest, commas mean nothing, blanks are errors.
# Source: `PipelineParallelLayerLayout` of megatron-core 0.16.1.

_LETTERS: Final = {LayerKind.EMBEDDING: "E", LayerKind.BLOCK: "t", LayerKind.MTP: "m"}
_TIMES: Final = re.compile(r"\*0*(\d+)")
_MOST_TIMES: Final = 2_048
_MOST_LAYOUT_DIGITS: Final = 4
_SHORTEST_RUN: Final = 5
_SHORTEST_GROUP: Final = 3
_GROUP: Final = re.compile(r"\(([^()]+)\)\*(\d+)")
_LAYOUT_RUN: Final = re.compile(r"([EtmL|])\*(\d+)")


def letters_of(stage: StagePart) -> str:
    """The stage as letters; head and loss are one `L`, norms have none."""
    letters = "".join(_LETTERS.get(kind, "") for kind in stage.kinds)
    return letters + ("L" if stage.has(LayerKind.LOSS) else "")


def format_layout(stages: Iterable[str]) -> str:
    """The shortest string of runs and groups that a greedy writer finds.

    Reading it back gives the same stages, which is asserted.
    """
    given = tuple(stages)
    text = "".join(_grouped(given))
    assert parse_layout(text) == given, f"the layout {text} reads back as it was"
    return text


def parse_layout(text: str) -> tuple[str, ...]:
    """The letters of every stage; raises `InvalidInput` for what the grammar does not know."""
    plain = text.replace(",", "")
    if any(len(n) > _MOST_LAYOUT_DIGITS or int(n) > _MOST_TIMES for n in _TIMES.findall(plain)):
        raise InvalidInput.of("layout", f"must repeat nothing more than {_MOST_TIMES} times")
    plain = _GROUP.sub(lambda found: found[1] * int(found[2]), plain)
    plain = _LAYOUT_RUN.sub(lambda found: found[1] * int(found[2]), plain)
    wrong = sorted(set(plain) - set("EtmL|"))
    if wrong:
        shown = ", ".join(map(repr, wrong))
        raise InvalidInput.of("layout", f"must hold E, t, m, L, |, x*n and (...)*n, got {shown}")
    return tuple(plain.split("|"))


def _grouped(stages: tuple[str, ...]) -> Iterator[str]:
    runs = [(stage, len(list(same))) for stage, same in groupby(stages)]
    for number, (stage, count) in enumerate(runs):
        ends = number == len(runs) - 1
        short = _runs(stage)
        separated = count - 1 if ends else count  # after the last stage stands no bar
        if stage and separated >= _SHORTEST_GROUP:
            yield f"({short}|)*{separated}" + (short if ends else "")
        else:
            yield "|".join([short] * count) + ("" if ends else "|")


def _runs(stage: str) -> str:
    parts = []
    for letter, same in groupby(stage):
        count = len(list(same))
        parts.append(f"{letter}*{count}" if count >= _SHORTEST_RUN else letter * count)
    return "".join(parts)


# Models of single parts: a letter for each, in the order of the layers
# ---------------------------------------------------------------------
# A block with a mixer or attention and a feed-forward part is two letters; `|` is between stages,
# `/` before the letters of each layer that predicts a further token. Source: the arguments of
# Megatron-LM and `Symbols` of its `models/hybrid/hybrid_layer_allocation.py`; without `|`, `G` and
# `+` megatron-core 0.16.1 has it as `--hybrid-override-pattern`.

PART_LETTERS: Final = {
    "mamba": "M",
    "delta": "G",
    "attention": "*",
    "latent": "+",
    "mlp": "-",
    "experts": "E",
}
_HYBRID_SPEC: Final = ("megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec")


def part_letters(block: TransformerConfig) -> str:
    """The parts of a block as letters."""
    found = ""
    if block.attends:
        found += PART_LETTERS["attention" if block.latent is None else "latent"]
    if block.mixer is not None:
        found += PART_LETTERS["delta" if isinstance(block.mixer, DeltaRule) else "mamba"]
    if block.mlp:
        found += PART_LETTERS["mlp" if block.experts is None else "experts"]
    return found


def hybrid_pattern(job: Job) -> str:
    """The letters of every stage, and of what predicts further tokens."""
    model = job.model
    stages = ("".join(part_letters(model.block(at)) for at in s.blocks) for s in job.stages)
    further = "".join(map(part_letters, model.further_blocks))
    return "|".join(stages) + f"/{further}" * model.num_mtp_layers


def unsaid_of_stages(job: Job, target: str) -> Iterator[str]:
    """What of the stages of a hybrid its pattern cannot say, or the target does not run."""
    if target == "megatron-bridge" and len(job.stages) > job.degrees.pipeline:
        yield "has several stages on a rank, which Megatron-Bridge's hybrids have not"
    ends = {LayerKind.LM_HEAD, LayerKind.LOSS, LayerKind.MTP}
    inner = {kind for stage in job.stages[:-1] for kind in stage.kinds}
    if ends & inner or not job.stages[0].has(LayerKind.EMBEDDING):
        yield "has the ends of the model on inner stages"
    counts = {len(part_letters(block)) for block in job.model.kinds_of_blocks}
    if job.recompute_form is RecomputeForm.FIRST and len(counts) > 1:
        yield "recomputes the first blocks of a stage, which are of one and of two parts"
    mixers = (block.mixer for block in job.model.kinds_of_blocks)
    if job.degrees.context > 1 and any(isinstance(mixer, DeltaRule) for mixer in mixers):
        yield "cuts the sequence, which Megatron's gated delta net does not take"


def _hybrid_fields(job: Job) -> Values:
    """Sizes of the mixer; layers are single parts, and so are those that are recomputed."""
    model = job.model
    (mixer,) = {block.mixer for block in model.kinds_of_blocks if block.mixer is not None}
    parts = [part_letters(model.block(at)) for at in range(model.num_layers)]
    found: Values = {"num_layers": sum(map(len, parts))}
    if isinstance(mixer, DeltaRule):
        found |= {
            "linear_conv_kernel_dim": mixer.kernel,
            "linear_key_head_dim": mixer.key_size,
            "linear_value_head_dim": mixer.value_size,
            "linear_num_key_heads": mixer.num_key_heads,
            "linear_num_value_heads": mixer.num_value_heads,
        }
    else:
        assert isinstance(mixer, StateSpace)
        found |= {
            "mamba_state_dim": mixer.state_size,
            "mamba_num_heads": mixer.num_heads,
            "mamba_head_dim": mixer.inner_size // mixer.num_heads,
            "mamba_num_groups": mixer.num_groups,
        }
    if job.recompute_form is RecomputeForm.FIRST:
        found["recompute_num_layers"] = len(parts[0]) * job.first_recomputed
    return found


# A job in the words of Megatron-Core: fields of its configuration objects, with their values
# -------------------------------------------------------------------------------------------
# The flags of Megatron-LM, the keys of Megatron-Bridge and those of Primus are three spellings of
# these fields. Which class a field belongs to is stated, so that a test can look each one up in the
# real package (megatron-core 0.16.1).

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
    if job.recipe.cuda_graph is CudaGraph.FULL_ITERATION:  # which cannot wait for the host
        run["check_for_nan_in_loss_and_grad"] = False
    return MegatronFields(
        model={
            **_sizes(job),
            **_expert_fields(job),
            **_degrees(job),
            **_recompute(job),
            **_kernels(job),
            **_moved(job),
            **(_hybrid_fields(job) if job.model.is_recurrent else {}),
        },
        latent=_latent_fields(job),
        ddp=_data_parallel(job),
        optimizer=_optimizer(job),
        run=run,
    )


def layout_of(job: Job) -> str | None:
    """The pipeline layout; None where stages are even or a hybrid's pattern, which need none."""
    if job.degrees.pipeline == 1 or job.is_even or job.model.is_recurrent:
        return None
    return format_layout(map(letters_of, job.stages))


# How Megatron calls an exchange of context; its usual one has no name here.
_CP_COMM: Final = {
    ContextExchange.RING: None,
    ContextExchange.ALL_GATHER: "all_gather",
    ContextExchange.ALL_TO_ALL: "a2a",
    ContextExchange.ALL_TO_ALL_RING: "a2a+p2p",
}


def exchange_of(kind: str | None) -> ContextExchange | None:
    """What Megatron's `cp_comm_type` of a name stands for; None where none is named.

    Raises `InvalidInput` for an unknown name.
    """
    named = {theirs or "p2p": ours for ours, theirs in _CP_COMM.items()}
    if kind is not None and kind not in named:
        wanted = f"must be one of {', '.join(named)}"
        raise InvalidInput.of("--cp-comm-type", f'{wanted}, got "{kind}"')
    return None if kind is None else named[kind]


def _degrees(job: Job) -> Values:
    degrees, chunks = job.degrees, len(job.stages) // job.degrees.pipeline
    found: Values = {
        "tensor_model_parallel_size": degrees.tensor,
        "pipeline_model_parallel_size": degrees.pipeline,
        "context_parallel_size": degrees.context,
        "expert_model_parallel_size": degrees.expert,
        "sequence_parallel": degrees.sequence_parallel and degrees.tensor > 1,
    }
    if degrees.context > 1 and (kind := _CP_COMM[job.recipe.context_exchange]):
        found["cp_comm_type"] = kind
        if (heads := job.recipe.ulysses) is not None:
            found["hierarchical_context_parallel_sizes"] = [heads, degrees.context // heads]
    if job.model.experts is not None:
        found["expert_tensor_parallel_size"] = degrees.expert_shards
    if (layout := layout_of(job)) is not None:
        found["pipeline_model_parallel_layout"] = layout
    if chunks > 1 and not job.model.is_recurrent:
        found["virtual_pipeline_model_parallel_size"] = chunks
    if chunks > 1:
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
        "bf16": job.precision == "bf16" or "fp8" in job.precision or "fp4" in job.precision,
        "fp16": job.precision == "fp16",
    }
    if job.precision == "nvfp4":
        found |= {"fp4": "e2m1", "fp4_recipe": "nvfp4"}
    elif "fp8" in job.precision:
        found["fp8"] = "e4m3" if job.precision in ("mxfp8", "fp8_blockwise") else "hybrid"
        if job.precision == "fp8":
            found["fp8_param"] = True  # weights in 8 bit alone
        else:
            found["fp8_recipe"] = job.precision.removeprefix("fp8_")
    if model.num_mtp_layers:
        found["mtp_num_layers"] = model.num_mtp_layers
    if model.attention_gate:
        found["attention_output_gate"] = True
    return found


def _expert_fields(job: Job) -> Values:
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
    if not job.model.is_recurrent and not all(experts.at(layer) for layer in range(layers)):
        found["moe_layer_freq"] = [int(experts.at(layer)) for layer in range(layers)]
    if experts.shared_ffn_size:
        found["moe_shared_expert_intermediate_size"] = experts.shared_ffn_size
    if experts.shared_gate:
        found["moe_shared_expert_gate"] = True
    if experts.latent_size is not None:
        found["moe_latent_size"] = experts.latent_size
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


_UNFUSED: Final = "unfused"  # what Megatron calls attention without a fused kernel


def decided_of_model(job: Job, fields: MegatronFields) -> Values:
    """What a job asks of a model that another file describes, where it asks anything unusual."""
    found: Values = {}
    if job.recipe.dropout is not None:
        names = ("hidden_dropout", "attention_dropout")
        found |= {name: fields.model[name] for name in names}
    multiple = "make_vocab_size_divisible_by"
    if fields.run[multiple] != USUAL_MULTIPLE:
        found[multiple] = fields.run[multiple]
    if not job.fused_attention:
        found["attention_backend"] = _UNFUSED
    return found


def _latent_fields(job: Job) -> Values:
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
    found: Values = {"cross_entropy_loss_fusion": True} if job.fused_cross_entropy else {}
    if job.recipe.activation_input_dtype == "fp8":
        found["activation_func_fp8_input_store"] = True
    return found | _graphs(job)


def _moved(job: Job) -> Values:
    """Layers whose activations lie on the host, or modules of all, each large enough to go there.

    The configuration wants a switch beside the count; arguments take the count alone.
    """
    modules = job.demands.offload_modules
    if job.demands.offload_activations:
        count = round(job.demands.layers_on_host)
        return {"cpu_offloading": True, "cpu_offloading_num_layers": count}
    if not modules:
        return {}
    run = run_shape(job.configuration(), precision=job.precision)
    sizes = [
        tensor.bytes_per_device(run) / tensor.element_bytes
        for layer in layer_graph(job.recipe.applied(job.model), run).classes
        for tensor in layer.saved
        if tensor.name in moved_tensors(layer, modules)[0]
    ]
    found: Values = {
        "fine_grained_activation_offloading": True,
        "offload_modules": list(modules),
    }
    if (least := int(min(sizes))) < _LEAST_MOVED:
        found["min_offloaded_tensor_size"] = least
    return found


_LEAST_MOVED: Final = 2**20  # elements of a tensor, unless told


def _graphs(job: Job) -> Values:
    """As Megatron-Core 0.16 spells them: graphs of a step are its own, of one scope."""
    kind, modules = job.recipe.cuda_graph, list(job.recipe.cuda_graph_modules)
    if kind is CudaGraph.NONE:
        return {}
    if kind is CudaGraph.FULL_ITERATION:
        kind, modules = CudaGraph.LOCAL, [CudaGraph.FULL_ITERATION.value]
    return {"cuda_graph_impl": str(kind)} | ({"cuda_graph_scope": modules} if modules else {})


def stated_graphs(
    kind: str | None, scope: Iterable[str], *, own: bool = False, foreign: bool = False
) -> dict[str, Any]:
    """Options of the graphs that Megatron's arguments ask for; empty without any.

    `own` and `foreign` are the switches of old, `enable_cuda_graph` and `external_cuda_graph`.
    Raises `InvalidInput` for an unknown name.
    """
    name = kind or (own and "local") or (foreign and "transformer_engine") or "none"
    if name not in set(CudaGraph):
        offered = ", ".join(CudaGraph)
        raise InvalidInput.of("--cuda-graph-impl", f'must be one of {offered}, got "{name}"')
    found, given = CudaGraph(name), tuple(dict.fromkeys(scope))
    if found is CudaGraph.LOCAL and "full_iteration" in given:
        found = CudaGraph.FULL_ITERATION
    beside = ("full", "full_iteration", "full_iteration_inference")  # what is no module
    modules = tuple(each for each in given if each not in beside)
    if found is CudaGraph.NONE:
        return {}
    return {
        "cuda_graph": str(found),
        "cuda_graph_modules": (modules if found.is_per_block else ()) or None,
    }


def _data_parallel(job: Job) -> Values:
    stage = job.demands.zero_stage
    found: Values = {"use_distributed_optimizer": stage >= 1}
    if job.degrees.state_copies > 1:
        found["num_distributed_optimizer_instances"] = job.degrees.state_copies
    if stage >= 2:
        found["data_parallel_sharding_strategy"] = SHARDING[stage]
    replicas = job.degrees.data * job.degrees.context
    if job.model.experts is not None:
        replicas = max(replicas, job.degrees.expert_data)
    if replicas > 1:
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
    if (moved := job.recipe.offload) is not None and moved.optimizer > 0:
        found |= {
            "use_precision_aware_optimizer": True,  # which Megatron asks for beside it
            "optimizer_cpu_offload": True,
            "optimizer_offload_fraction": moved.optimizer,
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


# Megatron-LM: its command-line arguments in a bash array, ready for `pretrain_gpt.py`
# ------------------------------------------------------------------------------------

ARRAY: Final = "TRAINWRIGHT_ARGS"
FILE: Final = "megatron_args.sh"
# Fields whose flag is not simply their name.
FLAG_OF: Final = {
    "num_moe_experts": "--num-experts",
    "fp8": "--fp8-format",
    "fp8_param": "--fp8-param-gather",
    "fp4": "--fp4-format",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "microbatch_group_size_per_vp_stage": "--microbatch-group-size-per-virtual-pipeline-stage",
    "qk_head_dim": "--qk-head-dim",
}
# Switches that are written when a field is off.
OFF_FLAG_OF: Final = {
    "add_bias_linear": "--disable-bias-linear",
    "check_for_nan_in_loss_and_grad": "--no-check-for-nan-in-loss-and-grad",
}
_ROTARY: Final = (
    "--rotary-base of the model's configuration (rope_theta; Megatron takes 10000, Llama 3 has "
    "500000), and --use-rope-scaling with --rope-scaling-factor where it scales positions"
)
_SCALING: Final = (
    "--use-rope-scaling with --rope-scaling-factor, or what else stands for it: the model's file "
    "scales rotary positions"
)
_EPSILON: Final = "--norm-epsilon of the model's configuration (Megatron takes 1e-05)"
_BALANCE: Final = (
    "what keeps the loads of experts even: --moe-aux-loss-coeff (Megatron takes 0, which balances "
    "nothing; 0.01 is usual), or --moe-router-enable-expert-bias with its update rate"
)
_RUN: Final = "length and rate: --train-iters and --lr; if wanted --min-lr, --save and --load"


def export_megatron(job: Job, stamp: Stamp) -> ExportBundle:
    """The arguments as a sourced file, and the command that takes them."""
    missing = (*_unsaid_constants(job), *unsaid(job))
    target, version = "megatron", capability_of("megatron").version
    top = commented(header(stamp, target, version, missing))
    script = "pretrain_mamba.py" if job.model.is_recurrent else "pretrain_gpt.py"
    lines = "".join(f"  {line}\n" for line in argument_lines(job))
    return ExportBundle(
        target=target,
        version=version,
        files={FILE: f"{top}{ARRAY}=(\n{lines})\n"},
        command=(f'"$MEGATRON_PATH"/{script}', f'"${{{ARRAY}[@]}}"'),
        setup=(f". ./{FILE}", ': "${MEGATRON_PATH:?set it to a checkout of Megatron-LM}"'),
        environment=environment_of(job),
        not_represented=missing,
        warnings=tuple(_warnings(job)),
        asked_of_user=("MEGATRON_PATH, a checkout of Megatron-LM", *_asked(job)),
    )


def _unsaid_constants(job: Job) -> Iterator[str]:
    """What changes the result of training and no time, so that plans do not carry it."""
    known = constants_of(job.model_name, job.model)
    if job.model.rotary and "rope_theta" not in known:
        yield "base and scaling of rotary positions: Megatron's defaults unless you add them"
    elif job.model.rotary and (kind := job.model.rotary_scaling) is not None:
        yield f"scaling of rotary positions ({kind}): none unless you add it"
    if "rms_norm_eps" not in known:
        yield "epsilon of norms: Megatron's default unless you add it"
    if job.model.experts is not None:
        yield "what balances experts: nothing unless you add it; times take loads as asked"


def _asked(job: Job) -> Iterator[str]:
    known = constants_of(job.model_name, job.model)
    if job.model.rotary and "rope_theta" not in known:
        yield _ROTARY
    elif job.model.rotary and (kind := job.model.rotary_scaling) is not None:
        yield f"{_SCALING} ({kind})"
    if "rms_norm_eps" not in known:
        yield _EPSILON
    if job.model.experts is not None:
        yield _BALANCE
    # The tokenizer without text counts a token for the end of a document itself.
    words = job.model.vocabulary_size - 1
    yield (
        "tokenizer and data: --tokenizer-type with --tokenizer-model, and --data-path; for a trial "
        f"--mock-data --tokenizer-type NullTokenizer --vocab-size {words}"
    )
    yield _RUN
    told = "a tokenizer decides the vocabulary, which these files leave out"
    yield f"to read them back (estimate, improve): the model, or --vocab-size {words + 1}; {told}"


def argument_lines(job: Job) -> Iterator[str]:
    """Flags with their values, quoted for a shell, one to a line."""
    for flag, value in arguments(job):
        values = value if isinstance(value, (list, tuple)) else [value]
        shown = [] if value is True else [shlex.quote(str(each)) for each in values]
        yield " ".join((flag, *shown))


def arguments(job: Job) -> Iterator[tuple[str, Any]]:
    """Flags and values; a switch has the value True."""
    fields = megatron_fields(job)
    has_layout = "pipeline_model_parallel_layout" in fields.model
    for name, value in (*fields.model.items(), *fields.latent.items()):
        yield from _spelled(name, value, job, has_layout=has_layout)
    yield from _described(job)
    for name, value in fields.run.items():
        yield from _spelled(name, value, job, has_layout=has_layout)
    yield from _sharded(job, fields.ddp)
    for name, value in fields.optimizer.items():
        if name != "use_distributed_optimizer":
            yield _flag(name), value
    if job.recipe.optimizer == "muon":
        yield "--ckpt-format", "torch"


def _spelled(name: str, value: Any, job: Job, *, has_layout: bool) -> Iterator[tuple[str, Any]]:
    if value is None or (has_layout and name == "virtual_pipeline_model_parallel_size"):
        return
    if name == "gated_linear_unit":
        yield from _activation_flags(job)
    elif name == "num_query_groups":
        if value != job.model.num_heads and job.model.latent is None:
            yield "--group-query-attention", True
            yield _flag(name), value
    elif name == "cpu_offloading":  # which follows from the count of layers, and is no argument
        return
    elif name == "moe_layer_freq":
        yield _flag(name), "(" + "+".join(f"[{v}]*{n}" for v, n in _run_lengths(value)) + ")"
    elif name in OFF_FLAG_OF:
        if not value:
            yield OFF_FLAG_OF[name], True
    elif value is False:
        return
    else:
        yield _flag(name), value


def _run_lengths(values: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1] = value, runs[-1][1] + 1
        else:
            runs.append((value, 1))
    return runs


def _activation_flags(job: Job) -> Iterator[tuple[str, Any]]:
    model = job.model
    if model.activation is Activation.SILU and model.gated:
        yield "--swiglu", True
    elif model.activation is Activation.SQUARED_RELU and not model.gated:
        yield "--squared-relu", True
    elif model.activation is Activation.GELU and model.gated:
        yield "--quick-geglu", True


def _described(job: Job) -> Iterator[tuple[str, Any]]:
    """What the arguments say of a model beside the fields of its configuration."""
    model = job.model
    if not model.tied_embeddings:
        yield "--untie-embeddings-and-output-weights", True
    if model.is_recurrent:
        yield "--hybrid-layer-pattern", hybrid_pattern(job)
        yield "--spec", _HYBRID_SPEC
    unrotated = "none" if model.is_recurrent and not model.max_positions else "learned_absolute"
    yield "--position-embedding-type", "rope" if model.rotary else unrotated
    yield "--max-position-embeddings", model.max_positions or job.sequence_length
    constants = constants_of(job.model_name, model)
    if "rope_theta" in constants:
        yield "--rotary-base", int(constants["rope_theta"])
    if "rms_norm_eps" in constants:
        yield "--norm-epsilon", constants["rms_norm_eps"]
    if not job.fused_attention:
        yield "--attention-backend", _UNFUSED


def _sharded(job: Job, ddp: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    if ddp["use_distributed_optimizer"]:
        yield "--use-distributed-optimizer", True
    if "data_parallel_sharding_strategy" in ddp:
        yield "--use-megatron-fsdp", True
        yield "--data-parallel-sharding-strategy", ddp["data_parallel_sharding_strategy"]
        yield "--ckpt-format", "fsdp_dtensor"
    if "num_distributed_optimizer_instances" in ddp:
        name = "num_distributed_optimizer_instances"
        yield _flag(name), ddp[name]
    for name in ("overlap_grad_reduce", "overlap_param_gather"):
        if ddp.get(name):
            yield _flag(name), True
    if not ddp["grad_reduce_in_fp32"]:
        yield "--grad-reduce-in-bf16", True
    elif job.precision != "fp32":
        yield "--accumulate-allreduce-grads-in-fp32", True


def _flag(name: str) -> str:
    return FLAG_OF.get(name, "--" + name.replace("_", "-"))


def environment_of(job: Job) -> dict[str, str]:
    """Variables that Megatron checks; an empty value must be unset."""
    # Transformer Engine's newer copies to the host would take weights along.
    found = {"NVTE_CPU_OFFLOAD_V1": "1"} if job.demands.offload_modules else {}
    if job.demands.zero_stage >= 2:
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = ""
    elif job.degrees.tensor > 1 or job.degrees.context > 1:
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    return found


def _warnings(job: Job) -> Iterator[str]:
    degrees = job.degrees
    if job.model.is_recurrent:
        yield "--hybrid-layer-pattern needs a Megatron-LM newer than core 0.16.1"
    if job.demands.zero_stage >= 2 and degrees.tensor * degrees.context > 1:
        yield (
            "Megatron-FSDP wants CUDA_DEVICE_MAX_CONNECTIONS unset, tensor and context parallelism "
            "want it 1 before Blackwell: expect less overlap"
        )
    if job.demands.offload_activations:
        yield (
            "Transformer Engine moves all that layers keep from 2.10 on, with NVTE_CPU_OFFLOAD_V1 "
            "unset; older ones move what is marked"
        )
    if job.model.activation is Activation.GELU and job.model.gated:
        yield "--quick-geglu approximates the model's gated GELU"
    yield (
        f"the vocabulary is padded to a multiple of {job.vocabulary_multiple} x tp = "
        f"{job.vocabulary_multiple * degrees.tensor}"
    )


# Megatron-Bridge (and NeMo 2): a function that sets the plan's values on a recipe
# -------------------------------------------------------------------------------
# Code is the main form, because the letters of a layout mean something else in `key=value`
# overrides; those are beside it, quoted, for scripts. A recipe may set its own layout and number of
# chunks, so the function clears what the plan leaves out and is to be applied last. Keys are the
# fields of Megatron-Core's configurations under `model`, `train`, `ddp` and `optimizer`.

BRIDGE_FILE: Final = "trainwright_recipe.py"
OVERRIDES: Final = "overrides.txt"
# The fields of `model` that a plan decides; a recipe describes the model itself.
DECIDED: Final = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "pipeline_model_parallel_layout",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "sequence_parallel",
    "moe_token_dispatcher_type",
    "moe_flex_dispatcher_backend",
    "moe_router_dtype",
    "moe_expert_capacity_factor",
    "moe_pad_expert_input_to_capacity",
    "microbatch_group_size_per_vp_stage",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
    "cross_entropy_loss_fusion",
    "activation_func_fp8_input_store",
    "cpu_offloading",
    "cpu_offloading_num_layers",
    "fine_grained_activation_offloading",
    "offload_modules",
    "min_offloaded_tensor_size",
    "cp_comm_type",
    "hierarchical_context_parallel_sizes",
    "cuda_graph_impl",
    "cuda_graph_scope",
)
# Those that only mean something where experts are, or that older versions lack.
_LEFT_WHERE_ABSENT: Final = frozenset(
    {
        *("moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_router_dtype"),
        *("moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity"),
        *("activation_func_fp8_input_store", "cp_comm_type", "offload_modules"),
        *("fine_grained_activation_offloading", "min_offloaded_tensor_size"),
        *("cpu_offloading", "cpu_offloading_num_layers"),
        *("hierarchical_context_parallel_sizes", "cuda_graph_impl", "cuda_graph_scope"),
    }
)
_FALSE_WHERE_ABSENT: Final = frozenset({"cross_entropy_loss_fusion", "sequence_parallel"})


def export_megatron_bridge(job: Job, stamp: Stamp) -> ExportBundle:
    """The function, the overrides, and what runs them."""
    missing = (*unsaid(job), "the model itself: choose the recipe that describes it")
    if {*job.recipe.moment_dtypes, main_weights_of(job)} != {"fp32"}:
        missing += ("number formats of the optimizer's state",)
    target, version = "megatron-bridge", capability_of("megatron-bridge").version
    top = commented(header(stamp, target, version, missing))
    values = bridge_settings(job)
    body = "".join(f"    recipe.{key} = {value!r}\n" for key, value in values.items())
    code = f'{top}\n\ndef apply(recipe):\n    """Set what the plan decides; call it last."""\n'
    overrides = "".join(f"'{key}={_override(value)}'\n" for key, value in values.items())
    return ExportBundle(
        target=target,
        version=version,
        files={BRIDGE_FILE: f"{code}{body}    return recipe\n", OVERRIDES: top + overrides},
        command=('"${TRAIN_SCRIPT:?a script that calls apply() on its recipe}"',),
        settings=BRIDGE_FILE,
        environment=environment_of(job),
        not_represented=missing,
        asked_of_user=(
            "TRAIN_SCRIPT: a script that builds a recipe, calls apply() of "
            f"{BRIDGE_FILE} on it last, and trains",
        ),
    )


# What `mixed_precision` calls a format; without it weights are in fp32.
_MIXED: Final = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_delayed_scaling_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
    "fp32": None,
}


def bridge_settings(job: Job) -> dict[str, Any]:
    """Values by key, those that the plan leaves out cleared."""
    fields = megatron_fields(job)
    found: dict[str, Any] = {}
    for name in DECIDED:
        if name in _LEFT_WHERE_ABSENT and name not in fields.model:
            continue
        default = False if name in _FALSE_WHERE_ABSENT else None
        found[f"model.{name}"] = fields.model.get(name, default)
    if found["model.expert_tensor_parallel_size"] is None:
        found["model.expert_tensor_parallel_size"] = job.degrees.tensor
    if job.model.is_recurrent:
        found["model.hybrid_layer_pattern"] = hybrid_pattern(job)
        found["model.num_layers"] = fields.model["num_layers"]
    if layout_of(job) is None and job.degrees.pipeline == 1:
        found["model.virtual_pipeline_model_parallel_size"] = None
    found |= {f"model.{name}": value for name, value in decided_of_model(job, fields).items()}
    found |= {f"ddp.{name}": value for name, value in fields.ddp.items()}
    if "data_parallel_sharding_strategy" in fields.ddp:
        found["ddp.use_megatron_fsdp"] = True
        found["checkpoint.ckpt_format"] = "fsdp_dtensor"
    for name in _OF_OPTIMIZER:
        if name in fields.optimizer:
            found[f"optimizer.{name}"] = fields.optimizer[name]
    found["mixed_precision"] = _MIXED[job.precision]
    if "use_tp_pp_dp_mapping" in fields.run:
        found["dist.use_tp_pp_dp_mapping"] = True
    if "cuda_graph_impl" in fields.model:
        found |= {"model.use_te_rng_tracker": True, "rng.te_rng_tracker": True}
    if "check_for_nan_in_loss_and_grad" in fields.run:
        found["rerun_state_machine.check_for_nan_in_loss"] = False
        found["ddp.check_for_nan_in_grad"] = False
    found["train.micro_batch_size"] = job.microbatch_size
    found["train.global_batch_size"] = job.global_batch
    found["model.seq_length"] = job.sequence_length
    return found


_OF_OPTIMIZER: Final = (
    "optimizer",
    "use_distributed_optimizer",
    "sgd_momentum",
    "optimizer_cpu_offload",
    "optimizer_offload_fraction",
)


def _override(value: Any) -> str:
    """A value as the right side of an override; the text of a layout keeps its letters."""
    if value is None or isinstance(value, (bool, list)):
        return json.dumps(value)
    return str(value)
