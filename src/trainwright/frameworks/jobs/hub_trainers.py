"""Trainers that shard a hub's model by a library, by their files and scripts.

VeOmni, ArcticTraining and DistillKit; what the policy trains in AReaL, ROLL, PipelineRL and SkyRL;
programs of ColossalAI. What a file does not say is the default of its program:
`veomni/arguments/arguments_types.py`, `arctic_training/config`, `distillkit/main.py`,
`areal/api/cli_args.py`, `roll/configs`, `pipelinerl/conf`, `skyrl/train/config/config.py`,
`applications/*/train*.py` of ColossalAI.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from trainwright.errors import InvalidInput
from trainwright.formats.catalog import open_model
from trainwright.frameworks.jobs import deepspeed, script, settings
from trainwright.frameworks.jobs.fine_tuning import engine_degrees, sequences_in
from trainwright.frameworks.jobs.hugging_face import read_trl
from trainwright.frameworks.megatron import dispatcher_of
from trainwright.frameworks.shell.values import Value
from trainwright.model.recipe import ALL_IN_16_BIT
from trainwright.plans.capability_table import LOSS_CHUNKS

_ALL_LONGEST: Final = "sequences are priced at their longest: shorter ones take less"
_POLICY: Final = "only what the policy trains is priced, of sequences at their longest"


def _only(tables: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """What of some tables a reader reads: the rest is of other parts than the training."""
    return {name: tables[name] for name in names if name in tables}


def _adapters(
    table: settings.Settings, *, rank: str, targets: str, usual: int | None
) -> dict[str, Any]:
    """Low-rank adapters as options; nothing where a rank is neither said nor usual."""
    number = table.count(rank, least=0)
    number = usual if number is None else number
    named = table.texts(targets)
    return (
        {"lora_rank": number, "lora_targets": settings.products_of(named or ("all",))}
        if number
        else {}
    )


# VeOmni: FSDP2 over float32 shards, heads traded between ranks of a sequence
# ---------------------------------------------------------------------------

_VEOMNI_HARMLESS: Final = re.compile(
    r"data(?:\..*)?|model\.(?:tokenizer_path|config_path|ops_implementation|lora_config\.(?:alpha|"
    r"use_rslora|share_expert_lora)|safetensor_idx_path)(?:\..*)?|"
    r"train\.(?:dyn_bsz\w*|num_train_epochs|bsz_warmup\w*|init_device|enable_full_determinism|"
    r"empty_cache_steps|gc_steps|eval_\w+|seed|max_steps|optimizer|wandb|profile|channel_loss|"
    r"checkpoint|pad_to_length|broadcast_\w+|moe_load\w*|gradient_checkpointing)(?:\..*)?|"
    r".*\.(?:enable_async|max_load_broadcast_size|forward_prefetch|enable_reentrant)"
)
_VEOMNI_UNMODELLED: Final = ("chunk_mbs_config", "extra_parallel_sizes", "ep_outside")


def read_veomni(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A file of VeOmni's trainers."""
    found = settings.read_yaml(text, beside)
    model, data, train = (found.table(name) for name in ("model", "data", "train"))
    mesh = train.table("accelerator")
    fsdp, heads = mesh.table("fsdp_config"), mesh.count("ulysses_size") or 1
    degrees: dict[str, Any] = {
        name: mesh.count(f"{name}_size") or 1 for name in ("tp", "pp", "cp", "ep")
    }
    size, batch = train.count("micro_batch_size") or 1, train.count("global_batch_size")
    again = train.table("gradient_checkpointing").switch("enable", default=True)
    shards = fsdp.one_of("fsdp_mode", ("ddp", "fsdp1", "fsdp2"), "fsdp2") != "ddp"
    mixed = fsdp.table("mixed_precision")
    is_mixed = mixed.switch("enable", default=True)
    computed = settings.format_named(mixed.text("param_dtype")) or "bf16"
    reduced = settings.format_named(mixed.text("reduce_dtype")) or "fp32"
    held = mesh.table(mesh.first("offload", "offload_config"))
    offload = settings.BY_FSDP if fsdp.switch("offload") else ()
    if held.switch("enable_activation"):
        offload = (*offload, "activations to cpu")
    kernels = model.table("ops_implementation")
    eager = "eager" in (kernels.text("cross_entropy_loss_implementation"),)
    lora = model.table("lora_config")
    adapters = _adapters(
        lora,
        rank=lora.first("rank", "r"),
        targets=lora.first("lora_modules", "target_modules"),
        usual=None,
    )
    notes = [_ALL_LONGEST]
    if lora.texts("target_parameters"):
        notes.append("target_parameters: adapters inside of experts are not modelled")
    name = model.text("model_path") or model.text("config_path")
    optimizer = train.table("optimizer").text("type") or "adamw"
    copies = mesh.count("dp_replicate_size", also=-1)
    mesh.count("dp_shard_size", also=-1)
    numbers: dict[str, Any] = {} if is_mixed else {**ALL_IN_16_BIT}
    if optimizer == "anyprecision_adamw":
        numbers["moment_dtypes"] = ("bf16",)
    sequence = data.count("max_seq_len")
    unknown, changing = found.remarks(harmless=_VEOMNI_HARMLESS, unmodelled=_VEOMNI_UNMODELLED)
    return settings.StatedRun(
        **{**degrees, "cp": degrees["cp"] * heads},
        context_exchange="all_to_all" if heads > 1 else None,
        etp=1 if degrees["ep"] > 1 else None,
        zero=3 if shards else 0,
        state_copies=copies if (copies or 0) > 1 else None,
        micro_batch=size,
        global_batch=batch,
        batch_per_replica=None if batch else size,
        sequence=sequence,
        recompute="full" if again else "none",
        loss_chunk=None if eager else LOSS_CHUNKS["trl"],
        precision=computed if shards or not is_mixed else f"{computed}_autocast",
        reduce_dtype=reduced if shards else None,
        offload=offload,
        model_name=name,
        **{**deepspeed.optimizer_of("muon" if optimizer == "muon" else "adamw"), **numbers},
        **adapters,
        unknown=unknown,
        notes=(*notes, *changing),
    )


# ArcticTraining: DeepSpeed, told by the file itself
# --------------------------------------------------

_ARCTIC_HARMLESS: Final = re.compile(
    r"(?:type|code|skip_validation|tokenizer|data|logger|wandb|scheduler|epochs|train_\w+|eval_\w+|"
    r"seed|checkpoint|exit_\w+|min_iterations|overfit\w*|mem_profiler\w*|kill_switch\w*|"
    r"loss_log\w*|optimizer|deepspeed)(?:\..*)?|model\.(?:save_name|attn_implementation|"
    r"hf_config_kwargs|peft_config)(?:\..*)?"
)
_ARCTIC_UNMODELLED: Final = (
    "arctic_moe", "logits_loss_temp", "num_key_value_layers",
    "key_value_group_size", "enable_arctic_moe_custom_optimization",
)  # fmt: skip


def read_arctic(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A file of ArcticTraining."""
    found = settings.read_yaml(text, beside)
    model, data = found.table("model"), found.table("data")
    heads, experts = (found.count(f"{way}_parallel_size") or 1 for way in ("sequence", "expert"))
    size, steps = found.count("micro_batch_size") or 1, found.count("gradient_accumulation_steps")
    given = found.value("deepspeed")
    inside = given if isinstance(given, dict) else {}
    inside = inside if "zero_optimization" in inside else {"zero_optimization": {"stage": 2}}
    said = deepspeed.sharding_of(settings.Settings(inside, from_words=True, path="deepspeed."))
    dtype = settings.format_named(model.text("dtype")) or "bf16"
    peft = model.table("peft_config")
    adapters = _adapters(peft, rank="r", targets="target_modules", usual=None)
    kind, name = model.text("type") or "", model.text("name_or_path")
    again = not model.switch("disable_activation_checkpoint")
    offload = said.offload
    if found.switch("activation_checkpoint_cpu_offload"):
        offload = (*offload, "activations to cpu")
    optimizer = found.table("optimizer").text("type")
    notes, tile = [_ALL_LONGEST, *deepspeed.odd_optimizer(optimizer)], None
    if found.switch("tiled_mlp_compute"):  # in as many parts as it takes to be square
        known = settings.catalog_name(name or "")
        tile = 4096 if known is None else open_model(known).config.hidden_size
        notes += () if known else ("tiled_mlp_compute: priced in tiles of 4096 tokens",)
    trains = found.text("type") or "sft"
    if trains not in ("sft", "causal"):
        notes.append(f"type {trains}: priced as supervised training of the whole model")
    sequence = data.count("max_length") or 8192
    unknown, changing = found.remarks(harmless=_ARCTIC_HARMLESS, unmodelled=_ARCTIC_UNMODELLED)
    return settings.StatedRun(
        tp=1,
        pp=1,
        cp=heads,
        ep=experts,
        etp=1 if experts > 1 else None,
        context_exchange="all_to_all" if heads > 1 else None,
        zero=said.zero,
        program="transformers",
        micro_batch=size,
        batch_per_replica=size * (steps or 1),
        sequence=sequence,
        recompute="full" if again else "none",
        loss_chunk=LOSS_CHUNKS["trl"] if "liger" in kind else None,
        mlp_tile=tile,
        precision=dtype,
        gradient_dtype=said.kept_in(dtype),
        reduce_dtype=deepspeed.reduced_in(dtype, said.reduce_dtype),
        offload=offload,
        engine=None if not said.zero else _LIGER if "liger" in kind else deepspeed.ENGINE,
        model_name=name,
        **deepspeed.optimizer_of(optimizer),
        **adapters,
        unknown=unknown,
        notes=(*notes, *changing),
    )


_LIGER: Final = f"{deepspeed.ENGINE}-liger"  # its account: cluster/memory/liger-deepspeed.toml


# DistillKit: TRL's arguments beside a teacher, whose answers may lie in the data
# -------------------------------------------------------------------------------


def read_distillkit(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A file of DistillKit, what the student trains."""
    whole = settings.parse_yaml(text, variables=beside.variables)
    found = settings.Settings(whole, from_words=True)
    told, teacher = dict(found.table("training_args").whole()), found.table("teacher")
    told.setdefault("max_length", found.count("sequence_length"))
    told["model_name_or_path"] = found.text(found.first("train_model", "model"))
    told["packing"] = found.table("dataset").switch("prepacked")
    if found.switch("use_flash_attention", default=True):
        told.setdefault("torch_dtype", "bfloat16")
    told.setdefault("loss_type", "nll")  # what it distils from is all logits
    notes = ["how it is sharded is said where it is started: give --zero"]
    if (teacher.text("kind") or "hf") == "hf":
        notes.append("teacher: its forward passes and its weights on the device are not modelled")
    if frozen := found.texts("frozen_modules") + found.texts("frozen_res"):
        notes.append(f"frozen: {', '.join(frozen)}: give --freeze where the model has such parts")
    found.check()
    run = read_trl(json.dumps(told), replace(beside, name="distillkit.json"))
    return replace(run, notes=(*notes, *run.notes))


# AReaL: degrees in a word, `megatron:(attn:d1p12t4|ffn:d1p12e4)`; microbatches of tokens
# --------------------------------------------------------------------------------------

_AREAL_HARMLESS: Final = re.compile(
    r"(?:experiment_name|trial_name|seed|enable_offload|total_train_\w+|tokenizer_path|cluster|"
    r"scheduler|rollout|gconfig|ref|critic|sglang|vllm|valid_dataset|train_dataset|saver|"
    r"recover|checkpointer|evaluator|stats_logger|perf_tracer|launcher|async_training|\w*econ\w*|"
    r"workflow|eval_\w+|dynamic_bs|reward\w*|agent\w*|teacher)(?:\..*)?|"
    r"actor\.(?!megatron\.|fsdp\.|archon\.)(?:\w+)(?:\..*)?|"
    r"actor\.(?:archon|megatron\.(?!recompute)\w+|fsdp\.(?:wrap_policy|memory_efficient\w*|"
    r"optim_step\w*))(?:\..*)?"
)
_DEGREE: Final = re.compile(r"([dtpce])([0-9]{1,5})")


def read_areal(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A file of AReaL: what its actor trains."""
    found = settings.read_yaml(text, beside)
    actor, data, answer = (found.table(name) for name in ("actor", "train_dataset", "gconfig"))
    engine, _, rest = (actor.text("backend") or "").partition(":")
    parts = re.fullmatch(r"\(?attn:(\w+)\|ffn:(\w+)\)?", rest)
    own, inner = (parts[1], parts[2]) if parts else (rest, "")
    axes = {axis: int(size) for axis, size in _DEGREE.findall(own)}
    experts = {axis: int(size) for axis, size in _DEGREE.findall(inner)}
    if not axes:
        found.fault("actor.backend", f'must be ENGINE:DEGREES, as fsdp:d8t1p1, got "{rest}"')
    is_megatron, told = engine == "megatron", actor.table("megatron")
    context, replicas = axes.get("c", 1), axes.get("d", 1)
    ways = experts.get("e") or axes.get("e", 1)
    reinforces = "gconfig" in found
    samples = answer.count("n_samples") or 1 if reinforces else 1
    whole, minis = data.count("batch_size"), actor.count("ppo_n_minibatches") or 1
    trains = {"rw": "reward"}.get(data.text("type") or "", data.text("type") or "")
    answers = 2 if trains in script.PAIRED else 1
    batch = None if whole is None else max(1, whole * samples // (minis if reinforces else 1))
    batch = None if batch is None else answers * batch
    prompt, longest = data.count("max_length"), answer.count("max_tokens")
    made = answer.count("max_new_tokens") or 0
    sequence = longest or (None if prompt is None else prompt + made)
    limits = actor.table("mb_spec")
    tokens, size = limits.count("max_tokens_per_mb"), 1
    notes = [_POLICY if reinforces else _ALL_LONGEST]
    notes += script.unpriced(trains, actor, adapts=actor.switch("use_lora")) if answers > 1 else ()
    if tokens:
        size = sequences_in(tokens, sequence, batch, replicas) or 1
        notes.append(f"max_tokens_per_mb {tokens}: a microbatch is priced as {size} longest")
    elif batch:
        size = max(1, batch // replicas // (limits.count("n_mbs") or 1))
    size = max(size, answers)
    again = actor.switch("gradient_checkpointing")
    partly = told.text("recompute_granularity") == "selective"
    mode = "none" if not again else "selective" if is_megatron and partly else "full"
    dtype = settings.format_named(actor.text("dtype")) or "bf16"
    reduced = settings.format_named(actor.text("grad_reduce_dtype")) or "fp32"
    optimizer = actor.table("optimizer").text("type") or "adam"
    held = actor.table("fsdp").switch("offload_params")
    adapters: dict[str, Any] = {}
    if actor.switch("use_lora"):
        adapters = _adapters(actor, rank="lora_rank", targets="target_modules", usual=32)
    numbers: dict[str, Any] = {} if is_megatron or dtype != "bf16" else {**ALL_IN_16_BIT}
    if optimizer.endswith("bf16"):
        numbers["moment_dtypes"] = ("bf16",)
    dispatcher = told.text("moe_token_dispatcher_type")
    stages = told.count("virtual_pipeline_parallel_size") or 1
    nodes = found.table("cluster").count("n_gpus_per_node") or 8
    name = actor.text("path")
    unknown, changing = found.remarks(harmless=_AREAL_HARMLESS)
    devices = (
        math.prod(axes.values())
        if parts
        else math.prod(size for axis, size in axes.items() if axis != "e")
    )
    return settings.StatedRun(
        tp=axes.get("t", 1),
        pp=axes.get("p", 1),
        dp=replicas,
        cp=context,
        ep=ways,
        etp=experts.get("t", 1) if parts and ways > 1 else None,
        virtual_stages=stages,
        context_exchange="all_to_all" if context > 1 and not is_megatron else None,
        sequence_parallel=is_megatron and axes.get("t", 1) > 1,
        zero=1 if is_megatron else 3,
        program="megatron" if is_megatron else None,
        token_dispatcher=dispatcher_of(dispatcher),
        micro_batch=size,
        global_batch=batch,
        per_example=answers,
        reference=(trains in script.REFERS and "ref" in found) or None,
        sequence=sequence,
        recompute=mode,
        precision=dtype,
        reduce_dtype=None if is_megatron else reduced,
        offload=settings.BY_FSDP if held else (),
        num_devices=devices,
        devices_per_node=min(nodes, devices),
        model_name=name,
        **{**deepspeed.optimizer_of(optimizer.removesuffix("_bf16")), **numbers},
        **adapters,
        unknown=unknown,
        notes=(*notes, *changing),
    )


# ROLL: what `actor_train` does, by a strategy of Megatron, FSDP2 or DeepSpeed
# ----------------------------------------------------------------------------

_ROLL_READ: Final = (
    "actor_train", "pretrain", "prompt_length", "response_length", "sequence_length",
    "num_gpus_per_node",
)  # fmt: skip
_ROLL_HARMLESS: Final = re.compile(
    r"actor_train\.(?:data_args|infer_batch_size|name|num_gpus_per_worker|generating_args|"
    r"system_envs|model_args\.(?:attn_implementation|flash_attn|dtype|model_type|lora_alpha)|"
    r"training_args\.(?:learning_rate|lr_\w+|weight_decay|warmup\w*|num_train_epochs|max_grad_norm|"
    r"logging\w*|seed)|strategy_args\.strategy_config\.(?:bias_\w+|apply_\w+|moe_(?!layer)\w+|bf16|"
    r"overlap_\w+|reshard\w*|recompute_(?:method|num_layers)|wrap_policy|batch_p2p\w*))(?:\..*)?"
)
_ROLL_UNMODELLED: Final = ("freeze_module_prefix",)


def read_roll(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A file of ROLL: what its actor trains."""
    tables = _only(settings.parse_yaml(text, variables=beside.variables), _ROLL_READ)
    found = settings.Settings(tables, from_words=True)
    actor = found.table("actor_train")
    model, training, way = (
        actor.table(f"{part}_args") for part in ("model", "training", "strategy")
    )
    strategy, config = way.text("strategy_name") or "", way.value("strategy_config")
    is_megatron, is_fsdp = "megatron" in strategy, "fsdp" in strategy
    told = way.table("strategy_config") if isinstance(config, dict) else settings.Settings({})
    heads = model.count("ulysses_size") or 1
    degrees = engine_degrees(told, heads=heads if is_fsdp else 1, is_on=is_megatron)
    size = training.count("per_device_train_batch_size") or 1
    steps = training.count("gradient_accumulation_steps") or 1
    parts = [found.count(f"{part}_length") for part in ("prompt", "response")]
    both = None if None in parts else sum(part or 0 for part in parts)
    sequence = found.count("sequence_length") or both
    mapped = re.fullmatch(
        r"list\(range\(\s*(\d+)\s*,\s*(\d+)\s*\)\)", str(actor.value("device_mapping"))
    )
    devices = int(mapped[2]) - int(mapped[1]) if mapped else None
    of_node = found.count("num_gpus_per_node") or 8
    again = not model.switch("disable_gradient_checkpointing")
    granularity, modules = told.text("recompute_granularity"), told.texts("recompute_modules")
    named = tuple(name.strip() for each in modules for name in each.split(","))
    mode: dict[str, Any] = {"recompute": "full" if again else "none"}
    if is_megatron:
        mode = {"recompute": granularity or "none"}
        if granularity == "selective" and named:
            mode["recompute_modules"] = named
    notes, zero = [_POLICY], 3
    offload: tuple[str, ...] = ()
    numbers: dict[str, Any] = {}
    if is_megatron:
        zero = int(told.switch("use_distributed_optimizer", default=True))
    elif is_fsdp:
        notes += settings.partly_sharded(told, devices)
        if settings.format_named(told.text("param_dtype")) == "bf16":  # weights are loaded in it
            numbers = {**ALL_IN_16_BIT}
        offload = settings.BY_FSDP if told.switch("offload_policy") else ()
    else:
        stage = deepspeed.STAGE_IN_NAME.search(str(config))
        zero = int(stage[1]) if stage else 3
        notes.append(f"strategy_config {config}: priced as ZeRO {zero}; give --zero")
        numbers = {"gradient_dtype": "bf16"}
    adapters = _adapters(model, rank="lora_rank", targets="lora_target", usual=None)
    reduced = settings.format_named(told.text("reduce_dtype"))
    dispatcher = told.text("moe_token_dispatcher_type")
    name = found.text("pretrain") or model.text("model_name_or_path")
    unknown, changing = found.remarks(harmless=_ROLL_HARMLESS, unmodelled=_ROLL_UNMODELLED)
    return settings.StatedRun(
        **degrees,
        **mode,
        zero=zero,
        program="megatron" if is_megatron else None,
        token_dispatcher=dispatcher_of(dispatcher),
        micro_batch=size,
        batch_per_replica=size * steps,
        sequence=sequence,
        precision="bf16",
        reduce_dtype=reduced or ("fp32" if is_fsdp else None),
        offload=offload,
        optimizer="adam",
        num_devices=devices,
        devices_per_node=min(of_node, devices) if devices else None,
        model_name=name,
        **numbers,
        **adapters,
        unknown=unknown,
        notes=(*notes, *changing),
    )


# PipelineRL: its files lie over `base.yaml` and `finetune/base.yaml`
# ------------------------------------------------------------------

_PIPELINE_READ: Final = ("finetune", "world", "deepspeed_config", "model_path")
_PIPELINE_HARMLESS: Final = re.compile(
    r"world\.\w+|finetune\.(?!lora\.|gradient|seq_|train_batch)\w+(?:\..*)?|"
    r"finetune\.(?:seq_packing|gradient_clipping\w*|lora\.(?:alpha|task_type|bias))"
)
_PIPELINE_USUAL: Final = {
    "train_batch_size": 1, "gradient_accumulation_passes": 1024, "gradient_checkpointing": True,
    "seq_length": 12_000, "seq_parallel": 1, "optim": "adamw_torch",
}  # fmt: skip


def read_pipeline_rl(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A file of PipelineRL, over those beside it that it is based on."""
    notes, none = [_POLICY], script.Launch(program="", words=())
    tables: dict[str, Any] = {"finetune": dict(_PIPELINE_USUAL)}
    inner = script.text_beside("finetune/base.yaml", none, beside)
    settings.put_over(
        tables, {"finetune": settings.parse_yaml(inner, resolved=False)} if inner else {}
    )
    own = settings.parse_yaml(text, resolved=False)
    based = [
        each for each in own.get("defaults") or () if isinstance(each, str) and each != "_self_"
    ]
    for base in based:
        lower = script.text_beside(f"{base}.yaml", none, beside)
        if lower is None:
            notes.append(f"{base}.yaml is not beside this file, and what it says is not used")
        settings.put_over(tables, settings.parse_yaml(lower, resolved=False) if lower else {})
    settings.put_over(tables, own)
    found = settings.Settings(_only(tables, _PIPELINE_READ), from_words=True)
    tune, world = found.table("finetune"), found.table("world")
    named = found.text("deepspeed_config") or "deepspeed_stage3_bf16"
    sharded = deepspeed.sharding_beside(f"deepspeed/{named}.json", beside)
    notes += sharded.notes
    size, passes = tune.count("train_batch_size") or 1, tune.count("gradient_accumulation_passes")
    context, sequence = tune.count("seq_parallel") or 1, tune.count("seq_length")
    parts = [world.count(f"{part}_fraction", least=0) or 0 for part in _PARTS]
    again = tune.switch("gradient_checkpointing")
    lora = tune.table("lora")
    on = lora.switch("enabled")
    adapters = _adapters(lora, rank="r", targets="target_modules", usual=16) if on else {}
    optimizer = tune.text("optim")
    share = 8 * parts[-1] / (sum(parts) or 1)  # of a node, which is cut by these fractions
    devices = int(share) if share and share == int(share) else None
    if any(parts):
        shown = "give --dp" if devices is None else f"{devices} of the 8 of a node"
        notes.append(f"finetune_fraction {parts[-1]} of {sum(parts)}: {shown}")
    name = found.text("model_path")
    unknown, changing = found.remarks(harmless=_PIPELINE_HARMLESS)
    return settings.StatedRun(
        tp=1,
        pp=1,
        cp=context,
        zero=sharded.zero,
        micro_batch=size,
        global_batch=size * (passes or 1),
        sequence=sequence,
        recompute="full" if again else "none",
        precision="bf16",
        gradient_dtype=sharded.kept_in("bf16"),
        reduce_dtype=deepspeed.reduced_in("bf16", sharded.reduce_dtype),
        offload=sharded.offload,
        engine=deepspeed.ENGINE if sharded.zero else None,
        num_devices=devices,
        devices_per_node=devices,
        model_name=name,
        **deepspeed.optimizer_of(optimizer),
        **adapters,
        unknown=unknown,
        notes=(*notes, *changing),
    )


_PARTS: Final = ("actor", "preprocessor", "finetune")


# SkyRL: settings behind its program, an answer counted by its prompt
# -------------------------------------------------------------------

SKYRL: Final = re.compile(r"\bskyrl\w*\.\S*entrypoints?\b|(?<![\w.])trainer\.policy\.model\.path=")
_SKYRL_HARMLESS: Final = re.compile(
    r"(?:generator|trainer)\.(?!policy|placement|gradient|micro_train|strategy|use_sample)\w+(?:\..*)?|"
    r"trainer\.(?:policy_loss\w*|placement\.\w+|policy\.(?:optimizer_config|use_torch_compile|"
    r"record_memory|model\.lora\.(?:alpha|dropout)|language_model_only)(?:\..*)?)|"
    r"trainer\.policy\.(?:fsdp_config\.(?:reshard\w*|wrap_policy)|megatron_config\.(?:ddp\w*|"
    r"optimizer\w*|moe_(?!layer)\w+|transformer_config\w*))(?:\..*)?"
)


def read_skyrl(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A script of SkyRL: what its policy trains."""
    launch = script.read_launch(text, beside)
    tables = _only(script.overrides_of(launch.words), ("trainer", "generator"))
    found = settings.Settings(tables, from_words=True)
    trainer, made = found.table("trainer"), found.table("generator")
    policy, place = trainer.table("policy"), trainer.table("placement")
    model = policy.table("model")
    fsdp, told = policy.table("fsdp_config"), policy.table("megatron_config")
    is_megatron = (trainer.text("strategy") or "fsdp") == "megatron"
    heads = policy.count("sequence_parallel_size") or 1
    degrees = engine_degrees(told, heads=1 if is_megatron else heads, is_on=is_megatron)
    answers = made.count("n_samples_per_prompt") or 5
    mini = trainer.count("policy_mini_batch_size") or 256
    size = trainer.count("micro_train_batch_size_per_gpu") or 1
    prompt = trainer.count("max_prompt_length") or 512
    reply = made.table("sampling_params").count("max_generate_length") or 1024
    nodes = place.count("policy_num_nodes") or 1
    each = place.count("policy_num_gpus_per_node") or 1
    again = trainer.switch("gradient_checkpointing", default=True)
    adapters = _adapters(model.table("lora"), rank="rank", targets="target_modules", usual=None)
    offload = settings.BY_FSDP if fsdp.switch("cpu_offload") else ()
    notes = [_POLICY, *settings.partly_sharded(fsdp, nodes * each)]
    path = model.value("path")
    name = path if isinstance(path, str) else None
    if isinstance(path, Value):
        name = path.shown() if not path.is_open else None
    if name is None:
        unknown_path = path.unknowns[0] if isinstance(path, Value) and path.is_open else None
        why = (
            "no model" if unknown_path is None else f"{unknown_path}{settings.fix_of(unknown_path)}"
        )
        notes.insert(0, f"{settings.UNDESCRIBED}: {why}")
    unknown, changing = found.remarks(harmless=_SKYRL_HARMLESS, unmodelled=("arctic_rl",))
    return settings.StatedRun(
        **degrees,
        zero=1 if is_megatron else 3,
        program="megatron" if is_megatron else None,
        micro_batch=size,
        global_batch=mini * answers,
        sequence=prompt + reply,
        recompute="full" if again else "none",
        precision="bf16",
        reduce_dtype=None if is_megatron else "fp32",
        offload=offload,
        optimizer="adam",
        num_devices=nodes * each,
        devices_per_node=each,
        model_name=name,
        **adapters,
        unknown=unknown,
        notes=(*launch.notes, *notes, *changing),
    )


# ColossalAI's programs: a plugin says what is sharded
# ----------------------------------------------------

COLOSSALAI: Final = re.compile(r"\bcolossalai\s+run\b")
_COLOSSAL_HARMLESS: Final = re.compile(
    r"dataset|eval_dataset|save\w*|config_file|tensorboard\w*|log_dir|num_epochs|max_epochs|lr|"
    r"grad_clip|weight_decay|warmup_steps|use_neft|pad\w*|tokenizer_dir|beta|use_wandb|"
    r"checkpoint_path|load_checkpoint|skip_save\w*|disable_\w+|gamma|loss_type|model_type"
)
_PLUGINS: Final = {"ddp": 0, "zero1": 1, "zero2": 2, "zero2_cpu": 2, "gemini": 3, "gemini_auto": 3}


def read_colossalai(text: str, beside: settings.Beside = settings.NOTHING) -> settings.StatedRun:
    """A script that `colossalai run` starts: supervised programs of ColossalAI's applications."""
    launch = script.read_launch(text, beside)
    found = settings.Settings(
        script.flags_of(launch.words), spelled=lambda path: "--" + path, from_words=True
    )
    plugin = found.one_of("plugin", (*_PLUGINS, "3d"), "gemini")
    program = launch.program.rpartition("/")[2]
    if "ppo" in program or "grpo" in program:
        raise InvalidInput.of("script", f"starts {program}, which generates: not read")
    tensor, pipeline, heads = (found.count(name) or 1 for name in ("tp", "pp", "sp"))
    stage, moved = found.count("zero_stage", least=0, most=2), found.switch("zero_cpu_offload")
    zero = (stage or 0) if plugin == "3d" else _PLUGINS[plugin]
    moved = plugin == "zero2_cpu" or (moved and plugin == "3d" and zero > 0)
    whole = found.count(found.first("batch_size", "micro_batch_size")) or 4
    part = found.count("microbatch_size")
    size = part if plugin == "3d" and pipeline > 1 and part else whole
    steps = found.count("accumulation_steps") or 1
    words = re.findall(r"[a-z]+", program)
    kind = next((each for each in words if each in script.PAIRED), None)
    answers = 1 if kind is None else 2
    usual = 8192 if "pretrained" in found else 512 if "sft" in program else 2048
    sequence = found.count(found.first("max_length", "max_len"))
    again = found.switch("use_grad_checkpoint") or found.switch("grad_checkpoint")
    fused = found.switch("use_flash_attn")
    half = found.one_of("mixed_precision", ("fp16", "bf16"), "bf16")
    lora = _adapters(found, rank="lora_rank", targets="lora_target", usual=None)
    notes = [_ALL_LONGEST]
    if kind is not None:
        notes += script.unpriced(kind, found, adapts=bool(lora))
    if sequence is None:
        notes.append(f"the longest sequence is not said: priced as {usual}, the default")
    if plugin in ("gemini", "gemini_auto"):
        notes.append(f"plugin {plugin}: what it keeps in chunks is priced as ZeRO-3")
    name = found.value(found.first("pretrained", "pretrain"))
    if not isinstance(name, str) or not name:
        notes.insert(
            0, f"{settings.UNDESCRIBED}: --pretrain is empty, or known only when the script runs"
        )
    found.switch("enable_sequence_parallelism")
    found.text("sp_mode")
    unknown, changing = found.remarks(
        harmless=_COLOSSAL_HARMLESS, unmodelled=("lora_config", "freeze_non_embeds_params")
    )
    is_sharded = plugin != "ddp" and zero > 0
    return settings.StatedRun(
        tp=tensor,
        pp=pipeline,
        cp=heads,
        zero=zero,
        micro_batch=answers * size,
        batch_per_replica=answers * whole * steps,
        per_example=answers,
        reference=(kind in script.REFERS) or None,
        sequence=sequence or usual,
        recompute="full" if again else "none",
        flash_attention=None if fused else False,
        precision=half,
        gradient_dtype=half if is_sharded else None,
        reduce_dtype=half,
        offload=deepspeed.moved_by_zero(zero, {"optimizer": "cpu"}) if moved else (),
        optimizer="adam",
        num_devices=launch.devices.total,
        devices_per_node=launch.devices.per_node,
        model_name=name if isinstance(name, str) and name else None,
        **lora,
        unknown=unknown,
        notes=(*launch.notes, *launch.devices.notes, *notes, *changing),
    )
