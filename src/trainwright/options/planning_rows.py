"""Rows of the table of options: how a model is planned and priced."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeAlias

from trainwright.options import option
from trainwright.options.clusters import AUTO_SOFTWARE

# For whom an option is
# ---------------------

_MEASURED: Final = "a file with times and sizes states how it trains; leave it out"
_OR_CLUSTER: Final = f"{_MEASURED}, or give --cluster"
_MACHINE: Final = "the machine is given as --devices, --memory and --bandwidth"
_BATCH: Final = "the batch is given as --microbatches"
_ON_A_CLUSTER: Final = "a profile on a cluster has one planner; leave out this or --cluster"
_OWN_COSTS: Final = "costs of a profile are its own; leave it out"

Foreign: TypeAlias = dict[option.Kind, tuple[option.Kind, str]]


def _of_models(instead: str = _MEASURED, of_a_profile: str = "") -> Foreign:
    """Refused for whatever has times and sizes, but on a cluster."""
    told = {option.Kind.PROFILE: of_a_profile or instead, option.Kind.PLACEMENT: instead}
    return {kind: (option.Kind.MODEL, why) for kind, why in told.items()}


def _of_profiles(of_a_model: str, *, on_a_cluster: str = "", placement: str = "") -> Foreign:
    """Refused for a model, and where a reason is given, for other inputs."""
    found: Foreign = {option.Kind.MODEL: (option.Kind.PROFILE, of_a_model)}
    if on_a_cluster:
        found[option.Kind.MEASURED] = (option.Kind.FLAT, on_a_cluster)
    if placement:
        found[option.Kind.PLACEMENT] = (option.Kind.PROFILE, placement)
    return found


_OF_A_MODEL: Final = _of_models(of_a_profile=_OR_CLUSTER)
_HOW_IT_TRAINS: Final = {**_of_models(), option.Kind.MEASURED: (option.Kind.MODEL, _MEASURED)}

# The rows, by group as the help prints them
# ------------------------------------------

_PLAN: Final = "plan sweep"
_BOTH: Final = "plan sweep estimate"

ROWS: list[option.Option] = []
ROWS += option.section(
    "Machine and batch",
    _BOTH,
    option.row(
        "from",
        replace(option.FILE, annotation="tuple[str, str | Path] | None"),
        "An existing job's file and its format, as megatron (docs/jobs.md lists them).",
        commands="estimate improve",
        keyword="source",
        metavar="FORMAT FILE",
        shell=True,
    ),
    option.row(
        "argument",
        option.EACH,
        "Of the job's script, one after another (repeatable).",
        commands="estimate improve",
        metavar="VALUE",
    ),
    option.row(
        "variable",
        option.VARIABLES,
        "Of the job's environment (repeatable).",
        commands="estimate improve",
    ),
    option.row(
        "vocab-size",
        option.COUNT,
        "The vocabulary that the job's tokenizer decides.",
        commands="estimate improve",
    ),
    option.row(
        "function",
        option.NAME,
        "Which function of a Python registry.",
        commands="estimate improve",
    ),
    option.row(
        "plan",
        option.FILE,
        "For a profile: the plan document to price.",
        commands="estimate",
        at="plan",
        foreign=_of_profiles(
            "a model is given its degrees, as --tp and --pp",
            on_a_cluster="on a cluster a run is given by its degrees, as --tp and --pp",
        ),
    ),
    option.row(
        "model",
        option.TEXT,
        "The model, where the framework's file does not describe it.",
        commands="improve",
    ),
    option.row(
        "cluster",
        option.CLUSTER,
        "A catalog cluster or a TOML file.",
        commands="plan sweep estimate improve",
        at="machine.cluster",
        foreign=_of_models(_MACHINE),
    ),
    option.row(
        "nodes",
        option.COUNT,
        "Nodes of the cluster.",
        commands="plan sweep estimate improve",
        at="machine.nodes",
        foreign=_of_models(_MACHINE),
    ),
    option.row(
        "devices",
        option.SIZES,
        "Number of devices; for a model also 64..4096 (doubling) or 64,96,128.",
        commands="plan",
        at="setting.num_devices machine.devices",
    ),
    option.row(
        "devices",
        option.COUNT,
        "Number of devices.",
        commands="estimate codesign",
        at="setting.num_devices machine.devices",
    ),
    option.row(
        "devices",
        option.COUNT_OR_NONE,
        "Number of devices; of one of several pools with --pool, 0 without it.",
        commands="whatif",
    ),
    option.row(
        "pool",
        option.NAME,
        "Of several, the one that the options of devices and networks change, by its index or "
        "kind of device; all if absent.",
        commands="whatif",
    ),
    option.row(
        "memory",
        option.SIZE,
        "Memory per device, such as 80GiB.",
        commands="plan sweep estimate whatif",
        at="setting.memory_bytes machine.memory_bytes",
    ),
    option.row(
        "bandwidth",
        option.EACH,
        "Of a level, such as inter=800Gb/s or nvlink=900GB/s (repeatable).",
        commands="whatif",
        metavar="LEVEL=RATE",
    ),
    option.row(
        "flops-scale", option.POSITIVE, "So many times the peak of each device.", commands="whatif"
    ),
    option.row(
        "global-batch",
        option.COUNT,
        "Sequences per step, over all replicas.",
        commands="plan sweep estimate whatif",
        at="workload.global_batch run.global_batch",
        foreign=_of_models(_BATCH),
    ),
    option.row(
        "sequence",
        option.COUNT,
        "Tokens per sequence.",
        commands="plan sweep estimate whatif",
        at="workload.sequence_length run.sequence_length",
        foreign=_OF_A_MODEL,
    ),
    option.row(
        "images",
        option.COUNT_OR_NONE,
        "Images in each sequence, of a model that takes them; 0 if absent.",
        commands="plan sweep estimate",
        also="images",
        foreign=_OF_A_MODEL,
    ),
    option.row(
        "image-size",
        option.COUNT,
        "Pixels a side of an image, where the model takes any size; 1024 if absent.",
        commands="plan sweep estimate",
        foreign=_OF_A_MODEL,
    ),
    option.row(
        "mtp-layers",
        option.COUNT_OR_NONE,
        "Layers that predict further tokens, of the model's; all if absent.",
        commands="plan sweep estimate",
        also="num_mtp_layers",
        foreign=_OF_A_MODEL,
    ),
    option.row(
        "sequence",
        option.COUNT,
        "Tokens per sequence, in place of what the file says.",
        commands="improve",
    ),
    option.row(
        "global-batch",
        option.COUNT,
        "Sequences per step, in place of what the file says.",
        commands="improve",
    ),
    option.row(
        "calibration",
        option.FILE,
        "Fitted constants: a file of `calibrate`, a line of `catalog calibrations`, or none for "
        "the roofline.",
        commands="plan sweep estimate improve",
        foreign=_OF_A_MODEL,
    ),
    option.row(
        "software",
        option.SOFTWARE,
        "Whose speed to expect, as megatron-core, nemo or torchtitan; auto is that of the "
        "framework or file that is named, else typical.",
        commands="plan sweep estimate improve",
        default=AUTO_SOFTWARE,
        foreign=_OF_A_MODEL,
    ),
    option.row(
        "framework",
        option.NAME,
        "Only plans that it launches; if absent those of Megatron-Core or what can, any for all.",
        commands=_PLAN,
        at="space.framework",
        foreign={
            **_OF_A_MODEL,
            option.Kind.MEASURED: (
                option.Kind.MODEL,
                "a profile does not say what a framework would build; leave it out",
            ),
        },
    ),
    option.row(
        "framework",
        option.NAME,
        "Consider only what this framework can run; of a file it is the file's own, unless any.",
        commands="improve",
        metavar="TARGET",
        at="improvement.framework",
    ),
    option.row(
        "patch",
        option.FILE,
        "Write a copy of the file with the recommended change in it, and show what differs.",
        commands="improve",
    ),
)
ROWS += option.section(
    "What a plan may use",
    _PLAN,
    option.row(
        "micro-batch",
        option.DEGREE,
        "Sequences per microbatch.",
        at="space.microbatch_size",
        foreign=_of_models(_BATCH),
    ),
    option.row("tp", option.DEGREE, "Tensor-parallel degree.", at="space.tensor"),
    option.row("pp", option.DEGREE, "Pipeline ranks.", at="space.pipeline"),
    option.row("dp", option.DEGREE, "Data-parallel degree.", at="space.data"),
    option.row("cp", option.DEGREE, "Context-parallel degree.", at="space.context"),
    option.row("ep", option.DEGREE, "Expert-parallel degree.", at="space.expert"),
    option.row("etp", option.DEGREE, "Devices that share one expert.", at="space.expert_tensor"),
    option.row(
        "virtual-stages", option.DEGREE, "Stages per pipeline rank.", at="space.virtual_stages"
    ),
    option.row(
        "state-copies",
        option.DEGREE,
        "Groups of replicas that each hold all sharded state; if absent one, or as many as "
        "fill nodes.",
        at="space.state_copies",
    ),
    option.row(
        "zero",
        replace(option.NAMES, annotation="int | str | Iterable[int | str] | None"),
        "ZeRO stages, such as 1 or 0,1; all if absent.",
        metavar="TEXT",
        at="space.zero_stages",
    ),
    option.row(
        "mapping",
        option.ORDERS,
        "Of tp-cp-ep-dp-pp,tp-cp-ep-pp-dp: how devices are numbered; both if absent.",
        at="space.mappings",
    ),
    option.row(
        "recompute",
        option.NAMES,
        "Of none,offload,selective,full; all but offload if absent.",
        metavar="MODES",
        at="space.recompute",
        foreign=_of_models("--no-recompute drops what recomputes"),
    ),
    option.row(
        "schedule",
        option.NAMES,
        "Families, such as 1f1b,v-half; searched: other orders, too.",
        at="schedules",
        also="schedules",
    ),
    option.row(
        "no-data-parallel",
        option.OFF,
        "One replica per stage.",
        keyword="data_parallel",
        at="flat.data_parallel",
        foreign={},
    ),
    option.row(
        "no-tensor-parallel",
        option.OFF,
        "Do not split layers.",
        keyword="tensor_parallel",
        at="flat.tensor_parallel",
        foreign={},
    ),
    option.row(
        "no-recompute",
        option.OFF,
        "Drop every option that recomputes.",
        keyword="recompute",
        at="flat.recompute",
        foreign={},
    ),
    option.row(
        "exclude-option",
        option.EACH,
        "Drop options with this id (repeatable).",
        at="record.excluded_options",
        foreign={
            option.Kind.PLACEMENT: (option.Kind.PROFILE, "--no-recompute drops what recomputes")
        },
    ),
    option.row(
        "per-stage-degrees",
        option.ON,
        "For a model: let stages differ in degrees, which no framework runs yet.",
        at="searched.per_stage_degrees",
        foreign={
            **_OF_A_MODEL,
            option.Kind.MEASURED: (
                option.Kind.MODEL,
                "without --cluster stages of a profile differ in degrees",
            ),
        },
    ),
    foreign=_OF_A_MODEL,
)
ROWS += option.section(
    "Degrees and schedule",
    "estimate",
    option.row(
        "tp",
        option.COUNT,
        "Tensor parallel degree; 1 if absent.",
        at="parallelism.tensor",
        also="tensor_parallel",
    ),
    option.row("pp", option.COUNT, "Pipeline ranks; 1 if absent.", at="parallelism.pipeline"),
    option.row("dp", option.COUNT, "Replicas; as many as fit if absent.", at="parallelism.data"),
    option.row(
        "cp",
        option.COUNT,
        "Context parallel degree; 1 if absent.",
        at="parallelism.context",
        also="context_parallel",
    ),
    option.row(
        "ep",
        option.COUNT,
        "Expert parallel degree; 1 if absent.",
        at="parallelism.expert",
        also="expert_parallel",
    ),
    option.row(
        "etp",
        option.COUNT,
        "Devices per expert; as --tp if absent.",
        at="parallelism.expert_tensor",
        also="expert_tensor_parallel",
    ),
    option.row(
        "zero",
        option.COUNT_OR_NONE,
        "ZeRO stage, 0 to 3; 1 if absent.",
        at="parallelism.zero_stage",
    ),
    option.row(
        "mapping",
        option.ORDER,
        "How devices are numbered, nearest axis first: tp-cp-ep-dp-pp if absent, or "
        "tp-cp-ep-pp-dp.",
        at="parallelism.axis_order",
    ),
    option.row(
        "state-copies",
        option.COUNT,
        "Groups of replicas that each hold all sharded state; 1 if absent.",
        at="parallelism.state_copies",
    ),
    option.row(
        "micro-batch",
        option.COUNT,
        "Sequences per microbatch; 1 if absent.",
        at="run.microbatch_size",
        foreign=_of_models(_BATCH),
    ),
    option.row(
        "recompute",
        option.NAME,
        "none, offload, selective, full; offload:N or full:N for N blocks of each stage.",
        metavar="MODE",
        at="recompute",
        also="recompute_blocks",
        foreign=_of_models("--no-recompute drops what recomputes"),
    ),
    option.row(
        "schedule",
        option.NAME,
        "A schedule family; 1f1b if absent, interleaved with virtual stages.",
        at="run.schedule",
    ),
    option.row(
        "virtual-stages",
        option.COUNT,
        "Model chunks per pipeline rank; 1 if absent.",
        at="parallelism.virtual_stages",
    ),
    option.row(
        "pool",
        option.EACH,
        "Of several, the one of each pipeline rank, by index or kind of device, as 0,0,1; "
        "repeated, as 2x6:1 for 2 replicas of 6 microbatches each.",
        metavar="POOLS",
        at="chains",
    ),
    option.row(
        "blocks",
        option.BLOCKS,
        "Blocks of each virtual stage, as 11,12,12,11; even if absent.",
        at="run.blocks_per_stage",
    ),
    option.row(
        "sequence-parallel",
        option.SWITCH,
        "Shard norms and dropout along the sequence; on with --tp if absent.",
        at="parallelism.sequence_parallel",
    ),
    option.row(
        "flash-attention",
        option.SWITCH,
        "Fused attention; on if absent.",
        commands=_BOTH,
        at="run.fused_attention kernels.fused_attention",
        foreign=_HOW_IT_TRAINS,
    ),
    option.row(
        "fused-cross-entropy",
        option.SWITCH,
        "Keep 16-bit logits only; off if absent.",
        commands=_BOTH,
        at="run.fused_cross_entropy kernels.fused_cross_entropy",
        foreign=_HOW_IT_TRAINS,
    ),
    option.row(
        "vocabulary-multiple",
        option.COUNT,
        "Pad the vocabulary to this x --tp; 128 if absent.",
        commands=_BOTH,
        at="run.vocabulary_multiple kernels.vocabulary_multiple",
        foreign=_HOW_IT_TRAINS,
    ),
    foreign=_OF_A_MODEL,
)
ROWS += option.section(
    "How the model trains",
    _BOTH,
    option.row(
        "recompute-module",
        option.EACH,
        "What selective recomputes (repeatable).",
        metavar="NAME",
        at="run.recompute_modules",
        also="selective_modules",
    ),
    option.row(
        "precision",
        option.NAME,
        "bf16, fp16, fp8, fp32 or tf32, float32 weights under bf16_autocast or fp16_autocast, or a "
        "recipe: fp8_delayed, fp8_tensorwise, fp8_blockwise, mxfp8, nvfp4; 16 bit if absent.",
        at="recipe.precision",
    ),
    option.row(
        "optimizer",
        option.NAME,
        "adafactor, adam, lion, momentum, muon or sgd, or as adamw_8bit; adam if absent.",
        at="recipe.optimizer",
    ),
    option.row(
        "gradient-dtype", option.DTYPE, "Of gradients; fp32 if absent.", at="recipe.gradient_dtype"
    ),
    option.row(
        "reduce-dtype",
        option.DTYPE,
        "Of gradients while replicas sum them; that of gradients if absent.",
        at="recipe.reduce_dtype",
    ),
    option.row(
        "main-weight-dtype",
        option.DTYPE,
        "Of the optimizer's weights, or none; fp32 beside 16-bit weights if absent.",
        at="recipe.main_weight_dtype",
    ),
    option.row(
        "moment-dtype",
        option.EACH,
        "Of the optimizer's moments, once or once each; fp32 if absent.",
        metavar="DTYPE",
        at="recipe.moment_dtypes",
    ),
    option.row(
        "dropout",
        option.NUMBER,
        "Rate; the model's own if absent.",
        metavar="SHARE",
        at="recipe.dropout",
    ),
    option.row(
        "context-exchange",
        option.NAME,
        "ring, all_gather, all_to_all or all_to_all_ring; ring if absent.",
        at="recipe.context_exchange",
    ),
    option.row(
        "ulysses",
        option.COUNT,
        "Neighbours of a context group that trade heads, under all_to_all_ring.",
        at="recipe.ulysses",
    ),
    option.row(
        "expert-imbalance",
        option.NUMBER,
        "Load of the heaviest experts over the mean; 1 if absent.",
        at="recipe.expert_imbalance",
    ),
    option.row(
        "expert-loads",
        option.LOADS,
        "Tokens of each expert, as 90,110,..., or of the heaviest over the mean, as 1.72 or a "
        "router's balance: auxiliary_loss or loss_free; all alike if absent, as benchmarks force.",
        at="recipe.expert_loads",
    ),
    option.row(
        "capacity-factor",
        option.NUMBER,
        "Pad and drop to this share of the mean load.",
        at="recipe.capacity_factor",
    ),
    option.row(
        "dispatch-dtype",
        option.DTYPE,
        "Of tokens on their way to experts: fp8, bf16, fp16 or fp32; that of activations if "
        "absent.",
        commands="plan sweep estimate whatif",
        at="recipe.dispatch_dtype",
    ),
    option.row(
        "token-dispatcher",
        option.NAME,
        "all_to_all (a copy per expert; if absent) or hierarchical (a copy per node, passed "
        "on inside).",
        commands="plan sweep estimate whatif",
        at="recipe.token_dispatcher",
    ),
    option.row(
        "activation-input-dtype",
        option.DTYPE,
        "In which a feed-forward activation's input waits for backward: fp8 or bf16; as it came "
        "if absent.",
        at="recipe.activation_input_dtype",
    ),
    option.row(
        "fused-update",
        option.SWITCH,
        "One kernel updates all; without it Adam makes a copy of a moment. On if absent.",
        at="recipe.fused_update",
    ),
    option.row(
        "update-in-backward",
        option.SWITCH,
        "Update each weight as its gradient comes, of one microbatch; off if absent.",
        at="recipe.update_in_backward",
    ),
    option.row(
        "loss-chunk",
        option.COUNT_OR_NONE,
        "Tokens whose logits are there at once, computed again backward; 0 for all, as is usual.",
        at="recipe.loss_chunk",
    ),
    option.row(
        "mlp-tile",
        option.COUNT,
        "Tokens that a dense feed-forward part works on at once, again backward; all if absent.",
        at="recipe.mlp_tile",
    ),
    option.row(
        "offload",
        option.SHARES,
        "KIND=SHARE (repeatable) on the host: of activations of blocks, optimizer (states, "
        "updated there), gradients, or weights (ZeRO-3 shards).",
        at="recipe.offload",
    ),
    option.row(
        "offload-modules",
        option.LIST,
        "Whose activations those on the host are: attn_norm, qkv_linear, core_attn, attn_proj, "
        "mlp_norm, expert_fc1, moe_act; of all if absent.",
        metavar="NAMES",
        at="recipe.offload_modules",
    ),
    option.row(
        "cuda-graph",
        option.NAME,
        "Who records what is replayed: local, transformer_engine (both by block), full_iteration, "
        "or none (if absent).",
        at="recipe.cuda_graph",
    ),
    option.row(
        "cuda-graph-modules",
        option.LIST,
        "Of each block, what is recorded: attn, mlp, moe, moe_router, moe_preprocess, mamba; all "
        "if absent.",
        metavar="NAMES",
        at="recipe.cuda_graph_modules",
    ),
    option.row(
        "overlap",
        option.SHARES,
        "KIND=SHARE (repeatable): of gradients, parameters or host (0.9 if absent), tensor or "
        "experts (0), pipeline (1).",
        at="overlap",
        foreign=_OF_A_MODEL,
    ),
    foreign=_HOW_IT_TRAINS,
)
ROWS += option.section(
    "What a device keeps beside the model",
    _BOTH,
    option.row(
        "reserve", option.KEPT, "Memory to keep free; 0 if absent.", at="overheads.reserve_bytes"
    ),
    option.row(
        "workspace",
        option.KEPT,
        "Memory of libraries; 64MiB if absent.",
        at="overheads.workspace_bytes",
    ),
    option.row(
        "fragmentation",
        option.SHARE,
        "What the allocator wastes, of the peak, beside the account; 0 if absent, 0.05 for margins "
        "alone.",
        at="overheads.fragmentation",
    ),
    option.row(
        "fit-probability",
        option.SHARE,
        "With which, by the framework's account, a device must hold the run; 0.5 if absent (of "
        "`fit` 0.9), 0 for the margins alone.",
        at="overheads.fit_probability",
    ),
    foreign=_OF_A_MODEL,
)
ROWS += option.section(
    "Where a run does not fit",
    "estimate",
    option.row(
        "changes",
        option.SWITCH,
        "Price what would make it fit; on in a command, off in Python.",
    ),
)
ROWS += option.section(
    "Training a part of the model",
    _BOTH,
    option.row(
        "lora-rank",
        option.COUNT,
        "Train adapters of this rank, nothing else.",
        also="tuning.low_rank.rank",
    ),
    option.row(
        "lora-targets",
        option.LIST,
        "Products with adapters, as query,value (if absent; all where there are none), or all; "
        "see docs/formats.md.",
        metavar="NAMES",
        also="tuning.low_rank.targets",
    ),
    option.row(
        "lora-dropout",
        option.NUMBER,
        "On an adapter's input; 0 if absent.",
        metavar="SHARE",
        also="tuning.low_rank.dropout",
    ),
    option.row(
        "weight-bits",
        option.COUNT,
        "4 or 8: of the weights beside adapters (QLoRA); 32: FSDP's shards; as trained if absent.",
        also="tuning.low_rank.bits",
    ),
    option.row(
        "freeze-blocks",
        option.COUNT_OR_NONE,
        "Do not train the first N blocks.",
        also="tuning.num_frozen_blocks",
    ),
    option.row(
        "freeze",
        option.EACH,
        "Do not train layers of this kind, as embedding (repeatable).",
        metavar="KIND",
    ),
    option.row(
        "reference",
        option.SWITCH,
        "The model as it was answers each microbatch, too, as for DPO.",
        also="tuning.reference",
    ),
    foreign=_HOW_IT_TRAINS,
)
ROWS += option.section(
    "Several numbers of devices, and what training costs",
    "sweep",
    option.row(
        "sweep",
        option.SWEEPS,
        "A plan for each value of an option, as sequence=2048,4096 (repeatable).",
        at="sweep.values_swept",
    ),
    option.row(
        "objective",
        option.NAME,
        "step-time (if absent), tokens-per-device, cost, energy or devices.",
        at="sweep.objective",
    ),
    option.row(
        "pareto",
        option.NAMES,
        "Mark what no row beats in both, as step-time,cost.",
        metavar="TEXT",
        at="sweep.pareto_objectives",
    ),
    option.row(
        "tokens", option.TOKENS, "Tokens of the whole training, as 15T.", at="training.tokens"
    ),
    option.row(
        "price",
        option.PRICES,
        "Price of a device for an hour; one for each cluster of --sweep cluster=…, as 2.5,1.2.",
        at="training.price_per_hour",
    ),
    option.row(
        "power",
        option.POSITIVE,
        "Watts of a device; its rating if absent.",
        at="training.power_watts",
    ),
    option.row(
        "deadline",
        option.DEADLINE,
        "When the training must be done, as 30d.",
        at="training.deadline_s",
    ),
    option.row("mtbf", option.TIME, "Between failures of one device.", at="training.device_mtbf_s"),
    option.row(
        "checkpoint-bandwidth",
        option.RATE,
        "Of each device to storage.",
        at="training.checkpoint_bytes_per_s",
    ),
    option.row(
        "restart", option.TIME, "From a failure to training again.", at="training.restart_s"
    ),
    option.row(
        "journal", option.PATH, "Write finished searches down; go on from there.", metavar="FILE"
    ),
)
ROWS += option.section(
    "Profiles and placement problems",
    "plan estimate",
    option.row(
        "bandwidth",
        option.RATE,
        "From each device to the others, such as 25GiB/s.",
        at="setting.bandwidth_bytes_per_s",
        foreign=_of_profiles(
            "a model's links come from --cluster: edit its file, or ask whatif --bandwidth "
            "inter=RATE",
            on_a_cluster="links are those of --cluster",
        ),
    ),
    option.row(
        "microbatches",
        option.COUNT,
        "Microbatches per batch of a profile.",
        at="setting.num_microbatches",
        foreign=_of_profiles(
            "those of a model follow from --global-batch, --micro-batch and --dp",
            on_a_cluster="the batch is given as --global-batch",
        ),
    ),
    option.row(
        "point",
        option.COUNT_OR_NONE,
        "Which point of a profile with several (from 0).",
        commands="plan sweep estimate",
        foreign=_of_profiles(
            "a model has no points; leave it out",
            placement="a placement problem has no points; leave it out",
        ),
    ),
    option.row(
        "time-unit",
        option.TEXT,
        "Of the times in a Piper profile: s (if absent), ms, us.",
        commands="plan sweep estimate",
        metavar="UNIT",
        foreign=_of_profiles("times of a model are seconds; leave it out"),
    ),
    option.row(
        "planner",
        option.NAME_OR_CALL,
        "exact, equal or a plug-in; placement: exact, profile.",
        commands="plan",
        default="exact",
        at="flat.planner",
        foreign=_of_profiles("a model has one planner; leave it out", on_a_cluster=_ON_A_CLUSTER),
    ),
    option.row(
        "block-layer",
        option.NAME,
        "Equal split: name of the layers to deal out evenly, or all; transformer blocks if "
        "absent, where there are some.",
        commands="plan",
        at="flat.block_layer",
        foreign=_of_profiles(
            "a model is not split by names of layers; leave it out",
            on_a_cluster=_ON_A_CLUSTER,
            placement="leave it out",
        ),
    ),
    option.row(
        "compare",
        option.ON,
        "Also show restricted modes and equal splits.",
        commands="plan",
        at="compare",
        foreign=_of_profiles(
            "plan a model with each restriction, as --pp 1, and ask diff",
            on_a_cluster=_ON_A_CLUSTER,
            placement="leave it out",
        ),
    ),
    option.row(
        "cost-model",
        option.NAME_OR_CALL,
        "For a placement problem: native, phaze-compat or phaze-general-dag. For a profile: a "
        "plug-in.",
        commands="plan",
        at="request.cost_model",
        foreign={
            option.Kind.MODEL: (
                option.Kind.PLACEMENT,
                "costs of a model come from --cluster and --calibration",
            ),
            option.Kind.MEASURED: (option.Kind.FLAT, _OWN_COSTS),
        },
    ),
)
ROWS += option.section(
    "The search",
    _PLAN,
    option.row(
        "top",
        option.COUNT_OR_NONE,
        "Runners-up to show; 5 if absent.",
        at="request.top",
        foreign=_OF_A_MODEL,
    ),
    option.row(
        "prefer",
        option.TEXT,
        "fastest, or simple: the simpler plan where predictions do not tell the two apart.",
        at="request.prefer",
        foreign=_OF_A_MODEL,
    ),
    option.row(
        "effort",
        option.POSITIVE,
        "How much work search and proof may take; 4: four times the usual.",
        at="request.effort",
        foreign=_OF_A_MODEL,
    ),
    option.row(
        "jobs",
        option.NAME,
        "Processes to search a model's plans with, or dask://HOST:PORT; the same result.",
        metavar="N",
    ),
)
