"""torchtune's recipes, and verl's scripts: what their trainers do to a named model.

Sources: `torchtune/recipes`, `verl/trainer/config`.
"""

from __future__ import annotations

import re
from typing import Any, Final

from trainwright.frameworks.jobs.deepspeed import odd_optimizer, optimizer_of
from trainwright.frameworks.jobs.hugging_face import products_of
from trainwright.frameworks.jobs.script import overrides_of, read_launch
from trainwright.frameworks.jobs.settings import NOTHING, Beside, Settings, parse_yaml
from trainwright.frameworks.megatron import dispatcher_of
from trainwright.frameworks.shell.values import Value
from trainwright.frameworks.stated_run import StatedRun
from trainwright.plans.plan import usual_schedule

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
    "compile", "teacher_model", "ref_checkpointer", "kd_loss", "apply_lora_to_output", "use_dora",
    "encoder_trainable", "decoder_trainable", "fusion_trainable", "quantizer",
)  # fmt: skip
_PAIRED: Final = ("dpo", "ppo", "grpo", "rso")


def read_torchtune(text: str, beside: Beside = NOTHING) -> StatedRun:
    """A configuration of torchtune; its distributed recipes shard weights, gradients and states.

    Which recipe it is stands in its name and its comments only.
    """
    found = Settings(parse_yaml(text, variables=beside.variables), from_words=True)
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
        offload += ["params to cpu", "optimizer to cpu"]
    started = re.search(r"^#\s*tune run (?:-\S+(?: \S+)? )*(\w+)", text, re.MULTILINE)
    alone = "single_device" in (beside.name if started is None else started[1] + beside.name)
    inside = found.switch(found.first("optimizer_in_bwd", "optimizer_in_backward"))
    dtype = found.text("dtype") or "bf16"
    table = found.table("optimizer")
    optimizer = table.text("_component_")
    eight = found.switch("enable_fp8_training")
    packed = (
        found.table("dataset").switch("packed")
        if isinstance(found.value("dataset"), dict)
        else False
    )
    notes = list[str]()
    if sequence is None:
        notes.append(f"the longest sequence is not said: priced as {_SEQUENCE}; give --sequence")
    if inside:
        notes.append("optimizer_in_bwd: changes the answer, not modelled: gradients take less")
    if not packed:
        notes.append("sequences are priced at their longest: shorter ones take less")
    adapters: dict[str, Any] = {}
    if rank is not None:
        given = (*targets, *(("w1", "w2", "w3") if mlp else ()))
        adapters = {
            "lora_rank": rank,
            "lora_targets": products_of(given),
            "lora_dropout": dropout or None,
        }
    loss = found.table("loss").text("_component_") or ""
    if any(kind in loss.lower() for kind in _PAIRED):
        notes.append(f"loss {loss}: priced as supervised training: pairs and a reference are not")
    notes += odd_optimizer(optimizer)
    unknown, changing = found.remarks(harmless=_TUNE_HARMLESS, unmodelled=_TUNE_UNMODELLED)
    found.check()
    pure: dict[str, Any] = {}
    if dtype == "bf16":  # weights, gradients and moments alike, without a copy in fp32
        pure = {"gradient_dtype": "bf16", "main_weight_dtype": "none", "moment_dtypes": ("bf16",)}
    return StatedRun(
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
        **{**pure, **optimizer_of(optimizer), **adapters},
        unknown=unknown,
        notes=(*notes, *changing),
    )


_VERL_HARMLESS: Final = re.compile(
    r"(?:algorithm|reward.*|data|trainer|critic|ray_init|ray_kwargs|custom_reward.*|"
    r"actor_rollout_ref\.(?:rollout|ref|hybrid_engine)|hydra.*|global_profiler|transfer_queue)(?:\..*)?|"
    r"(?:optim|kl_.*|use_kl_loss|entropy_.*|clip_.*|loss_.*|ppo_epochs|shuffle|checkpoint|grad_clip|"
    r"use_dynamic_bsz|ppo_max_token.*|use_shm|external_lib|override_config|trust_remote_code|"
    r"tokenizer_path|use_torch_compile|calculate_.*|policy_loss|profiler|wrap_policy|forward_.*|"
    r"reshard_.*|fsdp_size|seed|use_mbridge|vanilla.*|extra|router_replay|load_weight|"
    r"override_transformer_config|exclude_.*|custom_.*|use_remove_padding|lora_alpha|path)(?:\..*)?"
)
_VERL_UNMODELLED: Final = ("use_fused_kernels", "use_liger", "enable_activation_offload")


def read_verl(text: str, beside: Beside = NOTHING) -> StatedRun:
    """What the actor of a script for verl trains; generating and scoring are not priced."""
    launch = read_launch(text, beside)
    tree = overrides_of(launch.words)
    found = Settings(tree, from_words=True)
    data, trainer = found.table("data"), found.table("trainer")
    both = found.table("actor_rollout_ref")
    actor, model, rollout = (both.table(name) for name in ("actor", "model", "rollout"))
    name = _named(model)
    answers = rollout.count("n") or 1
    mini = actor.count("ppo_mini_batch_size")
    size = actor.count(actor.first("ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu"))
    prompt, response = data.count("max_prompt_length"), data.count("max_response_length")
    nodes, each = trainer.count("nnodes"), trainer.count("n_gpus_per_node")
    megatron, fsdp = actor.table("megatron"), actor.table("fsdp_config")
    strategy = (actor.text("strategy") or "").lower()
    config = " ".join(word.shown() for word in launch.words if "config-name" in word.shown())
    is_megatron = strategy == "megatron" or "megatron" in config or "megatron" in actor
    tensor = megatron.count("tensor_model_parallel_size") or 1
    pipeline = megatron.count("pipeline_model_parallel_size") or 1
    chunks = megatron.count("virtual_pipeline_model_parallel_size") or 1
    context = megatron.count("context_parallel_size") or 1
    experts = megatron.count("expert_model_parallel_size") or 1
    expert_tensor = megatron.count("expert_tensor_parallel_size")
    heads = actor.count("ulysses_sequence_parallel_size") or 1
    recompute: str | None = None
    if model.switch("enable_gradient_checkpointing"):
        recompute = "full"
    elif not model.is_absent("enable_gradient_checkpointing"):
        recompute = "none"
    override = megatron.table("override_transformer_config")
    if override.text("recompute_granularity") == "full":
        recompute = "full"
    offload = [
        f"{what} to cpu"
        for what, place, key in (
            ("params", fsdp, "param_offload"), ("optimizer", fsdp, "optimizer_offload"),
            ("params", megatron, "param_offload"), ("optimizer", megatron, "optimizer_offload"),
            ("gradients", megatron, "grad_offload"),
        )
        if place.switch(key)
    ]  # fmt: skip
    rank, targets = model.count("lora_rank", least=0), model.texts("target_modules")
    adapters: dict[str, Any] = {}
    if rank:
        adapters = {"lora_rank": rank, "lora_targets": products_of(targets or ("all-linear",))}
    sequence = None if prompt is None or response is None else prompt + response
    notes = []
    if actor.switch("use_dynamic_bsz"):
        tokens = actor.count("ppo_max_token_len_per_gpu")
        size = None if tokens is None or not sequence else max(1, tokens // sequence)
        notes.append(f"use_dynamic_bsz: a microbatch is priced as {size or 1} longest sequences")
    shards = fsdp.count("fsdp_size", also=-1)
    if shards not in (None, -1) and each is not None and shards != each * (nodes or 1):
        notes.append(f"fsdp_size {shards}: priced as sharded over all replicas")
    blocks = [
        override.count(f"num_layers_in_{end}_pipeline_stage", least=0) for end in ("first", "last")
    ]
    if any(count is not None for count in blocks):
        notes.append("num_layers_in_first_pipeline_stage, …: stages are priced as even")
    if override.text("recompute_method") == "block" and recompute == "full":
        recompute = f"full:{override.count('recompute_num_layers') or 1}"
    dispatcher = override.text("moe_token_dispatcher_type")
    unknown, changing = found.remarks(harmless=_VERL_HARMLESS, unmodelled=_VERL_UNMODELLED)
    found.check()
    return StatedRun(
        tp=tensor,
        pp=pipeline,
        token_dispatcher=dispatcher_of(dispatcher),
        cp=context * heads,
        context_exchange="all_to_all" if heads > 1 else None,
        ep=experts,
        etp=expert_tensor,
        virtual_stages=chunks,
        schedule=usual_schedule(chunks),
        sequence_parallel=tensor > 1,
        zero=1 if is_megatron else 3,
        micro_batch=size,
        global_batch=None if mini is None else mini * answers,
        sequence=sequence,
        recompute=recompute,
        precision="bf16",
        offload=tuple(dict.fromkeys(offload)),
        num_devices=None if each is None else each * (nodes or 1),
        devices_per_node=each,
        model_name=name,
        **adapters,
        unknown=unknown,
        notes=(*launch.notes, "only what the actor trains is priced", *notes, *changing),
    )


def _named(model: Settings) -> str | None:
    """The model's name: the last part of a path is enough, wherever it lies."""
    value = model.value("path")
    if isinstance(value, Value) and value.parts:
        last = value.parts[-1]
        name = last.rpartition("/")[2] if isinstance(last, str) else ""
        if name and "/" in str(last):
            return name
    return model.text("path")
