"""torchtune's recipes, NeMo Automodel's, scripts of verl and OpenRLHF: trainers of a named model.

Sources: `torchtune/recipes`, `nemo_automodel/recipes`, `verl/trainer/config`.
"""

from __future__ import annotations

import re
from typing import Any, Final

from trainwright.formats import catalog
from trainwright.frameworks.jobs import deepspeed, script, settings
from trainwright.frameworks.megatron import dispatcher_of
from trainwright.frameworks.shell.values import Value
from trainwright.plans.plan import usual_schedule


def _compiles(found: settings.Settings) -> bool:
    """Whether torchtune compiles the model: `compile` is a switch, or a table of parts."""
    if isinstance(found.value("compile"), dict):
        return found.table("compile").switch("model")
    return found.switch("compile")


_TUNE_HARMLESS: Final = re.compile(
    r"(?:output_dir|checkpointer|checkpoint_dir|resume_.*|dataset.*|seed|shuffle|epochs|max_steps.*|"
    r"run_val.*|batch_size_val|loss|clip_grad.*|device|metric_logger|log_.*|profiler|lr_scheduler|"
    r"tokenizer|optimizer|tensor_parallel_plan|custom_sharded.*|save_.*|use_.*|quantizer|"
    r"enable_async.*|data_parallel_replicate.*|num_warmup.*|collate.*|interim.*|model|"
    r"prompt.*|cudnn.*|keep_last.*|float8_recipe.*|expert_.*|fsdp_reshard.*|grad_.*|dist.*|eval.*|"
    r"safe_serialization|teacher.*|ref_.*|kd_.*|rl.*)(?:\..*)?"
)
_SEQUENCE: Final = 2048  # where the tokenizer has no limit: few samples are longer
_TUNE_UNMODELLED: Final = (
    "teacher_model", "ref_checkpointer", "kd_loss", "apply_lora_to_output", "use_dora",
    "encoder_trainable", "decoder_trainable", "fusion_trainable", "quantizer",
)  # fmt: skip
_IN_LOSSES: Final = ("dpo", "ppo", "grpo", "rso")
# Where nothing says that they are fused, they work on lists of all parameters (torch/optim).
_COPYING: Final = ("torch.optim.AdamW", "torch.optim.Adam")


# What a recipe prints before it starts: its class, then its settings as YAML, up to an empty line
# or the next line of a log (torchtune/utils/_logging.py, log_config).
_LOGGED: Final = re.compile(
    r"^[^\n]*\bRunning (\w*Recipe\w*) with resolved config:[ \t\r]*\n\s*?\n?"
    r"(?P<settings>(?:(?![A-Z]+:|\d{4}-|\[rank|Traceback)[^\n]*\S[^\n]*(?:\n|\Z))+)",
    re.MULTILINE,
)


def logged_recipe(text: str) -> tuple[str, str] | None:
    """The class of the recipe that a log is of, and its settings; None of any other text."""
    found = _LOGGED.search(text)
    return None if found is None else (found[1], found["settings"])


def read_torchtune(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A configuration of torchtune; its distributed recipes shard weights, gradients and states.

    Which recipe it is stands in its name and its comments only, or in its log.
    """
    recipe, text = logged_recipe(text) or ("", text)
    found = settings.read_yaml(text, beside)
    component = found.table("model")
    name = component.text("_component_")
    rank, targets = component.count("lora_rank"), component.texts("lora_attn_modules")
    mlp, dropout = component.switch("apply_lora_to_mlp"), component.number("lora_dropout")
    quantized = component.switch("quantize_base") or "qlora" in (name or "")
    size = found.count("batch_size") or 1
    steps = found.count("gradient_accumulation_steps") or 1
    tokenizer = found.table("tokenizer")
    sequence = tokenizer.count("max_seq_len")
    tensor = found.count("tensor_parallel_dim") or 1
    context = found.count("context_parallel_dim") or 1
    shards = found.count("data_parallel_shard_dim", also=-1)
    replicas = found.count("data_parallel_replicate_dim") or 1
    recompute = found.switch("enable_activation_checkpointing")
    offload = list[str]()
    if found.switch("enable_activation_offloading"):
        offload.append("activations to cpu")
    if found.switch("fsdp_cpu_offload"):
        offload += settings.BY_FSDP
    started = re.search(r"^#\s*tune run (?:-\S+(?: \S+)? )*(\w+)", text, re.MULTILINE)
    alone = "single_device" in (beside.name if started is None else started[1] + beside.name)
    alone = "SingleDevice" in recipe if recipe else alone
    inside = found.switch(found.first("optimizer_in_bwd", "optimizer_in_backward"))
    dtype = found.text("dtype") or "bf16"
    table = found.table("optimizer")
    optimizer = table.text("_component_")
    is_plain = optimizer in _COPYING and not table.switch("fused")
    eight = found.switch("enable_fp8_training")
    packed = (
        found.table("dataset").switch("packed")
        if isinstance(found.value("dataset"), dict)
        else False
    )
    notes = list[str]()
    if sequence is None:
        notes.append(f"the longest sequence is not said: priced as {_SEQUENCE}; give --sequence")
    if not packed:
        notes.append("sequences are priced at their longest: shorter ones take less")
    adapters: dict[str, Any] = {}
    if rank is not None:
        given = (*targets, *(("w1", "w2", "w3") if mlp else ()))
        adapters = {
            "lora_rank": rank,
            "lora_targets": settings.products_of(given),
            "lora_dropout": dropout or None,
        }
    loss = found.table("loss").text("_component_") or ""
    if any(kind in loss.lower() for kind in _IN_LOSSES):
        notes.append(f"loss {loss}: priced as supervised training: pairs and a reference are not")
    notes += deepspeed.odd_optimizer(optimizer)
    compiled = _compiles(found)
    unknown, changing = found.remarks(harmless=_TUNE_HARMLESS, unmodelled=_TUNE_UNMODELLED)
    pure: dict[str, Any] = {}
    if dtype == "bf16":  # weights, gradients and moments alike, without a copy in fp32
        pure = {"gradient_dtype": "bf16", "main_weight_dtype": "none", "moment_dtypes": ("bf16",)}
    return settings.StatedRun(
        compiled=compiled or None,
        tp=tensor,
        pp=1,
        cp=context,
        dp=None if shards in (None, -1) else (shards or 1) * replicas,
        state_copies=replicas if replicas > 1 else None,
        zero=0 if alone else 3,
        sequence_parallel=tensor > 1,
        micro_batch=size,
        batch_per_replica=size * steps,
        sequence=sequence or _SEQUENCE,
        recompute="full" if recompute else "none",
        precision="fp8"
        if eight
        else "fp32"
        if dtype == "fp32"
        else "fp16"
        if dtype == "fp16"
        else "bf16",
        offload=tuple(offload),
        weight_bits=4 if quantized else None,
        num_devices=1 if alone else None,
        model_name=name,
        **{**pure, **deepspeed.optimizer_of(optimizer), **adapters},
        fused_update=False if is_plain and not inside else None,
        update_in_backward=inside or None,
        unknown=unknown,
        notes=(*notes, *changing),
    )


_AUTO_HARMLESS: Final = re.compile(
    r"(?:recipe|seed|benchmark|dist_env|rng|checkpoint|checkpointer|loss_fn|dataset|dataloader|"
    r"optimizer|lr_scheduler|wandb|mlflow|comet|validation_.*|slurm|tokenizer|processor|clip_grad.*|"
    r"step_scheduler|packed_sequence|ci|launcher|logging|profiling|profiler|nsys|ema|generation|"
    r"collate.*|auto_map|cache_dir|model\.(?:_target_|trust_remote_code|attn_implementation|"
    r"is_meta_device|use_liger.*|use_sdpa.*|sdpa_method|output_hidden.*|text_config|backend|config|"
    r"num_labels|force_hf|revision|tokenizer.*|has_packed.*|use_cache))(?:\..*)?|"
    r"(?:_target_|alpha|dropout.*|use_triton|lora_A_init|use_memory.*|lora_dtype|exclude_modules|"
    r"backend|mp_policy|defer_.*|patch_.*|scale_grads.*|round_virtual.*|dtype|enable_fsdp2_prefetch|"
    r"fsdp2_.*|timeout.*|tp_plan|use_hf_tp_plan|world_size|_recursive_|_convert_|data_parallel.*|"
    r"overlap_.*|average_.*|check_.*|report_.*|calculate_.*|nccl_.*|megatron_fsdp_unit.*|"
    r"multimodal|moe|moe_metrics|moe_rank_scaling|fp8|skypilot|compile|quantization|pp_seq_len|"
    r"load_base_model|mtp_.*|router_aux.*|num_nextn.*|tool_call.*|kd_loss_fn|neftune|_dsv4.*|"
    r"embedding_row.*|separate_meshes|moe_mesh|freeze_config|wrap_outer.*|ignore_router.*|lm_head_precision)(?:\..*)?"
)
_AUTO_UNMODELLED: Final = (
    "enable_compile", "enable_async_tensor_parallel", "qat", "teacher_model", "kd_ratio",
    "freeze_config", "vision_model", "optimizer.exp_avg_dtype", "optimizer.exp_avg_sq_dtype",
    "optimizer.store_param_remainders", "optimizer.master_weight_bits", "kd_loss_fn",
)  # fmt: skip


# How tokens travel to experts, by the dispatchers of its backends.
_SENDERS: Final = {"torch": "all_to_all", "deepep": "hierarchical", "hybridep": "hierarchical"}


# Recipes of Transformer Engine; weights stay in 16 bit beside those of one scale for a tensor.
_SCALED: Final = {"mxfp8": "mxfp8", "block": "fp8_blockwise", "current": "fp8_delayed"}


def read_automodel(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A recipe of NeMo Automodel: FSDP2 unless it names another, on a mesh it fills with shards."""
    found = settings.read_yaml(text, beside)
    mesh, step, model = (found.table(name) for name in ("distributed", "step_scheduler", "model"))
    sizes = {name: _size(mesh, name) for name in ("tp", "pp", "cp", "ep", "dp", "dp_replicate")}
    tensor, pipeline, context = (sizes[name] or 1 for name in ("tp", "pp", "cp"))
    name = f"{mesh.text('strategy') or ''} {mesh.text('_target_') or ''}".lower()
    is_sharded = "ddp" not in name and sizes["dp"] != 1
    gathers = mesh.value("reshard_after_forward")
    zero = 2 if gathers is False or (gathers is None and pipeline > 1) else 3
    if "megatron" in name:
        zero = mesh.count("zero_dp_strategy", least=0, most=3) or 3
    pipe = mesh.table("pipeline") if "pipeline" in mesh else found.table("autopipeline")
    local, whole = step.count("local_batch_size") or 1, step.count("global_batch_size")
    in_parts, cuts = pipe.count("pp_microbatch_size") or 1, mesh.switch("sequence_parallel")
    size, order = local, (pipe.text("pp_schedule") or "1f1b").lower().replace("_", "")
    layers = pipe.count("layers_per_stage")
    notes = list[str]()
    if pipeline > 1:
        size = in_parts
        if order not in ("1f1b", "gpipe"):
            each = "" if layers is None else f", {layers} layers to a stage"
            notes.append(f"pp_schedule {order}{each}: priced as 1f1b; give --schedule")
    again = mesh.value("activation_checkpointing")
    if again is None:
        again = found.table("parallelizer").value("activation_checkpointing")
    recompute = "selective" if again == "selective" else "none"
    if again not in (None, False, "selective", "false", "none", "off"):
        recompute = "full"
    packed = found.table("packed_sequence")
    sequence = packed.count(packed.first("packed_sequence_size", "pack_size"), least=0)
    data = found.table("dataset")
    sequence = sequence or data.count(data.first("seq_length", "max_length", "seq_len"))
    if sequence is None:
        notes.append(f"the longest sequence is not said: priced as {_SEQUENCE}; give --sequence")
    config = model.value("config")
    inside = model.table("config") if isinstance(config, dict) else model
    hub = inside.text("pretrained_model_name_or_path")
    if hub is None and isinstance(config, str):
        hub = config
    peft = found.table("peft")
    adapters: dict[str, Any] = {}
    if "peft" in found:
        everywhere = ("all-linear",) * peft.switch("match_all_linear")
        targets = everywhere or peft.texts("target_modules") or ("all-linear",)
        adapters = {
            "lora_rank": peft.count("dim") or 8,
            "lora_targets": settings.products_of(targets),
            "lora_dropout": peft.number("dropout") or None,
        }
    stored = model.text(model.first("dtype", "torch_dtype"))
    pure: dict[str, Any] = {}
    if stored is None or "32" not in stored:  # what is stored is what the optimizer changes
        pure = {"gradient_dtype": "bf16", "main_weight_dtype": "none", "moment_dtypes": ("bf16",)}
    eight = found.table("fp8").switch("enabled", default="fp8" in found)
    narrow = found.table("quantization")
    bits = 4 if narrow.switch("load_in_4bit") else 8 if narrow.switch("load_in_8bit") else None
    compiled = found.table("compile").switch("enabled")
    loss = str(found.table("loss_fn").value("_target_") or "")
    if "FusedLinear" in loss:
        notes.append("loss_fn FusedLinearCrossEntropy: changes the answer, not modelled")
    backend = model.table("backend")
    sender, scaled = backend.text("dispatcher"), backend.table("te_fp8")
    scaling = _SCALED.get(scaled.text("recipe") or "current", "fp8_delayed")
    table = found.table("optimizer")
    optimizer = table.text("_target_")
    is_plain = optimizer in _COPYING and not table.switch("fused")
    notes += deepspeed.odd_optimizer(optimizer)
    offload = settings.BY_FSDP if "offload_policy" in mesh else ()
    reduced = mesh.table("mp_policy").text("reduce_dtype")
    unknown, changing = found.remarks(harmless=_AUTO_HARMLESS, unmodelled=_AUTO_UNMODELLED)
    copies = sizes["dp_replicate"] or 1
    return settings.StatedRun(
        compiled=compiled or None,
        token_dispatcher=_SENDERS.get(sender or ""),
        reduce_dtype=settings.format_named(reduced),
        tp=tensor,
        pp=pipeline,
        cp=context,
        ep=sizes["ep"] or 1,
        etp=1 if (sizes["ep"] or 1) > 1 else None,
        dp=sizes["dp"],
        zero=zero if is_sharded or context > 1 else 0,
        state_copies=copies if copies > 1 else None,
        sequence_parallel=cuts if tensor > 1 else None,
        schedule="gpipe" if order == "gpipe" else "1f1b",
        micro_batch=size,
        global_batch=whole,
        batch_per_replica=None if whole else local,
        sequence=sequence or _SEQUENCE,
        recompute=recompute,
        precision="fp8" if eight else scaling if "te_fp8" in backend else "bf16",
        offload=offload,
        weight_bits=bits,
        model_name=hub,
        **{**pure, **deepspeed.optimizer_of(optimizer), **adapters},
        fused_update=False if is_plain else None,
        unknown=unknown,
        notes=(*notes, *changing),
    )


def _size(mesh: settings.Settings, name: str) -> int | None:
    """A size of the mesh; "none" is left to the number of devices."""
    word = mesh.value(f"{name}_size")
    return None if word in (None, "none", "auto") else mesh.count(f"{name}_size", least=0) or None


_VERL_HARMLESS: Final = re.compile(
    r"(?:algorithm|reward.*|data|trainer|critic|ray_init|ray_kwargs|custom_reward.*|"
    r"actor_rollout_ref\.(?:rollout|ref|hybrid_engine)|hydra.*|global_profiler|transfer_queue)(?:\..*)?|"
    r"(?:optim|kl_.*|use_kl_loss|entropy_.*|clip_.*|loss_.*|ppo_epochs|shuffle|checkpoint|grad_clip|"
    r"use_dynamic_bsz|ppo_max_token.*|use_shm|external_lib|override_config|trust_remote_code|strategy|"
    r"tokenizer_path|use_torch_compile|calculate_.*|policy_loss|profiler|wrap_policy|forward_.*|"
    r"reshard_.*|fsdp_size|seed|use_mbridge|vanilla.*|extra|router_replay|load_weight|"
    r"override_transformer_config|exclude_.*|custom_.*|use_remove_padding|lora_alpha|path)(?:\..*)?"
)
_VERL_UNMODELLED: Final = (
    "use_fused_kernels",
    "use_liger",
    "enable_activation_offload",
    "model_dtype",
    "torch_dtype",
    "mixed_precision",
    "freeze_vision_tower",
    "use_prefix_grouper",
    "entropy_checkpointing",
    "entropy_from_logits_with_chunking",
    "override_optimizer_config",
    "account_for_loss_in_pipeline_split",
    "account_for_embedding_in_pipeline_split",
)


def _runs_again(model: settings.Settings, notes: list[str], *, usual: bool) -> bool:
    """Whether activations are computed again; a note says where that is the default."""
    again = model.switch("enable_gradient_checkpointing", default=usual)
    if "enable_gradient_checkpointing" not in model:
        notes.append(f"enable_gradient_checkpointing: priced as {str(again).lower()}, the default")
    return again


def read_verl(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """What the actor of a script for verl trains, or of a file of its settings.

    Generating and scoring are not priced.
    """
    if beside.name.endswith((".yaml", ".yml")):
        launch = script.Launch(program="", words=())
        tables = settings.parse_yaml(text, variables=beside.variables)
        found = settings.Settings(_of_hyperpod(tables), from_words=True)
        if "actor_rollout_ref" not in found:
            return _supervised(found, launch)
    else:
        launch = script.read_launch(text, beside)
        found = settings.Settings(script.overrides_of(launch.words), from_words=True)
    if "sft_trainer" in " ".join((launch.program, *(word.shown() for word in launch.words[:2]))):
        return _supervised(found, launch)
    data, trainer = found.table("data"), found.table("trainer")
    both = found.table("actor_rollout_ref")
    actor, model, rollout = (both.table(name) for name in ("actor", "model", "rollout"))
    notes = list[str]()
    if launch.program and "verl.trainer" not in launch.program:
        notes.append(f"{launch.program}: what it does otherwise than verl's own is not read")
    name = _named(model, notes)
    answers = rollout.count("n") or 1
    mini, most = actor.count("ppo_mini_batch_size"), data.count("train_batch_size")
    if mini is not None and most is not None and most < mini:
        notes.append(
            f"ppo_mini_batch_size {mini}: an update has the {most} prompts of an iteration"
        )
        mini = most
    size, shared = (actor.count(f"ppo_micro_batch_size{of}") for of in ("_per_gpu", ""))
    prompt, response = data.count("max_prompt_length"), data.count("max_response_length")
    nodes, each = trainer.count("nnodes"), trainer.count("n_gpus_per_node")
    megatron, fsdp = actor.table("megatron"), actor.table("fsdp_config")
    strategy = (actor.text("strategy") or "").lower()
    config = " ".join(word.shown() for word in launch.words if "config-name" in word.shown())
    is_megatron = strategy == "megatron" or "megatron" in config or "megatron" in actor
    degrees = engine_degrees(megatron, heads=actor.count("ulysses_sequence_parallel_size") or 1)
    again = _runs_again(model, notes, usual=shared is None)
    recompute = "full" if again else "none"
    override = megatron.table("override_transformer_config")
    if override.text("recompute_granularity") == "full":
        recompute = "full"
    sequence = None if prompt is None or response is None else prompt + response
    devices = (each or _EACH) * (nodes or 1)
    replicas = max(1, devices // (degrees["tp"] * degrees["pp"] * degrees["cp"]))
    batch = None if mini is None else mini * answers
    if shared is not None:  # of all replicas, in its first releases
        size = max(1, shared // replicas)
        many = f"; earlier releases take {answers} times as many" if answers > 1 else ""
        notes.append(f"ppo_micro_batch_size {shared}: {size} of it for each of {replicas}{many}")
    if actor.switch("use_dynamic_bsz"):
        tokens = actor.count("ppo_max_token_len_per_gpu") or _TOKENS
        size = sequences_in(tokens * degrees["cp"], sequence, batch, replicas)
        notes.append(f"use_dynamic_bsz: a microbatch is priced as {size or 1} longest sequences")
    notes += settings.partly_sharded(fsdp, None if each is None else devices)
    blocks = [
        override.count(f"num_layers_in_{end}_pipeline_stage", least=0) for end in ("first", "last")
    ]
    if any(count is not None for count in blocks):
        notes.append("num_layers_in_first_pipeline_stage, …: stages are priced as even")
    if override.text("recompute_method") == "block" and recompute == "full":
        recompute = f"full:{override.count('recompute_num_layers') or 1}"
    dispatcher, adapters = override.text("moe_token_dispatcher_type"), _verl_adapters(model)
    offload = _verl_offload(fsdp, megatron)
    reduced = fsdp.table("mixed_precision").text("reduce_dtype")
    unknown, changing = found.remarks(harmless=_VERL_HARMLESS, unmodelled=_VERL_UNMODELLED)
    return settings.StatedRun(
        **degrees,
        token_dispatcher=dispatcher_of(dispatcher),
        zero=1 if is_megatron else 3,
        program="megatron" if is_megatron else None,
        micro_batch=size,
        global_batch=batch,
        sequence=sequence,
        recompute=recompute,
        precision="bf16",
        reduce_dtype=settings.format_named(reduced),
        offload=offload,
        num_devices=None if each is None else each * (nodes or 1),
        devices_per_node=each,
        model_name=name,
        **adapters,
        unknown=unknown,
        notes=(*launch.notes, "only what the actor trains is priced", *notes, *changing),
    )


def _of_hyperpod(whole: dict[str, Any]) -> dict[str, Any]:
    """The tables of verl in a recipe of SageMaker HyperPod, which has the devices beside them."""
    inside, outer = whole.get("training_config"), whole.get("trainer")
    if not isinstance(inside, dict):
        return whole
    outer = outer if isinstance(outer, dict) else {}
    devices = {"n_gpus_per_node": outer.get("devices"), "nnodes": outer.get("num_nodes")}
    own = inside.get("trainer") if isinstance(inside.get("trainer"), dict) else {}
    return {**inside, "trainer": {**(own or {}), **{k: v for k, v in devices.items() if v}}}


def _supervised(found: settings.Settings, launch: script.Launch) -> settings.StatedRun:
    """The run of verl's supervised trainers: the older one of FSDP, and that of any engine."""
    data, model, engine = found.table("data"), found.table("model"), found.table("engine")
    trainer = found.table("trainer")
    is_megatron = "megatron" in (engine.text(script.CHOSEN) or engine.text("strategy") or "")
    heads = found.count("ulysses_sequence_parallel_size") or 1
    degrees = engine_degrees(
        engine, heads=engine.count("ulysses_sequence_parallel_size") or heads, is_on=is_megatron
    )
    sequence = data.count("max_length") or 1024
    size, shared = (data.count(f"micro_batch_size{of}") for of in ("_per_gpu", ""))
    tokens = data.count("max_token_len_per_gpu") or 8192
    notes = ["sequences are priced at their longest: shorter ones take less"]
    batch, devices = data.count("train_batch_size") or 256, launch.devices.total
    per_node = launch.devices.per_node
    if devices is None and (each := trainer.count("n_gpus_per_node")) is not None:
        devices, per_node = each * (trainer.count("nnodes") or 1), each
    if data.switch("use_dynamic_bsz", default=bool(engine.text(script.CHOSEN))):
        cut = degrees["tp"] * degrees["pp"] * degrees["cp"]
        replicas = max(1, (devices or cut) // cut)
        size = sequences_in(tokens * degrees["cp"], sequence, batch, replicas)
        notes.append(f"use_dynamic_bsz: a microbatch is priced as {size} longest sequences")
    elif shared is not None and size is None:  # of all replicas, in its first releases
        replicas = max(1, (devices or _EACH) // heads)
        size = max(1, shared // replicas)
        notes.append(f"micro_batch_size {shared}: {size} of it for each of {replicas}")
    again = _runs_again(model, notes, usual=shared is None)
    fsdp = model.table("fsdp_config")
    offload = _verl_offload(engine, engine)
    if fsdp.switch("cpu_offload") or fsdp.switch("offload_params"):
        offload = settings.BY_FSDP
    found.table("optim").text(script.CHOSEN)
    key = "path" if model.is_absent("partial_pretrain") else "partial_pretrain"
    name = _named(model, notes, key)
    adapters = _verl_adapters(model)
    unknown, changing = found.remarks(harmless=_VERL_HARMLESS, unmodelled=_VERL_UNMODELLED)
    return settings.StatedRun(
        **degrees,
        zero=1 if is_megatron else 3,
        program="megatron" if is_megatron else None,
        micro_batch=size or 4,
        global_batch=batch,
        sequence=sequence,
        recompute="full" if again else "none",
        precision="bf16",
        offload=offload,
        num_devices=devices,
        devices_per_node=per_node,
        model_name=name,
        **adapters,
        unknown=unknown,
        notes=(*launch.notes, *launch.devices.notes, *notes, *changing),
    )


# Devices of a node and tokens of a microbatch where nothing says (verl/trainer/config).
_EACH: Final = 8
_TOKENS: Final = 16_384


def sequences_in(tokens: int, sequence: int | None, batch: int | None, replicas: int) -> int | None:
    """How many longest sequences a microbatch of `tokens` has that a replica's batch consists of.

    `tokens` are those of all ranks that share a sequence; None where its length is not known.
    """
    if not sequence:
        return None
    most = max(1, tokens // sequence)
    if batch is None:
        return most
    each = max(1, batch // replicas)
    return next(count for count in range(min(most, each), 0, -1) if each % count == 0)


def engine_degrees(
    megatron: settings.Settings, *, heads: int, is_on: bool = True
) -> dict[str, Any]:
    """Degrees of the Megatron engine, where that is on, and ways along the heads (Ulysses)."""
    names = (
        ("tp", "tensor_model_parallel_size"), ("pp", "pipeline_model_parallel_size"),
        ("virtual_stages", "virtual_pipeline_model_parallel_size"), ("cp", "context_parallel_size"),
        ("ep", "expert_model_parallel_size"), ("etp", "expert_tensor_parallel_size"),
    )  # fmt: skip
    stated = {name: megatron.count(key) for name, key in names}
    found: dict[str, Any] = {name: (is_on and count) or 1 for name, count in stated.items()}
    found["etp"] = stated["etp"] if is_on else None
    return {
        **found,
        "cp": found["cp"] * heads,
        "context_exchange": "all_to_all" if heads > 1 else None,
        "schedule": usual_schedule(found["virtual_stages"]),
        "sequence_parallel": megatron.switch("sequence_parallel", default=True) and found["tp"] > 1,
    }


def _verl_offload(fsdp: settings.Settings, megatron: settings.Settings) -> tuple[str, ...]:
    """What leaves the device while answers are made, and comes back for the update.

    Source: verl/workers/fsdp_workers.py, update_actor (load_fsdp_model_to_gpu).
    """
    keys = {"params": "param_offload", "optimizer": "optimizer_offload"}
    said = [what for what, key in keys.items() if fsdp.switch(key) or megatron.switch(key)]
    said += ["gradients"] if megatron.switch("grad_offload") else []
    return tuple(f"{what} to cpu {settings.BETWEEN}" for what in said)


def _verl_adapters(model: settings.Settings) -> dict[str, Any]:
    rank, targets = model.count("lora_rank", least=0), model.texts("target_modules")
    if not rank:
        return {}
    return {"lora_rank": rank, "lora_targets": settings.products_of(targets or ("all-linear",))}


def _named(model: settings.Settings, notes: list[str], key: str = "path") -> str | None:
    """The model's name: the last part of a path is enough, wherever it lies.

    A note asks for one that is not known, which a model beside the file replaces.
    """
    value = model.value(key)
    if isinstance(value, Value) and value.parts:
        last = value.parts[-1]
        name = last.rpartition("/")[2] if isinstance(last, str) else ""
        if name and "/" in str(last):
            return name
        if value.is_open:
            unknown = value.unknowns[0]
            notes.append(f"{settings.UNDESCRIBED}: {unknown}{settings.fix_of(unknown)}")
            return None
    return model.text(key)


# OpenRLHF
# --------
# Its programs take one list of arguments; those of today (`--train.batch_size`) are those of old
# (`--train_batch_size`) in tables. All train with DeepSpeed (openrlhf/cli, utils/deepspeed).

_OF_OPENRLHF: Final = {
    "micro_train_batch_size": "train.micro_batch_size", "train_batch_size": "train.batch_size",
    "pretrain": "model.model_name_or_path", "actor.model_name_or_path": "model.model_name_or_path",
    "max_len": "data.max_len", "zero_stage": "ds.zero_stage", "adam_offload": "ds.adam_offload",
    "gradient_checkpointing": "model.gradient_checkpointing_enable",
    "actor.gradient_checkpointing_enable": "model.gradient_checkpointing_enable",
    "load_in_4bit": "ds.load_in_4bit", "lora_rank": "ds.lora.rank",
    "target_modules": "ds.lora.target_modules", "lora_dropout": "ds.lora.dropout",
    "packing_samples": "ds.packing_samples", "ring_attn_size": "ds.ring_attn_size",
    "ds_tensor_parallel_size": "ds.tensor_parallel_size", "param_dtype": "ds.param_dtype",
    "actor_num_nodes": "actor.num_nodes", "actor_num_gpus_per_node": "actor.num_gpus_per_node",
    "ref_offload": "ref.offload", "deepcompile": "ds.deepcompile", "enable_ema": "train.enable_ema",
    "zpg": "ds.zpg", "use_liger_kernel": "ds.use_liger_kernel",
    "use_dynamic_batch": "train.dynamic_batch_enable",
    "train_max_tokens_per_gpu": "train.max_tokens_per_gpu",
}  # fmt: skip
_RLHF_HARMLESS: Final = re.compile(
    r"(?:logger|ckpt|eval|rollout|vllm|reward|ref|critic|algo|data)\..*|"
    r"(?:save|load|eval|logging|wandb|use_wandb|use_tensorboard|max_epochs|max_samples|num_episodes|"
    r"rollout|micro_rollout|n_samples|vllm|colocate|ref|critic|reward|remote_rm|agent|advantage|"
    r"dataset|prompt|input|output|apply_chat|label|chosen|rejected|learning_rate|actor_learning|"
    r"critic_learning|l2|lr|adam_betas|init_kl|kl|use_kl|gamma|lambd|eps_clip|value_clip|normalize|"
    r"ckpt|disable_fast|seed|flash_attn|attn_implementation|generate|temperature|top_p|async|"
    r"enforce|enable_prefix|deepspeed_enable_sleep|overlap_comm|bf16|beta|loss|multiturn|tokenizer|"
    r"ring_head|full_determinism|local_rank|aux_loss|freezing|dynamic_filtering|lora_alpha|"
    r"ptx|policy_loss|entropy|no_shuffle|num_processes|train_split|push).*|"
    r"(?:train\.(?:max_epochs|num_episodes|seed|colocate\w*|async\w*|agent\w*|ema\w*|full_\w+)|"
    r"actor\.(?:adam|muon|lr|eps_clip\w*|dual_clip|aux_\w+|policy_\w+|entropy\w*|max_norm\w*)|"
    r"ds\.(?:attn_\w+|overlap_comm|enable_sleep|lora\.alpha|grad_accum_dtype|value_\w+|ring_attn_h\w+|"
    r"experts_\w+|max_norm\w*)|model\.(?:beta|gradient_checkpointing_reentrant|ipo\w*|label_\w+|"
    r"nll_\w+|pretrain_mode\w*|aux_\w+|max_norm\w*)|\w+\.adam|adam)(?:\..*)?"
)
_RLHF_UNMODELLED: Final = (
    "ds.zpg", "ds.deepcompile", "ds.use_liger_kernel", "train.enable_ema", "ds.grad_accum_dtype",
    "actor.freeze_visual_encoder", "freeze_visual_encoder", "model.freeze_visual_encoder",
)  # fmt: skip


def read_openrlhf(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A script of OpenRLHF: supervised training, preferences, or an actor's updates."""
    launch = script.read_launch(text, beside)
    flags = script.flags_of(launch.words)
    found = settings.Settings(
        {_OF_OPENRLHF.get(name, name): value for name, value in flags.items()},
        spelled=lambda path: "--" + path,
        from_words=True,
    )
    program = launch.program.rpartition(".")[2]
    kind = "rm" if program == "train_rm" else script.trainer_named(program)
    acts = kind in ("ppo", "grpo")
    answers = 2 if kind in script.PAIRED else 1
    lengths = (found.count("prompt_max_len") or 1024, found.count("generate_max_len") or 1024)
    stated = found.count("data.max_len")
    usual = (
        sum(lengths)
        if acts and "prompt_max_len" in found
        else 512
        if kind in script.PAIRED
        else 2048
    )
    sequence = stated or usual
    size = found.count("train.micro_batch_size") or (1 if acts or kind == "rm" else 8)
    batch = found.count("train.batch_size") or 128
    ring, tensor = found.count("ds.ring_attn_size") or 1, found.count("ds.tensor_parallel_size")
    tokens = found.count("train.max_tokens_per_gpu") or 16_192
    notes = list[str]()
    if found.switch("train.dynamic_batch_enable"):
        size = max(1, tokens * ring // sequence)
        notes.append(f"dynamic batches: a microbatch is priced as {size} longest sequences")
    if not found.switch("ds.packing_samples"):
        notes.append("sequences are priced at their longest: shorter ones take less")
    dtype = found.text("ds.param_dtype") or "bf16"
    stage = found.count("ds.zero_stage", least=0, most=3)
    stage = 2 if stage is None else stage
    rank = found.count("ds.lora.rank", least=0)
    targets = found.texts("ds.lora.target_modules") or ("all-linear",)
    dropout = found.number("ds.lora.dropout")
    adapters: dict[str, Any] = {}
    if rank:
        adapters = {
            "lora_rank": rank,
            "lora_targets": settings.products_of(targets),
            "lora_dropout": dropout or None,
            "weight_bits": 4 if found.switch("ds.load_in_4bit") else None,
        }
    offload = ("optimizer to cpu",) if found.switch("ds.adam_offload") else ()
    again = found.switch("model.gradient_checkpointing_enable")
    nodes, each = found.count("actor.num_nodes"), found.count("actor.num_gpus_per_node")
    devices = launch.devices
    if acts:
        devices = script.Devices.on_nodes(nodes, each or 8)
    name = _named(found, notes, "model.model_name_or_path")
    if kind is not None:
        notes += script.unpriced(kind, found, adapts=bool(adapters))
    unknown, changing = found.remarks(harmless=_RLHF_HARMLESS, unmodelled=_RLHF_UNMODELLED)
    return settings.StatedRun(
        tp=tensor or 1,
        pp=1,
        cp=ring,
        zero=stage,
        micro_batch=answers * size,
        global_batch=answers * batch,
        per_example=answers,
        reference=kind in script.REFERS or None,
        sequence=sequence,
        recompute="full" if again else "none",
        precision=dtype if dtype in ("bf16", "fp16") else "bf16",
        gradient_dtype=deepspeed.reduced_in(dtype),
        reduce_dtype=deepspeed.reduced_in(dtype),
        engine=deepspeed.ENGINE if stage else None,
        optimizer="adam",
        offload=offload,
        num_devices=devices.total,
        devices_per_node=devices.per_node,
        model_name=name,
        **adapters,
        unknown=unknown,
        notes=(*launch.notes, *devices.notes, *notes, *changing),
    )


# LitGPT
# ------
# Several devices have shards of the model; fine-tuning recomputes every block then, and adapters
# lie beside the products that are switched on; `GPT` has a head of its own, which pretrain.py alone
# ties (litgpt/finetune, litgpt/pretrain.py).

_LIT_TARGETS: Final = {
    "lora_query": ("q_proj",), "lora_key": ("k_proj",), "lora_value": ("v_proj",),
    "lora_projection": ("o_proj",), "lora_mlp": ("gate_proj", "up_proj", "down_proj"),
}  # fmt: skip
_LIT_DEFAULTS: Final = ("lora_query", "lora_value")
_LIT_HARMLESS: Final = re.compile(
    r"(?:out_dir|data|eval|logger_name|seed|resume|tokenizer_dir|access_token|ops|log|lora_alpha|"
    r"initial_checkpoint_dir)(?:\..*)?|(?:optimizer\.init_args|optimizer)(?:\..*)?|"
    r"train\.(?:save_interval|log_interval|lr_\w+|epochs|max_tokens|max_steps|max_norm|min_lr|"
    r"tie_embeddings)"
)


def read_litgpt(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A file for `litgpt finetune_lora`, `finetune_full` or `pretrain`."""
    found = settings.read_yaml(text, beside)
    train = found.table("train")
    each, nodes = found.value("devices"), found.count("num_nodes") or 1
    each = None if each in (None, "auto") else found.count("devices", also=-1)
    each = None if each == -1 else each
    devices = None if each is None else each * nodes
    precision = found.text("precision") or "bf16-true"
    kind, _, mode = precision.partition("-")
    number = {"16": "fp16", "32": "fp32"}.get(kind, "bf16")
    adapts = found.switch("lora_mlp") or "lora_r" in found
    pretrains = "model_name" in found or "model_config" in found
    on = [name for name in _LIT_TARGETS if found.switch(name, default=name in _LIT_DEFAULTS)]
    adapters: dict[str, Any] = {}
    if adapts:
        adapters = {
            "lora_rank": found.count("lora_r") or 8,
            "lora_targets": settings.products_of(
                [word for name in on for word in _LIT_TARGETS[name]]
            ),
            "lora_dropout": found.number("lora_dropout") or None,
        }
    quantized = found.text("quantize") or ""
    sequence = train.count("max_seq_length")
    size, batch = train.count("micro_batch_size") or 4, train.count("global_batch_size") or 64
    notes = [] if pretrains else ["sequences are priced at their longest: shorter ones take less"]
    if sequence is None:
        notes.append(f"the longest sequence is not said: priced as {_SEQUENCE}; give --sequence")
    is_sharded = devices != 1
    if devices is None:
        notes.append("devices auto: priced as sharded over all of them")
    named = found.table("model_config").text("name") if pretrains else None
    path = found.text("checkpoint_dir")
    name = found.text("model_name") or named or (path and path.rstrip("/").rpartition("/")[2])
    known = settings.catalog_name(name) if name else None
    unties = known is not None and catalog.model(known).config.tied_embeddings
    unties = unties and not train.switch("tie_embeddings")
    if unties:
        notes.append("the head lies apart from the embedding, without train.tie_embeddings")
    numbers: dict[str, Any] = {}
    if mode == "true" and number != "fp32" and not adapts:  # weights and moments alike
        numbers = {
            "gradient_dtype": number, "main_weight_dtype": "none", "moment_dtypes": (number,),
        }  # fmt: skip
    optimizer = found.value("optimizer")
    if isinstance(optimizer, dict):
        optimizer = found.table("optimizer").text("class_path")
    notes += deepspeed.odd_optimizer(optimizer)
    unknown, changing = found.remarks(harmless=_LIT_HARMLESS, unmodelled=("lora_head",))
    return settings.StatedRun(
        tp=1,
        pp=1,
        cp=1,
        zero=3 if is_sharded else 0,
        state_copies=nodes if pretrains and nodes > 1 else None,
        micro_batch=size,
        global_batch=batch,
        sequence=sequence or _SEQUENCE,
        recompute="full" if is_sharded and not pretrains else "none",
        precision=number,
        loaded_in="fp32" if mode == "mixed" and not is_sharded else None,
        weight_bits=(4 if "4" in quantized else 8) if quantized and adapts else None,
        num_devices=devices,
        devices_per_node=each,
        model_name=name,
        model_changes={"tie_word_embeddings": False} if unties else None,
        **{**numbers, **deepspeed.optimizer_of(optimizer or "AdamW"), **adapters},
        unknown=unknown,
        notes=(*notes, *changing),
    )


# LLaMA-Factory's second way of files
# -----------------------------------
# `model` and tables for adapters and sharding in place of the arguments of transformers; FSDP2 sums
# gradients in float32 (llamafactory/v1/config, plugins/trainer_plugins/distributed).

_FACTORY_HARMLESS: Final = re.compile(
    r"(?:model_class|trust_remote_code|train_dataset|eval_dataset|output_dir|learning_rate|max_steps|"
    r"num_train_epochs|max_grad_norm|sample_backend|max_new_tokens|template|init_config|dp_size|"
    r"batching_workers|dist_timeout|lr_scheduler_config|seed|full_determinism|resume\w*|save\w*|"
    r"log\w*|kernel_config|mp_\w+|optim_config|flash_attn|pref_\w+|simpo_\w+|dpo_\w+|ld_alpha|"
    r"rpo_\w+|data_\w+|report_to)(?:\..*)?|(?:dist_config\.(?:dcp_path|name|ep_\w+)|"
    r"peft_config\.(?:name|lora_alpha|use_rslora|export\w*|bias)|quant_config\.\w+)"
)
_FACTORY_UNMODELLED: Final = (
    "peft_config.freeze_trainable_layers", "peft_config.modules_to_save", "peft_config.use_dora",
)  # fmt: skip


def is_second_way(found: settings.Settings) -> bool:
    """Whether a file of LLaMA-Factory is written for its second trainer (USE_V1)."""
    return "model" in found and "model_name_or_path" not in found


def read_second_way(found: settings.Settings, beside: settings.Beside) -> settings.StatedRun:
    """The run of such a file."""
    notes = ["sequences are priced at their longest: shorter ones take less"]
    mesh, peft, quant = (found.table(f"{name}_config") for name in ("dist", "peft", "quant"))
    kind, way = mesh.text("name") or "", peft.text("name")
    sharding = None
    if kind == deepspeed.ENGINE:
        sharding = deepspeed.sharding_beside(mesh.text("config_file") or "", beside)
        notes += sharding.notes
    adapters: dict[str, Any] = {}
    if way == "lora":
        targets = peft.texts("target_modules") or ("all",)
        adapters = {
            "lora_rank": peft.count("r") or 8,
            "lora_targets": settings.products_of(targets),
            "lora_dropout": peft.number("lora_dropout") or None,
            "weight_bits": quant.count("quantization_bit"),
        }
    elif way is not None:
        notes.append(f"peft_config {way}: changes the answer, not modelled; give --freeze")
    size, batch = found.count("micro_batch_size") or 1, found.count("global_batch_size")
    half = found.switch("bf16", default=True)
    packs = "padding_free" in (found.text("batching_strategy") or "")
    gathers = mesh.switch("reshard_after_forward", default=True)
    moved = mesh.switch("offload_params")
    zero = sharding.zero if sharding else (3 if gathers else 2) if "fsdp" in kind else 0
    heads = found.count("cp_size") or 1
    experts = mesh.count("ep_size") or 1
    again = found.switch("enable_activation_checkpointing", default=True)
    ring = (found.text("cp_mode") or "ulysses") != "ulysses"
    name, sequence = found.text("model"), found.count("cutoff_len") or 2048
    optimizer = found.table("optim_config").text("name")
    notes += deepspeed.odd_optimizer(optimizer)
    if "liger" in (found.table("kernel_config").text("name") or ""):
        notes.append("kernel_config liger: changes the answer, not modelled")
    unknown, changing = found.remarks(harmless=_FACTORY_HARMLESS, unmodelled=_FACTORY_UNMODELLED)
    numbers: dict[str, Any] = {}
    if sharding is not None:
        numbers = {
            "gradient_dtype": deepspeed.reduced_in("bf16"),
            "reduce_dtype": deepspeed.reduced_in("bf16"),
        }
    elif zero:
        numbers = {"reduce_dtype": "fp32"}
    return settings.StatedRun(
        tp=1,
        pp=1,
        cp=heads,
        context_exchange=None if heads == 1 or ring else "all_to_all",
        ep=experts,
        etp=1 if experts > 1 else None,
        zero=zero,
        micro_batch=size,
        global_batch=batch,
        batch_per_replica=None if batch else size,
        sequence=sequence,
        recompute="full" if again else "none",
        precision="bf16" if half else "fp32",
        offload=("params to cpu", "optimizer to cpu") if moved else (),
        engine=deepspeed.ENGINE if sharding is not None and zero else None,
        loaded_in="fp32" if half and not zero else None,
        model_name=name,
        **{**numbers, **deepspeed.optimizer_of(optimizer), **adapters},
        unknown=unknown,
        notes=(*(notes[1:] if packs else notes), *changing),
    )
