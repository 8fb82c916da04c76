"""Megatron-LM's arguments, wherever they stand, as a stated run.

The same settings are flags of a script, keys of the YAML of its tests, an argument dump at the top
of a log, keys of Primus and of LLaMA-Factory's Megatron trainer. All are read by the names that
argparse gives them. Flags of five years are known, and those of forks: Megatron-DeepSpeed (with
the JSON that it is given), BigScience's, Alibaba's Pai. Defaults are those of
`megatron/training/arguments.py`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from trainwright.errors import Fault, InvalidInput, one_of
from trainwright.formats.catalog import open_model
from trainwright.frameworks.jobs import script
from trainwright.frameworks.jobs.deepspeed import Sharding, odd_optimizer, sharding_of
from trainwright.frameworks.jobs.megatron_model import hybrid_of, model_of, spelled
from trainwright.frameworks.jobs.settings import (
    NOTHING,
    PROJECTOR,
    TEXT,
    UNDESCRIBED,
    VISION,
    Beside,
    Settings,
    StatedRun,
    catalog_name,
    parse_yaml,
    products_of,
)
from trainwright.frameworks.jobs.torchtitan import logged_tables, read_torchtitan
from trainwright.frameworks.megatron import (
    dispatcher_of,
    exchange_of,
    mapping_of,
    parse_layout,
    stated_graphs,
)
from trainwright.frameworks.shell import Value
from trainwright.model import ContextExchange, TransformerConfig
from trainwright.model.recipe import OFFLOAD_MODULES, model_module_faults
from trainwright.plans.capability import capability_of
from trainwright.plans.plan import usual_schedule
from trainwright.scheduling.families import FAMILIES

# What changes neither the time of a step nor its memory, or hardly.
_HARMLESS: Final = re.compile(
    r"(?:lr|min_lr|warmup|decoupled|weight_decay|start_weight|end_weight|clip_grad|adam_|muon_|"
    r"lion_|seed|init_method|train_|valid_|test_|data_path|data_impl|data_cache|data_args|split|"
    r"eval_|log_|logging_|tensorboard|wandb|save|load|ckpt_|no_load|no_save|exit_|tokenizer_|"
    r"tiktoken|vocab_file|merge_file|mock_data|num_workers|distributed_|master_|node_rank|rdzv|"
    r"dataloader_|timing_|profile|nsys|manual_gc|no_mmap|use_mcore|use_legacy|transformer_impl|"
    r"moe_router_(?!padding)|moe_aux_loss|moe_z_loss|moe_loss|moe_eval|moe_min|moe_permute|"
    r"moe_token_drop|moe_flex|moe_per_layer|async_|rotary_|rope_|use_rotary|use_rope|apply_rope|"
    r"initial_loss|loss_scale|min_loss|hysteresis|norm_epsilon|layernorm_epsilon|"
    r"use_checkpoint|override_opt|attention_softmax|mtp_loss|dist_ckpt|num_dataset|reset_|eod_|"
    r"create_attention|no_create|check_|no_check|finetune|mscale|beta_|yarn_|no_rope|no_masked|"
    r"masked_softmax|no_bias|bias_|no_persist|persist_|apply_layernorm|apply_query|no_query|"
    r"no_gradient_accumulation|gradient_accumulation_fusion|deterministic|short_seq|mask_prob|"
    r"bert_|biencoder|retriever|ict_|block_data|indexer|titles|use_one_sent|evidence|query_in|"
    r"dino_|img_|iter_per|patch_dim|classes_|num_classes|num_channels|vision|head_lr|swin|"
    r"result_rejected|local_rank|rank|lazy_mpu|use_cpu_init|no_async|no_data_sharding|"
    r"empty_unused|spec|squared|export_|inference|max_tokens_to|cuda_graph_(?:warmup|retain|use_single)|"
    r"fp8_(?:margin|interval|amax|wgrad|multi|dot)|no_fp8|barrier|no_barrier|enable_ft|one_logger|"
    r"no_one_logger|straggler|use_pytorch|record_|memory_snapshot|rerun|error_injection|"
    r"consumed|iteration|adlr|glu_linear|activation_func|softmax_type|enable_gpt_oss|dataset|"
    r"max_padding|extra_vocab|patch_tokenizer|task|epochs|lora_alpha|vocab_extra|"
    r"use_dist_ckpt|auto_detect|te_rng|high_priority|nccl_comm|use_nccl|enable_gloo|"
    r"use_gloo|disable_gloo|sft|legacy_tokenizer|trust_remote|overlap_p2p|no_overlap_p2p|"
    r"use_sharp|calculate_per|account_for|codecarbon|kill_switch|abort_on|sync_tp|embed_layernorm|no_log|use_persist|no_ckpt|no_position|outer_dp|enable_exper|disable_bf16|enable_zbh1|"
    r"pp_partition|universal|norm_target|skip_train|reweight|loss_on|no_pipeline|"
    r"deepspeed|zero_|partition_activations|contigious|synchronize_each|"
    r"random_ltd|curriculum|custom_token|layerwise|use_pin|no_pin|create_moe|using_|"
    r"data_efficiency|hidden_size_teacher|teacher|num_layers_teacher|kd|mos|"
    r"test_mode|onnx|dump|disable_last|auto_continue|stderr|sink_level|file_sink|"
    r"primus_turbo|use_turbo_(?!deepep)|enable_primus|disable_wandb|disable_tensor|disable_mlflow|"
    r"DDP_impl|use_te|data_parallel_random|temperature|top_|num_tokens_to|return_log|incoming|"
    r"flash_decode|verify_|no_use_tokenizer|mmap_bin|original_max|torch_profiler|pytorch_prof|"
    r"wall_clock|mlflow|hf_|file_sink|sink_|wandb|log_avg|skip_iter|model_type|framework|config|max_position|"
    r"make_vocab|full_validation|multiple_val|pretrained|exp_|cross_entropy_fusion|"
    r"disable_compile|use_flash|attention_backend|qk_clip|perform_init|"
    r"ddp_(?:bucket|num|average|pad)|ddp_impl|no_contiguous|overlap_|nope|no_align|align_|"
    r"delay_|defer_|fim|rl_|langrl|grpo|heterogeneous_layers|encoder_tensor|encoder_pipeline|"
    r"world_size|data_parallel_size|params_dtype|pad_vocab|num_microbatches|ffn_hidden|"
    r"replication|non_persistent|decrease_batch|skip_|grad_reduce|wgrad|"
    r"turbo_deepep_num|moe_deepep_num|moe_hybridep_num|stage|pp_warmup|mup_|mlperf|batch_p2p|"
    r"repo_path|structured_logs|keep_last|output_dir|metrics|scalar_loss|use_packed|"
    r"use_ring|use_fused|shape_order|handler_name|enable_hf2mg|seq_aux|moe_use_legacy|moe_use_fused|moe_enable|null_tokenizer|step_batch|rampup)"
    r".*"
)
# What changes time or memory and is not priced; named where it is on.
_UNMODELLED: Final = (
    "tp_comm_overlap", "fp8_param_gather", "fp4_param_gather",
    "moe_shared_expert_overlap", "overlap_moe_expert_parallel_comm", "delay_wgrad_compute",
    "min_offloaded_tensor_size", "delta_offload_bytes_across_pp_ranks",
    "moe_pad_expert_input_to_capacity",
    "moe_router_padding_for_fp8", "moe_router_padding_for_quantization",
    "linear_attention_type", "retro_add_retriever", "language_model_type",
    "experimental_attention_variant", "heterogeneous_layers_config_path", "window_size",
    "window_attn_skip_freq", "checkpoint_in_cpu",
    "distribute_saved_activations", "distribute_checkpointed_activations", "cpu_torch_adam",
    "memory_centric_tiled_linear",
    "split_transformers", "use_tutel", "enable_expert_tensor_parallelism",
    "use_turbo_deepep", "use_turbo_attention_fp8", "fp32_residual_connection",
    "moe_layer_recompute", "main_grads_dtype", "linear_attention_freq",
    "use_torch_optimizer_for_cpu_offload",
    "fp16_lm_cross_entropy", "first_last_layers_bf16", "fsdp_double_buffer",
    "nccl_ub", "use_sink_attention", "patch_primus_pipeline",
    "use_turbo_parallel_linear", "attention_config", "sparsity_config",
    "encoder_tensor_model_parallel_size", "encoder_pipeline_model_parallel_size",
    "vision_model_type", "img_h", "random_ltd", "kd", "mos", "load_teacher", "teacher_model",
    "export_kd_teacher_load", "hybrid_attention_ratio", "hybrid_mlp_ratio", "sliding_window",
    "turbo_sync_free_moe_stage", "rlhf_type", "perform_rl_step", "freeze_LM", "freeze_ViT",
    "recompute_vision", "ds_sequence_parallel_fpdt", "packed_sequence", "enable_packed_sequences",
    "torch_compile", "fused_ce_chunks", "use_fsdp2_fp32_param_optimizer", "mup", "peft_dim",
    "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16", "use_bnb_optimizer",
    "megatron_fsdp_main_grads_dtype", "megatron_fsdp_main_params_dtype", "sliding_window_size",
    "defer_embedding_wgrad_compute", "overlap_param_gather_with_optimizer_step",
    "deterministic_mode", "deepspeed_transformer_kernel", "partition_activations",
    "curriculum_learning", "curriculum_learning_legacy", "data_efficiency_curriculum_learning",
    "reuse_fp32_param", "num_layer_list", "moe_alltoall_overlap_comm", "moe_permutation_async_comm",
    "no_bias_gelu_fusion", "no_bias_swiglu_fusion", "no_bias_dropout_fusion",
    "no_masked_softmax_fusion", "no_rope_fusion", "no_persist_layer_norm",
    "no_gradient_accumulation_fusion", "no_fp8_weight_transpose_cache", "enable_primus_turbo",
    "use_turbo_gemm", "use_turbo_grouped_gemm", "use_turbo_rms_norm",
    "use_turbo_fused_act_with_probs", "use_turbo_norm_te_linear",
    "mtp_use_separate_hc_head", "moe_shared_expert_gate", "use_tiling", "parallel_attn",
)  # fmt: skip
# Names of old versions and of forks, as those of today.
_RENAMED: Final = {
    "model_parallel_size": "tensor_model_parallel_size",
    "pipe_parallel_size": "pipeline_model_parallel_size",
    "batch_size": "micro_batch_size",
    "moe_expert_parallel_size": "expert_model_parallel_size",
    "num_key_value_heads": "num_query_groups",
    "num_moe_experts": "num_experts",
    "topk": "moe_router_topk",
    "moe_train_capacity_factor": "moe_expert_capacity_factor",
    "hybrid_override_pattern": "hybrid_layer_pattern",
    "intermediate_size": "ffn_hidden_size",
    "gradient_accumulation_steps": "gas",
    "enable_gradient_checkpointing": "checkpoint_activations",
    "use_custom_fsdp": "use_megatron_fsdp",
    "microbatch_group_size_per_vp_stage": "microbatch_group_size_per_virtual_pipeline_stage",
}
_SECTIONS: Final = re.compile(r"^(?:trainer\.strategy|data|model\.config)\.")  # of NeMo's tests
_NEMO: Final = re.compile(r"trainer\.(?!strategy\.)|log\.")  # how long it trains and what it writes
_SWITCHED_PRECISION: Final = ("bf16", "fp16")
# `--fp8-recipe` → precision; recipes with a scale for each tensor are told in a note.
_RECIPES: Final = {"blockwise": "fp8_blockwise", "mxfp8": "mxfp8"}
_SHARDING: Final = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


# A job of Megatron is told one of these; a script that tells none starts something else.
_TOLD: Final = (
    *("hidden_size", "micro_batch_size", "global_batch_size", "seq_length", "yaml_cfg"),
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "use_checkpoint_args"),
    *("encoder_seq_length", "encoder_num_layers", "use_distributed_optimizer"),
)
# These are told to others, too.
_TOLD_TO_MANY: Final = ("num_layers", "model_type", "deepspeed", "bf16", "fp16")
_OF_OTHERS: Final = {"seq_length", "batch_size", "gradient_accumulation_steps"}
# What programs of Megatron and of its forks are called; others may mean the same words otherwise.
_PROGRAMS: Final = re.compile(r"(?:pretrain|posttrain|finetune|train_rl|megatron)\w*(?:\.py)?")
# Programs that train two encoders, or images: what their arguments describe is not the model.
_UNREAD: Final = re.compile(r"pretrain_(?:ict|realm|biencoder|vision|inpaint|dino)\w*(?:\.py)?")
# Where nothing is started, a list of these alone is no job.
_OF_LAUNCHERS: Final = frozenset(
    {"nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port", "rdzv_endpoint"}
)


def read_megatron(text: str, beside: Beside = NOTHING) -> StatedRun:
    """The run that a script, a file of arguments, a YAML of arguments or a log states."""
    if (dumped := _dump(text)) is not None:
        return _read_dump(text, dumped, beside)
    if re.search(r"^MODEL_ARGS:", text, re.MULTILINE):
        return _read_test(text, beside)
    if re.search(r"^(?:system|experiment):", text, re.MULTILINE):
        return _read_sections(text, beside)
    launch = script.read_launch(text, beside)
    flags = script.flags_of(launch.words)
    if launch.program == "megatron" and "model" in flags:
        return _read_swift(launch, flags, beside)
    found = settings_of(flags)
    if _UNREAD.fullmatch(launch.program):
        problem = f"starts {launch.program}, whose model its arguments do not describe: not read"
        raise InvalidInput.of("script", problem)
    is_known = _PROGRAMS.fullmatch(launch.program) is not None
    told = (*_TOLD, *_TOLD_TO_MANY) if is_known else _TOLD
    is_told = not all(found.is_absent(name) for name in told)
    # Others call a length so, too, or a microbatch by the old word: that alone is no job of it.
    is_told &= is_known or not flags.keys().isdisjoint({*_TOLD, *_RENAMED} - _OF_OTHERS)
    if flags.keys() <= _OF_LAUNCHERS or (launch.program and not is_told):
        start = f"starts {launch.program} with" if launch.program else "has"
        wanted = f"{start} no argument of Megatron that says what is trained"
        fix = "name its format by --from, or give the file of its settings"
        raise InvalidInput.of("script", f"{wanted}: {fix}")
    config = found.value("deepspeed_config") if found.switch("deepspeed") else None
    sharding = None
    if config is not None:
        sharding = _given_sharding(str(config), script.text_beside(str(config), launch, beside))
    devices, degrees = launch.devices, _degrees(found)
    if launch.starts_alone and degrees["tp"] * degrees["pp"] * degrees["cp"] > 1:
        devices = script.STARTED_ELSEWHERE
    rolled = {} if found.is_absent("rollout_batch_size") else _of_rollouts(flags)
    if rolled:
        devices = _of_actor(found) or devices
        found = settings_of({**_ROLLED, **flags, **rolled})
    run = read_arguments(
        found,
        beside,
        devices=devices,
        program=launch.program,
        sharding=sharding,
    )
    notes = launch.notes if not rolled else (*launch.notes, _ROLLED_NOTE)
    if launch.program and not is_known:
        known = f"{launch.program} is not known to be a program of Megatron"
        notes = (f"{known}: its arguments are read as Megatron's", *notes)
    return replace(run, notes=(*notes, *run.notes))


# Reinforcement (slime): what its trainer sets itself, and lengths in the words of its rollouts.
_ROLLED: Final = {"use_distributed_optimizer": True, "bf16": True}
_ROLLED_HARMLESS: Final = re.compile(
    r"(?:rollout|num_rollout|sglang|eval|n_samples|prompt_data|input_key|label_key|metadata|tool|"
    r"apply_chat|rm_|reward|custom|balance_data|advantage|kl_|entropy|eps_clip|ref_|update_weight|"
    r"colocate|critic|use_(?:tis|kl|wandb|slime|rollout|opd|critic|fault|routing)|partial|"
    r"over_sampling|dynamic_sampling|group_rm|use_dynamic|max_tokens_per|log_probs|debug|actor_num|"
    r"train_(?:memory|env|backend)|megatron_to_hf|variable_seq|num_epoch|"
    r"(?:no_)?offload(?:_train|_rollout)?$|"
    r"loss_type|gamma|lambd|normalize|get_mismatch|tis_|buffer|start_rollout|multimodal_keys|"
    r"only_train|ci_|model_name|router|slime|keep_old|calculate_per|num_steps_per|save_debug|load_debug).*"
)
_ROLLED_NOTE: Final = (
    "what the actor trains is priced, of sequences at their longest; generating is not"
)


def _of_rollouts(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Length and microbatch of an actor that trains on what it generates.

    A microbatch holds up to `max_tokens_per_gpu` tokens on each context rank where it is dynamic.
    """
    found = Settings(flags, spelled=spelled, from_words=True)
    whole = found.count("rollout_max_context_len")
    answer, prompt = (found.count(f"rollout_max_{part}_len") for part in ("response", "prompt"))
    length = whole or (None if answer is None else answer + (prompt or 0))
    tokens = found.count("max_tokens_per_gpu")
    given: dict[str, Any] = {}
    if length is not None:
        given["seq_length"] = length
    if found.switch("use_dynamic_batch_size") and tokens and length:
        ranks = found.count("context_parallel_size") or 1
        given["micro_batch_size"] = max(1, tokens * ranks // length)
    answers = (found.count("rollout_batch_size") or 1) * (found.count("n_samples_per_prompt") or 1)
    if (steps := found.count("num_steps_per_rollout")) is not None:
        given["global_batch_size"] = max(1, answers // steps)
    found.check()
    return {**given, **dict.fromkeys(filter(_ROLLED_HARMLESS.fullmatch, flags))}


def _of_actor(found: Settings) -> script.Devices | None:
    nodes, each = found.count("actor_num_nodes"), found.count("actor_num_gpus_per_node")
    if nodes is None and each is None:
        return None
    return script.Devices.on_nodes(nodes, each or 8)  # as its own default is


# `megatron sft` of ms-swift: Megatron's arguments beside a model that is named, with its defaults.
_OF_SWIFT: Final[Mapping[str, Any]] = {
    "bf16": True, "use_distributed_optimizer": True, "recompute_granularity": "selective",
    "cross_entropy_loss_fusion": True, "attention_backend": "flash", "micro_batch_size": "1",
    "global_batch_size": "16", "moe_token_dispatcher_type": "alltoall",
    "expert_tensor_parallel_size": "1",
}  # fmt: skip
_SWIFT_HARMLESS: Final = re.compile(
    r"model_author|model_name|num_train_epochs|logging_steps|save_.*|eval_.*|load_.*|no_.*|lr.*|"
    r".*dataset.*|system|template|report_to|split_.*|streaming|columns|max_epochs|use_hf|"
    r"strict|merge_lora|truncation_strategy|loss_scale|agent_template|add_version|remove_unused.*|"
    r"hub_.*|push_.*|metric_.*|greater_.*|group_by_length|lazy_tokenize|check_model|callbacks|"
    r"attn_impl|cached_.*|packing|padding_free|add_non_thinking_prefix|enable_thinking|response_.*"
)
# What does not train of a model that takes images, unless it is said; its text does.
_OF_TEXT: Final = "freeze_llm"
_OF_PARTS: Final = {"freeze_vit": VISION, "freeze_aligner": PROJECTOR, _OF_TEXT: TEXT}
_FULL_PRECISION: Final = {"float16": "fp16", "float32": None}


def _read_swift(launch: script.Launch, flags: Mapping[str, Any], beside: Beside) -> StatedRun:
    values = {**_OF_SWIFT, **flags}
    name, tuned = values.pop("model"), values.pop("tuner_type", values.pop("train_type", "full"))
    said = Settings(flags, from_words=True)
    if (kind := said.text("torch_dtype")) in _FULL_PRECISION:
        del values["bf16"]
        if other := _FULL_PRECISION[kind or ""]:
            values[other] = True
    rank, targets = said.count("lora_rank") or 8, said.texts("target_modules")
    length = said.count("max_length")
    if length is not None:
        values["seq_length"] = length
    frozen = [part for key, part in _OF_PARTS.items() if said.switch(key, default=key != _OF_TEXT)]
    said.check()
    if values.get("recompute_granularity") == "none":
        del values["recompute_granularity"]
    if values.get("use_megatron_fsdp"):
        values.setdefault("data_parallel_sharding_strategy", "optim_grads_params")
    adapters: dict[str, Any] = {"freeze": tuple(chain(*frozen)) or None}
    if str(tuned).startswith("lora"):
        adapters = {"lora_rank": rank, "lora_targets": products_of(targets or ("all-linear",))}
    for key in ("torch_dtype", "max_length", "lora_rank", "target_modules", *_OF_PARTS):
        values.pop(key, None)
    kept = {key: value for key, value in values.items() if not _SWIFT_HARMLESS.fullmatch(key)}
    run = read_arguments(
        settings_of(kept), beside, devices=launch.devices, num_layers=layers_named(name)
    )
    shown = name.shown() if isinstance(name, Value) else str(name)
    notes = (*launch.notes, *(note for note in run.notes if UNDESCRIBED not in note))
    return replace(run, **adapters, model_name=shown, notes=notes)


def layers_named(name: object) -> int | None:
    """Of how many blocks the model is that the catalog has by a name; None where it lacks it."""
    known = catalog_name(str(name))
    return None if known is None else open_model(known).config.num_layers


_HOST_KILLED: Final = re.compile(r"oom[_-]kill\w*|OOM Killed|Out of memory: Kill\w+ process")


def read_log(text: str, beside: Beside = NOTHING) -> StatedRun:
    """The run of a log that begins with its settings; raises `InvalidInput` where none are."""
    dumped = _dump(text)
    if dumped is None and logged_tables(text) is not None:
        return read_torchtitan(text, beside)
    if dumped is None and (said := _HOST_KILLED.search(text)) is not None:
        problem = f"says that a host's memory ran out ({said[0]}), and of no device's"
        raise InvalidInput.of("log", f"{problem}: leave less there, as by --offload")
    if dumped is None:
        wanted = "must hold Megatron's arguments or torchtitan's configuration (print_config)"
        other = "other logs are read behind the command that started them, as --from trl"
        raise InvalidInput.of("log", f"{wanted}; {other}")
    return _read_dump(text, dumped, beside)


def settings_of(values: Mapping[str, Any]) -> Settings:
    """The arguments by their names of today, to be read."""
    named = {}
    for name, value in values.items():
        plain = _SECTIONS.sub("", name.lstrip("-").replace("-", "_"))
        if value != "None":  # a word of Primus's command line for what is not set
            named[_RENAMED.get(plain, plain)] = _words(value) if isinstance(value, list) else value
    return Settings(named, spelled=spelled, from_words=True)


def _words(values: list[Any]) -> tuple[Any, ...]:
    """A list of a table as the words of a flag."""
    return tuple(str(each) if type(each) is int else each for each in values)


def _given_sharding(path: str, text: str | None) -> Sharding | None:
    """What the JSON of DeepSpeed says that a script writes, or that lies beside it.

    None where there is none, or where the script fills in what is not known. Raises `InvalidInput`
    for one that breaks a rule.
    """
    if text is None or _UNFILLED.search(text):
        return None
    try:
        found = Settings(parse_yaml(text), from_words=True)
        sharding = sharding_of(found)
        found.check()
    except InvalidInput as error:
        named = (Fault(f"{path}: {each.path}", each.problem) for each in error.faults)
        raise InvalidInput(named) from None
    return sharding


_UNFILLED: Final = re.compile(r"\$[({\w]")


# The YAML of its tests, and the dump at the top of a log
# -------------------------------------------------------

_DUMPED: Final = re.compile(
    r"^[^\n]{0,40}-{6,}\s*arguments\s*-{6,}\s*$(.*?)^[^\n]{0,40}-{6,}\s*end of arguments",
    re.MULTILINE | re.DOTALL,
)
_ENTRY: Final = re.compile(r"(?:^|[\s:\]])\s*([A-Za-z]\w*)(?: \.{2,}|  )\s*(.*?)\s*$")
_PADDED: Final = re.compile(r"padded vocab \(size: (\d+)\)")


def _read_test(text: str, beside: Beside) -> StatedRun:
    values = parse_yaml(text, variables=beside.variables).get("MODEL_ARGS")
    if not isinstance(values, dict):
        raise InvalidInput.of("MODEL_ARGS", "must be a mapping of arguments")
    # They are written into a script, whose shell takes off what quotes a sign.
    values = {k: v.replace("\\", "") if isinstance(v, str) else v for k, v in values.items()}
    nodes, each = values.pop("trainer.num_nodes", 1), values.pop("trainer.devices", None)
    if each is None:
        return read_arguments(settings_of(values), beside)
    usual = {"bf16": True, "use_distributed_optimizer": True}  # of NeMo's recipes
    values = {name: value for name, value in values.items() if not _NEMO.match(name)}
    total = nodes * each if type(nodes) is int and type(each) is int else None
    note = "what is not here is that of a recipe of NeMo: bf16, and ZeRO 1, are taken for granted"
    devices = script.Devices(total=total, per_node=each if total else None, notes=(note,))
    return read_arguments(settings_of({**usual, **values}), beside, devices=devices)


def _read_sections(text: str, beside: Beside) -> StatedRun:
    """Arguments in tables of a YAML (FlagScale), or the experiment that starts them."""
    whole = parse_yaml(text, variables=beside.variables)
    experiment = whole.get("experiment")
    runner = Settings(experiment if isinstance(experiment, dict) else {}).table("runner")
    nodes, each = runner.count("nnodes"), runner.count("nproc_per_node")
    runner.check()
    devices = _OPEN if each is None else script.Devices.on_nodes(nodes, each)
    if "model" not in whole:
        chosen = [each for each in whole.get("defaults") or () if isinstance(each, dict)]
        name = next((str(each["train"]) for each in chosen if "train" in each), "")
        inner = script.text_beside(
            f"train/{name}.yaml", script.Launch(program="", words=()), beside
        )
        if inner is None:
            problem = f"must have its table of {name} beside it: give train/{name}.yaml"
            raise InvalidInput.of("defaults", problem)
        whole |= parse_yaml(inner, variables=beside.variables)
    values: dict[str, Any] = {}
    for part in ("system", "model", "data"):
        table = whole.get(part)
        values |= dict(_flattened(table if isinstance(table, dict) else {}))
    return read_arguments(settings_of(values), beside, devices=devices)


def _flattened(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(value)
        else:
            yield str(name), value


def is_dump(text: str) -> bool:
    """Whether a text is a log that begins with its arguments."""
    return _dump(text) is not None


def _dump(text: str) -> str | None:
    found = _DUMPED.search(text)
    return None if found is None else found[1]


def _read_dump(text: str, dumped: str, beside: Beside) -> StatedRun:
    values: dict[str, Any] = {}
    for line in dumped.splitlines():
        if entry := _ENTRY.search(line):
            values.setdefault(entry[1], _literal(entry[2]))
    if (padded := _PADDED.search(text)) is not None:
        values["vocab_size"] = int(padded[1])
    size = values.get("world_size")
    devices = script.Devices(total=size if type(size) is int and size > 0 else None)
    return read_arguments(settings_of(values), beside, devices=devices, is_dump=True)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


# All arguments
# -------------


_OPEN: Final = script.Devices()


def read_arguments(
    found: Settings,
    beside: Beside,
    *,
    devices: script.Devices = _OPEN,
    program: str = "",
    sharding: Sharding | None = None,
    is_dump: bool = False,
    names_unknown: bool = True,
    num_layers: int | None = None,
) -> StatedRun:
    """The run that arguments state; raises `InvalidInput` with every fault.

    `num_layers` are those of a model that the file names and does not describe.
    """
    where = program or f"{beside.folder or ''}/{beside.name}"  # tests are named by their folder
    kind = next((kind for kind in ("bert", "t5") if kind in where.lower()), "gpt")
    notes: list[str] = list(devices.notes)
    model = model_of(found, beside, kind, notes)
    size = found.count("micro_batch_size")
    accumulated = found.count("gas")
    recompute = _recompute(found, notes)
    numbers = _numbers(found, notes)
    zero, offload = _sharded(found, sharding, numbers["precision"], notes)
    if model is not None:
        num_layers = model.num_layers
    offload += _activations_moved(found, num_layers, notes)
    modules = _modules_moved(found, model, notes)
    if modules:
        fraction = found.number("activation_offload_fraction")
        offload += (f"{1.0 if fraction is None else fraction:g} of activations to cpu",)
    pipeline = _pipeline(found, num_layers)
    degrees = _degrees(found)
    batch = found.count("global_batch_size")
    if batch is None and accumulated and size and devices.total:
        group = degrees["tp"] * degrees["pp"] * degrees["cp"]
        batch = accumulated * size * max(1, devices.total // group)
    dispatcher = found.text("moe_token_dispatcher_type")
    mapping = mapping_of(found.switch("use_tp_pp_dp_mapping"))
    run = StatedRun(
        **degrees,
        **pipeline,
        **recompute,
        **numbers,
        micro_batch=size,
        global_batch=batch,
        batch_per_replica=size,
        sequence=_sequence(found, kind, notes),
        vocabulary_multiple=found.count("make_vocab_size_divisible_by"),
        fused_cross_entropy=found.switch("cross_entropy_loss_fusion") or None,
        flash_attention=_fused_attention(found, notes),
        zero=zero,
        state_copies=found.count("num_distributed_optimizer_instances"),
        mapping=mapping,
        overlap=_overlap(found, sharding, zero),
        offload=offload,
        offload_modules=modules or None,
        activation_input_dtype="fp8" if found.switch("activation_func_fp8_input_store") else None,
        capacity_factor=_capacity(found),
        **_graphs(found),
        token_dispatcher=dispatcher_of(dispatcher),
        model=model,
        num_devices=devices.total,
        devices_per_node=devices.per_node,
    )
    notes += _notes(found, degrees, dispatcher)
    unknown, changing = found.remarks(
        harmless=_HARMLESS,
        unmodelled=_UNMODELLED,
        names_unknown=names_unknown and not is_dump,
    )
    return replace(run, unknown=unknown, notes=(*notes, *changing))


def _degrees(found: Settings) -> dict[str, Any]:
    tensor = found.count("tensor_model_parallel_size") or 1
    heads = found.count("ds_sequence_parallel_size") or 1
    context = found.count("context_parallel_size") or 1
    return {
        "tp": tensor,
        "pp": found.count("pipeline_model_parallel_size", least=0) or 1,
        "cp": context * heads,
        **_exchange(found, context, heads),
        "ep": found.count("expert_model_parallel_size") or 1,
        "etp": found.count("expert_tensor_parallel_size"),
        "sequence_parallel": found.switch("sequence_parallel") and tensor > 1,
    }


def _exchange(found: Settings, context: int, heads: int) -> dict[str, Any]:
    """How context ranks meet; `heads` of them trade heads by an argument of Megatron-DeepSpeed."""
    if heads > 1:
        both = {"context_exchange": "all_to_all_ring", "ulysses": heads}
        return both if context > 1 else {"context_exchange": "all_to_all"}
    kinds = dict.fromkeys(found.texts("cp_comm_type"))
    sizes = found.texts("hierarchical_context_parallel_sizes")
    if len(kinds) > 1:
        wanted = "must be the same for all layers to be priced"
        found.fault("cp_comm_type", f"{wanted}, got {', '.join(kinds)}")
    kind = exchange_of(next(iter(kinds), None))
    if kind is not ContextExchange.ALL_TO_ALL_RING:
        return {"context_exchange": None if kind is None else str(kind)}
    if context == 1:
        return {"context_exchange": None}
    if len(sizes) != _TWO_LEVELS or not all(each.isdecimal() for each in sizes):
        shown = " ".join(sizes) or "none"
        wanted = "must be two sizes, of all-to-all and of the ring"
        found.fault("hierarchical_context_parallel_sizes", f"{wanted}, got {shown}")
        return {"context_exchange": None}
    return {"context_exchange": str(kind), "ulysses": int(sizes[0])}


_TWO_LEVELS: Final = 2


def _graphs(found: Settings) -> dict[str, Any]:
    """CUDA graphs; the scope of old is called modules today."""
    scope = [*found.texts("cuda_graph_scope"), *found.texts("cuda_graph_modules")]
    return stated_graphs(
        found.text("cuda_graph_impl"),
        chain.from_iterable(each.replace(",", " ").split() for each in scope),
        own=bool(found.switch("enable_cuda_graph")),
        foreign=bool(found.switch("external_cuda_graph")),
    )


def _sequence(found: Settings, kind: str, notes: list[str]) -> int | None:
    decoder, encoder = found.count("decoder_seq_length"), found.count("encoder_seq_length")
    if kind == "t5" and decoder is not None and decoder != encoder:
        notes.append(f"--decoder-seq-length {decoder} is priced as the encoder's {encoder}")
    stated = found.count("seq_length")
    if decoder is not None and not _OF_IMAGES.isdisjoint(found):
        return decoder  # the other length is that of an image
    return stated or encoder


# Arguments that Megatron's program for text behind images adds to the others.
_OF_IMAGES: Final = frozenset({"language_model_type", "vision_model_type", "freeze_LM"})


def _pipeline(found: Settings, num_layers: int | None) -> dict[str, Any]:
    ranks = found.count("pipeline_model_parallel_size", least=0) or 1
    blocks: tuple[int, ...] | None
    layout, (parts, _) = found.text("pipeline_model_parallel_layout"), hybrid_of(found)
    if len(parts) > 1:
        if len(parts) % ranks:
            problem = f"must have a multiple of {ranks} stages, got {len(parts)}"
            found.fault("hybrid_layer_pattern", problem)
        chunks, blocks = max(1, len(parts) // ranks), tuple(map(len, parts))
    elif layout is not None:
        found.value("virtual_pipeline_model_parallel_size")  # the layout says it, too
        stages = parse_layout(layout.strip("'\""))  # Primus takes a quoted one
        if len(stages) % ranks:
            problem = f"must have a multiple of {ranks} stages, got {len(stages)}"
            found.fault("pipeline_model_parallel_layout", problem)
        chunks = max(1, len(stages) // ranks)
        blocks = tuple(stage.count("t") for stage in stages)
    else:
        chunks = _chunks(found, ranks, num_layers)
        blocks = _uneven(found, ranks, num_layers) if chunks == 1 else None
    return {"virtual_stages": chunks, "blocks": blocks, "schedule": _schedule(found, ranks, chunks)}


def _schedule(found: Settings, ranks: int, chunks: int) -> str:
    """The family that a switch turns on, where it runs so many chunks; else the usual one."""
    for family in FAMILIES.values():
        if any(map(found.switch, family.switches)) and ranks > 1 and family.num_chunks == chunks:
            return family.name
    return usual_schedule(chunks)


def _chunks(found: Settings, ranks: int, num_layers: int | None) -> int:
    stated = [
        found.count(name)
        for name in (
            "num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size",
        )
    ]  # fmt: skip
    if (named := next(filter(None, stated), None)) is not None:
        return named if ranks > 1 else 1
    each = found.count("num_layers_per_virtual_pipeline_stage")
    if each is None:
        return 1
    ends = found.switch("account_for_embedding_in_pipeline_split") + found.switch(
        "account_for_loss_in_pipeline_split"
    )
    if num_layers is None:
        counted = found.count("num_layers")
        num_layers = counted
    if num_layers is None or (num_layers + ends) % (ranks * each):
        problem = f"must divide the layers of a rank, got {each}"
        found.fault("num_layers_per_virtual_pipeline_stage", problem)
        return 1
    return (num_layers + ends) // (ranks * each)


def _uneven(found: Settings, ranks: int, num_layers: int | None) -> tuple[int, ...] | None:
    first = found.count("decoder_first_pipeline_num_layers", least=0)
    last = found.count("decoder_last_pipeline_num_layers", least=0)
    parts = found.text("pp_partition_method") or ""
    if num_layers is not None and ranks > 1 and "embedding" in parts:
        return _counted_with_ends(num_layers, ranks)
    if num_layers is None or (first is None and last is None):
        return None
    middle = ranks - (first is not None) - (last is not None)
    left = num_layers - (first or 0) - (last or 0)
    if middle == 0 or left % middle or left < 0:
        problem = f"must leave a multiple of {middle} stages, got {left} layers"
        found.fault("decoder_first_pipeline_num_layers", problem)
        return None
    ends = [[] if count is None else [count] for count in (first, last)]
    return (*ends[0], *[left // middle] * middle, *ends[1])


def _counted_with_ends(num_layers: int, ranks: int) -> tuple[int, ...]:
    """DeepSpeed's `type:transformer|embedding`: blocks, embedding and tied head count alike.

    The list of all layers is cut so that no part holds more than needed; the embedding is the
    first of them, the head the last.
    """
    share, rest = divmod(num_layers + 2, ranks)
    counts = [share + (rank < rest) for rank in range(ranks)]
    counts[0] -= 1
    counts[-1] -= 1
    return tuple(counts)


def _recompute(found: Settings, notes: list[str]) -> dict[str, Any]:
    granularity = found.text("recompute_granularity")
    method = found.text(found.first("activations_checkpoint_method", "recompute_method"))
    layers = found.count(
        found.first("activations_checkpoint_num_layers", "recompute_num_layers"), least=0
    )
    modules = found.texts("recompute_modules")
    if granularity is None and (
        found.switch("checkpoint_activations")
        or (method in ("uniform", "block") and not found.is_absent("activations_checkpoint_method"))
    ):
        granularity = "full"  # until 2022
    found.value("checkpoint_num_layers")
    if found.switch("recompute_activations") and granularity is None:
        granularity = "selective"
    if granularity is None:
        return {"recompute": "none"}
    if granularity == "selective":
        given = tuple(chain.from_iterable(each.strip("[]").split() for each in modules))
        given = given or ("core_attn",)
        known = {*(capability_of("megatron").modules or {}).values()} | {"moe_act"}
        notes += [
            f"--recompute-modules {name} is not priced: it repeats a whole module"
            for name in given
            if name not in known
        ]
        return {"recompute": "selective", "recompute_modules": _our_modules(given)}
    if granularity != "full":
        found.fault("recompute_granularity", f'must be full or selective, got "{granularity}"')
    if method == "block":
        return {"recompute": f"full:{layers or 1}"}
    return {"recompute": "full"}


def _our_modules(given: tuple[str, ...]) -> tuple[str, ...] | None:
    names = capability_of("megatron").modules or {}
    ours = {theirs: own for own, theirs in names.items()}
    return tuple(dict.fromkeys(ours[name] for name in given if name in ours)) or None


def _numbers(found: Settings, notes: list[str]) -> dict[str, Any]:
    name = found.text("optimizer") or "adam"
    moving = found.number("sgd_momentum")
    if name == "sgd":  # Megatron's momentum is 0.9 unless it is said
        optimizer = "sgd" if moving is not None and moving <= 0 else "momentum"
    elif "muon" in name:
        optimizer = "muon"
    else:
        optimizer = "lion" if name == "lion" else "adam"
        notes += odd_optimizer(name)
    precision = next((each for each in _SWITCHED_PRECISION if found.switch(each)), "fp32")
    eight = found.text(found.first("fp8_format", "fp8"))
    eight_old = found.switch("fp8_e4m3") or found.switch("fp8_hybrid")
    recipe = found.text("fp8_recipe")
    if eight not in (None, "None", "False", "false") or eight_old:
        if precision == "fp32":
            notes.append("--fp8-format without --bf16: what is not in 8 bit is priced as bf16")
        alone = found.switch("fp8_param_gather")  # no 16-bit weights beside
        precision = "fp8" if alone else _RECIPES.get(recipe or "delayed", "fp8")
        if precision == "fp8" and not alone:
            notes.append(
                "--fp8-format without --fp8-param-gather keeps 16-bit weights, too: --precision "
                "fp8_delayed counts them"
            )
    four = found.text(found.first("fp4_format", "fp4"))
    if four not in (None, "None", "False", "false"):
        precision = "fp4" if found.switch("fp4_param_gather") else "nvfp4"
    numbers: dict[str, Any] = {
        "precision": precision,
        "optimizer": optimizer,
        "gradient_dtype": "bf16" if found.switch("grad_reduce_in_bf16") else None,
    }
    if found.switch("accumulate_allreduce_grads_in_fp32"):
        numbers["gradient_dtype"] = None
    kept = [found.text(each) or "fp32" for each in ("exp_avg_dtype", "exp_avg_sq_dtype")]
    main = found.text("main_params_dtype") or "fp32"
    if found.switch("use_precision_aware_optimizer"):
        words = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}
        numbers["moment_dtypes"] = tuple(dict.fromkeys(words.get(each, each) for each in kept))
        if words.get(main, main) != "fp32" or precision == "fp32":
            numbers["main_weight_dtype"] = words.get(main, main)
    return numbers


def _activations_moved(
    found: Settings, num_layers: int | None, notes: list[str]
) -> tuple[str, ...]:
    """Of the first so many layers; Transformer Engine spreads their copies over all layers."""
    count = found.count("cpu_offloading_num_layers", least=0)
    if not found.switch("cpu_offloading") and not count:
        return ()
    layers = num_layers or found.count("num_layers")
    if not count or layers is None:
        return ("activations to cpu" if not count else f"activations of {count} layers to cpu",)
    if count == layers - 1:
        notes.append(f"--cpu-offloading-num-layers {count} overlaps no copies: priced as if it did")
    return (f"{count / layers:.6g} of activations to cpu",)


def _modules_moved(
    found: Settings, model: TransformerConfig | None, notes: list[str]
) -> tuple[str, ...]:
    """Modules that leave on the host what they keep; Megatron passes over those it has not.

    Norms are part of the products behind them but for latent attention and experts.
    """
    named = chain.from_iterable(e.replace(",", " ").split() for e in found.texts("offload_modules"))
    modules = tuple(dict.fromkeys(each.strip("[]'\"") for each in named))
    if not found.switch("fine_grained_activation_offloading"):
        return ()
    if "fused_group_mlp" in modules:
        notes.append("--offload-modules fused_group_mlp is priced as expert_fc1 and moe_act")
        both = (("expert_fc1", "moe_act") if m == "fused_group_mlp" else (m,) for m in modules)
        modules = tuple(dict.fromkeys(chain.from_iterable(both)))
    absent = () if model is None else [m for m in modules if any(model_module_faults(model, (m,)))]
    notes += [f"--offload-modules {name} moves nothing of such a model" for name in absent]
    unknown = [name for name in modules if name not in OFFLOAD_MODULES]
    notes += [f"--offload-modules {name} is not priced" for name in unknown]
    return tuple(name for name in modules if name not in (*absent, *unknown))


def _sharded(
    found: Settings, sharding: Sharding | None, precision: str, notes: list[str]
) -> tuple[int, tuple[str, ...]]:
    """The ZeRO stage and what lies in the host's memory."""
    offload = list[str]()
    moved = found.number("optimizer_offload_fraction")
    if found.switch("optimizer_cpu_offload") or found.switch("cpu_optimizer"):
        offload.append(f"{1.0 if moved is None else moved:g} of optimizer to cpu")
    if "cpu" in (found.text("optimizer") or ""):  # Pai's cpu-adam
        offload.append("optimizer to cpu")
    if found.text("optimizer_offload") not in (None, "False", "false", "none"):
        offload.append("optimizer to cpu")
    if (policy := found.text("optimizer_offload_policy")) is not None:  # Pai's hybridadam
        offload.append(f"{1.0 if moved is None else moved:g} of optimizer to cpu")
        if policy != "static":
            notes.append(f"--optimizer-offload-policy {policy} is priced as the whole optimizer's")
    strategy = found.text("data_parallel_sharding_strategy") or "no_shard"
    stated = found.count("zero_stage", least=0, most=3)
    is_sharded = found.switch("use_distributed_optimizer")
    if found.switch("deepspeed"):
        stage = stated if sharding is None else sharding.zero
        if sharding is not None:
            offload += sharding.offload
        elif stated is None:
            notes.append("the JSON of --deepspeed-config is not beside the script: ZeRO 0")
        if precision == "bf16" and not stage:
            stage = 1  # its optimizer for bf16 shards what it keeps
        return stage or 0, tuple(dict.fromkeys(offload))
    if found.switch("use_torch_fsdp2"):
        return (2 if found.switch("torch_fsdp2_no_reshard_after_forward") else 3), tuple(offload)
    if found.switch("use_megatron_fsdp"):
        if strategy not in _SHARDING:
            problem = one_of(_SHARDING, strategy)
            found.fault("data_parallel_sharding_strategy", problem)
        return _SHARDING.get(strategy, 0), tuple(offload)
    return int(is_sharded), tuple(dict.fromkeys(offload))


def _overlap(found: Settings, sharding: Sharding | None, zero: int) -> dict[str, float]:
    """What a Megatron job does not ask for does not overlap."""
    if sharding is not None:
        return dict(sharding.overlap)
    if zero >= 2:
        return {}  # FSDP overlaps by itself
    return {
        "gradients": 0.9 if found.switch("overlap_grad_reduce") else 0.0,
        "parameters": 0.9 if found.switch("overlap_param_gather") else 0.0,
    }


_FUSED: Final = (
    "use_flash_attn", "use_flash_attn_v1", "use_flash_attn_v2", "use_flash_attn_triton",
    "use_flash_attn_builder", "use_turbo_attention",
)  # fmt: skip
# Flags of the years in which attention was fused only where a script said so.
_OLD: Final = (
    "DDP_impl", "checkpoint_activations", "activations_checkpoint_method", "use_legacy_models",
    "no_scaled_masked_softmax_fusion",
)  # fmt: skip


def _fused_attention(found: Settings, notes: list[str]) -> bool | None:
    """False where attention keeps its scores: Megatron's own code, unless it is told otherwise."""
    said = [name for name in _FUSED if found.switch(name)]
    own = found.value("transformer_impl") == "local" or found.switch("deepspeed")
    backend = found.text("attention_backend")
    if backend not in (None, "auto"):
        return False if backend in ("unfused", "local") else None
    if said or not (own or any(name in found for name in _OLD)):
        return None
    notes.append("attention is not fused: no --use-flash-attn, as its framework needs")
    return False


def _capacity(found: Settings) -> float | None:
    """The capacity of experts; DeepSpeed's counts where tokens are dropped."""
    factor = found.number("moe_expert_capacity_factor")
    drops = not found.switch("disable_moe_token_dropping")
    return factor if drops and factor is not None and factor > 0 else None


def _notes(found: Settings, degrees: dict[str, Any], dispatcher: str | None) -> Iterator[str]:
    """Settings that are read and priced as something near."""
    if (ramp := found.value("rampup_batch_size")) is not None:
        shown = " ".join(map(str, ramp)) if isinstance(ramp, (list, tuple)) else ramp
        yield f"--rampup-batch-size {shown}: the step is that of the whole batch"
    if found.value("step_batch_size_schedule") is not None:
        yield "--step-batch-size-schedule: the step is that of the whole batch"
    gathers = degrees["ep"] > 1 and (dispatcher or "allgather") == "allgather"
    if gathers and found.value("deepspeed") is None:
        yield "--moe-token-dispatcher-type allgather is priced as alltoall"
    group = found.count("microbatch_group_size_per_virtual_pipeline_stage")
    if group is not None and group != degrees["pp"]:
        yield f"a microbatch group of {group} is priced as {degrees['pp']}, the pipeline's size"
    if found.switch("enable_zb_runtime") or found.switch("zero_bubble_v_schedule"):
        yield "zero-bubble schedules of this fork are priced as 1F1B; give --schedule"
    for name in ("nnodes", "nproc_per_node"):
        found.value(name)
    spec = found.texts("spec")
    if found.is_absent("hybrid_layer_pattern") and any(
        re.search("mamba|hybrid", each) for each in spec
    ):
        yield f"--spec {' '.join(spec)}: every layer is priced as attention and feed-forward"
    if (expert := found.value("expert_parallel")) is not None and expert is not False:
        yield "--expert-parallel: experts are dealt out over all replicas; give --ep"
