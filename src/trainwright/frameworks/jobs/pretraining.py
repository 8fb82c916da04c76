"""YAML files of trainers that describe their model in full, or name a preset of it.

GPT-NeoX, nanotron, LLM-foundry, OLMo, MaxText and Primus, which drives Megatron-LM, torchtitan and
MaxText. Defaults are those of `neox_arguments/neox_args.py`, `nanotron/config`,
`llmfoundry/models/mpt/configuration_mpt.py`, `olmo/config.py`, `maxtext/configs/base.yml` and
`primus/configs`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from trainwright.errors import InvalidInput, one_of
from trainwright.formats.atomic_file import read_bytes
from trainwright.frameworks.jobs import megatron_model, settings
from trainwright.frameworks.jobs.bridge import adapters_of, run_of, unsaid_of
from trainwright.frameworks.jobs.deepspeed import odd_optimizer, optimizer_of, sharding_of
from trainwright.frameworks.jobs.megatron import layers_named, read_arguments, settings_of
from trainwright.frameworks.jobs.megatron_model import OF_PRESETS, preset_changes
from trainwright.frameworks.jobs.script import (
    is_beside_others,
    is_maxtext_script,
    overrides_of,
    read_launch,
)
from trainwright.frameworks.jobs.torchtitan import read_tables
from trainwright.model import StateSpace, TransformerConfig
from trainwright.model.config import Activation, BlockChoice, Experts, Norm
from trainwright.plans.capability import capability_of


def _read(text: str, beside: settings.Beside) -> settings.Settings:
    return settings.Settings(
        settings.parse_settings(text, variables=beside.variables), from_words=True
    )


# GPT-NeoX
# --------

_NEOX_HARMLESS: Final = re.compile(
    r"(?:lr|min_lr|warmup|train_|valid_|test_|data_|label_|eval_|log_|save|load|checkpoint_factor|"
    r"checkpoint_scale|checkpoint_valid|extra_save|tokenizer_type|vocab_file|merge_file|seed|"
    r"distributed_backend|clip_grad|gradient_clipping|weight_decay|init_method|output_layer_|"
    r"use_wandb|wandb|tensorboard|print|steps_per|wall_clock|split|num_workers|master|launcher|"
    r"hostfile|deepspeed|user_script|optimizer|norm|rms_norm|layernorm|use_bias|bias_|scaled_|"
    r"rope_fusion|rotary|gpt_j|scalenorm|keep_last|max_position|mlp_multiple|mup|use_shared|"
    r"synchronize|partition_activations|contiguous|do_|finetune|attention_softmax|loss_|"
    r"precision|override|short_seq|pack|eod|make_vocab|fp16|bf16|attention_config|attention_dropout|"
    r"attention_probs|hidden_dropout|zero_|pipe_partition|soft_prompt|adam|hysteresis|"
    r"comet|peak|profile|nsight|memory_profil|monitor|force_multi|detect_nvlink|sparsity|"
    r"iteration|dump|prescale|gradient_pred|communication|fp32_allreduce|exit_interval|"
    r"include|exclude|checkpoint_in|reset_|s3_|text_gen|sample_|mmap|apply_query|pos_emb|"
    r"activation|num_gpus|optim|use_checkpoint|no_ssh|dataset|shuffle|curriculum|moe_loss|"
    r"te_fp8_|mamba_causal|decay_lr|comment|gmlp_|autotuning|use_tutel|use_qk|serve|allow_chopped|causal|keep)"
    r".*"
)
_NEOX_UNMODELLED: Final = (
    "mamba_selective_scan_fusion", "ws_config", "checkpoint_in_cpu", "expansion_factor",
    "te_layernorm_mlp", "fp8_params", "gpt_j_residual", "te_mha", "te_fp8_format", "te_fp8_mha",
    "use_bnb_optimizer", "sliding_window_width", "attention_type", "mamba_inner_func_fusion",
    "data_efficiency.enabled", "curriculum_learning.enabled",
    "autotuning.enabled", "gmlp_attn_dim",
)  # fmt: skip


def read_neox(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A file of GPT-NeoX: Megatron's names of 2021, and DeepSpeed's settings beside them."""
    flat = settings.parse_settings(text.replace("\t", " "), variables=beside.variables)
    found = settings.Settings({k.replace("-", "_"): v for k, v in flat.items()}, from_words=True)
    sharding = sharding_of(found)
    size, steps = sharding.micro_batch, sharding.steps or 1
    tensor = found.count("model_parallel_size") or 1
    pipeline = found.count("pipe_parallel_size", least=0) or 1
    layers, hidden = found.count("num_layers"), found.count("hidden_size")
    heads = found.count("num_attention_heads")
    vocabulary = beside.vocabulary or found.count("vocab_size")
    notes = list[str]()
    if vocabulary is None:
        kind, file = found.text("tokenizer_type"), found.text("vocab_file")
        vocabulary = megatron_model.vocabulary_of(kind or "GPT2BPETokenizer", file)
        if vocabulary is not None:
            shown = kind or "GPT2BPETokenizer"
            notes.append(
                f"the vocabulary of {vocabulary} is that of {shown}; --vocab-size replaces it"
            )
    activation = found.text("activation") or "gelu"
    gated = activation.lower() in ("swiglu", "geglu", "reglu", "bilinear", "glu")
    width = found.count("intermediate_size")
    if width is None:
        width = (hidden or 0) * (8 if gated else 4)
    elif gated:
        width //= 3  # both halves of the gate and the way back are counted in it
    if gated and found.is_absent("intermediate_size"):
        width //= 3
    step = found.count("mlp_multiple_of") or 1
    if width % step:
        rounded = -(-width // step) * step
        notes.append(f"the ffn width {width} is rounded up to {rounded}: mlp_multiple_of {step}")
        width = rounded
    position = found.text("pos_emb") or "learned"
    positions = found.count("max_position_embeddings") or 0
    experts = _neox_experts(found, layers or 1, width)
    is_full = found.switch("checkpoint_activations")
    found.count("checkpoint_num_layers")
    precision = found.text("precision") or sharding.precision
    if precision is None:
        notes.append("neither fp16 nor bf16 is enabled: priced in fp32, as it trains then")
        precision = "fp32"
    words = {"bfloat16": "bf16", "fp16": "fp16", "fp32": "fp32", "bf16": "bf16"}
    dropouts = [found.number(name) for name in ("hidden_dropout", "attention_dropout")]
    untied = found.switch("no_weight_tying")
    groups = found.count("num_kv_heads")
    norm = (found.text("norm") or "layernorm").lower()
    parallel = found.switch("sequence_parallel")
    model = None
    missing = [
        name
        for name, value in (
            ("num_layers", layers), ("hidden_size", hidden), ("num_attention_heads", heads),
        )
        if value is None
    ]  # fmt: skip
    if missing:
        notes.insert(0, f"{settings.UNDESCRIBED}: {', '.join(missing)} not given")
    elif vocabulary is None:
        notes.insert(
            0, f"{settings.UNDESCRIBED}: its tokenizer decides the vocabulary; give --vocab-size"
        )
    else:
        model = TransformerConfig(
            family="gpt-neox",
            num_layers=layers or 1,
            hidden_size=hidden or 1,
            num_heads=heads or 1,
            num_kv_heads=groups or heads or 1,
            head_size=(hidden or 1) // (heads or 1),
            ffn_size=width,
            vocabulary_size=vocabulary,
            norm=Norm.RMS if norm.endswith("rmsnorm") else Norm.LAYER,
            activation=Activation.SILU if activation == "swiglu" else Activation.GELU,
            gated=gated,
            query_key_value_bias=found.switch("use_bias_in_attn_linear", default=True),
            attention_output_bias=found.switch("use_bias_in_attn_linear", default=True),
            mlp_bias=found.switch("use_bias_in_mlp", default=True),
            tied_embeddings=not untied,
            rotary=position == "rotary",
            max_positions=positions if position == "learned" else 0,
            hidden_dropout=dropouts[0] or 0.0,
            attention_dropout=dropouts[1] or 0.0,
            experts=experts,
        )
    kinds = _neox_kinds(found, layers or 1)
    if "mamba" in kinds:
        space = _neox_mamba(found, hidden or 1)
        model = None if model is None else _with_spaces(model, kinds, space)
    sequence, spread = found.count("seq_length"), found.count("moe_expert_parallel_size")
    notes += odd_optimizer(sharding.optimizer)
    if missing_size := size is None:
        notes.append("train_micro_batch_size_per_gpu is not given: priced as 1")
    mixers = set(kinds)
    if others := mixers - {"global", "flash", "mamba"}:
        shown = ", ".join(sorted(others))
        notes.append(f"attention_config: {shown} is priced as attention over all tokens")
    if is_full and tensor > 1 and found.switch("partition_activations"):
        notes.append("partition_activations: changes the answer, not modelled")
    trains = found.text("train_impl") or "normal"
    if trains != "normal":
        notes.append(f"train_impl {trains}: priced as supervised training: pairs are not")
    multiple = found.count("make_vocab_size_divisible_by")
    reduced = "fp32" if found.switch("fp32_allreduce") else sharding.reduce_dtype
    unknown, changing = found.remarks(harmless=_NEOX_HARMLESS, unmodelled=_NEOX_UNMODELLED)
    return settings.StatedRun(
        tp=tensor,
        pp=pipeline,
        ep=spread,
        zero=sharding.zero,
        sequence_parallel=parallel and tensor > 1,
        micro_batch=None if missing_size else size,
        global_batch=sharding.batch,
        batch_per_replica=None if sharding.batch else (size or 1) * steps,
        sequence=sequence,
        recompute="full" if is_full else "none",
        flash_attention=None if "flash" in mixers else False,
        vocabulary_multiple=multiple,
        precision=words.get(precision or "", precision),
        offload=sharding.offload,
        overlap=sharding.overlap,
        gradient_dtype=sharding.gradient_dtype,
        reduce_dtype=reduced,
        **optimizer_of(sharding.optimizer),
        model=model,
        unknown=unknown,
        notes=(*notes, *changing),
    )


def _neox_kinds(found: settings.Settings, layers: int) -> list[str]:
    """What mixes tokens in each block: `[[["mamba", "global"], 16]]` says 16 times these two."""
    kinds, given = list[str](), found.value("attention_config")
    for part in given if isinstance(given, list) else ():
        if not isinstance(part, list):
            kinds.append(str(part))
        elif len(part) > 1 and isinstance(part[0], list) and part[0]:
            named = [str(each) for each in part[0]]
            times = layers // len(named) if part[1] == "all" else part[1]
            kinds += named * min(times if type(times) is int else 0, layers)
    return kinds[:layers] if len(kinds) >= layers else ["global"] * layers


def _neox_mamba(found: settings.Settings, hidden: int) -> StateSpace:
    """The mixer of `megatron/model/mamba/mamba.py`, with its sizes."""
    wider, width = found.number("expansion_factor") or 2, found.count("intermediate_size")
    return StateSpace(
        inner_size=width or int(wider * hidden),
        state_size=16,
        convolution_bias=found.switch("mamba_use_bias_in_conv", default=True),
        bias=found.switch("mamba_use_bias_in_linears"),
        time_rank=-(-hidden // 16),
    )


def _with_spaces(
    model: TransformerConfig, kinds: list[str], mixer: StateSpace
) -> TransformerConfig:
    """The model with a mixer alone in the blocks that say so."""
    choices = BlockChoice(mixer=mixer, attends=False, mlp=False), BlockChoice()
    chosen = [0 if kind == "mamba" else 1 for kind in kinds]
    if not all(chosen) and any(chosen):
        return replace(model, choices=choices, choice_of_layer=tuple(chosen))
    return replace(model, choices=choices[:1], choice_of_layer=(0,) * len(kinds))


def _neox_experts(found: settings.Settings, layers: int, width: int) -> Experts | None:
    count = found.count("moe_num_experts", least=0)
    chosen = found.count("moe_top_k") or 1
    each = found.count("moe_expert_interval") or 1
    if not count or count == 1:
        return None
    return Experts(
        num_experts=count,
        experts_per_token=chosen,
        ffn_size=width,
        dense_layers=tuple(i for i in range(layers) if i % each),
    )


# nanotron
# --------

_NANOTRON_HARMLESS: Final = re.compile(
    r"(?:checkpoints|data_stages|general|lighteval|logging|tokenizer|metrics_logging|profiler|"
    r"s3_upload|data|doremi)(?:\..*)?|"
    r"(?:ddp_bucket_cap_mb|init_method|make_vocab_size_divisible_by|bos_token_id|eos_token_id|"
    r"pad_token_id|initializer_range|pretraining_tp|rms_norm_eps|rope_.*|use_cache|is_.*|"
    r"learning_rate_scheduler|adam_.*|torch_adam_is_fused|clip_grad|weight_decay.*|z_loss.*|_.*|"
    r"limit_.*|train_steps|val_check_interval|batch_size_rampup|tp_recompute_allgather|"
    r"tp_linear_async_communication|max_position_embeddings|attention_bias|no_rope_layer|"
    r"router_.*|layer_norm.*|token_dispatcher_type|flex_attention_mask|scale_.*|"
    r"moe_z_loss.*|moe_loss.*|moe_aux.*|expert_parallel_size|log_attn_probs|layers_block_type|"
    r"dt_.*|use_fast_path|fused_add_norm|residual_in_fp32|dtype|pad_vocab.*)"
)
_NANOTRON_UNMODELLED: Final = (
    *("sliding_window_size", "moe_glu", "grouped_gemm_imple", "batch_size_rampup"),
)


def read_nanotron(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A file of nanotron, whose model is a configuration of the Hugging Face kind."""
    found = _read(text, beside)
    parallel, tokens = found.table("parallelism"), found.table("tokens")
    optimizer, inside = found.table("optimizer"), found.table("model")
    tensor, pipeline = parallel.count("tp") or 1, parallel.count("pp") or 1
    data, context = parallel.count("dp") or 1, parallel.count("context_parallel_size") or 1
    size = tokens.count("micro_batch_size")
    steps = tokens.count("batch_accumulation_per_replica") or 1
    engine = parallel.word("pp_engine", ("1f1b", "afab"), "priced as 1f1b") or "1f1b"
    modes = ("all_reduce", "reduce_scatter")
    mode = parallel.word("tp_mode", modes, "priced as all_reduce")
    schedule = {"afab": "gpipe", "1f1b": "1f1b"}.get(engine, "1f1b")
    recompute = parallel.switch("recompute_layer")
    zero = optimizer.count("zero_stage", least=0, most=3) or 0
    words = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    precision = inside.word("dtype", words, "priced as bfloat16") or "bfloat16"
    accumulates = optimizer.switch("accumulate_grad_in_fp32")
    factory = optimizer.table("optimizer_factory").text("name")
    model, factor = _nanotron_model(inside.table("model_config"), beside)
    experts = parallel.count("expert_parallel_size") or 1
    sequence = tokens.count("sequence_length")
    notes = list(odd_optimizer(factory))
    is_spread = experts > 1 and tensor * data * context % (experts * tensor) != 0
    if is_spread:
        notes.append(
            f"expert_parallel_size {experts} does not fit into dp {data}: experts are priced "
            "whole, over the devices of tensor parallelism; some versions start more for them"
        )
    unknown, changing = found.remarks(harmless=_NANOTRON_HARMLESS, unmodelled=_NANOTRON_UNMODELLED)
    return settings.StatedRun(
        tp=tensor,
        pp=pipeline,
        dp=data,
        cp=context,
        ep=experts,
        etp=1 if is_spread else None,
        zero=zero,
        sequence_parallel=mode == "reduce_scatter" and tensor > 1,
        micro_batch=size,
        global_batch=None if size is None else size * steps * data,
        sequence=sequence,
        schedule=schedule,
        recompute="full" if recompute else "none",
        precision=words.get(precision, "bf16"),
        gradient_dtype=None if accumulates or precision == "float32" else words.get(precision),
        capacity_factor=factor,
        model=model,
        **optimizer_of(factory),
        unknown=unknown,
        notes=(*notes, *changing),
    )


def _nanotron_model(
    found: settings.Settings, beside: settings.Beside
) -> tuple[TransformerConfig | None, float | None]:
    layers, hidden = found.count("num_hidden_layers"), found.count("hidden_size")
    heads, width = found.count("num_attention_heads"), found.count("intermediate_size")
    groups, vocabulary = found.count("num_key_value_heads"), found.count("vocab_size")
    tied = found.switch("tie_word_embeddings")
    activation = found.text("hidden_act") or "silu"
    bias = found.switch("attention_bias")
    is_starcoder = found.switch("is_starcoder2_config")
    moe = found.table("moe_config")
    count = moe.count("num_experts") or found.count("moe_num_experts") or found.count("num_experts")
    chosen = moe.count("top_k") or found.count(
        found.first("num_experts_per_token", "num_experts_per_tok")
    )
    expert_width = moe.count("moe_intermediate_size")
    shared = moe.switch("enable_shared_expert")
    shared_width = moe.count("shared_expert_intermediate_size")
    factor = found.number(found.first("moe_capacity_factor", "capacity_factor"))
    if found.switch("is_mamba_config") and layers is not None:
        return _nanotron_mamba(found, beside, layers), None
    if layers is None or hidden is None or heads is None:
        return None, None
    routed = None
    if count and count > 1:
        routed = Experts(
            num_experts=count,
            experts_per_token=chosen or 1,
            ffn_size=expert_width or width or 4 * hidden,
            shared_ffn_size=(shared_width or width or 4 * hidden) if shared else 0,
        )
    return TransformerConfig(
        family="nanotron",
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=groups or heads,
        head_size=hidden // heads,
        ffn_size=width or 4 * hidden,
        vocabulary_size=beside.vocabulary or vocabulary or 1,
        norm=Norm.LAYER if is_starcoder else Norm.RMS,
        activation=Activation.SILU if "silu" in activation else Activation.GELU,
        gated=not is_starcoder,
        query_key_value_bias=bias,
        tied_embeddings=tied,
        rotary=True,
        experts=routed,
    ), factor


def _nanotron_mamba(
    found: settings.Settings, beside: settings.Beside, layers: int
) -> TransformerConfig | None:
    """The model of nanotron's `examples/mamba/config.py`: state spaces alone, the head tied."""
    hidden, inside = found.count("d_model"), found.table("ssm_cfg")
    vocabulary = beside.vocabulary or found.count("vocab_size")
    rank, is_rms = inside.text("dt_rank") or "auto", found.switch("rms_norm", default=True)
    if hidden is None or vocabulary is None:
        return None
    mixer = StateSpace(
        inner_size=int((inside.number("expand") or 2) * hidden),
        state_size=inside.count("d_state") or 16,
        kernel=inside.count("d_conv") or 4,
        convolution_bias=inside.switch("conv_bias", default=True),
        bias=inside.switch("bias"),
        time_rank=int(rank) if rank.isdecimal() else -(-hidden // 16),
    )
    return TransformerConfig(
        family="nanotron",
        num_layers=layers,
        hidden_size=hidden,
        num_heads=1,
        num_kv_heads=1,
        head_size=1,
        ffn_size=1,
        vocabulary_size=vocabulary,
        norm=Norm.RMS if is_rms else Norm.LAYER,
        activation=Activation.SILU,
        tied_embeddings=True,
        rotary=False,
        choices=(BlockChoice(mixer=mixer, attends=False, mlp=False),),
        choice_of_layer=(0,) * layers,
    )


# LLM-foundry and OLMo, both on Composer's names
# ----------------------------------------------

_COMPOSER_HARMLESS: Final = re.compile(
    r"(?:variables|run_name|tokenizer|train_loader|eval_loader|eval_loaders|scheduler|algorithms|"
    r"callbacks|loggers|save_.*|load_.*|eval.*|seed|max_duration|progress_bar|log_.*|console.*|"
    r"data|data_.*|wandb|evaluators|speed_monitor|remote_.*|stop_.*|dry_run|gen1.*|max_grad.*|"
    r"device_eval.*|autoresume|python_log_level|icl.*|metadata|dist_timeout|env|softmax.*|"
    r"time_limit|extra_steps|epoch|no_pre.*|force_save|restore.*|reset.*|keep_.*|canceled.*|"
    r"train_loader_.*|profiler|reparam|expandable.*|max_seq_len|max_split.*|code_paths|"
    r"torch_profiling|auxiliary.*|fused_loss|module_outputs.*|hf_.*|module|global_seed|"
    r"early_stopping.*|sharded_checkpointer|instance_filter|single|dump_.*)(?:\..*)?|"
    r"(?:init_.*|attn_config\..*|attn_impl|learned_pos_emb|verbose|emb_.*|norm_.*|logit_scale|"
    r"no_bias|resid_pdrop|alibi|rope|rope_.*|clip_qkv|attention_layer_norm.*|layer_norm_.*|"
    r"bias_for_layer_norm|block_type|multi_query_attention|max_sequence_length|eos_token_id|"
    r"pad_token_id|flash_attention|attention_dropout|residual_dropout|embedding_dropout|"
    r"norm_after|scale_.*|include_bias|lr|betas|eps|weight_decay|learning_rate|decay_.*|"
    r"metrics_.*|name|pretrained.*|use_auth_token|use_flash_attention_2|"
    r"limit_all_gathers|forward_prefetch|backward_prefetch|activation_checkpointing_.*|"
    r"mixed_precision|sync_module_states|verbose|state_dict_type|use_orig_params|wrapping_strategy|"
    r"load_monolith.*|precision|grad_sync_mode|find_unused_params|compile|"
    r"peft_config\..*|preprocessing_fn|loss_fn|moe_loss_weight|mlp_impl|memory_optimized_mlp|"
    r"moe_world_size|fc_type|qk_ln|qk_gn|attn_uses.*|embedding_layer_norm|selective.*|cross_entropy_.*)"
)


def _composer(
    found: settings.Settings,
    *,
    sharding: settings.Settings,
    zero: int,
    recompute: bool,
    default_optimizer: str,
    reduces_in_half: bool,
) -> dict[str, Any]:
    """What both say alike: batches, precision, optimizer.

    `reduces_in_half`: FSDP sums gradients in the format of the products (`PURE`), not in fp32.
    """
    batch = found.count("global_train_batch_size")
    value = found.value("device_train_microbatch_size")
    notes = list[str]()
    size = None
    if value == "auto":
        notes.append("device_train_microbatch_size auto is found by trial; priced as 1")
    else:
        size = found.count("device_train_microbatch_size")
    words = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp32": "fp32"}
    known = (*words, *(f"amp_{word}" for word in words))
    precision = found.word("precision", known, "priced by what is in the word") or "amp_bf16"
    own = next((ours for word, ours in words.items() if word in precision), "bf16")
    name = found.table("optimizer").text("name") or default_optimizer
    offload = sharding.switch("activation_cpu_offload")
    notes += odd_optimizer(name)
    if zero and "HYBRID" in (sharding.text("sharding_strategy") or "").upper():
        notes.append("HYBRID_SHARD: priced as sharded over all replicas; give --state-copies")
    half = own if own in ("bf16", "fp16") else "bf16" if own == "fp8" else None
    return {
        "reduce_dtype": half if zero and reduces_in_half else None,
        "zero": zero,
        "global_batch": batch,
        "micro_batch": size,
        "precision": own,
        "recompute": "full" if recompute else "none",
        "offload": ("activations to cpu",) if offload else (),
        **optimizer_of(name),
        "notes": tuple(notes),
    }


_SHARDED: Final = {
    "full_shard": 3, "shard_grad_op": 2, "no_shard": 0, "hybrid_shard": 3, "ddp": 0,
    "hybrid_shard_zero2": 2, "_hybrid_shard_zero2": 2,
}  # fmt: skip


def _sharded(sharding: settings.Settings) -> int:
    """The stage of FSDP's strategy, all of its shards where it is not said."""
    said = sharding.word("sharding_strategy", _SHARDED, "priced as FULL_SHARD")
    return _SHARDED.get(said or "", 3)


def read_llm_foundry(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A training file of LLM-foundry: MPT in full, or a model of the hub by name."""
    found = _read(text, beside)
    sharding = found.table("fsdp_config")
    zero = _sharded(sharding) if "fsdp_config" in found else 0
    recompute = sharding.switch("activation_checkpointing")
    mixed = sharding.value("mixed_precision")
    reduced = mixed.get("reduce_dtype") if isinstance(mixed, dict) else None
    shared = _composer(
        found,
        sharding=sharding,
        zero=zero,
        recompute=recompute,
        default_optimizer="adamw",
        reduces_in_half=str(mixed).upper() == "PURE" or "16" in str(reduced),
    )
    shared["compiled"] = "compile_config" in found or None
    found.table("compile_config").whole()
    inside = found.table("model")
    attention = inside.table("attn_config")
    hub = inside.text("pretrained_model_name_or_path")
    changes = inside.table("config_overrides").whole()
    layers, hidden, heads = (inside.count(n) for n in ("n_layers", "d_model", "n_heads"))
    ratio = inside.number("expansion_ratio") or 4
    groups = attention.count("kv_n_heads")
    kind = attention.text("attn_type") or "multihead_attention"
    unfused = attention.text("attn_impl") == "torch"
    if kind == "multiquery_attention":
        groups = 1
    vocabulary = beside.vocabulary or inside.count("vocab_size")
    ffn = inside.table("ffn_config")
    count = ffn.count("moe_num_experts")
    chosen, ffn_width = ffn.count("moe_top_k"), ffn.count("ffn_hidden_size")
    gated = (ffn.text("ffn_type") or "mptmlp") in ("mptglu", "mb_dmoe", "torch_dmoe")
    rotary = attention.switch("rope")
    tied = inside.switch("tie_word_embeddings", default=True)
    norm = inside.text("norm_type") or "low_precision_layernorm"
    sequence = found.count("max_seq_len") or inside.count("max_seq_len")
    lora = found.table("peft_config") if "peft_config" in found else inside.table("peft_config")
    rank = lora.count("r")
    targets = lora.texts("target_modules")
    model = None
    notes = shared.pop("notes")
    if layers and hidden and heads and vocabulary:
        width = ffn_width or int(ratio * hidden)
        biased = not inside.switch("no_bias")
        model = TransformerConfig(
            family="mpt",
            num_layers=layers,
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=groups or heads,
            head_size=hidden // heads,
            ffn_size=width,
            vocabulary_size=vocabulary,
            norm=Norm.RMS if "rms" in norm else Norm.LAYER,
            activation=Activation.SILU if gated else Activation.GELU,
            gated=gated,
            query_key_value_bias=biased,
            attention_output_bias=biased,
            mlp_bias=biased,
            tied_embeddings=tied,
            rotary=rotary,
            max_positions=0 if rotary or attention.switch("alibi") else sequence or 0,
            experts=None
            if not count
            else Experts(num_experts=count, experts_per_token=chosen or 1, ffn_size=width),
        )
    elif hub is None:
        notes = (
            f"{settings.UNDESCRIBED}: d_model, n_layers, n_heads or vocab_size not given",
            *notes,
        )
    adapters: dict[str, Any] = (
        {} if rank is None else {"lora_rank": rank, "lora_targets": settings.products_of(targets)}
    )
    unknown, changing = found.remarks(
        harmless=_COMPOSER_HARMLESS,
        unmodelled=("sharded_ckpt_prefix_dir", "memory_optimized_mlp"),
    )
    return settings.StatedRun(
        flash_attention=False if unfused else None,
        tp=1,
        pp=1,
        sequence=sequence,
        model=model,
        model_name=hub,
        model_changes=changes if hub else None,
        **shared,
        **adapters,
        unknown=unknown,
        notes=(*notes, *changing),
    )


def read_olmo(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A training file of OLMo; a gated `mlp_hidden_size` is twice the real width."""
    found = _read(text, beside)
    sharding, inside = found.table("fsdp"), found.table("model")
    ways = ("fsdp", "ddp", "single")
    how = found.word("distributed_strategy", ways, "priced as fsdp")
    zero = 0 if how in ("ddp", "single") else _sharded(sharding)
    kept = found.value("activation_checkpointing")
    shared = _composer(
        found,
        sharding=sharding,
        zero=zero,
        recompute=kept not in (None, False, "none"),
        default_optimizer="lionw",
        reduces_in_half=(sharding.text("precision") or "pure").lower() == "pure",
    )
    shared["compiled"] = isinstance(found.value("compile"), dict) or None
    notes = list(shared.pop("notes"))
    if isinstance(kept, str) and kept not in ("whole_layer", "none"):
        notes.append(f"activation_checkpointing {kept} is priced as every block")
    layers, hidden, heads = (inside.count(n) for n in ("n_layers", "d_model", "n_heads"))
    ratio, stated = inside.number("mlp_ratio") or 4, inside.count("mlp_hidden_size")
    activation = (inside.text("activation_type") or "swiglu").lower()
    gated = activation.endswith("glu")
    whole = stated or int(ratio * (hidden or 0))
    groups = inside.count("n_kv_heads") or (1 if inside.switch("multi_query_attention") else heads)
    vocabulary = beside.vocabulary or inside.count(inside.first("embedding_size", "vocab_size"))
    inside.value("vocab_size")
    count = inside.count("moe_num_experts") if inside.value("block_type") == "moe" else None
    chosen, own = inside.count("moe_top_k") or 2, whole // 2 if gated else whole  # of OLMoE
    tied = inside.switch("weight_tying", default=True)
    rotary, alibi = inside.switch("rope"), inside.switch("alibi")
    biased = inside.switch("include_bias", default=True)
    norm = inside.text("layer_norm_type") or "default"
    sequence = inside.count("max_sequence_length") or 1024
    model = None
    if layers and hidden and heads and vocabulary:
        model = TransformerConfig(
            family="olmo",
            num_layers=layers,
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=groups or heads,
            head_size=hidden // heads,
            ffn_size=own,
            experts=None
            if count is None
            else Experts(num_experts=count, experts_per_token=chosen, ffn_size=own),
            vocabulary_size=vocabulary,
            norm=Norm.RMS if norm == "rms" else Norm.LAYER,
            activation=Activation.SILU if "swi" in activation else Activation.GELU,
            gated=gated,
            query_key_norm=inside.switch("attention_layer_norm"),
            query_key_value_bias=biased,
            attention_output_bias=biased,
            mlp_bias=biased,
            tied_embeddings=tied,
            rotary=rotary,
            max_positions=0 if rotary or alibi else sequence,
            hidden_dropout=inside.number("residual_dropout") or 0.0,
            attention_dropout=inside.number("attention_dropout") or 0.0,
        )
    else:
        notes.insert(
            0, f"{settings.UNDESCRIBED}: d_model, n_layers, n_heads or vocab_size not given"
        )
    unknown, changing = found.remarks(harmless=_COMPOSER_HARMLESS, unmodelled=("fused_loss",))
    return settings.StatedRun(
        tp=1, pp=1, sequence=sequence, model=model, **shared, unknown=unknown,
        notes=(*notes, *changing),
    )  # fmt: skip


# MaxText
# -------

_MAXTEXT_HARMLESS: Final = re.compile(
    r"(?:base_config|base_output_directory|run_name|hardware|steps|enable_checkpointing|use_iota.*|"
    r"scan_layers|dataset_.*|async_checkpointing|logits_dot.*|max_segments.*|tokenizer_.*|profiler.*|"
    r"gcs_.*|learning_rate.*|attention|sa_.*|reuse_.*|checkpoint_.*|log_.*|enable_.*|hf_.*|"
    r"grain_.*|tfds_.*|load_.*|save_.*|packing|eval_.*|adam_.*|opt_.*|warmup.*|cosine.*|gradient_clip.*|"
    r"monitor_.*|jax_.*|compile.*|xla.*|shardy|cost_.*|upload_.*|metrics_.*|goodput.*|init_weights.*|"
    r"allow_split.*|use_vertex.*|vertex.*|skip_.*|normalization_.*|fused_.*|megablox|sparse_matmul|"
    r"moe_dispatch.*|data_shuffle_seed|num_slices|optimizer_memory.*|collect_.*|tile_.*|ragged.*|"
    r"enable_goodput.*|rope_.*|decoder_block|global_parameter_scale|target_eval.*|"
    r"inhomogeneous.*|trainable_.*|muon_.*|use_tokamax.*|mla_.*|max_position.*|logits_via.*|"
    r"use_sft|sft_.*|train_.*|num_epoch|adamw_mask|z_loss.*|w[io]_tile_.*|chat_template|"
    r"distill_.*|data_sharding|param_scan_axis|sharding_tolerance|use_tunix.*|return_log.*|"
    r"float32_.*|matmul_.*|record_.*|use_random.*|load_balance.*|routed_bias.*|hlo.*|profile.*|tokenizer)"
)
_MAXTEXT_UNMODELLED: Final = (
    "use_qwix_quantization", "shard_mode", "weight_sparsity", "logical_axis_rules", "lora",
    "sharding_strategy", "num_vocab_tiling", "use_multimodal", "freeze_vision_encoder_params",
    "teacher_overrides", "student_overrides", "use_dpo", "dpo", "kv_quant_dtype",
    "float32_logits", "float32_qk_product", "logits_dot_in_fp32", "trainable_parameters_mask",
    "enable_diloco", "enable_streaming_diloco", "enable_mhc_lite", "enable_rampup_batch_size",
    "compile_xla_flags",
)  # fmt: skip
_AXES: Final = (
    "data", "fsdp", "fsdp_transpose", "sequence", "context", "tensor", "tensor_transpose",
    "tensor_sequence", "expert", "pipeline", "autoregressive",
)  # fmt: skip
# How keys and values meet over context ranks; `base.yml` gathers them.
_EXCHANGES: Final = {"all_gather": "all_gather", "ring": "ring", "ulysses": "all_to_all"}
_SETTINGS_FILE: Final = re.compile(r"(?!base\.).*\.ya?ml")  # another than that of the defaults
_ROUNDING: Final = 1e-6  # of a batch of a device
# What each policy of rematerialisation comes to.
_POLICIES: Final = {
    "full": "full", "minimal": "selective", "minimal_flash": "selective",
    "minimal_with_context": "selective", "minimal_with_context_and_quantization": "selective",
    "save_dot_with_context_except_mlp": "selective", "save_dot_except_mlp": "selective",
    "save_dot_except_mlpwi": "selective", "save_qkv_proj": "selective",
    "save_out_proj": "selective", "qkv_proj_offloaded": "selective",
    "minimal_offloaded": "selective", "custom": "selective", "none": "none",
}  # fmt: skip


def read_maxtext(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A file or a script of MaxText; what it does not say is that of its `base.yml`."""
    if not (is_maxtext_script(text) or is_beside_others(beside)):
        return maxtext_run(_read(text, beside))
    launch = read_launch(text, beside)
    words, given = overrides_of(launch.words), dict[str, Any]()
    paths = (word.shown() for word in launch.words if "=" not in word.shown())
    names = [each.rpartition("/")[2] for each in paths]
    notes = list(launch.notes)
    for name in filter(_SETTINGS_FILE.fullmatch, names):
        try:
            data = read_bytes((beside.folder or Path()) / name, name="config", most=2**20)
            given |= settings.parse_settings(data.decode(), variables=beside.variables)
        except (InvalidInput, UnicodeDecodeError):
            notes.append(f"{name} is not beside this file, and what it sets is not used")
            if settings.catalog_name(stem := name.rpartition(".")[0]) and "model_name" not in words:
                given["model_name"] = stem
                notes.append(f"the model is that of which {name} has the name")
    is_whole = len(notes) == len(launch.notes)
    run = maxtext_run(settings.Settings({**given, **words}, from_words=True))
    if run.model is not None and not is_whole:
        notes.append(f"{settings.UNDESCRIBED}: no model_name, nor the file that sets it")
    return replace(run, model=run.model if is_whole else None, notes=(*notes, *run.notes))


# The model of MaxText's `base.yml`, by our names; a file's own words replace parts of it.
_OF_BASE: Final = {
    "num_layers": ("base_num_decoder_layers", 16), "hidden_size": ("base_emb_dim", 2048),
    "num_heads": ("base_num_query_heads", 16), "num_kv_heads": ("base_num_kv_heads", 16),
    "ffn_size": ("base_mlp_dim", 7168), "head_size": ("head_dim", 128),
    "vocabulary_size": ("vocab_size", 32_000),
}  # fmt: skip


# The same sizes as keys of a `config.json`, for a model that is named.
_OF_CONFIG: Final = {
    "base_num_decoder_layers": "num_hidden_layers", "base_emb_dim": "hidden_size",
    "base_num_query_heads": "num_attention_heads", "base_num_kv_heads": "num_key_value_heads",
    "base_mlp_dim": "intermediate_size", "base_moe_mlp_dim": "moe_intermediate_size",
    "head_dim": "head_dim", "vocab_size": "vocab_size",
}  # fmt: skip
_SCALED: Final = {
    "num_heads": 0,
    "num_kv_heads": 0,
    "ffn_size": 0,
    "hidden_size": 1,
    "num_layers": 2,
}


def _of_base(found: settings.Settings) -> TransformerConfig:
    """The model where none is named: a gated decoder, `global_parameter_scale` times as large."""
    sizes = {name: found.count(key) or usual for name, (key, usual) in _OF_BASE.items()}
    scale = found.count("global_parameter_scale") or 1
    thrice, beyond = divmod(scale.bit_length() - 1, 3)  # doubled in turn: heads and width of the
    for name, part in _SCALED.items():  # feed-forward part, hidden size, layers
        sizes[name] *= 2 ** (thrice + (beyond > part))
    return TransformerConfig(
        family="maxtext",
        num_layers=sizes["num_layers"],
        hidden_size=sizes["hidden_size"],
        num_heads=sizes["num_heads"],
        num_kv_heads=sizes["num_kv_heads"],
        ffn_size=sizes["ffn_size"],
        head_size=sizes["head_size"],
        vocabulary_size=sizes["vocabulary_size"],
        norm=Norm.RMS,
        activation=Activation.SILU,
        gated=True,
        tied_embeddings=found.switch("logits_via_embedding"),
        rotary=True,
        experts=_experts_of_base(found, sizes["ffn_size"]),
    )


def _experts_of_base(found: settings.Settings, width: int) -> Experts | None:
    count, own = found.count("num_experts") or 1, found.count("base_moe_mlp_dim", also=-1) or -1
    chosen = found.count("num_experts_per_tok") or 1
    if count == 1:
        return None
    return Experts(num_experts=count, experts_per_token=chosen, ffn_size=own if own > 0 else width)


def maxtext_run(found: settings.Settings, *, preset: str | None = None) -> settings.StatedRun:
    """The run of MaxText's settings; the batch of a device times the devices is the batch."""
    size = found.number("per_device_batch_size")
    if size is None:
        size = 12.0
    inside = {axis: found.count(f"ici_{axis}_parallelism", also=-1) for axis in _AXES}
    across = {axis: found.count(f"dcn_{axis}_parallelism", also=-1) for axis in _AXES}
    if inside["fsdp"] is None and not any(v == -1 for v in inside.values()):
        inside["fsdp"] = -1  # of base.yml: whatever devices are left shard the model

    def ways(*axes: str) -> int:
        """Ways along some axes; what fills the devices counts for none."""
        found_ways = 1
        for axis in axes:
            for each in (inside[axis], across[axis]):
                found_ways *= each if each is not None and each > 0 else 1
        return found_ways

    tensor = ways("tensor", "tensor_transpose", "tensor_sequence")
    pipeline, context = ways("pipeline"), ways("sequence", "context")
    experts, fills = ways("expert"), inside["expert"] == -1
    copies = ways("data")
    is_sharded = inside["fsdp"] == -1 or across["fsdp"] == -1 or ways("fsdp", "fsdp_transpose") > 1
    per_slice = _product_stated(inside) if inside["fsdp"] is not None else None
    slices = _product_stated(across) if across["data"] is not None else None
    notes = list[str]()
    each = size * tensor * context  # a batch is spread over these devices, too
    if abs(each - round(each)) > _ROUNDING or round(each) < 1:
        notes.append(f"per_device_batch_size {size} is a part of a sequence; priced as 1")
    each = max(1, int(each + _ROUNDING))
    unfused = found.text("attention") == "dot_product"
    policy = found.text("remat_policy") or "full"
    recompute = _POLICIES.get(policy)
    if recompute is None:
        found.fault("remat_policy", one_of(_POLICIES, policy))
    if recompute == "selective":
        notes.append(f"remat_policy {policy} is priced as selective recomputation")
    offload = ("activations to cpu",) if "offload" in policy else ()
    eight = found.text("quantization") or ""
    steps = found.count("gradient_accumulation_steps") or 1
    formats = ("bfloat16", "float32", "bf16", "fp32", "b16")
    dtype = found.word("dtype", formats, "priced by what is in the word") or "bfloat16"
    found.text("weight_dtype")
    name = found.text(found.first("override_model_name", "model_name")) or preset
    model, changes = None, dict[str, Any]()
    if name in (None, "default"):
        model = _of_base(found)
    else:
        stated = {theirs: found.count(own, also=-1) for own, theirs in _OF_CONFIG.items()}
        changes = {key: value for key, value in stated.items() if value and value > 0}
    precision = "fp8" if "fp8" in eight or "nanoo" in eight else "bf16" if "b" in dtype else "fp32"
    if eight and precision != "fp8":
        notes.append(f"quantization {eight}: changes the answer, not modelled")
    sequence = found.count("max_target_length") or 2048
    chunks = found.count("num_pipeline_repeats", also=-1)
    factor, dropout = found.number("capacity_factor"), found.number("dropout_rate")
    optimizer = found.text("opt_type")
    if (exact := found.text("matmul_precision") or "default") not in ("default", "bfloat16"):
        notes.append(f"matmul_precision {exact}: changes the answer, not modelled")
    routed = (found.count("num_experts") or 1) > 1 and not (factor and factor > 0)
    if routed and not found.switch("sparse_matmul", default=True):
        notes.append("sparse_matmul false: every expert computes every token, which is not priced")
    exchange = found.text("context_parallel_strategy") or "all_gather"
    if context > 1 and exchange not in _EXCHANGES:
        notes.append(f"context_parallel_strategy {exchange}: changes the answer, not modelled")
    if context > 1 and not found.switch("context_parallel_load_balance", default=True):
        notes.append("context_parallel_load_balance: false changes the answer, not modelled")
    if found.switch("optimizer_memory_host_offload"):
        offload = (*offload, "optimizer to cpu")
    if fills:
        notes.append("experts are dealt out over all devices of a node")
    unknown, changing = found.remarks(
        harmless=_MAXTEXT_HARMLESS,
        unmodelled=_MAXTEXT_UNMODELLED,
    )
    devices_of_experts = 8 if fills else experts
    return settings.StatedRun(
        flash_attention=False if unfused else None,
        tp=tensor,
        pp=pipeline,
        cp=context,
        ep=devices_of_experts,
        etp=1 if devices_of_experts > 1 else None,
        virtual_stages=chunks if chunks and chunks > 1 and pipeline > 1 else None,
        zero=3 if is_sharded else 0,
        state_copies=copies if is_sharded and copies > 1 else None,
        micro_batch=each,
        batch_per_replica=each * pipeline * steps,
        sequence=sequence,
        recompute=recompute,
        precision=precision,
        capacity_factor=factor if factor and factor > 0 else None,
        dropout=dropout,
        context_exchange=_EXCHANGES.get(exchange),
        offload=offload,
        model=model,
        model_name=name,
        model_changes=changes or None,
        num_devices=None if per_slice is None or slices is None else per_slice * slices,
        devices_per_node=per_slice,
        **optimizer_of(optimizer),
        unknown=unknown,
        notes=(*notes, *changing),
    )


def _product_stated(axes: Mapping[str, int | None]) -> int | None:
    """The devices (or slices) of all axes; None where one of them fills what there are."""
    return None if -1 in axes.values() else math.prod(each or 1 for each in axes.values())


# Primus
# ------


def read_primus(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A file of Primus: a preset of a model, and overrides in the words of another framework."""
    whole = settings.parse_settings(text, variables=beside.variables)
    modules = whole.get("modules")
    trainer: Any = whole
    if isinstance(modules, dict):
        trainer = modules.get("pre_trainer") or next(iter(modules.values()), None)
    if not isinstance(trainer, dict):
        raise InvalidInput.of("modules", "must hold a trainer, as pre_trainer")
    framework = str(trainer.get("framework", "megatron"))
    overrides = trainer.get("overrides") or {}
    if not isinstance(overrides, dict):
        raise InvalidInput.of("overrides", "must be a table")
    preset = trainer.get("model")
    name = re.sub(r"\.ya?ml$", "", str(preset)) if preset else None
    if framework == "torchtitan":
        found = settings.Settings({**overrides, "model_name": name}, from_words=True)
        run = read_tables(found)
    elif framework == "maxtext":
        run = maxtext_run(settings.Settings(overrides, from_words=True), preset=name)
    elif framework == "megatron":
        run = _primus_megatron(overrides, beside, name)
    elif framework == "megatron_bridge":
        more = {"peft": whole["peft"]} if isinstance(whole.get("peft"), dict) else {}
        run = run_of({**overrides, **more}, beside, recipe=name)
    else:
        known = "megatron, megatron_bridge, torchtitan or maxtext"
        raise InvalidInput.of("framework", f"must be {known}, got {framework}")
    if run.model is None and run.model_name is None:
        run = replace(run, model_name=name)
    return run if framework == "megatron" else replace(run, program=_BACKENDS[framework])


_BACKENDS: Final[Mapping[str, str]] = {
    "torchtitan": "torchtitan", "maxtext": "maxtext", "megatron_bridge": "megatron-bridge"
}  # fmt: skip
# What `pre_trainer.yaml` sets where a file does not.
_PRIMUS: Final[Mapping[str, Any]] = {"use_distributed_optimizer": True, "bf16": True}

_PRIMUS_ASSUMED: Final = {
    "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "context_parallel_size": 1,
    "expert_model_parallel_size": 1, "recompute_granularity": None,
}  # fmt: skip


def _primus_megatron(
    overrides: dict[str, Any], beside: settings.Beside, name: str | None
) -> settings.StatedRun:
    values = {**_PRIMUS, **overrides}
    adapters = adapters_of(values)
    again = values.pop("recompute_layer_ids", None)
    algorithm = values.pop("pp_algorithm", None)
    tensor = values.get("tensor_model_parallel_size")
    if "sequence_parallel" not in values and isinstance(tensor, int) and tensor > 1:
        values["sequence_parallel"] = True  # as its base configuration has it
    known = None if name is None else settings.catalog_name(name)
    changes, said = {}, list[str]()
    layers = None
    if known is not None:
        changes = preset_changes(
            settings_of({k: v for k, v in values.items() if k in OF_PRESETS}), known, beside, said
        )
        layers = changes.get("num_hidden_layers") or layers_named(known)
        values = {key: value for key, value in values.items() if key not in OF_PRESETS}
    run = read_arguments(settings_of(values), beside, num_layers=layers)
    described = known is None or run.model is not None
    notes = tuple(note for note in run.notes if described or settings.UNDESCRIBED not in note)
    if algorithm is not None:
        spelled = reversed(list(capability_of("primus").schedules.items()))
        named = {theirs: ours for ours, theirs in spelled}
        run = replace(run, schedule=named.get(str(algorithm), run.schedule))
    if isinstance(again, list):
        run = replace(run, recompute=None, recomputed_blocks=tuple(again))
    name = None if run.model else name
    known_of = {key: values.get(key) for key in (*_PRIMUS, "sequence_parallel")}
    unsaid = unsaid_of(overrides, {k: v for k, v in known_of.items() if v is not None},
                       taken="its pre_trainer.yaml", assumed=_PRIMUS_ASSUMED)  # fmt: skip
    notes = (*said, *notes, *unsaid)
    return replace(run, **adapters, notes=notes, model_name=name, model_changes=changes or None)
