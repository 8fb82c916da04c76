"""Jobs on the Hugging Face trainer: TRL, LLaMA-Factory, axolotl, and accelerate's own file.

They share the names of `TrainingArguments`; each adds its adapters, its sharding and its defaults.
What shards the model may stand in another file (accelerate's, or DeepSpeed's JSON): one that lies
beside this file is read, for one that does not the file's name says the stage where it does.
Sources: `transformers/training_args.py`, `trl/trainer`, `llamafactory/hparams`,
`axolotl/utils/schemas`, `accelerate/commands/config`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from trainwright.errors import InvalidInput
from trainwright.formats.atomic_file import read_bytes
from trainwright.formats.hf_config import EXPERT_PRODUCTS
from trainwright.frameworks.jobs import deepspeed, script
from trainwright.frameworks.jobs.fine_tuning import is_second_way, read_second_way
from trainwright.frameworks.jobs.settings import (
    BY_FSDP,
    NOTHING,
    PROJECTOR,
    UNDESCRIBED,
    VISION,
    Beside,
    Settings,
    StatedRun,
    fix_of,
    format_named,
    frozen_parts,
    parse_yaml,
    products_of,
    read_yaml,
)
from trainwright.frameworks.shell import Value
from trainwright.frameworks.torchtitan import ROTATES
from trainwright.model import ContextExchange
from trainwright.model.recipe import ALL_IN_16_BIT
from trainwright.plans.capability_table import LOSS_CHUNKS
from trainwright.plans.plan import usual_schedule

# What changes neither the time of a step nor its memory, or hardly.
_HARMLESS: Final = re.compile(
    r"(?:learning_rate|lr_|warmup|weight_decay|adam_|max_grad_norm|num_train_epochs|num_epochs|"
    r"max_steps|logging|log_|save_|saves_|output_dir|output|report_to|push_to_hub|hub_|run_name|"
    r"seed|do_|eval|per_device_eval|dataset|datasets|data_|dataloader|preprocessing|template|"
    r"chat_template|stage|trust_remote|overwrite|plot_loss|resume|val_|test_|train_on|wandb|"
    r"mlflow|comet|trackio|swanlab|use_wandb|swan|special_tokens|tokens|tokenizer|type_of|"
    r"model_type|model_revision|remove_unused|neftune|ddp_(?!find)|beta|pref_|loss_type|rl|"
    r"lora_alpha|lora_fan|lora_model_dir|peft_|flash_attention|sdp_attention|attn_implementation|"
    r"flash_attn|bf16_full_eval|xformers|tf32|warmup|early_stop|group_by_length|pad_to|is_|"
    r"auto_resume|local_rank|debug|hf_|base_model_config|torch_dtype|dtype|strict|max_prompt|"
    r"max_samples|gradient_checkpointing_kwargs|bnb_|bnb|double_quant|quantization_method|"
    r"disable_grad|dataset_kwargs|lora_bias|bias|task_type|adapter_name|create_new|"
    r"additional_target|unfrozen|roles|field|eot_|shuffle|skip_|chunk|plugins?|experimental|"
    r"use_mlflow|mixed_precision_.*|compute_environment|machine_rank|main_|rdzv|same_network|tpu_|"
    r"use_cpu|downcast|dynamo|command|deepspeed_(?:hostfile|multinode|moe)|enable_cpu_affinity|"
    r"fsdp_(?:auto|backward|forward|state|sync|use_orig|cpu_ram|transformer|limit|min_num|"
    r"version)|zero3_|zero_hpz|commands|ipex|gpu_ids|fp8_config|mpirun|profile|metrics?_|include_|"
    r"greater_|load_best|optim_args|ray_|enable_thinking|average_|reward|ref_model|image_|video_|"
    r"media|vllm_|sglang|infer|streaming|mix_|buffer|cutoff_side|relora|s2_|quantization_device|"
    r"processor_type|export_|predict_|tokenized_path|use_tensorboard|liger_layer|bias_activation|"
    r"apply_rope|moe_grouped|moe_router|moe_aux|swiglu|offload_|remote|auto_wrap_policy|"
    r"transformer_layer|state_dict|cpu_ram|reshard_|fsdp_config|prompt|system|use_kernels|kernels|"
    r"ddp_timeout|ddp_find|rope_|yarn|router_aux|excess|sequence_len_|conversation|"
    r"pretraining_dataset|curriculum|ema|min_|unsloth|fp16_backend|half_prec|variance|noise|"
    r"label_|dpo|kto|orpo|simpo|gamma|alpha|lambda|response|assistant|ignore_|eos_token|pad_token|"
    r"loss_watchdog|model_quantization_config|callback|trl|torch_empty|include_tokens|use_fast|"
    r"resize|mask_|max_grad|cosine|mean_|sample_|batch_flat|deepspeed_plugin|lr|reference|"
    r"load_from|wait|fp8_(?:enable|format|recipe|amax|margin|interval|backend)|mod_|mixture|badam|"
    r"use_reentrant|fsdp_final|overlap_|use_distributed|calculate|dist_|pissa|loraplus|init_lora|"
    r"rm_|ppo|answer|num_generations|temperature|top_|generation|max_completion|max_new|"
    r"packing_strategy|eval_packing|padding_free|neat|weights|columns?|split|id|config|num_warmup|"
    r"lora_module_name|enable_tensorboard|analyzing|actor_lora_module|asft_|eaft_|oft_|galore_|"
    r"apollo_|kt_|ebft\.|num_labels|eta_min|jagged|use_ray|use_otel|otel_|low_cpu|device_map|"
    r"mm_(?!tunable)|lazy_|version|group_by|conv_style|meta_path|ps_version|vision_select|"
    r"revision|base_model_ignore|sp_(?:backend|seq|attn)|parallelism_config_sp_(?:b|s\w*_len|"
    r"attn)|seq_parallel_comm|resolution|val|wb|hub|compile_mode|torch_compile_|env|qat|dp_).*"
)
_UNMODELLED: Final = (
    "use_liger_kernel", "use_liger", "enable_liger_kernel", "liger_fused_linear_cross_entropy",
    "use_galore", "use_apollo", "use_badam", "use_unsloth", "liger_rope", "liger_rms_norm",
    "liger_glu_activation", "cut_cross_entropy", "use_dora", "tiled_mlp", "use_scattermoe",
    "lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "fp8_enable_fsdp_float8_all_gather",
    "shift_attn", "freeze_trainable_layers", "flex_attention", "mixture_of_depths", "use_cce",
    "unfrozen_parameters", "lora_modules_to_save", "modules_to_save", "layer_freezing",
    "use_dft_loss", "fsdp_activation_offload", "sparsification", "freeze_mm_modules",
    "freeze_trainable_modules", "enable_ema", "use_llama_pro", "use_adam_mini", "use_v1_kernels",
    "use_kt", "use_asft_loss", "use_eaft_loss", "quantize_moe_experts", "experts_implementation",
    "use_sonicmoe", "liger_rms_norm_gated", "use_onebitllms", "lisa_n_layers", "ebft", "diffusion",
    "gptq", "use_dsv4_kernels", "use_glm_dsa_kernels", "dsv4_fp4_grouped_mode",
    "max_packed_sequence_len", "fused_attn_kernel", "expert_parallel_token_capacity",
    "zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients",
    "use_unsloth_gc",
)  # fmt: skip
_MODELS: Final = ("model", "model_id_or_path", "model_id", "model_name_or_path", "model_name")
_LENGTHS: Final = ("max_length", "max_seq_length", "block_size", "model_max_length", "max_seq_len")
# What a switch of `accelerate launch` turns on, where its settings stand, and how they begin.
_ACCELERATED: Final = (
    ("fsdp", "fsdp_config", "fsdp_"),
    ("deepspeed", "deepspeed_config", ("zero_", "offload_", "deepspeed_config_file")),
)
_SWIFT: Final = {"gradient_checkpointing": "true", "torch_dtype": "bfloat16"}
_OF_TRAINER: Final = re.compile(
    r"--per[_-]device[_-]train(?:ing)?[_-]batch[_-]size\b|--(?:actor_)?model_name_or_path\b"
)
# The files of accelerate that TRL brings along, each without offload.
_OF_TRL_ITSELF: Final = ("single_gpu", "multi_gpu", "zero1", "zero2", "zero3", "fsdp1", "fsdp2")
_OF_TRL: Final = {"gradient_checkpointing": True, "bf16": True}
# DeepSpeed-Chat: what its programs take where a script does not say; in its third step, what it
# says of the model that is trained by reinforcement, as the other steps say it.
_CHAT: Final = {"per_device_train_batch_size": "16", "max_seq_len": "512"}
_ACTOR: Final = {
    "actor_model_name_or_path": "model_name_or_path", "actor_zero_stage": "zero_stage",
    "actor_lora_dim": "lora_dim", "actor_dropout": "dropout",
    "actor_gradient_checkpointing": "gradient_checkpointing",
    "per_device_training_batch_size": "per_device_train_batch_size",
    "per_device_mini_train_batch_size": "per_device_train_batch_size",
}  # fmt: skip


def is_trainer_program(text: str) -> bool:
    """Whether a Python program makes the configuration of a trainer itself."""
    return _MADE_IN_PYTHON.search(text) is not None


def is_trainer_script(text: str) -> bool:
    """Whether a script gives the arguments of the Hugging Face trainer to a program."""
    return _OF_TRAINER.search(text) is not None


def read_trl(text: str, beside: Beside = NOTHING) -> StatedRun:
    """A recipe of TRL's command line or of the alignment handbook; a script with its arguments.

    Or a Python program that makes the configuration of its trainer itself.
    """
    if is_trainer_program(text):
        return _program(text, beside)
    if not (is_trainer_script(text) or script.is_beside_others(beside)):
        return _recipe(parse_yaml(text, variables=beside.variables), beside, text)
    launch = script.read_launch(text, beside)
    flags = script.flags_of(launch.words)
    notes = list(launch.notes)
    flags = _with_fsdp(_with_file(flags, launch, beside, notes), launch, beside, notes)
    given, sharding, devices = flags.get("deepspeed"), None, launch.devices
    if launch.starts_alone and str(flags.get("fsdp") or "").lower() not in ("", "false"):
        devices = script.STARTED_ELSEWHERE
    own = given is True  # a switch: the program makes DeepSpeed's settings, or is told their file
    if own and isinstance(named := flags.pop("deepspeed_config", None), str):
        given, own = named, False
    if given is not None:
        flags["deepspeed"] = None if own else given
    if isinstance(given, str) and (written := launch.file(given)) is not None:
        name = given.rpartition("/")[2]
        try:
            parse_yaml(written)
        except InvalidInput as error:  # what a program makes of a template
            wanted = f"{name} is written by the script, and what it says is not known: give a copy"
            raise InvalidInput.of("deepspeed", f"{wanted} of it that --deepspeed names") from error
        sharding = deepspeed.read_sharding(written, name)
    is_trl = launch.program == "trl"
    if is_trl:
        turned_on = _left_to_trl(flags)
        notes += [f"--{key} is not said: on, as TRL has it since 0.22" for key in turned_on]
        flags = {**flags, **turned_on}
    if OF_TRLS_OWN.fullmatch(launch.program) and (own_kind := _IN_TRL.search(text)):
        named = (
            {} if (kind := script.trainer_named(own_kind[0].split()[-1])) is None else {"rl": kind}
        )
        loss, said = script.usual_loss({**named, **flags}, text, beside)
        flags, notes = {**flags, **loss}, [*notes, *said]
    if launch.program == "swift":  # its own defaults
        is_told = not {"train_type", "sft_type"}.isdisjoint(flags)
        flags = {**({} if is_told else {"tuner_type": "lora"}), **_SWIFT, **flags}
    is_foreign = not OF_TRLS_OWN.fullmatch(launch.program)
    if is_foreign and _adapts_alone(flags):
        flags["use_peft"] = "true"
        notes.append(_ALONE)
    if is_foreign and launch.program != "swift" and not set(_OF_LLAMAFACTORY) & flags.keys():
        notes += script.left_to_program(flags, launch.program)
    if own:
        flags, chat_notes = _of_chat(flags)
        notes += chat_notes
    if (trainer := script.trainer_named(launch.program)) is not None:
        flags = {"rl": trainer, **flags}
    found = Settings(flags, spelled=lambda path: "--" + path, from_words=True)
    changes, kind = script.config_overrides(found), found.text("model_type")
    dropout = found.number("dropout") if own else None
    sharding = deepspeed.sharding_told(found) if own else sharding
    if any(name in flags for name in _OF_LLAMAFACTORY):
        run = _llamafactory(found, beside, sharding)
    else:
        run = _trl(found, beside, sharding, loaded_in="fp32" if is_trl else None)
    if changes:
        again = "full" if changes.get("gradient_checkpointing") is True else run.recompute
        named = run.model_name or kind
        run = replace(run, model_name=named, model_changes=changes, recompute=again)
    run = run if dropout is None else replace(run, dropout=dropout)
    if own and found.is_absent(found.first("bf16", "fp16", "dtype")):
        run = replace(run, precision="fp16")
        notes.append("--deepspeed without a file: priced in fp16, as no format is said")
    if "deepspeed" not in flags:
        run = _started_so(run, launch.accelerate, beside, notes)
    return replace(
        run,
        num_devices=devices.total or run.num_devices or devices.visible,
        devices_per_node=devices.per_node or devices.visible,
        notes=(*notes, *devices.notes, *run.notes),
    )


_IN_TRL: Final = re.compile(
    r"\btrl\s+(?:sft|dpo|kto|grpo|rloo)\b"
    r"|\b(?:trl|examples)/scripts/(?:sft|dpo|kto|grpo|rloo)\w*\.py"
)
# TRL's program and scripts, which lay no adapters without `--use_peft`.
OF_TRLS_OWN: Final = re.compile(r"trl|(?:sft|dpo|orpo|kto|cpo|grpo|rloo|reward_modeling)\w*\.py")


_ALONE: Final = "a rank without a switch: read as adapters beside frozen weights"
_SWITCHES: Final = ("use_peft", "use_lora", "lora_enable", "lora", "q_lora", "only_optimize_lora")
_KINDS: Final = ("tuner_type", "train_type", "sft_type", "train_mode")
_WHOLE: Final = "priced as training of all weights"


def _adapts_alone(flags: Mapping[str, Any]) -> bool:
    """Whether the rank of adapters is stated, and no switch that turns them on or off."""
    switches = {*_SWITCHES, *_KINDS, *_OF_LLAMAFACTORY}
    return not {"lora_rank", "lora_r"}.isdisjoint(flags) and switches.isdisjoint(flags)


# What a Python program makes: configurations of trainers, those of adapters and of weights in few
# bits, whose arguments are `found`'s under these names, and calls that name the model.
_MADE_IN_PYTHON: Final = re.compile(
    r"^(?:from|import) (?:trl|transformers|peft)\b(?s:.)*\b\w+(?:Config|Arguments)\(", re.MULTILINE
)
_OF_ADAPTERS: Final = {
    "r": "lora_r", "target_modules": "lora_target_modules", "lora_dropout": "lora_dropout",
}  # fmt: skip
_OF_BITS: Final = {name: name for name in ("load_in_4bit", "load_in_8bit")}
_OF_MODELS: Final = {
    **{name: name for name in ("torch_dtype", "dtype", "attn_implementation", "max_seq_length")},
    **_OF_BITS, "model": "model_name_or_path", "model_name": "model_name_or_path",
    "pretrained_model_name_or_path": "model_name_or_path",
}  # fmt: skip


def _program(text: str, beside: Beside) -> StatedRun:
    """The arguments that a program states as they stand, or by names of values that do."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise InvalidInput.of("file", f"must be Python: line {error.lineno}, {error.msg}") from None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    given, unknown, loads = dict[str, Any](), list[str](), False
    for call in calls:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
        words = {each.arg: each.value for each in call.keywords if each.arg is not None}
        taken = {word: word for word in words}
        if name == "LoraConfig" or (name == "get_peft_model" and "r" in words):
            taken, given["use_peft"] = _OF_ADAPTERS, True
        elif name == "BitsAndBytesConfig":
            taken = _OF_BITS
        elif name.endswith("Trainer") or name == "from_pretrained":
            taken = _OF_MODELS
            words |= {"model": call.args[0]} if call.args else {}
            loads |= "Model" in ast.unparse(call.func)
        elif not name.endswith(("Arguments", "Config")):
            continue
        if (kind := script.trainer_named(name)) is not None:
            given.setdefault("rl", kind)
        for word, own in taken.items():
            if word not in words:
                continue
            try:
                read = script.python_value(words[word], named)
            except ValueError:
                unknown.append(own)
                continue
            is_name = isinstance(read, str) and not isinstance(words[word], ast.Attribute)
            if own != "model_name_or_path" or is_name:
                given.setdefault(own, read)
            else:
                unknown.append(own)
    made_by_trl = re.search(r"\b(?:SFT|DPO|ORPO|KTO|GRPO|Reward)Config\(", text) is not None
    if made_by_trl:
        run = _recipe(given, beside, text, loaded_in=None if loads else "fp32")
    else:
        loss, said = script.usual_loss(given, text, beside) if "SFTTrainer(" in text else ({}, ())
        run = _trl(Settings({**given, **loss}, from_words=True), beside)
        run = replace(run, notes=(*said, *run.notes))
    lost = sorted({each for each in unknown if each not in given and each in _PRICED})
    notes = [f"{name} is not written out in the program, and not used" for name in lost]
    return replace(run, notes=(*run.notes, *notes))


_PRICED: Final = frozenset(
    {*_LENGTHS, "model_name_or_path", "per_device_train_batch_size", "gradient_accumulation_steps"}
    | {"gradient_checkpointing", "bf16", "fp16", "optim", "deepspeed", "fsdp", "lora_r"}
    | {"torch_dtype", "dtype", "model_init_kwargs"}
)


def _with_file(
    flags: dict[str, Any], launch: script.Launch, beside: Beside, notes: list[str]
) -> dict[str, Any]:
    """The arguments over those of the file that `--config` or the first word names.

    Without a model that is not known.
    """
    first = launch.words[0].shown() if launch.words else None
    name = flags.get("config", first)
    if isinstance(name, str) and name.endswith((".yaml", ".yml")):
        flags = {key: value for key, value in flags.items() if key != "config"}
        if (text := script.text_beside(name, launch, beside)) is None:
            notes.append(f"{name} is not beside this file, and what it says is not used")
        else:
            flags = {**parse_yaml(text, variables=beside.variables), **flags}
    model = flags.get("model_name_or_path")
    if isinstance(model, Value):
        del flags["model_name_or_path"]
        unknown = model.unknowns[0]
        notes.append(f"{UNDESCRIBED}: --model_name_or_path is {unknown}{fix_of(unknown)}")
    return flags


def _with_fsdp(
    given: dict[str, Any], launch: script.Launch, beside: Beside, notes: list[str]
) -> dict[str, Any]:
    """The arguments with what a file says that `fsdp_config` names in place of its name."""
    name = given.get("fsdp_config")
    if not isinstance(name, str) or not name.endswith(".json"):
        return given
    if (inside := script.text_beside(name, launch, beside)) is None:
        notes.append(f"{name} is not beside this file, and what it says is not used")
        return given
    return {**given, "fsdp_config": parse_yaml(inside)}


def _recipe(
    given: dict[str, Any], beside: Beside, text: str, *, loaded_in: str | None = "fp32"
) -> StatedRun:
    """A file for TRL's own command, with what the command turns on where a file does not say.

    `loaded_in` is what a model has that TRL loads by its name (trl/trainer/utils).
    """
    own = _left_to_trl(given)
    config = given.get("accelerate_config")
    kept = {key: value for key, value in given.items() if key != "accelerate_config"}
    notes = [f"{key} is not said: on, as TRL has it since 0.22" for key in own]
    if "lora_rank" in given and _adapts_alone(given):  # no word of TRL's own
        own = {**own, "use_peft": True}
        notes += (_ALONE, *script.left_to_program({**given, **own}, "its program"))
    kept = _with_fsdp(kept, script.Launch(program="", words=()), beside, notes)
    loss, said = script.usual_loss(given, text, beside)
    settings = Settings({**kept, **own, **loss}, from_words=True)
    run = _trl(settings, beside, loaded_in=loaded_in)
    if config is not None:
        run = _started_so(run, {"config_file": config}, beside, notes)
    return replace(run, notes=(*notes, *said, *run.notes))


def _left_to_trl(given: dict[str, Any]) -> dict[str, Any]:
    """What TRL turns on: bf16 wherever neither it nor fp16 is said (trl/trainer/base_config)."""
    said = {**given, "bf16": False} if Settings(given).is_on("fp16") else given
    return {key: value for key, value in _OF_TRL.items() if said.get(key) is None}


def _of_chat(flags: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The arguments of a step of DeepSpeed-Chat as those of one that trains a model alone."""
    if "actor_model_name_or_path" not in flags:
        return {**_CHAT, **flags}, ()
    lengths = [flags.get(f"max_{part}_seq_len", "256") for part in ("prompt", "answer")]
    plain = {_ACTOR.get(name, name): value for name, value in flags.items()}
    if all(isinstance(each, str) and each.isdigit() for each in lengths):
        plain["max_seq_len"] = str(sum(map(int, lengths)))
    note = (
        "the actor's training is priced: generation, the critic and the two models that only "
        "answer are not modelled"
    )
    kept = {name: each for name, each in plain.items() if not name.startswith("critic_")}
    kept.pop("enable_hybrid_engine", None)  # it generates
    return {**_CHAT, **kept}, (note,)


def _started_so(
    run: StatedRun, options: Mapping[str, str | bool], beside: Beside, notes: list[str]
) -> StatedRun:
    """The run with the sharding of accelerate's options and its file, which may lie beside."""
    given: dict[str, Any] = {}
    if (config := options.get("config_file")) is not None:
        try:
            data = read_bytes((beside.folder or Path()) / str(config), name="config", most=2**20)
            given = parse_yaml(data.decode(), variables=beside.variables)
        except (InvalidInput, UnicodeDecodeError):
            name = str(config).rpartition("/")[2]
            said = deepspeed.STAGE_IN_NAME.search(name)
            stage = int(said[1]) if said else 3 if "fsdp" in name.lower() else 0
            if name not in _OF_TRL_ITSELF:
                notes.append(f"{name} is not beside this file: priced as ZeRO {stage}; give --zero")
            reduced = deepspeed.reduced_in(run.precision) if stage else run.reduce_dtype
            engine = deepspeed.ENGINE if stage and "fsdp" not in name.lower() else None
            kept = reduced if engine else run.gradient_dtype
            engine = (
                deepspeed.FIRST_FSDP
                if stage and not engine and "fsdp2" not in name.lower()
                else engine
            )
            return replace(
                run, zero=stage, gradient_dtype=kept, reduce_dtype=reduced, engine=engine
            )
    for kind, table, prefix in _ACCELERATED:
        if f"use_{kind}" in options:
            own = {name: each for name, each in options.items() if name.startswith(prefix)}
            given |= {"distributed_type": kind.upper(), table: {**given.get(table, {}), **own}}
    mixed = options.get("mixed_precision") or given.get("mixed_precision")
    if run.precision == "fp32" and mixed in ("bf16", "fp16", "fp8"):
        run = replace(run, precision=str(mixed))  # of a trainer that names none
    if not given:
        return run
    own_run = _accelerate(Settings(given, from_words=True), beside)
    notes += own_run.notes
    again = own_run.recompute or run.recompute
    offload = own_run.offload or run.offload
    return replace(
        run,
        zero=own_run.zero,
        offload=offload,
        recompute=again,
        gradient_dtype=deepspeed.reduced_in(run.precision, own_run.gradient_dtype)
        if own_run.engine == deepspeed.ENGINE
        else run.gradient_dtype,
        reduce_dtype=own_run.reduce_dtype
        or (deepspeed.reduced_in(run.precision) if own_run.zero else None),
        engine=own_run.engine,
        num_devices=run.num_devices or own_run.num_devices,
    )


def _trl(
    found: Settings,
    beside: Beside,
    sharding: deepspeed.Sharding | None = None,
    *,
    loaded_in: str | None = None,
) -> StatedRun:
    found.value("deepspeed")
    kind = found.word(found.first(*_KINDS), ("lora", "qlora", "full", "none", ""), _WHOLE)
    peft = found.switch(found.first("use_peft", "use_lora", "lora_enable", "lora"))
    inside, qlora = found.count("use_llm_lora", least=0), found.switch("q_lora")
    wide, alone = found.count("lora_dim", least=0), found.switch("only_optimize_lora")
    adapters = _adapters(
        found,
        on=peft or qlora or kind in ("lora", "qlora") or bool(wide) or bool(inside),
        rank=found.first("lora_rank", "lora_r", "lora_dim", *("use_llm_lora",) * bool(inside)),
        usual_rank=64 if "lora_enable" in found else 8 if kind else 16,
        targets=_split(found.texts(found.first(*script.WHERE)))
        or _usual_targets(found, everywhere=bool(kind or wide or inside)),
    )
    frozen = frozen_parts(found)
    beside_weights = bool(wide) and not alone
    bits = _bits(found) or (4 if qlora or kind == "qlora" else None)
    packing = found.switch("packing")
    checkpoints = found.table("gradient_checkpointing_kwargs")
    own = ("activations to cpu",) if checkpoints.switch("offload") else ()
    offload = _offloaded(found)
    in_parts = found.texts("loss_type") == ("chunked_nll",) or found.is_on(script.LOG_PROBS)
    by_kernel = found.is_on(script.FUSED_LOG_PROBS)
    run = _trainer(
        found,
        sequence=script.longest(found, _LENGTHS),
        usual_sequence=1024,
        recompute=found.switch("gradient_checkpointing")
        or found.switch("grad_checkpoint", default="force_image_size" in found)  # of InternVL
        or _wraps_checkpoints(found),
        adapters=adapters,
        bits=bits,
        sharding=deepspeed.named_sharding(found, beside) if sharding is None else sharding,
        packing=packing,
        model_key=found.first(*_MODELS),
        loaded_in=loaded_in,
        more_notes=[
            *((_OF_DSCHAT,) * beside_weights),
            *((_OF_TOWER,) * ("vision_tower" in found)),
        ],
    )
    run = replace(
        run,
        loss_chunk=LOSS_CHUNKS["trl"] if in_parts else None,
        fused_cross_entropy=by_kernel or None,
        freeze=None if adapters else frozen or None,
    )
    return _with_offloaded(run, offload) if offload else replace(run, offload=(*run.offload, *own))


# Of DeepSpeed-Chat, whose `LinearLayer_LoRA` freezes the weight that it stands beside.
_OF_DSCHAT: Final = "lora_dim: embedding, norms and head train, too, and are priced as frozen"
_OF_TOWER: Final = "vision_tower: priced where the model given takes images, not of its text alone"


def _split(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word.strip() for name in names for word in name.split(","))


def _usual_targets(found: Settings, *, everywhere: bool) -> tuple[str, ...]:
    """Products that adapters lie beside where a script does not name them."""
    if everywhere or ("lora_enable" in found and "tune_mm_llm" not in found):
        return ("all-linear",)
    attention = ("q_proj", "k_proj", "v_proj", "o_proj")
    return attention if "lora_enable" in found else ("q_proj", "v_proj")


def _offloaded(found: Settings) -> tuple[str, ...]:
    """Where TRL and axolotl put what blocks keep: `activation_offloading`, on or a way to do it."""
    way = found.value("activation_offloading")
    if way in (None, False, "false", "False"):
        return ()
    return (f"activations to {'nvme' if way == 'disk' else 'cpu'}",)


def _with_offloaded(run: StatedRun, offload: tuple[str, ...]) -> StatedRun:
    note = "activation_offloading: what blocks keep is priced in the host's memory"
    notes = (note,) if offload else ()
    return replace(run, offload=(*run.offload, *offload), notes=(*run.notes, *notes))


def read_llamafactory(text: str, beside: Beside = NOTHING) -> StatedRun:
    """A file for `llamafactory-cli train`, or a script with its arguments."""
    if is_trainer_script(text):
        return read_trl(text, beside)
    found = read_yaml(text, beside)
    if is_second_way(found):
        return read_second_way(found, beside)
    return _llamafactory(found, beside, None)


# What of a model that takes images does not train where it trains in full, unless it is said.
_FROZEN: Final = {
    "freeze_vision_tower": VISION,
    "freeze_multi_modal_projector": PROJECTOR,
}
_OF_LLAMAFACTORY: Final = ("cutoff_len", "finetuning_type", "quantization_bit")


def _llamafactory(
    found: Settings, beside: Beside, sharding: deepspeed.Sharding | None
) -> StatedRun:
    """LLaMA-Factory's own words; it recomputes every block unless told otherwise.

    What trains it makes float32, but in ZeRO-3 or all in bf16 (llamafactory/model/adapter).
    Until 2023 question and answer had a longest length each.
    """
    parts = (found.count("max_source_length") or 0, found.count("max_target_length") or 0)
    kind = found.text("finetuning_type") or "lora"
    adapters = _adapters(
        found,
        on=kind in ("lora", "oft"),
        rank="lora_rank",
        usual_rank=8,
        targets=_split(found.texts("lora_target") or ("all",)),
    )
    frozen = [part for key, part in _FROZEN.items() if found.switch(key, default=True)]
    bits = found.count("quantization_bit")
    off = found.switch("disable_gradient_checkpointing")
    if found.switch("use_muon"):
        adapters["optimizer"] = "muon"
    notes = []
    if kind == "freeze":
        notes.append("finetuning_type freeze: changes the answer, not modelled; give --freeze")
    elif kind not in ("lora", "full"):
        notes.append(f"finetuning_type {kind}: priced as low-rank adapters of rank 8")
    run = _trainer(
        found,
        sequence=found.count("cutoff_len") or sum(parts) or None,
        usual_sequence=2048,
        recompute=not off,
        adapters=adapters,
        bits=bits,
        sharding=deepspeed.named_sharding(found, beside) if sharding is None else sharding,
        packing=found.switch("packing"),
        degrees=_megatron_degrees(found),
        reentrant=found.switch("use_reentrant_gc", default=True),
        loaded_in="bf16" if adapters or found.switch("pure_bf16") else "fp32",
        more_notes=notes,
    )
    return replace(run, freeze=tuple(chain(*frozen)) or None) if kind == "full" else run


def _megatron_degrees(found: Settings) -> dict[str, Any]:
    """Degrees of its Megatron trainer, which shards the optimizer where it is told to."""
    tensor = found.count("tensor_model_parallel_size") or 1
    pipeline = found.count("pipeline_model_parallel_size") or 1
    experts = found.count("expert_model_parallel_size") or 1
    chunks = found.count("virtual_pipeline_model_parallel_size") or 1
    context = found.count("context_parallel_size") or found.count("sequence_parallel_size") or 1
    named = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
    granularity = found.text("recompute_granularity")
    method = found.text("recompute_method")
    layers = found.count("recompute_num_layers")
    is_sharded = found.switch("use_distributed_optimizer")
    is_parallel = found.switch("sequence_parallel")
    found.value("moe_token_dispatcher_type")
    if all(found.is_absent(name) for name in named) and context == 1:
        return {}
    degrees: dict[str, Any] = {
        "tp": tensor,
        "pp": pipeline,
        "ep": experts,
        "cp": context,
        "virtual_stages": chunks,
        "schedule": usual_schedule(chunks),
        "sequence_parallel": tensor > 1 and is_parallel,
        "zero": int(is_sharded),
        "etp": 1 if experts > 1 and tensor == 1 else None,
    }
    if granularity == "full":
        degrees["recompute"] = f"full:{layers or 1}" if method == "block" else "full"
    elif granularity == "selective":
        degrees["recompute"] = "selective"
    return degrees


def read_axolotl(text: str, beside: Beside = NOTHING) -> StatedRun:
    """A file of axolotl."""
    found = read_yaml(text, beside)
    adapter = found.word("adapter", ("lora", "qlora", "none", "false", ""), _WHOLE)
    linear = found.switch("lora_target_linear")
    paths = (each.rpartition(".")[2] for each in found.texts("lora_target_parameters"))
    inside = [product for name in paths for product in EXPERT_PRODUCTS.get(name, ())]
    modules = (*found.texts("lora_target_modules"), *inside)
    adapters = _adapters(
        found,
        on=adapter in ("lora", "qlora"),
        rank="lora_r",
        usual_rank=8,
        targets=("all",) if linear else modules or ("q_proj", "v_proj"),
    )
    loaded = _bits(found)
    bits = 4 if adapter == "qlora" and loaded is None else loaded
    wrapped = _wraps_checkpoints(found)
    tensor = found.count("tensor_parallel_size") or 1
    context = found.count(found.first("sequence_parallel_degree", "context_parallel_size")) or 1
    experts = found.count("expert_parallel_size") or 1
    replicas, shards = found.count("dp_replicate_size") or 1, found.count("dp_shard_size")
    degrees: dict[str, Any] = {"tp": tensor, "pp": 1, "cp": context, "ep": experts}
    if shards and not found.is_absent("dp_replicate_size"):
        degrees["dp"] = replicas * shards
    sharding = deepspeed.named_sharding(found, beside)
    zero, _ = deepspeed.fsdp_of(found)
    if sharding is None and (zero is not None or (shards or 1) > 1):
        degrees["zero"] = 3 if zero is None else zero
    offload = _offloaded(found)
    said = "dp" in degrees or shards is None
    notes = [] if said else [f"dp_shard_size {shards}: replicas are those of --nodes"]
    if "cut_cross_entropy" in str(found.value("plugins")) and found.is_absent("cut_cross_entropy"):
        notes.append("CutCrossEntropyPlugin keeps no logits: not modelled; give --loss-chunk 1024")
    if shards and shards > 1 and replicas > 1:
        degrees["state_copies"] = replicas
    run = _trainer(
        found,
        sequence=found.count("sequence_len"),
        usual_sequence=512,
        recompute=wrapped or found.is_on("gradient_checkpointing"),
        adapters=adapters,
        bits=bits,
        sharding=sharding,
        packing=found.switch("sample_packing"),
        degrees=degrees,
        model_key="base_model",
        loaded_in="bf16",  # as it trains (axolotl/utils/config)
        more_notes=notes,
    )
    run = _with_offloaded(run, offload)
    is_whole = run.options.get("main_weight_dtype") == "none"
    return replace(run, notes=(*run.notes, _WIDE)) if is_whole and run.loaded_in else run


_WIDE: Final = "norms, embedding and what blocks pass on are float32 there, and priced in bf16"


def _wraps_checkpoints(found: Settings) -> bool:
    """Whether FSDP recomputes every block that it wraps."""
    if not isinstance(found.value("fsdp_config"), dict):
        return False
    table = found.table("fsdp_config")
    return table.switch(table.first("fsdp_activation_checkpointing", "activation_checkpointing"))


# Words of accelerate's own file; `no` is false in YAML (accelerate/utils/dataclasses.py).
_MIXED: Final = frozenset({"no", "false", "fp32", "bf16", "fp16", "fp8"})
_DISTRIBUTED: Final = frozenset(
    {"no", "false", "fsdp", "deepspeed", "megatron_lm", "tpu", "xla", "multi_gpu", "multi_cpu"}
    | {f"multi_{kind}" for kind in ("xpu", "npu", "mlu", "hpu", "sdaa", "musa", "neuron")}
)


def read_accelerate(text: str, beside: Beside = NOTHING) -> StatedRun:
    """Accelerate's own file; batch, sequence and model belong to the script that it starts."""
    found = read_yaml(text, beside)
    return _accelerate(found, beside)


def _accelerate(found: Settings, beside: Beside) -> StatedRun:
    kind = (found.word("distributed_type", _DISTRIBUTED, "priced as NO") or "no").upper()
    processes, machines = found.count("num_processes"), found.count("num_machines")
    precision = found.word("mixed_precision", _MIXED, "priced as fp32")
    sharding = None
    zero = 0
    offload: tuple[str, ...] = ()
    notes = list[str]()
    degrees: dict[str, Any] = {}
    fsdp = found.table("fsdp_config")
    recompute = None
    if kind == "FSDP":
        zero = deepspeed.fsdp_stage(fsdp)
        if re.search(r"^[45]$|HYBRID", str(fsdp.value("fsdp_sharding_strategy"))):
            notes.append("HYBRID_SHARD: priced as sharded over all replicas; give --state-copies")
        offload = BY_FSDP if fsdp.switch("fsdp_offload_params") else ()
        if fsdp.switch("fsdp_activation_checkpointing"):
            recompute = "full"
    given = found.table("deepspeed_config")
    if kind == "DEEPSPEED":
        path = given.text("deepspeed_config_file")
        if path is not None:
            sharding = deepspeed.sharding_beside(path, beside)
            zero = sharding.zero
            notes += sharding.notes
        else:
            stage = given.count("zero_stage", least=0, most=3)
            zero = 2 if stage is None else stage
        moved = {name: given.text(f"offload_{name}_device") for name in ("optimizer", "param")}
        offload = deepspeed.moved_by_zero(zero, moved)
        steps = given.value("gradient_accumulation_steps")
        if steps not in (None, 1, "auto"):
            notes.append(f"gradient_accumulation_steps {steps}: the script's batch decides")
    parallel = {
        name.removeprefix("parallelism_config_"): name for name in found.table("parallelism_config")
    }
    axes = found.table("parallelism_config")
    sizes = {
        name: axes.count(parallel[f"{name}_size"]) if f"{name}_size" in parallel else None
        for name in ("tp", "cp", "sp", "dp_replicate", "dp_shard")
    }
    tensor, context = sizes["tp"] or 1, (sizes["cp"] or 1) * (sizes["sp"] or 1)
    if kind != "MEGATRON_LM":
        degrees = {"tp": tensor, "pp": 1, "cp": context}
    if any(sizes.values()):
        replicas, shards = sizes["dp_replicate"], sizes["dp_shard"]
        if replicas or shards:
            degrees["dp"] = (replicas or 1) * (shards or 1)
        if zero and replicas and replicas > 1 and shards and shards > 1:
            degrees["state_copies"] = replicas
    if context > 1:
        strategy = parallel.get("cp_comm_strategy")
        rotates = axes.one_of(strategy, _EXCHANGES, _GATHERED) if strategy else _GATHERED
        degrees |= _context_exchange(rotates, sizes["cp"] or 1, sizes["sp"] or 1)
    found.table("megatron_lm_config")
    if kind == "MEGATRON_LM":
        notes.append("megatron_lm_config: changes the answer, not modelled")
    words = {"no": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}
    backend = (
        found.table("dynamo_config").text("dynamo_backend") if "dynamo_config" in found else None
    )
    compiled = (backend or "no").lower() != "no"
    unknown, changing = found.remarks(harmless=_HARMLESS, unmodelled=_UNMODELLED)
    if precision == "no":
        notes.append("mixed_precision no: the weights are those of the script, priced as fp32")
    return StatedRun(
        **{**degrees, "zero": zero},
        precision=words.get(precision or ""),
        recompute=recompute,
        offload=offload or (() if sharding is None else sharding.offload),
        gradient_dtype=None if sharding is None else sharding.kept_in(words.get(precision or "")),
        reduce_dtype=_reduced_in(precision, sharding, wraps=kind in ("FSDP", "DEEPSPEED")),
        engine=deepspeed.ENGINE
        if kind == "DEEPSPEED" and zero
        else deepspeed.first_fsdp(fsdp)
        if zero
        else None,
        program="megatron" if kind == "MEGATRON_LM" else None,
        compiled=compiled or None,
        num_devices=None if kind == "NO" and processes is None else processes,
        devices_per_node=None if processes is None else processes // (machines or 1) or None,
        unknown=unknown,
        notes=(*notes, *changing),
    )


_EXCHANGES: Final = {theirs: str(ours) for ours, theirs in ROTATES.items()}
_GATHERED: Final = ROTATES[ContextExchange.ALL_GATHER]  # where nothing is said


def _context_exchange(rotates: str, context: int, heads: int) -> dict[str, Any]:
    """How context ranks exchange; those that trade heads (ALST) may lie inside a ring."""
    if heads == 1:
        return {"context_exchange": _EXCHANGES[rotates]}
    if context == 1:
        return {"context_exchange": "all_to_all"}
    return {"context_exchange": "all_to_all_ring", "ulysses": heads}


# What they share
# ---------------


def _trainer(
    found: Settings,
    *,
    sequence: int | None,
    usual_sequence: int,
    recompute: bool,
    adapters: dict[str, Any],
    bits: int | None,
    sharding: deepspeed.Sharding | None,
    packing: bool,
    degrees: dict[str, Any] | None = None,
    model_key: str = "model_name_or_path",
    reentrant: bool = False,
    loaded_in: str | None = None,
    more_notes: Iterable[str] = (),
) -> StatedRun:
    """The run of the trainer's arguments; raises `InvalidInput` with every fault.

    `loaded_in` is the format of the weights where no argument says it.
    """
    size = found.count(found.first("micro_batch_size", "per_device_train_batch_size")) or 8
    whole = found.count("batch_size")  # axolotl's old word for the batch of a device and step
    steps = found.count("gradient_accumulation_steps") or max((whole or size) // size, 1)
    name = found.text(model_key)
    optimizer = found.text(found.first("optim", "optimizer"))
    notes = list(more_notes)
    notes += () if sharding is None else sharding.notes
    if sequence is None:
        notes.append(f"the longest sequence is not said: priced as {usual_sequence}, the default")
    if not packing:
        notes.append("sequences are priced at their longest: shorter ones take less")
    kind = script.kind_of(found)
    answers = 2 if kind in script.PAIRED else 1
    notes += script.beyond_supervised(found, kind, adapts=bool(adapters))
    degrees = dict(degrees or {})
    stage, offload = (0, ()) if sharding is None else (sharding.zero, sharding.offload)
    wrapped, moved = deepspeed.fsdp_of(found)
    config = found.table("fsdp_config") if isinstance(found.value("fsdp_config"), dict) else None
    engine = (
        deepspeed.first_fsdp(config or Settings({}), found.value("fsdp_version"))
        if wrapped
        else None
    )
    checkpoints = found.table("gradient_checkpointing_kwargs")
    if sharding is None and wrapped is not None:
        stage, offload = degrees.get("zero", wrapped), moved
    degrees.setdefault("zero", stage)
    degrees.setdefault("recompute", "full" if recompute else "none")
    dropout = adapters.get("lora_dropout")
    notes += deepspeed.odd_optimizer(optimizer)
    precision = _precision(found)
    numbers: dict[str, Any] = {"gradient_dtype": sharding.kept_in(precision)} if sharding else {}
    if sharding is None and not adapters and _trains_in_bf16(found):
        numbers = {**ALL_IN_16_BIT}
    loaded = _loaded_in(found) or loaded_in
    if wrapped == 0:
        loaded = "fp32"  # FSDP makes them so beside its mixed precision, whether it shards or not
    if loaded is None and not (sharding or stage or bits) and precision in ("bf16", "fp16"):
        loaded = "bf16"
        notes.append(_OF_CHECKPOINT.format(precision))
    kernels = [found.value(name) for name in ("attn_implementation", "flash_attn")]
    compiled = found.switch("torch_compile")
    is_plain = not _UNFUSED.isdisjoint(map(str, kernels)) or found.value("eager_attention") is True
    unknown, changing = found.left_over(harmless=_HARMLESS, unmodelled=_UNMODELLED)
    run = StatedRun(
        **degrees,
        **{**numbers, **deepspeed.optimizer_of(optimizer)},
        **{k: v for k, v in adapters.items() if k != "lora_dropout"},
        lora_dropout=dropout,
        flash_attention=False if is_plain else None,
        weight_bits=bits,
        micro_batch=answers * size,
        batch_per_replica=answers * size * steps,
        per_example=answers,
        reference=(kind in script.REFERS and not found.switch("precompute_ref_log_probs")) or None,
        sequence=sequence or usual_sequence,
        precision=precision,
        offload=offload,
        reduce_dtype=_reduced_in(precision, sharding, wraps=wrapped is not None),
        engine=deepspeed.ENGINE if sharding is not None and sharding.zero else engine,
        reentrant=checkpoints.switch("use_reentrant", default=reentrant),
        compiled=compiled or None,
        loaded_in=loaded if sharding is None and bits is None else None,
        model_name=name,
        unknown=unknown,
        notes=(*notes, *changing),
    )
    found.check()
    return run


_OF_CHECKPOINT: Final = (
    "the format of weights is not said: that of the checkpoint, taken as bf16, as transformers 5 "
    "loads them; for float32, as before, give --precision {}_autocast"
)


def _reduced_in(
    precision: str | None, sharding: deepspeed.Sharding | None, *, wraps: bool
) -> str | None:
    """What replicas sum gradients in, where FSDP or DeepSpeed does; plain replicas as they are."""
    if sharding is None:
        return deepspeed.reduced_in(precision) if wraps else None
    return deepspeed.reduced_in(precision, sharding.reduce_dtype)


# What turns fused attention off, where transformers chooses one by itself.
_UNFUSED: Final = frozenset({"eager", "disabled", "off"})


def _precision(found: Settings) -> str:
    eight = found.switch("fp8")
    half, whole = found.is_on("bf16"), found.is_on("fp16")
    kept = _loaded_in(found)
    float16, _ = found.switch("float16"), found.switch("float32")
    pure = found.switch("pure_bf16") or found.value("bf16") == "full" or found.switch("bfloat16")
    if eight:
        return "fp8"
    if half or pure:
        return "bf16"
    if whole:
        return "fp16"
    if kept == "bf16":
        return "bf16"
    if float16 or kept == "fp16":
        return "fp16"
    return "fp32"


def _loaded_in(found: Settings) -> str | None:
    """The format that weights are loaded in, where that is said; a checkpoint's is taken as bf16.

    What TRL passes on to `from_pretrained` takes the place of its own argument (trl/scripts/sft).
    """
    given = found.value("model_init_kwargs")
    passed = parse_yaml(given) if isinstance(given, str) and given.startswith("{") else given
    passed = passed if isinstance(passed, dict) else {}
    name = found.first("torch_dtype", "dtype")
    own = found.value(name)
    said = str(passed.get("dtype") or passed.get("torch_dtype") or own or "")
    if own and own != "auto" and format_named(str(own)) is None:
        found.word(name, (), "not used")
    return "bf16" if said == "auto" else format_named(said)


def _trains_in_bf16(found: Settings) -> bool:
    """Whether weights are bf16 and nothing is mixed: gradients and moments are like them."""
    said = found.value("bf16")
    is_mixed = said is None or found.is_on("bf16") or found.is_on("fp16")
    return (
        found.switch("pure_bf16")
        or said == "full"
        or (_loaded_in(found) == "bf16" and not is_mixed)
    )


def _adapters(
    found: Settings, *, on: bool, rank: str, usual_rank: int, targets: tuple[str, ...]
) -> dict[str, Any]:
    """Low-rank adapters as options; nothing where the run has none."""
    number, dropout = found.count(rank), found.number("lora_dropout")
    if not on:
        return {}
    return {
        "lora_rank": number or usual_rank,
        "lora_targets": products_of(targets),
        "lora_dropout": dropout or None,
    }


def _bits(found: Settings) -> int | None:
    four, eight = found.switch("load_in_4bit"), found.switch("load_in_8bit")
    said = found.count("bits") if "quant_type" in found or "double_quant" in found else None
    return 4 if four else 8 if eight else said if said in (4, 8) else None
