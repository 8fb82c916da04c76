"""The capability table itself: rows are features, columns the targets in the order of `TARGETS`.

A cell is a word, then how or why: yes · global (one value for the whole model) · code (in the
user's model or script, not in the exported file) · no. Read from the frameworks' sources and
manuals at the versions of `capability.TARGETS`: megatron-core 0.16.1 with Megatron-LM's arguments,
Megatron-Bridge 0.3, Primus, torchtitan 0.2.2 and 0.3.0, PyTorch 2.13.0, DeepSpeed 0.19.8,
accelerate 1.15.0, nanotron 0.4, TRL 1.13, axolotl 0.19, LLaMA-Factory 0.9.5, NeMo Automodel 0.7,
MaxText of 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from trainwright.cluster.framework_memory import is_sharded_by_deepspeed
from trainwright.plans.plan import DATA_INSIDE, PIPELINE_INSIDE

# The features of a plan that frameworks differ in: the rows of the capability table
# ----------------------------------------------------------------------------------


class Feature(StrEnum):
    """One row of the table; the value is its title."""

    PIPELINE = "pipeline stages"
    UNEVEN_STAGES = "uneven stages"
    LOOP = "several stages per rank"
    UNEQUAL_CHUNKS = "different stage count per rank"
    V_PLACEMENT = "V placement"
    ANY_PLACEMENT = "wave or arbitrary placement"
    CUSTOM_ORDER = "custom order of actions"
    SPLIT_BACKWARD = "backward split in two"
    SPLIT_RECOMPUTE = "recompute beside a split backward"
    SPLIT_ZERO_3 = "ZeRO 3 beside a split backward"
    ENDS_APART = "embedding or head on a stage of their own"
    HEAD_APART = "loss on another stage than the head"
    NORM_APART = "final norm on another stage than the head"
    MTP = "multi-token prediction layers"
    RECOMPUTE_ALL = "recompute all blocks, or none"
    RECOMPUTE_FIRST = "recompute the first k blocks of every stage"
    RECOMPUTE_MODULES = "recompute parts of every block"
    RECOMPUTE_ANY = "recompute any set of blocks"
    RECOMPUTE_MIXED = "recompute parts of some blocks"
    ZERO_1 = "ZeRO 1"
    ZERO_2 = "ZeRO 2 without pipeline"
    ZERO_3 = "ZeRO 3 without pipeline"
    ZERO_2_PIPELINE = "ZeRO 2 with pipeline"
    ZERO_3_PIPELINE = "ZeRO 3 with pipeline"
    UNSHARDED_BESIDE = "ZeRO 0 beside context or expert parallel"
    UNSHARDED_TENSOR = "ZeRO 0 replicas beside tensor parallel"
    UNSHARDED_PIPELINE = "ZeRO 0 replicas beside a pipeline"
    SHARDED_MUON = "ZeRO beside Muon"
    HYBRID_SHARD = "state sharded inside groups of replicas"
    HYBRID_SHARD_EXPERTS = "such groups with ZeRO 2 or 3 beside split experts"
    OFFLOAD = "optimizer state on the host"
    OFFLOAD_REPLICAS = "that of replicas that shard nothing"
    OFFLOAD_ALONE = "that of one replica on several devices"
    OFFLOAD_ACTIVATIONS = "activations on the host"
    OFFLOAD_PIPELINE = "activations on the host beside a pipeline"
    OFFLOAD_RECOMPUTED = "activations on the host beside recomputation"
    OFFLOAD_BLOCKS = "activations of some blocks on the host"
    OFFLOAD_MODULES = "activations of some modules on the host"
    LOSS_CHUNK = "logits of some tokens at a time"
    MLP_TILE = "feed-forward parts of some tokens at a time"
    NARROW_ACTIVATIONS = "inputs of activations kept in another format"
    CUDA_GRAPHS = "CUDA graphs of blocks or of a step"
    TENSOR = "tensor parallel"
    SEQUENCE_PARALLEL = "sequence parallel beside it"
    NO_SEQUENCE_PARALLEL = "tensor parallel without sequence parallel"
    CONTEXT = "context parallel"
    TRADED_HEADS = "context ranks that trade heads"
    TRADED_HEADS_RING = "a ring of groups of them"
    EXPERT = "expert parallel"
    EXPERTS_CUT = "experts cut as the rest"
    EXPERTS_WHOLE = "experts whole beside tensor parallel"
    EXPERT_TENSOR = "experts cut in another way"
    EXPERT_GROUPS = "a token limited to groups of experts"
    CAPACITY = "tokens over a capacity dropped"
    DISPATCH_ONCE = "a token sent once to a node"
    DISPATCH_ONCE_CUT = "a token sent once to a node, to experts that are cut"
    NARROW_DISPATCH = "tokens sent in another format than activations"
    DEGREES_PER_STAGE = "degrees that differ between stages"
    SEVERAL_KINDS = "nodes with several kinds of devices"


# Fields of a recipe that ask for one feature each, unless they are as usual.
OF_RECIPE: Final[Mapping[str, Feature]] = MappingProxyType(
    {
        "loss_chunk": Feature.LOSS_CHUNK,
        "mlp_tile": Feature.MLP_TILE,
        "activation_input_dtype": Feature.NARROW_ACTIVATIONS,
        "cuda_graph": Feature.CUDA_GRAPHS,
    }
)
# The other fields that exporters know: they write them, refuse them in words of their own, or leave
# them to the program and say so. No target is known to do what a field asks for that is in neither
# table, so that all refuse it.
TOLD: Final = frozenset(
    {
        *("precision", "optimizer", "gradient_dtype", "reduce_dtype", "main_weight_dtype"),
        *("moment_dtypes", "dropout", "context_exchange", "ulysses", "context_balanced"),
        *("expert_imbalance", "expert_loads", "capacity_factor", "dispatch_dtype"),
        *("token_dispatcher", "fused_update", "update_in_backward", "offload"),
        *("offload_modules", "cuda_graph_modules"),
    }
)


# The capability table itself: rows are features, columns the targets in the order of `TARGETS`
# ---------------------------------------------------------------------------------------------

_LAYOUT = "yes pipeline_model_parallel_layout"
_FQNS = "yes module_fqns_per_model_part"
_STAGES = "yes stages.json"
_MODEL = "code the user's model"
_NO_PP = "no has no pipeline"
_FIXED = "no runs 1F1B and interleaved 1F1B only"
_FIXED_HERE = "no orders its pipeline itself"
_ONE_CHUNK = "no runs one stage per rank"
_PER_STAGE = "no runs the same degrees on every stage"
_LEAVE_OUT = "plan --mtp-layers 0 leaves them out"
_NO_MTP = f"no has no multi-token prediction layers; {_LEAVE_OUT}"
_CORE_FSDP = "yes --use-megatron-fsdp"
_WITH_PP = "no is not known to shard gradients or parameters beside a pipeline"
_EACH_COPY = "no sends a copy of a token for each of its experts"
_AS_ACTIVATIONS = "no sends tokens to experts in the format of activations"
_BLOCK = "yes recompute_method block"
_ONE_SET = "no recomputes one set of layers in every stage"
_ALL_HERE = "no keeps activations on the device in what is exported"
_BY_MODULE = "no moves all that some blocks keep, or modules of every block; plan with --offload"
_OF_LAYERS = (
    "no moves whole layers on one pipeline rank without recomputation; plan with --offload-modules"
)

# megatron, megatron-bridge, primus, torchtitan@0.2, torchtitan@0.3, pytorch, deepspeed, accelerate,
# nanotron
_ROWS: Final[dict[Feature, tuple[str, ...]]] = {
    Feature.PIPELINE: (
        "yes",
        "yes",
        "yes",
        "yes",
        "yes",
        "yes",
        "code PipelineModule",
        _NO_PP,
        "yes",
    ),
    Feature.UNEVEN_STAGES: (
        *(_LAYOUT,) * 3,
        *(_FQNS,) * 2,
        _STAGES,
        "code bounds set by a subclass of PipelineModule",
        _NO_PP,
        "no splits the layers itself",
    ),
    Feature.LOOP: (*("yes",) * 6, _ONE_CHUNK, _NO_PP, _ONE_CHUNK),
    Feature.UNEQUAL_CHUNKS: (
        *("no gives every rank the same number of stages",) * 5,
        "yes schedule.csv",
        _ONE_CHUNK,
        _NO_PP,
        _ONE_CHUNK,
    ),
    Feature.V_PLACEMENT: (
        *("no places stages in a loop only",) * 2,
        "yes for zbv-formatted, v-half and v-min",
        *("yes 2 stages per rank",) * 2,
        "yes schedule.csv",
        _ONE_CHUNK,
        _NO_PP,
        _ONE_CHUNK,
    ),
    Feature.ANY_PLACEMENT: (
        *("no places stages in a loop only",) * 2,
        *("no places stages in a loop or a V only",) * 3,
        "yes schedule.csv",
        _ONE_CHUNK,
        _NO_PP,
        _ONE_CHUNK,
    ),
    Feature.CUSTOM_ORDER: (
        *(_FIXED,) * 2,
        "no runs named families only",
        *("yes pipeline_parallel_schedule_csv",) * 2,
        "yes schedule.csv",
        _FIXED_HERE,
        _NO_PP,
        _FIXED_HERE,
    ),
    Feature.SPLIT_BACKWARD: (
        *(_FIXED,) * 2,
        *("yes",) * 4,
        _FIXED_HERE,
        _NO_PP,
        _FIXED_HERE,
    ),
    Feature.SPLIT_RECOMPUTE: (
        *(_FIXED,) * 2,
        "yes",
        *("no runs a block again for each half, and keeps what both made",) * 2,
        "code your blocks: PyTorch's own run again for each half, and keep what both made",
        _FIXED_HERE,
        _NO_PP,
        _FIXED_HERE,
    ),
    Feature.SPLIT_ZERO_3: (
        *(_FIXED,) * 2,
        "yes",
        *("no makes no gradients of weights that were sharded again",) * 3,
        _FIXED_HERE,
        _NO_PP,
        _FIXED_HERE,
    ),
    Feature.ENDS_APART: (
        *("yes E or L alone in the layout",) * 3,
        *(_FQNS,) * 2,
        _STAGES,
        "code bounds set by a subclass of PipelineModule",
        _NO_PP,
        "no splits the layers itself",
    ),
    Feature.HEAD_APART: (
        *("no computes the loss where the head is",) * 5,
        _STAGES,
        "code bounds set by a subclass of PipelineModule",
        _NO_PP,
        "no splits the layers itself",
    ),
    Feature.NORM_APART: (
        *("no runs it before the head",) * 3,
        *(_FQNS,) * 2,
        _STAGES,
        "code bounds set by a subclass of PipelineModule",
        _NO_PP,
        "no splits the layers itself",
    ),
    Feature.MTP: (
        *("yes m in the layout",) * 3,
        *(f"no does not split multi-token prediction layers off; {_LEAVE_OUT}",) * 2,
        _MODEL,
        *(_NO_MTP,) * 3,
    ),
    Feature.RECOMPUTE_ALL: (*("yes",) * 9,),
    Feature.RECOMPUTE_FIRST: (
        *(_BLOCK,) * 2,
        "yes recompute_layer_ids",
        *("no recomputes all blocks or none",) * 2,
        _STAGES,
        *("no recomputes all blocks or none",) * 3,
    ),
    Feature.RECOMPUTE_MODULES: (
        *("global recompute_modules",) * 3,
        *("global per operator, by its own policy",) * 2,
        _MODEL,
        *("no recomputes whole blocks",) * 3,
    ),
    Feature.RECOMPUTE_ANY: (
        *(_ONE_SET,) * 2,
        "yes recompute_layer_ids",
        *("no recomputes all blocks or none",) * 2,
        _STAGES,
        *("no recomputes all blocks or none",) * 3,
    ),
    Feature.RECOMPUTE_MIXED: (
        *("no recomputes the same parts in every block",) * 5,
        _STAGES,
        *("no recomputes whole blocks",) * 3,
    ),
    Feature.ZERO_1: (
        *("yes use_distributed_optimizer",) * 3,
        *("no shards gradients with the optimizer state (ZeRO 2 or 3), or nothing",) * 3,
        "yes zero_optimization.stage",
        "no shards gradients with the optimizer state (ZeRO 2 or 3), or nothing",
        "yes optimizer.zero_stage",
    ),
    Feature.ZERO_2: (
        *(_CORE_FSDP,) * 3,
        *("yes fsdp_reshard_after_forward never",) * 2,
        "yes fully_shard",
        "yes zero_optimization.stage",
        "yes fsdp_reshard_after_forward false",
        "no shards optimizer state only",
    ),
    Feature.ZERO_3: (
        *(_CORE_FSDP,) * 3,
        *("yes fsdp_reshard_after_forward always",) * 2,
        "yes fully_shard",
        "yes zero_optimization.stage",
        "yes fsdp_reshard_after_forward true",
        "no shards optimizer state only",
    ),
    Feature.ZERO_2_PIPELINE: (
        *(_WITH_PP,) * 3,
        *("yes fsdp_reshard_after_forward never",) * 2,
        "yes fully_shard",
        "no refuses ZeRO 2 and 3 beside a pipeline",
        _NO_PP,
        "no shards optimizer state only",
    ),
    Feature.ZERO_3_PIPELINE: (
        *(_WITH_PP,) * 3,
        *("yes fsdp_reshard_after_forward always",) * 2,
        "yes fully_shard",
        "no refuses ZeRO 2 and 3 beside a pipeline",
        _NO_PP,
        "no shards optimizer state only",
    ),
    Feature.UNSHARDED_BESIDE: (
        *("yes",) * 3,
        *("no shards parameters over context and expert ranks",) * 2,
        *("yes",) * 2,
        "no needs sharded replicas beside context parallel",
        "yes",
    ),
    Feature.UNSHARDED_TENSOR: (
        *("yes",) * 7,
        "no needs sharded replicas beside tensor parallel",
        "yes",
    ),
    Feature.UNSHARDED_PIPELINE: (*("yes",) * 7, _NO_PP, "yes"),
    Feature.SHARDED_MUON: (
        *("no excludes the distributed optimizer and FSDP beside Muon",) * 3,
        *("no has no Muon",) * 2,
        "yes",
        "no has no Muon",
        "yes",
        "no has no Muon",
    ),
    Feature.HYBRID_SHARD: (
        *("yes num_distributed_optimizer_instances",) * 3,
        *("yes data_parallel_replicate_degree",) * 2,
        "yes a mesh of two axes",
        "no copies sharded state with MiCS only, which is not exported",
        "yes parallelism_config_dp_replicate_size",
        "no shards over all replicas",
    ),
    Feature.HYBRID_SHARD_EXPERTS: (
        *("no copies what its FSDP shards on the mesh of dense layers only",) * 3,
        *("yes data_parallel_replicate_degree",) * 2,
        "yes a mesh of two axes",
        "no copies sharded state with MiCS only, which is not exported",
        "no has no expert parallelism",
        "no shards over all replicas",
    ),
    Feature.OFFLOAD: (
        *("yes optimizer_cpu_offload",) * 3,
        *("no moves weights too, where it moves anything (enable_cpu_offload)",) * 2,
        "code CPUOffloadPolicy, which moves weights too",
        "yes offload_optimizer",
        "yes fsdp_offload_params",
        "no keeps optimizer state on the device",
    ),
    Feature.OFFLOAD_REPLICAS: (
        *("yes optimizer_cpu_offload",) * 3,
        *("no moves weights too, where it moves anything (enable_cpu_offload)",) * 2,
        "code the optimizer's own",
        "no moves what ZeRO 1 to 3 shards",
        "no moves what FSDP shards: ZeRO 2 or 3",
        "no keeps optimizer state on the device",
    ),
    Feature.OFFLOAD_ALONE: (
        *("yes optimizer_cpu_offload",) * 3,
        *("no moves weights too, where it moves anything (enable_cpu_offload)",) * 2,
        "code the optimizer's own",
        "yes offload_optimizer, under ZeRO 1",
        "no moves what FSDP shards, over data or context ranks",
        "no keeps optimizer state on the device",
    ),
    Feature.OFFLOAD_ACTIVATIONS: (*("yes cpu_offloading_num_layers",) * 3, *(_ALL_HERE,) * 6),
    Feature.OFFLOAD_PIPELINE: (*(_OF_LAYERS,) * 3, *(_ALL_HERE,) * 6),
    Feature.OFFLOAD_RECOMPUTED: (*(_OF_LAYERS,) * 3, *(_ALL_HERE,) * 6),
    Feature.OFFLOAD_BLOCKS: (*(_BY_MODULE,) * 3, *(_ALL_HERE,) * 2, _STAGES, *(_ALL_HERE,) * 3),
    Feature.OFFLOAD_MODULES: (*("yes offload_modules",) * 3, *(_ALL_HERE,) * 6),
    Feature.LOSS_CHUNK: (
        *("no computes all logits of a microbatch in what is exported",) * 5,
        _MODEL,
        *("code the model's own loss",) * 2,
        "no computes all logits of a microbatch",
    ),
    Feature.MLP_TILE: (
        *("no runs a feed-forward part on all tokens",) * 5,
        _MODEL,
        *("code the model's own feed-forward parts",) * 2,
        "no runs a feed-forward part on all tokens",
    ),
    Feature.NARROW_ACTIVATIONS: (
        *("yes activation_func_fp8_input_store",) * 3,
        *("no keeps what an activation reads as it came",) * 2,
        _MODEL,
        *("code the model's own feed-forward parts",) * 2,
        "no keeps what an activation reads as it came",
    ),
    Feature.CUDA_GRAPHS: (
        *("yes cuda_graph_impl",) * 3,
        *("no records none in what is exported",) * 2,
        "code torch.cuda.make_graphed_callables",
        *("no records none in what is exported",) * 3,
    ),
    Feature.TENSOR: (
        *("yes",) * 5,
        _MODEL,
        "code the model's own tensor parallelism",
        "yes parallelism_config_tp_size",
        "yes",
    ),
    Feature.SEQUENCE_PARALLEL: (
        *("yes sequence_parallel",) * 3,
        "yes always beside tensor parallel",
        "yes enable_sequence_parallel",
        _MODEL,
        _MODEL,
        "code the model's tensor-parallel plan",
        "yes tp_mode REDUCE_SCATTER",
    ),
    Feature.NO_SEQUENCE_PARALLEL: (
        *("yes",) * 3,
        "no always runs sequence parallel beside tensor parallel",
        "yes enable_sequence_parallel",
        _MODEL,
        _MODEL,
        "code the model's tensor-parallel plan",
        "yes tp_mode ALL_REDUCE",
    ),
    Feature.CONTEXT: (
        *("yes",) * 5,
        _MODEL,
        "no has no context parallelism of the kind planned",
        "yes parallelism_config_cp_size",
        "yes context_parallel_size",
    ),
    Feature.TRADED_HEADS: (
        *("yes cp_comm_type a2a",) * 3,
        *("no passes keys and values on",) * 2,
        _MODEL,
        "code the model's own attention (DistributedAttention)",
        *("no passes keys and values on",) * 2,
    ),
    Feature.TRADED_HEADS_RING: (
        *("yes hierarchical_context_parallel_sizes",) * 3,
        *("no passes keys and values on",) * 2,
        _MODEL,
        *("no passes keys and values on, or trades heads, not both",) * 2,
        "no passes keys and values on",
    ),
    Feature.EXPERT: (
        *("yes",) * 5,
        _MODEL,
        "code ep_size of its MoE layer",
        "no has no expert parallelism",
        "yes expert_parallel_size",
    ),
    Feature.EXPERTS_CUT: (
        *("yes",) * 3,
        "yes expert_tensor_parallel_degree",
        "no does not cut experts; choose --etp 1",
        _MODEL,
        "code the MoE layer",
        "code the model's tensor-parallel plan",
        "yes",
    ),
    Feature.EXPERT_TENSOR: (
        *("yes expert_tensor_parallel_size",) * 3,
        *("no takes experts whole or cut as the rest",) * 2,
        _MODEL,
        *("no cuts experts as the rest",) * 3,
    ),
    Feature.EXPERTS_WHOLE: (
        *("yes expert_tensor_parallel_size",) * 3,
        *("yes",) * 2,
        _MODEL,
        *("no cuts experts as the rest",) * 3,
    ),
    Feature.EXPERT_GROUPS: (
        *("yes moe_router_group_topk",) * 3,
        *("code num_limited_groups of the model",) * 2,
        _MODEL,
        *("code the model's own router",) * 2,
        "no chooses among all experts",
    ),
    Feature.CAPACITY: (
        *("yes moe_expert_capacity_factor",) * 3,
        *("no computes every token",) * 2,
        _MODEL,
        "code capacity_factor of the MoE layers",
        "no has no expert parallelism",
        "no computes every token",
    ),
    Feature.DISPATCH_ONCE: (
        *("yes moe_token_dispatcher_type flex",) * 3,
        "yes expert_parallel_comm_backend",
        "code moe_comm_backend of the model",
        _MODEL,
        _EACH_COPY,
        "no has no expert parallelism",
        _EACH_COPY,
    ),
    Feature.DISPATCH_ONCE_CUT: (
        *("yes moe_token_dispatcher_type flex",) * 3,
        "no sends a token once to a node only where experts are whole; choose --etp 1",
        "no does not cut experts; choose --etp 1",
        _MODEL,
        _EACH_COPY,
        "no has no expert parallelism",
        _EACH_COPY,
    ),
    Feature.NARROW_DISPATCH: (
        *(_AS_ACTIVATIONS,) * 5,
        _MODEL,
        _AS_ACTIVATIONS,
        "no has no expert parallelism",
        _AS_ACTIVATIONS,
    ),
    Feature.DEGREES_PER_STAGE: (*(_PER_STAGE,) * 9,),
    Feature.SEVERAL_KINDS: (*("yes started node by node",) * 9,),
}
# Columns that follow from another: which, and where they differ from it.
_ACCELERATE: Final = 7
_TORCHTITAN: Final = 4
_ALONE = "no runs replicas only"
_OWN_CHUNKS = "no orders several stages per rank in another way"
_DERIVED: Final[tuple[tuple[int, dict[Feature, str]], ...]] = (
    (  # trl
        _ACCELERATE,
        {
            Feature.OFFLOAD_ACTIVATIONS: "yes gradient_checkpointing_kwargs offload",
            Feature.OFFLOAD_RECOMPUTED: "yes gradient_checkpointing_kwargs offload",
            Feature.LOSS_CHUNK: "yes loss_type chunked_nll, of 256 tokens",
            Feature.MLP_TILE: "code a forward of the model's MLP that splits its tokens",
        },
    ),
    (  # axolotl
        _ACCELERATE,
        {
            Feature.ZERO_2: "yes reshard_after_forward false",
            Feature.ZERO_3: "yes reshard_after_forward true",
            Feature.HYBRID_SHARD: "yes dp_replicate_size",
            Feature.OFFLOAD: "yes offload_params",
            Feature.OFFLOAD_ACTIVATIONS: "yes activation_offloading",
            Feature.OFFLOAD_RECOMPUTED: "yes activation_offloading",
            Feature.TENSOR: "yes tensor_parallel_size",
            Feature.CONTEXT: "yes context_parallel_size",
        },
    ),
    (  # llamafactory
        _ACCELERATE,
        {
            **dict.fromkeys(
                (Feature.ZERO_1, Feature.ZERO_2, Feature.ZERO_3), "yes zero_optimization.stage"
            ),
            Feature.HYBRID_SHARD: "no copies sharded state with MiCS only, which is not exported",
            Feature.OFFLOAD: "yes offload_optimizer",
            Feature.OFFLOAD_REPLICAS: "no moves what ZeRO 1 to 3 shards",
            Feature.TENSOR: _ALONE,
            Feature.CONTEXT: _ALONE,
        },
    ),
    (  # automodel
        _TORCHTITAN,
        {
            Feature.UNEVEN_STAGES: "no splits the layers itself",
            Feature.ENDS_APART: "no splits the layers itself",
            Feature.LOOP: _OWN_CHUNKS,
            Feature.UNEQUAL_CHUNKS: _OWN_CHUNKS,
            Feature.V_PLACEMENT: _OWN_CHUNKS,
            Feature.ANY_PLACEMENT: _OWN_CHUNKS,
            Feature.CUSTOM_ORDER: "no runs 1F1B and GPipe in what is exported",
            Feature.SPLIT_BACKWARD: "no runs 1F1B and GPipe in what is exported",
            Feature.RECOMPUTE_MODULES: "no chooses the parts by a policy of its own",
            **dict.fromkeys(
                (Feature.ZERO_2, Feature.ZERO_2_PIPELINE), "yes reshard_after_forward false"
            ),
            **dict.fromkeys(
                (Feature.ZERO_3, Feature.ZERO_3_PIPELINE), "yes reshard_after_forward true"
            ),
            Feature.UNSHARDED_TENSOR: "no needs sharded replicas beside tensor parallel",
            Feature.UNSHARDED_PIPELINE: "no shards what lies beside a pipeline (ZeRO 2 or 3)",
            Feature.HYBRID_SHARD: "yes dp_replicate_size",
            Feature.HYBRID_SHARD_EXPERTS: "no is not known to copy experts that are split",
            **dict.fromkeys(
                (Feature.OFFLOAD, Feature.OFFLOAD_REPLICAS, Feature.OFFLOAD_ALONE),
                "no moves weights too, where it moves anything (offload_policy)",
            ),
            Feature.SEQUENCE_PARALLEL: "yes sequence_parallel",
            Feature.NO_SEQUENCE_PARALLEL: "yes sequence_parallel",
            Feature.EXPERTS_WHOLE: "no is not known to run experts beside tensor parallel",
            Feature.DISPATCH_ONCE: "code the backend of the model",
        },
    ),
    (  # maxtext
        _ACCELERATE,
        {
            Feature.ZERO_2: "no shards parameters too (ZeRO 3), or nothing",
            Feature.ZERO_3: "yes ici_fsdp_parallelism",
            Feature.UNSHARDED_BESIDE: "no shards parameters over context and expert ranks",
            Feature.UNSHARDED_TENSOR: "yes",
            Feature.HYBRID_SHARD: "yes ici_data_parallelism",
            **dict.fromkeys(
                (Feature.OFFLOAD, Feature.OFFLOAD_REPLICAS, Feature.OFFLOAD_ALONE),
                "yes optimizer_memory_host_offload",
            ),
            Feature.LOSS_CHUNK: "no computes all logits of a microbatch in what is exported",
            Feature.MLP_TILE: "no runs a feed-forward part on all tokens",
            Feature.NARROW_ACTIVATIONS: "no keeps what an activation reads as it came",
            Feature.TENSOR: "yes ici_tensor_parallelism",
            Feature.SEQUENCE_PARALLEL: "yes always beside tensor parallel",
            Feature.NO_SEQUENCE_PARALLEL: "no always cuts what lies between split layers, too",
            Feature.CONTEXT: "yes ici_context_parallelism",
            Feature.EXPERT: "yes ici_expert_parallelism",
            Feature.EXPERTS_CUT: "no is not known to run experts beside tensor parallel",
            Feature.EXPERTS_WHOLE: "no is not known to run experts beside tensor parallel",
            Feature.EXPERT_TENSOR: "no is not known to run experts beside tensor parallel",
            Feature.EXPERT_GROUPS: "code the model's own router",
            Feature.CAPACITY: "yes capacity_factor",
            **dict.fromkeys((Feature.DISPATCH_ONCE, Feature.DISPATCH_ONCE_CUT), _EACH_COPY),
            Feature.NARROW_DISPATCH: _AS_ACTIVATIONS,
            Feature.SEVERAL_KINDS: "no compiles one program for all devices",
        },
    ),
)
CELLS: Final[Mapping[Feature, tuple[str, ...]]] = MappingProxyType(
    {
        feature: (*row, *(own.get(feature, row[like]) for like, own in _DERIVED))
        for feature, row in _ROWS.items()
    }
)

_OF_MEGATRON = {"1f1b": "1F1B", "interleaved": "interleaved 1F1B"}
_OF_TORCHTITAN = {"gpipe": "GPipe", "1f1b": "1F1B"}
# The framework's own name of a family that it orders alike.
SCHEDULES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "megatron": _OF_MEGATRON,
        "megatron-bridge": _OF_MEGATRON,
        "primus": {
            "1f1b": "1f1b",
            "interleaved": "1f1b-interleaved",
            "zb-1p": "zero-bubble",
            "zb-v": "zbv-formatted",
            "v-zb": "zbv-formatted",
            "v-half": "v-half",
            "v-min": "v-min",
        },
        "torchtitan@0.2": _OF_TORCHTITAN,
        "torchtitan@0.3": _OF_TORCHTITAN,
        "pytorch": {},
        "deepspeed": {"1f1b": "TrainSchedule"},
        "accelerate": {},
        **dict.fromkeys(("trl", "axolotl", "llamafactory", "maxtext"), MappingProxyType({})),
        "automodel": {"1f1b": "1f1b", "gpipe": "gpipe"},
        "nanotron": {"1f1b": "1f1b", "gpipe": "afab"},
    }
)

# How ranks are numbered, from the axis whose neighbours are closest.
AXIS_ORDERS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = MappingProxyType(
    {
        **dict.fromkeys(("megatron", "megatron-bridge", "primus"), (DATA_INSIDE, PIPELINE_INSIDE)),
        **dict.fromkeys(("torchtitan@0.2", "torchtitan@0.3", "pytorch"), (DATA_INSIDE,)),
        **dict.fromkeys(("deepspeed", "accelerate", "nanotron", "trl"), (DATA_INSIDE,)),
        **dict.fromkeys(("axolotl", "llamafactory", "automodel", "maxtext"), (DATA_INSIDE,)),
    }
)

_OF_CORE = ("adam", "sgd", "momentum", "muon")
_ANY_OPTIMIZER = (*_OF_CORE, "lion", "adafactor")
_OF_TRANSFORMERS = ("adam", "adafactor", "lion", "sgd")
OPTIMIZERS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        **dict.fromkeys(("megatron", "megatron-bridge", "primus"), _OF_CORE),
        **dict.fromkeys(("torchtitan@0.2", "torchtitan@0.3"), ("adam",)),
        **dict.fromkeys(("pytorch", "accelerate"), _ANY_OPTIMIZER),
        **dict.fromkeys(("trl", "llamafactory"), _OF_TRANSFORMERS),
        **dict.fromkeys(("deepspeed", "automodel", "maxtext"), ("adam",)),
        "axolotl": (*_OF_TRANSFORMERS, "muon"),
        "nanotron": ("adam", "sgd"),
    }
)

_AUTOCAST = ("bf16_autocast", "fp16_autocast")
# Number formats that a target's files can ask for.
PRECISIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "megatron": (
            *("bf16", "fp16", "fp32", "fp8", "fp8_delayed", "fp8_tensorwise", "fp8_blockwise"),
            *("mxfp8", "nvfp4"),
        ),
        "megatron-bridge": ("bf16", "fp16", "fp32", "fp8", "nvfp4"),
        "primus": ("bf16", "fp16", "fp32", "fp8"),
        "torchtitan@0.2": ("bf16", "fp32", "fp8"),
        "torchtitan@0.3": ("bf16", "fp32"),  # fp8 is an argument of the model's own function
        "pytorch": ("bf16", "fp16", "fp32", "fp8", "tf32", "fp4", *_AUTOCAST),
        "deepspeed": ("bf16", "fp16", "fp32"),
        **dict.fromkeys(("accelerate", "axolotl"), ("bf16", "fp16", "fp32", "fp8")),
        "trl": ("bf16", "fp16", "fp32", "fp8", *_AUTOCAST),
        "llamafactory": ("bf16", "fp16", "fp32"),
        "automodel": ("bf16",),
        "maxtext": ("bf16", "fp32", "fp8"),
        "nanotron": ("bf16", "fp16", "fp32"),
    }
)

# Tokens whose logits a framework's usual loss has at once, where these are not all.
LOSS_CHUNKS: Final[Mapping[str, int]] = MappingProxyType({"trl": 256, "unsloth": 256})
USUAL_LOSS_CHUNK: Final = 1024  # where one is written: enough for a product to fill a device
# Who moves gradients with the states of the optimizer, as PyTorch's FSDP does.
MOVES_GRADIENTS: Final = frozenset({"accelerate", "trl", "axolotl"})
# Who can leave shards of weights there: FSDP with the rest, DeepSpeed by a word of its own.
MOVES_WEIGHTS: Final = MOVES_GRADIENTS | {"deepspeed", "llamafactory", "pytorch"}
# Who leaves on the host all that the first so many blocks keep, never that of the last: Megatron by
# Transformer Engine (`cpu_offloading`, which one pipeline rank and no recomputation may have).
MOVES_LAYERS: Final = frozenset({"megatron", "megatron-bridge", "primus"})
# Who sums gradients of replicas in the 16-bit format of compute unless told otherwise.
_REDUCE_IN_16_BIT: Final = frozenset({"deepspeed", "accelerate", "trl", "axolotl", "llamafactory"})


def own_reduction(target: str | None, precision: str | None) -> str | None:
    """In what a framework sums gradients of replicas by itself; None where as it keeps them."""
    is_narrow = target in _REDUCE_IN_16_BIT and precision in ("bf16", "fp16")
    return precision if is_narrow else None


def own_choices(
    target: str | None, precision: str | None, *, program: str | None = None, zero: object = None
) -> dict[str, Any]:
    """Fields of a recipe as a program has them by itself, where that is not the usual.

    `program` is the whole name of the target's software; under DeepSpeed, from ZeRO 1 on, its
    gradients are of 16 bit. `zero` is 0 where nothing is sharded.
    """
    reduced, chunk = own_reduction(target, precision), LOSS_CHUNKS.get(target or "")
    narrow = zero != 0 and precision in ("bf16", "fp16") and is_sharded_by_deepspeed(program or "")
    found = {
        "reduce_dtype": reduced,
        "loss_chunk": chunk,
        "gradient_dtype": precision if narrow else None,
    }
    return {name: value for name, value in found.items() if value is not None}


_OF_MEGATRON_MODULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "attention_core": "core_attn",
        "norm": "layernorm",
        "latent_up_projection": "mla_up_proj",
        "expert_activation": "moe_act",
        "mlp": "mlp",
        "moe": "moe",
        "shared_experts": "shared_experts",
    }
)
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
# What "selective" can recompute alike, by the framework's name; None: it decides itself.
MODULES: Final[Mapping[str, Mapping[str, str] | None]] = MappingProxyType(
    {
        **dict.fromkeys(("megatron", "megatron-bridge", "primus"), _OF_MEGATRON_MODULES),
        **dict.fromkeys(("torchtitan@0.2", "torchtitan@0.3", "pytorch"), None),
        **dict.fromkeys(("deepspeed", "accelerate", "nanotron", "trl"), _NOTHING),
        **dict.fromkeys(("axolotl", "llamafactory", "automodel", "maxtext"), _NOTHING),
    }
)

# Adapted products by the names that libraries give them; the first of each is what we write.
PRODUCTS: Final = {
    "q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "attention_output",
    "gate_proj": "gate", "up_proj": "up", "down_proj": "down", "output_proj": "attention_output",
    "w1": "gate", "w2": "down", "w3": "up", "out_proj": "attention_output", "wq": "query",
    "wk": "key", "wv": "value", "wo": "attention_output", "fc1": "up", "fc2": "down",
    "query": "query", "value": "value", "key": "key",
    "q_a_proj": "query_down", "q_b_proj": "query_up", "kv_a_proj_with_mqa": "key_value_down",
    "kv_b_proj": "key_value_up",
}  # fmt: skip
